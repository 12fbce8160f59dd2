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
from . import broad_phase, closest, directions, faces, kinks, polyhedra, solids
from .boxes import FAR, separations
from .features import Row, Side, settled
from .frames import Frames, Touch
from .lists import pick
from .rotations import dot, turn
from .solids import Corners, Pair, Solid

ROWS = faces.ROWS
#: Kinds of solids that are round, beside those that are balls or that balls are a part of.
ROUND = {"cylinder", "ellipsoid"}


class Table(NamedTuple):
    """Of all shapes that are given by points what does not depend on where they are."""

    radii: dict  # (): how far their points are from their frame, at most, by the numbers of the shapes
    corners: object  # `solids.table` of those that are searched, None if none are
    counts: object  # (h,) how many each of these has


def table(points, searched):
    """`Table` of points (k, 3) by the numbers of the shapes; searched: numbers of those that are."""
    radii = {shape: in_memory(solids.farthest_corner)(x) for shape, x in points.items()}
    hulls = [points[s] for s in searched]
    return Table(radii, in_memory(solids.table)(hulls) if hulls else None, jnp.asarray([len(x) for x in hulls], jnp.int32))


class Pairs:
    """Pairs of shapes with the numbers ``first`` and ``second``, at `Frames`.

    table:    `Table`, of the shapes with the numbers ``searched`` among others
    """

    def __init__(self, structure, frames, table, searched, first, second):
        self.sides, self.having = [], []
        for shapes in (first, second):
            hulls = jnp.asarray([searched.index(s) if s in searched else 0 for s in shapes], jnp.int32)
            self.sides.append(solids.solids(frames.of(shapes), [structure.shapes[s].kind for s in shapes], hulls))
            # In a group those that come first have corners, all of them, or none; those that come second as well.
            self.having.append(shapes[0] in searched)
        self.hulls = table.corners, table.counts
        self.round = any(structure.shapes[s].kind in ROUND for s in (*first, *second))
        radii = broad_phase.radii(structure, frames, table.radii)
        self.sizes = pick(radii, first) + pick(radii, second)

    def search(self, reach_of_step=None, before=None):
        """What is asked of each of the n pairs, `packed`, then the `Row` s that are found, `_numbers_of` them: (n, k); not differentiated.

        reach_of_step: how far anything moves in the step that asks, in m, of all or of each pair, or None. Pairs that cannot meet
                       in it are not searched: their rows are none, as those of a pair that touches in fewer points are
        before:        the same nearby, in this step or the one before: where a pair has not moved since, that is the answer; where it
                       has, corners and a direction to begin with
        """
        near = jnp.inf if reach_of_step is None else reach_of_step
        near = jnp.broadcast_to(jnp.asarray(near, self.sizes.dtype), self.sizes.shape)
        asked = jnp.concatenate([packed(self.sides), self.sizes[:, None], near[:, None]], axis=1)

        # In a batch one after the other: their loops end at different times.
        rows_if_near = _rows_if_near if self.round else _rows_of_polyhedra_if_near

        @jax.custom_batching.sequential_vmap
        def choose(hulls, asked, before):
            def one(pair):
                asked, before = pair
                rows = rows_if_near(functools.partial(self.pair, hulls), asked, *jnp.split(before, [_ASKED]))
                return jnp.concatenate([asked, rows])

            return lax.map(one, (asked, before))

        # A program of its own: what several parts of a step ask for is compiled once, and kept. All numbers are one array, so that it is
        # the same program whichever of them are known.
        if before is None:
            before = jnp.zeros((len(asked), _ASKED + _NUMBERS + _MORE), asked.dtype)
        return when_needed(choose)(*lax.stop_gradient((self.hulls, asked, before)))

    def touches(self, searched):
        """`Touch` of the rows, pair after pair."""

        def one(hulls, rows, *given):
            row = _of_numbers(rows)[0]
            return lax.cond(jnp.any(row.there), there, nowhere, hulls, row, *given)

        def nowhere(hulls, row, a, b, size):
            return broad_phase.not_there(there, size, hulls, row, a, b, size)

        def there(hulls, row, *given):
            pair = self.pair(hulls, *given)
            touch = settled(row, pair.a, pair.b, pair.corners_a, pair.corners_b, pair.scale)
            closest = row.there & ~(touch.gap < row.least)
            gap = jnp.where(closest, touch.gap, FAR * pair.scale)
            return Touch(gap, *(jnp.where(closest[:, None], x, 0.0) for x in touch[1:]))

        def all_(hulls, *pairs):
            return lax.map(lambda pair: one(hulls, *pair), pairs)

        found = when_needed(all_)(self.hulls, lax.stop_gradient(searched[:, _ASKED:]), *self.sides, self.sizes)
        return Touch(*(x.reshape(-1, *x.shape[2:]) for x in found))

    def pair(self, hulls, a, b, size):
        """`Pair` of two solids."""
        corners = [Corners(hulls[0], x.hull, hulls[1][x.hull]) if having else None for x, having in zip((a, b), self.having, strict=True)]
        return Pair(a, b, *corners, size)


def _rows_if_near(pair_of, asked, asked_before, rows_before):
    """Numbers of the `Row` s of two solids where these are no farther apart than may matter, searched; else of rows that are not there.

    What is farther is told first by the balls around them, which cost least, then by the boxes, then along a few directions.
    """
    a, b = unpacked(asked[:-2])
    size = asked[-2]
    far = asked[-1] + broad_phase.NEAR * size
    away, row = b.x - a.x, _of_numbers(rows_before)[0]
    same = _answered(asked, asked_before, row)

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

        def search(state):
            k, n, _ = state
            # Where the direction of before leads to nothing certain, once more from one that is looked for here.
            n = lax.cond(k == 0, lambda: n, lambda: directions.best_of_table(of, directions.axes_of(a, b))[0])
            row = faces.rows(pair, kinks.closest_row(pair, of, *closest.search(of, n)))
            return k + 1, n, _numbers_of(row)

        def uncertain(state):
            # Gaps of the rows beside the closest one are no numbers: nobody has computed them.
            return (state[0] < 2) & ~jnp.all(jnp.isfinite(_of_numbers(state[2])[0].normal))

        return lax.while_loop(uncertain, search, (jnp.int32(0), n, jnp.full_like(rows_before, jnp.nan)))[2]

    # What is no number is near.
    apart = jnp.sqrt(dot(away, away)) - size > far
    look, n = lax.cond(apart | same, none, moved)
    return lax.cond(look, searched, lambda _: jnp.where(same & ~apart, rows_before, _left_out(rows_before)), n)


def _rows_of_polyhedra_if_near(pair_of, asked, asked_before, rows_before):
    """The same of solids without anything round but balls. They are far if the search comes along a direction in which they are."""
    a, b = unpacked(asked[:-2])
    size = asked[-2]
    far = asked[-1] + broad_phase.NEAR * size
    away, (row, *corners) = b.x - a.x, _of_numbers(rows_before)
    same, distance = _answered(asked, asked_before, row), jnp.sqrt(dot(away, away))

    def searched(state):
        k, _ = state
        pair = pair_of(a, b, size)
        of = polyhedra.difference_of(pair)
        there, numbers_before = jnp.any(row.there), (corners[0], corners[1][:, : len(of.hulls)])
        # Of rows that are none the first one says along which direction they were none.
        n = row.normal[jnp.argmax(row.there)]
        known = (k == 0) & jnp.any(n != 0) & jnp.all(jnp.isfinite(n))
        middle = jnp.where(distance > 0, away / jnp.where(distance > 0, distance, 1.0), a.R[:, 0])
        n = jnp.where(known, n, middle)
        triangle = lax.cond(known, lambda: polyhedra.again(of, *numbers_before), lambda: polyhedra.alone(of, n))
        enough = jnp.where(there & known, jnp.inf, far + a.ball + b.ball)
        triangle, n, s = closest.search_polyhedra(pair, n, enough, triangle)

        def rows():
            sum_, found, numbers = polyhedra.few(of, triangle, n)
            row, gap, point = kinks.closest_row(pair, sum_, found, s)
            sides, numbers = [], list(numbers)
            for side, corners in ((row.a, pair.corners_a), (row.b, pair.corners_b)):
                sides.append(side if corners is None else side._replace(corner=numbers.pop(0)[side.corner]))
            row = row._replace(a=sides[0], b=sides[1])
            row = faces.rows(pair, (row, gap, point))
            # Somewhere solids are the closest: if that is none of the rows, the search was not certain.
            return _numbers_of(row._replace(normal=jnp.where(jnp.any(row.there), row.normal, jnp.nan)), triangle)

        def none():
            nothing = _of_numbers(jnp.zeros_like(rows_before))[0]
            return _numbers_of(nothing._replace(normal=jnp.broadcast_to(n, nothing.normal.shape)), triangle)

        # What is no number is near.
        return k + 1, lax.cond(s > enough, none, rows)

    def uncertain(state):
        # Where what was found before leads to nothing certain, once more without it.
        return (state[0] < 2) & ~jnp.all(jnp.isfinite(_of_numbers(state[1])[0].normal))

    def found():
        return lax.while_loop(uncertain, searched, (jnp.int32(0), jnp.full_like(rows_before, jnp.nan)))[1]

    apart = distance - size > far
    return lax.cond(apart | same, lambda: jnp.where(same & ~apart, rows_before, _left_out(rows_before)), found)


def _answered(asked, asked_before, row):
    """Whether what was found before is the answer: the solids are where they were, and have rows, or were too far away for as much."""
    return jnp.all(asked[:-1] == asked_before[:-1]) & (jnp.any(row.there) | (asked[-1] <= asked_before[-1]))


def _apart(pair):
    """How far the boxes around two solids are apart along the normals of their faces and across their edges: not more than the solids."""
    boxes_around = []
    for solid, corners in ((pair.a, pair.corners_a), (pair.b, pair.corners_b)):
        half, center = solid.scale + solid.axes + solid.ball, jnp.zeros_like(solid.x)
        if corners is not None:
            low, high = jnp.min(corners.all(), axis=1), jnp.max(corners.all(), axis=1)
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


#: How many numbers are asked: two solids, the size of the pair, and how near it has to be.
_ASKED = 44
#: Of each row of a pair: units, corners and whether discs follow of both sides, its normal, whether it is there, its gap and the least one.
_SHAPES = ((3, 3), (3,), (), (3, 3), (3,), (), (3,), (), (), ())
_NUMBERS = ROWS * sum(map(math.prod, _SHAPES))

#: And of polyhedra the corners that the last search ended with: signs and numbers.
_MORE = 3 * 6 + 3 * 2

#: One where those say whether a row is there.
_THERE = np.zeros(_NUMBERS + _MORE)
_THERE[ROWS * sum(map(math.prod, _SHAPES[:7])) :][:ROWS] = 1


def _numbers_of(row, triangle=None):
    """`Row` (ROWS) as numbers, with those of a `polyhedra.Triangle`."""
    parts, dtype = jax.tree.leaves(row), row.normal.dtype
    if triangle is None:
        parts.append(jnp.zeros((_MORE,), dtype))
    else:
        corner = triangle.corner
        parts += [triangle.sign, jnp.pad(corner, ((0, 0), (0, 2 - corner.shape[1])))]
    return jnp.concatenate([x.astype(dtype).reshape(-1) for x in parts])


def _left_out(numbers):
    """The same numbers of rows of which none is there: a later search begins with what they say."""
    return numbers * (1.0 - jnp.asarray(_THERE, numbers.dtype))


def _of_numbers(numbers):
    """And back: ``(Row, signs (3, 6), numbers of corners (3, 2))``."""
    ends = np.cumsum([*(ROWS * math.prod(shape) for shape in _SHAPES), 18])
    *parts, sign, corner = jnp.split(numbers, ends)
    a_unit, a_corner, a_follows, b_unit, b_corner, b_follows, normal, there, gap, least = (
        x.reshape(ROWS, *shape) for x, shape in zip(parts, _SHAPES, strict=True)
    )
    a, b = (Side(u, c.astype(jnp.int32), f > 0) for u, c, f in ((a_unit, a_corner, a_follows), (b_unit, b_corner, b_follows)))
    return Row(a, b, normal, there > 0, gap, least), sign.reshape(3, 6), corner.reshape(3, 2).astype(jnp.int32)
