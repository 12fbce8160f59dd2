"""The program of a chunk: draws its members, simulates, observes, reduces. It is what a worker is sent, once.

Member i is a function of ``fold_in(key, i)`` alone. On a CPU the whole of a member, its sample and its observation too, is one loop body
(`jaxnsd.lanes`): compiled as it is for one member, it has the same bits whatever the size of a chunk, the number of workers or of devices.
"""

import dataclasses
import functools
import hashlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from .. import lanes
from ..results import Outcome
from ..simulate import simulate
from .reductions import leaf_name

#: Failed members that are listed one by one.
LISTED = 1000


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

    def __getstate__(self):
        """The fields, without what was compiled."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    # -------------------------------------------------------------------------------------------------------------- a member
    def draw(self, index, key, point):
        """``(system, q0, u0)`` of a member; with a theta, a function of it."""
        own = jax.random.fold_in(jax.random.wrap_key_data(key, impl=self.key_kind), index)
        drawn = (own,) if point is None else (own, point)
        return functools.partial(self.sample, *drawn) if self.theta is not None else self.sample(*drawn)

    def member(self, index, key, point, theta):
        """``(outcome, observation)`` of a member."""

        def motion(drawn):
            system, q0, u0 = drawn
            sol = simulate(system, self.scheme, q0, u0, **self.options)
            outcome = jnp.maximum(jnp.max(sol.outcome, initial=0), sol.initial_outcome)
            return jax.tree.map(jnp.asarray, self.observe(system, sol)), outcome

        drawn = self.draw(index, key, point)
        if theta is None:
            seen, outcome = motion(drawn)
            return outcome, seen
        (value, outcome), gradient = jax.value_and_grad(lambda theta: motion(drawn(theta)), has_aux=True)(theta)
        return outcome, {"value": value, "gradient": gradient}

    def arguments(self, point=True):
        """Key, point and theta for `member`, for shapes or for the first member."""
        return self.key, self._points(0, 1)[0] if self.points is not None and point else None, self.theta

    @functools.cached_property
    def program(self):
        """Compiled function of the numbers (m,) of members, the key, their points (m, d) or None, and theta."""
        lockstep = jax.default_backend() != "cpu" if self.lockstep is None else self.lockstep

        def chunk(index, key, points, theta):
            def one(index, point):
                return lanes.run(lambda args: self.member(*args), (index, key, point, theta), lockstep=lockstep)

            if points is None:
                return jax.vmap(lambda i: one(i, None))(index)
            return jax.vmap(one)(index, points)

        if self.devices > 1:
            mesh = Mesh(np.asarray(jax.devices()[: self.devices]), ("members",))
            members, all_of_it = PartitionSpec("members"), PartitionSpec()
            specs = members, all_of_it, members, all_of_it
            return jax.jit(jax.shard_map(chunk, mesh=mesh, in_specs=specs, out_specs=members))
        return jax.jit(chunk)

    @functools.cached_property
    def shapes(self):
        """Shapes of the outcome and of the observation of a member."""
        return jax.eval_shape(self.member, jax.ShapeDtypeStruct((), jnp.uint32), *self.arguments())

    def fingerprint(self):
        """Digest of the program of one member with all its constants: two programs with the same compute the same."""
        lowered = jax.jit(self.member).lower(jnp.uint32(0), *self.arguments())
        return hashlib.sha256(lowered.as_text().encode()).hexdigest()[:16]

    # --------------------------------------------------------------------------------------------------------------- a chunk
    def _points(self, first, count):
        points = np.asarray(self.points.points(first, count, self.n))
        return points.astype(jnp.result_type(float))

    def points_of(self, first, count, chunk):
        """Points (chunk, d) of the members of a chunk, the last one repeated where it is not full; or None."""
        if self.points is None:
            return None
        points = self._points(first, count)
        return np.concatenate([points, np.repeat(points[-1:], chunk - count, axis=0)])

    def compute(self, first, count, chunk, points):
        """``(outcome, observation)`` of members, arrays (count, ...) on the host."""
        # A chunk that is not full is filled with its last member, so that all have one shape and one compilation.
        index = np.minimum(np.arange(first, first + chunk), first + count - 1).astype(np.uint32)
        outcome, seen = jax.device_get(self.program(index, self.key, points, self.theta))
        return outcome[:count], jax.tree.map(lambda x: x[:count], seen)

    def reduce(self, first, outcome, seen, check):
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
                for name, reduction in self.reductions.items():
                    if check:
                        reduction.check(seen, len(index))
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
