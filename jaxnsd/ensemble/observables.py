"""What is observed of a motion, by words, as the command line takes them: ``"q[0]"``, ``"max(u[1])"``, ``"impacts"``, ``"energy"``."""

import dataclasses
import functools
import re
from typing import Any

import jax.numpy as jnp

from ..mechanics.results import Event
from ..simulation.nodes import node_velocities

WORDS = "q[i], u[i] at the end, or min(...), max(...), mean(...) of them over the stored nodes; impacts; energy; a parameter of the model"
_PATTERN = re.compile(r"(?:(min|max|mean)\()?([qu])\[(\d+)\](\))?")


@dataclasses.dataclass(frozen=True)
class Observables:
    """``observe(system, solution)`` of an ensemble, from words; a dict of arrays by these words.

    Raises ValueError for a word that means nothing for the system.
    """

    words: tuple[str, ...]

    def check(self, system: Any, n_q: int, n_u: int) -> None:
        """Look at every word."""
        for word in self.words:
            match = _PATTERN.fullmatch(word)
            if match and bool(match[1]) == bool(match[4]):
                n = {"q": n_q, "u": n_u}[match[2]]
                if int(match[3]) >= n:
                    raise ValueError(f"{word}: {type(system).__name__} has {match[2]}[0] to {match[2]}[{n - 1}]")
            elif word not in ("impacts", "energy") and word not in {f.name for f in dataclasses.fields(system)}:
                raise ValueError(f"cannot observe {word!r}; what can be is {WORDS}")

    def __call__(self, system: Any, solution: Any) -> dict[str, Any]:
        """The numbers, with velocities at the nodes."""
        solution = dataclasses.replace(solution, u=node_velocities(system, solution.scheme, solution))
        return {word: self._of(word, system, solution) for word in self.words}

    def _of(self, word, system, sol):
        match = _PATTERN.fullmatch(word)
        if match:
            x = {"q": sol.q, "u": sol.u}[match[2]][:, int(match[3])]
            until_end = None if sol.stop is None else jnp.arange(len(x)) <= sol.end
            mean = functools.partial(jnp.mean, where=until_end)
            return {None: lambda x: x[-1], "min": jnp.min, "max": jnp.max, "mean": mean}[match[1]](x)
        if word == "impacts":
            return sol.count(Event.IMPACT)
        if word == "energy":
            return system.total_energy(sol.t[-1], sol.q[-1], sol.u[-1])
        return jnp.asarray(getattr(system, word), sol.q.dtype)
