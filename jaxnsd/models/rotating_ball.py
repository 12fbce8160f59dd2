"""Rotating bouncing ball (Capobianco et al. 2024, Section 6.1)."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from ..mechanics.system import Parameter, System, system
from . import pictures


@system
class RotatingBall(System):
    """A ball on a floor in the plane, with friction: q = (x, y, phi), height y of its centre.

    Three cases of C24: (omega, e_N) = (0, 0.5), (50, 0) and (10, 0), with omega the initial spin.
    """

    mass: Parameter = 1.0
    radius: Parameter = 0.1
    gravity: Parameter = 9.81
    e_N: Parameter = 0.5
    e_F: Parameter = 0.0
    mu: Parameter = 0.2

    coordinate_names = ("$x$ in m", "$y$ in m", r"$\varphi$ in rad")
    velocity_names = (r"$\dot x$ in m/s", r"$\dot y$ in m/s", r"$\dot\varphi$ in rad/s")
    draw = pictures.rotating_ball

    def kinetic_energy(self, t: ArrayLike, q: jax.Array, u: jax.Array) -> jax.Array:
        """T = m/2 (x'^2 + y'^2) + J/2 phi'^2 with J = 2/5 m R^2."""
        inertia = 0.4 * self.mass * self.radius**2
        return 0.5 * (self.mass * (u[0] ** 2 + u[1] ** 2) + inertia * u[2] ** 2)

    def potential_energy(self, t: ArrayLike, q: jax.Array) -> jax.Array:
        """V = m g y."""
        return self.mass * self.gravity * q[1]

    def gap(self, t: ArrayLike, q: jax.Array) -> jax.Array:
        """Height of the lowest point."""
        return jnp.stack([q[1] - self.radius])

    def tangential_velocity(self, t: ArrayLike, q: jax.Array, u: jax.Array) -> jax.Array:
        """Velocity of the lowest point."""
        return jnp.stack([u[:1] + self.radius * u[2:]])

    def initial_state(self, omega: Parameter = 0.0) -> tuple[jax.Array, jax.Array]:
        """``(q0, u0)``: at height 1 with spin ``omega``."""
        return jnp.array([0.0, 1.0, 0.0]), jnp.array([0.0, 0.0, omega])
