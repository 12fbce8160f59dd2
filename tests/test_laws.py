"""Laws of impact and friction: what they say, recomputed from what a Solution stores, closed forms, and derivatives by their parameters."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.optimize import fsolve

import jaxnsd
from jaxnsd import GeneralizedAlpha, LocatedImpacts, Moreau, MoreauJean, NewtonImpact, SymmetricMoreau, System, sets, simulate
from jaxnsd.results import Outcome

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


@pytest.mark.parametrize("as_law", [pytest.param(False, marks=pytest.mark.slow), True])
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
    sol = simulate(Ball(0.9), Moreau(), jnp.ones(1), jnp.zeros(1), 0.6, 1e-3)
    assert not sol.success and int(sol.outcome[400]) == Outcome.SUCCESS
    with pytest.raises(jaxnsd.SimulationError, match="restitution"):
        sol.raise_if_failed()


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
        (NewtonImpact(friction=sets.Segment(0.1)), ValueError, "tangential_velocity must return shape (1, 1) for the friction"),
        (0.3, TypeError, "law must be a law such as jaxnsd.NewtonImpact()"),
    ],
)
def test_laws_that_make_no_sense_are_refused(law, error, message):
    with pytest.raises(error, match=re.escape(message)):
        jaxnsd.check(jaxnsd.system(type("Wrong", (Bare,), {"law": law}))(), Moreau(), *THROWN, 1.0, 0.1)


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


def test_traced_parameters_outside_of_their_range_have_an_outcome():
    def outcome(p):
        law = NewtonImpact(p[0], friction=sets.Ellipse(p[1], p[2]))
        return simulate(Particle(law), Moreau(), *THROWN, 0.1, 0.05).outcome[-1]

    codes = jax.jit(jax.vmap(outcome))(np.array([[0.5, 0.3, 0.1], [1.2, 0.3, 0.1], [0.5, 0.3, -0.1], [0.5, np.nan, 0.1]]))
    np.testing.assert_array_equal(codes, [Outcome.SUCCESS, Outcome.INVALID_PARAMETER, Outcome.INVALID_PARAMETER, Outcome.NON_FINITE])
