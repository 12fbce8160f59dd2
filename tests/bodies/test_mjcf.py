"""Models from files against MuJoCo, which compiles them: mass matrix, forces, poses, gaps, loops; and what is left out, by name."""

import dataclasses
import re
import subprocess
import sys
import warnings
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from little_systems import quick
from numpy.testing import assert_allclose, assert_array_equal

import jaxnsd
from jaxnsd import Moreau, bodies, simulate
from jaxnsd.bodies.rotations import of_numbers, quaternion_of

mujoco = pytest.importorskip("mujoco")

#: Joints of every kind, inertias turned and off centre, springs, dampers, armature, limits, servos, exclusions, pairs, a medium.
EVERYTHING = """
<mujoco>
  <compiler angle="radian"/>
  <option gravity="0.5 -1 -9" density="1.2" viscosity="0.01" wind="0.3 0 0.1"/>
  <worldbody>
    <geom name="floor" type="plane" size="1 1 1" pos="0 0 -0.4" euler="0.1 0.05 0" friction="0.7"/>
    <geom name="post" type="sphere" size="0.2" pos="1 0 0"/>
    <body name="trunk" pos="0 0 0.5" euler="0.2 0.1 0.3">
      <freejoint name="root"/>
      <geom name="trunk" type="box" size="0.2 0.15 0.1" friction="0.4"/>
      <geom name="bump" type="sphere" size="0.08" pos="0.2 0 0.1" friction="1.1"/>
      <body name="thigh" pos="0.2 0.1 -0.1" quat="0.9 0.1 0.3 0.2">
        <joint name="hip" type="ball" stiffness="2" damping="0.3" armature="0.01" range="0 0.9" limited="true"/>
        <geom name="thigh" type="capsule" size="0.05 0.15" pos="0 0 -0.2"/>
        <body name="shank" pos="0 0 -0.4">
          <joint name="knee" type="hinge" axis="1 2 0" pos="0 0.01 0.02" stiffness="3" springref="0.2" ref="0.1" damping="0.2"
                 armature="0.02" range="-1 0.5" limited="true"/>
          <joint name="stretch" type="slide" axis="0 0.1 1" range="-0.1 0.1" limited="true" stiffness="20"/>
          <geom name="shank" type="capsule" size="0.04 0.12" pos="0 0 -0.15"/>
          <geom name="foot" type="ellipsoid" size="0.08 0.05 0.03" pos="0.03 0 -0.3"/>
        </body>
      </body>
      <body name="arm" pos="-0.2 0 0.1">
        <inertial mass="0.6" pos="0.1 0.02 0" fullinertia="0.02 0.03 0.025 0.002 -0.001 0.003"/>
        <joint name="shoulder" type="hinge" axis="0 1 0.2"/>
        <geom name="hand" type="cylinder" size="0.05 0.06" pos="0.3 0 0" euler="0.4 0 0" contype="0" conaffinity="0"/>
      </body>
    </body>
    <body name="cart" pos="0 1 0">
      <joint name="rail" type="slide" axis="1 0 0"/>
      <geom name="cart" type="box" size="0.1 0.1 0.1"/>
      <body name="pole"><joint name="pivot" axis="0 1 0"/><geom name="pole" type="capsule" fromto="0 0 0 0 0 0.5" size="0.02"/></body>
    </body>
  </worldbody>
  <contact>
    <exclude body1="trunk" body2="shank"/>
    <pair geom1="floor" geom2="hand" friction="0.25 0.25 0.005 0.0001 0.0001"/>
  </contact>
  <equality>
    <connect body1="arm" body2="cart" anchor="0.3 0 0"/>
    <weld body1="shank" body2="pole" relpose="0.1 0.2 0.3 0.9 0.1 0.2 0.1"/>
    <joint joint1="rail" joint2="pivot" polycoef="0.1 0.5 0.2 0 0"/>
  </equality>
  <actuator>
    <motor name="torque" joint="knee" gear="5" ctrllimited="true" ctrlrange="-1 1"/>
    <position name="servo" joint="shoulder" kp="30" forcelimited="true" forcerange="-4 4"/>
    <velocity name="brake" joint="rail" kv="7"/>
    <general name="mixed" joint="pivot" gainprm="2" biastype="affine" biasprm="0.3 -1.5 -0.4" gear="1.5"/>
  </actuator>
</mujoco>
"""

URDF = """
<robot name="leg">
  <link name="hip">
    <inertial><origin xyz="0 0 0.02" rpy="0.1 0 0"/><mass value="2"/>
      <inertia ixx="0.02" iyy="0.03" izz="0.025" ixy="0.001" ixz="0" iyz="0.002"/></inertial>
    <collision><geometry><box size="0.2 0.1 0.1"/></geometry></collision>
  </link>
  <link name="thigh">
    <inertial><origin xyz="0 0 -0.15"/><mass value="0.8"/><inertia ixx="0.006" iyy="0.006" izz="0.001" ixy="0" ixz="0" iyz="0"/></inertial>
  </link>
  <link name="foot">
    <inertial><origin xyz="0 0 -0.3"/><mass value="0.3"/><inertia ixx="0.001" iyy="0.001" izz="0.001" ixy="0" ixz="0" iyz="0"/></inertial>
    <collision><origin xyz="0 0 -0.35"/><geometry><sphere radius="0.05"/></geometry></collision>
  </link>
  <joint name="swing" type="revolute"><parent link="hip"/><child link="thigh"/><origin xyz="0 0.1 0" rpy="0 0.2 0"/><axis xyz="0 1 0"/>
    <limit lower="-1" upper="1.2" effort="10" velocity="5"/><dynamics damping="0.1"/></joint>
  <joint name="slide" type="prismatic"><parent link="thigh"/><child link="foot"/><axis xyz="0 0 1"/>
    <limit lower="-0.1" upper="0.1" effort="10" velocity="5"/></joint>
</robot>
"""


def quiet(function, *args, **options):
    """A system of a model of which something is left out, which is not what is looked at."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return function(*args, **options)


def states(model, n, seed=0):
    """Random qpos with unit quaternions, qvel and controls."""
    rng = np.random.default_rng(seed)
    q, u = 0.7 * rng.standard_normal((n, model.nq)), rng.standard_normal((n, model.nv))
    for j in np.flatnonzero(model.jnt_type <= 1):
        a = model.jnt_qposadr[j] + 3 * (model.jnt_type[j] == 0)
        q[:, a : a + 4] /= np.linalg.norm(q[:, a : a + 4], axis=1, keepdims=True)
    return q, u


def full_mass(model, data):
    """M of MuJoCo, column by column: the signature of `mj_fullM` changes between versions."""
    M = np.zeros((model.nv, model.nv))
    for column, unit in zip(M, np.eye(model.nv), strict=True):
        mujoco.mj_mulM(model, data, column, unit)
    return M


@quick
@jax.vmap
def evaluated(system, q, u):
    return system.M(0.0, q), system.h(0.0, q, u), *system.pose(0.0, q), system.gap(0.0, q), system.constraint(0.0, q)


def agree(system, model, n=4):
    """M, h, poses and gaps at random states."""
    q, u = states(model, n)
    M, h, x, R, gap, opening = (np.asarray(part) for part in evaluated(jax.tree.map(lambda a: jnp.stack([a] * n), system), q, u))
    data, compared = mujoco.MjData(model), set()
    for k in range(n):
        data.qpos, data.qvel = q[k], u[k]
        if model.nu:
            data.ctrl = np.asarray(system.control)
        mujoco.mj_forward(model, data)
        assert_allclose(M[k], full_mass(model, data), rtol=1e-10, atol=1e-12)
        force = data.qfrc_passive + data.qfrc_actuator - data.qfrc_bias
        assert_allclose(h[k], force, rtol=1e-10, atol=1e-10 * np.abs(force).max())
        assert_allclose(x[k], data.xpos[1:], atol=1e-12)
        assert_allclose(R[k].reshape(-1, 9), data.xmat[1:], atol=1e-12)
        for row in {contact.pair: None for contact in system.contacts if contact.kind != "limit"}:
            names = next((c.first, c.second, c.kind) for c in system.contacts if c.kind != "limit" and c.pair == row)
            own = min(gap[k, i] for i, c in enumerate(system.contacts) if c.kind != "limit" and c.pair == row)
            # Others are found by iteration there, to its tolerance.
            if names[2] not in ("plane-sphere", "plane-capsule", "sphere-sphere", "sphere-capsule", "capsule-capsule", "sphere-box"):
                continue
            geoms = [mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_GEOM, name) for name in names[:2]]
            assert_allclose(own, mujoco.mj_geomDistance(model, data, *geoms, 100.0, None), atol=1e-10, err_msg=str(names))
            compared.add(names[2])
    return q, opening, compared


@pytest.fixture(scope="module")
def everything():
    control = jnp.array([1.7, 0.4, -0.3, 0.8])
    return quiet(bodies.from_mjcf, EVERYTHING, e_N=0.3, control=control), mujoco.MjModel.from_xml_string(EVERYTHING)


def test_everything_is_as_in_mujoco(everything):
    """Also the loops: their openings are the violations that MuJoCo's own constraints have."""
    system, model = everything
    q, opening, compared = agree(system, model)
    assert compared >= {"plane-sphere", "plane-capsule", "sphere-sphere", "sphere-capsule", "capsule-capsule", "sphere-box"}
    data = mujoco.MjData(model)
    for k in range(len(q)):
        data.qpos = q[k]
        mujoco.mj_forward(model, data)
        where = lambda name, p: data.body(name).xpos + data.body(name).xmat.reshape(3, 3) @ p  # noqa: E731
        second = model.eq_data[0, 3:6]
        assert_allclose(opening[k, :3], where("cart", second) - where("arm", np.array([0.3, 0, 0])), atol=1e-12)
        violated = data.efc_pos[data.efc_type == mujoco.mjtConstraint.mjCNSTR_EQUALITY]
        assert_allclose(opening[k, -1], violated[-1], atol=1e-12)
        # Of a weld the signs and the frame of MuJoCo's rows are its own.
        assert_allclose(np.linalg.norm(opening[k, 3:6]), np.linalg.norm(violated[3:6]), rtol=1e-10)


def test_pairs_and_materials_are_mujocos(everything):
    """Exclusions, masks, explicit pairs; the larger friction of two geoms; restitution of the call; names."""
    system, model = everything
    pairs = {frozenset((c.first, c.second)) for c in system.contacts}
    assert frozenset(("floor", "hand")) in pairs
    assert frozenset(("post", "hand")) not in pairs
    assert not {frozenset(("trunk", "shank")), frozenset(("bump", "foot")), frozenset(("trunk", "thigh"))} & pairs
    mu, e_N = np.asarray(system.mu()), np.asarray(system.e_N())
    rows = {frozenset((c.first, c.second)): k for k, c in enumerate(system.contacts)}
    # A geom says 1 if it says nothing.
    for names, expected in ((("floor", "hand"), 0.25), (("floor", "trunk"), 0.7), (("floor", "bump"), 1.1), (("post", "shank"), 1.0)):
        assert mu[rows[frozenset(names)]] == expected
    limits = np.array([c.kind == "limit" for c in system.contacts])
    assert limits.sum() == 5
    assert (e_N[~limits] == 0.3).all() and not e_N[limits].any() and not mu[limits].any()
    assert system.joint_names == ("root", "hip", "knee", "stretch", "shoulder", "rail", "pivot")
    assert system.motor_names == ("torque", "servo", "brake", "mixed")
    assert_allclose(system.initial_state()[0], model.qpos0, atol=1e-15)


def test_what_is_no_word_of_urdf_is_named():
    """MuJoCo reads neither transmissions nor what simulators add."""
    more = '<transmission name="gears"><joint name="swing"/></transmission><gazebo reference="foot"><mu1>0.4</mu1></gazebo></robot>'
    with pytest.warns(UserWarning, match="<transmission>: 'gears'; <gazebo>: 'foot'"):
        system = bodies.from_urdf(URDF.replace("</robot>", more))
    assert system.left_out == ("<transmission>: 'gears'", "<gazebo>: 'foot'")
    # Nor friction inside of a link; and a link without an inertia is given one, where it moves.
    friction, shape = '<contact><lateral_friction value="0.3"/></contact>', '<geometry><sphere radius="0.1"/></geometry>'
    grown = URDF.replace(
        "</robot>",
        f"""<link name="ball">{friction}<collision><surface/>{shape}</collision></link>
        <joint name="more" type="fixed"><parent link="foot"/><child link="ball"/></joint></robot>""",
    )
    left_out = quiet(bodies.from_urdf, grown).left_out
    assert left_out[:2] == ("<contact>: 'ball'", "<surface>: 'ball'")
    assert "without <inertial>" in left_out[2] and left_out[2].endswith(": 'ball'")
    on_the_wall = grown.replace('<parent link="foot"/><child link="ball"/>', '<parent link="hip"/><child link="ball"/>')
    assert len(quiet(bodies.from_urdf, on_the_wall).left_out) == 2


def test_keyframes_are_states_to_start_from():
    text = """<mujoco><worldbody><body><freejoint/><geom size="0.1"/><body pos="0 0 1"><joint/><geom size="0.1"/></body></body></worldbody>
      <keyframe><key name="home" qpos="0 0 2 2 0 0 0 0.5" qvel="1 2 3 4 5 6 7"/><key qpos="0 0 3 1 0 0 0 0"/></keyframe></mujoco>"""
    system = bodies.from_mjcf(text)
    for key in ("home", 0):
        q, u = system.initial_state(key)
        assert_allclose(q, [0, 0, 2, 1, 0, 0, 0, 0.5])
        assert_allclose(u, np.arange(1.0, 8.0))
    assert system.initial_state(1)[0][2] == 3 and system.initial_state()[0][2] == 0
    with pytest.raises(KeyError, match=r"no keyframe 'rest'; the model has 0: 'home', 1"):
        system.initial_state("rest")


def test_keyframes_keep_their_controls():
    """Those of the motors that are taken, to start with or to ask for."""
    text = """<mujoco><worldbody>
      <body><joint name="a"/><geom size="0.1"/><body pos="0 0 1"><joint name="b"/><geom size="0.1"/></body></body>
      </worldbody><actuator><motor joint="a"/><general joint="a" dyntype="filter" dynprm="0.1"/><position joint="b"/></actuator>
      <keyframe><key name="home" qpos="0 0.5" ctrl="1 2 3"/></keyframe></mujoco>"""
    system = quiet(bodies.from_mjcf, text, control="home")
    assert_allclose(system.control, [1, 3])
    assert_allclose(quiet(bodies.from_mjcf, text).control_of("home"), [1, 3])
    with pytest.raises(KeyError, match="control: there is no keyframe 'rest'; the model has 0: 'home'"):
        quiet(bodies.from_mjcf, text, control="rest")


def test_models_that_a_program_has_made():
    """Those of `from_mjcf`, from a spec, from a model with a number changed in Python, and from one that another package wraps."""
    text = """<mujoco><worldbody><geom name="floor" type="plane" size="1 1 1"/>
      <body name="ball"><freejoint/><geom name="ball" size="0.1" mass="2" friction="0.4"/></body></worldbody></mujoco>"""
    of_text = bodies.from_mjcf(text, e_N=0.3)
    spec = mujoco.MjSpec.from_string(text)
    model = spec.compile()
    for of in (spec, model, SimpleNamespace(ptr=model)):
        system = bodies.from_mujoco(of, e_N=0.3)
        assert jax.tree.structure(system) == jax.tree.structure(of_text)
        for a, b in zip(jax.tree.leaves(system), jax.tree.leaves(of_text), strict=True):
            assert_allclose(a, b, rtol=0, atol=0)
    model.body_mass[1], model.geom_friction[:, 0] = 5.0, 0.7
    heavy = bodies.from_mujoco(model)
    assert heavy.mass[-1] == 5 and heavy.mu()[0] == 0.7
    with pytest.raises(TypeError, match=r"must be a mujoco.MjModel or a mujoco.MjSpec, got a str; a file"):
        bodies.from_mujoco(text)
    with pytest.raises(ValueError, match=r"from_mujoco: MuJoCo refuses the model"):
        bodies.from_mujoco(mujoco.MjSpec.from_string("<mujoco><worldbody><body><joint/></body></worldbody></mujoco>"))
    with pytest.raises(ValueError, match="from_mujoco: condim must be 1, 3, 4 or 6, got 2"):
        bodies.from_mujoco(model, condim=2)


def test_what_is_left_out_is_grouped():
    """Forty actuators of one kind are one; all of them are in `left_out`."""
    text = '<body><joint/><geom size="0.1"/><site name="s"/></body>'
    acting = "".join(f'<motor name="m{k}" site="s"/>' for k in range(40))
    with pytest.warns(UserWarning, match="40 times the actuator 'm0', which") as caught:
        system = bodies.from_mjcf(f"<mujoco><worldbody>{text}</worldbody><actuator>{acting}</actuator></mujoco>", contacts="none")
    assert len(str(caught[0].message)) < 600 and len(system.left_out) == 40


@pytest.mark.slow
def test_a_start_that_no_step_takes_is_named_and_mended():
    """A knee beyond its limit over a floor: the refusal says the names, and not all of q0; the projection says what has moved."""
    text = """<mujoco><compiler angle="radian"/><worldbody><geom name="floor" type="plane" size="1 1 1"/>
      <body name="trunk" pos="0 0 0.45"><freejoint name="root"/><geom name="trunk" size="0.1"/>
      <body name="leg" pos="0 0 -0.2"><joint name="hip" axis="0 1 0"/><geom type="capsule" fromto="0 0 0 0 0 -0.1" size="0.01"/>
      <body pos="0 0 -0.1"><joint name="knee" axis="0 1 0" range="0.2 1"/><geom name="foot" pos="0 0 -0.1" size="0.1"/></body></body></body>
      </worldbody></mujoco>"""
    system = bodies.from_mjcf(text)
    with pytest.raises(
        ValueError, match=r"\(knee and lower limit\) must be .*; likewise floor and foot; .*initial_state\(project=True\)"
    ) as caught:
        jaxnsd.check(system, jaxnsd.Moreau(), *system.initial_state(), 1e-2, 1e-3)
    assert len(str(caught.value)) < 700 and "q0 = [" not in str(caught.value)
    with pytest.warns(UserWarning, match="the projection has moved .*knee in rad from 0 to"):
        q, u = system.initial_state(project=True)
    assert float(jnp.min(system.gap(0.0, q))) > -1e-12
    jaxnsd.check(system, jaxnsd.Moreau(), q, u, 1e-2, 1e-3)


@pytest.mark.parametrize("floating", [False, True])
def test_urdf(floating):
    """Fixed, a leg on a wall; floating, with seven more coordinates: M and h are MuJoCo's."""
    system = bodies.from_urdf(URDF, floating=floating, floor=True, mu=0.6, e_N=0.1)
    spec = mujoco.MjSpec.from_string(URDF)
    if floating:
        spec.worldbody.first_body().add_freejoint()
    model = spec.compile()
    assert len(system.initial_state()[0]) == model.nq == (9 if floating else 2)
    q, u = states(model, 1)
    data = mujoco.MjData(model)
    data.qpos, data.qvel = q[0], u[0]
    mujoco.mj_forward(model, data)
    own = quick(lambda q, u: (system.M(0.0, q), system.h(0.0, q, u)))(q[0], u[0])
    assert_allclose(own[0], full_mass(model, data), rtol=1e-10, atol=1e-12)
    assert_allclose(own[1], data.qfrc_passive - data.qfrc_bias, rtol=1e-10, atol=1e-10)
    foot = next(k for k, c in enumerate(system.contacts) if "floor" in str(c) and "sphere" in c.kind)
    assert system.mu()[foot] == 0.6
    assert [c.kind for c in system.contacts].count("limit") == 4


def test_urdf_as_it_is_found(tmp_path):
    """Meshes of a package above the file, or the rest of their path alone; what is before and behind the XML; no joint and a free root."""
    (tmp_path / "robot" / "meshes").mkdir(parents=True)
    (tmp_path / "robot" / "urdf").mkdir()
    corners = "".join(f"v {x} {y} {z}\n" for x in (-1, 1) for y in (-1, 1) for z in (-1, 1))
    faces = "".join(f"f {face}\n" for face in ("1 2 3", "2 3 4", "5 6 7", "6 7 8", "1 2 5", "3 4 7", "2 4 6"))
    (tmp_path / "robot" / "meshes" / "cube.obj").write_text(corners + faces)
    path = tmp_path / "robot" / "urdf" / "dice.urdf"

    def urdf(mesh):
        path.write_bytes(
            f"""
<?xml version="1.0"?><robot name="dice"><link name="die"><inertial><mass value="2"/><inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0"
  iyz="0"/></inertial><collision><geometry><mesh filename="package://{mesh}" scale="0.1 0.1 0.1"/></geometry></collision></link></robot>
\0""".encode()
        )
        return path

    for mesh in ("robot/meshes/cube.obj", "elsewhere/meshes/cube.obj"):
        system = bodies.from_urdf(urdf(mesh), floating=True, floor=True, strict=True)
        assert_allclose(np.sort(system.gap(0.0, system.initial_state()[0])), np.repeat([-0.1, 0.1], 4), atol=1e-7)
    with pytest.raises(ValueError, match="none; with floating=True its root link is free"):
        bodies.from_urdf(path)
    with pytest.raises(ValueError, match=r"MuJoCo refuses the model: .*nowhere\.obj"):
        bodies.from_urdf(urdf("robot/meshes/nowhere.obj"))
    no_xml = URDF.replace("</robot>", '<gazebo a="<"/></robot>')
    try:
        mujoco.MjSpec.from_string(no_xml)
    except ValueError:
        return  # a version whose parser minds, too
    assert "no proper XML" in " ".join(quiet(bodies.from_urdf, no_xml).left_out)


#: Bodies whose weight is carried in part, and one in a body; motors of one joint that saturate together.
CARRIED = """
<mujoco>
  <option gravity="1 -2 -9"/>
  <worldbody>
    <body name="arm" gravcomp="0.7" pos="0 0 1">
      <joint name="shoulder" axis="0 1 0.1" actuatorfrcrange="-2 1.5"/><geom type="capsule" size="0.05 0.2" pos="0.1 0 0.2"/>
      <body name="hand" pos="0 0.1 0.4" gravcomp="1.3"><joint name="wrist" type="ball"/><geom type="box" size="0.1 0.05 0.05"/>
        <body name="tool" pos="0.2 0 0">
          <joint name="slide" type="slide" actuatorfrcrange="-9 9"/><geom size="0.04"/></body></body>
    </body>
    <body name="balloon" gravcomp="1" pos="1 0 0"><freejoint/>
      <geom type="ellipsoid" size="0.1 0.1 0.2" pos="0.1 0 0"/></body>
    <body name="nearly" pos="2 0 0"><freejoint/><inertial pos="5e-9 0 0" mass="2" diaginertia="1 1 1"/></body>
  </worldbody>
  <actuator>
    <motor joint="shoulder" gear="3"/><general joint="shoulder" gainprm="2" biastype="affine" biasprm="1 -3 -0.5"/>
    <motor joint="slide" gear="2"/>
  </actuator>
</mujoco>
"""


def test_compensated_gravity_and_limits_of_forces_on_joints():
    """Forces are MuJoCo's and have their potential; what is in the frame of its body but for MuJoCo's tolerance is there here, too."""
    system = bodies.from_mjcf(CARRIED, control=np.array([1.5, -0.4, 3.0]), contacts="none", strict=True)
    model = mujoco.MjModel.from_xml_string(CARRIED)
    q, *_ = agree(system, model)
    passive = '<option><flag spring="disable" damper="disable"/></option><worldbody>'
    assert not bodies.from_mjcf(CARRIED.replace("<worldbody>", passive), contacts="none").carried.any()
    still = dataclasses.replace(system, motors=dataclasses.replace(system.motors, gear=jnp.zeros(3)))
    q, u = q[0], jnp.zeros(model.nv)

    def balance(q, v):
        slope = jax.jvp(lambda q: system.potential_energy(0.0, q), (q,), (system.q_dot(0.0, q, v),))[1]
        return still.h(0.0, q, u) @ v + slope

    force = quick(jax.vmap(balance, (None, 0)))(q, jnp.eye(model.nv))
    assert_allclose(force, 0.0, atol=1e-12)


LEFT_OUT = """
<mujoco>
  <worldbody>
    <geom name="post" size="0.1" pos="0.5 0 0" contype="0" conaffinity="0"/>
    <body name="a"><joint name="slide" type="slide" frictionloss="0.1"/><geom name="ball" size="0.1" condim="6"/><site name="s"/></body>
    <body name="b" pos="1 0 0"><joint name="hinge"/><geom name="egg" type="ellipsoid" size="0.1 0.2 0.3" condim="6"/>
      <site name="t"/></body>
  </worldbody>
  <tendon><spatial name="string" stiffness="1"><site site="s"/><geom geom="post"/><site site="t"/></spatial></tendon>
  <actuator><motor name="puller" tendon="string"/><motor name="plain" joint="hinge"/>
    <general name="slow" joint="slide" dyntype="filter" dynprm="0.1"/></actuator>
</mujoco>
"""


def test_what_is_left_out_is_named():
    """In one warning and in `left_out`; with strict it is an error."""
    with pytest.warns(UserWarning, match="from_mjcf: not taken") as caught:
        system = bodies.from_mjcf(LEFT_OUT)
    assert len(caught) == 1
    text = str(caught[0].message)
    for words in (
        "'string'",
        "'puller'",
        "'slow'",
    ):
        assert words in text, words
    assert {contact.kind for contact in system.contacts} == {"sphere-ellipsoid"}
    assert system.motor_names == ("plain",)
    assert all(part in text for part in system.left_out)
    with pytest.raises(ValueError, match="strict"):
        bodies.from_mjcf(LEFT_OUT, strict=True)


def arm(option="", actuators="", joint="", geom="", rest=""):
    """A spring, a damper and a floor; with more attributes."""
    return f"""<mujoco><option density="5" {option}</option><worldbody><geom name="floor" type="plane" size="1 1 1" pos="0 0 -0.2"/>
      <body name="mast"><joint name="slide" type="slide" axis="1 0 0" range="-1 1" limited="true" frictionloss="0.1"/>
      <joint name="hinge" axis="0 1 0" stiffness="3" springref="0.3" damping="0.5" {joint}/><geom name="bob" size="0.1" pos="0.3 0 0"
      {geom}/></body></worldbody><actuator>{actuators}</actuator>{rest}</mujoco>"""


MOTORS = """<motor name="first" joint="hinge" gear="3" ctrlrange="-0.1 0.1" ctrllimited="true" group="1"/>
  <position name="second" joint="slide" kp="20" group="2"/>"""
PAIR = '<contact><pair geom1="floor" geom2="bob"'


@pytest.mark.parametrize("flags", ["spring", "damper", "spring damper", "clampctrl", "actuation", "group"])
def test_what_is_disabled_has_no_force(flags):
    """Springs, dampers, with both of them the medium too; limits of control; actuators, all or a group of them."""
    disabled = " ".join(f'{flag}="disable"' for flag in flags.split())
    text = arm('actuatorgroupdisable="1">' if flags == "group" else f"><flag {disabled}/>", MOTORS)
    control = np.array([1.0, 2.0])
    system, model = quiet(bodies.from_mjcf, text, control=control), mujoco.MjModel.from_xml_string(text)
    q, u = np.array([0.1, 0.4]), np.array([0.3, -0.7])
    data = mujoco.MjData(model)
    data.qpos, data.qvel, data.ctrl = q, u, control
    mujoco.mj_forward(model, data)
    own = quick(system.h)(0.0, q, u)
    assert_allclose(own, data.qfrc_passive + data.qfrc_actuator - data.qfrc_bias, rtol=1e-10, atol=1e-12)
    assert system.left_out == ()


def test_without_constraints_there_are_neither_contacts_nor_limits_nor_loops():
    equality = '<equality><joint joint1="slide" joint2="hinge"/></equality>'
    assert {c.kind for c in quiet(bodies.from_mjcf, arm(">", rest=equality)).contacts} == {"plane-sphere", "limit"}
    system = bodies.from_mjcf(arm('><flag constraint="disable"/>', rest=equality), strict=True)
    assert not system.contacts and not system.structure.couples and not system.left_out


def test_friction_overrides():
    """That of geoms and of pairs; a contact of one dimension stays without."""
    option = 'o_friction="0.2 0.2 0.005 0.0001 0.0001"><flag override="enable" frictionloss="disable"/>'
    mu = [np.asarray(bodies.from_mjcf(arm(option, geom=geom), strict=True).mu())[0] for geom in ("", 'condim="1" priority="1"')]
    assert mu == [0.2, 0.0]
    pair = f'{PAIR} friction="0.5 0.5 0 0 0"/></contact>'
    assert bodies.from_mjcf(arm(option, rest=pair), strict=True).mu()[0] == 0.2


#: Balls that bore and roll on a floor, one in a plane; and coefficients by dimension, priority, the larger one, and pairs.
BALLS = """
<mujoco>
  <option gravity="0 0 -10"/>
  <default><geom size="0.1" mass="1"/></default>
  <worldbody>
    <geom name="floor" type="plane" size="1 1 1" condim="1" friction="0.4 0.001 0.001"/>
    <body pos="0 0 0.1"><freejoint/><geom name="bores" condim="4" friction="0.8 0.02 0.003"/></body>
    <body pos="3 0 0.1"><freejoint/><geom name="rolls" condim="6" friction="0.5 0.01 0.004"/></body>
    <body pos="6 0 0.1"><freejoint/><geom name="slides" condim="3" priority="1" friction="0.3 0.01 0.004"/></body>
  </worldbody>
  <contact><pair geom1="rolls" geom2="slides" condim="6" friction="0.9 0.9 0.02 0.01 0.01"/></contact>
</mujoco>
"""
ON_A_LINE = """<mujoco><option gravity="0 0 -10"/><worldbody><geom type="plane" size="1 1 1"/><body pos="0 0 0.1"><joint type="slide"
  axis="1 0 0"/><joint type="slide" axis="0 0 1"/><joint axis="0 1 0"/><geom size="0.1" mass="1" condim="6" friction="0.5 0.01 0.004"/>
  </body></worldbody></mujoco>"""


def quadruped(condim):
    """A torso on four legs of two links, of which the shanks, and nothing else, touch a rough floor; motors at the joints."""
    legs = [(f"{end}{side}", x, y) for end, x in (("f", 0.18), ("r", -0.18)) for side, y in (("l", 0.12), ("r", -0.12))]
    body = """<body name="{0}" pos="{1} {2} 0"><joint name="{0}_hip" axis="0 1 0"/>
        <geom type="capsule" fromto="0 0 0 0 0 -0.15" size="0.02" mass="0.3" contype="0" conaffinity="0"/>
        <body pos="0 0 -0.15"><joint name="{0}_knee" axis="0 1 0"/>
        <geom type="capsule" fromto="0 0 0 0 0 -0.15" size="0.015" mass="0.1" contype="2" conaffinity="1"/></body></body>"""
    motor = '<position joint="{0}_hip" kp="20"/><position joint="{0}_knee" kp="20"/>'
    return f"""<mujoco><default><joint damping="0.2" armature="0.01"/><geom friction="0.7 0.02 0.01" condim="{condim}"/></default>
      <worldbody><geom name="floor" type="plane" size="5 5 .1" contype="1" conaffinity="2"/><body name="torso" pos="0 0 0.315"><freejoint/>
      <geom type="box" size="0.2 0.1 0.04" mass="4" contype="0" conaffinity="0"/>
      {"".join(body.format(*leg) for leg in legs)}</body></worldbody>
      <actuator>{"".join(motor.format(*leg) for leg in legs)}</actuator></mujoco>"""


@pytest.mark.slow
@pytest.mark.parametrize("condim", [3, 4, 6])
def test_a_robot_that_slides_and_turns_on_its_feet(condim):
    """Feet come to rest one by one, and rows of those that rest nearly depend on each other: every step is solved, few in many iterations.

    Which of the paths solves the hardest of the 800 steps turns on round-off: in 44 to 201 iterations from starts 1e-12 to 1e-5 apart.
    """
    system = bodies.from_mjcf(quadruped(condim))
    q0, u0 = system.initial_state()
    sol = simulate(system, Moreau(), q0, u0.at[0].set(0.5).at[5].set(1.0), n_steps=800, dt=1e-3).raise_if_failed()
    feet = np.asarray(system.gap(0.0, q0)) < 0.01
    assert feet.sum() == 4 and np.all(np.max(sol.P_N, axis=0)[feet] > 0)
    assert np.mean(sol.iterations) < 6 and np.sum(np.asarray(sol.iterations) > 40) < 8


@pytest.mark.slow
def test_drilling_and_rolling_friction_of_the_geoms():
    """MuJoCo's coefficients, and what they resist: relative angular velocities about the normal, and about the tangents."""
    system, model = bodies.from_mjcf(BALLS, strict=True), mujoco.MjModel.from_xml_string(BALLS)
    of = {frozenset((c.first, c.second)): k for k, c in enumerate(system.contacts)}
    # All balls at one place in the floor: MuJoCo says what it takes for each pair.
    data = mujoco.MjData(model)
    data.qpos[:] = np.tile([0, 0, 0.05, 1, 0, 0, 0], 3)
    mujoco.mj_forward(model, data)
    seen = {frozenset(model.geom(g).name for g in contact.geom): contact for contact in data.contact}
    assert seen.keys() == of.keys()
    sliding, drilling, rolling = (np.asarray(part.mu) for part in system.friction_sets())
    for pair, contact in seen.items():
        expected = [contact.friction[i] * (contact.dim >= dim) for i, dim in ((0, 3), (2, 4), (3, 6))]
        assert_allclose([x[of[pair]] for x in (sliding, drilling, rolling)], expected, rtol=1e-15, err_msg=str(pair))
    for condim, count in ((4, 3), (3, 2), (1, 2)):
        fewer = bodies.from_mjcf(BALLS, condim=condim, strict=True)
        assert fewer.tangential_velocity(0.0, *fewer.initial_state()).shape == (len(of), count)
        assert fewer.mu().any() == (condim > 1)
    with pytest.raises(ValueError, match="condim must be 1, 3, 4 or 6"):
        bodies.from_mjcf(BALLS, condim=2)
    # The check of the friction sets while a run is traced: their values are known all the same.
    run = lambda q, u: jaxnsd.simulate(system, jaxnsd.Moreau(), q, u, t1=2e-3, dt=1e-3).q  # noqa: E731
    assert jax.eval_shape(run, *system.initial_state()).shape == (3, 21)

    q, u = (jnp.asarray(x[0]) for x in states(model, 1))
    slip, W_F, normal = system.tangential_velocity(0.0, q, u), system.W_F(0.0, q), system.touches(0.0, q).normal
    assert_allclose(slip, jnp.einsum("unk,u->nk", W_F, u), atol=1e-13)
    data.qpos, data.qvel = q, u
    mujoco.mj_forward(model, data)
    for k, contact in enumerate(system.contacts):
        first, second = (data.geom(name).xmat.reshape(3, 3) @ data.qvel[model.geom(name).bodyid[0] * 6 - 3 :][:3] if name != "floor" else 0
                         for name in (contact.first, contact.second))  # fmt: skip
        about, along = second - first, np.asarray(normal[k])
        assert_allclose(slip[k, 2], about @ along, atol=1e-12)
        assert_allclose(np.sum(slip[k, 3:] ** 2), about @ about - (about @ along) ** 2, atol=1e-12)


@pytest.mark.slow
def test_balls_that_bore_and_roll_come_to_rest():
    """A ball that spins about the normal stops after 2/5 r^2 omega / (s g), one that rolls after a way of 7/10 r v^2 / (k g)."""
    system = bodies.from_mjcf(BALLS, contacts="world", strict=True)
    q, u = system.initial_state()
    q = q.at[jnp.array([2, 9, 16])].add(-1e-9)
    u = u.at[5].set(3.0).at[jnp.array([6, 10])].set(jnp.array([1.0, 10.0]))
    sol = simulate(system, Moreau(), q, u, 4.0, 1e-3)
    sol.raise_if_failed()
    spin = np.asarray(sol.u[:, 5])
    assert abs(np.argmax(np.abs(spin) < 1e-9) * 1e-3 - 0.4 * 0.01 * 3.0 / (0.02 * 10)) <= 1e-3
    assert_allclose(spin[:59], 3.0 - np.arange(59) * 1e-3 * 0.02 * 10 / (0.4 * 0.01), atol=1e-9)
    assert_allclose(sol.q[-1, 7], 3.0 + 0.7 * 0.1 / (0.004 * 10), atol=1e-3)
    assert_allclose(sol.u[-1], 0.0, atol=1e-9)

    line = bodies.from_mjcf(ON_A_LINE, strict=True)
    # In contact from the first step on: exactly at touch the last bit of the gap would say whether the first step falls.
    q = line.initial_state()[0].at[1].add(-1e-9)
    sol = simulate(line, Moreau(), q, jnp.array([1.0, 0.0, 10.0]), 4.0, 1e-3)
    assert line.tangential_velocity(0.0, q, sol.u[0]).shape == (1, 2)
    assert_allclose(sol.q[-1], [0.7 * 0.1 / (0.004 * 10), -1e-9, 0.7 / (0.004 * 10)], rtol=1e-3, atol=1e-12)


@pytest.mark.parametrize(
    ("field", "parts", "name"),
    [
        ("actuator_armature", {"actuators": '<motor name="m" joint="hinge" armature="0.2"/>'}, "armature of the actuator 'm'"),
        ("actuator_damping", {"actuators": '<motor name="m" joint="hinge" damping="0.2"/>'}, "damping of the actuator 'm'"),
        ("actuator_dampingpoly", {"actuators": '<motor name="m" joint="hinge" damping="0 0.2"/>'}, "damping of the actuator 'm'"),
        ("actuator_delay", {"actuators": '<motor name="m" joint="hinge" delay="0.1" nsample="60"/>'}, "delay of the actuator 'm'"),
        ("jnt_springyield", {"joint": 'springyield="0.5"'}, "yield of the spring of the joint 'hinge'"),
        ("geom_surfacevel", {"geom": 'surfacevel="1 0 0 0 0 0"'}, "velocity of the surface of the geom 'bob'"),
        ("geom_adhesion", {"geom": 'adhesion="2"'}, "adhesion of the geom 'bob'"),
        (
            "pair_adhesion",
            {"rest": '<contact><pair geom1="floor" geom2="bob" adhesion="2"/></contact>'},
            "adhesion between 'floor' and 'bob'",
        ),
    ],
)
def test_what_newer_versions_know_is_left_out_by_name(field, parts, name):
    if not hasattr(mujoco.MjModel, field):
        pytest.skip(f"this version of MuJoCo has no {field}")
    system = quiet(bodies.from_mjcf, arm('><flag frictionloss="disable"/>', **parts))
    assert system.left_out == (name,)


def first_force(control, actuators):
    """On the hinge, of motors alone."""
    text = arm('gravity="0 0 0"><flag spring="disable" damper="disable" contact="disable"/>', actuators)
    system = quiet(bodies.from_mjcf, text, control=control)
    return float(system.h(0.0, np.zeros(2), np.zeros(2))[1])


SLOW = """<general name="slow" joint="hinge" dyntype="filter" dynprm="0.1"/><motor name="m" joint="hinge"/>
  <muscle joint="hinge" lengthrange="0 1"/>"""


def test_controls_of_the_motors_are_chosen_of_all():
    """Of numbers, rows, and what functions return, with parameters too; other numbers of them are refused, not broadcast."""
    three = jnp.array([10.0, 20.0, 30.0])
    for control in (
        three,
        jnp.array([20.0]),
        bodies.Rows(three[None], 0.1),
        bodies.Rows(jnp.array([[20.0]]), 0.1),
        lambda t, q, u: three,
        lambda t, q, u: three[1:2],
        jax.tree_util.Partial(lambda a, t, q, u: a, three),
    ):
        assert first_force(control, SLOW) == 20.0
    for wrong in (three[:2], three[0]):
        with pytest.raises(ValueError, match=r"one number for each motor \(m\)"):
            first_force(jax.tree_util.Partial(lambda a, *_: a, wrong), SLOW)


def test_motors_beside_those_of_the_model():
    """Of a model without actuators, as many are published, and behind those that there are; keyframes have no control for them."""
    key = '<keyframe><key name="up" ctrl="0.5"/></keyframe>'
    text = """<mujoco><worldbody><body><joint name="a" axis="0 1 0"/><geom size="0.1" pos="0.2 0 0"/>
      <body pos="0.4 0 0"><joint name="b" axis="0 1 0"/><geom size="0.1" pos="0.2 0 0"/></body></body></worldbody>%s</mujoco>"""
    motor = '<motor name="{0}" joint="{0}" gear="2"/>'.format
    first, second = text % f"<actuator>{motor('a')}</actuator>{key}", text % f"<actuator>{motor('a')}{motor('b')}</actuator>"
    q, u, added = jnp.zeros(2), jnp.ones(2), [bodies.Motor("b", gear=2.0)]
    wanted = bodies.from_mjcf(second, control=[0.3, -0.7]).h(0.0, q, u)
    for control in ([0.3, -0.7], lambda t, q, u: jnp.array([0.3, -0.7])):
        assert_allclose(bodies.from_mjcf(first, motors=added, control=control).h(0.0, q, u), wanted, rtol=1e-12)
        both = [bodies.Motor("a", gear=2.0), *added]
        assert_allclose(bodies.from_mjcf(text % "", motors=both, control=control).h(0.0, q, u), wanted, rtol=1e-12)
    assert bodies.from_mjcf(first, motors=added[0], control="up").control.tolist() == [0.5, 0.0]
    spec = mujoco.MjSpec.from_string(first)
    assert bodies.from_mujoco(spec, motors=added, control=[0.3, -0.7]).motor_names == ("a", "b")
    with pytest.raises(ValueError, match=r"control must have shape \(2,\)"):
        bodies.from_mjcf(first, motors=added, control=[1.0])
    # Of controls of what is left out, too.
    text = arm('gravity="0 0 0"><flag spring="disable" damper="disable" contact="disable"/>', SLOW)
    for control in ([1.0, 2.0, 3.0, 4.0], [2.0, 4.0], lambda t, q, u: jnp.array([1.0, 2.0, 3.0, 4.0])):
        system = quiet(bodies.from_mjcf, text, motors=[bodies.Motor("slide")], control=control)
        assert_allclose(system.h(0.0, jnp.zeros(2), jnp.zeros(2)), [4.0, 2.0])


#: Motors of several velocities: fixed tendons, with servos on them, a ball, a free body; and one on a site, which is left out.
SEVERAL = """
<mujoco>
  <worldbody>
    <body name="ship"><freejoint name="ship"/><geom type="box" size="0.1 0.2 0.3"/><site name="nozzle" pos="0.1 0 0"/></body>
    <body name="arm" pos="1 0 0">
      <joint name="shoulder" axis="0 1 0" ref="20" actuatorfrcrange="-1 1"/><geom type="capsule" size="0.05" fromto="0 0 0 0.5 0 0"/>
      <body name="rod" pos="0.5 0 0"><joint name="slide" type="slide"/><geom size="0.1"/>
        <body name="hand" pos="0.3 0 0"><joint name="wrist" type="ball"/><geom size="0.1" pos="0.1 0 0"/></body></body>
    </body>
  </worldbody>
  <tendon>
    <fixed name="both"><joint joint="shoulder" coef="0.5"/><joint joint="slide" coef="-2"/></fixed>
    <fixed name="one"><joint joint="shoulder" coef="3"/></fixed>
  </tendon>
  <equality><tendon tendon1="both" tendon2="one" polycoef="0.1 0.5 0.2 0 0"/><tendon tendon1="both" polycoef="0.3 0 0 0 0"/></equality>
  <actuator>
    <motor site="nozzle" gear="1 0 0 0 0 0"/>
    <position name="servo" tendon="both" kp="3" kv="0.5" gear="1.5" forcerange="-4 4"/>
    <motor name="thrust" joint="ship" gear="1 2 3 0.1 0.2 0.3"/>
    <velocity name="brake" joint="wrist" kv="0.4" gear="1 -1 2"/>
    <motor name="pull" tendon="both" ctrlrange="-1 1"/>
  </actuator>
</mujoco>
"""


def test_motors_of_several_velocities_and_coupled_tendons():
    control = np.array([0.0, 0.7, -0.3, 0.5, 1.4])
    system = quiet(bodies.from_mjcf, SEVERAL, control=control, contacts="none")
    assert system.left_out == ("the actuator 'actuator_0', which acts neither on joints nor on a tendon",)
    assert system.motor_names == ("servo", "thrust", "brake", "pull")
    model = mujoco.MjModel.from_xml_string(SEVERAL)
    q, u = states(model, 3)
    data = mujoco.MjData(model)
    force = quick(lambda q, u: (system.h(0.0, q, u), system.constraint(0.0, q)))
    for k in range(3):
        data.qpos, data.qvel, data.ctrl = q[k], u[k], control
        mujoco.mj_forward(model, data)
        assert np.any(np.abs(data.qfrc_actuator) > 0.1)
        h, opening = force(q[k], u[k])
        assert_allclose(h, data.qfrc_passive + data.qfrc_actuator - data.qfrc_bias, rtol=1e-10, atol=1e-12)
        assert_allclose(opening, data.efc_pos[data.efc_type == mujoco.mjtConstraint.mjCNSTR_EQUALITY], rtol=1e-12)


@pytest.mark.skipif(not hasattr(mujoco.MjModel, "nactuator"), reason="actuators have one control each in this version of MuJoCo")
def test_actuators_with_several_controls_are_left_out():
    """The controls after theirs are found all the same."""
    actuators = '<pid name="p" joint="slide" kp="5" kv="0.2"/><motor name="m" joint="hinge" ctrlrange="-5 5" ctrllimited="true"/>'
    model = mujoco.MjModel.from_xml_string(arm(">", actuators))
    assert model.nu > model.nactuator == 2
    controls = np.zeros(model.nu)
    controls[-1] = 4.0
    assert first_force(controls, actuators) == 4.0
    assert "the actuator 'p', which" in " ".join(quiet(bodies.from_mjcf, arm(">", actuators)).left_out)


def test_what_does_not_move_does_not_touch():
    """A body of motion capture in the floor; what moves touches both."""
    text = """<mujoco><worldbody><geom name="floor" type="plane" size="1 1 1"/>
      <body mocap="true" name="m" pos="0 0 0.05"><geom size="0.1" name="hand"/></body>
      <body pos="1 0 1"><freejoint/><geom name="ball" size="0.1"/></body></worldbody></mujoco>"""
    for contacts in ("all", "world"):
        system = quiet(bodies.from_mjcf, text, contacts=contacts)
        assert {frozenset((c.first, c.second)) for c in system.contacts} == {frozenset(("floor", "ball")), frozenset(("hand", "ball"))}


@pytest.mark.parametrize("angle", [0.0, 0.3, 3.1, np.pi, 4.0])
@pytest.mark.parametrize("axis", [(1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (0.6, 0.0, -0.8), (0.48, 0.6, 0.64)])
def test_weld_keeps_the_turn_of_the_reference(axis, angle):
    """Also half a turn."""
    turned = np.append(np.cos(angle / 2), np.sin(angle / 2) * np.array(axis))
    p = np.asarray(quaternion_of(jnp.asarray(of_numbers(turned))))
    assert p[0] >= 0
    assert_allclose(abs(p @ turned), 1.0, atol=1e-14)
    assert_allclose(of_numbers(p), of_numbers(turned), atol=1e-12)


def test_motion_in_a_plane_has_one_tangent():
    """Joints and normals that stay in a plane: friction has one direction, a box four corners."""
    flat = """<mujoco><worldbody><geom name="floor" type="plane" size="1 1 1"/><body name="block" pos="0 0 1">
      <joint type="slide" axis="1 0 0"/><joint type="slide" axis="0 0 1"/><joint axis="0 1 0"/><geom type="box" size="0.1 0.1 0.1"/>
      </body></worldbody></mujoco>"""
    system = bodies.from_mjcf(flat)
    assert system.tangential_velocity(0.0, *system.initial_state()).shape == (4, 1)
    assert bodies.from_mjcf(flat, plane=None).tangential_velocity(0.0, *system.initial_state()).shape == (8, 2)


@pytest.mark.parametrize(("turned", "corners"), [("90 0 0", 4), ("0 0 90", 4), ("20 0 0", 8)])
def test_corners_of_a_box_that_is_turned_in_a_plane(turned, corners):
    """Its own axis across the plane is dropped, whichever it is; where there is none all corners count."""
    text = f"""<mujoco><worldbody><geom type="plane" size="1 1 1"/><body pos="0 0 .8">
      <joint type="slide" axis="1 0 0"/><joint type="slide" axis="0 0 1"/><joint axis="0 1 0"/>
      <geom type="box" size="0.1 0.2 0.4" euler="{turned}"/></body></worldbody></mujoco>"""
    system, model = bodies.from_mjcf(text), mujoco.MjModel.from_xml_string(text)
    data, q = mujoco.MjData(model), np.array([0.1, 0.3, 0.4])
    data.qpos[:] = q
    mujoco.mj_forward(model, data)
    gap = system.gap(0.0, jnp.asarray(q))
    assert gap.shape == (corners,)
    assert_allclose(gap.min(), mujoco.mj_geomDistance(model, data, 0, 1, 10.0, None), rtol=1e-10)


@pytest.mark.parametrize(
    ("argument", "options", "text"),
    [
        ("nowhere.xml", {}, "there is no file 'nowhere.xml'"),
        ("<mujoco><worldbody><body><joint/></body></worldbody></mujoco>", {}, "MuJoCo refuses the model"),
        ("<mujoco><worldbody><geom size='1'/></worldbody></mujoco>", {}, "must have a joint that moves"),
        (EVERYTHING, {"contacts": "some"}, '"all", "apart", "world" or "none"'),
    ],
)
def test_wrong_models_are_refused(argument, options, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        bodies.from_mjcf(argument, **options)


def test_without_mujoco():
    """The package is imported when it is asked for, and its absence says what to install."""
    code = (
        "import sys; sys.modules['mujoco'] = None\nimport jaxnsd\nfrom jaxnsd import bodies\n"
        "try:\n    bodies.from_mjcf('<mujoco/>')\nexcept ImportError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install mujoco" in done.stdout, done.stderr


SUITES = {
    "gymnasium": ("gymnasium.envs.mujoco", "assets", ("hopper", "walker2d", "half_cheetah", "swimmer", "ant", "humanoid", "reacher")),
    "dm_control": ("dm_control.suite", ".", ("pendulum", "acrobot", "cartpole", "hopper", "walker", "cheetah", "ball_in_cup")),
}


@pytest.mark.long
@pytest.mark.parametrize(("package", "name"), [(package, name) for package, (*_, names) in SUITES.items() for name in names])
def test_models_of_the_field(package, name):
    """What others simulate, where their packages are installed."""
    import importlib.util
    from pathlib import Path

    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    module, folder, _ = SUITES[package]
    path = Path(importlib.util.find_spec(module).origin).parent / folder / f"{name}.xml"
    system = quiet(bodies.from_mjcf, path)
    _, _, compared = agree(system, mujoco.MjModel.from_xml_path(str(path)), n=2)
    assert compared or not system.contacts


# ------------------------------------------------------------------------------------------------------------------ dry friction
DRY = """
<mujoco><compiler angle="radian"/><option gravity="0 0 -9.81"/>
  <default><default class="stiff"><joint frictionloss="0.7"/></default></default>
  <worldbody>
    <body name="cart"><joint name="rail" type="slide" axis="1 0 0" frictionloss="3"/><geom size="0.1" mass="2" contype="0" conaffinity="0"/>
      <body name="rod"><joint name="pin" class="stiff" axis="0 1 0"/>
        <geom size="0.05" pos="0 0 -0.5" mass="0.4" contype="0" conaffinity="0"/>
        <body name="tip" pos="0 0 -1"><joint name="ball" type="ball" frictionloss="0.2"/><geom size="0.05" mass="0.1" contype="0"
          conaffinity="0"/></body>
      </body>
    </body>
    <body name="free"><freejoint name="loose"/><geom size="0.1" contype="0" conaffinity="0"/></body>
  </worldbody>
</mujoco>
"""


def test_dry_friction_is_taken_with_classes_and_names():
    """Of hinges, slides and balls, their classes too; what has none has no row, and a flag turns all of it off."""
    system, model = bodies.from_mjcf(DRY, strict=True), mujoco.MjModel.from_xml_string(DRY)
    rows = np.array(system.structure.dry)
    assert_allclose(system.dry_friction, model.dof_frictionloss[rows])
    assert_allclose(system.dry_friction, [3.0, 0.7, 0.2, 0.2, 0.2])
    assert_allclose(system.W_D(0.0, system.initial_state()[0]), np.eye(model.nv)[:, rows])
    new = system.replace({"pin.dry_friction": 0.9, "ball.dry_friction": np.array([0.1, 0.2, 0.3])})
    assert_allclose(new.dry_friction, [3.0, 0.9, 0.1, 0.2, 0.3])
    with pytest.raises(KeyError, match="'loose' has no 'dry_friction'"):
        system.replace({"loose.dry_friction": 1.0})
    off = bodies.from_mjcf(DRY.replace('<option gravity="0 0 -9.81"/>', '<option><flag frictionloss="disable"/></option>'), strict=True)
    assert off.dry_friction is None


@pytest.mark.parametrize("friction", [3.0, 40.0])
def test_a_cart_with_dry_friction_stops_where_it_must(friction):
    """On a rail of slope 0.3: x = v^2 / (2 (g sin a + tau / m)) up; there it stays where tau >= m g sin a, else it slides back."""
    a, m, v = 0.3, 2.0, 1.5
    text = f"""<mujoco><option gravity="{-9.81 * np.sin(a)} 0 {-9.81 * np.cos(a)}"/><worldbody><body name="cart">
      <joint name="rail" type="slide" axis="1 0 0" frictionloss="{friction}"/><geom size="0.1" mass="{m}"/></body></worldbody></mujoco>"""
    system = bodies.from_mjcf(text, strict=True)
    up, down = 9.81 * np.sin(a) + friction / m, 9.81 * np.sin(a) - friction / m

    def end(tau):
        sol = simulate(system.replace({"rail.dry_friction": tau}), jaxnsd.MoreauJean(), np.zeros(1), np.array([v]), 0.6, 1e-3)
        return sol.q[-1, 0], sol

    (x, sol), slope = jax.value_and_grad(end, has_aux=True)(friction)
    top, rest = v**2 / (2 * up), 0.6 - v / up
    d_top = -(v**2) / (2 * up**2 * m)
    if down <= 0:
        assert_allclose((x, slope), (top, d_top), rtol=5e-3)
        assert_array_equal(sol.u[-100:], 0.0)
    else:
        exact = top - 0.5 * down * rest**2
        d_exact = d_top + 0.5 / m * rest**2 - down * rest * v / (up**2 * m)
        assert_allclose((x, slope), (exact, d_exact), rtol=5e-3)


def test_friction_of_urdf_joints():
    """<dynamics friction=...> is the same number."""
    link = '<inertial><mass value="1"/><inertia ixx="0.1" iyy="0.1" izz="0.1" ixy="0" ixz="0" iyz="0"/></inertial>'
    text = f"""<robot name="r"><link name="a">{link}</link><link name="b">{link}</link>
      <joint name="j" type="continuous"><parent link="a"/><child link="b"/><axis xyz="0 0 1"/><dynamics friction="0.3"/></joint></robot>"""
    assert_allclose(quiet(bodies.from_urdf, text).dry_friction, [0.3])


def test_motors_of_a_urdf_file():
    """A file in URDF has none: given, they are those that MuJoCo has beside the same file; a control without one is refused."""
    motors = [bodies.Motor("slide", gear=3.0), bodies.Motor("swing", gain=20.0, slope=-20.0, rate=-2.0)]
    control = lambda t, q, u: jnp.array([0.5 + t, 0.3])  # noqa: E731
    system = bodies.from_urdf(URDF, motors=motors, control=control)
    spec = mujoco.MjSpec.from_string(URDF)
    slide = spec.add_actuator(name="slide", target="slide", trntype=mujoco.mjtTrn.mjTRN_JOINT)
    slide.gear[0] = 3.0
    swing = spec.add_actuator(name="swing", target="swing", trntype=mujoco.mjtTrn.mjTRN_JOINT)
    swing.gainprm[0], swing.biastype, swing.biasprm[1:3] = 20.0, mujoco.mjtBias.mjBIAS_AFFINE, [-20.0, -2.0]
    wanted = bodies.from_mujoco(spec, control=control)
    q, u = jnp.array([0.2, 0.03]), jnp.array([-0.4, 0.1])
    assert_allclose(system.h(0.1, q, u), wanted.h(0.1, q, u), rtol=1e-12)
    assert not np.allclose(system.h(0.1, q, u), bodies.from_urdf(URDF).h(0.1, q, u))
    with pytest.raises(ValueError, match=r"control is given, and there is no motor that it is for; .*motors="):
        bodies.from_urdf(URDF, control=control)


GRIPPER = """<mujoco><worldbody><geom name="floor" type="plane" size="1 1 1" pos="0 0 -0.02"/>
  <body name="palm" pos="0 0 0.1"><geom name="palm" type="box" size="0.05 0.05 0.02"/>
    <body name="finger" pos="0.05 0 0"><joint name="knuckle" axis="0 1 0" range="-1 1" limited="true"/>
      <geom name="finger" type="capsule" fromto="0 0 0 0 0 0.1" size="0.01"/>
      <body name="tip" pos="0 0 0.2"><joint name="end" axis="0 1 0"/><geom name="tip" type="sphere" size="0.02"/></body></body></body>
  <body name="block" pos="0.3 0 0.029"><freejoint/><geom name="block" type="box" size="0.05 0.05 0.05"/></body>
</worldbody></mujoco>"""


def test_links_that_lie_in_each_other_may_be_left_apart():
    """MuJoCo tests a palm that stands still with the finger that begins in it; a block that is sunk into the floor still meets it."""
    pytest.importorskip("mujoco")

    def names(which):
        return {frozenset(contact[:2]) for contact in bodies.from_mjcf(GRIPPER, contacts=which).contacts if contact.kind != "limit"}

    assert names("all") - names("apart") == {frozenset({"palm", "finger"})}
    assert frozenset({"floor", "block"}) in names("apart") and frozenset({"palm", "tip"}) in names("apart")
    with pytest.raises(ValueError, match=r'finger and palm by .*contacts="apart"'):
        bodies.from_mjcf(GRIPPER).initial_state(project=True)
    with pytest.warns(UserWarning, match="block"):
        q, _ = bodies.from_mjcf(GRIPPER, contacts="apart").initial_state(project=True)
    assert np.all(bodies.from_mjcf(GRIPPER, contacts="apart").gap(0.0, q) > -1e-9)
