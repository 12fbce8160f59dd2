"""Ensembles on other executors: the same bits from spawned processes, given or made here, and from Dask; dead workers are replaced."""

import concurrent.futures
import dataclasses
import multiprocessing
import os
import pickle
import signal
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxnsd
from jaxnsd import ensemble
from jaxnsd.ensemble import executors
from jaxnsd.models import BouncingBall
from jaxnsd.programs import pytrees

KEY = jax.random.key(5)


def observe(system, sol):
    """Something of every member."""
    return {"height": sol.q[-1, 0], "e_N": system.e_N}


def concatenated(a, b):
    """Both."""
    return {name: np.concatenate([a[name], b[name]]) for name in a}


def identity(state):
    """The state."""
    return state


def run(n=1000, reduce=None, observe=observe, **options):
    """An ensemble."""
    reduce = reduce or {"all": ensemble.Associative(dict, concatenated, identity), "moments": ensemble.Moments()}
    sample = {"e_N": ensemble.Uniform(0.4, 0.9)}
    return ensemble.run(
        BouncingBall(), jaxnsd.Moreau(), n, KEY, sample=sample, observe=observe, reduce=reduce, t1=0.8, dt=2e-2, chunk=256, **options
    )


def same(a, b):
    """Whether two results are the same to the bit."""
    assert a["moments"].mean == b["moments"].mean and a.counts == b.counts
    for name in ("height", "e_N"):
        np.testing.assert_array_equal(a["all"][name], b["all"][name])


class Dying(concurrent.futures.ThreadPoolExecutor):
    """Breaks, as a process pool does whose worker died, whenever its function says so."""

    def __init__(self, breaks, error=None):
        super().__init__(1)
        self.breaks, self.error = breaks, error or concurrent.futures.BrokenExecutor("a worker died")

    def submit(self, function, *args):
        if self.breaks():
            future = concurrent.futures.Future()
            future.set_exception(self.error)
            return future
        return super().submit(function, *args)


def test_a_chunk_whose_worker_dies_is_computed_again_once():
    whole, calls = run(), []

    def often():
        calls.append(0)
        return len(calls) % 2

    with Dying(often) as executor:
        same(run(executor=executor), whole)
    assert executors.Engine(None, np.int64(1)).workers == 1
    with Dying(lambda: True) as executor, pytest.raises(ensemble.WorkerLostError, match="6 times in a row") as caught:
        run(executor=executor)
    assert caught.value.result.done == 0


def test_workers_that_send_back_an_interrupt_lose_nothing():
    """Ctrl-C in a terminal reaches those of a pool that was given, too."""
    whole, calls = run(), []

    def third(signaled):
        calls.append(0)
        if len(calls) == 3 and signaled:
            os.kill(os.getpid(), signal.SIGINT)
        return len(calls) == 3

    with Dying(lambda: third(True), KeyboardInterrupt()) as executor, pytest.raises(ensemble.Interrupted) as caught:
        run(executor=executor)
    assert caught.value.result.done == 512
    calls.clear()
    with Dying(lambda: third(False), KeyboardInterrupt()) as executor:
        same(run(executor=executor), whole)


def test_what_is_with_an_executor_is_cancelled_after_an_error():
    sent = []

    class Stuck(concurrent.futures.ThreadPoolExecutor):
        def submit(self, function, *args):
            sent.append(concurrent.futures.Future())
            if len(sent) == 4:
                sent[1].set_exception(ZeroDivisionError("mine"))
            return sent[-1]

    with Stuck(2) as executor, pytest.raises(ZeroDivisionError, match="mine"):
        run(executor=executor)
    assert [future.cancelled() for future in sent] == [True, False, True, True]


def test_what_is_on_its_way_comes_back_after_errors():
    """Chunk 0 after two others failed."""
    sent = []

    class Late(concurrent.futures.ThreadPoolExecutor):
        def submit(self, function, *args):
            sent.append(concurrent.futures.Future())
            sent[-1].set_running_or_notify_cancel()
            if len(sent) == 4:
                for future in sent[1:]:
                    future.set_exception(ensemble.StoreError("full"))
                threading.Timer(0.3, lambda: sent[0].set_result(executors.work(*first))).start()
            elif len(sent) == 1:
                first.extend(args)
            return sent[-1]

    first = []
    with Late(2) as executor, pytest.raises(ensemble.StoreError) as caught:
        run(executor=executor)
    assert caught.value.result.done == 256


def test_an_error_in_the_work_is_no_death():
    class Wrong(ensemble.Moments):
        def chunk(self, values, index):
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        run(reduce={"moments": Wrong()})


@pytest.mark.slow
def test_a_spawned_pool_that_was_given_and_loses_a_worker():
    """A function within a function goes there by value."""
    whole = run()

    def inner(system, sol):
        return {"height": sol.q[-1, 0], "e_N": system.e_N}

    with concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        same(run(executor=pool, observe=inner), whole)
        os.kill(next(iter(pool._processes)), signal.SIGKILL)
        same(run(executor=pool), whole)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_dask():
    distributed = pytest.importorskip("distributed")
    whole = run()
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        same(run(executor=client.get_executor()), whole)


def test_a_forked_pool_is_refused():
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool, pytest.raises(ValueError, match="spawned"):
        run(executor=pool)
    with concurrent.futures.ThreadPoolExecutor(1) as pool, pytest.raises(ValueError, match="not both"):
        run(executor=pool, workers=2)


def test_what_cannot_be_sent_is_said():
    lock = threading.Lock()
    with pytest.raises(TypeError, match="sent to the workers"):
        run(workers=1, observe=lambda system, sol: (lock, sol.q[-1])[1:], reduce=ensemble.Moments())


def test_classes_that_come_by_value_are_known_to_jax():
    cloudpickle = pytest.importorskip("cloudpickle")

    @jaxnsd.system
    class Local(BouncingBall):
        length: float = 2.0

    sent = cloudpickle.dumps(Local(length=3.0))
    # As it is in another process: the class is made again, without its decorator.
    made = type("Made", (BouncingBall,), {"__annotations__": {"length": float}, "length": 2.0})
    made = dataclasses.dataclass(frozen=True)(made)
    assert len(jax.tree.leaves(made())) == 1
    pytrees.adopt(jaxnsd.System)
    assert len(jax.tree.leaves(made())) == 4 == len(jax.tree.leaves(pickle.loads(sent)))
    pytrees.adopt(jaxnsd.System)  # once is enough, twice does no harm


def test_parcels_are_opened_once_and_leave_a_worker_its_cache():
    job = jnp.arange(3.0)
    parcel = executors.parcel(job, by_value=False)
    assert parcel.open() is parcel.open()
    np.testing.assert_array_equal(parcel.open(), job)
    cache = jax.config.jax_compilation_cache_dir
    assert ("jax_compilation_cache_dir", cache) in parcel.settings
    try:
        jax.config.update("jax_compilation_cache_dir", None)
        assert not dict(executors.parcel(job, by_value=False).settings).keys() & set(executors.CACHE)
    finally:
        jax.config.update("jax_compilation_cache_dir", cache)
