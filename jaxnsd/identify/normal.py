"""The normal equations of least squares with few unknowns that all items share and many local ones: their Schur complement.

With the shared unknowns z and the local ones x_k of trajectory k the Gauss-Newton matrix is an arrow, ``[[A, B_k], [B_k^T, C_k]]``. Its
step costs one small solve for each trajectory and one with ``A - sum B_k C_k^-1 B_k^T``, the inverse of the covariance of z.
"""

import jax.numpy as jnp
import numpy as np

#: Unknowns whose columns are shorter than this part of the longest have no effect; in single precision.
NOTHING, NOTHING_SINGLE = 1e-9, 1e-5

#: What is added to a matrix of local unknowns, of unit diagonal, against rounding: a few units in the last place.
RIDGE = 1e-15

#: A fit that ended this many standard errors from where it would go has not converged.
AWAY = 0.3

#: Part of what the data tell that it may be: errors by rounding are then a few per cent.
TOLD = 1e-3


def single():
    """Whether it is computed in single precision."""
    return jnp.zeros(()).dtype == jnp.float32


def nothing():
    """Part of a size up to which another one is nothing beside it."""
    return NOTHING_SINGLE if single() else NOTHING


def effective(sizes, units):
    """(p,) booleans: which unknowns have an effect, by the lengths of their columns and by the units that they typically change in.

    Compared are effects of a change by a unit, so that the answer is the same in metres and in nanometres. A first guess of zero has no
    unit: then it is one, or all are, if there are no others.
    """
    known = np.isfinite(units)
    units = np.where(known, units, 1.0) if known.any() else np.ones_like(sizes)
    reference = np.max((sizes * units)[known] if np.any(sizes[known] > 0) else sizes, initial=0.0)
    return sizes * units > nothing() * reference


def solved(C, B):
    """``C^-1 B`` of a matrix (n, n) of local unknowns; an unknown without an effect, whose row is zero, stays where it is.

    Rows and columns are scaled to a unit diagonal: of a state that one column of data sees to 1e-9, or a tight joint, nothing that is
    added against rounding may look like knowledge of the others.
    """
    diagonal = np.diag(C)
    none = diagonal <= 0
    s = 1 / np.sqrt(np.where(none, 1, diagonal))
    scaled = s[:, None] * C * s[None, :] + np.diag(np.where(none, 1, RIDGE))
    return s[:, None] * np.linalg.solve(scaled, s[:, None] * B)


class NormalEquations:
    """Sum of linearized items.

    problem:     for the sizes, and for which items belong together
    linearized:  what `Evaluator.linearized` gives of the items
    items:       their numbers
    shared:      (items,) booleans: which of them count for z; the others only for their own local parts (validation)
    loose:       windows are joined by standard deviations this many times larger
    """

    def __init__(self, problem, linearized, items, shared, loose=1.0):
        p, n = problem.size, problem.n_local
        H, g = linearized["H"], linearized["g"]
        # Steps are damped against what the data say alone: damped against the joints, which are stiff, windows that meet could hardly move.
        alone = np.diagonal(H, axis1=1, axis2=2)
        if problem.joined:
            alone = np.maximum(alone - np.diagonal(linearized["H_joined"], axis1=1, axis2=2), 0)
            without = 1 - loose**-2
            H, g = H - without * linearized["H_joined"], g - without * linearized["g_joined"]
        self.A, self.b = H[shared, :p, :p].sum(0), g[shared, :p].sum(0)
        self.damped = alone[shared, :p].sum(0)
        self.p, self.n, self.items, self.groups = p, n, items, []
        if not n:
            return
        owner = problem.items["owner"][items]
        following = problem.items["joined"][items] > 0 if problem.joined else np.zeros(len(items), bool)
        for k in np.unique(owner):
            members = np.flatnonzero(owner == k)
            size = n * len(members)
            B, C, c, d = np.zeros((p, size)), np.zeros((size, size)), np.zeros(size), np.zeros(size)
            for place, i in enumerate(members):
                # Of an item: its own local part and, where windows are joined, that of the next.
                own = np.arange(n * place, n * place + n * (2 if following[i] else 1))
                width = p + len(own)
                B[:, own] += H[i, :p, p:width]
                C[np.ix_(own, own)] += H[i, p:width, p:width]
                c[own] += g[i, p:width]
                d[own] += alone[i, p:width]
            self.groups.append((members, shared[members].any(), B, C, c, d))

    def diagonal(self):
        """Diagonal of the part of z, (p,)."""
        return np.diag(self.A)

    def reduced(self, damping=0.0):
        """``(S, s, back)``: Schur complement (p, p) and gradient (p,) of z, and what local parts follow from a step of z."""
        S, s, back = self.A.copy(), self.b.copy(), []
        for members, shared, B, C, c, d in self.groups:
            X = solved(C + np.diag(damping * d), np.concatenate([B.T, c[:, None]], axis=1))
            if shared:
                S -= B @ X[:, :-1]
                s -= B @ X[:, -1]
            back.append((members, X[:, :-1], X[:, -1]))
        return S, s, back

    def taken(self, of_data, inverse):
        """Degrees of freedom that the unknowns take from the data, tr(H^-1 H_data) (MacKay, Bayesian interpolation, 1992, sec. 4.5).

        ``of_data``: the equations without priors and joints; ``inverse`` (p, p) of the Schur complement. A state that nothing else tells
        takes one for each number, one that its prior tells takes none.
        """
        total = np.sum(inverse * of_data.A)
        for (_, shared, B, C, *_), (_, _, B_data, C_data, *_) in zip(self.groups, of_data.groups, strict=True):
            if shared:
                own = solved(C, np.eye(len(C)))
                X = B @ own
                total += np.sum((own + X.T @ inverse @ X) * C_data) - 2 * np.sum(inverse @ X * B_data)
        return total

    def rounded(self, of_data):
        """Whether what is added against rounding is not small beside what the data tell of local unknowns: joints are too tight."""
        groups = zip(self.groups, of_data.groups, strict=True)
        return any(shared and RIDGE * np.max(np.diag(C)) > TOLD * np.max(np.diag(D)) for (_, shared, _, C, *_), (_, _, _, D, *_) in groups)

    def length(self, dz):
        """Length of a step of z against what the data tell: in standard errors, were the noise as given."""
        return np.sqrt(max(0.0, dz @ self.reduced()[0] @ dz))

    def step(self, damping, fixed=None, largest=np.inf, units=None):
        """``(dz (p,), dlocal (items, n))`` of the damped equations, by Marquardt's scaling; z that are ``fixed`` stay.

        Entries of dz do not exceed ``largest``, a number or (p,): those that would go that far and no further, and what is best for the
        others then is solved anew. They would hardly move if all were shortened alike, next to one that is on its way to a bound, which in
        z is at infinity. ``units`` (p,): see `effective`.
        """
        S, s, back = self.reduced(damping)
        scale = np.diag(self.A)
        # What has no effect is left where it is: a column of round-off would ask for an endless step.
        free = effective(np.sqrt(np.maximum(scale, 0)), np.ones(self.p) if units is None else units)
        free = free if fixed is None else free & ~fixed
        largest = np.broadcast_to(largest, (self.p,))
        dz = np.zeros(self.p)
        while free.any():
            D = np.sqrt(scale[free])
            matrix = S[np.ix_(free, free)] / np.outer(D, D) + np.diag(damping * self.damped[free] / scale[free])
            dz[free] = -np.linalg.lstsq(matrix, (s + S @ np.where(free, 0, dz))[free] / D, rcond=1e-14)[0] / D
            far = free & (np.abs(dz) > largest)
            if not far.any():
                break
            dz[far] = np.sign(dz[far]) * largest[far]
            free = free & ~far
        local = np.zeros((len(self.items), self.n))
        for members, by_z, own in back:
            local[members] = -(by_z @ dz + own).reshape(-1, self.n)
        return dz, local
