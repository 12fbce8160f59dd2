"""What JAX's operations on arrays become: one rule for each, ``rule(code, params, arrays, kinds, results)``, a list of arrays.

``kinds`` and ``results`` are shapes and dtypes of operands and results. To add an operation on numbers, see `numbers`; another one is a
function here, under its name in `RULES`.
"""

import itertools
import math

import jax
import numpy as np

from .arrays import SMALL, Large, filled, in_memory, is_small, large, made, of_known, scalar, small, written
from .code import UnknownError, is_known
from .numbers import ELEMENTWISE, converted, operate

RULES = {}

#: Multiplications up to which a product of matrices is written out.
PRODUCTS = 1 << 11

#: Entries up to which what only arranges the entries of small arrays is small.
WIDE = 1 << 14


def written_out(name, size, columns):
    """Whether an operation on small arrays is written out: where it is small, or nearly all that it computes is known.

    columns: the entries of the operands, in the order of the results'
    """
    if size <= SMALL:
        return True
    if size > WIDE:
        return False
    unknown = np.logical_or.reduce([_UNKNOWN(column) for column in columns])
    if name in ("mul", "and"):
        unknown &= np.logical_and.reduce([_NOT_ZERO(column) for column in columns])
    return np.count_nonzero(unknown) <= SMALL


_UNKNOWN = np.frompyfunc(lambda entry: not is_known(entry), 1, 1)
_NOT_ZERO = np.frompyfunc(lambda entry: not (is_known(entry) and entry == 0), 1, 1)


def rule(*names):
    """Register the rule of some primitives."""

    def register(function):
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def of(code, name, entries, dtype, result=None):
    """One operation on entries of one dtype."""
    return operate(code, name, entries, [dtype] * len(entries), dtype if result is None else result, {})


def elementwise(code, name, params, arrays, kinds, result):
    """Operations of one entry each."""
    shape, dtype, dtypes = result.shape, result.dtype, [kind.dtype for kind in kinds]
    columns = [np.broadcast_to(x, shape).ravel() for x in arrays] if all(map(is_small, arrays)) else None
    if result.size <= SMALL or (columns and written_out(name, result.size, columns)):
        columns = columns or [np.broadcast_to(small(code, x), shape).ravel() for x in arrays]
        return filled([operate(code, name, list(entries), dtypes, dtype, params) for entries in zip(*columns, strict=True)], shape)
    whole = [large(code, x, kind.dtype) for x, kind in zip(arrays, kinds, strict=True)]

    def at(index):
        # Newer versions of JAX broadcast axes of one entry inside of an operation.
        own = [[np.int64(0) if n == 1 else i for i, n in zip(index, x.shape, strict=False)] for x in whole]
        return operate(code, name, [x.at(i) for x, i in zip(whole, own, strict=True)], dtypes, dtype, params)

    if all(x.cheap for x in whole):
        return Large(shape, dtype, at, cheap=True)
    return made(code, shape, dtype, at)


def arranged(code, x, kind, result, index_of, arrange):
    """What shows entries in another order: of small arrays by ``arrange``, of large ones a view that reads at ``index_of(index)``."""
    if is_small(x) and result.size <= WIDE:
        return arrange(x)
    whole = large(code, x, kind.dtype)
    out = Large(result.shape, kind.dtype, lambda index: whole.at(index_of(index)), cheap=whole.cheap)
    return small(code, out) if result.size <= SMALL else out


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

        return [Large(shape, x.dtype, lambda index: x.at(index_of(index)), cheap=x.cheap)]
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
    if result.size <= SMALL or (result.size <= WIDE and all(map(is_small, arrays))):
        return [np.concatenate([small(code, x) for x in arrays], axis)]
    pointer, first = code.room(result.size, result.dtype), 0
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
    parts = [x.reshape((*k.shape[:axis], 1, *k.shape[axis:])) if is_small(x) else x for x, k in zip(arrays, kinds, strict=True)]
    if not all(map(is_small, parts)):
        raise UnknownError("stack of large arrays")
    wider = [jax.ShapeDtypeStruct((*k.shape[:axis], 1, *k.shape[axis:]), k.dtype) for k in kinds]
    return _concatenate(code, {"dimension": axis}, parts, wider, results)


@rule("unstack")
def _unstack(code, params, arrays, kinds, results):
    axis = params.get("axis", params.get("dimension", 0))
    x = small(code, arrays[0]) if kinds[0].size <= SMALL else None
    if x is None:
        raise UnknownError("unstack of a large array")
    return list(np.moveaxis(x, axis, 0)) if x.ndim > 1 else [scalar(entry) for entry in x]


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
    if results[0].size <= SMALL and is_small(x):
        out = np.empty(shape, object)
        for index in np.ndindex(*shape):
            out[index] = value
        for index in np.ndindex(*x.shape):
            place = tuple(low + k * (1 + inside) for k, (low, _, inside) in zip(index, config, strict=True))
            if all(0 <= k < n for k, n in zip(place, shape, strict=True)):
                out[place] = x[index]
        return [out]
    if any(low < 0 or high < 0 or inside for low, high, inside in config):
        raise UnknownError("pad of a large array that cuts or spreads")
    pointer, dtype = code.room(results[0].size, kinds[0].dtype), kinds[0].dtype
    code.nest(shape, lambda index: code.store(value, pointer, code.offset(index, shape), dtype))
    whole = large(code, x, dtype)

    def one(index):
        place = [code.whole_numbers("add", i, np.int64(low)) for i, (low, _, _) in zip(index, config, strict=True)]
        code.store(whole.at(index), pointer, code.offset(place, shape), dtype)

    code.nest(kinds[0].shape, one)
    out = in_memory(code, pointer, shape, dtype)
    return [small(code, out) if results[0].size <= SMALL else out]


_REDUCED = {"reduce_sum": "add", "reduce_max": "max", "reduce_min": "min", "reduce_and": "and", "reduce_or": "or", "reduce_prod": "mul"}


def _neutral(operation, dtype):
    dtype = np.dtype(dtype)
    if operation in ("and", "or"):
        return dtype.type(operation == "and") if dtype.kind == "b" else dtype.type(-1 if operation == "and" else 0)
    if operation in ("add", "mul"):
        return dtype.type(operation == "mul")
    limits = (-np.inf, np.inf) if dtype.kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return dtype.type(limits[operation == "min"])


def _tree(code, operation, entries, dtype):
    """Pairs, then pairs of pairs: short chains, and less rounding."""
    if not entries:
        return _neutral(operation, dtype)
    while len(entries) > 1:
        pairs = [of(code, operation, list(pair), dtype) for pair in zip(entries[::2], entries[1::2], strict=False)]
        entries = pairs + entries[len(pairs) * 2 :]
    return entries[0]


@rule(*_REDUCED)
def _reduce(code, params, arrays, kinds, results, operation):
    axes, kind = params["axes"], kinds[0]
    dtype = kind.dtype
    kept = [a for a in range(len(kind.shape)) if a not in axes]
    if kind.size <= SMALL or (is_small(arrays[0]) and written_out(operation, kind.size, [arrays[0].ravel()])):
        rows = math.prod(results[0].shape), math.prod(kind.shape[a] for a in axes)
        x = np.transpose(small(code, arrays[0]), (*kept, *axes)).reshape(rows)
        return [filled([_tree(code, operation, list(row), dtype) for row in x], results[0].shape)]
    x, over = large(code, arrays[0], dtype), [kind.shape[a] for a in axes]
    if 0 in over:
        return [large(code, scalar(_neutral(operation, dtype)), dtype)]

    def at(index):
        def body(k, carried):
            inner = _unraveled(code, k, over)
            whole = [None] * len(kind.shape)
            for a, i in (*zip(kept, index, strict=True), *zip(axes, inner, strict=True)):
                whole[a] = i
            return [of(code, operation, [carried[0], x.at(whole)], dtype)]

        return code.count(np.int64(math.prod(over)), [_neutral(operation, dtype)], [dtype], body)[0]

    if results[0].size <= 4:
        return [filled([at([np.int64(i) for i in index]) for index in np.ndindex(*results[0].shape)], results[0].shape)]
    return [made(code, results[0].shape, dtype, at)]


def _unraveled(code, k, shape):
    """The index of the k-th entry of an array."""
    index = []
    for n in reversed(shape[1:]):
        index.append(of(code, "rem", [k, np.int64(n)], np.uint64) if not is_known(k) else np.int64(k % n))
        k = of(code, "div", [k, np.int64(n)], np.uint64) if not is_known(k) else np.int64(k // n)
    return [k, *reversed(index)]


@rule("cumsum", "cumprod", "cummax", "cummin")
def _cumulative(code, params, arrays, kinds, results, name):
    operation = {"cumsum": "add", "cumprod": "mul", "cummax": "max", "cummin": "min"}[name]
    if kinds[0].size > SMALL:
        raise UnknownError(f"{name} of a large array")
    x = np.moveaxis(small(code, arrays[0]), params["axis"], 0).copy()
    x = x[::-1] if params["reverse"] else x
    for k in range(1, len(x)):
        for index in np.ndindex(*x.shape[1:]):
            x[(k, *index)] = of(code, operation, [x[(k - 1, *index)], x[(k, *index)]], kinds[0].dtype)
    return [np.moveaxis(x[::-1] if params["reverse"] else x, 0, params["axis"])]


@rule("argmax", "argmin")
def _extreme(code, params, arrays, kinds, results, name):
    if kinds[0].size > SMALL:
        raise UnknownError(f"{name} of a large array")
    (axis,), dtype, number = params["axes"], kinds[0].dtype, results[0].dtype
    x, out = np.moveaxis(small(code, arrays[0]), axis, 0), np.empty(results[0].shape, object)
    for index in np.ndindex(*out.shape):
        best, at = x[(0, *index)], number.type(0)
        for k in range(1, len(x)):
            other = x[(k, *index)]
            better = of(code, "gt" if name == "argmax" else "lt", [other, best], dtype, bool)
            if dtype.kind == "f":  # not a number counts as the extreme one
                nan = of(code, "and", [of(code, "ne", [other, other], dtype, bool), of(code, "eq", [best, best], dtype, bool)], bool)
                better = of(code, "or", [better, nan], bool)
            best, at = chosen(code, better, other, best, dtype), chosen(code, better, number.type(k), at, number)
        out[index] = at
    return [out]


def chosen(code, condition, yes, no, dtype):
    """``yes`` where the condition holds, else ``no``."""
    return operate(code, "select_n", [condition, no, yes], [bool, dtype, dtype], dtype, {})


@rule("dot_general")
def _product(code, params, arrays, kinds, results):
    (over_a, over_b), (batch_a, batch_b) = params["dimension_numbers"]
    dtype, shape = results[0].dtype, results[0].shape
    free_a = [i for i in range(len(kinds[0].shape)) if i not in (*over_a, *batch_a)]
    free_b = [i for i in range(len(kinds[1].shape)) if i not in (*over_b, *batch_b)]
    terms = math.prod(kinds[0].shape[i] for i in over_a)
    n = len(batch_a)
    sizes = max(kinds[0].size, kinds[1].size, results[0].size)
    if sizes <= SMALL or (sizes <= WIDE and all(map(is_small, arrays))):
        a, b = (
            np.transpose(small(code, x), (*batch, *free, *over)).reshape((*(kind.shape[i] for i in (*batch, *free)), terms))
            for x, kind, batch, free, over in zip(arrays, kinds, (batch_a, batch_b), (free_a, free_b), (over_a, over_b), strict=True)
        )
        if n or sizes <= SMALL // 8 or not terms or _products(a.reshape(-1, terms), b.reshape(-1, terms)) <= PRODUCTS:
            return [_sums_of_products(code, a, b, kinds, dtype, shape, n, len(free_a))]
    whole = [large(code, x, kind.dtype) for x, kind in zip(arrays, kinds, strict=True)]
    over = [kinds[0].shape[i] for i in over_a]

    def at(index):
        lead, left, right = index[:n], index[n : n + len(free_a)], index[n + len(free_a) :]

        def body(k, carried):
            inner = _unraveled(code, k, over)
            factors = []
            for x, kind, batch, free, axes, own in zip(
                whole, kinds, (batch_a, batch_b), (free_a, free_b), (over_a, over_b), (left, right), strict=True
            ):
                place = [None] * len(kind.shape)
                for a, i in itertools.chain(zip(batch, lead, strict=True), zip(free, own, strict=True), zip(axes, inner, strict=True)):
                    place[a] = i
                factors.append(converted(code, x.at(place), kind.dtype, dtype))
            return [of(code, "add", [carried[0], of(code, "mul", factors, dtype)], dtype)]

        return code.count(np.int64(terms), [dtype.type(0)], [dtype], body)[0] if terms else dtype.type(0)

    out = made(code, shape, dtype, at)
    return [small(code, out) if results[0].size <= SMALL else out]


def _products(a, b):
    """Products of two matrices, row by row, without those with known zeros."""
    a, b = (_NOT_ZERO(x).astype(float) for x in (a, b))
    return np.sum(a @ b.T)


def _sums_of_products(code, a, b, kinds, dtype, shape, n, free_a):
    """A product written out: of arrays whose first ``n`` axes are shared and whose last ones are summed over."""
    out = np.empty(shape, object)
    for index in np.ndindex(*shape):
        left = a[(*index[:n], *index[n : n + free_a])]
        right = b[(*index[:n], *index[n + free_a :])]
        pairs = [
            of(code, "mul", [converted(code, x, kinds[0].dtype, dtype), converted(code, y, kinds[1].dtype, dtype)], dtype)
            for x, y in zip(left, right, strict=True)
        ]
        out[index] = _in_order(code, pairs, dtype)
    return out


def _in_order(code, entries, dtype):
    """A sum from the first term to the last: products are contracted with it."""
    total = dtype.type(0)
    for entry in entries:
        total = of(code, "add", [total, entry], dtype)
    return total


def _clamped(code, index, dtype, limit):
    """A start index, of 64 bits, between 0 and ``limit``."""
    index = converted(code, index, dtype, np.int64)
    if is_known(index):
        return np.int64(np.clip(index, 0, limit))
    return of(code, "min", [of(code, "max", [index, np.int64(0)], np.int64), np.int64(limit)], np.int64)


@rule("dynamic_slice")
def _dynamic_slice(code, params, arrays, kinds, results):
    sizes, shape = params["slice_sizes"], kinds[0].shape
    limits = [n - k for n, k in zip(shape, sizes, strict=True)]
    starts = [_clamped(code, small(code, x)[()], kind.dtype, m) for x, kind, m in zip(arrays[1:], kinds[1:], limits, strict=True)]

    def index_of(index):
        return [code.whole_numbers("add", a, i) for a, i in zip(starts, index, strict=True)]

    if all(map(is_known, starts)):
        part = tuple(slice(int(a), int(a) + k) for a, k in zip(starts, sizes, strict=True))
        return [arranged(code, arrays[0], kinds[0], results[0], index_of, lambda x: x[part])]
    whole = large(code, arrays[0], kinds[0].dtype)
    out = Large(results[0].shape, kinds[0].dtype, lambda index: whole.at(index_of(index)), cheap=whole.cheap)
    return [small(code, out) if results[0].size <= SMALL else out]


@rule("dynamic_update_slice")
def _dynamic_update_slice(code, params, arrays, kinds, results):
    x, update, shape, dtype = arrays[0], arrays[1], kinds[0].shape, kinds[0].dtype
    limits = [n - k for n, k in zip(shape, kinds[1].shape, strict=True)]
    starts = [_clamped(code, small(code, i)[()], kind.dtype, m) for i, kind, m in zip(arrays[2:], kinds[2:], limits, strict=True)]
    if all(map(is_known, starts)) and results[0].size <= SMALL:
        out = small(code, x).copy()
        out[tuple(slice(int(a), int(a) + k) for a, k in zip(starts, kinds[1].shape, strict=True))] = small(code, update)
        return [out]
    pointer = code.room(results[0].size, dtype)
    written(code, x, dtype, pointer)
    whole = large(code, update, dtype)

    def one(index):
        place = [code.whole_numbers("add", a, i) for a, i in zip(starts, index, strict=True)]
        code.store(whole.at(index), pointer, code.offset(place, shape), dtype)

    code.nest(kinds[1].shape, one)
    out = in_memory(code, pointer, shape, dtype)
    return [small(code, out) if results[0].size <= SMALL else out]


@rule("gather")
def _gather(code, params, arrays, kinds, results):
    numbers, sizes, shape = params["dimension_numbers"], params["slice_sizes"], kinds[0].shape
    if "FILL" in str(params.get("mode")).upper():
        raise UnknownError("gather that fills")
    if results[0].size > SMALL:
        raise UnknownError("gather of a large array")
    where, of_batch = small(code, arrays[1]), getattr(numbers, "operand_batching_dims", ())
    beside = getattr(numbers, "start_indices_batching_dims", ())
    out = np.empty(results[0].shape, object)
    lead = [i for i in range(out.ndim) if i not in numbers.offset_dims]
    inner = [a for a in range(len(shape)) if a not in numbers.collapsed_slice_dims and a not in of_batch]
    for index in np.ndindex(*out.shape):
        batch, place = tuple(index[i] for i in lead), [np.int64(0)] * len(shape)
        for axis, k in zip(of_batch, beside, strict=True):
            place[axis] = np.int64(batch[k])
        for axis, k in zip(inner, numbers.offset_dims, strict=True):
            place[axis] = np.int64(index[k])
        for k, axis in enumerate(numbers.start_index_map):
            start = _clamped(code, where[(*batch, k)], kinds[1].dtype, shape[axis] - sizes[axis])
            place[axis] = code.whole_numbers("add", start, place[axis])
        if all(map(is_known, place)) and is_small(arrays[0]):
            out[index] = arrays[0][tuple(int(i) for i in place)]
        else:
            out[index] = large(code, arrays[0], kinds[0].dtype).at(place)
    return [out]


@rule("scatter", "scatter-add")
def _scatter(code, params, arrays, kinds, results, name):
    """At places that are known: a window that does not fit is left out, or moved inside, as the mode says."""
    numbers, shape = params["dimension_numbers"], kinds[0].shape
    if max(kind.size for kind in kinds) > SMALL:
        raise UnknownError(f"{name} of a large array")
    out, where, updates = small(code, arrays[0]).copy(), small(code, arrays[1]), small(code, arrays[2])
    if not all(map(is_known, where.ravel())):
        raise UnknownError(f"{name} at places that are computed")
    of_batch, beside = numbers.operand_batching_dims, numbers.scatter_indices_batching_dims
    inner = [a for a in range(len(shape)) if a not in numbers.inserted_window_dims and a not in of_batch]
    lead = [i for i in range(updates.ndim) if i not in numbers.update_window_dims]
    size = dict.fromkeys(range(len(shape)), 1) | {a: updates.shape[i] for a, i in zip(inner, numbers.update_window_dims, strict=True)}
    for index in np.ndindex(*updates.shape):
        batch, place, fits = tuple(index[i] for i in lead), [0] * len(shape), True
        for axis, k in zip(of_batch, beside, strict=True):
            place[axis] = batch[k]
        for k, axis in enumerate(numbers.scatter_dims_to_operand_dims):
            start, last = int(where[(*batch, k)]), shape[axis] - size[axis]
            fits &= "CLIP" in str(params["mode"]).upper() or 0 <= start <= last
            place[axis] = min(max(start, 0), last)
        for axis, i in zip(inner, numbers.update_window_dims, strict=True):
            place[axis] += index[i]
        if fits:
            at = tuple(place)
            out[at] = updates[index] if name == "scatter" else of(code, "add", [out[at], updates[index]], kinds[0].dtype)
    return [out]


@rule("empty", "empty2")
def _empty(code, params, arrays, kinds, results):
    zero = results[0].dtype.type(0)
    if results[0].size <= SMALL:
        return [filled([zero] * results[0].size, results[0].shape)]
    return [Large(results[0].shape, results[0].dtype, lambda index: zero, cheap=True)]


@rule("platform_index")
def _platform(code, params, arrays, kinds, results):
    return [scalar(np.int32(0))]


# jaxnsd's own primitives.


@rule("jaxnsd_entries")
def _entries(code, params, arrays, kinds, results):
    return [scalar(entry) for entry in small(code, arrays[0]).ravel()]


@rule("jaxnsd_joined")
def _joined(code, params, arrays, kinds, results):
    return [filled([small(code, x)[()] for x in arrays], results[0].shape)]


@rule("jaxnsd_pick")
def _pick(code, params, arrays, kinds, results):
    places = np.asarray(params["places"], int)
    if max(kinds[0].size, results[0].size) > SMALL:
        raise UnknownError("pick of a large array")
    return [small(code, arrays[0])[places]]


@rule("jaxnsd_spread")
def _spread(code, params, arrays, kinds, results):
    if max(kinds[0].size, results[0].size) > SMALL:
        raise UnknownError("spread of a large array")
    x, dtype = small(code, arrays[0]), kinds[0].dtype
    out = filled([dtype.type(0)] * results[0].size, results[0].shape)
    for k, place in enumerate(params["places"]):
        for index in np.ndindex(*x.shape[1:]):
            out[(place, *index)] = of(code, "add", [out[(place, *index)], x[(k, *index)]], dtype)
    return [out]


@rule("jaxnsd_cross")
def _cross(code, params, arrays, kinds, results):
    if results[0].size > SMALL:
        raise UnknownError("cross of large arrays")
    a, b = (small(code, x).reshape(-1, 3) for x in arrays)
    dtype, out = results[0].dtype, np.empty((len(a), 3), object)
    for row in range(len(a)):
        for k in range(3):
            i, j = (k + 1) % 3, (k + 2) % 3
            products = [of(code, "mul", [a[row, p], b[row, q]], dtype) for p, q in ((i, j), (j, i))]
            out[row, k] = of(code, "sub", products, dtype)
    return [out.reshape(results[0].shape)]


def known_constant(x):
    """A constant of a jaxpr."""
    x = np.asarray(x)
    if x.size > SMALL:
        raise UnknownError("a large constant")
    return of_known(x)


def apply(code, name, params, arrays, kinds, results):
    """What a primitive leads to; None if there is no rule."""
    if name in RULES:
        function = RULES[name]
        if name in _REDUCED:
            return function(code, params, arrays, kinds, results, _REDUCED[name])
        if name in ("argmax", "argmin", "scatter", "scatter-add") or name.startswith("cum"):
            return function(code, params, arrays, kinds, results, name)
        return function(code, params, arrays, kinds, results)
    if name in ELEMENTWISE:
        if len(results) > 1:  # optimization_barrier
            return list(arrays)
        return [elementwise(code, name, params, arrays, kinds, results[0])]
    return None
