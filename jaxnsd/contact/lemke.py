"""Lemke's method: the complete solver of small contact problems, frictionless, planar or with a polyhedral friction cone.

Planar Coulomb friction is a linear complementarity problem, in the form of Stewart & Trinkle (1996): with the percussions
``beta_k >= 0`` along directions ``D_k`` (for planar contacts ``+T`` and ``-T``) and a bound ``lambda`` of the slip velocity

    0 <= P_N   _|_  xi_N >= 0,     0 <= beta_k  _|_  D_k^T xi_F + lambda >= 0,     0 <= lambda  _|_  mu P_N - sum_k beta_k >= 0

Its matrix is copositive, so that Lemke's method ends with a solution wherever the free velocity yields no power, ``c . P >= 0``, to the
percussions P of the friction cones that are without effect (Anitescu & Potra 1997, Theorem 1). Of a body that is wedged and yet asked to
bounce it may end in a ray, beside a solution: other covering vectors lead elsewhere, and then the `tree` of all modes is searched.
Ties, of which redundant contacts have many, are broken as if the right-hand side were moved by an infinitesimal random vector: the
method cannot cycle.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..numerics.linalg import matmul
from . import tree
from .problem import beside, broadcast, join, scale, split

#: Round-off of the pivoting, in units of the machine precision: variables of that size tie, pivots of that size are none.
TIE = 64


def least(x):
    """Index of the smallest entry; unlike `jnp.argmin` it stays within one native loop of XLA's CPU backend."""
    index = jnp.arange(x.shape[0], dtype=jnp.int32)
    return jnp.min(jnp.where(x == jnp.min(x), index, x.shape[0] - 1))


#: Attempts on planar problems before all their modes are searched, and what the covering vectors of every other one spread over, as a
#: power of the machine precision. Of ten solvable problems that narrow ones leave a wide one solves each with a chance of 3 to 50 %.
ATTEMPTS, WIDE = 4, -0.4


class Dictionary(NamedTuple):
    """State of the pivoting: ``basic = T (nonbasic, 1, perturbation)``; variables are numbered w, then x, then the covering one."""

    T: object  # (N, N + 3)
    basic: object  # (N,) numbers of the basic variables
    nonbasic: object  # (N + 1,) numbers of the nonbasic ones
    entering: object  # place of the entering variable among the nonbasic ones
    count: object


def lemke(M, q, pivots, attempt, wide=None):
    """``x >= 0`` with ``w = M x + q >= 0`` and ``x w = 0`` by Lemke's method, (N,), and the number of pivots; where
    the method ends in a ray, or is not finished, what it has then.

    ``M`` and ``q`` have entries of order one. At most so many ``pivots``. Every ``attempt`` takes another way to a solution; ways that are
    ``wide`` differ more.
    """
    N, dtype = q.shape[0], q.dtype
    eps = float(jnp.finfo(dtype).eps)
    small, cover = TIE * eps, 2 * N
    # The covering and the infinitesimal vector: any that are positive and have no relation to the problem. With ones in the former the
    # last pivot of a symmetric problem ties with others, and it is decided by round-off whether they are right.
    draw = np.random.default_rng(0).uniform(1, 2, (N, 2))
    covering, noise = jnp.roll(jnp.asarray(draw[:, :1], dtype), attempt), jnp.asarray(draw[:, 1:], dtype)
    if wide is not None:
        covering = jnp.where(wide, covering ** float(np.log2(eps**WIDE)), covering)
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
    row = jnp.where(jnp.any(q < 0), least(q / covering[:, 0]), -1)
    state, _ = lax.while_loop(unfinished, step, (start, row))
    return refine(M, q, state), state.count


def refine(M, q, state):
    """The basic solution, with what the pivots have lost in round-off brought back: the dictionary holds the inverse of the basis."""
    N = q.shape[0]
    T, basic, nonbasic, _, _ = state
    number = jnp.arange(N)
    rows = (basic[:, None] == (number + N)[None, :]).astype(q.dtype)  # rows of the basic x
    columns = (nonbasic[:, None] == number[None, :]).astype(q.dtype)  # columns of the nonbasic w
    closed = jnp.any(rows > 0, axis=0)

    def better(_, carry):
        """The step to w = 0 from the best so far; the first one leads to the basic solution itself."""
        x, w, error = carry
        y = matmul(rows.T, jnp.where(jnp.isinf(error), T[:, N + 1], -matmul(T[:, : N + 1], matmul(columns, w))))
        y = jnp.where(closed, jnp.maximum(x + y, 0), 0)
        w_y = matmul(M, y) + q
        error_y = jnp.max(jnp.abs(jnp.minimum(y, w_y)))
        return jax.tree.map(lambda a, b: jnp.where(error_y < error, a, b), (y, w_y, error_y), carry)

    nothing = jnp.zeros_like(q)
    return lax.fori_loop(0, 3, better, (nothing, nothing, jnp.full((), jnp.inf, q.dtype)))[0]


class Cones(NamedTuple):
    """Polyhedral cones of the discs in a plane: two edges next to one in the middle, three around on the other side."""

    middle: object  # (n, number of such discs) angle of an edge
    attempt: object  # number of the attempt, which tells how close the next edges are
    tree: object = None  # where the search of all modes is (`tree.Tree`), for problems that are `tree.searched`


#: Edges of a polyhedral cone, by the number of its disc's directions.
EDGES = (0, 2, 6)

#: Attempts with edges that are closer and closer, each half as far as the last; then the cones are turned and wide again.
CLOSER = 14


def sizes(problem):
    """Number of directions of every disc."""
    return [part.stop - part.start for part, _ in problem.discs]


def size(problem):
    """Rows of the complementarity problem."""
    return problem.n * (1 + sum(EDGES[k] + 1 for k in sizes(problem)))


def widest(problem):
    """Cones to start with: regular hexagons."""
    planes = sum(k == 2 for k in sizes(problem))
    searched = tree.root(problem.n) if tree.searched(problem) else None
    return Cones(jnp.zeros((problem.n, planes), problem.c.dtype), jnp.zeros((), jnp.int32), searched)


def attempts(problem, most):
    """Number of attempts where ``most`` are wanted, which does not bound the search of all modes."""
    return ATTEMPTS + tree.nodes(problem.n) if tree.searched(problem) else most


def exhausted(cones):
    """Whether all modes were searched."""
    return jnp.zeros((), bool) if cones.tree is None else tree.done(cones.tree)


def directions(middle, attempt):
    """Unit directions of the edges of a disc in a plane, (n, 6, 2), or along a line (``middle`` None), (1, 2, 1)."""
    if middle is None:
        return np.array([[[1.0], [-1.0]]])
    third, dtype = np.pi / 3, middle.dtype
    closer = third * 0.5 ** (attempt % CLOSER).astype(dtype)
    offsets = closer * jnp.asarray([0, 1, -1, 0, 0, 0], dtype) + jnp.asarray([0, 0, 0, 2 * third, -2 * third, np.pi], dtype)
    angle = middle[:, None] + offsets[None, :]
    return jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=2)


def edges(problem, cones):
    """Unit directions of the edges of all discs of a contact, (n, edges, d): each lies in the columns of its disc."""
    n, d, dtype, planes, parts = problem.n, problem.d, problem.c.dtype, iter(range(cones.middle.shape[1])), []
    for part, _ in problem.discs:
        plane = part.stop - part.start == 2
        own = jnp.asarray(directions(cones.middle[:, next(planes)] if plane else None, cones.attempt), dtype)
        own = jnp.broadcast_to(own, (n, *own.shape[1:]))
        parts.append(jnp.pad(own, ((0, 0), (0, 0), (part.start, d - part.stop))))
    return jnp.concatenate(parts, axis=1) if parts else jnp.zeros((n, 0, d), dtype)


def complete(problem, cones):
    """``(z, cones, pivots, near)``: percussions by `lemke`, exact for discs in one direction, the cones of the next attempt, and whether
    there may be a solution nearby.
    """
    n, d = problem.n, problem.d
    dtype, K = problem.c.dtype, sum(EDGES[k] for k in sizes(problem))
    s_N, s_F = (jnp.sqrt(r) for r in scale(problem))
    s = join(s_N, s_F)
    c = problem.c
    if problem.least is not None:
        # P_N is counted from its least value.
        least = jnp.where(problem.active, problem.least, 0)
        c = c + matmul(problem.G, join(least, jnp.zeros((n, d), dtype)))
    unit = jnp.max(jnp.where(join(problem.active, broadcast(problem.active, d)), s * jnp.abs(c), 0))
    unit = jnp.where(unit > 0, unit, 1)
    # z = unit s B (P_N, beta): every contact in units in which its own Delassus operator is one.
    eye = jnp.eye(n, dtype=dtype)
    directed = eye[:, None, :, None] * edges(problem, cones).swapaxes(1, 2)[:, :, None, :]
    B = jnp.concatenate(
        [
            jnp.concatenate([jnp.zeros((n * d, n), dtype), directed.reshape(n * d, n * K)], axis=1),
            jnp.concatenate([eye, jnp.zeros((n, n * K), dtype)], axis=1),
        ]
    )
    scaled = s[:, None] * problem.G * s[None, :], s * c / unit
    M, q = matmul(matmul(B.T, scaled[0]), B), matmul(B.T, scaled[1])
    active = jnp.concatenate([problem.active, jnp.repeat(problem.active, K)])
    first = 0
    for part, mu in problem.discs:
        count, m = EDGES[part.stop - part.start], len(M)
        member = np.zeros((K, 1))
        member[first : first + count] = 1
        first += count
        E = jnp.asarray(np.kron(np.eye(n), member), dtype)
        slip = jnp.concatenate([jnp.zeros((n, n), dtype), E, jnp.zeros((m - n - n * K, n), dtype)])
        ratio = mu * s_N / s_F[:, part.start]
        cone = jnp.concatenate([eye * ratio[None, :], -E.T, jnp.zeros((n, m - n - n * K + n), dtype)], axis=1)
        M = jnp.concatenate([jnp.concatenate([M, slip], axis=1), cone])
        inside = jnp.zeros((n,), dtype) if problem.least is None else mu * least / (unit * s_F[:, part.start])
        q, active = jnp.concatenate([q, inside]), jnp.concatenate([active, problem.active])
    M, q = jnp.where(active[:, None] & active[None, :], M, 0), jnp.where(active, q, 1)
    wide = None if cones.middle.shape[1] else cones.attempt % 2 == 1
    if cones.tree is not None:
        searching = cones.attempt >= ATTEMPTS
        law = *scaled, ratio, problem.active
        given = jnp.pad(M, (0, 1)), jnp.pad(q, (0, 1), constant_values=1)
        M, q = (jnp.where(searching, a, b) for a, b in zip(tree.program(cones.tree, *law), given, strict=True))
        wide = wide & ~searching
    x, pivots = lemke(M, q, 50 + 4 * q.shape[0], cones.attempt, wide)
    z, near, searched = matmul(B, x[: n * (1 + K)]), True, cones.tree
    if searched is not None:
        z = jnp.where(searching, tree.percussions(x[: 2 * n], ratio), z)
        violation, limit = tree.violation(*law, z), (1 + jnp.max(x)) * float(jnp.finfo(dtype).eps) ** tree.FEASIBLE
        feasible = jnp.min(matmul(M, x) + q) >= -limit
        near = ~searching | (feasible & (jnp.max(violation) <= limit))
        after = tree.following(searched, feasible, violation, problem.active)
        searched = jax.tree.map(lambda a, b: jnp.where(searching, a, b), after, searched)
    z = unit * s * z
    P_N, P_F = split(z, n, d)
    if problem.least is not None:
        P_N = P_N + least
    attempt = cones.attempt + 1
    parts, middles = [], []
    for k, (part, mu) in enumerate(problem.discs):
        P, slips = P_F[:, part], x[n * (1 + K + k) : n * (2 + K + k)] > 0
        if part.stop - part.start == 2:
            norm = jnp.sqrt(jnp.sum(P * P, axis=1))
            some = norm > 0
            # Where the contact slips the percussion belongs on the circle, not on the edge between two of its points.
            factor = jnp.where(some & slips, mu * P_N / jnp.where(some, norm, 1), 1)
            turned = jnp.asarray(2.4 * np.arange(1, n + 1), dtype) * (attempt // CLOSER).astype(dtype)
            middle = jnp.where(some, jnp.arctan2(P[:, 1], P[:, 0]), cones.middle[:, len(middles)])
            middles.append(jnp.where(attempt % CLOSER == 0, turned, middle))
            P = factor[:, None] * P
        parts.append(P)
    middle = jnp.stack(middles, axis=1) if middles else cones.middle
    return join(P_N, beside(parts, P_F)), Cones(middle, attempt, searched), pivots, near
