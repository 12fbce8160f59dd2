"""Models in MJCF and URDF, compiled by the package ``mujoco`` (the extra ``[mjcf]``), as systems with hard contact."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..programs.given import flag, number, shown
from . import parts
from . import repair as repairs
from .compiled import in_package, mujoco_for, read, refusals
from .importer import Importer
from .multibody import Multibody


def from_mjcf(
    model: str | Path,
    *,
    e_N: Any = 0.0,
    e_F: Any = 0.0,
    limit_restitution: Any = 0.0,
    contacts: str = "all",
    condim: int = 6,
    motors: parts.Motor | Sequence[parts.Motor] = (),
    control: Any = None,
    motion: Any = None,
    plane: str | int | None = "auto",
    strict: bool = False,
) -> Multibody:
    """The `Multibody` of a model in MJCF, a path or a string of XML. Coordinates and velocities are MuJoCo's qpos and qvel.

    e_N, e_F:  restitution of all contacts between shapes, which MuJoCo has none of; friction is that of the geoms (the larger of the two,
               or that of the geom with the higher priority; none where condim is 1)
    limit_restitution: of the limits of joints and tendons, which are unilateral contacts without friction
    contacts:  "all" the pairs that MuJoCo would test; "apart": but for shapes of one robot that lie in each other in the reference
               configuration, as hulls of neighbouring links may; "world": those with a shape that does not move; "none"
    condim:    the most dimensions that a contact has of those that the model says, MuJoCo's word: 6 with drilling (torsional) and rolling
               friction, which make steps dearer; 4 without rolling, 3 without drilling, 1 without friction. Each of the three frictions has
               a bound of its own, where the cone of MuJoCo is one for all
    motors:    what drives joints or tendons beside the actuators of the model, behind which they come: ``[Motor("hip"), Motor("knee")]``
    control:   of the motors, see `assemble`, or of all that MuJoCo has a control for, in its order, of which those of the motors are taken;
               a string: that of the keyframe of this name; default: zeros
    motion:    {name of a body: function of t}, of mocap bodies and others that are fixed to the world: position (3,) of its frame in m, or
               that and a quaternion (4,), twice differentiable, see `Free`; without one a body stays where it is
    plane:     "auto": where all joints move parallel to one of the planes of the world, and all normals are in it, friction has one
               direction; else see `assemble`
    strict:    raise ValueError for what cannot be taken, instead of leaving it out with a warning

    Taken are bodies, joints with springs, dampers, armature and limits, all geoms that are planes, spheres, capsules, boxes, cylinders or
    ellipsoids, convex hulls of meshes, pairs and exclusions, tendons along joints or through sites and pulleys, with limits, springs,
    dampers and dry friction, but for those that wrap around geoms, the equalities connect, weld, joint and (of fixed ones) tendon,
    actuators without state on joints and tendons with a fixed gain and an affine bias (motors, position and velocity servos), limits of
    their forces on a joint, gravity and its compensation, and a medium with drag on the boxes of inertia; the flags and groups that
    disable some of these, and the friction that overrides that of all contacts. What softens contact in MuJoCo (solref, solimp, margin,
    impratio, also as overrides) has no meaning here. What cannot be taken is named in one warning, and in `Multibody.left_out`. Sites and
    sensors are there by their names (see `Multibody.sensors`); a geom, a camera or axes of inertia that a sensor is of have a site of a
    name such as "geom foot". Sensors that are not read are in `Multibody.sensors_left_out`, without a warning. Keyframes are states
    to start from, by ``initial_state(key)``, and controls to hold them, by ``control=key`` or `Multibody.control_of`.

    Raises ImportError without the package ``mujoco``; ValueError for a file that it refuses.
    """
    flag("from_mjcf: strict", strict)
    mujoco = mujoco_for("from_mjcf")
    with refusals("from_mjcf"):
        compiled = read("from_mjcf", model, mujoco.MjModel.from_xml_string, mujoco.MjModel.from_xml_path)
    importer = Importer(mujoco, compiled, "from_mjcf", condim, _source(model), motion)
    return importer.system((e_N, e_F), limit_restitution, contacts, control, plane, strict, motors)


def from_mujoco(
    model: Any,
    *,
    e_N: Any = 0.0,
    e_F: Any = 0.0,
    limit_restitution: Any = 0.0,
    contacts: str = "all",
    condim: int = 6,
    motors: parts.Motor | Sequence[parts.Motor] = (),
    control: Any = None,
    motion: Any = None,
    plane: str | int | None = "auto",
    strict: bool = False,
) -> Multibody:
    """The `Multibody` of a model that is there already: a ``mujoco.MjModel``, as it is now, or a ``mujoco.MjSpec``, which is compiled.

    So scenes come in that other packages put together in Python: a model of dm_control (``physics.model``) or of MuJoCo Playground
    (``env.mj_model``), ``env.unwrapped.model`` of gymnasium. It is only read. The rest is as in `from_mjcf`.

    Raises ImportError without the package ``mujoco``; TypeError for what is neither; ValueError for a spec that MuJoCo refuses.
    """
    flag("from_mujoco: strict", strict)
    mujoco = mujoco_for("from_mujoco")
    compiled = getattr(model, "ptr", model)  # dm_control wraps it
    if isinstance(compiled, mujoco.MjSpec):
        with refusals("from_mujoco"):
            compiled = compiled.copy().compile()
    if not isinstance(compiled, mujoco.MjModel):
        raise TypeError(
            f"from_mujoco: model must be a mujoco.MjModel or a mujoco.MjSpec, got {shown(model)}; a file or a string of XML is for "
            "from_mjcf"
        )
    importer = Importer(mujoco, compiled, "from_mujoco", condim, motion=motion)
    return importer.system((e_N, e_F), limit_restitution, contacts, control, plane, strict, motors)


def from_urdf(
    model: str | Path,
    *,
    floating: bool = False,
    floor: bool = False,
    mu: Any = 1.0,
    e_N: Any = 0.0,
    e_F: Any = 0.0,
    limit_restitution: Any = 0.0,
    contacts: str = "all",
    motors: parts.Motor | Sequence[parts.Motor] = (),
    control: Any = None,
    plane: str | int | None = "auto",
    strict: bool = False,
    repair: bool = False,
) -> Multibody:
    """The `Multibody` of a model in URDF, a path or a string of XML.

    floating:  whether the root link is free, with the first seven coordinates; else it is fixed to the world
    floor:     whether there is a plane z = 0, to which URDF has no word
    mu:        friction coefficient of all contacts, about which URDF says nothing
    motors:    what drives the joints, of which URDF says nothing: ``[Motor(name) for name in ("shoulder", "elbow")]``
    repair:    mend inertias that no body can have, by the least change of their principal moments, and give links that move without mass
               or moments of inertia a thousandth of those of the lightest link (1 g and 1e-7 kg m^2 where no link has both), with one
               warning that says what was mended; without, they are refused. A file that is taken without is not changed
    The rest is as in `from_mjcf`. Meshes are looked for beside the file, those of a ``package://`` in the folders above it. Visual geometry
    is not taken, nor are the bounds of efforts and velocities, which are a controller's. Links behind fixed joints become parts of the
    links before them. Links that a joint connects do not touch each other, the root link that is fixed to the world and the first links
    that move on it neither. Transmissions, and whatever else URDF's own words do not describe (Gazebo's, say, or Bullet's), are named as
    left out, as are links that move without an inertia of their own: MuJoCo gives them that of their collision shapes at the density of
    water.

    Raises ImportError without the package ``mujoco``; ValueError for a file that it refuses.
    """
    for name, value in (("floating", floating), ("floor", floor), ("strict", strict), ("repair", repair)):
        flag(f"from_urdf: {name}", value)
    number("from_urdf: mu", mu)
    mujoco = mujoco_for("from_urdf")
    with refusals("from_urdf"):
        spec = read("from_urdf", model, mujoco.MjSpec.from_string, mujoco.MjSpec.from_file)
        for mesh in spec.meshes:
            mesh.file = in_package(mesh.file, spec.modelfiledir)
        if floating:
            _float(spec)
        if floor:
            spec.worldbody.add_geom(name="floor", type=mujoco.mjtGeom.mjGEOM_PLANE, size=[1, 1, 1])
        compiled, mended = repairs.compiled(spec) if repair else (spec.compile(), "")
    if mended:
        warnings.warn(f"from_urdf: repaired: {mended}", UserWarning, stacklevel=2)
    compiled.geom_friction[:, 0] = mu
    importer = Importer(mujoco, compiled, "from_urdf", source=_source(model))
    importer.without(model, floating)
    return importer.system((e_N, e_F), limit_restitution, contacts, control, plane, strict, motors)


def _source(model):
    """Where a model is found again, from another folder too; of a string of XML itself."""
    return str(model) if str(model).lstrip().startswith("<") else str(Path(model).resolve())


def _float(spec):
    """Put the root link on a free joint."""
    roots = [body for body in spec.bodies if body.parent == spec.worldbody]
    if len(roots) != 1:
        raise ValueError(f"from_urdf: floating takes a model with one root link that has an inertia, got {len(roots)} bodies in the world")
    roots[0].add_freejoint()
