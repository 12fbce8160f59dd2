"""Pairs of convex solids that have no formula of their own: hulls, cylinders, ellipsoids, boxes, capsules, balls with each other.

What touches is searched pair after pair in one loop (`closest`, `kinks`, `faces`), so that a program does not grow with the number of
pairs, and is not differentiated. Gaps, points and normals follow from it by the formulas of `features`, which are.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from ..native.marks import when_needed
from . import broad_phase, closest, directions, faces, kinks
from .boxes import FAR, separations
from .features import settled
from .frames import Frames, Touch
from .lists import pick
from .rotations import dot, turn
from .solids import Pair, Solid, solids

ROWS = faces.ROWS


def table(points, shapes):
    """``(corners (h, k, 3), number of the hull of each shape)``: the last corner of a hull with fewer is repeated; None without hulls."""
    having = sorted({s for s in shapes if s in points})
    if not having:
        return None, None
    most = max(points[s].shape[0] for s in having)
    padded = [jnp.concatenate([points[s], jnp.broadcast_to(points[s][-1:], (most - points[s].shape[0], 3))]) for s in having]
    return jnp.stack(padded), jnp.asarray([having.index(s) for s in shapes], jnp.int32)


def touches(structure, frames, points, first, second, reach_of_step=None):
    """`Touch` of the rows, pair after pair, of shapes with the numbers ``first`` and ``second``; points: of the shapes that are hulls.

    reach_of_step: how far anything moves in the step that asks, in m, of all or of each pair, or None. Pairs that cannot meet
    in it are not searched: their rows are none, as those of a pair that touches in fewer points are
    """
    kinds = [[structure.shapes[s].kind for s in shapes] for shapes in (first, second)]
    sides, tables = [], []
    for shapes, own in zip((first, second), kinds, strict=True):
        corners, hulls = table(points, shapes)
        sides.append(solids(frames.of(shapes), own, hulls))
        tables.append(corners)
    radii = broad_phase.radii(structure, frames, points)
    sizes = pick(radii, first) + pick(radii, second)

    def pair_of(tables, a, b, size):
        corners = [None if corners is None else corners[solid.hull] for corners, solid in zip(tables, (a, b), strict=True)]
        return Pair(a, b, *corners, size)

    # In a batch one after the other: their loops end at different times.
    @jax.custom_batching.sequential_vmap
    def choose(tables, numbers):
        # A program of its own: what several parts of a step ask for is compiled once, and kept. All numbers are one array, so that it is
        # the same program whichever of them are known.
        return lax.map(lambda x: _rows_if_near(functools.partial(pair_of, tables), *unpacked(x[:-2]), *x[-2:]), numbers)

    def settle(tables, chosen):
        return lax.cond(jnp.any(chosen[0].there), there, nowhere, tables, chosen)

    def nowhere(tables, chosen):
        return broad_phase.not_there(there, chosen[-1], tables, chosen)

    def there(tables, chosen):
        row, *given = chosen
        pair = pair_of(tables, *given)
        touch = settled(row, pair.a, pair.b, pair.corners_a, pair.corners_b, pair.scale)
        closest = row.there & ~(touch.gap < row.least)
        gap = jnp.where(closest, touch.gap, FAR * pair.scale)
        return Touch(gap, *(jnp.where(closest[:, None], x, 0.0) for x in touch[1:]))

    near = jnp.inf if reach_of_step is None else reach_of_step
    near = jnp.broadcast_to(jnp.asarray(near, frames.x.dtype), (len(first),))
    numbers = jnp.concatenate([packed(sides), sizes[:, None], near[:, None]], axis=1)
    rows = when_needed(choose)(*lax.stop_gradient((tables, numbers)))
    found = when_needed(lambda tables, *chosen: lax.map(lambda x: settle(tables, x), chosen))(tables, rows, *sides, sizes)
    return Touch(*(x.reshape(-1, *x.shape[2:]) for x in found))


def _rows_if_near(pair_of, a, b, size, reach_of_step):
    """`_rows` of solids of this size that are no farther apart than this; else rows that are not there.

    First by the balls around them, which cost least, then by the boxes.
    """
    away, far = b.x - a.x, reach_of_step + broad_phase.NEAR * size

    def by_boxes():
        pair = pair_of(a, b, size)
        return lax.cond(_apart(pair) > far, nothing, lambda: _rows(pair))

    def nothing():
        shapes = jax.eval_shape(lambda: _rows(pair_of(a, b, size)))
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

    # What is no number is near.
    return lax.cond(jnp.sqrt(dot(away, away)) - size > far, nothing, by_boxes)


def _apart(pair):
    """How far the boxes around two solids are apart along the normals of their faces and across their edges: not more than the solids."""
    boxes_around = []
    for solid, corners in ((pair.a, pair.corners_a), (pair.b, pair.corners_b)):
        half, center = solid.scale + solid.axes + solid.ball, jnp.zeros_like(solid.x)
        if corners is not None:
            low, high = jnp.min(corners, axis=0), jnp.max(corners, axis=0)
            half, center = half + 0.5 * (high - low), 0.5 * (high + low)
        boxes_around.append(Frames(solid.R[None], (solid.x + turn(solid.R, center))[None], half[None]))
    one, other = boxes_around
    along_faces, (_, across_edges) = separations(one, other, other.x - one.x)
    return jnp.maximum(jnp.max(along_faces), jnp.max(across_edges))


def _rows(pair):
    of = directions.sum_of(*pair)
    found, s = closest.search(of, directions.axes_of(pair.a, pair.b))
    return faces.rows(pair, kinks.closest_row(pair, of, found, s))


def packed(sides):
    """Numbers (n, 42) of the two solids of n pairs."""
    parts = []
    for solid in sides:
        n, dtype = solid.x.shape[0], solid.x.dtype
        hull = jnp.zeros((n,), jnp.int32) if solid.hull is None else solid.hull
        parts += [jnp.reshape(part, (n, -1)).astype(dtype) for part in (*solid[:-1], hull)]
    return jnp.concatenate(parts, axis=1)


def unpacked(numbers):
    """The two solids of `packed` ones, of one pair (42,)."""
    out = []
    for x in jnp.split(numbers, 2):
        out.append(Solid(x[:9].reshape(3, 3), x[9:12], x[12:15], x[15], x[16:19], x[19], x[20].astype(jnp.int32)))
    return out
