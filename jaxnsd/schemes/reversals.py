"""Derivatives through reversals of dry friction that converge to those of the exact motion.

Where a velocity of dry friction passes through zero without a rest it does not jump, but the friction does: with tau the time to zero and
f the right-hand sides of the flows before and after

    d x_plus = d x_minus + (f_minus - f_plus) d tau,        tau = -gamma_D / gamma_D_dot_minus

(Leine & Nijmeijer 2004, with R the identity: see `sensitivity`, whose contacts have the same). The steps hold the reversal on their nodes,
and either know of no tau, or rest for a step and forget the velocity before it. A row that comes to rest for longer needs nothing: that
gamma_D is zero from then on is in the steps' own derivative, and all that there is.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..mechanics.local import kinematics
from ..native.marks import when_needed
from ..numerics import thresholds
from ..numerics.newton import storing_solutions
from ..programs.derivatives import is_float, not_a_number, pushed, with_rule
from . import dry_friction
from .flow import THRESHOLD, Flow, gained


def through_reversals(scheme, settings, primals, tangents, after, d_after):
    """Tangent of the state after a step, ``d_after``, with what its reversals of dry friction add."""
    (prepared, t, dt, before), settled = lax.stop_gradient((primals, after))
    d_args = (*tangents[:3], tangents[3].q, tangents[3].u)

    @storing_solutions
    def of_rows(d_args, own):
        rows = _Rows(scheme, settings, prepared, t, dt, before, settled)
        nothing = jax.tree.map(jnp.zeros_like, (settled.u, settled.P))
        return lax.cond(jnp.any(rows.turning), when_needed(rows.corrections), lambda *_: nothing, d_args, own)

    du, dP = of_rows(d_args, (d_after.q, d_after.u))
    shifted = scheme.shifted(primals[0], primals[1] + primals[2], after, d_after, jnp.zeros_like(after.q), du)
    shifted = shifted._replace(P=jax.tree.map(jnp.add, shifted.P, dP))

    def changes(args, after):
        return jnp.any(_Rows(scheme, settings, *args, after).changes)

    once = with_one_derivative(changes, primals, settled)
    return jax.tree.map(lambda x: once * x if is_float(x) else x, shifted)


def with_one_derivative(changes, args, after):
    """One, as a factor of the tangent of a step ``args`` that leads to ``after``: where ``changes(args, after)`` it has no derivative.

    A contact, or a row of dry friction, changes there between open, sticking and sliding. The motion and its derivative are continuous,
    but ``d (f_plus - f_minus) d tau`` belongs to the second derivative, and the steps know of no tau.
    """

    def rule(primals, tangents):
        args, after = lax.stop_gradient(primals)
        d_prepared, d_t, d_dt, d_before = tangents[0]
        none = not_a_number((d_prepared, d_t, d_dt, d_before.q, d_before.u), args[1].dtype)
        return once(*primals), jnp.where(changes(args, after), none, 0)

    once = with_rule(lambda args, after: np.ones((), args[1].dtype), rule)
    return once(args, after)


class _Rows:
    """The rows of dry friction in one step: which turn in it, and what that adds to derivatives."""

    def __init__(self, scheme, settings, prepared, t, dt, before, after):
        self.scheme, self.prepared, self.before, self.after = scheme, prepared, before, after
        self.flow = Flow(scheme, settings.nearby(), after.P)
        self.start, self.t, self.dt, self.u = t, t + dt, dt, before.u
        system = scheme.system(prepared)
        self.q = before.q + dt * system.q_dot(t, before.q, before.u)
        kin = kinematics(system, self.t, self.q, self.u)
        dry = dry_friction.of(system, self.t, self.q, self.u, dt)
        inertia = scheme.inertia(prepared, system.M(self.t, self.q, self.u), kin.bilateral())
        self.slow = gained(system, inertia, kin._replace(W=dry.W), system.h(self.t, self.q, self.u), self.t, dt, self.q, self.u)
        self.slip = system.dry_velocity(t, before.q, before.u)
        left = system.dry_velocity(self.t, after.q, after.u)
        small = thresholds.REST * self.slow
        self.direction = jnp.sign(self.slip)
        slid, slides = jnp.abs(self.slip) > small, jnp.abs(left) > small
        #: (n_D,) rows that slide at the start, and at the end have stuck or slide back; those that slide back; those that change.
        self.turning = slid & (self.direction * left <= small)
        self.back = self.turning & slides
        # What slides from the first step on has not started to.
        self.changes = (slid & ~slides) | (slides & ~slid & (before.P.P_D != 0)) | self.back

    def velocity(self, prepared, t, q, u):
        """Velocities of dry friction (n_D,)."""
        return self.scheme.system(prepared).dry_velocity(t, q, u)

    def flows(self):
        """Accelerations, and forces, of the flows before and after the reversal of every row, an axis (n_D, 2) in front."""
        t, q, u, dt, n = self.t, self.q, self.u, self.dt, self.slip.shape[0]
        system = self.scheme.system(self.prepared)
        here = self.flow.at(self.prepared, t, q, u)
        ahead = t + dt, q + dt * system.q_dot(t, q, u)
        rate = system.dry_velocity(*ahead, u)
        # What is left of the velocity of the other rows that stick, or turn too, is no acceleration.
        kept = jnp.where(jnp.abs(rate) <= self.slow, -rate, 0)
        own = jnp.eye(n, dtype=bool)
        far = 10 * self.direction * (self.slow + jnp.abs(rate))
        rows = jnp.stack([jnp.where(own, far, kept), jnp.where(own, -rate, kept)], axis=1).reshape(2 * n, n)
        slow = self.flow.gained(self.prepared, t, dt, q, u, here)
        pushed = self.after.P.P_N > 0
        nothing = jax.tree.map(jnp.zeros_like, (u, self.flow.P))

        def flow(row):
            happens, kept = row
            acceleration = lambda: self.flow.acceleration(self.prepared, t, dt, q, u, pushed, slow, here, kept_D=kept)  # noqa: E731
            return lax.cond(happens, acceleration, lambda: nothing)

        found = lax.map(flow, (jnp.repeat(self.turning, 2), rows))
        return jax.tree.map(lambda x: x.reshape(n, 2, *x.shape[1:]), found)

    def corrections(self, d_args, own):
        """What is added to the tangents of u and of the percussions.

        A row that slides back has kept its tangent, and lacks ``(f_minus - f_plus) d tau`` with that of before. One that rests at the end
        has lost it: d tau is what makes of the tangent what it becomes, ``d gamma_plus = (gamma_D_dot_plus / gamma_D_dot_minus) d
        gamma_minus``.
        """
        (d_prepared, d_t, d_dt, d_q, d_u), (dq, du) = d_args, own
        at, end = (self.prepared, self.start, self.before.q, self.u), (self.prepared, self.t, self.after.q, self.after.u)
        d_before = pushed(self.velocity, at, (d_prepared, d_t, d_q, d_u))[1]
        d_after = pushed(self.velocity, end, (d_prepared, d_t + d_dt, dq, du))[1]
        accelerations, forces = self.flows()

        def gained(acceleration):
            return self.direction * (self.velocity(self.prepared, self.t, self.q, self.u + self.dt * acceleration) - self.slip)

        minus, plus = jnp.diagonal(jax.vmap(jax.vmap(gained))(accelerations), axis1=0, axis2=2)
        # Where friction holds the row from now on, the own tangent has the rest in it. What ends next to zero may be short of it here.
        goes_back = (minus < plus) & (plus < thresholds.touch(self.u.dtype) * minus)
        turns = self.turning & goes_back & (jnp.abs(self.slip) < -THRESHOLD * minus)
        ratio = jnp.where(turns, plus / jnp.where(turns, minus, 1), 0)
        weight = self.dt * jnp.where(turns, 1 / jnp.where(turns, jnp.where(self.back, -minus, minus - plus), 1), 0)
        d_slip = self.direction * jnp.where(self.back, d_before, ratio * d_before - d_after)
        d_tau = weight * d_slip
        return jax.tree.map(lambda x: jnp.tensordot(d_tau, x[:, 0] - x[:, 1], 1), (accelerations, forces))
