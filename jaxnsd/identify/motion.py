"""A motion as identification needs it: as long as its data, observed at any time, with one program for all lengths."""

import jax
import jax.numpy as jnp
from jax import lax

from .. import anisotropy
from ..simulate import _History, _loop, _parameters

#: Steps of a part of a motion; parts that no frame needs are not computed.
PART = 32


def nodes(settings, system, t0, q0, u0, n_steps, duration):
    """``(q (n, n_q), u (n, n_u), worst outcome)`` of a motion at its nodes, ``t0 + k dt``; valid up to the first node after ``duration``.

    settings: scheme, dt, solver, sensitivity; n_steps: the most there are. The numbers are those of `simulate`.
    """
    parts = -(-(n_steps + 1) // PART)
    history = _History(settings.scheme, parts * PART, 1, settings.solver, settings.sensitivity, None)
    dtype = q0.dtype
    t0, dt = (jnp.asarray(x, dtype) for x in (t0, settings.dt))
    times = (t0, dt, t0 + parts * PART * dt)
    args = (anisotropy.isotropic(system), times, q0, u0, None)
    carry, body, _, (_, first) = history.start(args)
    n_q, n_u = q0.size, u0.size
    state, record = history.shapes(args)
    # Of a row, which holds the state of a node and the record of the interval before, the outcome is this entry.
    place = sum(leaf.size for leaf in jax.tree.leaves((history.node(state), record[:3])))

    def step(carry, k):
        carry, out = body(carry, k)
        return carry, (out[: n_q + n_u], out[place])

    def part(carry, i):
        def go(carry):
            return _loop(step, carry, PART, first=i * PART)

        def rest(carry):
            return carry, (jnp.zeros((PART, n_q + n_u), dtype), jnp.zeros((PART,), dtype))

        return lax.cond(i * PART * dt <= duration + dt, go, rest, carry)

    _, (rows, outcome) = lax.scan(part, carry, jnp.arange(parts))
    rows, outcome = rows.reshape(parts * PART, n_q + n_u), outcome.reshape(-1)
    needed = jnp.arange(parts * PART) * dt <= duration + dt
    invalid = _parameters(system, times, q0).astype(dtype)
    worst = jnp.maximum(jnp.max(jnp.where(needed, outcome, 0)), jnp.maximum(first, invalid))
    return rows[:, :n_q], rows[:, n_q:], lax.stop_gradient(worst)


def at_times(x, dt, *histories):
    """Histories (n, ...) at the times x (F,) after their first node: linear between nodes, and before the first one."""
    place = jnp.clip(jnp.floor(lax.stop_gradient(x) / dt + 1e-6), 0, histories[0].shape[0] - 2).astype(jnp.int32)
    part = (x / dt - place)[:, None]
    return [(1 - part) * history[place] + part * history[place + 1] for history in histories]


def displaced(system, t0, q0, u0, delta):
    """A state moved by ``delta`` (2 n_u,): coordinates along q_dot for a unit of time, so that a quaternion stays one, and velocities."""
    move, change = jnp.split(delta, 2)

    def rate(q):
        return system.q_dot(t0, q, move) - system.q_dot(t0, q, jnp.zeros_like(move))

    h = 0.25
    for _ in range(4):
        k1 = rate(q0)
        k2 = rate(q0 + 0.5 * h * k1)
        k3 = rate(q0 + 0.5 * h * k2)
        k4 = rate(q0 + h * k3)
        q0 = q0 + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return q0, u0 + change
