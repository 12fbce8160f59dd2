"""Orbits in several arcs, where one does not find them: a pencil that stands on its tip and leans against a wall, in closed form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_orbits import Table, ball, closed_form, doubling, wheel

import jaxnsd
from jaxnsd import orbits

SCHEME, ARCS, STEPS = jaxnsd.LocatedImpacts(jaxnsd.Lobatto(4)), 8, 128


@jaxnsd.system
class Pencil(jaxnsd.System):
    """A pencil on its tip, small angles: q'' = a^2 q + F cos(w t), q <= s."""

    rate: float = 4.0
    push: float = 1.0
    frequency: float = 1.0
    wall: float = 3.0
    e_N: float = 0.8

    def kinetic_energy(self, t, q, u):
        return 0.5 * u @ u

    def force(self, t, q, u):
        return self.rate**2 * q + self.push * jnp.cos(self.frequency * t)

    def gap(self, t, q):
        return self.wall - q


def turn(system):
    """The period of the motion."""
    return 2 * jnp.pi / system.frequency


def balanced(q, u, system=None, **options):
    """An orbit: that on which it falls to neither side is q = -F / (a^2 + w^2) cos(w t)."""
    return orbits.periodic(system or Pencil(), SCHEME, q, u, turn, **({"n_steps": STEPS, "arcs": ARCS} | options))


REST = np.full((ARCS, 1), 0.01), np.zeros((ARCS, 1))


@pytest.mark.slow
def test_a_pencil_on_its_tip():
    """Its multiplier in a period is exp(2 pi a / w), 8e10: from the same guess one arc ends at the wall, eight find it to round-off."""
    assert not balanced([0.01], [0.0], arcs=1).success and not balanced([0.01], [0.0]).success
    orbit = balanced(*REST).raise_if_failed()
    exact = -1 / (Pencil.rate**2 + Pencil.frequency**2)
    np.testing.assert_allclose([orbit.q[0], orbit.u[0]], [exact, 0], rtol=0, atol=1e-11)
    np.testing.assert_allclose(orbit.solution.q[:, 0], exact * np.cos(orbit.solution.t), rtol=0, atol=1e-11)
    assert orbit.solution.t.shape == (STEPS + 1,) and orbit.solution.P_N.shape == (STEPS, 1) and not orbit.events
    assert abs(orbit.multipliers[0] / np.exp(2 * np.pi * Pencil.rate) - 1) < 1e-8
    assert orbit.q.shape == (1,) and orbit.monodromy.shape == (2, 2) and orbit.jacobian.shape == (3, 4)
    # The stable direction belongs to the motion backwards: a row of the derivative that stands at right angles to (a, 1).
    rows = np.asarray(orbit.monodromy) / np.linalg.norm(orbit.monodromy)
    np.testing.assert_allclose(rows @ [1, -Pencil.rate], 0, atol=1e-9)
    finer = orbits.refined(orbit).raise_if_failed()
    assert finer.shooting.arcs == ARCS and abs(finer.q[0] - exact) < abs(orbit.q[0] - exact)
    branch = orbits.follow(orbit, "push", to=2.0)
    assert branch.values[-1] == 2 and abs(branch.q[-1, 0] - 2 * exact) < 1e-11 and not branch.stable.any()


def leaning(system):
    """``(state at t = 0, time of the impact, trace)`` of both orbits with an impact a period, between which it nearly stands upright.

    With P = F / (a^2 + w^2) the motion from impact to impact, at +-T / 2 from its middle, is h cosh(a t) / cosh(a T / 2) - P cos(w t + .),
    where h = s + P cos(phi); Newton's law asks for P w sin(phi) (1 + e) = h a (1 - e) tanh(a T / 2).
    """
    a, F, w, s, e = system.rate, system.push, system.frequency, system.wall, system.e_N
    P, T = F / (a**2 + w**2), 2 * np.pi / w
    b = a * (1 - e) * np.tanh(a * T / 2)
    first = np.arcsin(s * b / np.hypot(P * w * (1 + e), P * b))
    for phi in np.arctan2(b, w * (1 + e)) + np.array([first, np.pi - first]):
        h = s + P * np.cos(phi)
        t = T / 2 - phi / w  # of the start, from the middle
        state = h * np.array([np.cosh(a * t), a * np.sinh(a * t)]) / np.cosh(a * T / 2) - P * np.array([1, 0])
        before = h * a * np.tanh(a * T / 2) + P * w * np.sin(phi)
        trace = -2 * e * np.cosh(a * T) + (1 + e) * (a**2 * s + F * np.cos(phi)) / before * np.sinh(a * T) / a
        yield state, phi / w, trace


@pytest.mark.slow
def test_a_pencil_that_leans_against_a_wall():
    """From states that leave the wall and come back to it, at a time of impact that is off by a twentieth of a second."""
    system, k, T = Pencil(wall=0.1), 16, 2 * np.pi
    for state, impact, trace in leaning(system):
        t = np.arange(k) * T / k
        since = (t - impact - 0.05) % T - T / 2
        forced = -0.05 * np.cos(t)
        q = (system.wall - forced[int(impact / T * k)]) * np.exp(system.rate * (np.abs(since) - T / 2))
        guess = (q + forced)[:, None], (system.rate * np.sign(since) * q)[:, None]
        assert not balanced(guess[0][0], guess[1][0], system, arcs=1).success
        orbit = balanced(*guess, system, arcs=k).raise_if_failed()
        np.testing.assert_allclose([orbit.q[0], orbit.u[0]], state, rtol=0, atol=1e-9)
        assert orbit.events == (0,) and abs(orbit.impacts[0].time - impact) < 1e-8
        assert abs(np.sum(orbit.multipliers) / trace - 1) < 1e-6 and not bool(orbit.stable)


@pytest.mark.slow
def test_its_derivative():
    """By the push, in both modes, and of many at once: -1 / (a^2 + w^2)."""

    def start(push):
        return balanced(*REST, Pencil(push=push)).q[0]

    exact = -1 / (Pencil.rate**2 + Pencil.frequency**2)
    for derivative in (jax.jacfwd, jax.grad):
        assert abs(jax.jit(derivative(start))(1.3) - exact) < 1e-11
    np.testing.assert_allclose(jax.jit(jax.vmap(start))(jnp.array([0.5, 1.3, 2.0])), exact * np.array([0.5, 1.3, 2.0]), rtol=0, atol=1e-10)


@pytest.mark.slow
def test_special_points_in_two_arcs():
    """Those of the ball on a table: its period doubling, how it moves, the orbit behind it, and its curve in two parameters."""
    orbit = ball(arcs=2).raise_if_failed()
    state, trace, determinant = closed_form(Table())
    np.testing.assert_allclose(np.concatenate([orbit.q, orbit.u]), state, rtol=0, atol=1e-12)
    assert abs(np.trace(orbit.monodromy) - trace) < 1e-11 and abs(np.linalg.det(orbit.monodromy) - determinant) < 1e-12
    (point,) = orbits.follow(orbit, "amplitude", to=1.8).special
    assert point.kind == "period doubling" and abs(point.value - doubling(Table())) < 1e-10
    assert abs(point.derivatives()["e_N"] + 2.346546914831209) < 1e-10
    two = point.doubled().raise_if_failed()
    assert two.shooting.arcs == 4 and len(two.events) == 2 and bool(two.stable) and abs(two.period - 4 * np.pi) < 1e-13
    curve = orbits.curve(point, "e_N", to=0.6)
    np.testing.assert_allclose(curve.values[:, 0], [doubling(Table(e_N=e)) for e in curve.values[:, 1]], rtol=0, atol=1e-11)
    assert curve.end == "ended at e_N = 0.6"


@pytest.mark.slow
def test_a_rimless_wheel_in_arcs():
    """Autonomous, with a section and a heel strike: speed, period and multipliers as in one arc."""
    orbit, ratio = wheel(0.4, 2.5, arcs=4).raise_if_failed(), 0.8 / 1.3
    gained = 2 * (np.cos(0.25 - np.pi / 6) - np.cos(0.25 + np.pi / 6)) / 1.3  # of the square of the speed
    assert abs(orbit.u[0] - np.sqrt(gained * ratio**2 / (1 - ratio**2))) < 1e-12 and abs(orbit.period - 2.0664225165129117) < 1e-12
    np.testing.assert_allclose(orbit.multipliers, [1, ratio**2], rtol=0, atol=1e-11)


def test_bad_arcs_are_one_sentence():
    for error, text, arguments in (
        (TypeError, "arcs must be a whole number", {"arcs": 2.5}),
        (ValueError, "arcs must be at least 1", {"arcs": 0}),
        (ValueError, "n_steps must be a multiple of arcs = 5, got 128", {"arcs": 5}),
        (
            ValueError,
            r"q and u must be one state, or 8 states \(arcs, n_q\), \(arcs, n_u\), got shapes \(3, 1\) and \(8, 1\)",
            {"q": REST[0][:3]},
        ),
        (ValueError, "one start settles", {"settle": 2}),
        (ValueError, "q and u must be vectors", {"arcs": 1}),
    ):
        with pytest.raises(error, match=text) as caught:
            options = {"q": REST[0]} | arguments
            balanced(options.pop("q"), REST[1], **options)
        assert "\n" not in str(caught.value)
