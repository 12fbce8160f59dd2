"""What JAX's operations on arrays become: one rule for each, ``rule(code, params, arrays, kinds, results)``, a list of arrays.

``kinds`` and ``results`` are shapes and dtypes of operands and results. To add an operation on numbers, see `numbers`; another one is a
function with ``@rule("its name")``: here, where entries are arranged, in `reductions`, `indexing`, `products`, `factors` or `sorting`.
"""

import functools
import math

import jax
import numpy as np

from .arrays import DEPTH, WIDE, Large, filled, in_memory, is_small, large, made, scalar, settled, small, written
from .code import is_known
from .numbers import ELEMENTWISE, SAME, converted, operate

RULES = {}


def written_out(code, name, size, columns):
    """Whether an operation on small arrays is written out: where it is small, or nearly all that it computes is known.

    columns: the entries of the operands, in the order of the results'
    """
    if size <= code.sizes.small:
        return True
    if size > WIDE:
        return False
    unknown = np.logical_or.reduce([_UNKNOWN(column) for column in columns])
    if name in ("mul", "and"):
        unknown &= np.logical_and.reduce([NOT_ZERO(column) for column in columns])
    return np.count_nonzero(unknown) <= code.sizes.small


_UNKNOWN = np.frompyfunc(lambda entry: not is_known(entry), 1, 1)
NOT_ZERO = np.frompyfunc(lambda entry: not (is_known(entry) and entry == 0), 1, 1)


def rule(*names):
    """Register the rule of some primitives."""

    def register(function):
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def rule_of_each(*names):
    """The same, of a function that is told the ``name`` of the primitive."""

    def register(function):
        RULES.update({name: functools.partial(function, name=name) for name in names})
        return function

    return register


def of(code, name, entries, dtype, result=None):
    """One operation on entries of one dtype."""
    return operate(code, name, entries, [dtype] * len(entries), dtype if result is None else result, {})


def elementwise(code, name, params, arrays, kinds, result):
    """Operations of one entry each."""
    if name in SAME:
        return arrays[0]
    shape, dtype, dtypes = result.shape, result.dtype, [kind.dtype for kind in kinds]
    columns = [np.broadcast_to(x, shape).ravel() for x in arrays] if all(map(is_small, arrays)) else None
    if result.size <= code.sizes.small or (columns and written_out(code, name, result.size, columns)):
        columns = columns or [np.broadcast_to(small(code, x), shape).ravel() for x in arrays]
        return filled([operate(code, name, list(entries), dtypes, dtype, params) for entries in zip(*columns, strict=True)], shape)
    whole = [large(code, x, kind.dtype) for x, kind in zip(arrays, kinds, strict=True)]
    # Newer versions of JAX broadcast axes of one entry inside of an operation: what is read several times is not computed several times.
    whole = [settled(code, x) if kind.size < result.size else x for x, kind in zip(whole, kinds, strict=True)]

    def at(index):
        own = [[np.int64(0) if n == 1 else i for i, n in zip(index, x.shape, strict=False)] for x in whole]
        return operate(code, name, [x.at(i) for x, i in zip(whole, own, strict=True)], dtypes, dtype, params)

    depth, cheap = 1 + max((x.depth for x in whole), default=0), all(x.cheap for x in whole)
    # What one operation alone reads is computed there.
    return Large(shape, dtype, at, cheap=cheap, depth=depth) if (cheap or code.once) and depth < DEPTH else made(code, shape, dtype, at)


def arranged(code, x, kind, result, index_of, arrange):
    """What shows entries in another order: of small arrays by ``arrange``, of large ones a view that reads at ``index_of(index)``."""
    if is_small(x) and result.size <= (code.sizes.small if result.size > kind.size else WIDE):
        return arrange(x)
    whole = large(code, x, kind.dtype)
    if result.size > kind.size:  # what is read several times is not computed several times
        whole = settled(code, whole)
    whole = settled(code, whole) if whole.depth >= DEPTH else whole
    out = Large(result.shape, kind.dtype, lambda index: whole.at(index_of(index)), cheap=whole.cheap, depth=whole.depth + 1)
    return small(code, out) if result.size <= code.sizes.small else out


@rule("broadcast_in_dim")
def _broadcast(code, params, arrays, kinds, results):
    axes, shape = params["broadcast_dimensions"], results[0].shape
    inner = kinds[0].shape

    def arrange(x):
        full = [1] * len(shape)
        for n, axis in zip(inner, axes, strict=True):
            full[axis] = n
        return np.broadcast_to(x.reshape(full), shape)

    def index_of(index):
        return [np.int64(0) if n == 1 else index[axis] for n, axis in zip(inner, axes, strict=True)]

    return [arranged(code, arrays[0], kinds[0], results[0], index_of, arrange)]


@rule("tile")
def _tile(code, params, arrays, kinds, results):
    reps, inner = params["reps"], kinds[0].shape

    def index_of(index):
        return [
            np.int64(0) if n == 1 else i if k == 1 else of(code, "rem", [i, np.int64(n)], np.int64)
            for i, n, k in zip(index, inner, reps, strict=True)
        ]

    return [arranged(code, arrays[0], kinds[0], results[0], index_of, lambda x: np.tile(x, reps))]


@rule("reshape", "squeeze", "expand_dims")
def _reshape(code, params, arrays, kinds, results):
    x, shape, inner = arrays[0], results[0].shape, kinds[0].shape
    if is_small(x):
        return [x.reshape(shape)]
    if x.pointer is not None:
        out = in_memory(code, x.pointer, shape, x.dtype)
        return [out]
    if [n for n in shape if n != 1] == [n for n in inner if n != 1]:
        places = [axis for axis, n in enumerate(shape) if n != 1]

        def index_of(index):
            rest = iter(places)
            return [np.int64(0) if n == 1 else index[next(rest)] for n in inner]

        return [Large(shape, x.dtype, lambda index: x.at(index_of(index)), cheap=x.cheap, depth=x.depth + 1)]
    return [in_memory(code, made(code, inner, x.dtype, x.at).pointer, shape, x.dtype)]


@rule("transpose")
def _transpose(code, params, arrays, kinds, results):
    order = params["permutation"]
    back = np.argsort(order)
    return [arranged(code, arrays[0], kinds[0], results[0], lambda i: [i[k] for k in back], lambda x: np.transpose(x, order))]


@rule("rev")
def _rev(code, params, arrays, kinds, results):
    axes, shape = params["dimensions"], results[0].shape

    def index_of(index):
        return [of(code, "sub", [np.int64(shape[a] - 1), i], np.int64) if a in axes else i for a, i in enumerate(index)]

    return [arranged(code, arrays[0], kinds[0], results[0], index_of, lambda x: np.flip(x, axes))]


@rule("slice")
def _slice(code, params, arrays, kinds, results):
    starts, limits = params["start_indices"], params["limit_indices"]
    strides = params["strides"] or (1,) * len(starts)
    x = arrays[0]

    def index_of(index):
        triples = zip(index, starts, strides, strict=True)
        return [code.whole_numbers("add", code.whole_numbers("mul", i, np.int64(k)), np.int64(a)) for i, a, k in triples]

    return [arranged(code, x, kinds[0], results[0], index_of, lambda x: x[tuple(map(slice, starts, limits, strides))])]


@rule("iota")
def _iota(code, params, arrays, kinds, results):
    shape, dtype, axis = results[0].shape, results[0].dtype, params["dimension"]
    if results[0].size <= WIDE:
        return [filled([np.asarray(index[axis], dtype)[()] for index in np.ndindex(*shape)], shape)]
    return [Large(shape, dtype, lambda index: converted(code, index[axis], np.int64, dtype), cheap=True)]


@rule("concatenate")
def _concatenate(code, params, arrays, kinds, results):
    axis, result = params["dimension"], results[0]
    if result.size <= code.sizes.small or (result.size <= WIDE and all(map(is_small, arrays))):
        return [np.concatenate([small(code, x) for x in arrays], axis)]
    pointer, first = code.places[0] or code.room(result.size, result.dtype), 0
    for x, kind in zip(arrays, kinds, strict=True):
        if kind.size:
            _write_part(code, x, kind, pointer, result, axis, np.int64(first))
        first += kind.shape[axis]
    return [in_memory(code, pointer, result.shape, result.dtype)]


def _write_part(code, x, kind, pointer, result, axis, first):
    """Write an array to a part of a larger one, from ``first`` on along an axis."""
    if math.prod(result.shape[:axis]) == 1:
        skipped = code.whole_numbers("mul", first, np.int64(math.prod(result.shape[axis + 1 :])))
        written(code, x, kind.dtype, code.place(pointer, skipped, kind.dtype))
        return
    whole = large(code, x, kind.dtype)

    def one(index):
        place = [code.whole_numbers("add", i, first) if a == axis else i for a, i in enumerate(index)]
        code.store(whole.at(index), pointer, code.offset(place, result.shape), kind.dtype)

    code.nest(kind.shape, one)


@rule("stack")
def _stack(code, params, arrays, kinds, results):
    axis = params.get("axis", params.get("dimension", 0))
    wider = [jax.ShapeDtypeStruct((*k.shape[:axis], 1, *k.shape[axis:]), k.dtype) for k in kinds]
    parts = [_reshape(code, {}, [x], [k], [w])[0] for x, k, w in zip(arrays, kinds, wider, strict=True)]
    return _concatenate(code, {"dimension": axis}, parts, wider, results)


@rule("unstack")
def _unstack(code, params, arrays, kinds, results):
    axis, x = params.get("axis", params.get("dimension", 0)), arrays[0]
    if is_small(x):
        return list(np.moveaxis(x, axis, 0)) if x.ndim > 1 else [scalar(entry) for entry in x]
    x, out = settled(code, x), []
    for k, result in enumerate(results):
        part = Large(result.shape, x.dtype, lambda i, k=k: x.at([*i[:axis], np.int64(k), *i[axis:]]), cheap=x.cheap, depth=x.depth + 1)
        out.append(small(code, part) if result.size <= code.sizes.small else part)
    return out


@rule("split")
def _split(code, params, arrays, kinds, results):
    axis, first, out = params["axis"], 0, []
    for result in results:
        start = [first if a == axis else 0 for a in range(len(result.shape))]
        limits = [a + n for a, n in zip(start, result.shape, strict=True)]
        part = {"start_indices": start, "limit_indices": limits, "strides": None}
        out += _slice(code, part, arrays, kinds, [result])
        first += result.shape[axis]
    return out


@rule("pad")
def _pad(code, params, arrays, kinds, results):
    x, shape, config = arrays[0], results[0].shape, params["padding_config"]
    value = small(code, arrays[1])[()]
    if results[0].size <= code.sizes.small and is_small(x):
        out = np.empty(shape, object)
        for index in np.ndindex(*shape):
            out[index] = value
        for index in np.ndindex(*x.shape):
            place = tuple(low + k * (1 + inside) for k, (low, _, inside) in zip(index, config, strict=True))
            if all(0 <= k < n for k, n in zip(place, shape, strict=True)):
                out[place] = x[index]
        return [out]
    dtype, whole = kinds[0].dtype, large(code, x, kinds[0].dtype)

    def at(index):
        place, there = [], np.True_
        for i, n, (low, high, inside) in zip(index, kinds[0].shape, config, strict=True):
            if low or high or inside:
                i = of(code, "sub", [i, np.int64(low)], np.int64)
                there = of(code, "and", [there, of(code, "ge", [i, np.int64(0)], np.int64, bool)], bool)
                if inside:
                    between = of(code, "rem", [i, np.int64(1 + inside)], np.int64)
                    there = of(code, "and", [there, of(code, "eq", [between, np.int64(0)], np.int64, bool)], bool)
                    i = of(code, "div", [i, np.int64(1 + inside)], np.int64)
                there = of(code, "and", [there, of(code, "lt", [i, np.int64(n)], np.int64, bool)], bool)
                i = clamped(code, i, np.int64, max(n - 1, 0))
            place.append(i)
        return chosen(code, there, whole.at(place), value, dtype)

    out = Large(shape, dtype, lambda index: value, cheap=True) if 0 in kinds[0].shape else made(code, shape, dtype, at)
    return [small(code, out) if results[0].size <= code.sizes.small else out]


def unraveled(code, k, shape):
    """The index of the k-th entry of an array; a number has the empty one."""
    if not shape:
        return []
    index = []
    for n in reversed(shape[1:]):
        index.append(of(code, "rem", [k, np.int64(n)], np.uint64) if not is_known(k) else np.int64(k % n))
        k = of(code, "div", [k, np.int64(n)], np.uint64) if not is_known(k) else np.int64(k // n)
    return [k, *reversed(index)]


def chosen(code, condition, yes, no, dtype):
    """``yes`` where the condition holds, else ``no``."""
    return operate(code, "select_n", [condition, no, yes], [bool, dtype, dtype], dtype, {})


@rule("empty", "empty2")
def _empty(code, params, arrays, kinds, results):
    zero = results[0].dtype.type(0)
    if results[0].size <= code.sizes.small:
        return [filled([zero] * results[0].size, results[0].shape)]
    return [Large(results[0].shape, results[0].dtype, lambda index: zero, cheap=True)]


@rule("platform_index")
def _platform(code, params, arrays, kinds, results):
    return [scalar(np.int32(0))]


# jaxnsd's own primitives.


@rule("jaxnsd_entries")
def _entries(code, params, arrays, kinds, results):
    shape, x = params["shape"], arrays[0]
    if kinds[0].size <= code.sizes.small or is_small(x):
        x = small(code, x).reshape(results[0].size, -1)
        return [filled(list(column), results[0].shape) for column in x.T]
    x = settled(code, x)
    return [Large(results[0].shape, x.dtype, lambda index, at=at: x.at([*index, *map(np.int64, at)])) for at in np.ndindex(*shape)]


@rule("jaxnsd_joined")
def _joined(code, params, arrays, kinds, results):
    if results[0].size <= code.sizes.small or kinds[0].size == 1:
        columns = np.stack([small(code, x).ravel() for x in arrays], axis=1)
        return [columns.reshape(results[0].shape)]
    wider = [jax.ShapeDtypeStruct((*k.shape, 1), k.dtype) for k in kinds]
    parts = [_reshape(code, {}, [x], [k], [w])[0] for x, k, w in zip(arrays, kinds, wider, strict=True)]
    joined = jax.ShapeDtypeStruct((*kinds[0].shape, len(arrays)), kinds[0].dtype)
    x = _concatenate(code, {"dimension": len(kinds[0].shape)}, parts, wider, [joined])[0]
    return _reshape(code, {}, [x], [joined], results)


@rule("jaxnsd_pick")
def _pick(code, params, arrays, kinds, results):
    places = np.asarray(params["places"], np.int64)
    if is_small(arrays[0]):
        return [arrays[0][places]]
    whole = settled(code, arrays[0])
    table = in_memory(code, code.table(places, np.int64), places.shape, np.int64)
    out = made(code, results[0].shape, whole.dtype, lambda index: whole.at([table.at(index[:1]), *index[1:]]))
    return [small(code, out) if results[0].size <= code.sizes.small else out]


@rule("jaxnsd_spread")
def _spread(code, params, arrays, kinds, results):
    dtype, shape = kinds[0].dtype, results[0].shape
    if max(kinds[0].size, results[0].size) > code.sizes.small:
        return [_spread_by_loops(code, params["places"], arrays[0], kinds[0], results[0])]
    x, out = small(code, arrays[0]), filled([dtype.type(0)] * results[0].size, shape)
    for k, place in enumerate(params["places"]):
        for index in np.ndindex(*x.shape[1:]):
            out[(place, *index)] = of(code, "add", [out[(place, *index)], x[(k, *index)]], dtype)
    return [out]


def _spread_by_loops(code, places, x, kind, result):
    x, dtype, pointer = large(code, x, kind.dtype), kind.dtype, code.room(result.size, kind.dtype)
    table = in_memory(code, code.table(places, np.int64), (len(places),), np.int64)
    code.nest(result.shape, lambda index: code.store(dtype.type(0), pointer, code.offset(index, result.shape), dtype))

    def one(index):
        at = code.offset([table.at(index[:1]), *index[1:]], result.shape)
        code.store(of(code, "add", [code.load(pointer, at, dtype), x.at(index)], dtype), pointer, at, dtype)

    code.nest(kind.shape, one)
    out = in_memory(code, pointer, result.shape, dtype)
    return small(code, out) if result.size <= code.sizes.small else out


@rule("jaxnsd_cross")
def _cross(code, params, arrays, kinds, results):
    dtype, shape = results[0].dtype, results[0].shape

    def three(a, b):
        for k in range(3):
            i, j = (k + 1) % 3, (k + 2) % 3
            products = [of(code, "mul", [a[p], b[q]], dtype) for p, q in ((i, j), (j, i))]
            yield of(code, "sub", products, dtype)

    if results[0].size <= code.sizes.small:
        a, b = (small(code, x).reshape(-1, 3) for x in arrays)
        return [filled([entry for pair in zip(a, b, strict=True) for entry in three(*pair)], shape)]
    whole, pointer = [settled(code, large(code, x, dtype)) for x in arrays], code.room(results[0].size, dtype)

    def row(index):
        a, b = ([x.at([*index, np.int64(k)]) for k in range(3)] for x in whole)
        for k, entry in enumerate(three(a, b)):
            code.store(entry, pointer, code.offset([*index, np.int64(k)], shape), dtype)

    code.nest(shape[:-1], row)
    return [in_memory(code, pointer, shape, dtype)]


def clamped(code, index, dtype, limit):
    """A start index, of 64 bits, between 0 and ``limit``."""
    index = converted(code, index, dtype, np.int64)
    if is_known(index):
        return np.int64(np.clip(index, 0, limit))
    return of(code, "min", [of(code, "max", [index, np.int64(0)], np.int64), np.int64(limit)], np.int64)


def apply(code, name, params, arrays, kinds, results):
    """What a primitive leads to; None if there is no rule."""
    if name in RULES:
        return RULES[name](code, params, arrays, kinds, results)
    if name in ELEMENTWISE:
        if len(results) > 1:  # optimization_barrier
            return list(arrays)
        return [elementwise(code, name, params, arrays, kinds, results[0])]
    return None
