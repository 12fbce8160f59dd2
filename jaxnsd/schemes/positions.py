"""The position update of the velocity-level schemes, for systems whose coordinates have a kinematic equation of their own."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from ..numerics import linalg, thresholds
from ..numerics.newton import implicit, iterate
from ..programs.derivatives import pushed

#: Iterations after which the equation of the midpoint rule is solved by elimination.
ITERATIONS = 30


def moved(system, t, dt, q, u):
    """``q_{k+1} = q_k + dt q_dot(t_k + dt / 2, (q_k + q_{k+1}) / 2, u)``: the motion of a step with the velocity u, (n_q,).

    With ``q_dot = u`` that is ``q_k + dt u``. With a ``q_dot`` that is linear in q, as that of a quaternion, it is Cayley's map, which
    keeps the length of a quaternion to round-off, whatever dt; the explicit update lets it grow by O(dt^2) in every step. Of a q_dot that
    is not linear in q the linearization at q_k is taken: one linear solve, and the second order of the midpoint rule.
    """
    if not system.defines("q_dot"):
        return q + dt * u
    if system.moved is not None:
        return system.moved(t, dt, q, u)
    args = (system, t, dt, q, u)
    frozen = lax.stop_gradient(args)
    return q + implicit(Response(), _solve(frozen, frozen[2] * _rate(frozen)), args)


def displaced(system, t, q, v):
    """``q + B v``, B that of ``q_dot = B u + beta`` at (t, q), (n_q,)."""
    return q + system.q_dot(t, q, v) - system.q_dot(t, q, jnp.zeros_like(v))


def _rate(args):
    """``q_dot`` at mid-step and at q_k."""
    system, t, dt, q, u = args
    return system.q_dot(t + 0.5 * dt, q, u)


def _solve(args, b):
    """Solution x of ``x - dt / 2 dq_dot/dq x = b``: by iteration to round-off, a few where a step turns little; else by lu."""
    system, t, dt, q, u = args
    eps = float(jnp.finfo(q.dtype).eps)
    _, along = jax.linearize(lambda q: 0.5 * dt * system.q_dot(t + 0.5 * dt, q, u), q)

    def improved(x):
        new = b + along(x)
        return new, jnp.max(jnp.abs(new - x)) / (2 * eps * jnp.max(jnp.abs(new)) + thresholds.tiny(q.dtype))

    x, error, _ = iterate(improved, b, jnp.full((), jnp.inf, q.dtype), ITERATIONS)

    def eliminated():
        eye = jnp.eye(q.shape[0], dtype=q.dtype)
        return linalg.lu(eye - jax.vmap(along, out_axes=1)(eye))(b)

    return lax.cond(error <= 1, lambda: x, eliminated)


@dataclass(frozen=True)
class Response:
    """Derivative of the solution x of ``x = dt (q_dot + 1/2 dq_dot/dq x)``."""

    def __call__(self, x, args, dargs):
        """dx for a tangent of ``(system, t, dt, q, u)``."""

        def change(args):
            system, t, dt, q, u = args
            rate, along = jax.jvp(lambda q: system.q_dot(t + 0.5 * dt, q, u), (q,), (x,))
            return dt * (rate + 0.5 * along)

        system, t, dt, q, u = args
        b = pushed(change, (args,), (dargs,))[1]
        jacobian = jax.jacfwd(lambda q: system.q_dot(t + 0.5 * dt, q, u))(q)
        return linalg.lu(jnp.eye(q.shape[0], dtype=q.dtype) - 0.5 * dt * jacobian)(b)
