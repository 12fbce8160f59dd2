"""Quantiles of a stream in bounded memory, with a bound of their error that is computed, not hoped for.

A sketch holds levels of values; one of level h stands for 2^h values of the stream. A level that is full is sorted, and of every two
neighbours one goes up a level (Munro & Paterson, Theoretical Computer Science 12 (1980) 315; Karnin, Lang & Liberty, FOCS 2016, take them
at random). The rank of any number changes by at most 2^h: up where the first of the pairs is kept, down where the second, in turns. The
sums of both are kept, so that the true rank is known to lie between two numbers. Sketches are merged level by level; all of it is
deterministic.
"""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Sketch:
    """Values (m, width) by level, and the bounds of ``true rank - rank in the sketch``: from ``-above`` to ``below``."""

    levels: tuple
    n: int
    above: int
    below: int

    def rank_error(self) -> int:
        """Largest error of a rank."""
        return max(self.above, self.below)

    def values_at(self, ranks: np.ndarray) -> np.ndarray:
        """Values (len(ranks), width) with these ranks, counted from 0 on, clipped to what there is."""
        values = np.concatenate(self.levels)
        weights = np.concatenate([np.full(len(x), 2**h) for h, x in enumerate(self.levels)])
        order = np.argsort(values, axis=0, kind="stable")
        ends = np.cumsum(weights[order], axis=0)
        wanted = np.clip(np.floor(ranks), 0, self.n - 1)
        rows = np.empty((len(wanted), values.shape[1]), int)
        for j in range(values.shape[1]):
            rows[:, j] = np.searchsorted(ends[:, j], wanted, side="right")
        return np.take_along_axis(values, np.take_along_axis(order, rows, axis=0), axis=0)


def of(values, size):
    """Sketch of values (m, width), with at most ``size`` in a level."""
    return _compacted([values], len(values), 0, 0, size)


def merged(a, b, size):
    """Sketch of both streams."""
    depth = max(len(a.levels), len(b.levels))
    empty = a.levels[0][:0]
    pad = [list(x.levels) + [empty] * (depth - len(x.levels)) for x in (a, b)]
    levels = [np.concatenate(pair) for pair in zip(*pad, strict=True)]
    return _compacted(levels, a.n + b.n, a.above + b.above, a.below + b.below, size)


def _compacted(levels, n, above, below, size):
    h = 0
    while h < len(levels):
        rows = levels[h]
        if len(rows) > size:
            ordered = np.sort(rows, axis=0)
            pairs = len(rows) // 2 * 2
            first = above <= below  # in turns, by what is known of the error so far
            up = ordered[0 if first else 1 : pairs : 2]
            above, below = above + 2**h * first, below + 2**h * (not first)
            levels[h] = ordered[pairs:]
            if h + 1 == len(levels):
                levels.append(up)
            else:
                levels[h + 1] = np.concatenate([levels[h + 1], up])
        h += 1
    return Sketch(tuple(levels), n, above, below)
