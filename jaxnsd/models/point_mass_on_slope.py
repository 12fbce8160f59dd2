"""Point mass that slides on a curved slope (Capobianco et al. 2024, Section 6.3)."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from ..mechanics.system import Parameter, System, system
from . import pictures


@system
class PointMassOnSlope(System):
    """A point mass above the slope y = exp(-x), with friction: q = (x, y) in m.

    Case 1 starts on the slope and slides to rest, which it reaches after 2.1 s; case 2 starts above it, falls, and slides after a
    plastic impact.
    """

    mass: Parameter = 1.0
    gravity: Parameter = 10.0
    e_N: Parameter = 0.0
    e_F: Parameter = 0.0
    mu: Parameter = 0.3

    coordinate_names = ("$x$ in m", "$y$ in m")
    velocity_names = (r"$\dot x$ in m/s", r"$\dot y$ in m/s")
    draw = pictures.point_mass_on_slope

    def kinetic_energy(self, t: ArrayLike, q: jax.Array, u: jax.Array) -> jax.Array:
        """T = m/2 (x'^2 + y'^2)."""
        return 0.5 * self.mass * u @ u

    def potential_energy(self, t: ArrayLike, q: jax.Array) -> jax.Array:
        """V = m g y."""
        return self.mass * self.gravity * q[1]

    def tangent(self, x: jax.Array) -> jax.Array:
        """Unit tangent of the slope, downhill; C24 (72)."""
        slope = -jnp.exp(-x)
        return jnp.stack([jnp.ones_like(x), slope]) / jnp.sqrt(1 + slope**2)

    def gap(self, t: ArrayLike, q: jax.Array) -> jax.Array:
        """Height above the slope, projected on its normal at the same x; C24 (73)."""
        return self.tangent(q[0])[:1] * (q[1] - jnp.exp(-q[0]))

    def tangential_velocity(self, t: ArrayLike, q: jax.Array, u: jax.Array) -> jax.Array:
        """Velocity along the slope; C24 (72)."""
        return (self.tangent(q[0]) @ u)[None, None]

    def initial_state(self, case: int = 1) -> tuple[jax.Array, jax.Array]:
        """``(q0, u0)``: at rest, on the slope (``case`` 1) or half a metre above it (2)."""
        if case not in (1, 2):
            raise ValueError(f"PointMassOnSlope: case must be 1 (starts on the slope) or 2 (falls on it), got {case!r}")
        return jnp.array([0.0, 1.0 if case == 1 else 1.5]), jnp.zeros(2)
