"""Dry friction in joints and guides: a set-valued law whose bound is given, solved together with the contacts.

Invariant: with the velocities ``gamma_D = W_D^T u + chi_D`` after the step and the bounds ``tau dt`` of a step, for every row

    -gamma_D in the normal cone of [-tau dt, tau dt] at P_D,      that is  -P_D in tau dt Sign(gamma_D)

as a contact has it for the bound mu P_N (Moreau 1988; C18 (30)); without restitution. So a row is solved as a *contact whose normal
percussion is given*: a normal row of its own, which no velocity feels, ``xi_N = g (P_N - s)``, has the solution P_N = s, and the
coefficient of friction ``tau dt / s`` makes of it the bound. With s the value of ``tau dt`` the coefficient is one, and carries the
derivative. All contact solvers take such problems, and none knows of dry friction.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .. import contact
from ..mechanics import laws
from ..mechanics.local import Kinematics
from ..numerics import linalg


class Dry(NamedTuple):
    """Dry friction in a step: directions, their velocities at u = 0, and the bounds of the percussions."""

    W: jax.Array  # (n_u, n_D)
    chi: jax.Array  # (n_D,)
    bound: jax.Array  # (n_D,)


def of(system, t, q, u, dt):
    """`Dry` of a step of length ``dt`` with its directions at (t, q), or None; of ``u`` only the shape matters."""
    tau = laws.dry_friction(system, t, q, u)
    if tau is None:
        return None
    u = jnp.zeros_like(u)
    chi = jnp.zeros(tau.shape, u.dtype) if system.scleronomic else system.dry_velocity(t, q, u)
    return Dry(system.W_D(t, q, u), chi, dt * tau)


class Joined:
    """The contacts of a step, n with d directions, and its rows of dry friction behind them as contacts of given normal percussion.

    Of the directions of such a contact the first is its own; the others, and those of contacts without friction, are felt by nothing.
    Without dry friction (``dry`` None) it is what it is given.
    """

    def __init__(self, dry, n, d):
        self.dry, self.contacts, self.directions = dry, n, d
        self.n_D = 0 if dry is None else dry.bound.shape[0]
        # Where there is no contact they are as few as can be.
        self.n, self.d = (n, d) if dry is None else (n + self.n_D, max(d, 1) if n else 1)
        if not n:
            self.directions = 0

    def rows(self, x, along, normal):
        """Rows (n (d + 1), ...) in the contact solver's order, of those of the contacts and of dry friction, (n_D, ...) each."""
        if self.dry is None:
            return x
        n, d, rest = self.contacts, self.directions, x.shape[1:]
        x_F, x_N = x[: n * d].reshape(n, d, *rest), x[n * d :]
        more = [(0, 0)] * len(rest)
        x_F = jnp.pad(x_F, ((0, 0), (0, self.d - d), *more))
        along = jnp.pad(along[:, None], ((0, 0), (0, self.d - 1), *more))
        return jnp.concatenate([jnp.concatenate([x_F, along]).reshape(self.n * self.d, *rest), x_N, normal])

    def kinematics(self, kin):
        """`Kinematics` of all."""
        if self.dry is None:
            return kin
        W, chi, _ = self.dry
        nothing = jnp.zeros_like(W.T)
        return Kinematics(self.rows(kin.W.T, W.T, nothing).T, self.rows(kin.chi, chi, nothing[:, 0]), kin.W_b, kin.chi_b)

    def law(self, law):
        """`velocity.Law` of all."""
        if self.dry is None:
            return law
        zero = jnp.zeros_like(self.dry.bound)
        mu = self.dry.bound / self.given()
        if law.mu.ndim > 1 and self.contacts:
            # Further sets, of rolling and drilling, have no friction.
            mu = jnp.pad(mu[:, None], ((0, 0), (0, law.mu.shape[1] - 1)))
        mu = jnp.concatenate([law.mu, mu]) if self.contacts else mu
        least = None if law.least is None else jnp.concatenate([law.least, zero])
        return law._replace(rebound=self.rows(law.rebound, zero, zero), mu=mu, least=least)

    def discs(self, sizes):
        """Directions of every disc of a contact, of those of the contacts."""
        return sizes if self.contacts or self.dry is None else None

    def given(self):
        """Normal percussions (n_D,) that are given, constants: the bounds, so that the coefficients are one."""
        bound = lax.stop_gradient(self.dry.bound)
        # Where there is none the coefficient is zero, and has a derivative.
        return jnp.where(bound > 0, bound, float(jnp.finfo(bound.dtype).eps))

    def active(self, active):
        """Which contacts are active: those of dry friction are."""
        return active if self.dry is None else jnp.concatenate([active, jnp.ones((self.n_D,), bool)])

    def guess(self, z, P_D):
        """Percussions of all."""
        return z if self.dry is None else self.rows(z, jnp.zeros_like(self.dry.bound) if P_D is None else P_D, self.given())

    def part(self, z):
        """``(z, P_D)`` of percussions of all."""
        if self.dry is None:
            return z, None
        P_N, P_F = contact.split(z, self.n, self.d)
        n, d = self.contacts, self.directions
        return contact.join(P_N[:n], P_F[:n, :d]), P_F[n:, 0]

    def operator(self, G):
        """Delassus operator of all: what no velocity feels feels itself alone, as its contact's own direction does."""
        if self.dry is None:
            return G
        pairs = [(self.n * self.d + i, i * self.d) for i in range(self.contacts, self.n)]
        pairs += [(i * self.d + j, i * self.d) for i in range(self.contacts, self.n) for j in range(1, self.d)]
        if not self.directions:  # of contacts without friction
            pairs += [(i, self.n * self.d + i) for i in range(self.contacts)]
        rows, own = np.array(pairs).T
        positive = linalg.elementwise(lambda g: jnp.where(g > 0, g, 1))(contact.problem.diagonal(G)[own])
        if linalg.is_unpacked(G):
            G = G.copy()
            G[rows, rows] = positive
            return G
        return G + jnp.diag(jnp.zeros_like(G[0]).at[rows].set(positive, mode="promise_in_bounds", unique_indices=True))

    def free(self, G, c):
        """``c`` of the contact problem with the operator ``G``, with what it takes for the given normal percussions."""
        if self.dry is None:
            return c
        g, first = contact.problem.diagonal(G), self.n * self.d + self.contacts
        given = linalg.unpack(self.given()) if linalg.is_unpacked(G) else self.given()
        return linalg.concatenate([c[:first], -g[first:] * given])
