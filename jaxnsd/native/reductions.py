"""Sums, products, extreme values and running sums along axes."""

import math

import numpy as np

from .arrays import REGISTER, filled, in_memory, is_small, large, made, scalar, settled, small, vectors
from .code import type_of
from .numbers import converted
from .rules import chosen, of, rule_of_each, unraveled, written_out

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


@rule_of_each(*_REDUCED)
def _reduce(code, params, arrays, kinds, results, name):
    axes, kind, operation = params["axes"], kinds[0], _REDUCED[name]
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
    in_vectors = row and dtype.kind == "f" and operation in _OF_VECTORS
    kind = vectors(min(n, REGISTER), dtype)[0] if in_vectors else dtype
    width = math.prod(kind.shape)
    step = width * PARTS_OF_SUM
    if code.traced or n < 2 * step:
        return code.passes(n, [_neutral(operation, dtype)], [dtype], lambda k, total: [of(code, operation, [total[0], entry(k)], dtype)])[0]
    # Where members go on together, a lane of a vector for each, a vector of entries is so many numbers, in the same order.
    apart = width if code.lanes else 1
    kind = dtype if code.lanes else kind
    units = range(0, step, width // apart)

    def unit(k):
        return code.load(row[0], code.whole_numbers("add", row[1], k), kind) if kind.subdtype else entry(k)

    def add(a, b):
        if not kind.subdtype:
            return of(code, operation, [a, b], kind)
        name = _OF_VECTORS[operation]
        if not name.startswith("llvm"):
            return code.of_vectors(name, a, b, kind)
        function = f"{name}.v{width}f{8 * dtype.itemsize}"
        return code.value(code.called(function, type_of(kind), *((type_of(kind), x.name) for x in (a, b))), kind)

    def body(k, totals):
        first = code.whole_numbers("mul", k, np.int64(step))
        places = [code.whole_numbers("add", first, np.int64(i)) for i in units]
        return [add(total, unit(place)) for total, place in zip(totals, places, strict=True)]

    starts = [unit(np.int64(i)) for i in units]
    totals = code.count(np.int64(n // step), starts, [kind] * len(units), body, start=np.int64(1))
    while len(totals) > apart:
        parts = [totals[i : i + apart] for i in range(0, len(totals), apart)]
        totals = [add(*pair) for one, two in zip(parts[::2], parts[1::2], strict=True) for pair in zip(one, two, strict=True)]
    rest = [entry(np.int64(k)) for k in range(n // step * step, n)]
    if kind.subdtype:
        (total,) = totals
        totals = [code.value(f"extractelement {type_of(kind)} {total.name}, i64 {i}", dtype) for i in range(width)]
    return _tree(code, operation, [*totals, *rest], dtype)


@rule_of_each("cumsum", "cumprod", "cummax", "cummin")
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


@rule_of_each("argmax", "argmin")
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
