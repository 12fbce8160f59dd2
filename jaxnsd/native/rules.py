"""What JAX's operations on arrays become: one rule for each, ``rule(code, params, arrays, kinds, results)``, a list of arrays.

``kinds`` and ``results`` are shapes and dtypes of operands and results. To add an operation on numbers, see `numbers`; another one is a
function here, under its name in `RULES`.
"""

import math

import jax
import numpy as np

from .arrays import DEPTH, REGISTER, WIDE, Large, filled, in_memory, is_small, large, made, scalar, settled, small, vectors, written
from .code import is_known, type_of
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
                i = _clamped(code, i, np.int64, max(n - 1, 0))
            place.append(i)
        return chosen(code, there, whole.at(place), value, dtype)

    out = Large(shape, dtype, lambda index: value, cheap=True) if 0 in kinds[0].shape else made(code, shape, dtype, at)
    return [small(code, out) if results[0].size <= code.sizes.small else out]


#: Operations on vectors, those of LLVM that are functions by their names.
_OF_VECTORS = {"add": "fadd", "mul": "fmul", "max": "llvm.maximum", "min": "llvm.minimum"}
#: Parts of a sum over a large array that grow side by side: a power of two.
PARTS_OF_SUM = 4

_REDUCED = {"reduce_sum": "add", "reduce_max": "max", "reduce_min": "min", "reduce_and": "and", "reduce_or": "or", "reduce_prod": "mul"}


def _neutral(operation, dtype):
    dtype = np.dtype(dtype)
    if operation in ("and", "or"):
        return dtype.type(operation == "and") if dtype.kind == "b" else dtype.type(-1 if operation == "and" else 0)
    if operation in ("add", "mul"):
        return dtype.type(operation == "mul")
    if dtype.kind == "b":
        return dtype.type(operation == "min")
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
    if kind.size <= code.sizes.small or (is_small(arrays[0]) and written_out(code, operation, kind.size, [arrays[0].ravel()])):
        rows = math.prod(results[0].shape), math.prod(kind.shape[a] for a in axes)
        x = np.transpose(small(code, arrays[0]), (*kept, *axes)).reshape(rows)
        return [filled([_tree(code, operation, list(row), dtype) for row in x], results[0].shape)]
    x, over = large(code, arrays[0], dtype), [kind.shape[a] for a in axes]
    if 0 in over:
        return [large(code, scalar(_neutral(operation, dtype)), dtype)]

    def at(index):
        def entry(k):
            whole = [None] * len(kind.shape)
            for a, i in (*zip(kept, index, strict=True), *zip(axes, unraveled(code, k, over), strict=True)):
                whole[a] = i
            return x.at(whole)

        in_a_row = x.pointer is not None and kept == list(range(len(kept)))
        row = (x.pointer, code.offset([*index, *[np.int64(0)] * len(axes)], kind.shape)) if in_a_row else None
        return _side_by_side(code, operation, math.prod(over), entry, row, dtype)

    if results[0].size <= 4:
        return [filled([at([np.int64(i) for i in index]) for index in np.ndindex(*results[0].shape)], results[0].shape)]
    return [made(code, results[0].shape, dtype, at)]


def _side_by_side(code, operation, n, entry, row, dtype):
    """All n entries of a large array in one, a sum say: in several parts that grow side by side, as one would wait for itself.

    entry: of a number k
    row:   ``(pointer, place)`` where the entries lie one after the other, and are taken a vector at a time; else None
    """
    kinds = vectors(min(n, REGISTER), dtype)[:1] if row and dtype.kind == "f" and operation in _OF_VECTORS else [dtype]
    kinds = kinds * PARTS_OF_SUM
    width = math.prod(kinds[0].shape)
    step = width * PARTS_OF_SUM
    if code.traced or n < 2 * step:
        return code.passes(n, [_neutral(operation, dtype)], [dtype], lambda k, total: [of(code, operation, [total[0], entry(k)], dtype)])[0]

    def unit(k, kind):
        return code.load(row[0], code.whole_numbers("add", row[1], k), kind) if kind.subdtype else entry(k)

    def add(a, b, kind):
        if not kind.subdtype:
            return of(code, operation, [a, b], kind)
        name = _OF_VECTORS[operation]
        if not name.startswith("llvm"):
            return code.of_vectors(name, a, b, kind)
        function = f"{name}.v{width}f{8 * dtype.itemsize}"
        return code.value(code.called(function, type_of(kind), *((type_of(kind), x.name) for x in (a, b))), kind)

    def body(k, totals):
        first = code.whole_numbers("mul", k, np.int64(step))
        places = [code.whole_numbers("add", first, np.int64(width * i)) for i in range(PARTS_OF_SUM)]
        return [add(total, unit(place, kind), kind) for total, place, kind in zip(totals, places, kinds, strict=True)]

    starts = [unit(np.int64(width * i), kind) for i, kind in enumerate(kinds)]
    totals = code.count(np.int64(n // step), starts, kinds, body, start=np.int64(1))
    while len(totals) > 1:
        totals = [add(a, b, kinds[0]) for a, b in zip(totals[::2], totals[1::2], strict=True)]
    rest = [entry(np.int64(k)) for k in range(n // step * step, n)]
    if width > 1:
        kind, (total,) = type_of(kinds[0]), totals
        totals = [code.value(f"extractelement {kind} {total.name}, i64 {i}", dtype) for i in range(width)]
    return _tree(code, operation, [*totals, *rest], dtype)


def unraveled(code, k, shape):
    """The index of the k-th entry of an array; a number has the empty one."""
    if not shape:
        return []
    index = []
    for n in reversed(shape[1:]):
        index.append(of(code, "rem", [k, np.int64(n)], np.uint64) if not is_known(k) else np.int64(k % n))
        k = of(code, "div", [k, np.int64(n)], np.uint64) if not is_known(k) else np.int64(k // n)
    return [k, *reversed(index)]


@rule("cumsum", "cumprod", "cummax", "cummin")
def _cumulative(code, params, arrays, kinds, results, name):
    operation = {"cumsum": "add", "cumprod": "mul", "cummax": "max", "cummin": "min"}[name]
    if kinds[0].size > code.sizes.small:
        return [_running(code, operation, arrays[0], kinds[0], params["axis"], params["reverse"])]
    x = np.moveaxis(small(code, arrays[0]), params["axis"], 0).copy()
    x = x[::-1] if params["reverse"] else x
    for k in range(1, len(x)):
        for index in np.ndindex(*x.shape[1:]):
            x[(k, *index)] = of(code, operation, [x[(k - 1, *index)], x[(k, *index)]], kinds[0].dtype)
    return [np.moveaxis(x[::-1] if params["reverse"] else x, 0, params["axis"])]


def _running(code, operation, x, kind, axis, reverse):
    """Sums, say, of a large array up to each entry along an axis."""
    shape, dtype, n = kind.shape, kind.dtype, kind.shape[axis]
    x, pointer = large(code, x, dtype), code.room(kind.size, kind.dtype)

    def along(rest):
        def one(k, carried):
            k = of(code, "sub", [np.int64(n - 1), k], np.int64) if reverse else k
            place = [*rest[:axis], k, *rest[axis:]]
            total = of(code, operation, [carried[0], x.at(place)], dtype)
            code.store(total, pointer, code.offset(place, shape), dtype)
            return [total]

        code.count(np.int64(n), [_neutral(operation, dtype)], [dtype], one)

    if kind.size:
        code.nest([*shape[:axis], *shape[axis + 1 :]], along)
    return in_memory(code, pointer, shape, dtype)


@rule("argmax", "argmin")
def _extreme(code, params, arrays, kinds, results, name):
    (axis,), dtype, number, shape = params["axes"], kinds[0].dtype, results[0].dtype, results[0].shape

    def better_of(k, other, at, best):
        """The better one of two, number and value: the first where they are equal; not a number counts as the extreme one."""
        better = of(code, "gt" if name == "argmax" else "lt", [other, best], dtype, bool)
        if dtype.kind == "f":
            nan = of(code, "and", [of(code, "ne", [other, other], dtype, bool), of(code, "eq", [best, best], dtype, bool)], bool)
            better = of(code, "or", [better, nan], bool)
        return chosen(code, better, k, at, number), chosen(code, better, other, best, dtype)

    if kinds[0].size <= code.sizes.small:
        x, out = np.moveaxis(small(code, arrays[0]), axis, 0), np.empty(shape, object)
        for index in np.ndindex(*shape):
            at, best = number.type(0), x[(0, *index)]
            for k in range(1, len(x)):
                at, best = better_of(number.type(k), x[(k, *index)], at, best)
            out[index] = at
        return [out]
    x = settled(code, large(code, arrays[0], dtype))

    n = kinds[0].shape[axis]

    def entry(index):
        def of_row(k):
            return x.at([*index[:axis], k, *index[axis:]])

        def one(k, carried):
            return better_of(converted(code, k, np.int64, number), of_row(k), *carried)

        if code.traced or dtype.kind != "f":
            return code.count(np.int64(n), [number.type(0), of_row(np.int64(0))], [number, dtype], one)[0]
        # The extreme value first, which is not a number if one is none, then where it is.
        row = (x.pointer, code.offset([*index, np.int64(0)], kinds[0].shape)) if x.pointer is not None and axis == len(index) else None
        best = _side_by_side(code, "max" if name == "argmax" else "min", n, of_row, row, dtype)

        def is_not_it(carried):
            other = of_row(carried[0])
            return of(code, "and", [of(code, "ne", [other, best], dtype, bool), of(code, "eq", [other, other], dtype, bool)], bool)

        (k,) = code.repeat([np.int64(0)], [np.int64], is_not_it, lambda carried: [code.whole_numbers("add", carried[0], np.int64(1))])
        return converted(code, k, np.int64, number)

    out = made(code, shape, number, entry)
    return [small(code, out) if results[0].size <= code.sizes.small else out]


def chosen(code, condition, yes, no, dtype):
    """``yes`` where the condition holds, else ``no``."""
    return operate(code, "select_n", [condition, no, yes], [bool, dtype, dtype], dtype, {})


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
    whole = settled(code, large(code, arrays[0], kinds[0].dtype))
    out = Large(results[0].shape, kinds[0].dtype, lambda index: whole.at(index_of(index)), cheap=whole.cheap, depth=whole.depth + 1)
    return [small(code, out) if results[0].size <= code.sizes.small else out]


@rule("dynamic_update_slice")
def _dynamic_update_slice(code, params, arrays, kinds, results):
    x, update, shape, dtype = arrays[0], arrays[1], kinds[0].shape, kinds[0].dtype
    limits = [n - k for n, k in zip(shape, kinds[1].shape, strict=True)]
    starts = [_clamped(code, small(code, i)[()], kind.dtype, m) for i, kind, m in zip(arrays[2:], kinds[2:], limits, strict=True)]
    if all(map(is_known, starts)) and results[0].size <= code.sizes.small:
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
    return [small(code, out) if results[0].size <= code.sizes.small else out]


def _outside(code, places):
    """Whether one of the pairs (start, last one that fits) does not fit."""
    out = np.False_
    for start, last in places:
        low, high = (of(code, name, [start, np.int64(n)], np.int64, bool) for name, n in (("lt", 0), ("gt", last)))
        out = of(code, "or", [out, of(code, "or", [low, high], bool)], bool)
    return out


@rule("gather")
def _gather(code, params, arrays, kinds, results):
    """Windows at given places, moved inside where they do not fit, or filled, as the mode says."""
    numbers, sizes, shape = params["dimension_numbers"], params["slice_sizes"], kinds[0].shape
    dtype, fills = kinds[0].dtype, "FILL" in str(params.get("mode")).upper()
    instead = params.get("fill_value")
    if instead is None:
        instead = np.nan if dtype.kind == "f" else dtype.kind == "b" or (np.iinfo(dtype).min if dtype.kind == "i" else np.iinfo(dtype).max)
    of_batch, beside = getattr(numbers, "operand_batching_dims", ()), getattr(numbers, "start_indices_batching_dims", ())
    lead = [i for i in range(len(results[0].shape)) if i not in numbers.offset_dims]
    inner = [a for a in range(len(shape)) if a not in numbers.collapsed_slice_dims and a not in of_batch]
    where = arrays[1] if is_small(arrays[1]) else settled(code, arrays[1])

    def place_of(index, starts):
        batch, place, fits = [index[i] for i in lead], [np.int64(0)] * len(shape), []
        for axis, k in zip(of_batch, beside, strict=True):
            place[axis] = batch[k]
        for axis, k in zip(inner, numbers.offset_dims, strict=True):
            place[axis] = index[k]
        for k, axis in enumerate(numbers.start_index_map):
            start = converted(code, starts(batch, k), kinds[1].dtype, np.int64)
            fits.append((start, shape[axis] - sizes[axis]))
            place[axis] = code.whole_numbers("add", _clamped(code, start, np.int64, shape[axis] - sizes[axis]), place[axis])
        return place, fits

    def entry(index, starts, read):
        place, fits = place_of(index, starts)
        x = read(place)
        return chosen(code, _outside(code, fits), dtype.type(instead), x, dtype) if fills else x

    if kinds[0].size and results[0].size <= code.sizes.small and kinds[1].size <= code.sizes.small:
        where, out = small(code, where), np.empty(results[0].shape, object)

        def read(place):
            if is_small(arrays[0]) and all(map(is_known, place)):
                return arrays[0][tuple(int(i) for i in place)]
            return large(code, arrays[0], dtype).at(place)

        for index in np.ndindex(*out.shape):
            out[index] = entry([np.int64(i) for i in index], lambda batch, k: where[(*map(int, batch), k)], read)
        return [out]
    whole, where = settled(code, large(code, arrays[0], dtype)), large(code, where, kinds[1].dtype)
    out = made(code, results[0].shape, dtype, lambda index: entry(index, lambda batch, k: where.at([*batch, np.int64(k)]), whole.at))
    return [small(code, out) if results[0].size <= code.sizes.small else out]


_SCATTERED = {"scatter": None, "scatter-add": "add", "scatter-sub": "sub", "scatter-mul": "mul", "scatter-min": "min", "scatter-max": "max"}


@rule(*_SCATTERED)
def _scatter(code, params, arrays, kinds, results, name):
    """Windows at given places: one that does not fit is left out, or moved inside, as the mode says."""
    numbers, shape, dtype, combined = params["dimension_numbers"], kinds[0].shape, kinds[0].dtype, _SCATTERED[name]
    clips = any(mode in str(params["mode"]).upper() for mode in ("CLIP", "PROMISE"))
    of_batch, beside = getattr(numbers, "operand_batching_dims", ()), getattr(numbers, "scatter_indices_batching_dims", ())
    inner = [a for a in range(len(shape)) if a not in numbers.inserted_window_dims and a not in of_batch]
    lead = [i for i in range(len(kinds[2].shape)) if i not in numbers.update_window_dims]
    size = dict.fromkeys(range(len(shape)), 1) | {a: kinds[2].shape[i] for a, i in zip(inner, numbers.update_window_dims, strict=True)}

    def place_of(index, starts):
        batch, place, fits = [index[i] for i in lead], [np.int64(0)] * len(shape), []
        for axis, k in zip(of_batch, beside, strict=True):
            place[axis] = batch[k]
        for k, axis in enumerate(numbers.scatter_dims_to_operand_dims):
            start = converted(code, starts(batch, k), kinds[1].dtype, np.int64)
            fits.append((start, shape[axis] - size[axis]))
            place[axis] = _clamped(code, start, np.int64, shape[axis] - size[axis])
        for axis, i in zip(inner, numbers.update_window_dims, strict=True):
            place[axis] = code.whole_numbers("add", place[axis], index[i])
        return place, np.False_ if clips else _outside(code, fits)

    def new(old, update, outside):
        value = update if combined is None else of(code, combined, [old, update], dtype)
        return chosen(code, outside, old, value, dtype)

    where = arrays[1]
    if max(kind.size for kind in kinds) <= code.sizes.small and all(map(is_known, small(code, where).ravel())):
        out, where, updates = small(code, arrays[0]).copy(), small(code, where), small(code, arrays[2])
        for index in np.ndindex(*updates.shape):
            place, outside = place_of([np.int64(i) for i in index], lambda batch, k: where[(*map(int, batch), k)])
            at = tuple(int(i) for i in place)
            out[at] = new(out[at], updates[index], outside)
        return [out]
    pointer = code.room(results[0].size, dtype)
    written(code, arrays[0], dtype, pointer)
    where, updates = settled(code, large(code, where, kinds[1].dtype)), settled(code, large(code, arrays[2], dtype))

    def one(index):
        place, outside = place_of(index, lambda batch, k: where.at([*batch, np.int64(k)]))
        at = code.offset(place, shape)
        code.store(new(code.load(pointer, at, dtype), updates.at(index), outside), pointer, at, dtype)

    if results[0].size:
        code.nest(kinds[2].shape, one)
    out = in_memory(code, pointer, shape, dtype)
    return [small(code, out) if results[0].size <= code.sizes.small else out]


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


def apply(code, name, params, arrays, kinds, results):
    """What a primitive leads to; None if there is no rule."""
    if name in RULES:
        function = RULES[name]
        if name in _REDUCED:
            return function(code, params, arrays, kinds, results, _REDUCED[name])
        if name in ("argmax", "argmin", *_SCATTERED) or name.startswith("cum"):
            return function(code, params, arrays, kinds, results, name)
        return function(code, params, arrays, kinds, results)
    if name in ELEMENTWISE:
        if len(results) > 1:  # optimization_barrier
            return list(arrays)
        return [elementwise(code, name, params, arrays, kinds, results[0])]
    return None
