"""The driver: chunks go out to workers, their parts come back and are merged in order; what is done survives whatever ends it."""

import collections
import concurrent.futures
import contextlib
import dataclasses
import inspect
import os
import time
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ..mechanics.results import Outcome
from ..mechanics.system import System
from ..programs import interrupts, progress
from ..programs.given import calling, flag, numbers, shown, takes, whole
from ..schemes import Scheme
from ..simulation.simulate import check
from . import executors, store
from .job import Job, Part, merge
from .reductions import Moments, Reduction
from .result import Failures, Result
from .samples import Independent

#: Steps that a chunk has by default: a second or two of a small system.
STEPS = 2**24

#: Members that are drawn and looked at before a run begins, until one passes.
FIRST = 8

#: Times in a row, without a chunk that is finished in between, that workers may die before the engine gives up.
PATIENCE = 5

#: Seconds that an interrupted run waits for the chunks that are on their way.
GRACE = 10.0

#: Results that are kept back, in multiples of the chunks with the workers, while one before them is missing.
WINDOW = 4


class Interrupted(interrupts.Interrupted, KeyboardInterrupt):
    """Ctrl-C or SIGTERM ended an ensemble. ``result`` is the `Result` of the members that are done, ``status`` 128 + the signal."""

    def __init__(self, status: int, text: str, result: Result) -> None:
        interrupts.Interrupted.__init__(self, status - 128)
        self.result = result
        self.but(text)


def run(
    system: System,
    scheme: Scheme,
    n: int,
    key: ArrayLike,
    *,
    sample: Any,
    observe: Any,
    reduce: Any = None,
    points: Any = None,
    chunk: int | None = None,
    store: Any = None,
    resume: bool | None = None,
    workers: int | None = None,
    executor: Any = None,
    devices: int = 1,
    lockstep: bool | None = None,
    progress: bool = False,
    **options: Any,
) -> Result:
    """Simulate n members, each with a sample of its own, and reduce what is observed of them.

    Member i is drawn with the key ``fold_in(key, i)``. On a CPU it is the same to the bit whatever the size of the chunks, the number of
    workers and of devices, and the statistics are the same to the bit for the same size of the chunks.

    Parameters
    ----------
    system:     the `System` that is varied; the store tells by it whether it belongs to the run
    scheme:     as of `simulate`
    n:          number of members, up to 2^32
    key:        `jax.random.key(seed)`
    sample:     function ``sample(key) -> (system, q0, u0)``, traced; or a dict of distributions, ``{"mu": Normal(0.3, 0.02)}``, see
                `Independent`. With points, ``sample(key, point)``
    observe:    function ``observe(system, solution) -> arrays``, traced: any pytree of arrays, such as ``{"q": solution.q[-1]}``
    reduce:     a `Reduction`, or a dict of them by name; default ``{"moments": Moments()}``
    points:     `Sobol`, `Halton` or `LatinHypercube`: points in the unit cube for the samples
    chunk:      members that are computed at once, in every worker, rounded up to whole blocks of up to 256, in which members are computed;
                the default makes chunks of about 2^24 steps
    store:      directory, Zarr, that holds what is observed of every member (extra ``[ensemble]``). The same call goes on where it stopped
    resume:     True: there must be a store; False: there must be none; None: as it is
    workers:    number of processes, spawned, of a core each; default: this process, with all cores. In a script the call then stands
                under ``if __name__ == "__main__":``
    executor:   any executor of `concurrent.futures` instead: a spawned process pool, Dask's ``Client.get_executor()``, mpi4py's pool
    devices:    number of devices of this process that share the blocks of a chunk, by `jax.sharding`; each has the program compiled
    lockstep:   whether members advance together, which a GPU needs, or one by one; default: by the backend. In lockstep the bits of a
                member may depend on the size of the chunk
    progress:   show a bar with rate, failures and remaining time (needs tqdm)
    options:    those of `simulate`: ``t1, dt, n_steps, save_every, solver, sensitivity, until, save_at, ...``

    Returns a `Result`. Members that fail are counted by their outcome, listed, and not part of any statistic.

    Raises ValueError or TypeError, before anything is computed, for input that makes no sense; `StoreError` for a store of another run, a
    full disk; `Interrupted`, a KeyboardInterrupt, at Ctrl-C or SIGTERM, with the chunks that were on their way, and what was done in its
    ``result``; a second signal ends the process at once. A worker that dies is replaced and its chunk computed again; `WorkerLostError` is
    raised after five deaths in a row.
    """
    sample = _sample(system, sample, points)
    job = _job(scheme, n, key, sample, observe, reduce, points, devices, lockstep, options)
    _check_first(system, job)
    return _drive(system, job, chunk, store, resume, workers, executor, progress)


def gradient(
    system: System,
    scheme: Scheme,
    n: int,
    key: ArrayLike,
    theta: Any,
    *,
    sample: Any,
    observe: Any,
    points: Any = None,
    chunk: int | None = None,
    store: Any = None,
    resume: bool | None = None,
    workers: int | None = None,
    executor: Any = None,
    devices: int = 1,
    lockstep: bool | None = None,
    progress: bool = False,
    **options: Any,
) -> Result:
    """dE[f]/dtheta of a scalar ``observe``, by reverse mode through every member, streamed, with standard errors.

    ``sample(key, theta)``, or ``sample(key, point, theta)`` with points; theta is a pytree of floats. All else is as in `run`. The
    statistic ``"moments"`` has ``mean["value"]``, ``mean["gradient"]``, and standard errors of both.

    The mean of the members' derivatives is the derivative of the mean where f is a continuous function of theta for almost every sample,
    impacts included with ``sensitivity="saltation"``, up to O(dt), or `LocatedImpacts`. Where f jumps, as a face on which a cube lands or a
    count of impacts does, the derivative of every member leaves the jump out: that of a probability comes out as 0, with a standard
    error of 0. Then differentiate a smooth observation, or take the difference of two runs with the same key.
    """
    _check_system(system)
    for leaf in jax.tree.leaves(theta):
        if (array := numbers(leaf)) is None or not jnp.issubdtype(array.dtype, jnp.floating):
            raise TypeError(f"ensemble.gradient: theta must be made of floats, got {shown(leaf)}")
    if not jax.tree.leaves(theta):
        raise ValueError("ensemble.gradient: theta is empty")
    if not callable(sample):
        raise TypeError(f"ensemble.gradient: sample must be a function sample(key, theta) -> (system, q0, u0), got {shown(sample)}")
    theta = jax.tree.map(lambda x: np.asarray(x, jnp.result_type(x)), theta)
    job = _job(scheme, n, key, sample, observe, None, points, devices, lockstep, options, theta)
    _check_first(system, job)
    return _drive(system, job, chunk, store, resume, workers, executor, progress)


# ------------------------------------------------------------------------------------------------------------------------ checks
def _check_system(system):
    if not isinstance(system, System):
        raise TypeError(f"ensemble: system must be a system such as BouncingBall(), got {shown(system)}")


def _sample(system, sample, points):
    _check_system(system)
    if isinstance(sample, dict):
        sample = Independent(system, sample)
    if not callable(sample):
        raise TypeError(
            f"ensemble: sample must be a function sample(key) -> (system, q0, u0), or a dict of distributions, got {shown(sample)}"
        )
    if isinstance(sample, Independent) and points is not None and getattr(points, "dimensions", None) != len(sample.parameters):
        raise ValueError(f"ensemble: {len(sample.parameters)} parameters are drawn, and the points are {points!r}")
    return sample


def _job(scheme, n, key, sample, observe, reduce, points, devices, lockstep, options, theta=None):
    if lockstep not in (None, True, False):
        raise TypeError(f"ensemble: lockstep must be True, False or None, got {lockstep!r}")
    n = whole("ensemble: n", n, 1, 2**32)
    devices = whole("ensemble: devices", devices, 1, len(jax.devices()))
    if not callable(observe):
        raise TypeError(f"ensemble: observe must be a function observe(system, solution) -> arrays, got {shown(observe)}")
    if points is not None and not hasattr(points, "points"):
        raise TypeError(f"ensemble: points must be Sobol(d), Halton(d) or LatinHypercube(d), got {shown(points)}")
    takes("ensemble: observe", observe, "system, solution")
    takes("ensemble: sample", sample, ", ".join(["key"] + ["point"] * (points is not None) + ["theta"] * (theta is not None)))
    if reduce is None:
        reduce = {"moments": Moments()}
    elif isinstance(reduce, Reduction):
        reduce = {type(reduce).__name__.lower(): reduce}
    elif not isinstance(reduce, dict) or not all(isinstance(x, Reduction) for x in reduce.values()):
        raise TypeError(f"ensemble: reduce must be a reduction such as Moments(), or a dict of them, got {shown(reduce)}")
    known = set(inspect.signature(check).parameters) | {"n_steps", "save_every", "solver", "sensitivity", "checkpoint", "until", "save_at"}
    known -= {"system", "scheme", "q0", "u0", "options"}
    for name in options:
        if name not in known:
            raise TypeError(f"ensemble: unknown argument {name!r}; what is passed on to simulate is {', '.join(sorted(known))}")
    try:
        typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
        kind = str(jax.random.key_impl(key)) if typed else str(jax.config.jax_default_prng_impl)
        data = np.asarray(jax.random.key_data(key) if typed else key)
        jax.random.wrap_key_data(data, impl=kind)
    except (TypeError, ValueError, AttributeError):
        raise TypeError(f"ensemble: key must be a key such as jax.random.key(0), got {shown(key)}") from None
    if data.ndim != 1:
        raise ValueError(f"ensemble: key must be one key, got an array of shape {data.shape[:-1]}")
    return Job(scheme, sample, observe, dict(reduce), options, n, data, kind, points, theta, lockstep, devices)


def _check_first(system, job):
    """Draw the first members, and check them as `simulate` does, before anything is traced. One that passes is enough: the others may
    have drawn what the run will count as failed.
    """
    refused = None
    for i in range(min(job.n, FIRST)):
        point = None if job.points is None else job.points_of(i, 1)[0]
        with calling("ensemble: sample"):
            drawn = job.draw(np.uint32(i), job.key, point)
            drawn = drawn if job.theta is None else drawn(job.theta)
        if not isinstance(drawn, tuple) or len(drawn) != 3 or not isinstance(drawn[0], System):
            raise TypeError(f"ensemble: sample must return (system, q0, u0), got {shown(drawn)}")
        if type(drawn[0]) is not type(system):
            raise TypeError(f"ensemble: system is a {type(system).__name__}, and sample returns a {type(drawn[0]).__name__}")
        try:
            check(drawn[0], job.scheme, *drawn[1:], **job.options)
            break
        except ValueError as error:
            refused = refused or error
    else:
        raise refused
    if job.block is None and "rbg" in job.key_kind:
        raise ValueError(f"ensemble: a key of kind {job.key_kind} draws other numbers in lockstep than alone: use jax.random.key(seed)")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # said once, by the check
        seen = job.shapes[1]
    leaves = jax.tree.leaves(seen)
    if not leaves:
        raise ValueError("ensemble: observe returns no array")
    for x in leaves:
        if not (x.dtype == bool or jnp.issubdtype(x.dtype, jnp.integer) or jnp.issubdtype(x.dtype, jnp.floating)):
            raise TypeError(f"ensemble: observe must return booleans and real numbers, got {x.dtype}: observe real and imaginary part")
    zeros = jax.tree.map(lambda x: np.zeros((2, *x.shape), x.dtype), seen)
    for reduction in job.reductions.values():
        # What it takes is refused now; that zeros have no logarithm, or no inverse, says nothing.
        with contextlib.suppress(ArithmeticError, np.linalg.LinAlgError), warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            reduction.chunk(zeros, np.arange(2))


def _default_chunk(job):
    """A power of two: about `STEPS` steps, and 16 chunks at least of many members. It does not depend on the machine."""
    size = max(16, min(STEPS // job.steps, -(-job.n // 16), 2**16))
    return 2 ** (size.bit_length() - 1)


# ------------------------------------------------------------------------------------------------------------------------ driver
def _drive(system, job, chunk, path, resume, workers, executor, show):
    flag("ensemble: progress", show)
    chunk = _default_chunk(job) if chunk is None else whole("ensemble: chunk", chunk, 1)
    block = job.block or job.devices
    chunk = -(-chunk // block) * block
    opened = None
    if resume and path is None:
        raise ValueError('ensemble: resume=True needs store="name.zarr"')
    if path is not None:
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"ensemble: store must be the path of a directory, got {path!r}")
        opened = _open(system, job, chunk, path, resume)
        job = dataclasses.replace(job, store=str(opened.path))
        chunk = opened.chunk
    engine = executors.Engine(executor, workers)
    driver = _Driver(job, chunk, opened, engine, show)
    return driver.run()


def _open(system, job, chunk, path, resume):
    exists = store.Path(path).exists()
    if resume and not exists:
        raise store.StoreError(f"{path}: there is no store to go on with; leave out resume, or look for its name")
    if resume is False and exists:
        raise store.StoreError(f"{path} exists; resume=True goes on with it")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made_with = store.manifest(job, chunk, system)
    return store.open_or_create(path, made_with, job.shapes)


class _Driver:
    """State of a run: which chunks are to do, with the workers, back; and what is known of all before the first that is missing."""

    def __init__(self, job, chunk, opened, engine, show):
        self.job, self.chunk, self.store, self.engine, self.show = job, chunk, opened, engine, show
        self.count = -(-job.n // chunk)
        self.merged, self.total = 0, None  # chunks that are merged, and their part
        self.back = {}  # parts of later chunks
        self.again = collections.deque()  # chunks whose worker died
        self.next = 0
        self.out = {}  # future -> chunk
        self.computed = 0
        self.deaths = 0
        self.start = time.perf_counter()

    def run(self):
        """Compute what is missing, and return the `Result`."""
        options = {"total": self.job.n, "unit": " members", "unit_scale": True}
        if self.show:
            progress.compiling("a member", self.job.scheme, self.job.steps)
        bar = progress.bar(**options) if self.show else progress.NoBar()
        finished = False
        try:
            # A signal is looked at between chunks, never in the middle of one that is being counted.
            with interrupts.noted() as self.signal, bar as self.bar:
                self.parcel = self.engine.parcel(self.job)
                while self.merged < self.count and self.signal.status is None:
                    self.send()
                    self.collect(0.1)
                if self.signal.status is not None:
                    self.wait_for_those_on_their_way()
            finished = self.merged == self.count
        except (store.StoreError, executors.WorkerLostError) as error:
            self.wait_for_those_on_their_way()
            error.result = self.result()
            raise
        finally:
            if not finished:
                for future in self.out:
                    future.cancel()
            self.engine.close(wait=finished)
        if not finished:
            raise self.interrupted()
        return self.result()

    # ---------------------------------------------------------------------------------------------------------- out and back
    def send(self):
        """Give the workers as much as they take."""
        while len(self.out) < self.engine.ahead and self.signal.status is None:
            if self.again:
                k = self.again.popleft()
            elif self.next < min(self.count, self.merged + WINDOW * self.engine.ahead):
                k, self.next = self.next, self.next + 1
                if self.found(k):
                    continue
            else:
                return
            first = k * self.chunk
            members = min(self.chunk, self.job.n - first)
            points = self.job.points_of(first, members)
            try:
                self.out[self.engine.submit(self.parcel, k, first, members, self.chunk, points)] = k
            except concurrent.futures.BrokenExecutor as error:
                self.again.appendleft(k)
                self.died(error)

    def found(self, k):
        """Take chunk k from the store, if it is there."""
        stored = self.store and self.store.read(k, self.job.shapes)
        if not stored:
            return False
        self.take(k, self.job.reduce(k * self.chunk, *stored))
        return True

    def collect(self, timeout):
        """Take what is back, waiting for it for a while."""
        if not self.out:
            return
        done, _ = concurrent.futures.wait(self.out, timeout, concurrent.futures.FIRST_COMPLETED)
        broken = None
        for future in done:
            k = self.out.pop(future)
            error = concurrent.futures.CancelledError() if future.cancelled() else future.exception()
            if error is None:
                part = future.result()
                self.deaths = 0
                self.computed += part.n
                self.take(k, part)
            elif executors.lost(error):
                broken = error
                self.again.append(k)
            else:
                raise error
        if broken:
            self.died(broken)

    def died(self, error):
        """A worker died: all that is out goes out again, to new workers."""
        self.deaths += 1
        if self.deaths > PATIENCE:
            raise executors.WorkerLostError(
                f"ensemble: workers died {self.deaths} times in a row ({error}): is there too little memory for chunks of "
                f'{self.chunk} members, or, in a script, no `if __name__ == "__main__":` around the call?'
            ) from error
        if self.engine.replace():
            self.again.extend(self.out.values())
            self.out.clear()
        self.again = collections.deque(sorted(self.again))

    def take(self, k, part):
        """A part is back: merge it, and those that waited for it."""
        self.back[k] = part
        self.bar.update(part.n)
        while self.merged in self.back:
            self.total = merge(self.job.reductions, self.total, self.back.pop(self.merged))
            self.merged += 1
            self.bar.set_postfix(failed=self.total.n - self.total.counts.get(int(Outcome.SUCCESS), 0), refresh=False)

    # ---------------------------------------------------------------------------------------------------------------- the end
    def wait_for_those_on_their_way(self):
        """Nothing more goes out; what is being computed comes back, if it does so soon. Another signal ends the process."""
        for future in list(self.out):
            # What has not begun would begin while the others are waited for.
            if future.cancel():
                del self.out[future]
        end = time.monotonic() + GRACE
        while self.out and time.monotonic() < end:
            with contextlib.suppress(Exception):  # what the others bring is not lost with it
                self.collect(0.2)

    def interrupted(self):
        """The exception that says so."""
        result = self.result()
        where = f"; the same call goes on from {self.store.path}" if self.store else ""
        return Interrupted(self.signal.status, f"after {result.done} of {self.job.n} members{where}", result)

    def result(self):
        """`Result` of all that is back."""
        total = self.total
        for k in sorted(self.back):
            total = merge(self.job.reductions, total, self.back[k])
        total = total or Part(0, {}, (np.zeros(0, int), np.zeros(0, int)), {}, {})
        statistics = {name: of.finish(total.states[name]) for name, of in self.job.reductions.items() if name in total.states}
        statistics |= {name: None for name in self.job.reductions if name not in statistics}
        counts = {Outcome(code): count for code, count in total.counts.items()}
        seconds = time.perf_counter() - self.start
        path = None if self.store is None else self.store.path
        return Result(
            self.job.n, total.n, counts, Failures(*total.failures), statistics, total.infinite, self.computed, seconds, path, self.job
        )
