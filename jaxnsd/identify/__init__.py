"""Identification: parameters of a system, initial states, and how it was measured, from measured trajectories, through the impacts.

`Problem` says what is unknown and how it was measured, `fit` finds it:

    problem = identify.Problem(system, trajectories, fit=["mu", "e_N"], dt=1e-3, measure=..., noise=...)
    result = identify.fit(problem)
    print(result), result.report("report.png")
"""

from .bootstrap import Bootstrap, bootstrap
from .data import FreeState, MultipleShooting, OneStep, Trajectory, Windows
from .fit import fit
from .posterior import Posterior, posterior
from .problem import Problem
from .profile import Profile, profile
from .result import Result
from .robust import Robust
from .solvers import FirstOrder, LevenbergMarquardt
from .transforms import Bounded, Free, Inertia, Positive, PseudoInertia, Transform, inertia_of, pseudo_inertia

__all__ = [
    "Bootstrap",
    "Bounded",
    "FirstOrder",
    "Free",
    "FreeState",
    "Inertia",
    "LevenbergMarquardt",
    "MultipleShooting",
    "OneStep",
    "Positive",
    "Posterior",
    "Problem",
    "Profile",
    "PseudoInertia",
    "Result",
    "Robust",
    "Trajectory",
    "Transform",
    "Windows",
    "bootstrap",
    "fit",
    "inertia_of",
    "posterior",
    "profile",
    "pseudo_inertia",
]
