"""Joints whose motion is prescribed: coordinates, velocities and accelerations are those of functions of time."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..programs.given import calling, numbers, shown, takes
from . import lists
from .rotations import dot, product

#: What a function gives that moves a body.
WANTED = "a position (3,) in m, or a position and a quaternion (4,)"


def _joints(structure):
    """``(joint, what messages call its motion)`` of those that are prescribed."""
    for joint in structure.joints:
        if joint.prescribed:
            free = joint.kind == "free"
            yield joint, f"the motion of the {'body' if free else 'joint'} {structure.bodies[joint.body - 1] if free else joint.name!r}"


def coordinates(system, t, dtype):
    """Coordinates (n,) that are prescribed, joint by joint: of a body position (3,) and quaternion (4,)."""
    t = jnp.asarray(t, dtype)
    joints = zip(_joints(system.structure), system.motions, strict=True)
    return jnp.concatenate([_coordinates(system, joint, motion, t, called) for (joint, called), motion in joints])


def velocities(system, t, dtype):
    """Velocities and accelerations (n,) that are prescribed; of a body its velocity in the world and angular velocity in its own frame."""
    t = jnp.asarray(t, dtype)
    rates = []
    for (joint, called), motion in zip(_joints(system.structure), system.motions, strict=True):

        def rate(t, joint=joint, called=called, motion=motion):
            place, speed = jax.jvp(lambda t: _coordinates(system, joint, motion, t, called), (t,), (jnp.ones_like(t),))
            return _velocity(place, speed) if joint.kind == "free" else speed

        rates.append(jax.jvp(rate, (t,), (jnp.ones_like(t),)))
    return tuple(map(jnp.concatenate, zip(*rates, strict=True)))


def _coordinates(system, joint, motion, t, called):
    value = motion(t)
    _check(called, joint.kind, value)
    if joint.kind != "free":
        return jnp.asarray(value, t.dtype)[None]
    position, quaternion = (*_parts(value), system.orientation[joint.body - 1])[:2]
    p = jnp.asarray(quaternion, t.dtype)
    return jnp.concatenate([jnp.asarray(position, t.dtype), p / jnp.sqrt(dot(p, p))])


def _velocity(place, speed):
    """``omega = 2 conj(p) dp/dt`` of a unit quaternion p."""
    conjugate = place[3:] * np.array([1.0, -1.0, -1.0, -1.0], place.dtype)
    return jnp.concatenate([speed[:3], 2 * product(conjugate, speed[3:])[1:]])


def _parts(value):
    """``(position,)`` or ``(position, quaternion)`` of what a function gives."""
    return value if isinstance(value, tuple | list) and len(value) == 2 else (value,)


def _check(called, kind, value):
    """Raise TypeError or ValueError for what is no coordinate, or no place of a body."""
    parts, fitting = (_parts(value), ([(3,)], [(3,), (4,)])) if kind == "free" else ((value,), ([()],))
    given = list(map(numbers, parts))
    wanted = f"{called} must give {WANTED if kind == 'free' else 'a number'}, got "
    if any(array is None for array in given):
        raise TypeError(wanted + shown(value))
    if (shapes := list(map(np.shape, given))) not in fitting:
        raise ValueError(wanted + " and ".join(f"shape {shape}" for shape in shapes))


# ---------------------------------------------------------------------------------------------------------- what is given
def check(structure, motions):
    """Raise TypeError or ValueError for functions that give something else than their joints need."""
    for (joint, called), motion in zip(_joints(structure), motions, strict=True):
        given: list[Any] = []

        def asked(t, motion=motion, given=given):
            given.append(motion(t))
            return t

        with calling(f"assemble: {called}"):
            jax.eval_shape(asked, jax.ShapeDtypeStruct((), jnp.result_type(float)))
        _check(f"assemble: {called}", joint.kind, given[0])


def functions(system):
    """The motions with their names in messages: see `System._functions`."""
    found = []
    for k, (joint, called) in enumerate(_joints(system.structure)):

        def asked(system, t, q, u, k=k, joint=joint, called=called):
            del u
            return _coordinates(system, joint, system.motions[k], jnp.asarray(t, q.dtype), called)

        free = joint.kind == "free"
        found.append((called, asked, 7 if free else 1, "position and quaternion" if free else "a number"))
    return found


def by_name(caller, motion, model, names):
    """``{number of a body: function}`` of what `from_mjcf` is given by names of bodies of a MuJoCo model.

    Raises TypeError for what is no function of t, KeyError for a name that there is not, ValueError for a body that moves by itself.
    """
    if not isinstance(motion, Mapping):
        raise TypeError(f"{caller}: motion must be functions of t by names of bodies, {{'mocap': function}}, got {shown(motion)}")
    found = {}
    for name, function in motion.items():
        if name not in names[1:]:
            mocap = tuple(own for own, k in zip(names, model.body_mocapid, strict=True) if k >= 0)
            raise KeyError(f"{caller}: motion: {lists.unknown('body', name, mocap or tuple(names[1:]))}")
        body = names.index(name)
        if model.body_jntnum[body] or model.body_parentid[body]:
            raise ValueError(f"{caller}: motion moves a body that is fixed to the world, got {name!r}, which hangs on a joint or a body")
        takes(f"{caller}: the motion of the body {name!r}", function, "t")
        found[body] = function
    return found


def elsewhere(model, names, moved):
    """Bodies of motion capture without a motion that a keyframe of a MuJoCo model puts elsewhere, in words: no state has their places."""
    for body, k in enumerate(model.body_mocapid):
        if k >= 0 and body not in moved:
            position, quaternion = model.key_mpos[:, 3 * k : 3 * k + 3], model.key_mquat[:, 4 * k : 4 * k + 4]
            if not (np.allclose(position, model.body_pos[body]) and np.allclose(quaternion, model.body_quat[body])):
                yield f"the place of the mocap body {names[body]!r} in keyframes, which needs a motion"
