"""Programs written anew: equations of a jaxpr that is not differentiated any more in place of others.

What is changed before a program is lowered is changed here, as jaxprs: whatever fails on the way leaves the jaxpr as it was.
"""

import jax

from ..native.jax_internals import CHECKPOINTS, ClosedJaxpr, Jaxpr, Literal, call_inside, new_variable, with_inner

#: Functions of Python's and long lists of places: what they consist of, a product say, is to be seen once something of it is to change.
_OPENED = ("jaxnsd_rule", "jaxnsd_pick", "jaxnsd_spread")


def rewritten(closed, instead):
    """A closed jaxpr, not differentiated any more, with other equations in place of some, in its inner jaxprs as well; itself if of none.

    instead: ``instead(equation, made_by)`` is None where an equation stays as it is, else a function, which returns a list, and its
    operands: what it traces to takes the place. ``made_by`` are the equations before it in the same jaxpr, by the variables that they make
    """
    jaxpr, names, equations, consts, made_by = closed.jaxpr, {}, [], [], {}

    def write(inner, operands):
        inside = {}
        for variable, value in zip(inner.jaxpr.constvars, inner.consts, strict=True):
            inside[variable] = new_variable(variable.aval)
            consts.append((inside[variable], value))
        inside.update(zip(inner.jaxpr.invars, operands, strict=True))
        for equation in inner.jaxpr.eqns:
            out = [new_variable(x.aval) for x in equation.outvars]
            equations.append(equation.replace(invars=renamed(equation.invars, inside), outvars=out))
            inside.update(zip(equation.outvars, out, strict=True))
        return renamed(inner.jaxpr.outvars, inside)

    changed = False
    for equation in jaxpr.eqns:
        inner, operands = None, equation.invars
        if other := instead(equation, made_by):
            function, operands = other
            inner = jax.make_jaxpr(function)(*(x.aval for x in operands))
        elif equation.primitive.name in _OPENED:
            function = closed_call(equation)
            inner = rewritten(function, instead)
            inner = None if inner is function else inner
        if inner is not None:
            names.update(zip(equation.outvars, write(inner, renamed(operands, names)), strict=True))
            changed = True
        else:
            new = _with_parts(equation, lambda inner: rewritten(inner, instead), consts)
            changed = changed or new is not equation
            equations.append(new.replace(invars=renamed(new.invars, names)))
        made_by.update(dict.fromkeys(equation.outvars, equation))
    if not changed:
        return closed
    jaxpr = jaxpr.replace(constvars=[*jaxpr.constvars, *(x for x, _ in consts)], eqns=equations, outvars=renamed(jaxpr.outvars, names))
    return ClosedJaxpr(jaxpr, [*closed.consts, *(value for _, value in consts)])


def _with_parts(equation, change, consts):
    """An equation with ``change`` of each jaxpr in it; constants that this brings along, and that have no place there, go to ``consts``."""
    inner = equation.params.get("jaxpr")
    if not isinstance(inner, Jaxpr) or (isinstance(inner, ClosedJaxpr) and equation.primitive.name not in CHECKPOINTS):
        return with_inner(equation, change)
    changed = change(closed := ClosedJaxpr(inner, ()))
    if changed is closed:
        return equation
    jaxpr, given = changed.jaxpr, [new_variable(x.aval) for x in changed.jaxpr.constvars]
    consts.extend(zip(given, changed.consts, strict=True))
    jaxpr = jaxpr.replace(constvars=[], invars=[*jaxpr.constvars, *jaxpr.invars])
    return equation.replace(params={**equation.params, "jaxpr": jaxpr}, invars=[*given, *equation.invars])


def closed_call(equation):
    """The function that an equation calls, a closed jaxpr of its operands."""
    jaxpr, consts = call_inside(equation)
    if len(consts) < len(jaxpr.constvars):  # they are among the operands
        jaxpr = jaxpr.replace(constvars=[], invars=[*jaxpr.constvars, *jaxpr.invars])
    return ClosedJaxpr(jaxpr, consts)


def renamed(operands, names):
    """What is written for operands where variables have other names."""
    return [x if isinstance(x, Literal) else names.get(x, x) for x in operands]
