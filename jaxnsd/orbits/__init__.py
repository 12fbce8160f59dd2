"""Periodic orbits of motions with located impacts, their stability, and how they change with a parameter.

orbit = orbits.periodic(system, scheme, q, u, period=T, n_steps=128)
"""

from .orbit import Impact, Orbit, OrbitError, OrbitOutcome
from .periodic import periodic

__all__ = ["Impact", "Orbit", "OrbitError", "OrbitOutcome", "periodic"]
