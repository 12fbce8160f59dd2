"""Checks of a system and of the state that a run starts from, before tracing: what can be known of both, and whether they fit together.

Values are checked where they are known; under `jit`, `vmap` and `grad` only shapes and dtypes are.
"""

import collections.abc
import dataclasses
import warnings
import weakref

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .. import contact
from ..mechanics import laws, signatures
from ..mechanics.linear_system import LinearSystem, diagonal
from ..mechanics.system import CONTACT_DATA, System
from ..native.jax_internals import known_array
from ..programs import runs
from ..programs.given import shown
from ..programs.jitted import jit
from ..schemes.base import on_position_level
from . import step_length
from .checks import known

#: An initial state is refused if it violates a gap, a constraint or a velocity by more than a step of the run can by itself, plus this
#: part of the size of what is compared, for what was typed with so many digits; in float32 round-off is more.
TYPED = 1e-6

#: Schemes that hold gaps and constraints on position level leave neither drift nor penetration, and make of a violation a velocity
#: ``violation / dt``: to them a gap, or a constraint, may be violated by this part of what others may have made of it. For a gap it is
#: what a published initial state of four digits needs (woodpecker: 2e-3 at dt = 1e-3 s, 2e-2 at 1e-4 s).
POSITION_LEVEL_GAP, POSITION_LEVEL_CONSTRAINT = 0.1, 1e-3

#: Numbers of an initial state that a refusal shows.
SHOWN = 12

#: Further contacts that penetrate which a refusal names.
OTHERS = 5

#: A function counts as affine if its second difference is below this multiple of the machine precision, relative to its values.
AFFINE = 1e4

#: Of which class, and which of its fields, it was said that they make no friction.
_told_frictionless = weakref.WeakKeyDictionary()


def system(system, scheme, t0, t1, dt, q0, u0, own=False):
    """Check a system at its initial state, and that the scheme takes it; ``own``: the state is one that the scheme has made."""
    if isinstance(system, type) and issubclass(system, System):
        raise TypeError(f"simulate: system must be an instance, got the class {system.__name__}; write {system.__name__}(...)")
    if not isinstance(system, System):
        raise TypeError(f"simulate: system must be an instance of a subclass of jaxnsd.System, got {shown(system)}")
    name = type(system).__name__
    if jax.tree_util.all_leaves([system]):
        raise TypeError(f"simulate: class {name} is not registered as a pytree; decorate it with @jaxnsd.system")
    _statics(system, name)
    _leaves(system, name, q0.dtype)
    _law(system, name)
    if sentence := system._refuses(q0, u0):
        raise ValueError(f"simulate: {name} {sentence}")
    if sentence := system._misshapen():
        raise ValueError(f"{name}.{sentence}")
    # What varies over the devices of a `shard_map`, as u alone may do, is of no concern in a check.
    shapes = jax.eval_shape(lambda *args: args, system, q0, u0)
    shapes, q, u = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=x.weak_type), shapes)
    leaves, structure = jax.tree.flatten(shapes)
    signatures.check(structure, tuple(leaves), q, u)
    reason = scheme.refuse(system, t0, q0, u0)
    if reason:
        raise ValueError(f"simulate: {scheme.name}() does not take {name}: {reason}")
    _contact_data(system, name)
    if known(*jax.tree.leaves(system), t0, q0, u0):
        if not own:
            _values(system, name, scheme, t0, t1, dt, q0, u0)
        with jax.ensure_compile_time_eval():
            if known(dt):
                scheme.check(system, dt)
            advice = scheme.advise(system, t0, q0)
        if advice:
            warnings.warn(advice, stacklevel=4)


def _statics(system, name):
    for field in dataclasses.fields(system):
        value = getattr(system, field.name)
        if field.metadata.get("static") and not isinstance(value, collections.abc.Hashable):
            raise TypeError(
                f"{name}.{field.name}, declared with jaxnsd.static(), must be hashable, got {shown(value)}; use a number or a tuple"
            )


def _leaves(system, name, dtype):
    for field in CONTACT_DATA:
        if getattr(system, field) is None:
            raise TypeError(f"{name}.{field} must be a number or an array, got None; leave it out for 0")
    for field in dataclasses.fields(system):
        # None is no leaf: what is said to be a number was meant to be one.
        if getattr(system, field.name) is None and field.type in (float, "float") and isinstance(field.default, float):
            raise TypeError(f"{name}.{field.name} must be a number or an array, got None; leave it out for {field.default}")
    for path, leaf in jax.tree_util.tree_leaves_with_path(system):
        field = f"{name}{jax.tree_util.keystr(path)}"
        if isinstance(leaf, bool) or not isinstance(leaf, (int, float, jax.Array, np.ndarray, np.generic)):
            raise TypeError(f"{field} must be a number or an array, got {shown(leaf)}; declare what is no parameter with jaxnsd.static()")
        kind = jnp.result_type(leaf)
        if not jnp.issubdtype(kind, jnp.floating):
            raise TypeError(f"{field} must be of a floating dtype, got {shown(leaf)}; write 1.0 for 1, or declare it with jaxnsd.static()")
        weak = isinstance(leaf, float) or getattr(leaf, "weak_type", False)
        if not weak and jax.dtypes.canonicalize_dtype(kind) != dtype:
            raise TypeError(f"{field} must have the dtype of the state, {dtype}, got {kind}; convert one of them")
        if known(leaf) and np.any(np.isnan(leaf)):
            raise ValueError(f"{field} must be a number, got {leaf!r}")


def _law(system, name):
    """Check that a system's law is one, and that nothing is said twice."""
    law = laws.said(system)
    if not isinstance(law, laws.ImpactLaw):
        raise TypeError(f"{name}.law must be a law such as jaxnsd.NewtonImpact(), got {shown(law)}")
    for field, (by_law, value) in laws.twice(system).items():
        if callable(value) or (known(value) and np.any(np.asarray(value) != 0)):
            what, own = "friction" if field == "mu" else field, getattr(system, field)
            raise ValueError(
                f"{name}.{field} must be left out, or zero, where {name}.law says {what}: {type(law).__name__} has {by_law!r}, and the "
                f"system {'a method' if callable(own) else own}; say it once"
            )


def solver_takes(system, solver):
    """Check that the solver takes the contact problems of a system's law."""
    law, name = laws.of(system), type(system).__name__
    if not solver.general and (law.expands or len(law.sets) > 1):
        what = "Poisson's law" if law.expands else "several sets of friction"
        raise ValueError(
            f"simulate: {type(solver).__name__}() does not take {name}: it solves contact problems of Newton's law with one set of "
            f"friction, and {name}.law has {what}; use SemismoothNewton(), or set general = True in a solver that takes Problem.sizes "
            "and Problem.least"
        )


def _contact_data(system, name):
    """Check restitution and friction, as far as they are known: they depend on no state."""
    parts = [system.law, *(getattr(system, field) for field in CONTACT_DATA)]
    if not known(*jax.tree.leaves(system if any(map(callable, parts)) else parts)):
        _warn_frictionless(system, name, laws.coefficients(system))
        return
    with jax.ensure_compile_time_eval():
        tiny = known_array(np.full(1, np.finfo(np.float32).tiny))
        values = {field: value(tiny) if callable(value) else value for field, value in laws.restitutions(system).items()}
        friction, sets = laws.coefficients(system), laws.of(system).friction
    for field, value in values.items():
        value = np.atleast_1d(np.asarray(value))
        if np.any(~((value >= 0) & (value <= 1))):
            raise ValueError(f"{name}.{field} must lie in [0, 1], got {value}; a restitution coefficient creates no energy")
    for field, value in friction.items():
        value = np.atleast_1d(np.asarray(value))
        if np.any(~(value >= 0)) or np.any(np.isinf(value)):
            raise ValueError(f"{name}.{field} must be finite and not negative, got {value}; it is Coulomb's friction coefficient")
    _warn_frictionless(system, name, friction)
    _dry_friction(system, name)
    if not all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(sets)):
        raise ValueError(f"{name}.law.friction must be finite, got {sets}")


def _dry_friction(system, name):
    """Check the bounds of dry friction, where they are known."""
    value = system.dry_friction() if callable(system.dry_friction) else system.dry_friction
    if value is not None and known(value):
        value = np.atleast_1d(np.asarray(value))
        if not np.all((value >= 0) & np.isfinite(value)):
            raise ValueError(f"{name}.dry_friction must be finite and not negative, got {value}; it bounds a generalized force")


def _warn_frictionless(system, name, friction):
    """Warn, once a class, of coefficients of friction, by their fields, of a system without directions in which it acts.

    A system without contacts has none: its ``mu`` is something else.
    """
    linear = type(system) is LinearSystem
    if not (isinstance(system, LinearSystem) or system.defines("gap")):
        return
    acts = system.G_F is not None if linear else system.defines("tangential_velocity")
    what = "G_F" if isinstance(system, LinearSystem) else "tangential_velocity(t, q, u)"
    for field, value in friction.items():
        sure = known(*jax.tree.leaves(value))
        # What is traced may be anything; a `LinearSystem` has the field in any case.
        if not acts and (np.any(np.asarray(value) > 0) if sure else not linear):
            told = set() if linear else _told_frictionless.setdefault(type(system), set())
            if (field, sure) not in told:
                told.add((field, sure))
                may = "is" if sure else "may be"
                text = f"{name}.{field} {may} positive, but without {what} no friction acts; write it, or leave {field} out"
                warnings.warn(text, stacklevel=6)


def _finite_functions(system, t0, q0, u0, at_start):
    """Raise ValueError for a function that was given, of a motor or a motion say, where its numbers are not finite."""
    with jax.ensure_compile_time_eval():
        for call, function, *_ in system._functions():
            value = np.asarray(function(system, *map(jnp.asarray, (t0, q0, u0))))
            if not np.all(np.isfinite(value)):
                raise ValueError(
                    f"{call} must be finite {at_start}, got {_brief(value)}; look for a division by zero or a root of zero in it"
                )


def _values(system, name, scheme, t0, t1, dt, q0, u0):
    t0, closer = np.asarray(t0, q0.dtype), step_length.concerns(system, scheme, u0)
    with jax.disable_jit(False):
        program = runs.compiled_once(_look_closer if closer else _look, system, t0, q0, u0)
        # Known values may be looked at inside a transformation as well. Traced in here, constants would be made by a small program each.
        with jax.ensure_compile_time_eval():
            look = jax.device_get(program(system, t0, q0, u0))
            q0, u0 = np.asarray(q0), np.asarray(u0)
    at_start = "at the initial state"
    if q0.size + u0.size <= SHOWN:
        at_start += f" q0 = {q0}, u0 = {u0}"
    for field in _looked_at(system):
        value = look[field]
        if not np.all(np.isfinite(value)):
            _finite_functions(system, t0, q0, u0, at_start)
            raise ValueError(
                f"{name}.{field} must be finite {at_start}, got {_brief(value)}; look for a division by zero or a root of zero in it"
            )
    for field, (value, size) in look["affine"].items():
        if not np.all(np.abs(value) <= AFFINE * float(np.finfo(value.dtype).eps) * size):
            what = "quadratic" if field == "kinetic_energy" else "affine"
            raise ValueError(
                f"{name}.{field} must be {what} in u, got a function that is not: seen at u = 0 and four other velocities, t0 = {t0} "
                f"and q0 = {q0}; what depends on u in another way is a force(t, q, u)"
            )
    if "M" in look:
        _mass_matrix(look, name, at_start)
    if known(t1, dt):
        _admissible(look, name, scheme, t1 - t0, dt, q0, at_start, system)
        if closer and "M" in look:
            bilateral = np.concatenate([look["W_g"], look["W_gamma"]], axis=1)
            if sentence := step_length.warning(name, scheme, look["M"], look["changes"], bilateral, float(dt)):
                warnings.warn(sentence, stacklevel=5)
    elif "M" in look:
        _independent(look, name, at_start)


def _admissible(look, name, scheme, duration, dt, q0, at_start, system):
    """Check gaps, constraints and velocities of constraints against what a step can make of them."""
    # A system of bodies knows what touches, another one what its author says.
    of_bodies = getattr(system, "contacts", ())
    contacts = of_bodies or getattr(system, "contact_names", None)
    position_level = on_position_level(scheme)
    eps = float(np.finfo(q0.dtype).eps)
    typed = max(TYPED, 100 * eps)

    def reach(W):
        """Speeds (m,) along W that all of the kinetic energy could make, and all that the forces at rest can add in the run."""
        mass = look["mass_diagonal"]
        return np.sqrt(np.sum(W**2 / mass[:, None], axis=0)) * (look["speed"] + duration * look["gain"])

    def position(W, part):
        """Tolerance (m,) of positions, in their own unit."""
        return (part if position_level else 1.0) * dt * reach(W) + typed * np.sum(np.abs(W), axis=0) * np.abs(q0).max() + 100 * eps

    # Of what nothing parts no start is better, and no scheme asks for one.
    gap, tolerance = np.where(look["parted"], look["gap"], np.inf), position(look["W_N"], POSITION_LEVEL_GAP)
    if np.any(gap < -tolerance):
        worst = int(np.argmin(gap + tolerance))
        names = contacts if isinstance(contacts, tuple) and len(contacts) == gap.size else ()
        touching = f" ({names[worst]})" if names else ""
        others = [str(names[k]) if names else f"contact {k}" for k in np.flatnonzero(gap < -tolerance) if k != worst]
        others = list(dict.fromkeys(others))
        also = f"; likewise {', '.join(others[:OTHERS])}" if others else ""
        also += f" and {len(others) - OTHERS} more" if len(others) > OTHERS else ""
        mended = ", and initial_state(project=True) mends that of the model" if of_bodies else ""
        raise ValueError(
            f"{name}: contact {worst}{touching} must be open or closed {at_start}, got the gap {gap[worst]:.3g}, a penetration deeper than "
            f"{tolerance[worst]:.3g}, the most that {scheme.name} takes with dt = {dt:g}{also}; correct q0 or the sign of gap(t, q); "
            f"jaxnsd.project_position(system, q0, t0) gives the nearest configuration without penetration{mended}"
        )
    turning = (0.0 if position_level else dt) * np.abs(look["turning"])
    n_g = look["constraint"].size
    velocity = "jaxnsd.project_velocity(system, q0, u0, t0) gives the nearest velocity that obeys the constraints"
    for field, law, W, turn, cure in (
        ("constraint", "g = 0", look["W_g"], None, "q0; jaxnsd.project_position(system, q0, t0) gives the nearest configuration that does"),
        ("constraint_velocity", "dg/dt = 0", look["W_g"], turning[:n_g], f"u0; {velocity}"),
        ("velocity_constraint", "gamma = 0", look["W_gamma"], turning[n_g:], f"u0; {velocity}"),
    ):
        value = np.abs(look[field])
        tolerance = position(W, POSITION_LEVEL_CONSTRAINT) if turn is None else turn.max(initial=0) + typed * reach(W) + 100 * eps
        if np.any(value > tolerance):
            worst = int(np.argmax(value - tolerance))
            raise ValueError(
                f"{name}.{field} must vanish ({law}) {at_start}, up to {tolerance[worst]:.3g}, the most that {scheme.name} takes with "
                f"dt = {dt:g}, got {look[field][worst]:.3g} in row {worst}; correct {cure}"
            )
        if field == "constraint" and "M" in look:
            _independent(look, name, at_start)


def _brief(value):
    """An array in one line; of a large one what is wrong with it, or its shape."""
    value = np.asarray(value)
    if value.size <= SHOWN:
        return np.array2string(value, separator=", ", precision=4).replace("\n", "")
    bad = np.argwhere(~np.isfinite(value))
    what = f", {len(bad)} of them not finite, the first {bad[0].tolist()}" if len(bad) else ""
    return f"{value.size} entries of shape {value.shape}{what}"


def _mass_matrix(look, name, at_start):
    M = look["M"]
    eps, size = float(np.finfo(M.dtype).eps), np.abs(M).max()
    if np.abs(M - M.T).max() > 100 * eps * size:
        raise ValueError(
            f"{name}: the mass matrix must be symmetric {at_start}, got {_brief(M)}; correct it or write kinetic_energy(t, q, u)"
        )
    # Scaled to a unit diagonal, so that coordinates of different units do not look singular beside each other.
    diagonal = np.diag(M)
    smallest = np.linalg.eigvalsh(M / np.sqrt(np.outer(diagonal, diagonal)))[0] if np.all(diagonal > 0) else diagonal.min() / (size or 1.0)
    if smallest <= 10 * eps * len(M):
        raise ValueError(
            f"{name}: the mass matrix must be positive definite {at_start}, got a singular or indefinite one (smallest eigenvalue, scaled "
            f"to a unit diagonal: {smallest:.3g}), {_brief(M)}; choose coordinates in which every velocity has inertia"
        )
    if "M_energy" in look and np.abs(M - look["M_energy"]).max() > 1e4 * eps * size:
        raise ValueError(
            f"{name}: mass_matrix and the Hessian of kinetic_energy must agree {at_start}, got {_brief(M)} and "
            f"{_brief(look['M_energy'])}; write one"
        )


def _independent(look, name, at_start):
    """Rows of bilateral constraints that depend on each other have no unique percussions, and contradict each other sooner or later."""
    W = np.concatenate([look["W_g"], look["W_gamma"]], axis=1)
    n_g = look["W_g"].shape[1]
    G = W.T @ np.linalg.solve(look["M"], W)
    size = np.sqrt(np.diag(G))
    names = [f"constraint row {i}" for i in range(n_g)] + [f"velocity_constraint row {i}" for i in range(len(G) - n_g)]
    still = np.flatnonzero(~(size > 0))
    if still.size:
        raise ValueError(
            f"{name}: every bilateral constraint must depend on the velocities {at_start}, got none in {names[still[0]]}; remove the row, "
            "or choose q0 where its gradient does not vanish"
        )
    values, vectors = np.linalg.eigh(G / np.outer(size, size))
    null = vectors[:, values <= 100 * len(G) * float(np.finfo(G.dtype).eps)] if len(G) else vectors
    if null.shape[1]:
        dependent = [names[i] for i in np.flatnonzero(np.abs(null).max(axis=1) > 1e-6)]
        raise ValueError(
            f"{name}: the bilateral constraints must be independent {at_start}, got rank {len(G) - null.shape[1]} of {len(G)} rows; "
            f"dependent on each other are {', '.join(dependent)}; remove {null.shape[1]} of them, "
            "or choose q0 away from a singular configuration"
        )


#: What must be finite at the initial state; what others are made of comes first.
LOOK = ("gap", "constraint", "velocity_constraint", "gap_velocity", "constraint_velocity", "M", "h", "W_N", "W_F", "W_g", "W_gamma")


def _looked_at(system):
    """`LOOK`; a `LinearSystem` has checked its mass matrix when it was made, and that of a fine mesh is large."""
    return [name for name in LOOK if name != "M" or not isinstance(system, LinearSystem) or system.changes_inertia()]


@jit
def _look(*given):
    return runs.run(lambda given: _values_at(*given), given)


@jit
def _look_closer(*given):
    return runs.run(lambda given: _values_at(*given) | {"changes": step_length.changes(*given)}, given)


def _values_at(system, t0, q0, u0):
    """What `LOOK` names, and what else is asked of the initial state."""
    state = (t0, q0, u0)
    # Forces at u0 and at rest by one loop: of all that is looked at they take longest to compile.
    h, gained = lax.map(lambda u: system.h(t0, q0, u), jnp.stack([u0, jnp.zeros_like(u0)]))
    out = {"h": h}
    for name in _looked_at(system):
        if name != "h":
            out[name] = getattr(system, name)(*(state[:2] if name in ("gap", "constraint") else state))
    if system.defines("mass_matrix") and system.defines("kinetic_energy"):
        out["M_energy"] = jax.hessian(system.kinetic_energy, argnums=2)(*state)
    mass = jnp.diagonal(out["M"]) if "M" in out else diagonal(system.mass)
    out |= {"mass_diagonal": mass, "speed": jnp.sqrt(mass @ u0**2), "gain": jnp.sqrt(jnp.sum(gained**2 / mass))}
    out["parted"] = contact.parted(out["W_N"], out["W_F"], mass, laws.discs(system))

    def rows(t, q):
        return jnp.concatenate([system.constraint_velocity(t, q, u0), system.velocity_constraint(t, q, u0)])

    out["turning"] = jax.jvp(rows, (t0, q0), (jnp.ones_like(t0), system.q_dot(t0, q0, u0)))[1]
    out["affine"] = {}
    if system._is_assembled():
        return out
    for name in ("tangential_velocity", "q_dot", "velocity_constraint", "dry_velocity", "kinetic_energy"):
        # A kinetic energy is quadratic where the momentum is affine.
        if system.defines(name) and not (name == "kinetic_energy" and isinstance(system, LinearSystem)):
            function = system.momentum if name == "kinetic_energy" else getattr(system, name)
            out["affine"][name] = _second_difference(lambda u, function=function: function(t0, q0, u), u0)
    return out


def _second_difference(function, u):
    """``f(a + b) - f(a) - f(b) + f(0)`` and ``f(a) + f(-a) - 2 f(0)`` of velocities in general position, and the size of the terms.

    The second sees what is affine on either side of a kink, as the absolute value of a velocity, wherever the kink lies.
    """
    k = jnp.arange(u.shape[0], dtype=u.dtype)
    a, b = (1 + jnp.max(jnp.abs(u))) * jnp.stack([jnp.cos(1 + k), jnp.sin(2 + 3 * k)])
    terms = lax.map(function, jnp.stack([jnp.zeros_like(u), a, b, a + b, -a]))
    zero, at_a, at_b, both, behind = terms
    return jnp.stack([both - at_a - at_b + zero, at_a + behind - 2 * zero]), jnp.max(jnp.abs(terms), initial=0)
