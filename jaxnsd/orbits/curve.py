"""`curve`: the curve of a special point in the plane of two parameters (Kuznetsov, Elements of Applied Bifurcation Theory, 2004, ch. 10).

Invariant: a point y = (z, T, lam, nu) obeys ``F(z, T; lam, nu) = 0``, it is an orbit, and ``g(y) = 0``, it is of its kind, with

    fold, period doubling    g = det K(1), det K(-1), see `jaxnsd.orbits.special`
    Neimark-Sacker           g = |mu|^2 - 1 of the complex pair nearest to the unit circle
    grazing                  g = the least gap at a near miss, less a small one, from which the parameters at none are extrapolated

F leaves a plane of steps; in it, g is differentiated by differences. They steer the iteration only: where it ends, F and g vanish to
round-off, and no second derivative of the motion is compiled.
"""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .files import read, written
from .follow import LONGEST, STRAIGHT, far_from_impacts, in_velocities, most_points, near_an_impact, walked
from .grazing import point_of
from .leaves import parameter as named_parameter
from .newton import RANK, Given, Start, find
from .orbit import SENTENCES, Orbit, OrbitOutcome
from .periodic import sizes
from .shooting import shifted
from .special import CRITICAL, Special, shifted_by, singular

#: Shortest step, in the length of the curve, as `follow` measures that of a branch.
SHORTEST = 1e-6

#: Difference of the test function's derivative, least gap from which a grazing is extrapolated, both in scaled units.
DIFFERENCE, GAP = 1e-6, 1e-5

#: Steps of Newton's method at most, the length of the last one, and that of one which counts as the last where round-off ends it.
LIMIT, CLOSE, ACCEPTED = 12, 1e-12, 1e-8

_ARRAYS = ("values", "period", "t0", "q", "u", "multipliers")

#: Imaginary part of a pair of multipliers below which a curve that ends is said to end where they become real.
REAL = 0.05


@dataclass(frozen=True, eq=False, repr=False)
class Curve:
    """A curve of special points in the plane of two parameters, K points in the order in which they were found.

    kind:        of the points, as `Special.kind`
    parameters:  names of both
    values:      (K, 2) their values
    period:      (K,) s
    t0, q, u:    (K,), (K, n_q), (K, n_u) starts
    multipliers: (K, n) complex, the largest first
    end:         why the curve ends, a sentence
    orbits:      the K orbits, of grazings those with a last small gap; none of what was loaded
    """

    kind: str
    parameters: tuple[str, str]
    values: np.ndarray
    period: np.ndarray
    t0: np.ndarray
    q: np.ndarray
    u: np.ndarray
    multipliers: np.ndarray
    end: str
    orbits: Sequence[Orbit] = ()

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        """One line: kind, how many points, from where to where."""
        ends = " to ".join(f"({a:.6g}, {b:.6g})" for a, b in self.values[[0, -1]])
        return f"Curve({self.kind}, {len(self)} points, ({', '.join(self.parameters)}) = {ends}; {self.end})"

    def columns(self) -> dict[str, np.ndarray]:
        """The curve as columns (K,) by name, as `pandas.DataFrame` takes them: parameters, period, start."""
        out = dict(zip(self.parameters, self.values.T, strict=True)) | {"period": self.period, "t0": self.t0}
        return out | {f"{name}[{i}]": x[:, i] for name, x in (("q", self.q), ("u", self.u)) for i in range(x.shape[1])}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the curve to a ``.npz`` file: all but its orbits."""
        words = {"kind": self.kind, "parameters": self.parameters, "end": self.end}
        written(path, words, {name: getattr(self, name) for name in _ARRAYS})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Curve":
        """Read what `save` has written. Raises ValueError for another file."""
        words, arrays = read(cls, path, _ARRAYS)
        return cls(words["kind"], tuple(words["parameters"]), end=words["end"], **arrays)


def curve(
    point: Special, parameter: str | Callable[[Any], Any], to: float, *, max_points: int = 200, step: float = LONGEST, back: bool = False
) -> Curve:
    """Follow a fold, a period doubling, a Neimark-Sacker point or a grazing in two parameters: that of its branch, and a second one.

    point:       a `Special` of a followed branch
    parameter:   the second parameter, a name or a function as in `follow`
    to:          its value at which the curve ends; it ends, too, at the value as far on the other side of the start
    max_points:  points of the curve
    step:        longest step, relative to the way from the start to ``to``
    back:        whether to start away from ``to``

    The curve is followed around its turns (pseudo-arclength). ``Curve.end`` says why it ends. Raises ValueError or TypeError for other
    points, for a parameter that the system does not have, and for the one that is followed already.
    """
    if not isinstance(point, Special):
        raise TypeError(f"curve: needs a Special, a point of Branch.special, got {point!r}")
    if point.kind == "branch point":
        raise ValueError("curve: a branch point does not stay one as two parameters change; follow a fold or a period doubling")
    if point.orbit is None or point.parameter is None:
        raise ValueError("curve: the point was loaded, and has no orbit to start from; follow its branch again")
    which = named_parameter("curve", point.orbit.system, parameter)
    first = float(which.value(point.orbit.system))
    if which == point.parameter:
        raise ValueError(f"curve: {which.name} is the parameter of the branch already; give a second one")
    max_points = most_points("curve", "the point", first, to, max_points, step)
    orbit = point.orbit
    if point.kind == "grazing" and not point.closes:
        # Of the two sides of a grazing this one is smooth.
        orbit = point.across()
        if not bool(orbit.success):
            raise ValueError(f"curve: the orbit without the impact that grazes was not found: {orbit.sentence}")
    return _Follower(point, orbit, which, first, float(to), max_points, step, back).run()


class _Point(NamedTuple):
    """A point of the curve."""

    y: np.ndarray
    tangent: np.ndarray  # in scaled unknowns
    values: np.ndarray  # of both parameters
    orbit: Orbit
    multipliers: np.ndarray
    steps: int


class _Follower:
    """The way along one curve."""

    def __init__(self, point, orbit, which, first, to, max_points, step, back):
        self.kind, self.which, self.to = point.kind, (point.parameter, which), to
        self.first = np.array([float(point.parameter.value(orbit.system)), first])
        self.max_points, self.longest, self.back = max_points, step, back
        self.span = abs(to - first)
        self.orbit = orbit
        self.system, self.shooting, self.dtype = orbit.system, orbit.shooting, orbit.q.dtype
        self.directions = [w.direction(orbit.system) for w in self.which]
        self.restart(orbit)
        self.y = np.concatenate([orbit.q, orbit.u, [orbit.period, 0.0, 0.0]])
        self.events, self.points, self.code = orbit.events, [], OrbitOutcome.NO_RETURN

    def restart(self, orbit, k=None):
        """Start the period at the orbit's start, or at its node k."""
        sol = orbit.solution
        self.t0, q, u = (orbit.t0, orbit.q, orbit.u) if k is None else (sol.t[k], sol.q[k], sol.u[k])
        lengths = [abs(self.first[0]) or 1.0, self.span]
        self.T, self.scale = orbit.period, np.append(np.array(sizes(self.system, self.t0, q, u, orbit.period))[:-1], lengths)
        return np.concatenate([q, u])

    def run(self):
        """The `Curve`."""
        self.at_value = np.append(np.zeros(len(self.y) - 1), 1.0)
        point = self.at(self.y, self.at_value)
        if point is None:
            raise ValueError(f"curve: the {self.kind} is not found again from its orbit: {SENTENCES[self.code][0]}")
        return self.result(walked(self, point, self.to - self.first[1]))

    def advance(self, h):
        """One step of length h: ``(next step, why the curve ends or None)``."""
        if near_an_impact(self.points[-1].orbit):
            self.start_elsewhere()
        last, h = self.points[-1], min(h, self.longest)
        point = self.at(last.y + h * last.tangent * self.scale, last.tangent, last.tangent)
        turn = 0.0 if point is None else float(last.tangent @ point.tangent)
        far = point is not None and np.linalg.norm((point.y - last.y) / self.scale) > 2 * h
        if point is None or turn < STRAIGHT or far:
            h *= 0.5
            return h, (self.lost() if h < SHORTEST else None)
        way = point.values[1] - self.first[1]
        if abs(way) > self.span:
            value = self.first[1] + math.copysign(self.span, way)
            part = (value - last.values[1]) / (point.values[1] - last.values[1])
            y = last.y + part * (point.y - last.y)
            y[-1] = value - self.first[1]
            self.points.append(self.at(y, self.at_value, last.tangent) or point)
            return h, f"ended at {self.which[1].name} = {value:.8g}"
        self.points.append(point)
        return h * (1.5 if point.steps <= 4 and turn > 0.5 * (1 + STRAIGHT) else 1.0), None

    def start_elsewhere(self):
        """Start the period at the node that is farthest from all impacts."""
        last = self.points[-1]
        k = far_from_impacts(last.orbit)
        if k is None:
            return
        before = self.t0, self.T, self.scale
        y = np.concatenate([self.restart(last.orbit, k), last.y[-3:]])
        point = self.at(y, self.at_value, last.tangent)
        if point is None:
            self.t0, self.T, self.scale = before
            return
        self.points[-1] = point

    def seen(self, y):
        """``(F (n + 1,), its Jacobian (n + 1, n + 3) in scaled unknowns, whether the motion is one)``."""
        found = [self.moved(y, own)[-1] for own in (0, 1)]
        J = [np.asarray(f.J) for f in found]
        # What is moved by each of the two parameters differs in the last column alone.
        J = np.column_stack([J[0], J[1][:, -1]]) * self.scale
        return np.asarray(found[0].F), J, np.all(np.isfinite(J)) and bool(found[0].solution.success)

    def tested(self, y, test):
        """Test function at some y."""
        given, start, found = self.moved(y, 0)
        return test(np.asarray(found.J), given, start, found)

    def moved(self, y, own, row=None, limit=1):
        """What `find` takes and gives, parameter ``own`` being the one by which it derives: of one motion where the limit is 1."""
        given = Given(shifted(self.system, self.directions[1 - own], y[-1 - own]), self.t0, self.T)
        v, scale = np.append(y[:-2], y[-2 + own]), self.scale[:-1]
        row = np.append(np.zeros(len(v) - 1), 1.0) if row is None else row
        v, row, scale = (x.astype(self.dtype) for x in (v, row, scale))
        # Of several arcs the later ones start where the motion passes: what is looked at is that of v.
        start = Start(v, self.directions[own], row, scale, np.int32(limit))
        return given, start, find(self.shooting, given, start)

    def test(self, J, y):
        """Test function of the kind: of the Jacobian by all but the second parameter, and of what `find` takes and gives."""
        if self.kind == "grazing":
            size = self.scale[: self.shooting.n_q].max()
            return lambda J, *of: float(point_of(self.shooting, *of)[2]) / size - GAP
        if self.kind == "Neimark-Sacker":
            return lambda J, given, start, found: _on_the_circle(point_of(self.shooting, given, start, found))
        mu = CRITICAL[self.kind]
        L, R = (np.asarray(x) for x in self.shooting.frames(self.system, self.t0, y[:-1]))
        scale = in_velocities(self.scale, self.orbit)

        def K(J):
            return shifted_by((L @ J @ R)[:, :-1] * scale / scale[:, None], mu)

        value = singular(K(J))
        return lambda J, *_: value(K(J))

    def at(self, y, row, tangent=None):
        """The `_Point` at which Newton's method ends, or None; ``row`` holds it where it starts."""
        start = y
        test, moved = None, math.inf
        for steps in range(1, LIMIT + 1):
            F, J, moves = self.seen(y)
            if not moves:
                self.code = OrbitOutcome.SIMULATION_FAILED
                return None
            if test is None:
                test = self.test(J[:, :-1] / self.scale[:-1], y)
            rows = np.max(np.abs(J), axis=1)
            rows = np.where(rows > 0, rows, 1.0)
            # The length of a quaternion makes no difference, and is no direction of the plane.
            still = np.asarray(self.shooting.still(self.system, self.t0, y[:-1])) * self.scale[:-1]
            M = np.concatenate([J / rows[:, None], np.pad(still, ((0, 0), (0, 1)))])
            back = np.linalg.lstsq(M, np.append(-F / rows, np.zeros(len(still))), rcond=RANK)[0]
            plane = np.linalg.svd(M)[2][-2:]
            p = y + self.scale * back
            g, *others = (self.tested(p + DIFFERENCE * self.scale * n, test) for n in (np.zeros_like(row), *plane))
            M = np.stack([(np.array(others) - g) / DIFFERENCE, plane @ row]) if np.all(np.isfinite([g, *others])) else np.zeros((2, 2))
            if abs(np.linalg.det(M)) <= 1e-12 * np.abs(M).max() ** 2:
                self.code = OrbitOutcome.EVENT_ORDER_CHANGED
                return None
            c = np.linalg.solve(M, [-g, -row @ ((p - start) / self.scale)])
            new = p + self.scale * (c @ plane)
            before, moved = moved, np.linalg.norm((new - y) / self.scale)
            y = new
            # Round-off of the motion ends the iteration where its steps do not become smaller any more.
            if moved < CLOSE or (moved < ACCEPTED and (moved >= 0.5 * before or steps == LIMIT)):
                return self.completed(y, tangent, M, plane, steps)
        self.code = OrbitOutcome.NO_RETURN
        return None

    def completed(self, y, tangent, M, plane, steps):
        """The `_Point` of what was found, or None where its events are others. M: derivatives by the plane's steps of g and of the row."""
        direction = np.array([-M[0, 1], M[0, 0]]) @ plane / np.linalg.norm(M[0])
        if tangent is not None and direction[-2:] @ tangent[-2:] < 0:
            direction = -direction
        values = self.first + y[-2:]
        if self.kind == "grazing":
            values = values - GAP * (self.scale * (np.linalg.solve(M, [1.0, 0.0]) @ plane))[-2:]
        # In this direction the orbits at fixed nu go on; at a fold the parameter alone holds none.
        along = plane[0] * plane[1][-1] - plane[1] * plane[0][-1]
        given, start, found = self.moved(y, 0, along[:-1] / self.scale[:-1], 3)
        self.code = OrbitOutcome(int(found.outcome))
        if self.code != OrbitOutcome.CONVERGED:
            return None
        orbit, multipliers, _ = point_of(self.shooting, given, start, found)
        if orbit.events != self.events:
            self.code = OrbitOutcome.EVENT_ORDER_CHANGED
            return None
        return _Point(y, direction, values, orbit, np.asarray(multipliers), steps)

    def lost(self):
        """Why the curve ends whose steps have become too short."""
        at = ", ".join(f"{w.name} = {x:.8g}" for w, x in zip(self.which, self.points[-1].values, strict=True))
        mu = min(self.points[-1].multipliers, key=lambda mu: abs(abs(mu) - 1))
        if self.kind == "Neimark-Sacker" and abs(mu.imag) < REAL:
            return f"strong resonance behind {at}: the pair of multipliers has come to {round(mu.real)}, and is real beyond"
        what, advice = SENTENCES[self.code]
        if self.code == OrbitOutcome.CONVERGED:
            what, advice = "the curve turns too sharply to be followed, as at a cusp", "a shorter step="
        return f"{self.code.name} behind {at}: {what}; what to try: {advice}"

    def result(self, end):
        """The `Curve`."""
        stacked = {name: np.stack([np.asarray(getattr(p.orbit, name)) for p in self.points]) for name in ("period", "t0", "q", "u")}
        values, multipliers = (np.stack([getattr(p, name) for p in self.points]) for name in ("values", "multipliers"))
        names = (self.which[0].name, self.which[1].name)
        return Curve(self.kind, names, values, multipliers=multipliers, end=end, orbits=[p.orbit for p in self.points], **stacked)


def _on_the_circle(seen):
    """``|mu|^2 - 1`` of the complex pair that is nearest to the unit circle; not a number where all are real."""
    mu = np.asarray(seen[1])
    mu = mu[np.abs(mu.imag) > 1e-9]
    return min((abs(m) ** 2 - 1 for m in mu), key=abs, default=math.nan)
