"""Projections: their variational inequalities, their Lipschitz constant, and derivatives that are finite at every kink."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxnsd.contact.prox import prox_ball, prox_nonnegative


def points(*shape, seed=1):
    return np.random.default_rng(seed).normal(size=shape) * 2


@pytest.mark.parametrize("d", [1, 2, 3])
def test_prox_ball_is_the_normal_cone_inclusion(d):
    # y = prox_C(x) if and only if (x - y)^T (z - y) <= 0 for all z in C.
    x, radius = points(300, d), np.abs(points(300, seed=2)) + 0.01
    y = np.asarray(prox_ball(x, radius))
    assert np.all(np.linalg.norm(y, axis=1) <= radius * (1 + 1e-14))
    z = points(50, d, seed=3)
    z = z / np.maximum(1, np.linalg.norm(z, axis=1))[:, None]  # in the unit ball
    product = np.einsum("kd,jkd->jk", x - y, z[:, None] * radius[:, None] - y)
    assert product.max() <= 1e-13
    inside = np.linalg.norm(x, axis=1) < radius
    assert 20 < inside.sum() < 280
    np.testing.assert_array_equal(y[inside], x[inside])


def test_prox_nonnegative_is_the_normal_cone_inclusion():
    x = points(1000)
    y = np.asarray(prox_nonnegative(x))
    assert np.all(y >= 0) and np.all(y * (y - x) == 0) and np.all(y - x >= 0)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_projections_are_nonexpansive(d):
    x, z = points(500, d), points(500, d, seed=4)
    distance = np.linalg.norm(prox_ball(x, 0.7 * np.ones(500)) - prox_ball(z, 0.7 * np.ones(500)), axis=1)
    assert np.all(distance <= np.linalg.norm(x - z, axis=1) * (1 + 1e-14))
    assert np.all(np.abs(prox_nonnegative(x) - prox_nonnegative(z)) <= np.abs(x - z))


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("length", [0.0, 0.5, 1.0, 1e-200])
@pytest.mark.parametrize("radius", [0.0, 0.5, 1.0, -1.0])
def test_derivatives_at_kinks_are_finite_elements_of_the_jacobian(d, length, radius):
    x = length * np.eye(d)[0]
    for transform in (jax.jacfwd, jax.jacrev):
        by_x, by_radius = jax.jit(transform(prox_ball, argnums=(0, 1)))(x, radius)
        assert np.all(np.isfinite(by_x)) and np.all(np.isfinite(by_radius))
        assert np.linalg.norm(by_x, 2) <= 1 + 1e-14 and np.linalg.norm(by_radius) <= 1 + 1e-14
        slope = jax.jit(transform(prox_nonnegative))(length)
        assert slope in (0, 1)


def test_ball_of_radius_zero_gives_zero_with_derivative_zero():
    # An open contact at rest: Newton's matrix is singular otherwise.
    jacobian = jax.jacfwd(prox_ball)(jnp.zeros(2), jnp.asarray(0.0))
    np.testing.assert_array_equal(jacobian, np.zeros((2, 2)))


def test_negative_radius_is_radius_zero():
    np.testing.assert_array_equal(prox_ball(jnp.array([1.0, 2.0]), jnp.asarray(-3.0)), np.zeros(2))


def test_derivative_of_a_sliding_contact_turns_the_direction():
    x, radius = jnp.array([3.0, 4.0]), jnp.asarray(2.0)
    by_x, by_radius = jax.jacfwd(prox_ball, argnums=(0, 1))(x, radius)
    normal = np.array([0.6, 0.8])
    np.testing.assert_allclose(by_x, 2 / 5 * (np.eye(2) - np.outer(normal, normal)), atol=1e-15)
    np.testing.assert_allclose(by_radius, normal, atol=1e-15)
