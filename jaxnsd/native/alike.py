"""Programs that do the same, told by what their jaxprs say: a step asks for its contacts in a hundred places, each traced for itself."""

import numpy as np

from .code import is_known
from .control import CALLS, inside, parts_of
from .jax_internals import Literal

#: Operations of which only the function that they call is read, and parameters of others that are jaxprs.
FUNCTIONS, JAXPRS = frozenset((*CALLS, "jaxnsd_rule")), ("jaxpr", "branches", "cond_jaxpr", "body_jaxpr", "jaxprs")


def key(program):
    """What a `control.Program` does, as a value that can be compared; functions that are named in it count by their place in memory."""
    given = tuple(None if x is None else (x.shape, tuple(_number(entry) for entry in x.ravel())) for x in program.given)
    kinds = tuple((kind.shape, kind.dtype) for part in (program.kinds, program.results) for kind in part)
    return said(program.closed), given, kinds, len(program.kinds), program.sizes


def said(closed):
    """What a jaxpr says: its variables are numbered in the order in which they come."""
    jaxpr, consts = parts_of(closed)
    number = {}

    def atoms(all):
        return tuple(_array(x.val, x.aval.dtype) if isinstance(x, Literal) else _variable(number, x) for x in all)

    begin = atoms((*jaxpr.constvars, *jaxpr.invars))
    equations = []
    for equation in jaxpr.eqns:
        jaxprs, params = inside(equation), equation.params
        if equation.primitive.name in FUNCTIONS:
            params = {"name": params.get("name")}
        elif jaxprs:
            params = {name: x for name, x in params.items() if name not in JAXPRS}
        words = tuple((name, str(params[name])) for name in sorted(params))
        equations.append((equation.primitive.name, words, atoms(equation.invars), atoms(equation.outvars), tuple(map(said, jaxprs))))
    return begin, tuple(_array(x, np.asarray(x).dtype) for x in consts), tuple(equations), atoms(jaxpr.outvars)


def _variable(number, x):
    return number.setdefault(x, len(number)), x.aval.shape, str(x.aval.dtype)


def _array(x, dtype):
    x = np.asarray(x, dtype)
    return str(x.dtype), x.shape, x.tobytes()


def _number(entry):
    if not is_known(entry):
        raise ValueError("what is given is known")
    return str(np.asarray(entry).dtype), np.asarray(entry).tobytes()
