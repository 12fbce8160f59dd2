"""`simulate(..., until=)`: where a motion ends, and what everybody who reads a `Solution` makes of it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import jaxnsd
from jaxnsd import (
    Event,
    GeneralizedAlpha,
    Lobatto,
    LocatedImpacts,
    Moreau,
    MoreauJean,
    Outcome,
    Solution,
    SymmetricMoreau,
    bodies,
    energy,
    simulate,
)
from jaxnsd.bodies import Body, Box, Plane
from jaxnsd.models import BouncingBall
from jaxnsd.simulation.simulate import _run

G, DT, N = 9.81, 5e-3, 200

BELOW = jax.tree_util.Partial(lambda height, t, q, u: q[0] < height, 0.5)


def comes_back(t, q, u):
    """Whether it comes back up to 0.2 m."""
    return (u[0] > 0) & (q[0] > 0.2)


def fall(h0=1.0, until=BELOW, scheme=None, system=None, **options):
    """A ball from a height. While it falls it is at h0 - n^2 g dt^2 / 2 after n steps of `MoreauJean`, which is exact."""
    options = {"n_steps": N, "dt": DT} | options
    state = (None, None) if "start" in options else (jnp.reshape(h0, 1), jnp.zeros(1))
    return simulate(BouncingBall() if system is None else system, scheme or MoreauJean(), *state, until=until, **options)


def steps_below(height, h0=1.0):
    """Steps after which it is below a height, at the first node."""
    return int(np.floor(np.sqrt(2 * (h0 - height) / G) / DT)) + 1


@pytest.fixture(scope="module")
def whole():
    return fall(until=None)


@pytest.mark.parametrize("every", [1, 5])
def test_a_ball_falls_until_it_is_below_a_height(whole, every):
    """The node is that of the closed form, inside of a stored interval too, and after it nothing happens any more."""
    sol, n = fall(save_every=every), steps_below(0.5)
    assert n % 5 and int(sol.stop) == int(sol.steps) == n and bool(sol.stopped)
    end = int(sol.end)
    assert end == -(-n // every)
    assert_array_equal(sol.t[:end], whole.t[: n + 1 : every][:end])
    assert_array_equal(sol.q[:end], whole.q[: n + 1 : every][:end])
    for name in ("t", "q", "u"):
        x = getattr(sol, name)
        assert_array_equal(x[end:], np.broadcast_to(getattr(whole, name)[n], x[end:].shape))
    assert_allclose(sol.q[-1, 0], 1 - 0.5 * G * (n * DT) ** 2, rtol=1e-13)
    assert not np.any(sol.P_N[end:]) and not np.any(sol.iterations[end:]) and np.all(sol.contact == -1)
    assert bool(sol.success) and sol.raise_if_failed() is sol
    assert_allclose(sol.dt, DT, rtol=1e-13)
    short = sol.trimmed()
    assert short.q.shape == (end + 1, 1) and short.P_N.shape == (end, 1) and short.auxiliary.keys() == sol.auxiliary.keys()
    assert_allclose(short.dt, DT, rtol=1e-13)
    assert f"stopped after {n} steps" in repr(sol)


def test_what_is_never_stopped_is_the_run_without(whole):
    sol = fall(until=lambda t, q, u: t > 10)
    for name in ("t", "q", "u", "P_N", "outcome", "events"):
        assert_array_equal(getattr(sol, name), getattr(whole, name))
    assert not bool(sol.stopped) and int(sol.steps) == int(sol.end) == N and sol.trimmed().q.shape == sol.q.shape
    assert int(sol.stop) == 0 and whole.stop is None and whole.trimmed() is whole and not bool(whole.stopped)
    assert "stopped" not in repr(sol) + repr(whole)


def test_the_condition_is_asked_after_every_step_the_last_one_too():
    """Not at the start, where a ball that is thrown up is on the ground; and a run may end where it is met."""
    thrown = simulate(BouncingBall(), MoreauJean(), jnp.zeros(1), jnp.array([2.0]), dt=DT, n_steps=N, until=lambda t, q, u: q[0] <= 0)
    assert int(thrown.stop) == int(np.ceil(2 * 2.0 / G / DT)) and int(thrown.count(Event.IMPACT)) <= 1
    last = fall(until=lambda t, q, u: t > DT * (N - 0.5))
    assert bool(last.stopped) and int(last.stop) == N


# ---------------------------------------------------------------------------------------------------------- batches, derivatives
@jaxnsd.system
class Shot(jaxnsd.System):
    """A unit mass that is thrown."""

    gravity: float = 9.81

    def kinetic_energy(self, t, q, u):
        return 0.5 * u @ u

    def potential_energy(self, t, q):
        return self.gravity * q[1]


def reach(speed, angle, gravity):
    """Where it lands: back along the parabola from the first node that is not above the ground."""
    u0 = speed * jnp.stack([jnp.cos(angle), jnp.sin(angle)])
    sol = simulate(Shot(gravity), MoreauJean(), jnp.zeros(2), u0, dt=0.02, n_steps=150, until=lambda t, q, u: q[1] <= 0.0)
    (x, y), (v, w) = sol.q[-1], sol.u[-1]
    late = (-w - jnp.sqrt(w**2 + 2 * gravity * y)) / gravity
    return jnp.where(sol.stopped, x - v * late, jnp.nan)


def test_range_of_a_shot_and_its_derivatives():
    """v^2 sin(2 a) / g: the end has the derivative of a fixed number of steps, what is made of it that of the time of landing."""

    def exact(speed, angle, gravity):
        return speed**2 * jnp.sin(2 * angle) / gravity

    at, along = (jnp.array(10.0), jnp.array(0.7), jnp.array(9.81)), (jnp.array(1.0), jnp.array(-0.5), jnp.array(0.3))
    assert_allclose(jax.jvp(reach, at, along), jax.jvp(exact, at, along), rtol=1e-11)


# -------------------------------------------------------------------------------------------------------------- exact in time
EXACT = LocatedImpacts(MoreauJean())


def back_up(t, q, u):
    """Comes to zero where the ball is 0.2 m high on its way up."""
    return jnp.where(u[0] > 0, 0.2 - q[0], 1.0)


def up_again(h0, e):
    """``(t, q, u)`` there, after one impact."""
    hit = jnp.sqrt(2 * h0 / G)
    s = (e * G * hit - jnp.sqrt((e * G * hit) ** 2 - 2 * G * 0.2)) / G
    return jnp.stack([hit + s, 0.2, e * G * hit - G * s])


@pytest.mark.parametrize("every", [1, 8])
def test_a_number_ends_a_fall_at_its_own_time(every):
    """h - g t^2 / 2 is 0.5 m, not at a node; after it nothing happens, and before it the nodes are what they were."""
    sol, hit = fall(until=lambda t, q, u: q[0] - 0.5, save_every=every), np.sqrt(2 * 0.5 / G)
    n, end = steps_below(0.5), int(sol.end)
    assert int(sol.stop) == int(sol.steps) == n and end == -(-n // every)
    assert_allclose(sol.t[end:], hit, rtol=1e-14)
    assert_allclose(sol.q[end:, 0], 0.5, rtol=1e-14)
    assert_allclose(sol.u[end:, 0], -G * hit, rtol=1e-13)
    assert_allclose(sol.t[:end], DT * every * np.arange(end), atol=1e-14)
    assert_allclose(sol.q[:end, 0], 1 - 0.5 * G * sol.t[:end] ** 2, rtol=1e-13)
    assert_allclose(sol.dt, DT, rtol=1e-13)
    assert not np.any(sol.P_N[end:]) and bool(sol.stopped) and sol.trimmed().q.shape == (end + 1, 1)
    q, _ = jaxnsd.at_times(BouncingBall(), sol, [hit - 1e-3, hit])
    assert_allclose(q[:, 0], 1 - 0.5 * G * (hit - np.array([1e-3, 0])) ** 2, rtol=1e-13)
    rest = fall(until=None, start=sol)
    assert_allclose(rest.q[:9, 0], 1 - 0.5 * G * rest.t[:9] ** 2, rtol=1e-12)
    with pytest.raises(ValueError, match="every step must be whole"):
        energy.balance(BouncingBall(), MoreauJean(), fall(until=lambda t, q, u: q[0] - 0.5))


@pytest.mark.slow
def test_derivatives_of_the_time_at_which_it_ends():
    """By height, restitution and threshold, through an impact, in both modes, and the second ones."""

    def end(h0, e):
        sol = fall(h0, back_up, EXACT, BouncingBall(e_N=e))
        return jnp.stack([sol.t[-1], sol.q[-1, 0], sol.u[-1, 0]])

    at = jnp.array(1.0), jnp.array(0.75)
    assert_allclose(end(*at), up_again(*at), rtol=1e-12)
    along = jnp.array(0.7), jnp.array(-0.4)
    assert_allclose(jax.jvp(end, at, along)[1], jax.jvp(up_again, at, along)[1], rtol=1e-9, atol=1e-12)
    by_both, wanted = (jax.grad(lambda *x, f=f: f(*x)[0], (0, 1))(*at) for f in (end, up_again))
    assert_allclose(by_both, wanted, rtol=1e-9)
    curved = [jax.jvp(lambda *x, f=f: jax.jvp(f, x, along)[1], at, along)[1] for f in (end, up_again)]
    assert_allclose(*curved, rtol=1e-7, atol=1e-10)
    by_threshold = jax.grad(lambda h: fall(until=lambda t, q, u: q[0] - h).t[-1])(0.5)
    assert_allclose(by_threshold, -1 / np.sqrt(2 * G * 0.5), rtol=1e-12)


@pytest.mark.slow
def test_members_end_at_times_of_their_own():
    """One of them does not end, and another one starts behind the threshold."""
    heights = jnp.array([0.6, 1.0, 30.0, 0.4])
    sol = jax.vmap(lambda h0: fall(h0, lambda t, q, u: q[0] - 0.5))(heights)
    assert sol.stopped.tolist() == [True, True, False, False]
    assert_allclose(sol.t[:, -1], [*np.sqrt(2 * (heights[:2] - 0.5) / G), DT * N, DT * N], rtol=1e-13)
    slope = jax.vmap(jax.grad(lambda h0: fall(h0, lambda t, q, u: q[0] - 0.5).t[-1]))(heights)
    assert_allclose(slope, [*1 / np.sqrt(2 * G * (heights[:2] - 0.5)), 0, 0], rtol=1e-12)


@pytest.mark.slow
def test_a_number_that_jumps_at_an_impact_ends_there():
    """The velocity turns at sqrt(2 h / g), which has a derivative; what would come after it has not happened."""

    def end(h0):
        sol = fall(h0, lambda t, q, u: jnp.where(t < 0.1, 1.0, -u[0]), EXACT)
        return sol.t[-1], sol

    (t, slope), sol = jax.jvp(lambda h: end(h)[0], (1.0,), (1.0,)), end(1.0)[1]
    assert_allclose(t, np.sqrt(2 / G), rtol=1e-13)
    assert_allclose(slope, 1 / np.sqrt(2 * G), rtol=1e-9)
    assert float(sol.u[-1, 0]) > 0 and abs(float(sol.q[-1, 0])) < G * DT**2
    assert int(jnp.sum(jnp.isfinite(sol.auxiliary["impact_times"]))) == 1
    early = fall(1.0, lambda t, q, u: q[0] - 1e-4, EXACT)
    assert not np.any(np.isfinite(early.auxiliary["impact_times"])) or int(early.stop) == 0


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "order"), [(MoreauJean(), 2), (Lobatto(3), 4)], ids=lambda x: getattr(x, "name", None))
def test_order_of_the_time_at_which_an_oscillation_ends(scheme, order):
    """cos 2 t = 1/2 at pi / 6: of the order of the scheme, and of the cubic between nodes."""

    @jaxnsd.system
    class Oscillator(jaxnsd.System):
        def kinetic_energy(self, t, q, u):
            return 0.5 * u @ u

        def potential_energy(self, t, q):
            return 2.0 * q @ q

    def late(n):
        sol = simulate(Oscillator(), scheme, jnp.ones(1), jnp.zeros(1), 1.0, n_steps=n, until=lambda t, q, u: q[0] - 0.5)
        return abs(float(sol.t[-1]) - np.pi / 6)

    assert np.log2(late(10) / late(40)) / 2 > order - 0.3


def test_velocities_at_mid_interval_take_a_boolean():
    with pytest.raises(ValueError, match=r"must return one boolean with SymmetricMoreau\(\), whose velocities are at mid-interval"):
        fall(until=lambda t, q, u: q[0] - 0.5, scheme=SymmetricMoreau())


@pytest.mark.slow
def test_derivative_is_that_of_a_fixed_number_of_steps():
    """Through an impact, in both modes, for members that stop at different times, and for one that does not."""

    def end(h0):
        return fall(h0, comes_back, Moreau()).q[-1, 0]

    heights = jnp.array([0.5, 0.6, 30.0])
    stops = jax.vmap(lambda h0: fall(h0, comes_back, Moreau()).stop)(heights)
    assert len(set(map(int, stops))) == 3 and int(stops[2]) == 0
    nodes = jax.vmap(lambda h0: jax.jvp(lambda h0: fall(h0, None, Moreau()).q[:, 0], (h0,), (jnp.ones(()),)))(heights)
    wanted = [x[jnp.arange(3), jnp.where(stops > 0, stops, N)] for x in nodes]
    assert_allclose(jax.vmap(jax.value_and_grad(end))(heights), wanted, rtol=1e-11)
    assert_allclose(jax.vmap(lambda h0: jax.jvp(end, (h0,), (jnp.ones(()),)))(heights), wanted, rtol=1e-11)


@pytest.mark.parametrize(("native", "mode"), [("1", None), *(pytest.param(x, "grad", marks=pytest.mark.slow) for x in "10")])
def test_members_stop_at_their_own_thresholds(native, mode, monkeypatch):
    """What the function closes over is batched, jitted and differentiated; compiled here and by XLA."""
    if mode == "grad":
        monkeypatch.setenv("JAXNSD_NATIVE", native)
        jax.clear_caches()
    heights = jnp.array([0.1, 0.5, -1.0, 0.9])

    def end(height):
        sol = fall(until=lambda t, q, u: q[0] < height, save_every=8)
        return sol.q[-1, 0] + height, sol

    if mode == "grad":
        (_, sol), slope = jax.jit(jax.vmap(jax.value_and_grad(end, has_aux=True)))(heights)
        # That of the threshold alone: the node at which it stops does not move with it.
        assert_array_equal(slope, 1.0)
    else:
        _, sol = jax.jit(jax.vmap(end))(heights)
    assert_array_equal(sol.stop, [steps_below(0.1), steps_below(0.5), 0, steps_below(0.9)])
    assert_array_equal(sol.stopped, [True, True, False, True])
    assert np.all(sol.success) and sol.raise_if_failed() is sol
    assert_allclose(sol.t[:, -1], DT * sol.steps, rtol=1e-14)
    assert_allclose(sol.dt, DT, rtol=1e-13)
    assert "3 of 4 stopped" in repr(sol)
    for i in (1, 2):
        alone = fall(until=lambda t, q, u, i=i: q[0] < heights[i], save_every=8)
        for name in ("t", "q", "u", "P_N", "events", "stop"):
            assert_allclose(getattr(sol[i], name), getattr(alone, name), atol=1e-14)
    with pytest.raises(TypeError, match="members of a batch end at different nodes"):
        sol.trimmed()


@pytest.mark.filterwarnings("ignore:simulating in float32")
def test_float32_beside_a_threshold_in_double_precision():
    q0, u0 = jnp.ones(1, jnp.float32), jnp.zeros(1, jnp.float32)
    height = jnp.asarray(0.5)
    for until in (BELOW, lambda t, q, u: q[0] < 0.5, lambda t, q, u: q[0] < height):
        sol = simulate(BouncingBall(), MoreauJean(), q0, u0, dt=DT, n_steps=N, until=until)
        assert sol.q.dtype == sol.t.dtype == jnp.float32 and sol.stop.dtype == jnp.int32
        assert int(sol.stop) == steps_below(0.5)


# --------------------------------------------------------------------------------------------------------------------- programs
def test_a_function_that_is_written_again_is_the_same_program():
    """Other numbers, written or closed over, are arguments; another comparison is another program."""

    def stops(condition, height):
        sol, before = fall(until=condition), _run._cache_size()
        return int(sol.stop), int(sol.stop) == steps_below(height), before

    made = [
        stops(lambda t, q, u: q[0] < 0.5, 0.5),
        stops(lambda t, q, u: q[0] < 0.4, 0.4),
        *(stops(lambda t, q, u, h=h: q[0] < h, h) for h in (0.3, np.float64(0.2))),
    ]
    assert all(right for _, right, _ in made) and len({n for n, _, _ in made}) == 4
    assert len({programs for *_, programs in made}) == 1
    assert int(fall(until=lambda t, q, u: q[0] > 0.5).stop) == 1


def test_what_a_function_reads_is_read_anew():
    """A variable around it, a global, an entry of a list, that have changed since."""
    height, listed = 0.5, [0.5]
    for until in (lambda t, q, u: q[0] < height, lambda t, q, u: q[0] < listed[0], lambda t, q, u: q[0] < HEIGHT):
        assert int(fall(until=until).stop) == steps_below(0.5)
    height = listed[0] = globals()["HEIGHT"] = 0.25
    for until in (lambda t, q, u: q[0] < height, lambda t, q, u: q[0] < listed[0], lambda t, q, u: q[0] < HEIGHT):
        assert int(fall(until=until).stop) == steps_below(0.25)
    globals()["HEIGHT"] = 0.5


HEIGHT = 0.5


def test_kept_programs_do_not_mix_conditions(tmp_path):
    """A program that is kept in a folder is found by the condition too."""
    for height in (0.5, 0.25, 0.5):
        kept = jaxnsd.keep(lambda h0, height=height: fall(h0, lambda t, q, u: q[0] < height).stop, tmp_path)
        assert int(kept(jnp.array(1.0))) == steps_below(height)
    assert len(list(tmp_path.glob("*.jaxnsd"))) == 2


@pytest.mark.parametrize(
    ("until", "error", "text"),
    [
        (0.5, TypeError, r"until must be a function until\(t, q, u\) that returns one boolean, got 0.5"),
        (lambda q: q[0] < 0, TypeError, r"until must take \(t, q, u\), got a function of \(q\)"),
        (lambda t, q, u: jnp.argmin(q), TypeError, "must return one boolean, or a number that comes to zero, got int64"),
        (lambda t, q, u: 1j * q[0], TypeError, "must return one boolean, or a number that comes to zero, got complex128"),
        (lambda t, q, u: q, ValueError, r"must return one number, got shape \(1,\); make one of them with jnp.min"),
        (lambda t, q, u: q < 0, ValueError, r"must return one boolean, got shape \(1,\); make one of them with jnp.any"),
        (lambda t, q, u: (q[0] < 0, u[0] < 0), TypeError, "must return one boolean, got .*make one with &"),
        (lambda t, q, u: None, TypeError, "must return one boolean, got None"),
        (lambda t, q, u: bool(q[0] < 0), TypeError, r"until\(t, q, u\) must not ask for the value of an array.*test_until.py"),
        (lambda t, q, u: q[3] < 0, ValueError, r"until\(t, q, u\) must stay inside of its arrays, got entry 3"),
        (lambda t, q, u: q[0] < missing, ValueError, "name 'missing' is not defined"),  # noqa: F821
    ],
)
def test_what_is_no_condition_is_refused(until, error, text):
    with pytest.raises(error, match=text):
        jaxnsd.check(BouncingBall(), MoreauJean(), jnp.ones(1), jnp.zeros(1), 1.0, DT, until=until)


# ---------------------------------------------------------------------------------------------------------- readers of solutions
def test_a_run_goes_on_from_its_end(whole):
    """As if it had not been stopped, from the time of its end on."""
    one = fall()
    n, rest = int(one.stop), fall(until=None, start=one)
    for name in ("t", "q", "u"):
        assert_allclose(getattr(rest, name)[: N - n + 1], getattr(whole, name)[n:], atol=1e-12)


SLOW = [pytest.param(x, marks=pytest.mark.slow) for x in (SymmetricMoreau(), GeneralizedAlpha(0.8), Lobatto(2))]


@pytest.mark.parametrize("scheme", [pytest.param(LocatedImpacts(MoreauJean()), marks=pytest.mark.slow), *SLOW], ids=lambda x: x.name)
def test_a_run_in_parts_from_its_end(scheme):
    """From its end it goes on as the run that was never stopped; and a run that stops in its second part is the run in one."""
    until = comes_back
    whole, one = fall(0.6, None, scheme), fall(0.6, until, scheme)
    n = int(one.stop)
    assert 0 < n < N - 1
    rest = fall(until=None, scheme=scheme, start=one, n_steps=N - n)
    first = fall(0.6, until, scheme, n_steps=50)
    second = fall(until=until, scheme=scheme, start=first, n_steps=N - 50)
    assert not bool(first.stopped) and int(second.stop) == n - 50
    for name in ("t", "q", "u"):
        assert_allclose(getattr(rest, name), getattr(whole, name)[n:], atol=1e-12)
        assert_allclose(getattr(second, name), getattr(one, name)[50:], atol=1e-12)
        assert_allclose(getattr(one, name)[: n + 1], getattr(whole, name)[: n + 1], atol=1e-13)
    assert np.all(one.success)
    # What tells of a step is not told again of nodes that no step leads to.
    impacts = one.auxiliary.get("impact_contacts")
    assert impacts is None or (np.sum(impacts >= 0) == 1 and np.sum(np.isfinite(one.auxiliary["impact_times"])) == 1)
    assert all(not np.any(x[n + 1 :]) for name, x in one.auxiliary.items() if name.startswith("R_"))
    u, wanted = (jaxnsd.node_velocities(BouncingBall(), scheme, sol) for sol in (one, whole))
    assert_allclose(u, wanted[np.minimum(np.arange(N + 1), n)], atol=1e-11)


@pytest.mark.parametrize("scheme", [MoreauJean(), *SLOW], ids=lambda x: x.name)
def test_energies_after_the_end(scheme):
    """They are those of the end, and nothing does work; before it they are those of the run without a condition."""
    until = BELOW if scheme == MoreauJean() else comes_back
    runs = [fall(0.6, condition, scheme) for condition in (until, None)]
    one, whole = (jax.jit(energy.balance, static_argnums=1)(BouncingBall(), scheme, sol) for sol in runs)
    n = int(runs[0].stop)
    for field in dataclasses.fields(one):
        x, y = getattr(one, field.name), getattr(whole, field.name)
        if field.name in ("t", "kinetic", "potential", "algorithmic"):
            assert_allclose(x, y[np.minimum(np.arange(N + 1), n)], rtol=1e-11, atol=1e-13)
        elif x is not None and field.name != "theorem":
            assert_allclose(x[:n], y[:n], atol=1e-12)
            assert not np.any(x[n:])
    assert np.all(one.dissipative)


def test_files_and_tables(tmp_path):
    pytest.importorskip("pandas")
    pytest.importorskip("xarray")
    sol = fall(save_every=8)
    sol.save(tmp_path / "fall.npz")
    again = Solution.load(tmp_path / "fall.npz")
    for x, y in zip(jax.tree.leaves(sol), jax.tree.leaves(again), strict=True):
        assert_array_equal(x, y)
    end = int(again.end)
    frame = again.to_dataframe()
    assert len(frame) == end + 1 and frame["t"].is_unique and float(frame.iloc[-1, 1]) == float(sol.q[-1, 0])
    assert int(again.to_xarray()["stop"]) == int(sol.stop)
    many = jax.vmap(lambda h0: fall(h0, save_every=8))(jnp.array([0.6, 1.0]))
    assert many.to_dataframe().groupby("member").size().tolist() == [int(n) + 1 for n in many.end]
    assert many.to_xarray()["stop"].dims == ("member",) and "stop" not in fall(until=None).to_xarray()


@pytest.mark.slow
def test_a_film_ends_with_the_motion():
    from jaxnsd.drawing import scene

    many = jax.vmap(lambda h0: fall(h0, save_every=8))(jnp.array([1.0, 0.6]))
    parts = scene.checked("film", BouncingBall(), many, [0, 1], None)
    shown = scene.of("film", parts, 0.02)
    assert shown.t[-1] <= float(many.t[0, -1]) + 1e-12 and len(parts[1][2].t) == int(many.end[1]) + 1
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(shown.forces) if x is not None)


def test_an_ensemble(tmp_path):
    """Members that stop at different times succeed; the store knows the condition by what it computes."""
    ensemble = pytest.importorskip("jaxnsd.ensemble")
    pytest.importorskip("zarr")

    def run(height, **options):
        return ensemble.run(
            BouncingBall(),
            MoreauJean(),
            64,
            jax.random.key(0),
            sample=lambda key: (BouncingBall(), jax.random.uniform(key, (1,), minval=0.6), jnp.zeros(1)),
            observe=lambda system, sol: {"t": sol.t[-1], "q": sol.q[-1, 0], "h0": sol.q[0, 0]},
            store=tmp_path / "out.zarr",
            until=lambda t, q, u: q[0] < height,
            n_steps=N,
            dt=DT,
            **options,
        )

    result = run(0.5)
    assert result.counts[Outcome.SUCCESS] == 64
    seen = result.dataset()
    wanted = np.array([steps_below(0.5, h0) for h0 in np.asarray(seen["h0"])])
    assert_allclose(seen["t"], DT * wanted, rtol=1e-13)
    assert run(0.5, resume=True).counts[Outcome.SUCCESS] == 64
    with pytest.raises(ensemble.StoreError, match="another program"):
        run(0.4)


@pytest.mark.slow
def test_members_in_lockstep_that_end_at_their_own_nodes(lockstep):
    """Steps of a box that are made by some of the members only were refused with an AssertionError of JAX's."""
    box = bodies.assemble([Body("box", mass=1.0, shapes=Box((0.1,) * 3), position=(0, 0, 0.051))], Plane(name="floor"), mu=0.3)
    q0, u0 = box.initial_state()
    run = lambda h: simulate(box, Moreau(), q0.at[2].add(h), u0, n_steps=60, dt=1e-3, until=lambda t, q, u: q[2] < 0.05001)  # noqa: E731
    sol = jax.vmap(run)(jnp.array([0.0, 1e-3]))
    # A fall by n (n + 1) / 2 g dt^2, from 1 and from 2 mm above.
    fallen = np.cumsum(np.cumsum(np.full(60, G * 1e-6)))
    assert_array_equal(sol.steps, [np.argmax(0.051 + h - fallen < 0.05001) + off for h, off in ((0.0, 2), (1e-3, 2))])
    assert np.all(sol.success) and np.all(sol.stopped)


def falling_to(time, n, dtype=jnp.float64):
    """A ball that rests, with steps of a second: n of them in one stored interval, of which the motion takes those up to a time."""
    until = jax.tree_util.Partial(lambda time, t, q, u: t >= time, jnp.asarray(time, dtype))
    return simulate(BouncingBall(), Moreau(), jnp.zeros(1, dtype), jnp.zeros(1, dtype), n_steps=n, dt=1.0, save_every=n, until=until)


@pytest.mark.filterwarnings("ignore:simulating in float32")
def test_a_step_that_single_precision_has_no_number_for():
    """The first time that is 17 000 000 s there is that of one step less."""
    sol = falling_to(17_000_000, 18_000_000, jnp.float32)
    assert int(sol.steps) == 16_999_999 and float(sol.t[-1]) == 17_000_000


@pytest.mark.long
def test_more_steps_than_there_are_integers_of_32_bits():
    """The motion never ended, and its iterations were less than zero."""
    sol = falling_to(2.2e9, 2_400_000_000)
    assert sol.success and int(sol.steps) == 2_200_000_000 and float(sol.t[-1]) == 2.2e9
    assert 2.1e9 < int(sol.iterations[0]) <= 2.2e9
