"""A parameter of a system, by its name or by a function: which number of which leaf it is."""

import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..programs.derivatives import is_float


class Parameter(NamedTuple):
    """A number in a system."""

    name: str
    leaf: int  # place among the leaves
    entry: tuple[int, ...]  # place in the leaf

    def value(self, system):
        """The number."""
        return jax.tree.leaves(system)[self.leaf][self.entry]

    def direction(self, system):
        """A system of zeros, with a 1 at this place."""
        leaves, tree = jax.tree.flatten(system)
        zeros = [np.zeros(np.shape(x), jnp.result_type(x)) if is_float(x) else x for x in leaves]
        zeros[self.leaf][self.entry] = 1
        return tree.unflatten(zeros)


def named(system):
    """The names of all leaves of floats, in the order of the leaves, None for others."""
    paths, _ = jax.tree_util.tree_flatten_with_path(system)
    return [jax.tree_util.keystr(path).lstrip(".") if is_float(x) else None for path, x in paths]


def all_of(system):
    """Every `Parameter` of a system."""
    names, leaves = named(system), jax.tree.leaves(system)
    return [
        Parameter(name + "".join(f"[{i}]" for i in entry), k, entry)
        for k, (name, x) in enumerate(zip(names, leaves, strict=True))
        if name is not None
        for entry in np.ndindex(np.shape(x))
    ]


def parameter(caller, system, which):
    """The `Parameter` that a name says, ``"mass"`` or ``"mu[0]"``, or a function, ``lambda system: system.mass``."""
    if callable(which):
        leaves, tree = jax.tree.flatten(system)
        markers = [object() for _ in leaves]
        found = which(tree.unflatten(markers))
        places = [k for k, marker in enumerate(markers) if marker is found]
        if not places:
            raise ValueError(f"{caller}: the function must return a leaf of the system, as lambda system: system.mass, got {found!r}")
        which = named(system)[places[0]] or "(no float)"
    every = all_of(system)
    found = [p for p in every if p.name == which]
    if not found:
        several = [p.name for p in every if re.sub(r"(\[\d+\])+$", "", p.name) == which]
        names = ", ".join(several or [p.name for p in every]) or "none"
        what = "has several numbers, say which" if several else f"is no parameter of {type(system).__name__}, which has"
        raise ValueError(f"{caller}: {which} {what}: {names}")
    return found[0]
