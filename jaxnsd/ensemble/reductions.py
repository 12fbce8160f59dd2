"""What becomes of the observations of all members, in one pass and in bounded memory.

A reduction makes a state of the observations of a chunk (`chunk`), makes one state of two (`merge`, associative), and in the end a result
(`finish`). States are merged in the order of the members, whichever worker is done first, so that the result is the same to the bit for the
same chunks; for other sizes of the chunks it is the same to round-off. Members that failed are not among the observations.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import jax
import numpy as np

from . import sketch

#: Numbers that are printed of a statistic.
MOST = 30


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reduction:
    """Base class. ``of``: what is reduced: None all that is observed, a name in it, or a function of the arrays (m, ...) of m members.

    A class of one's own has `chunk`, `merge` and `finish`. States that are arrays, or trees of arrays, are checked by `check`; `chunk` is
    called before a run with two members whose numbers are zeros.
    """

    of: str | Callable[[Any], Any] | None = None

    def __post_init__(self):
        if not (self.of is None or isinstance(self.of, str) or callable(self.of)):
            raise TypeError(f"{type(self).__name__}: of must be a name, a function, or None, got {self.of!r}")

    def select(self, values: Any) -> Any:
        """The part of the observations that is reduced, as arrays (m, ...)."""
        if self.of is None:
            return values
        if callable(self.of):
            return self.of(values)
        part = values
        for name in self.of.split("."):
            try:
                part = part[name] if isinstance(part, dict) else part[int(name)] if name.isdigit() else getattr(part, name)
            except (KeyError, IndexError, AttributeError, TypeError):
                known = ", ".join(part) if isinstance(part, dict) else f"a {type(part).__name__}"
                raise ValueError(f"{type(self).__name__}: nothing that is observed is called {self.of!r}; there is {known}") from None
        return part

    def chunk(self, values: Any, index: np.ndarray) -> Any:
        """State of m > 0 members with these numbers (m,) and observations, arrays (m, ...)."""
        raise NotImplementedError

    def check(self, values: Any, m: int) -> None:
        """Raise ValueError if the state of m > 2 members depends on how they are cut: three pieces, merged in either order, and the whole.

        One that is associative up to an error that it states has a check of its own, or none.
        """
        if type(self) in KNOWN:
            return

        def piece(i, j):
            return self.chunk(jax.tree.map(lambda x: x[i:j], values), np.arange(i, j))

        whole = piece(0, m)
        if not all(np.asarray(x).dtype.kind in "biufc" for x in jax.tree.leaves(whole)):
            return
        bounds = list(itertools.pairwise([0, m // 3, (2 * m) // 3, m]))
        a, b, c = (piece(*x) for x in bounds)
        left = self.merge(self.merge(a, b), c)
        a, b, c = (piece(*x) for x in bounds)  # those before may have been merged in place
        right = self.merge(a, self.merge(b, c))
        name, merge = type(self).__name__, "combine" if isinstance(self, Associative) else "merge"
        for other, what in ((right, f"{merge} is not associative"), (whole, f"states of pieces do not {merge} to the state of the whole")):
            if not _agree(left, other):
                raise ValueError(
                    f"{name}: {what}, on {m} members: {_short(left)} and {_short(other)}; the result would depend on the chunks"
                )

    def merge(self, a: Any, b: Any) -> Any:
        """State of the members of both."""
        raise NotImplementedError

    def finish(self, state: Any) -> Any:
        """Result of a state."""
        return state


# ------------------------------------------------------------------------------------------------------------ mean, covariance
@dataclasses.dataclass(frozen=True, repr=False)
class MomentsOf:
    """Result of `Moments`: number of members ``n``; ``mean``, ``variance``, ``deviation``, ``standard_error`` of the mean, as observed.

    With one member there is no variance: NaN.
    """

    n: int
    mean: Any
    variance: Any

    def __repr__(self) -> str:
        """A line for each number that is observed."""
        return _table(self.n, {"mean": self.mean, "standard error": self.standard_error, "deviation": self.deviation})

    @property
    def deviation(self) -> Any:
        """Standard deviation of a member."""
        return jax.tree.map(np.sqrt, self.variance)

    @property
    def standard_error(self) -> Any:
        """Standard deviation of the mean, of independent members."""
        return jax.tree.map(lambda v: np.sqrt(v / self.n), self.variance)

    def interval(self, level: float = 0.95) -> tuple[Any, Any]:
        """``(low, high)`` that hold the true mean with this probability, for many independent members (central limit theorem)."""
        z = _z(level)
        error = self.standard_error
        return tuple(jax.tree.map(lambda m, s, by=by: m + by * s, self.mean, error) for by in (-z, z))


@dataclasses.dataclass(frozen=True)
class Moments(Reduction):
    """Mean and variance (with n - 1), in float64, by the update of Chan, Golub & LeVeque, The American Statistician 37 (1983) 242."""

    def chunk(self, values: Any, index: np.ndarray) -> Any:
        """``(n, means, sums of squared distances from them)``."""
        leaves, tree = jax.tree.flatten(self.select(values))
        mean = [_mean(x) for x in leaves]
        square = [np.sum((np.asarray(x, np.float64) - m) ** 2, axis=0) for x, m in zip(leaves, mean, strict=True)]
        return len(index), tree.unflatten(mean), tree.unflatten(square)

    def merge(self, a: Any, b: Any) -> Any:
        """(2.1) of the source."""
        n = a[0] + b[0]
        mean = jax.tree.map(lambda x, y: x + (y - x) * (b[0] / n), a[1], b[1])
        square = jax.tree.map(lambda x, y, s, t: s + t + (y - x) ** 2 * (a[0] * b[0] / n), a[1], b[1], a[2], b[2])
        return n, mean, square

    def finish(self, state: Any) -> MomentsOf:
        """The moments."""
        n, mean, square = state
        return MomentsOf(n, mean, jax.tree.map(lambda s: s / (n - 1) if n > 1 else s * np.nan, square))


@dataclasses.dataclass(frozen=True)
class CovarianceOf:
    """Result of `Covariance`: ``n``, ``mean`` (d,), ``covariance`` (d, d), ``names`` of the d numbers."""

    n: int
    mean: np.ndarray
    covariance: np.ndarray
    names: tuple[str, ...]

    @property
    def correlation(self) -> np.ndarray:
        """Matrix of correlation coefficients (d, d)."""
        deviation = np.sqrt(np.diagonal(self.covariance))
        return self.covariance / np.outer(deviation, deviation)


@dataclasses.dataclass(frozen=True)
class Covariance(Reduction):
    """Covariance matrix (with n - 1) of all numbers that are observed, in float64."""

    def chunk(self, values: Any, index: np.ndarray) -> Any:
        """``(n, mean, sum of products of distances from it, names)``."""
        rows, names = _rows(self.select(values), np.float64)
        mean = rows.mean(axis=0)
        return len(rows), mean, (rows - mean).T @ (rows - mean), names

    def merge(self, a: Any, b: Any) -> Any:
        """As of `Moments`, with an outer product."""
        n, step = a[0] + b[0], b[1] - a[1]
        return n, a[1] + step * (b[0] / n), a[2] + b[2] + np.outer(step, step) * (a[0] * b[0] / n), a[3]

    def finish(self, state: Any) -> CovarianceOf:
        """Mean and covariance."""
        n, mean, products, names = state
        return CovarianceOf(n, mean, products / (n - 1) if n > 1 else products * np.nan, names)


# --------------------------------------------------------------------------------------------------------- shares and quantiles
@dataclasses.dataclass(frozen=True)
class ProportionOf:
    """Result of `Proportion`: ``n`` members, ``count`` of those for which it is true, ``share`` of them."""

    n: int
    count: Any

    @property
    def share(self) -> Any:
        """Estimate of the probability."""
        return jax.tree.map(lambda c: c / self.n, self.count)

    def interval(self, level: float = 0.95) -> tuple[Any, Any]:
        """``(low, high)`` that hold the true probability with this one, by E. B. Wilson's interval, of use near 0 and 1 and for few
        members, too. The level is held on the average over probabilities; for a single one it may be some percent lower or higher.
        """
        z2, n = _z(level) ** 2, self.n

        def bound(sign):
            def of(c):
                root = np.sqrt(z2 * c * (n - c) / n + z2**2 / 4)
                return np.clip((c + z2 / 2 + sign * root) / (n + z2), 0.0, 1.0)

            return jax.tree.map(of, self.count)

        return bound(-1), bound(1)


@dataclasses.dataclass(frozen=True)
class Proportion(Reduction):
    """Share of the members for which a boolean is true."""

    def chunk(self, values: Any, index: np.ndarray) -> Any:
        """``(n, counts)``."""
        values = self.select(values)
        for x in jax.tree.leaves(values):
            if np.asarray(x).dtype != bool:
                raise TypeError(f"Proportion takes booleans, got an array of {np.asarray(x).dtype}: use of=lambda x: x > 0, or Moments()")
        return len(index), jax.tree.map(lambda x: np.sum(x, axis=0), values)

    def merge(self, a: Any, b: Any) -> Any:
        """Sums."""
        return a[0] + b[0], jax.tree.map(np.add, a[1], b[1])

    def finish(self, state: Any) -> ProportionOf:
        """The shares."""
        return ProportionOf(*state)


@dataclasses.dataclass(frozen=True, repr=False)
class QuantilesOf:
    """Result of `Quantiles`: ``n``; ``p`` (k,); ``values``, as observed with k first; ``rank_error``, the bound of the error.

    The number that is given for p is a true quantile of the members for a probability within ``p - rank_error`` and ``p + rank_error``.
    """

    n: int
    p: np.ndarray
    values: Any
    rank_error: float
    sketches: Any

    def __repr__(self) -> str:
        """A line for each number that is observed."""
        columns = {f"{100 * p:.6g} %": jax.tree.map(lambda x, k=k: x[k], self.values) for k, p in enumerate(self.p)}
        within = f"\nprobabilities are within {self.rank_error:.2g}" if self.rank_error else ""
        return _table(self.n, columns) + within

    def interval(self, level: float = 0.95) -> tuple[Any, Any]:
        """``(low, high)``, as ``values``, that hold the true quantiles with this probability or a higher one: order statistics, by the
        binomial distribution, widened by the rank error. Where no member bounds a quantile with this probability, as of few members the
        0.05-quantile from below, the bound is infinite.
        """
        _z(level)
        low, high = (np.array(x) for x in zip(*(_order_statistics(self.n, p, (1 - level) / 2) for p in self.p.tolist()), strict=True))
        error = self.rank_error * self.n
        return self._bound(low - error, -np.inf), self._bound(high + error, np.inf)

    def _bound(self, ranks, without):
        """Values with these ranks, and another one where there is no such rank."""
        none = (ranks < 0) | (ranks > self.n - 1)
        return jax.tree.map(lambda x: np.where(none.reshape(-1, *(1,) * (x.ndim - 1)), without, x), _at(self.sketches, ranks))


@dataclasses.dataclass(frozen=True)
class Quantiles(Reduction):
    """Quantiles of every number that is observed, by a sketch in bounded memory; exact up to ``size`` members.

    ``rank_error`` of the result is a bound, not an estimate: for 1e7 members with the default size about 1e-3. What is not a number counts
    as larger than all numbers. `Result.quantiles` has exact ones where there is a store.
    """

    p: tuple[float, ...] = (0.05, 0.25, 0.5, 0.75, 0.95)
    size: int = 4096

    def __post_init__(self):
        super().__post_init__()
        p = np.atleast_1d(_numbers(self.p))
        if p.ndim != 1 or not p.size or not np.all((p >= 0) & (p <= 1)):
            raise ValueError(f"Quantiles: p must be probabilities in [0, 1], got {self.p!r}")
        object.__setattr__(self, "p", tuple(p.tolist()))
        if isinstance(self.size, bool) or not isinstance(self.size, (int, np.integer)) or self.size < 16:
            raise ValueError(f"Quantiles: size must be a whole number, 16 or more, got {self.size!r}")

    def chunk(self, values: Any, index: np.ndarray) -> Any:
        """``(sketches, shapes)``."""
        values = self.select(values)
        return jax.tree.map(lambda x: _Shaped(sketch.of(np.reshape(x, (len(index), -1)), self.size), np.shape(x)[1:]), values)

    def merge(self, a: Any, b: Any) -> Any:
        """Sketch of both."""
        return jax.tree.map(lambda x, y: _Shaped(sketch.merged(x.sketch, y.sketch, self.size), x.shape), a, b)

    def finish(self, state: Any) -> QuantilesOf:
        """The quantiles."""
        sketches = [x.sketch for x in jax.tree.leaves(state)]
        p, n = np.asarray(self.p), sketches[0].n
        error = max(s.rank_error() for s in sketches) / n
        return QuantilesOf(n, p, _at(state, np.ceil(just_below(p) * n) - 1), error, state)


@dataclasses.dataclass(frozen=True)
class _Shaped:
    """A sketch, a leaf of a tree, and the shape of what it is of."""

    sketch: Any
    shape: tuple


def just_below(p):
    """``p``, less by some units of its last digit: 0.07 of 100 members are 7, and not 7.000000000000001, of which the next rank is 8."""
    return np.asarray(p, float) * (1 - 4 * np.finfo(float).eps)


def _order_statistics(n, p, tail):
    """Ranks, from 0 on, of the members that the p-quantile lies below, or above, with no more than this probability: from -1 to n.

    How many members lie below it is binomial. H. A. David, H. N. Nagaraja, Order Statistics, 3rd ed., Wiley, 2003, section 7.1.
    """
    reach = 40 + 10 * math.sqrt(n * p * (1 - p))  # what lies beyond has no weight
    k = np.arange(max(0, math.floor(n * p - reach)), min(n, math.ceil(n * p + reach)) + 1)
    if 0 < p < 1:
        logs = np.append(0.0, np.cumsum(np.log((n - k[:-1]) / k[1:] * (p / (1 - p)))))
        weights = np.exp(logs - logs.max())
    else:
        weights = (k == n * p).astype(float)
    weights /= weights.sum()
    # The member of rank r lies above the quantile where r of them or fewer lie below, and below where more than r do.
    low = k[0] + np.count_nonzero(np.cumsum(weights) <= tail) - 1
    high = k[-1] - np.count_nonzero(np.cumsum(weights[::-1]) <= tail)
    return low, high


def _at(sketches, ranks):
    return jax.tree.map(lambda x: x.sketch.values_at(ranks).reshape(len(ranks), *x.shape), sketches)


@dataclasses.dataclass(frozen=True)
class HistogramOf:
    """Result of `Histogram`: ``n``, ``edges`` (k + 1,), ``counts`` (..., k), and ``below``, ``above`` the edges, ``undefined`` (NaN)."""

    n: int
    edges: np.ndarray
    counts: np.ndarray
    below: np.ndarray
    above: np.ndarray
    undefined: np.ndarray

    @property
    def density(self) -> np.ndarray:
        """Estimate of the density in the bins, of all members."""
        return self.counts / (self.n * np.diff(self.edges))

    def interval(self, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """``(low, high)`` of the density, bin by bin (Wilson)."""
        return tuple(x / np.diff(self.edges) for x in ProportionOf(self.n, self.counts).interval(level))


@dataclasses.dataclass(frozen=True)
class Histogram(Reduction):
    """Counts between ``edges`` (k + 1,) of every number of one array; exact. A bin holds its left edge, the last one its right edge too."""

    edges: Any

    def __post_init__(self):
        super().__post_init__()
        edges = _numbers(self.edges)
        if edges.ndim != 1 or edges.size < 2 or not np.all(np.diff(edges) > 0) or not np.all(np.isfinite(edges)):
            raise ValueError(f"Histogram: edges must be at least two finite numbers that grow, got {self.edges!r}")
        object.__setattr__(self, "edges", tuple(edges.tolist()))

    def chunk(self, values: Any, index: np.ndarray) -> Any:
        """``(n, counts of (below, bins, above, undefined))``, counts (..., k + 3)."""
        leaves = jax.tree.leaves(self.select(values))
        if len(leaves) != 1:
            raise ValueError(f"Histogram takes one array, and {len(leaves)} are observed: choose one by of=name")
        x, edges = np.asarray(leaves[0], np.float64), np.asarray(self.edges)
        k = len(edges) - 1
        bins = np.searchsorted(edges, x, side="right")
        bins = np.where(np.isnan(x), k + 2, np.where(x == edges[-1], k, bins)).reshape(len(x), -1)
        width = bins.shape[1]
        counts = np.bincount((bins + (k + 3) * np.arange(width)).ravel(), minlength=width * (k + 3))
        return len(x), counts.reshape(*x.shape[1:], k + 3)

    def merge(self, a: Any, b: Any) -> Any:
        """Sums."""
        return a[0] + b[0], a[1] + b[1]

    def finish(self, state: Any) -> HistogramOf:
        """The histogram."""
        n, counts = state
        return HistogramOf(n, np.asarray(self.edges), counts[..., 1:-2], counts[..., 0], counts[..., -2], counts[..., -1])


# -------------------------------------------------------------------------------------------------------------------- extremes
@dataclasses.dataclass(frozen=True)
class ExtremesOf:
    """Result of `Extremes`: ``smallest`` and ``largest``, as observed with ``count`` first, the most extreme one first, and the numbers of
    their members in ``smallest_index`` and ``largest_index``: ``result.sample(index)`` is what was drawn, ``result.solution(index)`` the
    motion.
    """

    smallest: Any
    smallest_index: Any
    largest: Any
    largest_index: Any


@dataclasses.dataclass(frozen=True)
class Extremes(Reduction):
    """The ``count`` smallest and largest of every number that is observed, and which members they belong to. NaN is left out."""

    count: int = 1

    def __post_init__(self):
        super().__post_init__()
        if isinstance(self.count, bool) or not isinstance(self.count, (int, np.integer)) or self.count < 1:
            raise ValueError(f"Extremes: count must be a positive whole number, got {self.count!r}")

    def chunk(self, values: Any, index: np.ndarray) -> Any:
        """Tree of `_Ends`."""

        def of(x):
            x = np.asarray(x, np.float64)
            return self._ends(x, np.broadcast_to(index.reshape(-1, *(1,) * (x.ndim - 1)), x.shape), x, None)

        return jax.tree.map(of, self.select(values))

    def _ends(self, low, low_index, high, high_index):
        high_index = low_index if high_index is None else high_index
        first, last = self._first(low), self._first(-high)
        take = np.take_along_axis
        return _Ends(take(low, first, 0), take(low_index, first, 0), take(high, last, 0), take(high_index, last, 0))

    def _first(self, x):
        """Rows (count, ...) of the smallest in x (m, ...), of equal ones the first, NaN last; without sorting what is not among them."""
        m, count = len(x), min(self.count, len(x))
        columns = x.reshape(m, -1)
        bounds = np.partition(columns, count - 1, axis=0)[count - 1]
        rows = np.empty((count, columns.shape[1]), int)
        for j, bound in enumerate(bounds):
            among = np.arange(m) if np.isnan(bound) else np.flatnonzero(columns[:, j] <= bound)
            rows[:, j] = among[np.argsort(columns[among, j], kind="stable")[:count]]
        return rows.reshape(count, *x.shape[1:])

    def merge(self, a: Any, b: Any) -> Any:
        """Of both; of equal ones the member that comes first."""

        def of(x, y):
            return self._ends(*(np.concatenate([getattr(x, f.name), getattr(y, f.name)]) for f in dataclasses.fields(_Ends)))

        return jax.tree.map(of, a, b)

    def finish(self, state: Any) -> ExtremesOf:
        """The extremes."""
        return ExtremesOf(*(jax.tree.map(lambda x, name=f.name: getattr(x, name), state) for f in dataclasses.fields(_Ends)))


@dataclasses.dataclass(frozen=True)
class _Ends:
    """Both ends of what is observed, a leaf of a tree."""

    low: Any
    low_index: Any
    high: Any
    high_index: Any


# ------------------------------------------------------------------------------------------------------------------ one's own
@dataclasses.dataclass(frozen=True)
class Associative(Reduction):
    """A reduction of one's own: ``state(values)`` of the arrays (m, ...) of a few members, ``combine(a, b)`` of two states.

    The state of all members must not depend on how they are cut into pieces: ``combine`` is associative, and combining the states of
    pieces gives the state of the whole. That is checked on a first chunk, and ValueError raised where it does not hold to round-off.
    States are arrays, or trees of arrays. ``result(state)`` is what is returned.
    """

    state: Callable[[Any], Any]
    combine: Callable[[Any, Any], Any]
    result: Callable[[Any], Any] = lambda state: state

    def __post_init__(self):
        super().__post_init__()
        for name in ("state", "combine", "result"):
            if not callable(getattr(self, name)):
                raise TypeError(f"Associative: {name} must be a function, got {getattr(self, name)!r}")

    def chunk(self, values: Any, index: np.ndarray) -> Any:
        """The state of the chunk."""
        return self.state(self.select(values))

    def merge(self, a: Any, b: Any) -> Any:
        """``combine(a, b)``."""
        return self.combine(a, b)

    def finish(self, state: Any) -> Any:
        """``result(state)``."""
        return self.result(state)


#: Reductions that need no check.
KNOWN = (Moments, Covariance, Proportion, Quantiles, Histogram, Extremes)


def _agree(a, b):
    if jax.tree.structure(a) != jax.tree.structure(b):
        return False
    size = lambda x: np.max(np.abs(x), initial=0.0, where=np.isfinite(x))  # noqa: E731
    largest = max((size(x) for x in map(np.asarray, jax.tree.leaves(a)) if np.issubdtype(x.dtype, np.inexact)), default=0.0)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        x, y = np.asarray(x), np.asarray(y)
        if x.shape != y.shape:
            return False
        if not np.issubdtype(x.dtype, np.inexact):
            if not np.array_equal(x, y):
                return False
            continue
        # Sums of many members in another order: the root of the precision is far from round-off, and from a mistake.
        # The variance of a constant is the round-off of its mean.
        eps = np.finfo(x.dtype).eps
        if not np.allclose(x, y, rtol=0, atol=math.sqrt(eps) * size(x) + 100 * eps * largest, equal_nan=True):
            return False
    return True


def _short(state):
    return " ".join(np.array2string(np.asarray(x), threshold=5, precision=6) for x in jax.tree.leaves(state))[:120]


# --------------------------------------------------------------------------------------------------------------------- helpers
def _numbers(x):
    """An array of floats, NaN for what is none."""
    try:
        return np.asarray(x, np.float64)
    except (TypeError, ValueError):
        return np.array([np.nan])


def _mean(x):
    """Mean over members, of infinite values infinite or NaN, without a warning."""
    with np.errstate(invalid="ignore"):
        return np.mean(np.asarray(x, np.float64), axis=0)


def _rows(values, dtype):
    """All numbers of a member in a row (m, d), and their names."""
    paths, _ = jax.tree_util.tree_flatten_with_path(values)
    rows, names = [], []
    for path, x in paths:
        x = np.asarray(x, dtype)
        name = leaf_name(path)
        rows.append(x.reshape(len(x), -1))
        names += [name + "".join(f"[{i}]" for i in where) for where in np.ndindex(x.shape[1:])]
    return np.concatenate(rows, axis=1), tuple(names)


def _table(n, columns):
    """Text with a column for each of ``{title: values}``, and a line for each number that is observed."""
    rows = [_rows(jax.tree.map(lambda x: np.asarray(x)[None], values), np.float64) for values in columns.values()]
    names = rows[0][1] if rows else ()
    first = f"{n} members"
    wide = max(len(first), *map(len, names)) if names else len(first)
    lines = [f"{first:<{wide}}" + "".join(f"  {title:>14}" for title in columns)]
    lines += [f"{name:<{wide}}" + "".join(f"  {row[0, k]:>14.6g}" for row, _ in rows) for k, name in enumerate(names[:MOST])]
    return "\n".join([*lines, *([f"and {len(names) - MOST} more numbers"] if len(names) > MOST else [])])


def leaf_name(path):
    """Name of a part of what is observed."""
    return jax.tree_util.keystr(path, simple=True, separator=".") or "observed"


def _z(level):
    if not 0 < level < 1:
        raise ValueError(f"the level of a confidence interval must lie between 0 and 1, got {level!r}")
    return NormalDist().inv_cdf(0.5 + level / 2)
