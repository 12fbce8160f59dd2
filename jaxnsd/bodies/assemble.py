"""From parts to a `Multibody`: what the names mean, which shapes can touch, and whether the numbers make sense."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..mechanics.laws import ImpactLaw, NewtonImpact
from ..native.jax_internals import is_traced, known_array
from ..programs.given import as_array, shown
from . import assembly_checks, forces, given, loops, pairs, parameters, parts, planes, prescribed, tendons
from .multibody import Multibody
from .parts import Body, Connect, Couple, Motor, Pair, Sensor, Shape, Site, Spring, Tendon, Weld, several
from .rotations import IDENTITY
from .sensors import KINDS, number_of
from .structure import SIZES, JointOf, SensorOf, ShapeOf, SiteOf, Structure, find
from .tendons import pulls, with_slack


def assemble(
    bodies: Sequence[Body],
    world: Any = (),
    *,
    gravity: Any = (0.0, 0.0, -9.81),
    contacts: Sequence[Pair] | str = "all",
    exclude: Sequence[tuple[str, str]] = (),
    mu: Any = 0.0,
    e_N: Any = 0.0,
    e_F: Any = 0.0,
    limit_restitution: Any = 0.0,
    loops: Sequence[Connect | Weld | Couple] = (),
    springs: Sequence[Spring] = (),
    motors: Sequence[Motor] = (),
    control: Any = None,
    medium: Any = None,
    plane: str | int | None = None,
    law: ImpactLaw = NewtonImpact(),  # noqa: B008
    sites: Sequence[Site] = (),
    sensors: Sequence[Sensor] = (),
    tendons: Sequence[Tendon] = (),
) -> Multibody:
    """A `Multibody` of these bodies.

    bodies:    in any order; a `Body` names its parent
    world:     a `Shape`, or several, that do not move
    gravity:   (3,) m/s^2
    contacts:  the pairs that can touch, a sequence of `Pair`; "all": every shape with every shape of another body, but for bodies that are
               connected by joints, or that do not move against each other, or as prescribed alone; "world": of these only those with a
               shape that does not move
    exclude:   pairs of names of bodies whose shapes do not touch
    mu, e_N, e_F: of pairs about which neither the pair nor one of its shapes says something. If both shapes say something it is the
               geometric mean of the two
    limit_restitution: of the limits of joints and tendons
    loops, springs, motors, tendons: see `Connect`, `Weld`, `Couple`, `Spring`, `Motor`, `Tendon`
    control:   of the motors: (n_m,) or None for zeros, `Rows`, or a function of (t, q, u) that returns (n_m,); with parameters to be
               differentiated a `jax.tree_util.Partial`
    medium:    `forces.Medium`; None: there is none
    plane:     "xy", "xz" or "yz": all motion is parallel to it, so that friction has one direction, and a box that is parallel to it four
               corners; None: in space
    law:       of impact and friction, see `mechanics.laws`; one that names a friction, or a restitution, says it for all contacts, so that
               the pairs must not
    sites, sensors: see `Site`, `Sensor`; no motion depends on them, but for sites of tendons

    Raises ValueError, TypeError or KeyError for parts that are no parts, names that are not there or twice, joints in a cycle, inertias of
    no body (not positive, or with a moment larger than the sum of the two others), NaN, pairs of kinds that have no gap function.
    """
    given_parts = (bodies, world, loops, springs, motors, sites, sensors, tendons)
    bodies, world, closed, springs, motors, sites, sensors, cords = map(several, given_parts)
    _check_kinds(bodies, world, closed, springs, motors, sites, sensors, cords, contacts)
    given.check_parts(bodies, contacts, world, closed, springs, motors, sites, sensors, cords)
    given.check_options(gravity, control, medium, law, mu=mu, e_N=e_N, e_F=e_F, limit_restitution=limit_restitution)
    for pair in exclude:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError(f"assemble: exclude must be pairs of names of bodies, got {shown(pair)}")
    bodies = _sorted([_complete(body) for body in bodies])
    connects, welds, couples = ([x for x in closed if isinstance(x, kind)] for kind in (Connect, Weld, Couple))
    structure, joint_parts, shape_parts = _structure(
        bodies, world, (connects, welds, couples), springs, motors, sites, sensors, cords, medium, plane
    )
    motions = [joint.motion for joint in joint_parts if getattr(joint, "motion", None) is not None]
    prescribed.check(structure, motions)
    chosen, materials = _pairs(structure, contacts, exclude, shape_parts, (mu, e_N, e_F))
    turning = _turning(structure, materials, law)
    structure = dataclasses.replace(structure, pairs=tuple(chosen), has=structure.has | turning)
    # What is known stays known under `jit`, too: planes of motion are found from it.
    with jax.ensure_compile_time_eval():
        made = Multibody(
            structure,
            gravity=as_array(parameters.vector(gravity, 3)),
            **parameters.of_bodies(bodies),
            **parameters.of_joints(structure, bodies, joint_parts, cords, limit_restitution),
            **parameters.of_shapes(shape_parts),
            **parameters.of_pairs(materials),
            **parameters.of_sites(sites, sensors),
            loops=_loops(connects, welds, couples),
            springs=parameters.of_springs(springs),
            motors=parameters.of_motors(motors, joint_parts, structure.joints),
            medium=medium,
            motions=tuple(map(_function, motions)),
            control=_control(control, len(motors), motors),
            law=law,
            tendons=parameters.of_tendons(cords),
        )
    made = with_slack(made, cords)
    assembly_checks.check(made)
    assembly_checks.check_materials(made)
    return planes.in_planes(assembly_checks.closed(planes.flattened(made), connects, welds))


# ------------------------------------------------------------------------------------------------------------- structure
def _structure(bodies, world, closed, springs, motors, sites, sensors, cords, medium, plane):
    """``(Structure without pairs, parts of its joints, parts of its shapes)``; ``closed``: ``(connects, welds, couples)``."""
    names = ("world", *(body.name for body in bodies))
    joints, joint_parts = _joints(bodies)
    shapes, shape_parts = _shapes(world, bodies)
    connects, welds, couples = closed

    def two(x):
        return find("body", x.first, names), find("body", x.second, names)

    structure = Structure(
        names[1:],
        tuple(0 if body.parent is None else names.index(body.parent) for body in bodies),
        joints,
        shapes,
        (),
        _limited(joints, joint_parts, cords),
        tuple(map(two, connects)),
        tuple(map(two, welds)),
        tuple(tuple(tuple(_axis(joints, name, "a coupling") for name in names) for names, _ in _sides(x)) for x in couples),
        tuple(map(two, springs)),
        tuple((_name_of(motor), _driven(joints, motor)) for motor in motors),
        _plane(plane),
        _has(bodies, joint_parts, medium, cords, springs, motors),
        sites=tuple(SiteOf(site.name, find("body", site.body, names), "" if site.volume is None else site.volume.kind) for site in sites),
        tendons=_tendons(cords, joints, sites),
        pulls=pulls(motors, cords),
    )
    _unique("site", [site.name for site in sites])
    structure = dataclasses.replace(structure, sensors=_sensors(structure, sensors))
    structure = dataclasses.replace(structure, dry=_dry(structure, joint_parts, cords))
    if not structure.layout.n_u:
        raise ValueError("assemble: at least one body must have a joint that moves, got none; give one of them joints=bodies.Free()")
    return structure, joint_parts, shape_parts


def _joints(bodies):
    """``(JointOf, ...)`` of all joints, and the parts they are made of."""
    joints, joint_parts = [], []
    for number, body in enumerate(bodies, 1):
        own = several(body.joints)
        for k, joint in enumerate(own):
            name = joint.name or (body.name if len(own) == 1 else f"{body.name}_{k + 1}")
            joints.append(JointOf(name, joint.kind, number, getattr(joint, "motion", None) is not None))
            joint_parts.append(joint)
    _unique("joint", [joint.name for joint in joints])
    return tuple(joints), joint_parts


def _shapes(world, bodies):
    """``(ShapeOf, ...)`` of all shapes, those of the world first, and the parts they are made of."""
    shapes, shape_parts = [], []
    for number, (name, own) in enumerate((("world", world), *((body.name, several(body.shapes)) for body in bodies))):
        for k, shape in enumerate(own):
            text = shape.name or (f"{name}_{shape.kind}" + (f"_{k + 1}" if len(own) > 1 else ""))
            points = len(shape.points) if isinstance(shape, parts.Points) else 0
            if isinstance(shape, parts.Points) and not points:
                raise ValueError(f"assemble: the shape {text!r} must have points, got none")
            shapes.append(ShapeOf(text, shape.kind, number, points))
            shape_parts.append(shape)
    _unique("shape", [shape.name for shape in shapes])
    return tuple(shapes), shape_parts


def _limited(joints, joint_parts, cords):
    """Numbers of the joints, and behind them of the tendons, with limits."""
    limited = tuple(j for j, joint in enumerate(joint_parts) if parameters.limits(joint) is not None)
    if driven := [joints[j].name for j in limited if joints[j].prescribed]:
        raise ValueError(f"assemble: a joint whose motion is prescribed must have no limits, which nothing could hold, got {driven[0]!r}")
    return limited + tuple(i for i, cord in enumerate(cords, len(joints)) if cord.limits is not None)


def _axis(joints, name, what):
    """Number of the joint of this name, whose one coordinate a coupling or a motor takes."""
    j = find("joint", name, [joint.name for joint in joints])
    if joints[j].kind not in ("hinge", "slide") or joints[j].prescribed:
        raise ValueError(f"assemble: {what} takes a revolute or prismatic joint whose motion is not prescribed, got {name!r}")
    return j


def _tendons(cords, joints, sites):
    """``(TendonOf, ...)``."""
    _unique("tendon", [cord.name for cord in cords])
    names = [site.name for site in sites]
    return tuple(tendons.named(cord, lambda j: _axis(joints, j, "a tendon"), lambda name: find("site", name, names)) for cord in cords)


def _driven(joints, motor):
    """Numbers of the joints that a motor drives; none of one that pulls at a tendon."""
    if bool(_names_of(motor.joint)) == (motor.tendon is not None):
        raise ValueError(f"assemble: a motor must have a joint or a tendon, got {motor.joint!r} and {motor.tendon!r}")
    if motor.tendon is not None and np.size(motor.gear) == 1:
        return ()
    if not isinstance(motor.joint, str) or np.ndim(motor.gear) == 0:
        found = tuple(_axis(joints, name, "a motor") for name in _names_of(motor.joint))
    else:
        found = (find("joint", motor.joint, [joint.name for joint in joints]),)
        if joints[found[0]].prescribed:
            raise ValueError(f"assemble: a motor takes a joint whose motion is not prescribed, got {motor.joint!r}")
        if joints[found[0]].kind in ("ball", "free") and _there(motor.slope):
            raise ValueError(f"assemble: a motor of a ball or free joint feeds back no coordinate, got a slope for {motor.joint!r}")
    count = sum(SIZES[joints[j].kind][1] for j in found) + (motor.tendon is not None)
    if np.size(motor.gear) != count:
        raise ValueError(f"assemble: the motor {_name_of(motor)!r} must have {count} gears, one for each velocity, got {motor.gear!r}")
    return found


def _sensors(structure, sensors):
    """``(SensorOf, ...)``."""
    found = []
    for sensor in sensors:
        name = sensor.name or "_".join(filter(None, (sensor.of, sensor.kind)))
        find("kind of sensor", sensor.kind, tuple(KINDS))
        of = number_of(structure, KINDS[sensor.kind].of, sensor.of)
        if sensor.frame is not None and not sensor.kind.startswith("frame"):
            raise ValueError(f"assemble: the sensor {name!r} must have no frame, as a {sensor.kind} has none, got {sensor.frame!r}")
        frame = 0 if sensor.frame is None else number_of(structure, KINDS[sensor.kind].of, sensor.frame)
        found.append(SensorOf(name, sensor.kind, of, frame))
    _unique("sensor", [sensor.name for sensor in found])
    return tuple(found)


def _has(bodies, joint_parts, medium, cords, springs, motors):
    """What of a model that few have is there, see `Structure`."""
    there = {
        "stiffness": any(_there(joint.stiffness) for joint in joint_parts),
        "turned armature": any(_there(joint.armature) for joint in joint_parts if joint.n_u > 1 and getattr(joint, "motion", None) is None),
        "medium": medium is not None,
        "spring damping": any(_there(spring.damping) for spring in springs),
        "motor slope": any(_there(motor.slope) for motor in motors),
        "motor rate": any(_there(motor.rate) for motor in motors),
        "carried": any(_there(body.carried) for body in bodies),
        "motor limits": any(getattr(joint, "motor_limits", None) is not None for joint in joint_parts),
    } | {f"tendon {law}": any(_there(getattr(cord, law)) for cord in cords) for law in ("stiffness", "damping", "armature")}
    return frozenset(name for name, is_there in there.items() if is_there)


def _dry(structure, joint_parts, cords):
    """Numbers of the velocities of the joints with dry friction, and behind them of the tendons."""
    found = []
    for j, (part, of) in enumerate(zip(joint_parts, structure.joints, strict=True)):
        if not of.prescribed and _there(part.dry_friction):
            first = int(structure.layout.u_at[j])
            found += range(first, first + part.n_u)
    return (*found, *(i for i, cord in enumerate(cords, structure.layout.n_u) if _there(cord.dry_friction)))


def _turning(structure, materials, law):
    """Kinds of friction of pairs that hold turning; in a plane nothing turns about a normal."""
    found = {name for k, name in ((3, "drilling"), (4, "rolling")) if any(_there(m[k]) for m in materials)}
    if found and getattr(law, "friction", None) is not None:
        raise ValueError(f"assemble: a law that names a friction says it for all contacts, so that pairs must not, got {sorted(found)}")
    return found - ({"drilling"} if structure.plane is not None else set())


# --------------------------------------------------------------------------------------------------------------- numbers


def _names_of(joints):
    """Names of one joint, of several, or of none."""
    return () if joints is None else (joints,) if isinstance(joints, str) else tuple(joints)


def _name_of(motor):
    return motor.name or motor.tendon or " and ".join(_names_of(motor.joint))


def _sides(couple):
    """``(names, coefficients)`` of the joints on both sides of a coupling."""
    sides = []
    for joints, numbers in ((couple.first, couple.first_coefficients), (couple.second, couple.second_coefficients)):
        names = _names_of(joints)
        if names and len(numbers) != len(names):
            raise ValueError(
                f"assemble: a coupling must have a coefficient for each joint of {', '.join(map(repr, names))}, got {numbers!r}"
            )
        sides.append((names, numbers if names else ()))
    return sides


def _there(x):
    """Whether a number is not known to be zero."""
    return is_traced(x) or bool(np.any(np.asarray(x) != 0))


def _function(function):
    """Of a tree that is a function, as a `Partial` is, the arrays are leaves; of others there are none."""
    return jax.tree_util.Partial(function) if jax.tree_util.all_leaves([function]) else function


def _control(control, n, motors):
    if control is None:
        return known_array(np.zeros(n))
    if callable(control) and not n:
        raise ValueError('assemble: control is given, and there is no motor that it is for; give some, as motors=[Motor("elbow")]')
    if isinstance(control, forces.Rows):
        if np.ndim(control.values) != 2 or np.shape(control.values)[1] != n:
            raise ValueError(f"assemble: rows of control must have shape (N, {n}), a column for each motor, got {np.shape(control.values)}")
        return control
    if callable(control):
        return _function(control)
    control = as_array(parameters.number(control))
    if control.shape != (n,):
        names = ", ".join(map(_name_of, motors))
        table = "; a row for each step is bodies.Rows(values, dt)" if control.shape[1:] == (n,) else ""
        raise ValueError(
            f"assemble: control must have shape ({n},), one number for each motor ({names or 'none'}), got {control.shape}{table}"
        )
    return control


# ----------------------------------------------------------------------------------------------------------------- parts
def _check_kinds(bodies, world, closed, springs, motors, sites, sensors, cords, contacts):
    """Raise TypeError for a part that is none, or one of something else."""
    for name, found, kinds in (
        ("bodies", bodies, Body),
        ("world", world, Shape),
        ("loops", closed, (Connect, Weld, Couple)),
        ("springs", springs, Spring),
        ("motors", motors, Motor),
        ("sites", sites, Site),
        ("sensors", sensors, Sensor),
        ("tendons", cords, Tendon),
    ):
        _are(name, found, kinds)
    for body in bodies:
        _are(f"joints of {body.name!r}", several(body.joints), parts.Joint)
        _are(f"shapes of {body.name!r}", several(body.shapes), Shape)
    if not isinstance(contacts, str):
        _are("contacts", several(contacts), Pair)


def _are(what, values, kind):
    for value in values:
        if not isinstance(value, kind):
            wanted = " or ".join(k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,)))
            hint = "; write its parentheses" if isinstance(value, type) else ""
            raise TypeError(f"assemble: {what} must be {wanted}, got {shown(value)}{hint}")


def _unique(kind, names):
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"assemble: names of {kind}s must be different, got {twice[0]!r} more than once; give each a name of its own")


def _complete(body):
    """A body with centre and inertia, of its shapes if it says none."""
    kinds = [joint.kind for joint in several(body.joints)]
    if "free" in kinds and (len(kinds) > 1 or body.parent not in (None, "world")):
        raise ValueError(f"assemble: {body.name!r} is free, so it must have no other joint and no parent, got {kinds} and {body.parent!r}")
    if body.name == "world":
        raise ValueError('assemble: a body must not have the name "world", which is that of what does not move')
    center, inertia = body.center, body.inertia
    if inertia is None:
        found, inertia = parts.solid(several(body.shapes), body.mass)
        center = found if center is None else center
        if inertia is None:
            if _there(body.mass):
                raise ValueError(
                    f"assemble: {body.name!r} has a mass, so it must have an inertia, got None and no solid shapes; give the moments (3,) "
                    "about its centre of mass, or shapes"
                )
            inertia = np.zeros((3, 3))
    parent = None if body.parent == "world" else body.parent
    return dataclasses.replace(body, center=parts.ZERO if center is None else center, inertia=inertia, parent=parent)


def _sorted(bodies):
    """Bodies in an order in which parents come first, which is kept where it is one."""
    names = [body.name for body in bodies]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"assemble: names of bodies must be different, got {twice[0]!r} more than once")
    for body in bodies:
        if body.parent is not None:
            find("body", body.parent, tuple(names))
    done, left = [], list(bodies)
    while left:
        ready = next((body for body in left if body.parent is None or body.parent in [d.name for d in done]), None)
        if ready is None:
            cycle = ", ".join(repr(body.name) for body in left)
            raise ValueError(
                f"assemble: joints must form a tree, got a cycle among {cycle}; let one of them have no parent, and close the loop by "
                "loops=[bodies.Connect(...)]"
            )
        done.append(ready)
        left.remove(ready)
    return done


def _plane(plane):
    if plane is None or (plane in (0, 1, 2) and not isinstance(plane, bool)):
        return plane
    found = {"yz": 0, "xz": 1, "xy": 2}.get("".join(sorted(str(plane))))
    if found is None:
        raise ValueError(f'assemble: plane must be "xy", "xz", "yz" or None, got {plane!r}')
    return found


# ----------------------------------------------------------------------------------------------------------------- pairs
def _pairs(structure, contacts, exclude, shape_parts, otherwise):
    """``(pairs of numbers of shapes, (mu, e_N, e_F, drilling, rolling) of each)``."""
    shapes, layout = structure.shapes, structure.layout
    names, body_names = tuple(shape.name for shape in shapes), ("world", *structure.bodies)
    # Where two bodies move against each other as prescribed alone no percussion does anything.
    gives_way = layout.moves[:, : layout.n_u]
    if isinstance(contacts, str):
        if contacts not in ("all", "world"):
            raise ValueError(f'assemble: contacts must be "all", "world" or pairs, got {contacts!r}')
        parents = (0, *structure.parents)
        # What is fixed to a body that moves counts as a part of it.
        whole = [next(b for b, moved in enumerate(layout.moves) if np.array_equal(moved, own)) for own in layout.moves]

        def hangs_on(one, two):
            return parents[one] == two or (whole[two] and whole[parents[whole[one]]] == whole[two])

        left_out = {frozenset(find("body", name, body_names) for name in pair) for pair in exclude}
        moves = layout.moves.any(axis=1)
        found = []
        for a, first in enumerate(shapes):
            for b in range(a + 1, len(shapes)):
                second = shapes[b]
                one, two = first.body, second.body
                fixed = not moves[one], not moves[two]
                joined = 0 not in (one, two) and (hangs_on(one, two) or hangs_on(two, one))
                still = np.array_equal(gives_way[one], gives_way[two])
                if one == two or still or joined or frozenset((one, two)) in left_out or (contacts == "world" and not any(fixed)):
                    continue
                if {first.kind, second.kind} == {"plane"}:
                    continue
                found.append((a, b, Pair(first.name, second.name)))
    else:
        found = []
        for pair in several(contacts):
            sides = []
            for name in (pair.first, pair.second):
                own = [s for s, shape in enumerate(shapes) if body_names[shape.body] == name]
                sides.append([names.index(name)] if name in names else own or [find("shape or body", name, names + body_names)])
            found += [(a, b, pair) for a in sides[0] for b in sides[1]]
        _check_pairs([(a, b) for a, b, _ in found], names, [gives_way[shape.body] for shape in shapes])
    chosen, materials = [], []
    for a, b, pair in found:
        if pairs.kernel(structure, (a, b)) is None:
            kinds = f"{shapes[a].kind} and {shapes[b].kind}"
            raise ValueError(
                f"assemble: the shapes {names[a]!r} and {names[b]!r} must be of kinds between which there is a gap, got {kinds}; name the "
                "pairs that can touch by contacts=[bodies.Pair(...)], or stand in for a shape by spheres, capsules or points"
            )
        chosen.append((a, b))
        materials.append(
            [
                _material(getattr(pair, name), [getattr(shape_parts[s], name) for s in (a, b)], default)
                for name, default in zip(("mu", "e_N", "e_F"), otherwise, strict=True)
            ]
            + [pair.drilling, pair.rolling]
        )
    return chosen, materials


def _check_pairs(found, names, moves):
    known = set()
    for a, b in found:
        if np.array_equal(moves[a], moves[b]):
            raise ValueError(
                f"assemble: shapes of a pair must move against each other, but for what is prescribed, got {names[a]!r} and {names[b]!r}"
            )
        if frozenset((a, b)) in known:
            raise ValueError(f"assemble: a pair must be given once, got {names[a]!r} and {names[b]!r} more than once")
        known.add(frozenset((a, b)))


def _material(of_pair, of_shapes, otherwise):
    """What the pair says; else the geometric mean of what its shapes say, or what one of them says; else the default."""
    if of_pair is not None:
        return of_pair
    said = [parameters.number(x) for x in of_shapes if x is not None]
    if len(said) < 2:
        return said[0] if said else otherwise
    square = said[0] * said[1]
    if not isinstance(square, jax.Array):
        return np.sqrt(square)
    return jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1.0)), 0.0)


# ----------------------------------------------------------------------------------------------------------------- loops
def _loops(connects, welds, couples):
    none = parts.ZERO
    return loops.Loops(
        parameters.stack([x.position for x in connects], 3),
        parameters.stack([none if x.second_position is None else x.second_position for x in connects], 3),
        parameters.stack([none if x.position is None else x.position for x in welds], 3),
        parameters.stack([x.anchor for x in welds], 3),
        parameters.stack([IDENTITY if x.orientation is None else x.orientation for x in welds], 4),
        parameters.stack([_padded(x.polynomial) for x in couples], 5),
        parameters.stack([c for x in couples for _, coefficients in _sides(x) for c in coefficients]),
    )


def _padded(polynomial):
    return [*polynomial, *[0.0] * (5 - len(polynomial))]


# ---------------------------------------------------------------------------------------------------------------- checks
