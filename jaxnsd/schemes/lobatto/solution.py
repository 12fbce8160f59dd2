"""The solution of the stages by Newton's method, and its derivative by the implicit function theorem."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ... import contact, linalg
from ...newton import implicit, iterate, solution, storing_solutions
from .. import base, gathered
from ..base import Info
from ..gathered import Choice, Subsystem
from .equations import Unknowns, combine
from .linearized import Linearized, apply, first


def guess(stages, args, state):
    """Unknowns extrapolated from the step before: velocities that go on changing as they did, from that of the node."""
    c = stages.tableau(state.q.dtype).c
    V = state.u[None, :] + c[:, None] * (state.V[-1] - state.V[0])[None, :]
    Q = jnp.tile(state.q[None, :], (stages.s - 1, 1))
    if stages.quasi:
        Q = Q + args.dt * c[1:, None] * args.system.q_dot(args.t, args.q, args.u)[None, :]
    parts = (state.R_F.reshape(stages.s, -1), state.R_N, state.R_g, state.R_gamma)
    return Unknowns(V, Q, jnp.concatenate(parts, axis=1)[:-1])


def solve(stages, args, x, settings):
    """``(x, slack, info)``: unknowns, differentiable in ``args``; the largest ``R_N^{i-1} - r g_N^i`` of all stages, which is not."""
    frozen, x = jax.tree.map(lax.stop_gradient, (args, x))
    x, slack, info = _gathered(stages, frozen, x, settings)
    x = implicit(StageResponse(stages, settings), jax.tree.map(lax.stop_gradient, x), args)
    return x, solution(lax.stop_gradient(slack)), info


def _gathered(stages, args, x, settings):
    """``(x, slack, info)``: the solution, at the cost of the contacts that are near.

    A contact that is open at all stages has no percussion and obeys all equations: the solution without it is that with it. Stages that
    close a contact which was left out, or need the globalization, are solved anew with all of them.
    """
    (n, d), start = stages.shape, x
    sizes = gathered.sizes(n, d)
    if not sizes:
        return _found(stages, args, x, settings)
    nothing = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(lambda: _found(stages, args, x, settings)))

    def branch(choice):
        if choice is None:
            return lambda: (nothing, jnp.ones((), bool))

        def solved():
            x, slack, info = _found(*restricted(stages, args, start, choice), settings.nearby())
            R = jax.vmap(lambda z: choice.put_rows(z, d))(x.R[:, : choice.size * (d + 1)])
            x = x._replace(R=jnp.concatenate([R, x.R[:, choice.size * (d + 1) :]], axis=1))
            seen, gap = jnp.any(choice.mask, axis=0), stages.gap(args, x)
            slack, info = jnp.where(seen, choice.put(slack), -gap), info._replace(contact=choice.number(info.contact))
            return (x, slack, info), jnp.any(~seen & (gap <= 0)) | ~info.converged

        return solved

    found, open_still = gathered.switch(stages.near(args, x), (*sizes, n), branch)

    def again(found):
        return jax.tree.map(lambda a, b: jnp.where(open_still, a, b), _found(stages, args, start, settings), found)

    return lax.cond(gathered.largest(open_still), again, lambda found: found, found)


def restricted(stages, args, x, choice):
    """Equations, arguments and unknowns of the chosen contacts alone."""
    d, m = stages.shape[1], stages.m
    stages, args = replace(stages, shape=(choice.size, d)), args._replace(system=Subsystem(args.system, choice))
    return stages, args, x._replace(R=jnp.concatenate([choice.rows(x.R[:, :m], d, axis=1), x.R[:, m:]], axis=1))


def _found(stages, args, x, settings):
    """``(x, slack, info)``: the solution, by iteration."""
    (n, _), dtype = stages.shape, x.V.dtype
    tolerance = settings.tolerance_for(dtype)

    def iteration(carry):
        x, info, _ = carry
        linear = Linearized(stages, args, x)
        dV, dQ, dR_b, xi = linear.free(linear.values)
        R = x.R[:, stages.m :] if dR_b is None else x.R[:, stages.m :] + dR_b.reshape(stages.s - 1, -1)
        iterations, worst = info.iterations + 1, info.contact
        if n:
            z = stages.join(x.R)
            problem = stages.contact_problem(linear, linear.values, xi - linalg.matmul(linear.G, z))
            # Far contacts that are open loosen the solver's tolerance: refined, what is closed is exact all the same.
            result = contact.solve(problem, stages.convert(z), settings, refine=True)
            result = result._replace(z=linalg.pack(result.z))
            dV, dQ, dR_b = linear.add(dV, dQ, dR_b, result.z - z)
            R = x.R[:, stages.m :] if dR_b is None else x.R[:, stages.m :] + dR_b.reshape(stages.s - 1, -1)
            R = jnp.concatenate([stages.split(result.z), R], axis=1)
            iterations, worst = info.iterations + result.iterations, result.contact
        x = Unknowns(x.V + dV, x.Q + dQ, R)
        bound, residual, slack = error(stages, linear, args, x, tolerance)
        return (x, Info(iterations, residual, bound <= 1, worst), slack), bound

    start = (x, base.nothing_to_solve(dtype), jnp.zeros((n,), dtype))
    (x, info, slack), _, _ = iterate(iteration, start, jnp.full((), jnp.inf, dtype), settings.max_outer)
    info = info._replace(contact=jnp.where(info.converged | (info.contact < 0), -1, info.contact % max(n, 1)))
    return x, slack, info


def error(stages, linear, args, x, tolerance):
    """``(error, residual, slack)``: the equations at ``x`` over their bounds, and the natural map of the contacts.

    Every row is bounded relative to the terms it is made of, plus what the rounding of the coordinates makes of it.
    """
    dtype = x.V.dtype
    eps, tiny = 8 * float(jnp.finfo(dtype).eps), float(jnp.finfo(dtype).tiny)
    values = stages.values(args, x)
    a_hat = jnp.abs(stages.tableau(dtype).a_hat)
    Q, V, R = (jnp.abs(part) for part in (stages.positions(args, x)[1:], x.V, x.R))
    moved = jnp.abs(stages.positions(args, x)[1:] - args.q[None, :])
    F = jnp.abs(values.F) + apply(jnp.abs(linear.W), R)
    terms = apply(jnp.abs(linear.p_V), V) + jnp.abs(values.start)[None, :] + combine(a_hat[:, :-1], F)
    rounding = first(apply(jnp.abs(linear.p_Q), Q)) + combine(a_hat[:, :-1], first(apply(jnp.abs(linear.F_Q), Q[:-1])))
    bound = tolerance * terms + eps * (rounding + jnp.max(terms)) + tiny
    error = jnp.max(jnp.abs(values.balance) / bound)
    terms = apply(jnp.abs(linear.rows_Q), moved) + apply(jnp.abs(linear.rows_V), V[1:])
    rounding = eps * apply(jnp.abs(linear.rows_Q), Q)
    if stages.quasi:
        bound = tolerance * moved + eps * (Q + jnp.abs(args.q)[None, :]) + tiny
        error = jnp.maximum(error, jnp.max(jnp.abs(values.drift) / bound))
    if stages.n_b:
        part = slice(stages.m, None)
        size = jnp.max(R[:, part]) / linear.r_b.reshape(stages.s - 1, -1)
        bound = tolerance * (terms[:, part] + size) + rounding[:, part] + tiny
        error = jnp.maximum(error, jnp.max(jnp.abs(values.rows[:, part]) / bound))
    if not stages.m:
        return error, jnp.zeros((), dtype), jnp.zeros((0,), dtype)
    (n, d), k = stages.shape, stages.s - 1
    xi, z = stages.join(values.rows), stages.join(x.R)
    problem = stages.contact_problem(linear, values)
    at = r, _, _ = problem.scale(), stages.convert(z), stages.convert(xi)
    F = jnp.abs(linalg.pack(contact.natural_map(problem, *at, contact.modes_at(problem, *at))))
    r_N, r_rows = linalg.pack(r[0]), linalg.pack(contact.join(*r))
    rounding_N, rounding_F = contact.split(r_rows * stages.join(rounding), k * n, d)
    # The radius of a disc is made of the normal row.
    radius = jnp.max(values.mu.reshape(k * n, -1), axis=1) * rounding_N
    rounding = contact.join(rounding_N, rounding_F + radius[:, None])
    bound = tolerance * (jnp.max(jnp.abs(z)) + jnp.max(r_rows * stages.join(terms))) + rounding + tiny
    slack = contact.split(z, k * n, d)[0] - r_N * contact.split(xi, k * n, d)[0]
    return jnp.maximum(error, jnp.max(F / bound)), jnp.max(F), jnp.max(slack.reshape(k, n), axis=0)


@dataclass(frozen=True)
class StageResponse:
    """Derivative of the solution of the stages by the implicit function theorem: one linear solve, no iteration."""

    stages: Any  # `Stages`
    solver: Any

    def __call__(self, x, args, dargs):
        """Tangent of the unknowns for a tangent of the arguments."""
        stages = self.stages
        (n, d), m = stages.shape, stages.m
        if not gathered.sizes(n, d):
            return self.whole(stages, x, args, dargs)

        closed = jnp.any(x.R[:, n * d : m] > 0, axis=0) | (stages.gap(args, x) <= 0)
        none = Choice(closed, 0)

        # What a branch stores for the way back, the other one would have to fill with zeros: it is computed again.
        @storing_solutions
        def in_contact():
            return self.whole(stages, x, args, dargs)

        @storing_solutions
        def in_flight():
            free, _, at = restricted(stages, args, x, none)
            seen = jax.jvp(lambda args: restricted(stages, args, x, none)[1], (args,), (dargs,))
            dx = self.whole(free, at, *seen)
            return dx._replace(R=jnp.concatenate([jnp.zeros_like(x.R[:, :m]), dx.R], axis=1))

        return lax.cond(gathered.largest(jnp.any(closed)), in_contact, in_flight)

    def whole(self, stages, x, args, dargs):
        """The same with all contacts of ``stages``."""
        both = lambda args: (stages.values(args, x), stages.positions(args, x)[1:])  # noqa: E731
        _, (changes, dQ_fixed) = jax.jvp(both, (args,), (dargs,))
        linear = Linearized(stages, args, x)
        dV, dQ, dR_b, xi = linear.free(changes)
        dR = jnp.zeros((stages.s - 1, 0), x.V.dtype) if dR_b is None else dR_b.reshape(stages.s - 1, -1)
        if stages.m:
            at = stages.join(x.R), stages.join(linear.values.rows), xi, stages.friction(changes.mu)
            dz = linalg.pack(contact.response(stages.contact_problem(linear, linear.values), *map(stages.convert, at), self.solver))
            dV, dQ, dR_b = linear.add(dV, dQ, dR_b, dz)
            dR = dR if dR_b is None else dR_b.reshape(stages.s - 1, -1)
            dR = jnp.concatenate([stages.split(dz), dR], axis=1)
        return Unknowns(dV, dQ if stages.quasi else dQ + dQ_fixed, dR)
