"""Which numbers of a pytree are fitted: chosen by name, by a function or by a mask; packed into one vector z, and put back."""

import dataclasses
import difflib
import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..programs.given import shown
from .transforms import Bounded, Free, Positive, Transform

#: What a leaf is fitted in unless it is said: by the last part of its name. All others are free.
USUAL = {
    **dict.fromkeys(("e_N", "e_F"), Bounded(0.0, 1.0)),
    **dict.fromkeys(("mu", "mu_1", "mu_2", "mass", "side", "length", "radius", "stiffness"), Positive()),
}


@dataclass(frozen=True)
class Unknown:
    """One leaf that is fitted: its name, its place among the leaves, its shape, its transform, and its piece of z."""

    name: str
    place: int
    shape: tuple
    transform: Transform
    piece: slice

    @property
    def labels(self):
        """Names of its entries."""
        return self.transform.labels(self.name, self.shape)


class Unknowns:
    """The fitted leaves of a pytree.

    fit:  names of leaves, such as ``["mu", "law.e_N"]``, those of the path to it; a dict ``{name: transform}``; a function of the tree that
          returns one leaf or a tuple of leaves, ``lambda tree: (tree.mu, tree.law.e_N)``; or a tree of the same structure with booleans or
          transforms as leaves. Where no transform is given it goes by the name, see `USUAL`
    """

    def __init__(self, tree: Any, fit: Any):
        paths, self.structure = jax.tree_util.tree_flatten_with_path(tree)
        self.names = [_name(path) for path, _ in paths]
        self.of_bodies = hasattr(getattr(tree, "system", tree), "replace")
        self.leaves = [leaf for _, leaf in paths]
        self.list, size = [], 0
        for place, transform in sorted(self._chosen(tree, fit).items()):
            try:
                value = np.asarray(self.leaves[place], float)
            except (TypeError, ValueError):
                raise TypeError(
                    f"identify: first guess of {self.names[place]} must be a number, or an array of numbers, got {self.leaves[place]!r}"
                ) from None
            if not np.all(np.isfinite(value)):
                raise ValueError(f"identify: first guess of {self.names[place]} must be finite, got {value}")
            try:
                n = transform.inverse(value).size
            except ValueError as error:
                raise ValueError(f"identify: first guess of {self.names[place]}: {error}") from None
            self.list.append(Unknown(self.names[place], place, value.shape, transform, slice(size, size + n)))
            size += n
        self.size = size

    def _chosen(self, tree, fit):
        """``{place of the leaf: transform}``."""
        if callable(fit):
            marks = jax.tree.unflatten(self.structure, [_Mark(k) for k in range(len(self.leaves))])
            picked = jax.tree.leaves(fit(marks), is_leaf=lambda x: isinstance(x, _Mark))
            if not picked or not all(isinstance(x, _Mark) for x in picked):
                raise ValueError("identify: fit as a function must return leaves of what it is given, such as (system.mu, system.e_N)")
            return {mark.place: self._usual(mark.place) for mark in picked}
        if isinstance(fit, str):
            fit = [fit]
        if isinstance(fit, dict) or (isinstance(fit, (list, tuple, set)) and all(isinstance(x, str) for x in fit)):
            given = fit if isinstance(fit, dict) else dict.fromkeys(fit)
            classes = [name for name, x in given.items() if isinstance(x, type) and issubclass(x, Transform)]
            if classes:
                raise TypeError(f"identify: the transform of {classes[0]} must be a value, write {given[classes[0]].__name__}(...)")
            if all(isinstance(x, (Transform, type(None))) for x in given.values()):
                return {self._place(name): transform or self._usual(self._place(name)) for name, transform in given.items()}
        try:
            marks = self.structure.flatten_up_to(fit)
        except (ValueError, TypeError) as error:
            raise TypeError(
                f"identify: fit must be names of leaves ({', '.join(self.names)}), a dict of names and transforms, a function that picks "
                f"leaves, or a tree of the same structure with booleans or transforms, got {shown(fit)}"
            ) from error
        return {k: m if isinstance(m, Transform) else self._usual(k) for k, m in enumerate(marks) if isinstance(m, Transform) or m is True}

    def _place(self, name):
        if name in self.names:
            return self.names.index(name)
        close = difflib.get_close_matches(name, self.names, n=1)
        if self.of_bodies and "." in name and not name.startswith("measurement."):
            raise ValueError(
                f"identify: there is no leaf {name!r}; a number of bodies is fitted by a system of its own: "
                f'Problem({{"x": 0.5}}, ..., fit=["x"], build=lambda p: system.replace({{{name!r}: p["x"]}}))'
            )
        hint = f"did you mean {close[0]}?" if close else f"one of {', '.join(self.names)}"
        raise ValueError(f"identify: there is no parameter {name!r}; {hint}")

    def _usual(self, place):
        return USUAL.get(self.names[place].rpartition(".")[2], Free())

    def moved(self, tree):
        """The same leaves of another tree of the same structure."""
        return Unknowns(tree, {unknown.name: unknown.transform for unknown in self.list})

    def others(self):
        """The leaves that are not fitted."""
        fitted = {unknown.place for unknown in self.list}
        return [leaf for place, leaf in enumerate(self.leaves) if place not in fitted]

    def first(self):
        """z (p,) of the values that the tree has."""
        parts = [unknown.transform.inverse(np.asarray(self.leaves[unknown.place], float)) for unknown in self.list]
        return np.concatenate(parts) if parts else np.zeros(0)

    def values(self, z):
        """The fitted leaves by name, in their shapes."""
        return {x.name: x.transform(z[x.piece], x.shape) for x in self.list}

    def flat(self, z):
        """All entries of the fitted leaves, (number of labels,)."""
        parts = [jnp.ravel(value) for value in self.values(jnp.asarray(z)).values()]
        return jnp.concatenate(parts) if parts else jnp.zeros(0)

    def units(self, z):
        """What each z (p,) typically changes by: one for logarithms and logits, of what is free its own size, NaN where that is zero."""
        out = np.where(self.free, np.abs(z), 1.0)
        return np.where(out > 0, out, np.nan)

    @functools.cached_property
    def free(self):
        """(p,) booleans: which z belong to parameters without bounds."""
        out = np.zeros(self.size, bool)
        for x in self.list:
            out[x.piece] = isinstance(x.transform, Free)
        return out

    def spans(self, z):
        """`units`, by which effects are compared: of a bounded or positive parameter what changes it by a quarter of its range, or by its
        first guess, however near it has come to a bound, where z tells less and less."""
        out = self.units(z)
        for x in self.list:
            if isinstance(x.transform, Bounded):
                out[x.piece] = np.cosh(0.5 * np.clip(z[x.piece], -700, 700)) ** 2
            elif isinstance(x.transform, Positive):
                out[x.piece] = np.exp(np.clip(np.log(np.ravel(self.leaves[x.place]).astype(float)) - z[x.piece], 0, 700))
        return out

    @property
    def labels(self):
        """Names of the entries of `flat`."""
        return [label for unknown in self.list for label in unknown.labels]

    def tree(self, z):
        """The tree with the values of z in it."""
        leaves = list(self.leaves)
        for unknown in self.list:
            leaves[unknown.place] = unknown.transform(z[unknown.piece], unknown.shape)
        return jax.tree.unflatten(self.structure, leaves)


@dataclasses.dataclass(frozen=True)
class _Mark:
    place: int


def _name(path):
    """A path as it is written in Python: ``law.friction[0].mu``; what is of the system beside a measurement, without ``system``."""
    text = ""
    for key in path:
        if isinstance(key, jax.tree_util.GetAttrKey):
            text += f".{key.name}"
        elif isinstance(key, jax.tree_util.DictKey):
            text += f".{key.key}"
        else:
            text += f"[{getattr(key, 'idx', getattr(key, 'key', key))}]"
    return text.removeprefix(".").removeprefix("system.")
