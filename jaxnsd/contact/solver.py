"""The solver of contact problems: a semismooth Newton method, and what takes over where it cycles."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

from .. import linalg
from ..linalg import absolute, maximum, where
from ..newton import iterate
from .gauss_seidel import gauss_seidel_sweep
from .lemke import complete
from .problem import Problem, modes_at, natural_map, newton_step, scale, split

#: Sweeps of block Gauss-Seidel and Newton steps in one globalized iteration. Sweeps that cycle do so with a small even period: an odd
#: number of them meets the whole cycle.
SWEEPS, STEPS = 7, 4


class Result(NamedTuple):
    """Solution of a contact problem."""

    z: object  # percussions in internal order
    iterations: object  # Newton iterations, those after a rescue included
    error: object  # largest entry of the natural map over its bound: converged where <= 1
    residual: object  # largest entry of the natural map, in units of percussion
    contact: object  # contact with the largest entry where the problem was not solved, else -1


#: Largest number of contacts, frictionless or planar, of which Lemke's method finds a solution where Newton's method cycles.
SMALL = 16


#: Members of a batch on which Newton's method cycled are gathered, so many at a time, and globalized apart from the rest.
CHUNK = 32


class Equations:
    """The natural map of one problem as a function of a loop's carry ``(z, xi)``."""

    def __init__(self, problem, settings, dtype):
        n, d = problem.n, problem.d
        self.problem, self.tolerance = problem, settings.tolerance_for(dtype)
        self.r = problem.scale()
        c_N, c_F = split(absolute(problem.c), n, d)
        sizes = where(problem.active, self.r[0] * c_N, 0.0)
        for a in range(d):
            sizes = maximum(sizes, where(problem.active, self.r[1] * c_F[:, a], 0.0))
        self.size = jnp.maximum(linalg.max_entry(sizes), float(jnp.finfo(dtype).tiny) / self.tolerance)

    def at(self, z):
        """``(z, xi)`` and the error over its bound."""
        xi = linalg.matmul(self.problem.G, z) + self.problem.c
        largest = linalg.max_entry(absolute(self.residual(z, xi)[1]))
        return (linalg.to_leaves(z), linalg.to_leaves(xi)), largest / self.bound(z)

    def bound(self, z):
        """Bound of the natural map."""
        return self.tolerance * (self.size + linalg.max_entry(absolute(z)))

    def residual(self, z, xi):
        modes = modes_at(self.problem, self.r, z, xi)
        return modes, natural_map(self.problem, self.r, z, xi, modes)

    def worst(self, carry, error):
        """Contact with the largest entry of the natural map where the problem was not solved, else -1."""
        F = linalg.pack(self.residual(*(linalg.from_leaves(part) for part in carry))[1])
        F_N, F_F = split(jnp.abs(F), self.problem.n, self.problem.d)
        largest = jnp.max(jnp.concatenate([F_N[:, None], F_F], axis=1), axis=1)
        return jnp.where(error <= 1, -1, jnp.argmax(largest).astype(jnp.int32))

    def newton(self, carry):
        """One Newton step."""
        z, xi = (linalg.from_leaves(part) for part in carry)
        return self.at(newton_step(self.problem, self.r, z, xi, *self.residual(z, xi)))

    def rescue(self, carry):
        """Sweeps of Gauss-Seidel, which go on from where they were, then Newton steps, kept if they solve the problem."""
        swept, _ = carry
        r_N, _ = scale(self.problem.G, self.problem.n, self.problem.d)
        swept = lax.fori_loop(0, SWEEPS, lambda _, z: gauss_seidel_sweep(self.problem, r_N, z), swept)
        start = self.at(swept)
        tried, error = lax.fori_loop(0, STEPS, lambda _, x: self.newton(x[0]), start)
        solved = error <= 1
        best = jax.tree.map(lambda a, b: jnp.where(solved, a, b), tried, start[0])
        return (swept, best), jnp.where(solved, error, start[1])


def solve(problem, z0, settings, dtype, *, refine=False):
    """Solve a contact problem from the guess ``z0`` by a semismooth Newton method; where it cycles, by a globalized iteration.

    The globalization alternates sweeps of nonlinear block Gauss-Seidel with Newton steps from where the sweeps have come. In a
    batch the few problems that need it are gathered, so that the rest does not wait for them. With ``refine`` a guess that solves the
    problem to the tolerance takes one Newton step all the same, which brings it to round-off.
    """
    equations = Equations(problem, settings, dtype)
    start, error = equations.at(z0)
    start = (start, jnp.full_like(error, jnp.inf) if refine else error)
    newton, error, iterations = iterate(equations.newton, *start, settings.max_iterations)
    z = linalg.from_leaves(newton[0])
    if not settings.max_rescues:
        contact = equations.worst(newton, error)
    else:
        arrays = *(linalg.pack(part) for part in problem[:4]), jax.tree.map(linalg.pack, problem.r)
        z, error, iterations, contact = rescue(settings, problem.d)(arrays, linalg.pack(z), error, iterations)
        if linalg.is_unpacked(z0):
            z = linalg.unpack(z)
    return Result(z, iterations, error, error * equations.bound(z), contact)


def rescue(settings, d):
    """Function that globalizes an unsolved problem; under `vmap` it gathers the unsolved ones."""

    def one(arrays, z, error, iterations):
        *arrays, r = arrays
        problem = Problem(*arrays, d, r)
        equations = Equations(problem, settings, z.dtype)
        if d <= 1 and problem.n <= SMALL:
            solution, pivots = complete(problem, error > 1)
            solution, new = equations.at(solution)
            better = new < error
            best = jax.tree.map(lambda a, b: jnp.where(better, a, b), solution, equations.at(z)[0])
            error = jnp.where(better, new, error)
            return best[0], error, iterations + pivots, equations.worst(best, error)
        (_, best), error, rescues = iterate(equations.rescue, (jnp.zeros_like(z), equations.at(z)[0]), error, settings.max_rescues)
        return best[0], error, iterations + STEPS * rescues, equations.worst(best, error)

    @custom_vmap
    def guarded(arrays, z, error, iterations):
        return lax.cond(
            error > 1,
            one,
            lambda arrays, z, error, iterations: (z, error, iterations, jnp.full_like(iterations, -1)),
            arrays,
            z,
            error,
            iterations,
        )

    @guarded.def_vmap
    def _batched(axis_size, in_batched, *args):
        args = jax.tree.map(lambda x, batched: x if batched else jnp.broadcast_to(x, (axis_size, *jnp.shape(x))), args, tuple(in_batched))
        _, z, error, iterations = args
        chunk = min(CHUNK, axis_size)
        result = (z, error, iterations, jnp.full_like(iterations, -1))

        def gather(_):
            pending = error > 1
            order = jnp.nonzero(pending, size=axis_size + chunk, fill_value=axis_size)[0]

            def body(k, result):
                index = lax.dynamic_slice_in_dim(order, k * chunk, chunk)
                piece = jax.tree.map(lambda x: x.at[index].get(mode="clip"), args)
                # Lanes that only fill the chunk must not keep it busy.
                piece = (*piece[:2], jnp.where(index < axis_size, piece[2], 0), piece[3])
                done = jax.vmap(one)(*piece)
                return jax.tree.map(lambda x, y: x.at[index].set(y, mode="drop"), result, done)

            return lax.fori_loop(0, (jnp.sum(pending) + chunk - 1) // chunk, body, result)

        out = lax.cond(jnp.any(error > 1), gather, lambda _: result, None)
        return out, jax.tree.map(lambda _: True, out)

    return guarded
