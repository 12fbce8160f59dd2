"""Newton-type impact law with Coulomb friction: the contact problem, its natural map, and the derivatives of both.

Invariant of everything here: with ``xi = G P + c`` the solution obeys, for every contact i,

    0 <= P_N  _|_  xi_N >= 0,                    -xi_F in the normal cone of the disc of radius mu P_N at P_F

which is the same as the vanishing of the natural map (Capobianco & Eugster 2018, (30), (56), (57); Alart & Curnier 1991)

    P_N - max(0, x_N),      P_F - prox_B(mu max(0, x_N))(x_F),      x_N = P_N - r_N xi_N,  x_F = P_F - r_F xi_F

A contact may have several discs, each with its own directions and coefficient, on the one P_N: beside friction that of rolling and of
drilling. And the normal law may ask for more than nothing, ``P_N - least >= 0`` in place of ``P_N >= 0``: in the expansion of Poisson's
impact law.

Inside, percussions are split in ``P_F`` of shape (n, d) and ``P_N`` of shape (n,), and stacked as ``z = (P_F1, ..., P_Fn, P_N)``:
with the tangential rows first, the matrix of Newton's method can be eliminated without row exchanges.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..numerics import linalg, thresholds
from ..numerics.linalg import absolute, greater, logical_and, logical_not, multiply, where
from ..sets import slip_at

#: Entries of a contact problem: a JAX array, or a NumPy array of scalars (see `numerics.linalg`).
Rows = jax.Array | np.ndarray


class Problem(NamedTuple):
    """A contact problem ``xi = G z + c`` with rows ordered as ``z``; all entries unpacked, or all JAX arrays."""

    G: object  # (n (d + 1), n (d + 1)) Delassus operator
    c: object  # (n (d + 1),)
    mu: object  # (n,), or (n, number of discs)
    active: object  # (n,) boolean: contacts that are not active carry no percussion
    d: int  # directions of friction, of all discs together
    r: object = None  # parameters (r_N (n,), r_F (n, d)) of the natural map; None: from the diagonal of G, see `scale`
    least: object = None  # (n,) least normal percussion; None: zero
    sizes: tuple | None = None  # directions of every disc; None: there is one disc
    redundant: bool = False  # whether there are more rows than velocities, so that not all percussions are determined
    given: int = 0  # of how many contacts, the last, nothing feels the normal percussion, and the directions but the first
    rounding: object = None  # (n (d + 1),) what c is uncertain by, where that is more than round-off of its terms; None: it is not

    @property
    def n(self):
        return self.mu.shape[0]

    @property
    def dtype(self):
        """Type of the numbers."""
        return jnp.result_type(self.mu.ravel()[0]) if linalg.is_unpacked(self.mu) else self.mu.dtype

    def packed(self):
        """The same problem of JAX arrays."""
        return self._of(linalg.pack)

    def unpacked(self):
        """The same problem of object arrays of scalars."""
        return self._of(linalg.unpack)

    def _of(self, convert):
        return jax.tree.map(convert, self.arrays())._replace(**self.static)

    @property
    def static(self):
        """What is known while tracing, by name."""
        return {"d": self.d, "sizes": self.sizes, "redundant": self.redundant, "given": self.given}

    def arrays(self):
        """What a problem has of arrays: without what is `static`."""
        return self._replace(**dict.fromkeys(self.static))

    @property
    def discs(self):
        """``(columns, mu (n,))`` of every disc, the columns a slice of the d directions."""
        return [(part, self.mu if self.sizes is None else self.mu[:, k]) for k, part in enumerate(columns(self.d, self.sizes))]

    @property
    def coupled(self):
        """Numbers of the rows that depend on each other, and of the others; None: all may."""
        if not self.given:
            return None
        n, d, free = self.n, self.d, self.n - self.given
        rows = np.concatenate([np.arange(free * d), np.arange(free, n) * d, n * d + np.arange(free)])
        return rows, np.setdiff1d(np.arange(n * (d + 1)), rows)

    def scale(self):
        """Parameters (r_N, r_F) of the natural map."""
        return scale(self) if self.r is None else self.r


def columns(d, sizes, first=0):
    """The columns of every disc, slices of d directions that begin with column ``first``; sizes: as in `Problem`."""
    sizes = (d,) * (d > 0) if sizes is None else sizes
    ends = first + np.cumsum(sizes)
    return [slice(int(end) - size, int(end)) for size, end in zip(sizes, ends, strict=True)]


def split(z, n, d):
    """``(P_N, P_F)`` of shapes (n,) and (n, d) from a vector in internal order."""
    return z[n * d :], z[: n * d].reshape(n, d)


def join(x_N, x_F):
    """Vector in internal order from parts of shapes (n,) and (n, d)."""
    return linalg.concatenate([x_F.reshape(-1), x_N])


def broadcast(x, d):
    """(n, d) entries from one per contact (n,)."""
    return (np if linalg.is_unpacked(x) else jnp).broadcast_to(x[:, None], (x.shape[0], d))


def diagonal(G):
    """Diagonal of a matrix, unpacked or not."""
    return np.diagonal(G) if linalg.is_unpacked(G) else jnp.diagonal(G)


def movable(active, G, d, sizes=None, given=0):
    """Which active contacts (n,) a normal percussion can part: of others the normal direction is round-off beside those of friction.

    A disc that turns on a table about a fixed axis has normal directions of 1e-17, or 1e-9 if both are meshes, in place of zero. The
    percussion that stops as small a velocity is as large as one likes, and friction with it. Of the last ``given`` contacts all count.
    """
    n = active.shape[0] - given
    if not n or not d:
        return active
    g_N, g_F = split(diagonal(G), active.shape[0], d)
    parted = parts(g_N[:n], g_F[:n], sizes)
    return linalg.concatenate([logical_and(active[:n], parted), active[n:]]) if given else logical_and(active, parted)


def parts(g_N, g_F, sizes=None):
    """What a normal percussion parts, (n,), by diagonals of the Delassus operator: g_N (n,) and g_F (n, d) with d > 0; see `movable`."""
    none = thresholds.immovable(jnp.result_type(g_N.ravel()[0])) ** 2
    return logical_not(greater(multiply(of_sliding(g_F, sizes), none), absolute(g_N)))


def of_sliding(g_F, sizes=None):
    """Sizes of the entries of the first disc, summed up, (n,). Lobatto's operator has negative ones where percussions are large."""
    return sum(absolute(g_F[:, j]) for j in range(columns(g_F.shape[1], sizes)[0].stop))


def parted(W_N, W_F, mass, sizes=None):
    """`parts`, (n,), by force directions W_N (n_u, n) and W_F (n_u, n, d) and the diagonal (n_u,) of the mass matrix."""
    if not W_F.size:
        return jnp.ones(W_N.shape[1:], bool)
    return parts(jnp.sum(W_N**2 / mass[:, None], axis=0), jnp.sum(W_F**2 / mass[:, None, None], axis=0), sizes)


def slides(G, n, d, sizes=None):
    """Which contacts (n,) can slide: of others the directions of friction are round-off beside the normal one, as along a guide; d > 0."""
    g_N, g_F = split(diagonal(G), n, d)
    none = thresholds.immovable(jnp.result_type(g_N.ravel()[0])) ** 2
    return logical_not(greater(multiply(absolute(g_N), none), of_sliding(g_F, sizes)))


def scale(problem):
    """``(r_N (n,), r_F (n, d))``: the inverse diagonal of the Delassus operator, one number for every disc."""
    g_N, g_F = split(diagonal(problem.G), problem.n, problem.d)
    invert = linalg.elementwise(lambda g: jnp.where(g > 0, 1 / jnp.where(g > 0, g, 1), 1))

    def of_disc(part):
        # One r per disc keeps the disc round; the mean of the diagonal is exact for isotropic inertia.
        size = part.stop - part.start
        return broadcast(invert(sum(g_F[:, j] for j in range(part.start, part.stop)) * (1 / size)), size)

    return invert(g_N), beside([of_disc(part) for part, _ in problem.discs], g_F)


def beside(parts, none):
    """Columns (n, ...) of all discs beside each other; ``none`` where there is no disc."""
    if len(parts) < 2:
        return parts[0] if parts else none
    return np.concatenate(parts, axis=1) if linalg.is_unpacked(parts[0]) else jnp.concatenate(parts, axis=1)


class Modes(NamedTuple):
    """What the natural map sees at a point: modes of the contacts and the pieces its derivative needs."""

    closed: object  # (n,) the normal law holds as xi_N = 0
    loaded: object  # (n,) there is a normal percussion
    discs: tuple  # `sets.Slip` of every disc


def modes_at(problem, r, z, xi):
    """Modes of the contacts at ``z`` with kinematic quantities ``xi``."""
    n, d, least = problem.n, problem.d, problem.least
    (P_N, P_F), (xi_N, xi_F), (r_N, r_F) = split(z, n, d), split(xi, n, d), r
    x_N = P_N - r_N * xi_N
    zero = linalg.zeros_like(x_N)
    closed = loaded = logical_and(problem.active, greater(x_N, zero if least is None else least))
    if least is not None:
        x_N, loaded = where(closed, x_N, least), problem.active
    x_F = P_F - r_F * xi_F
    discs = [slip_at(x_F[:, part], where(loaded, multiply(mu, x_N), zero), loaded) for part, mu in problem.discs]
    return Modes(closed, loaded, tuple(discs))


def natural_map(problem, r, z, xi, modes):
    """Residual of the contact law in units of percussion, in internal order."""
    n, d = problem.n, problem.d
    (P_N, P_F), (xi_N, xi_F), (r_N, r_F) = split(z, n, d), split(xi, n, d), r
    F_N = where(modes.closed, r_N * xi_N, P_N if problem.least is None else P_N - where(problem.active, problem.least, 0.0))
    parts = [
        where(disc.stick[:, None], r_F[:, part] * xi_F[:, part], P_F[:, part] - disc.radius[:, None] * disc.direction)
        for disc, (part, _) in zip(modes.discs, problem.discs, strict=True)
    ]
    return join(F_N, beside(parts, P_F))


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
    parts = []
    for disc, (part, mu) in zip(modes.discs, problem.discs, strict=True):
        slope = multiply(mu, 1.0)[:, None] * disc.direction
        slip = eye_F[:, part] - slope[:, :, None] * eye_N[:, None, :]
        stick = r_F[:, part, None] * G_F[:, part]
        size = part.stop - part.start
        if size > 1:
            # Turning of the slip direction: radius / |x_F| (I - n n^T) (dP_F - r_F dxi_F)
            change = eye_F[:, part] - stick
            along = sum(disc.direction[:, b, None] * change[:, b] for b in range(size))
            turning = change - disc.direction[:, :, None] * along[:, None, :]
            slip = slip - disc.curvature[:, None, None] * turning
        parts.append(where(disc.stick[:, None, None], stick, where(modes.loaded[:, None, None], slip, eye_F[:, part])))
    return linalg.concatenate([beside(parts, None).reshape(n * d, m), rows_N])


def split_rows(matrix, n, d):
    """Rows (n, m) of the normal directions and (n, d, m) of the tangential ones."""
    return matrix[n * d :], matrix[: n * d].reshape(n, d, matrix.shape[1])


def newton_step(problem, r, z, xi, modes, residual, shift=None, guard=True):
    """One step of the semismooth Newton method from ``z``.

    With its ``guard`` (see `linalg.lu`) percussions that the matrix does not determine (redundant contacts) stay as they are. Where their
    rows contradict each other by a slip however small, the solution lies elsewhere: some of these contacts slip. The matrix plus ``shift``
    times the identity, in the rows of contacts that are closed, takes the step as far as it takes them to, and needs no guard.
    """
    n, d = problem.n, problem.d
    r_N, _ = r
    xi_N, _ = split(xi, n, d)
    F_N, F_F = split(residual, n, d)
    parts = []
    for disc, (part, mu) in zip(modes.discs, problem.discs, strict=True):
        slip = logical_and(modes.closed, logical_not(disc.stick))
        correction = where(slip, multiply(mu, r_N * xi_N), linalg.zeros_like(r_N))
        parts.append(F_F[:, part] - correction[:, None] * disc.direction)
    F_F = beside(parts, F_F)
    matrix = newton_matrix(problem, r, modes)
    if shift is not None:
        # The percussions of open contacts are to vanish exactly.
        shifted = jnp.where(modes.closed, jnp.asarray(shift, matrix.dtype), 0)
        matrix = matrix + jnp.diag(join(shifted, broadcast(shifted, d)))
    return z - of_coupled(problem, linalg.lu, matrix, join(F_N, F_F), guard=guard)


def of_coupled(problem, factor, matrix, rhs, **options):
    """The solution of Newton's equations by a factorization of those that depend on each other; the others are rows of the identity."""
    if problem.coupled is None:
        return factor(matrix, **options)(rhs)
    rows, others = problem.coupled
    coupled, alone = matrix[rows], rhs[others]
    x = factor(coupled[:, rows], **options)(rhs[rows] - linalg.matmul(coupled[:, others], alone))
    if linalg.is_unpacked(rhs):
        full = rhs.copy()
        full[rows] = x
        return full
    return rhs.at[rows].set(x, mode="promise_in_bounds", unique_indices=True)


def response(problem, z, xi, dxi, dmu, dleast=None):
    """Derivative dz of the solution, for partial derivatives ``dxi`` (at fixed z), ``dmu`` and ``dleast``: the implicit function theorem.

    Linear in them. Where the solution is at a kink (zero slip velocity at the border of the disc, zero percussion at zero gap velocity)
    this is one of its one-sided derivatives.
    """
    n, d = problem.n, problem.d
    r_N, r_F = r = problem.scale()
    modes = modes_at(problem, r, z, xi)
    dxi_N, dxi_F = split(dxi, n, d)
    P_N, _ = split(z, n, d)
    zero = linalg.zeros_like(P_N)
    rhs_N = where(modes.closed, -(r_N * dxi_N), zero if dleast is None else where(problem.active, dleast, zero))
    parts = []
    for (disc, (part, _)), (_, dmu_k) in zip(zip(modes.discs, problem.discs, strict=True), problem._replace(mu=dmu).discs, strict=True):
        stick_F = -(r_F[:, part] * dxi_F[:, part])
        slip = logical_and(modes.loaded, logical_not(disc.stick))
        slip_F = where(slip, multiply(dmu_k, P_N), zero)[:, None] * disc.direction
        size = part.stop - part.start
        if size > 1:
            along = sum(disc.direction[:, j] * stick_F[:, j] for j in range(size))
            slip_F = slip_F + where(slip, disc.curvature, zero)[:, None] * (stick_F - along[:, None] * disc.direction)
        parts.append(where(disc.stick[:, None], stick_F, slip_F))
    matrix, rhs = newton_matrix(problem, r, modes), join(rhs_N, beside(parts, dxi_F))
    if n == 1:
        return of_coupled(problem, linalg.lu, matrix, rhs, guard=True)
    # Contacts of one body may be redundant: a box at rest has twelve rows, of which six are left.
    dz = of_coupled(problem, linalg.pivoted, linalg.pack(matrix), linalg.pack(rhs))
    return linalg.unpack(dz) if linalg.is_unpacked(rhs) else dz
