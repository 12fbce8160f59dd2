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
from ..derivatives import with_rule
from . import base, velocity
from .alpha import KrenkHogsberg
from .base import Info, Percussions, Scheme
from .flow import THRESHOLD, Flow
from .theta import MoreauJean

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
    motion is then a smooth function of its parameters, and its derivatives, first and second, are those of the motion as computed, with
    the shift of every impact in time.

    Impacts beyond ``max_impacts`` in a step are captured as the wrapped scheme does it, as are contacts that close slower than 1.5 times
    the speed gained in the step: so accumulation points are passed, and what lands softly or rests is the wrapped scheme's. So is the
    change from sliding to sticking, to first order. A step without an impact needs one look at the gaps more; a step with one is repeated
    about four times.

    scheme:       any but `KrenkHogsberg`. `Lobatto` keeps its order of 2 to 8; `MoreauJean` with theta = 1/2 and the alpha-schemes are
                  of second order where the mass matrix is constant, `SymmetricMoreau` and `VariationalMoreau` in their coordinates;
                  `Moreau` of first. Linear systems are stepped as nonlinear ones, without the factors of their matrices.
    max_impacts:  impacts to locate in one step

    Percussions of a step are the sums over its segments; `Solution.auxiliary` holds what the last segment has.
    """

    scheme: Any = dataclasses.field(default_factory=MoreauJean)
    max_impacts: int = 2

    def __post_init__(self):
        if not isinstance(self.scheme, Scheme) or isinstance(self.scheme, LocatedImpacts):
            raise TypeError(f"LocatedImpacts: scheme must be a scheme such as jaxnsd.Lobatto(3), got {self.scheme!r}")
        super().__post_init__()
        if self.max_impacts < 1:
            raise ValueError(f"LocatedImpacts: max_impacts must be a positive whole number, got {self.max_impacts!r}")

    @property
    def order(self):
        """Order of the wrapped scheme."""
        return self.scheme.order

    @property
    def auxiliary(self):
        """State fields stored in the Solution: those of the wrapped scheme."""
        return self.scheme.auxiliary

    @property
    def unbalanced(self):
        """Percussions of located impacts act between the nodes."""
        return (
            "LocatedImpacts turns velocities at impacts between the nodes, so the works of percussions cannot be told from a Solution; use "
            f"{self.scheme.name}() alone, or jax.vmap(system.total_energy)(sol.t, sol.q, sol.u) for the energies at the nodes"
        )

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
        segments = Segments(self.scheme, self.max_impacts, settings, advance)

        def rule(primals, tangents):
            # The step found is called again, so that second derivatives know what it depends on.
            state, info, records = located(*primals)
            d_state = jax.jvp(lambda *args: segments.replay(*args, records), primals, tangents)[1]
            return (state, info, records), (d_state, *jax.tree.map(_no_tangent, (info, records)))

        located = with_rule(segments.run, rule)
        return located(system, t, dt, state)[:2]


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
    extra: Any  # what is added to it where it is too short to be stepped
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
        size = dt * velocity.resolution(state.q, dt, state.u.shape[0])
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
        record = Record(start, zero, dt, zero, gap, no, no, none, none)
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
        extra = jnp.where(short, REGULAR * dt, 0)
        regular = h + extra
        after, info = self.stepped(system, t + record.s, regular, record.state, record.shift)
        after = jax.tree.map(lambda a, b: jnp.where(short, b + (a - b) * (h / regular), a), after, record.state)
        gap, rate = system.gap(t + record.s + h, after.q), system.gap_velocity(t + record.s + h, after.q, after.u)
        # Only the iterations count of a step that is not kept.
        kept = base.total(c.info, info)
        tried = base.total(c.info, base.nothing_to_solve(dt.dtype)._replace(iterations=info.iterations))
        c = c._replace(record=record._replace(h=h, extra=extra), info=tried)
        locate = lambda c: self.locate(system, t, dt, c, after, kept, gap, rate)  # noqa: E731
        return lax.cond(c.locating, locate, lambda c: self.judge(dt, c, after, kept, gap, rate), c)

    def judge(self, dt, c, after, info, gap, rate):
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
            info=jax.tree.map(lambda kept, tried: jnp.where(done, kept, tried), info, c.info),
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

    def locate(self, system, t, dt, c, after, info, gap, rate):
        """After a step to where an impact may be: accept its time and go on behind the impact, or improve it."""
        take = lambda x: jnp.sum(jnp.where(c.hit, x, 0))  # noqa: E731
        h, closing = c.record.h, take(rate)
        change = -take(gap) / jnp.where(closing < 0, closing, -1.0)
        exhausted = c.tries >= ITERATIONS
        # As good as it gets; where round-off is in the way, good enough.
        accurate = jnp.abs(change) <= jnp.where(c.tries < ITERATIONS // 2, 1e-3, 1) * SHORT * dt
        accepted = (closing < 0) & ((h == 0) | accurate | ((c.tries >= ITERATIONS // 2) & (jnp.abs(take(gap)) <= take(c.floor))))

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
            state, P, of_impact = self.restarted(system, t + s, dt - s, after, mask)
            gap_after, rate_after, directions, floor = self.contacts(system, t + s, dt, state)
            stays = rate_after <= STAYS * jnp.abs(closing)
            nothing = jnp.zeros_like(c.hit)
            return c._replace(
                locating=jnp.zeros((), bool),
                record=Record(state, s, dt, jnp.zeros_like(dt), record.shift, jnp.zeros((), bool), jnp.zeros((), bool), nothing, nothing),
                gap=gap_after,
                rate=rate_after,
                directions=directions,
                floor=floor,
                seen=jnp.where(hit, stays, c.seen),
                count=c.count + 1,
                P=Percussions(*(a + b + c for a, b, c in zip(c.P, after.P, P, strict=True))),
                info=base.total(info, of_impact),
                records=jax.tree.map(lambda all, new: jnp.where(self.at(c.count, all), new, all), c.records, record),
            )

        return lax.cond(accepted, impact, improve, c)

    # -------------------------------------------------------------------------------------------------------- derivative
    def replay(self, system, t, dt, state, records):
        """The state at the end of the step that ``records`` tell of, as a function of the arguments."""
        start = self.ahead(self.scheme.prepare(system, dt), t, dt, state, -self.scheme.lead)

        def segment(carry, record):
            def stepped(carry):
                state, s, P = carry
                after, h = self.segment(system, t + s, dt - s, state, record)
                s, P = s + h, Percussions(*map(jnp.add, P, after.P))

                def impact(after):
                    state, P_impact, _ = self.restarted(system, t + s, dt, after, record.mask)
                    return state, Percussions(*map(jnp.add, P, P_impact))

                state, P = lax.cond(record.last, lambda after: (after, P), impact, after)
                return state, s, P

            return lax.cond(record.valid, stepped, lambda carry: carry, carry), None

        nothing = jnp.zeros_like(dt), jax.tree.map(jnp.zeros_like, state.P)
        (after, _, P), _ = lax.scan(segment, (start, *nothing), records)
        return self.ahead(self.scheme.prepare(system, dt), t + dt, dt, after._replace(P=P), self.scheme.lead)

    def of_length(self, record, h, system, t, state):
        """The state after a segment of length h."""
        return self.stepped(system, t, h + record.extra, state, record.shift)[0]

    def delay(self, record, system, t, h, after, tangents):
        """``d tau = -d g_N / g_N_dot``: shift of a segment's end in time, from the tangents of (system, t, q) with its length fixed."""
        end = t + h
        gap = lambda system, t, q: jnp.sum(jnp.where(record.hit, system.gap(t, q), 0))  # noqa: E731
        rate = jnp.sum(jnp.where(record.hit, system.gap_velocity(end, after.q, after.u), 0))
        d_gap = jax.jvp(gap, (system, end, after.q), tangents)[1]
        return -d_gap / jnp.where(rate < 0, rate, -1.0)

    def segment(self, system, t, rest, state, record):
        """``(state, length)`` at the end of a segment, which is after ``rest``, or where the gap of its contact closes."""

        def stepped(system, t, rest, state, record):
            h = jnp.where(record.last, rest, record.h)
            return self.of_length(record, h, system, t, state), h

        def rule(primals, tangents):
            (system, t, rest, state, record), (d_system, d_t, d_rest, d_state, _) = primals, tangents
            h = jnp.where(record.last, rest, self.duration(system, t, state, record))
            after, push = jax.linearize(lambda h, *args: self.of_length(record, h, *args), h, system, t, state)
            d_h = jnp.where(record.last, d_rest, 0)
            d_after = push(d_h, d_system, d_t, d_state)
            d_tau = jnp.where(record.last, 0, self.delay(record, system, t, h, after, (d_system, d_t, d_after.q)))
            d_after = jax.tree.map(jnp.add, d_after, push(d_tau, *jax.tree.map(jnp.zeros_like, (system, t, state))))
            return (after, h), (d_after, d_h + d_tau)

        return with_rule(stepped, rule)(system, t, rest, state, record)

    def duration(self, system, t, state, record):
        """Length of a segment that ends with an impact."""

        def rule(primals, tangents):
            # First derivatives need this in no place; second derivatives do.
            (system, t, state, record), tangents = primals, tangents[:3]
            h = self.duration(*primals)
            after, d_after = jax.jvp(lambda *args: self.of_length(record, h, *args), (system, t, state), tangents)
            return h, self.delay(record, system, t, h, after, (*tangents[:2], d_after.q))

        return with_rule(lambda system, t, state, record: record.h, rule)(system, t, state, record)


def _no_tangent(x):
    return jnp.zeros_like(x) if jnp.issubdtype(x.dtype, jnp.floating) else np.zeros(x.shape, jax.dtypes.float0)
