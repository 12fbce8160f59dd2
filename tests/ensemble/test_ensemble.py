"""Ensembles: a member is a function of its key alone, means are those of closed forms, what fails is counted and kept out."""

import functools
import os
import subprocess
import sys
import textwrap
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random
from numpy.testing import assert_allclose, assert_array_equal

import jaxnsd
from jaxnsd import bodies, ensemble
from jaxnsd.ensemble import Beta, Independent, LogNormal, Moments, Normal, Proportion, Quantiles, Uniform
from jaxnsd.ensemble.observables import Observables
from jaxnsd.models import BouncingBall, RotatingBall

KEY = random.key(5)
G, T1 = 9.81, 0.8  # one impact, at sqrt(2 / g) = 0.45 s
FALL = np.sqrt(2 / G)


def observe(system, sol):
    """Final height, what was drawn, and something that would be vectorized in a batch."""
    return {"height": sol.q[-1, 0], "e_N": system.e_N, "sine": jnp.mean(jnp.sin(sol.q)), "up": sol.u[-1, 0] > 0}


def height(e):
    """Height at T1 of a ball with restitution e."""
    return e * G * FALL * (T1 - FALL) - 0.5 * G * (T1 - FALL) ** 2


FEW = functools.partial(ensemble.run, BouncingBall(), jaxnsd.Moreau(), t1=0.04, dt=2e-2)
RUN = functools.partial(ensemble.run, BouncingBall(), jaxnsd.LocatedImpacts(jaxnsd.MoreauJean()), t1=T1, dt=2e-2, observe=observe)
E_N = {"e_N": Uniform(0.4, 0.9)}
KEEP = ensemble.Associative(lambda x: x, lambda a, b: jax.tree.map(lambda *x: np.concatenate(x), a, b))
ALL = {"moments": Moments(), "quantiles": Quantiles((0.1, 0.5, 0.9), of="height"), "up": Proportion(of="up")}


@pytest.fixture(scope="module")
def whole():
    """All members in one chunk, and what is observed of each."""
    result = RUN(1000, KEY, sample=E_N, reduce=ALL | {"all": KEEP}, chunk=1000)
    return result, result["all"]


def members(**options):
    """What is observed of every member."""
    return RUN(options.pop("n", 1000), KEY, sample=E_N, reduce={"all": KEEP}, **options)["all"]


def test_statistics_are_those_of_the_closed_form(whole):
    result, seen = whole
    assert result.counts == {jaxnsd.Outcome.SUCCESS: 1000} and result.complete and len(result.failures) == 0
    assert_allclose(seen["height"], height(seen["e_N"]), rtol=1e-10)
    moments, slope = result["moments"], G * FALL * (T1 - FALL)
    low, high = moments.interval(0.9999)
    assert low["height"] < height(0.65) < high["height"]
    assert_allclose(moments.deviation["height"], slope * 0.5 / np.sqrt(12), rtol=0.1)
    assert_allclose(moments.standard_error["height"], moments.deviation["height"] / np.sqrt(1000))
    low, high = result["quantiles"].interval(0.9999)
    truth = height(np.array([0.45, 0.65, 0.85]))
    assert np.all((low <= truth) & (truth <= high))
    assert result["up"].count == seen["up"].sum()
    # A member is what its key says, alone as well.
    own = Independent(BouncingBall(), E_N)(random.fold_in(KEY, 7))[0]
    assert float(own.e_N) == seen["e_N"][7]
    sol = result.solution(7, save_every=4)
    assert_allclose(sol.q[-1, 0], seen["height"][7], rtol=1e-12)
    assert len(sol.t) == 11


def test_a_member_alone_is_that_of_the_ensemble():
    """By one program for all members, of points too; the last bit is the compiler's."""
    pytest.importorskip("scipy")
    drawn = {"mass": LogNormal(0.1, 0.2), "gravity": Normal(G, 0.3)}
    traced = []

    def seen(system, sol):
        return {"mass": system.mass, "gravity": system.gravity}

    class Traced(Independent):
        def __call__(self, *args):
            traced.append(args)
            return super().__call__(*args)

    result = FEW(64, KEY, sample=Traced(BouncingBall(), drawn), observe=seen, reduce=KEEP, points=ensemble.LatinHypercube(2))
    traced.clear()
    for i in range(20):
        system = result.sample(i)[0]
        for name, x in result["associative"].items():
            assert float(getattr(system, name)) == pytest.approx(x[i], rel=5e-16, abs=0)
    assert len(traced) == 1


def test_functions_that_a_program_calls_back_are_not_mixed_up():
    """In the text of a program they are numbers."""

    def seen(factor):
        shape = jax.ShapeDtypeStruct((), jnp.float64)
        return lambda system, sol: jax.pure_callback(lambda x: np.asarray(factor * x), shape, system.e_N)

    few = [FEW(3, KEY, sample=E_N, observe=seen(factor))["moments"].mean for factor in (1.0, 2.0)]
    assert few[1] == pytest.approx(2 * few[0], rel=1e-14)


@pytest.mark.parametrize(("n", "chunk"), [(1, 1), (100, 256), (1000, 512)])
def test_members_are_the_same_to_the_bit_in_chunks_of_any_size(whole, n, chunk):
    got = members(n=n, chunk=chunk)
    for name, x in whole[1].items():
        assert_array_equal(got[name], x[:n], err_msg=name)


def test_statistics_do_not_depend_on_who_is_done_first(whole):
    """The same to the bit with several threads, to round-off with other chunks."""
    from concurrent.futures import ThreadPoolExecutor

    alone = RUN(1000, KEY, sample=E_N, reduce=ALL, chunk=256)
    with ThreadPoolExecutor(3) as executor:
        beside = RUN(1000, KEY, sample=E_N, reduce=ALL, chunk=256, executor=executor)
    for name in ("height", "sine"):
        assert alone["moments"].mean[name] == beside["moments"].mean[name]
        assert alone["moments"].variance[name] == beside["moments"].variance[name]
        assert_allclose(alone["moments"].mean[name], whole[0]["moments"].mean[name], rtol=1e-13)
    assert_array_equal(alone["quantiles"].values, whole[0]["quantiles"].values)


def test_what_fails_is_counted_and_listed_and_not_averaged():
    def sample(key):
        """A third has a restitution that no law takes, a sixth no finite speed."""
        x = random.uniform(key)
        e_N = jnp.where(x < 1 / 3, 1.5, 0.5)
        return BouncingBall(e_N=e_N), jnp.array([1.0]), jnp.where(x > 5 / 6, jnp.inf, 0.0)[None]

    options = {"t1": T1, "dt": 2e-2, "reduce": {"m": Moments(), "x": ensemble.Extremes(1)}, "chunk": 128}

    def seen(system, sol):
        return sol.q[-1, 0]

    result = ensemble.run(BouncingBall(), jaxnsd.Moreau(), 600, KEY, sample=sample, observe=seen, **options)
    x = np.asarray(jax.vmap(lambda i: random.uniform(random.fold_in(KEY, i)))(jnp.arange(600)))
    bad, infinite = np.sum(x < 1 / 3), np.sum(x > 5 / 6)
    assert result.counts == {
        jaxnsd.Outcome.SUCCESS: 600 - bad - infinite,
        jaxnsd.Outcome.NON_FINITE: infinite,
        jaxnsd.Outcome.INVALID_PARAMETER: bad,
    }
    assert_array_equal(result.failures.index, np.flatnonzero((x < 1 / 3) | (x > 5 / 6)))
    assert float(result.sample(int(result.failures.index[0]))[0].e_N) == 1.5 or x[result.failures.index[0]] > 5 / 6
    # The others are all alike.
    assert np.isfinite(result["m"].mean) and result["m"].n == 600 - bad - infinite
    assert_allclose(result["m"].variance, 0, atol=1e-20)
    assert result["x"].largest == result["x"].smallest and x[result["x"].largest_index] > 1 / 3
    # None is left.
    result = ensemble.run(
        Broken(), jaxnsd.Moreau(), 3, KEY, sample=lambda key: (Broken(), jnp.ones(1), jnp.zeros(1)), observe=seen, **options
    )
    assert result.failed == 3 and result["m"] is None


@jaxnsd.system
class Broken(BouncingBall):
    """A ball whose force is not a number from some time on."""

    def force(self, t, q, u):
        return jnp.where(t > 0.3, jnp.nan, 0.0) * u


def test_gradient_of_a_mean_in_flight():
    """h = z - g t^2 / 2 with z = 10 + s x, x normal: dE[h]/dg = -t^2 / 2 of every member, dE[h]/ds = E[x] = 0 to its standard error."""

    def sample(key, theta):
        g, s = theta
        return BouncingBall(gravity=g), 10 + s * random.normal(key, (1,)), jnp.zeros(1)

    options = {"t1": 0.2, "dt": 2e-2, "sensitivity": "discrete", "sample": sample, "observe": lambda system, sol: sol.q[-1, 0]}
    moments = ensemble.gradient(BouncingBall(), jaxnsd.SymmetricMoreau(), 600, KEY, (G, 0.1), **options)["moments"]
    (by_g, by_s), (error_g, error_s) = moments.mean["gradient"], moments.standard_error["gradient"]
    assert_allclose(by_g, -0.02, rtol=1e-9)
    x = np.asarray(jax.vmap(lambda i: random.normal(random.fold_in(KEY, i)))(jnp.arange(600)))
    assert_allclose((by_s, error_s), (x.mean(), x.std(ddof=1) / np.sqrt(600)), rtol=1e-9)
    assert error_g < 1e-12 and abs(by_s) < 4 * error_s
    assert_allclose(moments.mean["value"], 10 + 0.1 * x.mean() - 0.02 * G, rtol=1e-10)
    for theta, words in (((1, 2), "made of floats"), ((), "theta is empty")):
        with pytest.raises((TypeError, ValueError), match=words):
            ensemble.gradient(BouncingBall(), jaxnsd.SymmetricMoreau(), 600, KEY, theta, **options)
    for seen in (lambda q: q, lambda q: q[0] > 0, lambda q: jnp.sum(q > 0), lambda q: {"q": q[0]}):
        change = {"observe": lambda system, sol, seen=seen: seen(sol.q[-1])}
        with pytest.raises(TypeError, match="observe must return one float, got "):
            ensemble.gradient(BouncingBall(), jaxnsd.SymmetricMoreau(), 600, KEY, (G, 0.1), **options | change)


@pytest.mark.slow
def test_gradients_through_an_impact_and_of_what_jumps():
    """dE[h]/d(shift, g): h is linear in the restitution, and its impact moves with g; by located impacts it is exact."""
    theta = {"shift": 0.0, "gravity": G}

    def sample(key, theta):
        e = random.uniform(key, minval=0.4, maxval=0.9) + theta["shift"]
        return BouncingBall(e_N=e, gravity=theta["gravity"]), jnp.array([1.0]), jnp.zeros(1)

    def derivative(observe, **change):
        scheme = jaxnsd.LocatedImpacts(jaxnsd.MoreauJean())
        result = ensemble.gradient(BouncingBall(), scheme, 400, KEY, theta | change, sample=sample, observe=observe, t1=T1, dt=5e-2)
        assert result.failed == 0
        return result["moments"]

    of_height = derivative(lambda system, sol: sol.q[-1, 0])
    mean, error = of_height.mean["gradient"], of_height.standard_error["gradient"]
    assert_allclose(mean["shift"], G * FALL * (T1 - FALL), rtol=1e-9)
    # h(e, g) = e g t* (t - t*) - g (t - t*)^2 / 2 with t* = sqrt(2 / g).
    by_gravity = jax.grad(lambda g, e: e * g * jnp.sqrt(2 / g) * (T1 - jnp.sqrt(2 / g)) - 0.5 * g * (T1 - jnp.sqrt(2 / g)) ** 2)
    assert abs(mean["gravity"] - by_gravity(G, 0.65)) < 4 * error["gravity"]
    e = jax.vmap(lambda i: random.uniform(random.fold_in(KEY, i), minval=0.4, maxval=0.9))(jnp.arange(400))
    each = jax.vmap(by_gravity, (None, 0))(G, e)
    assert_allclose((mean["gravity"], error["gravity"]), (each.mean(), each.std(ddof=1) / 20), rtol=1e-8)

    def jumps(system, sol):
        return jnp.where(sol.q[-1, 0] > height(0.65), 1.0, 0.0)

    # A share jumps member by member, and no member sees the derivative of the share.
    blind = derivative(jumps)
    assert blind.mean["gradient"]["shift"] == 0 == blind.standard_error["gradient"]["shift"]
    # The true one is the density of e at 0.65, 2. The difference of two runs with the same members finds it, to its binomial error.
    slope = (derivative(jumps, shift=0.05).mean["value"] - derivative(jumps, shift=-0.05).mean["value"]) / 0.1
    assert abs(slope - 2) < 4 * np.sqrt(0.2 * 0.8 / 400) / 0.1


def test_distributions():
    """Moments and quantiles, by keys and by points; the numbers of a name do not depend on the others."""
    drawn = {"mass": LogNormal(0.1, 0.3), "e_N": Beta(0.6, 0.1), "gravity": Normal(9.81, 0.1)}
    keys = jax.vmap(lambda i: random.fold_in(KEY, i))(jnp.arange(20_000))
    systems, q0, _ = jax.jit(jax.vmap(Independent(BouncingBall(), drawn)))(keys)
    alone = jax.jit(jax.vmap(Independent(BouncingBall(), {"e_N": drawn["e_N"]})))(keys)[0]
    assert_array_equal(systems.e_N, alone.e_N)
    for x, mean, deviation in ((jnp.log(systems.mass / 0.1), 0, 0.3), (systems.e_N, 0.6, 0.1), (systems.gravity, 9.81, 0.1)):
        assert abs(np.mean(x) - mean) < 4 * deviation / np.sqrt(20_000)
        assert_allclose(np.std(x), deviation, rtol=0.03)
    assert abs(np.corrcoef([systems.mass, systems.e_N, systems.gravity])[np.triu_indices(3, 1)]).max() < 0.03
    assert Normal(np.array(0.3), jnp.float32(0.5)) == Normal(0.3, 0.5)
    # A start: arguments of initial_state, and entries of a given one.
    _, _, u0 = Independent(RotatingBall(), {"omega": Uniform(1.0, 2.0)}, initial={})(KEY)
    assert 1 < float(u0[2]) < 2
    _, q0, u0 = Independent(BouncingBall(), {"q0[0]": Uniform(1, 2), "u0[0]": Normal(0, 1)}, start=(np.ones(1), np.zeros(1)))(KEY)
    assert 1 < float(q0[0]) < 2 and float(u0[0]) != 0


def test_numbers_of_bodies_are_drawn_by_name():
    """Those that `replace` takes, in one program, beside fields and a start."""
    ball = bodies.Body("ball", mass=0.5, shapes=bodies.Sphere(0.1), position=(0, 0, 0.5))
    system = bodies.assemble([ball], bodies.Plane(name="floor"), e_N=0.5)
    drawn = {"pair floor-ball_sphere.e_N": Uniform(0.2, 0.8), "ball.mass": Uniform(1.0, 2.0), "u0[2]": Uniform(-2.0, -1.0)}
    sample = Independent(system, drawn, start=system.initial_state())
    systems, _, u0 = jax.jit(jax.vmap(sample))(random.split(KEY, 50))
    assert_array_equal(
        systems.restitution[:, 0], jax.vmap(lambda key: sample.values(key)["pair floor-ball_sphere.e_N"])(random.split(KEY, 50))
    )
    assert np.all((systems.mass > 1) & (systems.mass < 2)) and np.ptp(systems.mass) > 0.5 and np.all(u0[:, 2] < -1)
    result = ensemble.run(
        system, jaxnsd.Moreau(), 4, KEY, sample=sample, observe=lambda s, sol: {"e": s.restitution[0]}, reduce=Moments(), t1=0.1, dt=1e-2
    )
    assert_allclose(result["moments"].mean["e"], np.mean([result.sample(i)[0].restitution[0] for i in range(4)]))


@pytest.mark.parametrize(
    "kind", [ensemble.Sobol, *(pytest.param(x, marks=pytest.mark.slow) for x in (ensemble.Halton, ensemble.LatinHypercube))]
)
def test_points_of_low_discrepancy(kind):
    pytest.importorskip("scipy")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole = kind(2, seed=3).points(0, 256, 256)
        cut = np.concatenate([kind(2, seed=3).points(first, 32, 256) for first in range(0, 256, 32)])
    assert_array_equal(whole, cut)
    assert np.all((whole > 0) & (whole < 1)) and not np.array_equal(whole, kind(2, seed=4).points(0, 256, 256))
    # The mean over a stratified e_N is far better than the 1/sqrt(n) of random numbers.
    result = RUN(256, KEY, sample=E_N, points=kind(1), chunk=100)
    exact, moments = height(0.65), result["moments"]
    assert abs(moments.mean["height"] - exact) < 0.2 * moments.standard_error["height"]


def test_points_of_halton_cost_what_their_number_costs():
    """Not what those before them cost."""
    pytest.importorskip("scipy")
    halton = ensemble.Halton(2, seed=3)
    assert_array_equal(halton.points(200, 50, 256), halton.points(0, 256, 256)[200:250])
    assert np.all(np.isfinite(halton.points(2**31, 5, 2**32)))


def test_points_in_single_precision_stay_in_the_open_cube():
    class Sides:
        def points(self, first, count, n):
            return np.array([[0.0], [1e-12], [0.5], [1 - 1e-12]])

    job = ensemble.engine._job(
        jaxnsd.Moreau(), 4, KEY, lambda key, point: simple(key), observe, None, Sides(), 1, None, {"t1": 1.0, "dt": 0.1}
    )
    with jax.enable_x64(False) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64(False):
        points = job.points_of(0, 4)
        assert points.dtype == np.float32 and np.all(np.isfinite(Normal(0.0, 1.0).quantile(points)))
    assert np.all((points > 0) & (points < 1)) and points[2] == 0.5


def test_reductions_are_looked_at_before_anything_is_computed(monkeypatch):
    """And their merging where there are members enough."""

    def compute(*args):
        raise AssertionError("computed")

    def seen(system, sol):
        return {"e_N": system.e_N, "z": 1j * system.e_N} if complex_too else {"e_N": system.e_N}

    class Halves(ensemble.Reduction):
        def chunk(self, values, index):
            return values["e_N"].mean()

        def merge(self, a, b):
            return (a + b) / 2

    def few(key):
        """Of the first chunk too few succeed."""
        x = random.uniform(key)
        return BouncingBall(e_N=jnp.where(x < 0.99, 2.0, x - 0.5)), jnp.ones(1), jnp.zeros(1)

    complex_too = False
    key = random.key(372)
    good = np.flatnonzero(jax.vmap(lambda i: random.uniform(random.fold_in(key, i)))(jnp.arange(1000)) >= 0.99)
    assert_array_equal(np.bincount(good // 256), [2, 3, 3, 3])
    with pytest.raises(ValueError, match="Halves: merge is not associative, on 3 members"):
        FEW(1000, key, sample=few, observe=seen, reduce=Halves(), chunk=256)
    monkeypatch.setattr(ensemble.job.Job, "compute", compute)
    for reduction, words in (
        (Moments(of="typo"), "called 'typo'"),
        (Proportion(), "takes booleans"),
        (ensemble.Associative(lambda x: x["typo"], np.add), "typo"),
    ):
        with pytest.raises((ValueError, TypeError, KeyError), match=words):
            FEW(1000, KEY, sample=E_N, observe=seen, reduce=reduction)
    with pytest.raises(AssertionError, match="computed"):
        FEW(
            1000,
            KEY,
            sample=E_N,
            observe=seen,
            reduce=ensemble.Associative(lambda x: np.linalg.inv(np.atleast_2d(np.sum(x["e_N"]))), np.add),
        )
    complex_too = True
    with pytest.raises(TypeError, match="booleans and real numbers, got complex128"):
        FEW(1000, KEY, sample=E_N, observe=seen)


@pytest.mark.slow
def test_two_and_eight_devices_have_the_same_bits():
    """As without devices: of a step with three contacts, and of a chunk that no number of blocks fills."""
    program = """
        import jax, numpy as np
        jax.config.update("jax_enable_x64", True)
        import jaxnsd
        from jaxnsd import ensemble
        from jaxnsd.models import Woodpecker
        keep = ensemble.Associative(lambda x: x, lambda a, b: jax.tree.map(lambda *x: np.concatenate(x), a, b))

        def run(**options):
            return ensemble.run(
                Woodpecker(), jaxnsd.Moreau(), 600, jax.random.key(0), sample={"mu": ensemble.Uniform(0.2, 0.3)}, t1=0.1, dt=5e-4,
                observe=lambda s, sol: {"q": sol.q[-1], "b": sol.u[-1] > 0}, reduce=keep, **options)["associative"]

        whole = run()
        assert len(jax.devices()) == 8 and np.ptp(whole["q"][:, 0]) > 0 and len(whole["q"]) == 600
        for options in ({"devices": 1}, {"devices": 2}, {"devices": 8}, {"devices": 2, "chunk": 600}):
            for name, x in run(**options).items():
                assert np.array_equal(x, whole[name]), (options, name)
        assert np.allclose(run(devices=2, lockstep=True)["q"], whole["q"], rtol=1e-9)
    """
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
    environment = dict(os.environ, XLA_FLAGS=flags, PYTHONPATH=os.pathsep.join(sys.path))
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


def simple(key):
    """A sample."""
    return BouncingBall(), jnp.array([1.0]), jnp.zeros(1)


def test_float32():
    with jax.experimental.enable_x64(False) if not hasattr(jax, "enable_x64") else jax.enable_x64(False), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="simulating in float32")
        result = RUN(100, random.key(5), sample=E_N, chunk=30)
    assert result.complete and result.failed == 0
    mean = result["moments"].mean
    assert_allclose(mean["height"], height(mean["e_N"]), rtol=1e-4)


def test_words_are_about_the_nodes():
    """Of a fall, with a scheme whose velocities are half a step ahead of its coordinates."""
    ball, scheme = BouncingBall(), jaxnsd.SymmetricMoreau()
    sol = jaxnsd.simulate(ball, scheme, *ball.initial_state(), 0.2, 1e-2)
    seen = Observables(("u[0]", "energy"))(ball, sol)
    assert_allclose(seen["u[0]"], -9.81 * 0.2, rtol=1e-12)
    assert_allclose(seen["energy"], ball.total_energy(0.0, *ball.initial_state()), rtol=1e-12)
