"""Convex solids of every kind as one: a sum of simple sets, of which the farthest point along a direction is a closed formula.

    solid = corners + {sign pattern * scale, or a disc} + ellipsoid + ball

A box has a scale, a capsule a scale along z and a ball, a cylinder a scale and a disc, a hull corners; what a solid does not have is zero.
So one program serves all pairs of kinds. The ball is left out of the *core*, in which points are looked for.

A point of the flat part is named by its *unit*, by which the scale is multiplied, and the number of its corner: by these it moves with the
solid, and with its sizes.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..native.jax_internals import Primitive, batching, lowered_as
from .rotations import dot, turn, turn_back

#: Which of three sizes are the scale (3,), the radius of a disc, half axes (3,), the radius of a ball: of a kind, with zeros elsewhere.
PARTS = {
    "sphere": ((None, None, None), None, None, 0),
    "capsule": ((None, None, 1), None, None, 0),
    "box": ((0, 1, 2), None, None, None),
    "cylinder": ((0, 0, 1), 0, None, None),
    "ellipsoid": ((None, None, None), None, (0, 1, 2), None),
    "points": ((None, None, None), None, None, None),
}


class Solid(NamedTuple):
    """A solid in the world; of several, with an axis in front."""

    R: object  # (3, 3)
    x: object  # (3,)
    scale: object  # (3,)
    disc: object  # radius
    axes: object  # (3,) half axes
    ball: object  # radius
    hull: object  # number of its corners in the table, or None


class Pair(NamedTuple):
    """Two solids, the corners of their hulls (or None), and how large the pair is, in m."""

    a: object
    b: object
    corners_a: object  # `Corners`
    corners_b: object
    scale: object


class Corners(NamedTuple):
    """Those of a hull, in its frame: of a table of hulls the one with a number."""

    table: object  # (h, 3, k), the last corner of a hull with fewer is repeated
    number: object
    count: object  # how many there are

    def all(self):
        """(3, k)."""
        return self.table[self.number]

    def at(self, numbers):
        """Places (..., 3) of those with these numbers (...)."""
        return self.table[self.number, :, numbers]

    def farthest(self, m):
        """Numbers (...) of those that are farthest along directions (..., 3), of several that are as far of the first one."""
        return _farthest.bind(m.reshape(-1, 3), self.table, jnp.asarray(self.number), jnp.asarray(self.count)).reshape(m.shape[:-1])


#: Corners of a table are a multiple of this, so that vectors hold as many of them.
TOGETHER = 32


def table(hulls):
    """The corners (h, 3, k) of hulls (k_i, 3), as `Corners` have them."""
    most = -(-max(x.shape[0] for x in hulls) // TOGETHER) * TOGETHER
    padded = [jnp.concatenate([x, jnp.broadcast_to(x[-1:], (most - x.shape[0], 3))]).T for x in hulls]
    out = jnp.zeros((len(hulls), 3, most), padded[0].dtype)
    # Written, so that native code has it in memory: a stack of views would be put together wherever it is asked for.
    for k, x in enumerate(padded):
        out = lax.dynamic_update_index_in_dim(out, x, k, 0)
    return out


def _farthest_of(directions, table, number, count):
    x = table[number]
    return jnp.argmax(sum(x[k][None] * directions[:, k, None] for k in range(3)), axis=1).astype(jnp.int32)


_farthest = Primitive("jaxnsd_farthest")
_farthest.def_impl(_farthest_of)
_farthest.def_abstract_eval(lambda directions, *_: directions.update(shape=directions.shape[:1], dtype=np.dtype("int32"), weak_type=False))
lowered_as(_farthest, _farthest_of)
batching.primitive_batchers[_farthest] = lambda args, axes: (jax.vmap(_farthest_of, axes)(*args), 0)


class Point(NamedTuple):
    """Where on a solid: its unit (3,), and the number of the corner."""

    unit: object
    corner: object


def masks(kinds):
    """Matrices (k, 8, 3) of zeros and ones that make (scale, disc, axes, ball) of the sizes (3,) of solids of these kinds."""
    out = np.zeros((len(kinds), 8, 3))
    for k, kind in enumerate(kinds):
        scale, disc, axes, ball = PARTS[kind]
        for row, size in enumerate((*scale, disc, *(axes or (None,) * 3), ball)):
            if size is not None:
                out[k, row, size] = 1
    return out


def solids(frames, kinds, hulls):
    """`Solid` of shapes of these kinds at `Frames`; hulls: (k,) numbers of hulls, or None."""
    parts = jnp.sum(jnp.asarray(masks(kinds), frames.size.dtype) * frames.size[:, None, :], axis=2)
    return Solid(frames.R, frames.x, parts[:, :3], parts[:, 3], parts[:, 4:7], parts[:, 7], hulls)


def segments_of(solid):
    """(3,) half lengths of the segments along the axes: a disc has none in its plane."""
    return jnp.where((solid.disc > 0) & np.array([True, True, False]), 0.0, solid.scale)


def ellipsoid_of(solid):
    """(3,) half axes of the ellipsoid, of which a disc is a flat one."""
    return solid.axes + solid.disc * np.array([1.0, 1.0, 0.0], solid.axes.dtype)


def of_each(x, points):
    """An array of a solid with as many axes in front as there are of ``points`` (..., 3)."""
    return x.reshape((1,) * (points.ndim - 1) + x.shape)


def to_local(solid, a):
    """Vectors (..., 3) of the world in the frame of a solid."""
    return turn_back(of_each(solid.R, a), a)


def to_world(solid, a):
    """And the other way around."""
    return turn(of_each(solid.R, a), a)


def around(solid, m):
    """Where the disc and the ellipsoid reach along ``m`` (..., 3) in the frame of the solid: points (..., 3) of both."""
    flat = m * of_each(np.array([1.0, 1.0, 0.0], m.dtype), m)
    axes = of_each(solid.axes, m)
    square, stretched = dot(flat, flat), axes * m
    across = dot(stretched, stretched)
    there, round_ = square > 0, across > 0
    disc = solid.disc * flat / jnp.sqrt(jnp.where(there, square, 1.0))[..., None]
    return disc, axes * stretched / jnp.sqrt(jnp.where(round_, across, 1.0))[..., None]


def farthest(solid, corners, n):
    """``(Point, place (..., 3) in the world)``: what of a core is farthest along ``n`` (..., 3)."""
    m = to_local(solid, n)
    _, ellipsoid = around(solid, m)
    first = of_each(np.array([1.0, 0.0, 0.0], m.dtype), m)
    size = jnp.sqrt(dot(m[..., :2], m[..., :2]))[..., None]
    rim = jnp.where(size > 0, m / jnp.where(size > 0, size, 1.0), first)
    is_disc = of_each((solid.disc > 0) & np.array([True, True, False]), m)
    unit = jnp.where(is_disc, rim, jnp.where(m < 0, -1.0, 1.0).astype(m.dtype))
    local, corner = of_each(solid.scale, m) * unit + ellipsoid, jnp.zeros(m.shape[:-1], jnp.int32)
    if corners is not None:
        corner = corners.farthest(m)
        local = local + corners.at(corner)
    return Point(unit, corner), of_each(solid.x, m) + to_world(solid, local)


def reach(solid, corners):
    """Radius of a ball about the frame that contains a solid."""
    far = jnp.sqrt(dot(solid.scale, solid.scale)) + jnp.max(solid.axes) + solid.ball
    return far if corners is None else far + farthest_corner(corners)


def farthest_corner(corners):
    """How far the corners (k, 3) of a hull are from its frame, at most."""
    return jnp.sqrt(jnp.max(dot(corners, corners)))
