"""Consistent initial positions and velocities."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from .. import contact
from ..mechanics import laws
from ..mechanics.local import kinematics
from ..mechanics.system import System
from ..numerics import linalg
from ..numerics.newton import iterate
from ..programs import runs
from ..programs.given import array, asking, shown
from .condensed import Condensed
from .positions import displaced

#: Bound of the iterations; from nearby a few are enough.
ITERATIONS = 60

#: Change of a configuration, relative to its size, from which on Newton's method takes over.
NEAR = 1e-3

#: Steps that are tried on the way there, as parts of that to the rows linearized.
LENGTHS = 0.5 ** np.arange(7)

#: Contacts that a step may close, the deepest ones, in multiples of the number of velocities: of hundreds nearly all are open.
MOST = 6

#: Percussions of contacts may change a gap by this power of the machine precision, relative to what they do to it: contacts that depend on
#: each other leave them open.
REGULARIZATION = 0.75

#: Round-off of a configuration that is found, as a power of the machine precision.
FOUND = 0.6


def _given(caller, system, q, t):
    """``(q, t)`` as arrays; raises TypeError or ValueError for what is no system, no coordinates or no time."""
    if not isinstance(system, System):
        raise TypeError(f"{caller}: system must be an instance of a subclass of jaxnsd.System, got {shown(system)}")
    q = array(caller, "q", q, 1)
    if sentence := system._refuses(q, None):
        raise ValueError(f"{caller}: {type(system).__name__} {sentence}")
    return q, jnp.asarray(t, q.dtype)


@asking("project_position: a method of the system")
def project_position(system: System, q: ArrayLike, t: ArrayLike = 0.0, *, u: ArrayLike | None = None) -> jax.Array:
    """The configuration nearest to ``q`` that obeys ``g = 0`` and penetrates no contact, ``g_N >= 0``, at time t, (n_q,).

    Nearest in the norm of the mass matrix M at (t, q): with ``q_new = q + B v``, B that of ``q_dot = B u + beta``,

        M v = J^T z,    J = d(g, g_N)/dv at q_new,    g = 0,    0 <= z_N  _|_  g_N >= 0.

    From far away it is one that is nearer than those around it: steps to what is nearest with linearized rows, of a length that an exact
    penalty decides, lead to where Newton's method takes over. Works under `jit`, `vmap` and `grad`, to second order. All entries are not
    a number where no such configuration was found: start from a nearer one. Constraints must be independent. The norm of a quaternion is
    one only if the system says so. A contact that nothing parts, as that of a disc that turns on a table about a fixed axis, is left out.

    u:  any velocity, (n_u,), for a system that defines `q_dot`: the number of velocities cannot be seen from q
    """
    q, t = _given("project_position", system, q, t)
    return _project(system, q, t, jnp.zeros_like(system._velocity(q, None if u is None else jnp.asarray(u))))


@runs.natively
def _project(system, q, t, v):
    """`project_position` with v = 0 in the shape of the velocities."""
    n_g, n_N = (rows(t, q).shape[0] for rows in (system.constraint, system.gap))
    if not n_g + n_N:
        return q
    args = system, t, q
    frozen = lax.stop_gradient(args)
    eps = float(jnp.finfo(q.dtype).eps)
    n_u, is_bilateral = v.shape[0], jnp.arange(n_g + n_N) < n_g

    def violation(rows):
        return jnp.where(is_bilateral, jnp.abs(rows), jnp.maximum(-rows, 0))

    def iteration(carry):
        x, near = carry
        change, _, parted = _newton_step(frozen, x, n_u, n_g, curved=near)
        after = x - change
        # An exact penalty: each row weighs more than what its percussion gains.
        weights = 2 * jnp.abs(after[n_u:])

        def merit(length):
            v = x[:n_u] - length * change[:n_u]
            total = 0.5 * v @ M @ v + weights @ violation(_rows(system, t, displaced(*frozen, v), parted))
            return jnp.where(jnp.isnan(total), jnp.inf, total)

        length = jnp.where(near, 1, lengths[jnp.argmin(jax.vmap(merit)(lengths))])
        after = after.at[:n_u].set(x[:n_u] - length * change[:n_u])
        here, there = (displaced(*frozen, x[:n_u]) for x in (x, after))
        step, size = (jnp.max(jnp.abs(x)) for x in (there - here, jnp.concatenate([q, there])))
        return (after, near | ((step <= NEAR * size) & (length == 1))), jnp.where(near, step / (16 * eps * size), jnp.inf)

    M, lengths = lax.stop_gradient(system.M(t, q, v)), jnp.asarray(LENGTHS, q.dtype)
    start = jnp.concatenate([v, jnp.zeros((n_g + n_N,), q.dtype)]), jnp.zeros((), bool)
    (x, _), _, _ = iterate(iteration, start, jnp.full((), jnp.inf, q.dtype), ITERATIONS)

    def step(carry, _):
        x = carry[0]
        change, J, parted = _newton_step(args, x, n_u, n_g)
        return (x - change, x, J, parted), None

    # Two steps from the solution have its first and second derivatives.
    (x, last, J, parted), _ = lax.scan(step, (x, x, jnp.zeros((n_g + n_N, n_u), x.dtype), jnp.ones((n_N,), bool)), length=2)
    found, before = (displaced(*args, x[:n_u]) for x in (x, last))
    round_off = eps**FOUND * jnp.max(jnp.abs(jnp.concatenate([q, found])))
    closed = jnp.all(violation(_rows(system, t, found, parted)) <= round_off * jnp.sum(jnp.abs(J), axis=1) + 100 * eps)
    # A configuration may be closed and not the nearest: Newton's method goes on from it, or back and forth.
    return jnp.where(closed & jnp.all(jnp.abs(found - before) <= round_off), found, jnp.nan)


def _rows(system, t, q, parted=True):
    """``(g, g_N)``; contacts that are not ``parted``, (n,), are open."""
    gap = system.gap(t, q)
    return jnp.concatenate([system.constraint(t, q), jnp.where(parted, gap, jnp.abs(gap))])


def _parted(system, t, q, J_N, M):
    """Which contacts (n,) a normal percussion parts at q; J_N (n, n_u): the derivative of the gaps. Not differentiated."""
    W_F = system.W_F(t, q, jnp.zeros((J_N.shape[1],), q.dtype))
    return contact.parted(J_N.T, W_F, jnp.diagonal(M), laws.discs(system))


def _newton_step(args, x, n_u, n_g, curved=True):
    """Newton step on the equations of `project_position` at the unknowns ``x = (v, z)``, the J of the rows ``(g, g_N)`` there, and which
    contacts are parted.

    Unless ``curved`` to what is nearest where the rows are as linear as they are at x: that has no other solution than the nearest one.
    """
    system, t, q = args
    v, z = x[:n_u], x[n_u:]

    def pulled(v):
        J = _jacobian(args, v)
        return J.T @ z, J

    M, at = system.M(t, q, jnp.zeros_like(v)), displaced(*args, v)
    curvature, J = jax.jacfwd(pulled, has_aux=True)(v)
    parted = lax.stop_gradient(_parted(system, t, at, J[n_g:], M))
    values = _rows(system, t, at, parted)
    size = jnp.sum(J.T * linalg.lu(M)(J.T), axis=0)
    size = jnp.where(size > 0, size, 1)
    is_bilateral = jnp.arange(len(z)) < n_g
    # How far a row is active: closed, or about to be.
    beyond = jnp.where(is_bilateral, jnp.inf, z - values / size)
    some = n_g + min(len(z) - n_g, MOST * n_u)
    chosen = jnp.argsort(-lax.stop_gradient(beyond))[:some] if some < len(z) else np.arange(len(z))
    J_of, z_of, active = J[chosen], z[chosen], beyond[chosen] > 0
    residual = jnp.concatenate([M @ v - J_of.T @ z_of, jnp.where(active, values[chosen], z_of)])
    soft = jnp.where(is_bilateral[chosen], 0, float(jnp.finfo(q.dtype).eps) ** REGULARIZATION * size[chosen])
    below = jnp.concatenate([jnp.where(active[:, None], J_of, 0), jnp.diag(jnp.where(active, soft, 1))], axis=1)
    matrix = jnp.concatenate([jnp.concatenate([M - jnp.where(curved, curvature, 0), -J_of.T], axis=1), below])
    change = linalg.Factors.of(matrix).solve(residual)
    # Of the others the percussions are zero afterwards.
    return jnp.concatenate([change[:n_u], z.at[chosen].set(change[n_u:])]), J, parted


def _jacobian(args, v):
    """The derivative J of the rows ``(g, g_N)`` by v at ``q + B v``: their force directions there, of the velocity that v is there."""
    system, t, q = args
    if system.defines("q_dot") and not system.defines("normalized"):
        # Nothing says that rows do not depend on what of q no velocity moves.
        return jax.jacfwd(lambda v: _rows(system, t, displaced(*args, v)))(v)
    none, at = jnp.zeros_like(v), displaced(*args, v)
    J = jnp.concatenate([system.W_g(t, at, none), system.W_N(t, at, none)], axis=1).T
    if not system.defines("q_dot"):
        return J
    B, B_there = (jax.jacfwd(lambda v, q=q: displaced(system, t, q, v))(none) for q in (q, at))
    return J @ linalg.lu(B_there.T @ B_there)(B_there.T @ B)


@asking("project_velocity: a method of the system")
def project_velocity(system: System, q: ArrayLike, u: ArrayLike, t: ArrayLike = 0.0) -> jax.Array:
    """The velocity nearest to ``u`` that obeys the bilateral constraints ``dg/dt = 0`` and ``gamma = 0`` at (t, q), (n_u,).

    Nearest in the norm of the mass matrix: what an impulse of the constraints makes of ``u``, M (u_new - u) = W_g P_g + W_gamma P_gamma.
    Works under `jit`, `vmap` and `grad`. The constraints must be independent.
    """
    (q, t), u = _given("project_velocity", system, q, t), array("project_velocity", "u", u, 1)
    if u.shape != (shape := jax.eval_shape(system._velocity, q, u).shape) or (q.shape != shape and not system.defines("q_dot")):
        raise ValueError(f"project_velocity: q and u must have one shape, got {q.shape} and {u.shape}, unless the system defines q_dot")
    return on_constraints(system, t, q, u)


def on_constraints(system, t, q, u):
    """`project_velocity` inside of a step, where a system may be seen with some of its contacts."""
    kin = kinematics(system, t, q, u)
    if not kin.W_b.shape[1]:
        return u
    condensed = Condensed(system.M(t, q, u), kin.bilateral())
    return condensed.free(u, jnp.zeros_like(u), kin.chi_b)[0]
