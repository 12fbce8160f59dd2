"""Forces on joints and bodies: springs, dampers, motors, limits, and the drag of a medium."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ..programs.given import numbers, shown
from ..programs.pytrees import pytree
from . import dynamics, kinematics, tendons
from .lists import pick
from .pairs import up
from .rotations import cross, dot, length, log, matrix, normalized, product, turn, turn_back
from .structure import SIZES


@pytree
class Springs:
    """Springs with dampers between points of two bodies, ``n`` of them."""

    position: Any  # (n, 3) in the frame of the first body, m
    second_position: Any  # (n, 3) in the frame of the second body
    stiffness: Any  # (n,) N/m
    length: Any  # (n,) without force, m
    damping: Any  # (n,) N s/m


@pytree
class Motors:
    """Motors of joints: generalized force ``gear F``, ``F = gain c + offset + slope gear q + rate gear u`` with control c."""

    gear: Any  # one number for each velocity of each motor's joints, motor by motor: (n_m,) where all drive one joint with one axis; then
    # one for each motor that pulls at a tendon
    gain: Any  # (n_m,)
    offset: Any
    slope: Any
    rate: Any
    control_limits: Any  # (n_m, 2)
    force_limits: Any  # (n_m, 2)
    total_limits: Any  # (n_u, 2) of the sums of the generalized forces of all motors


@pytree
class Medium:
    """A resting or streaming medium: drag on every body by the box of its inertia (MuJoCo's documentation, "Inertia model")."""

    density: Any  # kg/m^3
    viscosity: Any  # Pa s
    wind: Any  # (3,) m/s
    orientation: Any  # (n_b, 4) of the principal axes of inertia in the frame of the body
    edges: Any  # (n_b, 3) of the box with this inertia, m


@pytree
class Rows:
    """Controls that are constant over a step: row k of ``values`` (N, n_m) from ``t0 + k dt`` to ``t0 + (k + 1) dt``; then the last."""

    values: Any
    dt: Any
    t0: Any = 0.0

    def at(self, t: ArrayLike) -> jax.Array:
        """The row at t; at the time of a node the row that begins."""
        # A node is reached to round-off: half a thousandth of a step counts as there.
        k = jnp.floor((t - self.t0) / self.dt + 5e-4).astype(int)
        return jnp.take(self.values, jnp.clip(k, 0, self.values.shape[0] - 1), axis=0)


# ---------------------------------------------------------------------------------------------------------------- potential
def potential(system, places, q):
    """Potential energy of the springs of joints and of those between points."""
    V = jnp.zeros((), q.dtype)
    if "stiffness" in system.structure.has:
        stretch, stiffness = _stretch(system, q)
        V = V + 0.5 * jnp.sum(stiffness * stretch * stretch)
    if system.structure.springs:
        span, slack = _spans(system, places)[2], system.springs.length
        # (d - l)^2, multiplied out: smooth in the points where l = 0, also where they meet.
        V = V + 0.5 * jnp.sum(system.springs.stiffness * (dot(span, span) - slack * (2 * length(span) - slack)))
    if "tendon stiffness" in system.structure.has:
        V = V + tendons.potential(system, places, q)
    return V


def of_springs(system, q, places):
    """Generalized forces (n_u,) of what `potential` says: minus its derivative."""
    force = jnp.zeros((system._layout.n_u,), q.dtype)
    if "stiffness" in system.structure.has:
        stretch, stiffness = _stretch(system, q)
        force = force - stiffness * stretch
    if system.structure.springs:
        bodies, points, span = _spans(system, places)
        slack = system.springs.length[:, None] * normalized(span, length(span), up(span))
        force = force + _between(system, places, bodies, points, system.springs.stiffness[:, None] * (span - slack))
    if "tendon stiffness" in system.structure.has:
        force = force + tendons.of_springs(system, q, places)
    return force


def _stretch(system, q):
    """``(by what each velocity's spring is stretched, its stiffness)``, (n_u,) each; of quaternions the rotation vector."""
    layout, structure = system._layout, system.structure
    parts, stiffness = [], []
    for j, joint in enumerate(structure.joints):
        if joint.prescribed:
            continue
        a = layout.q_at[j]
        if joint.kind in ("hinge", "slide", "free"):
            n = 3 if joint.kind == "free" else 1
            parts.append(q[a : a + n] - system.rest[a : a + n])
            a += n
        if joint.kind in ("ball", "free"):
            conjugate = system.rest[a : a + 4] * jnp.asarray([1.0, -1.0, -1.0, -1.0], q.dtype)
            parts.append(log(_unit(product(conjugate, q[a : a + 4]))))
        stiffness += [j] * {"free": 6, "ball": 3}.get(joint.kind, 1)
    return jnp.concatenate(parts), pick(system.stiffness, stiffness)


def _unit(p):
    return p / jnp.sqrt(dot(p, p))[..., None]


# ---------------------------------------------------------------------------------------------------------- no potential
def without_potential(system, t, q, u, places):
    """Generalized forces (n_u,) of dampers, motors and the medium."""
    force = -system.damping * u
    structure = system.structure
    if structure.motors:
        force = force + of_motors(system, t, q, u, places)
    if structure.springs:
        bodies, points, span = _spans(system, places)
        direction = normalized(span, length(span), up(span))
        v_first, v_second = _velocities(system, t, u, places, bodies, points)
        rate = dot(v_second - v_first, direction)
        force = force + _between(system, places, bodies, points, (system.springs.damping * rate)[:, None] * direction)
    if "tendon damping" in structure.has:
        force = force + tendons.of_dampers(system, t, u, places)
    if "medium" in structure.has:
        force = force + of_medium(system, t, u, places)
    return force


def functions(system):
    """The control of the motors with its name in messages, where it is a function: see `System._functions`."""
    control, motors = system.control, [name for name, _ in system.structure.motors]
    if not motors or isinstance(control, Rows) or not callable(control):
        return []
    function = control
    while hasattr(function, "func"):  # of a partial
        function = function.func
    name = getattr(function, "__name__", type(function).__name__)
    called = "the control" if name == "<lambda>" else f"the control {name}(t, q, u)"
    several = f"one number for each motor: {', '.join(motors)}"
    return [(called, lambda system, t, q, u: system.control(t, q, u), len(motors), several)]


def controls(system, t, q, u):
    """Controls (n_m,) at (t, q, u)."""
    control, motors = system.control, system.structure.motors
    if isinstance(control, Rows):
        control = control.at(t)
    elif callable(control):
        control = control(t, q, u)
        if numbers(control) is None:
            raise TypeError(f"control must give ({len(motors)},), one number for each motor, got {shown(control)}")
        control = jnp.asarray(control, q.dtype)
    # Others would be broadcast over the motors.
    if jnp.shape(control) != (len(motors),):
        names = ", ".join(name for name, _ in motors)
        raise ValueError(f"control must give ({len(motors)},), one number for each motor ({names or 'none'}), got {jnp.shape(control)}")
    return control


def _driven(system):
    """Of the velocities that motors of joints drive: the motor of each, its places in u and in q, and whether its coordinate is fed back.

    Of balls and free bodies no coordinate is.
    """
    layout, driven = system._layout, []
    for k, (_, joints) in enumerate(system.structure.motors):
        for j in joints:
            kind = system.structure.joints[j].kind
            driven += [(k, layout.u_at[j] + i, layout.q_at[j], kind in ("hinge", "slide")) for i in range(SIZES[kind][1])]
    motor, at_u, at_q, feeds = np.array(driven, int).reshape(-1, 4).T
    return motor, at_u, at_q, feeds > 0


def _loads(system, t, q, u, places):
    """Forces F (n_m,) of the motors, before their limits."""
    motors, pulls, (motor, at_u, at_q, feeds) = system.motors, system.structure.pulls, _driven(system)
    n = len(motor)
    c = jnp.clip(controls(system, t, q, u), motors.control_limits[:, 0], motors.control_limits[:, 1])
    gear = motors.gear[:n] if pulls else motors.gear
    stretch, speed = jnp.where(feeds, gear * pick(q, at_q), 0), gear * pick(u, at_u)
    if pulls:
        which, geared = [i for _, i in pulls], motors.gear[n:]
        stretch = jnp.concatenate([stretch, geared * tendons.lengths(system, places, q, which)])
        speed = jnp.concatenate([speed, geared * tendons.rates(system, t, u, places, which)])
        motor = np.concatenate([motor, [k for k, _ in pulls]])
    if not np.array_equal(motor, np.arange(len(c))):
        own = np.arange(len(c))[:, None] == motor[None]
        stretch, speed = (jnp.sum(jnp.where(own, x[None], jnp.zeros((), x.dtype)), axis=1) for x in (stretch, speed))
    return motors.gain * c + motors.offset + motors.slope * stretch + motors.rate * speed


def of_motors(system, t, q, u, places):
    """Generalized forces (n_u,) of the motors."""
    total = _summed(system, places, _loads(system, t, q, u, places))
    if "motor limits" in system.structure.has:
        return jnp.clip(total, system.motors.total_limits[:, 0], system.motors.total_limits[:, 1])
    return total


def _summed(system, places, F):
    """Generalized forces (n_u,) of these forces of the motors, each within its own limits."""
    layout, motors, pulls, (motor, at_u, *_) = system._layout, system.motors, system.structure.pulls, _driven(system)
    n, F = len(motor), jnp.clip(F, motors.force_limits[:, 0], motors.force_limits[:, 1])
    mask, driving = at_u[None] == np.arange(layout.n_u)[:, None], motors.gear[:n] * pick(F, motor)
    total = jnp.sum(jnp.where(mask, driving[None], jnp.zeros((), F.dtype)), axis=1)
    if pulls:
        pull = motors.gear[n:] * pick(F, [k for k, _ in pulls])
        total = total + tendons.pulled(system, tendons.moments(system, places, [i for _, i in pulls]), pull)
    return total


def damping_matrix(system, t, q, u, places):
    """Matrix D (n_u, n_u) of the forces ``-D u`` of dampers, and of motors whose force falls with their speed and is within its limits."""
    n, structure = system._layout.n_u, system.structure
    D = jnp.where(np.eye(n, dtype=bool), system.damping[:, None], jnp.zeros((), u.dtype))
    lengthened = []  # rows of what is lengthened by the velocities, and how much force that costs
    if "spring damping" in structure.has:
        bodies, points, span = _spans(system, places)
        direction = normalized(span, length(span), up(span))[:, None]
        first, second = (dynamics.columns_at(system._layout, places, *end, direction)[:, 0] for end in zip(bodies, points, strict=True))
        lengthened.append((second - first, system.springs.damping))
    if "tendon damping" in structure.has:
        lengthened.append((tendons.moments(system, places), system.tendons.damping))
    if "motor rate" in structure.has:
        F, rows = _loads(system, t, q, u, places), _turned_by_motors(system, places)[:, :n]
        if "motor limits" in structure.has:
            rows = jnp.where(_within(_summed(system, places, F), system.motors.total_limits), rows, 0)
        lengthened.append((rows, jnp.where(_within(F, system.motors.force_limits), jnp.maximum(-system.motors.rate, 0), 0)))
    for rows, cost in lengthened:
        rows = rows[:, :n]
        D = D + jnp.sum(cost[:, None, None] * rows[:, :, None] * rows[:, None], axis=0)
    return D


def _within(x, limits):
    """Whether numbers (n,) are between their lower and upper limits (n, 2)."""
    return (x > limits[:, 0]) & (x < limits[:, 1])


def _turned_by_motors(system, places):
    """How fast each motor turns, or pulls its tendon in, (n_m, n_s) by the velocities."""
    layout, motors, pulls, (motor, at_u, *_) = system._layout, system.motors, system.structure.pulls, _driven(system)
    n, number = len(motor), np.arange(len(system.structure.motors))
    own = (number[:, None] == motor)[:, None] & (np.arange(layout.n_s)[:, None] == at_u)[None]  # (n_m, n_s, n)
    rows = jnp.sum(jnp.where(own, motors.gear[:n], jnp.zeros((), places.x.dtype)), axis=2)
    if pulls:
        moments = motors.gear[n:, None] * tendons.moments(system, places, [i for _, i in pulls])
        own = number[:, None] == np.array([k for k, _ in pulls])
        rows = rows + jnp.sum(jnp.where(own[:, :, None], moments[None], jnp.zeros((), places.x.dtype)), axis=1)
    return rows


def of_medium(system, t, u, places):
    """Drag and viscous resistance of the boxes of inertia, as generalized forces (n_u,)."""
    layout, medium = system._layout, system.medium
    all_u, _ = kinematics.velocities(system, t, u)
    w, v = (part[1:] for part in kinematics.twists(layout, places, all_u))
    arm = dynamics.centers(system, places) - places.about[1:]
    R = places.R[1:] @ matrix(medium.orientation)
    # Velocities of the centre of mass against the medium, along the principal axes.
    v = turn_back(R, v + cross(w, arm) - medium.wind[None])
    w = turn_back(R, w)
    a, b, c = (medium.edges[:, i] for i in range(3))
    areas = jnp.stack([b * c, a * c, a * b], axis=1)
    fourth = jnp.stack([a * (b**4 + c**4), b * (a**4 + c**4), c * (a**4 + b**4)], axis=1)
    diameter = ((a + b + c) / 3)[:, None]
    force = -0.5 * medium.density * areas * jnp.abs(v) * v - 3 * np.pi * medium.viscosity * diameter * v
    moment = -medium.density / 64 * fourth * jnp.abs(w) * w - np.pi * medium.viscosity * diameter**3 * w
    force, moment = turn(R, force), turn(R, moment)
    none = jnp.zeros((1, 3), u.dtype)
    force, moment = (jnp.concatenate([none, part]) for part in (force, moment + cross(arm, force)))
    return dynamics.generalized(layout, places, force, moment)[: layout.n_u]


def _spans(system, places):
    """``((first bodies, second bodies), (points of both), from the first to the second points)`` of the springs."""
    first, second = (np.array(part, int) for part in zip(*system.structure.springs, strict=True))
    a = pick(places.x, first) + turn(pick(places.R, first), system.springs.position)
    b = pick(places.x, second) + turn(pick(places.R, second), system.springs.second_position)
    return (first, second), (a, b), b - a


def _velocities(system, t, u, places, bodies, points):
    """Velocities (n, 3) of the first and of the second points."""
    all_u, _ = kinematics.velocities(system, t, u)
    w, v = kinematics.twists(system._layout, places, all_u)
    return [pick(v, of) + cross(pick(w, of), point - pick(places.about, of)) for of, point in zip(bodies, points, strict=True)]


def _between(system, places, bodies, points, pull):
    """Generalized forces (n_u,) of forces ``pull`` (n, 3) on the first points and their opposites on the second ones."""
    total = jnp.zeros((system._layout.n_u,), pull.dtype)
    for sign, body, point in zip((1.0, -1.0), bodies, points, strict=True):
        columns = dynamics.columns_at(system._layout, places, body, point, sign * pull[:, None])
        total = total + jnp.sum(columns[:, 0, : system._layout.n_u], axis=0)
    return total


# --------------------------------------------------------------------------------------------------------------- limits
def limit_gaps(system, places, q, limits):
    """Gaps of joints from their limits; of a ball joint, of its angle from the limit; then those of tendons."""
    layout, gaps = system._layout, []
    of_joints, of_tendons = tendons.apart(system.structure, limits)
    for k, j, side in of_joints:
        a = layout.q_at[j]
        if system.structure.joints[j].kind == "ball":
            gaps.append(system.limits[k, 1] - length(log(_unit(q[a : a + 4]))))
        else:
            gaps.append(q[a] - system.limits[k, 0] if side == 0 else system.limits[k, 1] - q[a])
    parts = [jnp.stack(gaps)] if gaps else []
    parts += [tendons.limit_gaps(system, places, q, of_tendons)] if of_tendons else []
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts)


def limit_rows(system, places, q, limits, n_s):
    """Derivatives (n, n_s) of those gaps by the velocities."""
    layout, rows = system._layout, []
    of_joints, of_tendons = tendons.apart(system.structure, limits)
    for _, j, side in of_joints:
        unit = np.eye(n_s)[layout.u_at[j]]
        if system.structure.joints[j].kind == "ball":
            a = layout.q_at[j]
            turned = log(_unit(q[a : a + 4]))
            axis = normalized(turned, length(turned), jnp.zeros_like(turned))
            rows.append(-jnp.sum(axis[:, None] * jnp.asarray(np.eye(n_s)[layout.u_at[j] + np.arange(3)], q.dtype), axis=0))
        else:
            rows.append(jnp.asarray(unit if side == 0 else -unit, q.dtype))
    parts = [jnp.stack(rows)] if rows else []
    parts += [tendons.limit_rows(system, places, of_tendons)] if of_tendons else []
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts)
