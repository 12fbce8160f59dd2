"""A motion between its nodes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from little_systems import thrown_box
from numpy.testing import assert_allclose

from jaxnsd import LocatedImpacts, MoreauJean, SymmetricMoreau, at_times, simulate
from jaxnsd.models import BouncingBall

G, DT, N, H = 9.81, 5e-3, 100, 1.0


def fall(scheme=None, h0=H, **options):
    """A ball from a height: its coordinates and velocities at the nodes are exact while it falls, after 0.45 s it bounces."""
    return simulate(BouncingBall(), scheme or MoreauJean(), jnp.reshape(h0, 1), jnp.zeros(1), dt=DT, n_steps=N, **options)


@pytest.fixture(scope="module")
def fallen():
    return fall()


def states(t):
    """``(q, u)`` while it falls, and after one impact."""
    hit = np.sqrt(2 * H / G)
    s = t - hit
    e, v = BouncingBall().e_N, G * hit
    return np.where(s < 0, H - 0.5 * G * t**2, e * v * s - 0.5 * G * s**2), np.where(s < 0, -G * t, e * v - G * s)


@pytest.mark.parametrize("scheme", [MoreauJean(), pytest.param(SymmetricMoreau(), marks=pytest.mark.slow)], ids=lambda x: x.name)
def test_a_parabola_is_met_to_round_off(scheme, fallen):
    """At any times, in any order, nodes and the last one too; and its rates are its velocities."""
    sol = fallen if scheme == fallen.scheme else fall(scheme)
    t = np.array([0.3301, 0.0, 5e-3, 0.44, 0.0012, 0.5])
    (q, u), (rate, _) = jax.jvp(lambda t: at_times(BouncingBall(), sol, t), (jnp.asarray(t),), (jnp.ones(6),))
    wanted = states(t[:5])
    assert_allclose(q[:5, 0], wanted[0], atol=1e-14)
    assert_allclose(u[:5, 0], wanted[1], atol=1e-12)
    assert_allclose(rate[:5, 0], wanted[1], atol=1e-11)
    assert_allclose(q[5], sol.q[-1], atol=1e-15)


def test_a_located_impact_is_met_from_both_sides():
    """Coordinates to second order in dt, velocities to first, with the jump where it is."""
    sol, hit = fall(LocatedImpacts(MoreauJean())), np.sqrt(2 * H / G)
    t = hit + np.array([-1e-3, -1e-5, 1e-5, 2e-3])
    (q, u), wanted = at_times(BouncingBall(), sol, t), states(t)
    assert_allclose(q[:, 0], wanted[0], atol=G * DT**2)
    assert_allclose(u[:, 0], wanted[1], atol=G * DT)


def test_up_to_the_end_of_a_motion_that_was_stopped():
    """Also inside of its last stored interval, which is shorter; what is behind is refused, or no number where it is traced."""
    sol = fall(until=lambda t, q, u: q[0] < 0.5, save_every=5)
    assert int(sol.steps) % 5
    t = np.array([0.31, 0.318, float(sol.t[-1])])
    q, u = at_times(BouncingBall(), sol, t)
    assert_allclose(q[:, 0], states(t)[0], atol=1e-14)
    assert_allclose(u[:, 0], states(t)[1], atol=1e-12)
    with pytest.raises(ValueError, match=r"times must be from 0 to 0\.32 s, where the motion ends, got 0.33 s"):
        at_times(BouncingBall(), sol, [0.31, 0.33])
    traced, _ = jax.jit(lambda t: at_times(BouncingBall(), sol, t))(jnp.array([0.31, 0.33]))
    assert_allclose(traced[:, 0], [states(0.31)[0], np.nan], atol=1e-14)


@pytest.mark.slow
def test_a_batch_and_derivatives():
    """By the height and by the time together, of a batch."""

    def height(h0, t):
        return at_times(BouncingBall(), fall(h0=h0), t)[0][0]

    heights, times = jnp.array([0.8, 1.0]), jnp.array([0.123, 0.3021])
    value, (by_height, by_time) = jax.vmap(jax.value_and_grad(height, argnums=(0, 1)))(heights, times)
    assert_allclose(value, heights - 0.5 * G * times**2, atol=1e-14)
    assert_allclose(by_height, 1.0, rtol=1e-12)
    assert_allclose(by_time, -G * times, rtol=1e-10)


@pytest.mark.slow
def test_quaternions_have_length_one_and_fourth_order():
    """A box that turns freely, at a twentieth of its nodes and at a fortieth."""
    box = thrown_box()
    q0, u0 = box.initial_state()
    u0 = u0.at[3:].set(jnp.array([3.0, 2.0, 1.0]))
    t = np.linspace(0.0, 0.12, 41)
    fine = simulate(box, MoreauJean(), q0, u0, 0.12, 1e-3)
    errors = []
    for every in (20, 40):
        rows = {name: getattr(fine, name)[::every] for name in ("t", "q", "u")}
        coarse = dataclasses.replace(fine, save_every=every, **rows)
        q, _ = at_times(box, coarse, t)
        assert_allclose(jnp.linalg.norm(q[:, 3:], axis=1), 1.0, rtol=1e-14)
        errors.append(np.abs(q - at_times(box, fine, t)[0]).max())
    assert errors[1] < 1e-4 and errors[1] / errors[0] > 8


@pytest.mark.parametrize(
    ("times", "error", "text"),
    [
        (0.6, ValueError, "times must be from 0 to 0.5 s, where the motion ends, got 0.6 s"),
        (np.nan, ValueError, "got nan s"),
        ([[0.1]], ValueError, r"must be one time or have one axis, got shape \(1, 1\)"),
        (["a"], TypeError, "times must be numbers in s, got"),
        (None, TypeError, "times must be numbers in s, got"),
        (1j, TypeError, "times must be numbers in s, got"),
    ],
)
def test_what_is_no_time_is_refused(fallen, times, error, text):
    with pytest.raises(error, match=text):
        at_times(BouncingBall(), fallen, times)
    with pytest.raises(ValueError, match=r"takes one motion, got a batch of shape \(1,\); use jax.vmap"):
        at_times(BouncingBall(), jax.tree.map(lambda x: x[None], fallen), 0.1)
