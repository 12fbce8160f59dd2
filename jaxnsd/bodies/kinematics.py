"""Where the bodies are, and how their velocities follow from those of the joints, for all bodies at once.

The chain from the world to each body is multiplied up by pointer doubling: as many rounds as the logarithm of its length, each for all
elements together, so that a humanoid is compiled as soon as a pendulum.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from . import prescribed
from .lists import pick, sums
from .rotations import about, compose, cross, matrix, turn, unit


class Places(NamedTuple):
    """Frames of bodies and axes of joints at one configuration; the world is body 0. All vectors in the frame of the world."""

    R: object  # (n_b + 1, 3, 3) body to world
    x: object  # (n_b + 1, 3) origins
    about: object  # (n_b + 1, 3) point about which the twists of a body's tree are: the origin of its root
    w: object  # (n_s, 3) angular velocity per unit of each velocity,
    v: object  # (n_s, 3) and velocity at that point: a column of the twist


def with_world(x, own):
    """``x`` with an entry of the world before it."""
    return jnp.concatenate([jnp.asarray(own, x.dtype)[None], x])


def coordinates(system, t, q):
    """q with the prescribed coordinates behind it."""
    return jnp.concatenate([q, prescribed.coordinates(system, t, q.dtype)]) if system.motions else q


def velocities(system, t, u):
    """``(velocities with the prescribed ones behind them, their accelerations where u is constant)``, (n_s,) each."""
    if not system.motions:
        return u, None
    rates, second = prescribed.velocities(system, t, u.dtype)
    return jnp.concatenate([u, rates]), jnp.concatenate([jnp.zeros_like(u), second])


def place(system, layout, t, q):
    """`Places` at (t, q)."""
    dtype = q.dtype
    q = coordinates(system, t, q)
    kinds, eye = layout.kinds, jnp.eye(3, dtype=dtype)
    axes = unit(system.joint_axis) if len(kinds["hinge"]) + len(kinds["slide"]) else system.joint_axis
    scalar = pick(q, np.minimum(layout.q_at, q.shape[0] - 1)) - system.reference if len(layout.q_at) else system.reference

    # Motion of the joints, by kind.
    R, x = [], []
    if len(free := kinds["free"]):
        numbers = pick(q, np.concatenate([np.arange(a, a + 7) for a in layout.q_at[free]])).reshape(-1, 7)
        R.append(matrix(numbers[:, 3:]))
        x.append(numbers[:, :3])
    if len(ball := kinds["ball"]):
        turned = matrix(pick(q, np.concatenate([np.arange(a, a + 4) for a in layout.q_at[ball]])).reshape(-1, 4))
        anchor = pick(system.joint_position, ball)
        R.append(turned)
        x.append(anchor - turn(turned, anchor))
    if len(hinge := kinds["hinge"]):
        turned = about(pick(axes, hinge), pick(scalar, hinge))
        anchor = pick(system.joint_position, hinge)
        R.append(turned)
        x.append(anchor - turn(turned, anchor))
    if len(slide := kinds["slide"]):
        R.append(jnp.broadcast_to(eye, (len(slide), 3, 3)))
        x.append(pick(axes, slide) * pick(scalar, slide)[:, None])
    R, x = (jnp.concatenate([*parts, none]) for parts, none in ((R, eye[None]), (x, jnp.zeros((1, 3), dtype))))
    order = layout.place_of_joint[layout.joint_of]
    R, x = pick(R, order), pick(x, order)

    # Frames of the bodies in those of their parents, before their joints move.
    off_R = jnp.concatenate([matrix(system.orientation), eye[None]])
    off_x = jnp.concatenate([system.position, jnp.zeros((1, 3), dtype)])
    off_R, off_x = pick(off_R, layout.offset), pick(off_x, layout.offset)
    R, x = compose(off_R, R), off_x + turn(off_R, x)

    for ancestors in layout.rounds:
        above_R, above_x = pick(with_world(R, eye), ancestors), pick(with_world(x, np.zeros(3)), ancestors)
        R, x = compose(above_R, R), above_x + turn(above_R, x)

    R_body, x_body = pick(with_world(R, eye), layout.last), pick(with_world(x, np.zeros(3)), layout.last)
    origin = pick(x_body, layout.root)
    R, x = pick(R, layout.element_of_joint), pick(x, layout.element_of_joint)
    w, v, point = [], [], []
    if len(free):
        n, axes_of_body = len(free), jnp.swapaxes(pick(R, free), 1, 2)
        moved = jnp.broadcast_to(jnp.concatenate([eye, jnp.zeros_like(eye)]), (n, 6, 3))
        w.append(jnp.concatenate([jnp.zeros((n, 3, 3), dtype), axes_of_body], axis=1).reshape(-1, 3))
        v.append(moved.reshape(-1, 3))
        point.append(jnp.broadcast_to(pick(x, free)[:, None], (n, 6, 3)).reshape(-1, 3))
    if len(ball):
        w.append(jnp.swapaxes(pick(R, ball), 1, 2).reshape(-1, 3))
        v.append(jnp.zeros_like(w[-1]))
        anchor = pick(x, ball) + turn(pick(R, ball), pick(system.joint_position, ball))
        point.append(jnp.broadcast_to(anchor[:, None], (len(ball), 3, 3)).reshape(-1, 3))
    if len(hinge):
        w.append(turn(pick(R, hinge), pick(axes, hinge)))
        v.append(jnp.zeros_like(w[-1]))
        point.append(pick(x, hinge) + turn(pick(R, hinge), pick(system.joint_position, hinge)))
    if len(slide):
        v.append(turn(pick(R, slide), pick(axes, slide)))
        w.append(jnp.zeros_like(v[-1]))
        point.append(pick(x, slide))
    if not w:
        none = jnp.zeros((0, 3), dtype)
        return Places(R_body, x_body, origin, none, none)
    w, v, point = (pick(jnp.concatenate(parts), layout.order_of_dofs) for parts in (w, v, point))
    return Places(R_body, x_body, origin, w, v + cross(w, pick(origin, layout.body_of_dof) - point))


def twists(layout, places, u):
    """Angular velocities and velocities at `Places.about` of all bodies, (n_b + 1, 3) each, from all velocities u (n_s,)."""
    return sums(layout.moves, places.w * u[:, None]), sums(layout.moves, places.v * u[:, None])


def velocities_at(layout, places, u, bodies, x):
    """Angular velocities and velocities (k, 3) of the points x (k, 3) of these bodies; u (n_s,): with what is prescribed."""
    w, v, about_point = (pick(part, bodies) for part in (*twists(layout, places, u), places.about))
    return w, v + cross(w, x - about_point)


def carriers(layout, places, u):
    """Twists of what carries the axis of each velocity, (n_s, 3) each; axes of a ball are carried by the body that it turns."""
    return sums(layout.carried, places.w * u[:, None]), sums(layout.carried, places.v * u[:, None])


def quaternions(layout, q, u):
    """All quaternions (k, 4) and their angular velocities (k, 3)."""
    p = jnp.stack([q[a : a + 4] for a in layout.quaternions])
    return p, jnp.stack([u[a : a + 3] for a in layout.spins])


def normalized(layout, q):
    """q with quaternions of length one; of NumPy if q is."""
    if not len(layout.quaternions):
        return q
    of = np if isinstance(q, np.ndarray) else jnp
    p = of.stack([q[a : a + 4] for a in layout.quaternions])
    return woven(layout, pick(q, layout.straight_q), p / of.sqrt(of.sum(p * p, axis=-1))[:, None])


def woven(layout, straight, turned):
    """q of its coordinates that are no quaternions, and of quaternions (k, 4); of NumPy if these are."""
    order = np.zeros(layout.n_q, int)
    order[layout.straight_q] = np.arange(len(layout.straight_q))
    for k, a in enumerate(layout.quaternions):
        order[a : a + 4] = len(layout.straight_q) + 4 * k + np.arange(4)
    of = np if isinstance(turned, np.ndarray) else jnp
    return pick(of.concatenate([straight, turned.reshape(-1)]), order)
