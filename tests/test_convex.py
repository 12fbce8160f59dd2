"""Convex solids of all kinds with each other: distances are MuJoCo's, gaps change as bodies move, and what stands on something stays."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from little_systems import UNOPTIMIZED
from numpy.testing import assert_allclose
from scipy.spatial.transform import Rotation

from jaxnsd import Moreau, bodies, simulate
from jaxnsd.bodies import Body, Box, Capsule, Cylinder, Pair, Points

CUBE = np.array(np.meshgrid(*[[-0.1, 0.1]] * 3)).reshape(3, -1).T
STONE = np.random.default_rng(0).standard_normal((30, 3))
STONE = STONE / np.linalg.norm(STONE, axis=1, keepdims=True) * np.array([0.25, 0.2, 0.3])
LYING = (np.sqrt(0.5), np.sqrt(0.5), 0.0, 0.0)
GEOMS = {
    "sphere": 'type="sphere" size="0.25"',
    "capsule": 'type="capsule" size="0.12 0.25"',
    "box": 'type="box" size="0.2 0.3 0.15"',
    "cylinder": 'type="cylinder" size="0.2 0.3"',
    "ellipsoid": 'type="ellipsoid" size="0.2 0.3 0.15"',
    "stone": 'type="mesh" mesh="stone"',
}


def scene(one, other):
    """MuJoCo's model of two free bodies."""
    mujoco = pytest.importorskip("mujoco")
    vertices = " ".join(f"{x:.17g}" for x in STONE.ravel())
    mesh = f'<mesh name="stone" vertex="{vertices}" inertia="legacy"/>'
    free = "".join(f'<body><freejoint/><geom {GEOMS[kind]} mass="1"/></body>' for kind in (one, other))
    return mujoco.MjModel.from_xml_string(
        f'<mujoco><option ccd_tolerance="1e-13" ccd_iterations="500"/><asset>{mesh}</asset><worldbody>{free}</worldbody></mujoco>'
    )


def looked_at(system, q, u):
    """`Touch`, and gap velocities, as derivatives and as the bodies say."""

    @jax.vmap
    def look(q, u):
        rate = jax.jvp(lambda q: system.gap(0.0, q), (q,), (system.q_dot(0.0, q, u),))[1]
        return system.touches(0.0, q), rate, system.gap_velocity(0.0, q, u)

    return jax.tree.map(np.asarray, jax.jit(look, compiler_options=UNOPTIMIZED)(q, u))


@pytest.mark.slow
@pytest.mark.parametrize(
    "pair",
    [
        ("box", "stone"),
        ("stone", "stone"),
        ("capsule", "stone"),
        ("sphere", "stone"),
        ("box", "cylinder"),
        ("box", "ellipsoid"),
        ("cylinder", "ellipsoid"),
    ],
    ids=" and ".join,
)
def test_distances_and_depths_are_mujocos(pair):
    """Far, near and deep inside of each other; gaps change as the velocities of their points say, and points are a gap apart."""
    import mujoco

    model, rng, n = scene(*pair), np.random.default_rng(1), 20
    system, data = bodies.from_mujoco(model), mujoco.MjData(model)
    position = rng.standard_normal((3, n, 2, 3)) * np.array([1.5, 0.35, 0.05])[:, None, None, None]
    turned = Rotation.random(6 * n, random_state=1).as_quat(scalar_first=True).reshape(3, n, 2, 4)
    q, u = np.concatenate([position, turned], axis=-1).reshape(3 * n, 14), rng.standard_normal((3 * n, 12))
    expected = []
    for at in q:
        data.qpos[:] = at
        mujoco.mj_kinematics(model, data)
        expected.append(mujoco.mj_geomDistance(model, data, 0, 1, 100.0, np.zeros(6)))
    touch, rate, velocity = looked_at(system, q, u)
    assert_allclose(touch.gap.min(axis=1), expected, atol=1e-8)
    assert_allclose(rate, velocity, atol=1e-7)
    there = touch.gap < 100
    assert_allclose((touch.second - touch.first - touch.gap[..., None] * touch.normal)[there], 0.0, atol=1e-8)


SHAPES = {
    "cube": Points(CUBE),
    "box": Box((0.2, 0.2, 0.2)),
    "can": Cylinder(0.1, 0.2),
    "roll": Cylinder(0.1, 0.2, orientation=LYING),
    "pill": Capsule(0.1, 0.3, orientation=LYING),
}
TABLES = {"box": Box((1.0, 1.0, 0.2), position=(0, 0, -0.1)), "plate": Points(CUBE * np.array([5.0, 5.0, 1.0]), position=(0, 0, -0.1))}


@pytest.mark.slow
@pytest.mark.parametrize("table", list(TABLES))
@pytest.mark.parametrize("name", list(SHAPES))
def test_what_stands_on_something_stays(name, table):
    """Ten seconds without drift."""
    if (name, table) in (("box", "box"), ("pill", "box")):
        pytest.skip("they have kernels of their own")
    body = Body(name, 1.0, (4e-3, 4e-3, 4e-3), shapes=SHAPES[name], position=(0.03, 0.02, 0.1))
    system = bodies.assemble([body], TABLES[table], mu=0.5)
    q, u = system.initial_state()
    sol = simulate(system, Moreau(), q, u, t1=10.0, dt=1e-3).raise_if_failed()
    assert_allclose(sol.q[-1], sol.q[len(sol.q) // 10], atol=1e-9)


@pytest.mark.slow
def test_a_cube_on_a_box_has_four_corners_and_native_code():
    """It stands, by rows at its four corners, without a word that native code was left."""
    body = Body("cube", 1.0, (4e-3, 4e-3, 4e-3), shapes=Points(CUBE, name="cubes"), position=(0.03, 0.02, 0.1))
    system = bodies.assemble([body], Box((1.0, 1.0, 0.2), position=(0, 0, -0.1), name="table"), contacts=[Pair("cubes", "table", 0.5)])
    q, u = system.initial_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sol = simulate(system, Moreau(), q, u, t1=0.2, dt=1e-3).raise_if_failed()
    assert_allclose(sol.q[-1], q, atol=2e-5)
    assert_allclose(jnp.sum(sol.P_N[-1]), 9.81e-3, rtol=1e-9)
    assert np.all(np.asarray(sol.P_N[-1]) > 0)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_cubes_that_are_apart(dtype):
    """Corner to corner, edge to edge and face to face, by Pythagoras."""
    from jaxnsd.bodies import closest, solids
    from jaxnsd.bodies.frames import Frames

    at = np.array([[1.0, 0.7, 0.4], [0.5, 0.6, 0.1], [0.0, 0.0, -0.9]], dtype)
    expected = np.linalg.norm(np.maximum(np.abs(at) - 0.2, 0.0), axis=1)
    none = np.zeros(3, dtype)

    def gap(x):
        frames = Frames(jnp.stack([jnp.eye(3, dtype=dtype)] * 2), jnp.stack([none, x]), jnp.full((2, 3), 0.1, dtype))
        pair = solids.solids(frames, ("box", "box"), None)
        one, other = (jax.tree.map(lambda part, k=k: part[k], pair) for k in range(2))
        found, _ = closest._closest(closest.Pair(one, other, None, None, jnp.asarray(0.4, dtype)))
        return found.gap

    with jax.numpy_rank_promotion("allow"):
        gaps = jax.jit(jax.vmap(gap), compiler_options=UNOPTIMIZED)(at)
    assert gaps.dtype == dtype
    assert_allclose(gaps, expected, rtol=1e-12 if dtype == np.float64 else 1e-5)
