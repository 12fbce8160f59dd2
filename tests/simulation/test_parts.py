"""A run in parts has the numbers of a run in one piece, and can be read between them."""

import dataclasses

import jax
import numpy as np
import pytest

import jaxnsd
from jaxnsd.models import BouncingBall, RotatingBall
from jaxnsd.simulation.parts import PartedRun

#: Neither has a number of stored intervals that the parts divide; the second carries accelerations from node to node.
RUNS = {
    "every seventh node": (RotatingBall(), jaxnsd.SymmetricMoreau(), 0.7007, 1e-4, 7),
    "with what a scheme carries": (BouncingBall(), jaxnsd.GeneralizedAlpha(0.8), 1.2, 5e-4, 1),
}


@pytest.mark.parametrize("name", ["every seventh node", pytest.param("with what a scheme carries", marks=pytest.mark.slow)])
def test_parts_have_the_numbers_of_a_run_in_one_piece(name):
    system, scheme, t1, dt, every = RUNS[name]
    whole = jaxnsd.simulate(system, scheme, *system.initial_state(), t1, dt, save_every=every)
    run = PartedRun(system, scheme, *system.initial_state(), t1, dt, save_every=every)
    assert run.solution() is None
    n = next(run)
    begun = run.solution()
    assert len(begun.outcome) * every == n == run.part
    np.testing.assert_allclose(begun.q, whole.q[: n // every + 1], rtol=1e-12, atol=1e-13)
    assert list(run)[-1] == round(t1 / dt)
    parts = run.solution()
    whole = dataclasses.replace(whole, final=None)  # parts go on by themselves
    assert jax.tree.structure(parts) == jax.tree.structure(whole)
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(parts), jax.tree.leaves(whole), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype), path
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-11, err_msg=str(path))
