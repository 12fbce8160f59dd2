"""The linearized momentum balance, with velocity and bilateral percussions condensed away."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from ..numerics import linalg, thresholds


def impulse(kin, z, P_b):
    """``W z + W_b P_b``, (n_u,)."""
    p = linalg.matmul(kin.W, z) if z.shape[0] else jnp.zeros(kin.W.shape[:1], kin.W.dtype)
    return p + linalg.matmul(kin.W_b, P_b) if P_b.shape[0] else p


class Condensed:
    """The linearized momentum balance, with the velocity and the bilateral percussions eliminated.

    Holds the map from an impulse to a velocity, ``A^-1``, and its restriction to the motions that the bilateral constraints allow.
    ``effect`` maps force directions to what their percussions do to the balance (default: themselves), ``invert`` is ``A^-1``, where it
    is known.

    Bilateral percussions are held in the coordinates of `biorthogonal` rows; `percussions` turns them into those of the rows given.
    """

    def __init__(self, A, kin, effect=None, invert=None):
        n_u, m = kin.W.shape
        self.A, self.kin = A, kin
        self.unpacked = max(n_u, m, kin.W_b.shape[1]) <= linalg.UNROLL and min(n_u, m) > 0 and invert is None
        self.W = self.convert(kin.W)
        self.invert = invert or linalg.lu(self.convert(A))
        self.bilateral = kin.W_b.shape[1] > 0
        self.Y = self.invert(self.convert(effect(kin.W)) if effect else self.W) if m else self.W
        if self.bilateral:
            W_b = self.convert(kin.W_b)
            self.Y_b = self.invert(self.convert(effect(kin.W_b)) if effect else W_b)
            self.rows = biorthogonal(W_b, self.Y_b)
            if m:
                # Restricts the effect of the contacts to what the bilateral constraints allow.
                self.B = self.rows.inverse[:, None] * linalg.matmul(self.rows.W.T, self.Y)
                self.Y = self.Y - linalg.matmul(self.rows.Y, self.B)
        if m:
            self.G = linalg.matmul(self.W.T, self.Y)

    def convert(self, x):
        """A JAX array in the kind the contact problem is written in."""
        return linalg.unpack(x) if self.unpacked else x

    def free(self, u, residual, chi_b):
        """``(u, P)`` without contact percussions: one step against the residual of the balance, with ``W_b^T u + chi_b = 0``."""
        u = self.convert(u) - self.invert(self.convert(residual))
        if not self.bilateral:
            return u, None
        self.unbound = u
        offset = linalg.matmul(self.rows.T.T, self.convert(chi_b))
        u, P = self.projected(u, offset)
        # Once leaves the round-off of rows that nearly depend on each other times their condition, as of a light rod between heavy bodies.
        u, more = self.projected(u, offset)
        return u, P + more

    def projected(self, u, offset=None):
        """``(u, P)`` with ``rows.W^T u + offset = 0`` by percussions of the rows that are combined; without an offset: zero."""
        along = linalg.matmul(self.rows.W.T, u)
        P = -(self.rows.inverse * (along if offset is None else along + offset))
        return u + linalg.matmul(self.rows.Y, P), P

    def at_contacts(self, u):
        """``W^T u``."""
        return linalg.matmul(self.W.T, u)

    def add(self, u, P, z):
        """``(u, P)`` with contact percussions ``z``."""
        if z.shape[0] == 0:
            return u, P
        change = linalg.matmul(self.Y, z)
        if self.bilateral:
            # As in `free`: the rows are taken out of Y once.
            change, more = self.projected(change)
            P = P - linalg.matmul(self.B, z) + more
        return u + change, P

    def percussions(self, P):
        """Percussions of the bilateral rows as given, a JAX array."""
        return linalg.pack(linalg.matmul(self.rows.E, P)) if self.bilateral else jnp.zeros((0,), self.kin.W_b.dtype)

    def obeyed(self, u, P, z, tolerance):
        """Whether ``W_b^T u + chi_b = 0``: every row to the tolerance, relative to the terms that cancel in it."""
        if not self.bilateral:
            return jnp.ones((), bool)
        W_b, chi_b = self.kin.W_b, self.kin.chi_b
        terms = linalg.absolute(u) + linalg.matmul(linalg.absolute(self.rows.Y), linalg.absolute(P))
        if z.shape[0]:
            terms = terms + linalg.matmul(linalg.absolute(self.Y), linalg.absolute(z))
        rows = jnp.abs(linalg.matmul(W_b.T, linalg.pack(u)) + chi_b)
        size = linalg.matmul(jnp.abs(W_b).T, linalg.pack(terms)) + jnp.abs(chi_b)
        # Where the rows leave no freedom all of it cancels. What every row alone would do to the others tells what round-off is;
        # percussions do not: of rows that depend on each other they are made of it.
        Y_b, round_off = jnp.abs(linalg.pack(self.Y_b)), thresholds.round_off(rows.dtype)
        effect = jnp.abs(linalg.pack(diagonal(self.convert(W_b), self.Y_b)))
        along = jnp.abs(linalg.matmul(W_b.T, linalg.pack(self.unbound))) + jnp.abs(chi_b)
        alone = jnp.where(effect > 0, along / jnp.where(effect > 0, effect, 1), 0)
        floor = round_off * linalg.matmul(jnp.abs(W_b).T, linalg.matmul(Y_b, alone))
        obeyed = jnp.all(rows <= (tolerance + round_off) * size + floor)
        # What is solved are combined rows: their round-off is that of larger terms, of another direction, than those of a row as given.
        T = linalg.pack(self.rows.T)
        W_c = linalg.pack(self.rows.W)
        rows = jnp.abs(linalg.matmul(W_c.T, linalg.pack(u)) + linalg.matmul(T.T, chi_b))
        size = linalg.matmul(jnp.abs(W_c).T, linalg.pack(terms)) + linalg.matmul(jnp.abs(T).T, jnp.abs(chi_b))
        return obeyed | jnp.all(rows <= (tolerance + round_off) * size)


class Factored(Condensed):
    """The same for a balance whose matrix is constant: ``solve`` is ``A^-1``, ``Y`` and ``G`` are there already, from `prepare`."""

    def __init__(self, solve, Y, G, kin):
        self.A, self.kin, self.W, self.Y = None, kin, kin.W, Y
        self.unpacked = 0 < kin.W.shape[1] <= linalg.UNROLL
        self.invert, self.bilateral = solve, False
        self.G = self.convert(G)

    def free(self, u, residual, chi_b):
        """Without bilateral constraints."""
        del chi_b
        return u - self.invert(residual), None

    def at_contacts(self, u):
        """``W^T u``, in the kind of the contact problem."""
        return self.convert(jnp.sum(self.W * u[:, None], axis=0))

    def add(self, u, P, z):
        """With contact percussions ``z``."""
        if z.shape[0] == 0:
            return u, P
        return linalg.pack(u) + jnp.sum(self.Y * linalg.pack(z)[None, :], axis=1), P


class Rows(NamedTuple):
    """Rows and directions with ``W^T Y`` diagonal, combined of given ones: ``W = W_b T``, ``Y = Y_b E``."""

    W: object  # (n_u, n_b)
    Y: object  # (n_u, n_b)
    T: object  # (n_b, n_b)
    E: object  # (n_b, n_b)
    inverse: object  # (n_b,) inverse of the diagonal; zero for a row that depends on those before it


def biorthogonal(W_b, Y_b):
    """`Rows` of bilateral constraints, by modified Gram-Schmidt on both sides.

    It is the elimination of ``G_b = W_b^T Y_b`` without forming it: two rows that differ by delta have a pivot of delta^2 in G_b, known to
    eps alone, but here a remainder of delta, known to eps. So rows count as dependent from 1e-11 on, not from 3e-6 on.
    """
    n_u, n = W_b.shape
    size = diagonal(W_b, Y_b)
    size = linalg.where(linalg.greater(size, 0), size, 1.0)
    scale = linalg.divide(1.0, linalg.sqrt(size))
    unit = np.eye(n).astype(object) if linalg.is_unpacked(W_b) else jnp.eye(n, dtype=W_b.dtype)
    left, right = (linalg.concatenate([x, unit]) * scale[None, :] for x in (W_b, Y_b))

    def invert(pivot):
        # The remainders, not the pivots, are known to eps.
        regular = jnp.abs(pivot) > thresholds.pivot(jnp.result_type(pivot)) ** 2
        return jnp.where(regular, 1 / jnp.where(regular, pivot, 1), 0)

    if linalg.is_unpacked(W_b):
        left, right = left.copy(), right.copy()
        for k in range(n - 1):
            w, y = left[:, k], right[:, k]
            inverse = invert(w[:n_u] @ y[:n_u])
            for j in range(k + 1, n):
                a, b = left[:n_u, j] @ y[:n_u], w[:n_u] @ right[:n_u, j]
                left[:, j] = left[:, j] - linalg.multiply(w, a * inverse)
                right[:, j] = right[:, j] - linalg.multiply(y, b * inverse)
    elif n > 1:

        def eliminate(k, carry):
            left, right = carry
            w, y = (lax.dynamic_index_in_dim(x, k, 1, False) for x in carry)
            factor = jnp.where(jnp.arange(n) > k, invert(jnp.sum(w[:n_u] * y[:n_u])), 0)
            left = left - w[:, None] * (factor * linalg.matmul(left[:n_u].T, y[:n_u]))[None, :]
            return left, right - y[:, None] * (factor * linalg.matmul(right[:n_u].T, w[:n_u]))[None, :]

        left, right = lax.fori_loop(0, n - 1, eliminate, (left, right))
    inverse = linalg.elementwise(invert)(diagonal(left[:n_u], right[:n_u]))
    return Rows(left[:n_u], right[:n_u], left[n_u:], right[n_u:], inverse)


def diagonal(W, Y):
    """Diagonal of ``W^T Y``, of arrays that are unpacked or not."""
    return np.sum(W * Y, axis=0) if linalg.is_unpacked(W) else jnp.sum(W * Y, axis=0)
