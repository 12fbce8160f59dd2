"""Plots of bodies by name: where they are, how they are turned, the coordinates of their joints, contacts that close, friction.

Each function takes a system of `jaxnsd.bodies`, a `Solution` of one motion and, if wanted, names and axes; it returns the axes. Angles are
in degrees. What does not move is drawn as a straight line: round-off fills no axes.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from .. import plotting
from ..mechanics.results import Event
from ..plotting import figures
from ..simulation.solution import Solution

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ..bodies import Multibody

#: A motion below this part of the size of what is drawn, or of 1e-3 of its unit, is none.
STILL = 1e-7
#: Curves in one picture, if nothing is said about which.
MOST = 7
LINES = {"x": "--", "y": ":", "z": "-"}
#: How an event is marked and called.
MARKS = {
    Event.IMPACT: ("|", "black", "impact"),
    Event.GRAZING: ("v", "#0072B2", "soft landing"),
    Event.SIMULTANEOUS: ("s", "#D55E00", "simultaneous impacts"),
    Event.ACCUMULATION: ("*", "#CC79A7", "accumulation of impacts"),
}


def positions(system: "Multibody", sol: Solution, names: Sequence[str] | str | None = None, *, ax: "Axes | None" = None) -> "Axes":
    """Centres of mass of bodies in m against time, axes along which none of them moves left out.

    names: of bodies; None: of those that are connected to the world, and move. KeyError for a name that there is not
    """
    _bodies("positions", system, sol)
    structure = system.structure
    moves = structure.layout.moves.any(axis=1)
    if names is None:
        names = [name for b, name in enumerate(structure.bodies, 1) if not structure.parents[b - 1] and moves[b]][: MOST - 1]
    chosen = [system.where(name, "body") for name in _several(names)]
    pose = jax.jit(jax.vmap(system.pose))(sol.t, sol.q)
    x, R = (np.asarray(part, float)[:, chosen] for part in pose)
    x = x + np.einsum("nbij,bj->nbi", R, np.asarray(system.center, float)[chosen])
    ax = figures.axes_of(ax)
    size = max(np.ptp(x, axis=0).max(initial=0.0), 1e-3)
    shown = [k for k in range(3) if np.ptp(x[..., k], axis=0).max(initial=0.0) > STILL * size] or [2]
    for b, colour in zip(range(len(chosen)), figures.colours(len(chosen)), strict=True):
        for k in shown:
            ax.plot(sol.t, x[:, b, k], LINES["xyz"[k]], color=colour, label=f"{structure.bodies[chosen[b]]} {'xyz'[k]}")
    return _finished(ax, "centres of mass in m", x[..., shown])


def joints(system: "Multibody", sol: Solution, names: Sequence[str] | str | None = None, *, ax: "Axes | None" = None) -> "Axes":
    """Coordinates of hinges in degrees, or of sliders in m, against time.

    names: of joints of one of the two kinds; None: all hinges, or all sliders where there is no hinge. KeyError for a name that there is
    not; ValueError for joints of other kinds, or of both
    """
    _bodies("joints", system, sol)
    structure = system.structure
    free = [joint for joint in structure.joints if not joint.prescribed]
    if names is None:
        hinges = [joint.name for joint in free if joint.kind == "hinge"]
        names = (hinges or [joint.name for joint in free if joint.kind == "slide"])[:20]
    chosen = [system.where(name, "joint") for name in _several(names)]
    kinds = {structure.joints[j].kind for j in chosen}
    if len(kinds) != 1 or not kinds <= {"hinge", "slide"} or any(structure.joints[j].prescribed for j in chosen):
        raise ValueError(f"joints: draws hinges, or sliders, that are not prescribed, got {', '.join(sorted(kinds)) or 'none'}: {names!r}")
    hinge = kinds == {"hinge"}
    values = np.asarray(sol.q, float)[:, structure.layout.q_at[chosen]] * (180 / np.pi if hinge else 1)
    ax = figures.axes_of(ax)
    for k, colour in zip(range(len(chosen)), figures.colours(len(chosen)), strict=True):
        ax.plot(sol.t, values[:, k], color=colour, label=structure.joints[chosen[k]].name)
    return _finished(ax, "joint angles in degrees" if hinge else "sliders in m", values)


def angles(system: "Multibody", sol: Solution, names: Sequence[str] | str | None = None, *, ax: "Axes | None" = None) -> "Axes":
    """Roll, pitch and yaw of bodies in degrees against time: rotations about the axes x, y and z of the world, in this order, that turn
    the world's axes to the body's. They jump by no full turn; near a pitch of 90 degrees roll and yaw are not defined.

    names: of bodies; None: of those on free and ball joints. KeyError for a name that there is not
    """
    _bodies("angles", system, sol)
    structure = system.structure
    if names is None:
        names = [structure.bodies[j.body - 1] for j in structure.joints if j.kind in ("free", "ball")][:2]
    chosen = [system.where(name, "body") for name in _several(names)]
    R = np.asarray(jax.jit(jax.vmap(system.pose))(sol.t, sol.q).rotation, float)[:, chosen]
    values = np.degrees(np.unwrap(rolled(R), axis=0))
    ax = figures.axes_of(ax)
    for b, colour in zip(range(len(chosen)), figures.colours(len(chosen)), strict=True):
        for k, (word, line) in enumerate((("roll", "--"), ("pitch", ":"), ("yaw", "-"))):
            ax.plot(sol.t, values[:, b, k], line, color=colour, label=f"{structure.bodies[chosen[b]]} {word}")
    return _finished(ax, "orientation in degrees", values)


def rolled(R: np.ndarray) -> np.ndarray:
    """Roll, pitch and yaw (..., 3) in rad of rotations (..., 3, 3): R = R_z(yaw) R_y(pitch) R_x(roll)."""
    pitch = np.arcsin(np.clip(-R[..., 2, 0], -1, 1))
    return np.stack([np.arctan2(R[..., 2, 1], R[..., 2, 2]), pitch, np.arctan2(R[..., 1, 0], R[..., 0, 0])], axis=-1)


def closing(system: "Multibody", sol: Solution) -> dict[str, list[int]]:
    """``{names of two shapes, or of a joint or tendon and its limit: rows of the contacts}`` of what closes, the most loaded first."""
    _bodies("closing", system, sol)
    P_N = np.asarray(sol.P_N, float)
    rows = {}
    for k, contact in enumerate(system.contacts):
        rows.setdefault(str(contact), []).append(k)
    load = {name: P_N[:, own].sum() for name, own in rows.items()}
    return {name: rows[name] for name in sorted(rows, key=lambda name: -load[name]) if load[name] > 0}


def gaps(system: "Multibody", sol: Solution, names: Sequence[str] | str | None = None, *, ax: "Axes | None" = None) -> "Axes":
    """The smallest gap of two shapes in m, or of a joint or tendon from its limit in m or rad, against time.

    names: as `closing` gives them; None: of the first of those that close. KeyError for what does not close
    """
    chosen = _closing("gaps", system, sol, names)
    values = np.asarray(jax.jit(jax.vmap(system.gap))(sol.t, sol.q), float)
    ax = figures.axes_of(ax)
    drawn = [values[:, own].min(axis=1) for own in chosen.values()]
    for name, gap, colour in zip(chosen, drawn, figures.colours(len(chosen)), strict=True):
        ax.plot(sol.t, gap, color=colour, linewidth=1.0, label=name)
    ax.axhline(0, color="0.5", linewidth=0.6, zorder=0)
    return _finished(ax, "gaps $g_N$ in m", np.array(drawn), "no contact closes")


def percussions(system: "Multibody", sol: Solution, names: Sequence[str] | str | None = None, *, ax: "Axes | None" = None) -> "Axes":
    """Normal percussions of two shapes, of all their points together, in N s against time, and what happens as marks above.

    names: as `closing` gives them; None: of the first of those that close. KeyError for what does not close
    """
    chosen = _closing("percussions", system, sol, names)
    t, P_N = np.asarray(sol.t)[1:], np.asarray(sol.P_N, float)
    ax = figures.axes_of(ax)
    drawn = [P_N[:, own].sum(axis=1) for own in chosen.values()]
    for name, P, colour in zip(chosen, drawn, figures.colours(len(chosen)), strict=True):
        ax.plot(t, P, color=colour, linewidth=1.0, label=name)
    _finished(ax, "normal percussions $P_N$ in N s", np.array(drawn), "no contact closes")
    events(sol, ax=ax)
    return ax


def events(sol: Solution, *, ax: "Axes") -> "Axes":
    """Marks of the events of a motion (see `jaxnsd.Event`) along the upper border of axes over time."""
    figures.single(sol, "events")
    t, bits = np.asarray(sol.t)[1:], np.asarray(sol.events)
    for place, (event, (marker, colour, name)) in enumerate(MARKS.items()):
        there = (bits & int(event)) != 0
        if there.any():
            height = np.full(there.sum(), 1.02 + 0.035 * place)
            transform = ax.get_xaxis_transform()
            ax.plot(t[there], height, marker, color=colour, markersize=4, label=name, transform=transform, clip_on=False, linestyle="none")
    if ax.get_legend() is not None:
        ax.legend(frameon=False, fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return ax


def friction(system: "Multibody", sol: Solution, names: Sequence[str] | str | None = None, *, ax: "Axes | None" = None) -> "Axes":
    """How much of the friction that a contact can bear acts, ``|P_F| / (mu P_N)``, against time: 1 on the border of the cone, in slip.

    names: as `closing` gives them; None: of the first of those that close and have friction. Of several points of two shapes the one with
    the largest normal percussion. KeyError for what does not close
    """
    chosen = _closing("friction", system, sol, names, MOST)
    t, P_N, P_F, mu = np.asarray(sol.t)[1:], np.asarray(sol.P_N, float), np.asarray(sol.P_F, float), np.asarray(system.mu(), float)
    d = min(P_F.shape[2], 1 if system.structure.plane is not None else 2)
    length, bound = np.linalg.norm(P_F[..., :d], axis=2), mu * P_N
    chosen = {name: own for name, own in chosen.items() if bound[:, own].any()}
    ax = figures.axes_of(ax)
    for (name, own), colour in zip(chosen.items(), figures.colours(len(chosen)), strict=True):
        most = np.asarray(own)[np.argmax(P_N[:, own], axis=1)]
        steps = np.arange(len(t))
        bearing = bound[steps, most] > 0
        used = np.where(bearing, length[steps, most] / np.where(bearing, bound[steps, most], 1.0), np.nan)
        ax.plot(t, used, ".", color=colour, markersize=2.5, label=name)
    ax.axhline(1, color="0.5", linewidth=0.8, zorder=0)
    figures.finish(ax, r"friction used, $|P_F| / (\mu P_N)$", legend=bool(chosen))
    if not chosen:
        _said(ax, "no contact with friction closes")
    margin = 0.05 * float(sol.t[-1] - sol.t[0])
    ax.set(xlim=(float(sol.t[0]) - margin, float(sol.t[-1]) + margin), ylim=(-0.05, 1.15))
    return ax


@plotting.styled
def overview(system: "Multibody", sol: Solution, title: str | None = None) -> "Figure":
    """One figure of the motion of bodies by name: what of the above there is, and energies. Returns the figure."""
    _bodies("overview", system, sol)
    kinds = [joint.kind for joint in system.structure.joints if not joint.prescribed]
    panels: list[Any] = [positions]
    if {"free", "ball"} & set(kinds):
        panels.append(angles)
    if "hinge" in kinds:
        panels.append(joints)
    if system.contacts:
        panels += [gaps, percussions]
        if sol.P_F.shape[2] and np.any(np.asarray(system.mu()) > 0):
            panels.append(friction)
    rows = -(-(len(panels) + 1) // 2)
    fig, axes = plotting.figure(rows, 2, width=12.0, height=2.9 * rows)
    axes = axes.ravel()
    for panel, ax in zip(panels, axes, strict=False):
        panel(system, sol, ax=ax)
    plotting.energy(system, sol, ax=axes[len(panels)])
    for ax in axes[len(panels) + 1 :]:
        ax.remove()
    if title:
        fig.suptitle(title, x=0.01, horizontalalignment="left")
    return fig


def _bodies(caller, system, sol):
    from ..bodies import Multibody

    if not isinstance(system, Multibody):
        raise TypeError(f"{caller} draws a system made by jaxnsd.bodies, got {type(system).__name__}; try plotting.overview")
    figures.single(sol, caller)


def _several(names):
    return [names] if isinstance(names, str) else list(names)


def _closing(caller, system, sol, names, most=MOST):
    found = closing(system, sol)
    if names is None:
        return dict(list(found.items())[:most])
    for name in _several(names):
        if name not in found:
            raise KeyError(f"{caller}: {name!r} does not close; these do: {', '.join(map(repr, found)) or 'none'}")
    return {name: found[name] for name in _several(names)}


def _finished(ax, label, values, otherwise="nothing moves"):
    """Label the axes, and widen them where what is drawn stands still but for round-off."""
    figures.finish(ax, label, legend=bool(values.size))
    if not values.size:
        _said(ax, otherwise)
        return ax
    low, high = np.nanmin(values), np.nanmax(values)
    least = 1e-3 * max(1e-3, abs(low), abs(high))
    if high - low < least:
        middle = 0.5 * (low + high)
        ax.set_ylim(middle - 0.5 * max(least, 0.2 * abs(middle)), middle + 0.5 * max(least, 0.2 * abs(middle)))
        ax.ticklabel_format(axis="y", useOffset=False)
    return ax


def _said(ax, text):
    ax.text(0.5, 0.5, text, transform=ax.transAxes, ha="center", va="center", color="0.4")
