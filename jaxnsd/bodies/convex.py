"""Pairs of convex solids that have no formula of their own: hulls, cylinders, ellipsoids, boxes, capsules, balls with each other.

What touches is searched pair after pair in one loop (`closest`, `kinks`, `faces`), so that a program does not grow with the number of
pairs, and is not differentiated. Gaps, points and normals follow from it by the formulas of `features`, which are.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..native.marks import in_memory, when_needed
from . import broad_phase, closest, directions, faces, kinks
from .boxes import FAR, separations
from .features import Row, Side, settled
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

    def padded(all_):
        return jnp.stack([jnp.concatenate([x, jnp.broadcast_to(x[-1:], (most - x.shape[0], 3))]) for x in all_])

    return in_memory(padded)([points[s] for s in having]), jnp.asarray([having.index(s) for s in shapes], jnp.int32)


class Searched(NamedTuple):
    """What was asked of each of n pairs, and the rows that were found, as numbers: see `packed` and `_of_numbers`."""

    asked: object  # (n, 44)
    rows: object  # (n, k)


class Pairs:
    """Pairs of shapes with the numbers ``first`` and ``second``, at `Frames`; points: of the shapes that are hulls."""

    def __init__(self, structure, frames, points, first, second):
        self.sides, self.tables = [], []
        for shapes in (first, second):
            corners, hulls = table(points, shapes)
            self.sides.append(solids(frames.of(shapes), [structure.shapes[s].kind for s in shapes], hulls))
            self.tables.append(corners)
        radii = broad_phase.radii(structure, frames, points)
        self.sizes = pick(radii, first) + pick(radii, second)

    def search(self, reach_of_step=None, before=None):
        """`Searched`, pair after pair; not differentiated.

        reach_of_step: how far anything moves in the step that asks, in m, of all or of each pair, or None. Pairs that cannot meet
                       in it are not searched: their rows are none, as those of a pair that touches in fewer points are
        before:        `Searched` nearby, in this step: where a pair has not moved since, that is the answer; where it has, a direction to
                       begin with
        """
        near = jnp.inf if reach_of_step is None else reach_of_step
        near = jnp.broadcast_to(jnp.asarray(near, self.sizes.dtype), self.sizes.shape)
        asked = jnp.concatenate([packed(self.sides), self.sizes[:, None], near[:, None]], axis=1)

        # In a batch one after the other: their loops end at different times.
        @jax.custom_batching.sequential_vmap
        def choose(tables, *asked):
            return lax.map(lambda asked: _rows_if_near(functools.partial(_pair, tables), *asked), asked)

        # A program of its own: what several parts of a step ask for is compiled once, and kept. All numbers are one array, so that it is
        # the same program whichever of them are known.
        if before is None:
            before = Searched(jnp.full_like(asked, jnp.nan), jnp.zeros((len(asked), _NUMBERS), asked.dtype))
        args = lax.stop_gradient((self.tables, asked, *before))
        return Searched(args[1], when_needed(choose)(*args))

    def touches(self, searched):
        """`Touch` of the rows, pair after pair."""

        def one(tables, rows, *given):
            row = _of_numbers(rows)
            return lax.cond(jnp.any(row.there), there, nowhere, tables, row, *given)

        def nowhere(tables, row, a, b, size):
            return broad_phase.not_there(there, size, tables, row, a, b, size)

        def there(tables, row, *given):
            pair = _pair(tables, *given)
            touch = settled(row, pair.a, pair.b, pair.corners_a, pair.corners_b, pair.scale)
            closest = row.there & ~(touch.gap < row.least)
            gap = jnp.where(closest, touch.gap, FAR * pair.scale)
            return Touch(gap, *(jnp.where(closest[:, None], x, 0.0) for x in touch[1:]))

        def all_(tables, *pairs):
            return lax.map(lambda pair: one(tables, *pair), pairs)

        found = when_needed(all_)(self.tables, lax.stop_gradient(searched.rows), *self.sides, self.sizes)
        return Touch(*(x.reshape(-1, *x.shape[2:]) for x in found))


def _pair(tables, a, b, size):
    """`Pair` of two solids."""
    corners = [None if corners is None else corners[solid.hull] for corners, solid in zip(tables, (a, b), strict=True)]
    return Pair(a, b, *corners, size)


def _rows_if_near(pair_of, asked, asked_before, rows_before):
    """Numbers of the `Row` s of two solids where these are no farther apart than may matter, searched; else of rows that are not there.

    What is farther is told first by the balls around them, which cost least, then by the boxes, then along a few directions.
    """
    a, b = unpacked(asked[:-2])
    size = asked[-2]
    far = asked[-1] + broad_phase.NEAR * size
    away, same = b.x - a.x, jnp.all(asked[:-1] == asked_before[:-1])
    row = _of_numbers(rows_before)

    def none():
        return jnp.asarray(False), away

    def by_boxes():
        return lax.cond(_apart(pair_of(a, b, size)) > far, none, along_a_few)

    def along_a_few():
        of = directions.sum_of(*pair_of(a, b, size))
        n, s = directions.best_of_table(of, directions.axes_of(a, b), far + a.ball + b.ball)
        return ~(s - a.ball - b.ball > far), n

    def moved():
        n = row.normal[jnp.argmax(row.there)]
        known = jnp.any(row.there) & jnp.all(jnp.isfinite(n))
        return lax.cond(known, lambda: (jnp.asarray(True), n), by_boxes)

    def searched(n):
        pair = pair_of(a, b, size)
        of = directions.sum_of(*pair)
        return _numbers_of(faces.rows(pair, kinks.closest_row(pair, of, *closest.search(of, n))))

    # What is no number is near.
    apart = jnp.sqrt(dot(away, away)) - size > far
    look, n = lax.cond(apart | same, none, moved)
    return lax.cond(look, searched, lambda _: jnp.where(same & ~apart, rows_before, 0.0), n)


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


#: Of each row of a pair: units, corners and whether discs follow of both sides, its normal, whether it is there, its gap and the least one.
_SHAPES = ((3, 3), (3,), (), (3, 3), (3,), (), (3,), (), (), ())
_NUMBERS = ROWS * sum(map(math.prod, _SHAPES))


def _numbers_of(row):
    """`Row` (ROWS) as numbers."""
    return jnp.concatenate([x.astype(row.normal.dtype).reshape(-1) for x in jax.tree.leaves(row)])


def _of_numbers(numbers):
    """And back."""
    ends = np.cumsum([ROWS * math.prod(shape) for shape in _SHAPES])[:-1]
    a_unit, a_corner, a_follows, b_unit, b_corner, b_follows, normal, there, gap, least = (
        x.reshape(ROWS, *shape) for x, shape in zip(jnp.split(numbers, ends), _SHAPES, strict=True)
    )
    a, b = (Side(u, c.astype(jnp.int32), f > 0) for u, c, f in ((a_unit, a_corner, a_follows), (b_unit, b_corner, b_follows)))
    return Row(a, b, normal, there > 0, gap, least)
