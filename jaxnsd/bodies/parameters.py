"""Numbers of parts as arrays, the parameters of a `Multibody`."""

import jax
import jax.numpy as jnp
import numpy as np

from ..native.jax_internals import is_traced, known_array
from ..programs.given import as_array
from . import forces, parts, tendons
from .structure import SIZES


def of_bodies(bodies):
    """Numbers of bodies, by the fields of a `Multibody`, (n_bodies, ...) each."""
    return {
        "mass": stack([body.mass for body in bodies]),
        "center": stack([body.center for body in bodies], 3),
        "inertia": _together([_tensor(body.inertia) for body in bodies], (3, 3)),
        "carried": stack([body.carried for body in bodies]),
        "position": stack([body.position for body in bodies], 3),
        "orientation": stack([body.orientation for body in bodies], 4),
    }


def of_joints(structure, bodies, joint_parts, cords, limit_restitution):
    """Numbers of joints, by the fields of a `Multibody`, a row for each joint, velocity or limit."""
    joints, limited, with_limits = structure.joints, structure.limits, (*joint_parts, *cords)
    bounds = _per_velocity(joint_parts, joints, "dry_friction")
    bounds = _joined([bounds, *(cord.dry_friction for cord in cords)]) if cords else bounds
    return {
        "joint_position": stack([getattr(joint, "position", parts.ZERO) for joint in joint_parts], 3),
        "joint_axis": stack([getattr(joint, "axis", (1.0, 0.0, 0.0)) for joint in joint_parts], 3),
        "reference": stack([getattr(joint, "reference", 0.0) for joint in joint_parts]),
        "stiffness": stack([joint.stiffness for joint in joint_parts]),
        "rest": _joined([_rest(joint, bodies[of.body - 1]) for joint, of in zip(joint_parts, joints, strict=True) if not of.prescribed]),
        "damping": _per_velocity(joint_parts, joints, "damping"),
        "armature": _per_velocity(joint_parts, joints, "armature"),
        "dry_friction": bounds[np.array(structure.dry)] if structure.dry else None,
        "limits": stack([limits(with_limits[j]) for j in limited], 2),
        "limit_restitution": as_array(_broadcast(limit_restitution, len(limited))),
    }


def of_shapes(shape_parts):
    """Numbers of shapes, by the fields of a `Multibody`."""
    return {
        "shape_position": stack([shape.position for shape in shape_parts], 3),
        "shape_orientation": stack([shape.orientation for shape in shape_parts], 4),
        "shape_size": stack([shape.size() for shape in shape_parts], 3),
        "points": tuple(as_array(number(shape.points)) for shape in shape_parts if isinstance(shape, parts.Points)),
    }


def of_pairs(materials):
    """Numbers of pairs that may touch, by the fields of a `Multibody`."""
    names = ("friction", "restitution", "tangential_restitution", "drilling", "rolling")
    return {name: stack([m[k] for m in materials]) for k, name in enumerate(names)}


def of_sites(sites, sensors):
    """Numbers of sites and sensors, by the fields of a `Multibody`."""
    return {
        "site_position": stack([site.position for site in sites], 3),
        "site_orientation": stack([site.orientation for site in sites], 4),
        "site_size": stack([parts.ZERO if site.volume is None else site.volume.size() for site in sites], 3),
        "sensor_cutoff": stack([sensor.cutoff for sensor in sensors]),
    }


def of_springs(springs):
    """`forces.Springs` of parts."""
    return forces.Springs(
        stack([x.position for x in springs], 3),
        stack([x.second_position for x in springs], 3),
        *(stack([getattr(x, name) for x in springs]) for name in ("stiffness", "length", "damping")),
    )


def of_tendons(cords):
    """`tendons.Tendons` of parts."""
    if not cords:
        return None
    slack = [np.zeros(2) if x.spring_length is None else _joined([x.spring_length] * (2 // np.size(x.spring_length))) for x in cords]
    return tendons.Tendons(
        *(_joined([c for x in cords for c in of(x)]) for of in (tendons.coefficients, tendons.divisors)),
        *(stack([x.stiffness for x in cords]), stack(slack, 2)),
        *(stack([getattr(x, name) for x in cords]) for name in ("damping", "armature")),
    )


def of_motors(motors, joint_parts, joints):
    """`forces.Motors` of parts."""
    return forces.Motors(
        _joined([x.gear for x in sorted(motors, key=lambda motor: motor.tendon is not None)]),
        *(stack([getattr(x, name) for x in motors]) for name in ("gain", "offset", "slope", "rate")),
        *(stack([_range(getattr(x, name)) for x in motors], 2) for name in ("control_limits", "force_limits")),
        _motor_limits(joint_parts, joints),
    )


def number(x):
    """A floating number or array: of NumPy as long as nothing is traced, so that a model of many parts is put together at once."""
    if not isinstance(x, jax.Array):
        return np.asarray(x, float)
    x = x if is_traced(x) else np.asarray(x)
    return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(float)


def _scalar(x):
    x = number(x)
    if x.shape:
        raise ValueError(f"assemble: a number must have no axes, got shape {x.shape}: {x!r}")
    return x


def _broadcast(x, n):
    x = number(x)
    return (jnp if isinstance(x, jax.Array) else np).broadcast_to(x, (n,))


def _together(values, shape):
    """An array (k, *shape) of NumPy or JAX arrays."""
    if any(isinstance(x, jax.Array) for x in values):
        return jnp.stack([as_array(x) for x in values])
    return known_array(np.stack(values) if values else np.zeros((0, *shape)))


def vector(x, n):
    """A floating array (n,), of NumPy or of JAX."""
    x = number(x) if isinstance(x, (np.ndarray, jax.Array)) or all(np.isscalar(e) for e in x) else _together([number(e) for e in x], ())
    if x.shape != (n,):
        raise ValueError(f"assemble: a vector must have {n} numbers, got shape {x.shape}: {x!r}")
    return x


def stack(values, n=None):
    """An array (k,) of numbers, or (k, n) of vectors."""
    return _together([_scalar(x) if n is None else vector(x, n) for x in values], () if n is None else (n,))


def _joined(values):
    values = [number(x).reshape(-1) for x in values]
    if any(isinstance(x, jax.Array) for x in values):
        return jnp.concatenate(values)
    return known_array(np.concatenate(values) if values else np.zeros(0))


def _tensor(inertia):
    inertia = number(inertia) if not isinstance(inertia, (tuple, list)) or np.ndim(inertia[0]) else vector(inertia, len(inertia))
    if inertia.shape == (3,):
        return jnp.diag(inertia) if isinstance(inertia, jax.Array) else np.diag(inertia)
    if inertia.shape != (3, 3):
        raise ValueError(f"assemble: inertia must be (3,) moments or a tensor (3, 3), got shape {inertia.shape}")
    return inertia


def _per_velocity(joint_parts, joints, name):
    values = []
    for part, of in zip(joint_parts, joints, strict=True):
        if not of.prescribed:
            values.append(_broadcast(getattr(part, name), part.n_u))
    return _joined(values)


def _rest(joint, body):
    if joint.kind == "free":
        return _joined([vector(body.position, 3), vector(body.orientation, 4)])
    return vector(joint.rest, 4) if joint.kind == "ball" else joint.rest


def limits(joint):
    """Bounds of a joint or of a tendon, or None."""
    if joint.kind == "ball":
        return None if joint.limit is None else (0.0, joint.limit)
    return getattr(joint, "limits", None)


def _motor_limits(joint_parts, joints):
    values = []
    for part, of in zip(joint_parts, joints, strict=True):
        values += [] if of.prescribed else [_range(getattr(part, "motor_limits", None))] * SIZES[of.kind][1]
    return stack(values, 2)


def _range(limits):
    return (-jnp.inf, jnp.inf) if limits is None else limits
