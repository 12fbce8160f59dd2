"""Loops of Newton's method, and the implicit function theorem that differentiates its result.

No iteration is ever differentiated: a solution ``x`` of ``Phi(x, args) = 0`` gets its derivative from one linear solve with the
Jacobian at the solution, in forward and in reverse mode, whatever the number of iterations was.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from ..programs.derivatives import pushed, with_rule


def iterate(step, x, error, max_iterations):
    """Repeat ``x, error = step(x)`` until ``error <= 1`` or ``max_iterations`` is reached: ``(x, error, iterations)``.

    Under `vmap` the loop ends when all are done, and those that are done early do not change. An error that is not a number ends the
    loop at once.
    """

    def unfinished(carry):
        _, error, iterations = carry
        return (error > 1) & (iterations < max_iterations)

    def body(carry):
        x, _, iterations = carry
        x, error = step(x)
        return x, error, iterations + 1

    return lax.while_loop(unfinished, body, (x, error, jnp.zeros((), jnp.int32)))


def solution(x):
    """``x``, marked as found by iteration: what `storing_solutions` stores."""
    return jax.tree.map(lambda x: checkpoint_name(x, "solution"), x)


def storing_solutions(function):
    """``function``, of which reverse mode stores the `solution`s alone: all else is computed again from them, without iterations.

    What is stored is small, and what is not stored needs no code that stores it: for a large step a half of the compilation.
    """
    # Forward and backward sweep are loops of their own, so there is nothing that a compiler could merge again.
    return jax.checkpoint(function, policy=jax.checkpoint_policies.save_only_these_names("solution"), prevent_cse=False)


def known(value, function, *args):
    """``value``, known to be ``function(*args)``, which is evaluated where it is differentiated alone."""
    return with_rule(lambda value, *args: value, lambda primals, tangents: pushed(function, primals[1:], tangents[1:]))(value, *args)


def implicit(response, x, args):
    """The solution ``x`` of ``Phi(x, args) = 0``, with the derivative of the implicit function.

    ``response(x, args, dargs)`` solves ``dPhi/dx dx = -dPhi/dargs dargs``, linearly in ``dargs``, of which some may be
    `derivatives.ZERO`. What made ``x`` is not differentiated.
    """

    def rule(primals, tangents):
        x, args = primals
        # Second derivatives need a solution that still depends on the arguments.
        x = solution(implicit(response, x, args))
        return x, response(x, args, tangents[1])

    return with_rule(lambda x, args: x, rule)(x, args)
