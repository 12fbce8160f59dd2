"""The system that `assemble` makes of bodies: a tree of joints in minimal coordinates, with contacts between shapes."""

import dataclasses
import functools
import warnings
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ..mechanics.laws import NewtonImpact
from ..mechanics.system import INERTIA, MECHANICS, System, static, system
from ..native.jax_internals import known_array
from ..programs import runs
from ..schemes.projection import project_position, project_velocity
from ..sets import Disc, Segment
from ..simulation import checks
from . import broad_phase, dynamics, forces, kinematics, lists, loops, names, pairs, prescribed, sensors, tendons
from .frames import Frames, Touch
from .lists import pick
from .rotations import compose, cross, dot, matrix, product, turn
from .sensors import Velocity
from .structure import Contact, Structure, find, named


class Pose(NamedTuple):
    """Where the bodies are, in the order of `Multibody.body_names`: what is at ``r`` in a body's frame is at ``position + rotation r``.

    Of sites likewise, in the order of `Multibody.site_names`.
    """

    position: jax.Array  # (n_b, 3) origins of the frames, m
    rotation: jax.Array  # (n_b, 3, 3) body to world


class Seen(NamedTuple):
    """What depends on the configuration alone."""

    places: kinematics.Places
    touch: Touch


#: Decorator of what is asked for in a notebook as well, where XLA would compile its operations one by one.
_valued = functools.partial(runs.natively, traced=lambda method: method)


@system
class Multibody(System):
    """Rigid bodies, connected by joints, with contacts between their shapes. Made by `assemble`, `from_mjcf` or `from_urdf`.

    Coordinates and velocities are those of the joints, body by body. Of a free body q is (position of its frame in m, unit quaternion
    (w, x, y, z), body to world), u is (velocity of its frame's origin in the world in m/s, angular velocity in the body's frame in rad/s);
    of a ball joint q is a quaternion, u the angular velocity relative to the parent in the body's frame; of a hinge an angle, of a slider a
    translation. These are MuJoCo's qpos and qvel. No number depends on the length of a quaternion.

    All numbers are leaves: derivatives with respect to them are those of the motion. They are arrays over the bodies (n_b), the joints
    (n_j), the shapes (n_s), the pairs of shapes (n_p), the limits of joints and then of tendons (n_l), the motors (n_m), the sites (n_f),
    the sensors (n_o) and the tendons (n_t); `where` finds a name's place.

    Rows of the contacts are the points of all pairs (see `contacts`), then the limits of joints and tendons, which have no friction.

    A subclass may write forces, energies, gaps and constraints anew, with ``super()`` for those of the bodies; `from_system` makes one of
    what `assemble` returns. Its steps ask for the places of the bodies again in every function, and take longer to compile.
    """

    structure: Structure = static()
    gravity: Any  # (3,) m/s^2
    mass: Any  # (n_b,) kg
    center: Any  # (n_b, 3) centre of mass in the frame of the body, m
    inertia: Any  # (n_b, 3, 3) about the centre of mass, along the axes of the body's frame, kg m^2
    carried: Any  # (n_b,) part of its weight that something else carries
    position: Any  # (n_b, 3) of the body's frame in that of its parent, joints at their reference, m
    orientation: Any  # (n_b, 4)
    joint_position: Any  # (n_j, 3) a point of the axis, in the frame of the body, m
    joint_axis: Any  # (n_j, 3) in the frame of the body, of any length
    reference: Any  # (n_j,) coordinate at which the body is where its frame says, rad or m
    stiffness: Any  # (n_j,) N m/rad or N/m
    rest: Any  # (n_q,) coordinates at which springs are slack
    damping: Any  # (n_u,) N m s/rad or N s/m
    armature: Any  # (n_u,) kg m^2 or kg
    limits: Any  # (n_l, 2) lower and upper limit, rad or m
    limit_restitution: Any  # (n_l,)
    shape_position: Any  # (n_s, 3) in the frame of the body, m
    shape_orientation: Any  # (n_s, 4)
    shape_size: Any  # (n_s, 3) radius; radius and half length; half edges; half axes, m
    points: Any  # tuple of (k, 3): corners of the shapes that are given by points, in the frame of the shape, m
    friction: Any  # (n_p,) mu
    restitution: Any  # (n_p,) e_N
    tangential_restitution: Any  # (n_p,) e_F
    drilling: Any  # (n_p,) arm of drilling friction, m
    rolling: Any  # (n_p,) arm of rolling friction, m
    site_position: Any  # (n_f, 3) in the frame of the body, m
    site_orientation: Any  # (n_f, 4)
    site_size: Any  # (n_f, 3) of its volume, as of a shape, m
    sensor_cutoff: Any  # (n_o,) what its numbers do not exceed in size; 0: any
    loops: Any  # `loops.Loops`
    springs: Any  # `forces.Springs`
    motors: Any  # `forces.Motors`
    medium: Any  # `forces.Medium`
    motions: Any  # tuple of functions of t: coordinates of the joints that are prescribed, places of the bodies
    control: Any  # (n_m,) of the motors; a `forces.Rows` of them; or a function of (t, q, u) that returns them
    dry_friction: Any = None  # (n_D,) bounds of the forces of dry friction of the joints, and then tendons, that have it; None: none
    law: Any = NewtonImpact()  # of impact and friction, see `mechanics.laws`; with several sets of friction no pair is asked for its mu
    seen: Any = None  # `Seen` at the one configuration that is asked for, see `seen_at`
    table: Any = None  # `convex.Table` of its shapes, see `for_run`
    kept_rows: Any = None  # `pairs.Kept` of each group of pairs, see `keeping_rows`
    tendons: Any = None  # `tendons.Tendons`; None: there are none

    # -------------------------------------------------------------------------------------------------------- subclasses
    # What a subclass writes anew counts: what is a closed form here is derived of it, as of any system, unless that is written anew, too.
    # Then ``super()`` is the closed form.
    def __init_subclass__(cls, **options: Any) -> None:
        """A subclass moves as its joints do."""
        super().__init_subclass__(**options)
        if "q_dot" in vars(cls):
            raise TypeError(f"{cls.__name__}.q_dot: the coordinates of bodies move as their joints say; other coordinates take a System")

    @classmethod
    def from_system(cls, system: "Multibody", **more: Any) -> "Multibody":
        """The bodies of ``system`` as one of this class, a subclass, whose own fields are given by name.

        Raises TypeError for what is no `Multibody`.
        """
        if not isinstance(system, Multibody):
            raise TypeError(f"{cls.__name__}.from_system: system must be a Multibody, got {type(system).__name__}")
        own = {field.name: getattr(system, field.name) for field in dataclasses.fields(Multibody)}
        known = [field.name for field in dataclasses.fields(cls)]
        if unknown := [name for name in more if name not in known]:
            raise TypeError(f"{cls.__name__}.from_system: {cls.__name__} has no field {unknown[0]!r}; fields of its own are declared in it")
        return cls(**own | more)

    def _overridden(self, *names):
        """Whether a subclass writes any of these anew."""
        return self._differs_from(Multibody, *names)

    def _velocity(self, q, u):
        """Zero, where the caller gave none."""
        return jnp.zeros_like(self.armature) if u is None else u

    # ------------------------------------------------------------------------------------------------------------- names
    @property
    def body_names(self) -> tuple[str, ...]:
        """Names of the bodies, without the world."""
        return self.structure.bodies

    @property
    def joint_names(self) -> tuple[str, ...]:
        """Names of the joints."""
        return tuple(joint.name for joint in self.structure.joints)

    @property
    def motor_names(self) -> tuple[str, ...]:
        """Names of the motors."""
        return tuple(name for name, _ in self.structure.motors)

    @property
    def site_names(self) -> tuple[str, ...]:
        """Names of the sites."""
        return tuple(site.name for site in self.structure.sites)

    @property
    def tendon_names(self) -> tuple[str, ...]:
        """Names of the tendons."""
        return tuple(tendon.name for tendon in self.structure.tendons)

    @property
    def sensor_names(self) -> tuple[str, ...]:
        """Names of the sensors."""
        return tuple(sensor.name for sensor in self.structure.sensors)

    @property
    def contacts(self) -> tuple[Contact, ...]:
        """What touches in each row of `gap`: a `Contact` with the names of two shapes, or of a joint or tendon and its limit."""
        return rows(self.structure)

    @property
    def left_out(self) -> tuple[str, ...]:
        """What the model file has that is not in this system, in words."""
        return self.structure.left_out

    @property
    def sensors_left_out(self) -> tuple[str, ...]:
        """Sensors that the model file has and that are not read, in words. No motion depends on them, so that nothing warns of them."""
        return tuple(f"the {kind} {name!r}" for name, kind in self.structure.sensors_left_out)

    @property
    def coordinate_names(self) -> tuple[str, ...]:
        """Names of the coordinates with their units, for pictures."""
        return names.of_coordinates(self.structure, 0)

    @property
    def velocity_names(self) -> tuple[str, ...]:
        """Names of the velocities with their units."""
        return names.of_coordinates(self.structure, 1)

    def __repr__(self) -> str:
        """One line: how much there is of what; the numbers are too many."""
        structure = self.structure
        parts = {"body": self.body_names, "joint": structure.joints, "contact": self.contacts, "motor": structure.motors}
        counts = [f"{len(of)} {'bodies' if name == 'body' and len(of) != 1 else name + 's' * (len(of) != 1)}" for name, of in parts.items()]
        return f"{type(self).__name__}({', '.join(counts)})"

    @property
    def contact_names(self) -> tuple[str, ...]:
        """Names of the contacts: "foot and floor"; a pair of shapes that touches in several points has several of one name."""
        return tuple(map(str, self.contacts))

    def where(self, name: str, kind: str | None = None) -> int:
        """Place of a body, joint, shape, motor, tendon, site or sensor in the arrays of its kind, by its name.

        kind: "body", "joint", "shape", "motor", "tendon", "site" or "sensor"; None: whichever has the name, tendons after the others, and
              then sites and sensors. A joint without a name of its own has that of its body

        Raises KeyError for a name that there is not, or that is one of several kinds with different places.
        """
        kinds = {
            "body": self.body_names,
            "joint": self.joint_names,
            "shape": tuple(s.name for s in self.structure.shapes),
            "motor": self.motor_names,
            "tendon": self.tendon_names,
            "site": self.site_names,
            "sensor": self.sensor_names,
        }
        if kind is not None:
            find("kind of part", kind, tuple(kinds))
            return find(kind, name, kinds[kind])
        found = names.before_what_measures({kind: known.index(name) for kind, known in kinds.items() if name in known})
        if len(set(found.values())) == 1:
            return next(iter(found.values()))
        if found:
            places = " and ".join(f"{kind} {place}" for kind, place in found.items())
            raise KeyError(f"{name!r} is the name of several parts, {places}; say the kind, too: where({name!r}, {next(iter(found))!r})")
        return find("body, joint, shape, motor, tendon, site or sensor", name, tuple(n for names in kinds.values() for n in names))

    def replace(self, values: dict[str, ArrayLike]) -> "Multibody":
        """This system with other numbers, by their names: ``system.replace({"torso.mass": 3.0, "pair floor-foot.mu": 0.5})``.

        Of a body: mass (kg), center, position (3,) (m), inertia (3,) or (3, 3) (kg m^2), orientation (4,). Of a joint: position, axis (3,),
        reference, stiffness, damping, armature, limits (2,), limit_restitution, and dry_friction if it has some; damping, armature and
        dry_friction of a ball joint (3,), of a free one (6,). Of a shape: position, orientation, size (3,). Of a motor: control, gain,
        offset, slope, rate, control_limits and force_limits (2,). Of a pair of shapes: mu, e_N, e_F, drilling, rolling. ``gravity`` (3,).
        Of a tendon, where there are such: limits (2,), limit_restitution, stiffness, spring_length (2,), damping, dry_friction, armature,
        coefficients, divisors. Of a site: position, orientation, size (3,); of a sensor: cutoff. Units are those of the fields. Where parts
        of several kinds have the name, the kind is said before it: ``"joint torso.position"``; what is not said is not a site. Values may
        be traced, and differentiated.

        Raises KeyError for a name that there is not, or that means several numbers, ValueError for a value of another shape, TypeError for
        what is no dictionary.
        """
        return names.replaced(self, values)

    def defines(self, name: str) -> bool:
        """As of any system; without a quaternion ``q_dot = u``, and every scheme takes it."""
        if name == "q_dot":
            return bool(len(self._layout.quaternions))
        if name == "about_center":
            return bool(self._layout.behind.any()) or self._overridden(name)
        return self._overridden(name) if name == "mass_matrix" else super().defines(name)

    @property
    def _layout(self):
        return self.structure.layout

    # -------------------------------------------------------------------------------------------------------------- places
    def places(self, t: ArrayLike, q: jax.Array) -> kinematics.Places:
        """Frames of all bodies, the world first, and twists of all velocities."""
        if self.seen is not None:
            return self.seen.places
        return _place(self, t, q)

    def seen_at(self, t: ArrayLike, q: jax.Array) -> "Multibody":
        """This system with its places and contacts at (t, q) computed, for functions that are asked for there alone.

        What a subclass writes may differentiate what it asks for, say the pose, by q: such a system is left as it is.
        """
        if not self._is_assembled():
            return self
        places = self.places(t, q)
        return dataclasses.replace(self, seen=Seen(places, self._touches(places, q)))

    def for_run(self) -> "Multibody":
        """This system with the `convex.Table` of its shapes, which is that of all configurations."""
        return dataclasses.replace(self, table=pairs.table(self)) if self._is_assembled() else self

    def found(self, t: ArrayLike, q: jax.Array) -> Any:
        """`pairs.search` of each group of pairs that is searched, of which `keeping_rows` may be told; None where none is."""
        return _searched(self, self.places(t, q)) if any(map(pairs.is_searched, pairs.groups(self.structure))) else None

    def keeping_rows(
        self, t: ArrayLike, q: jax.Array, u: jax.Array | None = None, dt: ArrayLike | None = None, found: Any = None
    ) -> "Multibody":
        """This system, whose contacts of a pair have the places among its rows that they have at (t, q), for what asks elsewhere, too.

        Rows of pairs of boxes, of hulls and of those that `bodies.convex` searches are what touches at a configuration: a body that rocks
        has another lowest corner a moment later. Told the velocity as well, those pairs are left out that cannot meet in the step, of kinds
        of which there are many or whose contacts are searched. What was ``found`` nearby, in the step that leads here, is where the search
        begins; where it was found at (t, q) it is not made again.
        """
        far = pairs.left_out_where_far(self.structure) if u is not None else []
        if self.kept_rows is not None or not (far or pairs.changing(self.structure)):
            return self
        places = self.places(t, q)
        shapes, reach = self._shapes(places), None
        if far:
            reach = broad_phase.reach(self, t, dt, places, shapes, q, u, far, pairs.table(self).radii)
        return dataclasses.replace(self, kept_rows=pairs.kept(self, shapes, reach, found), seen=None)

    def seen_where_kept(self, t: ArrayLike, q: jax.Array, which: jax.Array) -> "Multibody":
        """Those of the pairs with one of the rows ``which`` (n_N,) are seen; others may be said to be far."""
        if self.kept_rows is None or not self._is_assembled():
            return self
        places = self.places(t, q)
        return dataclasses.replace(self, seen=Seen(places, _with_limits(self, places, q, pairs.touches_where_kept, which)))

    @property
    def _unseen(self):
        """The system for what is differentiated by q, or asked for elsewhere, also where its places at one configuration are computed."""
        return dataclasses.replace(self, seen=None)

    @_valued
    def pose(self, t: ArrayLike, q: jax.Array) -> Pose:
        """Position (n_b, 3) and rotation (n_b, 3, 3) of every body's frame in the world."""
        places = self.places(t, q)
        return Pose(places.x[1:], places.R[1:])

    @_valued
    def site_pose(self, t: ArrayLike, q: jax.Array) -> Pose:
        """Position (n_f, 3) and rotation (n_f, 3, 3) of every site in the world."""
        R, x = sensors.frames(self, self.places(t, q))
        n = len(self.body_names) + 1
        return Pose(x[n:], R[n:])

    @_valued
    def site_velocity(self, t: ArrayLike, q: jax.Array, u: jax.Array) -> Velocity:
        """Velocity (n_f, 3) and angular velocity (n_f, 3) of every site, along the axes of the world."""
        places, (all_u, _) = self.places(t, q), kinematics.velocities(self, t, u)
        w, v = sensors.velocities(self, places, sensors.frames(self, places)[1], all_u)
        n = len(self.body_names) + 1
        return Velocity(v[n:], w[n:])

    def tendon_length(self, t: ArrayLike, q: jax.Array) -> jax.Array:
        """Lengths (n_t,) of the tendons, m."""
        return tendons.lengths(self, self.places(t, q), q) if self.structure.tendons else jnp.zeros((0,), q.dtype)

    def tendon_moment(self, t: ArrayLike, q: jax.Array) -> jax.Array:
        """Derivatives (n_t, n_u) of these lengths by the velocities."""
        return tendons.moments(self, self.places(t, q))[:, : self._layout.n_u]

    def sensors(
        self, t: ArrayLike, q: jax.Array, u: jax.Array, names: Sequence[str] | str | None = None, forces: jax.Array | None = None
    ) -> dict[str, jax.Array]:
        """What the sensors say in this state, by their names: see `Sensor`; `readings` of all nodes of a `Solution`.

        names:   of the sensors; None: of all, but for those that touch where there are no forces
        forces:  normal forces (n_N,) of the contacts in N, percussions over dt, that touch sensors sum up

        Raises KeyError for a name that there is not, or whose kind is not read; ValueError for one that touches, without forces.
        """
        return sensors.sensors(self, t, q, u, names, forces)

    def initial_state(self, key: str | int | None = None, *, project: bool = False) -> tuple[jax.Array, jax.Array]:
        """``(q0, u0)``: joints at their reference, free bodies where their frame says, all at rest; or those of a keyframe of the model's
        file, ``key`` its name or number.

        project: give the nearest state with closed loops, joints inside of their limits and no penetration in place of it, by
                 `jaxnsd.project_position` and `jaxnsd.project_velocity` at t = 0, and warn of what has moved

        Raises KeyError for a keyframe that the model does not have, ValueError where the projection finds no such state.
        """
        q, u = self._reference_state() if key is None else self._keyframe(key)
        if not project:
            return q, u
        u = jnp.zeros_like(self.armature) + u
        nearest = self.normalized(project_position(self, q, u=u))
        if checks.known(nearest) and not np.all(np.isfinite(nearest)):
            raise ValueError(
                "initial_state: the projection found no state near the start that obeys all limits, couplings and loops and has no "
                f"penetration{self._penetrations(q)}; a keyframe nearer to one, or other positions of the bodies, are needed; links "
                'of a robot that lie in each other at their joint do not touch with from_mjcf(..., contacts="apart")'
            )
        u_nearest = project_velocity(self, nearest, u)
        if checks.known(nearest):
            told = zip(self.coordinate_names + self.velocity_names, *map(np.concatenate, ((q, u), (nearest, u_nearest))), strict=True)
            told = [(abs(b - a), f"{name} from {a:.4g} to {b:.4g}") for name, a, b in told if f"{a:.4g}" != f"{b:.4g}"]
            told = [one for one in told if one[0] > np.finfo(nearest.dtype).eps]
            if told:
                moved = [text for _, text in sorted(told, reverse=True)]
                warnings.warn(f"initial_state: the projection has moved {lists.enumerated(moved, 'coordinates')}", stacklevel=2)
        return nearest, u_nearest

    def _penetrations(self, q):
        """Words that tell which shapes lie in each other, and how deep, the deepest first."""
        gap = np.asarray(self.gap(0.0, q))
        deepest = {}
        for k in np.argsort(gap):
            if gap[k] < 0:
                deepest.setdefault(self.contacts[k][:2], f"{self.contacts[k]} by {-gap[k]:.3g}")
        return f"; beyond their limit are {lists.enumerated(deepest.values(), 'pairs')}" if deepest else ""

    def control_of(self, key: str | int) -> jax.Array:
        """Controls (n_m,) of the motors in a keyframe of the model's file, ``key`` its name or number. KeyError for one that it has not."""
        return jnp.asarray(self.structure.keyframes[named(self.structure.keyframes, key, "control_of")][3], self.mass.dtype)

    def _reference_state(self):
        """All as the parts say."""
        n_b, n_j, places = len(self.body_names), len(self.joint_names), []
        one = n_j + 7 * n_b
        for j, joint in enumerate(self.structure.joints):
            if joint.prescribed:
                continue
            if joint.kind == "free":
                b = joint.body - 1
                places += [*(n_j + 3 * b + np.arange(3)), *(n_j + 3 * n_b + 4 * b + np.arange(4))]
            elif joint.kind == "ball":
                places += [one, one + 1, one + 1, one + 1]
            else:
                places.append(j)
        parts = (self.reference, self.position, self.orientation)
        of = np if checks.known(*parts) else jnp  # no program is compiled for what is known
        numbers = of.concatenate([*(of.ravel(part) for part in parts), of.asarray([1.0, 0.0], self.mass.dtype)])
        q = kinematics.normalized(self._layout, numbers[np.array(places)])
        return q if of is jnp else known_array(q), known_array(np.zeros(self._layout.n_u), self.mass.dtype)

    def _keyframe(self, key):
        """Initial state of the keyframe of this name or number."""
        _, q, u, _ = self.structure.keyframes[named(self.structure.keyframes, key, "initial_state")]
        return known_array(kinematics.normalized(self._layout, np.asarray(q, self.mass.dtype))), known_array(u, self.mass.dtype)

    def q_dot(self, t: ArrayLike, q: jax.Array, u: jax.Array) -> jax.Array:
        """Of quaternions 1/2 p (0, omega); else u."""
        del t
        layout = self._layout
        if not len(layout.quaternions):
            return u
        p, omega = kinematics.quaternions(layout, q, u)
        turning = 0.5 * product(p, jnp.concatenate([jnp.zeros_like(omega[:, :1]), omega], axis=1))
        return kinematics.woven(layout, pick(u, layout.straight_u), turning)

    def moved(self, t: ArrayLike, dt: ArrayLike, q: jax.Array, u: jax.Array) -> jax.Array:
        """q after a step of the midpoint rule with the velocity u: of quaternions Cayley's map, which keeps their length."""
        del t
        layout = self._layout
        if not len(layout.quaternions):
            return q + dt * u
        p, omega = kinematics.quaternions(layout, q, u)
        s = 0.25 * dt * omega
        square = dot(s, s)[:, None]
        turned = product(p, jnp.concatenate([1 - square, 2 * s], axis=1) / (1 + square))
        return kinematics.woven(layout, pick(q, layout.straight_q) + dt * pick(u, layout.straight_u), turned)

    def normalized(self, q: jax.Array) -> jax.Array:
        """q with quaternions of length one."""
        return kinematics.normalized(self._layout, jnp.asarray(q))

    # ----------------------------------------------------------------------------------------------------------- dynamics
    def mass_matrix(self, t: ArrayLike, q: jax.Array) -> jax.Array:
        """Mass matrix (n_u, n_u), by composite bodies."""
        n = self._layout.n_u
        M = dynamics.mass_matrix(self, self._layout, self.places(t, q))[:n, :n] + jnp.diag(self.armature)
        return M + tendons.mass_matrix(self, self.places(t, q)) if self._inert else M

    @_valued
    def M(self, t: ArrayLike, q: jax.Array, u: jax.Array | None = None) -> jax.Array:
        """Mass matrix (n_u, n_u)."""
        if self._overridden("kinetic_energy") and not self._overridden("M", "mass_matrix"):
            return super().M(t, q, u)
        return self.mass_matrix(t, q)

    _closes_over: ClassVar[str] = "a field, or of a control or motion an argument: control=jax.tree_util.Partial(function, numbers)"

    def _is_assembled(self):
        return not self._overridden(*MECHANICS)

    def _functions(self):
        """The motions, and the control where it is a function."""
        return [*prescribed.functions(self), *forces.functions(self)]

    def _refuses(self, q, u):
        """A state of other lengths, and a quaternion that is zero."""
        return names.no_state(self.structure, q, u)

    def _misshapen(self):
        """Where a field was replaced by an array of another shape: it would be broadcast, or read in part."""
        return names.misshapen(self)

    def _outside(self, t, q, u):
        """Inertias, and what `assemble` refuses where it is known: negative sizes, lower limits above the upper ones."""
        ranges = self.limits, self.motors.control_limits, self.motors.force_limits, self.motors.total_limits
        crossed = [jnp.any(limits[:, 0] > limits[:, 1]) for limits in ranges]
        negative = [jnp.any(x < 0) for x in (self.mass, self.armature, self.shape_size)]
        cords = [tendons.outside(self)] if self.structure.tendons else []
        return functools.reduce(jnp.logical_or, [*crossed, *negative, *cords], super()._outside(t, q, u))

    @property
    def _inert(self):
        """Whether tendons have inertias of their own."""
        return "tendon armature" in self.structure.has

    @_valued
    def momentum(self, t: ArrayLike, q: jax.Array, u: jax.Array) -> jax.Array:
        """Generalized momentum p = dT/du, (n_u,)."""
        if self._overridden(*INERTIA) and not self._overridden("momentum"):
            return super().momentum(t, q, u)
        n, (all_u, _), places = self._layout.n_u, kinematics.velocities(self, t, u), self._unseen.places(t, q)
        p = dynamics.momentum(self, self._layout, places, all_u)[:n] + self.armature * u
        return p + tendons.momentum(self, t, u, places) if self._inert else p

    @_valued
    def kinetic_energy(self, t: ArrayLike, q: jax.Array, u: jax.Array) -> jax.Array:
        """T in J, that of the armatures too."""
        all_u, _ = kinematics.velocities(self, t, u)
        places = self._unseen.places(t, q)
        T = dynamics.kinetic_energy(self, self._layout, places, all_u) + 0.5 * jnp.sum(self.armature * u * u)
        T = T + tendons.kinetic_energy(self, t, u, places) if self._inert else T
        if self._overridden("M", "mass_matrix") and not self._overridden("kinetic_energy"):
            T = T + 0.5 * u @ ((self.M(t, q, u) - Multibody.mass_matrix(self, t, q)) @ u)
        return T

    @_valued
    def potential_energy(self, t: ArrayLike, q: jax.Array) -> jax.Array:
        """V in J of weights and springs."""
        places = self._unseen.places(t, q)
        return dynamics.weight_energy(self, places) + forces.potential(self, places, q)

    @_valued
    def force(self, t: ArrayLike, q: jax.Array, u: jax.Array) -> jax.Array:
        """Generalized forces (n_u,) of dampers, motors and the medium; a subclass may add its own, which `b` and `h` ask for."""
        return forces.without_potential(self, t, q, u, self.places(t, q))

    @_valued
    def b(self, t: ArrayLike, q: jax.Array, u: jax.Array) -> jax.Array:
        """Generalized forces b of ``dp/dt = b + W lambda``, (n_u,), from the momenta of composite bodies."""
        if self._overridden("potential_energy", *INERTIA):
            return super().b(t, q, u)
        places, (all_u, _) = self.places(t, q), kinematics.velocities(self, t, u)
        rate = dynamics.momentum_rate(self, self._layout, places, all_u)[: self._layout.n_u]
        rate = rate + tendons.momentum_rate(self, t, q, u) if self._inert else rate
        return rate + self._forces(t, q, u, places)

    @_valued
    def h(self, t: ArrayLike, q: jax.Array, u: jax.Array) -> jax.Array:
        """Right-hand side of ``M du/dt = h + W lambda``, (n_u,), by the Newton-Euler algorithm."""
        if self._overridden("potential_energy", *INERTIA) or (self._overridden("b") and not self._overridden("h")):
            return super().h(t, q, u)
        places, (all_u, acceleration) = self.places(t, q), kinematics.velocities(self, t, u)
        bias = dynamics.bias(self, self._layout, places, all_u, acceleration)[: self._layout.n_u]
        bias = bias + tendons.bias(self, t, q, u) if self._inert else bias
        return self._forces(t, q, u, places) - bias

    def gyroscopic(self, t: ArrayLike, q: jax.Array, u: jax.Array) -> jax.Array | None:
        """Derivative (n_u, n_u) of what inertia adds to `h`, by the angular velocities of free and ball joints; None where there are none.

        Inertial forces are quadratic in u, so that `Moreau` takes them as the bilinear form of the velocities before and after: Kahan's
        method, which keeps the energy of a free rotation bounded (Hirota & Kimura, J. Phys. Soc. Japan 69 (2000), 627).
        """
        layout = self._layout
        if not len(layout.spins) or self._overridden("b", "h", *INERTIA):
            return None
        places, (all_u, _) = self.places(t, q), kinematics.velocities(self, t, u)
        directions, direction_of, felt = layout.turned_together
        rates = -dynamics.gyroscopic(self, layout, places, all_u)
        if "turned armature" in self.structure.has:
            own = jax.linearize(lambda u: dynamics.of_armatures(self, layout, u), u)[1]
            rates = rates + jnp.stack([own(jnp.asarray(d, u.dtype)) for d in directions[:, : layout.n_u]])
        derivative = jnp.zeros((), u.dtype)
        for k, rate in enumerate(rates):
            derivative = jnp.where(felt & (direction_of == k)[None], rate[:, None], derivative)
        return derivative

    def damping_matrix(self, t: ArrayLike, q: jax.Array, u: jax.Array) -> jax.Array | None:
        """Matrix (n_u, n_u) of the dampers of joints, tendons and springs, and of motors whose force falls with their speed and is within
        its limits; not of a medium, or of what the control makes of velocities.
        """
        return None if self._overridden("b", "h") else forces.damping_matrix(self, t, q, u, self.places(t, q))

    def applied_force(self, t: ArrayLike, q: jax.Array, u: jax.Array) -> jax.Array:
        """Generalized forces (n_u,) of springs, dampers, motors and the medium: what inertia and weights make is not stiff."""
        if self._overridden("b", "h", "potential_energy"):
            return self.h(t, q, u)
        return self._forces(t, q, u, self.places(t, q))

    def may_be_stiff(self) -> bool:
        """Springs, motors that feed a coordinate back, a control that is a function, a medium, and whatever a subclass says of forces."""
        elastic = self.structure.has & {"stiffness", "tendon stiffness", "motor slope", "medium"} or self.structure.springs
        return bool(elastic) or callable(self.control) or self._overridden("force", "b", "h", "potential_energy")

    def dry_velocity(self, t: ArrayLike, q: jax.Array, u: jax.Array) -> jax.Array:
        """Velocities (n_D,) of the joints and tendons that have dry friction; a subclass that writes them anew gives `dry_friction` in this
        order.
        """
        which = tendons.dry(self.structure)
        of_joints = pick(u, np.array(self.structure.dry[: len(self.structure.dry) - len(which)], int))
        return jnp.concatenate([of_joints, tendons.rates(self, t, u, self.places(t, q), which)]) if which else of_joints

    def W_D(self, t: ArrayLike, q: jax.Array, u: jax.Array | None = None) -> jax.Array:
        """Directions of dry friction (n_u, n_D): of joints constants."""
        if self._overridden("dry_velocity"):
            return super().W_D(t, q, u)
        n, which = self._layout.n_u, tendons.dry(self.structure)
        of_joints = jnp.asarray(np.eye(n)[:, np.array(self.structure.dry[: len(self.structure.dry) - len(which)], int)], q.dtype)
        return jnp.concatenate([of_joints, tendons.moments(self, self.places(t, q), which)[:, :n].T], 1) if which else of_joints

    def about_center(self, t: ArrayLike, q: jax.Array, p: jax.Array) -> jax.Array:
        """Momenta or impulses p of velocities of which the translations of a tree that floats are those of its centre of mass, not of a
        frame's origin: of a free joint, or of the first two or three sliders at the root.

        ``v_center = v + J u`` of the other velocities u of the tree: their momenta are ``p_u - J^T p_v``, about the centre of mass.
        """
        columns = dynamics.center_columns(self, self._layout, self.places(t, q))
        return p - dynamics.along_centers(self._layout, columns, p)

    def about_center_rate(self, t: ArrayLike, q: jax.Array, u: jax.Array, p: jax.Array) -> jax.Array:
        """``-(dJ/dt)^T p_v``, see `about_center`."""
        if self._overridden("about_center") and not self._overridden("about_center_rate"):
            return super().about_center_rate(t, q, u, p)
        places, (all_u, _) = self.places(t, q), kinematics.velocities(self, t, u)
        return -dynamics.along_centers(self._layout, dynamics.center_columns(self, self._layout, places, all_u), p)

    def _forces(self, t, q, u, places):
        """Generalized forces (n_u,), and the gyroscopic moments of armatures."""
        force = forces.of_springs(self, q, places) + self.force(t, q, u)
        return force + dynamics.of_armatures(self, self._layout, u) if "turned armature" in self.structure.has else force

    # ------------------------------------------------------------------------------------------------------------ contacts
    #: Force directions are computed for chosen contacts alone, see `schemes.gathered`.
    gathers = True

    @property
    def scleronomic(self) -> bool:
        """Whether no joint is prescribed, and no velocity is written anew by a subclass."""
        velocities = (
            "gap",
            "gap_velocity",
            "tangential_velocity",
            "constraint",
            "constraint_velocity",
            "velocity_constraint",
            "dry_velocity",
        )
        return not self.motions and not self._overridden(*velocities)

    def touches(self, t: ArrayLike, q: jax.Array) -> Touch:
        """Gaps (n_N,), points (n_N, 3) of first and second shape and normals (n_N, 3) of all contacts; of limits gaps only."""
        return self._touches(self.places(t, q), q)

    def _touches(self, places, q):
        return _touch(self, places, q) if self.seen is None else self.seen.touch

    def _shapes(self, places):
        bodies = [shape.body for shape in self.structure.shapes]
        R, x = pick(places.R, bodies), pick(places.x, bodies)
        return Frames(compose(R, matrix(self.shape_orientation)), x + turn(R, self.shape_position), self.shape_size)

    @_valued
    def gap(self, t: ArrayLike, q: jax.Array) -> jax.Array:
        """Gaps (n_N,): distances of shapes in m, and of joints and tendons from their limits in rad or m."""
        return self.touches(t, q).gap

    @_valued
    def gap_velocity(self, t: ArrayLike, q: jax.Array, u: jax.Array, choice: Any = None) -> jax.Array:
        """Velocities of the second points relative to the first ones along the normals, (n_N,)."""
        if self._overridden("gap") and not self._overridden("gap_velocity"):
            velocity = super().gap_velocity(t, q, u)
            return velocity if choice is None else choice.take(velocity)
        return self._velocities(t, q, u, choice, normal=True)[:, 0]

    @_valued
    def tangential_velocity(self, t: ArrayLike, q: jax.Array, u: jax.Array, choice: Any = None) -> jax.Array:
        """Their components in the tangential plane, (n_N, d), see `tangents`; with drilling friction the component along the normal, with
        rolling friction those in the tangential plane, of the angular velocity of the second body relative to the first, too."""
        return self._velocities(t, q, u, choice, normal=False)

    @_valued
    def W_N(self, t: ArrayLike, q: jax.Array, u: jax.Array | None = None, choice: Any = None) -> jax.Array:
        """Normal force directions (n_u, n_N)."""
        if self._overridden("gap", "gap_velocity") and not self._overridden("W_N"):
            W = super().W_N(t, q, u)
            return W if choice is None else choice.take(W, 1)
        return self._directions(t, q, choice, normal=True)[:, :, 0]

    @_valued
    def W_F(self, t: ArrayLike, q: jax.Array, u: jax.Array | None = None, choice: Any = None) -> jax.Array:
        """Tangential force directions (n_u, n_N, d)."""
        if self._overridden("tangential_velocity") and not self._overridden("W_F"):
            W = super().W_F(t, q, u)
            return W if choice is None else choice.take(W, 1)
        return self._directions(t, q, choice, normal=False)

    def tangents(self, normal: jax.Array) -> jax.Array:
        """Tangential directions (n, d, 3) of normals (n, 3).

        In space the axis of the world that is most across the normal, made perpendicular to it, and the third direction; which axis it is
        is not differentiated, and with isotropic friction nothing depends on it. In a plane the one direction in it.
        """
        axes = np.eye(3)
        if self.structure.plane is not None:
            normal_of_plane = jnp.broadcast_to(jnp.asarray(axes[self.structure.plane], normal.dtype), normal.shape)
            along = cross(normal_of_plane, normal)
            return (along / jnp.sqrt(dot(along, along) + jnp.finfo(normal.dtype).tiny)[:, None])[:, None]
        across = jnp.arange(3)[None] == jnp.argmin(jnp.abs(normal), axis=1)[:, None]
        axis = across.astype(normal.dtype)
        first = axis - dot(axis, normal)[:, None] * normal
        first = first / jnp.sqrt(dot(first, first))[:, None]
        return jnp.stack([first, cross(normal, first)], axis=1)

    def _chosen(self, t, q, choice, normal):
        """Of the chosen contacts: places, bodies' masks and points of reference, points, directions, rows of the limits."""
        places, n_s = self.places(t, q), self._layout.n_s
        touch = self._touches(places, q)
        first, second = bodies_of(self.structure)
        moves, dtype = self._layout.moves, q.dtype
        of = (
            touch,
            (jnp.asarray(moves[first], dtype), jnp.asarray(moves[second], dtype)),
            (pick(places.about, first), pick(places.about, second)),
        )
        limits = _limits(self.structure)
        if limits:
            n = len(first) - len(limits)
            of = (*of, jnp.concatenate([jnp.zeros((n, n_s), dtype), forces.limit_rows(self, places, q, limits, n_s)]))
        if choice is not None:
            of = jax.tree.map(choice.take, of)
        touch, masks, points, *rows = of
        directions = touch.normal[:, None] if normal else self.tangents(touch.normal)
        return places, touch, masks, points, directions, (rows[0] if rows and normal else None)

    @property
    def _turns(self):
        """Directions of sliding, drilling and rolling friction of a contact."""
        d, has = 1 if self.structure.plane is not None else 2, self.structure.has
        return d, int("drilling" in has), d * ("rolling" in has)

    def _turning_axes(self, normal, tangents):
        """Axes (n, k, 3) about which drilling and rolling friction act."""
        axes, (_, drilling, rolling) = [], self._turns
        if drilling:
            axes.append(normal[:, None])
        if rolling and self.structure.plane is None:
            axes.append(tangents)
        elif rolling:
            axes.append(jnp.broadcast_to(jnp.asarray(np.eye(3)[self.structure.plane], normal.dtype), (normal.shape[0], 1, 3)))
        return jnp.concatenate(axes, axis=1) if axes else None

    def _directions(self, t, q, choice, normal):
        n_u = self._layout.n_u
        if not len(self.contacts):
            return jnp.zeros((n_u, 0, 1 if normal else sum(self._turns)), q.dtype)
        places, touch, masks, about, directions, rows = self._chosen(t, q, choice, normal)
        axes = None if normal else self._turning_axes(touch.normal, directions)
        w, v = places.w[:n_u], places.v[:n_u]
        W = W_turning = jnp.zeros((), q.dtype)
        for sign, mask, point, origin in zip((-1, 1), masks, (touch.first, touch.second), about, strict=True):
            mask = mask.T[:n_u, :, None]
            turning = cross((point - origin)[:, None], directions)
            # (n_u, n, d): of the velocity of the point along each direction
            column = jnp.sum(directions[None] * v[:, None, None], axis=-1) + jnp.sum(turning[None] * w[:, None, None], axis=-1)
            W = W + sign * mask * column
            if axes is not None:
                W_turning = W_turning + sign * mask * jnp.sum(axes[None] * w[:, None, None], axis=-1)
        if axes is not None:
            W = jnp.concatenate([W, W_turning], axis=-1)
        return W if rows is None else W + rows.T[:n_u, :, None]

    def _velocities(self, t, q, u, choice, normal):
        if not len(self.contacts):
            return jnp.zeros((0, 1 if normal else sum(self._turns)), q.dtype)
        places, touch, masks, about, directions, rows = self._chosen(t, q, choice, normal)
        axes = None if normal else self._turning_axes(touch.normal, directions)
        u, _ = kinematics.velocities(self, t, u)
        columns = places.w * u[:, None], places.v * u[:, None]
        relative = spin = jnp.zeros((), q.dtype)
        for sign, mask, point, origin in zip((-1, 1), masks, (touch.first, touch.second), about, strict=True):
            w, v = (jnp.sum(mask[:, :, None] * column[None], axis=1) for column in columns)
            relative = relative + sign * (v + cross(w, point - origin))
            spin = spin + sign * w
        out = jnp.sum(directions * relative[:, None], axis=-1)
        if axes is not None:
            out = jnp.concatenate([out, jnp.sum(axes * spin[:, None], axis=-1)], axis=-1)
        return out if rows is None else out + jnp.sum(rows * u[None], axis=1)[:, None]

    def friction_sets(self) -> tuple | None:
        """Of sliding, drilling and rolling; None where no pair has drilling or rolling friction."""
        arms = self._of_rows(self.drilling), self._of_rows(self.rolling)
        sets = [(Segment if d == 1 else Disc)(mu) for d, mu in zip(self._turns, (self.mu(), *arms), strict=True) if d]
        return tuple(sets) if len(sets) > 1 else None

    def mu(self) -> jax.Array:
        """Friction coefficients (n_N,)."""
        return self._of_rows(self.friction)

    def e_N(self) -> jax.Array:
        """Restitution in normal direction, (n_N,)."""
        return self._of_rows(self.restitution, self.limit_restitution)

    def e_F(self) -> jax.Array:
        """Restitution in tangential direction, (n_N,)."""
        return self._of_rows(self.tangential_restitution)

    def _of_rows(self, of_pairs, of_limits=None):
        of_limits = np.zeros(self.limit_restitution.shape, self.limit_restitution.dtype) if of_limits is None else of_limits
        sides = [k for k, _, _ in _limits(self.structure)]
        parts = pick(of_pairs, pair_of(self.structure)), pick(of_limits, sides)
        return known_array(np.concatenate(parts)) if checks.known(*parts) else jnp.concatenate(parts)

    # --------------------------------------------------------------------------------------------------------------- loops
    #: Loops stay closed, whatever the scheme; a subclass that says False has them drift as the schemes were published.
    coordinate_projection = True

    @_valued
    def constraint(self, t: ArrayLike, q: jax.Array) -> jax.Array:
        """Opening of the loops (n_g,), in m and rad."""
        return loops.opening(self._unseen, t, q)

    def gap_size(self) -> ArrayLike:
        """Largest coordinate of positions of bodies and shapes in their frames, and of sizes and corners of shapes, in m."""
        lengths = self.position, self.shape_position, self.shape_size, *self.points
        return jnp.max(jnp.abs(jnp.concatenate([jnp.ravel(x) for x in lengths])), initial=0)

    def drift_bound(self, t: ArrayLike, q: jax.Array) -> jax.Array:
        """Openings (n_g,) that are `Outcome.DRIFTED`: a thousandth of the size of the bodies in m, and of a radian."""
        if self._overridden("constraint"):
            return super().drift_bound(t, q)
        return loops.largest_opening(self, q)


@runs.natively
def _place(system, t, q):
    """Places of a system. Under a name of its own, and so traced once for all that ask for it, and differentiated once."""
    return kinematics.place(system, system._layout, t, q)


@runs.natively
def _searched(system, places):
    """`pairs.search` at these places, likewise traced once."""
    return pairs.search(system, system._shapes(places))


@runs.natively
def _touch(system, places, q):
    """`Multibody.touches` at these places, likewise traced once."""
    return _with_limits(system, places, q, pairs.touches, _searched(system, places))


def _with_limits(system, places, q, of_pairs, *args):
    """`Touch` of all contacts: of pairs ``of_pairs(system, frames, *args)``, and of the limits."""
    found = []
    if system.structure.pairs:
        found.append(of_pairs(system, system._shapes(places), *args))
    if limits := _limits(system.structure):
        gap = forces.limit_gaps(system, places, q, limits)
        none = jnp.zeros((gap.shape[0], 3), q.dtype)
        found.append(Touch(gap, none, none, none + jnp.asarray([[0.0, 0.0, 1.0]], q.dtype)))
    if not system.contacts:
        none = jnp.zeros((0, 3), q.dtype)
        return Touch(jnp.zeros((0,), q.dtype), none, none, none)
    return Touch(*(jnp.concatenate(parts) for parts in zip(*found, strict=True)))


# ------------------------------------------------------------------------------------------------------ rows of the contacts
def _limits(structure):
    """``(number of the limit, joint or tendon, side)`` of the rows of limits: side 0 is the lower one, 1 the upper one; some have one."""
    both = [joint.kind != "ball" for joint in structure.joints] + [tendon.shortest for tendon in structure.tendons]
    return tuple((k, j, side) for k, j in enumerate(structure.limits) for side in ((0, 1) if both[j] else (1,)))


def pair_of(structure):
    """Number of the pair of each row of the pairs."""
    return np.array([number for group in pairs.groups(structure) for number in group.pair], int)


def bodies_of(structure):
    """Numbers of the first and second body of each row; the world's for those of limits."""
    limits = [0] * len(_limits(structure))
    return tuple(
        np.array([structure.shapes[s].body for group in pairs.groups(structure) for s in getattr(group, which)] + limits, int)
        for which in ("first", "second")
    )


def rows(structure):
    """`Contact` of every row."""
    shapes, out = structure.shapes, []
    for group in pairs.groups(structure):
        parts = zip(group.first, group.second, group.pair, strict=True)
        out += [Contact(shapes[a].name, shapes[b].name, f"{shapes[a].kind}-{shapes[b].kind}", pair) for a, b, pair in parts]
    for k, _, side in _limits(structure):
        out.append(Contact(structure.limited[k], ("lower limit", "upper limit")[side], "limit", k))
    return tuple(out)
