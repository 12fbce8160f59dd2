"""Basins of attraction: of a ball on a table, start by start beside integrations from impact to impact."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import brentq
from test_orbits import BALL, Table, closed_form, turns

import jaxnsd
from jaxnsd import orbits, plotting
from jaxnsd.orbits.basin import _sorted

#: Its table is too slow to throw it from rest, and fast enough to keep it bouncing: g pi (1 - e) / (1 + e) < A omega^2 < g.
SYSTEM = Table(amplitude=0.5, e_N=0.8)


def locks(q, u, periods):
    """Whether the ball comes to rest on the table: impacts slower than 1e-6, from impact to impact by roots of the gap."""
    g, A, e, t, first = SYSTEM.gravity, SYSTEM.amplitude, SYSTEM.e_N, 0.0, True
    while t < 2 * np.pi * periods:
        gap = functools.partial(lambda t, q, u, s: q + u * s - g * s * s / 2 - A * np.sin(t + s), t, q, u)
        # Behind an impact it flies for longer than half of its speed, as the table falls slower than g / 2.
        step = 0.01 if first else min(0.01, (u - A * np.cos(t)) / 2)
        a, b = 0.0 if first else step, step
        while gap(b) > 0:
            a, step = b, min(1.1 * step, 0.02)
            b += step
        s = brentq(gap, a, b, xtol=1e-15)
        v, t = u - g * s - A * np.cos(t + s), t + s
        q, u, first = A * np.sin(t), A * np.cos(t) - e * v, False
        if v > -1e-6:
            return True
    return False


@pytest.mark.slow
def test_the_ball_bounces_or_comes_to_rest():
    """Each start of a grid as by the other code; the periodic motion is that of the closed form."""
    q, u = np.linspace(1.0, 12.0, 9), np.linspace(-4.0, 4.4, 8)
    found = orbits.basin(SYSTEM, BALL, q[:, None], u[:, None, None], turns, n_steps=16, transient=150, keep=8)
    exact = np.array([[locks(x, v, 60) for x in q] for v in u])
    assert found.attractor.shape == (8, 9) and 0.2 < exact.mean() < 0.8
    assert np.array_equal(found.attractor, np.where(exact, -2, 0))
    (bounces,) = found.attractors
    assert bounces.repeats == bounces.impacts == 1 and bounces.share == np.mean(~exact)
    np.testing.assert_allclose(np.concatenate([bounces.q[0], bounces.u[0]]), closed_form(SYSTEM)[0], rtol=0, atol=1e-5)
    np.testing.assert_allclose(found.last_q[~exact], bounces.q[0, 0], rtol=0, atol=1e-5)
    assert repr(found).startswith("Basin(8 x 9 starts, 1 periodic attractors of shares [") and "failed 0)" in repr(found)
    # Its picture has the colours of the grid, velocities upwards.
    ax = plotting.basin(found)
    assert [text.get_text().split(",")[0] for text in ax.get_legend().get_texts()] == ["1 impact in 1 period", "locked"]
    colours = ax.collections[0].get_array().reshape(8, 9, 3)
    assert np.array_equal(np.ptp(colours, axis=2) > 0.1, ~exact) and ax.get_ylabel() == "$u_{0}$"
    with pytest.raises(ValueError, match="draws plane grids"):
        plotting.basin(orbits.basin(SYSTEM, BALL, q[:, None], [0.0], turns, n_steps=16, transient=0, keep=2))


def test_motions_are_told_apart():
    """Of two phases of one orbit of period 2, another of period 1, one that just arrives there, an irregular, a locked and a failed one."""
    k, none = np.arange(12), np.zeros(12)
    irregular = np.modf(np.cumsum(np.full(12, 0.6180339887498949)))[0]
    rows = [(-1.0) ** k, (-1.0) ** (k + 1), none + 3, 3 + 0.0015 * (-0.6) ** k, irregular, none, none * np.nan]
    states = np.stack(rows)[..., None]
    impacts = np.ones((7, 12), int)
    locked, success = np.arange(7) == 5, np.arange(7) != 6
    index, (first, second) = _sorted(states, 0 * states, impacts, locked, success, 1e-3)
    assert index.tolist() in ([0, 0, 1, 1, -1, -2, -3], [1, 1, 0, 0, -1, -2, -3])
    assert {first.repeats, second.repeats} == {1, 2} and first.share == second.share == 2 / 7
    assert first.impacts == first.repeats and second.impacts == second.repeats
    assert _sorted(states[5:], states[5:], impacts[5:], locked[5:], success[5:], 1e-3)[1] == []


def test_bad_starts_are_one_sentence():
    for error, text, arguments in (
        (ValueError, "tolerance must be between 0 and 1", {"tolerance": 0.0}),
        (ValueError, "keep must be at least 2", {"keep": 1}),
        (TypeError, "q must be an array of numbers", {"q": "a"}),
        (ValueError, r"q must have shape \(..., n_q\)", {"q": 1.0}),
        (ValueError, "u must be finite", {"u": [[np.nan]]}),
        (ValueError, "must be of one grid", {"q": np.ones((3, 1)), "u": np.ones((2, 1))}),
        (ValueError, "at least one start", {"q": np.ones((0, 1))}),
        (ValueError, "as many velocities as coordinates", {"q": np.ones((3, 2))}),
    ):
        options = {"q": [[1.0]], "u": [[0.0]], "n_steps": 16} | arguments
        with pytest.raises(error, match=text) as caught:
            orbits.basin(SYSTEM, BALL, options.pop("q"), options.pop("u"), turns, **options)
        assert "\n" not in str(caught.value)
    with pytest.raises(TypeError, match="call it outside of them"):
        jax.jit(lambda q: orbits.basin(SYSTEM, BALL, q, [0.0], turns, n_steps=16))(jnp.ones((2, 1)))
    with pytest.raises(TypeError, match="draws a Basin"):
        plotting.basin(SYSTEM)


def test_an_impact_beside_a_sixteenth_of_a_step():
    """Where the cubic of the gap closes behind a point at which it is looked at, and the gap itself before it."""
    dt = 2 * np.pi / 16
    q, u, A = 5.538461538461538, -1.9230769230769234, SYSTEM.amplitude
    sol = jaxnsd.simulate(SYSTEM, BALL, [q], [u], t1=6 * dt, n_steps=6)
    exact = brentq(lambda t: q + u * t - t * t / 2 - A * np.sin(t), 4 * dt, 5 * dt, xtol=1e-15)
    assert abs(sol.auxiliary["impact_times"][5, 0] - exact) < 1e-14 * exact * 10
