"""Two convex solids without corners that overlap: whether they are farther apart along other directions than along those that are known.

The separation (see `directions`) of overlapping solids may have several largest values, and a climb leads to one of them. The others are
looked for by branch and bound. A cell is a square of a side of a cube about the origin, seen from there. It is left out where

1. the separation is not above the best known one: any difference d of a point of the second solid and one of the first bounds it,
   s(n) <= d . n, which in the square is largest at a corner, or
2. it has no largest value inside: there d is along n, and d . t = 0 in each direction t across n, for one of the d of n. How much d may
   change in the cell is bounded.

What remains is cut into four, and from the smallest cells a climb begins. What is within `ASIDE` of where a climb has ended counts as
seen: of two largest values as close to each other the smaller one may be taken, by less than `ASIDE`^2 / 2 of the depth. If all climbs have
been spent, as where a whole circle of directions is as good, only the middles of further cells are looked at.
"""

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from .rotations import cross, dot, turn

#: How often a cell is halved; before it counts as seen where a climb has ended; and if no climb may begin any more.
DEPTH, CLOSE, COARSE = 10, 9, 7
#: Climbs that begin in cells that remain, and all of them.
CLIMBS, ALL = 24, 48
#: Cells of the last level, in an order in which those of one cell of any level follow each other.
LAST = 6 * 4**DEPTH
#: What is this close to a climb's end counts as seen, in rad.
ASIDE = 0.004
#: Middles of the sides of the cube, and what spans each.
SIDES = np.stack([np.stack([sign * np.roll([1.0, 0.0, 0.0], k), *np.roll(np.eye(3), k, axis=1)[1:]]) for k in range(3) for sign in (1, -1)])


class Look(NamedTuple):
    """Where a search through the cells is."""

    place: object  # number of a cell of the last level
    level: object  # of the cell that begins with it
    n: object  # (3,) its middle
    calls: object  # whether a climb shall begin there


def cell(place, level, dtype):
    """``(middle (3,) on the cube, the two arms (2, 3) from there to its edges)``."""
    k = np.arange(DEPTH)
    digits = place // jnp.asarray(4 ** (DEPTH - 1 - k), place.dtype) % 4
    steps = jnp.where(k < level, jnp.asarray(0.5 ** (k + 1), dtype), 0.0)
    side = lax.dynamic_index_in_dim(jnp.asarray(SIDES, dtype), place // 4**DEPTH, keepdims=False)
    u, v = (jnp.sum(jnp.where(digit > 0, steps, -steps)) for digit in (digits % 2, digits // 2))
    return side[0] + u * side[1] + v * side[2], (1 - jnp.sum(steps)) * side[1:]


def after(place, level):
    """``(place, level)`` of the largest cell that begins where this one ends."""
    place = place + lax.dynamic_index_in_dim(jnp.asarray(4 ** np.arange(DEPTH, -1, -1), place.dtype), level, keepdims=False)
    ends = place % jnp.asarray(4 ** np.arange(1, DEPTH + 1), place.dtype) == 0
    return place, DEPTH - jnp.sum(ends, dtype=place.dtype)


def judged(of, p, arms, best):
    """``(separation along p, what it does not exceed in the cell)``; minus infinity where it has no largest value there above ``best``."""
    size = jnp.sqrt(dot(p, p))
    n = p / size
    # In the cell a product g . p changes by up to `across`, and a vector E p.
    x, stretched = dot(of.segments, p[None]), turn(of.ellipsoids, p[None])
    across_x = jnp.sum(jnp.abs(dot(of.segments[None], arms[:, None])), axis=0)
    one, two = (turn(of.ellipsoids, arm[None]) for arm in arms)
    across_z = jnp.sqrt(dot(one, one) + dot(two, two) + 2 * jnp.abs(dot(one, two)))
    r = jnp.sqrt(dot(stretched, stretched))
    # Where it is on both sides of a kink, what is between both of its differences bounds better than either.
    far_x, far_z = jnp.maximum(jnp.abs(x), across_x), jnp.maximum(r, across_z)
    y, z = x / jnp.where(far_x > 0, far_x, 1.0), stretched / jnp.where(far_z > 0, far_z, 1.0)[:, None]
    d = of.c - jnp.sum(y[:, None] * of.segments, axis=0) - jnp.sum(z[:, :, None] * of.ellipsoids, axis=(0, 1))
    s = (dot(of.c, p) - jnp.sum(jnp.abs(x)) - jnp.sum(r)) / size
    largest = dot(d, p) + jnp.sum(jnp.abs(dot(arms, d[None])))
    # Of unit vectors: what is negative is the largest at the farthest corner, what is positive not larger, as no p is shorter than one.
    far = jnp.abs(p) + jnp.sum(jnp.abs(arms), axis=0)
    largest = jnp.where(largest < 0, largest / jnp.sqrt(dot(far, far)), largest)

    # Across the kink of a segment d may change much; along it less.
    kinked = jnp.abs(x) <= across_x
    square = jnp.where(kinked, dot(of.segments, of.segments), 0.0)
    k = jnp.argmax(square)
    t = jnp.where(square[k] > 0, cross(n, of.segments[k]), d - dot(d, n) * n)
    length = jnp.sqrt(dot(t, t))
    t = t / jnp.where(length > 0, length, 1.0)
    change = jnp.sum(jnp.where(kinked, (1 + jnp.abs(y)) * jnp.abs(dot(of.segments, t[None])), 0.0))
    # A unit vector turns by up to a right angle, where E p does not come to zero: a chord is shorter than sqrt(2) of the sine.
    turned = jnp.where(across_z < r, math.sqrt(2) * across_z / jnp.where(r > 0, r, 1.0), 2.0)
    along = turn(of.ellipsoids, t[None])
    change = change + jnp.sum(turned * jnp.sqrt(dot(along, along)))
    # Of n itself, of which d is a multiple.
    sine = jnp.sqrt(dot(arms[0], arms[0]) + dot(arms[1], arms[1])) / size
    none = jnp.abs(dot(d, t)) > change + sine * jnp.maximum(-best, largest)
    return s, jnp.where(none, -jnp.inf, largest)


def look(of, start, best, ends, may, tolerance):
    """`Look` where the next climb shall begin; ends: (k, 3) of the climbs there were.

    A climb begins where the separation is above the best one by more than the tolerance, and, if it may, in a cell that remains.
    """

    def step(state):
        p, arms = cell(state.place, state.level, of.c.dtype)
        n = p / jnp.sqrt(dot(p, p))
        s, largest = judged(of, p, arms, best)
        seen = (state.level >= CLOSE) & jnp.any(dot(ends, n[None]) >= math.cos(ASIDE))
        above, remains = s > best + tolerance, (largest > best + tolerance) & ~seen & (may | (state.level < COARSE))
        last = state.level == DEPTH
        place, level = after(state.place, state.level)
        deeper = remains & ~last
        place, level = jnp.where(deeper, state.place, place), jnp.where(deeper, state.level + 1, level)
        return Look(place, level, n, above | (remains & last))

    return lax.while_loop(lambda state: (state.place < LAST) & ~state.calls, step, start._replace(calls=jnp.bool_(False)))
