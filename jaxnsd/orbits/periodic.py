"""`periodic`: a periodic orbit from a guess."""

import functools
import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from ..contact import AbstractContactSolver, SemismoothNewton
from ..mechanics.system import System
from ..programs.derivatives import is_float
from ..programs.given import calling, number, numbers, shown, takes
from ..programs.jitted import jit
from ..schemes import Scheme
from ..simulation import checks
from ..simulation.simulate import check, simulate
from .newton import Given, Start, find, orbit
from .orbit import Orbit
from .shooting import Shooting, kinematics, of_system, takes_system

#: Evaluations of the period map in one search.
LIMIT = 40

#: A return to the section is looked for in so many periods.
AHEAD = 1.5


def periodic(
    system: System,
    scheme: Scheme,
    q: ArrayLike,
    u: ArrayLike,
    period: ArrayLike | Callable[..., Any] | None = None,
    *,
    n_steps: int,
    section: Callable[..., Any] | None = None,
    reset: Callable[..., Any] | None = None,
    settle: int = 0,
    t0: ArrayLike = 0.0,
    solver: AbstractContactSolver | None = None,
    arcs: int = 1,
) -> Orbit:
    """Find a periodic orbit near a guess, by Newton's method on the map of one period, with derivatives through located impacts.

    system:   a `System`; with quaternions multipliers are those of steps of velocities, n = 2 n_u, and -p, the same orientation as p, is
              another state: where a motion returns to it, a ``reset`` turns the sign
    scheme:   ``LocatedImpacts(Lobatto(3))``, ``LocatedImpacts(MoreauJean())``, ...; without contacts any whose velocities are at the nodes
    q, u:     guess of the state (n_q,), (n_u,) at ``t0``; of several arcs, too, of their states (arcs, n_q), (arcs, n_u) at equal times
    period:   of forced motion: T in s, or a function of the system, ``lambda system: 2 * jnp.pi / system.frequency``, where parameters
              change it. Of autonomous motion, where there is a section, a first guess of it
    n_steps:  steps a period
    section:  ``section(t, q, u)``, a scalar that vanishes on the section on which autonomous motion starts; makes the period an unknown
    reset:    ``reset(t, q, u) -> (q, u)`` after the period, up to which the motion is periodic: a translation, a mirror image after half a
              cycle, an angle less 2 pi, a heel strike. The section is looked at behind it. Both may take the system as a first argument,
              as methods of it do, and then depend on its parameters
    settle:   periods, or returns to the section, to run before the guess is believed
    t0:       time of the start in s
    solver:   contact solver, as in `simulate`
    arcs:     pieces of the period, of equal length, whose starts are all unknowns (multiple shooting): for orbits so unstable that a motion
              from a guess leaves them within a period. ``n_steps`` is a multiple of it

    Returns an `Orbit`, whatever happened: its outcome and `Orbit.sentence` say what did. Works under `jit` and `vmap`; compiled once for a
    scheme, a number of steps and these functions, which should be kept, not written anew for every call. Start, period, solution and
    monodromy matrix are differentiable functions of the system, by the implicit function theorem; where the motion is not followed in its
    impacts to first order, as of captured ones, that derivative is not a number or wrong by O(dt).

    Raises ValueError or TypeError, before tracing, for input that makes no sense.
    """
    settle, arcs = whole("periodic", "settle", settle, 0), whole("periodic", "arcs", arcs, 1)
    q, u, nodes = _split(q, u, arcs, n_steps, settle)
    shooting, system, q, u, t0, T = prepared("periodic", system, scheme, q, u, period, n_steps, section, reset, t0, solver)
    shooting = replace(shooting, arcs=arcs)
    if settle:
        q, u, T = _settled(shooting, system, q, u, t0, T, settle)
    given = Given(system, t0, T if section is None else lax.stop_gradient(T))
    start = at_parameters(system, q, u, t0, T)
    if nodes is not None:
        start = start._replace(nodes=lax.stop_gradient(nodes.astype(q.dtype)))
    return orbit(shooting, given, start, find(shooting, given, start))


def _split(q, u, arcs, n_steps, settle):
    """``(q, u, later starts or None)`` of a guess for one arc, or for several."""
    if arcs == 1:
        return q, u, None
    if whole("periodic", "n_steps", n_steps, 1) % arcs:
        raise ValueError(f"periodic: n_steps must be a multiple of arcs = {arcs}, got {n_steps}")
    shapes = [np.shape(x) if numbers(x) is not None else () for x in (q, u)]
    if all(len(shape) < 2 for shape in shapes):
        return q, u, None
    if settle or any(len(shape) != 2 or shape[0] != arcs for shape in shapes):
        what = "one start settles" if settle else f"q and u must be one state, or {arcs} states (arcs, n_q), (arcs, n_u)"
        raise ValueError(f"periodic: {what}, got shapes {shapes[0]} and {shapes[1]}")
    nodes = jnp.concatenate([jnp.asarray(x)[1:] for x in (q, u)], axis=1)
    return jnp.asarray(q)[0], jnp.asarray(u)[0], nodes


def refined(orbit: Orbit, factor: int = 2) -> Orbit:
    """The same orbit with ``factor`` times as many steps a period: its distance to this one is an estimate of the error of this one."""
    if not hasattr(orbit, "shooting"):
        raise TypeError(f"refined: needs an Orbit, as periodic returns it, got {shown(orbit)}")
    shooting = orbit.shooting
    period = orbit.period if shooting.period is None else shooting.period
    options = {"section": shooting.section, "reset": shooting.reset, "t0": orbit.t0, "solver": shooting.solver}
    n_steps, arcs, q, u = whole("refined", "factor", factor, 2) * shooting.n_steps, shooting.arcs, orbit.q, orbit.u
    if arcs > 1:
        every = shooting.n_steps // arcs
        q, u = orbit.solution.q[:-1:every], orbit.solution.u[:-1:every]
    return periodic(orbit.system, shooting.scheme, q, u, period, n_steps=n_steps, arcs=arcs, **options)


def at_parameters(system, q, u, t0, T):
    """`Start` of a search at given parameters."""
    direction = jax.tree.map(lambda x: jnp.zeros_like(x) if is_float(x) else x, system)
    v = lax.stop_gradient(jnp.concatenate([q, u, jnp.stack([T, jnp.zeros_like(T)])]))
    row = jnp.zeros_like(v).at[-1].set(1)
    return Start(v, direction, row, sizes(system, t0, q, u, T), jnp.asarray(LIMIT, jnp.int32))


def sizes(system, t, q, u, T):
    """Sizes (n + 2,) of the unknowns: what a coordinate moves by, its velocity, the period, and 1 for the parameter."""
    system, t, q, u, T = lax.stop_gradient((system, t, q, u, T))
    alike = q.shape == u.shape
    size = jnp.abs(q) + jnp.abs(u if alike else system.q_dot(t, q, u)) * T / (2 * jnp.pi)
    largest = jnp.max(size)
    # A quaternion at rest has entries of zero, which move as far as the others.
    size = jnp.maximum(size, (1e-3 if alike else 0.1) * jnp.where(largest > 0, largest, 1))
    of_u = size if alike else 1 / jnp.max(jnp.abs(kinematics(system, t, q, u)) / size[:, None], axis=0)
    return jnp.concatenate([size, of_u * 2 * jnp.pi / T, jnp.stack([T, jnp.ones_like(T)])])


def whole(caller, name, value, least):
    """A whole number not below ``least``."""
    try:
        value = operator.index(value)
    except TypeError:
        raise TypeError(f"{caller}: {name} must be a whole number, got {shown(value)}") from None
    if value < least:
        raise ValueError(f"{caller}: {name} must be at least {least}, got {value}")
    return value


def prepared(caller, system, scheme, q, u, period, n_steps, section, reset, t0, solver):
    """``(Shooting, system, q, u, t0, T)``, checked, arrays of one dtype."""
    n_steps = whole(caller, "n_steps", n_steps, 1)
    solver = SemismoothNewton() if solver is None else solver
    if not isinstance(system, System):
        raise TypeError(f"{caller}: system must be a jaxnsd.System, got {shown(system)}")
    if not isinstance(scheme, Scheme):
        raise TypeError(f"{caller}: scheme must be a scheme such as jaxnsd.LocatedImpacts(jaxnsd.Lobatto(3)), got {shown(scheme)}")
    for name, value in (("section", section), ("reset", reset)):
        if value is not None and (not callable(value) or not takes_system(value, "t, q, u")):
            takes(f"{caller}: {name}", value, "t, q, u")
    if scheme.lead:
        raise ValueError(
            f"{caller}: velocities of {scheme!r} are at mid-interval, so the end of a period is not the state at its start; use "
            "LocatedImpacts(MoreauJean()) or LocatedImpacts(Lobatto(3))"
        )
    if period is None:
        what = "a first guess of the period" if section is not None else "its period in s, or section= where the motion is autonomous"
        raise ValueError(f"{caller}: give period=, {what}")
    if callable(period) and section is not None:
        raise ValueError(f"{caller}: with a section the period is an unknown, and period= a number, its first guess; got a function")
    for name, value in (("q", q), ("u", u)):
        if numbers(value) is None:
            raise TypeError(f"{caller}: {name} must be an array of numbers, got {shown(value)}")
    number(f"{caller}: t0", t0)
    if not callable(period) and (np.shape(length := numbers(period)) or length is None):
        raise TypeError(f"{caller}: period must be a positive time in s, or a function of the system, got {shown(period)}")
    q, u = jnp.asarray(q), jnp.asarray(u)
    if q.ndim != 1 or u.ndim != 1 or (q.shape != u.shape and not system.defines("q_dot")):
        raise ValueError(
            f"{caller}: q and u must be vectors with as many velocities as coordinates, or the system has a q_dot, got shapes {q.shape} "
            f"and {u.shape}"
        )
    if not (is_float(q) and is_float(u)):
        raise TypeError(f"{caller}: q and u must be floating, got {q.dtype} and {u.dtype}; write 1.0 in place of 1")
    dtype = jnp.result_type(q, u)
    system = jax.tree.map(lambda x: jnp.asarray(x, dtype) if is_float(x) else x, system)
    T = jnp.reshape(jnp.asarray(period(system) if callable(period) else period, dtype), ())
    t0 = jnp.asarray(t0, dtype)
    if checks.known(T) and not (np.isfinite(T) and T > 0):
        raise ValueError(f"{caller}: the period must be a positive time in s, got {float(T)}")
    if checks.known(T, t0, q, u, *jax.tree.leaves(system)):
        check(system, scheme, q, u, t1=float(t0 + T), t0=float(t0), n_steps=n_steps, solver=solver)
        if section is not None:
            with calling(f"{caller}: section(t, q, u)"):
                value = np.asarray(of_system(section, 3)(system, t0, q, u))
            if value.size != 1 or not np.all(np.isfinite(value)):
                raise ValueError(f"{caller}: section(t, q, u) must be a finite number at the guess, got {value}")
        if reset is not None:
            _check_reset(caller, system, reset, t0, q, u)
    shooting = Shooting(scheme, n_steps, q.shape[0], period if callable(period) else None, section, reset, solver)
    return shooting, system, q.astype(dtype), u.astype(dtype), t0, T


def _check_reset(caller, system, reset, t0, q, u):
    with calling(f"{caller}: reset(t, q, u)"):
        shapes = jax.eval_shape(functools.partial(of_system(reset, 3), system), t0, q, u)
    if not isinstance(shapes, tuple) or len(shapes) != 2 or shapes[0].shape != q.shape or shapes[1].shape != u.shape:
        raise ValueError(f"{caller}: reset(t, q, u) must return (q, u) of shapes {q.shape} and {u.shape}, got {shown(shapes)}")


@jit(static_argnames="shooting")
def run(shooting, system, q, u, t0, T, periods):
    """State ``(q, u)`` after so many periods, each with its reset, of forced motion."""

    def one(k, state):
        q, u = state
        sol = simulate(system, shooting.scheme, q, u, t1=t0 + T, t0=t0, n_steps=shooting.n_steps, solver=shooting.solver)
        end = shooting.after_reset(system, t0 + T, sol.q[-1], sol.u[-1])
        return end[: shooting.n_q], end[shooting.n_q :]

    return lax.fori_loop(0, periods, one, (q, u))


@jit(static_argnames="shooting")
def _values_on_section(shooting, system, q, u, t0, T):
    """Times (N + 1,), values of the section there behind the reset, and states there behind the reset (N + 1, n)."""
    n_steps = int(np.ceil(AHEAD * shooting.n_steps))
    sol = simulate(system, shooting.scheme, q, u, t1=t0 + AHEAD * T, t0=t0, n_steps=n_steps, solver=shooting.solver)
    after = jax.vmap(lambda t, q, u: shooting.after_reset(system, t, q, u))(sol.t, sol.q, sol.u)
    values = jax.vmap(lambda t, z: shooting.on_section(system, t, z[: shooting.n_q], z[shooting.n_q :]))(sol.t, after)
    return sol.t, values, after


def _settled(shooting, system, q, u, t0, T, settle):
    """``(q, u, T)`` after so many periods."""
    if shooting.section is None:
        q, u = lax.stop_gradient(run(shooting, *lax.stop_gradient((system, q, u, t0, T)), settle))
        return q, u, T
    if not checks.known(q, u, T, *jax.tree.leaves(lax.stop_gradient(system))):
        raise TypeError("periodic: settle= needs values where there is a section: inside of jit and vmap start from a settled state")
    states = [np.concatenate([q, u])]
    n, direction = shooting.n_q, None
    for k in range(settle):
        z = jnp.asarray(states[-1])
        t, values, after = map(np.asarray, _values_on_section(shooting, lax.stop_gradient(system), z[:n], z[n:], t0, T))
        signs = np.sign(values)
        changes = np.flatnonzero(signs[1:] * signs[:-1] < 0)
        # Behind the start, which is on the section itself, and in the direction in which the first one was crossed.
        changes = [j for j in changes if j > 1 or (abs(values[0]) > 0 and k == 0)]
        changes = [j for j in changes if direction in (None, signs[j + 1])]
        if not changes:
            raise ValueError(
                f"periodic: the section was not crossed within {AHEAD} periods of {float(T):.6g} s after {k} returns; give a section on "
                "which the motion returns, or a longer period="
            )
        j = changes[0]
        direction = signs[j + 1]
        part = values[j] / (values[j] - values[j + 1])
        states.append(after[j] + part * (after[j + 1] - after[j]))
        if k:
            T = jnp.asarray(t[j] + part * (t[j + 1] - t[j]) - t0)
    z = jnp.asarray(states[-1])
    return z[:n], z[n:], T
