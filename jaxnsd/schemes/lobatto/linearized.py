"""The equations of the stages, linearized: velocities and bilateral percussions are condensed away, the contacts are left."""

import copy
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ... import contact
from ...numerics import butcher, linalg, thresholds
from .elimination import eliminate, structure
from .equations import combine


def with_value(function):
    """The Jacobian of a function, and its value."""
    return jax.jacfwd(lambda y: 2 * (function(y),), has_aux=True)


def apply(X, y):
    """Products of a stack of matrices with a stack of vectors or of columns."""
    if y.ndim == 2:
        return jnp.sum(X * y[:, None, :], axis=2)
    # Behind a barrier: fused with what makes y, the sum would make y again for every row.
    y = lax.optimization_barrier(y)
    return jnp.stack([linalg.matmul(X[i], y[i]) for i in range(X.shape[0])])


def first(x):
    """``x`` of the stages from the second on, with zeros for the first."""
    return jnp.concatenate([jnp.zeros_like(x[:1]), x]) if x.shape[0] else jnp.zeros((1, *x.shape[1:]), x.dtype)


class Linearized:
    """Derivatives of the equations of the stages, with velocities condensed away.

    With the bilateral percussions condensed away too, see `condensed`, the contacts of all stages are left: ``xi = G z + c``.
    """

    def __init__(self, stages, args, x):
        self.stages, self.args = stages, args
        self.tableau = stages.tableau(x.V.dtype)
        self.differentiate(x)
        self.eliminate()

    def differentiate(self, x):
        """Derivatives stage by stage: of momenta, rows and impulses."""
        stages, (system, _, dt, q, _) = self.stages, self.args
        t, Q, V = stages.times(self.args), stages.positions(self.args, x), x.V
        self.positions = Q[1:]

        # Momenta and velocities are affine in V: what they are multiplied by is the mass matrix and the force directions.
        self.p_V = jax.vmap(lambda *stage: stages.mass(system, *stage))(t, Q, V)
        self.W = jax.vmap(lambda *stage: stages.directions(system, *stage))(t[:-1], Q[:-1], V[:-1])
        self.rows_V = jax.vmap(lambda *stage: stages.rates(system, *stage))(t[1:], Q[1:], V[1:])
        # The coordinates of the first stage are known.
        law = jax.vmap(lambda t, Q, V: with_value(lambda Q: stages.law(system, dt, t, Q, V))(Q))
        (self.p_Q, self.rows_Q, v_Q), (p, rows, q_dot) = law(t[1:], Q[1:], V[1:])
        force = jax.vmap(lambda t, Q, V, R: with_value(lambda V: stages.force(system, dt, t, Q, V, R))(V))
        self.F_V, F = force(t[:-1], Q[:-1], V[:-1], x.R)
        force = jax.vmap(lambda t, Q, V, R: jax.jacfwd(lambda Q: stages.force(system, dt, t, Q, V, R))(Q))
        self.F_Q = force(t[1:-1], Q[1:-1], V[1:-1], x.R[1:]) if stages.s > 2 else jnp.zeros((0, F.shape[1], q.shape[0]), q.dtype)
        if stages.quasi:
            self.coordinates(v_Q, jax.vmap(jax.jacfwd(system.q_dot, 2))(t, Q, V))
            q_dot = jnp.concatenate([system.q_dot(t[0], q, V[0])[None], q_dot])
        p = jnp.concatenate([stages.momentum(system, t[0], q, V[0])[None], p])
        self.values = stages.assembled(self.args, x, p, rows, q_dot, F, stages.momentum(system, self.args.t, q, self.args.u))

    def coordinates(self, v_Q, v_V):
        """``T = dQ/dV`` (s - 1, s, n_q, n_u) from the implicit equations of the coordinates."""
        k, n_q, n_u = self.stages.s - 1, v_Q.shape[2], v_V.shape[2]
        a = self.args.dt * self.tableau.a[1:]
        own = jnp.eye(k * n_q, dtype=a.dtype) - (a[:, None, 1:, None] * v_Q.swapaxes(0, 1)[None]).reshape(k * n_q, k * n_q)
        self.solve_Q = linalg.lu(own)
        T = self.solve_Q((a[:, None, :, None] * v_V.swapaxes(0, 1)[None]).reshape(k * n_q, (k + 1) * n_u))
        self.T = T.reshape(k, n_q, k + 1, n_u).swapaxes(1, 2)

    def dQ(self, dV):
        """Changes of Q^2..Q^s for changes of V, (s, n_u) or columns (s, n_u, m)."""
        if not self.stages.quasi:
            return self.args.dt * combine(self.tableau.a[1:], dV)
        k, s, n_q, n_u = self.T.shape
        return linalg.matmul(self.T.swapaxes(1, 2).reshape(k * n_q, s * n_u), dV.reshape(s * n_u, *dV.shape[2:])).reshape(
            k, n_q, *dV.shape[2:]
        )

    def through_Q(self, X):
        """``X^i dQ^i/dV^k`` for all k and matrices X of the stages from the second on: (stages, s, rows, n_u)."""
        k = X.shape[0]
        if not self.stages.quasi:
            return (self.args.dt * self.tableau.a[1 : k + 1])[:, :, None, None] * X[:, None]
        return jnp.sum(X[:, None, :, :, None] * self.T[:k, :, None, :, :], axis=3)

    def eliminate(self):
        """``A^-1`` for ``A = d balance / d V``."""
        s = self.stages.s
        block, depends = self.coupled() if self.stages.quasi else self.scaled, structure(s, self.stages.quasi)
        self.solve = eliminate([[block(i, k) if depends[i, k] else None for k in range(s)] for i in range(s)])

    def coupled(self):
        """Block (i, k) of A, as a function of both, where the coordinates of a stage depend on the velocities of all of them."""
        a_hat = self.tableau.a_hat
        eye = jnp.eye(len(a_hat), dtype=a_hat.dtype)[:, :, None, None]
        forces = eye[:-1] * self.F_V[:, None] + first(self.through_Q(self.F_Q))
        A = eye * self.p_V[:, None] + first(self.through_Q(self.p_Q)) - combine(a_hat[:, :-1], forces)
        return lambda i, k: A[i, k]

    def scaled(self, i, k):
        """The same where coordinates are those of C24 (62): few matrices, times coefficients of which most vanish."""
        _, _, a, a_hat = butcher.lobatto(self.stages.s)
        terms = [self.p_V[i]] if i == k else []
        if a[i, k]:
            terms.append(float(a[i, k]) * self.args.dt * self.p_Q[i - 1])
        for j in np.flatnonzero(a_hat[i, :-1]):
            if j == k:
                terms.append(-float(a_hat[i, j]) * self.F_V[j])
            if a[j, k]:
                terms.append(-float(a_hat[i, j] * a[j, k]) * self.args.dt * self.F_Q[j - 1])
        return functools.reduce(jnp.add, terms)

    def rows(self, dV, dQ):
        """Changes of the bilateral rows, stage by stage, and of the contact rows in the contact solver's order."""
        change = apply(self.rows_Q, dQ) + apply(self.rows_V, dV[1:])
        (n, d), m = self.stages.shape, self.stages.m
        bilateral, tangential, normal = (
            part.reshape(part.shape[0] * part.shape[1], *part.shape[2:])
            for part in (change[:, m:], change[:, : n * d], change[:, n * d : m])
        )
        return bilateral, jnp.concatenate([tangential, normal])

    def rounding(self, positions, rows):
        """What rounding makes of the ``rows`` (s - 1, ...) at ``positions``.

        Of the coordinates, and of what a row has beside them: the lengths that a gap is the difference of need not be coordinates, and may
        cancel, of a box that lies on a table where its coordinates are zero.
        """
        beside = jnp.abs(rows - apply(self.rows_Q, positions))
        (n, d), m = self.stages.shape, self.stages.m
        beside = beside.at[:, n * d : m].add(self.args.system.gap_size() / self.args.dt)
        return thresholds.round_off(rows.dtype) * (apply(jnp.abs(self.rows_Q), jnp.abs(positions)) + beside)

    def condensed(self, choice=None):
        """The same with the bilateral percussions condensed away, and of the contacts only the chosen ones."""
        view = copy.copy(self)
        if choice is not None:
            stages = self.stages
            view.stages = dataclasses.replace(stages, shape=(choice.size, stages.shape[1]))
            view.W = stages.chosen(choice, self.W, axis=2)
            view.rows_Q, view.rows_V = stages.chosen(choice, self.rows_Q), stages.chosen(choice, self.rows_V)
            view.values = stages.seen(choice, self.values)
        view.condense()
        return view

    def condense(self):
        """Effect of the percussions on velocities and rows, with the bilateral rows kept at zero."""
        stages = self.stages
        (n, d), s, m = stages.shape, stages.s, stages.m
        self.m_b = m_b = (s - 1) * stages.n_b
        # Column j of stage i: a_hat_ij W^j; bilateral ones first, then the contact solver's order.
        columns = self.tableau.a_hat[:, None, :-1, None] * self.W.swapaxes(0, 1)[None]
        parts = [columns[..., m:], columns[..., : n * d], columns[..., n * d : m]]
        n_u = columns.shape[1]
        Y = self.solve(jnp.concatenate([part.reshape(s, n_u, (s - 1) * part.shape[3]) for part in parts], axis=2))
        Y = lax.optimization_barrier(Y)
        rows_b, rows = self.rows(Y, self.dQ(Y))
        self.Y_b, self.Y, self.G = Y[..., :m_b], Y[..., m_b:], rows[:, m_b:]
        if m_b:
            diagonal = contact.diagonal(rows_b[:, :m_b])
            self.r_b = jnp.where(diagonal > 0, 1 / jnp.where(diagonal > 0, diagonal, 1), 1)
            inverse = linalg.lu(self.r_b[:, None] * rows_b[:, :m_b], guard=True)
            self.solve_b = lambda x: inverse(self.r_b.reshape(-1, *(1,) * (x.ndim - 1)) * x)
            rows, rows_b = lax.optimization_barrier((rows, rows_b))
            self.G_cb = rows[:, :m_b]
            if m:
                self.B = lax.optimization_barrier(self.solve_b(rows_b[:, m_b:]))  # bilateral percussion per contact percussion
                self.Y = self.Y - linalg.matmul(self.Y_b.reshape(-1, m_b), self.B).reshape(self.Y.shape)
                self.G = self.G - linalg.matmul(self.G_cb, self.B)

    def free(self, values):
        """``(dV, dQ, dR_b, xi)`` that make the equations' ``values`` vanish, without a change of the contact percussions."""
        balance, offset = values.balance, 0
        if self.stages.quasi:
            offset = -self.solve_Q(values.drift.reshape(-1)).reshape(values.drift.shape)
            balance = balance + first(apply(self.p_Q, offset))
            balance = balance - combine(self.tableau.a_hat[:, :-1], first(apply(self.F_Q, offset[:-1])))
        dV = self.solve(-balance)
        dQ = self.dQ(dV) + offset
        rows, xi = self.rows(dV, dQ)
        xi, dR_b = self.stages.join(values.rows) + xi, None
        if self.m_b:
            dR_b = -self.solve_b(values.rows[:, self.stages.m :].reshape(-1) + rows)
            change = jnp.sum(self.Y_b * dR_b[None, None], axis=2)
            dV, dQ, xi = dV + change, dQ + self.dQ(change), xi + linalg.matmul(self.G_cb, dR_b)
        return dV, dQ, dR_b, xi

    def add(self, dV, dQ, dR_b, dz):
        """``(dV, dQ, dR_b)`` with a change of the contact percussions."""
        change = jnp.sum(self.Y * dz[None, None], axis=2)
        if self.m_b:
            dR_b = dR_b - linalg.matmul(self.B, dz)
        return dV + change, dQ + self.dQ(change), dR_b
