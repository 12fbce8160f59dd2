"""A large function as a sequence of smaller ones, which are handed what they read as vectors.

What a compiler spends on one function grows more than in proportion to its operations, and some operations cannot be in a native function
at all: a step is cut there. What only arranges entries, or is computed of constants, is done again in each part that reads it, so that
little is handed from one part to the next; that is one vector of each kind, and what is large by itself.
"""

import itertools
import math

import jax
import jax.numpy as jnp
from jax import lax

from . import later
from .jax_internals import Literal, ShapedArray, jaxpr_as_fun, scan_sizes
from .jax_internals import bound as bound_as_it_is
from .pytrees import chosen

#: Parts that an inner loop has to be worth to be cut: each of its turns is left to the runtime then. Of a loop of five, in a box with
#: `Lobatto(3)`, that takes the compilation from 12 to 6 CPU seconds and costs a tenth of a run; of one and a half, in a slider-crank with
#: `Lobatto(2)`, from 3.8 to 3.1, and costs half a run.
LOOP = 3


def evaluated(jaxpr, args, size_of, most, bound, marks=()):
    """What a closed jaxpr leads to, where runs of operations are bound as one function each.

    Args:
        jaxpr: closed, its functions opened
        args: its arguments, of which some may be `later.Later`
        size_of: number of operations of an equation, or None where it cannot be in such a function
        most: operations of a function, about
        bound: ``bound(function, shapes of what it returns, args, marks)``, a list; or None where it has to be left as it is
        marks: what keeps the loop around all that with the runtime, see `by_the_runtime`
    """
    invars = (*jaxpr.jaxpr.constvars, *jaxpr.jaxpr.invars)
    known = dict(zip(invars, (*jaxpr.consts, *args), strict=True))
    place = {id(equation): i for i, equation in enumerate(jaxpr.eqns)}
    sizes, cut = {id(equation): size_of(equation) for equation in jaxpr.eqns}, {}
    for equation in jaxpr.eqns:
        size = sizes[id(equation)]
        if equation.primitive is lax.cond_p and not equation.effects and (size is None or size > most):
            cut[id(equation)] = _branches
        if equation.primitive in LOOPS and (size or 0) > LOOP * most:
            cut[id(equation)] = LOOPS[equation.primitive]
    sizes.update(dict.fromkeys(cut))
    constants = {x for x, value in known.items() if not later.given([value])}
    waiting, parts = _split(jaxpr.eqns, constants, sizes, most)

    def whole(equations, wanted):
        """Equations, those that wait and lead to them or to ``wanted`` among them, and the variables they read of others."""
        reads = {*_variables(wanted), *_variables(x for equation in equations for x in equation.invars)}
        equations = sorted([*equations, *_leading_to(reads, waiting)], key=lambda equation: place[id(equation)])
        made = {x for equation in equations for x in equation.outvars}
        read = dict.fromkeys(x for equation in equations for x in _variables(equation.invars))
        return equations, [x for x in dict.fromkeys((*read, *_variables(wanted))) if x not in made]

    left = set(map(id, waiting))

    def outside(equation, values):
        if id(equation) in left:
            return later.left(equation, values)
        if id(equation) in cut:
            return cut[id(equation)](equation, values, size_of, most, bound)
        return bound_as_it_is(equation, later.done(values))

    wholes = [whole(part, ()) for _, part in parts] + [whole((), jaxpr.jaxpr.outvars)]
    for k, (is_native, part) in enumerate(parts):
        equations, read = wholes[k]
        after = {x for _, others in wholes[k + 1 :] for x in others}
        out = [x for equation in part for x in equation.outvars if x in after]
        found = _bound(equations, read, out, known, bound, marks) if is_native else None
        if found:
            known.update(zip(out, found, strict=True))
        else:
            _evaluate(equations, known, outside)
    return later.done(later.read(jaxpr.jaxpr.outvars, _evaluate(wholes[-1][0], known, outside)))


def _evaluate(equations, known, evaluate=bound_as_it_is):
    """Add to ``known`` what equations lead to; it is returned."""
    for equation in equations:
        # What waits leads to several parts, and may be there.
        if not equation.outvars or any(x not in known for x in equation.outvars):
            known.update(zip(equation.outvars, evaluate(equation, later.read(equation.invars, known)), strict=True))
    return known


def _branches(equation, values, *cuts):
    """What a large branch leads to, some of it left to what reads it: each of its functions in parts."""
    traced, result = list(later.given(values[1:]).values()), _Result([x.aval for x in equation.outvars])

    def function(branch):
        whole = jax.make_jaxpr(lambda *args: result.pack(jaxpr_as_fun(branch)(*args)))(*branch.in_avals)

        def of(*args):
            return evaluated(whole, later.in_place(values[1:], dict(zip(map(id, traced), args, strict=True))), *cuts)

        return of

    (number,) = later.done(values[:1])
    return result.unpack(lax.switch(number, list(map(function, equation.params["branches"])), *traced))


def _loop(equation, values, *cuts):
    """What a large loop leads to, some of it left to what reads it: its body in parts."""
    params = equation.params
    n = params["cond_nconsts"]
    m = n + params["body_nconsts"]
    result = _Result([x.aval for x in equation.outvars])
    body = jax.make_jaxpr(lambda *args: result.pack(jaxpr_as_fun(params["body_jaxpr"])(*args)))(*params["body_jaxpr"].in_avals)

    def goes_on(carry):
        args = later.done([*values[:n], *result.unpack(carry[1])])
        return jaxpr_as_fun(params["cond_jaxpr"])(*args)[0]

    def turn(carry):
        k = by_the_runtime(carry[0])
        return k + 1, evaluated(body, [*values[n:m], *result.unpack(carry[1])], *cuts, marks=[k])

    return result.unpack(lax.while_loop(goes_on, turn, (jnp.zeros((), jnp.int32), result.pack(later.done(values[m:]))))[1])


def _steps(equation, values, *cuts):
    """What a large loop of a number of steps leads to: its step in parts."""
    params, body = equation.params, equation.params["jaxpr"]
    n, m = itertools.accumulate(scan_sizes(params))
    result = _Result(body.out_avals[: m - n])

    def packed(*args):
        out = jaxpr_as_fun(body)(*args)
        return [*result.pack(out[: m - n]), *out[m - n :]]

    step = jax.make_jaxpr(packed)(*body.in_avals)
    size = len(result.shapes())

    def turn(carry, row):
        k, *xs = row
        k = by_the_runtime(k)
        out = evaluated(step, [*values[:n], *result.unpack(carry), *xs], *cuts, marks=[k])
        return out[:size], out[size:]

    rows = [jnp.arange(params["length"], dtype=jnp.int32), *later.done(values[m:])]
    carry, ys = lax.scan(turn, result.pack(later.done(values[n:m])), rows, params["length"], params["reverse"])
    return [*result.unpack(carry), *ys]


#: Loops that may be cut, and what cuts them.
LOOPS = {lax.while_p: _loop, lax.scan_p: _steps}


def by_the_runtime(k):
    """``k``, a whole number, in a way that keeps a loop with the runtime: with a sort, which is never done, it is not made native."""
    return lax.cond(k == -1, lambda k: lax.sort(jnp.stack([k, k + 1]))[0], lambda k: k, k)


class _Result:
    """What a function returns: what is few as one vector of each dtype."""

    def __init__(self, avals):
        self.few = [x.size <= later.FEW for x in avals]
        self.vectors = Vectors(chosen(avals, self.few))
        self.large = chosen(avals, [not x for x in self.few])

    def shapes(self):
        """Shapes of what is packed."""
        return [*self.vectors.shapes(), *(ShapedArray(x.shape, x.dtype) for x in self.large)]

    def pack(self, values):
        """The vectors, and what is large as it is."""
        return [*self.vectors.pack(chosen(values, self.few)), *chosen(values, [not x for x in self.few])]

    def unpack(self, found):
        """What was packed; few are left to what reads them."""
        cut = len(found) - len(self.large)
        jaxpr = jax.make_jaxpr(self.vectors.unpack)(self.vectors.shapes())
        few, large = iter(later.evaluated(jaxpr.jaxpr, jaxpr.consts, found[:cut])), iter(found[cut:])
        return [next(few if x else large) for x in self.few]


def _bound(equations, read, out, known, bound, marks):
    """Values of ``out``, some of them left to what reads them, from one function; None where that cannot be."""
    traced, fixed = later.reduced([known[x] for x in read])
    if not traced or not out:
        return None
    result = _Result([x.aval for x in out])

    def function(*args):
        inner = _evaluate(equations, dict(zip(read, later.done(fixed, args), strict=True)))
        return result.pack([inner[x] for x in out])

    found = bound(function, tuple(result.shapes()), traced, marks)
    return None if found is None else result.unpack(found)


def _split(equations, fixed, sizes, most):
    """``(equations that are left to what reads them, runs of the others)``, each run with whether it may be a function.

    fixed: variables that depend on constants alone
    """
    waiting, changing, fixed, runs = [], [], set(fixed), []
    for equation in equations:
        of_constants = not equation.effects and fixed.issuperset(_variables(equation.invars))
        fixed.update(equation.outvars if of_constants else ())
        (waiting if of_constants or later.is_arranged(equation) else changing).append(equation)
    for is_native, run in itertools.groupby(changing, lambda equation: sizes[id(equation)] is not None):
        run = list(run)
        if not is_native:
            runs.append((False, run))
            continue
        total = list(itertools.accumulate(sizes[id(equation)] for equation in run))
        # As few parts as there have to be, of one size.
        least = max(total[-1] / (math.ceil(total[-1] / most) or 1), 1)
        numbers = iter([int((n - 1) / least) for n in total])
        runs += [(True, list(part)) for _, part in itertools.groupby(run, lambda _, numbers=numbers: next(numbers))]
    return waiting, runs


def _variables(operands):
    """Operands that are no literals."""
    return [x for x in operands if not isinstance(x, Literal)]


def _leading_to(variables, equations):
    """Those of ``equations`` that lead to ``variables``, in their order."""
    found, variables = [], set(variables)
    for equation in reversed(equations):
        if variables.intersection(equation.outvars):
            variables.update(_variables(equation.invars))
            found.append(equation)
    return found[::-1]


class Vectors:
    """Arrays of given shapes as one vector of each dtype."""

    def __init__(self, avals):
        self.avals = avals
        self.kinds = sorted({x.dtype for x in avals if x.size}, key=str)

    def shapes(self):
        """Shapes of the vectors."""
        sizes = (sum(x.size for x in self.avals if x.dtype == kind) for kind in self.kinds)
        return [ShapedArray((size,), kind) for size, kind in zip(sizes, self.kinds, strict=True)]

    def pack(self, values, lead=0):
        """The vectors; ``lead`` axes stay in front."""
        pairs = [(x, aval.dtype) for x, aval in zip(values, self.avals, strict=True) if aval.size]
        flat = [(jnp.reshape(x, (*jnp.shape(x)[:lead], -1)), dtype) for x, dtype in pairs]
        return [jnp.concatenate([x for x, dtype in flat if dtype == kind], axis=lead) for kind in self.kinds]

    def unpack(self, vectors, lead=0):
        """Inverse of `pack`."""
        vectors = dict(zip(self.kinds, vectors, strict=True))
        at, out = dict.fromkeys(self.kinds, 0), []
        front = next((x.shape[:lead] for x in vectors.values()), ())
        for aval in self.avals:
            if not aval.size:
                out.append(jnp.zeros((*front, *aval.shape), aval.dtype))
                continue
            start = at[aval.dtype]
            at[aval.dtype] = start + aval.size
            entries = lax.slice_in_dim(vectors[aval.dtype], start, start + aval.size, axis=lead)
            out.append(lax.reshape(entries, (*front, *aval.shape)))
        return out
