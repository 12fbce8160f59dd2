"""Pictures of motions, of ensembles of them, and of errors."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from ..energy import of_states
from ..mechanics.system import System
from ..numerics import thresholds
from ..schemes.flow import THRESHOLD
from ..simulation.nodes import node_velocities
from ..simulation.solution import Solution
from .figures import COLOURS, axes_of, colours, figure, finish, named, single, styled, whole_numbers

if TYPE_CHECKING:
    pass


def impacts(sol: Solution, system: System | None = None) -> np.ndarray:
    """Where contacts close: boolean (N, n_N), true in a stored interval with a normal percussion that follows one without.

    A contact that stays closed counts once, a contact that bounces once an impact, one that is closed from the start on not at all. Where
    another contact has an event in the first interval, the ``system`` says which ones are closed.
    """
    single(sol, "impacts", system)
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
    single(sol, "trajectory")
    q = np.asarray(sol.q)
    chosen = list(range(q.shape[1])) if coordinates is None else whole_numbers("trajectory", coordinates)
    for i in chosen:
        if not -q.shape[1] <= i < q.shape[1]:
            raise ValueError(f"trajectory: coordinate {i} of a system with {q.shape[1]}")
    if labels is None:
        labels = [named(system, "coordinate_names", i, f"$q_{{{i}}}$") for i in chosen]
    if len(labels) != len(chosen):
        raise ValueError(f"trajectory: {len(labels)} labels for {len(chosen)} coordinates")
    ax = axes_of(ax)
    for i, label, colour in zip(chosen, labels, colours(len(chosen)), strict=True):
        ax.plot(sol.t, q[:, i], color=colour, label=label)
    return finish(ax, "coordinates", legend=len(chosen) > 1, single=labels)


def phase_portrait(
    sol: Solution, coordinate: int = 0, *, system: System | None = None, label: str | None = None, ax: Axes | None = None, **line: Any
) -> Axes:
    """Velocity ``u[:, coordinate]`` against ``q[:, coordinate]``, both (N + 1,); for systems with q_dot = u.

    The axes are named by the `coordinate_names` and `velocity_names` of the ``system``, where it is given and has them.
    """
    single(sol, "phase_portrait")
    n = min(sol.q.shape[1], sol.u.shape[1])
    (coordinate,) = whole_numbers("phase_portrait", coordinate)
    if not -n <= coordinate < n:
        raise ValueError(f"phase_portrait: coordinate {coordinate} of a system with {n}")
    ax = axes_of(ax)
    ax.plot(np.asarray(sol.q)[:, coordinate], np.asarray(sol.u)[:, coordinate], label=label, **line)
    ax.set_xlabel(named(system, "coordinate_names", coordinate, f"$q_{{{coordinate}}}$"))
    ax.set_ylabel(named(system, "velocity_names", coordinate, f"$\\dot q_{{{coordinate}}}$"))
    return ax


def gaps(system: System, sol: Solution, *, labels: Sequence[str] | None = None, ax: Axes | None = None) -> Axes:
    """Gaps g_N(t, q) (N + 1, n_N) against time, with a dot at the node where a contact closes (see `impacts`)."""
    single(sol, "gaps", system)
    values = np.asarray(jax.jit(jax.vmap(system.gap))(sol.t, sol.q))
    ax = axes_of(ax)
    _contacts(ax, np.asarray(sol.t), values, system, sol, values[1:], labels, "gaps")
    ax.axhline(0, color="0.5", linewidth=0.6, zorder=0)
    return finish(ax, "gaps $g_N$ in m", legend=values.shape[1] > 1)


def percussions(sol: Solution, *, system: System | None = None, labels: Sequence[str] | None = None, ax: Axes | None = None) -> Axes:
    """Normal percussions P_N (N, n_N) against the times ``t[1:]`` at which they act, with a dot where a contact closes (see `impacts`)."""
    single(sol, "percussions", system)
    values = np.asarray(sol.P_N)
    ax = axes_of(ax)
    _contacts(ax, np.asarray(sol.t)[1:], values, system, sol, values, labels, "percussions")
    return finish(ax, "normal percussions $P_N$ in N s", legend=values.shape[1] > 1)


def energy(system: System, sol: Solution, *, ax: Axes | None = None) -> Axes:
    """Kinetic, potential and total energy (N + 1,) at the nodes, the kinetic one with the velocity that leaves the node."""
    single(sol, "energy", system)
    u = node_velocities(system, sol.scheme, sol)
    kinetic, potential = map(np.asarray, of_states(system, sol.t, sol.q, u))
    ax = axes_of(ax)
    for values, label, colour in (
        (kinetic, "kinetic", COLOURS[0]),
        (potential, "potential", COLOURS[1]),
        (kinetic + potential, "total", "black"),
    ):
        ax.plot(sol.t, values, label=label, color=colour)
    return finish(ax, "energy in J", legend=True)


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
    ax = axes_of(ax)
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
    ax = axes_of(ax)
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
    from ..bodies import Multibody, wireframes

    single(sol, "strobe")
    if not isinstance(system, Multibody):
        raise TypeError(f"strobe draws a system made by jaxnsd.bodies, got {type(system).__name__}; try trajectory or overview")
    t, ax = np.asarray(sol.t), axes_of(ax)
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
    from ..bodies import Multibody

    single(sol, "overview", system)
    if isinstance(system, Multibody):
        from ..drawing import plots

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
        groups.setdefault(named(system, "coordinate_names", i, "").rpartition(" in ")[2], []).append(i)
    return groups


def _contacts(ax, t, values, system, sol, at_impact, labels, name):
    """A line a contact, dots where it closes."""
    n = values.shape[1]
    if labels is None:
        named = getattr(sol, "labels", None)
        labels = (named and named.contacts) or [f"contact {i}" for i in range(n)]
    if len(labels) != n:
        raise ValueError(f"{name}: {len(labels)} labels for {n} contacts")
    closing, times = impacts(sol, system), np.asarray(sol.t)[1:]
    for i, (label, colour) in enumerate(zip(labels, colours(n), strict=True)):
        ax.plot(t, values[:, i], color=colour, linewidth=1.0, label=label)
        # Contacts that close together are rings around each other.
        size = 2.0 + 1.4 * (n - 1 - i) if n <= len(COLOURS) else 2.0
        dots = {"marker": "o", "markersize": size, "markeredgewidth": 0.8, "fillstyle": "full" if i == n - 1 else "none"}
        ax.plot(times[closing[:, i]], at_impact[closing[:, i], i], color=colour, linestyle="none", label=f"_impacts {i}", **dots)
