"""Dry friction as a set-valued law: closed forms, a contact of constant normal force, and the law itself, checked step by step by NumPy."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scheme_table import MOREAU_TYPE, POSITION_LEVEL, PREDICTING, over

import jaxnsd
from jaxnsd import (
    InteriorPoint,
    Moreau,
    MoreauJean,
    Newmark,
    NewtonImpact,
    PoissonImpact,
    SemismoothNewton,
    SymmetricMoreau,
    bodies,
    energy,
    sets,
    simulate,
)

ALL = [*MOREAU_TYPE, *PREDICTING]
FAST = [Moreau(), MoreauJean(), Newmark()]


@jaxnsd.system
class Block(jaxnsd.System):
    """A block in a guide with dry friction."""

    mass: Any = 2.0
    dry_friction: Any = 3.0

    def kinetic_energy(self, t, q, u):
        return 0.5 * self.mass * u @ u


@jaxnsd.system
class Oscillator(Block):
    """The block on a spring."""

    k: Any = 50.0

    def potential_energy(self, t, q):
        return 0.5 * self.k * q @ q


# ----------------------------------------------------------------------------------------------------------------- closed forms
@over(ALL, FAST, ALL)
def test_a_mass_on_a_spring_stops_where_it_must(scheme):
    """Each half cycle takes 2 tau / k of the amplitude, until |k x| <= tau: x = 1, -0.88, 0.76, -0.64, 0.52. There it stays, to the
    bit; the alpha-schemes add up their accelerations, and hold it to round-off.
    """
    system = Oscillator(dry_friction=6.0 if scheme in FAST else 3.0)
    a = float(system.dry_friction / system.k)
    sol = simulate(system, scheme, jnp.ones(1), jnp.zeros(1), 7.0, 2e-3).raise_if_failed()
    q, u = np.asarray(sol.q[:, 0]), np.asarray(sol.u[:, 0])
    amplitudes = np.abs(1 - 2 * a * np.arange(1, round(1 / (2 * a)) + 1))
    half = np.pi / np.sqrt(system.k / system.mass)
    turning = np.abs(q[np.round(half * np.arange(1, 4) / 2e-3).astype(int)])
    assert_allclose(turning, amplitudes[:3], atol=0.01)
    assert np.abs(system.k * q[-1]) <= system.dry_friction * (1 + 1e-12)
    assert_allclose(u[-500:], 0, atol=0 if scheme in ALL[:6] else 1e-13)
    assert_allclose(q[-500:], q[-1], rtol=0, atol=0 if scheme in ALL[:6] else 1e-13)
    # What holds it is the force of the spring.
    assert_allclose(sol.P_D[-100:, 0], 2e-3 * system.k * q[-1], rtol=1e-6)


@pytest.mark.parametrize("scheme", [Moreau(), MoreauJean()], ids=["Moreau", "MoreauJean"])
def test_stopping_distance_and_its_derivatives(scheme):
    """s = m v^2 / (2 tau), t = m v / tau; while it slides x = v t - tau t^2 / (2 m), whose derivative is there at tau = 0 as well."""

    def distance(tau, v, mass):
        sol = simulate(Block(mass, tau), scheme, jnp.zeros(1), v[None], 1.0, 1e-3)
        return sol.q[-1, 0], sol

    run = jax.jit(jax.value_and_grad(distance, (0, 1, 2), has_aux=True))
    (value, sol), gradient = run(jnp.asarray(3.0), jnp.asarray(1.0), jnp.asarray(2.0))
    assert_allclose(value, 1 / 3, atol=1e-3)
    assert_allclose(gradient, (-1 / 9, 2 / 3, 1 / 6), atol=1e-3)
    assert_allclose(sol.t[np.argmax(np.asarray(sol.u[:, 0]) == 0)], 2 / 3, atol=2e-3)
    _, gradient = run(jnp.zeros(()), jnp.asarray(1.0), jnp.asarray(2.0))
    assert_allclose(gradient, (-1 / 4, 1.0, 0.0), atol=1e-3)


def through_reversals(tau, x0, k, t1):
    """x(t1) of the oscillator after two reversals: every half cycle is a cosine about the centre +a or -a."""
    a = tau / k
    return a + (x0 - 5 * a) * jnp.cos(jnp.sqrt(k / 2.0) * t1)


def test_the_derivative_through_reversals_is_that_of_the_exact_motion():
    """By the stiffness; the steps' own derivative is off by a fifth, for ever."""
    t1, n = 2.4 * np.pi / 5.0, 1201

    def error(sensitivity):
        def end(k):
            sol = simulate(Oscillator(2.0, 3.0, k), MoreauJean(), jnp.ones(1), jnp.zeros(1), t1, n_steps=n, sensitivity=sensitivity)
            return sol.q[-1, 0]

        exact = jax.grad(through_reversals, 2)(3.0, 1.0, 50.0, t1)
        return abs(jax.jvp(end, (50.0,), (1.0,))[1] / exact - 1)

    assert error("saltation") < 0.02 and error("discrete") > 0.15


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [MoreauJean(), SymmetricMoreau()], ids=["MoreauJean", "Symmetric"])
def test_derivatives_through_reversals_converge(scheme):
    """The steps' own derivative by k is off by a fifth for ever; with the shift of the reversals in time it is right to first order."""
    t1, point = 2.4 * np.pi / 5.0, (jnp.asarray(3.0), jnp.asarray(1.0), jnp.asarray(50.0))
    exact = np.array(jax.grad(through_reversals, (0, 1, 2))(*point, t1))

    def errors(n, sensitivity="saltation"):
        def end(tau, x0, k):
            sol = simulate(Oscillator(2.0, tau, k), scheme, x0[None], jnp.zeros(1), t1, n_steps=n, sensitivity=sensitivity)
            return sol.q[-1, 0]

        return np.abs(np.array(jax.jacfwd(end, (0, 1, 2))(*point)) - exact) / np.abs(exact)

    # The first node after a reversal lies anywhere in a step: it is a bound that falls with dt.
    assert np.all(errors(151) < 40 * t1 / 151) and np.all(errors(2401) < 40 * t1 / 2401)
    assert errors(2401, "discrete")[2] > 5 * 40 * t1 / 2401


def test_both_modes_agree_through_reversals():
    """Reverse mode goes through the same rule."""

    def end(tau):
        return simulate(Oscillator(dry_friction=tau), Moreau(), jnp.ones(1), jnp.zeros(1), 1.5, 5e-3).q[-1, 0]

    assert_allclose(jax.grad(end)(3.0), jax.jacfwd(end)(3.0), rtol=1e-12)


@pytest.mark.slow
def test_second_derivatives_are_right_or_not_a_number():
    """While the block slides x = v t - tau t^2 / (2 m); through the end of slip, which the steps hold on a node, there is none."""

    def distance(x, t1):
        return simulate(Block(x[0], x[1]), MoreauJean(), jnp.zeros(1), x[2:], t1, 1e-2).q[-1, 0]

    x = jnp.asarray([2.0, 3.0, 1.0])
    slides, stops = (jax.hessian(distance)(x, t1) for t1 in (0.3, 1.0))
    t, m, tau = 0.3, 2.0, 3.0
    assert_allclose(slides[:2, :2], t**2 * np.array([[-tau / m**3, 0.5 / m**2], [0.5 / m**2, 0.0]]), atol=1e-12)
    assert np.all(np.isnan(stops))


@jaxnsd.system
class Pendulum(jaxnsd.System):
    """A pendulum whose bearing has dry friction."""

    dry_friction: Any = 2.0

    def kinetic_energy(self, t, q, u):
        return 0.5 * u @ u

    def potential_energy(self, t, q):
        return -9.81 * jnp.cos(q[0])


def test_a_pendulum_sticks_at_an_angle():
    """It stays where 9.81 |sin phi| <= tau, and nowhere else."""

    def moves(phi):
        sol = simulate(Pendulum(), Moreau(), phi[None], jnp.zeros(1), 0.2, 1e-2)
        return jnp.max(jnp.abs(sol.q - phi)), jnp.max(jnp.abs(sol.u))

    limit = np.arcsin(2.0 / 9.81)
    moved, speed = jax.vmap(moves)(limit * jnp.asarray([-1.01, -0.99, 0.0, 0.5, 0.99, 1.01]))
    assert_array_equal(np.asarray(speed == 0), [False, True, True, True, True, False])
    assert_array_equal(np.asarray(moved == 0), [False, True, True, True, True, False])


@jaxnsd.system
class Falling(jaxnsd.System):
    """A ball that falls along a guide with dry friction onto a floor."""

    dry_friction: Any = 2.0
    e_N: Any = 0.5
    law: Any = NewtonImpact()

    def kinetic_energy(self, t, q, u):
        return 0.5 * u @ u

    def potential_energy(self, t, q):
        return 9.81 * q[0]

    def gap(self, t, q):
        return q


def bounced(tau, h, e, t1):
    """Height at t1, on the way up after the first impact: it falls with g - tau and rises against g + tau."""
    first = jnp.sqrt(2 * h / (9.81 - tau))
    return e * (9.81 - tau) * first * (t1 - first) - 0.5 * (9.81 + tau) * (t1 - first) ** 2


@pytest.mark.parametrize(
    ("scheme", "law"),
    [
        (Moreau(), NewtonImpact()),
        (Moreau(), PoissonImpact()),
        pytest.param(jaxnsd.LocatedImpacts(MoreauJean()), NewtonImpact(), marks=pytest.mark.slow),
    ],
    ids=["Moreau", "Poisson", "LocatedImpacts"],
)
def test_an_impact_in_a_guide(scheme, law):
    """Value and derivatives through the impact, whose flows before and after differ in the friction."""
    point = jnp.asarray(2.0), jnp.asarray(1.0), jnp.asarray(0.5)

    def height(tau, h, e):
        return simulate(Falling(tau, e, law), scheme, h[None], jnp.zeros(1), 0.64, 1e-3).q[-1, 0]

    exact = jax.value_and_grad(bounced, (0, 1, 2))(*point, 0.64)
    value = jax.value_and_grad(height, (0, 1, 2))(*point)
    # Without what the impact's shift in time adds the derivative by h is off by more than 1.
    tolerance = 1e-8 if scheme.name == "LocatedImpacts" else 5e-3
    assert_allclose(np.array([value[0], *value[1]]), np.array([exact[0], *exact[1]]), atol=tolerance)


# ------------------------------------------------------------------------------------------- a contact of constant normal force
@jaxnsd.system
class Slider(jaxnsd.System):
    """A slider on a spring, pressed onto a floor by its weight: mu m g stands for tau."""

    mu: Any = 0.25
    dry_friction: Any = None
    mass: Any = 2.0
    k: Any = 30.0

    def kinetic_energy(self, t, q, u):
        return 0.5 * self.mass * u @ u

    def potential_energy(self, t, q):
        return self.mass * 9.81 * q[1] + 0.5 * self.k * q[0] ** 2

    def gap(self, t, q):
        return q[1:]

    def tangential_velocity(self, t, q, u):
        return u[None, :1]

    def dry_velocity(self, t, q, u):
        return u[:1]


def test_it_is_a_contact_of_constant_normal_force():
    """Motion and percussions are those of the contact, to round-off."""
    systems = Slider(), Slider(mu=0.0, dry_friction=0.25 * 2.0 * 9.81)
    by_contact, dry = (simulate(system, Moreau(), jnp.asarray([1.0, 0.0]), jnp.zeros(2), 2.0, 1e-2) for system in systems)
    assert_allclose(dry.q[:, 0], by_contact.q[:, 0], atol=1e-12)
    assert_allclose(dry.P_D[:, 0], by_contact.P_F[:, 0, 0], atol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [Moreau(), MoreauJean()], ids=str)
def test_derivatives_are_those_of_a_contact_of_constant_normal_force(scheme):
    """Motion, percussions and derivatives are those of the contact, to round-off."""

    def run(system):
        sol = simulate(system, scheme, jnp.asarray([1.0, 0.0]), jnp.zeros(2), 2.0, 1e-2)
        return sol.q[-1, 0], sol

    tau = 0.25 * 2.0 * 9.81
    (x, by_contact), g_contact = jax.value_and_grad(run, has_aux=True)(Slider())
    (y, dry), g_dry = jax.value_and_grad(run, has_aux=True)(Slider(mu=0.0, dry_friction=tau))
    assert_allclose(dry.q[:, 0], by_contact.q[:, 0], atol=1e-12)
    assert_allclose(dry.P_D[:, 0], by_contact.P_F[:, 0, 0], atol=1e-13)
    assert_allclose((g_dry.dry_friction * 2.0 * 9.81, g_dry.k), (g_contact.mu, g_contact.k), rtol=1e-9)
    assert_allclose(x, y, atol=1e-12)


# ------------------------------------------------------------------------------------------------------------- the law, by NumPy
A = np.array([[1.0, 0.2, -0.1, 0.0, 0.3], [0.0, 0.7, 0.4, -0.2, 0.0], [0.3, 0.0, 0.0, 1.0, -0.5]])
B = np.linalg.qr(np.random.default_rng(3).standard_normal((5, 5)))[0]


@jaxnsd.system
class Drawn(jaxnsd.System):
    """Two bodies' worth of velocities without meaning: contacts, a constraint, dry friction on combinations of velocities."""

    dry_friction: Any = (1.0, 1.5, 0.8)
    directions: int = jaxnsd.static(default=2)
    bound: bool = jaxnsd.static(default=False)
    mu: float = 0.4
    e_N: float = 0.3
    law: Any = NewtonImpact()

    def mass_matrix(self, t, q):
        return jnp.asarray(np.diag([1.0, 2.0, 0.5, 1.5, 3.0]) + 0.1)

    def force(self, t, q, u):
        return jnp.asarray([2.0, -3.0, 1.0, -2.0, 1.0]) * jnp.cos(3 * t) - 4 * q - jnp.asarray(B[0] + B[1])

    def gap(self, t, q):
        return jnp.stack([q @ B[0] + 0.02, q @ B[1] + 0.04])

    def tangential_velocity(self, t, q, u):
        return jnp.stack([jnp.asarray(B[2:4]) @ u, jnp.asarray(B[3:5]) @ u])[:, : self.directions]

    def dry_velocity(self, t, q, u):
        return jnp.asarray(A) @ u + jnp.asarray([0.0, 0.1, 0.0]) * jnp.sin(t)

    def velocity_constraint(self, t, q, u):
        return (jnp.asarray(B[4]) @ u)[None] if self.bound else jnp.zeros((0,))


def obeys(system, sol, u0, dt):
    """Largest violations of the balance of `Moreau`, of the laws of dry friction, and of contact, step by step."""
    t, q, u = (np.asarray(x)[1:] for x in (sol.t, sol.q, sol.u))
    before = np.asarray(sol.u)[:-1]
    tau = np.broadcast_to(np.asarray(system.dry_friction), (3,)) * dt
    worst = np.zeros(3)
    for k in range(len(t)):
        at, P_D = (t[k], q[k]), np.asarray(sol.P_D[k])
        W_F = np.asarray(system.W_F(*at, u[k]))
        impulse = A.T @ P_D + np.asarray(system.W_N(*at, u[k])) @ sol.P_N[k] + np.einsum("und,nd->u", W_F, sol.P_F[k])
        impulse += np.asarray(system.W_gamma(*at, u[k])) @ sol.P_gamma[k]
        balance = system.mass_matrix(*at) @ (u[k] - before[k]) - dt * np.asarray(system.force(*at, before[k])) - impulse
        gamma = np.asarray(system.dry_velocity(*at, u[k]))
        dry = P_D - np.clip(P_D - 0.3 * gamma, -tau, tau)
        xi_N = np.asarray(system.gap_velocity(*at, u[k]) + system.e_N * system.gap_velocity(*at, before[k]))
        closed = np.asarray(system.gap(*at)) <= 0
        normal = np.where(closed, np.minimum(sol.P_N[k], xi_N), np.abs(sol.P_N[k]))
        worst = np.maximum(worst, [np.abs(x).max() for x in (balance, dry, normal)])
    return worst


@pytest.mark.parametrize(
    ("directions", "bound", "solver"),
    [
        (0, False, SemismoothNewton()),
        (1, True, SemismoothNewton()),
        (2, False, SemismoothNewton()),
        pytest.param(2, True, InteriorPoint(), marks=pytest.mark.slow),
        # Of Newton's method two steps: what takes over is asked for.
        pytest.param(1, False, SemismoothNewton(max_iterations=2), marks=pytest.mark.slow),
        pytest.param(2, False, SemismoothNewton(max_iterations=2), marks=pytest.mark.slow),
    ],
)
def test_contacts_and_dry_friction_are_solved_together(directions, bound, solver):
    """Balance, contact law and law of dry friction hold in every step, with contacts of any kind and a constraint."""
    system = Drawn(directions=directions, bound=bound, mu=0.4 * (directions > 0))
    u0 = jnp.asarray([-1.0, 0.5, 0.2, -0.3, 0.0]) @ (jnp.eye(5) - bound * jnp.outer(B[4], B[4]))
    sol = simulate(system, Moreau(), jnp.zeros(5), u0, 1.5, 1e-2, solver=solver).raise_if_failed()
    assert_array_equal(obeys(system, sol, u0, 1e-2) < 1e-10, True)
    tau = 1e-2 * np.array(system.dry_friction)
    sticks = np.abs(np.asarray(sol.P_D)) < 0.999 * tau
    assert 50 < sticks.sum() < 400 and np.any(np.asarray(sol.P_N) > 0)


@pytest.mark.slow
@pytest.mark.parametrize("law", [PoissonImpact(), NewtonImpact(friction=(sets.Disc(0.4), sets.Segment(0.02)))], ids=["Poisson", "drilling"])
def test_other_laws_of_contact(law):
    """Two phases of the impact have one friction between them, and contacts of several sets leave the rows of dry friction as they are."""

    @jaxnsd.system
    class Other(Drawn):
        def tangential_velocity(self, t, q, u):
            W = jnp.asarray(B)
            columns = jnp.stack([W[2:5] @ u, W[jnp.asarray([3, 4, 2])] @ u])
            return columns[:, :2] if isinstance(law, PoissonImpact) else columns

    system = Other(law=law, mu=0.4 * isinstance(law, PoissonImpact), e_N=0.0)
    u0 = jnp.asarray([-1.0, 0.5, 0.2, -0.3, 0.0])
    sol = simulate(system, Moreau(), jnp.zeros(5), u0, 0.5, 1e-2).raise_if_failed()
    # Poisson's percussions of compression push while the contact opens.
    worst = obeys(system, sol, u0, 1e-2)[: 2 if law.expands else 3]
    assert_array_equal(worst < 1e-10, True)


@pytest.mark.slow
def test_derivatives_of_a_step_with_contacts():
    """Of the discrete map, between its kinks, against differences: by the bounds, and by all else that enters."""

    def end(x):
        system = Drawn(dry_friction=x[:3], mu=x[3])
        sol = simulate(system, Moreau(), x[4:], jnp.asarray(0.3 * B[3]), 0.03, 1e-2, sensitivity="discrete")
        return sol.u[-1], sol

    x = jnp.asarray([1.0, 1.5, 0.8, 0.4, *(-0.021 * B[0] - 0.041 * B[1])])
    J, sol = jax.jacfwd(end, has_aux=True)(x)
    # A contact slides, one row of dry friction sticks, two slide.
    assert sol.P_N[-1, 0] > 0 and np.sum(np.abs(sol.P_D[-1]) < 0.99e-2 * x[:3]) == 1
    assert np.sum(np.abs(J).max(axis=0) > 1e-3) >= 8
    differences = (jax.vmap(lambda h: (end(x + h)[0] - end(x - h)[0]) / 2e-6)(1e-6 * jnp.eye(9))).T
    assert_allclose(J, differences, atol=1e-6)


# -------------------------------------------------------------------------------------------------------------------- energies
def is_lost(balance, sol, tau, dt):
    """Whether dry friction takes energy in every step.

    In one in which slip ends or turns it opposes the velocity after, and works on the mean of both: it may give back tau dt |du| / 2.
    """
    u, work = np.asarray(sol.u[:, 0]), np.asarray(balance.dry_friction[:, 0])
    turns = (u[1:] * u[:-1] <= 0) & (u[:-1] != 0)
    assert 0 < turns.sum() < 10
    return np.all(work <= np.where(turns, 0.5 * tau * dt * np.abs(np.diff(u)), 1e-13))


@over(ALL, FAST, ALL)
def test_the_energy_that_is_lost_is_the_work_of_dry_friction(scheme):
    """tau times the way; no step gains."""
    sol = simulate(Oscillator(), scheme, jnp.ones(1), jnp.zeros(1), 3.0, 5e-3)
    balance = energy.balance(Oscillator(), scheme, sol)
    assert balance.dry_friction.shape == (600, 1) and is_lost(balance, sol, 3.0, 5e-3)
    way = jnp.sum(jnp.abs(jnp.diff(sol.q[:, 0])))
    assert_allclose(jnp.sum(balance.dry_friction), -3.0 * way, rtol=0.01)
    # Moreau's scheme loses by itself what is of first order, the variant with theta = 0.6 too.
    assert_allclose(balance.total[0] - balance.total[-1], 3.0 * way, rtol=0.1 if scheme in (ALL[0], ALL[4]) else 0.01)


SLOW_LINEAR = [pytest.param(scheme, marks=pytest.mark.slow) for scheme in (Newmark(), jaxnsd.KrenkHogsberg())]


@pytest.mark.parametrize("scheme", [MoreauJean(), *SLOW_LINEAR], ids=str)
def test_the_balance_of_a_linear_system_is_an_identity(scheme):
    """A14 (35), (88) hold with the work of dry friction, to round-off; and its factors make the motion of the nonlinear system."""
    system = jaxnsd.LinearSystem(2.0 * np.eye(1), 50.0 * np.eye(1), dry_friction=3.0)
    sol = simulate(system, scheme, jnp.ones(1), jnp.zeros(1), 3.0, 1e-2)
    balance = energy.balance(system, scheme, sol)
    assert balance.theorem and is_lost(balance, sol, 3.0, 1e-2)
    assert np.abs(balance.residual).max() < 1e-13 * balance.scale
    if scheme.name != "KrenkHogsberg":  # which takes linear systems only
        assert_allclose(sol.q, simulate(Oscillator(), scheme, jnp.ones(1), jnp.zeros(1), 3.0, 1e-2).q, atol=1e-12)


# --------------------------------------------------------------------------------------------------- units, precision, batches
def test_units_do_not_matter():
    """In micrometres, milligrams and milliseconds the motion is the same: no size of a number is taken for that of a force."""

    def run(length, mass, time):
        force = mass * length / time**2
        system = Oscillator(2.0 * mass, 3.0 * force, 50.0 * force / length)
        sol = simulate(system, Moreau(), length * jnp.ones(1), jnp.zeros(1), 3.0 * time, 1e-2 * time).raise_if_failed()
        return np.asarray(sol.q[:, 0]) / length

    assert_allclose(run(1e-6, 1e-6, 1e-3), run(1.0, 1.0, 1.0), atol=1e-11)
    assert_allclose(run(1e3, 1e6, 1e2), run(1.0, 1.0, 1.0), atol=1e-11)


@pytest.mark.filterwarnings("ignore:simulating in float32")
def test_float32_stops_and_stays():
    """In single precision too it rests to the bit."""
    system = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), Oscillator(dry_friction=6.0))
    sol = simulate(system, Moreau(), jnp.ones(1, jnp.float32), jnp.zeros(1, jnp.float32), 6.0, 1e-2).raise_if_failed()
    assert sol.q.dtype == sol.P_D.dtype == jnp.float32
    assert abs(50 * sol.q[-1, 0]) <= 6.0 * (1 + 1e-5)
    assert_array_equal(sol.u[-100:], 0)


def test_a_batch_is_its_members():
    """Over bounds, zero among them, and starts."""

    def run(tau, x):
        return simulate(Oscillator(dry_friction=tau), MoreauJean(), x[None], jnp.zeros(1), 1.0, 1e-2).q

    tau, x = jnp.asarray([0.0, 1.0, 5.0, 60.0]), jnp.asarray([1.0, -1.0, 0.5, 1.0])
    batch = jax.vmap(run)(tau, x)
    for k in range(4):
        assert_allclose(batch[k], run(tau[k], x[k]), atol=1e-13)
    assert_array_equal(batch[3], 1.0)


# ---------------------------------------------------------------------------------------------------------------------- refusals
@pytest.mark.parametrize("scheme", [POSITION_LEVEL[1], jaxnsd.LocatedImpacts(POSITION_LEVEL[0])], ids=["Lobatto", "Located"])
def test_schemes_without_the_law_refuse_it(scheme):
    """Lobatto has no stages for it, and says what has."""
    with pytest.raises(ValueError, match=r"no law of dry friction at its stages.*use MoreauJean\(\) or Moreau\(\)"):
        simulate(Block(), scheme, jnp.zeros(1), jnp.ones(1), 0.1, 1e-2)


@pytest.mark.parametrize(
    ("value", "match"),
    [
        (-1.0, "dry_friction must be finite and not negative, got .*-1"),
        (np.inf, "dry_friction must be finite and not negative"),
        (np.ones(2), r"dry_friction must be a scalar or of shape \(1,\), one entry per velocity, got shape \(2,\)"),
    ],
)
def test_bad_bounds_are_refused(value, match):
    """Before tracing, with what was given."""
    with pytest.raises(ValueError, match=match):
        simulate(Block(dry_friction=value), Moreau(), jnp.zeros(1), jnp.ones(1), 0.1, 1e-2)


def test_a_traced_bound_out_of_range_is_an_outcome():
    """Where the value is not known it is told afterwards."""
    run = jax.jit(lambda tau: simulate(Block(dry_friction=tau), Moreau(), jnp.zeros(1), jnp.ones(1), 0.1, 1e-2).outcome)
    assert_array_equal(run(-1.0), int(jaxnsd.Outcome.INVALID_PARAMETER))
    assert_array_equal(run(1.0), 0)


def test_wrong_velocities_are_refused():
    """One entry for each bound, affine in u."""

    @jaxnsd.system
    class Quadratic(Block):
        def dry_velocity(self, t, q, u):
            return u * u

    with pytest.raises(ValueError, match="dry_velocity must be affine in u"):
        simulate(Quadratic(), Moreau(), jnp.zeros(1), jnp.ones(1), 0.1, 1e-2)

    @jaxnsd.system
    class Scalar(Block):
        def dry_velocity(self, t, q, u):
            return u[0]

    with pytest.raises(ValueError, match=r"dry_velocity must return shape \(n_D,\)"):
        simulate(Scalar(), Moreau(), jnp.zeros(1), jnp.ones(1), 0.1, 1e-2)


def test_a_misspelt_field_is_told():
    """MuJoCo's name is not ours."""
    with pytest.warns(UserWarning, match="did you mean dry_friction"):

        @jaxnsd.system
        class Misspelt(jaxnsd.System):
            frictionloss: float = 1.0


def test_systems_without_it_have_nothing_of_it():
    """No percussions, no arrays of them, nothing to compile."""
    sol = simulate(Oscillator(dry_friction=None), Moreau(), jnp.ones(1), jnp.zeros(1), 0.1, 1e-2)
    assert sol.P_D is None and sol.initial.P_D is None and "P_D" not in repr(sol)


# ------------------------------------------------------------------------------------------------------------------------ bodies
@pytest.mark.slow
def test_contacts_that_are_gathered_leave_dry_friction_as_it_is():
    """Five balls fall onto a floor one after the other beside a cart with dry friction: both move as if they were alone."""
    balls = [
        bodies.Body(f"ball {k}", 0.3, (1e-3,) * 3, position=(0.5 * k, 0, 0.1 + 0.002 * k), shapes=bodies.Sphere(0.1)) for k in range(5)
    ]
    rail = bodies.Prismatic((1, 0, 0), name="rail", dry_friction=3.0, stiffness=50.0)
    cart = bodies.Body("cart", 2.0, (1.0, 1.0, 1.0), joints=rail, position=(0, 2, 0.5))
    floor = {"world": bodies.Plane(), "contacts": "world", "mu": 0.3}

    def run(parts, more):
        system = bodies.assemble(parts, **more)
        q, u = (np.array(x) for x in system.initial_state())
        q[-1] = 1.0 if parts[-1] is cart else q[-1]
        u[:30:6] = 0.4 if len(u) >= 30 else 0.0
        return simulate(system, Moreau(), q, u, 0.1, 2e-3).raise_if_failed()

    both, alone, rest = run([*balls, cart], floor), run([cart], {}), run(balls, floor)
    assert_allclose(both.q[:, -1:], alone.q, atol=1e-13)
    assert_allclose(both.P_D, alone.P_D, atol=1e-14)
    assert_allclose(both.q[:, :-1], rest.q, atol=1e-12)
    assert np.all(np.any(np.asarray(both.P_N) > 0, axis=0)) and not np.all(np.asarray(both.P_N) > 0)
