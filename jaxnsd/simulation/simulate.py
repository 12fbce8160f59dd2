"""`simulate` and `check`: what is asked for is checked, the loop over the steps runs, and its rows become a `Solution`."""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from .. import native
from ..contact import AbstractContactSolver, SemismoothNewton
from ..mechanics import anisotropy
from ..mechanics.system import System
from ..native.jax_internals import is_traced, varying
from ..native.marks import in_memory, written_out
from ..numerics import sparsity
from ..programs import progress as progress_bar
from ..programs import runs
from ..programs.derivatives import is_float, undefined, undefined_unless
from ..programs.jitted import jit, make_room
from ..programs.pytrees import chosen, replaced
from ..schemes.base import Scheme
from . import checks, system_checks
from . import until as conditions
from .loop import MANY, History, unpack_rows
from .solution import Grid, Labels, Solution

#: Largest array of a state, in entries, with which a batch on a CPU runs member by member (see `runs`). In lockstep a batch of bars of
#: 100, 300 and 1000 elements is four times slower, and one of three boxes that fall onto each other, too.
LANES = 4096


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
        checks.memory(History(*options).row_size(system, q0, u0), n_steps, save_every)
    known = sparsity.of(system)
    given = {"start": state, "known": known, "until": until, "save_at": save_at, "derivatives_of_failed": bool(derivatives_of_failed)}
    run = _run
    sizes = q0.size, u0.size, 3 * len(system.contacts if isinstance(getattr(system, "contacts", None), tuple) else ())
    if not progress and native.available() and runs.on_cpu() and max(sizes) <= LANES:
        arrays = jax.tree.leaves((system, q0, u0, t0, dt, t1, state, until, save_at))
        # Nothing is left for XLA, which would compile what makes a `Solution` of rows for longer than all of a ball's run takes.
        run = _run if any(map(is_traced, arrays)) else _run_alone
    make_room()
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
    history = History(scheme, n_steps, save_every, solver, sensitivity, checkpoint)
    args = (system, times, q0, u0, start, until)
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
    sol = solution_of(history, shapes, system, args, rows, first, final)
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


_run = jit(_motion, static_argnames=_STATIC)


@jit(static_argnames=_STATIC)
def _run_alone(system, q0, u0, t0, dt, t1, *, start, until, save_at, **settings):
    """`_run`, with all that it returns, as one native function: of a run that is not a part of another program."""

    def whole(arrays):
        *given, start, until, save_at = arrays
        return _motion(*given, start=start, until=until, save_at=save_at, alone=True, **settings)

    return runs.run(in_memory(whole), (system, q0, u0, t0, dt, t1, start, until, save_at), fits=checks.batch_memory)


def solution_of(history, shapes, system, args, rows, first, final=None):
    """The `Solution` of a run of ``system`` with these ``args``, from its `Rows`, what is known of the first node, and the state at the
    last, packed, or None.
    """
    times = args[1]
    (q, u, auxiliary), record = rows.unpacked(history.node(shapes[0]), shapes[1])
    P, iterations, residual, outcome, contact, events = record
    every = history.save_every
    number = jnp.arange(len(q)) * every
    initial, at_start, code, invalid, *stop = first
    stop, *before = (stop[0].astype(history.integer) @ jnp.array([MANY, 1], history.integer), *stop[1:]) if stop else (None,)
    if stop is not None:
        after = (stop > 0) & (number >= stop + every)
        held = history.scheme.after_the_end(auxiliary)
        auxiliary = {name: jnp.where(jnp.expand_dims(after, tuple(range(1, x.ndim))), held[name], x) for name, x in auxiliary.items()}
        number = jnp.where(stop > 0, jnp.minimum(number, stop), number)
    t = times[0] + number.astype(q.dtype) * times[1]
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
        final = jax.tree.map(lambda x: x[0], unpack_rows(final[None], shapes[0]))
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
