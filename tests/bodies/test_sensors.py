"""Sites and sensors of bodies: as MuJoCo's of the same model, of models from files and from parts; forces that are felt; derivatives."""

import dataclasses
import functools
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from little_systems import quick
from numpy.testing import assert_allclose

import jaxnsd
from jaxnsd import bodies
from jaxnsd.bodies import Body, Box, Free, Pair, Plane, Prismatic, Revolute, Sensor, Site, Sphere, Spherical
from jaxnsd.bodies.sensors import KINDS, reaches

mujoco = pytest.importorskip("mujoco")

#: What a frame sensor can be of, and as which it can be seen.
OBJECTS = 'objtype="{}" objname="{}"'
FRAMES = [("site", "imu"), ("xbody", "trunk"), ("body", "shank"), ("geom", "foot"), ("camera", "eye"), ("site", "post")]
OF_FRAMES = [
    f'<{kind} name="{kind} of {what} {name}{suffix}" {OBJECTS.format(what, name)}{ref}/>'
    for kind in ("framepos", "framequat", "framexaxis", "frameyaxis", "framezaxis", "framelinvel", "frameangvel")
    for k, (what, name) in enumerate(FRAMES)
    for suffix, ref in (("", ""), (" seen", ' reftype="{}" refname="{}"'.format(*FRAMES[(k + 3) % len(FRAMES)])))
]
#: Joints of every kind, sites with orientation, sensors of every kind that is read, and two that are not.
EVERYTHING = f"""
<mujoco>
  <compiler angle="radian"/>
  <worldbody>
    <site name="post" pos="1 0.3 0.2" euler="0.4 0.2 -0.3"/>
    <body name="trunk" pos="0 0 0.5" euler="0.2 0.1 0.3">
      <freejoint name="root"/>
      <geom type="box" size="0.2 0.15 0.1" pos="0.01 0 0.02"/>
      <site name="imu" pos="0.1 -0.05 0.08" quat="0.8 0.3 -0.2 0.4"/>
      <site name="trunk"/>
      <body name="thigh" pos="0.2 0.1 -0.1" quat="0.9 0.1 0.3 0.2">
        <joint name="hip" type="ball"/>
        <geom type="capsule" size="0.05 0.15" pos="0 0 -0.2"/>
        <camera name="eye" pos="0.1 0 0" euler="0.1 0.7 0"/>
        <body name="shank" pos="0 0 -0.4">
          <joint name="knee" type="hinge" axis="1 2 0" pos="0 0.01 0.02" ref="0.1"/>
          <joint name="stretch" type="slide" axis="0 0.1 1"/>
          <geom type="capsule" size="0.04 0.12" pos="0 0 -0.15"/>
          <geom name="foot" type="ellipsoid" size="0.08 0.05 0.03" pos="0.03 0 -0.3" euler="0.3 0 0.2"/>
          <site name="sole" pos="0.03 0 -0.3" size="0.1"/>
          <site/>
        </body>
      </body>
    </body>
    <body name="cart" pos="0 1 0">
      <joint name="rail" type="slide" axis="1 0 0"/>
      <geom type="box" size="0.1 0.1 0.1"/>
      <body><joint name="pivot" axis="0 1 0"/><geom type="capsule" fromto="0 0 0 0 0 0.5" size="0.02"/></body>
    </body>
  </worldbody>
  <tendon><fixed name="cord"><joint joint="rail" coef="2"/><joint joint="pivot" coef="-0.5"/></fixed></tendon>
  <actuator>
    <motor name="thrust" joint="root" gear="1 2 3 4 5 6"/>
    <position name="knee" joint="knee" gear="3" kp="2"/>
    <motor name="twist" joint="hip" gear="1 -2 0.5"/>
    <motor name="pull" tendon="cord" gear="1.5"/>
    <general name="valve" joint="knee" dyntype="integrator"/>
  </actuator>
  <sensor>
    <jointpos name="angle" joint="knee"/> <jointpos name="way" joint="rail"/>
    <jointvel joint="pivot"/> <jointvel name="speed" joint="stretch"/>
    <ballquat name="turned" joint="hip"/> <ballangvel name="turning" joint="hip"/>
    {"".join(f'<actuator{x} name="{x} of {m}" actuator="{m}"/>' for x in ("pos", "vel") for m in ("thrust", "knee", "twist", "pull"))}
    <velocimeter name="velocimeter" site="imu"/> <gyro name="gyro" site="imu"/> <gyro name="weak" site="imu" cutoff="0.5"/>
    {"".join(OF_FRAMES)}
    <subtreecom name="all" body="world"/> <subtreecom name="centre" body="thigh"/> <subtreelinvel name="moves" body="trunk"/>
    <touch name="sole" site="sole"/> <clock name="time"/>
    <tendonpos name="drawn" tendon="cord"/> <tendonvel name="draws" tendon="cord"/>
    <accelerometer name="felt" site="imu"/> <actuatorpos name="valve" actuator="valve"/>
  </sensor>
</mujoco>
"""


@functools.partial(quick, static_argnames="names")
def sense(system, t, q, u, names=None):
    return system.sensors(t, q, u, names)


@pytest.fixture(scope="module")
def everything():
    with pytest.warns(UserWarning, match="not taken: the actuator 'valve', which has a state"):
        return bodies.from_mjcf(EVERYTHING, contacts="none")


def states(model, count):
    """Random coordinates and velocities, quaternions of length one."""
    rng = np.random.default_rng(3)
    q = np.stack([model.qpos0 + rng.normal(size=model.nq) for _ in range(count)])
    for at in (3, 7):
        q[:, at : at + 4] /= np.linalg.norm(q[:, at : at + 4], axis=1, keepdims=True)
    return q, rng.normal(size=(count, model.nv))


def test_sensors_are_mujocos(everything):
    """Of 20 random states; a quaternion is the same as its opposite."""
    model = mujoco.MjModel.from_xml_string(EVERYTHING)
    data, (q, u) = mujoco.MjData(model), states(model, 20)
    system = everything
    t = jnp.linspace(0, 1, 20)
    read = jax.vmap(lambda t, q, u: system.sensors(t, q, u, forces=jnp.zeros(0)))
    values = quick(read)(t, jnp.asarray(q), jnp.asarray(u))
    assert {sensor.kind for sensor in system.structure.sensors} == set(KINDS)
    assert len(values) == len(system.sensor_names) == model.nsensor - 2
    for k in range(20):
        data.time, data.qpos, data.qvel = t[k], q[k], u[k]
        mujoco.mj_forward(model, data)
        for i in range(model.nsensor):
            name = model.sensor(i).name or f"sensor_{i}"
            if name in values and name != "sole":
                value, wanted = np.atleast_1d(values[name][k]), data.sensordata[model.sensor_adr[i] :][: model.sensor_dim[i]]
                value = -value if "framequat" in name and value @ wanted < 0 else value
                assert_allclose(value, wanted, atol=1e-12, err_msg=name)
                assert "framequat" not in name or values[name][k][0] >= 0


def test_sites_are_mujocos(everything):
    """Poses; velocities are those of the poses along a motion, of which `q_dot` is the rate."""
    model = mujoco.MjModel.from_xml_string(EVERYTHING)
    data, (q, u) = mujoco.MjData(model), (x[0] for x in states(model, 1))
    data.qpos = q
    mujoco.mj_kinematics(model, data)

    @quick
    def at(q, u):
        moved = jax.jvp(lambda q: everything.site_pose(0.0, q), (q,), (everything.q_dot(0.0, q, u),))
        return *moved, everything.site_velocity(0.0, q, u)

    pose, rate, velocity = at(jnp.asarray(q), jnp.asarray(u))
    n = model.nsite
    assert everything.site_names[:n] == ("post", "imu", "trunk", "sole", "site_4")
    assert everything.site_names[n:] == ("geom foot", "camera eye", "inertia shank")
    assert_allclose(pose.position[:n], data.site_xpos, atol=1e-13)
    assert_allclose(pose.rotation[:n], data.site_xmat.reshape(-1, 3, 3), atol=1e-13)
    assert_allclose(velocity.linear, rate.position, atol=1e-13)
    spin = np.einsum("nij,nkj->nik", rate.rotation, pose.rotation)
    assert_allclose(velocity.angular, np.stack([spin[:, 2, 1], spin[:, 0, 2], spin[:, 1, 0]], axis=1), atol=1e-13)


def test_what_is_not_read_is_named_when_it_is_asked_for(everything):
    q, u = everything.initial_state()
    assert everything.sensors_left_out == ("the accelerometer 'felt'", "the actuatorpos 'valve'")
    assert set(jax.eval_shape(everything.sensors, 0.0, q, u)) == {*everything.sensor_names} - {"sole"}
    assert list(everything.sensors(0.0, q, u, "time")) == list(everything.sensors(0.0, q, u, ["time"])) == ["time"]
    with pytest.raises(KeyError, match="the accelerometer 'felt' is not read; there are jointpos, "):
        everything.sensors(0.0, q, u, ["felt"])
    with pytest.raises(KeyError, match="no sensor has the name 'giro'; did you mean 'gyro'"):
        everything.sensors(0.0, q, u, ["giro"])
    with pytest.raises(ValueError, match="the touch sensor 'sole' needs forces="):
        everything.sensors(0.0, q, u, ["sole"])
    with pytest.raises(ValueError, match=r"forces must have shape \(0,\), a number for each contact, got \(2,\)"):
        everything.sensors(0.0, q, u, forces=jnp.zeros(2))


#: The trunk, thigh and shank of the model above, from parts.
PARTS = [
    Body("trunk", 1.0, (0.1, 0.2, 0.25), joints=Free(), position=(0, 0, 0.5)),
    Body("thigh", 0.5, (0.02, 0.02, 0.01), (0, 0, -0.2), Spherical(name="hip"), "trunk", (0.2, 0.1, -0.1), (0.9, 0.1, 0.3, 0.2)),
    Body("shank", 0.3, (0.01, 0.01, 0.01), (0, 0, -0.1), Revolute((1, 2, 0), name="knee"), "thigh", (0, 0, -0.4)),
]
SITES = [Site("imu", "trunk", (0.1, -0.05, 0.08), (0.8, 0.3, -0.2, 0.4)), Site("post", "world", (1, 0.3, 0.2)), Site("trunk", "trunk")]
SENSORS = [
    Sensor("gyro", "imu"),
    Sensor("framepos", "shank", "imu", name="foot"),
    Sensor("framelinvel", "post", "body trunk", name="post"),
    Sensor("jointpos", "knee"),
    Sensor("ballquat", "hip"),
    Sensor("subtreecom", "thigh"),
    Sensor("clock"),
]
SAME = """
<mujoco>
  <worldbody>
    <site name="post" pos="1 0.3 0.2"/>
    <body name="trunk" pos="0 0 0.5"><freejoint/><site name="trunk"/><inertial pos="0 0 0" mass="1" diaginertia="0.1 0.2 0.25"/>
      <site name="imu" pos="0.1 -0.05 0.08" quat="0.8 0.3 -0.2 0.4"/>
      <body name="thigh" pos="0.2 0.1 -0.1" quat="0.9 0.1 0.3 0.2">
        <joint name="hip" type="ball"/><inertial pos="0 0 -0.2" mass="0.5" diaginertia="0.02 0.02 0.01"/>
        <body name="shank" pos="0 0 -0.4">
          <joint name="knee" axis="1 2 0"/><inertial pos="0 0 -0.1" mass="0.3" diaginertia="0.01 0.01 0.01"/>
        </body>
      </body>
    </body>
  </worldbody>
  <sensor>
    <gyro name="imu_gyro" site="imu"/> <framepos name="foot" objtype="xbody" objname="shank" reftype="site" refname="imu"/>
    <framelinvel name="post" objtype="site" objname="post" reftype="xbody" refname="trunk"/> <jointpos name="knee_jointpos" joint="knee"/>
    <ballquat name="hip_ballquat" joint="hip"/> <subtreecom name="thigh_subtreecom" body="thigh"/> <clock name="clock"/>
  </sensor>
</mujoco>
"""


def test_from_parts_as_from_a_file():
    """Names are those of what is measured; numbers of sites have names, and a program serves other numbers."""
    made, read = bodies.assemble(PARTS, sites=SITES, sensors=SENSORS), bodies.from_mjcf(SAME)
    q, u = (jnp.asarray(np.random.default_rng(k).normal(size=n)) for k, n in enumerate((12, 10)))
    value, wanted = sense(made, 0.7, q, u), sense(read, 0.7, q, u)
    assert set(value) == set(wanted) == {*made.sensor_names} and set(made.site_names) == set(read.site_names)
    for name in value:
        assert_allclose(value[name], wanted[name], atol=1e-14, err_msg=name)
    assert value["clock"] == 0.7 and value["knee_jointpos"] == q[11]
    moved = made.replace({"imu.position": (0, 0, 0), "site trunk.position": (0, 0, 1), "trunk.mass": 2.0, "imu_gyro.cutoff": 0.1})
    assert_allclose(moved.site_position[:, 2], [0, 0.2, 1])
    assert np.abs(sense(moved, 0.0, q, u)["imu_gyro"]).max() <= 0.1
    assert moved.where("trunk") == 0 and moved.where("trunk", "site") == 2 and moved.where("imu_gyro") == 0
    assert_allclose(sense(pickle.loads(pickle.dumps(made)), 0.7, q, u)["foot"], value["foot"])
    # What is prescribed is measured, too.
    driven = Body("crank", 1.0, (1, 1, 1), joints=Revolute(motion=lambda t: 2 * t))
    spun = bodies.assemble([driven, PARTS[0]], sensors=[Sensor("jointpos", "crank"), Sensor("gyro", "crank")])
    value = sense(spun, 0.5, *spun.initial_state())
    assert_allclose(value["crank_gyro"], [0, 0, 2])
    assert value["crank_jointpos"] == 1


def test_derivatives_are_those_of_differences(everything):
    """By coordinates, velocities and the numbers of a site, of sensors of all kinds at once."""
    q, u = everything.initial_state()
    q, u = q + 0.3 * jnp.sin(jnp.arange(1.0 * q.size)), u + jnp.cos(jnp.arange(1.0 * u.size))

    names = [sensor.name for sensor in everything.structure.sensors if sensor.kind != "touch" and " seen" not in sensor.name]
    names = [*names[::3], "framelinvel of site imu seen"]

    def total(x):
        moved = everything.replace({"imu.position": x[2], "imu.orientation": x[3]})
        values = moved.sensors(0.0, x[0], x[1], names)
        return sum(jnp.sum(jnp.sin(value + k)) for k, value in enumerate(values.values()))

    x = q, u, everything.site_position[1], everything.site_orientation[1]
    step = jax.tree.map(lambda x: jnp.sin(2.0 + jnp.arange(x.size)), x)
    value, slope = (quick(f) for f in (total, jax.grad(total)))
    ahead, behind = (value(jax.tree.map(lambda x, d, h=h: x + h * d, x, step)) for h in (1e-6, -1e-6))
    slope = sum(jnp.vdot(g, d) for g, d in zip(slope(x), step, strict=True))
    assert_allclose(slope, (ahead - behind) / 2e-6, rtol=1e-7)


def test_touch_is_the_weight():
    """Of a box that rests on the floor, until the motion is stopped; before the first step no percussion acts with this scheme."""
    joint = Prismatic((0, 0, 1), limits=(-1, 1))
    box = Body("box", 2.0, shapes=Box((0.4, 0.4, 0.2)), joints=joint, position=(0, 0, 0.1))
    volume = Box((0.5, 0.5, 0.05))
    sites = [Site("sole", "box", (0, 0, -0.1), volume=volume), Site("edge", "box", (0.2, 0, -0.1), volume=volume)]
    sites += [Site("roof", "box", (0, 0, 0.1), volume=Sphere(0.05)), Site("ground", "world", volume=Sphere(1.0))]
    system = bodies.assemble([box], Plane(), sites=sites, sensors=[Sensor("touch", site.name) for site in sites])
    until = lambda t, q, u: t > 0.055  # noqa: E731
    sol = jaxnsd.simulate(system, jaxnsd.Moreau(), *system.initial_state(), 0.1, 0.01, save_every=2, until=until).raise_if_failed()
    values = bodies.readings(system, sol)
    weight = np.where(np.isin(np.arange(6), (1, 2, 3)), 2.0 * 9.81, 0.0)
    assert_allclose(values["sole_touch"], weight)
    assert_allclose(values["ground_touch"], weight)
    assert_allclose(values["edge_touch"], weight / 2)
    assert not np.any(values["roof_touch"])
    # A batch, and the derivative by the percussions.
    both = jax.tree.map(lambda x: jnp.stack([x, x]), sol)
    with pytest.raises(ValueError, match=r"readings: takes one motion, got a batch of shape \(2,\); use jax.vmap"):
        bodies.readings(system, both)

    def last(sol, P_N):
        return bodies.readings(system, dataclasses.replace(sol, P_N=P_N), "edge_touch")["edge_touch"][1]

    value, slope = quick(jax.vmap(jax.value_and_grad(last, argnums=1)))(both, both.P_N)
    assert_allclose(value, 9.81)
    assert not np.any(slope[:, 1:]) and set(np.unique(slope[0]).round(9)) == {0, 50}


@pytest.mark.slow
def test_touch_is_the_weight_at_any_stored_times():
    """Times need not be nodes, and an end need not be: the percussions are those of whole steps."""
    ball = Body("ball", mass=0.5, shapes=Sphere(0.1), position=(0, 0, 0.1))
    site = Site("belly", "ball", (0, 0, -0.05), volume=Sphere(0.08))
    system = bodies.assemble([ball], Plane(), sites=site, sensors=Sensor("touch", "belly"))
    exact, boolean = (lambda t, q, u: 0.0456 - t), (lambda t, q, u: t > 0.0455)
    for options, stored in (
        ({"save_at": [0.01, 0.0123, 0.0499, 0.09]}, 4),
        ({"save_at": [0.0, 0.0123, 0.02, 0.03, 0.09], "until": exact}, 5),
        ({"until": exact}, 47),
        ({"until": boolean, "save_every": 10}, 6),
    ):
        sol = jaxnsd.simulate(system, jaxnsd.Moreau(), *system.initial_state(), 0.1, 1e-3, **options)
        assert_allclose(bodies.readings(system, sol)["belly_touch"][1:stored], 0.5 * 9.81)
        trimmed = sol.trimmed()
        assert_allclose(bodies.readings(system, trimmed)["belly_touch"][1:], 0.5 * 9.81)
    # In single precision the round-off of a time is a hundredth of a step after 30 s: no step is in two intervals, or in none.
    system = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), system)
    start = [jnp.asarray(x, jnp.float32) for x in system.initial_state()]
    with pytest.warns(UserWarning, match="simulating in float32"):
        sol = jaxnsd.simulate(system, jaxnsd.Moreau(), *start, 30.0, 1e-3, save_at=np.linspace(0, 30, 1501))
    assert sol.q.dtype == jnp.float32
    assert_allclose(jnp.diff(sol.grid.ended), 20)
    assert_allclose(bodies.readings(system, sol)["belly_touch"][1:], 0.5 * 9.81, rtol=1e-3)


def test_readings_of_schemes_with_velocities_between_nodes():
    """Velocities are those of the nodes; at the first node there is the percussion of the first step of `SymmetricMoreau`."""
    along = Prismatic((0, 0, 1))
    resting = Body("resting", 2.0, shapes=Sphere(0.1), joints=along, position=(0, 0, 0.1))
    falling = Body("falling", 1.0, (1, 1, 1), joints=along, position=(5, 0, 0))
    sites = [Site("sole", "resting", volume=Sphere(0.2))]
    sensors = [Sensor("touch", "sole"), Sensor("velocimeter", "falling")]
    system = bodies.assemble([resting, falling], Plane(), contacts=[Pair("resting", "world")], sites=sites, sensors=sensors)
    values = bodies.readings(system, jaxnsd.simulate(system, jaxnsd.SymmetricMoreau(), *system.initial_state(), 0.1, 0.01))
    assert_allclose(values["sole_touch"], 2.0 * 9.81)
    assert_allclose(values["falling_velocimeter"][:, 2], -9.81 * np.linspace(0, 0.1, 11), atol=1e-12)


@pytest.mark.parametrize("kind", ["sphere", "capsule", "cylinder", "box", "ellipsoid"])
def test_volumes_are_mujocos(kind):
    """A ray from a point reaches a volume where MuJoCo's does: 300 of them, also along the axes."""
    rng, number = np.random.default_rng(0), int(getattr(mujoco.mjtGeom, f"mjGEOM_{kind.upper()}"))
    size, points = np.array([0.5, 0.4, 0.7]), 0.5 * rng.normal(size=(300, 3))
    along = rng.normal(size=(300, 3)) - points
    along[:90] = np.eye(3)[np.arange(90) % 3] * np.where(np.arange(90) % 2, 1.0, -1.0)[:, None]
    along /= np.linalg.norm(along, axis=1, keepdims=True)
    normal = np.zeros(3)
    args = [(np.zeros(3), np.eye(3).ravel(), size, p, v, number) for p, v in zip(points, along, strict=True)]
    wanted = np.array([mujoco.mju_rayGeom(*one, normal) >= 0 for one in args])
    assert 100 < wanted.sum() < 250
    assert np.array_equal(reaches(kind, jnp.asarray(size), jnp.asarray(points), jnp.asarray(along)), wanted)


@pytest.mark.parametrize(
    ("sites", "sensors", "error", "text"),
    [
        ([Site("a", "nobody")], [], KeyError, "no body has the name 'nobody'"),
        ([Site("a", "ball"), Site("a", "world")], [], ValueError, "names of sites must be different"),
        ([Site("", "ball")], [], TypeError, "the name of a Site must be text"),
        ([Site("a", "ball", (0, 0))], [], ValueError, "position of the site 'a' must be 3 numbers"),
        ([Site("a", "ball", orientation=(0, 0, 0, 0))], [], ValueError, "orientation of the site 'a' must not be zero"),
        ([Site("a", "ball", volume=Plane())], [], TypeError, "volume of the site 'a' must be a shape of the kinds sphere, "),
        ([Site("a", "ball", volume=Sphere(1.0, position=(1, 0, 0)))], [], ValueError, "must be about the site"),
        (["a"], [], TypeError, "sites must be Site, got 'a'"),
        ([], [Sensor("giro", "ball")], KeyError, "no kind of sensor has the name 'giro'; did you mean 'gyro'"),
        ([], [Sensor("gyro", "bal")], KeyError, "no site or body has the name 'bal'; did you mean 'ball'"),
        ([], [Sensor("jointpos", "ball")], KeyError, "no joint with one axis has the name 'ball'"),
        ([Site("a", "ball")], [Sensor("touch", "a")], KeyError, "no site with a volume has the name 'a'"),
        ([], [Sensor("gyro", "ball", frame="ball")], ValueError, "the sensor 'ball_gyro' must have no frame"),
        ([], [Sensor("gyro", "ball")] * 2, ValueError, "names of sensors must be different, got 'ball_gyro' more than once"),
        ([], [Sensor("clock", "ball")], KeyError, "no time has the name 'ball'"),
        ([], [Sensor("gyro", 3)], TypeError, "of of a sensor must be text, got 3"),
    ],
)
def test_wrong_sites_and_sensors(sites, sensors, error, text):
    with pytest.raises(error, match=text):
        bodies.assemble([Body("ball", 1.0, (1, 1, 1))], sites=sites, sensors=sensors)
