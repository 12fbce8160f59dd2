"""A system at one configuration, as data: what the schemes ask of contacts, constraints and inertia at one (t, q).

Contact velocities are affine in u, ``gamma = W^T u + chi``: with W and chi known at (t, q), nothing has to be asked of the system again.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .. import contact
from ..numerics import linalg
from .anisotropy import along
from .laws import ContactData


class Contacts(NamedTuple):
    """The contacts of a system, n of them, or those of a `contact.Choice` alone, as the schemes see them.

    Tangential velocities and directions are in the coordinates of the friction sets, see `anisotropy`.
    """

    system: Any
    choice: Any = None  # None: all

    def take(self, x, axis=0):
        """Entries of these contacts of an array of all, an axis of which is that of the contacts."""
        return x if self.choice is None else self.choice.take(x, axis)

    def gap(self, t, q):
        """Gaps (n,)."""
        return self.take(self.system.gap(t, q))

    def gap_velocity(self, t, q, u):
        """Gap velocities (n,)."""
        return self._asked(self.system.gap_velocity, 0, t, q, u)

    def tangential_velocity(self, t, q, u):
        """Tangential velocities (n, d)."""
        return along(self.system, self._asked(self.system.tangential_velocity, 0, t, q, u), self.choice)

    def W_N(self, t, q, u):
        """Normal force directions (n_u, n)."""
        return self._asked(self.system.W_N, 1, t, q, u)

    def W_F(self, t, q, u):
        """Tangential force directions (n_u, n, d)."""
        return along(self.system, self._asked(self.system.W_F, 1, t, q, u), self.choice)

    def data(self, t, q, rate=None):
        """`ContactData`; ``rate``: gap velocities (n,) before the impact, None: at rest."""
        rate = rate if rate is None or self.choice is None else self.choice.put(rate)
        return ContactData(*map(self.take, self.system.contact_data(t, q, rate)))

    def _asked(self, function, axis, t, q, u):
        """Taken of all of them, or asked for by a system that `System.gathers` what they depend on."""
        if self.choice is not None and self.system.gathers:
            return function(t, q, u, self.choice)
        return self.take(function(t, q, u), axis)


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
        d = self.kin.chi.shape[0] // self.gap.shape[0] - 1
        kin = self.kin._replace(W=choice.rows(self.kin.W, d, 1), chi=choice.rows(self.kin.chi, d))
        return self._replace(gap=choice.take(self.gap), kin=kin)


def kinematics(system, t, q, u, choice=None):
    """`Kinematics` of the chosen contacts, None: of all, and of the constraints; only the shape of ``u`` is used."""
    u, contacts = jnp.zeros_like(u), Contacts(system, choice)
    W_N, W_F, *W_b = (of(t, q, u) for of in (contacts.W_N, contacts.W_F, system.W_g, system.W_gamma))
    if system.scleronomic:
        # Known to be zero, nothing is computed with them, nor with their derivatives.
        chi_N, chi_F, *chi_b = (jnp.zeros(x.shape[1:], x.dtype) for x in (W_N, W_F, *W_b))
    else:
        velocities = contacts.gap_velocity, contacts.tangential_velocity, system.constraint_velocity, system.velocity_constraint
        chi_N, chi_F, *chi_b = (velocity(t, q, u) for velocity in velocities)
    W = jnp.concatenate([W_F.reshape(u.shape[0], -1), W_N], axis=1)
    return Kinematics(W, contact.join(chi_N, chi_F), jnp.concatenate(W_b, axis=1), jnp.concatenate(chi_b))


def local(system, t, q, u, inert=True):
    """`Local` of a system at (t, q), with its mass matrix if ``inert``; only the shape of ``u`` is used."""
    seen = system.seen_at(t, q)
    M = seen.M(t, q, jnp.zeros_like(u)) if inert else None
    return Local(M, seen.gap(t, q), kinematics(seen, t, q, u))
