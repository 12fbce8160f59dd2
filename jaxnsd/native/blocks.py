"""The second target of jaxprs: operations on blocks of members, of which Pallas makes a kernel for a GPU.

An entry (see `code`) is here an array of JAX: a number of each member of a block, or one that they share. What arranges entries and what is
known of them is the business of the same rules as for LLVM. `Blocks` has what those ask of `code.Code`; where Triton, which compiles the
kernels, has another operation than XLA, or none, it is put together from those that both have. Members of a block go on together: of a
branch that some of them take all do the work, and a loop ends with its last member. There is no memory inside of a kernel: an array that is
read at an index known only when it runs is a choice between its entries.
"""

import contextlib
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .arrays import WIDE, filled, small
from .code import ZERO, Code, Sizes, TooLargeError, UnknownError, Value, is_known, literal
from .control import evaluate, work
from .jax_internals import Literal, bound
from .rules import chosen, of

#: Members of a block: one warp of a GPU, whose threads have one each.
BLOCK = 32

#: Arrays are entries, whatever their size; loops of few operations are written out; a kernel has so many operations at the most.
SIZES = Sizes(WIDE, 1 << 30, 4_000, 24_000)

#: Operations that follow each other without a branch.
PIECE = 200

#: Operations of a branch, about, up to which all members do it rather than ask whether one has to.
CHEAP = 32


class Traced(Value):
    """A number of each member of a block, of shape (BLOCK,), or of all of them, of shape ()."""

    __slots__ = ("x",)

    def __init__(self, x):
        self.x, self.dtype = x, np.dtype(x.dtype)

    @property
    def name(self):
        """What tells it from others, as long as it is there."""
        return id(self)


class Room:
    """Entries in the place of memory, which only the loop or branch that has made them may write."""

    def __init__(self, entries, depth):
        self.entries, self.depth = entries, depth


class Place:
    """An index of an array that lies row by row, some of it known only when the kernel runs."""

    def __init__(self, index, shape):
        self.index, self.shape = index, shape


class Blocks:
    """What rules ask of a `Code`, for values that JAX traces."""

    traced, lanes, inside, once, spread, expected = True, 0, True, False, None, 0
    nest, passes = Code.nest, Code.passes

    def __init__(self, always, sizes=SIZES):
        self.always = always  # true, which nobody knows before the kernel runs
        self.sizes = sizes
        self.known = {}  # what has been computed already: {operation and operands: (result, operands)}
        self.size = 0
        self.depth = 0

    # Operations.

    def operation(self, name, entries, dtypes, dtype, params):
        """One operation, of which nothing is folded any more; the same one on the same operands is done once."""
        keys = [literal(x, d) if is_known(x) else id(x) for x, d in zip(entries, dtypes, strict=True)]
        key = name, np.dtype(dtype), str(params.get("rounding_method")), *keys
        if key not in self.known:
            if name not in _OPERATIONS:
                raise UnknownError(f"the operation {name} in a kernel")
            self.size += 1
            if self.size > self.sizes.largest:
                raise TooLargeError(f"more than {self.sizes.largest} operations")
            operands = [_operand(x, d) for x, d in zip(entries, dtypes, strict=True)]
            self.known[key] = Traced(_OPERATIONS[name](*operands, dtype=_usual(dtype), **params)), entries
        return self.known[key][0]

    def whole_numbers(self, name, a, b):
        """``a + b`` or ``a * b`` of offsets."""
        return of(self, name, [a, b], np.int64)

    def wide(self, entry, dtype):
        """The array of an entry, a number for each member."""
        return _spread(_operand(entry, dtype), (BLOCK,))

    # Memory.

    def room(self, size, dtype):
        """A piece of memory: a `Room` and where in it."""
        if size > self.sizes.small:
            raise TooLargeError(f"an array of {size} entries")
        return Room(filled([np.dtype(dtype).type(0)] * size, (size,)), self.depth), 0

    def table(self, entries, dtype):
        """The place of known numbers."""
        return Room(filled([np.dtype(dtype).type(x) for x in entries], (len(entries),)), self.depth), 0

    def offset(self, index, shape):
        """Where an index of an array is."""
        if all(map(is_known, index)):
            return np.int64(np.ravel_multi_index([int(i) for i in index], shape) if shape else 0)
        return Place(index, shape)

    def place(self, pointer, offset, dtype):
        """The place of an entry."""
        if not isinstance(offset, np.generic):
            raise UnknownError("a part of an array at an index that is not known")
        return pointer[0], pointer[1] + int(offset)

    def _part(self, pointer, offset, dtype):
        """The entries from a place on, as an array, and the index of the one that is meant."""
        room, base = pointer
        if np.dtype(dtype).subdtype:
            raise UnknownError("vectors of entries")
        if is_known(offset) and not isinstance(offset, Place):
            return room.entries[base + int(offset) :][:1], [np.int64(0)]
        index, shape = (offset.index, offset.shape) if isinstance(offset, Place) else ([offset], (len(room.entries) - base,))
        return room.entries[base : base + math.prod(shape)].reshape(shape), index

    def load(self, pointer, offset, dtype):
        """Read an entry."""
        return self.picked(*self._part(pointer, offset, dtype), dtype)

    def picked(self, entries, index, dtype):
        """The entry of a small array at an index."""
        entries = entries[tuple(int(i) if is_known(i) else slice(None) for i in index)]
        for i in (i for i in index if not is_known(i)):
            out = entries[0]
            for k in range(1, len(entries)):
                here = of(self, "eq", [i, np.int64(k)], np.int64, bool)
                pairs = zip(np.ravel(entries[k]), np.ravel(out), strict=True)
                out = filled([chosen(self, here, new, old, dtype) for new, old in pairs], np.shape(out))
            entries = out
        return entries[()] if isinstance(entries, np.ndarray) else entries

    def store(self, entry, pointer, offset, dtype):
        """Write an entry."""
        if pointer[0].depth != self.depth:
            raise UnknownError("an array that is written inside of a loop")
        part, index = self._part(pointer, offset, dtype)
        for at in np.ndindex(*part.shape):
            here = np.True_
            for i, k in zip(index, at, strict=True):
                same = np.bool_(i == k) if is_known(i) else of(self, "eq", [i, np.int64(k)], np.int64, bool)
                here = of(self, "and", [here, same], bool)
            part[at] = chosen(self, here, entry, part[at], dtype)

    def copy(self, to, source, size, dtype):
        """Copy entries that lie one after the other."""
        for k in range(size):
            self.store(self.load(source, np.int64(k), dtype), to, np.int64(k), dtype)

    # Control flow.

    @contextlib.contextmanager
    def marked(self, name):
        """Nothing is made in another way, whatever its name."""
        yield

    def apart(self, make, **_):
        """``make()``: what is no function of its own."""
        make()

    def when_needed(self, program, pointers):
        """A kernel calls nothing."""
        raise UnknownError("a function that is called")

    @contextlib.contextmanager
    def _apart(self):
        """What is computed in here is not known outside."""
        outside, self.known, self.depth = self.known, dict(self.known), self.depth + 1
        try:
            yield
        finally:
            self.known, self.depth = outside, self.depth - 1

    def count(self, n, first, dtypes, body, start=ZERO):
        """``for k in range(start, n): carried = body(k, carried)``, written out: what it writes, others read."""
        for k in range(int(start), int(n)):
            first = body(np.int64(k), first)
        return first

    def loop(self, n, first, dtypes, body):
        """`count` as a loop; what its body writes, nobody reads."""

        def one(k, *carried):
            with self._apart():
                return [self.wide(x, d) for x, d in zip(body(Traced(k), list(map(Traced, carried))), dtypes, strict=True)]

        def in_pieces(k, carried):
            return self._in_pieces(one, lax.convert_element_type(k, _usual(np.int64)), *carried)

        first = [self.wide(x, d) for x, d in zip(first, dtypes, strict=True)]
        return list(map(Traced, lax.fori_loop(0, int(n), in_pieces, first)))

    def repeat(self, first, dtypes, condition, body):
        """``while condition(carried): carried = body(carried)``, each member as long as its own condition holds."""

        def one(*carried):
            going, *carried = map(Traced, carried)
            with self._apart():
                after = [chosen(self, going, *pair, d) for *pair, d in zip(body(carried), carried, dtypes, strict=True)]
                on = of(self, "and", [going, condition(after)], bool)
                return [self.wide(x, d) for x, d in zip([on, *after], [bool, *dtypes], strict=True)]

        on = condition(first)
        if is_known(on) and not on:
            return first
        first = [self.wide(x, d) for x, d in zip([on, *first], [bool, *dtypes], strict=True)]
        last = lax.while_loop(lambda carried: _any(carried[0]), lambda carried: self._in_pieces(one, *carried), first)
        return list(map(Traced, last))[1:]

    def _in_pieces(self, function, *args):
        """``function(*args)``, a list, as `_pieces_of`."""
        return self._pieces_of(jax.make_jaxpr(function)(*args), *args)

    def _pieces_of(self, closed, *args):
        """The results of a closed jaxpr, whose operations become branches of a few each that are always taken.

        For each access to memory Triton looks at all that depends on it, and again at all that depends on that, but not beyond the end
        of a branch: 4000 additions and products take 22 s, in pieces of 200 they take 1.2.
        """
        jaxpr, equations = closed.jaxpr, closed.jaxpr.eqns
        values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*closed.consts, *args), strict=True))
        last_read = {x: k for k, equation in enumerate(equations) for x in equation.invars if not isinstance(x, Literal)}
        last_read |= {x: len(equations) for x in jaxpr.outvars if not isinstance(x, Literal)}

        nothings = {}

        def read(x, values):
            return x.val if isinstance(x, Literal) else values[x]

        for start in range(0, len(equations), PIECE):
            piece = equations[start : start + PIECE]
            made = [x for equation in piece for x in equation.outvars if last_read.get(x, 0) >= start + len(piece)]

            def evaluated(piece=piece, made=made):
                inside = dict(values)
                for equation in piece:
                    out = bound(equation, [read(x, inside) for x in equation.invars])
                    inside.update(zip(equation.outvars, out, strict=True))
                return [inside[x] for x in made]

            if len(equations) <= PIECE:
                values.update(zip(made, evaluated(), strict=True))
            else:
                nothing = [self._nothing(x.aval, nothings) for x in made]
                values.update(zip(made, lax.cond(self.always, evaluated, lambda nothing=nothing: nothing), strict=True))
        return [read(x, values) for x in jaxpr.outvars]

    def _nothing(self, aval, made):
        """What stands for a result of a branch that is never taken: no number that is written there, which Triton does not take."""
        key = aval.shape, np.dtype(aval.dtype)
        if key not in made:
            made[key] = _spread(lax.convert_element_type(self.always, aval.dtype), aval.shape)
        return made[key]

    def switch(self, which, of_which, branches, arrays, results):
        """The results of the branch that each member takes: those with little work by all, others where one member takes them."""
        dtypes = [kind.dtype for kind in results for _ in range(kind.size)]
        if of_which.kind == "b":
            takes = [of(self, "not", [which], bool), which]
        else:
            last = len(branches) - 1
            takes = [of(self, "eq", [which, of_which.type(k)], of_which, bool) for k in range(last + 1)]
            takes[0] = of(self, "le", [which, of_which.type(0)], of_which, bool)
            takes[last] = of(self, "ge", [which, of_which.type(last)], of_which, bool)
        done = []
        for branch in sorted(range(len(branches)), key=lambda k: work(branches[k])):
            done.append((takes[branch], *self._branch(branches[branch], arrays, dtypes)))
        # What is known of all branches alike is known.
        alike = [_alike([known[i] for _, known, _ in done], d) for i, d in enumerate(dtypes)]
        unknown = [i for i, same in enumerate(alike) if not same]
        out = [done[0][1][i] for i in range(len(dtypes))]
        for k, (takes, known, make) in enumerate(done):
            new = self._joined(takes, known, make, [out[i] for i in unknown], unknown, dtypes, first=k == 0)
            for i, x in zip(unknown, new, strict=True):
                out[i] = x
        entries, arrays = iter(out), []
        for kind in results:
            arrays.append(filled([next(entries) for _ in range(kind.size)], kind.shape))
        return arrays

    def _branch(self, closed, arrays, dtypes):
        """``(entries of the results, None)`` of a branch with little work; of another one those that are known, and what computes all."""
        if work(closed) <= CHEAP:
            return self._entries(closed, arrays), None
        known = []

        def traced():
            with self._apart():
                entries = self._entries(closed, arrays)
                known[:] = [x if is_known(x) else None for x in entries]
                return [self.wide(x, d) for x, d in zip(entries, dtypes, strict=True)]

        closed = jax.make_jaxpr(traced)()
        return known, lambda: self._pieces_of(closed)

    def _entries(self, closed, arrays):
        """The entries of the results of a jaxpr."""
        return [entry for x in evaluate(self, closed, arrays) for entry in small(self, x).ravel()]

    def _joined(self, takes, known, make, before, places, dtypes, first):
        """Entries, at some places of the results: those of a branch for the members that take it, those of ``before`` for others."""
        if make is None:
            new = [known[i] for i in places]
            return new if first else [chosen(self, takes, x, y, dtypes[i]) for x, y, i in zip(new, before, places, strict=True)]
        none = [dtypes[i].type(0) if first else x for i, x in zip(places, before, strict=True)]
        old, mask = [self.wide(x, dtypes[i]) for x, i in zip(none, places, strict=True)], self.wide(takes, bool)

        def taken():
            new = make()
            return [lax.select_n(mask, x, new[i]) for x, i in zip(old, places, strict=True)]

        return list(map(Traced, lax.cond(_any(mask), taken, lambda: old)))


def _alike(entries, dtype):
    """Whether the entries are known, and the same number."""
    return all(x is not None and is_known(x) for x in entries) and len({literal(x, dtype) for x in entries}) == 1


def _usual(dtype):
    """The dtype that JAX has in its place: without double precision that of single."""
    return jax.dtypes.canonicalize_dtype(dtype)


def _operand(x, dtype):
    """What operations of JAX are given for an entry."""
    return np.asarray(x, _usual(dtype))[()] if is_known(x) else x.x


def _spread(x, shape):
    """A number, or an array of that shape, as such an array."""
    return lax.broadcast(x, shape) if jnp.shape(x) != shape else x


def _any(which):
    """Whether something holds for a member."""
    return jnp.max(which.astype(jnp.int32)) > 0


# Operations of JAX, on operands of shape (BLOCK,) or (), the same ones by XLA and by Triton.


def _simple(function):
    return lambda *x, dtype, **params: function(*x)


def _select(which, no, yes, dtype):
    shape = max((jnp.shape(x) for x in (which, no, yes)), key=len)
    return lax.select_n(_spread(which, shape), _spread(no, shape), _spread(yes, shape))


def _extreme(beyond, of_whole_numbers):
    """The larger or smaller of two numbers, and what is no number: Triton would take the other one."""

    def extreme(a, b, dtype):
        if dtype.kind != "f":
            return of_whole_numbers(a, b)
        return _select(lax.bitwise_or(beyond(a, b), lax.ne(a, a)), b, a, dtype)

    return extreme


def _sign(x, dtype):
    zero = dtype.type(0)
    out = _select(lax.gt(x, zero), dtype.type(-1), dtype.type(1), dtype)
    return _select(lax.bitwise_or(lax.eq(x, zero), lax.ne(x, x)), out, x, dtype)


def _rounded(x, dtype, rounding_method):
    """The nearest whole number; of two the even one, or the one further from zero."""
    half, one, two = (dtype.type(n) for n in (0.5, 1, 2))
    even = int(rounding_method) == 1
    size = x if even else lax.abs(x)
    below = lax.floor(size)
    rest, above = lax.sub(size, below), lax.add(below, one)
    is_even = lax.eq(lax.sub(below, lax.mul(two, lax.floor(lax.mul(half, below)))), dtype.type(0))
    up = lax.bitwise_or(lax.gt(rest, half), lax.bitwise_and(lax.eq(rest, half), lax.bitwise_not(is_even)) if even else lax.eq(rest, half))
    out = _select(up, below, above, dtype)
    out = out if even else lax.mul(_sign(x, dtype), out)
    return _select(lax.lt(lax.abs(x), dtype.type(np.inf)), x, out, dtype)


def _divided(operation, instead):
    """A quotient or a rest; of whole numbers by zero, and by -1, what XLA has."""

    def divided(a, b, dtype):
        if dtype.kind == "f":
            return operation(a, b)
        zero, one = dtype.type(0), dtype.type(1)
        nothing, minus = lax.eq(b, zero), lax.eq(b, ~zero)
        by = _select(lax.bitwise_or(nothing, minus) if dtype.kind == "i" else nothing, b, one, dtype)
        out = operation(a, by)
        if dtype.kind == "i":
            out = _select(minus, out, lax.sub(zero, a) if operation is lax.div else lax.mul(a, zero), dtype)
        return _select(nothing, out, instead(a), dtype)

    return divided


def _shifted(operation, beyond):
    def shifted(a, b, dtype):
        bits = 8 * dtype.itemsize
        inside = lax.bitwise_and(lax.ge(b, dtype.type(0)), lax.lt(b, dtype.type(bits)))
        out = operation(a, _select(inside, dtype.type(bits - 1), b, dtype))
        return out if beyond is None else _select(inside, dtype.type(beyond), out, dtype)

    return shifted


def _converted(x, dtype):
    if dtype.kind in "iu" and jnp.result_type(x).kind == "f":
        # No number is zero.
        x = _select(lax.eq(x, x), jnp.result_type(x).type(0), x, dtype)
    return lax.convert_element_type(x, dtype)


def _power(x, y, dtype):
    return lax.pow(x, lax.convert_element_type(y, dtype))


_NAMES = """
sub mul sqrt abs floor ceil sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh exp exp2 expm1 log log1p cbrt add lt le gt ge
eq ne
"""

_OPERATIONS = {name: _simple(getattr(lax, name)) for name in _NAMES.split()} | {
    "add_any": _simple(lax.add),
    "and": _simple(lax.bitwise_and),
    "or": _simple(lax.bitwise_or),
    "xor": _simple(lax.bitwise_xor),
    "not": _simple(lax.bitwise_not),
    "neg": lambda x, dtype: lax.mul(x, dtype.type(-1)),  # Triton's zero minus x loses the sign of a zero
    "max": _extreme(lax.gt, lax.max),
    "min": _extreme(lax.lt, lax.min),
    "is_finite": lambda x, dtype: lax.lt(lax.abs(x), jnp.result_type(x).type(np.inf)),
    "sign": _sign,
    "round": _rounded,
    "div": _divided(lax.div, lambda a: ~a.dtype.type(0)),
    "rem": _divided(lax.rem, lambda a: a),
    "shift_left": _shifted(lax.shift_left, 0),
    "shift_right_logical": _shifted(lax.shift_right_logical, 0),
    "shift_right_arithmetic": _shifted(lax.shift_right_arithmetic, None),
    "select_n": _select,
    "convert_element_type": _converted,
    "pow": _power,
}
