"""Newton-type impact law with Coulomb friction: contact problems, their solution and its derivatives."""

from .abstract import AbstractContactSolver, Result
from .choice import Choice
from .interior import InteriorPoint, Law, respond
from .operators import Chain, groups_of
from .problem import Problem, diagonal, join, modes_at, movable, natural_map, parted, scale, slides, split
from .solver import SemismoothNewton, response, solve

__all__ = [
    "AbstractContactSolver",
    "Chain",
    "Choice",
    "InteriorPoint",
    "Law",
    "Problem",
    "Result",
    "SemismoothNewton",
    "diagonal",
    "groups_of",
    "join",
    "modes_at",
    "movable",
    "natural_map",
    "parted",
    "respond",
    "response",
    "scale",
    "slides",
    "solve",
    "split",
]
