"""Lobatto IIIA-IIIB schemes with bilateral constraints, contact and friction (Capobianco et al. 2024, abbreviated C24).

Invariant: the stage velocities V^i, the stage percussions R^i (i = 1..s) and the velocity at the end of a step obey

    Q^i = q_n + dt sum_j a_ij q_dot(t^j, Q^j, V^j),   q_{n+1} = Q^s,   F^j = dt b(t^j, Q^j, V^j) + W(t^j, Q^j) R^j
    p(t^i, Q^i, V^i) = p(t_n, q_n, u_n) + sum_j a_hat_ij F^j                                                          (47)
    p(t_{n+1}, q_{n+1}, u_{n+1}) = p(t_n, q_n, u_n) + sum_j b_j F^j                                                   (47)
    g(t^i, Q^i) = 0,   gamma(t^i, Q^i, V^i) = 0,   i = 2..s                                                           (50), (51)
    0 <= R_N^{i-1}  _|_  g_N(t^i, Q^i) >= 0,   -gamma_F(t^i, Q^i, V^i) normal to the disc mu R_N^{i-1} at R_F^{i-1}      (52), (57)
    dg/dt = 0,   gamma = 0,   and the impact law with Delta P = sum_j b_j R^j, all at (t_{n+1}, q_{n+1}, u_{n+1})     (50)-(59)

Because of ``a_hat_is = 0`` the last percussion R^s does not enter the stages. So a step is solved in two parts, one after the other:
the *stages* with R^1..R^{s-1}, by Newton's method; then the *end*, a linear problem on velocity level for u_{n+1} and Delta P.
"""

import functools
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .. import butcher, contact, linalg
from ..newton import implicit, iterate, solution, storing_solutions
from . import base
from .base import Info, Percussions, Scheme


class LobattoState(NamedTuple):
    """State at a node, with what was found in the step that ended there: stage velocities and stage percussions."""

    q: jax.Array
    u: jax.Array
    P: Percussions  # Delta P = sum_j b_j R^j
    V: jax.Array  # (s, n_u)
    R_N: jax.Array  # (s, n_N)
    R_F: jax.Array  # (s, n_N, d)
    R_g: jax.Array  # (s, n_g)
    R_gamma: jax.Array  # (s, n_gamma)


@dataclass(frozen=True)
class Lobatto(Scheme):
    """Lobatto IIIA-IIIB scheme with s = 2 to 5 stages (C24): order ``2 s - 2`` on smooth motion, persistent contact included.

    Gaps and constraints hold on position level at all stages but the first, constraints and the impact law on velocity level at the
    nodes: no penetration, no drift. Symplectic between impacts, the energy stays bounded. Two stages are the RATTLE scheme. Stable for
    steps that resolve the fastest oscillation, frequency times dt below 2 with two stages: stiff systems want an implicit scheme.

    The order is less than ``2 s - 2`` in three cases: one across impacts and stick-slip transitions, as of all schemes that capture
    events; s - 1 with nonholonomic constraints, because (51) asks R^{i-1} for gamma^i; and one with spatial friction while the direction
    of slip turns, because (58) gives the friction of a whole step the direction that slip has at its end. Friction along a line keeps the
    order.

    A contact that any stage has met takes part in the impact law. C24 (67) asks the last stage only: with four or five stages a contact
    that closes between the nodes can then be missed, and the body hovers before the wall at its full speed.

    r:  parameter of the proximal point equations (66), (67), (69) of the stages; None (recommended): for each contact the inverse diagonal
        of the Delassus operator. C24 take constants near one, which suit masses near one. The motion does not depend on it.

    ``Solution.auxiliary`` holds, of the step that ends at a node, the stage velocities ``V`` (N + 1, s, n_u) and the stage percussions
    ``R_N, R_F, R_g, R_gamma`` (N + 1, s, ...), in N s; the percussions of the Solution are ``sum_j b_j R^j``.
    """

    stages: int = 3
    r: float | None = None
    auxiliary: ClassVar[tuple[str, ...]] = ("V", "R_N", "R_F", "R_g", "R_gamma")
    position_level: ClassVar[bool] = True

    def __post_init__(self):
        if isinstance(self.stages, bool) or self.stages not in butcher.STAGES:
            raise ValueError(f"Lobatto: stages must be one of {butcher.STAGES}, got {self.stages!r}; the order is 2 stages - 2")
        if self.r is not None and not (isinstance(self.r, (int, float)) and 0 < self.r < float("inf")):
            raise ValueError(f"Lobatto: r must be a positive number, or None for one from the problem, got {self.r!r}")

    @property
    def order(self):
        """Order of convergence on smooth motion."""
        return 2 * self.stages - 2

    def init(self, system, t, dt, q, u, settings):
        """State at the first node: as given."""
        del dt, settings
        P = base.no_percussions(system, t, q, u)
        R = [jnp.zeros((self.stages, *part.shape), q.dtype) for part in P]
        return LobattoState(q, u, P, jnp.tile(u[None, :], (self.stages, 1)), *R), base.nothing_to_solve(q.dtype)

    def step(self, system, t, dt, state, settings):
        """From node n to node n + 1: the stages, then the end."""
        return storing_solutions(lambda *args: self.advance(*args, settings))(system, t, dt, state)

    def advance(self, system, t, dt, state, settings):
        """`step`, of which reverse mode would store everything."""
        args = Arguments(system, t, dt, state.q, state.u)
        n_g, n_gamma = state.P.P_g.shape[0], state.P.P_gamma.shape[0]
        stages = Stages(self.stages, self.r, state.P.P_F.shape, n_g, n_gamma, system.defines("q_dot"))
        x, slack, info = stages.solve(args, stages.guess(args, state), settings)
        q, u, P, R, end = stages.finish(args, x, slack, settings)
        return LobattoState(q, u, P, x.V, *R), base.total(info, end)


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

    balance: Any  # (s, n_u) residual of (47)
    drift: Any  # (s - 1, n_q) Q^i - q_n - dt sum_j a_ij q_dot^j
    rows: Any  # (s - 1, n (d + 1) + n_g + n_gamma) at the stages 2..s: gamma_F, g_N / dt, g / dt, gamma
    mu: Any  # (s - 1, n) friction coefficients
    F: Any  # (s - 1, n_u) impulses of the stages 1..s-1
    start: Any  # (n_u,) p(t_n, q_n, u_n)


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

    # ------------------------------------------------------------------------------------------------------ equations
    def times(self, args):
        """Times of the stages, (s,)."""
        return args.t + self.tableau(args.q.dtype).c * args.dt

    def positions(self, args, x):
        """Q^1..Q^s, (s, n_q): they follow from V where q_dot = u; C24 (62)."""
        if self.quasi:
            return jnp.concatenate([args.q[None, :], x.Q])
        return args.q[None, :] + args.dt * combine(self.tableau(args.q.dtype).a, x.V)

    @traced_once
    def law(self, system, dt, t, Q, V):
        """Of one stage: momentum, rows of contacts and constraints, q_dot."""
        rows = (
            system.tangential_velocity(t, Q, V).reshape(-1),
            system.gap(t, Q) / dt,
            system.constraint(t, Q) / dt,
            system.velocity_constraint(t, Q, V),
        )
        return system.momentum(t, Q, V), jnp.concatenate(rows), system.q_dot(t, Q, V)

    @traced_once
    def force(self, system, dt, t, Q, V, R):
        """Impulse of one stage, F = dt b + W R; C24 (63)."""
        F = dt * system.b(t, Q, V)
        if not R.shape[0]:
            return F

        if any(map(system.defines, ("W_N", "W_F", "W_g", "W_gamma"))):
            return F + linalg.matmul(self.directions(system, t, Q, V), R)

        # W R as a cotangent of the velocities: cheaper to differentiate than W.
        def velocities(u):
            parts = (
                system.tangential_velocity(t, Q, u).reshape(-1),
                system.gap_velocity(t, Q, u),
                system.constraint_velocity(t, Q, u),
                system.velocity_constraint(t, Q, u),
            )
            return jnp.concatenate(parts)

        return F + jax.vjp(velocities, jnp.zeros_like(V))[1](R)[0]

    @traced_once
    def directions(self, system, t, Q, V):
        """Force directions of one stage, (n_u, n (d + 1) + n_g + n_gamma)."""
        kin = base.kinematics(system, t, Q, V)
        return jnp.concatenate([kin.W, kin.W_b], axis=1)

    @traced_once
    def values(self, args, x):
        """The equations at the unknowns ``x``."""
        t, Q = self.times(args), self.positions(args, x)
        p, rows, q_dot = jax.vmap(lambda t, Q, V: self.law(args.system, args.dt, t, Q, V))(t, Q, x.V)
        return self.assembled(args, x, p, rows[1:], q_dot, *self.impulses(args, x))

    def assembled(self, args, x, p, rows, q_dot, F, start):
        """`Values` from what the stages contribute: momenta (s, n_u), rows, q_dot (s, n_q), impulses and the momentum at the start."""
        _, _, a, a_hat = self.tableau(args.q.dtype)
        t, Q = self.times(args)[1:], self.positions(args, x)[1:]
        drift = Q - args.q[None, :] - args.dt * combine(a[1:], q_dot) if self.quasi else jnp.zeros_like(Q)
        mu = jax.vmap(lambda t, Q: args.system.contact_data(t, Q)[2])(t, Q)
        return Values(p - start[None, :] - combine(a_hat[:, :-1], F), drift, rows, mu, F, start)

    @traced_once
    def impulses(self, args, x):
        """``(F^1..F^{s-1}, p(t_n, q_n, u_n))``."""
        stages = (self.times(args)[:-1], self.positions(args, x)[:-1], x.V[:-1], x.R)
        F = jax.vmap(lambda *stage: self.force(args.system, args.dt, *stage))(*stages)
        return F, args.system.momentum(args.t, args.q, args.u)

    def convert(self, x):
        """A JAX array in the kind the contact problem is written in."""
        return linalg.unpack(x) if (self.s - 1) * self.m <= linalg.UNROLL else x

    def contact_problem(self, linear, values, c=None):
        """The contacts of all stages, or with c None their law alone; what is open now may close, so none is taken out."""
        mu = values.mu.reshape(-1)
        # The normal rows are gaps over dt.
        r = None if self.r is None else (self.r * linear.args.dt * jnp.ones_like(mu), self.r * jnp.ones_like(mu))
        G, mu, active = map(self.convert, (linear.G, mu, jnp.ones(mu.shape, bool)))
        return contact.Problem(G, c if c is None else self.convert(c), mu, active, self.shape[1], r and tuple(map(self.convert, r)))

    # ------------------------------------------------------------------------------------------------------- solution
    def guess(self, args, state):
        """Unknowns extrapolated from the step before: velocities that go on changing as they did, from that of the node."""
        c = self.tableau(state.q.dtype).c
        V = state.u[None, :] + c[:, None] * (state.V[-1] - state.V[0])[None, :]
        Q = jnp.tile(state.q[None, :], (self.s - 1, 1))
        if self.quasi:
            Q = Q + args.dt * c[1:, None] * args.system.q_dot(args.t, args.q, args.u)[None, :]
        parts = (state.R_F.reshape(self.s, -1), state.R_N, state.R_g, state.R_gamma)
        return Unknowns(V, Q, jnp.concatenate(parts, axis=1)[:-1])

    def solve(self, args, x, settings):
        """``(x, slack, info)``: unknowns, differentiable in ``args``; the largest ``R_N^{i-1} - r g_N^i`` of all stages, which is not."""
        frozen, x = jax.tree.map(lax.stop_gradient, (args, x))
        (n, _), dtype = self.shape, x.V.dtype
        tolerance = settings.tolerance_for(dtype)

        def iteration(carry):
            x, info, _ = carry
            linear = Linearized(self, frozen, x)
            dV, dQ, dR_b, xi = linear.free(linear.values)
            R = x.R[:, self.m :] if dR_b is None else x.R[:, self.m :] + dR_b.reshape(self.s - 1, -1)
            iterations, worst = info.iterations + 1, info.contact
            if n:
                z = self.join(x.R)
                problem = self.contact_problem(linear, linear.values, xi - linalg.matmul(linear.G, z))
                # Far contacts that are open loosen the solver's tolerance: refined, what is closed is exact all the same.
                result = contact.solve(problem, self.convert(z), settings, dtype, refine=True)
                result = result._replace(z=linalg.pack(result.z))
                dV, dQ, dR_b = linear.add(dV, dQ, dR_b, result.z - z)
                R = x.R[:, self.m :] if dR_b is None else x.R[:, self.m :] + dR_b.reshape(self.s - 1, -1)
                R = jnp.concatenate([self.split(result.z), R], axis=1)
                iterations, worst = info.iterations + result.iterations, result.contact
            x = Unknowns(x.V + dV, x.Q + dQ, R)
            error, residual, slack = self.error(linear, frozen, x, tolerance)
            return (x, Info(iterations, residual, error <= 1, worst), slack), error

        start = (x, base.nothing_to_solve(dtype), jnp.zeros((n,), dtype))
        (x, info, slack), _, _ = iterate(iteration, start, jnp.full((), jnp.inf, dtype), settings.max_outer)
        info = info._replace(contact=jnp.where(info.converged | (info.contact < 0), -1, info.contact % max(n, 1)))
        x = implicit(StageResponse(self), jax.tree.map(lax.stop_gradient, x), args)
        return x, solution(lax.stop_gradient(slack)), info

    def error(self, linear, args, x, tolerance):
        """``(error, residual, slack)``: the equations at ``x`` over their bounds, and the natural map of the contacts.

        Every row is bounded relative to the terms it is made of, plus what the rounding of the coordinates makes of it.
        """
        dtype = x.V.dtype
        eps, tiny = 8 * float(jnp.finfo(dtype).eps), float(jnp.finfo(dtype).tiny)
        values = self.values(args, x)
        a_hat = jnp.abs(self.tableau(dtype).a_hat)
        Q, V, R = (jnp.abs(part) for part in (self.positions(args, x)[1:], x.V, x.R))
        moved = jnp.abs(self.positions(args, x)[1:] - args.q[None, :])
        F = jnp.abs(values.F) + _apply(jnp.abs(linear.W), R)
        terms = _apply(jnp.abs(linear.p_V), V) + jnp.abs(values.start)[None, :] + combine(a_hat[:, :-1], F)
        rounding = _first(_apply(jnp.abs(linear.p_Q), Q)) + combine(a_hat[:, :-1], _first(_apply(jnp.abs(linear.F_Q), Q[:-1])))
        bound = tolerance * terms + eps * (rounding + jnp.max(terms)) + tiny
        error = jnp.max(jnp.abs(values.balance) / bound)
        terms = _apply(jnp.abs(linear.rows_Q), moved) + _apply(jnp.abs(linear.rows_V), V[1:])
        rounding = eps * _apply(jnp.abs(linear.rows_Q), Q)
        if self.quasi:
            bound = tolerance * moved + eps * (Q + jnp.abs(args.q)[None, :]) + tiny
            error = jnp.maximum(error, jnp.max(jnp.abs(values.drift) / bound))
        if self.n_b:
            part = slice(self.m, None)
            size = jnp.max(R[:, part]) / linear.r_b.reshape(self.s - 1, -1)
            bound = tolerance * (terms[:, part] + size) + rounding[:, part] + tiny
            error = jnp.maximum(error, jnp.max(jnp.abs(values.rows[:, part]) / bound))
        if not self.m:
            return error, jnp.zeros((), dtype), jnp.zeros((0,), dtype)
        (n, d), k = self.shape, self.s - 1
        xi, z = self.join(values.rows), self.join(x.R)
        problem = self.contact_problem(linear, values)
        at = r, _, _ = problem.scale(), self.convert(z), self.convert(xi)
        F = jnp.abs(linalg.pack(contact.natural_map(problem, *at, contact.modes_at(problem, *at))))
        r_N, r_F = map(linalg.pack, r)
        r_rows = contact.join(r_N, jnp.tile(r_F[:, None], (1, d)))
        rounding_N, rounding_F = contact.split(r_rows * self.join(rounding), k * n, d)
        # The radius of a disc is made of the normal row.
        rounding = contact.join(rounding_N, rounding_F + (values.mu.reshape(-1) * rounding_N)[:, None])
        bound = tolerance * (jnp.max(jnp.abs(z)) + jnp.max(r_rows * self.join(terms))) + rounding + tiny
        slack = contact.split(z, k * n, d)[0] - r_N * contact.split(xi, k * n, d)[0]
        return jnp.maximum(error, jnp.max(F / bound)), jnp.max(F), jnp.max(slack.reshape(k, n), axis=0)

    def finish(self, args, x, slack, settings):
        """The end of the step: ``(q, u, Delta P, R^1..R^s, info)``; C24 (47b), (50), (51), (56), (58)."""
        system, t, dt, q, u = args
        b = self.tableau(q.dtype).b
        t_end, q_end = t + dt, self.positions(args, x)[-1]
        F, start = self.impulses(args, x)
        target = start + combine(b[None, :-1], F)[0] + b[-1] * dt * system.b(t_end, q_end, x.V[-1])
        total = combine(b[None, :-1], x.R)[0]
        if total.shape[0]:
            # The unknown Delta P acts at the end as a whole: what the stages have of it is taken back there.
            target = target - linalg.matmul(self.directions(system, t_end, q_end, x.V[-1]), total)
        guess = self.percussions(total[None, :], (0,))
        end = (system, t, q, u, t_end, q_end, target, slack)
        u, P, info = base.solve_velocity(END, end, x.V[-1], guess, settings)
        R = self.percussions(x.R, (self.s - 1,))
        last = [(P_i - total_i.reshape(P_i.shape)) / b[-1] for P_i, total_i in zip(P, self.percussions(total[None, :], ()), strict=True)]
        return q_end, u, P, [jnp.concatenate([R_i, last_i[None]]) for R_i, last_i in zip(R, last, strict=True)], info

    def percussions(self, R, lead):
        """Rows of percussions as `Percussions`."""
        (n, d), m, n_g = self.shape, self.m, self.n_g
        parts = ((R[:, n * d : m], (n,)), (R[:, : n * d], (n, d)), (R[:, m : m + n_g], (n_g,)), (R[:, m + n_g :], (self.n_gamma,)))
        lead = lead if lead and lead[0] else ()
        return Percussions(*(part.reshape(*lead, *shape) for part, shape in parts))


def combine(coefficients, x):
    """``sum_j c_ij x_j`` over the first axis of ``x``."""
    return jnp.sum(coefficients.reshape(coefficients.shape + (1,) * (x.ndim - 1)) * x[None], axis=1)


def with_value(function):
    """The Jacobian of a function, and its value."""
    return jax.jacfwd(lambda y: 2 * (function(y),), has_aux=True)


def _apply(X, y):
    """Products of a stack of matrices with a stack of vectors or of columns."""
    if y.ndim == 2:
        return jnp.sum(X * y[:, None, :], axis=2)
    # Behind a barrier: fused with what makes y, the sum would make y again for every row.
    y = lax.optimization_barrier(y)
    return jnp.stack([linalg.matmul(X[i], y[i]) for i in range(X.shape[0])])


def _first(x):
    """``x`` of the stages from the second on, with zeros for the first."""
    return jnp.concatenate([jnp.zeros_like(x[:1]), x]) if x.shape[0] else jnp.zeros((1, *x.shape[1:]), x.dtype)


class Linearized:
    """Derivatives of the equations of the stages, with velocities and bilateral percussions condensed away.

    What is left are the contacts of all stages: ``xi = G z + c``.
    """

    def __init__(self, stages, args, x):
        self.stages, self.args = stages, args
        self.tableau = stages.tableau(x.V.dtype)
        self.differentiate(x)
        self.eliminate()
        self.condense()

    def differentiate(self, x):
        """Derivatives stage by stage: of momenta, rows and impulses."""
        stages, (system, _, dt, q, _) = self.stages, self.args
        t, Q = stages.times(self.args), stages.positions(self.args, x)
        n_q = q.shape[0]

        def both(function):
            """A function of one stage, and its derivatives with respect to Q and V."""

            def derivatives(t, Q, V, *rest):
                J, value = with_value(lambda y: function(system, dt, t, y[:n_q], y[n_q:], *rest))(jnp.concatenate([Q, V]))
                return value, jax.tree.map(lambda x: (x[:, :n_q], x[:, n_q:]), J)

            return jax.vmap(derivatives)

        (p, rows, q_dot), ((self.p_Q, p_V), (self.rows_Q, self.rows_V), (v_Q, v_V)) = both(stages.law)(t[1:], Q[1:], x.V[1:])
        # The coordinates of the first stage are known.
        M, p_1 = with_value(lambda V: system.momentum(t[0], q, V))(x.V[0])
        F_V, F = (y[None] for y in with_value(lambda V: stages.force(system, dt, t[0], q, V, x.R[0]))(x.V[0]))
        self.F_Q = jnp.zeros((0, *F_V.shape[1:2], n_q), q.dtype)
        if stages.s > 2:
            F_on, (self.F_Q, F_V_on) = both(stages.force)(t[1:-1], Q[1:-1], x.V[1:-1], x.R[1:])
            F, F_V = jnp.concatenate([F, F_on]), jnp.concatenate([F_V, F_V_on])
        self.p_V, self.F_V = jnp.concatenate([M[None], p_V]), F_V
        self.W = jax.vmap(lambda t, Q, V: stages.directions(system, t, Q, V))(t[:-1], Q[:-1], x.V[:-1])
        if stages.quasi:
            V_1, q_dot_1 = with_value(lambda V: system.q_dot(t[0], q, V))(x.V[0])
            q_dot = jnp.concatenate([q_dot_1[None], q_dot])
            self.coordinates(v_Q, jnp.concatenate([V_1[None], v_V]))
        p = jnp.concatenate([p_1[None], p])
        self.values = stages.assembled(self.args, x, p, rows, q_dot, F, system.momentum(self.args.t, q, self.args.u))

    def coordinates(self, v_Q, v_V):
        """``T = dQ/dV`` (s - 1, s, n_q, n_u) from the implicit equations of the coordinates."""
        k, n_q, n_u = self.stages.s - 1, v_Q.shape[2], v_V.shape[2]
        a = self.args.dt * self.tableau.a[1:]
        own = jnp.eye(k * n_q, dtype=a.dtype) - (a[:, None, 1:, None] * v_Q.swapaxes(0, 1)[None]).reshape(k * n_q, k * n_q)
        self.solve_Q = linalg.lu(own)
        T = self.solve_Q((a[:, None, :, None] * v_V.swapaxes(0, 1)[None]).reshape(k * n_q, (k + 1) * n_u))
        self.T = T.reshape(k, n_q, k + 1, n_u).swapaxes(1, 2)

    def dQ(self, dV):
        """Changes of Q^2..Q^s for changes of V, (s, n_u) or columns (s, n_u, m)."""
        if not self.stages.quasi:
            return self.args.dt * combine(self.tableau.a[1:], dV)
        k, s, n_q, n_u = self.T.shape
        return linalg.matmul(self.T.swapaxes(1, 2).reshape(k * n_q, s * n_u), dV.reshape(s * n_u, *dV.shape[2:])).reshape(
            k, n_q, *dV.shape[2:]
        )

    def through_Q(self, X):
        """``X^i dQ^i/dV^k`` for all k and matrices X of the stages from the second on: (stages, s, rows, n_u)."""
        k = X.shape[0]
        if not self.stages.quasi:
            return (self.args.dt * self.tableau.a[1 : k + 1])[:, :, None, None] * X[:, None]
        return jnp.sum(X[:, None, :, :, None] * self.T[:k, :, None, :, :], axis=3)

    def eliminate(self):
        """Elimination by blocks of ``A = d balance / d V``; blocks that vanish by the coefficients' structure are left out."""
        s = self.stages.s
        _, _, a, a_hat = self.tableau
        eye = jnp.eye(s, dtype=a.dtype)[:, :, None, None]
        forces = eye[:-1] * self.F_V[:, None] + _first(self.through_Q(self.F_Q))
        A = eye * self.p_V[:, None] + _first(self.through_Q(self.p_Q)) - combine(a_hat[:, :-1], forces)
        exact = butcher.lobatto(s)
        depends = np.eye(s, dtype=bool) | (
            np.abs(exact.a) + np.abs(exact.a_hat) @ (np.eye(s) * (np.arange(s) < s - 1) + np.abs(exact.a)) > 0
        )
        if self.stages.quasi:
            depends[:] = True
        self.blocks = A = [[A[i, k] if depends[i, k] else None for k in range(s)] for i in range(s)]
        self.inverse = []
        for k in range(s):
            self.inverse.append(linalg.lu(A[k][k]))
            for j in range(k + 1, s):
                if A[k][j] is None:
                    continue
                A[k][j] = self.inverse[k](A[k][j])
                for i in range(k + 1, s):
                    if A[i][k] is not None:
                        change = linalg.matmul(A[i][k], A[k][j])
                        A[i][j] = -change if A[i][j] is None else A[i][j] - change

    def solve(self, rhs):
        """``A^-1 rhs`` for a right-hand side (s, n_u) or columns (s, n_u, m)."""
        s, A, y = self.stages.s, self.blocks, list(rhs)
        for k in range(s):
            y[k] = self.inverse[k](y[k])
            for i in range(k + 1, s):
                if A[i][k] is not None:
                    y[i] = y[i] - linalg.matmul(A[i][k], y[k])
        for k in reversed(range(s)):
            for j in range(k + 1, s):
                if A[k][j] is not None:
                    y[k] = y[k] - linalg.matmul(A[k][j], y[j])
        return jnp.stack(y)

    def rows(self, dV, dQ):
        """Changes of the bilateral rows, stage by stage, and of the contact rows in the contact solver's order."""
        change = _apply(self.rows_Q, dQ) + _apply(self.rows_V, dV[1:])
        (n, d), m = self.stages.shape, self.stages.m
        bilateral, tangential, normal = (
            part.reshape(part.shape[0] * part.shape[1], *part.shape[2:])
            for part in (change[:, m:], change[:, : n * d], change[:, n * d : m])
        )
        return bilateral, jnp.concatenate([tangential, normal])

    def condense(self):
        """Effect of the percussions on velocities and rows, with the bilateral rows kept at zero."""
        stages = self.stages
        (n, d), s, m = stages.shape, stages.s, stages.m
        self.m_b = m_b = (s - 1) * stages.n_b
        # Column j of stage i: a_hat_ij W^j; bilateral ones first, then the contact solver's order.
        columns = self.tableau.a_hat[:, None, :-1, None] * self.W.swapaxes(0, 1)[None]
        parts = [columns[..., m:], columns[..., : n * d], columns[..., n * d : m]]
        n_u = columns.shape[1]
        Y = self.solve(jnp.concatenate([part.reshape(s, n_u, (s - 1) * part.shape[3]) for part in parts], axis=2))
        Y = lax.optimization_barrier(Y)
        rows_b, rows = self.rows(Y, self.dQ(Y))
        self.Y_b, self.Y, self.G = Y[..., :m_b], Y[..., m_b:], rows[:, m_b:]
        if m_b:
            diagonal = contact.diagonal(rows_b[:, :m_b])
            self.r_b = jnp.where(diagonal > 0, 1 / jnp.where(diagonal > 0, diagonal, 1), 1)
            inverse = linalg.lu(self.r_b[:, None] * rows_b[:, :m_b], guard=True)
            self.solve_b = lambda x: inverse(self.r_b.reshape(-1, *(1,) * (x.ndim - 1)) * x)
            rows, rows_b = lax.optimization_barrier((rows, rows_b))
            self.G_cb = rows[:, :m_b]
            if m:
                self.B = lax.optimization_barrier(self.solve_b(rows_b[:, m_b:]))  # bilateral percussion per contact percussion
                self.Y = self.Y - linalg.matmul(self.Y_b.reshape(-1, m_b), self.B).reshape(self.Y.shape)
                self.G = self.G - linalg.matmul(self.G_cb, self.B)

    def free(self, values):
        """``(dV, dQ, dR_b, xi)`` that make the equations' ``values`` vanish, without a change of the contact percussions."""
        balance, offset = values.balance, 0
        if self.stages.quasi:
            offset = -self.solve_Q(values.drift.reshape(-1)).reshape(values.drift.shape)
            balance = balance + _first(_apply(self.p_Q, offset))
            balance = balance - combine(self.tableau.a_hat[:, :-1], _first(_apply(self.F_Q, offset[:-1])))
        dV = self.solve(-balance)
        dQ = self.dQ(dV) + offset
        rows, xi = self.rows(dV, dQ)
        xi, dR_b = self.stages.join(values.rows) + xi, None
        if self.m_b:
            dR_b = -self.solve_b(values.rows[:, self.stages.m :].reshape(-1) + rows)
            change = jnp.sum(self.Y_b * dR_b[None, None], axis=2)
            dV, dQ, xi = dV + change, dQ + self.dQ(change), xi + linalg.matmul(self.G_cb, dR_b)
        return dV, dQ, dR_b, xi

    def add(self, dV, dQ, dR_b, dz):
        """``(dV, dQ, dR_b)`` with a change of the contact percussions."""
        change = jnp.sum(self.Y * dz[None, None], axis=2)
        if self.m_b:
            dR_b = dR_b - linalg.matmul(self.B, dz)
        return dV + change, dQ + self.dQ(change), dR_b


@dataclass(frozen=True)
class StageResponse:
    """Derivative of the solution of the stages by the implicit function theorem: one linear solve, no iteration."""

    stages: Stages

    def __call__(self, x, args, dargs):
        """Tangent of the unknowns for a tangent of the arguments."""
        stages = self.stages
        both = lambda args: (stages.values(args, x), stages.positions(args, x)[1:])  # noqa: E731
        _, (changes, dQ_fixed) = jax.jvp(both, (args,), (dargs,))
        linear = Linearized(stages, args, x)
        dV, dQ, dR_b, xi = linear.free(changes)
        dR = jnp.zeros((stages.s - 1, 0), x.V.dtype) if dR_b is None else dR_b.reshape(stages.s - 1, -1)
        if stages.m:
            at = stages.join(x.R), stages.join(linear.values.rows), xi, changes.mu.reshape(-1)
            dz = linalg.pack(contact.response(stages.contact_problem(linear, linear.values), *map(stages.convert, at)))
            dV, dQ, dR_b = linear.add(dV, dQ, dR_b, dz)
            dR = dR if dR_b is None else dR_b.reshape(stages.s - 1, -1)
            dR = jnp.concatenate([stages.split(dz), dR], axis=1)
        return Unknowns(dV, dQ if stages.quasi else dQ + dQ_fixed, dR)


# -------------------------------------------------------------------------------------------------------- the end of a step
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
