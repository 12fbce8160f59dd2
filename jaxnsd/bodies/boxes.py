"""Two boxes: of all pairs of features the ones that touch, or would, with the normal of each.

The axis with the largest separation says which (Gottschalk et al. 1996). Is it the normal of a face, the opposite face of the other box is
clipped against it: its corners within the face are points of a corner on a face, as are the corners of the face within the other one, and
where two edges cross, they are points of two edges. Is it the product of two edges, those are the only ones. What is closest is a choice
that is not differentiated; every point has the normal of its two features, so that its gap changes as its two material points move.

Where boxes overlap the smallest gap is minus the depth, the shortest way out. Where they are apart it is how far they are along that axis:
their distance where a corner is over a face or edges cross, else (a corner beside a corner or an edge) a lower bound of it.
"""

import jax.numpy as jnp

from .frames import Touch
from .rotations import cross, dot, turn_back

#: Points of a pair; two rectangles have up to eight in common.
ROWS = 8
#: Gap of points that are not there, in half edges.
FAR = 1e3
#: Edges, and corners, this close to each other (in half edges) count once; edges with an angle below it are parallel.
CLOSE = 1e-6
#: Edges decide where they are farther apart than the faces by this part of a half edge: parallel to a face, they are as far to round-off.
PREFERRED = 1e-3


def touches(a, b):
    """Eight lists of ``(gap, point of a, point of b, normal)`` for boxes a and b (frames of n each)."""
    d = b.x - a.x
    along, scale = separations(a, b, d), jnp.max(jnp.concatenate([a.size, b.size], axis=1), axis=1)
    faces, (axes, edges) = along
    face, edge = jnp.argmax(faces, axis=1), jnp.argmax(edges, axis=1)
    by_edges = jnp.max(edges, axis=1) > jnp.max(faces, axis=1) + PREFERRED * scale

    # The box whose face it is, and the other one.
    of_b = face >= 3
    ref, inc = (tuple(_choose(of_b, y, x) for x, y in zip(*pair, strict=True)) for pair in ((a, b), (b, a)))
    gap, on_ref, on_inc, normal = clipped(ref, inc, face % 3, scale)
    first, second = (_choose(of_b, y, x) for x, y in ((on_ref, on_inc), (on_inc, on_ref)))
    normal = _choose(of_b, -normal, normal)

    alone = crossing(a, b, _at(axes, edge), edge // 3, edge % 3, d)
    row = jnp.arange(ROWS)[None] == 0
    gap = jnp.where(by_edges[:, None], jnp.where(row, alone[0][:, None], FAR * scale[:, None]), gap)
    first, second, normal = (
        # Points that are not there have no normal either, so that they do not move.
        jnp.where(by_edges[:, None, None], jnp.where(row[..., None], one[:, None], 0.0), many)
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


def crossing(a, b, axis, edge_a, edge_b, d):
    """The two edges of these directions that are farthest out along ``axis``: ``(gap, points, normal)``."""
    normal = jnp.where(dot(axis, d) < 0, -1.0, 1.0).astype(d.dtype)[:, None] * axis
    points = []
    for box, edge, outward in ((a, edge_a, normal), (b, edge_b, -normal)):
        sign = jnp.where(turn_back(box.R, outward) < 0, -1.0, 1.0)
        along = jnp.arange(3)[None] == edge[:, None]
        local = jnp.where(along, 0.0, sign * box.size)
        points.append((box.x + jnp.sum(box.R * local[:, None], axis=-1), jnp.sum(jnp.where(along[:, None], box.R, 0.0), axis=-1)))
    return _of_lines(*points[0], *points[1], normal)


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


def clipped(ref, inc, axis, scale):
    """``(gap (n, 8), points of ref (n, 8, 3), points of inc, normals)`` between a face of ref and the face of inc opposite to it.

    axis: (n,) of ref, to which the face is perpendicular
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
    close = CLOSE * scale
    corners = [center - arms[0] - arms[1], center + arms[0] - arms[1], center + arms[0] + arms[1], center - arms[0] + arms[1]]
    for i, start in enumerate(corners):
        found += _of_edge(start, corners[(i + 1) % 4], sides[i % 2], (n, u, v), middle, h_u + close, h_v + close)
    # Corners of the face within the other one: corner on face, with the other face's normal.
    for a, b in ((-1, -1), (1, -1), (1, 1), (-1, 1)):
        corner = middle + (a * h_u)[:, None] * u + (b * h_v)[:, None] * v
        # Along the normal of the first face, as for the others, decides which are within.
        steep = dot(m, n)
        above = corner + (dot(center - corner, m) / jnp.where(jnp.abs(steep) > 0.1, steep, -1.0))[:, None] * n
        inside = jnp.abs(steep) > 0.1
        for side, half in zip(sides, halves, strict=True):
            inside = inside & (jnp.abs(dot(above - center, side)) < half - close)
        gap = dot(corner - center, m)
        found.append((inside, gap, corner, corner - gap[:, None] * m, -m))

    there, gap, on_ref, on_inc, normal = (jnp.stack(parts, axis=1) for parts in zip(*found, strict=True))
    # Faces that are not opposite to each other have nothing in common: the corner that is farthest out stands for how far apart they are.
    corner = y - jnp.sum(jnp.where(cosines < 0, -1.0, 1.0)[:, None] * k[:, None] * S, axis=-1)
    height = dot(corner - middle, n)
    alone = height, corner - height[:, None] * n, corner, n
    instead = ~there.any(axis=1)[:, None] & (jnp.arange(there.shape[1]) == 0)[None]
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
    return gap, taken(on_ref), taken(on_inc), taken(normal)


def _of_edge(p, p_end, along, face, middle, h_u, h_v):
    """Both ends of what of an edge lies within the sides of a face: its own start, or where it crosses a side; the end where it does."""
    n, u, v = face
    d = p_end - p
    enter, leave = jnp.zeros_like(h_u), jnp.ones_like(h_u)
    within = jnp.ones(h_u.shape, bool)
    crossed = []
    for axis, half in ((u, h_u), (v, h_v)):
        a, b = dot(p - middle, axis), dot(d, axis)
        moving = jnp.abs(b) > CLOSE * jnp.abs(half)
        low, high = ((s * half - a) / jnp.where(moving, b, 1.0) for s in (-1.0, 1.0))
        low, high = jnp.minimum(low, high), jnp.maximum(low, high)
        within = within & (moving | (jnp.abs(a) <= half))
        crossed.append((jnp.where(moving, low, -jnp.inf), jnp.where(moving, high, jnp.inf)))
    (low_u, high_u), (low_v, high_v) = crossed
    enter = jnp.maximum(0.0, jnp.maximum(low_u, low_v))
    leave = jnp.minimum(1.0, jnp.minimum(high_u, high_v))
    within = within & (enter < leave)
    rows = []
    for s, own, by_u in ((enter, enter <= 0, low_u > low_v), (leave, None, high_u < high_v)):
        point = p + s[:, None] * d
        height = dot(point - middle, n)
        corner = height, point - height[:, None] * n, point, n
        # A side of the face, which is along v where u is passed, crosses the edge.
        side = jnp.where(by_u[:, None], v, u)
        normal = cross(side, along)
        square = dot(normal, normal)
        normal = normal / jnp.sqrt(jnp.where(square > CLOSE**2, square, 1.0))[:, None]
        normal = jnp.where(dot(normal, n) < 0, -1.0, 1.0).astype(n.dtype)[:, None] * normal
        foot = point - height[:, None] * n
        edges = _of_lines(foot, side, point, along, normal)
        proper = (square > CLOSE**2) & (dot(normal, n) > 0.5)
        two = tuple(_choose(proper, e, c) for e, c in zip(edges, corner, strict=True))
        # A steep edge beside the face is no contact: it counts where it has penetrated alone.
        there = within & (proper | (height <= 0))
        if own is None:
            rows.append((there & (leave < 1), *two))
        else:
            rows.append((there | (within & own), *(_choose(own, c, e) for c, e in zip(corner, two, strict=True))))
    return rows
