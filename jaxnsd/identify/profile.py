"""Profile likelihood: how the loss grows as one parameter is held and all others are fitted anew."""

import numbers
from dataclasses import dataclass

import numpy as np

from .evaluate import Evaluator, Point
from .result import Result
from .solvers import LevenbergMarquardt, Request
from .transforms import Free
from .uncertainty import BOUNDED, bounds

#: An increase below minus this is a better fit than the result: less is what a fit leaves.
BETTER = 0.1

#: How close to a bound a parameter is held, in standard errors.
BESIDE = 1e-3


@dataclass(frozen=True, eq=False)
class Profile:
    """Profile likelihood of one parameter.

    values (n,) at which it was held; increase (n,): by how much twice the negative logarithm of the likelihood grows there, residuals
    scaled to the noise that they show, NaN where trajectories fail that the result can simulate; interval (2,): where that is ``level``,
    the 95 % interval, at the bound of the parameter, infinite if there is none, where the values do not reach it. The level is the square
    of Student's quantile, 3.84 for many residuals. An interval that differs from that of `Result.intervals` says that the loss is no
    parabola. All of it is against the lowest cost there is; where that is not the result's, but found on the way, ``warnings`` says at
    which value.
    """

    name: str
    values: np.ndarray
    increase: np.ndarray
    interval: np.ndarray
    level: float
    warnings: tuple[str, ...] = ()


def profile(result: Result, name: str, values: np.ndarray | int = 9, *, solver: LevenbergMarquardt | None = None) -> Profile:
    """`Profile` of a scalar parameter of a `Result` with this label, held at ``values`` (n,), or at so many over four standard errors,
    over more where an interval has more.

    From the estimate outwards, each fit starts from that of its neighbour. Raises ValueError for a name that was not fitted as a number of
    its own, and for values that its transform does not take.
    """
    if not isinstance(result, Result):
        raise TypeError(f"identify.profile: expected the Result of identify.fit(problem), got {type(result).__name__}; fit first")
    problem, solver = result.problem, solver or LevenbergMarquardt(max_iterations=20)
    found = [x for x in problem.unknowns.list if x.name == name and x.shape == ()]
    if not found:
        raise ValueError(f"identify.profile: {name!r} is not a number that was fitted; there are {', '.join(result.labels)}")
    if not result.noise_scale > 0:
        raise ValueError(f"identify.profile: residuals show no noise scale, result.noise_scale is {result.noise_scale}")
    (unknown,) = found
    place, best = unknown.piece.start, float(result.values[result.labels.index(name)])
    values = _values(result, unknown, values)
    held = np.concatenate([unknown.transform.inverse(value) for value in values])
    evaluator, items = Evaluator(problem), np.arange(len(problem.items["t"]))
    train = result.training[problem.items["owner"]]
    scale = result.noise_scale**2
    start = evaluator.costs([Point(result.z, result.local)], items)[0]
    # What the result cannot simulate takes no part anywhere; where more fails there is nothing to compare.
    train = train & start["ok"]
    base = start["cost"][train].sum()
    costs = np.full(len(values), np.nan)
    for side in (np.flatnonzero(values >= best), np.flatnonzero(values < best)[::-1]):
        point = Point(result.z, result.local)
        for k in side:
            z = point.z.copy()
            z[place] = held[k]
            reached = _held(problem, evaluator, solver, items, train, Point(z, point.local), place)
            there = evaluator.costs([reached], items)[0]
            if there["ok"][train].all():
                point, costs[k] = reached, there["cost"][train].sum()
    increase, warnings = 2 * (costs - base) / scale, ()
    failed = values[np.isnan(costs)]
    if failed.size:
        warnings += (f"at {name} = {', '.join(f'{x:.6g}' for x in failed)} trajectories fail, so that there is no likelihood",)
    lowest = np.nanmin(increase, initial=0.0)
    if lowest < -BETTER:
        best, increase = float(values[np.nanargmin(increase)]), increase - lowest
        warnings += (
            f"at {name} = {best:.6g} the loss is lower than that of the result, by {-lowest:.3g} in units of the increase: the fit has not "
            "found the best point, or the loss is rough; fit again from there",
        )
    level = result.uncertainty.factor**2
    interval = _crossings(values, increase, best, level)
    if isinstance(unknown.transform, BOUNDED):
        interval = np.clip(interval, *bounds(unknown.transform))
    return Profile(name, values, increase, interval, level, warnings)


def _values(result, unknown, values):
    """Values (n,) at which to hold a parameter, sorted."""
    index = result.labels.index(unknown.name)
    if np.ndim(values):
        values = np.sort(np.asarray(values, float))
        if values.ndim != 1 or not values.size or not np.all(np.isfinite(values)):
            raise ValueError("identify.profile: values must be one axis of finite numbers, or how many")
        return values
    if isinstance(values, bool) or not isinstance(values, numbers.Integral) or values < 2:
        raise ValueError(f"identify.profile: values must be numbers or how many, two at least, got {values!r}")
    error, z = result.standard_errors[index], result.z[unknown.piece.start]
    steps = max(4.0, 1.25 * result.uncertainty.factor) * np.linspace(-1, 1, values)
    if not np.isfinite(error):
        raise ValueError(f"identify.profile: the data do not determine {unknown.name}, so say at which values to hold it")
    if type(unknown.transform) not in (Free, *BOUNDED):
        z = z + steps * error / abs(_slope(unknown, z))
        return np.sort([float(unknown.transform(np.array([x]), ())) for x in z])
    lower, upper = bounds(unknown.transform)
    return np.linspace(*np.clip(result.values[index] + error * steps[[0, -1]], lower + BESIDE * error, upper - BESIDE * error), values)


def _slope(unknown, z):
    h = 1e-6
    return (float(unknown.transform(np.array([z + h]), ())) - float(unknown.transform(np.array([z - h]), ()))) / (2 * h)


def _held(problem, evaluator, solver, items, train, point, place):
    fixed = np.arange(problem.size) == place
    generator = solver.start(problem, items, train, point.z, point.local, fixed=fixed)
    step = next(generator)
    while True:
        try:
            if isinstance(step, Request):
                step = generator.send(getattr(evaluator, step.kind)([step.point], step.items)[0])
            else:
                point = step.point
                step = next(generator)
        except StopIteration:
            return point


def _crossings(values, increase, best, level):
    ends = np.array([-np.inf, np.inf])
    known = np.isfinite(increase)
    values, increase = values[known], increase[known]
    for column, side in ((0, values < best), (1, values >= best)):
        x = np.concatenate([[best], values[side][:: -1 if column == 0 else 1]])
        y = np.sqrt(np.maximum(np.concatenate([[0.0], increase[side][:: -1 if column == 0 else 1]]), 0))
        over = np.flatnonzero(y > np.sqrt(level))
        if over.size:
            i = over[0]
            # The root of a parabola's increase is a line.
            ends[column] = x[i - 1] + (np.sqrt(level) - y[i - 1]) / (y[i] - y[i - 1]) * (x[i] - x[i - 1])
    return ends
