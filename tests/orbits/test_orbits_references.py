"""Motions of other codes: a walker on a slope, the chaos of an impact oscillator, and how its period doublings move."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from repository import EXAMPLES, load
from test_orbits import FIRST, Stop, oscillator, turns

import jaxnsd
from jaxnsd import orbits


@jaxnsd.system
class Walker(jaxnsd.System):
    """The simplest walker (Garcia, Chatterjee, Ruina & Coleman 1998): q = (angle of the leg that stands, of the other from it), in rad.

    Masses are at the hip, feet have none; lengths and gravity are 1. The foot that scuffs the ground at mid-stance passes it.
    """

    slope: float = 0.009

    def kinetic_energy(self, t, q, u):
        return 0.5 * u @ u

    def force(self, t, q, u):
        swing = jnp.sin(q[0] - self.slope)
        return jnp.stack([swing, swing + (u[0] ** 2 - jnp.cos(q[0] - self.slope)) * jnp.sin(q[1])])

    def section(self, t, q, u):
        return q[1] - 2 * q[0]

    def strike(self, t, q, u):
        """The other foot hits the ground and stands: angular momentum is kept about it, and of the leg that leaves about the hip."""
        c = jnp.cos(2 * q[0])
        return -q, jnp.stack([c * u[0], c * (1 - c) * u[0]])


def walk(angle, rate, period):
    """A gait from a guess."""
    c = np.cos(2 * angle)
    q, u = [angle, 2 * angle], [rate, (1 - c) * rate]
    return orbits.periodic(Walker(), jaxnsd.Lobatto(4), q, u, period, n_steps=64, section=Walker.section, reset=Walker.strike)


def stride(state, slope):
    """``(state, period, derivative)`` of the map from heel strike to heel strike of (angle, rate), by another code.

    With the equations of variation, and the shift of the next heel strike in time.
    """
    scipy_integrate = pytest.importorskip("scipy.integrate")

    def f(t, x):
        (angle, other, rate, other_rate), V = x[:4], x[4:].reshape(4, 2)
        a, g, s, c = np.sin(angle - slope), np.cos(angle - slope), np.sin(other), np.cos(other)
        A = np.zeros((4, 4))
        A[0, 2] = A[1, 3] = 1
        A[2, 0] = g
        A[3, :3] = g + a * s, (rate**2 - g) * c, 2 * rate * s
        return np.concatenate([[rate, other_rate, a, a + (rate**2 - g) * s], (A @ V).ravel()])

    def strikes(t, x):
        return x[1] - 2 * x[0]

    strikes.terminal, strikes.direction = True, 1
    angle, rate = state
    c, s = np.cos(2 * angle), np.sin(2 * angle)
    x = np.concatenate([[angle, 2 * angle, rate, (1 - c) * rate], [1, 0, 2, 0, 0, 1, 2 * s * rate, 1 - c]])
    run = functools.partial(scipy_integrate.solve_ivp, f, rtol=1e-13, atol=1e-15, method="DOP853")
    # At mid-stance the foot passes the ground in the other direction.
    end = run((1.5, 12.0), run((0.0, 1.5), x).y[:, -1], events=strikes)
    x = end.y[:, -1]
    V, rates, normal = x[4:].reshape(4, 2), f(0, x)[:4], np.array([-2.0, 1.0, 0.0, 0.0])
    V = V - np.outer(rates, normal @ V) / (normal @ rates)
    c, s = np.cos(2 * x[0]), np.sin(2 * x[0])
    return np.array([-x[0], c * x[2]]), end.t[-1], np.stack([-V[0], c * V[2] - 2 * s * x[2] * V[0]])


def gait(state, slope):
    """``(state, period, derivative)`` of a gait, by Newton's method on that map."""
    for _ in range(20):
        end, period, derivative = stride(state, slope)
        step = np.linalg.solve(derivative - np.eye(2), end - state)
        state = state - step
        if np.abs(step).max() < 1e-13:
            break
    return state, period, derivative


@pytest.mark.slow
def test_the_simplest_walker():
    """Both gaits at a slope of 0.009, and the slope at which the stable one doubles its period."""
    brentq = pytest.importorskip("scipy.optimize").brentq
    known = [(0.200310900544, -0.199832473005), (0.193937369810, -0.203866927442)]
    found = [walk(0.2, -0.2, 3.9).raise_if_failed(), walk(0.194, -0.204, 3.1).raise_if_failed()]
    for orbit, start in zip(found, known, strict=True):
        state, period, derivative = gait(np.array(start), 0.009)
        np.testing.assert_allclose(state, start, rtol=0, atol=1e-12)
        np.testing.assert_allclose([orbit.q[0], orbit.u[0], orbit.period], [*state, period], rtol=0, atol=1e-11)
        # The reset forgets the rate of the leg that leaves.
        exact = np.append(np.linalg.eigvals(derivative), [0, 1])
        np.testing.assert_allclose(np.sort_complex(orbit.multipliers), np.sort_complex(exact), rtol=0, atol=1e-10)
        assert orbit.error < 1e-10 and abs(orbit.q[1] - 2 * orbit.q[0]) < 1e-14
    assert [bool(orbit.stable) for orbit in found] == [True, False]
    (point,) = orbits.follow(found[0], "slope", to=0.018).special
    near = np.array([0.2371, -0.2319])
    slope = brentq(lambda slope: np.linalg.det(gait(near, slope)[2] + np.eye(2)), 0.015, 0.0152, xtol=1e-14)
    assert point.kind == "period doubling" and abs(point.value - slope) < 1e-10


@pytest.mark.long
def test_a_chaotic_impact_oscillator():
    """Its largest exponent lies among those of another code; their sum is -2 z T + 2 ln(r) for every impact."""
    scheme = jaxnsd.LocatedImpacts(jaxnsd.Lobatto(4), slowest=0.05)
    system = Stop(frequency=2.78)
    found = orbits.lyapunov(system, scheme, [-1.0], [0.5], turns, n_steps=64, n_periods=4000, transient=100)
    assert bool(found.success) and found.captured == 0 and not bool(found.locked)
    exact = -2 * FIRST.damping * turns(system) + 2 * np.log(FIRST.e_N) * found.impacts
    assert abs(jnp.sum(found.per_period) - exact) < 1e-9
    # Means of two runs of 12000 periods, and their standard errors.
    exponents, errors = np.array([0.20074459509515913, 0.22339028405722167]), np.array([0.0084898609467123, 0.005694858084506463])
    spread = np.hypot(float(found.error[0]), np.hypot(*errors) / 2)
    assert 0.005 < found.error[0] < 0.03 and abs(found.per_period[0] - exponents.mean()) < 4 * spread
    assert abs(found.impacts - 1.176) < 0.02


@pytest.mark.slow
def test_how_the_period_doublings_of_an_oscillator_move():
    """With damping and restitution, by differences of another code."""
    scheme = jaxnsd.LocatedImpacts(jaxnsd.Lobatto(4))
    for to, dr, dz in ((2.8, -0.03869767228382, 0.1058774920544), (1.1, 0.2034517479167, -1.019170622779)):
        (point,) = orbits.follow(oscillator(0, 64, scheme), "frequency", to=to).special
        found = point.derivatives()
        assert abs(found["e_N"] - dr) < 1e-7 and abs(found["damping"] - dz) < 1e-7


@pytest.mark.long
def test_the_benchmark_beside_a_shooting_code(monkeypatch, capsys):
    """Both codes find the orbit."""
    pytest.importorskip("scipy.integrate")
    monkeypatch.syspath_prepend(EXAMPLES / "benchmarks")
    benchmark = load("benchmarks/orbits")
    benchmark.main(["--points", "2", "--repeat", "1"])
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in lines if line.startswith(("orbits.periodic", "inside", "SciPy  "))]
    assert len(rows) == 3 and all(float(row[-1]) < 1e-10 and float(row[-2]) < 1e-9 for row in rows)
    assert float(lines[-1].split()[-1]) < 1e-9
    with pytest.raises(SystemExit):
        benchmark.main(["--points", "1"])


@pytest.mark.slow
def test_the_cycle_of_the_woodpecker():
    """Its period, multipliers and fall beside an integration from event to event; a contact that sticks makes four multipliers vanish."""
    woodpecker = jaxnsd.models.Woodpecker()
    scheme = jaxnsd.LocatedImpacts(jaxnsd.Lobatto(3))
    orbit = orbits.periodic(woodpecker, scheme, n_steps=2000, **woodpecker.limit_cycle()).raise_if_failed()
    multipliers = np.asarray(orbit.multipliers)
    assert abs(orbit.period - 0.1459760651437518) < 1e-10 and orbit.error < 1e-7 and orbit.trivial.tolist() == [True] + 5 * [False]
    np.testing.assert_allclose(multipliers, [1, -0.83915565304759, 0, 0, 0, 0], rtol=0, atol=1e-7)
    assert abs(orbit.solution.q[0, 0] - orbit.solution.q[-1, 0] - 0.01944537928471653) < 1e-10


@pytest.mark.long
def test_the_woodpeckers_cycle_doubles_its_period_at_both_ends():
    """Between two values of mu it is stable. Motions that start on it stay there inside, and go to one far away outside."""
    woodpecker = jaxnsd.models.Woodpecker
    scheme = jaxnsd.LocatedImpacts(jaxnsd.Lobatto(3), slowest=1e-3)
    start = orbits.periodic(woodpecker(), scheme, n_steps=1000, **woodpecker().limit_cycle()).raise_if_failed()

    def falls(orbit, mu):
        """Of the last four cycles, between passes through the section, by a simulation that starts on an orbit."""
        n_cycles = 600
        sol = jaxnsd.simulate(woodpecker(mu=mu), scheme, orbit.q, orbit.u, t1=n_cycles * float(start.period), n_steps=500 * n_cycles)
        q = np.asarray(sol.q)
        passed = np.flatnonzero((q[:-1, 2] > 0.0066) & (q[1:, 2] <= 0.0066))
        part = (q[passed, 2] - 0.0066) / (q[passed, 2] - q[passed + 1, 2])
        return np.diff(q[passed, 0] + part * (q[passed + 1, 0] - q[passed, 0]))[-4:]

    for to, known, outwards in ((0.2895, 0.29012853, -1), (0.325, 0.31860805, 1)):
        branch = orbits.follow(start, "mu", to=to, max_points=40)
        (point,) = branch.special
        assert point.kind == "period doubling" and branch.stable[0] and not branch.stable[-1]
        assert abs(point.value - known) < 1e-7  # with 2000 steps
        near = branch.orbits[int(np.argmin(np.abs(branch.values - (point.value - 0.003 * outwards))))]
        inside, outside = falls(near, float(near.system.mu)), falls(point.orbit, point.value + 0.001 * outwards)
        assert np.ptp(inside) < 1e-5 and np.ptp(outside) > 4e-3
        np.testing.assert_allclose(outside[2:], outside[:2], rtol=0, atol=1e-5)
        # The friction has no unit: it stays when those of mass, time and length are others.
        parts = {name: value * float(getattr(point.orbit.system, name)) for name, value in point.derivatives().items()}
        inertias = ["inertia_sleeve", "inertia_woodpecker", "stiffness"]
        lengths = [name for name in parts if name.startswith(("radius_", "length_", "height_"))]
        assert len(lengths) == 7 and abs(parts["stiffness"]) > 0.01
        assert abs(sum(parts[name] for name in ["mass_sleeve", "mass_woodpecker", *inertias])) < 1e-8
        assert abs(parts["stiffness"] + parts["gravity"]) < 1e-8
        assert abs(sum(parts[name] for name in lengths) + 2 * sum(parts[name] for name in inertias) + parts["gravity"]) < 1e-7
