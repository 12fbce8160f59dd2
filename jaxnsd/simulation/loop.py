"""The loop over the steps of a run, and the rows that it stores."""

import functools
import itertools
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from .. import native
from ..mechanics import laws
from ..mechanics.results import Outcome
from ..native.marks import once
from ..numerics import linalg
from ..programs import progress as progress_bar
from ..programs import runs
from ..programs.derivatives import is_float, moving
from ..schemes import sensitivity as sensitivities
from ..schemes.base import nothing_to_solve, on_position_level

#: A velocity larger than this multiple of what the initial state and its forces suggest counts as a blow-up. They suggest no less than one,
#: in the unit of velocities: forces in balance, or that act later, are round-off. What blows up passes a larger bound some steps later.
BLOW_UP = 1e10

#: Steps in a stored interval from which on their iterations may be more than 2^31 together.
MANY = 2**20


def parameters_outcome(system, times, q0, u0):
    """Outcome code of what holds for a whole run: restitution in [0, 1], friction not negative, no contact data that the law overrules,
    inertia along every velocity, other parameters of the system (`System._outside`) and dt in their ranges; all of it finite.
    """
    system, (t0, dt, _), q0, u0 = lax.stop_gradient((system, times, q0, u0))
    e_N, e_F, radii = system.contact_data(t0, q0)
    e = jnp.concatenate([e_N, e_F])
    mu = jnp.concatenate([jnp.ravel(jnp.asarray(value, q0.dtype)) for value in laws.coefficients(system).values()])
    turned = [jnp.ravel(jnp.asarray(leaf, q0.dtype)) for leaf in jax.tree.leaves(laws.of(system).friction)]
    outside = jnp.any((e < 0) | (e > 1)) | jnp.any(mu < 0) | jnp.any(radii < 0) | system._outside(t0, q0, u0)
    outside |= dt <= 0
    tau = laws.dry_friction(system, t0, q0, u0)
    tau = [] if tau is None else [tau]
    outside = functools.reduce(jnp.logical_or, [jnp.any(x < 0) for x in tau], outside)
    for _, value in laws.twice(system).values():
        outside |= jnp.any(jnp.asarray(value) != 0)
    finite = jnp.all(jnp.isfinite(jnp.concatenate([e, mu, *tau, *turned, jnp.stack([t0, dt])])))
    # A gap that a parameter makes no number counts as open, and nothing in the state tells of it.
    numbers = [jnp.ravel(leaf) for leaf in jax.tree.leaves(system) if is_float(leaf)]
    finite &= ~jnp.any(jnp.isnan(jnp.concatenate([*numbers, e])))
    code = jnp.where(outside, Outcome.INVALID_PARAMETER, jnp.where(finite, Outcome.SUCCESS, Outcome.NON_FINITE))
    return code.astype(jnp.int32)


def speed_limit(system, times, q0, u0):
    """The velocity from which on a run counts as one that blows up, see `BLOW_UP`."""
    t0, _, t1 = times
    accelerations = jnp.abs(system.h(t0, q0, u0)) / jnp.diagonal(system.M(t0, q0, u0))
    speeds = jnp.max(jnp.abs(u0)) + jnp.max(jnp.abs(q0)) / jnp.abs(t1 - t0) + jnp.max(accelerations) * jnp.abs(t1 - t0)
    return BLOW_UP * jnp.maximum(lax.stop_gradient(speeds), 1)


def step_outcome(system, t, state, info, limit, may_drift):
    """Outcome code of a step, or of the first node; the later a check stands here the more it says.

    limit:      of the velocities, see `speed_limit`
    may_drift:  whether constraints are held to their bound
    """
    speed = jnp.max(jnp.abs(state.u))
    finite = jnp.isfinite(speed) & jnp.all(jnp.isfinite(state.q))
    if 0 < state.P.P_N.shape[0] <= sensitivities.FEW and state.u.shape[0] <= sensitivities.SMALL:
        # A gap that is not a number would count as open. Of larger systems, bodies, it is not looked for: their gaps are our own.
        finite = finite & ~jnp.any(jnp.isnan(system.gap(t, state.q)))
    code = jnp.where(info.converged, Outcome.SUCCESS, Outcome.NOT_CONVERGED)
    if state.P.P_g.shape[0] and may_drift:
        drifts = jnp.any(jnp.abs(system.constraint(t, state.q)) > system.drift_bound(t, state.q))
        code = jnp.where(drifts, Outcome.DRIFTED, code)
    if laws.depends_on_speed(system):
        code = jnp.where(jnp.isnan(info.residual) & ~info.converged, Outcome.INVALID_PARAMETER, code)
    code = jnp.where(speed > limit, Outcome.DIVERGED, code)
    return jnp.where(finite, code, Outcome.NON_FINITE).astype(jnp.int32)


class Record(NamedTuple):
    """What is stored of an interval beside the state at its end."""

    P: Any
    iterations: Any
    residual: Any
    outcome: Any
    contact: Any
    events: Any


class Loop(NamedTuple):
    """A loop over the stored intervals of a run."""

    carry: Any  # state, record, `System.found` at the node and, where there is a condition, the number of the step after which it held,
    #            or 0, and (q, u) before it
    following: Any  # (carry, k) -> carry at the next stored node
    node: Any  # of a carry: what is stored of it, vectors of floats
    record: Any  # of a carry: what is stored of the interval before it, likewise
    final: Any  # the state of a carry, packed
    first: Any  # (percussions at the first node, events there, outcome there, outcome of what holds for a whole run)
    separate: bool  # whether each array is stored by itself

    def row(self, carry):
        """What is stored of a carry, as one vector."""
        return jnp.concatenate([*self.node(carry), *self.record(carry)])

    def body(self, carry, k):
        """Body of `scan`: what it stores is a row of `Rows`."""
        following = self.following(carry, k)
        if self.separate:
            return following, Rows(self.node(carry), self.record(following))
        # A row is that of the node a step starts from, which the carry holds: stored on arrival, XLA would compute the
        # whole step once for each entry of the row.
        return following, Rows([self.row(carry)], [])

    def end(self, carry):
        """What `Rows` need of the last node."""
        return self.node(carry) if self.separate else [self.row(carry)]


class Rows(NamedTuple):
    """A stored history of N intervals: native code stores each array by itself, for XLA one write of one vector a step is faster."""

    nodes: list  # (N + 1, size) of each array of a node; or all in one, (N + 1, width), with the record of the interval before
    records: list  # (N, size) of each array of a record; or nothing

    def unpacked(self, node, record):
        """The arrays of nodes, (N + 1, ...), and records, (N, ...), of these shapes."""
        if not self.records:
            node, record = unpack_rows(self.nodes[0], (node, record))
            return node, jax.tree.map(lambda x: x[1:], record)
        return _shaped(self.nodes, node), _shaped(self.records, record)


def _shaped(rows, shapes):
    """Arrays of these shapes, of which those with entries are stored."""
    rows, n = iter(rows), len(rows[0])
    return jax.tree.map(lambda s: (next(rows) if s.size else jnp.zeros((n, 0))).reshape(n, *s.shape).astype(s.dtype), shapes)


@dataclass(frozen=True)
class History:
    """The loop over the steps of a run, as functions of ``(system, (t0, dt, t1), q0, u0)`` and, after them, a state to go on from, or None,
    and the `Until` that stops it, or None.
    """

    scheme: Any
    n_steps: int
    save_every: int
    solver: Any
    sensitivity: str
    checkpoint: Any

    @property
    def integer(self):
        """Dtype that has the number of every step."""
        return jnp.int32 if self.n_steps < 2**31 else jnp.int64

    def initial(self, system, times, q0, u0, start=None, until=None):
        """State and info at the first node."""
        del until
        t0, dt, _ = times
        if start is not None:
            return start, nothing_to_solve(q0.dtype)
        prepared = self.scheme.prepare(system, dt)
        if self.sensitivity == "saltation":
            return sensitivities.init(self.scheme, self.solver)(prepared, t0, dt, q0, u0)
        return self.scheme.init(prepared, t0, dt, q0, u0, self.solver)

    def shapes(self, args):
        """Shapes of the state at a node and of the record of an interval."""
        return jax.eval_shape(lambda *args: (self.initial(*args)[0], self.record(*args)), *args)

    def node(self, state):
        """What is stored of a state: all but the percussions, which the record holds."""
        return state.q, state.u, {name: getattr(state, name) for name in self.scheme.auxiliary}

    def row_size(self, system, q0, u0):
        """Bytes that are stored of one interval."""
        state, record = self.shapes((system, (jax.ShapeDtypeStruct((), q0.dtype),) * 3, q0, u0))
        return sum(x.size for x in jax.tree.leaves((self.node(state), record))) * q0.dtype.itemsize

    def record(self, *args):
        """What is stored of one interval beside the state."""
        state, info = self.initial(*args)
        zero = jnp.zeros((), jnp.int32)
        iterations = info.iterations if self.save_every < MANY else jnp.asarray(info.iterations, jnp.result_type(int))
        return Record(state.P, iterations, info.residual, zero, info.contact, zero)

    def run(self, args, members=None, bar=None):
        """``(rows, last state, *first)``, see `Loop`; the rows are `Rows`. With a condition
        the number of the step after which it held comes last, and where it is a number (q, u) before that step. With a ``bar`` it is told
        of the way, for so many ``members``. That number is two, how many times `MANY` and the rest: floats of single precision have no
        whole numbers above 2^24.
        """
        loop = self.start(args)
        n_stored = self.n_steps // self.save_every
        recompute = max(1, self.checkpoint // self.save_every) if self.checkpoint else None
        report = bar and (lambda steps, first: bar.report(steps, first, members))
        last, rows = scan(loop.body, loop.carry, n_stored, recompute=recompute, report=report)
        if bar:
            bar.done(members)
        dtype = args[2].dtype
        stop = [pack(x, dtype) if isinstance(x, tuple) else jnp.stack(jnp.divmod(x, MANY)).astype(dtype) for x in last[3:]]
        nodes = [jnp.concatenate([x, end[None]]) for x, end in zip(rows.nodes, loop.end(last), strict=True)]
        return rows._replace(nodes=nodes), loop.final(last), *loop.first, *stop

    def start(self, args):
        """The `Loop` over the stored intervals."""
        system, times, q0, u0, *rest = args
        until = rest[1] if rest[1:] else None
        t0, dt, _ = times
        dtype = q0.dtype
        prepared = self.scheme.prepare(system.for_run(), dt)
        # Where the bound is the default one, infinity, nothing is looked at in a step.
        may_drift = system.defines("drift_bound") and not on_position_level(self.scheme)
        outcome = functools.partial(step_outcome, may_drift=may_drift)

        @once
        def at_first_node():
            state, info = self.initial(*args)
            limit = speed_limit(system, times, q0, u0)
            # One that goes on has acted at its first node before.
            goes_on = bool(args[4:]) and args[4] is not None
            events = 0 if goes_on else sensitivities.events_at_start(self.scheme, prepared, t0, dt, q0, u0, state)
            codes = jnp.asarray(events), outcome(system, t0, state, info, limit), parameters_outcome(system, times, q0, u0)
            return state, limit, codes

        state, limit, codes = at_first_node()
        shapes = jax.eval_shape(lambda: (state, self.record(*args)))
        nothing = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes[1])
        nothing = nothing._replace(contact=nothing.contact - 1)
        state, nothing = moving(state, args), nothing._replace(P=moving(nothing.P, args))

        if self.sensitivity == "saltation":
            advance = sensitivities.step(self.scheme, self.solver)
        else:

            def advance(*args):
                return self.scheme.step(*args, self.solver)

        every = self.save_every

        def searched(prepared, t, q):
            """What the end of a step has found of its contacts, for the next one."""
            system, t, q = lax.stop_gradient((self.scheme.system(prepared), t, q))
            return system.found(t, q)

        def step(carry, k):
            leaves, total, found = carry
            # The time of a node is computed, not accumulated: no drift, and the last one is t1 to round-off.
            t, before = t0 + k.astype(dtype) * dt, _thaw(leaves, shapes[0])
            # Not the step alone asks for its contacts: its events and its derivative do, too.
            kept = self.scheme.keeping_rows(prepared, t, dt, before.q, before.u, found)
            state, info = advance(kept, t, dt, before)
            events = sensitivities.events(self.scheme, kept, t, dt, before, state)
            code = outcome(self.scheme.system(kept), t + dt, state, info, limit)
            record = Record(state.P, info.iterations, info.residual, code, info.contact, events)
            if every > 1:
                record = _accumulate(_thaw(total, shapes[1]), record)
            return _freeze(state), _freeze(record), searched(kept, t + dt, state.q)

        def holds(k, leaves):
            state = _thaw(leaves, shapes[0])
            found = until(t0 + k.astype(dtype) * dt, state.q, state.u)
            return found <= 0 if until.exact else found

        def at_rest(running):
            return running[0], _freeze(nothing) if every == 1 else running[1], running[2]

        def place(leaves):
            state = _thaw(leaves, shapes[0])
            return _freeze((state.q, state.u))

        def emptied(carry):
            return carry[0], _freeze(nothing), *carry[2:]

        def node(carry):
            return _vectors(self.node(_thaw(carry[0], shapes[0])), dtype)

        def record(carry):
            return _vectors(_thaw(carry[1], shapes[1]), dtype)

        def final(carry):
            return pack(_thaw(carry[0], shapes[0]), dtype)

        # At first nothing is known, which zeros say.
        unknown = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(lambda: searched(prepared, t0, q0)))
        carry = (*_freeze((state, nothing)), unknown)
        if until is not None:
            carry = (*carry, jnp.zeros((), self.integer), *([place(carry[0])] if until.exact else []))
            step = _ending(step, holds, until.exact, at_rest, place)
        following = self.interval(step, emptied)
        first = state.P, *(code.astype(dtype) for code in codes)
        return Loop(carry, following, node, record, final, first, native.available() and runs.on_cpu())

    def interval(self, step, emptied):
        """``step(carry, k)`` made into one from stored node k to the next, which starts from ``emptied(carry)``, without a record."""
        every = self.save_every
        if every == 1:
            return step

        def interval(carry, k):
            body = lambda carry, j: (step(carry, k * every + j), None)  # noqa: E731
            return scan(body, emptied(carry), every, recompute=self.checkpoint)[0]

        return interval


def _ending(step, holds, exact, at_rest, place):
    """``step(carry, k)`` made into one that ends with the step after which a condition holds: none is made from there on.

    carry:    see `Loop`; that of ``step`` is without what is there for the condition
    holds:    ``(k, leaves)`` -> whether the condition holds in the state at node k
    exact:    whether the condition is a number: then it must have changed its sign in the step
    at_rest:  of the carry of ``step``: what it is after a step that is not made
    place:    of the leaves of a state: its (q, u)
    """

    def step_or_rest(carry, k):
        running, (stop, *before) = carry[:3], carry[3:]

        def go(running):
            after = step(running, k)
            stops = holds(k + 1, after[0])
            if exact:
                stops &= ~holds(k, running[0])
            return after, jnp.where(stops, k + 1, 0).astype(stop.dtype), *(place(running[0]) for _ in before)

        def rest(running):
            return at_rest(running), stop, *before

        # A step that is not made costs nothing.
        running, *stopped = lax.cond(stop > 0, rest, go, tuple(running))
        return *running, *stopped

    return step_or_rest


def _accumulate(total, new):
    return Record(
        jax.tree.map(jnp.add, total.P, new.P),
        total.iterations + new.iterations,
        jnp.maximum(total.residual, new.residual),
        jnp.maximum(total.outcome, new.outcome),
        jnp.maximum(total.contact, new.contact),
        total.events | new.events,
    )


def _freeze(tree):
    """State as loop carry: small arrays as tuples of scalars, so that a batch is a structure of arrays."""
    return jax.tree.map(lambda x: tuple(linalg.unpack(x).ravel()) if 0 < x.size <= linalg.CARRY else x, tree)


def _thaw(leaves, shapes):
    """Inverse of `_freeze`."""
    flat, tree = jax.tree.flatten(shapes)
    parts = tree.flatten_up_to(leaves)
    return jax.tree.unflatten(
        tree, [linalg.pack(linalg.vector(p)).reshape(s.shape) if isinstance(p, tuple) else p for p, s in zip(parts, flat, strict=True)]
    )


def _vectors(tree, dtype):
    """The arrays with entries, as vectors of floats: of whole numbers nothing could be differentiated. They are exact in them."""
    return [jnp.ravel(x).astype(dtype) for x in jax.tree.leaves(tree) if x.size]


def pack(tree, dtype):
    """All arrays as one vector."""
    return jnp.concatenate(_vectors(tree, dtype))


def unpack_rows(rows, shapes):
    """The arrays of a stored history (N, width)."""
    flat, tree = jax.tree.flatten(shapes)
    ends = list(itertools.accumulate(s.size for s in flat))
    pieces = [rows[:, end - s.size : end].reshape(len(rows), *s.shape).astype(s.dtype) for end, s in zip(ends, flat, strict=True)]
    return jax.tree.unflatten(tree, pieces)


def scan(body, carry, length, *, first=0, recompute=None, report=None):
    """`lax.scan` from ``first`` on: in groups of ``recompute`` whose insides reverse mode recomputes, with a report on the way."""
    run = lambda carry, first, n: lax.scan(body, carry, first + jnp.arange(n))  # noqa: E731
    if recompute:
        run = _in_groups(run, recompute, each=jax.checkpoint)
    if report:
        run = _in_groups(run, max(1, length // progress_bar.UPDATES), report=report)
    return run(carry, first, length)


def _in_groups(run, size, each=lambda group: group, report=None):
    """A loop ``run(carry, first, length)`` made into a loop over groups of ``size``; what does not fill a group is a last, smaller one."""

    def grouped(carry, first, length):
        if length <= size:
            out = each(lambda carry, first: run(carry, first, length))(carry, first)
            if report:
                report(length, first)
            return out

        def group(carry, start):
            carry, out = each(lambda carry, first: run(carry, first, size))(carry, start)
            if report:
                report(size, start)
            return carry, out

        n, rest = divmod(length, size)
        carry, out = lax.scan(group, carry, first + size * jnp.arange(n))
        out = jax.tree.map(lambda x: x.reshape(n * size, *x.shape[2:]), out)
        if rest:
            start = first + n * size
            carry, last = each(lambda carry, first: run(carry, first, rest))(carry, jnp.asarray(start))
            if report:
                report(rest, start)
            out = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), out, last)
        return carry, out

    return grouped
