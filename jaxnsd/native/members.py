"""A loop over the members of a batch: shared by threads, several members at once where that is faster.

Each thread takes the next block of members until none is left, so that results do not depend on how many threads there are.
"""

import dataclasses

import numpy as np

from .arrays import in_memory, is_small, large, small, stored
from .code import Code, TooLargeError, UnknownError, is_known
from .control import Kind, evaluate, number, row, row_place, write_rows
from .jaxprs import parts_of
from .lanes import LANES, Lanes
from .rules import of

#: Threads at the most, and how many blocks of members there are for each.
THREADS, BLOCKS = 64, 8

#: Operations, and bytes of working memory, up to which members go on together. A step of a quadruped with 100 contacts has 130,000, and
#: runs 1.45 times as fast; gradients that store 15 MB for a group of members run up to 2.5 times as fast.
LARGEST, ROOM = 140_000, 1 << 26

SPREAD = f"""
@jaxnsd_threads = external global i64
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_join(i64, ptr)
define internal ptr @worker(ptr %job) {{
entry:
  %shared = load ptr, ptr %job
  %at_part = getelementptr i64, ptr %job, i64 1
  %part = load ptr, ptr %at_part
  %at_next = getelementptr i64, ptr %job, i64 2
  %at_n = getelementptr i64, ptr %job, i64 3
  %n = load i64, ptr %at_n
  %at_block = getelementptr i64, ptr %job, i64 4
  %block = load i64, ptr %at_block
  br label %next
next:
  %from = atomicrmw add ptr %at_next, i64 %block seq_cst
  %over = icmp uge i64 %from, %n
  br i1 %over, label %done, label %work
work:
  %beyond = add i64 %from, %block
  %to = call i64 @llvm.umin.i64(i64 %beyond, i64 %n)
  call void %part(ptr %shared, i64 %from, i64 %to)
  br label %next
done:
  ret ptr null
}}
declare i64 @llvm.umin.i64(i64, i64)
define internal void @spread(ptr %shared, ptr %part, i64 %n) {{
entry:
  %job = alloca [5 x i64]
  %handles = alloca [{THREADS} x i64]
  %started = alloca [{THREADS} x i32]
  store ptr %shared, ptr %job
  %at_part = getelementptr i64, ptr %job, i64 1
  store ptr %part, ptr %at_part
  %at_next = getelementptr i64, ptr %job, i64 2
  store i64 0, ptr %at_next
  %at_n = getelementptr i64, ptr %job, i64 3
  store i64 %n, ptr %at_n
  %said = load i64, ptr @jaxnsd_threads
  %threads = call i64 @llvm.umin.i64(i64 %said, i64 %n)
  %pieces = mul i64 %threads, {BLOCKS}
  %less = udiv i64 %n, %pieces
  %block = add i64 %less, 1
  %at_block = getelementptr i64, ptr %job, i64 4
  store i64 %block, ptr %at_block
  br label %starting
starting:
  %k = phi i64 [ 1, %entry ], [ %k1, %start ]
  %more = icmp ult i64 %k, %threads
  br i1 %more, label %start, label %own
start:
  %handle = getelementptr i64, ptr %handles, i64 %k
  %code = call i32 @pthread_create(ptr %handle, ptr null, ptr @worker, ptr %job)
  %at_code = getelementptr i32, ptr %started, i64 %k
  store i32 %code, ptr %at_code
  %k1 = add i64 %k, 1
  br label %starting
own:
  %ignored = call ptr @worker(ptr %job)
  br label %joining
joining:
  %j = phi i64 [ 1, %own ], [ %j1, %joined ]
  %left = icmp ult i64 %j, %threads
  br i1 %left, label %look, label %end
look:
  %at_code2 = getelementptr i32, ptr %started, i64 %j
  %code2 = load i32, ptr %at_code2
  %is_there = icmp eq i32 %code2, 0
  br i1 %is_there, label %join, label %joined
join:
  %handle2 = getelementptr i64, ptr %handles, i64 %j
  %id = load i64, ptr %handle2
  %ignored2 = call i32 @pthread_join(i64 %id, ptr null)
  br label %joined
joined:
  %j1 = add i64 %j, 1
  br label %joining
end:
  ret void
}}
"""


def spread(functions, declared, code, closed, arrays, kinds, results, n, length):
    """A loop whose passes do not depend on each other, as a function that threads call: each with memory of its own.

    functions: the texts of the functions of a program, to which that is added; declared: what they call
    closed:    jaxpr of a member, of ``arrays`` of these kinds, of which the first n are shared and the others have a row for each member
    """
    known = [x if is_small(x) and all(map(is_known, x.ravel())) else None for x in arrays]
    pointers = [stored(code, x, kind).pointer for x, kind, k in zip(arrays, kinds, known, strict=True) if k is None]
    rooms = [place or code.room(kind.size, kind.dtype) for place, kind in zip(code.places, results, strict=True)]
    shared = code.room(len(pointers) + len(rooms), np.int64)
    for k, pointer in enumerate([*pointers, *rooms]):
        code.line(f"store ptr {pointer}, ptr {code.place(shared, np.int64(k), np.int64)}")
    inner, passes = _together(code, closed, known, kinds, results, n, length), -(-length // LANES)
    if inner is None:
        inner, passes = _one_by_one(code, closed, known, kinds, results, n), length
    declared.update(inner.declared)
    name = f"@members{len(functions)}"
    functions.append(inner.function(f"define internal void {name}(ptr %shared, i64 %from, i64 %to)"))
    code.line(f"call void @spread(ptr {shared}, ptr {name}, i64 {passes})")
    return [in_memory(code, room, kind.shape, kind.dtype) for room, kind in zip(rooms, results, strict=True)]


def _given(inner, known, kinds, results):
    """Arrays that the function is given, those that are known among them, and the places of its results."""
    count = 0

    def pointer():
        nonlocal count
        count += 1
        return inner.fresh(f"load ptr, ptr {inner.place('%shared', np.int64(count - 1), np.int64)}", np.int64).name

    arrays = [in_memory(inner, pointer(), kind.shape, kind.dtype) if x is None else x for x, kind in zip(known, kinds, strict=True)]
    return arrays, [pointer() for _ in results]


def _shared(inner, arrays, kinds):
    """What all members read."""
    return [small(inner, x) if kind.size <= inner.sizes.small else x for x, kind in zip(arrays, kinds, strict=True)]


def _one_by_one(code, closed, known, kinds, results, n):
    """The `Code` of a loop over members from ``%from`` to ``%to``."""
    inner = Code(code.all_sizes, code.parts, code.later)
    inner.inside, inner.expected, inner.shared = True, code.expected, code.shared
    arrays, places = _given(inner, known, kinds, results)
    consts = _shared(inner, arrays[:n], kinds[:n])
    rows = [large(inner, x, kind.dtype) for x, kind in zip(arrays[n:], kinds[n:], strict=True)]

    def body(k, _):
        x = [row(inner, x, kind, k) for x, kind in zip(rows, kinds[n:], strict=True)]
        own = [row_place(inner, kind, place, k) for kind, place in zip(results, places, strict=True)]
        write_rows(inner, evaluate(inner, closed, [*consts, *x], own), results, places, k)
        return []

    inner.count(number("%to"), [], [], body, number("%from"))
    return inner


def _together(code, closed, known, kinds, results, n, length):
    """The `Lanes` of a loop over groups of members; None where they are better one by one.

    That is so of few members, of what is too large to be written out, a humanoid's step say, which was no faster and took half as long
    again to compile, and where there is something for which lanes have no rule.
    """
    if length < LANES or code.all_sizes[0].plain:
        return None
    parts, later = dict(code.parts), list(code.later)
    inner = Lanes((dataclasses.replace(code.all_sizes[0], largest=LARGEST),), parts, later)
    inner.expected = code.expected
    try:
        _groups(inner, closed, known, kinds, results, n, length)
        if inner.memory > ROOM:
            raise TooLargeError(f"{inner.memory} bytes of working memory")
    except UnknownError:
        return None
    code.parts.update(parts)
    code.later[:] = later
    return inner


def _groups(inner, closed, known, kinds, results, n, length):
    """Make the loop of `_together`."""
    arrays, places = _given(inner, known, kinds, results)
    consts, (jaxpr, _) = _shared(inner, arrays[:n], kinds[:n]), parts_of(closed)
    of_member, made = ([Kind(x.aval) for x in part] for part in (jaxpr.invars[n:], jaxpr.outvars))

    def body(k, _):
        first = inner.whole_numbers("mul", k, np.int64(LANES))

        def member(lane):
            """The number of the member in a lane: in those of the last group that are left over it is the last one again."""
            at = inner.whole_numbers("add", first, lane)
            return at if length % LANES == 0 else of(inner, "min", [at, np.int64(length - 1)], np.int64)

        if length % LANES:
            there = np.int64(length)
            inner.valid = inner.each(lambda lane: of(inner, "lt", [inner.whole_numbers("add", first, lane), there], np.int64, bool))
        own = []
        for x, kind, one in zip(arrays[n:], kinds[n:], of_member, strict=True):
            pointer = large(inner, x, kind.dtype).pointer
            own.append(row(inner, x, kind, np.int64(0)) if pointer is None else inner.given(pointer, member, one))
        rooms = [inner.room(kind.size, kind.dtype) if kind.size > inner.sizes.small else None for kind in made]
        for x, place, kind in zip(evaluate(inner, closed, [*consts, *own], rooms), places, made, strict=True):
            inner.returned(x, place, member, kind)
        return []

    inner.count(number("%to"), [], [], body, number("%from"))
