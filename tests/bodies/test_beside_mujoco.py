"""Motions of models in MJCF beside those of MuJoCo, with small steps: without contacts and limits, which MuJoCo has soft."""

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import jaxnsd
from jaxnsd import bodies

mujoco = pytest.importorskip("mujoco")

ARM = """
<mujoco><compiler angle="radian"/><option gravity="0.3 -0.2 -9.8"/>
<worldbody>
  <body name="base" pos="0 0 1" euler="0.3 -0.2 0.5">
    <joint name="turn" axis="0.1 0 1" damping="0.2" armature="0.02" stiffness="1.5" springref="0.3"/>
    <geom type="capsule" fromto="0 0 0 0.3 0 0.1" size="0.04"/><site name="low" pos="0.1 0 0"/>
    <body name="upper" pos="0.3 0 0.1"><joint name="bend" axis="0 1 0.2" pos="0.02 0 0" damping="2"/>
      <geom type="box" pos="0.15 0 0" size="0.15 0.03 0.02"/><site name="high" pos="0.2 0.05 0"/>
      <body name="hand" pos="0.3 0 0"><joint name="ball" type="ball" damping="0.01" stiffness="0.4"/>
        <geom type="ellipsoid" pos="0.05 0.02 0" size="0.06 0.04 0.02"/>
        <body name="finger" pos="0.1 0 0" gravcomp="0.5">
          <joint name="slide" type="slide" axis="1 0 0.3" damping="0.5"/><geom size="0.02"/>
        </body>
      </body>
    </body>
  </body>
</worldbody>
<tendon>
  <fixed name="both" stiffness="2" damping="0.3"><joint joint="turn" coef="1"/><joint joint="bend" coef="-0.5"/></fixed>
  <spatial name="rope" stiffness="30" damping="1" springlength="0.2"><site site="low"/><site site="high"/></spatial>
</tendon>
<actuator>
  <motor joint="turn" gear="2"/><position joint="bend" kp="20" kv="1"/><velocity joint="slide" kv="3"/><motor tendon="rope" gear="0.5"/>
  <general tendon="both" gainprm="3" biastype="affine" biasprm="0.2 -1 -0.1"/>
</actuator></mujoco>"""

FLYING = """
<mujoco><option density="1.2" viscosity="0.02" wind="0.5 0 0"/>
<worldbody><body name="trunk" pos="0 0 1"><freejoint/><geom type="box" size="0.2 0.1 0.05" pos="0.03 0 0.01"/>
  <body name="wing" pos="0 0.1 0">
    <joint name="flap" axis="1 0 0.1" damping="0.001"/><geom type="box" pos="0 0.15 0" size="0.05 0.15 0.005"/>
  </body>
</body></worldbody>
<actuator><position joint="flap" kp="0.5"/></actuator></mujoco>"""

MODELS = {"arm": (ARM, [0.4, 0.3, -0.2, 1.0, 0.5]), "flying": (FLYING, [0.6])}


def start(model):
    """Coordinates and velocities away from the reference, where everything moves."""
    draw = np.random.default_rng(3)
    qpos = np.array(model.qpos0)
    mujoco.mj_integratePos(model, qpos, 0.3 * draw.normal(size=model.nv), 1.0)
    return qpos, draw.normal(size=model.nv)


def limit(run, dt):
    """What a run of first order leads to with small steps, to second order."""
    return 2 * run(dt / 2) - run(dt)


def by_mujoco(model, control, t1, dt):
    """Coordinates at t1, by MuJoCo's implicit steps."""
    model.opt.timestep, model.opt.integrator = dt, int(mujoco.mjtIntegrator.mjINT_IMPLICIT)
    data = mujoco.MjData(model)
    data.qpos[:], data.qvel[:] = start(model)
    data.ctrl[:] = control
    for _ in range(round(t1 / dt)):
        mujoco.mj_step(model, data)
    return data.qpos.copy()


@pytest.mark.parametrize("name", ["arm", pytest.param("flying", marks=pytest.mark.slow)])
def test_motions_without_contact(name):
    """Springs, dampers, tendons, motors of all kinds that are told their controls, a medium, and joints of all kinds."""
    text, control = MODELS[name]
    model, t1 = mujoco.MjModel.from_xml_string(text), 0.1
    system = bodies.from_mjcf(text, contacts="none", control=lambda t, q, u: jnp.asarray(control))
    assert not system.left_out
    q0, u0 = map(jnp.asarray, start(model))

    def ours(scheme):
        def run(dt):
            sol = jaxnsd.simulate(system, scheme, q0, u0, n_steps=round(t1 / dt), dt=dt)
            assert jnp.all(sol.success)
            return np.asarray(sol.q[-1])

        return run

    expected = limit(lambda dt: by_mujoco(model, control, t1, dt), 1e-5)
    assert np.max(np.abs(expected - q0)) > 0.05
    first = [np.max(np.abs(ours(jaxnsd.Moreau())(dt) - expected)) for dt in (4e-4, 2e-4)]
    assert 1.8 < first[0] / first[1] < 2.2, first
    assert_allclose(limit(ours(jaxnsd.Moreau()), 4e-4), expected, atol=0.01 * first[1])
    assert_allclose(ours(jaxnsd.Lobatto(2))(2e-4), expected, atol=1e-6)
