"""Two convex solids: the unit vector along which they are farthest apart.

Along a unit vector n from the first to the second their *separation* is

    s(n) = c . n - sum_i |g_i . n| - sum_k |E_k n| - sum_h max_v v . n

with the difference c of their places, and the segments g, the ellipsoids E (a disc is a flat one) and the corners v that they are sums of.
Its largest value is their distance, or minus how deep they overlap; any value of it is a lower bound of the gap. Apart there is one largest
value, overlapping there may be several.

s has kinks where an edge or a side is touched. Newton's method for sums of norms (Andersen, Christiansen, Conn and Overton 2000) and the
interior point method for the corners run through them without asking which: the places y of the points that touch, on segments,
ellipsoids and among corners, are unknowns as n is, and

    sqrt(|E n|^2 + m^2) y = E n,        (h - v . n) y_v = m,        c - sum of all points = s n

is solved with m going to zero.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from .rotations import across, dot, turn
from .solids import ellipsoid_of, segments_of

#: Steps of Newton's method at most; its largest step; how much of the way to where a weight of a corner is zero it goes.
STEPS, LARGEST, SHORT = 80, 0.3, 0.95
#: The first m, in parts of the size of the pair, and by how much it shrinks: faster, one pose in a hundred is not solved.
WIDE, SHRINK = 1e-3, 0.5


def least(dtype):
    """The last m, in parts of the size of a pair."""
    return 1e-11 if dtype == jnp.float64 else 1e-7


class Sum(NamedTuple):
    """What the separation of two solids is a sum of, in the world."""

    c: object  # (3,)
    segments: object  # (6, 3): of the first solid, then of the second
    ellipsoids: object  # (2, 3, 3)
    hulls: tuple  # of (k, 3), of those solids that have corners
    counted: tuple  # of (k,): 1, or 0 where a corner repeats the last one
    scale: object  # size of the pair


class Found(NamedTuple):
    """A direction, and where on the solids it is that they touch."""

    n: object  # (3,)
    y: object  # (6,) on the segments, in [-1, 1]
    z: object  # (2, 3) in the unit balls of the ellipsoids
    levels: tuple  # the largest v . n of each hull
    weights: tuple  # (k,) of its corners
    m: object


def sum_of(a, b, corners_a, corners_b, scale):
    """`Sum` of two `Solid` s."""
    first, second = (jnp.swapaxes(solid.R, 0, 1) for solid in (a, b))
    segments = jnp.concatenate([segments_of(s)[:, None] * axes for s, axes in ((a, first), (b, second))])
    ellipsoids = jnp.stack([ellipsoid_of(s)[:, None] * axes for s, axes in ((a, first), (b, second))])
    having = [(solid, corners, sign) for solid, corners, sign in ((a, corners_a, 1.0), (b, corners_b, -1.0)) if corners is not None]
    hulls = tuple(sign * turn(solid.R[None], corners) for solid, corners, sign in having)
    counted = tuple(_counted(corners) for _, corners, _ in having)
    return Sum(b.x - a.x, segments, ellipsoids, hulls, counted, scale)


def _counted(corners):
    """1 for each of the corners (k, 3), 0 for those that repeat the last one, as they do in a table with hulls of more corners."""
    differs = jnp.any(corners[:-1] != corners[-1:], axis=1)
    return jnp.concatenate([differs, jnp.ones((1,), bool)]).astype(corners.dtype)


def separation(of, n):
    """s(n)."""
    stretched = turn(of.ellipsoids, n[None])
    s = dot(of.c, n) - jnp.sum(jnp.abs(dot(of.segments, n[None]))) - jnp.sum(jnp.sqrt(dot(stretched, stretched)))
    return s - sum(jnp.max(dot(hull, n[None])) for hull in of.hulls)


def difference(of, n):
    """(3,) from the point of the first solid that is farthest along n to that of the second one that is farthest against it."""
    x, stretched = dot(of.segments, n[None]), turn(of.ellipsoids, n[None])
    square = dot(stretched, stretched)
    out = stretched / jnp.sqrt(jnp.where(square > 0, square, 1.0))[:, None]
    d = of.c - jnp.sum(jnp.where(x < 0, -1.0, 1.0)[:, None] * of.segments, axis=0) - jnp.sum(out[:, :, None] * of.ellipsoids, axis=(0, 1))
    return d - sum(hull[jnp.argmax(dot(hull, n[None]))] for hull in of.hulls)


def begin(of, n, m):
    """`Found` to begin with."""
    x, stretched = dot(of.segments, n[None]), turn(of.ellipsoids, n[None])
    heights = [dot(hull, n[None]) for hull in of.hulls]
    levels = [jnp.max(height) + 2 * m for height in heights]
    weights = [m * counts / (level - height) for level, height, counts in zip(levels, heights, of.counted, strict=True)]
    return Found(
        n,
        x / jnp.sqrt(x * x + m * m),
        stretched / jnp.sqrt(dot(stretched, stretched) + m * m)[:, None],
        tuple(levels),
        tuple(w / jnp.sum(w) for w in weights),
        m,
    )


def apart(of, found):
    """(3,) from the point of the first solid to that of the second."""
    d = of.c - jnp.sum(found.y[:, None] * of.segments, axis=0) - jnp.sum(found.z[:, :, None] * of.ellipsoids, axis=(0, 1))
    return d - sum(jnp.sum(w[:, None] * hull, axis=0) for w, hull in zip(found.weights, of.hulls, strict=True))


def _of_norms(of, found, t):
    """``(gradient (2,), matrix (2, 2), what moves y and z)``: of the norms, in the directions t (2, 3) across n."""
    n, y, z, m = found.n, found.y, found.z, found.m
    x, stretched = dot(of.segments, n[None]), turn(of.ellipsoids, n[None])
    r, q = jnp.sqrt(x * x + m * m), jnp.sqrt(dot(stretched, stretched) + m * m)
    # (6, 2) and (2, 2, 3): how both change in the two directions.
    of_x, of_z = dot(of.segments[:, None], t[None]), turn(of.ellipsoids[:, None], t[None])
    gradient = -jnp.sum((x / r)[:, None] * of_x, axis=0) - jnp.sum(dot(of_z, (stretched / q[:, None])[:, None]), axis=0)
    stiff = (1 - y * x / r) / r
    matrix = jnp.sum(stiff[:, None, None] * of_x[:, :, None] * of_x[:, None], axis=0)
    along, own = dot(of_z, stretched[:, None]) / (q * q)[:, None], dot(of_z, z[:, None])
    product = 0.5 * (along[:, :, None] * own[:, None] + own[:, :, None] * along[:, None])
    matrix = matrix + jnp.sum(dot(of_z[:, :, None], of_z[:, None]) / q[:, None, None] - product, axis=0)

    def moved(dn):
        dx, dz = dot(of.segments, dn[None]), turn(of.ellipsoids, dn[None])
        inward = dot(stretched, dz) / q
        return x / r + stiff * dx - y, (stretched + dz - z * inward[:, None]) / q[:, None] - z

    return gradient, matrix, moved


def _of_hull(hull, counted, level, weights, found, t):
    """The same of a hull: ``(gradient, matrix, what moves its level and weights)``."""
    height = level - dot(hull, found.n[None])
    pull, target = weights / height, found.m * counted / height
    stiff, more = jnp.sum(pull), jnp.sum(target) - 1
    middle = jnp.sum(pull[:, None] * hull, axis=0) / stiff
    arms = dot((hull - middle[None])[:, None], t[None])
    matrix = jnp.sum(pull[:, None, None] * arms[:, :, None] * arms[:, None], axis=0)
    gradient = turn(t, more * middle - jnp.sum(target[:, None] * hull, axis=0))

    def moved(dn):
        rise = more / stiff + dot(middle, dn)
        higher = rise - dot(hull, dn[None])
        change = target - weights - pull * higher
        # How far all heights and weights stay positive.
        reach = [jnp.min(jnp.where(d < 0, -x / jnp.where(d < 0, d, 1.0), jnp.inf)) for x, d in ((height, higher), (weights, change))]
        return rise, change, SHORT * jnp.minimum(*reach)

    return gradient, matrix, moved


def newton_step(of, found):
    """``(Found, size of the step)``."""
    n, m = found.n, found.m
    t = jnp.stack(across(n))
    parts = [_of_norms(of, found, t)]
    parts += [_of_hull(*x, found, t) for x in zip(of.hulls, of.counted, found.levels, found.weights, strict=True)]
    gradient, matrix = (sum(x) for x in list(zip(*parts, strict=True))[:2])
    b = turn(t, of.c) + gradient
    gap = dot(apart(of, found), n)
    p, q, r = matrix[0, 0] + gap, matrix[1, 1] + gap, matrix[0, 1]
    # Where overlapping solids are farther apart in both directions of an axis, uphill.
    lowest = 0.5 * (p + q) - jnp.sqrt(0.25 * (p - q) ** 2 + r * r)
    shift = jnp.maximum(1e-3 * of.scale - lowest, 0.0)
    p, q = p + shift, q + shift
    det = p * q - r * r
    x, y = (q * b[0] - r * b[1]) / det, (p * b[1] - r * b[0]) / det
    size = jnp.sqrt(x * x + y * y)
    dn = x * t[0] + y * t[1]
    dy, dz = parts[0][2](dn)
    of_hulls = [part[2](dn) for part in parts[1:]]
    alpha = jnp.minimum(1.0, LARGEST / jnp.maximum(size, LARGEST))
    for _, _, reach in of_hulls:
        alpha = jnp.minimum(alpha, reach)
    new = n + alpha * dn
    new = new / jnp.sqrt(dot(new, new))
    y, z = found.y + alpha * dy, found.z + alpha * dz
    y = y / jnp.maximum(jnp.abs(y), 1.0)
    z = z / jnp.maximum(jnp.sqrt(dot(z, z)), 1.0)[:, None]
    levels, weights = [], []
    for hull, level, w, (rise, change, _) in zip(of.hulls, found.levels, found.weights, of_hulls, strict=True):
        levels.append(jnp.maximum(level + alpha * rise, jnp.max(dot(hull, new[None])) + 1e-3 * m))
        weights.append(w + alpha * change)
    smaller = jnp.maximum(m * SHRINK, least(n.dtype) * of.scale)
    return Found(new, y, z, tuple(levels), tuple(weights), smaller), size


def climbed(of, n, m):
    """`Found` where the separation is the largest of all near n."""
    last, tiny = least(n.dtype) * of.scale, 1e-10 if n.dtype == jnp.float64 else 1e-5

    def step(state):
        k, found, _ = state
        new, size = newton_step(of, found)
        return k + 1, new, (found.m <= last) & (size <= tiny)

    def goes_on(state):
        return (state[0] < STEPS) & ~state[2]

    return lax.while_loop(goes_on, step, (jnp.int32(0), begin(of, n, m), jnp.bool_(False)))[1]


def _spread(count):
    """Unit vectors (count, 3), about as far from each other: a spiral."""
    k = np.arange(count)
    z, angle = 1 - (2 * k + 1) / count, k * np.pi * (3 - np.sqrt(5))
    return np.stack([np.sqrt(1 - z * z) * np.cos(angle), np.sqrt(1 - z * z) * np.sin(angle), z], axis=1)


#: Directions in which solids are looked at.
TABLE = _spread(128)


def best_of_table(of, axes):
    """The direction (3,) of the largest separation: of a table, of the ``axes`` (6, 3) of both solids, to both sides, and of what is
    between their middles."""
    distance = jnp.sqrt(dot(of.c, of.c))
    there = distance > 0
    middle = jnp.where(there, of.c / jnp.where(there, distance, 1.0), axes[0])
    all_ = jnp.concatenate([jnp.asarray(TABLE, of.c.dtype), axes, -axes, middle[None]])

    def look(state):
        k, best, at = state
        n = lax.dynamic_index_in_dim(all_, k, keepdims=False)
        s = separation(of, n)
        better = s > best
        return k + 1, jnp.where(better, s, best), jnp.where(better, n, at)

    first = (jnp.int32(0), jnp.full((), -jnp.inf, of.c.dtype), middle)
    return lax.while_loop(lambda state: state[0] < all_.shape[0], look, first)[2]


def axes_of(a, b):
    """(6, 3) axes of the frames of two solids."""
    return jnp.concatenate([jnp.swapaxes(solid.R, 0, 1) for solid in (a, b)])
