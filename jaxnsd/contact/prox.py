"""Projections and proximal-point functions of the contact laws (Capobianco & Eugster 2018, Section 2).

Every function satisfies its normal cone inclusion: ``y = prox_C(x)`` if and only if ``x - y`` lies in the normal cone of the
convex set ``C`` at ``y``. All have finite derivatives everywhere, at kinks an element of the generalized Jacobian.
"""

import jax.numpy as jnp


def prox_nonnegative(x):
    """Nearest point of the half-line of nonnegative numbers, elementwise: ``max(x, 0)``.

    The normal contact law reads ``P_N = prox_nonnegative(P_N - r * xi_N)`` for any ``r > 0``.
    """
    x = jnp.asarray(x)
    return jnp.where(x > 0, x, jnp.zeros_like(x))


def prox_ball(x, radius):
    """Nearest point of the ball of radius ``max(radius, 0)`` around the origin of R^d.

    Parameters: ``x`` of shape ``(..., d)``; ``radius`` of shape ``(...,)``. Returns the shape of ``x``.

    Coulomb's law reads ``P_F = prox_ball(P_F - r * xi_F, mu * P_N)`` for any ``r > 0``. Where ``|x| >= radius`` the result is on the
    sphere, so that a ball of radius zero gives zero with derivative zero, also at ``x = 0`` (an open contact at rest).
    """
    x = jnp.asarray(x)
    radius = jnp.maximum(jnp.asarray(radius), 0)
    square = jnp.sum(x * x, axis=-1)
    outside = square >= radius * radius
    # Both branches of a `where` are differentiated: the root must not see a zero, or its derivative is infinite.
    norm = jnp.sqrt(jnp.where(square > 0, square, jnp.ones_like(square)))
    factor = jnp.where(outside, radius / norm, jnp.ones_like(square))
    return factor[..., None] * x
