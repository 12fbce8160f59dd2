"""What a fit has found, how sure it is, and what it could not explain."""

import dataclasses
import functools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from . import uncertainty
from .normal import AWAY, NormalEquations

#: Errors by the scatter of trajectories that are so many times those by the residuals are said in a warning.
SCATTER = 2.0

#: Residuals that are so many times the noise that was given are said in a warning.
MISFIT = 5.0


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """Result of `fit`.

    ====================  ======================================================================================================
    ``system``            the fitted system; ``measurement``: the fitted measurement parameters, or None
    ``estimate``          dict of the fitted leaves by name
    ``labels``            names of their entries, in the order of the following: ``values`` (n,), ``standard_errors`` (n,),
                          ``intervals`` (n, 2), 95 %, ``covariance`` (n, n), ``correlation`` (n, n)
    ``noise_scale``       by what factor the residuals are larger than the noise that was given; it is in the covariance. With a robust
                          loss, which counts large ones less, 0.8 to 0.9 where the noise is Gaussian and as given
    ``covariance_by_trajectory``  (n, n) or None: what the scatter from trajectory to trajectory says, the residuals of one being as
                          correlated as they are (a sandwich, see Huber 1967); larger than the other one where the model is wrong.
                          From twice as many trajectories as unknowns on, initial states known
    ``warnings``          sentences on what the data do not determine
    ``train_loss``        mean square of the whitened residuals; ``validation_loss`` of the trajectories that were not fitted, or NaN
    ``history``           a list for each start of (training loss, validation loss) after each iteration
    ``failures``          how often each trajectory failed and was left out, by name; ``failed``: those that fail at the result
    ``lost``              number of frames, by name, that took no part in the last step (see ``horizon`` of `Problem`)
    ``residuals``         a list for each trajectory of its whitened residuals (frames, k), masked entries zero
    ``initial_states``    ``(q0, u0)`` of each trajectory, or of each of its windows
    ``training``          (trajectories,) booleans; ``interrupted``, ``message``: why it ended; it begins with "converged" where
                          a step without damping would go on by less than 0.3 standard errors
    ====================  ======================================================================================================
    """

    problem: Any
    z: np.ndarray
    local: np.ndarray
    system: Any
    measurement: Any
    uncertainty: uncertainty.Uncertainty
    covariance_by_trajectory: Any
    train_loss: float
    validation_loss: float
    history: list
    failures: dict
    failed: list
    lost: dict
    shown: dict
    training: np.ndarray
    interrupted: bool
    message: str
    state: dict = field(default_factory=dict)

    @property
    def labels(self) -> list[str]:
        """Names of the entries of what was fitted."""
        return self.problem.unknowns.labels

    @property
    def values(self) -> np.ndarray:
        """Estimates (n,)."""
        return np.asarray(self.problem.unknowns.flat(self.z))

    @property
    def estimate(self) -> dict:
        """Fitted leaves by name."""
        return {name: np.asarray(value) for name, value in self.problem.unknowns.values(self.z).items()}

    @property
    def covariance(self) -> np.ndarray:
        """(n, n), of the Jacobian."""
        return self.uncertainty.covariance

    @property
    def standard_errors(self) -> np.ndarray:
        """(n,)."""
        return self.uncertainty.standard_errors

    @property
    def intervals(self) -> np.ndarray:
        """(n, 2), 95 %; of bounded and positive parameters within their bounds."""
        return self.uncertainty.intervals

    @property
    def correlation(self) -> np.ndarray:
        """(n, n)."""
        return self.uncertainty.correlation

    @property
    def noise_scale(self) -> float:
        """By what factor residuals, as the loss counts them, are larger than the noise that was given."""
        return self.uncertainty.scale

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences on what the data do not determine."""
        return (*self.uncertainty.warnings, *self._of_the_misfit(), *self._of_the_scatter(), *self._of_what_is_lost())

    def _of_the_misfit(self):
        """A sentence where residuals are larger by far than a noise that was given."""
        if self.problem.noise_given and self.noise_scale > MISFIT:
            yield (
                f"residuals are {self.noise_scale:.3g} times the noise that was given: a fit from other starts may lie in a better valley "
                "(fit(..., starts=8)), the model may lack something, as a delay or a scale of the measurement (see report()), or the noise "
                "is larger than was given"
            )

    def _of_what_is_lost(self):
        """A sentence where frames took no part."""
        if self.lost:
            frames = ", ".join(f"{name} ({n} frames)" for name, n in self.lost.items())
            yield (
                f"left out of the last step and of the standard errors, since derivatives are not finite, or {self.problem.horizon:g} "
                f"times the typical ones (`horizon` of Problem), as past a grazing impact: {frames}"
            )

    def _of_the_scatter(self):
        """A sentence where trajectories scatter by far more than their residuals say."""
        if self.covariance_by_trajectory is None:
            return
        errors = np.sqrt(np.diag(self.covariance_by_trajectory))
        times = np.max(errors / np.where(self.standard_errors > 0, self.standard_errors, np.inf), initial=0.0)
        if times > SCATTER:
            yield (
                f"by the scatter from trajectory to trajectory standard errors are up to {times:.2g} times as large, see "
                "covariance_by_trajectory: residuals of one trajectory are not independent, or the model is wrong"
            )

    @property
    def residuals(self) -> list[np.ndarray]:
        """Whitened residuals (frames, k) of each trajectory."""
        return [self.of_trajectory(k)["residual"] for k in range(len(self.problem.data))]

    @property
    def initial_states(self) -> list:
        """``(q0, u0)`` of each trajectory, (windows, ...) where it was cut."""
        out = []
        for k in range(len(self.problem.data)):
            mine = self.problem.items["owner"] == k
            pair = self.shown["q_start"][mine], self.shown["u_start"][mine]
            out.append(pair if self.problem.windows else (pair[0][0], pair[1][0]))
        return out

    def of_trajectory(self, k: int) -> dict[str, Any]:
        """``t, predicted, residual, mask`` of trajectory number k, frames of its windows one after the other; and ``ok``."""
        items, rows = self.problem.items, np.flatnonzero(self.problem.items["owner"] == k)
        n = [len(np.unique(items["t"][i])) for i in rows]
        join = lambda x: np.concatenate([x[i][:m] for i, m in zip(rows, n, strict=True)])  # noqa: E731
        out = {"t": join(items["t"]), "mask": join(items["mask"]), "y": join(items["y"])}
        return out | {name: join(self.shown[name]) for name in ("predicted", "residual")} | {"ok": bool(self.shown["ok"][rows].all())}

    def rms(self) -> np.ndarray:
        """Root mean square of the whitened residuals of each trajectory, (trajectories,); NaN for one that failed."""
        out = np.full(len(self.problem.data), np.nan)
        for k in range(len(out)):
            mine = self.problem.items["owner"] == k
            count = self.problem.count[mine].sum()
            if count and self.shown["ok"][mine].all():
                out[k] = np.sqrt(np.sum(self.shown["residual"][mine] ** 2) / count)
        return out

    def report(self, path: str | Path, title: str = "") -> None:
        """Write one page (.png, .pdf, .svg or .html): fit, residuals, intervals, correlations, losses, warnings.

        Raises ValueError for another ending, or a folder that there is not.
        """
        from .. import plotting

        path = Path(path)
        if path.suffix.lower() not in (".png", ".pdf", ".svg", ".html"):
            raise ValueError(f"report: the file must end in .png, .pdf, .svg or .html, got {str(path)!r}")
        if not path.parent.is_dir():
            raise ValueError(f"report: the directory {str(path.parent)!r} does not exist, make it first")
        plotting.save(plotting.identification(self, title), path)

    def __str__(self):
        wide = max(20, *map(len, self.labels))
        lines = [f"{'parameter':<{wide}}   estimate   standard error   95 % interval"]
        for label, value, error, low, high in zip(self.labels, self.values, self.standard_errors, *self.intervals.T, strict=True):
            lines.append(f"{label:<{wide}} {value:10.5g}   {error:14.2g}   {low:.5g} to {high:.5g}")
        n, m = self.training.sum(), (~self.training).sum()
        lines.append(
            f"loss {self.train_loss:.5g} over {n} trajector{'y' if n == 1 else 'ies'}"
            + (f", {self.validation_loss:.5g} over {m} held out" if m else "")
        )
        counted = ", as the loss counts them," if self.problem.robust else ""
        lines.append(f"residuals{counted} are {self.noise_scale:.3g} times the noise that was given; {self.message}")
        if self.failed:
            lines.append(f"failed, and left out: {', '.join(self.failed)}")
        return "\n".join(lines + [f"warning: {text}" for text in self.warnings])

    __repr__ = __str__


def make_result(problem, evaluator, items, train, runs, chosen, failures, interrupted, state, seen=()):
    """The `Result` of the best iterate of the ``chosen`` run; ``state`` is what a fit needs to go on, ``seen`` further warnings."""
    from .fit import _loss

    point = chosen.best[1].point
    final = evaluator.linearized([point])[0]
    equations = NormalEquations(problem, final, items, train)
    S, _, _ = equations.reduced()
    used = train & final["ok"]
    shown = evaluator.shown(point, items)
    of_data = NormalEquations(problem, _of_data(problem, final), items, train)
    known = (problem.items["root"][items] > 0) & (used[:, None] & final["kept"])[:, :, None]
    found = uncertainty.of(
        problem,
        point.z,
        S,
        _squares(problem, shown["residual"][items], known),
        int(known.sum()),
        functools.partial(equations.taken, of_data),
        final["lost"][used].any(),
    )
    owner, names = problem.items["owner"], problem.names
    system, measurement = problem.parts(point.z)
    numbers = range(len(problem.data))
    message = "interrupted; resume=result goes on" if interrupted else chosen.done or "all iterations are done"
    more = list(seen)
    if problem.joined and equations.rounded(of_data):
        more.append("windows are joined so tightly that rounding decides on their states, and errors are too small: loosen continuity")
    if not (chosen.done.startswith("converged") and chosen.best[1] is chosen.step):
        more += _not_there(problem, point.z, equations, found)
    found = dataclasses.replace(found, warnings=(*found.warnings, *more))
    return Result(
        problem=problem,
        z=point.z,
        local=point.local,
        system=system,
        measurement=measurement,
        uncertainty=found,
        covariance_by_trajectory=_sandwich(problem, point.z, S, final, owner, used),
        train_loss=_loss(problem, final, items, train),
        validation_loss=_loss(problem, final, items, ~train),
        history=[run.losses for run in runs],
        failures=dict(failures),
        failed=[names[k] for k in numbers if not final["ok"][owner == k].all()],
        lost={names[k]: int(n) for k in numbers if (n := final["lost"][owner == k].sum())},
        shown=shown,
        training=np.array([train[owner == k].all() for k in numbers]),
        interrupted=interrupted,
        message=message,
        state=state,
    )


def _not_there(problem, z, equations, found):
    """A sentence where the estimate is not the best point: where a Gauss-Newton step would go from it, against its standard errors."""
    if not np.isfinite(found.scale) or not problem.size:
        return
    stays = found.undetermined | uncertainty.at_bounds(problem.unknowns, z, found.standard_errors)
    errors = np.sqrt(np.diag(found.covariance_z))
    dz = equations.step(0.0, stays, units=problem.unknowns.spans(z))[0]
    length = equations.length(dz) / found.scale if found.scale > 0 else 0.0
    if length > AWAY:
        far = np.where(errors > 0, np.abs(dz) / np.where(errors > 0, errors, 1), 0)
        name = uncertainty.coordinates(problem.unknowns)[int(np.argmax(far))]
        yield (
            f"the fit has not converged: {name} would go on by about {np.max(far):.2g} standard errors, all together by {length:.2g}, and "
            "intervals are about a point that is not the best; go on with resume=result, or take more iterations, unless the loss is rough"
        )


def _of_data(problem, linearized):
    """What is linearized, without priors and joints."""
    H, p, n = np.array(linearized["H"]), problem.size, problem.n_local
    if n:
        # An item that failed has none of it.
        H[linearized["ok"], p : p + n, p : p + n] -= np.diag(np.asarray(problem.sigma) > 0)
    if problem.joined:
        H -= linearized["H_joined"]
    return linearized | {"H": H}


def _squares(problem, residual, known):
    """Sum of squares of residuals (items, F, k), of those that are ``known`` and take part; or its robust kin."""
    r, known = (x.reshape(-1, x.shape[-1]) for x in (np.where(known, residual, 0), known))
    if problem.robust is None:
        return float(np.sum(r**2))
    squares, factor = problem.robust.scatter(r, known)
    return float(squares * factor)


def _sandwich(problem, z, S, final, owner, used):
    """Covariance from the scatter of the gradients of the trajectories; None where there are too few, or initial states are free."""
    import jax

    groups = np.unique(owner[used])
    p = problem.size
    # By columns of length one: units must not decide on the rank.
    D = np.sqrt(np.diag(S))
    if problem.n_local or len(groups) < 2 * p or not np.all(D > 0):
        return None
    scaled = S / np.outer(D, D)
    if np.linalg.matrix_rank(scaled, hermitian=True) < p:
        return None
    g = np.stack([final["g"][used & (owner == k), :p].sum(0) for k in groups])
    J = np.asarray(jax.jacfwd(problem.unknowns.flat)(np.asarray(z))) / D @ np.linalg.inv(scaled) / D
    n = len(groups)
    return J @ (g.T @ g) @ J.T * n / (n - 1)
