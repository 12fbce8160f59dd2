"""What is computed where it is read, not handed there: constants, and arrays whose entries are only arranged in another way.

Differentiation in reverse mode computes what depends on constants and parameters alone before the loop over the steps, and hands it to
every step, and to the way back: masks, zeros, a parameter in five shapes. Of the gradient of a cube three hundred such arrays were handed
to each step, of which thirty are parameters. XLA knows nothing of them there, and for each of them compiles a copy; computed in the step
they are constants, or nothing.
"""

import dataclasses
from typing import Any

import jax
import numpy as np

from .jax_internals import CLOSED_CALLS, ClosedJaxpr, Literal, bound, call_inside, is_traced, new_variable, with_inner

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


#: What else consists of operations, where nothing is differentiated any more.
_OPENED = (*_CALLS, "checkpoint", "remat2", *CLOSED_CALLS, "custom_jvp_call", "jaxnsd_rule")

#: Loops and branches.
_CONTROLS = ("cond", "scan", "while")


def once(jaxpr):
    """A closed jaxpr, not differentiated any more, with its functions opened and nothing computed twice, in loops and branches neither.

    Derivatives of a step ask for the kinematics at one and the same place in ten functions. XLA finds what is computed twice, too, when it
    has read all of it.
    """
    # Written down from the equations there are: tracing them again took a third of the time of lowering.
    constants, equations, made = {}, [], {}

    def constant(variable, value):
        of, _ = constants.setdefault(_identity(value), (new_variable(variable.aval), value))
        return of

    def write(jaxpr, consts, operands):
        known = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*map(constant, jaxpr.constvars, consts), *operands), strict=True))
        for equation in jaxpr.eqns:
            equation, operands = _plainer(equation, renamed(equation.invars, known))
            if (handed_on := _handed_on(equation, operands)) is not None:
                out = [handed_on]
            elif equation.primitive.name in _OPENED and not _is_done_again(equation):
                out = write(*call_inside(equation), operands)
            else:
                avals = [x.aval for x in equation.outvars]
                # Arrays without entries are all alike.
                nothing = avals and not any(x.size for x in avals)
                key = tuple((x.shape, x.dtype) for x in avals) if nothing else key_of(equation, operands)
                if equation.effects or key not in made:
                    # What is known by its identity has to live on: a jaxpr made only to be opened would leave its number to another.
                    made[key] = list(map(new_variable, avals)), equation
                    equations.append(with_inner_parts(equation, once).replace(invars=operands, outvars=made[key][0]))
                out = made[key][0]
            known.update(zip(equation.outvars, out, strict=True))
        return renamed(jaxpr.outvars, known)

    out = write(jaxpr.jaxpr, jaxpr.consts, jaxpr.jaxpr.invars)
    variables, values = zip(*constants.values(), strict=True) if constants else ((), ())
    return ClosedJaxpr(jaxpr.jaxpr.replace(constvars=list(variables), eqns=equations, outvars=out), list(values))


def renamed(operands, names):
    """What is written for operands where variables have other names."""
    return [x if isinstance(x, Literal) else names.get(x, x) for x in operands]


#: Operations on one array that may hand it on as it is.
_HANDING_ON = {"broadcast_in_dim", "concatenate", "convert_element_type", "name", "reshape", "slice", "split", "squeeze", "stop_gradient"}

#: Reductions, which over axes of one entry only arrange it in another way.
_REDUCTIONS = {"reduce_and", "reduce_max", "reduce_min", "reduce_or", "reduce_prod", "reduce_sum"}


def _plainer(equation, operands):
    """An equation and its operands, or others which make the same of less."""
    name = equation.primitive.name
    if name == "concatenate" and equation.outvars[0].aval.size:
        operands = [x for x in operands if x.aval.size]
    elif name in _REDUCTIONS and operands[0].aval.size == equation.outvars[0].aval.size > 0:
        equation = equation.replace(primitive=jax.lax.squeeze_p, params={"dimensions": equation.params["axes"]})
    return equation, operands


def _handed_on(equation, operands):
    """The operand that an equation hands on as it is, or the number that it makes of one, or None; where nothing is differentiated."""
    name, place = equation.primitive.name, 0
    if name == "mul":
        # By one: a factor that is there to be differentiated.
        ones = [isinstance(x, Literal) and np.ndim(x.val) == 0 and x.val == 1 for x in operands]
        place = ones.index(False) if any(ones) and not all(ones) else None
    elif name not in _HANDING_ON or len(operands) > 1 or len(equation.outvars) > 1:
        place = None
    if place is None:
        return None
    x, after = operands[place], equation.outvars[0].aval
    if (x.aval.shape, x.aval.dtype) == (after.shape, after.dtype):
        return x
    if name == "convert_element_type" and isinstance(x, Literal):
        return Literal(np.asarray(x.val).astype(after.dtype), after)
    return None


def _is_done_again(equation):
    """Whether a function is there to be computed a second time, in order not to be stored."""
    return bool(equation.params.get("differentiated") and equation.params.get("prevent_cse"))


def with_inner_parts(equation, change):
    """A loop, or a branch, with ``change`` of each of its closed jaxprs; anything else as it is."""
    return with_inner(equation, change) if equation.primitive.name in _CONTROLS else equation


def read(operands, known):
    """Values of operands, from those that are ``known``."""
    return [x.val if isinstance(x, Literal) else known[x] for x in operands]


def evaluated(jaxpr, consts, args, special=lambda equation: None, made=None):
    """What a jaxpr leads to, nothing computed twice; of that, and of what it is given, some may be `Later`.

    special: what, or None, evaluates an equation from its values, of which some may be `Later`
    made: what has been computed, by what computes it
    """
    known = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))
    made = {} if made is None else made
    for equation in jaxpr.eqns:
        values = read(equation.invars, known)
        if evaluate := special(equation):
            out = evaluate(values)
        elif equation.primitive.name in _CALLS:
            out = evaluated(*call_inside(equation), values, special, made)
        elif equation.effects:
            out = bound(equation, done(values))
        else:
            key = key_of(equation, values)
            if key not in made:
                # What is known by its identity has to live on.
                made[key] = (left if _can_wait(equation, values) else _now)(equation, values), values, equation
            out = made[key][0]
        known.update(zip(equation.outvars, out, strict=True))
    return read(jaxpr.outvars, known)


def left(equation, values):
    """What an equation leads to, left to what reads it."""
    return [Later(equation, values, place) for place in range(len(equation.outvars))]


def _now(equation, values):
    return bound(equation, done(values))


def key_of(equation, values):
    """What is equal where the same is computed: of the same values, constants by what they are."""
    params = equation.params
    return equation.primitive, *map(_identity, values), *((k, _identity(params[k])) for k in sorted(params))


def _identity(x):
    kind = type(x)
    if kind in _PLAIN:
        return kind, x
    if isinstance(x, tuple):
        return kind, *map(_identity, x)
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
    return is_arranged(equation) or (_is_few(equation) and equation.primitive.name in _OF_CONSTANTS and not given(values))


def is_arranged(equation):
    """Whether what an equation makes are few entries, only arranged in another way."""
    return equation.primitive.name in _ARRANGED and _is_few(equation)


def _is_few(equation):
    return all(x.aval.size <= FEW for x in equation.outvars)


def given(values):
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


def in_place(values, others):
    """``values`` made of ``others`` instead of the traced arrays, by their identity."""
    changed = {}

    def of(x):
        if not isinstance(x, Later):
            return others[id(x)] if is_traced(x) else x
        if id(x.values) not in changed:
            changed[id(x.values)] = [of(y) for y in x.values]
        return dataclasses.replace(x, values=changed[id(x.values)])

    return [of(x) for x in values]


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
    traced = given(values)
    return list(traced.values()), in_place(values, {key: Slot(i) for i, key in enumerate(traced)})
