"""Matrix products in a run: lowered to sums or rank-one updates, with the same values, and out of the library that ends a native loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxnsd
from jaxnsd import lanes

#: Shapes and dimension numbers as of `lax.dot_general`: vectors, matrices, batches, several contracted axes, of sizes on either side of
#: every limit.
PRODUCTS = [
    ((3,), (3,), (((0,), (0,)), ((), ()))),
    ((8, 3), (3,), (((1,), (0,)), ((), ()))),
    ((3, 4), (5, 3), (((0,), (1,)), ((), ()))),
    ((80, 60), (60,), (((1,), (0,)), ((), ()))),
    ((30, 20), (20, 10), (((1,), (0,)), ((), ()))),
    ((6, 4, 5, 7), (7, 6, 3, 5), (((2, 3), (3, 0)), ((0,), (1,)))),
    ((9, 14, 5, 7), (7, 9, 13, 5), (((2, 3), (3, 0)), ((0,), (1,)))),
    ((3, 4), (5,), (((), ()), ((), ()))),
    ((90, 80), (80, 90), (((1,), (0,)), ((), ()))),
]


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32, jnp.int32])
def test_products_have_the_values_of_the_library(dtype):
    rng = np.random.default_rng(0)
    pairs = [tuple(jnp.asarray(10 * rng.normal(size=shape), dtype) for shape in shapes) for *shapes, _ in PRODUCTS]

    def products(pairs):
        return [lax.dot_general(*pair, numbers, precision="highest") for pair, (*_, numbers) in zip(pairs, PRODUCTS, strict=True)]

    wanted = jax.jit(products)(pairs)
    inside = jax.jit(lambda pairs: lanes.run(products, pairs))(pairs)
    for got, value in zip(inside, wanted, strict=True):
        assert got.dtype == value.dtype and got.shape == value.shape
        np.testing.assert_allclose(got, value, rtol=0, atol=40 * float(jnp.finfo(jnp.promote_types(dtype, jnp.float32)).eps) * 1e4)


@jaxnsd.system
class Plank(jaxnsd.System):
    """A quaternion and four corners above a floor, written with products of matrices."""

    def kinetic_energy(self, t, q, u):
        return 0.5 * u @ (jnp.diag(jnp.array([1.0, 1.0, 1.0, 0.1, 0.2, 0.3])) @ u)

    def q_dot(self, t, q, u):
        w, v = q[3], q[4:]
        return jnp.concatenate([u[:3], -0.5 * (v @ u[3:])[None], 0.5 * (w * u[3:] + jnp.cross(v, u[3:]))])

    def gap(self, t, q):
        w, v = q[3], q[4:]
        rotation = (w * w - v @ v) * jnp.eye(3) + 2 * (jnp.outer(v, v) + w * jnp.cross(jnp.eye(3), v).T)
        corners = jnp.array([[1.0, 1.0, 0.0], [1.0, -1.0, 0.0], [-1.0, 1.0, 0.0], [-1.0, -1.0, 0.1]])
        return q[2] + (corners @ rotation.T)[:, 2]


@pytest.mark.slow
@pytest.mark.skipif(jax.default_backend() != "cpu", reason="it is about XLA's CPU backend")
def test_a_run_calls_no_library():
    """A system written with products, with a quaternion and without a closed form of anything, values and derivatives."""
    q0, u0 = jnp.array([0.0, 0, 0.3, 1, 0, 0, 0]), jnp.array([0.1, 0, 0, 0.2, 0.1, 0.3])

    def final(q, u):
        return jnp.sum(jaxnsd.simulate(Plank(), jaxnsd.Moreau(), q, u, 0.4, 1e-2).q[-1] ** 2)

    # Without the rewriting there are products of the library in it.
    for function in (final, jax.grad(final)):
        text = jax.jit(function).lower(q0, u0).compile().as_text()
        for word in ("custom-call(", "ynn", " sort(", " scatter("):
            assert word not in text, word
