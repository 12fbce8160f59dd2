"""Products of matrices: written out where they are small or sparse, else in blocks of vectors."""

import itertools
import math

import numpy as np

from .arrays import WIDE, in_memory, is_small, kinds_of_row, large, made, settled, small
from .numbers import converted
from .rules import NOT_ZERO, of, rule, unraveled

#: Sums of products that grow side by side: registers do not hold more of them, and one after the other each would wait for itself.
SUMS = 8


@rule("dot_general")
def _product(code, params, arrays, kinds, results):
    (over_a, over_b), (batch_a, batch_b) = params["dimension_numbers"]
    dtype, shape = results[0].dtype, results[0].shape
    free_a = [i for i in range(len(kinds[0].shape)) if i not in (*over_a, *batch_a)]
    free_b = [i for i in range(len(kinds[1].shape)) if i not in (*over_b, *batch_b)]
    terms = math.prod(kinds[0].shape[i] for i in over_a)
    n = len(batch_a)
    sizes = max(kinds[0].size, kinds[1].size, results[0].size)
    if sizes <= code.sizes.small or (sizes <= WIDE and all(map(is_small, arrays))):
        a, b = (
            np.transpose(small(code, x), (*batch, *free, *over)).reshape((*(kind.shape[i] for i in (*batch, *free)), terms))
            for x, kind, batch, free, over in zip(arrays, kinds, (batch_a, batch_b), (free_a, free_b), (over_a, over_b), strict=True)
        )
        if n or sizes <= code.sizes.small // 8 or not terms or _products(a.reshape(-1, terms), b.reshape(-1, terms)) <= code.sizes.products:
            return [_sums_of_products(code, a, b, kinds, dtype, shape, n, len(free_a))]
    whole = [settled(code, large(code, x, kind.dtype)) for x, kind in zip(arrays, kinds, strict=True)]
    alike = dtype.kind == "f" and all(kind.dtype == dtype for kind in kinds)
    if alike and len(over_a) == 1 and len(free_b) <= 1 and terms and results[0].size:
        out = _in_blocks(code, *whole, params["dimension_numbers"], free_a, free_b, shape)
        return [small(code, out) if results[0].size <= code.sizes.small else out]
    over = [kinds[0].shape[i] for i in over_a]

    def at(index):
        lead, left, right = index[:n], index[n : n + len(free_a)], index[n + len(free_a) :]

        def body(k, carried):
            inner = unraveled(code, k, over)
            factors = []
            for x, kind, batch, free, axes, own in zip(
                whole, kinds, (batch_a, batch_b), (free_a, free_b), (over_a, over_b), (left, right), strict=True
            ):
                place = [None] * len(kind.shape)
                for a, i in itertools.chain(zip(batch, lead, strict=True), zip(free, own, strict=True), zip(axes, inner, strict=True)):
                    place[a] = i
                factors.append(converted(code, x.at(place), kind.dtype, dtype))
            return [of(code, "add", [carried[0], of(code, "mul", factors, dtype)], dtype)]

        return code.passes(terms, [dtype.type(0)], [dtype], body)[0]

    out = made(code, shape, dtype, at)
    return [small(code, out) if results[0].size <= code.sizes.small else out]


def _in_blocks(code, a, b, numbers, free_a, free_b, shape):
    """A product of large matrices: blocks of the result, whose sums grow side by side, those along a row in vector registers."""
    ((over_a,), (over_b,)), (batch_a, batch_b) = numbers
    pointer, dtype, terms, n = code.room(math.prod(shape), a.dtype), a.dtype, a.shape[over_a], len(batch_a)
    lead = [a.shape[i] for i in (*batch_a, *free_a[:-1])]
    rows, columns = a.shape[free_a[-1]] if free_a else 1, b.shape[free_b[0]] if free_b else 1
    in_rows = b.pointer is not None and free_b == [len(b.shape) - 1]
    units = kinds_of_row(code, columns, dtype) if in_rows else [dtype] * columns
    height = min(rows, max(1, SUMS // len(units)))
    per = max(1, SUMS // height)

    def factor(x, batch, free, own, over, k, kind=dtype):
        place = dict(zip((*batch, *free, over), (*own, k), strict=True))
        place = [place[axis] for axis in range(len(x.shape))]
        return x.at(place) if kind == dtype else code.load(x.pointer, code.offset(place, x.shape), kind)

    def block(index, own, first, kinds):
        """The rows ``own``, and columns from ``first`` on, of these kinds."""
        places = list(itertools.accumulate(kinds[:-1], lambda at, kind: code.whole_numbers("add", at, _width(kind)), initial=first))
        of_a = [[*index, r] if free_a else index for r in own]
        of_b = [[*index[:n], c] if free_b else index[:n] for c in places]

        def body(k, sums):
            left = [factor(a, batch_a, free_a, at, over_a, k) for at in of_a]
            right = [factor(b, batch_b, free_b, at, over_b, k, kind) for at, kind in zip(of_b, kinds, strict=True)]
            terms = itertools.product(left, zip(right, kinds, strict=True))
            return [plus_product(code, total, x, y, kind) for total, (x, (y, kind)) in zip(sums, terms, strict=True)]

        all_kinds = kinds * len(own)
        sums = code.passes(terms, [dtype.type(0)] * len(all_kinds), all_kinds, body)
        for total, kind, (at, c) in zip(sums, all_kinds, itertools.product(of_a, places), strict=True):
            code.store(total, pointer, code.offset([*at, c] if free_b else at, shape), kind)

    def strip(index, k, height):
        """Rows from k on, so many."""
        own = [code.whole_numbers("add", k, np.int64(r)) for r in range(height)]
        _parts(code, units, per, lambda first, kinds: block(index, own, first, kinds))

    code.nest(lead, lambda index: _parts(code, [dtype] * rows, height, lambda first, part: strip(index, first, len(part))))
    return in_memory(code, pointer, shape, dtype)


def _width(kind):
    """Entries of a number or a vector."""
    return np.int64(math.prod(kind.shape))


def _parts(code, units, per, body):
    """``body(first, part)`` for parts of so many units, where they begin, counted in entries: a loop over those that are alike."""
    alike, part = units.count(units[0]) // per, units[:per]
    size, first = sum(map(_width, part), np.int64(0)), np.int64(0)

    def one(k, _):
        body(code.whole_numbers("mul", k, size), part)
        return []

    if alike > 1:
        code.count(np.int64(alike), [], [], one)
        first, units = size * np.int64(alike), units[alike * per :]
    while units:
        body(first, units[:per])
        first, units = first + sum(map(_width, units[:per])), units[per:]


def plus_product(code, total, x, y, kind):
    """``total + x y``, of a number x and a number or a vector."""
    if kind.subdtype:
        return code.of_vectors("fadd", total, code.of_vectors("fmul", code.everywhere(x, kind), y, kind), kind)
    return of(code, "add", [total, of(code, "mul", [x, y], kind)], kind)


def _products(a, b):
    """Products of two matrices, row by row, without those with known zeros."""
    a, b = (NOT_ZERO(x).astype(float) for x in (a, b))
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
