"""Convex solids of all kinds with each other: distances are MuJoCo's, gaps change as bodies move, and what stands on something stays."""

import itertools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from little_systems import quick
from numpy.testing import assert_allclose
from scipy.spatial import ConvexHull
from scipy.spatial.transform import Rotation

import jaxnsd
from jaxnsd import Moreau, bodies, simulate
from jaxnsd.bodies import (
    Body,
    Box,
    Capsule,
    Cylinder,
    Ellipsoid,
    Free,
    Pair,
    Points,
    closest,
    directions,
    pairs,
    polyhedra,
    polytope,
    solids,
)
from jaxnsd.bodies.frames import Frames

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
#: Pairs of kinds that have no formula.
PAIRS = [
    pair
    for pair in itertools.combinations_with_replacement(GEOMS, 2)
    if "stone" in pair or ({"cylinder", "ellipsoid"} & {*pair} and pair != ("sphere", "cylinder"))
]
#: MuJoCo's depths are too small by up to this where round solids overlap along an axis of both.
COARSE = 1e-4


# --------------------------------------------------------------------------------------------------------------- distances
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_distances_that_are_known(dtype):
    """Of cylinders side to side, end to end, rim to rim, one inside the other, and deep."""
    at = [[0.5, 0, 0], [0, 0, 0.7], [0.5, 0, 0.7], [0, 0, 0], [0, 0, 0.05], [0.15, 0, 0.1]]
    expected = [0.3, 0.5, np.hypot(0.3, 0.5), -0.2, -0.15, -0.05]
    radius, half = 0.1, 0.1

    @quick
    @jax.vmap
    def gap(x):
        R = jnp.stack([jnp.eye(3, dtype=dtype)] * 2)
        frames = Frames(R, jnp.stack([jnp.zeros_like(x), x]), jnp.asarray([[radius, half, 0.0]] * 2, dtype))
        one, other = (jax.tree.map(lambda part, k=k: part[k], solids.solids(frames, ("cylinder",) * 2, None)) for k in (0, 1))
        of = directions.sum_of(one, other, None, None, solids.reach(one, None) + solids.reach(other, None))
        return closest.search(of, directions.best_of_table(of, directions.axes_of(one, other))[0])[1]

    found = gap(jnp.asarray(at, dtype))
    assert found.dtype == dtype
    assert_allclose(found, expected, atol=1e-9 if dtype == np.float64 else 1e-6)


#: Boxes and cylinders deep in each other, where climbs may end at smaller values, too, at one 0.03 rad from the largest: the place of
#: the cylinder from that of the box, and both quaternions.
DEEP = np.array([
    [-0.05850235, 0.00461345, 0.01581587, -0.3893254, 0.086867, -0.8897585, -0.2218324, 0.449186, 0.8018119, -0.3859158, -0.0799914],
    [-0.06441537, 0.01134122, 0.11882585, 0.3701037, -0.2316108, 0.140616, -0.8885983, -0.336643, 0.8973593, 0.1849047, 0.2173201],
    [-0.05711481, -0.04752875, -0.0484732, -0.6747417, 0.2174323, -0.4668851, 0.5286447, 0.6605281, -0.0424881, 0.7383265, 0.1295044],
    [-0.00690986, -0.07756036, 0.00295934, 0.4758764, 0.3572929, 0.803634, 0.0074775, 0.68737, 0.1399496, 0.4369702, 0.5630219],
    [0.01847546, 0.03753861, -0.06663531, -0.4067617, 0.4097601, 0.5562413, 0.5976932, -0.6772422, 0.0751426, -0.6369219, 0.3605926],
    [0.03191175, -0.05585871, 0.07556679, 0.3370654, 0.8812199, 0.1456005, 0.2977228, 0.0864632, -0.9795731, -0.1257599, 0.130939],
    [-0.0533955, -0.12727035, -0.10935995, -0.1859108, -0.0683938, 0.1731659, -0.9647658, -0.8631715, 0.181759, -0.2930294, -0.3688259],
])  # fmt: skip
BOX, RADIUS, HALF = np.array([0.2, 0.3, 0.15]), 0.2, 0.3


def by_brute_force(x, R):
    """The largest separation of a box and of a cylinder: of directions all over the sphere, and of closer ones about the best fifty."""
    rng = np.random.default_rng(0)

    def separation(n):
        along = n @ R[1][:, 2]
        of_box = np.abs(n @ R[0]) @ BOX
        return n @ x - of_box - HALF * np.abs(along) - RADIUS * np.sqrt(np.maximum(1 - along**2, 0.0))

    def units(n):
        return n / np.linalg.norm(n, axis=-1, keepdims=True)

    n = units(rng.standard_normal((200_000, 3)))
    best = n[np.argsort(separation(n))[-50:]]
    for size in 0.02 * 0.7 ** np.arange(60):
        about = units(np.concatenate([best[:, None], best[:, None] + size * rng.standard_normal((50, 100, 3))], axis=1))
        best = about[np.arange(50), np.argmax(separation(about), axis=1)]
    return np.max(separation(best))


def test_the_largest_separation_of_all_directions_is_found():
    """Of solids that overlap deeply, where it has several largest values."""

    @quick
    def search(x, R):
        frames = Frames(R, jnp.stack([jnp.zeros(3), x]), jnp.asarray([BOX, [RADIUS, HALF, 0.0]]))
        one, other = (jax.tree.map(lambda part, k=k: part[k], solids.solids(frames, ("box", "cylinder"), None)) for k in (0, 1))
        of = directions.sum_of(one, other, None, None, solids.reach(one, None) + solids.reach(other, None))
        return closest.search(of, directions.best_of_table(of, directions.axes_of(one, other))[0])[1]

    for pose in DEEP:
        x, R = pose[:3], Rotation.from_quat(pose[3:].reshape(2, 4), scalar_first=True).as_matrix()
        expected = by_brute_force(x, R)
        found = float(search(jnp.asarray(x), jnp.asarray(R)))
        assert found > expected - 1e-9
        assert_allclose(found, expected, atol=1e-6)


def ball_of(corners, radius=0.25):
    """Corners of a hull, about as far from each other."""
    return radius * directions._spread(corners)


def prism(corners, radius, half):
    angle = 2 * np.pi * np.arange(corners) / corners
    return np.concatenate([np.stack([radius * np.cos(angle), radius * np.sin(angle), np.full(corners, z)], axis=1) for z in (-half, half)])


def depth_of_hulls(first, second, x, turned):
    """The largest separation, exactly: of all sides of the hull of the differences of all corners; the first one is not turned."""
    differences = (second @ turned.T + x)[None] - first[:, None]
    return ConvexHull(differences.reshape(-1, 3)).equations[:, 3].max()


def hull_search(first, second, dtype=np.float64):
    """A function of places (n, 3) and rotations (n, 3, 3) of the second hull."""

    def one_pose(pose):
        x, turned = pose
        frames = Frames(jnp.stack([jnp.eye(3, dtype=dtype), turned]), jnp.stack([jnp.zeros_like(x), x]), jnp.zeros((2, 3), dtype))
        one, other = (jax.tree.map(lambda part, k=k: part[k], solids.solids(frames, ("points",) * 2, jnp.zeros(2, int))) for k in (0, 1))
        corners = jnp.asarray(first, dtype), jnp.asarray(second, dtype)
        scale = solids.reach(one, corners[0]) + solids.reach(other, corners[1])
        pair, n = (
            solids.Pair(one, other, *(solids.Corners(solids.table([x]), jnp.int32(0), jnp.int32(len(x))) for x in corners), scale),
            jnp.asarray([0.0, 0.6, 0.8], dtype),
        )
        return closest.search_polyhedra(pair, n, jnp.inf, polyhedra.alone(polyhedra.difference_of(pair), n))[2]

    search = quick(lambda x, turned: jax.lax.map(one_pose, (x, turned)))
    return lambda x, turned: np.asarray(search(jnp.asarray(x, dtype), jnp.asarray(turned, dtype)))


@pytest.mark.slow
def test_few_corners_of_a_hull_say_what_all_of_them_do(monkeypatch):
    """Where hulls of hundreds of corners are closest, as with all corners from the start; round, flat, and with sides of 150 corners."""
    rng, n = np.random.default_rng(1), 60
    hulls = ball_of(300), prism(150, 0.2, 0.1), ball_of(300) * np.array([1, 0.6, 0.05])
    x = rng.normal(size=(n, 3))
    x *= rng.uniform(0.55, 1.2, (n, 1)) / np.linalg.norm(x, axis=1, keepdims=True)
    for first, second in itertools.combinations_with_replacement(hulls, 2):
        turned = Rotation.random(n, random_state=rng).as_matrix()
        found = []
        for many in (directions.NEAREST, 10**6):
            monkeypatch.setattr(directions, "NEAREST", many)
            jax.clear_caches()
            found.append(hull_search(first, second)(x, turned))
        monkeypatch.undo()
        assert_allclose(*found, rtol=0, atol=2e-9)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_hulls_deep_in_each_other_have_their_exact_depth(dtype):
    """Also about the same point, where sides in all directions are about as deep."""
    hull, quarter = ball_of(60), Rotation.from_rotvec([0, 0, np.pi / 2]).as_matrix()
    x, turned = np.array([[0, 0, 0], [0, 0, 0], [0.05, 0, 0], [0.1, 0.02, -0.1]]), np.stack([np.eye(3), quarter, quarter, quarter])
    expected = [depth_of_hulls(hull, hull, *pose) for pose in zip(x, turned, strict=True)]
    assert_allclose(hull_search(hull, hull, dtype)(x, turned), expected, atol=1e-8 if dtype == np.float64 else 3e-6)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_cubes_deep_in_each_other_and_aligned_have_their_exact_depth(dtype):
    """Where the search ends at a side, the corners that it has taken may lie in a plane: they span no polytope."""
    cube, slab = CUBE, CUBE * np.array([1.0, 1.0, 0.5])
    x = np.concatenate([np.zeros((24, 3)), *(size * np.repeat(np.eye(3), 24, axis=0) for size in (0.02, 0.05, 0.1))])
    turned = np.tile(Rotation.create_group("O").as_matrix(), (10, 1, 1))
    for first, second in ((cube, cube), (cube, slab)):
        expected = [depth_of_hulls(first, second, *pose) for pose in zip(x, turned, strict=True)]
        assert_allclose(hull_search(first, second, dtype)(x, turned), expected, atol=1e-8 if dtype == np.float64 else 3e-6)


def test_a_depth_that_is_not_certain_is_no_number(monkeypatch):
    """Where the polytope has too few corners to say that there is no smaller one."""
    monkeypatch.setattr(polytope, "SIZES", (12, 12))
    hull = ball_of(20)
    deep, shallow = hull_search(hull, hull)(np.array([[0.0, 0, 0], [0.49, 0, 0]]), np.stack([np.eye(3)] * 2))
    assert np.isnan(deep)
    assert_allclose(shallow, depth_of_hulls(hull, hull, np.array([0.49, 0, 0]), np.eye(3)), atol=1e-8)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_hulls_of_many_corners_apart_and_touching(dtype):
    """The gap is the separation along the normal, which no direction has larger, and the distance of points on both."""
    first, second = ball_of(150).astype(dtype), ball_of(20).astype(dtype)
    system = bodies.assemble([Body(name, 1.0, (0.1,) * 3, shapes=Points(x)) for name, x in (("a", first), ("b", second))], mu=0.5)
    touches, zero = quick(system.touches), jnp.zeros((), dtype)
    for x in ([0.9, 0.3, 0.2], [0.5, 0.1, 0.05], [0.2, -0.3, 0.3]):
        touch = touches(zero, jnp.asarray([0, 0, 0, 1, 0, 0, 0, *x, 1, 0, 0, 0], dtype))
        gap, n, one, other = (np.asarray(part[0], float) for part in (touch.gap, touch.normal, touch.first, touch.second))
        assert np.isfinite(gap)
        separation = np.asarray(x) @ n - np.max(first @ n) - np.max(-second @ n)
        tol = 2e-9 if dtype == np.float64 else 1e-5
        assert_allclose([gap, (other - one) @ n], separation, atol=tol)
        if gap > 0:
            assert_allclose(np.linalg.norm(other - one), gap, atol=tol)


HULLS = {
    "8 corners": STONE[:8],
    "30 corners": STONE,
    "200 corners": ball_of(200) * np.array([1.0, 0.8, 1.2]),
    "a ball of 200": ball_of(200),
    "a can of 64 sides": prism(64, 0.2, 0.3),
    "a prism": prism(6, 0.2, 0.15),
    "a needle": prism(5, 0.02, 0.5),
}


@pytest.mark.slow
@pytest.mark.parametrize("pair", list(itertools.combinations_with_replacement(HULLS, 2)), ids=" and ".join)
def test_depths_of_hulls_are_exact(pair):
    """Of drawn poses, near and deep, and of aligned ones."""
    first, second = (HULLS[name] for name in pair)
    rng, turns = np.random.default_rng(3), Rotation.create_group("O").as_matrix()[::5]
    along = np.concatenate([[np.zeros(3)], *(size * np.array([[1, 0, 0], [0, 0, 1], [1, 1, 0], [1, 1, 1]]) for size in (0.05, 0.2, 0.4))])
    x = np.concatenate([*(size * rng.standard_normal((15, 3)) for size in (0.25, 0.05)), np.repeat(along, len(turns), axis=0)])
    turned = np.concatenate([Rotation.random(30, random_state=3).as_matrix(), np.tile(turns, (len(along), 1, 1))])
    expected = np.array([depth_of_hulls(first, second, *pose) for pose in zip(x, turned, strict=True)])
    found = hull_search(first, second)(x, turned)
    # The sides of the differences say how deep they overlap; how far they are apart corners and edges may say.
    overlap = expected < 0
    assert overlap.sum() > 20
    assert_allclose(found[overlap], expected[overlap], atol=1e-8)
    assert np.all(found[~overlap] >= expected[~overlap] - 1e-8)


def scene(one, other):
    """MuJoCo's model of two free bodies."""
    mujoco = pytest.importorskip("mujoco")
    vertices = " ".join(f"{x:.17g}" for x in STONE.ravel())
    mesh = f'<mesh name="stone" vertex="{vertices}" inertia="legacy"/>'
    free = "".join(f'<body><freejoint/><geom {GEOMS[kind]} mass="1"/></body>' for kind in (one, other))
    return mujoco.MjModel.from_xml_string(
        f'<mujoco><option ccd_tolerance="1e-13" ccd_iterations="500"/><asset>{mesh}</asset><worldbody>{free}</worldbody></mujoco>'
    )


def poses(n):
    """Coordinates (m, 14) of two bodies: 3 n far, near and deep inside of each other, at random; then aligned."""
    rng = np.random.default_rng(1)
    position = np.concatenate([rng.standard_normal((n, 2, 3)) * size for size in (1.5, 0.35, 0.05)])
    turned = Rotation.random(6 * n, random_state=1).as_quat(scalar_first=True).reshape(3 * n, 2, 4)
    q = np.concatenate([position, turned], axis=-1).reshape(3 * n, 14)
    along = [*np.eye(3), [1, 1, 0], [1, 1, 1], [0, 0, 0]]
    turns = Rotation.create_group("O").as_quat(scalar_first=True)[::7]
    aligned = [[0, 0, 0, 1, 0, 0, 0, *size * np.array(x), *p] for x in along for size in (0.05, 0.2, 0.45, 0.8) for p in turns]
    return np.concatenate([q, aligned])


@quick
def _looked_at(system, q, u):
    def look(q, u):
        touch, rate = jax.jvp(lambda q: system.touches(0.0, q), (q,), (system.q_dot(0.0, q, u),))
        return touch, rate, system.gap_velocity(0.0, q, u)

    return jax.vmap(look)(q, u)


def looked_at(system, q, u):
    """`Touch`, its derivative in the direction of u, and gap velocities."""
    return jax.tree.map(np.asarray, _looked_at(system, q, u))


@pytest.mark.slow
@pytest.mark.parametrize("pair", PAIRS, ids=" and ".join)
def test_distances_and_depths_are_mujocos(pair):
    """Gaps change as the velocities of their points say, and points are a gap apart; points and normals change as differences say."""
    import mujoco

    model, n = scene(*pair), 20
    system, data, q = bodies.from_mujoco(model), mujoco.MjData(model), poses(n)
    u = np.random.default_rng(2).standard_normal((len(q), 12))
    expected = []
    for at in q:
        data.qpos[:] = at
        mujoco.mj_kinematics(model, data)
        expected.append(mujoco.mj_geomDistance(model, data, 0, 1, 100.0, np.zeros(6)))
    touch, rate, velocity = looked_at(system, q, u)
    gap, random = touch.gap.min(axis=1), np.arange(len(q)) < 3 * n
    assert_allclose(gap[random], np.array(expected)[random], atol=1e-8)
    # A depth along a direction is an upper bound of the depth: the smaller one is right.
    assert np.all(gap > np.array(expected) - (COARSE if pair[1] != "stone" else 1e-8))
    assert np.all(gap < np.array(expected) + 1e-8)
    there = touch.gap < 50
    assert_allclose((touch.second - touch.first - touch.gap[..., None] * touch.normal)[there], 0.0, atol=1e-8)
    assert_allclose(rate.gap[random][there[random]], velocity[random][there[random]], atol=1e-7)

    h, dq = 1e-6, np.asarray(jax.jit(jax.vmap(lambda q, u: system.q_dot(0.0, q, u)))(q, u))
    after, before = (looked_at(system, q + sign * h * dq, u)[0] for sign in (1, -1))
    same = there & (after.gap < 50) & (before.gap < 50) & random[:, None]
    for x, y, d in zip(after, before, rate, strict=True):
        difference = (x - y) / (2 * h)
        off = np.abs(difference - d)[same] / (1 + np.abs(d[same]))
        # Where another point, or edge, takes over within the difference, there is no derivative.
        assert np.mean(off.reshape(len(off), -1).max(axis=1) < 1e-5) > 0.95


# -------------------------------------------------------------------------------------------------------------- in motion
SHAPES = {
    "cube": Points(CUBE),
    "box": Box((0.2, 0.2, 0.2)),
    "can": Cylinder(0.1, 0.2),
    "roll": Cylinder(0.1, 0.2, orientation=LYING),
    "pill": Capsule(0.1, 0.3, orientation=LYING),
    "egg": Ellipsoid((0.15, 0.12, 0.1)),
}
TABLES = {
    "box": Box((1.0, 1.0, 0.2), position=(0, 0, -0.1)),
    "plate": Points(CUBE * np.array([5.0, 5.0, 1.0]), position=(0, 0, -0.1)),
    "drum": Cylinder(0.5, 0.2, position=(0, 0, -0.1)),
}


def resting(name, table, height=0.1):
    """A body that stands on a table, or above it."""
    body = Body(name, 1.0, (4e-3, 4e-3, 4e-3), shapes=SHAPES[name], position=(0.03, 0.02, height))
    return bodies.assemble([body], TABLES[table], mu=0.5)


@pytest.mark.slow
@pytest.mark.parametrize("table", list(TABLES))
@pytest.mark.parametrize("name", list(SHAPES))
def test_what_stands_on_something_stays(name, table):
    """Ten seconds without drift."""
    if (name, table) in (("box", "box"), ("pill", "box")):
        pytest.skip("they have kernels of their own")
    system = resting(name, table, height=0.1005)
    q, u = system.initial_state()
    sol = simulate(system, Moreau(), q, u, t1=10.0, dt=1e-3).raise_if_failed()
    assert_allclose(sol.q[-1], sol.q[len(sol.q) // 10], atol=1e-8)
    assert_allclose(jnp.sum(sol.P_N[-1]), 9.81e-3, rtol=1e-8)


@pytest.mark.slow
def test_a_cube_on_a_box_has_four_corners_and_native_code():
    """It stands, by rows at its four corners, without a word that native code was left."""
    body = Body("cube", 1.0, (4e-3, 4e-3, 4e-3), shapes=Points(CUBE, name="cubes"), position=(0.03, 0.02, 0.1))
    system = bodies.assemble([body], Box((1.0, 1.0, 0.2), position=(0, 0, -0.1), name="table"), contacts=[Pair("cubes", "table", 0.5)])
    q, u = system.initial_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sol = simulate(system, Moreau(), q, u, t1=0.2, dt=1e-3).raise_if_failed()
    assert len(system.contacts) == 4
    assert_allclose(sol.q[-1], q, atol=2e-5)
    assert_allclose(jnp.sum(sol.P_N[-1]), 9.81e-3, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["egg", "roll"])
def test_gradients_of_a_fall_are_those_of_the_exact_motion(name):
    """Dropped on a box with a push and a turn: where it is in the end, as a function of the velocity it began with.

    The roll falls on one end, then on the other, when depends on the friction at the first: differences over a shift of the impact by less
    than a step are 6 % off. Those here shift it by many.
    """
    system = resting(name, "box", height=0.11)
    q, u = system.initial_state()
    u = u.at[:6].set(jnp.asarray([0.3, 0.2, 0.0, 0.5, 0.3, 0.2]))

    def end(u, dt):
        sol = simulate(system, Moreau(), q, u, t1=0.06, dt=dt, save_every=round(0.06 / dt)).raise_if_failed()
        return sol.q[-1, 0] + sol.q[-1, 1]

    gradient, h = jax.grad(end)(u, 1e-3), 0.02
    for k in (0, 1):
        difference = (end(u.at[k].add(h), 2e-5) - end(u.at[k].add(-h), 2e-5)) / (2 * h)
        assert_allclose(gradient[k], difference, rtol=2e-2)


def thrown(*names):
    """``(system, q0, u0)``: an ellipsoid, and what flies at it from both sides, at 8 m/s."""
    shapes = {"ellipsoid": Ellipsoid((0.1, 0.06, 0.08)), "cylinder": Cylinder(0.06, 0.16), "hull": Points(0.07 * ball_of(12))}
    parts = [Body(name, 1.0, (2e-3, 3e-3, 2.5e-3), joints=Free(), shapes=shapes[name]) for name in ("ellipsoid", *names)]
    q = {"cylinder": [1.5, 0.005, 0, 0.8, 0.6, 0, 0], "hull": [-1.0, 0, 0.004, 0.6, 0, 0.8, 0]}
    u = {"cylinder": [-8.0, 0, 0, 0, 5, 0], "hull": [7.0, 0, 0, 0, 0, 0]}
    start = [0, 0, 0, 1, 0, 0, 0], [0.0] * 6
    q0, u0 = (jnp.asarray(np.concatenate([one, *(of[name] for name in names)])) for one, of in zip(start, (q, u), strict=True))
    return bodies.assemble(parts, e_N=0.4, mu=0.2, gravity=(0, 0, 0)), q0, u0


def test_pairs_that_cannot_meet_are_left_out():
    """In the step that says so, and nowhere else; what may meet, or has a velocity that is no number, has its gap."""
    system, q0, u0 = thrown("cylinder", "hull")

    @quick
    def gaps(q0, u0):
        return system.gap(0.0, q0), system.keeping_rows(0.0, q0).gap(0.0, q0), system.keeping_rows(0.0, q0, u0, 1e-3).gap(0.0, q0)

    gap, kept, left = gaps(q0, u0)
    assert 0.8 < gap.min() < 2
    assert left.min() > 10
    for fast in (2000.0, jnp.nan):
        assert_allclose(gaps(q0, u0.at[6].set(fast))[2], gap, rtol=1e-12)
    assert_allclose(kept, gap, rtol=1e-12)


def test_what_has_turned_far_in_a_step_has_its_gap():
    """From the direction of the first configuration, half a radian before, the climb to the second one comes to nothing certain."""
    system, _, _ = thrown("cylinder")
    before = [-0.43050514, -0.09474141, 0.01862418, 0.86013522, -0.06370298, 0.08813041, -0.49833961]
    before += [-0.22949486, 0.09974141, -0.01862418, -0.11999299, -0.08381716, -0.79875651, -0.58357897]
    after = [-0.47074527, -0.10359707, 0.02036502, 0.8335516, -0.06990467, 0.096522, -0.53943357]
    after += [-0.26925473, 0.10859707, -0.02036502, -0.27291107, -0.20034099, -0.7565576, -0.55946728]
    before, after = (jnp.asarray(q) for q in (before, after))
    gaps = quick(lambda q: [s.gap(0.0, q)[0] for s in (system.keeping_rows(0.0, before), system)])
    assert_allclose(*gaps(after), rtol=1e-9)


def test_what_moves_as_prescribed_meets_what_it_comes_to_in_a_step_from_rest():
    """A pusher with 1000 m/s^2 in steps of 10 ms, by which it would have passed through the pair that is left out."""

    def push(t):
        return jnp.stack([500 * t * t, 0 * t, 0 * t])

    shape = Points(ball_of(12, 0.1))
    inertia = (4e-3, 5e-3, 6e-3)
    parts = [Body("pusher", 1.0, inertia, joints=Free(motion=push), shapes=shape), Body("hull", 1.0, inertia, joints=Free(), shapes=shape)]
    system = bodies.assemble(parts, gravity=(0, 0, 0))

    @quick
    def gaps(q):
        return [kept.gap(0.005, q).min() for kept in (system, system.keeping_rows(0.0, q, jnp.zeros(6), 1e-2))]

    gap, kept = gaps(jnp.asarray([0.215, 0.0, 0.01, 1.0, 0, 0, 0]))
    assert gap < 0.05
    assert_allclose(kept, gap, rtol=1e-9)


def test_hulls_of_few_and_of_many_corners():
    """Together in one table, where the last corner of the small one is the closest: as far from each other as alone."""
    small = np.array([[-1.0, -1, -1], [-1, 1, -1], [1, -1, -1], [1, 1, -1], [0, 0, 2]]) * 0.1
    shapes = {"small": Points(small), "large": Points(ball_of(160, 0.1)), "other": Points(ball_of(40, 0.1))}
    parts = [Body(name, 1.0, (1e-2,) * 3, joints=Free(), shapes=shape) for name, shape in shapes.items()]
    for where in ((0.0, 0.0, 0.45), (0.1, 0.05, 0.28)):
        q = jnp.asarray(np.concatenate([[*x, 1, 0, 0, 0] for x in ((0, 0, 0), where, (2.0, 0, 0))]))
        system = bodies.assemble(parts)
        gap = np.asarray(system.gap(0.0, q)).reshape(3, -1).min(axis=1)
        alone = bodies.assemble(parts[:2]).gap(0.0, q[:14]).min()
        assert_allclose(gap[0], alone, rtol=1e-9)
        assert np.all(np.isfinite(gap))
        # From the tip to the polyhedron: the largest separation along any direction.
        n = ball_of(50_000, 1.0)
        largest = np.max(np.min((ball_of(160, 0.1) + where) @ n.T, axis=0) - np.max(small @ n.T, axis=0))
        assert largest <= gap[0] <= largest + 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(
    "scheme, names",
    [(Moreau(), ("cylinder", "hull")), pytest.param(jaxnsd.LocatedImpacts(jaxnsd.MoreauJean()), ("cylinder",), marks=pytest.mark.long)],
    ids=["at nodes", "located"],
)
def test_nothing_changes_where_pairs_are_left_out(scheme, names, monkeypatch):
    """They hit the ellipsoid, in steps of 10 ms: as where all pairs are searched in every step."""
    system, q0, u0 = thrown(*names)

    def motion():
        jax.clear_caches()
        return simulate(system, scheme, q0, u0, n_steps=40, dt=1e-2).raise_if_failed()

    sol = motion()
    assert sol.count(jaxnsd.Event.IMPACT) >= len(names)
    monkeypatch.setattr(pairs, "left_out_where_far", lambda structure: [])
    exact = motion()
    jax.clear_caches()
    assert_allclose(sol.q, exact.q, atol=1e-12)
    assert_allclose(sol.u, exact.u, atol=1e-11)


def two_hulls():
    """Two free hulls of 60 and 40 corners, and their corners."""
    shapes = [np.random.default_rng(k).standard_normal((n, 3)) for k, n in enumerate((60, 40))]
    shapes = [0.2 * x / np.linalg.norm(x, axis=1, keepdims=True) * np.array([1.3, 0.7, 1.0]) for x in shapes]
    return bodies.assemble([Body(f"hull {k}", 1.0, (1e-2,) * 3, joints=Free(), shapes=Points(x)) for k, x in enumerate(shapes)]), shapes


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_what_was_found_before_changes_no_gap(dtype):
    """Found at the same place, near it, anywhere, or where the pair was left out as too far: a search that begins with it ends the same."""
    system, shapes = two_hulls()
    system = jax.tree.map(lambda x: jnp.asarray(x, dtype), system)
    near, rng = poses(12), np.random.default_rng(3)
    near = near[: 3 * 12]
    q = jnp.asarray(near, dtype)
    others = [q, q + 1e-3 * jnp.asarray(rng.standard_normal(q.shape), dtype), jnp.asarray(rng.permutation(near), dtype)]
    slow, fast = jnp.zeros(12, dtype), jnp.zeros(12, dtype).at[6].set(2000.0)

    @quick
    def gaps(q, before):
        def of_pose(given):
            q, before = given
            gap = system.gap(0.0, q).min()
            left_out = system.keeping_rows(0.0, before, slow, 1e-3)
            beginnings = system.keeping_rows(0.0, before).found(0.0, before), left_out.found(0.0, before), left_out.found(0.0, q)
            return gap, jnp.stack([system.keeping_rows(0.0, q, fast, 1e-3, found).gap(0.0, q).min() for found in beginnings])

        return jax.lax.map(of_pose, (q, before))

    atol = 1e-10 if dtype == np.float64 else 1e-5
    for before in others:
        gap, begun = gaps(q, before)
        assert begun.dtype == dtype
        # Farther apart than they are large, rows in single precision are none where round-off says so.
        compared = np.asarray(gap) < (np.inf if dtype == np.float64 else 0.5)
        assert_allclose(np.asarray(begun)[compared], np.broadcast_to(np.asarray(gap)[compared, None], (compared.sum(), 3)), atol=atol)
    turned = Rotation.from_quat(near.reshape(-1, 2, 7)[:, :, 3:].reshape(-1, 4), scalar_first=True).as_matrix().reshape(-1, 2, 3, 3)
    for at, R, found in zip(near.reshape(-1, 2, 7), turned, np.asarray(gap), strict=True):
        if found < 0:
            x = R[0].T @ (at[1, :3] - at[0, :3])
            # Rows beside the deepest one may be deeper than the depth by a ten-thousandth of the size.
            assert_allclose(found, depth_of_hulls(*shapes, x, R[0].T @ R[1]), atol=1e-4)


def hulls_on_a_plate():
    """``(system, q0, u0)``: two prisms of 40 corners, one on the other, on a plate that is a hull, and a stone that hits them."""
    shape = Points(prism(20, 0.1, 0.05))
    parts = [Body(name, 1.0, (4e-3, 4e-3, 5e-3), joints=Free(), shapes=shape) for name in ("lower", "upper")]
    stone = Body("stone", 0.3, (1e-3, 1.2e-3, 9e-4), joints=Free(), shapes=Points(0.2 * ball_of(48)))
    system = bodies.assemble([*parts, stone], world=[TABLES["plate"]], mu=0.3, e_N=0.2)
    q = [[0, 0, z, 1, 0, 0, 0] for z in (0.05 - 1e-9, 0.15 - 2e-9)] + [[0.4, 0.01, 0.17, 0.9, 0.1, 0.3, 0.3]]
    q = np.array(q)
    q[2, 3:] /= np.linalg.norm(q[2, 3:])
    return system, jnp.asarray(q.ravel()), jnp.zeros(18).at[12].set(-2.0)


@pytest.mark.slow
def test_steps_that_begin_with_what_the_last_one_found_make_one_motion():
    """In one run and in two, in a loop of one's own, in a batch, with a condition, and where few rows are stored."""
    system, q0, u0 = hulls_on_a_plate()
    n, dt = 240, 1e-3

    @jax.jit
    def run(q0, u0):
        return simulate(system, Moreau(), q0, u0, n_steps=n, dt=dt)

    sol = run(q0, u0)
    assert np.all(np.asarray(sol.outcome) == 0)
    assert sol.count(jaxnsd.Event.IMPACT) >= 1
    first = simulate(system, Moreau(), q0, u0, n_steps=n // 2, dt=dt)
    second = simulate(system, Moreau(), None, None, start=first, n_steps=n // 2, dt=dt)
    assert_allclose(second.q[-1], sol.q[-1], atol=1e-11)

    @jax.jit
    def own(q0, u0):
        def step(state, _):
            sol = simulate(system, Moreau(), *state, n_steps=n // 8, dt=dt)
            return (sol.q[-1], sol.u[-1]), None

        return jax.lax.scan(step, (q0, u0), None, length=8)[0]

    # Each of these begins without percussions: how hyperstatic ones are shared is another choice than in one run.
    state = q0, u0
    for _ in range(8):
        part = simulate(system, Moreau(), *state, n_steps=n // 8, dt=dt)
        state = part.q[-1], part.u[-1]
    assert_allclose(own(q0, u0)[0], state[0], atol=1e-10)
    every = simulate(system, Moreau(), q0, u0, n_steps=n, dt=dt, save_every=40)
    assert_allclose(every.q, sol.q[::40], atol=1e-11)
    until = simulate(system, Moreau(), q0, u0, n_steps=n, dt=dt, until=lambda t, q, u: t > 0.1)
    assert_allclose(until.q[: until.stop], sol.q[: until.stop], atol=1e-11)
    starts = u0[None] * jnp.asarray([1.0, 0.5, 1.5])[:, None]
    batch = jax.jit(jax.vmap(lambda u0: run(q0, u0).q[-1]))(starts)
    assert_allclose(batch[0], sol.q[-1], atol=1e-11)
    assert_allclose(batch[2], run(q0, starts[2]).q[-1], atol=1e-11)


@pytest.mark.slow
def test_steps_in_lockstep_begin_with_what_the_last_one_found(lockstep):
    """A stone that hits a plate, by XLA in a batch: as alone, one search after the other."""
    stone = Body("stone", 0.3, (1e-3, 1.2e-3, 9e-4), joints=Free(), shapes=Points(0.2 * ball_of(40)))
    system = bodies.assemble([stone], world=[TABLES["plate"]], mu=0.3, e_N=0.2)
    q0, u0 = jnp.asarray([0, 0, 0.07, 1.0, 0, 0, 0]), jnp.asarray([[0.2, 0, -0.8, 0.1, 2.0, 0], [0.1, 0, -1.2, 0.3, 1.0, 0.5]])

    def end(u0, n=30):
        return simulate(system, Moreau(), q0, u0, n_steps=n, dt=1e-3).q[-1]

    assert_allclose(jax.jit(jax.vmap(end))(u0), [jax.jit(end)(u) for u in u0], atol=1e-11)


@pytest.mark.slow
def test_derivatives_of_what_begins_with_what_was_found_are_those_of_differences():
    """Of a stone that falls on a plate past another hull, in forward and in reverse mode, before anything touches and after."""
    stone = Body("stone", 0.3, (1e-3, 1.2e-3, 9e-4), joints=Free(), shapes=Points(0.2 * ball_of(48)))
    system = bodies.assemble([stone], world=[TABLES["plate"]], mu=0.3, e_N=0.2)
    q0, u0 = jnp.asarray([0, 0, 0.12, 1.0, 0, 0, 0]), jnp.asarray([0.2, 0, -0.8, 0.1, 2.0, 0])

    @jax.jit
    def end(u0):
        return simulate(system, Moreau(), q0, u0, n_steps=60, dt=2e-3, sensitivity="discrete").q[-1, :3].sum()

    forward, backward = jax.jit(jax.jacfwd(end))(u0), jax.jit(jax.grad(end))(u0)
    assert_allclose(forward, backward, rtol=1e-9, atol=1e-12)
    h = 1e-7
    differences = [(end(u0.at[k].add(h)) - end(u0.at[k].add(-h))) / (2 * h) for k in range(6)]
    assert_allclose(forward, differences, rtol=1e-4, atol=1e-5)


def test_hulls_far_from_each_other_have_a_gap_in_single_precision():
    """A thousand of their sizes away what is found is as certain as the round-off of the distance; of a needle 5 of 1500 had none."""
    rng = np.random.default_rng(0)
    shapes = [Points(rng.normal(size=(k, 3)) * [1, 0.01, 0.001]) for k in (25, 12)]
    system = bodies.assemble([Body(name, 1.0, (0.1,) * 3, shapes=shape) for name, shape in zip("ab", shapes, strict=True)])
    q = np.array([
        [0, 0, 0, 1, 0, 0, 0, -649.2783813476562, -1228.4140625, -43.67371368408203, -0.6491303443908691, -0.5809810161590576,
         -0.4908958673477173, -0.010589420795440674],
        [0, 0, 0, 1, 0, 0, 0, -992.1122436523438, -339.04998779296875, 246.83273315429688, 0.34004244208335876, -0.30194929242134094,
         0.8417213559150696, -0.2910376191139221],
    ])  # fmt: skip

    def gap(dtype):
        of = jax.tree.map(lambda x: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x, system)
        return quick(lambda q: jax.lax.map(lambda q: of.touches(jnp.asarray(0.0, dtype), q).gap[0], q))(jnp.asarray(q, dtype))

    np.testing.assert_allclose(gap("float32"), gap("float64"), rtol=1e-5)
