"""Frozen dataclasses that are pytrees: their fields are leaves, but for those declared as static."""

import contextlib
import dataclasses
import weakref

import jax

from .surroundings import Watch

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
        return tuple(getattr(instance, name) for name in names), (*beside, read(beside))

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


def chosen(values, mask):
    """Those of ``values`` that the mask has."""
    return [x for x, m in zip(values, mask, strict=True) if m]


def replaced(values, mask, new):
    """``values`` with those of the mask replaced, in order, by ``new``."""
    new = iter(new)
    return [next(new) if m else x for x, m in zip(values, mask, strict=True)]
