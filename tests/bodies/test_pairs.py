"""Gaps of shapes against brute-force minimisation and MuJoCo; how they change is how the bodies move."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from little_systems import quick
from numpy.testing import assert_allclose
from scipy.optimize import minimize
from scipy.spatial.transform import Rotation

import jaxnsd
from jaxnsd import Lobatto, Moreau, bodies, simulate
from jaxnsd.bodies import Body, Box, Capsule, Cylinder, Ellipsoid, Free, Motor, Pair, Plane, Points, Prismatic, Sphere, pairs

STONE = np.array([[0.3, 0.1, 0.0], [-0.2, 0.25, 0.1], [-0.1, -0.3, 0.05], [0.0, 0.0, 0.35], [0.05, 0.1, -0.3]])
SHAPES = {
    "ball": Sphere(0.25),
    "ball2": Sphere(0.15, position=(0.05, 0.0, -0.1)),
    "pill": Capsule(0.12, 0.5),
    "pill2": Capsule(0.1, 0.4, position=(0.1, 0, 0), orientation=(0.8, 0.0, 0.6, 0.0)),
    "brick": Box((0.4, 0.6, 0.8)),
    "brick2": Box((0.5, 0.3, 0.4), orientation=(0.6, 0.8, 0.0, 0.0)),
    "can": Cylinder(0.2, 0.5),
    "egg": Ellipsoid((0.2, 0.3, 0.4)),
    "stone": Points(STONE),
}
NAMES = list(SHAPES)
PAIRS = [
    *(("floor", name) for name in ("ball", "pill", "brick", "can", "egg", "stone")),
    *(("ball", "ball2"), ("ball", "pill"), ("pill", "pill2"), ("ball", "brick"), ("pill", "brick"), ("ball", "can"), ("brick", "brick2")),
]
FLOOR = np.array([0.1, -0.2, -0.5]), Rotation.from_euler("xyz", (0.3, -0.4, 0.2))
N = 16


@pytest.fixture(scope="module")
def scene():
    """All kinds at random poses and velocities, everything from one compiled program."""
    # The sizes do not matter here for the inertia.
    parts = [Body(name, 1.0, (1.0, 1.0, 1.0), shapes=shape) for name, shape in SHAPES.items()]
    floor = Plane(name="floor", position=tuple(FLOOR[0]), orientation=tuple(FLOOR[1].as_quat(scalar_first=True)))
    system = bodies.assemble(parts, floor, contacts=[Pair(*pair) for pair in PAIRS], mu=0.3)
    rng = np.random.default_rng(0)
    q, u = rng.standard_normal((N, 9, 7)), rng.standard_normal((N, 54))
    q[..., :3] *= 0.45
    q[..., 3:] /= np.linalg.norm(q[..., 3:], axis=-1, keepdims=True)

    @quick
    @jax.vmap
    def evaluate(q, u):
        rate = jax.jvp(lambda q: system.gap(0.0, q), (q,), (system.q_dot(0.0, q, u),))[1]
        velocities = system.gap_velocity(0.0, q, u), system.tangential_velocity(0.0, q, u)
        touch = system.touches(0.0, q)
        return touch, rate, *velocities, system.W_N(0.0, q), system.W_F(0.0, q), system.tangents(touch.normal)

    return system, q, u.reshape(N, 9, 6), jax.tree.map(np.asarray, evaluate(q.reshape(N, 63), u)), evaluate


class Core:
    """A shape as a convex set, ``x + R y`` with y in bounds and ``inside(y) >= 0``, and a radius about it."""

    def __init__(self, name, q):
        shape, R = SHAPES[name], Rotation.from_quat(q[3:], scalar_first=True)
        self.x = q[:3] + R.apply(shape.position)
        self.R = (R * Rotation.from_quat(shape.orientation, scalar_first=True)).as_matrix()
        self.kind, size = shape.kind, np.asarray(shape.size(), float)
        self.radius = size[0] if self.kind in ("sphere", "capsule") else 0.0
        self.half = {
            "sphere": np.zeros(3),
            "capsule": np.array([0, 0, size[1]]),
            "box": size,
            "cylinder": size[[0, 0, 1]],
            "ellipsoid": size,
        }[self.kind]
        self.constraints = {
            "cylinder": [{"type": "ineq", "fun": lambda y: size[0] ** 2 - y[0] ** 2 - y[1] ** 2}],
            "ellipsoid": [{"type": "ineq", "fun": lambda y: 1 - np.sum((y / size) ** 2)}],
        }.get(self.kind, [])

    def at(self, y):
        return self.x + self.R @ y


def smallest(function, cores):
    """Minimum of a convex function of points of one or two cores, and where in the cores."""
    bounds = [(-h, h) for core in cores for h in core.half]
    constraints = []
    for k, core in enumerate(cores):
        constraints += [{"type": "ineq", "fun": lambda z, c=c, k=k: c["fun"](z[3 * k : 3 * k + 3])} for c in core.constraints]

    def of(z):
        return function(*(core.at(z[3 * k : 3 * k + 3]) for k, core in enumerate(cores)))

    found = None
    for start in (0.0, 0.5):
        z0 = start * np.concatenate([core.half for core in cores])
        result = minimize(of, z0, method="SLSQP", bounds=bounds, constraints=constraints, options={"ftol": 1e-15, "maxiter": 300})
        if found is None or result.fun < found.fun:
            found = result
    return found.fun, found.x.reshape(-1, 3)


@pytest.mark.slow
@pytest.mark.parametrize("pair", PAIRS, ids=" and ".join)
def test_gaps_are_distances(scene, pair):
    """The smallest gap of a pair is the distance of the two sets; of planes also where they overlap."""
    system, q, _, (touch, *_), _ = scene
    rows = [k for k, contact in enumerate(system.contacts) if contact.pair == PAIRS.index(pair)]
    compared = 0
    for k in range(N):
        gap = touch.gap[k, rows].min()
        of = [None if name == "floor" else Core(name, q[k, NAMES.index(name)]) for name in pair if name != "stone"]
        if pair[0] == "floor":
            height = lambda p: FLOOR[1].as_matrix()[:, 2] @ (p - FLOOR[0])  # noqa: E731
            if pair[1] == "stone":
                at = q[k, NAMES.index("stone")]
                expected = min(height(at[:3] + Rotation.from_quat(at[3:], scalar_first=True).apply(p)) for p in STONE)
            else:
                expected = smallest(height, of[1:])[0] - of[1].radius
            # Of the four points of a rim none is lower than the first.
            assert_allclose(gap, expected, atol=1e-7, err_msg=str(k))
            compared += 1
            continue
        square, _ = smallest(lambda a, b: np.sum((a - b) ** 2), of)
        distance = np.sqrt(max(square, 0.0))
        if distance < 1e-3:
            continue
        expected = distance - of[0].radius - of[1].radius
        assert_allclose(gap, expected, atol=2e-6, err_msg=str(k))
        compared += 1
    assert compared >= N // 2


@pytest.mark.slow
def test_balls_inside_boxes_are_as_deep_as_the_nearest_side(scene):
    """A centre inside a box: the gap is minus the way out, minus the radius."""
    system, q, u, _, evaluate = scene
    row = next(k for k, contact in enumerate(system.contacts) if contact.pair == PAIRS.index(("ball", "brick")))
    turned = q.copy()
    at = turned[0]
    at[NAMES.index("ball"), :3] = at[NAMES.index("brick"), :3] + Rotation.from_quat(at[4, 3:], scalar_first=True).apply([0.15, 0.1, -0.2])
    gap = evaluate(turned.reshape(N, 63), u.reshape(N, 54))[0].gap[0, row]
    assert_allclose(gap, -0.05 - 0.25, atol=1e-14)


@pytest.mark.slow
def test_a_capsule_lies_on_a_box_where_the_box_ends():
    """Parallel to a side and beyond its edge: of its points the end and the one over the edge touch, at any turn about the vertical; one
    whose axis is inside has the gap velocity of its points, too.
    """
    pill = Body("pill", 1.0, shapes=Capsule(0.1, 0.6))
    system = bodies.assemble([pill], Box((0.4, 2.0, 0.2)), contacts=[Pair("pill", "world")])
    lying = Rotation.from_euler("y", 0.5 * np.pi)
    q = []
    for angle, x, z in ((0.0, 0.15, 0.2), (0.3, 0.15, 0.2), (0.0, 0.0, 0.2), (0.3, 0.1, 0.05)):
        q.append([x, 0.0, z, *(Rotation.from_euler("z", angle) * lying).as_quat(scalar_first=True)])
    u = np.random.default_rng(2).standard_normal((4, 6))

    @quick
    @jax.vmap
    def evaluate(q, u):
        rate = jax.jvp(lambda q: system.gap(0.0, q), (q,), (system.q_dot(0.0, q, u),))[1]
        return system.touches(0.0, q), rate, system.gap_velocity(0.0, q, u)

    touch, rate, velocity = evaluate(jnp.asarray(q), jnp.asarray(u))
    assert_allclose(velocity, rate, atol=1e-12)
    # One end is on the box in the first two, none in the third, which lies across it.
    assert_allclose(np.sort(touch.gap[:2], axis=1)[:, :2], 0.0, atol=1e-15)
    assert_allclose(touch.gap[:3, 2], 0.0, atol=1e-15)
    assert_allclose(touch.second[:3, 2], [[0.2, 0.0, 0.1], [0.2, 0.05 * np.tan(0.3), 0.1], [0.0, 0.0, 0.1]], atol=1e-14)


@pytest.mark.slow
def test_velocities_are_those_of_the_material_points(scene):
    """Gap velocities are the derivative of the gap, and that of the two points along the normal; slip is their velocity across it."""
    system, q, u, (touch, rate, gap_velocity, slip, W_N, W_F, tangents), _ = scene
    assert_allclose(gap_velocity, rate, atol=1e-11)
    flat = u.reshape(N, 54)
    assert_allclose(np.einsum("kun,ku->kn", W_N, flat), gap_velocity, atol=1e-13)
    assert_allclose(np.einsum("kund,ku->knd", W_F, flat), slip, atol=1e-13)
    there = np.linalg.norm(touch.normal, axis=-1) > 0.5
    assert_allclose(np.linalg.norm(touch.normal[there], axis=-1), 1.0, atol=1e-13)
    assert_allclose(np.sum((touch.second - touch.first) * touch.normal, axis=-1)[there], touch.gap[there], atol=1e-12)
    body_of = {shape.name: shape.body for shape in system.structure.shapes}
    for k, contact in enumerate(system.contacts):
        v = np.zeros((2, N, 3))
        for side, (name, point) in enumerate(((contact.first, touch.first[:, k]), (contact.second, touch.second[:, k]))):
            if not (b := body_of[name]):
                continue
            omega = Rotation.from_quat(q[:, b - 1, 3:], scalar_first=True).apply(u[:, b - 1, 3:])
            v[side] = u[:, b - 1, :3] + np.cross(omega, point - q[:, b - 1, :3])
        relative, own = v[1] - v[0], there[:, k]
        assert_allclose(np.sum(relative * touch.normal[:, k], axis=-1)[own], gap_velocity[own, k], atol=1e-12, err_msg=str(contact))
        assert_allclose(np.einsum("kdi,ki->kd", tangents[:, k], relative)[own], slip[own, k], atol=1e-12, err_msg=str(contact))
    # Tangents and normal are perpendicular, of length one.
    triads = np.concatenate([tangents, touch.normal[:, :, None]], axis=2)[there]
    assert_allclose(triads @ triads.transpose(0, 2, 1), np.broadcast_to(np.eye(3), triads.shape), atol=1e-13)


@pytest.mark.slow
def test_rolling_has_no_slip():
    """A ball that rolls on a tilted plane, on a ball, and two capsules that roll on each other like gear wheels."""
    ball = lambda name, r: Body(name, 1.0, shapes=Sphere(r))  # noqa: E731
    pill = lambda name, r: Body(name, 1.0, shapes=Capsule(r, 1.0))  # noqa: E731
    parts = [ball("a", 0.2), ball("b", 0.3), pill("c", 0.1), pill("d", 0.25)]
    turned = Rotation.from_euler("xyz", (0.4, 0.3, 0.0))
    floor = Plane(name="floor", orientation=tuple(turned.as_quat(scalar_first=True)))
    system = bodies.assemble(parts, floor, contacts=[Pair("floor", "a"), Pair("a", "b"), Pair("c", "d")])
    n, rng = turned.as_matrix()[:, 2], np.random.default_rng(1)
    omega = turned.apply([1.0, -2.0, 0.0])
    e = rng.standard_normal(3)
    e /= np.linalg.norm(e)
    spins = [omega, rng.standard_normal(3), np.array([0, 0, 3.0]), np.array([0, 0, -3.0 * 0.1 / 0.25])]
    x = [0.2 * n, 0.2 * n + 0.5 * e, np.zeros(3), np.array([0.35, 0.0, 0.1])]
    # v + omega x r vanishes at the point of contact; the second ball rolls on the first.
    v_a = np.cross(omega, 0.2 * n)
    v_b = v_a + np.cross(omega, 0.2 * e) + np.cross(spins[1], 0.3 * e)
    v = [v_a, v_b, np.zeros(3), np.zeros(3)]
    q = jnp.asarray(np.concatenate([np.concatenate([p, [1.0, 0, 0, 0]]) for p in x]))
    u = jnp.asarray(np.concatenate([np.concatenate(pair) for pair in zip(v, spins, strict=True)]))
    evaluate = quick(
        lambda q, u: (system.gap(0.0, q), system.gap_velocity(0.0, q, u), system.tangential_velocity(0.0, q, u)),
    )
    for value in evaluate(q, u):
        assert_allclose(value, 0.0, atol=1e-14)


# -------------------------------------------------------------------------------------------------- two shapes, many poses
def two(first, second, dtype=float):
    """A compiled function of poses (n, 2, 7) and velocities (n, 2, 6) of two free shapes: `Touch`, derivative of the gap, gap velocity."""
    parts = [Body(name, 1.0, (1.0, 1.0, 1.0), shapes=shape) for name, shape in (("first", first), ("second", second))]
    system = jax.tree.map(lambda x: jnp.asarray(x, dtype), bodies.assemble(parts, contacts=[Pair("first", "second")]))

    @quick
    @jax.vmap
    def evaluate(q, u):
        rate = jax.jvp(lambda q: system.gap(0.0, q), (q,), (system.q_dot(0.0, q, u),))[1]
        return system.touches(0.0, q), rate, system.gap_velocity(0.0, q, u)

    return lambda q, u: jax.tree.map(np.asarray, evaluate(q.reshape(-1, 14).astype(dtype), u.reshape(-1, 12).astype(dtype)))


def of_mujoco(first, second, q):
    """`mj_geomDistance` of two shapes at poses (n, 2, 7)."""
    mujoco = pytest.importorskip("mujoco")
    sizes = [" ".join(map(str, np.asarray(shape.size()))) for shape in (first, second)]
    geoms = [f'<body mocap="true"><geom type="{s.kind}" size="{size}"/></body>' for s, size in zip((first, second), sizes, strict=True)]
    options = '<option ccd_tolerance="1e-13" ccd_iterations="500"/>'
    model = mujoco.MjModel.from_xml_string(f"<mujoco>{options}<worldbody>{''.join(geoms)}</worldbody></mujoco>")
    data, out = mujoco.MjData(model), []
    for pose in q:
        data.mocap_pos, data.mocap_quat = pose[:, :3], pose[:, 3:]
        mujoco.mj_kinematics(model, data)
        out.append(mujoco.mj_geomDistance(model, data, 0, 1, 100.0, np.zeros(6)))
    return np.array(out)


def poses(rng, n, spread):
    """Poses (n, 2, 7) of two shapes at random."""
    q = rng.standard_normal((n, 2, 7))
    q[..., :3] *= spread
    q[..., 3:] /= np.linalg.norm(q[..., 3:], axis=-1, keepdims=True)
    return q


def brought_to(evaluate, q, gap):
    """The second shape moved along the normal until the smallest gap is what is given."""
    q, rows = q.copy(), np.arange(len(q))
    for _ in range(30):
        touch = evaluate(q, np.zeros((len(q), 2, 6)))[0]
        k = touch.gap.argmin(axis=1)
        q[:, 1, :3] += touch.normal[rows, k] * (gap - touch.gap[rows, k])[:, None]
    return q


def by_differences(evaluate, q, u, h=1e-8):
    """Derivative of the smallest gap along the motion of free bodies."""
    gaps = []
    for step in (h, -h):
        moved = q.copy()
        moved[..., :3] += step * u[..., :3]
        turned = Rotation.from_quat(q[..., 3:].reshape(-1, 4), scalar_first=True) * Rotation.from_rotvec(step * u[..., 3:].reshape(-1, 3))
        moved[..., 3:] = turned.as_quat(scalar_first=True).reshape(-1, 2, 4)
        gaps.append(evaluate(moved, u)[0].gap.min(axis=1))
    return (gaps[0] - gaps[1]) / (2 * h)


BRICKS = Box((0.4, 0.6, 0.9)), Box((0.5, 0.3, 0.7))


@pytest.fixture(scope="module")
def bricks():
    return two(*BRICKS)


@pytest.mark.parametrize("n", [pytest.param(200, marks=pytest.mark.slow), pytest.param(3000, marks=pytest.mark.long)])
def test_gaps_of_boxes_are_distances_and_change_as_they_move(bricks, n):
    """Apart, touching and overlapping, at random: MuJoCo's distance; every row's gap changes as its two material points move."""
    rng = np.random.default_rng(3)
    anyhow = poses(rng, n, 0.35)
    for q in (anyhow, *(brought_to(bricks, anyhow, gap) for gap in (1e-2, 1e-4, -1e-4, -1e-2))):
        u = rng.standard_normal((n, 2, 6))
        touch, rate, velocity = bricks(q, u)
        assert_allclose(velocity, rate, atol=1e-8, rtol=1e-8)
        gap, distance = touch.gap.min(axis=1), of_mujoco(*BRICKS, q)
        apart = distance > 0
        # A corner within 1e-6 of a half edge beside a face counts as above it.
        beside = (1e-6 * 0.45) ** 2 / (2 * distance[apart])
        assert (gap[apart] <= distance[apart] + 1e-10).all()
        assert (gap[apart] >= distance[apart] - beside - 1e-10).all()
        # Of a face and edges along it, which overlap by as much, it is the face: never less deep than the shortest way out.
        assert (gap <= distance + 1e-10).all()
        assert (gap >= distance - 1e-3 * 0.45).all()
        assert np.mean(gap < distance - 1e-10) < 0.01
        # But for the few poses at which another feature becomes the closest within the step.
        chosen = velocity[np.arange(n), touch.gap.argmin(axis=1)]
        assert np.mean(np.abs(by_differences(bricks, q, u) - chosen) > 1e-4) < 0.02


@pytest.mark.parametrize("dtype", [float, pytest.param(np.float32, marks=pytest.mark.slow)])
def test_boxes_along_each_other(bricks, dtype):
    """Edges parallel, corners above corners, middles that coincide, flush sides, and all that tilted a little: gaps are MuJoCo's
    distances, and nothing is NaN.
    """
    rng, n = np.random.default_rng(4), 200
    evaluate, single = (bricks, False) if dtype is float else (two(*BRICKS, dtype), True)
    for tilt in (0.0, 1e-9, 1e-5, 1e-2):
        q = np.zeros((n, 2, 7))
        q[:, 0, 3] = 1.0
        q[:, 1, :3] = 0.05 * rng.integers(-16, 17, (n, 3)) * (np.arange(n) > 0)[:, None]
        turned = Rotation.from_rotvec(tilt * rng.standard_normal((n, 3))) * Rotation.create_group("O")[rng.integers(0, 24, n)]
        q[:, 1, 3:] = turned.as_quat(scalar_first=True)
        touch, rate, velocity = evaluate(q, rng.standard_normal((n, 2, 6)))
        assert all(np.isfinite(x).all() for x in (*touch, rate, velocity))
        if not single:
            assert_allclose(velocity, rate, atol=1e-6, rtol=1e-6)
        gap, distance = touch.gap.min(axis=1), of_mujoco(*BRICKS, q)
        # MuJoCo's depth of boxes whose middles coincide is zero.
        known = (distance > 0) | (distance < -1e-6)
        # Corners this close to a side count as on it: 1e-6 of a half edge, in single precision 64 units of round-off.
        close = 0.45 * max(1e-6, 64 * np.finfo(dtype).eps)
        assert_allclose(gap[known & (distance > 0)], distance[known & (distance > 0)], atol=close)
        assert_allclose(gap[known], distance[known], atol=1e-3 * 0.45)
        assert np.mean(known) > 0.8


def test_points_of_boxes_are_on_the_boxes(bricks):
    """No point is away from its box by more than where two overlap: closest points of almost parallel edges were kilometres away."""
    rng, n = np.random.default_rng(5), 200
    q = np.zeros((n, 2, 7))
    q[:, 0, 3] = 1.0
    q[:, 1, :3] = 0.05 * rng.integers(-8, 9, (n, 3))
    q[:, 1, 3:] = Rotation.from_rotvec(1e-5 * rng.standard_normal((n, 3))).as_quat(scalar_first=True)
    touch, *_ = bricks(q, np.zeros((n, 2, 6)))
    assert np.abs(touch.first).max() < 1.5


# ------------------------------------------------------------------------------------------------------------- capsules
PILLS = Capsule(0.1, 0.6), Capsule(0.07, 0.4)


@pytest.fixture(scope="module")
def pills():
    return two(*PILLS)


def test_capsules_have_two_points_and_none_that_is_not_there(pills):
    """At random: the smaller gap is MuJoCo's distance, the other one no smaller; both change as their points move, and stay where the world
    is turned.
    """
    rng, n = np.random.default_rng(6), 200
    q, u = poses(rng, n, 0.3), rng.standard_normal((n, 2, 6))
    touch, rate, velocity = pills(q, u)
    assert_allclose(velocity, rate, atol=1e-10, rtol=1e-10)
    assert_allclose(touch.gap.min(axis=1), of_mujoco(*PILLS, q), atol=1e-12)
    chosen = velocity[np.arange(n), touch.gap.argmin(axis=1)]
    assert_allclose(by_differences(pills, q, u), chosen, atol=1e-5)
    turn = Rotation.from_euler("xyz", (0.4, -1.2, 2.0))
    turned = q.copy()
    turned[..., :3] = turn.apply(q[..., :3].reshape(-1, 3)).reshape(n, 2, 3)
    turned[..., 3:] = (turn * Rotation.from_quat(q[..., 3:].reshape(-1, 4), scalar_first=True)).as_quat(scalar_first=True).reshape(n, 2, 4)
    again, *_ = pills(turned, u)
    assert_allclose(again.gap, touch.gap, atol=1e-12)
    assert_allclose(again.first, turn.apply(np.array(touch.first).reshape(-1, 3)).reshape(n, 2, 3), atol=1e-11)


def test_capsules_along_each_other_touch_at_both_ends(pills):
    """Side by side, shifted and turned about the line between them by less and less: both gaps are that of the axes, at the ends of what is
    beside each other; end to end they are one.
    """
    angles = np.array([0.0, 1e-12, 1e-8, 1e-5])
    q = np.zeros((200, 2, 7))
    q[..., 3] = 1.0
    q[:, 1, :3] = (0.2, 0.0, 0.15)
    p = Rotation.from_rotvec(angles[:, None] * np.array([[1.0, 0.0, 0.0]])).as_quat(scalar_first=True)
    q[:8, 1, 3:] = np.concatenate(
        [p, (Rotation.from_euler("x", np.pi) * Rotation.from_quat(p, scalar_first=True)).as_quat(scalar_first=True)]
    )
    q[8, 1, :3] = (0.0, 0.0, 0.3 + 0.2 + 0.5)
    q[9, 1, :3] = 0.0
    touch, rate, velocity = pills(q, np.random.default_rng(7).standard_normal((200, 2, 6)))
    assert_allclose(touch.gap[:8], 0.03, atol=1e-9)
    # From the lower end of the short one to the upper end of the long one.
    assert_allclose(np.sort(touch.first[[0, 1, 2, 4, 5, 6], :, 2], axis=1), [[-0.05, 0.3]] * 6, atol=1e-8)
    assert_allclose(touch.gap[8].min(), 0.5 - 0.17, atol=1e-15)
    assert (touch.gap[8] > 10.0).sum() == 1 and not touch.normal[8, touch.gap[8].argmax()].any()
    # Axes in each other: as deep as can be, along a normal across them.
    assert_allclose(touch.gap[9], -0.17, atol=1e-15)
    assert_allclose(np.abs(touch.normal[9] @ [0.0, 0.0, 1.0]), 0.0, atol=1e-15)
    assert all(np.isfinite(x).all() for x in (*touch, rate, velocity))


@pytest.mark.slow
@pytest.mark.parametrize("tilt", [0.0, 1e-4])
def test_a_log_rests_on_a_log(tilt):
    """Along it, beyond its end: it comes to rest, and its two points carry their shares of the weight. On one point it rocked, and sank."""
    lying, y = (np.sqrt(0.5), 0.0, np.sqrt(0.5), 0.0), (0.0, 1.0, 0.0)
    joints = (bodies.Prismatic((1.0, 0.0, 0.0)), bodies.Prismatic((0.0, 0.0, 1.0)), bodies.Revolute(y))
    upper = Body("upper", 1.0, (0.03, 0.03, 0.03), joints=joints, shapes=Capsule(0.1, 0.6, orientation=lying), position=(0.15, 0.0, 0.2))
    system = bodies.assemble(upper, Capsule(0.1, 0.6, orientation=lying), plane="xz", contacts="all", mu=0.5)
    q0, u0 = system.initial_state()
    sol = simulate(system, Moreau(), q0.at[2].set(tilt), u0, n_steps=1000, dt=1e-3).raise_if_failed()
    assert_allclose(sol.u[-1], 0.0, atol=1e-10)
    assert_allclose(sol.q[-1], [0.0, 0.0, 0.0], atol=1.5e-4)
    # Its middle is twice as far from the lower end of the overlap as from the upper one.
    assert_allclose(np.sort(sol.P_N[-1]), np.array([1.0, 2.0]) / 3 * 9.81e-3, rtol=1e-3)


def test_a_cylinder_that_almost_stands():
    """Its lowest point goes around fast: the derivative of the gap is the gap velocity all the same. Gaps are those of circles."""
    can = Body("can", 1.0, (1.0, 1.0, 1.0), shapes=Cylinder(0.2, 0.5))
    system = bodies.assemble(can, Plane(orientation=tuple(FLOOR[1].as_quat(scalar_first=True))), contacts="all")
    tilts, rng = np.array([2e-6, 1e-5, 1e-3, 0.3]), np.random.default_rng(8)
    turned = (
        FLOOR[1] * Rotation.from_euler("z", rng.uniform(0, 6, (4, 1))) * Rotation.from_rotvec(tilts[:, None] * np.array([[0.6, 0.8, 0.0]]))
    )
    q = np.concatenate([FLOOR[1].apply([0.1, -0.2, 0.3]) * np.ones((4, 1)), turned.as_quat(scalar_first=True)], axis=1)

    @quick
    @jax.vmap
    def evaluate(q, u):
        rate = jax.jvp(lambda q: system.gap(0.0, q), (q,), (system.q_dot(0.0, q, u),))[1]
        return system.gap(0.0, q), rate, system.gap_velocity(0.0, q, u)

    gap, rate, velocity = evaluate(jnp.asarray(q), jnp.asarray(rng.standard_normal((4, 6))))
    assert_allclose(velocity, rate, atol=1e-9)
    assert_allclose(gap.min(axis=1), 0.3 - 0.25 * np.cos(tilts) - 0.2 * np.sin(tilts), atol=1e-14)


def many(n):
    """``(system, q0, u0)``: n balls, n capsules and n boxes in layers above a floor, with random velocities."""
    rng, parts = np.random.default_rng(3), []
    shapes = {"ball": Sphere(0.1), "pill": Capsule(0.08, 0.2), "brick": Box((0.2, 0.15, 0.1))}
    for k, kind in enumerate(shapes):
        at = [(0.3 * i, 0.4 * k, 0.3 + 0.25 * rng.random()) for i in range(n)]
        parts += [Body(f"{kind}{i}", 1.0, (1e-2,) * 3, joints=Free(), position=x, shapes=shapes[kind]) for i, x in enumerate(at)]
    system = bodies.assemble(parts, Plane(name="floor"), mu=0.3, e_N=0.5)
    q0, u0 = system.initial_state()
    return system, q0, u0 + jnp.asarray(rng.standard_normal(u0.shape))


def test_one_pair_after_the_other(monkeypatch):
    """Of many pairs of a kind gaps, points, normals and their derivatives are those of all at once; near ones in a step, too."""
    system, q0, u0 = many(3)
    kernels = {group.kernel for group in pairs.groups(system.structure) if pairs.one_by_one(group)}
    assert kernels == {"ball and capsule", "ball and box", "capsule and box", "boxes"}

    def found():
        @quick
        def evaluate(q):
            near = system.keeping_rows(0.0, q, u0, 1e-2).gap(0.0, q)
            return system.touches(0.0, q), jax.jvp(lambda q: system.gap(0.0, q), (q,), (system.q_dot(0.0, q, u0),))[1], near

        jax.clear_caches()
        return evaluate(q0)

    one_by_one = found()
    for name in ("MANY", "MANY_BOXES"):
        monkeypatch.setattr(pairs, name, 10**6)
    at_once = found()
    jax.clear_caches()
    jax.tree.map(lambda a, b: assert_allclose(a, b, rtol=1e-12, atol=1e-13), one_by_one[:2], at_once[:2])
    gap, near = np.asarray(at_once[0].gap), np.asarray(one_by_one[2])
    assert_allclose(near[gap < 0.1], gap[gap < 0.1], rtol=1e-12, atol=1e-13)
    assert np.sum(gap < 0.1) > 3 and np.all(near >= gap - 1e-12) and np.any(near > gap + 1)


BLOCK = Points(0.1 * np.array(list(itertools.product((-1, 1), repeat=3))))


@pytest.mark.parametrize("force", ["weight", pytest.param("motor", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "shape",
    [Sphere(0.1), *(pytest.param(shape, marks=pytest.mark.slow) for shape in (Box((0.2,) * 3), BLOCK))],
    ids=["ball", "box", "hull"],
)
def test_what_falls_from_rest_hits_in_its_first_step(shape, force):
    """A pair that is apart and at rest is not left out of a step in which a force closes it: on position level nothing sinks in."""
    floor = [dataclasses.replace(shape, name=f"stand {k}", position=(float(k), 0.0, 0.0)) for k in range(4)]
    parts = [Body(f"body {k}", 1.0, (1e-2,) * 3, joints=Prismatic(), position=(k, 0, 0.201), shapes=shape) for k in range(4)]
    pushed = {"gravity": (0, 0, -10.0)} if force == "weight" else {"gravity": (0, 0, 0), "control": -10 * np.ones(4)}
    motors = [] if force == "weight" else [Motor(f"body {k}") for k in range(4)]
    contacts = [Pair(f"stand {k}", f"body {k}") for k in range(4)]
    system = bodies.assemble(parts, floor, contacts=contacts, motors=motors, **pushed)
    assert pairs.left_out_where_far(system.structure)
    sol = simulate(system, Lobatto(2), *system.initial_state(), n_steps=1, dt=2e-2).raise_if_failed()
    assert_allclose(sol.q[-1], -1e-3, atol=1e-12)  # in free fall it would be twice as far
    assert np.all(np.sum(sol.P_N[-1].reshape(4, -1), axis=1) > 0)


@pytest.mark.slow
def test_a_heap_of_many_kinds(monkeypatch):
    """They fall on each other: the same motion where all pairs are computed in every step."""
    system, q0, u0 = many(2)

    def motion():
        jax.clear_caches()
        return simulate(system, Moreau(), q0, u0, n_steps=200, dt=2e-3).raise_if_failed()

    sol = motion()
    assert sol.count(jaxnsd.Event.IMPACT) >= 6
    for name in ("MANY", "MANY_BOXES"):
        monkeypatch.setattr(pairs, name, 10**6)
    exact = motion()
    jax.clear_caches()
    assert_allclose(sol.q, exact.q, atol=1e-9)
