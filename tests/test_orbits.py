"""Periodic orbits: closed forms of a ball on a table, orbits of other codes, differences."""

import jax.numpy as jnp
import numpy as np
import pytest

import jaxnsd
from jaxnsd import orbits
from jaxnsd.orbits import OrbitOutcome

BALL, STEPS = jaxnsd.LocatedImpacts(jaxnsd.MoreauJean()), 16


@jaxnsd.system
class Table(jaxnsd.System):
    """A ball on a table z = A sin(omega t): q = (height of the ball,)."""

    gravity: float = 1.0
    amplitude: float = 1.2
    frequency: float = 1.0
    e_N: float = 0.5

    def kinetic_energy(self, t, q, u):
        return 0.5 * u @ u

    def potential_energy(self, t, q):
        return self.gravity * q[0]

    def gap(self, t, q):
        return q - self.amplitude * jnp.sin(self.frequency * t)


def turn(system):
    """A period of the forcing."""
    return 2 * jnp.pi / system.frequency


def ball(system=None, q=2.0, u=-2.6, **options):
    """The orbit with one impact a period."""
    arguments = {"period": turn, "n_steps": STEPS} | options
    return orbits.periodic(system or Table(), BALL, [q], [u], **arguments)


def closed_form(system):
    """State at t = 0, trace and determinant of the monodromy matrix: with phi the phase of the impact and T the period the ball leaves the
    table with g T / 2, and cos(phi) = g pi (1 - e) / (A omega^2 (1 + e)).
    """
    g, A, w, e = system.gravity, system.amplitude, system.frequency, system.e_N
    phi, T = np.arccos(g * np.pi * (1 - e) / (A * w**2 * (1 + e))), 2 * np.pi / w
    t = phi / w
    state = np.array([A * np.sin(phi) + g * t * (T - t) / 2, g * (t - T / 2)])
    return state, 1 + e**2 - (1 + e) ** 2 * A * w**2 / g * np.sin(phi), e**2


@pytest.mark.parametrize("system", [Table(), Table(e_N=0.7, frequency=1.3), Table(gravity=9.81, amplitude=0.013, frequency=31.0)])
def test_a_ball_on_a_table(system):
    state, trace, determinant = closed_form(system)
    orbit = ball(system, *(state * [1.02, 0.97])).raise_if_failed()
    size, T = np.abs(state).max(), 2 * np.pi / system.frequency
    np.testing.assert_allclose(np.concatenate([orbit.q, orbit.u]), state, rtol=0, atol=1e-12 * size)
    assert abs(np.sum(np.asarray(orbit.multipliers)) - trace) < 1e-10
    assert abs(np.prod(np.asarray(orbit.multipliers)) - determinant) < 1e-12
    assert bool(orbit.stable) == (np.abs(np.roots([1, -trace, determinant])).max() < 1)
    assert orbit.events == (0,) and orbit.repeats == 1 and not np.any(orbit.trivial) and np.isnan(orbit.error)
    assert orbit.residual < 1e-13 * size and abs(orbit.period - T) < 1e-14 * T
    (impact,) = orbit.impacts
    cos = system.gravity * np.pi * (1 - system.e_N) / (system.amplitude * system.frequency**2 * (1 + system.e_N))
    assert abs(np.cos(system.frequency * impact.time) - cos) < 1e-12
    assert abs(impact.percussion - system.gravity * T) < 1e-12 * impact.percussion  # it turns -g T / 2 into g T / 2


def test_what_is_no_orbit_is_said():
    below = ball(Table(amplitude=1.0))  # of the fold at A = 1.047
    assert below.outcome in (OrbitOutcome.LOCKED, OrbitOutcome.NO_RETURN, OrbitOutcome.EVENT_ORDER_CHANGED, OrbitOutcome.GRAZING)
    with pytest.raises(orbits.OrbitError, match="What to try"):
        below.raise_if_failed()
    rests = ball(Table(amplitude=0.5))
    assert rests.outcome == OrbitOutcome.LOCKED and "stays closed" in rests.sentence
    assert not bool(rests.success) and "LOCKED" in repr(rests)
