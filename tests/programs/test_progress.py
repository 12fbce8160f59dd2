"""Bars: in a terminal without tqdm, elsewhere, of batches."""

import importlib
import sys

import jax
import numpy as np
import pytest

import jaxnsd
from jaxnsd.command_line import demo
from jaxnsd.models import BouncingBall
from jaxnsd.programs import progress


@pytest.fixture
def no_tqdm(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    progress._kind.cache_clear()
    yield
    progress._kind.cache_clear()


@pytest.mark.slow
def test_a_run_without_tqdm(no_tqdm, capfd, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    ball = BouncingBall()
    run, plain = (jaxnsd.simulate(ball, jaxnsd.Moreau(), *ball.initial_state(), 1.0, 1e-2, progress=bar) for bar in (True, False))
    jax.effects_barrier()
    np.testing.assert_allclose(run.q, plain.q, rtol=1e-12, atol=1e-13)
    importlib.reload(demo)
    assert list(progress.bar(iter("abc"), total=3, desc="letters")) == ["a", "b", "c"]
    with progress.bar(total=3, unit_scale=True) as bar:
        bar.update(2)
        assert bar.n == 2
    said = [line for line in capfd.readouterr().err.splitlines() if not line.startswith("compiling")]
    assert said == ["no progress bar: it needs tqdm (pip install tqdm)"]


def test_what_is_no_terminal_gets_a_line_every_tenth(capfd):
    """Of a run, what is compiled before it, once; of steps that do not meet the tenths; nothing where nothing is asked for."""
    ball = BouncingBall(e_N=0.25)
    for _ in range(2):
        jaxnsd.simulate(ball, jaxnsd.Moreau(), *ball.initial_state(), 1.0, 1e-2, progress=True).q.block_until_ready()
        jax.effects_barrier()
        first, *lines = capfd.readouterr().err.splitlines()
        if first.startswith("compiling"):
            assert first == "compiling a run of BouncingBall with Moreau, 100 steps"
        else:
            lines = [first, *lines]
        assert lines == [f"{10 * k}% ({10 * k} of 100 nodes)" for k in range(1, 11)]
    bar = progress.bar(total=7, desc="steps")
    for _ in range(7):
        bar.update()
    assert [line.split()[1] for line in capfd.readouterr().err.splitlines()] == ["14%", "29%", "43%", "57%", "71%", "86%", "100%"]
    jaxnsd.simulate(ball, jaxnsd.Moreau(), *ball.initial_state(), 1.0, 1e-2).q.block_until_ready()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(("size", "inside"), [(1, 1), (10, 1), (11, 1), (100, 1), (101, 1), (4096, 1), (3, 5), (257, 4)])
def test_members_that_speak_for_others(size, inside):
    """All members are spoken for once; few speak, and of many each once, at its end."""
    speaks = progress.shares(size, inside)
    assert abs(speaks).sum() == size * inside
    assert (speaks > 0).all() if size <= progress.FEW and inside == 1 else (speaks <= 0).all()
    assert np.count_nonzero(speaks) <= progress.UPDATES


@pytest.mark.slow
@pytest.mark.parametrize("batch", [(), (3,), (150,), (12, 4)])
def test_bars_of_batches_count_every_node(batch, monkeypatch):
    """Forward, and in both sweeps of reverse mode: as many nodes as there are, in few reports, and the motion of a run without a bar."""
    moves = []
    monkeypatch.setattr(progress, "bar", lambda total, **_: Counted(moves, total))
    ball = BouncingBall()

    def height(q, shown):
        return jaxnsd.simulate(ball, jaxnsd.Moreau(), q[None], np.zeros(1), 1.0, 1e-2, progress=shown).q[-1, 0]

    def runs(f):
        for _ in batch:
            f = jax.vmap(f)
        return jax.jit(f)

    q = np.linspace(0.9, 1.1, int(np.prod(batch))).reshape(batch)
    for transform in (lambda f: f, jax.grad):
        shown, plain = (runs(transform(lambda q, shown=shown: height(q, shown)))(q) for shown in (True, False))
        jax.effects_barrier()
        np.testing.assert_allclose(shown, plain, rtol=1e-10)
        assert all(bar.n == bar.total for bar in moves) and {bar.total for bar in moves} == {100 * q.size}
        assert sum(bar.reports for bar in moves) <= len(moves) * progress.UPDATES * (progress.FEW if len(batch) < 2 and q.size < 11 else 1)
        moves.clear()


class Counted(progress.NoBar):
    """A bar that keeps what it was told."""

    def __init__(self, moves, total):
        super().__init__()
        self.total, self.reports = total, 0
        moves.append(self)

    def update(self, n=1):
        """Count the reports as well."""
        super().update(n)
        self.reports += 1
