"""The progress bar of long runs: tqdm, fed from inside the compiled loop. Where tqdm is missing, runs go without a bar."""

import functools
import sys
import threading

import jax

#: How often a run reports, at the most: seldom enough to cost nothing.
UPDATES = 100


class NoBar:
    """Takes what a bar takes, and shows nothing."""

    def __init__(self, iterable=(), *, initial=0, **_):
        self.iterable, self.n = iterable, initial

    def __iter__(self):
        return iter(self.iterable)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def update(self, n=1):
        """Count on."""
        self.n += n

    def set_postfix(self, **_):
        """Nothing is shown behind it either."""

    def close(self):
        """Nothing is open."""


@functools.cache
def _kind():
    """tqdm, or what stands in for it, said once in a process."""
    try:
        from tqdm.auto import tqdm
    except ImportError:
        print("no progress bar: it needs tqdm (pip install tqdm)", file=sys.stderr)
        return NoBar
    return tqdm


def bar(iterable=None, **options):
    """A bar, with the arguments and methods of `tqdm.tqdm`: around an iterable, or moved by ``update``; nothing is shown without tqdm."""
    return _kind()(*(() if iterable is None else (iterable,)), **{"dynamic_ncols": True} | options)


class Bar:
    """A bar for the ``steps`` from stored node to stored node of each member of a batch, in whatever order; it closes when it is full.

    It opens with the first report of a run, so that a compiled function can run many times.
    """

    def __init__(self, steps):
        self.steps, self.members, self.bar = steps, 1, None
        # Members run on several threads.
        self.lock = threading.Lock()

    def begin(self, members):
        """A run of so many members begins."""
        with self.lock:
            self.members = members
            if self.bar:
                self.bar.total = members * self.steps

    def report(self, steps):
        """For use inside a traced loop: so many steps more are done."""
        jax.debug.callback(lambda: self.show(steps))

    def show(self, steps):
        """Move the bar."""
        with self.lock:
            total = self.members * self.steps
            self.bar = self.bar or bar(total=total, unit="nodes", unit_scale=True)
            self.bar.update(steps)
            if self.bar.n >= total:
                self.bar.close()
                self.bar = None
