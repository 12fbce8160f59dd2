"""The end of a step: one linear problem on velocity level for u_{n+1} and Delta P, C24 (47b), (50), (51), (53)-(59)."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from ... import contact
from ...mechanics.local import Contacts
from ...numerics import linalg, thresholds
from .. import velocity
from ..moreau import NodeStep
from ..velocity import pytree
from .equations import combine

#: How many times the energy that there is a stage may have. Of 20,000 ladders that jam (friction up to 10) those in which no energy came
#: from nowhere have up to 1.4 times, 999 of 1000; the others have 4e4 times and more.
BEYOND = 100.0


def finish(stages, args, x, F, slack, pushed, settings):
    """The end of the step: ``(q, u, Delta P, R^1..R^s, info)``; C24 (47b), (50), (51), (56), (58).

    ``pushed``: contacts (n,) with a percussion in the step before.
    """
    system, t, dt, q, u = args
    b, V = stages.tableau(q.dtype).b, x.V[-1]
    t_end, q_end = t + dt, stages.positions(args, x)[-1]
    seen = system.seen_at(t_end, q_end)
    gained = stages.momentum(system, t_end, q_end, V) - stages.momentum(system, t, q, u)
    lacking = combine(b[None, :-1], F)[0] + b[-1] * stages.impulse(seen, dt, t_end, q_end, V, dt * seen.b(t_end, q_end, V)) - gained
    total = combine(b[None, :-1], x.R)[0]
    if total.shape[0]:
        # The unknown Delta P acts at the end as a whole: what the stages have of it is taken back there.
        lacking = lacking - linalg.matmul(stages.directions(seen, t_end, q_end, V), total)
    if stages.centered:
        lacking = 2 * lacking - seen.about_center(t_end, q_end, lacking)  # by the velocities themselves
    guess = stages.percussions(total[None, :], (0,))
    before = velocities(system.seen_at(t, q), t, q, u)
    met = slack >= 0
    if stages.s > 3:
        # Of fewer stages the paper's law is kept to the letter: the last stage decides.
        met |= resting(pushed, before[0])
    end = EndStep.at(seen, t_end, dt, q_end, u, V, lacking, met, *before)
    u, P, info = velocity.solve(end, V, guess, settings)
    R = stages.percussions(x.R, (stages.s - 1,))
    of_stages = stages.percussions(total[None, :], ())
    last = jax.tree.map(lambda P_i, total_i: (P_i - total_i.reshape(P_i.shape)) / b[-1], P, of_stages)
    R = jax.tree.map(lambda R_i, last_i: jnp.concatenate([R_i, last_i[None]]), R, last)
    possible = ~beyond(stages, *jax.tree.map(lax.stop_gradient, (args, x, t_end, q_end)))
    return q_end, u, P, jax.tree.leaves(R), info._replace(converged=info.converged & possible)


def resting(pushed, rate):
    """Contacts (n,) that are closed at the start of the step and stay so, of those that have pushed, by their gap velocities there.

    One that has bounced does not rest. What rests is told from it by the fastest contact: without one there is no impact.
    """
    return pushed & (rate <= thresholds.touch(rate.dtype) * jnp.max(jnp.abs(rate), initial=0))


def beyond(stages, args, x, t_end, q_end):
    """Whether a stage has more than `BEYOND` times the kinetic energy that the state at the start, forces, and contacts that move give it.

    Where bodies jam, equations (47) and (52) have solutions of large percussions as well, whose directions turn in the step by so much
    that they throw the bodies out at a thousand times their speed.
    """
    system, t, dt, q, u = args
    start, end, V, rest = system.seen_at(t, q), system.seen_at(t_end, q_end), x.V, jnp.zeros_like(u)
    M = end.M(t_end, q_end, V[-1])
    # Nothing is slower than what the round-off of the coordinates makes of it.
    slow = jnp.abs(u) + thresholds.round_off(u.dtype) * velocity.resolution(q, dt, u.shape[0])
    energy = 0.5 * slow @ jnp.abs(M) @ slow
    forces = jnp.abs(start.h(t, q, u)) + jnp.abs(end.h(t_end, q_end, V[-1]))
    energy = energy + dt * jnp.sum(forces * jnp.max(jnp.abs(V), axis=0))
    if x.R.shape[1]:
        rates = jnp.abs(stages.speeds(start, t, q, rest)) + jnp.abs(stages.speeds(end, t_end, q_end, rest))
        # A contact that has sunk in is pushed out within the step, and a constraint closed.
        depth = jnp.concatenate([jnp.maximum(-start.gap(t, q), 0), jnp.abs(start.constraint(t, q))]) / dt
        (n, d), n_g = stages.shape, stages.n_g
        rates = rates.at[n * d : stages.m + n_g].add(depth)
        energy = energy + rates @ combine(jnp.abs(stages.tableau(q.dtype).b[None, :-1]), jnp.abs(x.R))[0]
    return jnp.any(0.5 * jnp.sum(V * linalg.matmul(V, M), axis=1) > BEYOND * energy)


def velocities(system, t, q, u):
    """Gap velocities (n,) and tangential velocities (n, d)."""
    return system.gap_velocity(t, q, u), Contacts(system).tangential_velocity(t, q, u)


@pytree
class EndStep(NodeStep):
    """Velocity-level problem at the end (t, q) of a step; (47b) with R^s, (50), (51), (53)-(59)."""

    V: Any  # (n_u,) velocity of the last stage
    lacking: Any  # (n_u,) momentum that V lacks at the end, without Delta P
    met: Any  # (n,) whether a stage has met the contact, by R_N^{i-1} - r g_N^i >= 0 at the stages 2..s, or resting at the start
    gap_velocity: Any  # (n,) at the start of the step, where ``u_minus`` is
    tangential_velocity: Any  # (n, d) there

    linear: ClassVar[bool] = True
    gathers = True

    def restricted(self, choice):
        """The step of the chosen contacts alone."""
        of = {name: choice.take(getattr(self, name)) for name in ("met", "gap_velocity", "tangential_velocity")}
        return dataclasses.replace(super().restricted(choice), **of)

    def balance(self, u, p=None):
        """(47b): the momentum is affine in u."""
        del p
        return linalg.matmul(self.M, u - self.V) - self.lacking

    def linearized(self, u):
        """The matrix is that of the mass."""
        return self.balance(u), self.M

    def before(self, kin):
        """Contact velocities at the start of the step: ``xi = xi_{n+1} + e xi_n``, each at its own node."""
        del kin
        return contact.join(self.gap_velocity, self.tangential_velocity)

    def active(self):
        """A contact that any stage has met, of four and more the first one included: an impact of another can lift off what rests."""
        return self.met
