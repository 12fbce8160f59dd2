"""The point mass on the slope: its geometry, and sliding against the equation of motion along the slope."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

from jaxnsd import Moreau, simulate
from jaxnsd.models import PointMassOnSlope

SLOPE = PointMassOnSlope()
GRAVITY, MU = 10.0, 0.3
#: Of every run, so that they share a program.
N_STEPS = 3200


def frame(x):
    """Unit tangent and normal of the curve (x, exp(-x)), from a turn by 90 degrees."""
    t = np.array([1.0, -np.exp(-x)]) / np.hypot(1, np.exp(-x))
    return t, np.array([-t[1], t[0]])


@pytest.mark.slow
def test_geometry():
    rng = np.random.default_rng(0)
    for _ in range(5):
        q, u, eps = rng.uniform(-1, 3, 2), rng.standard_normal(2), 1e-6
        gap = lambda q: frame(q[0])[1] @ (q - np.array([q[0], np.exp(-q[0])]))  # noqa: E731
        np.testing.assert_allclose(SLOPE.gap(0.0, jnp.asarray(q)), [gap(q)], rtol=1e-12)
        rate = (gap(q + eps * u) - gap(q - eps * u)) / (2 * eps)
        np.testing.assert_allclose(SLOPE.gap_velocity(0.0, jnp.asarray(q), jnp.asarray(u)), [rate], rtol=1e-7)
        np.testing.assert_allclose(SLOPE.W_N(0.0, jnp.asarray(q)).T @ u, [rate], rtol=1e-7)
        np.testing.assert_allclose(SLOPE.tangential_velocity(0.0, jnp.asarray(q), jnp.asarray(u)), [[frame(q[0])[0] @ u]], rtol=1e-12)
        # On the slope the gradient of the gap is the unit normal; above it, it is not.
        on = jnp.asarray([q[0], np.exp(-q[0])])
        np.testing.assert_allclose(SLOPE.W_N(0.0, on)[:, 0], frame(q[0])[1], atol=1e-14)
        np.testing.assert_allclose(SLOPE.W_F(0.0, on)[:, 0, 0], frame(q[0])[0], atol=1e-14)
        np.testing.assert_allclose(SLOPE.M(0.0, on), np.eye(2))
        np.testing.assert_allclose(SLOPE.h(0.0, on, jnp.asarray(u)), [0, -GRAVITY])


def test_initial_states():
    for case, height in ((1, 1.0), (2, 1.5)):
        q0, u0 = SLOPE.initial_state(case)
        np.testing.assert_array_equal(q0, [0, height])
        np.testing.assert_array_equal(u0, [0, 0])
    assert float(SLOPE.gap(0.0, SLOPE.initial_state()[0])[0]) == 0
    with pytest.raises(ValueError, match="case must be 1"):
        SLOPE.initial_state(case=3)


def sliding(t_eval):
    """Case 1 by the equation of motion along the slope: rows (x, speed). The curvature presses the mass onto the slope."""

    def rhs(t, state):
        x, v = state
        f = np.exp(-x)
        (tangent, normal), curvature = frame(x), f / (1 + f**2) ** 1.5
        return [tangent[0] * v, -GRAVITY * tangent[1] - MU * (GRAVITY * normal[1] + curvature * v**2)]

    rest = lambda t, state: state[1]  # noqa: E731
    rest.terminal, rest.direction = True, -1
    return solve_ivp(rhs, (0, t_eval[-1]), [0.0, 0.0], "DOP853", t_eval=t_eval, events=rest, rtol=1e-12, atol=1e-13)


@pytest.mark.slow
def test_case_1_slides_to_rest():
    """First order towards the motion along the slope; at rest after 2.1 s, as published, and for ever."""
    errors, steps = [], (8e-3, 4e-3, 2e-3)
    t = np.linspace(0, 1.6, 21)
    exact = sliding(t).y[0]
    for dt in steps:
        solution = simulate(SLOPE, Moreau(), *SLOPE.initial_state(), N_STEPS * dt, dt).raise_if_failed()
        q, u = np.asarray(solution.q), np.asarray(solution.u)
        errors.append(np.max(np.abs(q[:: round(0.08 / dt)][:21, 0] - exact)))
    order = np.polyfit(np.log(steps), np.log(errors), 1)[0]
    assert order == pytest.approx(1, abs=0.15), errors
    stop = float(sliding(np.linspace(0, 3, 31)).t_events[0][0])
    assert stop == pytest.approx(2.1, abs=0.1)
    moving = np.linalg.norm(u, axis=1) > 1e-9
    assert float(solution.t[moving][-1]) == pytest.approx(stop, abs=5e-3)


@pytest.mark.slow
def test_case_2_falls_then_slides():
    """The impact, at sqrt(2 h / g), is plastic and slips: the percussion has the direction of the cone's edge."""
    dt = 5e-4
    solution = simulate(SLOPE, Moreau(), *SLOPE.initial_state(2), N_STEPS * dt, dt).raise_if_failed()
    t, u, P_N, P_F = (np.asarray(x) for x in (solution.t, solution.u, solution.P_N[:, 0], solution.P_F[:, 0, 0]))
    first = np.flatnonzero(P_N > 0)[0]
    assert t[first + 1] == pytest.approx(np.sqrt(2 * 0.5 / GRAVITY), abs=2 * dt)
    tangent, normal = frame(0.0)
    v = GRAVITY * np.sqrt(2 * 0.5 / GRAVITY)
    # Normal velocity to zero, tangential one reduced by mu times the normal percussion.
    np.testing.assert_allclose(u[first + 1], (-v * tangent[1] - MU * v * normal[1]) * tangent, atol=50 * dt)
    assert P_F[first] == pytest.approx(-MU * P_N[first], rel=1e-12)
    energy = np.asarray(jax.vmap(SLOPE.total_energy)(solution.t, solution.q, solution.u))
    assert np.max(np.diff(energy)) < 0.51 * (GRAVITY * dt) ** 2  # which is what the scheme gains in a step of free fall
