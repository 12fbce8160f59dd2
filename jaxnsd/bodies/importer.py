"""A compiled model of MuJoCo becomes a `Multibody`, and what cannot is named."""

import dataclasses
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from ..programs.given import number
from . import actuators, forces, lists, measured, pairs, parts, prescribed, tendons
from .assemble import assemble
from .compiled import GEOMS, in_frame, shape, there
from .rotations import IDENTITY, of_numbers, quaternion
from .structure import named

#: Words of URDF, by the word that they stand in.
URDF = {
    "robot": ("link", "joint", "material", "mujoco"),
    "link": ("inertial", "visual", "collision"),
    "joint": ("parent", "child", "origin", "axis", "limit", "dynamics", "mimic", "calibration", "safety_controller"),
    "collision": ("origin", "geometry"),
}
#: Shapes lie in each other from this part of the mean size of bodies on; below it they touch.
TOUCHING = 1e-6

#: What MuJoCo calls a model that has no name.
UNNAMED = "MuJoCo Model"

#: What counts as no motion out of a plane.
FLAT = 1e-9


class Importer:
    """Parts of a compiled model, and what of it is left out."""

    def __init__(self, mujoco, model, caller, condim=6, source=None, motion=None):
        if condim not in (1, 3, 4, 6):
            raise ValueError(f"{caller}: condim must be 1, 3, 4 or 6, got {condim!r}")
        self.mujoco, self.m, self.caller, self.condim, self.left_out = mujoco, model, caller, condim, []
        self.source = source
        self.body_names = ["world", *self.names("body", range(1, model.nbody))]
        self.joint_names = self.names("joint", range(model.njnt))
        self.geom_names = self.names("geom", range(model.ngeom))
        self.motion = prescribed.by_name(caller, motion or {}, model, self.body_names)

    def names(self, kind, numbers):
        """Names of parts of a kind, no two alike."""
        names = [self.name(kind, i) for i in numbers]
        if len(set(names)) < len(names):
            names = [name if names.count(name) == 1 else f"{name}_{k}" for k, name in enumerate(names)]
        return names

    def name(self, kind, i):
        """Name in the model; of a nameless part one that says where it is."""
        m = self.m
        name = self.mujoco.mj_id2name(m, getattr(self.mujoco.mjtObj, f"mjOBJ_{kind.upper()}"), i)
        if name:
            return name
        if kind == "geom":
            return f"{self.body_names[m.geom_bodyid[i]]}_{GEOMS[m.geom_type[i]]}_{i}"
        if kind == "joint":
            return f"{self.body_names[m.jnt_bodyid[i]]}_joint_{i}"
        return f"{kind}_{i}"

    def model_name(self):
        """That which the model has, else that of its file."""
        name = bytes(self.m.names).split(b"\0", 1)[0].decode(errors="replace")
        if name != UNNAMED:
            return name
        return "" if self.source is None or self.source.lstrip().startswith("<") else Path(self.source).stem

    def leave_out(self, what):
        """Note what is not taken."""
        self.left_out.append(what)

    def without(self, model, floating):
        """Note what of a URDF MuJoCo does not read."""
        from xml.etree import ElementTree  # takes as long to load as all of jaxnsd.bodies

        text = str(model)
        text = text.encode() if text.lstrip().startswith("<") else Path(text).read_bytes()
        try:
            # MuJoCo's parser minds neither what is before the declaration nor what is behind the last element.
            root = ElementTree.fromstring(text[: text.rfind(b">") + 1].strip())
        except ElementTree.ParseError as error:
            self.leave_out(f"what MuJoCo does not read of a file that is no proper XML ({error})")
            return
        found = {}

        def look(element, owner=None):
            for part in element:
                name = owner or part.get("name") or part.get("reference") or "nameless"
                if part.tag not in URDF[element.tag]:
                    found.setdefault(part.tag, []).append(repr(name))
                elif part.tag in URDF:
                    look(part, name)

        look(root)
        for tag, names in found.items():
            self.leave_out(f"<{tag}>: {_listed(names)}")
        joints = {joint.find("child").get("link"): joint for joint in root.findall("joint")}

        def moves(link):
            joint = joints.get(link)
            return floating if joint is None else joint.get("type") != "fixed" or moves(joint.find("parent").get("link"))

        without = [link for link in root.findall("link") if link.find("inertial") is None and link.find("collision") is not None]
        guessed = [repr(name) for link in without if moves(name := link.get("name"))]
        if guessed:
            self.leave_out(f"the word of links without <inertial> that they have no mass, in place of 1000 kg/m^3: {_listed(guessed)}")
        mimics = [repr(joint.get("name")) for joint in root.iter("joint") if joint.find("mimic") is not None]
        # Older versions do not know the word.
        if len(mimics) > np.sum(self.m.eq_type == int(self.mujoco.mjtEq.mjEQ_JOINT)):
            self.leave_out(f"<mimic> of joints: {_listed(mimics)}")

    def off(self, *flags):
        """Whether one of these flags is disabled; no version of MuJoCo has them all."""
        bits = self.mujoco.mjtDisableBit
        return any(bool(self.m.opt.disableflags & int(getattr(bits, f"mjDSBL_{flag.upper()}", 0))) for flag in flags)

    @property
    def impassive(self):
        """Whether there are no passive forces at all, those of the medium included: so it is in MuJoCo without springs and dampers."""
        return self.off("passive") or (self.off("spring") and self.off("damper"))

    def system(self, restitution, limit_restitution, contacts, control, plane, strict, added=()):
        """The `Multibody`; ``added``: motors beside those of the model."""
        if contacts not in ("all", "apart", "world", "none"):
            raise ValueError(f'{self.caller}: contacts must be "all", "apart", "world" or "none", got {contacts!r}')
        for name, value in (*zip(("e_N", "e_F"), restitution, strict=True), ("limit_restitution", limit_restitution)):
            number(f"{self.caller}: {name}", value)
        m = self.m
        if not m.nv:
            hint = "; with floating=True its root link is free" if self.caller == "from_urdf" else ""
            raise ValueError(f"{self.caller}: a model must have a joint that moves, got none{hint}")
        chosen, materials = [], []
        if contacts != "none" and not self.off("contact", "constraint"):
            chosen, materials = self.pairs(contacts)
        touching = sorted({geom for pair in chosen for geom in pair})
        shapes = {geom: self.shape(geom) for geom in touching}
        bodies = [self.body(b, [shapes[g] for g in touching if m.geom_bodyid[g] == b]) for b in range(1, m.nbody)]
        self.tendons = tendons.read(self)
        motors, take = actuators.read(self)
        added = list(added) if isinstance(added, list | tuple) else [added]
        motors = [*motors, *added]
        if m.nu and not motors and callable(control):
            control = None  # those that it is for are left out, as the warning says
        loops = self.loops()
        self.rest()
        sites, sensors, sensors_left_out = measured.read(self, motors)
        gravity = np.zeros(3) if self.off("gravity") else m.opt.gravity
        n = m.nu + len(added)
        chosen_controls, keyframes = actuators.Chosen((*take, *range(m.nu, n)), n), self.keyframes(take, len(added))

        system = assemble(
            bodies,
            [shapes[g] for g in touching if m.geom_bodyid[g] == 0],
            gravity=tuple(gravity),
            contacts=[
                parts.Pair(self.geom_names[a], self.geom_names[b], mu, *restitution, *arms)
                for (a, b), (mu, *arms) in zip(chosen, materials, strict=True)
            ],
            limit_restitution=limit_restitution,
            loops=loops,
            motors=motors,
            control=keyframes[named(keyframes, control, "control")][3] if isinstance(control, str) else chosen_controls.of_numbers(control),
            medium=self.medium(),
            plane=self.plane(chosen) if plane == "auto" else plane,
            sites=sites,
            sensors=sensors,
            tendons=list(self.tendons.values()),
        )
        if callable(system.control) and len(take) < m.nu:
            system = dataclasses.replace(system, control=jax.tree_util.Partial(chosen_controls, system.control))
        if self.left_out:
            kinds = lists.grouped(self.left_out)
            text = f"{self.caller}: not taken: {lists.enumerated(kinds, 'kinds', '; ')}"
            if len(kinds) < len(self.left_out):
                text += " (left_out has all names)"
            if strict:
                raise ValueError(f"{text}. Take them out of the model, or leave out strict=True")
            warnings.warn(text, UserWarning, stacklevel=3)
        more = {"left_out": tuple(self.left_out), "sensors_left_out": sensors_left_out, "keyframes": keyframes, "source": self.source}
        more["name"] = self.model_name()
        return dataclasses.replace(system, structure=dataclasses.replace(system.structure, **more))

    def keyframes(self, take, added):
        """Names, coordinates, velocities, and controls of the motors, of the states that the model has.

        take: places of the controls; added: number of motors that the model does not have, with a control of zero
        """
        m, kind = self.m, self.mujoco.mjtObj.mjOBJ_KEY
        names = [self.mujoco.mj_id2name(m, kind, k) or "" for k in range(m.nkey)]
        numbers = m.key_qpos, m.key_qvel, np.pad(m.key_ctrl[:, np.array(take, int)], ((0, 0), (0, added)))
        return tuple(zip(names, *(map(tuple, x.tolist()) for x in numbers), strict=True))

    def plane(self, chosen):
        """Axis of the world across which nothing moves and no contact points; None: there is none.

        All hinges are parallel to it and all sliders across it, as they are at the reference, so they stay so. Of two shapes one is a plane
        that is parallel to it, or both are symmetric about one plane across it.
        """
        m = self.m
        if np.any(m.jnt_type < 2) or self.motion:
            return None
        data = self.mujoco.MjData(m)
        self.mujoco.mj_kinematics(m, data)
        for k in range(3):
            along = np.abs(data.xaxis[:, k])
            if np.any(np.abs(along - (m.jnt_type == 3)) > FLAT):
                continue

            def across(g, k=k):
                """Where the shape's plane of symmetry is; None: it has none."""
                cosines = np.abs(data.geom_xmat[g].reshape(3, 3)[k])
                kind = GEOMS[m.geom_type[g]]
                straight = {"sphere": True, "capsule": cosines[2] < FLAT, "cylinder": cosines[2] < FLAT}
                return data.geom_xpos[g, k] if straight.get(kind, cosines.max() > 1 - FLAT and kind != "mesh") else None

            flat = True
            for pair in chosen:
                planes = [g for g in pair if GEOMS[m.geom_type[g]] == "plane"]
                if planes:
                    flat &= abs(data.geom_xmat[planes[0]].reshape(3, 3)[k, 2]) < FLAT
                else:
                    a, b = map(across, pair)
                    flat &= a is not None and b is not None and abs(a - b) < FLAT
            if flat:
                return k
        return None

    # ------------------------------------------------------------------------------------------------------------- bodies
    def body(self, b, shapes):
        """A body with its joints."""
        m = self.m
        center, principal = self.frame_of_inertia(b)
        R = of_numbers(principal)
        first, count = m.body_jntadr[b], m.body_jntnum[b]
        parent = m.body_parentid[b]
        joints = [self.joint(j) for j in range(first, first + count)]
        if b in self.motion:
            joints.append(parts.Free(motion=self.motion[b], name=f"{self.body_names[b]}_motion"))
        return parts.Body(
            self.body_names[b],
            mass=float(m.body_mass[b]),
            inertia=R @ np.diag(m.body_inertia[b]) @ R.T,
            center=tuple(center),
            joints=tuple(joints),
            parent=self.body_names[parent] if parent else None,
            position=tuple(m.body_pos[b]),
            orientation=tuple(m.body_quat[b]),
            shapes=tuple(shapes),
            carried=0.0 if self.impassive else float(m.body_gravcomp[b]),
        )

    def frame_of_inertia(self, b):
        """Centre of mass and principal axes, in the frame of the body."""
        own = np.zeros(3), np.array(IDENTITY), None, None
        return in_frame(self.m.body_sameframe[b], self.m.body_ipos[b], self.m.body_iquat[b], own)

    def frame_of_shape(self, g):
        """Position and orientation of a geom, in the frame of its body."""
        m, b = self.m, self.m.geom_bodyid[g]
        own = np.zeros(3), np.array(IDENTITY), *self.frame_of_inertia(b)
        return in_frame(m.geom_sameframe[g], m.geom_pos[g], m.geom_quat[g], own)

    def joint(self, j):
        """A joint with its spring, damper, armature and limits."""
        m, name = self.m, self.joint_names[j]
        kind, q, u = m.jnt_type[j], m.jnt_qposadr[j], m.jnt_dofadr[j]
        n = (6, 3, 1, 1)[kind]
        springs, dampers = (not self.off(flag, "passive") for flag in ("spring", "damper"))
        if springs and np.any(there(m, "jnt_stiffnesspoly")[j]):
            self.leave_out(f"nonlinear spring of the joint {name!r}")
        if springs and np.any(there(m, "jnt_springyield")[j]):
            self.leave_out(f"yield of the spring of the joint {name!r}")
        if dampers and np.any(there(m, "dof_dampingpoly")[u : u + n]):
            self.leave_out(f"nonlinear damper of the joint {name!r}")
        motor_limits = tuple(m.jnt_actfrcrange[j]) if m.nu and there(m, "jnt_actfrclimited")[j] else None
        if motor_limits and there(m, "jnt_actgravcomp")[j] and np.any(m.body_gravcomp):
            self.leave_out(f"compensation of gravity by the actuators of the joint {name!r}, taken as beyond their limit")
        damping = m.dof_damping[u : u + n] * dampers
        dry_friction = m.dof_frictionloss[u : u + n] * (not self.off("frictionloss", "constraint"))
        common = {
            "name": name,
            "stiffness": float(m.jnt_stiffness[j]) * springs,
            "damping": tuple(damping) if n > 1 else float(damping[0]),
            "armature": tuple(m.dof_armature[u : u + n]) if n > 1 else float(m.dof_armature[u]),
            "dry_friction": tuple(dry_friction) if n > 1 else float(dry_friction[0]),
        }
        limited = m.jnt_limited[j] and not self.off("limit", "constraint")
        if kind == 0:
            return parts.Free(**common)
        if kind == 1:
            limit = float(m.jnt_range[j, 1]) if limited else None
            return parts.Spherical(tuple(m.jnt_pos[j]), rest=tuple(m.qpos_spring[q : q + 4]), limit=limit, **common)
        return (parts.Prismatic if kind == 2 else parts.Revolute)(
            tuple(m.jnt_axis[j]),
            tuple(m.jnt_pos[j]),
            reference=float(m.qpos0[q]),
            rest=float(m.qpos_spring[q]),
            limits=tuple(m.jnt_range[j]) if limited else None,
            motor_limits=motor_limits,
            **common,
        )

    # ------------------------------------------------------------------------------------------------------------- shapes
    def shape(self, g):
        """A geom; its size is in MuJoCo's half lengths."""
        m, kind = self.m, GEOMS[self.m.geom_type[g]]
        position, orientation = self.frame_of_shape(g)
        common = {"name": self.geom_names[g], "position": tuple(position), "orientation": tuple(orientation)}
        if kind == "mesh":
            return parts.Points(self.hull(m.geom_dataid[g]), **common)
        return shape(kind, m.geom_size[g], **common)

    def hull(self, mesh):
        """Corners (k, 3) of the convex hull of a mesh."""
        m = self.m
        first, count = m.mesh_vertadr[mesh], m.mesh_vertnum[mesh]
        points = np.array(m.mesh_vert[first : first + count], float)
        graph = m.mesh_graphadr[mesh]
        if graph >= 0:
            n = m.mesh_graph[graph]
            points = points[m.mesh_graph[graph + 2 + n : graph + 2 + 2 * n]]
        return np.unique(points, axis=0)

    def overlapping(self):
        """Pairs of geoms of one tree of bodies that lie in each other in the reference configuration, by MuJoCo's contacts there."""
        m, data = self.m, self.mujoco.MjData(self.m)
        self.mujoco.mj_forward(m, data)
        deep, found = data.contact.dist < -TOUCHING * m.stat.meansize, set()
        for pair in data.contact.geom[deep]:
            a, b = sorted(map(int, pair))
            roots = {int(m.body_rootid[m.geom_bodyid[g]]) for g in (a, b) if not self.of_base(g)}
            if len(roots) == 1 and 0 not in roots:
                found.add((a, b))
        return found

    def pairs(self, which):
        """``(pairs of geoms, coefficients of sliding, drilling and rolling friction)``: those that MuJoCo would test, by its rules."""
        m = self.m
        filter_parents = not self.off("filterparent")
        excluded = {(s >> 16, s & 0xFFFF) for s in map(int, m.exclude_signature)}
        weld = m.body_weldid
        # Bodies of motion capture are none of the world's for MuJoCo, but stay where they are all the same.
        moves = np.zeros(m.nbody, bool)
        for body in range(1, m.nbody):
            moves[body] = moves[m.body_parentid[body]] or m.body_dofnum[body] > 0
        found, sticky = {}, set()
        for a in range(m.ngeom):
            for b in range(a + 1, m.ngeom):
                one, two = int(m.geom_bodyid[a]), int(m.geom_bodyid[b])
                if not (m.geom_contype[a] & m.geom_conaffinity[b] or m.geom_contype[b] & m.geom_conaffinity[a]):
                    continue
                w, v = weld[one], weld[two]
                if w == v or (one, two) in excluded or (two, one) in excluded:
                    continue
                above = weld[m.body_parentid[w]], weld[m.body_parentid[v]]
                # What is fixed to the world touches what moves on it; but the base of a URDF, which has no planes, is a link as others are.
                links = (w or self.of_base(a)) and (v or self.of_base(b))
                if filter_parents and links and (w == above[1] or v == above[0]):
                    continue
                found[a, b] = self.friction(a, b)
        overrides = bool(m.opt.enableflags & int(self.mujoco.mjtEnableBit.mjENBL_OVERRIDE))
        for k in range(m.npair):
            a, b = sorted((int(m.pair_geom1[k]), int(m.pair_geom2[k])))
            if weld[m.geom_bodyid[a]] == weld[m.geom_bodyid[b]]:
                continue
            found[a, b] = self.of_dim(int(m.pair_dim[k]), m.pair_friction[k])
            if np.any(there(m, "pair_adhesion")[k]):
                sticky.add((a, b))
            if not overrides and _anisotropic(m.pair_friction[k], found[a, b]):
                self.leave_out(f"anisotropic friction between {self.geom_names[a]!r} and {self.geom_names[b]!r}, taken as isotropic")
        chosen, materials, none = [], [], {}
        overlapping = self.overlapping() if which == "apart" else ()
        for (a, b), mu in found.items():
            moving = [bool(moves[m.geom_bodyid[g]]) for g in (a, b)]
            if not any(moving) or (which == "world" and all(moving)) or (a, b) in overlapping:
                continue
            kinds = [GEOMS[m.geom_type[g]] for g in (a, b)]
            named = tuple(sorted(("points" if kind == "mesh" else kind for kind in kinds), key=_order))
            if named not in pairs.KERNELS:
                none.setdefault(" and ".join(kinds), []).append(f"{self.geom_names[a]!r} and {self.geom_names[b]!r}")
                continue
            chosen.append((a, b))
            if (a, b) in sticky:
                self.leave_out(f"adhesion between {self.geom_names[a]!r} and {self.geom_names[b]!r}")
            materials.append(tuple(map(float, mu)))
        for kinds, names in none.items():
            self.leave_out(f"contact of {kinds}: {_listed(names)}")
        for g in sorted({g for pair in chosen for g in pair}):
            for attribute, what in (("geom_adhesion", "adhesion"), ("geom_surfacevel", "velocity of the surface")):
                if np.any(there(m, attribute)[g]):
                    self.leave_out(f"{what} of the geom {self.geom_names[g]!r}")
        if overrides and any(_anisotropic(m.opt.o_friction, mu) for mu in materials):
            self.leave_out("anisotropic friction that overrides that of all contacts, taken as isotropic")
        return chosen, materials

    def of_base(self, g):
        """Whether a geom that does not move is of a link of a URDF."""
        return self.caller == "from_urdf" and GEOMS[self.m.geom_type[g]] != "plane"

    def friction(self, a, b):
        """Of two geoms: the larger coefficients, or those of the geom with the higher priority."""
        m, order = self.m, self.m.geom_priority[a] - self.m.geom_priority[b]
        mu, dim = m.geom_friction[[a, b]], m.geom_condim[[a, b]]
        mu, dim = (mu.max(axis=0), dim.max()) if not order else (mu[int(order < 0)], dim[int(order < 0)])
        return self.of_dim(dim, mu[[0, 0, 1, 2, 2]])

    def of_dim(self, dim, mu):
        """Sliding, drilling and rolling friction of a contact of this many dimensions; of all contacts, where it overrides theirs."""
        if self.m.opt.enableflags & int(self.mujoco.mjtEnableBit.mjENBL_OVERRIDE):
            mu = self.m.opt.o_friction
        return tuple(np.where(min(dim, self.condim) >= np.array([3, 4, 6]), mu[[0, 2, 3]], 0.0))

    # ------------------------------------------------------------------------------------------------------ what else there is
    def loops(self):
        """Equalities as constraints."""
        m, eq, out = self.m, self.mujoco.mjtEq, []
        # Whole numbers: a member of the enumeration does not equal a NumPy integer, only the other way round.
        connect, weld, joint, tendon = map(int, (eq.mjEQ_CONNECT, eq.mjEQ_WELD, eq.mjEQ_JOINT, eq.mjEQ_TENDON))
        if self.off("equality", "constraint"):
            return out
        for k in range(m.neq):
            kind, data, name = int(m.eq_type[k]), m.eq_data[k], self.name("equality", k)
            if not m.eq_active0[k]:
                continue
            on_bodies = int(m.eq_objtype[k]) == int(self.mujoco.mjtObj.mjOBJ_BODY)
            one, two = int(m.eq_obj1id[k]), int(m.eq_obj2id[k])
            if kind in (connect, weld):
                points = data[:3], data[3:6]
                frames = [np.zeros(3), np.zeros(3)], [np.eye(3), np.eye(3)]
                if not on_bodies:
                    # Sites: frames of their own in their bodies.
                    frames = [m.site_pos[one], m.site_pos[two]], [of_numbers(m.site_quat[s]) for s in (one, two)]
                    one, two = (int(m.site_bodyid[s]) for s in (one, two))
                names = self.body_names[one], self.body_names[two]
                if kind == connect:
                    if not on_bodies:
                        points = np.zeros(3), np.zeros(3)
                    first, second = (x + R @ p for x, R, p in zip(*frames, points, strict=True))
                    out.append(parts.Connect(*names, tuple(first), tuple(second), name))
                else:
                    if on_bodies:
                        out.append(parts.Weld(*names, tuple(data[3:6]), tuple(data[6:10]), tuple(data[:3]), name))
                    else:
                        orientation = quaternion(frames[1][0] @ frames[1][1].T)
                        out.append(parts.Weld(*names, tuple(frames[0][0]), tuple(orientation), tuple(frames[0][1]), name))
            elif kind == joint:
                second = self.joint_names[two] if two >= 0 else None
                out.append(parts.Couple(self.joint_names[one], second, tuple(data[:5]), name=name))
            elif kind == tendon and all(self.fixed(side) for side in (one, two) if side >= 0):
                first, second = self.fixed(one), self.fixed(two) if two >= 0 else (None, ())
                out.append(parts.Couple(first[0], second[0], tuple(data[:5]), name, first[1], second[1]))
            else:
                self.leave_out(f"the equality {name!r}")
        return out

    def fixed(self, tendon):
        """``(joints, coefficients)`` of a fixed tendon; None for one through points."""
        return tendons.along(self, tendon)[0]

    def medium(self):
        """The medium, if it is denser than a vacuum, or viscous."""
        m = self.m
        if not (m.opt.density or m.opt.viscosity) or self.impassive:
            return None
        mass = np.maximum(m.body_mass[1:], 1e-15)[:, None]
        I = m.body_inertia[1:]  # noqa: E741
        edges = np.sqrt(np.maximum(6 * (I.sum(axis=1, keepdims=True) - 2 * I) / mass, 1e-15 * 6))
        edges = np.where(m.body_mass[1:, None] < 1e-15, 0.0, edges)
        principal = np.stack([self.frame_of_inertia(b)[1] for b in range(1, m.nbody)])
        numbers = (m.opt.density, m.opt.viscosity, m.opt.wind, principal, edges)
        return forces.Medium(*(jnp.asarray(x, float) for x in numbers))

    def rest(self):
        """Note what else there is and is not taken."""
        m = self.m
        self.left_out += prescribed.elsewhere(m, self.body_names, self.motion)
        for name, what in (("nflex", "deformable bodies (flex)"), ("nplugin", "plugins"), ("nhfield", "height fields")):
            if getattr(m, name, 0):
                self.leave_out(what)
        if (m.opt.density or m.opt.viscosity) and not self.impassive and np.any(m.geom_fluid[:, 0] > 0):
            self.leave_out("the ellipsoid model of drag, in whose place is that of the boxes of inertia")


def _anisotropic(given, taken):
    """Whether MuJoCo's five coefficients differ between the two directions of sliding, or of rolling, as far as it is taken."""
    return bool((taken[0] and given[0] != given[1]) or (taken[2] and given[3] != given[4]))


def _listed(names):
    """The first three of these names, and how many more there are."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more}"


def _order(kind):
    return pairs.ORDER.index(kind) if kind in pairs.ORDER else len(pairs.ORDER)
