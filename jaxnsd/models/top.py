"""Tippe-top: a ball with a stem, whose centre of mass is below the centre of the ball."""

from typing import Any

import jax
import jax.numpy as jnp

from ..bodies import Body, Free, Multibody, Plane, Sphere, assemble
from ..mechanics.system import Parameter, system


@system
class TippeTop(Multibody):
    """A `Multibody` with the initial state of the benchmark; made by `tippe_top`."""

    coordinate_names = ("$x$ in m", "$y$ in m", "$z$ in m", "$p_w$", "$p_x$", "$p_y$", "$p_z$")
    velocity_names = (
        *(rf"$\dot {axis}$ in m/s" for axis in "xyz"),
        *(rf"$\omega_{axis}$ in rad/s" for axis in "xyz"),
    )

    def initial_state(self, spin: Parameter = 180.0, tilt: Parameter = 0.1) -> tuple[jax.Array, jax.Array]:
        """``(q0, u0)``: on its ball, the stem ``tilt`` rad off the vertical, spinning about it with ``spin`` rad/s."""
        dtype, radius, height = self.mass.dtype, self.shape_size[1, 0], self.shape_position[1, 2]
        z = radius - height * jnp.cos(tilt)
        q0 = [0.0, 0.0, z, jnp.cos(tilt / 2), jnp.sin(tilt / 2), 0.0, 0.0]
        return jnp.stack([jnp.asarray(x, dtype) for x in q0]), jnp.asarray([0.0, 0.0, 0.0, 0.0, 0.0, 1.0], dtype) * spin

    def inclination(self, q: jax.Array) -> jax.Array:
        """Angle of the stem to the vertical in rad, of coordinates (7,): near zero at the start, near pi on the stem."""
        return jnp.arccos(jnp.clip(self.pose(0.0, q).rotation[0, 2, 2], -1.0, 1.0))


def tippe_top(
    mass: Any = 6e-3,
    inertia: Any = 8e-7,
    axial_inertia: Any = 7e-7,
    ball_radius: Any = 1.5e-2,
    stem_radius: Any = 5e-3,
    ball_height: Any = 3e-3,
    stem_height: Any = 1.6e-2,
    gravity: Any = 9.81,
    mu: Any = 0.3,
    e_N: Any = 0.0,
) -> TippeTop:
    """Tippe-top on a floor: a body whose contacts are two balls on its axis, that of the body and that at the end of the stem.

    Sliding friction at the eccentric ball lifts the centre of mass, until the top spins upside down on its stem. Parameters are those of
    Leine & Glocker, A set-valued force law for spatial Coulomb-Contensou friction (2003). The balls' centres are ``ball_height`` and
    ``stem_height`` above the centre of mass, where the frame of the body is.

    Friction here is Coulomb's at a point, which knows nothing of the spin about the normal: the ball soon sticks, and rolls at a small
    inclination, which turns no top over; when it slips again depends on the error of the steps. Measured with mu = 0.15, a tilt of 0.2 and
    `Moreau`: with dt = 2e-4 s it slips from 2.8 s on and stands on its stem at 5.2 s, with dt = 1e-4 s it still rolls at 4 s.

    Units: mass kg, inertia kg m^2 about the centre of mass (across and along the axis), lengths m, gravity m/s^2. Returns a `TippeTop`.
    """
    balls = [
        Sphere(ball_radius, position=(0.0, 0.0, ball_height), name="ball"),
        Sphere(stem_radius, position=(0.0, 0.0, stem_height), name="stem"),
    ]
    body = Body("top", mass, (inertia, inertia, axial_inertia), center=(0.0, 0.0, 0.0), joints=Free(), shapes=balls)
    made = assemble([body], Plane(name="floor"), gravity=(0.0, 0.0, -gravity), mu=mu, e_N=e_N)
    return TippeTop.from_system(made)
