"""Located impacts in sliding: velocities that come to zero, and friction that holds no longer, at their time.

Motions in closed form: a slider that comes to rest, one that starts to slide, Den Hartog's oscillator, a block on a belt.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from den_hartog import MULTIPLIER, START, F, Slider, W, between_stops
from little_systems import with_slope
from numpy.testing import assert_allclose, assert_array_equal
from scipy.integrate import solve_ivp

import jaxnsd
from jaxnsd import GeneralizedAlpha, Lobatto, LocatedImpacts, Moreau, MoreauJean, System, simulate

G = 9.81
LOCATED = LocatedImpacts(MoreauJean())


@jaxnsd.system
class Guided(Slider):
    """The same in a guide, whose dry friction is mu m g: a row of its own, and no contact."""

    mu: Any = 0.0
    friction: Any = 0.3

    def kinetic_energy(self, t, q, u):
        return 0.5 * u @ u

    def potential_energy(self, t, q):
        return 0.5 * self.spring * q[0] ** 2

    def force(self, t, q, u):
        return Slider.force(self, t, q, u)[:1]

    def gap(self, t, q):
        return q[:0]

    def tangential_velocity(self, t, q, u):
        return jnp.zeros((0, 1), q.dtype)

    def dry_velocity(self, t, q, u):
        return u - self.belt

    def dry_friction(self):
        return self.friction * self.gravity


def run(kind, x, v, t1, n_steps, scheme=LOCATED, t0=0.0, **parameters):
    """Position and velocity along the table at the end, and the solution."""
    parameters = {"friction" if name == "mu" and kind is Guided else name: value for name, value in parameters.items()}
    n = 2 if kind is Slider else 1
    q, u = (jnp.zeros(n).at[0].set(value) for value in (x, v))
    sol = simulate(kind(**parameters), scheme, q, u, t0=t0, n_steps=n_steps, dt=(t1 - t0) / n_steps)
    return jnp.stack([sol.q[-1, 0], sol.u[-1, 0]]), sol


BOTH = pytest.mark.parametrize("kind", [Slider, pytest.param(Guided, marks=pytest.mark.slow)])


def at_rest(p):
    """Where a slider with ``p = (mu, v)`` stops."""
    return p[1] ** 2 / (2 * p[0] * G)


@BOTH
def test_a_slider_comes_to_rest(kind):
    """To round-off, with its derivatives; where it still slides, too. Eleven steps, none of which ends there."""

    def end(p):
        return run(kind, 0.0, p[1], 1.0, 11, mu=p[0])[0]

    p = jnp.array([[0.3, 2.0], [0.3, 4.0]])
    value, slope = jax.jit(jax.vmap(with_slope(end)))(p)
    assert_allclose(value, [[at_rest(p[0]), 0], [4 - 0.15 * G, 4 - 0.3 * G]], atol=1e-13)
    assert_allclose(slope[:, 0], [jax.grad(at_rest)(p[0]), [-G / 2, 1]], atol=1e-12)
    assert_allclose(slope[:, 1], [[0, 0], [-G, 1]], atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Slider, Guided])
def test_second_derivatives_and_the_way_back_through_a_stop(kind):
    """Of where it stops, to round-off."""
    p = jnp.array([0.3, 2.0])
    end = lambda p: run(kind, 0.0, p[1], 1.0, 11, mu=p[0])[0][0]  # noqa: E731
    slope, curvature = jax.jit(lambda p: (jax.grad(end)(p), jax.hessian(end)(p)))(p)
    assert_allclose(slope, jax.grad(at_rest)(p), atol=1e-12)
    assert_allclose(curvature, jax.hessian(at_rest)(p), atol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Slider, Guided])
def test_sliding_starts_where_friction_holds_no_longer(kind):
    """Under a force k t: at mu g / k, and from there on x = k (t - t_0)^3 / 6, a cubic, exact for stages of fourth order."""
    scheme, mu, k = LocatedImpacts(Lobatto(3)) if kind is Slider else LOCATED, 0.3, 5.0
    t0 = mu * G / k

    def end(p):
        return run(kind, 0.0, 0.0, 1.0, 7 if kind is Slider else 100, scheme, mu=p[0], ramp=p[1])[0]

    p = jnp.array([mu, k])
    (value, first), second = jax.jit(lambda p: (jax.jvp(end, (p,), (jnp.array([1.0, 0.0]),)), jax.jacfwd(jax.jacfwd(end))(p)))(p)
    if kind is Slider:
        assert_allclose(value, [k * (1 - t0) ** 3 / 6, k * (1 - t0) ** 2 / 2], atol=1e-12)
        assert_allclose(first, [-G * (1 - t0) ** 2 / 2, -G * (1 - t0)], atol=1e-8)
    else:
        # Positions of second order; the trapezoidal rule for the velocity is exact.
        assert_allclose(value, [k * (1 - t0) ** 3 / 6, k * (1 - t0) ** 2 / 2], atol=2e-5)
    # By how much the rate of the force jumps belongs to the second derivative, and is not known.
    assert np.all(np.isnan(second))


def errors_of_hartog(kind, scheme, n_steps):
    """Errors after a period of the state, and of the multiplier, with steps that no stop is an end of."""
    z = jnp.asarray(between_stops())

    def end(z):
        parameters = {"mu": F, "gravity": 1.0, "spring": 1.0, "swing": 1.0, "rate": W}
        return run(kind, *z, START + 2 * np.pi / W, n_steps, scheme, START, **parameters)

    (value, sol), J = jax.jit(lambda z: (end(z), jax.jacfwd(lambda z: end(z)[0])(z)))(z)
    assert bool(sol.success)
    multiplier = np.linalg.eigvals(np.asarray(J))
    return np.abs(value - z).max(), np.abs(multiplier[np.argmax(multiplier.imag)] - MULTIPLIER)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "scheme", "order", "bound"),
    [
        (Slider, LOCATED, 2, 2e-3),
        (Guided, LOCATED, 2, 2e-3),
        (Slider, LocatedImpacts(GeneralizedAlpha(0.8)), 2, 2e-3),
        (Slider, LocatedImpacts(Lobatto(2)), 2, 2e-3),
        (Slider, LocatedImpacts(Lobatto(3)), 4, 2e-8),
        (Slider, LocatedImpacts(Lobatto(4)), 6, 1e-11),
    ],
    ids=str,
)
def test_two_reversals_of_sliding_keep_the_order(kind, scheme, order, bound):
    """Den Hartog's oscillator: the state after a period and its multipliers, which capture brings to the first order."""
    coarse, fine = (errors_of_hartog(kind, scheme, n) for n in (32, 128))
    assert np.all(np.array(fine) < bound)
    for a, b in zip(coarse, fine, strict=True):
        assert b < 1e-12 or np.log(a / b) / np.log(4) > order - 0.35


@pytest.mark.slow
def test_capture_does_not():
    """The same without location: the first order."""
    coarse, fine = (errors_of_hartog(Slider, LocatedImpacts(Lobatto(3), sliding=False), n)[0] for n in (32, 128))
    assert fine > 1e-4 and np.log(coarse / fine) / np.log(4) < 1.6


def belted(scheme, n_steps):
    """The state of a block on a belt after a period, and its derivatives by the start and the coefficient of friction."""
    parameters = {"spring": 1.0, "damping": -0.3, "belt": 0.4, "gravity": 1.0}
    slides = solve_ivp(lambda t, y: [y[1], 0.3 * y[1] - y[0] + 0.6], (0, 1), [0.72, 0.4], rtol=1e-13, atol=1e-14, method="DOP853")
    p = jnp.array([*slides.y[:, -1], 0.6])

    def end(p):
        return run(Slider, p[0], p[1], 7.1549821692741618, n_steps, scheme, mu=p[2], **parameters)

    (value, sol), J = jax.jit(lambda p: (end(p), jax.jacfwd(lambda p: end(p)[0])(p)))(p)
    assert bool(sol.success)
    return value - p[:2], J


@pytest.mark.slow
def test_a_block_that_a_belt_takes_along():
    """It slides, sticks and slides again, a cycle: at the order of the scheme, with multipliers 1 and, since sticking forgets, 0.

    The cycle moves by d x / d mu = 1 as a whole. So that of the end is 1 less what the start, which stays, is behind.
    """
    error, J = belted(LocatedImpacts(Lobatto(3)), 128)
    assert np.abs(error).max() < 3e-8
    assert_allclose(np.sort(np.abs(np.linalg.eigvals(J[:, :2]))), [0, 1], atol=1e-7)
    assert_allclose(J[:, 2], np.array([1, 0]) - np.asarray(J[:, :2]) @ [1, 0], atol=1e-7)
    errors = [np.abs(belted(LOCATED, n)[0]).max() for n in (64, 256)]
    assert errors[1] < 2e-4 and np.log(errors[0] / errors[1]) / np.log(4) > 1.8


@jaxnsd.system
class Train(System):
    """Three cars on a rail, coupled by springs; each has its own friction, the first is pulled to and fro."""

    mu: Any = (0.2, 0.3, 0.25)
    e_N: Any = 0.0

    def kinetic_energy(self, t, q, u):
        return 0.5 * u @ u

    def potential_energy(self, t, q):
        return G * jnp.sum(q[3:]) + 15 * (jnp.diff(q[:3]) ** 2).sum() + 5 * q[0] ** 2

    def force(self, t, q, u):
        return jnp.zeros(6).at[0].set(12 * jnp.sin(4 * t))

    def gap(self, t, q):
        return q[3:]

    def tangential_velocity(self, t, q, u):
        return u[:3, None]


@pytest.mark.slow
def test_rows_that_stop_and_start_one_after_another():
    """Three cars, many events: second order, as the same motion in very small steps says, and a derivative that differences agree with."""

    def end(mu, n_steps):
        sol = simulate(Train(mu=mu), LOCATED, jnp.zeros(6), jnp.zeros(6).at[0].set(1.0), n_steps=n_steps, dt=1.5 / n_steps)
        return jnp.concatenate([sol.q[-1, :3], sol.u[-1, :3]]), sol

    mu = jnp.array([0.2, 0.3, 0.25])
    fine, sol = end(mu, 20000)
    moves = np.abs(np.asarray(sol.u[:, :3])) > 1e-9
    assert bool(sol.success) and np.sum(np.abs(np.diff(moves.astype(int), axis=0))) >= 4
    e = [np.abs(end(mu, n)[0] - fine).max() for n in (100, 400)]
    assert e[1] < 1e-3 and np.log(e[0] / e[1]) / np.log(4) > 1.6
    coarse, middle, fine = (jax.jit(jax.jacfwd(lambda mu, n=n: end(mu, n)[0]))(mu) for n in (100, 400, 1600))
    differences = jnp.stack([(end(mu + h, 1600)[0] - end(mu - h, 1600)[0]) / 2e-5 for h in 1e-5 * jnp.eye(3)], axis=1)
    assert_allclose(fine, differences, atol=1e-4)
    # Where sliding starts the derivative is not that of the steps as computed, and so of second order as well.
    assert np.abs(middle - differences).max() < 3e-3 and np.abs(coarse - differences).max() > 8 * np.abs(middle - differences).max()


def test_a_batch_and_a_run_in_two_parts():
    """Members that stop at different times, or not at all, are what they are alone; a run in parts is the whole."""
    v = jnp.array([0.0, 0.4, 2.0, 5.0])
    batch = jax.jit(jax.vmap(lambda v: run(Slider, 0.0, v, 1.0, 11)[1]))(v)
    for k in range(4):
        assert_allclose(batch.q[k], run(Slider, 0.0, v[k], 1.0, 11)[1].q, atol=1e-14)
    assert_array_equal(batch.success, True)
    assert_allclose(batch.q[:, -1, 0], jnp.where(v < 0.3 * G, v**2 / (0.6 * G), v - 0.15 * G), atol=1e-13)
    whole = run(Slider, 0.0, 2.0, 1.0, 11)[1]
    half = simulate(Slider(), LOCATED, jnp.zeros(2), jnp.array([2.0, 0]), n_steps=7, dt=1 / 11)
    assert_array_equal(simulate(Slider(), LOCATED, None, None, start=half, n_steps=4, dt=1 / 11).q[-1], whole.q[-1])


@pytest.mark.filterwarnings("ignore:simulating in float32")
@BOTH
def test_in_single_precision(kind):
    """It stops, stays, and says so."""
    single = jax.tree.map(jnp.float32, kind())
    n = 2 if kind is Slider else 1
    sol = simulate(single, LOCATED, jnp.zeros(n, jnp.float32), jnp.zeros(n, jnp.float32).at[0].set(2.0), 1.0, 1 / 11)
    assert sol.q.dtype == jnp.float32 and bool(sol.success)
    assert_allclose(sol.q[-1, 0], 4 / (0.6 * G), rtol=2e-6)
    assert_allclose(sol.q[-3:, 0], sol.q[-1, 0], rtol=1e-6)


def test_units_do_not_matter():
    """In micrometres and milliseconds it is the same motion."""
    x, sol = run(Slider, 0.0, 2.0e6 * 1e-3, 1.0e3, 11, gravity=G * 1e6 * 1e-6)
    assert_allclose(x[0] * 1e-6, 4 / (0.6 * G), rtol=1e-13)
    assert bool(sol.success)


def test_an_impact_and_a_stop_in_one_step():
    """A slider falls from a height, is braked by the impact without restitution, slides on, and comes to rest, all in one step."""
    height, v, mu = 0.05, 1.0, 0.5
    scheme = LocatedImpacts(MoreauJean(), slowest=0.1)
    sol = simulate(Slider(mu=mu), scheme, jnp.array([0.0, height]), jnp.array([v, 0.0]), n_steps=2, dt=0.25)
    fall = np.sqrt(2 * height / G)
    left = v - mu * np.sqrt(2 * height * G)
    assert fall + left / (mu * G) < 0.25
    assert_allclose(sol.q[-1], [v * fall + left**2 / (2 * mu * G), 0], atol=1e-13)
    assert_allclose(sol.u[-1], 0, atol=1e-13)
    assert_allclose(sol.auxiliary["impact_times"][1], [fall, np.nan], atol=1e-13)


def test_sliding_is_a_switch():
    """``sliding=False`` captures the end of sliding as the wrapped scheme does."""
    scheme = LocatedImpacts(MoreauJean(), sliding=False)
    assert "sliding=False" in repr(scheme)
    captured, plain = (run(Slider, 0.0, 2.0, 1.0, 11, of)[0] for of in (scheme, MoreauJean()))
    assert_allclose(captured, plain, atol=1e-14)
    assert abs(captured[0] - 4 / (0.6 * G)) > 1e-4
    with pytest.raises(TypeError, match="sliding must be True or False"):
        LocatedImpacts(Moreau(), sliding=1)
