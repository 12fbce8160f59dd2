"""The event-driven reference against closed forms: only what it says of these is known to be right."""

import numpy as np
import pytest
from reference import event_driven
from reference.event_driven import Mechanics, NoMotionError, derivative, integrate, variation

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


def by(family):
    """d(q, u)/ds at s = 0 of motions of ``family(s)``, the arguments of `integrate`, by the variational equation."""
    return variation(lambda s: family(s)[:3], integrate(*family(0.0)))


def test_variations_of_a_bouncing_ball():
    """After three impacts, by restitution, height, weight, and velocities: derivatives of the closed form."""
    e, end, v, g, y = 0.7, 1.7, 0.4, 9.0, 1.0

    def fallen(x):
        e, y, v, g = x
        speed = np.sqrt(v**2 + 2 * g * y)
        last = (v + speed) / g + 2 * speed * (e + e**2) / g
        up = e**3 * speed
        return np.array([up * (end - last) - g * (end - last) ** 2 / 2, up - g * (end - last)])

    def family(x):
        e, y, v, g = x
        return over_floor(lambda t, q, u: np.array([0.0, -g]), e_N=e), np.array([0.0, y]), np.array([0.3, v]), end

    at = np.array([e, y, v, g])
    assert len(integrate(*family(at)).events) == 3
    for direction in np.eye(4):
        wanted = np.imag(fallen(at + 1e-30j * direction)) / 1e-30
        np.testing.assert_allclose(by(lambda s, d=direction: family(at + s * d))[[1, 3]], wanted, rtol=0, atol=1e-9)


def test_variations_of_what_slides_to_rest():
    """On a slope, x = v^2 / (2 d); after a plastic landing with friction, x = v T + (v - mu g T)^2 / (2 mu g)."""
    a, mu, v, height = 0.2, 0.5, 1.0, 0.5

    def down(s_v, s_mu):
        return (
            over_floor(lambda t, q, u: G * np.array([np.sin(a), -np.cos(a)]), mu=mu + s_mu),
            np.zeros(2),
            np.array([v + s_v, 0.0]),
            1.0,
        )

    d = G * (mu * np.cos(a) - np.sin(a))
    np.testing.assert_allclose(by(lambda s: down(s, 0.0)), [v / d, 0, 0, 0], rtol=0, atol=1e-10)
    np.testing.assert_allclose(by(lambda s: down(0.0, s)), [-(v**2) * G * np.cos(a) / (2 * d**2), 0, 0, 0], rtol=0, atol=1e-10)
    mu, v = 0.2, 2.0
    fall = np.sqrt(2 * height / G)
    left = v - mu * G * fall

    def landing(s_v, s_mu, s_h):
        return over_floor(weight, mu=mu + s_mu), np.array([0.0, height + s_h]), np.array([v + s_v, 0.0]), 1.5

    wanted = [fall + left / (mu * G), -left * fall / mu - left**2 / (2 * mu**2 * G), (v - left) / (G * fall)]
    for direction, x in zip(np.eye(3), wanted, strict=True):
        np.testing.assert_allclose(by(lambda s, d=direction: landing(*(s * d))), [x, 0, 0, 0], rtol=0, atol=1e-9)


def test_variations_where_slip_turns_and_starts():
    """Of an oscillator that comes to rest after n half swings, (-1)^n (x - 2 n mu g / k); of a block pushed until it slides."""
    x, mu, k = 0.2, 0.1, 40.0

    def swings(s_x, s_mu, s_k):
        spring = over_floor(lambda t, q, u: np.array([-(k + s_k) * q[0], -G]), mu=mu + s_mu)
        return spring, np.array([x + s_x, 0.0]), np.zeros(2), 6 * np.pi / np.sqrt(k)

    n = 4
    assert len([event for event in integrate(*swings(0.0, 0.0, 0.0)).events if event[1] == "stop"]) == n
    wanted = (-1.0) ** n * np.array([1.0, -2 * n * G / k, 2 * n * mu * G / k**2])
    for direction, slope in zip(np.eye(3), wanted, strict=True):
        np.testing.assert_allclose(by(lambda s, d=direction: swings(*(s * d))), [slope, 0, 0, 0], rtol=0, atol=1e-9)
    mu, c, end = 0.3, 4.0, 1.5

    def pushed(s_mu, s_c):
        return over_floor(lambda t, q, u: np.array([-(c + s_c) * t, -G]), mu=mu + s_mu), np.zeros(2), np.zeros(2), end

    late = end - mu * G / c
    wanted = [[G * late**2 / 2, G * late], [-(late**3) / 6 - mu * G * late**2 / (2 * c), -(late**2) / 2 - mu * G * late / c]]
    for direction, (slope, speed) in zip(np.eye(2), wanted, strict=True):
        np.testing.assert_allclose(by(lambda s, d=direction: pushed(*(s * d))), [slope, 0, speed, 0], rtol=0, atol=1e-9)


def test_variations_of_a_throw_and_of_impacts_with_friction():
    """Where a table throws a block up the time of it does not count, as forces agree there. Impacts: by friction and by e_F."""
    a, w, end = 0.05, 20.0, 0.12

    def thrown(s):
        size = a + s
        table = particle(
            weight,
            lambda t, q: q[1:] - size * np.sin(w * t),
            lambda t, q, u: u[1:] - size * w * np.cos(w * t),
            lambda t, q, u: u[:1] - 0.1 * np.cos(t),
            mu=0.1,
        )
        return table, np.zeros(2), np.array([0.0, size * w]), end

    phase = np.arcsin(G / (a * w**2))
    s = end - phase / w
    wanted = [np.sin(phase) + w * np.cos(phase) * s, w * np.cos(phase)]
    np.testing.assert_allclose(by(thrown)[[1, 3]], wanted, rtol=0, atol=1e-8)
    e_N, e_F, u, fall = 0.6, 0.3, 1.5, np.sqrt(2 * 0.2 * G)

    def oblique(mu, s_mu, s_F, s_h):
        return over_floor(weight, e_N=e_N, e_F=e_F + s_F, mu=mu + s_mu), np.array([0.0, 0.2 + s_h]), np.array([u, 0.0]), 0.25

    for mu, wanted in ((0.1, [-(1 + e_N) * fall, 0.0, -0.1 * (1 + e_N) * G / fall]), (1.0, [0.0, -u, 0.0])):
        found = [by(lambda s, d=direction, mu=mu: oblique(mu, *(s * d)))[2] for direction in np.eye(3)]
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-9)


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
