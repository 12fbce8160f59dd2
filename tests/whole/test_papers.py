"""The figures and closed forms of the papers: C18 = Capobianco & Eugster (2018), C24 = Capobianco et al. (2024)."""

import jax
import numpy as np
import pytest
from scheme_table import MOREAU_TYPE, over

from jaxnsd import Moreau, SymmetricMoreau, VariationalMoreau, simulate
from jaxnsd.models import BouncingBall, RotatingBall, SpringPendulum, Woodpecker

GRAVITY = 9.81

# One number of steps for all step sizes of a test, so that they share one compiled run; what comes after the time of interest is cut off.
BALL_STEPS, PENDULUM_STEPS, WOODPECKER_STEPS, ROTATING_STEPS = 16_000, 4_000, 5_000, 2_500


def run(system, scheme, n_steps, dt, state=None):
    return simulate(system, scheme, *(system.initial_state() if state is None else state), n_steps * dt, dt).raise_if_failed()


# ----------------------------------------------------------------------------------------------- C18 Fig. 1-2: bouncing ball
@over(MOREAU_TYPE, fast=[SymmetricMoreau()])
def test_bouncing_ball_accumulation_point(scheme):
    """The bounces end at t* = t_1 (1 + e) / (1 - e), with an error of a few steps, and the ball rests."""
    ball = BouncingBall()
    exact = np.sqrt(2 / GRAVITY) * (1 + ball.e_N) / (1 - ball.e_N)
    errors = []
    steps = (4e-3, 1e-3, 2.5e-4)
    for dt in steps:
        solution = run(ball, scheme, BALL_STEPS, dt)
        t, q, u, P_N = (np.asarray(x) for x in (solution.t, solution.q[:, 0], solution.u[:, 0], solution.P_N[:, 0]))
        last_flight = np.flatnonzero(q > 0)[-1]
        errors.append(abs(t[last_flight + 1] - exact))
        resting = t[1:] > exact + 0.5
        np.testing.assert_allclose(P_N[resting], ball.mass * GRAVITY * dt, rtol=1e-9)
        assert np.all(np.abs(u[1:][resting]) < 1e-10)
        # The ball sinks in by at most one step at the speed of the first impact, and rests within the last tiny bounces' reach.
        assert q.min() > -1.01 * dt * np.sqrt(2 * GRAVITY)
        assert -GRAVITY * dt**2 < q[-1] <= 0
    assert all(error < 15 * dt for error, dt in zip(errors, steps, strict=True)), errors
    assert errors[-1] < errors[0] / 4, errors


@over(MOREAU_TYPE, fast=[SymmetricMoreau()])
def test_bouncing_ball_impacts(scheme):
    """Every impact reverses the velocity times e_N, and the peaks fall as e_N^2 (Fig. 1)."""
    dt = 2.5e-4
    ball = BouncingBall()
    solution = run(ball, scheme, BALL_STEPS, dt)
    q, u, P_N = (np.asarray(x[:, 0]) for x in (solution.q, solution.u, solution.P_N))
    impacts = np.flatnonzero((P_N > 0) & (u[:-1] < -0.1))
    assert len(impacts) > 10
    np.testing.assert_allclose(u[impacts + 1], -ball.e_N * u[impacts], rtol=1e-12)
    free_fall = ball.mass * GRAVITY * dt
    np.testing.assert_allclose(P_N[impacts], (1 + ball.e_N) * ball.mass * np.abs(u[impacts]) + free_fall, rtol=1e-12)
    peaks = [q[a:b].max() for a, b in zip(impacts[:6] + 1, impacts[1:7] + 1, strict=True)]
    np.testing.assert_allclose(peaks, ball.e_N ** (2 * np.arange(1, 7)), rtol=0.02)


# -------------------------------------------------------------------------------------------- C18 Fig. 3-5: spring pendulum
ENERGY_AT_START = -7.130389275784


def energy_errors(scheme, t1, dt=1e-3):
    """(t, e_E) at the nodes without impact: relative error of the energy, the mean over the arriving and the leaving velocity."""
    pendulum = SpringPendulum()
    solution = simulate(pendulum, scheme, *pendulum.initial_state(), t1, dt).raise_if_failed()
    energy = jax.jit(jax.vmap(pendulum.total_energy))
    t, q, u = solution.t[1:], solution.q[1:], solution.u
    mean = 0.5 * (energy(t, q, u[:-1]) + energy(t, q, u[1:]))
    smooth = np.asarray(solution.P_N[:, 0]) == 0
    assert 0 < np.sum(~smooth) < len(smooth) / 50
    return np.asarray(t)[smooth], (np.asarray(mean)[smooth] - ENERGY_AT_START) / ENERGY_AT_START


def test_spring_pendulum_energy_at_start():
    pendulum = SpringPendulum()
    assert float(pendulum.total_energy(0.0, *pendulum.initial_state())) == pytest.approx(ENERGY_AT_START, rel=1e-12)


@pytest.mark.slow
@over(MOREAU_TYPE[1:], fast=[VariationalMoreau()])
@pytest.mark.parametrize("t1", [50.0, pytest.param(1000.0, marks=pytest.mark.long)])
def test_spring_pendulum_energy_is_bounded(scheme, t1):
    """Fig. 4: no drift, over impacts either."""
    t, error = energy_errors(scheme, t1)
    assert np.max(np.abs(error)) < 2e-3
    # No drift: the last tenth is no worse than the first half was.
    assert np.max(np.abs(error[t > 0.9 * t1])) < 1.5 * np.max(np.abs(error[t < 0.5 * t1]))


def test_spring_pendulum_moreau_loses_energy():
    """Fig. 4: Moreau's scheme leaves within seconds the band in which the others stay."""
    t, error = energy_errors(Moreau(), 50.0)
    assert t[np.abs(error) > 2e-3][0] < 15
    # E(0) is negative: a positive relative error is a loss.
    assert np.mean(error[t > 45]) > 2e-3
    thirds = [np.mean(error[(t > a) & (t < a + 10)]) for a in (0, 20, 40)]
    assert thirds[0] < thirds[1] < thirds[2]


@pytest.mark.long
def test_spring_pendulum_moreau_loses_the_pendular_motion():
    """Fig. 4: the energy error passes 1, and in the end the mass swings vertically only."""
    _, error = energy_errors(Moreau(), 1000.0)
    assert np.max(np.abs(error)) > 1
    pendulum = SpringPendulum()
    solution = simulate(pendulum, Moreau(), *pendulum.initial_state(), 1000.0, 1e-3)
    late = np.asarray(solution.q[-100_000:, 1])
    assert np.max(np.abs(late)) < 0.2 * np.pi / 4


@pytest.mark.long
def test_spring_pendulum_mean_square_error():
    """Fig. 5: the mean square error over time of Moreau and of the symmetric scheme, over the first second with one impact.

    Both are of first order across the impact, two for the square; the symmetric scheme has the smaller error. When a step hits the wall is
    a lottery, so the errors are averaged (geometrically) over many step sizes; over many impacts the difference averages out.
    """
    coarse, t1 = 4e-3, 1.0
    nodes = round(t1 / coarse) + 1
    divisors = np.arange(1, 17)
    pendulum = SpringPendulum()
    reference = simulate(pendulum, SymmetricMoreau(), *pendulum.initial_state(), t1, 1e-5, save_every=400).raise_if_failed().q

    def errors(scheme):
        runs = [run(pendulum, scheme, PENDULUM_STEPS, coarse / m).q[::m][:nodes] for m in divisors]
        return np.array([np.mean(np.sum(np.asarray(q - reference) ** 2, axis=1)) for q in runs])

    moreau, symmetric, variational = (errors(scheme) for scheme in MOREAU_TYPE)
    slopes = [-np.polyfit(np.log(divisors), np.log(e), 1)[0] for e in (moreau, symmetric, variational)]
    assert 1.5 < slopes[0] < 2.5
    assert all(1.5 < slope < 3.2 for slope in slopes[1:])
    assert np.exp(np.mean(np.log(moreau / symmetric))) > 2.5
    assert np.exp(np.mean(np.log(moreau / variational))) > 2.5


@pytest.mark.long
def test_spring_pendulum_both_gaps():
    """The angle and the distance l sin(phi) describe the same wall: the motions agree as dt goes to 0, but are not the same."""
    errors, steps = [], (4e-3, 1e-3, 2.5e-4)
    for dt in steps:
        angle, distance = (run(SpringPendulum(gap_is_distance=kind), SymmetricMoreau(), PENDULUM_STEPS, dt) for kind in (False, True))
        errors.append(np.max(np.abs(angle.q - distance.q)[angle.t <= 1.0]))
    assert all(1e-6 * dt < error < dt for error, dt in zip(errors, steps, strict=True)), errors
    assert errors[-1] < errors[0] / 6, errors


# ------------------------------------------------------------------------------------------------ C18 Fig. 6-7: woodpecker
WOODPECKER_PERIOD = 0.146


@pytest.mark.slow
def test_woodpecker_limit_cycle():
    """Fig. 7: the motion becomes periodic; the phase plot of the sleeve closes."""
    dt, toy = 1e-5, Woodpecker()
    # Moreau's scheme takes the velocity that leaves the last node for the first one, so that runs can be put end to end.
    pieces, state = [], toy.initial_state()
    for _ in range(28):
        pieces.append(run(toy, Moreau(), WOODPECKER_STEPS, dt, state))
        state = pieces[-1].q[-1], pieces[-1].u[-1]
    P_N = np.concatenate([piece.P_N for piece in pieces])
    q, u = (np.concatenate([pieces[0].q[:1], *(piece.q[1:] for piece in pieces)]), np.concatenate([*(piece.u[:-1] for piece in pieces)]))
    t = dt * np.arange(len(q))
    beak = P_N[:, 0] > 0
    strikes = np.flatnonzero(beak[1:] & ~beak[:-1]) + 1
    periods = np.diff(t[1:][strikes])
    late = periods[len(periods) // 2 :]
    assert len(late) >= 5
    assert np.mean(late) == pytest.approx(WOODPECKER_PERIOD, abs=5e-4)
    assert np.ptp(late) < 3e-3 * WOODPECKER_PERIOD
    # The phase plot phi_M, phi_M' of one period lies on that of the next, in the mean over the period; so does that of phi_S.
    n = round(np.mean(late) / dt)
    a, b = strikes[-3], strikes[-2]
    for x in (q[:, 1], u[:, 1], q[:, 2], u[:, 2]):
        one, other = x[a : a + n - n // 20], x[b : b + n - n // 20]
        assert np.mean(np.abs(one - other)) < 0.01 * np.ptp(one)
    # The sleeve tilts from one edge to the other, and goes down by the same distance in each period.
    tilt = (Woodpecker().radius_sleeve - Woodpecker().radius_pole) / Woodpecker().height_sleeve
    assert q[strikes[-3] :, 1].max() == pytest.approx(tilt, rel=0.05)
    assert q[strikes[-3] :, 1].min() == pytest.approx(-tilt, rel=0.05)
    descent = -np.diff(q[strikes, 0])[len(periods) // 2 :]
    assert np.all(descent > 0)
    assert np.ptp(descent) < 0.03 * np.mean(descent)


@pytest.mark.parametrize(
    ("system", "n_steps", "dt", "coincide"),
    [
        pytest.param(Woodpecker(), WOODPECKER_STEPS, 1e-4, True, marks=pytest.mark.long),
        pytest.param(BouncingBall(), BALL_STEPS, 1e-3, True, marks=pytest.mark.slow),
        pytest.param(SpringPendulum(), PENDULUM_STEPS, 1e-3, False, marks=pytest.mark.long),
    ],
    ids=["Woodpecker", "BouncingBall", "SpringPendulum"],
)
def test_schemes_coincide(system, n_steps, dt, coincide):
    """C18 Section 5: with constant M and without velocity-dependent forces the three schemes are one; only their first steps differ.

    Moreau takes the initial velocity for the first interval, the others add half a step's force.
    """
    q0, _ = system.initial_state()
    symmetric = run(system, SymmetricMoreau(), n_steps, dt)
    others = run(system, VariationalMoreau(), n_steps, dt), run(system, Moreau(), n_steps, dt, (q0, symmetric.u[0]))
    scale = np.max(np.abs(symmetric.u))
    for other in others:
        difference = np.max(np.abs(other.u - symmetric.u)) / scale
        # The woodpecker's beak multiplies round-off by its impacts.
        assert difference < 1e-9 if coincide else difference > 1e-7
    assert np.max(np.abs(run(system, Moreau(), n_steps, dt).q - symmetric.q)) > 1e-5


# ------------------------------------------------------------------------------------------ C24 Section 6.1: rotating ball
FALL_TIME = np.sqrt(2 * 0.9 / GRAVITY)
FALL_SPEED = GRAVITY * FALL_TIME


def rotating_ball(scheme, omega, e_N, dt, t1=1.0):
    ball = RotatingBall(e_N=e_N)
    solution = run(ball, scheme, ROTATING_STEPS, dt, ball.initial_state(omega))
    n = round(t1 / dt)
    nodes = (np.asarray(x)[: n + 1] for x in (solution.t, solution.q, solution.u))
    return ball, *nodes, np.asarray(solution.P_N)[:n, 0], np.asarray(solution.P_F)[:n, 0, 0]


STEPS = [1e-2, 2e-3, 4e-4]


@over(MOREAU_TYPE, fast=[])
def test_rotating_ball_case_1(scheme):
    """omega = 0, e_N = 0.5: a ball that bounces without friction force."""
    errors = []
    for dt in STEPS:
        _, t, q, _, _, P_F = rotating_ball(scheme, 0.0, 0.5, dt)
        np.testing.assert_array_equal(P_F, 0)
        np.testing.assert_array_equal(q[:, [0, 2]], 0)
        flight = (t > FALL_TIME) & (t < 2 * FALL_TIME)
        s = np.where(flight, t - FALL_TIME, 0)
        exact = np.where(flight, 0.1 + 0.5 * FALL_SPEED * s - 0.5 * GRAVITY * s**2, 1 - 0.5 * GRAVITY * t**2)
        errors.append(np.max(np.abs(q[:, 1] - exact)[t < 2 * FALL_TIME]))
    # The impact comes up to one step late, at a relative speed of 1.5 v_1.
    assert all(error < 2 * FALL_SPEED * dt for error, dt in zip(errors, STEPS, strict=True)), errors
    assert errors[-1] < errors[0] / 5, errors


@over(MOREAU_TYPE, fast=[])
def test_rotating_ball_case_2(scheme):
    """omega = 50, e_N = 0: slips at the impact, slides with mu g, rolls at 2 omega R / 7."""
    omega = 50.0
    errors, shifts = [], []
    for dt in STEPS:
        ball, t, q, u, P_N, P_F = rotating_ball(scheme, omega, 0.0, dt)
        rolling = 2 * omega * ball.radius / 7
        # Linear and angular momentum share one percussion, so they are tied at every instant, exactly.
        np.testing.assert_allclose(u[:, 2], omega + 2.5 / ball.radius * u[:, 0], rtol=1e-12)
        impact = np.flatnonzero(P_N > 0)[0]
        fallen = abs(u[impact, 1])
        assert abs(fallen - FALL_SPEED) < 2 * GRAVITY * dt
        # The percussion at the impact: all of the vertical momentum and one step's weight; slip, so the border of the cone.
        np.testing.assert_allclose(P_N[impact], ball.mass * (fallen + GRAVITY * dt), rtol=1e-12)
        np.testing.assert_allclose(u[impact + 1, 0], -ball.mu * P_N[impact] / ball.mass, rtol=1e-12)
        sliding = (P_N > 0) & (t[1:] > FALL_TIME + 3 * dt) & (t[1:] < 0.7)
        np.testing.assert_allclose(np.diff(u[:, 0])[sliding], -ball.mu * GRAVITY * dt, rtol=1e-9)
        np.testing.assert_allclose(P_F[sliding], -ball.mu * P_N[sliding], rtol=1e-12)
        np.testing.assert_allclose(u[-1, 0], -rolling, rtol=1e-12)
        np.testing.assert_allclose(u[-1, 0] + ball.radius * u[-1, 2], 0, atol=1e-12)
        np.testing.assert_allclose(P_F[-5:], 0, atol=1e-12)
        stop = FALL_TIME + (rolling - ball.mu * FALL_SPEED) / (ball.mu * GRAVITY)
        exact = np.where(t < FALL_TIME, 0, -np.minimum(ball.mu * FALL_SPEED + ball.mu * GRAVITY * (t - FALL_TIME), rolling))
        away = np.abs(t - FALL_TIME) > 2 * dt
        errors.append(np.max(np.abs(u[:, 0] - exact)[away]))
        slid = stop - FALL_TIME
        x = -ball.mu * FALL_SPEED * slid - 0.5 * ball.mu * GRAVITY * slid**2 - rolling * (t[-1] - stop)
        shifts.append(abs(q[-1, 0] - x))
    assert all(error < 3 * ball.mu * GRAVITY * dt for error, dt in zip(errors, STEPS, strict=True)), errors
    assert all(shift < 2 * rolling * dt for shift, dt in zip(shifts, STEPS, strict=True)), shifts
    assert errors[-1] < max(errors[0] / 5, 1e-12), errors
    assert shifts[-1] < shifts[0] / 5, shifts


@over(MOREAU_TYPE, fast=[])
def test_rotating_ball_case_3(scheme):
    """omega = 10, e_N = 0: sticks at the impact and rolls from then on."""
    omega = 10.0
    for dt in STEPS:
        ball, t, q, u, P_N, P_F = rotating_ball(scheme, omega, 0.0, dt)
        rolling = 2 * omega * ball.radius / 7
        impact = np.flatnonzero(P_N > 0)[0]
        assert abs(t[impact + 1] - FALL_TIME) < 1.5 * dt
        np.testing.assert_array_equal(u[: impact + 1, 0], 0)
        np.testing.assert_allclose(u[impact + 1 :, 0], -rolling, rtol=1e-12)
        np.testing.assert_allclose(u[impact + 1 :, 2], rolling / ball.radius, rtol=1e-12)
        np.testing.assert_allclose(P_F[impact], -ball.mass * rolling, rtol=1e-12)
        assert abs(P_F[impact]) < ball.mu * P_N[impact]
        assert abs(q[-1, 0] + rolling * (t[-1] - FALL_TIME)) < 1.5 * rolling * dt
        assert -2 * FALL_SPEED * dt < q[-1, 1] - ball.radius <= 0
