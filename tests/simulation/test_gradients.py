"""Derivatives of `simulate`, in both modes, against finite differences of the simulated map: the *discrete* derivative."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from little_systems import Rider
from scheme_table import over

import jaxnsd
from jaxnsd import Moreau, SymmetricMoreau, System, VariationalMoreau, simulate

SCHEMES = [Moreau(), SymmetricMoreau(), VariationalMoreau()]


def final(scheme, sensitivity="discrete", **options):
    """Final state as a function of (x, y, x', y', mass, gravity, mu, e_N)."""

    def run(theta):
        solution = simulate(Rider(*theta[4:]), scheme, theta[:2], theta[2:4], 0.4, 0.01, sensitivity=sensitivity, **options)
        return jnp.concatenate([solution.q[-1], solution.u[-1]])

    return run


#: In the air; thrown so that it bounces and then lies and slides; sliding all the time (below zero: on it, round-off opens the contact).
STARTS = {"flies": (0.3, 1.0, 1.0, 0.5), "bounces": (0.3, 0.1, 1.0, 0.5), "slides": (0.3, -0.005, 3.0, 0.0)}
PARAMETERS = (1.3, 9.0, 0.2, 0.4)


@over(SCHEMES, [], slow=SCHEMES)
def test_discrete_derivative_in_both_modes(scheme):
    run = final(scheme)
    theta = jnp.array([(*start, *PARAMETERS) for start in STARTS.values()])
    weights = jnp.array([1.0, -0.7, 0.4, 1.3])
    with_values = jax.jit(jax.vmap(jax.jacfwd(lambda theta: (run(theta),) * 2, has_aux=True)))
    forward, _ = with_values(theta)
    reverse = jax.jit(jax.vmap(jax.grad(lambda theta: weights @ run(theta))))(theta)
    np.testing.assert_allclose(reverse, np.einsum("i,kij->kj", weights, forward), rtol=1e-10, atol=1e-12)
    for k in range(theta.shape[1]):
        step = jnp.zeros(theta.shape[1]).at[k].set(1e-6)
        difference = (with_values(theta + step[None])[1] - with_values(theta - step[None])[1]) / 2e-6
        np.testing.assert_allclose(forward[:, :, k], difference, rtol=1e-5, atol=1e-6)
    # The problem is not trivial: friction, restitution, mass and gravity matter where they should, and not in the air.
    matters = np.abs(forward).max(1) > 1e-3
    np.testing.assert_array_equal(matters[:, 6], [False, True, True])
    np.testing.assert_array_equal(matters[:, 7], [False, True, False])
    assert matters[0, 4] and matters[1:, 5].all()


@pytest.mark.slow
@pytest.mark.parametrize("checkpoint, save_every", [(7, 1), (100, 1), (5, 10)])
def test_checkpointing_changes_no_gradient(checkpoint, save_every):
    theta = jnp.array((*STARTS["bounces"], *PARAMETERS))
    expected = jax.jit(jax.jacrev(final(Moreau())))(theta)
    np.testing.assert_allclose(
        jax.jit(jax.jacrev(final(Moreau(), checkpoint=checkpoint, save_every=save_every)))(theta), expected, atol=1e-12
    )


def temporary(transform, steps, checkpoint=None, batch=()):
    """Bytes that the derivative of a run with so many steps needs beside its arguments and results."""

    def loss(q0):
        solution = simulate(Rider(), Moreau(), q0, jnp.zeros(2), steps * 1e-3, 1e-3, save_every=steps, checkpoint=checkpoint)
        return solution.q[-1, 0]

    start = jnp.broadcast_to(jnp.array([0.3, 1.0]), (*batch, 2))
    return jax.jit(transform(loss)).lower(start).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.slow
def test_checkpointing_needs_memory_like_the_square_root_of_the_steps():
    few, many = temporary(jax.grad, 1024, 32), temporary(jax.grad, 16384, 128)
    # Sixteen times the steps: about four times the memory, and far less than what storing everything takes.
    assert many < 6 * few
    assert 8 * many < temporary(jax.grad, 16384)


@pytest.mark.slow
def test_what_is_stored_is_little(monkeypatch):
    """Forward mode by XLA stores nothing of the steps, native reverse mode of a batch those of a few members at a time."""
    one = temporary(jax.grad, 4096)
    # A member for each core, of at most four.
    assert temporary(lambda f: jax.vmap(jax.grad(f)), 4096, batch=(64,)) < 5 * one
    monkeypatch.setenv("JAXNSD_NATIVE", "0")
    assert temporary(jax.jacfwd, 8192) < 1.1 * temporary(jax.jacfwd, 1024)


@pytest.mark.slow
def test_gradients_in_nested_batches():
    """Single runs store their way forward, batches go it again: gradients are the same, however the two are nested."""

    def loss(mu, x):
        return simulate(Rider(1.3, 9.0, mu), Moreau(), jnp.array([x, -0.005]), jnp.array([3.0, 0.0]), 0.1, 0.01).q[-1, 0] ** 2

    mu, x = jnp.array([0.1, 0.2, 0.3]), jnp.array([0.3, 0.4])
    grad = jax.grad(loss)
    single = np.array([[jax.jit(grad)(a, b) for b in x] for a in mu])
    assert np.abs(single).min() > 1e-3
    batch = jax.vmap(jax.vmap(grad, (None, 0)), (0, None))
    np.testing.assert_allclose(jax.jit(batch)(mu, x), single, rtol=1e-12)
    # The gradient of a batch, with members that share an argument, and inside of a checkpoint.
    total = jax.checkpoint(lambda mu: jnp.sum(jax.vmap(jax.vmap(loss, (None, 0)), (0, None))(mu, x)))
    np.testing.assert_allclose(jax.jit(jax.grad(total))(mu), single.sum(axis=1), rtol=1e-12)


@jaxnsd.system
class Puck(System):
    """A particle over a floor in space."""

    mu: float = 0.3
    e_N: float = 0.5
    e_F: float = 0.0

    def kinetic_energy(self, t, q, u):
        return 0.5 * u @ u

    def potential_energy(self, t, q):
        return 9.81 * q[2]

    def gap(self, t, q):
        return q[2:]

    def tangential_velocity(self, t, q, u):
        return u[None, :2]


@over(SCHEMES, [], slow=SCHEMES[:1])
def test_no_gradient_is_infinite_or_not_a_number(scheme):
    # Open, resting, sticking and sliding, with zero slip, zero percussion, e = 0 and 1 and mu = 0: every kink of the law.
    rng = np.random.default_rng(3)
    count = 300
    q0, u0 = rng.normal(size=(count, 3)), rng.normal(size=(count, 3))
    q0[:, 2] = rng.choice([0.0, -1e-3, 1.0, 0.02], count)
    u0[rng.random(count) < 0.4, :2] = 0
    u0[:, 2] = rng.choice([0.0, -1.0, 1.0, -0.0981], count)
    mu, e_N, e_F = rng.choice([0.0, 0.3, 1.0], count), rng.choice([0.0, 0.5, 1.0], count), rng.choice([0.0, 1.0], count)

    def loss(q0, u0, *data):
        solution = simulate(Puck(*data), scheme, q0, u0, 0.05, 0.01)
        return jnp.sum(solution.q[-1] ** 2) + jnp.sum(solution.u[-1] ** 2) + jnp.sum(solution.P_N) + jnp.sum(solution.P_F)

    for transform in (jax.jacrev, jax.jacfwd):
        for gradient in jax.jit(jax.vmap(transform(loss, argnums=(0, 1, 2, 3, 4))))(q0, u0, mu, e_N, e_F):
            assert np.all(np.isfinite(gradient)) and np.abs(gradient).max() < 1e3
