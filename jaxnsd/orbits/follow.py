"""`follow`: pseudo-arclength continuation of a periodic orbit in a parameter (Keller 1977; Allgower & Georg 2003)."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..simulation import checks
from .arcs import nodes_of
from .branch import Branch
from .grazing import point_of
from .leaves import parameter as named_parameter
from .newton import Given, Start, find
from .orbit import SENTENCES, Orbit, OrbitOutcome
from .periodic import sizes, whole
from .special import CRITICAL, Special, extrapolated, illinois, shifted_by, singular, torus

#: Motions in one search of a corrector.
LIMIT = 8

#: First, longest and shortest step, in the length of the branch in which every unknown is in units of its size, and the parameter in units
#: of the way that it is asked to go.
FIRST, LONGEST, SHORTEST = 0.01, 0.05, 1e-7

#: Tangents of neighbouring points do not differ by more: cosine.
STRAIGHT = 0.95

#: The part of the way to a grazing that one step takes at most, and the part of its largest value down to which an indicator is followed.
APPROACH, NEAR = 0.5, 1e-4

#: Distance of an impact from the start of the period, in periods, at which the start is moved.
CROWDED = 0.05

#: Error of the parameter at a grazing, in parts of the way that it is asked to go, beyond which it is not known.
KNOWN = 0.01

#: Indicator, in parts of its largest value, from which down a lost impact counts as a grazing.
LOW = 0.3


def follow(
    orbit: Orbit, parameter: str | Callable[[Any], Any], to: float, *, max_points: int = 400, step: float = LONGEST, back: bool = False
) -> Branch:
    """Follow a periodic orbit as one parameter changes, around folds, to a value, a grazing, or the end of its sequence of events.

    orbit:       a converged `Orbit`
    parameter:   name of a number of the system, ``"mass"`` or ``"mu[0]"``, or a function that returns its leaf, as
                 ``lambda system: system.mass``
    to:          value at which the branch ends; it ends, too, at the value behind the start that lies as far on the other side
    max_points:  points of the branch
    step:        longest step, relative to the way from the start to ``to``
    back:        whether to start away from ``to``

    Folds, period doublings, Neimark-Sacker and branch points are located where their own equations vanish along the branch, not read off
    its points. A branch ends at a grazing, where an impact loses its speed or an open gap closes, with that label: the parameter there is
    extrapolated from the points before, which come as near as the scheme locates impacts (``LocatedImpacts(slowest=)``).

    Raises ValueError or TypeError for an orbit that has not converged, for a parameter that the system does not have, and for one that
    does not move the orbit.
    """
    if not isinstance(orbit, Orbit):
        raise TypeError(f"follow: needs an Orbit, as orbits.periodic returns it, got {orbit!r}")
    if not checks.known(*jax.tree.leaves(orbit)):
        raise TypeError("follow: needs values, and inside of jit and vmap there are none: call it outside of them")
    if np.ndim(orbit.outcome):
        raise ValueError(
            f"follow: takes one orbit, got a batch of {np.shape(orbit.outcome)}; index it, with jax.tree.map(lambda x: x[0], orbit)"
        )
    if orbit.outcome != OrbitOutcome.CONVERGED:
        raise ValueError(f"follow: the orbit has not converged: {orbit.sentence}")
    which = named_parameter("follow", orbit.system, parameter)
    first = float(which.value(orbit.system))
    max_points = most_points("follow", "the orbit", first, to, max_points, step)
    return _Follower(orbit, which, first, float(to), max_points, step, back).run()


def most_points(caller, of, first, to, max_points, step):
    """``max_points``, a whole number; raises for a way that makes no sense, from the value ``first`` of an orbit or a point."""
    if not (isinstance(to, (int, float, np.number)) and math.isfinite(to) and to != first):
        raise ValueError(f"{caller}: to must be a finite value other than that of {of}, {first:.8g}, got {to!r}")
    max_points = whole(caller, "max_points", max_points, 2)
    if not (isinstance(step, (int, float)) and 0 < step <= 1):
        raise ValueError(f"{caller}: step must be a number in (0, 1], got {step!r}")
    return max_points


def walked(way, point, ahead):
    """Go along a branch or a curve from its first point, so that the last unknown changes as ``ahead`` does: why it ends."""
    toward = math.copysign(1.0, ahead) * (-1 if way.back else 1)
    if point.tangent[-1] * toward < 0:
        point = point._replace(tangent=-point.tangent)
    way.points.append(point)
    h, end = min(FIRST, way.longest), None
    while end is None:
        if len(way.points) >= way.max_points:
            return f"after max_points = {way.max_points}"
        h, end = way.advance(h)
    return end


class _Point(NamedTuple):
    """A point of the branch."""

    v: np.ndarray
    J: np.ndarray
    tangent: np.ndarray  # in scaled unknowns
    found: Any
    orbit: Orbit
    multipliers: np.ndarray
    events: tuple
    indicators: np.ndarray  # percussion of the weakest impact, least gap at a near miss

    @property
    def signs(self):
        """Signs of the test functions: where the parameter turns, det K(1), det K(-1), and a pair on the unit circle."""
        K = np.asarray(self.orbit.jacobian)[:, :-1]
        values = [self.tangent[-1], *(np.linalg.slogdet(shifted_by(K, mu))[0] for mu in (1.0, -1.0)), self.torus]
        return np.sign(values)

    @property
    def torus(self):
        """Test function of Neimark-Sacker points, and of neutral saddles."""
        return torus(self.multipliers[~np.asarray(self.orbit.trivial)])


class _Follower:
    """The way along one branch."""

    def __init__(self, start, which, first, to, max_points, step, back):
        self.start, self.which, self.first, self.to = start, which, first, to
        self.max_points, self.longest, self.back = max_points, step, back
        self.span = abs(to - first)
        self.direction = which.direction(start.system)
        self.given = Given(start.system, start.t0, start.period)
        self.scale = self.sizes(start.t0, start.q, start.u, start.period)
        self.points, self.special = [], []

    def run(self):
        """The `Branch`."""
        v = np.concatenate([self.start.q, self.start.u, [self.start.period, 0.0]])
        at_parameter = np.append(np.zeros(len(v) - 1), 1.0)
        point = self.at(v, at_parameter, None)
        if point is None:
            raise ValueError("follow: the orbit is not found again; is it that of a system and scheme of the same precision?")
        if np.max(np.abs(point.J[:, -1])) <= 1e-12 * np.max(np.abs(point.J[:, :-1] * self.scale[:-1])) / self.span:
            raise ValueError(
                f"follow: {self.which.name} does not move the orbit: a period later the motion is the same "
                "whatever its value; follow another"
            )
        return self.branch(walked(self, point, self.to - self.first))

    def advance(self, h):
        """One step of length h or less: ``(next step, why the branch ends or None)``."""
        if self.crowded():
            self.start_elsewhere()
        last = self.points[-1]
        h = min(h, self.longest, self.approach(last))
        point, code = self.corrected(last, h)
        if point is None:
            h *= 0.5
            return h, (self.lost(code) if h < SHORTEST else None)
        turn = float(last.tangent @ point.tangent)
        if turn < STRAIGHT and h > 1e-3:
            return 0.5 * h, None
        past = self.past(point)
        if past is not None:
            point = self.ended(last, point, past) or point
        self.between(last, point, h)
        self.points.append(point)
        if past is not None:
            return h, f"ended at {self.which.name} = {past:.8g}"
        if (at := self.grazes()) is not None:
            return h, at
        return h * (1.5 if int(point.found.iterations) <= 4 and turn > 0.5 * (1 + STRAIGHT) else 1.0), None

    # --------------------------------------------------------------------------------------------------------------- the start
    def crowded(self):
        """Whether an impact comes near to the start of the period, which it must not pass, and the period may start elsewhere."""
        return len(self.points) > 1 and near_an_impact(self.points[-1].orbit)

    def start_elsewhere(self):
        """Start the period at the node that is farthest from all impacts."""
        last, before = self.points[-1], self.points[-2]
        t, k = np.asarray(last.orbit.solution.t)[:-1], far_from_impacts(last.orbit)
        if k is None:
            return
        given, states = self.given, []
        for point in (before, last):
            # The start of the point before may be elsewhere already.
            sol = point.orbit.solution
            node = int(np.argmin(np.abs((np.asarray(sol.t)[:-1] - t[k] + 0.5 * point.v[-2]) % point.v[-2] - 0.5 * point.v[-2])))
            states.append(np.concatenate([sol.q[node], sol.u[node], point.v[-2:]]))
        self.given = given._replace(t0=jnp.asarray(t[k], last.orbit.q.dtype))
        scale = self.scale
        sol = last.orbit.solution
        self.scale = self.sizes(sol.t[k], sol.q[k], sol.u[k], last.orbit.period)
        way = (states[1] - states[0]) / self.scale
        point = self.at(states[1], np.append(np.zeros(len(way) - 1), 1.0), way / np.linalg.norm(way))
        if point is None or len(point.events) != len(last.events):
            self.given, self.scale = given, scale
            return
        self.points[-1] = point

    def sizes(self, *start):
        """Sizes of the unknowns."""
        return np.append(np.array(sizes(self.start.system, *start))[:-1], self.span)

    def value(self, point):
        """The parameter at a point."""
        return self.first + float(point.v[-1])

    def past(self, point):
        """The end that a point has passed, or None."""
        way = self.value(point) - self.first
        return self.first + math.copysign(self.span, way) if abs(way) > self.span else None

    def ended(self, last, point, value):
        """The point at this value of the parameter."""
        part = (value - self.value(last)) / (self.value(point) - self.value(last))
        v = last.v + part * (point.v - last.v)
        v[-1] = value - self.first
        return self.at(v, np.append(np.zeros(len(v) - 1), 1.0), last.tangent)

    def corrected(self, last, h):
        """``(point, outcome)`` at the distance h along the tangent of ``last``; no point where its events are others."""
        v = last.v + h * last.tangent * self.scale
        row = last.tangent / self.scale
        point = self.at(v, row, last.tangent)
        if point is None or point.events != last.events:
            return None, (OrbitOutcome(int(self.outcome)) if point is None else OrbitOutcome.EVENT_ORDER_CHANGED)
        # Newton's method has jumped onto another branch.
        if np.linalg.norm((point.v - v) / self.scale) > 0.5 * h:
            return None, OrbitOutcome.NO_RETURN
        return point, OrbitOutcome.CONVERGED

    def at(self, v, row, tangent):
        """The `_Point` that Newton's method finds from v, or None."""
        shooting = self.start.shooting
        dtype = self.start.q.dtype
        v, row, scale = (np.asarray(x, dtype) for x in (v, row, self.scale))
        nodes = nodes_of(self.points[-1].orbit if self.points else self.start)
        given, start = self.given, Start(v, self.direction, row, scale, np.int32(LIMIT), nodes)
        found = find(shooting, given, start)
        self.outcome = found.outcome
        if int(found.outcome) != OrbitOutcome.CONVERGED:
            return None
        found_orbit, multipliers, near = point_of(shooting, given, start, found)
        J = np.asarray(found.J)
        scaled = J * self.scale
        rows = np.max(np.abs(scaled), axis=1)
        reference = np.append(np.zeros(len(v) - 1), 1.0) if tangent is None else tangent
        still = np.asarray(shooting.still(found_orbit.system, given.t0, found.v)) * self.scale
        M = np.concatenate([scaled / np.where(rows > 0, rows, 1)[:, None], still, reference[None]])
        new = np.linalg.lstsq(M, np.append(np.zeros(len(M) - 1), 1.0), rcond=1e-11)[0]
        impacts = found_orbit.impacts
        weakest = min((impact.percussion for impact in impacts), default=np.inf)
        events = tuple(impact.contact for impact in impacts)
        indicators = np.array([weakest, float(near)])
        return _Point(np.asarray(found.v), J, new / np.linalg.norm(new), found, found_orbit, np.asarray(multipliers), events, indicators)

    # ------------------------------------------------------------------------------------------------------- special points
    def between(self, last, point, h):
        """Locate what happens between two points."""
        before, after = last.signs, point.signs
        changes = before * after < 0
        kinds = []
        if changes[1]:
            kinds.append("fold" if changes[0] else "branch point")
        if changes[2]:
            kinds.append("period doubling")
        for kind in kinds:
            self.locate(kind, last, point, h, self.singular(kind, point))
        if changes[3]:
            # A pair of real multipliers with the product 1 is no bifurcation.
            self.locate(
                "Neimark-Sacker", last, point, h, lambda point: point.torus, lambda point: abs(np.imag(point.multipliers[0])) > 1e-6
            )

    def singular(self, kind, point):
        """Test function of a point that vanishes where K is singular."""
        scale = in_velocities(self.scale, self.start)

        def K(p):
            return shifted_by(np.asarray(p.orbit.jacobian)[:, :-1] * scale / scale[:, None], CRITICAL[kind])

        test = singular(K(point))
        return lambda p: test(K(p))

    def locate(self, kind, last, point, h, test, accept=lambda point: True):
        """Find the zero of a test function between two points, and keep it."""
        seen = [point]

        def function(s):
            new, _ = self.corrected(last, s)
            if new is None:
                return None
            seen.append(new)
            return test(new)

        # The end of a branch is not at the distance h of the tangent.
        length = float(last.tangent @ ((point.v - last.v) / self.scale))
        found = illinois(function, 0.0, test(last), length, test(point), 4e-14)
        if found is None or not accept(seen[-1]):
            return
        values = [self.value(p) for p in seen[-2:]]
        special = Special(kind, values[-1], abs(values[-1] - values[0]), len(self.points) - 1, seen[-1].orbit, self.which)
        self.special.append(special)

    # ------------------------------------------------------------------------------------------------------------- grazings
    def history(self, k):
        """Indicator k along the branch."""
        return np.array([point.indicators[k] for point in self.points])

    def approach(self, last):
        """The longest step that leaves a part of an indicator that falls."""
        if len(self.points) < 2:
            return math.inf
        before = self.points[-2]
        length = np.linalg.norm((last.v - before.v) / self.scale)
        falls = [(b - a) / length for a, b in zip(last.indicators, before.indicators, strict=True) if np.isfinite(a) and np.isfinite(b)]
        values = [a for a, b in zip(last.indicators, before.indicators, strict=True) if np.isfinite(a) and np.isfinite(b)]
        return min((APPROACH * a / f for a, f in zip(values, falls, strict=True) if f > 0), default=math.inf)

    def falling(self):
        """``(indicator, its values)`` of the one that is nearest to zero, in parts of its largest value, and falls; or None."""
        found = []
        for k in range(2):
            values = self.history(k)
            if len(values) > 2 and np.all(np.isfinite(values[-3:])) and values[-1] < values[-2]:
                found.append((values[-1] / np.max(values[np.isfinite(values)]), k))
        if not found:
            return None
        part, k = min(found)
        return part, k, self.history(k)

    def grazes(self, most=NEAR):
        """Why the branch ends, if an impact or an open gap has come so near to its grazing; the point is kept."""
        falling = self.falling()
        if falling is None or falling[0] > most:
            return None
        _, k, values = falling
        usable = np.flatnonzero(np.isfinite(values))
        first = usable[-1] - np.argmax(np.append(~np.isfinite(values[: usable[-1] + 1][::-1]), True)) + 1
        at = [self.value(point) for point in self.points]
        value, error = extrapolated(at[first:], values[first:])
        if error > KNOWN * self.span:
            return None
        self.special.append(Special("grazing", value, error, len(self.points) - 1, self.points[-1].orbit, self.which, closes=k == 1))
        what = ("an impact loses its speed", "a gap that was open closes")[k]
        return f"grazing at {self.which.name} = {value:.8g}: {what}"

    def lost(self, code):
        """Why a branch ends whose steps have become too short."""
        if (at := self.grazes(LOW)) is not None:
            return at
        falling = self.falling()
        if falling is not None and falling[0] < LOW:
            code = OrbitOutcome.GRAZING
        what, advice = SENTENCES[code]
        return f"{code.name} behind {self.which.name} = {self.value(self.points[-1]):.8g}: {what}; what to try: {advice}"

    def branch(self, end):
        """The `Branch`."""
        points = self.points
        stacked = {
            name: np.stack([np.asarray(getattr(point.orbit, name)) for point in points]) for name in ("period", "t0", "q", "u", "stable")
        }
        return Branch(
            self.which.name,
            np.array([self.value(point) for point in points]),
            highest=np.stack([np.max(point.orbit.solution.q, axis=0) for point in points]),
            multipliers=np.stack([point.multipliers for point in points]),
            weakest=self.history(0),
            special=self.special,
            end=end,
            orbits=[point.orbit for point in points],
            **stacked,
        )


def in_velocities(scale, orbit):
    """Sizes of state and period in steps of velocities (m + 1,), see `Shooting.frames`, from those of the unknowns."""
    n_q, n_u = orbit.q.size, orbit.u.size
    of_q, rest = scale[:n_q], scale[n_q : n_q + n_u + 1]
    return np.concatenate([of_q if n_q == n_u else rest[:-1] * rest[-1] / (2 * np.pi), rest])


def near_an_impact(orbit):
    """Whether an impact is near to the start of the period, and the period may start elsewhere."""
    shooting = orbit.shooting
    if shooting.section is not None or shooting.reset is not None or shooting.arcs > 1 or not orbit.events:
        return False
    return _distance(orbit, np.asarray(orbit.t0)) < CROWDED


def far_from_impacts(orbit):
    """The node that is farthest from all impacts, None where they are everywhere."""
    t = np.asarray(orbit.solution.t)[:-1]
    k = int(np.argmax([_distance(orbit, x) for x in t]))
    return k if _distance(orbit, t[k]) >= 2 * CROWDED else None


def _distance(orbit, t):
    """Distance of a time from the impacts of an orbit, in periods."""
    T = float(orbit.period)
    return min(abs((impact.time - t + 0.5 * T) % T - 0.5 * T) for impact in orbit.impacts) / T
