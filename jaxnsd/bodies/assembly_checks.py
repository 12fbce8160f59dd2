"""Whether the numbers of what is assembled make sense."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from ..native.jax_internals import is_traced
from ..programs import runs
from .rotations import quaternion_of, turn_back
from .structure import SIZES

#: A moment of inertia may exceed the sum of the two others by this part: what was typed, or computed in single precision.
TRIANGLE = 1e-6


def check(system):
    """Raise ValueError where numbers that are known make no system."""
    structure = system.structure

    def known(x):
        return not is_traced(x)

    for path, leaf in jax.tree_util.tree_leaves_with_path(system):
        if not known(leaf) or not isinstance(leaf, (jax.Array, np.ndarray, float)):
            continue
        name = jax.tree_util.keystr(path)
        if np.any(np.isnan(np.asarray(leaf))):
            raise ValueError(f"assemble: {name} must be numbers, got NaN: {np.asarray(leaf)}")
        # Where a motor has no limits they are infinite.
        if np.any(np.isinf(np.asarray(leaf))) and not name.endswith(("control_limits", "force_limits", "total_limits")):
            raise ValueError(f"assemble: {name} must be finite, got {np.asarray(leaf)}")
    if known(system.mass) and np.any(np.asarray(system.mass) < 0):
        k = int(np.argmin(np.asarray(system.mass)))
        raise ValueError(f"assemble: the mass of {structure.bodies[k]!r} must not be negative, got {np.asarray(system.mass)[k]:g} kg")
    of_velocities = [structure.joints[j].name for j in structure.layout.joint_of_dof[: structure.layout.n_u]]
    for field, names in (("armature", of_velocities), ("dry_friction", structure.rubbed)):
        values = getattr(system, field)
        if values is not None and known(values) and np.any(np.asarray(values) < 0):
            k = int(np.argmin(np.asarray(values)))
            what = "tendon" if names is not of_velocities and structure.dry[k] >= structure.layout.n_u else "joint"
            raise ValueError(f"assemble: the {field} of the {what} {names[k]!r} must not be negative, got {np.asarray(values)[k]:g}")
    if known(system.inertia):
        for name, tensor in zip(structure.bodies, np.asarray(system.inertia, float), strict=True):
            _check_inertia(name, tensor)
    if known(system.mass) and known(system.inertia):
        _check_moved(system)
    for what, names, vectors in (
        ("axis of the joint", [joint.name for joint in structure.joints], system.joint_axis),
        ("orientation of the body", structure.bodies, system.orientation),
        ("orientation of the shape", [shape.name for shape in structure.shapes], system.shape_orientation),
        ("orientation of the site", [site.name for site in structure.sites], system.site_orientation),
    ):
        if known(vectors):
            for name, vector in zip(names, np.asarray(vectors), strict=True):
                if not np.linalg.norm(vector) > 0:
                    raise ValueError(f"assemble: the {what} {name!r} must not be zero, got {vector}")
    if known(system.shape_size):
        needed = {"sphere": 1, "capsule": 1, "cylinder": 2, "box": 3, "ellipsoid": 3}
        for shape, size in zip(structure.shapes, np.asarray(system.shape_size), strict=True):
            if np.any(size < 0) or np.any(size[: needed.get(shape.kind, 0)] <= 0):
                raise ValueError(f"assemble: the sizes of the {shape.kind} {shape.name!r} must be positive, got {size}")
    motors, driven = system.motors, [name for name, _ in structure.motors]
    for what, names, ranges in (
        ("limits of", structure.limited, system.limits),
        ("control_limits of the motor of", driven, motors.control_limits),
        ("force_limits of the motor of", driven, motors.force_limits),
        ("motor_limits of", of_velocities, motors.total_limits),
        *([("spring_length of", system.tendon_names, system.tendons.spring_length)] if structure.tendons else []),
    ):
        if known(ranges):
            for name, (lower, upper) in zip(names, np.asarray(ranges), strict=True):
                if not lower <= upper:
                    raise ValueError(f"assemble: {what} {name!r} must be (lower, upper), got ({lower:g}, {upper:g})")


def check_materials(system):
    """Friction and restitution of the pairs and limits, as far as they are known."""
    shapes = system.structure.shapes
    of_pairs = [f"{shapes[a].name!r} and {shapes[b].name!r}" for a, b in system.structure.pairs]
    of_limits = [f"the limits of {name!r}" for name in system.structure.limited]
    for what, names, values, highest in (
        ("mu", of_pairs, system.friction, np.inf),
        ("e_N", of_pairs, system.restitution, 1.0),
        ("e_F", of_pairs, system.tangential_restitution, 1.0),
        ("drilling", of_pairs, system.drilling, np.inf),
        ("rolling", of_pairs, system.rolling, np.inf),
        ("limit_restitution", of_limits, system.limit_restitution, 1.0),
    ):
        if is_traced(values):
            continue
        for name, value in zip(names, np.asarray(values), strict=True):
            if not 0 <= value <= highest:
                wanted = "not be negative" if highest == np.inf else "lie in [0, 1]"
                raise ValueError(f"assemble: {what} of {name} must {wanted}, got {value:g}")


def closed(system, connects, welds):
    """The system with what loops leave open of it taken from the reference configuration."""
    if all(x.second_position is not None for x in connects) and all(x.position is not None and x.orientation is not None for x in welds):
        return system
    left_open = tuple((x.second_position is None,) for x in connects), tuple((x.position is None, x.orientation is None) for x in welds)
    return dataclasses.replace(system, loops=dataclasses.replace(system.loops, **_at_reference(system, left_open=left_open)))


@functools.partial(runs.natively, traced=lambda function: function, static_argnames="left_open")
def _at_reference(system, *, left_open):
    """Numbers of `loops.Loops`, with those that are ``left_open`` as in the reference configuration."""
    places = system.places(0.0, system.initial_state()[0])
    new = {}
    second = []
    for k, ((is_open,), (a, b)) in enumerate(zip(left_open[0], system.structure.connects, strict=True)):
        point = places.x[a] + places.R[a] @ system.loops.connect[k]
        second.append(turn_back(places.R[b], point - places.x[b]) if is_open else system.loops.second_connect[k])
    if second:
        new["second_connect"] = jnp.stack(second)
    position, orientation = [], []
    for k, ((no_position, no_orientation), (a, b)) in enumerate(zip(left_open[1], system.structure.welds, strict=True)):
        point = places.x[b] + places.R[b] @ system.loops.weld_anchor[k]
        position.append(turn_back(places.R[a], point - places.x[a]) if no_position else system.loops.weld_position[k])
        orientation.append(quaternion_of(places.R[a].T @ places.R[b]) if no_orientation else system.loops.weld_orientation[k])
    if position:
        new |= {"weld_position": jnp.stack(position), "weld_orientation": jnp.stack(orientation)}
    return new


def _check_inertia(name, tensor):
    size = np.abs(tensor).max()
    if np.abs(tensor - tensor.T).max() > TRIANGLE * size:
        raise ValueError(f"assemble: the inertia of {name!r} must be symmetric, got {tensor.tolist()}")
    a, b, c = np.linalg.eigvalsh(tensor)
    if a < -TRIANGLE * size:
        raise ValueError(f"assemble: the inertia of {name!r} must be positive, got principal moments {a:.6g}, {b:.6g}, {c:.6g} kg m^2")
    if c > (a + b) * (1 + TRIANGLE):
        raise ValueError(
            f"assemble: no body has the inertia of {name!r}: a principal moment must not exceed the sum of the two others, got {a:.6g}, "
            f"{b:.6g}, {c:.6g} kg m^2"
        )


def _check_moved(system):
    """Every velocity must move something: else the mass matrix is singular."""
    layout, structure = system._layout, system.structure
    mass, inertia = np.asarray(system.mass), np.abs(np.asarray(system.inertia)).max(axis=(1, 2))
    armature = np.asarray(system.armature)
    for j, joint in enumerate(structure.joints):
        if joint.prescribed:
            continue
        u, n = layout.u_at[j], SIZES[joint.kind][1]
        moved = layout.moves[1:, u]
        turns = joint.kind != "slide"
        # A point mass on the axis of a hinge is not looked for: it shows as a singular mass matrix where a run begins.
        there = mass[moved].sum() > 0 or (turns and inertia[moved].sum() > 0)
        if joint.kind == "free":
            there = mass[moved].sum() > 0 and inertia[moved].sum() + (mass[moved] > 0).sum() > 1
        if not there and not np.all(armature[u : u + n] > 0):
            body = structure.bodies[joint.body - 1]
            raise ValueError(
                f"assemble: what the joint {joint.name!r} of {body!r} moves must have mass and inertia, got a mass of "
                f"{mass[moved].sum():g} kg and an inertia of {inertia[moved].sum():g} kg m^2; give the body a mass, an inertia, or its "
                "joint an armature"
            )
