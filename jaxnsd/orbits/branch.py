"""A followed branch of orbits: its columns, what happens on it, its file."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .files import read, written
from .orbit import Orbit
from .special import Special

_ARRAYS = ("values", "period", "t0", "q", "u", "highest", "multipliers", "stable", "weakest")


@dataclass(frozen=True, eq=False, repr=False)
class Branch:
    """A branch of periodic orbits, K points in the order in which they were found.

    parameter:  name of the parameter
    values:     (K,) its values
    period:     (K,) s
    t0, q, u:   (K,), (K, n_q), (K, n_u) starts; the start of forced motion moves where an impact would pass it
    highest:    (K, n_q) largest values of the coordinates at the nodes of the orbit, which do not depend on the start
    multipliers: (K, n) complex, the largest first; ``stable`` (K,) booleans
    weakest:    (K,) percussion of the weakest impact in N s, infinite where there is none: it vanishes at a grazing
    special:    list of `Special` points
    end:        why the branch ends, a sentence
    orbits:     the K orbits; none of what was loaded
    """

    parameter: str
    values: np.ndarray
    period: np.ndarray
    t0: np.ndarray
    q: np.ndarray
    u: np.ndarray
    highest: np.ndarray
    multipliers: np.ndarray
    stable: np.ndarray
    weakest: np.ndarray
    special: Sequence[Special]
    end: str
    orbits: Sequence[Orbit] = ()

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        """One line: how many orbits, from where to where, special points."""
        found = ", ".join(f"{point.kind} at {point.value:.8g}" for point in self.special) or "nothing special"
        ends = f"{self.values[0]:.6g} to {self.values[-1]:.6g}"
        return f"Branch({len(self)} orbits, {self.parameter} = {ends}, {found}; {self.end})"

    def columns(self) -> dict[str, np.ndarray]:
        """The branch as columns (K,) by name, as `pandas.DataFrame` takes them: parameter, period, start, largest coordinates,
        multipliers as absolute value and angle in rad, stability, weakest impact.
        """
        out = {self.parameter: self.values, "period": self.period, "t0": self.t0}
        out |= {f"q[{i}]": self.q[:, i] for i in range(self.q.shape[1])}
        out |= {f"u[{i}]": self.u[:, i] for i in range(self.u.shape[1])}
        out |= {f"max q[{i}]": self.highest[:, i] for i in range(self.q.shape[1])}
        for i in range(self.multipliers.shape[1]):
            out |= {f"abs multiplier[{i}]": np.abs(self.multipliers[:, i]), f"angle multiplier[{i}]": np.angle(self.multipliers[:, i])}
        return out | {"stable": self.stable, "weakest": self.weakest}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the branch to a ``.npz`` file: all but the orbits' solutions."""
        special = [[p.kind, p.value.hex(), p.error.hex(), p.index] for p in self.special]
        words = {"parameter": self.parameter, "end": self.end, "special": special}
        written(path, words, {name: getattr(self, name) for name in _ARRAYS})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Branch":
        """Read what `save` has written. Raises ValueError for another file."""
        words, arrays = read(cls, path, _ARRAYS)
        special = [Special(kind, float.fromhex(value), float.fromhex(error), index) for kind, value, error, index in words["special"]]
        return cls(words["parameter"], special=special, end=words["end"], **arrays)
