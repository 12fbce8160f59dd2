"""The program of a chunk: draws its members, simulates, observes, reduces. It is what a worker is sent, once.

Member i is a function of ``fold_in(key, i)`` alone. On a CPU the whole of a member, its sample and its observation too, is one loop body
(`programs.runs`), and the loop has one length, that of a block. A chunk is so many calls of this one program, on threads, so that the
compiler cannot make a member's bits depend on the size of a chunk, on the number of workers or on that of cores.
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import functools
import hashlib
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from .. import native
from ..mechanics.results import Outcome
from ..native.jax_internals import enable_x64
from ..programs import runs
from ..programs.given import calling, numbers, shown
from ..programs.keep import CALLBACK
from ..simulation.simulate import simulate
from .reductions import leaf_name
from .samples import Independent

#: Steps of a block on a CPU, some ten milliseconds, its smallest size, whose members native code runs at once, and its largest.
BLOCK_STEPS, SMALLEST_BLOCK, LARGEST_BLOCK = 2**17, 8, 256

#: Compiled programs that a process keeps.
KEPT = 4

#: Failed members that are listed one by one.
LISTED = 1000

#: Members that tell whether a reduction is associative.
ENOUGH = 3

_compiled, _lock = collections.OrderedDict(), threading.Lock()

#: Held by the chunk whose turn it is in a process that has the machine for itself.
_turn = threading.Lock()


@dataclasses.dataclass(frozen=True, eq=False)
class Job:
    """What is computed, without the members: ``options`` are those of `simulate`."""

    scheme: Any
    sample: Any
    observe: Any
    reductions: dict[str, Any]
    options: dict[str, Any]
    n: int
    key: np.ndarray  # data of the key
    key_kind: str
    points: Any = None
    theta: Any = None  # with respect to which the observation is differentiated, or None
    lockstep: bool | None = None
    devices: int = 1
    store: str | None = None
    x64: bool = dataclasses.field(default_factory=lambda: bool(jax.config.jax_enable_x64))

    def __getstate__(self):
        """The fields, without what was compiled."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    # -------------------------------------------------------------------------------------------------------------- a member
    def draw(self, index, key, point):
        """``(system, q0, u0)`` of a member; with a theta, a function of it."""
        own = jax.random.fold_in(jax.random.wrap_key_data(key, impl=self.key_kind), index)
        drawn = (own,) if point is None else (own, point)
        return functools.partial(self.sample, *drawn) if self.theta is not None else self.sample(*drawn)

    def drawn(self):
        """What an `Independent` has drawn for all members, by its names, (n,) each; nothing of a sample of one's own, without names."""
        if not isinstance(self.sample, Independent):
            return {}
        points = None if self.points is None else self.points_of(0, self.n)

        def one(index, key, point):
            return self.sample.values(jax.random.fold_in(jax.random.wrap_key_data(key, impl=self.key_kind), index), point)

        with self.context():
            every = jax.vmap(one, in_axes=(0, None, None if points is None else 0))
            return jax.device_get(jax.jit(every)(np.arange(self.n, dtype=np.uint32), self.key, points))

    def member(self, index, key, point, theta):
        """``(outcome, observation)`` of a member."""

        def motion(drawn):
            system, q0, u0 = drawn
            sol = simulate(system, self.scheme, q0, u0, **self.options)
            outcome = jnp.maximum(jnp.max(sol.outcome, initial=0), sol.initial_outcome)
            with calling("ensemble: observe"):
                seen = self.observe(system, sol)
            if wrong := [leaf for leaf in jax.tree.leaves(seen) if not hasattr(leaf, "dtype") and numbers(leaf) is None]:
                raise TypeError(f"ensemble: observe must return arrays of numbers, got {shown(wrong[0])}")
            return jax.tree.map(jnp.asarray, seen), outcome

        def scalar(drawn):
            value, outcome = motion(drawn)
            if not (isinstance(value, jax.Array) and value.shape == () and jnp.issubdtype(value.dtype, jnp.floating)):
                got = jax.tree.map(lambda x: f"{x.dtype} of shape {x.shape}", value)
                raise TypeError(f"ensemble.gradient: observe must return one float, got {got}")
            return value, outcome

        drawn = self.draw(index, key, point)
        if theta is None:
            seen, outcome = motion(drawn)
            return outcome, seen
        (value, outcome), gradient = jax.value_and_grad(lambda theta: scalar(drawn(theta)), has_aux=True)(theta)
        return outcome, {"value": value, "gradient": gradient}

    def arguments(self, index=0):
        """Key, point and theta of a member."""
        return self.key, None if self.points is None else self._points(index, 1)[0], self.theta

    def again(self, index, options=None):
        """``(system, q0, u0)`` of a member, or with options of `simulate` its `Solution`, by a program that is kept."""
        name = options and repr(sorted((name, x.tolist() if hasattr(x, "tolist") else x) for name, x in options.items()))
        if name not in self._again:

            def one(index, key, point, theta):
                drawn = self.draw(index, key, point)
                system, q0, u0 = drawn if theta is None else drawn(theta)
                return (system, q0, u0) if options is None else simulate(system, self.scheme, q0, u0, **options)

            self._again[name] = jax.jit(one)
        # What is an argument of the program of a chunk is one here as well: as constants they would be computed with in another way.
        with self.context():
            return self._again[name](np.uint32(index), *self.arguments(index))

    @functools.cached_property
    def _again(self):
        return {}

    @functools.cached_property
    def block(self):
        """Members of one call of the program: on a CPU a number that depends on nothing but the number of steps; None: a whole chunk."""
        lockstep = not runs.on_cpu() if self.lockstep is None else self.lockstep
        return None if lockstep else 2 ** (np.clip(BLOCK_STEPS // self.steps, SMALLEST_BLOCK, LARGEST_BLOCK).item().bit_length() - 1)

    @property
    def steps(self):
        """Steps of a member."""
        if self.options.get("n_steps"):
            return int(self.options["n_steps"])
        return max(1, round((float(self.options["t1"]) - float(self.options.get("t0") or 0.0)) / float(self.options["dt"])))

    @functools.cached_property
    def _members(self):
        """Program of the numbers (size,) of members, the key, their points (size, d) or None, and theta; traced once for all devices."""

        def members(index, key, points, theta):
            def one(index, point):
                lockstep = self.block is None
                return runs.run(lambda args: self.member(*args), (index, key, point, theta), lockstep=lockstep)

            return jax.vmap(one, (0, None if points is None else 0))(index, points)

        return jax.jit(members)

    def lowered(self, size, device=None):
        """Program of so many members, for a device or the default one; not compiled yet."""
        points = None if self.points is None else np.repeat(self._points(0, 1), size, axis=0)
        args = (np.zeros(size, np.uint32), self.key, points, self.theta)
        if device is not None:
            # Each device has a program of its own: one that is partitioned over several is optimized otherwise, and has other bits.
            of = functools.partial(jax.ShapeDtypeStruct, sharding=SingleDeviceSharding(device))
            args = jax.tree.map(lambda x: of(x.shape, x.dtype), args)
        return self._members.lower(*args)

    def compiled(self, size):
        """`lowered` for every device, compiled once; a later job with the same program gets it as well."""
        devices = jax.devices()[: self.devices] if self.devices > 1 else [None]

        def shared(lowered, device):
            text = lowered.as_text()
            name = hashlib.sha256(f"{text}{lowered.out_tree}{device}".encode()).digest()
            # A program that calls back into Python stays with its job.
            programs = {} if CALLBACK.search(text) else _compiled
            if name not in programs:
                programs[name] = lowered.compile()
            return programs[name]

        with _lock:
            if size not in self._programs:
                lowered = [self.lowered(size, device) for device in devices]
                self._programs[size] = list((self._threads.map if self.devices > 1 else map)(shared, lowered, devices))
                while len(_compiled) > KEPT * self.devices:
                    _compiled.popitem(last=False)
            return self._programs[size]

    @functools.cached_property
    def _programs(self):
        return {}

    @functools.cached_property
    def shapes(self):
        """Shapes of the outcome and of the observation of a member."""
        return jax.eval_shape(self.member, jax.ShapeDtypeStruct((), jnp.uint32), *self.arguments())

    def fingerprint(self):
        """Digest of the program of one member with all its constants: two programs with the same compute the same.

        Raises ValueError for a program that calls back into Python.
        """
        with native.left_to_xla():
            text = jax.jit(self.member).lower(jnp.uint32(0), *self.arguments()).as_text()
        if CALLBACK.search(text):
            raise ValueError(
                "ensemble: sample, observe or the system calls back into Python (jax.pure_callback, jax.debug.print, ...), and no store "
                "can tell whether another run calls the same function: leave out the callback, or the store"
            )
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    # --------------------------------------------------------------------------------------------------------------- a chunk
    def _points(self, first, count):
        points = np.asarray(self.points.points(first, count, self.n))
        dtype = jnp.result_type(float)
        # Rounded, one in the open cube may lie on its side, where quantiles are infinite.
        half = jnp.finfo(dtype).eps / 2
        return np.clip(points.astype(dtype), half, 1 - half)

    def points_of(self, first, count):
        """Points (count, d) of members, or None."""
        return None if self.points is None else self._points(first, count)

    def compute(self, first, count, chunk, points, alone):
        """``(outcome, observation)`` of members, arrays (count, ...) on the host. ``alone``: nobody else has the cores of this machine.

        Then all cores compute blocks, and chunks are computed one after the other: all blocks of one before those of the next, so that no
        core waits while the one before is reduced and stored. Otherwise a chunk is computed on its caller's thread.
        """
        size = self.block or -(-chunk // self.devices)
        with self.context():
            programs = self.compiled(size)

        def block(j):
            # What does not fill a block is filled with the last member, so that all have one shape and one compilation.
            rows = np.minimum(np.arange(j * size, (j + 1) * size), count - 1)
            of_points = None if points is None else points[rows]
            with self.context():
                program = programs[j % len(programs)]
                return jax.tree.map(np.asarray, program((first + rows).astype(np.uint32), self.key, of_points, self.theta))

        numbers = range(-(-count // size))
        with _turn if alone else contextlib.nullcontext():
            if self.devices > 1 or (alone and self.block):
                futures = [self._threads.submit(block, j) for j in numbers]
                blocks = (future.result() for future in futures)
            else:
                blocks = map(block, numbers)
            if self.block is None:
                blocks = list(blocks)  # one chunk at a time fills the memory of a GPU
        outcome, seen = jax.tree.map(lambda *x: np.concatenate(x)[:count], *blocks)
        return outcome, seen

    @functools.cached_property
    def _threads(self):
        return concurrent.futures.ThreadPoolExecutor(max(native.cores(), self.devices), "jaxnsd-block")

    @functools.cached_property
    def _checked(self):
        """First member of the chunk that reductions were checked on, in this process."""
        return []

    def context(self):
        """With the precision of the thread that made the job."""
        return enable_x64(self.x64)

    def reduce(self, first, outcome, seen):
        """`Part` of a chunk."""
        index = np.arange(first, first + len(outcome))
        good = outcome == Outcome.SUCCESS
        bad = np.flatnonzero(~good)
        counts = {int(code): int(np.sum(outcome == code)) for code in np.unique(outcome)}
        paths, _ = jax.tree_util.tree_flatten_with_path(seen)
        if bad.size:
            seen, index = jax.tree.map(lambda x: x[good], seen), index[good]
        infinite = {}
        for (path, _), x in zip(paths, jax.tree.leaves(seen), strict=True):
            if np.issubdtype(x.dtype, np.inexact) and not np.all(np.isfinite(x)):
                infinite[leaf_name(path)] = int(np.sum(~np.isfinite(x).reshape(len(x), -1).all(axis=1)))
        states = {}
        if index.size:
            with np.errstate(invalid="ignore"):
                if len(index) >= ENOUGH and not self._checked:
                    for reduction in self.reductions.values():
                        reduction.check(seen, len(index))
                    self._checked.append(first)
                for name, reduction in self.reductions.items():
                    states[name] = reduction.chunk(seen, index)
        return Part(len(outcome), counts, (first + bad[:LISTED], outcome[bad[:LISTED]]), infinite, states)


@dataclasses.dataclass(frozen=True)
class Part:
    """What is known of some members: how many they are, outcomes, the first that failed, and the states of the reductions."""

    n: int
    counts: dict[int, int]
    failures: tuple  # numbers, outcomes
    infinite: dict[str, int]
    states: dict[str, Any]


def merge(reductions, a, b):
    """`Part` of both, those of ``a`` first."""
    if a is None:
        return b
    total = lambda x, y: {name: x.get(name, 0) + y.get(name, 0) for name in sorted({*x, *y})}  # noqa: E731
    failures = tuple(np.concatenate(pair)[:LISTED] for pair in zip(a.failures, b.failures, strict=True))
    states = {**a.states, **b.states}
    with np.errstate(invalid="ignore"):
        for name in a.states.keys() & b.states.keys():
            states[name] = reductions[name].merge(a.states[name], b.states[name])
    return Part(a.n + b.n, total(a.counts, b.counts), failures, total(a.infinite, b.infinite), states)
