"""Planes of motion: what lies across them has no row of a contact or of a constraint of its own."""

import dataclasses

import jax
import numpy as np

from ..native.jax_internals import is_traced
from ..programs import runs
from ..programs.jitted import jit
from . import loops
from .lists import pick
from .rotations import compose, matrix

#: Cosine below which directions count as perpendicular.
FLAT = 1e-5

#: Points of a loop may be apart across its plane by this part of the size of the system: what was typed with so many digits.
TYPED = 1e-6

#: And a weld may be turned out of it by this angle, in rad: entries of quaternions are typed with three digits.
TILTED = 1e-3


#: What decides how things are turned at the reference.
TURNS = ("orientation", "joint_axis", "reference", "shape_orientation", "motions")


def _turns(system):
    """``(rotations of the shapes, Places)`` at the reference with all lengths zero; None: they are traced.

    How things are turned does not depend on where they are, nor on masses: those may be traced.
    """
    if any(map(is_traced, jax.tree.leaves([getattr(system, name) for name in TURNS]))):
        return None
    nowhere = {name: np.zeros(getattr(system, name).shape) for name in ("position", "joint_position", "shape_position")}
    still = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype) if is_traced(x) else np.asarray(x), dataclasses.replace(system, **nowhere))
    return jax.tree.map(np.asarray, _at_once(_turned, still))


def _turned(system):
    places = system.places(0.0, system.initial_state()[0])
    return compose(pick(places.R, [shape.body for shape in system.structure.shapes]), matrix(system.shape_orientation)), places


@jit(static_argnums=0)
def _run(function, system):
    return runs.run(function, system)


def _at_once(function, system):
    """``function(system)`` by one program instead of a hundred, which runs while others are traced."""
    return runs.compiled_once(_run, function, system)(system)


def flattened(system):
    """The system with what boxes have across a plane of motion: an axis of their own, of which the corners are in pairs, or all eight.

    Raises ValueError for joints that move out of the plane, and planes whose normal is not in it; turns in it keep what lies across.
    """
    structure, layout = system.structure, system._layout
    if structure.plane is None or (found := _turns(system)) is None:
        return system
    (R, places), axis, name = found, structure.plane, ("yz", "xz", "xy")[structure.plane]
    for j, joint in enumerate(structure.joints):
        w, v = np.abs(places.w[layout.u_at[j]]), np.abs(places.v[layout.u_at[j]])
        if joint.kind in ("free", "ball") or abs(w[axis] - (joint.kind == "hinge")) > FLAT or v[axis] > FLAT:
            raise ValueError(f'assemble: with plane="{name}" all motion must be parallel to it, got the {joint.kind} joint {joint.name!r}')
    shapes = list(structure.shapes)
    for s, row in enumerate(np.abs(R)[:, axis]):
        if shapes[s].kind == "plane" and row[2] > FLAT and any(s in pair for pair in structure.pairs):
            raise ValueError(f'assemble: with plane="{name}" normals must be in it, got the plane {shapes[s].name!r}')
        if shapes[s].kind == "box" and np.sort(row)[1] < FLAT:
            shapes[s] = shapes[s]._replace(across=int(np.argmax(row)))
    return dataclasses.replace(system, structure=dataclasses.replace(structure, shapes=tuple(shapes)))


def in_planes(system):
    """The system with the plane of every loop whose joints are parallel hinges, and sliders across them, wherever it is turned.

    Across it nothing in the loop moves: the row of a constraint that says so would depend on the others.
    """
    structure, layout = system.structure, system._layout
    closed = (*structure.connects, *structure.welds)
    if not closed:
        return system
    if structure.plane is not None:
        _check_planes(system)
        return system
    if (found := _turns(system)) is None:
        return system
    _, places = found
    across = []
    for a, b in closed:
        # What moves between the two bodies and the last one that carries both.
        moving = np.flatnonzero(layout.moves[a] ^ layout.moves[b])
        kinds = [structure.joints[j].kind for j in layout.joint_of_dof[moving]]
        across.append(None)
        if "hinge" not in kinds or not {"hinge", "slide"}.issuperset(kinds):
            continue
        hinge = moving[kinds.index("hinge")]
        turning, sliding = (np.abs(x[moving] @ places.w[hinge]) for x in (places.w, places.v))
        if np.all(np.abs(turning - [kind == "hinge" for kind in kinds]) < FLAT) and np.all(sliding < FLAT):
            carrier = next(c for c, moved in enumerate(layout.moves) if np.array_equal(moved, layout.moves[a] & layout.moves[b]))
            across[-1] = int(hinge), carrier, int(np.argmin(np.abs(places.w[hinge] @ places.R[carrier])))
    system = dataclasses.replace(system, structure=dataclasses.replace(structure, across=tuple(across)))
    _check_planes(system)
    return system


def _opened(system):
    """Origins of the bodies, axes of the joints, and what is open of the loops, at the reference."""
    places = system.places(0.0, system.initial_state()[0])
    gaps = loops.apart(system, places)
    return places.x, places.w, gaps, loops.turned(system, places) if system.structure.welds else gaps[:0]


def _check_planes(system):
    """Raise ValueError for a loop in a plane whose points are apart across it, or whose weld is turned out of it: no motion closes it."""
    structure = system.structure
    if any(map(is_traced, jax.tree.leaves(system))):
        with jax.ensure_compile_time_eval():
            found = _opened(system)
    else:
        found = _at_once(_opened, system)
    if any(map(is_traced, found)):
        return
    # Of NumPy: under `jit` what is made of JAX's arrays, though they be known, is traced.
    x, w, gaps, turned = map(np.asarray, found)
    size = np.abs(x).max() + np.abs(gaps).max()
    turned = np.concatenate([np.zeros((len(structure.connects), 3)), turned])
    normals = [np.eye(3)[structure.plane]] * len(gaps) if structure.plane is not None else [p and w[p[0]] for p in structure.across]
    for (a, b), gap, angle, normal in zip((*structure.connects, *structure.welds), gaps, turned, normals, strict=True):
        if normal is None:
            continue
        across, tilt = abs(gap @ normal), np.linalg.norm(angle - (angle @ normal) * normal)
        names = " and ".join(repr(("world", *structure.bodies)[k]) for k in (a, b))
        if across > TYPED * size:
            raise ValueError(
                f"assemble: the points that close the loop of {names} must meet, got them {across:g} m apart across the plane in which "
                "its joints move"
            )
        if tilt > TILTED:
            raise ValueError(
                f"assemble: a weld holds {names} turned against each other as its orientation says, got {tilt:g} rad left about axes in "
                "the plane in which its joints move"
            )
