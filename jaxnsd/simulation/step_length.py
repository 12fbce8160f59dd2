"""Whether a step is too long for the springs and dampers of a system: what it would do to a small change, seen at the start.

Where dt exceeds ``2 / omega`` of a spring, or ``2 m / d`` of a damper, an explicit scheme multiplies some change by less than -1 in each
step. No motion does that. Where contacts or limits stop what grows, no outcome tells.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..mechanics.linear_system import LinearSystem
from ..schemes import base

#: Systems of more velocities are not looked at: all eigenvalues of a matrix twice as large are found.
LARGEST = 64

#: A scheme is unstable where a change grows by more than this factor beside what it would in the motion: an error of its order is less.
GROWS = 1.05

#: The step is halved so often in search of one that is short enough.
HALVINGS = 40


def concerns(system, scheme, u0):
    """Whether `changes` are to be looked at."""
    looked_at = 0 < u0.shape[0] <= LARGEST and not isinstance(system, LinearSystem) and system.may_be_stiff()
    return looked_at and hasattr(_own(scheme), "growth")


def _own(scheme):
    """The scheme that makes the steps: what is located inside of them does not change how they grow."""
    return getattr(scheme, "scheme", scheme)


def changes(system, t0, q0, u0):
    """``(D, h_q, h_u)``, (n_u, n_u) each: the damping matrix of the system, derivatives of forces by what velocities move, and by them."""
    unit, n = np.eye(u0.shape[0]), u0.shape[0]

    def of_forces(directions):
        moved, u = directions
        dq = jax.jvp(lambda u: system.q_dot(t0, q0, u), (u0,), (moved,))[1]
        return jax.jvp(lambda q, u: system.applied_force(t0, q, u), (q0, u0), (dq, u))[1]

    none = np.zeros((n, n))
    both = tuple(jnp.asarray(np.concatenate(pair), u0.dtype) for pair in ((unit, none), (none, unit)))
    columns = lax.map(of_forces, both).T
    D = system.damping_matrix(t0, q0, u0)
    return jnp.zeros((n, n), u0.dtype) if D is None else D, columns[:, :n], columns[:, n:]


def warning(name, scheme, M, changes, W, dt):
    """A sentence on a step that is too long for this scheme, or None. W: directions of bilateral constraints; all are numbers."""
    if not all(np.all(np.isfinite(x)) for x in changes):
        return None
    try:
        with np.errstate(all="ignore"):
            return _warning(name, scheme, M, changes, W, dt)
    except np.linalg.LinAlgError:  # a number that is too large, or a step at a pole: nothing is known, and the run says what comes of it
        return None


def _warning(name, scheme, M, changes, W, dt):
    growth = _own(scheme).growth
    unit, allowed = np.eye(len(M)), base.allowed(M, W)
    motion = np.block([[np.zeros_like(unit), unit], [allowed @ np.linalg.solve(M, x) for x in changes[1:]]])
    rate = np.max(np.linalg.eigvals(motion).real, initial=0)

    def factor(dt):
        return np.max(np.abs(np.linalg.eigvals(growth(M, *changes, W, dt))))

    def stable(dt):
        return factor(dt) <= GROWS * np.exp(min(rate * dt, 100))

    if stable(dt):
        return None
    enough = next((dt / 2**k for k in range(1, HALVINGS) if stable(dt / 2**k)), None)
    shorter = "" if enough is None else f"take dt = {enough:.2g} or less, or "
    return (
        f"{scheme.name} with dt = {dt:g} is too long a step for a spring or a damper of {name}: at the initial state it "
        f"multiplies a small change by {factor(dt):.3g}, again in each step, which the motion does not; {shorter}a scheme that is "
        "implicit, as MoreauJean()"
    )
