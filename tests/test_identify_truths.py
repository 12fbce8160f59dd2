"""Identification against closed forms: linear regression with weights, gaps, correlated noise, units far apart, bounds, failures."""

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import jaxnsd
from jaxnsd import identify


@jaxnsd.system
class Rest(jaxnsd.System):
    """A body at rest: all that changes is how it is measured."""

    mass: float = 1.0

    def mass_matrix(self, t, q):
        return self.mass * jnp.eye(1)

    def potential_energy(self, t, q):
        return 0.0 * q[0]


T = np.linspace(0.0, 1.0, 12)
NOISE = 0.1


def line(t, q, u, m):
    """Two columns that share an offset and a slope."""
    return jnp.stack([m["a"] + m["b"] * t, m["a"] - 2 * m["b"] * t**2]) + 0 * q


def columns(t):
    """Their design matrix (2 N, 2)."""
    one = np.ones_like(t)
    return np.stack([np.stack([one, t], 1), np.stack([one, -2 * t**2], 1)], 1).reshape(-1, 2)


def measured(seed, values=(1.0, 2.0), t=T):
    return (columns(t) @ values).reshape(-1, 2) + NOISE * np.random.default_rng(seed).normal(size=(len(t), 2))


def trajectory(seed, **changed):
    return identify.Trajectory(**{"t": T, "y": measured(seed), "q0": [0.0], "u0": [0.0]} | changed)


def problem(data, measure=line, first=None, fit=None, **options):
    first = {"a": 0.0, "b": 0.0} if first is None else first
    fit = [f"measurement.{name}" for name in first] if fit is None else fit
    return identify.Problem(Rest(), data, fit=fit, measurement=first, measure=measure, dt=0.05, **{"noise": NOISE} | options)


def regression(X, y, covariance):
    """``(estimate, covariance, scale, 95 % intervals)`` of generalized least squares with a covariance known up to a factor."""
    stats = pytest.importorskip("scipy.stats")
    W = np.linalg.inv(np.linalg.cholesky(covariance))
    b = np.linalg.lstsq(W @ X, W @ y, rcond=None)[0]
    freedom = len(y) - X.shape[1]
    square = np.sum((W @ (y - X @ b)) ** 2) / freedom
    C = square * np.linalg.inv(X.T @ np.linalg.solve(covariance, X))
    reach = stats.t.ppf(0.975, freedom) * np.sqrt(np.diag(C))
    return b, C, np.sqrt(square), np.stack([b - reach, b + reach], axis=1)


def assert_is_regression(result, X, y, covariance):
    b, C, scale, intervals = regression(X, y, covariance)
    errors = np.sqrt(np.diag(C))
    assert_allclose(result.values, b, atol=1e-6 * np.min(errors))
    assert_allclose(result.covariance, C, rtol=1e-9)
    assert_allclose(result.noise_scale, scale, rtol=1e-9)
    assert_allclose(result.intervals, intervals, atol=1e-6 * np.min(errors))


CORRELATED = np.array([[0.01, 0.018], [0.018, 0.04]])


def test_weights_and_gaps_with_independent_noise_are_weighted_regression():
    weights = np.random.default_rng(1).uniform(0.2, 3, size=(12, 2))
    weights[5] = 0
    y = measured(0)
    y[2, 0], y[7, 1] = np.nan, np.inf
    result = identify.fit(problem(trajectory(0, y=y, weights=weights), noise=[0.1, 0.3]))
    kept = (np.isfinite(y) & (weights > 0)).ravel()
    variances = (np.tile([0.01, 0.09], 12) / np.where(weights > 0, weights, 1).ravel())[kept]
    assert_is_regression(result, columns(T)[kept], y.ravel()[kept], np.diag(variances))


@pytest.mark.parametrize("gaps", [False, True])
def test_correlated_noise_is_generalized_regression(gaps):
    """Of a frame in which one column is missing the other counts by itself, with its own variance."""
    y = measured(0)
    if gaps:
        y[::3, 0], y[1, 1], y[2] = np.nan, np.inf, np.nan
    kept = np.isfinite(y).ravel()
    covariance = np.kron(np.eye(12), CORRELATED)[np.ix_(kept, kept)]
    result = identify.fit(problem(trajectory(0, y=y), noise=CORRELATED))
    assert_is_regression(result, columns(T)[kept], y.ravel()[kept], covariance)


def test_a_residual_that_mixes_columns_leaves_out_frames_that_are_not_whole():
    """Sum and difference: of a frame of which one number is missing neither is known."""
    mix = np.array([[1.0, 1.0], [1.0, -1.0]])
    y = measured(0)
    y[3, 0] = np.nan
    result = identify.fit(problem(trajectory(0, y=y), residual=lambda predicted, y: jnp.asarray(mix) @ (predicted - y)))
    kept = np.arange(12) != 3
    X = np.einsum("ij,njp->nip", mix, columns(T).reshape(12, 2, 2))[kept].reshape(-1, 2)
    assert_is_regression(result, X, (y[kept] @ mix.T).ravel(), NOISE**2 * np.eye(22))


def test_what_was_not_measured_leaves_no_trace_in_reverse_mode():
    """A residual of one's own whose derivative is infinite at zero, which nobody measured."""
    y = measured(0) + 20.0
    y[:2], y[6] = np.nan, np.nan
    of = problem(
        trajectory(0, y=y), residual=lambda predicted, y: jnp.sqrt(jnp.abs(predicted * y)) - jnp.abs(y), first={"a": 21.0, "b": 1.0}
    )
    evaluator = identify.evaluate.Evaluator(of)
    point = identify.evaluate.Point(of.unknowns.first(), np.zeros((1, 0)))
    (forward,), (back,) = evaluator.linearized([point]), evaluator.descended([point])
    assert forward["ok"].all() and back["ok"].all()
    assert_allclose(back["g"], forward["g"], rtol=1e-10)


def test_covariances_are_checked_whatever_their_unit():
    for scale in (1e-12, 1.0):
        for noise in ([[1.0, 0.5], [0.1, 1.0]], [[1.0, 2.0], [2.0, 1.0]], [[1.0, np.nan], [np.nan, 1.0]]):
            with pytest.raises(ValueError, match="noise as a covariance must be symmetric positive definite"):
                problem(trajectory(0), noise=scale * np.array(noise))


def test_other_data_are_taken_only_where_they_fit():
    of = problem(trajectory(0))
    with pytest.raises(ValueError, match="with as many columns of y, 2, got 1"):
        of.with_data(trajectory(0, y=T))


def test_a_clock_has_room_in_every_trajectory():
    """The first is short, the second long: a clock that is 10 % slow asks for 2 s more of it."""
    longer = np.linspace(0.0, 20.0, 30)
    data = [identify.Trajectory(t, 1.1 * t, [0.0], [1.0], name=str(k)) for k, t in enumerate((T, longer))]
    of = problem(data, lambda t, q, u, m: q, {"rate": 1.1}, when=lambda t, m: m["rate"] * t)
    assert of.n_steps * of.settings.dt > 22
