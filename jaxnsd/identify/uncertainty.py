"""How well the data determine the unknowns: covariance, intervals, correlations, and warnings in words."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import betainc

from ..schemes import LocatedImpacts
from .normal import NOTHING

#: Eigenvalues of J^T J, its columns scaled to one, below this are zero: half of the digits of a number, since it is a square.
RANK = 1e-10

#: Directions in which J^T J, scaled, is below this are called nearly flat: correlations above 0.9998.
FLAT = 1e-4


@dataclass(frozen=True)
class Uncertainty:
    """Gauss-Newton covariance of the fitted entries, in their own units.

    covariance (n, n), standard_errors (n,), intervals (n, 2), correlation (n, n): infinite, and NaN, where the data determine nothing.
    scale: by what factor residuals are larger than the noise that was given; scale^2 (J^T J)^-1 is the covariance. With a robust loss that
    of its derivative, see `Robust.scatter`.
    """

    covariance: np.ndarray
    standard_errors: np.ndarray
    intervals: np.ndarray
    correlation: np.ndarray
    scale: float
    warnings: tuple


def of(problem, z, S, cost, count, level=0.95):
    """`Uncertainty` at z of the reduced normal matrix S (p, p), the cost and the number of residuals beyond that of local unknowns."""
    unknowns = problem.unknowns
    labels, values = unknowns.labels, np.asarray(unknowns.flat(z))
    if not len(labels):
        return Uncertainty(np.zeros((0, 0)), np.zeros(0), np.zeros((0, 2)), np.zeros((0, 0)), np.nan, ())
    freedom = count - problem.size
    scale = np.sqrt(2 * cost / freedom) if freedom > 0 else np.nan
    covariance_z, undetermined, warnings = _inverse(problem, S)
    covariance_z = covariance_z * scale**2
    J = np.asarray(jax.jacfwd(unknowns.flat)(jnp.asarray(z)))
    covariance = J @ covariance_z @ J.T
    free = (np.abs(J) * undetermined[None, :]).max(1) > 0
    errors = np.where(free, np.inf, np.sqrt(np.maximum(np.diag(covariance), 0)))
    covariance = np.where(free[:, None] | free[None, :], np.where(np.eye(len(free), dtype=bool), np.inf, np.nan), covariance)
    with np.errstate(invalid="ignore", divide="ignore"):
        correlation = np.where(np.isfinite(covariance), covariance / np.outer(errors, errors), np.nan)
    if freedom <= 0:
        warnings.append(f"there are no more residuals ({count}) than unknowns ({problem.size}): nothing can be said about errors")
    factor = student(0.5 + 0.5 * level, freedom) if freedom > 0 else np.nan
    intervals = np.stack([values - factor * errors, values + factor * errors], axis=1)
    for unknown in unknowns.list:
        # Of a number that is transformed on its own the interval is that of z, so that it keeps its bounds.
        n = int(np.prod(unknown.shape))
        if unknown.piece.stop - unknown.piece.start == n and unknown.transform.labels("", ()) == [""]:
            intervals = _by_transform(unknown, z, covariance_z, factor, intervals, labels.index(unknown.labels[0]), n)
    intervals[free] = [-np.inf, np.inf]
    for label, value, error in zip(labels, values, errors, strict=True):
        if np.isfinite(error) and error > 0.5 * abs(value) and error > 0:
            warnings.append(f"{label} is hardly determined: {value:.3g} with a standard error of {error:.2g}")
    return Uncertainty(covariance, errors, intervals, correlation, float(scale), tuple(warnings))


def _by_transform(unknown, z, covariance_z, factor, intervals, first, n):
    from .transforms import Bounded, Free, Positive

    if isinstance(unknown.transform, (Bounded, Free, Positive)):
        reach = factor * np.sqrt(np.maximum(np.diag(covariance_z)[unknown.piece], 0))
        ends = [np.ravel(unknown.transform(jnp.asarray(z[unknown.piece] + sign * reach), unknown.shape)) for sign in (-1, 1)]
        intervals[first : first + n] = np.stack(ends, axis=1)
    return intervals


def _inverse(problem, S):
    """``(covariance of z, which z are undetermined, warnings)``."""
    p, warnings = problem.size, []
    names = _coordinates(problem.unknowns)
    size = np.sqrt(np.maximum(np.diag(S), 0))
    none = size <= NOTHING * max(size.max(), 1e-300)
    for name in dict.fromkeys(name for name, nothing in zip(names, none, strict=True) if nothing):
        said = "has no effect on what was measured: the data say nothing about it, and it stays near its first guess"
        if problem.settings.sensitivity == "discrete" and not isinstance(problem.settings.scheme, LocatedImpacts):
            said = "stays near its first guess: sensitivity='discrete' sees no effect, but does not see times of impacts; try 'saltation'"
        warnings.append(f"{name} {said}")
    covariance, undetermined, some = np.zeros((p, p)), none.copy(), ~none
    if not some.any():
        return covariance, undetermined, warnings
    D, kept = size[some], np.flatnonzero(some)
    values, vectors = np.linalg.eigh(S[np.ix_(some, some)] / np.outer(D, D))
    for value, vector in zip(values, vectors.T, strict=True):
        if value < FLAT:
            parts = [(names[k], x / d) for k, x, d in zip(kept, vector, D, strict=True) if abs(x) > 0.1]
            largest = max((abs(x) for _, x in parts), default=1.0)
            text = " ".join(f"{'+' if x > 0 else '-'} {abs(x) / largest:.2g} {name}" for name, x in parts).removeprefix("+ ")
            how = "do not determine" if value < RANK else "hardly determine"
            warnings.append(f"the data {how} one combination (in coordinates z, of logarithms and logits): {text}")
            if value < RANK:
                undetermined[kept[np.abs(vector) > 1e-3]] = True
    inverse = vectors @ np.diag(np.where(values > RANK, 1 / np.maximum(values, RANK), 0)) @ vectors.T
    covariance[np.ix_(some, some)] = inverse / np.outer(D, D)
    return covariance, undetermined, warnings


def _coordinates(unknowns):
    """Names of the coordinates z."""
    names = []
    for unknown in unknowns.list:
        n = unknown.piece.stop - unknown.piece.start
        names += unknown.labels if len(unknown.labels) == n else [unknown.name] * n
    return names


def student(level, freedom):
    """Quantile of Student's distribution, by bisection."""
    low, high = 0.0, 1e4
    for _ in range(80):
        t = 0.5 * (low + high)
        below = 1 - 0.5 * float(betainc(freedom / 2, 0.5, freedom / (freedom + t * t)))
        low, high = (t, high) if below < level else (low, t)
    return t
