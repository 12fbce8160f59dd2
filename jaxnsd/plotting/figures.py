"""Figures in the house's style, and what all pictures need."""

import html
import io
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import matplotlib
import matplotlib.patches
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..programs.files import saying, writable
from ..programs.given import numbers, shown
from ..simulation import checks
from ..simulation.tables import plain

if TYPE_CHECKING:
    pass

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


def named(system, kind, i, otherwise):
    """What a system calls its coordinate or velocity i."""
    names = None if system is None else getattr(system, kind)
    return otherwise if names is None else names[i]


def single(sol, name, system=None):
    """Raise for what is not one motion of the system; ``name``: who asks."""
    checks.motion(name, sol, system)
    shape = np.shape(sol.t)[:-1]
    if shape:
        raise ValueError(
            f"{name} draws one motion, got a batch of shape {shape}: pick one with jax.tree.map(lambda x: x[0], sol), "
            "or draw the batch with ensemble_bands"
        )


def whole_numbers(caller, coordinates):
    """Numbers of coordinates as a list; TypeError for what are none."""
    array = numbers(coordinates)
    if array is None or array.dtype.kind not in "iu":
        raise TypeError(f"{caller}: coordinates are picked by whole numbers from 0 on, got {shown(coordinates)}")
    return np.atleast_1d(array).tolist()


def check_kind(caller, value, kind, method):
    """Raise TypeError for what has not a ``method`` that all of its ``kind`` have."""
    if not hasattr(value, method):
        raise TypeError(f"{caller}: draws a {kind}, got {shown(value)}")


def axes_of(ax):
    """These axes, or new ones; TypeError for what are none."""
    if ax is not None and not isinstance(ax, Axes):
        raise TypeError(f"ax must be axes of matplotlib, such as plotting.figure()[1], got {shown(ax)}")
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    with matplotlib.rc_context(STYLE):
        return plt.subplots(layout="constrained")[1]


def colours(n):
    """n colours: the palette, or an ordered map where it is too short."""
    return COLOURS[:n] if n <= len(COLOURS) else list(matplotlib.colormaps["viridis"](np.linspace(0, 0.9, n)))


def finish(ax, ylabel, legend, single=()):
    """Axes over time, with labels; ``single``: that of what is drawn alone."""
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
