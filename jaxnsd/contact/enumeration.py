"""One planar or frictionless contact: the solutions of all its modes. No mode needs an iteration, so that nothing is left to converge."""

import jax
import jax.numpy as jnp


def takes(problem):
    """Whether a problem is one contact with at most one direction of slip and no law beyond Coulomb's and Newton's."""
    return problem.n == 1 and problem.d <= 1 and problem.sizes is None and problem.least is None


def candidates(problem):
    """Percussions (modes, d + 1) of an active contact that opens, sticks and slips either way; not finite where a mode has none."""
    G, c = problem.G, problem.c
    opens = jnp.zeros_like(c)
    if not problem.d:
        return jnp.stack([opens, -c / G[0]])
    (G_F, G_FN), (G_NF, G_N) = G
    c_F, c_N = c
    sticks = jnp.stack([G_FN * c_N - G_N * c_F, G_NF * c_F - G_F * c_N]) / (G_F * G_N - G_FN * G_NF)
    cone = jnp.stack([problem.mu[0], -problem.mu[0]])
    P_N = -c_N / (G_N + cone * G_NF)
    return jnp.concatenate([jnp.stack([opens, sticks]), jnp.stack([cone * P_N, P_N], axis=1)])


def best(problem, at):
    """``(carry, error)`` of the mode with the least error; ``at(z)`` gives both for percussions z."""
    carries, errors = jax.vmap(at)(candidates(problem))
    errors = jnp.where(jnp.isnan(errors), jnp.inf, errors)
    chosen = jnp.argmin(errors)
    return jax.tree.map(lambda x: x[chosen], carries), errors[chosen]
