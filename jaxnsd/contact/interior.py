"""Problems of many contacts: an interior point method to come near, a semismooth Newton method to finish.

Hyperstatic problems, those of a wall or a pile, take methods of first order thousands of iterations, and Newton's method cycles among
the many modes of their contacts. An interior point method meets none of these: it takes 10 to 20 Newton steps, whatever the number of
contacts. With ``p = (mu P_N, P_F)`` and ``u = (xi_N / mu + |xi_F|, xi_F)`` Coulomb's law is that of complementarity on a cone (De Saxce
& Feng 1998), here of a smoothed path along which the product falls to zero,

    p o u = nu (1, 0),    p, u in the cone |x_F| <= x_N,    u = T (G P + c) + sqrt(|xi_F|^2 + (nu / 100)^2) (1, 0)

A contact with several discs has such a cone for each of them, all with the one P_N: their points ``u`` share xi_N in any way that makes
the sum of ``mu u_N`` over the discs ``xi_N + sum mu |xi_F|``.

Every step linearizes all of it, the norm of the slip included, in the scaling of Nesterov & Todd, with Mehrotra's predictor and
corrector: one factorization of G plus blocks on the diagonal, singular G or not.

The law is not that of a minimum, so a path may end before the solution. Then sweeps of nonlinear block Gauss-Seidel come near, which
cost little: some hundred of them as much as one path.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..numerics import linalg, thresholds
from ..numerics.newton import iterate
from . import cones
from .abstract import AbstractContactSolver, Result, settings
from .operators import Dense, internal, per_contact
from .problem import Problem, Rows, columns
from .prox import prox_ball

#: Friction coefficients, in units of the contact's own scales, below which the path is followed without friction: Newton's method adds it.
SMOOTH = 1e-6
#: Part of the way to the boundary of the cones that a step takes.
STEP = 0.99
#: What a path is smoothed by, as a part of the product nu, the nu from which on its steps see how the slip changes, and the part of this
#: change that they see: one path after the other. Most problems are solved by the first. Steps that see but a part need more of them, and
#: do not stop where a path bends back: of 300 spheres in a box one pile in three is solved by the second.
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

    z: jax.Array  # (n, d + 1) percussions, which tell all p
    u: tuple  # (n, size + 1) of every disc
    kind: jax.Array  # which of PATHS it is
    moving: jax.Array  # whether the last step was one


class Law:
    """The contact law of a problem in units in which the Delassus operator of every contact, and the largest free velocity, is one.

    ``P = unit s z``; in these units ``xi = G z + c``, where G is that of the ``operator`` with rows and columns scaled. Contacts that are
    not active have a G of zeros, and are free to leave.

    mu:    (n,), or (n, number of discs)
    sizes: directions of every disc; None: there is one disc
    """

    def __init__(self, operator, c, mu, active, r=None, rounding=None, sizes=None):
        self.operator = operator
        n, m = c.shape
        self.parts = columns(m - 1, sizes, first=1)
        r_N, r_F = operator.scale(self.parts) if r is None else r
        self.s = jnp.sqrt(jnp.concatenate([r_N[:, None], r_F], axis=1))
        self.one = jnp.broadcast_to(jnp.eye(m, dtype=c.dtype)[0], c.shape)
        size = jnp.max(jnp.where(active[:, None], jnp.abs(self.s * c), 0))
        self.unit = jnp.where(size > 0, size, 1)
        self.c = jnp.where(active[:, None], self.s * c / self.unit, self.one)
        mu = jnp.where(active[:, None], mu.reshape(n, -1), 0)
        #: Friction coefficients (n,) of every disc
        self.mu = [self.in_units(mu[:, k], k) for k in range(len(self.parts))]
        self.rounding = None if rounding is None else self.s * rounding / self.unit

    def in_units(self, mu, k):
        """Friction coefficients (n,) of disc k in the units of the law."""
        return mu * self.s[:, 0] / self.s[:, self.parts[k].start]

    @property
    def discs(self):
        """``(columns, mu (n,))`` of every disc."""
        return list(zip(self.parts, self.mu, strict=True))

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
            s = self.s[i]
            change, block = self.operator.row(i, y)
            xi, block, z = s * change + self.c[i], s[:, None] * block * s[None, :], y[i] / s
            # Row sums bound the eigenvalues of the tangential block.
            r_N, r_F = map(invert, (block[0, 0], jnp.max(jnp.sum(jnp.abs(block[1:, 1:]), axis=1), initial=0)))

            def local(_, x):
                at = xi + linalg.matmul(block, x - z)
                x_N = jnp.maximum(x[0] - r_N * at[0], 0)
                x_F = x - r_F * (at + block[:, 0] * (x_N - x[0]))
                return jnp.concatenate([x_N[None], *(prox_ball(x_F[part], mu[i] * x_N) for part, mu in self.discs)])

            return lax.dynamic_update_index_in_dim(y, s * lax.fori_loop(0, LOCAL, local, z), i, 0)

        return lax.fori_loop(0, z.shape[0], visit, self.s * z) / self.s

    def project(self, x):
        """Half line and discs of radius ``mu x_N``, (n, d + 1): the natural map is ``z - project(z - xi)``."""
        x_N = jnp.maximum(x[:, 0], 0)
        return jnp.concatenate([x_N[:, None], *(prox_ball(x[:, part], mu * x_N) for part, mu in self.discs)], axis=1)

    def natural_map(self, z):
        """``z - project(z - xi)``, (n, d + 1): as xi itself where the law holds as xi = 0, so that a large z does not swallow it."""
        xi = self.xi(z)
        x = z - xi
        held = [x[:, :1] > 0]
        for part, mu in self.discs:
            sticks = length(x[:, part]) < mu * jnp.maximum(x[:, 0], 0)
            held.append(jnp.broadcast_to(sticks[:, None], x[:, part].shape))
        return jnp.where(jnp.concatenate(held, axis=1), xi, z - self.project(x))

    def slope(self, x):
        """Blocks of an element of the generalized Jacobian of `project`, and its derivatives by mu, (n, d + 1) with columns as x."""
        n, m = x.shape
        closed, x_N = x[:, 0] > 0, jnp.maximum(x[:, 0], 0)
        rows, by_mu = [jnp.where(closed[:, None], self.one, 0)[:, None, :]], [jnp.zeros_like(x[:, :1])]
        for part, mu in self.discs:
            x_F, eye = x[:, part], np.eye(m)[part]
            norm = cones.positive(length(x_F))
            direction = x_F / norm[:, None]
            slips = closed & (length(x_F) >= mu * x_N)
            square = jnp.asarray(eye[:, part], x.dtype)[None] - direction[:, :, None] * direction[:, None, :]
            turning = matmuls((mu * x_N / norm)[:, None, None] * square, jnp.broadcast_to(jnp.asarray(eye, x.dtype), (n, *eye.shape)))
            turning = turning + (mu[:, None] * direction)[:, :, None] * self.one[:, None, :]
            rows.append(jnp.where(slips[:, None, None], turning, jnp.where(closed[:, None, None], jnp.asarray(eye, x.dtype), 0)))
            by_mu.append(jnp.where(slips, x_N, 0)[:, None] * direction)
        return jnp.concatenate(rows, axis=1), jnp.concatenate(by_mu, axis=1)

    def bound(self, z, tolerance):
        """Bound of every row of the natural map: relative to what the row is made of, a disc's radius included."""
        z = jnp.abs(z)
        terms = self.with_radius(z + self.s * self.operator.sizes(self.s * z) + jnp.abs(self.c))
        # A contact that nothing acts on has no terms: a part of those of the others, far below their round-off.
        least = tolerance * float(jnp.finfo(z.dtype).eps) ** 0.5
        bound = jnp.minimum(tolerance * terms, thresholds.violation(tolerance, z.dtype)) + least
        return bound if self.rounding is None else bound + self.with_radius(self.rounding)

    def with_radius(self, rows):
        """Sizes of rows, with that of the radius of a disc in those of its directions."""
        return jnp.concatenate([rows[:, :1], *((mu * rows[:, 0])[:, None] + rows[:, part] for part, mu in self.discs)], axis=1)


class Cone:
    """The cone of one disc of every contact: ``p = (mu z_N, z_F)``, with a matrix E of single entries ``p = E z``.

    Where there is no friction its first entry alone is left, a half line, or nothing, and then p and u are (1, 0) and stay so.
    """

    def __init__(self, part, weight, friction, m):
        dtype, size = weight.dtype, part.stop - part.start
        self.part, self.weight, self.there = part, weight, weight > 0
        self.one = jnp.broadcast_to(jnp.eye(size + 1, dtype=dtype)[0], (len(weight), size + 1))
        self.size = jnp.concatenate([weight[:, None], jnp.broadcast_to(friction[:, None], (len(weight), size)).astype(dtype)], axis=1)
        #: Columns of z that the entries of p are made of
        self.place = jnp.asarray(np.eye(m)[[0, *range(part.start, part.stop)]], dtype)

    def of(self, z):
        """``E z``, (n, size + 1)."""
        return self.size * jnp.concatenate([z[:, :1], z[:, self.part]], axis=1)

    def at(self, z):
        """Point of the cone that belongs to z."""
        return jnp.where(self.there[:, None], self.of(z), self.one)

    def back(self, v):
        """``E^T v``, (n, d + 1)."""
        return jnp.sum((self.size * v)[:, :, None] * self.place[None], axis=1)

    def blocks(self, stretch):
        """``E^T stretch E``, (n, d + 1, d + 1)."""
        E = self.size[:, :, None] * self.place[None]
        return matmuls(E.swapaxes(1, 2), matmuls(stretch, E))

    def power(self, p, u):
        """Sum of ``p . u`` over the contacts that have this cone."""
        return jnp.sum(jnp.where(self.there, jnp.sum(p * u, axis=1), 0))


class Scaling:
    """Nesterov & Todd's scaling of a cone at a point, and what the steps from it are made of."""

    def __init__(self, cone, p, u):
        w = cones.scaling_point(p, u)
        root = cones.root(w)
        self.cone = cone
        self.forth, self.back = cones.quadratic(root), cones.quadratic(cones.inverse(root))
        self.stretch = cones.quadratic(cones.inverse(w))
        self.middle = times(self.back, p)
        self.square = cones.product(self.middle, self.middle)

    def right(self, target):
        """What du is where p does not change, if the product of the two is to change by ``target``."""
        return times(self.back, cones.quotient(self.middle, target))

    def second(self, dp, du):
        """Product of the steps, in the scaling."""
        return cones.product(times(self.back, dp), times(self.forth, du))


class Follower:
    """Steps along the path of a `Law`, and Newton steps from a point of it."""

    def __init__(self, law, tolerance):
        self.law, self.tolerance = law, tolerance
        m = law.c.shape[1]
        discs = law.discs or [(slice(1, 1), jnp.zeros_like(law.s[:, 0]))]
        frictions = [mu > SMOOTH for _, mu in discs]
        bare = ~jnp.any(jnp.stack(frictions), axis=0)
        weights = [jnp.where(f, mu, 0) for f, (_, mu) in zip(frictions, discs, strict=True)]
        # What has no friction is a half line: of the first cone the first entry.
        weights[0] = jnp.where(bare, 1, weights[0])
        self.cones = [Cone(part, w, f, m) for (part, _), w, f in zip(discs, weights, frictions, strict=True)]
        self.count = sum(jnp.sum(cone.there) for cone in self.cones)
        #: Entries of z that are in a cone; the others are zero
        self.free = sum(cone.back(jnp.ones_like(cone.size)) for cone in self.cones) > 0
        self.eye, self.one = jnp.eye(m, dtype=law.c.dtype)[None], law.one

    def start(self, kind):
        """Where a path begins: unit percussions and velocities.

        With unit points of the cones in their place, which a small friction makes large percussions of, it takes more than ten times as
        many steps: of 15 problems of 24 contacts on 14 velocities, friction from 0 to 1, it took 271 at the mean, and takes 13.
        """
        return Path(self.one, tuple(cone.one for cone in self.cones), jnp.asarray(kind, jnp.int32), jnp.ones((), bool))

    def residual(self, z):
        """Natural map in the units of the law, and its largest entry over the bound."""
        F = self.law.natural_map(z)
        return F, jnp.max(jnp.abs(F) / self.law.bound(z, self.tolerance))

    def size(self, z):
        """Largest entry of the natural map."""
        return jnp.max(jnp.abs(self.residual(z)[0]))

    def advance(self, path):
        """One step along the path: Mehrotra's predictor and corrector."""
        z, us, kind, _ = path
        ps = [cone.at(z) for cone in self.cones]
        smoothing, bend, part = jnp.asarray(PATHS, z.dtype)[kind % len(PATHS)]

        def mean(ps, us):
            return sum(cone.power(p, u) for cone, p, u in zip(self.cones, ps, us, strict=True)) / self.count

        nu = mean(ps, us)
        xi = self.law.xi(z)
        # The norms of the slip, smoothed, and their slopes, which belong to the normal rows.
        slope, gap = jnp.zeros_like(z), jnp.where(self.free, xi, 0)
        for cone, u in zip(self.cones, us, strict=True):
            slip = cone.size[:, 1:] * xi[:, cone.part]
            norm = jnp.sqrt(jnp.sum(slip**2, axis=1) + (smoothing * nu) ** 2)
            by_slip = jnp.where(nu < bend, part / cones.positive(norm), 0)[:, None] * slip
            slope = slope + cone.back(jnp.concatenate([jnp.zeros_like(norm)[:, None], by_slip * cone.weight[:, None]], axis=1))
            gap = gap + cone.back(norm[:, None] * cone.one - jnp.where(cone.there[:, None], u, 0))
        scalings = [Scaling(*x) for x in zip(self.cones, ps, us, strict=True)]
        # S G dz + sum E^T stretch E dz = sum E^T rhs - gap, where S adds the slopes; what is in no cone stays zero. Rows of order one.
        S = jnp.where(self.free[:, :, None], self.eye, 0) + self.one[:, :, None] * slope[:, None, :]
        B = sum(cone.blocks(x.stretch) for cone, x in zip(self.cones, scalings, strict=True))
        B = B + jnp.where(self.free, 0, 1)[:, :, None] * self.eye
        row = 1 / (1 + jnp.abs(jnp.diagonal(B, axis1=1, axis2=2)))
        solve = self.law.factor(row[:, :, None] * S, row[:, :, None] * B)

        def towards(targets):
            rhs = [x.right(target) for x, target in zip(scalings, targets, strict=True)]
            dz = solve(row * (sum(cone.back(r) for cone, r in zip(self.cones, rhs, strict=True)) - gap))
            dps = [cone.of(dz) for cone in self.cones]
            dus = [jnp.where(x.cone.there[:, None], r - times(x.stretch, dp), 0) for x, r, dp in zip(scalings, rhs, dps, strict=True)]
            return dz, dps, dus

        def moved(xs, dxs, length):
            return [x + length * dx for x, dx in zip(xs, dxs, strict=True)]

        def reach(dps, dus):
            return functools.reduce(jnp.minimum, map(cones.reach, (*ps, *us), (*dps, *dus)))

        _, dps, dus = towards([-x.square for x in scalings])
        length = jnp.minimum(1, reach(dps, dus))
        centre = jnp.clip(mean(moved(ps, dps, length), moved(us, dus, length)) / nu, 0, 1) ** 3
        dz, dps, dus = towards(
            [centre * nu * x.cone.one - x.square - x.second(dp, du) for x, dp, du in zip(scalings, dps, dus, strict=True)]
        )
        length = jnp.minimum(1, STEP * reach(dps, dus))
        new = Path(z + length * dz, tuple(moved(us, dus, length)), kind, jnp.ones((), bool))
        finite = functools.reduce(jnp.logical_and, [jnp.all(jnp.isfinite(x)) for x in (new.z, *new.u)])
        return jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, path._replace(moving=jnp.zeros((), bool)))

    def along(self, path, near):
        """``(path, size, steps)`` after steps along a path, until it ends or the largest entry of the natural map is ``near``."""

        def step(carry):
            path, _ = carry
            path = self.advance(path)
            size = self.size(path.z)
            return (path, size), jnp.where(path.moving, size / near, 0)

        size = self.size(path.z)
        (path, size), _, steps = iterate(step, (path, size), size / near, PATH)
        return path, size, steps

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
    rows = functools.partial(per_contact, n=problem.n, d=problem.d)
    z, xi, dxi = map(rows, (z, xi, dxi))
    law = Law(Dense.of(problem), jnp.zeros_like(z), problem.mu, problem.active, problem.r, sizes=problem.sizes)
    return internal(respond(law, problem.active, z, xi, dxi, dmu))


def respond(law, active, z, xi, dxi, dmu):
    """The same with rows per contact, of a `Law`."""
    eye = jnp.eye(z.shape[1], dtype=z.dtype)[None]
    A, by_mu = law.slope(jnp.where(active[:, None], z / law.s - law.s * xi, -law.one))
    dmu = dmu.reshape(len(z), -1)
    steps = [by_mu[:, part] * law.in_units(dmu[:, k], k)[:, None] for k, part in enumerate(law.parts)]
    rhs = jnp.concatenate([by_mu[:, :1], *steps], axis=1) - times(A, law.s * dxi)
    solve = law.factor(A, (1 + float(jnp.finfo(z.dtype).eps) ** SHIFT) * eye - A)
    dz = solve(rhs)
    for _ in range(REFINEMENTS):
        dz = dz + solve(rhs - times(A, law.product(dz)) - times(eye - A, dz))
    return law.s * dz


def length(x):
    """Norms of rows."""
    return jnp.sqrt(jnp.sum(x**2, axis=1))


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
        path, size, steps = follower.along(search.path, search.near)
        # A path that comes nearer is followed on; else it is the turn of sweeps, and then of another path.
        ahead = path.moving & (size < search.near)
        following = jax.tree.map(lambda a, b: jnp.where(ahead, a, b), path, follower.start(path.kind + 1))
        near = jnp.where(ahead, NEARER * size, NEAR)
        return search._replace(path=following, near=near, sweeping=~ahead), path.z, steps

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
    return Law(Dense.of(problem), c, problem.mu, problem.active, problem.r, rounding, problem.sizes)
