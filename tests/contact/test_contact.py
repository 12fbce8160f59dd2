"""The contact solver, seen from outside: the law in plain NumPy, closed forms, other solvers, finite differences."""

import dataclasses
import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from little_systems import quick
from scipy.optimize import nnls

import jaxnsd
from jaxnsd import Outcome, SemismoothNewton, contact
from jaxnsd.simulation.contact_problem import solve_contact_problem

SEED = 20181
#: (n, d) of the fresh problems.
FAST = [(3, 1), (3, 2)]
SHAPES = [(1, 1), (2, 1), (3, 1), (5, 1), (1, 2), (2, 2), (3, 2), (4, 2), (6, 2)]


def generator(*key):
    """Random numbers that depend on the seed above and on the test; pytest shows the seed when a test fails."""
    print("seed", (SEED, *key))
    return np.random.default_rng((SEED, *key))


def natural_map(P, xi, mu, G, d):
    """Largest entry of the natural map of every contact law, written here from C18 (30), (56), (57) and from nothing else."""
    n = len(P) // (d + 1)
    P, xi, diagonal = P.reshape(n, d + 1), xi.reshape(n, d + 1), np.diag(G).reshape(n, d + 1)
    worst = 0.0
    for i in range(n):
        r = 1 / diagonal[i].mean() if diagonal[i].mean() > 0 else 1.0
        x = P[i, 1:] - r * xi[i, 1:]
        radius, length = mu[i] * max(P[i, 0], 0), np.linalg.norm(x)
        if length > radius:
            x = x * radius / length
        worst = max(worst, abs(P[i, 0] - max(0, P[i, 0] - r * xi[i, 0])), *np.abs(P[i, 1:] - x))
    return worst


def spd(rng, m, low=0.3):
    """Random symmetric positive definite matrix with eigenvalues from ``low`` to 3."""
    Q, _ = np.linalg.qr(rng.normal(size=(m, m)))
    return (Q * rng.uniform(low, 3, m)) @ Q.T


def random_problem(rng, n, d):
    """M random, W random; the free velocity is random."""
    m = n * (d + 1)
    M, W = spd(rng, m + 3), rng.normal(size=(m + 3, m)) / np.sqrt(m + 3)
    return W.T @ np.linalg.solve(M, W), rng.normal(size=m), rng.uniform(0, 1, n)


def stack_problem(rng, n, d):
    """A stack of n bodies of different masses under gravity, pushed sideways: G is block-tridiagonal."""
    m = n * (d + 1)
    mass = rng.uniform(0.3, 3, n).repeat(d + 1)
    W = np.eye(m) - np.eye(m, k=d + 1)
    u = np.tile(np.concatenate([[-1.0], np.zeros(d)]), n) + 0.5 * rng.normal(size=m)
    return W.T @ (W / mass[:, None]), W.T @ u, rng.uniform(0, 1, n)


def known_problem(rng, n, d, modes=None, mu=None):
    """A problem made from its solution: open, sticking and sliding contacts, at least one percent of the size away from a kink."""
    m = n * (d + 1)
    G = spd(rng, m)
    mu = rng.uniform(0.02, 0.25, n) if mu is None else np.full(n, mu)
    modes = rng.choice(["open", "stick", "slide"], n) if modes is None else modes
    P, xi = np.zeros((n, d + 1)), np.zeros((n, d + 1))
    for i, mode in enumerate(modes):
        direction = rng.normal(size=d)
        direction /= np.linalg.norm(direction)
        if mode == "open":
            xi[i, 0], xi[i, 1:] = rng.uniform(0.1, 2), rng.normal(size=d)
            continue
        P[i, 0] = rng.uniform(0.1, 2)
        if mode == "stick":
            P[i, 1:] = rng.uniform(0, 0.95) * mu[i] * P[i, 0] * direction
        else:
            P[i, 1:], xi[i, 1:] = mu[i] * P[i, 0] * direction, -rng.uniform(0.1, 2) * direction
    P, xi = P.ravel(), xi.ravel()
    return (G, xi - G @ P, mu), P, xi


@functools.partial(jax.jit, static_argnames=("d", "solver"))
def solve_batch(G, c, mu, d, solver=None, guess=None):
    guess = jnp.zeros_like(c) if guess is None else guess
    return jax.vmap(lambda G, c, mu, guess: solve_contact_problem(G, c, mu, d=d, solver=solver, guess=guess))(G, c, mu, guess)


@functools.partial(jax.jit, static_argnames="d")
def derivatives(G, c, mu, d):
    """Jacobians of xi by G, c, mu for a batch, in forward and in reverse mode."""
    xi = lambda *args: solve_contact_problem(*args, d=d).xi  # noqa: E731
    return tuple(jax.vmap(transform(xi, argnums=(0, 1, 2)))(G, c, mu) for transform in (jax.jacfwd, jax.jacrev))


def stacked(problems):
    return tuple(np.stack(part) for part in zip(*problems, strict=True))


def fresh(n, d, count, seed=0):
    """``count`` problems: a third random, a third stacks, a third made from a known solution."""
    rng = generator(n, d, seed)
    kinds = (random_problem, stack_problem, lambda *args: known_problem(*args)[0])
    return stacked([kinds[k % 3](rng, n, d) for k in range(count)])


def solve_one(G, c, mu, d=2, **kwargs):
    """Solution as NumPy arrays, checked against the law."""
    solution = jax.tree.map(np.asarray, solve_contact_problem(G, c, mu, d=d, **kwargs))
    mu = np.broadcast_to(mu, (len(c) // (d + 1),))
    assert solution.outcome == Outcome.SUCCESS and solution.contact == -1
    # The solver promises 1e-12 of the terms that a row is made of.
    terms = np.max(np.abs(G) @ np.abs(solution.P), initial=0)
    assert natural_map(solution.P, solution.xi, mu, np.asarray(G), d) <= 1e-12 * max(100, terms)
    np.testing.assert_allclose(G @ solution.P + c, solution.xi, rtol=0, atol=1e-11)
    return solution


# --------------------------------------------------------------------------------------------------------------- values
@pytest.mark.parametrize("n, d", [s if s in FAST else pytest.param(*s, marks=pytest.mark.slow) for s in SHAPES])
def test_fresh_problems_are_solved_in_few_iterations(n, d):
    G, c, mu = fresh(n, d, 225)
    solution = jax.tree.map(np.asarray, solve_batch(G, c, mu, d))
    residual = np.array([natural_map(*x, d) for x in zip(solution.P, solution.xi, mu, G, strict=True)])
    np.testing.assert_allclose(np.einsum("kij,kj->ki", G, solution.P) + c, solution.xi, rtol=0, atol=1e-12 * (1 + np.abs(solution.P).max()))
    assert np.mean(residual <= 1e-10) == 1
    assert np.median(solution.iterations) <= 6
    # What is not solved says so, and nothing that is solved is called unsolved.
    np.testing.assert_array_equal(residual <= 1e-10, solution.outcome == Outcome.SUCCESS)
    np.testing.assert_array_equal(solution.contact >= 0, solution.outcome != Outcome.SUCCESS)


@pytest.mark.parametrize("n, d", [(3, 1), (3, 2)])
def test_constructed_solution_is_found(n, d):
    rng = generator(n, d, 1)
    made = [known_problem(rng, n, d, mu=0.1) for _ in range(225)]
    solution = solve_batch(*stacked([problem for problem, _, _ in made]), d)
    assert np.all(solution.outcome == Outcome.SUCCESS)
    np.testing.assert_allclose(solution.P, [P for _, P, _ in made], atol=1e-9)
    np.testing.assert_allclose(solution.xi, [xi for _, _, xi in made], atol=1e-9)


@pytest.mark.parametrize("n", [3, pytest.param(6, marks=pytest.mark.slow)])
def test_frictionless_contact_is_a_quadratic_program(n):
    # Minimize 1/2 P^T G P + c^T P over P >= 0, with G = L L^T: the nonnegative least squares problem |L^T P + L^-1 c|.
    rng = generator(n, 2)
    for _ in range(10):
        G, c = spd(rng, n), rng.normal(size=n)
        L = np.linalg.cholesky(G)
        P, _ = nnls(L.T, -np.linalg.solve(L, c))
        np.testing.assert_allclose(solve_one(G, c, 0.0, d=0).P, P, atol=1e-10)


def test_no_friction_gives_the_frictionless_solution_and_no_tangential_percussion():
    rng = generator(3)
    G, c, _ = random_problem(rng, 3, 2)
    solution = solve_one(G, c, 0.0)
    P = solution.P.reshape(3, 3)
    np.testing.assert_array_equal(P[:, 1:], 0)
    np.testing.assert_allclose(P[:, 0], solve_one(G[::3, ::3], c[::3], 0.0, d=0).P, atol=1e-11)


def test_one_contact_by_hand():
    # A particle of mass 2 thrown on the floor: G = 1/2; it sticks while |P_F| <= mu P_N, else slides against its motion.
    G = np.eye(3) / 2
    sticking = solve_one(G, np.array([-1.0, 0.3, -0.4]), 0.6)
    np.testing.assert_allclose(sticking.P, [2, -0.6, 0.8], atol=1e-14)
    np.testing.assert_allclose(sticking.xi, 0, atol=1e-14)
    sliding = solve_one(G, np.array([-1.0, 3.0, -4.0]), 0.5)
    np.testing.assert_allclose(sliding.P, [2, -0.6, 0.8], atol=1e-13)
    np.testing.assert_allclose(sliding.xi, [0, 2.7, -3.6], atol=1e-13)
    planar = solve_one(np.eye(2) / 2, np.array([-1.0, 3.0]), 0.5, d=1)
    np.testing.assert_allclose(planar.P, [2, -1], atol=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize("d", [0, 1, 2])
def test_open_contacts_and_contacts_at_rest_need_no_percussion(d):
    G, _, mu = random_problem(generator(4), 2, d) if d else (spd(generator(4), 2), None, np.ones(2))
    for c in (np.zeros(2 * (d + 1)), np.tile(np.r_[[0.7], -np.ones(d)], 2)):
        solution = solve_one(G, c, mu, d=d)
        np.testing.assert_array_equal(solution.P, 0)
        assert solution.iterations == 0


def test_immovable_directions():
    # Rows of zeros: a contact that no velocity reaches, at rest or opening by itself.
    G, c, mu = random_problem(generator(5), 2, 2)
    G[3:], G[:, 3:] = 0, 0
    solution = solve_one(G, np.r_[c[:3], 0.2, 1.0, 0.0], mu)
    np.testing.assert_array_equal(solution.P[3:], 0)
    np.testing.assert_allclose(solution.P[:3], solve_one(G[:3, :3], c[:3], mu[:1]).P, atol=1e-11)
    # Approaching, it cannot be stopped: reported, not passed off as solved.
    stuck = solve_contact_problem(G, np.r_[c[:3], -0.2, 1.0, 0.0], mu)
    assert stuck.outcome == Outcome.NOT_CONVERGED and stuck.contact == 1


def test_inactive_contacts_carry_nothing():
    G, c, mu = random_problem(generator(6), 3, 2)
    c[::3] = -1.0
    active = np.array([True, False, True])
    solution = solve_contact_problem(G, c, mu, active=active)
    keep = np.repeat(active, 3)
    np.testing.assert_array_equal(solution.P[~keep], 0)
    np.testing.assert_allclose(solution.P[keep], solve_one(G[np.ix_(keep, keep)], c[keep], mu[active]).P, atol=1e-10)
    jacobian = jax.jacrev(lambda c: solve_contact_problem(G, c, mu, active=active).P)(c)
    np.testing.assert_array_equal(jacobian[~keep], 0)


def test_guess_at_the_solution_takes_no_iteration():
    G, c, mu = random_problem(generator(6), 3, 2)
    solution = solve_one(G, c, mu)
    again = solve_one(G, c, mu, guess=solution.P)
    assert again.iterations <= 1
    np.testing.assert_allclose(again.P, solution.P, atol=1e-10)


def test_no_contact_at_all():
    solution = solve_contact_problem(np.zeros((0, 0)), np.zeros(0), np.zeros(0))
    assert solution.P.shape == solution.xi.shape == (0,) and solution.outcome == Outcome.SUCCESS


def test_scaling_of_units_does_not_matter():
    # Other units of velocity and of mass scale P; the tolerance goes with them.
    G, c, mu = random_problem(generator(6), 3, 2)
    P = solve_one(G, c, mu).P
    for velocity, mass in ((1e-6, 1.0), (1e6, 1.0), (1.0, 1e-5), (1e3, 1e4)):
        solution = solve_contact_problem(G / mass, velocity * c, mu)
        assert solution.outcome == Outcome.SUCCESS
        np.testing.assert_allclose(solution.P, velocity * mass * P, atol=1e-9 * velocity * mass)


@pytest.mark.slow
@pytest.mark.parametrize("n, d", [(1, 1), (1, 2), (3, 2)])
def test_float32(n, d):
    G, c, mu = (x.astype(np.float32) for x in fresh(n, d, 60, seed=7))
    solution = solve_batch(G, c, mu, d)
    assert solution.P.dtype == solution.xi.dtype == solution.residual.dtype == jnp.float32
    residual = np.array([natural_map(*x, d) for x in zip(solution.P, solution.xi, mu, G, strict=True)])
    solved = np.asarray(solution.outcome == Outcome.SUCCESS)
    # The tolerance is relative to what a row is made of, in units of the solver: the natural map here has r of its own.
    size = np.array([np.abs(b).max() + np.abs(A).max() * np.abs(P).max() for A, b, P in zip(G, c, solution.P, strict=True)])
    assert solved.mean() >= 0.98 and (residual / size)[solved].max() < 4 * SemismoothNewton().tolerance_for(np.float32)
    for jacobian in jax.tree.leaves(derivatives(G, c, mu, d)):
        assert jacobian.dtype == jnp.float32 and np.all(np.isfinite(jacobian))


# ----------------------------------------------------------------------------------- what Newton's method alone does not solve
@pytest.mark.slow
def test_a_block_on_two_corners_that_cannot_both_stick():
    # G is singular: the corners' sticking rows contradict each other by a slip of 1e-8 m/s, so one of them slips. A block with
    # half sides 0.1 and 0.15 that comes to rest, tilted by 1e-4 ... 1e-10 rad, with restitution in what arrives.
    half, height, mass = 0.1, 0.15, np.array([1.0, 1.0, (0.1**2 + 0.15**2) / 3])
    G, c = [], []
    for tilt in 10.0 ** -np.arange(4, 11):
        arm, depth = half * np.sin(tilt), height * np.cos(tilt)
        x = half * np.cos(tilt) * np.array([-1, 1])
        lever = np.array([-arm, arm]) - depth
        W = np.array([row for i in (0, 1) for row in ((0, 1, x[i] + height * np.sin(tilt)), (1, 0, -lever[i]))]).T
        arriving = np.array([0, -9.81e-3, 3 * tilt])
        G.append(W.T @ (W / mass[:, None]))
        c.append(W.T @ (arriving - np.array([0, 9.81e-3, 0])) + np.array([0.5, 0, 0.5, 0]) * (W.T @ arriving))
    mu = np.full((len(G), 2), 0.3)
    for tolerance in (None, 1e-8, 1e-5):  # and a looser tolerance does not fail where a tighter one succeeds
        solution = solve_batch(np.array(G), np.array(c), mu, 1, SemismoothNewton(tolerance=tolerance))
        assert np.all(solution.outcome == Outcome.SUCCESS)
        residual = [natural_map(*x, 1) for x in zip(solution.P, solution.xi, mu, G, strict=True)]
        assert max(residual) <= (1e-14 if tolerance is None else 1e-2 * tolerance)
    assert np.all(solution.iterations < 60)


def of_planar_contacts(solution, G, c, mu):
    """The natural map (k, 2) of problems of a single contact each, and the terms that it is made of, a disc's radius included."""
    P, xi, G, c, mu = (np.asarray(x, float) for x in (solution.P, solution.xi, G, c, mu))
    r = 1 / np.where(G > 0, G, 1)[:, [0, 1], [0, 1]]
    x = P - r * xi
    radius = mu[:, 0] * np.maximum(0, x[:, 0])
    F = np.stack([P[:, 0] - np.maximum(0, x[:, 0]), P[:, 1] - np.clip(x[:, 1], -radius, radius)], 1)
    terms = np.abs(P) + r * (np.einsum("kij,kj->ki", np.abs(G), np.abs(P)) + np.abs(c))
    return F, terms + mu * terms[:, :1]


def test_every_planar_contact_has_its_solution():
    # Any regular G and mu up to 1.5: Newton's method cycles on some, which all have a solution. One contact is solved in closed form.
    rng = generator(12)
    L = rng.normal(size=(20000, 2, 2))
    G, c, mu = L @ L.swapaxes(1, 2), rng.normal(size=(20000, 2)), rng.uniform(0, 1.5, (20000, 1))
    G[0], c[0] = [[17.96939500235976, -53.91355480627282], [-53.91355480627282, 162.9842210232885]], [-0.2893600936952829, 3.62666638496983]
    mu[0] = 1.5
    solution = solve_batch(G, c, mu, 1)
    np.testing.assert_array_equal(solution.outcome, Outcome.SUCCESS)
    np.testing.assert_allclose(solution.P[0], [0.00292756872016972, -0.00439135308025458], rtol=1e-9)
    F, terms = of_planar_contacts(solution, G, c, mu)
    assert np.all(np.abs(F) <= 1e-11 * terms)


@pytest.mark.parametrize("dtype, decades, tolerance", [(np.float64, 4, 1e-11), (np.float32, 1.5, 1e-5)])
def test_planar_contacts_of_all_scales_at_the_borders_of_their_modes(dtype, decades, tolerance):
    # Percussions at the edge of the cone and next to it, velocities of zero, one contact that only its normal row moves, and one that
    # nothing does.
    rng = generator(21)
    n = 4000
    L = rng.normal(size=(2 * n, 3, 2)) * 10.0 ** rng.uniform(-decades, decades, (2 * n, 1, 2))
    G, mu = L.swapaxes(1, 2) @ L, 10.0 ** rng.uniform(-8, decades / 4, (2 * n, 1))
    size = np.sqrt(G[:, [0, 1], [0, 1]])
    c = rng.normal(size=(2 * n, 2)) * size * rng.choice([0, 1, 1e-18], (2 * n, 2))
    P = np.abs(rng.normal(size=n)) / size[:n, 0]
    cone = mu[:n, 0] * rng.choice([-1, 1], n) * (1 + rng.choice([0, 1e-16, -1e-16, 1e-13, -1e-10], n))
    c[:n] = -np.einsum("kij,kj->ki", G[:n], np.stack([P, cone * P], 1))
    G[-1], c[-1], G[-2], c[-2] = [[2, 0], [0, 0]], [-1, 0], 0, 1
    G, c, mu = (x.astype(dtype) for x in (G, c, mu))
    solution = solve_batch(G, c, mu, 1)
    np.testing.assert_array_equal(solution.outcome, Outcome.SUCCESS)
    np.testing.assert_allclose(solution.P[-2:], [[0, 0], [0.5, 0]])
    F, terms = of_planar_contacts(solution, G, c, mu)
    assert np.all(np.abs(F) <= tolerance * terms + np.finfo(dtype).tiny)


def test_a_planar_contact_whose_rows_depend_on_each_other():
    # A body with one velocity: many percussions stop it, rounding decides which; on a ground that moves along it can only slide.
    a = np.array([2.0, 3.0])
    stops = solve_one(np.outer(a, a), -0.7 * a, 0.4, d=1)
    np.testing.assert_allclose(a @ stops.P, 0.7, rtol=1e-14)
    assert 0 <= abs(stops.P[1]) <= 0.4 * stops.P[0] * (1 + 1e-14)
    slides = solve_one(np.ones((2, 2)), np.array([-1.0, 0.0]), 0.5, d=1)
    np.testing.assert_allclose([*slides.P, *slides.xi], [2, -1, 0, 1], rtol=1e-14)


def test_of_several_solutions_the_next_one_is_found():
    # mu times the coupling is larger than the normal inertia: a contact that may open may stick as well.
    G, c = np.array([[1.0, -0.9], [-0.9, 1.0]]), np.array([0.1, -1.0])
    stuck = np.linalg.solve(G, -c)
    assert stuck[0] > 0 and abs(stuck[1]) < 1.5 * stuck[0]
    np.testing.assert_array_equal(solve_one(G, c, 1.5, d=1).P, 0)
    np.testing.assert_allclose(solve_one(G, c, 1.5, d=1, guess=stuck).P, stuck, rtol=1e-12)


#: A (4, 8), v, e and mu of a body that jams in its four contacts and is asked to bounce.
JAMMED = (
    [
        [0.37, -0.2, -0.31, -0.25, 0.15, 0.23, -0.06, -0.04],
        [1.43, -1.46, -1.07, -0.57, -1.0, -1.27, 2.1, -2.93],
        [-0.51, -0.11, -0.25, 0.33, -0.43, -0.19, 0.39, -0.1],
        [-0.41, 0.08, 0.1, 0.11, -0.3, 0.54, -0.01, 0.08],
    ],
    [-2.86, 0.18, 0.67, 7.3],
    0.08,
    [0.95, 0.91, 0.5, 1.01],
)


def test_a_body_that_jams_and_is_asked_to_bounce():
    # The free velocity yields power to percussions of the friction cones that are without effect, so that Lemke's method may end in a ray.
    A, v, e, mu = map(np.array, JAMMED)
    G, c = A.T @ A, A.T @ v
    c[::2] *= np.where(c[::2] < 0, 1 + e, 1)
    solution = solve_one(G, c, mu, d=1)
    assert np.abs(solution.P).max() < 100


def jammed_problem(rng, n):
    """A planar problem of few velocities made from a solution, whose free velocity is therefore none of a body: the contacts may jam."""
    A = rng.normal(size=(rng.integers(max(2, n // 2), 2 * n), 2 * n))
    A *= np.exp(0.7 * rng.normal(size=(len(A), 1)))
    mu, P, xi = rng.uniform(0, 1.2, n), np.zeros((n, 2)), np.zeros((n, 2))
    for i, mode in enumerate(rng.integers(0, 4, n)):
        if mode == 0:
            xi[i] = rng.uniform(0.1, 2), rng.normal()
            continue
        side = (0, rng.uniform(-0.95, 0.95), 1, -1)[mode]
        P[i] = rng.uniform(0.1, 2) * np.array([1, side * mu[i]])
        xi[i, 1] = -side * rng.uniform(0.1, 2) * (mode > 1)
    return A.T @ A, xi.ravel() - A.T @ (A @ P.ravel()), mu


@pytest.mark.parametrize("n", [4, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", [np.float64, pytest.param(np.float32, marks=pytest.mark.slow)])
def test_every_planar_problem_that_has_a_solution_is_solved(n, dtype):
    # Lemke's method alone leaves one in a thousand.
    rng = generator(n, 14)
    G, c, mu = (x.astype(dtype) for x in stacked([jammed_problem(rng, n) for _ in range(4000)]))
    solution = jax.tree.map(np.asarray, solve_batch(G, c, mu, 1))
    np.testing.assert_array_equal(solution.outcome, Outcome.SUCCESS)
    if dtype == np.float64:
        for P, *problem in zip(solution.P, G, c, mu, strict=True):
            assert natural_map(P, problem[0] @ P + problem[1], mu=problem[2], G=problem[0], d=1) <= 1e-10 * (1 + np.abs(P).max())


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_closing_walls_are_no_success(dtype):
    # A body between two walls: percussions v of both are without effect. A solution exists where the free velocity has no power at them.
    rng = generator(15)
    w = rng.uniform(0.5, 2, (1000, 2)) * [1, -1]
    G, c = (w[:, :, None] * w[:, None, :]).astype(dtype), rng.normal(size=(1000, 2)).astype(dtype)
    v = np.abs(w[:, ::-1])
    power = np.sum(c * v, axis=1) / np.sqrt(np.sum(c**2, axis=1) * np.sum(v**2, axis=1))
    outcome = np.asarray(solve_batch(G, c, np.zeros((1000, 2), dtype), 0).outcome)
    np.testing.assert_array_equal(outcome[power > 0], Outcome.SUCCESS)
    np.testing.assert_array_equal(outcome[power < -0.01], Outcome.NOT_CONVERGED)


@pytest.mark.parametrize("dtype, a", [(np.float64, 1e6), (np.float32, 1e3)])
def test_every_contact_is_solved_in_its_own_units(dtype, a):
    solution = solve_contact_problem(np.diag(np.array([1 / a, a], dtype)), -np.ones(2, dtype), dtype(0), d=0)
    assert solution.outcome == Outcome.SUCCESS
    np.testing.assert_allclose(solution.P, [a, 1 / a], rtol=1e-6)
    np.testing.assert_allclose(solution.xi, 0, atol=1e-6)


@jaxnsd.system
class Stack(jaxnsd.System):
    """Bodies on top of each other, on a floor at zero; q are the heights of their lower sides less those at rest."""

    mass: jax.Array

    def mass_matrix(self, t, q):
        return jnp.diag(self.mass)

    def potential_energy(self, t, q):
        return 9.81 * self.mass @ q

    def gap(self, t, q):
        return q - jnp.concatenate([jnp.zeros_like(q[:1]), q[:-1]])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_stack_of_very_different_masses_carries_itself(dtype):
    # Heavy on light, mass ratio 1e5: in float32 the heavy body's share in G is known to one percent.
    stack, zero = Stack(jnp.asarray([1.0, 1e5, 1.0, 1e5], dtype)), jnp.zeros(4, dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        solution = jaxnsd.simulate(stack, jaxnsd.Moreau(), zero, zero, 0.2, 1e-3)
    assert solution.success
    assert np.abs(solution.q).max() < (1e-4 if dtype == np.float64 else 0.02)


# -------------------------------------------------------------------------------------------------- redundant contacts
def box(corners, spin=None):
    """A box of mass 1 on a floor: W of shape (6, 3 n) for n corners, velocities (translation, rotation), rows N, T1, T2."""
    x = np.array([(a, b, -0.5) for a in (-1, 1) for b in (-0.7, 0.7)])
    if corners == 8:
        x = np.concatenate([x, 0.5 * x + [0, 0, -0.25]])  # four more feet inside the first four
    rows = []
    for r in x:
        velocity = np.concatenate([np.eye(3), np.cross(np.eye(3), r).T @ np.eye(3)], axis=1)
        velocity[:, 3:] = np.array([[0, r[2], -r[1]], [-r[2], 0, r[0]], [r[1], -r[0], 0]])  # omega x r
        rows.extend(velocity[[2, 0, 1]])
    inertia = np.array([1, 1, 1, 0.25, 0.45, 0.6])
    return np.array(rows).T, inertia


CASES = {
    "sticks": ([0.1, -0.05, -1, 0, 0, 0.02], 0.8),
    "slides": ([2.0, 1.0, -1, 0, 0, 0], 0.2),
    "slides and turns": ([1.5, -0.3, -1, 0, 0, 0.8], 0.2),
    "rocks": ([0.0, 0.1, -1, 0, 2.5, 0], 0.5),
    "tips over an edge": ([0.0, 0.0, -0.2, 1.0, 0.1, 0], 0.4),
}


@pytest.mark.slow
@pytest.mark.parametrize("corners", [4, 8])
def test_redundant_corners(corners):
    # Coulomb friction with more contacts than velocities: G has rank 6. A second solve from another guess, and of a G made
    # regular by a tiny compliance of the corners, must give the same velocities, while single percussions differ. Not so for a box that
    # slides and turns: the share of the corners in the weight, which the law leaves open, decides the friction's moment.
    W, inertia = box(corners)
    u, mu = np.array([case[0] for case in CASES.values()]), np.array([np.full(corners, case[1]) for case in CASES.values()])
    G = np.broadcast_to(W.T @ (W / inertia[:, None]), (len(u), len(W.T), len(W.T)))
    c = u @ W
    solution = solve_batch(G, c, mu, 2)
    assert np.all(solution.outcome == Outcome.SUCCESS)
    assert max(natural_map(*x, 2) for x in zip(solution.P, solution.xi, mu, G, strict=True)) <= 1e-10
    velocity = u + np.asarray(solution.P) @ W.T / inertia
    np.testing.assert_allclose(velocity @ W, solution.xi, atol=1e-11)
    other = solve_batch(G, c, mu, 2, guess=np.abs(generator(corners).normal(size=c.shape)))
    compliant = solve_batch(G + 1e-9 * np.eye(len(G[0])), c, mu, 2)
    assert max(natural_map(*x, 2) for x in zip(other.P, other.xi, mu, G, strict=True)) <= 1e-10
    unique = np.array(list(CASES)) != "slides and turns"
    for again in (other, compliant):
        np.testing.assert_allclose(again.xi[unique], solution.xi[unique], atol=1e-6)
    for jacobians in derivatives(G, c, mu, 2):
        for jacobian in jacobians:
            assert np.all(np.isfinite(jacobian)) and np.abs(jacobian).max() < 1e4


def tilted_cube(rng):
    """A cube on eight corners that are next to where they should be, at 1 m/s to 1 cm/s: 24 rows, of which six are independent."""
    corners = np.stack(np.meshgrid(*[(-1.0, 1.0)] * 3, indexing="ij"), axis=-1).reshape(8, 3) + 1e-3 * rng.normal(size=(8, 3))
    axes = np.tile(np.eye(3)[[2, 0, 1]], (8, 1))
    W = np.concatenate([axes, np.cross(np.repeat(corners, 3, axis=0), axes)], axis=1).T
    u = rng.choice([1, 0.1, 0.01]) * rng.normal(size=6) - 0.1 * np.eye(6)[2]
    return W.T @ (W / np.repeat([1, 0.6], 3)[:, None]), W.T @ u, np.full(8, rng.uniform(0, 1.3))


def test_damped_steps_lead_newtons_method_out_of_its_cycles():
    # Without the damping 35 % of them cycle.
    rng = generator(7)
    G, c, mu = stacked([tilted_cube(rng) for _ in range(300)])
    solution = solve_batch(G, c, mu, 2, SemismoothNewton().nearby())
    solved = np.asarray(solution.outcome == Outcome.SUCCESS)
    assert solved.mean() > 0.95
    for k in np.flatnonzero(solved):
        P = np.asarray(solution.P[k])
        assert natural_map(P, G[k] @ P + c[k], mu[k], G[k], 2) < 1e-10 * np.abs(c[k]).max()


@pytest.mark.slow
def test_in_a_branch_that_some_members_of_a_batch_take():
    """Of what the branch is given all is batched by JAX, constants of the solver, too, and that was refused."""
    n = 4
    W = generator(n).normal(size=(6, 3 * n))
    G, c = jnp.asarray(W.T @ W), jnp.concatenate([jnp.linspace(-0.2, 0.2, 2 * n), -jnp.ones(n)])

    def solved(size):
        problem = contact.Problem(G, size * c, jnp.full(n, 0.5), jnp.ones(n, bool), 2, redundant=True)
        return SemismoothNewton().solve(problem, jnp.zeros(3 * n)).z

    def asked(size):
        return jax.lax.cond(size > 0.5, solved, lambda size: jnp.zeros(3 * n), size)

    found, alone = jax.jit(jax.vmap(asked))(jnp.array([0.2, 1.0, 2.0])), jax.jit(solved)(1.0)
    np.testing.assert_array_equal(found[0], 0)
    for z, size in zip(found[1:], (1.0, 2.0), strict=True):
        np.testing.assert_allclose(W @ z, size * (W @ alone), atol=1e-8)
    assert np.max(np.abs(alone)) > 0.01


def test_redundant_corners_equal_one_contact_at_the_centre():
    # Without rotation a box that lands flat and slides is a particle: four corners act like one contact.
    W = box(4)[0][:3]  # it cannot turn
    u, mu = np.array([2.0, 1.0, -1.0]), 0.2
    solution = solve_one(W.T @ W, W.T @ u, mu)
    particle = solve_one(np.eye(3), u[[2, 0, 1]], mu)
    np.testing.assert_allclose(solution.xi.reshape(4, 3), np.tile(particle.xi, (4, 1)), atol=1e-11)
    np.testing.assert_allclose(solution.P.reshape(4, 3).sum(0), particle.P, atol=1e-11)
    derivative = jax.jit(jax.jacfwd(lambda u, mu: solve_contact_problem(W.T @ W, W.T @ u, mu).xi[:3], argnums=(0, 1)))(u, mu)
    expected = jax.jit(jax.jacfwd(lambda u, mu: solve_contact_problem(np.eye(3), u[jnp.array([2, 0, 1])], mu).xi, argnums=(0, 1)))(u, mu)
    for a, b in zip(derivative, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-8)


# ---------------------------------------------------------------------------------------------------------- derivatives
FORWARD, BACKWARD = (functools.partial(transform, argnums=(0, 1, 2)) for transform in (jax.jacfwd, jax.jacrev))
SMOOTH = [("stick",), ("slide",), ("open", "slide", "stick"), ("slide", "slide", "stick")]


@functools.cache
def of_data(d):
    """xi and P as a function of the data of a problem."""

    def solution(G, c, mu):
        solution = solve_contact_problem(G, c, mu, d=d)
        return jnp.concatenate([solution.xi, solution.P])

    return solution


def smooth_problem(modes, d):
    """A problem well away from every kink, and xi and P as a function of its data."""
    args, _, _ = known_problem(generator(len(modes), d, 8), len(modes), d, modes, mu=0.2)
    return of_data(d), tuple(map(jnp.asarray, args))


@functools.cache
def compiled(function, transform):
    """``transform(function)``, one program for all problems of a size."""
    return jax.jit(transform(function))


def differences(function, args, step=1e-6):
    """Central differences in the manner of `jax.jacfwd` with respect to all arguments side by side, by `vmap`."""
    flat, restore = ravel_pytree(args)
    rows, basis = jax.jit(jax.vmap(restore)), step * np.eye(flat.size)
    ends = [compiled(function, jax.vmap)(*rows(flat[None] + side * basis)) for side in (1, -1)]
    return (ends[0] - ends[1]).T / (2 * step)


def beside(derivatives):
    """Derivatives with respect to several arguments as one matrix."""
    return jnp.concatenate([x.reshape(len(x), -1) for x in derivatives], axis=1)


@pytest.mark.parametrize("modes", [pytest.param(modes, marks=[pytest.mark.slow] * (modes != SMOOTH[2])) for modes in SMOOTH])
@pytest.mark.parametrize("d", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_derivatives_are_those_of_the_solution(modes, d):
    function, args = smooth_problem(modes, d)
    expected = differences(function, args)
    for transform in FORWARD, BACKWARD:
        np.testing.assert_allclose(beside(compiled(function, transform)(*args)), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("d", [1, 2])
def test_second_derivatives(d):
    function, (G, c, mu) = smooth_problem(("slide", "stick"), d)
    gradient = lambda c, mu: jnp.concatenate(jax.grad(lambda c, mu: jnp.sum(jnp.sin(function(G, c, mu))), (0, 1))(c, mu))  # noqa: E731
    hessian = beside(jax.jit(jax.jacfwd(gradient, (0, 1)))(c, mu))
    np.testing.assert_allclose(hessian, differences(gradient, (c, mu)), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("d", [0, 1, 2])
def test_derivatives_at_kinks_are_finite(d):
    # At rest, at zero slip with the percussion on the border of the disc, grazing, without friction.
    G, ones = jnp.eye(d + 1), jnp.ones(d)
    border = -0.5 * ones / np.sqrt(max(d, 1))
    zero = 0 * ones
    c = jnp.stack([jnp.r_[0.0, zero], jnp.r_[-1.0, border], jnp.r_[0.0, ones], jnp.r_[-1.0, zero], jnp.r_[0.0, zero]])
    mu = jnp.array([0.5, 0.5, 0.5, 0.0, 0.0])[:, None]
    for jacobians in derivatives(jnp.broadcast_to(G, (5, d + 1, d + 1)), c, mu, d):
        for jacobian in jacobians:
            assert np.all(np.isfinite(jacobian))


# -------------------------------------------------------------------------------------------------- transformations, failures
@pytest.mark.slow
def test_vmap_equals_loop_and_nested_vmap():
    d = 2
    G, c, mu = fresh(2, d, 256, seed=9)
    batch = solve_batch(G, c, mu, d)
    single = jax.jit(lambda *args: solve_contact_problem(*args, d=d))
    loop = [single(*args) for args in zip(G, c, mu, strict=True)]
    nested = jax.jit(jax.vmap(jax.vmap(lambda *args: solve_contact_problem(*args, d=d))))(
        *(x.reshape(4, 64, *x.shape[1:]) for x in (G, c, mu))
    )
    for name in ("P", "xi", "outcome", "contact"):
        together = getattr(batch, name)
        np.testing.assert_allclose(together, np.stack([getattr(s, name) for s in loop]), atol=1e-9)
        np.testing.assert_allclose(together, getattr(nested, name).reshape(together.shape), atol=1e-9)


@pytest.mark.slow
def test_vmap_over_some_arguments_only():
    G, c, _ = random_problem(generator(10), 2, 1)
    friction = jnp.linspace(0.0, 1.0, 5)
    batch = jax.vmap(lambda mu: solve_contact_problem(G, c, mu, d=1).xi)(friction)
    for k in range(5):
        np.testing.assert_allclose(batch[k], solve_one(G, c, float(friction[k]), d=1).xi, atol=1e-11)
    gradient = jax.grad(lambda mu: jnp.sum(jax.vmap(lambda mu: solve_contact_problem(G, c, mu, d=1).xi)(mu)))(friction)
    np.testing.assert_allclose(
        gradient, jax.vmap(jax.grad(lambda mu: jnp.sum(solve_contact_problem(G, c, mu, d=1).xi)))(friction), atol=1e-12
    )


@pytest.mark.slow
def test_unsolved_and_broken_members_are_flagged_and_do_not_disturb_the_rest():
    G, c, mu = fresh(3, 2, 64, seed=11)
    hurried = SemismoothNewton(max_iterations=1, max_rescues=0)
    solution = solve_batch(G, c, mu, 2, hurried)
    residual = np.array([natural_map(*x, 2) for x in zip(solution.P, solution.xi, mu, G, strict=True)])
    np.testing.assert_array_equal(residual <= 1e-10, solution.outcome == Outcome.SUCCESS)
    unsolved = np.asarray(solution.outcome) == Outcome.NOT_CONVERGED
    assert unsolved.any() and np.all(np.asarray(solution.contact)[unsolved] >= 0) and np.all(np.asarray(solution.iterations) <= 1)
    good = solve_batch(G, c, mu, 2)
    c[7, 4] = np.nan
    bad = solve_batch(G, c, mu, 2)
    assert bad.outcome[7] == Outcome.NON_FINITE
    others = np.arange(64) != 7
    for a, b in zip(good, bad, strict=True):
        np.testing.assert_array_equal(np.asarray(a)[others], np.asarray(b)[others])


def test_one_compilation_serves_all_values():
    traces = []

    @jax.jit
    def solve(G, c, mu):
        traces.append(1)
        return solve_contact_problem(G, c, mu, d=1).P

    for seed in range(3):
        solve(*random_problem(generator(seed), 2, 1))
    assert len(traces) == 1


# --------------------------------------------------------------------------------------------------------------- checks
@pytest.mark.parametrize(
    "changes, error, message",
    [
        ({"G": np.eye(5)}, ValueError, r"G must have shape \(6, 6\).*got \(5, 5\)"),
        ({"G": np.eye(6, dtype=int)}, TypeError, "G must be of a floating dtype, got int64"),
        ({"G": np.eye(6, dtype=np.float32)}, TypeError, "G must have the dtype of c, float64, got float32"),
        ({"G": np.eye(6) + np.eye(6, k=1)}, ValueError, "G must be symmetric"),
        ({"G": -np.eye(6)}, ValueError, "positive semidefinite, got the eigenvalue -1"),
        ({"G": np.full((6, 6), np.nan)}, ValueError, "G must be finite"),
        ({"G": np.ones(6)}, ValueError, "G must have 2 axes"),
        ({"c": np.full(6, np.inf)}, ValueError, "c must be finite"),
        ({"c": np.ones((2, 3))}, ValueError, "c must have 1 axis.*jax.vmap"),
        ({"c": np.ones(5), "G": np.eye(5)}, ValueError, "c must have 3 rows per contact for d = 2"),
        ({"c": np.ones(6, int)}, TypeError, "c must be of a floating dtype"),
        ({"mu": -0.1}, ValueError, "mu must be finite and not negative, got -0.1"),
        ({"mu": np.array([0.1, -0.1])}, ValueError, "mu must be finite and not negative"),
        ({"mu": np.nan}, ValueError, "mu"),
        ({"mu": np.ones(3)}, ValueError, r"mu must be a scalar or of shape \(2,\)"),
        ({"d": 3}, ValueError, "d must be 0 .*1 .* or 2"),
        ({"d": 2.0}, ValueError, "d must be 0 .*1 .* or 2"),
        ({"active": np.ones(2)}, ValueError, "active must be 2 booleans"),
        ({"guess": np.ones(5)}, ValueError, "guess must have the shape of c"),
        ({"solver": 1e-8}, TypeError, "SemismoothNewton"),
    ],
)
def test_bad_input_is_refused(changes, error, message):
    given = {"G": np.eye(6), "c": np.ones(6), "mu": 0.3, "d": 2, **changes}
    with pytest.raises(error, match=message):
        solve_contact_problem(given.pop("G"), given.pop("c"), given.pop("mu"), **given)


@pytest.mark.parametrize("solver", [SemismoothNewton, jaxnsd.InteriorPoint])
@pytest.mark.parametrize(
    "field, value", [("tolerance", -1.0), ("tolerance", "a"), ("tolerance", jnp.ones(()) / 2), ("max_iterations", 2.5), ("max_outer", 0)]
)
def test_settings_that_make_no_sense_are_refused(solver, field, value):
    # With a negative tolerance the interior point method took nothing for a solution.
    with pytest.raises(ValueError, match=f"{solver.__name__}: {field} must"):
        solver(**{field: value})


@pytest.mark.parametrize("solver", [SemismoothNewton(), jaxnsd.InteriorPoint()])
def test_rows_that_contradict_each_other_by_what_they_are_known_to(solver):
    """Percussions that obey them as far as they are known are kept; where they are known better what is open carries nothing."""
    G, mu, guess = jnp.ones((2, 2)), jnp.zeros(2), jnp.array([0.5, 0.5])

    @quick
    def solve(c, rounding):
        problem = contact.Problem(G, c, mu, jnp.ones(2, bool), 0, rounding=rounding)
        return solver.solve(problem, guess, refine=True)

    for contradiction, rounding in ((1e-11, 3e-11), (1e-11, 0.0), (1e-9, 3e-11)):
        result = solve(jnp.array([-1.0, -1.0 + contradiction]), jnp.full(2, rounding))
        assert result.error <= 1
        np.testing.assert_allclose(result.z, [0.5, 0.5] if rounding > contradiction else [1, 0], rtol=0, atol=1e-2)


# -------------------------------------------------------------------------------------------------- a solver of one's own
@dataclasses.dataclass(frozen=True)
class Relaxation(jaxnsd.AbstractContactSolver):
    """Contact by contact in turn, planar, written as a user would."""

    sweeps: int = 2000

    def solve(self, problem, guess, *, refine=False):
        G, c, n = problem.G, problem.c, problem.n

        def visit(k, z):
            i = k % n
            j = n + i
            P_N = jnp.where(problem.active[i], jnp.maximum(0, z[j] - (G[j] @ z + c[j]) / G[j, j]), 0)
            z = z.at[j].set(P_N)
            return z.at[i].set(jnp.clip(z[i] - (G[i] @ z + c[i]) / G[i, i], -problem.mu[i] * P_N, problem.mu[i] * P_N))

        z = jax.lax.fori_loop(0, self.sweeps * n, visit, guess)
        zero = jnp.zeros((), problem.dtype)
        return jaxnsd.contact.Result(z, jnp.int32(self.sweeps), zero, zero, jnp.int32(-1))


@pytest.mark.slow
def test_a_solver_of_ones_own():
    G, c, mu = random_problem(generator(12), 3, 1)
    for args in ((G, c, mu), (G[:2, :2], c[:2], mu[:1])):  # above and below the size at which problems are unpacked
        own, ours = solve_one(*args, d=1, solver=Relaxation()), solve_one(*args, d=1)
        np.testing.assert_allclose(own.P, ours.P, atol=1e-10)
        gradients = [
            jax.jit(jax.grad(lambda c, s=s, args=args: solve_contact_problem(args[0], c, args[2], d=1, solver=s).P.sum()))(args[1])
            for s in (Relaxation(), None)
        ]
        np.testing.assert_allclose(*gradients, atol=1e-8)
    block = jaxnsd.models.CornerBlock(e_N=0.2, mu=0.4)
    runs = [jaxnsd.simulate(block, jaxnsd.Moreau(), *block.initial_state(), 0.4, 2e-3, solver=s) for s in (Relaxation(), None)]
    np.testing.assert_allclose(runs[0].q, runs[1].q, atol=1e-9)
    with pytest.raises(TypeError, match=r"hashable.*frozen=True"):
        solve_contact_problem(G, c, mu, d=1, solver=type("Mutable", (jaxnsd.AbstractContactSolver,), {"__hash__": None})())


def without_refine(self, problem, guess):
    """A method `solve` that lacks an argument."""


@pytest.mark.parametrize(
    "solve, error, message",
    [
        (without_refine, TypeError, r"Wrong\.solve must take \(problem, guess, \*, refine=False\), got \(problem, guess\)"),
        (lambda self, problem, guess, *, refine=False: guess, TypeError, r"Wrong\.solve must return a jaxnsd\.contact\.Result, got"),
        (
            lambda self, problem, guess, *, refine=False: jaxnsd.contact.Result(jnp.zeros(7), 1, 0.0, 0.0, -1),
            ValueError,
            r"percussions z like the guess, float64 of shape \(3,\), got float64 of shape \(7,\)",
        ),
    ],
)
def test_solvers_of_ones_own_that_make_no_sense_are_refused(solve, error, message):
    wrong = type("Wrong", (jaxnsd.AbstractContactSolver,), {"solve": solve})()
    with pytest.raises(error, match=message):
        solve_contact_problem(jnp.eye(3), jnp.array([-1.0, 0.1, 0.2]), 0.3, solver=wrong)


def test_a_solver_of_ones_own_may_count_in_python():
    def solve(self, problem, guess, *, refine=False):
        return jaxnsd.contact.Result(jnp.maximum(0, -problem.c / problem.G[0, 0]), 2, 0, 0.0, -1)

    own = type("Division", (jaxnsd.AbstractContactSolver,), {"solve": solve})()
    solution = solve_contact_problem(2 * jnp.eye(1), jnp.array([-1.0]), 0.0, d=0, solver=own)
    assert (solution.P, solution.iterations, solution.outcome) == (0.5, 2, 0)


# ----------------------------------------------------------------------------------- several discs, and a least normal percussion
def several_discs(n, sizes, seed, r=0.1):
    """A problem with discs of these sizes, and a least percussion in every other contact."""
    rng = np.random.default_rng(seed)
    d = sum(sizes)
    A = rng.normal(size=(n * (d + 1),) * 2)
    mu, least = rng.uniform(0.1, 0.8, size=(n, len(sizes))), np.abs(rng.normal(size=n)) * 0.5 * (np.arange(n) % 2 == 0)
    problem = A @ A.T + r * np.eye(len(A)), rng.normal(size=len(A)), mu, np.ones(n, bool), d, None, least, sizes
    return contact.Problem(*(jnp.asarray(x) if isinstance(x, np.ndarray) else x for x in problem))


def broken(problem, z):
    """How far ``z`` is from the law: normal law, and nearest points of the discs, with NumPy."""
    n, d, sizes = problem.n, problem.d, problem.sizes
    xi = np.asarray(problem.G) @ z + np.asarray(problem.c)
    (P_N, P_F), (xi_N, xi_F) = ((x[n * d :], x[: n * d].reshape(n, d)) for x in (np.asarray(z), xi))
    error, ends = np.abs(np.minimum(P_N - problem.least, xi_N)).max(), np.cumsum(sizes)
    for k, (end, size) in enumerate(zip(ends, sizes, strict=True)):
        x = (P_F - xi_F)[:, end - size : end]
        length = np.linalg.norm(x, axis=1)
        nearest = x * np.minimum(1, problem.mu[:, k] * P_N / np.maximum(length, 1e-300))[:, None]
        error = max(error, np.abs(nearest - P_F[:, end - size : end]).max())
    return error


@pytest.mark.slow
@pytest.mark.parametrize("n, sizes", [(1, (1, 1)), (2, (2, 1)), (1, (2, 2, 1))])
def test_several_discs_on_one_normal_percussion_that_has_a_least_value(n, sizes):
    """Newton's method, what takes over from it, and the derivative of the solution against central differences."""
    problems = [several_discs(n, sizes, seed) for seed in range(20)]

    def solved(settings):
        def solve(arrays):
            problem = arrays._replace(**problems[0].static)
            result = contact.solve(problem, jnp.zeros_like(problem.c), settings)
            return result.z, result.error

        return jax.jit(solve)

    for max_iterations in (10, 1):
        solve = solved(SemismoothNewton(tolerance=1e-14, max_iterations=max_iterations))
        for problem in problems:
            z, error = solve(problem.arrays())
            assert error <= 1 and broken(problem, z) < 1e-12

    @jax.jit
    def response(arrays, z, *change):
        problem = arrays._replace(**problems[0].static)
        return SemismoothNewton().response(problem, z, problem.G @ z + problem.c, *change)

    rng, step = np.random.default_rng(1), 1e-6
    for problem in problems[:6]:
        arrays = problem.arrays()
        change = {name: rng.normal(size=getattr(problem, name).shape) for name in ("c", "mu", "least")}
        change["least"] = change["least"] * (np.asarray(problem.least) > 0)
        ends = [
            np.asarray(solve(arrays._replace(**{name: np.asarray(getattr(problem, name)) + h * x for name, x in change.items()}))[0])
            for h in (step, -step)
        ]
        z, _ = solve(arrays)
        dz = response(arrays, z, *change.values())
        np.testing.assert_allclose(dz, (ends[0] - ends[1]) / (2 * step), atol=1e-6 * np.abs(dz).max())


def hyperstatic(n, sizes, seed, dtype=np.float64, n_u=14):
    """A problem of more rows than velocities with discs of these sizes, as of a robot that lands. Its P is not unique."""
    rng, d = np.random.default_rng(seed), sum(sizes)
    M, W = spd(rng, n_u), rng.normal(size=(n_u, n * (d + 1))) / np.sqrt(n_u)
    mu = rng.uniform(0, 1, (n, len(sizes)))
    several = {"mu": mu, "sizes": sizes} if len(sizes) > 1 else {"mu": mu[:, 0], "sizes": None}
    values = {"G": W.T @ np.linalg.solve(M, W), "c": W.T @ rng.normal(size=n_u), "mu": several["mu"]}
    values = {name: jnp.asarray(x, dtype) for name, x in values.items()}
    return contact.Problem(**values, active=jnp.ones(n, bool), d=d, sizes=several["sizes"], redundant=True)


def check_hyperstatic(n, sizes, count, dtype, tolerance):
    """All of ``count`` problems are solved: the law in NumPy, and no energy gained."""
    problems = [hyperstatic(n, sizes, seed, dtype) for seed in range(count)]
    static = problems[0].static
    solve = quick(lambda arrays: contact.solve(arrays._replace(**static), jnp.zeros_like(arrays.c), SemismoothNewton()))
    for problem in problems:
        result = solve(problem.arrays())
        assert result.error <= 1 and result.contact == -1
        z, c = np.asarray(result.z, float), np.asarray(problem.c, float)
        told = problem._replace(least=np.zeros(n), sizes=sizes, mu=np.asarray(problem.mu).reshape(n, -1))
        size = np.abs(c).max() + np.abs(z).max() * np.abs(problem.G).max()
        assert broken(told, z) < tolerance * size
        # Half the sum of the velocities before and after times the percussions: the work that they do.
        assert 0.5 * z @ (2 * c + np.asarray(problem.G, float) @ z) <= tolerance * size * np.abs(z).sum()


def test_hyperstatic_problems_of_two_discs():
    check_hyperstatic(6, (2, 1), 20, np.float64, 1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("dtype, tolerance", [(np.float64, 1e-11), (np.float32, 2e-5)])
@pytest.mark.parametrize("n", [4, 8, 24])
@pytest.mark.parametrize("sizes", [(2,), (2, 1), (2, 1, 2)])
def test_hyperstatic_problems_of_several_discs(sizes, n, dtype, tolerance):
    check_hyperstatic(n, sizes, 20, dtype, tolerance)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_what_a_contact_can_part(dtype):
    """A wedge of 1e-3 pushes, in single precision too; what is round-off beside friction does not."""
    for part, pushes in ((1e-3, True), (1e-4, True), (10 * np.finfo(dtype).eps, False), (0.0, False)):
        G = np.diag(np.asarray([1.0, 1.0, part**2], dtype))
        assert bool(contact.movable(jnp.ones(1, bool), jnp.asarray(G), 2)[0]) == pushes, part


def test_what_slides_has_any_sign():
    """The operator of Lobatto's stages has negative diagonals where percussions are large, as of what jams: friction was left out there."""
    for size, slides in ((1e-3, True), (-1e-3, True), (-2.0, True), (0.0, False)):
        for normal in (1.0, -1.0):
            G = jnp.diag(jnp.array([size, size, normal]))
            assert bool(contact.slides(G, 1, 2)[0]) == slides
            assert bool(contact.movable(jnp.ones(1, bool), G, 2)[0])
