"""What the page of the gallery says of its motions is so; each is drawn."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from repository import ROOT, load

from jaxnsd import drawing

PAGE = (ROOT / "docs/gallery.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def gallery():
    """The example, with JAX as users have it."""
    with jax.numpy_rank_promotion("allow"):
        yield load("gallery")


def test_the_page_shows_every_motion_once(gallery):
    assert re.findall(r"<!-- film: (\w+) -->", PAGE) == list(gallery.MOTIONS)


def energies(system, sol):
    return np.asarray(jax.jit(jax.vmap(system.total_energy))(sol.t, sol.q, sol.u))


def test_cradle(gallery):
    system, sol, options = gallery.cradle()
    angles = np.asarray(sol.q)
    assert_allclose(angles[:, 4].max(), 0.8, rtol=0.02)
    assert np.abs(angles[:, 1:4]).max() < 0.1
    assert_allclose(energies(system, sol), energies(system, sol)[0], rtol=2e-3)
    assert drawing.film(system, sol, size=(64, 48), **options).frames > 50


def test_conveyor(gallery):
    system, sol, _ = gallery.conveyor()
    slip = np.asarray(sol.u[:, ::2] - jax.vmap(system.plate)(sol.t)[1][:, None])
    assert np.abs(slip[:, 0]).max() < 1e-2  # of one step, in which the plate turns round
    assert np.mean(np.abs(slip[:, 2]) < 1e-2) < 0.05
    # The way of one period, from when the plate turns: from 0.4 m/s at -mu g until the plate has the same velocity again.
    mu_g, period = 0.4 * 9.81, 0.5
    later = (0.4 - mu_g * 0.1 + 0.4) / (2 + mu_g)
    slides = 0.1 + later
    v = 0.4 - mu_g * slides
    way = 0.4 * slides - mu_g * slides**2 / 2 + (0.4**2 - v**2) / (2 * 2)
    assert_allclose(way, 0.034, atol=5e-4)
    x = np.asarray(sol.q[:, 2])
    assert_allclose(x[-1] - x[-1 - round(period / 1e-3)], way, rtol=0.02)
    assert 0.2 < np.mean(np.abs(slip[:, 1]) > 1e-2) < 0.5


def test_wheel(gallery):
    _, sol, _ = gallery.wheel()
    m, J, r, alpha = 1.0, 0.02, 0.3, np.pi / 8
    about = J + m * r**2
    kept = (J + m * r**2 * np.cos(2 * alpha)) / about
    # What the slope gives, 2 m g r sin(alpha) sin(slope), is what the impact takes.
    before = np.sqrt(4 * m * 9.81 * r * np.sin(alpha) * np.sin(0.12) / (about * (1 - kept**2)))
    speed = -np.asarray(sol.u[:, 2])
    assert_allclose(speed[sol.t > 2.0].max(), before, rtol=0.02)
    assert_allclose(
        speed[sol.t > 2.0].min(), np.sqrt((kept * before) ** 2 - 2 * m * 9.81 * r * (1 - np.cos(alpha - 0.12)) / about), rtol=0.02
    )


@pytest.mark.slow
def test_galton(gallery):
    _, sol, _ = gallery.galton()
    assert bool(jnp.all(sol.success))
    x = np.asarray(sol.q[:, -1, 0])
    assert np.mean(np.abs(x[:20] + x[20:]) < 1e-3) > 0.9
    assert np.abs(sol.q[:, 0, 0]).max() < 3e-3 and 0.04 < np.std(x) < 0.12
    assert len(np.unique(np.round(x / 0.05))) >= 5


@pytest.mark.slow
def test_slider_crank(gallery):
    system, sol, _ = gallery.slider_crank()
    assert jax.vmap(system.gap)(sol.t, sol.q).min() > -1e-4
    assert np.all(np.asarray(sol.P_N > 0).any(axis=0))


@pytest.mark.slow
def test_woodpecker(gallery):
    _, sol, _ = gallery.woodpecker()
    beak = np.asarray(sol.P_N[:, 0])
    strikes = np.asarray(sol.t[1:])[(beak > 0) & (np.roll(beak, 1) == 0)]
    strikes = strikes[np.append(True, np.diff(strikes) > 0.05)]
    assert_allclose(np.diff(strikes)[-1], 0.146, atol=3e-3)


@pytest.mark.slow
def test_dominoes(gallery):
    system, sol, _ = gallery.dominoes()
    angles = np.asarray(sol.q).reshape(-1, 8, 3)[:, :, 2]
    falls = [int(np.argmax(angles[:, i] < -0.5)) for i in range(8)]
    assert falls == sorted(falls) and falls[0] > 0
    assert np.all(angles[-1] < -0.8)
    assert np.diff(energies(system, sol)).max() < 1e-4 * 9.81 * 0.1 * 0.2


@pytest.mark.slow
def test_hopper(gallery):
    pytest.importorskip("mujoco")
    system, sol, _ = gallery.hopper()
    mass = float(jnp.sum(system.mass))
    up = jax.vmap(lambda t, q, u: system.M(t, q) @ u)(sol.t, sol.q, sol.u)[:, 1]
    push = np.asarray(sol.P_N).sum(axis=1)
    assert_allclose(push.sum(), up[-1] - up[0] + 9.81 * mass * 3.0, rtol=5e-3)
    assert 0.3 < np.mean(push == 0) < 0.95
    assert sol.q[-1, 0] > 0.5


@pytest.mark.slow
def test_cubes(gallery):
    system, sol, _ = gallery.cubes()
    weight = np.asarray(sol.P_N[:, -50:]).sum(axis=2).mean(axis=1) / 1e-3
    assert_allclose(weight[0], 9.81 * system.mass, rtol=1e-3)
    assert np.sum(np.asarray(sol.P_N[0, -1]) > 0) == 4


@pytest.mark.slow
def test_rattleback(gallery):
    system, sol, _ = gallery.rattleback()
    spin = np.asarray(sol.u[:, 5])
    assert spin[0] == -4.0 and spin[-1] > 2.0
    energy = energies(system, sol)
    assert energy[-1] <= energy[0] and np.diff(energy).max() < 1e-3 * np.ptp(energy)


@pytest.mark.slow
def test_disc(gallery):
    system, sol, _ = gallery.disc()
    axis = np.asarray(jax.vmap(system.pose)(sol.t, sol.q).rotation[:, 0, :, 2])
    tilt = np.arccos(np.clip(axis[:, 2], -1, 1))
    rate = np.gradient(np.unwrap(np.arctan2(axis[:, 1], axis[:, 0])), np.asarray(sol.t))
    moving = (tilt > 0.05) & (np.asarray(sol.t) > 0.05)
    thin = np.sqrt(4 * 9.81 / (0.0375 * np.sin(tilt[moving])))
    # Of a disc with a third of its radius as thickness, which also nods.
    ratio = rate[moving] / thin
    assert 0.85 < np.median(ratio) < 1.0 and np.quantile(ratio, 0.02) > 0.75 and np.quantile(ratio, 0.98) < 1.05
    assert tilt[-1] < 1e-3 and np.abs(sol.u[-1]).max() < 1e-3


@pytest.mark.slow
def test_fall(gallery):
    _, sol, _ = gallery.fall()
    assert_allclose(np.abs(sol.u[-1]).max(), 0, atol=1e-6)
    assert_allclose(np.asarray(sol.P_N[-1]).sum() / 1e-3, 2.0 * 9.81, rtol=1e-3)
