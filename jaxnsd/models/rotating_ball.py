"""Rotating bouncing ball (Capobianco et al. 2024, Section 6.1)."""

import jax.numpy as jnp

from ..system import System, system


@system
class RotatingBall(System):
    """A ball on a floor in the plane, with friction: q = (x, y, phi), height y of its centre.

    Three cases of C24: (omega, e_N) = (0, 0.5), (50, 0) and (10, 0), with omega the initial spin.
    """

    mass: float = 1.0
    radius: float = 0.1
    gravity: float = 9.81
    e_N: float = 0.5
    e_F: float = 0.0
    mu: float = 0.2

    coordinate_names = ("$x$ in m", "$y$ in m", r"$\varphi$ in rad")
    velocity_names = (r"$\dot x$ in m/s", r"$\dot y$ in m/s", r"$\dot\varphi$ in rad/s")

    def kinetic_energy(self, t, q, u):
        """T = m/2 (x'^2 + y'^2) + J/2 phi'^2 with J = 2/5 m R^2."""
        inertia = 0.4 * self.mass * self.radius**2
        return 0.5 * (self.mass * (u[0] ** 2 + u[1] ** 2) + inertia * u[2] ** 2)

    def potential_energy(self, t, q):
        """V = m g y."""
        return self.mass * self.gravity * q[1]

    def gap(self, t, q):
        """Height of the lowest point."""
        return jnp.stack([q[1] - self.radius])

    def tangential_velocity(self, t, q, u):
        """Velocity of the lowest point."""
        return jnp.stack([u[:1] + self.radius * u[2:]])

    def initial_state(self, omega=0.0):
        """``(q0, u0)``: at height 1 with spin ``omega``."""
        return jnp.array([0.0, 1.0, 0.0]), jnp.array([0.0, 0.0, omega])
