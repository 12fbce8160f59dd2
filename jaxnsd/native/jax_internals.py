"""What jaxnsd needs of JAX beyond what JAX promises to keep: no other module takes it from there.

Tried with JAX 0.6.1, 0.6.2, 0.7.2, 0.8.3, 0.9.2, 0.10.0, 0.10.2, 0.11.2 and 0.12.0.1 (``make test-versions``). Names that all of them have
are handed on; what changed from one to another has a function here, which says when. Equations of a jaxpr have ``primitive``, ``params``,
``invars``, ``outvars``, ``effects`` and ``replace`` in all of them: modules that rewrite programs read those.
"""

import contextlib
import copy
import functools
import weakref

import jax
import numpy as np
from jax import lax
from jax.api_util import flatten_axes
from jax.core import ShapedArray, Tracer
from jax.experimental import serialize_executable
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir, partial_eval

__all__ = [
    "CHECKPOINTS",
    "CLOSED_CALLS",
    "ClosedJaxpr",
    "Jaxpr",
    "Literal",
    "Primitive",
    "ShapedArray",
    "Tracer",
    "ad",
    "batching",
    "bound",
    "call_inside",
    "dead_code_rule",
    "enable_x64",
    "explicit_axis",
    "flatten_axes",
    "frames",
    "is_exported",
    "is_traced",
    "jaxpr_as_fun",
    "known_array",
    "low",
    "lowered_as",
    "mlir",
    "new_variable",
    "on_one_device",
    "pallas",
    "scan_sizes",
    "serialize_executable",
    "settings",
    "trace_anew",
    "vary",
    "varying",
    "with_inner",
    "without_consts",
    "without_dead_code",
]


def is_traced(x):
    """Whether a value is one of a function that is being traced."""
    return isinstance(x, Tracer)


def known_array(x, dtype=None):
    """An array of JAX's of known numbers, known inside of a trace too; `jnp.asarray` compiles a program for each shape from JAX 0.10 on."""
    with jax.ensure_compile_time_eval():
        return jax.device_put(np.asarray(x, dtype))


#: Functions by the names of the primitives that are lowered as what they trace to.
_FUNCTIONS = {}


def lowered_as(primitive, function, *, multiple_results=False):
    """Lower a primitive as what ``function`` traces to."""
    _FUNCTIONS[primitive.name] = function

    def lower(ctx, *args, **params):
        program = low(jax.make_jaxpr(functools.partial(function, **params))(*ctx.avals_in))
        return mlir.lower_fun(jaxpr_as_fun(program), multiple_results=True)(ctx, *args)

    older = mlir.lower_fun(function, multiple_results=multiple_results)
    mlir.register_lowering(primitive, lower if hasattr(partial_eval, "lower_jaxpr2") else older)


# Jaxprs


#: Primitives that call a function which is known as a jaxpr; the second name is that of JAX 0.11.2 and newer.
CLOSED_CALLS = ("closed_call", "eval_jaxpr")

#: Those of `jax.checkpoint`, whose jaxprs have no constants; from JAX 0.11 on the classes do not tell.
CHECKPOINTS = ("checkpoint", "remat2")


def low(closed):
    """A closed jaxpr of operations that have a rule of lowering; from JAX 0.12 on some, `jnp.searchsorted` say, consist of others."""
    is_high = getattr(getattr(closed, "jaxpr", closed), "is_high", False)
    return partial_eval.lower_jaxpr2(closed) if is_high else closed


def scan_sizes(params):
    """Numbers of constants and of carried arrays of a `lax.scan`; from JAX 0.11 on they are kept as trees."""
    if "ft_in" in params:
        return tuple(map(len, params["ft_in"].unpack()))[:2]
    return params["num_consts"], params["num_carry"]


#: A variable of a jaxpr, of which others are made: its class takes other arguments in each version.
_EXAMPLE = jax.make_jaxpr(lambda x: x)(0.0).jaxpr.invars[0]


def new_variable(aval):
    """A new variable of a jaxpr."""
    new = copy.copy(_EXAMPLE)
    new.aval = aval
    return new


def without_consts(closed):
    """The jaxpr of a closed one, with its constants as unknown variables; from JAX 0.11 on a jaxpr has its constants with it."""
    return closed.with_consts(()) if hasattr(closed, "with_consts") else closed.jaxpr


def bound(equation, values):
    """What an equation leads to as it is, a list."""
    binding = equation.primitive.get_bind_params(equation.params)
    # Older versions return the functions apart.
    functions, params = binding if isinstance(binding, tuple) else ((), binding)
    out = equation.primitive.bind(*functions, *values, **params)
    return out if equation.primitive.multiple_results else [out]


#: The jaxprs of functions with a rule, by the shapes of their arguments, without what leads to none of their outputs.
_inner_of_rules = weakref.WeakKeyDictionary()


def call_inside(equation):
    """The jaxpr of a function that an equation calls, and its constants."""
    name, params = equation.primitive.name, equation.params
    if name == "jaxnsd_rule":
        function, shapes = params["function"], tuple((x.aval.shape, x.aval.dtype) for x in equation.invars)
        known = _inner_of_rules.setdefault(function, {})
        if (inner := known.get(shapes)) is None:
            inner = low(getattr(function, "jaxpr", None) or jax.make_jaxpr(function)(*(x.aval for x in equation.invars)))
            # As what is outside of it, so that what both call is the same.
            inner = known[shapes] = without_dead_code(inner)
    elif name in _FUNCTIONS:
        inner = _traced(name, tuple(params.items()), tuple((x.aval.shape, x.aval.dtype) for x in equation.invars))
    else:
        inner = params["call_jaxpr" if name in (*CLOSED_CALLS, "custom_jvp_call") else "jaxpr"]
    return getattr(inner, "jaxpr", inner), getattr(inner, "consts", ())


@functools.lru_cache(maxsize=256)
def _traced(name, params, shapes):
    """The closed jaxpr of a function of `_FUNCTIONS`."""
    return low(jax.make_jaxpr(functools.partial(_FUNCTIONS[name], **dict(params)))(*(jax.ShapeDtypeStruct(*x) for x in shapes)))


def dead_code_rule(primitive, rule):
    """Let JAX leave out what nobody reads of a primitive: ``rule(read, params) -> (given, params)``.

    read, given: of every output, and of every argument, whether it stays; ``params`` are those of the primitive without the others
    """

    # From JAX 0.11 on it is told of references, too.
    def of(read, *others):
        equation = others[-1]
        if not any(read):
            return [False] * len(equation.invars), None
        made, given, params = rule(read, len(equation.invars), equation.params)
        invars, outvars = (
            [x for x, stays in zip(xs, flags, strict=True) if stays] for xs, flags in ((equation.invars, given), (equation.outvars, made))
        )
        return given, equation.replace(invars=invars, outvars=outvars, params=params)

    partial_eval.dce_rules[primitive] = of


def without_dead_code(closed, anew=False):
    """A closed jaxpr without what leads to none of its outputs.

    anew: whatever was found of its parts before; the oldest versions leave it as it is then
    """
    if anew and _TRACING is None:
        return closed
    jaxpr = getattr(closed, "jaxpr", closed)
    with trace_anew() if anew else contextlib.nullcontext():
        lean, _ = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), True)
    return lean if jaxpr is closed else closed.replace(jaxpr=lean)


def frames(equation):
    """The lines of code that wrote an equation, each with ``file_name``, ``line_num`` and ``function_name``."""
    return getattr(equation.source_info.traceback, "frames", ())


def with_inner(equation, change):
    """An equation with ``change`` of each closed jaxpr among its parameters; itself where none changes."""

    def of(x):
        if isinstance(x, ClosedJaxpr):
            return change(x)
        if isinstance(x, (tuple, list)):
            parts = [of(part) for part in x]
            if all(a is b for a, b in zip(parts, x, strict=True)):
                return x
            return type(x)(*parts) if hasattr(x, "_fields") else type(x)(parts)
        return x

    params = {name: of(value) for name, value in equation.params.items()}
    return equation if all(params[name] is value for name, value in equation.params.items()) else equation.replace(params=params)


# Tracing and lowering


#: A setting of nothing but what JAX takes for traced before; the oldest versions have none.
_TRACING = jax.make_user_context() if hasattr(jax, "make_user_context") else None


def trace_anew():
    """A context in which JAX takes nothing for traced before, in this thread; the oldest versions forget all of it."""
    if _TRACING is None:
        jax.clear_caches()
        return contextlib.nullcontext()
    return _TRACING(object())


def varying(aval):
    """Axes of the devices of a `shard_map` that an array varies over; the oldest versions do not keep them."""
    axes = getattr(aval, "manual_axis_type", None)
    return getattr(aval, "vma", frozenset()) if axes is None else axes.varying


def vary(x, axes):
    """``x`` as an array that varies over these axes as well, by the name of the version."""
    return lax.pcast(x, axes, to="varying") if hasattr(lax, "pcast") else lax.pvary(x, axes)


@contextlib.contextmanager
def on_one_device():
    """Arrays have no mesh, whatever mesh is set: what a member of a batch computes, a device computes alone."""
    use = getattr(jax.sharding, "use_abstract_mesh", contextlib.nullcontext)
    now = getattr(jax.sharding, "get_abstract_mesh", lambda: None)()
    # The kind of a device that is not there, for which a program may be lowered.
    kind = getattr(now, "abstract_device", None)
    with use(jax.sharding.AbstractMesh((), (), **({"abstract_device": kind} if kind else {}))):
        yield


def explicit_axis(x, axis):
    """``(mesh, name)``: the mesh, and of its axes the explicit one along which an axis of an array is spread over the devices, or None."""
    sharding = getattr(jax.typeof(x), "sharding", None)
    spec = getattr(sharding, "spec", ())
    return (sharding.mesh, spec[axis]) if axis < len(spec) and spec[axis] is not None else None


def is_exported(ctx):
    """Whether a program that is being lowered is to run elsewhere, where nobody knows what was compiled here."""
    return bool(getattr(ctx.module_context.lowering_parameters, "for_export", False))


@functools.cache
def pallas():
    """``(Pallas, parameters of its compiler for GPUs)``, or None; it takes a while to import, so that only who makes a kernel does."""
    try:
        from jax.experimental import pallas as pl
        from jax.experimental.pallas import triton
    except ImportError:
        return None
    return pl, getattr(triton, "CompilerParams", None) or triton.TritonCompilerParams


# The process


def settings():
    """Settings of JAX by their names."""
    return dict(jax.config.values)


def enable_x64(wanted):
    """A context with or without double precision, in this thread."""
    return (jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64)(wanted)
