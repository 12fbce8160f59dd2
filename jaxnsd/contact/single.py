"""One planar or frictionless contact, in closed form: of the solutions of its modes the one that obeys their inequalities."""

import jax.numpy as jnp

from ..numerics import thresholds
from ..numerics.linalg import vector


def takes(problem):
    """Whether a problem is one contact with at most one direction of slip and no law beyond Coulomb's and Newton's."""
    return problem.n == 1 and problem.d <= 1 and problem.sizes is None and problem.least is None


def modes(problem):
    """Pairs (percussions, what violates their inequalities): of the contact that opens, sticks, and slips either way.

    All in units of percussion, of a problem that is unpacked; not finite where a mode has no solution. A violation that is not positive is
    none.
    """
    G, c, (r_N, r_F) = problem.G, problem.c, problem.scale()
    nothing = jnp.zeros_like(c[0])
    if not problem.d:
        P_N = -c[0] / G[0, 0]
        return [((nothing,), -r_N[0] * c[0]), ((P_N,), -P_N)]
    (G_F, G_FN), (G_NF, G_N) = G
    (c_F, c_N), mu, r_F = c, problem.mu[0], r_F[0, 0]

    def slips(cone):
        """With ``P_F = cone P_N``: against the slip, which has the other sign."""
        P_N = -c_N / (G_N + cone * G_NF)
        return (cone * P_N, P_N), P_N, (G_F * cone + G_FN) * P_N + c_F

    # Of rows that depend on each other the normal one determines both velocities, or the contact does not stick.
    eps = thresholds.round_off(c_N.dtype)
    left = G_F - G_FN * G_NF / G_N
    regular = jnp.abs(left) > eps * G_F
    P_F = jnp.where(regular, (G_FN * c_N / G_N - c_F) / jnp.where(regular, left, 1), 0)
    P_N = -(c_N + G_NF * P_F) / G_N
    slip = jnp.abs(G_FN * P_N + c_F) - eps * (jnp.abs(G_FN * P_N) + jnp.abs(c_F))
    sticks = jnp.maximum(-P_N, jnp.where(regular, jnp.abs(P_F) - mu * P_N, r_F * slip))
    (forth, forth_N, xi_forth), (back, back_N, xi_back) = slips(mu), slips(-mu)
    return [
        ((nothing, nothing), -r_N[0] * c_N),
        ((P_F, P_N), sticks),
        (forth, jnp.maximum(-forth_N, r_F * xi_forth)),
        (back, jnp.maximum(-back_N, -r_F * xi_back)),
    ]


def solve(problem, guess):
    """Percussions of the mode whose inequalities are violated the least; of several that obey them those that are next to the guess."""
    best = None
    for z, violation in modes(problem):
        distance = sum(jnp.abs(x - y) for x, y in zip(z, guess, strict=True))
        violation = jnp.where((violation < jnp.inf) & (distance < jnp.inf), jnp.maximum(violation, 0), jnp.inf)
        new = violation, distance, *z
        if best is not None:
            better = (violation < best[0]) | ((violation == best[0]) & (distance < best[1]))
            new = [jnp.where(better, x, y) for x, y in zip(new, best, strict=True)]
        best = new
    return vector([jnp.where(problem.active[0], x, 0) for x in best[2:]])
