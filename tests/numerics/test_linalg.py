"""Unpacked and vectorized linear algebra against NumPy."""

import functools
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxnsd import native
from jaxnsd.numerics import linalg


def matrix(n, seed=0):
    """A matrix like those of a step: symmetric positive definite with a small skew perturbation."""
    rng = np.random.default_rng((seed, n))
    A = rng.normal(size=(n, n))
    return A @ A.T / n + np.eye(n) + 0.05 * (A - A.T), rng.normal(size=(n, 3))


@functools.partial(jax.jit, static_argnames=("kind", "guard"))
def _solve(kind, A, b, guard):
    if kind == "unpacked":
        return linalg.pack(linalg.lu(linalg.unpack(A), guard=guard)(linalg.unpack(b)))
    return linalg.pivoted(A)(b) if kind == "pivoted" else linalg.lu(A, guard=guard)(b)


def solve(kind, A, b, guard=False):
    """The solution in plain NumPy, through scalars or through arrays."""
    return np.asarray(_solve(kind, A, b, guard))


@pytest.mark.parametrize(
    "kind, n",
    [("unpacked", 1), ("unpacked", 3), ("array", 1), ("array", 6), ("array", 18), ("array", linalg.GAUSS_JORDAN + 3), ("pivoted", 12)],
)
@pytest.mark.parametrize("guard", [False, True])
def test_lu_solves(kind, n, guard):
    A, b = matrix(n)
    tolerance = 1e-9 if guard and n > linalg.GAUSS_JORDAN else 1e-12
    np.testing.assert_allclose(solve(kind, A, b, guard=guard), np.linalg.solve(A, b), rtol=0, atol=tolerance)
    np.testing.assert_allclose(solve(kind, A, b[:, 0], guard=guard), np.linalg.solve(A, b[:, 0]), rtol=0, atol=tolerance)


@pytest.mark.parametrize("kind, n", [("unpacked", 4), ("array", 4), ("array", 12), ("array", linalg.GAUSS_JORDAN + 3), ("pivoted", 12)])
def test_guarded_lu_solves_consistent_singular_systems(kind, n):
    rng = np.random.default_rng(n)
    for rank in (1, n // 2, n - 1):
        B = rng.normal(size=(n, rank))
        A = B @ B.T
        A /= np.sqrt(np.outer(np.diag(A), np.diag(A)))  # diagonal entries of order one
        b = A @ rng.normal(size=n)
        x = solve(kind, A, b, guard=True)
        np.testing.assert_allclose(A @ x, b, rtol=0, atol=1e-6 * max(1, np.abs(x).max()))
        assert np.abs(x).max() < 1e6


@pytest.mark.skipif(not native.available(), reason="there is no native code")
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("n, pivoted", [(5, False), (11, False), (14, False), (27, False), (32, False), (7, True), (23, True), (96, True)])
def test_native_code_solves_as_xla_does(n, pivoted, dtype):
    """A regular matrix against NumPy, and one whose last row is its first, of which one is left out, against XLA."""
    A, b = (x.astype(dtype) for x in matrix(n))
    twice = A.copy()
    twice[-1], twice[:, -1] = twice[0], twice[:, 0]
    twice[-1, -1] = twice[0, -1] = twice[-1, 0] = twice[0, 0]

    def both(a, b):
        solvers = [linalg.pivoted(a)] if pivoted else [linalg.lu(a), linalg.lu(a, guard=True)]
        return [solve(b) for solve in solvers]

    by_xla = jax.jit(both)
    compiled = jax.jit(native.compiled(both, [jax.ShapeDtypeStruct(x.shape, dtype) for x in (A, b)]))
    eps = np.finfo(dtype).eps
    for x in compiled(A, b):
        np.testing.assert_allclose(x, np.linalg.solve(A.astype(float), b), rtol=0, atol=1e3 * eps)
    for a in (A, twice):
        x, expected = compiled(a, b)[-1], by_xla(a, b)[-1]
        np.testing.assert_allclose(x, expected, rtol=0, atol=1e3 * eps * np.abs(expected).max())
    assert np.isnan(np.asarray(compiled(np.full_like(A, np.nan), b)[0])).all()


def test_rows_that_are_told_apart_are_kept():
    # Velocities v of two coordinates along three directions, the first two of which are nearly one, and the second is off by an error.
    W, v, error = np.array([[1.0, 0.0], [1.0, 1e-5], [0.0, 1.0]]), np.array([0.3, -0.2]), np.array([0.0, 1e-3, 0.0])
    x = solve("pivoted", W @ W.T, W @ v + error)
    np.testing.assert_allclose(W.T @ x, v, atol=2e-3)


@pytest.mark.parametrize("kind", ["unpacked", "array"])
def test_guarded_lu_has_finite_derivatives(kind):
    direction = jnp.array([1.0, 2.0, -1.0])
    A = jnp.outer(direction, direction) / direction[:, None] ** 2

    def total(A):
        b = A @ jnp.array([0.3, -1.0, 2.0])
        if kind == "unpacked":
            return jnp.sum(linalg.pack(linalg.lu(linalg.unpack(A), guard=True)(linalg.unpack(b))))
        return jnp.sum(linalg.lu(A, guard=True)(b))

    assert np.all(np.isfinite(jax.jit(lambda A: (jax.grad(total)(A), jax.jacfwd(total)(A)))(A)))


@pytest.mark.parametrize("n", [3, 7])
def test_lu_under_vmap_and_grad(n):
    A, b = matrix(n)
    batch = A + 0.1 * np.arange(5)[:, None, None] * np.eye(n)
    solutions = jax.jit(jax.vmap(lambda A: linalg.lu(A)(jnp.asarray(b))))(batch)
    np.testing.assert_allclose(solutions, np.linalg.solve(batch, np.broadcast_to(b, (5, n, 3))), atol=1e-12)
    gradient = jax.jit(jax.grad(lambda A: jnp.sum(linalg.lu(A)(jnp.asarray(b)))))(A)
    expected = -np.outer(np.linalg.solve(A.T, np.ones(n)), np.linalg.solve(A, b).sum(1))
    np.testing.assert_allclose(gradient, expected, atol=1e-12)


def test_pack_inverts_unpack_and_leaves_arrays_alone():
    for shape in ((4,), (2, 3), (1, 1)):
        x = jnp.arange(float(np.prod(shape))).reshape(shape)
        np.testing.assert_array_equal(linalg.pack(linalg.unpack(x)), x)
        assert linalg.is_unpacked(linalg.unpack(x)) and not linalg.is_unpacked(x)
        assert linalg.to_leaves(x) is x and linalg.from_leaves(x) is x
    leaves = linalg.to_leaves(linalg.unpack(jnp.arange(3.0)))
    assert len(jax.tree.leaves(leaves)) == 3
    np.testing.assert_array_equal(linalg.pack(linalg.from_leaves(leaves)), np.arange(3.0))
    with pytest.raises(ValueError, match="empty"):
        linalg.pack(np.empty((0,), object))


def test_elementwise_lifting_broadcasts_like_numpy():
    a, b = np.array([[1.0, -2.0], [3.0, 0.5]]), np.array([0.5, 1.0])
    lifted = linalg.pack(linalg.maximum(linalg.unpack(a), linalg.unpack(b)))
    np.testing.assert_array_equal(lifted, np.maximum(a, b))
    np.testing.assert_array_equal(
        linalg.pack(linalg.where(linalg.greater(linalg.unpack(a), 0), linalg.unpack(a), -1.0)), np.where(a > 0, a, -1)
    )
    np.testing.assert_array_equal(linalg.maximum(a, 1.0), np.maximum(a, 1.0))
    assert linalg.max_entry(linalg.unpack(a)) == 3 and linalg.max_entry(jnp.asarray(a)) == 3


def test_products_and_joins_agree_with_numpy():
    A, b = matrix(3)
    for kind in (linalg.unpack, jnp.asarray):
        np.testing.assert_allclose(linalg.pack(linalg.matmul(kind(A), kind(b))), A @ b, atol=1e-14)
        np.testing.assert_allclose(linalg.pack(linalg.matmul(kind(A), kind(b[:, 0]))), A @ b[:, 0], atol=1e-14)
        np.testing.assert_array_equal(linalg.pack(linalg.concatenate([kind(A), kind(b)], axis=1)), np.concatenate([A, b], axis=1))
        np.testing.assert_array_equal(linalg.pack(linalg.zeros_like(kind(A))), 0 * A)


def test_factors_of_large_matrices_in_batches():
    """Row exchanges, batches of either or both, of batches, the transpose, and derivatives with respect to matrix and right-hand side."""
    n = linalg.GAUSS_JORDAN + 4
    A, b = (jnp.stack(x) for x in zip(*(matrix(n, seed) for seed in range(3)), strict=True))
    A = A[:, ::-1]
    expected = np.linalg.solve(A, b)

    def solve(A, b):
        return linalg.Factors.of(A).solve(b)

    def found(A, b):
        alone, shared = solve(A[0], b[0, :, 0]), jax.vmap(solve, (None, 0))(A[0], b)
        pairs = jax.vmap(jax.vmap(solve, (None, 0)), (0, None))(A, b)
        one_load = jax.vmap(solve, (0, None))(A, b[0])
        transposed = jax.vmap(lambda A, b: jax.linear_transpose(lambda b: solve(A, b), b)(b)[0])(A, b)
        moved = jax.vmap(lambda A, b: jax.jvp(solve, (A, b), (jnp.cos(A), jnp.sin(b)))[1])(A, b)
        return alone, shared, pairs, one_load, transposed, moved

    alone, shared, pairs, one_load, transposed, moved = jax.jit(found)(A, b)
    every = np.linalg.solve(A[:, None], b[None])
    np.testing.assert_allclose(alone, expected[0, :, 0], atol=1e-11)
    np.testing.assert_allclose(shared, every[0], atol=1e-11)
    np.testing.assert_allclose(pairs, every, atol=1e-11)
    np.testing.assert_allclose(one_load, every[:, 0], atol=1e-11)
    np.testing.assert_allclose(transposed, np.linalg.solve(jnp.swapaxes(A, 1, 2), b), atol=1e-11)
    np.testing.assert_allclose(moved, np.linalg.solve(A, np.sin(b) - np.cos(A) @ expected), atol=1e-11)


@pytest.mark.slow
def test_solves_of_batches_do_not_wait_for_each_other():
    """Six solves that XLA may run at the same time, each of a batch; by `jnp.linalg.solve` they do not end (jaxlib 0.10.2, two cores)."""
    program = """
import jax, jax.numpy as jnp, numpy as np
from jaxnsd.numerics import linalg
jax.config.update("jax_enable_x64", True)
A = jnp.asarray(np.random.default_rng(0).normal(size=(6, 32, 60, 60)) + 60 * np.eye(60))
solve = jax.vmap(lambda A, x: linalg.lu(A)(x) / 60 + 1)
step = lambda _, x: jnp.stack([solve(A[k], x[k]) for k in range(6)])
print(jnp.isfinite(jax.jit(lambda x: jax.lax.fori_loop(0, 50, step, x))(jnp.ones((6, 32, 60, 36))).sum()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=300)
    assert done.stdout.split() == ["True"], done.stderr


def through_entries(A, b):
    """``A^2 b / sum(b)`` by entries."""
    A, b = linalg.unpack(A), linalg.unpack(b)
    return linalg.pack(linalg.matmul(linalg.matmul(A, A), b)) / sum(b)


def test_taking_apart_and_putting_together_is_linear():
    """Derivatives of all kinds, in batches of either argument, and of what does not move."""
    A, b = (jnp.asarray(x) for x in matrix(3))
    b = 1 + b[:, 0] ** 2
    whole = lambda A, b: A @ A @ b / jnp.sum(b)  # noqa: E731
    along = lambda f: jax.vmap(jax.vmap(f, (0, None)), (None, 0))(jnp.stack([A, 2 * A]), jnp.stack([b, 1 + b, 2 + b]))  # noqa: E731
    for derivative in (
        lambda f: f(A, b),
        lambda f: jax.jacrev(f, (0, 1))(A, b),
        lambda f: jax.jacfwd(f, (0, 1))(A, b),
        lambda f: jax.jacrev(f, 1)(A, b),
        lambda f: jax.jacfwd(jax.jacrev(f, (0, 1)), (0, 1))(A, b),
        along,
        lambda f: along(jax.jacrev(f)),
        lambda f: along(jax.jacfwd(f, 1)),
    ):
        of = jax.jit(derivative, static_argnums=0)
        for found, right in zip(jax.tree.leaves(of(through_entries)), jax.tree.leaves(of(whole)), strict=True):
            np.testing.assert_allclose(found, right, rtol=1e-12, atol=1e-13)
    # The way back is as short as the way: no sum of arrays of zeros but for an entry.
    names = [equation.primitive.name for equation in jax.make_jaxpr(jax.grad(lambda A: jnp.sum(jnp.cos(through_entries(A, b)))))(A).eqns]
    assert names.count("jaxnsd_joined") + names.count("jaxnsd_entries") == 5 and "pad" not in names
    whole_numbers = jnp.arange(6).reshape(2, 3)
    np.testing.assert_array_equal(linalg.pack(linalg.unpack(whole_numbers)), whole_numbers)
    assert linalg.unpack(jnp.zeros((0, 2))).shape == (0, 2)


@pytest.mark.parametrize("n", [2, 6])
def test_float32_stays_float32(n):
    A, b = (x.astype(np.float32) for x in matrix(n))
    for guard in (False, True):
        x = linalg.lu(jnp.asarray(A), guard=guard)(jnp.asarray(b))
        assert x.dtype == jnp.float32
    if n <= linalg.UNROLL:
        x = linalg.pack(linalg.lu(linalg.unpack(A), guard=True)(linalg.unpack(b)))
        assert x.dtype == jnp.float32
    np.testing.assert_allclose(x, np.linalg.solve(A, b), atol=1e-5)
