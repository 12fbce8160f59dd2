"""Kernels: a step of a large system as native functions on a CPU.

A small step and the loop around it are one native function, which XLA makes of a loop that touches few bytes (see `xla_flags`). A large
step is made one by `kernel`, or, where it is larger still, a few (see `pieces`), and the loop around it is left to the runtime: what LLVM
spends on a function grows with the square of the number of its inner loops, and a call by the runtime is small beside a large step.

A kernel has no libraries to call: what XLA would hand to one it does itself, and what it cannot do makes a step no kernel.

In forward mode value and derivative of a kernel are one kernel again, and so is what `vmap` makes of it. In reverse mode nothing is left of
it but ordinary operations: what the way back needs of the way forward would be computed again in every kernel. There the steps of both ways
are made kernels in the end, by `stepwise`.
"""

import functools
import itertools
import math
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from . import fusion, later, pieces, plain, products, ties
from .derivatives import ZERO, pushed
from .jax_internals import (
    CLOSED_CALLS,
    ClosedJaxpr,
    Primitive,
    ShapedArray,
    ad,
    batching,
    call_inside,
    is_traced,
    jaxpr_as_fun,
    mlir,
    scan_sizes,
    with_inner,
)
from .pytrees import chosen, replaced

#: Largest product of matrices, in multiplications, in a kernel.
LARGEST = 1 << 24

#: Operations on arrays, each a loop, from which on a step is a `kernel`, or one of the derivative of a batch. A kernel costs 3
#: microseconds a step, of 3 to 6. It takes the compilation of a hopper (3100 operations) from 5.5 to 3 CPU seconds, on the machine this
#: was written on, of a half-cheetah (3700) from 8.6 to 4.4. That runs 2.5 times as fast: of a step with such a matrix XLA itself makes no
#: native loop.
LARGE = 3300

#: Operations from which on the derivative of a step, of two to three times as many, is one.
DIFFERENTIATED = 1900

#: Operations from which on a step of the way forward, or back, of reverse mode is one. Of a cube of parts (3500 and 4100) that takes the
#: compilation of a gradient from 34 to 11 CPU seconds; a step both ways, of 18 microseconds, takes 9 more.
REVERSED = 1850

#: Operations of a native function, about: more are several, each with a call. The compilation of a gradient of a cube of parts takes 16 CPU
#: seconds in one function each way, 11 in parts, of a half-cheetah 75 and 38, a run of a humanoid 18 and 9; a step costs from nothing to a
#: tenth more. From 300 to 2500 it is nearly the same.
PIECE = 1200

#: Operations from which on a part of a step, before or after something that no kernel takes, is a kernel.
PART = 300

#: Entries of each of the arrays that a `kernel` is given, constants of a loop among them.
GIVEN = 1 << 14

_NAMES = """
abs acos acosh add add_any and argmax argmin asin asinh atan atan2 atanh bitcast_convert_type broadcast_in_dim cbrt ceil checkpoint clamp
concatenate cond convert_element_type copy cos cosh cummax cummin cumprod cumsum custom_jvp_call custom_linear_solve
custom_vjp_call custom_vmap_call device_put div dot_general dynamic_slice dynamic_update_slice empty empty2 eq erf exp exp2 expand_dims
expm1 floor gather ge gt integer_pow iota is_finite jaxnsd_cross jaxnsd_entries jaxnsd_joined jaxnsd_largest jaxnsd_pick jaxnsd_rule
jaxnsd_spread jaxnsd_undefined jit le le_to log log1p logistic lt lt_to lu_pivots_to_permutation max min mul name ne neg nextafter not
optimization_barrier or pad pjit platform_index pow reduce_and reduce_max reduce_min reduce_or reduce_precision reduce_prod reduce_sum rem
remat2 reshape rev round rsqrt scan select_n shift_left shift_right_arithmetic shift_right_logical sign sin sinh slice split sqrt square
squeeze stack stop_gradient sub tan tanh tile transpose unstack while xor
"""

#: Operations that XLA compiles into a native function.
NATIVE = frozenset((*_NAMES.split(), *CLOSED_CALLS))


def _lu(a):
    """`lax.linalg.lu`, for a kernel: row by row, with row exchanges."""
    n = a.shape[0]
    rows = jnp.arange(n)

    def eliminate(k, carry):
        a, pivots, order = carry
        column = lax.dynamic_index_in_dim(a, k, 1, False)
        at = jnp.argmax(jnp.where(rows >= k, jnp.abs(column), -1.0)).astype(pivots.dtype)

        def exchanged(x):
            first, second = lax.dynamic_index_in_dim(x, k, 0), lax.dynamic_index_in_dim(x, at, 0)
            place = rows.reshape(-1, *(1,) * (x.ndim - 1))
            return jnp.where(place == k, second, jnp.where(place == at, first, x))

        a = exchanged(a)
        row, column = lax.dynamic_index_in_dim(a, k, 0, False), lax.dynamic_index_in_dim(a, k, 1, False)
        pivot = lax.dynamic_index_in_dim(row, k, 0, False)
        factor = jnp.where(rows > k, column / jnp.where(pivot == 0, 1, pivot), 0)
        a = jnp.where(
            (rows == k)[None, :], jnp.where(rows > k, factor, column)[:, None], a - factor[:, None] * jnp.where(rows > k, row, 0)[None, :]
        )
        return a, jnp.where(rows == k, at, pivots), exchanged(order)

    order = rows.astype(jnp.int32)
    return lax.fori_loop(0, n, eliminate, (a, jnp.zeros_like(order), order))


def _triangular_solve(a, b, *, left_side, lower, transpose_a, conjugate_a, unit_diagonal):
    """`lax.linalg.triangular_solve`, for a kernel: row by row."""
    del conjugate_a
    if not left_side:
        a, b, lower = a.T, b.T, not lower
    if transpose_a:
        a, lower = a.T, not lower
    n = a.shape[0]
    rows = jnp.arange(n)

    def substitute(i, x):
        k = i if lower else n - 1 - i
        row = lax.dynamic_index_in_dim(x, k, 0, False)
        column = lax.dynamic_index_in_dim(a, k, 1, False)
        if not unit_diagonal:
            row = row / lax.dynamic_index_in_dim(column, k, 0, False)
        rest = jnp.where((rows > k) if lower else (rows < k), column, 0)
        return jnp.where((rows == k)[:, None], row[None, :], x - rest[:, None] * row[None, :])

    x = lax.fori_loop(0, n, substitute, b)
    return x if left_side else x.T


def _folded(primitive, combine):
    """The rule of a reduction in a kernel: XLA has a library for large ones, too."""

    def fold(x, *, axes, **params):
        axis = max(axes, key=lambda axis: x.shape[axis])
        rest = tuple(a - (a > axis) for a in axes if a != axis)

        def part(k):
            entries = lax.dynamic_index_in_dim(x, k, axis, False)
            return primitive.bind(entries, axes=rest, **params) if rest else entries

        return lax.fori_loop(1, x.shape[axis], lambda k, total: combine(total, part(k)), part(0))

    return fold


#: Reductions of which a kernel does large ones itself.
REDUCTIONS = {
    primitive: _folded(primitive, combine)
    for primitive, combine in ((lax.reduce_sum_p, lax.add), (lax.reduce_max_p, lax.max), (lax.reduce_min_p, lax.min))
}

#: What of LAPACK's a kernel does itself, up to so many rows: {primitive: its rule}.
FACTORS, ROWS = {lax.linalg.lu_p: _lu, lax.linalg.triangular_solve_p: _triangular_solve}, 256


def kernel(function, *args):
    """``function``, compiled on a CPU into one native function of its own where that pays, and so is its derivative in forward mode.

    None where it is not possible, or pays for neither. ``args`` are examples of its arguments, arrays.
    """
    jaxpr, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
    given = [is_traced(x) for x in jaxpr.consts]
    leaves = chosen(jaxpr.consts, given)
    size = _loops(jaxpr.jaxpr)
    if size is None or size < DIFFERENTIATED or any(x.size > GIVEN for x in leaves):
        return None

    def flat(*args):
        consts = replaced(jaxpr.consts, given, args[: len(leaves)])
        return jaxpr_as_fun(jaxpr.replace(consts=consts))(*args[len(leaves) :])

    of = Kernel(flat, tuple(ShapedArray(s.shape, s.dtype) for s in jax.tree.leaves(shapes)))

    def bound(*args):
        return jax.tree.unflatten(jax.tree.structure(shapes), _kernel.bind(*leaves, *args, of=of))

    return bound


def at_once(closed):
    """A closed jaxpr with kernels whose derivatives are kernels: they cannot be transposed."""

    def of(equation):
        if equation.primitive is _kernel:
            return equation.replace(params={"of": replace(equation.params["of"], at_once=True)})
        return with_inner(equation, at_once)

    before = closed.jaxpr.eqns
    equations = list(map(of, before))
    same = all(a is b for a, b in zip(equations, before, strict=True))
    return closed if same else ClosedJaxpr(closed.jaxpr.replace(eqns=equations), closed.consts)


def stepwise(closed, *, least, lockstep=False, back=False):
    """A closed jaxpr with loops of the runtime over kernels in place of loops over steps of ``least`` operations and more.

    It is not differentiated any more. What such a loop carries, reads and writes is one vector of each dtype: what is many arrays costs the
    runtime a call for each. What no kernel takes is left to the runtime. ``back``: whether it is a way back.
    """
    jaxpr = _opened(closed)
    steps, around = {}, set()
    if not _find_steps(jaxpr.jaxpr, least, steps, around):
        # In lockstep what a step reads and writes counts, and what is computed once is written: 5.7 kB for 5.1 of a woodpecker.
        if lockstep:
            return ties.settled(closed)
        return fusion.held(jaxpr) if back else jaxpr
    return jax.make_jaxpr(lambda *args: later.done(_evaluated(jaxpr.jaxpr, jaxpr.consts, args, steps, around)))(*jaxpr.in_avals)


def _opened(closed):
    """A closed jaxpr, not differentiated any more, with its functions opened, nothing computed twice, and no ties."""
    jaxpr = later.once(closed)
    settled = ties.settled(jaxpr)
    return jaxpr if settled is jaxpr else later.once(settled)


#: Operations in which there may be a loop over the steps.
_AROUND = ("scan", "jit", "pjit", "checkpoint", "remat2", *CLOSED_CALLS)


def _find_steps(jaxpr, least, steps, around):
    """Add to ``steps`` what loops over large steps become, by identity, and to ``around`` what they are in; whether there are any."""
    for equation in jaxpr.eqns:
        if equation.primitive.name in _AROUND:
            if loop := _loop_over_steps(equation, least):
                steps[id(equation)] = loop
            elif _find_steps(call_inside(equation)[0], least, steps, around):
                around.add(id(equation))
    return any(id(equation) in steps or id(equation) in around for equation in jaxpr.eqns)


def _loop_over_steps(equation, least):
    """What evaluates a loop whose body, beside inner loops, is a large step: kernels or, where too large, the runtime; else None."""
    if equation.primitive.name != "scan":
        return None
    body = equation.params["jaxpr"]
    avals = (*body.in_avals, *body.out_avals)
    if not all(map(_is_plain, avals)):
        return None
    if _loops(body.jaxpr) is None:
        return _scan_of_parts if _loops_of_parts(body.jaxpr) >= LARGE else None
    is_large = _loops(body.jaxpr, inner_loops=False) >= least
    return _scan_of_kernels if is_large and all(x.size <= GIVEN for x in avals) else None


def _is_plain(aval):
    return any(jnp.issubdtype(aval.dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_))


def _evaluated(jaxpr, consts, args, steps, around):
    """What a jaxpr leads to, its loops over steps changed; some of it, and of what it is given, may be left for `later`."""

    def special(equation):
        if equation.primitive.name == "stop_gradient":
            return list
        if id(equation) in steps:
            return functools.partial(steps[id(equation)], equation)
        if id(equation) in around:
            wrapper = _scan if equation.primitive.name == "scan" else _around
            return functools.partial(wrapper, equation, lambda *args: _evaluated(*call_inside(equation), args, steps, around))
        return None

    return later.evaluated(jaxpr, consts, args, special)


def _around(equation, evaluate, values):
    """A function around loops over steps; where it is to be computed again it must not be merged with what was computed before."""
    if equation.params.get("differentiated") and equation.params.get("prevent_cse"):
        traced = later.given(values)
        values = later.in_place(values, dict(zip(traced, lax.optimization_barrier(list(traced.values())), strict=True)))
    return evaluate(*values)


def _scan(equation, evaluate, values):
    """`lax.scan` with ``evaluate(*consts, *carry, *x)``, which returns a list, for what its body leads to."""
    params = equation.params
    n, m = itertools.accumulate(scan_sizes(params))

    def step(carry, x):
        out = later.done(evaluate(*values[:n], *carry, *x))
        return out[: m - n], out[m - n :]

    carry, rows = lax.scan(step, later.done(values[n:m]), later.done(values[m:]), params["length"], params["reverse"])
    return [*carry, *rows]


def _scan_of_kernels(equation, values):
    """`lax.scan` over steps, each a kernel."""
    params, body = equation.params, equation.params["jaxpr"]
    n, m = itertools.accumulate(scan_sizes(params))
    traced, fixed = later.reduced(values[:n])
    avals = [ShapedArray(x.shape, x.dtype) for x in map(jax.typeof, traced)]
    consts, carry, xs = pieces.Vectors(avals), pieces.Vectors(body.in_avals[n:m]), pieces.Vectors(body.in_avals[m:])
    ys = pieces.Vectors(body.out_avals[m - n :])
    sizes = [len(consts.kinds), len(carry.kinds), len(xs.kinds)]

    def step(*args):
        first, second, third = (iter(args[sum(sizes[:i]) : sum(sizes[: i + 1])]) for i in range(3))
        out = jaxpr_as_fun(body)(*later.done(fixed, consts.unpack(first)), *carry.unpack(second), *xs.unpack(third))
        return [*carry.pack(out[: m - n]), *ys.pack(out[m - n :])]

    of, packed = Kernel(step, tuple([*carry.shapes(), *ys.shapes()]), least=0), consts.pack(traced)

    def called(vectors, rows):
        out = _kernel.bind(*packed, *vectors, *rows, of=of)
        return out[: sizes[1]], out[sizes[1] :]

    # The number of the step keeps the loop with the runtime, see `_lower`.
    rows = [*xs.pack(later.done(values[m:]), lead=1), jnp.arange(params["length"])]
    last, written = lax.scan(called, carry.pack(later.done(values[n:m])), rows, params["length"], params["reverse"])
    return [*carry.unpack(last), *ys.unpack(written, lead=1)]


def _scan_of_parts(equation, values):
    """`lax.scan` over steps in which something is left to the runtime, as a solution with a large matrix: kernels around it."""

    def bound(function, shapes, args, _):
        if not all(map(_is_plain, (*map(jax.typeof, args), *shapes))) or any(x.size > GIVEN for x in (*args, *shapes)):
            return None
        return _kernel.bind(*args, of=Kernel(function, shapes, least=PART))

    body = equation.params["jaxpr"]
    return _scan(equation, lambda *args: pieces.evaluated(body, args, _loops_of, math.inf, bound), later.done(values))


def _loops(jaxpr, inner_loops=True):
    """Number of operations on arrays, those of inner functions included; None where an operation is not `NATIVE`.

    inner_loops: whether those of `lax.scan` count
    """
    total = 0
    for equation in jaxpr.eqns:
        size = _loops_of(equation, inner_loops)
        if size is None:
            return None
        total += size
    return total


def _loops_of(equation, inner_loops=True):
    """`_loops` of one equation."""
    name, params, avals = equation.primitive.name, equation.params, [x.aval for x in equation.invars]
    if name not in NATIVE and not (equation.primitive in FACTORS and _is_small_matrix(avals[0])):
        return None
    if name == "dot_general" and products.size_of_product(params["dimension_numbers"], *avals)[0] > LARGEST:
        return None
    if name == "jaxnsd_rule":
        # A function of Python's, which says what it consists of unless it was made by `vmap`.
        inner = [getattr(params["function"], "jaxpr", None) or jax.make_jaxpr(params["function"])(*avals).jaxpr]
    else:
        inside = params["jaxprs"].solve if name == "custom_linear_solve" else list(params.values())
        inner = [getattr(x, "jaxpr", x) for x in jax.tree.leaves(inside) if hasattr(x, "eqns")]
    if name == "scan" and not inner_loops:
        return 0
    sizes = [x and _loops(x, inner_loops) for x in inner]
    if None in sizes:
        return None
    return sum(sizes) if inner else int(any(x.aval.size > 1 for x in equation.outvars))


def _loops_of_parts(jaxpr):
    """Number of operations, those of inner loops apart, in the parts of a jaxpr that kernels take."""
    return sum(_loops_of(equation, inner_loops=False) or 0 for equation in jaxpr.eqns)


def _is_small_matrix(aval):
    return aval.ndim == 2 and max(aval.shape) <= ROWS and jnp.issubdtype(aval.dtype, jnp.floating)


@dataclass(frozen=True, eq=False)
class Kernel:
    """A function of arrays, and what is made of it."""

    function: Any  # (*args) -> outs
    outs: tuple  # their shapes
    least: int | None = None  # operations from which on it pays; None: `LARGE`
    at_once: bool = False  # whether the derivative is a kernel, that of value and derivative
    parts: tuple = ()  # pairs (a, o): the first o outs depend on the first a arguments alone


_kernel = Primitive("jaxnsd_kernel")
_kernel.multiple_results = True


def _value(*args, of):
    return list(of.function(*args))


def _jvp(primals, tangents, *, of):
    moves = [type(t) is not ad.Zero for t in tangents]
    n = len(primals)

    def along(*args):
        return pushed(lambda *args: list(of.function(*args)), args[:n], replaced([ZERO] * n, moves, args[n:]))

    if not any(moves):
        return _kernel.bind(*primals, of=of), [ad.Zero(x.to_tangent_aval()) for x in of.outs]
    args = *primals, *chosen(tangents, moves)
    if not of.at_once:
        return along(*args)
    floats = [jnp.issubdtype(x.dtype, jnp.floating) for x in of.outs]

    def both(*args):
        out, d_out = along(*args)
        return [*out, *chosen(d_out, floats)]

    outs, parts = (*of.outs, *chosen(of.outs, floats)), (*of.parts, (n, len(of.outs)))
    out = _kernel.bind(*args, of=replace(of, function=both, outs=outs, parts=parts))
    d_out = [ad.Zero(x.to_tangent_aval()) for x in of.outs]
    return out[: len(of.outs)], replaced(d_out, floats, out[len(of.outs) :])


def _batch(args, axes, *, of):
    args = [x if axis is None else jnp.moveaxis(x, axis, 0) for x, axis in zip(args, axes, strict=True)]
    size = next(x.shape[0] for x, axis in zip(args, axes, strict=True) if axis is not None)
    axes = [None if axis is None else 0 for axis in axes]
    # Of many directions at one point the value is that of the point.
    alike = max((o for a, o in of.parts if axes[:a] == [None] * a), default=0)
    out_axes = [None if i < alike else 0 for i in range(len(of.outs))]
    many = jax.vmap(lambda *args: list(of.function(*args)), axes, out_axes, axis_size=size)
    outs = tuple(x if axis is None else ShapedArray((size, *x.shape), x.dtype) for x, axis in zip(of.outs, out_axes, strict=True))
    return _kernel.bind(*args, of=replace(of, function=many, outs=outs)), out_axes


def _lower(ctx, *args, of):
    """Calls of native functions, or, where that does not pay, what the kernel consists of."""
    program = jax.make_jaxpr(lambda *args: list(of.function(*args)))(*ctx.avals_in)
    if tuple(ctx.module_context.platforms) == ("cpu",):
        program = plain.tried(_program, lambda program, of: program)(program, of)
    return mlir.lower_fun(jaxpr_as_fun(program), multiple_results=True)(ctx, *args)


def _program(jaxpr, of):
    """What a kernel, a closed jaxpr, becomes."""
    if of.least is None:  # the others are made of what `stepwise` has changed that way
        jaxpr = _opened(jaxpr)
    size = _loops(jaxpr.jaxpr)
    if size is None or size < (LARGE if of.least is None else of.least):
        return products.written_out(jaxpr)

    def call(*args):
        marks = [jnp.issubdtype(x.dtype, jnp.integer) and not x.ndim for x in args]
        marked = [pieces.by_the_runtime(x) for x in chosen(args, marks)]
        return pieces.evaluated(jaxpr, replaced(args, marks, marked), _loops_of, PIECE, _called, marked)

    return products.written_out(jax.make_jaxpr(call)(*jaxpr.in_avals))


def _called(function, shapes, args, marks):
    """A native function bound, which is given ``marks`` as well."""
    args = [*args, *marks]
    given = [x.size > 0 for x in args]
    kinds = [(x.shape, x.dtype) for x in args]

    def inside(*args):
        whole = replaced([None if x else jnp.zeros(*kind) for x, kind in zip(given, kinds, strict=True)], given, args)
        # XLA cannot do with an argument that is not used: an entry of each is returned.
        return [*function(*whole[: len(kinds) - len(marks)]), *(jnp.ravel(x)[:1] for x in args)]

    # Nor with one that it knows, as all are in a loop of a single step, which is none: it would use its value, and not the argument.
    return _call.bind(*lax.optimization_barrier(chosen(args, given)), function=jax.jit(inside))[: len(shapes)]


_call = Primitive("jaxnsd_call")
_call.multiple_results = True
_call.def_abstract_eval(lambda *args, function: [ShapedArray(s.shape, s.dtype) for s in jax.eval_shape(function, *args)])


def _without_libraries(equation):
    """What takes the place of an operation that XLA has a library for, or None."""
    primitive, params = equation.primitive, equation.params
    if primitive in FACTORS:
        kept = {name: value for name, value in params.items() if name not in ("pivot_size", "use_magma")}

        def several(*args):
            out = FACTORS[primitive](*args, **kept)
            return out if isinstance(out, tuple) else (out,)

        return several
    if primitive in REDUCTIONS and equation.invars[0].aval.size > products.SUM and params["axes"]:
        return lambda x: [REDUCTIONS[primitive](x, **params)]
    return None


def _lower_call(ctx, *args, function):
    """The call, without what XLA has libraries for inside."""
    program = jax.make_jaxpr(function)(*ctx.avals_in)
    program = plain.tried(lambda program: products.written_out(program, LARGEST, _without_libraries), lambda program: program)(program)
    # What XLA's own pass marks loops with that it makes native.
    out = mlir.lower_fun(jaxpr_as_fun(program), multiple_results=True)(ctx, *args)
    return plain.marked(out, inlineable="false", xla_cpu_small_call="true")


mlir.register_lowering(_call, _lower_call)
_kernel.def_impl(_value)
_kernel.def_abstract_eval(lambda *args, of: list(of.outs))
mlir.register_lowering(_kernel, _lower)
ad.primitive_jvps[_kernel] = _jvp
batching.primitive_batchers[_kernel] = _batch
