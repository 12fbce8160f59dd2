"""The picture of an identification."""

import textwrap
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .figures import COLOURS, Picture, check_kind, colours, styled

if TYPE_CHECKING:
    from ..identify import Result


@styled
def identification(result: "Result", title: str = "") -> Figure:
    """One page of a `jaxnsd.identify.Result`: fits, residuals, estimates with their intervals, correlations, losses, warnings.

    Of the best, the median and the worst trajectory the columns of y are drawn one above the other, dots as measured, lines as fitted.
    """
    check_kind("identification", result, "Result of identify.fit", "problem")
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
    for column, colour in zip(range(part["residual"].shape[1]), colours(part["residual"].shape[1]), strict=True):
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
