"""The theta- and alpha-schemes: their equations recomputed from the solution, orders, closed forms, activity, derivatives."""

import dataclasses
import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from little_systems import ParticleOverTable

import jaxnsd
from jaxnsd.mechanics.linear_system import LinearSystem
from jaxnsd.models import BouncingBall, SpringPendulum

rng = np.random.default_rng(5)
N = 4


def spd(scale):
    A = rng.normal(size=(N, N))
    return scale * A @ A.T


def force(t):
    return 20 * jnp.sin(jnp.array([5.0, 6.0, 7.0, 8.0]) * t)


SYSTEM = LinearSystem(
    spd(1.0) + 4 * np.eye(N),
    spd(40.0) + 20 * np.eye(N),
    spd(0.1),
    force,
    rng.normal(size=(N, 2)),
    0.05,
    rng.normal(size=(N, 2, 1)),
    e_N=0.5,
    mu=0.4,
)
Q0, U0 = np.zeros(N), rng.normal(size=N)
DT = 1e-2

SCHEMES = [
    jaxnsd.MoreauJean(0.5),
    jaxnsd.MoreauJean(0.6),
    jaxnsd.MoreauJeanVariant(0.8),
    jaxnsd.Newmark(),
    jaxnsd.HHT(0.2),
    jaxnsd.GeneralizedAlpha(0.6),
    jaxnsd.KrenkHogsberg(0.6),
]


def solve(scheme, system=SYSTEM, q0=Q0, u0=U0, t1=6.0, dt=DT):
    sol = jaxnsd.simulate(system, scheme, q0, u0, t1, dt).raise_if_failed()
    return jax.tree.map(np.asarray, sol)


#: One of each kind; the parameters of the others differ.
FAST = [jaxnsd.MoreauJean(0.6)]


def predicting(scheme):
    """The scheme with the activity rule of A14 (26)."""
    return dataclasses.replace(scheme, prediction=1.0, require_closing=True)


@pytest.mark.parametrize("scheme", [s if s in FAST else pytest.param(s, marks=pytest.mark.slow) for s in SCHEMES], ids=repr)
def test_stored_solution_obeys_the_equations_of_the_paper(scheme):
    """A14 (23), (31), (27), (32) in NumPy, and the impact law, from q, u, P and a."""
    scheme = predicting(scheme)
    sol = solve(scheme)
    M, K, C, G, G_F = (np.asarray(x) for x in (SYSTEM.mass, SYSTEM.K, SYSTEM.C, SYSTEM.G, SYSTEM.G_F[:, :, 0]))
    F = np.array([force(t) for t in sol.t])
    q, v, P_N, P_F = sol.q, sol.u, sol.P_N, sol.P_F[:, :, 0]
    impulse = P_N @ G.T + P_F @ G_F.T
    assert np.count_nonzero(P_N) > 20 and np.count_nonzero(np.abs(P_F) < 0.4 * P_N - 1e-9) > 3  # impacts, some of which stick
    scale = np.abs(K @ q.T).max()

    if isinstance(scheme, (jaxnsd.MoreauJean, jaxnsd.MoreauJeanVariant)):
        theta = scheme.theta

        def mid(x):
            return theta * x[1:] + (1 - theta) * x[:-1]

        balance = np.diff(v, axis=0) @ M + DT * mid(q) @ K + DT * mid(v) @ C - DT * mid(F) - impulse
        moved = DT * (mid(v) if isinstance(scheme, jaxnsd.MoreauJean) else 0.5 * (v[1:] + v[:-1]))
    else:
        a = sol.auxiliary["a"]
        alpha_m, alpha_f, beta, gamma = scheme.coefficients
        w = impulse @ np.linalg.inv(M)
        np.testing.assert_allclose(a[0] @ M, F[0] - K @ Q0 - C @ U0, atol=1e-12 * scale)
        np.testing.assert_allclose(np.diff(v, axis=0), DT * (1 - gamma) * a[:-1] + DT * gamma * a[1:] + w, atol=1e-12)
        moved = DT * v[:-1] + DT**2 * (0.5 - beta) * a[:-1] + DT**2 * beta * a[1:] + 0.5 * DT * w
        if isinstance(scheme, jaxnsd.KrenkHogsberg):
            inertia = a @ M + v @ C - F
            elastic = (1 - alpha_f) * q[1:] + alpha_f * q[:-1]
            balance = (1 - alpha_m) * inertia[1:] + alpha_m * inertia[:-1] + elastic @ K
        else:
            forces = F - q @ K - v @ C
            balance = ((1 - alpha_m) * a[1:] + alpha_m * a[:-1]) @ M - (1 - alpha_f) * forces[1:] - alpha_f * forces[:-1]
    assert np.abs(balance).max() < 1e-12 * scale
    np.testing.assert_allclose(np.diff(q, axis=0), moved, atol=1e-13)

    # Impact law on velocity level, with the activity of A14 (26).
    U = v @ G
    xi_N, xi_F = U[1:] + 0.5 * U[:-1], (v @ G_F)[1:]
    gap = q @ G + 0.05
    closed = (gap[:-1] + DT * U[:-1] <= 0) & (U[:-1] <= 0)
    assert np.all(P_N[~closed] == 0)
    assert np.all(P_N >= 0) and np.all(xi_N[closed] > -1e-11) and np.abs(P_N * xi_N).max() < 1e-10
    assert np.all(np.abs(P_F) <= 0.4 * P_N + 1e-12)
    sticking = np.abs(P_F) < 0.4 * P_N - 1e-9
    assert np.abs(xi_F[sticking]).max() < 1e-10
    sliding = (P_N > 1e-9) & ~sticking & (np.abs(xi_F) > 1e-9)
    assert np.all(P_F[sliding] * xi_F[sliding] < 0)


@jaxnsd.system
class Nonlinear(jaxnsd.System):
    """The same mechanics, as a system of which only energies and forces are known."""

    linear: LinearSystem
    e_N: float = 0.5
    mu: float = 0.4

    def kinetic_energy(self, t, q, u):
        return 0.5 * u @ (self.linear.mass @ u)

    def potential_energy(self, t, q):
        return 0.5 * q @ (self.linear.K @ q)

    def force(self, t, q, u):
        return self.linear.external_force(t) - self.linear.C @ u

    def gap(self, t, q):
        return self.linear.gap(t, q)

    def tangential_velocity(self, t, q, u):
        return self.linear.tangential_velocity(t, q, u)


@pytest.mark.slow
@pytest.mark.parametrize(
    "scheme", [*(pytest.param(s, marks=pytest.mark.long) for s in SCHEMES[1:5]), jaxnsd.GeneralizedAlpha(0.6)], ids=repr
)
def test_nonlinear_solver_and_linear_factorization_agree(scheme):
    linear, general = solve(predicting(scheme)), solve(predicting(scheme), Nonlinear(SYSTEM))
    early = slice(200)  # differences of round-off grow from impact to impact
    assert np.count_nonzero(linear.P_N[early]) > 3
    for name in ("q", "u", "P_N", "P_F"):
        np.testing.assert_allclose(getattr(general, name)[early], getattr(linear, name)[early], atol=1e-11)


@pytest.mark.long
def test_newmark_with_2_beta_equal_gamma_is_the_variant():
    # A14 (30), (31): written with different unknowns and states.
    with pytest.warns(UserWarning, match="first order only"):
        newmark = jaxnsd.Newmark(0.4, 0.8)
    a, b = solve(newmark, t1=2.0), solve(jaxnsd.MoreauJeanVariant(0.8), t1=2.0)
    for name in ("q", "u", "P_N", "P_F"):
        np.testing.assert_allclose(getattr(a, name), getattr(b, name), atol=1e-11)


@pytest.mark.long
def test_alpha_schemes_without_filter_are_newmark():
    reference = solve(jaxnsd.Newmark(), t1=2.0)
    for scheme in (jaxnsd.HHT(0.0), jaxnsd.GeneralizedAlpha(alpha_m=0.0, alpha_f=0.0, beta=0.25, gamma=0.5)):
        np.testing.assert_allclose(solve(scheme, t1=2.0).q, reference.q, atol=1e-12)


# --------------------------------------------------------------------------------------------------------- orders, radii
def oscillator(**changes):
    return LinearSystem(**{"mass": np.eye(1), "K": 4 * np.eye(1), "G": np.eye(1), **changes})


DAMPING, OMEGA = 0.6, 3.0


def drive(t):
    return jnp.array([jnp.cos(OMEGA * t)])


def driven_response(t, q0):
    """Closed form of q'' + c q' + 4 q = cos(omega t), q(0) = q0, q'(0) = 0."""
    X = 1 / (4 - OMEGA**2 + 1j * DAMPING * OMEGA)
    decay = -0.5 * DAMPING
    wd = np.sqrt(4 - decay**2)
    A = q0 - X.real
    B = (-np.real(1j * OMEGA * X) - decay * A) / wd
    return np.real(X * np.exp(1j * OMEGA * t)) + np.exp(decay * t) * (A * np.cos(wd * t) + B * np.sin(wd * t))


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    ORDERS = [
        (jaxnsd.MoreauJean(0.5), 2),
        (jaxnsd.MoreauJean(0.75), 1),
        (jaxnsd.MoreauJeanVariant(0.5), 2),
        (jaxnsd.MoreauJeanVariant(1.0), 1),
        (jaxnsd.Newmark(), 2),
        (jaxnsd.Newmark(0.45, 0.8), 1),
        (jaxnsd.HHT(0.2), 2),
        (jaxnsd.GeneralizedAlpha(0.4), 2),
        (jaxnsd.GeneralizedAlpha(1.0), 2),
        (jaxnsd.KrenkHogsberg(0.4), 1),
        (jaxnsd.KrenkHogsberg(1.0), 2),
    ]


@pytest.mark.parametrize(
    ("scheme", "order"), [case if k % 3 == 0 else pytest.param(*case, marks=pytest.mark.long) for k, case in enumerate(ORDERS)], ids=repr
)
def test_order_on_damped_driven_motion(scheme, order):
    """Against the closed form: two for theta = 1/2 and second-order alpha parameters, one otherwise."""
    system = oscillator(C=DAMPING * np.eye(1), F=drive, G=None)
    errors = []
    for n in (100, 400):  # as many steps for both, so that they share a program
        sol = solve(scheme, system, np.array([0.7]), np.zeros(1), 2.0 * 400 / n, 2.0 / n)
        errors.append(np.abs(sol.q[n, 0] - driven_response(2.0, 0.7)))
    observed = np.log(errors[0] / errors[1]) / np.log(4)
    assert scheme.order == order
    assert abs(observed - order) < 0.15


def test_krenk_hogsberg_is_of_second_order_without_damping_and_load():
    errors = []
    for n in (100, 400):
        sol = solve(jaxnsd.KrenkHogsberg(0.4), oscillator(G=None), np.array([0.7]), np.zeros(1), 2.0 * 400 / n, 2.0 / n)
        errors.append(np.abs(sol.q[n, 0] - 0.7 * np.cos(4.0)))
    assert abs(np.log(errors[0] / errors[1]) / np.log(4) - 2) < 0.15


PHASES = np.linspace(0.02, 1.5, 97)


def bouncing_oscillator(t, e, phase, omega=2.0):
    """Closed form of q'' + 4 q = 0 over a wall at q = 0 with restitution e: half waves that shrink by e at every impact."""
    angle = omega * t + phase
    return e ** np.floor(angle / np.pi + 0.5) * np.abs(np.cos(angle))


@pytest.mark.long
@pytest.mark.parametrize("scheme", SCHEMES[:1] + SCHEMES[2:3] + SCHEMES[4:], ids=repr)
def test_order_one_through_impacts_of_a_bouncing_oscillator(scheme):
    """The error depends on where in its step an impact falls: mean over the motion and over initial phases, which no step divides."""
    errors = []
    for n in (400, 6400):
        run = jax.vmap(
            lambda phase, n=n: jaxnsd.simulate(
                oscillator(e_N=0.8), scheme, jnp.cos(phase)[None], -2 * jnp.sin(phase)[None], 5.0, 5.0 / n, save_every=n // 400
            )
        )
        sol = run(PHASES)
        assert np.all(sol.success)
        exact = bouncing_oscillator(np.asarray(sol.t), 0.8, PHASES[:, None])
        errors.append(np.abs(np.asarray(sol.q)[:, :, 0] - exact).mean())
    assert abs(np.log(errors[0] / errors[1]) / np.log(16) - 1) < 0.15
    assert errors[1] < 1.5e-3


@functools.partial(jax.jit, static_argnums=0)
def derivative_of_a_step(scheme, omega_dt):
    """Of an undamped oscillator."""
    system = oscillator(K=omega_dt**2 * np.eye(1), G=None)
    prepared = scheme.prepare(system, 1.0)
    settings = jaxnsd.SemismoothNewton()
    state, _ = scheme.init(prepared, 0.0, 1.0, jnp.ones(1), jnp.ones(1), settings)
    vector, restore = ravel_pytree(state)

    def step(x):
        return ravel_pytree(scheme.step(prepared, 0.0, 1.0, restore(x), settings)[0])[0]

    return jax.jacfwd(step)(vector)


def spectral_radius(scheme, omega_dt):
    """Largest modulus of the eigenvalues of one step of an undamped oscillator."""
    return np.abs(np.linalg.eigvals(derivative_of_a_step(scheme, omega_dt))).max()


@pytest.mark.parametrize(
    ("scheme", "radius"),
    [
        *[(jaxnsd.GeneralizedAlpha(rho), rho) for rho in (0.0, 0.5, 1.0)],
        *[(jaxnsd.KrenkHogsberg(rho), rho) for rho in (0.0, 0.5, 1.0)],
        (jaxnsd.HHT(0.1), 0.9 / 1.1),
        (jaxnsd.HHT(1 / 3), 0.5),
        (jaxnsd.Newmark(), 1.0),
        (jaxnsd.MoreauJean(0.5), 1.0),
        (jaxnsd.MoreauJean(0.8), 0.25),
    ],
    ids=repr,
)
def test_spectral_radius_at_infinity(scheme, radius):
    # The eigenvalues at infinity are defective (Jordan blocks) for the optimal parameters: they tend to rho like (omega dt)^-1.
    assert abs(spectral_radius(scheme, 1e5) - radius) < 1e-3
    # And never above one on the way there.
    assert all(spectral_radius(scheme, x) < 1 + 1e-7 for x in (0.1, 1.0, 10.0))


# ---------------------------------------------------------------------------------------------------------------- activity
def ball_by_hand(prediction, require_closing, n, dt, e):
    """Moreau-Jean for a ball under gravity, written out."""
    q, v, g = [1.0], [0.0], 9.81
    for _ in range(n):
        free = v[-1] - g * dt
        active = q[-1] + prediction * dt * v[-1] <= 0 and (v[-1] <= 0 or not require_closing)
        new = max(free, -e * v[-1]) if active else free
        q.append(q[-1] + 0.5 * dt * (new + v[-1]))
        v.append(new)
    return np.array(q), np.array(v)


def bounce(scheme, ball, height, dt):
    """A ball that falls, or lies; always as many steps, so that a scheme is compiled once for all tests."""
    return solve(scheme, ball, np.array([height]), np.zeros(1), 10_000 * dt, dt)


@pytest.mark.parametrize(("prediction", "require_closing"), [(1.0, True), (0.5, False), (0.0, True)])
def test_activity_rule(prediction, require_closing):
    scheme = jaxnsd.MoreauJean(0.5, prediction=prediction, require_closing=require_closing)
    sol = bounce(scheme, BouncingBall(mass=1.0, e_N=0.7), 1.0, 1e-2)
    q, v = ball_by_hand(prediction, require_closing, 200, 1e-2, 0.7)
    np.testing.assert_allclose(sol.q[:201, 0], q, atol=1e-12)
    np.testing.assert_allclose(sol.u[:201, 0], v, atol=1e-12)
    assert np.count_nonzero(sol.P_N[:200]) >= 3


def test_penetration_is_that_of_the_prediction():
    # prediction = 1: the impact is taken before the gap closes; 0: only once it has.
    schemes = [jaxnsd.MoreauJean(prediction=p, require_closing=True) for p in (1.0, 0.0)]
    lowest = [bounce(scheme, BouncingBall(), 1.0, 1e-3).q[:601].min() for scheme in schemes]
    speed = np.sqrt(2 * 9.81)
    assert lowest[0] > -0.5 * 1e-3 * speed
    assert lowest[1] < -1e-4


@pytest.mark.parametrize(
    "scheme", [jaxnsd.MoreauJean(), jaxnsd.MoreauJean(prediction=0.5, require_closing=False), jaxnsd.HHT(0.1)], ids=repr
)
def test_a_resting_contact_does_not_flicker(scheme):
    # Starts exactly on the floor: the weight is carried in every step.
    ball = BouncingBall(mass=0.37, e_N=0.5)
    sol = bounce(scheme, ball, 0.0, 1e-3)
    np.testing.assert_allclose(sol.P_N[:, 0], 0.37 * 9.81 * 1e-3, rtol=1e-9)
    assert np.abs(sol.q).max() < 1e-12


def test_how_a_body_comes_to_rest_under_the_three_rules():
    """Rule (26): a two-step cycle, which sinks with (1 - e) / (1 + e) g dt / 2; under the others the ball rests, by default near zero."""
    ball, dt, e = BouncingBall(e_N=0.5), 1e-3, 0.5
    sol = bounce(jaxnsd.MoreauJean(require_closing=True), ball, 1.0, dt)
    speed = (sol.q[-1, 0] - sol.q[-2001, 0]) / 2.0
    np.testing.assert_allclose(speed, -(1 - e) / (1 + e) * 9.81 * dt / 2, rtol=1e-3)
    for scheme in (jaxnsd.MoreauJean(prediction=0.5, require_closing=False), jaxnsd.MoreauJean()):
        sol = bounce(scheme, ball, 1.0, dt)
        assert np.ptp(sol.q[-2001:, 0]) < 1e-12 and abs(sol.q[-1, 0]) < 9.81 * dt**2
    # The default creates no energy on the way there.
    E = 0.5 * ball.mass * sol.u[:, 0] ** 2 + ball.mass * ball.gravity * sol.q[:, 0]
    assert np.diff(E).max() < 1e-12 * E[0]


# --------------------------------------------------------------------------------------------------------------- nonlinear
@pytest.mark.parametrize(
    "scheme",
    [
        jaxnsd.MoreauJean(),
        pytest.param(jaxnsd.GeneralizedAlpha(), marks=pytest.mark.slow),
        pytest.param(jaxnsd.MoreauJeanVariant(), marks=pytest.mark.slow),
    ],
    ids=repr,
)
def test_a_body_does_not_sink_into_a_shaken_table(scheme):
    """It moves with the table: velocities are those of the table, and depths of order dt^2 do not grow from period to period.

    What the table did to the gap velocity in a step counted as opening: 0.039 m were lost each period at 16 steps, to order dt.
    """
    table = functools.partial(ParticleOverTable, amplitude=0.1, frequency=2 * np.pi)
    depths = []
    for n in (16, 32, 64):
        run = jax.vmap(
            lambda e, n=n: jaxnsd.simulate(table(e_N=e), scheme, jnp.zeros(1), jnp.array([0.2 * np.pi]), n_steps=8 * n, dt=1 / n)
        )
        sol = run(jnp.array([0.0, 0.4, 0.8])).raise_if_failed()
        t = np.arange(8 * n + 1) / n
        depth, late = 0.1 * np.sin(2 * np.pi * t) - np.asarray(sol.q)[:, :, 0], slice(4 * n, None)
        np.testing.assert_allclose(depth[:, -1], depth[:, 4 * n], rtol=0, atol=1e-12)
        np.testing.assert_allclose(sol.u[:, late, 0], np.tile(0.2 * np.pi * np.cos(2 * np.pi * t[late]), (3, 1)), rtol=0, atol=1e-12)
        depths.append(np.abs(depth).max())
    assert depths[0] < 0.06 and np.all(np.diff(np.log2(depths)) < -1.7)


@pytest.mark.long
def test_theta_method_on_the_spring_pendulum():
    """Capobianco & Eugster (2018), Fig. 4: Jean's theta-method drifts where the symmetric scheme does not (8e-2 after 1000 s)."""
    pendulum = SpringPendulum()
    sol = jaxnsd.simulate(pendulum, jaxnsd.MoreauJean(0.5), *pendulum.initial_state(), 1000.0, 1e-3, save_every=100).raise_if_failed()
    E = jax.vmap(pendulum.total_energy)(sol.t, sol.q, sol.u)
    e_E = np.asarray((E - E[0]) / E[0])
    np.testing.assert_allclose(E[0], -7.130389275784, rtol=1e-12)
    assert 0.07 < np.abs(e_E).max() < 0.1
    # A drift, not an oscillation.
    assert np.abs(e_E[2000:4000]).mean() < np.abs(e_E[-2000:]).mean() / 1.5


@pytest.mark.slow
def test_constrained_motion_stays_on_velocity_level():
    @jaxnsd.system
    class Pendulum(jaxnsd.System):
        length: float = 1.0

        def mass_matrix(self, t, q):
            return jnp.eye(2)

        def potential_energy(self, t, q):
            return 9.81 * q[1]

        def constraint(self, t, q):
            return jnp.stack([0.5 * (q @ q - self.length**2)])

    for scheme in (jaxnsd.MoreauJean(), jaxnsd.GeneralizedAlpha(0.9)):
        losses = []
        for dt in (4e-3, 1e-3):
            sol = solve(scheme, Pendulum(), np.array([1.0, 0.0]), np.zeros(2), 1000 * dt, dt)
            q, u = sol.q[: round(1 / dt) + 1], sol.u[: round(1 / dt) + 1]
            assert np.abs(np.linalg.norm(q, axis=1) - 1).max() < 0.5 * dt
            energy = 0.5 * np.sum(u**2, axis=1) + 9.81 * q[:, 1]
            losses.append(np.abs(energy).max())
        # First order: the percussion acts along the direction at the end of the step.
        assert abs(np.log(losses[0] / losses[1]) / np.log(4) - 1) < 0.15


# ------------------------------------------------------------------------------------------------------------- derivatives
@pytest.mark.slow
@pytest.mark.parametrize(
    "scheme",
    [jaxnsd.MoreauJean(0.6), jaxnsd.HHT(0.1), jaxnsd.KrenkHogsberg(0.6)],
    ids=repr,
)
def test_derivatives_before_any_impact(scheme):
    """Forward, reverse and second derivatives with respect to mass, stiffness, damping and state, against the smooth motion's."""

    def final(x):
        m, k, c, q0 = x
        system = LinearSystem(m * jnp.eye(2), k * jnp.array([[2.0, -1.0], [-1.0, 2.0]]), c * jnp.eye(2))
        return jaxnsd.simulate(system, scheme, q0 * jnp.array([1.0, 0.3]), jnp.zeros(2), 1.0, 0.02).q[-1, 0]

    @jax.jit
    def derivatives(x):
        """Value, derivatives in forward and in reverse mode, and second derivatives."""

        def both(x):
            value, reverse = jax.value_and_grad(final)(x)
            return (value, reverse), (value, reverse)

        (forward, second), (value, reverse) = jax.jacfwd(both, has_aux=True)(x)
        return value, forward, reverse, second

    x = jnp.array([1.3, 5.0, 0.2, 0.7])
    _, forward, reverse, second = derivatives(x)
    np.testing.assert_allclose(reverse, forward, atol=1e-12)
    np.testing.assert_allclose(second, second.T, atol=1e-10)
    for k, step in enumerate(1e-4 * np.eye(4)):
        there, back = derivatives(x + step), derivatives(x - step)
        np.testing.assert_allclose(forward[k], (there[0] - back[0]) / 2e-4, atol=1e-7)
        np.testing.assert_allclose(second[k], (there[2] - back[2]) / 2e-4, atol=1e-5)


@pytest.mark.long
def test_derivatives_through_contact_agree_in_both_modes_and_in_a_batch():
    def final(e, k):
        system = dataclasses.replace(SYSTEM, e_N=e, K=k * SYSTEM.K)
        return jaxnsd.simulate(system, jaxnsd.GeneralizedAlpha(0.6), Q0, U0, 1.0, DT).q[-1]

    forward = jax.jit(jax.vmap(jax.jacfwd(final, argnums=(0, 1)), in_axes=(0, None)))(jnp.array([0.3, 0.5]), 1.0)
    reverse = jax.jit(jax.jacrev(final, argnums=(0, 1)))(0.5, 1.0)
    for a, b in zip(forward, reverse, strict=True):
        np.testing.assert_allclose(a[1], b, atol=1e-10)
        assert np.abs(b).max() > 1e-4


# ------------------------------------------------------------------------------------------------------- arguments, advice
@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: jaxnsd.MoreauJean(1.5), r"theta must lie in \[0, 1\], got 1.5"),
        (lambda: jaxnsd.MoreauJean(prediction=2.0), r"prediction must lie in \[0, 1\], got 2.0"),
        (lambda: jaxnsd.GeneralizedAlpha(1.2), r"rho_inf must lie in \[0, 1\], got 1.2"),
        (lambda: jaxnsd.GeneralizedAlpha(0.5, beta=0.3), "give either rho_inf, or all of"),
        (lambda: jaxnsd.KrenkHogsberg(alpha_m=0.1, beta=0.3), "give either rho_inf, or all of"),
        (lambda: jaxnsd.GeneralizedAlpha(alpha_m=1.0, alpha_f=0.2, beta=0.3, gamma=0.5), "iteration matrix is singular"),
        (lambda: jaxnsd.HHT(1.0), "iteration matrix is singular"),
        (lambda: jaxnsd.Newmark(0.25, 0.0), "iteration matrix is singular"),
        (lambda: jaxnsd.Newmark(float("nan")), "beta must be finite"),
    ],
)
def test_parameters_that_make_no_sense(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


@pytest.mark.parametrize(
    ("make", "theorem"),
    [
        (lambda: jaxnsd.MoreauJean(0.4), "Proposition 1"),
        (lambda: jaxnsd.MoreauJeanVariant(0.4), "Corollary 1"),
        (lambda: jaxnsd.KrenkHogsberg(alpha_m=0.3, alpha_f=0.2, beta=0.25, gamma=0.4), "Proposition 2"),
        (lambda: jaxnsd.HHT(-0.1), "Proposition 3"),
        (lambda: jaxnsd.Newmark(0.2, 0.5), "Proposition 4"),
        (lambda: jaxnsd.Newmark(0.3, 0.55), r"second needs gamma = 1/2 \+ alpha_f - alpha_m = 0.5 \(Acary 2014, \(28\)\)"),
        (lambda: jaxnsd.GeneralizedAlpha(alpha_m=0.3, alpha_f=0.2, beta=0.2, gamma=0.4), "Chung & Hulbert 1993"),
    ],
)
def test_parameters_outside_of_a_theorem_warn_and_name_it(make, theorem):
    with pytest.warns(UserWarning, match=theorem):
        make()


def test_default_parameters_do_not_warn():
    for make in (jaxnsd.MoreauJean, jaxnsd.MoreauJeanVariant, jaxnsd.Newmark, jaxnsd.HHT, jaxnsd.GeneralizedAlpha, jaxnsd.KrenkHogsberg):
        make()
    for rho in np.linspace(0, 1, 21):
        jaxnsd.GeneralizedAlpha(rho), jaxnsd.KrenkHogsberg(rho)
    for alpha in np.linspace(0, 0.5, 11):
        jaxnsd.HHT(alpha)
    # Chung & Hulbert (1993): no damping of the highest frequency at rho = 1, all of it at rho = 0.
    assert jaxnsd.GeneralizedAlpha(1.0).coefficients == (0.5, 0.5, 0.25, 0.5)
    assert jaxnsd.GeneralizedAlpha(0.0).coefficients == (-1.0, 0.0, 1.0, 1.5)


@pytest.mark.slow
def test_systems_that_are_not_taken():
    with pytest.raises(ValueError, match="takes a LinearSystem only"):
        jaxnsd.simulate(BouncingBall(), jaxnsd.KrenkHogsberg(), *BouncingBall().initial_state(), 1.0, 1e-2)

    @jaxnsd.system
    class Quasi(BouncingBall):
        def q_dot(self, t, q, u):
            return 2.0 * u

    with pytest.raises(ValueError, match=r"derived for q_dot = u.*use SymmetricMoreau\(\), MoreauJean\(\)"):
        jaxnsd.simulate(Quasi(), jaxnsd.Newmark(), np.ones(1), np.zeros(1), 1.0, 1e-2)
    # q = 1 - g t^2, as q_dot = 2 u.
    sol = solve(jaxnsd.MoreauJean(), Quasi(mass=1.0), np.ones(1), np.zeros(1), 0.1, 1e-2)
    assert sol.q[-1, 0] < 1 - 0.5 * 9.81 * 0.01
