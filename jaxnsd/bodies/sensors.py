"""What is measured on bodies: frames of sites, and sensors with MuJoCo's names and meaning."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..programs import runs
from ..programs.given import shown
from ..programs.jitted import jit
from ..simulation import checks
from ..simulation.nodes import node_velocities, steps_until
from ..simulation.solution import Solution
from . import dynamics, kinematics, lists, tendons
from .lists import pick
from .rotations import compose, cross, dot, log, matrix, quaternion_of, turn, turn_back, unit
from .structure import SIZES

#: Kinds of shapes in which a touch sensor can feel.
VOLUMES = ("sphere", "capsule", "cylinder", "box", "ellipsoid")


class Velocity(NamedTuple):
    """Velocities of frames, in the order of `Multibody.site_names`, along the axes of the world."""

    linear: jax.Array  # (n, 3) of the origins, m/s
    angular: jax.Array  # (n, 3) rad/s


# ------------------------------------------------------------------------------------------------------------------ frames
def frames(system, places):
    """Rotations (k, 3, 3) and origins (k, 3) of the world, the bodies and the sites."""
    bodies = [site.body for site in system.structure.sites]
    R, x = pick(places.R, bodies), pick(places.x, bodies)
    R, x = compose(R, matrix(system.site_orientation)), x + turn(R, system.site_position)
    return jnp.concatenate([places.R, R]), jnp.concatenate([places.x, x])


def velocities(system, places, x, u):
    """Angular velocities and velocities (k, 3) of the origins x (k, 3) of these frames; u: with what is prescribed."""
    bodies = [*range(len(places.x)), *(site.body for site in system.structure.sites)]
    return kinematics.velocities_at(system.structure.layout, places, u, bodies, x)


# ----------------------------------------------------------------------------------------------------------------- sensors
class State(NamedTuple):
    """What sensors read."""

    system: Any
    t: Any
    q: Any  # with what is prescribed, as u
    u: Any
    places: Any  # `kinematics.Places`
    R: Any  # of `frames`
    x: Any
    w: Any  # of `velocities`
    v: Any
    touch: Any  # `Touch` of all contacts; None where nothing asks for it
    forces: Any  # (n_N,) normal forces, N


class Kind(NamedTuple):
    """What a kind of sensor is of, and how it is read: ``read(state, of, frame)``."""

    of: str
    read: Callable
    bounded: bool = True  # whether its cutoff bounds it


def _axis(k):
    return Kind("site or body", lambda s, of, frame: turn_back(s.R[frame], s.R[of][:, k]), False)


def _velocity(s, of, frame):
    """Of a point, as an observer in the frame sees it who turns with it."""
    return turn_back(s.R[frame], s.v[of] - s.v[frame] - cross(s.w[frame], s.x[of] - s.x[frame]))


def _quaternion(s, of):
    at = s.system.structure.layout.q_at[of]
    return unit(s.q[at : at + 4])


def _driven(s, of, value, of_tendon):
    """Gears of a motor times ``value(joint)`` of its joints, which has a number for each velocity, or times ``of_tendon(tendon)``."""
    structure = s.system.structure
    for k, (motor, tendon) in enumerate(structure.pulls):
        if motor == of:
            return s.system.motors.gear[k - len(structure.pulls)] * of_tendon(tendon)
    counts = [sum(SIZES[structure.joints[j].kind][1] for j in joints) for _, joints in structure.motors]
    first = sum(counts[:of])
    return s.system.motors.gear[first : first + counts[of]] @ jnp.concatenate([value(j) for j in structure.motors[of][1]])


def _stroke(s, of):
    """Gear times coordinate of a motor: of a ball joint the rotation vector, of a free one none."""
    joints, at = s.system.structure.joints, s.system.structure.layout.q_at

    def value(j):
        turned = {"ball": lambda: log(_quaternion(s, j)), "free": lambda: jnp.zeros((6,), s.q.dtype)}
        return turned.get(joints[j].kind, lambda: s.q[at[j] : at[j] + 1])()

    return _driven(s, of, value, lambda i: _length(s, i))


def _rate(s, of):
    """Gear times velocity of a motor."""
    joints, at = s.system.structure.joints, s.system.structure.layout.u_at
    return _driven(s, of, lambda j: s.u[at[j] : at[j] + SIZES[joints[j].kind][1]], lambda i: _length_rate(s, i))


def _length(s, of):
    """Of a tendon."""
    return tendons.lengths(s.system, s.places, s.q, [of])[0]


def _length_rate(s, of):
    """What it changes by."""
    return tendons.moments(s.system, s.places, [of])[0] @ s.u


def _masses(s, body):
    """Masses (n_b, 1) of what hangs on a body, as parts of their sum; the rest counts for nothing."""
    hangs = [body == 0]
    for b, parent in enumerate(s.system.structure.parents, 1):
        hangs.append(b == body or hangs[parent])
    mass = jnp.where(np.array(hangs[1:]), s.system.mass, 0.0)
    return (mass / jnp.sum(mass))[:, None]


def _mean_velocity(s, of):
    """Velocity of the centre of mass of what hangs on a body."""
    n_b = len(s.system.structure.bodies)
    arms = dynamics.centers(s.system, s.places) - s.x[1 : n_b + 1]
    return jnp.sum(_masses(s, of) * (s.v[1 : n_b + 1] + cross(s.w[1 : n_b + 1], arms)), axis=0)


def _touch(s, of):
    """Sum of the normal forces on the body of a site whose contacts are in its volume, or would be farther out along the normal: so that
    what lies too deep in a body is felt, too, as in MuJoCo.
    """
    structure = s.system.structure
    k = of - len(structure.bodies) - 1
    body, kind = structure.sites[k].body, structure.sites[k].kind
    body_of = {shape.name: shape.body for shape in structure.shapes}
    sides = [(body_of.get(contact.first), body_of.get(contact.second)) if contact.kind != "limit" else () for contact in s.system.contacts]
    rows = [row for row, bodies in enumerate(sides) if body in bodies]
    if not rows:
        return jnp.zeros((), s.q.dtype)
    first, second, normal = (pick(part, rows) for part in s.touch[1:])
    outward = np.array([1.0 if sides[row][0] == body else -1.0 for row in rows])[:, None] * normal
    point, R = 0.5 * (first + second) - s.x[of][None], s.R[of][None]
    felt = reaches(kind, s.system.site_size[k], turn_back(R, point), turn_back(R, outward))
    return jnp.sum(jnp.where(felt, pick(s.forces, rows), 0.0))


#: What sensors there are, by the words of MJCF.
KINDS = {
    "jointpos": Kind("joint with one axis", lambda s, of, _: s.q[s.system.structure.layout.q_at[of]]),
    "jointvel": Kind("joint with one axis", lambda s, of, _: s.u[s.system.structure.layout.u_at[of]]),
    "ballquat": Kind("ball joint", lambda s, of, _: _quaternion(s, of), False),
    "ballangvel": Kind("ball joint", lambda s, of, _: pick(s.u, s.system.structure.layout.u_at[of] + np.arange(3))),
    "actuatorpos": Kind("motor", lambda s, of, _: _stroke(s, of)),
    "actuatorvel": Kind("motor", lambda s, of, _: _rate(s, of)),
    "tendonpos": Kind("tendon", lambda s, of, _: _length(s, of)),
    "tendonvel": Kind("tendon", lambda s, of, _: _length_rate(s, of)),
    "framepos": Kind("site or body", lambda s, of, frame: turn_back(s.R[frame], s.x[of] - s.x[frame])),
    "framequat": Kind("site or body", lambda s, of, frame: quaternion_of(s.R[frame].T @ s.R[of]), False),
    "framexaxis": _axis(0),
    "frameyaxis": _axis(1),
    "framezaxis": _axis(2),
    "framelinvel": Kind("site or body", _velocity),
    "frameangvel": Kind("site or body", lambda s, of, frame: turn_back(s.R[frame], s.w[of] - s.w[frame])),
    "velocimeter": Kind("site or body", lambda s, of, _: turn_back(s.R[of], s.v[of])),
    "gyro": Kind("site or body", lambda s, of, _: turn_back(s.R[of], s.w[of])),
    "touch": Kind("site with a volume", lambda s, of, _: _touch(s, of)),
    "subtreecom": Kind("body", lambda s, of, _: jnp.sum(_masses(s, of) * dynamics.centers(s.system, s.places), axis=0)),
    "subtreelinvel": Kind("body", lambda s, of, _: _mean_velocity(s, of)),
    "clock": Kind("time", lambda s, of, _: s.t),
}


def number_of(structure, of, name):
    """Number of what a sensor is of, by its name; ``of``: see `Kind`. KeyError with the names that there are."""
    bodies = {name: b for b, name in enumerate(("world", *structure.bodies))}
    sites = {site.name: k for k, site in enumerate(structure.sites, len(bodies))}
    bodies |= {f"body {name}": b for name, b in bodies.items()}
    there = {
        "joint with one axis": {joint.name: j for j, joint in enumerate(structure.joints) if joint.kind in ("hinge", "slide")},
        "ball joint": {joint.name: j for j, joint in enumerate(structure.joints) if joint.kind == "ball"},
        "motor": {name: k for k, (name, _) in enumerate(structure.motors)},
        "tendon": {tendon.name: i for i, tendon in enumerate(structure.tendons)},
        "body": bodies,
        "site or body": bodies | sites,
        "site with a volume": {site.name: sites[site.name] for site in structure.sites if site.kind},
        "time": {"": 0},
    }[of]
    if name not in there:
        raise KeyError(lists.unknown(of, name, tuple(there)))
    return there[name]


def read(system, t, q, u, forces, names):
    """`Multibody.sensors`: of these, by name."""
    places, (all_u, _) = system.places(t, q), kinematics.velocities(system, t, u)
    R, x = frames(system, places)
    chosen = [(k, sensor) for k, sensor in enumerate(system.structure.sensors) if sensor.name in names]
    touch = system.touches(t, q) if any(sensor.kind == "touch" for _, sensor in chosen) else None
    t, all_q = jnp.asarray(t, q.dtype), kinematics.coordinates(system, t, q)
    state = State(system, t, all_q, all_u, places, R, x, *velocities(system, places, x, all_u), touch, forces)
    values = {}
    for k, sensor in chosen:
        kind, most = KINDS[sensor.kind], system.sensor_cutoff[k]
        value = kind.read(state, sensor.of, sensor.frame)
        values[sensor.name] = jnp.where(most > 0, jnp.clip(value, -most, most), value) if kind.bounded else value
    return values


_read = runs.natively(read, traced=jit(static_argnames="names"), static_argnames="names")


def sensors(system, t, q, u, names=None, forces=None):
    """`Multibody.sensors`."""
    known = {sensor.name: sensor.kind for sensor in system.structure.sensors}
    if names is None:
        names = [name for name, kind in known.items() if kind != "touch" or forces is not None]
    names = (names,) if isinstance(names, str) else tuple(names)
    for name in names:
        if name in known:
            if known[name] == "touch" and forces is None:
                raise ValueError(f"sensors: the touch sensor {name!r} needs forces=, of the contacts; bodies.readings has a Solution's")
        elif name in (left_out := dict(system.structure.sensors_left_out)):
            raise KeyError(f"sensors: the {left_out[name]} {name!r} is not read; there are {', '.join(KINDS)}")
        else:
            raise KeyError(f"sensors: {lists.unknown('sensor', name, tuple(known))}")
    n_N = len(system.contacts)
    if forces is not None and np.shape(forces) != (n_N,) and not system._overridden("gap"):
        raise ValueError(f"sensors: forces must have shape ({n_N},), a number for each contact, got {np.shape(forces)}")
    return _read(system, t, q, u, forces, names=names)


def readings(system: Any, solution: Solution, names: Sequence[str] | str | None = None) -> dict[str, jax.Array]:
    """What the sensors of a `Multibody` say at the N + 1 nodes of a `Solution`: arrays (N + 1, ...) by their names, see `Sensor`.

    system, solution:  bodies, and one motion that was made with them; `vmap` makes batches
    names:             of the sensors; None: all of them

    Velocities are those of `node_velocities`. What touches at a node is the normal percussion of the steps in the interval before it over
    their length, at the points of the node: a mean force, in which impacts count. At the first node it is that of the percussion that
    schemes which solve a first step have there; of others it is zero.

    Works under `jit`, `vmap` and `grad`. Raises KeyError for a name that there is not, ValueError for a batch.
    """
    checks.motion("readings", solution, system)
    if not hasattr(system, "sensors"):
        raise TypeError(f"readings: system must be bodies, as bodies.assemble makes them, got {shown(system)}")
    if solution.batch_shape:
        raise ValueError(f"readings: takes one motion, got a batch of shape {solution.batch_shape}; use jax.vmap")
    u = node_velocities(system, solution.scheme, solution)
    # Of an interval in which no step ends, as after the end of a motion that was stopped, there are no percussions.
    forces = solution.P_N / (jnp.maximum(jnp.diff(steps_until(solution)), 1)[:, None] * solution.dt)
    forces = jnp.concatenate([solution.initial.P_N[None] / solution.dt, forces])
    return jax.vmap(lambda t, q, u, forces: system.sensors(t, q, u, names, forces))(solution.t, solution.q, u, forces)


# ------------------------------------------------------------------------------------------------------------------ volumes
def reaches(kind, size, point, along):
    """Whether rays (n,) from points (n, 3) along vectors (n, 3), in the frame of a volume, start in it or reach it."""
    ends = [_within(point, along, size[0])]
    across, axial = (point[:, :2], along[:, :2]), (point[:, 2:], along[:, 2:])
    if kind == "ellipsoid":
        ends = [_within(point / size[None], along / size[None], 1.0)]
    elif kind == "box":
        ends = [_both(*(_within(point[:, i : i + 1], along[:, i : i + 1], size[i]) for i in range(3)))]
    elif kind in ("cylinder", "capsule"):
        ends = [_both(_within(*across, size[0]), _within(*axial, size[1]))]
    if kind == "capsule":
        tips = size[1] * np.array([[[0.0, 0.0, 1.0]], [[0.0, 0.0, -1.0]]])
        ends += [_within(point - tip, along, size[0]) for tip in tips]
    return functools.reduce(jnp.logical_or, ((first <= last) & (last >= 0) for first, last in ends))


def _within(p, a, r):
    """First and last s (n,) of ``|p + s a| <= r`` on lines in the space of their (n, k); of none the last is before the first."""
    aa, pa, c = dot(a, a), dot(p, a), dot(p, p) - r * r
    crosses, root = aa > 0, jnp.sqrt(jnp.maximum(pa * pa - aa * c, 0.0))
    there = jnp.where(crosses, pa * pa >= aa * c, c <= 0)
    ends = (jnp.where(crosses, (sign * root - pa) / jnp.where(crosses, aa, 1.0), sign * jnp.inf) for sign in (-1.0, 1.0))
    return tuple(jnp.where(there, end, -sign * jnp.inf) for sign, end in zip((-1.0, 1.0), ends, strict=True))


def _both(*ends):
    """Where all of these lines are."""
    first, last = zip(*ends, strict=True)
    return functools.reduce(jnp.maximum, first), functools.reduce(jnp.minimum, last)
