"""The search for the impacts of a step: trial segments to its end, and the time of an impact where one of them crosses a gap."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ...contact import apart
from ...numerics import linalg
from .. import base
from ..condensed import kinematics
from .roots import correction, crossings, refine
from .segments import REGULAR, SHORT, Contacts, Place, Record, added, contacts_at

#: Steps of the bounded Newton iteration on the time of one impact.
ITERATIONS = 8

#: A contact that separates slower than this part of the closing speed stays closed.
STAYS = 1e-9


class Carry(NamedTuple):
    """State of the search."""

    done: Any
    locating: Any  # whether the time of an impact is being iterated
    tries: Any  # iterations on it
    record: Record  # the segment that is being stepped
    length: Any  # length to step, while locating
    low: Any  # bounds of the time of impact
    high: Any
    contacts: Contacts  # at the start of the segment
    seen: Any  # (n_N,) contacts that the wrapped scheme sees
    held: Any  # (n_N,) contacts that are closed at the start of the step
    hit: Any  # (n_N,) the contact whose time is being iterated
    count: Any  # impacts located
    P: Any  # percussions of the segments before
    info: base.Info
    records: Record  # (max_impacts + 1, ...)
    after: Place  # the end


def search(segments, system, t, dt, state):
    """``(state, info, records)``: the step, and the segments it is made of."""
    system, t, dt, state = jax.tree.map(lax.stop_gradient, (system, t, dt, state))
    place = segments.start(system, t, dt, state)
    contacts = contacts_at(system, t, dt, place.state.q, place.state.u)
    # A contact at gap zero that has not pushed may be about to separate, or to hit: the trial step tells.
    closed, pushed = contacts.gap <= contacts.floor, state.P.P_N > 0
    seen, held = (contacts.gap < -contacts.floor) | (closed & pushed), closed | pushed
    no, zero, count = jnp.zeros((), bool), jnp.zeros_like(dt), jnp.zeros((), jnp.int32)
    none = jnp.zeros(seen.shape, bool)
    record = Record(place, zero, dt, zero, contacts.gap, no, no, no, none, none, no)
    records = jax.tree.map(lambda x: jnp.broadcast_to(x, (segments.max_impacts + 1, *x.shape)), record)
    nothing = jax.tree.map(jnp.zeros_like, state.P), base.nothing_to_solve(dt.dtype)
    carry = Carry(no, no, count, record, dt, zero, dt, contacts, seen, held, none, count, *nothing, records, place)
    carry = lax.while_loop(lambda c: ~c.done, lambda c: iteration(segments, system, t, dt, c), carry)
    place = carry.after._replace(state=carry.after.state._replace(P=added(carry.P, carry.after.state.P)))
    return segments.end(system, t + dt, dt, place, carry.records.whole[0]), carry.info, carry.records


def iteration(segments, system, t, dt, c):
    """One step of the wrapped scheme, and what follows from it."""
    length = jnp.where(c.locating, c.length, dt - c.record.s)
    record = c.record._replace(
        length=length,
        extra=jnp.where(length <= SHORT * dt, REGULAR * dt, 0),
        shift=veil(dt, c),
        whole=~c.locating & (c.count == 0),
    )
    after, info = segments.of_length(record, length, system, t + record.s, record.place)
    contacts = contacts_at(system, t + record.s + length, dt, after.state.q, after.state.u)
    # Only the iterations count of a step that is not kept.
    kept = base.total(c.info, info)
    tried = base.total(c.info, base.nothing_to_solve(dt.dtype)._replace(iterations=info.iterations))
    c = c._replace(record=record, info=tried)
    return lax.cond(
        c.locating,
        lambda c: locate(segments, system, t, dt, c, after, kept, contacts),
        lambda c: judge(segments.slowest, system, t + record.s + length, dt, c, after, kept, contacts),
        c,
    )


def veil(dt, c):
    """Shift of the gaps in a segment: contacts that are not seen are held open, those at a gap of round-off are closed."""
    gap, rate, directions, floor = c.contacts
    passed = dt * (linalg.matmul(directions.T, jnp.abs(c.record.place.state.u)) + jnp.abs(rate))
    return jnp.where(c.seen, -jnp.clip(gap, 0, floor), 10 * (jnp.abs(gap) + passed))


def judge(slowest, system, t, dt, c, after, info, contacts):
    """After a trial step to the end, t: is it the last segment, is an impact to be located, or must a contact be seen?"""
    length, start, u = c.record.length, c.contacts, c.record.place.state.u
    found = crossings(length, start[:2], contacts[:2], start.floor, SHORT * dt)
    crossing = found.closes & ~c.seen
    # The speed that is gained in a step, at the rate of this segment: from forces, and at constant u from kinematics (see `turned`). That
    # of what is closed: a body that spins, or flies over a bump, may land as slowly.
    kinematic = jnp.where(c.held, jnp.abs(system.gap_velocity(t, after.state.q, u) - start.rate), 0)
    gained = (linalg.matmul(start.directions.T, jnp.abs(after.state.u - u)) + kinematic) * (dt / length)
    fast = crossing & (found.rate < -slowest * gained)
    slow = crossing & (~fast | (c.count >= c.records.valid.shape[0] - 1))
    first = jnp.argmin(jnp.where(fast, found.time, jnp.inf))
    hit = jnp.arange(crossing.shape[0]) == first
    done = ~jnp.any(crossing)
    return c._replace(
        done=done,
        # Contacts that close slowly are the wrapped scheme's; only then are impacts looked for.
        locating=~done & ~jnp.any(slow),
        seen=c.seen | slow,
        hit=hit,
        tries=jnp.zeros_like(c.tries),
        length=only(hit, found.time),
        low=only(hit, found.low),
        high=only(hit, found.high),
        records=kept(c, c.record._replace(valid=done, last=done), done),
        info=jax.tree.map(lambda kept, tried: jnp.where(done, kept, tried), info, c.info),
        after=after,
    )


def locate(segments, system, t, dt, c, after, info, contacts):
    """After a step to where an impact may be: accept its time and go on behind the impact, or improve it."""
    length, gap, closing = c.record.length, only(c.hit, contacts.gap), only(c.hit, contacts.rate)
    late = c.tries >= ITERATIONS // 2
    # As good as it gets, which in single precision is round-off of dt; where round-off is in the way, good enough.
    accurate = jnp.abs(correction(gap, closing)) <= jnp.maximum(jnp.where(late, 1, 1e-3) * SHORT, 4 * jnp.finfo(dt.dtype).eps) * dt
    accepted = (closing < 0) & ((length == 0) | accurate | (late & (jnp.abs(gap) <= only(c.hit, c.contacts.floor))))
    exhausted = c.tries >= ITERATIONS

    def improve(c):
        new, low, high = refine(length, gap, closing, c.low, c.high)
        # An impact that is not found is captured.
        seen = c.seen | (c.hit & exhausted)
        return c._replace(length=new, low=low, high=high, tries=c.tries + 1, locating=~exhausted, seen=seen)

    def impact(c):
        # A contact that touches and does not separate has no way out of the impact, whether it has pushed before or not.
        closed, stays = contacts.gap <= c.contacts.floor, STAYS * jnp.abs(closing)
        hit = c.hit | (~c.seen & closed & (contacts.rate <= stays))
        s = c.record.s + length
        # What hits at the same time elsewhere has its own shift in time, so it is an impact of its own, after no time; the last impact that
        # can be located takes all of them, and has no derivative then.
        part = together(segments, system, t + s, dt, after.state, c.hit, hit | (c.seen & closed))
        last = c.count + 1 >= c.records.valid.shape[0] - 1
        tangled = last & jnp.any(hit & ~part & (contacts.rate < -stays))
        hit = hit & (part | last)
        mask = hit | (c.seen & closed)
        record = c.record._replace(hit=c.hit, mask=mask, valid=jnp.ones((), bool), tangled=tangled)
        place, P, of_impact = segments.restarted(system, t + s, dt - s, after.state, mask)
        start = contacts_at(system, t + s, dt, place.state.q, place.state.u)
        no, nothing = jnp.zeros((), bool), jnp.zeros_like(c.hit)
        return c._replace(
            locating=no,
            record=Record(place, s, dt, jnp.zeros_like(dt), record.shift, no, no, no, nothing, nothing, no),
            contacts=start,
            seen=jnp.where(hit, start.rate <= stays, c.seen),
            count=c.count + 1,
            P=added(added(c.P, after.state.P), P),
            info=base.total(info, of_impact),
            records=kept(c, record, True),
        )

    return lax.cond(accepted, impact, improve, c)


def together(segments, system, t, dt, state, hit, closed):
    """Of the contacts that are closed (n_N,) those at which an impact of ``hit`` is felt, by way of others."""
    if hit.shape[0] == 1:
        return hit
    prepared, q, u = segments.scheme.prepare(system, dt), state.q, state.u
    G = linalg.pack(segments.scheme.inertia(prepared, t, q, u, kinematics(system, t, q, u)).G)
    label = apart.labels(G, closed, state.P.P_F.shape[1])
    return label == label[jnp.argmax(hit)]


def only(hit, x):
    """The entry of x (n_N,) that ``hit`` marks."""
    return jnp.sum(jnp.where(hit, x, 0))


def kept(c, record, happens):
    """The records with this one as the next, if it happens."""

    def put(all, new):
        at = jnp.arange(all.shape[0]) == c.count
        return jnp.where(happens & at.reshape(-1, *(1,) * (all.ndim - 1)), new, all)

    return jax.tree.map(put, c.records, record)
