"""Two discs that collide obliquely, without friction."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from ..mechanics.system import Parameter, System, system
from . import pictures


@system
class TwoDiscs(System):
    """Two frictionless discs in a plane, without gravity: q = (x_1, y_1, x_2, y_2), their centres in m.

    Being frictionless they do not spin up, so there is no rotation. The momentum is conserved; the impact reverses the velocity of
    approach along the line of centres, times ``e_N``.
    """

    mass_1: Parameter = 1.0  # kg
    mass_2: Parameter = 2.0  # kg
    radius: Parameter = 0.1  # m, of each
    e_N: Parameter = 0.8

    coordinate_names = ("$x_1$ in m", "$y_1$ in m", "$x_2$ in m", "$y_2$ in m")
    velocity_names = (r"$\dot x_1$ in m/s", r"$\dot y_1$ in m/s", r"$\dot x_2$ in m/s", r"$\dot y_2$ in m/s")
    draw = pictures.two_discs

    def mass_matrix(self, t: ArrayLike, q: jax.Array) -> jax.Array:
        """diag(m1, m1, m2, m2)."""
        return jnp.diag(jnp.stack([jnp.asarray(x, q.dtype) for x in (self.mass_1, self.mass_1, self.mass_2, self.mass_2)]))

    def gap(self, t: ArrayLike, q: jax.Array) -> jax.Array:
        """Distance of the rims; the centres must not coincide."""
        return jnp.stack([jnp.hypot(q[2] - q[0], q[3] - q[1]) - 2 * self.radius])

    def initial_state(self) -> tuple[jax.Array, jax.Array]:
        """``(q0, u0)``: approaching with a lateral offset of one radius."""
        return jnp.array([0.0, 0.0, 1.0, 0.1]), jnp.array([1.0, 0.2, -0.5, 0.0])
