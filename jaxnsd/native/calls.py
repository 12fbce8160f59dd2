"""How XLA calls native functions, and how long they stay.

All of them are one function to XLA, with the number of which as an attribute. XLA hands it a structure, a *call frame*, with pointers to
the arrays of operands and results (its layout is in `jax.ffi.include_dir()`, `xla/ffi/api/c_api.h`, which differs from version to version).

A native function stays for as long as a program of XLA's that calls it, which are counted: when XLA makes a program of a call it asks for
a state, and gives it back when the program goes. It stays, too, for as long as somebody has its `Function`, of which a program can be made.
Programs are made and go at any time, without Python: a place has a word with twice their number, and one more while it is open to new ones.
"""

import collections
import ctypes
import functools
import re
import threading
import weakref
from pathlib import Path

import jax

from .code import UnknownError

#: The name under which XLA knows native functions.
TARGET = "jaxnsd_native"

#: Places of native functions, a power of two: there are no more at a time.
PLACES = 2**14

#: How many of the functions that were asked for last stay in any case: a program that is made anew in each call of somebody's function,
#: and goes after it, calls the same ones again.
RECENT = 32

#: What is said where a run, or another one at the same time, found no memory and may have computed anything.
NO_MEMORY = "jaxnsd: a run found no memory to work in; fewer members of a batch or fewer stored steps at once take less"

#: What is said where a program was lowered, its `Function` given back, and the program compiled after that; or where it was taken to
#: another process by other means than those of `keep`.
GONE = (
    "jaxnsd: a native function has been given back, since nobody could call it any more, or is another process's; lower its program anew, "
    "or take it to other processes by jaxnsd.keep"
)

#: Codes of XLA's errors: `RESOURCE_EXHAUSTED`, `FAILED_PRECONDITION`.
_NO_MEMORY, _GONE = 8, 9


@functools.cache
def _header():
    return Path(jax.ffi.include_dir(), "xla", "ffi", "api", "c_api.h").read_text(encoding="utf-8")


def _fields(struct):
    """``({name: place}, size)`` of a structure, in bytes."""
    found = re.search(rf"struct {struct} {{(.*?)\n}}", _header(), re.DOTALL)
    if not found:
        raise UnknownError(f"XLA has no {struct}")
    places, size = {}, 0
    for declared in re.sub(r"//.*", "", found[1]).split(";"):
        if name := re.search(r"\(\*(\w+)\)\(|(\w+)\s*$", declared.strip()):
            places[name[1] or name[2]] = size
            size += {"XLA_FFI_ByteSpan": 16, "XLA_FFI_Error_Code": 4}.get(declared.split()[0], 8)
    return places, size


@functools.cache
def _entries():
    """Functions of XLA's interface, by name: where their pointers are in `XLA_FFI_Api`."""
    return {name: 48 + 8 * k for k, name in enumerate(re.findall(r"_XLA_FFI_API_STRUCT_FIELD\((XLA_FFI_\w+)\);", _header()))}


def _version(part):
    return int(re.search(rf"define XLA_FFI_API_{part} (\d+)", _header())[1])


def _filled(name, struct, values):
    """Lines that fill a structure on the stack, as ``%name``: ``values`` as text, with their types, and nothing else."""
    places, size = _fields(struct)
    lines = [f"%{name} = alloca [{size} x i8], align 8", f"store [{size} x i8] zeroinitializer, ptr %{name}"]
    for k, (field, value) in enumerate({"struct_size": f"i64 {size}", **values}.items()):
        if field in places:
            lines.append(f"%{name}_{k} = getelementptr i8, ptr %{name}, i64 {places[field]}")
            lines.append(f"store {value}, ptr %{name}_{k}")
    return "\n  ".join(lines)


_TEXT = """
@jaxnsd_functions = external global [{places} x [3 x i64]]
@jaxnsd_failures = external global i64
@no_memory = internal constant [{length_no_memory} x i8] c"{no_memory}\\00"
@gone = internal constant [{length_gone} x i8] c"{gone}\\00"
@type = internal global i64 0
@type_name = internal constant [{length_type} x i8] c"{target}"

define internal ptr @entry(ptr %frame, i64 %place) {{
  %at_api = getelementptr i8, ptr %frame, i64 16
  %api = load ptr, ptr %at_api
  %at_entry = getelementptr i8, ptr %api, i64 %place
  %entry = load ptr, ptr %at_entry
  ret ptr %entry
}}

define internal ptr @error(ptr %frame, ptr %message, i32 %code) {{
  {error}
  %create = call ptr @entry(ptr %frame, i64 {create})
  %made = call ptr %create(ptr %error)
  ret ptr %made
}}

; Whether XLA asks for the version of its interface: it is written down.
define internal i1 @asked(ptr %frame) {{
  %at_extension = getelementptr i8, ptr %frame, i64 8
  %extension = load ptr, ptr %at_extension
  %none = icmp eq ptr %extension, null
  br i1 %none, label %no, label %extended
extended:
  %at_type = getelementptr i8, ptr %extension, i64 8
  %type = load i32, ptr %at_type
  %asked = icmp eq i32 %type, 1
  br i1 %asked, label %metadata, label %no
metadata:
  %at_data = getelementptr i8, ptr %extension, i64 24
  %data = load ptr, ptr %at_data
  %at_major = getelementptr i8, ptr %data, i64 24
  store i32 {major}, ptr %at_major
  %at_minor = getelementptr i8, ptr %data, i64 28
  store i32 {minor}, ptr %at_minor
  ret i1 true
no:
  ret i1 false
}}

; The number of a function is the attribute of a call.
define internal i64 @number(ptr %frame) {{
  %at_attributes = getelementptr i8, ptr %frame, i64 160
  %attributes = load ptr, ptr %at_attributes
  %attribute = load ptr, ptr %attributes
  %at_value = getelementptr i8, ptr %attribute, i64 8
  %value = load ptr, ptr %at_value
  %number = load i64, ptr %value
  ret i64 %number
}}

; The place of the function of a number that is open, or null.
define internal ptr @found(i64 %number) {{
begin:
  %first = and i64 %number, {mask}
  br label %look
look:
  %k = phi i64 [ %first, %begin ], [ %next, %other ]
  %n = phi i64 [ 0, %begin ], [ %n1, %other ]
  %place = getelementptr [3 x i64], ptr @jaxnsd_functions, i64 %k
  %here = load atomic i64, ptr %place acquire, align 8
  %at_word = getelementptr i64, ptr %place, i64 2
  %word = load atomic i64, ptr %at_word acquire, align 8
  %open = trunc i64 %word to i1
  %same = icmp eq i64 %here, %number
  %it = and i1 %same, %open
  br i1 %it, label %yes, label %another
another:
  %empty = icmp eq i64 %here, 0
  %n1 = add i64 %n, 1
  %all = icmp uge i64 %n1, {places}
  %end = or i1 %empty, %all
  br i1 %end, label %none, label %other
other:
  %k1 = add i64 %k, 1
  %next = and i64 %k1, {mask}
  br label %look
yes:
  ret ptr %place
none:
  ret ptr null
}}

define ptr @execute(ptr %frame) {{
  %asked = call i1 @asked(ptr %frame)
  br i1 %asked, label %done, label %call
call:
  %number = call i64 @number(ptr %frame)
  %place = call ptr @found(i64 %number)
  %is_gone = icmp eq ptr %place, null
  br i1 %is_gone, label %gone, label %there
there:
  %at_run = getelementptr i64, ptr %place, i64 1
  %run = load ptr, ptr %at_run
  %at_args = getelementptr i8, ptr %frame, i64 72
  %args = load ptr, ptr %at_args
  %at_results = getelementptr i8, ptr %frame, i64 112
  %results = load ptr, ptr %at_results
  %before = load atomic i64, ptr @jaxnsd_failures seq_cst, align 8
  call void %run(ptr %args, ptr %results)
  %after = load atomic i64, ptr @jaxnsd_failures seq_cst, align 8
  %well = icmp eq i64 %before, %after
  br i1 %well, label %done, label %failed
done:
  ret ptr null
failed:
  %no_memory = call ptr @error(ptr %frame, ptr @no_memory, i32 {code_no_memory})
  ret ptr %no_memory
gone:
  %error = call ptr @error(ptr %frame, ptr @gone, i32 {code_gone})
  ret ptr %error
}}
"""

#: A program of XLA's that calls a function is made, and goes: what counts them.
_COUNTING = """
@registering = internal global i64 0

define internal void @given_back(ptr %place) {{
  %at_word = getelementptr i64, ptr %place, i64 2
  %before = atomicrmw sub ptr %at_word, i64 2 seq_cst
  ret void
}}

; Open a place to programs; shut one that has none, or leave it: whether it was shut.
define void @open(ptr %place) {{
  %at_word = getelementptr i64, ptr %place, i64 2
  %before = atomicrmw or ptr %at_word, i64 1 seq_cst
  ret void
}}

define i64 @shut(ptr %place) {{
  %at_word = getelementptr i64, ptr %place, i64 2
  %exchanged = cmpxchg ptr %at_word, i64 1, i64 0 seq_cst seq_cst
  %done = extractvalue {{ i64, i1 }} %exchanged, 1
  %shut = zext i1 %done to i64
  ret i64 %shut
}}

define ptr @instantiate(ptr %frame) {{
  {info}
  {register}
  {state}
  %asked = call i1 @asked(ptr %frame)
  br i1 %asked, label %done, label %count
count:
  %number = call i64 @number(ptr %frame)
  %place = call ptr @found(i64 %number)
  %is_none = icmp eq ptr %place, null
  br i1 %is_none, label %gone, label %there
there:
  %at_word = getelementptr i64, ptr %place, i64 2
  %before = atomicrmw add ptr %at_word, i64 2 seq_cst
  %open = trunc i64 %before to i1
  %here = load atomic i64, ptr %place seq_cst, align 8
  %same = icmp eq i64 %here, %number
  %counted = and i1 %open, %same
  br i1 %counted, label %look, label %meanwhile
meanwhile:
  call void @given_back(ptr %place)
  br label %gone
look:
  %type = load atomic i64, ptr @type seq_cst, align 8
  %registered = icmp ne i64 %type, 0
  br i1 %registered, label %set, label %wait
; One thread registers the type, the others look again until it has.
wait:
  %exchanged = cmpxchg ptr @registering, i64 0, i64 1 seq_cst seq_cst
  %mine = extractvalue {{ i64, i1 }} %exchanged, 1
  br i1 %mine, label %again, label %look
again:
  %type_now = load atomic i64, ptr @type seq_cst, align 8
  %registered_now = icmp ne i64 %type_now, 0
  br i1 %registered_now, label %leave, label %new
leave:
  store atomic i64 0, ptr @registering seq_cst, align 8
  br label %set
new:
  %register = call ptr @entry(ptr %frame, i64 {register_type})
  %unregistered = call ptr %register(ptr %type_args)
  store atomic i64 0, ptr @registering seq_cst, align 8
  %fine = icmp eq ptr %unregistered, null
  br i1 %fine, label %set, label %refused
refused:
  call void @given_back(ptr %place)
  ret ptr %unregistered
set:
  %at_context = getelementptr i8, ptr %frame, i64 24
  %context = load ptr, ptr %at_context
  %state_context = getelementptr i8, ptr %state_args, i64 {at_context}
  store ptr %context, ptr %state_context
  %state_place = getelementptr i8, ptr %state_args, i64 {at_state}
  store ptr %place, ptr %state_place
  %setting = call ptr @entry(ptr %frame, i64 {set_state})
  %error = call ptr %setting(ptr %state_args)
  ret ptr %error
done:
  ret ptr null
gone:
  %why = call ptr @error(ptr %frame, ptr @gone, i32 {code_gone})
  ret ptr %why
}}
"""


def text():
    """``(Text of what XLA calls, names of its functions by the stages of a call)``; `UnknownError` where XLA's interface is another one.

    Where states are not as they have been in all versions so far, programs are not counted, and functions stay: `Functions.counting`.
    """
    entries = _entries()
    frame = [*_fields("XLA_FFI_CallFrame")[0]]
    as_known = ["struct_size", "extension_start", "api", "ctx", "stage", "args", "rets", "attrs"]
    if frame[: len(as_known)] != as_known or "XLA_FFI_Error_Create" not in entries:
        raise UnknownError("XLA's interface is not as it was")
    error = {"message": "ptr %message", "errc": "i32 %code"}
    settings = {
        "places": PLACES,
        "mask": PLACES - 1,
        "target": TARGET,
        "length_type": len(TARGET),
        "no_memory": NO_MEMORY,
        "length_no_memory": len(NO_MEMORY) + 1,
        "gone": GONE,
        "length_gone": len(GONE) + 1,
        "code_no_memory": _NO_MEMORY,
        "code_gone": _GONE,
        "major": _version("MAJOR"),
        "minor": _version("MINOR"),
        "create": entries["XLA_FFI_Error_Create"],
        "error": _filled("error", "XLA_FFI_Error_Create_Args", error),
    }
    written, stages = _TEXT.format(**settings), {"execute": "execute"}
    try:
        written += _counting(entries)
        stages["instantiate"] = "instantiate"
    except UnknownError:
        pass
    return written, stages


def _counting(entries):
    """`_COUNTING`, for this version."""
    # Older versions are told with each state how it is given back, newer ones with its type.
    newer = "XLA_FFI_Type_Register" in entries
    register = "XLA_FFI_Type_Register" if newer else "XLA_FFI_TypeId_Register"
    state, _ = _fields("XLA_FFI_State_Set_Args")
    told = _fields("XLA_FFI_TypeInfo")[0] if newer else state
    named, _ = _fields(f"{register}_Args")
    if "deleter" not in told or not {"ctx", "type_id", "state"} <= {*state} or not {"name", "type_id"} <= {*named}:
        raise UnknownError("states are not as they were")
    if register not in entries or "XLA_FFI_State_Set" not in entries:
        raise UnknownError("there are no states")
    span = f"{{ptr, i64}} {{ptr @type_name, i64 {len(TARGET)}}}"
    back = {"deleter": "ptr @given_back"}
    of_type = {"name": span, "type_id": "ptr @type", "type_info": "ptr %info"}
    return _COUNTING.format(
        info=_filled("info", "XLA_FFI_TypeInfo", back) if newer else "",
        register=_filled("type_args", f"{register}_Args", of_type),
        state=_filled("state_args", "XLA_FFI_State_Set_Args", {"type_id": "ptr @type", **back}),
        register_type=entries[register],
        set_state=entries["XLA_FFI_State_Set"],
        at_context=state["ctx"],
        at_state=state["state"],
        code_gone=_GONE,
    )


class Function:
    """A native function: whoever has it can call it, by its ``number``."""

    def __init__(self, number):
        self.number = number


class Functions:
    """The native functions of a process."""

    def __init__(self):
        # Of each place: the number of a function, where its code is, and the word of its programs. It is never freed: XLA gives back states
        # when Python is gone.
        calloc = ctypes.CDLL(None).calloc
        calloc.restype, calloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t, ctypes.c_size_t)
        self.address = calloc(PLACES, 24)
        self._places = (ctypes.c_int64 * (3 * PLACES)).from_address(self.address)
        self._there, self._lock = {}, threading.RLock()
        self._open = self._shut = None
        self._recent = collections.deque(maxlen=RECENT)

    def __len__(self):
        return len(self._there)

    def counting(self, opening, shutting):
        """Programs are counted: where the functions are that open and shut a place. Until this is said functions stay."""
        self._open = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(opening)
        self._shut = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(shutting)

    def get(self, number):
        """The `Function` of a number that is there, or None."""
        with self._lock:
            k, engine, of = self._there.get(number, (0, None, None))
            if not self._is_open(number, k):
                return None
            function = of and of()
            if function is None:
                function = Function(number)
                self._there[number] = k, engine, weakref.ref(function)
            if function not in self._recent:
                self._recent.append(function)
            return function

    def _is_open(self, number, k):
        """Whether a place is that of a function; it is not where who put it there, or gave it back, was interrupted."""
        here, _, word = self._places[3 * k : 3 * k + 3]
        return here == number and bool(word & 1)

    def put(self, number, engine, address):
        """The `Function` of a new number, with what its code needs; what nobody can call any more is given back before."""
        with self._lock:
            self._give_back()
            k = self._free(number)
            # In this order: whoever is interrupted leaves no place open whose code goes, and who looks for the number meanwhile finds none.
            self._there[number] = k, engine, None
            self._places[3 * k : 3 * k + 2] = number, address
            if self._open:
                self._open(self.address + 24 * k)
            else:
                self._places[3 * k + 2] = 1
            return self.get(number)

    def _free(self, number):
        """The first place for it that is not taken; looking for a number ends where there never was one."""
        for n in range(PLACES):
            k = (number + n) % PLACES
            if not self._places[3 * k + 2]:
                return k
        raise UnknownError(f"there are {PLACES} native functions")

    def give_back(self):
        """Give back the functions that nobody can call any more, those that were asked for last as well."""
        with self._lock:
            self._recent.clear()
            self._give_back()

    def _give_back(self):
        with self._lock:
            for number, (k, _, of) in list(self._there.items()) if self._shut else ():
                if (of is None or of() is None) and (not self._is_open(number, k) or self._shut(self.address + 24 * k)):
                    del self._there[number]
