"""What a system of rigid bodies is put together of: bodies, joints, shapes, pairs, springs, loops, tendons, motors, sensors.

Parts are plain values. Their numbers may be traced, so that a length or a mass which several parts depend on is differentiated through
`assemble`; names, parents and kinds are not. Lengths are in m, angles in rad, masses in kg. Orientations are quaternions (w, x, y, z).
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from ..native.jax_internals import is_traced
from ..programs.given import numbers, shown
from .rotations import IDENTITY, matrix, of_numbers

#: A number, which may be traced; and vectors of them.
Number = Any
Vector = Any
ZERO = (0.0, 0.0, 0.0)


# ------------------------------------------------------------------------------------------------------------------ shapes
@dataclass(frozen=True)
class Shape:
    """Where a shape is in its body, and its material; what it leaves as None is said by the other shape of a pair, or by `assemble`."""

    position: Vector = dataclasses.field(default=ZERO, kw_only=True)  # of the shape's centre in the frame of the body
    orientation: Vector = dataclasses.field(default=IDENTITY, kw_only=True)
    name: str = dataclasses.field(default="", kw_only=True)
    mu: Number = dataclasses.field(default=None, kw_only=True)
    e_N: Number = dataclasses.field(default=None, kw_only=True)
    e_F: Number = dataclasses.field(default=None, kw_only=True)

    kind: ClassVar[str]

    def size(self) -> tuple[Number, Number, Number]:
        """Three numbers, in the order of the kernel of the kind."""
        raise NotImplementedError

    def solid(self) -> tuple[Number, tuple[Number, Number, Number]] | None:
        """``(volume, radii of gyration squared (3,))`` of the homogeneous solid; None where there is none."""
        return None


@dataclass(frozen=True)
class Sphere(Shape):
    """A ball of this ``radius``."""

    radius: Number
    kind: ClassVar[str] = "sphere"

    def size(self) -> tuple[Number, Number, Number]:
        """(radius, 0, 0)."""
        return self.radius, 0.0, 0.0

    def solid(self) -> tuple[Number, tuple[Number, Number, Number]] | None:
        """2/5 r^2."""
        k = 0.4 * self.radius**2
        return 4 / 3 * np.pi * self.radius**3, (k, k, k)


@dataclass(frozen=True)
class Box(Shape):
    """A box with ``edges`` (3,), along x, y and z."""

    edges: Vector
    kind: ClassVar[str] = "box"

    def size(self) -> tuple[Number, Number, Number]:
        """Half of the edges."""
        return tuple(0.5 * e for e in self.edges)

    def solid(self) -> tuple[Number, tuple[Number, Number, Number]] | None:
        """(b^2 + c^2) / 12, ..."""
        a, b, c = self.edges
        return a * b * c, ((b * b + c * c) / 12, (a * a + c * c) / 12, (a * a + b * b) / 12)


@dataclass(frozen=True)
class Capsule(Shape):
    """A cylinder of this ``radius`` along z with half balls at its ends, whose centres are ``length`` apart."""

    radius: Number
    length: Number
    kind: ClassVar[str] = "capsule"

    def size(self) -> tuple[Number, Number, Number]:
        """(radius, half length, 0)."""
        return self.radius, 0.5 * self.length, 0.0

    def solid(self) -> tuple[Number, tuple[Number, Number, Number]] | None:
        """Cylinder and two half balls, whose own centres are 3/8 r from their flat sides."""
        r, h = self.radius, 0.5 * self.length
        cylinder, ball = 2 * np.pi * r**2 * h, 4 / 3 * np.pi * r**3
        volume = cylinder + ball
        along = (0.5 * cylinder * r**2 + 0.4 * ball * r**2) / volume
        across = (cylinder * (r**2 / 4 + h**2 / 3) + ball * (0.4 * r**2 + 0.75 * h * r + h**2)) / volume
        return volume, (across, across, along)


@dataclass(frozen=True)
class Cylinder(Shape):
    """A cylinder of this ``radius`` and ``length`` along z; what touches planes are its two rims."""

    radius: Number
    length: Number
    kind: ClassVar[str] = "cylinder"

    def size(self) -> tuple[Number, Number, Number]:
        """(radius, half length, 0)."""
        return self.radius, 0.5 * self.length, 0.0

    def solid(self) -> tuple[Number, tuple[Number, Number, Number]] | None:
        """r^2 / 4 + l^2 / 12, r^2 / 2."""
        across = self.radius**2 / 4 + self.length**2 / 12
        return np.pi * self.radius**2 * self.length, (across, across, self.radius**2 / 2)


@dataclass(frozen=True)
class Ellipsoid(Shape):
    """An ellipsoid with these half axes (3,)."""

    half_axes: Vector
    kind: ClassVar[str] = "ellipsoid"

    def size(self) -> tuple[Number, Number, Number]:
        """The half axes."""
        return tuple(self.half_axes)

    def solid(self) -> tuple[Number, tuple[Number, Number, Number]] | None:
        """(b^2 + c^2) / 5, ..."""
        a, b, c = self.half_axes
        return 4 / 3 * np.pi * a * b * c, ((b * b + c * c) / 5, (a * a + c * c) / 5, (a * a + b * b) / 5)


@dataclass(frozen=True)
class Points(Shape):
    """A convex body, the hull of its corners ``points`` (n, 3).

    On a plane up to eight have a contact each. Of more, and on other shapes, there are four: where it is closest, and at corners that span
    the face it stands on.
    """

    points: Vector
    kind: ClassVar[str] = "points"

    def size(self) -> tuple[Number, Number, Number]:
        """None: the points say all."""
        return ZERO


@dataclass(frozen=True)
class Plane(Shape):
    """A plane through ``position``; its normal, away from the solid, is z turned by ``orientation``."""

    kind: ClassVar[str] = "plane"

    def size(self) -> tuple[Number, Number, Number]:
        """None: it is infinite."""
        return ZERO


# ------------------------------------------------------------------------------------------------------------------ joints
@dataclass(frozen=True)
class Joint:
    """What the joints share. A body's joints act one after the other, each in the frame that those before it have moved."""

    name: str = dataclasses.field(default="", kw_only=True)
    stiffness: Number = dataclasses.field(default=0.0, kw_only=True)  # N m/rad or N/m
    damping: Number = dataclasses.field(default=0.0, kw_only=True)  # N m s/rad or N s/m; a number, or one for each velocity
    armature: Number = dataclasses.field(default=0.0, kw_only=True)  # inertia of the rotor, kg m^2 or kg; a number, or one for each
    dry_friction: Number = dataclasses.field(default=0.0, kw_only=True)  # bound of its force, N m or N; a number, or one for each

    kind: ClassVar[str]
    n_q: ClassVar[int]
    n_u: ClassVar[int]


@dataclass(frozen=True)
class _OneAxis(Joint):
    axis: Vector = (0.0, 0.0, 1.0)
    position: Vector = ZERO  # of a point of the axis in the frame of the body
    reference: Number = 0.0  # coordinate at which the body is where its frame says
    rest: Number = 0.0  # coordinate at which the spring is slack
    limits: Any = None  # (lower, upper), each a unilateral contact without friction; None: there are none
    motor_limits: Any = None  # (lower, upper) of the sum of the forces of its motors, N m or N; None: there are none
    motion: Callable | None = None  # prescribed: coordinate as a function of t, twice differentiable; the joint then has none of its own

    n_q: ClassVar[int] = 1
    n_u: ClassVar[int] = 1


@dataclass(frozen=True)
class Revolute(_OneAxis):
    """A hinge: rotation about ``axis`` through ``position``; one angle in rad."""

    kind: ClassVar[str] = "hinge"


@dataclass(frozen=True)
class Prismatic(_OneAxis):
    """Translation along ``axis``, in m."""

    kind: ClassVar[str] = "slide"


@dataclass(frozen=True)
class Spherical(Joint):
    """A ball joint at ``position``: a quaternion; its velocities are the angular velocity relative to the parent, in the body frame."""

    position: Vector = ZERO
    rest: Vector = IDENTITY
    limit: Number = None  # largest angle in rad from the orientation at which the body is where its frame says

    kind: ClassVar[str] = "ball"
    n_q: ClassVar[int] = 4
    n_u: ClassVar[int] = 3


@dataclass(frozen=True)
class Free(Joint):
    """No joint: q = (position of the body's frame, quaternion), u = (its velocity in the world, angular velocity in the body frame).

    ``position`` and ``orientation`` of the body say nothing then but where it is in `Multibody.initial_state`.

    motion: prescribed: place of the body's frame in the world as a function of t, twice differentiable: its position (3,) in m, or that and
            a quaternion (4,), else the orientation is the body's; None: it moves freely. The body then has no coordinates of its own
    """

    motion: Callable | None = dataclasses.field(default=None, kw_only=True)

    kind: ClassVar[str] = "free"
    n_q: ClassVar[int] = 7
    n_u: ClassVar[int] = 6


def planar(name: str = "", normal: Vector = (0.0, 0.0, 1.0)) -> tuple[Joint, ...]:
    """Joints of a body that moves in a plane: two translations and the angle about ``normal``, one of the three axes."""
    axes, given = np.eye(3), numbers(normal)
    k = int(np.argmax(np.abs(given))) if given is not None and given.shape == (3,) else 0
    if given is None or given.shape != (3,) or not np.allclose(given, axes[k]):
        raise ValueError(f"planar: normal must be one of the axes (1, 0, 0), (0, 1, 0), (0, 0, 1), got {shown(normal)}")
    first, second = tuple(axes[(k + 1) % 3]), tuple(axes[(k + 2) % 3])
    prefix = f"{name}_" if name else ""
    return Prismatic(first, name=f"{prefix}1"), Prismatic(second, name=f"{prefix}2"), Revolute(tuple(axes[k]), name=f"{prefix}angle")


# ------------------------------------------------------------------------------------------------------------------ bodies
@dataclass(frozen=True)
class Body:
    """A rigid body, connected to its parent by joints.

    name:         its name, one of a kind
    mass:         kg
    inertia:      (3,) moments about, or (3, 3) tensor of, the centre of mass along the axes of the body's frame, kg m^2; None: that of its
                  shapes as homogeneous solids, whose joint centre is the centre of mass, too, unless ``center`` is given
    center:       of mass, in the frame of the body (m); None: the joint centre of its shapes where ``inertia`` is None, else the origin
    joints:       a joint, or several one after the other; (): fixed to the parent
    parent:       name of the body it is connected to; None: the world
    position, orientation: of its frame in the frame of the parent, where all joints are at their reference
    shapes:       a `Shape` or several
    carried:      the part of its weight that something else carries, so that it is 1 of a body whose gravity is compensated
    """

    name: str
    mass: Number = 0.0
    inertia: Any = None
    center: Any = None
    joints: Any = Free()
    parent: str | None = None
    position: Vector = ZERO
    orientation: Vector = IDENTITY
    shapes: Any = ()
    carried: Number = 0.0


def several(x: Any) -> tuple:
    """One part, or a sequence of parts, as a tuple."""
    return tuple(x) if isinstance(x, Sequence) and not isinstance(x, str) else (x,)


def solid(shapes: Sequence[Shape], mass: Number) -> tuple[Any, Any]:
    """``(center (3,), inertia (3, 3))`` of homogeneous shapes of this ``mass`` together; overlaps count twice. NumPy, of what is known."""
    solids = [(shape, shape.solid()) for shape in shapes]
    solids = [(shape.position, shape.orientation, *found) for shape, found in solids if found is not None]
    if not solids:
        return None, None
    of, turned = (jnp, matrix) if any(map(is_traced, jax.tree.leaves((mass, solids)))) else (np, of_numbers)
    mass, solids = of.asarray(mass, float), [[of.asarray(x, float) for x in one] for one in solids]
    total = sum(volume for _, _, volume, _ in solids)
    center = sum(volume / total * position for position, _, volume, _ in solids)
    inertia = of.zeros((3, 3))
    for position, orientation, volume, squares in solids:
        R, r = turned(orientation), position - center
        parallel = of.dot(r, r) * of.eye(3) - r[:, None] * r[None, :]
        inertia = inertia + mass * volume / total * (R @ of.diag(squares) @ R.T + parallel)
    return center, inertia


# ------------------------------------------------------------------------------------------------------- between the bodies
@dataclass(frozen=True)
class Pair:
    """Two shapes, or all shapes of two bodies, that can touch, by name; the world is "world". What is None follows from the shapes.

    Drilling friction resists rotation about the normal, rolling friction that about the tangents (see `jaxnsd.sets`): moments of at most
    ``drilling`` and ``rolling``, lengths in m, times the normal force.
    """

    first: str
    second: str
    mu: Number = None
    e_N: Number = None
    e_F: Number = None
    drilling: Number = 0.0
    rolling: Number = 0.0


@dataclass(frozen=True)
class Connect:
    """A loop, closed by a ball joint: a point of the first body stays at a point of the second one (three bilateral constraints).

    Two, where all joints of the loop are parallel hinges, and sliders across them, whose directions are numbers when it is assembled.
    """

    first: str
    second: str
    position: Vector  # in the frame of the first body
    second_position: Vector = None  # in the frame of the second one; None: where the first point is at the reference configuration
    name: str = ""


@dataclass(frozen=True)
class Weld:
    """Two bodies that do not move against each other (six bilateral constraints): position and orientation of the second in the first.

    Three in the plane of a loop as that of `Connect`.
    """

    first: str
    second: str
    position: Vector = None  # None: as in the reference configuration
    orientation: Vector = None
    anchor: Vector = ZERO  # point of the second body, in its frame, where positions are compared
    name: str = ""


@dataclass(frozen=True)
class Couple:
    """A gear: coordinate of the first joint = polynomial in that of the second, both from their references (one bilateral constraint).

    Of several joints, as a fixed tendon connects them, it is the sum of their coordinates with these coefficients.
    """

    first: str | Sequence[str]
    second: str | Sequence[str] | None = None  # None: the first is held at the first coefficient
    polynomial: Vector = (0.0, 1.0, 0.0, 0.0, 0.0)
    name: str = ""
    first_coefficients: Vector = (1.0,)
    second_coefficients: Vector = (1.0,)


@dataclass(frozen=True)
class Spring:
    """A linear spring with a damper between a point of the first and a point of the second body."""

    first: str
    second: str
    stiffness: Number = 0.0  # N/m
    length: Number = 0.0  # m, without force; zero: the force is linear in the distance
    damping: Number = 0.0  # N s/m
    position: Vector = ZERO  # in the frame of the first body
    second_position: Vector = ZERO
    name: str = ""


@dataclass(frozen=True)
class Tendon:
    """A cord along joints or through sites, whose length l has limits, a spring, a damper or dry friction. It has no mass.

    name:          its name, one of a kind
    joints:        with one axis, by name: l is the sum of their coordinates times ``coefficients``, a number for each (None: ones). What is
                   in m and N here has the units of l then
    sites:         names: l is the length of the path from each to the next, in m; or several such sequences, branches between pulleys,
                   each of whose lengths is divided by its number of ``divisors`` (None: ones)
    limits:        (lower, upper) of l, each a unilateral contact without friction; None: there are none. Of a path through sites a lower
                   limit that is known to be zero, or less, is none: no path is shorter
    stiffness:     of its spring, N/m
    spring_length: l without force, or (shortest, longest) between which the spring is slack, m; None: l in the reference configuration
    damping:       N s/m
    dry_friction:  bound of its force, N
    armature:      inertia against a change of l, kg
    """

    name: str
    joints: str | Sequence[str] = ()
    coefficients: Vector = None
    sites: Sequence[str] | Sequence[Sequence[str]] = ()
    divisors: Vector = None
    limits: Any = None
    stiffness: Number = 0.0
    spring_length: Number = None
    damping: Number = 0.0
    dry_friction: Number = 0.0
    armature: Number = 0.0

    kind: ClassVar[str] = "tendon"


@dataclass(frozen=True)
class Motor:
    """Drives a joint with one axis by ``gear * F``, ``F = gain * control + offset + slope * gear * q + rate * gear * u``.

    A torque motor has gain 1; a position servo of stiffness k gain k and slope -k; a velocity servo of damping d gain d and rate -d.
    Several joints are driven by one motor, as by a fixed tendon, with names and a gear for each: then ``sum of gear * q`` is fed back. A
    ball joint takes three gears, a free joint six, along their velocities; of such joints only the velocity is fed back. Or it pulls at a
    ``tendon``, with one gear: then q is the length of that, and a positive force makes it longer.
    """

    joint: str | Sequence[str] = ()
    gear: Number | Sequence[Number] = 1.0
    gain: Number = 1.0
    offset: Number = 0.0
    slope: Number = 0.0
    rate: Number = 0.0
    control_limits: Any = None  # (lower, upper) of the control; None: there are none
    force_limits: Any = None  # (lower, upper) of F
    name: str = ""
    tendon: str | None = None


# ----------------------------------------------------------------------------------------------------------- what is measured
@dataclass(frozen=True)
class Site:
    """A frame fixed in a body, or in the world: a place for sensors. It has no mass, and nothing touches it.

    name:         its name, one of a kind
    body:         name of the body it is fixed in; "world"
    position, orientation: in the frame of the body
    volume:       a `Sphere`, `Capsule`, `Cylinder`, `Box` or `Ellipsoid` about the site, along its axes: where a touch sensor feels; None:
                  there is none
    """

    name: str
    body: str
    position: Vector = ZERO
    orientation: Vector = IDENTITY
    volume: Shape | None = None


@dataclass(frozen=True)
class Sensor:
    """Something that is measured, by a word of MJCF. What `Multibody.sensors` gives of each ``kind``:

    ============================================  ========================================================================================
    ``jointpos, jointvel``                        coordinate and velocity of a joint with one axis, rad or m, per s
    ``ballquat, ballangvel``                      quaternion (4,) and angular velocity (3,) of a ball joint, rad/s in the frame of the body
    ``actuatorpos, actuatorvel``                  of a motor: gear times coordinate, and velocity
    ``tendonpos, tendonvel``                      length of a tendon in m, and what it changes by
    ``framepos, framequat``                       position (3,) in m and quaternion (4,), with w >= 0, of a site or body
    ``framexaxis, frameyaxis, framezaxis``        its axes (3,)
    ``framelinvel, frameangvel``                  its velocity (3,) in m/s and angular velocity (3,) in rad/s
    ``velocimeter, gyro``                         the same two in its own frame, against the world
    ``touch``                                     sum of the normal forces on the body of a site in the site's volume, N
    ``subtreecom, subtreelinvel``                 centre of mass (3,) of a body and all that hangs on it, m, and its velocity, m/s
    ``clock``                                     t in s
    ============================================  ========================================================================================

    of:      name of the joint, motor, tendon, site or body; where a site and a body have one name, of the site: "body torso" is the body
    frame:   of kinds that begin with frame: the site or body as which a moving observer sees it; None: the world
    name:    "": such as "imu_gyro"
    cutoff:  what no number exceeds in size, but for quaternions and axes; 0: there is no bound
    """

    kind: str
    of: str = ""
    frame: str | None = None
    name: str = ""
    cutoff: Number = 0.0
