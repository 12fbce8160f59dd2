"""Newton-type impact law with Coulomb friction: contact problems, their solution and its derivatives."""

from .problem import Problem, diagonal, join, modes_at, natural_map, response, scale, split
from .solver import Result, solve

__all__ = ["Problem", "Result", "diagonal", "join", "modes_at", "natural_map", "response", "scale", "solve", "split"]
