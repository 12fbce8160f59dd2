"""Two convex solids: where they are closest, or how deep they overlap.

Apart, the separation (see `directions`) has one largest value, to which every start leads. Overlapping it may have several, of which the
largest is wanted. Solids without corners are few segments and ellipsoids: branch and bound finds it (`cells`). With corners there may be
hundreds: there a polytope says where to start, and bounds the depth from below (`polytope`).
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from ..native.marks import in_memory
from . import cells, directions, polyhedra, polytope

#: To this part of the size of a pair a depth is known, if one solid has corners and the other one is round.
ROUND = 1e-5


def tolerance(dtype):
    """Distances below this part of the size of a pair count as none."""
    return 1e-11 if dtype == jnp.float64 else 2e-6


def exact(dtype):
    """To this part of the size of a pair the depth of solids of corners is known."""
    return 1e-8 if dtype == jnp.float64 else 3e-5


def uncertain(of):
    """How far the bounds of a depth may be from each other, in m.

    Where a whole circle of directions is as good, as on something round, a polytope has but some of them.
    """
    about = ROUND if of.c.dtype == jnp.float64 else 3e-5
    return jnp.where(jnp.any(of.ellipsoids != 0), about, exact(of.c.dtype)) * of.scale


def search_polyhedra(pair, n, enough, triangle):
    """``(polyhedra.Triangle, n (3,), separation)`` of a `solids.Pair` without anything round but balls, unless it is above ``enough``.

    n: (3,) the direction in which to begin; triangle: and corners
    """
    of, tol, unsure = polyhedra.difference_of(pair), tolerance(n.dtype) * pair.scale, exact(n.dtype) * pair.scale
    triangle, n, s = polyhedra.search(of, n, enough, tol, triangle)

    def found():
        return triangle, n, s

    def by_polytope():
        bounds = in_memory(functools.partial(polytope.bounds, polyhedra.difference, polyhedra.most(of)))

        def own():
            return polytope.turned(jnp.concatenate([triangle.place, polyhedra.difference(of, -n)[None]]))

        def grow(state):
            k, best, depth, _ = state
            # If these four span nothing, once more from others.
            four = lax.cond(k == 0, own, lambda: polytope.tetrahedron(of, polyhedra.difference))
            return k + 1, *bounds(of, best, depth, unsure / 2, four)

        first = jnp.int32(0), n, -s, jnp.full_like(s, -jnp.inf)
        _, best, depth, least = lax.while_loop(lambda state: (state[0] < 2) & ~(state[2] - state[3] <= unsure), grow, first)

        def from_there():
            return polyhedra.search(of, best, jnp.inf, tol, triangle)

        new, m, t = lax.cond(depth < -s - tol, from_there, found)
        return new, m, jnp.where(-t - least <= unsure, t, jnp.nan)

    def overlapping():
        return lax.cond(-s - polyhedra.least_depth(of, triangle, n) <= unsure, found, by_polytope)

    return lax.cond(-s <= unsure, found, overlapping)


def search(of, n):
    """`directions.Found` of a pair, and its separation; n: (3,) the direction in which to begin."""
    tol = tolerance(of.c.dtype) * of.scale

    def climb(n, m, best, found):
        """``(best separation, its Found, where the climb from n ended)``."""
        new = directions.climbed(of, n, m)
        s = directions.separation(of, new.n)
        # Round-off does not choose: of solids that are as far apart in several directions the first one is taken.
        better = s > best + tol
        return jnp.where(better, s, best), jax.tree.map(lambda x, y: jnp.where(better, x, y), new, found), new.n

    # A climb that comes to no numbers leaves none of them behind.
    none = jnp.full((), -jnp.inf, n.dtype), directions.begin(of, n, of.scale)
    best, found, end = climb(n, directions.WIDE * of.scale, *none)

    if of.hulls:
        return lax.cond(best <= 0, lambda: _deepest(of, climb, best, found), lambda: (found, best))

    def step(state):
        k, ends, at, best, found = state
        at = cells.look(of, at, best, ends, k <= cells.CLIMBS, tol)
        best, found, end = climb(at.n, directions.WIDE * of.scale, best, found)
        return k + 1, lax.dynamic_update_index_in_dim(ends, end, k, 0), at, best, found

    ends = jnp.zeros((cells.ALL + 1, 3), n.dtype).at[0].set(end)
    first = jnp.int32(1), ends, cells.Look(jnp.int32(0), jnp.int32(0), n, jnp.bool_(True)), best, found
    *_, best, found = lax.while_loop(lambda state: (state[0] <= cells.ALL) & state[2].calls & (state[3] <= 0), step, first)
    return found, best


def _deepest(of, climb, best, found):
    """``(Found, separation)`` of solids with corners that touch or overlap; no number where it is not known to be the largest one."""
    tol = 10 * tolerance(of.c.dtype) * of.scale
    bounds = functools.partial(polytope.bounds, directions.difference, polytope.SIZES[-1])
    four = polytope.tetrahedron(of, directions.difference)
    n, depth, least = in_memory(bounds)(of, found.n, -best, tol, four)
    best, found = lax.cond(depth < -best, lambda: climb(n, directions.NARROW * of.scale, best, found)[:2], lambda: (best, found))
    return found, jnp.where(-best - least <= uncertain(of), best, jnp.nan)
