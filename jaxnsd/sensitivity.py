"""Derivatives through impacts that converge to those of the exact motion.

An event-capturing scheme holds every impact on its step, so the derivative of the steps as computed lacks the shift of the impact in
time, and is wrong by O(1) whatever the step. The derivative of the exact motion through a transversal impact is the saltation matrix
(Aizerman & Gantmakher 1958; Leine & Nijmeijer 2004): with tau the time to the impact, R the impact map and f the right-hand sides of
the one-sided flows,

    d x_plus = DR d x_minus + (DR f_minus - f_plus) d tau,        tau = -g_N / g_N_dot.

A scheme's own derivative is the first term, up to O(dt). Here the second is added to it, in the derivative only: the motion stays as it
is, bit for bit. Impact map and one-sided flows are those of the system, not of the scheme, so that one mechanism serves all of them.
Where slip along a line passes through zero without a rest the velocity does not jump, but friction does: there R is the identity, and
tau = -gamma_F / gamma_F_dot.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax import lax

from . import contact, linalg
from .derivatives import with_rule
from .newton import solution, storing_solutions
from .results import Event
from .schemes.condensed import kinematics
from .schemes.flow import Flow, gained
from .schemes.located import LocatedImpacts

#: An impact that leaves the contact slower than this multiple of the threshold is one of the last of a sequence.
LAST = 4

#: A gap that was larger than this part of what the forces close in a step was open.
TOUCH = 1e-6

#: Slip below this part of what is gained in a step is rest.
REST = 1e-3

#: Contacts are coupled where their entry of the Delassus operator is larger than this, relative to the diagonal.
COUPLED = 1e-10

#: Up to this many velocities a branch in the loop over the steps costs more than it spares.
SMALL = 64


def step(scheme, settings):
    """``scheme.step`` as a function of ``(prepared, t, dt, state)``, with the derivative of the exact motion through impacts."""
    if isinstance(scheme, LocatedImpacts):
        # Its own derivative is right where it locates; what it leaves to the wrapped scheme is that scheme's.
        return lambda *args: scheme.step(*args, settings, step(scheme.scheme, settings))

    def moved(prepared, t, dt, state):
        return scheme.step(prepared, t, dt, state, settings)

    def rule(primals, tangents):
        (state, info), (d_state, d_info) = jax.jvp(moved, primals, tangents)
        if state.P.P_N.shape[0]:
            d_state = _through_impacts(scheme, settings, primals, tangents, state, d_state)
        return (known((state, info), primals)), (d_state, d_info)

    def known(after, args):
        """What the step has led to, and its derivative: the rule's value, which must not be computed twice."""
        return with_rule(lambda after, args: after, lambda primals, tangents: rule(primals[1], tangents[1]))(after, args)

    return storing_solutions(with_rule(moved, rule))


def events(scheme, prepared, t, dt, before, after):
    """`Event` bits of a step between two states."""
    if not after.P.P_N.shape[0]:
        return jnp.zeros((), jnp.int32)
    args = jax.tree.map(lax.stop_gradient, (prepared, t, dt, before, after))
    find = functools.partial(_events, scheme)
    if before.u.shape[0] <= SMALL:
        return find(*args)
    return lax.cond(jnp.any(after.P.P_N > 0), find, lambda *_: jnp.zeros((), jnp.int32), *args)


def _events(scheme, prepared, t, dt, before, after):
    n, d = after.P.P_F.shape
    system, end, q, u = scheme.system(prepared), t + dt, after.q, before.u
    # At the new configuration: what Moreau's scheme has computed there already is not computed twice.
    kin = kinematics(system, end, q, u)
    inertia = scheme.inertia(prepared, end, q, u, kin)
    slow, _ = contact.split(gained(system, inertia, kin, end, dt, q, u), n, d)
    rate = system.gap_velocity(end, q, u)
    pushed = after.P.P_N > 0
    impacts = pushed & closed_fast(system.gap(end, q), rate, slow, dt)
    touches = pushed & ~impacts & (system.gap(t, before.q) > TOUCH * dt * slow)
    e_N, _, _ = system.contact_data(end, q)
    ends = impacts & (e_N > 0) & (-e_N * rate < LAST * slow)
    found = {Event.IMPACT: impacts, Event.GRAZING: touches, Event.ACCUMULATION: ends}
    if n > 1:
        G = jnp.abs(linalg.pack(inertia.G))
        G = G[:, n * d :] + jnp.sum(G[:, : n * d].reshape(G.shape[0], n, d), axis=2)
        G = G[n * d :] + jnp.sum(G[: n * d].reshape(n, d, n), axis=1)
        size = jnp.sqrt(jnp.diagonal(G))
        coupled = (COUPLED * size[:, None] * size[None, :] < G) & ~jnp.eye(n, dtype=bool)
        found[Event.SIMULTANEOUS] = impacts[:, None] & impacts[None, :] & coupled
    return sum(jnp.any(mask).astype(jnp.int32) * int(event) for event, mask in found.items())


def _through_impacts(scheme, settings, primals, tangents, after, d_after):
    """Tangent of the state after a step, those of its impacts included."""
    prepared, t, dt, before = primals
    args = (prepared, t, dt, before.q, before.u)
    d_args = (*tangents[:3], tangents[3].q, tangents[3].u)
    own = (d_after.q, d_after.u)
    nothing = jnp.zeros_like(after.q), jnp.zeros_like(after.u)

    # What a branch stores for the way back, every step would have to copy, the one without an event too: it is computed again.
    @storing_solutions
    def where_contacts_push(d_args, own):
        event = _Event(scheme, prepared, t, dt, before, after, settings)
        corrections = storing_solutions(lambda d_args, own: event.corrections(args, d_args, own))
        return lax.cond(jnp.any(event.impacting | event.turning), corrections, lambda *_: nothing, d_args, own)

    dq, du = lax.cond(jnp.any(after.P.P_N > 0), where_contacts_push, lambda *_: nothing, d_args, own)
    return scheme.shifted(prepared, t + dt, after, d_after, dq, du)


class _Event:
    """The contacts of one step: which had an impact, which persist, and the jumps of the flow at each impact."""

    def __init__(self, scheme, prepared, t, dt, before, after, settings):
        # The problems of an event are near one that was solved: without the globalization they compile in a third of the time.
        settings = dataclasses.replace(settings, max_rescues=0, max_iterations=20)
        self.scheme, self.prepared, self.system = scheme, prepared, scheme.system(prepared)
        self.flow = Flow(scheme, settings, after.P)
        self.t, self.dt, self.u = t + dt, dt, before.u
        self.q = before.q + dt * self.system.q_dot(t, before.q, before.u)
        self.slow = self.flow.gained(prepared, self.t, dt, self.q, self.u)
        rate = self.system.gap_velocity(self.t, self.q, self.u)
        self.pushed = after.P.P_N > 0
        self.impacting = self.pushed & closed_fast(self.system.gap(self.t, self.q), rate, self.slow[0], dt)
        self.persistent = (self.pushed | (before.P.P_N > 0)) & (jnp.abs(rate) <= self.slow[0])
        self.along_a_line = self.flow.d == 1
        self.turning = self.turned(before, after) if self.along_a_line else jnp.zeros_like(self.pushed)

    def turned(self, before, after):
        """Contacts (n,) with friction along a line that slide at the start of a step and have stuck or turned at its end."""
        slip, left = (self.slip(self.prepared, self.t, state.q, state.u) for state in (before, after))
        # Friction makes of the normal speed what other forces need not.
        small = REST * (self.slow[0] + self.slow[1][:, 0])
        _, _, mu = self.system.contact_data(self.t, self.q)
        turned = (jnp.abs(slip) > small) & (jnp.sign(slip) * left <= small)
        return turned & (mu > 0) & self.pushed & self.persistent & ~jnp.any(self.impacting)

    def slip(self, prepared, t, q, u):
        """Tangential velocities (n,) of contacts with friction along a line."""
        return self.scheme.system(prepared).tangential_velocity(t, q, u)[:, 0]

    def corrections(self, args, d_args, own):
        """What is added to the tangents of q and u, ``own``, of a step in which contacts have impacts or turn."""
        f_minus = self.acceleration(self.persistent, self.u)
        d_tau = jnp.where(self.impacting, jax.jvp(self.time_to_impact, args, d_args)[1], 0)
        jumps = solution(lax.map(lambda i: self.jump(i, f_minus), jnp.arange(self.flow.n)))
        of_impacts = tuple(jnp.sum(d_tau[:, None] * jump, axis=0) for jump in jumps)
        if not (self.along_a_line or self.scheme.position_level):
            return of_impacts
        # A position-level scheme's own tangent has forgotten the state before an impact, any scheme's the slip before a reversal.
        slip = self.slip(args[0], args[1], args[3], args[4]) if self.along_a_line else None
        primal, (dq, du, d_slip) = jax.jvp(lambda *args: self.captured(*args, slip), args, d_args)
        replaced = dq - own[0], du - own[1]
        if self.scheme.position_level:
            of_impacts = tuple(map(jnp.add, of_impacts, replaced))
        if not self.along_a_line:
            return of_impacts
        du_on, goes_on = self.reversal(args, slip, primal, d_slip)
        of_reversal = replaced[0], replaced[1] + du_on
        happens = jnp.any(self.impacting)
        return tuple(jnp.where(happens, a, jnp.where(goes_on, b, 0)) for a, b in zip(of_impacts, of_reversal, strict=True))

    def time_to_impact(self, prepared, t, dt, q, u):
        """``tau = -g_N / g_N_dot`` of every contact, (n_N,), from the end of a step of free motion on."""
        system = self.scheme.system(prepared)
        q = q + dt * system.q_dot(t, q, u)
        rate = system.gap_velocity(t + dt, q, u)
        return -system.gap(t + dt, q) / jnp.where(rate < 0, rate, -1.0)

    def jump(self, i, f_minus):
        """``DR f_minus - f_plus`` of contact i, as parts (n_q,) and (n_u,); zero if it had no impact."""

        def of_impact(i):
            t, q, u = self.t, self.q, self.u
            mask = self.persistent | (jnp.arange(self.flow.n) == i)
            q_dot = self.system.q_dot(t, q, u)
            impact = lambda t, q, u: self.flow.impact(self.prepared, t, q, u, mask)[0]  # noqa: E731
            after, turned = jax.jvp(impact, (t, q, u), (jnp.ones_like(t), q_dot, f_minus))
            return q_dot - self.system.q_dot(t, q, after), turned - self.acceleration(mask, after)

        zeros = jnp.zeros_like(self.q), jnp.zeros_like(self.u)
        return lax.cond(self.impacting[i], of_impact, lambda i: zeros, i)

    def acceleration(self, mask, u):
        """du/dt (n_u,) of the motion in which the contacts of ``mask`` are closed."""
        return self.flow.acceleration(self.prepared, self.t, self.dt, self.q, u, mask, self.slow)

    def captured(self, prepared, t, dt, q, u, slip=None):
        """``(q, u, slip)`` after a step that captures the impacts on velocity level, in which contacts that turn go on sliding."""
        q = q + dt * self.scheme.system(prepared).q_dot(t, q, u)
        if slip is None:
            return q, self.flow.captured(prepared, t + dt, dt, q, u, None, self.pushed)[0], None
        ahead = jnp.where(self.turning, jnp.sign(slip) * 10 * (jnp.abs(slip) + self.slow[1][:, 0]), 0)
        kept = lax.stop_gradient(contact.join(jnp.zeros_like(slip), ahead[:, None]))
        u = self.flow.captured(prepared, t + dt, dt, q, u, kept, self.pushed)[0]
        return q, u, self.slip(prepared, t + dt, q, u)

    def reversal(self, args, slip, on, d_slip):
        """``((f_minus - f_plus) d tau, whether there is one)`` where slip passes through zero without a rest, ``on`` sliding on.

        With f_minus of the slip before and f_plus of the slip after, ``d x_plus = d x_minus + (f_minus - f_plus) d tau`` and
        ``tau = -gamma_F / gamma_F_dot`` from the end of a step that slides on: its tangent takes the place of the step's own.
        """
        prepared, t, dt, q, u = args
        _, u_on, slip_on = on
        rate = (slip_on - slip) / dt
        crossing = self.turning & (jnp.sign(slip) * slip_on < 0)
        first = jnp.argmax(crossing)
        part = jnp.where(crossing, slip / jnp.where(crossing, slip - slip_on, 1), 0)[first]
        turned = u + part * (u_on - u)
        f_plus = solution(self.acceleration(self.pushed, turned))
        along = (jnp.ones_like(t), self.system.q_dot(t, q, turned), f_plus)
        rate_after = jax.jvp(lambda t, q, u: self.slip(prepared, t, q, u), (t, q, turned), along)[1]
        # Where friction holds the contact, the own tangent has the rest in it.
        goes_on = crossing & (jnp.sign(slip) * rate_after < -TOUCH * jnp.abs(rate)) & (jnp.arange(self.flow.n) == first)
        d_tau = jnp.sum(jnp.where(goes_on, -d_slip / jnp.where(crossing, rate, 1), 0))
        return ((u_on - u) / dt - f_plus) * d_tau, jnp.any(goes_on)


def closed_fast(gap, rate, slow, dt):
    """Which contacts, with this gap and gap velocity at the end of a step of free motion, had an impact in it."""
    # An impact of this step lies in this step, or next to it.
    return (rate < -slow) & (jnp.abs(gap) <= 2 * dt * jnp.abs(rate))
