"""The closest points of two convex solids: on which corners, edges, sides, rims and ends they are.

The separation (see `directions`) has a kink across each edge, and each direction of a face or an end, along which solids touch. There the
place on it is found between its ends. Two of them say the normal; with fewer it depends on what is round.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from .directions import apart, weighted
from .features import PARALLEL, Row, Side
from .rotations import cross, dot, turn_back

#: Of the segments of both solids, and of two directions in the disc of each: on which solid, and along which axis.
SOLID_OF = np.array([0] * 3 + [1] * 3 + [0, 0, 1, 1])
AXIS_OF = np.eye(3)[[0, 1, 2, 0, 1, 2, 0, 1, 0, 1]]
#: Edges of hulls are taken before others: the place on them is found anew.
FIRST = 1e6


class Kinks(NamedTuple):
    """What both solids may be touched along."""

    along: object  # (k, 3) directions in the world
    score: object  # (k,) zero where it is not there
    unit: object  # (2, k, 3) how the unit of a point changes along it, on the first and the second solid
    corner: object  # (2, k) number of the corner at its end


def inner(dtype):
    """What is this far from both ends is between them."""
    return 1e-6 if dtype == jnp.float64 else 1e-3


def _of_hull(hull, weights):
    """``(numbers (3,), directions (2, 3), there (2,))``: the heaviest corner, the one that is farthest, the one that spans most."""
    base, heavy = jnp.argmax(weights), weights > inner(weights.dtype)
    away = (hull - hull[:, base][:, None]).T
    reach = jnp.where(heavy, dot(away, away), 0.0)
    one = jnp.argmax(reach)
    area = cross(away, away[one][None])
    wide = jnp.where(heavy, dot(area, area), 0.0)
    two = jnp.argmax(wide)
    there = jnp.stack([reach[one] > 0, wide[two] > PARALLEL**2 * reach[one] ** 2])
    return jnp.stack([base, one, two]).astype(jnp.int32), jnp.stack([away[one], away[two]]), there


def _kinks(of, found, caps, having):
    """``(Kinks, first corners (2,))``; having: which of the two solids have a hull."""
    dtype = found.n.dtype
    along = [of.segments, of.ellipsoids[:, :2].reshape(4, 3)]
    there = [jnp.abs(found.y) < 1 - inner(dtype), jnp.repeat(caps, 2)]
    hulls = {k: _of_hull(*x) for k, x in zip(having, zip(of.hulls, found.weights, strict=True), strict=True)}
    base = [hulls[k][0][0] if k in hulls else jnp.int32(0) for k in (0, 1)]
    corners = [[jnp.broadcast_to(number, (10,))] for number in base]
    for k, (numbers, directions, spans) in hulls.items():
        along.append(directions)
        there.append(spans)
        for m in (0, 1):
            corners[m].append(numbers[1:] if m == k else jnp.broadcast_to(base[m], (2,)))
    along, there = jnp.concatenate(along), jnp.concatenate(there)
    unit = np.stack([np.pad(AXIS_OF * (k == SOLID_OF)[:, None], ((0, 2 * len(hulls)), (0, 0))) for k in (0, 1)])
    weight = np.where(np.arange(10 + 2 * len(hulls)) < 10, 1.0, FIRST)
    score = jnp.where(there & (dot(along, along) > 0), jnp.asarray(weight, dtype), 0.0)
    return Kinks(along, score, jnp.asarray(unit, dtype), jnp.stack([jnp.concatenate(x) for x in corners])), jnp.stack(base)


def _side(solid, unit, base, cap, n, chosen):
    """`Side` (1) of a solid that is touched at ``unit`` (3,), and along what is chosen: ``(units (2, 3), corners (2,))``."""
    upright = solid.disc > 0
    m = turn_back(solid.R, n)
    # Of a cylinder that stands the rim has no lowest point: it is touched where it was found.
    tiny = jnp.sqrt(dot(m[:2], m[:2])) < (1e-6 if m.dtype == jnp.float64 else 1e-3)
    follows = upright & ~tiny & ~cap
    unit = jnp.where(follows & np.array([True, True, False]), 0.0, unit)
    units = jnp.concatenate([unit[None], unit[None] + chosen[0]])
    return Side(units[None], jnp.concatenate([base[None], chosen[1]])[None], follows[None])


def closest_row(pair, of, found, s):
    """``(Row (1), gap, point of the first solid (3,))``; no numbers where what was found is not where the solids are closest."""
    a, b, dtype = pair.a, pair.b, found.n.dtype
    discs = jnp.stack([a.disc, b.disc]) > 0
    caps = discs & (jnp.sqrt(dot(found.z, found.z)) < 1 - inner(dtype))
    having = [k for k, corners in enumerate((pair.corners_a, pair.corners_b)) if corners is not None]
    kinks, base = _kinks(of, found, caps, having)
    square = dot(kinks.along, kinks.along)
    first = jnp.argmax(kinks.score * square)
    area = cross(kinks.along, kinks.along[first][None])
    second = jnp.argmax(kinks.score * dot(area, area))
    chosen = jnp.stack([first, second])
    there = (kinks.score[chosen] > 0).astype(dtype)

    y = jnp.where(jnp.abs(found.y) < 1 - inner(dtype), found.y, jnp.where(found.y < 0, -1.0, 1.0)).reshape(2, 3)
    planar = np.array([1.0, 1.0, 0.0], dtype)
    units = y + jnp.where(discs[:, None], (found.z - y) * planar[None], 0.0)
    sides = []
    for k, (solid, sign) in enumerate(((a, 1.0), (b, -1.0))):
        corners = jnp.where(there > 0, kinks.corner[k][chosen], base[k])
        arms = there[:, None] * kinks.unit[k][chosen]
        sides.append(_side(solid, sign * units[k], base[k], caps[k], sign * found.n, (arms, corners)))

    d = apart(of, found)
    height = dot(d, found.n)
    off = d - height * found.n
    # What is left across n is of second order in the gap. Each corner is at a weight that keeps it m away from where it would say s.
    one, two = (1e-5, 1e-9) if dtype == jnp.float64 else (2e-2, 2e-5)
    kept = found.m * sum(jnp.sum(w > 0, dtype=dtype) for w in found.weights)
    # Of what is farther apart than it is large round-off is that of the distance.
    size = jnp.maximum(pair.scale, height)
    certain = (dot(off, off) <= (one * size) ** 2) & (jnp.abs(height - s - kept) <= two * size)
    normal = jnp.where(certain, found.n, jnp.nan)
    gap = s - a.ball - b.ball
    own = jnp.sum(found.y[:3, None] * of.segments[:3], axis=0) + jnp.sum(found.z[0][:, None] * of.ellipsoids[0], axis=0)
    if pair.corners_a is not None:
        own = own + weighted(of.hulls[0], found.weights[0])
    return Row(*sides, normal[None], jnp.ones((1,), bool), gap[None], gap[None]), gap, a.x + own + a.ball * normal
