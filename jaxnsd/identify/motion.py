"""A motion as identification needs it: as long as its data, observed at any time, with one program for all lengths."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ..native.marks import written_out
from ..schemes.base import no_percussions
from ..simulation.loop import History, scan
from ..simulation.nodes import at_node, within

#: Steps of a part of a motion; parts that no frame needs are not computed.
PART = 32


class Nodes(NamedTuple):
    """A motion at its nodes, ``t0 + k dt``."""

    q: jax.Array  # (n, n_q)
    q_dot: jax.Array  # (n, n_q)
    u: jax.Array  # (n, n_u)
    #: (n, most in a step), times after t0 of the impacts located in the step that ends at a node; NaN where there is none
    impacts: jax.Array


def nodes(settings, system, t0, q0, u0, n_steps, duration):
    """``(Nodes, worst outcome)`` of a motion; valid up to the first node after ``duration``.

    settings: scheme, dt, solver, sensitivity; n_steps: the most there are. The numbers are those of `simulate`.
    """
    parts = -(-(n_steps + 1) // PART)
    history = History(settings.scheme, parts * PART, 1, settings.solver, settings.sensitivity, None)
    dtype = q0.dtype
    t0, dt = (jnp.asarray(x, dtype) for x in (t0, settings.dt))
    times = (t0, dt, t0 + parts * PART * dt)
    args = (system, times, q0, u0, None)
    loop = history.start(args)
    _, _, *codes = loop.first
    n_q, n_u = q0.size, u0.size
    state, record = history.shapes(args)
    # Of a row, which holds the state of a node and the record of the interval before, the outcome is this entry.
    node = history.node(state)
    place = sum(leaf.size for leaf in jax.tree.leaves((node, record[:3])))
    # What else a scheme stores of a node lies in the order of the names.
    located = node[2].get("impact_times")
    before = n_q + n_u + sum(leaf.size for leaf in jax.tree.leaves({name: x for name, x in node[2].items() if name < "impact_times"}))
    width = 0 if located is None else located.size

    def step(carry, k):
        out, carry = loop.row(carry), loop.following(carry, k)
        return carry, (jnp.concatenate([out[: n_q + n_u], out[before : before + width]]), out[place])

    def part(carry, i):
        def go(carry):
            return scan(written_out(step), carry, PART, first=i * PART)

        def rest(carry):
            return carry, (jnp.zeros((PART, n_q + n_u + width), dtype), jnp.zeros((PART,), dtype))

        return lax.cond(i * PART * dt <= duration + dt, go, rest, carry)

    _, (rows, outcome) = lax.scan(part, loop.carry, jnp.arange(parts))
    rows, outcome = rows.reshape(parts * PART, n_q + n_u + width), outcome.reshape(-1)
    needed = jnp.arange(parts * PART) * dt <= duration + dt
    worst = jnp.maximum(jnp.max(jnp.where(needed, outcome, 0)), jnp.maximum(*codes))
    q, u, impacts = rows[:, :n_q], rows[:, n_q : n_q + n_u], rows[:, n_q + n_u :]
    t = t0 + dt * jnp.arange(parts * PART, dtype=dtype)
    if settings.scheme.lead:
        # Rows that were not computed are zero, where derivatives need not be finite.
        q, u = (jnp.where(needed[:, None], x, start) for x, start in ((q, q0), (u, u0)))
        at = at_node(args[0], settings.scheme, dt)
        u = jax.vmap(lambda t, q, u: at(t, q, u, no_percussions(args[0], t, q, u)))(t, q, u)
    q_dot = jax.vmap(system.q_dot)(t, q, u)
    return Nodes(q, q_dot, u, impacts - t0), lax.stop_gradient(worst)


def at_times(x, dt, path):
    """``(q (F, n_q), u (F, n_u))`` of a motion (`Nodes`) at the times x (F,) after its first node.

    Between nodes as `nodes.within` says. Before the first node the motion goes on with the initial velocity.
    """
    place = jnp.clip(jnp.floor(lax.stop_gradient(x) / dt + 1e-6), 0, path.q.shape[0] - 2).astype(jnp.int32)
    begin = place * dt
    each = jax.vmap(within, in_axes=(0, None, 0, 0, 0))
    left, right = [of[place] for of in path[:3]], [of[place + 1] for of in path[:3]]
    return each(x - begin, dt, left, right, path.impacts[place + 1] - begin[:, None])


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
