"""Bilateral constraints in the initial state: redundant, inconsistent and violated ones are named; velocities are projected."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxnsd
from jaxnsd import GeneralizedAlpha, Lobatto, Moreau, MoreauJean, System, project_position, project_velocity, simulate
from jaxnsd.models import BouncingBall, SliderCrank


@jaxnsd.system
class Bead(System):
    """A particle in space whose constraint rows are given as fields: A q = a and B u = beta."""

    A: object = ((1.0, 0.0, 0.0),)
    a: object = (0.0,)
    B: object = ((0.0, 1.0, 0.0),)
    beta: object = (0.0,)

    def kinetic_energy(self, t, q, u):
        return 0.5 * jnp.array([1.0, 2.0, 1e-3]) @ u**2

    def constraint(self, t, q):
        return jnp.stack([jnp.array(row) @ q - a for row, a in zip(self.A, self.a, strict=True)])

    def velocity_constraint(self, t, q, u):
        return jnp.stack([jnp.array(row) @ u - beta for row, beta in zip(self.B, self.beta, strict=True)])


def run(system, q0=(0.0, 0.0, 0.0), u0=(0.0, 0.0, 1.0), scheme=None):
    return simulate(system, scheme or Lobatto(2), np.array(q0), np.array(u0), 0.02, 0.01)


@pytest.mark.slow
def test_independent_constraints_pass():
    solution = run(Bead()).raise_if_failed()
    np.testing.assert_allclose(solution.q[-1], [0, 0, 0.02], atol=1e-16)


@pytest.mark.parametrize(
    "fields, state, message",
    [
        (
            {"A": ((1.0, 0.0, 0.0), (2.0, 0.0, 0.0)), "a": (0.0, 0.0)},
            {},
            "must be independent .* rank 2 of 3 rows; .* constraint row 0, constraint row 1; remove 1 of them",
        ),
        (
            {"B": ((0.0, 1.0, 0.0), (1.0, 1.0, 0.0)), "beta": (0.0, 0.0)},
            {},
            "rank 2 of 3 rows; .* constraint row 0, velocity_constraint row 0, velocity_constraint row 1; remove 1",
        ),
        (
            {"A": ((1.0, 0.0, 0.0), (1.0, 0.0, 0.0)), "a": (0.0, 0.0), "B": ((0.0, 1.0, 0.0), (0.0, -3.0, 0.0)), "beta": (0.0, 0.0)},
            {},
            "rank 2 of 4 rows; .* remove 2 of them",
        ),
        ({"A": ((0.0, 0.0, 0.0),)}, {}, "must depend on the velocities .* none in constraint row 0"),
        # inconsistent: no state obeys both rows
        (
            {"A": ((1.0, 0.0, 0.0), (1.0, 0.0, 0.0)), "a": (0.0, 1.0)},
            {},
            r"constraint must vanish \(g = 0\) .* got -1 in row 1; correct q0",
        ),
        ({"B": ((0.0, 1.0, 0.0), (0.0, 1.0, 0.0)), "beta": (0.0, 0.5)}, {}, "must be independent .* velocity_constraint row 0, velocity_"),
        # violated
        ({}, {"q0": (1e-3, 0.0, 0.0)}, r"constraint must vanish \(g = 0\).* got 0.001 in row 0"),
        (
            {},
            {"u0": (0.1, 0.0, 0.0)},
            r"constraint_velocity must vanish \(dg/dt = 0\) .* in row 0; correct u0; jaxnsd.project_velocity\(system",
        ),
        ({}, {"u0": (0.0, 0.1, 0.0)}, r"velocity_constraint must vanish \(gamma = 0\) .* jaxnsd.project_velocity\(system"),
    ],
)
def test_constraints_that_make_no_sense(fields, state, message):
    with pytest.raises(ValueError, match=message):
        run(Bead(**fields), **state)


def test_every_scheme_is_checked():
    with pytest.raises(ValueError, match="rank 2 of 3"):
        run(Bead(A=((1.0, 0.0, 0.0), (2.0, 0.0, 0.0)), a=(0.0, 0.0)), scheme=Moreau())


@pytest.mark.slow
def test_units_of_rows_do_not_matter():
    """Rows of very different size are independent all the same, and so are rows that agree in part."""
    run(Bead(A=((1e-9, 0.0, 0.0),), B=((0.0, 1e6, 0.0),))).raise_if_failed()
    run(Bead(B=((1.0, 1e-3, 0.0),))).raise_if_failed()


def test_projection_solves_the_impact_equations():
    """M (u_new - u) lies in the span of the force directions, and u_new obeys the constraints: both recomputed with NumPy."""
    system = SliderCrank()
    q, _ = system.initial_state()
    u = jnp.array(np.random.default_rng(3).normal(size=9))

    @jax.jit
    def projected(u):
        new = project_velocity(system, q, u)
        return new, project_velocity(system, q, new), system.W_g(0.0, q), system.M(0.0, q), system.constraint_velocity(0.0, q, new)

    new, again, W, M, rate = (np.asarray(x) for x in projected(u))
    np.testing.assert_allclose(rate, 0, atol=1e-14)
    change = M @ (new - np.asarray(u))
    P = np.linalg.lstsq(W, change, rcond=None)[0]
    np.testing.assert_allclose(W @ P, change, atol=1e-14)
    np.testing.assert_allclose(again, new, atol=1e-14)


@pytest.mark.slow
def test_projection_with_moving_constraints():
    """Rheonomic rows are obeyed, not set to zero; both levels together; a system without constraints keeps its velocity."""
    system = Bead(beta=(0.5,))
    np.testing.assert_allclose(project_velocity(system, [0.0, 0.0, 0.0], [1.0, 2.0, 3.0]), [0, 0.5, 3], atol=1e-15)
    np.testing.assert_array_equal(project_velocity(BouncingBall(), jnp.ones(1), jnp.ones(1)), [1.0])


def test_projection_is_differentiable_and_batches():
    system, q = Bead(A=((1.0, 2.0, 0.5),)), jnp.zeros(3)
    J = jax.jit(jax.jacrev(lambda u: project_velocity(system, q, u)))(jnp.zeros(3))
    np.testing.assert_allclose(J @ J, J, atol=1e-13)  # a projector
    assert np.linalg.matrix_rank(J) == 1
    np.testing.assert_allclose(jax.jit(jax.vmap(lambda u: project_velocity(system, q, u)))(jnp.eye(3)).T, J, atol=1e-14)


@jaxnsd.system
class Truss(System):
    """A node of mass 1 held by two bars, from the origin and from (0, a), under its weight; or by two velocity rows that differ by k."""

    a: float = 0.7
    k: float = 3e-6
    bars: bool = jaxnsd.static(default=True)

    def kinetic_energy(self, t, q, u):
        return 0.5 * u @ u

    def potential_energy(self, t, q):
        return 9.81 * q[1]

    def constraint(self, t, q):
        lengths = jnp.stack([q @ q - 1, q[0] ** 2 + (q[1] - self.a) ** 2 - 1 - self.a**2])
        return lengths if self.bars else lengths[:0]

    def velocity_constraint(self, t, q, u):
        return jnp.zeros(0) if self.bars else jnp.stack([u[0], u[0] + self.k * u[1]])


@pytest.mark.parametrize("scheme", [Moreau(), GeneralizedAlpha(), Lobatto(2)], ids=repr)
def test_rows_that_leave_no_freedom(scheme):
    """Everything cancels: what is left, in a row and in the balance, is round-off of the forces, which are known."""
    q0, dt, weight = jnp.array([1.0, 0.0]), 1e-2, 9.81e-2
    sol = simulate(Truss(), scheme, q0, jnp.zeros(2), n_steps=20, dt=dt).raise_if_failed()
    np.testing.assert_allclose(sol.q, np.tile(q0, (21, 1)), rtol=0, atol=1e-14)
    np.testing.assert_allclose(sol.P_g, np.tile([weight / 1.4, -weight / 1.4], (20, 1)), rtol=1e-9)
    if scheme == Lobatto(2):  # forms the product of its rows, in which 1e-11 of that is left
        return
    system = Truss(bars=False)
    sol = simulate(system, scheme, q0, jnp.zeros(2), n_steps=20, dt=dt).raise_if_failed()
    np.testing.assert_allclose(sol.q, np.tile(q0, (21, 1)), rtol=0, atol=1e-12)
    np.testing.assert_allclose(sol.P_gamma, np.tile([-weight / system.k, weight / system.k], (20, 1)), rtol=1e-9)


@jaxnsd.system
class Rows(System):
    """Three velocities, of unit mass, with a constant force and constant rows."""

    force_of_all: object
    rows: object

    def kinetic_energy(self, t, q, u):
        return 0.5 * u @ u

    def force(self, t, q, u):
        return self.force_of_all

    def velocity_constraint(self, t, q, u):
        return self.rows @ u


def test_rows_that_are_made_of_round_off_excuse_nothing():
    """x, x + d1 y and x + d2 y in frames at random: of the third, which depends on the others, elimination leaves d2 / d1 of round-off.

    A step in which that pushes the free direction, by percussions of 1e13, is no success.
    """
    rng = np.random.default_rng(0)
    frames = np.linalg.qr(rng.normal(size=(60, 3, 3)))[0]
    d1, d2 = np.tile([[1e-9, 1e-7, 1e-3], [1e-3, 1e-1, 1.0]], 20)
    zero = np.zeros(60)
    rows = np.stack([np.stack([zero + 1, zero, zero], 1), np.stack([zero + 1, d1, zero], 1), np.stack([zero + 1, d2, zero], 1)], 1)
    system = Rows(jnp.asarray(rng.normal(size=(60, 3))), jnp.asarray(rows @ frames))

    @jax.jit
    @jax.vmap
    def run(system):
        sol = simulate(system, Moreau(), jnp.zeros(3), jnp.zeros(3), n_steps=1, dt=1e-2)
        return sol.u[-1], sol.success

    u, success = map(np.asarray, run(system))
    free = frames[:, 2] * np.sum(frames[:, 2] * np.asarray(system.force_of_all), axis=1)[:, None] * 1e-2
    right = np.max(np.abs(u - free), axis=1) < 1e-8
    assert np.all(right | ~success) and np.all(success[2::3])
    assert np.sum(~right) > 10  # else there is nothing to excuse


#: Lengths of the rods of `FourBar`; the fourth is the ground.
RODS, GROUND = np.array([1.0, 2.0, 1.5]), 2.2


@jaxnsd.system
class FourBar(System):
    """Three rods of given masses, hinged to each other and to the ground in a loop, above a rough floor; (x, y, angle) of each."""

    masses: jax.Array
    mu: float = 0.4
    e_N: float = 0.3

    def kinetic_energy(self, t, q, u):
        u = u.reshape(3, 3)
        return 0.5 * jnp.sum(self.masses[:, None] * u**2 * jnp.array([[1, 1, rod**2 / 12] for rod in RODS], u.dtype))

    def potential_energy(self, t, q):
        return 9.81 * self.masses @ q[1::3]

    def constraint(self, t, q):
        q, half = q.reshape(3, 3), jnp.array(RODS / 2, q.dtype)
        along = half[:, None] * jnp.stack([jnp.cos(q[:, 2]), jnp.sin(q[:, 2])], axis=1)
        first, last = q[:, :2] - along, q[:, :2] + along
        return jnp.concatenate([first[0], last[0] - first[1], last[1] - last[2], first[2] - jnp.array([GROUND, 0], q.dtype)])

    def gap(self, t, q):
        return q[1:2] - 0.3

    def tangential_velocity(self, t, q, u):
        return u[:1, None]


def start_of_four_bar():
    """Coordinates of `FourBar` with its first rod at 1 rad."""
    crank = np.array([np.cos(1.0), np.sin(1.0)])
    way = np.array([GROUND, 0]) - crank
    length = np.linalg.norm(way)
    part = (length**2 + RODS[1] ** 2 - RODS[2] ** 2) / (2 * length)
    hinge = crank + (part * way + np.sqrt(RODS[1] ** 2 - part**2) * np.array([-way[1], way[0]])) / length
    ends = np.array([[[0, 0], crank], [crank, hinge], [[GROUND, 0], hinge]])
    return np.column_stack([ends.mean(axis=1), np.arctan2(*(ends[:, 1] - ends[:, 0]).T[::-1])]).ravel()


@pytest.mark.parametrize(
    "scheme, dtype",
    [
        (MoreauJean(), "float64"),
        (MoreauJean(), "float32"),
        *(pytest.param(Lobatto(2), x, marks=pytest.mark.slow) for x in ("float64", "float32")),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:simulating in float32")
def test_light_rods_between_heavy_ones(scheme, dtype):
    """Rows of a light rod nearly depend on each other: the linkage falls and hits the floor, solved in every step, and stays together."""
    q0 = jnp.asarray(start_of_four_bar(), dtype)
    decades = {"float64": 4, "float32": 2}[dtype]
    masses = jnp.asarray(10 ** np.random.default_rng(0).uniform(-decades, decades, (40, 3)), dtype)

    @jax.jit
    def run(masses):
        sols = jax.lax.map(lambda m: simulate(FourBar(m), scheme, q0, jnp.zeros(9, dtype), n_steps=400, dt=1e-3), masses)
        return sols, jax.vmap(jax.vmap(lambda q: FourBar(masses[0]).constraint(0.0, q)))(sols.q)

    sols, open_hinges = run(masses)
    assert np.all(np.any(sols.P_N > 0, axis=(1, 2)))
    # In single precision one step in 1e5 is a matter of how the compiler orders its sums.
    assert np.mean(sols.outcome != 0) <= (0 if dtype == "float64" else 1e-4)
    assert np.max(np.abs(open_hinges)) < 1e-4


@jaxnsd.system
class Chain(System):
    """Points of given masses on rods of length 1, the first of which hangs on the origin; (x, y) of each."""

    masses: jax.Array

    def kinetic_energy(self, t, q, u):
        return 0.5 * jnp.sum(self.masses[:, None] * u.reshape(-1, 2) ** 2)

    def potential_energy(self, t, q):
        return 9.81 * self.masses @ q[1::2]

    def constraint(self, t, q):
        points = jnp.concatenate([jnp.zeros((1, 2)), q.reshape(-1, 2)])
        return jnp.sum((points[1:] - points[:-1]) ** 2, axis=1) - 1


@pytest.mark.parametrize("scheme", [Moreau(), pytest.param(Lobatto(2), marks=pytest.mark.slow)], ids=repr)
def test_rows_without_velocities(scheme):
    """Chains that hang at rest, and a linkage that a stop without restitution brings to rest: only round-off is left in the rows."""
    masses = 10 ** np.random.default_rng(0).uniform(-1, 1, (30, 4))
    hanging = jnp.stack([jnp.zeros(4), -jnp.arange(1.0, 5.0)], axis=1).ravel()
    start = jnp.asarray(start_of_four_bar())

    @jax.jit
    def run(masses):
        hung = jax.lax.map(lambda m: simulate(Chain(m), scheme, hanging, jnp.zeros(8), n_steps=5, dt=1e-3), masses)
        linkage = lambda m: simulate(FourBar(m, mu=0.0, e_N=0.0), scheme, start, jnp.zeros(9), n_steps=400, dt=1e-3)  # noqa: E731
        return hung, jax.lax.map(linkage, masses[:10, :3])

    hung, landed = run(jnp.asarray(masses))
    assert np.all(hung.success) and np.all(landed.success) and np.all(np.any(landed.P_N > 0, axis=(1, 2)))
    np.testing.assert_allclose(landed.u[:, -1], 0, atol=1e-10)
    # A rod carries what hangs on it; the gradient of its row is twice the rod.
    weight = 9.81e-3 * np.cumsum(masses[:, ::-1], axis=1)[:, ::-1]
    np.testing.assert_allclose(2 * np.abs(hung.P_g[:, -1]), weight, rtol=1e-12)


def test_what_is_projected_is_closed_and_near():
    """From starts that are far off Newton's method alone winds linkages up, by a thousand turns, and leaves single ones open."""
    system = FourBar(jnp.array([1.0, 10.0, 0.1]))
    M = np.diagonal(system.M(0.0, start_of_four_bar(), jnp.zeros(9)))
    project = jax.jit(jax.vmap(lambda q: project_position(system, q)))
    opened = jax.jit(jax.vmap(lambda q: jnp.append(system.constraint(0.0, q), jnp.minimum(system.gap(0.0, q), 0))))
    for size, found_at_least, nearest_at_least in ((0.1, 1, 1), (0.3, 0.999, 0.99)):
        off = size * np.random.default_rng(2).normal(size=(3000, 9))
        found = project(start_of_four_bar() + off)
        there = np.isfinite(found).all(axis=1)
        assert np.mean(there) >= found_at_least
        gaps = np.asarray(opened(found))
        assert np.max(np.abs(gaps[there])) < 1e-7
        # The linkage that it was is closed, so what is nearest is no farther.
        moved, back = (np.sqrt(x**2 @ M)[there] for x in (np.asarray(found) - start_of_four_bar() - off, off))
        assert np.mean(moved <= 1.0001 * back) >= nearest_at_least
        assert np.max(np.abs(found[there][:, 2::3])) < 100
