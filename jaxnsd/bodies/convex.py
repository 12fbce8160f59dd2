"""Pairs of convex solids that have no formula of their own: hulls, cylinders, ellipsoids, boxes, capsules, balls with each other.

What touches is searched pair after pair in one loop (`closest`, `kinks`, `faces`), so that a program does not grow with the number of
pairs, and is not differentiated. Gaps, points and normals follow from it by the formulas of `features`, which are.
"""

import jax
import jax.numpy as jnp
from jax import lax

from ..native.marks import when_needed
from . import closest, directions, faces, kinks
from .boxes import FAR
from .features import settled
from .frames import Touch
from .solids import Pair, Solid, reach, solids

ROWS = faces.ROWS


def table(points, shapes):
    """``(corners (h, k, 3), number of the hull of each shape)``: the last corner of a hull with fewer is repeated; None without hulls."""
    having = sorted({s for s in shapes if s in points})
    if not having:
        return None, None
    most = max(points[s].shape[0] for s in having)
    padded = [jnp.concatenate([points[s], jnp.broadcast_to(points[s][-1:], (most - points[s].shape[0], 3))]) for s in having]
    return jnp.stack(padded), jnp.asarray([having.index(s) for s in shapes], jnp.int32)


def touches(structure, frames, points, first, second):
    """`Touch` of the rows, pair after pair, of shapes with the numbers ``first`` and ``second``; points: of the shapes that are hulls."""
    kinds = [[structure.shapes[s].kind for s in shapes] for shapes in (first, second)]
    sides, tables = [], []
    for shapes, own in zip((first, second), kinds, strict=True):
        corners, hulls = table(points, shapes)
        sides.append(solids(frames.of(shapes), own, hulls))
        tables.append(corners)

    def pair_of(tables, a, b):
        corners = [None if corners is None else corners[solid.hull] for corners, solid in zip(tables, (a, b), strict=True)]
        return Pair(a, b, *corners, reach(a, corners[0]) + reach(b, corners[1]))

    # In a batch one after the other: their loops end at different times.
    @jax.custom_batching.sequential_vmap
    def choose(tables, numbers):
        # A program of its own: what several parts of a step ask for is compiled once, and kept. All numbers are one array, so that it is
        # the same program whichever of them are known.
        return lax.map(lambda x: _rows(pair_of(tables, *unpacked(x))), numbers)

    def settle(tables, chosen):
        row, a, b = chosen
        pair = pair_of(tables, a, b)
        touch = settled(row, a, b, pair.corners_a, pair.corners_b, pair.scale)
        there = row.there & ~(touch.gap < row.least)
        gap = jnp.where(there, touch.gap, FAR * pair.scale)
        return Touch(gap, *(jnp.where(there[:, None], x, 0.0) for x in touch[1:]))

    rows = when_needed(choose)(*lax.stop_gradient((tables, packed(sides))))
    found = when_needed(lambda tables, *chosen: lax.map(lambda x: settle(tables, x), chosen))(tables, rows, *sides)
    return Touch(*(x.reshape(-1, *x.shape[2:]) for x in found))


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
