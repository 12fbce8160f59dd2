"""Laws of impact and friction: what they say, recomputed from what a Solution stores, closed forms, and derivatives by their parameters."""

import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.optimize import fsolve

import jaxnsd
from jaxnsd import (
    GeneralizedAlpha,
    Lobatto,
    LocatedImpacts,
    Moreau,
    MoreauJean,
    NewtonImpact,
    PoissonImpact,
    SymmetricMoreau,
    System,
    sets,
    simulate,
)
from jaxnsd.mechanics.local import Contacts
from jaxnsd.mechanics.results import Outcome
from jaxnsd.models import elastic_bar

GRAVITY = 9.81


# --------------------------------------------------------------------------------------------------------- anisotropic friction
@jaxnsd.system
class Particle(System):
    """A particle on a plane with anisotropic friction: q = (x, y, z)."""

    law: Any = NewtonImpact(e_N=0.5, friction=sets.Ellipse(0.4, 0.1, 0.3))

    def kinetic_energy(self, t, q, u):
        return 0.5 * u @ u

    def potential_energy(self, t, q):
        return GRAVITY * q[2]

    def gap(self, t, q):
        return q[2:]

    def tangential_velocity(self, t, q, u):
        return u[None, :2]


def turned(angle):
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


def friction_of_slip(gamma, mu_1, mu_2, angle=0.0):
    """Percussion per P_N of an ellipse whose normal is -gamma: that of most dissipation."""
    R, mu = turned(angle), np.array([mu_1, mu_2])
    slip = R.T @ gamma
    return -R @ (mu**2 * slip) / np.linalg.norm(mu * slip)


THROWN = jnp.array([0.0, 0.0, 0.05]), jnp.array([1.0, 0.7, 0.0])
SCHEMES = [Moreau(), *(pytest.param(s, marks=pytest.mark.slow) for s in (SymmetricMoreau(), MoreauJean(), GeneralizedAlpha()))]


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_percussions_lie_in_the_ellipse_and_are_normal_to_slip(scheme):
    """Impacts, sliding, and rest on a plane: momentum, the impact law, the ellipse, and the direction of slip from what is stored."""
    dt, mu_1, mu_2, angle = 2e-3, 0.4, 0.1, 0.3
    sol = simulate(Particle(), scheme, *THROWN, 2.0, dt).raise_if_failed()
    u, P_N, P_F = (np.asarray(x) for x in (sol.u, sol.P_N[:, 0], sol.P_F[:, 0]))
    gained = np.diff(u, axis=0) - np.array([0, 0, -GRAVITY * dt])
    np.testing.assert_allclose(gained, np.c_[P_F, P_N], atol=1e-13)
    assert np.count_nonzero(P_N > 0.1) >= 2 and np.all(P_N >= 0)
    xi = u[1:, 2] + 0.5 * u[:-1, 2]
    pushed = P_N > 0
    np.testing.assert_allclose(xi[pushed & (u[:-1, 2] < 0)], 0, atol=1e-12)
    inside = np.linalg.norm((P_F @ turned(angle)) / np.array([mu_1, mu_2]), axis=1)
    slips = pushed & (np.linalg.norm(u[1:, :2], axis=1) > 1e-9)
    # The law is solved to 1e-12 of the slip velocities, which are of order one.
    assert np.all(inside <= P_N + 1e-11) and slips.sum() > 50 and (pushed & ~slips).sum() > 50
    expected = np.array([P * friction_of_slip(v, mu_1, mu_2, angle) for P, v in zip(P_N[slips], u[1:, :2][slips], strict=True)])
    np.testing.assert_allclose(P_F[slips], expected, atol=1e-11)
    assert np.all(np.abs(u[-1]) < 1e-12)


@pytest.mark.slow
def test_a_body_that_slides_on_an_anisotropic_plane_leaves_its_line():
    """Along principal axes du_i/dt = -g mu_i^2 u_i / |mu u|, so u_1 / u_1(0) = (u_2 / u_2(0))^(mu_1 / mu_2)^2; positions and their
    derivatives by parameters and start against SciPy, up to the first order of Moreau's scheme.
    """
    p, dt = np.array([0.4, 0.15, 0.3, 0.8, 1.1]), 1e-3  # mu_1, mu_2, angle, u_1, u_2

    def position(p):
        system = Particle(NewtonImpact(0.0, friction=sets.Ellipse(p[0], p[1], p[2])))
        u0 = jnp.stack([p[3], p[4], jnp.zeros_like(p[3])])
        sol = simulate(system, Moreau(), jnp.zeros(3), u0, n_steps=200, dt=dt)
        return sol.q[-1, :2], (sol.q[-1, :2], sol.u[:, :2])

    def exact(p):
        def rate(t, x):
            return [*x[2:], *(GRAVITY * friction_of_slip(x[2:], *p[:3]))]

        return solve_ivp(rate, (0, 200 * dt), [0, 0, p[3], p[4]], rtol=1e-12, atol=1e-14, method="DOP853").y[:2, -1]

    J, (end, u) = jax.jit(jax.jacfwd(position, has_aux=True))(p)
    step = 1e-5
    J_reference = np.stack([(exact(p + h) - exact(p - h)) / (2 * step) for h in step * np.eye(5)], axis=1)
    np.testing.assert_allclose(end, exact(p), atol=dt)
    np.testing.assert_allclose(J, J_reference, atol=2 * dt)
    along, start = np.asarray(u) @ turned(p[2]), p[3:] @ turned(p[2])
    np.testing.assert_allclose(along[:, 0] / start[0], (along[:, 1] / start[1]) ** (p[0] / p[1]) ** 2, atol=5 * dt)


@pytest.mark.slow
def test_an_ellipse_with_equal_axes_is_a_disc_and_a_turn_turns_the_motion():
    @jax.jit
    @jax.vmap
    def end(mu_1, mu_2, angle, turn):
        R = jnp.array([[jnp.cos(turn), -jnp.sin(turn)], [jnp.sin(turn), jnp.cos(turn)]])
        start = jnp.concatenate([R @ THROWN[1][:2], THROWN[1][2:]])
        sol = simulate(Particle(NewtonImpact(0.5, friction=sets.Ellipse(mu_1, mu_2, angle))), Moreau(), THROWN[0], start, 0.4, 1e-2)
        return jnp.concatenate([R.T @ sol.q[-1, :2], R.T @ sol.u[-1, :2]]), sol.success

    x, success = end(
        *np.array([[0.3, 0.3, 0.0, 0], [0.3, 0.3, 0.7, 0.5], [0.4, 0.1, 0.2, 0], [0.4, 0.1, 0.9, 0.7], [0, 0, 0, 0], [0.4, 0, 0.2, 0]]).T
    )
    assert np.all(success)
    np.testing.assert_allclose(x[1], x[0], atol=1e-13)
    np.testing.assert_allclose(x[3], x[2], atol=1e-13)
    np.testing.assert_allclose(x[4], [0.4 * 1.0, 0.4 * 0.7, 1.0, 0.7], atol=1e-14)
    # Friction along one axis leaves the velocity across as it is.
    np.testing.assert_allclose(turned(0.2).T[1] @ x[5, 2:], turned(0.2).T[1] @ [1.0, 0.7], atol=1e-13)

    @jaxnsd.system
    class Isotropic(Particle):
        law: Any = NewtonImpact(e_N=0.5, friction=sets.Disc(0.3))

    disc = simulate(Isotropic(), Moreau(), *THROWN, 0.4, 1e-2)
    np.testing.assert_allclose(np.r_[disc.q[-1, :2], disc.u[-1, :2]], x[0], atol=1e-13)


def test_a_linear_system_stays_linear():
    """The same body as a `LinearSystem`, for a scheme that takes no other; percussions are stored in the given directions."""
    G = np.eye(3)[:, 2:]
    friction = sets.Ellipse(0.4, 0.1, 0.3)

    @jaxnsd.system
    class Linear(jaxnsd.LinearSystem):
        law = NewtonImpact(e_N=0.0, friction=friction)

    system = Linear(np.eye(3), np.zeros((3, 3)), F=np.array([0, 0, -GRAVITY]), G=G, G_F=np.eye(3)[:, None, :2])
    start = np.zeros(3), np.array([1.0, 0.7, 0.0])
    sol = simulate(system, jaxnsd.KrenkHogsberg(), *start, 0.1, 1e-2).raise_if_failed()
    u, P_N, P_F = (np.asarray(x) for x in (sol.u, sol.P_N[:, 0], sol.P_F[:, 0]))
    np.testing.assert_allclose(np.diff(u[:, :2], axis=0), P_F, atol=1e-13)
    expected = np.array([P * friction_of_slip(v, 0.4, 0.1, 0.3) for P, v in zip(P_N, u[1:, :2], strict=True)])
    np.testing.assert_allclose(P_F, expected, atol=1e-12)


# ------------------------------------------------------------------------------------- restitution that depends on the speed
@jaxnsd.system
class Ball(System):
    """A ball on a floor whose restitution falls with the speed of approach: e = 1 - c v^(1/5) (Kuwabara & Kono 1987)."""

    c: float = 0.1

    def e_N(self, speed):
        return 1 - self.c * speed**0.2

    def kinetic_energy(self, t, q, u):
        return 0.5 * u @ u

    def potential_energy(self, t, q):
        return GRAVITY * q[0]

    def gap(self, t, q):
        return q


def height(c, h0, T):
    """Height at T, after one impact, and the percussion of the impact."""
    v = jnp.sqrt(2 * GRAVITY * h0)
    e = 1 - c * v**0.2
    s = T - v / GRAVITY
    return jnp.stack([e * v * s - 0.5 * GRAVITY * s**2, (1 + e) * v])


@pytest.mark.slow
@pytest.mark.parametrize("as_law", [False, True])
def test_restitution_may_depend_on_the_speed_of_approach(as_law):
    """Values and derivatives are exact where impacts are located, and of first order by saltation."""

    def system(c):
        return Ball(c) if not as_law else Plain(NewtonImpact(jax.tree_util.Partial(lambda c, speed: 1 - c * speed**0.2, c)))

    @jaxnsd.system
    class Plain(System):
        law: Any
        kinetic_energy, potential_energy, gap = Ball.kinetic_energy, Ball.potential_energy, Ball.gap

    def run(scheme, dt):
        def values(p):
            sol = simulate(system(p[0]), scheme, p[1:], jnp.zeros(1), 0.6, dt)
            value = jnp.stack([sol.q[-1, 0], jnp.sum(sol.P_N)])
            return value, (value, sol.success)

        J, (value, success) = jax.jacfwd(values, has_aux=True)(np.array([0.1, 1.0]))
        assert success
        return np.asarray(value), np.asarray(J)

    exact = height(0.1, 1.0, 0.6), jax.jacfwd(lambda p: height(p[0], p[1], 0.6))(np.array([0.1, 1.0]))
    for got, reference in zip(run(LocatedImpacts(MoreauJean()), 0.1), exact, strict=True):
        np.testing.assert_allclose(got, reference, atol=1e-12)
    if as_law:
        return
    errors = [max(np.max(np.abs(got - x)) for got, x in zip(run(Moreau(), dt), exact, strict=True)) for dt in (1e-3, 1e-4)]
    assert errors[0] < 0.05 and errors[1] < 0.2 * errors[0]


def test_a_function_that_leaves_its_range_at_an_impact_is_flagged():
    """That step has the outcome of a parameter outside of its range: by Newton's law, and by Poisson's beside a contact that is open."""

    @jaxnsd.system
    class Beside(System):
        law: Any = PoissonImpact(lambda speed: 1 - 0.9 * speed**0.2)
        kinetic_energy, potential_energy = Ball.kinetic_energy, Ball.potential_energy

        def gap(self, t, q):
            return jnp.stack([q[0], q[0] + 1])

    steps = []
    for system in (Ball(0.9), Beside()):
        sol = simulate(system, Moreau(), jnp.ones(1), jnp.zeros(1), 0.6, 1e-3)
        steps.append(int(np.argmax(sol.outcome != Outcome.SUCCESS)))
        assert sol.outcome[steps[-1]] == Outcome.INVALID_PARAMETER and np.isnan(sol.residual[steps[-1]])
        with pytest.raises(jaxnsd.SimulationError, match=r"INVALID_PARAMETER in step .*function of the speed of .* must stay in \[0, 1\]"):
            sol.raise_if_failed()
    assert steps[0] == steps[1] > 400


@pytest.mark.slow
def test_through_an_oblique_impact_derivatives_by_the_parameters_of_friction_are_exact():
    """One impact with anisotropic slip: u_F = u_F0 + (1 + e) v P(u_F), solved by SciPy and differentiated by central differences."""
    p = np.array([0.3, 0.2, 0.4, 0.6])  # mu_1, mu_2, angle, e_N
    h0, T, u0 = 0.2, 0.35, np.array([1.0, -0.6])

    def exact(p):
        v = np.sqrt(2 * GRAVITY * h0)
        slip = fsolve(lambda u: u - u0 - (1 + p[3]) * v * friction_of_slip(u, *p[:3]), u0, xtol=1e-14)
        s = T - v / GRAVITY
        return np.r_[u0 * (v / GRAVITY) + slip * s, p[3] * v * s - 0.5 * GRAVITY * s**2]

    def position(p):
        system = Particle(NewtonImpact(p[3], friction=sets.Ellipse(*p[:3])))
        sol = simulate(system, LocatedImpacts(MoreauJean()), jnp.array([0, 0, h0]), jnp.array([*u0, 0]), T, 0.05)
        return sol.q[-1], sol.q[-1]

    J, end = jax.jit(jax.jacfwd(position, has_aux=True))(p)
    np.testing.assert_allclose(end, exact(p), atol=1e-12)
    step = 1e-5
    J_reference = np.stack([(exact(p + h) - exact(p - h)) / (2 * step) for h in step * np.eye(4)], axis=1)
    np.testing.assert_allclose(J, J_reference, atol=1e-8)


# ------------------------------------------------------------------------------------------------------------------ refusals
@pytest.mark.parametrize(
    "law, error, message",
    [
        (NewtonImpact(1.2), ValueError, "law.e_N must lie in [0, 1]"),
        (NewtonImpact(lambda speed: 2 - speed), ValueError, "law.e_N must lie in [0, 1]"),
        (NewtonImpact(lambda speed: jnp.ones(3)), ValueError, "law.e_N must be a scalar or of shape (1,)"),
        (NewtonImpact(friction=sets.Ellipse(-0.1, 0.2)), ValueError, "law.friction.mu_1 must be finite and not negative"),
        (NewtonImpact(friction=sets.Ellipse(np.array([0.1, 0.2]), 0.2)), ValueError, "law.friction.mu_1 must be a scalar or of shape (1,)"),
        (NewtonImpact(friction=sets.Ellipse(0.1, 0.2, np.inf)), ValueError, "law.friction must be finite, got Ellipse(mu_1=0.1"),
        (NewtonImpact(friction=sets.Ellipse(0.1, 0.2, np.zeros(2))), ValueError, "Ellipse.axes failed for n = 1 contacts"),
        (NewtonImpact(friction=sets.Segment(0.1)), ValueError, "tangential_velocity must return shape (1, 1), the columns of the friction"),
        (0.3, TypeError, "law must be a law such as jaxnsd.NewtonImpact()"),
    ],
)
def test_laws_that_make_no_sense_are_refused(law, error, message):
    with pytest.raises(error, match=re.escape(message)):
        jaxnsd.check(jaxnsd.system(type("Wrong", (Bare,), {"law": law}))(), Moreau(), *THROWN, 1.0, 0.1)


def test_a_restitution_may_be_a_list():
    law = NewtonImpact(lambda speed: [0.5 * jnp.exp(-speed[0])])
    e_N, _, _ = jaxnsd.mechanics.laws.data(jaxnsd.system(type("Listed", (Bare,), {"law": law}))(), (1,), float, jnp.array([-2.0]))
    np.testing.assert_allclose(e_N, [0.5 * np.exp(-2.0)], rtol=1e-15)


@jaxnsd.system
class Bare(System):
    """`Particle` without a field for its law."""

    mu: Any = 0.0
    kinetic_energy, potential_energy, gap = Particle.kinetic_energy, Particle.potential_energy, Particle.gap
    tangential_velocity = Particle.tangential_velocity


def test_what_is_said_twice_or_is_no_set_is_refused():
    @jaxnsd.system
    class Twice(Bare):
        law = NewtonImpact(friction=sets.Disc(0.2))

    with pytest.raises(ValueError, match=re.escape("Twice.mu must be left out, or zero, where Twice.law says friction")):
        jaxnsd.check(Twice(mu=0.3), Moreau(), *THROWN, 1.0, 0.1)
    with pytest.raises(TypeError, match="friction must be a set such as"):
        NewtonImpact(friction=0.3)


def test_a_solver_that_knows_newtons_law_alone_refuses_others():
    @dataclasses.dataclass(frozen=True)
    class Own(jaxnsd.AbstractContactSolver):
        pass

    for system in (Rod(PoissonImpact(0.5)), Wheel(NewtonImpact(friction=(sets.Segment(0.5), sets.Segment(0.1))))):
        with pytest.raises(ValueError, match=re.escape(f"Own() does not take {type(system).__name__}")):
            jaxnsd.check(system, Moreau(), jnp.array([0, 1.0, 0]), jnp.zeros(3), 1.0, 0.1, solver=Own())


def test_traced_parameters_outside_of_their_range_have_an_outcome():
    def outcome(p):
        law = NewtonImpact(p[0], friction=sets.Ellipse(p[1], p[2]))
        return simulate(Particle(law), Moreau(), *THROWN, 0.1, 0.05).outcome[-1]

    codes = jax.jit(jax.vmap(outcome))(np.array([[0.5, 0.3, 0.1], [1.2, 0.3, 0.1], [0.5, 0.3, -0.1], [0.5, np.nan, 0.1]]))
    np.testing.assert_array_equal(codes, [Outcome.SUCCESS, Outcome.INVALID_PARAMETER, Outcome.INVALID_PARAMETER, Outcome.NON_FINITE])

    @jaxnsd.system
    class Both(Bare):
        e_F: Any = 0.0
        law = PoissonImpact(0.5)

    # Poisson's law has no tangential restitution: that of the system would be ignored.
    codes = jax.jit(jax.vmap(lambda e_F: simulate(Both(0.3, e_F), Moreau(), *THROWN, 0.1, 0.05).outcome[-1]))(np.array([0.0, 0.4]))
    np.testing.assert_array_equal(codes, [Outcome.SUCCESS, Outcome.INVALID_PARAMETER])


# ------------------------------------------------------------------------------------------------------------ Poisson's law
@jaxnsd.system
class Rod(System):
    """A rod of mass and length one above a floor without gravity, its tips frictional: q = (x, y, phi)."""

    law: Any = PoissonImpact(0.5)
    mu: Any = 0.3
    gravity: Any = 0.0

    def kinetic_energy(self, t, q, u):
        return 0.5 * (u[0] ** 2 + u[1] ** 2 + u[2] ** 2 / 12)

    def potential_energy(self, t, q):
        return self.gravity * q[1]

    def gap(self, t, q):
        arm = 0.5 * jnp.sin(q[2])
        return jnp.stack([q[1] - arm, q[1] + arm])

    def tangential_velocity(self, t, q, u):
        arm = 0.5 * jnp.sin(q[2]) * u[2]
        return jnp.stack([u[0] + arm, u[0] - arm])[:, None]


M = np.diag([1.0, 1.0, 1 / 12])


def directions(angle):
    """W (3, 4) of the rod: normal and tangential direction of its first tip, then of the second."""
    c, s = 0.5 * np.cos(angle), 0.5 * np.sin(angle)
    return np.array([[0, 1, -c], [1, 0, s], [0, 1, c], [1, 0, -s]]).T


#: Step of an impact, so short that it changes nothing else.
SHORT = 1e-9


def one_impact(system, angle, u):
    """Velocity after an impact of the rod, percussions, and whether it was solved."""
    q = jnp.stack([jnp.zeros_like(angle), 0.5 * jnp.abs(jnp.sin(angle)) - SHORT, angle])
    sol = simulate(system, Moreau(), q - SHORT * u, u, n_steps=1, dt=SHORT, sensitivity="discrete")
    return sol.u[-1], sol.P_N[-1], sol.P_F[-1, :, 0], sol.success


impact = jax.jit(jax.vmap(one_impact))


def drawn(n, seed):
    """Angles, a third of them zero, where both tips hit; velocities that close the lower tip; and parameters of the rod."""
    rng = np.random.default_rng(seed)
    angle = rng.uniform(0.05, 1.4, n) * (np.arange(n) % 3 > 0)
    u = rng.normal(size=(n, 3)) * np.array([2, 1, 1])
    u[:, 1] = -np.abs(u[:, 1]) - 0.5 * np.abs(u[:, 2])
    return angle, u, rng.uniform(0, 1, n), rng.uniform(0, 1, n)


def energy(u):
    return 0.5 * np.einsum("ni,ij,nj->n", u, M, u)


@pytest.mark.slow
def test_poissons_law_in_impacts_of_one_and_two_contacts_and_newtons_paradox():
    """Both phases recomputed: the first by `solve_contact_problem`, the second from what is stored. Newton's law creates energy in some of
    these impacts, in which slip turns or ends; Poisson's in none.
    """
    n = 600
    angle, u, e, mu = drawn(n, 0)
    after, P_N, P_F, success = (np.asarray(x) for x in impact(Rod(PoissonImpact(e), mu, np.zeros(n)), angle, u))
    by_newton, *_, newton_success = (np.asarray(x) for x in impact(Rod(NewtonImpact(e), mu, np.zeros(n)), angle, u))
    assert success.all() and newton_success.all()
    turned = 0
    for k in range(0, n, 5):
        W = directions(angle[k])
        G, before = W.T @ np.linalg.solve(M, W), W.T @ u[k]
        closed = np.array([True, angle[k] == 0])
        P = np.stack([P_N[k], P_F[k]], axis=1).ravel()
        np.testing.assert_allclose(M @ (after[k] - u[k]), W @ P, atol=1e-12)
        compression = jaxnsd.solve_contact_problem(jnp.asarray(G), jnp.asarray(before), mu[k], d=1, active=jnp.asarray(closed)).P
        if angle[k] == 0:
            # The friction of two tips in one line is not unique; its sum is.
            np.testing.assert_allclose(after[k, 1:], by_newton[k, 1:], atol=1e-10)
            continue
        expansion = (P - np.asarray(compression))[:2]
        plus, least = (W.T @ after[k])[:2], e[k] * float(compression[0])
        assert abs(min(expansion[0] - least, plus[0])) < 1e-11
        assert abs(expansion[1]) <= mu[k] * expansion[0] + 1e-11
        if abs(plus[1]) > 1e-9:
            np.testing.assert_allclose(expansion[1], -np.sign(plus[1]) * mu[k] * expansion[0], atol=1e-11)
        turned += before[1] * plus[1] <= 1e-12
    assert turned > 20
    gained = (energy(by_newton) - energy(u)) / energy(u)
    assert np.count_nonzero(gained > 1e-3) >= 3
    assert np.all(energy(after) <= energy(u) * (1 + 1e-12))
    # Both tips at once, of which one gives back everything and the other nothing: with G = [[4, -2], [-2, 4]] both percussions of
    # compression are v / 2, and in the expansion v / 2 asks for v / 4 of the other.
    apart = jnp.array([[0.0, 1.0]])
    (poisson, P_N, *_), (newton, *_) = (
        impact(Rod(law(apart), np.zeros(1), np.zeros(1)), np.zeros(1), np.array([[0.0, -1.0, 0.0]]))
        for law in (PoissonImpact, NewtonImpact)
    )
    np.testing.assert_allclose(poisson[0] @ directions(0.0)[:, ::2], [0, 1.5], atol=1e-12)
    np.testing.assert_allclose(newton[0] @ directions(0.0)[:, ::2], [0, 1], atol=1e-12)
    np.testing.assert_allclose(P_N[0], [0.75, 1.0], atol=1e-12)
    # Without friction a single contact knows one law.
    none = np.zeros(n)
    frictionless = [np.asarray(impact(Rod(law(e), none, none), angle, u)[0]) for law in (PoissonImpact, NewtonImpact)]
    np.testing.assert_allclose(*frictionless, atol=1e-9)


def planar(G, c, mu, least):
    """A single planar contact by enumeration: percussions (N, T) with ``P_N >= least``."""
    for open_, sticks, side in ((o, s, d) for o in (True, False) for s, d in ((True, 0), (False, 1), (False, -1))):
        rows = np.stack([[1.0, 0.0] if open_ else G[0], G[1] if sticks else [side * mu, 1.0]])
        P = np.linalg.solve(rows, [least if open_ else -c[0], -c[1] if sticks else 0])
        xi = G @ P + c
        friction = abs(P[1]) <= mu * P[0] + 1e-12 if sticks else side * xi[1] >= -1e-12
        if P[0] >= least - 1e-12 and xi[0] >= -1e-12 and friction:
            return P
    raise AssertionError("no solution")


@pytest.mark.slow
def test_derivatives_of_poissons_impact_by_state_and_parameters():
    """Those of the impact map against central differences of both phases by enumeration, NumPy alone."""

    def reference(x):
        angle, u, e, mu = x[0], x[1:4], x[4], x[5]
        W = directions(angle)[:, :2]
        G = W.T @ np.linalg.solve(M, W)
        P = planar(G, W.T @ u, mu, 0.0)
        P = P + planar(G, W.T @ u + G @ P, mu, e * P[0])
        return u + np.linalg.solve(M, W @ P)

    angle, u, e, mu = drawn(60, 1)
    x = np.c_[angle, u, e, mu][angle > 0.1][:24]
    along = jax.jit(jax.vmap(jax.jacfwd(lambda x: one_impact(Rod(PoissonImpact(x[4]), x[5]), x[0], x[1:4])[0])))
    J, step, compared = np.asarray(along(x)), 1e-6, 0
    for k, at in enumerate(x):
        ends = np.array([[reference(at + h), reference(at - h)] for h in step * np.eye(6)])
        central = (ends[:, 0] - ends[:, 1]).T / (2 * step)
        one_sided = np.abs(ends[:, 0] + ends[:, 1] - 2 * reference(at)).max() / step
        if one_sided < 1e-4:  # no kink between
            np.testing.assert_allclose(J[k], central, atol=1e-6 * np.abs(central).max())
            compared += 1
    assert compared > 15


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [Moreau(), MoreauJean(), Lobatto(2), GeneralizedAlpha()], ids=repr)
def test_a_rod_comes_to_rest_by_poissons_law_and_stays(scheme):
    """A body at rest is not pushed up by its weight, the sum of the percussions is the momentum, no energy comes from nowhere."""
    rod = Rod(PoissonImpact(0.5), 0.3, GRAVITY)
    sol = simulate(rod, scheme, jnp.array([0, 0.5, 0.3]), jnp.array([1.0, 0, 0.5]), 2.0, 2e-3).raise_if_failed()
    assert np.max(np.abs(sol.u[-1])) < 1e-9 and np.max(np.abs(rod.gap(0.0, sol.q[-1]))) < 1e-3
    np.testing.assert_allclose(np.sum(sol.P_N), GRAVITY * 2.0, rtol=1e-9)
    np.testing.assert_allclose(np.sum(sol.P_N[-20:], axis=1), GRAVITY * 2e-3, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [jaxnsd.HHT(0.1), jaxnsd.KrenkHogsberg()], ids=lambda scheme: scheme.name)
def test_plastic_impacts_of_a_linear_system_and_their_energy(scheme):
    """Without restitution both laws are one; the balances of Acary (2014) hold by Poisson's, for percussions that move q as well."""
    newton = elastic_bar(10)

    @jaxnsd.system
    class Bar(type(newton)):
        law = PoissonImpact()

    bar = Bar(**{field.name: getattr(newton, field.name) for field in dataclasses.fields(newton)})
    runs = [simulate(system, scheme, *newton.initial_state(), t1=6e-4, dt=2e-6).raise_if_failed() for system in (bar, newton)]
    np.testing.assert_allclose(runs[0].u, runs[1].u, atol=1e-13)
    assert np.sum(runs[0].P_N) > 0.1
    balance = jaxnsd.energy.balance(bar, scheme, runs[0])
    assert np.max(np.abs(balance.residual)) < 1e-14 * balance.scale and np.all(balance.dissipative)


@pytest.mark.slow
def test_derivatives_by_poissons_restitution_through_an_impact_in_flight():
    """The ball's closed form: exact where impacts are located, of first order by saltation."""

    @jaxnsd.system
    class Bouncing(System):
        law: Any
        kinetic_energy, potential_energy, gap = Ball.kinetic_energy, Ball.potential_energy, Ball.gap

    def exact(p):
        v = jnp.sqrt(2 * GRAVITY * p[1])
        s = 0.6 - v / GRAVITY
        return p[0] * v * s - 0.5 * GRAVITY * s**2

    def run(scheme, dt):
        return jax.grad(lambda p: simulate(Bouncing(PoissonImpact(p[0])), scheme, p[1:], jnp.zeros(1), 0.6, dt).q[-1, 0])(p)

    p = np.array([0.7, 1.0])
    np.testing.assert_allclose(run(LocatedImpacts(MoreauJean()), 0.1), jax.grad(exact)(p), atol=1e-12)
    errors = [np.max(np.abs(run(Moreau(), dt) - jax.grad(exact)(p))) for dt in (1e-3, 1e-4)]
    assert errors[0] < 0.05 and errors[1] < 0.2 * errors[0]


@pytest.mark.slow
def test_a_rod_whose_impacts_are_located_moves_alike_by_every_scheme():
    """Its flight is integrated exactly, so what differs would be the impacts; energy falls, momentum is that of the forces."""
    rod, start = Rod(PoissonImpact(0.5), 0.3, GRAVITY), (jnp.array([0, 0.5, 0.3]), jnp.array([1.0, 0, 0.5]))
    runs = [
        simulate(rod, LocatedImpacts(scheme), *start, 0.6, dt, sensitivity="discrete").raise_if_failed()
        for scheme, dt in ((MoreauJean(), 4e-3), (Lobatto(2), 3e-3), (jaxnsd.SymmetricMoreau(), 4e-3))
    ]
    assert np.sum(np.isfinite(runs[0].auxiliary["impact_times"])) >= 2
    for sol in runs:
        np.testing.assert_allclose(sol.q[-1], runs[0].q[-1], atol=1e-11)
        np.testing.assert_allclose(sol.u[-1, 0] - 1, np.sum(sol.P_F), atol=1e-13)
    for sol in runs[:2]:
        np.testing.assert_allclose(sol.u[-1], runs[0].u[-1], atol=1e-10)
        np.testing.assert_allclose(sol.u[-1, 1], np.sum(sol.P_N) - GRAVITY * 0.6, atol=1e-12)
        E = np.asarray(jax.vmap(rod.total_energy)(sol.t, sol.q, sol.u))
        assert np.all(np.diff(E) < 1e-12) and E[-1] < 0.5 * E[0]


# ------------------------------------------------------------------------------------------------- rolling and drilling friction
@jaxnsd.system
class Wheel(System):
    """A wheel on a floor in the plane, with friction of sliding and of rolling: q = (x, y, phi)."""

    law: Any
    radius: Any = 0.3
    inertia: Any = 0.02

    def kinetic_energy(self, t, q, u):
        return 0.5 * (u[0] ** 2 + u[1] ** 2 + self.inertia * u[2] ** 2)

    def potential_energy(self, t, q):
        return GRAVITY * q[1]

    def gap(self, t, q):
        return q[1:2] - self.radius

    def tangential_velocity(self, t, q, u):
        return jnp.stack([u[0] + self.radius * u[2], u[2]])[None, :]


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [Moreau(), Lobatto(2), MoreauJean()], ids=repr)
def test_a_wheel_with_rolling_friction_comes_to_a_halt(scheme):
    """(1 + J / (m R^2)) dv/dt = -g c / R while it rolls, so with c' = c / R / (1 + J / (m R^2)) it stops after v^2 / (2 g c'); the way and
    its derivatives by the arm c, by the radius and by the speed.
    """
    dt = 2e-3

    def way(p):
        c, radius, v = p
        wheel = Wheel(NewtonImpact(0.0, friction=(sets.Segment(0.5), sets.Segment(c))), radius)
        start = jnp.stack([0.0, radius, 0.0]), jnp.stack([v, 0.0, -v / radius])
        sol = simulate(wheel, scheme, *start, 1.2, dt)
        return sol.q[-1, 0], sol

    def exact(p):
        c, radius, v = p
        return v**2 / (2 * GRAVITY * c / radius / (1 + 0.02 / radius**2))

    p = jnp.array([0.03, 0.3, 0.8])
    J, sol = jax.jit(jax.jacfwd(way, has_aux=True))(p)
    assert sol.success and np.max(np.abs(sol.u[-1])) < 1e-10
    np.testing.assert_allclose(sol.q[-1, 0], exact(p), atol=dt)
    np.testing.assert_allclose(J, jax.grad(exact)(p), rtol=0.02)
    # A moment of c P_N in N m s against the rotation, and what holds the contact point.
    u, P_N, P_F = (np.asarray(x) for x in (sol.u, sol.P_N[:, 0], sol.P_F[:, 0]))
    np.testing.assert_allclose(0.02 * np.diff(u[:, 2]), 0.3 * P_F[:, 0] + P_F[:, 1], atol=1e-12)
    np.testing.assert_allclose(np.diff(u[:, 0]), P_F[:, 0], atol=1e-12)
    rolls = np.abs(u[1:, 2]) > 1e-9
    np.testing.assert_allclose(P_F[rolls, 1], -np.sign(u[1:, 2][rolls]) * 0.03 * P_N[rolls], atol=1e-12)
    assert np.all(np.abs(P_F[:, 1]) <= 0.03 * P_N + 1e-12) and np.all(np.abs(u[1:, 0] + 0.3 * u[1:, 2]) < 1e-11)


@jaxnsd.system
class Globe(System):
    """A ball on a floor in space with anisotropic sliding, rolling and drilling friction: q = (x, y, z, angles), u = (v, omega)."""

    law: Any = NewtonImpact(0.3, friction=(sets.Ellipse(0.4, 0.2, 0.5), sets.Disc(0.004), sets.Segment(0.01)))

    def kinetic_energy(self, t, q, u):
        return 0.5 * (u[:3] @ u[:3] + 0.004 * u[3:] @ u[3:])

    def potential_energy(self, t, q):
        return GRAVITY * q[2]

    def gap(self, t, q):
        return q[2:3] - 0.1

    def tangential_velocity(self, t, q, u):
        return jnp.stack([u[0] - 0.1 * u[4], u[1] + 0.1 * u[3], u[3], u[4], u[5]])[None, :]


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [Moreau(), MoreauJean(), Lobatto(2), LocatedImpacts(MoreauJean())], ids=lambda scheme: scheme.name)
def test_sliding_rolling_and_drilling_at_once(scheme):
    """Thrown with spin: every set and every direction from what is stored."""
    start = jnp.array([0, 0, 0.102, 0, 0, 0]), jnp.array([1.5, 0.8, 0, 2.0, 1.0, 8.0])
    sol = simulate(Globe(), scheme, *start, 2.5, 5e-3).raise_if_failed()
    u, P_N, P = (np.asarray(x) for x in (sol.u, sol.P_N[:, 0], sol.P_F[:, 0]))
    W = np.asarray(Globe().W_F(0.0, *start))[:, 0]
    np.testing.assert_allclose(
        np.diff(u, axis=0) * np.array([1, 1, 1, *[0.004] * 3]),
        P @ W.T + np.outer(P_N, [0, 0, 1, 0, 0, 0]) - 5e-3 * GRAVITY * np.eye(6)[2],
        atol=1e-11,
    )
    gamma = u[1:] @ W
    inside = np.linalg.norm(P[:, :2] @ turned(0.5) / np.array([0.4, 0.2]), axis=1)
    bound = P_N + 1e-10
    assert (
        np.all(inside <= bound) and np.all(np.linalg.norm(P[:, 2:4], axis=1) <= 0.004 * bound) and np.all(np.abs(P[:, 4]) <= 0.01 * bound)
    )
    if scheme.name == "LocatedImpacts":
        return  # percussions of a step with an impact are sums
    slides = (P_N > 0) & (np.linalg.norm(gamma[:, :2], axis=1) > 1e-8)
    expected = [P_N[k] * friction_of_slip(gamma[k, :2], 0.4, 0.2, 0.5) for k in np.flatnonzero(slides)]
    np.testing.assert_allclose(P[slides, :2], expected, atol=1e-9)
    rolls, drills = (P_N > 0) & (np.linalg.norm(gamma[:, 2:4], axis=1) > 1e-6), (P_N > 0) & (np.abs(gamma[:, 4]) > 1e-6)
    against = gamma[rolls, 2:4] / np.linalg.norm(gamma[rolls, 2:4], axis=1)[:, None]
    np.testing.assert_allclose(P[rolls, 2:4], -0.004 * P_N[rolls, None] * against, atol=1e-9)
    np.testing.assert_allclose(P[drills, 4], -0.01 * P_N[drills] * np.sign(gamma[drills, 4]), atol=1e-9)
    assert slides.sum() > 5 and rolls.sum() > 50 and drills.sum() > 50


def test_a_method_may_compute_restitution_from_fields():
    """Checks know the shapes of the fields alone."""

    @jaxnsd.system
    class Uneven(jaxnsd.System):
        hard: float = 0.8
        soft: float = 0.1

        def kinetic_energy(self, t, q, u):
            return 0.5 * u @ u

        def gap(self, t, q):
            return q

        def tangential_velocity(self, t, q, u):
            return u[:, None]

        def e_N(self):
            return jnp.stack([self.hard, self.soft])

        def mu(self):
            return jnp.stack([self.soft, self.soft])

    jaxnsd.check(Uneven(), jaxnsd.Moreau(), jnp.ones(2), jnp.zeros(2), 0.1, 1e-2)
    with pytest.raises(ValueError, match="e_N"):
        jaxnsd.check(Uneven(hard=1.2), jaxnsd.Moreau(), jnp.ones(2), jnp.zeros(2), 0.1, 1e-2)


def test_a_law_may_be_a_method_that_computes_with_fields():
    @jaxnsd.system
    class Worn(Bare):
        wear: float = 0.5

        def law(self):
            return NewtonImpact(0.5, friction=(sets.Disc(0.4 * self.wear), sets.Segment(0.1 * self.wear)))

        def tangential_velocity(self, t, q, u):
            return u[None]

    jaxnsd.check(Worn(), Moreau(), *THROWN, 1.0, 0.1)
    with pytest.raises(ValueError, match=re.escape("Worn.law.friction[0].mu must be finite and not negative")):
        jaxnsd.check(Worn(wear=-0.1), Moreau(), *THROWN, 1.0, 0.1)


def test_a_set_of_ones_own_is_the_image_of_a_disc():
    """Written with its matrix, the ellipse of `sets` comes out: what the schemes see of a system is the same."""

    @sets.pytree
    class Matrix(sets.FrictionSet):
        mu: Any
        S: Any
        d = 2

        def axes(self, n, dtype):
            return jnp.broadcast_to(jnp.asarray(self.S, dtype), (n, 2, 2))

    ellipse = sets.Ellipse(0.5, 0.1, 0.3)
    own = Matrix(0.3, ellipse.axes(1, jnp.float64)[0])
    R = turned(0.3)
    np.testing.assert_allclose(0.3 * own.S, R @ np.diag([0.5, 0.1]) @ R.T, atol=1e-15)
    seen = [Contacts(Particle(NewtonImpact(0.5, friction=part))) for part in (ellipse, own)]
    for name in ("tangential_velocity", "W_F"):
        values = [getattr(contacts, name)(0.0, *THROWN) for contacts in seen]
        np.testing.assert_allclose(*values, atol=1e-15)
        assert np.abs(values[0] - getattr(seen[0].system, name)(0.0, *THROWN)).max() > 0.1
    np.testing.assert_allclose(*(contacts.data(0.0, THROWN[0]).mu for contacts in seen), atol=1e-15)
    jaxnsd.check(Particle(NewtonImpact(0.5, friction=own)), Moreau(), *THROWN, 1.0, 0.1)


@sets.pytree
class Sheared(sets.FrictionSet):
    """An ellipse as the image of the unit disc under R diag(mu_1, mu_2), which is not symmetric."""

    mu_1: Any
    mu_2: Any
    angle: Any
    d = 2
    coefficients = ("mu_1", "mu_2")

    def size(self, n, dtype):
        return jnp.ones(n, dtype) * jnp.sign(self.mu_1)

    def axes(self, n, dtype):
        c, s = jnp.cos(self.angle), jnp.sin(self.angle)
        return jnp.broadcast_to(jnp.stack([self.mu_1 * c, -self.mu_2 * s, self.mu_1 * s, self.mu_2 * c]).reshape(2, 2), (n, 2, 2))


def test_the_matrix_of_a_set_need_not_be_symmetric():
    """The slip is that of most dissipation in the ellipse; taken as symmetric, the matrix turned it and SUCCESS was said."""
    sol = simulate(Particle(NewtonImpact(friction=Sheared(0.4, 0.1, 0.3))), Moreau(), *THROWN, 0.2, 2e-3).raise_if_failed()
    P_N, P_F, u = (np.asarray(x) for x in (sol.P_N[:, 0], sol.P_F[:, 0], sol.u[1:, :2]))
    slips = (P_N > 0) & (np.linalg.norm(u, axis=1) > 1e-3)
    assert slips.sum() > 20
    expected = [P * friction_of_slip(v, 0.4, 0.1, 0.3) for P, v in zip(P_N[slips], u[slips], strict=True)]
    np.testing.assert_allclose(P_F[slips], expected, atol=1e-11)


def test_sets_of_ones_own_that_make_no_sense_are_refused():
    @sets.pytree
    class Nameless(sets.FrictionSet):
        radius: Any
        d = 2

    @sets.pytree
    class Flat(sets.FrictionSet):
        mu: Any
        d = 2

        def axes(self, n, dtype):
            return jnp.eye(2, dtype=dtype)

    @sets.pytree
    class Inverted(sets.FrictionSet):
        mu: Any
        d = 2

        def size(self, n, dtype):
            return sets.broadcast(-self.mu, n, dtype)

    with pytest.raises(TypeError, match=r"Nameless: a set of friction must say coefficients.*it has no mu"):
        NewtonImpact(friction=Nameless(0.3))
    with pytest.raises(ValueError, match=re.escape("Flat.axes must return shape (1, 2, 2) for n = 1 contacts, got (2, 2)")):
        jaxnsd.check(Particle(NewtonImpact(friction=Flat(0.3))), Moreau(), *THROWN, 1.0, 0.1)
    # A negative radius pushed the body, with SUCCESS.
    sol = simulate(Particle(NewtonImpact(friction=Inverted(0.3))), Moreau(), *THROWN, 0.2, 2e-3)
    assert np.all(sol.outcome == Outcome.INVALID_PARAMETER)
