"""Loops: bilateral constraints between bodies, and between joints, of a tree."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from ..programs.pytrees import pytree
from .lists import pick
from .rotations import compose, cross, dot, matrix, quaternion_of, turn, unit

#: Opening of a loop that counts as drift, as a part of the size of the bodies and of a radian; and round-off of the coordinates in it.
DRIFT, DRIFT_ROUND_OFF = 1e-3, 64


@pytree
class Loops:
    """Numbers of the constraints; which bodies and joints they connect is in the `Structure`."""

    connect: Any  # (n, 3) point in the frame of the first body, m
    second_connect: Any  # (n, 3) and of the second one
    weld_position: Any  # (m, 3) point of the second body in the frame of the first
    weld_anchor: Any  # (m, 3) the same point in the frame of the second
    weld_orientation: Any  # (m, 4) of the second body in the frame of the first
    polynomial: Any  # (k, 5) coefficients of coupled joints
    coefficients: Any  # of the coordinates of their joints, first and second, one coupling after the other


def opening(system, t, q):
    """What has to vanish: distances along the axes of the world in m, rotations in rad, differences of coordinates.

    Of a loop in a plane (`Structure.across`) distances in it, along axes that its carrier moves, and the rotation about its normal.
    """
    structure, loops, parts = system.structure, system.loops, []
    if structure.connects or structure.welds:
        places = system.places(t, q)
        axes = [_axes(system, places, k) for k in range(len(structure.connects) + len(structure.welds))]
        parts += [dot(along, gap[None]) for (_, along), gap in zip(axes, apart(system, places), strict=True)]
        if structure.welds:
            of_welds = zip(axes[len(structure.connects) :], turned(system, places), strict=True)
            parts += [dot(about, left[None]) for (about, _), left in of_welds]
    layout, at = system._layout, 0
    for k, sides in enumerate(structure.couples):
        ends = []
        for joints in sides:
            ends.append(jnp.zeros((), q.dtype))
            for j in joints:
                ends[-1], at = ends[-1] + loops.coefficients[at] * (q[layout.q_at[j]] - system.reference[j]), at + 1
        y, x = ends
        c = loops.polynomial[k]
        parts.append((y - (c[0] + x * (c[1] + x * (c[2] + x * (c[3] + x * c[4])))))[None])
    return jnp.concatenate(parts) if parts else jnp.zeros((0,), q.dtype)


def largest_opening(system, q):
    """Openings (n_g,) that no loop should have: `DRIFT` of the size of the bodies in m, and of a radian; and round-off of coordinates."""
    structure, loops = system.structure, system.loops
    n_axes = np.array([3 if structure.plane is None and (not structure.across or a is None) else 2 for a in _across(structure)], int)
    of_welds = 2 * n_axes[len(structure.connects) :] - 3
    kinds = [structure.joints[y[0]].kind if len(y) else "hinge" for y, _ in structure.couples]
    lengths = [True] * n_axes.sum() + [False] * of_welds.sum() + [kind == "slide" for kind in kinds]
    inner = [b for b, parent in enumerate(structure.parents) if parent]
    arms = loops.connect, loops.second_connect, loops.weld_position, loops.weld_anchor, pick(system.position, inner), system.center
    gyration = jnp.trace(system.inertia, axis1=1, axis2=2) / jnp.where(system.mass > 0, 2 * system.mass, jnp.inf)
    size = jnp.sqrt(jnp.max(jnp.concatenate([*(dot(arm, arm) for arm in arms), gyration])))
    round_off = DRIFT_ROUND_OFF * float(jnp.finfo(q.dtype).eps) * jnp.max(jnp.abs(q))
    return round_off + DRIFT * jnp.where(np.array(lengths, bool), size, jnp.ones((), q.dtype))


def _across(structure):
    """`Structure.across` of every connect and weld."""
    return structure.across or (None,) * (len(structure.connects) + len(structure.welds))


def apart(system, places):
    """From the first to the second points of the connects, then of the welds, (n + m, 3) in the frame of the world."""
    loops = system.loops
    first, second = (np.array(part, int) for part in zip(*system.structure.connects, *system.structure.welds, strict=True))
    point = jnp.concatenate([loops.connect, loops.weld_position])
    second_point = jnp.concatenate([loops.second_connect, loops.weld_anchor])
    R, S = pick(places.R, first), pick(places.R, second)
    return pick(places.x, second) + turn(S, second_point) - pick(places.x, first) - turn(R, point)


def turned(system, places):
    """What is left of the rotations of the welds: 2 sin(angle / 2) times the axis in the frame of the world, not zero after half a turn."""
    first, second = (np.array(part, int) for part in zip(*system.structure.welds, strict=True))
    R = compose(pick(places.R, first), matrix(system.loops.weld_orientation))
    left = compose(pick(places.R, second), jnp.swapaxes(R, 1, 2))
    return 2 * jnp.stack([quaternion_of(one)[1:] for one in left])


def _axes(system, places, k):
    """Axes (m, 3) about which, and (l, 3) along which, the k-th of the loops is closed."""
    structure, eye = system.structure, jnp.eye(3, dtype=places.x.dtype)
    if structure.plane is not None:
        return eye[structure.plane : structure.plane + 1], eye[np.array([i for i in range(3) if i != structure.plane])]
    if not structure.across or structure.across[k] is None:
        return eye, eye
    hinge, carrier, axis = structure.across[k]
    n, along = places.w[hinge], places.R[carrier, :, axis]
    first = unit(along - dot(along, n) * n)
    return n[None], jnp.stack([first, cross(n, first)])
