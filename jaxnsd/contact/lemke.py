"""Lemke's method: the complete solver of small contact problems, frictionless, planar or with a polyhedral friction cone.

Planar Coulomb friction is a linear complementarity problem, in the form of Stewart & Trinkle (1996): with the percussions
``beta_k >= 0`` along directions ``D_k`` (for planar contacts ``+T`` and ``-T``) and a bound ``lambda`` of the slip velocity

    0 <= P_N   _|_  xi_N >= 0,     0 <= beta_k  _|_  D_k^T xi_F + lambda >= 0,     0 <= lambda  _|_  mu P_N - sum_k beta_k >= 0

Its matrix is copositive, so that Lemke's method ends with a solution wherever no percussion of the friction cones is without effect
(Anitescu & Potra 1997, Theorem 1). Ties, of which redundant contacts have many, are broken as if the right-hand side were moved by
an infinitesimal random vector: the method cannot cycle.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from ..linalg import matmul
from .problem import join, scale

#: Round-off of the pivoting, in units of the machine precision: variables of that size tie.
TIE = 64


def directions(d, count):
    """Unit directions of a polyhedral friction cone, (count, d); two for planar contacts, none without friction."""
    if d == 0:
        return np.zeros((0, 0))
    if d == 1:
        return np.array([[1.0], [-1.0]])
    angle = 2 * np.pi * np.arange(count) / count
    return np.stack([np.cos(angle), np.sin(angle)], axis=1)


def least(x):
    """Index of the smallest entry; unlike `jnp.argmin` it stays within one native loop of XLA's CPU backend."""
    index = jnp.arange(x.shape[0], dtype=jnp.int32)
    return jnp.min(jnp.where(x == jnp.min(x), index, x.shape[0] - 1))


class Dictionary(NamedTuple):
    """State of the pivoting: ``basic = T (nonbasic, 1, perturbation)``; variables are numbered w, then x, then the covering one."""

    T: object  # (N, N + 3)
    basic: object  # (N,) numbers of the basic variables
    nonbasic: object  # (N + 1,) numbers of the nonbasic ones
    entering: object  # place of the entering variable among the nonbasic ones
    count: object


def lemke(M, q, pivots, unsolved):
    """``x >= 0`` with ``w = M x + q >= 0`` and ``x w = 0`` by Lemke's method, (N,); what it has when it ends in a ray or unfinished.

    ``M`` and ``q`` have entries of order one. At most so many ``pivots``; none where the problem is not ``unsolved``.
    """
    N, dtype = q.shape[0], q.dtype
    eps = float(jnp.finfo(dtype).eps)
    small, cover = eps**0.6, 2 * N
    # The covering and the infinitesimal vector: any that are positive and have no relation to the problem. With ones in the former the
    # last pivot of a symmetric problem ties with others, and it is decided by round-off whether they are right.
    draw = np.random.default_rng(0).uniform(1, 2, (N, 2))
    covering, noise = jnp.asarray(draw[:, :1], dtype), jnp.asarray(draw[:, 1:], dtype)
    T = jnp.concatenate([M, covering, q[:, None], noise], axis=1)
    number = jnp.arange(2 * N + 1, dtype=jnp.int32)

    def exchange(state, r):
        """The basic variable of row r and the entering one change places; the complement of the former enters next."""
        T, basic, nonbasic, s, count = state
        row, column = lax.dynamic_index_in_dim(T, r, 0, False), lax.dynamic_index_in_dim(T, s, 1, False)
        unit_r, unit_s = jnp.arange(N) == r, jnp.arange(N + 3) == s
        pivot = lax.dynamic_index_in_dim(row, s, 0, False)
        row = jnp.where(unit_s, 1, -row) / pivot
        T = jnp.where(unit_r[:, None], row[None, :], jnp.where(unit_s[None, :], 0, T) + column[:, None] * row[None, :])
        leaving, entering = basic[r], nonbasic[s]
        basic, nonbasic = jnp.where(unit_r, entering, basic), jnp.where(unit_s[: N + 1], leaving, nonbasic)
        complement = jnp.where(leaving < N, leaving + N, leaving - N)
        return Dictionary(T, basic, nonbasic, least(jnp.where(nonbasic == complement, 0, 1)), count + 1)

    def leaving(state):
        """Row of the variable that reaches zero first; -1: none does."""
        T, basic, _, s, _ = state
        column = -lax.dynamic_index_in_dim(T, s, 1, False)
        value, tie = T[:, N + 1], T[:, N + 2]
        candidate = column > small
        size = jnp.where(candidate, column, 1)
        step = jnp.maximum(jnp.min(jnp.where(candidate, value / size, jnp.inf)), 0)
        # All that reach zero with it, up to round-off; the covering variable among them ends the search.
        near = candidate & (value - column * step <= TIE * eps * (1 + column * step))
        ends = near & (basic == cover)
        row = least(jnp.where(jnp.where(jnp.any(ends), ends, near), tie / size, jnp.inf))
        return jnp.where(jnp.any(candidate), row, -1)

    def unfinished(carry):
        state, row = carry
        return (row >= 0) & (state.count < pivots)

    def step(carry):
        state, row = carry
        done = state.basic[row] == cover
        state = exchange(state, row)
        return state, jnp.where(done, -1, leaving(state))

    start = Dictionary(T, number[:N], number[N:], jnp.asarray(N, jnp.int32), jnp.zeros((), jnp.int32))
    # The covering variable enters first, as far as it takes to make all others nonnegative.
    row = jnp.where(unsolved & jnp.any(q < 0), least(q / covering[:, 0]), -1)
    state, _ = lax.while_loop(unfinished, step, (start, row))
    return refine(M, q, state), state.count


def refine(M, q, state):
    """The basic solution, with what the pivots have lost in round-off brought back: the dictionary holds the inverse of the basis."""
    N = q.shape[0]
    T, basic, nonbasic, _, _ = state
    number = jnp.arange(N)
    rows = (basic[:, None] == (number + N)[None, :]).astype(q.dtype)  # rows of the basic x
    columns = (nonbasic[:, None] == number[None, :]).astype(q.dtype)  # columns of the nonbasic w
    inverse = matmul(matmul(rows.T, T[:, : N + 1]), columns)
    closed, x = jnp.any(rows > 0, axis=0), matmul(rows.T, T[:, N + 1])

    def error(x):
        return jnp.max(jnp.abs(jnp.minimum(x, matmul(M, x) + q)))

    x = jnp.where(closed, jnp.maximum(x, 0), 0)
    for _ in range(2):
        better = x - jnp.where(closed, matmul(inverse, matmul(M, x) + q), 0)
        better = jnp.where(closed, jnp.maximum(better, 0), 0)
        x = jnp.where(error(better) < error(x), better, x)
    return x


def complete(problem, unsolved, edges=8):
    """Percussions in internal order by `lemke`: exact for d <= 1, with a friction cone of so many ``edges`` for d = 2."""
    n, d = problem.n, problem.d
    dtype = problem.c.dtype
    D = directions(d, edges)
    K = len(D)
    # z = scale B (P_N, beta): every contact in units in which its own Delassus operator is one.
    B = np.zeros((n * (d + 1), n * (1 + K)))
    B[n * d :, :n] = np.eye(n)
    B[: n * d, n:] = np.kron(np.eye(n), D.T)
    E = np.kron(np.eye(n), np.ones((K, 1)))
    B, E = jnp.asarray(B, dtype), jnp.asarray(E, dtype)
    s_N, s_F = (jnp.sqrt(r) for r in scale(problem.G, n, d))
    s = join(s_N, jnp.broadcast_to(s_F[:, None], (n, d)))
    unit = jnp.max(jnp.where(join(problem.active, jnp.broadcast_to(problem.active[:, None], (n, d))), s * jnp.abs(problem.c), 0))
    unit = jnp.where(unit > 0, unit, 1)
    M = matmul(matmul(B.T, s[:, None] * problem.G * s[None, :]), B)
    q = matmul(B.T, s * problem.c / unit)
    active = jnp.concatenate([problem.active, jnp.repeat(problem.active, K)])
    if K:
        cone = jnp.concatenate([jnp.diag(problem.mu * s_N / s_F), -E.T], axis=1)
        slip = jnp.concatenate([jnp.zeros((n, n), dtype), E])
        M = jnp.block([[M, slip], [cone, jnp.zeros((n, n), dtype)]])
        q, active = jnp.concatenate([q, jnp.zeros((n,), dtype)]), jnp.concatenate([active, problem.active])
    M, q = jnp.where(active[:, None] & active[None, :], M, 0), jnp.where(active, q, 1)
    x, pivots = lemke(M, q, 50 + 10 * len(q), unsolved)
    return unit * s * matmul(B, x[: n * (1 + K)]), pivots
