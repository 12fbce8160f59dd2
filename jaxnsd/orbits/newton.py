"""Newton's method on the equations of a periodic orbit, one compiled program for all orbits of a system, a scheme and a number of steps.

Invariant: the result v = (z, T, lam) obeys ``F(v) = 0`` (see `jaxnsd.orbits.shooting`) and ``row . (v - v_start) = 0``. With the row that
reads lam alone that is an orbit at given parameters; with the tangent of a branch it is the corrector of pseudo-arclength continuation
(Keller 1977). Nothing is differentiated through the iterations: the orbit's derivative is that of the implicit function.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ..mechanics.local import Contacts
from ..programs.derivatives import ZERO, instantiated, pushed, with_rule
from ..programs.jitted import jit
from ..programs.runs import lean
from .arcs import whole
from .orbit import Orbit, OrbitOutcome
from .shooting import shifted

#: Residual, relative to the size of the motion, up to which an orbit counts as found where round-off of a long motion ends the iteration,
#: and that at which the iteration ends at once; both in units of the square root, and of the last digit, of the numbers.
ACCEPTED, EXACT = 0.1, 32

#: The step is not halved more often than so.
HALVINGS = 8

#: Singular values, relative to the largest, that count as zero: closed contacts and constraints leave directions in which nothing moves.
RANK = 1e-11

#: A period is not shorter than this part of its guess.
SHORTEST = 0.1

#: Rate of a motion, in parts of its size a period, below which it stands still.
STILL = 1e-7

#: Steps in which a contact with restitution stays closed, from which a motion counts as locked.
LOCKED = 4


class Given(NamedTuple):
    """What the orbit is a function of."""

    system: Any
    t0: Any
    T: Any  # of forced motion, where it is a number


class Start(NamedTuple):
    """Where Newton's method starts, and what picks the orbit on a branch."""

    v: Any  # (n + 2,)
    direction: Any  # of the parameter, a system
    row: Any  # (n + 2,)
    scale: Any  # (n + 2,), sizes of the unknowns
    limit: Any  # motions to simulate at most, a whole number
    nodes: Any = None  # (k - 1, n), where later arcs start; None: where the motion from v passes


class Found(NamedTuple):
    """What Newton's method has found."""

    v: Any
    F: Any
    J: Any
    solution: Any
    residual: Any
    iterations: Any
    outcome: Any


class _Carry(NamedTuple):
    v: Any
    F: Any
    J: Any
    solution: Any
    size: Any  # of the residual, relative
    step: Any
    part: Any  # of the step that is tried
    tries: Any
    changed: Any  # whether the sequence of events changed on the way
    done: Any


@jit(static_argnames="shooting")
def find(shooting, given, start):
    """`Found` of a start; its v has the derivative of the implicit function, what follows from it that of the motion."""
    if shooting.arcs > 1:
        arcs = whole(shooting)
        return arcs.ended(_found(arcs, given, arcs.begun(given, start)))
    return _found(shooting, given, start)


def _found(shooting, given, start):
    def rule(primals, tangents):
        given, start = primals
        found = solved(given, start)
        J = lax.stop_gradient(_square(found.J, start.row, shooting.still(given.system, given.t0, found.v)))

        def equations(given, v):
            F, _ = shooting.equations(given.system, start.direction, v, given.t0, given.T)
            return jnp.concatenate([F, (start.row @ (v - start.v))[None]])

        d_F = pushed(lambda given: equations(given, found.v), (given,), (tangents[0],))[1]
        # The row holds v to the start; nothing else asks where Newton's method started.
        d_v = _least_squares(J, -d_F, start.scale)

        def follows(given, v):
            _, J, sol = shooting.linearized(given.system, start.direction, v, given.t0, given.T)
            return J, sol

        (_, _), (d_J, d_sol) = jax.jvp(follows, (given, found.v), (instantiated((given,), (tangents[0],))[0], d_v))
        nothing = jax.tree.map(lambda _: ZERO, (found.F, found.residual, found.iterations, found.outcome))
        return found, Found(d_v, nothing[0], d_J, d_sol, *nothing[1:])

    solved = with_rule(functools.partial(_iterate, shooting), rule)
    return solved(given, start)


def _square(J, row, still):
    return jnp.concatenate([J, row[None], still])


def _least_squares(J, b, scale):
    """The x of least size, in units of ``scale``, with ``J x = b`` in the least squares; b is 0 in the rows behind its end."""
    b = jnp.pad(b, (0, J.shape[0] - b.size))
    rows = jnp.max(jnp.abs(J * scale[None]), axis=1)
    rows = jnp.where(rows > 0, rows, 1)
    U, s, V = jnp.linalg.svd(J * scale[None] / rows[:, None], full_matrices=False)
    inverse = jnp.where(s > RANK * s[0], 1 / jnp.where(s > 0, s, 1), 0)
    return scale * (V.T @ (inverse * (U.T @ (b / rows))))


def _iterate(shooting, given, start):
    given, start = jax.tree.map(lax.stop_gradient, (given, start))
    eps = jnp.finfo(start.v.dtype).eps
    exact, accepted = EXACT * eps, ACCEPTED * jnp.sqrt(eps)

    @lean
    def evaluate(v):
        F, J, sol = shooting.linearized(given.system, start.direction, v, given.t0, given.T)
        F = jnp.concatenate([F, (start.row @ (v - start.v))[None]])
        rows = jnp.concatenate([start.scale[:-2], jnp.max(jnp.abs(jnp.stack([J[-1], start.row]) * start.scale[None]), axis=1)])
        size = jnp.max(jnp.abs(F) / jnp.where(rows > 0, rows, 1))
        # Every motion returns after no time.
        usable = jnp.all(jnp.isfinite(J)) & jnp.isfinite(size) & sol.success & (v[-2] > SHORTEST * start.v[-2])
        return F, J, sol, jnp.where(usable, size, jnp.inf)

    def body(c):
        v = shooting.normalized(given.system, c.v + c.part * c.step)
        F, J, sol, size = evaluate(v)
        first = c.tries == 0
        better = first | (size < c.size)
        changed = c.changed | (~first & (order_of(sol) != order_of(c.solution)))
        still = shooting.still(given.system, given.t0, v)
        step = _least_squares(_square(J, start.row, still), -F, start.scale)
        step = jnp.where(jnp.isfinite(step), step, 0)
        moves = jnp.max(jnp.abs(step) / start.scale)
        stuck = ~better & ((c.size <= accepted) | (c.part < 2.0 ** (0.5 - HALVINGS)))
        new = jax.tree.map(lambda a, b: jnp.where(better, a, b), (v, F, J, sol, size, step), (c.v, c.F, c.J, c.solution, c.size, c.step))
        done = (better & ((size <= exact) | (moves <= eps) | ~jnp.isfinite(size))) | stuck
        return _Carry(*new, jnp.where(better, 1.0, 0.5 * c.part).astype(v.dtype), c.tries + 1, changed, done)

    shapes = jax.eval_shape(evaluate, start.v)
    F, J, sol, size = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    one, none = jnp.ones((), start.v.dtype), jnp.zeros((), bool)
    c = _Carry(start.v, F, J, sol, size, jnp.zeros_like(start.v), one, jnp.zeros((), jnp.int32), none, none)
    c = lax.while_loop(lambda c: ~c.done & (c.tries < start.limit), body, c)
    residual = jnp.max(jnp.abs(c.F[:-2]))
    return Found(c.v, c.F[:-1], c.J, c.solution, residual, c.tries, _outcome(shooting, given, start, c, c.size <= accepted))


def order_of(sol):
    """A number that tells sequences of events apart."""
    if "impact_contacts" not in sol.auxiliary:
        return jnp.zeros((), jnp.int32)
    contacts = jnp.ravel(sol.auxiliary["impact_contacts"])
    place = jnp.cumsum(contacts >= 0)
    weight = jnp.asarray(31, jnp.uint32) ** place.astype(jnp.uint32)
    return jnp.sum(jnp.where(contacts >= 0, (contacts + 1).astype(jnp.uint32) * weight, 0)).astype(jnp.int32)


def _outcome(shooting, given, start, c, converged):
    """Code of `OrbitOutcome`."""
    sol, code = c.solution, OrbitOutcome
    system = shifted(given.system, start.direction, c.v[-1])
    failed = ~sol.success | ~jnp.isfinite(c.size)
    captured, locked = closings(sol, Contacts(system).data(given.t0, sol.q[0]).e_N)
    located = "impact_times" in sol.auxiliary
    slow, missed = (code.GRAZING, jnp.zeros((), bool)) if located else (code.NOT_LOCATED, captured)
    if shooting.section is not None:
        converged &= jnp.max(jnp.abs(c.J[:-1, -2]) * start.scale[-2] / start.scale[:-2]) > STILL
    not_found = jnp.where(c.changed, code.EVENT_ORDER_CHANGED, code.NO_RETURN)
    out = jnp.where(converged, code.CONVERGED, jnp.where(missed, code.NOT_LOCATED, not_found))
    out = jnp.where(captured, slow, out)
    out = jnp.where(locked, code.LOCKED, out)
    return jnp.where(failed, code.SIMULATION_FAILED, out).astype(jnp.int32)


def closings(sol, e_N):
    """Whether a contact closes without a located impact, and whether one with restitution e_N (n_N,) stays closed for several steps."""
    if not sol.P_N.shape[1]:
        return (jnp.zeros((), bool),) * 2
    pushed = _captured(sol)
    # What starts closed does not close: also where it was an impact that closed it.
    before = sol.P_N > 0
    closes = pushed & ~jnp.concatenate([before[:1], before[:-1]])
    rests = pushed & (e_N > 0)[None]
    n_steps = pushed.shape[0]
    steps = min(LOCKED, n_steps)
    return jnp.any(closes), jnp.any(jnp.all(jnp.stack([rests[k : n_steps - steps + k + 1] for k in range(steps)]), axis=0))


def resting(sol, e_N):
    """Which contacts with restitution e_N are closed for several steps at the end, (n_N,)."""
    return jnp.all(_captured(sol)[-LOCKED:], axis=0) & (e_N > 0)


def staying(sol, e_N):
    """Which contacts with restitution are closed in all steps, (n_N,)."""
    return jnp.all(_captured(sol), axis=0) & (e_N > 0)


def _captured(sol):
    """Which contacts push in steps without a located impact, (n_steps, n_N)."""
    pushed = sol.P_N > 0
    if "impact_contacts" in sol.auxiliary:
        pushed &= jnp.all(sol.auxiliary["impact_contacts"][1:] < 0, axis=1)[:, None]
    return pushed


def orbit(shooting, given, start, found):
    """The `Orbit` of what was found."""
    n = found.v.shape[0] - 2
    system = shifted(given.system, start.direction, found.v[-1])
    q, u = found.v[: shooting.n_q], found.v[shooting.n_q : -2]
    monodromy = found.J[:n, :n] + jnp.eye(n, dtype=found.v.dtype)
    if shooting.section is not None:
        monodromy = _returned(shooting, system, given.t0, q, u, found, monodromy)
    uneven = q.shape != u.shape
    L, R = shooting.frames(system, given.t0, found.v)
    return Orbit(
        system,
        q,
        u,
        given.t0,
        found.v[-2],
        found.solution,
        L[:-1, :-1] @ monodromy @ R[:-2, :-2] if uneven else monodromy,
        L @ found.J @ R if uneven else found.J,
        found.residual,
        found.outcome,
        found.iterations,
        shooting,
    )


def _returned(shooting, system, t0, q, u, found, A):
    """The monodromy matrix with the shift in time of the return, ``A + (b - f) dT/dz``: b and f are the rates behind the reset and at the
    start, alike where the reset is a symmetry of the motion (Leine & Nijmeijer 2004, ch. 8).
    """
    n = A.shape[0]
    b, gradient = found.J[:n, n], found.J[n, :n]
    rate = gradient @ b
    d_T = -(gradient @ A) / jnp.where(rate != 0, rate, 1)
    free = jnp.concatenate([system.q_dot(t0, q, u), jnp.linalg.solve(system.M(t0, q, u), system.h(t0, q, u))])
    sol = found.solution
    closed = jnp.any(sol.P_N[0] > 0) | jnp.any(sol.initial.P_N > 0) if sol.P_N.shape[1] else jnp.zeros((), bool)
    bilateral = sol.P_g.shape[1] + sol.P_gamma.shape[1]
    f = b if bilateral else jnp.where(closed, b, free)
    return A + jnp.outer(b - f, d_T)
