"""Convex bodies of many corners on a plane: four contacts, at corners that are there, the lowest one among them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.spatial import ConvexHull
from scipy.spatial.transform import Rotation

from jaxnsd import GeneralizedAlpha, Lobatto, LocatedImpacts, Moreau, MoreauJean, bodies, simulate

#: A prism, its ends polygons of 24 corners in an ellipse.
ANGLES = np.arange(24) * np.pi / 12
PRISM = np.concatenate([np.stack([0.2 * np.cos(ANGLES), 0.1 * np.sin(ANGLES), np.full(24, z)], axis=1) for z in (-0.05, 0.05)])
LEVEL = np.zeros(3), Rotation.identity()
FLOOR = np.array([0.1, -0.2, -0.5]), Rotation.from_euler("xyz", (0.3, -0.4, 0.2))


def on_floor(points, position=(0.0, 0.0, 0.0), orientation=(1.0, 0.0, 0.0, 0.0), floor=LEVEL, e_N=0.0):
    """A body that touches with these points, and a floor."""
    solid = bodies.Body(
        "solid", 1.0, (3e-3, 6e-3, 8e-3), shapes=bodies.Points(points, name="hull"), position=position, orientation=orientation
    )
    plane = bodies.Plane(name="floor", position=tuple(floor[0]), orientation=tuple(floor[1].as_quat(scalar_first=True)))
    return bodies.assemble([solid], plane, contacts=[bodies.Pair("hull", "floor", 0.5, e_N)], gravity=(0.0, 0.0, -9.81))


def corners(q, points):
    """Where the corners are, (n, 3)."""
    return Rotation.from_quat(q[3:], scalar_first=True).apply(points) + q[:3]


def test_gaps_are_those_of_corners_and_the_lowest_is_among_them():
    """A body of 60 corners at 200 random poses over a plane that is turned; the gap changes as its velocity says."""
    rng = np.random.default_rng(1)
    points = rng.standard_normal((60, 3))
    points *= 0.3 / np.linalg.norm(points, axis=1, keepdims=True) * np.array([1.0, 0.7, 0.4])
    system = on_floor(points, floor=FLOOR)
    q = rng.standard_normal((200, 7))
    q[:, 3:] /= np.linalg.norm(q[:, 3:], axis=1, keepdims=True)
    u = rng.standard_normal((200, 6))

    def looked_at(q, u):
        rate = jax.jvp(lambda q: system.gap(0.0, q), (q,), (system.q_dot(0.0, q, u),))[1]
        return system.gap(0.0, q), rate, system.gap_velocity(0.0, q, u)

    gaps, rates, velocities = jax.jit(jax.vmap(looked_at))(q, u)
    assert gaps.shape == (200, 4)
    normal = FLOOR[1].as_matrix()[:, 2]
    for at, gap in zip(q, np.asarray(gaps), strict=True):
        of_all = (corners(at, points) - FLOOR[0]) @ normal
        assert_allclose(gap[0], of_all.min(), atol=1e-14)
        assert np.all(np.abs(gap[gap < 10, None] - of_all).min(axis=1) < 1e-14)
    assert_allclose(rates, velocities, atol=1e-13)


@pytest.mark.parametrize("turn", [0.0, 0.4])
def test_four_corners_span_the_face_on_which_a_body_stands(turn):
    """They have half of its area at least (2/pi of an ellipse's is the most that four have), and the centre of mass is over them."""
    system = on_floor(PRISM, (0.0, 0.0, 0.05), tuple(Rotation.from_euler("z", turn).as_quat(scalar_first=True)))
    q, _ = system.initial_state()
    assert_allclose(system.gap(0.0, q), 0.0, atol=1e-15)
    there = np.asarray(system.touches(0.0, q).second)
    hull = ConvexHull(there[:, :2])
    assert len(hull.vertices) == 4 and hull.volume > 0.5 * np.pi * 0.2 * 0.1
    assert np.all(hull.equations[:, 2] < 0), "the centre of mass is not over them"


@pytest.mark.parametrize(("turns", "there"), [("", 4), ("x", 2), ("y", 2), ("xy", 1)])
def test_a_cube_on_a_side_an_edge_a_corner(turns, there):
    """Of 26 points, in the middle of sides and edges too, those at the corners are taken."""
    cube = np.array(np.meshgrid(*[np.linspace(-0.1, 0.1, 3)] * 3)).reshape(3, -1).T
    cube = cube[np.abs(cube).max(axis=1) == 0.1]
    turned = Rotation.from_euler("".join(turns), [0.4] * len(turns)) if turns else Rotation.identity()
    system = on_floor(cube, (0.0, 0.0, 0.3), tuple(turned.as_quat(scalar_first=True)))
    q, _ = system.initial_state()
    near = np.asarray(system.gap(0.0, q)) < 1
    assert near.sum() == there
    local = turned.inv().apply(np.asarray(system.touches(0.0, q).second)[near] - np.array([0, 0, 0.3]))
    assert_allclose(np.abs(local), 0.1, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("tilt", [0.0, 0.3, 1.2])
def test_a_prism_comes_to_rest_on_an_end(tilt):
    """No corner goes deeper than one falls in a step; all steps are solved; where the body rests it stays, to round-off."""
    orientation = np.cos(tilt / 2), 0.6 * np.sin(tilt / 2), 0.8 * np.sin(tilt / 2), 0.0
    system = on_floor(PRISM, (0.0, 0.0, 0.4), orientation, e_N=0.2)
    q, u = system.initial_state()
    sol = simulate(system, Moreau(), q, u, t1=3.0, dt=1e-3).raise_if_failed()
    height = np.array([corners(q, PRISM)[:, 2] for q in np.asarray(sol.q)])
    assert height.min() > np.diff(height, axis=0).min()
    at_end = np.asarray(sol.q)[-500:]
    assert_allclose(at_end - at_end[-1], 0.0, atol=1e-12)
    lowest = np.sort(height[-1])
    assert np.all(np.abs(lowest[:24] - lowest[0]) < 1e-3), "it does not stand on an end"


# ---------------------------------------------------------------------------------------------- rows that would change places
#: A plate in a plane that stands on two corners, and what more of it there may be, that touches nothing.
EDGE = ((-0.1, 0.0, 0.0), (0.1, 0.0, 0.0))
ABOVE = tuple((x, y, 0.0) for x in np.linspace(-0.08, 0.08, 6) for y in (0.1, 0.15))


def fallen_plate(points, scheme):
    """Velocities of the plate at the end as a function of its first spin: it falls on one corner, then on the other."""
    half = np.sqrt(0.5)
    plate = bodies.Body(
        "plate", 1.0, (0.02,) * 3, (0, 0.05, 0), joints=bodies.planar("plate"), position=(0, 0.2, 0), shapes=bodies.Points(points)
    )
    floor = bodies.Plane(orientation=(half, -half, 0, 0))
    system = bodies.assemble([plate], floor, gravity=(0, -9.81, 0), mu=0.3, e_N=0.3, plane="xy")
    q0, u0 = system.initial_state()
    return lambda spin: simulate(system, scheme, q0.at[-1].set(0.3), u0.at[0].set(0.4).at[2].set(spin), t1=0.57, dt=1e-3).u[-1]


@pytest.mark.parametrize(
    "scheme",
    [MoreauJean(), *(pytest.param(s, marks=pytest.mark.slow) for s in (GeneralizedAlpha(), Lobatto(2), LocatedImpacts(Moreau())))],
    ids=str,
)
def test_restitution_is_that_of_the_corner_that_hits(scheme):
    """Corners that do not touch change nothing, in whichever order they stand, though with them the lowest one is the first row."""
    assert_allclose(fallen_plate(ABOVE + EDGE[::-1], scheme)(0.0), fallen_plate(EDGE, scheme)(0.0), rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_derivatives_are_those_of_the_corner_that_hits():
    """The jump that an impact adds to the tangent asks for the gap of the corner before and after."""
    more, few = (jax.jvp(fallen_plate(points, Moreau()), (0.0,), (1.0,)) for points in (ABOVE + EDGE, EDGE))
    assert_allclose(more, few, rtol=1e-8, atol=1e-9)


@pytest.mark.slow
def test_a_cube_on_a_plane_as_a_hull_and_on_a_box():
    """Three formulations of one toss with restitution, by a scheme that takes velocities at two places."""
    cube = np.stack(np.meshgrid(*[(-0.05, 0.05)] * 3, indexing="ij"), axis=-1).reshape(8, 3)
    hull = bodies.Points(np.concatenate([np.random.default_rng(0).uniform(-0.02, 0.02, (6, 3)), cube]))
    box, ground = bodies.Box((0.1, 0.1, 0.1)), bodies.Box((5.0, 5.0, 1.0), position=(0.0, 0.0, -0.5))

    def tossed(shape, floor):
        system = bodies.assemble([bodies.Body("cube", 1.0, (3.33e-3,) * 3, shapes=shape)], floor, mu=0.3, e_N=0.5)
        q0, u0 = system.initial_state()
        sol = simulate(system, MoreauJean(), q0.at[2].set(0.1015), u0.at[3:5].set(jnp.array([0.35, 0.21])), t1=0.4, dt=1e-3)
        assert sol.success
        return sol.u

    first = tossed(box, bodies.Plane())
    for shape, floor in ((hull, bodies.Plane()), (box, ground)):
        assert_allclose(tossed(shape, floor), first, atol=1e-7)
