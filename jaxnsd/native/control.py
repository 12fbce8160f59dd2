"""Jaxprs become native code: equation by equation, with branches and loops as they are."""

import collections
import math
from dataclasses import dataclass, field, replace

import numpy as np

from . import factors, farthest, indexing, products, reductions, rules, sorting  # noqa: F401 (all but `rules` add their rules to it)
from .arrays import Large, filled, in_memory, is_small, large, made, of_known, scalar, settled, small, stored, written
from .code import PART, SIZES, Shared, UnknownError, Value, dtype_of_numbers, is_known, type_of
from .jax_internals import Literal, ShapedArray, scan_sizes
from .jaxprs import CALLS, INNER, count, inside, parts_of, said

#: Operations, about, from which on a loop whose passes do not depend on each other is shared by threads: 20 microseconds of work.
SHARED = 100_000

#: Operations, about, from which on what may not be needed is compiled when it is.
LATER = 500

#: The operation that tells Python of numbers on the way.
HOST = "debug_callback"


def number(name):
    """A whole number by its name in the text."""
    return Value(name, np.int64)


class Kind:
    """Shape, dtype and size of an array."""

    __slots__ = ("dtype", "shape", "size")

    def __init__(self, aval):
        self.shape, self.dtype = tuple(aval.shape), dtype_of_numbers(aval.dtype)
        self.size = math.prod(self.shape)


def evaluate(code, closed, arrays, places=()):
    """The results of a jaxpr at ``arrays``; ``places``: pointers to where they are to lie if they are in memory, None: anywhere."""
    jaxpr, consts = parts_of(closed)
    read_by = collections.Counter(x for equation in jaxpr.eqns for x in equation.invars if not isinstance(x, Literal))
    read_by.update(x for x in jaxpr.outvars if not isinstance(x, Literal))
    values, given = {x: of_known(code, value) for x, value in zip(jaxpr.constvars, consts, strict=False)}, jaxpr.invars
    if len(consts) < len(jaxpr.constvars):
        given = [*jaxpr.constvars, *given]  # of `jaxnsd_rule`: its constants are arguments
    for x, value in zip(given, arrays, strict=True):
        values[x] = settled(code, value) if read_by[x] > 1 and isinstance(value, Large) else value

    def read(x):
        return of_known(code, x.val) if isinstance(x, Literal) else values[x]

    wanted = _wanted(code, jaxpr, places) if any(places) else {}

    def one(equation):
        inputs, kinds = [read(x) for x in equation.invars], [Kind(x.aval) for x in equation.invars]
        results = [Kind(x.aval) for x in equation.outvars]
        if code.expected and not inside(equation):
            code.advanced(sum(kind.size for kind in results if kind.size <= code.sizes.small))
        code.once, code.places = all(read_by[x] == 1 for x in equation.outvars), [wanted.get(x) for x in equation.outvars]
        values.update(zip(equation.outvars, _equation(code, equation, inputs, kinds, results), strict=True))

    if code.sizes.plain and not code.traced:
        _in_pieces(code, jaxpr, values, one)
    else:
        for equation in jaxpr.eqns:
            one(equation)
    return [read(x) for x in jaxpr.outvars]


def _wanted(code, jaxpr, places):
    """Where variables are to lie, so that what is put together of them does: ``{variable: pointer}``."""
    out = {x: place for x, place in zip(jaxpr.outvars, places, strict=True) if place is not None and not isinstance(x, Literal)}
    for equation in reversed(jaxpr.eqns):
        place, name = out.get(equation.outvars[0]) if equation.outvars else None, equation.primitive.name
        if place is None:
            continue
        parts = []
        if name in ("reshape", "squeeze", "expand_dims"):
            parts = [(equation.invars[0], place)]
        elif name == "concatenate" and equation.params["dimension"] == 0:
            sizes = [Kind(x.aval).size for x in equation.invars]
            starts, dtype = np.cumsum([0, *sizes[:-1]]), equation.outvars[0].aval.dtype
            parts = [(x, code.place(place, np.int64(k), dtype)) for x, k in zip(equation.invars, starts, strict=True)]
        for x, there in parts:
            if not isinstance(x, Literal):
                out.setdefault(x, there)
    return out


#: Lines from which on a piece of a jaxpr that is loops over memory is a function of its own: time of some of what LLVM does to loops grows
#: with the square of their number in a function, and two that have the same piece share it. A humanoid's first run takes a quarter less
#: that way; 1500 lines save little more and make it 10 % slower. What is written out would run at half the speed in pieces.
PIECE = 3000


def _in_pieces(code, jaxpr, values, one):
    """``one(equation)`` for all equations; what is long is made of functions that are called one after the other."""
    equations, k = jaxpr.eqns, 0
    last = {x: at for at, equation in enumerate(equations) for x in equation.invars if not isinstance(x, Literal)}  # where it is read last
    last.update((x, len(equations)) for x in jaxpr.outvars if not isinstance(x, Literal))

    def piece():
        nonlocal k
        first, begin, before = len(code.lines), k, set(code.known)
        while k < len(equations) and len(code.lines) - first < PIECE:
            one(equations[k])
            k += 1
        if len(code.lines) - first < PIECE:
            return None
        live = [x for equation in equations[begin:k] for x in equation.outvars if last.get(x, -1) >= k]
        for x in live:
            if not is_small(values[x]):
                values[x] = stored(code, values[x], Kind(x.aval))
        going_on.extend((x, values[x]) for x in live)
        names = [name for _, x in going_on for name in _names(x)]
        inside = {line[2 : line.index(" ", 2)] for line in code.lines[first:] if line.startswith("  %")} - set(names)
        # What has been called with arguments that are there afterwards is not called again.
        for key in [key for key in code.known if key[0] == "call" and key not in before]:
            out, inner, arrays = code.known[key]
            if not all(is_small(x) or x.pointer for x in (*out, *arrays)):
                continue
            if not inside.intersection(name for x in arrays for name in _names(x)):
                calls.append((key[:3], out, inner, arrays))
                names += [name for x in out for name in _names(x)]
        return names

    while k < len(equations):
        going_on, calls = [], []
        here = code.apart(piece)
        if here is None:
            continue
        values.update((x, _renamed(code, value, here)) for x, value in going_on)
        for key, out, inner, arrays in calls:
            out, arrays = ([_renamed(code, x, here) for x in part] for part in (out, arrays))
            code.known[(*key, *map(_identity, arrays))] = out, inner, arrays


def _names(x):
    """Names of what an array is made of: its numbers that are not known, or its pointer."""
    return [entry.name for entry in x.ravel() if not is_known(entry)] if is_small(x) else [x.pointer]


def _renamed(code, x, names):
    """An array that is made of what has other names here."""
    if is_small(x):
        return filled([e if is_known(e) or e.name not in names else type(e)(names[e.name], e.dtype) for e in x.ravel()], x.shape)
    return in_memory(code, type(x.pointer)(names[x.pointer]), x.shape, x.dtype) if x.pointer in names else x


#: Operations that read an array as it lies in memory: a small one, an argument say, is read as numbers by what computes with them.
_NAMES = """
broadcast_in_dim copy dynamic_slice expand_dims gather reshape rev slice squeeze transpose
"""
_VIEWS = frozenset(_NAMES.split())


def _equation(code, equation, arrays, kinds, results):
    name, params = equation.primitive.name, equation.params
    if name in CALLS:
        inner = next(params[key] for key in INNER if key in params)
        if getattr(inner, "effects", None):
            return _called(code, inner, params.get("name"), arrays, kinds, results)
        # What is called again with the same arguments is not computed again, be it a loop or another program.
        key = "call", params.get("name"), id(inner), *map(_identity, arrays)
        if key not in code.known:
            code.known[key] = _called(code, inner, params.get("name"), arrays, kinds, results), inner, arrays
        elif code.expected:
            code.advanced(entries(inner, code.sizes.small))
        return code.known[key][0]
    if name == "jaxnsd_rule":
        return evaluate(code, inside(equation)[0], arrays)
    if name == HOST:
        code.when_needed(Host(params["callback"], kinds), [stored(code, x, kind).pointer for x, kind in zip(arrays, kinds, strict=True)])
        return []
    if name in ("while", "scan"):
        return _apart(code, lambda: _CONTROL[name](code, params, arrays, kinds, results), results)
    if name in _CONTROL:
        return _CONTROL[name](code, params, arrays, kinds, results)
    if name == "mul" and any(isinstance(x, Literal) for x in equation.invars):
        # A zero that somebody has written by hand: what it is multiplied with may be no number, and that is to be seen.
        params = {**params, "exact": True}
    if name not in _VIEWS:
        arrays = [small(code, x) if kind.size <= code.sizes.small else x for x, kind in zip(arrays, kinds, strict=True)]
    out = rules.apply(code, name, params, arrays, kinds, results)
    if out is None:
        raise UnknownError(f"the operation {name}")
    return out


def _called(code, inner, name, arrays, kinds, results):
    """What a function leads to that is called by this name."""
    if name == "when_needed" and work(inner) > LATER and not code.traced:
        return _when_needed(code, inner, arrays, kinds, results)
    if name == "once":
        return _apart(code, lambda: evaluate(code, inner, arrays), results, once=True)
    if name == "shared" and work(inner) > PART and not code.traced:
        return _shared(code, inner, arrays, kinds, results)
    with code.marked(name):
        return evaluate(code, inner, arrays)


def _shared(code, inner, arrays, kinds, results):
    """What a function leads to that is made once, and called wherever it is given the same kinds of numbers."""
    sizes = replace(code.sizes, largest=0)
    arrays = [small(code, x) if kind.size <= sizes.small else stored(code, x, kind) for x, kind in zip(arrays, kinds, strict=True)]
    names = [name for x in arrays for name in _names(x)]
    known = tuple((kind.shape, kind.dtype, is_small(x) and known_numbers(known_part(x))) for x, kind in zip(arrays, kinds, strict=True))
    key = said(inner), known, tuple((names.index(name), code.types.get(name, name)) for name in names), sizes
    if key in code.shared.made:
        part, there, out = code.shared.made[key]
        # What is given back may be what is given, or a table of known numbers.
        here = {name: name for x in out for name in _names(x)} | dict(zip(there, names, strict=True))
        here |= code.call(part, [here[name] for name in part.given])
        return [_renamed(code, x, here) for x in out]
    out, here = _made_apart(code, lambda: evaluate(code, inner, arrays), results, alone=True)
    # Members that go on together are told apart by more than what is given.
    if here is not None and not code.lanes and set(code.last.given) <= set(names):
        code.share(key, names, list(map(_plain, out)))
    return out if here is None else [_renamed(code, x, here) for x in out]


def _plain(x):
    """The names that an array is made of, without the text they are of."""
    if not is_small(x):
        return Large(x.shape, x.dtype, None, x.pointer)
    return filled([e if is_known(e) else Value(e.name, e.dtype) for e in x.ravel()], x.shape)


def _identity(x):
    """By what an array is the same as another one: its numbers, or where it lies."""
    if is_small(x):
        return x.shape, tuple((entry.dtype, entry.tobytes()) if is_known(entry) else entry.name for entry in x.ravel())
    return x.shape, x.pointer or id(x)


def _apart(code, make, kinds, **how):
    """``make()``, arrays of these kinds, in a function of its own if it is long; ``how``: ``once``, ``alone`` as `Code.apart` has them."""
    arrays, here = _made_apart(code, make, kinds, **how)
    return arrays if here is None else [_renamed(code, x, here) for x in arrays]


def _made_apart(code, make, kinds, **how):
    """`_apart`, with the names that the arrays are made of there, and ``{name there: name here}``, None: it is no function of its own."""
    arrays = []

    def names():
        for x, kind in zip(make(), kinds, strict=True):
            arrays.append(x if is_small(x) else stored(code, x, kind))
        return [name for x in arrays for name in _names(x)]

    return arrays, code.apart(names, **how)


def _when_needed(code, closed, arrays, kinds, results):
    """What a jaxpr leads to, by a program that is compiled when it is first needed."""
    check(closed)
    jaxpr, _ = parts_of(closed)
    read = {x for equation in jaxpr.eqns for x in equation.invars if not isinstance(x, Literal)}
    read.update(x for x in jaxpr.outvars if not isinstance(x, Literal))
    given, pointers, of = [], [], []
    for variable, x, kind in zip(jaxpr.invars, arrays, kinds, strict=True):
        if is_small(x) and all(map(is_known, x.ravel())):
            given.append(x)
        elif variable not in read:
            given.append(filled([kind.dtype.type(0)] * kind.size, kind.shape))
        else:
            # Parameters of a body that moves in a plane are zeros in part: this program is to see them, too.
            given.append(known_part(x) if is_small(x) and any(map(is_known, x.ravel())) else None)
            pointers.append(stored(code, x, kind).pointer)
            of.append(kind)
    rooms = [code.room(kind.size, kind.dtype) for kind in results]
    code.when_needed(Program(closed, given, of, results, code.all_sizes, code.shared), [*pointers, *rooms])
    out = [in_memory(code, room, kind.shape, kind.dtype) for room, kind in zip(rooms, results, strict=True)]
    return [small(code, x) if kind.size <= code.sizes.small else x for x, kind in zip(out, results, strict=True)]


def known_part(x):
    """A small array, None where it is not known."""
    return filled([entry if is_known(entry) else None for entry in x.ravel()], x.shape)


def known_numbers(x):
    """What is known of an argument, as a value that can be compared."""
    return tuple(None if entry is None else (str(np.asarray(entry).dtype), np.asarray(entry).tobytes()) for entry in x.ravel())


def all_known(x):
    """Whether all entries are known of an argument of a `Program`."""
    return x is not None and all(entry is not None for entry in x.ravel())


@dataclass(frozen=True)
class Program:
    """A jaxpr with what is known of its arguments, the kinds of those that are not known, or in part, and of the results.

    Then come the first sizes to try.
    """

    closed: object
    given: list  # for each argument its entries, None where they are not known; or None where none are
    kinds: list
    results: list
    sizes: tuple = SIZES
    shared: Shared = field(default_factory=Shared)  # functions of the text that calls it, which it may call, too


@dataclass(frozen=True)
class Host:
    """A function of Python's that is told arrays of these kinds, and returns nothing."""

    function: object
    kinds: list


def check(closed):
    """Raise `UnknownError` where there is something in a jaxpr that has no rule."""
    for equation in parts_of(closed)[0].eqns:
        name = equation.primitive.name
        for x in (*equation.invars, *equation.outvars):
            type_of(x.aval.dtype)
        if name in (*CALLS, "jaxnsd_rule") or name in _CONTROL:
            for inner in inside(equation):
                check(inner)
        elif name not in rules.RULES and name not in rules.ELEMENTWISE and name != HOST:
            raise UnknownError(f"the operation {name}")


def _entries(code, arrays):
    """All entries of small arrays."""
    return [entry for x in arrays for entry in small(code, x).ravel()]


def _again(entries, kinds):
    """The small arrays of their entries."""
    out, entries = [], list(entries)
    for kind in kinds:
        out.append(filled(entries[: kind.size], kind.shape))
        entries = entries[kind.size :]
    return out


def _dtypes(kinds):
    return [kind.dtype for kind in kinds for _ in range(kind.size)]


def _linear_solve(code, params, arrays, kinds, results):
    """`lax.custom_linear_solve`: its constants come first, in the order of its functions."""
    lengths, jaxprs = params["const_lengths"], params["jaxprs"]
    n = [getattr(lengths, key) for key in ("matvec", "vecmat", "solve")]
    consts = arrays[sum(n[:2]) : sum(n)]
    return evaluate(code, jaxprs.solve, [*consts, *arrays[sum(n) + lengths.transpose_solve :]])


def _cond(code, params, arrays, kinds, results):
    branches, which, arrays = params["branches"], small(code, arrays[0])[()], arrays[1:]
    if is_known(which):
        return evaluate(code, branches[int(np.clip(int(which), 0, len(branches) - 1))], arrays)
    if code.traced or code.lanes:
        return code.switch(which, kinds[0].dtype, branches, arrays, results)
    rooms = [None if kind.size <= code.sizes.small else code.room(kind.size, kind.dtype) for kind in results]
    labels, end, sources = [code.label() for _ in branches], code.label(), []
    dtype = kinds[0].dtype
    if dtype.kind == "b":
        code.branch(which.name, labels[1], labels[0])
    else:
        bits = 8 * dtype.itemsize
        cases = " ".join(f"i{bits} {k}, label %{label}" for k, label in enumerate(labels[:-1]))
        code.line(f"switch i{bits} {which.name}, label %{labels[-1]} [ {cases} ]")
    outside = code.known
    for branch, label in zip(branches, labels, strict=True):
        code.start(label)
        code.known = dict(outside)
        out = _apart(code, lambda branch=branch: evaluate(code, branch, arrays), results)
        for x, kind, room in zip(out, results, rooms, strict=True):
            if room is not None:
                written(code, x, kind.dtype, room)
        sources.append((_entries(code, [x for x, room in zip(out, rooms, strict=True) if room is None]), code.block))
        code.jump(end)
    code.known = outside
    code.start(end)
    numbers = [kind for kind, room in zip(results, rooms, strict=True) if room is None]
    joined = [code.phi(dtype, [(entries[i], block) for entries, block in sources]) for i, dtype in enumerate(_dtypes(numbers))]
    return _with_rooms(code, _again(joined, numbers), results, rooms)


def _with_rooms(code, numbers, kinds, rooms):
    """Arrays, of which small ones are given and the others lie in rooms."""
    numbers = iter(numbers)
    return [
        next(numbers) if room is None else in_memory(code, room, kind.shape, kind.dtype) for kind, room in zip(kinds, rooms, strict=True)
    ]


class _Carry:
    """What a loop carries: small arrays as numbers, large ones in memory."""

    def __init__(self, code, first, kinds):
        self.code, self.kinds = code, kinds
        self.rooms = [None if kind.size <= code.sizes.small else code.room(kind.size, kind.dtype) for kind in kinds]
        self.numbers = [kind for kind, room in zip(kinds, self.rooms, strict=True) if room is None]
        self.dtypes = _dtypes(self.numbers)
        for x, kind, room in zip(first, kinds, self.rooms, strict=True):
            if room is not None:
                written(code, x, kind.dtype, room)
        self.first = self.entries(first)

    def entries(self, arrays):
        """Numbers of the small arrays."""
        return _entries(self.code, [x for x, room in zip(arrays, self.rooms, strict=True) if room is None])

    def arrays(self, entries):
        """The arrays of a pass."""
        return _with_rooms(self.code, _again(entries, self.numbers), self.kinds, self.rooms)

    def next(self, arrays):
        """Hand on the arrays at the end of a pass: the numbers of the small ones."""
        code, entries, moved = self.code, self.entries(arrays), []
        for x, kind, room in zip(arrays, self.kinds, self.rooms, strict=True):
            if room is not None and getattr(x, "pointer", None) != room:
                # What is computed where it is read may read what others are written to.
                moved.append((stored(code, x, kind), kind, room))
        # Two that change places need a copy of one.
        taken = {room for _, _, room in moved}
        moved = [(made(code, kind.shape, kind.dtype, x.at) if x.pointer in taken else x, kind, room) for x, kind, room in moved]
        for x, kind, room in moved:
            written(code, x, kind.dtype, room)
        return entries


def _while(code, params, arrays, kinds, results):
    n, m = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    for_condition, for_body = _ready(code, arrays[:n], kinds[:n]), _ready(code, arrays[n:m], kinds[n:m])
    carry = _Carry(code, arrays[m:], kinds[m:])
    members = Kind(parts_of(params["cond_jaxpr"])[0].outvars[0].aval)

    def goes_on(arrays):
        return evaluate(code, params["cond_jaxpr"], [*for_condition, *arrays])[0]

    def condition(entries):
        go_on = goes_on(carry.arrays(entries))
        if members.shape:
            number, axes = Kind(ShapedArray((), bool)), tuple(range(len(members.shape)))
            (go_on,) = rules.apply(code, "reduce_or", {"axes": axes}, [go_on], [members], [number])
        return small(code, go_on)[()]

    def body(entries):
        before = carry.arrays(entries)
        after = evaluate(code, params["body_jaxpr"], [*for_body, *before])
        if members.shape:
            # Of a batch those go on that are not done yet.
            go_on = goes_on(before)
            after = [_chosen(code, go_on, members, *pair, kind) for *pair, kind in zip(after, before, kinds[m:], strict=True)]
        return carry.next(after)

    return carry.arrays(code.repeat(carry.first, carry.dtypes, condition, body))


def _chosen(code, which, members, yes, no, kind):
    """The members of two arrays, of the first where it says so."""
    wide = Kind(ShapedArray(kind.shape, bool))
    places = {"broadcast_dimensions": tuple(range(len(members.shape))), "shape": kind.shape}
    (which,) = rules.apply(code, "broadcast_in_dim", places, [which], [members], [wide])
    return rules.elementwise(code, "select_n", {}, [which, no, yes], [wide, kind, kind], kind)


def _ready(code, arrays, kinds):
    """What a loop reads in every pass: small arrays as numbers, what is long to compute in memory."""
    return [
        small(code, x) if kind.size <= code.sizes.small else settled(code, large(code, x, kind.dtype)) if not is_small(x) else x
        for x, kind in zip(arrays, kinds, strict=True)
    ]


#: Entries of a part of an array in memory that are read at once; those of a longer one, which a loop within the loop may go through, when
#: they are asked for.
READ = 64


def row(code, x, kind, k):
    """The k-th part of an array along its first axis."""
    if is_small(x) and is_known(k):
        part = x[int(k)]
        return part if isinstance(part, np.ndarray) else scalar(part)
    whole = large(code, x, kind.dtype)
    out = Large(kind.shape[1:], kind.dtype, lambda index: whole.at([k, *index]), cheap=whole.cheap, depth=whole.depth + 1)
    if whole.pointer is not None and out.size > min(READ, code.sizes.small):
        place = code.place(whole.pointer, code.whole_numbers("mul", k, np.int64(out.size)), kind.dtype)
        return in_memory(code, place, out.shape, kind.dtype)
    return small(code, out) if out.size <= code.sizes.small else out


#: Passes up to which a loop in a kernel that stores rows is written out.
ROWS = 16


def _scan(code, params, arrays, kinds, results):
    n, m = scan_sizes(params)
    m += n
    length, closed = params["length"], params["jaxpr"]
    rows_in, rows_out, there = kinds[m:], results[m - n :], code.places[m - n :]
    if m == n and length > 1 and code.spread is not None and not code.inside and length * work(closed) > SHARED:
        return code.spread(code, closed, arrays, kinds, results, n, length)
    consts = _ready(code, arrays[:n], kinds[:n])
    # What is passed through once, as the steps of a run are, takes longer to compile than to run.
    pays = (code.inside or m == n) and length * work(closed) <= code.sizes.passes and not _seeks(closed)
    if code.traced and rows_out:
        # Without memory there are no rows that a loop could write.
        pays = length <= ROWS
        if not pays:
            raise UnknownError(f"a loop in a kernel that stores {length} rows")
    if pays and sum(kind.size for kind in rows_out) <= code.sizes.small:
        return _written_out(code, params, closed, consts, arrays[n:m], arrays[m:], rows_in, rows_out)
    rooms = [there or code.room(kind.size, kind.dtype) for there, kind in zip(there, rows_out, strict=True)]
    carry = _Carry(code, arrays[n:m], kinds[n:m])
    rows = [settled(code, large(code, x, kind.dtype)) for x, kind in zip(arrays[m:], rows_in, strict=True)]
    of_pass = [Kind(x.aval) for x in parts_of(closed)[0].outvars]

    def body(k, entries):
        if params["reverse"]:
            k = rules.of(code, "sub", [np.int64(length - 1), k], np.int64)
        x = [row(code, whole, kind, k) for whole, kind in zip(rows, rows_in, strict=True)]
        out = _apart(code, lambda: evaluate(code, closed, [*consts, *carry.arrays(entries), *x]), of_pass)
        write_rows(code, out[m - n :], rows_out, rooms, k)
        return carry.next(out[: m - n])

    last = code.loop(np.int64(length), carry.first, carry.dtypes, body) if length else carry.first
    return [*carry.arrays(last), *(in_memory(code, room, kind.shape, kind.dtype) for room, kind in zip(rooms, rows_out, strict=True))]


def _seeks(closed):
    """Whether what a pass reads depends on what it finds: written out, it would be a choice among all there is."""
    return any(equation.primitive.name in ("argmax", "argmin") for equation in parts_of(closed)[0].eqns)


def write_rows(code, out, kinds, rooms, k):
    """Write the k-th parts of arrays."""
    for x, kind, room in zip(out, kinds, rooms, strict=True):
        written(code, x, kind.dtype, row_place(code, kind, room, k))


def row_place(code, kind, room, k):
    """The pointer to the k-th part of an array of this kind that lies in a room."""
    return code.place(room, code.whole_numbers("mul", k, np.int64(math.prod(kind.shape[1:]))), kind.dtype)


def _written_out(code, params, closed, consts, carry, rows, rows_in, rows_out):
    length, out = params["length"], []
    order = reversed(range(length)) if params["reverse"] else range(length)
    for k in order:
        x = [row(code, whole, kind, np.int64(k)) for whole, kind in zip(rows, rows_in, strict=True)]
        result = evaluate(code, closed, [*consts, *carry, *x])
        carry, parts = result[: len(carry)], result[len(carry) :]
        out.append([small(code, x) for x in parts])
    out = out[::-1] if params["reverse"] else out
    if not out:
        return [*carry, *(filled([], kind.shape) for kind in rows_out)]
    return [*carry, *(np.stack(column) for column in zip(*out, strict=True))]


def entries(closed, small, shared=None):
    """Number of entries of the arrays of a jaxpr that have no more than ``small``; what is compiled later is a program of its own.

    Of functions that are `marks.shared` one counts of those with as many operations on the same shapes: the set of those there have been.
    """
    total, shared = 0, set() if shared is None else shared
    for equation in parts_of(closed)[0].eqns:
        inner, name = inside(equation), equation.params.get("name")
        if name == "when_needed" and work(inner[0]) > LATER:
            continue
        if name == "shared":
            alike = count(inner[0]), *(tuple(x.aval.shape) for x in (*equation.invars, *equation.outvars))
            if alike in shared:
                continue
            shared.add(alike)
        sizes = [math.prod(x.aval.shape) for x in equation.outvars] if not inner else [entries(part, small, shared) for part in inner]
        total += sum(size for size in sizes if inner or size <= small)
    return total


def work(closed):
    """Operations on numbers of a jaxpr, about; without end for one with a loop whose end is not known."""
    total = 0
    for equation in parts_of(closed)[0].eqns:
        name, params = equation.primitive.name, equation.params
        if name == "while":
            return np.inf
        inner = inside(equation)
        if inner:
            total += sum(map(work, inner)) * (params["length"] if name == "scan" else 1)
        elif name == "dot_general":
            (over, _), _ = params["dimension_numbers"]
            a = equation.invars[0].aval.shape
            total += Kind(equation.outvars[0].aval).size * int(np.prod([a[i] for i in over], dtype=int))
        elif name in rules.ELEMENTWISE or name.startswith("reduce"):
            total += max(Kind(x.aval).size for x in (*equation.invars[:1], *equation.outvars))
        elif name.startswith("dynamic"):
            total += Kind(equation.outvars[0].aval).size // 4
    return total


_CONTROL = {"cond": _cond, "while": _while, "scan": _scan, "custom_linear_solve": _linear_solve}
