"""What an ensemble has finished is not lost, and not counted twice, whatever ends it; a store of another run is refused."""

import itertools
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from repository import ROOT

import jaxnsd
from jaxnsd import ensemble
from jaxnsd.models import BouncingBall

zarr = pytest.importorskip("zarr")
pytest.importorskip("xarray")

KEY = jax.random.key(5)
SCRIPT = ROOT / "tests" / "killed_run.py"


def observe(system, sol):
    """Two arrays, one of them with a shape."""
    return {"q": sol.q[::10], "e_N": system.e_N}


ARGUMENTS = {
    "system": BouncingBall(),
    "scheme": jaxnsd.Moreau(),
    "n": 1000,
    "key": KEY,
    "sample": {"e_N": ensemble.Uniform(0.4, 0.9)},
    "observe": observe,
    "t1": 0.8,
    "dt": 2e-2,
    "chunk": 256,
}


def run(path, **change):
    """The ensemble of this file, with a store."""
    arguments = ARGUMENTS | change
    first = [arguments.pop(name) for name in ("system", "scheme", "n", "key")]
    return ensemble.run(*first, store=path, **arguments)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """``(store, result)`` of a run without a disturbance."""
    path = tmp_path_factory.mktemp("store") / "a.zarr"
    return path, run(path)


def copy(made, tmp_path):
    return Path(shutil.copytree(made[0], tmp_path / "copy.zarr"))


def same(result, made):
    """Whether statistics and observations are those of the run without a disturbance, to the bit."""
    for name in ("mean", "variance"):
        for a, b in zip(*(jax.tree.leaves(getattr(r["moments"], name)) for r in (result, made[1])), strict=True):
            np.testing.assert_array_equal(a, b)
    a, b = result.dataset().load(), made[1].dataset().load()
    assert a.equals(b)
    return result.complete


def test_the_store_holds_what_was_observed(made):
    path, result = made
    data = result.dataset()
    assert data.sizes["member"] == 1000 and data.q.shape == (1000, 5, 1)
    assert np.all(data.outcome == 0) and data.outcome.attrs["flag_meanings"].startswith("SUCCESS NOT_CONVERGED")
    np.testing.assert_allclose(data.e_N.values.mean(), result["moments"].mean["e_N"], rtol=1e-13)
    np.testing.assert_array_equal(result.quantiles("e_N", (0.0, 0.5, 0.07)), np.sort(data.e_N.values)[[0, 499, 69]])
    assert set(data.dims) == {"member", "q_0", "q_1"} and len(data[["e_N", "outcome"]].to_dataframe()) == 1000
    assert (data.attrs["system"], data.attrs["jaxnsd_version"]) == ("BouncingBall", jaxnsd.__version__)
    again = run(path)
    assert again.computed == 0 and same(again, made)
    # Another reduction of the same observations needs no simulation.
    extremes = run(path, reduce=ensemble.Extremes(1, of="e_N"), resume=True)
    assert extremes.computed == 0
    assert extremes["extremes"].largest_index == [np.argmax(data.e_N.values)]
    with pytest.raises(KeyError, match="holds"):
        result.quantiles("mu", 0.5)


@pytest.mark.parametrize("points", [None, ensemble.Sobol(2)], ids=["random", "points"])
def test_what_was_drawn_stands_beside_what_was_observed(tmp_path, points):
    random = {"e_N": ensemble.Uniform(0.5, 0.8), "gravity": ensemble.Normal(9.81, 0.1)}
    sample = ensemble.Independent(BouncingBall(), random, start=([1.0], [0.0]))
    options = {"sample": sample, "points": points, "chunk": 16, "t1": 0.5, "dt": 0.01}
    result = ensemble.run(
        BouncingBall(),
        jaxnsd.Moreau(),
        40,
        jax.random.key(3),
        observe=lambda system, sol: {"height": sol.q[-1, 0], "seen": jnp.stack([system.e_N, system.gravity])},
        store=tmp_path / "a.zarr",
        **options,
    )
    data = result.dataset()
    np.testing.assert_allclose(np.stack([data.e_N, data.gravity], axis=1), data.seen, rtol=1e-14)
    assert data.e_N.dims == ("member",) and np.ptp(data.e_N.values) > 0.1
    assert set(data.drop_dims("seen_0").to_dataframe().columns) == {"outcome", "height", "e_N", "gravity"}
    assert "e_N" not in result.dataset(drawn=False)


def damaged(path, what):
    """Damage chunk 1 of 4."""
    chunk = path / "q" / "c" / "1" / "0" / "0"
    if what == "truncated":
        chunk.write_bytes(chunk.read_bytes()[:-20])
    elif what == "lost":
        chunk.unlink()
    elif what == "other bytes":
        group = zarr.open_group(str(path), mode="r+")
        group["q"][300, 0, 0] += 1e-9
    elif what == "no marker":
        (path / "marker" / "c" / "1").unlink()
    elif what == "truncated marker":
        (path / "marker" / "c" / "1").write_bytes(b"123")


@pytest.mark.parametrize("what", ["truncated", "lost", "other bytes", "no marker", "truncated marker"])
def test_a_chunk_that_is_not_whole_is_computed_again(made, tmp_path, what):
    path = copy(made, tmp_path)
    damaged(path, what)
    result = run(path)
    assert result.computed == 256 and same(result, made)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"system": BouncingBall(mass=0.2)}, "another system: BouncingBall"),
        ({"scheme": jaxnsd.SymmetricMoreau()}, r"another scheme: Moreau\(\), and this run has SymmetricMoreau\(\)"),
        ({"key": jax.random.key(6)}, "another key"),
        ({"n": 999}, "another number of members: 1000, and this run has 999"),
        ({"dt": 4e-2}, "another dt: 0.02, and this run has 0.04"),
        ({"sample": {"e_N": ensemble.Uniform(0.4, 0.8)}}, "another program"),
        ({"observe": lambda system, sol: {"q": sol.q[::10], "e_N": 2 * system.e_N}}, "another program"),
        ({"points": ensemble.LatinHypercube(1)}, "another points"),
        ({"resume": False}, "exists; resume=True"),
    ],
)
def test_a_store_of_another_run_is_refused_in_a_sentence(made, change, words):
    with pytest.raises(ensemble.StoreError, match=words) as caught:
        run(made[0], **change)
    assert "\n" not in str(caught.value)


def test_a_store_of_a_gradient_at_another_point_is_refused(tmp_path):
    """theta is an argument of the program, which is the same."""

    def gradient(theta):
        sample = lambda key, theta: (BouncingBall(), theta + jnp.ones(1), jnp.zeros(1))  # noqa: E731
        options = {"sample": sample, "observe": lambda system, sol: sol.q[-1, 0], "t1": 0.04, "dt": 2e-2, "store": tmp_path / "g.zarr"}
        return ensemble.gradient(BouncingBall(), jaxnsd.SymmetricMoreau(), 4, KEY, theta, sensitivity="discrete", **options)

    gradient(2.0)
    with pytest.raises(ensemble.StoreError, match="another theta"):
        gradient(3.0)


def test_other_refusals(made, tmp_path, monkeypatch):
    monkeypatch.setattr("jaxnsd.ensemble.store.__version__", "99.0")
    with pytest.raises(ensemble.StoreError, match=r"another jaxnsd version: 0\.\d+\.\d+, and this run has 99\.0"):
        run(made[0])
    (tmp_path / "mine").mkdir()
    with pytest.raises(ensemble.StoreError, match="is not a store"):
        run(tmp_path / "mine")
    with pytest.raises(ensemble.StoreError, match="does not exist"):
        run(tmp_path / "nowhere" / "a.zarr")
    with pytest.raises(ensemble.StoreError, match="no store to go on with"):
        run(tmp_path / "a.zarr", resume=True)
    with pytest.raises(ValueError, match="names of its own"):
        run(tmp_path / "b.zarr", observe=lambda system, sol: {"outcome": sol.q[-1]})
    with pytest.raises(ValueError, match="calls back into Python"):
        run(tmp_path / "b.zarr", observe=lambda system, sol: (jax.debug.print("{}", sol.t[-1]), sol.q[-1])[1])
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_store_that_cannot_be_opened_now_is_not_said_to_be_none(made, monkeypatch):
    """Its reader was told to give the store another name where a process was short of memory, or of threads."""
    for error, words in ((MemoryError(), "MemoryError"), (RuntimeError("can't start new thread"), "can't start new thread")):
        with monkeypatch.context() as patch:
            patch.setattr(zarr, "open_group", lambda *args, error=error, **options: (_ for _ in ()).throw(error))
            with pytest.raises(ensemble.StoreError, match=f"cannot be opened: .*{words}"):
                run(made[0])
    assert run(made[0]).computed == 0


def test_what_cannot_be_stored_and_a_store_that_is_damaged(made, tmp_path):
    for name in ("..", "a/b", "__x"):
        with pytest.raises(ValueError, match="cannot be the name of an array"):
            run(tmp_path / "b.zarr", observe=lambda system, sol, name=name: {name: sol.q[-1]})
    for name in ("member", "chunk", "zarr.json"):
        with pytest.raises(ValueError, match=f"names of its own for what is observed; {name}"):
            run(tmp_path / "b.zarr", observe=lambda system, sol, name=name: {name: sol.q[-1]})
    with pytest.raises(ValueError, match="takes no arrays of bfloat16"):
        run(tmp_path / "b.zarr", observe=lambda system, sol: sol.q[-1].astype(jnp.bfloat16))
    path = copy(made, tmp_path)
    (path / "q" / "zarr.json").write_text("{")
    with pytest.raises(ensemble.StoreError, match="is damaged, its array 'q' cannot be opened"):
        run(path)


def test_a_disk_that_is_full_keeps_what_is_there(made, tmp_path, monkeypatch):
    """The system refuses to write beyond a size of a file, as it refuses on a full disk, in the second chunk and all later ones."""
    from jaxnsd.ensemble import store

    write, path = store.Store.write, tmp_path / "a.zarr"
    turn = threading.Lock()  # the limit is that of the process

    def limited(self, k, *what):
        with turn:
            before = resource.getrlimit(resource.RLIMIT_FSIZE)
            if k >= 1:
                resource.setrlimit(resource.RLIMIT_FSIZE, (500, before[1]))
            try:
                write(self, k, *what)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, before)

    monkeypatch.setattr(store.Store, "write", limited)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with pytest.raises(ensemble.StoreError, match=r"cannot be written.*kept") as caught:
            run(path)
    finally:
        signal.signal(signal.SIGXFSZ, ignored)
    assert caught.value.result.done == 256
    monkeypatch.setattr(store.Store, "write", write)
    result = run(path)
    assert result.computed == 1000 - 256 and same(result, made)


def test_a_reduction_that_raises_loses_no_chunk(made, tmp_path):
    class Wrong(ensemble.Moments):
        def chunk(self, values, index):
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        run(tmp_path / "a.zarr", reduce=Wrong())
    result = run(tmp_path / "a.zarr")
    assert result.computed < 1000 and same(result, made)


# ------------------------------------------------------------------------------------------------------------------------ killed
def start(path, n, workers=2):
    """The script, running, in a group of processes of its own."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_COMPILATION_CACHE_DIR": str(ROOT / ".jax_cache")}
    environment |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2"}
    command = [sys.executable, str(SCRIPT), str(path), str(n), *([str(workers)] if workers else [])]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True)


def children(pid):
    """Spawned workers of a process."""
    found = subprocess.run(["ps", "-o", "pid=,args=", "--ppid", str(pid)], capture_output=True, text=True).stdout
    return [int(line.split()[0]) for line in found.splitlines() if "spawn_main" in line]


def markers(path):
    """Chunks that are done."""
    return len([x for x in (path / "marker" / "c").glob("*") if x.name.isdigit()]) if path.exists() else 0


def wait(path, process, chunks, limit=120):
    """Wait until so many chunks more are there, or the process ends."""
    end, before = time.monotonic() + limit, markers(path)
    while markers(path) < before + chunks and process.poll() is None:
        assert time.monotonic() < end
        time.sleep(0.02)


def finished(path, n, workers=2):
    """Numbers that the script prints when it is left alone."""
    out, err = start(path, n, workers).communicate(timeout=300)
    assert out, err
    return json.loads(out)


def killed(path, n, kills, seed):
    """Kill workers, drivers and all of them, at random times, until all is done: the numbers, and how often what was killed."""
    choose = random.Random(seed)
    process, count = start(path, n), {"worker": 0, "driver": 0, "term": 0}
    for what in itertools.islice(itertools.cycle(kills), len(kills)):
        wait(path, process, choose.choice((1, 2)))
        time.sleep(choose.random() * 0.1)
        if process.poll() is not None:
            break
        workers = children(process.pid)
        if what == "worker" and workers:
            os.kill(choose.choice(workers), signal.SIGKILL)
        elif what == "driver":
            process.kill()
            process.wait()
        elif what == "term":
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=60)
        count[what] += 1
        if process.poll() is not None:
            process.communicate()
            process = start(path, n)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0 and out, err
    return json.loads(out), count


def compare(tmp_path, n, kills, seed=0):
    whole = finished(tmp_path / "whole.zarr", n, workers=None)
    assert whole.pop("computed") == n
    got, count = killed(tmp_path / "killed.zarr", n, kills, seed)
    assert sum(count.values()) == len(kills), f"the run was done after {count}"
    assert got.pop("computed") < n
    assert got == whole and got["n"] == n
    data = [jaxnsd.ensemble.store.dataset(tmp_path / f"{name}.zarr").load() for name in ("whole", "killed")]
    assert data[0].equals(data[1])
    assert not list(tmp_path.glob(".*.making"))


@pytest.mark.slow
def test_killed_workers_and_drivers_lose_nothing(tmp_path):
    compare(tmp_path, 8000, ["worker", "driver"])


@pytest.mark.long
def test_twenty_random_kills(tmp_path):
    kills = ["worker"] * 9 + ["driver"] * 7 + ["term"] * 4
    random.Random(1).shuffle(kills)
    compare(tmp_path, 50_000, kills, seed=1)


def test_a_signal_keeps_what_is_done(tmp_path):
    """Without a store too: the statistics of what is done come with the exception."""

    def late(system, sol):
        return {"q": sol.q[-1]}

    timer = []

    class Kill(ensemble.Moments):
        def merge(self, a, b):
            if not timer and a[0] + b[0] > 256:  # two chunks
                timer.append(os.kill(os.getpid(), signal.SIGINT))
            return super().merge(a, b)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ensemble.Interrupted, match=r"interrupted by SIGINT after \d+ of 5000 members") as caught:
        run(None, n=5000, observe=late, reduce=Kill())
    assert signal.getsignal(signal.SIGINT) is before
    assert isinstance(caught.value, KeyboardInterrupt) and caught.value.status == 130
    result = caught.value.result
    assert 512 <= result.done < 5000 and result["kill"].n == result.done == sum(result.counts.values())
    assert jnp.isfinite(result["kill"].mean["q"][0])
