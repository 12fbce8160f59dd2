"""Pictures of simulated motions. The only folder that imports matplotlib; `drawing`, which makes films, asks it for axes.

Every function takes a `Solution` or arrays and, if wanted, the axes to draw on; it returns the axes and never shows a window. Colours are
those of Okabe and Ito, which people with any kind of colour vision tell apart.
"""

from .figures import COLOURS, STYLE, Picture, figure, save, styled
from .fits import identification
from .motions import convergence, energy, ensemble_bands, gaps, impacts, overview, percussions, phase_portrait, strobe, trajectory
from .orbits import SPECIAL, basin, branch, curve, diagram, multipliers, orbit

__all__ = [
    "COLOURS",
    "SPECIAL",
    "STYLE",
    "Picture",
    "basin",
    "branch",
    "convergence",
    "curve",
    "diagram",
    "energy",
    "ensemble_bands",
    "figure",
    "gaps",
    "identification",
    "impacts",
    "multipliers",
    "orbit",
    "overview",
    "percussions",
    "phase_portrait",
    "save",
    "strobe",
    "styled",
    "trajectory",
]
