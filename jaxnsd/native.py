"""What keeps the loop over the steps one native function on a CPU: matrix products are lowered to what XLA hands to no library.

XLA gives the product of two matrices to a library, however small they are, and a loop that calls a library is not compiled into one native
function (see `xla_flags`): the runtime dispatches its operations one by one, for ten times what they cost. A system's own ``A @ x`` is
harmless; its derivative in several directions at once is such a product. So products are changed where a program is lowered, whoever
wrote them and whatever transformations have made of them: small ones are sums, which fuse with their neighbours, others loops of rank-one
updates.

Sums of many terms go to the library as well. Custom calls, such as those of LAPACK, sorts and scatters throw a loop out, too: those are
avoided by hand.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.interpreters import mlir
from jaxlib.mlir import ir

#: Largest product, in multiplications, that is written as a sum: from 4096 terms on XLA gives a sum to the library.
SUM = 1 << 11

#: Largest product that is changed at all: from there on a library is worth its call.
LARGEST = 1 << 19


def lower_fun(function, further=lambda module: (), largest=LARGEST):
    """`mlir.lower_fun` of a function that returns a list, in whose program matrix products stay out of the library.

    further: function of the module's context that gives pairs of a primitive and its rule there
    """
    lower = mlir.lower_fun(function, multiple_results=True)

    def lowered(ctx, *args, **params):
        module = ctx.module_context
        if "cpu" in module.platforms:
            rules = (
                *further(module),
                (lax.dot_general_p, _lower_product(module, largest)),
                *(module.lowering_parameters.override_lowering_rules or ()),
            )
            parameters = dataclasses.replace(module.lowering_parameters, override_lowering_rules=rules)
            ctx = ctx.replace(module_context=_with(module, parameters))
        return lower(ctx, *args, **params)

    return lowered


def not_inlined(out, **flags):
    """What a rule has led to by the call of one function, which XLA is to leave a call; flags: what else it is to know of it."""
    call = jax.tree.leaves(out)[0].owner
    flags = {name: ir.StringAttr.get(value) for name, value in {"inlineable": "false", **flags}.items()}
    call.attributes["mhlo.frontend_attributes"] = ir.DictAttr.get(flags)
    return out


def _with(module, parameters):
    """A module's context with other parameters; what it remembers was lowered with the old ones."""
    fresh = {name: {} for name in ("lowering_cache", "cached_primitive_lowerings") if hasattr(module, name)}
    return module.replace(lowering_parameters=parameters, **fresh)


def _lower_product(module, largest):
    """The rule of a product; one that stays as it is is lowered as in ``module``."""

    def rule(ctx, left, right, **params):
        size, of_a_vector = size_of_product(params["dimension_numbers"], *ctx.avals_in)
        if size <= SUM:
            as_it_is, product = False, _sum_of_products
        else:
            as_it_is, product = of_a_vector or size > largest, _rank_one_updates
        if as_it_is or not jnp.issubdtype(ctx.avals_out[0].dtype, jnp.floating):
            ctx, product = ctx.replace(module_context=module), lax.dot_general_p.bind
        return mlir.lower_fun(lambda *args: product(*args, **params), multiple_results=False)(ctx, left, right)

    return rule


def size_of_product(dimension_numbers, a, b):
    """``(multiplications, whether a factor is a vector)`` of `lax.dot_general`."""
    (contracted, _), (batch, _) = dimension_numbers
    shared = max(math.prod(a.shape[axis] for axis in (*contracted, *batch)), 1)
    return a.size * b.size // shared, shared in (a.size, b.size)


def _arranged(left, right, dimension_numbers, preferred_element_type=None, **_):
    """Factors with the axes of the batch, of both sides, and the contracted ones as the last; and the number of those."""
    (over_left, over_right), (batch_left, batch_right) = dimension_numbers
    dtype = preferred_element_type or jnp.result_type(left, right)

    def arranged(x, over, batch):
        free = [axis for axis in range(x.ndim) if axis not in (*over, *batch)]
        return jnp.transpose(x.astype(dtype), (*batch, *free, *over)), len(free)

    (left, n), (right, m), b = arranged(left, over_left, batch_left), arranged(right, over_right, batch_right), len(batch_left)
    return lax.expand_dims(left, range(b + n, b + n + m)), lax.expand_dims(right, range(b, b + n)), len(over_left)


def _sum_of_products(left, right, **params):
    """`lax.dot_general`."""
    left, right, k = _arranged(left, right, **params)
    return jnp.sum(left * right, axis=tuple(range(-k, 0)))


def _rank_one_updates(left, right, **params):
    """`lax.dot_general`, of more terms."""
    left, right, k = _arranged(left, right, **params)
    left, right = (x.reshape(*x.shape[: x.ndim - k], -1) for x in (left, right))
    shape = jnp.broadcast_shapes(left.shape[:-1], right.shape[:-1])
    left, right = (jnp.moveaxis(x, -1, 0) for x in (left, right))

    def update(k, total):
        return total + lax.dynamic_index_in_dim(left, k, 0, False) * lax.dynamic_index_in_dim(right, k, 0, False)

    return lax.fori_loop(0, left.shape[0], update, jnp.zeros(shape, left.dtype))
