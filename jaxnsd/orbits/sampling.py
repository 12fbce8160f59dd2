"""Motions seen once a period: Lyapunov exponents, Poincare sections, brute-force diagrams."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from ..contact import AbstractContactSolver
from ..mechanics.local import Contacts
from ..mechanics.system import System
from ..programs.derivatives import is_float
from ..programs.given import numbers, shown
from ..programs.jitted import jit
from ..schemes import Scheme
from ..simulation.simulate import simulate
from .leaves import parameter as named_parameter
from .newton import closings, resting, staying
from .periodic import prepared, whole
from .shooting import kinematics, shifted

#: Blocks of periods whose means tell the standard error of an exponent.
BLOCKS = 20


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Exponents:
    """Lyapunov exponents of a motion.

    per_period: (n,) natural logarithms a period, the largest first; -inf where nothing of a direction is left, as after an accumulation
                of impacts
    per_second: (n,) 1/s
    error:      (n,) standard errors of ``per_period``, from the means of 20 blocks
    impacts:    () located impacts a period
    locked:     () whether a contact with restitution stayed closed, so that the motion has forgotten how it came there
    captured:   () share of the periods with an impact that the scheme did not locate, whose derivative is right to first order alone
    success:    () whether every step succeeded
    q, u:       (n_q,), (n_u,) state at the end
    """

    per_period: Any
    per_second: Any
    error: Any
    impacts: Any
    locked: Any
    captured: Any
    success: Any
    q: Any
    u: Any


def lyapunov(
    system: System,
    scheme: Scheme,
    q: ArrayLike,
    u: ArrayLike,
    period: ArrayLike | Callable[..., Any],
    *,
    n_steps: int,
    n_periods: int,
    transient: int = 0,
    reset: Callable[..., Any] | None = None,
    t0: ArrayLike = 0.0,
    solver: AbstractContactSolver | None = None,
) -> Exponents:
    """Lyapunov exponents of the motion from (q, u), by QR factorizations of the derivative of every period (Benettin et al. 1980).

    Arguments as those of `periodic`; of autonomous motion the period is any time, after which directions are made orthogonal again.

    n_periods:  periods of the mean, rounded up to a multiple of 20
    transient:  periods before them, in which directions settle too

    Works under `jit` and `vmap`; never raises there. Raises ValueError or TypeError, before tracing, for input that makes no sense.
    """
    n_periods, transient = whole("lyapunov", "n_periods", n_periods, BLOCKS), whole("lyapunov", "transient", transient, 0)
    shooting, system, q, u, t0, T = prepared("lyapunov", system, scheme, q, u, period, n_steps, None, reset, t0, solver)
    return _exponents(shooting, system, q, u, t0, T, transient, -(-n_periods // BLOCKS))


def _impacts(sol):
    """How many impacts were located."""
    found = sol.auxiliary.get("impact_contacts", jnp.zeros(0, jnp.int32))
    return jnp.sum(found >= 0, dtype=jnp.int32)


@jit(static_argnames="shooting")
def _exponents(shooting, system, q, u, t0, T, transient, length):
    n, n_u = q.shape[0] + u.shape[0], u.shape[0]
    # Of a quaternion only those directions are carried along in which velocities move it.
    moved = jnp.eye(n_u) if q.shape == u.shape else jnp.linalg.qr(kinematics(system, t0, q, u))[0]
    directions = jax.scipy.linalg.block_diag(moved, jnp.eye(n_u)).astype(q.dtype)
    e_N = Contacts(system).data(t0, q).e_N
    nothing = jax.tree.map(lambda x: jnp.zeros_like(x) if is_float(x) else x, system)

    def one(_, carry):
        z, Q, logs, impacts, locked, captured, success = carry
        v = jnp.concatenate([z, jnp.stack([T, jnp.zeros_like(T)])])
        F, J, sol = shooting.linearized(system, nothing, v, t0, T)
        moved = (J[:n, :n] + jnp.eye(n, dtype=z.dtype)) @ Q
        if sol.P_N.shape[1]:
            # A step carries along the gap with which a contact rests. The motion has none.
            gaps = jnp.where(resting(sol, e_N)[:, None], jax.jacfwd(system.gap, 1)(sol.t[-1], sol.q[-1]), 0)
            moved = moved.at[: q.size].add(-jnp.linalg.pinv(gaps) @ (gaps @ moved[: q.size]))
        Q, R = jnp.linalg.qr(moved)
        closes, rests = closings(sol, e_N)
        count = _impacts(sol)
        logs = logs + jnp.log(jnp.abs(jnp.diagonal(R)))
        return z + F[:n], Q, logs, impacts + count, locked | rests, captured + closes, success & sol.success

    def block(carry, length):
        z, Q, *of_all = carry
        z, Q, logs, *of_all = lax.fori_loop(0, length, one, (z, Q, jnp.zeros(2 * n_u, z.dtype), *of_all))
        return (z, Q, *of_all), logs / length

    zero, no = jnp.zeros((), jnp.int32), jnp.zeros((), bool)
    lengths = jnp.concatenate([jnp.reshape(transient, (1,)), jnp.broadcast_to(length, (BLOCKS,))])
    start = (jnp.concatenate([q, u]), directions, zero, no, zero, ~no)

    def blocks(carry, of):
        length, first = of
        carry, logs = block(carry, length)
        z, Q, impacts, locked, captured, success = carry
        # What happened before the mean counts as nothing but a failure.
        return (z, Q, jnp.where(first, 0, impacts), locked & ~first, jnp.where(first, 0, captured), success), logs

    first = jnp.arange(BLOCKS + 1) == 0
    (z, _, impacts, locked, captured, success), logs = lax.scan(blocks, start, (lengths, first))
    logs = logs[1:]
    mean, periods = jnp.mean(logs, axis=0), BLOCKS * length
    finite = jnp.all(jnp.isfinite(logs), axis=0)
    error = jnp.std(jnp.where(finite, logs, 0), axis=0, ddof=1) / np.sqrt(BLOCKS)
    mean = jnp.where(jnp.isnan(mean) & success, -jnp.inf, mean)
    order = jnp.argsort(-mean)
    mean = mean[order]
    return Exponents(
        mean,
        mean / T,
        error[order],
        impacts.astype(q.dtype) / periods,
        locked,
        captured.astype(q.dtype) / periods,
        success,
        z[: shooting.n_q],
        z[shooting.n_q :],
    )


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Diagram:
    """Motions seen once a period, of one system or, with a leading axis, of many values of a parameter.

    values:    values of the parameter (K,), or None
    q, u:      (..., keep, n_q), (..., keep, n_u) states at the ends of the periods that are kept
    impacts:   (..., keep) located impacts in these periods
    locked:    (...) whether a contact with restitution stayed closed in them
    captured:  (...) whether there was an impact that the scheme did not locate: a chattering, a landing, a slow one
    success:   (...) whether every step succeeded
    """

    values: Any
    q: Any
    u: Any
    impacts: Any
    locked: Any
    captured: Any
    success: Any


@jit(static_argnames=("shooting", "keep"))
def seen(shooting, system, q, u, t0, T, transient, keep):
    """`Diagram` of one system, and whether a contact with restitution stays closed in all periods that are kept."""
    e_N = Contacts(system).data(t0, q).e_N

    def one(state, _):
        q, u = state
        sol = simulate(system, shooting.scheme, q, u, t1=t0 + T, t0=t0, n_steps=shooting.n_steps, solver=shooting.solver)
        z = shooting.after_reset(system, t0 + T, sol.q[-1], sol.u[-1])
        state = z[: shooting.n_q], z[shooting.n_q :]
        count = _impacts(sol)
        closes, rests = closings(sol, e_N)
        return state, (*state, count, rests, closes, staying(sol, e_N), sol.success)

    def unkept(_, carry):
        state, success = carry
        state, row = one(state, None)
        return state, success & row[-1]

    state, before = lax.fori_loop(0, transient, unkept, ((q, u), jnp.ones((), bool)))
    _, (q, u, impacts, locked, captured, stays, success) = lax.scan(one, state, None, length=keep)
    out = Diagram(None, q, u, impacts, jnp.any(locked), jnp.any(captured), before & jnp.all(success))
    return out, jnp.any(jnp.all(stays, axis=0))


def poincare(
    system: System,
    scheme: Scheme,
    q: ArrayLike,
    u: ArrayLike,
    period: ArrayLike | Callable[..., Any],
    *,
    n_steps: int,
    n_periods: int,
    transient: int = 0,
    reset: Callable[..., Any] | None = None,
    t0: ArrayLike = 0.0,
    solver: AbstractContactSolver | None = None,
) -> Diagram:
    """The motion from (q, u), seen once a period at the phase of ``t0``: a stroboscopic Poincare section of ``n_periods`` points.

    Arguments as those of `periodic` and `lyapunov`. Works under `jit` and `vmap`. Raises ValueError or TypeError, before tracing, for input
    that makes no sense.
    """
    keep, transient = whole("poincare", "n_periods", n_periods, 1), whole("poincare", "transient", transient, 0)
    shooting, system, q, u, t0, T = prepared("poincare", system, scheme, q, u, period, n_steps, None, reset, t0, solver)
    return seen(shooting, system, q, u, t0, T, transient, keep)[0]


def diagram(
    system: System,
    scheme: Scheme,
    q: ArrayLike,
    u: ArrayLike,
    period: ArrayLike | Callable[..., Any],
    parameter: str | Callable[[Any], Any],
    values: ArrayLike,
    *,
    n_steps: int,
    keep: int = 50,
    transient: int = 200,
    reset: Callable[..., Any] | None = None,
    t0: ArrayLike = 0.0,
    solver: AbstractContactSolver | None = None,
) -> Diagram:
    """Brute-force bifurcation diagram: the motion from (q, u) for every value of a parameter, seen once a period after a transient.

    parameter:  name of a number of the system, or a function that returns its leaf, as in `follow`
    values:     (K,) its values, all at once by `jax.vmap`
    keep:       periods to keep, after ``transient`` others

    Members that lock, chatter or fail are reported as such in the `Diagram`. Raises ValueError or TypeError, before tracing, for input that
    makes no sense.
    """
    keep, transient = whole("diagram", "keep", keep, 1), whole("diagram", "transient", transient, 0)
    array = numbers(values)
    if array is None or isinstance(array, jax.ShapeDtypeStruct):
        raise TypeError(f"diagram: values must be a vector of finite numbers, got {shown(values)}")
    values = np.asarray(array, float)
    if values.ndim != 1 or not values.size or not np.all(np.isfinite(values)):
        raise ValueError(f"diagram: values must be a vector of finite numbers, got {values}")
    shooting, system, q, u, t0, T = prepared("diagram", system, scheme, q, u, period, n_steps, None, reset, t0, solver)
    which = named_parameter("diagram", system, parameter)
    direction, first = which.direction(system), which.value(system)
    moved = jnp.asarray(values, q.dtype) - first
    out = _all_seen(shooting, system, direction, moved, q, u, t0, T, transient, keep)
    return Diagram(values, *(getattr(out, name) for name in ("q", "u", "impacts", "locked", "captured", "success")))


@jit(static_argnames=("shooting", "keep"))
def _all_seen(shooting, system, direction, moved, q, u, t0, T, transient, keep):
    def one(amount):
        member = shifted(system, direction, amount)
        length = T if shooting.period is None else jnp.reshape(jnp.asarray(shooting.period(member), q.dtype), ())
        return seen(shooting, member, q, u, t0, length, transient, keep)[0]

    return jax.vmap(one)(moved)
