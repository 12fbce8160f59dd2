"""What keeps the loop over the steps one native function on a CPU: matrix products are written as what XLA hands to no library.

XLA gives the product of two matrices to a library, however small they are, and a loop that calls a library is not compiled into one native
function (see `xla_flags`): the runtime dispatches its operations one by one, for ten times what they cost. A system's own ``A @ x`` is
harmless; its derivative in several directions at once is such a product. So products are changed before a program is lowered, whoever
wrote them and whatever transformations have made of them: small ones are sums, which fuse with their neighbours, others loops of rank-one
updates.

Sums of many terms go to the library as well. Custom calls, such as those of LAPACK, sorts and scatters throw a loop out, too: those are
avoided by hand.
"""

import functools
import math

import jax.numpy as jnp
from jax import lax

from .rewriting import rewritten

#: Largest product, in multiplications, that is written as a sum: from 4096 terms on XLA gives a sum to the library.
SUM = 1 << 11

#: Largest product that is changed at all: from there on a library is worth its call.
LARGEST = 1 << 19


def written_out(closed, largest=LARGEST, further=lambda equation: None):
    """A closed jaxpr, not differentiated any more, whose matrix products stay out of the library.

    further: ``further(equation)`` is what takes the place of other equations, a function of their operands, or None
    """

    def instead(equation, _):
        function = _product(equation, largest) if equation.primitive is lax.dot_general_p else further(equation)
        return function and (function, equation.invars)

    return rewritten(closed, instead)


def _product(equation, largest):
    """What takes the place of a product; None where it stays as it is."""
    size, of_a_vector = size_of_product(equation.params["dimension_numbers"], *(x.aval for x in equation.invars))
    if not jnp.issubdtype(equation.outvars[0].aval.dtype, jnp.floating):
        return None
    if size <= SUM:
        return functools.partial(_sum_of_products, **equation.params)
    return None if of_a_vector or size > largest else functools.partial(_rank_one_updates, **equation.params)


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
    return [jnp.sum(left * right, axis=tuple(range(-k, 0)))]


def _rank_one_updates(left, right, **params):
    """`lax.dot_general`, of more terms."""
    left, right, k = _arranged(left, right, **params)
    left, right = (x.reshape(*x.shape[: x.ndim - k], -1) for x in (left, right))
    shape = jnp.broadcast_shapes(left.shape[:-1], right.shape[:-1])
    left, right = (jnp.moveaxis(x, -1, 0) for x in (left, right))

    def update(k, total):
        return total + lax.dynamic_index_in_dim(left, k, 0, False) * lax.dynamic_index_in_dim(right, k, 0, False)

    return [lax.fori_loop(0, left.shape[0], update, jnp.zeros(shape, left.dtype))]
