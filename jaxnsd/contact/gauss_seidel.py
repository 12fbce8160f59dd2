"""Nonlinear block Gauss-Seidel for contact problems."""

import functools

import jax.numpy as jnp
from jax import lax

from .prox import prox_ball


def gauss_seidel_sweep(problem, r_N, z):
    """One sweep of nonlinear block Gauss-Seidel: every contact in turn takes a prox step with its own percussions.

    Slow but hard to stop (Jourdan, Alart & Jean 1998): it brings Newton's method near enough to the solution. JAX arrays only.
    """
    G, c, n, d = problem.G, problem.c, problem.n, problem.d
    row = functools.partial(lax.dynamic_index_in_dim, keepdims=False)

    def visit(i, z):
        normal = n * d + i
        x_N = row(z, normal) - row(r_N, i) * (jnp.sum(row(G, normal) * z) + row(c, normal))
        least = 0 if problem.least is None else row(problem.least, i)
        P_N = jnp.where(row(problem.active, i), jnp.maximum(x_N, least), 0)
        z = lax.dynamic_update_index_in_dim(z, P_N, normal, 0)
        for part, mu in problem.discs:
            first, size = i * d + part.start, part.stop - part.start
            G_F, c_F = lax.dynamic_slice_in_dim(G, first, size), lax.dynamic_slice_in_dim(c, first, size)
            block = lax.dynamic_slice_in_dim(G_F, first, size, axis=1)
            # Largest eigenvalue of the contact's tangential block: a prox step of its inverse converges for any anisotropy.
            half = 0.5 * (block[0, 0] - block[-1, -1])
            largest = 0.5 * (block[0, 0] + block[-1, -1]) + jnp.sqrt(half * half + (block[0, 1] * block[1, 0] if size > 1 else 0))
            r_F = jnp.where(largest > 0, 1 / jnp.where(largest > 0, largest, 1), 0)
            x_F = lax.dynamic_slice_in_dim(z, first, size) - r_F * (jnp.sum(G_F * z[None, :], axis=1) + c_F)
            z = lax.dynamic_update_slice_in_dim(z, prox_ball(x_F, row(mu, i) * P_N), first, 0)
        return z

    return lax.fori_loop(0, n, visit, z)
