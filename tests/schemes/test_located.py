"""Impacts located inside of the step: exact where free flight is, of the scheme's order elsewhere, and so is the derivative."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from little_systems import ParticleOverTable, with_slope
from numpy.testing import assert_allclose
from scheme_table import MOREAU_TYPE, over
from scipy.optimize import brentq
from scipy.spatial.transform import Rotation
from test_sensitivity import G, Thrown, error, exact, thrown

import jaxnsd
from jaxnsd import LocatedImpacts, System, simulate
from jaxnsd.models import BouncingBall, CornerBlock, Cube, PointMassOnSlope, SpringPendulum
from jaxnsd.schemes.located.friction import Veil, Veiled
from jaxnsd.schemes.located.segments import SHORT

EXACT_IN_FLIGHT = [jaxnsd.MoreauJean(), jaxnsd.GeneralizedAlpha(0.8), jaxnsd.SymmetricMoreau(), jaxnsd.Lobatto(2)]


@over(EXACT_IN_FLIGHT, fast=[], slow=[jaxnsd.SymmetricMoreau()])
def test_exact_in_value_and_derivative_where_flight_is(scheme):
    """Two frictional impacts with a coarse step; velocities of SymmetricMoreau are at mid-interval, so only its coordinates compare."""
    p, reference = jnp.array([1.0, 1.0, 0.1, 0.6, 0.0]), exact(2, 1.3)
    run = thrown(LocatedImpacts(scheme), 1.3, 5.2e-2, "discrete")
    part = slice(0, 2) if scheme.lead else slice(None)
    value, forward = jax.jit(with_slope(run))(p)
    np.testing.assert_allclose(value[part], reference(p)[part], atol=1e-13)
    np.testing.assert_allclose(forward, jax.jacfwd(reference)(p), atol=1e-12)
    if scheme == EXACT_IN_FLIGHT[0]:
        np.testing.assert_allclose(jax.jit(jax.jacrev(run))(p), forward, atol=1e-12)


@jaxnsd.system
class OneCorner(Cube):
    """A cube of which one corner alone can touch the floor."""

    def gap(self, t, q):
        return Cube.gap(self, t, q)[:1]

    def gap_velocity(self, t, q, u):
        return Cube.gap_velocity(self, t, q, u)[:1]

    def tangential_velocity(self, t, q, u):
        return Cube.tangential_velocity(self, t, q, u)[:1]

    def W_N(self, t, q, u=None):
        return Cube.W_N(self, t, q)[:, :1]

    def W_F(self, t, q, u=None):
        return Cube.W_F(self, t, q)[:, :1]


#: Centre, attitude (w, x, y, z), velocity and angular velocity of a cube in the air, and a time after its corner has hit the floor.
TOSSED = np.array([0.0, 0.0, 0.2]), np.array([0.9, 0.3, -0.2, 0.25]), np.array([0.5, -0.3, -1.0]), np.array([3.0, -2.0, 4.0])
LANDED = 0.128


def landing(p):
    """Centre, velocities and angular velocities of `OneCorner` at `LANDED`, for ``(e_N, mu, lift, v_x, omega_y)``: from event to event.

    In flight the angular velocity of a cube is constant. At the impact of the corner ``r`` friction is found by the angle of its direction.
    """
    e, mu, lift, vx, wy = p
    (x, attitude, v, w), system = TOSSED, Cube()
    x, v, w = np.add(x, (0, 0, lift)), np.add(v, (vx, 0, 0)), np.add(w, (0, wy, 0))
    R, r = Rotation.from_quat(np.roll(attitude, -1)), -0.5 * system.side * np.ones(3)
    fallen = np.array([0, 0, -G])

    def height(s):
        return (x + s * v + 0.5 * s * s * fallen + (R * Rotation.from_rotvec(s * w)).apply(r))[2]

    s = brentq(height, 0, LANDED, xtol=1e-15)
    x, v, R = x + s * v + 0.5 * s * s * fallen, v + s * fallen, R * Rotation.from_rotvec(s * w)
    D = np.hstack([np.eye(3), R.as_matrix() @ np.cross(np.eye(3), r).T])  # velocity of the corner: v + R (w x r)
    inverse = 1 / np.repeat([system.mass, system.mass * system.side**2 / 6], 3)
    Delassus, free = (D * inverse) @ D.T, D @ np.concatenate([v, w]) * [1, 1, 1 + e]
    P = np.linalg.solve(Delassus, -free)
    if np.hypot(*P[:2]) > mu * P[2]:

        def sliding(angle):
            d = np.array([np.cos(angle), np.sin(angle)])
            P_N = -free[2] / (Delassus[2, 2] + mu * Delassus[2, :2] @ d)
            P = P_N * np.array([*(mu * d), 1])
            slip = (Delassus @ P + free)[:2]
            return slip[0] * d[1] - slip[1] * d[0], slip @ d, P

        angles = np.linspace(0, 2 * np.pi, 361)
        turns = [(a, b) for a, b in itertools.pairwise(angles) if sliding(a)[0] * sliding(b)[0] <= 0]
        found = [sliding(brentq(lambda angle: sliding(angle)[0], *turn, xtol=1e-15)) for turn in turns]
        (P,) = [P for _, along, P in found if along < 0 < P[2]]  # against the slip
    v, w = np.split(np.concatenate([v, w]) + inverse * (D.T @ P), 2)
    s = LANDED - s
    return np.concatenate([x + s * v + 0.5 * s * s * fallen, v + s * fallen, w])


@pytest.mark.slow
def test_a_cube_that_lands_on_a_corner_and_slips_or_sticks():
    """In space, by a quaternion: saltation is right to first order, located impacts to the second, that of the rotation in flight."""
    x, attitude, v, w = TOSSED

    def run(p, scheme, dt):
        e, mu, lift, vx, wy = p
        q0 = jnp.concatenate([x + jnp.array([0, 0, 1]) * lift, attitude / np.linalg.norm(attitude)])
        u0 = jnp.concatenate([v + jnp.array([1, 0, 0]) * vx, w + jnp.array([0, 1, 0]) * wy])
        sol = simulate(OneCorner(e_N=e, mu=mu), scheme, q0, u0, LANDED, dt)
        return jnp.concatenate([sol.q[-1, :3], sol.u[-1]])

    points = np.array([[0.4, 0.15, 0, 0, 0], [0.4, 0.9, 0, 0, 0]])
    h = 1e-5 * np.eye(5)
    wanted = [np.stack([(landing(p + k) - landing(p - k)) / 2e-5 for k in h], axis=1) for p in points]
    for scheme, dt, bound in ((LocatedImpacts(jaxnsd.MoreauJean()), 2e-3, 1e-5), (jaxnsd.Moreau(), 2e-4, 5e-3)):
        forward = jax.jit(jax.vmap(jax.jacfwd(lambda p, scheme=scheme, dt=dt: run(p, scheme, dt))))(points)
        for got, J in zip(forward, wanted, strict=True):
            assert np.abs(got - J).max() < bound * np.abs(J).max()


@pytest.mark.long
def test_moving_table_in_a_batch():
    """The time of impact is found by iteration; members side by side and in lockstep agree with single runs."""
    p = jnp.array([1.0, 1.0, 0.1, 0.6, 0.05])
    reference, run = exact(3, 1.3), thrown(LocatedImpacts(jaxnsd.MoreauJean()), 1.3, 1.3e-2, "discrete")
    batch = jnp.stack([p, p + 0.01])
    values, jacobians = jax.jit(jax.vmap(with_slope(run)))(batch)
    np.testing.assert_allclose(values[0], reference(p), atol=1e-12)
    np.testing.assert_allclose(jacobians[0], jax.jacfwd(reference)(p), atol=1e-10)
    np.testing.assert_allclose(jacobians[1], jax.jit(jax.jacfwd(run))(p + 0.01), atol=1e-10)


@functools.cache
def bounce():
    """A ball from a height at rest, under a restitution: in one program, since it is costly to compile, all that is asked of it.

    The program takes (height, e_N) and returns the state at the end, the times of impacts and their contacts, the state's and the times'
    Jacobian, and the Hessian of the height at the end; steps of 1/20 s to 1.2 s.
    """
    scheme = LocatedImpacts(jaxnsd.MoreauJean(), max_impacts=1)

    def final(p):
        sol = simulate(BouncingBall(gravity=G, e_N=p[1]), scheme, p[:1], jnp.zeros(1), 1.2, 0.05, sensitivity="discrete")
        end, found = jnp.concatenate([sol.q[-1], sol.u[-1]]), sol.auxiliary["impact_times"][:, 0]
        return end[0], (end, jnp.nan_to_num(found), found, sol.auxiliary["impact_contacts"][:, 0])

    def gradient(p):
        slope, (end, times, found, contacts) = jax.grad(final, has_aux=True)(p)
        return (slope, end, times), (end, found, contacts)

    return jax.jit(jax.jacfwd(gradient, has_aux=True))


def bounced(p, impacts):
    """Height and velocity at 1.2 s, and the times of that many impacts."""
    fall, e = jnp.sqrt(2 * p[0] / G), p[1]
    times = fall * jnp.stack([1 + 2 * sum((e**j for j in range(1, k + 1)), start=jnp.zeros(())) for k in range(impacts)])
    v, s = e**impacts * G * fall, 1.2 - times[-1]
    return jnp.stack([v * s - 0.5 * G * s**2, v - G * s]), times


@pytest.mark.slow
def test_second_derivatives():
    """The located motion is a smooth function of its parameters: Hessians are exact as well, `jacfwd(jacrev)`, through two impacts."""
    p = jnp.array([1.0, 0.7])
    (hessian, *_), _ = bounce()(p)
    np.testing.assert_allclose(hessian, jax.hessian(lambda p: bounced(p, 2)[0][0])(p), atol=1e-11)


@pytest.mark.slow
def test_times_of_impacts_are_stored_with_their_derivatives():
    p = jnp.array([1.0, 0.7])
    (_, _, by_times), (_, found, contacts) = bounce()(p)
    exact, jacobian = bounced(p, 2)[1], jax.jacfwd(lambda p: bounced(p, 2)[1])(p)
    nodes = np.ceil(np.asarray(exact) / 0.05).astype(int)
    np.testing.assert_allclose(found[nodes], exact, rtol=1e-13)
    assert np.isfinite(found).sum() == 2
    np.testing.assert_array_equal(contacts, np.where(np.isfinite(found), 0, -1))
    np.testing.assert_allclose(by_times[nodes], jacobian, rtol=1e-12, atol=1e-14)


@over(MOREAU_TYPE, fast=[jaxnsd.VariationalMoreau()], slow=MOREAU_TYPE)
def test_moreau_type_schemes_meet_impacts_at_their_time(scheme):
    """Exact in flight with velocities at mid-interval; Moreau's falls with those of the node before, ``h = k (k - 1) g dt^2 / 2``."""
    p, dt = jnp.array([1.0, 0.7]), 0.05
    ball = BouncingBall(gravity=G, e_N=p[1])
    sol = simulate(ball, LocatedImpacts(scheme), p[:1], jnp.zeros(1), 1.2, dt, sensitivity="discrete").raise_if_failed()
    times = np.asarray(sol.auxiliary["impact_times"])
    (q, _), exact = bounced(p, 2)
    if scheme.lead:
        np.testing.assert_allclose(times[np.isfinite(times)], exact, rtol=1e-12)
        np.testing.assert_allclose(sol.q[-1, 0], q, atol=1e-12)
    else:
        # Nine steps, and what is left of the height at the speed of the tenth; times are searched to `SHORT` of a step.
        first = 9 * dt + (p[0] - 36 * G * dt**2) / (9 * G * dt)
        np.testing.assert_allclose(times[np.isfinite(times)][0], first, rtol=0, atol=SHORT * dt)


@over([jaxnsd.SymmetricMoreau(), jaxnsd.VariationalMoreau()], fast=[jaxnsd.VariationalMoreau()], slow=[jaxnsd.SymmetricMoreau()])
def test_what_hits_at_the_start_has_its_impact_located_there(scheme):
    """Velocities at mid-interval are made of that after the impact: a ball thrown at the floor it touches, u = e v - g t."""
    v, e, t = 1.0, jnp.array([1.0, 0.7]), 0.1
    run = jax.vmap(lambda h, e: simulate(BouncingBall(gravity=G, e_N=e), LocatedImpacts(scheme), h[None], jnp.array([-v]), t, 1e-2))
    sol = run(jnp.array([0.0, 0.0]), e).raise_if_failed()
    after = jax.vmap(lambda e, sol: jaxnsd.node_velocities(BouncingBall(gravity=G, e_N=e), LocatedImpacts(scheme), sol))(e, sol)[:, -1, 0]
    np.testing.assert_allclose(sol.q[:, -1, 0], e * v * t - G * t**2 / 2, atol=1e-12)
    np.testing.assert_allclose(after, e * v - G * t, atol=1e-12)
    np.testing.assert_allclose(sol.auxiliary["impact_times"][:, 1, 0], 0, atol=1e-12)
    np.testing.assert_allclose(sol.P_N[:, :, 0].sum(axis=1), 0.1 * (1 + e) * v, rtol=1e-12)


@jaxnsd.system
class Balls(System):
    """Balls over a floor that know nothing of each other."""

    e_N: float = 0.7

    def kinetic_energy(self, t, q, u):
        return 0.5 * u @ u

    def potential_energy(self, t, q):
        return G * jnp.sum(q)

    def gap(self, t, q):
        return q


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:simulating in float32")
@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
def test_impacts_at_the_same_time_have_derivatives_of_their_own(dtype):
    """Also at the first instant, and in single precision; beyond ``max_impacts`` of them there is no derivative."""

    def run(p):
        sol = simulate(Balls(p[6]), LocatedImpacts(jaxnsd.MoreauJean()), p[:3], p[3:6], 0.48, 1e-2)
        return sol.q[-1], (sol.q[-1], sol.success)

    def exact(p):
        h, u, e = p[:3], p[3:6], p[6]
        speed = jnp.sqrt(u**2 + 2 * G * h)
        hit = (u + speed) / G
        s = 0.48 - hit
        return jnp.where(s > 0, e * speed * s - 0.5 * G * s**2, h + 0.48 * u - 0.5 * G * 0.48**2)

    apart = np.array([[1, 1, 1.5, 0, 0, 0, 0.6], [1, 0.999, 1.5, 0, 0, 0, 0.6], [0, 0, 1.5, -4, -4, 0, 0.6], [0, 1.5, 1, -4, 0, 0, 0.6]])
    p = np.concatenate([apart, [[1, 1, 1, 0, 0, 0, 0.6]]])
    derivative, (value, success) = jax.jit(jax.vmap(jax.jacfwd(run, has_aux=True)))(jnp.asarray(p, dtype))
    assert value.dtype == dtype and np.all(success)
    single = dtype == jnp.float32
    np.testing.assert_allclose(value, jax.vmap(exact)(p), rtol=0, atol=1e-6 if single else 1e-13)
    np.testing.assert_allclose(derivative[:4], jax.vmap(jax.jacfwd(exact))(apart), rtol=0, atol=1e-5 if single else 1e-8)
    assert np.all(np.isnan(derivative[4]))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:simulating in float32")
def test_a_state_in_single_precision_beside_double():
    """A particle thrown along the floor slides for v^2 / (2 mu g); numbers of its class are Python's, of no precision of their own."""

    def way(v):
        scheme = LocatedImpacts(jaxnsd.MoreauJean())
        return simulate(Thrown(mu=0.5), scheme, jnp.zeros(2, v.dtype), jnp.stack([v, 0 * v]), 0.4, 1e-2).q[-1, 0]

    value, derivative = jax.jit(jax.value_and_grad(way))(jnp.float32(1.0))
    assert value.dtype == derivative.dtype == jnp.float32
    np.testing.assert_allclose([value, derivative], [1 / G, 2 / G], rtol=0.03)


@pytest.mark.slow
def test_impact_on_a_node():
    """The impact falls on the end of a step, or misses it by round-off and a little more, on both sides."""
    for offset in (-1e-9, -1e-15, 0.0, 1e-15, 1e-9):
        p = jnp.array([0.5 * G * (0.55 + offset) ** 2, 0.7])
        (_, jacobian, _), (end, *_) = bounce()(p)
        np.testing.assert_allclose(end, bounced(p, 1)[0], atol=1e-10)
        # The derivative of a segment of no length is that of a very short one.
        np.testing.assert_allclose(jacobian, jax.jacfwd(lambda p: bounced(p, 1)[0])(p), atol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("stages, order", [(2, 2), (3, 4)])
def test_order_across_an_impact_is_that_of_the_scheme(stages, order):
    """Fall on the slope, plastic impact with friction, sliding: a scheme that captures the impact is of first order."""
    model, t1 = PointMassOnSlope(), 1.0
    q0, u0 = model.initial_state(case=2)

    def final(scheme, n):
        sol = simulate(model, scheme, q0, u0, t1, t1 / n, save_every=n).raise_if_failed()
        return np.concatenate([sol.q[-1], sol.u[-1]])

    scheme = LocatedImpacts(jaxnsd.Lobatto(stages))
    reference = final(LocatedImpacts(jaxnsd.Lobatto(4)), 320)
    errors = [np.abs(final(scheme, n) - reference).max() for n in (20, 40, 80)]
    observed = np.log2(np.array(errors[:-1]) / errors[1:])
    assert np.all(np.abs(observed - order) < 0.25)
    captured = [np.abs(final(jaxnsd.Lobatto(stages), n) - reference).max() for n in (20, 80)]
    assert captured[1] > 5 * errors[-1] and captured[1] > captured[0] / 16


@pytest.mark.long
def test_derivative_of_a_plastic_landing_then_sliding():
    """Persistent contact after a located impact: x = v0 t + (v0 - mu v) s - mu g s^2 / 2 with the fall t, v = g t and s = T - t."""

    def reference(p):
        height, speed, mu = p
        t = jnp.sqrt(2 * height / G)
        s, left = 0.6 - t, speed - mu * G * t
        return speed * t + left * s - 0.5 * mu * G * s**2

    p = jnp.array([0.5, 2.0, 0.2])
    run = thrown(LocatedImpacts(jaxnsd.MoreauJean()), 0.6, 2e-2)
    found = jax.jit(jax.value_and_grad(lambda p: run(jnp.concatenate([p, jnp.zeros(2)]))[0]))(p)
    np.testing.assert_allclose(found[0], reference(p), atol=1e-13)
    np.testing.assert_allclose(found[1], jax.grad(reference)(p), atol=1e-12)


def pair(max_impacts):
    def final(p):
        sol = simulate(Balls(p[2]), LocatedImpacts(jaxnsd.MoreauJean(), max_impacts), p[:2], jnp.zeros(2), 0.6, 1e-2)
        return jnp.concatenate([sol.q[-1], sol.u[-1]])

    return final


def pair_exact(p):
    t = jnp.sqrt(2 * p[:2] / G)
    v, s = p[2] * G * t, 0.6 - t
    return jnp.concatenate([v * s - 0.5 * G * s**2, v - G * s])


@over([jaxnsd.SymmetricMoreau(), jaxnsd.VariationalMoreau()], fast=[], slow=[jaxnsd.SymmetricMoreau()])
def test_a_mass_on_a_circle_hits_a_wall(scheme):
    """Round at one speed, and back with e_N of it: what a velocity of mid-interval violates the circle by is no part of the impact."""

    @jaxnsd.system
    class Circle(System):
        e_N: float = 0.6

        def kinetic_energy(self, t, q, u):
            return 0.5 * u @ u

        def constraint(self, t, q):
            return jnp.sqrt(q @ q)[None] - 1.0

        def gap(self, t, q):
            return 0.8 - q[:1]

    def final(p):
        angle, speed, e_N = p
        q0 = jnp.stack([jnp.cos(angle), jnp.sin(angle)])
        u0 = speed * jnp.stack([-jnp.sin(angle), jnp.cos(angle)])
        sol = simulate(Circle(e_N), LocatedImpacts(scheme), q0, u0, 0.5, 5e-4)
        return jnp.concatenate([sol.q[-1], sol.P_N.sum()[None]])

    def reference(p):
        angle, speed, e_N = p
        wall = -jnp.arccos(0.8)
        angle = wall - e_N * (speed * 0.5 - (wall - angle))
        # A unit mass: along the wall's normal the circle takes its part.
        return jnp.stack([jnp.cos(angle), jnp.sin(angle), (1 + e_N) * speed / jnp.sqrt(1 - 0.8**2)])

    p = jnp.array([-1.2, 2.0, 0.6])
    wanted, found = jax.jacfwd(reference)(p), jax.jit(jax.jacfwd(final))(p)
    assert np.abs(found - wanted).max() < 3e-3 * np.abs(wanted).max()


@jaxnsd.system
class Rod(jaxnsd.System):
    """A rod of half length 0.1 m that tumbles in a plane above a smooth floor, q = (height, angle)."""

    e_N: float = 0.6

    def kinetic_energy(self, t, q, u):
        return 0.5 * (u[0] ** 2 + 0.1**2 / 3 * u[1] ** 2)

    def potential_energy(self, t, q):
        return G * q[0]

    def gap(self, t, q):
        side = 0.1 * jnp.sin(q[1])
        return jnp.stack([q[0] + side, q[0] - side])


def test_a_body_that_spins_fast_lands():
    """Gap velocities change by more in a step, of half a radian, than that with which an end lands: the impact is located all the same."""
    start, rate, w = np.array([0.25, 0.0]), np.array([-1.0, 100.0]), 100.0

    def height(t):
        return start[0] + rate[0] * t - 0.5 * G * t * t

    def end(t):
        return height(t) - 0.1 * np.abs(np.sin(w * t))

    t = np.linspace(0, 0.3, 30001)
    k = np.argmax(end(t) < 0)
    hit = brentq(end, t[k - 1], t[k], xtol=1e-15)
    W = np.array([1.0, -np.sign(np.sin(w * hit)) * 0.1 * np.cos(w * hit)])
    before, inverse = rate - [G * hit, 0.0], np.array([1.0, 300.0])
    after = before - 1.6 * (W @ before) / (W @ (inverse * W)) * inverse * W
    left, n = 0.006, 20
    sol = simulate(Rod(), LocatedImpacts(jaxnsd.MoreauJean()), jnp.asarray(start), jnp.asarray(rate), n_steps=n, dt=(hit + left) / n)
    assert -(W @ before) < 1.5 * 0.1 * w**2 * abs(np.sin(w * hit)) * sol.dt
    assert sol.success and sol.count(jaxnsd.Event.IMPACT) == 1
    assert_allclose(sol.q[-1], [height(hit), w * hit] + after * left - [0.5 * G * left**2, 0], rtol=1e-9)
    assert_allclose(sol.u[-1], after - [G * left, 0], rtol=1e-9)


@jaxnsd.system
class InACorner(System):
    """A disc (1 kg, radius 1 m) that lies on a smooth floor and hits a wall, whose friction, of its spin, presses it onto the floor."""

    e_wall: float = 0.8
    mu_wall: float = 0.3

    def kinetic_energy(self, t, q, u):
        return 0.5 * (u[0] ** 2 + u[1] ** 2) + 0.25 * u[2] ** 2

    def potential_energy(self, t, q):
        return G * q[1]

    def gap(self, t, q):
        return jnp.stack([q[1] - 1.0, -q[0]])

    def tangential_velocity(self, t, q, u):
        return jnp.stack([u[0] + u[2], u[1] + u[2]])[:, None]

    def e_N(self):
        return jnp.stack([jnp.asarray(0.5), self.e_wall])

    def mu(self):
        return jnp.stack([jnp.asarray(0.0), self.mu_wall])


@jaxnsd.system
class Cradle(System):
    """Five unit masses in a line."""

    e_N: float = 1.0

    def kinetic_energy(self, t, q, u):
        return 0.5 * u @ u

    def gap(self, t, q):
        return q[1:] - q[:-1] - 1.0


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [jaxnsd.MoreauJean(), jaxnsd.Lobatto(2)])
def test_what_touches_takes_part_in_an_impact(scheme):
    """Also in the first step, where nothing has pushed, and without a load: values and derivatives, against closed forms.

    Of a cradle that touches Newton's law, of all contacts together, makes u_i - u_{i-1} = e (...): the first is left with 1/5 - 4/5 e,
    the others go on with (1 + e) / 5.
    """

    def corner(p, gap):
        q0, u0 = jnp.array([0.0, 1.0, 0.0]) - jnp.array([gap, 0.0, 0.0]), jnp.stack([p[0], jnp.zeros_like(p[0]), p[1]])
        return simulate(InACorner(e_wall=p[2], mu_wall=p[3]), LocatedImpacts(scheme), q0, u0, n_steps=3, dt=1e-3).u[-1]

    def exact(p):
        v, spin, e, mu = p
        return jnp.stack([-e * v, jnp.zeros_like(v), spin - 2 * mu * (1 + e) * v])

    p = jnp.array([1.0, 20.0, 0.8, 0.3])
    both = jax.jit(lambda gap: (corner(p, gap), jax.jacfwd(lambda p: corner(p, gap))(p)))
    for gap in (0.5e-3, 1.5e-3):  # in the first step, in the second
        value, derivative = both(gap)
        assert_allclose(value, exact(p), atol=1e-12)
        assert_allclose(derivative, jax.jacfwd(exact)(p), atol=1e-11)

    @jax.jit
    @jax.vmap
    def cradle(e, gap):
        q0 = jnp.arange(5.0) - gap * jnp.eye(5)[0]
        return simulate(Cradle(e), LocatedImpacts(scheme), q0, jnp.eye(5)[0], n_steps=15, dt=1e-3).u[-1]

    e, gap = jnp.array([1.0, 1.0, 0.5, 0.5]), jnp.array([0.0, 0.0105, 0.0, 0.0105])
    assert_allclose(cradle(e, gap), np.array([[0.2 - 0.8 * x, *[0.2 * (1 + x)] * 4] for x in e]), atol=1e-12)


@pytest.mark.long
def test_as_many_impacts_in_a_step_as_are_asked_for():
    """Both balls hit within one step; with one impact to locate the second is captured, to first order."""
    p = jnp.array([1.0, 1.0003, 0.7])
    np.testing.assert_allclose(pair(2)(p), pair_exact(p), atol=1e-13)
    assert error(pair(2), pair_exact, p) < 1e-12
    captured = pair(1)(p) - pair_exact(p)
    assert np.abs(captured[::2]).max() < 1e-13 and 1e-6 < np.abs(captured[1::2]).max() < 0.1
    assert error(pair(1), pair_exact, p) < 1.0


@pytest.mark.slow
def test_gap_that_closes_and_opens_within_a_step():
    """A particle flies over a bump that it would touch between the nodes only: no end of a step sees it."""

    @jaxnsd.system
    class Bump(System):
        e_N: float = 1.0

        def mass_matrix(self, t, q):
            return jnp.eye(2)

        def gap(self, t, q):
            return jnp.sqrt(q @ q)[None] - 1.0

    scheme = LocatedImpacts(jaxnsd.MoreauJean())
    located = simulate(Bump(), scheme, jnp.array([-1.7, 0.9]), jnp.array([1.0, 0.0]), 2.4, 1.2)
    assert np.hypot([-1.7, -0.5, 0.7], 0.9).min() > 1.02, "the ends of the steps of a straight path"
    n = np.array([-np.sqrt(1 - 0.81), 0.9])  # where it meets the circle
    np.testing.assert_allclose(located.u[-1], np.array([1.0, 0.0]) - 2 * n[0] * n, atol=1e-12)


@pytest.mark.parametrize("scheme", [jaxnsd.MoreauJean(), pytest.param(jaxnsd.Lobatto(2), marks=pytest.mark.long)])
def test_accumulation_point_is_passed(scheme):
    """A ball comes to rest after infinitely many impacts: located, then captured; no energy is made, percussions carry the weight."""
    ball = BouncingBall()
    sol = simulate(ball, LocatedImpacts(scheme), jnp.array([1.0]), jnp.zeros(1), 4.0, 1e-2).raise_if_failed()
    end = np.sqrt(2 / ball.gravity) * (1 + ball.e_N) / (1 - ball.e_N)
    after = np.asarray(sol.t) > end + 0.1
    assert np.abs(sol.q[after]).max() < 1e-2
    energy = jax.vmap(ball.total_energy)(sol.t, sol.q, sol.u)
    assert np.diff(energy).max() < 1e-12
    times = np.asarray(sol.auxiliary["impact_times"])
    found = times[np.isfinite(times)][:3]  # two may be found in a step: they are stored in order
    np.testing.assert_allclose(found, np.sqrt(2 / ball.gravity) * (1 + 2 * np.array([0, 0.75, 0.75 + 0.75**2])), rtol=1e-12)
    total = ball.mass * (sol.u[-1, 0] + ball.gravity * 4.0)
    np.testing.assert_allclose(sol.P_N.sum(), total, rtol=1e-12)


@pytest.mark.long
def test_two_corners_come_to_rest():
    """Coupled contacts with friction, rocking: no penetration with a position-level scheme, no energy is made."""
    block = CornerBlock()
    sol = simulate(block, LocatedImpacts(jaxnsd.Lobatto(2)), *block.initial_state(), 1.0, 1e-3).raise_if_failed()
    assert jax.vmap(block.gap)(sol.t, sol.q).min() > -1e-12
    assert np.diff(jax.vmap(block.total_energy)(sol.t, sol.q, sol.u)).max() < 1e-10


@pytest.mark.slow
def test_steps_without_an_impact_are_those_of_the_scheme():
    system, start = Thrown(), (jnp.array([0.0, 1.0]), jnp.array([1.0, 0.0]))
    a, b = (simulate(system, scheme, *start, 0.4, 1e-2) for scheme in (jaxnsd.MoreauJean(), LocatedImpacts(jaxnsd.MoreauJean())))
    np.testing.assert_array_equal(a.q, b.q)
    np.testing.assert_array_equal(a.u, b.u)


def test_veil_moves_gaps_and_nothing_else():
    system, t, q, u = Thrown(e_N=0.3), 0.0, jnp.array([0.1, 0.2]), jnp.array([1.0, 2.0])
    veiled = Veiled(system, Veil.of_gaps(jnp.array([0.5])))
    np.testing.assert_allclose(veiled.gap(t, q), [0.7])
    np.testing.assert_array_equal(veiled.gap_velocity(t, q, u), system.gap_velocity(t, q, u))
    # What a step evaluates once for all its contacts is the veiled system's, too: it was not, and Moreau-type schemes located nothing.
    np.testing.assert_array_equal(veiled.seen_at(t, q).gap(t, q), veiled.gap(t, q))
    assert veiled.e_N == 0.3 and jax.tree.leaves(veiled)[: len(jax.tree.leaves(system))] == jax.tree.leaves(system)
    with pytest.raises(AttributeError):
        _ = veiled.nothing


def test_bad_arguments():
    with pytest.raises(TypeError, match="scheme must be a scheme"):
        LocatedImpacts(LocatedImpacts(jaxnsd.MoreauJean()))
    with pytest.raises(TypeError, match="scheme must be a scheme"):
        LocatedImpacts(jaxnsd.MoreauJean)
    with pytest.raises(ValueError, match="positive whole number"):
        LocatedImpacts(jaxnsd.MoreauJean(), 0)
    bar = jaxnsd.models.elastic_bar(4)
    with pytest.raises(ValueError, match="GeneralizedAlpha"):
        simulate(bar, LocatedImpacts(jaxnsd.KrenkHogsberg(0.9)), *bar.initial_state(), 1e-5, 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [jaxnsd.SymmetricMoreau(), pytest.param(jaxnsd.Lobatto(2), marks=pytest.mark.long)])
def test_nothing_is_lost_where_nothing_is_hit(scheme):
    """A step without an impact is the wrapped scheme's own, that of schemes with velocities at mid-interval too."""
    state = jnp.array([1.1, 0.7]), jnp.array([0.3, -0.5])
    alone, located = (simulate(SpringPendulum(), s, *state, 0.3, 1e-2) for s in (scheme, LocatedImpacts(scheme, 1)))
    assert not np.any(alone.P_N)
    np.testing.assert_allclose(located.q, alone.q, rtol=0, atol=1e-15)
    np.testing.assert_allclose(located.u, alone.u, rtol=0, atol=1e-14)
    assert np.isnan(located.auxiliary["impact_times"]).all()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [jaxnsd.MoreauJean(), jaxnsd.GeneralizedAlpha()])
@pytest.mark.parametrize("e_N", [0.0, 0.5])
def test_velocity_on_a_table_does_not_depend_on_the_height_of_fall(scheme, e_N):
    """After a plastic landing, or a sequence of impacts, the particle moves with the table, which falls slower than it would.

    The gap velocity changes in a step by what the table does, O(dt), and restitution gave that back: derivatives were 1.1 or -1.1.
    """

    def velocity(h, n_steps):
        return jaxnsd.simulate(ParticleOverTable(e_N=e_N), LocatedImpacts(scheme), h[None], jnp.zeros(1), 0.3, n_steps=n_steps).u[-1, 0]

    def both(h, n_steps):
        return jax.jvp(lambda h: velocity(h, n_steps), (h,), (jnp.ones(()),))

    for n_steps in (400, 401):
        heights = jnp.array([0.1, 0.1003]) if e_N == 0 else jnp.array([0.02, 0.0203])
        value, slope = jax.jit(jax.vmap(functools.partial(both, n_steps=n_steps)))(heights)
        np.testing.assert_allclose(value, 0.18 * np.cos(2.7), rtol=0, atol=1e-12)
        np.testing.assert_allclose(slope, 0, rtol=0, atol=1e-9)
