"""One system, several schemes: what a practitioner needs to choose between them."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from . import energy, plotting
from .contact import AbstractContactSolver
from .mechanics.system import System
from .programs.given import shown
from .schemes.base import Scheme
from .simulation.simulate import checked, simulate


@dataclass(frozen=True)
class Row:
    """How one scheme does on a motion. NaN: not measured, or not defined there (no impact, no contact).

    ===============  ============================================================================================
    ``scheme``       the scheme
    ``refused``      why the scheme does not take the system; None if it does
    ``success``      whether every step was solved
    ``order``        the scheme's order on smooth motion
    ``observed``     order seen on this motion: of the mean distance of q at the nodes between dt, dt/2 and dt/4
    ``drift``        energy that the scheme added by itself over the run (negative: numerical damping), relative to the largest energy
    ``worst``        largest energy created in a step by scheme and contacts, relative to the largest energy; round-off counts as 0
    ``impacts``      contacts that closed, counted over all steps
    ``per_impact``   energy lost in the steps with contact percussions, per impact, J
    ``penetration``  largest penetration at a node, m
    ``cost``         seconds per step, after compilation, in the fastest of five runs
    ===============  ============================================================================================
    """

    scheme: object
    refused: str | None = None
    success: bool = False
    order: int = 0
    observed: float = np.nan
    drift: float = np.nan
    worst: float = np.nan
    impacts: int = 0
    per_impact: float = np.nan
    penetration: float = np.nan
    cost: float = np.nan


def compare(
    system: System,
    schemes: Sequence[Scheme],
    q0: ArrayLike,
    u0: ArrayLike,
    t1: float,
    dt: float,
    t0: float = 0.0,
    *,
    order: bool = True,
    solver: AbstractContactSolver | None = None,
    report: Callable[[str], Any] | None = None,
) -> list[Row]:
    """Run a system with several schemes: a `Row` for each.

    Arguments are those of `simulate`, with a list of schemes. With ``order`` the motion is run with dt/2 and dt/4 as well. A scheme that
    does not take the system gets a row that says why; input that makes no sense raises as `simulate` does. ``report`` is called with a
    line of text before each scheme is compiled and run.
    """
    if not isinstance(schemes, Sequence) or not schemes or not all(isinstance(scheme, Scheme) for scheme in schemes):
        raise TypeError(f"compare: schemes must be a list of schemes such as [jaxnsd.Moreau()], got {shown(schemes)}")
    rows = []
    for i, scheme in enumerate(schemes, start=1):
        reason = scheme.refuse(system, t0, jnp.asarray(q0), jnp.asarray(u0))
        if reason:
            rows.append(Row(scheme, refused=reason))
            continue

        def finer(k, scheme=scheme):
            return simulate(system, scheme, q0, u0, t1, dt / k, t0, save_every=k, solver=solver)

        run = checked(system, scheme, q0, u0, t1, dt, t0, solver=solver)
        if report:
            report(f"{i} of {len(schemes)}: {scheme} is compiled and run{', with dt, dt/2 and dt/4' if order else ''}")
        sol = jax.block_until_ready(run())
        seconds = []
        for _ in range(5):
            start = time.perf_counter()
            jax.block_until_ready(run())
            seconds.append(time.perf_counter() - start)
        observed = _observed_order(*(np.asarray(s.q) for s in (sol, finer(2), finer(4)))) if order else np.nan
        rows.append(_row(system, scheme, sol, observed, min(seconds) / len(sol.outcome)))
    return rows


def _observed_order(coarse, medium, fine):
    first, second = np.abs(coarse - medium).mean(), np.abs(medium - fine).mean()
    return float(np.log2(first / second)) if first > 0 and second > 0 else np.nan


def _row(system, scheme, sol, observed, cost):
    impacts = int(plotting.impacts(sol, system).sum())
    gap = np.asarray(jax.vmap(system.gap)(sol.t, sol.q))
    return Row(
        scheme,
        success=bool(sol.success),
        order=scheme.order,
        observed=observed,
        impacts=impacts,
        penetration=max(0.0, -float(gap.min())) if gap.size else np.nan,
        cost=cost,
        **_energies(system, scheme, sol, impacts),
    )


def _energies(system, scheme, sol, impacts):
    """What the energy balance tells; nothing where the scheme's percussions act between the nodes."""
    if scheme.unbalanced:
        return {}
    balance = jax.jit(energy.balance, static_argnums=1)(system, scheme, sol)
    scale = float(balance.scale)
    created, pushed = np.asarray(balance.created), np.any(np.asarray(sol.P_N) > 0, axis=1)
    return {
        "drift": float(jnp.sum(balance.numerical)) / scale,
        "worst": 0.0 if np.all(balance.dissipative) else float(created.max()) / scale,
        "per_impact": -float(created[pushed].sum()) / impacts if impacts else np.nan,
    }


#: column of the table -> what stands there
COLUMNS = {
    "scheme": "as it is written in Python; (not solved): a step of its run failed",
    "order": "of the scheme on smooth motion",
    "seen": "order seen on this motion, from q at the nodes with dt, dt/2 and dt/4; about 1 where contacts close, no order at round-off",
    "drift": "energy that the scheme added by itself over the run, relative to the largest energy; negative: numerical damping",
    "created": "largest energy that scheme and contacts created in one step, relative to the largest energy; 0: dissipative",
    "impacts": "contacts that closed",
    "J/impact": "energy lost in the steps with contact percussions, per impact",
    "penetration m": "largest penetration at a node",
    "us/step": "microseconds per step, after compilation, in the fastest of five runs",
}


def legend() -> str:
    """What the columns of the `table` hold, as text."""
    lines = [f"  {name:<15}{meaning}" for name, meaning in COLUMNS.items()]
    return "\n".join([*lines, "  nan            not defined here: no impact, no contact, or percussions between the nodes"])


def table(rows: Sequence[Row]) -> str:
    """The rows as text, in the columns that `legend` explains."""
    if not all(isinstance(row, Row) for row in rows):
        raise TypeError(f"compare: rows must be those that compare returns, got {shown(rows)}")
    head = tuple(COLUMNS)
    lines, refusals = [], []
    for row in rows:
        if row.refused:
            refusals.append(f"{row.scheme.name}: {row.refused}")
            continue
        name = repr(row.scheme) + ("" if row.success else " (not solved)")
        numbers = (f"{row.drift:+.1e}", f"{row.worst:.1e}", row.impacts, f"{row.per_impact:.2e}", f"{row.penetration:.1e}")
        lines.append((name, row.order, f"{row.observed:.1f}", *numbers, f"{1e6 * row.cost:.2f}"))
    cells = [[str(cell) for cell in line] for line in (head, *lines)]
    widths = [max(len(line[k]) for line in cells) for k in range(len(head))]
    text = [
        "  ".join(cell.ljust(w) if k == 0 else cell.rjust(w) for k, (cell, w) in enumerate(zip(line, widths, strict=True)))
        for line in cells
    ]
    text.insert(1, "-" * len(text[0]))
    return "\n".join([*text, *[f"\nnot taken: {sentence}" for sentence in refusals]])
