"""Block with two frictional corners, in the plane: it rocks, slides and comes to rest."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from ..mechanics.system import Parameter, System, system
from . import pictures


@system
class CornerBlock(System):
    """A rectangular block above a floor: q = (x, y, phi), centre of mass in m and angle in rad, counter-clockwise.

    Contacts are the lower left (0) and the lower right (1) corner. On both corners the block slides without tipping over while
    ``mu * half_height < half_width``, and comes to rest after ``v0^2 / (2 mu g)``.
    """

    mass: Parameter = 1.0  # kg
    half_width: Parameter = 0.1  # m
    half_height: Parameter = 0.15  # m
    gravity: Parameter = 9.81  # m/s^2
    e_N: Parameter = 0.0
    e_F: Parameter = 0.0
    mu: Parameter = 0.3

    coordinate_names = ("$x$ in m", "$y$ in m", r"$\varphi$ in rad")
    velocity_names = (r"$\dot x$ in m/s", r"$\dot y$ in m/s", r"$\dot\varphi$ in rad/s")
    draw = pictures.corner_block

    def mass_matrix(self, t: ArrayLike, q: jax.Array) -> jax.Array:
        """diag(m, m, J) with J = m/3 (a^2 + b^2), a and b half the width and the height."""
        inertia = self.mass * (self.half_width**2 + self.half_height**2) / 3
        return jnp.diag(jnp.stack([jnp.asarray(x, q.dtype) for x in (self.mass, self.mass, inertia)]))

    def potential_energy(self, t: ArrayLike, q: jax.Array) -> jax.Array:
        """V = m g y."""
        return self.mass * self.gravity * q[1]

    def gap(self, t: ArrayLike, q: jax.Array) -> jax.Array:
        """Heights of the two lower corners."""
        arm, depth = self.half_width * jnp.sin(q[2]), self.half_height * jnp.cos(q[2])
        return jnp.stack([q[1] - arm - depth, q[1] + arm - depth])

    def tangential_velocity(self, t: ArrayLike, q: jax.Array, u: jax.Array) -> jax.Array:
        """Horizontal velocities of the two lower corners."""
        arm, depth = self.half_width * jnp.sin(q[2]), self.half_height * jnp.cos(q[2])
        return jnp.stack([u[0] + (arm + depth) * u[2], u[0] + (depth - arm) * u[2]])[:, None]

    def initial_state(self, angle: Parameter = 0.2, velocity: Parameter = 0.5) -> tuple[jax.Array, jax.Array]:
        """``(q0, u0)``: the lower corner on the floor, tilted by ``angle`` in [-pi/2, pi/2], moving sideways with ``velocity``."""
        y = self.half_width * jnp.abs(jnp.sin(angle)) + self.half_height * jnp.cos(angle)
        return jnp.stack([jnp.zeros_like(y), y, jnp.asarray(angle, y.dtype)]), jnp.array([velocity, 0.0, 0.0])
