"""Identification against closed forms: linear regression with weights, gaps, correlated noise, units far apart, bounds, failures."""

import contextlib
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
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


def regression(X, y, covariance, random=None):
    """``(estimate, covariance, scale, 95 % intervals)`` of generalized least squares with a covariance known up to a factor.

    ``random``: what of it is that of random effects, which are predicted (Henderson); residuals are those without them, and their
    degrees of freedom what the trace of the projection leaves.
    """
    stats = pytest.importorskip("scipy.stats")
    W = np.linalg.inv(np.linalg.cholesky(covariance))
    b = np.linalg.lstsq(W @ X, W @ y, rcond=None)[0]
    weight, one = W.T @ W, np.eye(len(y))
    C = np.linalg.inv(X.T @ weight @ X)
    fixed = X @ C @ X.T @ weight
    random = 0 * one if random is None else random
    projected = fixed + random @ weight @ (one - fixed)
    freedom, r = len(y) - np.trace(projected), y - projected @ y
    square = r @ np.linalg.solve(covariance - random, r) / freedom
    C = square * C
    reach = stats.t.ppf(0.975, freedom) * np.sqrt(np.diag(C))
    return b, C, np.sqrt(square), np.stack([b - reach, b + reach], axis=1)


def assert_is_regression(result, X, y, covariance, random=None):
    """Compared in standard errors."""
    b, C, scale, intervals = regression(X, y, covariance, random)
    errors = np.sqrt(np.diag(C))
    assert_allclose(result.values / errors, b / errors, atol=1e-6)
    assert_allclose(result.covariance, C, rtol=1e-9)
    assert_allclose(result.noise_scale, scale, rtol=1e-9)
    assert_allclose(result.intervals / errors[:, None], intervals / errors[:, None], atol=1e-6)


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


@pytest.mark.parametrize("first", [(0.9, 0.8), (0.0, 0.0), (2e-3, 0.0)])
def test_units_far_apart_change_nothing(first):
    """a = 1e6 and b = 1e-8 of units in which the design matrix is of order one: 14 powers of ten between the columns."""
    units = np.array([1e6, 1e-8])
    guess = dict(zip("ab", units * first, strict=True))
    of = problem(trajectory(3), lambda t, q, u, m: line(t, q, u, {"a": m["a"] / units[0], "b": m["b"] / units[1]}), guess)
    result = identify.fit(of)
    assert_is_regression(result, columns(T) / units, measured(3).ravel(), NOISE**2 * np.eye(24))
    assert not result.warnings


@pytest.mark.parametrize("sign", [1, -1])
def test_at_a_bound_the_others_are_still_the_best(sign):
    """The slope would be beyond its bound: the offset is then that of the regression with the slope held there."""
    of = problem(trajectory(0), fit={"measurement.a": None, "measurement.b": identify.Bounded(-1.0, 1.0)})
    y = columns(T) @ [3.0, sign * 1.05] + NOISE * np.random.default_rng(0).normal(size=24)
    result = identify.fit(of.with_data(trajectory(0, y=y.reshape(-1, 2))))
    (a,) = np.linalg.lstsq(columns(T)[:, :1], y - sign * columns(T)[:, 1], rcond=None)[0]
    assert_allclose(result.estimate["measurement.a"], a, atol=1e-4 * result.standard_errors[0])
    assert f"measurement.b is at its bound, {sign}, or not told from it" in result.warnings[0]
    low, high = result.intervals[1]
    assert -1 <= low < high <= 1 and high - low < 3 * result.standard_errors[1]
    far = abs(sign - (low if sign > 0 else high))
    assert_allclose(far, 2.07 * result.standard_errors[1], rtol=0.01)


def test_freedom_is_that_of_what_is_determined():
    """Two unknowns of which only the sum is seen: one of them is no more than the other."""
    of = problem(trajectory(0), lambda t, q, u, m: line(t, q, u, {"a": m["a"] + m["c"], "b": m["b"]}), {"a": 0.5, "b": 0.0, "c": 0.5})
    result = identify.fit(of)
    _, C, scale, intervals = regression(columns(T), measured(0).ravel(), NOISE**2 * np.eye(24))
    assert_allclose(result.noise_scale, scale, rtol=1e-9)
    assert_allclose(result.intervals[1], intervals[1], atol=1e-6 * C[1, 1] ** 0.5)
    assert np.isinf(result.standard_errors[[0, 2]]).all() and "one combination" in result.warnings[0]


@contextlib.contextmanager
def precision(bits):
    with (
        jax.experimental.enable_x64(bits == 64) if not hasattr(jax, "enable_x64") else jax.enable_x64(bits == 64),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", message="simulating in float32")
        yield


def test_single_precision_knows_its_rank():
    """Two columns that are multiples of each other, but for rounding."""
    with precision(32):
        of = problem(
            trajectory(0),
            lambda t, q, u, m: line(jnp.sin(t), q, u, {"a": m["a"], "b": 1.3 * m["b"] + m["c"]}),
            {"a": 0.5, "b": 0.5, "c": 0.5},
        )
        result = identify.fit(of)
        late = identify.Trajectory(1.7e9 + T, measured(0), [0.0], [0.0])
        with pytest.raises(ValueError, match=r"are 1.3e\+02 s apart in float32.*count time from the start"):
            of.with_data(late)
    assert np.isinf(result.standard_errors[1:]).all() and "do not determine one combination" in result.warnings[0]
    X = np.stack([np.ones((12, 2)), np.stack([np.sin(T), -2 * np.sin(T) ** 2], 1)], axis=2).reshape(-1, 2)
    b, C, scale, _ = regression(X, measured(0).ravel(), NOISE**2 * np.eye(24))
    assert_allclose(result.values[0], b[0], atol=1e-3 * C[0, 0] ** 0.5)
    assert_allclose([result.standard_errors[0], result.noise_scale], [C[0, 0] ** 0.5, scale], rtol=1e-4)


def test_free_initial_states_are_mixed_effects_and_their_prior_has_the_unit_of_the_noise():
    """Heights with a random start of their own: the covariance of a trajectory is that of the noise and one of the start."""
    random, data = np.random.default_rng(4), []
    for k in range(6):
        data.append(trajectory(k, y=0.5 + 0.3 * T + 0.2 * random.normal() + NOISE * random.normal(size=12), name=f"{k}"))
    of = problem(data, lambda t, q, u, m: q + m["a"] + m["b"] * t, free_state=identify.FreeState(0.2, 0.0))
    result = identify.fit(of)
    X, y = np.tile(np.stack([np.ones(12), T], 1), (6, 1)), np.concatenate([one.y[:, 0] for one in data])
    of_starts = np.kron(np.eye(6), np.full((12, 12), 0.2**2))
    assert_is_regression(result, X, y, NOISE**2 * np.eye(72) + of_starts, of_starts)
    assert not result.warnings
    # With noise that is a thousand times too large the start seems known to 0.2 mm.
    said = identify.uncertainty.of(of, result.z, np.eye(2), 70e-6, 72).warnings
    assert "residuals are 0.001 times the noise that was given, and standard deviations of initial states" in said[0]


LOOSE = identify.FreeState(1e3 * NOISE, 0.0)


@pytest.mark.parametrize("how, bits", [("starts", 64), ("windows", 64), ("windows", 32)])
def test_states_that_the_data_alone_tell_take_a_degree_of_freedom_each(how, bits):
    """Of four frames each: every start a number of its own, as priors, and joints of windows, that tell nothing scatter by nothing.

    Joints weigh 1e8 times as much as the data, of which nothing would be left in a sum in single precision.
    """
    random, short, data = np.random.default_rng(5), T[:4], []
    for k in range(6):
        y = (random.normal() + 0.3 * short + NOISE * random.normal(size=4))[:, None]
        data.append(identify.Trajectory(short, y, [0.0], [0.0], q=y, u=0 * y, name=f"{k}"))
    X, y = (
        np.concatenate([np.tile(short, 6)[:, None], np.kron(np.eye(6), np.ones((4, 1)))], axis=1),
        np.concatenate([x.y[:, 0] for x in data]),
    )
    _, C, scale, _ = regression(X, y, NOISE**2 * np.eye(24))
    options = {"free_state": LOOSE} if how == "starts" else {"windows": identify.Windows(1, free=LOOSE, continuity=(1e-4 * NOISE, 1.0))}
    with precision(bits):
        result = identify.fit(problem(data, lambda t, q, u, m: q + m["b"] * t, {"b": 0.0}, **options))
    assert_allclose([result.standard_errors[0], result.noise_scale], [C[0, 0] ** 0.5, scale], rtol=1e-3)
    assert_allclose(result.uncertainty.freedom, 24 - 7, rtol=1e-3)


def assert_says_nothing_about_errors(result):
    assert np.isnan(result.standard_errors).all() and np.isnan(result.intervals).all() and np.isnan(result.noise_scale)
    assert len(result.warnings) == 1 and "there are no more residuals (2) than unknowns (2)" in result.warnings[0]


@pytest.mark.parametrize("bits", [64, 32])
def test_two_residuals_of_two_unknowns_say_nothing_about_errors(bits):
    """A line through two frames, and a slope and a start of which the prior tells 1e-8 as much: what is left is rounding."""
    two = trajectory(0, y=1 + 0.5 * T, mask=np.arange(12) % 11 == 0)
    with precision(bits):
        for measure, first, options in (
            (lambda t, q, u, m: m["a"] + m["b"] * t + 0 * q, {"a": 0.0, "b": 0.0}, {}),
            (lambda t, q, u, m: q + m["b"] * t, {"b": 0.0}, {"free_state": LOOSE}),
        ):
            assert_says_nothing_about_errors(identify.fit(problem(two, measure, first, **options)))


@pytest.mark.parametrize("bits", [64, 32])
def test_students_quantile(bits):
    """From a tenth of a degree of freedom to ten million, in single precision too."""
    stats = pytest.importorskip("scipy.stats")
    freedom = [0.15, 1.0, 8.0, 99.0, 101.0, 1e4, 2e6, 1e7]
    with precision(bits):
        found = [identify.uncertainty.student(0.975, f) for f in freedom]
    assert_allclose(found, stats.t.ppf(0.975, freedom), rtol=1e-9 if bits == 64 else 1e-5)


# ----------------------------------------------------------------------------------------------------------- what has converged
@pytest.mark.parametrize("size", [1e9, 1e-12])
def test_a_long_way_and_a_short_one_are_gone_to_their_ends(size):
    """From zero, in units of which nobody has thought: bounded steps lower the cost by little, and a small cost may be a large one."""
    y = size * (1 + 0.01 * np.random.default_rng(0).normal(size=12))
    result = identify.fit(problem(trajectory(0, y=y), lambda t, q, u, m: m["a"] + 0 * q, {"a": 0.0}, noise=max(1.0, 0.01 * size)))
    assert result.message.startswith("converged") and not result.warnings
    assert_is_regression(result, np.ones((12, 1)), y, max(1.0, 0.01 * size) ** 2 * np.eye(12))


def test_where_no_step_lowers_the_cost_though_one_should_it_is_said():
    """A loss that is flat, whose derivatives promise a way down: as of one that is rough."""
    result = identify.fit(problem(one_column(0), lambda t, q, u, m: m["a"] - jax.lax.stop_gradient(m["a"]) + 0 * q, {"a": 0.0}))
    assert result.message.startswith("stopped: no step lowers the cost")
    assert "the fit has not converged: measurement.a would go on by about" in " ".join(result.warnings)


def test_at_a_bound_in_single_precision_an_unknown_has_its_effect():
    """An offset that would be negative: the column of its logarithm vanishes there, and errors are those of both unknowns."""
    y = -0.05 + 2 * T + NOISE * np.random.default_rng(0).normal(size=12)
    line, fit = (lambda t, q, u, m: m["a"] + m["b"] * t + 0 * q), {"measurement.a": identify.Positive(), "measurement.b": None}
    with precision(32):
        result = identify.fit(problem(trajectory(0, y=y), line, {"a": 0.5, "b": 0.0}, fit))
    b, X = T @ y / (T @ T), np.stack([np.ones(12), T], 1)
    C = np.sum((y - b * T) ** 2) / 10 * np.linalg.inv(X.T @ X)
    assert np.linalg.lstsq(X, y, rcond=None)[0][0] < 0
    assert_allclose(result.values, [0, b], atol=1e-3 * C[1, 1] ** 0.5)
    assert_allclose(result.standard_errors, np.sqrt(np.diag(C)), rtol=1e-3)
    assert "measurement.a is at its bound, 0" in result.warnings[0]


def test_frames_at_rest_are_not_what_derivatives_are_compared_with():
    """What fades, as heights of a ball that bounces to its rest, leaves round-off in more than half of the frames, and tells as before."""
    t, fades = np.linspace(0, 1, 30), lambda t: np.exp(-np.minimum(120 * t, 36))
    y = 0.7 * fades(t) + NOISE * np.random.default_rng(3).normal(size=30)
    result = identify.fit(problem(trajectory(0, t=t, y=y), lambda t, q, u, m: q + m["a"] * jnp.exp(-jnp.minimum(120 * t, 36)), {"a": 0.1}))
    assert not result.lost
    assert_is_regression(result, fades(t)[:, None], y, NOISE**2 * np.eye(30))


def one_column(seed, **changed):
    """y = 1 + 0.5 t, with noise."""
    y = 1 + 0.5 * T + NOISE * np.random.default_rng(seed).normal(size=12)
    return trajectory(seed, **{"y": y, "name": f"trajectory {seed}"} | changed)


@pytest.fixture(scope="module")
def six():
    """An offset and a slope within bounds, from six trajectories, compiled once."""
    fit = {"measurement.a": None, "measurement.b": identify.Bounded(0.0, 2.0)}
    return problem([one_column(k) for k in range(6)], lambda t, q, u, m: m["a"] + m["b"] * t + 0 * q, {"a": 0.0, "b": 1.0}, fit)


def offset_and_slope(data):
    X = np.tile(np.stack([np.ones(12), T], 1), (len(data), 1))
    return X, np.concatenate([one.y[:, 0] for one in data])


def test_from_next_to_a_bound_no_frame_is_lost(six):
    """Derivatives by a logit are a million times larger in the middle than there: that is no grazing impact."""
    result = identify.fit(six, starts=np.array([[0.0, six.unknowns.list[1].transform.inverse(1e-6)[0]]]))
    X, y = offset_and_slope(six.data)
    b, C, *_ = regression(X, y, NOISE**2 * np.eye(72))
    assert not result.lost and np.all(np.abs(result.values - b) < 1e-3 * np.sqrt(np.diag(C)))


def test_a_profile_has_students_interval(six):
    few = six.with_data([one_column(0, mask=np.arange(12) % 4 == 0), one_column(1, mask=np.arange(12) == 11)])
    result = identify.fit(few)
    X, y = offset_and_slope(few.data)
    kept = np.concatenate([one.mask[:, 0] for one in few.data])
    b, C, _, intervals = regression(X[kept], y[kept], NOISE**2 * np.eye(4))
    held = np.linspace(0.1, 1.9, 7)
    profile = identify.profile(result, "measurement.b", held)
    assert_allclose(profile.increase, (held - b[1]) ** 2 / C[1, 1], rtol=1e-6)
    # With two degrees of freedom it reaches over 4.3 standard errors.
    assert_allclose(identify.profile(result, "measurement.b", 6).interval, intervals[1], rtol=1e-6)


def test_a_profile_at_a_bound_is_one_sided(six):
    """Below the bound of zero the slope would be: the likelihood falls from there on, by closed form."""
    falling = six.with_data([one_column(0, y=1 - 0.05 * T + NOISE * np.random.default_rng(9).normal(size=12))])
    result = identify.fit(falling)
    b, C, *_ = regression(*offset_and_slope(falling.data), NOISE**2 * np.eye(12))
    assert b[1] < 0 and "measurement.b is at its bound, 0" in " ".join(result.warnings)
    profile = identify.profile(result, "measurement.b", 7)
    unit = (scale_of(falling, b) / result.noise_scale) ** 2 / C[1, 1]
    assert_allclose(profile.increase, unit * ((profile.values - b[1]) ** 2 - b[1] ** 2), rtol=1e-3, atol=1e-4)
    assert profile.interval[0] == 0 and profile.interval[1] < result.intervals[1, 1]


def scale_of(of, b):
    X, y = offset_and_slope(of.data)
    return np.sqrt(np.sum((y - X @ b) ** 2) / (len(y) - 2)) / NOISE


# ------------------------------------------------------------------------------------------------------------ a falling body
@jaxnsd.system
class Fall(jaxnsd.System):
    """A unit mass that falls, y = 1 - g t^2 / 2, which `MoreauJean` steps exactly; or on a negative spring, which it leaves with
    exp(t sqrt(k)).
    """

    g: float = 9.0
    k: float = 0.0

    def kinetic_energy(self, t, q, u):
        return 0.5 * u @ u

    def potential_energy(self, t, q):
        return self.g * q[0] - 0.5 * self.k * q[0] ** 2


def fallen(t, name, **options):
    y = 1 - 0.5 * 9.81 * t**2 + 1e-3 * np.random.default_rng(round(1e6 * t.sum())).normal(size=len(t))
    return identify.Trajectory(t, y, [1.0], [0.0], t0=0.0, name=name, **options)


def falling(data, fit, system=None, **options):
    options = {"scheme": jaxnsd.MoreauJean(), "dt": 1e-2, "noise": 1e-3, "measure": lambda t, q, u, m: q} | options
    return identify.Problem(system or Fall(), data, fit=fit, **options)


@pytest.mark.parametrize("frames", [1, 5])
def test_a_delay_is_measured_by_the_last_frame_too(frames):
    """Of six trajectories of some frames, where the last one says most, by closed form: half of its derivative was missing."""
    data = [fallen((0.5 + 0.1 * k) * np.linspace(1 / frames, 1, frames), f"{k}") for k in range(6)]
    clock = {"measurement": {"delay": 0.0}, "when": lambda t, m: t - m["delay"]}
    result, delay = identify.fit(falling(data, "measurement.delay", Fall(g=9.81), **clock)), 0.0
    t, y = (np.concatenate([getattr(one, name).ravel() for one in data]) for name in ("t", "y"))
    for _ in range(20):
        slope = 9.81 * (t - delay)
        delay += slope @ (y - 1 + 0.5 * 9.81 * (t - delay) ** 2) / (slope @ slope)
    scale = np.sqrt(np.sum((y - 1 + 0.5 * 9.81 * (t - delay) ** 2) ** 2) / (len(t) - 1))
    assert_allclose(result.standard_errors, scale / np.linalg.norm(9.81 * (t - delay)), rtol=1e-4)
    assert abs(result.values[0] - delay) < 1e-3 * result.standard_errors[0]


@pytest.mark.parametrize("which", ["runs of 20 ms and one of a second", "spaced by logarithms", "weights of 1e-7"])
def test_derivatives_that_grow_as_a_fall_does_are_kept(which):
    """Of g, with the square of time: the last frames say most, and are past no grazing impact."""
    light = np.where(np.arange(40) % 4 == 1, 1.0, 1e-7)
    data = {
        "runs of 20 ms and one of a second": [fallen(np.linspace(0, 0.02, 9 + k), f"{k}") for k in range(5)] + [fallen(T, "long")],
        "spaced by logarithms": [fallen(np.geomspace(1e-4, 1, 41), "one")],
        "weights of 1e-7": [fallen(np.linspace(0.02, 1, 40), "one", weights=light)],
    }[which]
    result = identify.fit(falling(data, "g"))
    t, y, W = (np.concatenate([getattr(one, name).ravel() for one in data]) for name in ("t", "y", "weights"))
    X = -0.5 * t**2
    g = (W * X) @ (y - 1) / ((W * X) @ X)
    scale = np.sqrt(W @ (y - 1 - g * X) ** 2 / (len(t) - 1))
    assert not result.lost and not result.warnings
    assert_allclose(result.standard_errors, scale / np.sqrt((W * X) @ X), rtol=1e-6)
    assert abs(result.values[0] - g) < 1e-3 * result.standard_errors[0]


def test_frames_that_are_lost_are_warned_of():
    """Chaos, in which derivatives grow faster than with any power of time."""
    noise = np.random.default_rng(2).normal(size=12)
    one = identify.Trajectory(T, 1e-6 * (np.cosh(20 * T) + noise), [1e-6], [0.0], name="one")
    result = identify.fit(falling(one, "k", Fall(g=0.0, k=400.0), dt=1e-3, noise=1e-6))
    assert result.lost["one"] >= 1 and "left out of the last step and of the standard errors" in " ".join(result.warnings)
    # Nor do they tell how large the noise is.
    kept = 12 - result.lost["one"]
    assert_allclose(result.noise_scale, np.sqrt(np.sum(result.residuals[0][:kept] ** 2) / (kept - 1)), rtol=1e-6)


@pytest.mark.parametrize("unit", [1.0, 1e-9])
def test_windows_at_rest_are_not_what_the_others_are_compared_with(unit):
    """Most of a record is at rest, in windows of its own; in metres, and where nobody has said how small the noise is."""
    late = T + 0.5
    data = [
        trajectory(k, t=t, y=unit * (0.7 * np.exp(-60 * t) + NOISE * np.random.default_rng(k).normal(size=12)), name=f"{k}")
        for k, t in enumerate([T / 6, late, late, late, late])
    ]
    of = problem(data, lambda t, q, u, m: q + unit * m["a"] * jnp.exp(-60 * t), {"a": 0.1})
    result = identify.fit(of)
    assert not result.lost
    x, y = (np.concatenate([getattr(one, name).reshape(-1) for one in data]) for name in ("t", "y"))
    X = np.exp(-60 * x)
    assert_allclose(result.values[0], X @ y / (X @ X) / unit, rtol=1e-6)


def test_few_items_may_tell_of_an_unknown_and_what_has_grown_is_left_out():
    """Friction, as it were, moves two trajectories of eight, the others next to nothing; in a ninth all derivatives are past a graze."""

    def measure(t, q, u, m):
        return jnp.where(q > 10, 2e4, 1) * (m["a"] + m["b"] * jnp.where(q > 10, 1, q) * (1 + t))

    slides = np.array([1e-4, 5e-5, 1.0, 2e-4, 1e-4, 0.3, 5e-5, 1e-4])
    random = np.random.default_rng(7)
    data = [
        trajectory(k, y=1 + 2 * size * (1 + T) + NOISE * random.normal(size=12), q0=[size], name=f"{k}") for k, size in enumerate(slides)
    ]
    grown = trajectory(9, y=2e4 * (3 + 2 * T), q0=[20.0], name="grown")
    result = identify.fit(problem([*data, grown], measure, {"a": 1.5, "b": 1.5}))
    assert result.lost == {"grown": 12}
    X = np.concatenate([np.stack([np.ones(12), size * (1 + T)], 1) for size in slides])
    assert_is_regression(result, X, np.concatenate([one.y[:, 0] for one in data]), NOISE**2 * np.eye(96))


@pytest.mark.parametrize("scheme", [jaxnsd.SymmetricMoreau(), jaxnsd.LocatedImpacts(jaxnsd.SymmetricMoreau())], ids=str)
def test_velocities_at_mid_interval_are_compared_at_their_frames(scheme):
    """Of a fall from exact velocities, with long steps."""
    data = identify.Trajectory(T, -9.81 * T, [1.0], [0.0], t0=0.0)
    assert_allclose(identify.fit(falling(data, "g", scheme=scheme, dt=0.05, measure=lambda t, q, u, m: u)).values, 9.81, rtol=1e-9)


@jaxnsd.system
class Well(jaxnsd.System):
    """A unit mass in a logarithmic potential: at q = 0 nothing is finite."""

    k: float = 1.0

    def kinetic_energy(self, t, q, u):
        return 0.5 * u @ u

    def potential_energy(self, t, q):
        return self.k * jnp.log(q[0])


def test_what_a_short_trajectory_does_not_need_leaves_no_trace_in_reverse_mode():
    """Beside a long one, with velocities that are moved to the nodes: both modes agree on its gradient."""
    data = [identify.Trajectory(end * T, 2 + 0 * T, [2.0], [0.0], t0=0.0, name=f"{end}") for end in (0.4, 0.04)]
    evaluator = identify.evaluate.Evaluator(falling(data, "k", Well(), scheme=jaxnsd.SymmetricMoreau(), dt=5e-3))
    point = identify.evaluate.Point(np.ones(1), np.zeros((2, 0)))
    forward, reverse = (getattr(evaluator, way)([point])[0] for way in ("linearized", "descended"))
    assert reverse["ok"].all() and np.all(forward["g"] != 0)
    assert_allclose(reverse["g"], forward["g"], rtol=1e-9)


def test_a_window_goes_on_where_no_state_was_measured():
    """Of 12 frames after the first all are compared, though a state at which a window would start is missing."""
    u = -9.81 * T[:, None]
    u[4] = np.nan
    y = 1 - 0.5 * 9.81 * T**2
    of = falling(identify.Trajectory(T, y, q=y[:, None], u=u), "g", noise=1.0, windows=identify.Windows(4))
    assert list(of.items["t0"]) == [T[0], T[5], T[9]] and list(of.count) == [5, 4, 2]
    assert_allclose(identify.fit(of).values, 9.81, rtol=1e-9)


@pytest.mark.parametrize("kind", ["soft_l1", "cauchy"])
def test_a_frame_of_one_number_is_an_entry(kind):
    """Of six columns of which every frame has one."""
    r = np.random.default_rng(0).normal(size=(40, 6))
    shown = np.arange(6)[None] == np.arange(40)[:, None] % 6
    r = jnp.where(shown, r, 0)
    by_frame, by_entry = (identify.Robust(kind, 1.0, over).scatter(r, shown) for over in ("frame", "entry"))
    assert_allclose(by_frame, by_entry, rtol=1e-12)


def test_a_share_for_validation_is_one_trajectory_at_least(six):
    short = identify.LevenbergMarquardt(max_iterations=1)
    for share in (0.01, 1 / 12):
        assert identify.fit(six, short, validation=share).training.sum() == 5
    assert identify.fit(six, short, validation="trajectory 2").training.tolist() == [k != 2 for k in range(6)]
    with pytest.raises(ValueError, match="one trajectory alone cannot be held out"):
        identify.fit(six.with_data(one_column(0)), validation=0.5)


@pytest.mark.parametrize("solver", ["marquardt", "adam", "batches"])
def test_a_fit_that_is_resumed_ends_as_one_that_was_not(six, solver, tmp_path):
    """To the bit, with its best iterate; and only with the data that it began with."""

    def of(n):
        if solver == "marquardt":
            return identify.LevenbergMarquardt(max_iterations=n)
        return identify.FirstOrder(optax.adam(0.1), max_iterations=n, batch=2 if solver == "batches" else None)

    first, second = (3, 2) if solver == "marquardt" else (4, 5)  # an iteration of a first-order method begins with its evaluation
    whole = identify.fit(six, of(5 if solver == "marquardt" else 8))
    part = identify.fit(six, of(first), checkpoint=tmp_path / "fit.npz")
    for resume in (part, tmp_path / "fit.npz"):
        on = identify.fit(six, of(second), resume=resume)
        assert np.array_equal(on.z, whole.z) and on.train_loss == whole.train_loss
    other = six.with_data([*six.data[:5], one_column(77)])
    with pytest.raises(ValueError, match="a fit of other data"):
        identify.fit(other, of(2), resume=part)
    if solver == "adam":
        # Levenberg-Marquardt goes on from where Adam is; another optimizer has no use for its moments.
        assert identify.fit(six, resume=part).message.startswith("converged")
        with pytest.raises(ValueError, match="the state of another optimizer"):
            identify.fit(six, optax.sgd(0.1), resume=part)
        # Far too long steps: the best is behind.
        worse = identify.fit(six, identify.FirstOrder(optax.adam(3.0), max_iterations=3), resume=identify.fit(six))
        assert worse.train_loss < 1.2
    (tmp_path / "junk.npz").write_text("junk")
    with pytest.raises(ValueError, match="cannot be read as a checkpoint"):
        identify.fit(six, resume=tmp_path / "junk.npz")


def test_the_loss_is_that_of_the_result_and_says_where_it_has_not_converged(six):
    result = identify.fit(six, identify.FirstOrder(optax.sgd(1e-4), max_iterations=5, batch=2))
    X, y = offset_and_slope(six.data)
    assert_allclose(result.train_loss, np.mean((y - X @ result.values) ** 2) / NOISE**2, rtol=1e-9)
    (said,) = [text for text in result.warnings if "has not converged" in text]
    assert "measurement.a would go on by about" in said
    assert not [text for text in identify.fit(six).warnings if "has not converged" in text]


def test_to_lose_trajectories_makes_no_fit_better():
    """Two of three contradict the first, and cannot be simulated beyond 0.5: without them the loss would be a hundredth."""
    ends = (1.0, 0.2, 0.0)
    random = np.random.default_rng(0)
    data = [trajectory(k, y=ends[k] + 0.01 * random.normal(size=12), q0=[float(k)], name=f"{k}") for k in range(3)]
    of = problem(data, lambda t, q, u, m: jnp.where((q > 0.5) & (m["a"] > 0.5), jnp.nan, m["a"]), {"a": 0.2})
    mean = np.mean([one.y for one in data])
    result = identify.fit(of, starts=np.array([[0.2], [0.45], [0.7]]))
    assert_allclose(result.values, mean, atol=1e-6)
    assert not result.failed and set(result.failures) == {"1", "2"}
    profile = identify.profile(result, "measurement.a", [0.3, 0.45, 0.6])
    assert np.isnan(profile.increase).tolist() == [False, False, True] and "at measurement.a = 0.6 trajectories fail" in profile.warnings[0]
    with pytest.raises(ValueError, match="no trajectory of those for validation could be simulated"):
        identify.fit(of.with_data(data), starts=np.array([[0.9]]), validation=["1", "2"])


def test_masked_arrays_and_dates_are_what_they_say():
    masked = np.ma.masked_array(T.copy(), np.arange(12) == 4)
    assert trajectory(0, y=masked).mask[:, 0].tolist() == [k != 4 for k in range(12)]
    for start, unit in (("2024-05-01T10:00:00", "ms"), ("2024-05-01T10:00:00", "ns")):
        dates = np.datetime64(start, unit) + np.array([0, 250, 1500]).astype("timedelta64[ms]")
        assert trajectory(0, t=dates, y=np.zeros(3)).t.tolist() == [0.0, 0.25, 1.5]
        earlier = trajectory(0, t=dates, y=np.zeros(3), t0=dates[0] - np.timedelta64(100, "ms"))
        assert_allclose([*earlier.t, earlier.t0], [0.0, 0.25, 1.5, -0.1])
    assert trajectory(0, t=np.array([0, 250, 1500]).astype("timedelta64[ms]"), y=np.zeros(3)).t.tolist() == [0.0, 0.25, 1.5]


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"y": ["a"] * 12}, "y must be an array of real numbers"),
        ({"y": 1j * T}, "y must be an array of real numbers"),
        ({"mask": np.full(12, np.nan)}, "mask must be booleans"),
        ({"mask": np.arange(12)}, "mask must be booleans"),
        ({"mask": [True, False]}, r"mask must be \(N,\) or \(N, m\)"),
        ({"t0": np.nan}, "t0 = nan must not be"),
        ({"t": None}, "t must be"),
    ],
    ids=str,
)
def test_data_of_the_wrong_kind_are_refused_in_a_sentence(changed, message):
    with pytest.raises(ValueError, match=message):
        trajectory(0, **changed)


def test_by_default_as_many_entries_of_the_state_are_compared_as_there_are_columns():
    """Heights alone: not heights and velocities, both with the heights."""
    of = identify.Problem(Rest(), trajectory(0, y=T), fit=["mass"], dt=0.05)
    assert of.k == 1


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"measure": lambda t, q, u, m: jnp.zeros(3)}, ValueError, r"must have the shape of y, \(2,\), got \(3,\)"),
        ({"measure": lambda t, q, u, m: m["a"]}, ValueError, r"must have the shape of y, \(2,\), got \(\)"),
        ({"when": lambda t, m: t[None]}, ValueError, "when.* must return one time"),
        ({"initial": lambda q0, u0: (q0, u0)}, TypeError, r"initial must take \(q0, u0, t, y, measurement\), got a function of \(q0, u0\)"),
        ({"initial": lambda q0, u0, t, y, m: (q0[0], u0)}, ValueError, "initial.* must return q0"),
        ({"robust": "soft_l1"}, TypeError, r"robust must be an identify.Robust\(...\), got 'soft_l1'"),
        ({"windows": 3}, TypeError, "windows must be an identify.Windows"),
        ({"free_state": 0.1}, TypeError, "free_state must be an identify.FreeState"),
        ({"free_state": identify.FreeState([0.1, 0.2], 0.0)}, ValueError, r"sigma_q must be a scalar or \(1,\)"),
        ({"fit": {"measurement.a": identify.Positive}}, TypeError, r"must be a value, write Positive\(...\)"),
        ({"first": {"a": np.nan, "b": 0.0}}, ValueError, "first guess of measurement.a must be finite"),
        ({"first": {"a": "x", "b": 0.0}}, TypeError, "first guess of measurement.a must be a number, or an array of numbers, got 'x'"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_makes_no_sense_is_said_in_a_sentence(options, error, message):
    with pytest.raises(error, match=message):
        problem(trajectory(0), **options)


@pytest.mark.parametrize("changed", [{"y": np.nan * T}, {"weights": 0 * T}, {"mask": T < 0}], ids=["NaN", "weights", "mask"])
def test_nothing_to_compare_with_is_said(changed):
    with pytest.raises(ValueError, match="there is nothing to compare with"):
        problem(one_column(0, **changed), lambda t, q, u, m: m["a"] + m["b"] * t + 0 * q)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: identify.Bounded(0.0, np.inf), "both finite"),
        (lambda: identify.Free(0.0), "scale must be positive"),
        (lambda: identify.Robust(scale="a"), "scale positive"),
        (lambda: identify.MultipleShooting(3, identify.FreeState(1.0, 1.0), 1e-3), "two positive standard deviations"),
        (lambda: identify.LevenbergMarquardt(max_iterations=0.5), "max_iterations must be a whole number"),
        (lambda: identify.LevenbergMarquardt(damping=-1.0), "damping must be a positive number"),
        (lambda: identify.FirstOrder(optax.sgd(0.1), batch=0), "batch must be a whole number"),
        (lambda: identify.Inertia().inverse(1e-9 * np.array([[2.0, 0.5, 0.0], [0.1, 2.0, 0.0], [0.0, 0.0, 2.0]])), "a symmetric one"),
    ],
)
def test_values_that_make_no_sense_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_arguments_of_a_fit_that_make_no_sense_are_refused(six, tmp_path):
    for options, error, message in (
        ({"starts": "a"}, ValueError, "starts must be how many"),
        ({"starts": 2, "spread": -1.0}, ValueError, "spread must be"),
        ({"patience": 0}, ValueError, "patience must be"),
        ({"validation": None}, TypeError, "validation must be a share"),
        ({"checkpoint": tmp_path / "nowhere" / "fit.npz"}, FileNotFoundError, "the directory .* does not exist"),
        ({"resume": 3}, TypeError, "resume must be a Result"),
        ({"solver": identify.LevenbergMarquardt}, TypeError, "not a class"),
    ):
        with pytest.raises(error, match=message):
            identify.fit(six, **options)
    with pytest.raises(TypeError, match=r"expected an identify\.Problem, got str"):
        identify.fit("six")
