"""Cube with rounded corners that is tossed on a board: the model that is fitted to measured tosses."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from ..system import Parameter, System, system
from .cube import CORNERS, Cube, _rotation


@system
class TossedCube(System):
    """A cube whose corners are spheres, above a board ``z = board``: q and u as those of `Cube`.

    Contacts are the eight spheres. Restitution depends on how many of them are down and on the speed of approach v:

        e_N = e(n) max(0, 1 + slope (v - 1 m/s)), in [0, 0.95]
        n = sum_i 1 / (1 + exp(4 (g_i - g_min - reach) / reach))

    with e(n) = ``e_corner`` for n = 1, ``e_edge`` for 2, ``e_face`` for 4, and linear between them.

    The defaults are fitted to measured tosses, see `jaxnsd.identify.tosses`; gravity, from their free fall, is that of the lengths in
    which they are stored, which are 2 % short. The inertia is an effective one: the authors of the data state 8.1e-4 kg m^2.
    """

    mass: Parameter = 0.37  # kg
    side: Parameter = 0.10257  # m, from face to face
    inertia: Parameter = 1.162e-3  # kg m^2, about every axis through the centre
    radius: Parameter = 0.00264  # m, of the spheres at the corners
    board: Parameter = 1.5e-4  # m, height of the board
    gravity: Parameter = 9.62  # m/s^2
    e_corner: Parameter = 0.1839
    e_edge: Parameter = 0.1634
    e_face: Parameter = 0.1687
    slope: Parameter = -0.0209  # s/m
    reach: Parameter = 0.004  # m: what is no higher than this above the lowest sphere counts as down
    e_F: Parameter = 0.0475
    mu: Parameter = 0.178

    coordinate_names = Cube.coordinate_names
    velocity_names = Cube.velocity_names
    q_dot = Cube.q_dot
    potential_energy = Cube.potential_energy
    h = Cube.h
    W_N = Cube.W_N
    W_F = Cube.W_F
    gap_velocity = Cube.gap_velocity
    tangential_velocity = Cube.tangential_velocity

    def mass_matrix(self, t: ArrayLike, q: jax.Array) -> jax.Array:
        """diag(m, m, m, J, J, J)."""
        return jnp.diag(jnp.stack([jnp.asarray(x, q.dtype) for x in (self.mass,) * 3 + (self.inertia,) * 3]))

    def gap(self, t: ArrayLike, q: jax.Array) -> jax.Array:
        """Heights of the spheres above the board."""
        return q[2] + (self._centres(q) @ _rotation(q[3:])[2]) - self.radius - self.board

    def e_N(self, speed: jax.Array) -> jax.Array:
        """Restitution of a corner; `contact_data` knows how many are down."""
        return self._faded(self.e_corner, speed)

    def contact_data(self, t: ArrayLike, q: jax.Array, rate: jax.Array | None = None) -> tuple[jax.Array, jax.Array, jax.Array]:
        """``(e_N, e_F, mu)``, (8,) each."""
        _, e_F, mu = super().contact_data(t, q)
        gap = self.gap(t, q)
        down = jnp.sum(jax.nn.sigmoid((self.reach - (gap - jnp.min(gap))) / (self.reach / 4)))
        e = jnp.interp(down, jnp.array([1.0, 2.0, 4.0], q.dtype), jnp.stack([jnp.asarray(x, q.dtype) for x in self._by_number()]))
        speed = jnp.zeros_like(gap) if rate is None else jnp.maximum(-rate, 0)
        return self._faded(e, speed), e_F, mu

    def _by_number(self):
        return self.e_corner, self.e_edge, self.e_face

    def _faded(self, e, speed):
        return jnp.clip(e * jnp.maximum(0, 1 + self.slope * (speed - 1)), 0, 0.95)

    def _centres(self, q):
        """Centres of the spheres in the body frame, (8, 3)."""
        return (0.5 * self.side - self.radius) * jnp.asarray(CORNERS, q.dtype)

    def _directions(self, q):
        """Velocities of the spheres' lowest points as rows that act on u, (8, 3, 6): e_k, and a x R^T e_k with a the arm in the body."""
        R = _rotation(q[3:])
        arms = self._centres(q) - self.radius * R[2][None]
        moved = jnp.broadcast_to(jnp.eye(3, dtype=q.dtype), (8, 3, 3))
        return jnp.concatenate([moved, jnp.cross(arms[:, None], R[None])], axis=2)

    def initial_state(self) -> tuple[jax.Array, jax.Array]:
        """``(q0, u0)``: tossed, and tumbling."""
        return Cube().initial_state()
