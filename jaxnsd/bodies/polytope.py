"""Two convex solids that overlap, with corners: between which bounds their depth is, and along which direction about.

All differences of points of both fill a convex set that holds the origin. Their depth is how far the origin is from its surface. A polytope
in this set, with corners on the surface, grows at the side that is closest to the origin (van den Bergen 2001). How far that side is bounds
the depth from below, and minus the separation along any direction (see `directions`) from above. It grows until both are the same, or until
it has no places left.
"""

import functools
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from ..native.marks import in_memory, when_needed
from .rotations import across, cross, dot, length, normalized

#: Corners for which there are places: first, and where these do not suffice. The first do for hulls that overlap a little, the second
#: for two of 200 corners at random places; the most that were seen are 411, of two balls of 200 corners about the same point.
SIZES = (16, 64, 512)
#: Sides of a tetrahedron, counterclockwise from outside.
SIDES = ((0, 2, 1), (0, 1, 3), (0, 3, 2), (1, 2, 3))


class Polytope(NamedTuple):
    """A polytope of triangles, their corners counterclockwise from outside, in places of which some are free."""

    corners: object  # (k, 3)
    sides: object  # (2 k - 4, 3) numbers of corners
    normal: object  # (2 k - 4, 3) outwards
    offset: object  # (2 k - 4,) from the origin; infinite of a side without area
    there: object  # (2 k - 4,)


class Grown(NamedTuple):
    """A polytope, and what it says of the depth."""

    polytope: object
    count: object  # of its corners
    new: object  # (3,) the next one
    least: object  # the depth is not less: how far its closest side is
    depth: object  # nor more: the smallest of all directions that were looked at
    n: object  # (3,) that direction
    fine: object  # whether round-off has left it a polytope


def sizes(most):
    """How many corners there may be first, and at most: two hulls have no more differences of corners than ``most``."""
    return sorted({min(size, max(8, most)) for size in SIZES})


def tetrahedron(of, difference):
    """Four differences (4, 3) that span a volume, the last one to the right of the others."""
    up = normalized(of.c, length(of.c), jnp.asarray([0.0, 0.0, 1.0], of.c.dtype))

    def farther(n, far):
        two = jnp.stack([difference(of, n), difference(of, -n)])
        size = jnp.abs(far(two))
        return jnp.where(size[0] >= size[1], two[0], two[1])

    p, q = difference(of, up), difference(of, -up)
    axis = normalized(q - p, length(q - p), up)
    aside, _ = across(axis)
    r = farther(aside, lambda w: dot(w - p[None], aside[None]))
    area = cross(q - p, r - p)
    normal = normalized(area, length(area), up)
    s = farther(normal, lambda w: dot(w - p[None], normal[None]))
    return turned(jnp.stack([p, q, r, s]))


def turned(four):
    """Four points (4, 3), the first two in the order in which the last one is to the right."""
    p, q, r, s = four
    left = dot(cross(q - p, r - p), s - p) < 0
    return jnp.stack([jnp.where(left, q, p), jnp.where(left, p, q), r, s])


def _small(of):
    """``(twice an area, a height)`` that round-off does not tell from none."""
    eps = jnp.finfo(of.c.dtype).eps
    return 64 * eps * of.scale**2, 64 * eps * of.scale


def _side(p, q, r, flat):
    """Normals and offsets of triangles; without area none, and infinite."""
    normal = cross(q - p, r - p)
    size = jnp.sqrt(dot(normal, normal))
    there = size > flat
    normal = jnp.where(there[..., None], normal / jnp.where(there, size, 1.0)[..., None], 0.0)
    return normal, jnp.where(there, dot(normal, p), jnp.inf)


def _with_corner(polytope, k, new, flat, close):
    """``(polytope, fine)`` with one more corner, in place k: what it sees of the polytope gives way to sides that meet in it."""
    corners, sides, normal, offset, there = polytope
    many, faces = corners.shape[0], sides.shape[0]
    visible = there & (dot(normal, new[None]) - offset > close)
    corners = lax.dynamic_update_slice_in_dim(corners, new[None], k, axis=0)
    # Edges of what is seen beyond which nothing is seen, a new side each.
    start, end = sides.reshape(-1), jnp.roll(sides, -1, axis=1).reshape(-1)
    own, none = jnp.repeat(visible, 3), many**2
    seen = jnp.zeros((none + 1,), bool).at[jnp.where(own, start * many + end, none)].set(True)
    horizon = own & ~seen[end * many + start]
    count = jnp.cumsum(horizon, dtype=jnp.int32)
    edges = jnp.zeros((faces + 1,), jnp.int32).at[jnp.where(horizon, count - 1, faces)].set(jnp.arange(3 * faces, dtype=jnp.int32))
    # Each gets a place that is free.
    kept = there & ~visible
    place = jnp.cumsum(~kept, dtype=jnp.int32) - 1
    filled = ~kept & (place < count[-1])
    edge = edges[jnp.clip(place, 0, faces)]
    i, j = start[edge], end[edge]
    side, at = _side(corners[i], corners[j], new[None], flat)
    sides = jnp.where(filled[:, None], jnp.stack([i, j, jnp.full_like(i, k)], axis=1), sides)
    normal, offset = jnp.where(filled[:, None], side, normal), jnp.where(filled, at, offset)
    return Polytope(corners, sides, normal, offset, kept | filled), (count[-1] >= 3) & (count[-1] <= place[-1] + 1)


def _looked(of, difference, grown, polytope, count, fine):
    """`Grown` of a new polytope: its closest side, and the corner that there is along it."""
    offset = jnp.where(polytope.there, polytope.offset, jnp.inf)
    best = jnp.argmin(offset)
    # Where no side has an area there is no direction either.
    fine = fine & jnp.isfinite(offset[best])
    least, n = jnp.where(fine, offset[best], grown.least), -polytope.normal[best]
    new = difference(of, n)
    depth = -dot(n, new)
    better = fine & (depth < grown.depth)
    return Grown(polytope, count, new, least, jnp.where(better, depth, grown.depth), jnp.where(better, n, grown.n), fine)


def _begin(of, difference, n, depth, four):
    """`Grown`: a tetrahedron, with places for the corners of the first size; n: a direction along which solids have this depth."""
    flat, _ = _small(of)
    normal, offset = _side(*(four[np.array(SIDES)[:, i]] for i in range(3)), flat)
    polytope = Polytope(four, jnp.asarray(SIDES, jnp.int32), normal, offset, jnp.ones((4,), bool))
    start = Grown(polytope, jnp.int32(4), n, jnp.zeros_like(depth), depth, n, jnp.bool_(True))
    return _looked(of, difference, start, polytope, jnp.int32(4), jnp.bool_(True))


def _padded(grown, corners):
    """With places for so many corners."""
    polytope = grown.polytope
    more = corners - polytope.corners.shape[0]

    def longer(x, by):
        return jnp.pad(x, ((0, by), *((0, 0),) * (x.ndim - 1)))

    return grown._replace(polytope=Polytope(longer(polytope.corners, more), *(longer(x, 2 * more) for x in polytope[1:])))


def _grow(of, difference, grown, tolerance):
    """`Grown` until its bounds are the same, or all places are taken."""
    flat, close = _small(of)
    most = grown.polytope.corners.shape[0]

    def step(grown):
        polytope, fine = _with_corner(grown.polytope, grown.count, grown.new, flat, close)
        return _looked(of, difference, grown, polytope, grown.count + 1, fine)

    return lax.while_loop(lambda grown: (grown.count < most) & _apart(grown, tolerance), step, grown)


def _apart(grown, tolerance):
    """Whether more corners bring the bounds together."""
    return grown.fine & (grown.depth - grown.least > tolerance)


def bounds(difference, most, of, n, depth, tolerance, four):
    """``(n (3,), depth, least)`` of solids that are known to have a depth of ``depth`` along ``n``, or less.

    difference: (of, n) -> (3,), as `directions.difference`; most: how many corners the differences have, at most
    four:       (4, 3) of them to begin with, as `turned` has them

    Along the n that is returned they have the depth that is returned, and along none less than ``least``. Both agree within the tolerance,
    unless all places are taken or round-off has spoilt the polytope.
    """

    first, *further = sizes(most)

    def larger(size, of, grown, tolerance):
        return _grow(of, difference, _padded(grown, size), tolerance)

    def found(grown):
        return grown.n, grown.depth, grown.least

    def from_there(grown, further):
        """What is found, with more places where those that there are do not suffice."""
        if not further:
            return found(grown)
        size, *rest = further
        last = functools.partial(larger, size)
        # Few pairs come this far: a program of its own, which is compiled for the first one.
        more = last if rest else when_needed(in_memory(lambda *args: found(last(*args))))
        then = (lambda: from_there(more(of, grown, tolerance), rest)) if rest else (lambda: more(of, grown, tolerance))
        return lax.cond(_apart(grown, tolerance), then, lambda: found(grown))

    return from_there(_grow(of, difference, _padded(_begin(of, difference, n, depth, four), first), tolerance), further)
