"""Spring pendulum that hits a wall (Capobianco & Eugster 2018, Fig. 3-5)."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from ..mechanics.system import Parameter, System, static, system
from . import pictures


@system
class SpringPendulum(System):
    """A point mass on a massless spring, with a vertical wall below the hinge: q = (l, phi), length in m and angle to the vertical in rad.

    The mass matrix depends on q and the forces on u, so this is where the schemes differ. The energy is conserved for ``e_N = 1``.

    With ``gap_is_distance`` the gap is the distance ``l sin(phi)`` of the mass from the wall, else the angle ``phi``, as in C18. The motion
    is the same in the limit of small steps, but not the discrete one; with the angle, percussions are in N m s.
    """

    mass: Parameter = 1.0  # kg
    length: Parameter = 1.0  # m, of the unstressed spring
    stiffness: Parameter = 100.0  # N/m
    gravity: Parameter = 9.81  # m/s^2
    e_N: Parameter = 1.0
    gap_is_distance: bool = static(default=False)

    coordinate_names = ("$l$ in m", r"$\varphi$ in rad")
    velocity_names = (r"$\dot l$ in m/s", r"$\dot\varphi$ in rad/s")
    draw = pictures.spring_pendulum

    def kinetic_energy(self, t: ArrayLike, q: jax.Array, u: jax.Array) -> jax.Array:
        """T = m/2 (l'^2 + l^2 phi'^2); C18 (64), where a square is missing."""
        return 0.5 * self.mass * (u[0] ** 2 + (q[0] * u[1]) ** 2)

    def potential_energy(self, t: ArrayLike, q: jax.Array) -> jax.Array:
        """V = k/2 (l - l0)^2 - m g l cos(phi), C18 (64)."""
        return 0.5 * self.stiffness * (q[0] - self.length) ** 2 - self.mass * self.gravity * q[0] * jnp.cos(q[1])

    def gap(self, t: ArrayLike, q: jax.Array) -> jax.Array:
        """Angle to the wall, or distance from it."""
        return jnp.stack([q[0] * jnp.sin(q[1]) if self.gap_is_distance else q[1]])

    def initial_state(self) -> tuple[jax.Array, jax.Array]:
        """``(q0, u0)``: at rest, stretched by 0.1 m, at 45 degrees."""
        return jnp.array([1.1, jnp.pi / 4]), jnp.array([0.0, 0.0])
