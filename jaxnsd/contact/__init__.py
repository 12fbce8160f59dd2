"""Newton-type impact law with Coulomb friction: contact problems, their solution and its derivatives."""

from .abstract import AbstractContactSolver, Result
from .problem import Problem, diagonal, join, modes_at, natural_map, scale, split
from .solver import SemismoothNewton, response, solve

__all__ = [
    "AbstractContactSolver",
    "Problem",
    "Result",
    "SemismoothNewton",
    "diagonal",
    "join",
    "modes_at",
    "natural_map",
    "response",
    "scale",
    "solve",
    "split",
]
