"""Problems that fall into parts: contacts that no percussion of the others is felt at, as those of boxes beside each other on a floor.

A part of few contacts is a problem of its own, and for that there is a complete method; all of them at once are too large for it. Which
contacts belong together depends on the configuration, so parts are looked for in every problem that Newton's method leaves.
"""

import jax.numpy as jnp
from jax import lax

from ..numerics import linalg, thresholds
from .choice import Choice
from .problem import broadcast, diagonal, join, split_rows


def labels(G, active, d):
    """Of every contact that is active the first one of its part, (n,); n of those that are not. G: Delassus operator, of d directions."""
    n = active.shape[0]
    size = jnp.sqrt(diagonal(G))
    # Entries below round-off of what they are added to couple nothing.
    felt = jnp.abs(G) > thresholds.round_off(G.dtype) * size[:, None] * size[None, :]

    def any_row(x):
        x_N, x_F = split_rows(x, n, d)
        return x_N | jnp.any(x_F, axis=1)

    # Rows of contacts, then columns.
    coupled = any_row(any_row(felt).T) & active[None, :] & active[:, None]
    own = jnp.where(active, jnp.arange(n, dtype=jnp.int32), n)

    def spread(carry):
        label, _ = carry
        least = jnp.minimum(label, jnp.min(jnp.where(coupled, label[None, :], n), axis=1))
        least = jnp.where(active, least, n)
        return least, jnp.any(least != label)

    return lax.while_loop(lambda carry: carry[1], spread, (own, jnp.asarray(n > 1)))[0]


def solve(problem, guess, wanted, most, solve_part):
    """``(z, solved (n,), iterations)``: the guess with the solutions of those parts that have no more than ``most`` contacts.

    wanted: whether they are wanted; solve_part: function of a `Problem` of ``most`` contacts and a guess that returns a `Result`
    """
    d = problem.d
    label = labels(problem.G, problem.active & wanted, d)
    together = label[:, None] == label[None, :]
    small = problem.active & wanted & (jnp.sum(together, axis=1) <= most)

    def next_part(carry):
        z, left, solved, iterations = carry
        members = together[jnp.argmax(left)] & left
        choice = Choice(members, most)
        r = problem.r and tuple(choice.take(x) for x in problem.r)
        G = choice.rows(choice.rows(problem.G, d), d, axis=1)
        c, mu = choice.rows(problem.c, d), choice.take(problem.mu)
        rounding = None if problem.rounding is None else choice.rows(problem.rounding, d)
        # Whether there are more rows than velocities is not known of a part; planar problems need not know.
        part = problem._replace(G=G, c=c, mu=mu, active=choice.take(members), r=r, redundant=d > 1, rounding=rounding)
        result = solve_part(part, choice.rows(z, d))
        rows = join(members, broadcast(members, d))
        z = jnp.where(rows, choice.put_rows(linalg.pack(result.z), d), z)
        return z, left & ~members, solved | (members & (result.error <= 1)), iterations + result.iterations

    start = guess, small, jnp.zeros_like(small), jnp.zeros((), jnp.int32)
    z, _, solved, iterations = lax.while_loop(lambda carry: jnp.any(carry[1]), next_part, start)
    return z, solved, iterations
