"""Rows of a pair of convex solids: where they are closest, and up to three more points where faces lie on each other.

Each solid shows the other one an *outline*: what of it is farthest along normals that are tilted a little, a polygon of corners; of an
edge or of a cylinder on its side two points, of a ball one. Corners of an outline over the face of the other solid, and edges of both that
cross, are places where they may touch, each with the normal of its two features. Four are taken, the deepest and those that span most.
What is taken is a choice that is not differentiated.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .closest import tolerance
from .features import PARALLEL, Row, Side, flat, round_of
from .rotations import across, cross, dot
from .solids import Point, farthest, to_local

#: Rows of a pair; corners of an outline.
ROWS, OUTLINE = 4, 6
#: How steeply corners may rise from the lowest one to belong to an outline, and to count as far as they are when rows are taken.
RISE = 0.1
#: Directions across the normal; turned a little, so that the corners of what is aligned are not equally far.
TURNS = 0.3 + 2 * np.pi * np.arange(OUTLINE) / OUTLINE
#: Beyond these parts of the size of a pair points are not over a face; gaps are not smaller than the least one, where solids overlap.
OVER, SLACK = 1e-6, 1e-4


class Outline(NamedTuple):
    """A polygon (OUTLINE) of flat points, counterclockwise about the normal."""

    unit: object  # (k, 3)
    corner: object  # (k,)
    follows: object  # whether a disc is touched where the normal says
    place: object  # (k, 3) in the world, with what is round
    three: object  # (3,) which corners span most
    normal: object  # (3,) of its face, outwards
    face: object  # whether it is one
    segment: object  # whether it has two corners


# ----------------------------------------------------------------------------------------------------------------- outlines
def outline(solid, corners, n, t, scale):
    """`Outline` of a solid along ``n``, counterclockwise about the first direction ``t`` to the second."""
    cosines, sines = (jnp.asarray(f(TURNS), n.dtype)[:, None] for f in (np.cos, np.sin))
    around_ = cosines * t[0][None] + sines * t[1][None]
    point, _ = farthest(solid, corners, n[None] + RISE * around_)
    # A cylinder shows an end, or the line on which it lies.
    end = (solid.disc > 0) & (jnp.abs(dot(solid.R[:, 2], n)) > np.sqrt(0.5))
    local = to_local(solid, around_) * np.array([[1.0, 1.0, 0.0]], n.dtype)
    local = local / jnp.sqrt(jnp.maximum(dot(local, local), jnp.finfo(n.dtype).tiny))[:, None]
    axial = point.unit * np.array([[0.0, 0.0, 1.0]], n.dtype)
    unit = jnp.where(end, local + axial, jnp.where(solid.disc > 0, axial, point.unit))
    follows = (solid.disc > 0) & ~end
    place = flat(solid, corners, Point(unit, point.corner)) + round_of(solid, follows[None], n[None])
    away = place - place[:1]
    far = jnp.argmax(dot(away, away))
    areas = cross(away[far][None], away)
    most = jnp.argmax(dot(areas, areas))
    area, length = areas[most], jnp.sqrt(dot(away[far], away[far]))
    size = jnp.sqrt(dot(area, area))
    wide = size > 1e-3 * length**2
    normal = area / jnp.where(size > 0, size, 1.0)
    normal = jnp.where(dot(normal, n) < 0, -normal, normal)
    # It is a face if nothing of the solid is beyond.
    _, beyond = farthest(solid, corners, normal)
    above = dot(beyond + solid.ball * normal - place[0], normal)
    face = wide & (above <= OVER * scale) & (dot(normal, n) > 0.95)
    three = jnp.stack([jnp.zeros_like(far), far, most])
    long = length > OVER * scale
    return Outline(unit, point.corner, follows, place, three, normal, face & long, long & ~wide)


def _inside(points, polygon, near):
    """Which of points (k, 2) are in a polygon (k, 2), or not farther from it than ``near``."""
    edges = jnp.roll(polygon, -1, axis=0) - polygon
    away = points[:, None] - polygon[None]
    left = edges[None, :, 0] * away[:, :, 1] - edges[None, :, 1] * away[:, :, 0]
    within = jnp.all(left >= -near * jnp.sqrt(dot(edges, edges))[None], axis=1)
    around_ = jnp.asarray(np.stack([np.cos(TURNS), np.sin(TURNS)]), points.dtype)
    bound = jnp.max(polygon @ around_, axis=0)
    return within & jnp.all(points @ around_ <= bound[None] + near, axis=1)


def _sides(outline_, which):
    """`Side` of rows, of the corners with numbers (m, 3) of an outline."""
    return Side(outline_.unit[which], outline_.corner[which], jnp.broadcast_to(outline_.follows, which.shape[:1]))


def _over(one, other, n, plans, near, thin):
    """Corners of one outline over the face of the other, or of lines along each other: ``(there (k,), normal of the other's face)``."""
    of_face = other.face & _inside(*plans, near)
    of_line = thin & one.segment & other.segment & _inside(*plans, 1e3 * near)
    return of_face | of_line, jnp.where(other.face, other.normal, n)


def _crossing(one, other, n, plans):
    """Edges of both outlines that cross: ``(there, gaps along n, places)``, of all pairs of edges (k^2)."""
    (a, b), heights = (jnp.roll(x, -1, 0) - x for x in plans), [dot(x.place, n[None]) for x in (one, other)]
    (h, top), (rise, climb) = heights, (jnp.roll(x, -1) - x for x in heights)
    x, y, u, v = (z[:, None] if k < 2 else z[None] for k, z in enumerate((a[:, 0], a[:, 1], b[:, 0], b[:, 1])))
    r, s = (plans[1][None, :, k] - plans[0][:, None, k] for k in (0, 1))
    det = x * v - y * u
    aa, bb = dot(a, a), dot(b, b)
    crosses = det * det > PARALLEL**2 * aa[:, None] * bb[None]
    inverse = 1 / jnp.where(crosses, det, 1.0)
    along, beside = (r * v - s * u) * inverse, (r * y - s * x) * inverse
    inside = jnp.minimum(jnp.minimum(along, 1 - along), jnp.minimum(beside, 1 - beside)) > OVER
    fine = (one.face | one.segment) & (other.face | other.segment) & (one.face | other.face)
    gap = top[None] + beside * climb[None] - h[:, None] - along * rise[:, None]
    place = [(plans[0][:, None, k] + along * z).reshape(-1) for k, z in ((0, x), (1, y))]
    return (fine & crosses & inside).reshape(-1), gap.reshape(-1), jnp.stack(place, axis=1)


def _chosen(one, other, n, facing, numbers):
    """`Row` of the candidates with these numbers (m,): corners of the one outline, corners of the other, edges of both."""
    k, which = OUTLINE, numbers // OUTLINE
    over, under = (which == 0)[:, None], (which == 1)[:, None]
    i, j = which - 2, numbers % k
    each = jnp.stack([j] * 3, axis=1)
    at_a = jnp.where(over, each, jnp.where(under, one.three, jnp.stack([i, (i + 1) % k, i], axis=1)))
    at_b = jnp.where(over, other.three, jnp.where(under, each, jnp.stack([j, j, (j + 1) % k], axis=1)))
    at_a = jnp.clip(at_a, 0, k - 1)
    e, f = one.place[at_a[:, 1]] - one.place[at_a[:, 0]], other.place[at_b[:, 2]] - other.place[at_b[:, 0]]
    normal = cross(e, f)
    size = jnp.sqrt(dot(normal, normal))
    normal = normal / jnp.where(size > 0, size, 1.0)[:, None]
    normal = jnp.where(dot(normal, n[None]) < 0, -1.0, 1.0).astype(n.dtype)[:, None] * normal
    normal = jnp.where(over, facing[0][None], jnp.where(under, facing[1][None], normal))
    sides = (Side(x.unit[at], x.corner[at], jnp.broadcast_to(x.follows, at.shape[:1])) for x, at in ((one, at_a), (other, at_b)))
    return Row(*sides, normal, dot(normal, n[None]) > 0.9, *[jnp.full(numbers.shape, jnp.nan, n.dtype)] * 2)


def _taken(gaps, places, there, none):
    """Numbers (ROWS,) of the deepest point, the one farthest from it, and those farthest to the sides of the line through both."""
    gaps = jnp.where(there, gaps, jnp.inf)
    deepest = jnp.argmin(gaps)
    higher = (gaps - gaps[deepest]) / RISE
    away = places - places[deepest][None]
    distance = jnp.sqrt(dot(away, away))
    score = jnp.where(there, distance - higher, -jnp.inf)
    farthest_ = jnp.argmax(score)
    line = away[farthest_] / jnp.where(distance[farthest_] > 0, distance[farthest_], 1.0)
    aside = away[:, 0] * line[1] - away[:, 1] * line[0]
    sides = [jnp.where(there, sign * aside - higher, -jnp.inf) for sign in (1.0, -1.0)]
    numbers = [deepest, farthest_, *map(jnp.argmax, sides)]
    beyond = [score[farthest_], *(side[k] for side, k in zip(sides, numbers[2:], strict=True))]
    return jnp.stack(numbers), jnp.concatenate([jnp.ones((1,), bool), jnp.stack(beyond) > none])


def rows(pair, closest):
    """`Row` (ROWS) of a pair; closest: ``(Row, gap, point of the first solid)`` where it is closest."""
    first, gap, point = closest
    n = first.normal[0]
    t, near = across(n), OVER * pair.scale
    one = outline(pair.a, pair.corners_a, n, t, pair.scale)
    other = outline(pair.b, pair.corners_b, -n, t, pair.scale)
    plans = [jnp.stack([dot(x.place, s[None]) for s in t], axis=1) for x in (one, other)]
    # Lines along each other touch at two points, where one of them is round.
    e, f = (x.place[x.three[1]] - x.place[0] for x in (one, other))
    product = cross(e, f)
    thin = (pair.a.ball + pair.a.disc + pair.b.ball + pair.b.disc > 0) & (dot(product, product) <= 1e-6 * dot(e, e) * dot(f, f))
    of_one, facing_b = _over(one, other, -n, (plans[0], plans[1]), near, thin)
    of_other, facing_a = _over(other, one, n, (plans[1], plans[0]), near, thin)
    facing = -facing_b, facing_a
    crossing, gaps, places = _crossing(one, other, n, plans)
    corners = dot(facing[0][None], other.place[:1] - one.place), dot(facing[1][None], other.place - one.place[:1])
    there, gaps = jnp.concatenate([of_one, of_other, crossing]), jnp.concatenate([*corners, gaps])
    same = 10 * tolerance(n.dtype) * pair.scale
    there = there & (gaps >= gap - jnp.where(gap > 0, same, SLACK * pair.scale))
    # The closest point gives way to one that is as close: its place on faces that lie on each other is anywhere.
    edges = [jnp.roll(x.place, -1, axis=0) - x.place for x in (one, other)]
    normals = cross(edges[0][:, None], edges[1][None]).reshape(-1, 3)
    normals = jnp.concatenate([jnp.broadcast_to(x[None], (OUTLINE, 3)) for x in facing] + [normals])
    straight = dot(normals, n[None]) ** 2 >= (1 - (1e-9 if n.dtype == jnp.float64 else 1e-5)) * dot(normals, normals)
    alone = ~jnp.any(there & straight & (gaps <= gap + same))
    own = jnp.stack([dot(point, s) for s in t])[None]
    numbers, of_these = _taken(
        jnp.concatenate([gaps, gap[None]]), jnp.concatenate([*plans, places, own]), jnp.concatenate([there, alone[None]]), near
    )
    more = _chosen(one, other, n, facing, numbers)
    is_first = numbers == gaps.shape[0]

    def either(x, y):
        return jnp.where(is_first.reshape(-1, *(1,) * (x.ndim - 1)), x, y)

    row = jax.tree.map(either, first, more)
    # Features are longer than what is touched of them: those that come closer than the solids do beyond their ends.
    slack = jnp.where(gap > 0, 1e-8 if n.dtype == jnp.float64 else 3e-5, SLACK) * pair.scale
    return row._replace(there=of_these & row.there, least=jnp.where(is_first, -jnp.inf, gap - slack))
