"""Consistent initial velocities."""

import jax.numpy as jnp

from .schemes.condensed import Condensed, kinematics


def project_velocity(system, q, u, t=0.0):
    """The velocity nearest to ``u`` that obeys the bilateral constraints ``dg/dt = 0`` and ``gamma = 0`` at (t, q), (n_u,).

    Nearest in the norm of the mass matrix: what an impulse of the constraints makes of ``u``, M (u_new - u) = W_g P_g + W_gamma P_gamma.
    Works under `jit`, `vmap` and `grad`. The constraints must be independent.
    """
    q, u = jnp.asarray(q), jnp.asarray(u)
    t = jnp.asarray(t, q.dtype)
    kin = kinematics(system, t, q, u)
    if not kin.W_b.shape[1]:
        return u
    condensed = Condensed(system.M(t, q, u), kin._replace(W=kin.W[:, :0], chi=kin.chi[:0]))
    return condensed.free(u, jnp.zeros_like(u), kin.chi_b)[0]
