"""A system in the coordinates of its friction sets, in which friction is isotropic.

With a set that is the image of a disc under a matrix S, see `jaxnsd.sets`, and ``gamma_F' = S^T gamma_F``, ``W_F' = W_F S`` the percussions
P' of ``P_F = S P'`` lie in the disc and -xi' is normal to it: contact solver, schemes and derivatives know discs alone. What is stored is
P_F.
"""

import dataclasses

import jax
import jax.numpy as jnp

from .. import sets
from . import laws
from .linear_system import LinearSystem


class Isotropic:
    """A system with its tangential velocities in the coordinates of its friction sets."""

    def __init__(self, system):
        self.system = system

    def __getattr__(self, name):
        if name.startswith("__") or name == "system":
            raise AttributeError(name)
        return getattr(self.system, name)

    def tangential_velocity(self, t, q, u, *choice):
        """``S^T gamma_F`` (n_N, d)."""
        return along(self.system, self.system.tangential_velocity(t, q, u, *choice), *choice)

    def W_F(self, t, q, u=None, *choice):
        """``W_F S`` (n_u, n_N, d)."""
        return along(self.system, self.system.W_F(t, q, u, *choice), *choice)

    def seen_at(self, t, q):
        """That of the system, in these coordinates."""
        return Isotropic(self.system.seen_at(t, q))

    def for_run(self):
        """That of the system, in these coordinates."""
        return Isotropic(self.system.for_run())

    def keeping_rows(self, t, q, u=None, dt=None, found=None):
        """That of the system, in these coordinates."""
        kept = self.system.keeping_rows(t, q, u, dt, found)
        return self if kept is self.system else Isotropic(kept)

    def seen_where_kept(self, t, q, which):
        """That of the system, in these coordinates."""
        return Isotropic(self.system.seen_where_kept(t, q, which))


jax.tree_util.register_pytree_node(Isotropic, lambda x: ((x.system,), None), lambda _, leaves: Isotropic(*leaves))


def scaled(system, x):
    """``S x`` (..., n_N, d) with the matrices S of a system's law: percussions as they are."""
    return _product(laws.axes(system, x.shape[-2], x.dtype), x)


def along(system, x, choice=None):
    """``S^T x`` (..., n_N, d): velocities and directions as the schemes see them.

    choice: the contacts that x is about, see `schemes.gathered`; None: all
    """
    n = x.shape[-2] if choice is None else choice.mask.shape[1]
    S = laws.axes(system, n, x.dtype)
    S = S if S is None or choice is None else choice.take(S)
    return _product(S if S is None else S.swapaxes(1, 2), x)


def _product(S, x):
    return x if S is None else jnp.sum(S.reshape((1,) * (x.ndim - 2) + S.shape) * x[..., None, :], axis=-1)


def isotropic(system):
    """The system as the schemes see it; one whose friction is isotropic is seen as it is."""
    if all(type(part).axes is sets.FrictionSet.axes for part in laws.of(system).sets):
        return system
    if isinstance(system, LinearSystem) and system.is_linear() and system.has_constant_directions():
        return dataclasses.replace(system, G_F=along(system, system.G_F))  # it stays linear
    return Isotropic(system)
