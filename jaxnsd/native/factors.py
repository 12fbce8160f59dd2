"""Inverses and factors of a matrix, and systems of equations that are solved by them: loops over memory.

Matrices that are too large to be written out. Up to a few dozen rows their inverse is computed, row after row in vector registers; beyond,
as LAPACK's `getrf` and `trsm`, elimination with row exchanges, and substitution, whose innermost loop goes along a row.
"""

import math

import numpy as np

from .arrays import REGISTER, filled, in_memory, kinds_of_row, small, stored, written
from .code import UnknownError
from .numbers import converted
from .rules import chosen, of, rule

ONE = np.int64(1)

#: Rows up to which an inverse is written out: zeros are seen, and nothing is stored.
WRITTEN = 11


def _plus(code, a, b):
    return code.whole_numbers("add", a, b)


def _span(code, start, end, body):
    """``body(k)`` for k from ``start`` up to ``end``, perhaps for none."""

    def one(carried):
        body(carried[0])
        return [_plus(code, carried[0], ONE)]

    code.repeat([start], [np.int64], lambda carried: of(code, "lt", [carried[0], end], np.int64, bool), one)


def _along(code, start, end, dtype, body):
    """``body(j, kind)`` for the entries of a row from ``start`` up to ``end``: vectors, and then the numbers that are left."""
    wide = kinds_of_row(code, REGISTER, dtype)[0]
    size = np.int64(math.prod(wide.shape))

    def one(carried):
        body(carried[0], wide)
        return [_plus(code, carried[0], size)]

    last = of(code, "sub", [end, size], np.int64)
    (left,) = code.repeat([start], [np.int64], lambda carried: of(code, "le", [carried[0], last], np.int64, bool), one)
    _span(code, left, end, lambda j: body(j, dtype))


def _product(code, x, factor, kind):
    """``factor x``, of numbers or vectors."""
    if not kind.subdtype:
        return of(code, "mul", [x, factor], kind)
    return code.of_vectors("fmul", x, code.everywhere(factor, kind), kind)


def _less(code, x, factor, y, kind):
    """``x - factor y``, of numbers or vectors."""
    product = _product(code, y, factor, kind)
    return code.of_vectors("fsub", x, product, kind) if kind.subdtype else of(code, "sub", [x, product], kind)


def _quotient(code, x, divisor, kind):
    """``x / divisor``, of numbers or vectors."""
    if not kind.subdtype:
        return of(code, "div", [x, divisor], kind)
    return code.of_vectors("fdiv", x, code.everywhere(divisor, kind), kind)


class _Matrix:
    """A matrix that is read and written row by row, from ``base`` on; entries, or with a ``kind`` vectors that begin there."""

    def __init__(self, code, pointer, base, columns, dtype):
        self.code, self.pointer, self.base, self.columns, self.dtype = code, pointer, base, columns, dtype

    def _place(self, i, j):
        row = self.code.whole_numbers("mul", i, np.int64(self.columns))
        return _plus(self.code, self.base, _plus(self.code, row, j))

    def get(self, i, j, kind=None):
        """An entry."""
        return self.code.load(self.pointer, self._place(i, j), kind or self.dtype)

    def set(self, i, j, entry, kind=None):
        """Write an entry."""
        self.code.store(entry, self.pointer, self._place(i, j), kind or self.dtype)


def _largest(code, size, start, end, dtype):
    """Where from ``start`` to before ``end`` the ``size(i)``, at least -1, is the largest; what is not a number is so."""

    def larger(i, carried):
        (at, most), new = carried, size(i)
        better = of(code, "or", [of(code, "gt", [new, most], dtype, bool), of(code, "ne", [new, new], dtype, bool)], bool)
        return [chosen(code, better, i, at, np.int64), chosen(code, better, new, most, dtype)]

    return code.count(end, [start, dtype.type(-2)], [np.int64, dtype], larger, start)[0]


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

    def exchange(matrix, first, second, kind):
        """Entries at two places (row, column), or vectors, change places."""
        one, other = (matrix.get(*place, kind) for place in (first, second))
        matrix.set(*first, other, kind)
        matrix.set(*second, one, kind)

    def step(k):
        pivot = _largest(code, lambda i: of(code, "abs", [a.get(i, k)], dtype), k, end, dtype)
        exchanges.set(zero, k, whole(pivot))
        exchange(order, (zero, k), (zero, pivot), None)
        _along(code, zero, end, dtype, lambda j, kind: exchange(a, (k, j), (pivot, j), kind))
        largest, after = a.get(k, k), _plus(code, k, ONE)
        singular = of(code, "eq", [largest, dtype.type(0)], dtype, bool)

        def eliminate(i):
            entry = a.get(i, k)
            factor = chosen(code, singular, entry, of(code, "div", [entry, largest], dtype), dtype)
            a.set(i, k, factor)

            def one(j, kind):
                a.set(i, j, _less(code, a.get(i, j, kind), factor, a.get(k, j, kind), kind), kind)

            _along(code, after, end, dtype, one)

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
        get = b.get if left else lambda i, j, kind: b.get(j, i)
        put = b.set if left else lambda i, j, x, kind: b.set(j, i, x)
        zero, others = np.int64(0), np.int64(columns if left else rows)

        def along(body):
            """``body(j, kind)`` for what the unknowns of a row are multiplied with: side by side where B is on the right."""
            if left:
                _along(code, zero, others, dtype, body)
            else:
                _span(code, zero, others, lambda j: body(j, dtype))

        def row(k):
            i = k if lower else of(code, "sub", [np.int64(n - 1), k], np.int64)
            if not params["unit_diagonal"]:
                diagonal = entry(i, i)
                along(lambda j, kind: put(i, j, _quotient(code, get(i, j, kind), diagonal, kind), kind))
            start, end = (_plus(code, i, ONE), np.int64(n)) if lower else (zero, i)

            def eliminate(m):
                factor = entry(m, i)
                along(lambda j, kind: put(m, j, _less(code, get(m, j, kind), factor, get(i, j, kind), kind), kind))

            _span(code, start, end, eliminate)

        _span(code, zero, np.int64(n), row)

    _each(code, lead, (rows * columns, n * n), solve)
    return [in_memory(code, room, results[0].shape, dtype)]


@rule("jaxnsd_inverse")
def _inverse(code, params, arrays, kinds, results):
    """The inverse of a matrix, see `linalg._inverse`."""
    guard, sought, n, dtype = params["guard"], params["sought"], kinds[0].shape[0], kinds[0].dtype
    if ((n <= WRITTEN and n * n <= code.sizes.small) or code.traced) and not sought:
        return [_inverse_written(code, small(code, arrays[0]).copy(), guard, dtype)]
    if code.traced:
        return [_inverse_chosen(code, small(code, arrays[0]), guard, dtype)]
    room, zero, end = code.room(n * n, dtype), np.int64(0), np.int64(n)
    written(code, arrays[0], dtype, room)
    rows = _Rows(code, room, n, dtype)
    if sought:
        left = _Matrix(code, code.room(n, bool), zero, n, np.dtype(bool))
        _span(code, zero, end, lambda i: left.set(zero, i, np.True_))

    def size_left(i):
        return chosen(code, left.get(zero, i), of(code, "abs", [rows.get(i, i)], dtype), dtype.type(-1), dtype)

    def step(k):
        if sought:
            k = _largest(code, size_left, zero, end, dtype)
            left.set(zero, k, np.False_)
        pivot = _inverse_of(code, rows.get(k, k), guard, dtype)
        row = rows.times(rows.read(k), pivot)

        def eliminate(i):
            entry = rows.get(i, k)
            rows.write(i, rows.less(rows.read(i), entry, row))
            rows.set(i, k, of(code, "neg", [of(code, "mul", [entry, pivot], dtype)], dtype))

        _span(code, zero, end, eliminate)
        # What the loop made of its own row gives way.
        rows.write(k, row)
        rows.set(k, k, pivot)

    _span(code, zero, end, step)
    out = in_memory(code, room, (n, n), dtype)
    return [small(code, out) if n * n <= code.sizes.small else out]


def _inverse_of(code, pivot, guard, dtype):
    """``1 / pivot``; with a guard zero of one that vanishes."""
    one = dtype.type(1)
    if not guard:
        return of(code, "div", [one, pivot], dtype)
    regular = of(code, "gt", [of(code, "abs", [pivot], dtype), dtype.type(guard)], dtype, bool)
    inverse = of(code, "div", [one, chosen(code, regular, pivot, one, dtype)], dtype)
    return chosen(code, regular, inverse, dtype.type(0), dtype)


def _inverse_written(code, a, guard, dtype):
    """The inverse number by number."""
    n = len(a)
    for k in range(n):
        pivot = _inverse_of(code, a[k, k], guard, dtype)
        row = [of(code, "mul", [x, pivot], dtype) for x in a[k]]
        for i in set(range(n)) - {k}:
            entry = a[i, k]
            for j in set(range(n)) - {k}:
                a[i, j] = of(code, "sub", [a[i, j], of(code, "mul", [entry, row[j]], dtype)], dtype)
            a[i, k] = of(code, "neg", [of(code, "mul", [entry, pivot], dtype)], dtype)
        a[k], a[k, k] = filled(row, (n,)), pivot
    return a


def _inverse_chosen(code, a, guard, dtype):
    """The inverse number by number, the largest of the diagonal entries that are left first as a pivot: choices among all entries."""
    n, left = len(a), [np.True_] * len(a)
    for _ in range(n):
        at, most = np.int64(0), dtype.type(-2)
        for i in range(n):
            size = chosen(code, left[i], of(code, "abs", [a[i, i]], dtype), dtype.type(-1), dtype)
            better = of(code, "or", [of(code, "gt", [size, most], dtype, bool), of(code, "ne", [size, size], dtype, bool)], bool)
            at, most = chosen(code, better, np.int64(i), at, np.int64), chosen(code, better, size, most, dtype)
        here = [of(code, "eq", [at, np.int64(i)], np.int64, bool) for i in range(n)]
        left = [of(code, "and", [own, of(code, "not", [it], bool)], bool) for own, it in zip(left, here, strict=True)]
        row, column = ([code.picked(x, [at], dtype) for x in entries] for entries in (a.T, a))
        pivot = _inverse_of(code, code.picked(np.array(row, object), [at], dtype), guard, dtype)
        row = [of(code, "mul", [x, pivot], dtype) for x in row]
        new = np.empty_like(a)
        for i, j in np.ndindex(n, n):
            in_column = of(code, "neg", [of(code, "mul", [column[i], pivot], dtype)], dtype)
            other = of(code, "sub", [a[i, j], of(code, "mul", [column[i], row[j]], dtype)], dtype)
            in_row = chosen(code, here[j], pivot, row[j], dtype)
            new[i, j] = chosen(code, here[i], in_row, chosen(code, here[j], in_column, other, dtype), dtype)
        a = new
    return a


class _Rows(_Matrix):
    """A matrix whose rows are read into vector registers and written from there: lists of vectors, the last ones shorter."""

    def __init__(self, code, pointer, n, dtype):
        super().__init__(code, pointer, np.int64(0), n, dtype)
        self.kinds = kinds_of_row(code, n, dtype)

    def _places(self, i):
        first = 0
        for kind in self.kinds:
            yield self._place(i, np.int64(first)), kind
            first += math.prod(kind.shape)

    def read(self, i):
        """Row i."""
        return [self.code.load(self.pointer, at, kind) for at, kind in self._places(i)]

    def write(self, i, row):
        """Write row i."""
        for (at, kind), x in zip(self._places(i), row, strict=True):
            self.code.store(x, self.pointer, at, kind)

    def times(self, row, factor):
        """``factor row``."""
        return [_product(self.code, x, factor, kind) for x, kind in zip(row, self.kinds, strict=True)]

    def less(self, row, factor, other):
        """``row - factor other``."""
        return [_less(self.code, x, factor, y, kind) for x, y, kind in zip(row, other, self.kinds, strict=True)]
