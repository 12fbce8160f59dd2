"""Actuators of a compiled model as motors, and their controls."""

import dataclasses

import jax.numpy as jnp
import numpy as np

from ..native.jax_internals import known_array
from ..programs.given import numbers
from . import forces, parts
from .compiled import there


def read(importer):
    """``(motors, places of their controls in MuJoCo's)``: functions of control, coordinate and velocity of joints."""
    m, out, take = importer.m, [], []
    # Actuators of several controls or several forces are there from version 4 on.
    n = getattr(m, "nactuator", m.nu)
    at_control, at_force = (getattr(m, f"actuator_{what}adr", np.arange(n)) for what in ("ctrl", "out"))
    single = np.all([getattr(m, f"actuator_{what}num", np.ones(n)) == 1 for what in ("ctrl", "out")], axis=0)
    own = getattr(m, "actuator_plugin", np.full(n, -1)) < 0
    for i in range(n):
        name, group, c = importer.name("actuator", i), int(m.actuator_group[i]), int(at_control[i])
        # These are of the joint as much as of the actuator: there also where it is disabled.
        if there(m, "actuator_armature")[i]:
            importer.leave_out(f"armature of the actuator {name!r}")
        if not importer.off("damper", "passive") and np.any([there(m, f"actuator_damping{what}")[i].any() for what in ("", "poly")]):
            importer.leave_out(f"damping of the actuator {name!r}")
        if importer.off("actuation") or (0 <= group < 31 and getattr(m.opt, "disableactuator", 0) >> group & 1):
            continue
        plain = m.actuator_dyntype[i] == 0 and m.actuator_gaintype[i] == 0 and m.actuator_biastype[i] in (0, 1)
        offset, slope, rate = map(float, m.actuator_biasprm[i, :3] if m.actuator_biastype[i] else (0, 0, 0))
        joints, gear, tendon = _driven(importer, i, m.actuator_gear[int(at_force[i])], slope)
        if not ((joints or tendon) and plain and single[i] and own[i]):
            why = (
                "has a state, several controls or a gain that is not fixed"
                if joints or tendon
                else "acts neither on joints nor on a tendon"
            )
            importer.leave_out(f"the actuator {name!r}, which {why}")
            continue
        if there(m, "actuator_delay")[i]:
            importer.leave_out(f"delay of the actuator {name!r}")
        take.append(c)
        out.append(
            parts.Motor(
                joints,
                gear,
                float(m.actuator_gainprm[i, 0]),
                offset,
                slope,
                rate,
                tuple(m.actuator_ctrlrange[c]) if m.actuator_ctrllimited[c] and not importer.off("clampctrl") else None,
                tuple(m.actuator_forcerange[i]) if m.actuator_forcelimited[i] else None,
                name,
                tendon,
            )
        )
    return out, take


def _driven(importer, i, gear, slope):
    """``(joints, gears, tendon)`` of an actuator: the tendon of one through sites, else None; neither of what is not taken."""
    m, kind, k = importer.m, int(importer.m.actuator_trntype[i]), int(importer.m.actuator_trnid[i, 0])
    joint, in_parent, tendon = (int(getattr(importer.mujoco.mjtTrn, f"mjTRN_{name}")) for name in ("JOINT", "JOINTINPARENT", "TENDON"))
    if kind in (joint, in_parent) and m.jnt_type[k] in (2, 3):
        return importer.joint_names[k], float(gear[0]), None
    # The rotation of a ball is no sum of coordinates.
    if kind == joint and not slope:
        return importer.joint_names[k], tuple(map(float, gear[: (6, 3)[m.jnt_type[k]]])), None
    if kind == tendon and importer.fixed(k):
        joints, coefficients = importer.fixed(k)
        return joints, tuple(float(gear[0]) * c for c in coefficients), None
    return (), float(gear[0]), importer.tendons[k].name if kind == tendon and k in importer.tendons else None


@dataclasses.dataclass(frozen=True)
class Chosen:
    """Of the ``n`` controls, those that MuJoCo has and those of added motors, those of what is taken; of other shapes all of them."""

    take: tuple[int, ...]
    n: int

    def __call__(self, control, t, q, u):
        """Of a function, where it is evaluated."""
        value = jnp.asarray(control(t, q, u), q.dtype)
        return self._of(value) if value.shape == (self.n,) else value

    def of_numbers(self, control):
        """Of numbers, and of rows of them; a function, and what has another shape, is returned as it is."""
        if isinstance(control, forces.Rows):
            rows = jnp.shape(control.values)[1:] == (self.n,)
            return dataclasses.replace(control, values=self._of(control.values)) if rows else control
        numbers = control is not None and not callable(control) and np.shape(control) == (self.n,)
        return self._of(control) if numbers else control

    def _of(self, values):
        take, found = np.array(self.take, int), numbers(values)
        return known_array(found[..., take]) if isinstance(found, np.ndarray) else jnp.asarray(values)[..., take]
