"""The end of a step: one linear problem on velocity level for u_{n+1} and Delta P, C24 (47b), (50), (51), (53)-(59)."""

import jax.numpy as jnp

from ... import contact, linalg
from .. import base
from .equations import combine


def finish(stages, args, x, slack, settings):
    """The end of the step: ``(q, u, Delta P, R^1..R^s, info)``; C24 (47b), (50), (51), (56), (58)."""
    system, t, dt, q, u = args
    b = stages.tableau(q.dtype).b
    t_end, q_end = t + dt, stages.positions(args, x)[-1]
    F, start = stages.impulses(args, x)
    target = start + combine(b[None, :-1], F)[0] + b[-1] * dt * system.b(t_end, q_end, x.V[-1])
    total = combine(b[None, :-1], x.R)[0]
    if total.shape[0]:
        # The unknown Delta P acts at the end as a whole: what the stages have of it is taken back there.
        target = target - linalg.matmul(stages.directions(system, t_end, q_end, x.V[-1]), total)
    guess = stages.percussions(total[None, :], (0,))
    end = (system, t, q, u, t_end, q_end, target, slack)
    u, P, info = base.solve_velocity(END, end, x.V[-1], guess, settings)
    R = stages.percussions(x.R, (stages.s - 1,))
    last = [(P_i - total_i.reshape(P_i.shape)) / b[-1] for P_i, total_i in zip(P, stages.percussions(total[None, :], ()), strict=True)]
    return q_end, u, P, [jnp.concatenate([R_i, last_i[None]]) for R_i, last_i in zip(R, last, strict=True)], info


def _balance(end, u):
    system, _, _, _, t, q, target, _ = end
    return system.momentum(t, q, u) - target


def _mass(end, u):
    system, _, _, _, t, q, _, _ = end
    return system.M(t, q, u)


def _contacts(end):
    system, t_n, q_n, u_n, t, q, _, _ = end
    tangential = system.tangential_velocity(t_n, q_n, u_n)
    before = contact.join(system.gap_velocity(t_n, q_n, u_n), tangential)
    return base.kinematics(system, t, q, u_n), base.restitution(system, t, q, tangential.shape[1]) * before


def _friction(end):
    system, _, _, _, t, q, _, _ = end
    return system.contact_data(t, q)[2]


def _active(end):
    return end[-1] >= 0


#: Velocity-level problem at the end of a step; (47b) with R^s, (50), (51), (53)-(59).
END = base.VelocityProblem(_balance, _mass, _contacts, _friction, _active, True)
