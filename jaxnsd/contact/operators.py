"""Delassus operators ``G = W^T M^-1 W`` of many contacts: what is asked of them, and forms in which they are held.

Vectors have one row per contact, (n, d + 1) with entries N, T1, ..., Td; blocks are (n, d + 1, d + 1). An operator has

    apply(x)        G x
    sizes(x)        |G| x, with the absolute values of all entries: what round-off is measured by
    row(i, x)       ``((G x)_i (d + 1,), G_ii (d + 1, d + 1))`` of contact i
    scale(parts)    ``(r_N (n,), r_F (n, d))``: the inverse diagonal of G, one number for each disc, of which ``parts`` are the columns
    factor(A, B)    function f -> x with ``A G x + B x = f``, for blocks A and B
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..numerics import linalg

#: Size of the groups of a `Chain`, as a part of all contacts, above which a dense factorization is faster.
WORTH = 0.3


class Dense(NamedTuple):
    """All entries of G, rows and columns contact by contact."""

    G: jax.Array  # (n (d + 1), n (d + 1))
    n: int

    @classmethod
    def of(cls, problem):
        """That of a `Problem`, whose rows are ordered otherwise, without the contacts that are not active."""
        order = per_contact(jnp.arange(problem.G.shape[0]), problem.n, problem.d).reshape(-1)
        active = jnp.repeat(problem.active, problem.d + 1)
        return cls(jnp.where(active[:, None] & active[None, :], problem.G[order][:, order], 0), problem.n)

    def apply(self, x):
        return linalg.matmul(self.G, x.reshape(-1)).reshape(x.shape)

    def sizes(self, x):
        return linalg.matmul(jnp.abs(self.G), x.reshape(-1)).reshape(x.shape)

    def row(self, i, x):
        m = x.shape[1]
        rows = lax.dynamic_slice_in_dim(self.G, i * m, m)
        return linalg.matmul(rows, x.reshape(-1)), lax.dynamic_slice_in_dim(rows, i * m, m, axis=1)

    def scale(self, parts):
        return scale(jnp.diagonal(self.G).reshape(self.n, -1), parts)

    def factor(self, A, B):
        solve = linalg.lu(combined(A, self.G, B))
        return lambda f: solve(f.reshape(-1)).reshape(f.shape)


def scale(diagonal, parts):
    """Parameters ``(r_N (n,), r_F (n, d))`` of the natural map from the diagonal of G, (n, d + 1), and the columns of the discs."""
    # One per disc keeps it round; the mean is exact for isotropic inertia.
    g = [diagonal[:, :1], *(jnp.broadcast_to(jnp.mean(x, axis=1, keepdims=True), x.shape) for x in (diagonal[:, part] for part in parts))]
    g = jnp.concatenate(g, axis=1)
    r = jnp.where(g > 0, 1 / jnp.where(g > 0, g, 1), 1)
    return r[:, 0], r[:, 1:]


def combined(A, G, B):
    """Matrix ``A G + B``, with blocks A and B."""
    n, m, _ = A.shape
    rows = G.reshape(n, m, n * m)
    product = sum(A[:, :, j, None] * rows[:, j, None, :] for j in range(m)).reshape(n * m, n, m)
    # The blocks of B are added where they belong, by a mask: row by row, each to the columns of its contact.
    own = (jnp.arange(n * m)[:, None] // m == jnp.arange(n)[None, :])[:, :, None]
    return (product + jnp.where(own, B.reshape(n * m, 1, m), 0)).reshape(n * m, n * m)


def per_contact(x, n, d):
    """(n, d + 1) from a vector in internal order (see `problem.join`)."""
    return jnp.concatenate([x[n * d :, None], x[: n * d].reshape(n, d)], axis=1)


def internal(x):
    """Inverse of `per_contact`."""
    return jnp.concatenate([x[:, 1:].reshape(-1), x[:, 0]])


class Chain(NamedTuple):
    """G of contacts in an order in which groups of them meet the next and the last group only: a block tridiagonal matrix.

    ``A G + B`` is factored group by group, with row exchanges inside of a group: n k^2 operations for groups of k contacts, not n^3.
    """

    middle: jax.Array  # (groups, s, s), s = k (d + 1)
    right: jax.Array  # (groups, s, s) to the next group; zero for the last
    left: jax.Array  # (groups, s, s) to the group before; zero for the first
    m: int  # d + 1

    @classmethod
    def of(cls, G, groups, active, m):
        """That of a dense G, m rows contact by contact, for ``groups`` (groups, k) of contacts; those not ``active`` (n + 1,) drop out."""
        rows = (m * groups[:, :, None] + jnp.arange(m)[None, None, :]).reshape(len(groups), -1)
        there = jnp.repeat(active[groups], m, axis=1)

        def blocks(shift, end):
            mask = jnp.roll(there, shift, axis=0)
            mask = mask if end is None else mask & (jnp.arange(len(mask)) != end % len(mask))[:, None]
            entries = G[rows[:, :, None], jnp.roll(rows, shift, axis=0)[:, None, :]]
            return jnp.where(there[:, :, None] & mask[:, None, :], entries, 0)

        return cls(blocks(0, None), blocks(-1, -1), blocks(1, 0), m)

    def apply(self, x):
        y = x.reshape(self.middle.shape[:2])
        # What the roll takes around the end meets blocks of zeros.
        parts = (self.middle, y), (self.right, jnp.roll(y, -1, axis=0)), (self.left, jnp.roll(y, 1, axis=0))
        return sum(jnp.einsum("gij,gj->gi", block, part, precision="highest") for block, part in parts).reshape(x.shape)

    def sizes(self, x):
        return Chain(*map(jnp.abs, self[:3]), self.m).apply(x)

    def row(self, i, x):
        count, s, _ = self.middle.shape
        m, x = self.m, x.reshape(count, s)
        group, first = i * m // s, i * m % s
        middle, right, left = (lax.dynamic_slice(part, (group, first, 0), (1, m, s))[0] for part in self[:3])
        parts = (middle, x[group]), (right, x[(group + 1) % count]), (left, x[group - 1])
        return sum(linalg.matmul(block, y) for block, y in parts), lax.dynamic_slice_in_dim(middle, first, m, axis=1)

    def scale(self, parts):
        return scale(jnp.diagonal(self.middle, axis1=1, axis2=2).reshape(-1, self.m), parts)

    def factor(self, A, B):
        count, s, _ = self.middle.shape
        m = self.m
        A, B = (x.reshape(count, s // m, m, m) for x in (A, B))
        middle = jax.vmap(combined)(A, self.middle, B)
        right, left = (jax.vmap(combined, (0, 0, None))(A, side, jnp.zeros_like(B[0])) for side in (self.right, self.left))

        def eliminate(last, blocks):
            middle, right, left = blocks
            factors = linalg.Factors.of(middle - linalg.matmul(left, last))
            out = factors.solve(right)
            return out, (factors, out)

        _, (factors, out) = lax.scan(eliminate, jnp.zeros_like(right[0]), (middle, right, left))

        def forward(last, parts):
            factors, left, f = parts
            y = factors.solve(f - linalg.matmul(left, last))
            return y, y

        def backward(following, parts):
            out, y = parts
            x = y - linalg.matmul(out, following)
            return x, x

        def solve(f):
            f = f.reshape(count, s)
            _, y = lax.scan(forward, jnp.zeros_like(f[0]), (factors, left, f))
            _, x = lax.scan(backward, jnp.zeros_like(f[0]), (out, y), reverse=True)
            return x.reshape(-1, m)

        return solve


def groups_of(G, n):
    """Groups of contacts that make G a `Chain`, (groups, k), filled up with n; None where it is not worth it. For known values.

    The contacts are ordered by the search of Cuthill & McKee (1969): level by level of their distance from one at the rim. Contacts
    of bodies that have nothing to do with each other come one after the other.
    """
    m = len(G) // n
    meets = np.abs(G).reshape(n, m, n, m).max(axis=(1, 3)) > 0
    meets |= meets.T
    np.fill_diagonal(meets, False)
    degree = meets.sum(axis=1)
    order, seen = [], np.zeros(n, bool)

    def search(start, seen):
        """Contacts from ``start`` on, level by level."""
        found, level, seen = [start], [start], seen.copy()
        seen[start] = True
        while level:
            following = []
            for i in level:
                new = np.flatnonzero(meets[i] & ~seen)
                new = new[np.argsort(degree[new], kind="stable")]
                seen[new] = True
                following += list(new)
            found, level = found + following, following
        return found, seen

    for start in np.argsort(degree, kind="stable"):
        if not seen[start]:
            rim = search(start, seen)[0][-1]
            found, seen = search(rim, seen)
            order += found
    place = np.empty(n, int)
    place[order] = np.arange(n)
    first, second = place[np.array(np.nonzero(meets))]
    width = int(np.abs(first - second).max(initial=1))
    k = next(k for k in range((width + 1) // 2, width + 1) if np.abs(first // k - second // k).max(initial=0) <= 1)
    if k > WORTH * n:
        return None
    return np.concatenate([order, np.full(-n % k, n)]).reshape(-1, k).astype(np.int32)
