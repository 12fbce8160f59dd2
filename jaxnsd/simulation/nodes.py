"""Velocities at the nodes, of schemes whose velocities are at mid-interval, and coordinates between the nodes."""

import jax
import jax.numpy as jnp

from ..contact import SemismoothNewton
from ..mechanics.anisotropy import isotropic
from ..mechanics.system import System
from ..schemes.base import Percussions, Scheme, State
from ..schemes.flow import acceleration_of_persistent
from . import checks
from .simulate import Solution


def node_velocities(system: System, scheme: Scheme | None, solution: Solution) -> jax.Array:
    """Velocities (N + 1, n_u) with which the nodes of a `Solution` are left, at the times of its coordinates.

    They are ``solution.u`` but for `SymmetricMoreau` and `VariationalMoreau`, whose ``u[k]`` is that of half a step after the node
    ``t[k]``: there they are of second order, with contacts and constraints as they are at the node. For one motion; `vmap` makes batches.
    """
    checks.made_by("node_velocities", scheme, solution)
    if scheme is None or not scheme.lead:
        return solution.u
    before = jax.tree.map(
        lambda first, rest: jnp.concatenate([first[None], rest]),
        solution.initial,
        Percussions(solution.P_N, solution.P_F, solution.P_g, solution.P_gamma, solution.P_D),
    )

    u = jax.jit(jax.vmap(at_node(isotropic(system), scheme, solution.dt)))(solution.t, solution.q, solution.u, before)
    # Nodes after the end have no percussions to start from.
    return u if solution.stop is None else u[jnp.minimum(jnp.arange(len(u)), solution.end)]


def at_node(system, scheme, dt):
    """``at(t, q, u, P)``, the velocity (n_u,) at a node; P: percussions to start the solution from."""
    scheme = getattr(scheme, "scheme", scheme)  # that which LocatedImpacts wraps
    prepared, solver = scheme.prepare(system, dt), SemismoothNewton()

    def at(t, q, u, P):
        return u - scheme.lead * dt * acceleration_of_persistent(scheme, prepared, solver, t, dt, State(q, u, P))

    return at


def cubic(part, dt, q0, q1, v0, v1):
    """Coordinates (n_q,) after this part of a step, by Hermite's polynomial, of fourth order; v0, v1: their rates at its ends."""
    return q0 + part**2 * (3 - 2 * part) * (q1 - q0) + dt * part * (1 - part) * ((1 - part) * v0 - part * v1)
