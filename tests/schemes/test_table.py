"""A table of systems x schemes, and all that holds for every one of them, checked on the same runs.

Two programs for an entry that is differentiated: one run with its derivative in forward mode, and a batch of two with their gradients in
reverse mode. From what they return: the equations of every step recomputed from the stored arrays, the laws of impact and friction,
bilateral constraints, penetration, a batch that is a loop, derivatives that agree in both modes. The fast tests have one entry of each
kind: contacts with and without friction, in the plane and in space, constraints of both kinds, a quaternion, a mass matrix that varies.
Derivatives of the others, and systems that differ in numbers only, run with the slow tests, more schemes with the long ones;
`test_schemes` has more schemes on fewer systems.
"""

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from little_systems import LITTLE
from scheme_table import label

from jaxnsd import GeneralizedAlpha, Lobatto, Moreau, MoreauJean, SymmetricMoreau, VariationalMoreau, project_velocity, simulate
from jaxnsd.models import MODELS

MOREAU, SYMMETRIC, VARIATIONAL, JEAN, ALPHA, LOBATTO = (
    Moreau(),
    SymmetricMoreau(),
    VariationalMoreau(),
    MoreauJean(),
    GeneralizedAlpha(),
    Lobatto(2),
)
MOREAU_TYPE = (MOREAU, SYMMETRIC, VARIATIONAL)


@dataclass(frozen=True)
class Row:
    """How a system is run: steps, their size, ``initial_state(*args)``, and what its constructor takes."""

    n_steps: int
    dt: float
    scheme: Any  # the scheme that stands for all; Moreau's run with the long tests as well
    differentiated: bool = False  # whether its derivatives are compared too
    args: tuple = ()
    options: tuple = ()
    long: tuple = MOREAU_TYPE
    speeds: tuple = ()  # of a system from parts at the start, as near to them as constraints allow


TABLE = {
    "BouncingBall": Row(2000, 1e-3, LOBATTO, True),
    "SpringPendulum": Row(2000, 1e-3, VARIATIONAL, True),
    "Woodpecker": Row(3000, 1e-4, MOREAU, True),
    "BeadColumn": Row(2000, 1e-3, SYMMETRIC, options=(("n", 4),)),
    "RotatingBall": Row(2500, 4e-4, ALPHA, True, args=(50.0,)),
    "SliderCrank": Row(2000, 2e-5, None, long=(MOREAU,)),
    "SliderCrankMinimal": Row(2000, 2e-5, None, long=(MOREAU,)),
    "PointMassOnSlope": Row(1500, 1e-3, JEAN, args=(2,)),
    "CornerBlock": Row(2000, 5e-4, MOREAU, True),
    "DoublePendulum": Row(3000, 1e-3, JEAN),
    "TwoDiscs": Row(1500, 1e-3, LOBATTO),
    "Sphere": Row(1500, 1e-3, MOREAU, True),
    "Cube": Row(800, 1.25e-3, MOREAU, long=(MOREAU,)),
    "CartesianPendulum": Row(1500, 1e-3, MOREAU, True),
    "Skate": Row(1500, 1e-3, SYMMETRIC, True),
    "ShakenTable": Row(1500, 1e-3, MOREAU, True),
    "TumblingBody": Row(1000, 1e-3, MOREAU, long=(MOREAU, SYMMETRIC)),
    "ThrownBox": Row(1000, 1e-3, LOBATTO, long=(MOREAU, SYMMETRIC), speeds=(2.0, 0.5, 0.0, 2.0, -1.0, 3.0)),
    "Telescope": Row(1500, 1e-3, SYMMETRIC, long=(MOREAU, LOBATTO), speeds=(1.0, 2.0, 0.5, 0.3)),
    "FourBar": Row(1500, 1e-3, VARIATIONAL, long=(MOREAU, SYMMETRIC, LOBATTO), speeds=(5.0, 0.0, 0.0)),
}

#: Systems that run with the fast tests, and whether their derivatives do; all else that one scheme stands for is slow.
FAST = {
    "BouncingBall": False,
    "SpringPendulum": False,
    "CornerBlock": False,
    "CartesianPendulum": False,
    "Skate": True,
    "TumblingBody": False,
}

#: Entries that the oldest supported JAX runs too.
OLDEST = {("CartesianPendulum", MOREAU), ("SpringPendulum", VARIATIONAL), ("RotatingBall", ALPHA), ("BouncingBall", LOBATTO)}


def entries():
    """All pairs of a system and a scheme, whether they are differentiated, and their marks."""
    for name, row in TABLE.items():
        for scheme in dict.fromkeys((row.scheme, *row.long) if row.scheme else row.long):
            stands = scheme == row.scheme
            for differentiated in sorted({False, row.differentiated and stands}):
                fast = stands and FAST.get(name) == differentiated
                marks = [] if fast else [pytest.mark.slow if stands else pytest.mark.long]
                marks += [pytest.mark.oldest] * ((name, scheme) in OLDEST)
                identity = f"{name}-{label(scheme)}" + "-derivatives" * differentiated
                # What is differentiated is checked in all that the run alone is.
                if differentiated or not (row.differentiated and stands) or fast:
                    yield pytest.param(name, scheme, differentiated, id=identity, marks=marks)


# -------------------------------------------------------------------------------------------------------- runs and their arrays
KINEMATICS = ("gap", "constraint", "gap_velocity", "tangential_velocity", "constraint_velocity", "velocity_constraint")
KINETICS = ("M", "h", "b", "momentum", "q_dot", "W_N", "W_F", "W_g", "W_gamma")
#: Functions of time and configuration alone.
STATIC = {"gap", "constraint"}


def new(name):
    return {**MODELS, **LITTLE}[name](**dict(TABLE[name].options))


def start(name, system):
    row = TABLE[name]
    q0, u0 = system.initial_state(*row.args)
    return (q0, project_velocity(system, q0, jnp.array(row.speeds))) if row.speeds else (q0, u0)


@functools.cache
def evaluator(name, quantities):
    """Derived quantities of a system at many nodes, compiled once for all schemes."""
    system = new(name)

    def evaluate(t, q, u):
        return {x: getattr(system, x)(*((t, q) if x in STATIC else (t, q, u))) for x in quantities}

    return jax.jit(jax.vmap(evaluate))


def at_nodes(name, t, q, u, *quantities):
    """The system's derived quantities at given nodes, as NumPy arrays."""
    group = KINEMATICS if set(quantities) <= set(KINEMATICS) else KINETICS
    values = evaluator(name, group)(jnp.asarray(t), jnp.asarray(q), jnp.asarray(u))
    return [np.asarray(values[x]) for x in quantities]


@dataclass(frozen=True)
class Run:
    """Arrays of a run with the first node prepended: node k has the arriving velocity, the leaving velocity and percussions."""

    name: str
    scheme: Any
    system: Any
    dt: float
    t: np.ndarray
    q: np.ndarray
    arriving: np.ndarray
    leaving: np.ndarray
    percussions: tuple


def gathered(name, scheme, u0, sol):
    t, q, leaving = (np.asarray(x) for x in (sol.t, sol.q, sol.u))
    arriving = np.concatenate([np.asarray(u0)[None], leaving[:-1]])
    pairs = zip(sol.initial[:4], (sol.P_N, sol.P_F, sol.P_g, sol.P_gamma), strict=True)
    percussions = tuple(np.concatenate([np.asarray(first)[None], np.asarray(rest)]) for first, rest in pairs)
    return Run(name, scheme, new(name), TABLE[name].dt, t, q, arriving, leaving, percussions)


# --------------------------------------------------------------------------------------------------- what holds for every entry
def check_shapes(run, sol):
    n, n_u = TABLE[run.name].n_steps, run.leaving.shape[1]
    n_N, d = jax.eval_shape(run.system.tangential_velocity, 0.0, run.q[0], run.leaving[0]).shape
    assert sol.q.shape == (n + 1, run.q.shape[1]) and sol.u.shape == (n + 1, n_u)
    assert sol.P_N.shape == (n, n_N) and sol.P_F.shape == (n, n_N, d)
    assert sol.outcome.shape == sol.iterations.shape == sol.residual.shape == (n,)


def check_balance(run):
    """The equation of a step of Moreau's type at every node: (59), (61) or (63) of C18, with their first steps (58), (60), (62)."""
    dt, t, q, arriving, leaving = run.dt, run.t, run.q, run.arriving, run.leaving
    names = ["M", "h", "b", "momentum", "q_dot", "W_N", "W_F", "W_g", "W_gamma"]
    M, h_leaving, b_leaving, p_leaving, q_dot, W_N, W_F, W_g, W_gamma = at_nodes(run.name, t, q, leaving, *names)
    h_arriving, b_arriving, p_arriving = at_nodes(run.name, t, q, arriving, "h", "b", "momentum")
    P_N, P_F, P_g, P_gamma = run.percussions
    impulse = np.einsum("kijd,kjd->ki", W_F, P_F) + sum(
        np.einsum("kij,kj->ki", W, P) for W, P in ((W_N, P_N), (W_g, P_g), (W_gamma, P_gamma))
    )
    size = np.max(np.abs(p_leaving)) + np.max(np.abs(p_arriving)) + np.max(np.abs(impulse))
    jump = np.einsum("kij,kj->ki", M, leaving - arriving)
    if run.scheme == MOREAU:
        balance = jump - h_arriving * dt - impulse
        balance[0] = leaving[0] - arriving[0]
        assert all(np.all(P[0] == 0) for P in run.percussions)
    elif run.scheme == SYMMETRIC:
        balance = jump - 0.5 * (h_arriving + h_leaving) * dt - impulse
        balance[0] = p_leaving[0] - p_arriving[0] - 0.5 * h_leaving[0] * dt - 0.5 * impulse[0]
    else:
        # p(t_{k+1}, q_{k+1}, u_k) and p(t_{k-1}, q_{k-1}, u_{k-1})
        (p_next,) = at_nodes(run.name, t + dt, q + dt * leaving, leaving, "momentum")
        (p_last,) = at_nodes(run.name, t - dt, q - dt * arriving, arriving, "momentum")
        balance = 0.5 * (p_leaving + p_next - p_last - p_arriving) - 0.5 * (b_arriving + b_leaving) * dt - impulse
        balance[0] = 0.5 * (p_leaving[0] + p_next[0]) - p_arriving[0] - 0.5 * b_leaving[0] * dt - 0.5 * impulse[0]
    assert np.max(np.abs(balance)) < 1e-10 * size
    if not run.system.defines("q_dot"):
        # What closes a loop is of second order.
        apart = dt * np.max(np.abs(np.diff(leaving, axis=0))) if run.system.coordinate_projection and P_g.shape[1] else 1e-13
        np.testing.assert_allclose(q[1:], q[:-1] + dt * q_dot[:-1], rtol=1e-13, atol=apart)


def check_bilateral(run):
    """Constraints on velocity level hold to round-off; on position level they do for Lobatto, and drift by less than a step elsewhere."""
    first = 1 if run.scheme == MOREAU else 0
    constraint, rate, velocity = at_nodes(run.name, run.t, run.q, run.leaving, "constraint", "constraint_velocity", "velocity_constraint")
    speed = np.max(np.abs(run.leaving))
    for row in (rate, velocity):
        assert np.all(np.abs(row[first:]) < 1e-10 * (1 + speed))
    assert np.max(np.abs(constraint), initial=0) < (1e-11 if run.scheme == LOBATTO else speed * run.dt)


def check_laws(run):
    """What holds in every step of any scheme: percussions push, lie in the cone, and stay away from contacts that are open."""
    P_N, P_F, *_ = run.percussions
    if P_N.shape[1] == 0:
        return
    (gap,) = at_nodes(run.name, run.t, run.q, run.leaving, "gap")
    size = np.max(P_N)
    assert size > 0, "this run should have contacts"
    assert np.min(P_N) >= -1e-14 * size
    mu = np.asarray(run.system.contact_data(0.0, jnp.asarray(run.q[0]))[2])
    assert np.all(np.linalg.norm(P_F, axis=2) <= mu * P_N + 1e-10 * size)
    # Position level: none beyond the start's. Velocity level: what the speed of closing makes of two steps.
    allowed = 1e-11 if run.scheme == LOBATTO else -2 * np.min(np.diff(gap, axis=0)) + 1e-2 * run.dt
    assert np.min(gap) > min(np.min(gap[0]), 0) - allowed
    away = gap[1:] > 2 * np.max(np.abs(np.diff(gap, axis=0)))
    np.testing.assert_array_equal(P_N[1:][away], 0)


def check_impact_law(run):
    """Newton's law and Coulomb's of Moreau's schemes, at every node: complementarity, sticking, slip against the force."""
    first = 1 if run.scheme == MOREAU else 0  # Moreau does not treat the first node
    names = ["gap_velocity", "tangential_velocity"]
    gap, normal, tangential = at_nodes(run.name, run.t, run.q, run.leaving, "gap", *names)
    normal_before, tangential_before = at_nodes(run.name, run.t, run.q, run.arriving, *names)
    P_N, P_F, *_ = run.percussions
    if gap.shape[1] == 0:
        return
    e_N, e_F, mu = (np.asarray(x) for x in run.system.contact_data(run.t[0], jnp.asarray(run.q[0])))
    xi_N = (normal + e_N * normal_before)[first:]
    xi_F = (tangential + e_F[:, None] * tangential_before)[first:]
    gap, P_N, P_F = gap[first:], P_N[first:], P_F[first:]
    P_size = np.max(np.abs(P_N))
    xi_size = max(np.max(np.abs(normal)), np.max(np.abs(tangential), initial=0))
    tolerance = 1e-10

    # Within round-off of zero either is right.
    open_, closed = gap > 1e-15, gap < -1e-15
    assert np.any(open_) or run.name in ("BeadColumn", "CornerBlock")
    np.testing.assert_array_equal(P_N[open_], 0)
    np.testing.assert_array_equal(P_F[open_], 0)
    assert np.all(xi_N[closed] >= -tolerance * xi_size)
    assert np.max(np.abs(P_N * xi_N)) < tolerance * P_size * xi_size

    if P_F.shape[2] == 0:
        return
    force, slip = np.linalg.norm(P_F, axis=2), np.linalg.norm(xi_F, axis=2)
    inside = force < mu * P_N * (1 - 1e-6) - 1e-6 * P_size
    assert np.all(slip[inside] < tolerance * xi_size)
    # Maximum dissipation holds all of Coulomb's law at once: -P_F . xi_F = mu P_N |xi_F|.
    power = np.sum(P_F * xi_F, axis=2)
    active = ~open_
    assert np.max(np.abs(power + mu * P_N * slip)[active], initial=0) < tolerance * P_size * xi_size
    slips = active & (slip > 1e-6 * xi_size) & (1e-6 * P_size < P_N)
    assert np.any(slips)
    expected = -(mu * P_N / np.where(slip > 0, slip, 1))[..., None] * xi_F
    np.testing.assert_allclose(P_F[slips], expected[slips], rtol=0, atol=1e-9 * P_size)


@pytest.mark.parametrize(("name", "scheme", "differentiated"), list(entries()))
def test_table(name, scheme, differentiated):
    row, system = TABLE[name], new(name)
    q0, u0 = start(name, system)
    theta, restore = ravel_pytree(jax.tree.map(lambda x: jnp.asarray(x, float), (system, q0, u0)))
    rng = np.random.default_rng(1)
    # Limits that are not there are infinite.
    direction = jnp.where(jnp.isfinite(theta), jnp.asarray(rng.normal(size=theta.shape)) * theta, 0)
    weights = jnp.asarray(rng.normal(size=q0.size + u0.size))

    def run(theta):
        parameters, q0, u0 = restore(theta)
        sol = simulate(parameters, scheme, q0, u0, row.n_steps * row.dt, row.dt)
        return weights @ jnp.concatenate([sol.q[-1], sol.u[-1]]), sol

    if differentiated:
        value, tangent, sol = jax.jit(lambda x, dx: jax.jvp(run, (x,), (dx,), has_aux=True))(theta, direction)
    else:
        value, sol = jax.jit(run)(theta)
    sol.raise_if_failed()
    arrays = gathered(name, scheme, u0, sol)
    check_shapes(arrays, sol)
    check_bilateral(arrays)
    check_laws(arrays)
    if scheme in MOREAU_TYPE:
        check_balance(arrays)
        check_impact_law(arrays)
    if not differentiated:
        return

    # A batch is a loop, in values and in gradients; the other member starts with a tenth less speed.
    slower = theta.at[-u0.size :].multiply(0.9)
    (values, batch), gradients = jax.jit(jax.vmap(jax.value_and_grad(run, has_aux=True)))(jnp.stack([theta, slower]))
    assert np.all(batch.success)
    scale = 1 + np.abs(value)
    assert abs(values[0] - value) < 1e-9 * scale
    for field in ("q", "u", "P_N", "P_F"):
        alone = np.asarray(getattr(sol, field))
        np.testing.assert_allclose(getattr(batch, field)[0], alone, rtol=0, atol=1e-9 * (1 + np.max(np.abs(alone), initial=0)))
    assert np.all(np.isfinite(gradients))
    terms = np.asarray(gradients[0] * direction)
    assert np.sum(np.abs(terms)) > 0
    assert abs(np.sum(terms) - tangent) < 1e-8 * np.sum(np.abs(terms)), (np.sum(terms), tangent)


# ------------------------------------------------------------------------------------------------------------- single precision
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in TABLE if name in MODELS])
@pytest.mark.filterwarnings("ignore:.*float32")
def test_in_single_precision(name):
    """Every model runs in float32, and starts as it does in float64."""
    row, system = TABLE[name], new(name)
    scheme = row.scheme or MOREAU
    state = system.initial_state(*row.args)
    single = tuple(x.astype(jnp.float32) for x in state)
    short, exact = (simulate(system, scheme, *s, 50 * row.dt, row.dt) for s in (single, state))
    assert short.q.dtype == short.P_N.dtype == jnp.float32
    assert np.all(np.isfinite(short.q)) and np.all(np.isfinite(short.u))
    assert bool(short.success), np.unique(short.outcome)
    speed = 1 + np.max(np.abs(exact.u))
    np.testing.assert_allclose(short.q, exact.q, rtol=0, atol=1e-3 * speed * 50 * row.dt + 1e-5)
