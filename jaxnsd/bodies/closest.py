"""Two convex solids: the closest points of their cores, or how deep they overlap.

Both are questions about the set of all differences ``b - a`` of points of the second and the first one. Apart, it is its point closest to
the origin, by the algorithm of Gilbert, Johnson and Keerthi (1988); overlapping, its side closest to the origin, by the expanding polytope
of van den Bergen (2001). Both need no more of a solid than its farthest point along a direction. What is found is a choice of points that
is not differentiated.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from .rotations import cross, dot
from .solids import Point, farthest

#: Steps of the first algorithm, and corners of the polytope of the second.
STEPS, CORNERS = 64, 28
FACES = 2 * CORNERS - 4
#: Columns of what is known of a difference: itself, then the points on both solids.
COLUMNS = 11
#: Of four points: all edges, all triangles, and the three that are left without one.
EDGES = np.array([(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)])
TRIANGLES = np.array([(0, 1, 3), (0, 2, 3), (1, 2, 3), (0, 1, 2)])
#: Sides of a tetrahedron, counterclockwise from outside.
SIDES = ((0, 2, 1), (0, 1, 3), (0, 3, 2), (1, 2, 3))


class Found(NamedTuple):
    """Three differences, the point of their triangle that is closest to the origin, and the normal there."""

    corners: object  # (3, COLUMNS)
    weights: object  # (3,)
    normal: object  # (3,) from the first solid to the second
    gap: object  # of the cores, m
    apart: object  # whether they are


class Pair(NamedTuple):
    """Two solids, the corners of their hulls (or None), and how large the pair is, in m."""

    a: object
    b: object
    corners_a: object
    corners_b: object
    scale: object

    def difference(self, n):
        """(COLUMNS,) of the difference that is the least along ``n``, which points from the first solid to the second."""
        (one, p), (two, q) = farthest(self.a, self.corners_a, n), farthest(self.b, self.corners_b, -n)
        numbers = jnp.stack([one.corner, two.corner]).astype(n.dtype)
        return jnp.concatenate([q - p, one.unit, two.unit, numbers])


def points_of(corners):
    """`Point` s on the first and the second solid of differences (..., COLUMNS)."""
    numbers = corners[..., 9:].astype(jnp.int32)
    return Point(corners[..., 3:6], numbers[..., 0]), Point(corners[..., 6:9], numbers[..., 1])


def tolerance(dtype):
    """Distances below this part of the size of a pair count as none."""
    return 1e-11 if dtype == jnp.float64 else 2e-6


def unit_of(a, otherwise):
    """``(a / |a|, |a|)`` of a vector (3,); of none ``otherwise``."""
    size = jnp.sqrt(dot(a, a))
    return jnp.where(size > 0, a / jnp.where(size > 0, size, 1.0), otherwise), size


def search(pair):
    """`Found` for one pair."""
    found, touching = _closest(pair)
    return lax.cond(touching, lambda: _deepest(pair), lambda: found)


# -------------------------------------------------------------------------------------------------------------------- apart
def _weights(points):
    """``(weights (4,), point (3,), square)``: what of the hull of four points (4, 3) but for its inside is closest to the origin."""
    starts, ends = points[EDGES[:, 0]], points[EDGES[:, 1]]
    along = ends - starts
    square = dot(along, along)
    s = jnp.clip(-dot(starts, along) / jnp.where(square > 0, square, 1.0), 0.0, 1.0)[:, None]
    of_edges = (1 - s) * np.eye(4)[EDGES[:, 0]] + s * np.eye(4)[EDGES[:, 1]]
    p, q, r = (points[TRIANGLES[:, i]] for i in range(3))
    normal = cross(q - p, r - p)
    area = dot(normal, normal)
    parts = jnp.stack([dot(cross(q, r), normal), dot(cross(r, p), normal), dot(cross(p, q), normal)], axis=1)
    parts = parts / jnp.where(area > 0, area, 1.0)[:, None]
    of_sides = sum(parts[:, i : i + 1] * np.eye(4)[TRIANGLES[:, i]] for i in range(3))
    weights = jnp.concatenate([of_edges, of_sides]).astype(points.dtype)
    at = jnp.sum(weights[:, :, None] * points[None], axis=1)
    there = jnp.concatenate([jnp.ones(6, bool), (area > 0) & jnp.all(parts > 0, axis=1)])
    squares = jnp.where(there, dot(at, at), jnp.inf)
    best = jnp.argmin(squares)
    return weights[best], at[best], squares[best]


def _within(points):
    """Whether the origin is inside of the tetrahedron of four points (4, 3)."""
    p, q, r, s = points
    volumes = jnp.stack([dot(q, cross(r, s)), -dot(p, cross(r, s)), dot(p, cross(q, s)), -dot(p, cross(q, r))])
    return jnp.all(volumes > 0) | jnp.all(volumes < 0)


def _closest(pair):
    """``(Found, whether the cores touch or overlap)``."""
    start, _ = unit_of(pair.b.x - pair.a.x, jnp.asarray([0.0, 0.0, 1.0], pair.b.x.dtype))
    first = pair.difference(start)
    tol = tolerance(start.dtype) * pair.scale
    corners, weights = jnp.stack([first] * 3), jnp.asarray([1.0, 0.0, 0.0], start.dtype)
    left = np.array([[j for j in range(4) if j != i] for i in range(4)])

    def step(state):
        k, corners, weights, v, _, _ = state
        n, distance = unit_of(v, start)
        new = pair.difference(n)
        four = jnp.concatenate([corners, new[None]])
        points = four[:, :3]
        found, at, square = _weights(points)
        inside = _within(points)
        # Nothing is closer, by what is gained or by what is computed.
        end = ~inside & ((distance - dot(n, new[:3]) <= tol) | ((square >= distance * distance) & (k > 0)))
        # What has no weight makes place.
        keep = jnp.asarray(left)[jnp.argmin(found)]
        best, kept = four[jnp.argmax(found)], found[keep]
        three = jnp.where((kept > 0)[:, None], four[keep], best[None])
        touching = inside | (~end & (square <= (1e3 * tol) ** 2))
        corners, weights, v = (jnp.where(end, old, now) for old, now in ((corners, three), (weights, kept), (v, at)))
        return k + 1, corners, weights, v, end, touching

    def goes_on(state):
        return (state[0] < STEPS) & ~(state[4] | state[5])

    begin = (jnp.int32(0), corners, weights, first[:3], jnp.zeros((), bool), dot(first[:3], first[:3]) <= 0)
    _, corners, weights, v, _, touching = lax.while_loop(goes_on, step, begin)
    normal, distance = unit_of(v, start)
    return Found(corners, weights, normal, distance, jnp.ones((), bool)), touching


# -------------------------------------------------------------------------------------------------------------- overlapping
class Polytope(NamedTuple):
    """A polytope of triangles, their corners counterclockwise from outside, in places of which some are free."""

    corners: object  # (CORNERS, COLUMNS)
    sides: object  # (FACES, 3) numbers of corners
    normal: object  # (FACES, 3) outwards
    offset: object  # (FACES,) from the origin; infinite of a side without area
    there: object  # (FACES,)


def _tetrahedron(pair):
    """Four differences (4, COLUMNS) that span a volume, the last one to the right of the others."""
    up, _ = unit_of(pair.b.x - pair.a.x, jnp.asarray([0.0, 0.0, 1.0], pair.b.x.dtype))

    def farther(n, of):
        two = jnp.stack([pair.difference(n), pair.difference(-n)])
        size = jnp.abs(of(two[:, :3]))
        return jnp.where(size[0] >= size[1], two[0], two[1])

    p, q = pair.difference(up), pair.difference(-up)
    axis, _ = unit_of(q[:3] - p[:3], up)
    least = (jnp.arange(3) == jnp.argmin(jnp.abs(axis))).astype(axis.dtype)
    aside, _ = unit_of(cross(axis, least), up)
    r = farther(aside, lambda w: dot(w - p[:3], aside))
    normal, _ = unit_of(cross(q[:3] - p[:3], r[:3] - p[:3]), up)
    s = farther(normal, lambda w: dot(w - p[:3], normal))
    turned = dot(normal, s[:3] - p[:3]) < 0
    return jnp.stack([jnp.where(turned, q, p), jnp.where(turned, p, q), r, s])


def _side(p, q, r, flat):
    """Normals and offsets of triangles; without area none, and infinite."""
    normal = cross(q - p, r - p)
    size = jnp.sqrt(dot(normal, normal))
    there = size > flat
    normal = jnp.where(there[..., None], normal / jnp.where(there, size, 1.0)[..., None], 0.0)
    return normal, jnp.where(there, dot(normal, p), jnp.inf)


def _begin(pair, flat):
    four = _tetrahedron(pair)
    sides = np.zeros((FACES, 3), np.int32)
    sides[:4] = SIDES
    normal, offset = _side(*(four[:, :3][sides[:4, i]] for i in range(3)), flat)
    corners = jnp.pad(four, ((0, CORNERS - 4), (0, 0)))
    more = FACES - 4
    there = jnp.arange(FACES) < 4
    return Polytope(corners, jnp.asarray(sides), jnp.pad(normal, ((0, more), (0, 0))), jnp.pad(offset, (0, more)), there)


def _with_corner(polytope, k, new, flat, close):
    """``(polytope, fine)`` with one more corner, in place k: what it sees of the polytope gives way to sides that meet in it."""
    corners, sides, normal, offset, there = polytope
    w = new[:3]
    visible = there & (dot(normal, w) - offset > close)
    corners = lax.dynamic_update_slice_in_dim(corners, new[None], k, axis=0)
    # Edges of what is seen beyond which nothing is seen.
    start, end = sides.reshape(-1), jnp.roll(sides, -1, axis=1).reshape(-1)
    own = jnp.repeat(visible, 3)
    none = CORNERS**2
    seen = jnp.zeros((none + 1,), bool).at[jnp.where(own, start * CORNERS + end, none)].set(True)
    horizon = own & ~seen[end * CORNERS + start]
    count = jnp.cumsum(horizon, dtype=jnp.int32)
    edges = jnp.zeros((FACES + 1,), jnp.int32).at[jnp.where(horizon, count - 1, FACES)].set(jnp.arange(3 * FACES, dtype=jnp.int32))
    # Each gets a place that is free.
    kept = there & ~visible
    place = jnp.cumsum(~kept, dtype=jnp.int32) - 1
    filled = ~kept & (place < count[-1])
    edge = edges[jnp.clip(place, 0, FACES)]
    i, j = start[edge], end[edge]
    points = corners[:, :3]
    side, at = _side(points[i], points[j], w[None], flat)
    sides = jnp.where(filled[:, None], jnp.stack([i, j, jnp.full_like(i, k)], axis=1), sides)
    normal, offset = jnp.where(filled[:, None], side, normal), jnp.where(filled, at, offset)
    return Polytope(corners, sides, normal, offset, kept | filled), (count[-1] >= 3) & (count[-1] <= place[-1] + 1)


def _deepest(pair):
    """`Found` of cores that touch or overlap."""
    dtype = pair.b.x.dtype
    eps, tol = jnp.finfo(dtype).eps, 10 * tolerance(dtype) * pair.scale
    flat, close = 64 * eps * pair.scale**2, 64 * eps * pair.scale

    def nearest(polytope):
        offset = jnp.where(polytope.there, polytope.offset, jnp.inf)
        best = jnp.argmin(offset)
        return best, offset[best]

    def of(polytope):
        best, offset = nearest(polytope)
        return polytope.corners[polytope.sides[best]], -polytope.normal[best], offset

    def step(state):
        k, polytope, found, new, _ = state
        polytope, fine = _with_corner(polytope, k, new, flat, close)
        corners, n, offset = (jnp.where(fine, now, old) for old, now in zip(found, of(polytope), strict=True))
        new = pair.difference(n)
        return k + 1, polytope, (corners, n, offset), new, ~fine | (-dot(n, new[:3]) - offset <= tol)

    polytope = _begin(pair, flat)
    found = of(polytope)
    new = pair.difference(found[1])
    start = jnp.int32(4), polytope, found, new, -dot(found[1], new[:3]) - found[2] <= tol
    _, _, (corners, n, offset), _, _ = lax.while_loop(lambda state: (state[0] < CORNERS) & ~state[4], step, start)
    p, q, r = corners[:, :3]
    normal = cross(q - p, r - p)
    parts = jnp.stack([dot(cross(q, r), normal), dot(cross(r, p), normal), dot(cross(p, q), normal)])
    return Found(corners, parts / dot(normal, normal), n, -offset, jnp.zeros((), bool))
