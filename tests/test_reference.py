"""The event-driven reference against closed forms: only what it says of these is known to be right."""

import numpy as np
import pytest
from reference import event_driven
from reference.event_driven import Mechanics, NoMotionError, derivative, integrate

G = 9.81


# ------------------------------------------------------------------------------------------------------------ closed forms
def particle(force, gap, rate, slip, e_N=0.0, e_F=0.0, mu=0.0, mass=(1.0, 1.0)):
    """Particles of constant masses with n contacts."""
    n, M = len(gap(0.0, np.zeros(len(mass)))), np.diag(mass)
    law = [np.broadcast_to(np.asarray(x, float), n) for x in (e_N, e_F, mu)]
    return Mechanics(lambda t, q: M, force, gap, rate, slip, *law)


def over_floor(force, **law):
    """q = (x, y) over the floor y = 0."""
    return particle(force, lambda t, q: q[1:], lambda t, q, u: u[1:], lambda t, q, u: u[:1], **law)


def weight(t, q, u):
    return np.array([0.0, -G])


def test_bouncing_ball():
    """Times and speeds of the impacts are those of the closed form; what the height is at the end, and how it depends on e_N."""
    e, end = 0.7, 1.7

    def height(e):
        fall = np.sqrt(2 / G)
        times = fall * np.r_[1, 1 + 2 * np.cumsum(e ** np.arange(1, 4))]
        past, speed = end - times[2], G * fall * e**3
        return times, speed * past - G * past**2 / 2, speed - G * past

    times, y, v = height(e)
    motion = integrate(over_floor(weight, e_N=e), [0.0, 1.0], [0.3, 0.0], end)
    np.testing.assert_allclose([event[0] for event in motion.events], times[:3], rtol=0, atol=1e-11)
    np.testing.assert_allclose(np.r_[motion.q, motion.u], [0.3 * end, y, 0.3, v], rtol=0, atol=1e-10)
    by_e, error = derivative(lambda s: integrate(over_floor(weight, e_N=e + s), [0.0, 1.0], [0.3, 0.0], end))
    h = 1e-5
    wanted = (np.array(height(e + h)[1:]) - height(e - h)[1:]) / (2 * h)
    np.testing.assert_allclose(by_e[[1, 3]], wanted, rtol=0, atol=1e-7)
    assert error < 1e-6


def test_infinitely_many_impacts_are_refused():
    """There is no motion from event to event past an accumulation point."""
    with pytest.raises(NoMotionError):
        integrate(over_floor(weight, e_N=0.5), [0.0, 1.0], [0.0, 0.0], 2.0)


def test_block_slides_to_rest_on_a_slope():
    """It stops after v^2 / (2 d), d = g (mu cos a - sin a), and stays; derivatives by v are exact too."""
    a, mu, v = 0.2, 0.5, 1.0
    slope = over_floor(lambda t, q, u: G * np.array([np.sin(a), -np.cos(a)]), mu=mu)
    d = G * (mu * np.cos(a) - np.sin(a))
    motion = integrate(slope, [0.0, 0.0], [v, 0.0], 1.0)
    assert [event[1] for event in motion.events] == ["stop"] and motion.modes == ("stick",)
    np.testing.assert_allclose([motion.events[0][0], *motion.q, *motion.u], [v / d, v**2 / (2 * d), 0, 0, 0], rtol=0, atol=1e-11)
    by_v, _ = derivative(lambda s: integrate(slope, [0.0, 0.0], [v + s, 0.0], 1.0))
    np.testing.assert_allclose(by_v, [v / d, 0, 0, 0], rtol=0, atol=1e-9)


def test_plastic_landing_with_friction():
    """The percussion of landing takes mu times the normal momentum off the horizontal one; then the block slides to rest."""
    mu, v, height = 0.2, 2.0, 0.5
    fall = np.sqrt(2 * height / G)
    left = v - mu * G * fall
    motion = integrate(over_floor(weight, mu=mu), [0.0, height], [v, 0.0], 1.5)
    assert [event[1] for event in motion.events] == ["impact", "stop"]
    np.testing.assert_allclose(motion.q, [v * fall + left**2 / (2 * mu * G), 0], rtol=0, atol=1e-10)
    np.testing.assert_allclose(motion.events[1][0], fall + left / (mu * G), rtol=0, atol=1e-10)


def test_oscillator_with_dry_friction():
    """Each half swing loses 2 mu g / k of its width, and the mass sticks where the spring is weaker than friction."""
    mu, k, x = 0.1, 40.0, 0.2
    system = over_floor(lambda t, q, u: np.array([-k * q[0], -G]), mu=mu)
    shift, half = mu * G / k, np.pi / np.sqrt(k)
    turns = [x]
    while abs(turns[-1]) > shift:
        turns.append(-np.sign(turns[-1]) * (abs(turns[-1]) - 2 * shift))
    motion = integrate(system, [x, 0.0], [0.0, 0.0], 6 * half)
    assert 3 <= len(turns) - 1 <= 5
    stops = [event for event in motion.events if event[1] == "stop"]
    np.testing.assert_allclose([event[0] for event in stops], half * np.arange(1, len(turns)), rtol=0, atol=1e-9)
    np.testing.assert_allclose(motion.q, [turns[-1], 0], rtol=0, atol=1e-10)
    assert motion.modes == ("stick",)


def test_block_is_pushed_until_it_slides():
    """It sticks until the force exceeds mu g, then slides to the side of the force, with x = c s^3 / 6 after a time s."""
    mu, c = 0.3, 4.0
    motion = integrate(over_floor(lambda t, q, u: np.array([-c * t, -G]), mu=mu), [0.0, 0.0], [0.0, 0.0], 1.5)
    start = mu * G / c
    assert [event[1] for event in motion.events] == ["slip -"]
    np.testing.assert_allclose(motion.events[0][0], start, rtol=0, atol=1e-12)
    np.testing.assert_allclose(motion.q, [-c * (1.5 - start) ** 3 / 6, 0], rtol=0, atol=1e-11)


def test_table_throws_a_block_up():
    """It leaves where the table falls faster than g, a w^2 sin(w t) = g, and flies on a parabola."""
    a, w = 0.05, 20.0
    system = particle(
        weight,
        lambda t, q: q[1:] - a * np.sin(w * t),
        lambda t, q, u: u[1:] - a * w * np.cos(w * t),
        lambda t, q, u: u[:1] - 0.1 * np.cos(t),
        mu=0.1,
    )
    left = np.arcsin(G / (a * w**2)) / w
    motion = integrate(system, [0.0, 0.0], [0.0, a * w], 0.12)
    assert next(event[1] for event in motion.events if event[1] != "slip +") == "take-off"
    np.testing.assert_allclose(motion.events[0][0], left, rtol=0, atol=1e-11)
    s = 0.12 - left
    y = a * np.sin(w * left) + a * w * np.cos(w * left) * s - G * s**2 / 2
    np.testing.assert_allclose(motion.q[1], y, rtol=0, atol=1e-10)


@pytest.mark.parametrize("mu, slides", [(0.1, True), (1.0, False)])
def test_oblique_impact_with_tangential_restitution(mu, slides):
    """u_F+ = -e_F u_F- where the cone allows that percussion, else friction takes mu (1 + e_N) |u_N-|."""
    e_N, e_F, u = 0.6, 0.3, 1.5
    motion = integrate(over_floor(weight, e_N=e_N, e_F=e_F, mu=mu), [0.0, 0.2], [u, 0.0], 0.25)
    fall = np.sqrt(2 * 0.2 * G)
    np.testing.assert_allclose(motion.u[0], u - mu * (1 + e_N) * fall if slides else -e_F * u, rtol=0, atol=1e-12)
    np.testing.assert_allclose(motion.u[1], e_N * fall - G * (0.25 - fall / G), rtol=0, atol=1e-11)


def test_double_impact():
    """Two beads fall together on a stop, one upon the other and touching. With e_N = 0 both stop. With e_N = e for both contacts all
    velocities are turned round and e times as large: Newton's law for the stop says u_1+ = -e u_1-, for the beads, whose relative velocity
    is 0, that it stays so. The beads fly together, as the upper one is pulled down on the lower one.
    """
    pull, push = (3 * G + 1) / 3, 1.0

    def system(e):
        beads = lambda t, q: np.array([q[0], q[1] - q[0]])  # noqa: E731
        return particle(
            lambda t, q, u: -G * np.array([1.0, 2.0]) - np.array([0.0, push]),
            beads,
            lambda t, q, u: beads(t, u),
            lambda t, q, u: 0 * u,
            e,
            mass=(1, 2),
        )

    fall = np.sqrt(2 * 0.5 / pull)
    motion = integrate(system(0.5), [0.5, 0.5], [0.0, 0.0], fall + 0.1)
    after = 0.5 * pull * fall
    np.testing.assert_allclose(motion.q, [after * 0.1 - pull * 0.01 / 2] * 2, rtol=0, atol=1e-9)
    np.testing.assert_allclose(motion.u, [after - pull * 0.1] * 2, rtol=0, atol=1e-10)
    motion = integrate(system(0.0), [0.5, 0.5], [0.0, 0.0], fall + 0.1)
    np.testing.assert_allclose(np.r_[motion.q, motion.u], 0, rtol=0, atol=1e-10)


def test_corner_of_two_walls_hit_at_once():
    """Two coordinates with a mass matrix that couples them hit their walls at once: both are turned round."""
    M = np.array([[2.0, 0.4], [0.4, 1.0]])
    law = [np.array([0.5, 0.8]), np.zeros(2), np.zeros(2)]
    corner = Mechanics(lambda t, q: M, lambda t, q, u: np.zeros(2), lambda t, q: 1 * q, lambda t, q, u: 1 * u, lambda t, q, u: 0 * u, *law)
    motion = integrate(corner, [1.0, 2.0], [-1.0, -2.0], 1.5)
    assert motion.events[0][2] == (0, 1)
    np.testing.assert_allclose(np.r_[motion.q, motion.u], [0.25, 0.8, 0.5, 1.6], rtol=0, atol=1e-10)


def test_several_solutions_are_refused():
    """Painleve: a contact whose friction pushes it into the floor more than its normal force lifts it has two motions or none."""
    M = np.array([[1.0, -0.9], [-0.9, 1.0]])
    law = [np.zeros(1), np.zeros(1), np.array([2.0])]
    for load in (-G, G):
        rod = Mechanics(
            lambda t, q: np.linalg.inv(M),
            lambda t, q, u, load=load: np.linalg.solve(M, [0.0, load]),
            lambda t, q: q[1:],
            lambda t, q, u: u[1:],
            lambda t, q, u: u[:1],
            *law,
        )
        with pytest.raises(NoMotionError):
            integrate(rod, [0.0, 0.0], [-1.0, 0.0], 0.1)


def test_a_contact_without_force_ends():
    """Two beads fall side by side and touch without a force: the motion is found or refused, and the reference does not run for ever."""
    touch = lambda t, q: np.array([q[1] - q[0]])  # noqa: E731
    beads = particle(lambda t, q, u: -G * np.ones(2), touch, lambda t, q, u: touch(t, u), lambda t, q, u: 0 * u[:1])
    try:
        motion = integrate(beads, [0.5, 0.5], [0.0, 0.0], 0.1)
    except NoMotionError:
        return
    np.testing.assert_allclose(motion.q, 0.5 - G * 0.01 / 2, rtol=0, atol=1e-10)


def test_reference_stands_alone():
    """It imports neither the library nor JAX."""
    with open(event_driven.__file__) as file:
        text = file.read()
    assert "jax" not in text and len(text.splitlines()) < 600
