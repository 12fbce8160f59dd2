"""Derivatives through impacts that converge to those of the exact motion.

An event-capturing scheme holds every impact on its step, so the derivative of the steps as computed lacks the shift of the impact in
time, and is wrong by O(1) whatever the step. The derivative of the exact motion through a transversal impact is the saltation matrix
(Aizerman & Gantmakher 1958; Leine & Nijmeijer 2004): with tau the time to the impact, R the impact map and f the right-hand sides of
the one-sided flows,

    d x_plus = DR d x_minus + (DR f_minus - f_plus) d tau,        tau = -g_N / g_N_dot.

A scheme's own derivative is the first term, up to O(dt). Here the second is added to it, in the derivative only: the motion stays as it
is. Percussions are differentiated likewise: with the contact forces lambda of the one-sided flows and the percussion P of the impact map,
it is (DP f_minus + lambda_minus - lambda_plus) d tau that is added. This holds to first order: a second derivative through it is not a
number.

Impact map and one-sided flows are those of the system, not of the scheme, so that one mechanism serves all of them. Where slip passes
through zero without a rest, in the plane or along a line in space, the velocity does not jump, but friction does: there R is the identity,
and tau = -gamma_F / gamma_F_dot along that line. Slip across it has no derivative left by then, since friction has turned all slip into
the line; and slip that passes zero at a distance turns smoothly.

A contact without friction that closes too slowly to be told from rest stays closed: its gap no longer changes, and neither does the
derivative of its gap.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .. import contact
from ..mechanics import laws
from ..mechanics.local import Contacts, kinematics
from ..mechanics.results import Event
from ..native.marks import when_needed
from ..numerics import linalg, thresholds
from ..numerics.newton import solution, storing_solutions
from ..programs.derivatives import is_float, not_a_number, pushed, traced_once, undefined, with_rule
from . import base, gathered
from .flow import THRESHOLD, Flow, gained, turned
from .located import LocatedImpacts
from .reversals import through_reversals, with_one_derivative
from .velocity import resolution

#: Up to so many contacts the events of a step are looked for in all of them, not in those alone that push. A view of these is compiled
#: beside that of all: of a humanoid's 63 contacts that takes 3 CPU seconds of 25, and makes it a quarter faster; of 172, a half.
FEW = 64

#: Up to this many velocities a branch in the loop over the steps costs more than it spares.
SMALL = 64


def step(scheme, settings):
    """``scheme.step`` as a function of ``(prepared, t, dt, state)``, with the derivative of the exact motion through impacts."""
    if isinstance(scheme, LocatedImpacts):
        # Its own derivative is right where it locates; what it leaves to the wrapped scheme is that scheme's.
        return lambda *args: scheme.step(*args, settings, step(scheme.scheme, settings))

    @traced_once
    def moved(prepared, t, dt, state):
        return scheme.step(prepared, t, dt, state, settings)

    def through_events(primals, tangents, after, d_after):
        if after.P.P_N.shape[0]:
            d_after = _through_impacts(scheme, settings, primals, tangents, after, d_after)
        if after.P.P_D is not None:
            d_after = through_reversals(scheme, settings, primals, tangents, after, d_after)
        return d_after

    return storing_solutions(_corrected(moved, through_events))


def init(scheme, settings):
    """``scheme.init`` as a function of ``(prepared, t, dt, q, u)``, with the derivative of the exact motion through impacts.

    Schemes whose velocity is ahead of its coordinates act at the first node: what starts on a contact and closes it has its impact there.
    It is seen as the end of a step of free motion that leads to the start.
    """
    if not scheme.lead or isinstance(scheme, LocatedImpacts):
        return lambda *args: scheme.init(*args, settings)

    def before(prepared, t, dt, q, u):
        return prepared, t - dt, dt, _before_start(scheme, prepared, t, dt, q, u)

    def corrected(primals, tangents, after, d_after):
        if not after.P.P_N.shape[0]:
            return d_after
        d_state = _through_impacts(scheme, settings, *pushed(before, primals, tangents, passed_on=True), after, d_after)
        # The first balances, C18 (60) and (62), have one half of the percussion: what an impact needs enters twice.
        return d_state._replace(P=jax.tree.map(lambda d, own: 2 * d - own, d_state.P, d_after.P))

    return _corrected(lambda *args: scheme.init(*args, settings), corrected)


def _before_start(scheme, prepared, t, dt, q, u):
    """State from which a step of free motion leads to the start (q, u) at t."""
    system = scheme.system(prepared)
    return base.State(q - dt * system.q_dot(t, q, u), u, base.no_percussions(system, t, q, u))


def events_at_start(scheme, prepared, t, dt, q, u, after):
    """`Event` bits of the first node, where schemes act whose velocity is ahead of its coordinates."""
    if not scheme.lead:
        return jnp.zeros((), jnp.int32)
    return events(scheme, prepared, t - dt, dt, _before_start(scheme, prepared, t, dt, q, u), after)


def _corrected(moved, correct):
    """``moved(*args) -> (state, info)``, with ``correct(primals, tangents, state, d_state)`` in place of the state's own tangent."""

    def rule(primals, tangents):
        (state, info), (d_state, d_info) = pushed(moved, primals, tangents)
        d_state = correct(primals, tangents, state, d_state)
        return (known((state, info), primals)), (d_state, d_info)

    def known(after, args):
        """What ``moved`` has led to, and its derivative: the rule's value, which must not be computed twice."""
        return with_rule(lambda after, args: after, lambda primals, tangents: rule(primals[1], tangents[1]))(after, args)

    return with_rule(moved, rule)


def events(scheme, prepared, t, dt, before, after):
    """`Event` bits of a step between two states."""
    nothing = jnp.zeros((), jnp.int32)
    n, d = after.P.P_F.shape
    if not n:
        return nothing
    prepared, t, dt, before, after = jax.tree.map(lax.stop_gradient, (prepared, t, dt, before, after))
    # Outside of all branches: what the step has evaluated is not evaluated again.
    find = functools.partial(_events, scheme, prepared, scheme.evaluated(prepared, t + dt, after.q, before.u), t, dt, before, after)
    pushed, sizes = after.P.P_N > 0, gathered.sizes(n, d)
    if n <= FEW:
        return _where_contacts_push(after, lambda: find()[0], nothing) | _closes_twice(scheme, after)

    of_few = functools.partial(find, at_start=scheme.system(prepared).seen_where_kept(t, before.q, pushed))

    def branch(choice):
        return lambda: of_few(choice) if choice.size else (nothing, jnp.asarray(False))

    few = sizes[:3]
    found, impact = gathered.switch(pushed, few, branch)
    of_all = gathered.largest(impact | (jnp.sum(pushed) > few[-1]))
    return lax.cond(of_all, when_needed(lambda: find()[0]), lambda: found) | _closes_twice(scheme, after)


def _closes_twice(scheme, after):
    """`Event.ACCUMULATION` where a contact has two located impacts in one step, else 0."""
    if not isinstance(scheme, LocatedImpacts) or scheme.max_impacts < 2:
        return 0
    hits = after.impact_contacts
    twice = (hits[:, None] == hits[None, :]) & (hits >= 0)[:, None] & ~np.eye(scheme.max_impacts, dtype=bool)
    return jnp.any(twice).astype(jnp.int32) * int(Event.ACCUMULATION)


def _where_contacts_push(after, function, nothing, *args):
    """``function(*args)`` after a step with a contact that pushes, else ``nothing``.

    ``nothing`` is what the function makes of such a step: for a small system it is called always, as a branch costs more than it spares.
    """
    n, d = after.P.P_F.shape
    if n <= FEW and after.u.shape[0] <= SMALL and not gathered.sizes(n, d):
        return function(*args)
    return lax.cond(jnp.any(after.P.P_N > 0), function, lambda *_: nothing, *args)


def _events(scheme, prepared, at_end, t, dt, before, after, choice=None, at_start=None):
    """``(bits, whether there is an impact)``, of all contacts, or of those of a choice in which all that push are.

    at_start: the system where the step begins, as far as the choice sees it
    With an impact the bits are right of all contacts alone: whether it has company is a matter of those that do not push, too.
    """
    n, d = after.P.P_F.shape if choice is None else (choice.size, after.P.P_F.shape[1])
    end, q, u = t + dt, after.q, before.u
    system = at_end.system.seen_at(end, q)
    starting, ending = Contacts(at_start or scheme.system(prepared), choice), Contacts(system, choice)
    take, gap = ending.take, starting.gap(t, before.q)
    kin = kinematics(system, end, q, u, choice)
    # Without contacts: the Delassus operator is computed where it is asked for.
    M = system.M(end, q, u) if at_end.M is None else at_end.M
    h = system.h(end, q, u) if at_end.h is None else at_end.h
    inertia = scheme.inertia(prepared, M, kin.bilateral())
    slow, _ = contact.split(gained(system, inertia, kin, h, end, dt, q, u), n, d)
    rate = ending.gap_velocity(end, q, u)
    closed = closed_gap(kin.W[:, n * d :], slow, dt, q)
    # With what kinematics make of a contact that is closed, as `turned`.
    by_kinematics = THRESHOLD * jnp.abs(rate - starting.gap_velocity(t, before.q, u))
    slow = slow + jnp.where(take(before.P.P_N > 0) | (gap <= closed), by_kinematics, 0)
    pushed = take(after.P.P_N > 0)
    impacts = pushed & closed_fast(ending.gap(end, q), rate, slow, dt)
    touches = pushed & ~impacts & (gap > closed)
    e_N = ending.data(end, q, rate).e_N
    ends = (e_N > 0) & last_of_sequence(scheme, e_N, rate, slow)
    if isinstance(scheme, LocatedImpacts):
        ends &= take(jnp.any(after.impact_contacts[:, None] == np.arange(after.P.P_N.shape[0])[None], axis=0))
    else:
        ends &= impacts
    found = {Event.IMPACT: impacts, Event.GRAZING: touches, Event.ACCUMULATION: ends}

    if choice is None and n > 1:
        # A contact that touches without a load opens or closes with the last bit: whether it takes part is a matter of chance.
        closing = jnp.max(jnp.where(impacts, -rate, 0))
        loose = (before.P.P_N == 0) & (gap <= closed + thresholds.touch(u.dtype) * dt * closing)

        def coupled(some):
            """Whether an impact acts on another contact that is closed, of a choice in which all these are."""

            def any_of_them():
                of = Contacts(system, some).take
                G = scheme.inertia(prepared, M, kinematics(system, end, q, u, some) if some else kin).G
                return jnp.any(of(impacts)[:, None] & of(impacts | loose)[None, :] & _coupled(jnp.abs(linalg.pack(G)), d))

            return any_of_them

        if several := gathered.sizes(n, d):
            # The Delassus operator is the dearest of it, and bodies at rest have no impacts.
            found[Event.SIMULTANEOUS] = lax.cond(
                jnp.any(impacts), lambda: gathered.switch(impacts | loose, (*several[1:], n), coupled), lambda: jnp.asarray(False)
            )
        else:
            found[Event.SIMULTANEOUS] = coupled(None)()
    return sum(jnp.any(mask).astype(jnp.int32) * int(event) for event, mask in found.items()), jnp.any(impacts)


def _coupled(G, d):
    """Which of n contacts act on each other, (n, n), by the entries of their Delassus operator, without signs."""
    n = G.shape[0] // (d + 1)
    G = G[:, n * d :] + jnp.sum(G[:, : n * d].reshape(G.shape[0], n, d), axis=2)
    G = G[n * d :] + jnp.sum(G[: n * d].reshape(n, d, n), axis=1)
    size = jnp.sqrt(jnp.diagonal(G))
    return (thresholds.COUPLED * size[:, None] * size[None, :] < G) & ~jnp.eye(n, dtype=bool)


def _through_impacts(scheme, settings, primals, tangents, after, d_after):
    """Tangent of the state after a step, those of its impacts included."""
    here = (*primals[:3], primals[3].q, primals[3].u)
    # The jumps are right to first order alone, so only `one` knows that they depend on where they are taken.
    (prepared, t, dt, before), settled = lax.stop_gradient((primals, after))
    args = (prepared, t, dt, before.q, before.u)
    d_args = (*tangents[:3], tangents[3].q, tangents[3].u)
    own = (d_after.q, d_after.u, d_after.P)
    nothing = *jax.tree.map(jnp.zeros_like, own), jnp.zeros_like(t)

    # What a branch stores for the way back, every step would have to copy, the one without an event too: it is computed again.
    @storing_solutions
    def of_contacts(d_args, own):
        event = _Event(scheme, prepared, t, dt, before, settled, settings)

        one = undefined(jnp.ones_like(t), here)

        def first_order(more, own):
            """``more``, whose sum with ``own`` has no derivative."""
            return jax.tree.map(lambda more, own: one * more + (one - 1) * own, more, own)

        @storing_solutions
        def corrections(d_args, own):
            *more, happens = event.corrections(args, d_args, own)
            return *first_order(tuple(more), own), jnp.where(happens, not_a_number(d_args, t.dtype), 0)

        @storing_solutions
        def at_rest(d_args, own):
            return *first_order(event.at_rest(settled, d_args, own), own), jnp.zeros_like(t)

        moved = lax.cond(jnp.any(event.impacting | event.turning), when_needed(corrections), lambda *_: nothing, d_args, own)
        if scheme.position_level:
            return moved
        own = jax.tree.map(jnp.add, own, moved[:3])
        return jax.tree.map(jnp.add, moved, lax.cond(jnp.any(event.landing), when_needed(at_rest), lambda *_: nothing, d_args, own))

    dq, du, dP, none = _where_contacts_push(settled, of_contacts, nothing, d_args, own)
    shifted = scheme.shifted(primals[0], primals[1] + primals[2], after, d_after, dq, du)
    # What else is stored of a step with an impact, of its stages say, belongs to no time of the exact motion.
    stored = {name: x + none for name in scheme.auxiliary if (x := getattr(shifted, name)) is getattr(d_after, name)}
    shifted = shifted._replace(P=jax.tree.map(jnp.add, shifted.P, dP), **stored)

    def changes(args, after):
        _, t, _, before = args
        return _Event(scheme, *args, after, settings).changes(t, before, after)

    once = with_one_derivative(changes, primals, settled)
    return jax.tree.map(lambda x: once * x if is_float(x) else x, shifted)


class _Event:
    """The contacts of one step: which had an impact, which persist, and the jumps of the flow at each impact."""

    def __init__(self, scheme, prepared, t, dt, before, after, settings):
        # The problems of an event are near one that was solved: without the globalization they compile in a third of the time.
        settings = settings.nearby()
        self.scheme, self.prepared, self.system = scheme, prepared, scheme.system(prepared)
        self.flow = Flow(scheme, settings, after.P)
        self.t, self.dt, self.u = t + dt, dt, before.u
        self.q = before.q + dt * self.system.q_dot(t, before.q, before.u)
        self.here = self.at(self.t, self.q)
        self.slow = self.flow.gained(prepared, self.t, dt, self.q, self.u, self.here)
        held, way = (before.P.P_N > 0) | ~self.opened(t, before), ((t, before.q), (self.t, self.q))
        normal, tangential = turned(self.system, self.u, *way)
        # What was open may have an impact as slow as that, of a body that spins say.
        self.turned_slip = jnp.where(held[:, None], tangential, 0)
        self.slow = self.slow[0] + jnp.where(held, normal, 0), self.slow[1] + self.turned_slip
        self.rate = rate = self.here.gap_velocity(self.u)
        self.pushed = after.P.P_N > 0
        self.impacting = self.pushed & closed_fast(self.here.gap, rate, self.slow[0], dt)
        self.persistent = (self.pushed | (before.P.P_N > 0)) & (jnp.abs(rate) <= self.slow[0])
        self.landing = self.landed(t, before, rate)
        # With several discs sliding, rolling and drilling turn each on their own.
        self.slides = self.flow.d > 0 and laws.discs(self.system) is None
        contacts = Contacts(self.system)
        self.slips = [contacts.tangential_velocity(at, state.q, state.u) for at, state in ((t, before), (self.t, after))]
        self.speed = jnp.linalg.norm(self.slips[0], axis=1)
        self.direction = self.slips[0] / jnp.where(self.speed > 0, self.speed, 1)[:, None]
        self.turning, self.slides_back = self.turned() if self.slides else (jnp.zeros_like(self.pushed),) * 2
        # Stored for the way back, so that it is not computed there again.
        for name in ("q", "slow", "impacting", "persistent", "landing", "turning", "slides_back", "speed", "direction"):
            setattr(self, name, solution(getattr(self, name)))

    def at(self, t, q):
        """`Local` of the system at (t, q)."""
        return self.flow.at(self.prepared, t, q, self.u)

    def landed(self, t, before, rate):
        """Contacts (n,) that come to rest: they close too slowly to be told from rest, or with one of the last impacts of a sequence."""
        opened = self.opened(t, before)
        # So has one that starts from a located impact, with its gap closed, on the last arc before the rest.
        opened |= self.system.gap_velocity(t, before.q, before.u) > thresholds.touch(self.q.dtype) * self.slow[0]
        e_N, _, mu = Contacts(self.system).data(self.t, self.q, rate)
        last = self.impacting & last_of_sequence(self.scheme, e_N, rate, self.slow[0])
        # With friction what is left of the normal velocity goes on into slip: it must not be taken out.
        frictionless = jnp.all(mu.reshape(mu.shape[0], -1) == 0, axis=1)
        return frictionless & (last | (self.pushed & opened & self.persistent & ~self.impacting))

    def opened(self, t, before):
        """Contacts (n,) with a gap at the start of the step."""
        return self.system.gap(t, before.q) > closed_gap(self.here.W_N, self.slow[0], self.dt, self.q)

    def turned(self):
        """Contacts (n,) that slide at the start of a step, and at its end have stuck or slide back along the line, and the latter."""
        left = jnp.sum(self.direction * self.slips[1], axis=1)
        small = self.small()
        _, e_F, mu = Contacts(self.system).data(self.t, self.q)
        turned = (self.speed > small) & (left <= small) & (mu > 0)
        turned = turned & self.pushed & self.persistent & ~jnp.any(self.impacting)
        # What friction has stopped has -e_F times its slip, and its tangent has forgotten the slip before, as that of a rest. What slides
        # on has more of it, or less.
        return turned, turned & (jnp.abs(left + e_F * self.speed) > small)

    def small(self, part=slice(None)):
        """Slip (n,), in the directions of ``part``, below which a contact sticks."""
        e_F = Contacts(self.system).data(self.t, self.q).e_F
        # Friction makes of the normal speed what other forces need not. Restitution gives back what kinematics make of the slip of what
        # sticks, so that some of that is left.
        gained, turned = (jnp.sum(x[:, part], axis=1) for x in (self.slow[1], self.turned_slip))
        return thresholds.REST * (self.slow[0] + gained) + e_F * turned

    def changes(self, t, before, after):
        """Whether a contact opens, or closes, slower than an impact, or starts or stops to slide, or slides back.

        What pushes from the first step on has not closed in it, and what slides from it on has not started to.
        """
        pushed_before = before.P.P_N > 0
        system = self.scheme.system(self.prepared)
        n, d = self.flow.n, self.flow.d
        mu = jnp.reshape(Contacts(system).data(self.t, self.q).mu, (n, -1))
        turns, first = jnp.zeros((n,), bool), 0
        # Sliding, rolling and drilling each end on their own.
        for k, size in enumerate(laws.discs(system) or (d,) * (d > 0)):
            part = slice(first, first + size)
            small = self.small(part)
            slid, slides = (jnp.linalg.norm(slip[:, part], axis=1) > small for slip in self.slips)
            reverses = slid & slides & (jnp.sum(self.slips[0][:, part] * self.slips[1][:, part], axis=1) < 0)
            changed = (slid & ~slides) | (slides & ~slid & pushed_before) | reverses
            turns, first = turns | ((mu[:, k] > 0) & changed), first + size
        turns = turns & self.pushed
        opens_or_closes = (pushed_before & ~self.pushed) | (self.pushed & ~pushed_before & self.opened(t, before))
        return jnp.any((turns | opens_or_closes) & (jnp.abs(self.rate) <= self.slow[0]))

    def slip(self, prepared, t, q, u):
        """Tangential velocities (n,) along those before the step."""
        return jnp.sum(self.direction * Contacts(self.scheme.system(prepared)).tangential_velocity(t, q, u), axis=1)

    def corrections(self, args, d_args, own):
        """What is added to the tangents of q, u and percussions, ``own``, of a step in which contacts have impacts or turn, and whether."""
        jumps, flows, captured = solution(self.jumps())
        d_tau = jnp.where(self.impacting, pushed(self.time_to_impact, args, d_args)[1], 0)
        of_impacts = jax.tree.map(lambda jump: jnp.tensordot(d_tau, jump, 1), jumps)
        if self.scheme.position_level:
            # Its own tangent has forgotten the state before an impact.
            d_captured = pushed(functools.partial(self.captured, captured), args, d_args)[1]
            of_impacts = jax.tree.map(lambda a, b, c: a + b - c, of_impacts, d_captured, own)
        happens = jnp.any(self.impacting)
        if not self.slides:
            return *of_impacts, happens
        *of_reversal, reverses = self.reversal(args, d_args, own, flows)
        return *jax.tree.map(lambda a, b: jnp.where(happens, a, b), of_impacts, tuple(of_reversal)), happens | reverses

    def stays(self, u):
        """Contacts (n,) that rest at u and are pressed on: what an impact, or a force, lets go of has not come to rest."""
        resting = self.landing | self.persistent
        _, P = self.flow.acceleration(self.prepared, self.t, self.dt, self.q, u, resting, self.slow, self.here)
        return resting & (P.P_N > 0)

    def at_rest(self, after, d_args, own):
        """What is added to the tangents of q, u and percussions of a step in which contacts come to rest: their gaps stay as they are.

        The tangents of gaps and gap velocities that would remain are taken out by percussions, as an impact would.
        """
        (d_prepared, d_t, d_dt, *_), (dq, du, dP) = d_args, own
        t, q, u, n, d = self.t, after.q, after.u, self.flow.n, self.flow.d
        resting = self.stays(u)
        inertia = self.scheme.inertia(self.prepared, self.system.M(t, q, u), kinematics(self.system, t, q, u))
        G = linalg.pack(inertia.G)[n * d :, n * d :]
        r = jnp.where(resting, 1 / jnp.where(resting, jnp.diagonal(G), 1), 0)
        solve = linalg.pivoted(jnp.where(resting[:, None], r[:, None] * jnp.where(resting, G, 0), jnp.eye(n, dtype=G.dtype)))

        none = jnp.zeros_like(jnp.concatenate([dP.P_g, dP.P_gamma]))

        def take_out(tangent):
            P_N = -solve(r * tangent)
            z = inertia.convert(contact.join(P_N, jnp.zeros((n, d), u.dtype)))
            change, P_b = inertia.add(inertia.convert(jnp.zeros_like(u)), inertia.convert(none) if inertia.bilateral else None, z)
            P_g, P_gamma = jnp.split(linalg.pack(P_b) if inertia.bilateral else none, [dP.P_g.shape[0]])
            return linalg.pack(change), type(dP)(P_N, jnp.zeros_like(dP.P_F), P_g, P_gamma, jax.tree.map(jnp.zeros_like, dP.P_D))

        def gaps(prepared, t, q, u):
            system = self.scheme.system(prepared)
            return system.gap(t, q), system.gap_velocity(t, q, u)

        at, along = (self.prepared, t, q, u), (d_prepared, d_t + d_dt)
        d_gap, _ = pushed(gaps, at, (*along, dq, du))[1]
        moved = jax.jvp(lambda u: self.system.q_dot(t, q, u), (u,), (take_out(d_gap)[0],))[1]
        _, d_rate = pushed(gaps, at, (*along, dq + moved, du))[1]
        return moved, *take_out(d_rate)

    def time_to_impact(self, prepared, t, dt, q, u):
        """``tau = -g_N / g_N_dot`` of every contact, (n_N,), from the end of a step of free motion on."""
        system = self.scheme.system(prepared)
        q = q + dt * system.q_dot(t, q, u)
        rate = system.gap_velocity(t + dt, q, u)
        return -system.gap(t + dt, q) / jnp.where(rate < 0, rate, -1.0)

    def jumps(self):
        """``(DR f_minus - f_plus of every contact, flows of a reversal, what impacts are captured as)``.

        The first as parts of q, u and percussions, an axis of the contacts in front, zero where there was no impact; the second as
        acceleration and forces, those before and those after in front, or None where no contact may turn; the third as velocity and
        percussions, or None where that is not asked for. All accelerations and all impact maps are in one loop, as one problem, which is
        compiled once: first the flows of a reversal, the first of which is that before an impact as well, then every impact and the flow
        after it, then all impacts at once.
        """
        n, t, q = self.flow.n, self.t, self.q
        q_dot = self.system.q_dot(t, q, self.u)
        expands = laws.of(self.system).expands
        first, last = 2 if self.slides else 1, int(self.scheme.position_level and not expands)
        ahead = np.array([True] * first + [False, True] * n + [False] * last)
        persistent, turns, impacts = self.persistent[None], jnp.any(self.turning), jnp.any(self.impacting)
        each = jnp.repeat(persistent | jnp.eye(n, dtype=bool), 2, axis=0)
        rows = (
            jnp.concatenate([persistent] * first + [each] + [self.pushed[None]] * last),
            jnp.concatenate([jnp.stack([turns | impacts, turns][:first]), jnp.repeat(self.impacting, 2), impacts[None][:last]]),
            jnp.asarray(ahead),
            jnp.arange(len(ahead)),
        )
        nothing = jax.tree.map(jnp.zeros_like, (self.u, self.flow.P))
        at = jax.jvp(self.at, (t, q), (jnp.ones_like(t), q_dot))
        # What turns has no slip, and friction opposes that in which it goes on, or that to come.
        speed = jnp.where(self.turning, self.speed, 0)[:, None]
        slow = self.slow[0], self.slow[1] + speed
        far = jnp.where(speed > 0, 10 * jnp.sum(slow[1], axis=1, keepdims=True), 0) * self.direction

        def row(carry, row):
            f_minus, after = carry
            mask, happens, ahead, k = row
            u, on = jnp.where(ahead & (k >= first), after, self.u), jnp.where(k == 0, far, 0)

            def either(u):
                forced = k == first + 2 * n
                return self.flow.either(ahead, forced, self.prepared, at, t, self.dt, q, u, (q_dot, f_minus[0]), mask, slow, on)

            def in_two_phases(u):
                """What `either` is where the impact has a compression and an expansion."""

                def impact(here, t, q, u):
                    return self.flow.impact(self.prepared, t, q, u, mask, here)[:2]

                def of_impact(u):
                    return jax.jvp(impact, (at[0], t, q, u), (at[1], jnp.ones_like(t), q_dot, f_minus[0]))

                def acceleration(u):
                    return self.flow.acceleration(self.prepared, t, self.dt, q, u, mask, slow, self.here, on)

                return lax.cond(ahead, lambda u: (acceleration(u), nothing), of_impact, u)

            def neither(u):
                return (jnp.where(ahead, 0, u), nothing[1]), nothing

            x, turned = lax.cond(happens, in_two_phases if expands else either, neither, u)
            f_minus = jax.tree.map(lambda a, b: jnp.where(k == 0, a, b), x, f_minus)
            # The forces before the impact go on to its percussions.
            turned = turned[0], jax.tree.map(lambda a, b: jnp.where(happens, a + b, 0), turned[1], f_minus[1])
            return (f_minus, x[0]), (x, turned, q_dot - self.system.q_dot(t, q, u))

        _, (x, turned, dq) = lax.scan(row, (nothing, self.u), rows)
        before, after = slice(first, first + 2 * n, 2), slice(first + 1, first + 2 * n, 2)
        jumps = dq[after], *jax.tree.map(lambda turned, x: turned[before] - x[after], turned, x)
        flows = jax.tree.map(lambda x: x[:2], x) if self.slides else None
        return jumps, flows, jax.tree.map(lambda x: x[-1], x) if last else None

    def captured(self, known, prepared, t, dt, q, u):
        """``(q, u, percussions)`` after a step that captures impacts on velocity level; ``known``: the last two, or None."""
        q = q + dt * self.scheme.system(prepared).q_dot(t, q, u)
        return q, *self.flow.captured(prepared, t + dt, dt, q, u, self.pushed, known)[:2]

    def reversal(self, args, d_args, own, flows):
        """``(f_minus - f_plus) d tau``, to be added to the tangents of q, u and percussions, and whether slip reverses without a rest.

        ``d tau = -d gamma_F_minus / gamma_F_dot_minus`` of the slip at the start. Where the step ends in a rest the own tangent has
        forgotten it: d tau is then what makes of that what it becomes, ``d gamma_F_plus = gamma_F_dot_plus / gamma_F_dot_minus d
        gamma_F_minus``, with the rates of the two flows. They differ little where the kinematics turn the slip, at a dead centre.
        """
        (prepared, t, dt, q, u), (d_prepared, d_t, d_dt, d_q, d_u), (dq, du, _) = args, d_args, own
        ends = self.t + dt, self.q + dt * self.system.q_dot(self.t, self.q, u)
        places = [jnp.stack([a, b, b]) for a, b in zip((self.t, self.q), ends, strict=True)]
        start, *ahead = jax.vmap(self.slip, (None, 0, 0, 0))(prepared, *places, jnp.stack([u, *(u + dt * f for f in flows[0])]))
        minus, plus = (end - start for end in ahead)
        # Where friction holds the contact, the own tangent has the rest in it. What ends next to zero may be short of it here.
        goes_back = (minus < plus) & (plus < thresholds.touch(u.dtype) * minus)
        turns = self.turning & goes_back & (self.speed < -THRESHOLD * minus)
        k = jnp.argmax(turns)
        back, rates = self.slides_back[k], ((plus, minus), (dt, jnp.where(self.slides_back, -minus, minus - plus)))
        ratio, weight = (jnp.where(turns, a / jnp.where(turns, b, 1), 0)[k] for a, b in rates)
        of_before, of_after = jnp.where(back, 1, ratio), jnp.where(back, 0, -1)

        def left(d_before, d_after):
            """What a tangent of before the step has become, less that after it."""
            return jax.tree.map(lambda x: of_before * x, d_before) + jax.tree.map(lambda x: of_after * x, d_after)

        d_prepared = jax.tree.map(lambda x: (of_before + of_after) * x, d_prepared)
        d_slip = pushed(self.slip, (prepared, t, q, u), (d_prepared, left(d_t, d_t + d_dt), left(d_q, dq), left(d_u, du)))[1]
        d_tau = weight * d_slip[k]
        return jnp.zeros_like(dq), *jax.tree.map(lambda x: jnp.where(turns[k], x[0] - x[1], 0) * d_tau, flows), turns[k]


def closed_gap(W_N, slow, dt, q):
    """Gaps (n,) up to which contacts are closed: what the forces close in a step, and the round-off of the coordinates, tell no more."""
    round_off = thresholds.round_off(q.dtype) * dt * resolution(q, dt, W_N.shape[0])
    return thresholds.touch(q.dtype) * dt * slow + jnp.abs(W_N).T @ round_off


def closed_fast(gap, rate, slow, dt):
    """Which contacts, with this gap and gap velocity at the end of a step of free motion, had an impact in it."""
    # An impact of this step lies in this step, or next to it.
    return (rate < -slow) & (jnp.abs(gap) <= 2 * dt * jnp.abs(rate))


def last_of_sequence(scheme, e_N, rate, slow):
    """Which contacts, with this gap velocity at an impact, leave it so slowly that the step does not resolve the impacts to come.

    A scheme that captures impacts holds each on its step: what comes within a dozen of them is not resolved. One that locates them does so
    as long as the next one is fast enough.
    """
    if isinstance(scheme, LocatedImpacts):
        return -e_N * rate < slow * (scheme.slowest / THRESHOLD)
    return -e_N * rate < thresholds.LAST * slow
