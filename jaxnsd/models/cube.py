"""Cube on a floor: eight corners, friction in space, a quaternion."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ..mechanics.system import Parameter, System, system
from . import pictures

#: Corners of a cube of side 2.
CORNERS = np.stack(np.meshgrid(*[(-1.0, 1.0)] * 3, indexing="ij"), axis=-1).reshape(8, 3)


@system
class Cube(System):
    """A homogeneous cube above a floor ``z = 0``: q = (x, y, z of the centre in m, unit quaternion (w, x, y, z), body to world).

    u = (velocity of the centre in the inertial frame in m/s, angular velocity in the body frame in rad/s), q_dot = (v, 1/2 p (0, omega)).
    Contacts are the corners, with two tangential directions each, x and y: none in flight, four at rest. The inertia of a cube is
    isotropic, so that the gyroscopic moment vanishes: M, h and b are closed forms.
    """

    mass: Parameter = 0.37  # kg
    side: Parameter = 0.1  # m
    gravity: Parameter = 9.81  # m/s^2
    e_N: Parameter = 0.2
    e_F: Parameter = 0.0
    mu: Parameter = 0.2

    coordinate_names = ("$x$ in m", "$y$ in m", "$z$ in m", "$p_w$", "$p_x$", "$p_y$", "$p_z$")
    velocity_names = (
        r"$\dot x$ in m/s",
        r"$\dot y$ in m/s",
        r"$\dot z$ in m/s",
        r"$\omega_x$ in rad/s",
        r"$\omega_y$ in rad/s",
        r"$\omega_z$ in rad/s",
    )
    draw = pictures.cube

    def mass_matrix(self, t: ArrayLike, q: jax.Array) -> jax.Array:
        """diag(m, m, m, J, J, J) with J = m a^2 / 6."""
        inertia = self.mass * self.side**2 / 6
        return jnp.diag(jnp.stack([jnp.asarray(x, q.dtype) for x in (self.mass,) * 3 + (inertia,) * 3]))

    def potential_energy(self, t: ArrayLike, q: jax.Array) -> jax.Array:
        """V = m g z."""
        return self.mass * self.gravity * q[2]

    def h(self, t: ArrayLike, q: jax.Array, u: jax.Array) -> jax.Array:
        """The weight, and what a subclass adds: omega x J omega vanishes."""
        return self.force(t, q, u) + jnp.stack([jnp.zeros_like(u[0])] * 2 + [-self.mass * self.gravity] + [jnp.zeros_like(u[0])] * 3)

    def b(self, t: ArrayLike, q: jax.Array, u: jax.Array) -> jax.Array:
        """As h: M is constant."""
        return self.h(t, q, u)

    def q_dot(self, t: ArrayLike, q: jax.Array, u: jax.Array) -> jax.Array:
        """(v, 1/2 p (0, omega))."""
        w, v, omega = q[3], q[4:], u[3:]
        return jnp.concatenate([u[:3], -0.5 * (v @ omega)[None], 0.5 * (w * omega + jnp.cross(v, omega))])

    def gap(self, t: ArrayLike, q: jax.Array) -> jax.Array:
        """Heights of the corners."""
        return q[2] + self._arms(q)[:, 2]

    def gap_velocity(self, t: ArrayLike, q: jax.Array, u: jax.Array) -> jax.Array:
        """Vertical velocities of the corners."""
        return self._directions(q)[:, 2] @ u

    def tangential_velocity(self, t: ArrayLike, q: jax.Array, u: jax.Array) -> jax.Array:
        """Horizontal velocities of the corners."""
        return self._directions(q)[:, :2] @ u

    def W_N(self, t: ArrayLike, q: jax.Array, u: jax.Array | None = None) -> jax.Array:
        """What the derivative of `gap_velocity` is, (6, 8): written out, it need not be derived."""
        return self._directions(q)[:, 2].T

    def W_F(self, t: ArrayLike, q: jax.Array, u: jax.Array | None = None) -> jax.Array:
        """What the derivative of `tangential_velocity` is, (6, 8, 2)."""
        return jnp.moveaxis(self._directions(q)[:, :2], 2, 0)

    def _arms(self, q):
        """From the centre to the corners, in the inertial frame, (8, 3)."""
        return 0.5 * self.side * jnp.asarray(CORNERS, q.dtype) @ _rotation(q[3:]).T

    def _directions(self, q):
        """Velocities x, y, z of the corners as rows that act on u, (8, 3, 6): e_k, and r x R^T e_k in the body frame."""
        r, R = 0.5 * self.side * jnp.asarray(CORNERS, q.dtype), _rotation(q[3:])
        moved = jnp.broadcast_to(jnp.eye(3, dtype=q.dtype), (8, 3, 3))
        return jnp.concatenate([moved, jnp.cross(r[:, None], R[None])], axis=2)

    def initial_state(self) -> tuple[jax.Array, jax.Array]:
        """``(q0, u0)``: tossed, and tumbling."""
        return jnp.array([0.0, 0.0, 0.25, 1.0, 0.0, 0.0, 0.0]), jnp.array([0.6, 0.3, 0.5, 4.0, 3.0, 2.0])


def _rotation(p):
    """Rotation matrix of a unit quaternion."""
    w, x, y, z = p
    rows = (
        (1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)),
        (2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)),
        (2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)),
    )
    return jnp.stack([jnp.stack(row) for row in rows])
