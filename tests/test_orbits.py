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

    mass: float = 1.0
    gravity: float = 1.0
    amplitude: float = 1.2
    frequency: float = 1.0
    e_N: float = 0.5

    def kinetic_energy(self, t, q, u):
        return 0.5 * self.mass * u @ u

    def potential_energy(self, t, q):
        return self.mass * self.gravity * q[0]

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


def fold(system):
    """Amplitude A = g pi (1 - e) / (omega^2 (1 + e)) below which there is no such orbit."""
    g, w, e = system.gravity, system.frequency, system.e_N
    return g * np.pi * (1 - e) / (w**2 * (1 + e))


def doubling(system):
    """Amplitude at which a multiplier is -1: trace + 1 + e^2 = 0."""
    g, w, e = system.gravity, system.frequency, system.e_N
    return g / w**2 * np.hypot(np.pi * (1 - e) / (1 + e), 2 * (1 + e**2) / (1 + e) ** 2)


def test_the_branch_of_the_ball(tmp_path):
    orbit = ball()
    up = orbits.follow(orbit, "amplitude", to=1.8)
    (point,) = up.special
    assert point.kind == "period doubling" and abs(point.value - doubling(Table())) < 1e-10
    assert np.any(np.abs(np.asarray(point.orbit.multipliers) + 1) < 1e-10)
    assert up.stable[up.values < point.value].all() and not up.stable[up.values > point.value].any()
    assert up.values[-1] == 1.8 and up.end.startswith("ended at amplitude = 1.8")
    # Around the fold, past which the impact meets the start of the period, which gives way.
    down = orbits.follow(orbit, lambda system: system.amplitude, to=0.9, max_points=40)
    assert [point.kind for point in down.special] == ["fold"] and down.end.startswith("after max_points")
    assert abs(down.special[0].value - fold(Table())) < 1e-10 and down.values.min() > fold(Table()) - 1e-12
    assert down.stable[: np.argmin(down.values)].all() and not down.stable[np.argmin(down.values) + 1 :].any()
    np.testing.assert_allclose(np.prod(down.multipliers, axis=1), 0.25, rtol=1e-12)
    assert np.unique(down.t0).size > 1 and len(down) == 40 == len(down.orbits)
    # Its points are orbits, found from anywhere.
    again = orbits.periodic(down.orbits[-1].system, BALL, down.q[-1], down.u[-1], turn, n_steps=STEPS, t0=down.t0[-1])
    np.testing.assert_allclose(again.u, down.u[-1], rtol=1e-12)
    down.save(tmp_path / "branch.npz")
    loaded = orbits.Branch.load(tmp_path / "branch.npz")
    assert repr(loaded) == repr(down) and np.array_equal(loaded.multipliers, down.multipliers)
    assert {name: len(column) for name, column in loaded.columns().items()} == {name: 40 for name in down.columns()}


def test_bad_input_is_one_sentence(tmp_path):
    orbit = ball()
    for error, text, arguments in (
        (TypeError, "n_steps must be a whole number", {"n_steps": 1.5}),
        (ValueError, "n_steps must be at least 1", {"n_steps": 0}),
        (ValueError, "settle must be at least 0", {"settle": -1}),
        (ValueError, "give period=, its period in s", {"period": None}),
        (ValueError, "period must be a positive time", {"period": -1.0}),
        (ValueError, "the period is an unknown", {"section": lambda t, q, u: q[0]}),
        (ValueError, "section.* must be a finite number", {"section": lambda t, q, u: q * jnp.ones(2), "period": 1.0}),
        (TypeError, "section must be a function", {"section": 3, "period": 1.0}),
        (ValueError, "reset.* must return", {"reset": lambda t, q, u: q}),
        (ValueError, "as many velocities as coordinates", {"u": [1.0, 2.0]}),
    ):
        with pytest.raises(error, match=text) as caught:
            q, u = 2.0, arguments.pop("u", None)
            orbits.periodic(Table(), BALL, [q], u or [-2.6], **({"period": turn, "n_steps": STEPS} | arguments))
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="at mid-interval"):
        orbits.periodic(Table(), jaxnsd.LocatedImpacts(jaxnsd.SymmetricMoreau()), [2.0], [-2.6], turn, n_steps=STEPS)
    with pytest.raises(TypeError, match="must be a scheme"):
        orbits.periodic(Table(), "Moreau", [2.0], [-2.6], turn, n_steps=STEPS)
    for error, text, arguments in (
        (ValueError, "colour is no parameter of Table, which has: mass, gravity, amplitude, frequency, e_N", ("colour", 1.0)),
        (ValueError, "mass does not move the orbit", ("mass", 2.0)),
        (ValueError, "must return a leaf", (lambda system: 2 * 3, 1.0)),
        (ValueError, "to must be a finite value other than", ("e_N", 0.5)),
        (ValueError, "to must be a finite value", ("e_N", np.nan)),
    ):
        with pytest.raises(error, match=text):
            orbits.follow(orbit, *arguments)
    with pytest.raises(ValueError, match="has not converged: LOCKED"):
        orbits.follow(ball(Table(amplitude=0.5)), "e_N", 0.6)
    with pytest.raises(TypeError, match="needs an Orbit"):
        orbits.follow(Table(), "e_N", 0.6)
    with pytest.raises(ValueError, match="was not written by"):
        np.savez(tmp_path / "other.npz", x=1)
        orbits.Branch.load(tmp_path / "other.npz")
