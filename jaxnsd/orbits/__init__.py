"""Periodic orbits of motions with located impacts, their stability, and how they change with a parameter.

    orbit = orbits.periodic(system, scheme, q, u, period=T, n_steps=128)
    branch = orbits.follow(orbit, "frequency", to=3.0)

`periodic` finds an orbit, `follow` continues it around folds, through period doublings, to a grazing, `curve` follows such a point in two
parameters. `lyapunov`, `poincare` and `diagram` look at what is no orbit, `basin` at which motion a start is drawn to.
"""

from .basin import Attractor, Basin, basin
from .branch import Branch
from .curve import Curve, curve
from .follow import follow
from .orbit import Impact, Orbit, OrbitError, OrbitOutcome
from .periodic import periodic, refined
from .sampling import Diagram, Exponents, diagram, lyapunov, poincare
from .special import Special

__all__ = [
    "Attractor",
    "Basin",
    "Branch",
    "Curve",
    "Diagram",
    "Exponents",
    "Impact",
    "Orbit",
    "OrbitError",
    "OrbitOutcome",
    "Special",
    "basin",
    "curve",
    "diagram",
    "follow",
    "lyapunov",
    "periodic",
    "poincare",
    "refined",
]
