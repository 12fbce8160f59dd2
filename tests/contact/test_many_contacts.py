"""Problems of many contacts: the law recomputed in NumPy, weights of a stack, parts of a whole, finite differences."""

import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from repository import EXAMPLES

import jaxnsd
from jaxnsd import InteriorPoint, Outcome, SemismoothNewton, bodies, contact, solve_contact_problem
from jaxnsd.contact import apart

sys.path.insert(0, str(EXAMPLES / "benchmarks"))
import contact_scenes

#: Contacts of the fast tests: of one shape, so that one compilation serves them all, and too many for Lemke's method.
N = 20


def scene(seed=0, n=N, family="stack", **options):
    scene = contact_scenes.FAMILIES[family](n, np.random.default_rng(seed), **options)
    return scene, *scene.problem()


def natural_map(G, c, mu, d, P):
    """Largest entry of the natural map, from C18 (30), (56), (57) and from nothing else; m/s times the smallest r."""
    xi, r = (G @ P + c).reshape(-1, d + 1), 1 / np.diag(G).reshape(-1, d + 1)
    P = P.reshape(-1, d + 1)
    x_N, x_F = P[:, 0] - r[:, 0] * xi[:, 0], P[:, 1:] - r[:, 1:].mean(axis=1, keepdims=True) * xi[:, 1:]
    radius, length = mu * np.maximum(P[:, 0], 0), np.linalg.norm(x_F, axis=1)
    x_F = x_F * np.where(length > radius, radius / np.where(length > 0, length, 1), 1)[:, None]
    return max(np.abs(P[:, 0] - np.maximum(x_N, 0)).max(), np.abs(P[:, 1:] - x_F).max())


def solved(G, c, mu, d, **options):
    solution = jax.tree.map(np.asarray, solve_contact_problem(G, c, mu, d=d, **options))
    assert solution.outcome == Outcome.SUCCESS and solution.contact == -1
    return solution


@pytest.mark.slow
def test_pushed_stacks_obey_the_law():
    for seed in range(6):
        _, G, c, mu, d = scene(seed, push=0.5)
        assert np.linalg.matrix_rank(G, 1e-9) == len(G) / 2
        # Ten times as tight as by default: what is asked for is met, whichever way led there.
        assert natural_map(G, c, mu, d, solved(G, c, mu, d, solver=SemismoothNewton(tolerance=1e-13)).P) <= 1e-13


def test_a_stack_at_rest_carries_its_weight():
    stack, G, c, mu, d = scene(push=0)
    solution = solved(G, c, mu, d)
    np.testing.assert_allclose(solution.xi, 0, atol=1e-13)
    weight = contact_scenes.FALL / stack.M_inv[:, 0, 0]
    carried = solution.P.reshape(-1, 4, 3)[:, :, 0].sum(axis=1)
    np.testing.assert_allclose(carried, np.cumsum(weight[::-1])[::-1], rtol=1e-12)


def test_parts_equal_the_whole():
    # Two stacks beside each other: alone, where the contacts of the other are not active, and together.
    parts = [scene(1, 8), scene(2, 12)]
    m = len(parts[0][1])
    G = np.zeros((60, 60))
    G[:m, :m], G[m:, m:] = parts[0][1], parts[1][1]
    c, mu = np.concatenate([part[2] for part in parts]), np.concatenate([part[3] for part in parts])
    whole = solved(G, c, mu, 2)
    for mask in (np.arange(N) < 8, np.arange(N) >= 8):
        rows = np.repeat(mask, 3)
        part = solved(G, c, mu, 2, active=mask)
        np.testing.assert_allclose(part.xi[rows], whole.xi[rows], atol=1e-12)
        np.testing.assert_array_equal(part.P[~rows], 0)


def bodies_on_points(seed, points):
    """Percussions of free bodies that land on so many points each, without a common order: ``(problem, body of each contact)``."""
    rng, G, c = np.random.default_rng(seed), [], []
    for k in points:
        arms = rng.uniform(-0.5, 0.5, (k, 3))
        W = np.concatenate([np.concatenate([np.eye(3), np.cross(arm, np.eye(3))], axis=1)[[2, 0, 1]] for arm in arms])
        G.append(W @ np.diag([1.0, 1, 1, 6, 6, 6]) @ W.T)
        c.append(W @ np.array([*rng.normal(size=2), -1, *rng.normal(size=3)]))
    order = rng.permutation(sum(points))
    body, rows = np.repeat(np.arange(len(points)), points)[order], (3 * order[:, None] + np.arange(3)).ravel()
    whole, ends = np.zeros((len(rows),) * 2), 3 * np.cumsum([0, *points])
    for part, a, b in zip(G, ends, ends[1:], strict=False):
        whole[a:b, a:b] = part
    return whole[rows][:, rows], np.concatenate(c)[rows], body


@pytest.mark.slow
def test_small_parts_are_problems_of_their_own():
    """Bodies on two to five points, of which the largest is left: one problem alone, and two of them in lockstep."""
    settings = SemismoothNewton(max_rescues=0, max_iterations=60)
    drawn = [bodies_on_points(seed, (4, 2, 5, 3)) for seed in (0, 1)]
    n, mu, active = 14, np.full(14, 0.4), np.arange(14) != 6

    def found(G, c):
        rows = np.arange(3 * n).reshape(n, 3)
        order = np.concatenate([rows[:, 1:].ravel(), rows[:, 0]])
        problem = contact.Problem(G[order][:, order], c[order], jnp.asarray(mu), jnp.asarray(active), 2)
        z, taken, _ = apart.solve(problem, jnp.zeros(3 * n), True, 4, settings.solve)
        return apart.labels(problem.G, problem.active, problem.d), jnp.zeros_like(z).at[order].set(z), taken

    G, c = (jnp.stack(x) for x in list(zip(*drawn, strict=True))[:2])
    alone, lockstep = jax.jit(lambda G, c: (found(G[0], c[0]), jax.vmap(found)(G, c)))(G, c)
    # Contacts that slide and turn at once share their load in many ways: what has to be the same is that the law holds.
    for (label, z, taken), (G, c, body) in [(alone, drawn[0]), *((tuple(x[k] for x in lockstep), drawn[k]) for k in (0, 1))]:
        first = {b: np.flatnonzero(active & (body == b))[0] for b in range(4)}
        np.testing.assert_array_equal(label, [first[b] if a else n for a, b in zip(active, body, strict=True)])
        left = 5 - np.sum(body[6] == 2) > 4
        np.testing.assert_array_equal(taken, active & ~(left & (body == 2)))
        rows = np.repeat(taken, 3)
        assert natural_map(G[rows][:, rows], c[rows], mu[taken], 2, z[rows]) <= 1e-11
        np.testing.assert_array_equal(z[~rows], 0)


@pytest.mark.slow
def test_bodies_that_land_beside_each_other_in_lockstep(request):
    """41 contacts of six bodies, which Newton's method leaves in every twentieth step: as member by member, and to an end."""
    box, ball = bodies.Box((0.1, 0.1, 0.1)), bodies.Sphere(0.1)
    places = [(k, 0.0, 0.101 + 0.05 * k) for k in range(6)]
    parts = [bodies.Body(f"part {k}", 0.5, (1e-3,) * 3, shapes=ball if k == 3 else box, position=place) for k, place in enumerate(places)]
    system = bodies.assemble(parts, bodies.Plane(name="floor"), contacts="world", mu=0.4, e_N=0.4)
    q0, u0 = system.initial_state()
    starts = u0[None] + 0.3 * jnp.outer(jnp.array([1.0, 0.5, -1.0]), jnp.sin(jnp.arange(u0.size)))

    def runs():
        run = jax.jit(jax.vmap(lambda u: jaxnsd.simulate(system, jaxnsd.Moreau(), q0, u, n_steps=300, dt=1e-3)))
        solution = run(starts)
        np.testing.assert_array_equal(solution.outcome, Outcome.SUCCESS)
        return solution

    alone = runs()
    request.getfixturevalue("lockstep")
    lockstep = runs()
    np.testing.assert_allclose(lockstep.q, alone.q, rtol=0, atol=1e-11)
    # Some of these steps were left to Lemke's method: the check is about them.
    assert np.count_nonzero(np.asarray(alone.iterations) > 30) > 10


@pytest.mark.parametrize("n", [2, N])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_what_nothing_can_hold_is_no_success(n, dtype):
    """A body between walls that close: xi_N of its two contacts sum up to less than nothing, whatever the percussions. And a contact
    that no percussion moves.
    """
    rng, d = np.random.default_rng(0), 2
    A = rng.normal(size=(3 * (n - 1), 3 * (n - 1)))
    G, c, mu = A @ A.T / len(A), rng.normal(size=3 * (n - 1)), np.full(n, 0.3)
    # The last contact is that of the first from the other side, where the slip is the same.
    W = np.vstack([np.eye(len(A)), np.diag([-1.0, 1, 1]) @ np.eye(3, len(A))])
    for closing, opens in ((5.0, False), (-5.0, True)):
        c_wall = np.r_[c, -c[0] - closing, c[1:3]]
        solution = solve_contact_problem(*(x.astype(dtype) for x in (W @ G @ W.T, c_wall, mu)), d=d)
        assert (solution.outcome == Outcome.SUCCESS) == opens
        if opens:
            assert natural_map(W @ G @ W.T, c_wall, mu, d, np.asarray(solution.P, float)) < (1e-10 if dtype is np.float64 else 1e-4)
        else:
            assert solution.contact in (0, n - 1)
    still = np.r_[np.ones(len(A)), np.zeros(3)]
    fixed = np.where(np.outer(still, still) > 0, W @ G @ W.T, 0)
    for speed, opens in ((-5.0, False), (5.0, True)):
        solution = solve_contact_problem(*(x.astype(dtype) for x in (fixed, np.r_[c, speed, 0.3, 0.1], mu)), d=d)
        assert (solution.outcome == Outcome.SUCCESS) == opens and solution.contact == (-1 if opens else n - 1)


def test_contacts_without_friction_push_along_the_normal():
    _, G, c, mu, d = scene(3)
    mu = np.where(np.arange(N) < 8, 0.0, mu)
    solution = solved(G, c, mu, d)
    assert natural_map(G, c, mu, d, solution.P) <= 1e-13
    np.testing.assert_array_equal(solution.P.reshape(N, 3)[:8, 1:], 0)


def test_sweeps_lead_to_the_solution_whatever_holds_the_operator():
    # Of compliant contacts, for which nonlinear Gauss-Seidel contracts.
    _, G, c, mu, d = scene(2, push=0.5)
    G = G + 0.5 * np.diag(np.diag(G))
    P = solved(G, c, mu, d).P.reshape(N, 3)
    groups = contact.groups_of(G, N)
    assert groups.shape == (5, 4)
    order, every = groups.reshape(-1), jnp.ones(N, bool)
    rows = (3 * order[:, None] + np.arange(3)).reshape(-1)
    dense = lambda: contact.operators.Dense(jnp.asarray(G[rows][:, rows]), N)  # noqa: E731
    chain = lambda: contact.Chain.of(jnp.asarray(G), jnp.asarray(groups), jnp.ones(N + 1, bool), 3)  # noqa: E731
    for operator in (dense, chain):

        @jax.jit
        def swept(z, operator=operator):
            law = contact.Law(operator(), jnp.asarray(c.reshape(N, 3)[order]), jnp.asarray(mu[order]), every)
            return law.unit * law.s * jax.lax.fori_loop(0, 300, lambda _, z: law.sweep(z), z)

        np.testing.assert_allclose(swept(jnp.zeros((N, 3))), P[order], atol=1e-12)


def test_matrices_printed_with_few_digits_are_taken_with_a_warning():
    _, G, c, mu, d = scene(4)
    rng = np.random.default_rng(0)
    printed = np.vectorize(lambda x: float(f"{x:.6g}"))(G * (1 + 1e-4 * rng.uniform(-1, 1, G.shape)))
    with pytest.warns(UserWarning, match="is not symmetric .*printed with few digits"):
        solution = solve_contact_problem(printed, c, mu, d=d)
    assert solution.outcome == Outcome.SUCCESS and natural_map(printed, c, mu, d, np.asarray(solution.P)) <= 1e-12
    indefinite = G - 1e-7 * np.abs(G).max() * np.eye(len(G))
    with pytest.warns(UserWarning, match="is not positive semidefinite .*eigenvalue of -1.0e-07"):
        solution = solve_contact_problem(indefinite, c, mu, d=d)
    assert solution.outcome == Outcome.SUCCESS and natural_map(indefinite, c, mu, d, np.asarray(solution.P)) <= 1e-12
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solve_contact_problem(G, c, mu, d=d)


@pytest.mark.slow
@pytest.mark.parametrize("redundant", [True, False])
def test_derivatives_against_differences(redundant):
    # Redundant corners without friction: single percussions are open, xi is not. With friction xi of a box that slides and turns is open
    # as well, unless corners are compliant.
    _, G, c, mu, d = scene(5, push=0.6)
    rng = np.random.default_rng(1)
    direction, weights = rng.normal(size=c.shape), rng.normal(size=c.shape)
    direction = G @ direction  # velocities of the bodies
    mu, G = (0 * mu, G) if redundant else (mu, G + 0.01 * np.diag(np.diag(G)))

    def xi(s):
        return solve_contact_problem(G, c + s * direction, mu * (1 + s), d=d).xi

    tangent = jax.jvp(xi, (0.0,), (1.0,))[1]
    step = 1e-6
    difference = (xi(step) - xi(-step)) / (2 * step)
    size = np.abs(difference).max()
    assert size > 0.1
    np.testing.assert_allclose(tangent, difference, atol=1e-6 * size)
    np.testing.assert_allclose(jax.grad(lambda s: weights @ xi(s))(0.0), weights @ tangent, rtol=1e-9)


def test_a_guess_saves_iterations():
    _, G, c, mu, d = scene(6)
    cold = solved(G, c, mu, d)
    assert solved(G, c, mu, d, guess=cold.P).iterations == 0
    assert solved(G, 1.001 * c, mu, d, guess=cold.P).iterations <= 3 < cold.iterations


@pytest.mark.slow
def test_what_is_known_of_the_structure_changes_nothing():
    # With values known contacts are solved group by group; under jit they are not, and one dense matrix is. Values and derivatives.
    _, G, c, mu, d = scene(0, 52)
    assert contact.groups_of(G, len(mu)).shape == (13, 4)
    compliant, direction = G + 0.01 * np.diag(np.diag(G)), G @ np.random.default_rng(1).normal(size=c.shape)

    def motion(c, mu):
        solution = solve_contact_problem(compliant, c, mu, d=d)
        return solution.xi, solution.P

    assert natural_map(G, c, mu, d, solved(G, c, mu, d).P) <= 1e-11
    groups = jax.jvp(motion, (c, mu), (direction, mu))
    dense = jax.jit(lambda G: jax.jvp(lambda c, mu: solve_contact_problem(G, c, mu, d=d)[1::-1], (c, mu), (direction, mu)))(compliant)
    for a, b in zip(jax.tree.leaves(groups), jax.tree.leaves(dense), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-8 * np.abs(b).max())
    gradient = jax.grad(lambda mu: jnp.sum(motion(c, mu)[0] * direction))(mu)
    np.testing.assert_allclose(gradient @ mu, jax.jvp(lambda mu: motion(c, mu)[0], (mu,), (mu,))[1] @ direction, rtol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("family", contact_scenes.FAMILIES)
def test_every_family_is_solved(family):
    sizes = []
    for n in (60, 160):
        for seed in range(3):
            _, G, c, mu, d = scene(seed, n, family)
            sizes.append(natural_map(G, c, mu, d, solved(G, c, mu, d).P))
    assert max(sizes) <= 1e-11


@pytest.mark.slow
def test_interior_point_equals_the_small_solver_and_float32():
    _, G, c, mu, d = scene(0, 4)
    small, interior = solved(G, c, mu, d), solved(G, c, mu, d, solver=InteriorPoint())
    np.testing.assert_allclose(small.xi, interior.xi, atol=1e-12)
    _, G, c, mu, d = scene(7)
    single = solve_contact_problem(*(x.astype(np.float32) for x in (G, c, mu)), d=d)
    assert single.outcome == Outcome.SUCCESS
    np.testing.assert_allclose(single.xi, solved(G, c, mu, d).xi, atol=2e-5)


@pytest.mark.slow
def test_batches_of_large_problems():
    problems = [scene(seed)[1:4] for seed in range(4)]
    G, c, mu = (jnp.stack(part) for part in zip(*problems, strict=True))
    batch = jax.jit(jax.vmap(lambda *args: solve_contact_problem(*args, d=2)))(G, c, mu)
    assert np.all(batch.outcome == Outcome.SUCCESS)
    for k, args in enumerate(problems):
        np.testing.assert_allclose(batch.xi[k], solved(*args, 2).xi, atol=1e-12)


@jaxnsd.system
class Pillars(jaxnsd.System):
    """Towers of point masses that stand beside each other on the ground: every mass on the one below."""

    mu: float = 0.5
    e_N: float = 0.0
    masses: tuple = jaxnsd.static(default=(5, 4))  # height and number of the pillars

    def kinetic_energy(self, t, q, u):
        return 0.5 * u @ u

    def potential_energy(self, t, q):
        return 9.81 * jnp.sum(q.reshape(*self.masses, 2)[..., 1])

    def gap(self, t, q):
        z = q.reshape(*self.masses, 2)[..., 1]
        # Overlap that keeps contacts closed through round-off.
        return (z - jnp.concatenate([jnp.zeros_like(z[:1]), z[:-1]])).reshape(-1) - 1e-9

    def tangential_velocity(self, t, q, u):
        x = u.reshape(*self.masses, 2)[..., 0]
        return (x - jnp.concatenate([jnp.zeros_like(x[:1]), x[:-1]])).reshape(-1, 1)


@pytest.mark.slow
def test_simulation_of_many_contacts():
    # 40 planar contacts: more than Lemke's method takes. The lowest masses are thrown with 0.5 m/s and carry the pillar on them.
    system = Pillars(masses=(10, 4))
    q0, u0 = jnp.zeros(80), jnp.zeros((10, 4, 2)).at[..., 0].set(0.5).reshape(-1)
    solution = jaxnsd.simulate(system, jaxnsd.Moreau(), q0, u0, 0.05, 1e-3).raise_if_failed()
    u = solution.u.reshape(-1, 10, 4, 2)
    # All slide as one body on the ground: a = mu g.
    np.testing.assert_allclose(u[-1, ..., 0], 0.5 - 0.5 * 9.81 * 0.05, atol=1e-10)
    np.testing.assert_allclose(u[..., 1], 0, atol=1e-12)
    weights = 9.81e-3 * np.arange(10, 0, -1)
    np.testing.assert_allclose(solution.P_N.reshape(-1, 10, 4), np.broadcast_to(weights[:, None], (50, 10, 4)), rtol=1e-10)


def stands(count, mu):
    """``(number of spheres, outcome, velocities, sum of the percussions of floor and walls, weight times dt)`` of a pile at rest."""
    of = contact_scenes.pile(round(5.2 * count), np.random.default_rng(0), 0.0, mu, 1, keep=1.0)
    n, m, b = len(of.mu), 3 if mu else 1, len(of.M_inv)
    W = np.zeros((b + 1, 6, n, m))
    for side in range(2):
        W[of.bodies[:, side], :, np.arange(n)] += of.W[:, side, :, :m]
    flat = W[:b].reshape(6 * b, n * m)
    M_inv = of.M_inv
    G = flat.T @ np.einsum("bij,bjm->bim", M_inv, flat.reshape(b, 6, -1)).reshape(6 * b, -1)
    solution = jaxnsd.solve_contact_problem(0.5 * (G + G.T), flat.T @ of.u.ravel(), of.mu, d=m - 1)
    P = np.asarray(solution.P).reshape(n, m)
    u = of.u + np.einsum("bij,bj->bi", M_inv, (flat @ P.ravel()).reshape(b, 6))
    held = of.bodies[:, 0] == -1
    weight = contact_scenes.FALL * np.sum(1 / M_inv[:, 0, 0])
    return b, solution.outcome, u, np.einsum("nkm,nm->k", of.W[held, 1, :3, :m], P[held]), weight


@pytest.mark.parametrize(
    "count, mu",
    [pytest.param(60, 0.0, marks=pytest.mark.slow), *(pytest.param(*x, marks=pytest.mark.long) for x in ((200, 0.3), (1000, 0.0)))],
)
def test_a_pile_of_spheres_stands_in_its_box(count, mu):
    """The densest packing, in a box: nothing moves, and floor and walls carry the weight, and nothing sideways."""
    b, outcome, u, force, weight = stands(count, mu)
    assert b == count and outcome == jaxnsd.Outcome.SUCCESS
    np.testing.assert_allclose(u, 0, atol=1e-11)
    np.testing.assert_allclose(force, [0, 0, weight], atol=1e-11 * weight)


@pytest.mark.long
@pytest.mark.parametrize("n", [300, 1000])
def test_a_chute_is_solved_or_says_that_it_was_not(n):
    """Some 320 contacts are. 1085 are not, though a solution exists: by paths, sweeps, fixed points, 6000 pivots of Lemke's method."""
    G, c, mu, d = contact_scenes.chute(n, np.random.default_rng((0, n, 0))).problem()
    solution = jaxnsd.solve_contact_problem(G, c, mu, d=d)
    left = natural_map(G, c, mu, d, solution.P) / natural_map(G, c, mu, d, np.zeros_like(c))
    assert (left < 1e-8) == (solution.outcome == jaxnsd.Outcome.SUCCESS)
    assert n > 300 or left < 1e-8
