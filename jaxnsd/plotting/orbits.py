"""Pictures of periodic orbits, their branches and basins."""

from typing import TYPE_CHECKING

import matplotlib
import matplotlib.patches
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb

from .figures import COLOURS, axes_of, check_kind, named, single, styled

if TYPE_CHECKING:
    from ..orbits import Basin, Branch, Curve, Diagram, Orbit

#: Markers of the special points of a branch.
SPECIAL = {"fold": "s", "period doubling": "D", "branch point": "P", "Neimark-Sacker": "o", "grazing": "X"}


@styled
def branch(branch: "Branch", of: str = "max q[0]", *, label: str | None = None, ax: Axes | None = None) -> Axes:
    """A branch of periodic orbits: a column of it, see `orbits.Branch.columns`, against the parameter.

    Stable parts are solid and blue, unstable ones dashed and vermilion; special points have a marker of their kind and stand in the legend.
    Raises ValueError for a column that the branch does not have.
    """
    check_kind("branch", branch, "Branch of orbits.follow", "columns")
    columns = branch.columns()
    if of not in columns:
        raise ValueError(f"branch: {of!r} is no column of the branch, which has {', '.join(columns)}")
    x, y, stable = branch.values, columns[of], branch.stable
    # Where the start has moved, what is seen at it jumps.
    moved = (np.diff(branch.t0) != 0) & (of[:2] in ("q[", "u["))
    ax = axes_of(ax)
    named = {line.get_label() for line in ax.lines}
    first = 0
    for last in range(1, len(x) + 1):
        if last < len(x) and stable[last] == stable[first] and not moved[last - 1]:
            continue
        # As far as the next point, so that the line has no gaps.
        end = last + 1 if last < len(x) and not moved[last - 1] else last
        name = "stable" if stable[first] else "unstable"
        style = {"color": COLOURS[0]} if stable[first] else {"color": COLOURS[1], "linestyle": "--"}
        ax.plot(x[first:end], y[first:end], label=f"_{name}" if name in named else name, **style)
        named.add(name)
        first = last
    for point in branch.special:
        i, j = point.index, min(point.index + 1, len(x) - 1)
        part = np.clip((point.value - x[i]) / (x[j] - x[i]), 0, 1) if x[i] != x[j] else 0.5
        text = f"{point.kind}, {point.value:.6g}"
        ax.plot(point.value, y[i] + part * (y[j] - y[i]), SPECIAL[point.kind], color="black", markersize=5, linestyle="none", label=text)
    ax.set(xlabel=branch.parameter, ylabel=label or of)
    ax.legend(frameon=False, fontsize="small")
    return ax


@styled
def curve(curve: "Curve", *, label: str | None = None, ax: Axes | None = None) -> Axes:
    """A curve of special points in the plane of two parameters, the second one to the right; several go into the same axes.

    Each kind has a colour and a marker, which stands where the curve starts. ``label`` is its name in the legend, by default the kind.
    """
    check_kind("curve", curve, "Curve of orbits.curve", "parameters")
    ax, name = axes_of(ax), label or curve.kind
    name = f"_{name}" if name in {line.get_label() for line in ax.lines} else name
    colour = COLOURS[list(SPECIAL).index(curve.kind)]
    ax.plot(curve.values[:, 1], curve.values[:, 0], color=colour, label=name)
    ax.plot(*curve.values[0, ::-1], SPECIAL[curve.kind], color=colour, markersize=5)
    ax.set(xlabel=curve.parameters[1], ylabel=curve.parameters[0])
    ax.legend(frameon=False, fontsize="small")
    return ax


@styled
def multipliers(branch: "Branch", *, ax: Axes | None = None) -> Axes:
    """The multipliers of a branch in the complex plane beside the unit circle, light at its start and dark at its end."""
    check_kind("multipliers", branch, "Branch of orbits.follow", "multipliers")
    ax = axes_of(ax)
    ax.add_patch(matplotlib.patches.Circle((0, 0), 1, fill=False, color="0.6", linewidth=0.8))
    values = branch.multipliers
    order = np.broadcast_to(np.arange(len(values))[:, None], values.shape)
    ax.scatter(values.real.ravel(), values.imag.ravel(), c=order.ravel(), cmap="viridis_r", s=6)
    ax.axvline(0, color="0.85", linewidth=0.6, zorder=0)
    ax.axhline(0, color="0.85", linewidth=0.6, zorder=0)
    ax.set(xlabel=r"Re $\mu$", ylabel=r"Im $\mu$", aspect="equal")
    return ax


@styled
def orbit(orbit: "Orbit", coordinate: int = 0, *, label: str | None = None, ax: Axes | None = None) -> Axes:
    """Phase portrait of a periodic orbit, for systems with q_dot = u: velocity against coordinate, dashed where an impact turns it.

    The states beside an impact are extrapolated from the nodes next to it.
    """
    check_kind("orbit", orbit, "Orbit of orbits.periodic", "shooting")
    sol = orbit.solution
    single(sol, "orbit")
    n = sol.q.shape[1]
    if not -n <= coordinate < n:
        raise ValueError(f"orbit: coordinate {coordinate} of a system with {n}")
    t, q, u = np.asarray(sol.t), np.asarray(sol.q)[:, coordinate], np.asarray(sol.u)[:, coordinate]
    ax, last = axes_of(ax), len(t) - 1
    jumps = []
    # Of several impacts in a step the first is drawn.
    for k, at in {min(int(np.searchsorted(t, impact.time)) - 1, last - 1): impact.time for impact in reversed(orbit.impacts)}.items():
        before, after = max(k - 1, 0), min(k + 2, last)
        rates = [(u[j] - u[i]) / (t[j] - t[i]) if j > i else 0.0 for i, j in ((before, k), (k + 1, after))]
        ends = [u[k] + rates[0] * (at - t[k]), u[k + 1] - rates[1] * (t[k + 1] - at)]
        place = q[k] + 0.5 * (u[k] + ends[0]) * (at - t[k])
        jumps.append((k, place, ends))
    start, lead = 0, ([], [])
    for k, place, ends in sorted(jumps):
        ax.plot([*lead[0], *q[start : k + 1], place], [*lead[1], *u[start : k + 1], ends[0]], color=COLOURS[0])
        ax.plot([place, place], ends, color=COLOURS[1], linestyle="--", linewidth=1.0)
        start, lead = k + 1, ([place], [ends[1]])
    ax.plot([*lead[0], *q[start:]], [*lead[1], *u[start:]], color=COLOURS[0], label=label)
    ax.plot(q[0], u[0], "o", color="black", markersize=4, label="_start")
    ax.set_xlabel(named(orbit.system, "coordinate_names", coordinate, f"$q_{{{coordinate}}}$"))
    ax.set_ylabel(named(orbit.system, "velocity_names", coordinate, f"$\\dot q_{{{coordinate}}}$"))
    return ax


@styled
def diagram(diagram: "Diagram", coordinate: int = 0, *, parameter: str = "parameter", ax: Axes | None = None) -> Axes:
    """Brute-force bifurcation diagram: a coordinate once a period against the parameter; a tick below where a member locked or failed."""
    check_kind("diagram", diagram, "Diagram of orbits.diagram", "locked")
    ax = axes_of(ax)
    values, q = np.asarray(diagram.values), np.asarray(diagram.q)[..., coordinate]
    usable = np.asarray(diagram.success) & ~np.asarray(diagram.locked)
    ax.plot(np.repeat(values[usable], q.shape[1]), q[usable].ravel(), ".", color=COLOURS[0], markersize=1.5, alpha=0.6)
    if not usable.all():
        ax.plot(values[~usable], np.zeros((~usable).sum()), "|", color="0.5", transform=ax.get_xaxis_transform(), label="locked or failed")
        ax.legend(frameon=False, fontsize="small")
    ax.set(xlabel=parameter, ylabel=f"$q_{{{coordinate}}}$")
    return ax


@styled
def basin(basin: "Basin", *, ax: Axes | None = None) -> Axes:
    """Basins of attraction of a plane grid of starts (I, J): a colour for every attractor, crosses where its states lie once a period.

    The axes are the coordinate or velocity that changes along each axis of the grid, that with the index i, of ``basin.attractor[i, j]``,
    the vertical one. Light grey: not settled on a periodic motion; dark grey: locked; white: failed. Raises ValueError for other grids.
    """
    check_kind("basin", basin, "Basin of orbits.basin", "attractors")
    shape = basin.attractor.shape
    states = np.concatenate([basin.q, basin.u], axis=-1)
    changes = [[k for k in range(states.shape[-1]) if np.ptp(states[..., k], axis=axis).any()] for axis in range(len(shape))]
    if len(shape) != 2 or [len(c) for c in changes] != [1, 1] or changes[0] == changes[1]:
        raise ValueError(
            f"basin: draws plane grids (I, J) along each of whose axes one coordinate or velocity changes, got starts of shape {shape}"
        )
    (vertical,), (horizontal,) = changes
    x, y = states[0, :, horizontal], states[:, 0, vertical]
    ax, n = axes_of(ax), basin.q.shape[-1]
    colours = [COLOURS[k % len(COLOURS)] for k in range(len(basin.attractors))]
    # Codes -3, -2 and -1 come first.
    shades = np.array([to_rgb(c) for c in ("white", "0.45", "0.8", *colours)])
    shades[3:] = 0.45 * shades[3:] + 0.55
    ax.pcolormesh(x, y, shades[basin.attractor + 3], shading="nearest")
    for k, attractor in enumerate(basin.attractors):
        at = np.concatenate([attractor.q, attractor.u], axis=1)
        counted = [f"{count} {word}{'s' * (count != 1)}" for count, word in ((attractor.impacts, "impact"), (attractor.repeats, "period"))]
        # A legend of many is no legend.
        name = f"{' in '.join(counted)}, {attractor.share:.0%}" if k < len(COLOURS) else "_other"
        ax.plot(at[:, horizontal], at[:, vertical], "x", color=colours[k], markeredgewidth=1.5, label=name)
    for code, name in ((-1, "not settled"), (-2, "locked")):
        if np.any(basin.attractor == code):
            ax.plot([], [], "s", color=tuple(shades[code + 3]), label=f"{name}, {np.mean(basin.attractor == code):.0%}")
    named = [f"$q_{{{k}}}$" if k < n else f"$u_{{{k - n}}}$" for k in range(states.shape[-1])]
    ax.set(xlabel=named[horizontal], ylabel=named[vertical], xlim=(x.min(), x.max()), ylim=(y.min(), y.max()))
    ax.legend(fontsize="small", loc="upper right", framealpha=0.8)
    return ax
