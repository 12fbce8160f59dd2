"""The driver: what is stored, checkpoints, batches, jit, float32, progress."""

import dataclasses
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxnsd
from jaxnsd import Moreau, Outcome, SemismoothNewton, SimulationError, simulate
from jaxnsd.models import BouncingBall, CornerBlock, RotatingBall, SpringPendulum

N, DT = 600, 2e-3  # steps of most runs here: two impacts of the rotating ball and a slide


def ball_run(system=None, scheme=None, n=N, omega=30.0, **options):
    system = RotatingBall() if system is None else system
    return simulate(system, Moreau() if scheme is None else scheme, *system.initial_state(omega), n * DT, DT, **options)


@pytest.fixture(scope="module")
def plain():
    return ball_run().raise_if_failed()


# --------------------------------------------------------------------------------------------------------------- save_every
@pytest.mark.slow
@pytest.mark.parametrize("save_every", [3, 100])
def test_save_every(plain, save_every):
    """The same nodes bit for bit, percussions and iterations summed, the worst residual, which is round-off, and outcome."""
    solution = ball_run(save_every=save_every)
    for name in ("t", "q", "u"):
        np.testing.assert_array_equal(getattr(solution, name), getattr(plain, name)[::save_every])
    for name in ("P_N", "P_F", "iterations"):
        full = np.asarray(getattr(plain, name))
        summed = full.reshape(-1, save_every, *full.shape[1:]).sum(axis=1)
        np.testing.assert_allclose(getattr(solution, name), summed, rtol=1e-13, atol=1e-16)
    for name in ("residual", "outcome", "contact"):
        worst = np.asarray(getattr(plain, name)).reshape(-1, save_every).max(axis=1)
        np.testing.assert_allclose(getattr(solution, name), worst, rtol=0, atol=1e-15 * (name == "residual"))


def test_nodes_are_computed_and_the_last_is_the_end(plain):
    np.testing.assert_array_equal(plain.t, np.arange(N + 1) * DT)
    assert float(plain.t[-1]) == pytest.approx(N * DT, abs=1e-15)
    late = simulate(BouncingBall(), Moreau(), jnp.array([1.0]), jnp.array([0.0]), 5.3, 0.1, 5.0)
    np.testing.assert_allclose(late.t, [5.0, 5.1, 5.2, 5.3], rtol=1e-15)


@pytest.mark.slow
def test_runs_can_be_put_end_to_end(plain):
    """Moreau's first step is the velocity that left the last node, so two halves make the whole."""
    half = N // 2
    first = ball_run(n=half)
    second = simulate(RotatingBall(), Moreau(), first.q[-1], first.u[-1], half * DT, DT)
    np.testing.assert_allclose(first.u, plain.u[: half + 1], rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(second.u, plain.u[half:], rtol=1e-11, atol=1e-12)


# ---------------------------------------------------------------------------------------------------------- time as an argument
@jaxnsd.system
class Driven(jaxnsd.System):
    """A unit mass under the force cos t."""

    def kinetic_energy(self, t, q, u):
        return 0.5 * u @ u

    def force(self, t, q, u):
        return jnp.cos(t) + 0 * u


@pytest.mark.slow
def test_start_end_and_step_are_arguments_with_derivatives():
    """x(t1) = cos t0 - cos t1 - sin t0 (t1 - t0) from rest at t0: values and derivatives, for a batch of intervals."""

    def by_end(t0, t1):
        return simulate(Driven(), jaxnsd.MoreauJean(), jnp.zeros(1), jnp.zeros(1), t1, t0=t0, n_steps=400).q[-1, 0]

    def by_step(t0, dt):
        return simulate(Driven(), jaxnsd.MoreauJean(), jnp.zeros(1), jnp.zeros(1), dt=dt, t0=t0, n_steps=400).q[-1, 0]

    t0, t1 = jnp.array([0.0, 0.4]), jnp.array([1.0, 2.5])
    error = float(jnp.max((t1 - t0) / 400)) ** 2  # a scheme of second order, everything of size one
    x, (at_start, at_end) = jax.vmap(jax.value_and_grad(by_end, argnums=(0, 1)))(t0, t1)
    np.testing.assert_allclose(x, jnp.cos(t0) - jnp.cos(t1) - jnp.sin(t0) * (t1 - t0), atol=error)
    np.testing.assert_allclose(at_start, -jnp.cos(t0) * (t1 - t0), atol=error)
    np.testing.assert_allclose(at_end, jnp.sin(t1) - jnp.sin(t0), atol=error)
    dt = (t1 - t0) / 400
    along, by_dt = jax.vmap(jax.jacfwd(by_step, argnums=(0, 1)))(t0, dt)
    np.testing.assert_allclose(by_dt, 400 * at_end, atol=1e-9)
    np.testing.assert_allclose(along, at_start + at_end, atol=1e-10)  # start and end are moved together


def test_derivative_of_a_run_with_an_impact_by_its_length():
    """dq/dt1 = u(t1): after an impact as well, to O(dt); and the same motion as with t1 and dt."""

    def end(t1):
        sol = simulate(BouncingBall(), Moreau(), jnp.array([1.0]), jnp.zeros(1), t1, n_steps=700)
        return sol.q[-1, 0], sol

    (_, sol), slope = jax.value_and_grad(end, has_aux=True)(0.7)
    closes = np.sqrt(2 / 9.81)
    np.testing.assert_allclose(slope, 0.75 * 9.81 * closes - 9.81 * (0.7 - closes), rtol=2e-2)
    given = simulate(BouncingBall(), Moreau(), jnp.array([1.0]), jnp.zeros(1), 0.7, 1e-3)
    np.testing.assert_allclose(sol.q, given.q, atol=1e-13)
    np.testing.assert_allclose(sol.t, given.t, atol=1e-15)


# ------------------------------------------------------------------------------------------------------------- the solution
def test_a_solution_in_a_line(plain):
    assert repr(plain) == ("Solution(q (601, 3), u (601, 3), P_N (600, 1), P_F (600, 1, 1), t = 0 to 1.2 s, 600 SUCCESS)")
    assert plain == plain and plain != dataclasses.replace(plain) and (plain == 3) is False
    assert repr(jax.tree.map(lambda x: x[None], plain)).startswith("Solution(q (1, 601, 3)")


@pytest.mark.slow
def test_failures_cannot_be_raised_while_there_are_no_values():
    def run(h0):
        return simulate(BouncingBall(), Moreau(), h0, jnp.zeros(1), 0.02, 1e-3)

    with pytest.raises(TypeError, match=r"raise_if_failed\(\) needs values.*read solution.success inside"):
        jax.jit(lambda h0: run(h0).raise_if_failed().q)(jnp.ones(1))
    with pytest.raises(TypeError, match=r"to_xarray\(\) needs values"):
        jax.vmap(lambda h0: run(h0).to_xarray())(jnp.ones((2, 1)))
    lines = []
    jax.eval_shape(lambda h0: lines.append(repr(run(h0))), jnp.ones(1))
    assert lines == ["Solution(q (21, 1), u (21, 1), P_N (20, 1), traced)"]
    slope = jax.grad(lambda h0: run(h0).raise_if_failed().q[-1, 0])(jnp.ones(1))  # grad alone leaves the values
    np.testing.assert_allclose(slope, 1.0)


# ---------------------------------------------------------------------------------------------------------------- checkpoint
@pytest.mark.slow
@pytest.mark.parametrize("options", [{"checkpoint": 7}, {"checkpoint": 20, "save_every": 50}], ids=str)
def test_checkpoint_changes_nothing(plain, options):
    """Values and gradients as without."""

    def final(parameters, **options):
        solution = ball_run(RotatingBall(e_N=parameters[0], mu=parameters[1]), omega=80.0, **options)  # slips
        return jnp.sum(solution.q[-1] * jnp.array([1.0, 2.0, 0.1])) + jnp.sum(solution.P_N)

    parameters = jnp.array([0.5, 0.2])
    value, gradient = jax.value_and_grad(final)(parameters)
    value_with, gradient_with = jax.value_and_grad(lambda p: final(p, **options))(parameters)
    assert float(value_with) == pytest.approx(float(value), rel=1e-13)
    assert np.all(np.asarray(gradient) != 0)
    np.testing.assert_allclose(gradient_with, gradient, rtol=1e-10)
    nodes = ball_run(**options)
    np.testing.assert_array_equal(nodes.q, plain.q[:: options.get("save_every", 1)])


# --------------------------------------------------------------------------------------------------------------------- batches
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_vmap_with_a_member_that_fails():
    """One member blows up (a stiff spring at a large step): it is flagged, and the others do not notice."""
    stiffness = jnp.array([100.0, 3e6, 150.0])
    q0, u0 = SpringPendulum().initial_state()

    def one(k):
        return simulate(SpringPendulum(stiffness=k), Moreau(), q0, u0, 0.8, 2e-3)

    batch = jax.vmap(one)(stiffness)
    np.testing.assert_array_equal(batch.success, [True, False, True])
    for i in (0, 2):
        single = one(float(stiffness[i]))
        np.testing.assert_allclose(batch.q[i], single.q, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(batch.P_N[i], single.P_N, rtol=1e-10, atol=1e-12)
    codes = np.asarray(batch.outcome[1])
    first = int(np.argmax(codes != 0))
    assert codes[first] in (Outcome.DIVERGED, Outcome.NON_FINITE)
    with pytest.raises(SimulationError, match=rf"in step {first + 1} of 400.*1 of 3 members of the batch failed, the first is \(1,\)"):
        batch.raise_if_failed()


@pytest.mark.slow
def test_a_step_that_does_not_converge_is_reported():
    """One Newton iteration is not enough for a block on two corners: the sentence names step, time and contact."""
    block = CornerBlock()
    solution = simulate(block, Moreau(), *block.initial_state(), 0.8, DT, solver=SemismoothNewton(max_iterations=1, max_rescues=0))
    assert not bool(solution.success)
    failed = np.asarray(solution.outcome) != Outcome.SUCCESS
    assert np.asarray(solution.outcome)[np.argmax(failed)] == Outcome.NOT_CONVERGED
    contacts = np.asarray(solution.contact)
    assert np.all(contacts[~failed] == -1)
    assert set(contacts[np.asarray(solution.outcome) == Outcome.NOT_CONVERGED]) <= {0, 1}
    with pytest.raises(SimulationError, match=r"NOT_CONVERGED in step \d+ of 400 \(t = .*the worst is contact [01].*What to try"):
        solution.raise_if_failed()


# ------------------------------------------------------------------------------------------------------------- ------------ jit
@pytest.mark.slow
def test_jit(plain):
    q0, u0 = RotatingBall().initial_state(30.0)
    run = jax.jit(lambda system, q0, u0: simulate(system, Moreau(), q0, u0, N * DT, DT))
    solution = run(RotatingBall(), q0, u0)
    np.testing.assert_allclose(solution.q, plain.q, rtol=1e-12, atol=1e-13)
    assert bool(solution.success)
    with pytest.raises(TypeError, match="t1 decides the number of steps"):
        jax.jit(lambda t1: simulate(RotatingBall(), Moreau(), q0, u0, t1, DT))(1.0)


def test_solution_is_a_pytree(plain):
    doubled = jax.tree.map(lambda x: 2 * x, plain)
    np.testing.assert_array_equal(doubled.q, 2 * plain.q)
    assert plain.raise_if_failed() is plain


# ------------------------------------------------------------------------------------------------------------------- float32
FLOAT32 = """
import warnings, jax.numpy as jnp, numpy as np
from jaxnsd import Moreau, simulate
from jaxnsd.models import RotatingBall
ball = RotatingBall(e_N=0.0)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    solutions = [simulate(ball, Moreau(), *ball.initial_state(50.0), 1.0, 2e-3) for _ in range(2)]
assert len([w for w in caught if "float32" in str(w.message)]) == 1, [str(w.message) for w in caught]
for name in ("t", "q", "u", "P_N", "P_F", "residual"):
    assert getattr(solutions[0], name).dtype == jnp.float32, name
assert bool(solutions[0].success)
assert abs(float(solutions[0].u[-1, 0]) + 2 * 50 * 0.1 / 7) < 1e-4
"""


@pytest.mark.slow
def test_float32():
    """Without x64 everything is float32: it warns once, and the motion is right to single precision."""
    environment = {**os.environ, "JAX_ENABLE_X64": "0", "JAX_NUMPY_RANK_PROMOTION": os.environ.get("JAX_NUMPY_RANK_PROMOTION", "allow")}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    result = subprocess.run([sys.executable, "-c", FLOAT32], capture_output=True, text=True, env=environment, check=False)
    assert result.returncode == 0, result.stderr[-2000:]


@pytest.mark.slow
def test_float32_state_beside_x64(monkeypatch):
    """The dtype of a run is that of its state, also with x64 enabled; and it agrees with the float64 run."""
    monkeypatch.setattr(jaxnsd.simulation.checks, "_warned_float32", False)
    ball = RotatingBall(e_N=0.0)
    q0, u0 = ball.initial_state(50.0)
    with pytest.warns(UserWarning, match="simulating in float32"):
        single = simulate(ball, Moreau(), q0.astype(jnp.float32), u0.astype(jnp.float32), N * DT, DT)
    double = simulate(ball, Moreau(), q0, u0, N * DT, DT)
    assert single.q.dtype == single.u.dtype == single.P_N.dtype == jnp.float32
    assert bool(single.success)
    np.testing.assert_allclose(single.u, double.u, rtol=1e-3, atol=1e-3)


# ------------------------------------------------------------------------------------------------------------------ progress
@pytest.mark.parametrize(
    "options",
    [{"save_every": 50}, pytest.param({}, marks=pytest.mark.slow), pytest.param({"checkpoint": 25}, marks=pytest.mark.slow)],
    ids=str,
)
def test_progress(plain, capfd, options):
    """The bar changes no value and reaches its end; twice in a row."""
    for _ in range(2):
        solution = ball_run(progress=True, **options)
        jax.block_until_ready(solution.q)
        jax.effects_barrier()
        np.testing.assert_allclose(solution.q, plain.q[:: options.get("save_every", 1)], rtol=1e-12, atol=1e-13)
        assert "100%" in capfd.readouterr().err
