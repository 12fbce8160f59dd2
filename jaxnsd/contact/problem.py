"""Newton-type impact law with Coulomb friction: the contact problem, its natural map, and the derivatives of both.

Invariant of everything here: with ``xi = G P + c`` the solution obeys, for every contact i,

    0 <= P_N  _|_  xi_N >= 0,                    -xi_F in the normal cone of the disc of radius mu P_N at P_F

which is the same as the vanishing of the natural map (Capobianco & Eugster 2018, (30), (56), (57); Alart & Curnier 1991)

    P_N - max(0, x_N),      P_F - prox_B(mu max(0, x_N))(x_F),      x_N = P_N - r_N xi_N,  x_F = P_F - r_F xi_F

Inside, percussions are split in ``P_F`` of shape (n, d) and ``P_N`` of shape (n,), and stacked as ``z = (P_F1, ..., P_Fn, P_N)``:
with the tangential rows first, the matrix of Newton's method can be eliminated without row exchanges.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from .. import linalg
from ..linalg import absolute, divide, greater, less, logical_and, logical_not, multiply, where


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

    @property
    def dtype(self):
        """Type of the numbers."""
        return jnp.result_type(self.mu[0]) if linalg.is_unpacked(self.mu) else self.mu.dtype

    def packed(self):
        """The same problem of JAX arrays."""
        arrays = (None if part is None else linalg.pack(part) for part in self[:4])
        return Problem(*arrays, self.d, None if self.r is None else tuple(linalg.pack(r) for r in self.r))

    def scale(self):
        """Parameters (r_N, r_F) of the natural map."""
        return scale(self.G, self.n, self.d) if self.r is None else self.r


def split(z, n, d):
    """``(P_N, P_F)`` of shapes (n,) and (n, d) from a vector in internal order."""
    return z[n * d :], z[: n * d].reshape(n, d)


def join(x_N, x_F):
    """Vector in internal order from parts of shapes (n,) and (n, d)."""
    return linalg.concatenate([x_F.reshape(-1), x_N])


def broadcast(x, d):
    """(n, d) entries from one per contact (n,)."""
    return x[:, None] * np.ones((1, d)) if linalg.is_unpacked(x) else jnp.broadcast_to(x[:, None], (x.shape[0], d))


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


def newton_step(problem, r, z, xi, modes, residual, shift=None):
    """One step of the semismooth Newton method from ``z``.

    Without a ``shift`` percussions that the matrix does not determine (redundant contacts) stay as they are. Where their rows contradict
    each other by a slip however small, the solution lies elsewhere: some of these contacts slip. The matrix plus ``shift`` times the
    identity takes the step as far as it takes them to.
    """
    n, d = problem.n, problem.d
    r_N, _ = r
    xi_N, _ = split(xi, n, d)
    F_N, F_F = split(residual, n, d)
    if d:
        slip = logical_and(modes.closed, logical_not(modes.stick))
        correction = where(slip, multiply(problem.mu, r_N * xi_N), linalg.zeros_like(r_N))
        F_F = F_F - correction[:, None] * modes.direction
    matrix = newton_matrix(problem, r, modes)
    if shift is not None:
        matrix = matrix + shift * jnp.eye(matrix.shape[0], dtype=matrix.dtype)
    return z - linalg.lu(matrix, guard=shift is None)(join(F_N, F_F))


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
