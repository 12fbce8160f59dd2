"""Loops of a batch of runs as kernels of a GPU.

By XLA in lockstep every operation of a step, or a few of them together, is a kernel that sweeps over all members, a few microseconds long
whatever their number. Where it is asked for, the loop over the steps of a run that is lowered for CUDA becomes one kernel, in which each
thread has a member (see `native.blocks`): the state stays in registers, rows are stored as they come. What is around the loop, the first
node say, is left to XLA; so is a loop that is too large, or holds an operation without a rule: then perhaps the loops inside of it are
kernels.
"""

import functools
import math
import os
import sys
import warnings
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .. import native
from ..native.arrays import Large, filled, small
from ..native.blocks import BLOCK, Blocks, Traced
from ..native.code import UnknownError, is_known, type_of
from ..native.control import Kind, evaluate
from ..native.jax_internals import Primitive, ShapedArray, batching, jaxpr_as_fun, low, mlir, pallas, scan_sizes, without_dead_code
from ..native.rules import of
from . import backward
from .pytrees import in_front

#: Passes from which on a loop is a kernel.
PASSES = 2


def wanted(platforms):
    """How loops of runs for these platforms become kernels: "cuda", "interpret" or, where they do not, None.

    They do with ``JAXNSD_KERNELS=1`` in the environment: nobody has tried them on a GPU yet, and what its compiler refuses cannot be left
    to XLA any more. ``JAXNSD_KERNELS=interpret`` runs kernels in Pallas' interpreter on a CPU, as tests do.
    """
    told, platforms = os.environ.get("JAXNSD_KERNELS", "0"), tuple(platforms)
    how = {("cuda", "1"): "cuda", ("cpu", "interpret"): "interpret"}.get((*platforms, told))
    return how if how and native.wanted() and pallas() else None


@dataclass(frozen=True, eq=False)
class Loop:
    """A `lax.scan`, of one member, and the batches that it is mapped over: pairs of size and which arguments have an axis of it."""

    body: Any  # a closed jaxpr
    n_consts: int
    n_carry: int
    length: int
    reverse: bool
    how: str
    levels: tuple = ()


def with_kernels(function, how):
    """``function(*args)``, a list, not differentiated any more, whose loops are kernels."""

    def evaluated(*args):
        closed = low(jax.make_jaxpr(function)(*(jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x)) for x in args)))
        return _evaluated(without_dead_code(closed), args, how)

    return evaluated


def _evaluated(closed, args, how):
    """What a jaxpr leads to, loops by kernels."""
    return backward.done(backward.evaluated(closed.jaxpr, closed.consts, args, loop=functools.partial(_bound, how)))


def _bound(how, equation, values):
    """What a `lax.scan` leads to; of its constants some may be left to it, as `backward.Later`: computed there, more is known of them."""
    params = equation.params
    n, m = scan_sizes(params)
    traced, given = backward.reduced(values[:n])
    others = backward.done(values[n:])

    def body(*args):
        return jaxpr_as_fun(params["jaxpr"])(*backward.done(given, args[: len(traced)]), *args[len(traced) :])

    rows = [ShapedArray(jnp.shape(x)[1:], jnp.result_type(x)) for x in others[m:]]
    kinds = [*(ShapedArray(jnp.shape(x), jnp.result_type(x)) for x in (*traced, *others[:m])), *rows]
    loop = Loop(low(jax.make_jaxpr(body)(*kinds)), len(traced), m, params["length"], params["reverse"], how)
    if loop.length < PASSES:
        return _scanned(*traced, *others, loop=loop)
    return _loop.bind(*traced, *others, loop=loop)


def _scanned(*args, loop):
    """What the loop of one member leads to by XLA, with what is a loop in it as a kernel."""
    n, m = loop.n_consts, loop.n_consts + loop.n_carry

    def body(carry, row):
        out = _evaluated(loop.body, [*args[:n], *carry, *row], loop.how)
        return out[: m - n], out[m - n :]

    carry, rows = lax.scan(body, list(args[n:m]), list(args[m:]), length=loop.length, reverse=loop.reverse)
    return [*carry, *rows]


def _in_lockstep(*args, loop):
    """`_scanned` of all members together."""
    function = functools.partial(_scanned, loop=loop)
    for size, mapped in reversed(loop.levels):
        function = jax.vmap(function, [0 if m else None for m in mapped], axis_size=size)
    return function(*args)


def _shapes(*args, loop):
    sizes = [size for size, _ in loop.levels]
    outs = [(x.aval.shape if k < loop.n_carry else (loop.length, *x.aval.shape), x.aval.dtype) for k, x in enumerate(_outs(loop))]
    return [ShapedArray((*sizes, *shape), dtype) for shape, dtype in outs]


def _outs(loop):
    return loop.body.jaxpr.outvars


def _batch(args, axes, *, loop):
    args, mapped = in_front(args, axes), tuple(axis is not None for axis in axes)
    size = next(x.shape[0] for x, m in zip(args, mapped, strict=True) if m)
    out = _loop.bind(*args, loop=replace(loop, levels=((size, mapped), *loop.levels)))
    return out, [0] * len(out)


def _lower(ctx, *args, loop):
    try:
        program = jax.make_jaxpr(functools.partial(_kernel, loop=loop))(*ctx.avals_in)
        with warnings.catch_warnings():
            # From JAX 0.12 on; a version that does not have it leaves loops to XLA.
            warnings.filterwarnings("ignore", "The Pallas Triton backend is deprecated", DeprecationWarning)
            return mlir.lower_fun(jaxpr_as_fun(program), multiple_results=True)(ctx, *args)
    except UnknownError as reason:
        if os.environ.get("JAXNSD_NATIVE") == "debug":
            print("jaxnsd.kernels:", reason, file=sys.stderr)
    except Exception as error:  # whatever it is, a slower run is better than none
        native.say(error)
    program = low(jax.make_jaxpr(functools.partial(_in_lockstep, loop=loop))(*ctx.avals_in))
    return mlir.lower_fun(jaxpr_as_fun(program), multiple_results=True)(ctx, *args)


_loop = Primitive("jaxnsd_loop")
_loop.multiple_results = True
_loop.def_abstract_eval(_shapes)
mlir.register_lowering(_loop, _lower)
batching.primitive_batchers[_loop] = _batch


class _Packed:
    """Arrays as few ones, of all those that are alike: members, where there are any, come last.

    kinds:  of the arrays of one member
    mapped: of each array, whether each member has its own
    """

    def __init__(self, kinds, mapped):
        self.kinds, self.widths, self.places = list(kinds), {}, []
        for kind, own in zip(kinds, mapped, strict=True):
            key = own, np.dtype(np.int32) if kind.dtype.kind == "b" else kind.dtype
            self.places.append((key, first := self.widths.get(key, 0)))
            self.widths[key] = first + kind.size
        self.widths = {key: width for key, width in self.widths.items() if width}

    def arrays(self, values, lead, members):
        """Arrays of (lead, entries) and, where members have their own, members, of those of (members, lead, ...)."""
        parts = {key: [] for key in self.widths}
        for x, (key, _), kind in zip(values, self.places, self.kinds, strict=True):
            if kind.size:
                x = jnp.reshape(x, (*([members] if key[0] else []), *lead, kind.size)).astype(key[1])
                parts[key].append(_padded(jnp.moveaxis(x, 0, -1)) if key[0] else x)
        return [jnp.concatenate(part, axis=len(lead)) for part in parts.values()]

    def shapes(self, lead, members):
        """What such arrays are like."""
        return [jax.ShapeDtypeStruct((*lead, width, members), dtype) for (_, dtype), width in self.widths.items()]

    def values(self, arrays, lead, sizes):
        """The values of arrays, (sizes, lead, ...)."""
        arrays, out = dict(zip(self.widths, arrays, strict=True)), []
        for (key, first), kind in zip(self.places, self.kinds, strict=True):
            shape = *sizes, *lead, *kind.shape
            if not kind.size:
                out.append(jnp.zeros(shape, kind.dtype))
                continue
            x = lax.slice_in_dim(arrays[key], first, first + kind.size, axis=len(lead))[..., : math.prod(sizes)]
            out.append(jnp.moveaxis(x, -1, 0).reshape(shape).astype(kind.dtype))
        return out

    def read(self, code, refs, row, block):
        """The arrays of a block as entries that are read where they are needed."""
        return [self._array(code, dict(zip(self.widths, refs, strict=True)), i, row, block) for i in range(len(self.kinds))]

    def _array(self, code, refs, i, row, block):
        (own, dtype), first = self.places[i]
        kind = self.kinds[i]
        type_of(kind.dtype)  # of real numbers

        def at(index):
            if not all(map(is_known, index)):
                return code.picked(small(code, out), index, kind.dtype)
            number = first + int(np.ravel_multi_index([int(k) for k in index], kind.shape) if kind.shape else 0)
            key = "read", id(refs[own, dtype]), number
            if key not in code.known:
                code.known[key] = Traced(refs[own, dtype][(*row, number, *([block] if own else []))])
            x = code.known[key]
            return of(code, "ne", [x, np.int32(0)], np.int32, bool) if kind.dtype.kind == "b" else x

        out = Large(kind.shape, kind.dtype, at, cheap=True)
        return out

    def write(self, code, refs, values, row, block):
        """Store the entries of arrays."""
        refs = dict(zip(self.widths, refs, strict=True))
        for x, (key, first), kind in zip(values, self.places, self.kinds, strict=True):
            for k, entry in enumerate(small(code, x).ravel()):
                refs[key][(*row, first + k, block)] = code.wide(entry, kind.dtype).astype(key[1])


def _padded(x):
    """Members, of which the last one is repeated until blocks are full."""
    n = x.shape[-1]
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -n % BLOCK)], mode="edge")


def _kernel(*args, loop):
    """The loop of all members by one kernel; `UnknownError` where it cannot be one."""
    pl, parameters = pallas()
    n, m, length = loop.n_consts, loop.n_consts + loop.n_carry, loop.length
    sizes = [size for size, _ in loop.levels]
    members = math.prod(sizes)
    # What a loop carries, and what a single run is given, is a member's own.
    mapped = [any(of_level[i] for _, of_level in loop.levels) or n <= i < m for i in range(len(args))]
    args = [_of_all(x, sizes, [own[i] for _, own in loop.levels]) if w else x for i, (x, w) in enumerate(zip(args, mapped, strict=True))]
    kinds, outs = ([Kind(x.aval) for x in part] for part in (loop.body.jaxpr.invars, _outs(loop)))
    given, rows = _Packed(kinds[:m], mapped[:m]), _Packed(kinds[m:], mapped[m:])
    last, stored = _Packed(outs[: m - n], [True] * (m - n)), _Packed(outs[m - n :], [True] * (len(outs) - m + n))
    dtypes = [kind.dtype for kind in kinds[n:m] for _ in range(kind.size)]

    def kernel(*refs):
        always, *refs = refs
        refs, code = iter(refs), Blocks(always[0] > 0)
        of_given, of_rows, of_last, of_stored = ([next(refs) for _ in x.widths] for x in (given, rows, last, stored))
        block = pl.ds(pl.program_id(0) * BLOCK, BLOCK)

        def entries(arrays):
            return [entry for x in arrays for entry in small(code, x).ravel()]

        def body(k, carried):
            at, carried, carry = (length - 1 - k.x if loop.reverse else k.x,), iter(carried), []
            for kind in kinds[n:m]:
                carry.append(filled([next(carried) for _ in range(kind.size)], kind.shape))
            consts = given.read(code, of_given, (), block)[:n]
            out = evaluate(code, loop.body, [*consts, *carry, *rows.read(code, of_rows, at, block)])
            stored.write(code, of_stored, out[m - n :], at, block)
            return entries(out[: m - n])

        first = entries(given.read(code, of_given, (), block)[n:])
        end, numbers = iter(code.loop(length, first, dtypes, body)), []
        for kind in outs[: m - n]:
            numbers.append(filled([next(end) for _ in range(kind.size)], kind.shape))
        last.write(code, of_last, numbers, (), block)

    padded = -(-members // BLOCK) * BLOCK
    shapes = [*last.shapes([], padded), *stored.shapes([length], padded)]
    call = pl.pallas_call(
        kernel, shapes, grid=(padded // BLOCK,), compiler_params=parameters(num_warps=1), interpret=loop.how == "interpret", name="steps"
    )
    out = call(jnp.ones(1, jnp.int32), *given.arrays(args[:m], [], members), *rows.arrays(args[m:], [length], members))
    k = len(last.widths)
    return [*last.values(out[:k], [], sizes), *stored.values(out[k:], [length], sizes)]


def _of_all(x, sizes, own):
    """An array, which has axes of some of the batches, with all members along one axis."""
    shape = jnp.shape(x)[sum(own) :]
    full = [size if has else 1 for size, has in zip(sizes, own, strict=True)]
    return jnp.broadcast_to(jnp.reshape(x, (*full, *shape)), (*sizes, *shape)).reshape(math.prod(sizes), *shape)
