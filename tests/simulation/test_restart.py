"""Going on from a solution, and velocities at the nodes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scheme_table import label

import jaxnsd
from jaxnsd import (
    GeneralizedAlpha,
    Lobatto,
    LocatedImpacts,
    Moreau,
    MoreauJean,
    SymmetricMoreau,
    VariationalMoreau,
    node_velocities,
    simulate,
)
from jaxnsd.models import BouncingBall, CornerBlock, DoublePendulum


def name(scheme):
    return f"located {scheme.scheme.name}" if isinstance(scheme, LocatedImpacts) else label(scheme)


#: What is handed on: velocity at mid-interval, accelerations; stages and impacts inside of a step, which hand on a state at a node.
SCHEMES = [SymmetricMoreau(), GeneralizedAlpha(0.8), Lobatto(2), LocatedImpacts(MoreauJean())]
SCHEMES += [Moreau(), VariationalMoreau(), MoreauJean(), LocatedImpacts(SymmetricMoreau())]


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES, ids=name)
def test_two_halves_are_the_whole(scheme):
    """A ball that bounces: 2 N steps, and N steps continued by N, from the start to the state that is handed on again."""
    ball, state, dt = BouncingBall(), (jnp.array([1.0]), jnp.zeros(1)), 1 / 64
    whole = simulate(ball, scheme, *state, 2.0, dt)
    first = simulate(ball, scheme, *state, 1.0, dt)
    second = simulate(ball, scheme, None, None, 2.0, dt, start=first)
    np.testing.assert_array_equal(second.t, whole.t[64:])
    for key in ("q", "u"):
        np.testing.assert_allclose(getattr(second, key), getattr(whole, key)[64:], rtol=0, atol=1e-13)
    np.testing.assert_allclose(second.P_N, whole.P_N[64:], rtol=0, atol=1e-13)
    for a, b in zip(jax.tree.leaves(second.final), jax.tree.leaves(whole.final), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_derivatives_go_through_a_restart():
    def whole(h0):
        return simulate(BouncingBall(), MoreauJean(), jnp.stack([h0]), jnp.zeros(1), 1.0, 1 / 64).q[-1, 0]

    def halves(h0):
        first = simulate(BouncingBall(), MoreauJean(), jnp.stack([h0]), jnp.zeros(1), 0.5, 1 / 64)
        return simulate(BouncingBall(), MoreauJean(), None, None, 1.0, 1 / 64, 0.5, start=first).q[-1, 0]

    np.testing.assert_allclose(jax.jit(jax.grad(halves))(1.1), jax.jit(jax.grad(whole))(1.1), rtol=1e-12)


@pytest.mark.slow
def test_velocities_at_the_nodes():
    """Of second order, where those of mid-interval are off by half a step; a restart from them is of second order as well."""
    system, scheme = DoublePendulum(wall=10.0), SymmetricMoreau()
    q0, u0 = system.initial_state()
    reference = simulate(system, Lobatto(3), q0, u0, 0.5, 1 / 256)
    errors, own = [], []
    for n in (32, 64):
        sol = simulate(system, scheme, q0, u0, 64 * 0.5 / n, 0.5 / n)  # as many steps for every size: one program
        at = node_velocities(system, scheme, sol)[n]
        errors.append(np.abs(at - reference.u[-1]).max())
        own.append(np.abs(sol.u[n] - reference.u[-1]).max())
    assert 3.6 < errors[0] / errors[1] < 4.4 and own[1] > 20 * errors[1]
    np.testing.assert_array_equal(node_velocities(system, Lobatto(3), reference), reference.u)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:simulating in float32")
def test_a_float32_run_goes_on_whenever_it_is():
    """Times of 1000 s are known to 6e-5 s, so that two of them do not tell a step of 1e-2 s."""
    ball, state, scheme, dt = BouncingBall(), (jnp.ones(1, jnp.float32), jnp.zeros(1, jnp.float32)), SymmetricMoreau(), 1e-2
    whole = simulate(ball, scheme, *state, 1001.5, dt, 1000.0)
    sol = simulate(ball, scheme, *state, 1000.5, dt, 1000.0)
    for t1 in (1001.0, 1001.5):
        sol = simulate(ball, scheme, None, None, t1, dt, start=sol)
    np.testing.assert_allclose(sol.q, whole.q[100:], rtol=0, atol=1e-5)
    at, wanted = (node_velocities(ball, scheme, x)[-1] for x in (sol, whole))
    np.testing.assert_allclose(at, wanted, rtol=0, atol=1e-4)


@pytest.mark.slow
def test_what_cannot_be_gone_on_from():
    ball, state = BouncingBall(), (jnp.array([1.0]), jnp.zeros(1))
    first = simulate(ball, SymmetricMoreau(), *state, 0.5, 1 / 64)
    go = lambda scheme=SymmetricMoreau(), q0=None, dt=1 / 64, start=first: simulate(ball, scheme, q0, None, 1.0, dt, start=start)  # noqa: E731, B008
    with pytest.raises(ValueError, match="pass None for both"):
        go(q0=state[0])
    with pytest.raises(ValueError, match=r"same system and scheme.*GeneralizedAlpha"):
        go(scheme=GeneralizedAlpha(0.8))
    with pytest.raises(ValueError, match=r"same system and scheme.*SymmetricMoreau\(\) for VariationalMoreau\(\)"):
        go(scheme=VariationalMoreau())  # states of one shape, velocities of different times
    with pytest.raises(ValueError, match=r"same system and scheme, got q of shape \(1,\) .* which CornerBlock does not take"):
        simulate(CornerBlock(), SymmetricMoreau(), None, None, 1.0, 1 / 64, start=first)
    loose = jaxnsd.system(type("Loose", (jaxnsd.System,), {"kinetic_energy": lambda self, t, q, u: 0.5 * u @ u}))()
    with pytest.raises(ValueError, match="same system and scheme, got 1 contacts where Loose has 0"):
        simulate(loose, SymmetricMoreau(), None, None, 1.0, 1 / 64, start=first)
    with pytest.raises(ValueError, match=r"one of VariationalMoreau\(\), got one of another scheme, SymmetricMoreau\(\)"):
        node_velocities(ball, VariationalMoreau(), first)
    with pytest.raises(ValueError, match=r"same dt = 0.015625, got 0.0078125.*node_velocities"):
        go(dt=1 / 128)
    with pytest.raises(TypeError, match="start must be a Solution"):
        go(start=first.q)
    with pytest.raises(TypeError, match="start must be a Solution"):
        go(start=dataclasses.replace(first, final=None))
    with pytest.raises(ValueError, match=r"go on with jax\.vmap"):
        go(start=jax.vmap(lambda q: simulate(ball, SymmetricMoreau(), q, state[1], 0.5, 1 / 64))(jnp.ones((2, 1))))
    assert jaxnsd.node_velocities is node_velocities
