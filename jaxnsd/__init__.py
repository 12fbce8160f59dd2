"""jaxnsd: differentiable simulation of mechanical systems with hard contact, impact and Coulomb friction, in JAX."""

import importlib
from typing import TYPE_CHECKING, Any

from . import energy, sets
from .contact import AbstractContactSolver, InteriorPoint, SemismoothNewton
from .mechanics.laws import NewtonImpact, PoissonImpact
from .mechanics.linear_system import LinearSystem
from .mechanics.results import Event, Outcome
from .mechanics.system import Parameter, System, static, system
from .numerics.tridiagonal import Tridiagonal
from .programs.keep import keep
from .schemes import (
    HHT,
    GeneralizedAlpha,
    KrenkHogsberg,
    Lobatto,
    LocatedImpacts,
    Moreau,
    MoreauJean,
    MoreauJeanVariant,
    Newmark,
    Scheme,
    SymmetricMoreau,
    VariationalMoreau,
)
from .schemes.projection import project_position, project_velocity
from .simulation.contact_problem import ContactSolution, solve_contact_problem
from .simulation.events import Happening
from .simulation.nodes import at_times, node_velocities
from .simulation.simulate import check, simulate
from .simulation.solution import SimulationError, Solution

if TYPE_CHECKING:
    from . import bodies, compare, drawing, ensemble, gym, identify, models, orbits, plotting

__all__ = [
    "HHT",
    "AbstractContactSolver",
    "ContactSolution",
    "Event",
    "GeneralizedAlpha",
    "Happening",
    "InteriorPoint",
    "KrenkHogsberg",
    "LinearSystem",
    "Lobatto",
    "LocatedImpacts",
    "Moreau",
    "MoreauJean",
    "MoreauJeanVariant",
    "Newmark",
    "NewtonImpact",
    "Outcome",
    "Parameter",
    "PoissonImpact",
    "Scheme",
    "SemismoothNewton",
    "SimulationError",
    "Solution",
    "SymmetricMoreau",
    "System",
    "Tridiagonal",
    "VariationalMoreau",
    "at_times",
    "bodies",
    "check",
    "compare",
    "drawing",
    "energy",
    "ensemble",
    "gym",
    "identify",
    "keep",
    "models",
    "node_velocities",
    "orbits",
    "plotting",
    "project_position",
    "project_velocity",
    "sets",
    "simulate",
    "solve_contact_problem",
    "static",
    "system",
]
__version__ = "0.1.0"

#: Modules that are imported when they are asked for: plotting imports matplotlib.
_ON_DEMAND = ("bodies", "compare", "drawing", "ensemble", "gym", "identify", "models", "orbits", "plotting")


def __getattr__(name: str) -> Any:
    if name in _ON_DEMAND:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_ON_DEMAND})
