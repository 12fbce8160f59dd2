"""Jaxprs as they are read: what lies in their operations, and what they say."""

import numpy as np

from .jax_internals import CLOSED_CALLS, ClosedJaxpr, Literal, call_inside

#: Parameters of an operation that are the function it calls.
INNER = ("jaxpr", "call_jaxpr", "fun_jaxpr", "call")
#: Operations that call a function.
CALLS = {"jit", "pjit", "core_call", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr", "custom_vmap_call"}
CALLS |= {"checkpoint", "remat2", "remat", *CLOSED_CALLS}


#: Operations of which only the function that they call is read, and parameters of others that are jaxprs.
FUNCTIONS, JAXPRS = frozenset((*CALLS, "jaxnsd_rule")), ("jaxpr", "branches", "cond_jaxpr", "body_jaxpr", "jaxprs")


def parts_of(closed):
    """Equations with their constants, of a closed jaxpr or one that is not."""
    return getattr(closed, "jaxpr", closed), list(getattr(closed, "consts", ()))


def inside(equation):
    """The jaxprs of an operation, one or several under each name."""
    name, params = equation.primitive.name, equation.params
    if name == "jaxnsd_rule":
        inner, consts = call_inside(equation)
        return [ClosedJaxpr(inner, consts) if consts else inner]
    if name == "custom_linear_solve":
        return [params["jaxprs"].solve]
    names = (*INNER, "branches", "cond_jaxpr", "body_jaxpr")
    return [x for key in names if key in params for x in np.atleast_1d(np.asarray(params[key], object)).ravel()]


def count(closed):
    """Number of operations on arrays of a jaxpr."""
    equations = parts_of(closed)[0].eqns
    return len(equations) + sum(count(inner) for equation in equations for inner in inside(equation))


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
