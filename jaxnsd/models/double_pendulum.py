"""Double pendulum whose tip hits a wall."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from ..mechanics.system import Parameter, System, system
from . import pictures


@system
class DoublePendulum(System):
    """Two point masses on massless rods, with a vertical wall: q = angles of both rods to the vertical, in rad.

    Frictionless; one contact, between the second mass and the wall at ``x = wall``.
    """

    mass_1: Parameter = 1.0  # kg
    mass_2: Parameter = 0.7  # kg
    length_1: Parameter = 1.0  # m
    length_2: Parameter = 0.8  # m
    gravity: Parameter = 9.81  # m/s^2
    wall: Parameter = 0.3  # m
    e_N: Parameter = 0.6

    coordinate_names = (r"$\varphi_1$ in rad", r"$\varphi_2$ in rad")
    velocity_names = (r"$\dot\varphi_1$ in rad/s", r"$\dot\varphi_2$ in rad/s")
    draw = pictures.double_pendulum

    def kinetic_energy(self, t: ArrayLike, q: jax.Array, u: jax.Array) -> jax.Array:
        """T = m1/2 l1^2 u1^2 + m2/2 (l1^2 u1^2 + l2^2 u2^2 + 2 l1 l2 u1 u2 cos(q1 - q2))."""
        v_1, v_2 = self.length_1 * u[0], self.length_2 * u[1]
        return 0.5 * (self.mass_1 * v_1**2 + self.mass_2 * (v_1**2 + v_2**2 + 2 * v_1 * v_2 * jnp.cos(q[0] - q[1])))

    def potential_energy(self, t: ArrayLike, q: jax.Array) -> jax.Array:
        """V = -(m1 + m2) g l1 cos(q1) - m2 g l2 cos(q2)."""
        first = (self.mass_1 + self.mass_2) * self.length_1 * jnp.cos(q[0])
        return -self.gravity * (first + self.mass_2 * self.length_2 * jnp.cos(q[1]))

    def gap(self, t: ArrayLike, q: jax.Array) -> jax.Array:
        """Distance of the tip from the wall."""
        return jnp.stack([self.wall - self.length_1 * jnp.sin(q[0]) - self.length_2 * jnp.sin(q[1])])

    def initial_state(self) -> tuple[jax.Array, jax.Array]:
        """``(q0, u0)``: at rest, away from the wall."""
        return jnp.array([-0.6, -0.4]), jnp.array([0.0, 0.0])
