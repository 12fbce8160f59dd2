"""The solution of the stages by Newton's method, and its derivative by the implicit function theorem."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ... import contact
from ...numerics import linalg, thresholds
from ...numerics.newton import implicit, iterate, known, solution, storing_solutions
from ...programs.derivatives import pushed
from .. import base, gathered
from ..base import Info
from ..gathered import Choice
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
    """``(x, F, slack, info)``: unknowns and `Stages.impulses`, differentiable in ``args``; the largest ``R_N^{i-1} - r g_N^i`` of all
    stages, which is not.
    """
    frozen, x = jax.tree.map(lax.stop_gradient, (args, x))
    x, F, slack, info = jax.tree.map(lax.stop_gradient, _found(stages, frozen, x, settings))
    x = implicit(StageResponse(stages, settings), x, args)
    return x, known(F, stages.impulses, args, x), solution(slack), info


class Change(NamedTuple):
    """What one iteration makes of the unknowns, and how it solved the contacts of all stages."""

    dV: Any
    dQ: Any
    R: Any  # percussions after it
    r_b: Any  # (m_b,) scales of the bilateral percussions, or None
    # (r_N, r_F), scales of the contacts' percussions, in the contact solver's order; zero for those left out, and without a law.
    r: Any = None
    free: Any = 0.0  # largest velocity of the contacts that push, without contact percussions, in units of unit Delassus operators
    iterations: Any = 1
    error: Any = 0.0  # over its bound
    contact: Any = np.int32(-1)  # the worst one


def _found(stages, args, x, settings):
    """``(x, F, slack, info)``: the solution, by iteration, at the cost of the contacts that are near.

    A contact that is open at all stages has no percussion and obeys all equations: the solution without it is that with it. One that was
    left out and closes is near from then on; where contacts need the globalization, which is compiled once, all of them are.
    """
    (n, d), dtype = stages.shape, x.V.dtype
    tolerance, sizes = settings.tolerance_for(dtype), gathered.sizes(n, d)

    def changed(x, linear, near):
        if not sizes:
            return change(linear.condensed(), x.R, settings)

        def branch(choice):
            if choice is None:
                return lambda: _of_arrays(change(linear.condensed(), x.R, settings))

            def of_chosen():
                view = linear.condensed(choice)
                found = _of_arrays(change(view, stages.chosen(choice, x.R), settings.nearby()))
                r = stages.join(stages.put(choice, view.stages.split(found.r)))
                worst = choice.number(jnp.where(found.contact < 0, -1, found.contact % max(choice.size, 1)))
                return found._replace(R=stages.put(choice, found.R), r=r, contact=worst)

            return of_chosen

        return gathered.switch(near, (*sizes, n), branch)

    def iteration(carry):
        x, info, *_, near = carry
        linear = Linearized(stages, args, x)
        found = changed(x, linear, near)
        after = Unknowns(x.V + found.dV, x.Q + found.dQ, found.R)
        values = stages.values(args, after)
        bound, residual, slack = error(linear, after, values, found, tolerance)
        if sizes:
            stuck = (found.error > 1) & ~jnp.all(near)
            closed = near | (stages.gap(args, values) <= 0) | stuck
            bound = jnp.where(jnp.all(closed == near), bound, jnp.inf)
            # With all contacts it goes on from where it was.
            after, near = jax.tree.map(lambda a, b: jnp.where(stuck, a, b), x, after), closed
        info = Info(info.iterations + found.iterations, residual, bound <= 1, found.contact)
        return (after, info, values.F, slack, near), bound

    near = stages.near(args, x) if sizes else None
    start = (x, base.nothing_to_solve(dtype), jnp.zeros_like(x.V[:-1]), jnp.zeros((n,), dtype), near)
    (x, info, F, slack, _), _, _ = iterate(iteration, start, jnp.full((), jnp.inf, dtype), settings.max_outer)
    info = info._replace(contact=jnp.where(info.converged | (info.contact < 0), -1, info.contact % max(n, 1)))
    return x, F, slack, info


def change(linear, R, settings):
    """`Change` by the solution of the equations linearized, those that are `condensed`, from the percussions ``R``."""
    stages, values = linear.stages, linear.values
    dV, dQ, dR_b, xi = linear.free(values)
    R_b, r_b = R[:, stages.m :], linear.r_b if linear.m_b else None
    if not stages.m:
        return Change(dV, dQ, R_b if dR_b is None else R_b + dR_b.reshape(R_b.shape), r_b)
    z = stages.join(R)
    c = xi - linalg.matmul(linear.G, z)
    problem = stages.contact_problem(linear.args, values, linear.G, c)
    if stages.m + stages.n_b > dV.shape[1]:
        # Gaps that depend on each other contradict each other by their rounding, of a cube on four corners by more than the tolerance: no
        # percussions obey all of them, and those that obey most change with every iteration.
        problem = problem._replace(rounding=stages.convert(stages.join(linear.rounding(linear.positions, values.rows))))
    # Far contacts that are open loosen the solver's tolerance: refined, what is closed is exact all the same.
    result = contact.solve(problem, stages.convert(z), settings, refine=True)
    dV, dQ, dR_b = linear.add(dV, dQ, dR_b, linalg.pack(result.z) - z)
    R = jnp.concatenate([stages.split(linalg.pack(result.z)), R_b if dR_b is None else R_b + dR_b.reshape(R_b.shape)], axis=1)
    n, d, r = problem.n, problem.d, stages.scale(problem)
    pushes = contact.split(linalg.pack(result.z), n, d)[0] > 0
    sizes = jnp.sqrt(linalg.pack(r)) * jnp.abs(c)
    free = jnp.max(jnp.where(contact.join(pushes, jnp.broadcast_to(pushes[:, None], (n, d))), sizes, 0))
    return Change(dV, dQ, R, r_b, r, free, result.iterations, result.error, result.contact)


def _of_arrays(found):
    """A `Change` of arrays: what a branch returns."""
    dtype, kind = found.dV.dtype, jnp.int32
    r = jnp.zeros((0,), dtype) if found.r is None else linalg.pack(found.r)
    whole = {name: jnp.asarray(getattr(found, name), kind) for name in ("iterations", "contact")}
    return found._replace(r=r, free=jnp.asarray(found.free, dtype), error=jnp.asarray(found.error, dtype), **whole)


def error(linear, x, values, found, tolerance):
    """``(error, residual, slack)``: the equations at ``x``, their ``values``, over their bounds, and the natural map of the contacts.

    ``found`` is the `Change` that led to ``x``. A contact that was left out has no say in it.

    Every row is bounded relative to the terms it is made of, plus what the rounding of the coordinates makes of it.
    """
    stages, args, dtype = linear.stages, linear.args, x.V.dtype
    eps, tiny = thresholds.round_off(dtype), float(jnp.finfo(dtype).tiny)
    a_hat = jnp.abs(stages.tableau(dtype).a_hat)
    positions = stages.positions(args, x)[1:]
    Q, V, R = (jnp.abs(part) for part in (positions, x.V, x.R))
    moved = jnp.abs(positions - args.q[None, :])
    F = jnp.abs(values.F) + apply(jnp.abs(linear.W), R)
    terms = apply(jnp.abs(linear.p_V), V) + jnp.abs(values.start)[None, :] + combine(a_hat[:, :-1], F)
    # What cancels in a row, of directions and forces, is as large as what the others are made of, each in units of its own inertia.
    unit = jnp.sqrt(jnp.abs(jnp.diagonal(linear.p_V, axis1=1, axis2=2)) + tiny)
    size = jnp.max(terms / unit)
    rounding = first(apply(jnp.abs(linear.p_Q), Q)) + combine(a_hat[:, :-1], first(apply(jnp.abs(linear.F_Q), Q[:-1])))
    bound = tolerance * terms + eps * (rounding + size * unit) + tiny
    error = jnp.max(jnp.abs(values.balance) / bound)
    if stages.quasi:
        # Coordinates of a body at rest keep round-off of what cancels in its velocities.
        ways = jnp.sum(jnp.abs(linear.T) * (size / unit)[None, :, None, :], axis=(1, 3))
        bound = tolerance * moved + eps * (Q + jnp.abs(args.q)[None, :] + ways) + tiny
        error = jnp.maximum(error, jnp.max(jnp.abs(values.drift) / bound))
    terms = apply(jnp.abs(linear.rows_Q), moved) + apply(jnp.abs(linear.rows_V), V[1:])
    rounding = linear.rounding(positions, values.rows)
    if stages.n_b:
        part = slice(stages.m, None)
        size = jnp.max(R[:, part]) / found.r_b.reshape(stages.s - 1, -1)
        bound = tolerance * (terms[:, part] + size) + rounding[:, part] + tiny
        error = jnp.maximum(error, jnp.max(jnp.abs(values.rows[:, part]) / bound))
    if not stages.m:
        return error, jnp.zeros((), dtype), jnp.zeros((0,), dtype)
    (n, d), k = stages.shape, stages.s - 1
    xi, z = stages.join(values.rows), stages.join(x.R)
    problem = stages.contact_problem(args, values)
    at = r, _, _ = contact.split(found.r, k * n, d), stages.convert(z), stages.convert(xi)
    F = jnp.abs(linalg.pack(contact.natural_map(problem, *at, contact.modes_at(problem, *at))))
    r_N, r_rows = linalg.pack(r[0]), linalg.pack(contact.join(*r))
    rounding_N, rounding_F = contact.split(r_rows * stages.join(rounding), k * n, d)
    # The radius of a disc is made of the normal row.
    radius = jnp.max(values.mu.reshape(k * n, -1), axis=1) * rounding_N
    rounding = contact.join(rounding_N, rounding_F + radius[:, None])
    bound = tolerance * (jnp.max(jnp.abs(z)) + jnp.max(r_rows * stages.join(terms)))
    # Where there is no solution, percussions grow until they excuse any gap and any slip: up to a limit, as in a contact problem.
    most = thresholds.violation(tolerance, dtype) * jnp.sqrt(r_rows) * found.free
    bound = jnp.where(found.free > 0, jnp.minimum(bound, most), bound) + rounding + tiny
    r_N = jnp.where(r_N > 0, r_N, 1)
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
        both = lambda args: (stages.values(args, x), stages.positions(args, x)[1:])  # noqa: E731
        (values, _), (changes, dQ_fixed) = pushed(both, (args,), (dargs,))
        linear = Linearized(stages, args, x)

        def whole():
            return self.of(linear.condensed(), x.R, changes)

        def in_flight():
            none = Choice(closed, 0)
            dV, dQ, dR = self.of(linear.condensed(none), x.R[:, m:], stages.seen(none, changes))
            return dV, dQ, stages.put(none, dR)

        if gathered.sizes(n, d):
            closed = jnp.any(x.R[:, n * d : m] > 0, axis=0) | (stages.gap(args, values) <= 0)
            # What a branch stores for the way back, the other one would have to fill with zeros: it is computed again.
            branches = storing_solutions(whole), storing_solutions(in_flight)
            dV, dQ, dR = lax.cond(gathered.largest(jnp.any(closed)), *branches)
        else:
            dV, dQ, dR = whole()
        return Unknowns(dV, dQ if stages.quasi else dQ + dQ_fixed, dR)

    def of(self, linear, R, changes):
        """Tangents ``(dV, dQ, dR)`` for changes of the equations, with the contacts of ``linear``."""
        stages = linear.stages
        dV, dQ, dR_b, xi = linear.free(changes)
        dz = None
        if stages.m:
            at = stages.join(R), stages.join(linear.values.rows), xi, stages.friction(changes.mu)
            problem = stages.contact_problem(linear.args, linear.values, linear.G)
            dz = linalg.pack(contact.response(problem, *map(stages.convert, at), self.solver))
            dV, dQ, dR_b = linear.add(dV, dQ, dR_b, dz)
        dR = jnp.zeros((stages.s - 1, 0), dV.dtype) if dR_b is None else dR_b.reshape(stages.s - 1, -1)
        return dV, dQ, dR if dz is None else jnp.concatenate([stages.split(dz), dR], axis=1)
