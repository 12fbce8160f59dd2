"""Derivatives through impacts: against those of the exact motion, in closed form or by its own autodiff, and falling with the step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_examples import load

import jaxnsd
from jaxnsd import simulate
from jaxnsd.models import BouncingBall

example = load("gradient_evidence")
G, Thrown = example.G, example.Particle


def thrown(scheme, t1, dt, sensitivity="saltation"):
    """(x, y, x', y') at t1 as a function of (height, speed, mu, e_N, amplitude)."""

    def run(p):
        zero = jnp.zeros(())
        system = Thrown(e_N=p[3], mu=p[2], amplitude=p[4])
        sol = simulate(
            system, scheme, jnp.stack([zero, p[0]]), jnp.stack([p[1], zero]), t1, dt, save_every=round(t1 / dt), sensitivity=sensitivity
        )
        return jnp.concatenate([sol.q[-1], sol.u[-1]])

    return run


def exact(impacts, t1):
    """The same for the exact motion, with so many impacts."""

    def run(p):
        height, speed, mu, e, amplitude = p
        return example.flights(t1, impacts, height=height, vx=speed, mu=mu, e=e, amplitude=amplitude)

    return run


def error(run, reference, p, mode=jax.jacfwd):
    """Largest error of a Jacobian, relative to its largest entry."""
    value, wanted = np.asarray(jax.jit(mode(run))(p)), np.asarray(jax.jacfwd(reference)(p))
    return np.abs(value - wanted).max() / np.abs(wanted).max()


SCHEMES = [jaxnsd.Moreau(), jaxnsd.SymmetricMoreau(), jaxnsd.MoreauJean(), jaxnsd.GeneralizedAlpha(0.8), jaxnsd.Lobatto(2)]


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_oblique_impacts_with_friction(scheme):
    """Two impacts, one that slips, one that slips or sticks: the saltation error falls with dt, the discrete one stays."""
    p, reference = jnp.array([1.0, 1.0, 0.1, 0.6, 0.0]), exact(2, 1.3)
    # First order: a bound in proportion to dt (single errors scatter with where in its step an impact falls).
    for dt in (5.2e-3, 3.25e-4):
        assert error(thrown(scheme, 1.3, dt), reference, p) < 10 * dt
    if scheme == SCHEMES[0]:
        assert error(thrown(scheme, 1.3, 3.25e-4, "discrete"), reference, p) > 0.5


def test_moving_table_in_reverse_mode_and_in_a_batch():
    """Three impacts on a table that moves: derivatives with respect to the motion of the wall as well; both modes agree."""
    p = jnp.array([1.0, 1.0, 0.1, 0.6, 0.05])
    reference, run = exact(3, 1.3), thrown(jaxnsd.Moreau(), 1.3, 3.25e-4)
    np.testing.assert_allclose(run(p), reference(p), atol=5e-3)
    forward, reverse = (jax.jit(mode(run))(p) for mode in (jax.jacfwd, jax.jacrev))
    np.testing.assert_allclose(reverse, forward, atol=1e-9)
    assert np.abs(forward - jax.jacfwd(reference)(p)).max() < 5e-3 * np.abs(forward).max()
    batch = jax.jit(jax.vmap(jax.jacrev(run)))(jnp.stack([p, p + 0.01]))
    np.testing.assert_allclose(batch[0], reverse, atol=1e-12)


def test_values_are_bit_identical():
    p = jnp.array([1.0, 1.0, 0.1, 0.6, 0.05])
    for scheme in (jaxnsd.Moreau(), jaxnsd.Lobatto(2)):
        values = [
            jax.jit(jax.value_and_grad(lambda p, run=run: run(p)[0]))(p)[0]
            for run in (thrown(scheme, 1.3, 5.2e-3), thrown(scheme, 1.3, 5.2e-3, "discrete"))
        ]
        assert values[0] == values[1]


@pytest.mark.parametrize("scheme", [jaxnsd.Moreau(), jaxnsd.Lobatto(2)], ids=lambda scheme: scheme.name)
def test_sliding_that_reverses_without_a_rest(scheme):
    """A block is pulled back by more than friction: its acceleration jumps where the slip passes through zero."""

    @jaxnsd.system
    class Block(Thrown):
        pull: float = 5.0

        def force(self, t, q, u):
            return jnp.stack([-self.pull, jnp.zeros(())])

    def reference(p):
        speed, mu, pull = p
        t = speed / (pull + mu * G)
        s = 1.0 - t
        return jnp.stack([0.5 * speed * t - 0.5 * (pull - mu * G) * s**2, -(pull - mu * G) * s])

    def run(dt, sensitivity="saltation"):
        def final(p):
            q0, u0 = jnp.array([0.0, -1e-12]), jnp.stack([p[0], jnp.zeros(())])
            sol = simulate(Block(mu=p[1], pull=p[2]), scheme, q0, u0, 1.0, dt, save_every=round(1 / dt), sensitivity=sensitivity)
            return jnp.stack([sol.q[-1, 0], sol.u[-1, 0]])

        return final

    p = jnp.array([3.0, 0.3, 5.0])
    for dt in (1e-2, 1e-3):
        assert error(run(dt), reference, p) < 3 * dt
    assert error(run(1e-3, "discrete"), reference, p) > 0.1
    # Pulled by less than friction holds, it comes to rest: no reversal to account for.
    at_rest = jax.jit(jax.jacfwd(run(1e-3)))(jnp.array([3.0, 0.6, 5.0]))
    np.testing.assert_allclose(at_rest[1], 0, atol=1e-12)
    np.testing.assert_allclose(at_rest[0, 0], 3.0 / (5.0 + 0.6 * G), rtol=3e-3)


def test_grazing_is_finite():
    """Where the closing speed vanishes the derivative of the exact motion does not exist: what is returned is finite."""
    ball = BouncingBall()

    def final(v):
        return simulate(ball, jaxnsd.Moreau(), jnp.array([0.0]), v[None], 0.2, 1e-3).q[-1, 0]

    speeds = jnp.concatenate([jnp.array([0.0]), -jnp.logspace(-12, 0, 60)])
    for mode in (jax.grad, jax.jacfwd):
        values = jax.jit(jax.vmap(mode(final)))(speeds)
        assert np.all(np.isfinite(values))
