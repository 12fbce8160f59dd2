"""Settings and loops of Newton's method, and the implicit function theorem that differentiates its result.

No iteration is ever differentiated: a solution ``x`` of ``Phi(x, args) = 0`` gets its derivative from one linear solve with the
Jacobian at the solution, in forward and in reverse mode, whatever the number of iterations was.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from .derivatives import with_rule


@dataclass(frozen=True)
class SemismoothNewton:
    """Settings of the semismooth Newton method.

    tolerance:       bound of every row of the natural map, relative to the terms that this row is made of: each contact in its own units
                     (and of the momentum balance relative to the momenta); None: 1e-12 in float64, 2e-6 in float32
    max_iterations:  bound of the Newton iterations of one contact problem, before the globalization takes over
    max_rescues:     bound of the globalized iterations of a problem on which plain Newton cycles; the rest of a batch waits but does
                     not change. They start afresh, so that they do not depend on where Newton's method has come to, and with it on the
                     tolerance. Up to 16 spatial or 32 planar contacts each is a run of Lemke's method: one is enough for planar and
                     frictionless contacts, a few for spatial ones. With more contacts each is some sweeps of block Gauss-Seidel, then
                     Newton steps
    max_outer:       bound of the iterations on the smooth equations, for schemes that are implicit in the velocity
    """

    tolerance: float | None = None
    max_iterations: int = 10
    max_rescues: int = 60
    max_outer: int = 20

    def __post_init__(self):
        if self.tolerance is not None and not 0 < self.tolerance < 1:
            raise ValueError(f"SemismoothNewton: tolerance must lie between 0 and 1, got {self.tolerance!r}")
        for name in ("max_iterations", "max_outer"):
            if getattr(self, name) < 1:
                raise ValueError(f"SemismoothNewton: {name} must be at least 1, got {getattr(self, name)!r}")
        if self.max_rescues < 0:
            raise ValueError(f"SemismoothNewton: max_rescues must not be negative, got {self.max_rescues!r}")

    def tolerance_for(self, dtype):
        """The tolerance in force for a dtype."""
        if self.tolerance is not None:
            return self.tolerance
        return 1e-12 if jnp.finfo(dtype).bits == 64 else 2e-6


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


def implicit(response, x, args):
    """The solution ``x`` of ``Phi(x, args) = 0``, with the derivative of the implicit function.

    ``response(x, args, dargs)`` solves ``dPhi/dx dx = -dPhi/dargs dargs``, linearly in ``dargs``. What made ``x`` is not differentiated.
    """

    def rule(primals, tangents):
        x, args = primals
        # Second derivatives need a solution that still depends on the arguments.
        x = solution(implicit(response, x, args))
        return x, response(x, args, tangents[1])

    return with_rule(lambda x, args: x, rule)(x, args)
