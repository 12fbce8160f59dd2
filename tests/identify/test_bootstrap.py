"""Fits of many data sets: nothing is compiled again, and estimates scatter as they should."""

import numpy as np
import pytest

import jaxnsd
from jaxnsd import identify
from jaxnsd.models import BouncingBall

T, NOISE = np.linspace(0.02, 0.4, 20), 0.01


def posed(seed=0, heights=(1.0, 1.2), noise=NOISE, **options):
    """Balls that fall and do not arrive: the height is h - g t^2 / 2, linear in g. Everything is made anew, functions too."""
    random = np.random.default_rng(seed)
    data = [identify.Trajectory(T, h - 0.5 * 9.81 * T**2 + noise * random.normal(size=T.size), [h], [0.0], t0=0.0) for h in heights]
    options = {"measure": lambda t, q, u, m: q, "noise": noise, "dt": 0.02, "fit": ["gravity"]} | options
    return identify.Problem(BouncingBall(gravity=9.0), data, scheme=jaxnsd.SymmetricMoreau(), **options)


@pytest.fixture(scope="module")
def result():
    return identify.fit(posed())


def least_squares(problem):
    """Estimate and standard error of g by the closed form of linear regression."""
    x = -0.5 * np.tile(T**2, len(problem.data))
    y = np.concatenate([one.y[:, 0] - one.q0[0] for one in problem.data])
    g = x @ y / (x @ x)
    return g, np.sqrt(np.sum((y - g * x) ** 2) / (x.size - 1) / (x @ x))


def test_the_same_fit_of_other_data_compiles_nothing(result):
    programs = result.problem.programs
    before = {name: program._cache_size() for name, program in programs.items()}
    for other in (posed(1), result.problem.with_data(posed(2).data)):
        assert other.programs is programs
        np.testing.assert_allclose(identify.fit(other).values, least_squares(other)[0], rtol=1e-6)
    assert {name: program._cache_size() for name, program in programs.items()} == before
    # Whatever a program has read of its problem tells it apart.
    offset = 0.1
    for more in (
        {"measure": lambda t, q, u, m: q + offset},
        {"dt": 0.01},
        {"noise": 2 * NOISE},
        {"sensitivity": "discrete"},
        {"horizon": 9.0},
    ):
        assert posed(**more).programs is not programs
    assert identify.Problem(BouncingBall(gravity=9.0, mass=2.0), posed().data, fit=["gravity"], dt=0.02).programs is not programs
    assert posed(measure=lambda t, q, u, m: q + offset).programs is posed(measure=lambda t, q, u, m: q + offset).programs


@pytest.mark.slow
def test_errors_of_linear_regression(result):
    """Drawn by its noise the estimate scatters as the closed form says, up to what 100 draws tell: four of their standard errors, 28 %."""
    g, error = least_squares(result.problem)
    boot = identify.bootstrap(result, 100)
    # A line for the names, one for each parameter, one for the draws.
    assert len(repr(boot).splitlines()) == len(result.labels) + 2 and "100 draws, 0 of which" in repr(boot)
    np.testing.assert_allclose(boot.estimate, g, rtol=1e-6)
    assert boot.labels == ("gravity",) and boot.values.shape == (100, 1) and boot.failed == 0
    np.testing.assert_allclose(boot.standard_errors, error, rtol=4 / np.sqrt(200))
    assert abs(boot.bias[0]) < 4 * error / 10
    low, high = boot.interval(0.9)[0]
    assert np.mean((boot.values > low) & (boot.values < high)) == 0.9
    np.testing.assert_array_equal(identify.bootstrap(result, 10, seed=3).values, identify.bootstrap(result, 10, seed=3).values)


@pytest.mark.slow
def test_whole_trajectories_that_are_drawn():
    """Of balls whose gravity differs by far more than the noise says: the mean scatters by the deviation over the root of twelve."""
    own = 9.81 + 0.3 * np.random.default_rng(4).normal(size=12)
    data = [identify.Trajectory(T, 1.0 - 0.5 * g * T**2, [1.0], [0.0], t0=0.0, name=f"ball {k}") for k, g in enumerate(own)]
    result = identify.fit(posed(heights=(1.0,) * 12).with_data(data))
    boot = identify.bootstrap(result, 100, of="trajectories")
    np.testing.assert_allclose(boot.standard_errors, own.std() / np.sqrt(12), rtol=4 / np.sqrt(200))


@pytest.mark.slow
def test_what_was_held_out_takes_no_part():
    problem = posed(heights=(1.0, 1.2, 1.1))
    alone = identify.fit(problem, validation=["trajectory 2"])
    both = least_squares(posed(heights=(1.0, 1.2)))[1]
    np.testing.assert_allclose(identify.bootstrap(alone, 100).standard_errors, both, rtol=0.35)


def test_what_the_data_say_nothing_about_is_warned_of():
    """The mass of a ball in flight: its estimates do not spread, and that is no certainty."""
    fitted = identify.fit(posed(fit=["gravity", "mass"]))
    mass, gravity = map(list(fitted.labels).index, ("mass", "gravity"))
    assert np.isinf(fitted.standard_errors[mass])
    with pytest.warns(UserWarning, match="the data say nothing about mass: estimates of it stay where they start"):
        boot = identify.bootstrap(fitted, 10)
    assert np.ptp(boot.values[:, mass]) < 1e-9 < np.ptp(boot.values[:, gravity])


def test_what_makes_no_sense_is_refused(result):
    with pytest.raises(TypeError, match=r"expected the Result of identify.fit\(problem\), got Problem"):
        identify.bootstrap(result.problem)
    for options, text in (
        ({"draws": 3}, "draws must be a whole number, 10 at least, got 3"),
        ({"draws": 20.0}, "draws must be a whole number"),
        ({"of": "wild"}, 'of must be "noise" or "trajectories", got \'wild\''),
        ({"seed": "a"}, "identify.bootstrap: seed must be a whole number"),
    ):
        with pytest.raises(ValueError, match=text):
            identify.bootstrap(result, **options)


@pytest.mark.slow
def test_problems_that_have_no_bootstrap(result):
    one = identify.fit(posed(heights=(1.0,)))
    with pytest.raises(ValueError, match="takes several trajectories, got one"):
        identify.bootstrap(one, of="trajectories")
    for more, text in (
        ({"residual": lambda p, y: 2 * (p - y)}, "another residual"),
        ({"free_state": identify.FreeState(0.1, 0.1)}, "free initial"),
    ):
        other = identify.fit(posed(**more))
        with pytest.raises(ValueError, match=text):
            identify.bootstrap(other)
    with pytest.raises(ValueError, match="level must lie between 0 and 1, got 95"):
        identify.bootstrap(result, 10).interval(95)
