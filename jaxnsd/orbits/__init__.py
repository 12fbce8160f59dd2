"""Periodic orbits of motions with located impacts, their stability, and how they change with a parameter.

orbit = orbits.periodic(system, scheme, q, u, period=T, n_steps=128)
branch = orbits.follow(orbit, "frequency", to=3.0)
"""

from .branch import Branch
from .follow import follow
from .orbit import Impact, Orbit, OrbitError, OrbitOutcome
from .periodic import periodic, refined
from .special import Special

__all__ = ["Branch", "Impact", "Orbit", "OrbitError", "OrbitOutcome", "Special", "follow", "periodic", "refined"]
