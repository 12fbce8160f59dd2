"""Checks of what a run is given, before tracing: each failure says what was given, what was expected and what to do.

Those of the system, and of the state it starts from, are in `system_checks`.

Values are checked where they are known; under `jit`, `vmap` and `grad` only shapes and dtypes are.
"""

import inspect
import os
import warnings

import jax
import jax.numpy as jnp
import numpy as np

from ..contact import AbstractContactSolver
from ..mechanics.system import System
from ..native.jax_internals import is_traced
from ..programs import runs
from ..programs.given import array, flag, numbers, shown
from ..schemes.base import Scheme

_warned_float32 = False
_ran = _forked = False


def known(*values):
    """Whether the values are known now: numbers rather than tracers of a transformation."""
    return not any(is_traced(value) for value in values)


# ------------------------------------------------------------------------------------------------------------------ simulate
def process():
    """Refuse a run in a process that was forked after one: it would wait for threads of XLA that were not forked with it, for ever."""
    global _ran
    if _forked:
        raise RuntimeError(
            "simulate: this process was forked after a run, and XLA does not survive that; make processes by "
            'multiprocessing.get_context("spawn"), or fork before the first run'
        )
    _ran = True


def _after_fork():
    global _forked
    _forked = _forked or _ran


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def options(scheme, solver, save_every, sensitivity, checkpoint, progress=False, derivatives_of_failed=False):
    """Check the options of a run; ``(save_every, checkpoint)`` as Python's integers."""
    if not isinstance(scheme, Scheme):
        hint = "; write its parentheses" if isinstance(scheme, type) else ""
        raise TypeError(f"simulate: scheme must be a scheme such as jaxnsd.Moreau(), got {shown(scheme)}{hint}")
    is_solver("simulate", solver)
    if not isinstance(sensitivity, str) or sensitivity not in ("saltation", "discrete"):
        raise ValueError(f'simulate: sensitivity must be "saltation" or "discrete", got {shown(sensitivity)}')
    flag("simulate: progress", progress)
    flag("simulate: derivatives_of_failed", derivatives_of_failed)
    return _whole("save_every", save_every), None if checkpoint is None else _whole("checkpoint", checkpoint)


def _whole(name, value):
    """A number of steps as a Python integer: one of Python, NumPy or JAX."""
    if not known(value):
        raise TypeError(
            f"simulate: {name} must be known when the run is traced, got a traced value: the number of steps is a part of the program; "
            "pass a Python integer (of jnp a constant is traced, too, inside of jit), or declare the argument in static_argnames of jit"
        )
    number = numbers(value)
    if number is None or number.ndim or number.dtype.kind not in "iu" or number < 1:
        raise ValueError(f"simulate: {name} must be a positive whole number of steps, got {shown(value)}")
    return int(number)


def is_solver(caller, solver):
    """Raise TypeError for a contact solver that is none, cannot be hashed, or has a ``solve`` of other arguments."""
    if not isinstance(solver, AbstractContactSolver):
        raise TypeError(f"{caller}: solver must be a jaxnsd.SemismoothNewton(...) or another AbstractContactSolver, got {shown(solver)}")
    try:
        hash(solver)
    except TypeError:
        raise TypeError(f"{caller}: solver must be hashable, got {shown(solver)}: make it a dataclass with frozen=True") from None
    try:
        signature = inspect.signature(solver.solve)
        signature.bind("problem", "guess", refine=False)
    except TypeError:
        raise TypeError(f"{caller}: {type(solver).__name__}.solve must take (problem, guess, *, refine=False), got {signature}") from None


def steps(t0, t1, dt, n_steps, save_every):
    """``(t1, dt, number of steps)`` of a run from t0 on."""
    if n_steps is None:
        for name, value in (("t1", t1), ("dt", dt)):
            if value is None:
                raise TypeError(f"simulate: {name} is missing; give t1 and dt, or n_steps with either of them")
    else:
        n_steps = _whole("n_steps", n_steps)
        if (t1 is None) == (dt is None):
            raise TypeError(
                f"simulate: n_steps takes either t1 or dt, the other follows from it, got {'neither' if dt is None else 'both'}"
            )
    for name, value in (("t0", t0), ("t1", t1), ("dt", dt)):
        if value is None and n_steps is not None and name != "t0":
            continue
        if not known(value) and n_steps is None:
            raise TypeError(
                f"simulate: {name} decides the number of steps, got a traced value; pass a number, not an argument of jit or vmap, or say "
                "n_steps and either t1 or dt, which may then be traced"
            )
        number = numbers(value)
        if number is None or number.ndim or number.dtype.kind == "b" or (known(value) and not np.isfinite(number)):
            raise ValueError(f"simulate: {name} must be a finite number in seconds, got {shown(value)}")
    t0, t1, dt = (float(value) if value is not None and known(value) else value for value in (t0, t1, dt))
    if isinstance(dt, float) and dt <= 0:
        raise ValueError(f"simulate: dt must be positive, got {dt}")
    if isinstance(t0, float) and isinstance(t1, float) and t1 <= t0:
        raise ValueError(f"simulate: t1 must be later than t0, got t0 = {t0} and t1 = {t1}")
    if n_steps is None:
        n = _number_of_steps(t0, t1, dt)
    else:
        n = n_steps
        dt, t1 = ((t1 - t0) / n, t1) if dt is None else (dt, t0 + n * dt)
    if n > (most := jnp.iinfo(jnp.result_type(int)).max):
        raise ValueError(
            f"simulate: a run takes up to {most} steps, got {n}"
            + ('; jax.config.update("jax_enable_x64", True) lets it take more' if most < 2**32 else "")
        )
    if n % save_every:
        raise ValueError(f"simulate: save_every must divide the number of steps, {n}, got {save_every}; take a divisor, or another t1")
    return t1, dt, n


def save_at(times, t0, t1, save_every):
    """Check the times at which a run from t0 to t1 is stored; an array of them."""
    if save_every != 1:
        raise ValueError(f"simulate: save_at chooses the times that are stored, and so does save_every = {save_every}: give one of them")
    array = numbers(times) if known(times) else jnp.asarray(times)
    if array is None or array.dtype == bool:
        raise TypeError(f"simulate: save_at must be times in s, got {shown(times)}")
    if array.ndim != 1 or not array.size:
        raise ValueError(f"simulate: save_at must be one time or more along one axis, got an array of shape {array.shape}")
    if not known(array):
        return array
    if not np.all(np.diff(array) > 0):
        k = int(np.argmax(~(np.diff(array) > 0)))
        raise ValueError(f"simulate: save_at must increase, got {float(array[k]):.9g} s before {float(array[k + 1]):.9g} s")
    if known(t0, t1):
        allowed = 1e-9 * max(abs(float(t0)), abs(float(t1)))
        outside = ~((array >= float(t0) - allowed) & (array <= float(t1) + allowed))
        if np.any(outside):
            wrong = float(array[outside][0])
            raise ValueError(f"simulate: save_at must be from t0 = {float(t0):.9g} to t1 = {float(t1):.9g} s, got {wrong:.9g} s")
    return array


def every_node(caller, solution):
    """Refuse a solution that lacks nodes of its run."""
    if solution.save_every is None:
        raise ValueError(f"{caller}: needs the nodes of a run, which a solution with save_at does not have: leave save_at out")


def _number_of_steps(t0, t1, dt):
    ratio = (t1 - t0) / dt
    n = max(round(ratio), 1)
    if abs(ratio - n) > 1e-6 * max(1.0, ratio * 1e-3):
        raise ValueError(
            f"simulate: dt = {dt} must divide t1 - t0 = {t1 - t0}, got {ratio:.9g} steps; take dt = {(t1 - t0) / n} or "
            f"t1 = {t0 + n * dt:.12g}"
        )
    return n


#: A run may store this part of the memory that is available before its size is looked at more closely.
LARGE = 1 / 64


def large(n_stored, q0, u0):
    """Whether the stored states alone take a good part of the memory."""
    return n_stored * (q0.size + u0.size) * q0.dtype.itemsize > LARGE * available_memory()


def memory(row_size, n_steps, save_every):
    """Raise ValueError for a trajectory, rows of so many bytes, that does not fit into memory: it is held twice while it is unpacked."""
    needed, there = 2 * (n_steps // save_every + 1) * row_size, available_memory()
    if needed <= there:
        return
    least = -(-save_every * needed // there)
    divisor = next((k for k in range(int(least), int(least) + 10_000) if n_steps % k == 0), None)
    cure = f"save_every={divisor}" if divisor else f"save_every={least} or more, a divisor of the number of steps"
    raise ValueError(
        f"simulate: the trajectory of {n_steps} steps must fit into memory, got {needed / 2**30:.3g} GiB (it is held twice for a while) of "
        f"{there / 2**30:.3g} GiB available; store fewer nodes, with {cure}"
    )


def batch_memory(size):
    """Raise ValueError for an array of so many bytes, of all members of a batch, that does not fit into memory.

    The size of a batch that is exported is a symbol: nothing is known of it.
    """
    if isinstance(size, int) and size > (there := available_memory()):
        raise ValueError(
            f"simulate: the trajectories of a batch must fit into memory, got {size / 2**30:.3g} GiB of {there / 2**30:.3g} GiB available, "
            "with all members, directions, and what reverse mode stores; store fewer nodes with save_every, recompute in reverse mode with "
            "checkpoint, or run fewer members at a time, as jaxnsd.ensemble does"
        )


def available_memory():
    """Bytes that are free where the run will be: memory of the machine, or of its first accelerator."""
    if not runs.on_cpu():
        stats = jax.devices()[0].memory_stats() or {}
        if "bytes_limit" in stats:
            return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else float("inf")


def state(system, q0, u0):
    """Initial state as arrays of one floating dtype."""
    del system
    q0, u0 = (array("simulate", name, value, 1) for name, value in (("q0", q0), ("u0", u0)))
    if q0.dtype != u0.dtype:
        raise TypeError(f"simulate: q0 and u0 must have one dtype, got {q0.dtype} and {u0.dtype}; convert one of them")
    if q0.dtype == jnp.float32:
        _warn_float32()
    return q0, u0


def start(q0, u0, start):
    """State at the end of a solution, from which a run goes on."""
    final = getattr(start, "final", None)
    if final is None:
        raise TypeError(f"simulate: start must be a Solution that simulate returned, got {shown(start)}; give q0 and u0 otherwise")
    if q0 is not None or u0 is not None:
        raise ValueError("simulate: with start, q0 and u0 are those of its last node; pass None for both, or leave start out")
    if final.q.ndim != 1:
        raise ValueError(f"simulate: start must be one motion, got a batch of shape {final.q.shape[:-1]}; go on with jax.vmap")
    return final


def motion(caller, solution, system=None):
    """Raise TypeError for what is no solution, and no system."""
    if system is not None and not isinstance(system, System):
        raise TypeError(f"{caller}: system must be an instance of a subclass of jaxnsd.System, got {shown(system)}")
    if not all(hasattr(solution, name) for name in ("t", "q", "u")):
        raise TypeError(f"{caller}: the solution must be one that jaxnsd.simulate returns, got {shown(solution)}")
    names, n = getattr(system, "coordinate_names", None), np.shape(solution.q)[-1]
    if names is not None and len(names) != n:
        raise ValueError(
            f"{caller}: the solution must be one of this system, got {n} coordinates where {type(system).__name__} has {len(names)}"
        )


def made_by(caller, scheme, solution):
    """Check that a solution is one of this scheme; of one that was put together by hand nothing is known."""
    if scheme is not None and not isinstance(scheme, Scheme):
        raise TypeError(f"{caller}: scheme must be a scheme such as jaxnsd.Moreau(), got {shown(scheme)}")
    if solution.scheme not in (None, scheme):
        raise ValueError(
            f"{caller}: the solution must be one of {scheme!r}, got one of another scheme, {solution.scheme!r}: pass that which made it"
        )


def continues(system, scheme, solver, dt, start):
    """Check that a scheme can go on from a solution with this dt."""
    final = start.final

    def init(system, t, q, u):
        return scheme.init(scheme.prepare(system, dt), t, dt, q, u, solver)[0]

    same = "simulate: start must be of the same system and scheme"
    try:
        own = jax.eval_shape(init, system, start._last, final.q, final.u)
    except Exception as error:
        shapes = f"q of shape {final.q.shape} and u of shape {final.u.shape}"
        raise ValueError(f"{same}, got {shapes}, which {type(system).__name__} does not take: {error}") from error
    if jax.tree.map(jnp.shape, own) != jax.tree.map(jnp.shape, final):
        if start.scheme == scheme:
            raise ValueError(f"{same}, got {final.P.P_N.shape[0]} contacts where {type(system).__name__} has {own.P.P_N.shape[0]}")
        raise ValueError(f"{same}, got a state that is none of {scheme.name}()")
    if start.scheme not in (None, scheme):
        raise ValueError(
            f"{same}, got a solution of {start.scheme!r} for {scheme!r}; to go on with "
            "another scheme start from sol.q[-1] and jaxnsd.node_velocities(system, sol.scheme, sol)[-1]"
        )
    if scheme.lead and known(dt, start.t, start.stop, start.grid):
        before, steps = float(start.dt), int(start.steps)
        round_off = float(np.finfo(start.t.dtype).eps * np.abs(start.t).max()) / steps
        if abs(dt - before) > 1e-6 * dt + round_off:
            raise ValueError(
                f"simulate: velocities of {scheme.name}() are at mid-interval, so it goes on with the same dt = {before:.6g}, got {dt}; "
                "for another start from sol.q[-1] and jaxnsd.node_velocities(system, scheme, sol)[-1]"
            )


def _warn_float32():
    global _warned_float32
    if not _warned_float32:
        _warned_float32 = True
        warnings.warn(
            "simulating in float32: the contact law is solved to about 1e-6 only; for float64 call "
            'jax.config.update("jax_enable_x64", True) before making arrays',
            stacklevel=5,
        )
