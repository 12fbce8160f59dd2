"""The equations of the stages, C24 (47), (50)-(52), (57), as functions of their unknowns."""

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ... import contact
from ...mechanics.local import Contacts, kinematics
from ...numerics import butcher, linalg, thresholds
from ..base import Percussions


class Arguments(NamedTuple):
    """What the equations of a step depend on: the system, t_n, dt, q_n and u_n."""

    system: Any
    t: Any
    dt: Any
    q: Any
    u: Any


class Unknowns(NamedTuple):
    """Unknowns of the stages."""

    V: Any  # (s, n_u) velocities
    Q: Any  # (s - 1, n_q) coordinates of the stages 2..s
    R: Any  # (s - 1, n (d + 1) + n_g + n_gamma) percussions of the stages 1..s-1: tangential, normal, bilateral


class Values(NamedTuple):
    """What the equations of the stages are made of, at given unknowns."""

    balance: Any  # (s, n_u) residual of (47), about centres of mass where bodies float
    drift: Any  # (s - 1, n_q) Q^i - q_n - dt sum_j a_ij q_dot^j
    rows: Any  # (s - 1, n (d + 1) + n_g + n_gamma) at the stages 2..s: gamma_F, g_N / dt, g / dt, gamma
    mu: Any  # (s - 1, n) friction coefficients, or (s - 1, n, number of discs)
    F: Any  # (s - 1, n_u) impulses of the stages 1..s-1
    start: Any  # (n_u,) p(t_n, q_n, u_n)


#: By what part of its way in a step a gap may differ from what the velocity at the start tells: forces change that, and other contacts.
MARGIN = 0.1

#: Decorator of methods that many transformations go through: they share one trace.
traced_once = functools.partial(jax.jit, static_argnums=0)


@dataclass(frozen=True)
class Stages:
    """The equations of the stages, and their solution.

    To the contact solver the contacts at the stages 2..s are (s - 1) n contacts: the percussions R^{i-1} with ``gamma_F^i`` and
    ``g_N^i / dt``, C24 (52), (57).
    """

    s: int
    r: float | None
    shape: tuple  # (n_N, d)
    n_g: int
    n_gamma: int
    quasi: bool  # whether the system defines q_dot
    discs: tuple | None = None  # directions of every disc of a contact (see `laws.discs`)
    centered: bool = False  # whether the balance is one of `System.about_center`

    @property
    def m(self):
        """Rows of the contacts at one stage."""
        return self.shape[0] * (self.shape[1] + 1)

    @property
    def n_b(self):
        """Bilateral rows at one stage."""
        return self.n_g + self.n_gamma

    def tableau(self, dtype):
        """Coefficients in the dtype of the run."""
        return butcher.Tableau(*(jnp.asarray(x, dtype) for x in butcher.lobatto(self.s)))

    def join(self, x):
        """Contact rows (s - 1, >= m) of the stages as one vector in the contact solver's order."""
        (n, d), k = self.shape, self.s - 1
        return contact.join(x[:, n * d : self.m].reshape(k * n), x[:, : n * d].reshape(k * n, d))

    def split(self, z):
        """Inverse of `join`, (s - 1, m)."""
        (n, d), k = self.shape, self.s - 1
        P_N, P_F = contact.split(z, k * n, d)
        return jnp.concatenate([P_F.reshape(k, n * d), P_N.reshape(k, n)], axis=1)

    def times(self, args):
        """Times of the stages, (s,)."""
        return args.t + self.tableau(args.q.dtype).c * args.dt

    def positions(self, args, x):
        """Q^1..Q^s, (s, n_q): they follow from V where q_dot = u; C24 (62)."""
        if self.quasi:
            return jnp.concatenate([args.q[None, :], x.Q])
        return args.q[None, :] + args.dt * combine(self.tableau(args.q.dtype).a, x.V)

    def chosen(self, choice, x, axis=1):
        """Rows of the chosen contacts, and all bilateral ones, of an array of all rows of every stage, which lie along ``axis``."""
        contacts, bilateral = jnp.split(x, [self.m], axis)
        return jnp.concatenate([choice.rows(contacts, self.shape[1], axis), bilateral], axis)

    def seen(self, choice, values):
        """`Values`, or changes of them, with the rows of the chosen contacts."""
        return values._replace(rows=self.chosen(choice, values.rows), mu=choice.take(values.mu, axis=1))

    def put(self, choice, x):
        """Inverse of `chosen` for rows (s - 1, ...): zero for the other contacts."""
        m = choice.size * (self.shape[1] + 1)
        return jnp.concatenate([jax.vmap(lambda z: choice.put_rows(z, self.shape[1]))(x[:, :m]), x[:, m:]], axis=1)

    def gap(self, args, values):
        """Smallest gap of every contact, (n,), at the stages 2..s, of `Values`."""
        n, d = self.shape
        return args.dt * jnp.min(values.rows[:, n * d : self.m], axis=0)

    def near(self, args, x):
        """Contacts (n,) that pushed in the last step or are expected to close in this one: rather too many than too few."""
        (n, d), (system, t, dt, q, u) = self.shape, args
        gap, ahead = system.gap(t, q), system.gap(t + dt, q + dt * system.q_dot(t, q, u))
        margin = MARGIN * jnp.abs(ahead - gap) + thresholds.touch(q.dtype) * jnp.max(jnp.abs(gap))
        return jnp.any(x.R[:, n * d : self.m] > 0, axis=0) | (jnp.minimum(gap, ahead) <= margin)

    @traced_once
    def law(self, system, dt, t, Q, V):
        """Of one stage: momentum, rows of contacts and constraints, q_dot."""
        system = system.seen_at(t, Q)
        rows = (
            Contacts(system).tangential_velocity(t, Q, V).reshape(-1),
            system.gap(t, Q) / dt,
            system.constraint(t, Q) / dt,
            system.velocity_constraint(t, Q, V),
        )
        return self.momentum(system, t, Q, V), jnp.concatenate(rows), system.q_dot(t, Q, V)

    def momentum(self, system, t, Q, V):
        """Momenta of the balance."""
        return self.about_center(system, t, Q, system.momentum(t, Q, V))

    def mass(self, system, t, Q, V):
        """What these are multiplied by: their derivative with respect to the velocities."""
        system = system.seen_at(t, Q) if self.centered else system
        return self.about_center(system, t, Q, system.M(t, Q, V))

    def about_center(self, system, t, Q, p):
        """Momenta, or columns of them, as in the balance."""
        return system.about_center(t, Q, p) if self.centered else p

    def impulse(self, system, dt, t, Q, V, F):
        """Impulse F of a stage as in the balance, with what the change of `System.about_center` makes of the momentum."""
        if not self.centered:
            return F
        return system.about_center(t, Q, F) + dt * system.about_center_rate(t, Q, V, system.momentum(t, Q, V))

    @traced_once
    def force(self, system, dt, t, Q, V, R):
        """Impulse of one stage, F = dt b + W R; C24 (63)."""
        system = system.seen_at(t, Q)
        F = dt * system.b(t, Q, V)
        if not R.shape[0]:
            return self.impulse(system, dt, t, Q, V, F)

        if any(map(system.defines, ("W_N", "W_F", "W_g", "W_gamma"))):
            return self.impulse(system, dt, t, Q, V, F) + linalg.matmul(self.directions(system, t, Q, V), R)

        # W R as a cotangent of the velocities: cheaper to differentiate than W.
        W_R = jax.vjp(lambda u: self.speeds(system, t, Q, u), jnp.zeros_like(V))[1](R)[0]
        return self.impulse(system, dt, t, Q, V, F + W_R)

    def speeds(self, system, t, Q, u):
        """Velocities of contacts and constraints, one for each percussion of a stage."""
        parts = (
            Contacts(system).tangential_velocity(t, Q, u).reshape(-1),
            system.gap_velocity(t, Q, u),
            system.constraint_velocity(t, Q, u),
            system.velocity_constraint(t, Q, u),
        )
        return jnp.concatenate(parts)

    @traced_once
    def directions(self, system, t, Q, V):
        """Force directions of one stage, (n_u, n (d + 1) + n_g + n_gamma), as in the balance."""
        system = system.seen_at(t, Q)
        kin = kinematics(system, t, Q, V)
        return self.about_center(system, t, Q, jnp.concatenate([kin.W, kin.W_b], axis=1))

    @traced_once
    def rates(self, system, t, Q, V):
        """Derivatives of the rows of `law` with respect to the velocities, (rows, n_u): gaps and constraints do not depend on them."""
        system, n_u = system.seen_at(t, Q), V.shape[0]
        none = jnp.zeros((n_u, self.shape[0] + self.n_g), V.dtype)
        return jnp.concatenate([Contacts(system).W_F(t, Q, V).reshape(n_u, -1), none, system.W_gamma(t, Q, V)], axis=1).T

    @traced_once
    def values(self, args, x):
        """The equations at the unknowns ``x``."""
        t, Q = self.times(args), self.positions(args, x)
        p, rows, q_dot = jax.vmap(lambda t, Q, V: self.law(args.system, args.dt, t, Q, V))(t, Q, x.V)
        return self.assembled(args, x, p, rows[1:], q_dot, self.impulses(args, x), self.momentum(args.system, args.t, args.q, args.u))

    def assembled(self, args, x, p, rows, q_dot, F, start):
        """`Values` from what the stages contribute: momenta (s, n_u), rows, q_dot (s, n_q), impulses and the momentum at the start."""
        _, _, a, a_hat = self.tableau(args.q.dtype)
        t, Q = self.times(args)[1:], self.positions(args, x)[1:]
        drift = Q - args.q[None, :] - args.dt * combine(a[1:], q_dot) if self.quasi else jnp.zeros_like(Q)
        mu = jax.vmap(lambda t, Q: Contacts(args.system).data(t, Q).mu)(t, Q)
        return Values(p - start[None, :] - combine(a_hat[:, :-1], F), drift, rows, mu, F, start)

    @traced_once
    def impulses(self, args, x):
        """F^1..F^{s-1}, (s - 1, n_u)."""
        stages = (self.times(args)[:-1], self.positions(args, x)[:-1], x.V[:-1], x.R)
        return jax.vmap(lambda *stage: self.force(args.system, args.dt, *stage))(*stages)

    def convert(self, x):
        """A JAX array in the kind the contact problem is written in."""
        return linalg.unpack(x) if (self.s - 1) * self.m <= linalg.UNROLL else x

    def contact_problem(self, args, values, G=None, c=None):
        """The contacts of all stages, or their law alone; what is open now may close, so none is taken out but what nothing parts.

        Where nothing slides there is no friction: its direction would be round-off.
        """
        (n, d), mu = self.shape, self.friction(values.mu)
        # The normal rows are gaps over dt.
        ones = jnp.ones((n * (self.s - 1), 1 + d), values.mu.dtype)
        r = None if self.r is None else (self.r * args.dt * ones[:, 0], self.r * ones[:, 1:])
        G, c, mu, active = (x if x is None else self.convert(x) for x in (G, c, mu, jnp.ones(mu.shape[:1], bool)))
        if G is not None:
            active = contact.movable(active, G, d, self.discs)
            mu = self.of_first(mu, self.slides(G)) if d else mu
        return contact.Problem(G, c, mu, active, d, r and tuple(map(self.convert, r)), sizes=self.discs)

    def slides(self, G):
        """Which contacts of all stages slide, ((s - 1) n,), with their Delassus operator; there is friction."""
        return contact.slides(G, (self.s - 1) * self.shape[0], self.shape[1], self.discs)

    def of_first(self, x, where):
        """Coefficients ((s - 1) n, ...), zero for the first disc of a contact but ``where``, ((s - 1) n,)."""
        if self.discs is None:
            return linalg.where(where, x, 0.0)
        return linalg.concatenate([linalg.where(where[:, None], x[:, :1], 0.0), x[:, 1:]], axis=1)

    def scale(self, problem):
        """Rows of ``problem.scale()``, zero where there is no law: of contacts that nothing parts, and of friction where nothing slides."""
        r_N, r_F = problem.scale()
        slides = self.slides(problem.G) if problem.d else problem.active
        sliding = [problem.active if k else linalg.logical_and(problem.active, slides) for k in range(len(problem.discs))]
        r_F = [linalg.where(of[:, None], r_F[:, part], 0.0) for of, (part, _) in zip(sliding, problem.discs, strict=True)]
        r_N = linalg.where(problem.active, r_N, 0.0)
        return contact.join(r_N, linalg.concatenate(r_F, axis=1)) if r_F else r_N

    def friction(self, mu):
        """Friction coefficients of the contacts of all stages, from those of the stages (s - 1, n, ...)."""
        return mu.reshape(-1, *mu.shape[2:])

    def percussions(self, R, lead):
        """Rows of percussions as `Percussions`."""
        (n, d), m, n_g = self.shape, self.m, self.n_g
        parts = ((R[:, n * d : m], (n,)), (R[:, : n * d], (n, d)), (R[:, m : m + n_g], (n_g,)), (R[:, m + n_g :], (self.n_gamma,)))
        lead = lead if lead and lead[0] else ()
        return Percussions(*(part.reshape(*lead, *shape) for part, shape in parts))


def combine(coefficients, x):
    """``sum_j c_ij x_j`` over the first axis of ``x``."""
    return jnp.sum(coefficients.reshape(coefficients.shape + (1,) * (x.ndim - 1)) * x[None], axis=1)
