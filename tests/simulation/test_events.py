"""What the Solution says of the contacts in each step: impacts, grazing, simultaneous impacts, accumulation points."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scheme_table import over

import jaxnsd
from jaxnsd import Event, System, simulate
from jaxnsd.models import BouncingBall

SCHEMES = [jaxnsd.Moreau(), jaxnsd.MoreauJean(), jaxnsd.Lobatto(2), jaxnsd.LocatedImpacts(jaxnsd.MoreauJean())]


def fall(scheme, height, dt, ball=None):
    """A ball from a height at rest: always as many steps, so that a scheme is compiled once for all tests."""
    return simulate(ball or BouncingBall(), scheme, jnp.array([height]), jnp.zeros(1), 4000 * dt, dt)


@over(SCHEMES, SCHEMES[:1])
def test_bouncing_ball(scheme):
    """Impacts at t_1 (1 + 2 e + 2 e^2 + ...): each is seen, in its step or next to it; their accumulation once, and no other event."""
    ball, dt = BouncingBall(), 1e-3
    sol = fall(scheme, 1.0, dt)
    first, e = np.sqrt(2 / ball.gravity), ball.e_N
    times = first * np.concatenate([[1.0], 1 + 2 * np.cumsum(e ** np.arange(1, 40))])
    closing = ball.gravity * first * e ** np.arange(40)
    seen = np.asarray(sol.t[1:])[(np.asarray(sol.events) & Event.IMPACT) > 0]
    clear = times[closing > 20 * ball.gravity * dt]
    np.testing.assert_allclose(seen[: len(clear)], clear, atol=20 * dt)
    assert len(seen) <= len(clear) + 15
    assert sol.count(Event.SIMULTANEOUS) == 0
    end = times[-1] + 0.1
    ends = np.asarray(sol.t[1:])[(np.asarray(sol.events) & Event.ACCUMULATION) > 0]
    assert 1 <= len(ends) <= 8 and np.all(ends > times[10])
    assert not np.any(np.asarray(sol.events)[np.asarray(sol.t[1:]) > end] & ~int(Event.GRAZING))


def test_stored_intervals_hold_the_events_of_all_their_steps():
    fine = fall(jaxnsd.Moreau(), 1.0, 1e-3)
    coarse = simulate(BouncingBall(), jaxnsd.Moreau(), jnp.array([1.0]), jnp.zeros(1), 4.0, 1e-3, save_every=100)
    np.testing.assert_array_equal(coarse.events, np.bitwise_or.reduce(np.asarray(fine.events).reshape(40, 100), axis=1))
    batch = jax.tree.map(lambda *x: jnp.stack(x), fall(jaxnsd.Moreau(), 1.0, 1e-3), fall(jaxnsd.Moreau(), 100.0, 1e-3))
    np.testing.assert_array_equal(batch.count(Event.IMPACT), [fine.count(Event.IMPACT), 0])


@over([jaxnsd.SymmetricMoreau(), *SCHEMES, jaxnsd.VariationalMoreau()], [jaxnsd.SymmetricMoreau()])
def test_an_impact_at_the_first_node(scheme):
    """A ball that is thrown onto the floor on which it lies; one that lies there, or leaves it, has no impact."""

    def thrown(u0, **options):
        return simulate(BouncingBall(), scheme, jnp.zeros(1), jnp.array([u0]), 0.1, 1e-2, **options)

    sol = thrown(-1.0)
    np.testing.assert_array_equal(sol.events & Event.IMPACT, [1] + [0] * 9)
    np.testing.assert_array_equal(thrown(-1.0, save_every=5).events & Event.IMPACT, [1, 0])
    on = simulate(BouncingBall(), scheme, None, None, 0.15, 1e-2, start=sol)
    for other in (thrown(0.0), thrown(1.0), on):
        assert other.count(Event.IMPACT) == 0


def test_soft_landing_is_grazing():
    """A ball released just above the floor closes slower than a step of gravity tells from rest; one that lies there has no event."""
    ball, dt = BouncingBall(e_N=0.0), 1e-2
    soft, rest = (fall(jaxnsd.Moreau(), height, dt, ball) for height in (0.2 * ball.gravity * dt**2, -1e-12))
    assert soft.count(Event.GRAZING) == 1 and soft.count(Event.IMPACT) == 0
    assert not np.any(rest.events)


@jaxnsd.system
class Row(System):
    """Three balls of equal mass and size on a line."""

    diameter: float = 1.0
    e_N: float = 0.8

    def mass_matrix(self, t, q):
        return jnp.eye(3)

    def gap(self, t, q):
        return jnp.diff(q) - self.diameter


@pytest.mark.slow
def test_coupled_impacts_in_one_step():
    """Both gaps close within a step: coupled through the bead in the middle. A thousandth of a second apart they are two impacts."""
    run = lambda late: simulate(  # noqa: E731
        Row(), jaxnsd.Moreau(), jnp.array([-1.1, 0.0, 1.1 + late]), jnp.array([1.0, 0.0, -1.0]), 0.3, 1e-2
    )
    together, apart = run(0.0), run(0.03)
    assert together.count(Event.SIMULTANEOUS) == 1 and together.count(Event.IMPACT) == 1
    assert apart.count(Event.SIMULTANEOUS) == 0 and apart.count(Event.IMPACT) >= 2


def test_a_ball_that_hits_two_that_touch():
    """Whether the last ball takes part in the impact depends on the last bit of a gap: flagged, wherever the bit falls."""

    def run(gap):
        start = jnp.array([-0.105, 0.0, gap]), jnp.array([1.0, 0.0, 0.0])
        return simulate(Row(diameter=0.0, e_N=1.0), jaxnsd.Moreau(), *start, 0.3, 1e-2)

    for gap in (0.0, 1e-15, -1e-15):
        assert run(gap).count(Event.SIMULTANEOUS) == 1
    assert run(0.05).count(Event.SIMULTANEOUS) == 0


@pytest.mark.filterwarnings("ignore:.*float32")
def test_rest_in_single_precision_is_no_event():
    """A ball of radius 0.1 that lies on the floor: rounding of its height opens no contact."""

    @jaxnsd.system
    class Ball(BouncingBall):
        radius: float = 0.1

        def gap(self, t, q):
            return q - self.radius

    sol = simulate(Ball(), jaxnsd.MoreauJean(), jnp.array([0.1], jnp.float32), jnp.zeros(1, jnp.float32), 1.0, 1e-3)
    assert not np.any(sol.events)


@pytest.mark.slow
def test_impacts_that_are_not_coupled_are_not_simultaneous():
    @jaxnsd.system
    class Pair(Row):
        def gap(self, t, q):
            return q

    sol = simulate(Pair(), jaxnsd.Moreau(), jnp.array([0.1, 0.1, 0.1]), -jnp.ones(3), 0.3, 1e-2)
    assert sol.count(Event.IMPACT) == 1 and sol.count(Event.SIMULTANEOUS) == 0


def test_no_contacts_no_events():
    @jaxnsd.system
    class Free(System):
        def mass_matrix(self, t, q):
            return jnp.eye(1)

    assert not np.any(simulate(Free(), jaxnsd.Moreau(), jnp.zeros(1), jnp.ones(1), 0.1, 1e-2).events)


@jaxnsd.system
class BallOnTable(System):
    """A ball over a table at ``amplitude sin(rate t)``."""

    amplitude: float = 0.0
    rate: float = 0.0
    e_N: float = 0.5

    def mass_matrix(self, t, q):
        return jnp.eye(1)

    def potential_energy(self, t, q):
        return 9.81 * q[0]

    def gap(self, t, q):
        return q - self.amplitude * jnp.sin(self.rate * t)


def test_located_impacts_once_a_period_do_not_accumulate():
    """A ball that bounces on a shaken table, once a period of a dozen steps: it arrives with -g T / 2 and leaves with g T / 2."""
    period, e, periods = 0.2, 0.5, 10
    speed = 0.5 * 9.81 * period
    table, amplitude = speed * (1 - e) / (1 + e), 0.35 * period / (2 * np.pi)
    phase = np.arccos(table / (amplitude * 2 * np.pi / period)) / (2 * np.pi) * period  # of the impact
    height = amplitude * np.sin(2 * np.pi * phase / period)
    start = phase + 0.3 * period  # in flight
    q0, u0 = height + speed * 0.3 * period - 0.5 * 9.81 * (0.3 * period) ** 2, speed - 9.81 * 0.3 * period
    ball = BallOnTable(amplitude, 2 * np.pi / period, e)
    scheme = jaxnsd.LocatedImpacts(jaxnsd.MoreauJean())
    sol = simulate(ball, scheme, jnp.array([q0]), jnp.array([u0]), t0=start, n_steps=12 * periods, t1=start + periods * period)
    times = np.asarray(sol.auxiliary["impact_times"])
    np.testing.assert_allclose(np.diff(times[np.isfinite(times)]), period, rtol=1e-9)
    assert sol.count(Event.IMPACT) == periods and sol.count(Event.ACCUMULATION) == 0


@pytest.mark.slow
@pytest.mark.parametrize("slowest", [1.5, 0.05])
def test_located_impacts_that_accumulate_are_told(slowest):
    """Where the next impact would be too slow to be located, or comes within the step; no sooner than a step away from the end."""
    scheme, dt, e = jaxnsd.LocatedImpacts(jaxnsd.MoreauJean(), 8, slowest=slowest), 1e-2, 0.5
    sol = simulate(BallOnTable(), scheme, jnp.array([0.3]), jnp.zeros(1), 2.0, dt)
    end = np.sqrt(2 * 0.3 / 9.81) * (1 + e) / (1 - e)
    flagged = np.asarray(sol.t[1:])[(np.asarray(sol.events) & Event.ACCUMULATION) > 0]
    assert 1 <= len(flagged) <= 3 and np.all(np.abs(flagged - end) < 8 * dt)


# ------------------------------------------------------------------------------------------------------------- one by one, after the run
@jaxnsd.system
class Pair(jaxnsd.System):
    """Two balls that fall beside each other from 1 m and 0.5 m."""

    e_N: float = 0.5
    contact_names = ("left", "right")

    def kinetic_energy(self, t, q, u):
        return 0.5 * u @ u

    def potential_energy(self, t, q):
        return 9.81 * jnp.sum(q)

    def gap(self, t, q):
        return q


@pytest.mark.parametrize("scheme", [jaxnsd.LocatedImpacts(jaxnsd.MoreauJean()), jaxnsd.MoreauJean()], ids=lambda x: x.name)
def test_each_event_has_time_name_and_state(scheme):
    """Falls of 1 m and 0.5 m end after sqrt(2 h / g), and turn the velocity by e = 1/2."""
    dt = 1e-2
    sol = simulate(Pair(), scheme, jnp.array([1.0, 0.5]), jnp.zeros(2), 0.6, dt).raise_if_failed()
    first, second = np.sqrt(2 * np.array([0.5, 1.0]) / 9.81)
    located = isinstance(scheme, jaxnsd.LocatedImpacts)
    happened = sol.each_event()
    assert [x.names for x in happened] == [("right",), ("left",)] and [x.contacts for x in happened] == [(1,), (0,)]
    for x, t in zip(happened, (first, second), strict=True):
        assert Event.IMPACT in x.event and str(x).startswith(f"impact at t = {x.t:.6g} s: {x.names[0]}")
        assert abs(x.t - t) < (1e-12 if located else 2 * dt)
        before, after = x.before[x.contacts[0]], x.after[x.contacts[0]]
        assert before < 0 < after and abs(after + 0.5 * before) < 2 * 9.81 * dt
        np.testing.assert_array_equal(x.q, sol.q[x.step + 1])
        assert sol.P_N[x.step, x.contacts[0]] > 0


def test_events_of_a_batch_are_those_of_its_members():
    batch = jax.vmap(lambda h: simulate(BouncingBall(), jaxnsd.Moreau(), h[None], jnp.zeros(1), 0.5, 1e-2))(jnp.array([0.5, 2.0]))
    assert [len(sol.each_event()) for sol in batch] == [1, 0]
    assert batch[0].each_event()[0].names == ("contact 0",)
    with pytest.raises(TypeError, match="takes one motion: for sol in solution"):
        batch.each_event()
