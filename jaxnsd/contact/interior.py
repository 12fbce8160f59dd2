"""Problems of many contacts: an interior point method to come near, a semismooth Newton method to finish.

Hyperstatic problems, those of a wall or a pile, take methods of first order thousands of iterations, and Newton's method cycles among
the many modes of their contacts. An interior point method meets none of these: it takes 10 to 20 Newton steps, whatever the number of
contacts. With ``p = (mu P_N, P_F)`` and ``u = (xi_N / mu + |xi_F|, xi_F)`` Coulomb's law is that of complementarity on a cone (De Saxce
& Feng 1998), here of a smoothed path along which the product falls to zero,

    p o u = nu (1, 0),    p, u in the cone |x_F| <= x_N,    u = T (G P + c) + sqrt(|xi_F|^2 + (nu / 100)^2) (1, 0)

Every step linearizes all of it, the norm of the slip included, in the scaling of Nesterov & Todd, with Mehrotra's predictor and
corrector: one factorization of G plus blocks on the diagonal, singular G or not.

The law is not that of a minimum, so a path may end before the solution. Then sweeps of nonlinear block Gauss-Seidel come near, which
cost little: some hundred of them as much as one path.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ..numerics import linalg, thresholds
from ..numerics.newton import iterate
from . import cones
from .abstract import AbstractContactSolver, Result, settings
from .operators import Dense, internal, per_contact
from .problem import Problem, Rows
from .prox import prox_ball

#: Friction coefficients, in units of the contact's own scales, below which the path is followed without friction: Newton's method adds it.
SMOOTH = 1e-6
#: Part of the way to the boundary of the cones that a step takes.
STEP = 0.99
#: What a path is smoothed by, as a part of the product nu, the nu from which on its steps see how the slip changes, and the part of this
#: change that they see: one path after the other. Of 29 problems of 30 to 120 contacts the first leads to all solutions. Steps that see
#: but a part need more of them, and do not stop where a path bends back: of 300 spheres in a box one pile in three is solved by the second.
PATHS = ((0.01, 0.1, 1.0), (0.1, 10.0, 0.8), (0.1, 10.0, 1.0), (0.01, 10.0, 0.5), (1.0, 0.1, 1.0), (0.01, 0.01, 1.0))
#: Natural map, relative, at which Newton's method takes over; each time that it fails it waits for so much less of it.
NEAR, NEARER = 1e-3, 0.03
#: Steps along the path, and Newton steps, at a time.
PATH, POLISH = 40, 12
#: Sweeps of Gauss-Seidel in the place of a path that has come to an end, twice as many each time up to the most, and steps at a contact.
SWEEPS, MOST, LOCAL = 250, 4000, 3
#: Shift of Newton's matrix, which redundant contacts make singular: of entries of order one, a power of the machine precision.
SHIFT = 0.5
#: Steps of iterative refinement that take back what the shift does to a derivative.
REFINEMENTS = 2


class Path(NamedTuple):
    """A point near the path."""

    p: jax.Array  # (n, d + 1)
    u: jax.Array
    kind: jax.Array  # which of PATHS it is
    moving: jax.Array  # whether the last step was one


class Law:
    """The contact law of a problem in units in which the Delassus operator of every contact, and the largest free velocity, is one.

    ``P = unit s z``; in these units ``xi = G z + c``, where G is that of the ``operator`` with rows and columns scaled. Contacts that are
    not active have a G of zeros, and are free to leave.
    """

    def __init__(self, operator, c, mu, active, r=None, rounding=None):
        self.operator = operator
        m = c.shape[1]
        r_N, r_F = operator.scale() if r is None else (r[0], r[1][:, 0] if m > 1 else r[0])
        s_N, s_F = jnp.sqrt(r_N), jnp.sqrt(r_F)
        self.s = jnp.concatenate([s_N[:, None], jnp.broadcast_to(s_F[:, None], (len(c), m - 1))], axis=1)
        self.one = jnp.broadcast_to(jnp.eye(m, dtype=c.dtype)[0], c.shape)
        size = jnp.max(jnp.where(active[:, None], jnp.abs(self.s * c), 0))
        self.unit = jnp.where(size > 0, size, 1)
        self.c = jnp.where(active[:, None], self.s * c / self.unit, self.one)
        self.mu = jnp.where(active, mu * s_N / s_F, 0)
        self.rounding = None if rounding is None else self.s * rounding / self.unit

    def product(self, z):
        """``G z``."""
        return self.s * self.operator.apply(self.s * z)

    def xi(self, z):
        """Kinematic quantities."""
        return self.product(z) + self.c

    def factor(self, A, B):
        """Function f -> x with ``A G x + B x = f``."""
        solve = self.operator.factor(A * self.s[:, None, :], B / self.s[:, None, :])
        return lambda f: solve(f) / self.s

    def sweep(self, z):
        """One sweep of nonlinear block Gauss-Seidel (Jean & Moreau 1992): the contacts in turn, each with the percussions of all others."""

        def invert(g):
            return jnp.where(g > 0, 1 / cones.positive(g), 0)

        def visit(i, y):
            s, mu = self.s[i], self.mu[i]
            change, block = self.operator.row(i, y)
            xi, block, z = s * change + self.c[i], s[:, None] * block * s[None, :], y[i] / s
            # Row sums bound the eigenvalues of the tangential block.
            r_N, r_F = map(invert, (block[0, 0], jnp.max(jnp.sum(jnp.abs(block[1:, 1:]), axis=1), initial=0)))

            def local(_, x):
                at = xi + linalg.matmul(block, x - z)
                x_N = jnp.maximum(x[0] - r_N * at[0], 0)
                x_F = x[1:] - r_F * (at[1:] + block[1:, 0] * (x_N - x[0]))
                return jnp.concatenate([x_N[None], prox_ball(x_F, mu * x_N)])

            return lax.dynamic_update_index_in_dim(y, s * lax.fori_loop(0, LOCAL, local, z), i, 0)

        return lax.fori_loop(0, z.shape[0], visit, self.s * z) / self.s

    def project(self, x):
        """Half line and disc of radius ``mu x_N``, (n, d + 1): the natural map is ``z - project(z - xi)``."""
        radius = self.mu * jnp.maximum(x[:, 0], 0)
        length = jnp.sqrt(jnp.sum(x[:, 1:] ** 2, axis=1))
        factor = jnp.where(length >= radius, radius / cones.positive(length), 1)
        return jnp.concatenate([jnp.maximum(x[:, :1], 0), factor[:, None] * x[:, 1:]], axis=1)

    def natural_map(self, z):
        """``z - project(z - xi)``, (n, d + 1): as xi itself where the law holds as xi = 0, so that a large z does not swallow it."""
        xi = self.xi(z)
        x = z - xi
        length = jnp.sqrt(jnp.sum(x[:, 1:] ** 2, axis=1))
        sticks = length < self.mu * jnp.maximum(x[:, 0], 0)
        held = jnp.concatenate([x[:, :1] > 0, jnp.broadcast_to(sticks[:, None], x[:, 1:].shape)], axis=1)
        return jnp.where(held, xi, z - self.project(x))

    def slope(self, x):
        """Blocks of an element of the generalized Jacobian of `project`, and its derivative by mu, (n, d + 1)."""
        closed = x[:, 0] > 0
        radius = self.mu * jnp.maximum(x[:, 0], 0)
        length = jnp.sqrt(jnp.sum(x[:, 1:] ** 2, axis=1))
        direction = x[:, 1:] / cones.positive(length)[:, None]
        slips = closed & (length >= radius)
        eye = jnp.eye(x.shape[1] - 1, dtype=x.dtype)[None]
        turning = (radius / cones.positive(length))[:, None, None] * (eye - direction[:, :, None] * direction[:, None, :])
        friction = jnp.where(slips[:, None, None], turning, jnp.where(closed[:, None, None], eye, 0))
        normal = jnp.where(closed, 1, 0).astype(x.dtype)
        by_normal = jnp.where(slips, self.mu, 0)[:, None] * direction
        by_mu = jnp.where(slips, jnp.maximum(x[:, 0], 0), 0)[:, None] * direction
        first = jnp.concatenate([normal[:, None], jnp.zeros_like(by_normal)], axis=1)
        blocks = jnp.concatenate([first[:, None, :], jnp.concatenate([by_normal[:, :, None], friction], axis=2)], axis=1)
        return blocks, jnp.concatenate([jnp.zeros_like(normal)[:, None], by_mu], axis=1)

    def bound(self, z, tolerance):
        """Bound of every row of the natural map: relative to what the row is made of, a disc's radius included."""
        z = jnp.abs(z)
        terms = self.with_radius(z + self.s * self.operator.sizes(self.s * z) + jnp.abs(self.c))
        # A contact that nothing acts on has no terms: a part of those of the others, far below their round-off.
        least = tolerance * float(jnp.finfo(z.dtype).eps) ** 0.5
        bound = jnp.minimum(tolerance * terms, thresholds.violation(tolerance, z.dtype)) + least
        return bound if self.rounding is None else bound + self.with_radius(self.rounding)

    def with_radius(self, rows):
        """Sizes of rows, with that of the radius of the disc in those of its directions."""
        return jnp.concatenate([rows[:, :1], (self.mu * rows[:, 0])[:, None] + rows[:, 1:]], axis=1)


class Follower:
    """Steps along the path of a `Law`, and Newton steps from a point of it."""

    def __init__(self, law, tolerance):
        self.law, self.tolerance = law, tolerance
        m = law.c.shape[1]
        dtype, friction = law.c.dtype, (law.mu > SMOOTH)[:, None]
        # What has no friction is a half line: the cone's other entries stay zero.
        self.t = jnp.where(friction, jnp.where(law.one > 0, 1 / jnp.where(friction, law.mu[:, None], 1), 1), law.one)
        self.eye, self.one = jnp.eye(m, dtype=dtype)[None], law.one

    def start(self, kind):
        """Where a path begins."""
        return Path(self.one, self.one, jnp.asarray(kind, jnp.int32), jnp.ones((), bool))

    def residual(self, z):
        """Natural map in the units of the law, and its largest entry over the bound."""
        F = self.law.natural_map(z)
        return F, jnp.max(jnp.abs(F) / self.law.bound(z, self.tolerance))

    def size(self, z):
        """Largest entry of the natural map."""
        return jnp.max(jnp.abs(self.residual(z)[0]))

    def advance(self, path):
        """One step along the path: Mehrotra's predictor and corrector."""
        p, u, kind, _ = path
        n = p.shape[0]
        smoothing, bend, part = jnp.asarray(PATHS, p.dtype)[kind % len(PATHS)]
        nu = jnp.sum(p * u) / n
        xi = self.t * self.law.xi(self.t * p)
        # The norm of the slip, smoothed, and its slope.
        norm = jnp.sqrt(jnp.sum(xi[:, 1:] ** 2, axis=1) + (smoothing * nu) ** 2)
        slope = jnp.where(nu < bend, part / cones.positive(norm), 0)[:, None] * xi[:, 1:]
        gap = xi + norm[:, None] * self.one - u
        w = cones.scaling_point(p, u)
        root = cones.root(w)
        forth, back = cones.quadratic(root), cones.quadratic(cones.inverse(root))
        stretch = cones.quadratic(cones.inverse(w))
        middle = times(back, p)
        # u + du = xi + G dp + norm + slope (du_F without the norm): S^-1 du = G dp + gap
        S = self.eye - self.one[:, :, None] * jnp.concatenate([jnp.zeros((n, 1), p.dtype), slope], axis=1)[:, None, :]
        B = matmuls(S, stretch)
        # The unknown is t dp, or dp where t is zero; the rows are scaled to order one.
        t = jnp.where(self.t > 0, self.t, 1)
        row = 1 / (self.t**2 + jnp.abs(jnp.diagonal(B, axis1=1, axis2=2)))
        solve = self.law.factor((row * self.t)[:, :, None] * self.eye, row[:, :, None] * B / t[:, None, :])

        def towards(target):
            rhs = times(back, cones.quotient(middle, target))
            dp = solve(row * (times(S, rhs) - gap)) / t
            return dp, rhs - times(stretch, dp)

        square = cones.product(middle, middle)
        dp, du = towards(-square)
        length = jnp.minimum(1, jnp.minimum(cones.reach(p, dp), cones.reach(u, du)))
        ratio = jnp.sum((p + length * dp) * (u + length * du)) / (n * nu)
        centre = jnp.clip(ratio, 0, 1) ** 3
        dp, du = towards(centre * nu * self.one - square - cones.product(times(back, dp), times(forth, du)))
        length = jnp.minimum(1, STEP * jnp.minimum(cones.reach(p, dp), cones.reach(u, du)))
        p, u = p + length * dp, u + length * du
        moving = jnp.all(jnp.isfinite(p)) & jnp.all(jnp.isfinite(u))
        return Path(jnp.where(moving, p, path.p), jnp.where(moving, u, path.u), kind, moving)

    def newton(self, z, shift):
        """One step of the semismooth Newton method, with a shift of its matrix."""
        A, _ = self.law.slope(z - self.law.xi(z))
        F, _ = self.residual(z)
        return z - self.law.factor(A, (1 + shift) * self.eye - A)(F)


def response(problem, z, xi, dxi, dmu):
    """The derivative of `problem.response`, for problems of many contacts: one factorization.

    Redundant contacts leave their single percussions open: what is returned changes them least. The matrix is shifted to be regular, and
    what the shift has done to the part that is determined is taken back by iterative refinement.
    """
    rows = partial(per_contact, n=problem.n, d=problem.d)
    z, xi, dxi = map(rows, (z, xi, dxi))
    law = Law(Dense.of(problem), jnp.zeros_like(z), problem.mu, problem.active, problem.r)
    return internal(respond(law, problem.active, z, xi, dxi, dmu))


def respond(law, active, z, xi, dxi, dmu):
    """The same with rows per contact, of a `Law`."""
    eye = jnp.eye(z.shape[1], dtype=z.dtype)[None]
    A, by_mu = law.slope(jnp.where(active[:, None], z / law.s - law.s * xi, -law.one))
    rhs = by_mu * (dmu * law.s[:, 0] / law.s[:, -1])[:, None] - times(A, law.s * dxi)
    solve = law.factor(A, (1 + float(jnp.finfo(z.dtype).eps) ** SHIFT) * eye - A)
    dz = solve(rhs)
    for _ in range(REFINEMENTS):
        dz = dz + solve(rhs - times(A, law.product(dz)) - times(eye - A, dz))
    return law.s * dz


def times(blocks, x):
    """Products of blocks and rows."""
    return jnp.sum(blocks * x[:, None, :], axis=2)


def matmuls(a, b):
    """Products of blocks."""
    return jnp.sum(a[:, :, :, None] * b[:, None, :, :], axis=2)


class Search(NamedTuple):
    """Where a solution is looked for."""

    path: Path
    near: jax.Array  # natural map at which Newton's method is tried next
    swept: jax.Array  # percussions that the sweeps have come to
    sweeps: jax.Array  # how many come next
    sweeping: jax.Array  # whether it is their turn
    z: jax.Array  # best percussions so far
    error: jax.Array
    iterations: jax.Array


def follow(law, tolerance, z, error, attempts):
    """``(z, error, iterations)`` of a problem: the best of the guess and of what paths and sweeps lead to, in so many attempts."""
    follower = Follower(law, tolerance)
    shift = float(jnp.finfo(z.dtype).eps) ** SHIFT

    def advance(search):
        def step(carry):
            path, _ = carry
            path = follower.advance(path)
            size = follower.size(follower.t * path.p)
            return (path, size), jnp.where(path.moving, size / search.near, 0)

        size = follower.size(follower.t * search.path.p)
        (path, size), _, steps = iterate(step, (search.path, size), size / search.near, PATH)
        # A path that comes nearer is followed on; else it is the turn of sweeps, and then of another path.
        ahead = path.moving & (size < search.near)
        following = jax.tree.map(lambda a, b: jnp.where(ahead, a, b), path, follower.start(path.kind + 1))
        near = jnp.where(ahead, NEARER * size, NEAR)
        return search._replace(path=following, near=near, sweeping=~ahead), follower.t * path.p, steps

    def sweep(search):
        swept = lax.fori_loop(0, search.sweeps, lambda _, z: law.sweep(z), search.swept)
        more = jnp.minimum(2 * search.sweeps, MOST)
        return search._replace(swept=swept, sweeps=more, sweeping=~search.sweeping), swept, search.sweeps

    def polish(z):
        z = follower.newton(z, shift)
        return z, follower.residual(z)[1]

    def attempt(search):
        search, z, steps = lax.cond(search.sweeping, sweep, advance, search)
        z, error, more = iterate(polish, z, follower.residual(z)[1], POLISH)
        better = error < search.error
        z, error = jnp.where(better, z, search.z), jnp.where(better, error, search.error)
        return search._replace(z=z, error=error, iterations=search.iterations + steps + more), error

    zero = jnp.zeros((), jnp.int32)
    start = Search(follower.start(0), jnp.asarray(NEAR, z.dtype), jnp.zeros_like(z), zero + SWEEPS, zero > 0, z, error, zero)
    search, _, _ = iterate(attempt, start, error, attempts)
    return search.z, search.error, search.iterations


@dataclass(frozen=True)
class InteriorPoint(AbstractContactSolver):
    """Solver of problems of many contacts: a few Newton steps from the guess, else along a path through the interior of the cones.

    tolerance:       as in `SemismoothNewton`
    max_iterations:  bound of the Newton iterations from the guess; they end as soon as two of them do not halve the error
    max_attempts:    how often Newton's method may take over from a path, or from sweeps
    max_outer:       as in `SemismoothNewton`
    """

    tolerance: float | None = None
    max_iterations: int = 10
    max_attempts: int = 12
    max_outer: int = 20

    def __post_init__(self):
        settings(self, at_least={"max_iterations": 1, "max_outer": 1, "max_attempts": 0})

    def solve(self, problem: Problem, guess: Rows, *, refine: bool = False, apart: Callable[..., Any] | None = None) -> Result:
        """`Result` of a `Problem` of JAX arrays; ``apart``: what is tried between Newton's method and the paths, see `apart.solve`."""
        n, d = problem.n, problem.d
        law, z = law_of(problem), per_contact(guess, n, d)
        if not (apart and self.max_attempts):
            result = self.find(law, z, problem.active, refine)
            return result._replace(z=internal(result.z))
        near = replace(self, max_attempts=0).find(law, z, problem.active, refine)
        z, solved, more = apart(problem, internal(near.z), near.error > 1)
        rest = law_of(problem._replace(active=problem.active & ~solved))
        found = self.find(rest, per_contact(z, n, d), problem.active & ~solved, tries=False)
        z = jnp.where(solved[:, None], per_contact(z, n, d), found.z)
        result = self.told(law, z, problem.active)
        return result._replace(z=internal(result.z), iterations=near.iterations + more + found.iterations)

    def interior(self) -> "InteriorPoint":
        """The solver of large problems."""
        return self

    def response(self, problem: Problem, z: Rows, xi: Rows, dxi: Rows, dmu: Rows) -> Rows:
        """Derivative dz of the solution."""
        return response(problem, z, xi, dxi, dmu)

    def find(self, law: "Law", z: jax.Array, active: jax.Array, refine: bool = False, tries: bool = True) -> Result:
        """`Result` with rows per contact, from a guess; ``tries``: whether by Newton's method first."""
        tolerance, scale = self.tolerance_for(z.dtype), law.s * law.unit
        follower, shift = Follower(law, tolerance), float(jnp.finfo(z.dtype).eps) ** SHIFT
        z = z / scale

        def newton(carry):
            z, error, best, waste = carry
            z = follower.newton(z, shift)
            error = follower.residual(z)[1]
            waste = jnp.where(error < 0.5 * best, 0, waste + 1)
            return (z, error, jnp.minimum(best, error), waste), jnp.where(waste < 2, error, jnp.where(error <= 1, error, -1))

        error, iterations = follower.residual(z)[1], jnp.zeros((), jnp.int32)
        if tries:
            start = (z, error, error, 0), jnp.full_like(error, jnp.inf) if refine else error
            (z, error, _, _), _, iterations = iterate(newton, *start, self.max_iterations)
        if self.max_attempts:
            z, error, more = follow(law, tolerance, z, error, self.max_attempts)
            iterations = iterations + more
        return self.told(law, z * scale, active)._replace(iterations=iterations)

    def told(self, law: "Law", z: jax.Array, active: jax.Array) -> Result:
        """`Result` of percussions, rows per contact."""
        tolerance, scale = self.tolerance_for(z.dtype), law.s * law.unit
        z = jnp.where(active[:, None], z / scale, 0)
        F, error = Follower(law, tolerance).residual(z)
        worst = jnp.max(jnp.abs(F) / law.bound(z, tolerance), axis=1)
        contact = jnp.where(error <= 1, -1, jnp.argmax(worst).astype(jnp.int32))
        return Result(z * scale, jnp.zeros((), jnp.int32), error, jnp.max(scale * jnp.abs(F)), contact)


def law_of(problem):
    """`Law` of a `Problem`."""
    c, rounding = (None if x is None else per_contact(x, problem.n, problem.d) for x in (problem.c, problem.rounding))
    return Law(Dense.of(problem), c, problem.mu, problem.active, problem.r, rounding)
