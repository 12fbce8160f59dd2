"""Pictures of simulated motions. The only module that imports matplotlib; `drawing`, which makes films, asks it for axes.

Every function takes a `Solution` or arrays and, if wanted, the axes to draw on; it returns the axes and never shows a window. Colours are
those of Okabe and Ito, which people with any kind of colour vision tell apart.
"""

import html
import io
import os
import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import matplotlib
import matplotlib.patches
import numpy as np
from jax.typing import ArrayLike
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from .energy import of_states
from .mechanics.system import System
from .numerics import thresholds
from .programs.files import saying, writable
from .programs.given import numbers, shown
from .schemes.flow import THRESHOLD
from .simulation import checks
from .simulation.nodes import node_velocities
from .simulation.solution import Solution
from .simulation.tables import plain

if TYPE_CHECKING:
    from .identify import Result
    from .orbits import Basin, Branch, Curve, Diagram, Orbit

#: Okabe & Ito's palette without its yellow, which is faint on white: blue, vermilion, green, purple, orange, sky blue, black.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")

STYLE = {
    "axes.prop_cycle": matplotlib.cycler(color=COLOURS),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": "medium",
    "axes.titlelocation": "left",
    "font.size": 9,
    "lines.linewidth": 1.3,
    "mathtext.fontset": "dejavusans",  # as large as the text around it
    "savefig.dpi": 200,
}


def styled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: the function draws in the house's style, whatever the user's settings are."""
    return matplotlib.rc_context(STYLE)(function)


class Picture(Figure):
    """A figure that shows itself in a notebook, once, whether matplotlib's own way is switched on there or not."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        with matplotlib.rc_context(STYLE):
            self.savefig(file, format="png", dpi=100)
        return file.getvalue()


@styled
def figure(rows: int = 1, columns: int = 1, width: float = 6.4, height: float = 4.0, **gridspec: Any) -> tuple[Figure, Any]:
    """``(figure, axes)`` in the house's style, outside of pyplot: no window, nothing to close.

    ``axes`` is an array of shape (rows, columns), squeezed as by `matplotlib.pyplot.subplots`; ``width`` and ``height`` in inches.
    """
    fig = Picture(figsize=(width, height), layout="constrained")
    return fig, fig.subplots(rows, columns, gridspec_kw=gridspec)


@styled
def save(fig: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure to a file, whose format follows from its name; .html is a page with the figure in it, whose words can be searched."""
    if not isinstance(fig, Figure):
        raise TypeError(f"save: draws a figure of matplotlib, got {shown(fig)}")
    with saying("save"):
        writable(path)
    if not str(path).lower().endswith(".html"):
        try:
            fig.savefig(path)
        except ValueError:
            endings = ", ".join(f".{name}" for name in fig.canvas.get_supported_filetypes())
            raise ValueError(f"save: the file must end in .html or one of {endings}, got {str(path)!r}") from None
        return
    picture = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        fig.savefig(picture, format="svg")
    drawing = picture.getvalue()
    style = "body { margin: 2em auto; max-width: 1100px } svg { width: 100%; height: auto }"
    title = html.escape(plain(fig.get_suptitle().splitlines()[0]))
    with open(path, "w", encoding="utf-8") as file:
        file.write(f'<!DOCTYPE html>\n<html lang="en"><meta charset="utf-8"><title>{title}</title>')
        file.write(f"<style>{style}</style>\n{drawing[drawing.index('<svg') :]}</html>\n")


def impacts(sol: Solution, system: System | None = None) -> np.ndarray:
    """Where contacts close: boolean (N, n_N), true in a stored interval with a normal percussion that follows one without.

    A contact that stays closed counts once, a contact that bounces once an impact, one that is closed from the start on not at all. Where
    another contact has an event in the first interval, the ``system`` says which ones are closed.
    """
    _single(sol, "impacts", system)
    closed = np.asarray(sol.P_N) > 0
    before = np.concatenate([np.asarray(sol.initial.P_N)[None] > 0, closed[:-1]])
    # What pushes in the first interval without an event was closed before.
    before[:1] |= np.asarray(sol.events)[:1, None] == 0
    if system is not None and np.any(closed[:1] & ~before[:1]):
        before[:1] |= np.asarray(_rests(system, sol.t[0], sol.dt, sol.q[0], sol.u[0]))
    return closed & ~before


@jax.jit
def _rests(system, t, dt, q, u):
    """Which contacts (n_N,) are closed at (t, q), as seen from what the forces close in a step, and no faster than these: no impact."""
    W = system.W_N(t, q, u)
    gain = dt * jnp.abs(W.T @ jnp.linalg.solve(system.M(t, q, u), system.h(t, q, u)))
    closed = thresholds.touch(q.dtype) * dt * gain + thresholds.round_off(q.dtype) * jnp.max(jnp.abs(q)) * jnp.sum(jnp.abs(W), axis=0)
    return (system.gap(t, q) <= closed) & (system.gap_velocity(t, q, u) >= -THRESHOLD * gain)


def trajectory(
    sol: Solution,
    coordinates: int | Sequence[int] | None = None,
    *,
    system: System | None = None,
    labels: Sequence[str] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Coordinates q (N + 1, n_q) against time; ``coordinates`` picks some by their indices.

    They are named by ``labels``, one for each that is drawn, or by the `coordinate_names` of the ``system``.
    """
    _single(sol, "trajectory")
    q = np.asarray(sol.q)
    chosen = list(range(q.shape[1])) if coordinates is None else _whole("trajectory", coordinates)
    for i in chosen:
        if not -q.shape[1] <= i < q.shape[1]:
            raise ValueError(f"trajectory: coordinate {i} of a system with {q.shape[1]}")
    if labels is None:
        labels = [_named(system, "coordinate_names", i, f"$q_{{{i}}}$") for i in chosen]
    if len(labels) != len(chosen):
        raise ValueError(f"trajectory: {len(labels)} labels for {len(chosen)} coordinates")
    ax = _axes(ax)
    for i, label, colour in zip(chosen, labels, _colours(len(chosen)), strict=True):
        ax.plot(sol.t, q[:, i], color=colour, label=label)
    return _finish(ax, "coordinates", legend=len(chosen) > 1, single=labels)


def phase_portrait(
    sol: Solution, coordinate: int = 0, *, system: System | None = None, label: str | None = None, ax: Axes | None = None, **line: Any
) -> Axes:
    """Velocity ``u[:, coordinate]`` against ``q[:, coordinate]``, both (N + 1,); for systems with q_dot = u.

    The axes are named by the `coordinate_names` and `velocity_names` of the ``system``, where it is given and has them.
    """
    _single(sol, "phase_portrait")
    n = min(sol.q.shape[1], sol.u.shape[1])
    (coordinate,) = _whole("phase_portrait", coordinate)
    if not -n <= coordinate < n:
        raise ValueError(f"phase_portrait: coordinate {coordinate} of a system with {n}")
    ax = _axes(ax)
    ax.plot(np.asarray(sol.q)[:, coordinate], np.asarray(sol.u)[:, coordinate], label=label, **line)
    ax.set_xlabel(_named(system, "coordinate_names", coordinate, f"$q_{{{coordinate}}}$"))
    ax.set_ylabel(_named(system, "velocity_names", coordinate, f"$\\dot q_{{{coordinate}}}$"))
    return ax


def gaps(system: System, sol: Solution, *, labels: Sequence[str] | None = None, ax: Axes | None = None) -> Axes:
    """Gaps g_N(t, q) (N + 1, n_N) against time, with a dot at the node where a contact closes (see `impacts`)."""
    _single(sol, "gaps", system)
    values = np.asarray(jax.jit(jax.vmap(system.gap))(sol.t, sol.q))
    ax = _axes(ax)
    _contacts(ax, np.asarray(sol.t), values, system, sol, values[1:], labels, "gaps")
    ax.axhline(0, color="0.5", linewidth=0.6, zorder=0)
    return _finish(ax, "gaps $g_N$ in m", legend=values.shape[1] > 1)


def percussions(sol: Solution, *, system: System | None = None, labels: Sequence[str] | None = None, ax: Axes | None = None) -> Axes:
    """Normal percussions P_N (N, n_N) against the times ``t[1:]`` at which they act, with a dot where a contact closes (see `impacts`)."""
    _single(sol, "percussions", system)
    values = np.asarray(sol.P_N)
    ax = _axes(ax)
    _contacts(ax, np.asarray(sol.t)[1:], values, system, sol, values, labels, "percussions")
    return _finish(ax, "normal percussions $P_N$ in N s", legend=values.shape[1] > 1)


def energy(system: System, sol: Solution, *, ax: Axes | None = None) -> Axes:
    """Kinetic, potential and total energy (N + 1,) at the nodes, the kinetic one with the velocity that leaves the node."""
    _single(sol, "energy", system)
    u = node_velocities(system, sol.scheme, sol)
    kinetic, potential = map(np.asarray, of_states(system, sol.t, sol.q, u))
    ax = _axes(ax)
    for values, label, colour in (
        (kinetic, "kinetic", COLOURS[0]),
        (potential, "potential", COLOURS[1]),
        (kinetic + potential, "total", "black"),
    ):
        ax.plot(sol.t, values, label=label, color=colour)
    return _finish(ax, "energy in J", legend=True)


def ensemble_bands(
    t: ArrayLike,
    values: ArrayLike,
    quantiles: Sequence[float] = (0.05, 0.25, 0.5, 0.75, 0.95),
    *,
    label: str | None = None,
    colour: Any = COLOURS[0],
    ax: Axes | None = None,
) -> Axes:
    """Quantiles over an ensemble: bands between the outer and inner pairs, a line for the median.

    ``t`` (N,), ``values`` (members, N); ``quantiles`` an odd, increasing number of levels, symmetric about the middle one, the line.
    """
    t, values, quantiles = np.asarray(t), np.asarray(values), np.asarray(quantiles, float)
    if t.ndim != 1 or values.ndim != 2 or values.shape[1] != len(t):
        raise ValueError(f"ensemble_bands: t must be (N,) and values (members, N), got {t.shape} and {values.shape}")
    if len(quantiles) % 2 == 0 or np.any(np.diff(quantiles) <= 0) or quantiles[0] < 0 or quantiles[-1] > 1:
        raise ValueError(f"ensemble_bands: quantiles must be an odd number of increasing levels in [0, 1], got {quantiles.tolist()}")
    levels = np.quantile(values, quantiles, axis=0)
    middle = len(quantiles) // 2
    ax = _axes(ax)
    for i in range(middle):
        low, high = quantiles[i], quantiles[-1 - i]
        name = f"{100 * low:g} to {100 * high:g} %"
        shade = 1 - 0.6 * (i + 1) / (middle + 1) * (1 - np.array(to_rgb(colour)))
        ax.fill_between(t, levels[i], levels[-1 - i], color=shade, linewidth=0, label=name)
    ax.plot(t, levels[middle], color=colour, label=label or ("median" if quantiles[middle] == 0.5 else f"{100 * quantiles[middle]:g} %"))
    ax.set_xlabel("time $t$ in s")
    ax.legend(frameon=False)
    return ax


def convergence(
    dts: ArrayLike,
    errors: ArrayLike,
    *,
    labels: Sequence[str] | str | None = None,
    orders: Sequence[float] = (),
    fitted: ArrayLike | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Errors against step size on logarithmic axes, with the observed order (slope of the fitted line) in the legend.

    ``dts`` (n,), ``errors`` (n,) or (curves, n), all positive; ``orders`` draws dashed lines of these slopes through the first curve's
    error at the largest step. ``fitted``, booleans in the shape of ``errors``, picks the points the lines are fitted to, where others
    are too coarse or at round-off (default: all).
    """
    dts, errors = np.asarray(dts, float), np.atleast_2d(np.asarray(errors, float))
    if dts.ndim != 1 or errors.shape[1:] != dts.shape or len(dts) < 2:
        raise ValueError(f"convergence: dts must be (n,) with n > 1 and errors (n,) or (curves, n), got {dts.shape} and {errors.shape}")
    if np.any(dts <= 0) or not np.all(errors > 0):
        raise ValueError("convergence: step sizes and errors must be positive")
    fitted = np.ones(errors.shape, bool) if fitted is None else np.atleast_2d(np.asarray(fitted, bool))
    if fitted.shape != errors.shape or np.any(fitted.sum(axis=1) < 2):
        raise ValueError(f"convergence: fitted must have the shape of errors, {errors.shape}, and at least two points a curve")
    labels = [None] * len(errors) if labels is None else [labels] if isinstance(labels, str) else list(labels)
    if len(labels) != len(errors):
        raise ValueError(f"convergence: {len(labels)} labels for {len(errors)} curves")
    ax = _axes(ax)
    for error, label, marker, chosen in zip(errors, labels, "os^vDPX" * len(errors), fitted, strict=False):
        slope = np.polyfit(np.log(dts[chosen]), np.log(error[chosen]), 1)[0]
        ax.loglog(dts, error, marker=marker, markersize=4, label=f"{label + ', ' if label else ''}order {slope:.2f}")
    largest = np.argmax(dts)
    ends = np.array([dts.min(), dts.max()])
    for order in orders:
        ax.loglog(ends, errors[0, largest] * (ends / ends[1]) ** order, "--", color="0.5", linewidth=0.8, label=f"slope {order:g}")
    if dts.max() < 100 * dts.min():
        # Few powers of ten: labels between them, which are short enough to stand side by side.
        ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        ax.xaxis.set_major_formatter("{x:g}")
        ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_xlabel(r"step size $\Delta t$ in s")
    ax.set_ylabel("error")
    ax.legend(frameon=False)
    return ax


@styled
def strobe(
    system: System, sol: Solution, shots: int | Sequence[float] = 8, *, view: tuple[float, float] = (-60.0, 20.0), ax: Axes | None = None
) -> Axes:
    """Stroboscopic picture of bodies: their shapes as lines at ``shots`` times, from faint to strong, and the paths of the centres of mass.

    system: a `bodies.Multibody`. One that moves in a plane is drawn in it, in m; in space the view is that of a camera far away
    shots:  number of times, equally spaced, or the times in s
    view:   azimuth and elevation of the camera in degrees, in space

    Returns the axes. Raises TypeError for a system that is not made of bodies.
    """
    from .bodies import Multibody, wireframes

    _single(sol, "strobe")
    if not isinstance(system, Multibody):
        raise TypeError(f"strobe draws a system made by jaxnsd.bodies, got {type(system).__name__}; try trajectory or overview")
    t, ax = np.asarray(sol.t), _axes(ax)
    times = np.linspace(t[0], t[-1], shots) if np.ndim(shots) == 0 else np.asarray(shots, float)
    if not len(times) or times.min() < t[0] - 1e-9 or times.max() > t[-1] + 1e-9:
        raise ValueError(f"strobe: shots must be a positive number, or times between {t[0]:g} and {t[-1]:g} s, got {shots!r}")
    chosen = [int(np.argmin(np.abs(t - time))) for time in times]
    position, rotation = (np.asarray(part) for part in jax.jit(jax.vmap(system.pose))(sol.t, sol.q))
    flat = system.structure.plane
    if flat is None:
        azimuth, elevation = np.radians(view)
        right = np.array([-np.sin(azimuth), np.cos(azimuth), 0.0])
        upward = np.array([-np.sin(elevation) * np.cos(azimuth), -np.sin(elevation) * np.sin(azimuth), np.cos(elevation)])
    else:
        # With z, or else y, upwards.
        right, upward = np.eye(3)[{0: [1, 2], 1: [0, 2], 2: [0, 1]}[flat]]

    def seen(points):
        return points @ right, points @ upward

    drawn = []
    for body, lines in wireframes.of_bodies(system).items():
        colour = COLOURS[(body - 1) % len(COLOURS)] if body else "0.5"
        for shot, k in enumerate(chosen if body else chosen[:1]):
            x, R = (position[k, body - 1], rotation[k, body - 1]) if body else (np.zeros(3), np.eye(3))
            alpha = 0.25 + 0.75 * (shot + 1) / len(chosen) if body else 1.0
            for line in lines:
                drawn.append(x + line @ R.T)
                ax.plot(*seen(drawn[-1]), color=colour, alpha=alpha, linewidth=0.7, solid_capstyle="round")
        if body:
            path = position[:, body - 1] + rotation[:, body - 1] @ np.asarray(system.center[body - 1])
            drawn.append(path)
            ax.plot(*seen(path), color=colour, linewidth=0.6, linestyle=":")
    corners = np.concatenate(drawn) if drawn else np.zeros((1, 3))
    for point, normal in wireframes.planes(system):
        for line in _patch(point, normal, corners, right, upward):
            ax.plot(*seen(line), color="0.6", linewidth=0.8 if flat is not None else 0.4, zorder=0)
    ax.set_aspect("equal")
    if flat is None:
        ax.set_axis_off()
    else:
        names = [name for axis, name in enumerate("xyz") if axis != flat]
        ax.set_xlabel(f"${names[0]}$ in m")
        ax.set_ylabel(f"${names[1]}$ in m")
    return ax


def _patch(point, normal, corners, right, upward):
    """Lines (2, 3) that show the part of a plane that is below the corners: a grid, or its trace where it is seen from its edge."""
    foot = corners - ((corners - point) @ normal)[:, None] * normal
    middle, away = foot.mean(axis=0), np.cross(right, upward)
    if abs(normal @ away) < 1e-9:
        along = np.cross(normal, away)
        s = (foot - middle) @ along
        margin = 0.1 * (np.ptp(s) + 1e-9)
        return [middle + np.outer([s.min() - margin, s.max() + margin], along)]
    first = np.cross(normal, np.eye(3)[np.argmin(np.abs(normal))])
    first = first / np.linalg.norm(first)
    sides = first, np.cross(normal, first)
    (a, b), (c, d) = ((((foot - middle) @ side).min(), ((foot - middle) @ side).max()) for side in sides)
    margin = 0.1 * max(b - a, d - c)
    a, b, c, d = a - margin, b + margin, c - margin, d + margin
    u, v = np.linspace(a, b, 7), np.linspace(c, d, 7)
    return [middle + np.outer([x, x], sides[0]) + np.outer([c, d], sides[1]) for x in u] + [
        middle + np.outer([a, b], sides[0]) + np.outer([y, y], sides[1]) for y in v
    ]


@styled
def overview(system: System, sol: Solution, title: str | None = None) -> Figure:
    """One figure of a motion: coordinates, energy and, if the system has contacts, gaps and percussions; returns the figure.

    Coordinates of different units, as their names say (`System.coordinate_names`), get axes of their own. Of a system of `jaxnsd.bodies`
    places, angles and contacts are drawn by name, see `jaxnsd.drawing.plots`.
    """
    from .bodies import Multibody

    _single(sol, "overview", system)
    if isinstance(system, Multibody):
        from .drawing import plots

        return plots.overview(system, sol, title)
    groups = _by_unit(system, sol.q.shape[1])
    contacts = sol.P_N.shape[1] > 0
    n = len(groups) + (3 if contacts else 1)
    rows = -(-n // 2)
    fig, axes = figure(rows, 2, width=10.0, height=2.9 * rows)
    axes = axes.ravel()
    for ax in axes[n:]:
        ax.remove()
    for ax, (unit, chosen) in zip(axes, groups.items(), strict=False):
        trajectory(sol, chosen, system=system, ax=ax)
        if len(chosen) > 1 and unit:
            ax.set_ylabel(f"coordinates in {unit}")
    rest = axes[len(groups) :]
    if contacts:
        gaps(system, sol, ax=rest[0])
        percussions(sol, system=system, ax=rest[1])
    energy(system, sol, ax=rest[2 if contacts else 0])
    if title:
        fig.suptitle(title, x=0.01, horizontalalignment="left")
    return fig


def _by_unit(system, n):
    """``{unit: indices of the coordinates with it}``; the unit is what stands behind the last " in " of a name."""
    groups = {}
    for i in range(n):
        groups.setdefault(_named(system, "coordinate_names", i, "").rpartition(" in ")[2], []).append(i)
    return groups


def _named(system, kind, i, otherwise):
    """What a system calls its coordinate or velocity i."""
    names = None if system is None else getattr(system, kind)
    return otherwise if names is None else names[i]


def _single(sol, name, system=None):
    checks.motion(name, sol, system)
    shape = np.shape(sol.t)[:-1]
    if shape:
        raise ValueError(
            f"{name} draws one motion, got a batch of shape {shape}: pick one with jax.tree.map(lambda x: x[0], sol), "
            "or draw the batch with ensemble_bands"
        )


def _whole(caller, coordinates):
    """Numbers of coordinates as a list; TypeError for what are none."""
    array = numbers(coordinates)
    if array is None or array.dtype.kind not in "iu":
        raise TypeError(f"{caller}: coordinates are picked by whole numbers from 0 on, got {shown(coordinates)}")
    return np.atleast_1d(array).tolist()


def _is(caller, value, kind, method):
    """Raise TypeError for what has not a ``method`` that all of its ``kind`` have."""
    if not hasattr(value, method):
        raise TypeError(f"{caller}: draws a {kind}, got {shown(value)}")


def _axes(ax):
    if ax is not None and not isinstance(ax, Axes):
        raise TypeError(f"ax must be axes of matplotlib, such as plotting.figure()[1], got {shown(ax)}")
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    with matplotlib.rc_context(STYLE):
        return plt.subplots(layout="constrained")[1]


def _contacts(ax, t, values, system, sol, at_impact, labels, name):
    """A line a contact, dots where it closes."""
    n = values.shape[1]
    if labels is None:
        named = getattr(sol, "labels", None)
        labels = (named and named.contacts) or [f"contact {i}" for i in range(n)]
    if len(labels) != n:
        raise ValueError(f"{name}: {len(labels)} labels for {n} contacts")
    closing, times = impacts(sol, system), np.asarray(sol.t)[1:]
    for i, (label, colour) in enumerate(zip(labels, _colours(n), strict=True)):
        ax.plot(t, values[:, i], color=colour, linewidth=1.0, label=label)
        # Contacts that close together are rings around each other.
        size = 2.0 + 1.4 * (n - 1 - i) if n <= len(COLOURS) else 2.0
        dots = {"marker": "o", "markersize": size, "markeredgewidth": 0.8, "fillstyle": "full" if i == n - 1 else "none"}
        ax.plot(times[closing[:, i]], at_impact[closing[:, i], i], color=colour, linestyle="none", label=f"_impacts {i}", **dots)


def _colours(n):
    """n colours: the palette, or an ordered map where it is too short."""
    return COLOURS[:n] if n <= len(COLOURS) else list(matplotlib.colormaps["viridis"](np.linspace(0, 0.9, n)))


def _finish(ax, ylabel, legend, single=()):
    ax.set_xlabel("time $t$ in s")
    ax.set_ylabel(single[0] if len(single) == 1 else ylabel)
    ax.xaxis.set_major_locator(MaxNLocator(6))
    ax.ticklabel_format(axis="y", scilimits=(-3, 4), useMathText=True)
    if legend:
        # Beside the axes, where it covers no line.
        handles, labels = ax.get_legend_handles_labels()
        every = -(-len(handles) // 10)
        ax.legend(handles[::every], labels[::every], frameon=False, fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return ax


#: Markers of the special points of a branch.
SPECIAL = {"fold": "s", "period doubling": "D", "branch point": "P", "Neimark-Sacker": "o", "grazing": "X"}


@styled
def branch(branch: "Branch", of: str = "max q[0]", *, label: str | None = None, ax: Axes | None = None) -> Axes:
    """A branch of periodic orbits: a column of it, see `orbits.Branch.columns`, against the parameter.

    Stable parts are solid and blue, unstable ones dashed and vermilion; special points have a marker of their kind and stand in the legend.
    Raises ValueError for a column that the branch does not have.
    """
    _is("branch", branch, "Branch of orbits.follow", "columns")
    columns = branch.columns()
    if of not in columns:
        raise ValueError(f"branch: {of!r} is no column of the branch, which has {', '.join(columns)}")
    x, y, stable = branch.values, columns[of], branch.stable
    # Where the start has moved, what is seen at it jumps.
    moved = (np.diff(branch.t0) != 0) & (of[:2] in ("q[", "u["))
    ax = _axes(ax)
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
    _is("curve", curve, "Curve of orbits.curve", "parameters")
    ax, name = _axes(ax), label or curve.kind
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
    _is("multipliers", branch, "Branch of orbits.follow", "multipliers")
    ax = _axes(ax)
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
    _is("orbit", orbit, "Orbit of orbits.periodic", "shooting")
    sol = orbit.solution
    _single(sol, "orbit")
    n = sol.q.shape[1]
    if not -n <= coordinate < n:
        raise ValueError(f"orbit: coordinate {coordinate} of a system with {n}")
    t, q, u = np.asarray(sol.t), np.asarray(sol.q)[:, coordinate], np.asarray(sol.u)[:, coordinate]
    ax, last = _axes(ax), len(t) - 1
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
    ax.set_xlabel(_named(orbit.system, "coordinate_names", coordinate, f"$q_{{{coordinate}}}$"))
    ax.set_ylabel(_named(orbit.system, "velocity_names", coordinate, f"$\\dot q_{{{coordinate}}}$"))
    return ax


@styled
def diagram(diagram: "Diagram", coordinate: int = 0, *, parameter: str = "parameter", ax: Axes | None = None) -> Axes:
    """Brute-force bifurcation diagram: a coordinate once a period against the parameter; a tick below where a member locked or failed."""
    _is("diagram", diagram, "Diagram of orbits.diagram", "locked")
    ax = _axes(ax)
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
    _is("basin", basin, "Basin of orbits.basin", "attractors")
    shape = basin.attractor.shape
    states = np.concatenate([basin.q, basin.u], axis=-1)
    changes = [[k for k in range(states.shape[-1]) if np.ptp(states[..., k], axis=axis).any()] for axis in range(len(shape))]
    if len(shape) != 2 or [len(c) for c in changes] != [1, 1] or changes[0] == changes[1]:
        raise ValueError(
            f"basin: draws plane grids (I, J) along each of whose axes one coordinate or velocity changes, got starts of shape {shape}"
        )
    (vertical,), (horizontal,) = changes
    x, y = states[0, :, horizontal], states[:, 0, vertical]
    ax, n = _axes(ax), basin.q.shape[-1]
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


@styled
def identification(result: "Result", title: str = "") -> Figure:
    """One page of a `jaxnsd.identify.Result`: fits, residuals, estimates with their intervals, correlations, losses, warnings.

    Of the best, the median and the worst trajectory the columns of y are drawn one above the other, dots as measured, lines as fitted.
    """
    _is("identification", result, "Result of identify.fit", "problem")
    problem, n = result.problem, len(result.labels)
    rms = result.rms()
    order = np.argsort(np.where(np.isfinite(rms), rms, np.inf))
    order = order[np.isfinite(rms[order])]
    shown = list(dict.fromkeys([order[0], order[len(order) // 2], order[-1]])) if order.size else []
    # Every row has columns of its own: long names in one of them do not narrow the others.
    # Spaces that do not break: those of a picture in HTML would be drawn as one, and columns of numbers would not be such.
    said = _wrapped(str(result)).replace(" ", "\N{NO-BREAK SPACE}")
    heights = [1, 1, 0.5 + 0.2 * min(n, 8) if n else 0.05, 0.06 + 0.046 * len(said.splitlines())]
    fig = Picture(figsize=(10.0, 0.6 + 2.9 * sum(heights)), layout="constrained")
    top, middle, below, words = fig.subfigures(4, 1, height_ratios=heights)
    for column, (k, ax) in enumerate(zip(shown, np.atleast_1d(top.subplots(1, len(shown) or 1)), strict=False)):
        which = {1: "", 2: ("best: ", "worst: ")[column % 2], 3: ("best: ", "median: ", "worst: ")[column]}[len(shown)]
        _fit_of_trajectory(ax, result, k, which)
    if not shown:
        top.axes[0].set_axis_off()
    first, second, third = middle.subplots(1, 3)
    if len(rms) > 1:
        _residuals_by_trajectory(first, result, rms)
    else:
        _residuals_over_time(first, result)
    _residual_histogram(second, result)
    for i, history in enumerate(result.history):
        history = np.asarray(history, float).reshape(-1, 2)
        for column, colour, label in ((0, COLOURS[0], "training"), (1, COLOURS[1], "validation")):
            if np.isfinite(history[:, column]).any():
                third.semilogy(history[:, column], color=colour, linewidth=0.9, label=None if i else label)
    third.set(
        xlabel="iteration",
        ylabel="mean square residual / noise$^2$",
        title=f"loss from {len(result.history)} start{'s' * (len(result.history) > 1)}",
    )
    third.xaxis.set_major_locator(MaxNLocator(integer=True))
    third.legend(frameon=False)
    if n:
        left, right = below.subplots(1, 2, width_ratios=[1.6, 1])
        _intervals(left, result)
        _correlations(right, result)
    ax = words.subplots()
    ax.axis("off")
    ax.text(0, 1, said, family="monospace", fontsize=7.5, verticalalignment="top", transform=ax.transAxes)
    name, count = type(result.system).__name__, len(problem.data)
    text = (
        f"{name}, {problem.settings.scheme!r}, $\\Delta t$ = {problem.settings.dt:.3g} s, {count} trajector{'y' if count == 1 else 'ies'}"
    )
    fig.suptitle(f"{title}\n{text}" if title else text, x=0.01, horizontalalignment="left")
    return fig


def _wrapped(text, width=125):
    # Those of a table have spaces to keep, and are short.
    lines = [line if len(line) <= width else textwrap.fill(line, width, subsequent_indent="    ") for line in text.splitlines()]
    return "\n".join(lines)


def _fit_of_trajectory(ax, result, k, which):
    """Measured and fitted columns of trajectory k, one above the other; the first six at the most."""
    part = result.of_trajectory(k)
    drawn, ticks = min(part["y"].shape[1], part["predicted"].shape[1], 6), []
    for column, colour in zip(range(drawn), COLOURS, strict=False):
        seen = part["mask"][:, column]
        low, high = np.min(part["y"][seen, column], initial=np.inf), np.max(part["y"][seen, column], initial=-np.inf)
        ticks.append(result.problem.columns[column] + (f"\n{low:.3g} to {high:.3g}" if high >= low else ""))
        # Columns differ in unit and size: each has a band of its own.
        place = lambda y, low=low, high=high, column=column: 0.85 * (y - low) / (high - low if high > low else 1) - column  # noqa: E731
        ax.plot(part["t"][seen], place(part["y"][seen, column]), ".", color=colour, markersize=4, alpha=0.4)
        ax.plot(part["t"], place(part["predicted"][:, column]), color=colour, linewidth=0.9)
    held = "" if result.training[k] else ", held out"
    ax.set_yticks([0.4 - column for column in range(drawn)], ticks)
    ax.set(xlabel="time $t$ in s", title=f"{which}{result.problem.names[k]}{held}", ylim=(-drawn + 0.85, 1.0))
    ax.tick_params(axis="y", length=0)


def _residuals_by_trajectory(ax, result, rms):
    place = np.arange(len(rms))
    for chosen, colour, label in ((result.training, COLOURS[0], "fitted"), (~result.training, COLOURS[1], "held out")):
        if chosen.any():
            ax.plot(place[chosen], rms[chosen], "o", color=colour, markersize=3, label=label)
    failed = ~np.isfinite(rms)
    if failed.any():
        ax.plot(place[failed], np.zeros(failed.sum()), "x", color="black", markersize=4, label="failed")
    ax.axhline(1, color="0.6", linewidth=0.7)
    ax.set(xlabel="trajectory", ylabel="rms residual / noise", title="residuals by trajectory")
    ax.set_ylim(0, 1.25 * max(1.0, ax.get_ylim()[1]))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.legend(frameon=False, fontsize="small", ncols=3, loc="upper left")


def _residuals_over_time(ax, result):
    """Residuals of the one trajectory that there is."""
    part = result.of_trajectory(0)
    there = part["mask"].any(1)
    for column, colour in zip(range(part["residual"].shape[1]), _colours(part["residual"].shape[1]), strict=True):
        ax.plot(part["t"][there], part["residual"][there, column], ".", color=colour, markersize=3)
    ax.axhline(0, color="0.6", linewidth=0.7)
    ax.set(xlabel="time $t$ in s", ylabel="residual / noise", title="residuals over time")


def _residual_histogram(ax, result):
    parts = [result.of_trajectory(k) for k in range(len(result.problem.data))]
    r = np.concatenate([part["residual"][part["mask"].any(1)].ravel() for part in parts if part["ok"]] or [np.zeros(1)])
    r = r[r != 0]
    reach = max(4.0, np.quantile(np.abs(r), 0.99)) if r.size else 4.0
    ax.hist(np.clip(r, -reach, reach), bins=int(np.clip(2 * np.sqrt(r.size), 10, 50)), color=COLOURS[5], density=True, label="residuals")
    x = np.linspace(-reach, reach, 200)
    ax.plot(x, np.exp(-0.5 * x**2) / np.sqrt(2 * np.pi), color="black", linewidth=0.9, label="the noise that was given")
    ax.set(xlabel="residual / noise (the ends hold all beyond)", ylabel="density", title="residuals")
    ax.set_ylim(top=1.35 * ax.get_ylim()[1])
    ax.legend(frameon=False, fontsize="small")


def _intervals(ax, result):
    """Relative widths of the intervals: estimates differ in size and unit."""
    values, place = result.values, np.arange(len(result.labels))
    size = np.where(values != 0, np.abs(values), 1)
    low, high = (np.abs(end - values) / size for end in result.intervals.T)
    known = np.isfinite(low) & np.isfinite(high)
    ax.errorbar(
        np.zeros(known.sum()), place[known], xerr=100 * np.stack([low, high])[:, known], fmt="o", color=COLOURS[0], capsize=3, markersize=4
    )
    for k in place[~known]:
        ax.text(0, k, "undetermined", color=COLOURS[1], ha="center", va="center", fontsize="small")
    ax.axvline(0, color="0.6", linewidth=0.7)
    ax.set_yticks(place, [f"{label} = {value:.4g}" for label, value in zip(result.labels, values, strict=True)])
    ax.set(xlabel="95 % interval in % of the estimate", title="how sure", ylim=(len(place) - 0.5, -0.5))


def _correlations(ax, result):
    n = len(result.labels)
    image = ax.imshow(result.correlation, cmap="RdBu_r", vmin=-1, vmax=1)
    ax.figure.colorbar(image, ax=ax, shrink=0.8)
    ax.set_xticks(range(n), result.labels, rotation=90, fontsize="small")
    ax.set_yticks(range(n), result.labels, fontsize="small")
    ax.set_title("correlations")
