"""A system at one configuration, as data: what the schemes ask of contacts, constraints and inertia at one (t, q).

Contact velocities are affine in u, ``gamma = W^T u + chi``: with W and chi known at (t, q), nothing has to be asked of the system again.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from .. import contact
from ..numerics import linalg


class Kinematics(NamedTuple):
    """Force directions and velocities at u = 0, at one configuration: contact velocities are ``W^T u + chi``."""

    W: jax.Array  # (n_u, n (d + 1)) contacts, in the contact solver's order
    chi: jax.Array
    W_b: jax.Array  # (n_u, n_g + n_gamma) bilateral constraints
    chi_b: jax.Array

    def bilateral(self):
        """Those of the constraints alone."""
        return self._replace(W=self.W[:, :0], chi=self.chi[:0])

    def at_contacts(self, u):
        """Contact velocities ``W^T u + chi``, (n (d + 1),)."""
        return linalg.matmul(self.W.T, u) + self.chi

    def at_constraints(self, u):
        """Velocities of the constraints ``W_b^T u + chi_b``, (n_g + n_gamma,)."""
        return linalg.matmul(self.W_b.T, u) + self.chi_b


class Local(NamedTuple):
    """A system at one (t, q)."""

    M: jax.Array | None  # (n_u, n_u) mass matrix; None where a scheme has its factors
    gap: jax.Array  # (n,)
    kin: Kinematics

    @property
    def W_N(self):
        """Normal force directions (n_u, n)."""
        return self.kin.W[:, self.kin.W.shape[1] - self.gap.shape[0] :]

    def gap_velocity(self, u):
        """Gap velocities (n,)."""
        return linalg.matmul(self.W_N.T, u) + self.kin.chi[self.kin.chi.shape[0] - self.gap.shape[0] :]

    def take(self, choice):
        """With the contacts of a `contact.Choice` alone."""
        n, m = choice.mask.shape[1], self.kin.chi.shape[0]
        rows = m // n - 1
        kin = self.kin._replace(W=choice.rows(self.kin.W, rows, 1), chi=choice.rows(self.kin.chi, rows))
        return self._replace(gap=choice.take(self.gap), kin=kin)


def kinematics(system, t, q, u):
    """`Kinematics` of all contacts and constraints; only the shape of ``u`` is used."""
    u = jnp.zeros_like(u)
    W_N, W_F, *W_b = (of(t, q, u) for of in (system.W_N, system.W_F, system.W_g, system.W_gamma))
    if system.scleronomic:
        # Known to be zero, nothing is computed with them, nor with their derivatives.
        chi_N, chi_F, *chi_b = (jnp.zeros(x.shape[1:], x.dtype) for x in (W_N, W_F, *W_b))
    else:
        velocities = system.gap_velocity, system.tangential_velocity, system.constraint_velocity, system.velocity_constraint
        chi_N, chi_F, *chi_b = (velocity(t, q, u) for velocity in velocities)
    W = jnp.concatenate([W_F.reshape(u.shape[0], -1), W_N], axis=1)
    return Kinematics(W, contact.join(chi_N, chi_F), jnp.concatenate(W_b, axis=1), jnp.concatenate(chi_b))


def local(system, t, q, u, inert=True):
    """`Local` of a system at (t, q), with its mass matrix if ``inert``; only the shape of ``u`` is used."""
    seen = system.seen_at(t, q)
    M = seen.M(t, q, jnp.zeros_like(u)) if inert else None
    return Local(M, seen.gap(t, q), kinematics(seen, t, q, u))
