"""Posterior: draws against posteriors that are known, in closed form or by quadrature, and words on what cannot be trusted."""

import dataclasses
import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import jaxnsd
from jaxnsd import identify
from jaxnsd.identify import convergence
from jaxnsd.programs import progress

pytest.importorskip("blackjax")

#: The module, whose name the function has.
sampler = importlib.import_module("jaxnsd.identify.posterior")

SCHEME = jaxnsd.LocatedImpacts(jaxnsd.MoreauJean())
DT = 0.05


@jaxnsd.system
class Ball(jaxnsd.System):
    """A ball above a floor."""

    gravity: float = 9.81
    e_N: float = 0.8
    colour: float = 1.0  # of no effect

    def mass_matrix(self, t, q):
        return jnp.eye(1)

    def potential_energy(self, t, q):
        return self.gravity * q[0]

    def gap(self, t, q):
        return q


def problem(data, fit, **options):
    return identify.Problem(Ball(), data, fit=fit, dt=DT, scheme=SCHEME, measure=lambda t, q, u, m: q if m is None else q + m, **options)


HEIGHT, NOISE, SIGMA = 40.0, 0.3, 0.5
FLIGHT = np.arange(2, 22, 2) * DT


@pytest.fixture(scope="module")
def flight():
    """Of a ball in flight, known to be at its start within SIGMA, by a camera of unknown offset; and a throw that cannot be simulated."""
    y = HEIGHT + 0.4 - 9.81 * FLIGHT**2 / 2 + NOISE * np.random.default_rng(0).normal(size=FLIGHT.size)
    data = [
        identify.Trajectory(FLIGHT, y, [HEIGHT], [0.0], t0=0.0, name="flight"),
        identify.Trajectory(FLIGHT, y, [1e200], [1e200], t0=0.0, name="broken"),
    ]
    free = identify.FreeState([SIGMA], [0.0])
    return y, identify.fit(problem(data, ["gravity", "measurement"], measurement=0.0, free_state=free, noise=NOISE))


def agrees(posterior, samples, mean, sd):
    """Means and standard deviations of samples, within four of their own standard errors."""
    n = min(posterior.effective.min(), posterior.effective_tail.min())
    assert np.all(np.abs(np.mean(samples, axis=0) - mean) < 4 * sd / np.sqrt(n))
    assert np.all(np.abs(np.std(samples, axis=0) - sd) < 4 * sd / np.sqrt(n))


def gaussian(y, prior=(), wanted=()):
    """Mean and covariance of (gravity, offset, initial displacement in SIGMA)."""
    rows = np.stack([-(FLIGHT**2) / 2, np.ones_like(FLIGHT), SIGMA * np.ones_like(FLIGHT)], axis=1) / NOISE
    A = np.concatenate([rows, [[0, 0, 1]], np.reshape(prior, (-1, 3))])
    covariance = np.linalg.inv(A.T @ A)
    return covariance @ A.T @ np.concatenate([(y - HEIGHT) / NOISE, [0], wanted]), covariance


@pytest.mark.slow
def test_of_a_linear_problem_it_is_the_gaussian(flight):
    y, result = flight
    posterior = identify.posterior(result, noise_scale=1.0, draws=400, warmup=150)
    mean, covariance = gaussian(y)
    draws = np.concatenate([posterior.samples, posterior.local[:, :, 0, :1]], axis=2).reshape(-1, 3)
    agrees(posterior, draws, mean, np.sqrt(np.diag(covariance)))
    correlation = covariance / np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)))
    assert_allclose(np.corrcoef(draws.T), correlation, atol=0.1)
    assert correlation[1, 2] < -0.9  # an offset is told from a displacement by the prior alone
    assert np.all(posterior.r_hat < 1.01) and not posterior.divergent.any() and posterior.effective.min() > 500
    assert_allclose(posterior.covariance, covariance[:2, :2], rtol=0.3)
    # What failed has no part: its local unknowns stay where they were.
    assert posterior.warnings == ("failed at the estimate, and left out: broken",)
    assert np.ptp(posterior.local[:, :, 1]) == 0

    text, names = str(posterior), ("gravity", "R-hat", "4 chains of 400 draws", "warning: failed at the estimate")
    assert all(name in text for name in names) and repr(posterior) == text
    assert_allclose(posterior.quantiles([0.5])[:, 0], mean[:2], atol=0.2)
    xarray = pytest.importorskip("xarray")
    dataset = posterior.dataset()
    assert isinstance(dataset, xarray.Dataset) and dataset["gravity"].dims == ("chain", "draw") and dataset.sizes["draw"] == 400


@pytest.mark.slow
def test_a_prior_and_where_it_is_zero(flight):
    """Gaussian in both parameters, as if each had been measured once more; and cut off, so that no draw lies beyond."""
    y, result = flight
    widths = np.array([0.2, 0.1])

    def prior(x):
        return -0.5 * ((x["gravity"] - 9.0) / widths[0]) ** 2 - 0.5 * (x["measurement"] / widths[1]) ** 2

    mean, covariance = gaussian(y, np.eye(2, 3) / widths[:, None], [9.0 / widths[0], 0])
    posterior = identify.posterior(result, prior=prior, noise_scale=1.0)
    agrees(posterior, posterior.samples.reshape(-1, 2), mean[:2], np.sqrt(np.diag(covariance))[:2])

    edge = float(result.estimate["gravity"]) + 0.1
    cut = identify.posterior(result, prior=lambda x: jnp.where(x["gravity"] > edge, -jnp.inf, 0.0), noise_scale=1.0)
    assert np.max(cut.values["gravity"]) <= edge and any("paths diverged" in text for text in cut.warnings)
    mean, covariance = gaussian(y)
    sd = np.sqrt(covariance[0, 0])
    x = np.linspace(mean[0] - 8 * sd, edge, 10001)
    density = np.exp(-0.5 * ((x - mean[0]) / sd) ** 2)
    expected = np.sum(x * density) / density.sum()
    assert abs(cut.mean[0] - expected) < 4 * sd / np.sqrt(cut.effective[0])


def bounced(e_N, t, height=1.0, gravity=9.81):
    """Exact heights (..., times) of a ball that falls from a height, for coefficients e_N (...)."""
    e_N = np.asarray(e_N)[..., None]
    begin, v = np.sqrt(2 * height / gravity) * np.ones_like(e_N), np.sqrt(2 * gravity * height) * e_N
    x = height - gravity * t**2 / 2 + 0 * e_N
    for _ in range(12):
        s = t - begin
        x = np.where(s >= 0, v * s - gravity * s**2 / 2, x)
        begin, v = begin + 2 * v / gravity, e_N * v
    return x


BOUNCES = np.arange(0.1, 1.25, 0.2)


@pytest.mark.slow
@pytest.mark.parametrize("e_N", [0.75, 0.995])
def test_of_a_bouncing_ball_it_is_that_of_quadrature(e_N):
    """Few data of much noise: a skew posterior of the restitution, or one that piles up at its bound; flat of what has no effect."""
    noise = 0.12
    y = bounced(e_N, BOUNCES) + noise * np.random.default_rng(1).normal(size=BOUNCES.size)
    data = identify.Trajectory(BOUNCES, y, [1.0], [0.0], t0=0.0)
    result = identify.fit(problem(data, {"e_N": None, "colour": identify.Bounded(0.5, 2.5)}, noise=noise))
    posterior = identify.posterior(result, noise_scale=1.0)
    x = np.linspace(0, 1, 20001)[1:-1]
    log_likelihood = -0.5 * np.sum((bounced(x, BOUNCES) - y) ** 2, axis=1) / noise**2
    density = np.exp(log_likelihood - log_likelihood.max())
    density /= density.sum()
    below = np.cumsum(density)
    draws = posterior.values["e_N"].ravel()
    n = min(posterior.effective.min(), posterior.effective_tail.min())
    assert n > 300 and np.all(posterior.r_hat < 1.02)
    for level in (0.025, 0.16, 0.5, 0.84, 0.975):
        found = np.mean(draws < x[np.searchsorted(below, level)])
        assert abs(found - level) < 4 * np.sqrt(level * (1 - level) / n), (level, found)
    colour = posterior.values["colour"].ravel()
    for level in (0.1, 0.5, 0.9):
        assert abs(np.mean(colour < 0.5 + 2 * level) - level) < 4 * np.sqrt(level * (1 - level) / n)


def normal(w):
    """Logarithm of the density of independent normal numbers, the second ten times as wide."""
    return -0.5 * jnp.sum((w / jnp.array([1.0, 10.0])) ** 2)


def walked(lockstep, draws, bar, fast=50):
    """Draws of `normal`, two chains."""
    first, step = sampler._sampler(normal, 0.8)
    starts = jnp.array([[3.0, 5.0], [-3.0, 5.0]])
    chains = jax.vmap(first)(starts, jax.vmap(normal)(starts), jax.vmap(jax.grad(normal))(starts))
    phases = [sampler.FAST] * 50 + ([sampler.SLOW] * 99 + [sampler.LAST]) + [sampler.FAST] * fast + [sampler.DRAW] * draws
    with jax.numpy_rank_promotion("allow"):
        return sampler._walked(step, jax.random.split(jax.random.key(0), 2), chains, phases, lockstep, bar)


@pytest.mark.parametrize("lockstep", [False, True])
def test_chains_in_threads_and_in_lockstep(lockstep):
    (w, values, divergent, steps, sizes), interrupted = walked(lockstep, 600, progress.NoBar())
    assert w.shape == (2, 600, 2) and values.shape == divergent.shape == steps.shape == sizes.shape == (2, 600)
    assert not interrupted and not divergent.any() and np.all(sizes[:, :1] == sizes) and np.mean(steps) < 8
    assert_allclose(w.std((0, 1)), [1, 10], rtol=0.15)
    assert np.all(np.abs(w.mean((0, 1))) < [0.2, 2])
    assert_allclose(values, jax.vmap(jax.vmap(normal))(w), rtol=1e-6, atol=1e-12)
    assert np.ptp(w[:, -1, 0]) > 0  # chains have random numbers of their own


def test_an_interrupted_run_gives_the_draws_that_there_are():
    class Bar(progress.NoBar):
        def update(self, n=1):
            super().update(n)
            if self.n > limit and not self.came:
                self.came = True
                raise KeyboardInterrupt

        came = False

    limit = 300
    (w, *_), interrupted = walked(False, 1_000_000, Bar())
    assert interrupted and 100 <= w.shape[1] < 900_000 and np.all(np.isfinite(w))
    limit = -1
    with pytest.raises(KeyboardInterrupt):
        walked(False, 100, Bar(), fast=1_000_000)  # in the warm-up


@pytest.mark.slow
def test_convergence_is_that_of_blackjax():
    """Of chains with memory, one of which is off, or wider, or neither; and of steps, which have ties."""
    from blackjax import ess_bulk, ess_tail, rhat

    x = np.random.default_rng(0).normal(size=(4, 501, 4))
    for k in range(1, 501):
        x[:, k] += [0.0, 0.9, 0.5, -0.5] * x[:, k - 1]
    x[1, :, 1] += 1
    x[2, :, 2] *= 3
    x[..., 3] = np.round(x[..., 3])
    for ours, theirs in ((convergence.r_hat, rhat), (convergence.effective, ess_bulk), (convergence.effective_tail, ess_tail)):
        with jax.numpy_rank_promotion("allow"):
            assert_allclose(ours(x[:, :500, :3]), theirs(x[:, :500, :3]), rtol=0.02)
        assert np.all(np.isfinite(ours(x)))


@pytest.mark.parametrize(
    "transform, value, volume",
    [
        (identify.Free(3.0), np.array([-1.0, 2.0]), lambda x: np.log(9.0)),
        (identify.Positive(), np.array(0.2), lambda x: np.log(x)),
        (identify.Bounded(-1.0, 3.0), np.array(0.5), lambda x: np.log((x + 1) * (3 - x) / 4)),
        # J_i are sums of two exponentials each, of S = tr(J) / 2 - J; the determinant of these sums is 2.
        (identify.Inertia(), np.array([1.0, 1.5, 2.0]), lambda J: np.sum(np.log(np.sum(J) / 2 - J)) + np.log(2.0)),
    ],
    ids=lambda x: type(x).__name__,
)
def test_a_flat_prior_is_flat_over_the_parameter(transform, value, volume):
    unknowns = identify.unknowns.Unknowns({"x": value}, {"x": transform})
    assert_allclose(sampler.log_prior(unknowns, None, jnp.asarray(unknowns.first())), volume(value), rtol=1e-6)


@pytest.mark.slow
def test_a_flat_prior_of_a_symmetric_matrix_is_flat_over_its_independent_entries():
    J = np.array([[2.0, 0.1, -0.2], [0.1, 1.5, 0.3], [-0.2, 0.3, 1.0]])
    unknowns = identify.unknowns.Unknowns({"J": J}, {"J": identify.Inertia()})
    z = jnp.asarray(unknowns.first())
    places = np.tril_indices(3)

    def volume(z):
        return jnp.linalg.slogdet(jax.jacfwd(lambda z: unknowns.values(z)["J"][places])(z))[1]

    # Up to a constant.
    change = volume(z + 0.3) - volume(z)
    assert_allclose(sampler.log_prior(unknowns, None, z + 0.3) - sampler.log_prior(unknowns, None, z), change, rtol=1e-6)


def test_warnings_say_what_cannot_be_trusted(flight):
    density = type("Density", (), {"left_out": []})
    diagnostics = np.array([1.2, 1.0]), np.array([30.0, 900.0]), np.array([900.0, 900.0])
    words = sampler._warnings(flight[1], density, diagnostics, np.eye(4, 300, dtype=bool), 300)
    assert len(words) == 3
    assert "gravity (1.200)" in words[0] and "measurement" not in words[0]
    assert "independent draws a chain of gravity (30)" in words[1] and "4 of 1200 paths diverged" in words[2]


def test_what_makes_no_sense_is_refused(flight):
    result = flight[1]
    undetermined = dataclasses.replace(result.uncertainty, standard_errors=np.array([np.inf, 1.0]), scale=np.nan)
    for changed, message in (
        ({"chains": 1}, "chains must be a whole number, 2 at least, got 1"),
        ({"draws": 0.5}, "draws must be a whole number"),
        ({"acceptance": 1.0}, "acceptance must be between 0 and 1"),
        ({"noise_scale": -1.0}, "noise_scale must be a positive number"),
        ({"prior": lambda x: x["gravity"] * jnp.ones(2)}, "must be one finite number"),
        ({"prior": lambda x: -jnp.inf}, "must be one finite number"),
        ({"result": dataclasses.replace(result, uncertainty=undetermined)}, "the data do not determine gravity"),
        (
            {"result": dataclasses.replace(result, uncertainty=undetermined), "prior": lambda x: -(x["gravity"] ** 2)},
            "give noise_scale=1.0",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            identify.posterior(**{"result": result} | changed)
    with pytest.raises(TypeError, match="expected the Result"):
        identify.posterior(result.problem)
    with pytest.raises(TypeError, match="prior must be a function"):
        identify.posterior(result, prior=1.0)
