"""What a run returns: `Solution`."""

import dataclasses
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..mechanics.results import EXPLANATION, Event, Outcome
from ..programs import runs
from ..programs.given import shown
from ..programs.jitted import jit
from . import checks, files, tables
from .events import Happening, happenings


class Labels(NamedTuple):
    """Names of a system, and those it gives to its coordinates, velocities and contacts: tuples of strings, or None."""

    system: str
    coordinates: tuple[str, ...] | None
    velocities: tuple[str, ...] | None
    contacts: tuple[str, ...] | None

    @classmethod
    def of(cls, system):
        names = (getattr(system, name) for name in ("coordinate_names", "velocity_names", "contact_names"))
        return cls(type(system).__name__, *(None if of is None else tuple(of) for of in names))


class Grid(NamedTuple):
    """The nodes of a run that the stored times do not tell.

    dt, n_steps, end: step in s, number of steps, time at which the run ended in s
    ended:            (N + 1,) how many steps have ended by each stored time; None where every so many steps are stored
    """

    dt: Any
    n_steps: Any
    end: Any
    ended: Any = None


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False, repr=False)
class Solution:
    """A simulated motion, N steps stored at every ``save_every``-th node (N below counts the stored intervals).

    For the Moreau-type schemes ``u[k]`` is the velocity with which the node ``t[k]`` is left, and ``P_N[k]`` acts at the node ``t[k + 1]``,
    where it turns ``u[k]`` into ``u[k + 1]``. With `SymmetricMoreau` and `VariationalMoreau` it is the velocity half a step later, at
    mid-interval: `node_velocities` gives those of the nodes. With ``save_every > 1`` percussions are summed
    over each stored interval, ``iterations`` summed, ``residual`` and ``outcome`` are the worst in it, ``events`` are all in it.

    ==============  ============  =================================================================================
    ``t``           (N + 1,)      times, s
    ``q, u``        (N + 1, n_q), (N + 1, n_u)  coordinates and velocities
    ``P_N``         (N, n_N)      normal percussions, N s
    ``P_F``         (N, n_N, d)   tangential percussions, N s; those of rolling and drilling friction are moments, N m s
    ``P_g``         (N, n_g)      percussions of position-level constraints
    ``P_gamma``     (N, n_gamma)  percussions of velocity-level constraints
    ``P_D``         (N, n_D)      percussions of dry friction, N s or N m s; None without
    ``initial``     `Percussions` at the first node: schemes that solve a first step (C18 (60), (62)) act there too, with one half of them
    ``iterations``  (N,)          Newton iterations
    ``residual``    (N,)          largest entry of the natural map of the contact law, N s
    ``outcome``     (N,)          `jaxnsd.Outcome` codes; ``initial_outcome`` for the first node
    ``contact``     (N,)          contact with the largest residual in a step that did not converge, else -1
    ``events``      (N,)          `jaxnsd.Event` bits: impacts, and what derivatives do not see: grazing, simultaneous impacts, Zeno; those
                                  of a first node where the scheme acts are in the first interval
    ``auxiliary``   dict          what else the scheme carries from node to node, by name, each (N + 1, ...); see the scheme
    ``stop``        ()            number of the step after which ``until`` held, 0 where it never did; None without ``until``
    ``final``       state of the scheme at the last node, from which ``simulate(..., start=solution)`` goes on
    ``save_every``  int           steps in a stored interval; None with ``save_at``
    ``scheme``      the scheme that made it
    ``labels``      names of the system, and of its coordinates, velocities and contacts where it has some
    ``grid``        `Grid` of the run where the stored times do not tell of its nodes; else None
    ==============  ============  =================================================================================

    A motion that its ``until`` has stopped ends at the node `end`: t, q and u of the nodes after it are those of its end, percussions,
    iterations and events of the intervals after it zero. `stopped` tells whether it has, `steps` how many it took, `trimmed` leaves out
    what comes after the end. That a motion was stopped is no failure.

    With ``save_at`` the times are those that were asked for, q and u the motion there, as `at_times` gives it. Percussions, iterations,
    outcomes and events of an interval between two of them are those of the steps that end in it. What fails before the first time is in
    ``initial_outcome``, what fails after the last one in the last outcome, or there, too, if there is one time only.

    A batch (`vmap`) adds leading axes to all of them; ``solution[i]`` is one of its members, ``solution[2:5]`` a smaller batch,
    ``len(solution)`` how many there are along its first axis. The worst
    code of a run is its last: one that diverges ends as NON_FINITE; `raise_if_failed` names the first step that failed, with its own code.
    Where a parameter is outside of its range all codes of the run, the first node's too, are INVALID_PARAMETER; where a restitution is that
    depends on the speed, those of its steps, and their residual is not a number. Two solutions are equal if they are the same object;
    compare their arrays.
    """

    t: Any
    q: Any
    u: Any
    P_N: Any
    P_F: Any
    P_g: Any
    P_gamma: Any
    iterations: Any
    residual: Any
    outcome: Any
    contact: Any
    initial: Any
    initial_outcome: Any
    events: Any
    auxiliary: Any
    final: Any = None
    P_D: Any = None
    save_every: int | None = field(default=1, metadata={"static": True})
    scheme: Any = field(default=None, metadata={"static": True})
    labels: Labels = field(default=Labels("", None, None, None), metadata={"static": True})
    stop: Any = None
    grid: Grid | None = None

    def __repr__(self) -> str:
        """One line: shapes, span of time, outcomes."""
        names = ("q", "u", "P_N", "P_F", "P_g", "P_gamma", "P_D")
        text = [f"{name} {np.shape(value)}" for name in names if (value := getattr(self, name)) is not None]
        text = [part for part in text if " 0" not in part.replace("(0", " 0")]
        if not checks.known(*jax.tree.leaves((self.t, self.outcome, self.initial_outcome, self.stop))):
            return f"Solution({', '.join(text)}, traced)"
        t = np.asarray(self.t)
        if t.size:
            text.append(f"t = {t.flat[0]:.6g} to {t.flat[-1]:.6g} s")
        if self.save_every is None:
            text.append(f"{np.asarray(self.grid.n_steps).flat[0]} steps")
        elif self.save_every != 1:
            text.append(f"save_every = {self.save_every}")
        if np.any(stopped := np.asarray(self.stopped)):
            text.append(f"{stopped.sum()} of {stopped.size} stopped" if stopped.ndim else f"stopped after {int(self.stop)} steps")
        codes, counts = np.unique(np.asarray(self.outcome), return_counts=True)
        known = {int(code): code.name for code in Outcome}
        text += [f"{count} {known.get(int(code), code)}" for code, count in zip(codes, counts, strict=True)]
        return f"Solution({', '.join(text)})"

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Leading axes: () of one motion."""
        return np.shape(self.t)[:-1]

    def __getitem__(self, index: Any) -> "Solution":
        """Members of a batch, by what arrays are indexed with along its axes: a number, a slice, an array of numbers or of booleans.

        Raises TypeError for one motion, IndexError for what is not in the batch.
        """
        if not self.batch_shape:
            raise TypeError("a Solution of one motion has no members to index: its arrays have nodes, as solution.q[i]")
        if not checks.known(*jax.tree.leaves(index)):
            return jax.tree.map(lambda x: x[index], self)
        # Of the axes of the batch alone, and by NumPy, which says what is out of range, where JAX would take the last.
        try:
            members = np.arange(math.prod(self.batch_shape)).reshape(self.batch_shape)[index]
        except (IndexError, TypeError):
            text = f"a batch of shape {self.batch_shape} has no members {shown(index)}; give numbers, slices, or arrays of them"
            raise IndexError(f"Solution: {text}") from None
        return runs.at_once(_of_members, self, members, len(self.batch_shape))

    def __iter__(self):
        """The members along the first axis of a batch."""
        return (self[i] for i in range(len(self)))

    def __len__(self) -> int:
        """Number of members along the first axis of a batch. Raises TypeError for one motion."""
        if not self.batch_shape:
            raise TypeError("a Solution of one motion has no members; its arrays have nodes, as len(solution.t)")
        return self.batch_shape[0]

    def __bool__(self) -> bool:
        """True, of a batch without members, too: a solution is there. Whether it is one says `success`."""
        return True

    @property
    def success(self) -> jax.Array:
        """Whether every step succeeded: a boolean, with the batch's shape."""
        return runs.at_once(_success, self.outcome, self.initial_outcome)

    @property
    def stopped(self) -> jax.Array:
        """Whether ``until`` has stopped the motion: a boolean, with the batch's shape."""
        return jnp.zeros(self.batch_shape, bool) if self.stop is None else self.stop > 0

    @property
    def steps(self) -> jax.Array:
        """Number of steps until the motion ends: an integer, with the batch's shape."""
        most = (jnp.shape(self.t)[-1] - 1) * self.save_every if self.grid is None else self.grid.n_steps
        return jnp.full(self.batch_shape, most) if self.stop is None else jnp.where(self.stop > 0, self.stop, most)

    @property
    def end(self) -> jax.Array:
        """Number of the stored node at which the motion ends, N if nothing has stopped it: an integer, with the batch's shape."""
        if self.save_every is None:
            return jnp.sum(self.t < self.t[..., -1:], axis=-1)
        return -(-self.steps // self.save_every)

    @property
    def dt(self) -> jax.Array:
        """Step in s, with the batch's shape: from all of the times, whose round-off may be much of one step."""
        return (self.t[..., -1] - self.t[..., 0]) / self.steps if self.grid is None else self.grid.dt

    @property
    def _last(self):
        """Time of the last node of the run, in s."""
        return self.t[..., -1] if self.grid is None else self.grid.end

    def trimmed(self) -> "Solution":
        """The motion up to its `end`: what ``until`` has stopped without the nodes after it.

        Raises TypeError for a batch, whose members end at nodes of their own, and inside of `jit` and `vmap`.
        """
        if self.batch_shape:
            raise TypeError(
                "Solution.trimmed() takes one motion: members of a batch end at different nodes; trim one, solution[i].trimmed()"
            )
        if self.stop is None:
            return self
        end = int(self._on_the_host("trimmed").end)
        nodes = {name: jax.tree.map(lambda x: x[: end + 1], getattr(self, name)) for name in ("t", "q", "u", "auxiliary")}
        steps = {name: jax.tree.map(lambda x: x[:end], getattr(self, name)) for name in tables.ARRAYS if name not in nodes}
        grid = self.grid if self.grid is None or self.grid.ended is None else self.grid._replace(ended=self.grid.ended[: end + 1])
        return dataclasses.replace(self, **nodes, **steps, grid=grid)

    def count(self, event: Event) -> jax.Array:
        """Number of stored intervals with an `Event`: an integer, with the batch's shape. ``sol.count(jaxnsd.Event.GRAZING)``."""
        try:
            bits = int(Event(event))
        except ValueError:
            raise ValueError(f"Solution.count: event must be an Event such as jaxnsd.Event.IMPACT, got {shown(event)}") from None
        return jnp.sum((self.events & bits) != 0, axis=-1)

    def _on_the_host(self, method):
        """The solution with values, which `grad` alone does not hide; TypeError where there are none yet."""
        values = lax.stop_gradient(self)
        if not checks.known(*jax.tree.leaves(values)):
            raise TypeError(
                f"Solution.{method}() needs values, and inside of jit and vmap there are none yet: call it on what the transformed "
                "function returns, or read solution.success inside"
            )
        return values

    def raise_if_failed(self) -> "Solution":
        """Raise `SimulationError` if a step failed, naming step, time, contact and what to try; otherwise return the solution.

        Works on the host, on one solution or on a batch (the first failed member is named and the failed are counted). Raises
        TypeError inside of `jit` and `vmap`.
        """
        values = self._on_the_host("raise_if_failed")
        outcome = np.asarray(values.outcome)
        batch = outcome.reshape(math.prod(self.batch_shape), outcome.shape[-1])
        initial = np.asarray(values.initial_outcome).reshape(-1)
        failed = np.flatnonzero((batch != 0).any(axis=1) | (initial != 0))
        if failed.size == 0:
            return self
        member = int(failed[0])
        first = initial[member] != 0
        step = 0 if first else int(np.argmax(batch[member] != 0))
        code = Outcome(int(initial[member] if first else batch[member, step]))
        what, advice = EXPLANATION[code]
        t = np.asarray(values.t).reshape(-1, outcome.shape[-1] + 1)[member]
        contact = -1 if first else int(np.asarray(values.contact).reshape(batch.shape)[member, step])
        if self.save_every is not None:
            where = "at the first node" if first else f"in step {step + 1} of {batch.shape[1]}"
        else:
            where = "before the first of the times" if first and batch.shape[1] else f"up to time {step + 1} after the first"
            where = "in a step" if not batch.shape[1] else where
        text = f"{code.name} {where} (t = {t[step if first else step + 1]:.6g} s): {what}"
        residual = 0.0 if first else float(np.asarray(values.residual).reshape(batch.shape)[member, step])
        if contact >= 0 and np.isfinite(residual):
            text += f"; the worst is contact {contact}, with a residual of {residual:.3g} N s"
        if len(batch) > 1:
            index = np.unravel_index(member, outcome.shape[:-1])
            text += f"; {failed.size} of {len(batch)} members of the batch failed, the first is {tuple(int(i) for i in index)}"
        raise SimulationError(f"{text}. What to try: {advice}.")

    def each_event(self) -> list[Happening]:
        """What has happened at the contacts, in the order of time: a `Happening` for each step with an `Event`.

        ``for event in solution.each_event(): print(event)``; so a function of one's own is called at events, after the run. Of a step in
        which `LocatedImpacts` has located impacts there is one for each of them, at its time. Raises TypeError for a batch, and inside of
        `jit` and `vmap`.
        """
        if self.batch_shape:
            raise TypeError("Solution.each_event() takes one motion: for sol in solution: sol.each_event()")
        return happenings(self._on_the_host("each_event"))

    def to_xarray(self) -> Any:
        """The stored arrays as an `xarray.Dataset` (needs xarray), of one motion or of a batch.

        Axes: node, step, coordinate, velocity, contact_index, direction, constraint, velocity_constraint; of a batch member, or member_0,
        member_1, ... before them. Coordinates, velocities and contacts that have names are labelled by them:
        ``data.q.sel(coordinate="angle in rad")``. ``t`` (s) has no axis of members where all have the same times. System, scheme and
        version are attributes, percussions have their unit, outcomes and events their meanings. With ``until`` there is ``stop``, too.
        """
        return tables.dataset(self._on_the_host("to_xarray"))

    def to_dataframe(self) -> Any:
        """A `pandas.DataFrame` (needs pandas) with a row for each node, of a batch for each node of each member.

        Columns: member (or member_0, ...), t in s, and each number by its array and name, or place: ``q[angle in rad]``, ``P_N[0]``,
        ``P_F[foot and floor, 1]``. Percussions, outcome, events and so on of an interval are in the row of the node at its end, those of
        the first node in its row; what comes after the `end` of a motion has none. Bits of events:
        ``frame["events"] & int(jaxnsd.Event.IMPACT)``. ``frame.to_parquet("fall.parquet")`` keeps all of it, where pyarrow is, with
        ``frame.attrs``: system, scheme, version.
        """
        return tables.frame(self._on_the_host("to_dataframe"))

    def save(self, path: str | Path) -> None:
        """Write all of it into one file (.npz), exact to the bit, with the names of system and scheme.

        `Solution.load` reads it, `numpy.load` its arrays. Of the system only names are kept, no parameters. Raises OSError where the file
        cannot be written.
        """
        files.save(self._on_the_host("save"), path)

    @classmethod
    def load(cls, path: str | Path) -> "Solution":
        """Read a file of `save`; ``simulate(..., start=solution)`` goes on from it, to the bit.

        Raises ValueError for what is no such file, and where it holds double precision, and that is switched off. Warns where a scheme of
        one's own, or the state of one of another version, cannot be read: they are None.
        """
        return files.load(cls, path)


@jit(static_argnums=2)
def _of_members(batch, members, axes):
    """The members with these numbers of a batch with so many axes."""
    return jax.tree.map(lambda x: jnp.reshape(x, (math.prod(np.shape(x)[:axes]), *np.shape(x)[axes:]))[members], batch)


@jit
def _success(outcome, initial_outcome):
    return jnp.all(outcome == 0, axis=-1) & (initial_outcome == 0)


class SimulationError(RuntimeError):
    """A step of a simulation failed; the message says which, why, and what to try."""
