"""Bootstrap: how estimates scatter when data are drawn anew and fitted again."""

import contextlib
import numbers
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..programs import progress as bars
from .data import Trajectory
from .fit import check_seed, fit
from .problem import _difference
from .result import Result
from .solvers import LevenbergMarquardt

#: Draws of which at least so many must have been fitted.
LEAST = 10


@dataclass(frozen=True, eq=False)
class Bootstrap:
    """Estimates of data that were drawn anew.

    ``labels`` names of the entries of what was fitted (n); ``values`` (draws, n) their estimates, NaN where a fit failed, and ``failed``
    how often that was; ``estimate`` (n,) those of the result itself.
    """

    labels: tuple[str, ...]
    values: np.ndarray
    estimate: np.ndarray

    def __repr__(self) -> str:
        """A line for each parameter; the estimates themselves are too many."""
        wide = max(22, *map(len, self.labels))
        rows = [f"{'parameter':<{wide}} {'estimate':>10} {'standard error':>16}   95 % interval"]
        for label, value, error, (low, high) in zip(self.labels, self.estimate, self.standard_errors, self.interval(), strict=True):
            rows.append(f"{label:<{wide}} {value:>10.5g} {error:>16.2g}   {low:.5g} to {high:.5g}")
        return "\n".join([*rows, f"{len(self.values)} draws, {self.failed} of which could not be fitted"])

    @property
    def failed(self) -> int:
        """Number of draws of which nothing could be fitted."""
        return int(np.isnan(self.values).all(axis=1).sum())

    @property
    def standard_errors(self) -> np.ndarray:
        """(n,) standard deviations of the estimates."""
        return np.nanstd(self.values, axis=0, ddof=1)

    @property
    def bias(self) -> np.ndarray:
        """(n,) mean of the estimates, less that of the result."""
        return np.nanmean(self.values, axis=0) - self.estimate

    def interval(self, level: float = 0.95) -> np.ndarray:
        """(n, 2) that hold this part of the estimates, as much of the rest below as above (percentiles)."""
        if not 0 < level < 1:
            raise ValueError(f"Bootstrap.interval: level must lie between 0 and 1, got {level!r}")
        return np.nanquantile(self.values, [0.5 - level / 2, 0.5 + level / 2], axis=0).T


def bootstrap(
    result: Result,
    draws: int = 200,
    *,
    of: str = "noise",
    seed: int = 0,
    solver: Any = None,
    progress: bool = False,
) -> Bootstrap:
    """`Bootstrap` of a `Result` of `fit`: its data are drawn anew ``draws`` times and fitted from its estimate on.

    of:        "noise": what the fitted model measures, with Gaussian noise of the covariance of the problem times the ``noise_scale`` of
               the result, at the frames that were measured (parametric). Residuals must be ``predicted - y``, trajectories be whole and
               known at their start. "trajectories": those of the data, with replacement, which needs no model of the noise, but several
               trajectories
    seed:      of the random numbers
    solver:    as of `fit`; default `LevenbergMarquardt()`
    progress:  show a bar

    Trajectories that were held out for validation take no part. What is compiled for the fit serves all draws. See Efron & Tibshirani, An
    Introduction to the Bootstrap, Chapman & Hall, 1993, chapter 6.
    Warns of what the data say nothing about, whose estimates do not spread.
    Raises ValueError for arguments that make no sense, and where fewer than ten draws could be fitted.
    """
    who = "identify.bootstrap"
    if not isinstance(result, Result):
        raise TypeError(f"{who}: expected the Result of identify.fit(problem), got {type(result).__name__}; fit first")
    if isinstance(draws, bool) or not isinstance(draws, numbers.Integral) or draws < LEAST:
        raise ValueError(f"{who}: draws must be a whole number, {LEAST} at least, got {draws!r}")
    check_seed(who, seed)
    if of not in ("noise", "trajectories"):
        raise ValueError(f'{who}: of must be "noise" or "trajectories", got {of!r}')
    silent = [label for label, error in zip(result.labels, result.standard_errors, strict=True) if np.isinf(error)]
    if silent:
        text = f"{who}: the data say nothing about {', '.join(silent)}: estimates of it stay where they start, and do not spread"
        warnings.warn(text, stacklevel=2)
    draw = _noisy(result) if of == "noise" else _resampled(result)
    random, values = np.random.default_rng(seed), np.full((draws, len(result.labels)), np.nan)
    with bars.bar(total=draws, desc="bootstrap", unit="fit") if progress else bars.NoBar() as bar:
        for row in values:
            data = draw(random)
            with contextlib.suppress(ValueError):  # no trajectory could be simulated
                row[:] = fit(result.problem.with_data(data), solver or LevenbergMarquardt(), starts=result.z[None]).values
            bar.update(1)
    out = Bootstrap(tuple(result.labels), values, result.values)
    if draws - out.failed < LEAST:
        raise ValueError(f"{who}: of {draws} draws only {draws - out.failed} could be fitted: see why by fitting the data with more noise")
    return out


def _noisy(result):
    """Function of a generator of random numbers that returns data drawn by the fitted model."""
    problem, who = result.problem, "identify.bootstrap"
    if problem.windows is not None or problem.free is not None or problem.residual is not _difference:
        raise ValueError(
            f'{who}: of="noise" takes whole trajectories from known starts whose residual is predicted - y, and this problem has '
            f'{"windows" if problem.windows else "free initial states" if problem.free else "another residual"}; give of="trajectories"'
        )
    if not (np.isfinite(result.noise_scale) and result.noise_scale > 0):
        raise ValueError(f"{who}: residuals show no noise scale, result.noise_scale is {result.noise_scale}")
    fitted = [(one, result.of_trajectory(k)) for k, one in enumerate(problem.data) if result.training[k]]
    failed = [one.name or "one trajectory" for one, of in fitted if not of["ok"]]
    if failed:
        raise ValueError(f"{who}: the fitted model cannot simulate {', '.join(failed)}: leave them out of the data")
    root = result.noise_scale * np.linalg.cholesky(problem.covariance)

    def draw(random):
        data = []
        for one, of in fitted:
            y = of["predicted"]
            noise = random.normal(size=y.shape) @ root.T
            # What weighs less was measured with more noise.
            weights = np.broadcast_to(one.weights, y.shape)
            data.append(replace(one, y=y + noise / np.sqrt(np.where(weights > 0, weights, 1.0)), q=None, u=None))
        return data

    return draw


def _resampled(result):
    """Function of a generator of random numbers that returns trajectories drawn with replacement."""
    data = [one for one, trained in zip(result.problem.data, result.training, strict=True) if trained]
    n = len(data)
    if n < 2:
        raise ValueError('identify.bootstrap: of="trajectories" takes several trajectories, got one; give of="noise"')

    def draw(random) -> list[Trajectory]:
        return [replace(data[k], name=f"draw {i}") for i, k in enumerate(random.integers(n, size=n))]

    return draw
