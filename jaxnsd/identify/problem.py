"""What is to be identified, from what: a system with unknown parameters, data, and how these were measured."""

import collections
import copy
import functools
import hashlib
import numbers
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..contact import AbstractContactSolver, SemismoothNewton
from ..mechanics.results import Outcome
from ..mechanics.system import System
from ..programs.fingerprint import fingerprint
from ..programs.given import calling, shown, takes
from ..schemes.base import Scheme
from ..schemes.moreau import Moreau
from ..simulation import checks, system_checks
from . import motion
from .data import FreeState, Trajectory, Windows
from .robust import Robust, cost_and_weights
from .unknowns import Unknowns

#: Problems whose compiled programs are kept, those that were posed last.
KEPT = 8

_programs, _lock = collections.OrderedDict(), threading.Lock()

#: Deviation of a free state, in units of the noise, from which on its prior says next to nothing beside the measurement.
LOOSE = 10


class Parts(NamedTuple):
    """The tree whose leaves may be fitted, where there are measurement parameters."""

    system: Any
    measurement: Any


@dataclass(frozen=True)
class Settings:
    """How motions are simulated."""

    scheme: Scheme
    dt: float
    solver: AbstractContactSolver
    sensitivity: str


#: Functions of a problem, and their arguments.
FUNCTIONS = {
    "measure": "t, q, u, measurement",
    "when": "t, measurement",
    "residual": "predicted, y",
    "initial": "q0, u0, t, y, measurement",
}


class Problem:
    """A system, what of it is unknown, and measured trajectories.

    system:       a `System` whose leaves hold known parameters and first guesses; or, with ``build``, any pytree of parameters
    data:         a `Trajectory` or a list of them, all with the same number m of columns
    fit:          what is unknown: names of leaves, a dict ``{name: transform}``, a function that picks leaves, or a mask; see `Unknowns`.
                  Measurement parameters are called ``measurement.delay`` and so on
    dt:           step of the simulation in s. Frames need not lie on steps: between them a motion is interpolated, up to
                  impacts and from them on where the scheme locates these
    scheme:       default `Moreau()`, of first order: smooth motions, and those with impacts far from each other, are told better by
                  `LocatedImpacts(MoreauJean())`
    build:        function of the pytree ``system`` that makes the `System`, where its fields are functions of fewer unknowns
    measure:      ``measure(t, q, u, measurement) -> (m,)``, what is observed of a state; default: q and u, as many as there are columns
    measurement:  pytree of the parameters of the measurement: a scale, an offset, a frame
    when:         ``when(t, measurement)``, the time of the motion that a frame at t shows, ``lambda t, m: t - m["delay"]``. Before the
                  initial time a motion goes on with the initial velocity
    residual:     ``residual(predicted, y) -> (k,)`` in place of ``predicted - y``: for angles and orientations
    initial:      ``initial(q0, u0, t, y, measurement) -> (q0, u0)``: the initial state that the given one is taken for
    free_state:   `FreeState`: initial states are unknown as well
    windows:      `Windows`, `OneStep()`, `MultipleShooting(...)`; default None: whole trajectories
    noise:        standard deviation of a residual: a number or (k,); or a covariance (k, k). A common factor is estimated
    robust:       `Robust` loss; default None: squares
    horizon:      from the first frame on whose derivative is this many times the typical one, a trajectory takes no part in a step of
                  `LevenbergMarquardt`, though it does in the loss: past a nearly grazing impact, or once chaos has grown, a linear model
                  holds for tiny changes only, and would outweigh all others. Typical is what the derivatives of all frames are, before
                  weights, or what they would have grown to with the cube of time: of a fall they grow with its square. Trajectories
                  in which an unknown does less than others by as much are not typical of it
    columns:      names of the columns of y with their units, for pictures: ``("height in m",)``; default: those of coordinates and
                  velocities where measure is left out and the system has them, else y_0, y_1, ...
    solver, sensitivity:  those of `simulate`

    A problem that computes the same as one before compiles nothing: with other data of the same shapes a fit takes as long as it computes,
    with `with_data` and posed anew.
    """

    def __init__(
        self,
        system: Any,
        data: Trajectory | Sequence[Trajectory],
        *,
        fit: Any,
        dt: float,
        scheme: Scheme | None = None,
        build: Callable | None = None,
        measure: Callable | None = None,
        measurement: Any = None,
        when: Callable | None = None,
        residual: Callable | None = None,
        initial: Callable | None = None,
        free_state: FreeState | None = None,
        windows: Windows | None = None,
        noise: Any = 1.0,
        robust: Robust | None = None,
        horizon: float = 1e3,
        columns: Sequence[str] | None = None,
        solver: AbstractContactSolver | None = None,
        sensitivity: str = "saltation",
    ) -> None:
        self.data = _data(data)
        self.names = _names(self.data)
        solver = SemismoothNewton() if solver is None else solver
        scheme = Moreau() if scheme is None else scheme
        checks.options(scheme, solver, 1, sensitivity, None)
        if isinstance(dt, bool) or not (isinstance(dt, (int, float, np.floating)) and dt > 0 and np.isfinite(dt)):
            raise ValueError(f"identify: dt must be a positive number in seconds, got {dt!r}")
        if build is None and not isinstance(system, System):
            raise TypeError(f"identify: system must be a system such as BouncingBall(), or what build makes one of, got {shown(system)}")
        if build is not None:
            takes("identify: build", build, "parameters")
        self.settings = Settings(scheme, float(dt), solver, sensitivity)
        self.build = build or (lambda parameters: parameters)
        self.given = system if measurement is None else Parts(system, measurement)
        self.unknowns = Unknowns(self.given, fit)
        self.measure = measure or functools.partial(_states, self.data[0].y.shape[1])
        self.when = when or (lambda t, measurement: t)
        self.residual = residual or _difference
        self.initial = initial or (lambda q0, u0, t, y, measurement: (q0, u0))
        for name, arguments in FUNCTIONS.items():
            takes(f"identify: {name}", getattr(self, name), arguments)
        for name, value, of in (("free_state", free_state, FreeState), ("windows", windows, Windows), ("robust", robust, Robust)):
            if value is not None and not isinstance(value, of):
                raise TypeError(f"identify: {name} must be an identify.{of.__name__}(...), got {shown(value)}")
        if windows is not None and free_state is not None:
            raise ValueError("identify: the free states of windows are Windows(..., free=...); leave free_state out")
        if not (isinstance(horizon, numbers.Real) and horizon > 1):
            raise ValueError(f"identify: horizon must be greater than one, got {horizon!r}")
        self.windows, self.robust, self.horizon = windows, robust, float(horizon)
        self.columns = self._columns(columns, measure is None)
        self.free = free_state if windows is None else windows.free
        self._start(noise, when is not None)

    def __repr__(self) -> str:
        """One line: what is fitted, to what."""
        n, m, frames = len(self.data), len(self.columns), sum(len(part.t) for part in self.data)
        kind = type(self.parts(self.unknowns.first())[0]).__name__
        what = f"{n} trajector{'y' if n == 1 else 'ies'} of {frames} frames with {m} column{'' if m == 1 else 's'}"
        return f"Problem({kind}, {what}, fit: {', '.join(self.unknowns.labels)}, {self.settings.scheme!r}, dt = {self.settings.dt:g})"

    def _columns(self, columns, states):
        """Names of the columns of y."""
        m = self.data[0].y.shape[1]
        if columns is not None:
            columns = tuple(columns) if isinstance(columns, Sequence | np.ndarray) and not isinstance(columns, str) else (columns,)
            if len(columns) != m or not all(isinstance(name, str) for name in columns):
                raise ValueError(f"identify: columns must be {m} strings, one for each column of y, got {columns!r}")
            return columns
        system = self.parts(self.unknowns.first())[0]
        known = (*(getattr(system, "coordinate_names", None) or ()), *(getattr(system, "velocity_names", None) or ()))
        return known[:m] if states and len(known) >= m else tuple(f"$y_{{{i}}}$" for i in range(m))

    def _start(self, noise, shifted):
        """What follows from the arguments: the items, checks by a first evaluation of shapes, the size of everything."""
        system, measurement = self.parts(self.unknowns.first())
        first = self.data[0]
        q0, u0 = jnp.asarray(first.q0), jnp.asarray(first.u0)
        system_checks.system(system, self.settings.scheme, first.t0, first.t0 + 10 * self.settings.dt, self.settings.dt, q0, u0, own=True)
        system_checks.solver_takes(system, self.settings.solver)
        y = jnp.zeros(first.y.shape[1])
        with calling("identify: measure(t, q, u, measurement)"):
            predicted = jax.eval_shape(lambda: self.measure(jnp.zeros(()), q0, u0, measurement))
        if not hasattr(predicted, "shape"):
            raise TypeError(f"identify: measure(t, q, u, measurement) must return an array, got {shown(predicted)}")
        with calling("identify: residual(predicted, y)", f" for y of shape {y.shape}"):
            row = jax.eval_shape(lambda: self.residual(jnp.zeros(predicted.shape), y))
        if len(row.shape) != 1:
            raise ValueError(f"identify: residual(predicted, y) must have one axis, got shape {row.shape}")
        self.k = row.shape[0]
        self.covariance = _covariance(noise, self.k)
        #: One is what is taken where nobody says anything.
        self.noise_given = not (np.ndim(noise) == 0 and noise == 1.0)
        self.columnwise = row.shape == y.shape and self._is_columnwise(system, measurement)
        self.sigma = None
        if self.free is not None:
            n_u = len(first.u0)
            for name in ("sigma_q", "sigma_u"):
                if len(getattr(self.free, name)) not in (1, n_u):
                    raise ValueError(f"identify: FreeState: {name} must be a scalar or ({n_u},), got {getattr(self.free, name)}")
            wide = [np.broadcast_to(np.asarray(sigma), (n_u,)) for sigma in (self.free.sigma_q, self.free.sigma_u)]
            self.sigma = np.concatenate(wide)
        self.n_local = 0 if self.sigma is None else self.sigma.size
        self.joined = self.windows is not None and self.windows.continuity is not None
        if self.joined:
            self._warn_of_what_counts_twice()
        self.items = self._made_items()
        self._check_functions(q0, u0, measurement)
        self.shifted = shifted
        self.n_steps = self._steps(measurement)
        self.programs = self._shared_programs()

    def _shared_programs(self):
        """What is compiled of problems that compute the same, however often they are posed: a dict to be filled.

        Data are arguments of a program; all else that is read while it is traced tells it apart.
        """
        unknowns, free = self.unknowns, (self.sigma, self.n_local, self.joined, self.windows and self.windows.continuity)
        functions = self.build, self.measure, self.when, self.residual, self.initial
        numbers = self.settings, self.horizon, self.robust, self.k, self.covariance, self.n_steps, free
        try:
            # The same functions in another precision are other programs.
            key = fingerprint(functions, numbers, unknowns.structure, unknowns.list, unknowns.others(), jax.config.jax_enable_x64)
        except TypeError:
            return {}
        with _lock:
            programs = _programs.setdefault(key, {})
            _programs.move_to_end(key)
            while len(_programs) > KEPT:
                _programs.popitem(last=False)
            return programs

    def _warn_of_what_counts_twice(self):
        """Where windows start from free states about the numbers that are compared anyway: their prior has to be loose."""
        one, n = self.data[0], len(self.data[0].u0)
        if one.q is None or one.u is None or one.q.shape[1] != n:
            return
        noise = np.sqrt(np.diag(self.covariance)) if self.columnwise else np.zeros(one.y.shape[1])
        for k, state in enumerate(np.concatenate([one.q, one.u], axis=1).T):
            for j, y in enumerate(one.y.T):
                seen = one.mask[:, j] & np.isfinite(state)
                if seen.any() and np.array_equal(y[seen], state[seen]) and 0 < self.sigma[k] < LOOSE * noise[j]:
                    name = f"{'qu'[k // n]}[{k % n}]"
                    warnings.warn(
                        f"identify: windows start from free states about the measured {name}, which is compared as column {j} of y too: "
                        f"with a deviation of {self.sigma[k]:.3g} it counts twice, and standard errors are too small; give FreeState "
                        f"{LOOSE} times the noise",
                        stacklevel=4,
                    )

    def _check_functions(self, q0, u0, measurement):
        """The shapes that `when` and `initial` return."""
        t, y = jnp.asarray(self.items["t"][0]), jnp.asarray(self.items["y"][0])
        with calling("identify: when(t, measurement)"):
            when = jax.eval_shape(lambda: jnp.asarray(self.when(t[0], measurement)))
        with calling("identify: initial(q0, u0, t, y, measurement)"):
            initial = jax.eval_shape(lambda: tuple(map(jnp.asarray, self.initial(q0, u0, t, y, measurement))))
        if when.shape != ():
            raise ValueError(f"identify: when(t, measurement) must return one time, got shape {when.shape}")
        if [x.shape for x in initial] != [q0.shape, u0.shape]:
            raise ValueError(
                f"identify: initial(q0, u0, t, y, measurement) must return q0 {q0.shape} and u0 {u0.shape}, got {shown(initial)}"
            )

    def _is_columnwise(self, system, measurement):
        """Whether entry j of the residual depends on column j of y alone, so that what is missing of a frame leaves the other entries."""
        first = self.data[0]
        # Beside what was measured: where a residual is zero, so may be derivatives that elsewhere are not.
        y = _filled(first)[0]
        y = jnp.asarray(y + 0.1 * (1 + np.abs(y)) * np.random.default_rng(0).normal(size=y.shape))
        predicted = jnp.asarray(self.measure(jnp.asarray(first.t0), jnp.asarray(first.q0), jnp.asarray(first.u0), measurement))
        J = np.asarray(jax.jacfwd(lambda y: self.residual(predicted, y))(y))
        return not np.any(J[~np.eye(self.k, dtype=bool)])

    def _made_items(self):
        """`_items`, and how they are whitened: ``root`` (items, F, k), roots of the weights, zero where there is nothing to compare.

        Where residuals of a frame are correlated, ``whiten`` (items, F, k, k) as well: of what a frame has, by its part of the covariance.
        """
        items = _items(self.data, self.windows)
        weights = items.pop("weights")
        compared = items["mask"] & (weights > 0)
        if not self.columnwise:
            compared, weights = np.all(compared, axis=2, keepdims=True), np.mean(weights, axis=2, keepdims=True)
        compared, weights = (np.broadcast_to(x, (*x.shape[:2], self.k)) for x in (compared, weights))
        items["root"] = np.where(compared, np.sqrt(weights), 0.0)
        if not compared.any():
            raise ValueError(
                "identify: there is nothing to compare with: every entry of every trajectory is masked, not finite, or weighs nothing"
            )
        if np.any(self.covariance[~np.eye(self.k, dtype=bool)]):
            patterns, which = np.unique(compared.reshape(-1, self.k), axis=0, return_inverse=True)
            table = np.stack([_whitening(self.covariance, pattern) for pattern in patterns])
            items["whiten"] = table[which.reshape(compared.shape[:2])]
        return items

    def _steps(self, measurement):
        """Steps of the longest item, with room for what `when` may come to ask for."""
        span = np.max(np.max(self.items["t"], axis=1) - self.items["t0"])
        latest, dtype = np.max(np.abs(self.items["t"])), jnp.zeros(()).dtype
        if np.spacing(latest.astype(dtype)) > 0.01 * self.settings.dt:
            raise ValueError(
                f"identify: times up to {latest:.6g} s are {np.spacing(latest.astype(dtype)):.2g} s apart in {dtype}, too far for "
                f"dt = {self.settings.dt:g} s: count time from the start of a trajectory"
            )
        if self.shifted:
            moved = [np.max(np.abs(np.asarray(jax.vmap(lambda t: self.when(t, measurement))(jnp.asarray(x.t))) - x.t)) for x in self.data]
            interval = max(np.median(np.diff(x.t)) if len(x) > 1 else self.settings.dt for x in self.data)
            span += 2 * float(np.max(moved)) + 10 * float(interval)
        return int(np.ceil(span / self.settings.dt)) + 1

    def with_data(self, data: Trajectory | Sequence[Trajectory], system: Any = None) -> "Problem":
        """The same problem for other data, and with other first guesses; what is compiled is shared where the data are no longer."""
        new = copy.copy(self)
        new.data = _data(data)
        new.names = _names(new.data)
        if [x.shape for x in (self.data[0].q0, self.data[0].u0)] != [x.shape for x in (new.data[0].q0, new.data[0].u0)]:
            raise ValueError("identify: with_data takes data of the same system, got initial states of another shape")
        columns = [problem.data[0].y.shape[1] for problem in (self, new)]
        if columns[0] != columns[1]:
            raise ValueError(f"identify: with_data takes data with as many columns of y, {columns[0]}, got {columns[1]}")
        new.items = new._made_items()
        for name in ("count", "fingerprint"):
            new.__dict__.pop(name, None)
        steps = new._steps(self.parts(self.unknowns.first())[1])
        new.n_steps = max(steps, self.n_steps)
        if system is not None:
            given = self.given._replace(system=system) if isinstance(self.given, Parts) else system
            new.given, new.unknowns = given, self.unknowns.moved(given)
        if system is not None or steps > self.n_steps:
            new.programs = new._shared_programs()
        return new

    @property
    def size(self) -> int:
        """Number of coordinates z of the unknowns."""
        return self.unknowns.size

    def parts(self, z: Any) -> tuple[Any, Any]:
        """``(system, measurement)`` of the unknowns z."""
        tree = self.unknowns.tree(z)
        if isinstance(self.given, Parts):
            return self.build(tree.system), tree.measurement
        return self.build(tree), None

    # ------------------------------------------------------------------------------------------------- one item, traced
    def state(self, z: jax.Array, local: jax.Array, item: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        """Initial state of an item, a trajectory or a window of one."""
        system, measurement = self.parts(z)
        q0, u0 = self.initial(item["q0"], item["u0"], item["t"], item["y"], measurement)
        if self.n_local:
            q0, u0 = motion.displaced(system, item["t0"], q0, u0, jnp.asarray(self.sigma) * local)
        return q0, u0

    def predicted(self, z: jax.Array, local: jax.Array, item: dict[str, jax.Array]) -> tuple[Any, ...]:
        """``(predicted (F, m), q (F, n_q), u (F, n_u), outcome, state at the last frame)`` of an item."""
        system, measurement = self.parts(z)
        q0, u0 = self.state(z, local, item)
        x = jax.vmap(lambda t: self.when(t, measurement))(item["t"]) - item["t0"]
        shown = jnp.any(item["mask"], axis=1)
        dt = jnp.asarray(self.settings.dt, q0.dtype)
        last = lax.stop_gradient(jnp.maximum(jnp.max(jnp.where(shown, x, 0)), item["length"]))
        path, outcome = motion.nodes(self.settings, system, item["t0"], q0, u0, self.n_steps, last)
        # Frames without data may lie beyond what was computed. The last one with data does not: a minimum would halve its derivative.
        x = jnp.where(x > last, last, x)
        at_frames = motion.at_times(x, dt, path)
        end = [h[0] for h in motion.at_times(item["length"][None], dt, path)]
        outcome = jnp.where(last > (path.q.shape[0] - 1) * dt, float(Outcome.NON_FINITE), outcome)
        y = jax.vmap(lambda t, q, u: self.measure(t, q, u, measurement))(item["t0"] + x, *at_frames)
        return y, *at_frames, outcome, end

    def residuals(
        self, z: jax.Array, local: jax.Array, following: jax.Array, item: dict[str, jax.Array]
    ) -> tuple[jax.Array, jax.Array, jax.Array, dict[str, jax.Array]]:
        """``(r (F, k), further rows (E,), ok, shown)`` of an item; ``following`` is the local part of the window after it."""
        y, q_at, u_at, outcome, (q, u) = self.predicted(z, local, item)
        # What was not measured is zero before it is whitened: with correlated noise it would spoil the rest of its frame.
        root = item["root"]
        r = jnp.where(root > 0, jax.vmap(self.residual)(y, item["y"]), 0)
        if "whiten" in item:
            r = root * jnp.einsum("fij,fj->fi", item["whiten"], r)
        else:
            r = root / jnp.asarray(np.sqrt(np.diag(self.covariance)), r.dtype)[None, :] * r
        rows = [local * (self.sigma > 0)] if self.n_local else []
        if self.joined:
            after = item | {"q0": item["q1"], "u0": item["u1"]}
            q1, u1 = self.state(z, following, after)
            sigma_q, sigma_u = self.windows.continuity
            rows += [item["joined"] * (q - q1) / sigma_q, item["joined"] * (u - u1) / sigma_u]
        rows = jnp.concatenate(rows) if rows else jnp.zeros((0,), r.dtype)
        ok = (outcome == 0) & jnp.all(jnp.isfinite(r)) & jnp.all(jnp.isfinite(rows))
        return r, rows, ok, {"predicted": y, "q": q_at, "u": u_at, "outcome": outcome}

    def cost(self, z: jax.Array, local: jax.Array, following: jax.Array, item: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        """``(cost, ok)`` of an item."""
        r, rows, ok, _ = self.residuals(z, local, following, item)
        cost = cost_and_weights(self.robust, r)[0] + 0.5 * jnp.sum(rows**2)
        return cost, ok & jnp.isfinite(cost)

    def linearized(
        self, z: jax.Array, local: jax.Array, following: jax.Array, item: dict[str, jax.Array], limit: jax.Array
    ) -> dict[str, jax.Array]:
        """Cost, gradient and Gauss-Newton matrix of an item in (z, local, following), as a dict; and what joined windows have part in them.

        ``H`` is that without joints, whose rows are ``J_joined``: in single precision tight ones would leave nothing of it in a sum.

        Frames from the first on whose derivative exceeds ``limit``, in any of its columns, take no part; there are ``lost`` of them, and
        the others are ``kept`` (F,).
        ``typical`` (2, columns): the size of the derivative of the median frame, and of the median of what it would have grown to over the
        longest time with its cube; zero where there is none. ``limit`` consists of two such rows, of which the larger holds. What has
        come to rest is not typical: frames whose derivatives have faded, against earlier ones, by as much as others may grow.
        """
        p, n = z.size, local.size

        def rows(x):
            r, further, ok, _ = self.residuals(x[:p], x[p : p + n], x[p + n :], item)
            flat = jnp.concatenate([r.ravel(), further])
            return flat, (r, further, ok)

        J, (r, further, ok) = jax.jacfwd(rows, has_aux=True)(jnp.concatenate([z, local, following]))
        frames, k = r.shape
        # Before weights, which say how well a frame is known and not how its motion depends on the unknowns.
        root = item["root"][:, :, None]
        size = jnp.max(jnp.where(root > 0, jnp.abs(J[: r.size]).reshape(frames, k, -1) / jnp.where(root > 0, root, 1), 0), axis=1)
        grown = (jnp.abs(item["t"] - item["t0"]) / (self.n_steps * self.settings.dt))[:, None] ** 3
        sizes = jnp.stack([size, size / grown])
        before = lax.cummax(jnp.where(jnp.isfinite(size), size, 0))
        told = (size > before / self.horizon)[None] & jnp.isfinite(sizes)
        typical = jnp.nan_to_num(jnp.nanmedian(jnp.where(told, sizes, jnp.nan), axis=1))
        # At the start there is nothing to grow from: zero times infinity.
        limit = jnp.fmax(limit[:1], limit[1:] * grown)
        kept = jnp.cumsum(jnp.any(~(size <= limit), axis=1)) == 0
        lost = jnp.sum(jnp.any(item["mask"], axis=1) & ~kept)
        cost, weights = cost_and_weights(self.robust, r)
        weights = jnp.concatenate([(weights * kept[:, None]).ravel(), jnp.where(jnp.all(kept), 1, 0) * jnp.ones_like(further)])
        if self.n_local:
            weights = weights.at[r.size : r.size + n].set(1.0)  # a prior is always known
        flat = jnp.concatenate([r.ravel(), further])
        J = jnp.where(jnp.isfinite(J) & (weights > 0)[:, None], J, 0)
        at = r.size + n
        H, g = J[:at].T @ (weights[:at, None] * J[:at]), J.T @ (weights * flat)
        cost = cost + 0.5 * jnp.sum(further**2)
        ok = ok & jnp.isfinite(cost) & jnp.all(jnp.isfinite(g))
        out = {"cost": cost, "ok": ok, "H": H, "g": g, "lost": lost, "kept": kept, "typical": typical}
        if self.joined:
            # They count or not: weights are one or zero, and of rows that do not J is zero.
            joined = {"cost_joined": 0.5 * jnp.sum(flat[at:] ** 2), "J_joined": J[at:], "g_joined": J[at:].T @ flat[at:]}
            return out | joined
        return out

    def descended(self, z: jax.Array, local: jax.Array, following: jax.Array, item: dict[str, jax.Array]) -> dict[str, jax.Array]:
        """Cost and gradient of an item by reverse mode, as a dict: for many unknowns."""
        (cost, ok), g = jax.value_and_grad(self.cost, argnums=(0, 1, 2), has_aux=True)(z, local, following, item)
        g = jnp.concatenate(g)
        return {"cost": cost, "ok": ok & jnp.all(jnp.isfinite(g)), "g": g, "lost": jnp.zeros((), int)}

    @functools.cached_property
    def loosest(self) -> float:
        """By what factor windows may miss each other so that they are joined no tighter than each of their states is known."""
        if not self.joined:
            return 1.0
        n = len(self.sigma) // 2
        return max(
            1.0, *(np.max(part) / sigma for part, sigma in zip((self.sigma[:n], self.sigma[n:]), self.windows.continuity, strict=True))
        )

    @functools.cached_property
    def count(self) -> np.ndarray:
        """Number of residuals that are compared, of every item."""
        return (self.items["root"] > 0).sum((1, 2))

    @functools.cached_property
    def fingerprint(self) -> str:
        """Of the data and the unknowns: where it is the same, a fit can be resumed."""
        found = hashlib.sha256(repr([(x.name, x.shape, repr(x.transform)) for x in self.unknowns.list]).encode())
        for name in sorted(self.items):
            found.update(name.encode() + np.ascontiguousarray(self.items[name]).tobytes())
        return found.hexdigest()


def _states(columns, t, q, u, measurement):
    """As many entries of the state as there are columns."""
    del t, measurement
    return jnp.concatenate([q, u])[:columns]


def _difference(predicted, y):
    # One number against several columns would be compared with each of them.
    if predicted.shape != y.shape:
        raise ValueError(f"what is measured must have the shape of y, {y.shape}, got {predicted.shape}")
    return predicted - y


def _data(data):
    """Trajectories as a list, checked."""
    data = [data] if isinstance(data, Trajectory) else list(data) if isinstance(data, Sequence) else data
    if not isinstance(data, list) or not data or not all(isinstance(one, Trajectory) for one in data):
        raise TypeError(f"identify: data must be an identify.Trajectory or a list of them, got {shown(data)}")
    for name, of in (("columns of y", lambda one: one.y.shape[1]), ("q0", lambda one: one.q0.shape), ("u0", lambda one: one.u0.shape)):
        sizes = sorted({of(one) for one in data}, key=str)
        if len(sizes) > 1:
            raise ValueError(f"identify: all trajectories must have the same {name}, got {sizes}; mask what one of them did not measure")
    return data


def _names(data):
    names = [one.name or f"trajectory {k}" for k, one in enumerate(data)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"identify: names of trajectories must differ, got {', '.join(twice)} more than once")
    return names


def _covariance(noise, k):
    """Covariance (k, k) of a residual."""
    given = noise
    try:
        noise = np.asarray(noise, float)
    except (TypeError, ValueError):
        raise TypeError(f"identify: noise must be a number, ({k},) standard deviations or a covariance ({k}, {k}), got {noise!r}") from None
    if noise.ndim < 2:
        if noise.shape not in ((), (1,), (k,)) or not np.all(noise > 0) or not np.all(np.isfinite(noise)):
            raise ValueError(f"identify: noise must be positive, one number or ({k},) standard deviations, got {shown(given)}")
        return np.diag(np.broadcast_to(noise, (k,)) ** 2)
    # Units may differ by many powers of ten: judged is the correlation.
    size = np.sqrt(np.abs(np.diag(noise))) if noise.shape == (k, k) and np.all(np.isfinite(noise)) else np.zeros(k)
    correlation = noise / np.outer(size, size) if np.all(size > 0) else -np.eye(k)
    if not np.allclose(correlation, correlation.T) or np.linalg.eigvalsh(correlation)[0] <= 0:
        raise ValueError(f"identify: noise as a covariance must be symmetric positive definite ({k}, {k}), got {noise.tolist()}")
    return noise


def _whitening(covariance, shown):
    """Matrix (k, k) that makes the entries of a residual that are ``shown`` (k,) ones of unit covariance, the others being zero."""
    out = np.zeros_like(covariance)
    if shown.any():
        part = np.ix_(shown, shown)
        out[part] = np.linalg.inv(np.linalg.cholesky(covariance[part]))
    return out


def _filled(one):
    """Measurements (N, m) of a trajectory, where those that are missing are the last ones before, or the first: no residual of one's own
    meets what nobody measured, such as a quaternion of zeros, whose derivative is NaN. A column without any is zero."""
    last = np.maximum.accumulate(np.where(one.mask, np.arange(len(one))[:, None], -1), axis=0)
    known = np.where(last < 0, np.argmax(one.mask, axis=0), last)
    return np.take_along_axis(np.where(one.mask, one.y, 0.0), known, axis=0)


def _starts(one, frames):
    """Frames from which windows start, so many after each other, or more where the state there was not measured."""
    starts, known = [], np.all(np.isfinite(one.q), axis=1) & np.all(np.isfinite(one.u), axis=1)
    for i in np.flatnonzero(known[:-1]):
        if not starts or i >= starts[-1] + frames:
            starts.append(int(i))
    return starts


def _items(data, windows):
    """What is simulated on its own, whole trajectories or windows, side by side: arrays with one axis more, padded with masked frames."""
    rows = []
    for k, one in enumerate(data):
        if windows is None:
            rows.append({"owner": k, "frames": slice(0, len(one)), "q0": one.q0, "u0": one.u0, "t0": one.t0, "length": 0.0})
            continue
        if one.q is None or one.u is None:
            raise ValueError(f"identify: windows start from measured states: Trajectory {one.name!r} needs q and u")
        if len(one) < 2:
            raise ValueError(f"identify: a window has two frames at least: Trajectory {one.name!r} has {len(one)}")
        starts = _starts(one, windows.frames)
        if not starts:
            raise ValueError(f"identify: Trajectory {one.name!r} has no finite state to start a window from")
        for n, i in enumerate(starts):
            last = starts[n + 1] if n + 1 < len(starts) else len(one) - 1
            # A state that is free is itself compared with its measurement.
            first = i if windows.free is not None and n == 0 else i + 1
            row = {"owner": k, "frames": slice(first, last + 1), "q0": one.q[i], "u0": one.u[i], "t0": one.t[i]}
            joined = n + 1 < len(starts) and windows.continuity is not None
            follows = starts[n + 1] if joined else i
            rows.append(row | {"length": one.t[last] - one.t[i], "joined": joined, "q1": one.q[follows], "u1": one.u[follows]})
    frames = max(row["frames"].stop - row["frames"].start for row in rows)
    filled = [_filled(one) for one in data]

    def padded(row, name, fill):
        part = (filled[row["owner"]] if name == "y" else getattr(data[row["owner"]], name))[row["frames"]]
        return np.concatenate([part, np.broadcast_to(fill(part), (frames - len(part), *part.shape[1:]))])

    items = {
        "t": np.stack([padded(row, "t", lambda part: part[-1:]) for row in rows]),
        "y": np.stack([padded(row, "y", lambda part: part[-1:]) for row in rows]),
        "mask": np.stack([padded(row, "mask", lambda part: np.zeros_like(part[-1:])) for row in rows]),
        "weights": np.stack([padded(row, "weights", lambda part: part[-1:]) for row in rows]),
    }
    for name in rows[0].keys() - {"frames"}:
        items[name] = np.stack([np.asarray(row[name], int if name == "owner" else float) for row in rows])
    return items
