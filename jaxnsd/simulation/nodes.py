"""Velocities at the nodes, of schemes whose velocities are at mid-interval, and the motion between the nodes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from ..contact import SemismoothNewton
from ..mechanics.results import Event
from ..mechanics.system import System
from ..programs.given import numbers, shown
from ..programs.jitted import jit
from ..schemes.base import Percussions, Scheme, State
from ..schemes.flow import acceleration_of_persistent
from . import checks
from .solution import Grid, Solution


def node_velocities(system: System, scheme: Scheme | None, solution: Solution) -> jax.Array:
    """Velocities (N + 1, n_u) with which the nodes of a `Solution` are left, at the times of its coordinates.

    They are ``solution.u`` but for `SymmetricMoreau` and `VariationalMoreau`, whose ``u[k]`` is that of half a step after the node
    ``t[k]``: there they are of second order, with contacts and constraints as they are at the node. For one motion; `vmap` makes batches.
    """
    checks.motion("node_velocities", solution, system)
    checks.made_by("node_velocities", scheme, solution)
    if scheme is None or not scheme.lead or solution.save_every is None:
        return solution.u
    before = jax.tree.map(
        lambda first, rest: jnp.concatenate([first[None], rest]),
        solution.initial,
        Percussions(solution.P_N, solution.P_F, solution.P_g, solution.P_gamma, solution.P_D),
    )

    u = jax.jit(jax.vmap(at_node(system, scheme, solution.dt)))(solution.t, solution.q, solution.u, before)
    # Nodes after the end have no percussions to start from.
    return u if solution.stop is None else u[jnp.minimum(jnp.arange(len(u)), solution.end)]


def at_times(system: System, solution: Solution, times: ArrayLike) -> tuple[jax.Array, jax.Array]:
    """Coordinates (F, n_q) and velocities (F, n_u) at times (F,) in s between the nodes; of one time, (n_q,) and (n_u,).

    system, solution:  the system that a `Solution` of one motion was made with; `vmap` makes batches
    times:             in any order, from the first node to the end of the motion

    Coordinates are cubic from one stored node to the next (Hermite's polynomial, of fourth order), velocities are those of
    `node_velocities`, and linear. In a step in which `LocatedImpacts` has located an impact coordinates go straight to the impact and away
    from it, of second order, and velocities jump there. What other schemes capture is spread over its step, and with ``save_every > 1``
    every impact over its stored interval. Quaternions of bodies have length one.

    Works under `jit`, `vmap` and `grad`, by the times too; a time outside of the motion is not a number there. Raises ValueError for times
    outside that are known, for a batch, and TypeError for what are no numbers.
    """
    checks.motion("at_times", solution, system)
    if solution.batch_shape:
        raise ValueError(f"at_times: takes one motion, got a batch of shape {solution.batch_shape}; use jax.vmap")
    checks.every_node("at_times", solution)
    if not checks.known(times):
        times = jnp.asarray(times)
    elif (array := numbers(times)) is None or array.dtype == bool:
        raise TypeError(f"at_times: times must be numbers in s, got {shown(times)}")
    else:
        times = np.asarray(array)
    if times.ndim > 1:
        raise ValueError(f"at_times: times must be one time or have one axis, got shape {times.shape}")
    begin, end, dt = solution.t[0], solution.t[-1], solution.dt
    # What is said in other digits than a node may be outside by round-off.
    allowed = _round_off(dt, jnp.maximum(jnp.abs(begin), jnp.abs(end)))
    outside = ~((times >= begin - allowed) & (times <= end + allowed))
    if checks.known(outside) and np.any(outside):
        wrong = float(times[np.asarray(outside)].flat[0])
        raise ValueError(f"at_times: times must be from {float(begin):.9g} to {float(end):.9g} s, where the motion ends, got {wrong:.9g} s")
    x = jnp.asarray(times, begin.dtype) - begin
    impacts = solution.auxiliary.get("impact_times") if solution.save_every == 1 else None
    impacts = jnp.zeros((len(solution.t), 0), x.dtype) if impacts is None else impacts - begin
    every, steps = solution.save_every, solution.steps
    place = jnp.floor(lax.stop_gradient(x / (every * dt)) + 1e-6)
    place = jnp.clip(place, 0, solution.end - 1).astype(jnp.int32)
    # The last interval of a motion that ends inside of it is shorter.
    length = jnp.minimum(every, steps - every * place) * dt
    if solution.grid is not None:
        length = jnp.where(place == solution.end - 1, end - begin - place * every * dt, length)
    path = solution.t, solution.q, node_velocities(system, solution.scheme, solution), impacts
    q, u = _between(system, path, jnp.atleast_1d(x), jnp.atleast_1d(place), jnp.atleast_1d(length), every * dt)
    q, u = (jnp.where(jnp.atleast_1d(outside)[:, None], jnp.nan, x) for x in (q, u))
    return (q, u) if times.ndim else (q[0], u[0])


def _round_off(dt, t):
    """How far a time t may be from the node that it is: what is said in other digits, or computed, in s."""
    return 1e-6 * dt + 8 * float(jnp.finfo(t.dtype).eps) * jnp.abs(t)


def at_the_times(system, solution, times):
    """The `Solution` of a run at times (M,) in place of its nodes, see ``simulate(..., save_at=)``."""
    times = jnp.where(solution.stopped, jnp.minimum(times, solution.t[-1]), times)
    q, u = at_times(system, solution, times)
    # A step belongs to the interval in which it ends; what ends with a time to round-off, which is that of the times, ends with it.
    ends = lax.stop_gradient(solution.t[1:])
    place = jnp.searchsorted(lax.stop_gradient(times), ends - _round_off(lax.stop_gradient(solution.dt), ends))
    count = len(times) + 1
    ended = jnp.cumsum(jax.ops.segment_sum(jnp.ones_like(place), place, count))[:-1]
    # The nodes after the end of a motion that was stopped are those of its end.
    grid = (solution.grid or Grid(solution.dt, len(solution.t) - 1, solution.t[-1]))._replace(ended=jnp.minimum(ended, solution.steps))

    def added(x):
        return jax.ops.segment_sum(x, place, count)[1:-1]

    def largest(x):
        """Of what comes before the first time, of the intervals, of what comes after the last one."""
        return jnp.maximum(jax.ops.segment_max(lax.stop_gradient(x), place, count), jnp.asarray(-1, x.dtype))

    P = {name: jax.tree.map(added, getattr(solution, name)) for name in Percussions._fields}
    code = jnp.maximum(largest(solution.outcome), 0)
    # A run that failed has failed, wherever it was not looked at.
    within = code[1:-1].at[-1:].max(code[-1])
    first = jnp.maximum(solution.initial_outcome, code[0] if len(within) else jnp.max(code))
    bits = [bit * (largest(solution.events & bit) > 0)[1:-1] for bit in map(int, Event)]
    return dataclasses.replace(
        solution,
        t=times,
        q=q,
        u=u,
        **P,
        iterations=added(solution.iterations),
        residual=jnp.maximum(largest(solution.residual)[1:-1], 0.0),
        outcome=within,
        contact=largest(solution.contact)[1:-1],
        initial_outcome=first,
        events=sum(bits).astype(solution.events.dtype),
        auxiliary={},
        save_every=None,
        grid=grid,
    )


def steps_until(solution):
    """Number (N + 1,) of the steps that have ended by each stored time, of one motion; the percussions between two times are of these."""
    if solution.save_every is not None:
        return jnp.minimum(jnp.arange(len(solution.t)) * solution.save_every, solution.steps)
    return solution.grid.ended


@jit
def _between(system, path, x, place, length, interval):
    """States at times x (F,) after the first node, each in an interval, by its number and its length."""
    t, q, u, impacts = path

    def one(x, k, length):
        left, right = ((q[i], system.q_dot(t[i], q[i], u[i]), u[i]) for i in (k, k + 1))
        begin = k * interval
        at, velocity = within(x - begin, length, left, right, impacts[k + 1] - begin)
        return system.normalized(at), velocity

    return jax.vmap(one)(x, place, length)


def at_node(system, scheme, dt):
    """``at(t, q, u, P)``, the velocity (n_u,) at a node; P: percussions to start the solution from."""
    scheme = getattr(scheme, "scheme", scheme)  # that which LocatedImpacts wraps
    prepared, solver = scheme.prepare(system, dt), SemismoothNewton()

    def at(t, q, u, P):
        return u - scheme.lead * dt * acceleration_of_persistent(scheme, prepared, solver, t, dt, State(q, u, P))

    return at


def cubic(part, dt, q0, q1, v0, v1):
    """Coordinates (n_q,) after this part of a step, by Hermite's polynomial, of fourth order; v0, v1: their rates at its ends."""
    return q0 + part**2 * (3 - 2 * part) * (q1 - q0) + dt * part * (1 - part) * ((1 - part) * v0 - part * v1)


def within(s, dt, left, right, impacts):
    """``(q, u)`` at a time s after the node ``left`` of a step, at whose ends there are ``(q, q_dot, u)``; impacts in s after it, or NaN.

    Coordinates are cubic between nodes (Hermite), velocities linear. In a step with a located impact neither: a chord across it would be
    off by up to a quarter of a step times the jump of the velocity, on the same side in each impact. There coordinates go straight from
    both ends to the impact, where they meet, to second order in dt; velocities are those of the end on the same side, to first order.
    """
    (q0, v0, u0), (q1, v1, u1) = left, right
    part = s / dt
    q, u = jnp.where(s < 0, q0 + s * v0, cubic(part, dt, q0, q1, v0, v1)), jnp.where(s < 0, u0, u0 + part * (u1 - u0))
    if not impacts.size:
        return q, u
    hit = jnp.isfinite(impacts)
    some = jnp.any(hit)
    first = jnp.where(some, jnp.min(jnp.where(hit, impacts, jnp.inf)), dt)
    last = jnp.where(some, jnp.max(jnp.where(hit, impacts, -jnp.inf)), dt)
    ahead, behind = first / dt, 1 - last / dt
    several = last > first
    # One impact: what the two lines miss each other by there, of second order, is shared out, more of it to the longer one.
    apart = jnp.where(several, 0, q1 - (dt - last) * v1 - q0 - first * v0)
    shares = jnp.where(several, 1, ahead**4 + behind**4)
    before = lambda s: q0 + s * v0 + apart * (ahead * s / dt) ** 2 / shares  # noqa: E731
    after = lambda s: q1 - (dt - s) * v1 - apart * (behind * (1 - s / dt)) ** 2 / shares  # noqa: E731
    through = (s - first) / jnp.where(several, last - first, dt)
    between = (1 - through) * before(first) + through * after(last)
    pick = lambda a, b, c: jnp.where(s <= first, a, jnp.where(s >= last, b, c))  # noqa: E731
    inside = some & (s >= 0)
    return jnp.where(inside, pick(before(s), after(s), between), q), jnp.where(inside, pick(u0, u1, u), u)
