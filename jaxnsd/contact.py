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
from .prox import prox_ball


class Problem(NamedTuple):
    """A contact problem ``xi = G z + c`` with rows ordered as ``z``; all entries unpacked, or all JAX arrays."""

    G: object  # (n (d + 1), n (d + 1)) Delassus operator
    c: object  # (n (d + 1),)
    mu: object  # (n,)
    active: object  # (n,) boolean: contacts that are not active carry no percussion
    d: int
    r: object = None  # parameters (r_N, r_F) of the natural map, each (n,); None: from the diagonal of G, see `scale`

    @property
    def n(self):
        return self.mu.shape[0]

    def scale(self):
        """Parameters (r_N, r_F) of the natural map."""
        return scale(self.G, self.n, self.d) if self.r is None else self.r


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
    """``(r_N, r_F)``, each (n,): the inverse diagonal of the Delassus operator, one per disc."""
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
    eye_N, eye_F = split_rows(np.eye(m) if linalg.is_unpacked(G) else jnp.eye(m, dtype=G.dtype), n, d)
    G_N, G_F = split_rows(G, n, d)
    rows_N = where(modes.closed[:, None], r_N[:, None] * G_N, eye_N)
    if not d:
        return rows_N
    slope = multiply(problem.mu, 1.0)[:, None] * modes.direction
    slip = eye_F - slope[:, :, None] * eye_N[:, None, :]
    stick = r_F[:, None, None] * G_F
    if d > 1:
        # Turning of the slip direction: radius / |x_F| (I - n n^T) (dP_F - r_F dxi_F)
        change = eye_F - stick
        along = sum(modes.direction[:, b, None] * change[:, b] for b in range(d))
        turning = change - modes.direction[:, :, None] * along[:, None, :]
        slip = slip - modes.curvature[:, None, None] * turning
    rows_F = where(modes.stick[:, None, None], stick, where(modes.closed[:, None, None], slip, eye_F))
    return linalg.concatenate([rows_F.reshape(n * d, m), rows_N])


def split_rows(matrix, n, d):
    """Rows (n, m) of the normal directions and (n, d, m) of the tangential ones."""
    return matrix[n * d :], matrix[: n * d].reshape(n, d, matrix.shape[1])


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
    r_N, r_F = r = problem.scale()
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


#: Sweeps of block Gauss-Seidel and Newton steps in one globalized iteration. Sweeps that cycle do so with a small even period: an odd
#: number of them meets the whole cycle.
SWEEPS, STEPS = 7, 4


def gauss_seidel_sweep(problem, r_N, z):
    """One sweep of nonlinear block Gauss-Seidel: every contact in turn takes a prox step with its own percussions.

    Slow but hard to stop (Jourdan, Alart & Jean 1998): it brings Newton's method near enough to the solution. JAX arrays only.
    """
    G, c, n, d = problem.G, problem.c, problem.n, problem.d
    row = functools.partial(lax.dynamic_index_in_dim, keepdims=False)

    def visit(i, z):
        normal = n * d + i
        x_N = row(z, normal) - row(r_N, i) * (jnp.sum(row(G, normal) * z) + row(c, normal))
        P_N = jnp.where(row(problem.active, i) & (x_N > 0), x_N, 0)
        z = lax.dynamic_update_index_in_dim(z, P_N, normal, 0)
        if not d:
            return z
        G_F, c_F = lax.dynamic_slice_in_dim(G, i * d, d), lax.dynamic_slice_in_dim(c, i * d, d)
        block = lax.dynamic_slice_in_dim(G_F, i * d, d, axis=1)
        # Largest eigenvalue of the contact's tangential block: a prox step of its inverse converges for any anisotropy.
        half = 0.5 * (block[0, 0] - block[-1, -1])
        largest = 0.5 * (block[0, 0] + block[-1, -1]) + jnp.sqrt(half * half + (block[0, 1] * block[1, 0] if d > 1 else 0))
        r_F = jnp.where(largest > 0, 1 / jnp.where(largest > 0, largest, 1), 0)
        x_F = lax.dynamic_slice_in_dim(z, i * d, d) - r_F * (jnp.sum(G_F * z[None, :], axis=1) + c_F)
        return lax.dynamic_update_slice_in_dim(z, prox_ball(x_F, row(problem.mu, i) * P_N), i * d, 0)

    return lax.fori_loop(0, n, visit, z)


class Result(NamedTuple):
    """Solution of a contact problem."""

    z: object  # percussions in internal order
    iterations: object  # Newton iterations, those after a rescue included
    error: object  # largest entry of the natural map over its bound: converged where <= 1
    residual: object  # largest entry of the natural map, in units of percussion
    contact: object  # contact with the largest entry where the problem was not solved, else -1


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
