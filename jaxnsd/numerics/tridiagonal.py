"""Symmetric tridiagonal matrices, as of bars, strings and chains of springs: products in n operations, solutions in n log n.

The solution is by parallel cyclic reduction (Hockney 1965): ceil(log2 n) sweeps, each one elementwise operation over all rows, which
vectorizes on a CPU and keeps a GPU busy, where the n steps of Thomas' algorithm wait for one another. For a positive definite
matrix the pivots are those of Gaussian elimination on a symmetric permutation: positive, no growth, no row exchanges.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..programs.given import as_array, numbers, shown


@dataclasses.dataclass(frozen=True)
class Tridiagonal:
    """Symmetric tridiagonal matrix.

    diagonal:  (n,) entries ``A[i, i]``
    off:       (n - 1,) entries ``A[i, i + 1] = A[i + 1, i]``

    Raises ValueError for other shapes.
    """

    diagonal: jax.Array
    off: jax.Array

    def __post_init__(self):
        for name in ("diagonal", "off"):
            if numbers(value := getattr(self, name)) is None:
                raise TypeError(f"Tridiagonal: {name} must be an array of numbers, got {shown(value)}")
            object.__setattr__(self, name, as_array(value))
        shapes = self.diagonal.shape, self.off.shape
        if len(shapes[0]) != 1 or shapes[1] != (shapes[0][0] - 1,):
            raise ValueError(f"Tridiagonal: diagonal must have shape (n,) and off (n - 1,), got {shapes[0]} and {shapes[1]}")

    @property
    def shape(self) -> tuple[int, int]:
        """(n, n)."""
        return (self.diagonal.shape[-1],) * 2

    @property
    def dtype(self) -> np.dtype:
        """Type of the entries."""
        return self.diagonal.dtype

    def __matmul__(self, x):
        """Product with a vector (n,) or with columns (n, k)."""
        diagonal, off = self.diagonal, self.off
        if x.ndim == 2:
            diagonal, off = diagonal[:, None], off[:, None]
        return diagonal * x + _shift(off * x[1:], -1) + _shift(off * x[:-1], 1)

    def __add__(self, other):
        return jax.tree.map(jnp.add, self, other)

    def __rmul__(self, factor):
        return jax.tree.map(lambda x: factor * x, self)

    def dense(self) -> jax.Array:
        """The matrix as an array (n, n)."""
        return jnp.diag(self.diagonal) + jnp.diag(self.off, 1) + jnp.diag(self.off, -1)


def _unflatten(_, parts):
    # Without the checks: transformations put batches and placeholders in the fields.
    matrix = object.__new__(Tridiagonal)
    for name, part in zip(("diagonal", "off"), parts, strict=True):
        object.__setattr__(matrix, name, part)
    return matrix


jax.tree_util.register_pytree_with_keys(
    Tridiagonal,
    lambda matrix: (tuple((jax.tree_util.GetAttrKey(name), getattr(matrix, name)) for name in ("diagonal", "off")), None),
    _unflatten,
)


def _shift(x, rows):
    """``x`` with ``abs(rows)`` rows of zeros in front (rows > 0) or behind."""
    pad = (rows, 0) if rows > 0 else (0, -rows)
    return jnp.pad(x, [pad] + [(0, 0)] * (x.ndim - 1))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Reduction:
    """What cyclic reduction does to a right-hand side: multipliers (levels, n) of the rows before and behind, inverse pivots (n,)."""

    before: jax.Array
    behind: jax.Array
    inverse_pivots: jax.Array


def reduce(matrix):
    """`Reduction` of a `Tridiagonal` matrix, positive definite."""
    n = matrix.shape[0]

    def sweep(rows, stride):
        lower, diagonal, upper = rows
        inverse = 1 / diagonal
        before, behind = -lower * _before(inverse, stride), -upper * _behind(inverse, stride)
        diagonal = diagonal + before * _before(upper, stride) + behind * _behind(lower, stride)
        return (before * _before(lower, stride), diagonal, behind * _behind(upper, stride)), (before, behind)

    rows = jnp.pad(matrix.off, (1, 0)), matrix.diagonal, jnp.pad(matrix.off, (0, 1))
    (_, diagonal, _), (before, behind) = lax.scan(sweep, rows, _strides(n))
    return Reduction(before, behind, 1 / diagonal)


def solve(reduction, b):
    """Solution of ``A x = b`` for ``b`` of shape (n,) or (n, k)."""

    def sweep(b, level):
        stride, before, behind = level
        if b.ndim == 2:
            before, behind = before[:, None], behind[:, None]
        return b + before * _before(b, stride) + behind * _behind(b, stride), None

    inverse = reduction.inverse_pivots[:, None] if b.ndim == 2 else reduction.inverse_pivots
    return inverse * lax.scan(sweep, b, (_strides(b.shape[0]), reduction.before, reduction.behind))[0]


def _strides(n):
    """1, 2, 4, ... below n."""
    return 2 ** np.arange((n - 1).bit_length())


def _before(x, stride):
    """Entry ``i - stride`` in row i, zero where there is none."""
    n = x.shape[0]
    return lax.dynamic_slice_in_dim(jnp.pad(x, [(n, 0)] + [(0, 0)] * (x.ndim - 1)), n - stride, n)


def _behind(x, stride):
    """Entry ``i + stride`` in row i, zero where there is none."""
    n = x.shape[0]
    return lax.dynamic_slice_in_dim(jnp.pad(x, [(0, n)] + [(0, 0)] * (x.ndim - 1)), stride, n)
