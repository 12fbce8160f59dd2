"""A located step repeated from its records, as a function of its arguments: what is differentiated in place of the search."""

import jax
import jax.numpy as jnp
from jax import lax

from ...programs.derivatives import instantiated, pushed, with_rule
from .segments import added


def replay(segments, system, t, dt, state, records):
    """``(state, times)`` at the end of the step that ``records`` tell of, as functions of the arguments."""
    whole = records.whole[0]

    def one(carry, record):
        def stepped(carry):
            place, s, P = carry
            after, length = segment(segments, system, t + s, dt - s, place, record)
            s, P = s + length, added(P, after.state.P)

            def impact(after):
                place, P_impact, _ = segments.restarted(system, t + s, dt, after.state, record.mask)
                return place, added(P, P_impact)

            place, P = lax.cond(record.last, lambda after: (after, P), impact, after)
            return place, s, P

        carry = lax.cond(record.valid, stepped, lambda carry: carry, carry)
        return carry, t + carry[1]

    nothing = jnp.zeros_like(dt), jax.tree.map(jnp.zeros_like, state.P)
    (after, _, P), ends = lax.scan(one, (segments.start(system, t, dt, state), *nothing), records)
    after = after._replace(state=after.state._replace(P=P))
    return segments.end(system, t + dt, dt, after, whole), times(ends, records)


def times(ends, records):
    """Times of the impacts (max_impacts,), NaN where there is none, from the times at which the segments end."""
    return jnp.where(records.valid & ~records.last, ends, jnp.nan)[:-1]


def contacts(records):
    """The contacts whose impacts were located (max_impacts,), -1 where there is none."""
    return jnp.where(records.valid & ~records.last, jnp.argmax(records.hit, axis=1), -1)[:-1].astype(jnp.int32)


def segment(segments, system, t, rest, place, record):
    """``(place, length)`` at the end of a segment, which is after ``rest``, or where the gap of its contact closes."""

    def stepped(system, t, rest, place, record):
        length = jnp.where(record.last, rest, record.length)
        return segments.of_length(record, length, system, t, place)[0], length

    def rule(primals, tangents):
        (system, t, rest, place, record), (d_system, d_t, d_rest, d_place, _) = primals, tangents
        length = jnp.where(record.last, rest, duration(segments, system, t, place, record))
        d_length = jnp.where(record.last, instantiated(rest, d_rest), 0)
        after, push = segments.linearized(record, length, system, t, place)
        d_after = push(d_length, *instantiated((system, t, place), (d_system, d_t, d_place)))
        longer = push(jnp.ones_like(length), *jax.tree.map(jnp.zeros_like, (system, t, place)))
        d_tau = jnp.where(record.last, 0, delay(record, system, t, length, after.state, longer.state.q, (d_system, d_t, d_after.state.q)))
        d_after = jax.tree.map(lambda d, rate: d + d_tau * rate, d_after, longer)
        return (after, length), (d_after, d_length + d_tau)

    return with_rule(stepped, rule)(system, t, rest, place, record)


def duration(segments, system, t, place, record):
    """Length of a segment that ends with an impact."""

    def rule(primals, tangents):
        # First derivatives need this in no place; second derivatives do.
        (system, t, place, record), tangents = primals, tangents[:3]
        length = duration(segments, *primals)
        after, push = segments.linearized(record, length, system, t, place)
        tangents = instantiated((system, t, place), tangents)
        d_after = push(jnp.zeros_like(length), *tangents)
        longer = push(jnp.ones_like(length), *jax.tree.map(jnp.zeros_like, (system, t, place)))
        return length, delay(record, system, t, length, after.state, longer.state.q, (*tangents[:2], d_after.state.q))

    return with_rule(lambda system, t, place, record: record.length, rule)(system, t, place, record)


def delay(record, system, t, length, after, q_dot, tangents):
    """``d tau = -d g_N / g_N_dot``: shift of a segment's end in time, from the tangents of (system, t, q) with its length fixed.

    q_dot: rate of the coordinates at the end with the length of the segment. It is that of the scheme's step, which differs from that by
    the velocity at the end by the order of the scheme: the time found is where the step closes the gap.
    """
    end = t + length
    gap = lambda system, t, q: jnp.sum(jnp.where(record.hit, system.gap(t, q), 0))  # noqa: E731
    rate = jax.jvp(lambda t, q: gap(system, t, q), (end, after.q), (jnp.ones_like(end), q_dot))[1]
    d_gap = pushed(gap, (system, end, after.q), tangents)[1]
    return -d_gap / jnp.where(record.tangled, jnp.nan, jnp.where(rate < 0, rate, -1.0))
