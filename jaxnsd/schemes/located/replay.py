"""A located step repeated from its records, as a function of its arguments: what is differentiated in place of the search."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ...programs.derivatives import instantiated, no_tangents, pushed, with_rule
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
    return jnp.where(records.valid & jnp.any(records.hit, axis=1), ends, jnp.nan)[:-1]


def contacts(records):
    """The contacts whose impacts were located (max_impacts,), -1 where there is none."""
    n = records.hit.shape[1]
    return jnp.max(jnp.where(records.hit & records.valid[:, None], np.arange(n), -1), axis=1, initial=-1)[:-1].astype(jnp.int32)


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
        longer = push(jnp.ones_like(length), *no_tangents((system, t, place)))
        d_tau = jnp.where(
            record.last, 0, delay(segments, record, system, t, length, after.state, longer.state, (d_system, d_t, d_after.state))
        )
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
        longer = push(jnp.ones_like(length), *no_tangents((system, t, place)))
        return length, delay(segments, record, system, t, length, after.state, longer.state, (*tangents[:2], d_after.state))

    return with_rule(lambda system, t, place, record: record.length, rule)(system, t, place, record)


def delay(segments, record, system, t, length, after, rates, tangents):
    """``d tau = -d f / f_dot`` with f the gap that closes, or the velocity of the row of friction that stops: shift of a segment's end.

    tangents: those of (system, t, state) with its length fixed. ``rates``: of the state at the end with the length of the segment. They are
    those of the scheme's step, whose coordinates differ from those by the velocity at the end by the order of the scheme: the time found is
    where the step closes the gap. Where a row starts to slide forces do not jump, so that a shift in time changes nothing.
    """
    d_system, d_t, d_after = tangents

    def becomes_zero(system, t, q, u):
        slip = segments.rows.velocities(system, t, q, u)
        return jnp.sum(jnp.where(record.hit, system.gap(t, q), 0)) + jnp.sum(record.stops * slip)

    end = t + length
    along = jnp.ones_like(end), rates.q, rates.u
    rate = jax.jvp(lambda t, q, u: becomes_zero(system, t, q, u), (end, after.q, after.u), along)[1]
    change = pushed(becomes_zero, (system, end, after.q, after.u), (d_system, d_t, d_after.q, d_after.u))[1]
    return -change / jnp.where(record.tangled, jnp.nan, jnp.where(rate < 0, rate, -1.0))
