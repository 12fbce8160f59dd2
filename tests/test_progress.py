"""Without tqdm, runs and the modules that show bars go without: one line says so, once in a process."""

import importlib
import sys

import jax
import numpy as np
import pytest

import jaxnsd
from jaxnsd import demo, progress
from jaxnsd.models import BouncingBall


@pytest.fixture
def no_tqdm(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    progress._kind.cache_clear()
    yield
    progress._kind.cache_clear()


@pytest.mark.slow
def test_a_run_without_tqdm(no_tqdm, capfd):
    ball = BouncingBall()
    run, plain = (jaxnsd.simulate(ball, jaxnsd.Moreau(), *ball.initial_state(), 1.0, 1e-2, progress=bar) for bar in (True, False))
    jax.effects_barrier()
    np.testing.assert_allclose(run.q, plain.q, rtol=1e-12, atol=1e-13)
    importlib.reload(demo)
    assert list(progress.bar(iter("abc"), total=3, desc="letters")) == ["a", "b", "c"]
    with progress.bar(total=3, unit_scale=True) as bar:
        bar.update(2)
        assert bar.n == 2
    assert capfd.readouterr().err == "no progress bar: it needs tqdm (pip install tqdm)\n"
