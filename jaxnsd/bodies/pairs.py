"""Gaps of pairs of shapes: closest points on both surfaces and their common normal, for all pairs of a kind at once.

Which corner, edge or side is the closest is a choice that is not differentiated; all else is, the normal too. Normals point from the
first shape to the second, ``g = n . (c_2 - c_1)``.
"""

import functools
import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..native.marks import when_needed
from . import boxes, broad_phase, convex
from .frames import Touch
from .lists import pick
from .rotations import cross, dot, length, normalized, turn, turn_back

#: Order of the kinds in a pair: the kernel of (a, b) takes a first.
ORDER = ("plane", "sphere", "capsule", "box", "cylinder", "ellipsoid", "points")


def up(like):
    """Vectors along z, (n, 3)."""
    return jnp.broadcast_to(jnp.asarray([0.0, 0.0, 1.0], like.dtype), like.shape)


# ------------------------------------------------------------------------------------------------- planes against points
def of_plane(plane, points, radius):
    """A plane and balls about ``points`` (n, 3) with ``radius`` (n,), zero for the corners of a body."""
    normal = plane.R[:, :, 2]
    height = dot(normal, points - plane.x)
    gap = height - radius
    return Touch(gap, points - height[:, None] * normal, points - radius[:, None] * normal, normal)


def local_points(structure, shape, size, given):
    """``(points (k, 3) in the shape's frame, radius)`` of what of a shape touches a plane."""
    kind, across, zero = structure.shapes[shape].kind, structure.shapes[shape].across, jnp.zeros((), size.dtype)
    if kind == "sphere":
        return jnp.zeros((1, 3), size.dtype), size[0]
    if kind == "capsule":
        ends = jnp.asarray([[0.0, 0.0, 1.0], [0.0, 0.0, -1.0]], size.dtype)
        return ends * size[1], size[0]
    if kind == "box":
        corners = boxes.CORNERS if across is None else np.unique(boxes.CORNERS * (np.arange(3) != across), axis=0)
        return jnp.asarray(corners, size.dtype) * size[None], zero
    return given, zero


def rim(plane, shape, place):
    """Points of a rim of cylinders, (n, 3); ``place`` is (rim, angle) of a point of the body, or (rim, None): the lowest one."""
    side, angle = place
    x, y, axis = (shape.R[:, :, i] for i in range(3))
    if angle is None:
        # In the axes of the end, so that what turns of the arm is across the normal to round-off, also of a cylinder that almost stands.
        down = -jnp.stack([dot(plane.R[:, :, 2], x), dot(plane.R[:, :, 2], y)], axis=1)
        size = length(down)
        # A cylinder that stands has no lowest point: any will do.
        upright = size < (1e-6 if down.dtype == jnp.float64 else 1e-3)
        first = jnp.broadcast_to(jnp.asarray([1.0, 0.0], down.dtype), down.shape)
        arm = jnp.where(upright[:, None], first, normalized(down, size, first))
        arm = arm[:, :1] * x + arm[:, 1:] * y
    else:
        arm = np.cos(angle) * x + np.sin(angle) * y
    return shape.x + side * shape.size[:, 1:2] * axis + shape.size[:, :1] * arm


def on_rim(plane, shape, place):
    """`Touch` of a plane and a point of a rim. Those of the body are there while the cylinder stands: under a wheel they would be bumps."""
    touch = of_plane(plane, rim(plane, shape, place), jnp.zeros_like(shape.size[:, 0]))
    if place[1] is None:
        return touch
    stands = jnp.abs(dot(plane.R[:, :, 2], shape.R[:, :, 2])) > np.cos(STANDS)
    far = boxes.FAR * jnp.max(shape.size, axis=1)
    return Touch(jnp.where(stands, touch.gap, far), *(jnp.where(stands[:, None], x, 0.0) for x in touch[1:]))


#: Corners of a body up to which each has a row on a plane; of more, of the hull of a mesh say, so many at a time.
MOST, ON_HULL = 8, 4
#: How steeply the points of a hull may rise from its lowest one to count as a part of the face that it stands on.
RISE = 0.1


def manifold(normal, points):
    """Which ``ON_HULL`` of ``points`` (n, 3) touch a plane with this ``normal`` (3,), in their frame, and which of these are there.

    The lowest one, of several the outermost; the one that is farthest from it; and those that are farthest to the sides of the line through
    both. A point counts as nearer by what it is higher, over `RISE`, so that a body on an edge has two and one on a corner has one.
    """
    outside = points - jnp.mean(points, axis=0, keepdims=True)
    none = 64 * jnp.finfo(points.dtype).eps * jnp.max(jnp.abs(points))
    height = dot(outside, normal[None])
    above = height - jnp.min(height)
    lowest = jnp.argmax(jnp.where(above <= none, dot(outside, outside), -1.0))
    away = points - points[lowest][None]
    away = away - dot(away, normal[None])[:, None] * normal[None]
    distance, higher = length(away), above / RISE
    farthest = jnp.argmax(distance - higher)
    line = away[farthest][None]
    aside = dot(away, cross(normal[None], normalized(line, distance[farthest][None], line)))
    left, right = jnp.argmax(aside - higher), jnp.argmax(-aside - higher)
    beyond = (distance - higher)[farthest], (aside - higher)[left], (-aside - higher)[right]
    return jnp.stack([lowest, farthest, left, right]), jnp.concatenate([jnp.ones((1,), bool), jnp.stack(beyond) > none])


#: Largest angle between the axis of a cylinder and the normal of a plane at which it stands, or is about to, in rad: where it falls on its
#: end the lowest point goes around too fast for a step to follow.
STANDS = np.pi / 4
#: Lower and upper rim: the lowest point of each, on which a cylinder rolls, and three points of the body, on which it stands.
RIMS = tuple((side, angle) for side in (-1.0, 1.0) for angle in (None, np.pi / 3, np.pi, -np.pi / 3))


def lowest_of_ellipsoid(plane, shape):
    """The point of an ellipsoid that is farthest along -n: ``-D^2 m / sqrt(m . D^2 m)`` with m the normal in its frame."""
    m = turn_back(shape.R, plane.R[:, :, 2])
    square = shape.size**2 * m
    return shape.x - turn(shape.R, square / jnp.sqrt(dot(m, square))[:, None])


# --------------------------------------------------------------------------------------------------- balls and capsules
def ball_on_capsule(a, b):
    """Balls and capsules or balls, which are capsules of no length: the ball first."""
    axis = b.R[:, :, 2] * b.size[:, 1:2]
    square = dot(axis, axis)
    t = jnp.clip(dot(a.x - b.x, axis) / jnp.where(square > 0, square, 1.0), -1.0, 1.0)
    return of_balls(a.x, a.size[:, 0], b.x + t[:, None] * axis, b.size[:, 0], b.R[:, :, 0])


def of_balls(p, radius_p, q, radius_q, otherwise):
    """Balls about points (n, 3); ``otherwise``: normals where the points are the same, to round-off."""
    distance, radii = length(q - p), radius_p + radius_q
    normal = normalized(q - p, jnp.where(distance > 64 * jnp.finfo(p.dtype).eps * radii, distance, 0.0), otherwise)
    return Touch(distance - radii, p + radius_p[:, None] * normal, q - radius_q[:, None] * normal, normal)


def of_capsules(a, b):
    """Two capsules: two points, between which they lie along each other.

    Either is an end of one of them and what of the other is closest to it, on the one side and on the other. Where the axes cross, the
    points at which they do take the place of the end that is farther away. All are as far apart as they say, and no two capsules are closer
    than at one of the two points; those that coincide are one.
    """
    (x, half_a, radius_a), (y, half_b, radius_b) = ((f.x, f.R[:, :, 2] * f.size[:, 1:2], f.size[:, 0]) for f in (a, b))
    r = x - y
    aa, bb, ab, ar, br = dot(half_a, half_a), dot(half_b, half_b), dot(half_a, half_b), dot(half_a, r), dot(half_b, r)
    # A capsule may be a ball.
    aa, bb = (jnp.where(square > 0, square, 1.0) for square in (aa, bb))
    # Ends of both, those on the side of the end of the first, then those on the other side.
    s_end = jnp.broadcast_to(jnp.asarray([1.0, -1.0], r.dtype), (r.shape[0], 2))
    t_end = jnp.where(ab < 0, -1.0, 1.0).astype(r.dtype)[:, None] * s_end
    t_of_a = jnp.clip((s_end * ab[:, None] + br[:, None]) / bb[:, None], -1.0, 1.0)
    s_of_b = jnp.clip((t_end * ab[:, None] - ar[:, None]) / aa[:, None], -1.0, 1.0)

    def square(s, t):
        apart = r[:, None] + s[..., None] * half_a[:, None] - t[..., None] * half_b[:, None]
        return dot(apart, apart)

    of_a, of_b = square(s_end, t_of_a), square(s_of_b, t_end)
    by_a = of_a <= of_b
    s, t, far = jnp.where(by_a, s_end, s_of_b), jnp.where(by_a, t_of_a, t_end), jnp.where(by_a, of_a, of_b)
    # Where r + s half_a - t half_b is along the normal of both.
    normal = cross(half_a, half_b)
    det = dot(normal, normal)
    aslant = det > 64 * jnp.finfo(r.dtype).eps * aa * bb
    s_cross, t_cross = (-dot(cross(r, half), normal) / jnp.where(aslant, det, 1.0) for half in (half_b, half_a))
    across = aslant & (jnp.abs(s_cross) < 1) & (jnp.abs(t_cross) < 1)
    farther = jnp.stack([far[:, 0] > far[:, 1], far[:, 0] <= far[:, 1]], axis=1)
    instead = across[:, None] & farther
    s, t = jnp.where(instead, s_cross[:, None], s), jnp.where(instead, t_cross[:, None], t)

    # Where the axes meet the capsules part along the normal of both, or across them.
    normal = jnp.where(aslant[:, None], normal, a.R[:, :, 0])
    otherwise = normalized(normal, length(normal), normal)
    p, q = (z[:, None] + place[..., None] * half[:, None] for z, place, half in ((x, s, half_a), (y, t, half_b)))
    rows = [of_balls(p[:, k], radius_a, q[:, k], radius_b, otherwise) for k in range(2)]
    same = sum(dot(z[:, 0] - z[:, 1], z[:, 0] - z[:, 1]) for z in (p, q)) <= boxes.CLOSE**2 * (aa + bb)
    far = boxes.FAR * jnp.max(a.size, axis=1)
    return [
        Touch(jnp.where(gone, far, touch.gap), *(jnp.where(gone[:, None], 0.0, z) for z in touch[1:]))
        for touch, gone in zip(rows, (same & (farther[:, k] != across) for k in range(2)), strict=True)
    ]


# ------------------------------------------------------------------------------------------------------ balls and boxes
def ball_on_box(point, radius, box):
    """Balls about ``point`` (n, 3) and boxes, the ball first: outside by the closest point, inside by the nearest side."""
    y, h = turn_back(box.R, point - box.x), box.size
    nearest = jnp.clip(y, -h, h)
    away = y - nearest
    distance = length(away)
    depth = h - jnp.abs(y)
    side = jnp.arange(3)[None] == jnp.argmin(depth, axis=-1)[:, None]
    inside = distance <= 0
    sign = jnp.where(y < 0, -1.0, 1.0).astype(y.dtype)
    outward = jnp.where(side, sign, 0.0)
    normal = jnp.where(inside[:, None], outward, normalized(away, distance, outward))
    distance = jnp.where(inside, -jnp.sum(jnp.where(side, depth, 0.0), axis=-1), distance)
    surface = jnp.where(inside[:, None] & side, sign * h, nearest)
    normal, surface = turn(box.R, normal), box.x + turn(box.R, surface)
    # From the ball to the box.
    return Touch(distance - radius, point - radius[:, None] * normal, surface, -normal)


def nearest_to_box(middle, half, box):
    """Where on segments the point nearest to a box is, in [-1, 1].

    The slope of the squared distance grows along the segment, piecewise linearly between the points where a side of the box is passed:
    its zeros are found exactly. Of a part that is parallel to a side it is the end at which this side ends, since the ends of the segment
    have rows of their own; of a part between two such ends, or inside of the box, the middle.
    """
    a, d, h = turn_back(box.R, middle - box.x), turn_back(box.R, half), box.size
    eps = jnp.finfo(d.dtype)
    moving = jnp.abs(d) > eps.tiny
    passes = jnp.stack([jnp.where(moving, (sign * h - a) / jnp.where(moving, d, 1.0), 1.0) for sign in (-1.0, 1.0)], axis=1).reshape(-1, 6)
    ends = jnp.ones_like(passes[:, :1])
    nodes = jnp.concatenate([-ends, jnp.clip(passes, -1.0, 1.0), ends], axis=1)

    def outside(s):
        y = a[:, None] + s[:, :, None] * d[:, None]
        return y - jnp.clip(y, -h[:, None], h[:, None])

    def slope(s):
        return dot(outside(s), d[:, None])

    slopes, none = slope(nodes), 64 * eps.eps * (length(d) * (length(a) + length(d)))[:, None]
    # Where the slope ends to be negative, between two nodes, and where it begins to be positive.
    low = jnp.max(jnp.where(slopes < -none, nodes, -1.0), axis=1, keepdims=True)
    high = jnp.min(jnp.where(slopes > none, nodes, 1.0), axis=1, keepdims=True)
    first = _zero(slope, low, jnp.min(jnp.where(nodes > low, nodes, 1.0), axis=1, keepdims=True), none)
    last = _zero(slope, high, jnp.max(jnp.where(nodes < high, nodes, -1.0), axis=1, keepdims=True), none)
    center = 0.5 * (first + last)
    inside = jnp.all(outside(center) == 0, axis=2)
    side = jnp.where(inside | ((first > -1) == (last < 1)), center, jnp.where(first > -1, first, last))
    # On a side it is a choice: that it moves says nothing of the distance.
    return jnp.where(last - first > jnp.sqrt(eps.eps), lax.stop_gradient(side), first)[:, 0]


def _zero(slope, node, beyond, none):
    """Where a slope that is not zero at a node is zero before the next one, else that one; the node itself where it is zero there."""
    f, g = slope(node), slope(beyond)
    there = jnp.abs(f) > none
    zero = node - f * (beyond - node) / jnp.where(there & (jnp.abs(g - f) > 0), g - f, 1.0)
    return jnp.where(there, jnp.where(jnp.abs(g) > none, zero, beyond), node)


# -------------------------------------------------------------------------------------------------- balls and cylinders
def ball_on_cylinder(point, radius, cylinder):
    """Balls and cylinders, the ball first: a box in the plane of the axis and the point."""
    y = turn_back(cylinder.R, point - cylinder.x)
    away = y * np.array([1.0, 1.0, 0.0], y.dtype)[None]
    rho = length(away)
    first = jnp.broadcast_to(jnp.asarray([1.0, 0.0, 0.0], y.dtype), y.shape)
    radial = normalized(away, rho, first)
    sign = jnp.where(y[:, 2] < 0, -1.0, 1.0).astype(y.dtype)
    out = jnp.stack([rho - cylinder.size[:, 0], jnp.abs(y[:, 2]) - cylinder.size[:, 1]], axis=-1)
    beyond = jnp.maximum(out, 0.0)
    corner = length(beyond)
    inside = corner <= 0
    side = out[:, 0] > out[:, 1]
    unit_out = normalized(beyond, corner, jnp.stack([side, ~side], axis=-1).astype(y.dtype))
    distance = jnp.where(inside, jnp.maximum(out[:, 0], out[:, 1]), corner)
    axial = sign[:, None] * jnp.asarray([0.0, 0.0, 1.0], y.dtype)[None]
    normal = unit_out[:, :1] * radial + unit_out[:, 1:] * axial
    surface = y - distance[:, None] * normal
    normal, surface = turn(cylinder.R, normal), cylinder.x + turn(cylinder.R, surface)
    return Touch(distance - radius, point - radius[:, None] * normal, surface, -normal)


# ------------------------------------------------------------------------------------------------------------ all pairs
class Group(NamedTuple):
    """Pairs that one kernel computes together: numbers of the first and the second shapes, a row each, and places in the pairs."""

    kernel: str
    first: tuple
    second: tuple
    pair: tuple


#: Kernel of each pair of kinds, in `ORDER`, and how many rows it makes; None: as many as there are points.
KERNELS = {
    **{("plane", kind): ("points", count) for kind, count in (("sphere", 1), ("capsule", 2), ("box", None), ("points", None))},
    ("plane", "cylinder"): ("rims", len(RIMS)),
    ("plane", "ellipsoid"): ("ellipsoid", 1),
    ("sphere", "sphere"): ("ball and capsule", 1),
    ("sphere", "capsule"): ("ball and capsule", 1),
    ("capsule", "capsule"): ("capsules", 2),
    ("sphere", "box"): ("ball and box", 1),
    ("capsule", "box"): ("capsule and box", 3),
    ("sphere", "cylinder"): ("ball and cylinder", 1),
    ("box", "box"): ("boxes", boxes.ROWS),
}
#: All others have one kernel, with names by which those with corners in a table go together, and those that are not round but for balls.
_CONVEX = {(0, True): "solids", (1, True): "solids and hulls", (1, False): "boxes and hulls", (2, False): "hulls"}
for _pair in itertools.combinations_with_replacement(ORDER[1:], 2):
    if _pair not in KERNELS:
        KERNELS[_pair] = _CONVEX[_pair.count("points"), not convex.ROUND.isdisjoint(_pair)], convex.ROWS
#: Pairs of a kind from which on they are looked at one after the other; of two boxes, which take a thousand operations, from two on.
MANY, MANY_BOXES = 4, 2
#: How many rows a pair has, by its kernel.
ROWS = dict(KERNELS.values()) | {"hull": ON_HULL}
#: Kernels whose rows are what touches at a configuration, the lowest point first say: the rows of a pair may change places.
CHANGING = {"hull", "boxes", *_CONVEX.values()}


def ordered(structure, pair):
    """The pair with the kind that comes first in `ORDER` first."""
    return tuple(sorted(pair, key=lambda s: ORDER.index(structure.shapes[s].kind)))


def kernel(structure, pair):
    """``(name, rows)`` of the kernel of a pair; None where there is none."""
    found = KERNELS.get(tuple(structure.shapes[s].kind for s in ordered(structure, pair)))
    if found is None or found[1] is not None:
        return found
    shape = structure.shapes[ordered(structure, pair)[1]]
    if shape.points > MOST:
        return "hull", ON_HULL
    return found[0], shape.points or (8 if shape.across is None else 4)


@functools.lru_cache(maxsize=64)
def groups(structure):
    """`Group` of every kernel that the pairs of a structure need, in the order of the rows."""
    rows = {}
    for number, pair in enumerate(structure.pairs):
        name, count = kernel(structure, pair)
        first, second = ordered(structure, pair)
        for _ in range(count):
            rows.setdefault(name, []).append((first, second, number))
    return [Group(name, *(tuple(part) for part in zip(*found, strict=True))) for name, found in rows.items()]


class Kept(NamedTuple):
    """What the rows of a group are at some configuration: their points on both shapes, in the frames of these."""

    first: object  # (n, 3); None where rows never change places
    second: object  # (n, 3)
    there: object  # (n,) 1 where it is a contact, 0 where it is none
    reach: object = None  # how near a pair has to be to be looked at in this step, in m, of all or (pairs,); None: nothing is known
    searched: object = None  # of pairs that are, see `convex.Pairs.search`
    touch: object = None  # `Touch` of the rows there, None where rows never change places


def touches(system, frames, searched):
    """`Touch` of all rows of all pairs, in the order of `groups`; those of a pair in the order that they had where they were `kept`.

    searched: of `search`
    """
    found = [_in_order_of(rows, system, frames, group, one) for group, rows, one in zip(*_groups_kept(system), searched, strict=True)]
    return Touch(*(jnp.concatenate(parts) for parts in zip(*found, strict=True)))


def search(system, frames):
    """What `convex.Pairs.search` finds of every group whose pairs are searched, None of the others."""
    return tuple(
        _convex_pairs(system, frames, group).search(*((rows.reach, rows.searched) if rows else ())) if is_searched(group) else None
        for group, rows in zip(*_groups_kept(system), strict=True)
    )


def touches_where_kept(system, frames, which):
    """`Touch` of all rows at the `Frames` where they were kept, of pairs of which one of the rows ``which`` (n,) is; not differentiated."""
    out, first = [], 0
    for group, rows in zip(*_groups_kept(system), strict=True):
        asked, first = which[first : first + len(group.first)], first + len(group.first)
        if rows is None or rows.touch is None:
            reach = None if rows is None or rows.reach is None else jnp.where(_of_pairs(group, jnp.any, asked), rows.reach, -jnp.inf)
            out.append(lax.stop_gradient(_touches_of(system, frames, group, reach)))
        else:
            out.append(rows.touch)
    return Touch(*(jnp.concatenate(parts) for parts in zip(*out, strict=True)))


def _of_pairs(group, reduced, x):
    """What numbers (n,) of the rows of a group are for each pair, reduced by this function."""
    return reduced(x.reshape(-1, ROWS[group.kernel]), axis=1)


def _groups_kept(system):
    """The groups of a system, and `Kept` of each or None."""
    found = groups(system.structure)
    return found, system.kept_rows or (None,) * len(found)


def is_searched(group):
    """Whether the pairs of a group have no formula of their own."""
    return group.kernel in _CONVEX.values()


def _touches_of(system, frames, group, reach=None, searched=None):
    """Those of the rows of one group; reach: of its pairs, see `convex.Pairs`; searched: where its pairs are."""
    if group.kernel in _OF_POINTS:
        return _OF_POINTS[group.kernel](system, frames, group)
    if is_searched(group):
        return _convex_pairs(system, frames, group).touches(searched)
    rows = ROWS[group.kernel]
    first, second = group.first[::rows], group.second[::rows]
    kernel = _KERNELS[group.kernel]

    def of(a, b):
        return _rows([kernel(a, b)] if rows == 1 else kernel(a, b))

    if one_by_one(group):
        radii = broad_phase.radii(system.structure, frames, table(system).radii)
        return broad_phase.touches(of, frames, radii, first, second, reach)
    return of(frames.of(first), frames.of(second))


def _convex_pairs(system, frames, group):
    """`convex.Pairs` of a group that is searched."""
    first, second = group.first[:: convex.ROWS], group.second[:: convex.ROWS]
    return convex.Pairs(system.structure, frames, table(system), searched_hulls(system.structure), first, second)


@functools.lru_cache(maxsize=64)
def searched_hulls(structure):
    """Numbers of the shapes given by points in pairs that are searched."""
    found = {shape for group in groups(structure) if is_searched(group) for shape in (*group.first, *group.second)}
    return tuple(sorted(shape for shape in found if structure.shapes[shape].kind == "points"))


def table(system):
    """The `convex.Table` of a system."""
    return convex.table(iter_points(system), searched_hulls(system.structure)) if system.table is None else system.table


def one_by_one(group):
    """Whether the pairs of a group are looked at one after the other, those alone that are near; planes are near everything."""
    return (
        group.kernel in _KERNELS
        and group.kernel not in ("rims", "ellipsoid")
        and (len(group.first) >= (MANY_BOXES if group.kernel == "boxes" else MANY) * ROWS[group.kernel])
    )


@functools.lru_cache(maxsize=64)
def left_out_where_far(structure):
    """Numbers of the shapes in pairs that are not looked at where they are far from each other."""
    found = [group for group in groups(structure) if one_by_one(group) or is_searched(group)]
    return sorted({shape for group in found for shape in (*group.first, *group.second)})


# -------------------------------------------------------------------------------------------------- rows that change places
def changing(structure):
    """Whether there are pairs whose rows may change places."""
    return any(group.kernel in CHANGING for group in groups(structure))


def kept(system, frames, reach=None, found=None):
    """`Kept` of every group whose rows may change places, None of the others.

    reach: how far anything moves in the step, in m, or None. A pair that is farther apart need not be looked for again
    found: of `search`, nearby: with what searches begin; None: nothing is known
    """
    parts = zip(groups(system.structure), found or (None,) * len(groups(system.structure)), strict=True)
    return tuple(_kept(system, frames, group, reach, before) for group, before in parts)


def _kept(system, frames, group, reach, before):
    if group.kernel not in CHANGING:
        return Kept(None, None, None, reach) if one_by_one(group) and reach is not None else None
    searched = _convex_pairs(system, frames, group).search(reach, before) if is_searched(group) else None
    touch = _touches_of(system, frames, group, reach, searched)
    rows = _kept_of(frames, group, touch)._replace(searched=searched, touch=lax.stop_gradient(touch))
    if reach is None or not (one_by_one(group) or is_searched(group)):
        return rows
    size, gap = ROWS[group.kernel], _of_pairs(group, jnp.min, rows.touch.gap)
    radii = broad_phase.radii(system.structure, frames, table(system).radii)
    near = reach + broad_phase.NEAR * sum(pick(radii, shapes[::size]) for shapes in (group.first, group.second))
    return rows._replace(reach=jnp.where(gap > near, -jnp.inf, reach))


def _kept_of(frames, group, touch):
    points = []
    for shapes, x in ((group.first, touch.first), (group.second, touch.second)):
        shape = frames.of(shapes)
        points.append(turn_back(shape.R, x - shape.x))
    there = jnp.any(touch.normal != 0, axis=1).astype(touch.gap.dtype)
    return lax.stop_gradient(Kept(*points, there))


def _in_order_of(rows, system, frames, group, searched):
    """The rows of each pair of a group, in the order of `_order` where they are kept."""
    touch = _touches_of(system, frames, group, None if rows is None else rows.reach, searched)
    if rows is None:
        return touch
    if rows.first is None:
        return touch
    rows = rows._replace(reach=None, searched=None, touch=None)
    order = when_needed(functools.partial(_order, ROWS[group.kernel]))(rows, _kept_of(frames, group, touch))
    return Touch(*(x[order] for x in touch))


def _order(size, rows, now):
    """Which of the rows as they are ``now`` are those that were kept, in pairs of ``size`` rows."""
    of_pair = functools.partial(_order_of_pair, size)

    def where_it_matters(pair):
        before, after = pair
        # Of rows that are none it does not matter which one is which.
        both = jnp.any(before.there > 0) & jnp.any(after.there > 0)
        return lax.cond(both, of_pair, lambda _: jnp.arange(size, dtype=jnp.int32), pair)

    pairs = jax.tree.map(lambda x: x.reshape(-1, size, *x.shape[1:]), (rows, now))
    order = lax.platform_dependent(pairs, cpu=functools.partial(lax.map, where_it_matters), default=jax.vmap(of_pair))
    return (order + size * jnp.arange(order.shape[0], dtype=jnp.int32)[:, None]).reshape(-1)


def _order_of_pair(size, pair):
    """The order (size,) of the rows of one pair, as they were kept and as they are now.

    The two that are nearest to each other are the same one, then the two that are nearest of those that are left; near on either shape,
    since what slides on the one stays on the other.
    """
    rows, now = pair

    def squares(before, after):
        away = before[:, None] - after[None]
        return dot(away, away)

    apart = jnp.minimum(squares(rows.first, now.first), squares(rows.second, now.second))
    both = rows.there[:, None] * now.there[None]
    apart = jnp.where(both > 0, apart, jnp.finfo(apart.dtype).max).reshape(size * size)
    one, other = (jnp.asarray(x) for x in np.divmod(np.arange(size * size, dtype=np.int32), size))

    def assign(_, carry):
        apart, order = carry
        nearest = jnp.argmin(apart).astype(jnp.int32)
        row, place = nearest // size, nearest % size
        apart = jnp.where((one == row) | (other == place), jnp.inf, apart)
        return apart, jnp.where(jnp.arange(size) == row, place, order)

    return lax.fori_loop(0, size, assign, (apart, jnp.zeros((size,), jnp.int32)))[1]


def _rows(touches):
    """Rows of several touches of each pair, one pair after the other."""
    return Touch(*(jnp.stack(parts, axis=1).reshape(-1, *parts[0].shape[1:]) for parts in zip(*touches, strict=True)))


def _points_on_planes(system, frames, group):
    local, radius = [], []
    shapes = [s for k, s in enumerate(group.second) if not k or group.pair[k] != group.pair[k - 1]]
    points = iter_points(system)
    known = {}
    for s in shapes:
        if s not in known:
            known[s] = local_points(system.structure, s, frames.size[s], points.get(s))
        where, r = known[s]
        local.append(where)
        radius += [r] * where.shape[0]
    of = frames.of(group.second)
    return of_plane(frames.of(group.first), of.x + turn(of.R, jnp.concatenate(local)), jnp.stack(radius))


def _hulls_on_planes(system, frames, group):
    points, found = iter_points(system), []
    for first, second in zip(group.first[::ON_HULL], group.second[::ON_HULL], strict=True):
        plane, hull, local = frames.of((first,)), frames.of((second,)), points[second]
        chosen, there = manifold(turn_back(hull.R, plane.R[:, :, 2])[0], lax.stop_gradient(local))
        touch = of_plane(plane, hull.x + turn(hull.R, local[chosen]), jnp.zeros((ON_HULL,), local.dtype))
        far = boxes.FAR * jnp.max(jnp.abs(local))
        found.append(Touch(jnp.where(there, touch.gap, far), *(jnp.where(there[:, None], x, 0.0) for x in touch[1:])))
    return Touch(*(jnp.concatenate(parts) for parts in zip(*found, strict=True)))


#: Kernels that ask for the points of a body.
_OF_POINTS = {"points": _points_on_planes, "hull": _hulls_on_planes}


def iter_points(system):
    """Points of the shapes that are given by points: number of the shape -> (k, 3)."""
    having = [s for s, shape in enumerate(system.structure.shapes) if shape.kind == "points"]
    return dict(zip(having, system.points, strict=True))


def _capsules_on_boxes(a, b):
    half = a.R[:, :, 2] * a.size[:, 1:2]
    s = nearest_to_box(a.x, half, b)[:, None]
    return [ball_on_box(a.x + place * half, a.size[:, 0], b) for place in (-1.0, 1.0, s)]


_KERNELS = {
    "rims": lambda a, b: [on_rim(a, b, place) for place in RIMS],
    "ellipsoid": lambda a, b: of_plane(a, lowest_of_ellipsoid(a, b), jnp.zeros_like(a.size[:, 0])),
    "ball and capsule": ball_on_capsule,
    "capsules": of_capsules,
    "ball and box": lambda a, b: ball_on_box(a.x, a.size[:, 0], b),
    "capsule and box": _capsules_on_boxes,
    "ball and cylinder": lambda a, b: ball_on_cylinder(a.x, a.size[:, 0], b),
    # A program of its own: what several parts of a step ask for is compiled once.
    "boxes": lambda a, b: when_needed(boxes.touches)(a, b),
}
