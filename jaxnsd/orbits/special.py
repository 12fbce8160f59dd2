"""Points of a branch at which an orbit changes its kind: test functions, their zeros, and the derivatives of these.

With K(mu) = [D_z phi - mu I, d_T phi; D_z phase, d_T phase], the derivative of the equations of an orbit (`jaxnsd.orbits.shooting`) by
state and period with the multiplier mu in place of 1, the orbit

    folds at                det K(1) = 0, where the parameter turns;  at a branch point K(1) is singular, and the parameter does not turn
    doubles its period at   det K(-1) = 0
    sheds a torus at        mu_1 mu_2 = 1 with a complex pair, det of the bialternate product of the multipliers (Neimark & Sacker)

(Kuznetsov, Elements of Applied Bifurcation Theory, 2004, ch. 10). A zero is found along the branch, by the secant method on the
determinant, which is smooth and has a simple zero there, also where another multiplier is near, and asks for no second derivative. Those,
``w' D(K) x`` with the null vectors w and x, give the derivatives of the point's parameter. They are differences of K along x, of sixth
order: compiled as derivatives of derivatives they would take minutes, and be no numbers where a contact opens or starts to slide.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .arcs import nodes_of
from .grazing import across
from .leaves import Parameter, all_of
from .newton import Given, Start, find, order_of
from .newton import orbit as orbit_of
from .orbit import Orbit
from .periodic import LIMIT, sizes

#: Step of the differences of K, in units of the sizes of the motion.
DIFFERENCE = 2e-3

#: multiplier at which K is singular
CRITICAL = {"fold": 1.0, "branch point": 1.0, "period doubling": -1.0}


@dataclass(frozen=True, eq=False, repr=False)
class Special:
    """A point of a branch at which something happens.

    kind:    "fold", "branch point", "period doubling", "Neimark-Sacker", "grazing"
    value:   the parameter there
    error:   an estimate of its error: the last change of the iteration, or of the extrapolation to the grazing. What the steps of the
             scheme are off by is not in it: more ``n_steps`` tell
    index:   the point lies behind this one of the branch, before the next
    orbit:   the orbit there, of a grazing, whose value is extrapolated, the last one before it; None for what was loaded
    closes:  of a grazing: whether an open gap closes there; otherwise an impact loses its speed
    """

    kind: str
    value: float
    error: float
    index: int
    orbit: Orbit | None = None
    parameter: Parameter | None = field(default=None)
    closes: bool = False

    def __repr__(self) -> str:
        """One line."""
        return f"Special({self.kind} at {self.value:.10g}, error about {self.error:.1e})"

    def derivatives(self) -> dict[str, float]:
        """Derivatives of the parameter at this point by all other parameters of the system, by name.

        By the implicit function theorem on the equations of the orbit and of its kind; for folds and period doublings. Raises ValueError
        for others.
        """
        if self.kind not in ("fold", "period doubling") or self.orbit is None:
            what = f"a {self.kind}" if self.orbit is not None else "what was loaded"
            raise ValueError(f"Special.derivatives: folds and period doublings of a followed branch have derivatives here, {what} has not")
        orbit, own = self.orbit, self.parameter
        v = np.concatenate([orbit.q, orbit.u, [orbit.period, 0.0]])
        K = shifted_by(np.asarray(orbit.jacobian)[:, :-1], CRITICAL[self.kind])
        w, x, _ = null_vectors(K)
        L, R = map(np.asarray, orbit.shooting.frames(orbit.system, orbit.t0, v))
        w, along = w @ L, R @ np.append(x, 0.0)
        scale = np.array(sizes(orbit.system, orbit.t0, orbit.q, orbit.u, orbit.period))
        length = np.max(np.abs(along / scale)) / DIFFERENCE
        given = Given(orbit.system, orbit.t0, orbit.period)

        def seen(direction, steps):
            """The Jacobian by v, whose last column is that by the parameter, so many steps along x; and a number for the events."""
            arrays = {"v": v + steps / length * along, "row": np.append(np.zeros(len(v) - 1), 1.0), "scale": scale}
            arrays = {name: x.astype(orbit.q.dtype) for name, x in arrays.items()}
            found = find(orbit.shooting, given, Start(**arrays, direction=direction, limit=np.int32(1)))
            return np.asarray(found.J), int(order_of(found.solution))

        # Steps so short that the sequence of events stays what it is.
        direction = own.direction(orbit.system)
        part = next((part for part in 0.25 ** np.arange(8) if len({seen(direction, k * part)[1] for k in (-3, 0, 3)}) == 1), None)
        if part is None:
            raise ValueError(f"Special.derivatives: right beside {self!r} there are other impacts, so that it has no derivatives")

        def by(parameter):
            """The Jacobian, and its derivative along x."""
            direction = parameter.direction(orbit.system)
            J = {k: seen(direction, k * part)[0] for k in range(-3, 4)}
            return J[0], (J[3] - J[-3] - 9 * (J[2] - J[-2]) + 45 * (J[1] - J[-1])) * length / (60 * part)

        J, D = by(own)
        M = np.concatenate([J, (w @ D)[None]])
        out = {}
        for parameter in all_of(orbit.system):
            if parameter == own:
                continue
            J_p, D_p = by(parameter)
            right = np.append(J_p[:, -1], w @ D_p[:, -1])
            out[parameter.name] = float(-np.linalg.lstsq(M, right, rcond=1e-12)[0][-1])
        return out

    def doubled(self, distance: float = 0.02) -> Orbit:
        """The orbit of twice the period that leaves the branch at this period doubling, at a small distance of it, to be followed.

        distance:  of its start from that of the point, in units of the sizes of coordinates and velocities; the parameter is found with it

        The orbit has twice as many steps a period; its outcome says whether it was found. Raises ValueError for other points, and for
        motions with a reset, which would have to act in the middle of the new period as well.
        """
        if self.kind != "period doubling" or self.orbit is None:
            raise ValueError(f"Special.doubled: only the period doublings of a followed branch have such an orbit, not {self!r}")
        orbit, old = self.orbit, self.orbit.shooting
        if old.reset is not None:
            raise ValueError("Special.doubled: takes no motion with a reset, which would act in the middle of the new period as well")
        arcs = old.arcs if old.arcs == 1 else 2 * old.arcs
        shooting = replace(old, n_steps=2 * old.n_steps, period=old.period and Twice(old.period), arcs=arcs)
        _, x, _ = null_vectors(shifted_by(np.asarray(orbit.jacobian)[:, :-1], CRITICAL[self.kind]))
        T = 2 * orbit.period
        scale = np.array(sizes(orbit.system, orbit.t0, orbit.q, orbit.u, T))
        # After the first of the two periods it is on the other side, so the sum of both has no other length.
        v = np.concatenate([orbit.q, orbit.u, [T, 0.0]])
        x = np.asarray(old.frames(orbit.system, orbit.t0, v)[1]) @ np.append(x[:-1], [0.0, 0.0])
        x /= np.linalg.norm(x / scale)
        scale[-1] = abs(self.value) or 1.0
        v = v + distance * x
        nodes = nodes_of(orbit)
        nodes = nodes if nodes is None else np.concatenate([nodes, [np.concatenate([orbit.q, orbit.u])], nodes])
        start = Start(v, self.parameter.direction(orbit.system), x / scale**2, scale, np.int32(LIMIT), nodes)
        given = Given(orbit.system, orbit.t0, T)
        return orbit_of(shooting, given, start, find(shooting, given, start))

    def across(self) -> Orbit:
        """The orbit behind this grazing, with the impact more or less that the branch does not have, to be followed.

        It is near to the grazing, and its parameter is found with it: where both sides of a grazing exist for the same values, the branch
        turns back there. Its outcome says whether it was found. Raises ValueError for other points.
        """
        if self.kind != "grazing" or self.orbit is None:
            raise ValueError(f"Special.across: only the grazings of a followed branch have such an orbit, not {self!r}")
        return across(self.orbit, self.parameter, self.closes)


@dataclass(frozen=True)
class Twice:
    """Twice a period that is a function of the system."""

    period: Callable[..., Any]

    def __call__(self, system: Any) -> Any:
        return 2 * self.period(system)


def shifted_by(K, mu):
    """K(mu) from K(1), (n + 1, n + 1)."""
    n = K.shape[0] - 1
    return K + np.diag(np.append(np.full(n, 1.0 - mu), 0.0))


def null_vectors(K):
    """Left and right singular vectors of the smallest singular value, and that over the largest."""
    U, s, V = np.linalg.svd(K)
    return U[:, -1], V[-1], s[-1] / s[0]


def singular(K):
    """A function of matrices near K that vanishes where they are singular: the determinant over the product of all singular values of K but
    the smallest.
    """
    others = np.sum(np.log(np.linalg.svd(K, compute_uv=False)[:-1]))

    def test(K):
        sign, size = np.linalg.slogdet(K)
        return sign * np.exp(size - others)

    return test


def torus(multipliers):
    """``prod (mu_i mu_j - 1)`` over pairs of multipliers: changes its sign where a pair crosses the unit circle."""
    n = len(multipliers)
    pairs = [multipliers[i] * multipliers[j] - 1 for i in range(n) for j in range(i + 1, n)]
    return float(np.real(np.prod(pairs))) if pairs else 1.0


def illinois(function, a, fa, b, fb, tolerance, limit=40):
    """``(root, last change)`` of a continuous function between a and b, where its signs differ: the secant method that keeps the root."""
    change = abs(b - a)
    for _ in range(limit):
        new = b - fb * (b - a) / (fb - fa)
        f = function(new)
        change = abs(new - b)
        if f is None or not np.isfinite(f):
            return None
        if f == 0 or change <= tolerance:
            return new, change
        if f * fb < 0:
            a, fa = b, fb
        else:
            fa *= 0.5
        b, fb = new, f
    return b, change


def extrapolated(values, indicator):
    """``(value, error)`` of what ``values`` tend to where the ``indicator`` vanishes: polynomials through points before it (Neville), whose
    indicators grow by a quarter from point to point; the error is the difference to that from points twice as wide apart, or to that of one
    point less, the larger of both.
    """
    (value, change), (coarse, _) = (_at_zero(values, indicator, ratio) for ratio in (1.25, 1.6))
    return value, max(abs(value - coarse), change)


def _at_zero(values, indicator, ratio, most=6):
    """``(value, last change)``."""
    chosen = [len(values) - 1]
    for k in range(len(values) - 2, -1, -1):
        if len(chosen) < most and indicator[k] > ratio * indicator[chosen[-1]]:
            chosen.append(k)
    x, y = np.asarray(indicator)[chosen], list(np.asarray(values)[chosen])
    best, change = y[0], np.inf
    for order in range(1, len(x)):
        y = [(x[i] * y[i + 1] - x[i + order] * y[i]) / (x[i] - x[i + order]) for i in range(len(y) - 1)]
        if abs(y[0] - best) >= change:
            break
        best, change = y[0], abs(y[0] - best)
    return float(best), float(change)
