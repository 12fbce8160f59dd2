"""What other tests have but one contact, one body or one law of, against closed forms of rigid-body mechanics."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from little_systems import GRAVITY as G
from numpy.testing import assert_allclose
from scipy.integrate import solve_ivp

import jaxnsd
from jaxnsd import Lobatto, LocatedImpacts, Moreau, MoreauJean, Outcome, PoissonImpact, bodies, models, simulate

TENSOR = np.array([[2.0e-3, -3.0e-4, 4.0e-4], [-3.0e-4, 3.0e-3, 5.0e-4], [4.0e-4, 5.0e-4, 3.5e-3]])


def thrown(law=None, e_N=0.6, mu=0.0, mass=0.5, inertia=TENSOR):
    """A box of edges 0.2, 0.16 and 0.1 m with a full tensor of inertia."""
    box = bodies.Body("box", mass, inertia, (0.0, 0.0, 0.0), shapes=bodies.Box((0.2, 0.16, 0.1)), position=(0.0, 0.0, 1.0))
    return bodies.assemble(box, bodies.Plane(), mu=mu, **({"e_N": e_N} if law is None else {"law": law}))


def rotation(p):
    """Matrix of a unit quaternion."""
    w, x, y, z = p
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


def test_a_full_tensor_of_inertia_turns_as_eulers_equations_say():
    """J w' = -w x J w and p' = p (0, w) / 2 by a Runge-Kutta method of order eight; the moment of momentum in space is kept."""
    start, dt, n = np.array([3.0, -2.0, 5.0]), 1e-3, 400
    system = bodies.assemble(bodies.Body("body", 0.5, TENSOR))

    def rhs(t, x):
        w, p = x[:3], x[3:]
        turn = np.array([-p[1:] @ w, *(p[0] * w + np.cross(p[1:], w))]) / 2
        return np.r_[np.linalg.solve(TENSOR, -np.cross(w, TENSOR @ w)), turn]

    end = solve_ivp(rhs, (0, n * dt), np.r_[start, 1.0, 0, 0, 0], "DOP853", rtol=1e-12, atol=1e-12).y[:, -1]
    q0, u0 = system.initial_state()
    sol = simulate(system, Lobatto(3), q0, jnp.asarray(u0).at[3:].set(start), n_steps=n, dt=dt).raise_if_failed()
    assert_allclose(sol.u[-1, 3:], end[:3], atol=1e-9)
    assert_allclose(sol.q[-1, 3:], end[3:], atol=1e-9)
    assert_allclose(rotation(sol.q[-1, 3:]) @ TENSOR @ sol.u[-1, 3:], TENSOR @ start, atol=1e-11)


def test_a_corner_hits_with_a_full_tensor_of_inertia():
    """P (1/m + (r x n) J^-1 (r x n)) = (1 + e) times the speed of approach of the corner, without friction; 40 poses."""
    system, e, mass = thrown(e_N=0.6), 0.6, 0.5
    rng = np.random.default_rng(2)
    p = rng.standard_normal((40, 4))
    p /= np.linalg.norm(p, axis=1, keepdims=True)
    u = rng.standard_normal((40, 6)) * np.array([1, 1, 1, 5, 5, 5]) - np.array([0, 0, 3.0, 0, 0, 0])
    corners = np.array([[x, y, z] for x in (-0.1, 0.1) for y in (-0.08, 0.08) for z in (-0.05, 0.05)])
    R = np.stack([rotation(row) for row in p])
    heights = corners @ R[:, 2].T  # (8, 40)
    lowest, arm = heights.min(axis=0), corners[heights.argmin(axis=0)]
    second = np.sort(heights, axis=0)[1]
    keep = second - lowest > 1e-3
    q = np.concatenate([np.zeros((40, 2)), -lowest[:, None] - 1e-9, p], axis=1)
    sol = jax.vmap(lambda q, u: simulate(system, Moreau(), q, u, n_steps=2, dt=1e-10))(q[keep], u[keep])
    assert np.all(sol.outcome == Outcome.SUCCESS) and keep.sum() > 30
    lever = np.cross(arm, R[:, 2])  # in the body
    approach = u[:, 2] + np.einsum("ki,ki->k", lever, u[:, 3:])
    solved = np.linalg.solve(TENSOR, lever.T).T
    P = np.maximum(-(1 + e) * approach, 0) / (1 / mass + np.einsum("ki,ki->k", lever, solved))
    exact = u + np.concatenate([np.zeros((40, 2)), P[:, None] / mass, P[:, None] * solved], axis=1)
    assert_allclose(sol.u[:, -1], exact[keep], atol=1e-6)


@pytest.mark.parametrize("down", [2, 4])
def test_a_tossed_cube_lands_on_rounded_corners(down):
    """On an edge or a face, without friction: every corner that is down leaves with its restitution times what it came with."""
    e = 0.3
    cube = models.TossedCube(
        e_corner=e, e_edge=e, e_face=e, offset=0.0, inertia=1e-3, inertia_z=1e-3, mu=0.0, mu_impact=0.0, e_F=0.0, slope=0.0, radius=0.005
    )
    angle = np.pi / 4 if down == 2 else 0.0
    half = 0.5 * cube.side - cube.radius
    below = half * np.sqrt(2) if down == 2 else half
    q0 = np.array([0.0, 0.0, below + cube.radius + cube.board - 1e-9, np.cos(angle / 2), np.sin(angle / 2), 0.0, 0.0])
    turn = 0.7 if down == 2 else 0.0  # about the line in which the edge's centre and that of the cube are
    u0 = np.array([0.2, -0.1, -1.0, 0.0, turn * np.sin(angle), turn * np.cos(angle)]) + np.array(
        [0, 0, 0, 0, 1.1 * np.cos(angle), -1.1 * np.sin(angle)]
    )
    sol = simulate(cube, Moreau(), jnp.array(q0), jnp.array(u0), n_steps=2, dt=1e-10).raise_if_failed()
    # The corners are at +-half along x, which their velocities depend on by the turn about the horizontal line across.
    R = rotation(q0[3:])
    centres = half * np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)])
    low = centres[np.argsort(centres @ R[2])[:down]]
    W = np.stack([np.r_[0.0, 0, 1.0, np.cross(c - cube.radius * R[2], R[2])] for c in low])
    mass = np.array([cube.mass] * 3 + [1e-3] * 3)
    P = np.linalg.lstsq(W / mass @ W.T, -(1 + e) * W @ u0, rcond=1e-10)[0]
    assert np.all(P > 0)
    assert_allclose(sol.u[-1], u0 + (W.T @ P) / mass, atol=1e-7)
    assert_allclose(W @ np.asarray(sol.u[-1]), -e * W @ u0, atol=1e-7)


@pytest.mark.slow
def test_six_balls_that_collide_keep_their_momenta():
    """Without weight, with friction and restitution: momentum to round-off, its moment to the order of the step, no energy from nowhere."""
    rng = np.random.default_rng(4)
    x = 0.3 * np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0.1], [-0.9, 0.1, 0.2]])
    balls = [bodies.Body(f"b{k}", 0.5 + 0.1 * k, shapes=bodies.Sphere(0.1), position=tuple(x[k])) for k in range(6)]
    system = bodies.assemble(balls, gravity=(0.0, 0.0, 0.0), mu=0.4, e_N=0.8)
    q0, _ = system.initial_state()
    u0 = rng.standard_normal((6, 6)) * np.array([0.3, 0.3, 0.3, 4, 4, 4]) - np.c_[3 * (x - x.mean(axis=0)), np.zeros((6, 3))]
    m = 0.5 + 0.1 * np.arange(6)
    J = 0.4 * m * 0.1**2
    drift = []
    for dt in (4e-4, 2e-4):
        sol = simulate(system, Moreau(), q0, jnp.array(u0.ravel()), n_steps=round(0.4 / dt), dt=dt).raise_if_failed()
        u, q = np.asarray(sol.u).reshape(-1, 6, 6), np.asarray(sol.q).reshape(-1, 6, 7)
        assert np.sum(np.asarray(sol.P_N).max(axis=0) > 0) >= 4
        p = np.einsum("b,kbi->ki", m, u[:, :, :3])
        assert_allclose(p, np.broadcast_to(p[0], p.shape), atol=1e-12)
        spin = np.array(
            [
                [rotation(row[3:]) @ w for row, w in zip(bodies_q, ws, strict=True)]
                for bodies_q, ws in zip(q[::50], u[::50, :, 3:], strict=True)
            ]
        )
        L = np.einsum("b,kbi->ki", m, np.cross(q[::50, :, :3], u[::50, :, :3])) + np.einsum("b,kbi->ki", J, spin)
        drift.append(np.abs(L - L[0]).max() / np.abs(L[0]).max())
        energy = 0.5 * np.einsum("b,kbi->k", m, u[:, :, :3] ** 2) + 0.5 * np.einsum("b,kbi->k", J, u[:, :, 3:] ** 2)
        assert np.diff(energy).max() < 1e-13
    assert drift[1] < 5e-3 and drift[1] < 0.8 * drift[0], drift


@pytest.mark.parametrize("scheme", [Lobatto(2), Lobatto(3), LocatedImpacts(MoreauJean()), LocatedImpacts(Lobatto(3))], ids=repr)
def test_a_ball_bounces_by_poissons_law(scheme):
    """Normal: e times what it came with. Along the floor the percussion of friction is what stops the slip, or mu times the normal one;
    what sticks at the end of compression has no slip to lose in the expansion. Three frictions and spins at once.
    """
    e, h, R, k = 0.6, 0.3, 0.1, 0.4

    @jaxnsd.system
    class Ball(models.RotatingBall):
        def law(self):
            return PoissonImpact(e)

    mu, spin = np.array([0.05, 0.5, 0.2]), np.array([60.0, 10.0, -60.0])
    fall = np.sqrt(2 * h / G)
    dt = 2 * fall / 101  # the impact is half way in a step

    def run(mu, spin):
        ball = Ball(mu=mu, e_N=0.0)
        sol = simulate(ball, scheme, jnp.array([0.0, R + h, 0.0]), jnp.stack([0.0, 0.0, spin]), n_steps=75, dt=dt)
        return sol.u[-1], jnp.all(sol.outcome == Outcome.SUCCESS)

    u, solved = jax.vmap(run)(mu, spin)
    assert np.all(solved)
    v = G * fall
    slip = R * spin
    P = np.minimum(mu * (1 + e) * v, k / (1 + k) * np.abs(slip)) * -np.sign(slip)
    late = 75 * dt - fall
    order = G * dt if not isinstance(scheme, LocatedImpacts) else 1e-9
    exact = np.stack([P, e * v - G * late + 0 * P, spin + P / (k * R)], axis=1)
    tolerance = 1e-9 + (1 + e) * order * np.stack([mu, 1 + 0 * mu, mu / (k * R)], axis=1)
    assert np.all(np.abs(u - exact) < tolerance), u - exact
