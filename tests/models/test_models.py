"""The models as they are written, and closed forms of their motions. What holds for every scheme on every model is in `test_table`.

Every closed form is held against one scheme of Moreau's type in the fast tests (in the slow ones where another fast test has the same
feature), against the others in the long ones.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from little_systems import GRAVITY, CartesianPendulum, ShakenTable, Skate, TumblingBody, quick
from scheme_table import MOREAU_TYPE, over
from scipy.integrate import solve_ivp

import jaxnsd
from jaxnsd import Moreau, SymmetricMoreau, System, VariationalMoreau, simulate
from jaxnsd.models import MODELS, BeadColumn, CornerBlock, DoublePendulum, RotatingBall, Sphere, SpringPendulum, TwoDiscs, Woodpecker

#: Steps of every run of a system, whatever their size: runs with different parameters, states and steps share one compiled program.
N_STEPS = {CornerBlock: 4000, DoublePendulum: 4000, RotatingBall: 1000}


def run(system, scheme, dt, state=None):
    n_steps = N_STEPS.get(type(system), 2000)
    q0, u0 = state or system.initial_state()
    return simulate(system, scheme, q0, u0, n_steps * dt, dt).raise_if_failed()


# ------------------------------------------------------------------------------------------------ the models as they are written
@quick
def kinematics(system, q, u):
    """Derived quantities at a state, and differences of gap and energy along the motion."""
    M, h = system.M(0.0, q), system.h(0.0, q, u)
    a, eps = jnp.linalg.solve(M, h), 1e-6
    ahead, behind = (q + step * system.q_dot(0.0, q, u) for step in (eps, -eps))
    gap = (system.gap(0.0, ahead) - system.gap(0.0, behind)) / (2 * eps)
    power = (system.total_energy(0.0, ahead, u + eps * a) - system.total_energy(0.0, behind, u - eps * a)) / (2 * eps)
    return M, h, system.gap_velocity(0.0, q, u), system.W_N(0.0, q, u).T @ u, system.kinetic_energy(0.0, q, u), gap, power


@pytest.mark.parametrize("name", list(MODELS))
def test_model_kinematics(name):
    """Gap velocities against finite differences; symmetric positive definite mass; forces against the derivative of the energy."""
    system = MODELS[name]()
    q0, u0 = system.initial_state()
    # The woodpecker's published state penetrates by 0.9 micrometres.
    assert np.min(jax.jit(system.gap)(0.0, q0)) > -1e-6
    rng = np.random.default_rng(0)
    q = q0 + 0.1 * rng.standard_normal(q0.shape)
    if name in ("Cube", "TossedCube"):
        q = q.at[3:].divide(jnp.linalg.norm(q[3:]))
    u = rng.standard_normal(u0.shape)
    M, h, gap_velocity, from_W, T, difference, power = (np.asarray(x) for x in kinematics(system, q, u))
    np.testing.assert_allclose(gap_velocity, difference, rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(from_W, gap_velocity, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(M, M.T, rtol=1e-14)
    assert np.linalg.eigvalsh(M)[0] > 0
    assert float(T) == pytest.approx(0.5 * u @ M @ u, rel=1e-12)
    # d/dt (T + V) = 0 without contact, with du/dt = M^-1 h.
    assert abs(float(power)) < 1e-7 * (1 + np.abs(u @ h))


def test_woodpecker_matrices():
    """Against the numbers of MODELS, typed independently."""
    toy = Woodpecker()
    mM, mS, JM, JS, c, lM, lG, lS, rO, rM, hM, hS = 3e-4, 4.5e-3, 5e-9, 7e-7, 5.6e-3, 0.010, 0.015, 0.0201, 2.5e-3, 3.1e-3, 5.8e-3, 0.02
    M = np.array([[mS + mM, mS * lM, mS * lG], [mS * lM, JM + mS * lM**2, mS * lM * lG], [mS * lG, mS * lM * lG, JS + mS * lG**2]])
    K = c * np.array([[0, 0, 0], [0, 1, -1], [0, -1, 1]])
    f = -GRAVITY * np.array([mS + mM, mS * lM, mS * lG])
    q, u = np.array([0.3, -0.05, 0.2]), np.array([-0.2, 1.0, -2.0])
    np.testing.assert_allclose(toy.M(0.0, jnp.array(q)), M, rtol=1e-14)
    np.testing.assert_allclose(toy.h(0.0, jnp.array(q), jnp.array(u)), f - K @ q, rtol=1e-12)
    gap = [lM + lG - lS - rO - hS * q[2], (rM - rO) + hM * q[1], (rM - rO) - hM * q[1]]
    np.testing.assert_allclose(toy.gap(0.0, jnp.array(q)), gap, rtol=1e-12)
    np.testing.assert_allclose(toy.W_F(0.0, jnp.array(q))[:, :, 0].T, [[1, lM, lG - lS], [1, rM, 0], [1, rM, 0]], rtol=1e-12)


def test_contact_points_of_the_block_and_the_double_pendulum():
    """gamma_F and gap from the position of the material point, differentiated numerically."""
    rng = np.random.default_rng(1)
    q, u, eps = rng.standard_normal(3), rng.standard_normal(3), 1e-6
    block = CornerBlock()

    def corners(q):
        A = np.array([[np.cos(q[2]), -np.sin(q[2])], [np.sin(q[2]), np.cos(q[2])]])
        return q[:2] + (A @ np.array([[-block.half_width, block.half_width], [-block.half_height, -block.half_height]])).T

    velocities = (corners(q + eps * u) - corners(q - eps * u)) / (2 * eps)
    np.testing.assert_allclose(block.gap(0.0, jnp.array(q)), corners(q)[:, 1], rtol=1e-12)
    np.testing.assert_allclose(block.tangential_velocity(0.0, jnp.array(q), jnp.array(u))[:, 0], velocities[:, 0], rtol=1e-8)
    np.testing.assert_allclose(block.gap_velocity(0.0, jnp.array(q), jnp.array(u)), velocities[:, 1], rtol=1e-8)

    pendulum, q, u = DoublePendulum(), q[:2], u[:2]
    lengths = np.array([pendulum.length_1, pendulum.length_2])
    masses = lambda q: np.cumsum(lengths[:, None] * np.stack([np.sin(q), -np.cos(q)], axis=1), axis=0)  # noqa: E731
    v = (masses(q + eps * u) - masses(q - eps * u)) / (2 * eps)
    m = np.array([pendulum.mass_1, pendulum.mass_2])
    assert float(pendulum.kinetic_energy(0.0, q, u)) == pytest.approx(0.5 * np.sum(m[:, None] * v**2), rel=1e-8)
    assert float(pendulum.potential_energy(0.0, q)) == pytest.approx(GRAVITY * m @ masses(q)[:, 1], rel=1e-12)
    assert float(pendulum.gap(0.0, q)[0]) == pytest.approx(pendulum.wall - masses(q)[1, 0], rel=1e-12)


def test_contact_points_of_the_sphere():
    sphere, rng = Sphere(), np.random.default_rng(2)
    q, u = rng.standard_normal(6), rng.standard_normal(6)
    floor = u[:3] + np.cross(u[3:], [0, 0, -sphere.radius])
    wall = u[:3] + np.cross(u[3:], [sphere.radius, 0, 0])
    gamma_F = np.asarray(sphere.tangential_velocity(0.0, q, u))
    np.testing.assert_allclose(gamma_F, [floor[:2], wall[1:]], rtol=1e-12)


# ---------------------------------------------------------------------------------------------------------- column of beads
@pytest.mark.slow
@over(MOREAU_TYPE, fast=[Moreau()])
@pytest.mark.parametrize("e_N", [1.0, 0.9])
def test_bead_column_energy_and_momentum(scheme, e_N):
    """Per step: the impacts change the energy by -(1 - e)/2 sum P |closing speed|, the momentum by the floor's percussion alone."""
    dt = 1e-3
    beads = BeadColumn(e_N=e_N, n=5)
    solution = run(beads, scheme, dt)
    u, P_N = np.asarray(solution.u), np.asarray(solution.P_N)
    before, after = u[:-1], u[1:]
    np.testing.assert_allclose(beads.mass * np.sum(after - before, axis=1), P_N[:, 0] - beads.n * beads.mass * GRAVITY * dt, atol=1e-12)
    # Weight does the work of the mean velocity, exactly; what is left of the change of kinetic energy is the impacts' work.
    change = 0.5 * beads.mass * np.sum(after**2 - before**2, axis=1)
    impacts = change + 0.5 * beads.mass * GRAVITY * dt * np.sum(after + before, axis=1)
    closing = np.concatenate([before[:, :1], np.diff(before, axis=1)], axis=1)
    expected = 0.5 * (1 - e_N) * np.sum(P_N * closing, axis=1)
    np.testing.assert_allclose(impacts, expected, atol=1e-12)
    assert np.max(np.sum(P_N > 0, axis=1)) >= 2, "no simultaneous impacts"
    if e_N == 1:
        np.testing.assert_allclose(impacts, 0, atol=1e-12)
    else:
        # P . closing = -(P G P + P . dg/dt of the weight's velocity) / (1 + e): impacts dissipate, but for the weight of one step.
        assert np.all(impacts <= 0.5 * (1 - e_N) / (1 + e_N) * GRAVITY * dt * P_N[:, 0] + 1e-15)
        assert np.sum(impacts) < -0.1 * beads.mass * GRAVITY


@over(MOREAU_TYPE, fast=[Moreau()])
def test_bead_column_conserves_kinetic_energy_without_gravity(scheme):
    """Newton's cradle against a wall: a moving bead hits a column at rest."""
    beads = BeadColumn(e_N=1.0, gravity=0.0, n=5)
    q0, u0 = beads.initial_state()
    u0 = u0.at[-1].set(-1.0)
    solution = run(beads, scheme, 1e-3, state=(q0, u0))
    u = np.asarray(solution.u)
    np.testing.assert_allclose(np.sum(u**2, axis=1), 1.0, rtol=1e-12)
    # Equal masses exchange their velocities: at last the same bead flies away, with the others at rest.
    np.testing.assert_allclose(u[-1], -np.asarray(u0), atol=1e-12)


@over(MOREAU_TYPE, fast=[Moreau()])
def test_bead_column_at_rest(scheme):
    """e_N = 0: all beads come to rest, and contact i carries the weight of the n - i beads above it."""
    dt = 1e-3
    beads = BeadColumn(e_N=0.0, n=5)
    solution = run(beads, scheme, dt)
    np.testing.assert_allclose(solution.u[-1], 0, atol=1e-10)
    np.testing.assert_allclose(solution.P_N[-1], beads.mass * GRAVITY * dt * np.arange(beads.n, 0, -1), rtol=1e-9)
    heights = beads.radius * (2 * np.arange(beads.n) + 1)
    assert np.all(np.asarray(solution.q[-1]) < heights + 1e-12)
    assert np.all(np.asarray(solution.q[-1]) > heights - 2 * dt * np.arange(1, beads.n + 1))


# ------------------------------------------------------------------------------------------------------------------- block
@pytest.mark.slow
@over(MOREAU_TYPE, fast=[SymmetricMoreau()])
def test_block_slides_to_rest(scheme):
    """On both corners: sliding distance v0^2 / (2 mu g), and the leading corner carries more of the weight."""
    v0, errors, steps = 1.0, [], (2e-3, 5e-4, 1.25e-4)
    block = CornerBlock()
    for dt in steps:
        q0, u0 = block.initial_state(0.0, v0)
        # Sunk in by a nanometre: a gap of exactly zero is open or closed by round-off, and then the percussions flicker.
        solution = run(block, scheme, dt, state=(q0.at[1].add(-1e-9), u0))
        stop = v0 / (block.mu * GRAVITY)
        errors.append(abs(float(solution.q[-1, 0]) - v0**2 / (2 * block.mu * GRAVITY)))
        np.testing.assert_allclose(solution.u[-1], 0, atol=1e-12)
        sliding = np.asarray(solution.t[1:]) < stop - 2 * dt
        P_N = np.asarray(solution.P_N)[sliding][1:] / (block.mass * GRAVITY * dt)
        lean = block.mu * block.half_height / block.half_width
        np.testing.assert_allclose(P_N, np.broadcast_to([(1 - lean) / 2, (1 + lean) / 2], P_N.shape), rtol=1e-7)
        np.testing.assert_allclose(np.asarray(solution.q)[:, 2], 0, atol=1e-9)
    assert all(error < 1.01 * v0 * dt for error, dt in zip(errors, steps, strict=True)), errors
    assert errors[-1] < errors[0] / 5, errors


@pytest.mark.slow
@over(MOREAU_TYPE, fast=[SymmetricMoreau()])
def test_block_rocks(scheme):
    """Rough and plastic: the first impact turns omega into (1 - 3/2 sin^2 alpha) omega (Housner 1963), and energy only decreases."""
    block = CornerBlock(mu=3.0)
    a, b = block.half_width, block.half_height
    ratio = 1 - 1.5 * a**2 / (a**2 + b**2)
    errors, steps = [], (2e-3, 5e-4, 1.25e-4)
    for dt in steps:
        solution = run(block, scheme, dt, state=block.initial_state(0.2, 0.0))
        omega, P_N = np.asarray(solution.u[:, 2]), np.asarray(solution.P_N)
        impact = np.flatnonzero(P_N[:, 1] > 0)[0]
        errors.append(abs(omega[impact + 1] / omega[impact] - ratio))
        # About the corner it stands on: J_A omega^2 / 2 = m g (drop of the centre of mass).
        exact = np.sqrt(2 * GRAVITY * (a * np.sin(0.2) + b * np.cos(0.2) - b) / (4 / 3 * (a**2 + b**2)))
        assert abs(abs(omega[impact]) - exact) < 50 * dt
        energy = np.asarray(jax.vmap(block.total_energy)(solution.t, solution.q, solution.u))
        assert np.max(np.diff(energy)) < 100 * dt**2
        assert energy[-1] < energy[0]
    assert all(error < 20 * dt for error, dt in zip(errors, steps, strict=True)), errors
    assert errors[-1] < errors[0] / 4, errors


# ------------------------------------------------------------------------------------- double pendulum against an event-driven run
def event_driven(system, state, t_eval, e):
    """The motion of a frictionless system with one contact, by SciPy: integrate to the impact, apply Newton's law, go on."""
    n = state[0].size
    M, h = quick(lambda q: system.M(0.0, q)), quick(lambda q, u: system.h(0.0, q, u))
    W = quick(lambda q: system.W_N(0.0, q)[:, 0])

    def rhs(t, x):
        return np.concatenate([x[n:], np.linalg.solve(M(x[:n]), h(x[:n], x[n:]))])

    gap = lambda t, x: float(system.gap(0.0, x[:n])[0])  # noqa: E731
    gap.terminal, gap.direction = True, -1
    x, t, out = np.concatenate([np.asarray(s) for s in state]), 0.0, []
    while t < t_eval[-1]:
        remaining = t_eval[t_eval >= t]
        piece = solve_ivp(rhs, (t, t_eval[-1]), x, t_eval=remaining, events=gap, rtol=1e-9, atol=1e-10)
        out.append(piece.y.T[:, :n])
        t, x = piece.t_events[0][0] if piece.status == 1 else t_eval[-1], piece.y[:, -1]
        if piece.status == 1:
            x = piece.y_events[0][0].copy()
            w, Mq = np.asarray(W(x[:n])), np.asarray(M(x[:n]))
            y = np.linalg.solve(Mq, w)
            x[n:] -= (1 + e) * (w @ x[n:]) / (w @ y) * y
            x[:n] -= np.asarray(w) * (gap(t, x) - 1e-13) / (w @ w)
    return np.concatenate(out)[: len(t_eval)]


@pytest.fixture(scope="module")
def double_pendulum_reference():
    pendulum = DoublePendulum()
    q = event_driven(pendulum, pendulum.initial_state(), np.arange(0, 2.9801, 0.01), pendulum.e_N)
    gap = np.array([pendulum.gap(0.0, x)[0] for x in q])
    assert np.min(gap) >= 0
    bounces = (gap[1:-1] < np.minimum(gap[2:], gap[:-2])) & (gap[1:-1] < 0.01)
    assert np.sum(bounces) == 2
    return q


@pytest.mark.slow
@over(MOREAU_TYPE, fast=[VariationalMoreau()])
def test_double_pendulum_converges_to_event_driven(scheme, double_pendulum_reference):
    """First order across two impacts; the errors scatter, because the step that hits the wall does so up to dt late."""
    pendulum, reference = DoublePendulum(), double_pendulum_reference
    divisors = np.arange(1, 13)
    runs = [np.asarray(run(pendulum, scheme, 0.01 / m).q)[::m][: len(reference)] for m in divisors]
    errors = np.array([np.mean(np.abs(q - reference)) for q in runs])
    assert np.all(errors < 0.05 / divisors), errors
    slope = -np.polyfit(np.log(divisors), np.log(errors), 1)[0]
    assert 0.6 < slope < 2.1, (slope, errors)


# -------------------------------------------------------------------------------------------------------------------- sphere
@pytest.mark.slow
@over(MOREAU_TYPE, fast=[SymmetricMoreau()])
def test_sphere_slips_then_rolls(scheme):
    """On the floor: v -> v_0 - 2/7 gamma_0, along a parabola until 2 |gamma_0| / (7 mu g), spin about the vertical conserved."""
    sphere = Sphere(wall=100.0)
    R = sphere.radius
    q0 = jnp.array([0.0, 0.0, R, 0.0, 0.0, 0.0])
    u0 = jnp.array([1.0, -0.5, 0.0, 4.0, 10.0, 7.0])
    gamma = np.array([u0[0] - R * u0[4], u0[1] + R * u0[3]])
    v0, direction = np.asarray(u0[:2]), gamma / np.linalg.norm(gamma)
    stop = 2 * np.linalg.norm(gamma) / (7 * sphere.mu * GRAVITY)
    rolling = v0 - 2 / 7 * gamma
    errors, steps = [], (2e-3, 5e-4, 1.25e-4)
    for dt in steps:
        solution = run(sphere, scheme, dt, state=(q0, u0))
        t, q, u = (np.asarray(x)[solution.t <= 0.25 + dt / 2] for x in (solution.t, solution.q, solution.u))
        assert stop < t[-1]
        np.testing.assert_allclose(u[-1, :2], rolling, rtol=1e-11)
        np.testing.assert_allclose(u[-1, 3:], [-rolling[1] / R, rolling[0] / R, 7.0], rtol=1e-10)
        # The direction of slip does not turn, so the discrete motion slips along it too.
        slip = np.stack([u[:, 0] - R * u[:, 4], u[:, 1] + R * u[:, 3]], axis=1)
        np.testing.assert_allclose(slip @ np.array([-direction[1], direction[0]]), 0, atol=1e-11)
        s = np.minimum(t, stop)[:, None]
        exact = v0 * s - 0.5 * sphere.mu * GRAVITY * s**2 * direction + rolling * (t[:, None] - s)
        errors.append(np.max(np.abs(q[:, :2] - exact)))
    assert all(error < sphere.mu * GRAVITY * dt for error, dt in zip(errors, steps, strict=True)), errors
    assert errors[-1] < errors[0] / 8, errors


@pytest.mark.slow
@over(MOREAU_TYPE, fast=[SymmetricMoreau()])
@pytest.mark.parametrize("mu", [0.05, 0.8], ids=["slip", "stick"])
def test_sphere_hits_the_wall(scheme, mu):
    """Without gravity, in space: P_N = (1 + e) m v, and gamma is reduced by 7/2 mu (1 + e) v, or to zero. Exact at any dt."""
    sphere = Sphere(gravity=0.0, mu=mu)
    R, e = sphere.radius, sphere.e_N
    u0 = np.array([2.0, 0.7, -0.3, 3.0, 5.0, -8.0])
    q0 = jnp.array([1.5, 0.0, 50.0, 0.0, 0.0, 0.0])
    gamma = np.array([u0[1] + R * u0[5], u0[2] - R * u0[4]])
    size = np.linalg.norm(gamma)
    stick = 2 / 7 * size <= mu * (1 + e) * u0[0]
    assert stick == (mu > 0.5)
    percussion = -(2 / 7 if stick else mu * (1 + e) * u0[0] / size) * gamma
    after = u0.copy()
    after[0] = -e * u0[0]
    after[1:3] += percussion
    after[3:] += np.cross([R, 0, 0], [0, *percussion]) / (0.4 * R**2)
    solution = run(sphere, scheme, 1e-3, state=(q0, jnp.array(u0)))
    np.testing.assert_allclose(solution.u[-1], after, rtol=1e-12, atol=1e-12)
    P = np.asarray(solution.P_N)
    np.testing.assert_allclose(P[P > 0], [(1 + e) * u0[0]], rtol=1e-12)


# ----------------------------------------------------------------------------------------------------------------- two discs
@over(MOREAU_TYPE, fast=[Moreau()])
def test_two_discs(scheme):
    """Oblique impact in closed form: velocity of approach reversed times e along the line of centres, momenta conserved."""
    errors, steps = [], (2e-3, 5e-4, 1.25e-4)
    for dt in steps:
        discs = TwoDiscs()
        q0, u0 = (np.asarray(x) for x in discs.initial_state())
        # Keep 2000 steps of every size: let the finer runs start nearer to the impact.
        r, v = q0[2:] - q0[:2], u0[2:] - u0[:2]
        A, B, C = v @ v, r @ v, r @ r - (2 * discs.radius) ** 2
        t_impact = (-B - np.sqrt(B**2 - A * C)) / A
        start = t_impact - 0.4 * 2000 * dt if dt < 5e-4 else 0.0
        q_start = q0 + start * u0
        solution = run(discs, scheme, dt, state=(jnp.array(q_start), jnp.array(u0)))
        n = (r + t_impact * v) / np.linalg.norm(r + t_impact * v)
        reduced = discs.mass_1 * discs.mass_2 / (discs.mass_1 + discs.mass_2)
        P = -(1 + discs.e_N) * reduced * (n @ v)
        exact = np.concatenate([u0[:2] - P / discs.mass_1 * n, u0[2:] + P / discs.mass_2 * n])
        u = np.asarray(solution.u)
        errors.append(np.max(np.abs(u[-1] - exact)))
        momentum = discs.mass_1 * u[:, :2] + discs.mass_2 * u[:, 2:]
        np.testing.assert_allclose(momentum, np.broadcast_to(momentum[0], momentum.shape), atol=1e-12)
        impact = np.flatnonzero(np.asarray(solution.P_N)[:, 0] > 0)
        assert len(impact) == 1
        # At the configuration where the step found them, the impact is exact: no tangential percussion, and Newton's law.
        q = np.asarray(solution.q)[impact[0] + 1]
        n = (q[2:] - q[:2]) / np.linalg.norm(q[2:] - q[:2])
        before, after = u[impact[0]], u[impact[0] + 1]
        assert n @ (after[2:] - after[:2]) == pytest.approx(-discs.e_N * (n @ (before[2:] - before[:2])), rel=1e-12)
        assert abs((after[:2] - before[:2]) @ np.array([-n[1], n[0]])) < 1e-12
    assert all(error < 20 * dt for error, dt in zip(errors, steps, strict=True)), errors
    assert errors[-1] < max(errors[0] / 4, 1e-3), errors


# ----------------------------------------------------------------------------------------- restitution in tangential direction
@pytest.mark.slow
@over(MOREAU_TYPE, fast=[VariationalMoreau()])
def test_superball(scheme):
    """e_N = e_F = 1, rough: an elastic impact reverses both contact velocities, and conserves the energy (Garwin 1969)."""
    ball = RotatingBall(e_N=1.0, e_F=1.0, mu=10.0, gravity=0.0)
    u0 = np.array([1.5, -2.0, -8.0])
    solution = run(ball, scheme, 4e-4, state=(jnp.array([0.0, 0.7, 0.0]), jnp.array(u0)))
    gamma = u0[0] + ball.radius * u0[2]
    P_F = -2 * gamma * 2 / 7 * ball.mass
    exact = u0 + np.array([P_F, 4.0, P_F * ball.radius / 0.4 / ball.radius**2])
    np.testing.assert_allclose(solution.u[-1], exact, rtol=1e-12)
    energy = np.asarray(jax.vmap(ball.total_energy)(solution.t, solution.q, solution.u))
    np.testing.assert_allclose(energy, energy[0], rtol=1e-12)
    # Half of it: the contact velocity comes back halved.
    solution = run(RotatingBall(e_N=1.0, e_F=0.5, mu=10.0, gravity=0.0), scheme, 4e-4, state=(jnp.array([0.0, 0.7, 0.0]), jnp.array(u0)))
    assert float(solution.u[-1, 0] + ball.radius * solution.u[-1, 2]) == pytest.approx(-0.5 * gamma, rel=1e-12)


# -------------------------------------------------------------------------------------------------------- rheonomic contacts
@over(MOREAU_TYPE, fast=[], slow=[VariationalMoreau()])
def test_ball_rides_on_a_shaken_table(scheme):
    """a w^2 < g: the ball stays on the table and follows it, and the table carries m (g - a w^2 sin w t)."""
    a, w = 0.01, 20.0
    table = ShakenTable(amplitude=a, frequency=w, e_N=0.0, mu=0.0)
    errors, impulses, steps = [], [], (1e-3, 5e-4, 2.5e-4)
    for dt in steps:
        solution = run(table, scheme, dt, state=(jnp.zeros(2), jnp.array([0.0, a * w])))
        t, y, P_N = (np.asarray(x) for x in (solution.t, solution.q[:, 1], solution.P_N[:, 0]))
        early = t <= 0.45
        errors.append(np.max(np.abs(y - a * np.sin(w * t))[early]))
        # Percussions over windows of 0.05 s against the integral of the force.
        edges = np.arange(0.05, 0.451, 0.05)
        total = np.interp(edges, t[1:], np.cumsum(P_N))
        exact = GRAVITY * edges + a * w * (np.cos(w * edges) - 1)
        impulses.append(np.max(np.abs(np.diff(total) - np.diff(exact))))
    assert all(error < 10 * a * w * dt for error, dt in zip(errors, steps, strict=True)), errors
    assert all(error < 50 * dt for error, dt in zip(impulses, steps, strict=True)), impulses
    assert errors[-1] < 0.5 * errors[0], errors


@jaxnsd.system
class Lift(System):
    """A ball above a floor that goes up with constant speed: q = (y,)."""

    speed: float = 0.7
    e_N: float = 0.6

    def kinetic_energy(self, t, q, u):
        return 0.5 * u @ u

    def gap(self, t, q):
        return q - self.speed * t


@pytest.mark.slow
@over(MOREAU_TYPE, fast=[SymmetricMoreau()])
def test_moving_floor(scheme):
    """The law of impact holds for the velocity relative to the floor, d g_N / dt with its partial derivative in t."""
    lift = Lift()
    solution = simulate(lift, scheme, jnp.array([1.0]), jnp.array([-2.0]), 0.5, 1e-3).raise_if_failed()
    assert float(solution.u[-1, 0]) == pytest.approx(0.7 + 0.6 * 2.7, rel=1e-12)
    assert abs(float(solution.t[1:][solution.P_N[:, 0] > 0][0]) - 1 / 2.7) < 1.01e-3
    # The same from another initial time: only t - t0 matters for the motion if the floor is shifted too.
    late = simulate(lift, scheme, jnp.array([1.0 + 0.7 * 3.0]), jnp.array([-2.0]), 3.5, 1e-3, 3.0).raise_if_failed()
    np.testing.assert_allclose(late.u, solution.u, rtol=1e-12)


# ----------------------------------------------------------------------------------------------------- bilateral constraints
def pendulum_angle(t_eval, e):
    """Angle of the pendulum of `CartesianPendulum` in minimal coordinates, with impacts at phi = 0."""
    gap = lambda t, x: x[0]  # noqa: E731
    gap.terminal, gap.direction = True, -1
    t, x, out = 0.0, np.array([0.8, 0.0]), []
    while t < t_eval[-1]:
        piece = solve_ivp(
            lambda t, x: [x[1], -GRAVITY * np.sin(x[0])], (t, t_eval[-1]), x, t_eval=t_eval[t_eval >= t], events=gap, rtol=1e-10, atol=1e-12
        )
        out.append(piece.y.T)
        t = piece.t[-1] if piece.status != 1 else piece.t_events[0][0]
        x = np.array([1e-13, -e * piece.y_events[0][0][1]]) if piece.status == 1 else x
        if piece.status != 1:
            break
    return np.concatenate(out)


@over(MOREAU_TYPE, fast=[], slow=[SymmetricMoreau()])
def test_pendulum_in_cartesian_coordinates(scheme):
    """A position-level constraint, enforced on velocity level: converges to the motion in minimal coordinates, impacts included."""
    pendulum = CartesianPendulum()
    t = np.arange(0, 1.5001, 0.01)
    angle = pendulum_angle(t, pendulum.e_N)
    assert np.any(np.diff(angle[:, 1]) > 1), "the reference has impacts"
    errors, drifts, steps = [], [], (5e-3, 2.5e-3, 1e-3)
    for dt in steps:
        solution = run(pendulum, scheme, dt)
        q = np.asarray(solution.q)[:: round(0.01 / dt)][: len(t)]
        errors.append(np.mean(np.abs(np.arctan2(q[:, 0], -q[:, 1]) - angle[:, 0])))
        drifts.append(np.max(np.abs(np.hypot(q[:, 0], q[:, 1]) - 1)))
        # The constraint's percussion is minus the tension's: m (phi'^2 + g cos phi) dt, before the first impact.
        early = (np.asarray(solution.t)[1:] < 0.4) & (np.asarray(solution.t)[1:] > 0.05)
        phi = np.interp(np.asarray(solution.t)[1:][early], t, angle[:, 0])
        exact = -(2 * GRAVITY * (np.cos(phi) - np.cos(0.8)) + GRAVITY * np.cos(phi)) * dt
        np.testing.assert_allclose(np.asarray(solution.P_g)[early, 0], exact, rtol=0.05 + 20 * dt)
    assert errors[-1] < errors[0] / 2.5, errors
    assert drifts[-1] < drifts[0] / 2.5, drifts
    assert errors[-1] < 0.03


@over(MOREAU_TYPE, fast=[], slow=[Moreau()])
def test_skate(scheme):
    """A velocity-level constraint: the skate on an incline runs along a cycloid and does not go down (Neimark & Fufaev 1972)."""
    skate = Skate()
    w, slope = 1.5, 2.0
    errors, steps = [], (4e-3, 2e-3, 1e-3)
    for dt in steps:
        solution = run(skate, scheme, dt)
        t, q = np.asarray(solution.t), np.asarray(solution.q)
        exact = np.stack([slope / (2 * w**2) * np.sin(w * t) ** 2, slope / (2 * w**2) * (w * t - 0.5 * np.sin(2 * w * t)), w * t], axis=1)
        early = t <= 2.0
        errors.append(np.max(np.abs(q - exact)[early]))
    assert all(error < 4 * dt for error, dt in zip(errors, steps, strict=True)), errors
    assert errors[-1] < 0.3 * errors[0], errors


def test_tumbling_body_is_refused_by_the_variational_scheme():
    body = TumblingBody()
    with pytest.raises(ValueError, match="q_dot"):
        simulate(body, VariationalMoreau(), *body.initial_state(), 0.1, 1e-3)


def test_spring_pendulum_distance_is_static():
    """The kind of the gap is no parameter: it is not a leaf, and the two kinds are different types of pytree."""
    kinds = [jax.tree.structure(SpringPendulum(gap_is_distance=kind)) for kind in (False, True)]
    assert kinds[0] != kinds[1]
    assert kinds[0].num_leaves == 5
