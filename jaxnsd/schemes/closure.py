"""Coordinate projection: what a step on velocity level leaves open of the constraints on position level, closed at its end.

With ``q`` the coordinates that the scheme has come to, ``q_new = q + B v``, B that of ``q_dot = B u + beta``, is found with

    K v = W_g z,      g(t, q_new) = 0,      K = M + k (W_N W_N^T + W_F W_F^T)_pushing,

M, W_g, W_N, W_F at (t, q) (coordinate projection: Hairer & Wanner, Solving Ordinary Differential Equations II, VII.2). Without contacts it
is to first order the nearest configuration in the norm of M, as an impulse of the constraints would have it. Contacts that push are held by
springs, stiff beside the inertia that they feel: a loop that stands on the ground closes without its foot, which would sink, or creep.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from ..mechanics.local import Contacts
from ..numerics import linalg, thresholds
from ..numerics.newton import implicit, iterate
from ..programs.derivatives import pushed
from . import gathered
from .positions import displaced

#: Iterations of a simplified Newton method. What a step leaves open is of order dt^2, and each one leaves a part of that order of it.
ITERATIONS = 8

#: Stiffness of the contacts that push beside the inertia that they feel, as a power of the machine precision. A box of 20 kg that carries a
#: linkage of 1 kg sinks by 2e-5 m in 5 s with dt = 1e-3 without it, and with it by 1e-13.
STIFFNESS = 0.75


def closed(system, t, q, u, P):
    """Coordinates (n_q,) near ``q`` that obey ``g(t, q) = 0``, for a system with `System.coordinate_projection`; else ``q``.

    P: `Percussions`, of which those matter that are not zero: contacts that push keep their places. Of ``u`` only the shape matters. Where
    no iteration brings the constraints nearer to zero ``q`` is returned: the outcome of the step tells of it.
    """
    if not system.coordinate_projection or not P.P_g.shape[0]:
        return q
    args = system, t, q, u, lax.stop_gradient(P.P_N) > 0
    frozen = lax.stop_gradient(args)
    z = implicit(Response(P.P_F.shape[1]), lax.stop_gradient(_found(frozen, P.P_F.shape[1])), args)
    return _moved(args, _directions(args, P.P_F.shape[1]), z)


def _found(args, d):
    """The factors z (n_g,)."""
    system, t, q, *_ = args
    V, W_g = _directions(args, d), system.W_g(t, q, args[3])
    G = linalg.matmul(W_g.T, V)
    scale = 1 / jnp.sqrt(jnp.where(jnp.diagonal(G) > 0, jnp.diagonal(G), 1))
    solve = linalg.lu(scale[:, None] * G * scale[None, :], guard=True)
    round_off = 2 * thresholds.eps(q.dtype) * jnp.max(jnp.abs(q)) + thresholds.tiny(q.dtype)

    def improved(z):
        change = scale * solve(scale * system.constraint(t, _moved(args, V, z)))
        error = jnp.max(jnp.abs(linalg.matmul(V, change))) / round_off
        # What is closed to round-off stays as it is.
        return jnp.where(error > 1, z - change, z), error

    z, _, _ = iterate(improved, jnp.zeros_like(scale), jnp.full((), jnp.inf, q.dtype), ITERATIONS)
    before, after = (jnp.max(scale * jnp.abs(system.constraint(t, x))) for x in (q, _moved(args, V, z)))
    return jnp.where(after < before, z, 0)


def _directions(args, d):
    """``K^-1 W_g``, (n_u, n_g)."""
    system, t, q, u, pushes = args
    seen = system.seen_at(t, q)
    M, n = seen.M(t, q, u), pushes.shape[0]
    if not n:
        return linalg.lu(M)(seen.W_g(t, q, u))
    stiffness = thresholds.eps(q.dtype) ** -STIFFNESS

    def held(choice):
        """K with the chosen contacts."""
        if choice is not None and not choice.size:
            return lambda M: M

        def with_springs(M):
            contacts = Contacts(seen, choice)
            W = jnp.concatenate([contacts.W_N(t, q, u)[:, :, None], contacts.W_F(t, q, u)], axis=2)
            size = jnp.sum(W * W / jnp.diagonal(M)[:, None, None], axis=0)
            push = contacts.take(pushes)
            k = jnp.where(push[:, None] & (size > 0), stiffness / jnp.where(size > 0, size, 1), 0)
            W, k = W.reshape(W.shape[0], -1), k.reshape(-1)
            return M + linalg.matmul(W * k[None, :], W.T)

        return with_springs

    return linalg.lu(gathered.switch(pushes, (*gathered.sizes(n, d)[:3], n), held, M))(seen.W_g(t, q, u))


def _moved(args, V, z):
    """q + B V z, with quaternions of length one."""
    system, t, q, *_ = args
    return system.normalized(displaced(system, t, q, linalg.matmul(V, z)))


@dataclass(frozen=True)
class Response:
    """Derivative of the factors z of ``g(t, q + B V z) = 0``."""

    d: int  # directions of friction of a contact

    def __call__(self, z, args, dargs):
        """dz for a tangent of ``(system, t, q, u, pushes)``."""

        def opening(args, z):
            system, t, *_ = args
            return system.constraint(t, _moved(args, _directions(args, self.d), z))

        left = pushed(lambda args: opening(args, z), (args,), (dargs,))[1]
        V = _directions(args, self.d)
        G = jax.jacfwd(lambda z: args[0].constraint(args[1], _moved(args, V, z)))(z)
        size = jnp.sqrt(jnp.where(jnp.diagonal(G) > 0, jnp.diagonal(G), 1))
        return -linalg.lu(G / size[:, None] / size[None, :], guard=True)(left / size) / size
