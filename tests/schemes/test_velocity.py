"""The step problem on velocity level: bilateral rows, balances in their own units, quaternions, stored solutions of drawn systems."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import jaxnsd
from jaxnsd import (
    HHT,
    GeneralizedAlpha,
    LocatedImpacts,
    Moreau,
    MoreauJean,
    MoreauJeanVariant,
    Newmark,
    SemismoothNewton,
    SymmetricMoreau,
    System,
    simulate,
)
from jaxnsd.mechanics.results import Outcome
from jaxnsd.schemes.condensed import biorthogonal
from jaxnsd.schemes.positions import moved


# ------------------------------------------------------------------------------------------------------------ bilateral rows
@jaxnsd.system
class TwoRows(System):
    """A particle under gravity and two velocity rows that differ by delta in direction, and after half a second by jump in velocity."""

    delta: float = 1e-6
    jump: float = 0.0

    def kinetic_energy(self, t, q, u):
        return 0.5 * u @ u

    def potential_energy(self, t, q):
        return 9.81 * q[1]

    def velocity_constraint(self, t, q, u):
        return jnp.stack([u[0], u[0] + self.delta * u[1] - jnp.where(t > 0.5, self.jump, 0)])

    def gap(self, t, q):
        return q[2:] + 1


@pytest.mark.parametrize(
    "scheme",
    [Moreau(), *(pytest.param(s, marks=pytest.mark.slow) for s in (MoreauJean(), GeneralizedAlpha(), LocatedImpacts(MoreauJean())))],
    ids=lambda scheme: scheme.name,
)
def test_bilateral_rows_that_nearly_agree_or_contradict_each_other(scheme):
    """Exact: u_1 = 0, then jump / delta. What two rows leave open in the machine's numbers is no success; equal rows are one row."""
    delta = np.array([1e-3, 3e-6, 1e-6, 2e-7, 1e-9, 1e-13, 0.0, 1e-3, 1e-9, 0.0])
    jump = np.array([0.0] * 7 + [1e-3] * 3)
    run = jax.jit(jax.vmap(lambda delta, jump: simulate(TwoRows(delta, jump), scheme, jnp.zeros(3), jnp.zeros(3), 1.0, 0.05)))
    sol = jax.tree.map(np.asarray, run(delta, jump))
    solvable = delta >= 1e-9
    assert np.all(sol.outcome[solvable] == Outcome.SUCCESS)
    np.testing.assert_allclose(sol.u[solvable, 10, 1], 0, atol=1e-12)
    np.testing.assert_allclose(sol.u[solvable, -1, 1], (jump / np.where(solvable, delta, 1))[solvable], rtol=1e-5, atol=1e-12)
    assert np.all(sol.outcome[5] == Outcome.NOT_CONVERGED)
    assert np.all(sol.outcome[6] == Outcome.SUCCESS) and sol.u[6, -1, 1] < -9
    contradictory = sol.t[0, 1:] > 0.5 + 1e-9
    np.testing.assert_array_equal(sol.outcome[9], np.where(contradictory, Outcome.NOT_CONVERGED, Outcome.SUCCESS))


@pytest.mark.parametrize("unpacked", [True, False])
def test_rows_are_made_biorthogonal(unpacked):
    """W^T Y is diagonal to round-off relative to what is left of each row, although the rows differ by 1e-6 only."""
    rng = np.random.default_rng(0)
    A, w = rng.normal(size=(4, 4)), rng.normal(size=4)
    W_b = np.stack([1e3 * w, w + 1e-6 * rng.normal(size=4), rng.normal(size=4)], axis=1)
    Y_b = np.linalg.solve(A @ A.T + np.eye(4), W_b)
    kind = jaxnsd.numerics.linalg.unpack if unpacked else jnp.asarray
    rows = [np.asarray(jaxnsd.numerics.linalg.pack(x)) for x in biorthogonal(kind(W_b), kind(Y_b))]
    W, Y, T, E, inverse = rows
    np.testing.assert_allclose(W_b @ T, W, atol=1e-15 * np.abs(W_b @ np.abs(T)).max())
    np.testing.assert_allclose(Y_b @ E, Y, atol=1e-15 * np.abs(Y_b @ np.abs(E)).max())
    D = W.T @ Y
    size = np.linalg.norm(W, axis=0)[:, None] * np.linalg.norm(Y, axis=0)[None, :]
    np.testing.assert_allclose(D / size, np.diag(np.diag(D / size)), atol=1e-9)
    np.testing.assert_allclose(inverse * np.diag(D), 1, rtol=1e-12)
    assert 1e-13 < D[1, 1] < 1e-10
    dependent = np.stack([w, 2 * w, W_b[:, 2]], axis=1)
    inverse = np.asarray(jaxnsd.numerics.linalg.pack(biorthogonal(kind(dependent), kind(dependent)).inverse))
    np.testing.assert_array_equal(inverse == 0, [False, True, False])


# ------------------------------------------------------------------------------------------------------- rows in their own units
@jaxnsd.system
class HeavyAndLight(System):
    """Two bodies of which one is 1e10 times as heavy; the drag of the light one is nonlinear."""

    def mass_matrix(self, t, q):
        return jnp.diag(jnp.array([1.0, 1e-10]))

    def force(self, t, q, u):
        return -jnp.array([1.0, 1e-10]) * u * (1 + jnp.array([0.0, 30.0]) * u**2)


def test_the_balance_of_a_light_body_is_solved_as_well_as_that_of_a_heavy_one():
    def run(tolerance):
        solver = SemismoothNewton(tolerance=tolerance)
        return simulate(HeavyAndLight(), SymmetricMoreau(), jnp.zeros(2), jnp.array([1.0, 1.5]), 1.0, 0.05, solver=solver).raise_if_failed()

    np.testing.assert_allclose(run(None).u, run(1e-15).u, rtol=1e-11)


# ------------------------------------------------------------------------------------------------------------ coordinates
@jaxnsd.system
class SpinningBall(System):
    """A ball with a unit quaternion and its height, above a floor that it never meets."""

    def kinetic_energy(self, t, q, u):
        return 0.5 * u @ u

    def q_dot(self, t, q, u):
        s, v, w = q[0], q[1:4], u[:3]
        return jnp.concatenate([0.5 * jnp.stack([-v @ w]), 0.5 * (s * w + jnp.cross(v, w)), u[3:]])

    def gap(self, t, q):
        return q[4:] + 1e9


@pytest.mark.slow
@pytest.mark.parametrize(
    "scheme",
    [Moreau(), SymmetricMoreau(), MoreauJean(), MoreauJeanVariant(0.75)],
    ids=lambda scheme: scheme.name,
)
def test_quaternions_keep_their_length(scheme):
    """Over 1e5 steps, at 0.18 rad a step: the explicit update adds 4e-3 in every one."""
    q0, u0 = jnp.array([0.6, 0.0, 0.8, 0.0, 1.0]), jnp.array([4.0, 18.0, 1.0, 0.5])
    sol = simulate(SpinningBall(), scheme, q0, u0, 1e3, 1e-2, save_every=10_000).raise_if_failed()
    np.testing.assert_allclose(np.linalg.norm(sol.q[:, :4], axis=1), 1, rtol=0, atol=1e-10)
    np.testing.assert_allclose(sol.q[:, 4], 1 + 0.5 * sol.t, rtol=1e-10)


@jaxnsd.system
class Curved(System):
    """A coordinate whose rate depends on it, and on time, in a nonlinear way."""

    def kinetic_energy(self, t, q, u):
        return 0.5 * u @ u

    def q_dot(self, t, q, u):
        return jnp.sin(q + t) * u


@pytest.mark.slow
def test_positions_move_by_the_midpoint_rule():
    """Second order where q_dot is not linear in q; the derivative is that of the map; q_dot = u is moved as it always was."""
    q0, u = jnp.array([0.4]), jnp.array([1.3])
    exact = solve_ivp(lambda t, q: np.sin(q + t) * 1.3, (0, 1), [0.4], rtol=1e-12, atol=1e-13).y[0, -1]

    @jax.jit
    def end(dt, n, q, u):
        return jax.lax.fori_loop(0, n, lambda k, q: moved(Curved(), k * dt, dt, q, u), q)[0]

    errors = [abs(float(end(1 / n, n, q0, u)) - exact) for n in (50, 200)]
    assert np.log(errors[0] / errors[1]) / np.log(4) == pytest.approx(2, abs=0.05)

    def once(x):
        return moved(Curved(), x[0], x[1], x[2:3], x[3:])[0]

    x = jnp.array([0.2, 0.1, 0.4, 1.3])
    differences = [(once(x.at[i].add(1e-6)) - once(x.at[i].add(-1e-6))) / 2e-6 for i in range(4)]
    np.testing.assert_allclose(jax.grad(once)(x), differences, rtol=1e-8)
    np.testing.assert_allclose(jax.jacfwd(once)(x), jax.grad(once)(x), rtol=1e-14)
    plain, q, u = TwoRows(), jnp.array([0.1, 0.2, 0.3]), jnp.array([1.0, 3.0, 7.0])
    np.testing.assert_array_equal(moved(plain, 0.0, 0.1, q, u), q + 0.1 * u)


# ----------------------------------------------------------------------------------------------------- what is stored agrees
@jaxnsd.system
class Drawn(System):
    """A nonlinear system drawn at random: its mass matrix, gaps, tangential velocities and a constraint depend on q."""

    A: object
    K: object
    N: object
    T: object
    B: object
    e_N: float = 0.5
    e_F: float = 0.1
    mu: float = 0.4

    def mass_matrix(self, t, q):
        L = jnp.eye(4) + self.A * jnp.sin(q)[None, :]
        return L @ L.T + jnp.eye(4)

    def potential_energy(self, t, q):
        return 0.5 * q @ (self.K @ (self.K.T @ q)) + 0.25 * jnp.sum(q**4)

    def force(self, t, q, u):
        return 5 * jnp.sin(jnp.arange(4.0) + 7 * t) - 0.1 * u * jnp.abs(u)

    def gap(self, t, q):
        return self.N @ q + 0.1 * jnp.sin(q[0]) * self.N[:, 1] + 0.05

    def tangential_velocity(self, t, q, u):
        return self.T @ u * (1 + 0.1 * q[1])

    def velocity_constraint(self, t, q, u):
        return self.B @ u + 0.1 * q[0] * u[1]


def draw(seed, n, d, k):
    """System, coordinates and velocity, with n contacts and k constraints."""
    rng = np.random.default_rng(seed)
    shapes = (4, 4), (4, 4), (n, 4), (n, d, 4), (k, 4)
    parts = [scale * rng.normal(size=shape) for scale, shape in zip((0.3, 3, 1, 1, 1), shapes, strict=True)]
    system = Drawn(*map(jnp.asarray, parts))
    return system, jnp.zeros(4), jaxnsd.project_velocity(system, jnp.zeros(4), rng.normal(size=4))


@pytest.mark.parametrize(
    ("scheme", "n", "d", "k"),
    [
        pytest.param(GeneralizedAlpha(), 1, 1, 0, marks=pytest.mark.slow),
        pytest.param(GeneralizedAlpha(), 2, 1, 1, marks=pytest.mark.slow),
        pytest.param(GeneralizedAlpha(0.3), 4, 2, 0, marks=pytest.mark.long),
        pytest.param(HHT(0.2), 3, 1, 1, marks=pytest.mark.long),
        pytest.param(Newmark(), 1, 2, 1, marks=pytest.mark.slow),
    ],
    ids=lambda value: value.name if isinstance(value, jaxnsd.schemes.Scheme) else str(value),
)
def test_stored_motion_of_alpha_schemes_obeys_the_equations(scheme, n, d, k):
    """A14 (27) with M(t, q) and h at the new node, from the stored q, u, P and a of drawn systems."""
    dt, c = 1e-2, scheme.coefficients
    drawn = [draw(seed, n, d, k) for seed in range(24)]
    systems, q0, u0 = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(x, float) for x in leaves]), *drawn)
    sol = jax.jit(jax.vmap(lambda system, q, u: simulate(system, scheme, q, u, 1.5, dt)))(systems, q0, u0)
    assert np.all(sol.success) and np.count_nonzero(sol.P_N) > 20 * n

    def residuals(system, t, q, u, a, t_1, q_1, u_1, a_1, P_N, P_F, P_gamma):
        place = t_1, q + dt * u, u
        impulse = system.W_N(*place) @ P_N + jnp.einsum("und,nd->u", system.W_F(*place), P_F) + system.W_gamma(*place) @ P_gamma
        w = jnp.linalg.solve(system.M(t_1, q_1), impulse)
        a_tilde, a_tilde_1 = (jnp.linalg.solve(system.M(t, q), system.h(t, q, u)) for t, q, u in ((t, q, u), (t_1, q_1, u_1)))
        weighted = (1 - c.alpha_m) * a_1 + c.alpha_m * a - (1 - c.alpha_f) * a_tilde_1 - c.alpha_f * a_tilde
        return (
            u_1 - u - dt * (1 - c.gamma) * a - dt * c.gamma * a_1 - w,
            q_1 - q - dt * u - dt**2 * (0.5 - c.beta) * a - dt**2 * c.beta * a_1 - 0.5 * dt * w,
            dt * weighted,
        )

    def along(system, sol):
        nodes = sol.t, sol.q, sol.u, sol.auxiliary["a"]
        rows = [x[:-1] for x in nodes] + [x[1:] for x in nodes] + [sol.P_N, sol.P_F, sol.P_gamma]
        return jax.vmap(lambda *row: residuals(system, *row))(*rows)

    u, q, balance = jax.jit(jax.vmap(along))(systems, sol)
    assert np.abs(u).max() < 1e-13 and np.abs(q).max() < 1e-14
    assert np.abs(balance).max() < 1e-10
