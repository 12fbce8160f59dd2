"""Rotations of bodies: unit quaternions (w, x, y, z), body to world, and rotation matrices, for whole arrays of them at once."""

import jax.numpy as jnp
import numpy as np
from jax import lax

from ..native.jax_internals import Primitive, ad, batching, lowered_as

#: The rotation that is none.
IDENTITY = (1.0, 0.0, 0.0, 0.0)


def product(p, r):
    """Quaternion product ``p r``, (..., 4): the rotation r, then p."""
    w, v, a, b = p[..., :1], p[..., 1:], r[..., :1], r[..., 1:]
    return jnp.concatenate([w * a - dot(v, b)[..., None], w * b + a * v + cross(v, b)], axis=-1)


def matrix(p):
    """Rotation matrices (..., 3, 3) of quaternions (..., 4), the same for every multiple of p: its length has no effect."""
    p = p * jnp.sqrt(2 / dot(p, p))[..., None]
    # Columns R e = e + w v x e + v x (v x e), in rows: of products of whole vectors the derivatives are such products, too.
    w, v, axes = p[..., :1, None], p[..., None, 1:], jnp.broadcast_to(jnp.eye(3, dtype=p.dtype), (*p.shape[:-1], 3, 3))
    across = cross(v, axes)
    return jnp.swapaxes(axes + w * across + cross(v, across), -1, -2)


def of_numbers(p):
    """`matrix`, of numbers: NumPy, for files and pictures."""
    p = np.asarray(p, float)
    w, x, y, z = np.moveaxis(p * np.sqrt(2 / np.sum(p * p, axis=-1, keepdims=True)), -1, 0)
    rows = (
        (1 - (y * y + z * z), x * y - w * z, x * z + w * y),
        (x * y + w * z, 1 - (x * x + z * z), y * z - w * x),
        (x * z - w * y, y * z + w * x, 1 - (x * x + y * y)),
    )
    return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)


def about(axis, angle):
    """Rotation matrices (..., 3, 3) by the ``angle`` (...) in rad about unit vectors ``axis`` (..., 3): Rodrigues' formula."""
    c, s = jnp.cos(angle)[..., None, None], jnp.sin(angle)[..., None, None]
    outer = axis[..., :, None] * axis[..., None, :]
    eye = jnp.broadcast_to(jnp.eye(3, dtype=axis.dtype), outer.shape)
    return c * eye + s * skew(axis) + (1 - c) * outer


def skew(a):
    """The matrices (..., 3, 3) with ``skew(a) b = a x b``."""
    x, y, z = (a[..., i] for i in range(3))
    zero = jnp.zeros_like(x)
    rows = ((zero, -z, y), (z, zero, -x), (-y, x, zero))
    return jnp.stack([jnp.stack(row, axis=-1) for row in rows], axis=-2)


def log(p):
    """Rotation vectors (..., 3) in rad of unit quaternions (..., 4), of length at most pi."""
    p = jnp.where(p[..., :1] < 0, -p, p)
    square = dot(p[..., 1:], p[..., 1:])
    small = square < 1e-12
    length = jnp.sqrt(jnp.where(small, 1.0, square))
    factor = jnp.where(small, 2 / p[..., 0], 2 * jnp.arctan2(length, p[..., 0]) / length)
    return factor[..., None] * p[..., 1:]


def quaternion(R):
    """Unit quaternion of one rotation matrix of numbers, NumPy."""
    R = np.asarray(R, float)
    # Of the four ways the one that divides by the largest of w, x, y, z.
    squares = np.array([1 + R[0, 0] + R[1, 1] + R[2, 2], *(1 + 2 * R[i, i] - np.trace(R) for i in range(3))])
    k = int(np.argmax(squares))
    if k == 0:
        p = np.array([squares[0], R[2, 1] - R[1, 2], R[0, 2] - R[2, 0], R[1, 0] - R[0, 1]])
    else:
        i = k - 1
        j, m = (i + 1) % 3, (i + 2) % 3
        p = np.zeros(4)
        p[0], p[1 + i], p[1 + j], p[1 + m] = R[m, j] - R[j, m], squares[k], R[j, i] + R[i, j], R[m, i] + R[i, m]
    return p / np.linalg.norm(p)


def quaternion_of(R):
    """Unit quaternion, with w >= 0, of a rotation matrix that may be traced."""
    trace = jnp.trace(R)
    w = jnp.stack([R[2, 1] - R[1, 2], R[0, 2] - R[2, 0], R[1, 0] - R[0, 1]])
    rest = R + R.T + jnp.diag(jnp.broadcast_to(1 - trace, (3,)))
    # Four multiples p_k p of the quaternion: the one of the largest of w, x, y, z is of no small length, also at half a turn.
    multiples = jnp.concatenate([jnp.concatenate([1 + trace[None], w])[None], jnp.concatenate([w[:, None], rest], axis=1)])
    p = multiples[jnp.argmax(jnp.diagonal(multiples))]
    return jnp.where(p[0] < 0, -p, p) / jnp.sqrt(jnp.sum(p * p))


def dot(a, b):
    """Scalar products of vectors (..., k)."""
    return jnp.sum(a * b, axis=-1)


def cross(a, b):
    """Vector products (..., 3). The way back of one is two more; of what it is written out in it would be thirty operations."""
    dtype = jnp.result_type(a, b)
    return _cross.bind(*jnp.broadcast_arrays(jnp.asarray(a, dtype), jnp.asarray(b, dtype)))


def _written_out(a, b):
    (x, y, z), (u, v, w) = ([lax.slice_in_dim(c, i, i + 1, axis=c.ndim - 1) for i in range(3)] for c in (a, b))
    return lax.concatenate([y * w - z * v, z * u - x * w, x * v - y * u], a.ndim - 1)


def _batched(args, axes):
    a, b = (x[None] if axis is None else jnp.moveaxis(x, axis, 0) for x, axis in zip(args, axes, strict=True))
    return cross(a, b), 0


_cross = Primitive("jaxnsd_cross")
_cross.def_impl(_written_out)
_cross.def_abstract_eval(lambda a, b: a.update(weak_type=False))
lowered_as(_cross, _written_out)
ad.defbilinear(_cross, lambda d, a, b: cross(b, d), lambda d, a, b: cross(d, a))
batching.primitive_batchers[_cross] = _batched


def compose(a, b):
    """Matrix products (..., 3, k) of (..., 3, 3) and (..., 3, k), as sums, which fuse with their neighbours."""
    return jnp.sum(a[..., :, :, None] * b[..., None, :, :], axis=-2)


def turn(R, a):
    """``R a`` for vectors (..., 3)."""
    return jnp.sum(R * a[..., None, :], axis=-1)


def turn_back(R, a):
    """``R^T a`` for vectors (..., 3)."""
    return jnp.sum(R * a[..., :, None], axis=-2)


def unit(a):
    """Vectors (..., 3) of length one."""
    return a / jnp.sqrt(dot(a, a))[..., None]


def length(a):
    """Lengths of vectors (..., 3); zero, with derivative zero, of none."""
    square = dot(a, a)
    there = square > 0
    return jnp.where(there, jnp.sqrt(jnp.where(there, square, 1.0)), 0.0)


def normalized(a, size, otherwise):
    """``a / size``; where the size is zero, the vectors ``otherwise``."""
    there = (size > 0)[..., None]
    return jnp.where(there, a / jnp.where(there, size[..., None], 1.0), otherwise)


def across(n):
    """Two unit vectors (..., 3) across unit vectors, and each other, that do not jump where those are about an axis of the world: else what
    rests would shake.
    """
    one, other = (jnp.broadcast_to(jnp.asarray(np.eye(3)[k], n.dtype), n.shape) for k in (0, 1))
    axis = jnp.where(jnp.abs(n[..., :1]) < 0.8, one, other)
    first = unit(axis - dot(axis, n)[..., None] * n)
    return first, cross(n, first)
