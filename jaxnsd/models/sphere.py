"""Sphere thrown on a floor and against a wall: friction in space."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from ..mechanics.system import Parameter, System, system
from . import pictures


@system
class Sphere(System):
    """A homogeneous sphere, a floor ``z = 0`` and a wall ``x = wall``: q = (x, y, z, theta_x, theta_y, theta_z), in m and rad.

    u = (velocity of the centre, angular velocity omega), both in the inertial frame. Neither the energy nor the contacts see the
    orientation of a sphere, and its gyroscopic moment vanishes; so the last three coordinates are the integrals of omega, with
    ``q_dot = u``. They are no orientation: integrate ``A' = [omega]x A`` for that.

    Contacts, with two tangential directions each: the floor (0; x and y) and the wall (1; y and z). A sphere that slides on the floor
    rolls in the end with ``v = v_0 - 2/7 gamma_0``, gamma_0 the velocity of its contact point when it starts to slide.
    """

    mass: Parameter = 1.0  # kg
    radius: Parameter = 0.1  # m
    gravity: Parameter = 9.81  # m/s^2
    wall: Parameter = 2.0  # m
    e_N: Parameter = 0.5
    e_F: Parameter = 0.0
    mu: Parameter = 0.3

    coordinate_names = ("$x$ in m", "$y$ in m", "$z$ in m", r"$\theta_x$ in rad", r"$\theta_y$ in rad", r"$\theta_z$ in rad")
    velocity_names = (
        r"$\dot x$ in m/s",
        r"$\dot y$ in m/s",
        r"$\dot z$ in m/s",
        r"$\omega_x$ in rad/s",
        r"$\omega_y$ in rad/s",
        r"$\omega_z$ in rad/s",
    )
    draw = pictures.sphere

    def mass_matrix(self, t: ArrayLike, q: jax.Array) -> jax.Array:
        """diag(m, m, m, J, J, J) with J = 2/5 m R^2."""
        inertia = 0.4 * self.mass * self.radius**2
        return jnp.diag(jnp.stack([jnp.asarray(x, q.dtype) for x in (self.mass,) * 3 + (inertia,) * 3]))

    def potential_energy(self, t: ArrayLike, q: jax.Array) -> jax.Array:
        """V = m g z."""
        return self.mass * self.gravity * q[2]

    def gap(self, t: ArrayLike, q: jax.Array) -> jax.Array:
        """Distances from the floor and from the wall."""
        return jnp.stack([q[2] - self.radius, self.wall - q[0] - self.radius])

    def tangential_velocity(self, t: ArrayLike, q: jax.Array, u: jax.Array) -> jax.Array:
        """v + omega x r at the lowest point, r = (0, 0, -R), and at the point nearest to the wall, r = (R, 0, 0)."""
        R = self.radius
        return jnp.stack([u[0] - R * u[4], u[1] + R * u[3], u[1] + R * u[5], u[2] - R * u[4]]).reshape(2, 2)

    def initial_state(self) -> tuple[jax.Array, jax.Array]:
        """``(q0, u0)``: thrown towards floor and wall, spinning."""
        return jnp.array([0.0, 0.0, 0.6, 0.0, 0.0, 0.0]), jnp.array([2.0, 1.0, 0.0, 15.0, -10.0, 20.0])
