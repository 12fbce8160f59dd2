"""Points of low discrepancy in the unit cube, by `scipy.stats.qmc` (extra ``[ensemble]``): member i gets point i, whatever the chunks."""

import dataclasses
import warnings
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Sobol:
    """Scrambled Sobol points in ``dimensions`` dimensions; n is best a power of two.

    Means converge nearly as 1/n for smooth observables of few parameters, against 1/sqrt(n) of random points. The standard errors that
    reductions state are those of independent members, which is then too much; several runs with other seeds tell the true one.
    """

    dimensions: int
    seed: int = 0

    def __post_init__(self):
        _whole(self)

    def points(self, first: int, count: int, n: int) -> np.ndarray:
        """Points first, first + 1, ... of n: (count, dimensions)."""
        engine = _qmc().Sobol(self.dimensions, scramble=True, rng=np.random.default_rng(self.seed))
        if first:
            engine.fast_forward(first)
        with warnings.catch_warnings():
            # A first block that is no power of two is warned of; the whole of the blocks is what counts.
            warnings.filterwarnings("ignore", message="The balance properties")
            return engine.random(count)


@dataclasses.dataclass(frozen=True)
class Halton:
    """Scrambled Halton points in ``dimensions`` dimensions; any n."""

    dimensions: int
    seed: int = 0

    def __post_init__(self):
        _whole(self)

    def points(self, first: int, count: int, n: int) -> np.ndarray:
        """Points first, first + 1, ... of n: (count, dimensions)."""
        engine = _qmc().Halton(self.dimensions, scramble=True, rng=np.random.default_rng(self.seed))
        # A point follows from its number alone; fast_forward would draw all that come before.
        engine.num_generated = first
        return engine.random(count)


@dataclasses.dataclass(frozen=True)
class LatinHypercube:
    """A Latin hypercube of all n members in ``dimensions`` dimensions: n strata in each of them. Holds n x dimensions numbers in memory."""

    dimensions: int
    seed: int = 0

    def __post_init__(self):
        _whole(self)

    def points(self, first: int, count: int, n: int) -> np.ndarray:
        """Points first, first + 1, ... of n: (count, dimensions)."""
        if _last[0] != (self, n):
            engine = _qmc().LatinHypercube(self.dimensions, rng=np.random.default_rng(self.seed))
            _last[:] = (self, n), engine.random(n)
        return _last[1][first : first + count]


_last: list[Any] = [None, None]


def _qmc():
    try:
        from scipy.stats import qmc
    except ImportError as error:
        raise ImportError("points of low discrepancy need SciPy: pip install scipy") from error
    return qmc


def _whole(points):
    name, d = type(points).__name__, points.dimensions
    if isinstance(d, bool) or not isinstance(d, (int, np.integer)) or d < 1:
        raise ValueError(f"{name}: dimensions must be a positive whole number, got {d!r}")
    if isinstance(points.seed, bool) or not isinstance(points.seed, (int, np.integer)) or points.seed < 0:
        raise ValueError(f"{name}: seed must be a whole number, not negative, got {points.seed!r}")


POINTS = {"sobol": Sobol, "halton": Halton, "latin": LatinHypercube}
