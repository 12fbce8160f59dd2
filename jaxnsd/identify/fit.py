"""`fit`: several starts side by side, training and validation, early stopping, interruption, and what is left to read."""

import functools
import numbers
import zipfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..programs import interrupts, progress
from ..programs.files import readable, saying, writable
from ..programs.given import flag
from .evaluate import Evaluator, Point
from .further import looked
from .problem import Problem
from .result import Result, make_result
from .solvers import FirstOrder, Iterate, Request, better, solver_of


@dataclass
class Run:
    """One start: where it is, the best of it, its history of (training loss, validation loss)."""

    generator: Any
    request: Any = None
    last: Any = None
    step: Any = None
    best: Any = None
    losses: list = field(default_factory=list)
    since: int = 0
    done: str = ""


def fit(
    problem: Any,
    solver: Any = None,
    *,
    starts: int | np.ndarray = 1,
    spread: float = 0.5,
    seed: int = 0,
    validation: float | Sequence[str] = 0.0,
    patience: int | None = None,
    progress: bool = False,
    checkpoint: str | Path | None = None,
    resume: Any = None,
) -> Result:
    """Fit a `Problem`: least squares, or its robust kin, over the training trajectories.

    solver:      `LevenbergMarquardt()` (default), an optimizer of optax, or `FirstOrder(optimizer, max_iterations, batch)`
    starts:      how many; the first is the first guess, the others lie around it with standard deviation ``spread`` in z (logarithms,
                 logits); or an array (starts, p) of z
    validation:  share of the trajectories, drawn by ``seed``, one at least, or their names, that are not fitted; the best iterate is then
                 that on them. Without it that is the best on what was fitted, or, where each step takes another batch, the last. One that
                 can simulate fewer trajectories than another, by more than 2 %, is not better
    patience:    a start ends after so many iterations without a better validation loss (training loss where there is no validation)
    progress:    show a bar
    checkpoint:  file (.npz) that always holds the last iterates of all starts, and the best
    resume:      a `Result` or such a file, of the same data and unknowns: go on from it, to the bit where the solver is the same one. With
                 a solver of another kind from the last iterates

    Ctrl-C ends a fit early: the result is that of the best iterate by then, ``result.interrupted`` says so, and ``resume`` goes on.
    Where an unknown has no effect at the first guess, as friction has none where it holds at every impact, the fit looks further by itself:
    it starts a second time from the best of some points along that unknown, and a warning says so, and which of the two was better. It does
    not where ``starts`` is an array.

    Trajectories that fail, by the outcome codes of `simulate`, are left out of that step; ``result.failures`` counts them by name.
    Raises ValueError if none succeeds at the first guess, or for arguments that make no sense.
    """
    if not isinstance(problem, Problem):
        raise TypeError(f"identify.fit: expected an identify.Problem, got {type(problem).__name__}")
    solver = solver_of(solver)
    _check_options(seed, patience, progress, checkpoint)
    train, items = _split(problem, validation, seed), np.arange(len(problem.items["t"]))
    if problem.n_local and isinstance(solver, FirstOrder) and not train.all():
        raise ValueError("identify.fit: initial states of validation trajectories need LevenbergMarquardt(); take that")
    evaluator, failures = Evaluator(problem), Counter()
    if resume is None:
        runs, seen = _begun(problem, solver, items, train, starts, spread, seed)
    else:
        runs, seen = _resumed(resume, problem, solver, evaluator, items, train), ""
    interrupted = False
    bar = _bar(progress, solver.max_iterations)
    try:
        with bar:
            while any(not run.done for run in runs):
                _round(problem, evaluator, items, train, runs, failures, patience)
                _show(bar, runs)
                if checkpoint is not None and all(run.step for run in runs):
                    _save(checkpoint, state_of(problem, solver, evaluator, runs))
    except (KeyboardInterrupt, interrupts.Interrupted):
        if not any(run.best for run in runs):
            raise
        interrupted = True
    chosen = _chosen(runs, train)
    if seen:
        seen += "; a fit from there is the better one: the start matters" if chosen is runs[1] else "; a fit from there is not better"
    state = state_of(problem, solver, evaluator, [run for run in runs if run.step])
    return make_result(problem, evaluator, items, train, runs, chosen, failures, interrupted, state, (seen,) if seen else ())


def _check_options(seed, patience, progress, checkpoint):
    """Raise for options of `fit` that make no sense, before anything is computed."""
    if patience is not None and (isinstance(patience, bool) or not isinstance(patience, numbers.Integral) or patience < 1):
        raise ValueError(f"identify.fit: patience must be a positive whole number of iterations, got {patience!r}")
    check_seed("identify.fit", seed)
    flag("identify.fit: progress", progress)
    if checkpoint is not None:
        with saying("identify.fit: checkpoint"):
            writable(checkpoint)


def check_seed(who, seed):
    """Raise ValueError for what random numbers cannot be made of."""
    if isinstance(seed, bool) or not isinstance(seed, numbers.Integral) or not 0 <= seed < 2**63:
        raise ValueError(f"{who}: seed must be a whole number, zero or more, got {seed!r}")


def decisive(train):
    """(items,) booleans: by which of them the best is chosen, those for validation where there are some."""
    return train if train.all() else ~train


def _bar(show, total):
    return progress.bar(total=total, desc="identification", unit="iteration") if show else progress.NoBar()


def _show(bar, runs):
    """The iteration that the runs have come to, and the least loss, in the bar."""
    losses = [run.best[0] for run in runs if run.best]
    if losses and hasattr(bar, "set_postfix_str"):
        bar.set_postfix_str(f"loss {min(losses):.4g}")
    bar.update(max(0, max(len(run.losses) for run in runs) - 1 - bar.n))


def _round(problem, evaluator, items, train, runs, failures, patience):
    """Advance all runs to their next request, and answer all requests together."""
    waiting = []
    for run in runs:
        while not run.done and run.request is None:
            try:
                step = next(run.generator) if not isinstance(run.last, dict) else run.generator.send(_take(run))
            except StopIteration:
                run.done = "all iterations are done"
                break
            if isinstance(step, Request):
                run.request = step
            else:
                _accept(problem, evaluator, items, train, run, step, failures, patience)
        if run.request is not None:
            waiting.append(run)
    for kind in {run.request.kind for run in waiting}:
        group = [run for run in waiting if run.request.kind == kind]
        for same in _by_items(group):
            answers = getattr(evaluator, kind)([run.request.point for run in same], same[0].request.items)
            for run, answer in zip(same, answers, strict=True):
                run.last, run.request = answer, None


def _take(run):
    answer, run.last = run.last, None
    return answer


def _by_items(runs):
    groups = {}
    for run in runs:
        groups.setdefault(run.request.items.tobytes(), []).append(run)
    return groups.values()


def _accept(problem, evaluator, items, train, run, step: Iterate, failures, patience):
    """Note an iterate: its losses, and whether it is the best."""
    known = step.evaluation
    if not train.all() and not problem.n_local:
        costs = evaluator.costs([step.point], items[~train])[0]
        known["cost"][~train], known["ok"][~train] = costs["cost"], costs["ok"]
    looked = ~np.isnan(known["cost"])
    failures.update(problem.names[k] for k in set(problem.items["owner"][items[looked & ~known["ok"]]]))
    losses = [_loss(problem, known, items, part) for part in (train, ~train)]
    run.losses.append(losses)
    run.step = step
    loss = losses[1] if not train.all() else losses[0]
    # Losses of different batches cannot be compared: then the last iterate is the best.
    batches = train.all() and not looked.all()
    if np.isfinite(loss) and (run.best is None or batches or better(known, run.best[1].evaluation, decisive(train))):
        run.best, run.since = (loss, step), 0
    else:
        run.since += 1
    run.done = step.done
    if not np.isfinite(losses[0]):
        run.done = "no trajectory could be simulated"
    if patience is not None and run.since >= patience:
        run.done = f"no better loss in {patience} iterations"


def _chosen(runs, train):
    """The run with the best iterate; ValueError where there is none."""
    good = [run for run in runs if run.best]
    if not good and any(np.isfinite(pair[0]) for run in runs for pair in run.losses):
        raise ValueError(
            "identify.fit: no trajectory of those for validation could be simulated, from the first guess on: hold others back, or see why "
            "with jaxnsd.simulate(...).raise_if_failed()"
        )
    if not good:
        raise ValueError(
            "identify.fit: no trajectory could be simulated from the first guess: simulate one with jaxnsd.simulate(...).raise_if_failed() "
            "to see why, and start from other parameters, a smaller dt, or shorter windows"
        )
    part, chosen = decisive(train), good[0]
    for run in good[1:]:
        if better(run.best[1].evaluation, chosen.best[1].evaluation, part):
            chosen = run
    return chosen


def _loss(problem, known, items, part):
    """Mean square of the whitened residuals of a part of the items, those that succeeded."""
    ok = part & known["ok"] & ~np.isnan(known["cost"])
    count = problem.count[items[ok]].sum()
    return 2 * known["cost"][ok].sum() / count if count else np.nan


def _split(problem, validation, seed):
    """(items,) booleans: which of them train."""
    n = len(problem.data)
    if isinstance(validation, numbers.Real):
        if not 0 <= validation < 1:
            raise ValueError(f"identify.fit: validation must be a share in [0, 1) or names of trajectories, got {validation}")
        if validation and n < 2:
            raise ValueError("identify.fit: one trajectory alone cannot be held out for validation; give more, or leave validation out")
        size = min(max(round(validation * n), 1), n - 1) if validation else 0
        held = np.random.default_rng(seed).permutation(n)[:size] if size else np.zeros(0, int)
    else:
        if not isinstance(validation, (str, list, tuple, set, np.ndarray)):
            raise TypeError(f"identify.fit: validation must be a share in [0, 1) or names of trajectories, got {validation!r}")
        validation = [validation] if isinstance(validation, str) else list(validation)
        unknown = [name for name in validation if name not in problem.names]
        if unknown:
            raise ValueError(f"identify.fit: there is no trajectory {', '.join(map(repr, unknown))} to validate with")
        held = np.array([problem.names.index(name) for name in validation], int)
        if len(set(held)) == n:
            raise ValueError("identify.fit: every trajectory is for validation; leave some to fit")
    return ~np.isin(problem.items["owner"], held)


def _starts(problem, starts, spread, seed):
    """``(z, local, memory)`` of every start."""
    zero = np.zeros((len(problem.items["t"]), problem.n_local))
    if isinstance(starts, numbers.Integral):
        if isinstance(starts, bool) or starts < 1:
            raise ValueError(f"identify.fit: starts must be a positive whole number or an array (starts, {problem.size}), got {starts}")
        if not (isinstance(spread, numbers.Real) and 0 <= spread < np.inf):
            raise ValueError(f"identify.fit: spread must be a standard deviation in z, zero or more, got {spread!r}")
        first = problem.unknowns.first()
        moved = spread * np.random.default_rng(seed).normal(size=(int(starts), problem.size))
        moved[0] = 0
        starts = first + moved
    try:
        starts = np.asarray(starts, float)
    except (TypeError, ValueError):
        starts = np.zeros(0)
    if starts.ndim != 2 or not len(starts) or starts.shape[1] != problem.size or not np.all(np.isfinite(starts)):
        raise ValueError(
            f"identify.fit: starts must be how many, or an array of finite z, (starts, {problem.size}), got shape {starts.shape}"
        )
    return [(z, zero.copy(), None) for z in starts]


def _begun(problem, solver, items, train, starts, spread, seed):
    """Runs from all starts, one more where an unknown has no effect at the first guess, and what was seen of that, in words."""
    firsts, seen = _starts(problem, starts, spread, seed), ""
    # A point that was given is where the fit is to start; a bootstrap gives the estimate.
    if len(firsts) == 1 and np.ndim(starts) == 0:
        (z, local, memory), loss = firsts[0], functools.partial(_loss, problem, items=items, part=train)
        further, seen = looked(problem, items, train, z, local, loss)
        firsts += [(further, local.copy(), memory)] if further is not None else []
    return [Run(solver.start(problem, items, train, *first)) for first in firsts], seen


def _resumed(resume, problem, solver, evaluator, items, train):
    """Runs that go on from a `Result` or a file."""
    if isinstance(resume, Result):
        state = resume.state
    elif isinstance(resume, (str, Path)):
        with saying("identify.fit: resume"):
            readable(resume)
        try:
            with open(resume, "rb") as binary, np.load(binary) as file:
                state = {name: file[name] for name in file.files}
        except (ValueError, EOFError, zipfile.BadZipFile):
            raise ValueError(f"identify.fit: {str(resume)!r} cannot be read as a checkpoint: it is none, or a damaged one") from None
    else:
        raise TypeError(f"identify.fit: resume must be a Result or the file of a checkpoint, got {resume!r}")
    if "data" not in state or str(state["data"]) != problem.fingerprint:
        raise ValueError("identify.fit: resume holds a fit of other data or of other unknowns: resume the same problem, or start anew")
    same, out = str(state["solver"]) == _named(solver), []
    if same and "limit" in state:
        evaluator.limit = np.asarray(state["limit"])
    for i in range(int(state["starts"])):
        memory = [state[f"m_{i}_{j}"] for j in range(int(state[f"leaves_{i}"]))] if same else None
        run = Run(solver.start(problem, items, train, state[f"z_{i}"], state[f"local_{i}"], memory))
        best = Point(state[f"best_z_{i}"], state[f"best_local_{i}"])
        known = evaluator.linearized([best])[0]
        loss = _loss(problem, known, items, decisive(train))
        if np.isfinite(loss):
            run.best = loss, Iterate(best, known)
        out.append(run)
    return out


def _named(solver):
    return getattr(solver, "name", type(solver).__name__)


def state_of(problem, solver, evaluator, runs):
    """All that a fit needs to go on: arrays by name."""
    out = {"starts": len(runs), "data": problem.fingerprint, "solver": _named(solver)}
    if evaluator.limit is not None:
        out["limit"] = evaluator.limit
    for i, run in enumerate(runs):
        step, best = run.step, run.best[1] if run.best else run.step
        leaves = [np.asarray(x) for x in jax.tree.leaves(step.memory)]
        out |= {f"z_{i}": step.point.z, f"local_{i}": step.point.local, f"leaves_{i}": len(leaves)}
        out |= {f"m_{i}_{j}": x for j, x in enumerate(leaves)} | {f"best_z_{i}": best.point.z, f"best_local_{i}": best.point.local}
    return out


def _save(path, arrays):
    path = Path(path)
    # Written beside and moved, so that an interruption leaves the old one whole.
    part = path.with_name(path.name + ".part")
    with open(part, "wb") as file:
        np.savez(file, **arrays)
    part.replace(path)
