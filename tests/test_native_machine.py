"""Several processes make the machine code that one would make, and where they cannot nothing is lost."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxnsd
from jaxnsd import native
from jaxnsd.native import build, machine

pytestmark = pytest.mark.skipif(not native.available(), reason="needs llvmlite")


def texts(n):
    """Texts of so many modules."""
    return [(build.text_of(jax.make_jaxpr(lambda x, k=k: jnp.sin(k * x) + x**k)(jnp.ones(3)))[0].main, k % 3) for k in range(n)]


@pytest.fixture
def much(monkeypatch):
    """However little text there is, it is much."""
    monkeypatch.setattr(machine, "SHARE", 1)
    machine.ready()


@pytest.mark.parametrize("cores", [2, 4])
def test_code_of_several_processes(much, cores):
    """To the byte, as many as there are, in whatever order they are done."""
    jobs = texts(7)
    made = machine.together(jobs, cores)
    assert all(made) and made == [machine.code_of(*job) for job in jobs]


def test_one_core_has_no_other_process(much, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: 1 / 0)
    assert machine.together(texts(3), 1) == [None] * 3
    assert machine.together(texts(1), 4) == [None]
    assert machine.together([], 4) == []


def test_little_text_is_compiled_here(monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: 1 / 0)
    assert machine.together(texts(3), 4) == [None] * 3


@pytest.mark.parametrize("command", [["-c", "import sys; sys.exit(3)"], ["-c", "print('no code')"], None])
def test_a_process_that_fails_costs_nothing_but_time(much, monkeypatch, command):
    """One that dies, one that says something else, and one that cannot be started: what it was asked for is made here."""
    popen = subprocess.Popen

    def other(_, **pipes):
        if command is None:
            raise OSError("no more processes")
        return popen([sys.executable, *command], **pipes)

    monkeypatch.setattr(subprocess, "Popen", other)
    jobs = texts(6)
    made = machine.together(jobs, 3)
    assert [code or machine.code_of(*job) for code, job in zip(made, jobs, strict=True)] == [machine.code_of(*job) for job in jobs]


def test_a_run_that_several_processes_compile(much, monkeypatch):
    """Has the same bits."""
    leg = jaxnsd.bodies.from_mjcf(jaxnsd.models.SCENES["leg"])
    q0, u0 = leg.initial_state()
    monkeypatch.setenv("JAXNSD_CACHE_DIR", "0")
    motions = []
    for cores in (1, 3):
        monkeypatch.setattr(build, "cores", lambda cores=cores: cores)
        jax.clear_caches()
        native.give_back()
        motions.append(jaxnsd.simulate(leg, jaxnsd.Moreau(), q0, u0, n_steps=20, dt=1e-3))
    np.testing.assert_array_equal(motions[0].q, motions[1].q)
    np.testing.assert_array_equal(motions[0].P_N, motions[1].P_N)
