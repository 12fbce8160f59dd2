"""Algebra of friction cones: Lorentz cones ``|x_F| <= x_N`` of many contacts at once, rows (N, T1, ..., Td) of arrays (n, d + 1).

The Jordan product of two rows is ``x o y = (x^T y, x_N y_F + y_N x_F)``; with it a cone is the set of squares, as the half line is with
the product of numbers. Names as in Alizadeh & Goldfarb (2003); the scaling is that of Nesterov & Todd (1997).
"""

import jax.numpy as jnp


def determinant(x):
    """``x_N^2 - |x_F|^2``, (n,): positive inside of the cone and of its negative, zero on their boundary."""
    length = jnp.sqrt(jnp.sum(x[:, 1:] ** 2, axis=1))
    return (x[:, 0] - length) * (x[:, 0] + length)


def product(x, y):
    """Jordan product ``x o y``."""
    return jnp.concatenate([jnp.sum(x * y, axis=1, keepdims=True), x[:, :1] * y[:, 1:] + y[:, :1] * x[:, 1:]], axis=1)


def quotient(x, y):
    """``z`` with ``x o z = y``, for ``x`` inside of the cone."""
    z_N = (x[:, 0] * y[:, 0] - jnp.sum(x[:, 1:] * y[:, 1:], axis=1)) / positive(determinant(x))
    return jnp.concatenate([z_N[:, None], (y[:, 1:] - z_N[:, None] * x[:, 1:]) / positive(x[:, :1])], axis=1)


def mirrored(x):
    """``(x_N, -x_F)``."""
    return jnp.concatenate([x[:, :1], -x[:, 1:]], axis=1)


def inverse(x):
    """``y`` with ``x o y = (1, 0)``."""
    return mirrored(x) / positive(determinant(x))[:, None]


def root(x):
    """``y`` inside of the cone with ``y o y = x``."""
    length = jnp.sqrt(jnp.sum(x[:, 1:] ** 2, axis=1))
    low, high = jnp.sqrt(positive(x[:, 0] - length)), jnp.sqrt(x[:, 0] + length)
    direction = x[:, 1:] / positive(length)[:, None]
    return jnp.concatenate([0.5 * (high + low)[:, None], 0.5 * (high - low)[:, None] * direction], axis=1)


def quadratic(x):
    """Quadratic representation ``Q_x = 2 x x^T - det(x) diag(1, -1, ..., -1)``, (n, d + 1, d + 1); ``Q_x (1, 0) = x o x``."""
    signs = jnp.asarray([1.0] + [-1.0] * (x.shape[1] - 1), x.dtype)
    return 2 * x[:, :, None] * x[:, None, :] - determinant(x)[:, None, None] * jnp.diag(signs)[None]


def scaling_point(p, u):
    """``w`` inside of the cone with ``Q_w u = p``."""
    det_p, det_u = positive(determinant(p)), positive(determinant(u))
    p, u = p / jnp.sqrt(det_p)[:, None], u / jnp.sqrt(det_u)[:, None]
    half = jnp.sqrt(0.5 * (1 + jnp.sum(p * u, axis=1)))
    return (p + mirrored(u)) / (2 * half)[:, None] * ((det_p / det_u) ** 0.25)[:, None]


def reach(x, dx):
    """Largest ``t`` for which all rows of ``x + t dx`` are in the cone, for ``x`` inside of it."""
    # Roots of det(x + t dx) = a t^2 + 2 b t + c.
    a, c = determinant(dx), positive(determinant(x))
    b = x[:, 0] * dx[:, 0] - jnp.sum(x[:, 1:] * dx[:, 1:], axis=1)
    square = b * b - a * c
    q = -(b + jnp.where(b >= 0, 1, -1) * jnp.sqrt(jnp.maximum(square, 0)))

    def ahead(numerator, denominator, there):
        t = numerator / jnp.where(denominator == 0, 1, denominator)
        return jnp.where(there & (denominator != 0) & (t > 0), t, jnp.inf)

    far = jnp.minimum(ahead(q, a, square >= 0), ahead(c, q, square >= 0))
    return jnp.min(jnp.minimum(far, ahead(-x[:, 0], dx[:, 0], dx[:, 0] < 0)))


def positive(x):
    """``x``, or the smallest number where round-off has left nothing of it."""
    return jnp.maximum(x, jnp.finfo(x.dtype).tiny)
