"""jaxnsd: differentiable simulation of mechanical systems with hard contact, impact and Coulomb friction, in JAX."""

from . import energy, xla_flags  # xla_flags sets an option of XLA's CPU backend, before the first computation
from .contact_problem import ContactSolution, solve_contact_problem
from .linear_system import LinearSystem
from .newton import SemismoothNewton
from .nodes import node_velocities
from .projection import project_position, project_velocity
from .results import Event, Outcome
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
    SymmetricMoreau,
    VariationalMoreau,
)
from .simulate import SimulationError, Solution, check, simulate
from .system import System, static, system
from .tridiagonal import Tridiagonal

__all__ = [
    "HHT",
    "ContactSolution",
    "Event",
    "GeneralizedAlpha",
    "KrenkHogsberg",
    "LinearSystem",
    "Lobatto",
    "LocatedImpacts",
    "Moreau",
    "MoreauJean",
    "MoreauJeanVariant",
    "Newmark",
    "Outcome",
    "SemismoothNewton",
    "SimulationError",
    "Solution",
    "SymmetricMoreau",
    "System",
    "Tridiagonal",
    "VariationalMoreau",
    "check",
    "energy",
    "node_velocities",
    "project_position",
    "project_velocity",
    "simulate",
    "solve_contact_problem",
    "static",
    "system",
    "xla_flags",
]
__version__ = "0.1.0"
