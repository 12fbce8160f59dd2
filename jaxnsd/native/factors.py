"""Factors of a matrix, and systems of equations that are solved by them: loops over memory.

Matrices that are too large to be written out, as LAPACK's `getrf` and `trsm`: elimination with row exchanges, and substitution. The
innermost loop goes along a row.
"""

import numpy as np

from .arrays import in_memory, stored, written
from .code import UnknownError
from .numbers import converted
from .rules import chosen, of, rule

ONE = np.int64(1)


def _plus(code, a, b):
    return code.whole_numbers("add", a, b)


def _span(code, start, end, body):
    """``body(k)`` for k from ``start`` up to ``end``, perhaps for none."""

    def one(carried):
        body(carried[0])
        return [_plus(code, carried[0], ONE)]

    code.repeat([start], [np.int64], lambda carried: of(code, "lt", [carried[0], end], np.int64, bool), one)


class _Matrix:
    """A matrix that is read and written row by row, from ``base`` on."""

    def __init__(self, code, pointer, base, columns, dtype):
        self.code, self.pointer, self.base, self.columns, self.dtype = code, pointer, base, columns, dtype

    def _place(self, i, j):
        row = self.code.whole_numbers("mul", i, np.int64(self.columns))
        return _plus(self.code, self.base, _plus(self.code, row, j))

    def get(self, i, j):
        """An entry."""
        return self.code.load(self.pointer, self._place(i, j), self.dtype)

    def set(self, i, j, entry):
        """Write an entry."""
        self.code.store(entry, self.pointer, self._place(i, j), self.dtype)


def _each(code, shape, sizes, body):
    """``body(*bases)`` for every member of a batch: where its matrices, of these numbers of entries, begin."""
    code.nest(shape, lambda index: body(*(code.whole_numbers("mul", code.offset(index, shape), np.int64(size)) for size in sizes)))


@rule("lu")
def _lu(code, params, arrays, kinds, results):
    """``(L and U in one, exchanges, order of the rows)``."""
    (*lead, n, m), dtype = kinds[0].shape, kinds[0].dtype
    if n != m:
        raise UnknownError("factors of a matrix that is not square")
    rooms = [code.room(kind.size, kind.dtype) for kind in results]
    written(code, arrays[0], dtype, rooms[0])
    _each(code, lead, (n * n,), lambda base: _factor(code, rooms, base, n, dtype))
    return [in_memory(code, room, kind.shape, kind.dtype) for room, kind in zip(rooms, results, strict=True)]


def _factor(code, rooms, base, n, dtype):
    """Factor one matrix in place."""
    a = _Matrix(code, rooms[0], base, n, dtype)
    first = base // n if isinstance(base, np.int64) else of(code, "div", [base, np.int64(n)], np.int64)
    exchanges, order = (_Matrix(code, room, first, n, np.dtype(np.int32)) for room in rooms[1:])
    zero, end = np.int64(0), np.int64(n)
    whole = lambda k: converted(code, k, np.int64, np.int32)  # noqa: E731
    _span(code, zero, end, lambda i: order.set(zero, i, whole(i)))

    def exchange(matrix, i, j, k, there):
        """Entries k of the rows i and j change places, of one column ``there`` in the row zero."""
        places = ((zero, i), (zero, j)) if there else ((i, k), (j, k))
        one, other = (matrix.get(*place) for place in places)
        matrix.set(*places[0], other)
        matrix.set(*places[1], one)

    def step(k):
        def larger(carried):
            i, at, most = carried
            size = of(code, "abs", [a.get(i, k)], dtype)
            # What is not a number stays the largest.
            better = of(code, "or", [of(code, "gt", [size, most], dtype, bool), of(code, "ne", [size, size], dtype, bool)], bool)
            return [_plus(code, i, ONE), chosen(code, better, i, at, np.int64), chosen(code, better, size, most, dtype)]

        until = lambda carried: of(code, "lt", [carried[0], end], np.int64, bool)  # noqa: E731
        dtypes = [np.int64, np.int64, dtype]
        _, pivot, _ = code.repeat([k, k, dtype.type(-1)], dtypes, until, larger)
        exchanges.set(zero, k, whole(pivot))
        exchange(order, k, pivot, None, True)
        _span(code, zero, end, lambda j: exchange(a, k, pivot, j, False))
        largest, after = a.get(k, k), _plus(code, k, ONE)
        singular = of(code, "eq", [largest, dtype.type(0)], dtype, bool)

        def eliminate(i):
            entry = a.get(i, k)
            factor = chosen(code, singular, entry, of(code, "div", [entry, largest], dtype), dtype)
            a.set(i, k, factor)

            def one(j):
                product = of(code, "mul", [factor, a.get(k, j)], dtype)
                a.set(i, j, of(code, "sub", [a.get(i, j), product], dtype))

            _span(code, after, end, one)

        _span(code, after, end, eliminate)

    _span(code, zero, end, step)


@rule("triangular_solve")
def _triangular_solve(code, params, arrays, kinds, results):
    """The solution of ``A X = B``, or of ``X A = B``, for a triangular A."""
    left, turned = params["left_side"], params["transpose_a"]
    (*lead, rows, columns), dtype, n = kinds[1].shape, kinds[1].dtype, kinds[0].shape[-1]
    room, whole = code.room(results[0].size, dtype), stored(code, arrays[0], kinds[0])
    written(code, arrays[1], dtype, room)
    # X A = B is A^T X^T = B^T.
    lower = params["lower"] != turned if left else params["lower"] == turned
    as_rows = turned != left

    def solve(base, base_a):
        b, a = _Matrix(code, room, base, columns, dtype), _Matrix(code, whole.pointer, base_a, n, dtype)
        entry = (lambda i, k: a.get(i, k)) if as_rows else (lambda i, k: a.get(k, i))
        get = b.get if left else lambda i, j: b.get(j, i)
        put = b.set if left else lambda i, j, x: b.set(j, i, x)
        others = np.int64(columns if left else rows)

        def row(k):
            i = k if lower else of(code, "sub", [np.int64(n - 1), k], np.int64)
            if not params["unit_diagonal"]:
                diagonal = entry(i, i)
                _span(code, np.int64(0), others, lambda j: put(i, j, of(code, "div", [get(i, j), diagonal], dtype)))
            start, end = (_plus(code, i, ONE), np.int64(n)) if lower else (np.int64(0), i)

            def eliminate(m):
                factor = entry(m, i)
                left_over = lambda j: of(code, "sub", [get(m, j), of(code, "mul", [factor, get(i, j)], dtype)], dtype)  # noqa: E731
                _span(code, np.int64(0), others, lambda j: put(m, j, left_over(j)))

            _span(code, start, end, eliminate)

        _span(code, np.int64(0), np.int64(n), row)

    _each(code, lead, (rows * columns, n * n), solve)
    return [in_memory(code, room, results[0].shape, dtype)]
