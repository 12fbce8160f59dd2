"""Dampers of bodies, which Moreau's scheme takes with the new velocity: dissipative whatever the step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from little_systems import quick
from numpy.testing import assert_allclose

import jaxnsd
from jaxnsd import Moreau, bodies, energy, simulate
from jaxnsd.bodies import Body, Motor, Revolute, Sphere

INERTIA = 1e-3  # kg m^2


def wheel(control=(0.0,), motors=(), **joint):
    """A wheel on a shaft."""
    turning = Body("wheel", 1.0, (INERTIA,) * 3, joints=Revolute(axis=(0, 0, 1), name="shaft", **joint))
    return bodies.assemble([turning], motors=motors, control=jnp.asarray(control) if motors else None)


@pytest.mark.parametrize("d", [0.01, 1.0, 1000.0])
def test_a_damped_wheel_comes_to_rest(d):
    """By 1 / (1 + d dt / J) in each step, and with the work of the damper to the last bit: with dt d / J from 0.1 to 10,000."""
    dt = 1e-2
    sol = simulate(wheel(damping=d), Moreau(), jnp.zeros(1), jnp.full(1, 10.0), n_steps=20, dt=dt).raise_if_failed()
    assert_allclose(sol.u[:, 0], np.concatenate([[10.0], 10.0 / (1 + d * dt / INERTIA) ** np.arange(1, 21)]), rtol=1e-12, atol=1e-14)


def test_a_servo_that_holds_its_speed_is_as_stiff_as_it_likes():
    """A motor whose torque falls with its speed: as a damper that turns; at its limits, where the torque is a constant, as a motor."""
    dt, rate, dry = 1e-2, 50.0, 0.02
    servo = [Motor("shaft", gain=rate, rate=-rate, name="servo")]
    sol = simulate(wheel((2.0,), servo), Moreau(), jnp.zeros(1), jnp.zeros(1), n_steps=10, dt=dt).raise_if_failed()
    assert_allclose(sol.u[:, 0], 2.0 - 2.0 / (1 + rate * dt / INERTIA) ** np.arange(11), rtol=1e-12)
    weak = [Motor("shaft", gain=rate, rate=-rate, force_limits=(-dry, dry), name="servo")]
    sol = simulate(wheel((2.0,), weak), Moreau(), jnp.zeros(1), jnp.zeros(1), n_steps=9, dt=dt).raise_if_failed()
    assert_allclose(sol.u[:, 0], dry / INERTIA * sol.t, rtol=1e-12)


DAMPED = """<mujoco><compiler angle="radian"/><option gravity="0 0 0"/><worldbody>
  <site name="nail" pos="0.5 0.2 1"/>
  <body pos="0 0 1"><joint name="a" axis="0 1 0" damping="0.3"/><geom type="box" size="0.1 0.05 0.2" mass="1"/>
    <body pos="0.1 0 0.3"><joint name="b" axis="1 1 0" damping="0.1"/><geom type="box" size="0.1 0.05 0.2" mass="1"/>
      <site name="tip" pos="0.1 0 0.2"/>
      <body pos="0.1 0 0.4"><joint name="c" type="slide" axis="0 1 2"/><geom type="sphere" size="0.1" mass="0.4"/></body></body></body>
</worldbody>
<tendon><spatial name="rope" damping="0.7"><site site="nail"/><site site="tip"/></spatial>
  <fixed name="belt"><joint joint="a" coef="0.5"/><joint joint="b" coef="-1.5"/></fixed></tendon>
<actuator><general name="one" joint="c" gear="2" biastype="affine" biasprm="0.1 -2 -0.4"/>
  <general name="two" tendon="belt" gear="3" biastype="affine" biasprm="0 -1 -0.2"/>
  <general name="three" tendon="rope" gear="1.5" biastype="affine" biasprm="0 0 -0.3" forcelimited="true" forcerange="-10 10"/>
  <general name="four" joint="b" biastype="affine" biasprm="5 0 -0.3" forcelimited="true" forcerange="-1 1"/>
</actuator></mujoco>"""


def test_the_matrix_of_dampers():
    """Of joints, a tendon and a spring between points, and of motors on joints and tendons, but for one that is at its limit."""
    pytest.importorskip("mujoco")
    system = bodies.from_mjcf(DAMPED)
    assert not system.left_out
    rng = np.random.default_rng(0)
    q, u = (jnp.asarray(x + 0.2 * rng.normal(size=x.shape)) for x in system.initial_state())
    D, by_jax = quick(lambda q, u: (system.damping_matrix(0.0, q, u), -jax.jacfwd(lambda u: system.force(0.0, q, u))(u)))(q, u)
    assert_allclose(D, by_jax, atol=1e-14)
    assert np.all(np.abs(D[:2, :2]) > 0.01) and np.linalg.eigvalsh(D)[0] > 0
    # The sum of all motors at a joint has limits, too.
    limited = bodies.from_mjcf(DAMPED.replace('name="c"', 'name="c" actuatorfrclimited="true" actuatorfrcrange="-1e-9 1e-9"'))
    D, by_jax = quick(lambda q, u: (limited.damping_matrix(0.0, q, u), -jax.jacfwd(lambda u: limited.force(0.0, q, u))(u)))(q, u)
    assert_allclose(D, by_jax, atol=1e-14)
    assert D[2, 2] == 0

    ball = [Body("ball", 0.5, shapes=Sphere(0.1), position=(0, 0, 1.0))]
    hung = bodies.assemble(ball, springs=[bodies.Spring("ball", "world", position=(0, 0, 0.1), second_position=(0.3, 0, 2.0), damping=3.0)])
    q, u = hung.initial_state()
    D, by_jax = quick(lambda q, u: (hung.damping_matrix(0.0, q, u), -jax.jacfwd(lambda u: hung.force(0.0, q, u))(u)))(q, u + 0.3)
    assert_allclose(D, by_jax, atol=1e-14)
    assert np.linalg.matrix_rank(D) == 1


def test_steps_converge_to_a_damped_pendulum_at_first_order():
    """A pendulum with a damper, swings of 1 rad: halving the step halves the error, of the derivative by the damping too."""

    def end(d, n):
        pendulum = Body("bob", 1.0, (1e-3,) * 3, center=(0, 0, -0.5), joints=Revolute(axis=(0, 1, 0), name="pin", damping=d))
        return simulate(bodies.assemble([pendulum]), Moreau(), jnp.ones(1), jnp.zeros(1), n_steps=n, dt=1.0 / n).q[-1, 0]

    values = np.array([jax.value_and_grad(end)(0.4, n) for n in (200, 400, 800, 1600)])
    ratios = np.diff(values, axis=0)[:-1] / np.diff(values, axis=0)[1:]
    assert_allclose(ratios, 2.0, rtol=0.03)


def test_of_a_system_of_ones_own():
    """What it says of its dampers is taken so; the published scheme, which is what others have, flips the velocity and grows."""

    class Damped(jaxnsd.System):
        d: float = 300.0

        def mass_matrix(self, t, q):
            return jnp.eye(2)

        def force(self, t, q, u):
            return -self.d * u

    class Said(Damped):
        def damping_matrix(self, t, q, u):
            return self.d * jnp.eye(2)

    u = jnp.array([1.0, -2.0])
    sol = simulate(jaxnsd.system(Said)(), Moreau(), jnp.zeros(2), u, n_steps=5, dt=1e-2).raise_if_failed()
    assert_allclose(sol.u, np.asarray(u) / 4.0 ** np.arange(6)[:, None], rtol=1e-12)


def test_the_work_of_dampers():
    """All that a wheel loses is lost in its damper, however stiff: nothing comes from the scheme."""
    system, u = wheel(damping=1.0), jnp.full(1, 10.0)
    sol = simulate(system, Moreau(), jnp.zeros(1), u, n_steps=20, dt=1e-2).raise_if_failed()
    of = energy.balance(system, Moreau(), sol)
    assert_allclose(of.damping, np.diff(0.5 * INERTIA * np.asarray(sol.u[:, 0]) ** 2), rtol=1e-12, atol=1e-18)
    assert_allclose(of.external, 0, atol=1e-15)
    assert_allclose(of.numerical, 0, atol=1e-15)
