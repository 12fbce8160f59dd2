"""jaxnsd: differentiable simulation of mechanical systems with hard contact, impact and Coulomb friction, in JAX."""

from . import xla_flags  # before the first computation: it sets an option of XLA's CPU backend
from .contact_problem import ContactSolution, solve_contact_problem
from .newton import SemismoothNewton
from .results import Outcome
from .schemes import Moreau, SymmetricMoreau, VariationalMoreau
from .simulate import SimulationError, Solution, simulate
from .system import System, static, system

__all__ = [
    "ContactSolution",
    "Moreau",
    "Outcome",
    "SemismoothNewton",
    "SimulationError",
    "Solution",
    "SymmetricMoreau",
    "System",
    "VariationalMoreau",
    "simulate",
    "solve_contact_problem",
    "static",
    "system",
    "xla_flags",
]
__version__ = "0.1.0"
