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
    system = scheme.system(prepared)
    d_system = scheme.system(tangents[0])
    args = (system, t, dt, before.q, before.u)
    d_args = (d_system, *tangents[1:3], tangents[3].q, tangents[3].u)
    event = _Event(system, t, dt, before, after, settings)

    def corrections(own):
        """What is added to the tangents of q and u; a position-level scheme's own are replaced."""
        added = tuple(new - old for new, old in zip(jax.jvp(event.captured, args, d_args)[1], own, strict=True)) if own else (0, 0)
        d_tau = jnp.where(event.impacting, jax.jvp(time_to_impact, args, d_args)[1], 0)
        jumps = lax.map(event.jump, jnp.arange(event.n))
        return tuple(a + d_tau @ jump for a, jump in zip(added, jumps, strict=True))

    own = (d_after.q, d_after.u) if scheme.position_level else ()
    zeros = jnp.zeros_like(after.q), jnp.zeros_like(after.u)
    dq, du = lax.cond(jnp.any(event.impacting), corrections, lambda _: zeros, own)
    return scheme.shifted(prepared, t + dt, after, d_after, dq, du)


def time_to_impact(system, t, dt, q, u):
    """``tau = -g_N / g_N_dot`` of every contact, (n_N,), from the end of a step of free motion on."""
    q = q + dt * system.q_dot(t, q, u)
    rate = system.gap_velocity(t + dt, q, u)
    return -system.gap(t + dt, q) / jnp.where(rate < 0, rate, -1.0)


class _Event:
    """The contacts of one step: which had an impact, which persist, and the jumps of the flow at each impact."""

    def __init__(self, system, t, dt, before, after, settings):
        # The problems of an event are near one that was solved: without the globalization they compile in a third of the time.
        self.system, self.dt, self.settings = system, dt, dataclasses.replace(settings, max_rescues=0, max_iterations=20)
        self.t, self.u = t + dt, before.u
        self.q = before.q + dt * system.q_dot(t, before.q, before.u)
        self.P = jax.tree.map(lax.stop_gradient, after.P)
        self.n, self.d = after.P.P_F.shape
        pushed = after.P.P_N > 0
        kin = base.kinematics(system, self.t, self.q, self.u)
        acceleration = linalg.lu(system.M(self.t, self.q, self.u))(system.h(self.t, self.q, self.u))
        rate_N, _ = contact.split(kin.W.T @ self.u + kin.chi, self.n, self.d)
        gain_N, gain_F = contact.split(jnp.abs(kin.W).T @ jnp.abs(acceleration), self.n, self.d)
        self.slow_N, self.slow_F = (THRESHOLD * dt * gain for gain in (gain_N, gain_F))
        self.impacting = lax.stop_gradient(pushed & (rate_N < -self.slow_N))
        self.persistent = lax.stop_gradient((pushed | (before.P.P_N > 0)) & (jnp.abs(rate_N) <= self.slow_N))
        self.pushed = lax.stop_gradient(pushed)

    def impact(self, mask, system, t, q, u):
        """The impact map R: velocity after the impact of the contacts in ``mask``."""
        return self.solve(system, t, jnp.zeros_like(t), q, u, None, mask)

    def acceleration(self, mask, u):
        """du/dt of the motion in which the contacts of ``mask`` are closed, (n_u,)."""
        system, t, dt, q = self.system, self.t, self.dt, self.q
        kin = base.kinematics(system, t, q, u)
        rate_N, rate_F = contact.split(kin.W.T @ u + kin.chi, self.n, self.d)
        # What is left of the normal velocity of a closed contact, or of the tangential one of a contact that sticks, is no acceleration.
        closed = jnp.abs(rate_N) <= self.slow_N
        sticks = jnp.sum(rate_F * rate_F, axis=1) <= jnp.sum(self.slow_F * self.slow_F, axis=1)
        kept = contact.join(jnp.where(closed, -rate_N, 0), jnp.where((closed & sticks)[:, None], -rate_F, 0))
        return (self.solve(system, t, dt, q, u, kept, mask) - u) / dt

    def solve(self, system, t, dt, q, u, kept, mask):
        """Velocity after ``M (u - u_minus) = dt h + W P`` from (t, q), with the contact law on those contacts that ``mask`` names.

        Without ``kept`` it is the impact law at (t, q); with it, ``xi = W^T u + chi + kept`` at the configuration dt ahead.
        """
        d = self.d

        # Functions of their arguments alone: they are kept for the derivative.
        def contacts(args):
            system, t, dt, q, u, kept, _ = args
            if kept is None:
                return base.impact_law(system, t, q, u, d)
            return base.kinematics(system, t + dt, q + dt * system.q_dot(t, q, u), u), kept

        def balance(args, u):
            system, t, dt, q, u_minus, *_ = args
            return system.M(t, q, u) @ (u - u_minus) - dt * system.h(t, q, u_minus)

        def mass(args, u):
            system, t, _, q, *_ = args
            return system.M(t, q, u)

        def friction(args):
            system, t, _, q, *_ = args
            return system.contact_data(t, q)[2]

        problem = base.VelocityProblem(balance, mass, contacts, friction, lambda args: args[-1] > 0, True)
        args = (system, t, dt, q, u, kept, mask.astype(u.dtype))
        return base.solve_velocity(problem, args, u, self.P, self.settings)[0]

    def jump(self, i):
        """``DR f_minus - f_plus`` of contact i, as parts (n_q,) and (n_u,); zero if it had no impact."""

        def of_impact(i):
            system, t, q, u = self.system, self.t, self.q, self.u
            mask = self.persistent | (jnp.arange(self.n) == i)
            q_dot = system.q_dot(t, q, u)
            before = self.acceleration(self.persistent, u)
            after, turned = jax.jvp(lambda t, q, u: self.impact(mask, system, t, q, u), (t, q, u), (jnp.ones_like(t), q_dot, before))
            return q_dot - system.q_dot(t, q, after), turned - self.acceleration(mask, after)

        zeros = jnp.zeros_like(self.q), jnp.zeros_like(self.u)
        return lax.cond(self.impacting[i], of_impact, lambda i: zeros, i)

    def captured(self, system, t, dt, q, u):
        """``(q, u)`` after a step that captures the impacts on velocity level: what the tangent of a position-level scheme is made of."""
        q = q + dt * system.q_dot(t, q, u)
        return q, self.solve(system, t + dt, dt, q, u, None, self.pushed)
