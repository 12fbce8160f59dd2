"""A motion between its nodes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from little_systems import thrown_box
from numpy.testing import assert_allclose

import jaxnsd
from jaxnsd import Lobatto, LocatedImpacts, Moreau, MoreauJean, SimulationError, SymmetricMoreau, at_times, energy, simulate
from jaxnsd.models import BouncingBall

G, DT, N, H = 9.81, 5e-3, 100, 1.0


def fall(scheme=None, h0=H, **options):
    """A ball from a height: its coordinates and velocities at the nodes are exact while it falls, after 0.45 s it bounces."""
    return simulate(BouncingBall(), scheme or MoreauJean(), jnp.reshape(h0, 1), jnp.zeros(1), dt=DT, n_steps=N, **options)


@pytest.fixture(scope="module")
def fallen():
    return fall()


def states(t):
    """``(q, u)`` while it falls, and after one impact."""
    hit = np.sqrt(2 * H / G)
    s = t - hit
    e, v = BouncingBall().e_N, G * hit
    return np.where(s < 0, H - 0.5 * G * t**2, e * v * s - 0.5 * G * s**2), np.where(s < 0, -G * t, e * v - G * s)


@pytest.mark.parametrize("scheme", [MoreauJean(), pytest.param(SymmetricMoreau(), marks=pytest.mark.slow)], ids=lambda x: x.name)
def test_a_parabola_is_met_to_round_off(scheme, fallen):
    """At any times, in any order, nodes and the last one too; and its rates are its velocities."""
    sol = fallen if scheme == fallen.scheme else fall(scheme)
    t = np.array([0.3301, 0.0, 5e-3, 0.44, 0.0012, 0.5])
    (q, u), (rate, _) = jax.jit(lambda t: jax.jvp(lambda t: at_times(BouncingBall(), sol, t), (t,), (jnp.ones(6),)))(t)
    wanted = states(t[:5])
    assert_allclose(q[:5, 0], wanted[0], atol=1e-14)
    assert_allclose(u[:5, 0], wanted[1], atol=1e-12)
    assert_allclose(rate[:5, 0], wanted[1], atol=1e-11)
    assert_allclose(q[5], sol.q[-1], atol=1e-15)


def test_a_located_impact_is_met_from_both_sides():
    """Coordinates to second order in dt, velocities to first, with the jump where it is."""
    sol, hit = fall(LocatedImpacts(MoreauJean())), np.sqrt(2 * H / G)
    t = hit + np.array([-1e-3, -1e-5, 1e-5, 2e-3])
    (q, u), wanted = at_times(BouncingBall(), sol, t), states(t)
    assert_allclose(q[:, 0], wanted[0], atol=G * DT**2)
    assert_allclose(u[:, 0], wanted[1], atol=G * DT)


def test_up_to_the_end_of_a_motion_that_was_stopped():
    """Also inside of its last stored interval, which is shorter; what is behind is refused, or no number where it is traced."""
    sol = fall(until=lambda t, q, u: q[0] < 0.5, save_every=5)
    assert int(sol.steps) % 5
    t = np.array([0.31, 0.318, float(sol.t[-1])])
    q, u = at_times(BouncingBall(), sol, t)
    assert_allclose(q[:, 0], states(t)[0], atol=1e-14)
    assert_allclose(u[:, 0], states(t)[1], atol=1e-12)
    with pytest.raises(ValueError, match=r"times must be from 0 to 0\.32 s, where the motion ends, got 0.33 s"):
        at_times(BouncingBall(), sol, [0.31, 0.33])
    traced, _ = jax.jit(lambda t: at_times(BouncingBall(), sol, t))(jnp.array([0.31, 0.33]))
    assert_allclose(traced[:, 0], [states(0.31)[0], np.nan], atol=1e-14)


@pytest.mark.slow
def test_a_batch_and_derivatives():
    """By the height and by the time together, of a batch."""

    def height(h0, t):
        return at_times(BouncingBall(), fall(h0=h0), t)[0][0]

    heights, times = jnp.array([0.8, 1.0]), jnp.array([0.123, 0.3021])
    value, (by_height, by_time) = jax.vmap(jax.value_and_grad(height, argnums=(0, 1)))(heights, times)
    assert_allclose(value, heights - 0.5 * G * times**2, atol=1e-14)
    assert_allclose(by_height, 1.0, rtol=1e-12)
    assert_allclose(by_time, -G * times, rtol=1e-10)


@pytest.mark.slow
def test_quaternions_have_length_one_and_fourth_order():
    """A box that turns freely, at a twentieth of its nodes and at a fortieth."""
    box = thrown_box()
    q0, u0 = box.initial_state()
    u0 = u0.at[3:].set(jnp.array([3.0, 2.0, 1.0]))
    t = np.linspace(0.0, 0.12, 41)
    fine = simulate(box, MoreauJean(), q0, u0, 0.12, 1e-3)
    errors = []
    for every in (20, 40):
        rows = {name: getattr(fine, name)[::every] for name in ("t", "q", "u")}
        coarse = dataclasses.replace(fine, save_every=every, **rows)
        q, _ = at_times(box, coarse, t)
        assert_allclose(jnp.linalg.norm(q[:, 3:], axis=1), 1.0, rtol=1e-14)
        errors.append(np.abs(q - at_times(box, fine, t)[0]).max())
    assert errors[1] < 1e-4 and errors[1] / errors[0] > 8


@pytest.mark.parametrize(
    ("times", "error", "text"),
    [
        (0.6, ValueError, "times must be from 0 to 0.5 s, where the motion ends, got 0.6 s"),
        (np.nan, ValueError, "got nan s"),
        ([[0.1]], ValueError, r"must be one time or have one axis, got shape \(1, 1\)"),
        (["a"], TypeError, "times must be numbers in s, got"),
        (None, TypeError, "times must be numbers in s, got"),
        (1j, TypeError, "times must be numbers in s, got"),
    ],
)
def test_what_is_no_time_is_refused(fallen, times, error, text):
    with pytest.raises(error, match=text):
        at_times(BouncingBall(), fallen, times)
    with pytest.raises(ValueError, match=r"takes one motion, got a batch of shape \(1,\); use jax.vmap"):
        at_times(BouncingBall(), jax.tree.map(lambda x: x[None], fallen), 0.1)


# ----------------------------------------------------------------------------------------------------------------------------- save_at
@jaxnsd.system
class Oscillator(jaxnsd.System):
    """A unit mass on a spring, of this angular frequency."""

    omega: float = 2.0

    def kinetic_energy(self, t, q, u):
        return 0.5 * u @ u

    def potential_energy(self, t, q):
        return 0.5 * self.omega**2 * q @ q


TIMES = np.array([0.0, 0.1234, 0.3, 0.44, 0.46, 0.4999])


def test_a_run_that_is_stored_at_times_of_its_own():
    """The bounce in closed form; percussions, outcomes and events between the times are those of all nodes."""
    scheme = LocatedImpacts(MoreauJean())
    sol, whole = fall(scheme, save_at=TIMES), fall(scheme)
    assert sol.q.shape == (6, 1) and sol.P_N.shape == (5, 1) and bool(sol.success) and int(sol.steps) == N
    assert_allclose(sol.dt, DT, rtol=1e-13)
    wanted = states(TIMES)
    # Second order in dt in the step of the impact alone.
    assert_allclose(sol.q[:4, 0], wanted[0][:4], atol=1e-14)
    assert_allclose(sol.q[4:, 0], wanted[0][4:], atol=1e-12)
    assert_allclose(sol.u[:, 0], wanted[1], atol=1e-11)
    hit = BouncingBall().mass * (1 + BouncingBall().e_N) * np.sqrt(2 * G * H)
    assert_allclose(sol.P_N[:, 0], [0, 0, 0, hit, 0], rtol=1e-12)
    assert sol.events.tolist() == [0, 0, 0, 1, 0] and int(jnp.sum(sol.iterations)) == int(jnp.sum(whole.iterations[:-1]))
    assert f"{N} steps" in repr(sol)
    (event,) = sol.each_event()
    assert event.t == 0.46
    some = fall(scheme, save_at=np.asarray(whole.t[::20]))
    assert_allclose(some.q, whole.q[::20], atol=1e-15)
    assert_allclose(some.u, whole.u[::20], atol=1e-15)


def test_a_run_goes_on_from_its_last_node_wherever_it_was_looked_at(tmp_path):
    sol = fall(save_at=[0.1, 0.2])
    rest = simulate(BouncingBall(), MoreauJean(), None, None, dt=DT, n_steps=5, start=sol)
    assert_allclose(rest.t[0], DT * N, rtol=1e-13)
    assert_allclose(rest.q[0], fall().q[-1])
    sol.save(tmp_path / "fall.npz")
    again = type(sol).load(tmp_path / "fall.npz")
    assert again.save_every is None and float(again.grid.end) == float(sol.grid.end)


def test_times_after_the_end_of_a_motion_that_was_stopped():
    sol = fall(until=lambda t, q, u: q[0] < 0.5, save_at=TIMES)
    n = int(np.floor(np.sqrt(2 * 0.5 / G) / DT)) + 1
    assert int(sol.stop) == n and int(sol.end) == 3
    assert_allclose(sol.t, np.minimum(TIMES, n * DT), rtol=1e-14)
    assert_allclose(sol.q[:, 0], states(np.minimum(TIMES, n * DT))[0], atol=1e-13)
    assert sol.trimmed().q.shape == (4, 1)


@pytest.mark.filterwarnings("ignore:Moreau with dt")
def test_what_failed_where_nobody_looked():
    """A spring that an explicit scheme blows up: after the last time, and where there is one time only."""
    stiff = simulate(Oscillator(1e2), Moreau(), jnp.ones(1), jnp.zeros(1), 4.0, 0.04, save_at=[0.01, 0.1])
    one = simulate(Oscillator(1e2), Moreau(), jnp.ones(1), jnp.zeros(1), 4.0, 0.04, save_at=[0.01])
    for sol, where in ((stiff, "up to time 1 after the first"), (one, "in a step")):
        assert not bool(sol.success)
        with pytest.raises(SimulationError, match=f"(DIVERGED|NON_FINITE) {where}"):
            sol.raise_if_failed()


@pytest.mark.parametrize(
    ("scheme", "in_q", "in_u"),
    [
        (MoreauJean(), 2, 2),
        pytest.param(Lobatto(3), 4, 2, marks=pytest.mark.slow),
        pytest.param(SymmetricMoreau(), 2, 2, marks=pytest.mark.slow),
    ],
    ids=lambda x: getattr(x, "name", None),
)
def test_order_at_times_between_the_nodes(scheme, in_q, in_u):
    """cos(omega t), at times that no step divides: the order of the scheme, up to 4 in q, of which the cubic is, and 2 in u."""
    t = np.linspace(0.0, 1.0, 11) ** 1.5
    errors = []
    for n in (20, 40):
        sol = simulate(Oscillator(), scheme, jnp.ones(1), jnp.zeros(1), 1.0, n_steps=n, save_at=t)
        errors.append([np.abs(sol.q[:, 0] - np.cos(2 * t)).max(), np.abs(sol.u[:, 0] + 2 * np.sin(2 * t)).max()])
    order = np.log2(np.divide(*errors))
    assert order[0] > in_q - 0.2 and order[1] > in_u - 0.2 and errors[1][0] < 3e-3


@pytest.mark.slow
def test_times_of_a_batch_and_their_derivatives():
    """Members at times of their own, by time and height, in both modes, through an impact."""
    scheme, e = LocatedImpacts(MoreauJean()), BouncingBall().e_N

    def height(h0, t):
        return fall(scheme, h0, save_at=t).q[:, 0]

    def exact(h0, t):
        hit = jnp.sqrt(2 * h0 / G)
        return jnp.where(t < hit, h0 - 0.5 * G * t**2, e * G * hit * (t - hit) - 0.5 * G * (t - hit) ** 2)

    heights, times = jnp.array([0.8, 1.0]), jnp.array([[0.1, 0.2003, 0.47], [0.1234, 0.3021, 0.481]])
    assert_allclose(jax.jit(jax.vmap(height))(heights, times), jax.vmap(exact)(heights, times), atol=1e-12)
    along = (jnp.ones(2), jnp.full((2, 3), 0.3))
    assert_allclose(jax.jvp(jax.vmap(height), (heights, times), along)[1], jax.jvp(jax.vmap(exact), (heights, times), along)[1], rtol=1e-9)
    found, wanted = (jax.grad(lambda h, t, f=f: f(h, t)[-1], argnums=(0, 1))(heights[0], times[0]) for f in (height, exact))
    assert_allclose(found[0], wanted[0], rtol=1e-9)
    assert_allclose(found[1], wanted[1], rtol=1e-9, atol=1e-12)
    assert np.isnan(jax.jit(height)(1.0, jnp.array([0.1, 0.7]))[1])


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"save_at": [0.2, 0.1]}, ValueError, "save_at must increase, got 0.2 s before 0.1 s"),
        ({"save_at": [0.1, 0.6]}, ValueError, "save_at must be from t0 = 0 to t1 = 0.5 s, got 0.6 s"),
        ({"save_at": 0.1}, ValueError, r"save_at must be one time or more along one axis, got an array of shape \(\)"),
        ({"save_at": ["a"]}, TypeError, "save_at must be times in s, got"),
        ({"save_at": [0.1], "save_every": 2}, ValueError, "so does save_every = 2: give one of them"),
    ],
)
def test_times_that_cannot_be_stored_are_refused(options, error, text):
    with pytest.raises(error, match=text):
        fall(**options)


def test_what_needs_nodes_says_so():
    sol = fall(save_at=TIMES)
    for ask in (lambda: at_times(BouncingBall(), sol, 0.1), lambda: energy.balance(BouncingBall(), MoreauJean(), sol)):
        with pytest.raises(ValueError, match="needs the nodes of a run, which a solution with save_at does not have"):
            ask()
