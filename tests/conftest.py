"""Strict numerics for every test: float64, no silent rank promotion, and one compilation cache for all runs and workers."""

import gc
import itertools
import os
import sys
import time
from pathlib import Path

# XLA starts a pool as wide as the machine in every process: with several test workers they would fight for the cores.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("NPROC", "1")

import jax
import matplotlib
import pytest

matplotlib.use("Agg")

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_compilation_cache_dir", str(Path(__file__).parent.parent / ".jax_cache"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
# A bounded cache is locked while it is read and written, which makes it safe to share between workers.
jax.config.update("jax_compilation_cache_max_size", 2**30)

# Tracing makes millions of small objects that live on: looking through them for cycles, again and again, is a tenth of the time.
gc.freeze()
gc.set_threshold(100_000, 20, 50)


def pytest_runtest_setup():
    """No test begins after ``JAXNSD_TESTS_UNTIL``, in seconds since 1970: where time is bounded, what is left out is counted as skipped."""
    until = os.environ.get("JAXNSD_TESTS_UNTIL")
    if until and time.time() > float(until):
        pytest.skip("no time is left")


@pytest.fixture(autouse=True)
def _close_figures():
    """No figure outlives its test."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


#: Files after which a worker forgets what it has compiled.
FILES = 6
_ran = itertools.count(1)


@pytest.fixture(autouse=True, scope="module")
def _free_programs():
    """Compiled programs and traces of all files take gigabytes together; small ones of the files before serve again."""
    yield
    if next(_ran) % FILES == 0:
        gc.unfreeze()
        jax.clear_caches()
        gc.collect()
    gc.freeze()


@pytest.fixture
def lockstep(monkeypatch):
    """Batches as on a GPU; what was compiled before must not serve."""
    jax.clear_caches()
    monkeypatch.setattr(sys.modules["jaxnsd.simulation.simulate"], "LANES", 0)
    yield
    jax.clear_caches()
