"""Frozen dataclasses that are pytrees: their fields are leaves, but for those declared as static."""

import contextlib
import dataclasses
import weakref

import jax
import jax.numpy as jnp
import numpy as np

from .surroundings import Watch


class Zero:
    """The tangent of an array that does not move: a pytree without leaves, in place of one."""

    def __add__(self, other):
        return other

    __radd__ = __add__


ZERO = Zero()
jax.tree_util.register_pytree_node(Zero, lambda _: ((), None), lambda *_: ZERO)

#: Classes that JAX knows.
_registered = weakref.WeakSet()


def static(**kwargs):
    """Field that is no leaf: hashable, not differentiated, not batched."""
    return dataclasses.field(metadata={"static": True}, **kwargs)


def register(cls):
    """Make a pytree of a dataclass; its `__init__` is not called again when it is put together."""
    fields = dataclasses.fields(cls)
    names = tuple(f.name for f in fields if not f.metadata.get("static"))
    statics = tuple(f.name for f in fields if f.metadata.get("static"))

    read = Watch(cls)

    def flatten(instance):
        beside = tuple(getattr(instance, name) for name in statics)
        return tuple(_without_functions(getattr(instance, name)) for name in names), (*beside, read(beside))

    def flatten_with_keys(instance):
        values, aux = flatten(instance)
        return tuple((jax.tree_util.GetAttrKey(name), value) for name, value in zip(names, values, strict=True)), aux

    def unflatten(aux, values):
        instance = object.__new__(cls)
        for name, value in (*zip(names, values, strict=True), *zip(statics, aux[:-1], strict=True)):
            object.__setattr__(instance, name, value)
        return instance

    # Not `register_dataclass`: its tree structures compare equal for two classes with equal fields, and `jit` may then run the wrong one.
    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    _registered.add(cls)
    return cls


#: What fields hold most of the time, and what is no tree.
_PLAIN = (float, int, np.ndarray, np.generic, jax.Array)


def _without_functions(value):
    """A field's value, or `_Parted` if it is a tree with functions among its leaves, such as a network with its activation."""
    if isinstance(value, _PLAIN) or (callable(value) and jax.tree_util.all_leaves([value])):
        return value
    return _Parted(value) if any(map(callable, jax.tree.leaves(value))) else value


def _stands_for_a_leaf(x):
    """Whether it is no leaf to JAX and may be in the place of one: a tangent that does not move, or what a partition has left out."""
    return x is ZERO or x is None


class _Parted:
    """A tree whose functions are no leaves: they are part of its structure. What is put together again is the tree itself."""

    def __init__(self, value):
        self.value = value

    def flatten_with_keys(self):
        paths, tree = jax.tree_util.tree_flatten_with_path(self.value, is_leaf=_stands_for_a_leaf)
        functions = tuple(x if callable(x) else None for _, x in paths)
        rest = tuple((jax.tree_util.GetAttrKey(jax.tree_util.keystr(path).removeprefix(".")), x) for path, x in paths if not callable(x))
        return rest, (tree, functions)

    def flatten(self):
        leaves, tree = jax.tree.flatten(self.value, is_leaf=_stands_for_a_leaf)
        return tuple(x for x in leaves if not callable(x)), (tree, tuple(x if callable(x) else None for x in leaves))

    @staticmethod
    def unflatten(aux, leaves):
        (tree, functions), leaves = aux, iter(leaves)
        return tree.unflatten([next(leaves) if function is None else function for function in functions])


jax.tree_util.register_pytree_with_keys(_Parted, _Parted.flatten_with_keys, _Parted.unflatten, _Parted.flatten)


def adopt(base):
    """Register the dataclasses derived from ``base`` that came from another process by value, past their decorator."""
    for cls in base.__subclasses__():
        if "__dataclass_fields__" in vars(cls) and cls not in _registered:
            with contextlib.suppress(ValueError):  # registered by other means
                register(cls)
        adopt(cls)


def pytree(cls):
    """Class decorator that makes a class a frozen dataclass and a pytree."""
    return register(dataclasses.dataclass(frozen=True)(cls))


def in_front(arrays, axes):
    """Arrays with the axis of the batch in front."""
    return [x if axis is None else jnp.moveaxis(x, axis, 0) for x, axis in zip(arrays, axes, strict=True)]


def chosen(values, mask):
    """Those of ``values`` that the mask has."""
    return [x for x, m in zip(values, mask, strict=True) if m]


def replaced(values, mask, new):
    """``values`` with those of the mask replaced, in order, by ``new``."""
    new = iter(new)
    return [next(new) if m else x for x, m in zip(values, mask, strict=True)]
