"""Parameters of schemes as plain Python numbers.

A scheme is a constant of a compiled run, so its parameters must be known and hashable: no tracer, no JAX array.
"""

import dataclasses
import typing

import jax
import numpy as np

from ..native.jax_internals import is_traced


def check(scheme):
    """Make plain numbers of the fields of a scheme that are declared as such; TypeError, with a sentence, for what is none."""
    for field in dataclasses.fields(scheme):
        value, kinds = getattr(scheme, field.name), typing.get_args(field.type) or (field.type,)
        if value is None and type(None) in kinds:
            continue
        kind = next((kind for kind in (bool, int, float) if kind in kinds), None)
        if kind is not None:
            # The scheme is frozen, and not in use yet.
            object.__setattr__(scheme, field.name, _plain(kind, f"{scheme.name}: {field.name}", value))


#: What is taken as a bool, an int, a float, and its name.
_TAKEN = {
    bool: ((bool, np.bool_), "True or False"),
    int: ((int, np.integer), "a whole number"),
    float: ((int, float, np.integer, np.floating), "a number"),
}


def _plain(kind, what, value):
    types, expected = _TAKEN[kind]
    if isinstance(value, jax.Array):
        got = "a traced value" if is_traced(value) else "a JAX array"
        raise TypeError(
            f"{what} must be {expected}, got {got}: a scheme is compiled in, its parameters are neither traced nor differentiated; "
            f"write {kind.__name__}(...) around it, outside of jit"
        )
    if not isinstance(value, types) or (kind is not bool and isinstance(value, (bool, np.bool_))):
        near = f"; write {int(value)}" if kind is int and isinstance(value, (float, np.floating)) and float(value).is_integer() else ""
        raise TypeError(f"{what} must be {expected}, got {value!r}{near}")
    return kind(value)
