"""Bad luck: what fails is reported with step, time, contact and advice, and the rest of a batch is untouched."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxnsd
from jaxnsd import Moreau, Outcome, SemismoothNewton, SimulationError, SymmetricMoreau, System, simulate
from jaxnsd.mechanics.results import EXPLANATION


@jaxnsd.system
class Oscillator(System):
    """A mass on a spring; beyond the place ``wall`` its force has no value."""

    stiffness: float = 100.0
    wall: float = 1e300

    def kinetic_energy(self, t, q, u):
        return 0.5 * u @ u

    def force(self, t, q, u):
        return -self.stiffness * q + 0 * jnp.sqrt(self.wall - q)


@jaxnsd.system
class Table(System):
    """A table in the plane with two frictional feet, thrown on the floor."""

    mu: float = 0.9
    e_N: float = 0.3

    def kinetic_energy(self, t, q, u):
        return 0.5 * (u[0] ** 2 + u[1] ** 2 + 0.05 * u[2] ** 2)

    def potential_energy(self, t, q):
        return 9.81 * q[1]

    def feet(self, q):
        s, c = jnp.sin(q[2]), jnp.cos(q[2])
        return jnp.stack([jnp.stack([q[0] + a * c + s, q[1] + a * s - c]) for a in (-0.2, 0.2)])

    def gap(self, t, q):
        return self.feet(q)[:, 1]

    def tangential_velocity(self, t, q, u):
        return jax.jvp(self.feet, (q,), (u,))[1][:, :1]


HURRIED = SemismoothNewton(max_iterations=1, max_rescues=0)


def throw(solver=None, tilt=0.0):
    """Thrown flat it lands on both feet at once."""
    return simulate(Table(), Moreau(), jnp.array([0.0, 1.05, 0.0]).at[2].set(tilt), jnp.array([3.0, -1.0, 0.0]), 0.3, 0.01, solver=solver)


@pytest.mark.slow
def test_success():
    solution = throw()
    assert solution.success and solution.raise_if_failed() is solution
    assert np.all(solution.contact == -1) and np.any(solution.P_N > 0)


def test_a_step_that_does_not_converge_is_reported():
    solution = throw(HURRIED)
    failed = np.flatnonzero(solution.outcome)
    assert failed.size and not solution.success
    assert np.all(np.asarray(solution.outcome)[failed] == Outcome.NOT_CONVERGED)
    assert np.all(np.asarray(solution.contact)[failed] >= 0)
    step, contact = failed[0], int(solution.contact[failed[0]])
    message = (
        rf"NOT_CONVERGED in step {step + 1} of 30 \(t = {solution.t[step + 1]:.6g} s\).*contact {contact}, with a residual of .*smaller dt"
    )
    with pytest.raises(SimulationError, match=message):
        solution.raise_if_failed()


@pytest.mark.parametrize("scheme", [Moreau(), SymmetricMoreau()], ids=lambda scheme: scheme.name)
def test_not_a_number_from_the_system_is_found_at_its_step(scheme):
    # q = sin t passes 0.5 at t = pi / 6: the force is not a number from the first node beyond it.
    solution = simulate(Oscillator(1.0, 0.5), scheme, jnp.zeros(1), jnp.ones(1), 1.0, 0.01)
    step = int(np.argmax(np.asarray(solution.outcome) != 0))
    assert solution.outcome[step] == Outcome.NON_FINITE and np.all(solution.outcome[step:] == Outcome.NON_FINITE)
    assert abs(float(solution.t[step + 1]) - np.pi / 6) < 0.03
    assert np.all(np.isfinite(solution.u[: step + 1])) and not np.any(np.isfinite(solution.u[step + 1]))
    with pytest.raises(SimulationError, match=rf"NON_FINITE in step {step + 1} of 100 .*division by zero"):
        solution.raise_if_failed()


@pytest.mark.parametrize("scheme", [Moreau(), jaxnsd.Lobatto(2)], ids=lambda scheme: scheme.name)
def test_a_gap_that_is_not_a_number_is_no_open_one(scheme):
    """The floor below a ball is lost after half a second: what falls on is no motion of the system."""

    @jaxnsd.system
    class Lost(jaxnsd.models.BouncingBall):
        def gap(self, t, q):
            return jnp.where(t > 0.505, jnp.nan, q)

    solution = simulate(Lost(e_N=0.0), scheme, jnp.array([0.1]), jnp.zeros(1), 1.0, 0.01)
    assert np.all(solution.outcome[:50] == 0) and np.all(solution.outcome[50:] == Outcome.NON_FINITE)


@pytest.mark.filterwarnings("ignore:Moreau with dt")
def test_blow_up_is_found_at_its_step():
    # dt = 0.1 against omega = 100: the explicit map multiplies the velocity by about (omega dt)^2 = 100 a step.
    stiffness, dt = 1e4, 0.1
    solution = simulate(Oscillator(stiffness), Moreau(), jnp.array([0.0]), jnp.array([1.0]), 1.0, dt)
    q, u, speeds = 0.0, 1.0, []
    for _ in range(10):
        q += dt * u
        u -= dt * stiffness * q
        speeds.append(abs(u))
    step = int(np.argmax(np.array(speeds) > 1e10))
    codes = np.asarray(solution.outcome)
    assert 0 < step < 9 and np.all(codes[:step] == 0) and np.all(codes[step:] == Outcome.DIVERGED)
    with pytest.raises(SimulationError, match=rf"DIVERGED in step {step + 1} of 10 \(t = {dt * (step + 1):.6g} s\).*dt < 2 / omega"):
        solution.raise_if_failed()


@jaxnsd.system
class Pulled(System):
    """A block that is pulled by a force which starts at zero, on a plane whose slope is round-off: g cos(pi / 2)."""

    mass: float = 2.0
    weight: float = 9.81 * float(np.cos(np.pi / 2))
    stiffness: float = 0.0

    def kinetic_energy(self, t, q, u):
        return 0.5 * self.mass * u @ u

    def force(self, t, q, u):
        return self.mass * self.weight + 0.5 * t - self.stiffness * q


@pytest.mark.filterwarnings("ignore:Moreau with dt")
@pytest.mark.filterwarnings("ignore:simulating in float32")
@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32], ids=["double", "single"])
def test_round_off_at_the_start_is_no_measure_of_speeds(dtype):
    """Under the force t / 2 a block at rest has the speed t^2 / (4 m); a blow-up is found all the same."""
    system = jax.tree.map(lambda x: jnp.asarray(x, dtype), Pulled())
    start = jnp.zeros(1, dtype)
    sol = simulate(system, Moreau(), start, start, t1=4.0, n_steps=40).raise_if_failed()
    np.testing.assert_allclose(sol.u[-1], 4.0**2 / (4 * 2.0), rtol=0.03)  # of a scheme of first order, 40 steps
    stiff = jax.tree.map(lambda x: jnp.asarray(x, dtype), Pulled(stiffness=1e6))
    assert Outcome.DIVERGED in np.asarray(simulate(stiff, Moreau(), start, start, t1=4.0, n_steps=40).outcome)


def test_save_every_keeps_the_worst_outcome():
    system, start = Oscillator(1.0, 0.5), (jnp.zeros(1), jnp.ones(1))
    every = simulate(system, Moreau(), *start, 1.0, 0.01)
    some = simulate(system, Moreau(), *start, 1.0, 0.01, save_every=10)
    np.testing.assert_array_equal(some.outcome, np.asarray(every.outcome).reshape(10, 10).max(1))


@jax.jit
@jax.vmap
def run_to_walls(wall):
    return simulate(Oscillator(1.0, wall), SymmetricMoreau(), jnp.zeros(1), jnp.ones(1), 1.0, 0.01)


def oscillators(walls):
    return run_to_walls(jnp.asarray(walls))


def test_a_bad_member_leaves_the_others_bit_identical():
    good, bad = oscillators([2.0, 2.0, 3.0, 2.0]), oscillators([2.0, 0.5, 3.0, 2.0])
    np.testing.assert_array_equal(bad.success, [True, False, True, True])
    for a, b in zip(jax.tree.leaves(good), jax.tree.leaves(bad), strict=True):
        np.testing.assert_array_equal(np.asarray(a)[[0, 2, 3]], np.asarray(b)[[0, 2, 3]])


def test_unconverged_members_leave_the_others_bit_identical():
    run = jax.jit(jax.vmap(lambda tilt: throw(HURRIED, tilt)))
    mixed, alone = run(jnp.array([0.0, 1.2, 0.0])), run(jnp.array([1.2, 1.2, 1.2]))
    assert not mixed.success[0]
    for a, b in zip(jax.tree.leaves(mixed), jax.tree.leaves(alone), strict=True):
        np.testing.assert_array_equal(np.asarray(a)[1], np.asarray(b)[1])


def test_error_of_a_batch_names_the_first_and_counts():
    with pytest.raises(SimulationError, match=re.escape("2 of 4 members of the batch failed, the first is (1,)")):
        oscillators([2.0, 0.5, 3.0, 0.4]).raise_if_failed()
    nested = jax.tree.map(lambda x: x.reshape(2, 2, *x.shape[1:]), oscillators([2.0, 3.0, 3.0, 0.4]))
    with pytest.raises(SimulationError, match=re.escape("1 of 4 members of the batch failed, the first is (1, 1)")):
        nested.raise_if_failed()
    assert nested.success.shape == (2, 2)
    oscillators([2.0, 3.0, 2.0, 2.0]).raise_if_failed()


def test_failure_at_the_first_node():
    # Traced, the wall is not known, and the checks before the run cannot see that the force has no value at the start.
    solution = oscillators([-1.0, 2.0, 2.0, 2.0])
    assert solution.initial_outcome[0] == Outcome.NON_FINITE and not solution.success[0]
    with pytest.raises(SimulationError, match=r"NON_FINITE at the first node \(t = 0 s\)"):
        solution.raise_if_failed()


def test_every_outcome_has_a_sentence_and_advice():
    assert set(EXPLANATION) == set(Outcome)
    assert all(what and advice for what, advice in EXPLANATION.values())


def ball(e_N, h=1.0, **options):
    """Coordinates of a bouncing ball: at 0.6 s it rises from its first impact."""
    return simulate(jaxnsd.models.BouncingBall(e_N=e_N), Moreau(), jnp.reshape(h, 1), jnp.zeros(1), 0.6, 0.01, **options)


def spring(stiffness, wall=1e300, **options):
    return simulate(Oscillator(stiffness, wall), Moreau(), jnp.zeros(1), jnp.ones(1), 1.0, 0.1, **options)


def table(mu, **options):
    return simulate(Table(mu=mu), Moreau(), jnp.array([0.0, 1.05, 0.0]), jnp.array([3.0, -1.0, 0.0]), 0.1, 0.01, solver=HURRIED, **options)


@pytest.mark.parametrize(
    "outcome, run, x",
    [
        (Outcome.INVALID_PARAMETER, ball, 2.0),
        pytest.param(Outcome.INVALID_PARAMETER, table, -0.1, marks=pytest.mark.slow),
        pytest.param(Outcome.NOT_CONVERGED, table, 0.9, marks=pytest.mark.slow),
        pytest.param(Outcome.DIVERGED, spring, 1e4, marks=pytest.mark.slow),
        (Outcome.NON_FINITE, lambda k, **options: spring(k, 0.1, **options), 1.0),
    ],
)
def test_what_has_failed_has_no_derivative(outcome, run, x):
    """In both modes, of every entry, also of a first node that nothing changes, and of differences in which they cancel."""
    assert jnp.max(jax.jit(lambda x: run(x).outcome)(x)) == outcome
    assert np.all(np.isnan(jax.jacfwd(lambda x: run(x).q)(x)))
    for value in (lambda sol: sol.q[-1, 0], lambda sol: sol.u[-1, 0] - sol.u[-2, 0]):
        assert np.isnan(jax.grad(lambda x, value=value: value(run(x)))(x))


def test_derivatives_of_what_failed_where_they_are_asked_for():
    """A ball of restitution 2 has the velocity -g (t - T) + e g T after an impact at T: by e that is g T, and its height g T (t - T)."""
    T = np.sqrt(2 / 9.81)
    loss = lambda e: ball(e, derivatives_of_failed=True).q[-1, 0]  # noqa: E731
    for derivative in (jax.grad(loss), jax.jacfwd(loss)):
        assert abs(derivative(2.0) - 9.81 * T * (0.6 - T)) < 0.1
    with pytest.raises(TypeError, match="derivatives_of_failed must be True or False, got 'yes'"):
        ball(0.5, derivatives_of_failed="yes")


@pytest.mark.slow
@pytest.mark.parametrize("in_lockstep", [False, True])
def test_a_failed_member_has_no_derivative_and_the_others_have_theirs(in_lockstep, request):
    """Member by member, and in lockstep, as on a GPU; second derivatives of a batch, too, which are zero: the height is linear in e."""
    if in_lockstep:
        request.getfixturevalue("lockstep")
    T, e_N = np.sqrt(2 / 9.81), jnp.array([0.5, 2.0, 0.7])
    each = jax.vmap(jax.grad(lambda e: ball(e).q[-1, 0]))(e_N)
    assert np.isnan(each[1]) and np.all(np.abs(each[jnp.array([0, 2])] - 9.81 * T * (0.6 - T)) < 0.1)

    def loss(factor):
        sol = jax.vmap(ball)(factor * e_N)
        return jnp.sum(jnp.where(sol.success, sol.q[:, -1, 0], 0.0))

    assert np.isclose(jax.grad(loss)(1.0), 0.5 * each[0] + 0.7 * each[2], rtol=1e-12)
    of_all = lambda e: jnp.sum(jax.vmap(functools.partial(ball, sensitivity="discrete"))(e).q[:, -1, 0])  # noqa: E731
    np.testing.assert_allclose(jax.hessian(of_all)(e_N[jnp.array([0, 2])]), 0.0, atol=1e-12)


@pytest.mark.slow
def test_what_goes_on_from_a_failed_run_has_no_derivative():
    """Though what follows succeeds: the restitution is in its range then."""

    def loss(e):
        first = ball(e)
        return simulate(jaxnsd.models.BouncingBall(), Moreau(), None, None, dt=0.01, n_steps=40, start=first).q[-1, 0]

    assert np.isnan(jax.grad(loss)(2.0)) and np.isfinite(jax.grad(loss)(0.5))


@pytest.mark.slow
def test_to_xarray():
    pytest.importorskip("xarray")
    solution = throw()
    data = solution.to_xarray()
    assert data.q.dims == ("node", "coordinate") and data.P_F.dims == ("step", "contact_index", "direction")
    np.testing.assert_array_equal(data.q, solution.q)
    np.testing.assert_array_equal(data.t, solution.t)
    np.testing.assert_array_equal(data.t_step, solution.t[1:])
    assert data.P_N.shape == (30, 2) and data.sizes["node"] == 31


@jaxnsd.system
class HangingChain(jaxnsd.System):
    """Two masses on stiff springs: at rest large forces cancel, and the velocity is zero."""

    stiffness: float = 1e5

    def mass_matrix(self, t, q):
        return jnp.eye(2) * (1 + 0 * q[0])

    def potential_energy(self, t, q):
        return 0.5 * self.stiffness * ((q[0] - 1) ** 2 + (q[1] - q[0] - 1) ** 2) + 9.81 * (q[0] + q[1])


@pytest.mark.parametrize("scheme", [jaxnsd.SymmetricMoreau(), jaxnsd.VariationalMoreau(), jaxnsd.MoreauJean(), jaxnsd.GeneralizedAlpha()])
def test_an_equilibrium_under_large_forces_is_solved(scheme):
    lower = 1 - 2 * 9.81 / 1e5
    sol = jaxnsd.simulate(HangingChain(), scheme, jnp.array([lower, lower + 1 - 9.81 / 1e5]), jnp.zeros(2), 0.2, 1e-3)
    assert bool(sol.success)
    assert jnp.max(jnp.abs(sol.u)) < 1e-11
