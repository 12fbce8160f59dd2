"""Cube with rounded corners that is tossed on a board: the model that is fitted to measured tosses."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ..mechanics.laws import ContactData
from ..mechanics.system import Parameter, System, system
from . import pictures
from .cube import CORNERS, Cube, _rotation

#: Matrix of the cross product with the unit vector z.
ABOUT_Z = np.array([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])


@system
class TossedCube(System):
    """A cube whose corners are spheres, above a board ``z = board``: q and u as those of `Cube`.

    Contacts are the eight spheres. Restitution depends on how many of them are down and, as friction does, on the speed of approach v:

        e_N(v) = e(n) max(0, 1 + slope (v - 1 m/s)), in [0, 0.95]
        n = sum_i 1 / (1 + exp(4 (g_i - g_min - reach) / reach))
        mu(v) = mu_impact + (mu - mu_impact) exp(-v / fade)

    with e(n) = ``e_corner`` for n = 1, ``e_edge`` for 2, ``e_face`` for 4, and linear between them.

    The centre of mass lies at (0, 0, ``offset``) in the body frame, whose axes are principal ones: ``inertia`` about x and y, ``inertia_z``
    about z, through the centre of mass.

    The defaults are fitted to measured tosses, see `jaxnsd.identify.tosses`; gravity, from their free fall, is that of the lengths in
    which they are stored, which are 2 % short.
    """

    mass: Parameter = 0.37  # kg
    side: Parameter = 0.10337  # m, from face to face
    offset: Parameter = 0.00609  # m, of the centre of mass
    inertia: Parameter = 1.0036e-3  # kg m^2
    inertia_z: Parameter = 0.9402e-3  # kg m^2
    radius: Parameter = 0.00206  # m, of the spheres at the corners
    board: Parameter = -1e-4  # m, height of the board
    gravity: Parameter = 9.62  # m/s^2
    e_corner: Parameter = 0.2233
    e_edge: Parameter = 0.2871
    e_face: Parameter = 0.2417
    slope: Parameter = 0.0028  # s/m
    reach: Parameter = 0.004  # m: what is no higher than this above the lowest sphere counts as down
    e_F: Parameter = 0.2763
    mu: Parameter = 0.2201
    mu_impact: Parameter = 0.1587
    fade: Parameter = 0.0526  # m/s

    coordinate_names = Cube.coordinate_names
    velocity_names = Cube.velocity_names
    q_dot = Cube.q_dot
    W_N = Cube.W_N
    W_F = Cube.W_F
    gap_velocity = Cube.gap_velocity
    tangential_velocity = Cube.tangential_velocity
    draw = pictures.cube

    def mass_matrix(self, t: ArrayLike, q: jax.Array) -> jax.Array:
        """That of T = m/2 |v + R (omega x s)|^2 + 1/2 omega J omega with s from the centre to the centre of mass."""
        coupled = -self.mass * self.offset * _rotation(q[3:]) @ jnp.asarray(ABOUT_Z, q.dtype)
        about_centre = self.inertia + self.mass * self.offset**2
        J = jnp.diag(jnp.stack([jnp.asarray(x, q.dtype) for x in (about_centre, about_centre, self.inertia_z)]))
        return jnp.block([[self.mass * jnp.eye(3, dtype=q.dtype), coupled], [coupled.T, J]])

    def potential_energy(self, t: ArrayLike, q: jax.Array) -> jax.Array:
        """V = m g (height of the centre of mass)."""
        return self.mass * self.gravity * (q[2] + self.offset * _rotation(q[3:])[2, 2])

    def h(self, t: ArrayLike, q: jax.Array, u: jax.Array) -> jax.Array:
        """The weight, and what the rotation adds: -m R (omega x (omega x s)); -omega x J omega, and the moment of the former."""
        R, (x, y, z) = _rotation(q[3:]), u[3:]
        # omega x (omega x s) for s along z, plus what the weight is in the body frame: the force on the centre of mass.
        centripetal = self.offset * jnp.stack([x * z, y * z, -(x * x + y * y)])
        force = -self.mass * (R @ centripetal + self.gravity * jnp.asarray([0.0, 0.0, 1.0], q.dtype))
        in_body = -self.mass * (centripetal + self.gravity * R[2])
        gyroscopic = (self.inertia - self.inertia_z) * z * jnp.stack([y, -x, jnp.zeros_like(x)])
        moment = gyroscopic + self.offset * jnp.stack([-in_body[1], in_body[0], jnp.zeros_like(x)])
        return jnp.concatenate([force, moment]) + self.force(t, q, u)

    def gap(self, t: ArrayLike, q: jax.Array) -> jax.Array:
        """Heights of the spheres above the board."""
        return q[2] + (self._centres(q) @ _rotation(q[3:])[2]) - self.radius - self.board

    def e_N(self, speed: jax.Array) -> jax.Array:
        """Restitution of a corner; `contact_data` knows how many are down."""
        return self._faded(self.e_corner, speed)

    def contact_data(self, t: ArrayLike, q: jax.Array, rate: jax.Array | None = None) -> ContactData:
        """``(e_N, e_F, mu)``, (8,) each."""
        _, e_F, mu = super().contact_data(t, q)
        gap = self.gap(t, q)
        down = jnp.sum(jax.nn.sigmoid((self.reach - (gap - jnp.min(gap))) / (self.reach / 4)))
        e = jnp.interp(down, jnp.array([1.0, 2.0, 4.0], q.dtype), jnp.stack([jnp.asarray(x, q.dtype) for x in self._by_number()]))
        speed = jnp.zeros_like(gap) if rate is None else jnp.maximum(-rate, 0)
        mu = self.mu_impact + (mu - self.mu_impact) * jnp.exp(-speed / self.fade)
        return ContactData(self._faded(e, speed), e_F, mu)

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
