"""What is computed where it is read: the same values, and nothing handed over that is constant or a copy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from jaxnsd.bodies.lists import pick
from jaxnsd.bodies.rotations import cross, matrix, of_numbers
from jaxnsd.programs import backward, runs


def some(x, y):
    """Copies of x, a constant mask, a sine of y twice, and a sum."""
    mask = jnp.eye(3) > 0
    twice = jnp.sin(y), jnp.sin(y)
    return x[None], jnp.broadcast_to(x, (2, 3)), mask, jnp.where(mask, 1.0, 2.0), *twice, x + y


def test_only_what_depends_on_arguments_is_handed_on():
    x, y = jnp.arange(3.0), jnp.array([0.3, 0.2, 0.1])
    jaxpr = jax.make_jaxpr(some)(x, y)
    handed = []

    @jax.jit
    def through(x, y):
        stored, rest = backward.reduced(backward.evaluated(jaxpr.jaxpr, jaxpr.consts, (x, y)))
        handed.extend(stored)
        return backward.done(rest, stored)

    for a, b in zip(through(x, y), some(x, y), strict=True):
        assert_array_equal(a, b)
    # x itself, one sine, one sum.
    assert len(handed) == 3


def test_the_way_back_is_handed_what_varies():
    """A run whose every step needs a mask, a table and a parameter: the way back gets the parameter and the states."""

    def run(args):
        x, p = args
        table, mask = jnp.arange(12.0).reshape(3, 4), jnp.arange(3) < 2

        def step(x, _):
            x = jnp.where(mask, jnp.sin(x * p), x) + 0.01 * p * jnp.sum(table * jnp.cos(x)[:, None] ** 2, axis=1)
            return x, x

        return jax.lax.scan(step, x, None, 5)

    def loss(function, x, p):
        return jnp.sum(function((x, p))[1] ** 2)

    x, p = jnp.array([0.1, 0.2, 0.3]), jnp.array([1.0, 0.9, 0.8])
    found = jax.grad(lambda x, p: loss(lambda args: runs.run(run, args), x, p), (0, 1))
    for a, b in zip(jax.jit(found)(x, p), jax.grad(lambda x, p: loss(run, x, p), (0, 1))(x, p), strict=True):
        assert_allclose(a, b, rtol=1e-14)
    *_, back = (e for e in jax.make_jaxpr(found)(x, p).eqns if e.primitive.name == "jaxnsd_run")
    stored = [v.aval for v in back.invars]
    assert not any(v.dtype == bool or v.shape == (3, 4) for v in stored), stored


@pytest.mark.slow
def test_vector_products_and_picks_have_their_derivatives():
    """Of every kind and order, against what NumPy and plain indexing say."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 5, 3))
    assert_allclose(cross(a, b), np.cross(a, b), rtol=1e-15)
    for places in ([2, 0, 1], [0, 0, 4, 1, 4], [1, 1, 1], list(rng.integers(0, 5, 120))):
        reads = (functools.partial(pick, places=places), lambda x, places=places: x[jnp.array(places)])
        ours, plain = (lambda a, b, read=read: jnp.sum(read(a)[:3] ** 3 * read(b)[:3]) for read in reads)
        for derivative in (lambda f: jax.grad(f, (0, 1)), lambda f: jax.hessian(f, (0, 1)), lambda f: jax.jacfwd(f, (0, 1))):
            for x, y in zip(jax.tree.leaves(derivative(ours)(a, b)), jax.tree.leaves(derivative(plain)(a, b)), strict=True):
                assert_allclose(x, y, rtol=1e-13, atol=1e-13)
    of_ours, of_jax = (
        lambda a, b, product=product: jnp.sum(jnp.sin(product(*jnp.broadcast_arrays(a, b)))) for product in (cross, jnp.cross)
    )
    for derivative in (
        jax.grad,
        jax.hessian,
        jax.jacfwd,
        lambda f: jax.vmap(jax.grad(f, 1), (0, 0)),
        lambda f: jax.vmap(jax.grad(f, 1), (0, None)),
    ):
        assert_allclose(derivative(of_ours)(a, b), derivative(of_jax)(a, b), rtol=1e-12, atol=1e-13)
    p = rng.normal(size=(4, 4))
    assert_allclose(matrix(jnp.asarray(p)), of_numbers(p), atol=1e-15)
