"""A run as one operation of JAX: how it is compiled, batched and differentiated.

On a CPU a run is one native function (see `native`), and a batch of runs is a loop over its members, which threads share. On a GPU its loop
is one kernel where that is asked for (see `kernels`). Else, and where it cannot be one (without llvmlite, for an operation that has no
rule), XLA compiles it, and a batch runs in lockstep: every operation of a step sweeps over all members, every loop goes on until the last
member is done. Which of them it is, is decided when a program is lowered. So what batching and differentiation make of a run is again a
run: of its members one by one, of its derivative, of the transpose of that.

Reverse mode of a single run stores on the way forward what the way back needs. That of a batch computes each member forward again and
then backward, so that what is stored is that of one member at a time, not of the whole batch.
"""

import contextlib
import functools
import gc
import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from .. import native
from ..native.jax_internals import (
    Primitive,
    ShapedArray,
    ad,
    batching,
    dead_code_rule,
    explicit_axis,
    is_exported,
    is_traced,
    jaxpr_as_fun,
    low,
    mlir,
    on_one_device,
    vary,
    varying,
    without_dead_code,
)
from . import backward, kernels, ties
from .derivatives import ZERO, pushed
from .jitted import jit, made, make_room
from .progress import shares
from .pytrees import chosen, in_front, replaced


@contextlib.contextmanager
def uncollected():
    """Python's garbage collector waits: tracing makes many objects, nearly all of which stay, and takes a fifth longer with it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@uncollected()
def run(function, args, *, lockstep=False, begin=None, fits=None):
    """``function(args)``, whose `vmap` maps the members of a batch one by one; derivatives in both modes do as well.

    What is differentiated returns arrays of floats. With ``lockstep`` a batch is one run with wider arrays. ``begin(members)``, or None,
    is called on the host when a run of so many members begins; the last of ``args`` is then 1, and tells each member of a batch for how
    many it reports (`progress.shares`). ``fits(size)`` is told the bytes of what a run, of all members of a batch, returns,
    before it is compiled.
    """
    if jax.config.jax_disable_jit:
        # Operation by operation there are no programs to choose between.
        return function(args)
    leaves, tree = jax.tree.flatten(args)
    leaves = alike([jnp.asarray(x) for x in leaves])
    # Traced once, for all that is made of it; what varies over the devices of a `shard_map` is of no concern inside.
    given = [jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=jax.typeof(x).weak_type) for x in leaves]
    with on_one_device():
        jaxpr, shapes = jax.make_jaxpr(lambda *leaves: function(tree.unflatten(leaves)), return_shape=True)(*given)
    if any(map(is_traced, jaxpr.consts)):
        # It closes over what is differentiated or batched, of which a run would know nothing.
        return jax.tree.unflatten(jax.tree.structure(shapes), jaxpr_as_fun(jaxpr)(*leaves))
    outs = tuple(ShapedArray(s.shape, s.dtype) for s in jax.tree.leaves(shapes))
    share = len(leaves) - 1 if begin else None
    of = Run(jaxpr_as_fun(jaxpr), outs, lockstep, (False,) * len(leaves), begin=begin, share=share, fits=fits)
    return jax.tree.unflatten(jax.tree.structure(shapes), _run.bind(*leaves, run=of))


def natively(function=None, *, traced=jit, static_argnames=()):
    """A function that, asked for values by somebody who traces nothing, is native: it has not to wait for XLA, or for each operation's.

    Of what is traced it is ``traced(function)``. It is compiled fast rather than to be fast. A decorator, of methods as well.
    """
    if function is None:
        return functools.partial(natively, traced=traced, static_argnames=static_argnames)

    def native_one(*args, **settings):
        return run(lambda args: function(*args, **settings), args)

    of_traced, valued = traced(function), jit(functools.wraps(function)(native_one), static_argnames=static_argnames)

    @functools.wraps(function)
    def asked(*args, **settings):
        if not native.available() or any(map(is_traced, jax.tree.leaves(args))):
            return of_traced(*args, **settings)
        make_room()
        with native.run_once(), native.in_loops():
            return valued(*args, **settings)

    return asked


#: On where what was stored for a way back is not read any more.
_forward_only = native.build.Switch()


def lean(function):
    """``function``, traced without what leads to none of its results; nobody may differentiate it in reverse mode.

    Of a run whose derivative is taken in forward mode that is what the way back would read, a second pass through every step.
    """

    def traced(*args):
        leaves, tree = jax.tree.flatten(args)
        closed, shapes = jax.make_jaxpr(lambda *leaves: function(*tree.unflatten(leaves)), return_shape=True)(*leaves)
        with _forward_only():
            closed = without_dead_code(closed, anew=True)
        return jax.tree.unflatten(jax.tree.structure(shapes), jaxpr_as_fun(closed)(*leaves))

    return traced


def on_cpu():
    """Whether what is traced now is for a CPU: that of `jax.default_device`, where it is set, on a host with a GPU too."""
    return _platform().startswith("cpu")


def _platform():
    device = jax.config.jax_default_device
    return device or jax.default_backend() if device is None or isinstance(device, str) else device.platform


def one_by_one():
    """Whether members of a batch, of what is traced now, are compiled one by one, as native code or for a kernel; else in lockstep."""
    if on_cpu():
        return native.available() or bool(kernels.wanted(("cpu",)))
    return _platform().startswith(("gpu", "cuda")) and bool(kernels.wanted(("cuda",)))


def at_once(jitted, *args):
    """``jitted(*args)``, as one program where all is known; part of what is traced else, of which a mesh may name the axes."""
    return (jitted.__wrapped__ if any(map(is_traced, jax.tree.leaves(args))) else jitted)(*args)


def compiled_once(jitted, *args):
    """The compiled program of a jitted function for arguments like these, which runs once: to optimize it takes longer than to run it."""
    with native.run_once():
        lowered = jitted.lower(*args)
    return lowered.compile(compiler_options={"xla_backend_optimization_level": 0})


class Level(NamedTuple):
    """A batch: its size, and which arguments have an axis of it."""

    size: int
    mapped: tuple


@dataclass(frozen=True, eq=False)
class Run:
    """A function of the arrays of one member, and the batches, the outermost first, that it is mapped over."""

    function: Any  # (*args) -> outs
    outs: tuple  # shapes of the outs of a member
    lockstep: bool
    linear: tuple  # of every argument: whether the function is a linear map of it, at the point that the others are
    levels: tuple = ()
    stores: int = 0  # outs at the end that only serve the way back of a single run: in a batch zeros
    stored: int = 0  # arguments at the end, beside those of the function, that hold them
    back: Any = None  # (stored, cotangents) -> outs of the transpose
    begin: Any = None
    share: Any = None  # number of the argument that tells a member for how many it reports, or None
    quick: Any = None  # (stored, arguments that are linear) -> outs, in place of the function
    fits: Any = None
    one_by_one: Any = None  # of many directions at one point: the run that takes one after the other, where native code of all is too large

    def split(self, args):
        """Arguments of the function, and what was stored."""
        n = len(args) - self.stored
        return list(args[:n]), list(args[n:])

    def alone(self):
        """The same run without what is stored."""
        n = len(self.outs) - self.stores
        function = (lambda *args: self.function(*args)[:n]) if self.stores else self.function
        return replace(self, function=function, outs=self.outs[:n], stores=0, stored=0, back=None, quick=None, one_by_one=None)


_run = Primitive("jaxnsd_run")
_run.multiple_results = True


def _value(*args, run):
    args, stored = run.split(args)
    if run.begin:
        jax.debug.callback(functools.partial(run.begin, math.prod(level.size for level in run.levels)))
    if run.quick:
        return list(run.quick(stored, chosen(args, run.linear)))
    if not run.levels:
        return list(run.function(*args))
    (size, mapped), *inner = run.levels
    moving = chosen(args, mapped)

    if run.share is not None:
        mapped = [m or i == run.share for i, m in enumerate(mapped)]
        # Of those inside of a member that speaks for all of them, the last one does.
        speaks = shares(size, math.prod(level.size for level in inner)) if run.begin else jnp.arange(size) == size - 1
        moving.insert(sum(mapped[: run.share]), args[run.share] * speaks)

    def member(moving):
        return _value(*replaced(args, mapped, moving), run=replace(run.alone(), levels=tuple(inner), begin=None))

    return lax.map(member, moving)


def _in_lockstep(*args, run):
    """`_value`, all members of all batches together."""
    function = run.function
    for size, mapped in reversed(run.levels):
        function = jax.vmap(function, [0 if m else None for m in mapped], axis_size=size)
    return _value(*args, run=replace(run, function=function, levels=()))


def _shapes(*args, run):
    sizes = tuple(level.size for level in run.levels)
    spread = [x for x in args if varying(x)]
    if not spread:
        return [ShapedArray((*sizes, *s.shape), s.dtype) for s in run.outs]
    return [spread[0].update(shape=(*sizes, *s.shape), dtype=s.dtype, weak_type=False) for s in run.outs]


@uncollected()
def _jvp(primals, tangents, *, run):
    args, _ = run.split(primals)
    n, whole = len(args), run.alone()
    moves = [type(t) is not ad.Zero for t in tangents[:n]]
    directions = chosen(tangents[:n], moves)

    def along(function):
        # Jitted, so that the many transformations of it share what they trace.
        return jax.jit(lambda *xs: pushed(function, xs[:n], replaced([ZERO] * n, moves, xs[n:]))[1])

    levels = tuple(Level(size, mapped + tuple(chosen(mapped, moves))) for size, mapped in run.levels)
    if not directions:
        out = _run.bind(*primals, run=run)
        return out, [ad.Zero(jax.typeof(x).to_tangent_aval()) for x in out]
    linear = (False,) * n + (True,) * len(directions)
    settings = {"begin": run.begin, "share": run.share, "fits": run.fits}
    derivative = Run(along(whole.function), whole.outs, run.lockstep, linear, levels, **settings)
    if run.levels or any(run.linear) or run.stores:
        out = _run.bind(*primals, run=run)
        d_out = _run.bind(*args, *directions, run=derivative)
        return out, d_out + [ad.Zero(jax.typeof(x).to_tangent_aval()) for x in out[len(d_out) :]]
    given = [jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=jax.typeof(x).weak_type) for x in args]
    tree = residuals = None

    def all_kept(*args):
        nonlocal tree
        value, back = jax.vjp(lambda *moving: run.function(*replaced(args, moves, moving)), *chosen(args, moves))
        kept, tree = jax.tree.flatten(back)
        return [*value, *kept]

    with on_one_device():
        jaxpr = jax.make_jaxpr(all_kept)(*given)

    def forward(*args):
        nonlocal residuals
        out = backward.evaluated(jaxpr.jaxpr, jaxpr.consts, args)
        # What the way back makes of constants and arguments by itself is not stored.
        stored, residuals = backward.reduced(out[len(run.outs) :])
        return [*backward.done(out[: len(run.outs)]), *stored]

    def back(stored, cotangents):
        return jax.tree.unflatten(tree, backward.done(residuals, stored))(list(cotangents))

    forward = jax.jit(forward)
    with on_one_device():
        outs = tuple(ShapedArray(s.shape, s.dtype) for s in jax.eval_shape(forward, *given))
    k = len(outs) - len(run.outs)
    out = _run.bind(*args, run=replace(run, function=forward, outs=outs, stores=k))
    value, stored = out[: len(run.outs)], out[len(run.outs) :]
    return value, _run.bind(*args, *directions, *stored, run=replace(derivative, stored=k, back=jax.jit(back)))


@uncollected()
def _transpose(cotangents, *args, run):
    args, stored = run.split(args)
    moves = [ad.is_undefined_primal(x) for x in args]
    stays = [not m for m in moves]
    known, k = chosen(args, stays), sum(stays)
    # Of the arguments that come back: which batches they are mapped over.
    mapped = [[level.mapped[i] for level in run.levels] for i, m in enumerate(moves) if m]
    avals = [x.aval if m else jax.typeof(x) for x, m in zip(args, moves, strict=True)]
    shapes = [ShapedArray(x.shape[sum(of) :], x.dtype) for x, of in zip(chosen(avals, moves), mapped, strict=True)]
    outs = _shapes(*avals, run=run)
    cotangents = [jnp.zeros(s.shape, s.dtype) if type(c) is ad.Zero else c for c, s in zip(cotangents, outs, strict=True)]
    whole = run.alone()

    def pull(*xs):
        def of(*moving):
            return list(whole.function(*replaced(replaced(moves, stays, xs[:k]), moves, moving)))

        return jax.vjp(of, *(jnp.zeros(s.shape, s.dtype) for s in shapes))[1](list(xs[k:]))

    levels = tuple(Level(size, tuple(chosen(mapped, stays)) + (True,) * len(cotangents)) for size, mapped in run.levels)
    share = None if run.share is None else sum(stays[: run.share])
    settings = {"begin": run.begin, "share": share, "fits": run.fits}
    turned = Run(jax.jit(pull), tuple(shapes), run.lockstep, (False,) * k + (True,) * len(cotangents), levels, **settings)
    if run.back:
        turned = replace(turned, stored=len(stored), quick=run.back)
    out = _run.bind(*known, *cotangents, *(stored if run.back else ()), run=turned)
    # What all members of a batch share gets the sum of what they send back.
    out = iter([jnp.sum(x, [i for i, m in enumerate(axes) if not m]) for x, axes in zip(out, mapped, strict=True)])
    return [next(out) if m else None for m in moves] + [None] * len(stored)


def _batch(args, axes, *, run):
    args, moves = in_front(args, axes), [axis is not None for axis in axes]
    batched = chosen(args, moves)
    if spread := next(filter(None, (explicit_axis(x, 0) for x in batched)), None):
        return _on_devices(*spread, args, moves, run)
    size = batched[0].shape[0]
    (args, stored), (mapped, moved) = run.split(args), run.split(moves)
    at_one_point = any(run.linear) and not any(chosen(mapped, [not x for x in run.linear]))
    if run.lockstep or at_one_point:
        # Many directions at one point: lockstep does the work of the point once.
        return _wider(args, stored, mapped, moved, size, run)
    level = Level(size, tuple(mapped))
    each = run.one_by_one and _without_stored(replace(run.one_by_one, levels=(level, *run.one_by_one.levels)))
    out = _run.bind(*args, run=replace(run.alone(), levels=(level, *run.levels), one_by_one=each))
    nothing = [jnp.zeros(s.shape, s.dtype) for s in run.outs[len(out) :]]
    return [*out, *nothing], [0] * len(out) + [None] * len(nothing)


def _on_devices(mesh, name, args, moves, run):
    """A batch that lies along the explicit axis ``name`` of a mesh: each device does its members."""

    def part(*args):
        return in_front(*_batch(alike(args), [0 if m else None for m in moves], run=run))

    # In a batch member by member zeros, which no axis has, stand for what a single run stores.
    spread = [run.lockstep or k < len(run.outs) - run.stores for k in range(len(run.outs))]
    specs = lambda flags: tuple(PartitionSpec(name) if m else PartitionSpec() for m in flags)  # noqa: E731
    out = jax.shard_map(part, mesh=mesh, in_specs=specs(moves), out_specs=list(specs(spread)))(*args)
    return out, [0 if m else None for m in spread]


def _wider(args, stored, mapped, moved, size, run):
    """A batch in lockstep: a run whose members are wider; the axis of the batch comes after those of the levels."""
    depth = [sum(level.mapped[i] for level in run.levels) for i in range(len(args))]
    inside = [jnp.moveaxis(x, 0, d) if m else x for x, m, d in zip(args, mapped, depth, strict=True)]
    axes, of_stored = ([0 if m else None for m in flags] for flags in (mapped, moved))
    shared = [not m for m in chosen(mapped, run.linear)]

    def back(stored, cotangents):
        out = jax.vmap(run.back, (of_stored, 0), axis_size=size)(stored, cotangents)
        return [jnp.sum(x, axis=0) if s else x for x, s in zip(out, shared, strict=True)]

    wide = replace(
        run,
        function=jax.vmap(run.function, tuple(axes), axis_size=size),
        outs=tuple(ShapedArray((size, *s.shape), s.dtype) for s in run.outs),
        back=run.back and back,
        quick=run.quick and jax.vmap(run.quick, (of_stored, chosen(axes, run.linear)), axis_size=size),
        one_by_one=None if run.lockstep or run.quick else _inside(run, Level(size, tuple(mapped))),
    )
    out = _run.bind(*inside, *stored, run=wide)
    return out, [len(run.levels)] * len(out)


def _without_stored(run):
    """The run without what is stored for a way back."""
    return replace(run, stored=0, back=None, one_by_one=run.one_by_one and _without_stored(run.one_by_one))


def _inside(run, level):
    """The run whose members are mapped over one more batch, inside of its levels and outside of those of ``one_by_one``."""
    each, depth = run.one_by_one or run, len(run.levels)
    return replace(each, levels=(*run.levels, level, *each.levels[depth:]), one_by_one=None)


def alike(leaves):
    """Arrays that all vary over the same devices of a `shard_map`."""
    sets = [varying(jax.typeof(x)) for x in leaves]
    axes = frozenset().union(*sets)
    return [vary(x, tuple(axes - own)) if axes - own else x for x, own in zip(leaves, sets, strict=True)]


@uncollected()
@on_one_device()
def _lower(ctx, *args, run):
    made()
    # Here the size of a batch is known, and what nobody reads is gone.
    if run.fits:
        run.fits(sum(x.size * x.dtype.itemsize for x in ctx.avals_out))
    avals = [ShapedArray(x.shape, x.dtype, weak_type=x.weak_type) for x in ctx.avals_in]
    program, alone = None, not run.lockstep and not is_exported(ctx)
    if how := kernels.wanted(ctx.module_context.platforms) if alone else None:
        run = replace(run, function=kernels.with_kernels(run.function, how), quick=run.quick and _by_kernels(run.quick, how))
    elif tuple(ctx.module_context.platforms) == ("cpu",) and alone:
        # Of many directions the work at their point is done once if that is no longer than what runs well; else by each.
        program = native.compiled(functools.partial(_value, run=run), avals, in_full=run.one_by_one is not None)
        if program is None and run.one_by_one:
            program = native.compiled(functools.partial(_value, run=run.one_by_one), avals)
    if program is not None:
        # Its native function stays for as long as what is lowered here can be compiled.
        ctx.module_context.add_keepalive(program)
    else:
        try:
            program = jax.make_jaxpr(functools.partial(_in_lockstep, run=run))(*avals)
        except NotImplementedError:  # a function of Python's that is called one member at a time
            program = jax.make_jaxpr(functools.partial(_value, run=run))(*avals)
        try:
            program = ties.settled(low(program))
        except Exception as error:  # with a version of JAX that nobody has tried
            native.say(error)
        program = jaxpr_as_fun(program)
    return mlir.lower_fun(program, multiple_results=True)(ctx.replace(avals_in=avals), *args)


def _without_dead_code(read, n_args, params):
    """A run without what it stores for a way back that nobody takes, and, once it is known that nobody will, without what was stored."""
    run, stays, given = params["run"], [True] * len(read), [True] * n_args
    if run.stores and not any(read[-run.stores :]):
        stays[-run.stores :] = [False] * run.stores
        run = run.alone()
    elif _forward_only.on and run.stored and not run.quick:
        given[-run.stored :] = [False] * run.stored
        run = _without_stored(run)
    return stays, given, {**params, "run": run}


def _by_kernels(quick, how):
    """`Run.quick`, whose loops are kernels."""

    def quickly(stored, given):
        n = len(stored)
        return kernels.with_kernels(lambda *args: quick(list(args[:n]), list(args[n:])), how)(*stored, *given)

    return quickly


_run.def_impl(_value)
_run.def_abstract_eval(_shapes)
mlir.register_lowering(_run, _lower)
ad.primitive_jvps[_run] = _jvp
ad.primitive_transposes[_run] = _transpose
batching.primitive_batchers[_run] = _batch
dead_code_rule(_run, _without_dead_code)

# A branch in lockstep becomes a choice, in which JAX writes `stop_gradient` for the operands of the branch that is not taken. Of what is
# linear already that is left to be transposed: nothing comes back from there.
for _equation in jax.make_jaxpr(lax.stop_gradient)(0.0).eqns:
    ad.primitive_transposes.setdefault(_equation.primitive, lambda cotangents, x, **_: [None])
