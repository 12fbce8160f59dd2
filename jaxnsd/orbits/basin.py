"""`basin`: which motion a start is drawn to, over a grid of starts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ..contact import AbstractContactSolver
from ..mechanics.system import System
from ..programs.given import numbers, shown
from ..programs.jitted import jit
from ..schemes import Scheme
from ..simulation import checks
from .periodic import prepared, whole
from .sampling import seen

#: What ``Basin.attractor`` says of a start whose motion has not settled on a periodic one, has locked, and of one whose simulation failed.
UNSETTLED, LOCKED, FAILED = -1, -2, -3


@dataclass(frozen=True, eq=False, repr=False)
class Attractor:
    """A periodic motion to which some of the starts are drawn.

    repeats:  m, the periods after which it returns to where it was
    q, u:     (m, n_q), (m, n_u) its states once a period
    impacts:  located impacts in these m periods
    share:    of the starts that are drawn to it
    """

    repeats: int
    q: np.ndarray
    u: np.ndarray
    impacts: int
    share: float

    def __repr__(self) -> str:
        """One line."""
        with np.printoptions(precision=6):
            state = f"q = {self.q[-1]}, u = {self.u[-1]}"
        return f"Attractor({self.impacts} impacts in {self.repeats} periods, {state}, {100 * self.share:.3g} % of the starts)"


@dataclass(frozen=True, eq=False, repr=False)
class Basin:
    """The basins of attraction of a grid of starts.

    q, u:        (..., n_q), (..., n_u) the starts
    attractor:   (...) index in ``attractors`` of the motion that a start is drawn to; -1 where it has not settled on a periodic one: it
                 moves irregularly, on a torus, or needs a longer transient; -2 where it locks: a contact with restitution stays closed
                 for good, wherever that is; -3 where a step of the simulation failed
    attractors:  list of `Attractor`, the one with the most starts first
    last_q, last_u: (..., n_q), (..., n_u) states at the end, from which one may go on
    captured:    (...) whether an impact was not located in the periods that were kept: a chattering, a landing, a slow one
    """

    q: np.ndarray
    u: np.ndarray
    attractor: np.ndarray
    attractors: Sequence[Attractor]
    last_q: np.ndarray
    last_u: np.ndarray
    captured: np.ndarray

    def __repr__(self) -> str:
        """One line: attractors, and what has not settled."""
        unsettled, locked, failed = (np.mean(self.attractor == code) for code in (UNSETTLED, LOCKED, FAILED))
        return (
            f"Basin({' x '.join(map(str, self.attractor.shape))} starts, {len(self.attractors)} periodic attractors of shares "
            f"{[round(a.share, 4) for a in self.attractors[:5]]}, locked {locked:.4g}, not settled {unsettled:.4g}, failed {failed:.4g})"
        )


def basin(
    system: System,
    scheme: Scheme,
    q: ArrayLike,
    u: ArrayLike,
    period: ArrayLike | Callable[..., Any],
    *,
    n_steps: int,
    transient: int = 200,
    keep: int = 32,
    tolerance: float = 1e-3,
    reset: Callable[..., Any] | None = None,
    t0: ArrayLike = 0.0,
    solver: AbstractContactSolver | None = None,
) -> Basin:
    """Which periodic motion every start of a grid is drawn to: its basin of attraction (Hsu 1987).

    q, u:       starts (..., n_q), (..., n_u) at ``t0``, arrays that are broadcast to one grid; simulated side by side by `jax.vmap`
    transient:  periods before those that are kept
    keep:       periods in which a motion must repeat itself twice at least, so that it is known up to ``keep // 2`` periods long
    tolerance:  distance of two states that count as one, in units of the size of the motions

    Other arguments as those of `diagram`; of autonomous motion the period is any time. Motions are told apart by what is seen of them once
    a period: a longer transient and a smaller tolerance tell more of them apart, and call fewer settled. Raises ValueError or TypeError,
    before tracing, for input that makes no sense; inside of `jit` and `vmap` it has no values to sort, and says so.
    """
    transient, keep = whole("basin", "transient", transient, 0), whole("basin", "keep", keep, 2)
    if not isinstance(tolerance, (int, float)) or not 0 < tolerance < 1:
        raise ValueError(f"basin: tolerance must be between 0 and 1, got {shown(tolerance)}")
    if not checks.known(*jax.tree.leaves((system, q, u, t0))):
        raise TypeError("basin: needs values, and inside of jit and vmap there are none: call it outside of them")
    q, u = _grid("q", q), _grid("u", u)
    try:
        shape = np.broadcast_shapes(q.shape[:-1], u.shape[:-1])
    except ValueError:
        raise ValueError(f"basin: q and u must be of one grid, got shapes {q.shape} and {u.shape}") from None
    if not np.prod(shape, dtype=int):
        raise ValueError(f"basin: needs at least one start, got shapes {q.shape} and {u.shape}")
    q, u = (np.broadcast_to(x, (*shape, x.shape[-1])) for x in (q, u))
    starts = [x.reshape(-1, x.shape[-1]) for x in (q, u)]
    arguments = period, n_steps, None, reset, t0, solver
    shooting, system, first_q, _, t0, T = prepared("basin", system, scheme, starts[0][0], starts[1][0], *arguments)
    starts = [jnp.asarray(x, first_q.dtype) for x in starts]
    out, stays = _from_all(shooting, system, *starts, t0, T, transient, keep)
    q_seen, u_seen = np.asarray(out.q), np.asarray(out.u)
    attractor, attractors = _sorted(q_seen, u_seen, *map(np.asarray, (out.impacts, stays, out.success)), tolerance)
    ends = [x[:, -1].reshape(*shape, -1) for x in (q_seen, u_seen)]
    return Basin(q, u, attractor.reshape(shape), attractors, *ends, np.asarray(out.captured).reshape(shape))


def _grid(name, x):
    """Starts as an array (..., n)."""
    array = numbers(x)
    if array is None:
        raise TypeError(f"basin: {name} must be an array of numbers, got {shown(x)}")
    if array.ndim < 1:
        raise ValueError(f"basin: {name} must have shape (..., n_{name}), the last axis that of one start, got shape {np.shape(array)}")
    if not np.all(np.isfinite(array)):
        raise ValueError(f"basin: {name} must be finite in all starts")
    return array


@jit(static_argnames=("shooting", "keep"))
def _from_all(shooting, system, q, u, t0, T, transient, keep):
    return jax.vmap(lambda q, u: seen(shooting, system, q, u, t0, T, transient, keep))(q, u)


def _sorted(q, u, impacts, locked, success, tolerance):
    """``(index (K,), attractors)`` of states (K, keep, n) seen once a period."""
    states = np.concatenate([q, u], axis=2)
    success = success & np.all(np.isfinite(states), axis=(1, 2))
    index = np.where(success, np.where(locked, LOCKED, UNSETTLED), FAILED)
    moves = index == UNSETTLED
    if not moves.any():
        return index, []
    size = np.median(np.abs(states[moves]).max(axis=1), axis=0)
    size = tolerance * np.maximum(size, 1e-3 * size.max())
    repeats = np.zeros(len(states), int)
    for m in range(states.shape[1] // 2, 0, -1):
        repeats[moves & np.all(np.abs(states[:, m:] - states[:, :-m]) <= size, axis=(1, 2))] = m
    found, left = [], repeats > 0
    while left.any():
        # What has just come near to an orbit may be seen at first to return after a multiple of its period.
        m = np.min(repeats[left])
        first = int(np.argmax(left & (repeats == m)))
        cycle = states[first, -m:]
        alike = left & np.any(np.all(np.abs(cycle[None] - states[:, -1:]) <= 2 * size, axis=2), axis=1)
        left &= ~alike
        found.append((first, m, alike))
    attractors = []
    for k, (first, m, alike) in enumerate(sorted(found, key=lambda one: -one[2].sum())):
        index[alike] = k
        rows = slice(-m, None)
        attractors.append(Attractor(int(m), q[first, rows], u[first, rows], int(impacts[first, rows].sum()), float(np.mean(alike))))
    return index, attractors
