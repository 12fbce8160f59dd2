"""Which of many points is the farthest one along a direction, a vector of points at a time."""

import numpy as np

from .arrays import filled, kinds_of_row, large, settled, small
from .code import type_of
from .numbers import converted
from .products import plus_product
from .rules import chosen, of, rule

#: Vectors of points, of all directions, whose best ones are kept side by side: one after the other each would wait for itself.
SIDE_BY_SIDE = 4


@rule("jaxnsd_farthest")
def _farthest(code, params, arrays, kinds, results):
    """Of directions (m, 3), tables (h, 3, k), the number of one and how many points it has: which of them (m,), of several the first."""
    dtype, number, (m,), (tables, _, k) = kinds[0].dtype, results[0].dtype, results[0].shape, kinds[1].shape
    directions = small(code, arrays[0])
    which, many = (
        _between(code, small(code, x)[()], kind.dtype, *limits)
        for x, kind, limits in zip(arrays[2:], kinds[2:], ((0, tables - 1), (1, k)), strict=True)
    )
    whole = settled(code, large(code, arrays[1], dtype))
    kind, per = kinds_of_row(code, k, dtype)[0], max(1, SIDE_BY_SIDE // m)
    if code.traced or whole.pointer is None or not kind.subdtype or k % (per * kind.shape[0]):
        found = [_one_by_one(code, n, many, dtype, lambda axis, i: whole.at([which, np.int64(axis), i])) for n in directions]
    else:
        rows = [code.offset([which, np.int64(axis), np.int64(0)], kinds[1].shape) for axis in range(3)]
        found = _in_vectors(code, directions, many, kind, per, lambda axis, i: code.load(whole.pointer, _plus(code, rows[axis], i), kind))
    return [filled([converted(code, x, np.int64, number) for x in found], (m,))]


def _between(code, x, dtype, least, most):
    x = converted(code, x, dtype, np.int64)
    return of(code, "min", [of(code, "max", [x, np.int64(least)], np.int64), np.int64(most)], np.int64)


def _plus(code, a, b):
    return code.whole_numbers("add", a, b)


def _one_by_one(code, n, many, dtype, coordinate):
    """The point that is farthest along n."""

    def one(i, carried):
        at, best = carried
        height = of(code, "mul", [coordinate(0, i), n[0]], dtype)
        for axis in (1, 2):
            height = of(code, "add", [height, of(code, "mul", [coordinate(axis, i), n[axis]], dtype)], dtype)
        better = of(code, "gt", [height, best], dtype, bool)
        return [chosen(code, better, i, at, np.int64), chosen(code, better, height, best, dtype)]

    return code.count(many, [np.int64(0), dtype.type(-np.inf)], [np.int64, dtype], one)[0]


def _in_vectors(code, directions, many, kind, per, coordinates):
    """Those that are farthest along each of the directions; coordinates: (axis, point) -> vector of those of so many points from there on.

    Beyond the points that there are the last one is repeated.
    """
    dtype, width = kind.base, kind.shape[0]
    places = np.dtype((np.int64 if dtype.itemsize == 8 else np.int32, width))
    steps = f"<{', '.join(f'{type_of(places.base)} {i}' for i in range(width))}>"

    def heights(first):
        points = [coordinates(axis, first) for axis in range(3)]
        for n in directions:
            total = code.of_vectors("fmul", code.everywhere(n[0], kind), points[0], kind)
            for x, y in zip(n[1:], points[1:], strict=True):
                total = plus_product(code, total, x, y, kind)
            yield total

    def best_of(condition, one, other):
        return [
            code.value(f"select <{width} x i1> {condition.name}, {type_of(t)} {code.text(x, t)}, {type_of(t)} {code.text(y, t)}", t)
            for t, x, y in zip((kind, places), one, other, strict=True)
        ]

    def compared(how, a, b, t):
        return code.value(f"{how} {type_of(t)} {code.text(a, t)}, {code.text(b, t)}", np.dtype((bool, width)))

    def body(i, carried):
        first, out = code.whole_numbers("mul", i, np.int64(width * per)), []
        pairs = iter(zip(carried[::2], carried[1::2], strict=True))
        for j in range(per):
            at = _plus(code, first, np.int64(width * j))
            numbers = code.everywhere(converted(code, at, np.int64, places.base), places)
            numbers = code.value(f"add {type_of(places)} {numbers.name}, {steps}", places)
            for height in heights(at):
                best = next(pairs)
                out += best_of(compared("fcmp ogt", height, best[0], kind), (height, numbers), best)
        return out

    lowest = code.everywhere(dtype.type(-np.inf), kind)
    blocks = of(code, "div", [_plus(code, many, np.int64(width * per - 1)), np.int64(width * per)], np.int64)
    dtypes = [kind, places] * (per * len(directions))
    ends = code.count(blocks, [lowest, places.base.type(0)] * (per * len(directions)), dtypes, body)
    pairs, found = list(zip(ends[::2], ends[1::2], strict=True)), []
    for j in range(len(directions)):
        best, *others = pairs[j :: len(directions)]
        for other in others:
            best = best_of(_beats(code, compared, other, best, kind, places, width), other, best)
        found.append(_first_of(code, *best, kind, places))
    return found


def _beats(code, compared, other, best, kind, places, width):
    """Whether the entries of one are larger, or as large and of a smaller number."""
    larger, same = compared("fcmp ogt", other[0], best[0], kind), compared("fcmp oeq", other[0], best[0], kind)
    sooner, of_bits = compared("icmp slt", other[1], best[1], places), np.dtype((bool, width))
    tied = code.value(f"and <{width} x i1> {same.name}, {sooner.name}", of_bits)
    return code.value(f"or <{width} x i1> {larger.name}, {tied.name}", of_bits)


def _first_of(code, height, number, kind, places):
    """The number of the largest entry of a vector, the smallest one of several."""
    at = best = None
    for i in range(kind.shape[0]):
        x, n = (
            code.value(f"extractelement {type_of(t)} {code.text(v, t)}, i64 {i}", t.base) for t, v in ((kind, height), (places, number))
        )
        n = converted(code, n, places.base, np.int64)
        if i == 0:
            at, best = n, x
            continue
        tied = of(code, "and", [of(code, "eq", [x, best], kind.base, bool), of(code, "lt", [n, at], np.int64, bool)], bool)
        better = of(code, "or", [of(code, "gt", [x, best], kind.base, bool), tied], bool)
        at, best = chosen(code, better, n, at, np.int64), chosen(code, better, x, best, kind.base)
    return at
