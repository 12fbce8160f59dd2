"""Where nothing that was measured depends on an unknown at the first guess: a look further.

With a friction at which every impact sticks, say, the derivative by it vanishes, and so it does all around: no step leads out of there.
"""

import numpy as np

from .evaluate import Evaluator, Point
from .normal import NormalEquations
from .uncertainty import coordinates

#: How far is looked, in units of z (logarithms, logits), and at how many points.
REACH, POINTS = 5.0, 24

#: Along no more unknowns than this.
UNKNOWNS = 8

#: Relative change of the loss from which on an unknown has an effect.
CHANGES = 1e-9


def looked(problem, items, train, z, local, loss):
    """``(start or None, words)``: the best of the points along each z (p,) that has no effect at the first guess, and what was seen.

    loss: function of an evaluation of all items
    """
    evaluator = Evaluator(problem)
    here = evaluator.linearized([Point(z, local)])[0]
    if not problem.size or not np.isfinite(loss(here)):
        return None, ""
    S, _, _ = NormalEquations(problem, here, items, train).reduced()
    # Without an effect at all: one that is small, in whatever unit, has a direction to go.
    idle = np.flatnonzero(np.diag(S) <= 0)
    names, units = coordinates(problem.unknowns), np.nan_to_num(problem.unknowns.units(z), nan=1.0)
    best, seen = (np.inf, None), []
    for k in idle[:UNKNOWNS]:
        points = z + np.linspace(-REACH, REACH, POINTS)[:, None] * units[k] * (np.arange(problem.size) == k)
        losses = np.array([loss(of) for of in evaluator.linearized([Point(point, local) for point in points])])
        differs = np.isfinite(losses) & (np.abs(losses - loss(here)) > CHANGES * loss(here))
        if differs.any():
            seen.append(names[k])
            first = int(np.argmin(np.where(differs, losses, np.inf)))
            best = min(best, (losses[first], points[first]), key=lambda pair: pair[0])
    return best[1], f"at the first guess {' and '.join(seen)} had no effect on what was measured, elsewhere there is one" if seen else ""
