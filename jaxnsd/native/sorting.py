"""Sorting: blocks are merged, each entry by the number of those of the other block that come before it."""

import numpy as np

from .arrays import in_memory, small, written
from .code import ZERO
from .rules import chosen, of, rule


@rule("sort")
def _sort(code, params, arrays, kinds, results):
    """Operands in the order of the first of them, stable, what is no number last."""
    axis, n = params["dimension"], kinds[0].shape[params["dimension"]]
    keys, others = kinds[: params["num_keys"]], [1 if a == axis else m for a, m in enumerate(kinds[0].shape)]
    here, there = ([code.room(kind.size, kind.dtype) for kind in kinds] for _ in range(2))
    for x, kind, room in zip(arrays, kinds, here, strict=True):
        written(code, x, kind.dtype, room)

    def before(one, two):
        """Whether the keys of one entry come before those of another one."""
        out = np.False_
        for a, b, kind in reversed(list(zip(one, two, keys, strict=True))):
            less, more = _less(code, a, b, kind.dtype), _less(code, b, a, kind.dtype)
            alike = of(code, "not", [of(code, "or", [less, more], bool)], bool)
            out = of(code, "or", [less, of(code, "and", [alike, out], bool)], bool)
        return out

    def merge(width, source, to):
        """Pairs of blocks of so many entries, each of them sorted."""

        def at(index, k):
            return code.offset([k if a == axis else i for a, i in enumerate(index)], kinds[0].shape)

        def one(index, i):
            block = of(code, "div", [i, np.int64(width)], np.uint64)
            second = of(code, "rem", [block, np.int64(2)], np.uint64)
            second = of(code, "ne", [second, ZERO], np.int64, bool)
            start = of(code, "mul", [block, np.int64(width)], np.int64)
            shift = chosen(code, second, np.int64(-width), np.int64(width), np.int64)
            other = of(code, "min", [of(code, "add", [start, shift], np.int64), np.int64(n)], np.int64)
            end = of(code, "min", [of(code, "add", [other, np.int64(width)], np.int64), np.int64(n)], np.int64)
            place = at(index, i)
            mine = [code.load(room, place, kind.dtype) for room, kind in zip(source, kinds, strict=True)]

            def halved(_, ends):
                low, high = ends
                middle = of(code, "div", [of(code, "add", [low, high], np.int64), np.int64(2)], np.uint64)
                inside = of(code, "min", [middle, np.int64(n - 1)], np.int64)
                its = [code.load(room, at(index, inside), kind.dtype) for room, kind in zip(source, keys, strict=False)]
                # Of those that are alike the ones of the first block come first.
                alike_too = of(code, "and", [second, of(code, "not", [before(mine[: len(keys)], its)], bool)], bool)
                goes_before = of(code, "or", [before(its, mine[: len(keys)]), alike_too], bool)
                is_open = of(code, "lt", [low, high], np.int64, bool)
                up = of(code, "and", [is_open, goes_before], bool)
                down = of(code, "and", [is_open, of(code, "not", [goes_before], bool)], bool)
                return [
                    chosen(code, up, of(code, "add", [middle, np.int64(1)], np.int64), low, np.int64),
                    chosen(code, down, middle, high, np.int64),
                ]

            low = code.count(np.int64(width.bit_length()), [other, end], [np.int64, np.int64], halved)[0]
            # Of this pair so many lie before the block, in the block, and in the other one.
            first = of(code, "min", [start, of(code, "add", [start, shift], np.int64)], np.int64)
            own, its = (of(code, "sub", pair, np.int64) for pair in ([i, start], [low, other]))
            target = of(code, "add", [first, of(code, "add", [own, its], np.int64)], np.int64)
            for x, room, kind in zip(mine, to, kinds, strict=True):
                code.store(x, room, at(index, target), kind.dtype)

        code.nest(others, lambda index: code.nest([n], lambda k: one(index, k[0])))

    for level in range(max(n - 1, 0).bit_length()):
        merge(1 << level, here, there)
        here, there = there, here
    out = [in_memory(code, room, kind.shape, kind.dtype) for room, kind in zip(here, results, strict=True)]
    return [small(code, x) if kind.size <= code.sizes.small else x for x, kind in zip(out, results, strict=True)]


def _less(code, a, b, dtype):
    """Whether a number is less than another one, or is one where the other one is not."""
    less = of(code, "lt", [a, b], dtype, bool)
    if np.dtype(dtype).kind != "f":
        return less
    only = of(code, "and", [of(code, "eq", [a, a], dtype, bool), of(code, "ne", [b, b], dtype, bool)], bool)
    return of(code, "or", [less, only], bool)
