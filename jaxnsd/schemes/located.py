"""Impacts at their time: a scheme that locates impacts inside of its fixed step.

Invariant: a step of length dt is made of segments. In each of them the contacts that are open do not act; a segment ends at the first
time at which one of them closes,

    g_N^i(t_k + s, q(s)) = 0,        u_plus = R(t_k + s, q(s), u(s)),

with q(s), u(s) the wrapped scheme's own step of length s and R the impact map of the system; the last segment ends at t_{k+1}. The time s
is found from the cubic through gaps and gap velocities at both ends of the segment, and then by Newton's method on the scheme's step.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .. import linalg
from . import base
from .alpha import KrenkHogsberg
from .base import Info, Percussions, Scheme
from .flow import THRESHOLD, Flow

#: Points of a segment at which the cubics of the gaps are looked at.
POINTS = 16

#: Steps of the bounded Newton iteration on the time of one impact.
ITERATIONS = 8

#: Segments shorter than this part of a step are not stepped but extrapolated from one of the second length.
SHORT, REGULAR = 1e-10, 1e-6

#: A contact that separates slower than this part of the closing speed stays closed.
STAYS = 1e-9


@dataclass(frozen=True)
class LocatedImpacts(Scheme):
    """A scheme whose impacts are located inside of its step, up to ``max_impacts`` of them in each (see `jaxnsd.schemes.located`).

    The order of the scheme on smooth motion is kept across isolated impacts, where a scheme that captures events is of first order. The
    derivative is that of the motion as computed, with the shift of every impact in time, and has the order of the scheme as well.

    Impacts beyond ``max_impacts`` in a step are captured as the wrapped scheme does it, as are contacts that close slower than 1.5 times
    the speed gained in the step: so accumulation points are passed, and what lands softly or rests is the wrapped scheme's. Its step
    needs one evaluation of the gaps more; a step with an impact is repeated about four times.

    scheme:       any scheme but `KrenkHogsberg`. `Lobatto` keeps its order of 2 to 8; `MoreauJean`, the alpha-schemes, `SymmetricMoreau`
                  and `VariationalMoreau` are of second order across impacts, `Moreau` of first. Linear systems are stepped as
                  nonlinear ones, without the factors of their matrices.
    max_impacts:  impacts to locate in one step

    Percussions of a step are the sums over its segments; `Solution.auxiliary` holds what the last segment has.
    """

    scheme: Any
    max_impacts: int = 2

    def __post_init__(self):
        if not isinstance(self.scheme, Scheme) or isinstance(self.scheme, LocatedImpacts):
            raise TypeError(f"LocatedImpacts: scheme must be a scheme such as jaxnsd.Lobatto(3), got {self.scheme!r}")
        if isinstance(self.max_impacts, bool) or not isinstance(self.max_impacts, int) or self.max_impacts < 1:
            raise ValueError(f"LocatedImpacts: max_impacts must be a positive whole number, got {self.max_impacts!r}")

    @property
    def name(self):
        """Its name with that of the scheme inside."""
        return f"LocatedImpacts({self.scheme.name})"

    @property
    def order(self):
        """Order of the wrapped scheme."""
        return self.scheme.order

    @property
    def auxiliary(self):
        """State fields stored in the Solution: those of the wrapped scheme."""
        return self.scheme.auxiliary

    def refuse(self, system, t, q, u):
        """What the wrapped scheme refuses; Krenk-Hogsberg knows no step of another length."""
        if isinstance(self.scheme, KrenkHogsberg):
            return "KrenkHogsberg() cannot be restarted inside of a step; use LocatedImpacts(GeneralizedAlpha())"
        return self.scheme.refuse(system, t, q, u)

    def advise(self, system, t, q):
        """What the wrapped scheme advises."""
        return self.scheme.advise(system, t, q)

    def check(self, system, dt):
        """What the wrapped scheme checks."""
        self.scheme.check(system, dt)

    def init(self, system, t, dt, q, u, settings):
        """The wrapped scheme's first node."""
        return self.scheme.init(self.scheme.prepare(system, dt), t, dt, q, u, settings)

    def step(self, system, t, dt, state, settings, advance=None):
        """From node k to node k + 1; ``advance(prepared, t, dt, state)`` is the wrapped scheme's step, with its derivative."""
        advance = advance or (lambda *args: self.scheme.step(*args, settings))
        if not state.P.P_N.shape[0]:
            return advance(self.scheme.prepare(system, dt), t, dt, state)
        segments = Segments(self.scheme, self.max_impacts, settings, state.P.P_F.shape, advance)

        @jax.custom_jvp
        def located(system, t, dt, state):
            return segments.run(system, t, dt, state)[:2]

        @located.defjvp
        def rule(primals, tangents):
            state, info, records = segments.run(*primals)
            return (state, info), (segments.tangent(primals, tangents, records), jax.tree.map(_no_tangent, info))

        return located(system, t, dt, state)


class Veiled:
    """A system whose gaps are moved by constants, so that some of its contacts stay open."""

    def __init__(self, system, shift):
        self.system, self.shift = system, shift

    def __getattr__(self, name):
        if name.startswith("__") or name in ("system", "shift"):
            raise AttributeError(name)
        return getattr(self.system, name)

    def gap(self, t, q):
        """Gaps (n_N,), moved."""
        return self.system.gap(t, q) + self.shift


jax.tree_util.register_pytree_node(Veiled, lambda veiled: ((veiled.system, veiled.shift), None), lambda _, leaves: Veiled(*leaves))


class Record(NamedTuple):
    """A segment, as its derivative needs it; stacked over the segments of a step."""

    state: Any  # at its start, the velocity being that of the same time as the coordinates
    s: Any  # time from the start of the step
    h: Any  # length
    shift: Any  # (n_N,) shift of the gaps
    valid: Any  # whether there is such a segment
    last: Any  # whether it ends with the step; otherwise with an impact
    hit: Any  # (n_N,) the contact that closes at its end
    mask: Any  # (n_N,) the contacts of the impact law there


class Carry(NamedTuple):
    """State of the search."""

    done: Any
    locating: Any  # whether the time of an impact is being iterated
    tries: Any  # iterations on it
    record: Record  # the segment that is being stepped
    h: Any  # length to step, while locating
    low: Any  # bounds of the time of impact
    high: Any
    gap: Any  # (n_N,) gaps at the start of the segment
    rate: Any  # (n_N,) gap velocities there
    directions: Any  # (n_u, n_N) absolute values of W_N there
    floor: Any  # (n_N,) gaps that count as zero
    seen: Any  # (n_N,) contacts that the wrapped scheme sees
    hit: Any  # (n_N,) the contact whose time is being iterated
    count: Any  # impacts located
    P: Any  # percussions of the segments before
    info: Info
    records: Record  # (max_impacts + 1, ...)
    after: Any  # state at the end


@dataclass(frozen=True)
class Segments:
    """The segments of one step."""

    scheme: Any
    max_impacts: int
    settings: Any
    shape: tuple  # (n_N, d)
    advance: Any  # (prepared, t, dt, state) -> (state, info)

    def stepped(self, system, t, h, state, shift):
        """The wrapped scheme's step of length h: ``(state, info)``, with velocities of the times of the coordinates."""
        scheme = self.scheme
        prepared = scheme.prepare(Veiled(system, shift), h)
        state = self.ahead(prepared, t, h, state, scheme.lead)
        state, info = self.advance(prepared, t, h, state)
        return self.ahead(prepared, t + h, h, state, -scheme.lead), info

    def ahead(self, prepared, t, h, state, part):
        """The state with the velocity of a time ``part h`` later, of motion whose contacts stay as they are."""
        if not part:
            return state
        # Near problems that were solved: without the globalization they compile in a third of the time.
        flow = Flow(self.scheme, dataclasses.replace(self.settings, max_rescues=0, max_iterations=20), state.P)
        slow = flow.gained(prepared, t, h, state.q, state.u)
        system = self.scheme.system(prepared)
        closed = (system.gap(t, state.q) <= 0) & (jnp.abs(system.gap_velocity(t, state.q, state.u)) <= slow[0])
        return state._replace(u=state.u + part * h * flow.acceleration(prepared, t, h, state.q, state.u, closed, slow))

    def restarted(self, system, t, h, state, mask):
        """``(state, P, info)`` after an impact of the contacts in ``mask``."""
        scheme = self.scheme
        prepared = scheme.prepare(Veiled(system, jnp.zeros_like(state.P.P_N)), h)
        u, P, info = Flow(scheme, self.settings, state.P).impact(prepared, t, state.q, state.u, mask)
        if scheme.lead:
            return state._replace(u=u), P, info
        return scheme.init(prepared, t, h, state.q, u, self.settings)[0], P, info

    def contacts(self, system, t, dt, state):
        """Of every contact: gap, gap velocity, absolute values of W_N (n_u, n_N), and the gap that counts as zero.

        That is round-off, and what is passed in the shortest segment.
        """
        gap, rate = system.gap(t, state.q), system.gap_velocity(t, state.q, state.u)
        directions = jnp.abs(system.W_N(t, state.q, state.u))
        size = dt * base.resolution(state.q, dt, state.u.shape[0])
        eps = 16 * float(jnp.finfo(dt.dtype).eps)
        return gap, rate, directions, eps * linalg.matmul(directions.T, size) + SHORT * dt * jnp.abs(rate)

    # ------------------------------------------------------------------------------------------------------------ search
    def run(self, system, t, dt, state):
        """``(state, info, records)``: the step, and its segments."""
        system, t, dt, state = jax.tree.map(lax.stop_gradient, (system, t, dt, state))
        start = self.ahead(self.scheme.prepare(system, dt), t, dt, state, -self.scheme.lead)
        contacts = gap, _, _, floor = self.contacts(system, t, dt, start)
        # A contact at gap zero that has not pushed may be about to separate, or to hit: the trial step tells.
        seen = (gap < -floor) | ((gap <= floor) & (state.P.P_N > 0))
        no, zero, count = jnp.zeros((), bool), jnp.zeros_like(dt), jnp.zeros((), jnp.int32)
        none = jnp.zeros(gap.shape, bool)
        record = Record(start, zero, dt, gap, no, no, none, none)
        records = jax.tree.map(lambda x: jnp.broadcast_to(x, (self.max_impacts + 1, *x.shape)), record)
        P = jax.tree.map(jnp.zeros_like, state.P)
        info = base.nothing_to_solve(dt.dtype)
        carry = Carry(no, no, count, record, dt, zero, dt, *contacts, seen, none, count, P, info, records, start)
        carry = lax.while_loop(lambda c: ~c.done, lambda c: self.iteration(system, t, dt, c), carry)
        after = carry.after._replace(P=Percussions(*map(jnp.add, carry.P, carry.after.P)))
        after = self.ahead(self.scheme.prepare(system, dt), t + dt, dt, after, self.scheme.lead)
        return after, carry.info, carry.records

    def shift(self, dt, c):
        """Shift of the gaps in a segment: contacts that are not seen are held open, those at a gap of round-off are closed."""
        passed = dt * (linalg.matmul(c.directions.T, jnp.abs(c.record.state.u)) + jnp.abs(c.rate))
        return jnp.where(c.seen, -jnp.clip(c.gap, 0, c.floor), 10 * (jnp.abs(c.gap) + passed))

    def iteration(self, system, t, dt, c):
        """One step of the wrapped scheme, and what follows from it."""
        record = c.record._replace(shift=self.shift(dt, c))
        h = jnp.where(c.locating, c.h, dt - record.s)
        short = h <= SHORT * dt
        regular = jnp.where(short, REGULAR * dt, h)
        after, info = self.stepped(system, t + record.s, regular, record.state, record.shift)
        after = jax.tree.map(lambda a, b: jnp.where(short, b + (a - b) * (h / regular), a), after, record.state)
        gap, rate = system.gap(t + record.s + h, after.q), system.gap_velocity(t + record.s + h, after.q, after.u)
        c = c._replace(record=record._replace(h=h), info=_total(c.info, info))
        return lax.cond(
            c.locating, lambda c: self.locate(system, t, dt, c, after, gap, rate), lambda c: self.judge(dt, c, after, gap, rate), c
        )

    def judge(self, dt, c, after, gap, rate):
        """After a trial step to the end: is it the last segment, is an impact to be located, or must a contact be seen?"""
        h = c.record.h
        crossing, time, closing, low, high = self.crossings(dt, c, gap, rate)
        # The speed that is gained in a step, at the rate of this segment.
        gained = linalg.matmul(c.directions.T, jnp.abs(after.u - c.record.state.u)) * (dt / h)
        fast = crossing & (closing < -THRESHOLD * gained)
        budget = c.count < self.max_impacts
        slow = crossing & (~fast | ~budget)
        first = jnp.argmin(jnp.where(fast, time, jnp.inf))
        hit = jnp.arange(gap.shape[0]) == first
        take = lambda x: jnp.sum(jnp.where(hit, x, 0))  # noqa: E731
        done = ~jnp.any(crossing)
        return c._replace(
            done=done,
            # Contacts that close slowly are the wrapped scheme's; only then are impacts looked for.
            locating=~done & ~jnp.any(slow),
            seen=c.seen | slow,
            hit=hit,
            tries=jnp.zeros_like(c.tries),
            h=take(time),
            low=take(low),
            high=take(high),
            records=jax.tree.map(
                lambda all, new: jnp.where(done & self.at(c.count, all), new, all),
                c.records,
                c.record._replace(valid=done, last=done, h=h),
            ),
            after=after,
        )

    def at(self, k, x):
        """Mask (max_impacts + 1, 1, ...) of entry k along the first axis of ``x``."""
        return (jnp.arange(self.max_impacts + 1) == k).reshape(-1, *(1,) * (x.ndim - 1))

    def crossings(self, dt, c, gap, rate):
        """Of every contact: whether its gap closes in the segment, when (as the cubic tells), how fast, and bounds of the time."""
        h = c.record.h
        slope, end = h * c.rate, h * rate
        a = 3 * (gap - c.gap) - 2 * slope - end
        b = 2 * (c.gap - gap) + slope + end
        x = jnp.arange(1, POINTS, dtype=dt.dtype) / POINTS
        cubic = lambda x: c.gap + x * (slope + x * (a + x * b))  # noqa: E731
        derivative = lambda x: slope + x * (2 * a + 3 * b * x)  # noqa: E731
        # What closes at the end up to round-off closes in this step.
        at_end = gap < SHORT * dt * jnp.maximum(-rate, 0)
        below = jnp.concatenate([jax.vmap(cubic)(x) < 0, at_end[None]])
        index = jnp.argmax(below, axis=0)
        low, high = index.astype(dt.dtype) / POINTS, (index + 1).astype(dt.dtype) / POINTS
        at_once = (index == 0) & (c.gap <= c.floor)
        root = high
        for _ in range(4):
            slope_here = derivative(root)
            root = jnp.clip(root - cubic(root) / jnp.where(slope_here < 0, slope_here, -jnp.inf), low, high)
        root = jnp.where(at_once, 0, root)
        closing = jnp.where(at_once, c.rate, derivative(root) / h)
        return jnp.any(below, axis=0) & ~c.seen, root * h, closing, low * h, high * h * (1 + SHORT)

    def locate(self, system, t, dt, c, after, gap, rate):
        """After a step to where an impact may be: accept its time and go on behind the impact, or improve it."""
        take = lambda x: jnp.sum(jnp.where(c.hit, x, 0))  # noqa: E731
        h, closing = c.record.h, take(rate)
        change = -take(gap) / jnp.where(closing < 0, closing, -1.0)
        exhausted = c.tries >= ITERATIONS
        accurate = (jnp.abs(take(gap)) <= take(c.floor)) | (jnp.abs(change) <= SHORT * dt)
        accepted = (closing < 0) & ((h == 0) | accurate)

        def improve(c):
            low, high = jnp.where(take(gap) > 0, h, c.low), jnp.where(take(gap) > 0, c.high, h)
            new = h + change
            new = jnp.where((new > low) & (new < high) & (closing < 0), new, 0.5 * (low + high))
            # An impact that is not found is captured.
            return c._replace(h=new, low=low, high=high, tries=c.tries + 1, locating=~exhausted, seen=c.seen | (c.hit & exhausted))

        def impact(c):
            open_before = ~c.seen & (gap <= c.floor) & (rate < 0)
            hit = c.hit | open_before
            mask = hit | (c.seen & (gap <= c.floor))
            record = c.record._replace(hit=c.hit, mask=mask, valid=jnp.ones((), bool))
            s = record.s + h
            state, P, info = self.restarted(system, t + s, dt - s, after, mask)
            gap_after, rate_after, directions, floor = self.contacts(system, t + s, dt, state)
            stays = rate_after <= STAYS * jnp.abs(closing)
            nothing = jnp.zeros_like(c.hit)
            return c._replace(
                locating=jnp.zeros((), bool),
                record=Record(state, s, dt, record.shift, jnp.zeros((), bool), jnp.zeros((), bool), nothing, nothing),
                gap=gap_after,
                rate=rate_after,
                directions=directions,
                floor=floor,
                seen=jnp.where(hit, stays, c.seen),
                count=c.count + 1,
                P=Percussions(*(a + b + c for a, b, c in zip(c.P, after.P, P, strict=True))),
                info=_total(c.info, info),
                records=jax.tree.map(lambda all, new: jnp.where(self.at(c.count, all), new, all), c.records, record),
            )

        return lax.cond(accepted, impact, improve, c)

    # -------------------------------------------------------------------------------------------------------- derivative
    def tangent(self, primals, tangents, records):
        """Tangent of the state at the end of a step: segment by segment, each with the shift of its end in time."""
        system, t, dt, state = primals
        d_system, d_t, d_dt, d_state = tangents
        scheme = self.scheme

        def node(part):
            return lambda system, t, dt, state: self.ahead(scheme.prepare(system, dt), t, dt, state, part * scheme.lead)

        def of_segment(carry, record):
            d_state, d_s, d_P = carry
            # The derivative of a segment of length zero is that of a very short one.
            h = jnp.maximum(record.h, REGULAR * dt)
            stepped = lambda system, t, h, state: self.stepped(system, t, h, state, record.shift)[0]  # noqa: E731
            after, push = jax.linearize(stepped, system, t + record.s, h, record.state)
            d_after = push(d_system, d_t + d_s, jnp.where(record.last, d_dt - d_s, 0), d_state)

            def to_the_end(d_after):
                return d_after, d_s, d_P

            def through_impact(d_after):
                end = t + record.s + h
                gap = lambda system, t, q: jnp.sum(jnp.where(record.hit, system.gap(t, q), 0))  # noqa: E731
                rate = jnp.sum(jnp.where(record.hit, system.gap_velocity(end, after.q, after.u), 0))
                d_gap = jax.jvp(gap, (system, end, after.q), (d_system, d_t + d_s, d_after.q))[1]
                d_tau = -d_gap / jnp.where(rate < 0, rate, -1.0)
                zeros = jax.tree.map(jnp.zeros_like, (system, t, state))
                later = push(*zeros[:2], d_tau, zeros[2])
                d_after = jax.tree.map(jnp.add, d_after, later)
                restarted = lambda system, t, state: self.restarted(system, t, dt, state, record.mask)[:2]  # noqa: E731
                d_state, d_impact = jax.jvp(restarted, (system, end, after), (d_system, d_t + d_s + d_tau, d_after))[1]
                return d_state, d_s + d_tau, Percussions(*map(sum, zip(d_P, d_after.P, d_impact, strict=True)))

            return lax.cond(record.last, to_the_end, through_impact, d_after)

        def segment(carry, record):
            return lax.cond(record.valid, lambda carry: of_segment(carry, record), lambda carry: carry, carry), None

        d_start = jax.jvp(node(-1), primals, tangents)[1]
        nothing = jnp.zeros_like(d_dt), jax.tree.map(jnp.zeros_like, d_state.P)
        (d_after, _, d_P), _ = lax.scan(segment, (d_start, *nothing), records)
        d_after = d_after._replace(P=Percussions(*map(jnp.add, d_after.P, d_P)))
        after = jax.tree.map(lambda x: x[-1], records.state)
        return d_after if not scheme.lead else jax.jvp(node(1), (system, t + dt, dt, after), (d_system, d_t + d_dt, d_dt, d_after))[1]


def _no_tangent(x):
    return jnp.zeros_like(x) if jnp.issubdtype(x.dtype, jnp.floating) else np.zeros(x.shape, jax.dtypes.float0)


def _total(info, more):
    return Info(
        info.iterations + more.iterations,
        jnp.maximum(info.residual, more.residual),
        info.converged & more.converged,
        jnp.maximum(info.contact, more.contact),
    )
