"""Motions of bodies from parts against closed forms, conservation, symmetry, and models that are written by hand."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from little_systems import quick, with_slope
from numpy.testing import assert_allclose
from scipy.integrate import solve_ivp
from scipy.spatial.transform import Rotation

import jaxnsd
from jaxnsd import (
    GeneralizedAlpha,
    Lobatto,
    LocatedImpacts,
    Moreau,
    MoreauJean,
    SymmetricMoreau,
    System,
    VariationalMoreau,
    bodies,
    simulate,
)
from jaxnsd.bodies import Body, Box, Capsule, Pair, Plane, Points, Revolute, Sphere
from jaxnsd.models import SCENES, Cube, DoublePendulum, tippe_top

G = 9.81
#: Those that take quasi-velocities. The inertia of a free body depends on where it is, unless its frame is at the centre of mass.
SCHEMES = [Moreau(), SymmetricMoreau(), MoreauJean(midpoint_mass=True), Lobatto(2)]


def run(system, scheme, q0, u0, n_steps, dt):
    return simulate(system, scheme, jnp.asarray(q0), jnp.asarray(u0), n_steps=n_steps, dt=dt).raise_if_failed()


# -------------------------------------------------------------------------------------------------------- a ball on a plane
def ball_on_plane(mu, slope=0.0):
    """A ball that touches the plane z = 0, with gravity tilted by the slope."""
    gravity = (G * np.sin(slope), 0.0, -G * np.cos(slope))
    return bodies.assemble([Body("ball", 0.6, shapes=Sphere(0.1), position=(0, 0, 0.1))], Plane(name="floor"), gravity=gravity, mu=mu)


def test_ball_on_a_slope_and_thrown_with_slip():
    """It rolls with 5/7 g sin(a) while mu >= 2/7 tan(a), else slides with g (sin(a) - mu cos(a)); thrown, it rolls after 2/7 v0/mu/g."""
    slope, dt, n = 0.5, 1e-3, 500
    q0, u0 = ball_on_plane(0.3).initial_state()
    for mu, acceleration in ((0.3, 5 / 7 * G * np.sin(slope)), (0.1, G * (np.sin(slope) - 0.1 * np.cos(slope)))):
        sol = run(ball_on_plane(mu, slope), Moreau(), q0, u0, n, dt)
        assert_allclose(sol.u[:, 0], acceleration * sol.t, atol=1e-9)
        # Velocities are exact, the positions of the explicit scheme are of first order.
        assert_allclose(sol.q[:, 0], 0.5 * acceleration * sol.t**2, atol=acceleration * dt * sol.t[-1])
        assert_allclose(sol.q[:, 2], 0.1, atol=1e-12)
        # Angle over time, the quaternion's length.
        spin = 2.5 * (G * np.sin(slope) - acceleration) / 0.1
        assert_allclose(sol.u[:, 4], spin * sol.t, atol=1e-8)
        assert_allclose(np.linalg.norm(sol.q[:, 3:], axis=1), 1.0, atol=1e-12)
    sol = run(ball_on_plane(0.1), Moreau(), q0, u0.at[0].set(1.0), n, dt)
    rolls = 2 / 7 / (0.1 * G)
    assert_allclose(sol.u[:, 0], np.maximum(1.0 - 0.1 * G * sol.t, 5 / 7), atol=0.1 * G * dt)
    assert_allclose(sol.u[sol.t > rolls + dt, 0], 5 / 7, atol=1e-9)
    assert_allclose(sol.u[sol.t > rolls + dt, 4], 50 / 7, atol=1e-8)


@jaxnsd.system
class OnABelt(bodies.Multibody):
    """What touches its floor touches a belt that runs along x."""

    speed: float = 0.0  # m/s

    def tangential_velocity(self, t, q, u, choice=None):
        along = super().tangents(self.touches(t, q).normal)[:, :, 0]
        belt = self.speed * (along if choice is None else choice.take(along))
        return super().tangential_velocity(t, q, u, choice) - belt


@pytest.mark.slow
def test_ball_on_a_belt():
    """Put down on a belt of speed V a ball slides with mu g, then rolls with 2/7 V: velocities at u = 0 may be those of a subclass."""
    plain = ball_on_plane(0.2)
    q0, u0 = plain.initial_state()

    def speeds(V):
        sol = simulate(OnABelt.from_system(plain, speed=V), Moreau(), q0, u0, n_steps=300, dt=1e-3)
        return sol.u[jnp.array([50, 300]), 0]

    (sliding, rolling), derivative = jax.jit(with_slope(speeds))(1.0)
    assert_allclose([sliding, rolling], [0.05 * 0.2 * G, 2 / 7], rtol=1e-9)
    assert_allclose(derivative, [0, 2 / 7], atol=1e-9)
    assert plain.scleronomic and not OnABelt.from_system(plain).scleronomic


@jaxnsd.system
class Pulled(bodies.Multibody):
    """Its body is pulled by a force and by a spring, carries a flywheel on its axis x, and the floor has a hill."""

    pull: float = 0.0  # N along x
    spring: float = 0.0  # N/m along x
    flywheel: float = 0.0  # kg m^2
    hill: float = 0.0  # m

    def force(self, t, q, u):
        """Of the velocity of the body's frame, by differentiation."""
        velocity = lambda u: jax.jvp(lambda q: self.pose(t, q).position[0], (q,), (self.q_dot(t, q, u),))[1]  # noqa: E731
        return super().force(t, q, u) + self.pull * jax.grad(lambda u: velocity(u)[0])(u)

    def potential_energy(self, t, q):
        return super().potential_energy(t, q) + 0.5 * self.spring * self.pose(t, q).position[0, 0] ** 2

    def kinetic_energy(self, t, q, u):
        return super().kinetic_energy(t, q, u) + 0.5 * self.flywheel * u[3] ** 2

    def gap(self, t, q):
        return super().gap(t, q) - self.hill * jnp.sin(self.pose(t, q).position[0, 0])


@pytest.mark.slow
def test_what_a_subclass_writes_anew_counts():
    """Forces, energies and gaps of a subclass are those of the equations of motion, in closed form or derived, at one configuration too."""
    plain = ball_on_plane(0.2)
    own = {"pull": 2.0, "spring": 3.0, "flywheel": 0.4, "hill": 0.1}
    q, u = jnp.array([0.3, -0.2, 0.15, 0.5, 0.1, -0.7, 0.5]), jnp.array([1.0, 0.3, -0.4, 2.0, -1.0, 3.0])

    @jax.jit
    def parts(system):
        systems = (system, system.seen_at(0.0, q))
        return [(s.h(0.0, q, u), s.b(0.0, q, u), s.M(0.0, q, u), s.W_N(0.0, q, u)[:, 0], s.gap_velocity(0.0, q, u)) for s in systems]

    (expected, _), found = parts(Pulled.from_system(plain)), parts(Pulled.from_system(plain, **own))
    more = np.zeros(6)
    more[0] = 2.0 - 3.0 * 0.3
    # Of the flywheel: -omega x L, with L about the axis x of the body.
    gyroscopic = np.concatenate([np.zeros(3), -np.cross(u[3:], [0.4 * u[3], 0, 0])])
    slope = -0.1 * np.cos(0.3)
    for h, b, M, W_N, rate in found:
        assert_allclose(h - expected[0], more + gyroscopic, atol=1e-12)
        assert_allclose(b - expected[1], more + gyroscopic, atol=1e-12)
        assert_allclose(M - expected[2], np.diag([0, 0, 0, 0.4, 0, 0]), atol=1e-12)
        assert_allclose(W_N, [slope, 0, 1, 0, 0, 0], atol=1e-12)
        assert_allclose(rate, [slope * u[0] + u[2]], atol=1e-12)
    for scheme in (Moreau(), Lobatto(2)):
        sol = run(Pulled.from_system(plain, pull=2.0), scheme, q.at[2].set(5.0), u, 100, 1e-3)
        assert_allclose(sol.u[-1, 0], 1.0 + 2.0 / 0.6 * 0.1, rtol=1e-12)


TURNING = """<mujoco><worldbody>
  <body pos="0.1 0.2 0.3"><joint axis="0.3 1 0.2" pos="0.1 0 0"/><geom type="box" size="0.1 0.2 0.3" pos="0.02 0 0.1" mass="1"/>
    <body pos="0 0.2 0.5"><joint type="ball" pos="0 0.1 -0.2" armature="0.3"/><geom type="box" size="0.1 0.2 0.3" mass="2" pos="0.1 0.1 0"/>
      <body pos="0.3 0.1 0.1"><joint type="slide" axis="1 2 3"/><joint type="ball"/>
        <geom type="box" size="0.3 0.1 0.1" mass="0.7" pos="0.2 0 0.1"/></body>
      <body pos="0.3 -0.1 0.1"><joint axis="1 2 3"/><geom type="box" size="0.3 0.1 0.1" mass="0.7"/></body></body></body>
  <body pos="2 0 0"><freejoint/><geom type="box" size="0.3 0.2 0.1" mass="0.7" pos="0.3 0 0"/>
    <body pos="0 0.3 0"><joint type="ball"/><geom type="box" size="0.3 0.1 0.1" mass="0.7" pos="0.2 0 0.1"/></body></body>
  <body pos="4 0 0"><freejoint/><geom type="box" size="0.3 0.2 0.1" mass="0.7" pos="0.3 0 0"/></body>
</worldbody></mujoco>"""


def test_the_derivative_of_gyroscopic_moments():
    """Of three trees, on hinge and free joints, with balls in their middle, one with an armature: by `jax.jacfwd` of the forces."""
    pytest.importorskip("mujoco")
    system = bodies.from_mjcf(TURNING, contacts="world")
    rng = np.random.default_rng(0)
    q, u = (jnp.asarray(x + 0.3 * rng.normal(size=x.shape)) for x in system.initial_state())
    q = system.normalized(q)
    turns = np.array(["omega" in name for name in system.velocity_names])
    assert turns.sum() == 15
    closed, by_jax = quick(lambda q, u: (system.gyroscopic(0.0, q, u), jax.jacfwd(lambda u: system.h(0.0, q, u))(u)))(q, u)
    assert_allclose(closed, np.where(turns, by_jax, 0), atol=1e-14 * np.abs(by_jax).max())


ALSO = (["M", "momentum"], ["M", "kinetic_energy"], ["M", "kinetic_energy", "momentum"])


@pytest.mark.parametrize("names", [["kinetic_energy"], ["M"], ["mass_matrix"], *(pytest.param(x, marks=pytest.mark.slow) for x in ALSO)])
def test_inertia_of_a_subclass_in_any_words(names):
    """A flywheel by the energy, by the matrix, or by several of what they say: one inertia, and the gyroscopic moment of it."""
    plain = ball_on_plane(0.2)
    E = np.diag([0, 0, 0, 0.4, 0, 0])
    written = {
        "kinetic_energy": lambda self, t, q, u: bodies.Multibody.kinetic_energy(self, t, q, u) + 0.2 * u[3] ** 2,
        "M": lambda self, t, q, u=None: bodies.Multibody.M(self, t, q, u) + E,
        "mass_matrix": lambda self, t, q: bodies.Multibody.mass_matrix(self, t, q) + E,
        "momentum": lambda self, t, q, u: bodies.Multibody.momentum(self, t, q, u) + E @ u,
    }
    kind = jaxnsd.system(type("Turning", (bodies.Multibody,), {name: written[name] for name in names}))
    made = kind.from_system(plain)
    q, u = jnp.array([0.3, -0.2, 0.15, 0.5, 0.1, -0.7, 0.5]), jnp.array([1.0, 0.3, -0.4, 2.0, -1.0, 3.0])

    @quick
    def parts(s):
        return s.M(0.0, q, u), s.momentum(0.0, q, u), s.kinetic_energy(0.0, q, u), s.h(0.0, q, u), s.b(0.0, q, u)

    moment = np.concatenate([np.zeros(3), -np.cross(u[3:], [0.4 * u[3], 0, 0])])
    for got, base, more in zip(parts(made), parts(plain), (E, E @ u, 0.2 * u[3] ** 2, moment, moment), strict=True):
        assert_allclose(got - base, more, atol=1e-12)


def test_a_subclass_of_bodies_has_their_kinematics():
    with pytest.raises(TypeError, match=r"Odd.q_dot: the coordinates of bodies move as their joints say; other coordinates take a System"):
        type("Odd", (bodies.Multibody,), {"q_dot": lambda self, t, q, u: 2 * u})
    with pytest.raises(TypeError, match=r"OnABelt.from_system: system must be a Multibody, got DoublePendulum"):
        OnABelt.from_system(DoublePendulum())


@pytest.mark.slow
def test_wheel_rolls_on_and_disc_settles():
    """A wheel rolls without slip at its speed, whatever point of it is below; a disc that falls on its side lies still on its end."""
    wheel = bodies.Cylinder(0.1, 0.04)
    system = bodies.assemble([Body("wheel", 1.0, shapes=wheel, position=(0, 0, 0.1))], Plane(name="floor"), mu=0.5)
    upright = Rotation.from_euler("x", 0.5 * np.pi)
    # Inside by a little: where it touches to round-off the first step may find it open.
    q0 = jnp.array([0, 0, 0.1 - 1e-9, *upright.as_quat(scalar_first=True)])
    # Twenty turns a revolution of the world's y, at 2 m/s.
    sol = run(system, Moreau(), q0, np.array([2.0, 0, 0, *upright.inv().apply([0, 20.0, 0])]), 2000, 1e-3)
    assert_allclose(sol.u[:, 0], 2.0, atol=1e-6)
    assert_allclose(sol.q[:, 2], 0.1, atol=1e-6)
    tilted = Rotation.from_euler("x", 0.3).as_quat(scalar_first=True)
    sol = run(system, Moreau(), [0, 0, 0.12, *tilted], np.array([0.2, 0, 0, 0, 0, 1.0]), 2000, 1e-3)
    assert_allclose(sol.u[-1], 0.0, atol=1e-9)
    assert_allclose(sol.q[-1, 2], 0.02, atol=1e-3)


# --------------------------------------------------------------------------------------------------------------- free bodies
MOMENTS = np.array([0.02, 0.03, 0.045])


def free_body(moments):
    return bodies.assemble([Body("body", 1.5, tuple(moments), center=(0.1, -0.05, 0.02))], gravity=(0, 0, 0))


def momentum(system, q, u):
    """Angular momentum about the centre of mass in the world, and the kinetic energy."""
    R = Rotation.from_quat(np.array(q[:, 3:]), scalar_first=True)
    omega = np.array(u[:, 3:])
    J = np.diagonal(np.asarray(system.inertia[0]))
    v = np.asarray(u[:, :3]) + R.apply(np.cross(omega, np.array(system.center[0])))
    return R.apply(J * omega), 0.5 * omega**2 @ J + 0.5 * 1.5 * np.sum(v**2, axis=1)


@pytest.mark.slow
def test_symmetric_top_precesses():
    """Torque-free: omega in the body turns about the axis of symmetry at (J3 - J1)/J1 omega3; the axis about L at |L|/J1 (Jacobi)."""
    J1, J3 = 0.03, 0.045
    system = free_body((J1, J1, J3))
    omega = np.array([1.0, 0.0, 3.0])
    R0 = Rotation.from_euler("xyz", (0.3, 0.2, 0.1))
    # The centre of mass is at rest.
    v0 = -R0.apply(np.cross(omega, np.array(system.center[0])))
    q0, u0 = np.concatenate([np.zeros(3), R0.as_quat(scalar_first=True)]), np.concatenate([v0, omega])
    sol = run(system, SymmetricMoreau(), q0, u0, 2000, 5e-4)
    rate = (J3 - J1) / J1 * 3.0
    exact = np.stack([np.cos(rate * sol.t), np.sin(rate * sol.t), 3.0 + 0 * sol.t], axis=1)
    velocities = jaxnsd.node_velocities(system, SymmetricMoreau(), sol)
    assert_allclose(velocities[:, 3:], exact, atol=2e-5)
    L = R0.apply(np.array([J1, J1, J3]) * omega)
    axis = Rotation.from_quat(np.array(sol.q[-1, 3:]), scalar_first=True).apply([0, 0, 1.0])
    turned = Rotation.from_rotvec(float(sol.t[-1]) / J1 * L).apply(R0.apply([0, 0, 1.0]))
    assert_allclose(axis, turned, atol=2e-5)
    center = np.asarray(sol.q[:, :3]) + Rotation.from_quat(np.array(sol.q[:, 3:]), scalar_first=True).apply(np.array(system.center[0]))
    assert_allclose(center, np.broadcast_to(center[0], center.shape), atol=2e-6)


@jaxnsd.system
class Published(bodies.Multibody):
    """With Moreau's scheme as it was published."""

    def gyroscopic(self, t, q, u):
        return None


def test_free_rotation_gains_no_energy():
    """20 rad/s by 0.3 rad a step: energies of 10 s within 2 %, where the explicit scheme has 1.5 times as much after half a second."""
    system = bodies.assemble([Body("body", 1.5, (0.3, 0.2, 0.1))], gravity=(0, 0, 0))
    q, u = system.initial_state()
    u = u.at[3:].set(20 * jnp.array([0.1, 1.0, 0.1]))
    step = 1 / 64

    def energies(system, n_steps):
        sol = simulate(system, Moreau(), q, u, n_steps=n_steps, dt=step)
        return sol, np.asarray(sol.u[:, 3:]) ** 2 @ np.array([0.3, 0.2, 0.1]) / 2

    sol, T = energies(system, 640)
    assert sol.success and np.all(np.abs(T / T[0] - 1) < 0.02)
    explicit = Published.from_system(system)
    sol, T = energies(explicit, 32)
    assert T[-1] > 1.4 * T[0]
    # As published: M (u_k - u_{k-1}) = dt h(q_k, u_{k-1}).
    J, before = np.array([0.3, 0.2, 0.1]), np.asarray(sol.u[4, 3:])
    assert_allclose(J * (sol.u[5, 3:] - before), step * np.cross(J * before, before), rtol=1e-12)


def euler(moments):
    """Euler's equations of a body with these principal moments of inertia, for `solve_ivp`: of its quaternion and angular velocity (7,)."""

    def rates(t, y):
        del t
        w = y[4:]
        a, b, c, d = y[:4]
        p_dot = 0.5 * np.array([[-b, -c, -d], [a, -d, c], [d, a, -b], [-c, b, a]]) @ w
        return np.concatenate([p_dot, np.cross(moments * w, w) / moments])

    return rates


@pytest.mark.slow
def test_an_axis_that_is_unstable_turns_over():
    """Dzhanibekov's rotation about the middle axis: its turns, attitude and velocity are those of Euler's equations."""
    J = np.array([0.3, 0.2, 0.1])
    system = bodies.assemble([Body("body", 1.5, tuple(J))], gravity=(0, 0, 0))
    q, u = system.initial_state()
    omega = np.array([0.01, 10.0, 0.01])

    exact = solve_ivp(euler(J), (0, 5.0), [1.0, 0, 0, 0, *omega], rtol=1e-12, atol=1e-13, dense_output=True).sol
    of_velocity, of_attitude, of_momentum = [], [], []
    for step in (1 / 64, 1 / 256):
        sol = simulate(system, Moreau(), q, u.at[3:].set(omega), 5.0, step)
        y = exact(np.asarray(sol.t)).T
        of_velocity.append(np.abs(sol.u[:, 3:] - y[:, 4:]).max())
        p = np.asarray(sol.q[:, 3:])
        of_attitude.append(np.minimum(*(np.linalg.norm(p + sign * y[:, :4], axis=1) for sign in (-1, 1))).max())
        L = Rotation.from_quat(p, scalar_first=True).apply(J * np.asarray(sol.u[:, 3:]))
        of_momentum.append(np.linalg.norm(L - L[0], axis=1).max() / np.linalg.norm(L[0]))
        assert sol.success and np.sum(np.diff(np.sign(sol.u[:, 4])) != 0) == np.sum(np.diff(np.sign(y[:, 5])) != 0) == 2
    # Angular velocities at the nodes are of second order, the attitude, which the velocity after a node moves, of first.
    assert of_velocity[0] < 0.15 and of_velocity[1] < of_velocity[0] / 14
    assert of_attitude[0] < 0.03 and of_attitude[1] < of_attitude[0] / 3.5
    assert of_momentum[0] < 0.05 and of_momentum[1] < of_momentum[0] / 3.5


@pytest.mark.slow
def test_derivatives_of_what_turns():
    """Of a floating chain with a ball joint that tumbles, in both modes, by differences."""
    system = floating_tree()
    q, u = system.initial_state()
    u = u + 2 * jnp.cos(jnp.arange(len(u)) + 1.0)

    def end(x):
        moved = dataclasses.replace(system, inertia=system.inertia * x)
        return jnp.sum(simulate(moved, Moreau(), q, u, 0.2, 5e-3).q[-1] ** 2)

    forward, reverse = jax.jvp(end, (1.0,), (1.0,))[1], jax.grad(end)(1.0)
    assert_allclose(reverse, forward, rtol=1e-10)
    assert_allclose(forward, (end(1 + 1e-5) - end(1 - 1e-5)) / 2e-5, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "scheme",
    [SCHEMES[1], *(pytest.param(SCHEMES[k], marks=pytest.mark.long) for k in (0, 2, 3))],
    ids=lambda scheme: scheme.name,
)
def test_free_asymmetric_body(scheme):
    """Attitude, energy and angular momentum converge with the order of the scheme to those of Euler's equations; |p| = 1."""
    system = free_body(MOMENTS)
    omega = np.array([0.3, 3.0, 0.2])
    u0 = np.concatenate([[0.2, 0.0, -0.1], omega])
    q0 = np.array([0, 0, 0, 1.0, 0, 0, 0])
    t1 = 2.0

    exact = solve_ivp(euler(MOMENTS), (0, t1), [1.0, 0, 0, 0, *omega], rtol=1e-12, atol=1e-13).y[:, -1]
    errors, drifts = [], []
    for n in (1000, 2000):
        sol = run(system, scheme, q0, u0, n, t1 / n)
        assert_allclose(np.linalg.norm(sol.q[:, 3:], axis=1), 1.0, atol=1e-11)
        u = jaxnsd.node_velocities(system, scheme, sol)
        L, T = momentum(system, sol.q, u)
        p = np.array(sol.q[-1, 3:])
        errors.append(min(np.linalg.norm(p - exact[:4]), np.linalg.norm(p + exact[:4])) + np.linalg.norm(np.asarray(u[-1, 3:]) - exact[4:]))
        drifts.append(max(np.abs(T / T[0] - 1).max(), np.linalg.norm(L - L[0], axis=1).max() / np.linalg.norm(L[0])))
    order = np.log2(errors[0] / errors[1])
    assert order == pytest.approx(scheme.order, abs=0.25), (errors, drifts)
    # What is conserved converges at least as fast.
    assert drifts[1] < drifts[0] / 2 ** (scheme.order - 0.3) + 1e-12, drifts
    assert drifts[1] < 1e-2


# ------------------------------------------------------------------------------------------------------------ two equal balls
@pytest.mark.long
def test_equal_balls_exchange_velocities():
    """Head on, e = 1: u+ = (u2, u1), with the Jacobian [[0, 1], [1, 0]], of positions too, whichever of the two comes first."""
    parts = [Body(name, 1.0, shapes=Sphere(0.1), position=(x, 0, 0)) for name, x in (("a", 0.0), ("b", 0.5))]
    scheme, places = Moreau(), np.array([0, 6])
    for chosen in (parts, parts[::-1]):
        system = bodies.assemble(chosen, gravity=(0, 0, 0), e_N=1.0)
        q0, u0 = system.initial_state()
        sign = 1.0 if chosen is parts else -1.0
        speeds = jnp.array([1.0, -0.5]) if sign > 0 else jnp.array([-0.5, 1.0])

        @jax.jit
        def final(x, speeds, system=system, q0=q0, u0=u0):
            sol = simulate(system, scheme, q0.at[np.array([0, 7])].add(x), u0.at[places].set(speeds), n_steps=400, dt=1e-3)
            return sol.q[-1, np.array([0, 7])], sol.u[-1, places]

        (q, u), tangents = final(jnp.zeros(2), speeds), []
        for direction in np.eye(4):
            tangents.append(jax.jvp(final, (jnp.zeros(2), speeds), (jnp.asarray(direction[:2]), jnp.asarray(direction[2:])))[1])
        swap = np.array([[0.0, 1.0], [1.0, 0.0]])
        assert_allclose(u, speeds[::-1], atol=1e-12)
        # Centres pass through each other, but for the diameter: x1+ = x2 - 2 r.
        gap = 0.2 * np.array([-1.0, 1.0]) * sign
        assert_allclose(q, (q0[np.array([0, 7])] + 0.4 * speeds)[::-1] + gap, atol=2e-3)
        J = np.stack([np.concatenate(t) for t in tangents], axis=1)
        assert_allclose(J[2:, 2:], swap, atol=1e-10)
        assert_allclose(J[2:, :2], 0.0, atol=1e-10)
        assert_allclose(J[:2, :2], swap, atol=1e-10)
        assert_allclose(J[:2, 2:], 0.4 * swap, atol=2e-3)


# -------------------------------------------------------------------------------------------------------------------- a cube
def cube(turned=None, **material):
    """A 0.1 m cube and a floor, all turned in the world."""
    turned = Rotation.identity() if turned is None else turned
    p = tuple(turned.as_quat(scalar_first=True))
    floor = Plane(name="floor", orientation=p)
    body = Body("cube", 0.37, shapes=Box((0.1, 0.1, 0.1)))
    return bodies.assemble([body], floor, gravity=tuple(turned.apply([0, 0, -G])), **material)


def turn_state(turned, q, u):
    """The same state of a free body in a turned world."""
    p = (turned * Rotation.from_quat(q[3:], scalar_first=True)).as_quat(scalar_first=True)
    return np.concatenate([turned.apply(q[:3]), p]), np.concatenate([turned.apply(u[:3]), u[3:]])


@pytest.mark.slow
def test_cube_slides_stays_and_does_not_see_the_world_turn():
    """Slides at 6 m/s on the plane, with mu g; a toss is that of the model, and the same in a turned world, with turned tangents."""
    n, dt = 600, 1e-3
    # A round-off inside the contact, not on it: which corners touch is not a matter of the last bit then.
    q0, u0 = np.array([0, 0, 0.05 - 1e-12, 1.0, 0, 0, 0]), np.array([6.0, 0, 0, 0, 0, 0])
    sol = run(cube(mu=0.3, e_N=0.2), Moreau(), q0, u0, n, dt)
    assert_allclose(sol.q[:, 2], 0.05, atol=1e-9)
    assert_allclose(sol.q[:, 1], 0.0, atol=1e-9)
    assert_allclose(sol.u[:, 0], 6.0 - 0.3 * G * sol.t, atol=1e-9)

    model = Cube()
    q0, u0 = (np.array(x) for x in model.initial_state())
    written = run(model, Moreau(), q0, u0, n, dt)
    tossed = run(cube(mu=model.mu, e_N=model.e_N), Moreau(), q0, u0, n, dt)
    # As long as round-off has not grown: a tumbling cube is chaotic.
    few = slice(0, 300)
    assert_allclose(tossed.q[few], written.q[few], atol=1e-9)
    assert float(jnp.min(tossed.q[:, 2])) < 0.2
    turned = Rotation.from_euler("xyz", (0.7, -0.4, 1.1))
    other = run(cube(turned, mu=model.mu, e_N=model.e_N), Moreau(), *turn_state(turned, q0, u0), n, dt)
    back = turned.inv().apply(np.array(other.q[:, :3]))
    assert_allclose(back[few], tossed.q[few, :3], atol=1e-7)
    assert_allclose(np.asarray(other.u[few, 3:]), tossed.u[few, 3:], atol=1e-6)


@pytest.mark.slow
def test_what_is_differentiated_is_not_held_at_one_configuration():
    """Steps see bodies at one configuration. Forces by energies, and momenta elsewhere, are not those there."""
    hinge, none = Revolute((0.0, 0, 1.0)), (0.0, 0.0, 0.0)
    parts = [Body("first", 1.0, none, (0, -0.4, 0), hinge), Body("second", 0.7, none, (0, -0.3, 0), hinge, "first", (0, -0.4, 0))]
    system = bodies.assemble(parts, gravity=(0, -G, 0), plane="xy")
    q, u = jnp.array([0.3, 0.5]), jnp.array([3.0, -2.0])
    seen = system.seen_at(0.0, q)
    assert_allclose(seen.b(0.0, q, u), system.b(0.0, q, u), rtol=1e-13)
    assert_allclose(seen.b(0.0, q, u) - seen.h(0.0, q, u), jax.jvp(lambda q: system.momentum(0.0, q, u), (q,), (u,))[1], rtol=1e-12)
    assert_allclose(seen.momentum(0.0, q + 0.1, u), system.momentum(0.0, q + 0.1, u), rtol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize(
    "scheme", [Moreau(), SymmetricMoreau(), VariationalMoreau(), MoreauJean(), GeneralizedAlpha(), Lobatto(2)], ids=str
)
def test_double_pendulum_of_parts_hits_the_wall_as_the_model(scheme):
    """Through impacts, to round-off."""
    model = DoublePendulum()
    hinge, none = Revolute((0.0, 0, 1.0)), (0.0, 0.0, 0.0)
    tip = Points(((0.0, -model.length_2, 0.0),))
    parts = [
        Body("first", model.mass_1, none, (0, -model.length_1, 0), hinge),
        Body("second", model.mass_2, none, (0, -model.length_2, 0), hinge, "first", (0, -model.length_1, 0), shapes=tip),
    ]
    wall = Plane(position=(model.wall, 0, 0), orientation=(np.sqrt(0.5), 0, -np.sqrt(0.5), 0))
    system = bodies.assemble(parts, wall, gravity=(0, -model.gravity, 0), e_N=model.e_N, plane="xy")
    q0, u0 = model.initial_state()
    A = np.array([[1.0, 0], [1.0, 1.0]])
    own = run(system, scheme, np.linalg.solve(A, q0), np.linalg.solve(A, u0), 1500, 1e-3)
    written = run(model, scheme, q0, u0, 1500, 1e-3)
    assert int(jnp.sum(written.P_N > 0)) > 0
    # Relative and absolute angles are advanced by the same scheme, which is linear in them; the mass matrix is evaluated at the same place.
    assert_allclose(own.q @ A.T, written.q, atol=1e-9)
    assert_allclose(own.u @ A.T, written.u, atol=1e-8)


# ------------------------------------------------------------------------------------------ frames away from centres of mass
#: Centre of mass of a box in its frame, m: away by several radii of gyration.
AWAY = np.array([0.0, 0.1, 0.3])


def box_in_frame(center, **more):
    """A box whose frame is away from its centre of mass by ``-center``."""
    box = Body("box", 8.0, center=tuple(center), shapes=Box((0.2, 0.4, 0.1), position=tuple(center)), position=(0.1, 0, 1.0))
    return bodies.assemble([box], **more)


def thrown(center, q, velocity, omega, dtype=float):
    """State of the box with its centre at rest in the frame of ``q`` (7,), and moved by the velocity there."""
    R = Rotation.from_quat(q[3:], scalar_first=True).as_matrix()
    q0 = np.concatenate([q[:3] - R @ center, q[3:]])
    u0 = np.concatenate([velocity - R @ np.cross(omega, center), omega])
    return jnp.asarray(q0, dtype), jnp.asarray(u0, dtype)


def centers(sol, center):
    """Centre of the box at the nodes, (N + 1, 3)."""
    q = np.asarray(sol.q, float)
    return q[:, :3] + Rotation.from_quat(q[:, 3:], scalar_first=True).as_matrix() @ center


UPRIGHT = np.array([0.1, 0, 1.0, 1.0, 0, 0, 0])
VELOCITY, OMEGA = np.array([1.0, 2.0, 3.0]), np.array([4.0, 5.0, -6.0])


@pytest.mark.parametrize("scheme", [Lobatto(2), MoreauJean()], ids=str)
def test_a_thrown_box_turns_as_with_its_frame_at_the_centre(scheme):
    """Momenta are held about the centre: the balance is the same to the solver's tolerance, the frame's path to the order.

    In momenta about the frame the run of `Lobatto` diverged with these steps; with the mass matrix of the start of a step that of
    `MoreauJean` was off by 5.7 rad/s.
    """
    system = box_in_frame(AWAY)
    run_of = jax.jit(lambda center, q0, u0: simulate(dataclasses.replace(system, center=center), scheme, q0, u0, n_steps=50, dt=1e-2))
    here, away = (run_of(jnp.asarray(c)[None], *thrown(c, UPRIGHT, VELOCITY, OMEGA)) for c in (np.zeros(3), AWAY))
    assert here.success and away.success
    assert_allclose(away.u[:, 3:], here.u[:, 3:], atol=1e-8)
    assert_allclose(away.q[:, 3:], here.q[:, 3:], atol=1e-9)
    assert 1e-5 < np.abs(centers(away, AWAY) - here.q[:, :3]).max() < 5e-3


@pytest.mark.slow
def test_a_plate_in_its_plane_turns_as_with_its_frame_at_the_centre():
    """On sliders, too: it turns at its constant speed."""
    plate = Body("plate", 8.0, (0.1, 0.1, 0.1), (0.3, 0, 0), bodies.planar())
    system = bodies.assemble([plate], plane="xy", gravity=(0, -G, 0))
    sol = run(system, Lobatto(2), np.zeros(3), np.array([3.0, -2.7, 9.0]), 50, 2e-2)
    assert_allclose(sol.u[:, 2], 9.0, rtol=1e-9)


def floating_tree():
    """Three floating trees, one with joints of every kind, beside an arm that is fixed to the world, and one joint that is prescribed."""
    inertia, hinge = (0.01, 0.02, 0.015), Revolute((1.0, 1.0, 0))
    parts = [
        Body("arm", 1.0, inertia, (0, 0, -0.3), Revolute((1.0, 0, 0), (0, 0, 2.0))),
        Body("base", 2.0, inertia, (0.1, 0.2, 0.3)),
        Body("ball", 1.0, inertia, (0.1, -0.2, 0.3), bodies.Spherical((0.1, 0, 0)), "base", (0.1, 0.1, 0.1)),
        Body("slider", 0.5, inertia, (0.2, -0.2, 0.3), bodies.Prismatic((1.0, 1.0, 0)), "ball", (0.1, 0.1, 0.3)),
        Body("driven", 0.5, inertia, (0.2, 0.1, 0.3), dataclasses.replace(hinge, motion=jnp.sin), "base", (0, 0.1, 0.3)),
        Body("link", 0.5, inertia, (0.2, -0.2, 0.3), hinge, "driven", (0.1, 0.1, 0.3)),
        Body("other", 1.5, inertia, (0.1, -0.2, 0.1)),
        Body("plate", 1.5, inertia, (0.1, -0.2, 0.1), bodies.planar(normal=(0, 1.0, 0))),
    ]
    return bodies.assemble(parts)


def test_momenta_about_centres_of_mass():
    """They are those of no uniform velocity, of one tree alone; they change as the derivative of what `about_center` makes of p does."""
    system, rng = floating_tree(), np.random.default_rng(0)
    q0, u0 = system.initial_state()
    q, u = system.normalized(q0 + 0.3 * rng.standard_normal(q0.shape)), jnp.asarray(rng.standard_normal(u0.shape))

    @jax.jit
    def parts(system, p):
        general = jaxnsd.System.about_center_rate(system, 0.2, q, u, p)
        once = system.about_center(0.2, q, p)
        closed = system.seen_at(0.2, q).about_center_rate(0.2, q, u, p)
        return once, system.about_center(0.2, q, once), closed, general, system.about_center(0.2, q, system.M(0.2, q))

    p = jnp.asarray(rng.standard_normal(u0.shape))
    once, twice, closed, general, M = parts(system, p)
    assert_allclose(2 * once - twice, p, atol=1e-14)
    assert_allclose(closed, general, atol=1e-13)
    first = np.array([1, 2, 3, 12, 13, 14, 18, 19])
    behind = np.setdiff1d(np.arange(21), first)
    assert_allclose(np.asarray(M)[np.ix_(behind, first)], 0, atol=1e-14)
    assert_allclose(once[np.r_[0, first]], p[np.r_[0, first]], atol=0)
    assert system.defines("about_center") and not bodies.assemble([Body("arm", 1.0, (1.0, 1, 1), joints=Revolute())]).defines(
        "about_center"
    )


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [Lobatto(2), Lobatto(3), MoreauJean()], ids=str)
def test_a_floating_chain_does_not_feel_how_fast_it_is_thrown(scheme):
    """Errors fall with the order, and are those at rest: the scheme is invariant to Galilei's transformations. Weight alone changes the
    momentum.
    """
    base = Body("base", 2.0, (0.01, 0.02, 0.015), (0.1, 0.05, 0.3))
    hinge = Revolute((1.0, 0.2, 0))
    system = bodies.assemble([base, Body("link", 1.0, (0.01, 0.012, 0.004), (0, 0, -0.2), hinge, "base", (0.1, 0, -0.2))])
    q0, u0 = system.initial_state()
    q0, u0 = q0.at[-1].set(0.5), u0.at[3:].set(jnp.array([4.0, 5, -6, 3]))
    end = jax.jit(
        lambda velocity, scheme, n: simulate(system, scheme, q0, u0.at[:3].add(velocity), n_steps=n, t1=0.2), static_argnums=(1, 2)
    )
    reference = end(jnp.zeros(3), Lobatto(3), 200).raise_if_failed().u[-1, 3:]
    errors = []
    for n in (10, 20):
        rest, fast = (end(jnp.array(v), scheme, n).raise_if_failed() for v in ([0.0, 0, 0], [3.0, 0, 0]))
        assert_allclose(fast.u[:, 3:], rest.u[:, 3:], atol=1e-8)
        errors.append(np.abs(rest.u[-1, 3:] - reference).max())
        before, after = (system.momentum(0.0, fast.q[k], fast.u[k])[:3] for k in (0, -1))
        assert_allclose(after - before, [0, 0, -3.0 * G * 0.2], atol=1e-9)
    assert 0.6 * 2**scheme.order < errors[0] / errors[1] < 1.6 * 2**scheme.order


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:simulating in float32")
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_box_falls_bounces_and_rests_wherever_its_frame_is(dtype):
    """With its frame away from its centre, as with it there."""
    q = np.array([0, 0, 0.3, *Rotation.from_euler("xyz", (0.3, 0.2, 0.1)).as_quat(scalar_first=True)])
    sols = []
    for center in (np.zeros(3), AWAY):
        system = box_in_frame(center, world=Plane(name="floor"), mu=0.4, e_N=0.2)
        system = jax.tree.map(lambda x: jnp.asarray(x, dtype), system)
        sol = run(system, Lobatto(2), *thrown(center, q, np.array([0.5, 0, 0]), np.array([0.5, 1.0, -2.0]), dtype), 1500, 1e-3)
        sols.append(sol)
        assert jnp.abs(sol.u[-1]).max() < (1e-6 if dtype == "float64" else 1e-2)
        assert_allclose(centers(sol, center)[-1, 2], 0.05, atol=1e-6 if dtype == "float64" else 1e-4)
    before = slice(0, 100)
    assert_allclose(centers(sols[1], AWAY)[before], np.asarray(sols[0].q)[before, :3], atol=1e-4)
    assert_allclose(centers(sols[1], AWAY)[-1], np.asarray(sols[0].q)[-1, :3], atol=2e-2)
    balance = jaxnsd.energy.balance(system, Lobatto(2), sol)
    assert abs(float(jnp.sum(balance.numerical))) < 0.05 * float(balance.scale)


@pytest.mark.slow
def test_derivatives_about_the_centre():
    """Of a flight, with respect to where the centre is and to the start, in both modes."""
    system = box_in_frame(AWAY)
    q0, u0 = thrown(AWAY, UPRIGHT, VELOCITY, OMEGA)

    @jax.jit
    def loss(center, u0):
        sol = simulate(dataclasses.replace(system, center=center), Lobatto(3), q0, u0, n_steps=10, dt=1e-2)
        return jnp.sum(jnp.sin(sol.q[-1])) + jnp.sum(sol.u[-1])

    at = system.center, u0
    forward, backward = (jax.jit(d(loss, (0, 1)))(*at) for d in (jax.jacfwd, jax.grad))
    for x, forth, back, k in zip(at, forward, backward, (0, 1), strict=True):
        moved = lambda e, k=k: loss(*(y + e if i == k else y for i, y in enumerate(at)))  # noqa: E731
        for i in np.ndindex(x.shape):
            e = jnp.zeros_like(x).at[i].set(1e-5)
            assert_allclose(forth[i], (moved(e) - moved(-e)) / 2e-5, rtol=1e-6, atol=1e-6)
        assert_allclose(back, forth, rtol=1e-9, atol=1e-9)


# --------------------------------------------------------------------------------------------------------------- derivatives
@pytest.mark.long
def test_derivatives_through_a_frictional_impact():
    """With respect to mass, inertia, size, joint position, friction, restitution, through an impact in space with slip: those of located
    impacts are the finite differences of its own motion, those of Moreau's scheme tend to them.
    """
    rod = Capsule(0.03, 0.4, position=(0.02, 0, 0))
    arm = Body("arm", 0.3, (0.004, 0.005, 0.002), (0, 0, -0.1), Revolute((0.2, 1.0, 0.1), (0.0, 0.02, 0.1)), "rod", (0, 0, 0.25))
    system = bodies.assemble(
        [Body("rod", 0.7, (0.01, 0.0105, 0.001), shapes=rod), arm], Plane(name="floor"), contacts=[Pair("floor", "rod")], mu=0.15, e_N=0.6
    )
    turned = Rotation.from_euler("xyz", (0.5, 0.4, 0.2)).as_quat(scalar_first=True)
    q0 = jnp.asarray([0, 0, 0.35, *turned, 0.3])
    u0 = jnp.asarray([1.5, 0.4, -1.0, 1.0, -2.0, 0.5, 1.0])
    weights = jnp.asarray(np.random.default_rng(0).standard_normal((2, 8)))
    leaves = ("mass", "inertia", "shape_size", "joint_position", "friction", "restitution")
    rng = np.random.default_rng(1)
    directions = {}
    for name in leaves:
        value = getattr(system, name)
        d = rng.standard_normal(value.shape)
        if name == "inertia":
            d = 0.01 * (d + d.transpose(0, 2, 1))
        directions[name] = jnp.asarray(d * (value != 0) if name == "shape_size" else d)

    def loss(eps, direction, scheme, n):
        moved = dataclasses.replace(system, **{k: getattr(system, k) + eps * d for k, d in direction.items()})
        sol = simulate(moved, scheme, q0, u0, n_steps=n, t1=0.25)
        return weights[0] @ sol.q[-1] + weights[1, :7] @ sol.u[-1], (sol.success, jnp.sum(sol.P_N, axis=0), jnp.sum(sol.P_F, axis=0))

    one_at_a_time = {name: {k: d * (k == name) for k, d in directions.items()} for name in leaves}
    located = LocatedImpacts()

    @jax.jit
    def values(eps, direction):
        return loss(eps, direction, located, 100)

    @jax.jit
    def derivative(direction):
        return jax.jvp(lambda eps: loss(eps, direction, located, 100)[0], (0.0,), (1.0,))[1]

    @jax.jit
    def of_moreau(direction):
        return jax.jvp(lambda eps: loss(eps, direction, Moreau(), 4000)[0], (0.0,), (1.0,))[1]

    _, (success, P_N, P_F) = values(0.0, one_at_a_time["mass"])
    assert bool(success)
    struck = P_N > 0
    assert int(struck.sum()) == 1
    # It slips: the percussion is on the edge of the cone.
    assert_allclose(np.linalg.norm(P_F[struck][0]), 0.15 * P_N[struck][0], rtol=1e-6)
    for name, direction in one_at_a_time.items():
        eps = 1e-5
        difference = (values(eps, direction)[0] - values(-eps, direction)[0]) / (2 * eps)
        assert_allclose(derivative(direction), difference, rtol=1e-5, atol=1e-6, err_msg=name)
        assert_allclose(of_moreau(direction), difference, rtol=2e-2, atol=2e-3, err_msg=name)


def bounced(shape, p, scheme, n=12):
    """Height and velocity of a body that falls on a floor and jumps, by p = (height, velocity, restitution); its lowest point is at 0.1."""
    along = bodies.Prismatic((0, 0, 1))
    body = Body("body", 0.7, (0.01, 0.01, 0.01), joints=along, shapes=shape)
    system = bodies.assemble(body, Plane(name="floor"), contacts=[Pair("floor", "body")])
    system = dataclasses.replace(system, restitution=jnp.broadcast_to(p[2], system.restitution.shape))
    sol = simulate(system, scheme, p[:1], p[1:2], n_steps=n, t1=0.3)
    return jnp.stack([sol.q[-1, 0], sol.u[-1, 0]])


def bounced_exactly(p):
    """The same in closed form."""
    h, v, e, g, t = p[0] - 0.1, p[1], p[2], 9.81, 0.3
    hit = (v + jnp.sqrt(v**2 + 2 * g * h)) / g
    after, rest = e * (g * hit - v), t - hit
    return jnp.stack([0.1 + after * rest - 0.5 * g * rest**2, after - g * rest])


def test_a_located_impact_of_a_body_has_a_derivative():
    """Of what `table` knows of hulls some are whole numbers, which have no tangent: it was refused. It is traced here, and run below."""
    run = functools.partial(bounced, Sphere(0.1), scheme=LocatedImpacts(MoreauJean()), n=1)
    p = jnp.array([0.3, -0.5, 0.6])
    assert jax.eval_shape(lambda p: jax.jvp(run, (p,), (p,)), p)[1].shape == (2,)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [Sphere(0.1), Box((0.2, 0.2, 0.2)), Capsule(0.03, 0.14)], ids=lambda shape: shape.kind)
def test_derivatives_of_a_located_impact_of_a_body(shape):
    p = jnp.array([0.3, -0.5, 0.6])
    run = functools.partial(bounced, shape, scheme=LocatedImpacts(MoreauJean()))
    assert_allclose(jax.jit(run)(p), bounced_exactly(p), atol=1e-12)
    assert_allclose(jax.jit(jax.jacfwd(run))(p), jax.jacfwd(bounced_exactly)(p), atol=1e-11)
    assert_allclose(jax.jit(jax.jacrev(run))(p), jax.jacfwd(bounced_exactly)(p), atol=1e-11)


@pytest.mark.slow
def test_second_derivatives_of_a_located_impact_of_a_body():
    p = jnp.array([0.3, -0.5, 0.6])
    run = functools.partial(bounced, Sphere(0.1), scheme=LocatedImpacts(MoreauJean()))
    assert_allclose(jax.jit(jax.hessian(run))(p), jax.hessian(bounced_exactly)(p), atol=1e-9)


# -------------------------------------------------------------------------------------------------------------- tops and stacks
@pytest.mark.long
def test_jellett_integral_of_the_tippe_top():
    """Whatever the friction at the ball: L . r is constant, with r from the centre of mass to the point of contact (Jellett 1872); energy
    falls by the work of friction alone. An error of the scheme shows as a drift of it, of second order here.
    """
    top = tippe_top()
    q0, u0 = top.initial_state(tilt=0.4)

    @jax.jit
    def jellett(q, u):
        R = top.pose(0.0, q).rotation[0]
        L = R @ (jnp.diagonal(top.inertia[0]) * u[3:])
        return L @ (jnp.array([0.0, 0.0, 1.5e-2]) - 3e-3 * R[:, 2])

    sol = run(top, SymmetricMoreau(), q0, u0, 4000, 5e-5)
    u = jaxnsd.node_velocities(top, SymmetricMoreau(), sol)
    values = jax.vmap(jellett)(sol.q, u)
    assert_allclose(values, values[0], rtol=1e-3)
    energy = jax.vmap(top.total_energy)(sol.t, sol.q, u)
    assert float(energy[-1]) < float(energy[0])
    assert float(jnp.max(jnp.diff(energy))) < 1e-4 * float(energy[0])
    # The angular momentum itself is not constant: friction has turned it.
    assert float(jnp.abs(jax.vmap(top.inclination)(sol.q) - 0.4).max()) > 0.05


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
@pytest.mark.filterwarnings("ignore:simulating in float32")
@pytest.mark.parametrize(
    "scheme",
    [Moreau(), Lobatto(2), *(pytest.param(s, marks=pytest.mark.slow) for s in (MoreauJean(), Lobatto(3), LocatedImpacts(Lobatto())))],
    ids=str,
)
def test_a_turntable_whose_bearing_carries_it_is_not_braked(scheme, dtype):
    """It lies on a table that is square to its axis: nothing parts the two, and their normal directions are round-off."""
    system, q0 = turntable(dtype)
    assert 0 < np.abs(system.W_N(0.0, q0)).max() < 1e-7
    sol = simulate(system, scheme, q0, jnp.ones(1, dtype), n_steps=50, dt=2e-3).raise_if_failed()
    assert_allclose(sol.u, 1.0, rtol=1e-5 if dtype == jnp.float32 else 1e-12)
    assert np.all(sol.P_N == 0)


def turntable(dtype=jnp.float64, depth=0.0, bodies_on_it=()):
    """``(system, q0)`` of a table on a bearing whose axis is tilted, a box that lies on, or ``depth`` in, a plane square to the axis."""
    tilted = np.array([np.cos(0.2), 0.6 * np.sin(0.2), -0.8 * np.sin(0.2), 0.0])
    axis = Rotation.from_quat(tilted[[1, 2, 3, 0]]).as_matrix()[:, 2]
    place = {"orientation": tilted, "position": (0.05 - depth) * axis}
    table = Body("table", 1.0, (1e-2,) * 3, joints=Revolute((0, 0, 1)), shapes=Box((0.2, 0.2, 0.1)), **place)
    system = bodies.assemble([table, *bodies_on_it], [bodies.Plane(orientation=tilted)], mu=0.5)
    return jax.tree.map(lambda x: x.astype(dtype), (system, system.initial_state()[0]))


@pytest.mark.parametrize("scheme", [Moreau(), Lobatto(2), pytest.param(Lobatto(3), marks=pytest.mark.slow)], ids=str)
def test_a_start_is_not_refused_for_what_nothing_parts(scheme):
    """A table 1 mm deep in the plane on which its bearing turns it moves as without the plane, and so do its derivatives."""
    system, q0 = turntable(depth=1e-3)
    assert_allclose(system.gap(0.0, q0)[::2], -1e-3, rtol=1e-9)
    moved = system.initial_state(project=True)
    assert_allclose(moved[0], q0, atol=0)

    def end(speed):
        sol = simulate(system, scheme, q0, speed[None], n_steps=10, dt=2e-3)
        return sol.q[-1, 0], (sol, sol.u[-1, 0])

    slope, (sol, u) = jax.grad(end, has_aux=True)(jnp.array(1.0))
    sol.raise_if_failed()
    assert_allclose((u, slope), (1.0, 0.02), rtol=1e-12)


def test_beside_what_nothing_parts_the_others_are_moved_out():
    """A ball 1 mm deep in the plane beside the turntable is lifted by the projection, and refused without it."""
    tilt = Rotation.from_quat(np.array([0.6, -0.8, 0.0, 0.0]) * np.sin(0.2) + np.array([0, 0, 0, np.cos(0.2)])).as_matrix()
    at = tilt @ np.array([0.5, 0.0, 0.049])
    ball = Body("ball", 1.0, (1e-3,) * 3, joints=bodies.Prismatic(tuple(tilt[:, 2])), shapes=Sphere(0.05), position=tuple(at))
    system, q0 = turntable(depth=1e-3, bodies_on_it=[ball])
    with pytest.raises(ValueError, match=r"ball.*penetration deeper"):
        simulate(system, Moreau(), q0, jnp.zeros(2), n_steps=1, dt=1e-3)
    with pytest.warns(UserWarning, match="has moved"):
        q, u = system.initial_state(project=True)
    assert_allclose(q - q0, [0.0, 1e-3], atol=1e-12)
    simulate(system, Lobatto(2), q, u, n_steps=5, dt=1e-3).raise_if_failed()


@pytest.mark.parametrize("dtype", [jnp.float64, pytest.param(jnp.float32, marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore:simulating in float32")
@pytest.mark.parametrize(
    "scheme", [Lobatto(2), *(pytest.param(scheme, marks=pytest.mark.slow) for scheme in (Moreau(), Lobatto(3)))], ids=str
)
@pytest.mark.parametrize("slope", [0.0, 0.3])
def test_what_a_guide_lays_down_is_held_by_all_contacts_together(slope, scheme, dtype):
    """A ball, and a box, on a guide through a tilted plane, square to it and not: percussions along the guide carry the weight.

    Along a guide that is square to the plane the directions of friction are round-off; one corner of the box would be enough to carry it.
    """
    tilted = np.array([np.cos(0.2), 0.6 * np.sin(0.2), -0.8 * np.sin(0.2), 0.0])
    frame = Rotation.from_quat(tilted[[1, 2, 3, 0]]).as_matrix()
    along = np.array([np.sin(slope) * 0.8, np.sin(slope) * 0.6, np.cos(slope)])
    for shape in (Sphere(0.05), Box((0.1, 0.1, 0.1))):
        place = {"orientation": tilted, "position": tuple(frame @ [0.5, 0.0, 0.05])}
        body = Body("body", 2.0, (1e-3,) * 3, joints=bodies.Prismatic(tuple(along)), shapes=shape, **place)
        system = bodies.assemble([body], [Plane(orientation=tilted)], mu=0.5)
        system, q0 = jax.tree.map(lambda x: x.astype(dtype), (system, system.initial_state()[0]))
        sol = simulate(system, scheme, q0, jnp.zeros(1, dtype), n_steps=20, dt=1e-3).raise_if_failed()
        weight, small = 2.0 * G * (frame @ along)[2] * 1e-3, 1e-4 if dtype == jnp.float32 else 1e-9
        carried = sol.P_N @ system.W_N(0.0, q0).T + jnp.einsum("kid,uid->ku", sol.P_F, system.W_F(0.0, q0))
        assert_allclose(np.sum(carried), 20 * weight, rtol=small)
        assert_allclose(sol.q, 0.0, atol=small)


@jaxnsd.system
class OnALever(System):
    """A mass that a stop holds by a lever, which makes of its way the gap; the stop does not let it slide aside."""

    lever: float
    mu: float = 0.1

    def mass_matrix(self, t, q):
        return jnp.eye(2)

    def force(self, t, q, u):
        return jnp.array([-1.0, 0.0])

    def gap(self, t, q):
        return self.lever * q[:1]

    def tangential_velocity(self, t, q, u):
        return u[1:, None]


@pytest.mark.parametrize("lever", [1e-2, 1e-5])
def test_a_stop_holds_by_however_short_a_lever(lever):
    """The percussion is the longer, P = F dt / lever: that of a direction which is small, but no round-off."""
    sol = run(OnALever(lever), Moreau(), np.zeros(2), np.zeros(2), 5, 1e-3)
    assert_allclose(np.sum(sol.P_N), 5e-3 / lever, rtol=1e-9)
    assert_allclose(sol.u[-1], 0.0, atol=1e-12)


@pytest.mark.slow
def test_stack_of_boxes_stays():
    """Three boxes on each other do not move within 1e5 steps.

    Started where they touch to round-off, some corners open in the first steps: that moves them by some g dt^2, and then they stay.
    """
    parts = [Body(name, 1.0, shapes=Box((0.2, 0.2, 0.1)), position=(0, 0, 0.05 + 0.1 * k)) for k, name in enumerate("abc")]
    system = bodies.assemble(parts, Plane(name="floor"), mu=0.4)
    q0, u0 = system.initial_state()
    dt, heights = 1e-3, jnp.array([2, 9, 16])
    inside = q0.at[heights].add(-1e-9 * jnp.arange(1.0, 4.0))
    for start, settled, moved in ((inside, 0, 1e-12), (q0, 1, 5 * 9.81 * dt**2)):
        sol = simulate(system, Moreau(), start, u0, n_steps=100_000, dt=dt, save_every=1000).raise_if_failed()
        assert_allclose(sol.q, np.broadcast_to(start, sol.q.shape), rtol=0, atol=moved)
        assert_allclose(sol.q[settled:], np.broadcast_to(sol.q[settled], sol.q[settled:].shape), rtol=0, atol=1e-11)


@pytest.mark.long
def test_dominoes_fall_one_after_the_other():
    """All five end up leaning or lying, in their order."""
    pytest.importorskip("mujoco")
    system = bodies.from_mjcf(SCENES["dominoes"])
    q0, u0 = system.initial_state()
    sol = simulate(system, Moreau(), q0, u0, t1=2.0, dt=5e-4).raise_if_failed()
    angles = np.asarray(sol.q).reshape(len(sol.t), 5, 3)[:, :, 2]
    fallen = [int(np.argmax(angles[:, k] > 0.5)) for k in range(1, 5)]
    assert all(fallen) and fallen == sorted(fallen)


# ----------------------------------------------------------------------------------------------------------------- long runs
@pytest.mark.long
@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_quaternions_keep_their_length(scheme):
    """|p| = 1 over 1e5 steps."""
    system = free_body(MOMENTS)
    u0 = np.array([0.2, 0.0, -0.1, 2.0, 3.0, -1.0])
    sol = simulate(system, scheme, jnp.eye(7)[3], jnp.asarray(u0), n_steps=100_000, dt=1e-3, save_every=1000).raise_if_failed()
    assert_allclose(np.linalg.norm(sol.q[:, 3:], axis=1), 1.0, atol=1e-9)


@pytest.mark.slow
def test_a_law_of_its_own_for_bodies():
    """An ellipse with equal half axes is the disc: a box that falls, slides and rests on four of its eight corners moves alike."""
    box = Body("box", 0.8, shapes=Box((0.2, 0.14, 0.1)), position=(0, 0, 0.12))
    paths = []
    for law, mu in ((jaxnsd.NewtonImpact(), 0.3), (jaxnsd.NewtonImpact(friction=jaxnsd.sets.Ellipse(0.3, 0.3, 0.4)), 0.0)):
        system = bodies.assemble([box], Plane(name="floor"), mu=mu, e_N=0.2, law=law)
        q0, u0 = system.initial_state()
        u0 = u0.at[:2].set(jnp.array([0.8, 0.3]))
        sol = simulate(system, Moreau(), q0, u0, n_steps=600, dt=1e-3).raise_if_failed()
        assert np.count_nonzero(sol.P_N[-1] > 0) >= 3
        paths.append(np.asarray(sol.q))
    assert_allclose(*paths, atol=1e-9)


@pytest.mark.slow
def test_derivative_through_an_impact_of_a_loop_is_that_of_the_joint():
    """A pendulum that hits a wall, on a hinge and held by a constraint: the angle at the end by the speed at the start."""
    ball = {"mass": 1.0, "inertia": (0.001, 0.001, 0.001), "shapes": Sphere(0.05), "position": (0.3, 0.0, 0.0)}
    wall = Plane(position=(-0.2, 0.0, 0.0), orientation=(np.sqrt(0.5), 0.0, np.sqrt(0.5), 0.0))
    pin, y = (-0.3, 0.0, 0.4), (0.0, 1.0, 0.0)
    options = {"world": wall, "plane": "xz", "e_N": 0.6, "mu": 1.0}
    hinge = bodies.assemble(Body("ball", joints=Revolute(y, position=pin), **ball), **options)
    slides = [bodies.Prismatic((1.0, 0.0, 0.0)), bodies.Prismatic((0.0, 0.0, 1.0)), Revolute(y)]
    loop = bodies.assemble(Body("ball", joints=slides, **ball), loops=bodies.Connect("ball", "world", pin), **options)
    found = []
    for system, rate in ((hinge, jnp.array([1.0])), (loop, jnp.array([-0.4, -0.3, 1.0]))):
        q0, _ = system.initial_state()

        def angle(speed, system=system, q0=q0, rate=rate):
            sol = simulate(system, Moreau(), q0, speed * rate, 0.9, 1e-3)
            return sol.q[-1, -1], sol.count(jaxnsd.Event.IMPACT)

        _, slope, impacts = jax.jvp(angle, (0.3,), (1.0,), has_aux=True)
        assert impacts == 1
        found.append(slope)
    # Both are of first order in the step.
    assert_allclose(found[1], found[0], rtol=0.04)
