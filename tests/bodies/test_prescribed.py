"""Bodies whose motion is prescribed: tables that shake, bodies of motion capture."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from little_systems import UNOPTIMIZED
from numpy.testing import assert_allclose

import jaxnsd
from jaxnsd import bodies
from jaxnsd.bodies import Body, Box, Connect, Free, Motor, Pair, Plane, Prismatic, Revolute, Sensor, Site, Sphere, Weld
from jaxnsd.programs.pytrees import pytree
from jaxnsd.schemes import Lobatto, Moreau, MoreauJean

G = 9.81
evaluated = functools.partial(jax.jit, compiler_options=UNOPTIMIZED)


@pytree
class Shaking:
    """A table whose top shakes about the origin: a tree that is a function."""

    amplitude: object  # (3,) m
    omega: object  # rad/s

    def __call__(self, t):
        """Position of the middle of the table."""
        return self.amplitude * jnp.sin(self.omega * t) - jnp.array([0.0, 0.0, 0.05])


def table(motion, **more):
    return Body("table", joints=Free(motion=motion), shapes=Box((2.0, 2.0, 0.1), name="top"), **more)


def tumbling(numbers, t):
    """A place and an orientation of no special kind; the quaternion is of no special length."""
    a, b = numbers
    position = jnp.stack([a * jnp.sin(3 * t), b * t * t, 0.2 * jnp.cos(t)])
    return position, jnp.stack([1.0 + 0 * t, jnp.sin(b * t), a * t, jnp.cos(2 * t)])


def moved_with_an_arm(palm=(), fist=()):
    motion = jax.tree_util.Partial(tumbling, jnp.array([0.3, 0.7]))
    hand = Body("hand", 0.7, (0.01, 0.02, 0.025), (0.1, 0, 0), Free(motion=motion), shapes=palm)
    return hand, Body("arm", 0.5, (0.01, 0.02, 0.02), (0.3, 0, 0), Revolute((0, 1.0, 1.0)), "hand", (0.2, 0, 0), shapes=fist)


def carried():
    """A body that is moved, with an arm on a hinge, a ball that floats and is tied to it, and what is measured on it."""
    hand, arm = moved_with_an_arm(Box((0.4, 0.5, 0.6), name="palm"), Sphere(0.1, name="fist"))
    return bodies.assemble(
        [
            hand,
            arm,
            Body("ball", 1.0, shapes=Sphere(0.2, name="skin")),
        ],
        contacts=[Pair("palm", "skin", 0.4, drilling=0.1, rolling=0.05), Pair("fist", "skin", 0.3)],
        loops=[Connect("hand", "ball", (0.1, 0.2, 0.3), (0.05, 0, 0)), Weld("ball", "hand")],
        sites=Site("palm_site", "hand", (0.1, 0.2, 0.3)),
        sensors=[Sensor("gyro", "palm_site"), Sensor("framelinvel", "hand")],
    )


def states(system, n, seed):
    """Times, coordinates and velocities at random."""
    rng, layout = np.random.default_rng(seed), system.structure.layout
    q, u = rng.standard_normal((n, layout.n_q)), rng.standard_normal((n, layout.n_u))
    return jnp.asarray(rng.uniform(0, 2, n)), jax.jit(jax.vmap(system.normalized))(q), jnp.asarray(u)


# ------------------------------------------------------------------------------------------------------------ kinematics
def test_velocities_are_those_of_differences_in_time():
    """Gaps, points that touch, turns, loops and sites at random times and poses, against differences along the motion."""
    system, step = carried(), 1e-5
    t, q, u = states(system, 8, 0)
    body_of = {shape.name: shape.body - 1 for shape in system.structure.shapes}
    first, second = (np.array([body_of[name] for name in names]) for names in zip(*(c[:2] for c in system.contacts), strict=True))

    @evaluated
    @jax.vmap
    def places(t, q):
        pose, sites = system.pose(t, q), system.site_pose(t, q)
        return {"gap": system.gap(t, q), "loops": system.constraint(t, q), "x": pose.position, "R": pose.rotation, "site": sites.position}

    @evaluated
    @jax.vmap
    def rates(t, q, u):
        touch = system.touches(t, q)
        names = ("gap_velocity", "tangential_velocity", "constraint_velocity")
        more = system.site_velocity(t, q, u).linear, system.sensors(t, q, u), touch, system.tangents(touch.normal), system.q_dot(t, q, u)
        return *(getattr(system, name)(t, q, u) for name in names), *more

    gap, sliding, loops, site, sensors, touch, tangents, q_dot = rates(t, q, u)
    here, before, after = places(t, q), places(t - step, q - step * q_dot), places(t + step, q + step * q_dot)
    rate = {name: (after[name] - before[name]) / (2 * step) for name in here}
    assert_allclose(gap, rate["gap"], atol=1e-8)
    assert_allclose(loops, rate["loops"], atol=1e-8)
    assert_allclose(site, rate["site"], atol=1e-8)
    assert_allclose(sensors["hand_framelinvel"], rate["x"][:, 0], atol=1e-8)
    spin = np.einsum("nbij,nbkj->nbik", rate["R"], here["R"])
    omega = np.stack([spin[..., 2, 1], spin[..., 0, 2], spin[..., 1, 0]], axis=-1)
    assert_allclose(sensors["palm_site_gyro"], np.einsum("nji,nj->ni", here["R"][:, 0], omega[:, 0]), atol=1e-8)

    def of_points(points, of):
        return rate["x"][:, of] + np.cross(omega[:, of], points - here["x"][:, of])

    relative = of_points(touch.second, second) - of_points(touch.first, first)
    turning = omega[:, second] - omega[:, first]
    normal = np.einsum("nci,nci->nc", touch.normal, turning)
    by_hand = np.einsum("ncdi,nci->ncd", tangents, relative), normal[..., None], np.einsum("ncdi,nci->ncd", tangents, turning)
    assert_allclose(sliding, np.concatenate(by_hand, axis=-1), atol=1e-8)
    assert np.abs(sliding[:, 0]).min() > 1e-3
    assert_allclose(np.einsum("nci,nci->nc", touch.normal, relative), gap, atol=1e-8)


def test_equations_of_motion_are_those_of_the_energy():
    """Forces and momenta of an arm on a body that is moved, against Lagrange's equations of its energies."""
    system = carried()
    t, q, u = states(system, 4, 1)

    @evaluated
    @jax.vmap
    def both(t, q, u):
        def momentum(t, q):
            return jax.grad(system.kinetic_energy, argnums=2)(t, q, u)

        rate = jax.jvp(momentum, (t, q), (jnp.ones_like(t), system.q_dot(t, q, u)))[1]
        b = jaxnsd.System.b(system, t, q, u)
        return (system.momentum(t, q, u), system.b(t, q, u), system.h(t, q, u)), (momentum(t, q), b, b - rate)

    own, by_energy = both(t, q, u)
    for x, y in zip(own, by_energy, strict=True):
        assert_allclose(x, y, rtol=1e-10, atol=1e-11)


@pytest.mark.slow
def test_energy_is_what_the_motion_works():
    """An arm on a body that is moved, without contact: T + V changes by the work of what moves it, up to the order of the scheme."""
    system = bodies.assemble(moved_with_an_arm())
    scheme, (q, u) = MoreauJean(), (jnp.array([0.4]), jnp.array([0.0]))
    of = jaxnsd.energy.balance(system, scheme, jaxnsd.simulate(system, scheme, q, u, 0.2, 2e-3))
    gained = of.total[-1] - of.total[0]
    assert abs(gained) > 0.05
    assert_allclose(jnp.sum(of.external), gained, rtol=1e-4)


# --------------------------------------------------------------------------------------------------------------- contacts
@jaxnsd.system
class OnTable(jaxnsd.models.BouncingBall):
    """By hand: a table z = a sin(omega t) below the ball."""

    amplitude: jaxnsd.Parameter = 0.03
    omega: jaxnsd.Parameter = 12.0

    def gap(self, t, q):
        return q - self.amplitude * jnp.sin(self.omega * t)


def test_ball_on_a_table_that_shakes():
    """The model that is written by hand, to round-off, through many bounces; and its energy is what the table works."""
    by_hand = OnTable(e_N=0.7)
    ball = Body("ball", by_hand.mass, joints=Prismatic((0.0, 0, 1)), shapes=Sphere(0.1, name="skin"), position=(0, 0, 0.1))
    motion = Shaking(jnp.array([0.0, 0, by_hand.amplitude]), by_hand.omega)
    system = bodies.assemble([ball, table(motion)], Plane(name="floor", position=(0, 0, -0.1)), e_N=0.7)
    assert [str(c) for c in system.contacts] == ["floor and skin", "skin and top"]  # a table that is moved does not touch the floor
    of, own = [jaxnsd.simulate(s, Moreau(), jnp.array([0.2]), jnp.array([0.0]), 3.0, 1e-3) for s in (by_hand, system)]
    assert_allclose(own.q, of.q, atol=1e-11)
    assert_allclose(own.P_N[:, 1], of.P_N[:, 0], atol=1e-11)
    assert np.count_nonzero(np.diff((np.asarray(of.P_N[:, 0]) > 0).astype(int)) > 0) > 8
    balance = jaxnsd.energy.balance(system, Moreau(), own)
    assert_allclose(jnp.sum(balance.contact) + jnp.sum(balance.numerical), balance.total[-1] - balance.total[0], atol=1e-12)
    assert abs(jnp.sum(balance.numerical)) < 2e-3 * balance.scale


def block(amplitude, omega=9.0, mu=0.4):
    """A block on a table that shakes along x."""
    motion = Shaking(amplitude * jnp.array([1.0, 0.0, 0.0]), omega)
    joints = Prismatic((0, 0, 1.0)), Prismatic((1.0, 0, 0))
    body = Body("block", 1.3, joints=joints, shapes=Sphere(0.05), position=(0, 0, 0.05))
    top = Plane(position=(0, 0, 0.05))
    return bodies.assemble([body, Body("table", joints=Free(motion=motion), shapes=top)], mu=mu)


def test_block_on_a_table_sticks_as_long_as_friction_holds_it():
    """mu g > a omega^2; else it slides from the time where the table is that fast, with mu g. The derivative by a is that of this."""
    omega, mu, end = 9.0, 0.4, 0.21
    limit = mu * G / omega**2
    amplitudes = limit * np.array([0.95, 1.5])
    system = block(limit, omega, mu)

    @jax.jit
    @jax.vmap
    def run(amplitude):
        def place(motion):
            moved = dataclasses.replace(system, motions=(motion,))
            q, u = system.initial_state()
            u = u.at[1].set(motion.amplitude[0] * omega)
            sol = jaxnsd.simulate(moved, Moreau(), q, u, end, 5e-4)
            return sol.q[-1, 1], sol.q[:, 1]

        slopes, path = jax.grad(place, has_aux=True)(Shaking(amplitude * jnp.array([1.0, 0.0, 0.0]), omega))
        return path, slopes.amplitude[0]

    path, slope = run(jnp.asarray(amplitudes))
    t = np.linspace(0, end, path.shape[1])
    assert_allclose(path[0], amplitudes[0] * np.sin(omega * t), atol=2e-4)
    assert_allclose(slope[0], np.sin(omega * end), rtol=5e-3)

    def slides(a, t):
        first = np.arcsin(mu * G / (a * omega**2)) / omega
        since = np.maximum(t - first, 0.0)
        held = np.minimum(t, first)
        return a * np.sin(omega * held) + a * omega * np.cos(omega * first) * since - 0.5 * mu * G * since**2

    assert path[1, -1] > amplitudes[1] * np.sin(omega * end) + 0.005  # it is ahead of the table
    assert_allclose(path[1], slides(amplitudes[1], t), atol=2e-4)
    near = slides(amplitudes[1] + np.array([-1e-6, 1e-6]), end)
    assert_allclose(slope[1], (near[1] - near[0]) / 2e-6, rtol=1e-2)


# ------------------------------------------------------------------------------------------------------------------- files
GRIPPER = """<mujoco><compiler angle="radian"/><option gravity="0 0 -9.81"/>
  <worldbody>
    <geom name="floor" type="plane" size="1 1 1" pos="0 0 -2"/>
    <body name="target" mocap="true" pos="0.1 0.2 0.3" quat="0.9 0.1 0.3 0.2">
      <geom name="handle" size="0.05" pos="0 0.1 0"/><site name="tip" pos="0.1 0 0.2"/>
      <body name="lid" pos="0 0 0.4"><joint name="lid" axis="0 1 0.2"/><geom name="lid" size="0.06" pos="0.3 0 0"/></body>
    </body>
    <body name="fixture" pos="0 0 1"><geom name="block" type="box" size="0.1 0.1 0.1"/></body>
    <body name="gripper" pos="0.5 0.2 0.3"><freejoint name="gripper"/><geom name="palm" size="0.1" mass="1"/>
      <body name="finger" pos="0 0 0.2"><joint name="finger" axis="1 0 0"/><geom name="nail" size="0.03"/></body></body>
  </worldbody>
  <equality><weld name="grasp" body1="target" body2="gripper"/></equality>
  <sensor><framepos name="place" objtype="site" objname="tip"/><framequat name="turn" objtype="xbody" objname="target"/></sensor>
  <keyframe><key name="home" qpos="0.1 0.5 0.2 0.3 1 0 0 0 0.3"/>
    <key name="away" qpos="0.1 0.5 0.2 0.3 1 0 0 0 0.3" mpos="1 0 0"/></keyframe>
</mujoco>"""
HOME = GRIPPER.replace('<key name="away"', '<key name="other"').replace(' mpos="1 0 0"', "")


def places(numbers, t):
    """A place for each time, from lists of them."""
    times, positions, quaternions = numbers
    k = jnp.argmin(jnp.abs(times - t))
    return positions[k], quaternions[k]


def test_bodies_of_motion_capture_are_where_mujoco_has_them():
    """Poses, sites, sensors, gaps and what is left of a weld, at places at random."""
    mujoco = pytest.importorskip("mujoco")
    model = mujoco.MjModel.from_xml_string(HOME)
    rng, data, n = np.random.default_rng(2), mujoco.MjData(model), 5
    times, positions, quaternions = np.arange(n) * 1.0, rng.standard_normal((n, 3)), rng.standard_normal((n, 4))
    motion = jax.tree_util.Partial(places, tuple(map(jnp.asarray, (times, positions, quaternions))))
    system = bodies.from_mujoco(model, motion={"target": motion})
    assert not system.left_out
    _, q, _ = states(system, n, 3)

    @evaluated
    @jax.vmap
    def asked(t, q):
        u = jnp.zeros((model.nv,))
        return system.pose(t, q), system.site_pose(t, q).position, system.sensors(t, q, u), system.constraint(t, q), system.gap(t, q)

    pose, sites, sensors, opening, gaps = asked(jnp.asarray(times), q)
    pairs = [tuple(mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_GEOM, name) for name in contact[:2]) for contact in system.contacts]
    for k in range(n):
        data.qpos, data.mocap_pos[0], data.mocap_quat[0] = q[k], positions[k], quaternions[k]
        mujoco.mj_forward(model, data)
        assert_allclose(pose.position[k], data.xpos[1:], atol=1e-12)
        assert_allclose(pose.rotation[k], data.xmat[1:].reshape(-1, 3, 3), atol=1e-12)
        assert_allclose(sites[k], data.site_xpos, atol=1e-12)
        assert_allclose(sensors["place"][k], data.sensor("place").data, atol=1e-12)
        assert_allclose(np.abs(np.dot(sensors["turn"][k], data.sensor("turn").data)), 1.0, atol=1e-12)
        violated = data.efc_pos[data.efc_type == mujoco.mjtConstraint.mjCNSTR_EQUALITY]
        assert_allclose(np.linalg.norm(opening[k, :3]), np.linalg.norm(violated[:3]), rtol=1e-10)
        assert_allclose(np.linalg.norm(opening[k, 3:]), 2 * np.linalg.norm(violated[3:]), rtol=1e-10)  # of MuJoCo sin(angle / 2)
        assert_allclose(gaps[k], [mujoco.mj_geomDistance(model, data, *pair, 100.0, np.zeros(6)) for pair in pairs], atol=1e-9)
    touching = {frozenset(c[:2]) for c in system.contacts}
    assert frozenset(("floor", "handle")) not in touching and frozenset(("handle", "nail")) in touching


def test_without_a_motion_a_body_stays_where_it_is():
    """Nothing is left out; and a motion that is none is the same."""
    pytest.importorskip("mujoco")
    still = bodies.from_mjcf(HOME, strict=True)
    position = (0.1, 0.2, 0.3)
    constant = bodies.from_mjcf(HOME, strict=True, motion={"target": lambda t: position, "fixture": lambda t: ((0, 0, 1.0), (2, 0, 0, 0))})
    assert still.contacts == constant.contacts
    assert not still.motions and still.scleronomic and still.where("target") == constant.where("target")
    for a, b in zip(still.initial_state("home"), constant.initial_state("home"), strict=True):
        assert_allclose(a, b, rtol=0, atol=0)

    @evaluated
    @jax.vmap
    def all_of(t, q, u):
        names = ("h", "gap_velocity", "tangential_velocity", "constraint_velocity", "sensors")
        return [[getattr(system, name)(t, q, u) for name in names] for system in (still, constant)]

    for a, b in zip(*map(jax.tree.leaves, all_of(*states(still, 3, 4))), strict=True):
        assert_allclose(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
def test_a_start_follows_the_place_at_its_time():
    """The projection of a keyframe moves what is welded to where the motion begins, and gives it its velocity."""
    pytest.importorskip("mujoco")
    system = bodies.from_mjcf(HOME, strict=True, motion={"target": lambda t: (0.1 + 0.5 * t, 0.2, 0.4)})
    with pytest.warns(UserWarning, match="the projection has moved"):
        q, u = system.initial_state("home", project=True)
    assert_allclose(system.constraint(0.0, q), 0, atol=1e-12)
    assert_allclose(system.constraint_velocity(0.0, q, u), 0, atol=1e-12)
    assert_allclose(u[1], 0.5, atol=1e-12)
    jaxnsd.check(system, Moreau(), q, u, 1e-2, 1e-3)


@pytest.mark.parametrize("scheme", [Moreau(), pytest.param(Lobatto(2), marks=pytest.mark.slow)], ids=lambda scheme: scheme.name)
def test_what_is_welded_follows(scheme):
    """To round-off at all nodes, with all of its velocity."""
    start = jnp.array([0.1, 0.2, 0.3])

    def motion(t):
        turned = jnp.stack([jnp.cos(t * t), jnp.sin(t * t) * 0.6, 0 * t, jnp.sin(t * t) * 0.8])
        return start + 0.2 * jnp.stack([1 - jnp.cos(3 * t), t * t, 0 * t]), turned

    system = bodies.assemble(
        [Body("target", joints=Free(motion=motion)), Body("hand", 0.5, (0.01, 0.02, 0.025), (0.02, 0, 0), position=(0.2, 0.2, 0.3))],
        loops=Weld("target", "hand"),
    )
    q, u = system.initial_state()
    sol = jaxnsd.simulate(system, scheme, q, u, 0.5, 5e-3)
    assert np.all(sol.outcome == 0)

    @evaluated
    @jax.vmap
    def look(t, q):
        pose = system.pose(t, q)
        return system.constraint(t, q), pose.position, pose.rotation

    opening, x, R = look(sol.t, sol.q)
    assert_allclose(opening, 0, atol=1e-11)
    assert_allclose(x[:, 1], x[:, 0] + 0.1 * R[:, 0, :, 0], atol=1e-11)
    assert np.linalg.norm(x[-1, 0] - start) > 0.1


# ------------------------------------------------------------------------------------------------------------------ refusals
def moved(motion, **more):
    return bodies.assemble([Body("ball", 1.0, shapes=Sphere(0.1)), table(motion)], **more)


def of_file(motion, text=HOME):
    pytest.importorskip("mujoco")
    return bodies.from_mjcf(text, motion=motion)


WRONG = {
    "no function": (TypeError, r"motion of .*'table' must be a function of \(t\), got 3", lambda: moved(3.0)),
    "of two": (TypeError, r"motion of .*'table' must take \(t\)", lambda: moved(lambda t, q: q)),
    "a number": (
        ValueError,
        r"the motion of the body 'table' must give a position \(3,\) in m, or a position and .*, got shape \(\)",
        lambda: moved(lambda t: t),
    ),
    "turned by three": (ValueError, r"got shape \(3,\) and shape \(3,\)", lambda: moved(lambda t: (jnp.zeros(3), jnp.ones(3)))),
    "text": (TypeError, "the motion of the body 'table' must give a position .*, got 'up'", lambda: moved(lambda t: "up")),
    "what fails": (ValueError, r"the motion of the body 'table' failed \(test_prescribed.py, line", lambda: moved(lambda t: {}["x"])),
    "joint of three": (
        ValueError,
        r"the motion of the joint 'arm' must give a number, got shape \(3,\)",
        lambda: bodies.assemble([Body("ball", 1.0, shapes=Sphere(0.1)), Body("arm", joints=Revolute(motion=lambda t: jnp.zeros(3)))]),
    ),
    "driven": (
        ValueError,
        "a motor takes a joint whose motion is not prescribed, got 'table'",
        lambda: moved(lambda t: jnp.zeros(3), motors=Motor("table", (1.0,) * 6)),
    ),
    "on the floor": (
        ValueError,
        "must move against each other, but for what is prescribed, got 'floor' and 'top'",
        lambda: bodies.assemble(
            [Body("ball", 1.0, shapes=Sphere(0.1)), table(lambda t: jnp.zeros(3))], Plane(name="floor"), contacts=[Pair("floor", "top")]
        ),
    ),
    "on a parent": (
        ValueError,
        "'table' is free",
        lambda: bodies.assemble([Body("ball", 1.0, shapes=Sphere(0.1)), table(lambda t: jnp.zeros(3), parent="ball")]),
    ),
    "names": (TypeError, "motion must be functions of t by names of bodies", lambda: of_file(lambda t: jnp.zeros(3))),
    "unknown": (KeyError, "did you mean 'target'", lambda: of_file({"targte": lambda t: jnp.zeros(3)})),
    "world": (KeyError, "no body .*'world'", lambda: of_file({"world": lambda t: jnp.zeros(3)})),
    "hangs": (ValueError, "got 'lid', which hangs on a joint or a body", lambda: of_file({"lid": lambda t: jnp.zeros(3)})),
    "of nothing": (TypeError, r"from_mjcf: the motion of the body 'target' must take \(t\)", lambda: of_file({"target": lambda: 1})),
}


@pytest.mark.parametrize("name", list(WRONG))
def test_wrong_motions_are_refused(name):
    error, text, made = WRONG[name]
    with pytest.raises(error, match=text):
        made()


def test_a_start_that_is_wrong_is_refused():
    """No number where a run begins; a motion that reads what is differentiated; a weld to where the body is not."""
    pytest.importorskip("mujoco")
    system = moved(lambda t: jnp.stack([t, t / 0, -1.0]))
    with pytest.raises(ValueError, match=r"the motion of the body 'table' must be finite at the initial state"):
        jaxnsd.check(system, Moreau(), *system.initial_state(), 1e-2, 1e-3)

    def height(a):
        system = moved(lambda t: jnp.stack([0 * t, 0 * t, a - 1 + t]))
        return jaxnsd.simulate(system, Moreau(), *system.initial_state(), 1e-2, 1e-3).q[-1, 2]

    with pytest.raises(TypeError, match=r"the motion of the body 'table' must be .* a field, or of a control or motion an argument"):
        jax.grad(height)(0.1)
    system = of_file({"target": lambda t: (0.1, 0.2, 0.4 + t)})
    with pytest.raises(ValueError, match=r"constraint must vanish .* got -0.1 in row 2"):
        jaxnsd.check(system, Moreau(), *system.initial_state(), 1e-2, 1e-3)


def test_keyframes_that_put_a_body_elsewhere():
    """They are named, where no motion says where it is."""
    pytest.importorskip("mujoco")
    with pytest.warns(UserWarning, match="not taken: the place of the mocap body 'target' in keyframes, which needs a motion"):
        bodies.from_mjcf(GRIPPER)
    system = bodies.from_mjcf(GRIPPER, strict=True, motion={"target": lambda t: (1.0 + t, 0.0, 0.0)})
    q, _ = system.initial_state("away")
    assert_allclose(q[0], 0.1)
