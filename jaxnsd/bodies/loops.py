"""Loops: bilateral constraints between bodies, and between joints, of a tree."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from ..pytrees import pytree
from .lists import pick
from .rotations import compose, matrix, turn


@pytree
class Loops:
    """Numbers of the constraints; which bodies and joints they connect is in the `Structure`."""

    connect: Any  # (n, 3) point in the frame of the first body, m
    second_connect: Any  # (n, 3) and of the second one
    weld_position: Any  # (m, 3) point of the second body in the frame of the first
    weld_anchor: Any  # (m, 3) the same point in the frame of the second
    weld_orientation: Any  # (m, 4) of the second body in the frame of the first
    polynomial: Any  # (k, 5) coefficients of coupled joints


def opening(system, t, q):
    """What has to vanish: distances along the axes of the world in m, rotations in rad, differences of coordinates."""
    structure, loops, parts = system.structure, system.loops, []
    inside = [i for i in range(3) if i != structure.plane]
    if structure.connects or structure.welds:
        places = system.places(t, q)

        def apart(pairs, point, second_point):
            first, second = (np.array(part, int) for part in zip(*pairs, strict=True))
            R, S = pick(places.R, first), pick(places.R, second)
            return R, S, pick(places.x, second) + turn(S, second_point) - pick(places.x, first) - turn(R, point)

        if structure.connects:
            _, _, gap = apart(structure.connects, loops.connect, loops.second_connect)
            parts.append(_columns(gap, inside))
        if structure.welds:
            R, S, gap = apart(structure.welds, loops.weld_position, loops.weld_anchor)
            # Half of the skew part of the rotation that is left: the rotation vector, to second order, in the frame of the world.
            left = compose(S, jnp.swapaxes(compose(R, matrix(loops.weld_orientation)), 1, 2))
            turned = 0.5 * jnp.stack([left[:, 2, 1] - left[:, 1, 2], left[:, 0, 2] - left[:, 2, 0], left[:, 1, 0] - left[:, 0, 1]], axis=1)
            about = range(3) if structure.plane is None else [structure.plane]
            parts += [_columns(gap, inside), _columns(turned, about)]
    layout = system._layout
    for k, (first, second) in enumerate(structure.couples):
        y = q[layout.q_at[first]] - system.reference[first]
        x = jnp.zeros_like(y) if second < 0 else q[layout.q_at[second]] - system.reference[second]
        c = loops.polynomial[k]
        parts.append((y - (c[0] + x * (c[1] + x * (c[2] + x * (c[3] + x * c[4])))))[None])
    return jnp.concatenate(parts) if parts else jnp.zeros((0,), q.dtype)


def _columns(x, which):
    return jnp.stack([x[:, i] for i in which], axis=1).reshape(-1)
