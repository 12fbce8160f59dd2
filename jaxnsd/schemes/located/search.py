"""The search for the events of a step: trial segments to its end, and the time of the first event where one of them has some.

Which of several is the first is guessed by straight lines. So the segment to the event that was located is looked at like a trial to the
end: an event of any kind inside of it takes its place, with the length of that segment as bound.

What holds a row of friction that may stick is asked of the wrapped scheme, by a step of a small part of the length: at the start of a
segment with friction as it is, which tells what sticks and to which side the others slide, and at its end with what sticks held.

Where a closed contact may open is told by its normal force, which goes on below zero as the acceleration of the gap with its sign changed:
see `support`.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ... import contact
from ...contact import apart
from ...mechanics.local import kinematics
from ...native.marks import when_needed
from ...numerics import linalg
from .. import base
from ..flow import THRESHOLD, Flow, gained
from ..gathered import largest
from .friction import Mode, Veiled
from .roots import correction, crossings, refine, secant
from .segments import REGULAR, SHORT, Contacts, Place, Record, added, contacts_at

#: Steps of the bounded Newton iteration on the time of one event.
ITERATIONS = 8

#: A contact that separates slower than this part of the closing speed stays closed.
STAYS = 1e-9

#: Of a contact that has pushed, a gap below this part of what forces move it by in a step counts as zero: the solver of the wrapped scheme
#: leaves as much.
REMAINS = 1e-8

#: A row of friction whose velocity turns within this part of a segment was at rest at its start.
AT_REST = 1e-8

#: A row is held where friction needs less than this part of its bound.
FULL = 1 - 1e-9

#: To which part of a step the start of sliding, or an opening, is located, and to which at last, where round-off of forces is in the way:
#: forces are continuous there, so that a state feels the square of that.
STARTS, AT_LAST = 1e-6, 1e-3

#: A normal force that is zero, in units of those that forces make of it; it is evaluated with less than that of round-off.
NO_FORCE = 1e-6

#: Contacts open together where their normal forces have come down to this part of what they were at the start of the segment.
TOGETHER = 1e-5

#: How often an event that is located may give way to an earlier one.
EARLIER = 4

#: Events nearer than this multiple of what they are located to are at the same time.
APART = 10

#: A normal force may vanish in a segment where its mean is less than this multiple of what it has lost since the step before.
LOST = 3


class Trial(NamedTuple):
    """A segment that was stepped."""

    record: Record
    after: Place
    info: base.Info
    contacts: Contacts  # at its end
    load: Any  # (m,) `Rows.loads` in it; once asked for, at its end
    support: Any  # (2, n_N) `support` at its start and end, where a contact may open; else zero


class Friction(NamedTuple):
    """The rows of friction at the start of a segment, each (m,)."""

    mode: Mode
    rests: Any  # those at rest
    free: Any  # those left to the wrapped scheme
    load: Any  # what is needed to hold those that stick
    moved: Any  # bound of what forces make of their velocities in a step


class Root(NamedTuple):
    """The event whose time is being iterated."""

    hit: Any  # (n_N,) the contact that closes
    row: Any  # (m,) or the row of friction that stops, or starts to slide
    starts: Any  # which of both
    opens: Any  # (n_N,) or the contact that opens
    starting: Any  # (m,) all rows that start to slide in the segment that was judged: their loads are asked for
    opening: Any  # (n_N,) and all contacts that open in it: their normal forces are
    later: Any  # how many later events were located before
    length: Any  # length to step
    low: Any  # bounds
    high: Any
    before: Any  # of a row, or an opening: the length before, and the value there of what becomes zero
    value: Any

    @property
    def smooth(self):
        """Whether velocities do not jump: the event is none of a gap that closes."""
        return jnp.any(self.row) | jnp.any(self.opens)


class Carry(NamedTuple):
    """State of the search."""

    done: Any
    asks: Any  # 1 where the step to be made asks for the forces at the start of the segment, 2 at its end, else 0
    locating: Any  # whether the time of an event is being iterated
    tries: Any  # iterations on it
    record: Record  # the segment that is being stepped
    contacts: Contacts  # at the start of the segment
    seen: Any  # (n_N,) contacts that the wrapped scheme sees
    held: Any  # (n_N,) contacts that are closed at the start of the step
    moved: Any  # (n_N,) bound of what forces make of gap velocities in a step
    inverse_mass: Any  # (n_N,) what a normal percussion makes of its own gap velocity
    left: Any  # (n_N,) contacts whose opening is left to the wrapped scheme
    friction: Friction
    root: Root
    count: Any  # events located
    P: Any  # percussions of the segments before
    info: base.Info  # of the segments before, with the iterations of all that was tried
    records: Record  # (max_impacts + 1, ...)
    trial: Trial  # the segment that was stepped last


def search(segments, system, t, dt, state):
    """``(state, info, records)``: the step, and the segments it is made of."""
    system, t, dt, state = jax.tree.map(lax.stop_gradient, (system, t, dt, state))
    rows, place = segments.rows, segments.start(system, t, dt, state)
    moved, moved_rows, inverse_mass = moved_by_forces(segments, system, t, dt, place.state)
    contacts, pushed = contacts_at(system, rows, t, dt, place.state.q, place.state.u, moved), state.P.P_N > 0
    contacts = contacts._replace(floor=jnp.maximum(contacts.floor, jnp.where(pushed, REMAINS * dt * moved, 0)))
    # A contact at gap zero that has not pushed may be about to separate, or to hit: the trial step tells.
    closed = contacts.gap <= contacts.floor
    seen, held = (contacts.gap < -contacts.floor) | (closed & pushed), closed | pushed
    no, zero, count = jnp.zeros((), bool), jnp.zeros_like(dt), jnp.zeros((), jnp.int32)
    none, nothing = jnp.zeros(seen.shape, bool), jnp.zeros((rows.m,), dt.dtype)
    no_row = nothing > 0
    friction = friction_at_start(place.state.u, contacts, moved_rows, ~rows.of_contacts(held, True))
    veil = rows.veil(contacts.gap, friction.mode, nothing)
    record = Record(place, zero, dt, zero, veil, no, no, no, none, none, no, nothing, no)
    records = jax.tree.map(lambda x: jnp.broadcast_to(x, (segments.max_impacts + 1, *x.shape)), record)
    root = Root(none, no_row, no, none, no_row, none, count, dt, zero, dt, zero, zero)
    P, info = jax.tree.map(jnp.zeros_like, state.P), base.nothing_to_solve(dt.dtype)
    trial, asks = Trial(record, place, info, contacts, nothing, unsupported(seen, dt)), jnp.any(friction.rests).astype(jnp.int32)
    of_contacts = contacts, seen, held, moved, inverse_mass, none
    carry = Carry(no, asks, no, count, record, *of_contacts, friction, root, count, P, info, records, trial)
    carry = lax.while_loop(lambda c: ~c.done, lambda c: iteration(segments, system, t, dt, c), carry)
    place = carry.trial.after._replace(state=carry.trial.after.state._replace(P=added(carry.P, carry.trial.after.state.P)))
    return segments.end(system, t + dt, dt, place, carry.records.whole[0]), carry.info, carry.records


def moved_by_forces(segments, system, t, dt, state):
    """Bounds of what forces and contacts make in a step of the velocities of contacts (n_N,) and of rows of friction (m,), and what a unit
    of normal percussion makes of those of contacts (n_N,).
    """
    (q, u), rows, scheme = (state.q, state.u), segments.rows, segments.scheme
    W = jnp.concatenate([system.W_N(t, q, u), rows.directions(system, t, q, u)], axis=1)
    kin = kinematics(system, t, q, u).bilateral()._replace(W=W, chi=jnp.zeros(W.shape[1:], q.dtype))
    inertia = scheme.inertia(scheme.prepare(system, dt), system.M(t, q, u), kin)
    moved, n = gained(system, inertia, kin, system.h(t, q, u), t, dt, q, u), state.P.P_N.shape[0]
    if not W.shape[1]:
        return moved, moved, moved
    percussions = jnp.concatenate([state.P.P_N, rows.bounds(system, t, dt, state)])
    inverse_mass = contact.problem.diagonal(linalg.pack(inertia.G))
    moved = moved + inverse_mass * percussions
    return moved[:n], moved[n:], inverse_mass[:n]


def friction_at_start(u, contacts, moved, free):
    """`Friction` at the start of a step; what rests is to be asked for."""
    rests = ~free & of_round_off(contacts, moved, jnp.abs(u))
    mode = Mode(jnp.where(rests | free, 0, jnp.sign(contacts.slip)), jnp.zeros_like(rests))
    return Friction(mode, rests, free, jnp.zeros_like(moved), moved)


def of_round_off(contacts, moved, size):
    """Which rows have a velocity that is round-off of what moves them, and of velocities of this ``size`` (n_u,)."""
    floor = 64 * float(jnp.finfo(size.dtype).eps) * (moved + linalg.matmul(contacts.along.T, size))
    return jnp.abs(contacts.slip) <= floor


def iteration(segments, system, t, dt, c):
    """One step of the wrapped scheme, and what follows from it."""
    rows, length = segments.rows, jnp.where(c.locating, c.root.length, dt - c.record.s)
    start, s, whole = c.record.place, c.record.s, ~c.locating & (c.count == 0)
    if rows.m:
        # Halfway between round-off, and what the forces change by.
        short = float(jnp.finfo(dt.dtype).eps) ** (1 / 3) * dt
        length, whole = jnp.where(c.asks > 0, short, length), whole & (c.asks == 0)
        start = jax.tree.map(lambda end, start: jnp.where(c.asks == 2, end, start), c.trial.after, start)
        s = s + jnp.where(c.asks == 2, c.trial.record.length, 0)
    record = c.record._replace(
        length=length, extra=jnp.where(length <= SHORT * dt, REGULAR * dt, 0), veil=veil(segments, dt, c), whole=whole
    )
    after, info = segments.of_length(record, length, system, t + s, start)
    load = rows.loads(system, t + s, length + record.extra, after.state)
    contacts = contacts_at(system, rows, t + s + length, dt, after.state.q, after.state.u, c.moved)
    # Of a step that is not kept only the iterations count.
    c = c._replace(info=base.total(c.info, base.nothing_to_solve(dt.dtype)._replace(iterations=info.iterations)))
    trial = Trial(record, after, info._replace(iterations=jnp.zeros_like(info.iterations)), contacts, load, c.trial.support)
    if segments.openings and c.seen.shape[0]:
        asked = jnp.where(c.locating, jnp.any(c.root.opening), jnp.any(may_open(c, trial, dt))) & (c.asks == 0)
        trial = trial._replace(support=support(segments, system, t, dt, c, trial, asked))

    def judged(c):
        improved, accepted, bound = located(c, dt)
        improves = c.locating & ~accepted
        return lax.cond(improves, lambda c: improved, lambda c: judge(segments, system, t, dt, bound, c), c)

    if not rows.m:
        return judged(c._replace(trial=trial))
    # Of a step that asks for forces they alone are kept.
    load = jnp.where(c.asks == 2, at_end(c, load, short), load)
    c = c._replace(trial=jax.tree.map(lambda asked, new: jnp.where(c.asks > 0, asked, new), c.trial, trial)._replace(load=load))
    ask = (c.asks == 0) & jnp.where(c.locating, jnp.any(c.root.starting), jnp.any(near_bound(c)))
    which = jnp.where(c.asks == 1, 0, jnp.where(ask, 1, 2))
    asked = lambda c: c._replace(asks=jnp.full_like(c.asks, 2))  # noqa: E731
    return lax.switch(which, [lambda c: begin(rows, c, after.state.P.P_N > 0), asked, judged], c._replace(asks=jnp.zeros_like(c.asks)))


def unsupported(seen, dt):
    """`support` where none is asked for."""
    return jnp.zeros((2, *seen.shape), dt.dtype)


def may_open(c, trial, dt):
    """Which contacts (n_N,), closed at the start of a segment, may open in it: they are open at its end, or push ever less."""
    start, end = c.contacts, trial.contacts
    mean, before = trial.after.state.P.P_N / trial.record.length, c.record.place.state.P.P_N / dt
    falls = mean <= LOST * (before - mean)
    # Behind an event, and in the first step, nothing is known of before.
    unknown = (before <= 0) | (c.count > 0)
    pushes = (mean > 0) | (before > 0) | (c.count > 0)
    return c.seen & ~c.left & (start.gap <= start.floor) & pushes & (falls | unknown | (end.gap > end.floor))


def support(segments, system, t, dt, c, trial, asked):
    """Normal forces (2, n_N) at the start and the end of a segment, of the contacts that are closed at its start; zero unless ``asked``.

    They are those of the motion that keeps these contacts closed, with friction as in the segment. One that would pull is left out of it,
    and has the acceleration of its gap in its place, with its sign changed: at zero one becomes the other. In units of what the forces make
    of the acceleration of the gap.
    """
    scheme, settings = segments.scheme, segments.settings
    short = float(jnp.finfo(dt.dtype).eps) ** (1 / 3) * dt
    closed = c.seen & (c.contacts.gap <= c.contacts.floor)
    prepared = scheme.prepare(Veiled(system, trial.record.veil), short)

    def at(where):
        t, q, u, P = where
        # Near problems that were solved: without the globalization they compile in a third of the time.
        flow, q_dot, speed = Flow(scheme, settings.nearby(), P), system.q_dot(t, q, u), system.gap_velocity(t, q, u)
        # What a step leaves of a normal velocity is no acceleration, nor is what kinematics make of it (see `turned`); what slides, however
        # slow, does not stick.
        kinematic = THRESHOLD * jnp.abs(system.gap_velocity(t + dt, q + dt * q_dot, u) - speed)
        slow = c.moved + kinematic, jnp.broadcast_to((short / dt * c.moved)[:, None], P.P_F.shape)
        rate, force = flow.acceleration(prepared, t, short, q, u, closed, slow, flow.at(prepared, t, q, u))
        separates = (system.gap_velocity(t + short, q + short * q_dot, u + short * rate) - speed) / short
        force = jnp.where(force.P_N > 0, c.inverse_mass * force.P_N, -separates)
        return jnp.where(closed & (unit > 0), force / jnp.where(unit > 0, unit, 1), 0)

    start, end, s = c.record.place.state, trial.after.state, c.record.s
    speeds = linalg.matmul(c.contacts.directions.T, jnp.abs(start.u)) + jnp.abs(c.contacts.rate)
    unit = c.moved / dt + 16 * float(jnp.finfo(dt.dtype).eps) * speeds / (NO_FORCE * short)

    def both():
        places = [(t + s, start.q, start.u, end.P), (t + s + trial.record.length, end.q, end.u, end.P)]
        return lax.map(at, jax.tree.map(lambda *x: jnp.stack(x), *places))

    return lax.cond(largest(asked), when_needed(both), lambda: unsupported(c.seen, dt))


def veil(segments, dt, c):
    """`Veil` of a segment: contacts that are not seen are held open, those at a gap of round-off are closed; friction in its mode."""
    (gap, rate, directions, floor, slip, along), u, rows = c.contacts, jnp.abs(c.record.place.state.u), segments.rows
    passed = dt * (linalg.matmul(directions.T, u) + jnp.abs(rate))
    # A step that asks for forces is too short to close a gap.
    closed = jnp.where(c.asks == 2, c.trial.contacts.gap, gap) if rows.m else gap
    shift = jnp.where(c.seen, -jnp.clip(closed, 0, floor), 10 * (jnp.abs(gap) + passed))
    if not rows.m:
        return rows.veil(shift, c.friction.mode, slip)
    mode = jax.tree.map(lambda x: jnp.where(c.asks == 1, jnp.zeros_like(x), x), c.friction.mode)
    return rows.veil(shift, mode, 100 * (c.friction.moved + jnp.abs(slip) + linalg.matmul(along.T, u)))


def begin(rows, c, pushes):
    """What rests at the start of a segment sticks, or slides to a side, as the wrapped scheme's step from there says."""
    friction, load = c.friction, c.trial.load
    # Of what does not push now nothing is known.
    asked = friction.rests & rows.of_contacts(pushes, True)
    sticks = asked & (jnp.abs(load) < FULL)
    side = jnp.where(asked & ~sticks, -jnp.sign(load), jnp.where(friction.rests, 0, friction.mode.side))
    return c._replace(friction=friction._replace(mode=Mode(side, sticks), load=jnp.where(sticks, load, 0)))


def at_end(c, asked, short):
    """Loads at the end of a segment from those of a short step from there, which are of its middle.

    The slope is that of the parabola through them, with the loads at the start and on the mean of the segment.
    """
    length, start, mean = c.trial.record.length, c.friction.load, c.trial.load
    slope = (4 * asked + 2 * start - 6 * mean) / length
    return asked - jnp.where(length > 10 * short, 0.5 * short * slope, 0)


def near_bound(c):
    """Which rows that stick may start to slide before the end of the segment: what is needed on the mean has changed that much."""
    mean, start = c.trial.load, c.friction.load
    return c.friction.mode.sticks & (jnp.maximum(jnp.abs(mean), jnp.abs(2 * mean - start)) + jnp.abs(mean - start) >= 1)


def values(c):
    """``(before, after)``, (m,) each: what becomes zero where rows stop, and start to slide, at the start and the end of a segment."""
    (side, sticks), rests = c.friction.mode, c.friction.rests
    before = jnp.where(sticks, 1 - jnp.abs(c.friction.load), jnp.where(rests, 0, side * c.contacts.slip))
    return before, jnp.where(sticks, 1 - jnp.abs(c.trial.load), side * c.trial.contacts.slip)


def judge(segments, system, t, dt, bound, c):
    """After a trial step to the end: is it the last segment, is an event to be located, or must a contact be seen?

    Likewise after a step to an event that was located, up to ``bound``: it happens, unless another is found before it.
    """
    trial, root, start, u = c.trial, c.root, c.contacts, c.record.place.state.u
    length, after, end, located = trial.record.length, trial.after, trial.contacts, c.locating
    full = c.count >= c.records.valid.shape[0] - 1
    # Where another event is too near, or has given way too often, the one that was located stays.
    looks = ~located | ((length > APART * bound) & (root.later < EARLIER))
    latest = jnp.where(located, length - APART * bound, jnp.inf)
    found = crossings(length, start[:2], end[:2], start.floor, SHORT * dt)
    crossing = found.closes & ~c.seen & looks & ~(located & root.hit)
    # The speed that is gained in a step, at the rate of this segment: from forces, and at constant u from kinematics (see `turned`). That
    # of what is closed: a body that spins, or flies over a bump, may land as slowly.
    kinematic = jnp.where(c.held, jnp.abs(system.gap_velocity(t + c.record.s + length, after.state.q, u) - start.rate), 0)
    speed = (linalg.matmul(start.directions.T, jnp.abs(after.state.u - u)) + kinematic) * (dt / jnp.where(looks, length, dt))
    fast = crossing & (found.rate < -segments.slowest * speed)
    floor = jnp.maximum(start.floor, end.floor)
    # What closes along with the event that was located is no earlier one.
    fast, crossing = fast & ~(located & (jnp.abs(end.gap) <= floor)), crossing & ~(located & (end.gap >= -floor))
    slow = crossing & (~fast | full)
    friction, turning, at, again = judge_rows(c, length, full, looks, latest)
    pushes, pulls = trial.support
    opening = ~full & looks & ~c.left & ~(located & root.opens) & (pushes > NO_FORCE) & (pulls < -NO_FORCE)
    vanishes = jnp.where(opening, length * pushes / jnp.where(opening, pushes - pulls, 1), jnp.inf)
    opening = opening & (vanishes < latest)
    vanishes = jnp.where(opening, vanishes, jnp.inf)
    times, n = jnp.concatenate([jnp.where(fast, found.time, jnp.inf), vanishes, at]), crossing.shape[0]
    first = jnp.arange(times.shape[0]) == jnp.argmin(times)
    hit, opens, row = first[:n] & fast, first[n : 2 * n] & opening, first[2 * n :] & turning
    before, behind = (only(row, of_row) + only(opens, force) for of_row, force in zip(values(c), trial.support, strict=True))
    smooth, nearer = jnp.any(row) | jnp.any(opens), before < -behind
    starting = turning & friction.mode.sticks
    earlier = Root(
        hit,
        row,
        jnp.any(row & starting),
        opens,
        starting,
        opening,
        jnp.where(located, root.later + 1, 0),
        jnp.where(smooth, only(row, at) + only(opens, vanishes), only(hit, found.time)),
        only(hit, found.low),
        jnp.where(smooth, length, only(hit, found.high)),
        jnp.where(nearer, 0, length),
        jnp.where(nearer, before, behind),
    )
    nothing = ~jnp.any(crossing | fast) & ~jnp.any(opening) & ~jnp.any(turning) & ~jnp.any(again)
    done = nothing & ~located
    judged = c._replace(
        done=done,
        asks=jnp.any(again & friction.rests).astype(c.asks.dtype),
        # Contacts that close slowly are the wrapped scheme's; only then are events looked for.
        locating=~done & ~jnp.any(slow) & ~jnp.any(again),
        seen=c.seen | slow,
        friction=friction,
        root=earlier,
        tries=jnp.zeros_like(c.tries),
        records=kept(c, trial.record._replace(valid=done, last=done), done),
        info=jax.tree.map(lambda kept, tried: jnp.where(done, kept, tried), base.total(c.info, trial.info), c.info),
    )
    return lax.cond(nothing & located, lambda c: event(segments, system, t, dt, c), lambda c: judged, c)


def judge_rows(c, length, full, looks, latest):
    """``(friction, turning, at, again)`` after a trial: rows (m,) that stop or start in it, when, and those that it is to be repeated for.

    That is where a row that turns at once was at rest, which is asked for; where it turns although it was asked for, and where no event can
    be located any more, it is left to the wrapped scheme. In a step to an event that was located only those count that turn before
    ``latest``, by more than round-off, and only if one ``looks``.
    """
    friction, (before, after) = c.friction, values(c)
    turning = (friction.mode.sticks | (friction.mode.side != 0) & (c.trial.load != 0)) & (after < 0)
    at = jnp.where(turning, length * before / jnp.where(turning, before - after, 1), jnp.inf)
    size = jnp.abs(c.trial.after.state.u) + jnp.abs(c.record.place.state.u)
    still = ~friction.mode.sticks & of_round_off(c.trial.contacts, friction.moved, size)
    turning = turning & looks & (at < latest) & ~(c.locating & (still | c.root.row))
    at_once = turning & ~friction.mode.sticks & (before <= AT_REST * (before - after))
    left = turning & (full | at_once & friction.rests)
    again = left | at_once
    friction = friction._replace(mode=friction.mode.without(again), rests=(friction.rests | at_once) & ~left, free=friction.free | left)
    turning = turning & ~again
    return friction, turning, jnp.where(turning, at, jnp.inf), again


def located(c, dt):
    """After a step to where an event may be: ``(improved, accepted, bound)``: with a better time, whether its time is accepted, and the
    bound of what is wrong with it.
    """
    root, contacts = c.root, c.trial.contacts
    length, gap, closing = c.trial.record.length, only(root.hit, contacts.gap), only(root.hit, contacts.rate)
    late, smooth = c.tries >= ITERATIONS // 2, root.smooth
    # As good as it gets, which in single precision is round-off of dt; where round-off is in the way, good enough.
    best = 4 * float(jnp.finfo(dt.dtype).eps)
    accuracy = jnp.where(root.starts | jnp.any(root.opens), jnp.where(late, AT_LAST, STARTS), jnp.where(late, 1, 1e-3) * SHORT)
    bound = jnp.maximum(accuracy, best) * dt
    value = only(root.row, values(c)[1]) + only(root.opens, c.trial.support[1])
    new, low, high = refine(length, gap, closing, root.low, root.high)
    by_secant, *bounds = secant((root.before, root.value), (length, value), root.low, root.high)
    accepted = (closing < 0) & (
        (length == 0) | (jnp.abs(correction(gap, closing)) <= bound) | (late & (jnp.abs(gap) <= only(root.hit, c.contacts.floor)))
    )
    accepted = jnp.where(smooth, jnp.abs(by_secant - length) <= bound, accepted)
    exhausted = c.tries >= jnp.where(smooth, 2, 1) * ITERATIONS
    better = root._replace(
        length=jnp.where(smooth, by_secant, new),
        low=jnp.where(smooth, bounds[0], low),
        high=jnp.where(smooth, bounds[1], high),
        before=length,
        value=value,
    )
    # An event that is not found is captured.
    left = root.row & exhausted
    friction = c.friction._replace(mode=c.friction.mode.without(left), free=c.friction.free | left)
    seen, unopened = c.seen | (root.hit & exhausted), c.left | (root.opens & exhausted)
    improved = c._replace(root=better, tries=c.tries + 1, locating=~exhausted, seen=seen, left=unopened, friction=friction)
    return improved, accepted, bound


def event(segments, system, t, dt, c):
    """The event that was located happens at the end of the segment, which is kept, and the next one begins there."""
    root, after, contacts, smooth = c.root, c.trial.after, c.trial.contacts, c.root.smooth
    length, closing = c.trial.record.length, only(root.hit, contacts.rate)
    # A contact that touches and does not separate has no way out of the impact, whether it has pushed before or not.
    closed, stays = contacts.gap <= c.contacts.floor, STAYS * jnp.abs(closing)
    hit = root.hit | (~smooth & ~c.seen & closed & (contacts.rate <= stays))
    s = c.record.s + length
    # What hits at the same time elsewhere has its own shift in time, so it is an impact of its own, after no time; the last impact that
    # can be located takes all of them, and has no derivative then.
    part = together(segments, system, t + s, dt, after.state, root.hit, hit | (c.seen & closed))
    last = c.count + 1 >= c.records.valid.shape[0] - 1
    tangled = last & jnp.any(hit & ~part & (contacts.rate < -stays))
    hit = hit & (part | last)
    mask = hit | (~smooth & c.seen & closed)
    side = jnp.where(root.row & ~root.starts, c.friction.mode.side, 0)
    continuous = jnp.any(root.opens) | (jnp.any(root.row) & root.starts)
    record = c.trial.record._replace(hit=root.hit, mask=mask, valid=jnp.ones((), bool), tangled=tangled, stops=side, continuous=continuous)
    place, P, of_impact = segments.restarted(system, t + s, dt - s, after.state, mask)
    start = contacts_at(system, segments.rows, t + s, dt, place.state.q, place.state.u, c.moved)
    start = start._replace(floor=jnp.maximum(start.floor, c.contacts.floor))
    pushes, pulls = c.trial.support
    opened = jnp.any(root.opens) & ((pushes > NO_FORCE) & (pulls <= TOGETHER * pushes) | root.opens)
    seen = jnp.where(hit, start.rate <= stays, c.seen) & ~opened
    friction = friction_after(segments.rows, c, seen & closed, opened, start, place.state.u)
    return c._replace(
        asks=jnp.any(friction.rests & (friction.mode.side == 0)).astype(c.asks.dtype),
        locating=jnp.zeros((), bool),
        record=c.record._replace(place=place, s=s),
        contacts=start,
        seen=seen,
        friction=friction,
        count=c.count + 1,
        P=added(added(c.P, after.state.P), P),
        info=base.total(base.total(c.info, c.trial.info), of_impact),
        records=kept(c, record, True),
    )


def friction_after(rows, c, closed, opened, start, u):
    """`Friction` behind an event."""
    friction, row, smooth = c.friction, c.root.row, c.root.smooth
    (side, sticks), begins = friction.mode, row & c.root.starts
    # An impact changes all velocities; without one that of the row which stops is zero, and those of the rows that stick stay it.
    free = jnp.where(smooth, friction.free | rows.of_contacts(opened, False), ~rows.of_contacts(closed, True))
    small = of_round_off(start, friction.moved, jnp.abs(u) + jnp.abs(c.record.place.state.u))
    rests = ~free & ~begins & jnp.where(smooth, sticks | row, small)
    side = jnp.where(smooth, side, jnp.sign(start.slip))
    side = jnp.where(begins, -jnp.sign(c.trial.load), jnp.where(rests | free, 0, side))
    nothing = jnp.zeros_like(friction.load)
    return friction._replace(mode=Mode(side, jnp.zeros_like(sticks)), rests=rests, free=free, load=nothing)


def together(segments, system, t, dt, state, hit, closed):
    """Of the contacts that are closed (n_N,) those at which an impact of ``hit`` is felt, by way of others."""
    if hit.shape[0] <= 1:
        return hit
    prepared, q, u = segments.scheme.prepare(system, dt), state.q, state.u
    G = linalg.pack(segments.scheme.inertia(prepared, system.M(t, q, u), kinematics(system, t, q, u)).G)
    label = apart.labels(G, closed, state.P.P_F.shape[1])
    return label == label[jnp.argmax(hit)]


def only(hit, x):
    """The entry of x (n,) that ``hit`` marks."""
    return jnp.sum(jnp.where(hit, x, 0))


def kept(c, record, happens):
    """The records with this one as the next, if it happens."""

    def put(all, new):
        at = jnp.arange(all.shape[0]) == c.count
        return jnp.where(happens & at.reshape(-1, *(1,) * (all.ndim - 1)), new, all)

    return jax.tree.map(put, c.records, record)
