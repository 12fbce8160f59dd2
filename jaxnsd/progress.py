"""The progress bar of long runs: tqdm, fed from inside the compiled loop. Where tqdm is missing, runs go without a bar."""

import functools
import sys

import jax

#: How often a run reports, at the most: seldom enough to cost nothing.
UPDATES = 100


class _NoBar:
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

    def close(self):
        """Nothing is open."""


@functools.cache
def _kind():
    """tqdm, or what stands in for it, said once in a process."""
    try:
        from tqdm.auto import tqdm
    except ImportError:
        print("no progress bar: it needs tqdm (pip install tqdm)", file=sys.stderr)
        return _NoBar
    return tqdm


def bar(iterable=None, **options):
    """A bar, with the arguments and methods of `tqdm.tqdm`: around an iterable, or moved by ``update``; nothing is shown without tqdm."""
    return _kind()(*(() if iterable is None else (iterable,)), **{"dynamic_ncols": True} | options)


def reporter(total):
    """Function ``report(done)`` for use inside a traced loop: it moves a bar of ``total`` units, which closes when it is full.

    The bar opens with the first report of a run, so that a compiled function can run many times. Under `vmap` it counts the
    steps of the whole batch once, since the count is the same for all.
    """
    bars = []

    def show(done):
        done = int(done)
        if not bars or done <= bars[0].n:
            if bars:
                bars.pop().close()
            bars.append(bar(total=total, unit="steps", unit_scale=True))
        bars[0].update(done - bars[0].n)
        if done >= total:
            bars.pop().close()

    return lambda done: jax.debug.callback(show, done)
