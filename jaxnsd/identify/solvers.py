"""Solvers as generators: they ask for evaluations at a point and are sent them, so that several starts run side by side.

A solver has ``start(problem, items, train, z, local, memory, fixed)``, a generator that yields `Request`s, and after each iteration an
`Iterate` that was accepted.
"""

import numbers
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import optax

from ..programs.given import shown
from .evaluate import Point
from .normal import AWAY, NormalEquations, nothing
from .problem import Problem

#: From so many unknowns on first-order optimizers take gradients in reverse mode.
REVERSE = 24

#: What loses more than this share of the trajectories, or windows, that could be simulated before is not better, whatever its cost.
LOST = 0.02

#: Windows are joined tighter after a step that lowers the cost by less than this part of it.
TIGHTEN = 0.05


@dataclass
class Request:
    """An evaluation that a solver waits for: a method of `Evaluator`, a point, and the numbers of the items."""

    kind: str
    point: Point
    items: np.ndarray


@dataclass
class Iterate:
    """A point that was accepted: its evaluation, and what the solver needs to go on from it."""

    point: Point
    evaluation: dict
    memory: Any = None
    done: str = ""


@dataclass(frozen=True)
class LevenbergMarquardt:
    """Damped Gauss-Newton with Marquardt's scaling, Jacobians by `jax.jacfwd` through the impacts.

    Windows of multiple shooting are joined loosely at first, no tighter than their states are known, and ten times tighter whenever the
    cost hardly falls any more: where they meet from the start, every step is as hard as with whole trajectories.

    max_iterations: of accepted or refused steps
    damping:        that of the first step, relative to the diagonal of J^T J
    tolerance:      done when two steps gave a relative decrease of the cost below this, and one without damping promises no more
    largest_step:   bound on each entry of a step in z (logarithms, logits), beyond which a linear model of an impact says nothing; of what
                    has no bounds it is one in z or, where that is more, in its present size
    """

    max_iterations: int = 50
    damping: float = 1e-2
    tolerance: float = 1e-6
    largest_step: float = 1.0

    name = "Levenberg-Marquardt"

    def __post_init__(self):
        _whole(self, "max_iterations", 0)
        for name in ("damping", "tolerance", "largest_step"):
            if not (isinstance(value := getattr(self, name), numbers.Real) and value > 0):
                raise ValueError(f"LevenbergMarquardt: {name} must be a positive number, got {value!r}")

    def start(
        self,
        problem: Problem,
        items: np.ndarray,
        train: np.ndarray,
        z: np.ndarray,
        local: np.ndarray,
        memory: Any = None,
        fixed: np.ndarray | None = None,
    ) -> Generator[Request | Iterate, Any, None]:
        """Iterate from z and local, see the module."""
        # Local parts of validation trajectories are fitted as well, and then take part; else they are not linearized.
        every = items if problem.n_local else items[train]
        shared = train if problem.n_local else np.ones(len(every), bool)
        damping, loose, small = (self.damping, problem.loosest, 0) if memory is None else map(float, jax.tree.leaves(memory))
        point = Point(z, local)
        now = yield Request("linearized", point, every)
        yield Iterate(point, _full(now, every, items), (damping, loose, small))
        simulated = now["ok"] & shared
        for _ in range(self.max_iterations):
            equations = NormalEquations(problem, now, every, shared, loose)
            units, spans = problem.unknowns.units(point.z), problem.unknowns.spans(point.z)
            dz, dlocal = equations.step(damping, fixed, self.largest_step * np.fmax(1.0, units), spans)
            tiny = np.all(np.abs(dz) < 1e-9 * np.fmin(1 + np.abs(point.z), units))
            new_local = point.local.copy()
            new_local[every] += dlocal
            trial = Point(point.z + dz, new_local)
            then = yield Request("linearized", trial, every)
            both = now["ok"] & then["ok"] & shared
            before, after = (_cost(x, loose)[both].sum() for x in (now, then))
            # Of all that ever could be simulated, so that they are not lost one by one.
            lost = np.sum(simulated & ~then["ok"])
            better = both.any() and after < before and lost <= LOST * simulated.sum()
            decrease = (before - after) / max(before, 1e-300)
            if better:
                point, now, simulated = trial, then, simulated | then["ok"] & shared
                damping = max(damping * 0.2, 1e-10)
                small = small + 1 if decrease < self.tolerance else 0
            else:
                damping *= 5
            done, stuck = "", not better and (tiny or damping > 1e9)
            if loose > 1 and (small >= 2 or stuck or (better and decrease < TIGHTEN)):
                small, loose, damping = 0, max(1.0, 0.1 * loose), min(damping, self.damping)
            elif small >= 2 or stuck:
                done = self._done(problem, point.z, now, every, shared, fixed, stuck)
            yield Iterate(point, _full(now, every, items), (damping, loose, small), done)
            if done:
                return

    def _done(self, problem, z, now, every, shared, fixed, stuck):
        """Why it ends where steps lower the cost no more; empty where it goes on: while they are damped, or bounded, they say nothing."""
        equations, unknowns, counted = NormalEquations(problem, now, every, shared), problem.unknowns, now["ok"] & shared
        # What has bounds comes no further in a step of z.
        reach = np.where(unknowns.free, np.inf, self.largest_step)
        length = equations.length(equations.step(0.0, fixed, reach, unknowns.spans(z))[0])
        size = np.nanmax(np.sqrt(np.maximum(equations.diagonal(), 0)) * unknowns.units(z), initial=0.0)
        square = 2 * now["cost"][counted].sum()
        of_noise = AWAY**2 / max(1, problem.count[every][counted].sum() - problem.size)
        # Of data that are exact rounding is left, or nothing at all.
        there = square == 0 or length <= nothing() * size or length**2 <= square * (of_noise if stuck else min(of_noise, self.tolerance))
        if stuck and not there:
            return "stopped: no step lowers the cost, though one without damping promises to"
        if stuck:
            return "converged: no step lowers the cost"
        return "converged: steps no longer lower the cost" if there else ""


def _cost(evaluation, loose):
    """Costs of items whose windows are joined loosely."""
    joined = evaluation.get("cost_joined")
    return evaluation["cost"] if joined is None else evaluation["cost"] - (1 - loose**-2) * joined


@dataclass(frozen=True)
class FirstOrder:
    """Any optimizer of optax, on the mean cost of a residual, for all items or for ``batch`` of them drawn anew in each step.

    The gradient is that of the Gauss-Newton pass in forward mode, from 24 unknowns on that of reverse mode.
    """

    optimizer: optax.GradientTransformation
    max_iterations: int = 300
    batch: int | None = None
    seed: int = 0
    name: str = field(default="optax", init=False)

    def __post_init__(self):
        if not isinstance(self.optimizer, optax.GradientTransformation):
            raise TypeError(f"FirstOrder: optimizer must be one of optax, such as optax.adam(0.01), got {shown(self.optimizer)}")
        _whole(self, "max_iterations", 0)
        if self.batch is not None:
            _whole(self, "batch", 1)
        _whole(self, "seed", 0)

    def start(
        self,
        problem: Problem,
        items: np.ndarray,
        train: np.ndarray,
        z: np.ndarray,
        local: np.ndarray,
        memory: Any = None,
        fixed: np.ndarray | None = None,
    ) -> Generator[Request | Iterate, Any, None]:
        """Iterate from z and local, see the module."""
        fitted = items[train]
        kind = "linearized" if problem.size + 2 * problem.n_local < REVERSE else "descended"
        p, n = problem.size, problem.n_local
        parameters = {"z": np.array(z), "local": np.array(local)}
        state = self.optimizer.init(parameters)
        first = 0
        if memory is not None:
            first, *leaves = jax.tree.leaves(memory)
            if [np.shape(x) for x in leaves] != [np.shape(x) for x in jax.tree.leaves(state)]:
                raise ValueError("identify.fit: resume holds the state of another optimizer: go on with the same, or start from result.z")
            state = jax.tree.unflatten(jax.tree.structure(state), leaves)
        for k in range(int(first), int(first) + self.max_iterations):
            chosen = fitted
            if self.batch is not None and self.batch < len(fitted):
                # A function of the iteration, so that a fit that is resumed goes on with the batches that it would have had.
                chosen = np.sort(np.random.default_rng((self.seed, k)).choice(fitted, self.batch, replace=False))
            point = Point(parameters["z"], parameters["local"])
            now = yield Request(kind, point, chosen)
            yield Iterate(point, _full(now, chosen, items), (k, state))
            count = max(1, problem.count[chosen][now["ok"]].sum())
            g_local = np.zeros_like(parameters["local"])
            if n:
                g_local[chosen] += now["g"][:, p : p + n]
                if problem.joined:
                    following = problem.items["joined"][chosen] > 0
                    g_local[chosen[following] + 1] += now["g"][following, p + n :]
            g = now["g"][:, :p].sum(0) / count
            if fixed is not None:
                g = np.where(fixed, 0, g)
            updates, state = self.optimizer.update({"z": g, "local": g_local / count}, state, parameters)
            parameters = {name: np.asarray(x) for name, x in optax.apply_updates(parameters, updates).items()}


def _whole(solver, name, least):
    value = getattr(solver, name)
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise ValueError(f"{type(solver).__name__}: {name} must be a whole number, {least} at least, got {value!r}")


def better(new, old, part):
    """Whether an evaluation of all items is better than another, on a ``part`` of the items: by the cost of those that both could simulate,
    unless one of them has lost more than the share `LOST` of them: the mean over what is left would reward that."""
    (a, b), size = (part & x["ok"] & ~np.isnan(x["cost"]) for x in (new, old)), LOST * np.sum(part)
    more = np.sum(a & ~b) - np.sum(b & ~a)
    if abs(more) > size:
        return bool(more > 0)
    both = a & b
    return bool(new["cost"][both].sum() < old["cost"][both].sum())


def _full(evaluation, chosen, items):
    """Cost and ok of all items, NaN and False for those that were not evaluated; the rest as it is."""
    cost, ok, lost = np.full(len(items), np.nan), np.zeros(len(items), bool), np.zeros(len(items), int)
    place = np.searchsorted(items, chosen)
    cost[place], ok[place], lost[place] = evaluation["cost"], evaluation["ok"], evaluation["lost"]
    return {"cost": cost, "ok": ok, "lost": lost}


def solver_of(solver):
    """A solver, an optimizer of optax, or None, as a solver."""
    if isinstance(solver, type):
        raise TypeError(f"identify.fit: solver must be a value, not a class: {solver.__name__}()")
    if solver is None:
        return LevenbergMarquardt()
    if isinstance(solver, optax.GradientTransformation):
        return FirstOrder(solver)
    if not hasattr(solver, "start"):
        raise TypeError(
            f"identify.fit: solver must be a LevenbergMarquardt(...), a FirstOrder(...) or an optimizer of optax, got {solver!r}"
        )
    return solver
