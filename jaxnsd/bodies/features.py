"""Where two convex solids touch, once it is known with which corners, edges, sides and rims: a formula that is differentiated.

A row names up to three flat points of each solid. What they span may be touched anywhere; beyond them the solid is round (discs,
ellipsoids, balls), and touched where the normal says. The normal n is perpendicular to all that is spanned; where that leaves it free, the
distance vector is along it. One step of Newton's method from the n that was found, with all that moves in it, has the right first
derivatives (implicit function theorem), and doubles the digits of n.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from .frames import Touch
from .rotations import across, cross, dot
from .solids import Point, around, of_each, to_local, to_world

#: Sines of angles below which directions are parallel, and parts of the size of a pair below which they are none.
PARALLEL, NONE = 1e-5, 1e-8


class Side(NamedTuple):
    """Three flat points of a solid, and whether its disc is touched where the normal says."""

    unit: object  # (m, 3, 3)
    corner: object  # (m, 3)
    follows: object  # (m,)


class Row(NamedTuple):
    """Which features of two solids touch."""

    a: Side
    b: Side
    normal: object  # (m, 3) about, from the first to the second
    there: object  # (m,)
    gap: object  # (m,) along that normal, NaN where it is not known
    least: object  # (m,) what is closer is not there


def flat(solid, corners, point):
    """Places (..., 3) in the world of flat points."""
    local = of_each(solid.scale, point.unit) * point.unit
    if corners is not None:
        local = local + corners.at(point.corner)
    return of_each(solid.x, local) + to_world(solid, local)


def round_of(solid, follows, n):
    """What the round parts of a solid add to its flat points along ``n`` (m, 3)."""
    m = to_local(solid, n)
    disc, ellipsoid = around(solid, m)
    return to_world(solid, jnp.where(follows[:, None], disc, 0.0) + ellipsoid + solid.ball * m)


def _spanned(p, q, scale):
    """``(directions (m, 3) twice, their parts on both solids, which there are)`` of flat points (m, 3, 3)."""
    arms = [(p[:, k] - p[:, 0], q[:, k] - q[:, 0]) for k in (1, 2)]
    first = arms[0][1] - arms[0][0]
    # If there is one, it is the first.
    swap = (dot(first, first) < (NONE * scale) ** 2)[:, None]
    (u, v), (s, t) = ((jnp.where(swap, y, x) for x, y in zip(one, other, strict=True)) for one, other in (arms, arms[::-1]))
    e, f = v - u, t - s
    square_e, square_f, product = dot(e, e), dot(f, f), cross(e, f)
    one = square_e >= (NONE * scale) ** 2
    two = one & (dot(product, product) > PARALLEL**2 * square_e * square_f)
    return (e, f), (u, v, s, t), (one, two)


def _normal(row, e, f, one, two, apart):
    """The normals (m, 3), by one step of Newton's method for the two numbers by which they differ from those that were found."""
    n = row.normal
    t = across(n)
    d, turned = apart(n), [lax.stop_gradient(jax.jvp(apart, (n,), (x,))[1]) for x in t]
    gap, fixed = lax.stop_gradient(dot(n, d)), lax.stop_gradient(d)

    def unit(x, there):
        return jnp.where(there[:, None], x / jnp.sqrt(jnp.where(there, dot(x, x), 1.0))[:, None], 0.0)

    e, f = unit(e, one), unit(f, two)
    q = cross(e, n)
    a = jnp.where(one, dot(e, n), dot(t[0], d))
    b = jnp.where(two, dot(f, n), jnp.where(one, dot(q, d), dot(t[1], d)))
    rows_a = [jnp.where(one, dot(e, x), dot(t[0], y) - gap * (k == 0)) for k, (x, y) in enumerate(zip(t, turned, strict=True))]
    rows_b = [
        jnp.where(two, dot(f, x), jnp.where(one, dot(q, y) + dot(cross(e, x), fixed), dot(t[1], y) - gap * (k == 1)))
        for k, (x, y) in enumerate(zip(t, turned, strict=True))
    ]
    (j, k), (m, o) = (tuple(map(lax.stop_gradient, x)) for x in (rows_a, rows_b))
    det = j * o - k * m
    regular = jnp.abs(det) > 64 * jnp.finfo(n.dtype).eps * (jnp.abs(j * o) + jnp.abs(k * m))
    det = jnp.where(regular, det, 1.0)
    x, y = (jnp.where(regular, z / det, 0.0) for z in (k * b - o * a, m * a - j * b))
    x, y = x[:, None], y[:, None]
    n = n + x * t[0] + y * t[1]
    return n / jnp.sqrt(dot(n, n))[:, None]


def settled(row, a, b, corners_a, corners_b, scale):
    """`Touch` (m) of rows of two solids."""
    p, q = flat(a, corners_a, Point(*row.a[:2])), flat(b, corners_b, Point(*row.b[:2]))
    (e, f), (u, v, s, t), (one, two) = _spanned(p, q, lax.stop_gradient(scale))

    def ends(n):
        return p[:, 0] + round_of(a, row.a.follows, n), q[:, 0] + round_of(b, row.b.follows, -n)

    def apart(n):
        first, second = ends(n)
        return second - first

    n = _normal(row, e, f, one, two, apart)
    # A step to where the gap is another one was no step of these features.
    same = (1e-8 if n.dtype == jnp.float64 else 3e-5) * scale
    astray = jnp.abs(dot(n, apart(n)) - row.gap) > same
    n = jnp.where(astray[:, None], row.normal, n)
    first, second = ends(n)
    d = second - first
    gap = dot(n, d)
    # Where on what is spanned: what is left of the distance vector is along the normal.
    aside = gap[:, None] * n - d
    ee, ef, ff = dot(e, e), dot(e, f), dot(f, f)
    ee, ff, ef = jnp.where(one, ee, 1.0), jnp.where(two, ff, 1.0), jnp.where(two, ef, 0.0)
    x, y = jnp.where(one, dot(aside, e), 0.0), jnp.where(two, dot(aside, f), 0.0)
    det = ee * ff - ef * ef
    x, y = ((ff * x - ef * y) / det)[:, None], ((ee * y - ef * x) / det)[:, None]
    return Touch(gap, first + x * u + y * s, second + x * v + y * t, n)
