"""jaxnsd: differentiable simulation of mechanical systems with hard contact, impact and Coulomb friction, in JAX."""

from .newton import SemismoothNewton
from .results import Outcome
from .schemes import Moreau, SymmetricMoreau, VariationalMoreau
from .simulate import SimulationError, Solution, simulate
from .system import System, static, system

__all__ = [
    "Moreau",
    "Outcome",
    "SemismoothNewton",
    "SimulationError",
    "Solution",
    "SymmetricMoreau",
    "System",
    "VariationalMoreau",
    "simulate",
    "static",
    "system",
]
__version__ = "0.1.0"
