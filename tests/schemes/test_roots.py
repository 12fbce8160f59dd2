"""When a gap closes: cubics and Newton steps against roots in closed form."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxnsd.schemes.located.roots import correction, crossings, refine


def of(gap, rate, length, floor=1e-14, margin=1e-12):
    """`crossings` of one gap and its derivative, functions of time."""
    ends = [(jnp.array([gap(t)]), jnp.array([rate(t)])) for t in (0.0, length)]
    return jax.jit(crossings)(jnp.asarray(length), *ends, jnp.array([floor]), margin)


@pytest.mark.parametrize("length", [0.6, 1.7])
def test_a_parabola_and_a_cubic_are_met_exactly(length):
    found = of(lambda t: 1 - 4 * t * t, lambda t: -8 * t, length)  # falls, to 0 at t = 1/2
    assert found.closes[0] and found.low[0] < 0.5 < found.high[0]
    np.testing.assert_allclose([found.time[0], found.rate[0]], [0.5, -4.0], atol=1e-4)
    found = of(lambda t: (t - 0.2) * (t - 0.5) * (t - 2.0), lambda t: 3 * t * t - 5.4 * t + 1.5, length)  # from below: open later only
    assert found.closes[0] and found.time[0] < 0.1


def test_a_dip_between_the_ends_is_seen_and_none_is_invented():
    dip = of(lambda t: (t - 0.4) * (t - 0.6), lambda t: 2 * t - 1, 1.0)
    assert dip.closes[0]
    np.testing.assert_allclose(dip.time[0], 0.4, atol=1e-6)
    assert not of(lambda t: (t - 0.5) ** 2 + 1e-3, lambda t: 2 * (t - 0.5), 1.0).closes[0]


@pytest.mark.parametrize("quartic", [-1e-3, 1e-3])
def test_the_bounds_hold_the_root_of_the_gap_beside_points_that_are_looked_at(quartic):
    """Of a gap that is no cubic."""
    for shift in (-1e-4, -1e-5, 0.0, 1e-5, 1e-4):
        start = 9 / 16 + shift
        # The cubic through both ends is the line.
        gap = functools.partial(lambda start, t: start - t + quartic * (t - t * t) ** 2, start)
        rate = lambda t: -1 + 2 * quartic * (t - t * t) * (1 - 2 * t)  # noqa: E731
        root = start
        for _ in range(5):
            root -= gap(root) / rate(root)
        found = of(gap, rate, 1.0)
        assert abs(found.time[0] - start) < 1e-12 and found.low[0] < root < found.high[0]


def test_a_contact_at_zero_that_separates_or_hits():
    assert not of(lambda t: t, lambda t: 1.0, 1.0).closes[0]
    hits = of(lambda t: -2 * t, lambda t: -2.0, 1.0)
    assert hits.closes[0] and hits.time[0] == 0 and hits.rate[0] == -2
    # Up to the margin, what closes at the end closes in the segment.
    assert of(lambda t: 1.0 - t + 1e-13, lambda t: -1.0, 1.0).closes[0]
    assert not of(lambda t: 1.0 - t + 1e-9, lambda t: -1.0, 1.0).closes[0]


def test_refinement_converges_inside_of_its_bounds():
    """Newton's step where it stays in the bounds, bisection where it does not; the bounds always hold the root."""
    time, low, high = jnp.asarray(1.9), jnp.asarray(0.0), jnp.asarray(2.0)
    for _ in range(8):
        gap, rate = jnp.cos(time), -jnp.sin(time)
        time, low, high = refine(time, gap, rate, low, high)
        assert low <= np.pi / 2 <= high
    np.testing.assert_allclose(time, np.pi / 2, atol=1e-15)
    assert refine(jnp.asarray(0.1), jnp.cos(0.1), jnp.asarray(0.5), jnp.asarray(0.0), jnp.asarray(2.0))[0] == 0.5 * (0.1 + 2.0)
    assert correction(jnp.asarray(0.2), jnp.asarray(-0.5)) == 0.4
