"""Where chunks are computed: in this process, in spawned ones, or wherever an executor of `concurrent.futures` puts them.

A worker is sent the job once, as a parcel, and keeps its compiled program; then a chunk is three numbers. Spawned workers start without
anything of this process: they import JAX themselves, with the settings that it has here.
"""

import collections
import concurrent.futures
import concurrent.futures.process
import contextlib
import dataclasses
import hashlib
import importlib
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import sys
import tempfile
import threading
from typing import Any

import jax
import numpy as np

from ..mechanics.system import System
from ..native import cores
from ..programs import pytrees
from .store import Store

#: Settings of JAX that a worker takes over.
CACHE = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs", "jax_compilation_cache_max_size")
SETTINGS = ("jax_enable_x64", "jax_default_matmul_precision", "jax_numpy_rank_promotion", "jax_platforms", *CACHE)

#: Programs that a worker keeps.
KEPT = 2


class WorkerLostError(RuntimeError):
    """Workers died, again and again; ``result`` is the `Result` of the members that are done."""

    result = None


# ---------------------------------------------------------------------------------------------------------------------- workers
@dataclasses.dataclass(frozen=True)
class Direct:
    """A job for this process, which has all cores."""

    job: Any
    alone = True

    def open(self):
        """The job."""
        return self.job


@dataclasses.dataclass(frozen=True)
class Parcel:
    """A job for workers in other processes, of which each has a core: bytes, and the settings of JAX that they are unpacked with."""

    content: bytes
    settings: tuple
    name: str
    alone = False

    def open(self):
        """The job; the one that was opened before where it is the same."""
        if self.name not in _opened:
            for setting, value in self.settings:
                jax.config.update(setting, value)
            job = pickle.loads(self.content)
            # A class that came along with the job, not by its name, is not known to JAX yet.
            pytrees.adopt(System)
            _opened[self.name] = job
            while len(_opened) > KEPT:
                _opened.popitem(last=False)
        return _opened[self.name]


_opened = collections.OrderedDict()


def parcel(job, by_value):
    """`Parcel` of a job, functions and classes of the main program by value (cloudpickle) or, where they can be, by name.

    Raises TypeError for what cannot be sent.
    """
    # Without a cache here, workers keep the one that they share.
    left_out = () if jax.config.jax_compilation_cache_dir else CACHE
    settings = tuple((name, getattr(jax.config, name)) for name in SETTINGS if hasattr(jax.config, name) and name not in left_out)
    content = None
    if not by_value:
        with contextlib.suppress(Exception):
            content = pickle.dumps(job)
    if content is None:
        try:
            cloudpickle = importlib.import_module("cloudpickle")
        except ImportError:
            cloudpickle = pickle
        try:
            content = cloudpickle.dumps(job)
        except Exception as error:
            more = "" if cloudpickle is not pickle else "; pip install cloudpickle lets functions within functions be sent"
            raise TypeError(
                f"sample, observe, the reductions and the scheme are sent to the workers, and one of them cannot be pickled: {error}{more}"
            ) from error
    return Parcel(content, settings, hashlib.sha256(content).hexdigest())


def work(parcel, k, first, count, chunk, points):
    """Compute chunk k, write it where there is a store, and return its `Part`."""
    job = parcel.open()
    outcome, seen = job.compute(first, count, chunk, points, parcel.alone)
    # Stored first: a reduction that raises does not lose what was computed.
    if job.store is not None:
        _store_of(job).write(k, outcome, seen)
    return job.reduce(first, outcome, seen)


def _store_of(job):
    if "_open_store" not in job.__dict__:
        job.__dict__["_open_store"] = Store(job.store)
    return job.__dict__["_open_store"]


# ------------------------------------------------------------------------------------------------------------------- executors
def in_process():
    """Two threads beside the main one, which is free to look at signals: what one reduces, the other need not wait for."""
    return concurrent.futures.ThreadPoolExecutor(2, "jaxnsd-ensemble")


def pool(workers, cache):
    """Spawned processes, of a core each. ``cache``: directory in which they share what one of them compiled."""
    return concurrent.futures.ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=_begin, initargs=(cache,))


def _begin(cache):
    """A spawned worker starts."""
    # Ctrl-C in a terminal goes to all processes; the first one says what becomes of the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["NPROC"] = "1"  # threads of XLA, which is not started yet
    if cache:
        jax.config.update("jax_compilation_cache_dir", cache)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent():
    """A parent that is killed cannot tell its workers, which would wait for it for ever."""
    multiprocessing.connection.wait([multiprocessing.parent_process().sentinel])
    os._exit(1)


class Engine:
    """An executor that is made again when it breaks."""

    def __init__(self, executor, workers):
        if executor is not None and workers is not None:
            raise ValueError("ensemble: give workers or an executor, not both")
        if workers is not None:
            if isinstance(workers, bool) or not isinstance(workers, (int, np.integer)) or workers < 1:
                raise ValueError(f"ensemble: workers must be a positive whole number, got {workers!r}")
            workers = int(workers)
        if executor is not None and not (hasattr(executor, "submit") and hasattr(executor, "shutdown")):
            raise TypeError(f"ensemble: executor must be an executor of concurrent.futures, such as ProcessPoolExecutor, got {executor!r}")
        processes = isinstance(executor, concurrent.futures.ProcessPoolExecutor)
        if processes and _forks(executor):
            raise ValueError(
                "ensemble: workers must be spawned, a forked process cannot use JAX: "
                "ProcessPoolExecutor(mp_context=multiprocessing.get_context('spawn')), or workers=n"
            )
        self.here = (executor is None and workers is None) or isinstance(executor, concurrent.futures.ThreadPoolExecutor)
        self.by_name = workers is not None or processes
        self.own, self.workers, self._cache = executor is None, workers, None
        if processes:
            self.workers = executor._max_workers
        if executor is None:
            executor = in_process() if workers is None else self._pool()
        self.executor = executor
        #: Chunks that are with the workers at a time.
        self.ahead = 2 * (self.workers or getattr(executor, "_max_workers", None) or _cores_of(executor) or cores())

    def _pool(self):
        cache = jax.config.jax_compilation_cache_dir
        if not cache:
            self._cache = self._cache or tempfile.TemporaryDirectory(prefix="jaxnsd-")
            cache = self._cache.name
        return pool(self.workers, cache)

    def parcel(self, job):
        """What is sent to the workers."""
        return Direct(job) if self.here else parcel(job, by_value=not (self.by_name and hasattr(sys.modules["__main__"], "__file__")))

    def submit(self, *args):
        """Future of `work`."""
        return self.executor.submit(work, *args)

    def replace(self):
        """Make a new pool in place of one that broke; returns whether it did."""
        if self.workers is None:
            return False  # Dask and the like replace their workers themselves
        self.executor.shutdown(wait=False, cancel_futures=True)
        self.executor, self.own = self._pool(), True
        return True

    def close(self, wait=True):
        """End what was started here; an executor that was given stays."""
        if self.own:
            self.executor.shutdown(wait=wait, cancel_futures=True)
        if self._cache is not None and wait:
            self._cache.cleanup()


def lost(error):
    """Whether this says that a worker is gone, not that the work is wrong."""
    # Ctrl-C in a terminal goes to the workers as well: those of a pool that was given send it back.
    broken = (concurrent.futures.BrokenExecutor, concurrent.futures.CancelledError, KeyboardInterrupt)
    return isinstance(error, broken) or type(error).__name__ in ("KilledWorker", "CommClosedError")


def _forks(executor):
    return getattr(executor, "_mp_context", multiprocessing).get_start_method() == "fork"


def _cores_of(executor):
    """Workers of a Dask client."""
    client = getattr(executor, "_client", None)
    with contextlib.suppress(Exception):
        return len(client.scheduler_info()["workers"])
    return None
