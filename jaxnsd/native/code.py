"""Text of an LLVM function as it grows: numbers, blocks, loops, memory.

A number is an *entry*: a NumPy scalar, which is known while the function is made, or a `Value`, which is known when it runs. What is known
is folded: a product with a known zero is zero, one with one the other factor. The zeros of a mass matrix and of force directions cost
nothing that way. It also means that such a zero times a number that is not finite is zero here; a zero that is written in a product by
hand is left to be multiplied.
"""

import contextlib
import dataclasses
import functools
import hashlib
import math
import re
import struct
from dataclasses import dataclass

import jax
import numpy as np


@dataclass(frozen=True)
class Sizes:
    """How much of a function is written out, number by number; the rest are loops over memory."""

    small: int  # entries up to which an array is numbers
    products: int  # multiplications up to which a product of matrices is
    passes: int  # operations, about, up to which a loop of a known number of passes is
    largest: int  # operations of the function: above it is made anew with the next sizes
    plain: bool = False  # whether LLVM is told to leave short loops as they are


#: What is tried, one after the other. Written out, zeros are seen and nothing is stored: robots run half as long that way, and LLVM takes
#: 0.05 ms a line. Where many bodies or contacts are alike, loops are less text: eight spheres in a box are compiled in half the time, six
#: dominoes too, and run as long or less. A humanoid, 115,000 operations, is the largest that is better written out.
#: Two free solids whose contact is searched, with located impacts, are above 200,000: as loops that takes 65 CPU s, by XLA many minutes.
#: The derivative of two bodies, of a capsule and a plane, with located impacts has 630,000: 175 CPU s, by XLA 300.
SIZES = (Sizes(512, 2048, 12_000, 116_000), Sizes(16, 64, 100, 1_000_000, True))


class UnknownError(NotImplementedError):
    """Something that this back end has no rule for: the caller leaves it to XLA."""


class TooLargeError(UnknownError):
    """A function that has too many operations."""


class Value:
    """A number that is known when the function runs: its name in the text, and its dtype."""

    __slots__ = ("dtype", "name")

    def __init__(self, name, dtype):
        self.name, self.dtype = name, np.dtype(dtype)


class Sum(Value):
    """A place: a whole number and a known one. Loads and stores say the known one with their pointers; elsewhere both are added."""

    __slots__ = ("code", "first", "more")

    def __init__(self, code, first, more):
        self.code, self.first, self.more, self.dtype = code, first, more, np.dtype(np.int64)

    @property
    def name(self):
        """The sum's."""
        return self.code.value(f"add nsw i64 {self.first.name}, {self.more}", np.int64).name


def is_known(entry):
    """Whether an entry is a NumPy scalar."""
    return not isinstance(entry, Value)


_TYPES = {"float64": "double", "float32": "float", "bool": "i1"}


def dtype_of_numbers(dtype):
    """NumPy's dtype; JAX has others, of keys say."""
    if jax.dtypes.issubdtype(dtype, jax.dtypes.extended):
        raise UnknownError(f"arrays of dtype {dtype}")
    return np.dtype(dtype)


@functools.cache
def type_of(dtype):
    """LLVM's type of a number."""
    dtype = dtype_of_numbers(dtype)
    if dtype.subdtype:
        return f"<{dtype.shape[0]} x {type_of(dtype.base)}>"
    if dtype.kind in "iu":
        return f"i{8 * dtype.itemsize}"
    if dtype.name not in _TYPES:
        raise UnknownError(f"numbers of dtype {dtype.name}")
    return _TYPES[dtype.name]


def stored_type(dtype):
    """LLVM's type of a number in memory: that of a boolean is a byte."""
    return "i8" if np.dtype(dtype) == bool else type_of(dtype)


def literal(x, dtype):
    """The text of a known number; of a vector zeros alone are known."""
    dtype = np.dtype(dtype)
    if dtype.subdtype:
        return "zeroinitializer"
    if dtype.kind == "b":
        return "true" if x else "false"
    if dtype.kind == "f":
        # Of single precision, too, LLVM reads the bits of the double that it equals.
        return f"0x{struct.unpack('<Q', struct.pack('<d', float(np.asarray(x, dtype))))[0]:016X}"
    return str(int(x))


#: Lines from which on a loop or a branch is a function of its own.
PART = 1000

#: Part of the largest text from which on it tells how long all of it will be, and how much of that is taken for certain.
TOLD, SLACK = 0.25, 1.3

#: How the names of functions begin that are called once in a run.
ONCE = "once"

_NAME, _ROOM = re.compile(r"%v\d+"), re.compile(r"ptr %memory, i64 (\d+)")
_CALLED, _LATER = re.compile(r"call void (@(?:part|once)_\w+)\("), re.compile(r"(?:load|getelementptr) \w+, ptr %later")
_RENAMED = re.compile(r"\b[vb]\d+\b")

#: Passes up to which a loop over entries, or terms, is written out.
FEW = 4

#: Passes from which on LLVM may make a loop longer to make it faster, and what tells it not to. Where there are many short ones it would
#: treble the code; a quadruped, which has few, would run 17 % slower without.
WORTH, AS_IT_IS = 64, ", !llvm.loop !0"
AS_IT_IS_MEANS = """!0 = distinct !{!0, !1, !2}
!1 = !{!"llvm.loop.unroll.disable"}
!2 = !{!"llvm.loop.vectorize.enable", i1 false}
"""

#: Where loops start.
ZERO = np.int64(0)

#: Working memory: what it takes to have some, with what counts how often there was none, and how a function begins that does.
MEMORY = {
    "malloc": "declare ptr @malloc(i64)",
    "free": "declare void @free(ptr)",
    "jaxnsd_failures": "@jaxnsd_failures = external global i64",
}
_BEGIN = """
begin:
  %memory = call ptr @malloc(i64 {size})
  %none = icmp eq ptr %memory, null
  br i1 %none, label %without, label %entry
without:
  %failures = atomicrmw add ptr @jaxnsd_failures, i64 1 seq_cst
  ret void
entry:"""


@dataclass(frozen=True)
class Part:
    """A function of its own: its name, names of what it is given, names and types of what it gives back, bytes of working memory."""

    function: str
    given: list
    back: dict
    memory: int


class Shared:
    """Functions that a program and those that it compiles later call in several places."""

    def __init__(self):
        self.made = {}  # `Part`s with the names that they are given there, and their results there, by what they do
        self.texts, self.declared = {}, {}  # their texts, and what these read and call, by name


class Code:
    """A function ``void f(ptr args, ptr results)`` as it grows; both point to pointers to arrays."""

    traced = False  # whether entries are traced by JAX, as those of `blocks.Blocks`
    lanes, wide = 0, False  # of how many members it computes the numbers at once, and whether it does; see `lanes.Lanes`

    def __init__(self, sizes=SIZES, parts=None, later=None):
        parts, later = {} if parts is None else parts, [] if later is None else later
        self.all_sizes = sizes  # its own, and those that come after
        self.sizes, self.lines, self.names, self.block, self.size = sizes[0], [], 0, "entry", 0
        self.entries, self.expected = 0, 0  # of arrays, where the text is given up if it will be too large: made so far, and in all; else 0
        self.once = False  # whether one operation alone reads what is being made
        self.places = []  # where its arrays are to lie, pointers or None
        self.known = {}  # what has been computed already: {operation and operands: result}
        self.declared = {}
        self.memory = 0  # bytes of working memory
        self.inside = False  # whether a loop is being made
        self.types = {}  # LLVM's types of names
        self.shared = Shared()  # functions that are called in several places, of other programs too
        self.last = None  # the `Part` that was made last
        self.parts = parts  # the functions that are called from here, and from each other: texts by name, those called first
        self.later = later  # programs that are compiled when they are first needed
        self.spread = None  # what makes a loop over members that several threads share

    @contextlib.contextmanager
    def marked(self, name):
        """What is made in here is written out less ("in_memory"), or as much as the function is ("written_out"); else as before."""
        outside = self.sizes
        if name in ("in_memory", "written_out"):
            of = SIZES[-1] if name == "in_memory" else self.all_sizes[0]
            self.sizes = dataclasses.replace(of, largest=outside.largest)
        try:
            yield
        finally:
            self.sizes = outside

    def advanced(self, n):
        """``n`` more of the entries that are expected have been made, or were there: give up where it will be too large."""
        self.entries += n
        if self.size > TOLD * self.sizes.largest and self.size * self.expected > SLACK * self.sizes.largest * self.entries:
            raise TooLargeError(f"{self.size} operations for {self.entries} of {self.expected} entries")

    def number(self, name, dtype):
        """The number of a name."""
        return Value(name, dtype)

    def kind(self, dtype):
        """LLVM's type of an operand."""
        return type_of(dtype)

    def suffix(self, dtype):
        """How the name of LLVM's own functions ends, of floats and whole numbers."""
        dtype = np.dtype(dtype)
        return f"f{8 * dtype.itemsize}" if dtype.kind == "f" else type_of(dtype)

    def text(self, entry, dtype):
        """An operand."""
        return entry.name if isinstance(entry, Value) else literal(entry, dtype)

    def name(self):
        """A new name."""
        self.names += 1
        return f"%v{self.names}"

    def line(self, text):
        """Add a line."""
        self.lines.append("  " + text)

    def value(self, text, dtype):
        """The result of an operation; the same operation on the same operands is done once."""
        key = text, np.dtype(dtype)
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = self.fresh(text, dtype)
        return found

    def fresh(self, text, dtype):
        """The result of an operation that has to be done here, a load or a call."""
        self.size += 1
        if self.size > self.sizes.largest:
            raise TooLargeError(f"more than {self.sizes.largest} operations")
        name = self.name()
        self.line(f"{name} = {text}")
        if text.startswith("getelementptr"):
            self.types[name] = f"<{self.lanes} x ptr>" if self.wide else "ptr"
        elif text.startswith("load"):
            self.types[name] = text[5 : text.index(",")]
        else:
            self.types[name] = self.kind(dtype)
        return self.number(name, dtype)

    def library(self, function, entries):
        """A function of the C library, of doubles."""
        return self.value(self.called(function, "double", *(("double", self.text(x, np.float64)) for x in entries)), np.float64)

    def called(self, function, result, *operands):
        """The text of a call of an external function; operands are pairs of type and text."""
        self.declared[function] = f"declare {result} @{function}({', '.join(kind for kind, _ in operands)})"
        return f"call {result} @{function}({', '.join(f'{kind} {operand}' for kind, operand in operands)})"

    # Blocks.

    def label(self):
        """A new block's name."""
        self.names += 1
        return f"b{self.names}"

    def start(self, label):
        """Go on in a block."""
        self.lines.append(f"{label}:")
        self.block = label

    def jump(self, label):
        """End the block."""
        self.line(f"br label %{label}")

    def branch(self, condition, yes, no):
        """End the block."""
        self.line(f"br i1 {condition}, label %{yes}, label %{no}")

    def phi(self, dtype, sources):
        """A number that comes from one of several blocks: pairs of entry and block."""
        first = sources[0][0]
        if all(entry is first for entry, _ in sources):
            return first
        if all(is_known(entry) and literal(entry, dtype) == literal(first, dtype) for entry, _ in sources):
            return first
        incoming = ", ".join(f"[ {self.text(entry, dtype)}, %{block} ]" for entry, block in sources)
        name = self.name()
        self.line(f"{name} = phi {self.kind(dtype)} {incoming}")
        self.types[name] = self.kind(dtype)
        return self.number(name, dtype)

    def _carried(self, dtypes):
        """Numbers that a loop carries, and the places in the text where they are said."""
        names = [self.name() for _ in dtypes]
        self.types.update(zip(names, map(self.kind, dtypes), strict=True))
        place = len(self.lines)
        self.lines += [""] * len(names)
        return [self.number(name, dtype) for name, dtype in zip(names, dtypes, strict=True)], place

    def _say_carried(self, values, place, first, before, last, after):
        for i, (value, a, b) in enumerate(zip(values, first, last, strict=True)):
            kind, dtype = self.kind(value.dtype), value.dtype
            self.lines[place + i] = f"  {value.name} = phi {kind} [ {self.text(a, dtype)}, %{before} ], [ {self.text(b, dtype)}, %{after} ]"

    def count(self, n, first, dtypes, body, start=ZERO):
        """``for k in range(start, n): carried = body(k, carried)``, one pass at least: what is carried at the end."""
        before, head, end = self.block, self.label(), self.label()
        self.jump(head)
        self.start(head)
        (k, *carried), place = self._carried([np.int64, *dtypes])
        outside, self.known = self.known, dict(self.known)
        outer, self.inside = self.inside, True
        last = body(k, carried)
        self.inside = outer
        after = self.fresh(f"add nuw nsw i64 {k.name}, 1", np.int64)
        more = self.fresh(f"icmp ult i64 {after.name}, {self.text(n, np.int64)}", bool)
        self._say_carried([k, *carried], place, [start, *first], before, [after, *last], self.block)
        plain = self.sizes.plain and is_known(n) and is_known(start) and n - start < WORTH
        self.line(f"br i1 {more.name}, label %{head}, label %{end}{AS_IT_IS if plain else ''}")
        self.start(end)
        self.known = outside
        return last

    def loop(self, n, first, dtypes, body):
        """`count` of the passes of a `lax.scan`."""
        return self.count(n, first, dtypes, body)

    def passes(self, n, first, dtypes, body):
        """`count` of a known number of passes, perhaps none: a few are written out."""
        if n > FEW:
            return self.count(np.int64(n), first, dtypes, body)
        for k in range(n):
            first = body(np.int64(k), first)
        return first

    def repeat(self, first, dtypes, condition, body):
        """``while condition(carried): carried = body(carried)``: what is carried at the end."""
        before, head, inside, end = self.block, self.label(), self.label(), self.label()
        self.jump(head)
        self.start(head)
        carried, place = self._carried(dtypes)
        outside, self.known = self.known, dict(self.known)
        self.branch(self.text(condition(carried), bool), inside, end)
        self.start(inside)
        outer, self.inside = self.inside, True
        last = body(carried)
        self.inside = outer
        self._say_carried(carried, place, first, before, last, self.block)
        self.line(f"br label %{head}{AS_IT_IS if self.sizes.plain else ''}")
        self.start(end)
        self.known = outside
        return carried

    def nest(self, shape, body):
        """``body(index)`` for every index of an array."""
        if 0 in shape:
            return
        if math.prod(shape) <= FEW:
            for index in np.ndindex(*shape):
                body([np.int64(k) for k in index])
            return

        def inner(k, _):
            self.nest(shape[1:], lambda rest: body([k, *rest]))
            return []

        if shape[0] == 1:
            inner(ZERO, [])
        else:
            self.count(np.int64(shape[0]), [], [], inner)

    # Vectors: numbers of a dtype with a shape, as np.dtype((float, 4)).

    def everywhere(self, entry, dtype):
        """A vector of one number."""
        kind = type_of(dtype)
        first = self.value(f"insertelement {kind} poison, {type_of(dtype.base)} {self.text(entry, dtype.base)}, i64 0", dtype)
        return self.value(f"shufflevector {kind} {first.name}, {kind} poison, <{dtype.shape[0]} x i32> zeroinitializer", dtype)

    def of_vectors(self, operation, a, b, dtype):
        """``a + b``, ``a - b``, ``a * b`` or ``a / b``: operations are fadd, fsub, fmul, fdiv."""
        return self.value(f"{operation} contract {type_of(dtype)} {self.text(a, dtype)}, {self.text(b, dtype)}", dtype)

    def function(self, head):
        """The text of the function, of which ``head`` says name and arguments."""
        later = "  %later = getelementptr ptr, ptr @later, i64 0"
        if self.memory:
            begin, last = _BEGIN.format(size=self.memory), ["  call void @free(ptr %memory)"]
        else:
            begin, last = "entry:\n  %memory = getelementptr i8, ptr null, i64 0", []
        return "\n".join([head + " {", begin, later, *self.lines, *last, "  ret void", "}", ""])

    # Functions of their own.

    def apart(self, make, once=False, alone=False):
        """``make()``, names of numbers and pointers, in a function of its own where it is long: ``{name there: name here}``, else None.

        LLVM's time grows faster than the length of a function. And a function has the name of its text, so that it is compiled once for
        all programs: a run of other length has the same step. What is done ``once`` in a run is compiled in a fifteenth of the time, to
        code that takes five times as long. ``alone``: it is the same wherever it is called, whatever has been computed before.
        """
        before, known, base, first, label = self.block, self.known, self.memory, len(self.lines), self.label()
        self.jump(label)
        self.start(label)
        self.known = {} if alone else dict(known)
        out = make()
        if out is None or len(self.lines) - first < PART:
            return None
        lines = self.lines[first + 1 :]
        del self.lines[first:]
        self.block, self.known = before, known
        defined = {line[2 : line.index(" ", 2)] for line in lines if line.startswith("  %")}
        given = [name for name in dict.fromkeys(name for line in lines for name in _NAME.findall(line)) if name not in defined]
        back = [name for name in dict.fromkeys(out) if name in defined]
        for k, name in enumerate(back):
            place = f"getelementptr i8, ptr %out, i64 {8 * k * (self.lanes or 1)}"
            lines += [f"  %out{k} = {place}", f"  store {self.types[name]} {name}, ptr %out{k}, align 8"]
        # Its working memory begins where that of the others ends.
        text = _ROOM.sub(lambda found: f"ptr %memory, i64 {int(found[1]) - base}", "\n".join(lines))
        parameters = ", ".join(["ptr %memory", "ptr %out", "ptr %later", *(f"{self.types[name]} {name}" for name in given)])
        text = f"({parameters}) nounwind {{\nentry:\n  br label %{label}\n{text}\n  ret void\n}}\n"
        # Two that are the same but for names become one.
        names = {}
        text = _RENAMED.sub(lambda found: names.setdefault(found[0], f"{found[0][0]}{len(names)}"), text)
        function = f"@{ONCE if once else 'part'}_{hashlib.sha256(text.encode()).hexdigest()[:24]}"
        self.parts.setdefault(function, text)
        self.last = Part(function, given, {name: self.types[name] for name in back}, self.memory - base)
        return self.call(self.last, given, base)

    def call(self, part, given, base=None):
        """Call a `Part` with these names, its memory from ``base`` on, None: of its own: ``{name there: name here}``."""
        if base is None:
            base, self.memory = self.memory, self.memory + part.memory
            self._copied(part.function)
        memory = self.value(f"getelementptr i8, ptr %memory, i64 {base}", np.int64).name
        room = self.room(8 * max(len(part.back), 1), np.int8)
        operands = [f"ptr {memory}", f"ptr {room}", "ptr %later", *(f"{self.types[x]} {x}" for x in given)]
        self.line(f"call void {part.function}({', '.join(operands)})")
        out = {}
        for k, (name, kind) in enumerate(part.back.items()):
            place = self.place(room, np.int64(k), np.int64)
            out[name] = self.fresh(f"load {kind}, ptr {place}, align 8", np.int64).name
        return out

    def share(self, key, names, results):
        """Let others call the `Part` that was made last: it is given what the ``names`` name, and leads to the ``results``."""
        texts, new = {}, [self.last.function]
        while new:
            function = new.pop()
            texts[function] = self.parts[function]
            new += [name for name in _CALLED.findall(texts[function]) if name not in texts]
        # What is compiled later is in a table that other programs do not have.
        if not any(map(_LATER.search, texts.values())):
            self.shared.made[key] = self.last, names, results
            self.shared.texts |= texts
            self.shared.declared |= self.declared

    def _copied(self, function):
        """Take over the text of a function that is shared, with those that it calls."""
        if function not in self.parts:
            text = self.shared.texts[function]
            for name in _CALLED.findall(text):
                self._copied(name)
            self.parts[function] = text
            self.declared = self.shared.declared | self.declared

    def when_needed(self, program, pointers):
        """Call what is no part of the text, of the pointers to arrays: what is compiled then, or Python (`build.Later`, `Told`)."""
        table = Code.room(self, len(pointers), np.int64)
        for k, pointer in enumerate(pointers):
            self.line(f"store ptr {pointer}, ptr {self.place(table, np.int64(k), np.int64)}")
        place = self.place("%later", np.int64(len(self.later)), np.int64)
        self.later.append(program)
        self.line(f"call void {self.fresh(f'load ptr, ptr {place}', np.int64).name}(ptr {table})")

    # Memory.

    def room(self, size, dtype):
        """A piece of working memory."""
        at = self.memory
        self.memory += -(-max(size, 1) * np.dtype(dtype).itemsize // 64) * 64
        return self.value(f"getelementptr i8, ptr %memory, i64 {at}", "int64").name

    def table(self, entries, dtype):
        """The pointer to known numbers."""
        dtype = np.dtype(dtype)
        numbers = [str(int(x)) if dtype.kind == "b" else literal(x, dtype) for x in entries]
        text = f"[{len(numbers)} x {stored_type(dtype)}] [{', '.join(f'{stored_type(dtype)} {x}' for x in numbers)}]"
        name = f"@known_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        self.declared[name] = f"{name} = internal constant {text}"
        return name

    def place(self, pointer, offset, dtype):
        """The pointer to an entry."""
        if is_known(offset) and offset == 0:
            return pointer
        if isinstance(offset, Sum):
            pointer, offset = self.place(pointer, offset.first, dtype), np.int64(offset.more)
        return self.value(f"getelementptr {stored_type(dtype)}, ptr {pointer}, i64 {self.text(offset, np.int64)}", np.int64).name

    def load(self, pointer, offset, dtype):
        """Read an entry."""
        dtype = np.dtype(dtype)
        aligned = f", align {dtype.base.itemsize}" if dtype.subdtype else ""
        x = self.fresh(f"load {stored_type(dtype)}, ptr {self.place(pointer, offset, dtype.base)}{aligned}", dtype)
        return self.fresh(f"trunc i8 {x.name} to i1", bool) if dtype.kind == "b" else x

    def store(self, entry, pointer, offset, dtype):
        """Write an entry."""
        text, dtype = self.text(entry, dtype), np.dtype(dtype)
        if dtype.kind == "b":
            text = self.value(f"zext i1 {text} to i8", np.int8).name
        aligned = f", align {dtype.base.itemsize}" if dtype.subdtype else ""
        self.line(f"store {stored_type(dtype)} {text}, ptr {self.place(pointer, offset, dtype.base)}{aligned}")

    def copy(self, to, source, size, dtype):
        """Copy entries that lie one after the other."""
        function = "llvm.memcpy.p0.p0.i64"
        self.declared[function] = f"declare void @{function}(ptr, ptr, i64, i1)"
        self.line(f"call void @{function}(ptr {to}, ptr {source}, i64 {size * np.dtype(dtype).itemsize}, i1 false)")

    def whole_numbers(self, operation, a, b):
        """``a + b`` or ``a * b`` of offsets."""
        if is_known(a) and is_known(b):
            return np.int64(a + b if operation == "add" else a * b)
        for x, y in ((a, b), (b, a)):
            if is_known(x) and x == (0 if operation == "add" else 1):
                return y
            if is_known(x) and x == 0:
                return np.int64(0)
        return self.value(f"{operation} nsw {self.kind(np.int64)} {self.text(a, np.int64)}, {self.text(b, np.int64)}", np.int64)

    def offset(self, index, shape):
        """Place of an index in an array that lies row by row."""
        at, more = np.int64(0), 0
        for i, n in zip(index, shape, strict=True):
            at, more = self.whole_numbers("mul", at, np.int64(n)), more * n
            if is_known(i):
                more += int(i)
            else:
                at = self.whole_numbers("add", at, i)
        if is_known(at):
            return np.int64(at + more)
        return Sum(self, at, more) if more else at
