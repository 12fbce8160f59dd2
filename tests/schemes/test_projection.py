"""Positions that obey constraints and gaps: the nearest one, its derivatives; what a run leaves is taken as the start of another."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from little_systems import CartesianPendulum

import jaxnsd
from jaxnsd import Lobatto, Moreau, MoreauJean, System, project_position, project_velocity, simulate
from jaxnsd.models import BouncingBall, CornerBlock, SliderCrank


@jaxnsd.system
class Bead(System):
    """A bead on a circle, and above a line: mass m in both directions."""

    mass: float = 2.0
    radius: float = 1.0
    floor: float = -10.0

    def kinetic_energy(self, t, q, u):
        return 0.5 * self.mass * u @ u

    def constraint(self, t, q):
        return jnp.stack([q @ q - self.radius**2])

    def gap(self, t, q):
        return q[1:] - self.floor


@pytest.mark.slow
def test_the_nearest_point_of_a_circle_and_its_derivatives():
    """q / |q|, to second order, in forward and reverse mode, and for a batch."""
    nearest = lambda q, radius=1.0: project_position(Bead(radius=radius), q)  # noqa: E731
    exact = lambda q, radius=1.0: radius * q / jnp.linalg.norm(q)  # noqa: E731
    q = jnp.array([0.9, 0.7])
    batch = jnp.stack([q, jnp.array([-1.2, 0.1]), jnp.array([0.3, -0.6])])
    np.testing.assert_allclose(jax.vmap(nearest)(batch), jax.vmap(exact)(batch), atol=1e-15)
    for transform in (jax.jacrev, jax.hessian):
        got, wanted = (jax.jit(transform(function, argnums=(0, 1)))(q, 1.2) for function in (nearest, exact))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), got, wanted)


@pytest.mark.slow
def test_contacts_are_closed_not_penetrated_and_what_is_right_stays():
    """On the circle and above the line: the corner of both. A body that penetrates is pushed out, its corners both at once."""
    np.testing.assert_allclose(project_position(Bead(floor=0.6), jnp.array([0.9, 0.5])), [0.8, 0.6], atol=1e-14)
    block = CornerBlock()
    flat = project_position(block, jnp.array([0.3, 0.14, 0.0]))
    np.testing.assert_allclose(flat, [0.3, 0.15, 0.0], atol=1e-15)
    for q in (jnp.array([0.0, 0.2, 0.1]), flat):
        np.testing.assert_allclose(project_position(block, q), q, atol=1e-15)
    np.testing.assert_array_equal(project_position(BouncingBall(), jnp.array([2.0])), [2.0])
    # There is no such configuration: never a number.
    assert np.all(np.isnan(project_position(Bead(floor=3.0), jnp.array([0.9, 0.5]))))


def test_what_is_returned_is_the_nearest_or_not_a_number():
    # Between a parabola, outside of which it may be, and a line: from afar Newton's method may end its steps where nothing is nearest.
    M = np.array([[2.0, 0.5], [0.5, 1.0]])

    @jaxnsd.system
    class Outside(System):
        def mass_matrix(self, t, q):
            return jnp.asarray(M)

        def gap(self, t, q):
            return jnp.stack([q[0] + q[1] ** 2, 2 - q[1]])

    starts = 2.5 * np.random.default_rng(0).normal(size=(2000, 2))
    found = np.asarray(jax.jit(jax.vmap(lambda q: project_position(Outside(), q)))(starts))
    there = np.isfinite(found).all(axis=1)
    assert np.mean(there) > 0.98
    for q, start in zip(found[there], starts[there], strict=True):
        gaps, J = np.array([q[0] + q[1] ** 2, 2 - q[1]]), np.array([[1, 2 * q[1]], [0, -1.0]])
        closed = gaps < 1e-8
        z = np.linalg.lstsq(J[closed].T, M @ (q - start), rcond=None)[0]
        assert gaps.min() > -1e-8 and np.all(z > -1e-7)
        np.testing.assert_allclose(J[closed].T @ z, M @ (q - start), atol=1e-7)


#: A mechanism with a joint and a stop; a step; configurations that it is not in: pushed through the stop, torn off the joint. The
#: slider-crank's are 9 mm through a guide of which 1 mm is clearance, and a millimetre.
MECHANISMS = {
    "pendulum": (CartesianPendulum(), 1.0, 5e-3, {0: -2.0}, {1: -1e-2}),
    "slider-crank": (SliderCrank(), 0.03, 1e-4, {7: 0.01}, {6: 1e-3}),
}


def displaced(q, by):
    for k, distance in by.items():
        q = q.at[k].add(distance)
    return q


@pytest.fixture(scope="module", params=["pendulum", pytest.param("slider-crank", marks=pytest.mark.slow)])
def drifted(request):
    """The end of a run that holds joints and gaps on velocity level: of so many steps that both are violated."""
    mechanism, t1, dt, *_ = MECHANISMS[request.param]
    return request.param, simulate(mechanism, MoreauJean(), *mechanism.initial_state(), t1, dt).raise_if_failed()


def test_nodes_of_a_run_are_taken_as_a_start(drifted):
    """Joints that drift and gaps that are passed, at every node: what steps of this length make."""
    name, sol = drifted
    mechanism, _, dt, *_ = MECHANISMS[name]
    gaps = jax.vmap(mechanism.gap)(sol.t, sol.q)
    assert jnp.min(gaps) < -1e-6 and jnp.max(jnp.abs(jax.vmap(mechanism.constraint)(sol.t, sol.q))) > 1e-7
    for k in range(0, len(sol.t), 10):
        for scheme in (Moreau(), MoreauJean()):
            jaxnsd.check(mechanism, scheme, sol.q[k], sol.u[k], sol.t[k] + 100 * dt, dt, sol.t[k])


@pytest.mark.slow
def test_violations_that_no_step_makes_are_refused(drifted):
    name, sol = drifted
    mechanism, _, dt, through, torn = MECHANISMS[name]
    q0, u0 = mechanism.initial_state()
    with pytest.raises(ValueError, match=r"(?s)contact \d must be open.*Moreau takes with dt = 1e-05; .*project_position"):
        jaxnsd.check(mechanism, Moreau(), displaced(q0, through), u0, 0.01, 1e-5)
    with pytest.raises(ValueError, match=r"(?s)constraint must vanish .*correct q0; jaxnsd.project_position"):
        jaxnsd.check(mechanism, Moreau(), displaced(q0, torn), u0, 0.01, 1e-5)
    # On position level a violation is a jump of the velocity, v = g / dt.
    bad, u = displaced(sol.q[-1], {k: 0.5 * distance for k, distance in through.items()}), sol.u[-1]
    with pytest.raises(ValueError, match=r"(?s)contact \d must be open.*Lobatto takes with dt = "):
        jaxnsd.check(mechanism, Lobatto(2), bad, u, 100 * dt, dt)
    q = jax.jit(project_position)(mechanism, bad)
    jaxnsd.check(mechanism, Lobatto(2), q, jax.jit(project_velocity)(mechanism, q, u), 100 * dt, dt)
    # Nearest in the mass metric: M (q_new - q) is made by the rows that hold, and contacts push.
    M, closed = np.asarray(mechanism.M(0.0, q)), np.asarray(mechanism.gap(0.0, q)) < 1e-12
    W_g = np.asarray(mechanism.W_g(0.0, q))
    W = np.concatenate([W_g, np.asarray(mechanism.W_N(0.0, q))[:, closed]], axis=1)
    z, *_ = np.linalg.lstsq(W, M @ np.asarray(q - bad), rcond=None)
    np.testing.assert_allclose(W @ z, M @ np.asarray(q - bad), atol=1e-14)
    assert closed.any() and np.all(z[W_g.shape[1] :] > 0)


def test_a_body_that_fell_and_rests_is_taken_as_a_start():
    """Event-capturing schemes leave it where the last step before the impact has brought it."""
    ball = BouncingBall(e_N=0.0)
    sol = simulate(ball, Moreau(), *ball.initial_state(), 0.5, 1e-2)
    assert sol.q[-1, 0] < 0 and abs(sol.u[-1, 0]) < 1e-12
    jaxnsd.check(ball, Moreau(), sol.q[-1], sol.u[-1], 1.0, 1e-2)
    with pytest.raises(ValueError, match="contact 0 must be open or closed"):
        jaxnsd.check(ball, Moreau(), jnp.array([-0.5]), sol.u[-1], 1.0, 1e-2)


def test_methods_that_ask_for_values_are_refused_with_their_cure():
    @jaxnsd.system
    class Asking(Bead):
        def constraint(self, t, q):
            return np.cos(q[:1])

    call = r"{}: a method of the system must not ask for the value .*test_projection.py, line \d+: return np.cos.*use jax.numpy"
    for transformed in (lambda f: f, jax.jit, jax.grad):
        with pytest.raises(TypeError, match=call.format("project_position")):
            transformed(lambda x: project_position(Asking(), x * jnp.ones(2))[0])(1.0)
        with pytest.raises(TypeError, match=call.format("project_velocity")):
            transformed(lambda x: project_velocity(Asking(), jnp.ones(2), x * jnp.ones(2))[0])(1.0)
