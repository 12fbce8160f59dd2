"""Several processes make the machine code that one would make, and where they cannot nothing is lost."""

import os
import subprocess
import sys
import threading

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


def test_other_programs_are_not_started(much, monkeypatch):
    """One in which Python is embedded would begin anew; an embedded Python need not know of any."""
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: 1 / 0)
    for program in ("", None, "/usr/bin/simulator"):
        monkeypatch.setattr(sys, "executable", program)
        assert machine.together(texts(3), 4) == [None] * 3
    monkeypatch.undo()
    monkeypatch.setattr(machine, "SHARE", 1)
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert machine._command() is None


def compiled_here(monkeypatch, jobs, cores=3):
    """How many modules are compiled by this process; what others make is right."""
    code_of, here = machine.code_of, []

    def counted(*job):
        here.append(job)
        return code_of(*job)

    with monkeypatch.context() as patch:
        patch.setattr(machine, "code_of", counted)
        made = machine.together(jobs, cores)
    assert all(made) and made == [code_of(*job) for job in jobs]
    return len(here)


@pytest.mark.parametrize("script", ["exec sleep 100", "exec cat", 'echo code; exec "{python}" "$@"', 'exec "{python}" -c "print(1)"'])
def test_a_program_that_says_something_else_is_asked_for_nothing(much, monkeypatch, tmp_path, script):
    """Nor waited for, whatever it reads; a Python with another LLVM is such a one."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\n" + script.format(python=sys.executable))
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    assert compiled_here(monkeypatch, texts(6)) == 6


def test_what_is_installed_and_set_elsewhere_does_not_matter(much, monkeypatch, tmp_path, capfd):
    """A module that is imported when Python starts, and prints; an llvmlite of another version; settings of Python's."""
    (tmp_path / "sitecustomize.py").write_text("print('hello')")
    (tmp_path / "llvmlite.py").write_text("1 / 0")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTHONINSPECT", "1")
    jobs = texts(40)
    assert compiled_here(monkeypatch, jobs * 5) < 5 * len(jobs)
    assert capfd.readouterr() == ("", "")


def test_threads_that_cannot_be_started_cost_nothing_but_time(much, monkeypatch):
    """As near the end of Python, or where a user has no more of them."""

    def start(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    assert compiled_here(monkeypatch, texts(6)) == 6


def test_nothing_is_left_of_processes(much):
    """No file, no thread, no process that has ended and is not asked for."""
    jobs = texts(3)

    def there():
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    if not os.path.exists("/proc/self/fd"):
        pytest.skip("the system does not say what a process has")
    machine.together(jobs, 3)
    before = there()
    for _ in range(5):
        machine.together(jobs, 3)
    assert there() == before
    children = [p for p in os.listdir("/proc") if p.isdigit() and _parent(p) == os.getpid()]
    assert not [p for p in children if "runpy" in _command_of(p)]


def _parent(process):
    try:
        with open(f"/proc/{process}/stat") as file:
            return int(file.read().rsplit(")", 1)[1].split()[1])
    except OSError:
        return None


def _command_of(process):
    try:
        with open(f"/proc/{process}/cmdline") as file:
            return file.read() or "runpy, and ended"
    except OSError:
        return ""


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
