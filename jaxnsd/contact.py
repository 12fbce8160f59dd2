"""Newton-type impact law with Coulomb friction, and the semismooth Newton method that solves it.

Invariant of everything here: with ``xi = G P + c`` the solution obeys, for every contact i,

    0 <= P_N  _|_  xi_N >= 0,                    -xi_F in the normal cone of the disc of radius mu P_N at P_F

which is the same as the vanishing of the natural map (Capobianco & Eugster 2018, (30), (56), (57); Alart & Curnier 1991)

    P_N - max(0, x_N),      P_F - prox_B(mu max(0, x_N))(x_F),      x_N = P_N - r_N xi_N,  x_F = P_F - r_F xi_F

Inside, percussions are split in ``P_F`` of shape (n, d) and ``P_N`` of shape (n,), and stacked as ``z = (P_F1, ..., P_Fn, P_N)``:
with the tangential rows first, the matrix of Newton's method can be eliminated without row exchanges.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap

from . import linalg
from .linalg import absolute, divide, greater, less, logical_and, logical_not, maximum, multiply, where
from .newton import iterate


class Problem(NamedTuple):
    """A contact problem ``xi = G z + c`` with rows ordered as ``z``; all entries unpacked, or all JAX arrays."""

    G: object  # (n (d + 1), n (d + 1)) Delassus operator
    c: object  # (n (d + 1),)
    mu: object  # (n,)
    active: object  # (n,) boolean: contacts that are not active carry no percussion
    d: int

    @property
    def n(self):
        return self.mu.shape[0]


def split(z, n, d):
    """``(P_N, P_F)`` of shapes (n,) and (n, d) from a vector in internal order."""
    return z[n * d :], z[: n * d].reshape(n, d)


def join(x_N, x_F):
    """Vector in internal order from parts of shapes (n,) and (n, d)."""
    return linalg.concatenate([x_F.reshape(-1), x_N])


def diagonal(G):
    """Diagonal of a matrix, unpacked or not."""
    return np.diagonal(G) if linalg.is_unpacked(G) else jnp.diagonal(G)


def scale(G, n, d):
    """``(r_N, r_F)``, each (n,): the inverse diagonal of the Delassus operator (REFERENCE: r_i = 1 / G_ii), one per disc."""
    g_N, g_F = split(diagonal(G), n, d)
    invert = linalg.elementwise(lambda g: jnp.where(g > 0, 1 / jnp.where(g > 0, g, 1), 1))
    # One r per disc keeps the disc round; the mean of the diagonal is exact for isotropic inertia.
    return invert(g_N), invert(sum(g_F[:, j] for j in range(d)) * (1 / d)) if d else linalg.zeros_like(g_N)


class Modes(NamedTuple):
    """What the natural map sees at a point: modes of the contacts and the pieces its derivative needs."""

    closed: object  # (n,) the normal law holds as xi_N = 0
    stick: object  # (n,) the friction law holds as xi_F = 0
    direction: object  # (n, d) unit vector of P_F where the contact slips
    radius: object  # (n,) radius of the friction disc
    curvature: object  # (n,) radius / |x_F|


def modes_at(problem, r, z, xi):
    """Modes of the contacts at ``z`` with kinematic quantities ``xi``."""
    n, d = problem.n, problem.d
    (P_N, P_F), (xi_N, xi_F), (r_N, r_F) = split(z, n, d), split(xi, n, d), r
    x_N = P_N - r_N * xi_N
    closed = logical_and(problem.active, greater(x_N, 0))
    zero = linalg.zeros_like(x_N)
    radius = where(closed, multiply(problem.mu, x_N), zero)
    x_F = P_F - r_F[:, None] * xi_F
    if d == 1:
        x = x_F[:, 0]
        norm = absolute(x)
        direction = where(less(x, 0), -1.0, 1.0)[:, None]
        curvature = zero  # a disc in one dimension has no curvature
    elif d == 0:
        norm, direction, curvature = zero, x_F, zero
    else:
        square = sum(x_F[:, j] * x_F[:, j] for j in range(d))
        norm = linalg.sqrt(where(greater(square, 0), square, 1.0))
        direction = x_F / norm[:, None]
        curvature = divide(radius, norm)
        norm = where(greater(square, 0), norm, zero)
    # |x| >= radius slips: at radius 0 and x = 0 the zero-force branch must be taken, or Newton's matrix is singular.
    stick = logical_and(closed, less(norm, radius))
    return Modes(closed, stick, direction, radius, curvature)


def natural_map(problem, r, z, xi, modes):
    """Residual of the contact law in units of percussion, in internal order."""
    n, d = problem.n, problem.d
    (P_N, P_F), (xi_N, xi_F), (r_N, r_F) = split(z, n, d), split(xi, n, d), r
    F_N = where(modes.closed, r_N * xi_N, P_N)
    F_F = where(modes.stick[:, None], r_F[:, None] * xi_F, P_F - modes.radius[:, None] * modes.direction)
    return join(F_N, F_F)


def newton_matrix(problem, r, modes):
    """An element of the generalized Jacobian of the natural map (rows of closed contacts combined so that dx_N = dP_N)."""
    G, n, d = problem.G, problem.n, problem.d
    r_N, r_F = r
    m = n * (d + 1)
    eye = np.eye(m)
    rows = []
    G_F = G[: n * d].reshape(n, d, m)
    for i in range(n):
        for a in range(d):
            identity = eye[i * d + a]
            slip = identity - eye[n * d + i] * _array(problem.mu[i] * modes.direction[i, a], G)
            if d > 1:
                for b in range(d):
                    projector = float(a == b) - modes.direction[i, a] * modes.direction[i, b]
                    weight = modes.curvature[i] * projector
                    slip = slip - _array(weight, G) * eye[i * d + b] + _array(weight * r_F[i], G) * G_F[i, b]
            slip = where(_array(modes.closed[i], G), slip, identity)
            rows.append(where(_array(modes.stick[i], G), _array(r_F[i], G) * G_F[i, a], slip))
    for i in range(n):
        rows.append(where(_array(modes.closed[i], G), _array(r_N[i], G) * G[n * d + i], eye[n * d + i]))
    return linalg.stack(rows)


def _array(scalar, like):
    """A scalar in the kind of ``like``, so that it multiplies its rows."""
    if not linalg.is_unpacked(like):
        return scalar
    return linalg.vector([scalar])


def newton_step(problem, r, z, xi, modes, residual):
    """One step of the semismooth Newton method from ``z``."""
    n, d = problem.n, problem.d
    r_N, _ = r
    xi_N, _ = split(xi, n, d)
    F_N, F_F = split(residual, n, d)
    if d:
        slip = logical_and(modes.closed, logical_not(modes.stick))
        correction = where(slip, multiply(problem.mu, r_N * xi_N), linalg.zeros_like(r_N))
        F_F = F_F - correction[:, None] * modes.direction
    return z - linalg.lu(newton_matrix(problem, r, modes), guard=True)(join(F_N, F_F))


def response(problem, z, xi, dxi, dmu):
    """Derivative dz of the solution, for partial derivatives ``dxi`` (at fixed z) and ``dmu``: the implicit function theorem.

    Linear in ``dxi`` and ``dmu``. Where the solution is at a kink (zero slip velocity at the border of the disc, zero percussion at zero
    gap velocity) this is one of its one-sided derivatives.
    """
    n, d = problem.n, problem.d
    r_N, r_F = r = scale(problem.G, n, d)
    modes = modes_at(problem, r, z, xi)
    dxi_N, dxi_F = split(dxi, n, d)
    P_N, _ = split(z, n, d)
    zero = linalg.zeros_like(P_N)
    rhs_N = where(modes.closed, -(r_N * dxi_N), zero)
    stick_F = -(r_F[:, None] * dxi_F)
    slip = logical_and(modes.closed, logical_not(modes.stick))
    slip_F = where(slip, multiply(dmu, P_N), zero)[:, None] * modes.direction
    if d > 1:
        along = sum(modes.direction[:, j] * stick_F[:, j] for j in range(d))
        slip_F = slip_F + where(slip, modes.curvature, zero)[:, None] * (stick_F - along[:, None] * modes.direction)
    rhs_F = where(modes.stick[:, None], stick_F, slip_F)
    return linalg.lu(newton_matrix(problem, r, modes), guard=True)(join(rhs_N, rhs_F))


#: Sweeps of block Gauss-Seidel and Newton steps in one globalized iteration.
SWEEPS, STEPS = 8, 4


def gauss_seidel_sweep(problem, r_N, z):
    """One sweep of nonlinear block Gauss-Seidel: every contact in turn takes a prox step with its own percussions.

    Slow but hard to stop (Jourdan, Alart & Jean 1998): it brings Newton's method near enough to the solution.
    """
    G, c, n, d = problem.G, problem.c, problem.n, problem.d
    P_N, P_F = split(z, n, d)
    P_N, P_F = list(P_N), [list(row) for row in P_F]

    def xi(row):
        entries = [p for contact in P_F for p in contact] + P_N
        return sum((G[row, j] * entries[j] for j in range(len(entries))), c[row])

    for i in range(n):
        x_N = P_N[i] - r_N[i] * xi(n * d + i)
        P_N[i] = jnp.where(problem.active[i] & (x_N > 0), x_N, 0)
        if not d:
            continue
        first, last = i * d, i * d + d - 1
        # Largest eigenvalue of the contact's tangential block: a prox step of its inverse converges for any anisotropy.
        mean, half = 0.5 * (G[first, first] + G[last, last]), 0.5 * (G[first, first] - G[last, last])
        largest = mean + jnp.sqrt(half * half + G[first, last] * G[last, first] + 1e-30) if d == 2 else mean
        r_F = jnp.where(largest > 0, 1 / jnp.where(largest > 0, largest, 1), 0)
        x_F = [P_F[i][a] - r_F * xi(first + a) for a in range(d)]
        square = sum(x * x for x in x_F)
        radius = problem.mu[i] * P_N[i]
        outside = square >= radius * radius
        factor = jnp.where(outside, radius / jnp.sqrt(jnp.where(square > 0, square, 1)), 1)
        P_F[i] = [factor * x for x in x_F]
    entries = [p for contact in P_F for p in contact] + P_N
    return linalg.vector(entries) if linalg.is_unpacked(z) else jnp.stack(entries)


class Result(NamedTuple):
    """Solution of a contact problem."""

    z: object  # percussions in internal order
    iterations: object  # Newton iterations, those after a rescue included
    error: object  # largest entry of the natural map over its bound: converged where <= 1
    residual: object  # largest entry of the natural map, in units of percussion
    contact: object  # contact with the largest entry where the problem was not solved, else -1


#: Newton iterations that a whole batch takes together; those that need more are gathered, `CHUNK` at a time.
TOGETHER, CHUNK = 5, 32


class Equations:
    """The natural map of one problem as a function of a loop's carry ``(z, xi)``."""

    def __init__(self, problem, settings, dtype):
        n, d = problem.n, problem.d
        self.problem, self.tolerance = problem, settings.tolerance_for(dtype)
        self.r = scale(problem.G, n, d)
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

    def newton(self, carry):
        """One Newton step."""
        z, xi = (linalg.from_leaves(part) for part in carry)
        return self.at(newton_step(self.problem, self.r, z, xi, *self.residual(z, xi)))

    def rescue(self, carry):
        """Sweeps of Gauss-Seidel, which go on from where they were, then Newton steps, kept if they solve the problem."""
        swept, _ = carry
        swept = lax.fori_loop(
            0, SWEEPS, lambda _, z: linalg.to_leaves(gauss_seidel_sweep(self.problem, self.r[0], linalg.from_leaves(z))), swept
        )
        start = self.at(linalg.from_leaves(swept))
        tried, error = lax.fori_loop(0, STEPS, lambda _, x: self.newton(x[0]), start)
        solved = error <= 1
        best = jax.tree.map(lambda a, b: jnp.where(solved, a, b), tried, start[0])
        return (swept, best), jnp.where(solved, error, start[1])


def solve(problem, z0, settings, dtype):
    """Solve a contact problem from the guess ``z0`` by a semismooth Newton method; where it cycles, by a globalized iteration.

    The globalization alternates sweeps of nonlinear block Gauss-Seidel with Newton steps from where the sweeps have come. A
    batch takes a few Newton steps together; the few problems that need more are gathered, so that the rest does not wait for them.
    """
    equations = Equations(problem, settings, dtype)
    together = min(TOGETHER, settings.max_iterations)
    newton, error, iterations = iterate(equations.newton, *equations.at(z0), together)
    leaves = tuple(linalg.to_leaves(part) for part in problem[:-1])
    z, error, iterations, contact = finish(settings, problem.d, together)(leaves, newton[0], error, iterations)
    z = linalg.from_leaves(z)
    return Result(z, iterations, error, error * equations.bound(z), contact)


def finish(settings, d, together):
    """Function that brings an unfinished problem to its end; under `vmap` it gathers those that are unfinished."""

    def one(leaves, z, error, iterations):
        problem = Problem(*(linalg.from_leaves(part) for part in leaves), d)
        equations = Equations(problem, settings, jnp.result_type(error))
        start, _ = equations.at(linalg.from_leaves(z))
        newton, error, more = iterate(equations.newton, start, error, settings.max_iterations - together)
        zero = jax.tree.map(jnp.zeros_like, newton[0])
        (_, best), error, rescues = iterate(equations.rescue, (zero, newton), error, settings.max_rescues)
        z, xi = (linalg.from_leaves(part) for part in best)
        F_N, F_F = split(absolute(equations.residual(z, xi)[1]), problem.n, d)
        worst = linalg.pack(functools.reduce(maximum, (F_F[:, a] for a in range(d)), F_N))
        contact = jnp.where(error <= 1, -1, jnp.argmax(worst).astype(jnp.int32))
        return best[0], error, iterations + more + STEPS * rescues, contact

    @custom_vmap
    def finished(leaves, z, error, iterations):
        return lax.cond(
            error > 1,
            one,
            lambda leaves, z, error, iterations: (z, error, iterations, jnp.full_like(iterations, -1)),
            leaves,
            z,
            error,
            iterations,
        )

    @finished.def_vmap
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

    return finished
