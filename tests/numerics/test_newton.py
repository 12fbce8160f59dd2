"""The loop and the implicit function theorem, on equations with known solutions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxnsd import SemismoothNewton
from jaxnsd.numerics.newton import implicit, iterate


def root(a):
    """Square root of ``a`` by Newton's method, as ``(x, error, iterations)``."""

    def step(x):
        x = 0.5 * (x + a / x)
        return x, jnp.abs(x * x - a) / (1e-14 * a)

    return iterate(step, jnp.ones_like(a), jnp.full_like(a, jnp.inf), 20)


def test_iterate_stops_early_and_counts():
    x, error, iterations = jax.jit(root)(jnp.asarray(2.0))
    assert abs(x - np.sqrt(2)) < 1e-14 and error <= 1 and 4 <= iterations <= 6
    _, _, bounded = iterate(lambda x: (x, jnp.asarray(2.0)), jnp.asarray(1.0), jnp.asarray(2.0), 7)
    assert bounded == 7


def test_iterate_leaves_finished_members_alone():
    a = jnp.array([1.0, 2.0, 1e6])
    together = jax.vmap(root)(a)
    for k in range(3):
        x, _, iterations = root(a[k])
        np.testing.assert_allclose(together[0][k], x, rtol=1e-15)
        assert together[2][k] == iterations
    assert together[2][0] < together[2][2]


def test_iterate_ends_at_once_when_the_error_is_not_a_number():
    _, error, iterations = iterate(lambda x: (x, jnp.asarray(jnp.nan)), jnp.asarray(1.0), jnp.asarray(jnp.inf), 50)
    assert jnp.isnan(error) and iterations == 1


def cube_root(a):
    """``x^3 - a = 0``: found without derivatives, differentiated implicitly."""
    x = jax.lax.stop_gradient(jnp.cbrt(a))
    return implicit(lambda x, a, da: da / (3 * x * x), x, a)


@pytest.mark.parametrize("transform", [jax.grad, jax.jacfwd, jax.jacrev])
def test_implicit_derivative(transform):
    assert abs(transform(cube_root)(8.0) - 1 / 12) < 1e-15
    np.testing.assert_allclose(jax.vmap(transform(cube_root))(jnp.array([1.0, 8.0])), [1 / 3, 1 / 12], rtol=1e-14)


@pytest.mark.parametrize("outer", [jax.jacfwd, jax.jacrev])
@pytest.mark.parametrize("inner", [jax.jacfwd, jax.jacrev])
def test_implicit_second_derivative(outer, inner):
    assert abs(outer(inner(cube_root))(8.0) + 2 / 9 * 8 ** (-5 / 3)) < 1e-15


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"tolerance": 0.0}, "tolerance"),
        ({"tolerance": 2.0}, "tolerance"),
        ({"max_iterations": 0}, "max_iterations"),
        ({"max_outer": 0}, "max_outer"),
        ({"max_rescues": -1}, "max_rescues"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(ValueError, match=message):
        SemismoothNewton(**settings)


def test_tolerance_follows_the_dtype():
    assert SemismoothNewton().tolerance_for(jnp.float64) < 1e-10 < SemismoothNewton().tolerance_for(jnp.float32) < 1e-4
    assert SemismoothNewton(tolerance=1e-3).tolerance_for(jnp.float64) == 1e-3
    assert hash(SemismoothNewton()) == hash(SemismoothNewton()) and SemismoothNewton() == SemismoothNewton()
