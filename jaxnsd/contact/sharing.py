"""How redundant contacts that slide share a load: as contacts that yield a little, all alike, in the limit of no yielding.

A box that slides on four corners and turns: rigid contacts determine three combinations of its four normal percussions, but friction, which
acts on each corner along its own slip, needs all four. So the motion is not unique. What Newton's method ends with depends on where it
began, and has no derivative. Here the one solution is taken that those of

    xi + s kappa P  in place of  xi

tend to as the compliance s goes to zero, kappa the mean of the Delassus operator's diagonal: percussions depend on the problem alone, and
their derivative is that of the problem with a small s. Where percussions are unique this changes nothing. Where all contacts stick the
motion is unique, and percussions are left as they are.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from ..native.marks import when_needed
from ..numerics import linalg, thresholds
from ..numerics.newton import iterate
from .abstract import Result
from .problem import broadcast, diagonal, join, modes_at, newton_step, split

#: The compliance s, as a power of the machine precision. The limit is missed by s, and round-off is the machine precision over s.
COMPLIANCE = 0.5

#: Change of percussions, as a part of the largest one and as a power of the machine precision, that leaves a load shared: 1e-6 in float64.
SHARED = 0.38

#: Newton steps at most. Where contacts neither open nor begin to stick, one or two lead to yielding contacts and one to rigid ones.
STEPS = 20


def takes(problem):
    """Whether contacts of a problem may share a load in several ways of which friction tells: in space, of one disc each."""
    return problem.redundant and problem.d > 1 and problem.sizes is None


def compliance(problem):
    """``s kappa``, in each row but in those of dry friction.

    Never differentiated: of a change of kappa, the same for all contacts, the limit knows nothing.
    """
    n, d = problem.n, problem.d
    active, (g_N, _) = problem.active, split(diagonal(problem.G), n, d)
    kappa = jnp.sum(jnp.where(active, g_N, 0)) / jnp.maximum(jnp.sum(active), 1)
    return jnp.where(join(*yields(problem)), float(jnp.finfo(problem.dtype).eps) ** COMPLIANCE * kappa, 0)


def yields(problem):
    """Which contacts yield, (n,) and (n, d): all but those that stand for dry friction."""
    contacts = jnp.arange(problem.n) < problem.n - problem.given
    return contacts, broadcast(contacts, problem.d)


class Load(NamedTuple):
    """Whether a load may be shared in several ways of which friction tells, and whether it is as yielding contacts share it."""

    open: object
    shared: object


def load(problem, z):
    """`Load` of percussions of rigid contacts: it is open where several contacts are loaded, one slides, and they depend on each other.

    Where all slide these are the normal directions alone: yielding contacts give way by normal percussions that a velocity makes, those in
    the range of their part of the Delassus operator. By elimination, which leaves of others what is outside of it.
    """
    n, d, eps = problem.n, problem.d, float(jnp.finfo(problem.dtype).eps)
    xi, r = problem.G @ z + problem.c, problem.scale()
    modes = modes_at(problem, r, z, xi)
    (disc,), (contacts, _), (P_N, _), (xi_N, _) = modes.discs, yields(problem), split(z, n, d), split(xi, n, d)
    # What touches without a load would have one if others gave way.
    small = eps**SHARED * jnp.max(jnp.where(contacts, P_N, 0))
    touches = problem.active & contacts & (r[0] * xi_N <= small)
    loaded = modes.loaded & contacts
    slips = loaded & ~disc.stick & (disc.radius > 0)
    rows = jnp.concatenate([jnp.where(touches[:, None] & touches[None, :], problem.G[n * d :, n * d :], 0), P_N[:, None]], axis=1)
    least = eps**COMPLIANCE * jnp.diagonal(rows)
    independent = shared = jnp.ones((), bool)
    for k in range(n):
        pivot = rows[k, k]
        regular = pivot > least[k]
        independent &= regular | ~touches[k]
        shared &= regular | ~touches[k] | (jnp.abs(rows[k, n]) <= small)
        below = jnp.where(regular & (np.arange(n) > k), rows[:, k] / jnp.where(regular, pivot, 1), 0)
        rows = rows - below[:, None] * rows[None, k]
    all_slide = jnp.all(slips | ~loaded)
    return Load((jnp.sum(touches) > 1) & jnp.any(slips) & ~(all_slide & independent), all_slide & shared)


def step(equations, z, shift):
    """``(z, solved)``: percussions after one Newton step; whether they solve the equations to round-off, or twice to the tolerance."""
    point, before = equations.at(z)
    point = linalg.from_leaves(point)
    modes, F, _ = equations.residual(point)
    new = newton_step(equations.problem, equations.r, z, point.xi, modes, F, shift, guard=False)
    _, after = equations.at(new)
    return new, (after <= thresholds.round_off(z.dtype) / equations.tolerance) | (jnp.maximum(before, after) <= 1)


def endless(wanted, dtype):
    """The error with which a loop begins that is wanted."""
    return jnp.where(wanted, jnp.inf, 0).astype(dtype)


def shared(problem, result, equations, shift):
    """The `Result` of rigid contacts that share their load as yielding ones; as it is where that is not found.

    equations: function of a problem that gives its `Equations`
    shift:     of Newton's matrix for rigid contacts
    """
    near = float(jnp.finfo(problem.dtype).eps) ** SHARED

    def share(result):
        soft = problem.G + jnp.diag(compliance(problem))

        def body(carry):
            """Newton steps for yielding contacts until they are solved, then for rigid ones."""
            z, rigid, first = carry
            new, solved = step(equations(problem._replace(G=jnp.where(rigid, problem.G, soft))), z, jnp.where(rigid, shift, 0))
            unique = first & solved & (jnp.max(jnp.abs(new - z)) <= near * jnp.max(jnp.abs(z)))
            return (jnp.where(unique, z, new), rigid | solved, jnp.zeros((), bool)), endless(~(unique | rigid & solved), z.dtype)

        start = result.z, jnp.zeros((), bool), jnp.ones((), bool)
        (z, *_), error, steps = iterate(body, start, endless(wanted, result.z.dtype), STEPS)
        found = wanted & (error <= 1)
        point, error = equations(problem).at(z)
        found &= error <= 1
        new = result._replace(z=z, error=error, residual=linalg.from_leaves(point).largest)
        best = Result(*(jnp.where(found, a, b) for a, b in zip(new, result, strict=True)))
        return best._replace(iterations=result.iterations + steps)

    of_rigid = load(problem, result.z)
    wanted = (result.error <= 1) & of_rigid.open & ~of_rigid.shared
    return lax.cond(wanted, when_needed(share), lambda result: result, result)


def yielding(problem, z, equations):
    """``(z, compliance)``: percussions of contacts that yield, next to those of rigid ones; z and zeros where these are determined."""

    def found(z):
        rows = compliance(problem)
        soft = equations(problem._replace(G=problem.G + jnp.diag(rows)))

        def body(z):
            z, solved = step(soft, z, 0)
            return z, endless(~solved, z.dtype)

        new, error, _ = iterate(body, z, endless(wanted, z.dtype), STEPS)
        return jnp.where(error <= 1, new, z), jnp.where(error <= 1, rows, 0)

    wanted = load(problem, z).open
    return lax.cond(wanted, when_needed(found), lambda z: (z, jnp.zeros_like(z)), z)
