"""Located impacts where a contact opens: its normal force comes to zero inside of a step, and the body leaves smoothly.

Motions in closed form: a mass that a growing force lifts, at rest or sliding, a beam on two supports, a block on a table that shakes.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from little_systems import with_slope
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import brentq

import jaxnsd
from jaxnsd import Lobatto, LocatedImpacts, MoreauJean, System, orbits, simulate
from jaxnsd.models import BouncingBall, Cube, Woodpecker

G = 9.81


@jaxnsd.system
class Lifted(System):
    """A mass of 1 kg on a table under an upward force ``ramp t + swing sin t``: q = (x, height), or the height alone without friction."""

    ramp: Any = 20.0
    swing: Any = 0.0
    gravity: Any = G
    mu: Any = 0.3
    e_N: Any = 0.0

    def kinetic_energy(self, t, q, u):
        return 0.5 * u @ u

    def potential_energy(self, t, q):
        return self.gravity * q[-1]

    def force(self, t, q, u):
        return jnp.zeros_like(q).at[-1].set(self.ramp * t + self.swing * jnp.sin(t))

    def gap(self, t, q):
        return q[-1:]

    def tangential_velocity(self, t, q, u):
        return u[:-1].reshape(1, -1)


def lifted(scheme, n_steps, v=None, t1=1.0, **parameters):
    """Coordinates and velocities (2 n) at t1, and the solution; ``v``: the velocity along the table, None: there is none."""
    n = 1 if v is None else 2
    u = jnp.zeros(n) if v is None else jnp.zeros(n).at[0].set(v)
    sol = simulate(Lifted(**parameters), scheme, jnp.zeros(n), u, n_steps=n_steps, dt=t1 / n_steps)
    return jnp.concatenate([sol.q[-1], sol.u[-1]]), sol


def under_a_ramp(k, t=1.0):
    """``(height, velocity)`` of a mass under the force k t, which opens at g / k."""
    t0 = G / k
    return jnp.stack([k * (t - t0) ** 3 / 6, k * (t - t0) ** 2 / 2])


def under_a_swing(a, t=1.0):
    """The same under the force a sin(t)."""
    t0 = np.arcsin(G / a)
    height = -a * (np.sin(t) - np.sin(t0)) + a * np.cos(t0) * (t - t0) - G * (t - t0) ** 2 / 2
    return np.array([height, a * (np.cos(t0) - np.cos(t)) - G * (t - t0)])


def test_a_growing_force_lifts_a_mass():
    """A cubic, exact for stages of fourth order, with its first derivative; the second lacks what the rate of the force jumps by (NaN)."""
    end = lambda k: lifted(LocatedImpacts(Lobatto(3)), 7, ramp=k)[0]  # noqa: E731
    once = lambda k: jax.jvp(end, (k,), (1.0,))  # noqa: E731
    (value, first), (_, second) = jax.jit(lambda k: jax.jvp(once, (k,), (1.0,)))(20.0)
    assert_allclose(value, under_a_ramp(20.0), atol=1e-12)
    assert_allclose(first, jax.jacfwd(under_a_ramp)(20.0), atol=1e-8)
    assert np.all(np.isnan(second))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheme", "order", "bound"),
    [(MoreauJean(), 2, 1e-3), (Lobatto(2), 2, 3e-3), (Lobatto(3), 4, 1e-8), (Lobatto(4), 6, 1e-12)],
    ids=str,
)
def test_an_opening_keeps_the_order(scheme, order, bound):
    """Captured, it leaves the first order at most of any scheme that is better, by the place of the opening in its step."""

    def errors(openings):
        located = LocatedImpacts(scheme, openings=openings)
        runs = [lifted(located, n, ramp=0.0, swing=6 * G) for n in (14, 28, 56)]
        assert all(bool(sol.success) for _, sol in runs)
        return [np.abs(value - under_a_swing(6 * G)).max() for value, _ in runs]

    coarse, middle, fine = errors(openings=True)
    assert fine < bound and np.log2(coarse / middle) > order - 0.3
    assert fine < 1e-13 or np.log2(middle / fine) > order - 0.3
    if order > 2:
        assert errors(openings=False)[-1] > 1e-3


@pytest.mark.slow
def test_a_block_slides_until_it_is_lifted():
    """Friction vanishes with the normal force: from then on it moves on as fast as it slides."""
    mu, k, v = 0.3, 20.0, 3.0

    def exact(p):
        mu, k, v = p
        t0 = G / k
        left = v - mu * (G * t0 - k * t0**2 / 2)
        x = v * t0 - mu * (G * t0**2 / 2 - k * t0**3 / 6) + left * (1 - t0)
        height, rises = under_a_ramp(k)
        return jnp.stack([x, height, left, rises])

    end = lambda p: lifted(LocatedImpacts(Lobatto(3)), 7, p[2], mu=p[0], ramp=p[1])[0]  # noqa: E731
    p = jnp.array([mu, k, v])
    value, slope = jax.jit(with_slope(end))(p)
    assert_allclose(value, exact(p), atol=1e-12)
    assert_allclose(slope, jax.jacfwd(exact)(p), atol=1e-7)
    errors = [np.abs(lifted(LocatedImpacts(MoreauJean()), n, v, mu=mu, ramp=k)[0] - exact(p)).max() for n in (20, 80)]
    assert errors[1] < 5e-4 and np.log(errors[0] / errors[1]) / np.log(4) > 1.8


@pytest.mark.slow
def test_a_block_stops_just_before_it_is_lifted():
    """Both in one step, in which straight lines have the opening first: the stop is found in the segment to it."""
    k, early = 20.0, 0.02

    def exact(p):
        mu, k, v = p
        t0 = G / k
        stop = t0 - jnp.sqrt(2 / (mu * k) * (mu * G**2 / (2 * k) - v))
        x = v * stop - mu * (G * stop**2 / 2 - k * stop**3 / 6)
        height, rises = under_a_ramp(k)
        return jnp.stack([x, height, jnp.zeros(()), rises])

    # The velocity is what friction takes of it up to the stop.
    mu = 0.3
    p = jnp.array([mu, k, mu * (G**2 / (2 * k) - k * early**2 / 2)])
    assert int(7 * G / k) == int(7 * (G / k - early))
    end = lambda p: lifted(LocatedImpacts(Lobatto(3)), 7, p[2], mu=p[0], ramp=p[1])[0]  # noqa: E731
    value, slope = jax.jit(with_slope(end))(p)
    assert_allclose(value, exact(p), atol=1e-12)
    assert_allclose(slope, jax.jacfwd(exact)(p), atol=1e-7)


@jaxnsd.system
class Beam(System):
    """A beam on two supports, under a force k t at a point between them: q = (height of the middle, angle)."""

    point: Any = 0.0
    ramp: Any = 20.0
    e_N: Any = 0.0

    def kinetic_energy(self, t, q, u):
        return 0.5 * (u[0] ** 2 + u[1] ** 2 / 12)

    def potential_energy(self, t, q):
        return G * q[0]

    def force(self, t, q, u):
        return self.ramp * t * jnp.stack([jnp.ones_like(q[0]), jnp.asarray(self.point, q.dtype)])

    def gap(self, t, q):
        return jnp.stack([q[0] - 0.5 * q[1], q[0] + 0.5 * q[1]])


@pytest.mark.slow
def test_a_beam_leaves_both_supports_or_one_after_another():
    """At once under a force at its middle; else the right support first, about the left one, which follows once the beam would sink in."""
    both = simulate(Beam(), LocatedImpacts(Lobatto(3), max_impacts=1), jnp.zeros(2), jnp.zeros(2), n_steps=7, dt=1 / 7)
    assert_allclose(both.q[-1], [under_a_ramp(20.0)[0], 0], atol=1e-12)
    # The right support carries g / 2 - k t (1 / 2 + c), the left one g / 2 - k t (1 / 2 - c); turning about the left one, of inertia 1 / 3:
    # g and k t at 1 / 2 and 1 / 2 + c; the left one then carries g - k t + a / 2.
    c, k = 0.1, 20.0
    first = G / 2 / (k * (0.5 + c))
    angular = lambda t: 3 * (k * t * (0.5 + c) - G / 2)  # noqa: E731
    second = brentq(lambda t: G - k * t + angular(t) / 2, first, 10)
    assert first < second < 3
    turned = lambda t: 3 * k * (0.5 + c) * (t - first) ** 3 / 6  # noqa: E731
    spun = lambda t: 3 * k * (0.5 + c) * (t - first) ** 2 / 2  # noqa: E731
    t = 1.2 * second
    sol = simulate(Beam(c), LocatedImpacts(Lobatto(3)), jnp.zeros(2), jnp.zeros(2), n_steps=7, dt=t / 7)
    assert bool(sol.success)
    # In flight: 12 c k t about the middle, k t - g upwards.
    s = second
    flown = lambda f0, r0, a, b: f0 + r0 * (t - s) + a * (t - s) ** 2 / 2 + b * (t - s) ** 3 / 6  # noqa: E731
    angle = flown(turned(s), spun(s), 12 * c * k * s, 12 * c * k)
    height = flown(turned(s) / 2, spun(s) / 2, k * s - G, k)
    assert_allclose(sol.q[-1], [height, angle], atol=1e-9)


@jaxnsd.system
class Shaken(System):
    """A block on a table that moves as a sin(w t): q = height."""

    amplitude: Any = 0.02
    rate: Any = 30.0
    gravity: Any = G
    e_N: Any = 0.0

    def kinetic_energy(self, t, q, u):
        return 0.5 * u @ u

    def potential_energy(self, t, q):
        return self.gravity * q[0]

    def gap(self, t, q):
        return q - self.amplitude * jnp.sin(self.rate * t)


def shaken(a, w=30.0):
    """Times of opening and landing, and the height as a function of t and a, for the flight: from event to event."""
    opens = np.arcsin(G / (a * w**2)) / w

    def flight(t, a):
        s = jnp.arcsin(G / (a * w**2)) / w
        return a * jnp.sin(w * s) + a * w * jnp.cos(w * s) * (t - s) - G * (t - s) ** 2 / 2

    lands = brentq(lambda t: flight(t, a) - a * np.sin(w * t), opens + 0.05, opens + 0.25, xtol=1e-15)
    return opens, lands, flight


@pytest.mark.slow
def test_a_block_on_a_table_that_shakes():
    """It opens, flies, lands and stays, with the derivatives by the amplitude of its height and of the time of landing."""
    a, w = 0.02, 30.0
    opens, lands, flight = shaken(a)
    assert 0 < opens < 0.1 < lands < 0.2

    def end(a, t1, n_steps, scheme=None):
        scheme = scheme or LocatedImpacts(Lobatto(3))
        sol = simulate(Shaken(amplitude=a), scheme, jnp.zeros(1), a * w * jnp.ones(1), n_steps=n_steps, dt=t1 / n_steps)
        return jnp.stack([sol.q[-1, 0], jnp.nanmax(sol.auxiliary["impact_times"])]), sol.success

    t1 = 0.9 * lands
    gap = lambda t, a: flight(t, a) - a * jnp.sin(w * t)  # noqa: E731
    d_lands = -jax.grad(gap, 1)(lands, a) / jax.grad(gap, 0)(lands, a)
    # In flight the scheme is exact, and closed gaps are closed: what is left is the square of what the opening is located to.
    (value, success), slope = jax.jit(lambda a: (end(a, t1, 20), jax.jacfwd(lambda a: end(a, t1, 20)[0])(a)))(a)
    assert bool(success)
    assert_allclose(value[0], flight(t1, a), atol=1e-12)
    assert_allclose(slope[0], jax.grad(flight, 1)(t1, a), atol=1e-6)
    captured = end(a, t1, 20, LocatedImpacts(Lobatto(3), openings=False))[0][0]
    assert abs(captured - flight(t1, a)) > 1e-5
    (landed, time), slope = (f(a) for f in (lambda a: end(a, 1.1 * lands, 44)[0], jax.jacfwd(lambda a: end(a, 1.1 * lands, 44)[0])))
    assert_allclose(time, lands, atol=1e-7)
    assert_allclose(slope[1], d_lands, rtol=1e-4)
    # Where the block lands the table falls slower than g, so that it stays.
    assert a * w**2 * np.sin(w * lands) < G
    assert_allclose(landed, a * np.sin(1.1 * w * lands), atol=1e-12)


@pytest.mark.slow
def test_the_limit_cycle_of_a_woodpecker():
    """Impacts, a stop, a start of sliding and two openings a period: period and multiplier beside an integration from event to event.

    That of `examples/gradient_evidence.py`. The derivative of the period by the friction is that of periods beside it.
    """

    @jax.jit
    def found(mu):
        toy = Woodpecker(mu=mu)
        orbit = orbits.periodic(toy, LocatedImpacts(Lobatto(3)), n_steps=500, **toy.limit_cycle())
        return orbit.period, orbit.multipliers, orbit.outcome

    (period, multipliers, outcome), slope = found(0.3), jax.jit(jax.jacfwd(lambda mu: found(mu)[0]))(0.3)
    sizes = np.sort(np.abs(multipliers))[::-1]
    assert int(outcome) == 0
    assert_allclose(period, 0.1459760651437, atol=2e-8)
    assert_allclose(sizes[:3], [1, 0.8391556, 0], atol=1e-5)
    beside = [found(0.3 + h)[0] for h in (1e-4, -1e-4)]
    assert_allclose(slope, (beside[0] - beside[1]) / 2e-4, rtol=1e-3)


def test_a_batch():
    """Members that open at different times, or not at all, are what they are alone."""
    scheme, k = LocatedImpacts(MoreauJean()), jnp.array([5.0, 12.0, 20.0, 31.0])
    batch = jax.jit(jax.vmap(lambda k: lifted(scheme, 20, ramp=k)[1]))(k)
    assert_array_equal(batch.success, True)
    for i in range(4):
        assert_allclose(batch.q[i], lifted(scheme, 20, ramp=k[i])[1].q, atol=1e-14)
    assert_array_equal(batch.q[0], 0)


@pytest.mark.slow
def test_a_batch_in_lockstep(lockstep):
    """Likewise on devices whose members take every step together."""
    scheme, k = LocatedImpacts(Lobatto(3)), jnp.array([5.0, 12.0, 20.0, 31.0])
    batch = jax.jit(jax.vmap(lambda k: lifted(scheme, 7, ramp=k)[0]))(k)
    assert_allclose(batch[0], 0, atol=1e-14)
    assert_allclose(batch[1:], jax.vmap(under_a_ramp)(k[1:]), atol=1e-12)


@pytest.mark.filterwarnings("ignore:simulating in float32")
@pytest.mark.slow
@pytest.mark.parametrize("scheme", [MoreauJean(), Lobatto(3)], ids=str)
def test_in_single_precision(scheme):
    """It opens at the same time, to what single precision resolves, and says no more."""
    single, zero = jax.tree.map(jnp.float32, Lifted()), jnp.zeros(1, jnp.float32)
    sol = simulate(single, LocatedImpacts(scheme), zero, zero, n_steps=50, dt=0.02)
    double = lifted(LocatedImpacts(scheme), 50)[1]
    assert sol.q.dtype == jnp.float32 and bool(sol.success)
    assert_allclose(sol.q[:, 0], double.q[:, 0], atol=2e-6)
    assert_allclose(sol.q[:25], 0, atol=1e-9)


def same_motion(system, scheme, q, u, n_steps, dt):
    """Whether a motion without an opening, and its iterations, are those without location of openings, bit for bit."""
    runs = [simulate(system, LocatedImpacts(scheme, openings=openings), q, u, n_steps=n_steps, dt=dt) for openings in (True, False)]
    assert bool(runs[0].success)
    for name in ("q", "u", "P_N", "iterations"):
        assert_array_equal(*(getattr(run, name) for run in runs))


def test_what_rests_costs_no_more():
    """A ball at rest, and a mass without weight, which touches without a force."""
    for gravity in (G, 0.0):
        same_motion(BouncingBall(gravity=gravity), MoreauJean(), jnp.zeros(1), jnp.zeros(1), 30, 0.01)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [MoreauJean(), Lobatto(2)], ids=str)
def test_a_box_on_four_corners(scheme):
    """At rest, and sliding: normal forces of four corners are not determined, but none of them opens."""
    system = Cube()
    q = jnp.array([0.0, 0.0, 0.5 * system.side, 1.0, 0.0, 0.0, 0.0])
    for v in (0.0, 0.3):
        same_motion(system, scheme, q, jnp.zeros(6).at[0].set(v), 20, 5e-3)


def test_openings_are_a_switch():
    """``openings=False`` captures them as the wrapped scheme does."""
    scheme = LocatedImpacts(MoreauJean(), openings=False)
    assert "openings=False" in repr(scheme)
    captured, plain = (lifted(of, 20)[0] for of in (scheme, MoreauJean()))
    assert_allclose(captured, plain, atol=1e-14)
    with pytest.raises(TypeError, match="openings must be True or False"):
        LocatedImpacts(MoreauJean(), openings=1)
