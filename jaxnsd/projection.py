"""Consistent initial positions and velocities."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from . import linalg
from .newton import iterate
from .schemes.condensed import Condensed, kinematics
from .signatures import asking
from .system import System

#: Bound of the Newton iterations; from nearby a few are enough.
ITERATIONS = 30

#: Percussions of contacts may change a gap by this power of the machine precision, relative to what they do to it: contacts that depend on
#: each other leave them open.
REGULARIZATION = 0.75

#: Round-off of a configuration that is found, as a power of the machine precision.
FOUND = 0.6


@asking("project_position: a method of the system")
def project_position(system: System, q: ArrayLike, t: ArrayLike = 0.0, *, u: ArrayLike | None = None) -> jax.Array:
    """The configuration nearest to ``q`` that obeys ``g = 0`` and penetrates no contact, ``g_N >= 0``, at time t, (n_q,).

    Nearest in the norm of the mass matrix M at (t, q): with ``q_new = q + B v``, B that of ``q_dot = B u + beta``,

        M v = J^T z,    J = d(g, g_N)/dv at q_new,    g = 0,    0 <= z_N  _|_  g_N >= 0.

    Works under `jit`, `vmap` and `grad`, to second order. All entries are not a number where Newton's method found no such
    configuration: start from a nearer one. The norm of a quaternion is a constraint only if the system says so.

    u:  any velocity, (n_u,), for a system that defines `q_dot`: the number of velocities cannot be seen from q
    """
    q = jnp.asarray(q)
    t = jnp.asarray(t, q.dtype)
    return _project(system, q, t, jnp.zeros_like(system._velocity(q, None if u is None else jnp.asarray(u))))


@jax.jit
def _project(system, q, t, v):
    """`project_position` with v = 0 in the shape of the velocities."""
    n_g, n_N = (rows(t, q).shape[0] for rows in (system.constraint, system.gap))
    if not n_g + n_N:
        return q
    args = system, t, q
    frozen = lax.stop_gradient(args)
    eps = float(jnp.finfo(q.dtype).eps)

    def iteration(x):
        change, _ = _newton_step(frozen, x, v.shape[0], n_g)
        before, after = (_moved(frozen, x[: v.shape[0]]) for x in (x, x - change))
        return x - change, jnp.max(jnp.abs(after - before)) / (16 * eps * jnp.max(jnp.abs(jnp.concatenate([q, after]))))

    x = jnp.concatenate([v, jnp.zeros((n_g + n_N,), q.dtype)])
    x, _, _ = iterate(iteration, x, jnp.full((), jnp.inf, q.dtype), ITERATIONS)
    # Two steps from the solution have its first and second derivatives.
    for _ in range(2):
        change, J = _newton_step(args, x, v.shape[0], n_g)
        x = x - change
    found = _moved(args, x[: v.shape[0]])
    rows = _rows(system, t, found)
    tolerance = eps**FOUND * jnp.sum(jnp.abs(J), axis=1) * jnp.max(jnp.abs(found)) + 100 * eps
    violation = jnp.where(jnp.arange(n_g + n_N) < n_g, jnp.abs(rows), -rows)
    return jnp.where(jnp.all(violation <= tolerance), found, jnp.nan)


def _moved(args, v):
    """q + B v."""
    system, t, q = args
    return q + system.q_dot(t, q, v) - system.q_dot(t, q, jnp.zeros_like(v))


def _rows(system, t, q):
    """``(g, g_N)``."""
    return jnp.concatenate([system.constraint(t, q), system.gap(t, q)])


def _newton_step(args, x, n_u, n_g):
    """Newton step on the equations of `project_position` at the unknowns ``x = (v, z)``, and the J of the rows ``(g, g_N)`` there."""
    system, t, q = args
    v, z = x[:n_u], x[n_u:]

    def rows(v):
        return _rows(system, t, _moved(args, v))

    M, J, values = system.M(t, q, jnp.zeros_like(v)), jax.jacfwd(rows)(v), rows(v)
    curvature = jax.jacfwd(lambda v: jax.vjp(rows, v)[1](z)[0])(v)
    size = jnp.sum(J.T * linalg.lu(M)(J.T), axis=0)
    size = jnp.where(size > 0, size, 1)
    active = (jnp.arange(len(z)) < n_g) | (z > values / size)
    residual = jnp.concatenate([M @ v - J.T @ z, jnp.where(active, values, z)])
    soft = jnp.where(jnp.arange(len(z)) < n_g, 0, float(jnp.finfo(q.dtype).eps) ** REGULARIZATION * size)
    below = jnp.concatenate([jnp.where(active[:, None], J, 0), jnp.diag(jnp.where(active, soft, 1))], axis=1)
    matrix = jnp.concatenate([jnp.concatenate([M - curvature, -J.T], axis=1), below])
    return linalg.Factors.of(matrix).solve(residual), J


@asking("project_velocity: a method of the system")
def project_velocity(system: System, q: ArrayLike, u: ArrayLike, t: ArrayLike = 0.0) -> jax.Array:
    """The velocity nearest to ``u`` that obeys the bilateral constraints ``dg/dt = 0`` and ``gamma = 0`` at (t, q), (n_u,).

    Nearest in the norm of the mass matrix: what an impulse of the constraints makes of ``u``, M (u_new - u) = W_g P_g + W_gamma P_gamma.
    Works under `jit`, `vmap` and `grad`. The constraints must be independent.
    """
    q, u = jnp.asarray(q), jnp.asarray(u)
    t = jnp.asarray(t, q.dtype)
    kin = kinematics(system, t, q, u)
    if not kin.W_b.shape[1]:
        return u
    condensed = Condensed(system.M(t, q, u), kin._replace(W=kin.W[:, :0], chi=kin.chi[:0]))
    return condensed.free(u, jnp.zeros_like(u), kin.chi_b)[0]
