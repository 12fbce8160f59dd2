"""What many fused loops read: the same numbers, but for how products and sums are rounded together, of fewer operations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import jaxpr_as_fun

import jaxnsd
from jaxnsd import fusion, models


def many_readers(x):
    """A long product that eight sums read, each of which is a loop of its own."""
    y = x
    for k in range(20):
        y = y * x[0] + k * x[1]
    return jnp.stack([jnp.sum(jnp.where(y > k, y * k, x)) for k in range(8)])


def in_a_loop(x):
    """The same in the branch of a step."""

    def step(x, k):
        y = lax.cond(k > 0, many_readers, jnp.negative, x)
        return jnp.sin(y) / 8, y

    return lax.scan(step, jnp.resize(x, (8,)), jnp.arange(5))[1]


@pytest.mark.parametrize("function", [many_readers, in_a_loop])
def test_the_same_numbers_of_half_the_operations(function):
    x = jnp.linspace(0.9, 1.1, 8)
    jaxpr = jax.make_jaxpr(function)(x)
    before, after = (jax.jit(jaxpr_as_fun(of)).lower(x).compile() for of in (jaxpr, fusion.held(jaxpr)))
    np.testing.assert_allclose(after(x)[0], before(x)[0], rtol=1e-14)
    count = [compiled.as_text().count(" multiply(") for compiled in (before, after)]
    assert count[1] < 0.5 * count[0]


def test_what_one_loop_reads_is_left_alone():
    jaxpr = jax.make_jaxpr(lambda x: jnp.sum(jnp.cumprod(x) * x))(jnp.ones(4))
    assert str(fusion.held(jaxpr)) == str(jaxpr)


@pytest.mark.parametrize("n_steps", [1, 60])
def test_gradients_are_those_without(n_steps, monkeypatch):
    """Of one step, too, whose loop XLA takes away, with an impact and without, one by one and in a user's scan."""
    ball = models.RotatingBall()
    q0, u0 = ball.initial_state()

    def height(q0):
        sol = jaxnsd.simulate(ball, jaxnsd.Lobatto(2), q0, u0, n_steps=n_steps, dt=1e-2)
        return jnp.sum(sol.q[-1]) + jnp.sum(sol.P_N)

    def gradients(q0):
        return jax.grad(height)(q0), lax.scan(lambda _, q0: (None, jax.grad(height)(q0)), None, jnp.stack([q0, q0 + 0.01]))[1]

    made = jax.jit(gradients)(q0)
    monkeypatch.setattr(fusion, "SPARED", np.inf)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11), made, jax.jit(lambda q0: gradients(q0))(q0))
