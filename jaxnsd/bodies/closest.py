"""Two convex solids: where they are closest, or how deep they overlap.

Apart, the separation (see `directions`) has one largest value, to which every start leads. Overlapping it may have several, of which the
largest is wanted. Solids without corners are few segments and ellipsoids: branch and bound finds it (`cells`). With corners there may be
hundreds: there a polytope in the set of all differences of points of both grows towards its side that is closest to the origin (van den
Bergen 2001), and says where to start.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..numerics.newton import in_memory
from . import cells, directions
from .rotations import across, cross, dot

#: Corners and sides of the polytope.
CORNERS = 64
FACES = 2 * CORNERS - 4
#: Sides of a tetrahedron, counterclockwise from outside.
SIDES = ((0, 2, 1), (0, 1, 3), (0, 3, 2), (1, 2, 3))
#: The first m of Newton's method from a side of the polytope, in parts of the size of the pair.
NARROW = 1e-5


def tolerance(dtype):
    """Distances below this part of the size of a pair count as none."""
    return 1e-11 if dtype == jnp.float64 else 2e-6


def search(of, axes):
    """`directions.Found` of a pair, and its separation; axes: (6, 3) of both solids."""
    tol = tolerance(of.c.dtype) * of.scale

    def climb(n, m, best, found):
        """``(best separation, its Found, where the climb from n ended)``."""
        new = directions.climbed(of, n, m)
        s = directions.separation(of, new.n)
        # Round-off does not choose: of solids that are as far apart in several directions the first one is taken.
        better = s > best + tol
        return jnp.where(better, s, best), jax.tree.map(lambda x, y: jnp.where(better, x, y), new, found), new.n

    n = directions.best_of_table(of, axes)
    # A climb that comes to no numbers leaves none of them behind.
    none = jnp.full((), -jnp.inf, n.dtype), directions.begin(of, axes[0], of.scale)
    best, found, end = climb(n, directions.WIDE * of.scale, *none)

    if of.hulls:
        best, found = lax.cond(best <= 0, lambda: climb(in_memory(deepest)(of), NARROW * of.scale, best, found)[:2], lambda: (best, found))
        return found, best

    def step(state):
        k, ends, at, best, found = state
        at = cells.look(of, at, best, ends, k <= cells.CLIMBS, tol)
        best, found, end = climb(at.n, directions.WIDE * of.scale, best, found)
        return k + 1, lax.dynamic_update_index_in_dim(ends, end, k, 0), at, best, found

    ends = jnp.zeros((cells.ALL + 1, 3), n.dtype).at[0].set(end)
    first = jnp.int32(1), ends, cells.Look(jnp.int32(0), jnp.int32(0), n, jnp.bool_(True)), best, found
    *_, best, found = lax.while_loop(lambda state: (state[0] <= cells.ALL) & state[2].calls & (state[3] <= 0), step, first)
    return found, best


def unit_of(a, otherwise):
    """``(a / |a|, |a|)`` of a vector (3,); of none ``otherwise``."""
    size = jnp.sqrt(dot(a, a))
    return jnp.where(size > 0, a / jnp.where(size > 0, size, 1.0), otherwise), size


# -------------------------------------------------------------------------------------------------------------- overlapping
class Polytope(NamedTuple):
    """A polytope of triangles, their corners counterclockwise from outside, in places of which some are free."""

    corners: object  # (CORNERS, 3)
    sides: object  # (FACES, 3) numbers of corners
    normal: object  # (FACES, 3) outwards
    offset: object  # (FACES,) from the origin; infinite of a side without area
    there: object  # (FACES,)


def _tetrahedron(of):
    """Four differences (4, 3) that span a volume, the last one to the right of the others."""
    up, _ = unit_of(of.c, jnp.asarray([0.0, 0.0, 1.0], of.c.dtype))

    def farther(n, far):
        two = jnp.stack([directions.difference(of, n), directions.difference(of, -n)])
        size = jnp.abs(far(two))
        return jnp.where(size[0] >= size[1], two[0], two[1])

    p, q = directions.difference(of, up), directions.difference(of, -up)
    axis, _ = unit_of(q - p, up)
    aside, _ = across(axis)
    r = farther(aside, lambda w: dot(w - p[None], aside[None]))
    normal, _ = unit_of(cross(q - p, r - p), up)
    s = farther(normal, lambda w: dot(w - p[None], normal[None]))
    turned = dot(normal, s - p) < 0
    return jnp.stack([jnp.where(turned, q, p), jnp.where(turned, p, q), r, s])


def _side(p, q, r, flat):
    """Normals and offsets of triangles; without area none, and infinite."""
    normal = cross(q - p, r - p)
    size = jnp.sqrt(dot(normal, normal))
    there = size > flat
    normal = jnp.where(there[..., None], normal / jnp.where(there, size, 1.0)[..., None], 0.0)
    return normal, jnp.where(there, dot(normal, p), jnp.inf)


def _begin(of, flat):
    four = _tetrahedron(of)
    sides = np.zeros((FACES, 3), np.int32)
    sides[:4] = SIDES
    normal, offset = _side(*(four[sides[:4, i]] for i in range(3)), flat)
    corners = jnp.pad(four, ((0, CORNERS - 4), (0, 0)))
    more = FACES - 4
    there = jnp.arange(FACES) < 4
    return Polytope(corners, jnp.asarray(sides), jnp.pad(normal, ((0, more), (0, 0))), jnp.pad(offset, (0, more)), there)


def _with_corner(polytope, k, new, flat, close):
    """``(polytope, fine)`` with one more corner, in place k: what it sees of the polytope gives way to sides that meet in it."""
    corners, sides, normal, offset, there = polytope
    visible = there & (dot(normal, new[None]) - offset > close)
    corners = lax.dynamic_update_slice_in_dim(corners, new[None], k, axis=0)
    # Edges of what is seen beyond which nothing is seen.
    start, end = sides.reshape(-1), jnp.roll(sides, -1, axis=1).reshape(-1)
    own = jnp.repeat(visible, 3)
    none = CORNERS**2
    seen = jnp.zeros((none + 1,), bool).at[jnp.where(own, start * CORNERS + end, none)].set(True)
    horizon = own & ~seen[end * CORNERS + start]
    count = jnp.cumsum(horizon, dtype=jnp.int32)
    edges = jnp.zeros((FACES + 1,), jnp.int32).at[jnp.where(horizon, count - 1, FACES)].set(jnp.arange(3 * FACES, dtype=jnp.int32))
    # Each gets a place that is free.
    kept = there & ~visible
    place = jnp.cumsum(~kept, dtype=jnp.int32) - 1
    filled = ~kept & (place < count[-1])
    edge = edges[jnp.clip(place, 0, FACES)]
    i, j = start[edge], end[edge]
    side, at = _side(corners[i], corners[j], new[None], flat)
    sides = jnp.where(filled[:, None], jnp.stack([i, j, jnp.full_like(i, k)], axis=1), sides)
    normal, offset = jnp.where(filled[:, None], side, normal), jnp.where(filled, at, offset)
    return Polytope(corners, sides, normal, offset, kept | filled), (count[-1] >= 3) & (count[-1] <= place[-1] + 1)


def deepest(of):
    """The direction (3,) of the largest separation of solids that touch or overlap, about."""
    dtype = of.c.dtype
    eps, tol = jnp.finfo(dtype).eps, 10 * tolerance(dtype) * of.scale
    flat, close = 64 * eps * of.scale**2, 64 * eps * of.scale

    def nearest(polytope):
        offset = jnp.where(polytope.there, polytope.offset, jnp.inf)
        best = jnp.argmin(offset)
        return -polytope.normal[best], offset[best]

    def look(found):
        n, offset = found
        new = directions.difference(of, n)
        return new, -dot(n, new) - offset <= tol

    def step(state):
        k, polytope, found, new, _ = state
        polytope, fine = _with_corner(polytope, k, new, flat, close)
        found = tuple(jnp.where(fine, now, old) for now, old in zip(nearest(polytope), found, strict=True))
        new, end = look(found)
        return k + 1, polytope, found, new, ~fine | end

    polytope = _begin(of, flat)
    found = nearest(polytope)
    start = jnp.int32(4), polytope, found, *look(found)
    return lax.while_loop(lambda state: (state[0] < CORNERS) & ~state[4], step, start)[2][0]
