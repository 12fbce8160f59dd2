"""Paradoxes and classics, each with its known truth: closed forms, integrals of the motion, statics, published numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from little_systems import GRAVITY as G
from numpy.testing import assert_allclose

import jaxnsd
from jaxnsd import Lobatto, Moreau, MoreauJean, Outcome, System, simulate


# -------------------------------------------------------------------------------------------------------- Painleve's rod
@jaxnsd.system
class Rod(System):
    """A uniform rod of mass 1 kg and half length 1 m whose lower end touches a floor: q = (x, y, angle above the floor)."""

    mu: float = 2.0

    def mass_matrix(self, t, q):
        return jnp.diag(jnp.array([1.0, 1.0, 1 / 3]))

    def potential_energy(self, t, q):
        return G * q[1]

    def gap(self, t, q):
        return q[1:2] - jnp.sin(q[2:])

    def tangential_velocity(self, t, q, u):
        return (u[:1] + jnp.sin(q[2:]) * u[2:])[:, None]


def energy_of_rods(q, u):
    return 0.5 * u**2 @ np.array([1.0, 1.0, 1 / 3]) + G * q[..., 1]


def rods(rng, n, low, high):
    """Friction between the bounds, and states whose lower end slides: it is a hair's breadth in the floor, and moves along it."""
    mu, angle, slip, turns = rng.uniform([low, 0.1, -2, -8], [high, 1.5, 2, 8], (n, 4)).T
    q = np.stack([np.zeros(n), np.sin(angle) - 1e-5, angle], axis=1)
    return mu, q, np.stack([slip - np.sin(angle) * turns, np.cos(angle) * turns, turns], axis=1)


@pytest.mark.parametrize("scheme", [Moreau(), pytest.param(Lobatto(2), marks=pytest.mark.slow)], ids=lambda scheme: scheme.name)
def test_painleves_rod_below_and_above_the_critical_friction(scheme):
    """Sliding presses the end into the floor where 1 + 3 c^2 -+ 3 mu s c < 0, which takes mu > 4/3 (Painleve 1895; Genot & Brogliato 1999).

    One step from 4000 states, held against the law and the balance, written out here. Below 4/3 what happens is the only thing that can:
    it slides on with the force of sliding, or takes off. Above, where sliding is inconsistent, slip ends at once, by an impact without a
    collision: the velocity of the end is projected out in the metric of the inertia.
    """
    rng, n, dt = np.random.default_rng(0), 2000, 1e-4
    mu, q, u = (np.concatenate(pair) for pair in zip(rods(rng, n, 0.2, 4 / 3), rods(rng, n, 1.4, 3.0), strict=True))
    sol = jax.jit(jax.vmap(lambda mu, q, u: simulate(Rod(mu), scheme, q, u, n_steps=1, dt=dt)))(mu, q, u)
    assert np.all(sol.outcome == Outcome.SUCCESS)
    after, P = np.asarray(sol.u[:, 1]), np.stack([sol.P_N[:, 0, 0], sol.P_F[:, 0, 0, 0]], axis=1)
    s, c, zero, one = np.sin(sol.q[:, 1, 2]), np.cos(sol.q[:, 1, 2]), np.zeros(2 * n), np.ones(2 * n)
    W = np.stack([[zero, one, -c], [one, zero, s]]).transpose(2, 0, 1)
    normal, slip = np.einsum("kij,kj->ik", W, after)
    # The law of an impact without restitution, whatever the history.
    assert P[:, 0].min() >= 0 and normal.min() > -1e-12 and np.abs(P[:, 0] * normal).max() < 1e-12
    limit = mu * P[:, 0]
    assert np.all(np.abs(P[:, 1]) <= limit + 1e-12) and np.all(slip * P[:, 1] <= 1e-12)
    assert np.abs(slip * (limit - np.abs(P[:, 1]))).max() < 1e-11
    # A jam takes the energy of the slip that it ends, and no step gains any; sunk in, a scheme on position level lifts the rod.
    gained = energy_of_rods(np.asarray(sol.q[:, 1]), after) - energy_of_rods(q, u)
    assert gained.max() < (1e-6 if scheme == Moreau() else 1e-3)
    if scheme != Moreau():
        return
    before = np.einsum("kij,kj->ki", W, u) - dt * G * np.array([1.0, 0.0])
    side = np.sign(before[:, 1])
    lifted, pressed = 1 + 3 * c**2 + 3 * mu * s * c * side, before[:, 0] < 0
    assert np.all(lifted[:n] > 0) and np.sum(lifted < 0) > 300
    # To the sign of 1 + 3 c^2 -+ 3 mu s c and of the free acceleration belongs what must happen.
    sliding = -before[:, 0] / lifted
    goes_on = np.abs(before[:, 1]) > sliding * (mu * (1 + 3 * s**2) + 3 * s * c * side)
    slides = (lifted > 0) & pressed & goes_on
    inconsistent = (lifted < 0) & pressed
    assert slides.sum() > 1000 and inconsistent.sum() > 100
    assert np.all(P[(lifted > 0) & ~pressed] == 0)
    assert_allclose(P[slides, 0], sliding[slides], rtol=1e-9)
    assert_allclose(P[slides, 1], (-side * limit)[slides], rtol=1e-12)
    mass = np.einsum("kij,j,klj->kil", W, [1.0, 1.0, 3.0], W)
    assert_allclose(P[inconsistent], -np.linalg.solve(mass, before[..., None])[inconsistent, :, 0], rtol=1e-8)
    assert_allclose(after, u - dt * G * np.array([0.0, 1.0, 0.0]) + np.einsum("kij,ki,j->kj", W, P, [1.0, 1.0, 3.0]), atol=1e-12)
    assert np.abs(slip[inconsistent]).max() < 1e-12


def test_a_rod_that_jams_vaults_over_its_end():
    """Translated along the floor in the inconsistent region it stops with its end, keeps its angular momentum about it, and turns there:
    4/3 w = 3 sin(angle), then 2/3 w^2 + g sin(angle) is constant. Friction does not matter as long as it is above the critical one.
    """
    mu, angle, dts = jnp.array([1.6, 2.0, 3.0]), 1.1, np.array([1e-3, 2.5e-4])
    for dt in dts:
        q0, u0 = jnp.array([0.0, np.sin(angle) - 1e-9, angle]), jnp.array([-3.0, 0.0, 0.0])
        sol = jax.vmap(lambda mu, dt=dt, q0=q0, u0=u0: simulate(Rod(mu), Moreau(), q0, u0, n_steps=100, dt=dt))(mu)
        q, u = np.asarray(sol.q[:, 2:]), np.asarray(sol.u[:, 2:])
        w = 9 / 4 * np.sin(angle)
        assert np.all(sol.outcome == Outcome.SUCCESS)
        assert_allclose(u[:, :, 0] + np.sin(q[:, :, 2]) * u[:, :, 2], 0, atol=10 * dt)
        assert_allclose(u[:, 0, 2], w, rtol=30 * dt)
        assert_allclose(2 / 3 * u[:, :, 2] ** 2 + G * np.sin(q[:, :, 2]), 2 / 3 * w**2 + G * np.sin(angle), rtol=10 * dt)
        # Along the circle about the end; it is left by the order of the step.
        assert_allclose(q[:, :, 1], np.sin(q[:, :, 2]), atol=dt)
        assert np.all(np.diff(energy_of_rods(q, u), axis=1) <= G**2 * dt**2)
