"""Paradoxes and classics, each with its known truth: closed forms, integrals of the motion, statics, published numbers."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from little_systems import GRAVITY as G
from numpy.testing import assert_allclose

import jaxnsd
from jaxnsd import Lobatto, LocatedImpacts, Moreau, Outcome, SymmetricMoreau, System, bodies, models, simulate


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


def test_at_the_critical_friction_nothing_is_singular():
    """With tan(angle) = 2 and mu = 4/3 the normal force of sliding is infinite. The end jams there as on both sides of it: velocities are
    those that the inertia leaves of it, and do not depend on mu.
    """
    angle, dt = np.arctan(2.0), 1e-9
    mu = 4 / 3 * (1 + np.array([-1e-9, -1e-15, 0.0, 1e-15, 1e-9, 0.1]))
    q0, u0 = jnp.array([0.0, np.sin(angle) - 1e-9, angle]), jnp.array([-3.0, -0.5, 0.0])
    run = lambda mu: simulate(Rod(mu), Moreau(), q0, u0, n_steps=1, dt=dt)  # noqa: E731
    sol = jax.vmap(run)(mu)
    assert np.all(sol.outcome == Outcome.SUCCESS)
    s, c = np.sin(angle), np.cos(angle)
    turns = 0.75 * (3.0 * s - 0.5 * c)  # by the moment of momentum about the end
    assert_allclose(sol.u[:, -1], np.broadcast_to([-s * turns, c * turns, turns], (6, 3)), atol=1e-7)
    assert_allclose(jax.vmap(jax.grad(lambda mu: run(mu).u[-1] @ jnp.arange(1.0, 4.0)))(mu), 0, atol=1e-12)


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
    sol = jax.vmap(lambda mu: simulate(OnAnIncline(slope, mu), Moreau(), jnp.array([0.0, -1e-9]), jnp.array([-v, 0.0]), n_steps=n, dt=dt))(
        mu
    )
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

    Each jaw has the mass 1 kg and is pressed by 50 N, the wedge has 3 kg without weight, and is thinner below by its half angle a side.
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
    (Huygens 1673), and as long to come back: all beads are where they started, at rest, at one time. What is wrong with the time,
    to second order, counts twice at rest: places have errors of fourth order.
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
    """A uniform ladder of half length 1 m between floor and wall: q = (x, y, angle above the floor); its foot is to the right."""

    mu: Any = 0.0
    e_N: float = 0.0

    def mass_matrix(self, t, q):
        return jnp.diag(jnp.array([1.0, 1.0, 1 / 3]))

    def potential_energy(self, t, q):
        return G * q[1]

    def gap(self, t, q):
        return jnp.stack([q[1] - jnp.sin(q[2]), q[0] - jnp.cos(q[2])])

    def tangential_velocity(self, t, q, u):
        return jnp.stack([u[0] - jnp.sin(q[2]) * u[2], u[1] + jnp.cos(q[2]) * u[2]])[:, None]


@pytest.mark.slow
def test_what_slides_down_takes_off_where_it_must():
    """From rest on top a particle leaves a cylinder at cos = 2/3, what rolls at 2 / (3 + k), a ball at 10/17. A ladder leaves the wall at
    2/3 of its height.
    """
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
    assert_allclose(q[:, 1], exact, atol=dt)
    angles = np.array([0.6, 1.0, 1.4])
    run = lambda a: leaves(  # noqa: E731
        simulate(Ladder(), Lobatto(2), jnp.stack([jnp.cos(a), jnp.sin(a), a]), jnp.zeros(3), n_steps=1000, dt=dt), 1
    )
    q, solved = jax.vmap(run)(angles)
    assert np.all(solved)
    assert_allclose(q[:, 1], 2 / 3 * np.sin(angles), atol=dt)


def test_a_ladder_stands_where_friction_holds_it():
    """A ladder at rest stays, to round-off, where tan(angle) >= (1 - mu_floor mu_wall) / (2 mu_floor), and slips where it is less."""
    mu = np.array([[0.3, 0.0], [0.3, 0.5], [0.7, 0.1], [0.05, 0.9]])
    limit = np.arctan((1 - mu[:, 0] * mu[:, 1]) / (2 * mu[:, 0]))
    angle, mu = np.r_[limit - 1e-4, limit + 1e-4], np.r_[mu, mu]
    q0 = np.stack([np.cos(angle), np.sin(angle), angle], axis=1) - np.array([1e-9, 1e-9, 0.0])
    sol = jax.vmap(lambda mu, q: simulate(Ladder(mu), Moreau(), q, jnp.zeros(3), n_steps=400, dt=1e-3))(mu, q0)
    assert np.all(sol.outcome == Outcome.SUCCESS)
    assert_allclose(sol.u[4:], 0, atol=1e-14)
    assert_allclose(sol.q[4:], np.broadcast_to(q0[4:, None], (4, 401, 3)), rtol=0, atol=1e-15)
    assert np.all(np.diff(np.asarray(sol.u[:4, :, 2]), axis=1) < 0)


def solvable(G, c, mu):
    """Whether two planar contacts have percussions that obey the law: open, sticking, or slipping either way, all sixteen tried."""
    for modes in itertools.product("os+-", repeat=2):
        A, b = np.eye(4), np.zeros(4)
        for normal, mode, friction in zip((0, 2), modes, mu, strict=True):
            if mode != "o":
                A[normal], b[normal] = G[normal], -c[normal]
                if mode == "s":
                    A[normal + 1], b[normal + 1] = G[normal + 1], -c[normal + 1]
                else:
                    A[normal + 1, normal] = friction if mode == "+" else -friction
        if abs(np.linalg.det(A)) < 1e-12:
            continue
        P = np.linalg.solve(A, b)
        xi, small = G @ P + c, 1e-9 * (np.abs(c).max() + np.abs(P).max())
        normal = np.all(np.where(np.array(modes) == "o", xi[::2], P[::2]) >= -small)
        cone = mu * P[::2] - np.abs(P[1::2])
        slip = np.select([np.array(modes) == mode for mode in "s+-"], [cone, xi[1::2], -xi[1::2]], 0.0)
        if normal and np.all(slip >= -small):
            return True
    return False


def test_a_ladder_that_jams_between_floor_and_wall():
    """Thrown into the corner with any friction. Where it has no restitution every impact is solved. Where it jams, mu_floor mu_wall > 1,
    and is asked to bounce, those impacts are flagged that have no solution, and no others: all modes of both contacts are tried here.
    """
    rng, n, dt = np.random.default_rng(7), 4000, 1e-4
    angle, e_N = rng.uniform(0.05, 1.5, n), rng.choice([0.0, 0.5, 1.0], n)
    mu = np.exp(rng.uniform(np.log(0.05), np.log(20), (n, 2)))
    u = rng.standard_normal((n, 3)) * rng.choice([0.001, 1.0, 10.0], (n, 1))
    u[:, 0] = np.minimum(u[:, 0], -np.sin(angle) * u[:, 2])  # both contacts close
    u[:, 1] = np.minimum(u[:, 1], np.cos(angle) * u[:, 2])
    q0 = np.stack([np.cos(angle), np.sin(angle), angle], axis=1) - np.array([1e-2, 1e-2, 0.0])
    sol = jax.vmap(lambda mu, e, q, u: simulate(Ladder(mu, e), Moreau(), q, u, n_steps=1, dt=dt))(mu, e_N, q0, u)
    solved = np.asarray(sol.outcome[:, 0]) == Outcome.SUCCESS
    assert np.all(solved[e_N == 0]) and np.all(solved[np.prod(mu, axis=1) < 1]) and 20 < np.sum(~solved) < n / 4
    s, c, zero, one = np.sin(sol.q[:, 1, 2]), np.cos(sol.q[:, 1, 2]), np.zeros(n), np.ones(n)
    W = np.stack([[zero, one, -c], [one, zero, -s], [one, zero, s], [zero, one, c]]).transpose(2, 0, 1)
    inverse = np.array([1.0, 1.0, 3.0])
    G_all, free = np.einsum("kij,j,klj->kil", W, inverse, W), u - dt * G * np.array([0.0, 1.0, 0.0])
    before = np.einsum("kij,kj->ki", W, u) * np.array([1.0, 0.0, 1.0, 0.0])
    rhs = np.einsum("kij,kj->ki", W, free) + e_N[:, None] * before
    for k in np.flatnonzero(~solved):
        assert not solvable(G_all[k], rhs[k], mu[k])
    # What is called solved obeys the law.
    P = np.stack([sol.P_N[:, 0], sol.P_F[:, 0, :, 0]], axis=2)
    after = np.einsum("kij,kj->ki", W, np.asarray(sol.u[:, 1])).reshape(n, 2, 2)
    xi, slip = after[:, :, 0] + e_N[:, None] * before[:, ::2], after[:, :, 1]
    size = (1 + np.abs(u).max(axis=1) + P.max(axis=(1, 2)))[:, None]
    cone = mu * P[:, :, 0] - np.abs(P[:, :, 1])
    wrong = np.stack(
        [-xi, -P[:, :, 0], -cone, np.abs(xi * P[:, :, 0]) / size, slip * P[:, :, 1] / size, np.abs(slip * cone) / (size * (1 + mu))]
    )
    assert np.max((wrong / size)[:, solved]) < 1e-10
    momentum = np.einsum("kij,ki,j->kj", W, P.reshape(n, 4), inverse)
    assert np.max((np.abs(np.asarray(sol.u[:, 1]) - free - momentum) / size)[solved]) < 1e-11


@pytest.mark.slow
def test_stages_throw_no_jammed_ladder_out():
    """Lobatto's equations of a jam have solutions of large percussions that turn within the step and throw the ladder out at a thousand
    m/s. A ladder that is solved has gained no energy; few are not.
    """
    rng, n = np.random.default_rng(0), 20_000
    angle = rng.uniform(0.3, 1.3, n)
    q, u, mu = np.stack([np.cos(angle), np.sin(angle), angle], axis=1), rng.standard_normal((n, 3)), rng.uniform(0.2, 10, (n, 2))
    chosen = np.r_[:2000, 2547, 3257, 3578, 4109, 7573, 8212, 10652, 13986, 15305, 18865]
    start = mu[chosen], q[chosen], u[chosen]
    sol = jax.vmap(lambda mu, q, u: simulate(Ladder(mu), Lobatto(3), q, u, n_steps=1, dt=1e-2))(*start)
    energy = 0.5 * sol.u**2 @ np.array([1.0, 1.0, 1 / 3]) + G * sol.q[..., 1]
    solved = np.asarray(sol.outcome[:, 0]) == Outcome.SUCCESS
    gained = np.asarray(energy[:, 1] - energy[:, 0])
    assert np.all(gained[solved] < 1e-2 * np.sum(u[chosen] ** 2, axis=1)[solved])
    assert np.mean(solved[:2000]) > 0.97


# --------------------------------------------------------------------------------------------------------- tops and discs
@jaxnsd.system
class Funnel(System):
    """A particle in a smooth cone whose wall has this ``rise``."""

    rise: float = 1.0

    def kinetic_energy(self, t, q, u):
        return 0.5 * u @ u

    def potential_energy(self, t, q):
        return G * q[2]

    def gap(self, t, q):
        return (q[2:] - self.rise * jnp.sqrt(q[:2] @ q[:2])) / jnp.sqrt(1 + self.rise**2)


@pytest.mark.parametrize("scheme", [Moreau(), pytest.param(Lobatto(3), marks=pytest.mark.slow)], ids=lambda scheme: scheme.name)
def test_a_ball_in_a_funnel(scheme):
    """Without friction the moment of momentum about the axis is kept, to round-off. With v^2 = g h it stays at its height, whatever the
    slope. Else it goes between two heights: started along the wall at h, down or up to where v_1 r_1 = v r and the energy is the same.
    """
    dts = np.array([2e-3, 1e-3])
    speed = np.sqrt(G) * np.array([1.0, 0.5, 1.5])

    def run(dt, v):
        q0, u0 = jnp.array([1.0, 0.0, 1.0 - 1e-12]), jnp.stack([jnp.zeros_like(v), v, jnp.zeros_like(v)])
        return simulate(Funnel(), scheme, q0, u0, n_steps=1500, dt=dt)

    sol = jax.vmap(lambda dt: jax.vmap(lambda v: run(dt, v))(speed))(dts)
    assert np.all(sol.outcome == Outcome.SUCCESS)
    q, u = np.asarray(sol.q), np.asarray(sol.u)
    moment = q[..., 0] * u[..., 1] - q[..., 1] * u[..., 0]
    assert_allclose(moment, np.broadcast_to(speed[:, None], moment.shape), rtol=1e-12)
    # (v^2 - v^2 / h^2) / 2 = g (h - 1): h = 1, or h^2 - v^2 / (2 g) (h + 1) = 0.
    a = speed**2 / (2 * G)
    other = (a + np.sqrt(a**2 + 4 * a)) / 2
    heights = np.stack([(h.min(axis=1), h.max(axis=1)) for h in (q[0, :, :751, 2], q[1, :, :, 2])])  # of 1.5 s both
    errors = np.abs(heights - np.array([np.minimum(1, other), np.maximum(1, other)]))
    if scheme == Moreau():
        # A velocity along the tangent leads into the wall: first order.
        assert_allclose(errors[1], 0, atol=0.02)
        assert np.all(errors[1] < 0.6 * errors[0] + 1e-6)
    else:
        assert_allclose(errors, 0, atol=1e-6)  # the least height of the nodes is not that between them
        energy = 0.5 * np.sum(u**2, axis=3) + G * q[..., 2]
        assert_allclose(energy, np.broadcast_to(energy[..., :1], energy.shape), rtol=1e-10)


@jaxnsd.system
class Disc(System):
    """A thin disc of mass 1 kg and radius 1 m that touches a floor with its rim: q = (centre, quaternion), u = (velocity, body's omega)."""

    mu: float = 100.0

    def kinetic_energy(self, t, q, u):
        return 0.5 * (u[:3] @ u[:3] + jnp.array([0.25, 0.25, 0.5]) @ u[3:] ** 2)

    def potential_energy(self, t, q):
        return G * q[2]

    def q_dot(self, t, q, u):
        s, v, w = q[3], q[4:], u[3:]
        return jnp.concatenate([u[:3], 0.5 * jnp.stack([-v @ w]), 0.5 * (s * w + jnp.cross(v, w))])

    def rotation(self, q):
        w, x, y, z = q[3:] / jnp.sqrt(q[3:] @ q[3:])
        rows = [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
        return jnp.stack([jnp.stack(row) for row in rows])

    def arm(self, q):
        """From the centre to the lowest point of the rim, in the body."""
        up = self.rotation(q)[2]
        return -jnp.stack([up[0], up[1], jnp.zeros_like(up[0])]) / jnp.sqrt(up[0] ** 2 + up[1] ** 2)

    def gap(self, t, q):
        return q[2:3] + (self.rotation(q) @ self.arm(q))[2:]

    def tangential_velocity(self, t, q, u):
        return (u[:3] + self.rotation(q) @ jnp.cross(u[3:], self.arm(q)))[None, :2]


def discs(mu, height, tilt, omega, dt):
    """Six discs, tilted about x by ``tilt`` with their centres at ``height``, in 1000 steps: times, centres, normals, energies."""
    zero = np.zeros(6)
    q0 = np.stack([zero, zero, height, np.cos(tilt / 2), np.sin(tilt / 2), zero, zero], axis=1)
    u0 = np.concatenate([np.zeros((6, 3)), omega], axis=1)
    sol = jax.vmap(lambda mu, q, u, dt: simulate(Disc(mu), Moreau(), q, u, n_steps=1000, dt=dt))(mu, q0, u0, dt)
    assert np.all(sol.outcome == Outcome.SUCCESS)
    normal = jax.jit(jax.vmap(jax.vmap(lambda q: Disc().rotation(q)[:, 2])))(sol.q)
    energy = jax.vmap(jax.vmap(Disc().total_energy))(sol.t, sol.q, sol.u)
    return [np.asarray(x) for x in (sol.t, sol.q[:, :, :3], normal, energy)]


def test_eulers_disc():
    """It rolls round on its rim with its centre at rest where the contact runs round at Omega^2 = 4 g / (a sin alpha), and stays there: to
    first order in the step. Others wobble, with sliding or without, and lose energy all the time.
    """
    tilt, dt = np.tile([0.1, 0.5, 1.2], 2), np.repeat([1e-3, 5e-4], 3)
    rate = np.sqrt(4 * G / np.sin(tilt))
    omega = np.stack([0 * rate, rate * np.sin(tilt), 0 * rate], axis=1)
    t, center, normal, _ = discs(np.full(6, 100.0), np.sin(tilt) - 1e-12, tilt, omega, dt)
    direction = np.stack([np.sin(tilt) * np.sin(rate * t.T), -np.sin(tilt) * np.cos(rate * t.T), np.cos(tilt) + 0 * t.T], axis=2)
    errors = np.concatenate([center - center[:, :1], normal - direction.transpose(1, 0, 2)], axis=2)
    coarse, fine = np.abs(errors[:3, :501]).max(axis=1), np.abs(errors[3:]).max(axis=1)  # both for half a second
    assert np.all(fine < 0.01)
    assert_allclose(coarse / fine, 2.0, atol=0.1)
    omega = omega * np.array([0.7, 0.7, 0.7, 1.3, 1.3, 1.3])[:, None] + np.array([0.0, 0.0, 1.0])
    *_, energy = discs(np.tile([100.0, 0.2, 0.05], 2), np.sin(0.5) * np.ones(6), np.full(6, 0.5), omega, np.full(6, 5e-4))
    # In a step it falls with the velocity of its end: that is as much as a step may gain.
    assert np.all(np.diff(energy, axis=1) <= 0.5 * G**2 * 5e-4**2)
    assert np.all(energy[:, -1] < energy[:, 0] - 0.05)


def test_a_coin_that_wobbles_never_turns_over():
    """In flight its normal goes round the moment of momentum at |L| / J: by less than 45 degrees from it a coin shows the face that was up
    for ever, however fast it spins (Diaconis et al. 2007). One that turns about a diameter shows it where cos(omega t) > 0 (Keller 1986).
    """
    angle = np.array([0.3, 0.6, 0.75, 0.85, 1.2, np.pi / 2])
    # The normal is up at first, and L is inclined to it.
    momentum = 5.0 * np.stack([np.sin(angle), np.zeros(6), np.cos(angle)], axis=1)
    inertia = np.array([0.25, 0.25, 0.5])
    t, center, normal, _ = discs(np.zeros(6), np.full(6, 10.0), np.full(6, 1e-9), momentum / inertia, np.full(6, 5e-4))
    turn = 5.0 / 0.25 * t
    # Rodrigues' formula for the normal about L.
    s, c = np.sin(angle)[:, None], np.cos(angle)[:, None]
    exact = np.stack([s * c * (1 - np.cos(turn)), -s * np.sin(turn), c**2 + s**2 * np.cos(turn)], axis=2)
    assert_allclose(normal, exact, atol=20 * 5e-4)
    assert np.all((normal[:, :, 2].min(axis=1) > 0) == (angle < np.pi / 4))
    shown = np.abs(np.cos(turn[5])) > 1e-3
    assert np.all((normal[5, shown, 2] > 0) == (np.cos(turn[5]) > 0)[shown])
    assert_allclose(center[:, :, 2], 10 - G * t**2 / 2, atol=G * 5e-4)


def test_a_tippe_top_turns_over_where_its_inertia_lets_it():
    """Whatever friction does at the point of contact, L . r is kept, r from the centre of mass to that point (Jellett 1872). So a top that
    has turned over spins about the vertical with -J / (C (R + a)). It turns over where 1 - a/R < A/C < 1 + a/R; below that it rises and
    stays (Ebenfeld & Scheck 1995; Bou-Rabee et al. 2004). Energy is lost all the time; the integral has an error of first order.
    """
    R, a, mass, spin = 0.02, 0.006, 0.02, 155.0  # the centre of mass is below that of the ball by a
    along = 0.4 * mass * R**2
    # Friction, tilt, moment of inertia across over that along the axis.
    cases = np.array([[0.05, 0.4, 0.93], [0.1, 0.8, 1.1], [0.05, 0.4, 0.6]])

    def one(mu, tilt, ratio, dt):
        ball, inertia = bodies.Sphere(R, position=(0.0, 0.0, a)), (ratio * along, ratio * along, along)
        system = bodies.assemble(bodies.Body("top", mass, inertia, (0.0, 0.0, 0.0), shapes=ball), bodies.Plane(), mu=mu)
        s, c = jnp.sin(tilt), jnp.cos(tilt)
        q0 = jnp.stack([0.0, 0.0, R - a * c, jnp.cos(tilt / 2), jnp.sin(tilt / 2), 0.0, 0.0])
        u0 = spin * jnp.stack([0.0, 0.0, 0.0, 0.0, s, c])
        sol = simulate(system, Moreau(), q0, u0, n_steps=25000, dt=dt, save_every=10)
        rotation = jax.vmap(lambda q: system.pose(0.0, q).rotation[0])(sol.q)
        momentum = jnp.einsum("kij,jl,kl->ki", rotation, jnp.diag(jnp.stack(inertia)), sol.u[:, 3:])
        J = jnp.sum(momentum * (a * rotation[:, :, 2] - R * jnp.eye(3)[2:]), axis=1)
        turn = jnp.einsum("ki,ki->k", rotation[:, 2], sol.u[:, 3:])
        energy = jax.vmap(system.total_energy)(sol.t, sol.q, sol.u)
        h = jax.vmap(system.h)(sol.t, sol.q, sol.u)
        gain = dt**2 / 2 * jnp.max(h**2 @ jnp.stack([1 / mass, 1 / mass, 1 / mass, *(1 / x for x in inertia)]))
        return J, rotation[:, 2, 2], turn, energy, gain, jnp.all(sol.outcome == Outcome.SUCCESS)

    dts = np.array([4e-4, 2e-4])
    *found, solved = jax.vmap(jax.vmap(one, (0, 0, 0, None)), (None, None, None, 0))(*cases.T, dts)
    J, height, turn, energy, gain = map(np.asarray, found)
    assert np.all(solved)
    drift = np.stack([np.abs(of / of[:, :1] - 1).max(axis=1) for of in (J[0, :, :1251], J[1])])  # of 5 s both
    assert np.all(drift < 2e-3)
    assert_allclose(drift[0] / drift[1], 2.0, atol=0.3)
    # After 10 s two are upside down.
    assert np.all(height[0, :2, -1] < -0.98) and np.all(height[:, 2, -1] > 0.99)
    assert_allclose(turn[0, :2, -1], -J[0, :2, 0] / (along * (R + a)), rtol=5e-3)
    # Forces are those at the start of a step, impacts take energy: a step gains no more than the square of the velocity that forces give.
    assert np.all(np.diff(energy, axis=2) <= 10 * gain[:, :, None])
    assert np.all(energy[:, :, -1] < energy[:, :, 0])


def rattleback():
    """The stone of Kane & Levinson (1982): an ellipsoid whose principal axes are turned against its half axes by 0.8 degrees."""
    moments, axes = np.linalg.eigh(np.array([[2e-4, -2e-5], [-2e-5, 1.6e-3]]))
    turned = -0.5 * np.arctan(axes[1, 0] / axes[0, 0])
    shape = bodies.Ellipsoid((0.2, 0.03, 0.02), position=(0.0, 0.0, 0.01), orientation=(np.cos(turned), 0.0, 0.0, np.sin(turned)))
    stone = bodies.Body("stone", 1.0, (*moments, 1.7e-3), (0.0, 0.0, 0.0), shapes=shape, position=(0.0, 0.0, 0.01))
    return bodies.assemble(stone, bodies.Plane(), mu=100.0)


@pytest.mark.slow
def test_a_rattleback_turns_back_from_one_direction_only():
    """Spun one way it rattles, stops and turns back, spun the other way it goes on (Walker 1896). No step gains energy."""
    stone, dt = rattleback(), 1e-3
    q0, u0 = stone.initial_state()
    u0 = u0.at[3:5].set(0.02)
    sol = jax.vmap(lambda spin: simulate(stone, Moreau(), q0, u0.at[5].set(spin), n_steps=5000, dt=dt))(jnp.array([-5.0, 5.0]))
    assert np.all(sol.outcome == Outcome.SUCCESS)
    spin = np.asarray(sol.u[:, :, 5])
    assert spin[0, 1000] < -4.9 and spin[0, -1] > 0.1
    assert_allclose(spin[1], 5.0, atol=0.05)
    energy = np.asarray(jax.vmap(jax.vmap(stone.total_energy))(sol.t, sol.q, sol.u))
    assert np.diff(energy, axis=1).max() < 0.5 * G**2 * dt**2


# ------------------------------------------------------------------------------------------------------------ rows of dominoes
@jaxnsd.system
class Dominoes(System):
    """Dominoes of mass 1 kg on hinges at their feet, by their angles: contacts are the floor's with each, then each with the next."""

    n: int = jaxnsd.static(default=12)
    height: float = 0.048
    thickness: float = 0.0075
    spacing: float = 0.024

    def mass_matrix(self, t, q):
        return (self.height**2 + self.thickness**2) / 3 * jnp.eye(self.n)

    def potential_energy(self, t, q):
        return G / 2 * jnp.sum(self.height * jnp.cos(q) + self.thickness * jnp.sin(q))

    def gap(self, t, q):
        pitch = self.spacing + self.thickness
        between = pitch * jnp.cos(q[1:]) - self.thickness - self.height * jnp.sin(q[:-1] - q[1:])
        return jnp.concatenate([self.height * q, between])


def train_of_dominoes(height, thickness, spacing, w, n):
    """Times at which each domino starts to fall, from the energy of the train: all that fall lean on the first of them.

    Where the head is at an angle, so are all behind it, by the edge that lies on the next face (Shaw 1978, van Leeuwen 2010). Between
    impacts the energy is kept. At an impact a domino more is of the train, and its momentum, in the one coordinate that is left, is kept.
    """
    x, weights = np.polynomial.legendre.leggauss(40)
    pitch, inertia, end = spacing + thickness, (height**2 + thickness**2) / 3, np.arcsin(spacing / height)

    def train(head, k):
        """Angles of the head and the k behind it, and what they change by with that of the head."""
        angles, rates = [np.asarray(head)], [np.ones_like(head)]
        for _ in range(k):
            lean = np.arcsin((pitch * np.cos(angles[-1]) - thickness) / height)
            rates.append(rates[-1] * (1 - pitch * np.sin(angles[-1]) / (height * np.cos(lean))))
            angles.append(angles[-1] + lean)
        return np.array(angles), np.array(rates)

    def potential(angles):
        return G / 2 * np.sum(height * np.cos(angles) + thickness * np.sin(angles), axis=0)

    times = [0.0]
    for k in range(n - 1):
        angles, rates = train(0.0, k)
        energy = inertia / 2 * w**2 * np.sum(rates**2) + potential(angles)

        def speed(head, k=k, energy=energy):
            angles, rates = train(head, k)
            return np.sqrt((energy - potential(angles)) / (inertia / 2 * np.sum(rates**2, axis=0))), rates

        times.append(times[-1] + end / 2 * np.sum(weights / speed(end * (x + 1) / 2)[0]))
        before, rates = speed(end)
        _, after = train(0.0, k + 1)
        w = after[1:] @ (before * rates) / (after @ after)
    return np.array(times)


@pytest.mark.parametrize("scheme", [Moreau(), pytest.param(Lobatto(2), marks=pytest.mark.slow)], ids=lambda scheme: scheme.name)
def test_a_wave_of_dominoes_runs_as_fast_as_the_energy_of_the_train_says(scheme):
    """Plastic impacts without friction, dominoes that do not slip on the floor: the theory of Shaw (1978) and van Leeuwen (2010). All
    times are right to a part of a step for each domino. The wave comes to one speed, a function of the spacing times sqrt(g h).
    """
    n, w, spacings, dts = 12, 6.0, 0.048 * np.array([0.25, 0.5, 0.7]), np.array([4e-4, 1e-4])

    def starts(spacing, dt):
        sol = simulate(Dominoes(n, spacing=spacing), scheme, jnp.zeros(n), jnp.zeros(n).at[0].set(w), n_steps=6000, dt=dt)
        return jnp.argmax(sol.u > 1e-6, axis=0) * dt, jnp.all(sol.outcome == Outcome.SUCCESS)

    found, solved = jax.vmap(jax.vmap(starts, (None, 0)), (0, None))(spacings, dts)
    exact = np.stack([train_of_dominoes(0.048, 0.0075, spacing, w, n) for spacing in spacings])
    assert np.all(solved)
    late = (np.asarray(found) - exact[:, None]) / dts[:, None]
    assert np.all(np.abs(late) < 1 + 0.6 * np.arange(n)), late
    far = np.stack([train_of_dominoes(0.048, 0.0075, spacing, first, 40) for spacing in spacings for first in (3.0, w)])
    speed = np.repeat(spacings + 0.0075, 2) / np.diff(far, axis=1)[:, -1] / np.sqrt(G * 0.048)
    assert_allclose(speed[::2], speed[1::2], rtol=1e-6)
    # Far apart, few dominoes are enough for it.
    assert_allclose((spacings[2] + 0.0075) / np.diff(found[2, 1])[-3:].mean() / np.sqrt(G * 0.048), speed[4], rtol=5e-3)


# ----------------------------------------------------------------------------------------------------------- chains and dice
@jaxnsd.system
class Chain(System):
    """Beads on a string, one above the other, over a table: contacts are the table's with each of them, then the pieces of the string."""

    spacing: float = 0.1

    def kinetic_energy(self, t, q, u):
        return 0.5 * u @ u

    def potential_energy(self, t, q):
        return G * jnp.sum(q)

    def gap(self, t, q):
        return jnp.concatenate([q, self.spacing - (q[1:] - q[:-1])])


@pytest.mark.parametrize("n", [pytest.param(8, marks=pytest.mark.slow), pytest.param(50, marks=pytest.mark.long)])
def test_a_chain_that_falls_on_a_table_weighs_three_times_what_lies_there(n):
    """No piece of it is pulled: every bead falls freely, and the table takes their momenta one by one, and the weight of those that lie."""
    dt = 5e-4
    y = 0.1 * np.arange(n) + 0.05
    n_steps = int(np.sqrt(2 * y[-1] / G) / dt) + 20
    sol = simulate(Chain(), Moreau(), jnp.array(y), jnp.zeros(n), n_steps=n_steps, dt=dt).raise_if_failed()
    t = np.asarray(sol.t)[1:]
    landed = t[:, None] > np.sqrt(2 * y / G)
    exact = np.sum(np.where(landed, np.sqrt(2 * G * y) + G * (t[:, None] - np.sqrt(2 * y / G)), 0), axis=1)
    table = np.cumsum(np.asarray(sol.P_N[:, :n]).sum(axis=1))
    near = np.min(np.abs(t[:, None] - np.sqrt(2 * y / G)), axis=1) < 2 * dt
    assert_allclose(table[~near], exact[~near], atol=1e-11)
    assert_allclose(sol.P_N[:, n:], 0, atol=1e-12)
    # By the length that has landed: the integral of 3 times its weight, but for the size of a bead.
    length = 0.5 * G * t[-1] ** 2
    assert table[-1] == pytest.approx(G * length / 0.1 * t[-1], rel=0.02)


@pytest.mark.long
def test_dice_come_to_rest_on_a_face():
    """By Poisson's law: no step gains energy, in flight the moment of momentum is kept, and in the end a face is down."""
    dt = 1e-3
    die = bodies.Body("die", 0.01, (4e-7, 4e-7, 4e-7), (0.0, 0.0, 0.0), shapes=bodies.Box((0.016, 0.016, 0.016)), position=(0.0, 0.0, 0.1))
    system = bodies.assemble(die, bodies.Plane(), mu=0.3, law=jaxnsd.PoissonImpact(0.4))
    q0, _ = system.initial_state()
    rng = np.random.default_rng(6)
    u0 = rng.standard_normal((8, 6)) * np.array([0.5, 0.5, 0.5, 30, 30, 30])
    sol = jax.vmap(lambda u: simulate(system, Moreau(), q0, u, n_steps=1500, dt=dt))(u0)
    assert np.all(sol.outcome == Outcome.SUCCESS)
    energy = np.asarray(jax.vmap(jax.vmap(system.total_energy))(sol.t, sol.q, sol.u))
    assert np.diff(energy, axis=1).max() <= 0.5 * 0.01 * (G * dt) ** 2 * (1 + 1e-6)
    flight = np.cumsum(sol.P_N.sum(axis=2), axis=1) == 0
    assert_allclose(np.where(flight[..., None], np.asarray(sol.u)[:, 1:, 3:] - u0[:, None, 3:], 0), 0, atol=1e-11)
    R = np.asarray(jax.vmap(jax.vmap(lambda q: system.pose(0.0, q).rotation[0]))(sol.q))
    assert np.all(np.abs(R[:, -1, 2]).max(axis=1) > 1 - 1e-5)
    assert_allclose(sol.q[:, -1, 2], 0.008, atol=5e-5)
    assert_allclose(sol.u[:, -1], 0, atol=1e-9)
