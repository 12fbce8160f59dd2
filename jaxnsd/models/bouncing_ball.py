"""Bouncing ball (Capobianco & Eugster 2018, Fig. 1-2)."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from ..mechanics.system import Parameter, System, system
from . import pictures


@system
class BouncingBall(System):
    """A ball that bounces on a floor and comes to rest after infinitely many impacts: q = (height of its lowest point,) in m.

    The accumulation point of the impacts is ``t* = t_1 (1 + e_N) / (1 - e_N)`` with ``t_1 = sqrt(2 q(0) / g)``.
    """

    mass: Parameter = 0.1  # kg
    gravity: Parameter = 9.81  # m/s^2
    e_N: Parameter = 0.75

    coordinate_names = ("$q$ in m",)
    velocity_names = (r"$\dot q$ in m/s",)
    draw = pictures.bouncing_ball

    def kinetic_energy(self, t: ArrayLike, q: jax.Array, u: jax.Array) -> jax.Array:
        """T = m/2 u^2."""
        return 0.5 * self.mass * u @ u

    def potential_energy(self, t: ArrayLike, q: jax.Array) -> jax.Array:
        """V = m g q."""
        return self.mass * self.gravity * q[0]

    def gap(self, t: ArrayLike, q: jax.Array) -> jax.Array:
        """The height."""
        return q

    def initial_state(self) -> tuple[jax.Array, jax.Array]:
        """``(q0, u0)``: at rest at a height of 1 m."""
        return jnp.array([1.0]), jnp.array([0.0])
