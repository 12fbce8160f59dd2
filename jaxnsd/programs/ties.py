"""Derivatives of maxima and minima that do not depend on rounding.

JAX differentiates ``max(x, y)`` by comparison: x counts where ``x == max(x, y)``. That is right as long as x is one number. But XLA may
compute x anew in every loop that reads it, and LLVM contract a product and a sum there to one operation with one rounding, or not. Then
neither x nor y equals the maximum, and the derivative is zero, at random; that of the largest of many is 0 / 0. Seen with a constraint made
of `jnp.hypot`, which takes the larger of two lengths: in one step of ten its force direction vanished, and Newton's method took up to
twenty steps for two.

So programs are changed before they are lowered: ``x == max(x, y)`` becomes ``x >= y``, which says the same without equal bits, and of many
entries the one with the number of the largest counts, whatever its bits are.
"""

import functools
import math

import jax.numpy as jnp
from jax import lax

from ..native.jax_internals import Literal
from .rewriting import rewritten

#: What it means to be the larger, or the smaller one.
_ORDER = {"max": lax.ge, "min": lax.le}

#: The largest, or smallest, of many: its number, and what none of the others is.
_OF_MANY = {"reduce_max": (jnp.argmax, lax.ge), "reduce_min": (jnp.argmin, lax.le)}

#: Operations that show an array in another form.
_FORMS = ("broadcast_in_dim", "reshape", "squeeze", "expand_dims")


def settled(closed):
    """A closed jaxpr, not differentiated any more, in which no number is asked whether it equals the extreme of several."""
    return rewritten(closed, _instead)


def _instead(equation, made_by):
    """What takes the place of a comparison of a number with the extreme of itself and others, and its operands; None for others."""
    if equation.primitive is not lax.eq_p or not jnp.issubdtype(equation.invars[0].aval.dtype, jnp.floating):
        return None
    (x, y), shape = equation.invars, equation.outvars[0].aval.shape
    return _order(x, y, shape, made_by) or _order(y, x, shape, made_by)


def _order(x, extreme, shape, made_by):
    """`_instead`, where ``extreme`` is that of ``x`` and others."""
    made = _equation(extreme, made_by)
    if made is not None and made.primitive.name in _ORDER:
        left, right = made.invars
        same = [_same(x, other, made_by) for other in (left, right)]
        if not any(same) or extreme.aval.shape != shape:
            return None
        return functools.partial(_is_larger, order=_ORDER[made.primitive.name], shape=shape), [x, right if same[0] else left]
    while made is not None and made.primitive.name in _FORMS:
        made = _equation(made.invars[0], made_by)
    if made is None or made.primitive.name not in _OF_MANY or not _same(x, made.invars[0], made_by):
        return None
    at, order = _OF_MANY[made.primitive.name]
    return functools.partial(_is_extreme, at=at, order=order, axes=made.params["axes"]), [x, extreme]


def _is_larger(x, other, order, shape):
    """Whether ``x`` is the larger of two, or the smaller one; one of them may be a number for all entries."""
    return [order(jnp.broadcast_to(x, shape), jnp.broadcast_to(other, shape))]


def _is_extreme(x, extreme, at, order, axes):
    """Which entries are the largest, or smallest, along the axes, of which ``extreme`` is known; one at least."""
    last = tuple(range(-len(axes), 0))
    rows = jnp.moveaxis(x, axes, last)
    flat = rows.reshape(*rows.shape[: -len(axes)], math.prod(x.shape[axis] for axis in axes))
    first = lax.broadcasted_iota(int, flat.shape, flat.ndim - 1) == at(flat, axis=-1, keepdims=True)
    return [order(x, extreme) | jnp.moveaxis(first.reshape(rows.shape), last, axes)]


def _equation(operand, made_by):
    """What an operand is the result of; None for an argument and a number that is written down."""
    return None if isinstance(operand, Literal) else made_by.get(operand)


def _same(a, b, made_by):
    """Whether two operands are one, or one in the same form."""
    if isinstance(a, Literal) or isinstance(b, Literal):
        return isinstance(a, Literal) and isinstance(b, Literal) and a.aval.dtype == b.aval.dtype and bool(a.val == b.val)
    if a is b:
        return True
    of_a, of_b = made_by.get(a), made_by.get(b)
    if of_a is None or of_b is None or of_a.primitive is not of_b.primitive or of_a.primitive.name not in _FORMS:
        return False
    return of_a.params == of_b.params and _same(of_a.invars[0], of_b.invars[0], made_by)
