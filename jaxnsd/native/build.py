"""A jaxpr as a function that XLA calls: its text, and the machine code that LLVM makes of it."""

import contextlib
import ctypes
import functools
import hashlib
import math
import os
import pickle
import re
import tempfile
import threading
import traceback
import uuid
import weakref
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import numpy as np

from . import alike, calls, control, jaxprs, machine, members
from .arrays import filled, in_memory, small, written
from .code import AS_IT_IS_MEANS, MEMORY, ONCE, SIZES, Code, TooLargeError, UnknownError
from .machine import binding

_NAMES = """
acos acosh asin asinh atan atan2 atanh cbrt cos cosh erf erfc exp exp2 expm1 fmod fmodf log log1p pow sin sinh tan tanh sqrt floor ceil
"""
_LIBRARY = _NAMES.split()
_SYSTEM = ("malloc", "free", "pthread_create", "pthread_join", "memcpy", "memset")

#: Where the number of threads stands for compiled code, and how often it has asked for memory that there was not.
_threads, _failures = ctypes.c_int64(1), ctypes.c_int64(0)

#: The native functions that XLA can call.
native_functions = calls.Functions()


def cores():
    """Cores that this process may use; ``NPROC`` says fewer."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    told = os.environ.get("NPROC", "")
    return max(1, min(allowed, int(told) if told.isdigit() else allowed, members.THREADS))


@functools.cache
def _ready_for_code():
    """LLVM, made ready: what compiled code calls, and what tells this LLVM and this machine from others."""
    library, system = ctypes.CDLL("libm.so.6" if os.name == "posix" and os.uname().sysname == "Linux" else None), ctypes.CDLL(None)
    for source, names in ((library, _LIBRARY), (system, _SYSTEM)):
        for name in names:
            binding.add_symbol(name, ctypes.cast(getattr(source, name), ctypes.c_void_p).value)
    _threads.value = cores()
    binding.add_symbol("jaxnsd_threads", ctypes.addressof(_threads))
    binding.add_symbol("jaxnsd_failures", ctypes.addressof(_failures))
    binding.add_symbol("jaxnsd_functions", native_functions.address)
    return machine.ready()


class Switch(threading.local):
    """On inside of ``with switch():``, in the thread that is there."""

    on = False

    @contextlib.contextmanager
    def __call__(self):
        before, self.on = self.on, True
        try:
            yield
        finally:
            self.on = before


#: What is compiled in here runs once: to make it fast would take longer than it runs.
run_once = Switch()

#: What is compiled in here is loops over memory, not written out: so it is compiled sooner still where it is long.
in_loops = Switch()


def _level():
    """How much is done to make code fast, 0 to 2: as much as XLA does."""
    if run_once.on:
        return 0
    told = re.search(r"--xla_backend_optimization_level=(\d)", os.environ.get("XLA_FLAGS", ""))
    return min(int(told[1]), 2) if told else 2


def text_of(closed, in_full=False):
    """``(Text of a jaxpr, whose function XLA calls, programs that are compiled later)``.

    Raises `UnknownError` where there is something in it that has no rule, or it is too long, with ``in_full`` for the first sizes.
    """
    jaxpr, _ = jaxprs.parts_of(closed)
    kinds, results = ([control.Kind(x.aval) for x in part] for part in (jaxpr.invars, jaxpr.outvars))
    sizes = SIZES[-1:] if in_loops.on else SIZES[:1] if in_full else SIZES
    return _text_of(control.Program(closed, [None] * len(kinds), kinds, results, sizes))


#: Operations for each entry of an array of a step: of a UR5e, a Panda and a humanoid it is 0.32, 0.36 and 0.52, since most entries are only
#: arranged, or known; of a planar robot 0.13. What will be too large by the second is not begun; what may be is given up when it tells. A
#: UR5e in loops would take four times as long.
OPERATIONS, FEWEST = 0.32, 0.1

#: Programs that were too large for the first sizes, by the number of their operations and their arguments: another run of the same step.
_too_large = set()


def _text_of(program, direct=False):
    """Text of a program, and those that are compiled later, with the first sizes that do; ``direct`` as in `_of_size`.

    What has been left for later has to be compiled, however large it is.
    """
    *all_but_last, last = program.sizes
    for k, sizes in enumerate(all_but_last):
        key = sizes, jaxprs.count(program.closed), *((kind.shape, kind.dtype) for kind in program.kinds)
        if key not in _too_large and FEWEST * (entries := control.entries(program.closed, sizes.small)) <= sizes.largest:
            with contextlib.suppress(TooLargeError):
                # What is called now and then has to be compiled soon rather than run fast.
                largest = sizes.largest // 2 if direct else sizes.largest
                return _of_size(program, program.sizes[k:], direct, largest, entries if OPERATIONS * entries > sizes.largest else 0)
            _too_large.add(key)
    return _of_size(program, (last,), direct, math.inf if direct else last.largest)


def _of_size(program, sizes, direct, largest, expected=0):
    """`_text_of` with the first of these sizes; what it leaves for later has them too, or the next ones.

    direct:   whether it is given pointers to its arrays, all in one list, not XLA's structures
    expected: entries in all, where it is given up as soon as it tells that it will be too large; else 0
    """
    functions, declared = [], dict(MEMORY)
    code = Code(sizes)
    code.expected = expected
    code.shared = program.shared
    code.sizes = replace(code.sizes, largest=largest)
    # What is called from a run is called by the thread of a member.
    code.spread = None if direct else functools.partial(members.spread, functions, declared)

    def pointer(k, source):
        at = code.fresh(f"load ptr, ptr {code.place(source, np.int64(k), np.int64)}", np.int64).name
        if direct:
            return at
        data = code.fresh(f"getelementptr i8, ptr {at}, i64 24", np.int64).name
        return code.fresh(f"load ptr, ptr {data}", np.int64).name

    unknown, n = iter([in_memory(code, pointer(k, "%args"), x.shape, x.dtype) for k, x in enumerate(program.kinds)]), len(program.kinds)
    args = [x if control.all_known(x) else _argument(code, next(unknown), x) for x in program.given]
    places = [pointer(n + k, "%args") if direct else pointer(k, "%results") for k in range(len(program.results))]
    out = control.evaluate(code, program.closed, args, places)
    for x, kind, place in zip(out, program.results, places, strict=True):
        written(code, x, kind.dtype, place)
    declared.update(code.declared)
    head = "define void @program(ptr %args)" if direct else "define void @run(ptr %args, ptr %results)"
    functions.append(code.function(head))
    if len(functions) > 1:
        functions.insert(0, members.SPREAD)
        declared.pop("llvm.umin.i64", None)
    functions.insert(0, f"@later = global [{len(code.later)} x ptr] zeroinitializer")
    declared = {name.removeprefix("@"): text for name, text in declared.items()}
    # A part calls those before it.
    declared.update((name[1:], f"declare void {name}{text[: text.index(')') + 1]}") for name, text in code.parts.items())
    parts = {name: _with_declared(f"define void {name}{text}", declared) for name, text in code.parts.items()}
    return Text(_with_declared("\n".join(functions), declared), parts), code.later


def _argument(code, x, known):
    """An array in memory, of which some entries are known, else None; ``known`` None: none are."""
    if known is None or known.size > code.sizes.small:
        return x
    entries = zip(small(code, x).ravel(), known.ravel(), strict=True)
    return filled([entry if value is None else value for entry, value in entries], known.shape)


def _with_declared(text, declared):
    """The text of a module: functions, and what is called and read in them of what is ``declared``, by name."""
    names = sorted({*re.findall(r"@([\w.]+)", text)} - {*re.findall(r"define .*?@([\w.]+)", text)})
    return "\n".join([*(declared[name] for name in names if name in declared), text, AS_IT_IS_MEANS])


@dataclass(frozen=True)
class Text:
    """A program as LLVM reads it: the module of what is called from outside, and those of its parts, which are shared with others.

    A part has the name of what it does, and is compiled once.
    """

    main: str
    parts: dict  # by name, those that are called first

    def __str__(self):
        return "\n".join([*self.parts, self.main])  # a part's name tells what it is

    def often(self):
        """Names of the parts that are called more than once in a run."""
        called, new = set(), [self.main]
        while new:
            names = {name for name in re.findall(r"call void (@[\w.]+)", new.pop()) if name in self.parts and not name[1:].startswith(ONCE)}
            new += [self.parts[name] for name in names - called]
            called |= names
        return called

    def lines(self):
        """Number of lines."""
        return sum(text.count("\n") for text in (self.main, *self.parts.values()))


@dataclass(frozen=True)
class Packed:
    """A program that is compiled later, for another process: its text, those of what it compiles later, and the sizes of its results."""

    text: Text
    later: list
    n_given: int
    sizes: list  # in bytes


def _text_and_later(program):
    """Text of a program that is compiled later, and what that leaves for later."""
    if isinstance(program, Packed):
        return program.text, program.later
    if isinstance(program, control.Host):
        return _text_of(program, direct=True)
    key = alike.key(program)
    with _texts_lock:
        known = _texts.pop(key, None)
    found = known[1] if known else _text_of(program, direct=True)
    with _texts_lock:
        _texts[key] = [program, found]
        while len(_texts) > 1 and sum(_length(text) for _, (text, _) in _texts.values()) > KEPT:
            del _texts[next(iter(_texts))]
    return found


def _length(text):
    """Characters of a `Text`."""
    return len(text.main) + sum(map(len, text.parts.values()))


#: Programs that were compiled later, with their texts, by what they do: the last ones, up to so many characters. All of them grew for as
#: long as a process made new systems.
_texts, _texts_lock = {}, threading.Lock()
KEPT = 2**25


def _sizes(program):
    """Number of its arguments, and the sizes of its results."""
    if isinstance(program, Packed):
        return program.n_given, program.sizes
    return len(program.kinds), [kind.size * kind.dtype.itemsize for kind in program.results]


def _packed(program):
    """`Packed` of a program."""
    if isinstance(program, control.Host):
        raise UnknownError("it calls back into Python")
    text, later = _text_and_later(program)
    return Packed(text, list(map(_packed, later)), *_sizes(program))


class Later:
    """A program that is compiled when it is first called: what stands in its place in a table until then."""

    def __init__(self, program, table, k):
        self.program, self.table, self.k, self.lock = program, table, k, threading.Lock()
        self.engine = self.function = None
        self.stand_in = _CALL(self.first)
        table[k] = ctypes.cast(self.stand_in, ctypes.c_void_p).value

    def first(self, args):
        """Compile, and call."""
        try:
            with self.lock:
                if self.function is None:
                    text, later = _text_and_later(self.program)
                    self.engine = shared(text, later)
                    self.function = _CALL(self.engine.address("program"))
                    self.table[self.k] = ctypes.cast(self.function, ctypes.c_void_p).value
            self.function(args)
        except BaseException:  # there is nobody who could catch it: results that are no numbers have an outcome
            traceback.print_exc()
            pointers = ctypes.cast(args, ctypes.POINTER(ctypes.c_void_p))
            n_given, sizes = _sizes(self.program)
            for i, size in enumerate(sizes, n_given):
                ctypes.memset(pointers[i], 0xFF, size)


class Told:
    """A function of Python's (`control.Host`), called by whichever thread comes by."""

    def __init__(self, host, table, k):
        self.host, self.call = host, _CALL(self.tell)
        table[k] = ctypes.cast(self.call, ctypes.c_void_p).value

    def tell(self, args):
        """Call it."""
        pointers = ctypes.cast(args, ctypes.POINTER(ctypes.c_void_p))
        try:
            self.host.function(*[_copy(pointers[i], kind) for i, kind in enumerate(self.host.kinds)])
        except BaseException:  # there is nobody who could catch it
            traceback.print_exc()


def _copy(pointer, kind):
    """An array of its own of what lies somewhere in memory."""
    return np.frombuffer(ctypes.string_at(pointer, kind.size * kind.dtype.itemsize), kind.dtype).reshape(kind.shape)


_CALL = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def _folder():
    """Where machine code is kept for the next process; None where nothing can be."""
    told = os.environ.get("JAXNSD_CACHE_DIR")
    if told == "0":
        return None
    return Path(told) if told else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "jaxnsd")


def _file(key):
    """Where the machine code of a key is kept; None where nothing can be."""
    with contextlib.suppress(OSError, RuntimeError):
        if folder := _folder():
            return folder / f"{key}.o"
    return None


def _is_kept(key):
    """Whether the machine code of a key is on disk."""
    try:
        return bool((file := _file(key)) and file.is_file())
    except OSError:
        return False


def machine_code(text, made=None):
    """The object code of a module: kept on disk under what it was made of; ``made``: as another process has made it, or None."""
    if file := _file(key_of(text)):
        with contextlib.suppress(OSError):
            return file.read_bytes()
    data = made or machine.code_of(text, _level())
    if file:
        # A home that is read-only, or full, costs nothing but time.
        with contextlib.suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(dir=file.parent)
            with os.fdopen(descriptor, "wb") as part:
                part.write(data)
            os.replace(name, file)
    return data


#: Machine code that is there, by the keys of its texts: for as long as somebody has it.
_engines, _parts, _lock = weakref.WeakValueDictionary(), weakref.WeakValueDictionary(), threading.RLock()


def key_of(text):
    """What tells a text, the machine that it is compiled for and how, from others."""
    return hashlib.sha256(f"{_ready_for_code()} {_level()}\n{text}".encode()).hexdigest()[:32]


def _module(text, made=None):
    """The machine code of a module, ready to be called."""
    data = machine_code(text, made)  # first: LLVM is made ready with it
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), machine.target(_level()))
    engine.add_object_file(binding.ObjectFileRef.from_data(data))
    engine.finalize_object()
    return engine


class Engine:
    """The machine code of a `Text`, with its programs that are compiled later; freed when nobody has it."""

    def __init__(self, text, later):
        often, texts, keys, jobs, self.parts = {None, *text.often()}, {**text.parts, None: text.main}, {}, {}, []

        def leveled(name):
            """What is called once in a run is compiled fast rather than to be fast."""
            return contextlib.nullcontext() if name in often else run_once()

        with _lock:  # while it is made the names of parts mean those of its level
            for name, module in texts.items():
                with leveled(name):
                    keys[name] = name and key_of(name)  # a part's name tells what it is
                    if keys[name] not in _parts and not _is_kept(key_of(module)):
                        jobs[name] = module, _level()
            made = dict(zip(jobs, machine.together(list(jobs.values()), cores()), strict=True))
            for name, module in text.parts.items():
                with leveled(name):
                    if (part := _parts.get(keys[name])) is None:
                        part = _parts[keys[name]] = _module(module, made.get(name))
                self.parts.append(part)
                binding.add_symbol(name[1:], part.get_function_address(name[1:]))
            self.main = _module(text.main, made.get(None))
        self.later = []
        if later:
            table = (ctypes.c_void_p * len(later)).from_address(self.main.get_global_value_address("later"))
            self.later = [(Told if isinstance(x, control.Host) else Later)(x, table, k) for k, x in enumerate(later)]

    def address(self, name):
        """Where a function is."""
        return self.main.get_function_address(name)


def shared(text, later):
    """The `Engine` of a text, of which there is one if it compiles nothing later: a step asks for contacts in several places."""
    if later:
        return Engine(text, later)
    key = key_of(text)
    with _lock:
        if (engine := _engines.get(key)) is None:
            engine = _engines[key] = Engine(text, later)
        return engine


def function_of(closed, in_full=False):
    """The native function of a jaxpr, a `calls.Function`; `UnknownError` where it cannot be one."""
    if binding is None:
        raise UnknownError("llvmlite is missing")
    text, later = text_of(closed, in_full)
    # What is compiled later is not said in the text.
    key = uuid.uuid4().hex if later else key_of(text)
    number = int(key[:16], 16) >> 1 or 1
    with _lock:
        function = native_functions.get(number) or _made(number, text, later)
    for made in getattr(_listening, "all", ()):
        made.append((number, text, later))
    return function


@functools.cache
def _known_to_xla():
    """What XLA calls, made known to it; it is never freed."""
    text, stages = calls.text()
    _ready_for_code()
    engine = _module(text)
    pointers = {stage: engine.get_function_address(name) for stage, name in stages.items()}
    counting = [engine.get_function_address(name) for name in ("open", "shut")] if "instantiate" in stages else []
    engine.detach()
    handler = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
    capsules = {stage: jax.ffi.pycapsule(handler(pointer)) for stage, pointer in pointers.items()}
    jax.ffi.register_ffi_target(calls.TARGET, capsules, platform="cpu", api_version=1)
    if counting:
        native_functions.counting(*counting)


def _made(number, text, later):
    """The function of a text, under a new number."""
    _known_to_xla()
    engine = Engine(text, later)
    return native_functions.put(number, engine, engine.address("run"))


_listening = threading.local()


@contextlib.contextmanager
def listed():
    """A list of the functions that are made in this thread, for `packed`."""
    before = getattr(_listening, "all", ())
    _listening.all = (*before, made := [])
    try:
        yield made
    finally:
        _listening.all = before


def packed(made):
    """What was `listed`, as bytes for another process on the same machine; `UnknownError` for what calls back into Python."""
    return pickle.dumps([(number, text, list(map(_packed, later))) for number, text, later in made])


def unpacked(data):
    """Make known to XLA what was `packed`: the `calls.Function` of each, which somebody has to have until a program calls it."""
    functions = []
    for number, text, later in pickle.loads(data):
        with _lock:
            functions.append(native_functions.get(number) or _made(number, text, later))
    return functions
