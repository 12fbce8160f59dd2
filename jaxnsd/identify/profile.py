"""Profile likelihood: how the loss grows as one parameter is held and all others are fitted anew."""

from dataclasses import dataclass

import numpy as np

from .evaluate import Evaluator, Point
from .result import Result
from .solvers import LevenbergMarquardt, Request

#: 95 % quantile of chi^2 with one degree of freedom.
LEVEL = 3.841

#: An increase below minus this is a better fit than the result: less is what a fit leaves.
BETTER = 0.1


@dataclass(frozen=True, eq=False)
class Profile:
    """Profile likelihood of one parameter.

    values (n,) at which it was held; increase (n,): by how much twice the negative logarithm of the likelihood grows there, residuals
    scaled to the noise that they show; interval (2,): where that is 3.841, the 95 % interval, infinite where the values do not reach it.
    An interval that differs from that of `Result.intervals` says that the loss is no parabola. All of it is against the lowest cost there
    is; where that is not the result's, but found on the way, ``warnings`` says at which value.
    """

    name: str
    values: np.ndarray
    increase: np.ndarray
    interval: np.ndarray
    warnings: tuple[str, ...] = ()


def profile(result: Result, name: str, values: np.ndarray | int = 9, *, solver: LevenbergMarquardt | None = None) -> Profile:
    """`Profile` of a scalar parameter of a `Result` with this label, held at ``values`` (n,), or at so many over four standard errors.

    From the estimate outwards, each fit starts from that of its neighbour. Raises ValueError for a name that was not fitted as a number of
    its own, and for values that its transform does not take.
    """
    problem, solver = result.problem, solver or LevenbergMarquardt(max_iterations=20)
    found = [x for x in problem.unknowns.list if x.name == name and x.shape == ()]
    if not found:
        raise ValueError(f"identify.profile: {name!r} is not a number that was fitted; there are {', '.join(result.labels)}")
    (unknown,) = found
    place, best = unknown.piece.start, float(result.values[result.labels.index(name)])
    if np.ndim(values) == 0:
        error = result.standard_errors[result.labels.index(name)]
        if not np.isfinite(error):
            raise ValueError(f"identify.profile: the data do not determine {name}, so say at which values to hold it")
        z = result.z[place] + np.linspace(-4, 4, int(values)) * error / abs(_slope(unknown, result.z[place]))
        values = np.array([float(unknown.transform(np.array([x]), ())) for x in z])
    values = np.sort(np.asarray(values, float))
    held = np.concatenate([unknown.transform.inverse(value) for value in values])
    evaluator, items = Evaluator(problem), np.arange(len(problem.items["t"]))
    train = result.training[problem.items["owner"]]
    scale = result.noise_scale**2
    base = _cost(evaluator, Point(result.z, result.local), items[train])
    costs = np.full(len(values), np.nan)
    for side in (np.flatnonzero(values >= best), np.flatnonzero(values < best)[::-1]):
        point = Point(result.z, result.local)
        for k in side:
            z = point.z.copy()
            z[place] = held[k]
            point, costs[k] = _held(problem, evaluator, solver, items, train, Point(z, point.local), place)
    increase, warnings = 2 * (costs - base) / scale, ()
    lowest = np.nanmin(increase, initial=0.0)
    if lowest < -BETTER:
        best, increase = float(values[np.nanargmin(increase)]), increase - lowest
        warnings = (
            f"at {name} = {best:.6g} the loss is lower than that of the result, by {-lowest:.3g} in units of the increase: the fit has not "
            "found the best point, or the loss is rough; fit again from there",
        )
    return Profile(name, values, increase, _crossings(values, increase, best), warnings)


def _slope(unknown, z):
    h = 1e-6
    return (float(unknown.transform(np.array([z + h]), ())) - float(unknown.transform(np.array([z - h]), ()))) / (2 * h)


def _cost(evaluator, point, items):
    return evaluator.costs([point], items)[0]["cost"].sum()


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
            return point, _cost(evaluator, point, items[train])


def _crossings(values, increase, best):
    ends = np.array([-np.inf, np.inf])
    known = np.isfinite(increase)
    values, increase = values[known], increase[known]
    for column, side in ((0, values < best), (1, values >= best)):
        x = np.concatenate([[best], values[side][:: -1 if column == 0 else 1]])
        y = np.sqrt(np.maximum(np.concatenate([[0.0], increase[side][:: -1 if column == 0 else 1]]), 0))
        over = np.flatnonzero(y > np.sqrt(LEVEL))
        if over.size:
            i = over[0]
            # The root of a parabola's increase is a line.
            ends[column] = x[i - 1] + (np.sqrt(LEVEL) - y[i - 1]) / (y[i] - y[i - 1]) * (x[i] - x[i - 1])
    return ends
