"""Column of beads: many simultaneous impacts."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from ..mechanics.system import Parameter, System, static, system
from ..programs.given import whole
from . import pictures


@system
class BeadColumn(System):
    """n rigid beads in a vertical line above a floor: q = heights of their centres in m, from below.

    Gap 0 is that of the lowest bead above the floor, gap i that between beads i - 1 and i. With ``e_N = 1`` impacts run through the column
    as in Newton's cradle; with ``e_N = 0`` the beads come to rest on top of each other, where contact i carries the weight of n - i beads.
    """

    mass: Parameter = 0.1  # kg, of every bead; or (n,)
    radius: Parameter = 0.05  # m
    gravity: Parameter = 9.81  # m/s^2
    e_N: Parameter = 0.9
    n: int = static(default=10)

    def __post_init__(self):
        whole("BeadColumn: n", self.n, 1)

    draw = pictures.bead_column

    @property
    def coordinate_names(self) -> tuple[str, ...]:
        """The heights, from below."""
        return tuple(f"$y_{{{i}}}$ in m" for i in range(self.n))

    @property
    def velocity_names(self) -> tuple[str, ...]:
        """Their rates."""
        return tuple(rf"$\dot y_{{{i}}}$ in m/s" for i in range(self.n))

    def mass_matrix(self, t: ArrayLike, q: jax.Array) -> jax.Array:
        """m times the identity."""
        return jnp.diag(jnp.broadcast_to(jnp.asarray(self.mass, q.dtype), (self.n,)))

    def potential_energy(self, t: ArrayLike, q: jax.Array) -> jax.Array:
        """V = sum of m g q."""
        return self.gravity * jnp.sum(self.mass * q)

    def gap(self, t: ArrayLike, q: jax.Array) -> jax.Array:
        """Gap of the lowest bead to the floor, then of each bead to the one below."""
        return jnp.concatenate([q[:1] - self.radius, q[1:] - q[:-1] - 2 * self.radius])

    def initial_state(self, height: Parameter = 0.1, spacing: Parameter = 0.01) -> tuple[jax.Array, jax.Array]:
        """``(q0, u0)``: at rest, the lowest bead ``height`` above the floor, and gaps of ``spacing`` between the beads."""
        return self.radius + height + jnp.arange(float(self.n)) * (2 * self.radius + spacing), jnp.zeros(self.n)
