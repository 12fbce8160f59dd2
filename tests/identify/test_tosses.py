"""Measured tosses: loaders, initial states from a flight, the score, the model, and the command line; the data need not be here."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from repository import ROOT
from scipy.spatial.transform import Rotation

import jaxnsd
from jaxnsd import LocatedImpacts, MoreauJean, identify, simulate
from jaxnsd.command_line import cli
from jaxnsd.identify import tosses
from jaxnsd.models import Cube, TossedCube
from jaxnsd.models.cube import _rotation as cube_rotation

MEASURED = ROOT.parent / "shared" / "data" / "cube_tosses.npz"

HOMOGENEOUS = TossedCube(offset=0.0, inertia=8e-4, inertia_z=8e-4, gravity=9.7, e_corner=0.3, e_edge=0.4, e_face=0.1, mu=0.25, board=0.001)


@pytest.fixture(scope="module")
def simulated():
    """Three tosses of a known cube, with states as in a file."""
    q0, u0 = TossedCube().initial_state()
    frames = []
    for k in range(3):
        moved = u0 + jnp.array([0.1, -0.2, 0.1, 1.0, -1.0, 2.0]) * k
        run = jaxnsd.simulate(HOMOGENEOUS, jaxnsd.Moreau(), q0, moved, n_steps=320, dt=tosses.FRAME / 4, save_every=4).raise_if_failed()
        rows = np.concatenate([np.asarray(run.q), np.asarray(run.u)], axis=1)[: 81 - 10 * k]
        rows[:, 3:7] /= np.linalg.norm(rows[:, 3:7], axis=1, keepdims=True)
        frames.append(rows)
    return tosses.Tosses(frames, ["a", "b", "c"])


def packed(path, of, **changed):
    """A file in the layout of one archive."""
    offsets = np.cumsum([0, *map(len, of.frames)])
    arrays = {"state": np.concatenate(of.frames), "offsets": offsets, "toss_id": np.arange(len(of)), "dt": of.dt} | changed
    np.savez(path, **arrays)
    return path


@pytest.mark.slow
def test_the_right_model_has_a_score_of_zero_and_others_have_not(simulated):
    right = tosses.score(simulated, HOMOGENEOUS)
    assert max(right.mean) < 1e-6 and not right.failed
    # Shifted measurements: 1 % of the width everywhere.
    moved = [rows + np.eye(13)[0] * 0.01 * tosses.WIDTH * (np.arange(len(rows)) > 0)[:, None] for rows in simulated.frames]
    score = tosses.score(tosses.Tosses(moved, simulated.names), HOMOGENEOUS)
    assert_allclose(score.position, [1 - 1 / len(rows) for rows in moved], rtol=1e-6)
    assert score.mean[1] < 1e-6


def test_both_layouts_say_the_same(simulated, tmp_path):
    folder = tmp_path / "published"
    folder.mkdir()
    for name, rows in zip("012", simulated.frames, strict=True):
        scaled = rows.copy()
        scaled[:, :3] /= 0.0524
        scaled[:, 7:10] /= 0.0524
        np.savetxt(folder / f"{name}.csv", np.concatenate([scaled, np.zeros((len(rows), 6))], axis=1), delimiter=",", fmt="%.17g")
    for of in (tosses.load(folder), tosses.load(packed(tmp_path / "a.npz", simulated))):
        assert len(of) == 3 and of.dt == tosses.FRAME
        for ours, theirs in zip(of.frames, simulated.frames, strict=True):
            assert_allclose(ours, theirs, atol=1e-12)


def test_corrupt_and_short_ones_are_named_and_skipped(simulated, tmp_path):
    folder = tmp_path / "published"
    folder.mkdir()
    rows = np.concatenate([simulated.frames[0], np.zeros((81, 6))], axis=1)
    np.savetxt(folder / "0.csv", rows, delimiter=",")
    np.savetxt(folder / "1.csv", rows[:1], delimiter=",")
    np.savetxt(folder / "2.csv", rows[:, :9], delimiter=",")
    (folder / "3.csv").write_text("1, 2, nonsense\n")
    np.savetxt(folder / "4.csv", np.where(np.arange(19) == 5, np.nan, rows), delimiter=",")
    with pytest.warns(UserWarning, match="4 of 5 tosses are skipped"):
        of = tosses.load(folder)
    assert of.names == ["0"] and [name for name, _ in of.skipped] == ["1", "2", "3", "4"]
    offsets = np.cumsum([0, *map(len, simulated.frames)])
    offsets[-1] += 5
    with pytest.warns(UserWarning, match="toss 2: rows .* cut short"):
        assert len(tosses.load(packed(tmp_path / "b.npz", simulated, offsets=offsets))) == 2
    (tmp_path / "c.npz").write_bytes(b"not an archive")
    for path, error, text in (
        (tmp_path / "c.npz", ValueError, "cannot be read"),
        (tmp_path / "nothing", FileNotFoundError, "no file or folder"),
        (tmp_path, ValueError, "holds no toss"),
    ):
        with pytest.raises(error, match=text):
            tosses.load(path)


def test_archives_that_are_broken_are_refused_in_a_sentence(simulated, tmp_path):
    whole = packed(tmp_path / "whole.npz", simulated).read_bytes()
    (tmp_path / "half.npz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "bits.npz").write_bytes(whole[:400] + bytes(40) + whole[440:])
    for name in ("half", "bits"):
        with pytest.raises(ValueError, match=r"cannot be read as \.npz"):
            tosses.load(tmp_path / f"{name}.npz")
    state = np.concatenate(simulated.frames)
    for changed, text in (
        ({"dt": [0.01, 0.01]}, "dt must be one positive number"),
        ({"dt": "a"}, "dt must be real numbers"),
        ({"toss_id": [0]}, r"toss_id must be \(3,\)"),
        ({"offsets": [0.5, 80.7, 160.0, 221.0]}, "offsets must be whole numbers"),
        ({"state": state + 0j}, "state must be real numbers"),
    ):
        with pytest.raises(ValueError, match=text):
            tosses.load(packed(tmp_path / "a.npz", simulated, **changed))
    assert len(set(tosses.load(packed(tmp_path / "b.npz", simulated, toss_id=[4, 4, 5])).names)) == 3
    far = state.copy()
    far[3, 0] = 1e300
    with pytest.warns(UserWarning, match="toss 0: has values beyond 1e.06"):
        assert len(tosses.load(packed(tmp_path / "c.npz", simulated, state=far))) == 2


def test_a_folder_of_mixed_tables(simulated, tmp_path):
    rows = np.concatenate([simulated.frames[0], np.zeros((81, 6))], axis=1)
    np.savetxt(tmp_path / "0.CSV", rows, delimiter=",")
    np.savetxt(tmp_path / "1.csv", np.concatenate([rows, rows], axis=1), delimiter=",")
    (tmp_path / "2.csv").write_text("")
    (tmp_path / "3.csv").mkdir()
    with pytest.warns(UserWarning, match="1: has 38 columns, not 19; 2: is empty; 3: cannot be read") as caught:
        assert tosses.load(tmp_path).names == ["0"]
    assert len(caught) == 1


def test_the_state_before_a_flight_comes_back_from_noisy_frames(simulated):
    """That of `test_an_eccentric_cube_is_that_of_its_energy` has no noise."""
    random = np.random.default_rng(0)
    for rows in simulated.frames:
        noisy = rows.copy()
        noisy[:, :3] += 1e-4 * random.normal(size=(len(rows), 3))
        noisy[:, 7:] += 0.3  # velocities are not looked at
        q0, u0 = tosses.flight_state(HOMOGENEOUS, noisy)
        # Moreau's scheme leaves an error of first order in the step: half a step of gravity in the velocity.
        assert_allclose(q0[:3], rows[0, :3], atol=4e-4)
        assert_allclose(u0[:3], rows[0, 7:10], atol=0.02)
        assert_allclose(u0[3:], rows[0, 10:], atol=1e-3)
        assert np.degrees(np.linalg.norm(tosses.rotation_vector(tosses.product(q0[3:] * [1, -1, -1, -1], rows[0, 3:7])))) < 0.1


def test_a_measurement_is_undone():
    q0, u0 = (np.asarray(x) for x in Cube().initial_state())
    moved = dict(tosses.MEASUREMENT, lag_velocity=0.01, velocity=1.02, lag_position=0.02, height=-0.001, lag_turn=0.1)
    q, u = tosses.corrected(jnp.asarray(q0), jnp.asarray(u0), moved, 10.0)
    assert_allclose(u[:3], 1.02 * (u0[:3] - [0, 0, 0.1]))
    assert_allclose(q[:3], q0[:3] + 0.02 * np.asarray(u[:3]) - [0, 0, 0.001])
    assert_allclose(tosses.rotation_vector(q[3:]), 0.1 * u0[3:], rtol=1e-12)


def test_closed_forms_of_the_model_are_derivatives():
    system = TossedCube(radius=0.01, board=0.02)
    q, u = TossedCube().initial_state()
    q = q.at[3:].set(jnp.array([0.5, -0.1, 0.7, 0.5]) / 1.0)
    q = q.at[3:].divide(jnp.linalg.norm(q[3:]))
    by_autodiff = jax.jvp(lambda q: system.gap(0.0, q), (q,), (system.q_dot(0.0, q, u),))[1]
    assert_allclose(system.gap_velocity(0.0, q, u), by_autodiff, atol=1e-13)
    # The lowest point of a sphere that rolls without slip does not move: v = omega x (height) in the world frame.
    arms = np.asarray(system._directions(q))
    assert_allclose(arms[:, 2] @ u, by_autodiff, atol=1e-13)
    homogeneous = 0.37 * 0.01 / 6
    sharp, cube = TossedCube(radius=0.0, side=0.1, offset=0.0, inertia=homogeneous, inertia_z=homogeneous, gravity=9.81), Cube()
    for name in ("gap_velocity", "tangential_velocity", "W_N", "W_F", "M", "h"):
        assert_allclose(getattr(sharp, name)(0.0, q, u), getattr(cube, name)(0.0, q, u), atol=1e-14)


@jaxnsd.system
class ByEnergy(jaxnsd.System):
    """The free cube by the kinetic energy of its centre of mass and the rotation about it."""

    cube: TossedCube

    def q_dot(self, t, q, u):
        return self.cube.q_dot(t, q, u)

    def kinetic_energy(self, t, q, u):
        arm = jnp.array([0.0, 0.0, 1.0]) * self.cube.offset
        v = u[:3] + cube_rotation(q[3:]) @ jnp.cross(u[3:], arm)
        J = jnp.stack([self.cube.inertia, self.cube.inertia, self.cube.inertia_z])
        return 0.5 * self.cube.mass * v @ v + 0.5 * u[3:] @ (J * u[3:])

    def potential_energy(self, t, q):
        return self.cube.mass * self.cube.gravity * (q[2] + cube_rotation(q[3:])[2, 2] * self.cube.offset)


def test_an_eccentric_cube_is_that_of_its_energy():
    """Lagrange's equations in quasi-velocities, from the energy alone, against the closed forms; and a flight without contact."""
    system = TossedCube(offset=0.02, inertia=1e-3, inertia_z=0.6e-3)
    q, u = system.initial_state()
    q, u = q.at[3:].set(jnp.array([0.5, -0.1, 0.7, 0.5])), u.at[3:].set(jnp.array([4.0, -3.0, 5.0]))
    by_energy = ByEnergy(system)
    for name in ("M", "h"):
        assert_allclose(getattr(system, name)(0.0, q, u), getattr(by_energy, name)(0.0, q, u), atol=1e-15)
    assert_allclose(system.potential_energy(0.0, q), by_energy.potential_energy(0.0, q), rtol=1e-15)
    # In flight: a parabola of the centre of mass, and the rotation of a symmetric top about it.
    q = q.at[3:].divide(jnp.linalg.norm(q[3:]))
    run = jaxnsd.simulate(by_energy, jaxnsd.Lobatto(3), q, u, n_steps=120, dt=tosses.FRAME / 4, save_every=4).raise_if_failed()
    q, u, t = np.asarray(q), np.asarray(u), np.asarray(run.t)
    p, spin, arm = q[3:], u[3:], np.array([0.0, 0.0, 0.02])
    turn = tosses.free_rotation(system, p, spin, t)
    start, velocity = q[:3] + tosses.turned(p, arm), u[:3] + tosses.turned(p, np.cross(spin, arm))
    fall = np.outer(0.5 * system.gravity * t**2, [0, 0, 1])
    assert_allclose(run.q[:, :3], start + np.outer(t, velocity) - fall - tosses.turned(turn, np.tile(arm, (len(t), 1))), atol=1e-8)
    assert_allclose(run.q[:, 3:], turn, atol=1e-8)
    # The state before it comes back from its poses alone.
    rows = np.concatenate([run.q, np.tile(u + 0.3, (len(t), 1))], axis=1) + np.eye(13)[2] * 10
    found = tosses.flight_state(system, rows)
    assert_allclose(found[0], rows[0, :7], atol=1e-7)
    assert_allclose(found[1], u, atol=1e-6)


def test_friction_of_an_impact_is_another_than_that_of_sliding():
    system = TossedCube(mu=0.3, mu_impact=0.1, fade=0.05)
    q, _ = system.initial_state()
    for speed, mu in ((-1.0, 0.3), (0.0, 0.3), (0.05, 0.1 + 0.2 / np.e), (3.0, 0.1)):
        assert_allclose(system.contact_data(0.0, q, -speed * jnp.ones(8))[2], mu, rtol=1e-12)


def test_restitution_knows_how_many_corners_are_down():
    system = TossedCube(radius=0.0, e_corner=0.1, e_edge=0.2, e_face=0.3, slope=0.5)
    turn = lambda axis, angle: tosses.quaternion(jnp.array(axis) / np.linalg.norm(axis) * angle)  # noqa: E731
    corner = turn([1.0, -1.0, 0.0], np.arctan(np.sqrt(2)))
    for p, e in ((corner, 0.1), (turn([1.0, 0.0, 0.0], np.pi / 4), 0.2), (jnp.array([1.0, 0, 0, 0]), 0.3)):
        q = jnp.concatenate([jnp.array([0.0, 0.0, 1.0]), p])
        found, _, _ = system.contact_data(0.0, q, -2.0 * jnp.ones(8))
        assert_allclose(found, 1.5 * e, rtol=0.1)


@pytest.mark.slow
def test_command_line(simulated, tmp_path, capsys):
    file = packed(tmp_path / "a.npz", simulated)
    assert cli.main(["evaluate-tosses", str(file)]) == 0
    out = capsys.readouterr().out.strip().splitlines()
    assert re.fullmatch(r"\d+\.\d+ % of the width, \d+\.\d+ degrees", out[-1])
    expected = tosses.score(simulated).mean
    assert_allclose([float(x) for x in re.findall(r"\d+\.\d+", out[-1])], expected, atol=0.006)
    assert cli.main(["evaluate-tosses", str(tmp_path / "nothing.npz")]) == 2
    assert "there is no file or folder" in capsys.readouterr().err


@pytest.mark.skipif(not MEASURED.is_file(), reason="the measured tosses are not here")
@pytest.mark.parametrize(
    "initial, stride",
    [pytest.param("stored", 20, marks=pytest.mark.slow)] + [pytest.param(x, 8, marks=pytest.mark.long) for x in tosses.SHIPPED_SCORE],
)
def test_scores_on_measured_tosses(initial, stride):
    of = tosses.load(MEASURED)
    assert len(of) == 400
    position, angle = tosses.SHIPPED_SCORE[initial]
    found = tosses.score(of[::stride], initial=initial)
    assert not found.failed
    # Of so many tosses: the score of all, within its spread.
    spread = np.sqrt(stride / 8)
    assert found.mean[0] < position + 2.5 * spread and found.mean[1] < angle + 5.0 * spread, found.mean


@pytest.mark.long
def test_the_uncertainty_of_a_toss_is_that_of_a_grid():
    """Errors and correlation of a fit beside the likelihood on a grid, whose residuals are written here; the truth is within.

    Two tosses of two impacts each, with frames that are off by 1 % of the width and 0.02 rad.
    """
    system, scheme, frames, names = TossedCube(), LocatedImpacts(MoreauJean()), 25, ("e_corner", "mu_impact")
    rng = np.random.default_rng(1)
    starts = []
    for _ in range(2):
        p = rng.normal(size=4)
        q0 = np.concatenate([[0, 0, 0.16 + 0.03 * rng.random()], p / np.linalg.norm(p)])
        starts.append((q0, np.concatenate([0.5 * rng.normal(size=2), [-0.5], 4 * rng.normal(size=3)])))

    @jax.jit
    @jax.vmap
    def moved(values):
        cube = dataclasses.replace(system, **dict(zip(names, values, strict=True)))
        run = lambda q, u: simulate(cube, scheme, q, u, n_steps=4 * (frames - 1), dt=tosses.FRAME / 4, save_every=4)  # noqa: E731
        return jax.vmap(lambda q, u: run(q, u).q)(*map(jnp.stack, zip(*starts, strict=True)))

    truth = np.array([system.e_corner, system.mu_impact])
    noise = np.array([0.01] * 3 + [0.02] * 3)
    measured = np.array(moved(truth[None])[0])
    measured[..., :3] += noise[0] * tosses.WIDTH * rng.normal(size=measured[..., :3].shape)
    turns = noise[3] * rng.normal(size=measured[..., :3].shape)
    turned = Rotation.from_matrix(matrices(measured)) * Rotation.from_rotvec(turns.reshape(-1, 3))
    measured[..., 3:] = turned.as_quat(scalar_first=True).reshape(measured[..., 3:].shape)
    times = np.arange(frames) * tosses.FRAME
    result = identify.fit(
        identify.Problem(
            system,
            [identify.Trajectory(times, y, *start) for y, start in zip(measured, starts, strict=True)],
            fit={name: identify.Bounded(0.0, 0.9) for name in names},
            dt=tosses.FRAME / 4,
            scheme=scheme,
            measure=lambda t, q, u, m: q,
            residual=tosses.difference,
            noise=noise,
            horizon=30.0,
        )
    )
    errors = result.standard_errors / result.noise_scale
    assert np.all(np.abs(result.values - truth) < 3 * errors)
    side = np.linspace(-3.5, 3.5, 13)
    grid = np.stack(np.meshgrid(side, side, indexing="ij"), -1).reshape(-1, 2) * errors + result.values
    found = np.array(moved(grid))
    squares = np.sum(((found[..., :3] - measured[..., :3]) / (noise[0] * tosses.WIDTH)) ** 2, (1, 2, 3))
    apart = Rotation.from_matrix(np.swapaxes(matrices(found), -1, -2) @ np.tile(matrices(measured), (len(grid), 1, 1)))
    squares += np.sum(apart.magnitude().reshape(len(grid), -1) ** 2, 1) / noise[3] ** 2
    density = np.exp(-0.5 * (squares - squares.min()))
    density /= density.sum()
    mean = density @ grid
    covariance = (density[:, None] * (grid - mean)).T @ (grid - mean)
    np.testing.assert_allclose(result.values, mean, atol=0.2 * errors.min())
    np.testing.assert_allclose(errors, np.sqrt(np.diag(covariance)), rtol=0.05)
    correlation = covariance[0, 1] / np.sqrt(np.prod(np.diag(covariance)))
    assert abs(result.correlation[0, 1] - correlation) < 0.05 and abs(correlation) > 0.1


def matrices(q):
    """Rotation matrices (n, 3, 3) of poses (..., 7)."""
    return Rotation.from_quat(q[..., 3:].reshape(-1, 4), scalar_first=True).as_matrix()
