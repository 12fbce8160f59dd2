"""Two boxes: of all pairs of features the ones that touch, or would, with the normal of each.

The axis with the largest separation says which (Gottschalk et al. 1996). Is it the normal of a face, the opposite face of the other box is
clipped against it: its corners within the face are points of a corner on a face, as are the corners of the face within the other one, and
where two edges cross, they are points of two edges. Is it the product of two edges, those are the only ones. What is closest is a choice
that is not differentiated; every point has the normal of its two features, so that its gap changes as its two material points move.

Where boxes overlap the smallest gap is minus the depth, the shortest way out. Where they are apart it is their distance: along that axis
where a corner is over a face or edges cross, else from a corner to a corner or an edge, the only point then. Neither of these is the first
to touch, so that as the boxes meet they give way to the former ones.
"""

import jax.numpy as jnp
import numpy as np

from .frames import Touch
from .rotations import cross, dot, turn, turn_back

#: Points of a pair; two rectangles have up to eight in common.
ROWS = 8
#: Gap of points that are not there, in half edges.
FAR = 1e3
#: Edges, and corners, this close to each other (in half edges) count once; edges with an angle below it are parallel.
CLOSE = 1e-6
#: Distances that differ by less, in half edges, are the same.
SAME = 1e-10
#: Edges that overlap may have their closest points this far beyond their ends, in half edges: those of almost parallel ones are anywhere.
BEYOND = 0.1
#: Edges whose normal is that of the face, up to an angle with this cosine, decide where they are farther apart than the face by this part
#: of a half edge: parallel to it, they are as far to round-off, and they are among the points of the face.
ALONG, PREFERRED = 0.995, 1e-3
CORNERS = np.stack(np.meshgrid(*[(-1.0, 1.0)] * 3, indexing="ij"), axis=-1).reshape(8, 3)


def touches(a, b):
    """Eight lists of ``(gap, point of a, point of b, normal)`` for boxes a and b (frames of n each)."""
    d = b.x - a.x
    (faces, (axes, edges)), scale = separations(a, b, d), jnp.max(jnp.concatenate([a.size, b.size], axis=1), axis=1)
    # In single precision round-off is what is close.
    eps = jnp.finfo(d.dtype).eps
    close, same = max(CLOSE, 64 * eps) * scale, max(SAME, 8 * eps) * scale
    face, edge = jnp.argmax(faces, axis=1), jnp.argmax(edges, axis=1)
    normals = jnp.concatenate([jnp.swapaxes(box.R, 1, 2) for box in (a, b)], axis=1)
    axis, far, far_edges = _at(axes, edge), jnp.max(faces, axis=1), jnp.max(edges, axis=1)
    by_edges = far_edges > far + jnp.where(jnp.abs(dot(axis, _at(normals, face))) > ALONG, PREFERRED * scale, 0.0)

    # The box whose face it is, and the other one.
    of_b = face >= 3
    ref, inc = (tuple(_choose(of_b, y, x) for x, y in zip(*pair, strict=True)) for pair in ((a, b), (b, a)))
    # Apart, boxes are no closer than along any axis.
    bound = jnp.maximum(far, far_edges)
    least = jnp.where(bound > 0, bound - same, -jnp.inf)
    gap, on_ref, on_inc, normal, empty = clipped(ref, inc, face % 3, scale, close, least)
    first, second = (_choose(of_b, y, x) for x, y in ((on_ref, on_inc), (on_inc, on_ref)))
    normal = _choose(of_b, -normal, normal)

    # Apart, a corner or two edges are the only ones where they are closer than those of the face.
    edges, proper = crossing(a, b, axis, edge // 3, edge % 3, d, close)
    corner = of_corner(a, b)
    apart = (bound > 0) & (corner[0] > 0)
    by_corner = apart & ~(proper & (edges[0] >= least) & (edges[0] <= corner[0]))
    alone = tuple(_choose(by_corner, x, y) for x, y in zip(corner, edges, strict=True))
    single = jnp.where(apart, empty | (alone[0] < jnp.min(gap, axis=1) - same), by_edges)[:, None]
    row = jnp.arange(ROWS)[None] == 0
    gap = jnp.where(single, jnp.where(row, alone[0][:, None], FAR * scale[:, None]), gap)
    first, second, normal = (
        # Points that are not there have no normal either, so that they do not move.
        jnp.where(single[..., None], jnp.where(row[..., None], one[:, None], 0.0), many)
        for one, many in zip(alone[1:], (first, second, normal), strict=True)
    )
    return [Touch(gap[:, k], first[:, k], second[:, k], normal[:, k]) for k in range(ROWS)]


def _choose(condition, x, y):
    return jnp.where(condition.reshape(-1, *(1,) * (x.ndim - 1)), x, y)


def _at(x, place):
    """``x[i, place[i]]`` as a sum over a mask: its transpose is no scatter."""
    mask = jnp.arange(x.shape[1])[None] == place[:, None]
    return jnp.sum(jnp.where(mask.reshape(*mask.shape, *(1,) * (x.ndim - 2)), x, 0.0), axis=1)


def separations(a, b, d):
    """``(along the normals of the faces (n, 6), (products of edges (n, 9, 3), along them (n, 9)))``, negative where boxes overlap."""
    C = jnp.abs(jnp.sum(a.R[:, :, :, None] * b.R[:, :, None, :], axis=1))
    faces = [
        jnp.abs(turn_back(a.R, d)) - a.size - jnp.sum(C * b.size[:, None, :], axis=2),
        jnp.abs(turn_back(b.R, d)) - b.size - jnp.sum(C * a.size[:, :, None], axis=1),
    ]
    edges_a, edges_b = jnp.swapaxes(a.R, 1, 2), jnp.swapaxes(b.R, 1, 2)
    axes = cross(edges_a[:, :, None], edges_b[:, None, :]).reshape(-1, 9, 3)
    square = dot(axes, axes)
    there = square > PREFERRED**2
    axes = axes / jnp.sqrt(jnp.where(there, square, 1.0))[..., None]
    reach = sum(
        jnp.sum(jnp.abs(dot(axes[:, :, None], edges[:, None])) * box.size[:, None], axis=-1) for edges, box in ((edges_a, a), (edges_b, b))
    )
    return jnp.concatenate(faces, axis=1), (axes, jnp.where(there, jnp.abs(dot(axes, d[:, None])) - reach, -jnp.inf))


def of_corner(a, b):
    """The corner of either box that is closest to the other one, where they are apart: ``(distance, points, normal)``."""
    found = []
    for box, other in ((a, b), (b, a)):
        corners = box.x[:, None] + turn(box.R[:, None], jnp.asarray(CORNERS, box.x.dtype)[None] * box.size[:, None])
        out = _outside(turn_back(other.R[:, None], corners - other.x[:, None]), other.size[:, None])
        found.append((dot(out, out), corners))
    square, corners = (jnp.concatenate(parts, axis=1) for parts in zip(*found, strict=True))
    closest = jnp.argmin(square, axis=1)
    of_b, corner = closest >= 8, _at(corners, closest)
    # The box on which the other point is.
    R, x, h = (_choose(of_b, *pair) for pair in zip(a, b, strict=True))
    out = _outside(turn_back(R, corner - x), h)
    square, away = dot(out, out), turn(R, out)
    there = square > 0
    size = jnp.sqrt(jnp.where(there, square, 1.0))
    point, normal, distance = corner - away, away / size[:, None], jnp.where(there, size, 0.0)
    first, second = (_choose(of_b, *pair) for pair in ((point, corner), (corner, point)))
    return distance, first, second, _choose(of_b, normal, -normal)


def _outside(y, h):
    return y - jnp.clip(y, -h, h)


def crossing(a, b, axis, edge_a, edge_b, d, close):
    """The two edges of these directions that are farthest out along ``axis``: ``((gap, points, normal), proper)``.

    proper: the points are on the edges, not beyond their ends by more than ``close``
    """
    normal = jnp.where(dot(axis, d) < 0, -1.0, 1.0).astype(d.dtype)[:, None] * axis
    lines = []
    for box, edge, outward in ((a, edge_a, normal), (b, edge_b, -normal)):
        sign = jnp.where(turn_back(box.R, outward) < 0, -1.0, 1.0)
        along = jnp.arange(3)[None] == edge[:, None]
        local = jnp.where(along, 0.0, sign * box.size)
        lines.append((box.x + jnp.sum(box.R * local[:, None], axis=-1), jnp.sum(jnp.where(along[:, None], box.R, 0.0), axis=-1)))
    found = _of_lines(*lines[0], *lines[1], normal)
    proper = jnp.ones(d.shape[:1], bool)
    for box, edge, (middle, along), point in zip((a, b), (edge_a, edge_b), lines, found[1:3], strict=True):
        proper = proper & (jnp.abs(dot(point - middle, along)) <= _at(box.size, edge) + close)
    return found, proper


def _of_lines(p, along_p, q, along_q, normal):
    """``(gap, points, normal)`` where the lines through p and q are closest, their common normal being known."""
    gap = dot(q - p, normal)
    cosine = dot(along_p, along_q)
    det = 1 - cosine * cosine
    crossing = det > CLOSE**2
    r = q - p
    s = (dot(r, along_p) - cosine * dot(r, along_q)) / jnp.where(crossing, det, 1.0)
    t = (cosine * dot(r, along_p) - dot(r, along_q)) / jnp.where(crossing, det, 1.0)
    return gap, p + s[..., None] * along_p, q + t[..., None] * along_q, normal


def clipped(ref, inc, axis, scale, close, least):
    """``(gap (n, 8), points of ref (n, 8, 3), points of inc, normals, empty (n,))``: a face of ref and the face of inc opposite to it.

    axis: (n,) of ref, to which the face is perpendicular; least: (n,) gap of a point that is there
    empty: they have nothing in common
    """
    (R, x, h), (S, y, k) = ref, inc
    e = jnp.swapaxes(R, 1, 2)
    # Normal of the face, and its sides.
    out = _at(e, axis)
    sign = jnp.where(dot(out, y - x) < 0, -1.0, 1.0).astype(x.dtype)
    n = sign[:, None] * out
    u, v = (_at(e, (axis + i) % 3) for i in (1, 2))
    (h_n, h_u, h_v) = (_at(h, (axis + i) % 3) for i in range(3))
    middle = x + h_n[:, None] * n

    # The face of the other box that looks most against it.
    f = jnp.swapaxes(S, 1, 2)
    cosines = turn_back(S, n)
    opposite = jnp.argmax(jnp.abs(cosines), axis=1)
    outward = jnp.where(_at(cosines, opposite) > 0, -1.0, 1.0).astype(x.dtype)
    m = outward[:, None] * _at(f, opposite)
    sides = [_at(f, (opposite + i) % 3) for i in (1, 2)]
    halves = [_at(k, (opposite + i) % 3) for i in (1, 2)]
    center = y + _at(k, opposite)[:, None] * m
    arms = [half[:, None] * side for half, side in zip(halves, sides, strict=True)]

    found = []
    corners = [center - arms[0] - arms[1], center + arms[0] - arms[1], center + arms[0] + arms[1], center - arms[0] + arms[1]]
    for i, start in enumerate(corners):
        found += _of_edge(start, corners[(i + 1) % 4], sides[i % 2], halves[i % 2], (n, u, v), middle, h_u, h_v, scale, close)
    # Corners of the face within the other one: corner on face, with the other face's normal.
    for a, b in ((-1, -1), (1, -1), (1, 1), (-1, 1)):
        corner = middle + (a * h_u)[:, None] * u + (b * h_v)[:, None] * v
        # Along the normal of the first face, as for the others, decides which are within.
        steep = dot(m, n)
        above = corner + (dot(center - corner, m) / jnp.where(jnp.abs(steep) > 0.1, steep, -1.0))[:, None] * n
        inside, gap = jnp.abs(steep) > 0.1, dot(corner - center, m)
        for side, half in zip(sides, halves, strict=True):
            inside = inside & (jnp.abs(dot(above - center, side)) < half - close)
            # Apart, it must be where the point on the face is.
            inside = inside & ((gap <= 0) | (jnp.abs(dot(corner - center, side)) <= half + close))
        found.append((inside, gap, corner, corner - gap[:, None] * m, -m))

    there, gap, on_ref, on_inc, normal = (jnp.stack(parts, axis=1) for parts in zip(*found, strict=True))
    # Where faces have nothing in common the corner that is farthest out stands for how far apart they are.
    corner = y - jnp.sum(jnp.where(cosines < 0, -1.0, 1.0)[:, None] * k[:, None] * S, axis=-1)
    height = dot(corner - middle, n)
    alone = height, corner - height[:, None] * n, corner, n
    there = there & (gap >= least[:, None])
    empty = ~there.any(axis=1)
    instead = empty[:, None] & (jnp.arange(there.shape[1]) == 0)[None]
    there = there | instead
    gap, on_ref, on_inc, normal = (
        jnp.where(instead if many.ndim == 2 else instead[..., None], one[:, None], many)
        for one, many in zip(alone, (gap, on_ref, on_inc, normal), strict=True)
    )
    # Of the twelve that may be there at most eight are: those first.
    before = jnp.cumsum(there, axis=1, dtype=jnp.int32)
    mask = there[:, None] & (before[:, None] - 1 == jnp.arange(ROWS)[None, :, None])

    def taken(z):
        return jnp.sum(jnp.where(mask[..., None], z[:, None], 0.0), axis=2)

    gap = jnp.where(mask.any(axis=2), jnp.sum(jnp.where(mask, gap[:, None], 0.0), axis=2), FAR * scale[:, None])
    return gap, taken(on_ref), taken(on_inc), taken(normal), empty


def _of_edge(p, p_end, along, arm, face, middle, h_u, h_v, scale, close):
    """Both ends of what of an edge lies within the sides of a face: its own start, or where it crosses a side; the end where it does."""
    n, u, v = face
    d = p_end - p
    enter, leave = jnp.zeros_like(h_u), jnp.ones_like(h_u)
    within = jnp.ones(h_u.shape, bool)
    crossed = []
    for axis, half in ((u, h_u), (v, h_v)):
        a, b, reach = dot(p - middle, axis), dot(d, axis), half + close
        moving = jnp.abs(b) > CLOSE * jnp.abs(half)
        low, high = ((s * reach - a) / jnp.where(moving, b, 1.0) for s in (-1.0, 1.0))
        low, high = jnp.minimum(low, high), jnp.maximum(low, high)
        within = within & (moving | (jnp.abs(a) <= reach))
        crossed.append((jnp.where(moving, low, -jnp.inf), jnp.where(moving, high, jnp.inf)))
    (low_u, high_u), (low_v, high_v) = crossed
    enter = jnp.maximum(0.0, jnp.maximum(low_u, low_v))
    leave = jnp.minimum(1.0, jnp.minimum(high_u, high_v))
    within = within & (enter < leave)
    rows = []
    for s, own, by_u in ((enter, enter <= 0, low_u > low_v), (leave, None, high_u < high_v)):
        point = p + s[:, None] * d
        # A side of the face, which is along v where u is passed, crosses the edge.
        side, across = (jnp.where(by_u[:, None], *pair) for pair in ((v, u), (u, v)))
        height, place = dot(point - middle, n), dot(point - middle, across)
        foot = point - height[:, None] * n
        # On the side itself: what is close to it was taken for within.
        half = jnp.where(by_u, h_u, h_v)
        on_side = foot - (place - jnp.clip(place, -half, half))[:, None] * across
        normal = cross(side, along)
        square = dot(normal, normal)
        normal = normal / jnp.sqrt(jnp.where(square > CLOSE**2, square, 1.0))[:, None]
        normal = jnp.where(dot(normal, n) < 0, -1.0, 1.0).astype(n.dtype)[:, None] * normal
        edges = _of_lines(on_side, side, point, along, normal)
        # A steep edge beside the face is no contact with it, nor are edges whose closest points are beyond their ends.
        on_face, on_edge = dot(edges[1] - middle, side), dot(edges[2] - p - 0.5 * d, along)
        beyond = jnp.maximum(jnp.abs(on_face) - jnp.where(by_u, h_v, h_u), jnp.abs(on_edge) - arm)
        there = within & (square > CLOSE**2) & (dot(normal, n) > 0.5) & (beyond <= jnp.where(edges[0] > 0, close, BEYOND * scale))
        if own is None:
            rows.append((there & (leave < 1), *edges))
        else:
            corner = height, foot, point, n
            rows.append(((there | own) & within, *(_choose(own, c, e) for c, e in zip(corner, edges, strict=True))))
    return rows
