"""The end of a step: one linear problem on velocity level for u_{n+1} and Delta P, C24 (47b), (50), (51), (53)-(59)."""

import dataclasses
from typing import Any, ClassVar

import jax.numpy as jnp

from ... import contact, linalg
from .. import velocity
from ..gathered import Place, Placed
from ..velocity import Step, pytree
from .equations import combine


def finish(stages, args, x, F, slack, settings):
    """The end of the step: ``(q, u, Delta P, R^1..R^s, info)``; C24 (47b), (50), (51), (56), (58)."""
    system, t, dt, q, u = args
    b = stages.tableau(q.dtype).b
    t_end, q_end = t + dt, stages.positions(args, x)[-1]
    target = system.momentum(t, q, u) + combine(b[None, :-1], F)[0] + b[-1] * dt * system.b(t_end, q_end, x.V[-1])
    total = combine(b[None, :-1], x.R)[0]
    if total.shape[0]:
        # The unknown Delta P acts at the end as a whole: what the stages have of it is taken back there.
        target = target - linalg.matmul(stages.directions(system, t_end, q_end, x.V[-1]), total)
    guess = stages.percussions(total[None, :], (0,))
    end = EndStep(system, t, q, u, t_end, q_end, target, slack)
    u, P, info = velocity.solve(end, x.V[-1], guess, settings)
    R = stages.percussions(x.R, (stages.s - 1,))
    last = [(P_i - total_i.reshape(P_i.shape)) / b[-1] for P_i, total_i in zip(P, stages.percussions(total[None, :], ()), strict=True)]
    return q_end, u, P, [jnp.concatenate([R_i, last_i[None]]) for R_i, last_i in zip(R, last, strict=True)], info


@pytree
class EndStep(Step):
    """Velocity-level problem at the end of a step; (47b) with R^s, (50), (51), (53)-(59)."""

    system: Any
    t_n: Any
    q_n: Any
    u_minus: Any
    t: Any
    q: Any
    target: Any  # (n_u,) momentum at the end without Delta P
    slack: Any  # (n,) largest R_N^{i-1} - r g_N^i of all stages
    start: Any = None  # (gap velocities (n,), tangential velocities (n, d)) at the start of the step, where they are evaluated

    linear: ClassVar[bool] = True
    gathers = True
    at_one_place: ClassVar[bool] = True

    def placed(self):
        """With all contacts and constraints evaluated."""
        place = Place.of(self.system, self.t, self.q, self.u_minus)
        return dataclasses.replace(self, system=Placed(self.system, place), start=self.at_start())

    def restricted(self, choice):
        """The step of the chosen contacts alone."""
        start = None if self.start is None else tuple(map(choice.take, self.start))
        return dataclasses.replace(super().restricted(choice), slack=choice.take(self.slack), start=start)

    def balance(self, u, p=None):
        """(47b)."""
        del p
        return self.system.momentum(self.t, self.q, u) - self.target

    def linearized(self, u):
        """The matrix is that of the mass."""
        return self.balance(u), self.system.M(self.t, self.q, u)

    def place(self):
        """The end of the step."""
        return self.t, self.q

    def at_start(self):
        """Contact velocities at the start of the step."""
        node = self.t_n, self.q_n, self.u_minus
        return (self.system.gap_velocity(*node), self.system.tangential_velocity(*node)) if self.start is None else self.start

    def before(self, kin):
        """Contact velocities at the start of the step: ``xi = xi_{n+1} + e xi_n``, each at its own node."""
        del kin
        return contact.join(*self.at_start())

    def active(self):
        """A contact that any stage has met."""
        return self.slack >= 0
