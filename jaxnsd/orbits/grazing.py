"""Grazings: how near an open contact comes to closing, and the orbit with the other sequence of events behind a grazing.

Near a grazing the motion depends on the least gap d that it would have without the weak impact: smoothly for d > 0, and for d < 0 by the
speed of that impact, which is proportional to ``sqrt(-d)`` (Nordmark 1991). Along the states of one d it is smooth on both sides. So an
orbit of the other side is found from the last one of this side: its start is moved along the gradient of d to a d of the other sign, and
Newton's method, with the parameter as an unknown, goes on at right angles to that gradient.
"""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ..programs.jitted import jit
from .arcs import nodes_of
from .newton import Given, Start, find
from .newton import orbit as orbit_of
from .orbit import Orbit
from .periodic import LIMIT, sizes

#: Distances from the grazing at which the other orbit is looked for, in units of the sizes of the motion: an impact nearer to it is slower
#: than what is located.
DISTANCES = (1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)

#: Step of the differences of the least gap, in the same units: shorter than the gap at the end of a branch.
DIFFERENCE = 1e-7


def across(last: Orbit, parameter: Any, closes: bool) -> Orbit:
    """The orbit behind a grazing, from the last one before it; where none is found, what the last attempt has ended with.

    last:       the last `Orbit` of a branch
    parameter:  the `Parameter` that was followed, an unknown here
    closes:     whether an open gap closes at the grazing; otherwise an impact loses its speed there
    """
    shooting, dtype = last.shooting, last.q.dtype
    direction, given = parameter.direction(last.system), Given(last.system, last.t0, last.period)
    v = np.concatenate([last.q, last.u, [last.period, 0.0]])
    scale = np.array(sizes(last.system, last.t0, last.q, last.u, last.period))
    scale[-1] = abs(float(parameter.value(last.system))) or 1.0

    def found(v, row, limit=LIMIT):
        arrays = {"v": v, "row": row / scale, "scale": scale}
        arrays = {name: x.astype(dtype) for name, x in arrays.items()}
        # One motion is looked at as it is.
        start = Start(**arrays, direction=direction, limit=np.int32(limit), nodes=nodes_of(last) if limit > 1 else None)
        result = find(shooting, given, start)
        other, _, near = point_of(shooting, given, start, result)
        return result, other, near

    at, away = np.eye(len(v)), (-1.0,) if closes else (1.0, -1.0)
    if closes:
        near = float(found(v, at[-1], 1)[2])
        gaps = [[float(found(v + h * scale * x, at[-1], 1)[2]) for h in (DIFFERENCE, -DIFFERENCE)] for x in at]
        gradient = np.array([(a - b) / (2 * DIFFERENCE) for a, b in gaps])
    else:
        # The derivative of a weak impact by the state is as large as one over its speed, in the direction of the gradient.
        J = np.asarray(found(v, at[-1], 1)[0].J) * scale / scale[:-1, None]
        near, gradient = 0.0, np.linalg.svd(J)[2][0]
    length = np.linalg.norm(gradient)
    size = scale[: shooting.n_q].max() if closes else 1.0
    for distance, sign in itertools.product(DISTANCES, away):
        row = gradient / length
        other = found(v + (sign * distance * size - near) / length * row * scale, row)[1]
        more = len(other.events) - len(last.events)
        if bool(other.success) and (more > 0 if closes else more < 0):
            break
    return other


@jit(static_argnames="shooting")
def point_of(shooting, given, start, found):
    """``(Orbit, multipliers, least gap at a near miss)``."""
    result = orbit_of(shooting, given, start, found)
    return result, result.multipliers, near_miss(result)


def near_miss(orbit: Orbit) -> ArrayLike:
    """The least gap of open contacts at a minimum between impacts, from cubics through gaps and gap velocities at the nodes; infinite where
    no gap has one.
    """
    sol = orbit.solution
    if not sol.P_N.shape[1]:
        return jnp.full((), jnp.inf, sol.q.dtype)
    gap = jax.vmap(orbit.system.gap)(sol.t, sol.q)
    rate = jax.vmap(orbit.system.gap_velocity)(sol.t, sol.q, sol.u)
    dt = sol.dt
    g, g1, r, r1 = gap[:-1], gap[1:], dt * rate[:-1], dt * rate[1:]
    # g + r x + a x^2 + b x^3 has its minimum where its derivative rises through zero.
    a, b = 3 * (g1 - g) - 2 * r - r1, 2 * (g - g1) + r + r1
    root = jnp.sqrt(jnp.maximum(a * a - 3 * b * r, 0))
    x = -r / jnp.where(a + root != 0, a + root, jnp.inf)
    least = g + x * (r + x * (a + x * b))
    # What pushes in a step beside opens or closes there, with a velocity of round-off: it misses nothing.
    pushes = jnp.pad(sol.P_N > 0, ((1, 1), (0, 0)))
    inside = (r < 0) & (r1 > 0) & ~(pushes[:-2] | pushes[1:-1] | pushes[2:])
    return jnp.min(jnp.where(inside, least, jnp.inf))
