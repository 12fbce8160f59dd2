"""Identification: known parameters come back from simulated data with the errors that it says, and what the data do not say it says."""

import copy
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.testing import assert_allclose

import jaxnsd
from jaxnsd import identify
from jaxnsd.models import Cube


@jaxnsd.system
class Ball(jaxnsd.System):
    """A ball above a floor on a weak vertical spring."""

    mass: float = 0.4
    stiffness: float = 8.0
    e_N: float = 0.7
    colour: float = 1.0  # of no effect

    def mass_matrix(self, t, q):
        return self.mass * jnp.eye(1)

    def potential_energy(self, t, q):
        return self.mass * 9.81 * q[0] + 0.5 * self.stiffness * q[0] ** 2

    def gap(self, t, q):
        return q


TRUTH = Ball()
NOISE = 2e-3
SCHEME = jaxnsd.LocatedImpacts(jaxnsd.MoreauJean())
DT = 4e-3
MEASUREMENT = {"scale": 1.05, "delay": 0.012}


def measure(t, q, u, m):
    """Height as a camera sees it."""
    return m["scale"] * q


def when(t, m):
    """When the camera saw it."""
    return t - m["delay"]


def thrown(height, t, of=TRUTH):
    """Exact heights at times t: from one impact to the next in closed form, of a harmonic oscillator about its rest below the floor."""
    omega = np.sqrt(of.stiffness / of.mass)
    rest = -of.mass * 9.81 / of.stiffness
    out, begin, x, v = np.empty_like(t), 0.0, height, 0.0
    for _ in range(40):
        a, b = x - rest, v / omega
        # a cos + b sin = R cos(omega s - phase) first comes down to -rest.
        R, phase = np.hypot(a, b), np.arctan2(b, a)
        s = (np.arccos(-rest / R) + phase) / omega
        inside = t >= begin
        out[inside] = rest + R * np.cos(omega * (t[inside] - begin) - phase)
        x, v, begin = 0.0, of.e_N * R * omega * np.sin(omega * s - phase), begin + s
    return out


def camera(seed, heights=(0.9, 1.1, 0.7), noise=NOISE):
    """Three throws of different length and rate, with gaps in the record."""
    random, out = np.random.default_rng(seed), []
    for k, height in enumerate(heights):
        t = 0.02 + np.arange(40 + 12 * k) * (0.015 + 0.002 * k)
        y = MEASUREMENT["scale"] * thrown(height, t - MEASUREMENT["delay"]) + noise * random.normal(size=len(t))
        y[7 + k] = np.nan
        y[20] += 5.0
        mask = np.arange(len(t)) != 20
        out.append(identify.Trajectory(t, y, [height], [0.0], t0=0.0, mask=mask, name=f"throw {k}"))
    return out


def problem(data, first=None, **options):
    first = Ball(mass=0.4, stiffness=12.0, e_N=0.5) if first is None else first
    options = {"fit": ["stiffness", "e_N", "measurement.scale", "measurement.delay"], "measurement": {"scale": 1.0, "delay": 0.0}} | options
    return identify.Problem(first, data, dt=DT, scheme=SCHEME, measure=measure, when=when, noise=NOISE, **options)


EXPECTED = {"stiffness": 8.0, "e_N": 0.7, "measurement.delay": 0.012, "measurement.scale": 1.05}


@pytest.fixture(scope="module")
def posed():
    """The problem of most tests, compiled once."""
    return problem(camera(0))


@pytest.fixture(scope="module")
def fitted(posed):
    return identify.fit(posed)


def test_a_motion_is_seen_at_any_time_also_beside_an_impact():
    """Between nodes, in steps with and without impacts: the exact motion and its derivatives by parameters, to second order in the step."""
    settings = identify.problem.Settings(SCHEME, DT, jaxnsd.SemismoothNewton(), "saltation")
    t = np.arange(1, 1000) * 1e-3 + 3e-5

    def seen(x):
        ball = dataclasses.replace(TRUTH, stiffness=x[0], e_N=x[1])
        path, outcome = identify.motion.nodes(settings, ball, 0.0, jnp.array([0.9]), jnp.zeros(1), 260, 1.0)
        q, u = identify.motion.at_times(jnp.asarray(t) - x[2], jnp.asarray(DT), path)
        return q[:, 0], (q[:, 0], u[:, 0], outcome)

    def exact(x):
        return thrown(0.9, t - x[2], dataclasses.replace(TRUTH, stiffness=x[0], e_N=x[1]))

    x = np.array([8.0, 0.7, 0.0])
    J, (q, u, outcome) = jax.jit(jax.jacfwd(seen, has_aux=True))(jnp.asarray(x))
    assert outcome == 0
    # A chord across an impact would be off by up to DT / 4 times the jump of the velocity: by 1e-2.
    assert_allclose(q, exact(x), atol=2 * 9.81 * DT**2 / 2)
    h = 1e-5
    later = np.array([0, 0, h])
    rate = (exact(x - later) - exact(x + later)) / (2 * h)
    beside = np.abs(exact(x)) < 1e-3
    assert np.max(np.abs(u - rate)[~beside]) < 2 * 14 * DT
    for column, change in enumerate(np.diag([1e-5, 1e-6, 1e-6])):
        found = (exact(x + change) - exact(x - change)) / (2 * change[column])
        assert_allclose(J[~beside, column], found[~beside], atol=1.5 * DT * np.max(np.abs(found)))


def test_parameters_delay_and_scale_come_back_within_their_errors(fitted):
    assert fitted.labels == list(EXPECTED)
    z = (fitted.values - list(EXPECTED.values())) / fitted.standard_errors
    assert np.max(np.abs(z)) < 3.5
    assert np.all(fitted.standard_errors < 0.02 * np.abs(fitted.values) + 1e-3)
    assert abs(fitted.noise_scale - 1) < 0.2
    assert not fitted.warnings and not fitted.failed
    assert isinstance(fitted.system, Ball) and abs(fitted.system.e_N - 0.7) < 0.01
    assert_allclose(fitted.intervals.mean(1), fitted.values, rtol=1e-2)
    assert_allclose(np.diag(fitted.correlation), 1)
    assert_allclose(fitted.rms(), 1, atol=0.4)
    wide = dataclasses.replace(fitted, covariance_by_trajectory=25 * fitted.covariance)
    assert "up to 5 times as large" in wide.warnings[0] and "covariance_by_trajectory" in str(wide)


def test_report_and_words(fitted, tmp_path):
    fitted.report(tmp_path / "report.png", "a ball")
    assert (tmp_path / "report.png").read_bytes()[:4] == b"\x89PNG"
    for word in ("stiffness", "95 % interval", "3 trajectories"):
        assert word in str(fitted)
    # Columns end below each other, however long the names are.
    labels, values = ["stiffness_of_the_spring_in_the_hip", "e_N"], np.array([[0.5, 1.0], [0.6, 2.0]])
    table = str(identify.Bootstrap(tuple(labels), values, values[0])).splitlines()
    head, *rows = [line[: line.index("  ", 45)] for line in table[:3]]
    assert head.endswith("estimate") and all(len(row) == len(head) for row in rows)
    fitted.report(tmp_path / "report.html", "a <ball>")
    page = (tmp_path / "report.html").read_text()
    # Numbers stand below each other in a browser, too, which draws several spaces as one.
    assert "standard\N{NO-BREAK SPACE}error\N{NO-BREAK SPACE}\N{NO-BREAK SPACE}" in page
    assert "<title>a &lt;ball&gt;</title>" in page and "stiffness" in page and "throw 1" in page and "http-equiv" not in page
    fitted.report(tmp_path / "plain.html")
    assert "Delta t = 0.0" in (tmp_path / "plain.html").read_text().split("</title>")[0]
    with pytest.raises(ValueError, match=r"must end in .png, .pdf, .svg or .html, got '.*report.docx'"):
        fitted.report(tmp_path / "report.docx")
    with pytest.raises(ValueError, match="does not exist, make it first"):
        fitted.report(tmp_path / "nowhere" / "report.png")


def test_a_problem_says_what_it_is(posed):
    frames = sum(len(part.t) for part in posed.data)
    assert f"3 trajectories of {frames} frames with 1 column, fit: " in repr(posed) and "e_N" in repr(posed) and len(repr(posed)) < 250


def test_columns_are_named(posed):
    assert posed.columns == ("$y_{0}$",)
    assert problem(camera(0), columns="height in m").columns == ("height in m",)
    with pytest.raises(ValueError, match=r"columns must be 1 strings, one for each column of y, got \('a', 'b'\)"):
        problem(camera(0), columns=("a", "b"))


def test_profile_agrees_with_the_interval_where_the_loss_is_a_parabola(fitted):
    profile = identify.profile(fitted, "e_N", 5)
    assert_allclose(profile.interval, fitted.intervals[1], atol=0.1 * fitted.standard_errors[1] * 4)
    assert not profile.warnings
    with pytest.raises(ValueError, match="'colour' is not a number that was fitted"):
        identify.profile(fitted, "colour")
    # From beside the best, a profile finds it, and says so; its interval is about it.
    k = 1
    z = fitted.z.copy()
    z[k] += 2 * (fitted.problem.unknowns.list[k].transform.inverse(fitted.intervals[k, 1])[0] - z[k])
    beside = identify.profile(
        dataclasses.replace(fitted, z=z), "e_N", fitted.values[k] + 2.5 * fitted.standard_errors[k] * np.linspace(-1, 1, 6)
    )
    assert "the loss is lower than that of the result" in beside.warnings[0] and np.min(beside.increase) == 0
    assert_allclose(beside.interval, fitted.intervals[k], atol=0.1 * fitted.standard_errors[k] * 4)


def test_validation_checkpoint_and_resume(posed, tmp_path):
    file = tmp_path / "fit.npz"
    short = identify.LevenbergMarquardt(max_iterations=2)
    of = posed
    first = identify.fit(of, short, validation=["throw 1"], checkpoint=file)
    assert first.training.tolist() == [True, False, True]
    for resume in (first, file):
        result = identify.fit(of, validation=["throw 1"], resume=resume)
        assert result.train_loss < first.train_loss and abs(result.validation_loss - 1) < 0.5
        assert_allclose(result.values, list(EXPECTED.values()), rtol=0.02, atol=1e-3)
    with pytest.raises(ValueError, match="there is no trajectory 'throw 7'"):
        identify.fit(of, validation=["throw 7"])


def test_an_interrupted_fit_keeps_its_best_iterate(posed, monkeypatch):
    of, calls = posed, []
    evaluate = identify.evaluate.Evaluator.linearized

    def interrupted(self, *args):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return evaluate(self, *args)

    monkeypatch.setattr(identify.evaluate.Evaluator, "linearized", interrupted)
    result = identify.fit(of)
    assert result.interrupted and "resume" in result.message
    assert result.train_loss == min(loss for loss, _ in result.history[0]) < result.history[0][0][0]
    on = identify.fit(of, resume=result)
    assert not on.interrupted and on.train_loss < 1.5


def test_words_for_what_the_data_do_not_say(posed):
    """From matrices that are known: no effect, one combination, hardly determined."""
    S = np.diag([1e4, 4.0, 0.0, 1e4])
    found = identify.uncertainty.of(posed, posed.unknowns.first(), S, 100.0, 103)
    assert abs(found.scale - 1) < 1e-12  # 103 residuals, 3 unknowns that they determine
    # In logits: e_N moves by 1/4 of its z.
    assert_allclose(found.standard_errors[:2], [12.0 / 100, 0.25 / 2], rtol=1e-6)
    assert "measurement.delay has no effect on what was measured" in found.warnings[0]
    assert np.isinf(found.standard_errors[2]) and np.isfinite(found.standard_errors[[0, 1, 3]]).all()
    blind = copy.copy(posed)
    blind.settings = dataclasses.replace(posed.settings, scheme=jaxnsd.Moreau(), sensitivity="discrete")
    said = identify.uncertainty.of(blind, posed.unknowns.first(), S, 100.0, 104).warnings[0]
    assert "does not see times of impacts" in said and "has no effect" not in said
    tied = 1e4 * np.array([[1, -1, 0, 0], [-1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1.0]])
    found = identify.uncertainty.of(posed, posed.unknowns.first(), tied, 100.0, 104)
    assert "do not determine one combination" in found.warnings[0]
    assert np.isinf(found.standard_errors[:2]).all() and np.isfinite(found.standard_errors[2:]).all()


def test_what_has_no_effect_holds_nothing_up(posed):
    """A column of round-off, as that of the mass of a ball in free fall: the bound on a step is for the others."""
    H, g = np.diag([1e4, 4.0, 1e-26, 1e4]), np.array([-1e2, 1.0, 1e-12, 0.0])
    equations = identify.normal.NormalEquations(posed, {"H": H[None], "g": g[None]}, np.arange(1), np.ones(1, bool))
    for fixed, expected in ((None, [1e-2, -0.25, 0, 0]), (np.array([True, False, False, False]), [0, -0.25, 0, 0])):
        assert_allclose(equations.step(0.0, fixed, 1.0)[0], expected, rtol=1e-12, atol=1e-15)


def test_local_unknowns_of_very_different_sizes_are_told_apart():
    """One that is seen to 1e-9 beside one that is seen to 0.1, and one without an effect: by Cramer's rule."""
    C, B = np.array([[1e18, 4e9, 0], [4e9, 101.0, 0], [0, 0, 0]]), np.array([2e8, 5.0, 0])
    determinant = 1e18 * 101 - 4e9**2
    expected = [(2e8 * 101 - 4e9 * 5) / determinant, (1e18 * 5 - 4e9 * 2e8) / determinant, 0]
    assert_allclose(identify.normal.solved(C, B[:, None])[:, 0], expected, rtol=1e-12)


@pytest.mark.slow
def test_what_has_no_effect_is_said():
    of = problem(camera(0), fit=["mass", "stiffness", "e_N", "colour", "measurement.scale", "measurement.delay"])
    result = identify.fit(of)
    text = " ".join(result.warnings)
    assert "colour has no effect on what was measured" in text
    # Only their ratio moves the ball.
    assert "one combination" in text and "mass" in text and "stiffness" in text
    errors = dict(zip(result.labels, result.standard_errors, strict=True))
    assert np.isinf([errors[name] for name in ("colour", "mass", "stiffness")]).all()
    assert np.isfinite(errors["e_N"]) and abs(result.estimate["e_N"] - 0.7) < 4 * errors["e_N"]
    assert_allclose(result.estimate["stiffness"] / result.estimate["mass"], 20.0, rtol=0.02)


@pytest.mark.slow
def test_free_initial_states_and_robust_loss():
    """First guesses of the heights are wrong by 3 cm, and one frame of each throw by 5 m: 2500 times the noise."""
    data = [dataclasses.replace(one, q0=one.q0 + 0.03 * (k - 1), mask=None) for k, one in enumerate(camera(0))]
    # The camera is known here: heights that are free would take up its delay, and be no longer those from which the balls fell.
    options = {"measurement": MEASUREMENT, "free_state": identify.FreeState([0.1], [0.0]), "robust": identify.Robust("soft_l1", 3.0)}
    result = identify.fit(problem(data, fit=["stiffness", "e_N"], **options))
    assert np.all(np.abs(result.values - [8.0, 0.7]) < 4 * result.standard_errors) and np.all(result.standard_errors < [0.05, 1e-3])
    starts = np.array([q0[0] for q0, _ in result.initial_states])
    assert_allclose(starts, [0.9, 1.1, 0.7], atol=1.5 * NOISE)


@pytest.mark.slow
def test_windows_and_optax():
    t = np.arange(0, 1.2, 0.02)
    heights = thrown(0.9, t)
    rate = (thrown(0.9, t + 1e-6) - thrown(0.9, t - 1e-6)) / 2e-6
    one = identify.Trajectory(t, heights, q=heights[:, None], u=rate[:, None], name="all of it")
    options = {"fit": {"e_N": identify.Bounded(0.0, 1.0)}, "windows": identify.Windows(10)}
    of = identify.Problem(dataclasses.replace(TRUTH, e_N=0.5), one, dt=DT, scheme=SCHEME, measure=lambda t, q, u, m: q, **options)
    assert abs(identify.fit(of).estimate["e_N"] - 0.7) < 1e-3
    by_adam = identify.fit(of, identify.FirstOrder(optax.adam(0.1), max_iterations=60))
    assert abs(by_adam.estimate["e_N"] - 0.7) < 1e-2


@pytest.mark.slow
def test_multiple_shooting_joins_its_windows():
    t = np.arange(0, 1.0, 0.02)
    random = np.random.default_rng(3)
    heights = thrown(0.9, t)
    rate = (thrown(0.9, t + 1e-6) - thrown(0.9, t - 1e-6)) / 2e-6
    measured = heights + NOISE * random.normal(size=len(t))
    one = identify.Trajectory(t, measured, q=measured[:, None], u=(rate + 0.1 * random.normal(size=len(t)))[:, None])

    def joined(sigma):
        return identify.Problem(
            dataclasses.replace(TRUTH, e_N=0.4, stiffness=12.0), one, fit=["e_N", "stiffness"], dt=DT, scheme=SCHEME, noise=NOISE,
            measure=lambda t, q, u, m: q, windows=identify.MultipleShooting(12, identify.FreeState(sigma, 0.1), (1e-4, 1e-3)),
        )  # fmt: skip

    with pytest.warns(UserWarning, match=r"the measured q\[0\], which is compared as column 0 of y too: .* counts twice"):
        joined(NOISE)
    result = identify.fit(joined(10 * NOISE))
    assert np.all(np.abs(result.values - [8.0, 0.7]) < 4 * result.standard_errors)
    assert np.all(result.standard_errors < [0.5, 0.02])


@pytest.mark.slow
def test_the_side_of_a_cube_is_found_from_far_away():
    """From 0.6 and 1.4 times the side, through impacts that at first are in other places: to 1 %, from whole tosses.

    They are simulated with the step and the scheme of the fit: what is looked at is whether the fit gets there.
    """
    random, truth, scheme = np.random.default_rng(0), Cube(side=0.1, e_N=0.3), jaxnsd.Moreau()
    q0, u0 = truth.initial_state()
    spins = np.asarray(u0) + np.concatenate([np.zeros((6, 3)), 3 * random.normal(size=(6, 3))], axis=1)
    runs = jax.vmap(lambda u: jaxnsd.simulate(truth, scheme, q0, u, n_steps=400, dt=1e-3, save_every=10))(jnp.asarray(spins))
    assert bool(jnp.all(runs.success)) and int(jnp.min(runs.count(jaxnsd.Event.IMPACT))) >= 2
    seen = np.asarray(runs.q) + np.array([1e-3] * 3 + [5e-3] * 4) * random.normal(size=runs.q.shape)
    data = [identify.Trajectory(runs.t[k], seen[k], q0, spins[k], name=f"toss {k}") for k in range(6)]
    noise = [1e-3] * 3 + [5e-3] * 4
    of = identify.Problem(truth, data, fit=["side"], dt=1e-3, scheme=scheme, measure=lambda t, q, u, m: q, noise=noise)
    for factor in (0.6, 1.4):
        result = identify.fit(of.with_data(data, dataclasses.replace(truth, side=factor * 0.1)))
        assert abs(result.estimate["side"] - 0.1) < 1e-3, (factor, result)
        assert not result.failed and result.noise_scale < 1.3


@pytest.mark.slow
def test_a_trajectory_that_fails_is_left_out_and_named(posed):
    data = camera(0)
    bad = identify.Trajectory(data[0].t, data[0].y, [1e200], [1e200], t0=0.0, name="broken")
    result = identify.fit(posed.with_data([*data, bad]))
    assert result.failed == ["broken"] and result.failures["broken"] >= 1
    assert_allclose(result.values, list(EXPECTED.values()), rtol=0.02, atol=1e-3)
    with pytest.raises(ValueError, match="no trajectory could be simulated from the first guess"):
        identify.fit(posed.with_data(bad))


def test_memory_does_not_grow_with_the_number_of_trajectories(posed):
    """What is computed at a time is a chunk of fixed size."""
    many = [dataclasses.replace(one, name=f"{one.name}, {i}") for i in range(30) for one in camera(0)]
    evaluator = identify.evaluate.Evaluator(posed.with_data(many))
    assert evaluator.chunk * evaluator.problem.n_steps <= identify.evaluate.STEPS


@pytest.mark.parametrize(
    "kind, over, outliers", [("soft_l1", "entry", 0), ("soft_l1", "entry", 3), ("cauchy", "entry", 3), ("cauchy", "frame", 3)]
)
def test_standard_errors_of_a_robust_mean_are_its_scatter(kind, over, outliers):
    """Means of 60 samples of two numbers, a few frames 1000 times off, to either side: 2000 repetitions against the formula."""
    robust, random, n = identify.Robust(kind, 1.5, over), np.random.default_rng(0), 60
    y = random.normal(size=(2000, n, 2))
    y[:, :outliers] += 1000 * random.choice([-1, 1], size=(2000, outliers, 2))

    def located(y):
        """By iterated weights from the median."""
        off = lambda mean: y - mean[None]  # noqa: E731
        weights = lambda mean: robust.cost_and_weights(off(mean))[1]  # noqa: E731
        mean = jax.lax.fori_loop(0, 50, lambda _, m: jnp.sum(weights(m) * y, 0) / jnp.sum(weights(m), 0), jnp.median(y, axis=0))
        squares, factor = robust.scatter(off(mean), jnp.ones((n, 2), bool))
        return mean, squares * factor / (2 * n - 2) / jnp.sum(weights(mean), 0)

    means, variances = jax.jit(jax.vmap(located))(y)
    assert_allclose(np.mean(variances), np.var(means), rtol=0.1)


INERTIA = np.array([[2.0, 0.1, -0.2], [0.1, 1.5, 0.3], [-0.2, 0.3, 1.0]])


@pytest.mark.parametrize(
    "transform, value",
    [
        (identify.Free(3.0), np.array([-1.0, 2.0])),
        (identify.Positive(), np.array(0.2)),
        (identify.Bounded(-1.0, 3.0), np.array([[0.5, 2.9]])),
        (identify.Inertia(), np.array([1.0, 1.5, 2.0])),
        (identify.Inertia(), INERTIA),
        (identify.PseudoInertia(), np.asarray(identify.pseudo_inertia(0.5, np.array([0.1, 0.2, -0.1]), INERTIA))),
    ],
    ids=lambda x: type(x).__name__,
)
def test_transforms_are_inverse_and_keep_their_bounds(transform, value):
    z = transform.inverse(value)
    assert_allclose(transform(jnp.asarray(z), value.shape), value, rtol=1e-12)
    for seed in range(20):
        other = np.asarray(transform(jnp.asarray(z + 2 * np.random.default_rng(seed).normal(size=z.shape)), value.shape))
        if isinstance(transform, identify.Positive):
            assert np.all(other > 0)
        if isinstance(transform, identify.Bounded):
            assert np.all((other > -1) & (other < 3))
        if isinstance(transform, identify.Inertia):
            moments = other if other.ndim == 1 else np.linalg.eigvalsh(other)
            assert moments.sum() > 2 * moments.max()
        if isinstance(transform, identify.PseudoInertia):
            mass, centre, inertia = map(np.asarray, identify.inertia_of(other))
            about_centre = inertia - mass * (centre @ centre * np.eye(3) - np.outer(centre, centre))
            assert mass > 0 and np.sum(moments := np.linalg.eigvalsh(about_centre)) > 2 * moments.max()


def test_unknowns_by_name_function_and_mask():
    by_name = identify.unknowns.Unknowns(TRUTH, ["e_N", "mass"])
    by_function = identify.unknowns.Unknowns(TRUTH, lambda ball: (ball.mass, ball.e_N))
    by_mask = identify.unknowns.Unknowns(TRUTH, Ball(mass=True, stiffness=False, e_N=identify.Bounded(), colour=False))
    for unknowns in (by_name, by_function, by_mask):
        assert unknowns.labels == ["mass", "e_N"]
        assert_allclose(unknowns.flat(unknowns.first()), [0.4, 0.7], rtol=1e-12)
        assert unknowns.tree(unknowns.first() + 1).mass > 1.0


GOOD = {"t": [0.0, 1.0], "y": [[1.0], [2.0]], "q0": [1.0], "u0": [0.0]}


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"t": [1.0, 0.0]}, "must be finite and increase"),
        ({"y": [[1.0]]}, "t must be"),
        ({"q0": None}, "q0 is missing"),
        ({"mask": [True] * 3}, "mask must be"),
        ({"weights": [-1.0, 1.0]}, "not negative"),
        ({"t0": 0.5}, "must not be after the first frame"),
    ],
    ids=str,
)
def test_data_that_make_no_sense_are_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        identify.Trajectory(**GOOD | changed)


def test_seeds_and_checkpoints_that_make_no_sense_are_refused(tmp_path):
    """Before anything is computed."""
    posed = identify.Problem(TRUTH, identify.Trajectory(**GOOD), fit=["e_N"], dt=DT, measure=lambda t, q, u, m: q)
    for seed in ("a", -1, 1.5, True, None):
        with pytest.raises(ValueError, match=r"identify\.fit: seed must be a whole number, zero or more, got"):
            identify.fit(posed, seed=seed)
        with pytest.raises(ValueError, match="FirstOrder: seed must be a whole number"):
            identify.FirstOrder(optax.adam(0.1), seed=seed)
    with pytest.raises(IsADirectoryError, match=r"identify.fit: checkpoint: .* is a directory; give the name of a file in it"):
        identify.fit(posed, checkpoint=tmp_path)
    with pytest.raises(FileNotFoundError, match=r"checkpoint: the directory .*nowhere' does not exist"):
        identify.fit(posed, checkpoint=tmp_path / "nowhere" / "a.npz")


def test_problems_that_make_no_sense_are_refused():
    one = identify.Trajectory(**GOOD)
    for options, message in (
        ({"fit": ["e_n"]}, "did you mean e_N"),
        ({"fit": {"e_N": identify.Bounded(0.8, 0.9)}}, "first guess of e_N"),
        ({"dt": 0.0}, "dt must be a positive number"),
        ({"noise": -1.0}, "noise must be positive"),
        ({"windows": identify.OneStep()}, "needs q and u"),
    ):
        arguments = {"fit": ["e_N"], "dt": DT, "measure": lambda t, q, u, m: q} | options
        with pytest.raises(ValueError, match=message):
            identify.Problem(TRUTH, one, **arguments)
    with pytest.raises(TypeError, match="data must be"):
        identify.Problem(TRUTH, [1.0], fit=["e_N"], dt=DT)


@jaxnsd.system
class Puck(jaxnsd.System):
    """A mass point that is thrown onto a floor. It sticks at an impact where mu (1 + e) times its fall is more than its slip."""

    mu: float = 0.1
    weight: float = 1.0
    e_N: float = 0.5

    def kinetic_energy(self, t, q, u):
        return 0.5 * u @ u

    def potential_energy(self, t, q):
        return 9.81 * q[1]

    def gap(self, t, q):
        return q[1:]

    def tangential_velocity(self, t, q, u):
        return u[None, :1]


@pytest.mark.slow
def test_a_start_from_which_no_derivative_leads_away():
    """Friction that sticks at every impact may be any: the fit looks further, finds the true one, and says that the start matters."""
    t, T = np.linspace(0.0, 0.5, 26), np.sqrt(2 * 0.5 / 9.81)  # one impact, at T = 0.32 s
    slip = 3.0 - 0.1 * 1.5 * 9.81 * T
    y = np.where(t < T, 3.0 * t, 3.0 * T + slip * (t - T)) + 1e-3 * np.random.default_rng(0).normal(size=t.size)
    data = identify.Trajectory(t, y, [0.0, 0.5], [3.0, 0.0])

    def posed(fit, **parameters):
        options = {"measure": lambda t, q, u, m: q[:1], "noise": 1e-3, "dt": 0.01}
        return identify.Problem(Puck(**parameters), data, fit=fit, scheme=jaxnsd.LocatedImpacts(jaxnsd.MoreauJean()), **options)

    found = identify.fit(posed(["mu"], mu=1.0))
    error = 1e-3 / np.sqrt(np.sum((1.5 * 9.81 * T * np.maximum(t - T, 0)) ** 2))
    assert abs(found.estimate["mu"] - 0.1) < 4 * error
    np.testing.assert_allclose(found.standard_errors, error, rtol=0.5)
    assert any("at the first guess mu had no effect on what was measured, elsewhere" in text for text in found.warnings)
    assert any("the start matters" in text for text in found.warnings) and len(found.history) == 2
    # What has an effect from the start on needs no second one, and what has none anywhere gets none.
    assert len(identify.fit(posed(["mu"], mu=0.15)).history) == 1
    idle = identify.fit(posed(["weight"], weight=1.0))
    assert len(idle.history) == 1 and any(
        "weight has no effect on what was measured: the data say nothing" in text for text in idle.warnings
    )
    assert any(
        "times the noise that was given: a fit from other starts" in text for text in identify.fit(posed(["weight"], mu=0.2)).warnings
    )


def test_trajectory_from_xarray():
    xarray = pytest.importorskip("xarray")
    dataset = xarray.Dataset({"x": ("t", [1.0, np.nan]), "v": ("t", [3.0, 4.0])}, coords={"t": [0.0, 0.5]})
    one = identify.Trajectory.from_xarray(dataset, ["x", "v"], q="v", u="v", q0=[0.0], u0=[0.0])
    assert one.y.shape == (2, 2) and one.mask.tolist() == [[True, True], [False, True]]
    with pytest.raises(ValueError, match="the dataset has no w"):
        identify.Trajectory.from_xarray(dataset, "w", q0=[0.0], u0=[0.0])


@pytest.mark.slow
def test_intervals_cover_the_truth_in_95_of_100_repetitions(posed):
    """Of 500 repetitions; the share has a standard error of 1 %, of which three are allowed."""
    inside, truth = [], np.array(list(EXPECTED.values()))
    for seed in range(500):
        result = identify.fit(posed.with_data(camera(seed)))
        inside.append((result.intervals[:, 0] < truth) & (truth < result.intervals[:, 1]))
    cover = np.mean(inside, axis=0)
    assert np.all((cover >= 0.92) & (cover <= 0.98)), dict(zip(EXPECTED, cover, strict=True))
