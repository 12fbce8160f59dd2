"""How well the data determine the unknowns: covariance, intervals, correlations, and warnings in words."""

from dataclasses import dataclass
from statistics import NormalDist

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import betainc

from ..schemes import LocatedImpacts
from .normal import effective, single
from .transforms import Bounded, Free, Positive

#: Eigenvalues of J^T J, its columns scaled to one, below this are zero: half of the digits of a number, since it is a square; in single
#: precision those that rounding of J^T J itself leaves.
RANK, RANK_SINGLE = 1e-10, 2e-6

#: Directions in which J^T J, scaled, is below this are called nearly flat: correlations above 0.9998.
FLAT = 1e-4

#: Transforms of a number on its own that have bounds.
BOUNDED = (Bounded, Positive)

#: Of no more degrees of freedom than this nothing is said: rounding leaves some, and Student's intervals reach over 1e12 standard errors.
SOME = 0.1

#: From so many degrees of freedom on Student's quantile is taken from its expansion, to ten digits: a beta function in float32 is not.
MANY = 100.0

#: Where noise is off by more than this factor, priors that were scaled along with it are said to be.
MISFIT = 2.0


@dataclass(frozen=True)
class Uncertainty:
    """Gauss-Newton covariance of the fitted entries, in their own units.

    covariance (n, n), standard_errors (n,), intervals (n, 2), correlation (n, n): infinite, and NaN, where the data determine nothing.
    scale: by what factor residuals are larger than the noise that was given; scale^2 (J^T J)^-1 is the covariance. With a robust loss that
    of its derivative, see `Robust.scatter`.
    freedom: degrees of freedom of that scale, residuals less unknowns, local ones too, that the data determine (`NormalEquations.taken`);
    factor: how many standard errors an interval reaches, the quantile of Student's distribution.
    covariance_z (p, p), undetermined (p,): of the coordinates z.
    """

    covariance: np.ndarray
    standard_errors: np.ndarray
    intervals: np.ndarray
    correlation: np.ndarray
    scale: float
    warnings: tuple
    freedom: float = 0.0
    factor: float = np.nan
    covariance_z: np.ndarray | None = None
    undetermined: np.ndarray | None = None


def of(problem, z, S, squares, count, taken=None, lost=False, level=0.95):
    """`Uncertainty` at z of the reduced normal matrix S (p, p), the sum of squares of the data's residuals and their number.

    taken: function of the inverse of S that tells how many of the degrees of freedom the unknowns take; None: the rank of S, without local
    unknowns. lost: whether frames took no part
    """
    unknowns = problem.unknowns
    labels, values = unknowns.labels, np.asarray(unknowns.flat(z))
    if not len(labels):
        return Uncertainty(np.zeros((0, 0)), np.zeros(0), np.zeros((0, 2)), np.zeros((0, 0)), np.nan, ())
    covariance_z, undetermined, rank, warnings = _inverse(problem, z, S, lost)
    taken = taken(covariance_z) if taken else rank
    freedom = count - taken
    scale = np.sqrt(squares / freedom) if freedom > SOME else np.nan
    covariance_z = covariance_z * scale**2
    J = np.asarray(jax.jacfwd(unknowns.flat)(jnp.asarray(z)))
    covariance = J @ covariance_z @ J.T
    free = (np.abs(J) * undetermined[None, :]).max(1) > 0
    errors = np.where(free, np.inf, np.sqrt(np.maximum(np.diag(covariance), 0)))
    covariance = np.where(free[:, None] | free[None, :], np.where(np.eye(len(free), dtype=bool), np.inf, np.nan), covariance)
    with np.errstate(invalid="ignore", divide="ignore"):
        correlation = np.where(np.isfinite(covariance), covariance / np.outer(errors, errors), np.nan)
    if np.any(problem.n_local and problem.sigma > 0) and np.isfinite(scale) and not 1 / MISFIT < scale < MISFIT:
        warnings.append(
            f"residuals are {scale:.2g} times the noise that was given, and standard deviations of initial states and joints were taken to "
            f"be off by that factor as well: where they are not, fit again with {scale:.2g} times the noise"
        )
    if freedom <= SOME:
        warnings.append(f"there are no more residuals ({count}) than unknowns ({taken:.3g}): nothing can be said about errors")
    factor = student(0.5 + 0.5 * level, freedom) if freedom > SOME else np.nan
    intervals = np.stack([values - factor * errors, values + factor * errors], axis=1)
    intervals[free] = [-np.inf, np.inf]
    for unknown in unknowns.list:
        if isinstance(unknown.transform, BOUNDED):
            first, (lower, upper) = labels.index(unknown.labels[0]), bounds(unknown.transform)
            for k, entry in enumerate(range(unknown.piece.start, unknown.piece.stop), first):
                # The interval is that of z, so that it keeps the bounds; at a bound, where z is at infinity, that would hold everything.
                reach = factor * np.sqrt(max(covariance_z[entry, entry], 0))
                within = np.asarray(unknown.transform(jnp.asarray([z[entry] - reach, z[entry] + reach]), (2,)))
                at_bound = free[k] or _bound(unknown.transform, values[k], errors[k]) is not None
                intervals[k] = np.clip(intervals[k], lower, upper) if at_bound else within
    kinds = [unknown.transform for unknown in unknowns.list for _ in unknown.labels]
    for label, value, error, kind in zip(labels, values, errors, kinds, strict=True):
        said = f"{value:.3g} with a standard error of {error:.2g}"
        if (bound := _bound(kind, value, error)) is not None:
            warnings.append(f"{label} is at its bound, {bound:g}, or not told from it: {said}")
        elif np.isfinite(error) and error > 0.5 * abs(value) and error > 0:
            # Of what may have either sign, as an offset or a delay, zero is a value like others.
            warnings.append(f"{label} is {'not told from zero' if isinstance(kind, Free) else 'hardly determined'}: {said}")
    return Uncertainty(
        covariance, errors, intervals, correlation, float(scale), tuple(warnings), float(freedom), factor, covariance_z, undetermined
    )


def bounds(transform):
    """Lower and upper bound of a number; infinite where it has none."""
    return (
        (transform.lower, transform.upper)
        if isinstance(transform, Bounded)
        else (0.0 if isinstance(transform, Positive) else -np.inf, np.inf)
    )


def _bound(transform, value, error):
    """The bound that is less than a standard error away; None where there is none."""
    if not isinstance(transform, BOUNDED) or not np.isfinite(error):
        return None
    bound = min(bounds(transform), key=lambda bound: abs(value - bound))
    return bound if abs(value - bound) < error else None


def at_bounds(unknowns, z, errors):
    """(p,) booleans: coordinates z of what is less than a standard error from a bound."""
    out, values = np.zeros(unknowns.size, bool), np.asarray(unknowns.flat(z))
    for unknown in unknowns.list:
        if isinstance(unknown.transform, BOUNDED):
            first = unknowns.labels.index(unknown.labels[0])
            entries = range(first, first + len(unknown.labels))
            out[unknown.piece] = [_bound(unknown.transform, values[k], errors[k]) is not None for k in entries]
    return out


def _inverse(problem, z, S, lost):
    """``(covariance of z, which z are undetermined, rank, warnings)``."""
    p, warnings = problem.size, []
    names = coordinates(problem.unknowns)
    size = np.sqrt(np.maximum(np.diag(S), 0))
    none = ~effective(size, problem.unknowns.spans(z))
    for name in dict.fromkeys(name for name, nothing in zip(names, none, strict=True) if nothing):
        said = "has no effect on what was measured: the data say nothing about it, and it stays near its first guess"
        if problem.settings.sensitivity == "discrete" and not isinstance(problem.settings.scheme, LocatedImpacts):
            said = "stays near its first guess: sensitivity='discrete' sees no effect, but does not see times of impacts; try 'saltation'"
        elif lost:
            said = "has no effect on those frames that took part, and stays near its first guess: see `horizon` of Problem"
        warnings.append(f"{name} {said}")
    covariance, undetermined, some = np.zeros((p, p)), none.copy(), ~none
    zero = RANK_SINGLE if single() else RANK
    if not some.any():
        return covariance, undetermined, 0, warnings
    D, kept = size[some], np.flatnonzero(some)
    values, vectors = np.linalg.eigh(S[np.ix_(some, some)] / np.outer(D, D))
    for value, vector in zip(values, vectors.T, strict=True):
        if value < FLAT:
            parts = [(names[k], x / d) for k, x, d in zip(kept, vector, D, strict=True) if abs(x) > 0.1]
            largest = max((abs(x) for _, x in parts), default=1.0)
            text = " ".join(f"{'+' if x > 0 else '-'} {abs(x) / largest:.2g} {name}" for name, x in parts).removeprefix("+ ")
            how = "do not determine" if value < zero else "hardly determine"
            warnings.append(f"the data {how} one combination (in coordinates z, of logarithms and logits): {text}")
            if value < zero:
                undetermined[kept[np.abs(vector) > 1e-3]] = True
    inverse = vectors @ np.diag(np.where(values > zero, 1 / np.maximum(values, zero), 0)) @ vectors.T
    covariance[np.ix_(some, some)] = inverse / np.outer(D, D)
    return covariance, undetermined, int(np.sum(values > zero)), warnings


def coordinates(unknowns):
    """Names of the coordinates z."""
    names = []
    for unknown in unknowns.list:
        n = unknown.piece.stop - unknown.piece.start
        names += unknown.labels if len(unknown.labels) == n else [unknown.name] * n
    return names


def student(level, freedom):
    """Quantile of Student's distribution: its expansion about the normal one (Abramowitz, Stegun, 26.7.5), or by bisection."""
    if freedom > MANY:
        x = NormalDist().inv_cdf(level)
        polynomials = (
            (x**3 + x) / 4,
            (5 * x**5 + 16 * x**3 + 3 * x) / 96,
            (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / 384,
            (79 * x**9 + 776 * x**7 + 1482 * x**5 - 1920 * x**3 - 945 * x) / 92160,
        )
        return x + sum(y / freedom**k for k, y in enumerate(polynomials, 1))
    low, high = 0.0, 1e13
    for _ in range(120):
        t = 0.5 * (low + high)
        below = 1 - 0.5 * float(betainc(freedom / 2, 0.5, freedom / (freedom + t * t)))
        low, high = (t, high) if below < level else (low, t)
    return t
