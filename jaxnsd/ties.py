"""Derivatives of maxima and minima that do not depend on rounding.

JAX differentiates ``max(x, y)`` by comparison: x counts where ``x == max(x, y)``. That is right as long as x is one number. But XLA may
compute x anew in every loop that reads it, and LLVM contract a product and a sum there to one operation with one rounding, or not. Then
neither x nor y equals the maximum, and the derivative is zero, at random; that of the largest of many is 0 / 0. Seen with a constraint made
of `jnp.hypot`, which takes the larger of two lengths: in one step of ten its force direction vanished, and Newton's method took up to
twenty steps for two.

So programs are changed when they are lowered: ``x == max(x, y)`` becomes ``x >= y``, which says the same without equal bits, and of many
entries the one with the number of the largest counts, whatever its bits are.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax import core, lax
from jax.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

#: What it means to be the larger, or the smaller one.
_ORDER = {"stablehlo.maximum": "GE", "stablehlo.minimum": "LE"}

#: Operations that show an array in another form.
_FORMS = ("stablehlo.broadcast_in_dim", "stablehlo.reshape")

#: Numbers that are rounded.
_DTYPES = {"f64": jnp.float64, "f32": jnp.float32, "f16": jnp.float16, "bf16": jnp.bfloat16}


def settle(ctx):
    """Change all comparisons of a program that ask whether a number is the extreme of several.

    ctx: the `mlir.LoweringRuleContext` of a rule at its end; changed is what it has made, in its own function and in others
    """
    # What a rule makes is a function that need not be part of the module yet.
    own = ir.InsertionPoint.current.block.owner.operation
    for program in (own, ctx.module_context.module.operation):
        for comparison in list(_comparisons(program)):
            x, y = comparison.operands
            _settle(ctx, comparison, x, y) or _settle(ctx, comparison, y, x)


def _comparisons(operation):
    """All comparisons for equality of rounded numbers inside of an operation."""
    for region in operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                inner = inner.operation
                if inner.name != "stablehlo.compare":
                    yield from _comparisons(inner)
                elif "EQ" in str(inner.attributes["comparison_direction"]) and _aval(inner.operands[0]):
                    yield inner


def _settle(ctx, comparison, x, extreme):
    """Change the comparison of ``x`` with ``extreme`` if that is the extreme of ``x`` and others; whether it is."""
    made_by = _operation(extreme)
    if made_by is not None and made_by.name in _ORDER:
        left, right = made_by.operands
        if not (_same(x, left) or _same(x, right)):
            return False
        comparison.operands[0], comparison.operands[1] = x, right if _same(x, left) else left
        comparison.attributes["comparison_direction"] = stablehlo.ComparisonDirectionAttr.get(_ORDER[made_by.name])
        return True
    while made_by is not None and made_by.name in _FORMS:
        made_by = _operation(made_by.operands[0])
    if made_by is None or made_by.name != "stablehlo.reduce" or made_by.operands[0] != x:
        return False
    kind, axes = made_by.regions[0].blocks[0].operations[0].operation.name, tuple(made_by.attributes["dimensions"])
    if kind not in _ORDER:
        return False
    aval = _aval(x)
    inner = ctx.replace(primitive=None, tokens_out=None, avals_in=[aval, aval], avals_out=[aval.update(dtype=jnp.dtype(bool))])
    with ir.InsertionPoint(comparison), comparison.location:
        # One call: versions 0.7 to 0.10.0 of JAX would put what a longer program consists of in places of their own.
        is_extreme = jax.jit(functools.partial(_is_extreme, kind=kind, axes=axes))
        counts = mlir.lower_fun(is_extreme, multiple_results=False)(inner, x, extreme)
    comparison.results[0].replace_all_uses_with(counts[0])
    comparison.erase()
    return True


def _is_extreme(x, extreme, kind, axes):
    """Which entries are the largest, or smallest, along the axes, of which ``extreme`` is known; one at least."""
    last = tuple(range(-len(axes), 0))
    rows = jnp.moveaxis(x, axes, last)
    flat = rows.reshape(*rows.shape[: -len(axes)], math.prod(x.shape[axis] for axis in axes))
    at, counts = (jnp.argmax, x >= extreme) if kind == "stablehlo.maximum" else (jnp.argmin, x <= extreme)
    first = lax.broadcasted_iota(int, flat.shape, flat.ndim - 1) == at(flat, axis=-1, keepdims=True)
    return counts | jnp.moveaxis(first.reshape(rows.shape), last, axes)


def _aval(value):
    """Shape and dtype of rounded numbers; None of others."""
    kind = ir.RankedTensorType(value.type)
    dtype = _DTYPES.get(str(kind.element_type))
    return dtype and core.ShapedArray(tuple(kind.shape), jnp.dtype(dtype))


def _operation(value):
    """The operation that a value is the result of; None for an argument."""
    return None if isinstance(value.owner, ir.Block) else value.owner.operation


def _same(a, b):
    """Whether two values are one, or one in the same form."""
    if a == b:
        return True
    of_a, of_b = _operation(a), _operation(b)
    if of_a is None or of_b is None or a.type != b.type or of_a.name != of_b.name or of_a.name not in _FORMS:
        return False
    key = "broadcast_dimensions"
    alike = of_a.name == "stablehlo.reshape" or of_a.attributes[key] == of_b.attributes[key]
    return alike and _same(of_a.operands[0], of_b.operands[0])
