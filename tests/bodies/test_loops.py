"""Loops of bodies stay closed, with every scheme: coordinate projection, its derivatives, and the outcome of what drifts."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scheme_table import over

import jaxnsd
from jaxnsd import bodies
from jaxnsd.bodies import Body, Box, Connect, Motor, Plane, Revolute, Sphere, Spherical, Weld
from jaxnsd.schemes import GeneralizedAlpha, Lobatto, Moreau, MoreauJean, SymmetricMoreau

CRANK, COUPLER, FOLLOWER, GROUND = 0.1, 0.3, 0.25, 0.3
TURNED_UP = (np.sqrt(0.5), -np.sqrt(0.5), 0.0, 0.0)  # z to y


@jaxnsd.system
class Drifting(bodies.Multibody):
    """As the schemes were published."""

    coordinate_projection = False


def rod(length, mass=1.0):
    inertia = mass * length**2 / 12
    return {"mass": mass, "center": (length / 2, 0, 0), "inertia": (1e-4, inertia, inertia), "joints": Revolute((0.0, 0.0, 1.0))}


def linkage(carrier=None, at=(0.0, 0.0), mass=1.0, **options):
    """A four-bar linkage with a motor that holds its crank near 6 rad/s; on the ``carrier``, the parts of which move as they like."""
    parent = {"parent": carrier[0].name} if carrier else {}
    x, y = at
    links = [
        Body("crank", **rod(CRANK, mass), position=(x, y, 0), **parent),
        Body("coupler", **rod(COUPLER, mass), parent="crank", position=(CRANK, 0, 0)),
        Body("follower", **rod(FOLLOWER, mass), position=(x + GROUND, y, 0), **parent),
    ]
    loop = Connect("coupler", "follower", (COUPLER, 0, 0), (FOLLOWER, 0, 0))
    motor = Motor("crank", gain=0.5, rate=-0.5)
    options = {"gravity": (0, -9.81, 0), "plane": "xy", **options}
    return bodies.assemble([*(carrier or ()), *links], loops=loop, motors=motor, control=np.array([6.0]), **options)


def angles(theta):
    """``(coupler, follower)``: their joints' angles where the loop is closed, by the law of cosines."""
    x, y = CRANK * np.cos(theta) - GROUND, CRANK * np.sin(theta)
    across = np.hypot(x, y)
    psi = np.arctan2(y, x) - np.arccos((across**2 + FOLLOWER**2 - COUPLER**2) / (2 * across * FOLLOWER))
    tip = GROUND + FOLLOWER * np.cos(psi), FOLLOWER * np.sin(psi)
    return np.arctan2(tip[1] - y, tip[0] - CRANK * np.cos(theta)) - theta, psi


def start(theta=0.5):
    return jnp.array([theta, *angles(theta)]), jnp.zeros(3)


def opening(system, sol):
    return np.max(np.abs(jax.jit(jax.vmap(system.constraint))(sol.t, sol.q)))


@over([Moreau(), SymmetricMoreau(), MoreauJean(), GeneralizedAlpha()], fast=[Moreau(), MoreauJean()], slow=[GeneralizedAlpha()])
def test_a_driven_linkage_stays_closed(scheme):
    """20 s, eighteen turns: the follower's angle is that of the law of cosines all the time."""
    system = linkage()
    sol = jaxnsd.simulate(system, scheme, *start(), 20.0, 2e-3)
    assert sol.success and sol.q[-1, 0] > 90
    assert opening(system, sol) < 1e-13
    _, psi = angles(np.asarray(sol.q[:, 0]))
    assert_allclose(np.sin(sol.q[:, 2] - psi), 0, atol=1e-11)


def test_what_drifts_is_an_outcome():
    """Without projection: after a few turns the loop is open by more than a thousandth of its size."""
    system = Drifting.from_system(linkage())
    sol = jaxnsd.simulate(system, Moreau(), *start(), 20.0, 2e-3)
    assert not sol.success and opening(system, sol) > 1e-3
    first = int(np.argmax(sol.outcome))
    assert sol.outcome[first] == jaxnsd.Outcome.DRIFTED
    gap = np.abs(jax.vmap(system.constraint)(sol.t, sol.q)).max(axis=1)
    bound = 1e-3 * COUPLER
    assert_allclose(np.asarray(sol.outcome == jaxnsd.Outcome.DRIFTED), gap[1:] > bound)
    with pytest.raises(jaxnsd.SimulationError, match=r"DRIFTED in step .*drift_bound.*Lobatto"):
        sol.raise_if_failed()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:simulating in float32")
def test_a_driven_linkage_stays_closed_in_float32():
    system, q, u = jax.tree.map(lambda x: x.astype(jnp.float32), (linkage(), *start()))
    sol = jaxnsd.simulate(system, Moreau(), q, u, 20.0, 2e-3)
    assert sol.success and opening(system, sol) < 3e-5  # the crank's 100 rad are known to 8e-6


@pytest.mark.slow
def test_energy_of_a_linkage_is_the_work_of_its_motor():
    """What is missing in the balance of the energy falls with dt, and the motion tends to that of a scheme on position level."""
    system = linkage()
    exact = jaxnsd.simulate(system, Lobatto(3), *start(), 2.0, 4e-3)
    missing, error = [], []
    for dt in (4e-3, 2e-3, 1e-3):
        sol = jaxnsd.simulate(system, Moreau(), *start(), 2.0, dt)
        energy = jax.vmap(system.total_energy)(sol.t, sol.q, sol.u)
        power = 0.5 * (6.0 - sol.u[:, 0]) * sol.u[:, 0]
        work = dt * (jnp.sum(power) - 0.5 * (power[0] + power[-1]))
        missing.append(abs(float(energy[-1] - energy[0] - work)))
        error.append(float(jnp.max(jnp.abs(sol.q[-1] - exact.q[-1]))))
    assert_allclose(np.log2(np.divide(error[:-1], error[1:])), 1, atol=0.1)
    assert missing[1] < 0.6 * missing[0] and missing[2] < 0.6 * missing[1]


def follower_at_the_end(x, dt=4e-3, scheme=None):
    """Angle of the follower after 0.6 s, with factors x (2,) of the coupler's mass and of the control."""
    system = linkage()
    mass, control = system.mass.at[1].multiply(x[0]), system.control * x[1]
    moved = dataclasses.replace(system, mass=mass, control=control)
    return jaxnsd.simulate(moved, scheme or Moreau(), *start(), 0.6, dt).q[-1, 2]


@pytest.mark.slow
def test_derivatives_of_a_closed_loop():
    """In both modes those of the steps, by differences."""
    x, eps = jnp.ones(2), 1e-5
    reverse, forward = jax.jit(jax.grad(follower_at_the_end))(x), jax.jit(jax.jacfwd(follower_at_the_end))(x)
    many = jax.vmap(follower_at_the_end)(x[None] + eps * jnp.array([[1, 0], [-1, 0], [0, 1], [0, -1]]))
    assert_allclose(reverse, forward, rtol=1e-9)
    assert_allclose(forward, (many[::2] - many[1::2]) / (2 * eps), rtol=1e-7)


@pytest.mark.slow
def test_derivatives_of_a_closed_loop_tend_to_the_true_ones():
    """Those of a scheme of high order on position level, up to the step."""
    x = jnp.ones(2)
    exact = jax.jacfwd(lambda x: follower_at_the_end(x, scheme=Lobatto(3)))(x)
    coarse, fine = (jax.jacfwd(lambda x, dt=dt: follower_at_the_end(x, dt))(x) - exact for dt in (4e-3, 1e-3))
    assert np.all(np.abs(fine) < 0.3 * np.abs(coarse))
    # The motor is a damper of 0.01 s, which a step takes with the new velocity: so all that follows is late by a step.
    assert np.all(np.abs(fine + (fine - coarse) / 3) < 1e-3 * np.max(np.abs(exact)))


def standing(mu=0.8):
    """A linkage on a box that stands on the ground, a round-off deep, heavy enough not to move."""
    box = Body("box", mass=20.0, shapes=Box((0.3, 0.1, 0.1)), joints=bodies.planar("xy"), position=(0, 0.05 - 1e-12, 0))
    system = linkage([box], (-0.15, 0.15), mass=0.3, world=Plane(orientation=TURNED_UP), mu=mu)
    q, _ = system.initial_state()
    return system, q.at[3:].set(start()[0])


@pytest.mark.slow
def test_a_loop_closes_without_the_foot_that_it_stands_on():
    """The box neither sinks nor creeps while the linkage shakes it."""
    system, q = standing()
    sol = jaxnsd.simulate(system, Moreau(), q, 0 * q, 2.0, 2e-3)
    assert sol.success and opening(system, sol) < 1e-13
    assert jnp.all(jnp.sum(sol.P_N, axis=1) > 0) and jnp.ptp(jnp.sum(sol.P_N, axis=1)) > 0.02
    assert_allclose(sol.q[:, :3], jnp.broadcast_to(q[:3], sol.q[:, :3].shape), atol=1e-9)


@pytest.mark.slow
def test_derivatives_of_a_loop_on_a_foot():
    """Where the box sticks, through both modes."""
    system, q = standing()

    def end(x):
        moved = dataclasses.replace(system, control=system.control * x)
        sol = jaxnsd.simulate(moved, Moreau(), q, 0 * q, 0.3, 2e-3)
        return sol.q[-1, 5] + jnp.sum(sol.P_N)

    forward, reverse = jax.jvp(end, (1.0,), (1.0,))[1], jax.grad(end)(1.0)
    assert_allclose(reverse, forward, rtol=1e-9)
    assert_allclose(forward, (end(1 + 1e-5) - end(1 - 1e-5)) / 2e-5, rtol=1e-5)


@pytest.mark.slow
def test_loops_in_space():
    """Two floating bodies that are welded, tumbling, and a chain on balls between two points: quaternions keep their length."""
    body = {"mass": 1.0, "inertia": (0.02, 0.03, 0.04), "shapes": Sphere(0.05)}
    welded = bodies.assemble(
        [Body("one", **body), Body("two", **body, position=(0.4, 0, 0))], loops=Weld("one", "two"), contacts="world", gravity=(0, 0, 0)
    )
    q, _ = welded.initial_state()
    omega = jnp.array([1.0, 2.0, 3.0])
    turning = jnp.concatenate([jnp.zeros(3), omega, jnp.cross(omega, jnp.array([0.4, 0, 0])), omega])
    link = {"mass": 1.0, "inertia": (1e-4, 0.01, 0.01), "center": (0.2, 0, 0), "joints": Spherical()}
    half = np.arccos(0.35 / 0.4) / 2
    down, up = (np.cos(half), 0, np.sin(half), 0), (np.cos(2 * half), 0, -np.sin(2 * half), 0)
    chain = bodies.assemble(
        [Body("left", **link, orientation=down), Body("right", **link, parent="left", position=(0.4, 0, 0), orientation=up)],
        loops=Connect("right", "world", (0.4, 0, 0), (0.7, 0.0, 0.0)),
    )
    for system, q0, u0 in ((welded, q, turning), (chain, chain.initial_state()[0], jnp.zeros(6))):
        sol = jaxnsd.simulate(system, Moreau(), q0, u0, 4.0, 2e-3)
        assert sol.success and opening(system, sol) < 1e-11
        for a in system.structure.layout.quaternions:
            assert_allclose(jnp.linalg.norm(sol.q[:, a : a + 4], axis=1), 1, atol=1e-12)
