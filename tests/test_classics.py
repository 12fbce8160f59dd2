"""Paradoxes and classics, each with its known truth: closed forms, integrals of the motion, statics, published numbers."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from little_systems import GRAVITY as G
from numpy.testing import assert_allclose

import jaxnsd
from jaxnsd import Lobatto, LocatedImpacts, Moreau, Outcome, SymmetricMoreau, System, models, simulate


# -------------------------------------------------------------------------------------------------------- Painleve's rod
@jaxnsd.system
class Rod(System):
    """A uniform rod of mass 1 kg and half length 1 m whose lower end touches a floor: q = (x, y, angle above the floor)."""

    mu: float = 2.0

    def mass_matrix(self, t, q):
        return jnp.diag(jnp.array([1.0, 1.0, 1 / 3]))

    def potential_energy(self, t, q):
        return G * q[1]

    def gap(self, t, q):
        return q[1:2] - jnp.sin(q[2:])

    def tangential_velocity(self, t, q, u):
        return (u[:1] + jnp.sin(q[2:]) * u[2:])[:, None]


def energy_of_rods(q, u):
    return 0.5 * u**2 @ np.array([1.0, 1.0, 1 / 3]) + G * q[..., 1]


def rods(rng, n, low, high):
    """Friction between the bounds, and states whose lower end slides: it is a hair's breadth in the floor, and moves along it."""
    mu, angle, slip, turns = rng.uniform([low, 0.1, -2, -8], [high, 1.5, 2, 8], (n, 4)).T
    q = np.stack([np.zeros(n), np.sin(angle) - 1e-5, angle], axis=1)
    return mu, q, np.stack([slip - np.sin(angle) * turns, np.cos(angle) * turns, turns], axis=1)


@pytest.mark.parametrize("scheme", [Moreau(), pytest.param(Lobatto(2), marks=pytest.mark.slow)], ids=lambda scheme: scheme.name)
def test_painleves_rod_below_and_above_the_critical_friction(scheme):
    """Sliding presses the end into the floor where 1 + 3 c^2 -+ 3 mu s c < 0, which takes mu > 4/3 (Painleve 1895; Genot & Brogliato 1999).

    One step from 4000 states, held against the law and the balance, written out here. Below 4/3 what happens is the only thing that can:
    it slides on with the force of sliding, or takes off. Above, where sliding is inconsistent, slip ends at once, by an impact without a
    collision: the velocity of the end is projected out in the metric of the inertia.
    """
    rng, n, dt = np.random.default_rng(0), 2000, 1e-4
    mu, q, u = (np.concatenate(pair) for pair in zip(rods(rng, n, 0.2, 4 / 3), rods(rng, n, 1.4, 3.0), strict=True))
    sol = jax.jit(jax.vmap(lambda mu, q, u: simulate(Rod(mu), scheme, q, u, n_steps=1, dt=dt)))(mu, q, u)
    assert np.all(sol.outcome == Outcome.SUCCESS)
    after, P = np.asarray(sol.u[:, 1]), np.stack([sol.P_N[:, 0, 0], sol.P_F[:, 0, 0, 0]], axis=1)
    s, c, zero, one = np.sin(sol.q[:, 1, 2]), np.cos(sol.q[:, 1, 2]), np.zeros(2 * n), np.ones(2 * n)
    W = np.stack([[zero, one, -c], [one, zero, s]]).transpose(2, 0, 1)
    normal, slip = np.einsum("kij,kj->ik", W, after)
    # The law of an impact without restitution, whatever the history.
    assert P[:, 0].min() >= 0 and normal.min() > -1e-12 and np.abs(P[:, 0] * normal).max() < 1e-12
    limit = mu * P[:, 0]
    assert np.all(np.abs(P[:, 1]) <= limit + 1e-12) and np.all(slip * P[:, 1] <= 1e-12)
    assert np.abs(slip * (limit - np.abs(P[:, 1]))).max() < 1e-11
    # A jam takes the energy of the slip that it ends, and no step gains any; sunk in, a scheme on position level lifts the rod.
    gained = energy_of_rods(np.asarray(sol.q[:, 1]), after) - energy_of_rods(q, u)
    assert gained.max() < (1e-6 if scheme == Moreau() else 1e-3)
    if scheme != Moreau():
        return
    before = np.einsum("kij,kj->ki", W, u) - dt * G * np.array([1.0, 0.0])
    side = np.sign(before[:, 1])
    lifted, pressed = 1 + 3 * c**2 + 3 * mu * s * c * side, before[:, 0] < 0
    assert np.all(lifted[:n] > 0) and np.sum(lifted < 0) > 300
    # To the sign of 1 + 3 c^2 -+ 3 mu s c and of the free acceleration belongs what must happen.
    sliding = -before[:, 0] / lifted
    goes_on = np.abs(before[:, 1]) > sliding * (mu * (1 + 3 * s**2) + 3 * s * c * side)
    slides = (lifted > 0) & pressed & goes_on
    inconsistent = (lifted < 0) & pressed
    assert slides.sum() > 1000 and inconsistent.sum() > 100
    assert np.all(P[(lifted > 0) & ~pressed] == 0)
    assert_allclose(P[slides, 0], sliding[slides], rtol=1e-9)
    assert_allclose(P[slides, 1], (-side * limit)[slides], rtol=1e-12)
    mass = np.einsum("kij,j,klj->kil", W, [1.0, 1.0, 3.0], W)
    assert_allclose(P[inconsistent], -np.linalg.solve(mass, before[..., None])[inconsistent, :, 0], rtol=1e-8)
    assert_allclose(after, u - dt * G * np.array([0.0, 1.0, 0.0]) + np.einsum("kij,ki,j->kj", W, P, [1.0, 1.0, 3.0]), atol=1e-12)
    assert np.abs(slip[inconsistent]).max() < 1e-12


def test_a_rod_that_jams_vaults_over_its_end():
    """Translated along the floor in the inconsistent region it stops with its end, keeps its angular momentum about it, and turns there:
    4/3 w = 3 sin(angle), then 2/3 w^2 + g sin(angle) is constant. Friction does not matter as long as it is above the critical one.
    """
    mu, angle, dts = jnp.array([1.6, 2.0, 3.0]), 1.1, np.array([1e-3, 2.5e-4])
    for dt in dts:
        q0, u0 = jnp.array([0.0, np.sin(angle) - 1e-9, angle]), jnp.array([-3.0, 0.0, 0.0])
        sol = jax.vmap(lambda mu, dt=dt, q0=q0, u0=u0: simulate(Rod(mu), Moreau(), q0, u0, n_steps=100, dt=dt))(mu)
        q, u = np.asarray(sol.q[:, 2:]), np.asarray(sol.u[:, 2:])
        w = 9 / 4 * np.sin(angle)
        assert np.all(sol.outcome == Outcome.SUCCESS)
        assert_allclose(u[:, :, 0] + np.sin(q[:, :, 2]) * u[:, :, 2], 0, atol=10 * dt)
        assert_allclose(u[:, 0, 2], w, rtol=30 * dt)
        assert_allclose(2 / 3 * u[:, :, 2] ** 2 + G * np.sin(q[:, :, 2]), 2 / 3 * w**2 + G * np.sin(angle), rtol=10 * dt)
        # Along the circle about the end; it is left by the order of the step.
        assert_allclose(q[:, :, 1], np.sin(q[:, :, 2]), atol=dt)
        assert np.all(np.diff(energy_of_rods(q, u), axis=1) <= G**2 * dt**2)


# ------------------------------------------------------------------------------------------------------- balls in a line
@jaxnsd.system
class Line(System):
    """Balls of diameter one in a line without forces, right of a wall: the contacts are the wall, then every ball with the next."""

    mass: Any
    e: float = 1.0
    e_wall: float = 1.0
    poisson: bool = jaxnsd.static(default=False)

    def law(self):
        e = jnp.full(self.mass.shape, self.e).at[0].set(self.e_wall)
        return jaxnsd.PoissonImpact(e) if self.poisson else jaxnsd.NewtonImpact(e)

    def kinetic_energy(self, t, q, u):
        return 0.5 * self.mass @ u**2

    def gap(self, t, q):
        return jnp.concatenate([q[:1] - 0.5, q[1:] - q[:-1] - 1.0])


@pytest.mark.parametrize("poisson", [False, True], ids=["Newton", "Poisson"])
def test_newtons_cradle(poisson):
    """Apart by a hair: as many balls leave as come, and with e < 1 the last one with ((1 + e) / 2)^4. In contact both laws say another
    thing, since without friction they are one: from the common velocity all go off by e times what they came with.
    """
    apart = 10.0 + 1.02 * np.arange(5.0) + np.r_[0.0, np.full(4, 1e-3)]
    coming = [(np.arange(5) < k).astype(float) for k in (1, 2, 3, 4, 1)]
    e = np.array([1.0, 1.0, 1.0, 1.0, 0.9, 1.0, 0.5, 0.0, 0.5])
    touching = 10.0 + (1.0 - 1e-12) * np.arange(5.0)
    q0 = np.stack([apart] * 5 + [touching] * 4)
    u0 = np.stack([*coming, *[coming[0]] * 3, coming[1]])
    run = lambda e, q, u: simulate(Line(jnp.ones(5), e, poisson=poisson), Moreau(), q, u, n_steps=150, dt=1e-3)  # noqa: E731
    sol = jax.vmap(run)(e, q0, u0)
    assert np.all(sol.outcome == Outcome.SUCCESS)
    u = np.asarray(sol.u)
    assert_allclose(u[:4, -1], u0[:4, ::-1], atol=1e-13)
    passed = 0.95 ** np.arange(5)
    assert_allclose(u[4, -1], [*(0.05 * passed[:4]), passed[4]], atol=1e-13)
    together = u0[5:].mean(axis=1, keepdims=True)
    assert_allclose(u[5:, -1], together + e[5:, None] * (together - u0[5:]), atol=1e-13)
    assert_allclose(u.sum(axis=2), np.broadcast_to(u0.sum(axis=1)[:, None], u.shape[:2]), atol=1e-13)
    energy = 0.5 * np.sum(u**2, axis=2)
    assert np.all(np.diff(energy, axis=1) < 1e-14)
    assert_allclose(energy[e == 1.0], np.broadcast_to(energy[e == 1.0, :1], energy[e == 1.0].shape), rtol=1e-13)


def test_two_balls_count_digits_of_pi_and_shoot():
    """A ball between a wall and one of 100^k times its mass, all elastic, has 3, 31, ... impacts (Galperin 2003). Dropped together, the
    one above a heavier one leaves with (3 M - m) / (M + m) times the speed, with restitution by both impacts in turn.
    """
    n_steps = 4000

    def run(mass, e, e_wall, q, u, dt):
        sol = simulate(Line(mass, e, e_wall), Moreau(), q, u, n_steps=n_steps, dt=dt)
        return sol.u[-1], jnp.sum(sol.P_N > 0), jnp.all(sol.outcome == Outcome.SUCCESS)

    # Mass, of the heavy one where it comes first; restitution, at the wall; positions, velocities, step.
    rows = [
        ([1.0, 1.0], 1.0, 1.0, [0.7, 2.0], [0.0, -1.0], 1e-3),
        ([1.0, 100.0], 1.0, 1.0, [0.6, 1.65], [0.0, -1.0], 1e-4),
        ([5.0, 1.0], 1.0, 1.0, [0.6, 1.62], [-1.0, -1.0], 1e-4),
        ([5.0, 1.0], 0.8, 0.9, [0.6, 1.62], [-1.0, -1.0], 1e-4),
    ]
    u, impacts, solved = jax.vmap(run)(*(jnp.array(column) for column in zip(*rows, strict=True)))
    assert np.all(solved)
    assert impacts.tolist() == [3, 31, 2, 2]
    assert_allclose(u[2], [2 / 6, 14 / 6], atol=1e-13)
    common = (5 * 0.9 - 1) / 6
    assert_allclose(u[3], [common - 0.8 * 1.9 / 6, common + 0.8 * 1.9 * 5 / 6], atol=1e-13)
    assert float(jnp.array([1.0, 100.0]) @ u[1] ** 2) == pytest.approx(100.0, rel=1e-12)


# ----------------------------------------------------------------------------------------------- balls that spin and bounce
def bounce(u, e_N, e_F, mu, inertia=0.4):
    """A ball of unit mass and radius R = 0.1 m on the plane z = 0; u = (v, omega) in space: grip reverses the slip, sliding does not."""
    R, v, w = 0.1, u[:3], u[3:]
    slip = np.array([v[0] - R * w[1], v[1] + R * w[0]])
    up, grip = (1 + e_N) * -v[2], inertia / (1 + inertia) * (1 + e_F)
    size = min(grip * np.linalg.norm(slip), mu * up)
    P = -size * slip / np.linalg.norm(slip)
    moment = np.array([R * P[1], -R * P[0], 0.0])
    return np.r_[v + np.r_[P, up], w + moment / (inertia * R**2)]


def test_a_ball_with_spin_bounces():
    """By grip and by sliding (Cross 2002: tangential restitution e_F or Coulomb's law), in space and in the plane."""
    rng, n = np.random.default_rng(3), 300
    e_N, e_F, mu = rng.uniform([0, 0, 0.02], [1, 1, 1.0], (n, 3)).T
    u = rng.standard_normal((n, 6)) * np.array([3, 3, 1, 30, 30, 30])
    u[:, 2] = -np.abs(u[:, 2]) - 0.1
    u[::2, [1, 3, 5]] = 0.0  # of these the plane is enough
    q0 = jnp.array([0.0, 0.0, 0.1 - 1e-9, 0.0, 0.0, 0.0])

    def in_space(e_N, e_F, mu, u):
        # Steps that move nothing, and see the contact as closed.
        return simulate(models.Sphere(e_N=e_N, e_F=e_F, mu=mu, gravity=0.0, wall=100.0), Moreau(), q0, u, n_steps=2, dt=1e-12)

    def in_plane(e_N, e_F, mu, u):
        return simulate(models.RotatingBall(e_N=e_N, e_F=e_F, mu=mu, gravity=0.0), Moreau(), q0[1:4], u, n_steps=2, dt=1e-12)

    turned = np.array([1, 1, -1])
    sol = jax.vmap(in_space)(e_N, e_F, mu, u)
    flat = jax.vmap(in_plane)(e_N[::2], e_F[::2], mu[::2], u[::2, [0, 2, 4]] * turned)
    assert np.all(sol.outcome == Outcome.SUCCESS) and np.all(flat.outcome == Outcome.SUCCESS)
    exact = np.stack([bounce(*row) for row in zip(u, e_N, e_F, mu, strict=True)])
    assert_allclose(sol.u[:, -1], exact, atol=1e-11)
    assert_allclose(np.asarray(flat.u[:, -1]) * turned, exact[::2][:, [0, 2, 4]], atol=1e-11)
    slid = np.linalg.norm(sol.P_F[:, :, 0].sum(axis=1), axis=1) > (1 - 1e-9) * mu * sol.P_N[:, :, 0].sum(axis=1)
    assert 50 < slid.sum() < n - 50
    # No energy comes from nowhere, whatever the two restitutions: a single contact of a ball does not couple its directions.
    inertia = np.array([1, 1, 1, 4e-3, 4e-3, 4e-3])
    assert np.all(exact**2 @ inertia <= u**2 @ inertia * (1 + 1e-12))


@jaxnsd.system
class UnderATable(System):
    """A superball between a floor and the underside of a table, without gravity, in the plane: q = (x, y, angle), radius 1 m."""

    e_N: float = 1.0
    e_F: float = 1.0
    mu: float = 1e3

    def mass_matrix(self, t, q):
        return jnp.diag(jnp.array([1.0, 1.0, 0.4]))

    def gap(self, t, q):
        return jnp.stack([q[1] - 1.0, 5.0 - q[1]])

    def tangential_velocity(self, t, q, u):
        return jnp.stack([u[0] + u[2], u[0] - u[2]])[:, None]


def test_a_superball_thrown_under_a_table_comes_back():
    """Without spin at first: its velocities are 1, 3/7, -31/49, -333/343, and its energy is what it was (Garwin 1969)."""
    q0, u0 = jnp.array([0.0, 2.0, 0.0]), jnp.array([1.0, -1.0, 0.0])
    sol = simulate(UnderATable(), Moreau(), q0, u0, n_steps=1000, dt=0.01).raise_if_failed()
    u = np.asarray(sol.u)
    assert_allclose(u[[0, 300, 700, 1000], 0], [1, 3 / 7, -31 / 49, -333 / 343], atol=1e-13)
    assert_allclose(u**2 @ [1, 1, 0.4], 2.0, rtol=1e-13)


# -------------------------------------------------------------------------------------------- inclines, wedges, what jams
@jaxnsd.system
class OnAnIncline(System):
    """A block and an incline in the frame of the incline: q = (way down, height above it)."""

    slope: float = 0.4
    mu: float = 0.3

    def kinetic_energy(self, t, q, u):
        return 0.5 * u @ u

    def potential_energy(self, t, q):
        return G * (q[1] * jnp.cos(self.slope) - q[0] * jnp.sin(self.slope))

    def gap(self, t, q):
        return q[1:]

    def tangential_velocity(self, t, q, u):
        return u[None, :1]


def test_a_block_pushed_up_an_incline_stays_there_or_comes_back():
    """Up for v / (g (sin + mu cos)); then it stays, to the bit, where mu >= tan, and comes back with g (sin - mu cos) where mu < tan."""
    dt, n, v, slope = 1e-3, 1000, 2.0, 0.4
    mu = np.tan(slope) * np.array([0.0, 0.3, 0.9, 1 - 1e-6, 1 + 1e-6, 1.1, 3.0])
    sol = jax.vmap(lambda mu: simulate(OnAnIncline(slope, mu), Moreau(), jnp.array([0.0, -1e-9]), jnp.array([-v, 0.0]), n_steps=n, dt=dt))(mu)
    assert np.all(sol.outcome == Outcome.SUCCESS)
    q, u, t = (np.asarray(x) for x in (sol.q[:, :, 0], sol.u[:, :, 0], sol.t))
    up, down = (G * (np.sin(slope) + side * mu * np.cos(slope))[:, None] for side in (1, -1))
    way, turn = -(v**2) / (2 * up), v / up
    rising = t < turn
    assert_allclose(u[rising], (up * t - v)[rising], atol=1e-11)
    assert_allclose(u[~rising], (np.maximum(down, 0) * (t - turn))[~rising], atol=G * dt)
    exact = np.where(rising, -v * t + 0.5 * up * t**2, way + 0.5 * np.maximum(down, 0) * (t - turn) ** 2)
    assert_allclose(q, exact, atol=0.5 * G * dt)
    for k in (4, 5, 6):
        stopped = np.flatnonzero(u[k] == 0)[0]
        assert abs(t[k, stopped] - turn[k, 0]) < 1.01 * dt
        assert np.all(u[k, stopped:] == 0) and np.all(q[k, stopped:] == q[k, stopped])


@jaxnsd.system
class WedgeBetweenJaws(System):
    """A wedge between two jaws that are pressed together: q = (height of the wedge, places of the right and of the left jaw).

    Each jaw has the mass 1 kg and is pressed by 50 N, the wedge has 3 kg and no weight; it is thinner below by tan(half angle) on each side.
    """

    half_angle: float = 0.3
    mu: float = 0.2

    def mass_matrix(self, t, q):
        return jnp.diag(jnp.array([3.0, 1.0, 1.0]))

    def force(self, t, q, u):
        return jnp.array([0.0, -50.0, -50.0])

    def gap(self, t, q):
        return jnp.cos(self.half_angle) * (q[1:] + jnp.tan(self.half_angle) * q[0])

    def tangential_velocity(self, t, q, u):
        return (jnp.cos(self.half_angle) * u[0] - jnp.sin(self.half_angle) * u[1:])[:, None]


def test_a_wedge_holds_itself_or_is_squeezed_out():
    """It is held where tan(half angle) <= mu: nothing moves. Else it goes up with 2 N (sin - mu cos) / M, and the jaws follow it."""
    mu, squeeze = 0.25, 50.0
    half_angle = np.arctan(mu * np.array([0.2, 0.9, 1 - 1e-6, 1 + 1e-6, 1.1, 3.0]))
    q0 = jnp.array([0.0, -1e-9, -1e-9])
    sol = jax.vmap(lambda a: simulate(WedgeBetweenJaws(a, mu), Moreau(), q0, jnp.zeros(3), n_steps=100, dt=1e-3))(half_angle)
    assert np.all(sol.outcome == Outcome.SUCCESS)
    s, c = np.sin(half_angle), np.cos(half_angle)
    normal = squeeze / (c + mu * s + 2 / 3 * np.tan(half_angle) * (s - mu * c))
    up = np.maximum(2 / 3 * normal * (s - mu * c), 0)
    assert_allclose(sol.u[:, :, 0], up[:, None] * np.asarray(sol.t), atol=1e-13)
    for jaw in (1, 2):
        assert_allclose(sol.u[:, :, jaw], -(np.tan(half_angle) * up)[:, None] * np.asarray(sol.t), atol=1e-13)
    assert_allclose(sol.q[:3], np.broadcast_to(q0, (3, 101, 3)), rtol=0, atol=1e-15)


@jaxnsd.system
class Clamp(System):
    """A sleeve on a post, pressed down at a distance from it: q = (x, y, angle), small. It touches the post above on one side, below on the
    other; half of its height is 0.1 m, the load 30 N, the mass 2 kg without weight.
    """

    distance: float = 0.5
    mu: float = 0.4

    def mass_matrix(self, t, q):
        return jnp.diag(jnp.array([2.0, 2.0, 0.05]))

    def force(self, t, q, u):
        return -30.0 * jnp.stack([jnp.zeros_like(q[0]), jnp.ones_like(q[0]), jnp.asarray(self.distance)])

    def gap(self, t, q):
        return jnp.stack([0.1 * q[2] - q[0], q[0] + 0.1 * q[2]])

    def tangential_velocity(self, t, q, u):
        return jnp.stack([u[1], u[1]])[:, None]


def test_a_clamp_on_a_post_jams_where_the_load_is_far_out():
    """N = F d / h above and below: it holds whatever the load where d >= h / (2 mu), and else falls with F (1 - 2 mu d / h) / m."""
    mu, h = 0.4, 0.2
    distance = h / (2 * mu) * np.array([0.0, 0.5, 0.9, 1 - 1e-6, 1 + 1e-6, 1.5, 10.0])
    q0 = jnp.array([0.0, 0.0, -1e-8])
    sol = jax.vmap(lambda d: simulate(Clamp(d, mu), Moreau(), q0, jnp.zeros(3), n_steps=100, dt=1e-3))(distance)
    assert np.all(sol.outcome == Outcome.SUCCESS)
    falls = -15.0 * np.maximum(1 - 2 * mu * distance / h, 0)
    assert_allclose(sol.u[:, :, 1], falls[:, None] * np.asarray(sol.t), atol=1e-13)
    assert_allclose(sol.u[:, :, ::2], 0, atol=1e-13)
    assert_allclose(sol.P_N[:, -1], np.broadcast_to(30.0 * distance[:, None] / h * 1e-3, (7, 2)), atol=1e-12)


@jaxnsd.system
class Cycloid(System):
    """A bead on a cycloid of a wheel with radius 1 m, by the angle of the wheel, to a wall at its lowest point, pi."""

    e_N: float = 1.0

    def mass_matrix(self, t, q):
        return 2 * (1 - jnp.cos(q))[:, None]

    def potential_energy(self, t, q):
        return G * jnp.cos(q[0])

    def gap(self, t, q):
        return np.pi - q


def test_brachistochrone_and_tautochrone():
    """From the cusp the wheel turns uniformly, by sqrt(g / R) (Bernoulli 1697). From rest anywhere it takes pi sqrt(R / g) to the wall
    (Huygens 1673), and as long to come back: all beads are where they started, at rest, at one time; errors at rest fall as the fourth power of the step.
    """
    rate, n = np.sqrt(G), np.array([100, 200])
    start = np.array([0.5, 1.5, 2.8, 0.5])
    u0 = jnp.array([0.0, 0.0, 0.0, rate])

    def run(dt):
        beads = lambda q, u: simulate(Cycloid(), LocatedImpacts(SymmetricMoreau()), q[None], u[None], n_steps=200, dt=dt)  # noqa: E731
        return jax.vmap(beads)(jnp.array(start), u0)

    sol = jax.vmap(run)(2 * np.pi / rate / n)
    assert np.all(sol.outcome == Outcome.SUCCESS)
    q, t = np.asarray(sol.q[..., 0]), np.asarray(sol.t[:, 3])
    back = np.abs(q[[0, 1], :3, n] - start[:3])
    assert np.all(back[1] < 1e-7) and np.all(np.log2(back[0] / back[1]) > 3.9)
    early = t < (np.pi - 0.5) / rate
    assert_allclose(q[:, 3][early], (0.5 + rate * t)[early], atol=1e-13)


# ---------------------------------------------------------------------------------------------------------------- rolling
@jaxnsd.system
class Wheel(System):
    """A wheel, hoop or ball of mass 1 kg and radius 1 m on an incline: q = (way down, height above it, angle); inertia ``k``."""

    k: float = 0.5
    slope: float = 0.0
    mu: float = 0.3

    def mass_matrix(self, t, q):
        return jnp.diag(jnp.stack([jnp.ones_like(q[0]), jnp.ones_like(q[0]), jnp.asarray(self.k)]))

    def potential_energy(self, t, q):
        return G * (q[1] * jnp.cos(self.slope) - q[0] * jnp.sin(self.slope))

    def gap(self, t, q):
        return q[1:2] - 1.0

    def tangential_velocity(self, t, q, u):
        return (u[:1] - u[2:])[:, None]


def test_wheels_on_an_incline_and_billiards():
    """Rolls with g sin / (1 + k) while mu >= k / (1 + k) tan, else slides with g (sin - mu cos), exactly at the nodes. On the level, with
    draw: slides for k |slip| / ((1 + k) mu g), ends with (v + k R w) / (1 + k), so it comes back where k R w < -v.
    """
    dt, n = 2e-3, 400
    # Inertia, slope, ratio of mu to the threshold of rolling: hoop, disc, ball, shell, a point that is no wheel.
    cases = np.array([[k, a, r] for k in (1.0, 0.5, 0.4, 2 / 3, 1e-3) for a in (0.1, 0.8) for r in (0.5, 1 - 1e-6, 1 + 1e-6, 2.0)])
    k, a, ratio = cases.T
    mu = ratio * k / (1 + k) * np.tan(a)
    # Inertia, mu, v, w.
    shots = np.array([[0.4, 0.2, 2.0, w] for w in (0.0, 1.0, 2.0, 4.0, -2.0, -5.0, -6.0)] + [[1.0, 0.3, 1.0, -1.0], [0.5, 0.3, -1.0, 1.0]])
    k, a, mu = np.r_[k, shots[:, 0]], np.r_[a, 0 * shots[:, 0]], np.r_[mu, shots[:, 1]]
    u0 = np.zeros((len(k), 3))
    u0[len(cases) :, ::2] = shots[:, 2:]
    run = lambda k, a, mu, u: simulate(Wheel(k, a, mu), Moreau(), jnp.array([0.0, 1 - 1e-9, 0.0]), u, n_steps=n, dt=dt)  # noqa: E731
    sol = jax.vmap(run)(k, a, mu, u0)
    assert np.all(sol.outcome == Outcome.SUCCESS)
    u, t, m = np.asarray(sol.u), np.asarray(sol.t), len(cases)
    k, a, mu = (x[:, None] for x in (k, a, mu))
    rolls = mu >= k / (1 + k) * np.tan(a)
    speed = np.where(rolls, np.sin(a) / (1 + k), np.sin(a) - mu * np.cos(a)) * G * t
    spin = np.where(rolls, np.sin(a) / (1 + k), mu * np.cos(a) / k) * G * t
    assert_allclose(u[:m, :, 0], speed[:m], rtol=1e-11, atol=1e-12)
    assert_allclose(u[:m, :, 2], spin[:m], rtol=1e-11, atol=1e-12)
    k, mu, v, w = shots.T[:, :, None]
    u, t, q = u[m:], t[m:], np.asarray(sol.q[m:, :, 0])
    slip, end = v - w, (v + k * w) / (1 + k)
    time = k * np.abs(slip) / ((1 + k) * mu * G)
    sliding = t <= time
    assert_allclose(u[:, :, 0][sliding], (v - np.sign(slip) * mu * G * t)[sliding], atol=1e-12)
    assert_allclose(u[:, :, 0][t > time + dt], (end + 0 * t)[t > time + dt], atol=1e-12)
    assert_allclose(u[:, :, 2][t > time + dt], (end + 0 * t)[t > time + dt], atol=1e-12)
    # 12 v^2 / (49 mu g) for a ball without spin; the velocity of a step is that at its end, so a node is behind by mu g t dt / 2.
    s = np.minimum(t, time)
    assert_allclose(q, v * s - np.sign(slip) * mu * G * s**2 / 2 + end * (t - s), atol=float(np.max(mu * G * time)) * dt)
    assert float(v[0, 0] * time[0, 0] - mu[0, 0] * G * time[0, 0] ** 2 / 2) == pytest.approx(12 * 2.0**2 / (49 * 0.2 * G), rel=1e-12)


@jaxnsd.system
class OnAHump(System):
    """A ball of mass 1 kg on a fixed cylinder, together 1 m in radius: q = (x, y, angle); ``k`` its inertia over the radius squared."""

    k: float = 0.4
    mu: float = 0.0

    def mass_matrix(self, t, q):
        return jnp.diag(jnp.stack([jnp.ones_like(q[0]), jnp.ones_like(q[0]), jnp.asarray(self.k)]))

    def potential_energy(self, t, q):
        return G * q[1]

    def gap(self, t, q):
        return jnp.sqrt(q[:2] @ q[:2])[None] - 1.0

    def tangential_velocity(self, t, q, u):
        return ((q[1] * u[0] - q[0] * u[1]) / jnp.sqrt(q[:2] @ q[:2]) - u[2])[None, None]


@jaxnsd.system
class Ladder(System):
    """A uniform ladder of half length 1 m between a smooth floor and a smooth wall: q = (x, y, angle above the floor)."""

    def mass_matrix(self, t, q):
        return jnp.diag(jnp.array([1.0, 1.0, 1 / 3]))

    def potential_energy(self, t, q):
        return G * q[1]

    def gap(self, t, q):
        return jnp.stack([q[1] - jnp.sin(q[2]), q[0] - jnp.cos(q[2])])


def test_what_slides_down_takes_off_where_it_must():
    """A particle leaves a cylinder at cos = 2/3, what rolls at 2 / (3 + k): a ball at 10/17. A ladder leaves the wall at 2/3 of its height."""
    start, v, dt = 0.2, 0.3, 1e-3
    tops = jnp.array([np.sin(start), np.cos(start), 0.0]), jnp.array([v * np.cos(start), -v * np.sin(start), v])

    def leaves(sol, contact):
        """Coordinates at the end of the last step in which the contact pushes."""
        return sol.q[sol.P_N.shape[0] - jnp.argmax(sol.P_N[::-1, contact] > 0)], jnp.all(sol.outcome == Outcome.SUCCESS)

    k, mu = np.array([0.4, 0.4, 0.5, 1.0]), np.array([0.0, 200.0, 200.0, 200.0])
    run = lambda k, mu: leaves(simulate(OnAHump(k, mu), Lobatto(2), *tops, n_steps=1000, dt=dt), 0)  # noqa: E731
    q, solved = jax.vmap(run)(k, mu)
    assert np.all(solved)
    # (1 + k) v^2 / 2 + g h is constant while it rolls, and v^2 = g h where it leaves; what is smooth does not turn.
    inertia = 1 + np.where(mu > 0, k, 0)
    exact = (inertia * v**2 / (2 * G) + np.cos(start)) * 2 / (2 + inertia)
    print(q[:, 1] - exact)
    assert_allclose(q[:, 1], exact, atol=4 * dt)
    angles = np.array([0.6, 1.0, 1.4])
    run = lambda a: leaves(  # noqa: E731
        simulate(Ladder(), Moreau(), jnp.stack([jnp.cos(a), jnp.sin(a), a]) - 1e-9, jnp.zeros(3), n_steps=2500, dt=dt / 2), 1
    )
    q, solved = jax.vmap(run)(angles)
    assert np.all(solved)
    print(q[:, 1]- 2/3*np.sin(angles))
    assert_allclose(q[:, 1], 2 / 3 * np.sin(angles), atol=4 * dt)
