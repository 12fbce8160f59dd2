"""Two convex solids of corners and segments alone, hulls, boxes and capsules without their balls: where they are closest, exactly.

All differences of a point of the second solid and one of the first fill a polyhedron. Apart, its point closest to the origin says how far
the solids are from each other. It is found among triangles of its corners (Gilbert, Johnson and Keerthi 1988): a triangle takes the corner
that is farthest against its own closest point, and gives one away.

Where the solids touch or overlap, that point says nothing. There the closest point is looked for from places outside, by L along a
direction n from the origin, and n is turned to where it was found until it stays: then along n the separation (see `directions`) is the
largest one nearby. L is of the size of the overlap, so that n turns as fast as it would apart.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from . import directions
from .rotations import cross, dot, turn, turn_back

#: Corners that are taken at most.
STEPS = 96
#: Pairs and triangles of four corners, the new one the last, and for each corner of a triangle the two others.
EDGES = np.array([(3, 0), (3, 1), (3, 2), (0, 1), (1, 2), (2, 0)])
TRIANGLES = np.array([(3, 0, 1), (3, 1, 2), (3, 2, 0), (0, 1, 2)])


def near(dtype):
    """Solids that are not farther apart than this part of the size of a pair are looked at as those that touch."""
    return 1e-5 if dtype == jnp.float64 else 3e-3


class Difference(NamedTuple):
    """The differences of the points of two solids."""

    c: object  # (3,)
    segments: object  # (6, 3): of the first solid, then of the second
    turns: tuple  # of (3, 3), of those solids that have corners, the first one's negative
    hulls: tuple  # their `solids.Corners`
    scale: object  # size of the pair


class Triangle(NamedTuple):
    """Three corners of the differences, of which some may be the same, and the weights with which they make the closest point."""

    place: object  # (3, 3)
    sign: object  # (3, 6) on the segments, 1 or -1
    corner: object  # (3, h) number of the corner of each hull
    weight: object  # (3,)


class Search(NamedTuple):
    """Where a search is."""

    k: object
    triangle: object
    origin: object  # (3,) from where the closest point is looked for
    square: object  # of its distance from there
    base: object  # separation along the direction in which that place is; minus infinity where it is the origin itself
    n: object  # (3,) along which the separation is the largest one so far
    s: object  # that separation
    stalled: object  # whether the last corner brought nothing
    inside: object  # whether the place is inside of the polyhedron
    ends: object


def difference_of(pair):
    """`Difference` of a `solids.Pair`."""
    of = directions.sum_of(pair.a, pair.b, None, None, pair.scale)
    having = [
        (x.R, corners, sign) for x, corners, sign in ((pair.a, pair.corners_a, -1.0), (pair.b, pair.corners_b, 1.0)) if corners is not None
    ]
    return Difference(of.c, of.segments, tuple(sign * R for R, _, sign in having), tuple(x for _, x, _ in having), pair.scale)


def most(of):
    """How many corners the differences have, at most."""
    return math.prod(hull.table.shape[2] for hull in of.hulls) * 8 ** (2 - len(of.hulls))


def farthest(of, n):
    """``(place (3,), sign (6,), corner (h,))``: the corner of the differences that is farthest against n."""
    sign = jnp.where(dot(of.segments, n[None]) < 0, -1.0, 1.0).astype(n.dtype)
    corner = jnp.stack([hull.farthest(turn_back(R, -n)) for R, hull in zip(of.turns, of.hulls, strict=True)])
    return _place(of, sign, corner), sign, corner


def difference(of, n):
    """(3,) of that corner."""
    return farthest(of, n)[0]


def _place(of, sign, corner):
    """(3,) of a corner of the differences."""
    place = of.c - jnp.sum(sign[:, None] * of.segments, axis=0)
    for k, (R, hull) in enumerate(zip(of.turns, of.hulls, strict=True)):
        place = place + turn(R, hull.at(corner[k]))
    return place


def alone(of, n):
    """`Triangle` of the corner that is farthest against n, three times."""
    return Triangle(*(jnp.stack([x] * 3) for x in farthest(of, n)), jnp.asarray([1.0, 0.0, 0.0], n.dtype))


def again(of, sign, corner):
    """`Triangle` of corners with these signs (3, 6) and numbers (3, h), with equal weights."""
    return Triangle(jnp.stack([_place(of, sign[k], corner[k]) for k in range(3)]), sign, corner, jnp.full((3,), 1 / 3, of.c.dtype))


def _closest(p):
    """``(weights (4,), square, inside)``: of the four points (4, 3) that make the one closest to the origin, on triangles and edges;
    inside: whether the tetrahedron has the origin in it."""
    tiny = jnp.finfo(p.dtype).tiny
    a, b = p[EDGES[:, 0]], p[EDGES[:, 1]]
    e = b - a
    t = jnp.clip(-dot(a, e) / jnp.maximum(dot(e, e), tiny), 0.0, 1.0)
    on_edge = a + t[:, None] * e
    u, v, w = (p[TRIANGLES[:, k]] for k in range(3))
    normal = cross(v - u, w - u)
    square = dot(normal, normal)
    flat = square <= (64 * jnp.finfo(p.dtype).eps) ** 2 * dot(v - u, v - u) * dot(w - u, w - u)
    inverse = 1 / jnp.where(flat, 1.0, square)
    parts = [dot(cross(x, y), normal) * inverse for x, y in ((v, w), (w, u), (u, v))]
    within = ~flat & (parts[0] > 0) & (parts[1] > 0) & (parts[2] > 0)
    height = dot(u, normal)
    on_triangle = (height * inverse)[:, None] * normal
    points = jnp.concatenate([on_edge, on_triangle])
    squares = dot(points, points)
    squares = jnp.where(jnp.concatenate([jnp.ones((6,), bool), within]), squares, jnp.inf)
    best = jnp.argmin(squares)
    weights = [jnp.zeros((10,), p.dtype) for _ in range(4)]
    for k, (i, j) in enumerate(EDGES):
        weights[i], weights[j] = weights[i].at[k].set(1 - t[k]), weights[j].at[k].set(t[k])
    for k, corners in enumerate(TRIANGLES):
        for i, part in zip(corners, parts, strict=True):
            weights[i] = weights[i].at[6 + k].set(part[k])
    # On the same side of each triangle as its fourth corner.
    others = jnp.stack([p[2], p[0], p[1], p[3]])
    side = dot(others - u, normal)
    inside = jnp.all(side * -height > 0)
    return jnp.stack([x[best] for x in weights]), squares[best], inside


def _with(triangle, weight, new):
    """`Triangle` of three of its corners and a new one ``(place, sign, corner)``, which it has unless its weight (of (4,)) is zero."""
    place, sign, corner = new
    # The one that is given away has no weight.
    out = jnp.argmin(weight[:3])
    at = (jnp.arange(3) == out) & (weight[3] > 0)
    rest = jnp.where(at, weight[3], weight[:3])
    return Triangle(
        jnp.where(at[:, None], place[None], triangle.place),
        jnp.where(at[:, None], sign[None], triangle.sign),
        jnp.where(at[:, None], corner[None], triangle.corner),
        rest,
    )


def _toward(triangle, origin):
    """``(n (3,), distance)`` from a place to the point of a triangle; where it is inside of it the normal, which round-off spoils less."""
    p = triangle.place
    v = jnp.sum(triangle.weight[:, None] * p, axis=0) - origin
    size = jnp.sqrt(dot(v, v))
    e, f = p[1] - p[0], p[2] - p[0]
    normal = cross(e, f)
    square = dot(normal, normal)
    within = (square > 1e-6 * dot(e, e) * dot(f, f)) & (jnp.min(triangle.weight) > 1e-3)
    normal = jnp.where(dot(normal, v) < 0, -normal, normal) / jnp.sqrt(jnp.where(within, square, 1.0))
    return jnp.where(within, normal, v / jnp.where(size > 0, size, 1.0)), size


def search(of, n, enough, tolerance, triangle):
    """``(Triangle, n (3,), separation)`` where the separation is the largest one near n (3,), or where it is larger than ``enough``.

    triangle: to begin with
    """
    dtype = n.dtype
    least, apart_ = near(dtype) * of.scale, jnp.full((), -jnp.inf, dtype)

    def place_of(n, s):
        return jnp.where(s > least, 0.0, -2 * jnp.maximum(-s, least)) * n, jnp.where(s > least, apart_, s)

    new = farthest(of, n)
    s = dot(new[0], n)
    origin, base = place_of(n, s)
    weight, square, inside = _closest(jnp.concatenate([triangle.place, new[0][None]]) - origin[None])
    first = Search(jnp.int32(0), _with(triangle, weight, new), origin, square, base, n, s, jnp.bool_(False), inside, s > enough)

    def step(state):
        n, size = _toward(state.triangle, state.origin)
        new = farthest(of, n)
        s = dot(new[0], n)
        better = s > state.s
        best, best_s = jnp.where(better, n, state.n), jnp.maximum(s, state.s)
        apart = jnp.isneginf(state.base)
        found = ~state.inside & (state.stalled | (size - s + dot(state.origin, n) <= tolerance))
        stays = jnp.where(apart, s > least, (best_s <= least) & (best_s - state.base <= tolerance))
        moves, ends = state.inside | (found & ~stays), (found & stays) | (best_s > enough)
        origin, base = (jnp.where(moves, x, y) for x, y in zip(place_of(best, best_s), (state.origin, state.base), strict=True))
        weight, square, inside = _closest(jnp.concatenate([state.triangle.place, new[0][None]]) - origin[None])
        triangle = jax.tree.map(lambda x, y: jnp.where(ends, x, y), state.triangle, _with(state.triangle, weight, new))
        best, best_s = jnp.where(found & stays, n, best), jnp.where(found & stays, s, best_s)
        stalled = ~moves & (square >= state.square)
        return Search(state.k + 1, triangle, origin, square, base, best, best_s, stalled, inside & jnp.isneginf(base), ends)

    state = lax.while_loop(lambda state: (state.k < STEPS) & ~state.ends, step, first)
    return state.triangle, state.n, state.s


def least_depth(of, triangle, n):
    """What the depth of solids that overlap is not less than: how far the sides of a tetrahedron are, of the triangle and the corner that
    is farthest along n; zero where the origin is not in it."""
    far, _, _ = farthest(of, -n)
    p = triangle.place
    u, v = p, jnp.roll(p, -1, axis=0)
    normal = cross(v - u, far[None] - u)
    square = dot(normal, normal)
    other = dot(normal, jnp.roll(p, -2, axis=0) - u)
    offset = jnp.where(square > 0, -dot(normal, u) * jnp.sign(other) / jnp.sqrt(jnp.where(square > 0, square, 1.0)), 0.0)
    area = cross(p[1] - p[0], p[2] - p[0])
    own = jnp.abs(dot(p[0], area)) / jnp.sqrt(jnp.maximum(dot(area, area), jnp.finfo(n.dtype).tiny))
    return jnp.maximum(jnp.minimum(jnp.min(offset), own), 0.0)


def few(of, triangle, n):
    """``(directions.Sum, directions.Found, numbers of corners (3,) of each hull)``: of the corners of a triangle alone."""
    numbers = tuple(triangle.corner[:, k] for k in range(len(of.hulls)))
    hulls = tuple(-turn(R[None], hull.at(at)).T for R, hull, at in zip(of.turns, of.hulls, numbers, strict=True))
    ones = jnp.ones_like(n)
    sum_ = directions.Sum(of.c, of.segments, jnp.zeros((2, 3, 3), n.dtype), hulls, (ones,) * len(hulls), of.scale)
    y = jnp.sum(triangle.weight[:, None] * triangle.sign, axis=0)
    levels = tuple(jnp.max(directions.heights(hull, n)) for hull in hulls)
    return (
        sum_,
        directions.Found(n, y, jnp.zeros((2, 3), n.dtype), levels, (triangle.weight,) * len(hulls), jnp.zeros((), n.dtype)),
        numbers,
    )
