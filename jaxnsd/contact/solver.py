"""The solver of contact problems: a semismooth Newton method, and what takes over where it cycles."""

import functools
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..native.marks import when_needed
from ..numerics import linalg, thresholds
from ..numerics.batches import batched_by
from ..numerics.linalg import absolute, divide, greater, maximum, minimum, multiply, where
from ..numerics.newton import iterate
from . import apart, sharing, single
from .abstract import AbstractContactSolver, Result, settings
from .gauss_seidel import gauss_seidel_sweep
from .interior import PATHS, Follower, InteriorPoint, law_of
from .lemke import attempts, complete, exhausted, size, widest
from .operators import internal
from .problem import Problem, Rows, beside, broadcast, join, modes_at, natural_map, newton_step, scale, split

#: Sweeps of block Gauss-Seidel and Newton steps in one globalized iteration. Sweeps that cycle do so with a small even period: an odd
#: number of them meets the whole cycle.
SWEEPS, STEPS = 7, 4


#: Largest complementarity problem, in rows (see `lemke.size`), that is given to Lemke's method. A pivot touches its square.
SMALL = 128

#: Newton steps after Lemke's method, and the shifts of their matrix in successive attempts, as powers of the machine precision. Of the 106
#: hardest contact problems of 100 boxes that come to rest (300 000 steps) 25 steps with the power 0.55 alone left 4 unsolved, these none.
POLISH, SHIFTS = 60, (0.5, 0.4, 0.6)


#: Shift of Newton's matrix where contacts are redundant, as a power of the machine precision: a step then takes those percussions that make
#: the least change. Without it some are pushed to zero, at the edge of their friction cones, and Newton's method cycles in the steps that
#: follow: of 3000 steps of a cube at rest on four corners 360 needed Lemke's method; with it none, after 1 to 3 iterations each.
REDUNDANT = 0.5

#: Newton steps of spatial contacts that go along their direction to where the natural map is smallest, those of several contacts with a
#: shift of their matrix that is `SHIFTED` times the natural map; those that follow go all the way, with a shift of entries of order one
#: that is `DAMPING` first and falls by `DECAY` with each. Where rows nearly depend on each other, as of a robot that slides on its feet, a
#: whole step goes far beyond the friction cones, and the next one comes back from there; searched steps, however, may end at a kink, and
#: damped ones lead out of it. A quadruped that slides takes 4.4 iterations at the mean, 12 with whole steps, 8.8 without the shift; with
#: two discs a contact 7.4, 13 without the shift, while 62 of 400 whole steps were left unsolved, after 44.
SEARCHED, SHIFTED, DAMPING, DECAY = 8, 0.1, 0.3, 0.4

#: Natural map at which Newton steps follow on a path through the interior of several friction cones, how many, and the shift of their
#: matrix, both powers of the machine precision. Earlier Newton's method cycles where rows nearly depend on each other: of 206 problems of a
#: quadruped on 4 contacts with three discs each it left 44 when it took over at 1e-3, in steps that were not searched; 2 are left.
END, ENDED, WEAK = 0.5, 30, 0.64

#: Parts of a step that are searched: ``2^(-k / 2)``.
PARTS = 17

#: Members of a batch on which Newton's method cycled are gathered, so many at a time, and globalized apart from the rest.
CHUNK = 32


class Point(NamedTuple):
    """What is kept of the equations at one ``z``: the carry of a loop, for which `Equations` turns unpacked entries into leaves."""

    z: object
    xi: object
    largest: object  # entry of the natural map
    residual: object = None  # `Residual`, where it is kept


class Residual(NamedTuple):
    """The natural map at one ``z``."""

    modes: object  # of the contacts
    F: object  # natural map
    ratio: object  # its entries over their bounds


class Equations:
    """The natural map of one problem as a function of percussions.

    keeps: whether a `Point` keeps its residual. A cube runs 15 % faster then; of a small problem it is sooner found again, and in lockstep
    what a loop carries is selected and written for all members in every pass
    excuses: whether round-off excuses what violates the law visibly. Newton's method leaves this question to what takes over from it: it
    costs 5 % of small problems, which have no use for it
    """

    def __init__(self, problem, settings, dtype, keeps=False, excuses=True):
        self.problem, self.tolerance, self.keeps, self.excuses = problem, settings.tolerance_for(dtype), keeps, excuses
        self.r = r_N, r_F = problem.scale()
        self.tiny = float(jnp.finfo(dtype).tiny)
        self.G = absolute(problem.G)
        self.c = absolute(problem.c)
        self.r_rows = join(r_N, r_F)
        self.units = free = self.free()
        self.small, self.most = (multiply(part(self.tolerance, dtype), free) for part in (thresholds.small, thresholds.violation))
        self.round_off = thresholds.excuse(dtype)

    def at(self, z):
        """`Point` at ``z``, and the error: the largest entry of the natural map over its bound."""
        xi = linalg.matmul(self.problem.G, z) + self.problem.c
        residual = self.residual(Point(z, xi, None))
        point = Point(z, xi, linalg.max_entry(absolute(residual.F)), residual if self.keeps else None)
        return linalg.to_leaves(point), linalg.max_entry(residual.ratio)

    def residual(self, point):
        """`Residual` at a `Point`."""
        if point.residual is not None:
            return point.residual
        z, xi, *_ = point
        modes = modes_at(self.problem, self.r, z, xi)
        F = natural_map(self.problem, self.r, z, xi, modes)
        return Residual(modes, F, divide(absolute(F), self.bound(z)))

    def free(self):
        """Largest free velocity, in units in which the Delassus operator of every contact is one: as percussions, a bound for each row."""
        n, d, active, given = self.problem.n, self.problem.d, self.problem.active, self.problem.least
        velocity, s = self.c, linalg.sqrt(self.r_rows)
        if given is not None:
            given = where(active, given, linalg.zeros_like(given))
            velocity = velocity + linalg.matmul(self.G, join(given, split(linalg.zeros_like(velocity), n, d)[1]))
        acts = join(active, broadcast(active, d))
        return multiply(s, linalg.max_entry(where(acts, s * velocity, linalg.zeros_like(velocity))))

    def bound(self, z):
        """Bound of every row of the natural map: relative to what the row is made of, a disc's radius included, up to a limit.

        More is excused by round-off alone, that of c if it has more, and by one that leaves something of the free velocity.
        """
        z, rounding = absolute(z), self.problem.rounding
        terms = self.with_radius(z + self.r_rows * (linalg.matmul(self.G, z) + self.c))
        most = self.small
        if self.excuses:
            excused = self.round_off * terms
            most = maximum(most, where(greater(excused, self.most), linalg.zeros_like(excused), excused))
        bound = minimum(self.tolerance * terms, most) + self.tiny
        return bound if rounding is None else bound + self.with_radius(self.r_rows * rounding)

    def with_radius(self, rows):
        """Sizes of rows, with that of the radius of a disc, which is made of the normal row, in those of its directions."""
        rows_N, rows_F = split(rows, self.problem.n, self.problem.d)
        discs = [rows_F[:, part] + multiply(mu, rows_N)[:, None] for part, mu in self.problem.discs]
        return join(rows_N, beside(discs, rows_F))

    def worst(self, point, error):
        """Contact with the largest entry of the natural map over its bound where the problem was not solved, else -1."""
        if self.problem.n == 1:
            return jnp.where(error <= 1, -1, 0).astype(jnp.int32)
        ratio = self.residual(linalg.from_leaves(point)).ratio
        ratio_N, ratio_F = split(linalg.pack(ratio), self.problem.n, self.problem.d)
        largest = jnp.max(jnp.concatenate([ratio_N[:, None], ratio_F], axis=1), axis=1)
        return jnp.where(error <= 1, -1, jnp.argmax(largest).astype(jnp.int32))

    def newton(self, point, shift=None, guard=True):
        """One Newton step; ``shift`` and ``guard`` as in `problem.newton_step`."""
        return self.at(self.stepped(linalg.from_leaves(point), shift, guard))

    def stepped(self, point, shift, guard):
        """Percussions after one Newton step."""
        modes, F, _ = self.residual(point)
        return newton_step(self.problem, self.r, point.z, point.xi, modes, F, shift, guard)

    def length(self, z, xi):
        """Of the natural map, in units of the largest free velocity."""
        F = natural_map(self.problem, self.r, z, xi, modes_at(self.problem, self.r, z, xi))
        return jnp.sqrt(jnp.sum((F / (self.units + self.tiny)) ** 2))

    def searched(self, point, shift, guard, whole):
        """One Newton step, as far along its direction as the natural map is the smallest there, or the ``whole`` step."""
        z, xi = point.z, point.xi
        change = self.stepped(point, shift, guard) - z
        change_xi = linalg.matmul(self.problem.G, change)
        parts = jnp.asarray(2.0 ** (-0.5 * np.arange(PARTS)), z.dtype)
        lengths = jax.vmap(lambda part: self.length(z + part * change, xi + part * change_xi))(parts)
        best = jnp.where(lengths == jnp.min(lengths), parts, 0)
        return self.at(z + jnp.where(whole, 1, jnp.max(best)) * change)

    def improved(self, start, error, steps, shift=None, refine=False):
        """``(point, error, iterations)`` after Newton steps, with a least ``shift``; of spatial contacts the first are `searched`.

        refine: whether the start is so near that the shift of searched steps would only slow the end. A tumbling body takes 4.9
        iterations of `Lobatto` a step without it, 8.2 with it
        """
        if linalg.is_unpacked(self.problem.G) or self.problem.d < 2:
            return iterate(lambda point: self.newton(point, shift, shift is None), start, error, steps)

        def step(carry):
            point, k = carry
            point, whole = linalg.from_leaves(point), k >= SEARCHED
            early = 0 if refine or self.problem.n == 1 else jnp.minimum(SHIFTED * self.length(point.z, point.xi), 1)
            own = jnp.where(whole, DAMPING * DECAY ** (k - SEARCHED).astype(error.dtype), early)
            point, largest = self.searched(point, own if shift is None else jnp.maximum(shift, own), shift is None, whole)
            return (point, k + 1), largest

        (point, _), error, iterations = iterate(step, (start, jnp.zeros((), jnp.int32)), error, steps)
        return point, error, iterations

    def sweep(self, carry):
        """Sweeps of Gauss-Seidel, which go on from where they were, then Newton steps, kept if they solve the problem."""
        swept, _ = carry
        r_N, _ = scale(self.problem)
        swept = lax.fori_loop(0, SWEEPS, lambda _, z: gauss_seidel_sweep(self.problem, r_N, z), swept)
        start = self.at(swept)
        tried, error = lax.fori_loop(0, STEPS, lambda _, x: self.newton(x[0]), start)
        solved = error <= 1
        best = jax.tree.map(lambda a, b: jnp.where(solved, a, b), tried, start[0])
        return (swept, best), jnp.where(solved, error, start[1])

    def pivot(self, carry, newton=None):
        """Lemke's method on friction cones whose edges close in on the last directions, then Newton steps; the best is kept.

        The error is not a number where there is nothing more to try.

        newton: None, or ``(first, guess, steps, refine)``: the first time Newton's method takes so many steps from a guess instead
        """
        cones, best, least, iterations = carry
        lemke, eps = when_needed(lambda: complete(self.problem, cones)), float(jnp.finfo(least.dtype).eps)
        first, guess, steps, refine = newton or (False, None, None, False)
        none = jnp.zeros_like(iterations)
        z, cones, pivots, near = lax.cond(first, lambda: (guess, cones, none, jnp.ones((), bool)), lemke) if newton else lemke()
        shift = jnp.asarray(eps ** np.array(SHIFTS), least.dtype)[cones.attempt % len(SHIFTS)]
        start, error = self.at(z)
        if newton:
            shift = jnp.where(first, eps**REDUNDANT, shift)
            error = jnp.where(first, jnp.inf, error) if refine else error
        polish = jnp.where(near, POLISH, 0)
        x, error, steps = self.improved(start, error, jnp.where(first, steps, polish) if newton else polish, shift, refine)
        best, error = better((x, error), (best, least))
        return (cones, best, error, iterations + pivots + steps), jnp.where(exhausted(cones) & (error > 1), jnp.nan, error)

    def path(self, carry):
        """One of the paths through the interior of the friction cones, to its end, then Newton steps; the best is kept."""
        kind, best, least, iterations = carry
        law, eps = law_of(self.problem), float(jnp.finfo(least.dtype).eps)
        follower = Follower(law, self.tolerance)
        path, _, steps = follower.along(follower.start(kind), eps**END)
        start, error = self.at(internal(path.z * law.s * law.unit))
        x, error, more = self.improved(start, error, ENDED, jnp.asarray(eps**WEAK, least.dtype))
        best, least = better((x, error), (best, least))
        return (kind + 1, best, least, iterations + steps + more), least

    def solve(self, guess, settings, refine):
        """`Result` of Newton's method from a ``guess`` and, where it cycles, of its globalization (see `in_one_loop`)."""
        problem = self.problem
        nothing = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(lambda: self.at(guess)[0]))
        # What is not a number has no solution to look for.
        least = jnp.where(jnp.isfinite(jnp.sum(problem.G) + jnp.sum(problem.c)), jnp.inf, jnp.nan).astype(guess.dtype)

        def attempt(carry):
            first, *state = carry
            state, error = self.pivot(state, (first, guess, settings.max_iterations, refine))
            return (jnp.zeros((), bool), *state), error

        start = jnp.ones((), bool), widest(problem), nothing, least, jnp.zeros((), jnp.int32)
        (_, _, best, error, iterations), _, _ = iterate(attempt, start, least, 1 + attempts(problem, settings.max_rescues))
        return Result(best.z, iterations, error, best.largest, self.worst(best, error))

    def rescue(self, z, settings):
        """``(carry, error, iterations)`` of the globalized iteration, if z is not excused."""
        problem = self.problem
        start, error = self.at(z)
        if interior(problem):
            carry = (jnp.zeros((), jnp.int32), start, error, jnp.zeros((), jnp.int32))
            (_, best, error, iterations), _, _ = iterate(self.path, carry, error, min(len(PATHS), settings.max_rescues))
            return best, error, iterations
        if size(problem) > SMALL:
            (_, best), error, rescues = iterate(self.sweep, (jnp.zeros_like(z), start), error, settings.max_rescues)
            return best, error, STEPS * rescues
        carry = (widest(problem), start, error, jnp.zeros((), jnp.int32))
        (_, best, error, iterations), _, _ = iterate(self.pivot, carry, error, attempts(problem, settings.max_rescues))
        return best, error, iterations


def better(new, old):
    """That ``(point, error)`` which has the smaller error; the old one where neither is smaller."""
    return jax.tree.map(lambda a, b: jnp.where(new[1] < old[1], a, b), new, old)


def large(problem):
    """Whether a problem is one for `InteriorPoint`: too large for Lemke's method, with one disc of friction per contact."""
    return size(problem) > SMALL and problem.sizes is None and problem.least is None


def interior(problem):
    """Whether a problem that Newton's method leaves is one for a path through the interior of its cones: of several discs, of any size."""
    return problem.sizes is not None and problem.least is None


@dataclass(frozen=True)
class SemismoothNewton(AbstractContactSolver):
    """Settings of the semismooth Newton method.

    tolerance:       bound of every row of the natural map, relative to the terms that this row is made of: each contact in its own units
                     (and of the momentum balance relative to the momenta); None: 1e-12 in float64, 2e-6 in float32
    max_iterations:  bound of the Newton iterations of one contact problem, before the globalization takes over; those of spatial
                     contacts are damped from the ninth on
    max_rescues:     bound of the globalized iterations of a problem on which plain Newton cycles; the rest of a batch waits but does
                     not change. They start afresh, so that they do not depend on where Newton's method has come to, and with it on the
                     tolerance. Up to 16 spatial or 32 planar contacts each is a run of Lemke's method: one is enough for frictionless
                     contacts and nearly all planar ones, a few for spatial ones. The modes of up to 8 planar contacts are all searched
                     then, unless it is 0. With more contacts it bounds the attempts of `InteriorPoint`, 12 at most, with several discs
                     the paths, 6 at most: one is enough but for a few problems
    max_outer:       bound of the iterations on the smooth equations, for schemes that are implicit in the velocity
    """

    tolerance: float | None = None
    max_iterations: int = 10
    max_rescues: int = 60
    max_outer: int = 20
    unpacked: ClassVar[bool] = True
    general: ClassVar[bool] = True

    def __post_init__(self):
        settings(self, at_least={"max_iterations": 1, "max_outer": 1, "max_rescues": 0})

    def interior(self) -> InteriorPoint:
        """The solver of large problems."""
        attempts = min(self.max_rescues, InteriorPoint.max_attempts)
        return InteriorPoint(self.tolerance, self.max_iterations, attempts, self.max_outer)

    def response(self, problem: Problem, z: Rows, xi: Rows, dxi: Rows, dmu: Rows, dleast: Rows | None = None) -> Rows:
        """Derivative dz of the solution."""
        if large(problem):
            return self.interior().response(problem, z, xi, dxi, dmu)
        return super().response(problem, z, xi, dxi, dmu, dleast)

    def nearby(self) -> "SemismoothNewton":
        """Without the globalization, which is two thirds of the compilation."""
        return replace(self, max_rescues=0, max_iterations=30)

    def solve(self, problem: Problem, guess: Rows, *, refine: bool = False) -> Result:
        """Solve a contact problem from a ``guess`` by a semismooth Newton method; where it cycles, by a globalized iteration.

        A single planar or frictionless contact is solved in closed form. The globalization starts afresh. Small problems are given to
        Lemke's method: it is complete for d = 0, and for d = 1 together with the search of all modes of up to 8 contacts; for d = 2
        friction cones of six edges close in on the directions of slip, each time followed by Newton steps. In a batch the few problems
        that need it are gathered, so that the rest does not wait for them. Of a large problem small parts that have nothing to do with
        the rest are problems of their own, and the rest is left to `InteriorPoint`. Contacts with several discs follow paths of the same
        kind. Where there is a least normal percussion as well, and many contacts, sweeps of nonlinear block Gauss-Seidel alternate with
        Newton steps.

        With ``refine`` a guess that solves the problem to the tolerance takes one Newton step all the same, which brings it to round-off.
        """
        if large(problem):
            most = SMALL * problem.n // size(problem)
            parts = functools.partial(apart.solve, most=most, solve_part=self.solve)
            return self.interior().solve(problem, guess, refine=refine, apart=parts)
        if single.takes(problem):
            return self.in_closed_form(problem.unpacked(), guess)
        if problem.redundant and size(problem) <= SMALL and not interior(problem):
            problem = problem.packed()
            result, eps = in_one_loop(self, problem, refine)(problem.arrays(), guess), float(jnp.finfo(problem.dtype).eps)
            return sharing.shared(problem, result, self.equations, eps**REDUNDANT) if sharing.takes(problem) else result
        return self.one_after_the_other(problem, guess, refine)

    def equations(self, problem: Problem) -> Equations:
        """The equations of a problem of JAX arrays."""
        return Equations(problem, self, problem.dtype, keeps=True)

    def yielding(self, problem: Problem, z: Rows) -> tuple[Rows, Rows | None]:
        """`sharing.yielding` of small problems."""
        if not sharing.takes(problem) or size(problem) > SMALL:
            return z, None
        return sharing.yielding(problem, z, self.equations)

    def in_closed_form(self, problem: Problem, guess: Rows) -> Result:
        """The solution of a single planar or frictionless contact, ``problem`` unpacked."""
        equations = Equations(problem, self, problem.dtype)
        point, error = equations.at(single.solve(problem, linalg.unpack(guess)))
        z = linalg.from_leaves(point.z)
        z = z if linalg.is_unpacked(guess) else linalg.pack(z)
        return Result(z, jnp.ones((), jnp.int32), error, point.largest, equations.worst(point, error))

    def one_after_the_other(self, problem: Problem, guess: Rows, refine: bool, keeps: bool = False) -> Result:
        """Newton's method, and then its globalization; ``keeps`` as in `Equations`."""
        equations = Equations(problem, self, problem.dtype, keeps, excuses=not self.max_rescues)
        start, error = equations.at(guess)
        start = (start, jnp.full_like(error, jnp.inf) if refine else error)
        shift = float(jnp.finfo(problem.dtype).eps) ** REDUNDANT if problem.redundant else None
        newton, error, iterations = equations.improved(*start, self.max_iterations, shift, refine)
        z, largest = linalg.from_leaves(newton.z), newton.largest
        if not self.max_rescues:
            contact = equations.worst(newton, error)
        else:
            rescued = rescue(self, problem.d, problem.sizes)
            z, error, largest, iterations, contact = rescued(problem.packed().arrays(), linalg.pack(z), error, largest, iterations)
            if linalg.is_unpacked(guess):
                z = linalg.unpack(z)
        return Result(z, iterations, error, largest, contact)


def solve(problem, guess, solver, *, refine=False):
    """`Result` of a `Problem`, unpacked or not, by a ``solver`` that need not know of unpacked problems."""
    if solver.unpacked:
        return solver.solve(problem, guess, refine=refine)
    if not linalg.is_unpacked(guess):
        return returned(solver, solver.solve(problem, guess, refine=refine), guess)
    guess = linalg.pack(guess)
    result = returned(solver, solver.solve(problem.packed(), guess, refine=refine), guess)
    return result._replace(z=linalg.unpack(result.z))


def returned(solver, result, guess):
    """The `Result` that a solver of one's own has returned, looked at while it is traced."""
    call = f"{type(solver).__name__}.solve"
    if not isinstance(result, Result):
        raise TypeError(f"{call} must return a jaxnsd.contact.Result, got {type(result).__name__}")
    if jnp.shape(result.z) != guess.shape or jnp.result_type(result.z) != guess.dtype:
        wanted, got = (f"{jnp.result_type(x)} of shape {jnp.shape(x)}" for x in (guess, result.z))
        raise ValueError(f"{call} must return percussions z like the guess, {wanted}, got {got}")
    kinds = Result(guess.dtype, jnp.int32, guess.dtype, guess.dtype, jnp.int32)
    return Result(*map(jnp.asarray, result, kinds))


def response(problem, z, xi, dxi, dmu, solver, dleast=None):
    """Derivative of the solution of a `Problem`, unpacked or not, by the ``solver`` (see `AbstractContactSolver.response`)."""
    args = (z, xi, dxi, dmu) if dleast is None else (z, xi, dxi, dmu, dleast)
    if solver.unpacked or not linalg.is_unpacked(z):
        return solver.response(problem, *args)
    return linalg.unpack(solver.response(problem.packed(), *map(linalg.pack, args)))


def in_one_loop(settings, problem, refine):
    """Function that solves a problem of redundant contacts by Newton's method and its globalization, of which it is the first attempt.

    In one loop they are compiled in two thirds of the time; in a batch one comes after the other, so that the rest does not wait.
    """
    static = problem.static

    def one_after_the_other(arrays, guess):
        return settings.one_after_the_other(arrays._replace(**static), guess, refine)

    def solved(arrays, guess):
        problem = arrays._replace(**static)
        if not settings.max_rescues:
            return settings.one_after_the_other(problem, guess, refine, keeps=True)
        return settings.equations(problem).solve(guess, settings, refine)

    def batched(axis_size, in_batched, *args):
        axes = jax.tree.map(lambda batched: 0 if batched else None, in_batched)
        return jax.vmap(one_after_the_other, tuple(axes), axis_size=axis_size)(*args)

    return batched_by(solved, batched)


@functools.lru_cache(maxsize=64)
def rescue(settings, d, sizes):
    """Function that globalizes an unsolved problem; under `vmap` it gathers the unsolved ones.

    Known by its settings, so that it is traced once for all systems with so many contacts.
    """

    def one(arrays, z, error, largest, iterations):
        equations = Equations(arrays._replace(d=d, sizes=sizes), settings, z.dtype)
        best, error, more = equations.rescue(z, settings)
        return best.z, error, best.largest, iterations + more, equations.worst(best, error)

    def nothing(arrays, z, error, largest, iterations):
        return z, error, largest, iterations, jnp.full_like(iterations, -1)

    def guarded(*args):
        return lax.cond(args[2] > 1, when_needed(one), nothing, *args)

    def batched(axis_size, in_batched, *args):
        args = jax.tree.map(lambda x, varies: x if varies else jnp.broadcast_to(x, (axis_size, *jnp.shape(x))), args, tuple(in_batched))
        # Of a batch that is exported the size may be a symbol.
        chunk = min(CHUNK, axis_size) if isinstance(axis_size, int) else CHUNK
        error, result = args[2], nothing(*args)

        def gather(_):
            pending = error > 1
            order = jnp.nonzero(pending, size=axis_size + chunk, fill_value=axis_size)[0]

            def body(k, result):
                index = lax.dynamic_slice_in_dim(order, k * chunk, chunk)
                piece = jax.tree.map(lambda x: x.at[index].get(mode="clip"), args)
                # Lanes that only fill the chunk must not keep it busy.
                piece = (*piece[:2], jnp.where(index < axis_size, piece[2], 0), *piece[3:])
                done = jax.vmap(one)(*piece)
                return jax.tree.map(lambda x, y: x.at[index].set(y, mode="drop"), result, done)

            return lax.fori_loop(0, (jnp.sum(pending) + chunk - 1) // chunk, body, result)

        return lax.cond(jnp.any(error > 1), gather, lambda _: result, None)

    return batched_by(guarded, batched)
