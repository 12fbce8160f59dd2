"""Checks of the input of `simulate`, before tracing: each failure says what was given, what was expected and what to do.

Values are checked where they are known; under `jit`, `vmap` and `grad` only shapes and dtypes are.
"""

import warnings

import jax
import jax.numpy as jnp
import numpy as np

from .newton import SemismoothNewton
from .schemes.base import Scheme
from .system import System

#: An initial state may penetrate a contact, or violate a constraint, by this much (in the unit of the gap), relative to 1 + max |q|.
#: A contact-free motion of 1 m/s at dt = 1e-3 s penetrates 1e-3 m: a state taken from another run of an event-capturing scheme passes.
PENETRATION, VIOLATION = 1e-2, 1e-6

_warned_float32 = False


def known(x):
    """Whether the value of ``x`` is known now."""
    return not isinstance(x, jax.core.Tracer)


def options(scheme, solver, save_every, sensitivity, checkpoint):
    """Check the options of a run."""
    if not isinstance(scheme, Scheme):
        hint = " (a class; write its parentheses)" if isinstance(scheme, type) else ""
        raise TypeError(f"simulate: scheme must be a scheme such as jaxnsd.Moreau(), got {scheme!r}{hint}")
    if not isinstance(solver, SemismoothNewton):
        raise TypeError(f"simulate: solver must be a jaxnsd.SemismoothNewton(...), got {solver!r}")
    if sensitivity != "discrete":
        raise ValueError(f'simulate: sensitivity must be "discrete", got {sensitivity!r}')
    for name, value in (("save_every", save_every), ("checkpoint", checkpoint)):
        if value is None and name == "checkpoint":
            continue
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
            raise ValueError(f"simulate: {name} must be a positive whole number of steps, got {value!r}")


def steps(t0, t1, dt, save_every):
    """Number of steps of size dt from t0 to t1."""
    for name, value in (("t0", t0), ("t1", t1), ("dt", dt)):
        if not known(value):
            raise TypeError(f"simulate: {name} decides the number of steps and must be a number, not traced; take it out of jit or vmap, or make it static")
        if np.ndim(value) != 0 or not np.isfinite(value):
            raise ValueError(f"simulate: {name} must be a finite number in seconds, got {value!r}")
    if dt <= 0:
        raise ValueError(f"simulate: dt must be positive, got {dt!r}")
    if t1 <= t0:
        raise ValueError(f"simulate: t1 must be later than t0, got t0 = {t0!r} and t1 = {t1!r}")
    ratio = (float(t1) - float(t0)) / float(dt)
    n = round(ratio)
    if n < 1 or abs(ratio - n) > 1e-6 * max(1.0, ratio * 1e-3):
        n = max(n, 1)
        raise ValueError(
            f"simulate: dt = {dt!r} does not divide t1 - t0 = {float(t1) - float(t0)!r} (it gives {ratio:.9g} steps); "
            f"take dt = {(float(t1) - float(t0)) / n!r} or t1 = {float(t0) + n * float(dt)!r}"
        )
    if n % save_every:
        raise ValueError(f"simulate: save_every = {save_every} does not divide the number of steps, {n}; take a divisor, or another t1")
    return n


def state(system, q0, u0):
    """Initial state as arrays of one floating dtype."""
    del system
    arrays = []
    for name, value in (("q0", q0), ("u0", u0)):
        if not isinstance(value, (jax.Array, np.ndarray)):
            try:
                value = np.asarray(value)
            except (TypeError, ValueError) as error:
                raise TypeError(f"simulate: {name} must be an array of numbers, got {value!r}") from error
        if not jnp.issubdtype(value.dtype, jnp.floating):
            raise TypeError(f"simulate: {name} must be of a floating dtype, got {value.dtype}; write 1.0 for 1")
        if value.ndim != 1:
            raise ValueError(f"simulate: {name} must have one axis, got shape {value.shape}; batches are made with jax.vmap")
        if known(value) and not np.all(np.isfinite(value)):
            raise ValueError(f"simulate: {name} must be finite, got {np.asarray(value)}")
        arrays.append(jnp.asarray(value))
    q0, u0 = arrays
    if q0.dtype != u0.dtype:
        raise TypeError(f"simulate: q0 and u0 must have one dtype, got {q0.dtype} and {u0.dtype}; convert one of them")
    if q0.dtype == jnp.float32:
        _warn_float32()
    return q0, u0


def _warn_float32():
    global _warned_float32
    if not _warned_float32:
        _warned_float32 = True
        warnings.warn(
            "simulating in float32: the contact law is solved to about 1e-6 only; for float64 call "
            'jax.config.update("jax_enable_x64", True) before making arrays',
            stacklevel=4,
        )


def system(system, scheme, t0, q0, u0):
    """Check a system at its initial state, and that the scheme takes it."""
    name = type(system).__name__
    if not isinstance(system, System):
        raise TypeError(f"simulate: system must be an instance of jaxnsd.System, got {system!r}")
    if not jax.tree_util.all_leaves([system]) and jax.tree_util.tree_structure(system).num_leaves is not None:
        pass
    elif not jax.tree.leaves(system) or jax.tree.leaves(system)[0] is system:
        raise TypeError(f"simulate: class {name} is no pytree; decorate it with @jaxnsd.system")
    _leaves(system, name, q0.dtype)
    _shapes(system, name, t0, q0, u0)
    reason = scheme.refuse(system, t0, q0, u0)
    if reason:
        raise ValueError(f"simulate: {scheme.name}() does not take {name}: {reason}")
    if all(known(leaf) for leaf in (*jax.tree.leaves(system), q0, u0)):
        _values(system, name, t0, q0, u0)


def _leaves(system, name, dtype):
    for path, leaf in jax.tree_util.tree_leaves_with_path(system):
        field = jax.tree_util.keystr(path).lstrip(".")
        if isinstance(leaf, bool) or not isinstance(leaf, (int, float, jax.Array, np.ndarray, np.generic)):
            raise TypeError(f"{name}.{field} must be a number or an array, got {leaf!r}; declare what is no parameter with jaxnsd.static()")
        if isinstance(leaf, float):
            continue
        kind = jnp.result_type(leaf)
        if isinstance(leaf, int) or not jnp.issubdtype(kind, jnp.floating):
            raise TypeError(f"{name}.{field} must be of a floating dtype, got {leaf!r}; write 1.0 for 1, or declare it with jaxnsd.static()")
        if jax.dtypes.canonicalize_dtype(kind) != dtype and not getattr(leaf, "weak_type", False):
            raise TypeError(f"{name}.{field} is {kind} beside a state of {dtype}; convert one of them")
        if known(leaf) and np.any(np.isnan(leaf)):
            raise ValueError(f"{name}.{field} is not a number: {leaf!r}")


def _shapes(system, name, t0, q0, u0):
    n_q, n_u = q0.shape[0], u0.shape[0]
    if n_q == 0 or n_u == 0:
        raise ValueError(f"simulate: {name} needs at least one coordinate and one velocity, got q0 {q0.shape} and u0 {u0.shape}")
    if not system.defines("q_dot") and n_q != n_u:
        raise ValueError(f"simulate: q0 has shape {q0.shape} and u0 {u0.shape}; they must agree, or {name} must define q_dot(t, q, u)")
    t = jax.ShapeDtypeStruct((), q0.dtype)

    def shape(method, *args):
        try:
            out = jax.eval_shape(getattr(system, method), *args)
        except (TypeError, ValueError, IndexError) as error:
            raise type(error)(f"{name}.{method} failed for q of shape {q0.shape} and u of shape {u0.shape}: {error}") from error
        if not hasattr(out, "shape"):
            raise TypeError(f"{name}.{method} must return an array, got {out!r}")
        return out.shape

    def expect(method, got, wanted, meaning):
        if got != wanted:
            raise ValueError(f"{name}.{method} must return shape {wanted} ({meaning}), got {got}")

    expect("potential_energy", shape("potential_energy", t, q0), (), "a scalar")
    if system.defines("kinetic_energy"):
        expect("kinetic_energy", shape("kinetic_energy", t, q0, u0), (), "a scalar")
    expect("mass_matrix" if system.defines("mass_matrix") else "kinetic_energy", shape("M", t, q0, u0), (n_u, n_u), "(n_u, n_u)")
    expect("force", shape("force", t, q0, u0), (n_u,), "(n_u,)")
    expect("q_dot", shape("q_dot", t, q0, u0), (n_q,), "(n_q,)")
    gap = shape("gap", t, q0)
    if len(gap) != 1:
        raise ValueError(f"{name}.gap must return shape (n_N,), one gap per contact, got {gap}; jnp.stack([...]) makes an array of scalars")
    tangential = shape("tangential_velocity", t, q0, u0)
    if len(tangential) != 2 or tangential[0] != gap[0] or tangential[1] > 2:
        raise ValueError(
            f"{name}.tangential_velocity must return shape ({gap[0]}, d), one row per gap and d = 1 (planar) or 2 (spatial), got {tangential}"
        )
    for method in ("constraint", "velocity_constraint"):
        got = shape(method, *((t, q0) if method == "constraint" else (t, q0, u0)))
        if len(got) != 1:
            raise ValueError(f"{name}.{method} must return one axis, one entry per constraint, got shape {got}")
    for field in ("e_N", "e_F", "mu"):
        value = getattr(system, field)
        got = np.shape(value() if callable(value) else value)
        if got not in ((), gap):
            raise ValueError(f"{name}.{field} must be a scalar or of shape {gap} (one per contact), got {got}")
    h = jax.eval_shape(system.h, t, q0, u0)
    if h.dtype != q0.dtype:
        raise TypeError(f"{name}: the forces come out as {h.dtype} for a state of {q0.dtype}; look for arrays of another dtype in its methods")


def _values(system, name, t0, q0, u0):
    look = jax.device_get(_look(system, jnp.asarray(t0, q0.dtype), q0, u0))
    for field in ("e_N", "e_F"):
        value = look[field]
        if np.any(~((value >= 0) & (value <= 1))):
            raise ValueError(f"{name}.{field} must lie in [0, 1], got {value}")
    if np.any(~(look["mu"] >= 0)) or np.any(np.isinf(look["mu"])):
        raise ValueError(f"{name}.mu must not be negative nor infinite, got {look['mu']}")
    for field in ("M", "h", "gap", "W_N", "W_F", "constraint", "constraint_velocity", "velocity_constraint", "W_g", "W_gamma"):
        if not np.all(np.isfinite(look[field])):
            raise ValueError(f"{name}: {field} is not finite at the initial state q0 = {np.asarray(q0)}, u0 = {np.asarray(u0)}: {look[field]}")
    M = look["M"]  # noqa: N806
    eps = float(jnp.finfo(q0.dtype).eps)
    size = np.abs(M).max()
    if np.abs(M - M.T).max() > 100 * eps * size:
        raise ValueError(f"{name}: the mass matrix is not symmetric at the initial state:\n{M}")
    # Scaled to a unit diagonal, so that coordinates of different units do not look singular beside each other.
    diagonal = np.diag(M)
    smallest = -1.0
    if np.all(diagonal > 0):
        smallest = np.linalg.eigvalsh(M / np.sqrt(np.outer(diagonal, diagonal)))[0]
    if smallest <= 10 * eps * len(M):
        raise ValueError(
            f"{name}: the mass matrix is singular or not positive definite at the initial state (smallest scaled eigenvalue {smallest:.3g}):\n{M}\n"
            "choose coordinates in which every velocity has inertia"
        )
    if "M_energy" in look and np.abs(M - look["M_energy"]).max() > 1e4 * eps * size:
        raise ValueError(f"{name}: mass_matrix and the Hessian of kinetic_energy differ at the initial state:\n{M}\n{look['M_energy']}\nwrite only one")
    length = 1 + np.abs(np.asarray(q0)).max()
    gap = look["gap"]
    if np.any(gap < -PENETRATION * length):
        worst = int(np.argmin(gap))
        raise ValueError(f"{name}: contact {worst} penetrates by {-gap[worst]:.3g} at the initial state (gap {gap}); start with open or closed contacts")
    for field, meaning in (("constraint", "g = 0"), ("constraint_velocity", "dg/dt = 0"), ("velocity_constraint", "gamma = 0")):
        value = look[field]
        scale = length if field == "constraint" else 1 + np.abs(np.asarray(u0)).max()
        if value.size and np.abs(value).max() > max(VIOLATION, 100 * eps) * scale:
            worst = int(np.argmax(np.abs(value)))
            raise ValueError(f"{name}: the initial state violates {meaning} in row {worst} by {value[worst]:.3g}; correct q0 and u0")


@jax.jit
def _look(system, t0, q0, u0):
    e_N, e_F, mu = system.contact_data(t0, q0)  # noqa: N806
    out = {
        "e_N": e_N,
        "e_F": e_F,
        "mu": mu,
        "M": system.M(t0, q0, u0),
        "h": system.h(t0, q0, u0),
        "gap": system.gap(t0, q0),
        "W_N": system.W_N(t0, q0, u0),
        "W_F": system.W_F(t0, q0, u0),
        "W_g": system.W_g(t0, q0, u0),
        "W_gamma": system.W_gamma(t0, q0, u0),
        "constraint": system.constraint(t0, q0),
        "constraint_velocity": system.constraint_velocity(t0, q0, u0),
        "velocity_constraint": system.velocity_constraint(t0, q0, u0),
    }
    if system.defines("mass_matrix") and system.defines("kinetic_energy"):
        out["M_energy"] = jax.hessian(system.kinetic_energy, argnums=2)(t0, q0, u0)
    return out
