"""A warning where a step is too long for a spring or a damper, and none where it is not."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxnsd
from jaxnsd import Lobatto, LocatedImpacts, Moreau, MoreauJean, SymmetricMoreau, VariationalMoreau, bodies, simulate
from jaxnsd.bodies import Body, Motor, Revolute


@jaxnsd.system
class Springs(jaxnsd.System):
    """Two masses in a line, each on a spring and a damper; held: the second one cannot move."""

    stiffness: tuple = (0.0, 0.0)
    damping: tuple = (0.0, 0.0)
    mass: float = 1.0
    held: bool = jaxnsd.static(default=False)

    def mass_matrix(self, t, q):
        return self.mass * jnp.eye(2)

    def force(self, t, q, u):
        return -jnp.asarray(self.stiffness) * q - jnp.asarray(self.damping) * u

    def constraint(self, t, q):
        return q[1:] if self.held else q[:0]


def warned(system, scheme, dt, q=(0.1, 0.0)):
    """What a run of two steps warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        simulate(system, scheme, jnp.asarray(q), jnp.zeros(len(q)), n_steps=2, dt=dt)
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize("scheme", [Moreau(), SymmetricMoreau(), VariationalMoreau(), LocatedImpacts(Moreau())])
def test_a_spring_bounds_the_step(scheme):
    """By 2 / omega, in any units of mass."""
    for mass in (1.0, 1e-6):
        system = Springs((100.0 * mass, 40000.0 * mass), mass=mass)  # omega = 10 and 200 1/s
        assert not warned(system, scheme, 0.0099)
        (message,) = warned(system, scheme, 0.0102)
        assert f"{scheme.name} with dt = 0.0102" in message and "dt = 0.0051 or less" in message


@pytest.mark.parametrize("stages, bound", [(2, 2.0), (3, 8**0.5), (4, 3.0)])
def test_a_spring_bounds_the_step_of_lobatto(stages, bound):
    """By omega dt = 2 with two stages; with more by where |trace / 2| of a step exceeds one, which is what a run finds."""
    system = Springs((1.0, 1.0), mass=1.0)
    assert not warned(system, Lobatto(stages), 0.97 * bound)
    for part in (1.06, 1.3):
        told, grows = warned(system, Lobatto(stages), part * bound), run_grows(system, Lobatto(stages), part * bound)
        assert bool(told) == grows


def run_grows(system, scheme, dt):
    """Whether 60 steps multiply an amplitude by a hundred or more."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sol = simulate(system, scheme, jnp.asarray([0.1, 0.0]), jnp.zeros(2), n_steps=60, dt=dt)
    return not bool(jnp.max(jnp.abs(sol.q)) < 10)


def test_a_damper_bounds_the_step_of_the_explicit_scheme():
    """By 2 m / d; the symmetric ones are implicit in it."""
    system = Springs(damping=(3.0, 1000.0), mass=0.5)
    assert not warned(system, Moreau(), 0.99e-3)
    assert "change by 1.2, again" in warned(system, Moreau(), 1.1e-3)[0]
    for scheme in (SymmetricMoreau(), VariationalMoreau()):
        assert not warned(system, scheme, 0.1)


def test_what_grows_by_its_own_and_what_is_held_is_not_meant():
    """An inverted pendulum, negative damping, a stiff spring that a constraint holds, schemes that are implicit."""
    assert not warned(Springs((-100.0, 0.0)), Moreau(), 0.1)
    assert not warned(Springs(damping=(-10.0, 0.0)), Moreau(), 0.1)
    assert not warned(Springs((0.0, 1e6), held=True), Moreau(), 0.01)
    assert not warned(Springs((0.0, 1e6)), MoreauJean(), 0.01)
    assert not warned(Springs((0.0, 1e6)), Lobatto(2), 1e-3)


def test_the_gains_of_a_controller_are_a_spring_and_a_damper():
    """Of bodies dampers are implicit, what a function of the state makes is not."""

    def control(t, q, u):
        return -1e3 * q[:1] - 5.0 * u[:1]

    def wheel(damping):
        return [Body("wheel", 1.0, (1e-3,) * 3, joints=Revolute(axis=(0, 0, 1), name="shaft", damping=damping))]

    driven = bodies.assemble(wheel(0.01), motors=[Motor("shaft")], control=control)
    assert "Multibody" in warned(driven, Moreau(), 0.05, (0.1,))[0]
    assert not warned(driven, Moreau(), 2e-4, (0.1,))
    assert not warned(bodies.assemble(wheel(100.0)), Moreau(), 0.05, (0.1,))


def test_where_nothing_is_known_nothing_is_said():
    """Inside of `jax.jit` numbers are not known; what is too large for a matrix of a step is left to the run."""
    assert not warned(Springs((1e308, 1e308)), Moreau(), 1e3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = jax.jit(lambda k: simulate(Springs(k), Moreau(), jnp.ones(2), jnp.zeros(2), n_steps=2, dt=0.1).q)
        run(jnp.array([1e6, 0.0]))


@pytest.mark.parametrize("scheme", [Moreau(), Lobatto(2), Lobatto(3)])
def test_growth_is_the_derivative_of_a_step(scheme):
    """By `jax.jacfwd`, with two dampers, without and with a constraint."""
    for held in (False, True):
        system, dt = Springs((3.0, 7.0), (0.4, 0.9), mass=2.0, held=held), 0.1

        def end(x, system=system, dt=dt):
            sol = simulate(system, scheme, x[:2], x[2:], n_steps=1, dt=dt)
            return jnp.concatenate([sol.q[-1], sol.u[-1]])

        by_jax = jax.jacfwd(end)(jnp.array([0.3, 0.0, 0.5, 0.0]))
        K, C, W = np.diag(system.stiffness), np.diag(system.damping), np.eye(2)[:, 1:] if held else np.zeros((2, 0))
        growth = scheme.growth(2.0 * np.eye(2), np.zeros((2, 2)), -K, -C, W, dt)
        free = [0, 2] if held else [0, 1, 2, 3]
        np.testing.assert_allclose(growth[np.ix_(free, free)], np.asarray(by_jax)[np.ix_(free, free)], atol=1e-12)
