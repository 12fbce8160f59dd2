"""Woodpecker toy (Capobianco & Eugster 2018, Fig. 6-7; Glocker 1995; Leine, van Campen & Glocker 2003)."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from ..mechanics.system import Parameter, System, system
from . import pictures


@system
class Woodpecker(System):
    """A woodpecker on a sleeve that slides down a pole: q = (y, phi_M, phi_S), height in m, angles of sleeve and woodpecker in rad.

    Three frictional contacts with the pole: the beak (0), the lower (1) and the upper (2) edge of the sleeve. Constant mass matrix and
    a linear spring. The motion ends in a limit cycle with a period of about 0.146 s.
    """

    mass_sleeve: Parameter = 3e-4  # m_M, kg
    mass_woodpecker: Parameter = 4.5e-3  # m_S, kg
    inertia_sleeve: Parameter = 5e-9  # J_M, kg m^2
    inertia_woodpecker: Parameter = 7e-7  # J_S, kg m^2
    stiffness: Parameter = 5.6e-3  # c, N m
    gravity: Parameter = 9.81  # m/s^2
    radius_pole: Parameter = 2.5e-3  # r_O, m
    radius_sleeve: Parameter = 3.1e-3  # r_M, m
    height_sleeve: Parameter = 5.8e-3  # h_M, m, half the height
    length_sleeve: Parameter = 0.010  # l_M, m, from the pole's axis to the spring
    length_woodpecker: Parameter = 0.015  # l_G, m, from the spring to the centre of mass
    height_beak: Parameter = 0.02  # h_S, m
    length_beak: Parameter = 0.0201  # l_S, m
    e_N_beak: Parameter = 0.5
    e_N_sleeve: Parameter = 0.0
    mu: Parameter = 0.3

    coordinate_names = ("$y$ in m", r"$\varphi_M$ in rad", r"$\varphi_S$ in rad")
    velocity_names = (r"$\dot y$ in m/s", r"$\dot\varphi_M$ in rad/s", r"$\dot\varphi_S$ in rad/s")
    contact_names = ("beak and pole", "sleeve's lower edge and pole", "sleeve's upper edge and pole")
    draw = pictures.woodpecker

    def e_N(self) -> jax.Array:
        """Restitution coefficients of the three contacts."""
        return jnp.stack([self.e_N_beak, self.e_N_sleeve, self.e_N_sleeve])

    def mass_matrix(self, t: ArrayLike, q: jax.Array) -> jax.Array:
        """Constant, symmetric."""
        m_M, m_S, l_M, l_G = self.mass_sleeve, self.mass_woodpecker, self.length_sleeve, self.length_woodpecker
        M_yM, M_yS, M_MS = m_S * l_M, m_S * l_G, m_S * l_M * l_G
        rows = [
            [m_S + m_M, M_yM, M_yS],
            [M_yM, self.inertia_sleeve + m_S * l_M**2, M_MS],
            [M_yS, M_MS, self.inertia_woodpecker + m_S * l_G**2],
        ]
        return jnp.stack([jnp.asarray(x, q.dtype) for row in rows for x in row]).reshape(3, 3)

    def potential_energy(self, t: ArrayLike, q: jax.Array) -> jax.Array:
        """V of gravity, linearized in the angles, and of the spring."""
        y, phi_M, phi_S = q[0], q[1], q[2]
        m_M, m_S = self.mass_sleeve, self.mass_woodpecker
        gravity = self.gravity * ((m_S + m_M) * y + m_S * self.length_sleeve * phi_M + m_S * self.length_woodpecker * phi_S)
        return gravity + 0.5 * self.stiffness * (phi_M - phi_S) ** 2

    def gap(self, t: ArrayLike, q: jax.Array) -> jax.Array:
        """Distances of the beak and of the sleeve's lower and upper edge from the pole."""
        beak = self.length_sleeve + self.length_woodpecker - self.length_beak - self.radius_pole - self.height_beak * q[2]
        play, tilt = self.radius_sleeve - self.radius_pole, self.height_sleeve * q[1]
        return jnp.stack([beak, play + tilt, play - tilt])

    def tangential_velocity(self, t: ArrayLike, q: jax.Array, u: jax.Array) -> jax.Array:
        """Vertical velocities of the contact points."""
        beak = u[0] + self.length_sleeve * u[1] + (self.length_woodpecker - self.length_beak) * u[2]
        sleeve = u[0] + self.radius_sleeve * u[1]
        return jnp.stack([beak, sleeve, sleeve])[:, None]

    def initial_state(self) -> tuple[jax.Array, jax.Array]:
        """``(q0, u0)``: near the limit cycle."""
        return jnp.array([0.0, -0.1036, -0.2788]), jnp.array([-0.3411, 0.0, -7.4583])

    def section(self, t: ArrayLike, q: jax.Array, u: jax.Array) -> jax.Array:
        """Vanishes where the limit cycle is looked at: phi_S = 0.0066 rad, in free fall after the strike of the beak."""
        return q[2] - 0.0066

    def fallen(self, t: ArrayLike, q: jax.Array, u: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The state at height zero: the motion is periodic up to the height by which it falls."""
        return q.at[0].set(0), u

    def limit_cycle(self) -> dict[str, Any]:
        """Arguments ``q, u, period, section, reset`` of `jaxnsd.orbits.periodic`: a guess beside the limit cycle of the default values."""
        q, u = jnp.array([0.0, 0.02002, 0.0066]), jnp.array([-0.07336, -4.729, -5.798])
        return {"q": q, "u": u, "period": 0.146, "section": Woodpecker.section, "reset": Woodpecker.fallen}
