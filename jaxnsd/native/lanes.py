"""Native code for several members of a batch at once: a number is a vector register, with a lane for each of them.

The rules are those of a single member, which ask `Lanes` for what they ask `code.Code`. What is the same for all members, the places in an
array say, stays one number. Of a branch that some members take all do the work, and those that do not take it keep what they have; a branch
that none of them takes is left out. A loop ends with its last member. An array in memory has the numbers of all lanes next to each other.
What is compiled when it is needed is called by one member after the other.
"""

import contextlib

import numpy as np

from .arrays import filled, in_memory, is_small, large, small, written
from .code import ZERO, Code, Sum, UnknownError, Value, is_known, literal, stored_type, type_of
from .control import Program, evaluate, work
from .rules import chosen, of

#: Members at once: as many doubles as the widest registers hold.
LANES = 8

#: Operations of a branch, about, up to which all members do it rather than ask whether one has to.
CHEAP = 32


class Lane(Value):
    """A number of each lane."""

    __slots__ = ()


class Wide(str):
    """A pointer to memory in which each entry has the numbers of all lanes."""


class SharedError(UnknownError):
    """A number of each lane where one for all of them is asked for."""


class Lanes(Code):
    """A function as it grows, for members that go on together.

    mask: which of the members take the branches that are being made; None: all
    valid: which of them there are; None: all. Those at the end of a batch that are not do what the last one does
    """

    lanes = LANES

    def __init__(self, sizes, parts, later):
        super().__init__(sizes, parts, later)
        self.wide = False  # whether the operation that is being made is one of lanes
        self.mask = self.valid = None
        self.inside = True

    # Operations.

    @contextlib.contextmanager
    def _as(self, wide):
        before, self.wide = self.wide, wide
        try:
            yield
        finally:
            self.wide = before

    def across(self, entries):
        """A context in which operations are of lanes if one of their operands is."""
        return self._as(any(isinstance(x, Lane) for x in entries))

    def number(self, name, dtype):
        return (Lane if self.wide else Value)(name, dtype)

    def kind(self, dtype):
        return f"<{LANES} x {type_of(dtype)}>" if self.wide else type_of(dtype)

    def suffix(self, dtype):
        with self._as(False):
            suffix = super().suffix(dtype)
        return f"v{LANES}{suffix}" if self.wide else suffix

    def text(self, entry, dtype):
        if not self.wide:
            if isinstance(entry, Lane):
                raise SharedError("a number of each lane")
            return super().text(entry, dtype)
        if isinstance(entry, Lane):
            return entry.name
        kind = type_of(dtype)
        if is_known(entry):
            one = f"{kind} {literal(entry, dtype)}"
            return f"<{', '.join([one] * LANES)}>"
        with self._as(False):
            one = entry.name
        vector = self.kind(dtype)
        first = self.value(f"insertelement {vector} poison, {kind} {one}, i64 0", dtype).name
        return self.value(f"shufflevector {vector} {first}, {vector} poison, <{LANES} x i32> zeroinitializer", dtype).name

    def library(self, function, entries):
        if not self.wide:
            return super().library(function, entries)
        vector, out = self.kind(np.float64), "poison"
        names = [self.text(x, np.float64) for x in entries]
        for lane in range(LANES):
            parts = [self._part(vector, name, np.float64, lane) for name in names]
            with self._as(False):
                one = self.value(self.called(function, "double", *(("double", x.name) for x in parts)), np.float64)
            found = self.value(f"insertelement {vector} {out}, double {one.name}, i64 {lane}", np.float64)
            out = found.name
        return found

    def _part(self, vector, name, dtype, lane):
        """The number of a lane, of a vector of this type and name."""
        with self._as(False):
            return self.value(f"extractelement {vector} {name}, i64 {lane}", dtype)

    def lane(self, entry, dtype):
        """An entry as one of lanes."""
        if isinstance(entry, Lane):
            return entry
        with self._as(True):
            return Lane(self.text(entry, dtype), dtype)

    def whole_numbers(self, operation, a, b):
        with self.across([a, b]):
            return super().whole_numbers(operation, a, b)

    def offset(self, index, shape):
        if not any(isinstance(i, Lane) for i in index):
            return super().offset(index, shape)
        at = np.int64(0)
        for i, n in zip(index, shape, strict=True):
            at = self.whole_numbers("add", self.whole_numbers("mul", at, np.int64(n)), i)
        return at

    def _both(self, a, b):
        """Where both hold; None: everywhere."""
        return b if a is None else a if b is None else of(self, "and", [a, b], bool)

    def _any(self, which):
        """Whether it holds for a lane: its name."""
        vector = f"<{LANES} x i1>"
        function = f"llvm.vector.reduce.or.v{LANES}i1"
        with self._as(False):
            return self.value(self.called(function, "i1", (vector, which.name)), bool).name

    # Control flow.

    def _tried(self, make):
        """``make()``, or None and nothing of it where it needs a number for all lanes and has one of each."""
        kept = len(self.lines), self.block, self.known, len(self.later), self.size, self.mask
        self.known = dict(self.known)
        try:
            out = make()
        except SharedError:
            lines, self.block, self.known, later, self.size, self.mask = kept
            del self.lines[lines:], self.later[later:]
            return None
        self.known = kept[2]
        return out

    def count(self, n, first, dtypes, body, start=ZERO):
        if isinstance(n, Lane) or isinstance(start, Lane):

            def condition(carried):
                return of(self, "lt", [carried[0], n], np.int64, bool)

            def one(carried):
                return [self.whole_numbers("add", carried[0], np.int64(1)), *body(carried[0], carried[1:])]

            return self.repeat([start, *first], [np.int64, *dtypes], condition, one)[1:]
        first = [self.lane(x, d) for x, d in zip(first, dtypes, strict=True)]
        before, head, end = self.block, self.label(), self.label()
        self.jump(head)
        self.start(head)
        (k,), place = self._carried([np.int64])
        with self._as(True):
            carried, wide_place = self._carried(dtypes)
        outside, self.known = self.known, dict(self.known)
        last = [self.lane(x, d) for x, d in zip(body(k, carried), dtypes, strict=True)]
        after = self.fresh(f"add nuw nsw i64 {k.name}, 1", np.int64)
        more = self.fresh(f"icmp ult i64 {after.name}, {self.text(n, np.int64)}", bool)
        self._say_carried([k], place, [start], before, [after], self.block)
        with self._as(True):
            self._say_carried(carried, wide_place, first, before, last, self.block)
        self.branch(more.name, head, end)
        self.start(end)
        self.known = outside
        return last

    def repeat(self, first, dtypes, condition, body):
        if not any(isinstance(x, Lane) for x in first):
            done = self._tried(lambda: super(Lanes, self).repeat(first, dtypes, condition, body))
            if done is not None:
                return done
        first = [self.lane(x, d) for x, d in zip(first, dtypes, strict=True)]
        before, head, inside, end = self.block, self.label(), self.label(), self.label()
        self.jump(head)
        self.start(head)
        with self._as(True):
            carried, place = self._carried(dtypes)
        outside, self.known = self.known, dict(self.known)
        outer = self.mask
        going = self._both(outer, self.lane(condition(carried), bool))
        self.branch(self._any(going), inside, end)
        self.start(inside)
        self.mask = going
        last = body(carried)
        self.mask = outer
        last = [self.lane(chosen(self, going, x, y, d), d) for x, y, d in zip(last, carried, dtypes, strict=True)]
        with self._as(True):
            self._say_carried(carried, place, first, before, last, self.block)
        self.jump(head)
        self.start(end)
        self.known = outside
        return carried

    def switch(self, which, of_which, branches, arrays, results):
        """The results of the branch that each member takes."""
        if of_which.kind == "b":
            takes = [of(self, "not", [which], bool), which]
        else:
            last = len(branches) - 1
            takes = [of(self, "eq", [which, of_which.type(k)], of_which, bool) for k in range(last + 1)]
            takes[0] = of(self, "le", [which, of_which.type(0)], of_which, bool)
            takes[last] = of(self, "ge", [which, of_which.type(last)], of_which, bool)
        takes = [self.lane(x, bool) for x in takes]
        rooms = [None if kind.size <= self.sizes.small else self.room(kind.size, kind.dtype) for kind in results]
        dtypes = [kind.dtype for kind, room in zip(results, rooms, strict=True) if room is None for _ in range(kind.size)]
        found, out = [], None
        for k in sorted(range(len(branches)), key=lambda k: work(branches[k])):
            entries, out = self._branch(branches[k], takes[k], arrays, results, rooms, dtypes, out)
            found.append(entries)
        columns = zip(*found, strict=True)
        out = [x[0] if self._alike(x, d) else y for x, y, d in zip(columns, out, dtypes, strict=True)]
        numbers, arrays = iter(out), []
        for kind, room in zip(results, rooms, strict=True):
            if room is None:
                arrays.append(filled([next(numbers) for _ in range(kind.size)], kind.shape))
            else:
                arrays.append(in_memory(self, room, kind.shape, kind.dtype))
        return arrays

    def _branch(self, closed, takes, arrays, results, rooms, dtypes, out):
        """Entries of the results of one branch, and those of all branches so far."""
        outer, outside = self.mask, self.known
        self.mask = self._both(outer, takes)
        cheap, before, skip = work(closed) <= CHEAP, self.block, self.label()
        if not cheap:
            taken = self.label()
            self.branch(self._any(self.mask), taken, skip)
            self.start(taken)
        # What is written to memory in here is so for those that take the branch.
        self.known = dict(outside)
        entries = []
        for x, kind, room in zip(evaluate(self, closed, arrays), results, rooms, strict=True):
            if room is None:
                entries += small(self, x).ravel().tolist()
            else:
                written(self, x, kind.dtype, room)
        if out is None:
            new = [self.lane(x, d) for x, d in zip(entries, dtypes, strict=True)]
            old = [self.lane(d.type(0), d) for d in dtypes]
        else:
            old = out
            new = [self.lane(chosen(self, takes, x, y, d), d) for x, y, d in zip(entries, out, dtypes, strict=True)]
        self.mask, self.known = outer, outside
        if cheap:
            return entries, new
        last = self.block
        self.jump(skip)
        self.start(skip)
        with self._as(True):
            return entries, [self.phi(d, [(x, before), (y, last)]) for x, y, d in zip(old, new, dtypes, strict=True)]

    def _alike(self, entries, dtype):
        """Whether the results of all branches are the same, known ones."""
        return all(map(is_known, entries)) and len({literal(x, dtype) for x in entries}) == 1

    def when_needed(self, program, pointers):
        """Each member calls for itself, with arrays of its own."""
        kinds = [*program.kinds, *getattr(program, "results", [])]
        mask = self.mask if isinstance(program, Program) else self._both(self.mask, self.valid)
        own = [super(Lanes, self).room(k.size, k.dtype) if isinstance(p, Wide) else p for p, k in zip(pointers, kinds, strict=True)]
        of_lanes, n = list(zip(pointers, own, kinds, strict=True)), len(program.kinds)

        def one(lane):
            for wide, place, kind in of_lanes[:n]:
                if isinstance(wide, Wide):
                    self._moved(str(wide), lane, LANES, place, ZERO, 1, kind)
            super(Lanes, self).when_needed(program, own)
            for wide, place, kind in of_lanes[n:]:
                self._moved(place, ZERO, 1, str(wide), lane, LANES, kind)

        self._each_lane(mask, one)

    def _each_lane(self, mask, body):
        """``body(lane)`` for those that take part."""

        def one(k, _):
            if mask is None:
                body(k)
                return []
            there = self.fresh(f"extractelement <{LANES} x i1> {mask.name}, i64 {k.name}", bool)
            inside, after = self.label(), self.label()
            self.branch(there.name, inside, after)
            self.start(inside)
            body(k)
            self.jump(after)
            self.start(after)
            return []

        super().count(np.int64(LANES), [], [], one)

    def _moved(self, source, first, step, to, first_there, step_there, kind):
        """Copy the numbers of an array, which lie so far from each other."""
        if not kind.size:
            return

        def place(k, first, step):
            return self.whole_numbers("add", self.whole_numbers("mul", k, np.int64(step)), first)

        def one(k, _):
            x = super(Lanes, self).load(source, place(k, first, step), kind.dtype)
            super(Lanes, self).store(x, to, place(k, first_there, step_there), kind.dtype)
            return []

        super().count(np.int64(kind.size), [], [], one)

    # Memory.

    def room(self, size, dtype):
        return Wide(super().room(LANES * size, dtype))

    def place(self, pointer, offset, dtype):
        if not isinstance(pointer, Wide):
            return super().place(pointer, offset, dtype)
        if is_known(offset) and offset == 0:
            return pointer
        if isinstance(offset, Sum):
            pointer, offset = self.place(pointer, offset.first, dtype), np.int64(offset.more)
        kind = f"[{LANES} x {stored_type(dtype)}]"
        return Wide(self.value(f"getelementptr {kind}, ptr {pointer}, i64 {self.text(offset, np.int64)}", np.int64).name)

    def load(self, pointer, offset, dtype):
        dtype = np.dtype(dtype)
        if isinstance(offset, Lane):
            return self._gathered(pointer, offset, dtype)
        if not isinstance(pointer, Wide):
            return super().load(pointer, offset, dtype)
        place, kind = self.place(pointer, offset, dtype), f"<{LANES} x {stored_type(dtype)}>"
        with self._as(True):
            x = self.fresh(f"load {kind}, ptr {place}, align {dtype.itemsize}", dtype)
            return self.fresh(f"trunc {kind} {x.name} to <{LANES} x i1>", bool) if dtype.kind == "b" else x

    def _places(self, pointer, offset, dtype):
        """Of each lane the pointer to its own entry: their name, of a vector."""
        if isinstance(pointer, Wide):
            own = f"<{', '.join(f'i64 {lane}' for lane in range(LANES))}>"
            offset = self.whole_numbers("mul", offset, np.int64(LANES))
            with self._as(True):
                offset = self.value(f"add nsw {self.kind(np.int64)} {offset.name}, {own}", np.int64)
        text = f"getelementptr {stored_type(dtype)}, ptr {pointer}, <{LANES} x i64> {offset.name}"
        with self._as(True):
            return self.value(text, np.int64).name

    def _gathered(self, pointer, offset, dtype):
        """An entry of each lane at a place of its own."""
        kind, everywhere = f"<{LANES} x {stored_type(dtype)}>", f"<{', '.join(['i1 true'] * LANES)}>"
        operands = [(f"<{LANES} x ptr>", self._places(pointer, offset, dtype)), ("i32", str(dtype.itemsize))]
        operands += [(f"<{LANES} x i1>", everywhere), (kind, "poison")]
        with self._as(True):
            suffix = f"{self._stored_suffix(dtype)}.v{LANES}p0"
            x = self.fresh(self.called(f"llvm.masked.gather.{suffix}", kind, *operands), dtype)
            return self.fresh(f"trunc {kind} {x.name} to <{LANES} x i1>", bool) if dtype.kind == "b" else x

    def _stored_suffix(self, dtype):
        return f"v{LANES}i8" if dtype.kind == "b" else self.suffix(dtype)

    def store(self, entry, pointer, offset, dtype):
        dtype = np.dtype(dtype)
        if not isinstance(pointer, Wide):
            raise UnknownError("a place in memory that lanes share")
        entry = self.lane(entry, dtype)
        if isinstance(offset, Lane):
            self._scattered(entry, pointer, offset, dtype)
            return
        if self.mask is not None:
            entry = self.lane(chosen(self, self.mask, entry, self.load(pointer, offset, dtype), dtype), dtype)
        text, place = entry.name, self.place(pointer, offset, dtype)
        kind = f"<{LANES} x {stored_type(dtype)}>"
        if dtype.kind == "b":
            with self._as(True):
                text = self.value(f"zext <{LANES} x i1> {text} to {kind}", np.int8).name
        self.line(f"store {kind} {text}, ptr {place}, align {dtype.itemsize}")

    def _scattered(self, entry, pointer, offset, dtype):
        kind, text = f"<{LANES} x {stored_type(dtype)}>", entry.name
        if dtype.kind == "b":
            with self._as(True):
                text = self.value(f"zext <{LANES} x i1> {text} to {kind}", np.int8).name
        mask = self.lane(np.True_ if self.mask is None else self.mask, bool).name
        operands = [(kind, text), (f"<{LANES} x ptr>", self._places(pointer, offset, dtype)), ("i32", str(dtype.itemsize))]
        with self._as(True):
            suffix = f"{self._stored_suffix(dtype)}.v{LANES}p0"
        self.line(self.called(f"llvm.masked.scatter.{suffix}", "void", *operands, (f"<{LANES} x i1>", mask)))

    def copy(self, to, source, size, dtype):
        if self.mask is None and isinstance(to, Wide) and isinstance(source, Wide):
            super().copy(to, source, LANES * size, dtype)
            return

        def one(k, _):
            self.store(self.load(source, k, dtype), to, k, dtype)
            return []

        self.passes(size, [], [], one)

    # The members.

    def each(self, which):
        """``which(lane)``, whether something holds, of each lane."""
        out = Lane("poison", bool)
        for lane in range(LANES):
            one = self.text(which(np.int64(lane)), bool)
            with self._as(True):
                out = self.value(f"insertelement {self.kind(bool)} {out.name}, i1 {one}, i64 {lane}", bool)
        return out

    def given(self, pointer, member, kind):
        """The array of each member, of those that lie one after the other; member: (lane) -> which one it is."""
        room = self.room(kind.size, kind.dtype)

        def one(lane):
            first = self.whole_numbers("mul", member(lane), np.int64(kind.size))
            self._moved(pointer, first, 1, str(room), lane, LANES, kind)

        self._each_lane(None, one)
        return in_memory(self, room, kind.shape, kind.dtype)

    def returned(self, x, pointer, member, kind):
        """Write the array of each member to those that lie one after the other."""
        if is_small(x) or x.pointer is None or not isinstance(x.pointer, Wide):
            room = self.room(kind.size, kind.dtype)
            written(self, x if is_small(x) else large(self, x, kind.dtype), kind.dtype, room)
        else:
            room = x.pointer

        def one(lane):
            first = self.whole_numbers("mul", member(lane), np.int64(kind.size))
            self._moved(str(room), lane, LANES, pointer, first, 1, kind)

        self._each_lane(None, one)
