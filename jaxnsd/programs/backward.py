"""What is computed where it is read, not handed there: constants, and arrays whose entries are only arranged in another way.

Differentiation in reverse mode computes what depends on constants and parameters alone before the loop over the steps, and hands it to
every step, and to the way back: masks, zeros, a parameter in five shapes. Of the gradient of a cube three hundred such arrays were handed
to each step, of which thirty are parameters. Nothing is known of them there; computed in the step they are constants, or nothing.
"""

import dataclasses
from typing import Any

import jax
import numpy as np

from ..native.jax_internals import CHECKPOINTS, Literal, bound, call_inside, is_traced

#: Operations that only arrange entries.
_ARRANGED = {"broadcast_in_dim", "copy", "expand_dims", "jaxnsd_entries", "jaxnsd_pick", "reshape", "slice", "squeeze"}

_NAMES = """
add and concatenate convert_element_type eq ge gt iota le lt mul ne neg not or pad select_n stack sub transpose
"""

#: Operations that are done again on constants.
_OF_CONSTANTS = _ARRANGED | set(_NAMES.split())

#: Functions that consist of operations.
_CALLS = ("jit", "pjit")

#: Entries of an array up to which it is computed where it is read.
FEW = 1 << 10


@dataclasses.dataclass(frozen=True, eq=False)
class Later:
    """A result of an equation that is left to what reads it."""

    equation: Any
    values: list  # its operands, of which some may be left, too
    place: int  # among the results


@dataclasses.dataclass(frozen=True)
class Slot:
    """In place of a traced array: its number among those that are given."""

    number: int


def evaluated(jaxpr, consts, args, made=None, loop=None):
    """What a jaxpr leads to, nothing computed twice; of that, and of what it is given, some may be `Later`.

    made: what has been computed, by what computes it
    loop: ``loop(equation, values)``, what a `lax.scan` leads to; as it is, if None. It is looked for behind `jax.checkpoint`, too, which
          serves nothing any more where nothing is differentiated any more
    """
    known = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))
    made = {} if made is None else made

    def read(operands):
        return [x.val if isinstance(x, Literal) else known[x] for x in operands]

    for equation in jaxpr.eqns:
        values = read(equation.invars)
        calls = equation.primitive.name in _CALLS or (loop and equation.primitive.name in CHECKPOINTS)
        if calls and equation.params.get("name") != "once":
            out = evaluated(*call_inside(equation), values, made, loop)
        elif loop and equation.primitive.name == "scan":
            out = loop(equation, values)
        elif equation.effects:
            out = bound(equation, done(values))
        else:
            params = equation.params
            key = equation.primitive, *map(identity, values), *((k, identity(params[k])) for k in sorted(params))
            if key not in made:
                if _can_wait(equation, values):
                    out = [Later(equation, values, place) for place in range(len(equation.outvars))]
                else:
                    out = bound(equation, done(values))
                # What is known by its identity has to live on.
                made[key] = out, values, equation
            out = made[key][0]
        known.update(zip(equation.outvars, out, strict=True))
    return read(jaxpr.outvars)


def identity(x):
    """What an operand or a parameter is, as a value that can be compared: by its identity where nothing is known of it."""
    kind = type(x)
    if kind in _PLAIN:
        return kind, x
    if isinstance(x, tuple):
        return kind, *map(identity, x)
    if isinstance(x, (np.ndarray, np.generic, jax.Array)) and not is_traced(x):
        if jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended):  # a key
            return id(x)
        x = np.asarray(x)
        return x.dtype, x.shape, x.tobytes()
    if isinstance(x, Literal):
        return x.aval.dtype, np.asarray(x.val, x.aval.dtype).tobytes()
    return (np.dtype, x) if isinstance(x, np.dtype) else str((kind, x)) if kind is float else id(x)


#: Kinds of which equal values are the same; a float is not: 0 and -0.
_PLAIN = frozenset((bool, int, str, type(None)))


def _can_wait(equation, values):
    """Whether an equation is left to what reads it."""
    name, few = equation.primitive.name, all(x.aval.size <= FEW for x in equation.outvars)
    return few and (name in _ARRANGED or (name in _OF_CONSTANTS and not _given(values)))


def _given(values):
    """The traced arrays that ``values`` are made of, by their identity."""
    found, seen = {}, set()

    def look(values):
        for x in values:
            if is_traced(x):
                found[id(x)] = x
            elif isinstance(x, Later) and id(x.values) not in seen:
                seen.add(id(x.values))
                look(x.values)

    look(values)
    return found


def done(values, slots=()):
    """``values``, with all that was left computed now; ``slots``: arrays in place of each `Slot`."""
    made = {}

    def of(x):
        if isinstance(x, Slot):
            return slots[x.number]
        if not isinstance(x, Later):
            return x
        if id(x.values) not in made:
            made[id(x.values)] = bound(x.equation, [of(y) for y in x.values])
        return made[id(x.values)][x.place]

    return [of(x) for x in values]


def reduced(values):
    """``(the traced arrays that values are made of, values with a Slot in place of each)``."""
    traced, changed = _given(values), {}
    slots = {key: Slot(i) for i, key in enumerate(traced)}

    def of(x):
        if not isinstance(x, Later):
            return slots[id(x)] if is_traced(x) else x
        if id(x.values) not in changed:
            changed[id(x.values)] = [of(y) for y in x.values]
        return dataclasses.replace(x, values=changed[id(x.values)])

    return list(traced.values()), [of(x) for x in values]
