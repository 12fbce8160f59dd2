"""The elastic bar against the continuous bar: a compression wave runs to the free end and back, 2 L / c."""

import jax
import numpy as np
import pytest

import jaxnsd
from jaxnsd.models import elastic_bar

C = np.sqrt(210e9 / 7800)
FORCE = 3.14e-4 * np.sqrt(210e9 * 7800) * 0.1


def exact_displacement(t, x, length):
    """d'Alembert: material at x moves with -v until the wave arrives, rests, and moves with +v once the wave has come back."""
    t = t - 5e-5 / 0.1
    arrival, release = x / C, (2 * length - x) / C
    return np.where(t < arrival, -0.1 * t, np.where(t < release, -0.1 * arrival, -0.1 * arrival + 0.1 * (t - release)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "dt", "schemes"),
    [
        (100, 2e-6, [jaxnsd.KrenkHogsberg(0.5)]),
        (100, 2e-6, [jaxnsd.MoreauJean(), jaxnsd.HHT(0.1)]),
        pytest.param(1000, 5e-7, [jaxnsd.Newmark(), jaxnsd.GeneralizedAlpha(0.5)], marks=pytest.mark.long),
    ],
)
def test_wave_in_the_bar_is_that_of_the_continuous_bar(n, dt, schemes):
    bar = elastic_bar(n)
    length = (n - 1) / n
    x = np.linspace(0, length, n)
    duration = 2 * length / C
    for scheme in schemes:
        sol = jaxnsd.simulate(bar, scheme, *bar.initial_state(), 1.2e-3, dt).raise_if_failed()
        t, q, u, P = (np.asarray(a) for a in (sol.t, sol.q, sol.u, sol.P_N[:, 0]))
        pushing = np.flatnonzero(P > 0)
        start, end = t[pushing[0]], t[pushing[-1] + 1]
        # The front is about (l / wave)^(2/3) wide: its width bounds what the mesh resolves.
        width = duration * n ** (-2 / 3)
        assert abs(start - 5e-4) <= 2 * dt
        assert abs(end - start - duration) < width
        plateau = (t[1:] > start + width) & (t[1:] < start + duration - width)
        assert abs(P[plateau].mean() / dt / FORCE - 1) < 2e-3
        assert abs(P.sum() / (FORCE * duration) - 1) < 0.02
        # Both velocity jumps pass with an error of their width at most.
        assert np.abs(q - exact_displacement(t[:, None], x, length)).max() < 0.2 * width
        # The bar leaves with the speed it came with, and what is lost is in the elastic oscillations of the mesh.
        weights = np.asarray(bar.mass @ np.ones(n))
        assert abs(weights @ u[-1] / weights.sum() / 0.1 - 1) < 0.03
        # Penetration: that of the last step before the contact was seen.
        assert -q[:, 0].min() < 1.1 * 0.1 * dt


@pytest.mark.slow
@pytest.mark.parametrize(("n", "scheme"), [(10, jaxnsd.MoreauJean()), (40, jaxnsd.GeneralizedAlpha(0.5))])
def test_tridiagonal_and_dense_matrices_give_one_motion(n, scheme):
    bar = elastic_bar(n)
    dense = jaxnsd.LinearSystem(bar.mass.dense(), bar.K.dense(), G=bar.G)
    a, b = (jaxnsd.simulate(s, scheme, *bar.initial_state(), 8e-4, 2e-6) for s in (bar, dense))
    assert np.any(a.P_N > 0)
    np.testing.assert_allclose(a.q, b.q, atol=1e-13)
    np.testing.assert_allclose(a.P_N, b.P_N, atol=1e-9)


@pytest.mark.long
def test_numerical_damping_quiets_the_mesh_and_spares_the_wave():
    """Spurious oscillation of the free end behind the front: less with damping of high frequencies, at little cost in energy."""
    bar = elastic_bar(60)
    quiet, energies = [], []
    for scheme in (jaxnsd.MoreauJean(0.5), jaxnsd.GeneralizedAlpha(0.5), jaxnsd.MoreauJean(1.0)):
        sol = jaxnsd.simulate(bar, scheme, *bar.initial_state(), 1.2e-3, 2e-6)
        t = np.asarray(sol.t)
        after = (t > 5e-4 + 1.3 / C) & (t < 5e-4 + 1.8 / C)
        quiet.append(np.std(np.asarray(sol.u)[after, -1]) / 0.1)
        E = jax.vmap(bar.total_energy)(sol.t, sol.q, sol.u)
        energies.append(float(E[-1] / E[0]))
    assert quiet[1] < 0.2 * quiet[0]
    assert energies[0] > 0.97 and energies[1] > 0.95 > energies[2]
