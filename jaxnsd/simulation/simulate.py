"""The driver: checks, the `lax.scan` over steps, and the `Solution` it returns."""

import dataclasses
import functools
import inspect
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from .. import native
from ..contact import AbstractContactSolver, SemismoothNewton
from ..mechanics import anisotropy, laws
from ..mechanics.results import EXPLANATION, Event, Outcome
from ..mechanics.system import System
from ..native.jax_internals import is_traced, varying
from ..native.marks import in_memory, once, written_out
from ..numerics import linalg, sparsity
from ..programs import progress as progress_bar
from ..programs import runs
from ..programs.derivatives import is_float, moving, undefined, undefined_unless
from ..programs.given import shown
from ..programs.pytrees import chosen, replaced
from ..schemes import sensitivity as sensitivities
from ..schemes.base import Scheme, nothing_to_solve, on_position_level
from . import checks, files, system_checks, tables
from . import until as conditions
from .events import Happening, happenings

#: A velocity larger than this multiple of what the initial state and its forces suggest counts as a blow-up. They suggest no less than one,
#: in the unit of velocities: forces in balance, or that act later, are round-off. What blows up passes a larger bound some steps later.
BLOW_UP = 1e10

#: Largest array of a state, in entries, with which a batch on a CPU runs member by member (see `runs`). In lockstep a batch of bars of
#: 100, 300 and 1000 elements is four times slower, and one of three boxes that fall onto each other, too.
LANES = 4096

#: Steps in a stored interval from which on their iterations may be more than 2^31 together.
MANY = 2**20


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


@functools.partial(jax.jit, static_argnums=2)
def _of_members(batch, members, axes):
    """The members with these numbers of a batch with so many axes."""
    return jax.tree.map(lambda x: jnp.reshape(x, (math.prod(np.shape(x)[:axes]), *np.shape(x)[axes:]))[members], batch)


@jax.jit
def _success(outcome, initial_outcome):
    return jnp.all(outcome == 0, axis=-1) & (initial_outcome == 0)


class SimulationError(RuntimeError):
    """A step of a simulation failed; the message says which, why, and what to try."""


def simulate(
    system: System,
    scheme: Scheme,
    q0: ArrayLike | None,
    u0: ArrayLike | None,
    t1: ArrayLike | None = None,
    dt: ArrayLike | None = None,
    t0: ArrayLike | None = None,
    *,
    n_steps: int | None = None,
    save_every: int = 1,
    solver: AbstractContactSolver | None = None,
    sensitivity: str = "saltation",
    checkpoint: int | None = None,
    progress: bool = False,
    start: Solution | None = None,
    derivatives_of_failed: bool = False,
    until: Callable[..., Any] | None = None,
    save_at: ArrayLike | None = None,
) -> Solution:
    """Simulate a system from ``(q0, u0)`` at ``t0`` to ``t1`` with a fixed step ``dt``.

    Parameters
    ----------
    system:       a `System`
    scheme:       ``Moreau()``, ``SymmetricMoreau()``, ``VariationalMoreau()``, ...
    q0, u0:       initial coordinates (n_q,) and velocities (n_u,), of one floating dtype, which is that of the run
    t1, dt, t0:   end, step and start in s; dt must divide t1 - t0. Without n_steps they must be numbers, not traced
    n_steps:      number of steps, with either t1 or dt: then t0 and the one that is given may be traced, differentiated and batched. A
                  run whose length is a parameter has a fixed number of steps: ``simulate(..., t1=period, n_steps=1000)``
    save_every:   store every so-many-th node; must divide the number of steps
    solver:       `SemismoothNewton` with its settings, or an `AbstractContactSolver` of one's own
    sensitivity:  "saltation" differentiates the exact motion, up to O(dt): the shift in time of every impact, and of every reversal of
                  slip, is accounted for (see `schemes.sensitivity`). "discrete" differentiates the discrete map; through an impact this
                  derivative does *not* tend to that of the exact motion as dt -> 0. The motion is the same to the bit where no
                  derivative is taken; compiled with its derivative it may differ from that in the last bits.
                  `Solution.events` tells where even the exact motion has no derivative, or a one-sided one.
                  Second derivatives, in any mix of the modes, are right with `LocatedImpacts` through isolated impacts, and for every
                  scheme without; they do not exist, and are not a number, through other impacts, and where a contact opens, or starts or
                  stops to slide
    checkpoint:   number of steps that reverse mode recomputes at a time, instead of storing what they computed; the square root of
                  the number of steps needs the least memory
    progress:     say what is compiled, and show a bar (with tqdm), or a line every tenth where there is no terminal

    start:        a `Solution` to go on from, of the same system and scheme, in place of q0 and u0, which are None then; t0 is its last time
                  unless given. N steps and N more are those of one run of 2 N, to round-off, for every scheme: the whole state is handed
                  on, with velocities at mid-interval, accelerations and percussions. Schemes whose velocities are at mid-interval need
                  the same dt
    derivatives_of_failed:  whether a run that did not succeed has the derivatives of what was computed. By default they are NaN, in
                  both modes and for every outcome but SUCCESS: what is no solution has no derivative, however plausible its numbers look
    until:        a function ``until(t, q, u)``, traced. Of one boolean: the motion ends at the first node after the start at which it
                  holds, or at t1; u as it is stored. The derivative there is that of a run with so many steps: no parameter moves the
                  node. Of one number: the motion ends inside of a step, where the number comes to zero from above. That time, and q and
                  u at it, have their derivatives; the percussions of this step are those of all of it. The steps that are left cost
                  nothing, but in lockstep. See `Solution.stopped`, `Solution.steps`, `Solution.trimmed`. What the function closes over
                  may be traced and batched; a function that is written anew in each call is not compiled anew
    save_at:      times (M,) in s, increasing, from t0 to t1, at which the motion is stored in place of nodes, as `at_times` gives it. They
                  may be traced, differentiated and batched. A time after the end of a motion that ``until`` has stopped is that of its
                  end. The nodes are there while it runs: what is stored is less, the memory of the run is not

    Returns a `Solution`. Works under `jit`, `vmap`, `grad`, in forward and reverse mode, and never raises inside of them: read
    ``solution.success``, or call ``solution.raise_if_failed()``. Members of a batch that failed are left out of a derivative by
    ``jnp.where(sol.success, loss, 0.0)``.

    Raises ValueError or TypeError, before tracing, for input that makes no sense: wrong shapes or dtypes, restitution outside [0, 1],
    negative friction, dt that does not divide the interval, an indefinite mass matrix, an initial state that penetrates a contact or
    violates a constraint, a scheme that does not take the system, a trajectory that does not fit into memory; of a batch that is seen
    when it is compiled. What is traced by a transformation has no value yet, and what needs values is then not checked: call `check`
    with numbers first. Parameters outside of their range come back as the outcome INVALID_PARAMETER, values that are not finite as
    NON_FINITE.
    """
    options = {"save_every": save_every, "solver": solver, "sensitivity": sensitivity, "checkpoint": checkpoint, "progress": progress}
    options |= {"n_steps": n_steps, "start": start, "derivatives_of_failed": derivatives_of_failed, "until": until, "save_at": save_at}
    return checked(system, scheme, q0, u0, t1, dt, t0, **options)()


def check(
    system: System,
    scheme: Scheme,
    q0: ArrayLike | None,
    u0: ArrayLike | None,
    t1: ArrayLike | None = None,
    dt: ArrayLike | None = None,
    t0: ArrayLike | None = None,
    **options: Any,
) -> None:
    """Check the arguments of `simulate` without a run, and raise what `simulate` would raise.

    For what is going to run under `jit`, `vmap` or `grad`: there the values are not known, and only shapes and dtypes are checked.
    ``jaxnsd.check(system, scheme, q0, u0, t1, dt)`` outside of them looks at the values as well.
    """
    if unknown := [name for name in options if name not in inspect.signature(checked).parameters]:
        raise TypeError(f"check: there is no option {unknown[0]!r}; options are those of simulate")
    checked(system, scheme, q0, u0, t1, dt, t0, **options)


def checked(
    system,
    scheme,
    q0,
    u0,
    t1=None,
    dt=None,
    t0=None,
    *,
    n_steps=None,
    save_every=1,
    solver=None,
    sensitivity="saltation",
    checkpoint=None,
    progress=False,
    start=None,
    derivatives_of_failed=False,
    until=None,
    save_at=None,
):
    """Function without arguments that makes the run which `simulate` would, its arguments checked once."""
    checks.process()
    solver = SemismoothNewton() if solver is None else solver
    save_every, checkpoint = checks.options(scheme, solver, save_every, sensitivity, checkpoint, progress, derivatives_of_failed)
    state = None if start is None else checks.start(q0, u0, start)
    if state is not None:
        q0, u0, t0 = state.q, state.u, start._last if t0 is None else t0
    t0 = 0.0 if t0 is None else t0
    t1, dt, n_steps = checks.steps(t0, t1, dt, n_steps, save_every)
    if save_at is not None:
        save_at = checks.save_at(save_at, t0, t1, save_every)
    if state is not None:
        checks.continues(system, scheme, solver, dt, start)
    q0, u0 = checks.state(system, q0, u0)
    system_checks.system(system, scheme, t0, t1, dt, q0, u0, own=state is not None)
    system_checks.solver_takes(system, solver)
    until = None if until is None else conditions.traced(until, q0, u0)
    if until is not None and until.exact and scheme.lead:
        raise ValueError(
            f"simulate: until must return one boolean with {scheme.name}(), whose velocities are at mid-interval: where a number comes to "
            "zero is found between velocities of nodes, as those of MoreauJean()"
        )
    options = scheme, n_steps, save_every, solver, sensitivity, checkpoint
    if checks.large(n_steps // save_every, q0, u0):
        checks.memory(_History(*options).row_size(system, q0, u0), n_steps, save_every)
    # Of the arrays that the schemes see: anisotropic friction turns directions.
    known = sparsity.of(anisotropy.isotropic(system))
    given = {"start": state, "known": known, "until": until, "save_at": save_at, "derivatives_of_failed": bool(derivatives_of_failed)}
    run = _run
    sizes = q0.size, u0.size, 3 * len(system.contacts if isinstance(getattr(system, "contacts", None), tuple) else ())
    if not progress and native.available() and runs.on_cpu() and max(sizes) <= LANES:
        arrays = jax.tree.leaves((system, q0, u0, t0, dt, t1, state, until, save_at))
        # Nothing is left for XLA, which would compile what makes a `Solution` of rows for longer than all of a ball's run takes.
        run = _run if any(map(is_traced, arrays)) else _run_alone
    settings = dict(zip(_STATIC, (*options, bool(progress)), strict=False))
    return functools.partial(run, system, q0, u0, t0, dt, t1, **settings, **given)


_STATIC = ("scheme", "n_steps", "save_every", "solver", "sensitivity", "checkpoint", "progress", "known", "derivatives_of_failed")


def _motion(
    system,
    q0,
    u0,
    t0,
    dt,
    t1,
    scheme,
    n_steps,
    save_every,
    solver,
    sensitivity,
    checkpoint,
    progress,
    start,
    known,
    derivatives_of_failed,
    until,
    save_at,
    alone=False,
):
    dtype = q0.dtype
    # Python's floats, float64 that yields to the others: what is differentiated would have another dtype than what it is made of.
    system = jax.tree.map(lambda x: jnp.asarray(x, dtype) if is_float(x) and jnp.result_type(x) != dtype else x, system)
    times = tuple(jnp.asarray(x, dtype) for x in (t0, dt, t1))
    history = _History(scheme, n_steps, save_every, solver, sensitivity, checkpoint)
    args = (anisotropy.isotropic(system), times, q0, u0, start, until)
    first, _ = shapes = history.shapes(args)
    lockstep = not runs.one_by_one() or max(q0.size, u0.size, *(P.size for P in jax.tree.leaves(first.P))) > LANES
    bar = progress_bar.Bar(n_steps // save_every) if progress else None
    if bar:
        progress_bar.compiling(f"a run of {type(system).__name__}", scheme, n_steps)
        # The last argument: for how many members of a batch one reports.
        run, begin, given = functools.partial(history.run, bar=bar), bar.begin, (args, jnp.ones((), jnp.int32))
    else:
        run, begin, given = history.run, None, (args,)
    options = {"lockstep": lockstep, "begin": begin, "fits": checks.batch_memory}

    def counting(given):
        (system, *others), *rest = given
        return run((sparsity.counted_on(system, known), *others), *rest)

    rows, final, *first = written_out(counting)(given) if alone else runs.run(counting, given, **options)
    sol = _solution(history, shapes, system, args, rows, first, final)
    if save_at is not None:
        from .nodes import at_the_times  # which reads solutions

        sol = at_the_times(system, sol, jnp.asarray(save_at, dtype))
    # What an iteration leaves is no function of the arguments.
    sol = dataclasses.replace(sol, residual=undefined(sol.residual, args))
    if derivatives_of_failed:
        return sol
    # Times are what was asked for, whatever became of the run: they keep their derivatives. A member of a batch does not change them, and
    # JAX takes no output of a custom rule whose tangent alone has the axis of the batch.
    leaves, tree = jax.tree.flatten(dataclasses.replace(sol, t=None))
    given = [x for x in jax.tree.leaves(args) if is_float(x)]
    # On the devices of a `shard_map` what varies over some of them only is left alone, too.
    devices = frozenset().union(*(varying(jax.typeof(x)) for x in given))
    floats = [is_float(x) and varying(jax.typeof(x)) >= devices for x in leaves]
    marked = tree.unflatten(replaced(leaves, floats, undefined_unless(sol.success, chosen(leaves, floats), given)))
    return dataclasses.replace(marked, t=sol.t)


_run = jax.jit(_motion, static_argnames=_STATIC)


@functools.partial(jax.jit, static_argnames=_STATIC)
def _run_alone(system, q0, u0, t0, dt, t1, *, start, until, save_at, **settings):
    """`_run`, with all that it returns, as one native function: of a run that is not a part of another program."""

    def whole(arrays):
        *given, start, until, save_at = arrays
        return _motion(*given, start=start, until=until, save_at=save_at, alone=True, **settings)

    return runs.run(in_memory(whole), (system, q0, u0, t0, dt, t1, start, until, save_at), fits=checks.batch_memory)


def _solution(history, shapes, system, args, rows, first, final=None):
    """The `Solution` of a run of ``system`` with these ``args``, from rows (N + 1, width), what is known of the first node, and the state
    at the last, packed, or None.
    """
    times = args[1]
    (q, u, auxiliary), record = _unpack_rows(rows, (history.node(shapes[0]), shapes[1]))
    P, iterations, residual, outcome, contact, events = jax.tree.map(lambda x: x[1:], record)
    every = history.save_every
    number = jnp.arange(len(rows)) * every
    initial, at_start, code, invalid, *stop = first
    stop, *before = (stop[0].astype(history.integer) @ jnp.array([MANY, 1], history.integer), *stop[1:]) if stop else (None,)
    if stop is not None:
        after = (stop > 0) & (number >= stop + every)
        held = history.scheme.after_the_end(auxiliary)
        auxiliary = {name: jnp.where(jnp.expand_dims(after, tuple(range(1, x.ndim))), held[name], x) for name, x in auxiliary.items()}
        number = jnp.where(stop > 0, jnp.minimum(number, stop), number)
    t = times[0] + number.astype(rows.dtype) * times[1]
    ending = None
    if before:
        ending = _end(system, args, auxiliary, number, stop, before[0], (q[-1], u[-1]), every)
        late = (stop > 0) & (number >= stop)
        t, q, u = (jnp.where(jnp.expand_dims(late, tuple(range(1, x.ndim))), end, x) for x, end in zip((t, q, u), ending, strict=True))
        if "impact_times" in auxiliary:
            # What comes after the end has not happened.
            gone = late[:, None] & ~(auxiliary["impact_times"] <= ending[0])
            auxiliary["impact_times"] = jnp.where(gone, jnp.nan, auxiliary["impact_times"])
            auxiliary["impact_contacts"] = jnp.where(gone, -1, auxiliary["impact_contacts"])
    labels = Labels.of(system)
    events = jnp.asarray(events).at[0].set(events[0] | at_start.astype(events.dtype))
    P, initial = (x._replace(P_F=anisotropy.scaled(system, x.P_F)) for x in (P, initial))
    if "R_F" in auxiliary:
        auxiliary["R_F"] = anisotropy.scaled(system, auxiliary["R_F"])
    outcome, code = (jnp.maximum(x.astype(jnp.int32), invalid.astype(jnp.int32)) for x in (outcome, code))
    if final is not None:
        final = jax.tree.map(lambda x: x[0], _unpack_rows(final[None], shapes[0]))
        final = final if ending is None else _moved(final, stop > 0, *ending[1:])
    *P, P_D = P
    return Solution(
        t,
        q,
        u,
        *P,
        iterations,
        residual,
        outcome,
        contact,
        initial,
        code,
        events,
        auxiliary,
        final,
        P_D,
        every,
        history.scheme,
        labels,
        stop,
        None if ending is None else Grid(times[1], (len(t) - 1) * every, t[-1]),
    )


def _end(system, args, auxiliary, number, stop, before, after, every):
    """``(t, q, u)`` where the number of a condition comes to zero, in the step with the number ``stop`` between two states (q, u); of a
    run that goes on to its end nothing that means something.
    """
    from .nodes import within  # which reads solutions

    (_, (t0, dt, _), _, _, _, until), dtype = args, before.dtype
    last = jnp.where(stop > 0, stop, number[-1]).astype(dtype)
    t, end = t0 + (last - 1) * dt, t0 + last * dt
    states = jnp.split(before, [after[0].size]), after
    impacts = auxiliary["impact_times"][-(-jnp.maximum(stop, 1) // every)] - t if "impact_times" in auxiliary else jnp.zeros(0, dtype)

    def motion(data, s):
        (left, right), impacts, dt = data
        q, u = within(s, dt, left, right, impacts)
        return system.normalized(q), u

    data = [(q, system.q_dot(t, q, u), u) for t, (q, u) in zip((t, end), states, strict=True)], impacts, dt
    s, jumps = until.root(motion, data, t, dt, impacts)
    q, u = motion(data, s)
    return t + s, q, jnp.where(jumps, after[1], u)


def _moved(state, where, q, u):
    """The state of a scheme at other coordinates and velocities, where that is asked for."""
    if hasattr(state, "inner"):
        return state._replace(inner=_moved(state.inner, where, q, u))
    return state._replace(q=jnp.where(where, q, state.q), u=jnp.where(where, u, state.u))


def _parameters(system, times, q0, u0):
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

    carry: Any  # state, record and, where there is a condition, the number of the step after which it held, or 0, and (q, u) before it
    following: Any  # (carry, k) -> carry at the next stored node
    row: Any  # of a carry
    final: Any  # the state of a carry, packed
    first: Any  # (percussions at the first node, events there, outcome there, outcome of what holds for a whole run)

    def body(self, carry, k):
        """Body of `_loop`."""
        # A row is that of the node a step starts from, which the carry holds: stored on arrival, XLA would compute the
        # whole step once for each entry of the row.
        return self.following(carry, k), self.row(carry)


@dataclass(frozen=True)
class _History:
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
        """``(rows, last state, *first)``, see `Loop`; a row holds a node's state and the record of the interval before. With a condition
        the number of the step after which it held comes last, and where it is a number (q, u) before that step. With a ``bar`` it is told
        of the way, for so many ``members``. That number is two, how many times `MANY` and the rest: floats of single precision have no
        whole numbers above 2^24.
        """
        loop = self.start(args)
        n_stored = self.n_steps // self.save_every
        recompute = max(1, self.checkpoint // self.save_every) if self.checkpoint else None
        report = bar and (lambda steps, first: bar.report(steps, first, members))
        last, rows = _loop(loop.body, loop.carry, n_stored, recompute=recompute, report=report)
        if bar:
            bar.done(members)
        stop = [_pack(x, rows.dtype) if isinstance(x, tuple) else jnp.stack(jnp.divmod(x, MANY)).astype(rows.dtype) for x in last[2:]]
        return jnp.concatenate([rows, loop.row(last)[None]]), loop.final(last), *loop.first, *stop

    def start(self, args):
        """The `Loop` over the stored intervals."""
        system, times, q0, u0, *rest = args
        until = rest[1] if rest[1:] else None
        t0, dt, t1 = times
        dtype = q0.dtype
        prepared = self.scheme.prepare(system.for_run(), dt)
        # Where the bound is the default one, infinity, nothing is looked at in a step.
        may_drift = system.defines("drift_bound") and not on_position_level(self.scheme)

        def outcome(system, t, state, info, limit):
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

        @once
        def at_first_node():
            state, info = self.initial(*args)
            accelerations = jnp.abs(system.h(t0, q0, u0)) / jnp.diagonal(system.M(t0, q0, u0))
            speeds = jnp.max(jnp.abs(u0)) + jnp.max(jnp.abs(q0)) / jnp.abs(t1 - t0) + jnp.max(accelerations) * jnp.abs(t1 - t0)
            limit = BLOW_UP * jnp.maximum(lax.stop_gradient(speeds), 1)
            # One that goes on has acted at its first node before.
            goes_on = bool(args[4:]) and args[4] is not None
            events = 0 if goes_on else sensitivities.events_at_start(self.scheme, prepared, t0, dt, q0, u0, state)
            codes = jnp.asarray(events), outcome(system, t0, state, info, limit), _parameters(system, times, q0, u0)
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

        def step(carry, k):
            leaves, total = carry
            # The time of a node is computed, not accumulated: no drift, and the last one is t1 to round-off.
            t, before = t0 + k.astype(dtype) * dt, _thaw(leaves, shapes[0])
            # Not the step alone asks for its contacts: its events and its derivative do, too.
            kept = self.scheme.keeping_rows(prepared, t, dt, before.q, before.u)
            state, info = advance(kept, t, dt, before)
            events = sensitivities.events(self.scheme, kept, t, dt, before, state)
            code = outcome(self.scheme.system(kept), t + dt, state, info, limit)
            record = Record(state.P, info.iterations, info.residual, code, info.contact, events)
            if every > 1:
                record = _accumulate(_thaw(total, shapes[1]), record)
            return _freeze(state), _freeze(record)

        def step_or_rest(carry, k):
            running, (stop, *before) = carry[:2], carry[2:]

            def holds(k, leaves):
                state = _thaw(leaves, shapes[0])
                found = until(t0 + k.astype(dtype) * dt, state.q, state.u)
                return found <= 0 if until.exact else found

            def go(running):
                after = step(running, k)
                stops = holds(k + 1, after[0])
                if until.exact:
                    stops &= ~holds(k, running[0])
                return after, jnp.where(stops, k + 1, 0).astype(stop.dtype), *(place(running[0]) for _ in before)

            def rest(running):
                return (running[0], _freeze(nothing) if every == 1 else running[1]), stop, *before

            # A step that is not made costs nothing.
            running, *stopped = lax.cond(stop > 0, rest, go, tuple(running))
            return *running, *stopped

        def place(leaves):
            state = _thaw(leaves, shapes[0])
            return _freeze((state.q, state.u))

        def emptied(carry):
            return carry[0], _freeze(nothing), *carry[2:]

        def row(carry):
            state, record = _thaw(carry[:2], shapes)
            return _pack((self.node(state), record), dtype)

        def final(carry):
            return _pack(_thaw(carry[0], shapes[0]), dtype)

        carry = _freeze((state, nothing))
        if until is not None:
            carry = (*carry, jnp.zeros((), self.integer), *([place(carry[0])] if until.exact else []))
        following = self.interval(step if until is None else step_or_rest, emptied)
        return Loop(carry, following, row, final, (state.P, *(code.astype(dtype) for code in codes)))

    def interval(self, step, emptied):
        """``step(carry, k)`` made into one from stored node k to the next, which starts from ``emptied(carry)``, without a record."""
        every = self.save_every
        if every == 1:
            return step

        def interval(carry, k):
            body = lambda carry, j: (step(carry, k * every + j), None)  # noqa: E731
            return _loop(body, emptied(carry), every, recompute=self.checkpoint)[0]

        return interval


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


def _pack(tree, dtype):
    """What a step stores, as one vector: one write into memory a step, not one for each array. Whole numbers are exact in it."""
    return jnp.concatenate([jnp.ravel(x).astype(dtype) for x in jax.tree.leaves(tree)])


def _unpack_rows(rows, shapes):
    """The arrays of a stored history (N, width)."""
    flat, tree = jax.tree.flatten(shapes)
    ends = list(itertools.accumulate(s.size for s in flat))
    pieces = [rows[:, end - s.size : end].reshape(len(rows), *s.shape).astype(s.dtype) for end, s in zip(ends, flat, strict=True)]
    return jax.tree.unflatten(tree, pieces)


def _loop(body, carry, length, *, first=0, recompute=None, report=None):
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
