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

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..native.marks import when_needed
from .rotations import across, dot, turn
from .solids import ellipsoid_of, segments_of

#: Steps of Newton's method at most; its largest step; how much of the way to where a weight of a corner is zero it goes.
STEPS, LARGEST, SHORT = 80, 0.3, 0.95
#: The first m, in parts of the size of the pair, and by how much it shrinks: faster, one pose in a hundred is not solved.
WIDE, SHRINK = 1e-3, 0.5
#: And from a direction that is known about.
NARROW = 1e-5
#: Of larger hulls: tilts of a direction (24, 2), how they shrink from round to round, rounds at most, corners that are kept beside theirs.
_RINGS = [(width, 0.4 * k + np.pi / 3 * np.arange(6)) for k, width in enumerate((0.5, 0.15, 0.04, 0.01))]
TILTS = np.concatenate([width * np.stack([np.cos(at), np.sin(at)], axis=1) for width, at in _RINGS])
NARROWER, ROUNDS, SEEN = 0.3, 8, 8
#: Corners that are taken of each.
NEAREST = len(TILTS) + SEEN


def least(dtype):
    """The last m, in parts of the size of a pair."""
    return 1e-11 if dtype == jnp.float64 else 1e-7


class Sum(NamedTuple):
    """What the separation of two solids is a sum of, in the world."""

    c: object  # (3,)
    segments: object  # (6, 3): of the first solid, then of the second
    ellipsoids: object  # (2, 3, 3)
    hulls: tuple  # of (3, k), of those solids that have corners
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
    """`Sum` of two `Solid` s, with `solids.Corners` or None."""
    first, second = (jnp.swapaxes(solid.R, 0, 1) for solid in (a, b))
    segments = jnp.concatenate([segments_of(s)[:, None] * axes for s, axes in ((a, first), (b, second))])
    ellipsoids = jnp.stack([ellipsoid_of(s)[:, None] * axes for s, axes in ((a, first), (b, second))])
    having = [(solid, corners, sign) for solid, corners, sign in ((a, corners_a, 1.0), (b, corners_b, -1.0)) if corners is not None]
    hulls = tuple(jnp.stack([sign * heights(corners.all(), row) for row in solid.R]) for solid, corners, sign in having)
    counted = tuple(_counted(corners.all()) for _, corners, _ in having)
    return Sum(b.x - a.x, segments, ellipsoids, hulls, counted, scale)


def _counted(corners):
    """1 for each of the corners (3, k), 0 for those that repeat the last one, as they do in a table with hulls of more corners."""
    differs = jnp.any(corners[:, :-1] != corners[:, -1:], axis=0)
    return jnp.concatenate([differs, jnp.ones((1,), bool)]).astype(corners.dtype)


def heights(hull, n):
    """(k,) of the corners (3, k) of a hull along n. A coordinate of all of them lies in a row, which vector registers take as it is."""
    return hull[0] * n[0] + hull[1] * n[1] + hull[2] * n[2]


def separation(of, n):
    """s(n)."""
    stretched = turn(of.ellipsoids, n[None])
    s = dot(of.c, n) - jnp.sum(jnp.abs(dot(of.segments, n[None]))) - jnp.sum(jnp.sqrt(dot(stretched, stretched)))
    return s - sum(jnp.max(heights(hull, n)) for hull in of.hulls)


def difference(of, n):
    """(3,) from the point of the first solid that is farthest along n to that of the second one that is farthest against it."""
    x, stretched = dot(of.segments, n[None]), turn(of.ellipsoids, n[None])
    square = dot(stretched, stretched)
    out = stretched / jnp.sqrt(jnp.where(square > 0, square, 1.0))[:, None]
    d = of.c - jnp.sum(jnp.where(x < 0, -1.0, 1.0)[:, None] * of.segments, axis=0) - jnp.sum(out[:, :, None] * of.ellipsoids, axis=(0, 1))
    return d - sum(hull[:, jnp.argmax(heights(hull, n))] for hull in of.hulls)


def begin(of, n, m):
    """`Found` to begin with."""
    x, stretched = dot(of.segments, n[None]), turn(of.ellipsoids, n[None])
    all_ = [heights(hull, n) for hull in of.hulls]
    levels = [jnp.max(height) + 2 * m for height in all_]
    weights = [m * counts / (level - height) for level, height, counts in zip(levels, all_, of.counted, strict=True)]
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
    return d - sum(weighted(hull, w) for w, hull in zip(found.weights, of.hulls, strict=True))


def weighted(hull, weights):
    """(3,) sum of the corners (3, k) of a hull with weights (k,)."""
    return jnp.stack([jnp.sum(weights * x) for x in hull])


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
    height = level - heights(hull, found.n)
    pull, target = weights / height, found.m * counted / height
    stiff, more = jnp.sum(pull), jnp.sum(target) - 1
    middle = weighted(hull, pull) / stiff
    one, two = (heights(hull, x) - dot(middle, x) for x in t)
    product = jnp.sum(pull * one * two)
    matrix = jnp.stack([jnp.sum(pull * one * one), product, product, jnp.sum(pull * two * two)]).reshape(2, 2)
    gradient = turn(t, more * middle - weighted(hull, target))

    def moved(dn):
        rise = more / stiff + dot(middle, dn)
        higher = rise - heights(hull, dn)
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
        levels.append(jnp.maximum(level + alpha * rise, jnp.max(heights(hull, new)) + 1e-3 * m))
        weights.append(w + alpha * change)
    smaller = jnp.maximum(m * SHRINK, least(n.dtype) * of.scale)
    return Found(new, y, z, tuple(levels), tuple(weights), smaller), size


def climbed(of, n, m):
    """`Found` where the separation is the largest of all near n.

    Of hulls of many corners those few are taken that are farthest along n and along directions that are tilted from it; where one of the
    others turns out to be farther, once more, with it and with smaller tilts.
    """
    if not any(hull.shape[1] > NEAREST for hull in of.hulls):
        return _climbed(of, n, m)[0]
    shapes, _ = jax.eval_shape(lambda: _climbed(_nearest(of, n, jnp.zeros((len(of.hulls), SEEN), jnp.int32), 1.0)[0], n, m))
    nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    seen = jnp.stack([jnp.full((SEEN,), _farthest(hull, n)) for hull in of.hulls])

    def step(state):
        k, width, found, seen, _, _ = state
        few, numbers = _nearest(of, found.n, seen, width)
        found, ends = _climbed(few, found.n, jnp.where(k == 0, m, jnp.minimum(m, NARROW * of.scale)))
        farther = jnp.stack([_farthest(hull, found.n) for hull in of.hulls])
        seen = lax.dynamic_update_index_in_dim(seen, farther, (k + 1) % SEEN, 1)
        ends &= separation(few, found.n) - separation(of, found.n) <= least(n.dtype) * of.scale
        return k + 1, NARROWER * width, found, seen, numbers, ends

    numbers = jnp.zeros((len(of.hulls), NEAREST), jnp.int32)
    first = jnp.int32(0), jnp.ones((), n.dtype), nothing._replace(n=n), seen, numbers, jnp.bool_(False)
    _, _, found, _, numbers, ends = lax.while_loop(lambda state: (state[0] < ROUNDS) & ~state[-1], step, first)

    def of_few():
        weights = (jnp.zeros_like(hull[0]).at[at].add(w) for hull, at, w in zip(of.hulls, numbers, found.weights, strict=True))
        return found._replace(weights=tuple(weights))

    # One pose in some hundreds. Of solids that overlap the few may lead away from n, to a smaller separation.
    of_all = when_needed(lambda *args: _climbed(*args)[0])
    higher = separation(of, found.n) >= separation(of, n) - least(n.dtype) * of.scale
    return lax.cond(ends & higher, of_few, lambda: of_all(of, n, m))


def _farthest(hull, n):
    """Number of the corner that is farthest along n."""
    return jnp.argmax(heights(hull, n)).astype(jnp.int32)


def _nearest(of, n, seen, width):
    """`Sum` with few corners of each hull (`NEAREST`), ``seen`` (h, `SEEN`) among them, and their numbers; width: of the tilts."""
    t = jnp.stack(across(n))
    tilted = n[None] + width * turn(jnp.swapaxes(t, 0, 1)[None], jnp.asarray(TILTS, n.dtype))
    numbers = [
        jnp.concatenate([lax.map(lambda d, hull=hull: _farthest(hull, d), tilted), own]) for hull, own in zip(of.hulls, seen, strict=True)
    ]
    hulls = tuple(hull[:, at] for hull, at in zip(of.hulls, numbers, strict=True))
    return of._replace(hulls=hulls, counted=tuple(jnp.ones_like(hull[0]) for hull in hulls)), jnp.stack(numbers)


def _climbed(of, n, m):
    """``(Found, whether it does not change any more)``, with all corners."""
    last, tiny = least(n.dtype) * of.scale, 1e-10 if n.dtype == jnp.float64 else 1e-5

    def step(state):
        k, found, _ = state
        new, size = newton_step(of, found)
        return k + 1, new, (found.m <= last) & (size <= tiny)

    def goes_on(state):
        return (state[0] < STEPS) & ~state[2]

    return lax.while_loop(goes_on, step, (jnp.int32(0), begin(of, n, m), jnp.bool_(False)))[1:]


def _spread(count):
    """Unit vectors (count, 3), about as far from each other: a spiral."""
    k = np.arange(count)
    z, angle = 1 - (2 * k + 1) / count, k * np.pi * (3 - np.sqrt(5))
    return np.stack([np.sqrt(1 - z * z) * np.cos(angle), np.sqrt(1 - z * z) * np.sin(angle), z], axis=1)


#: Directions in which solids are looked at.
TABLE = _spread(128)


def best_of_table(of, axes, enough=np.inf):
    """``(direction (3,), separation along it)``, the largest one: of what is between the middles of both solids, of their ``axes`` (6, 3)
    to both sides, and of a table; the first one that is larger than ``enough``."""
    distance = jnp.sqrt(dot(of.c, of.c))
    there = distance > 0
    middle = jnp.where(there, of.c / jnp.where(there, distance, 1.0), axes[0])
    all_ = jnp.concatenate([middle[None], axes, -axes, jnp.asarray(TABLE, of.c.dtype)])

    def look(state):
        k, best, at = state
        n = lax.dynamic_index_in_dim(all_, k, keepdims=False)
        s = separation(of, n)
        better = s > best
        return k + 1, jnp.where(better, s, best), jnp.where(better, n, at)

    first = (jnp.int32(0), jnp.full((), -jnp.inf, of.c.dtype), middle)
    _, s, n = lax.while_loop(lambda state: (state[0] < all_.shape[0]) & ~(state[1] > enough), look, first)
    return n, s


def axes_of(a, b):
    """(6, 3) axes of the frames of two solids."""
    return jnp.concatenate([jnp.swapaxes(solid.R, 0, 1) for solid in (a, b)])
