"""The progress bar of long runs: tqdm, fed from inside the compiled loop. What is no terminal gets a line every tenth of the way."""

import functools
import sys
import threading

import jax
import numpy as np
from jax import lax

#: How often a run, or a batch of them, reports: seldom enough to cost nothing.
UPDATES = 100

#: Members of a batch, at the most, that each report on their way.
FEW = 10


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


class Lines(NoBar):
    """In place of a bar, in a file say: a line every tenth of the way."""

    def __init__(self, iterable=(), *, total=None, desc="", unit="", initial=0, **_):
        super().__init__(iterable, initial=initial)
        self.total, self.words, self.unit = total or len(iterable), f"{desc} " if desc else "", f" {unit}" if unit else ""

    def __iter__(self):
        for x in self.iterable:
            yield x
            self.update()

    def update(self, n=1):
        """Count on, and write."""
        before = 10 * self.n // self.total
        super().update(n)
        if 10 * self.n // self.total > before:
            print(f"{self.words}{100 * self.n / self.total:.0f}% ({self.n} of {self.total}{self.unit})", file=sys.stderr, flush=True)


def compiling(what, scheme, n_steps):
    """Say what is going to be compiled: a run of so many steps of ``what``."""
    print(f"compiling {what} with {type(scheme).__name__}, {n_steps} steps", file=sys.stderr, flush=True)


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
    """A bar, with the arguments and methods of `tqdm.tqdm`: around an iterable, or moved by ``update``."""
    kind = _kind() if sys.stderr.isatty() or "ipykernel" in sys.modules else Lines
    return kind(*(() if iterable is None else (iterable,)), **{"dynamic_ncols": True} | options)


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

    def report(self, steps, first, members):
        """For use inside a traced loop: so many steps more, from ``first`` on, of a member which speaks for so many (see `shares`)."""
        # It depends on the place in the loop: reverse mode takes out of a loop what does not, and does it once.
        lax.cond((members > 0) & (first >= 0), lambda: jax.debug.callback(self.show, steps * members), lambda: None)

    def done(self, members):
        """Likewise at the end of a member's run."""
        lax.cond(members < 0, lambda: jax.debug.callback(self.show, -self.steps * members), lambda: None)

    def show(self, steps):
        """Move the bar."""
        with self.lock:
            total = self.members * self.steps
            self.bar = self.bar or bar(total=total, unit="nodes", unit_scale=True)
            self.bar.update(int(steps))
            if self.bar.n >= total:
                self.bar.close()
                self.bar = None


def shares(size, inside=1):
    """For how many members each of ``size`` members speaks, with ``inside`` members in each: positive as it goes, negative at its end.

    A call back into Python costs what a hundred steps of a small system cost, so that of many members some speak, once.
    """
    if inside == 1 and size <= FEW:
        return np.ones(size, np.int32)
    every = -(-size // UPDATES)
    last = np.minimum(np.arange(size) // every * every + every, size) - 1
    return np.where(np.arange(size) == last, -inside * (last % every + 1), 0).astype(np.int32)
