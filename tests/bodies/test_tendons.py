"""Tendons against MuJoCo, whose lengths, moments and forces they have, and against closed forms: strings, pulleys, dry friction."""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from little_systems import GRAVITY, quick
from numpy.testing import assert_allclose, assert_array_equal

from jaxnsd import Lobatto, Moreau, bodies, simulate
from jaxnsd.bodies import Body, Motor, Prismatic, Revolute, Sensor, Site, Tendon

try:
    import mujoco
except ImportError:
    mujoco = None


def known(name):
    """Whether this version of MuJoCo has such numbers of tendons."""
    return hasattr(getattr(mujoco, "MjModel", None), f"tendon_{name}")


#: Along joints, through sites of bodies that float, turn and stand still, over pulleys; with every law, and servos that pull at some.
MODEL = """
<mujoco>
  <compiler angle="radian"/>
  <option gravity="0.5 -1 -9"/>
  <worldbody>
    <site name="ground" pos="0.3 0.1 0"/>
    <body name="trunk" pos="0 0 1"><freejoint/><geom type="box" size="0.2 0.1 0.15"/><site name="top" pos="0 0.05 0.2"/>
      <site name="side" pos="0.2 0 0.1"/>
      <body name="thigh" pos="0.2 0.1 -0.1"><joint name="hip" type="ball"/><geom type="capsule" size="0.05 0.2"/>
        <site name="t" pos="0.1 0 0"/>
        <body name="shank" pos="0 0 -0.4"><joint name="knee" axis="0 1 0" ref="0.3"/><joint name="stretch" type="slide" axis="0 0.2 1"/>
          <geom type="capsule" size="0.04 0.15"/><site name="s" pos="0.05 0.02 -0.1"/></body></body></body>
    <body name="cart" pos="1 0 0"><joint name="rail" type="slide" axis="1 0 0"/><geom size="0.1"/><site name="c" pos="0 0 0.2"/></body>
  </worldbody>
  <tendon>
    <fixed name="sum" limited="true" range="-0.2 0.1" stiffness="3" springlength="-0.05 0.07" damping="0.4" frictionloss="0.3">
      <joint joint="knee" coef="0.5"/><joint joint="rail" coef="-2"/></fixed>
    <fixed name="plain"><joint joint="stretch" coef="3"/></fixed>
    <spatial name="line" limited="true" range="0.2 0.9" stiffness="20" damping="2" frictionloss="0.1" ARMATURE>
      <site site="ground"/><site site="side"/><site site="top"/><site site="s"/></spatial>
    <spatial name="tackle" limited="true" range="0 2.1" stiffness="5" springlength="0.3 0.4">
      <site site="t"/><site site="s"/><pulley divisor="2"/><site site="s"/><site site="c"/><pulley divisor="3"/><site site="c"/>
      <site site="ground"/></spatial>
  </tendon>
  <actuator>
    <motor name="turn" joint="knee" gear="2"/>
    <position name="servo" tendon="tackle" kp="3" kv="0.5" gear="1.5" forcerange="-4 4"/>
    <motor name="pull" tendon="sum" gear="0.5"/>
    <motor name="reel" tendon="line" gear="-2" ctrllimited="true" ctrlrange="-1 1"/>
  </actuator>
  <sensor>
    <tendonpos tendon="tackle"/><tendonvel tendon="line"/><actuatorpos actuator="servo"/><actuatorvel actuator="reel"/>
  </sensor>
</mujoco>
""".replace("ARMATURE", 'armature="0.7"' if known("armature") else "")

of_files = pytest.mark.skipif(mujoco is None, reason="files need mujoco")


@pytest.fixture(scope="module")
def system():
    pytest.importorskip("mujoco")
    return bodies.from_mjcf(MODEL, contacts="none", control=np.array([0.3, 0.6, -0.4, 2.0]), limit_restitution=0.4, strict=True)


def moments(model, data):
    """(n_t, n_u): sparse from some version on, also where a model asks for dense matrices."""
    if data.ten_J.size == model.ntendon * model.nv:
        return data.ten_J.reshape(model.ntendon, model.nv)
    of = model if hasattr(model, "ten_J_rownnz") else data
    J = np.zeros((model.ntendon, model.nv))
    mujoco.mju_sparse2dense(J, data.ten_J, of.ten_J_rownnz, of.ten_J_rowadr, of.ten_J_colind)
    return J


@of_files
def test_everything_is_as_in_mujoco(system):
    """Lengths, moments, gaps, mass matrix, all forces, sensors; and those that follow from each other."""
    model = mujoco.MjModel.from_xml_string(MODEL)
    data, rng = mujoco.MjData(model), np.random.default_rng(0)

    def of(q, u):
        free = system.replace({"line.armature": 0.0} if known("armature") else {})
        rate = jax.jvp(lambda q: system.momentum(0.0, q, u), (q,), (system.q_dot(0.0, q, u),))[1]
        return {
            "length": system.tendon_length(0.0, q),
            "moment": system.tendon_moment(0.0, q),
            "gap": system.gap(0.0, q),
            "rate": system.gap_velocity(0.0, q, u),
            "rate by autodiff": jax.jvp(lambda q: system.gap(0.0, q), (q,), (system.q_dot(0.0, q, u),))[1],
            "W_N": system.W_N(0.0, q),
            "M": system.M(0.0, q),
            "h": system.h(0.0, q, u),
            "b": system.b(0.0, q, u) - rate,
            "without": free.h(0.0, q, u),
            "p": system.momentum(0.0, q, u),
            "T": system.kinetic_energy(0.0, q, u),
            "slip": system.dry_velocity(0.0, q, u),
            "W_D": system.W_D(0.0, q),
            "sensors": system.sensors(0.0, q, u),
        }

    of = quick(of)
    for _ in range(3):
        q, u = 0.7 * rng.standard_normal(model.nq), rng.standard_normal(model.nv)
        for a in (3, 7):
            q[a : a + 4] /= np.linalg.norm(q[a : a + 4])
        data.qpos, data.qvel, data.ctrl = q, u, np.asarray(system.control)
        mujoco.mj_forward(model, data)
        J = moments(model, data)
        M = np.zeros((model.nv, model.nv))
        for column, unit in zip(M, np.eye(model.nv), strict=True):
            mujoco.mj_mulM(model, data, column, unit)
        assert np.all(np.abs(J).max(axis=1) > 0.1) and np.abs(data.qfrc_passive).max() > 1 and np.abs(data.qfrc_actuator).max() > 0.3
        found = of(q, u)
        assert_allclose(found["length"], data.ten_length, rtol=1e-13, atol=1e-13)
        assert_allclose(found["moment"], J, atol=1e-13)
        assert_allclose(found["M"], M, atol=1e-12)
        assert_allclose(found["h"], data.qfrc_passive + data.qfrc_actuator - data.qfrc_bias, atol=1e-11)
        assert np.abs(found["h"] - found["without"]).max() > 1e-2 or not known("armature"), "the inertia of a tendon has an effect"
        assert_allclose(found["b"], found["h"], atol=1e-11)
        assert_allclose(found["p"], M @ u, atol=1e-12)
        assert_allclose(found["T"], 0.5 * u @ M @ u, rtol=1e-12)
        low, high = model.tendon_range.T
        gaps = np.stack([data.ten_length - low, high - data.ten_length], axis=1).reshape(-1)
        # Of a path through sites there is no lower limit of zero.
        rows = [0, 1, 4, 5, 7]
        assert_allclose(found["gap"], gaps[rows], atol=1e-13)
        signed = np.repeat(J, 2, axis=0) * np.tile([1.0, -1.0], 4)[:, None]
        assert_allclose(found["W_N"].T, signed[rows], atol=1e-13)
        assert_allclose(found["rate"], signed[rows] @ u, atol=1e-12)
        assert_allclose(found["rate by autodiff"], found["rate"], atol=1e-12)
        assert_allclose(found["W_D"].T, J[[0, 2]], atol=1e-13)
        assert_allclose(found["slip"], J[[0, 2]] @ u, atol=1e-12)
        assert_allclose(np.stack(list(found["sensors"].values())), data.sensordata, atol=1e-12)
    assert [str(contact) for contact in system.contacts][-2:] == ["line and upper limit", "tackle and upper limit"]
    assert_array_equal(system.dry_friction, [0.3, 0.1])
    assert_array_equal(system.e_N(), np.full(5, 0.4))
    assert system.tendon_names == ("sum", "plain", "line", "tackle") and system.where("line") == 2


@of_files
def test_flags_disable_laws():
    """As they do in MuJoCo; sensors read the lengths all the same."""
    laws = {"limit": "limits", "frictionloss": "dry_friction", "spring": "tendon stiffness", "damper": "tendon damping"}
    for flag, law in laws.items():
        flagged = bodies.from_mjcf(MODEL.replace("<option ", f"<option><flag {flag}='disable'/></option><option ", 1), contacts="none")
        there = {
            "limits": bool(flagged.structure.limits),
            "dry_friction": bool(flagged.structure.dry),
            **{word: word in flagged.structure.has for word in ("tendon stiffness", "tendon damping")},
        }
        assert {name for name, found in there.items() if not found} == {law}


@of_files
def test_what_wraps_around_geometry_is_left_out():
    """By name; what acts on it is named, too. Other laws than there are here are named with the tendon that is taken."""
    wraps = MODEL.replace('<site site="t"/><site site="s"/><pulley', '<site site="t"/><geom geom="ball"/><site site="s"/><pulley').replace(
        '<geom size="0.1"/>', '<geom name="ball" size="0.1"/>'
    )
    bound = ("bound of the motors' forces of the tendon 'plain'",) if known("actfrclimited") else ()
    if bound:
        wraps = wraps.replace('<fixed name="plain">', '<fixed name="plain" actuatorfrclimited="true" actuatorfrcrange="-1 1">')
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        system = bodies.from_mjcf(wraps, contacts="none")
    assert len(caught) == 1
    assert system.tendon_names == ("sum", "plain", "line")
    assert system.left_out == (
        *bound,
        "the tendon 'tackle', which wraps around geometry",
        "the actuator 'servo', which acts neither on joints nor on a tendon",
    )
    assert system.sensors_left_out == ("the tendonpos 'sensor_0'", "the actuatorpos 'sensor_2'")


@of_files
def test_what_holds_a_tendon_leaves_its_limits_and_friction_nothing_to_do():
    """As grippers have it, at the limit itself: rows that no velocity feels would leave the contact problem without one solution."""
    for offset, beyond in ((-0.1, ()), (0.3, ("limit, beyond which an equality holds it, of the tendon 'sum'",))):
        held = MODEL.replace("<actuator>", f"<equality><tendon tendon1='sum' polycoef='{offset} 0 0 0 0'/></equality><actuator>", 1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = bodies.from_mjcf(held, contacts="none")
        assert found.left_out == beyond
        assert found.structure.limited == ["line", "tackle"] and found.structure.rubbed == ["line"]
        assert found.constraint(0.0, found.initial_state()[0]).shape == (1,)


# ------------------------------------------------------------------------------------------------------------- of one cord
def run(system, **options):
    return simulate(system, Moreau(), *system.initial_state(), **{"t1": 0.3, "dt": 1e-2} | options).raise_if_failed()


@pytest.fixture(scope="module")
def weights():
    """Two weights on a rope over pulleys, which has all laws; replaced by others, all of them are one program."""
    of = [("left", 3.0, -0.1), ("right", 1.0, 0.1)]
    hung = [Body(name, m, (1e-3,) * 3, joints=Prismatic((0, 0, 1), name=name), position=(x, 0, -1)) for name, m, x in of]
    sites = [Site(name, name) for name, *_ in of] + [Site(f"{name} pulley", "world", (x, 0, 0)) for name, _, x in of]
    path = [("left", "left pulley"), ("right pulley", "right")]
    laws = {"limits": (0, 2.0), "stiffness": 1.0, "damping": 1.0, "dry_friction": 1.0}
    system = bodies.assemble(hung, sites=sites, tendons=Tendon("rope", sites=path, divisors=(1, 1), **laws))
    assert [str(contact) for contact in system.contacts] == ["rope and upper limit"]
    return system.replace({"rope.stiffness": 0.0, "rope.damping": 0.0, "rope.dry_friction": 0.0})


def test_weights_over_pulleys(weights):
    """Atwood's machine, (m1 - m2) g / (m1 + m2), and a tackle, whose rope pulls at one weight with half of its tension: exact."""
    m1, m2, dt = 3.0, 1.0, 1e-2
    for divisor in (1.0, 2.0):
        slack = np.array([-1.0, -1.0 / divisor])
        sol = run(weights.replace({"rope.divisors": (1.0, divisor), "rope.limits": (0.0, -slack.sum())}))
        tension = GRAVITY * (1 + 1 / divisor) / (1 / m1 + 1 / (m2 * divisor**2))
        acceleration = np.array([tension / m1, tension / (m2 * divisor)]) - GRAVITY
        assert abs(acceleration[0]) > 1
        assert_allclose(sol.u, np.asarray(sol.t)[:, None] * acceleration, atol=1e-12)
        assert_allclose(sol.P_N[:, 0], tension * dt, rtol=1e-12)


def test_dry_friction_of_a_tendon_sticks(weights):
    """Two equal weights lengthen a rope by 2 m g / m = 2 g - 2 d / m, or not at all where the friction d is more than m g."""
    equal = weights.replace({"left.mass": 1.0, "rope.limits": (0.0, 9.0)})
    sol = run(equal.replace({"rope.dry_friction": 10.0}))
    assert np.abs(sol.u).max() < 1e-13
    assert_allclose(sol.P_D[:, 0], -GRAVITY * 1e-2, rtol=1e-12)
    sol = run(equal.replace({"rope.dry_friction": 4.0}))
    assert_allclose(sol.u, -(GRAVITY - 4.0) * np.asarray(sol.t)[:, None] * np.ones(2), atol=1e-12)


def test_springs_and_jerks_have_their_derivatives(weights):
    """Of a spring with a dead band, against differences; of a rope that comes taut while both weights fall, against closed forms."""

    @jax.jit
    @functools.partial(jax.value_and_grad, has_aux=True)
    def end(numbers):
        k, slack, upper, m = numbers
        more = {"rope.stiffness": k, "rope.spring_length": jnp.stack([1.0, slack]), "rope.limits": jnp.stack([0.0, upper]), "left.mass": m}
        system = weights.replace(more)
        sol = simulate(system, Moreau(), *system.initial_state(), t1=0.3, dt=2e-3)
        return sol.q[-1, 0], system.tendon_length(0.0, sol.q[-1])[0]

    # l'' = 2 g - 2 k (l - 2) / m, from rest where it is slack.
    k, numbers = 50.0, np.array([50.0, 2.0, 9.0, 1.0])
    (_, length), slopes = end(numbers)
    assert_allclose(length - 2.0, GRAVITY / k * (1 - np.cos(0.3 * np.sqrt(2 * k))), rtol=1e-3)
    for i, step in enumerate((1e-4, 1e-6)):
        low, high = (end(numbers + sign * step * np.eye(4)[i])[0][0] for sign in (-1, 1))
        assert_allclose(slopes[i], (high - low) / (2 * step), rtol=1e-6)

    def closed(numbers):
        _, _, upper, m = numbers
        jerk = jnp.sqrt((upper - 2.0) / GRAVITY)
        P, rest = 2 * GRAVITY * jerk / (1 / m + 1), 0.3 - jerk
        acceleration = 2 * GRAVITY / (1 / m + 1) / m - GRAVITY
        return -0.5 * GRAVITY * jerk**2 + (P / m - GRAVITY * jerk) * rest + 0.5 * acceleration * rest**2

    numbers = np.array([0.0, 2.0, 2.2, 3.0])
    (value, length), slopes = end(numbers)
    assert_allclose(length, 2.2, atol=5e-3)
    assert_allclose(value, closed(numbers), atol=3e-3)
    assert_allclose(slopes[2:], jax.grad(closed)(jnp.asarray(numbers))[2:], rtol=2e-2)


def test_dead_band_and_damper(weights):
    """Within the band no spring holds two equal weights, but a damper does: it lets them come to their speed by 1 / (1 + 80 dt) a step."""
    numbers = {"rope.limits": (0.0, 9.0), "rope.stiffness": 50.0, "rope.spring_length": (1.0, 9.0), "rope.damping": 40.0}
    sol = run(weights.replace({"left.mass": 1.0, **numbers}))
    left = 1 / (1 + 80 * (sol.t[1] - sol.t[0])) ** (len(sol.t) - 1)
    assert_allclose(sol.u[-1], -GRAVITY / 80 * (1 - left), rtol=1e-10)


@pytest.fixture(scope="module")
def ball():
    """A ball on a string of 0.8 m, in a plane and without weight."""
    sites = [Site("hook", "world"), Site("eye", "ball")]
    string = Tendon("string", sites=("hook", "eye"), limits=(0.0, 0.8))
    body = Body("ball", 0.5, (1e-3,) * 3, joints=bodies.planar("ball", (0, 1, 0)))
    return bodies.assemble(body, gravity=(0, 0, 0), sites=sites, tendons=string, limit_restitution=0.5)


def test_ball_on_a_string(ball):
    """Slack it flies straight, also through the hook; taut it throws back what is along the string, then flies on; along a circle the
    tension is m v^2 / r, and what a step loses is of second order.
    """
    start = np.array([0.1, -0.3, 0.0]), np.array([-1 / 3, 1.0, 0.0])
    sol = simulate(ball, Moreau(), *start, t1=2.0, dt=5e-3)
    length, u = np.linalg.norm(sol.q[:, :2], axis=1), np.asarray(sol.u)
    hit = int(np.argmax(np.asarray(sol.P_N[:, 0]) > 0))
    assert length[: hit + 1].min() < 1e-2 and np.abs(u[: hit + 1] - start[1]).max() == 0
    assert_allclose(length[hit], 0.8, atol=6e-3)
    assert_allclose(u[hit + 1], -0.5 * start[1], atol=1e-12)
    ends = []
    for dt in (4e-3, 2e-3):
        sol = simulate(ball, Moreau(), np.array([0.0, 0.8, 0.0]), np.array([2.0, 0.0, 0.0]), n_steps=round(1 / dt), dt=dt)
        ends.append([np.linalg.norm(sol.q[-1, :2]) - 0.8, np.linalg.norm(sol.u[-1]) - 2.0, np.mean(sol.P_N) / dt - 0.5 * 2.0**2 / 0.8])
        assert np.all(np.asarray(sol.P_N)[1:] > 0)
    assert_allclose(np.divide(*ends), 2.0, rtol=0.05)
    assert np.abs(ends[1]).max() < 1e-2


@pytest.mark.slow
def test_taut_string_keeps_its_length(ball):
    """With a scheme on position level, to the last bit, and the energy too; the angle converges with its order."""
    angles = []
    for dt in (1e-2, 5e-3):
        sol = simulate(ball, Lobatto(2), np.array([0.0, 0.8, 0.0]), np.array([2.0, 0.0, 0.0]), t1=1.0, dt=dt)
        assert_allclose(np.linalg.norm(sol.q[:, :2], axis=1), 0.8, atol=1e-14)
        assert_allclose(np.linalg.norm(sol.u[:, :2], axis=1), 2.0, atol=1e-13)
        angles.append(np.arctan2(sol.q[-1, 0], sol.q[-1, 1]) - 2.5)
    assert_allclose(angles[0] / angles[1], 4.0, rtol=1e-2)


def test_fixed_tendon_of_one_joint_is_a_limit_of_it():
    """A slider with limits, one with a tendon that has them, and one with both: the same motion to and fro."""
    limits = np.array([-0.1, 0.2])
    sliders = [
        Body(name, 1.0, (1e-3,) * 3, joints=Prismatic((1, 0, 0), name=name, limits=limits if name != "tied" else None))
        for name in ("limited", "tied", "both")
    ]
    cords = [Tendon(name, name, (2.0,), limits=2 * limits) for name in ("tied", "both")]
    system = bodies.assemble(sliders, tendons=cords, limit_restitution=0.5)
    assert len(system.contacts) == 8
    sol = simulate(system, Moreau(), np.zeros(3), np.ones(3), t1=1.5, dt=1e-2).raise_if_failed()
    assert_allclose(sol.u[-1, 0], 0.25, rtol=1e-10)
    for k in (1, 2):
        assert_allclose(sol.q[:, k], sol.q[:, 0], atol=1e-11)


def test_winch():
    """Tendons of what is driven: lengths change with time, and their inertia, spring and damper are in the equations of motion."""
    winch = Body("winch", 1.0, (1e-3,) * 3, joints=Prismatic((1, 0, 0), motion=lambda t: 0.3 * jnp.sin(2 * t)))
    arm = Body("arm", 1.0, (0.02,) * 3, center=(0.3, 0, 0), joints=(Revolute((0, 0, 1), name="turn"), Prismatic((1, 0, 0), name="along")))
    sites = [Site("drum", "winch", (0.5, 0.4, 0.1)), Site("tip", "arm", (0.4, 0, 0))]
    laws = {"limits": (0.1, 0.7), "dry_friction": 0.3, "stiffness": 5.0, "damping": 0.7, "armature": 0.8}
    system = bodies.assemble([winch, arm], sites=sites, tendons=Tendon("rope", sites=("drum", "tip"), **laws))
    assert_allclose(system.tendons.spring_length, np.full((1, 2), system.tendon_length(0.0, jnp.zeros(2))[0]), rtol=1e-13)

    def of(t, q, u):
        lagrangian = jax.grad(lambda q: system.kinetic_energy(t, q, u) - system.potential_energy(t, q))(q) + system.force(t, q, u)
        p = jax.grad(lambda u: system.kinetic_energy(t, q, u))(u)
        rate = jax.jvp(lambda t, q: system.momentum(t, q, u), (t, q), (jnp.ones(()), u))[1]
        gap = jax.jvp(system.gap, (t, q), (jnp.ones(()), u))[1]
        own = system.b(t, q, u), system.h(t, q, u), system.momentum(t, q, u), system.gap_velocity(t, q, u), system.dry_velocity(t, q, u)
        return own, (lagrangian, lagrangian - rate, p, gap, gap[:1])

    own, derived = quick(of)(jnp.asarray(0.4), jnp.array([0.3, 0.1]), jnp.array([0.5, -0.2]))
    for closed, of_energies in zip(own, derived, strict=True):
        assert_allclose(closed, of_energies, atol=1e-13)


def test_names(system):
    """Of numbers: what a tendon has, and what one has none of; a name means a motor before a tendon, and that before a site."""
    other = system.replace({"line.limits": (0.3, 0.8), "sum.coefficients": (1.0, 2.0), "tackle.divisors": (1.0, 4.0, 5.0)})
    assert_array_equal(other.limits, [[-0.2, 0.1], [0.3, 0.8], [0.0, 2.1]])
    assert_array_equal(other.tendons.coefficients, [1.0, 2.0, 3.0])
    other = system.replace({"line.dry_friction": 7.0, "sum.limit_restitution": 0.2, "sum.spring_length": (0.0, 1.0)})
    assert_array_equal(other.dry_friction, [0.3, 7.0])
    assert_array_equal(other.limit_restitution, [0.2, 0.4, 0.4])
    for wrong in ("plain.limits", "tackle.dry_friction"):
        with pytest.raises(KeyError, match="has no"):
            system.replace({wrong: 0.0})
    with pytest.raises(ValueError, match="must not be negative"):
        system.replace({"line.dry_friction": -1.0})
    outside = quick(lambda system: system._outside(0.0, *system.initial_state()))
    assert not outside(system)
    assert outside(system.replace({"tackle.limits": (0.5, 2.0)})), "that path has no lower limit"


def test_what_is_no_tendon():
    one = Body("a", 1.0, (1, 1, 1), joints=Prismatic((1, 0, 0), name="a"))
    sites = [Site("s", "a"), Site("t", "world")]

    def tied(*cords, **options):
        return bodies.assemble(one, sites=sites, tendons=cords, **options)

    cases = [
        (ValueError, "must have joints or sites", [Tendon("x")], {}),
        (ValueError, "must have joints or sites", [Tendon("x", "a", sites=("s", "t"))], {}),
        (ValueError, "a coefficient for each joint, 1 of them, got 2", [Tendon("x", "a", (1.0, 2.0))], {}),
        (ValueError, "a divisor for each branch, 1 of them, got 2", [Tendon("x", sites=("s", "t"), divisors=(1, 2))], {}),
        (ValueError, "through two sites or more", [Tendon("x", sites=[("s", "t"), ("t",)])], {}),
        (KeyError, "no site has the name 'u'", [Tendon("x", sites=("s", "u"))], {}),
        (KeyError, "no joint has the name 'b'", [Tendon("x", "b")], {}),
        (ValueError, "more than once", [Tendon("x", "a"), Tendon("x", "a")], {}),
        (TypeError, "name of a Tendon must be text", [Tendon("", "a")], {}),
        (TypeError, "tendons must be Tendon", [Site("u", "a")], {}),
        (ValueError, "limits of 'x' must be", [Tendon("x", "a", limits=(1.0, 0.0))], {}),
        (ValueError, "spring_length of 'x' must be", [Tendon("x", "a", spring_length=(1.0, 0.0))], {}),
        (ValueError, "dry_friction of the tendon 'x' must not be negative", [Tendon("x", "a", dry_friction=-1.0)], {}),
        (ValueError, "must have a joint or a tendon", [Tendon("x", "a")], {"motors": Motor()}),
        (ValueError, "must have a joint or a tendon", [Tendon("x", "a")], {"motors": Motor("a", tendon="x")}),
        (ValueError, "must have 1 gears", [Tendon("x", "a")], {"motors": Motor(tendon="x", gear=(1, 2))}),
        (KeyError, "no tendon has the name 'y'", [Tendon("x", "a")], {"motors": Motor(tendon="y")}),
        (KeyError, "no tendon has the name 'y'", [Tendon("x", "a")], {"sensors": Sensor("tendonpos", "y")}),
    ]
    for error, match, cords, options in cases:
        with pytest.raises(error, match=match):
            tied(*cords, **options)
    assert tied().tendons is None and tied().tendon_length(0.0, jnp.zeros(1)).shape == (0,)
