"""Derivatives through impacts that converge to those of the exact motion.

An event-capturing scheme holds every impact on its step, so the derivative of the steps as computed lacks the shift of the impact in
time, and is wrong by O(1) whatever the step. The derivative of the exact motion through a transversal impact is the saltation matrix
(Aizerman & Gantmakher 1958; Leine & Nijmeijer 2004): with tau the time to the impact, R the impact map and f the right-hand sides of
the one-sided flows,

    d x_plus = DR d x_minus + (DR f_minus - f_plus) d tau,        tau = -g_N / g_N_dot.

A scheme's own derivative is the first term, up to O(dt). Here the second is added to it, in the derivative only: the motion stays as it
is, bit for bit. Impact map and one-sided flows are those of the system, not of the scheme, so that one mechanism serves all of them.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from . import contact, linalg
from .schemes import base

#: A contact that closes faster than this part of the speed that the forces make in a step has an impact; a slower one persists.
THRESHOLD = 1.5


def step(scheme, settings):
    """``scheme.step`` as a function of ``(prepared, t, dt, state)``, with the derivative of the exact motion through impacts."""

    @jax.custom_jvp
    def saltating(prepared, t, dt, state):
        return scheme.step(prepared, t, dt, state, settings)

    @saltating.defjvp
    def rule(primals, tangents):
        (state, info), (d_state, d_info) = jax.jvp(lambda *args: scheme.step(*args, settings), primals, tangents)
        if state.P.P_N.shape[0]:
            d_state = _through_impacts(scheme, settings, primals, tangents, state, d_state)
        return (state, info), (d_state, d_info)

    return saltating


def _through_impacts(scheme, settings, primals, tangents, after, d_after):
    """Tangent of the state after a step, those of its impacts included."""
    prepared, t, dt, before = primals
    args = (prepared, t, dt, before.q, before.u)
    d_args = (*tangents[:3], tangents[3].q, tangents[3].u)
    event = _Event(scheme, prepared, t, dt, before, after, settings)

    def corrections(own):
        """What is added to the tangents of q and u; a position-level scheme's own are replaced."""
        added = tuple(new - old for new, old in zip(jax.jvp(event.captured, args, d_args)[1], own, strict=True)) if own else (0, 0)
        d_tau = jnp.where(event.impacting, jax.jvp(event.time_to_impact, args, d_args)[1], 0)
        jumps = lax.map(event.jump, jnp.arange(event.n))
        return tuple(a + d_tau @ jump for a, jump in zip(added, jumps, strict=True))

    own = (d_after.q, d_after.u) if scheme.position_level else ()
    zeros = jnp.zeros_like(after.q), jnp.zeros_like(after.u)
    dq, du = lax.cond(jnp.any(event.impacting), corrections, lambda _: zeros, own)
    return scheme.shifted(prepared, t + dt, after, d_after, dq, du)


class _Event:
    """The contacts of one step: which had an impact, which persist, and the jumps of the flow at each impact."""

    def __init__(self, scheme, prepared, t, dt, before, after, settings):
        # The problems of an event are near one that was solved: without the globalization they compile in a third of the time.
        self.settings = dataclasses.replace(settings, max_rescues=0, max_iterations=20)
        self.scheme, self.prepared, self.system = scheme, prepared, scheme.system(prepared)
        self.t, self.dt, self.u = t + dt, dt, before.u
        self.q = before.q + dt * self.system.q_dot(t, before.q, before.u)
        self.P = jax.tree.map(lax.stop_gradient, after.P)
        self.n, self.d = after.P.P_F.shape
        kin = base.kinematics(self.system, self.t, self.q, self.u)
        inertia = scheme.inertia(prepared, self.t, self.q, self.u, kin)
        gained, _ = inertia.free(jnp.zeros_like(self.u), -dt * self.system.h(self.t, self.q, self.u), jnp.zeros_like(kin.chi_b))
        slow = THRESHOLD * (jnp.abs(kin.W).T @ jnp.abs(linalg.pack(gained)))
        self.slow_N, self.slow_F = contact.split(lax.stop_gradient(slow), self.n, self.d)
        rate_N, _ = contact.split(kin.W.T @ self.u + kin.chi, self.n, self.d)
        self.pushed = after.P.P_N > 0
        self.impacting = self.pushed & (rate_N < -self.slow_N)
        self.persistent = (self.pushed | (before.P.P_N > 0)) & (jnp.abs(rate_N) <= self.slow_N)

    def time_to_impact(self, prepared, t, dt, q, u):
        """``tau = -g_N / g_N_dot`` of every contact, (n_N,), from the end of a step of free motion on."""
        system = self.scheme.system(prepared)
        q = q + dt * system.q_dot(t, q, u)
        rate = system.gap_velocity(t + dt, q, u)
        return -system.gap(t + dt, q) / jnp.where(rate < 0, rate, -1.0)

    def impact(self, mask, t, q, u):
        """The impact map R: velocity after the impact of the contacts in ``mask``."""
        return self.solve(self.prepared, t, jnp.zeros_like(t), q, u, None, mask)

    def acceleration(self, mask, u):
        """du/dt of the motion in which the contacts of ``mask`` are closed, (n_u,)."""
        kin = base.kinematics(self.system, self.t, self.q, u)
        rate_N, rate_F = contact.split(kin.W.T @ u + kin.chi, self.n, self.d)
        # What is left of the normal velocity of a closed contact, or of the tangential one of a contact that sticks, is no acceleration.
        closed = jnp.abs(rate_N) <= self.slow_N
        sticks = jnp.sum(rate_F * rate_F, axis=1) <= jnp.sum(self.slow_F * self.slow_F, axis=1)
        kept = contact.join(jnp.where(closed, -rate_N, 0), jnp.where((closed & sticks)[:, None], -rate_F, 0))
        return (self.solve(self.prepared, self.t, self.dt, self.q, u, kept, mask) - u) / self.dt

    def solve(self, prepared, t, dt, q, u, kept, mask):
        """Velocity after ``M (u - u_minus) = dt h + W P`` from (t, q), with the contact law on those contacts that ``mask`` names.

        Without ``kept`` it is the impact law at (t, q); with it, ``xi = W^T u + chi + kept`` at the configuration dt ahead.
        """
        scheme, d = self.scheme, self.d

        # Functions of their arguments alone: they are kept for the derivative.
        def contacts(args):
            prepared, t, dt, q, u, kept, _ = args
            system = scheme.system(prepared)
            if kept is None:
                return base.impact_law(system, t, q, u, d)
            return base.kinematics(system, t + dt, q + dt * system.q_dot(t, q, u), u), kept

        def balance(args, u):
            prepared, t, dt, q, u_minus, *_ = args
            system = scheme.system(prepared)
            return system.momentum(t, q, u) - system.momentum(t, q, u_minus) - dt * system.h(t, q, u_minus)

        def condense(args, u, kin):
            prepared, t, _, q, *_ = args
            return scheme.inertia(prepared, t, q, u, kin)

        def friction(args):
            prepared, t, _, q, *_ = args
            return scheme.system(prepared).contact_data(t, q)[2]

        problem = base.VelocityProblem(balance, None, contacts, friction, lambda args: args[-1] > 0, True, condense=condense)
        args = (prepared, t, dt, q, u, kept, mask.astype(u.dtype))
        return base.solve_velocity(problem, args, u, self.P, self.settings)[0]

    def jump(self, i):
        """``DR f_minus - f_plus`` of contact i, as parts (n_q,) and (n_u,); zero if it had no impact."""

        def of_impact(i):
            t, q, u = self.t, self.q, self.u
            mask = self.persistent | (jnp.arange(self.n) == i)
            q_dot = self.system.q_dot(t, q, u)
            before = self.acceleration(self.persistent, u)
            after, turned = jax.jvp(lambda t, q, u: self.impact(mask, t, q, u), (t, q, u), (jnp.ones_like(t), q_dot, before))
            return q_dot - self.system.q_dot(t, q, after), turned - self.acceleration(mask, after)

        zeros = jnp.zeros_like(self.q), jnp.zeros_like(self.u)
        return lax.cond(self.impacting[i], of_impact, lambda i: zeros, i)

    def captured(self, prepared, t, dt, q, u):
        """``(q, u)`` after a step that captures the impacts on velocity level: what the tangent of a position-level scheme is made of."""
        q = q + dt * self.scheme.system(prepared).q_dot(t, q, u)
        return q, self.solve(prepared, t + dt, dt, q, u, None, self.pushed)
