"""Tendons: their lengths along joints or through sites, what those change by, and what springs, dampers and inertias make of them.

A length is a sum of terms: of a fixed tendon its coordinates times coefficients, of one through sites the stretches between two of them,
over the divisor of their branch. It changes by ``J u`` with the moments J, so that a pull F is the generalized force ``J^T F``.
"""

import dataclasses
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..native.jax_internals import is_traced
from ..numerics import linalg
from ..programs.pytrees import pytree
from . import dynamics, kinematics, parts
from .lists import pick, sums
from .rotations import length, normalized, turn
from .structure import TendonOf, find


@pytree
class Tendons:
    """Numbers of the tendons, ``n`` of them; what they go along is in the `Structure`. Limits and dry friction are with those of joints."""

    coefficients: Any  # of the joints, one tendon after the other, m/rad or one
    divisors: Any  # of the branches, one tendon after the other
    stiffness: Any  # (n,) N/m
    spring_length: Any  # (n, 2) between which the spring is slack, m
    damping: Any  # (n,) N s/m
    armature: Any  # (n,) inertia against a change of length, kg


# --------------------------------------------------------------------------------------------------------------- from parts
def branches(part):
    """Names of the sites of each branch of a `parts.Tendon`."""
    sites = part.sites
    if isinstance(sites, str) or all(isinstance(one, str) for one in sites):
        return (parts.several(sites),) if len(sites) else ()
    return tuple(map(parts.several, sites))


def divisors(part):
    """A number for each branch."""
    return (1.0,) * len(branches(part)) if part.divisors is None else part.divisors


def coefficients(part):
    """A number for each joint."""
    return (1.0,) * len(parts.several(part.joints)) if part.coefficients is None else part.coefficients


def named(part, joint, site):
    """`TendonOf` of a part; ``joint`` and ``site`` find the numbers of names.

    Raises ValueError for a part that goes along joints and sites, or neither, and where numbers and names are not as many.
    """
    joints, paths, name = parts.several(part.joints), branches(part), part.name
    if bool(joints) == bool(paths):
        raise ValueError(f"assemble: the tendon {name!r} must have joints or sites, got {joints} and {paths}")
    for what, numbers, count in (("coefficient", coefficients(part), len(joints)), ("divisor", divisors(part), len(paths))):
        if len(numbers) != count:
            of = "joint" if what == "coefficient" else "branch"
            raise ValueError(f"assemble: the tendon {name!r} must have a {what} for each {of}, {count} of them, got {len(numbers)}")
    if any(len(path) < 2 for path in paths):
        raise ValueError(f"assemble: each branch of the tendon {name!r} must go through two sites or more, got {paths}")
    # No path is shorter than nothing: a row that says so would stop what passes through the place of a site.
    lower = None if part.limits is None else part.limits[0]
    shortest = bool(joints) or lower is None or is_traced(lower) or float(lower) > 0
    return TendonOf(name, tuple(map(joint, joints)), tuple(tuple(map(site, path)) for path in paths), shortest)


def pulls(motors, cords):
    """Motors that pull at tendons, both by number."""
    names = tuple(cord.name for cord in cords)
    return tuple((k, find("tendon", motor.tendon, names)) for k, motor in enumerate(motors) if motor.tendon is not None)


def with_slack(system, cords):
    """The system with springs of tendons slack in the reference configuration, where their lengths are not given."""
    not_given = np.array([x.spring_length is None for x in cords], bool)
    if "tendon stiffness" not in system.structure.has or not not_given.any():
        return system
    reference = system.tendon_length(0.0, system.initial_state()[0])
    slack = jnp.where(not_given[:, None], reference[:, None], system.tendons.spring_length)
    return dataclasses.replace(system, tendons=dataclasses.replace(system.tendons, spring_length=slack))


# ---------------------------------------------------------------------------------------------------------------- lengths
def _terms(structure, which):
    """Of these tendons ``(joints, stretches)``: (row, joint, place of the coefficient), and (row, two sites, place of the divisor)."""
    joints, stretches, row = [], [], {i: k for k, i in enumerate(which)}
    at_joint = at_branch = 0
    for i, tendon in enumerate(structure.tendons):
        if i in row:
            joints += [(row[i], j, at_joint + k) for k, j in enumerate(tendon.joints)]
            for k, path in enumerate(tendon.branches):
                stretches += [(row[i], a, b, at_branch + k) for a, b in itertools.pairwise(path)]
        at_joint, at_branch = at_joint + len(tendon.joints), at_branch + len(tendon.branches)
    return joints, stretches


def _spans(system, places, stretches):
    """``(bodies, points)`` of the first and of the second sites, and ``(spans (n, 3) between them, divisors (n,))``."""
    structure, ends = system.structure, []
    _, first, second, divided = (list(part) for part in zip(*stretches, strict=True))
    for sites in (first, second):
        bodies = np.array([structure.sites[k].body for k in sites], int)
        ends.append((bodies, pick(places.x, bodies) + turn(pick(places.R, bodies), pick(system.site_position, sites))))
    return ends, ends[1][1] - ends[0][1], pick(system.tendons.divisors, divided)


def _all(structure, which):
    return range(len(structure.tendons)) if which is None else which


def _summed(rows, terms, n):
    """Sums (n, k) of the terms (m, k) of each row."""
    return sums(np.arange(n)[:, None] == np.array(rows, int)[None], terms)


def lengths(system, places, q, which=None):
    """Lengths (n,) in m of these tendons, by their numbers, or of all; q may have what is prescribed behind it."""
    which = _all(system.structure, which)
    (joints, stretches), terms = _terms(system.structure, which), []
    if joints:
        _, of, at = (list(part) for part in zip(*joints, strict=True))
        terms.append(pick(system.tendons.coefficients, at) * pick(q, system._layout.q_at[of]))
    if stretches:
        _, span, divided = _spans(system, places, stretches)
        terms.append(length(span) / divided)
    return _summed([term[0] for term in joints + stretches], jnp.concatenate(terms)[:, None], len(which))[:, 0]


def moments(system, places, which=None):
    """Derivatives (n, n_s) of the lengths of these tendons, or of all, by the velocities."""
    structure, layout = system.structure, system._layout
    which = _all(structure, which)
    joints, stretches = _terms(structure, which)
    # What is between two points that do not move against each other keeps its length, to the last bit.
    moves = [layout.moves[site.body] for site in structure.sites]
    stretches, terms = [term for term in stretches if not np.array_equal(moves[term[1]], moves[term[2]])], []
    if joints:
        _, of, at = (list(part) for part in zip(*joints, strict=True))
        unit = jnp.asarray(np.eye(layout.n_s)[layout.u_at[of]], places.x.dtype)
        terms.append(pick(system.tendons.coefficients, at)[:, None] * unit)
    if stretches:
        ends, span, divided = _spans(system, places, stretches)
        # Of two points that meet the direction is MuJoCo's.
        along = normalized(span, length(span), jnp.zeros_like(span) + jnp.asarray([[1.0, 0.0, 0.0]], span.dtype))
        first, second = (dynamics.columns_at(layout, places, *end, along[:, None])[:, 0] for end in ends)
        terms.append((second - first) / divided[:, None])
    if not terms:
        return jnp.zeros((len(which), layout.n_s), places.x.dtype)
    return _summed([term[0] for term in joints + stretches], jnp.concatenate(terms), len(which))


def rates(system, t, u, places, which=None):
    """What these lengths, or all, change by, (n,) in m/s."""
    all_u, _ = kinematics.velocities(system, t, u)
    return jnp.sum(moments(system, places, which) * all_u[None], axis=1)


def pulled(system, J, pull):
    """Generalized forces (n_u,) of pulls (n,) that lengthen tendons with these moments."""
    return jnp.sum(J[:, : system._layout.n_u] * pull[:, None], axis=0)


# ------------------------------------------------------------------------------------------------------ springs and dampers
def _stretched(system, places, q):
    """By what springs are longer than their longest slack length, or, negative, shorter than the shortest one, (n,)."""
    long, slack = lengths(system, places, q), system.tendons.spring_length
    return jnp.maximum(long - slack[:, 1], 0) + jnp.minimum(long - slack[:, 0], 0)


def potential(system, places, q):
    """Potential energy of the springs."""
    return 0.5 * jnp.sum(system.tendons.stiffness * _stretched(system, places, q) ** 2)


def of_springs(system, q, places):
    """Generalized forces (n_u,) of the springs."""
    return pulled(system, moments(system, places), -system.tendons.stiffness * _stretched(system, places, q))


def of_dampers(system, t, u, places):
    """Generalized forces (n_u,) of the dampers."""
    J = moments(system, places)
    all_u, _ = kinematics.velocities(system, t, u)
    return pulled(system, J, -system.tendons.damping * jnp.sum(J * all_u[None], axis=1))


# ------------------------------------------------------------------------------------------------------------------ limits
def apart(structure, limits):
    """Rows of limits (see `multibody._limits`) of joints, and those of tendons, with the numbers of these tendons."""
    n_j = len(structure.joints)
    return [row for row in limits if row[1] < n_j], [(k, j - n_j, side) for k, j, side in limits if j >= n_j]


def _sides(sides):
    """Tendons with limits, the place among them of each row's, and its sign: -1 of upper limits."""
    which = list(dict.fromkeys(i for _, i, _ in sides))
    return which, [which.index(i) for _, i, _ in sides], np.array([1.0 if side == 0 else -1.0 for *_, side in sides])


def limit_gaps(system, places, q, sides):
    """Gaps (n,) of lengths from their limits."""
    which, rows, sign = _sides(sides)
    numbers, upper = pick(system.limits, [k for k, *_ in sides]), np.array([side for *_, side in sides])
    limit = jnp.where(upper == 1, numbers[:, 1], numbers[:, 0])
    return jnp.asarray(sign, q.dtype) * (pick(lengths(system, places, q, which), rows) - limit)


def limit_rows(system, places, sides):
    """Derivatives (n, n_s) of these gaps by the velocities."""
    which, rows, sign = _sides(sides)
    return jnp.asarray(sign, places.x.dtype)[:, None] * pick(moments(system, places, which), rows)


def outside(system):
    """Whether a number has no meaning: an inertia or a divisor that is negative, slack lengths the wrong way round, or a lower limit of a
    path that had none when it was assembled.
    """
    structure, numbers, n_j = system.structure, system.tendons, len(system.structure.joints)
    without = [k for k, j in enumerate(structure.limits) if j >= n_j and not structure.tendons[j - n_j].shortest]
    crossed = numbers.spring_length[:, 0] > numbers.spring_length[:, 1]
    bad = jnp.any(numbers.armature < 0) | jnp.any(numbers.divisors <= 0) | jnp.any(crossed)
    return bad | jnp.any(pick(system.limits, without)[:, 0] > 0)


# ------------------------------------------------------------------------------------------------------------ dry friction
def dry(structure):
    """Numbers of the tendons with dry friction."""
    return [k - structure.layout.n_u for k in structure.dry if k >= structure.layout.n_u]


# ---------------------------------------------------------------------------------------------------------------- inertia
def mass_matrix(system, places):
    """What the inertias of tendons add to the mass matrix, (n_u, n_u): J^T A J."""
    J = moments(system, places)[:, : system._layout.n_u]
    return linalg.matmul((system.tendons.armature[:, None] * J).T, J)


def momentum(system, t, u, places):
    """What they add to the momentum, (n_u,): J^T A dl/dt."""
    return pulled(system, moments(system, places), system.tendons.armature * rates(system, t, u, places))


def kinetic_energy(system, t, u, places):
    """What they add to the kinetic energy."""
    return 0.5 * jnp.sum(system.tendons.armature * rates(system, t, u, places) ** 2)


def _moments_rate(system, t, q, u):
    """``(J, dJ/dt)`` along the motion, (n, n_s) each."""
    t = jnp.asarray(t, q.dtype)
    return jax.jvp(lambda t, q: moments(system, system._unseen.places(t, q)), (t, q), (jnp.ones_like(t), system.q_dot(t, q, u)))


def momentum_rate(system, t, q, u):
    """What they add to `Multibody.b`: dJ/dt^T A dl/dt."""
    J, rate = _moments_rate(system, t, q, u)
    all_u, _ = kinematics.velocities(system, t, u)
    return pulled(system, rate, system.tendons.armature * jnp.sum(J * all_u[None], axis=1))


def bias(system, t, q, u):
    """What they add to the bias that `Multibody.h` subtracts: J^T A (dJ/dt u), and what prescribed velocities change by."""
    J, rate = _moments_rate(system, t, q, u)
    all_u, acceleration = kinematics.velocities(system, t, u)
    second = jnp.sum(rate * all_u[None], axis=1)
    if acceleration is not None:
        second = second + jnp.sum(J * acceleration[None], axis=1)
    return pulled(system, J, system.tendons.armature * second)


# -------------------------------------------------------------------------------------------------------- models of MuJoCo
#: By how much a length that is held at a limit may be beyond it, as numbers are typed.
TYPED = 1e-9

#: Laws of a tendon in a model, each with the flags that disable it.
LAWS = {
    "stiffness": ("spring", "passive"),
    "damping": ("damper", "passive"),
    "frictionloss": ("frictionloss", "constraint"),
    "limited": ("limit", "constraint"),
    "armature": (),
    "actfrclimited": (),
}


def along(importer, i):
    """``(joints, coefficients)`` of a fixed tendon, ``(sites by branch, divisors)`` of one through sites, each else None; or both None."""
    m, wrap = importer.m, importer.mujoco.mjtWrap
    joint, pulley, site = map(int, (wrap.mjWRAP_JOINT, wrap.mjWRAP_PULLEY, wrap.mjWRAP_SITE))
    rows = range(m.tendon_adr[i], m.tendon_adr[i] + m.tendon_num[i])
    kinds = {int(m.wrap_type[w]) for w in rows}
    if kinds == {joint}:
        return (tuple(importer.joint_names[m.wrap_objid[w]] for w in rows), tuple(float(m.wrap_prm[w]) for w in rows)), None
    if not kinds <= {pulley, site}:
        return None, None
    names, paths, divided = importer.names("site", range(m.nsite)), [[]], [1.0]
    for w in rows:
        if int(m.wrap_type[w]) == pulley:
            paths.append([])
            divided.append(float(m.wrap_prm[w]))
        else:
            paths[-1].append(names[m.wrap_objid[w]])
    # A site alone between two pulleys is no path.
    kept = [k for k, path in enumerate(paths) if len(path) > 1]
    return None, (tuple(tuple(paths[k]) for k in kept), tuple(divided[k] for k in kept))


def _held(importer):
    """Lengths, by the numbers of tendons, that equalities hold."""
    m, kind = importer.m, int(importer.mujoco.mjtEq.mjEQ_TENDON)
    if importer.off("equality", "constraint"):
        return {}
    holding = [(k, int(m.eq_obj1id[k])) for k in range(m.neq) if m.eq_active0[k] and m.eq_type[k] == kind and m.eq_obj2id[k] < 0]
    return {i: float(m.tendon_length0[i] + m.eq_data[k, 0]) for k, i in holding}


def read(importer):
    """The `parts.Tendon` of a compiled model, by their numbers; what is not taken is noted as left out."""
    m, found, names, held = importer.m, {}, importer.names("tendon", range(importer.m.ntendon)), _held(importer)

    def said(what, i):
        return bool(np.any(getattr(m, f"tendon_{what}", np.zeros(m.ntendon))[i])) and not importer.off(*LAWS.get(what, ()))

    for i, name in enumerate(names):
        fixed, spatial = along(importer, i)
        springs, dampers = (not importer.off(flag, "passive") for flag in ("spring", "damper"))
        more = {
            "nonlinear spring": springs and said("stiffnesspoly", i),
            "yield of the spring": springs and said("springyield", i),
            "nonlinear damper": dampers and said("dampingpoly", i),
            "bound of the motors' forces": m.nu and said("actfrclimited", i),
        }
        if not (fixed or (spatial and spatial[0])):
            if any(said(law, i) for law in LAWS) or any(more.values()):
                importer.leave_out(f"the tendon {name!r}, which wraps around geometry")
            continue
        # What limits and dry friction take of the force that holds it moves nothing, and no law says how much that is.
        free, (low, high) = not fixed or i not in held, map(float, m.tendon_range[i])
        more["limit, beyond which an equality holds it,"] = not free and said("limited", i) and not low - TYPED <= held[i] <= high + TYPED
        for what, there in more.items():
            if there:
                importer.leave_out(f"{what} of the tendon {name!r}")
        found[i] = parts.Tendon(
            name,
            *(fixed or ((), None)),
            *(spatial or ((), None)),
            limits=(low, high) if said("limited", i) and free else None,
            stiffness=float(m.tendon_stiffness[i]) * said("stiffness", i),
            spring_length=tuple(map(float, m.tendon_lengthspring[i])),
            damping=float(m.tendon_damping[i]) * said("damping", i),
            dry_friction=float(m.tendon_frictionloss[i]) * (said("frictionloss", i) and free),
            armature=float(m.tendon_armature[i]) if said("armature", i) else 0.0,
        )
    return found
