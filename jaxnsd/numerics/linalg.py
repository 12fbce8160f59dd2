"""Small dense linear algebra that batches well.

A LAPACK call per batch element is slow for the matrices of 1 to 20 rows that a time step needs. Here such a matrix is *unpacked* into a
NumPy object array whose entries are JAX scalars. Arithmetic on it is ordinary NumPy code, executed once while tracing; what
XLA sees is straight-line scalar code, a structure of arrays under `vmap`, that it fuses and vectorizes over the batch. Above
`UNROLL` rows, where straight-line code takes too long to compile, the same functions work on ordinary JAX arrays: callers are written once.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap

from ..native.jax_internals import Primitive, ad, batching, lowered_as
from ..programs.derivatives import with_rule
from . import thresholds

#: Largest matrix, in rows, that is unpacked into scalars, and largest one that is inverted by vectorized Gauss-Jordan elimination.
UNROLL, GAUSS_JORDAN = 4, 32

#: Largest matrix, in rows, that is eliminated with a choice of pivots.
PIVOTED = 96

#: Largest product of matrices, in multiplications, that is a sum: on a GPU it fuses with its neighbours, a call of a library does not.
SUM = 1 << 11

#: Largest array of a loop's carry, in entries, that is carried as single scalars.
CARRY = 16


def is_unpacked(x):
    """Whether ``x`` is an object array of scalars rather than a JAX array."""
    return isinstance(x, np.ndarray) and x.dtype == object


def unpack(x):
    """Object array with the shape of ``x`` whose entries are JAX scalars; an object array passes through."""
    if is_unpacked(x):
        return x
    x = jnp.asarray(x)
    return vector(_entries.bind(x, shape=x.shape) if x.size else ()).reshape(x.shape)


def pack(x):
    """JAX array of an object array of scalars; a JAX array passes through."""
    if not is_unpacked(x):
        return x
    if x.size == 0:
        raise ValueError("an empty object array has no dtype; build the empty array where the dtype is known")
    entries = [jnp.asarray(entry) for entry in x.ravel()]
    dtype = jnp.result_type(*entries)
    return _joined.bind(*[entry.astype(dtype) for entry in entries], shape=x.shape)[0]


def vector(entries):
    """Object array of a sequence of scalars."""
    out = np.empty(len(entries), dtype=object)
    for i, entry in enumerate(entries):
        out[i] = entry
    return out


def _taken_apart(x, shape):
    """The entries of ``x``, whose last axes have this shape; those before are of batches."""
    lead = x.shape[: x.ndim - len(shape)]
    start = (0,) * len(lead)
    return [lax.slice(x, start + at, lead + tuple(i + 1 for i in at)).reshape(lead) for at in np.ndindex(*shape)]


def _put_together(*entries, shape):
    """The inverse of `_taken_apart`."""
    lead = entries[0].shape
    return [lax.concatenate([lax.reshape(x, (*lead, 1)) for x in entries], len(lead)).reshape(*lead, *shape)]


def _linear(name, function, shapes, back):
    """The primitive of ``function(*args, shape)``, linear, with as many results as ``shapes(*avals, shape)``; back: its transpose.

    One operation, where a slice and a reshape for every entry would be many times as many to trace, to differentiate and to transpose.
    """
    primitive = Primitive(name)
    primitive.multiple_results = True

    def transpose(cotangents, *args, **params):
        if all(type(c) is ad.Zero for c in cotangents):
            return [None] * len(args)
        return back().bind(*map(ad.instantiate_zeros, cotangents), **params)

    def batched(args, axes, **params):
        size = next(x.shape[axis] for x, axis in zip(args, axes, strict=True) if axis is not None)
        out = primitive.bind(*[batching.bdim_at_front(x, axis, size) for x, axis in zip(args, axes, strict=True)], **params)
        return out, [0] * len(out)

    primitive.def_impl(function)
    primitive.def_abstract_eval(lambda *avals, shape: [avals[0].update(shape=s, weak_type=False) for s in shapes(*avals, shape=shape)])
    lowered_as(primitive, function, multiple_results=True)
    ad.deflinear2(primitive, transpose)
    batching.primitive_batchers[primitive] = batched
    return primitive


_entries = _linear("jaxnsd_entries", _taken_apart, lambda x, shape: [x.shape[: x.ndim - len(shape)]] * math.prod(shape), lambda: _joined)
_joined = _linear("jaxnsd_joined", _put_together, lambda *entries, shape: [(*entries[0].shape, *shape)], lambda: _entries)


@jax.tree_util.register_pytree_node_class
class Scalars(NamedTuple):
    """An object array as a pytree of its entries."""

    entries: tuple
    shape: tuple

    def tree_flatten(self):
        """Entries, and the shape."""
        return self.entries, self.shape

    @classmethod
    def tree_unflatten(cls, shape, entries):
        """Inverse of `tree_flatten`."""
        return cls(tuple(entries), shape)


def to_leaves(x):
    """Pytree for loops, which know no object arrays: those in ``x`` are taken apart; JAX arrays pass through."""
    return jax.tree.map(lambda x: Scalars(tuple(x.ravel()), x.shape) if is_unpacked(x) else x, x)


def from_leaves(leaves):
    """Inverse of `to_leaves`."""
    is_leaf = lambda x: isinstance(x, Scalars)  # noqa: E731
    return jax.tree.map(lambda x: vector(x.entries).reshape(x.shape) if is_leaf(x) else x, leaves, is_leaf=is_leaf)


def elementwise(function):
    """Extend an elementwise JAX function to object arrays (with broadcasting)."""

    def lifted(*args):
        if not any(is_unpacked(arg) for arg in args):
            return function(*args)
        wrapped = []
        for arg in args:
            if isinstance(arg, np.ndarray):
                wrapped.append(arg.astype(object))
            else:
                scalar = np.empty((), dtype=object)
                scalar[()] = arg
                wrapped.append(scalar)
        wrapped = np.broadcast_arrays(*wrapped)
        out = np.empty(wrapped[0].shape, dtype=object)
        for index in np.ndindex(*out.shape):
            out[index] = function(*(arg[index] for arg in wrapped))
        return out

    return lifted


where = elementwise(jnp.where)
maximum = elementwise(jnp.maximum)
minimum = elementwise(jnp.minimum)
absolute = elementwise(jnp.abs)
sqrt = elementwise(jnp.sqrt)
greater = elementwise(jnp.greater)
less = elementwise(jnp.less)
logical_and = elementwise(jnp.logical_and)
logical_not = elementwise(jnp.logical_not)
multiply = elementwise(jnp.multiply)
divide = elementwise(jnp.divide)


def max_entry(x):
    """Largest entry, as a scalar."""
    if not is_unpacked(x):
        return jnp.max(x)
    # A balanced tree: a chain of maxima would be a chain of dependent operations.
    entries = list(x.ravel())
    while len(entries) > 1:
        pairs = [jnp.maximum(a, b) for a, b in zip(entries[::2], entries[1::2], strict=False)]
        entries = pairs + entries[2 * len(pairs) :]
    return entries[0]


def matmul(a, b):
    """Matrix product of two object arrays or of two JAX arrays (full precision on every backend)."""
    if is_unpacked(a):
        return _product(a, b)
    if a.shape[-1] > GAUSS_JORDAN or a.size * b.size > SUM * a.shape[-1]:
        return jnp.matmul(a, b, precision="highest")
    return jnp.sum(a * b[None, :], axis=1) if b.ndim == 1 else jnp.sum(a[:, :, None] * b[None, :, :], axis=1)


def _product(a, b):
    """Matrix product of two object arrays: of operations of JAX's own, which are traced in a quarter of the time that operators take."""
    if a.ndim != 2 or not a.shape[1]:
        return a @ b
    columns = b.reshape(len(b), -1)
    out = np.empty((len(a), columns.shape[1]), dtype=object)
    for i, j in np.ndindex(*out.shape):
        out[i, j] = functools.reduce(lax.add, map(lax.mul, a[i], columns[:, j]))
    return out.reshape(len(a), *b.shape[1:])


def concatenate(parts, axis=0):
    """Concatenation of object arrays or of JAX arrays."""
    if any(is_unpacked(part) for part in parts):
        return np.concatenate(parts, axis)
    return jnp.concatenate(parts, axis)


def zeros_like(x):
    """Zeros of the shape and kind of ``x``."""
    return elementwise(jnp.zeros_like)(x)


def lu(a, *, guard=False):
    """Factor the square matrix ``a`` and return a function ``b -> solution of a x = b`` for ``b`` of shape ``(n,)`` or ``(n, k)``.

    Up to `GAUSS_JORDAN` rows the elimination has no row exchanges: right for symmetric positive definite matrices and their small
    perturbations, which is what a mass matrix minus a multiple of dt is. Larger ones use LAPACK with row exchanges.

    With ``guard`` the matrix may be singular and is expected with diagonal entries of order one: an unknown whose pivot
    vanishes is set to zero (a basic solution; redundant contacts and constraints have many).
    """
    if is_unpacked(a):
        return _lu_unpacked(a, guard)
    n = a.shape[0]
    if n <= GAUSS_JORDAN:
        inverse = _inverse(a, guard)
        return lambda b: matmul(inverse, b)
    if guard:
        # LAPACK has no such guard: a tiny shift bounds the components in the null space.
        a = a + thresholds.pivot(a.dtype) * jnp.eye(n, dtype=a.dtype)
    return Factors.of(a).solve


class Factors(NamedTuple):
    """A square matrix and its factors L U, with row exchanges, by LAPACK."""

    matrix: jax.Array
    lu: jax.Array
    order: jax.Array  # of the rows

    @classmethod
    def of(cls, matrix):
        return cls(matrix, *_factored(lax.stop_gradient(matrix)))

    def solve(self, b):
        """Solution x of ``matrix x = b``, b of shape (n,) or (n, k), differentiable in the matrix as well."""

        def solver(substituted):
            return lambda _, b: substituted(self.lu, self.order, b.reshape(len(b), -1)).reshape(b.shape)

        return lax.custom_linear_solve(lambda x: matmul(self.matrix, x), b, solver(_substituted), solver(_transposed))


def _one_by_one(function):
    """``function`` of arrays that under `vmap` takes one member after the other on a CPU, or all side by side if only columns differ.

    On a CPU two functions of LAPACK's, each of a batch, wait for each other's threads for ever if XLA happens to run them at the same time:
    seen with jaxlib 0.10.2 on two cores, of factorizations and of triangular solves, from three matrices of 36 rows on. Of several
    arguments the last one has columns that have nothing to do with each other.
    """
    one = custom_vmap(function)

    @one.def_vmap
    def _batched(axis_size, in_batched, *args):
        if len(args) > 1 and not any(in_batched[:-1]):
            *shared, b = args
            columns = jnp.moveaxis(b, 0, 2)
            out = one(*shared, columns.reshape(len(columns), -1))
            return jnp.moveaxis(out.reshape(columns.shape), 2, 0), True
        args = [x if batched else jnp.broadcast_to(x, (axis_size, *x.shape)) for x, batched in zip(args, in_batched, strict=True)]
        out = lax.platform_dependent(*args, cpu=lambda *args: lax.map(lambda x: one(*x), args), default=jax.vmap(function))
        return out, jax.tree.map(lambda _: True, out)

    return one


@_one_by_one
def _factored(a):
    """``(lu, order)``: the factors of a matrix, and the order of its rows."""
    lu, _, order = lax.linalg.lu(a)
    return lu, order


@_one_by_one
def _substituted(lu, order, b):
    """Solution of a system of equations by its factors."""
    y = lax.linalg.triangular_solve(lu, b[order], left_side=True, lower=True, unit_diagonal=True)
    return lax.linalg.triangular_solve(lu, y, left_side=True)


@_one_by_one
def _transposed(lu, order, b):
    """Solution of the transposed system."""
    y = lax.linalg.triangular_solve(lu, b, left_side=True, transpose_a=True)
    y = lax.linalg.triangular_solve(lu, y, left_side=True, lower=True, transpose_a=True, unit_diagonal=True)
    return jnp.zeros_like(y).at[order].set(y)


def pivoted(a):
    """`lu` with its guard, of a JAX array, and of all diagonal entries the largest first as a pivot, up to `PIVOTED` rows.

    Of rows that depend on each other those are kept that are best told apart. Taken in their own order, two that are nearly dependent may
    be kept before a third one that is not, and the solution of rows that contradict each other a little is as large as that is small.
    """
    n = a.shape[0]
    if n > PIVOTED:
        return lu(a, guard=True)

    inverse = _inverse(a, True, sought=True)
    return lambda b: matmul(inverse, b)


def _invert_pivot(pivot, guard):
    if not guard:
        return 1 / pivot
    regular = jnp.abs(pivot) > thresholds.pivot(jnp.result_type(pivot))
    return jnp.where(regular, 1 / jnp.where(regular, pivot, 1), 0)


def _inverse(a, guard, *, sought=False):
    """Inverse by Gauss-Jordan elimination in place, if small in scalars; ``sought``: of all diagonal entries the largest first as a pivot.

    Its derivative is that of an inverse: no step of the elimination is differentiated.
    """
    n = a.shape[0]
    if n <= UNROLL and not sought:
        return pack(_lu_unpacked(unpack(a), guard)(unpack(jnp.eye(n, dtype=a.dtype))))

    def rule(primals, tangents):
        inverse = invert(*primals)
        return inverse, -matmul(inverse, matmul(tangents[0], inverse))

    invert = with_rule(lambda a: _inverted.bind(a, guard=thresholds.pivot(a.dtype) if guard else 0.0, sought=sought), rule)
    return invert(a)


def _eliminate(a, guard, sought):
    """The inverse as n rank-one updates of the whole matrix, each one fused."""
    n = a.shape[0]

    def step(k, carry):
        a, left = carry
        if sought:
            diagonal = jnp.sum(jnp.where(jnp.eye(n, dtype=bool), a, 0), axis=1)
            k = jnp.argmax(jnp.where(left, jnp.abs(diagonal), -1))
        return _eliminated(a, k, guard), left & (jnp.arange(n) != k) if sought else left

    return lax.fori_loop(0, n, step, (a, jnp.ones(n if sought else 0, bool)))[0]


#: Native code takes a row at a time, in vector registers.
_inverted = Primitive("jaxnsd_inverse")
_inverted.def_impl(jax.jit(_eliminate, static_argnames=("guard", "sought")))
_inverted.def_abstract_eval(lambda a, guard, sought: a)
lowered_as(_inverted, _eliminate)
batching.primitive_batchers[_inverted] = lambda args, axes, **how: (jax.vmap(lambda a: _eliminate(a, **how), axes)(*args), 0)


def _eliminated(a, k, guard):
    """``a`` after the step of Gauss-Jordan elimination in place that has its pivot in row and column k."""
    unit = jnp.arange(a.shape[0]) == k
    row, column = lax.dynamic_index_in_dim(a, k, 0, False), lax.dynamic_index_in_dim(a, k, 1, False)
    inverse_pivot = _invert_pivot(lax.dynamic_index_in_dim(row, k, 0, False), guard)
    row = jnp.where(unit, inverse_pivot, row * inverse_pivot)
    column = jnp.where(unit, 0, column)
    rest = jnp.where(unit[None, :], 0, a) - column[:, None] * row[None, :]
    return jnp.where(unit[:, None], row[None, :], rest)


def _lu_unpacked(a, guard):
    n = a.shape[0]
    a = a.copy()
    inverse_pivots = []
    for k in range(n):
        inverse_pivots.append(_invert_pivot(a[k, k], guard))
        for i in range(k + 1, n):
            a[i, k] = lax.mul(a[i, k], inverse_pivots[k])
            for j in range(k + 1, n):
                a[i, j] = lax.sub(a[i, j], lax.mul(a[i, k], a[k, j]))

    def solve(b):
        x = b.reshape(n, -1).copy()
        for column in x.T:
            for k in range(n):
                for i in range(k + 1, n):
                    column[i] = lax.sub(column[i], lax.mul(a[i, k], column[k]))
            for k in reversed(range(n)):
                for j in range(k + 1, n):
                    column[k] = lax.sub(column[k], lax.mul(a[k, j], column[j]))
                column[k] = lax.mul(column[k], inverse_pivots[k])
        return x.reshape(b.shape)

    return solve
