"""The position update of the velocity-level schemes, for systems whose coordinates have a kinematic equation of their own."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from .. import linalg
from ..newton import implicit


def moved(system, t, dt, q, u):
    """``q_{k+1} = q_k + dt q_dot(t_k + dt / 2, (q_k + q_{k+1}) / 2, u)``: the motion of a step with the velocity u, (n_q,).

    With ``q_dot = u`` that is ``q_k + dt u``. With a ``q_dot`` that is linear in q, as that of a quaternion, it is Cayley's map, which
    keeps the length of a quaternion to round-off, whatever dt; the explicit update lets it grow by O(dt^2) in every step. Of a q_dot that
    is not linear in q the linearization at q_k is taken: one linear solve, and the second order of the midpoint rule.
    """
    if not system.defines("q_dot"):
        return q + dt * u
    args = (system, t, dt, q, u)
    frozen = lax.stop_gradient(args)
    rate, solve = _linearized(frozen)
    return q + implicit(Response(), solve(frozen[2] * rate), args)


def _linearized(args):
    """``q_dot`` at mid-step and at q_k, and the function that solves with ``1 - dt / 2 dq_dot/dq``."""
    system, t, dt, q, u = args

    def twice(q):
        rate = system.q_dot(t + 0.5 * dt, q, u)
        return rate, rate

    jacobian, rate = jax.jacfwd(twice, has_aux=True)(q)
    return rate, linalg.lu(jnp.eye(q.shape[0], dtype=q.dtype) - 0.5 * dt * jacobian)


@dataclass(frozen=True)
class Response:
    """Derivative of the solution x of ``x = dt (q_dot + 1/2 dq_dot/dq x)``."""

    def __call__(self, x, args, dargs):
        """dx for a tangent of ``(system, t, dt, q, u)``."""

        def change(args):
            system, t, dt, q, u = args
            rate, along = jax.jvp(lambda q: system.q_dot(t + 0.5 * dt, q, u), (q,), (x,))
            return dt * (rate + 0.5 * along)

        return _linearized(args)[1](jax.jvp(change, (args,), (dargs,))[1])
