"""Orbits of rigid bodies made of parts: a hopper on its foot with a spring, on a shaken floor, beside integrations from event to event."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

import jaxnsd
from jaxnsd import bodies, orbits

G, TRUNK, FOOT, STIFFNESS, DAMPING, AMPLITUDE, RATE = 9.81, 1.0, 0.15, 400.0, 1.0, 0.03, 14.0
T = 2 * np.pi / RATE

#: The floor is at its lowest, the hopper in the air.
START = -T / 4


@jaxnsd.system
class Hopper(bodies.Multibody):
    """A trunk that moves up and down, and a foot that a spring holds below it; the floor moves as A sin(w t)."""

    amplitude: float = AMPLITUDE
    rate: float = RATE

    def gap(self, t, q):
        return super().gap(t, q) - self.amplitude * jnp.sin(self.rate * t)


def hopper():
    """q = (height of the trunk, how far the leg is bent)."""
    trunk = bodies.Body("trunk", mass=TRUNK, inertia=(0.1, 0.1, 0.1), joints=bodies.Prismatic((0, 0, 1), name="height"))
    leg = bodies.Prismatic((0, 0, 1), name="leg", stiffness=STIFFNESS, damping=DAMPING)
    foot = bodies.Body("foot", FOOT, (0.01, 0.01, 0.01), joints=leg, parent="trunk", position=(0, 0, -1.0), shapes=bodies.Sphere(0.1))
    return Hopper.from_system(bodies.assemble([trunk, foot], bodies.Plane(), gravity=(0, 0, -G), e_N=0.0))


def floor(t):
    """Sum of both coordinates where the foot stands, its rate and acceleration."""
    s, c = np.sin(RATE * t), np.cos(RATE * t)
    return 1.1 + AMPLITUDE * s, AMPLITUDE * RATE * c, -AMPLITUDE * RATE**2 * s


def hopped(state, t0=START, t1=START + T):
    """``(state after a period, times of landing and take-off)`` of (q, u), which starts in the air: from event to event."""
    solve_ivp = pytest.importorskip("scipy.integrate").solve_ivp
    run = functools.partial(solve_ivp, rtol=1e-13, atol=1e-15, method="DOP853")

    def leg(height, bent, rises, bends):
        return -STIFFNESS * bent - DAMPING * bends

    def flight(t, x):
        F = leg(*x)
        trunk = -G - F / TRUNK
        return [x[2], x[3], trunk, -G + F / FOOT - trunk]

    def push(t, x):
        return FOOT * (G + floor(t)[2]) - leg(*x)

    def stance(t, x):
        trunk = -G - leg(*x) / TRUNK
        return [x[2], x[3], trunk, floor(t)[2] - trunk]

    def lands(t, x):
        return x[0] + x[1] - floor(t)[0]

    lands.terminal, lands.direction, push.terminal, push.direction = True, -1, True, -1
    air = run(flight, (t0, t1), state, events=lands)
    t, x = air.t[-1], air.y[:, -1]
    x[3] = floor(t)[1] - x[2]  # the foot stands
    ground = run(stance, (t, t1), x, events=push)
    end = run(flight, (ground.t[-1], t1), ground.y[:, -1], events=lands)
    return end.y[:, -1], (t, ground.t[-1])


def differences(f, x, h=1e-4):
    """The derivative of a map, of fourth order."""
    return np.stack([(8 * (f(x + y) - f(x - y)) - f(x + 2 * y) + f(x - 2 * y)) / (12 * h) for y in h * np.eye(len(x))], axis=1)


@pytest.mark.slow
def test_a_hopper_on_its_foot():
    """It lands, stands, and takes off once a period: orbit, events and multipliers, of which the landing makes two vanish."""
    known = np.array([1.20358, -0.00897, -0.3934, 0.9132])
    end = lambda x: hopped(x)[0]  # noqa: E731
    derivative = differences(end, known)
    for _ in range(4):
        known = known - np.linalg.solve(derivative - np.eye(4), end(known) - known)
    assert np.abs(end(known) - known).max() < 1e-11
    derivative, (lands, leaves) = differences(end, known), hopped(known)[1]
    scheme, n_steps = jaxnsd.LocatedImpacts(jaxnsd.Lobatto(3)), 256
    q, u = np.array([1.2, -0.01]), np.array([-0.4, 0.9])
    orbit = orbits.periodic(hopper(), scheme, q, u, T, n_steps=n_steps, t0=START).raise_if_failed()
    # An error of fourth order: sixteen times as large with half as many steps.
    np.testing.assert_allclose(np.concatenate([orbit.q, orbit.u]), known, rtol=0, atol=2e-7)
    assert orbit.events == (0,) and abs(orbit.impacts[0].time - lands) < 2e-8 and bool(orbit.stable)
    stands = np.sum(np.asarray(orbit.solution.P_N)[:, 0] > 0) * T / n_steps
    assert abs(stands - (leaves - lands)) < 2 * T / n_steps
    np.testing.assert_allclose(orbit.monodromy, derivative, rtol=0, atol=1e-5)
    found, exact = (np.asarray(x)[np.argsort(-np.abs(x))] for x in (orbit.multipliers, np.linalg.eigvals(derivative)))
    np.testing.assert_allclose(np.sort_complex(found[:2]), np.sort_complex(exact[:2]), rtol=0, atol=5e-7)
    np.testing.assert_allclose(found[2:], 0, atol=1e-7)  # two that are 0, of a matrix with a block of Jordan's
