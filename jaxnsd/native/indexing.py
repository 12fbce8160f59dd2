"""Parts of arrays at places that are known only when the function runs: slices, gathering, scattering."""

import numpy as np

from .arrays import Large, in_memory, is_small, large, made, settled, small, written
from .code import is_known
from .numbers import converted
from .rules import arranged, chosen, clamped, of, rule, rule_of_each


@rule("dynamic_slice")
def _dynamic_slice(code, params, arrays, kinds, results):
    sizes, shape = params["slice_sizes"], kinds[0].shape
    limits = [n - k for n, k in zip(shape, sizes, strict=True)]
    starts = [clamped(code, small(code, x)[()], kind.dtype, m) for x, kind, m in zip(arrays[1:], kinds[1:], limits, strict=True)]

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
    starts = [clamped(code, small(code, i)[()], kind.dtype, m) for i, kind, m in zip(arrays[2:], kinds[2:], limits, strict=True)]
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
            place[axis] = code.whole_numbers("add", clamped(code, start, np.int64, shape[axis] - sizes[axis]), place[axis])
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


@rule_of_each(*_SCATTERED)
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
            place[axis] = clamped(code, start, np.int64, shape[axis] - size[axis])
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
