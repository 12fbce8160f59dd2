"""What films and pages show is where the system says it is; files hold the frames that they should; a page works in a browser."""

import base64
import gzip
import io
import json
import os
import re
import shutil
import subprocess
import sys
import types
import warnings
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image

import jaxnsd
from jaxnsd import bodies, drawing, models
from jaxnsd.drawing import films, meshes, raster, scene
from jaxnsd.models import BouncingBall, CornerBlock, Cube, DoublePendulum, RotatingBall, SliderCrankMinimal, Woodpecker, elastic_bar
from jaxnsd.programs.fingerprint import fingerprint

BROWSERS = "chromium", "chromium-browser", "google-chrome", "google-chrome-stable"


@jax.tree_util.register_dataclass
@dataclass
class Motion:
    """What a picture takes of a `Solution`."""

    t: jax.Array
    q: jax.Array
    u: jax.Array
    P_N: jax.Array
    P_F: jax.Array
    scheme = None


def still(system, q, t1=1.0, n=11, P_N=None):
    """A motion that was not simulated: the coordinates (n_q,) or (n, n_q) at n times."""
    q = jnp.broadcast_to(jnp.asarray(q), (n, np.shape(q)[-1]))
    contacts = np.zeros((n - 1, jax.eval_shape(system.gap, 0.0, q[0]).shape[0]))
    u = jnp.zeros((n, len(system.velocity_names)))
    P_N = contacts if P_N is None else P_N
    return Motion(jnp.linspace(0.0, t1, n), q, u, P_N, np.zeros((*P_N.shape, 2)))


@pytest.fixture(scope="module")
def box():
    """A box with a ball beside its frame, on a floor."""
    shapes = [bodies.Box((0.4, 0.2, 0.6)), bodies.Sphere(0.1, position=(0.5, 0, 0))]
    parts = [bodies.Body("box", 1.0, shapes=shapes), bodies.Body("rod", 1.0, (0.1, 0.1, 0.1), (0, 0, 0.2), bodies.Revolute(), "box")]
    return bodies.assemble(parts, bodies.Plane(name="floor"), contacts=())


def shown(system, sol, interval=0.1, **options):
    return scene.of("film", scene.checked("film", system, sol, None, None), interval, **options)


# -------------------------------------------------------------------------------------------------------------- shapes
def volume(mesh):
    """By the divergence theorem; negative for a mesh that is inside out."""
    return np.sum(np.linalg.det(mesh.corners)) / 6


def test_meshes_are_closed_and_as_large_as_their_shapes():
    around = np.sinc(1 / 16)  # of a regular polygon with 32 corners
    ball = 4 / 3 * np.pi * 0.3**3
    for mesh, exact, error in (
        (meshes.box((0.1, 0.2, 0.3)), 0.048, 1e-12),
        (meshes.cylinder(0.2, 0.5), np.pi * 0.04 * around, 1e-12),
        (meshes.sphere(0.3), ball, 0.02),
        (meshes.capsule(0.3, 0.4), ball + np.pi * 0.09 * 0.8, 0.02),
        (meshes.ellipsoid((0.1, 0.2, 0.3)), 4 / 3 * np.pi * 0.006, 0.02),
        (meshes.arrow((0, 0, 1.0), 0.01), np.pi * 1e-4 * (0.95 + 2.4**2 * 0.05 / 3) * np.sinc(1 / 8), 1e-9),
        (meshes.rod((0, 0, 0), (1.0, 2, 2), 0.1), 3 * np.pi * 0.01 * around, 1e-12),
    ):
        assert_allclose(volume(mesh), exact, rtol=error)
        sides = mesh.corners[:, [1, 2, 0]] - mesh.corners
        # Of a closed surface all vectors of area add up to nothing.
        assert_allclose(np.sum(np.cross(sides[:, 0], sides[:, 1]), axis=0), 0, atol=1e-12)
        assert np.all(np.sum(np.cross(sides[:, 0], sides[:, 1])[:, None] * mesh.normals, axis=2) > 0)
        assert_allclose(np.linalg.norm(mesh.normals, axis=2), 1, rtol=2e-3)


def test_hull():
    corners = np.stack(np.meshgrid(*[(-1.0, 1.0)] * 3, indexing="ij"), axis=-1).reshape(8, 3)
    inside = np.random.default_rng(0).uniform(-1, 1, (50, 3))
    assert_allclose(volume(meshes.hull(np.concatenate([inside, corners, [[1, 0, 0], [0.5, 1, 0.2]]]))), 8)
    assert_allclose(volume(meshes.hull([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]])), 1 / 6)
    flat = meshes.hull([[0.0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0]])
    assert_allclose(np.linalg.norm(np.cross(*np.moveaxis(flat.corners[:, 1:] - flat.corners[:, :1], 1, 0)), axis=1).sum() / 2, 2)
    assert not len(meshes.hull([[0.0, 0, 0], [1, 1, 1]]).light)


@pytest.mark.slow
def test_hull_of_many_points():
    hull = pytest.importorskip("scipy.spatial").ConvexHull
    points = np.random.default_rng(1).normal(size=(400, 3)) * [1, 2, 0.5]
    assert_allclose(volume(meshes.hull(points)), hull(points).volume)


# -------------------------------------------------------------------------------------------------------------- pixels
def test_pixels_of_triangles_are_those_inside():
    x, y = np.random.default_rng(2).uniform(-5, 25, (2, 30, 3))
    triangle, row, column = raster.spans(x, y, 20, 15)
    found = np.zeros((30, 15, 20), int)
    np.add.at(found, (triangle, row, column), 1)
    J, I = np.meshgrid(np.arange(20), np.arange(15))  # noqa: E741
    sides = [(np.roll(x, -1, 1)[:, k, None, None] - x[:, k, None, None]) * (I - y[:, k, None, None]) for k in range(3)]
    sides = [s - (np.roll(y, -1, 1)[:, k, None, None] - y[:, k, None, None]) * (J - x[:, k, None, None]) for k, s in enumerate(sides)]
    inside = np.all([s > 0 for s in sides], axis=0) | np.all([s < 0 for s in sides], axis=0)
    assert_array_equal(found, inside)


def test_a_camera_sees_all_points_and_where_they_are():
    points = np.random.default_rng(3).normal(size=(50, 3)) * [3, 1, 0.2]
    camera = raster.aimed(points, raster.axes_of(0.3, 0.4, 2), 400, 300)
    x, y, depth = camera.seen(points)
    assert depth.min() > 0 and x.min() > 5 and x.max() < 395 and y.min() > 5 and y.max() < 295
    assert min(np.ptp(x) / 400, 1) > 0.8 or np.ptp(y) / 300 > 0.8
    # From behind y, x is to the right and z upwards.
    assert_allclose(raster.axes_of(-np.pi / 2, 0.0, 2), [[1, 0, 0], [0, 0, 1], [0, 1, 0]], atol=1e-15)
    for up in range(3):
        assert_allclose(np.linalg.det(raster.axes_of(0.3, 0.4, up)), -1)


def test_a_ball_is_as_large_as_it_should_be_and_hides_what_is_behind():
    camera = raster.Camera(np.array([0.0, -10.0, 0.0]), raster.axes_of(-np.pi / 2, 0.0, 2), 500.0, 200, 200)
    ball, behind = meshes.sphere(1.0, 48), meshes.box((0.4, 0.4, 0.4)).moved(np.eye(3), np.array([0, 5.0, 0]))
    picture = raster.render(camera, raster.painted([(ball, (0.0, 0, 1)), (behind, (1.0, 0, 0))]))
    covered = (picture < 250).any(axis=2).sum()
    assert_allclose(covered, np.pi * 500**2 / 99, rtol=0.03)
    assert not ((picture[..., 0].astype(int) - picture[..., 2]) > 60).any()
    both = raster.painted([(behind, (1.0, 0, 0))])
    seen_through = raster.render(camera, both, ghosts=[raster.painted([(ball, (0.0, 0, 1))])])
    assert ((seen_through[..., 0].astype(int) - seen_through[..., 1]) > 60).any()


# ------------------------------------------------------------------------------------------------------------ the scene
def test_bodies_are_where_their_pose_says(box):
    """A quarter turn about z takes the ball from beside x to beside y; between two nodes half of it is had."""
    q0, _ = box.initial_state()
    angle = jnp.linspace(0, jnp.pi / 2, 11)
    q = jnp.tile(q0, (11, 1)).at[:, 3].set(jnp.cos(angle / 2)).at[:, 6].set(jnp.sin(angle / 2)).at[:, 2].set(1.0)
    found = shown(box, still(box, q), 0.5)
    solid = next(part for part in found.solids if part.name == "box")
    assert_allclose(solid.rotation[-1], [[0, -1, 0], [1, 0, 0], [0, 0, 1]], atol=1e-12)
    assert_allclose(solid.rotation[1][:, 0], [np.sqrt(0.5), np.sqrt(0.5), 0], atol=1e-12)
    corners = solid.mesh.moved(solid.rotation[-1], solid.position[-1]).corners.reshape(-1, 3)
    assert_allclose(corners.max(axis=0), [0.1, 0.6, 1.3], atol=1e-9)
    assert_allclose(corners.min(axis=0), [-0.1, -0.2, 0.7], atol=1e-9)
    assert [ground.name for ground in found.grounds] == ["floor"]
    assert_allclose(found.track("box"), np.tile([0.0, 0.0, 1.0], (3, 1)), atol=1e-12)
    # The body without a shape is a rod to its centre of mass, and a ball there.
    rod = next(part for part in found.solids if part.name == "rod")
    assert_allclose(rod.mesh.corners[..., 2].max(), 0.2 + 2 * 0.04 * 0.2, rtol=1e-9)
    # A node lies between the times that are drawn.
    half = shown(box, still(box, q[::10], n=2), 0.5)
    assert_allclose(half.solids[0].rotation[1][:, 0], [np.sqrt(0.5), np.sqrt(0.5), 0], atol=1e-12)


@pytest.mark.parametrize(
    "make",
    [
        SliderCrankMinimal,
        Woodpecker,
        *(pytest.param(m, marks=pytest.mark.slow) for m in (BouncingBall, RotatingBall, CornerBlock, DoublePendulum, Cube)),
    ],
)
def test_drawn_contacts_move_as_gaps_and_slips_say(make):
    """Along their normals the points at which contacts are drawn move with the velocities of the gaps; corners slip as they should."""
    system = make()
    q0, u0 = system.initial_state()
    q, u = q0 + 0.01 * jnp.arange(1.0, 1 + len(q0)), u0 + 0.3
    if make is Cube:
        q = q.at[3:].divide(jnp.linalg.norm(q[3:]))
    q_dot = system.q_dot(0.0, q, u)
    (points, normals, *tangents), (velocity, *_) = jax.jvp(lambda q: system.draw(0.0, q)["contacts"], (q,), (q_dot,))
    assert_allclose(jnp.sum(velocity * normals, axis=1), system.gap_velocity(0.0, q, u), rtol=1e-9, atol=1e-9)
    if make in (CornerBlock, SliderCrankMinimal, Cube):
        tangents = tangents[0].reshape(len(points), -1, points.shape[1])
        slip = jnp.einsum("id,ijd->ij", velocity, tangents)
        assert_allclose(slip, system.tangential_velocity(0.0, q, u), rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_every_model_draws_itself_or_says_that_it_does_not():
    for name, make in jaxnsd.models.MODELS.items():
        system = make()
        sol = still(system, system.initial_state()[0], n=3)
        if name == "elastic_bar":
            continue
        found = shown(system, sol, 0.5, arrows=False)
        assert found.solids or found.balls or found.lines, name


def test_words_of_draw():
    @jaxnsd.system
    class All(BouncingBall):
        def draw(self, t, q):
            return {
                "point": jnp.stack([t, q[0]]),
                "line": [[0.0, 0.0], [1.0, 1.0]],
                "area": jnp.asarray([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 0.0]]) + q[None],
                "lines": jnp.zeros((3, 2, 2)) + q[None, None] + t,
                "disc": (jnp.stack([0.0 * t, q[0]]), 0.2, t),
                "discs": (jnp.zeros((2, 2)) + t, jnp.ones(2)),
                "wall": ([0.5, 0.0], [-2.0, 0.0]),
            }

    q = jnp.linspace(1.0, 2.0, 11)[:, None]
    found = shown(All(), still(All(), q), 0.25)
    balls, lines = {part.name: part for part in found.balls}, {part.name: part for part in found.lines}
    assert_allclose(balls["point"].centre[:, 0], np.stack([found.t, 1 + found.t], axis=1), atol=1e-12)
    assert not balls["point"].radius.any()
    assert_allclose(balls["disc"].angle[:, 0], found.t)
    assert balls["discs"].centre.shape == (5, 2, 2)
    assert [lines[name].filled for name in ("line", "area", "lines")] == [False, True, False]
    assert lines["line"].colour == scene.FIXED != lines["area"].colour
    assert lines["lines"].points.shape == (5, 3, 2, 2)
    assert_array_equal(found.grounds[0].normal, [-1.0, 0.0])
    with pytest.raises(KeyError, match="nothing that is drawn is called 'disk'; there is 'disc', 'discs', 'point', 'area'"):
        found.track("disk")


def test_arrows_are_the_forces_of_contacts():
    """A ball at rest is carried by its weight, and a percussion is seen as long as it should be, where it acted."""
    system = RotatingBall(e_N=0.0)
    sol = jaxnsd.simulate(system, jaxnsd.Moreau(), jnp.array([0.3, 0.1, 0.0]), jnp.zeros(3), 1.0, 0.01)
    found = shown(system, sol, 0.1)
    assert_allclose(found.forces[2:, 0], np.tile([0.0, 9.81], (9, 1)), rtol=1e-9, atol=1e-12)
    assert_allclose(found.points[1:, 0], np.tile([0.3, 0.0], (10, 1)), atol=1e-9)
    P_N = np.zeros((10, 1))
    P_N[4] = 2.0
    found = shown(system, still(system, [0.3, 0.1, 0.0], P_N=P_N), 0.05, held=0.2)
    there = found.forces[:, 0, 1] > 0
    assert_array_equal(found.t[there].round(9), [0.5, 0.55, 0.6, 0.65])
    assert_allclose(found.forces[there, 0, 1], 2.0 / 0.2)
    ((start, vector),) = found.arrows(int(np.argmax(there)))
    assert_allclose(start, [0.3, 0.0], atol=1e-12)
    assert_allclose(vector, [0.0, scene.LONGEST * found.size])


@pytest.mark.parametrize("times", [np.arange(0.2, 0.8, 0.004), np.array([0.0, 0.3, 0.31, 0.345, 0.75]), np.arange(0.0, 0.8, 0.01)])
def test_arrows_at_times_of_ones_own_are_as_long(times):
    """A weight of 9.81 N is that at every stored time but the first, whether steps of 0.01 s end between two of them or none, or many."""
    system = RotatingBall(e_N=0.0)
    sol = jaxnsd.simulate(system, jaxnsd.Moreau(), jnp.array([0.3, 0.1, 0.0]), jnp.zeros(3), 1.0, 0.01, save_at=times)
    found = scene._forces(sol, times, 0.12, *scene._contacts("film", system, sol))[2][:, 0, 1]
    acted = np.cumsum(np.append(0, sol.P_N[:, 0] > 0)) > 0
    assert acted[4:].all()
    assert_allclose(found[acted], 9.81, rtol=1e-6)
    assert_array_equal(found[~acted], 0)


def test_forces_on_bodies_act_on_what_moves():
    """The world's floor pushes upwards, whichever of two shapes is the first."""
    ball = bodies.Body("ball", 1.0, shapes=bodies.Sphere(0.1), position=(0, 0, 0.1))
    system = bodies.assemble([ball], bodies.Plane(name="floor"))
    P_N = np.full((10, 1), 0.981)
    sol = still(system, system.initial_state()[0], P_N=P_N)
    found = shown(system, sol, 0.1, held=0.2)
    assert found.contacts == ("floor and ball_sphere",)
    assert_allclose(found.forces[3, 0], [0, 0, 9.81], atol=1e-12)
    assert_allclose(found.points[3, 0], 0, atol=1e-12)


# ---------------------------------------------------------------------------------------------------------------- films
@pytest.fixture(scope="module")
def bouncing():
    return jaxnsd.simulate(BouncingBall(), jaxnsd.Moreau(), jnp.array([0.4]), jnp.zeros(1), 1.0, 0.01)


def test_a_gif_has_its_frames_and_lasts_as_long(bouncing, tmp_path):
    made = drawing.film(BouncingBall(), bouncing, tmp_path / "ball.gif", fps=12.0, speed=0.5, size=(160, 120))
    assert (made.frames, made.kind, made.size) == (25, "gif", (160, 120))
    seconds, frames = 0, []
    with Image.open(tmp_path / "ball.gif") as picture:
        assert picture.size == (160, 120)
        for k in range(picture.n_frames):
            picture.seek(k)
            seconds += picture.info["duration"] / 1000
            frames.append(np.asarray(picture.convert("RGB")).astype(int))
    assert_allclose(seconds, 25 / 12, atol=0.006)
    # GIF stores equal neighbours once; the ball is blue, and lower at 0.25 s than at the start.
    height = [np.mean(np.nonzero(frame[..., 2] - frame[..., 0] > 40)[0]) for frame in (frames[0], frames[6])]
    assert height[1] > height[0] + 5
    text = made._repr_html_()
    assert text.startswith("<img src=") and "http" not in text


def test_a_film_in_space_of_two_members():
    system = Cube()
    q0, _ = system.initial_state()
    q = jnp.stack([q0, q0.at[0].add(0.3)])[:, None] * jnp.ones((2, 3, 1))
    batch = Motion(jnp.broadcast_to(jnp.linspace(0, 0.1, 3), (2, 3)), q, jnp.zeros((2, 3, 6)), *(jnp.zeros((2, 2, 8, d)) for d in (1, 2)))
    batch.P_N = batch.P_N[..., 0]
    made = drawing.film(system, batch, members=[0, -1], size=(160, 120), follow="cube")
    assert made.frames == 3 and made.path is None and "Film(" in repr(made)
    parts = scene.checked("film", [system, Cube(side=0.2)], batch, [(0,), 1], None)
    found = scene.of("film", parts, 0.05)
    assert [part.ghost for part in found.lines] == [False, True]
    assert_allclose(np.ptp(found.lines[1].points[0].reshape(-1, 3), axis=0), 0.2)
    assert_allclose(found.lines[1].points[0, :, :-1].mean(axis=(0, 1)), [0.3, 0.0, 0.25], atol=1e-12)


@pytest.mark.slow
def test_an_mp4_has_its_frames_and_lasts_as_long(bouncing, tmp_path):
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    made = drawing.film(BouncingBall(), bouncing, tmp_path / "ball.mp4", size=(320, 240), title="ball")
    assert ffmpeg.count_frames_and_secs(str(tmp_path / "ball.mp4")) == (26, pytest.approx(26 / 25, abs=0.02))
    assert made.frames == 26 and made.seconds == 26 / 25
    assert "video/mp4;base64" in made._repr_html_()


def test_letters_fit_into_small_pictures():
    """The label below the axes and the names of what moves leave a border of white, as in large pictures."""

    @jaxnsd.system
    class Many(BouncingBall):
        def draw(self, t, q):
            return {f"a thing with a name, {i}": jnp.stack([q[0], 0.1 * i + 0 * t]) for i in range(8)}

    q = jnp.linspace(0.0, 1.0, 11)[:, None]
    for size in ((800, 600), (480, 360), (320, 240)):
        found = shown(Many(), still(Many(), q), 0.5, arrows=False)
        picture = films.painter(found, None, None, size, "")(1)
        border = np.concatenate([picture[:2].reshape(-1, 3), picture[-2:].reshape(-1, 3), picture[:, :2].reshape(-1, 3)])
        assert border.min() > 200, size
        # Some of the label's ink is below the axis and its numbers.
        assert picture[-25:].min() < 120, size


# ---------------------------------------------------------------------------------------------------------------- pages
def unpacked(page):
    """``(scene, array)`` of a page: what it holds, and a function that takes an array out of its numbers."""
    parts = dict(re.findall(r'<script id="(\w+)" type="[\w/]+">(.*?)</script>', page.html, re.S))
    numbers = np.frombuffer(gzip.decompress(base64.b64decode(parts["numbers"])), "<f4")
    return json.loads(parts["scene"]), lambda place, *shape: numbers[place[0] : sum(place)].reshape(shape or -1)


def test_a_page_says_the_name_of_the_model(tmp_path):
    """Of the model, of its file where it has none, or the class of the system; it moves nothing, so nothing is compiled anew."""
    text = '<mujoco{}><worldbody><body name="ball"><freejoint/><geom size="0.1"/></body></worldbody></mujoco>'
    (tmp_path / "thrown.xml").write_text(text.format(""))
    unnamed = bodies.from_mjcf(text.format(""))
    for model, name in ((text.format(' model="my ball"'), "my ball"), (tmp_path / "thrown.xml", "thrown"), (text.format(""), "Multibody")):
        ball = bodies.from_mjcf(model)
        assert jax.tree.structure(ball) == jax.tree.structure(unnamed)
        made = drawing.page(ball, still(ball, jnp.tile(ball.initial_state()[0], (11, 1))))
        assert unpacked(made)[0]["title"] == name and f"<title>{name}</title>" in made.html


def test_a_page_holds_the_motion(box, tmp_path):
    q0, _ = box.initial_state()
    angle = jnp.linspace(0.0, 4.0, 51)
    q = jnp.tile(q0, (51, 1)).at[:, 3].set(jnp.cos(angle / 2)).at[:, 5].set(jnp.sin(angle / 2)).at[:, 2].set(1 - angle**2 / 40)
    sol = still(box, q, 0.5, 51)
    sol.u = sol.u.at[:, 4].set(8.0).at[:, 2].set(-0.4 * angle)
    made = drawing.page(box, sol, tmp_path / "box.html", title="<box> {{numbers}}")
    assert made.html == (tmp_path / "box.html").read_text()
    assert "<title>&lt;box&gt; {{numbers}}</title>" in made.html
    data, array = unpacked(made)
    assert data["title"] == "<box> {{numbers}}"
    t = array(data["t"])
    assert len(t) == made.frames == 26 and data["dimension"] == 3
    assert_allclose(t, np.asarray(sol.t)[::2], rtol=1e-6)
    pose = jax.jit(jax.vmap(box.pose))(sol.t[::2], sol.q[::2])
    solid = next(part for part in data["solids"] if part["name"] == "box")
    assert_allclose(array(solid["position"], -1, 3), pose.position[:, 0], rtol=1e-6, atol=1e-6)
    x, y, z, w = array(solid["quaternion"], -1, 4).T
    R = meshes.of_numbers(np.stack([w, x, y, z], axis=1))
    assert_allclose(R, pose.rotation[:, 0], atol=1e-6)
    energy = {curve["name"]: array(curve["values"]) for curve in data["plots"][0]["curves"]}
    kinetic = jax.jit(jax.vmap(box.kinetic_energy))(sol.t[::2], sol.q[::2], sol.u[::2])
    assert_allclose(energy["kinetic"], kinetic, rtol=1e-5)
    assert_allclose(energy["total"], energy["kinetic"] + energy["potential"], rtol=1e-5)
    # It may ask for nothing: the policy allows no address, and there is none outside of the compressed library.
    assert "default-src 'none'" in made.html and not re.search(r"(src|href)=.?https?:", made.html)
    assert "<iframe srcdoc=" in made._repr_html_() and "Page(" in repr(made)


def test_a_page_of_a_plane_holds_discs_and_percussions(bouncing):
    data, array = unpacked(drawing.page(BouncingBall(), bouncing, speed=0.5))
    (solid,) = data["solids"]
    assert data["dimension"] == 2 and solid["name"] == "ball"
    assert_allclose(array(solid["position"], -1, 3)[:, 1], np.asarray(bouncing.q[:, 0]) + 0.05, rtol=1e-5)
    percussions = data["plots"][1]["curves"][0]
    assert percussions["name"] == "contact 0"
    assert_allclose(array(percussions["values"])[1:], bouncing.P_N[:, 0], rtol=1e-5, atol=1e-9)
    pecked = still(Woodpecker(), Woodpecker().initial_state()[0], P_N=np.ones((10, 3)))
    data, _ = unpacked(drawing.page(Woodpecker(), pecked))
    assert [curve["name"] for curve in data["plots"][1]["curves"]] == data["contacts"] == list(Woodpecker.contact_names)


def test_a_page_that_follows_has_what_is_around_in_the_picture():
    """A foot that hangs far below what is followed is seen from the first camera."""
    foot = bodies.Body("foot", 0.1, shapes=bodies.Sphere(0.05), joints=(), parent="trunk", position=(0, 0, -0.8))
    system = bodies.assemble([bodies.Body("trunk", 1.0, shapes=bodies.Box((0.3, 0.2, 0.1)), position=(0, 0, 0.9)), foot], contacts=())
    sol = still(system, system.initial_state()[0])
    data, _ = unpacked(drawing.page(system, sol, follow="trunk"))
    along = np.array([0, 0, 0.1]) - np.array([0, 0, 0.9])  # of the foot, from what is followed, which is in the middle of the picture
    forward = -np.array(data["eye"])
    beside = along - along @ forward * forward
    # 32 degrees from the upper border to the lower one.
    assert np.linalg.norm(beside) + 0.05 < np.tan(np.radians(16)) * (data["distance"] + along @ forward)


def test_neighbouring_quaternions_have_one_sign():
    from jaxnsd.drawing.pages import quaternions

    angle = np.linspace(0, 4 * np.pi, 101)
    R = np.tile(np.eye(3), (101, 1, 1))
    R[:, 0, 0], R[:, 0, 1], R[:, 1, 0], R[:, 1, 1] = np.cos(angle), -np.sin(angle), np.sin(angle), np.cos(angle)
    p = quaternions(R)
    assert np.all(np.sum(p[1:] * p[:-1], axis=1) > 0.99)
    assert_allclose(np.linalg.norm(p, axis=1), 1)


# --------------------------------------------------------------------------------------------------------------- errors
def batch_of(sol):
    return jax.tree.map(lambda x: jnp.stack([x, x]), sol)


@pytest.mark.parametrize("make", [drawing.film, drawing.page], ids=["film", "page"])
@pytest.mark.parametrize(
    "change, error, match",
    [
        ({"path": "a.avi"}, ValueError, r"must end in \.\w+( or \.gif)?, got 'a.avi'"),
        ({"path": "nowhere/a.gif.html"}, ValueError, "(directory 'nowhere' does not exist)|(must end)"),
        ({"speed": 0.0}, ValueError, "speed must be a positive number, got 0.0"),
        ({"members": 0}, ValueError, "solution of one motion: leave it out"),
        ({"batch": True}, ValueError, r"got a batch of shape \(2,\): choose by members"),
        ({"batch": True, "members": [0, 2]}, ValueError, r"a number from 0 to 1, got 2"),
        ({"batch": True, "members": []}, ValueError, "must name one member at least"),
        ({"batch": True, "members": [0, 1], "system": [BouncingBall()] * 3}, ValueError, "one for each of the 2 members drawn, got 3"),
        ({"system": elastic_bar(3)}, TypeError, r"ElasticBar says nothing of what it looks like: give it a method draw\(t, q\)"),
        ({"system": "ball"}, TypeError, "system must be a System, .* got str"),
        ({"sol": 3}, TypeError, "sol must be a Solution, what jaxnsd.simulate returns, got int"),
        ({"nan": True}, ValueError, r"not finite from t = 0.2 s on; sol.raise_if_failed\(\) says why, and span=\(0, 0.19\) draws"),
        ({"span": (0.5, 2.0)}, ValueError, r"span must be two times between 0 and 1 s"),
        ({"follow": "bal"}, KeyError, "nothing that is drawn is called 'bal'; there is 'ball'"),
    ],
)
def test_what_is_given_wrongly_is_said(bouncing, tmp_path, monkeypatch, make, change, error, match):
    monkeypatch.chdir(tmp_path)
    change = dict(change)
    system, sol = change.pop("system", BouncingBall()), change.pop("sol", bouncing)
    if change.pop("batch", False):
        sol = batch_of(sol)
    if change.pop("nan", False):
        sol = jax.tree.map(lambda x: x, sol)
        object.__setattr__(sol, "q", sol.q.at[20:].set(jnp.nan))
    with pytest.raises(error, match=match):
        make(system, sol, **change)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "change, error, match",
    [
        ({"fps": -1}, ValueError, "fps must be a positive number, got -1"),
        ({"size": (33, 20)}, ValueError, r"even numbers from 16 to 8192, got \(33, 20\)"),
        ({"path": "a.mp4"}, ImportError, "an .mp4 needs imageio-ffmpeg: pip install imageio-ffmpeg, or write a .gif"),
    ],
)
def test_what_a_film_refuses(bouncing, monkeypatch, change, error, match):
    monkeypatch.setattr(films.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(error, match=match):
        drawing.film(BouncingBall(), bouncing, **change)


@pytest.mark.parametrize(
    "returned, match",
    [
        (jnp.zeros(2), "must return a dict of points and lines by name, got"),
        ({"a": jnp.zeros(4)}, r"must all have two, or all three, coordinates as last axis, got \{'a': \(4,\)\}"),
        ({"a": jnp.zeros(2), "b": jnp.zeros(3)}, "all have two, or all three"),
        ({"a": (jnp.zeros(2), jnp.zeros(3), 0.0, 1.0)}, r"draw\(t, q\)\['a'\] must be a point \(d,\)"),
        ({"a": jnp.zeros((1, 2))}, r"got shapes \(1, 2\)"),
    ],
)
def test_what_draw_returns_is_looked_at(bouncing, returned, match):
    @jaxnsd.system
    class Odd(BouncingBall):
        def draw(self, t, q):
            return returned

    with pytest.raises((TypeError, ValueError), match=match):
        drawing.film(Odd(), bouncing)


def test_a_body_without_a_shape_is_a_ball_with_its_inertia():
    system = bodies.assemble([bodies.Body("lump", 2.0, (0.2, 0.2, 0.2))])
    (solid,) = shown(system, still(system, system.initial_state()[0], n=3), 0.5).solids
    assert_allclose(solid.mesh.corners.max(), np.sqrt(0.2 / (0.4 * 2.0)))


def test_bodies_draw_more_of_themselves_in_space(box):
    @jaxnsd.system
    class Marked(bodies.Multibody):
        def draw(self, t, q):
            return {"mark": q[:3]}

    @jaxnsd.system
    class Flat(bodies.Multibody):
        def draw(self, t, q):
            return {"mark": q[:2]}

    sol = still(box, box.initial_state()[0], n=3)
    found = shown(Marked.from_system(box), sol, 0.5)
    assert {part.name for part in (*found.solids, *found.balls)} == {"box", "rod", "mark"}
    with pytest.raises(ValueError, match="system of bodies must return points in space, with three coordinates"):
        shown(Flat.from_system(box), sol, 0.5)


# -------------------------------------------------------------------------------------------------------- a real browser
#: What a visitor does, and what is then there to be seen.
VISIT = """
<script>
  window.addEventListener("error", event => { document.body.dataset.error = event.message; });
  window.addEventListener("unhandledrejection", event => { document.body.dataset.error = String(event.reason); });
  document.addEventListener("securitypolicyviolation", event => { document.body.dataset.error = event.blockedURI; });
  const wait = setInterval(() => {
    if (document.body.dataset.ready !== "yes") return;
    clearInterval(wait);
    const canvas = document.querySelector("#view canvas"), box = canvas.getBoundingClientRect(), out = {};
    jaxnsd.stop();
    jaxnsd.go(0);
    jaxnsd.controls.update();
    jaxnsd.camera.updateMatrixWorld(true);
    jaxnsd.world.updateMatrixWorld(true);
    const body = jaxnsd.world.children.find(mesh => mesh.name === NAME), at = body.position.clone().project(jaxnsd.camera);
    out.start = body.position.toArray();
    const x = box.left + box.width * (1 + at.x) / 2, y = box.top + box.height * (1 - at.y) / 2;
    canvas.dispatchEvent(new PointerEvent("pointermove", {clientX: x, clientY: y, buttons: 0, bubbles: true}));
    out.tip = document.getElementById("tip").textContent;
    out.nothing = jaxnsd.nameAt(box.left + 3, box.top + 3);
    jaxnsd.go(LAST);
    out.end = body.position.toArray();
    jaxnsd.go(LAST + 0.5);  // where it rests
    out.clock = document.getElementById("clock").textContent;
    const slider = document.getElementById("time");
    slider.value = 0.25;
    slider.dispatchEvent(new Event("input"));
    out.slid = jaxnsd.time;
    const before = jaxnsd.camera.position.toArray();
    canvas.dispatchEvent(new WheelEvent("wheel", {deltaY: 300, clientX: x, clientY: y, bubbles: true, cancelable: true}));
    jaxnsd.controls.update();
    out.zoomed = jaxnsd.camera.isOrthographicCamera ? jaxnsd.camera.zoom !== 1 : Math.hypot(...before) !== jaxnsd.camera.position.length();
    document.getElementById("play").click();
    const from = jaxnsd.time, began = Date.now();
    const played = setInterval(() => {
      out.played = jaxnsd.playing && jaxnsd.time !== from;
      if (!out.played && Date.now() < began + 4000) return;
      clearInterval(played);
      document.body.dataset.out = JSON.stringify(out);
    }, 50);
  }, 50);
</script>
"""


def visited(page, folder, name, last):
    """What a browser shows of a page, and its picture; skipped where there is no browser."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"needs a browser: none of {', '.join(BROWSERS)} is there")
    file = folder / "visit.html"
    script = VISIT.replace("NAME", json.dumps(name)).replace("LAST", str(last))
    file.write_text(page.html.replace("</body>", script + "</body>"))
    options = [
        "--headless",
        "--no-sandbox",
        "--use-gl=angle",
        "--use-angle=swiftshader",
        "--enable-unsafe-swiftshader",
        "--hide-scrollbars",
    ]
    options += ["--window-size=1000,640", "--virtual-time-budget=10000", "--enable-logging=stderr", f"--user-data-dir={folder / 'profile'}"]
    found = []
    for what in ("--dump-dom", f"--screenshot={folder / 'page.png'}"):
        done = subprocess.run([browser, *options, what, file.as_uri()], capture_output=True, text=True, timeout=180, check=False)
        assert "CONSOLE" not in done.stderr, done.stderr
        found.append(done.stdout)
    assert "data-error" not in found[0], re.findall(r'data-error="[^"]*"', found[0])
    out = re.search(r'data-out="([^"]*)"', found[0])
    assert out, done.stderr[-2000:]
    with Image.open(folder / "page.png") as picture:
        return json.loads(out[1].replace("&quot;", '"')), np.asarray(picture.convert("RGB")).astype(int)


@pytest.mark.slow
def test_a_page_in_a_browser(tmp_path):
    ball = bodies.Body("stone", 1.0, shapes=bodies.Sphere(0.1), position=(0, 0, 0.5))
    system = bodies.assemble([ball], bodies.Plane(name="floor"), e_N=0.5)
    sol = jaxnsd.simulate(system, jaxnsd.Moreau(), *system.initial_state(), 0.5, 0.005)
    seen, picture = visited(drawing.page(system, sol), tmp_path, "stone", 0.5)
    assert seen["tip"] == "stone" and seen["nothing"] == ""
    assert_allclose(seen["start"], [0, 0, 0.5], atol=1e-6)
    assert_allclose(seen["end"], np.asarray(sol.q[-1, :3]), atol=1e-6)
    assert seen["clock"] == "t = 0.50 s" and seen["slid"] == pytest.approx(0.25)
    assert seen["zoomed"] and seen["played"]
    # The first body's colour is orange or blue; the plots' curves are there, and the floor's two tones.
    left, right = picture[:600, :700], picture[:600, 725:]
    assert (np.ptp(left, axis=2) > 60).sum() > 500
    assert ((np.ptp(left, axis=2) < 6) & (left.max(axis=2) < 250)).sum() > 20000
    assert (np.ptp(right, axis=2) > 60).sum() > 200


@pytest.mark.slow
def test_a_page_of_a_plane_in_a_browser(tmp_path, bouncing):
    seen, picture = visited(drawing.page(BouncingBall(), bouncing), tmp_path, "ball", 1.0)
    assert seen["tip"] == "ball"
    assert_allclose(seen["start"][:2], [0, 0.45], atol=1e-6)
    assert_allclose(seen["end"][1], float(bouncing.q[-1, 0]) + 0.05, atol=1e-6)
    assert seen["zoomed"] and seen["played"]
    assert (np.ptp(picture[:600, :700], axis=2) > 40).sum() > 300


@pytest.mark.slow
def test_in_a_fresh_notebook_pictures_show_themselves_once(tmp_path):
    """A figure, a film and a page, without magics."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    start = f"""
import sys
sys.path[:0] = {[path for path in sys.path if path]!r}
import jax.numpy as jnp, jaxnsd
from jaxnsd import drawing, plotting
from jaxnsd.models import BouncingBall
sol = jaxnsd.simulate(BouncingBall(), jaxnsd.Moreau(), jnp.array([0.1]), jnp.zeros(1), 0.1, 0.01)
"""
    shows = [
        "plotting.overview(BouncingBall(), sol)",
        "drawing.film(BouncingBall(), sol, size=(64, 48))",
        "drawing.page(BouncingBall(), sol)",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in (start, *shows)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [[out for out in cell.outputs if out.output_type in ("execute_result", "display_data")] for cell in notebook.cells[1:]]
    assert [len(found) for found in outputs] == [1, 1, 1]
    kinds = [set(found[0].data) & {"image/png", "text/html"} for found in outputs]
    assert kinds == [{"image/png"}, {"text/html"}, {"text/html"}]


# --------------------------------------------------------------------------------------------------------- command line
def test_the_command_line_refuses_before_the_run(capsys, tmp_path):
    from jaxnsd.command_line import cli

    for arguments, match in (
        (["elastic_bar", "--page", str(tmp_path / "a.html")], "ElasticBar says nothing of what it looks like"),
        (["BouncingBall", "--film", str(tmp_path / "a.avi")], "must end in .mp4 or .gif"),
        (["BouncingBall", "--film", str(tmp_path / "a.gif"), "--follow", "bal"], "nothing that is drawn is called 'bal'"),
    ):
        assert cli.main(["run", *arguments]) == 2
        assert match in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_line_makes_film_and_page_of_a_file(tmp_path):
    pytest.importorskip("mujoco")
    command = [sys.executable, "-m", "jaxnsd", "run", "leg", "--t1", "0.2", "--film", "leg.gif", "--page", "leg.html", "--follow", "trunk"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    )
    assert done.returncode == 0, done.stderr
    assert "film        Film('leg.gif', gif, 6 frames" in done.stdout and "page        Page('leg.html'" in done.stdout
    data, _ = unpacked(types.SimpleNamespace(html=(tmp_path / "leg.html").read_text()))
    assert {part["name"] for part in data["solids"]} == {"trunk", "thigh", "shank"} and data["follow"] == "trunk"
    assert Image.open(io.BytesIO((tmp_path / "leg.gif").read_bytes())).n_frames == 6


@pytest.mark.slow
def test_meshes_of_a_file_are_drawn(tmp_path):
    """A tetrahedron that only a picture needs, on a body within a body that does not move against it."""
    pytest.importorskip("mujoco")
    xml = """<mujoco><asset><mesh name="tetra" vertex="0 0 0  1 0 0  0 1 0  0 0 1"/></asset><worldbody>
      <body name="a" pos="0 0 1"><freejoint/><geom type="sphere" size="0.1" group="3"/>
        <geom name="look" type="mesh" mesh="tetra" pos="0.5 0 0" contype="0" conaffinity="0" rgba="1 0 0 1"/></body>
    </worldbody></mujoco>"""
    found = meshes.of_file(xml, ("a",))
    ((name, mesh, colour),) = found["a"]
    assert name == "look" and colour == (1.0, 0.0, 0.0)
    assert_allclose(volume(mesh.moved(np.eye(3), -mesh.corners.mean(axis=(0, 1)))), 1 / 6)
    assert_allclose(mesh.corners.min(axis=(0, 1)), [0.5, 0, 0], atol=1e-6)
    # Of URDF: the mesh beside the file, in place of the ball that touches.
    corners = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1.0]])
    faces = [corners[[0, 2, 1]], corners[[0, 1, 3]], corners[[1, 2, 3]], corners[[0, 3, 2]]]
    (tmp_path / "meshes").mkdir()
    stl = b"".join(np.concatenate([np.zeros(3), face.ravel()]).astype("<f4").tobytes() + b"\0\0" for face in faces)
    (tmp_path / "meshes" / "tetra.stl").write_bytes(b" " * 80 + np.uint32(4).tobytes() + stl)
    inertia = '<inertial><mass value="1"/><inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial>'
    shapes = '<visual><geometry><mesh filename="meshes/tetra.stl"/></geometry></visual>'
    shapes += '<collision><geometry><sphere radius="0.1"/></geometry></collision>'
    (tmp_path / "robot.urdf").write_text(f'<robot name="r"><link name="base">{inertia}{shapes}</link></robot>')
    ((_, mesh, _),) = next(iter(meshes.of_file(tmp_path / "robot.urdf", ("base",)).values()))
    assert_allclose(abs(volume(mesh)), 1 / 6, rtol=1e-5)
    assert_allclose(np.sort(mesh.corners.max(axis=(0, 1))), 1, atol=1e-6)
    with pytest.raises(ValueError, match=r"drawing: MuJoCo refuses the model: .*missing.stl"):
        meshes.of_file((tmp_path / "robot.urdf").read_text().replace("meshes/tetra", "missing"), ("base",))
    with pytest.raises(ValueError, match=r"there is no file 'nowhere.xml'"):
        meshes.of_file("nowhere.xml", ())
    assert Path(drawing.__file__).with_name("three.LICENSE").read_text().startswith("The MIT License")


def test_a_robot_of_a_file_is_drawn_as_the_file_says(tmp_path):
    """A red box that only a picture shows; the ball that touches where that is asked for, or where the file is gone."""
    pytest.importorskip("mujoco")
    robot = tmp_path / "robot.xml"
    robot.write_text("""<mujoco><worldbody><geom name="floor" type="plane" size="1 1 1"/><body name="a" pos="0 0 1"><freejoint/>
      <geom type="sphere" size="0.1" group="3"/>
      <geom type="box" size="0.2 0.3 0.4" contype="0" conaffinity="0" mass="0" rgba="1 0 0 1"/></body>
      <body name="b" pos="1 0 1"><freejoint/><geom type="sphere" size="0.2" group="3"/></body></worldbody></mujoco>""")
    system = bodies.from_mjcf(robot)
    sol = jaxnsd.simulate(system, jaxnsd.Moreau(), *system.initial_state(), 0.1, 1e-2)
    parts = scene.checked("film", system, sol, None, None)

    def sizes(**options):
        shown = scene.of("film", parts, 0.05, **options)
        return {part.name: (np.ptp(part.mesh.corners, axis=(0, 1)).round(6).tolist(), part.colour) for part in shown.solids}

    seen, touching = sizes(), sizes(geometry=False)
    assert seen["a"] == ([0.4, 0.6, 0.8], (1.0, 0.0, 0.0))
    assert seen["b"] == touching["b"]  # of which the file shows nothing
    assert_allclose(touching["a"][0], 0.2, rtol=0.02)
    robot.unlink()
    with pytest.warns(UserWarning, match="film: drawing: there is no file .*; the shapes that can touch are drawn"):
        assert sizes() == touching
    # Where it was read from makes no other system of it.
    again = bodies.from_mjcf(models.SCENES["leg"])
    text = bodies.from_mjcf(models.SCENES["leg"].read_text())
    assert again.structure == text.structure and hash(again.structure) == hash(text.structure)
    assert fingerprint(again) == fingerprint(text)


def test_a_motion_at_times_of_its_own_is_drawn_and_one_at_one_time_is_not(tmp_path):
    def fall(times):
        return jaxnsd.simulate(BouncingBall(), jaxnsd.Moreau(), jnp.ones(1), jnp.zeros(1), 0.4, 1e-2, save_at=times)

    ball, times = BouncingBall(), np.linspace(0.0, 0.4, 9) ** 1.5
    shown = scene.of("film", scene.checked("film", ball, fall(times), None, None), 0.05)
    assert_allclose(shown.t[-1], 0.25, atol=1e-12)
    assert drawing.page(ball, fall(times), tmp_path / "fall.html").frames > 5
    for draw in (drawing.film, drawing.page):
        with pytest.raises(ValueError, match="a motion must have two times at least, got one"):
            draw(ball, fall([0.2]))
