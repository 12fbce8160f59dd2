"""The coordinates of the friction sets of a system, in which friction is isotropic.

With a set that is the image of a disc under a matrix S, see `jaxnsd.sets`, and ``gamma_F' = S^T gamma_F``, ``W_F' = W_F S`` the percussions
P' of ``P_F = S P'`` lie in the disc and -xi' is normal to it: contact solver, schemes and derivatives know discs alone. Schemes ask for
contacts by `mechanics.local`, where they are in these coordinates. What is stored is P_F.
"""

import jax.numpy as jnp

from . import laws


def scaled(system, x):
    """``S x`` (..., n_N, d) with the matrices S of a system's law: percussions as they are."""
    return _product(laws.axes(system, x.shape[-2], x.dtype), x)


def along(system, x, choice=None):
    """``S^T x`` (..., n_N, d): velocities and directions as the schemes see them; ``choice``: the contacts that x is of, None: all."""
    n = x.shape[-2] if choice is None else choice.mask.shape[1]
    S = laws.axes(system, n, x.dtype)
    S = S if S is None or choice is None else choice.take(S)
    return _product(S if S is None else S.swapaxes(1, 2), x)


def _product(S, x):
    return x if S is None else jnp.sum(S.reshape((1,) * (x.ndim - 2) + S.shape) * x[..., None, :], axis=-1)
