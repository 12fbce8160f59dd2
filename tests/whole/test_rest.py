"""Bodies that are tossed and come to rest: every step is solved, what rests stays where it is, contacts create no energy."""

import numpy as np
import pytest
from repository import load

import jaxnsd
from jaxnsd import GeneralizedAlpha, Lobatto, Moreau, MoreauJean
from jaxnsd.models import CornerBlock

rest = load("benchmarks/rest")

SCHEMES = list(rest.SCHEMES)
MARKS = {"Moreau": (), "MoreauJean": pytest.mark.slow}


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, pytest.mark.long)) for name in SCHEMES])
def test_every_step_of_tossed_blocks_is_solved(name):
    # 60 % of such runs had a step that Newton's method and Gauss-Seidel left unsolved.
    unsolved, _, _, speed, _ = rest.campaign(rest.draw_blocks(np.random.default_rng(11), 40), rest.SCHEMES[name], 2.0, 40)
    np.testing.assert_array_equal(unsolved, 0)
    if name != "MoreauJean, A14 (26)":
        assert np.sum(speed < 1e-6) >= 20


@pytest.mark.long
@pytest.mark.parametrize("name", ["Moreau", "MoreauJean", "Lobatto(2)"])
def test_every_step_of_tossed_boxes_is_solved(name):
    unsolved, _, _, speed, _ = rest.campaign(rest.draw_boxes(np.random.default_rng(12), 20), rest.SCHEMES[name], 2.0, 20)
    np.testing.assert_array_equal(unsolved, 0)
    assert np.sum(speed < 1e-6) >= 10


@pytest.mark.slow
def test_boxes_beside_each_other():
    """More contacts than Lemke's method takes at once, in parts that it does take."""
    unsolved, _, _, speed, _ = rest.campaign(rest.draw_groups(np.random.default_rng(13), 6), rest.SCHEMES["Moreau"], 4.0, 6)
    np.testing.assert_array_equal(unsolved, 0)
    assert np.sum(speed < 1e-6) >= 3


@pytest.mark.long
@pytest.mark.parametrize("scheme", [Moreau(), MoreauJean(), GeneralizedAlpha(0.8), Lobatto(2)], ids=lambda scheme: scheme.name)
def test_a_block_at_rest_stays_where_it_is(scheme):
    # 1e5 steps after it has come to rest from a toss. Under A14 (26) it sinks by (1 - e) / (1 + e) g dt / 2 * 100 s = 0.16 m.
    block, dt = CornerBlock(e_N=0.5), 1e-3
    start = jaxnsd.simulate(block, scheme, *block.initial_state(), 3.0, dt).raise_if_failed()
    sol = jaxnsd.simulate(block, scheme, start.q[-1], start.u[-1], 100.0, dt, save_every=100).raise_if_failed()
    assert np.ptp(np.asarray(sol.q), axis=0).max() < 1e-8
    np.testing.assert_allclose(np.asarray(sol.P_N).sum(axis=1)[1:], 9.81 * 100 * dt, rtol=1e-6)


@pytest.mark.slow
def test_impacts_create_no_energy_under_the_default_rule():
    """Two frictionless corners with restitution: of the work of their percussions, (v_minus + v_plus) P_N / 2, none is positive but that of
    a corner that stays closed while the block turns, whose gap velocity changes by O(dt) in a step. It vanishes with the step.
    """
    block = CornerBlock(e_N=0.6, mu=0.0)

    def work(dt):
        sol = jaxnsd.simulate(block, MoreauJean(), *block.initial_state(0.3, 0.0), 2.0, dt).raise_if_failed()
        assert np.abs(np.asarray(sol.u)[-1, 1:]).max() < 1e-6
        impact = np.asarray(sol.P_N) > 20 * 9.81 * block.mass * dt
        assert impact.any()
        done = np.asarray(jaxnsd.energy.balance(block, MoreauJean(), sol).contact)
        assert done[impact].max() < 0
        return done

    coarse, fine = work(1e-3), work(5e-4)
    assert coarse.min() < -0.05
    lost, gained = -np.sum(coarse), np.sum(coarse[coarse > 0])
    assert gained < 3e-3 * lost
    assert np.sum(fine[fine > 0]) < 0.55 * gained
