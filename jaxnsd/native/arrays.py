"""Arrays of a native function: small ones are numbers, each by itself, large ones lie in memory.

A small array is a NumPy array of entries (see `code`): what only arranges entries costs nothing, and known zeros are seen. A `Large` one is
read and written by loops. What reads a large array at an index computed from its own, a slice or a transposition, is a view.
"""

import math

import numpy as np

from .code import dtype_of_numbers, is_known

#: Entries up to which what only arranges the entries of small arrays is small.
WIDE = 1 << 14

#: Known entries of an array from which on they are copied, not written number by number: that is less text.
MANY = 8

#: Operations in a row of which the last one computes what the others do: each calls the one before it, and Python ends what calls too deep.
DEPTH = 100

#: Bytes of a vector register.
REGISTER = 32


class Large:
    """An array in memory, or computed at each index where it is read.

    at:      (index, a list of entries of whole numbers) -> entry
    pointer: where its entries lie one after the other; None of others
    cheap:   whether it is a function of its index that reads no memory
    depth:   how many operations are computed where it is read
    """

    __slots__ = ("at", "cheap", "depth", "dtype", "pointer", "shape")

    def __init__(self, shape, dtype, at, pointer=None, cheap=False, depth=0):
        self.shape, self.dtype, self.at = tuple(shape), np.dtype(dtype), at
        self.pointer, self.cheap, self.depth = pointer, cheap, depth

    @property
    def size(self):
        """Number of entries."""
        return math.prod(self.shape)


def in_memory(code, pointer, shape, dtype):
    """The array at a pointer."""
    return Large(shape, dtype, lambda index: code.load(pointer, code.offset(index, shape), dtype), pointer)


def scalar(entry):
    """An array of no axes."""
    out = np.empty((), object)
    out[()] = entry
    return out


def filled(entries, shape):
    """A small array of a list of entries."""
    out = np.empty(len(entries), object)
    out[:] = entries
    return out.reshape(shape)


def of_known(code, x):
    """A known array."""
    dtype_of_numbers(getattr(x, "dtype", type(x)))
    x = np.asarray(x)
    if x.size > code.sizes.small and x.size > WIDE:
        return in_memory(code, code.table(x.ravel(), x.dtype), x.shape, x.dtype)
    return filled([entry for entry in x.ravel()], x.shape)


def is_small(x):
    """Whether an array is one of numbers."""
    return isinstance(x, np.ndarray) and x.dtype == object


def small(code, x):
    """An array as numbers, which are read from memory here."""
    if is_small(x):
        return x
    key = "small", id(x)
    if key not in code.known:
        entries = [x.at([np.int64(i) for i in index]) for index in np.ndindex(*x.shape)]
        code.known[key] = filled(entries, x.shape), x
    return code.known[key][0]


def large(code, x, dtype):
    """An array that can be read at an index that is known only when the function runs."""
    if isinstance(x, Large):
        return x
    key = "large", id(x), np.dtype(dtype)
    if key not in code.known:
        code.known[key] = _large(code, x, dtype), x
    return code.known[key][0]


def _large(code, x, dtype):
    entries = list(x.ravel())
    known = list(map(is_known, entries))
    if all(entry is entries[0] for entry in entries) or (all(known) and len(set(map(_bits, entries))) <= 1):
        value = entries[0] if entries else np.dtype(dtype).type(0)
        return Large(x.shape, dtype, lambda index: value, cheap=True)
    if all(known):
        return in_memory(code, code.table(entries, dtype), x.shape, dtype)
    pointer = code.room(x.size, dtype)
    _numbers_written(code, entries, dtype, pointer)
    return in_memory(code, pointer, x.shape, dtype)


def _numbers_written(code, entries, dtype, pointer):
    """Write entries one after the other; where many are known, all of these at once."""
    known = list(map(is_known, entries))
    if many := sum(known) > MANY:
        code.copy(pointer, code.table([entry if k else 0 for entry, k in zip(entries, known, strict=True)], dtype), len(entries), dtype)
    for i, (entry, k) in enumerate(zip(entries, known, strict=True)):
        if not (many and k):
            code.store(entry, pointer, np.int64(i), dtype)


def _bits(x):
    return np.asarray(x).tobytes()


def written(code, x, dtype, pointer):
    """Write an array to memory, entry after entry."""
    if isinstance(x, Large):
        if x.pointer is not None:
            if x.pointer != pointer and x.size:
                code.copy(pointer, x.pointer, x.size, dtype)
        else:
            code.nest(x.shape, lambda index: code.store(x.at(index), pointer, code.offset(index, x.shape), dtype))
    else:
        _numbers_written(code, x.ravel(), dtype, pointer)


def made(code, shape, dtype, at):
    """A large array of what ``at(index)`` computes, in memory."""
    pointer = code.room(math.prod(shape), dtype)
    code.nest(shape, lambda index: code.store(at(index), pointer, code.offset(index, shape), dtype))
    return in_memory(code, pointer, shape, dtype)


def stored(code, x, kind):
    """A large array that lies in memory."""
    whole = large(code, x, kind.dtype)
    return whole if whole.pointer is not None else made(code, kind.shape, kind.dtype, whole.at)


def settled(code, x):
    """A large array that may be read often, and after what it was made of has changed."""
    return x if x.pointer is not None or x.cheap else made(code, x.shape, x.dtype, x.at)


def vectors(n, dtype):
    """Dtypes of what a row of n entries is read as: vectors that fill a register, shorter ones for the rest, and numbers."""
    out, width = [], REGISTER // dtype.itemsize
    while n:
        while width > n:
            width //= 2
        out.append(np.dtype((dtype, width)) if width > 1 else dtype)
        n -= width
    return out


def kinds_of_row(code, n, dtype):
    """`vectors`, but numbers where vectors have other members in their lanes."""
    return [dtype] * n if code.lanes else vectors(n, dtype)
