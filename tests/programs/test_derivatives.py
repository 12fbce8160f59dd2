"""The derivative rule that loops keep: derivatives of any order go by it wherever a function is called. NaN where there are none."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from little_systems import Rider

import jaxnsd
from jaxnsd import Moreau, bodies, simulate
from jaxnsd.models import BouncingBall, PointMassOnSlope
from jaxnsd.programs.derivatives import ZERO, instantiated, pushed, traced_once, undefined, with_rule


def in_scan(f):
    return lambda x: lax.scan(lambda c, _: (c, f(c)), x, None, length=2)[1][1]


def in_map(f):
    return lambda x: lax.map(f, jnp.stack([x, x]))[1]


def in_vmap(f):
    return lambda x: jax.vmap(f)(jnp.stack([x, x]))[0]


def in_cond(f):
    return lambda x: lax.cond(jnp.sum(x) > 0, f, lambda x: jnp.sum(x), x)


PATHS = [lambda f: f, jax.jit, in_scan, in_map, in_vmap, in_cond, lambda f: in_scan(in_cond(jax.jit(f)))]


@pytest.mark.long
@pytest.mark.parametrize("mode", [jax.grad, jax.jacfwd])
def test_second_derivatives_of_a_body_that_slides_and_turns_on_three_feet(mode):
    """Forward over reverse and forward over forward, against differences of the values in second and fourth powers of their width."""
    feet = bodies.Points([[0.1, 0, -0.05], [-0.06, 0.07, -0.05], [-0.05, -0.08, -0.05]])
    body = bodies.Body("body", 0.8, (2e-3, 3e-3, 4e-3), shapes=feet, position=(0, 0, 0.05))
    system = bodies.assemble([body], bodies.Plane(), mu=0.3)
    q0, _ = system.initial_state()

    def end(p):
        sol = simulate(system, Moreau(), q0, jnp.zeros(6).at[jnp.array([0, 1, 5])].set(jnp.array([0.8, 0.3, 1.0]) + p), n_steps=20, dt=2e-3)
        return sol.q[-1, 0] + 2 * sol.q[-1, 1] + sol.q[-1, 6]

    value = jax.jit(end)

    def curvature(a, b, h):
        a, b = h * jnp.eye(3)[a], h * jnp.eye(3)[b]
        return (value(a + b) + value(-a - b) - value(a - b) - value(b - a)) / (4 * h**2)

    wanted = [[(4 * curvature(a, b, 1e-2) - curvature(a, b, 2e-2)) / 3 for b in range(3)] for a in range(3)]
    found = second(end, mode)(jnp.zeros(3))
    np.testing.assert_allclose(found, np.asarray(wanted), rtol=1e-5, atol=1e-8)


def second(f, mode):
    """Second derivative, forward over ``mode``."""
    return jax.jit(jax.jacfwd(mode(f)))


def root(x):
    """The square root, from an iteration that says nothing of derivatives; the rule calls the root itself."""

    def value(x):
        return lax.stop_gradient(lax.fori_loop(0, 60, lambda _, y: 0.5 * (y + x / y), 1.0 + x))

    def rule(primals, tangents):
        y = root(*primals)
        return y, tangents[0] / (2 * y)

    return with_rule(value, rule)(x)


def test_a_rule_is_kept_by_loops_branches_and_batches():
    x, modes = 0.7, (jax.jacfwd, jax.jacrev)
    functions = [path(root) for path in PATHS]
    first, seconds = jax.jit(
        lambda x: ([jax.grad(f)(x) for f in functions], [outer(inner(f))(x) for f in functions for outer in modes for inner in modes])
    )(x)
    np.testing.assert_allclose(first, 0.5 * x**-0.5, rtol=1e-12)
    np.testing.assert_allclose(seconds, -0.25 * x**-1.5, rtol=1e-9)


def test_a_rule_knows_what_does_not_move():
    """``x -> (x a, a, k)`` of a dict ``a`` and a whole number k: on every path the rule is told of x alone, and no zeros are multiplied."""
    told = []

    def scaled(x, a, k):
        def rule(primals, tangents):
            told.append(jax.tree.map(lambda t: t is ZERO, tangents, is_leaf=lambda t: t is ZERO))
            _, d_out = pushed(lambda x, a, k: (x * a["a"], a["a"], k), primals, tangents, passed_on=True)
            told.append([d is ZERO for d in d_out])
            _, a, _ = instantiated(primals, tangents)
            assert jax.tree.structure(a) == jax.tree.structure(primals[1])
            return scaled(*primals), d_out

        return with_rule(lambda x, a, k: (x * a["a"], a["a"], k), rule)(x, a, k)

    a, k = jnp.array([2.0, -1.0]), jnp.array([3, 4])
    for path in PATHS:
        f = path(lambda x: jnp.sum(scaled(x, {"a": a}, k)[0] * scaled(x, {"a": a}, k)[1]))
        first, second = jax.jit(lambda x, f=f: (jax.grad(f)(x), jax.hessian(f)(x)))(jnp.array([0.5, 0.7]))
        np.testing.assert_allclose(first, a * a, rtol=1e-14)
        np.testing.assert_array_equal(second, np.zeros((2, 2)))
    # Traced for each path, told the same each time.
    assert told[0] == (False, {"a": True}, True) and told[1] == [False, True, True]
    assert told[::2].count(told[0]) == len(told) // 2 == told[1::2].count(told[1])
    # In a batch of both one may move alone.
    b, of_both = jnp.array([[2.0, -1.0], [3.0, 4.0]]), jax.vmap(lambda x, a: jnp.sum(scaled(x, {"a": a}, k)[0] * a))
    np.testing.assert_allclose(jax.grad(lambda x: jnp.sum(of_both(x, b)))(jnp.ones((2, 2))), b * b, rtol=1e-14)
    np.testing.assert_allclose(jax.jvp(of_both, (b, b), (b, 0 * b))[1], jnp.sum(b**3, axis=1), rtol=1e-14)
    # Where all move, all are told of; where none does, no arrays are made.
    g = lambda x, b: jnp.sum(scaled(x, {"a": b}, k)[0])  # noqa: E731
    np.testing.assert_allclose(jax.grad(g, 1)(a, a), a, rtol=1e-14)
    (out, d_out), zeros = pushed(lambda x, k: (2 * x, k), (a, k), (ZERO, ZERO)), np.zeros(2)
    np.testing.assert_array_equal(out[0], 2 * a)
    np.testing.assert_array_equal(d_out[0], zeros)
    assert d_out[1].dtype == jax.dtypes.float0 and (ZERO + a is a) and (a + ZERO is a)


def test_what_is_not_differentiable_is_not_a_number_where_it_matters():
    f = lambda x, y: undefined(y, x) * x  # noqa: E731
    assert f(2.0, 3.0) == 6.0
    assert np.isnan(jax.grad(f)(2.0, 3.0)) and np.isnan(jax.jvp(f, (2.0, 3.0), (1.0, 0.0))[1])
    # Where the argument does not move, or the result does not matter, or the branch is another one, it does not spread.
    assert jax.jvp(f, (2.0, 3.0), (0.0, 1.0))[1] == 2.0
    assert jax.grad(f, 1)(2.0, 3.0) == 2.0
    assert jax.vjp(lambda x: (undefined(x, x), 3 * x), 2.0)[1]((0.0, 1.0))[0] == 3.0
    branch = lambda x: lax.cond(x > 0, lambda x: undefined(x, x), lambda x: 2 * x, x)  # noqa: E731
    for mode in (jax.grad, jax.jacfwd):
        np.testing.assert_array_equal(jax.vmap(mode(branch))(jnp.array([1.0, -1.0])), [np.nan, 2.0])


def test_contact_problem():
    """A sliding contact: ``P_N = -c_N / (G_NN - mu G_NT)``, with second derivatives in mu."""
    G, c = jnp.array([[2.0, 0.3], [0.3, 1.0]]), jnp.array([-1.0, 4.0])
    solved = lambda mu: jaxnsd.solve_contact_problem(G, c, mu, d=1).P[0]  # noqa: E731
    exact = lambda mu: -c[0] / (G[0, 0] - mu * G[0, 1])  # noqa: E731
    np.testing.assert_allclose(solved(0.4), exact(0.4), rtol=1e-12)
    wanted = jax.jacfwd(jax.jacfwd(exact))(0.4)
    assert abs(wanted) > 1e-3
    seconds = jax.jit(lambda mu: [jax.jacfwd(jax.jacrev(path(solved)))(mu) for path in (lambda f: f, in_scan)])
    np.testing.assert_allclose(seconds(0.4), wanted, rtol=1e-9)


def sliding(mu):
    """One step of sliding, then one of moving on."""
    return 100 * simulate(Rider(1.3, 9.0, mu), Moreau(), jnp.array([0.3, -0.005]), jnp.array([3.0, 0.0]), 0.02, 0.01).q[-1, 0]


@pytest.mark.slow
def test_simulate_in_a_loop_of_the_user():
    wanted = second(sliding, jax.jacfwd)(0.2)
    assert abs(wanted) > 1e-3
    np.testing.assert_allclose(second(in_scan(sliding), jax.jacrev)(0.2), wanted, rtol=1e-9)


@pytest.mark.slow
def test_simulate_in_lockstep(lockstep):
    wanted = second(sliding, jax.jacfwd)(0.2)
    assert abs(wanted) > 1e-3
    np.testing.assert_allclose(second(in_vmap(sliding), jax.jacrev)(0.2), wanted, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("mode", [jax.jacfwd, jax.jacrev])
def test_reverse_mode_again_in_lockstep(lockstep, mode):
    """On a slope that is curved, where what a branch is chosen by differs between the members of a batch."""

    def slides(x):
        q0, u0 = jnp.stack([x, jnp.exp(-x)]), jnp.stack([1.0 + 0 * x, -jnp.exp(-x)])
        return simulate(PointMassOnSlope(), Moreau(), q0, u0, 0.04, 2e-2).q[-1, 1]

    wanted = second(slides, jax.jacfwd)(0.2)
    assert abs(wanted) > 0.1
    np.testing.assert_allclose(jax.jit(mode(jax.jacrev(in_vmap(slides))))(0.2), wanted, rtol=1e-9)


def height(p):
    """Height of a ball at 0.6 s, after one impact, from its initial height and restitution."""
    return simulate(BouncingBall(e_N=p[1]), jaxnsd.LocatedImpacts(jaxnsd.MoreauJean()), p[:1], jnp.zeros(1), 0.6, 1e-1).q[-1, 0]


def exact_height(p):
    g = BouncingBall().gravity
    s = 0.6 - jnp.sqrt(2 * p[0] / g)
    return p[1] * jnp.sqrt(2 * g * p[0]) * s - 0.5 * g * s**2


@pytest.mark.slow
@pytest.mark.parametrize("mode", [jax.jacfwd, jax.jacrev])
def test_located_impacts_in_lockstep(lockstep, mode):
    p = jnp.array([1.0, 0.75])
    wanted = jax.hessian(exact_height)(p)
    np.testing.assert_allclose(wanted, [[-1.163, -0.671], [-0.671, 0]], atol=1e-3)
    np.testing.assert_allclose(second(height, mode)(p), wanted, atol=1e-9)


@pytest.mark.slow
def test_second_derivatives_through_an_impact_by_saltation_do_not_exist():
    """One height of fall leads to an impact, the other does not; there d2q/dg2 vanishes."""

    def final(x):
        ball = BouncingBall(gravity=9.81 * x[1], e_N=x[2])
        return simulate(ball, Moreau(), x[:1], jnp.zeros(1), 0.6, 1e-2).q[-1, 0] ** 2

    hessians = jax.jit(jax.vmap(jax.hessian(final)))(jnp.array([[1.0, 1.0, 0.7], [3.0, 1.0, 0.7]]))
    assert np.all(np.isnan(hessians[0]))
    # q = h - x g c with c = dt^2 (0 + 1 + ... + 59) in Moreau's scheme.
    c = 1e-4 * 60 * 59 / 2
    exact = [[2.0, -2 * 9.81 * c, 0.0], [-2 * 9.81 * c, 2 * (9.81 * c) ** 2, 0.0], [0.0, 0.0, 0.0]]
    np.testing.assert_allclose(hessians[1], exact, rtol=1e-9)


def test_a_function_that_is_traced_once():
    """Values and derivatives of any order are those of the function; its code runs once for each kind of arguments."""
    runs = []

    @traced_once
    def f(x, y):
        runs.append(x)
        return {"product": jnp.sin(x) * y["a"]}

    def second(x, a):
        return jax.grad(jax.grad(lambda x: f(x, {"a": a})["product"]))(x)

    assert f(1.0, {"a": 2.0})["product"] == 2 * np.sin(1.0)
    np.testing.assert_allclose(jax.jit(second)(1.0, 2.0), -2 * np.sin(1.0), rtol=1e-15)
    x = jnp.arange(3.0)
    np.testing.assert_allclose(jax.vmap(jax.grad(lambda a: f(1.0, {"a": a})["product"]))(x), np.sin(1.0) * np.ones(3), rtol=1e-15)
    assert len(runs) == 2  # of Python's numbers, and of a number beside an entry of an array
    assert f(x, {"a": 1.0})["product"].shape == (3,) and len(runs) == 3


@pytest.mark.slow
@pytest.mark.parametrize("mode", [jax.jacfwd, jax.jacrev])
def test_a_run_of_one_step_compiles(mode):
    """A loop of one step is none, and XLA knows what its kernel is given; of two balls in flight it ended the process."""

    @jaxnsd.system
    class Balls(jaxnsd.System):
        def kinetic_energy(self, t, q, u):
            return 0.5 * u @ u

        def potential_energy(self, t, q):
            return 9.81 * jnp.sum(q)

        def gap(self, t, q):
            return q

    dt, q0, u0 = 1e-2, jnp.array([1.0, 2.0]), jnp.array([-1.0, 0.5])
    fallen = lambda u0: jaxnsd.simulate(Balls(), jaxnsd.Moreau(), q0, u0, dt=dt, n_steps=1).q[-1, 0]  # noqa: E731
    # Its value is asked for as well: zeros alone would say little.
    slope = jax.jit(jax.value_and_grad(fallen))(u0)
    np.testing.assert_allclose(slope[0], q0[0] + dt * u0[0], atol=9.81 * dt**2)
    np.testing.assert_allclose(slope[1], [dt, 0], rtol=1e-12)
    np.testing.assert_array_equal(jax.jit(mode(jax.grad(fallen)))(u0), np.zeros((2, 2)))
