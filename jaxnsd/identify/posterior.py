"""Posterior: draws of the unknowns by Hamiltonian Monte Carlo, for where a Gaussian about the estimate says too little."""

import numbers
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from ..programs import interrupts
from ..programs import progress as bars
from . import convergence
from .evaluate import Evaluator, Point
from .fit import check_seed
from .result import Result
from .solvers import REVERSE
from .transforms import Bounded

#: Above this R-hat chains are said to disagree, and below so many independent draws of a chain they are said to be few (Vehtari et al.,
#: Bayesian Analysis 16 (2021) 667).
R_HAT, FEW = 1.01, 100

#: Chains start this many standard deviations about the mode, so that they come from outside of what they are to find.
OVERDISPERSED = 2.0

#: Fewer draws of a chain than this cannot be compared.
LEAST = 8

#: Phases: the step size alone is adapted; the scales are as well; their window ends; nothing is.
FAST, SLOW, LAST, DRAW = range(4)


@dataclass(frozen=True, eq=False, repr=False)
class Posterior:
    """Draws from the posterior, see `posterior`.

    ====================  ======================================================================================================
    ``labels``            names of the entries, as in `Result`: n of them
    ``samples``           (chains, draws, n), in their own units
    ``z``                 (chains, draws, p), coordinates: ``problem.parts(z)`` makes the system and the measurement of one draw
    ``local``             (chains, draws, items, n_local), free initial states in standard deviations, as `Problem.state` takes them
    ``log_density``       (chains, draws), of the draws in z, up to a constant
    ``r_hat``             (n,), rank-normalized and split; ``effective`` (n,): independent draws that those of the bulk are worth,
                          ``effective_tail`` (n,): those beyond the quantiles at 5 and 95 %
    ``divergent``         (chains, draws): where a path of the sampler came to what cannot be simulated, or where its steps were too long
    ``step_sizes``        (chains,); ``evaluations``: of the density and its gradient, warm-up not counted
    ``noise_scale``       that of the likelihood
    ``warnings``          sentences on whether the draws can be trusted; ``interrupted``: there are fewer than were asked for
    ====================  ======================================================================================================
    """

    problem: Any
    z: np.ndarray
    local: np.ndarray
    samples: np.ndarray
    log_density: np.ndarray
    r_hat: np.ndarray
    effective: np.ndarray
    effective_tail: np.ndarray
    divergent: np.ndarray
    step_sizes: np.ndarray
    evaluations: int
    noise_scale: float
    warnings: tuple[str, ...]
    interrupted: bool

    @property
    def labels(self) -> list[str]:
        """Names of the entries of what was sampled."""
        return self.problem.unknowns.labels

    @property
    def values(self) -> dict:
        """Draws of the leaves by name, (chains, draws, ...)."""
        out, at = {}, 0
        for x in self.problem.unknowns.list:
            n = int(np.prod(x.shape))
            out[x.name] = self.samples[..., at : at + n].reshape(*self.samples.shape[:2], *x.shape)
            at += n
        return out

    @property
    def mean(self) -> np.ndarray:
        """(n,)."""
        return self._flat.mean(0)

    @property
    def standard_deviations(self) -> np.ndarray:
        """(n,)."""
        return self._flat.std(0, ddof=1)

    @property
    def covariance(self) -> np.ndarray:
        """(n, n)."""
        return np.cov(self._flat.T).reshape(len(self.labels), -1)

    @property
    def intervals(self) -> np.ndarray:
        """(n, 2), from the quantile at 2.5 % to that at 97.5 %."""
        return self.quantiles([0.025, 0.975])

    def quantiles(self, levels: ArrayLike) -> np.ndarray:
        """(n, levels)."""
        return np.quantile(self._flat, levels, axis=0).T

    @property
    def _flat(self):
        return self.samples.reshape(-1, self.samples.shape[2])

    def dataset(self) -> Any:
        """The draws as an `xarray.Dataset`: leaves by name with dimensions ``chain`` and ``draw``, as ArviZ takes them (needs xarray)."""
        try:
            import xarray
        except ImportError as error:
            raise ImportError("Posterior.dataset() needs xarray: pip install xarray") from error
        dims = ("chain", "draw")
        leaves = {name: ((*dims, *(f"{name}_dim_{k}" for k in range(x.ndim - 2))), x) for name, x in self.values.items()}
        further = {"log_density": (dims, self.log_density), "divergent": (dims, self.divergent)}
        chains, draws = self.log_density.shape
        return xarray.Dataset(leaves | further, coords={"chain": np.arange(chains), "draw": np.arange(draws)})

    def __str__(self):
        wide = max(20, *map(len, self.labels))
        lines = [f"{'parameter':<{wide}}       mean   standard deviation   95 % interval          R-hat   effective draws"]
        rows = zip(self.labels, self.mean, self.standard_deviations, *self.intervals.T, self.r_hat, self.effective, strict=True)
        for label, mean, sd, low, high, r_hat, effective in rows:
            lines.append(f"{label:<{wide}} {mean:10.5g}   {sd:18.2g}   {f'{low:.5g} to {high:.5g}':<20}   {r_hat:5.3f}   {effective:.0f}")
        chains, draws = self.log_density.shape
        lines.append(f"{chains} chains of {draws} draws, {self.evaluations} evaluations; noise {self.noise_scale:.3g} times what was given")
        return "\n".join(lines + [f"warning: {text}" for text in self.warnings])

    __repr__ = __str__


def posterior(
    result: Result,
    *,
    prior: Callable | None = None,
    noise_scale: float | None = None,
    chains: int = 4,
    draws: int = 500,
    warmup: int = 300,
    acceptance: float = 0.8,
    seed: int = 0,
    progress: bool = False,
) -> Posterior:
    """`Posterior` of the problem of a `Result`, by the No-U-Turn sampler with adapted windows of blackjax (extra ``[posterior]``).

    The density of the parameters is ``prior exp(-C / noise_scale^2)`` with the cost C of the problem over the trajectories that were
    fitted: residuals are Gaussian, or, with a robust loss, as that has it, calibrated as `Result.covariance` is. Free initial states
    have the Gaussian priors of `FreeState` and are drawn as well, as are those of windows, which their joints tie together.

    prior:        logarithm of the density, up to a constant, of the dict of the leaves by name, as `Result.estimate` has it; traced.
                  Default None: flat over the leaves themselves, not over their coordinates z, within the bounds of their transforms
                  (of a symmetric matrix over its independent entries). Over what has no bounds a flat prior is improper: where the
                  likelihood does not fall to zero either, as that of a friction above which all sticks, there is no posterior
    noise_scale:  by what factor the noise is larger than that of the problem; held. Default None: ``result.noise_scale``; 1.0 takes the
                  noise of the problem as known
    chains:       several, so that they can be compared. On a CPU each has a thread, on an accelerator they go in lockstep
    draws:        of each chain, after ``warmup`` steps that adapt the step size to the ``acceptance`` rate, and the scales. They start
                  from the Gaussian about the mode in z, with twice its standard deviations
    seed, progress:  of the random numbers; show a bar

    What cannot be simulated has the density zero. Trajectories that failed in the fit are left out, and named in the warnings. Ctrl-C
    ends the draws, what there is by then is returned; in the warm-up it raises KeyboardInterrupt.
    Raises ValueError for parameters that the data do not determine, which have neither a prior nor bounds; where there is no noise
    scale; and for arguments that make no sense.
    """
    try:
        from blackjax.adaptation.window_adaptation import build_schedule
    except ImportError as error:
        raise ImportError("identify.posterior needs blackjax: pip install blackjax") from error
    scale = _checked(result, prior, noise_scale, {"chains": (chains, 2), "draws": (draws, LEAST), "warmup": (warmup, 1)}, acceptance)
    check_seed("identify.posterior", seed)
    density = _Density(result, prior, scale)
    mode, factor = density.gaussian()
    states = _starts(density, mode, factor, OVERDISPERSED * np.random.default_rng(seed).normal(size=(chains, mode.size)))
    phases = [FAST if not slow else LAST if end else SLOW for slow, end in np.asarray(build_schedule(warmup))] + [DRAW] * draws

    bar = bars.bar(total=len(phases), desc="posterior", unit="step") if progress else bars.NoBar()
    with bar, jax.numpy_rank_promotion("allow"):  # blackjax relies on it
        first, step = _sampler(density.of(mode, factor), acceptance)
        keys = jax.random.split(jax.random.key(seed), chains)
        (w, values, divergent, steps, sizes), interrupted = _walked(step, keys, jax.vmap(first)(*states), phases, density.lockstep, bar)
        flat = jax.jit(jax.vmap(result.problem.unknowns.flat))
        z, local = density.apart(mode + w @ factor.T)
        samples = np.asarray(flat(z.reshape(-1, z.shape[2]))).reshape(*z.shape[:2], -1)
        diagnostics = [f(samples) for f in (convergence.r_hat, convergence.effective, convergence.effective_tail)]
    return Posterior(
        problem=result.problem,
        z=z,
        local=local,
        samples=samples,
        log_density=values,
        r_hat=diagnostics[0],
        effective=diagnostics[1],
        effective_tail=diagnostics[2],
        divergent=divergent,
        step_sizes=sizes[:, -1],
        evaluations=int(steps.sum()),
        noise_scale=scale,
        warnings=tuple(_warnings(result, density, diagnostics, divergent, draws)),
        interrupted=interrupted,
    )


def _checked(result, prior, noise_scale, counts, acceptance):
    """The noise scale, if all arguments make sense."""
    who = "identify.posterior"
    if not isinstance(result, Result):
        raise TypeError(f"{who}: expected the Result of identify.fit(problem), got {type(result).__name__}; fit first")
    if not result.problem.size:
        raise ValueError(f"{who}: nothing was fitted, so there is nothing to draw; name unknowns by Problem(fit=...)")
    for name, (value, least) in counts.items():
        if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
            raise ValueError(f"{who}: {name} must be a whole number, {least} at least, got {value!r}")
    if not 0 < acceptance < 1:
        raise ValueError(f"{who}: acceptance must be between 0 and 1, got {acceptance!r}")
    if prior is not None:
        if not callable(prior):
            raise TypeError(f"{who}: prior must be a function of the dict of parameters that returns a log density, got {prior!r}")
        value = np.asarray(prior({name: jnp.asarray(x) for name, x in result.estimate.items()}))
        if value.shape != () or not np.isfinite(value):
            raise ValueError(f"{who}: prior(result.estimate) must be one finite number, a log density, got {value!r}")
    unbounded = [label for x in result.problem.unknowns.list if not isinstance(x.transform, Bounded) for label in x.labels]
    free = [x for x, error in zip(result.labels, result.standard_errors, strict=True) if np.isinf(error) and x in unbounded]
    if prior is None and free:
        raise ValueError(
            f"{who}: the data do not determine {', '.join(free)}, and without bounds a flat prior is improper: give prior=, fit them "
            "within identify.Bounded(lower, upper), or do not fit them"
        )
    if noise_scale is None:
        if not np.isfinite(result.noise_scale) or result.noise_scale <= 0:
            raise ValueError(
                f"{who}: residuals show no noise scale, result.noise_scale is {result.noise_scale}: give noise_scale=1.0 if the noise of "
                "the problem is that of the data"
            )
        return float(result.noise_scale)
    if not (isinstance(noise_scale, numbers.Real) and noise_scale > 0 and np.isfinite(noise_scale)):
        raise ValueError(f"{who}: noise_scale must be a positive number, a factor on the noise of the problem, got {noise_scale!r}")
    return float(noise_scale)


def log_prior(unknowns, prior, z):
    """Logarithm of the density of z: that of the parameters, and of the volume of parameters that belongs to a volume of z."""
    total = jnp.zeros((), z.dtype) if prior is None else prior(unknowns.values(z))
    for x in unknowns.list:
        J = jax.jacfwd(lambda part, x=x: jnp.ravel(x.transform(part, x.shape)))(z[x.piece])
        # More entries than coordinates, as those of a symmetric matrix: the volume within them.
        total += jnp.linalg.slogdet(J)[1] if J.shape[0] == J.shape[1] else 0.5 * jnp.linalg.slogdet(J.T @ J)[1]
    return total


class _Density:
    """Logarithm of the density of x, which are z (p,) and behind them the free entries of the local parts of the items that count."""

    def __init__(self, result, prior, scale):
        self.problem, self.scale = result.problem, scale
        self.evaluator = Evaluator(self.problem)
        self.lockstep = self.evaluator.lockstep
        self.estimate = Point(np.asarray(result.z), np.asarray(result.local))
        train = result.training[self.problem.items["owner"]]
        ok = self.evaluator.linearized([self.estimate])[0]["ok"]
        self.items = np.flatnonzero(train & ok)
        self.log_prior = lambda z: log_prior(self.problem.unknowns, prior, z)
        self.prior_expanded = jax.jit(lambda z: (*jax.value_and_grad(self.log_prior)(z), jax.hessian(self.log_prior)(z)))
        self.left_out = [self.problem.names[k] for k in np.unique(self.problem.items["owner"][train & ~ok])]
        # Of a local part an entry whose standard deviation is zero is known; those of items that do not count stay where they are.
        known = np.zeros(0, bool) if self.problem.sigma is None else self.problem.sigma > 0
        rows, columns = np.meshgrid(self.items, np.flatnonzero(known), indexing="ij")
        self.rows, self.columns = rows.ravel(), columns.ravel()
        self.numbers = np.full(self.estimate.local.shape, -1)
        self.numbers[self.rows, self.columns] = self.problem.size + np.arange(self.rows.size)

    def apart(self, x):
        """``(z, local)`` of x, with any axes before."""
        local = np.broadcast_to(self.estimate.local, (*x.shape[:-1], *self.estimate.local.shape)).copy()
        local[..., self.rows, self.columns] = x[..., self.problem.size :]
        return x[..., : self.problem.size], local

    def expanded(self, xs):
        """A list of ``(value, gradient (d,), precision (d, d))`` at each x: Gauss-Newton, and the prior's where it is concave."""
        p, following = self.problem.size, self.evaluator.next
        points = [Point(*self.apart(x)) for x in xs]
        out = []
        for x, point, of in zip(xs, points, self.evaluator.linearized(points, self.items), strict=True):
            value, slope, curvature = jax.device_get(self.prior_expanded(point.z))
            g, H = np.zeros(x.size), np.zeros((x.size, x.size))
            for i, g_i, H_i in zip(self.items, of["g"], of["H"], strict=True):
                own = np.concatenate([np.arange(p), self.numbers[i], self.numbers[following[i]]])
                kept = np.flatnonzero(own >= 0)
                np.add.at(g, own[kept], g_i[kept])
                np.add.at(H, np.ix_(own[kept], own[kept]), H_i[np.ix_(kept, kept)])
            value = float(value) - of["cost"].sum() / self.scale**2 if of["ok"].all() else -np.inf
            g, H = -g / self.scale**2, H / self.scale**2
            g[:p] += slope
            curvature, axes = np.linalg.eigh(-curvature)
            H[:p, :p] += axes @ np.diag(np.maximum(curvature, 0)) @ axes.T
            out.append((value if np.isfinite(value) else -np.inf, g, H))
        return out

    def _typical(self, x):
        """`expanded` at one x, the size of a derivative that is typical being that of x: at the estimate it may be next to zero."""
        self.evaluator.limit = None
        return self.expanded([x])[0]

    def gaussian(self):
        """``(mode (d,), factor (d, d))``: where the density in x is largest, by damped Newton steps, and a factor of its covariance.

        That is not the estimate: where it lies at a bound, far out in z, the density is nearly flat, and largest elsewhere.
        """
        x = np.concatenate([self.estimate.z, self.estimate.local[self.rows, self.columns]])
        now, damping = self._typical(x), 1e-3
        if not np.isfinite(now[0]):
            raise ValueError("identify.posterior: the density is zero at the estimate; let prior be positive there, and fit again")
        for _ in range(100):
            _, g, H = now
            size = np.sqrt(np.where(np.diag(H) > 0, np.diag(H), 1.0))
            step = np.linalg.solve(H / np.outer(size, size) + damping * np.eye(x.size), g / size) / size
            step *= min(1.0, 1.0 / max(np.max(np.abs(step)), 1e-300))
            then = self._typical(x + step)
            if then[0] > now[0]:
                gain = then[0] - now[0]
                x, now, damping = x + step, then, max(0.2 * damping, 1e-10)
                if gain < 1e-3:
                    break
            else:
                damping = max(5 * damping, 1e-3)
                if damping > 1e6:
                    break
        _, _, H = self._typical(x)
        size = np.sqrt(np.where(np.diag(H) > 0, np.diag(H), 1.0))
        values, axes = np.linalg.eigh(H / np.outer(size, size))
        # Along what is nearly flat a Gaussian has no end; the warm-up finds it.
        return x, axes / np.sqrt(np.maximum(values, 1e-4))[None, :] / size[:, None]

    def of(self, mode, factor):
        """The traced log density of w, with ``x = mode + factor w``; minus infinity, with a gradient of zero, where a simulation fails."""
        evaluator, p, n = self.evaluator, self.problem.size, self.problem.n_local
        kind = "linearized" if p + 2 * n < REVERSE else "descended"
        program, limit = evaluator.program(kind), (evaluator.limit,) if kind == "linearized" else ()
        pieces = [self.items[i : i + evaluator.chunk] for i in range(0, len(self.items), evaluator.chunk)]
        pieces = jax.tree.map(lambda *x: np.stack(x), *map(evaluator.filled, pieces))
        following = evaluator.next[self.items]

        @jax.jit  # traced once, however often a sampler calls it
        def value_and_gradient(w):
            x = jnp.asarray(mode, w.dtype) + jnp.asarray(factor, w.dtype) @ w
            z, local = x[:p], jnp.asarray(self.estimate.local, w.dtype).at[self.rows, self.columns].set(x[p:])
            after = local[evaluator.next]
            out = lax.map(lambda piece: program(z, local[piece[0]], after[piece[0]], piece[1], *limit), pieces)
            cost, g, ok = (out[name].reshape(-1, *out[name].shape[2:])[: len(self.items)] for name in ("cost", "g", "ok"))
            # Leapfrog steps are reversible with any gradient that depends on the position alone: draws are right also where frames past a
            # grazing impact have no part in it, or where it is set to zero. Only steps that are accepted become fewer.
            g_local = jnp.zeros_like(local).at[self.items].add(g[:, p : p + n]).at[following].add(g[:, p + n :])
            g = jnp.concatenate([jnp.sum(g[:, :p], axis=0), g_local[self.rows, self.columns]])
            value, slope = jax.value_and_grad(self.log_prior)(z)
            value, g = value - jnp.sum(cost) / self.scale**2, (-g / self.scale**2).at[:p].add(slope)
            ok = jnp.all(ok) & jnp.isfinite(value)
            g = jnp.asarray(factor, w.dtype).T @ g
            return jnp.where(ok, value, -jnp.inf), jnp.where(ok & jnp.isfinite(g), g, 0)

        # Of few unknowns the gradient is cheaper in forward mode, whatever mode a sampler asks for.
        log_density = jax.custom_vjp(lambda w: value_and_gradient(w)[0])
        log_density.defvjp(value_and_gradient, lambda g, cotangent: (cotangent * g,))
        return log_density


def _starts(density, mode, factor, w):
    """``(w, log density, gradient)`` of starts (chains, d), drawn towards the mode as far as is needed to have a density."""
    for _ in range(20):
        values, slopes, _ = map(np.array, zip(*density.expanded(list(mode + w @ factor.T)), strict=True))
        if np.all(np.isfinite(values)):
            break
        w = np.where(np.isfinite(values)[:, None], w, 0.7 * w)
    return w, values, slopes @ factor


def _sampler(log_density, acceptance):
    """``first(w, log density, gradient)``, what a chain carries, and ``step(key, number, phase, chain) -> (chain, what is kept)``.

    One function for warm-up and draws, as most of the time may go into its compilation.
    """
    from blackjax import nuts
    from blackjax.adaptation.mass_matrix import mass_matrix_adaptation
    from blackjax.adaptation.step_size import dual_averaging_adaptation
    from blackjax.mcmc.hmc import HMCState

    kernel = nuts.build_kernel()
    size_first, size_next, size_last = dual_averaging_adaptation(acceptance)
    mass_first, mass_next, mass_last = mass_matrix_adaptation(True)

    def first(*start):
        return HMCState(*start), size_first(1.0), mass_first(start[0].size)

    def step(key, number, phase, chain):
        state, size, mass = chain
        length = jnp.where(phase == DRAW, size_last(size), jnp.exp(size.log_step_size))
        state, info = kernel(jax.random.fold_in(key, number), state, log_density, length, mass.inverse_mass_matrix)
        kept = state.position, state.logdensity, info.is_divergent, info.num_integration_steps, length
        changes = (
            lambda: (size_next(size, info.acceptance_rate), mass),
            lambda: (size_next(size, info.acceptance_rate), mass_next(mass, state.position)),
            lambda: (size_first(size_last(size_next(size, info.acceptance_rate))), mass_last(mass_next(mass, state.position))),
            lambda: (size, mass),
        )
        return (state, *lax.switch(phase, changes)), kept

    return first, step


def _walked(step, keys, chains, phases, lockstep, bar):
    """Arrays (chains, draws, ...) of what is kept of the draws; and whether it was interrupted, draws then being fewer.

    Each chain has a thread of its own: XLA leaves the interpreter free while it computes.
    """
    if lockstep:
        step, members = jax.vmap(step, in_axes=(0, None, None, 0)), [(keys, chains)]
    else:
        members = [(key, jax.tree.map(lambda x, k=k: x[k], chains)) for k, key in enumerate(keys)]
    program = jax.jit(step).lower(members[0][0], 0, 0, members[0][1]).compile()
    records, counts, stop = [[] for _ in members], [0] * len(members), threading.Event()

    def walk(k):
        key, chain = members[k]
        try:
            for number, phase in enumerate(phases):
                if stop.is_set():
                    break
                chain, kept = program(key, number, phase, chain)
                if phase == DRAW:
                    records[k].append(jax.device_get(kept))
                counts[k] += 1
        except BaseException:
            stop.set()
            raise

    interrupted = False
    with ThreadPoolExecutor(len(members)) as pool:
        running = [pool.submit(walk, k) for k in range(len(members))]
        try:
            while wait(running, timeout=0.1).not_done:
                bar.update(min(counts) - bar.n)
        except (KeyboardInterrupt, interrupts.Interrupted):
            stop.set()
            interrupted = True
            if min(map(len, records)) < LEAST:
                raise
    for one in running:
        one.result()
    bar.update(min(counts) - bar.n)
    draws = min(map(len, records))
    out = [np.stack([np.stack([kept[i] for kept in record[:draws]]) for record in records]) for i in range(5)]
    return [np.moveaxis(x[0], 0, 1) for x in out] if lockstep else out, interrupted


def _warnings(result, density, diagnostics, divergent, draws):
    """Sentences on what speaks against the draws."""
    out, (r_hat, effective, tail) = [], diagnostics
    if density.left_out:
        out.append(f"failed at the estimate, and left out: {', '.join(density.left_out)}")
    if divergent.shape[1] < draws:
        out.append(f"interrupted after {divergent.shape[1]} of {draws} draws")
    names = [f"{label} ({x:.3f})" for label, x in zip(result.labels, r_hat, strict=True) if not x <= R_HAT]
    if names:
        out.append(f"chains disagree, by an R-hat above {R_HAT}, on {', '.join(names)}: do not trust the draws; take more")
    few = np.minimum(effective, tail)
    names = [f"{label} ({x:.0f})" for label, x in zip(result.labels, few, strict=True) if not x >= FEW * len(divergent)]
    if names:
        out.append(f"fewer than {FEW} independent draws a chain of {', '.join(names)}: intervals are rough; take more draws")
    if divergent.any():
        out.append(
            f"{divergent.sum()} of {divergent.size} paths diverged, so that draws may be missing where the density changes fast or the "
            "simulation fails: raise acceptance, or bound the parameters"
        )
    return out
