"""LinearSystem and Tridiagonal: against dense algebra and the general System; errors before tracing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxnsd
from jaxnsd.mechanics.linear_system import LinearSystem
from jaxnsd.mechanics.system import System
from jaxnsd.models import elastic_bar
from jaxnsd.numerics import tridiagonal
from jaxnsd.numerics.tridiagonal import Tridiagonal


def positive_definite(rng, n):
    A = rng.normal(size=(n, n))
    return A @ A.T + n * np.eye(n)


def oscillator(**changes):
    M, K = np.diag([2.0, 1.0]), np.array([[3.0, -1.0], [-1.0, 2.0]])
    return LinearSystem(**{"mass": M, "K": K, **changes})


@pytest.mark.parametrize("n", [1, 2, 7, 100])
def test_cyclic_reduction_solves_tridiagonal_systems(n):
    rng = np.random.default_rng(n)
    off = rng.normal(size=n - 1)
    diagonal = 0.1 + np.pad(np.abs(off), (1, 0)) + np.pad(np.abs(off), (0, 1))
    A = Tridiagonal(jnp.array(diagonal), jnp.array(off))
    dense = np.diag(diagonal) + np.diag(off, 1) + np.diag(off, -1)
    np.testing.assert_array_equal(A.dense(), dense)
    b = rng.normal(size=(n, 3))
    np.testing.assert_allclose(A @ b, dense @ b, atol=1e-14 * n)
    np.testing.assert_allclose(A @ b[:, 0], dense @ b[:, 0], atol=1e-14 * n)
    reduction = tridiagonal.reduce(A)
    x = np.linalg.solve(dense, b)
    np.testing.assert_allclose(tridiagonal.solve(reduction, jnp.array(b)), x, atol=1e-12 * np.abs(x).max())
    np.testing.assert_allclose(tridiagonal.solve(reduction, jnp.array(b[:, 0])), x[:, 0], atol=1e-12 * np.abs(x).max())


def test_derived_quantities_are_those_of_the_general_system():
    rng = np.random.default_rng(0)
    M, K, C = (positive_definite(rng, 4) for _ in range(3))
    G, G_F = rng.normal(size=(4, 2)), rng.normal(size=(4, 2, 1))
    system = LinearSystem(M, K, C, lambda t: jnp.full(4, jnp.sin(t)), G, jnp.array([0.1, 0.2]), G_F)
    t, q, u = 0.7, jnp.array(rng.normal(size=4)), jnp.array(rng.normal(size=4))
    for name in ("h", "b", "momentum", "gap_velocity", "W_N", "W_F"):
        # The general definition: autodiff of the energies, the gaps and the tangential velocities.
        np.testing.assert_allclose(getattr(system, name)(t, q, u), getattr(System, name)(system, t, q, u), atol=1e-12)
    np.testing.assert_allclose(system.h(t, q, u), np.sin(t) - K @ q - C @ u, atol=1e-12)
    np.testing.assert_allclose(system.gap(t, q), G.T @ np.asarray(q) + [0.1, 0.2], atol=1e-14)
    assert system.is_linear() and system.has_constant_directions()


def test_subclass_with_further_mechanics_is_told_apart():
    @jaxnsd.system
    class Nonlinear(LinearSystem):
        def force(self, t, q, u):
            return super().force(t, q, u) - q**3

    @jaxnsd.system
    class MovingWall(LinearSystem):
        def gap(self, t, q):
            return q[:1] - 0.1 * jnp.sin(t)

    I2 = np.eye(2)
    assert not Nonlinear(I2, I2).is_linear()
    assert MovingWall(I2, I2).is_linear() and not MovingWall(I2, I2).has_constant_directions()
    np.testing.assert_allclose(MovingWall(I2, I2).gap_velocity(0.0, jnp.ones(2), jnp.ones(2)), [0.9], atol=1e-15)

    # It is simulated as what is written out; gaps of its own without G were refused, with a sentence on friction.
    @jaxnsd.system
    class Written(System):
        e_N: float = 0.0
        gap = MovingWall.gap

        def kinetic_energy(self, t, q, u):
            return 0.5 * u @ u

        def potential_energy(self, t, q):
            return 0.5 * q @ q

    start = jnp.array([0.2, 1.0]), jnp.array([-1.0, 0.0])
    sols = [
        jaxnsd.simulate(system, jaxnsd.MoreauJean(), *start, 1.0, 1e-2, sensitivity="discrete")
        for system in (MovingWall(I2, I2, e_N=0.5), Written(e_N=0.5))
    ]
    np.testing.assert_allclose(sols[0].q, sols[1].q, atol=1e-12)
    assert sols[0].success and np.sum(sols[0].P_N) > 0.1


@pytest.mark.slow
def test_what_is_derived_follows_what_is_overridden():
    """Against the general definitions, which know nothing of M, K, C and G."""

    class Mechanics:
        def q_dot(self, t, q, u):
            return 3 * u

        def mass_matrix(self, t, q):
            return jnp.diag(jnp.stack([1 + q[0] ** 2, jnp.ones_like(q[0])]))

        def potential_energy(self, t, q):
            return q[0] ** 4 + q[1] ** 2

    t, q, u = 0.7, jnp.array([0.4, -0.3]), jnp.array([0.5, 2.0])
    I2, G = np.eye(2), np.array([[1.0], [0.5]])
    for names in (["q_dot"], ["mass_matrix"], ["potential_energy"], ["q_dot", "mass_matrix", "potential_energy"]):
        methods = {name: vars(Mechanics)[name] for name in names}
        special = jaxnsd.system(type("Special", (LinearSystem,), {"__annotations__": {}, **methods}))(I2, 2 * I2, 0.1 * I2, G=G, w=0.2)
        assert not special.is_linear() and special.has_constant_directions() == ("q_dot" not in names)
        general = {"gap": LinearSystem.gap, "force": LinearSystem.force, "potential_energy": LinearSystem.potential_energy, **methods}
        if "mass_matrix" not in names:
            general["kinetic_energy"] = lambda self, t, q, u: 0.5 * u @ u
        general |= {name: getattr(special, name) for name in ("mass", "K", "C", "G", "w", "F", "directions", "external_force")}
        general = jaxnsd.system(type("General", (System,), {"__annotations__": {}, **general}))()
        for name in ("M", "momentum", "b", "h", "gap_velocity", "W_N", "kinetic_energy", "total_energy"):
            np.testing.assert_allclose(getattr(special, name)(t, q, u), getattr(general, name)(t, q, u), atol=1e-12, err_msg=name)
    np.testing.assert_allclose(general.W_N(t, q, u), 3 * G)


@pytest.mark.slow
def test_a_force_may_close_over_traced_values():
    """Under grad and vmap, without jit: the motion is linear in the load, so the derivative is the motion under a unit load."""

    def end(load):
        driven = LinearSystem(np.eye(1), np.eye(1), F=lambda t: load * jnp.stack([jnp.sin(3 * t)]))
        return jaxnsd.simulate(driven, jaxnsd.MoreauJean(), np.zeros(1), np.zeros(1), 0.5, 1e-2).q[-1, 0]

    loads = jnp.array([1.0, 0.5])
    values, slopes = jax.vmap(jax.value_and_grad(end))(loads)
    np.testing.assert_allclose(values, float(end(1.0)) * loads, rtol=1e-13)
    np.testing.assert_allclose(slopes, end(1.0), rtol=1e-13)
    # x'' + x = sin 3t from rest
    np.testing.assert_allclose(values[0], (3 * np.sin(0.5) - np.sin(1.5)) / 8, rtol=1e-3)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"mass": np.array([[2.0, 1.0], [0.0, 1.0]])}, r"mass must be symmetric, got 1 in entry \[0, 1\] and 0 in \[1, 0\]"),
        ({"mass": np.diag([1.0, -1.0])}, "mass must be positive definite"),
        ({"mass": np.ones((2, 2))}, "mass must be positive definite"),
        ({"mass": Tridiagonal(jnp.ones(2), jnp.array([1.5]))}, "mass must be positive definite"),
        ({"mass": np.ones((2, 3))}, r"mass must have shape \(n, n\), got \(2, 3\)"),
        ({"K": np.array([[3.0, -1.0], [1.0, 2.0]])}, "K must be symmetric"),
        ({"K": np.eye(3)}, r"K must have the shape of mass, \(2, 2\), got \(3, 3\)"),
        ({"C": np.eye(3)}, "C must have the shape of mass"),
        ({"F": np.ones(3)}, r"F must have shape \(2,\), got \(3,\)"),
        ({"G": np.ones(2)}, r"G must have shape \(2, n_N\)"),
        ({"G": np.ones((2, 1)), "w": np.ones(2)}, r"w must be a scalar or of shape \(1,\)"),
        ({"G": np.ones((2, 1)), "G_F": np.ones((2, 1))}, r"G_F must have shape \(2, 1, d\)"),
    ],
)
def test_bad_matrices_are_refused_when_the_system_is_made(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        oscillator(**changes)


def test_bad_tridiagonal_shape():
    with pytest.raises(ValueError, match=r"off \(n - 1,\), got \(3,\) and \(3,\)"):
        Tridiagonal(np.ones(3), np.ones(3))
    with pytest.raises(ValueError, match="at least 2 nodes"):
        elastic_bar(1)


def test_an_unstable_stiffness_bounds_the_step():
    system = oscillator(K=-1e4 * np.eye(2))
    with pytest.raises(ValueError, match="iteration matrix of MoreauJean must be positive definite"):
        jaxnsd.simulate(system, jaxnsd.MoreauJean(), np.zeros(2), np.zeros(2), 1.0, 0.1)


def test_systems_are_pytrees_that_batch_and_differentiate():
    def energy(k):
        return oscillator(K=k * np.array([[3.0, -1.0], [-1.0, 2.0]])).potential_energy(0.0, jnp.ones(2))

    np.testing.assert_allclose(jax.vmap(jax.grad(energy))(jnp.arange(1.0, 4.0)), 1.5)
    bars = jax.vmap(lambda e: elastic_bar(5, modulus=e))(jnp.array([1e9, 2e9]))
    assert bars.K.diagonal.shape == (2, 5)


def test_bar_is_the_one_of_the_benchmark():
    n, length, section, modulus, density = 6, 1.0, 3.14e-4, 210e9, 7800.0
    element = length / n
    I, neighbours = np.eye(n), np.eye(n, k=1) + np.eye(n, k=-1)  # noqa: E741
    ends = np.ones(n)
    ends[[0, -1]] = 0.5
    bar = elastic_bar(n)
    np.testing.assert_allclose(bar.mass.dense(), density * section * element * (2 / 3 * I * ends + neighbours / 6), rtol=1e-14)
    np.testing.assert_allclose(bar.K.dense(), modulus * section / element * (2 * I * ends - neighbours), rtol=1e-14)
    # n - 1 elements: the mass of all of them, and no stiffness against rigid motion.
    np.testing.assert_allclose(bar.mass.dense().sum(), density * section * element * (n - 1), rtol=1e-14)
    np.testing.assert_allclose(bar.K @ np.ones(n), 0, atol=1e-6)
    q0, u0 = bar.initial_state()
    np.testing.assert_array_equal(q0, np.full(n, 5e-5))
    np.testing.assert_array_equal(u0, np.full(n, -0.1))
