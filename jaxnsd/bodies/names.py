"""Every number of bodies by its name: ``"torso.mass"``, ``"pair floor-foot.mu"``."""

import dataclasses
import operator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..native.jax_internals import is_traced, known_array
from ..programs.given import numbers, shown
from . import forces, lists, loops, tendons
from .structure import SIZES


class Place(NamedTuple):
    """Where a number is: ``getattr(system, field)[at]``, with a dot in the field for a part of a part."""

    field: str
    at: object  # index


#: Attributes of a body, a joint, a shape, a motor, a site, a sensor, a pair and a tendon, and the fields of a system that hold them, a row
#: for each.
FIELDS = {
    "body": {name: name for name in ("mass", "center", "inertia", "position", "orientation")},
    "joint": {"position": "joint_position", "axis": "joint_axis", "reference": "reference", "stiffness": "stiffness"},
    "shape": {"position": "shape_position", "orientation": "shape_orientation", "size": "shape_size"},
    "motor": {"control": "control"}
    | {name: f"motors.{name}" for name in ("gain", "offset", "slope", "rate", "control_limits", "force_limits")},
    "site": {"position": "site_position", "orientation": "site_orientation", "size": "site_size"},
    "sensor": {"cutoff": "sensor_cutoff"},
    "pair": {"mu": "friction", "e_N": "restitution", "e_F": "tangential_restitution", "drilling": "drilling", "rolling": "rolling"},
    "tendon": {},
}

#: Attributes of tendons, all of which have those of which one has some.
OF_TENDONS = {"stiffness": ("stiffness", "spring_length"), "damping": ("damping",), "armature": ("armature",)}

#: Fields whose numbers are not negative.
NOT_NEGATIVE = ("mass", "armature", "shape_size", "site_size", "friction", "drilling", "rolling", "dry_friction", "tendons.armature")


def places(structure):
    """``{(kind, name, attribute): Place}`` of all numbers that have a name."""
    layout, found = structure.layout, {}
    names = {
        "body": structure.bodies,
        "joint": [joint.name for joint in structure.joints],
        "shape": [shape.name for shape in structure.shapes],
        "motor": [name for name, _ in structure.motors],
        "site": [site.name for site in structure.sites],
        "sensor": [sensor.name for sensor in structure.sensors],
        "pair": [f"{structure.shapes[a].name}-{structure.shapes[b].name}" for a, b in structure.pairs],
        "tendon": [tendon.name for tendon in structure.tendons],
    }
    for kind, fields in FIELDS.items():
        for k, name in enumerate(names[kind]):
            found |= {(kind, name, attribute): Place(field, k) for attribute, field in fields.items()}
    for j, joint in enumerate(structure.joints):
        n = SIZES[joint.kind][1]
        if not joint.prescribed:
            at = int(layout.u_at[j]) if n == 1 else slice(int(layout.u_at[j]), int(layout.u_at[j]) + n)
            found |= {("joint", joint.name, name): Place(name, at) for name in ("damping", "armature")}
            if layout.u_at[j] in structure.dry:
                first = structure.dry.index(int(layout.u_at[j]))
                found["joint", joint.name, "dry_friction"] = Place("dry_friction", first if n == 1 else slice(first, first + n))
    for k, (j, name) in enumerate(zip(structure.limits, structure.limited, strict=True)):
        kind = "joint" if j < len(structure.joints) else "tendon"
        found |= {(kind, name, attribute): Place(attribute, k) for attribute in ("limits", "limit_restitution")}
    return found | _of_tendons(structure)


def _of_tendons(structure):
    """`places` of what tendons have beside limits."""
    found, at = {}, {"coefficients": 0, "divisors": 0}
    there = [name for law, names in OF_TENDONS.items() if f"tendon {law}" in structure.has for name in names]
    for i, tendon in enumerate(structure.tendons):
        found |= {("tendon", tendon.name, name): Place(f"tendons.{name}", i) for name in there}
        for name, parts in (("coefficients", tendon.joints), ("divisors", tendon.branches)):
            if parts:
                found["tendon", tendon.name, name] = Place(f"tendons.{name}", slice(at[name], at[name] + len(parts)))
            at[name] += len(parts)
    rows = enumerate(structure.rubbed)
    n_u = structure.layout.n_u
    return found | {("tendon", name, "dry_friction"): Place("dry_friction", k) for k, name in rows if structure.dry[k] >= n_u}


def find(known, key):
    """The `Place` of a key. KeyError for one that is not there, or that means several."""
    if key == "gravity":
        return Place("gravity", slice(None))
    name, dot, attribute = key.rpartition(".") if isinstance(key, str) else ("", "", "")
    first, _, rest = name.partition(" ")
    kinds = (first,) if first in FIELDS and rest else tuple(FIELDS)
    name = rest if len(kinds) == 1 else name
    fitting = {kind: place for (kind, n, a), place in known.items() if kind in kinds and a == attribute and _same(kind, n, name)}
    fitting = before_what_measures(fitting)
    if len(fitting) == 1:
        return next(iter(fitting.values()))
    if fitting:
        raise KeyError(f"replace: {key!r} may be one of {' and '.join(fitting)}; say the kind, too: {next(iter(fitting))} {key}")
    there = sorted({a for (kind, n, a) in known if kind in kinds and _same(kind, n, name)})
    if dot and there:
        raise KeyError(f"replace: {name!r} has no {attribute!r}; it has {', '.join(there)}")
    text = lists.unknown("number", key, tuple(dict.fromkeys(f"{n}.{a}" for _, n, a in known)))
    if "did you mean" not in text:
        text = (
            f"no number has the name {key!r}; names are such as 'torso.mass' or 'pair floor-foot.mu', see body_names, joint_names, contacts"
        )
    raise KeyError(f"replace: {text}")


def before_what_measures(found):
    """Of what was found by its kind, what is no tendon, site or sensor, else what is no site or sensor, if there is such: a name means what
    moves before what ties it, and that before what measures it.
    """
    for behind in (("tendon", "site", "sensor"), ("site", "sensor"), ()):
        if before := {kind: place for kind, place in found.items() if kind not in behind}:
            return before
    return found


def _same(kind, known, name):
    return known == name or (kind == "pair" and "-".join(reversed(known.split("-"))) == name)


def replaced(system, values):
    """A copy of the system with these values in the place of others."""
    if not isinstance(values, dict):
        raise TypeError(f"replace: values must be a dictionary of numbers by their names, got {type(values).__name__}")
    known, changed = places(system.structure), {}
    for key, value in values.items():
        field, at = find(known, key)
        outer, _, inner = field.partition(".")
        array = changed.get(field, getattr(getattr(system, outer), inner) if inner else getattr(system, outer))
        if field == "control" and (callable(array) or not hasattr(array, "shape")):
            raise TypeError(f"replace: the control is a function, or rows of numbers, of which {key!r} is none; give another control")
        array = array if is_traced(array) else np.array(array)
        shape = np.shape(array[at])
        if field == "inertia" and np.shape(value) == (3,):
            value = np.diag(value) if isinstance(numbers(value), np.ndarray) else jnp.diag(jnp.asarray(value))
        if (given := numbers(value)) is None:
            raise TypeError(f"replace: {key!r} must be numbers of shape {shape}, got {shown(value)}")
        if given.shape != shape:
            raise ValueError(f"replace: {key!r} must have the shape {shape}, got {given.shape}")
        if field in NOT_NEGATIVE and not is_traced(value) and np.any(np.asarray(value) < 0):
            raise ValueError(f"replace: {key!r} must not be negative, got {shown(value)}")
        if isinstance(array, np.ndarray) and isinstance(given, np.ndarray):
            array[at] = given  # no program is compiled for what is known
            changed[field] = array
        else:
            changed[field] = jnp.asarray(array).at[at].set(jnp.asarray(value, array.dtype))
    changed = {field: known_array(array) if isinstance(array, np.ndarray) else array for field, array in changed.items()}
    plain = {field: array for field, array in changed.items() if "." not in field}
    for outer in ("motors", "tendons"):
        inner = {field.partition(".")[2]: array for field, array in changed.items() if field.startswith(f"{outer}.")}
        if inner:
            plain[outer] = dataclasses.replace(getattr(system, outer), **inner)
    return dataclasses.replace(system, **plain)


def of_coordinates(structure, which):
    """Names of coordinates (0) or velocities (1)."""
    kinds = {
        "free": (("x in m", "y in m", "z in m", "p_w", "p_x", "p_y", "p_z"), ("x' in m/s", "y' in m/s", "z' in m/s")),
        "ball": (("p_w", "p_x", "p_y", "p_z"), ()),
        "hinge": (("in rad",), ("' in rad/s",)),
        "slide": (("in m",), ("' in m/s",)),
    }
    names = []
    for joint in structure.joints:
        if joint.prescribed:
            continue
        endings = kinds[joint.kind][which]
        if which and joint.kind in ("free", "ball"):
            endings += tuple(f"omega_{axis} in rad/s" for axis in "xyz")
        names += [f"{joint.name}{'' if ending[0] == chr(39) else ' '}{ending}" for ending in endings]
    return tuple(names)


def no_state(structure, q, u):
    """What is wrong with coordinates, and velocities if they are there, in words; or None."""
    layout = structure.layout
    if q.shape != (layout.n_q,) or (u is not None and u.shape != (layout.n_u,)):
        got = f"{q.shape}" if u is None else f"q0 {q.shape} and u0 {u.shape}"
        return f"has {layout.n_q} coordinates and {layout.n_u} velocities, of a quaternion four and three, got {got}; see initial_state()"
    if not is_traced(q):
        for k in layout.quaternions:
            p = np.asarray(q)[k : k + 4]
            if not np.any(p):
                return f"must have quaternions that are not zero, got {p} from coordinate {k} on; (1, 0, 0, 0) turns nothing"
    return None


def misshapen(system):
    """A sentence on the first field whose array has not the shape that the structure says, or None."""
    of = system.structure
    counts = {
        "body": (len(of.bodies), "mass center inertia carried position orientation"),
        "joint": (len(of.joints), "joint_position joint_axis reference stiffness"),
        "coordinate": (of.layout.n_q, "rest"),
        "velocity": (of.layout.n_u, "damping armature"),
        "limit": (len(of.limits), "limits limit_restitution"),
        "shape": (len(of.shapes), "shape_position shape_orientation shape_size"),
        "site": (len(of.sites), "site_position site_orientation site_size"),
        "sensor": (len(of.sensors), "sensor_cutoff"),
        "pair of shapes": (len(of.pairs), "friction restitution tangential_restitution drilling rolling"),
    }
    vectors = "center position joint_position joint_axis shape_position shape_size site_position site_size"
    quaternions = "orientation shape_orientation site_orientation"
    rows = dict.fromkeys(vectors.split(), (3,)) | dict.fromkeys(quaternions.split(), (4,)) | {"inertia": (3, 3), "limits": (2,)}
    wanted = {field: (kind, (n, *rows.get(field, ()))) for kind, (n, fields) in counts.items() for field in fields.split()}
    cure = "system.replace(...) sets numbers by their names"
    if np.shape(system.gravity) != (3,):
        return f"gravity must have the shape (3,), got {shown(system.gravity)}; {cure}"
    of_parts = [("motors", forces.Motors), ("springs", forces.Springs), ("loops", loops.Loops)]
    for field, kind in of_parts + ([("tendons", tendons.Tendons)] if of.tendons else []):
        if not isinstance(getattr(system, field), kind):
            return f"{field} must be {kind.__name__}, as assemble makes them, got {shown(getattr(system, field))}; {cure}"
    motors = {f"motors.{name}": (len(of.motors),) for name in ("gain", "offset", "slope", "rate")}
    motors |= {f"motors.{name}": (len(of.motors), 2) for name in ("control_limits", "force_limits")}
    cords = {f"tendons.{name}": (len(of.tendons),) for name in ("stiffness", "damping", "armature") if of.tendons}
    cords |= {"tendons.spring_length": (len(of.tendons), 2)} if of.tendons else {}
    inner = {field: ("motor", shape) for field, shape in motors.items()} | {field: ("tendon", shape) for field, shape in cords.items()}
    for field, (kind, shape) in (wanted | inner).items():
        array = operator.attrgetter(field)(system)
        if not isinstance(array, float | np.ndarray | np.generic | jax.Array | jax.ShapeDtypeStruct):
            return f"{field} must be an array of numbers of shape {shape}, a row for each {kind}, got {shown(array)}; {cure}"
        if np.shape(array) != shape:
            return f"{field} must have the shape {shape}, a row for each {kind}, got {np.shape(array)}; {cure}"
    return None
