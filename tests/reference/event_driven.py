"""Mechanics with impacts and planar Coulomb friction, integrated from event to event in NumPy and SciPy.

Between events the contact forces are eliminated and the motion is smooth: a Runge-Kutta method of order eight integrates it. Events
are roots of gaps, of normal forces, of slip, and of the margin of the friction cone. What happens then is found by trying all modes of all
closed contacts: open, sticking, sliding to either side. The laws are

    impact     M (u+ - u-) = W_N P_N + W_F P_F,  0 <= P_N  complementary to  u_N+ + e_N u_N- >= 0,
               P_F in [-mu P_N, mu P_N], opposed to  u_F+ + e_F u_F-,
    contact    the same for forces and accelerations, where a contact is closed and its gap does not change.

Derivatives of the end by a parameter are those of the variational equation between events, and of saltation matrices at them.

What is found comes with margins: by how much the motion misses an event that did not happen, and an impact another mode. Where a margin is
small the motion is not a smooth function of its parameters, or next to where it is not.
"""

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from scipy.integrate import solve_ivp

CLOSED, REST = 1e-9, 1e-9  # gap in m, velocity in m/s, below which a contact is closed, or does not move
SLOWEST = 1e-6  # m/s: slower impacts with restitution are on their way to infinitely many
TOLERANCES = {"rtol": 1e-12, "atol": 1e-13}
OPEN, STICK, PLUS, MINUS, FREE = "open", "stick", "plus", "minus", "free"  # FREE: closed, without friction
SIGN = {PLUS: 1.0, MINUS: -1.0, FREE: 0.0}


class NoMotionError(Exception):
    """The laws allow no motion, or several, or infinitely many impacts in finite time."""


@dataclass(frozen=True)
class Mechanics:
    """A system, as functions in NumPy which take complex numbers too.

    M(t, q), h(t, q, u):  mass matrix and all forces but those of contacts: M du/dt = h
    gap(t, q):            (n,)
    gap_rate(t, q, u):    (n,) time derivative of the gap, affine in u
    slip(t, q, u):        (n,) relative tangential velocity, affine in u
    e_N, e_F, mu:         (n,) each
    """

    M: Callable
    h: Callable
    gap: Callable
    gap_rate: Callable
    slip: Callable
    e_N: np.ndarray
    e_F: np.ndarray
    mu: np.ndarray

    def directions(self, t, q):
        """(2 n, n_u): rows of normal, then of tangential velocities."""
        rest = self.rates(t, q, np.zeros(len(q)))
        return np.stack([self.rates(t, q, e) - rest for e in np.eye(len(q))], axis=1)

    def rates(self, t, q, u):
        """(2 n,): gap rates, then slip."""
        return np.concatenate([self.gap_rate(t, q, u), self.slip(t, q, u)])

    def bias(self, t, q, u):
        """(2 n,): what the rates change by where u does not, by a complex step."""
        return np.imag(self.rates(t + 1e-30j, q + 1e-30j * u, u)) / 1e-30


@dataclass
class Motion:
    """What was found: the end, the events, and how far all of it is from another sequence of events.

    events:   [(time, kind, contacts, speed)], the speed being that of approach of an impact
    phases:   [(t0, t1, dense output, modes)]
    ends:     [(number of the watched function that ended a phase, (contacts, their modes) of the impact there, or None)]
    gap_margin, force_margin, slip_margin, cone_margin: smallest minimum of what stayed positive
    impact_margin: smallest margin of a mode of an impact, as a velocity; law_margin: the same for accelerations
    """

    t: float
    q: np.ndarray
    u: np.ndarray
    modes: tuple
    events: list = field(default_factory=list)
    phases: list = field(default_factory=list)
    ends: list = field(default_factory=list)
    gap_margin: float = np.inf
    force_margin: float = np.inf
    slip_margin: float = np.inf
    cone_margin: float = np.inf
    impact_margin: float = np.inf
    law_margin: float = np.inf

    @property
    def signature(self):
        """What has to be the same for two motions to be neighbours."""
        return tuple(event[1:3] for event in self.events), tuple(phase[3] for phase in self.phases)

    def at(self, t):
        """(q, u) at a time within a phase."""
        for t0, t1, dense, _ in self.phases:
            if t0 <= t <= t1:
                return np.split(dense(t), 2)
        raise ValueError(t)

    def lower(self, name, value):
        """Keep the smallest."""
        setattr(self, name, min(getattr(self, name), value))


def respond(G, c, mu, modes):
    """Forces (2 n,) with which ``G P + c`` obeys these modes of the contacts, as equations without the inequalities."""
    n = len(modes)
    A, b = np.eye(2 * n), np.zeros(2 * n)
    for i, mode in enumerate(modes):
        if mode == OPEN:
            continue
        A[i], b[i] = G[i], -c[i]
        if mode == STICK:
            A[n + i], b[n + i] = G[n + i], -c[n + i]
        else:
            A[n + i, i] = SIGN[mode] * mu[i]
    try:
        P = np.linalg.solve(A, b)
        if np.max(np.abs(A @ P - b)) < 1e-9 * (1 + np.max(np.abs(b))) and np.max(np.abs(P)) < 1e8:
            return P
    except np.linalg.LinAlgError:
        pass
    P = np.linalg.lstsq(A, b, rcond=1e-10)[0]
    return P if np.max(np.abs(A @ P - b)) < 1e-9 * (1 + np.max(np.abs(b))) else None


def margin(G, c, mu, modes, P, moves):
    """By how much the inequalities of these modes hold, as velocities or accelerations; negative where they do not."""
    n, xi, worst = len(modes), G @ P + c, np.inf
    for i, mode in enumerate(modes):
        if mode == OPEN:
            worst = min(worst, xi[i])
            continue
        worst = min(worst, G[i, i] * P[i])
        if mode == STICK:
            worst = min(worst, G[n + i, n + i] * (mu[i] * P[i] - abs(P[n + i])))
        elif mode != FREE and not moves[i]:
            worst = min(worst, SIGN[mode] * xi[n + i])
    return worst


def enumerate_modes(G, c, mu, allowed, moves):
    """The modes that solve a contact problem, their forces and their margin.

    ``moves``: contacts which slide already, so that nothing is asked of how their slip changes. Raises where there is no solution, or where
    there are several which are not the same motion.
    """
    found = []
    for modes in itertools.product(*allowed):
        P = respond(G, c, mu, modes)
        if P is not None:
            found.append((margin(G, c, mu, modes, P, moves), modes, P))
    found = [solution for solution in found if solution[0] > -1e-9]
    if not found:
        raise NoMotionError("no solution")
    best = max(found, key=lambda solution: solution[0])
    scale = 1 + np.max(np.abs(c), initial=0)
    for other in found:
        if np.max(np.abs(G @ (other[2] - best[2])), initial=0) > 1e-6 * scale:
            raise NoMotionError("several solutions")
    return best[1], best[2], best[0]


def contact_terms(m, t, q, u, contacts):
    """``(inverse of M times W^T, G, free acceleration of u, free acceleration of the rates)`` of some contacts."""
    rows = [*contacts, *(len(m.mu) + i for i in contacts)]
    W = m.directions(t, q)[rows]
    solved = np.linalg.solve(m.M(t, q), np.c_[W.T, m.h(t, q, u)])
    return solved[:, :-1], W @ solved[:, :-1], solved[:, -1], W @ solved[:, -1] + m.bias(t, q, u)[rows]


def closed_of(modes):
    """Numbers of the closed contacts."""
    return [i for i, mode in enumerate(modes) if mode != OPEN]


def forces(m, t, q, u, modes):
    """``(du/dt, lambda_N, lambda_F)`` in these modes; forces of open contacts are zero."""
    n, closed = len(m.mu), closed_of(modes)
    if not closed:
        return np.linalg.solve(m.M(t, q), m.h(t, q, u)), np.zeros(n), np.zeros(n)
    by_force, G, a, c = contact_terms(m, t, q, u, closed)
    P = respond(G, c, m.mu[closed], [modes[i] for i in closed])
    if P is None:
        raise NoMotionError("forces are not determined")
    normal, tangential = np.zeros(n), np.zeros(n)
    normal[closed], tangential[closed] = np.split(P, 2)
    return a + by_force @ P, normal, tangential


def impact(m, t, q, u, contacts, modes=None):
    """``(u+, modes, margin)`` of an impact of these contacts; in these modes, where they are given."""
    rows = [*contacts, *(len(m.mu) + i for i in contacts)]
    W, rates = m.directions(t, q)[rows], m.rates(t, q, u)[rows]
    by_force = np.linalg.solve(m.M(t, q), W.T)
    mu, e = m.mu[contacts], np.r_[m.e_N[contacts], m.e_F[contacts]]
    if modes is not None:
        return u + by_force @ respond(W @ by_force, (1 + e) * rates, mu, modes), modes, np.inf
    allowed = [(OPEN, STICK, PLUS, MINUS) if mu_i > 0 else (OPEN, FREE) for mu_i in mu]
    modes, P, least = enumerate_modes(W @ by_force, (1 + e) * rates, mu, allowed, [False] * len(contacts))
    return u + by_force @ P, modes, least


def settle(m, t, q, u, contacts):
    """``(modes of all contacts, margin)`` after time t, of which ``contacts`` are closed and do not approach or leave."""
    modes = [OPEN] * len(m.mu)
    if not contacts:
        return tuple(modes), np.inf
    _, G, _, c = contact_terms(m, t, q, u, contacts)
    slip, mu, allowed = m.slip(t, q, u)[contacts], m.mu[contacts], []
    moves = np.abs(slip) > REST
    for i in range(len(contacts)):
        if mu[i] == 0:
            allowed.append((OPEN, FREE))
        elif moves[i]:
            allowed.append((OPEN, PLUS if slip[i] > 0 else MINUS))
        else:
            allowed.append((OPEN, STICK, PLUS, MINUS))
    chosen, _, least = enumerate_modes(G, c, mu, allowed, moves)
    for i, mode in zip(contacts, chosen, strict=True):
        modes[i] = mode
    return tuple(modes), least


def project(m, t, q, u, modes):
    """The velocity without what round-off left of the rates of closed contacts."""
    n, closed = len(m.mu), closed_of(modes)
    rows = [*closed, *(n + i for i in closed if modes[i] == STICK)]
    if not rows:
        return u
    W, rates = m.directions(t, q)[rows], m.rates(t, q, u)[rows]
    by_force = np.linalg.solve(m.M(t, q), W.T)
    return u - by_force @ np.linalg.lstsq(W @ by_force, rates, rcond=1e-10)[0]


def watch(m, modes, guard):
    """``[(kind, contact, function of (t, q, u))]``: an event comes where a function falls through zero."""
    out = []

    def force(i, combine):
        def value(t, q, u):
            _, normal, tangential = forces(m, t, q, u, modes)
            return combine(normal[i], tangential[i])

        return value

    for i, mode in enumerate(modes):
        if mode == OPEN:
            out.append(("impact", i, lambda t, q, u, i=i: m.gap(t, q)[i] + guard[i]))
            continue
        out.append(("take-off", i, force(i, lambda normal, tangential: normal)))
        if mode == STICK:
            out.append(("slip +", i, force(i, lambda normal, tangential, mu=m.mu[i]: mu * normal + tangential)))
            out.append(("slip -", i, force(i, lambda normal, tangential, mu=m.mu[i]: mu * normal - tangential)))
        elif mode != FREE:
            out.append(("stop", i, lambda t, q, u, i=i, s=SIGN[mode]: s * m.slip(t, q, u)[i]))
    return out


MARGINS = {"impact": "gap_margin", "take-off": "force_margin", "slip +": "cone_margin", "slip -": "cone_margin", "stop": "slip_margin"}


def look_between(motion, watched, phase, which, samples=60):
    """Minima of the watched functions over a phase: how near it came to an event that it did not have.

    They are looked for inside of it, and at its end, where the motion turns, of all but the function that ended it.
    """
    t0, t1, dense, _ = phase
    times = np.linspace(t0, t1, samples)
    states = [np.split(dense(t), 2) for t in times]
    for i, (kind, _, function) in enumerate(watched):
        x = np.array([function(t, q, u) for t, (q, u) in zip(times, states, strict=True)])
        inside = x[1:-1][(x[1:-1] <= x[:-2]) & (x[1:-1] <= x[2:])]
        least = np.min(inside, initial=np.inf if i == which else x[-1])
        if kind == "impact" and least < -1e-9:
            raise NoMotionError("two roots of a gap in one step")
        motion.lower(MARGINS[kind], least)


def smooth(m, t, q, u, t1, modes, guard, max_step):
    """One phase: ``(phase, watched, which event ended it or None, q, u)``."""
    n_q, watched = len(q), watch(m, modes, guard)

    def rhs(t, x):
        return np.concatenate([x[n_q:], forces(m, t, x[:n_q], x[n_q:], modes)[0]])

    events = []
    for _, _, function in watched:

        def event(t, x, function=function):
            return function(t, x[:n_q], x[n_q:])

        event.terminal, event.direction = True, -1
        events.append(event)
    options = {"dense_output": True, "max_step": max_step, **TOLERANCES}
    run = solve_ivp(rhs, (t, t1), np.concatenate([q, u]), "DOP853", events=events, **options)
    if run.status < 0:
        raise NoMotionError(run.message)
    which = next((i for i, times in enumerate(run.t_events) if len(times)), None) if run.status == 1 else None
    return (t, run.t[-1], run.sol, modes), watched, which, run.y[:n_q, -1], run.y[n_q:, -1]


def integrate(m, q, u, t1, t0=0.0, most_events=40, max_step=None):
    """The `Motion` from (q, u) at t0 to t1. Raises `NoMotionError`, after ``most_events`` phases too."""
    q, u, t, n = np.array(q, float), np.array(u, float), t0, len(m.mu)
    max_step = (t1 - t0) / 20 if max_step is None else max_step
    motion, guard = Motion(t, q, u, (OPEN,) * n), np.zeros(n)

    def collide(t, q, u, modes):
        touching = [i for i in range(n) if modes[i] != OPEN or m.gap(t, q)[i] <= CLOSED]
        before = m.gap_rate(t, q, u)
        hit = [i for i in touching if before[i] < -REST]
        if hit:
            u, chosen, least = impact(m, t, q, u, touching)
            motion.lower("impact_margin", least)
            motion.ends[-1:] = [(which, (touching, chosen)) for which, _ in motion.ends[-1:]]
            if any(m.e_N[i] > 0 and before[i] > -SLOWEST for i in hit):
                raise NoMotionError("impacts accumulate")
            motion.events.append((t, "impact", tuple(hit), -min(before[hit])))
        after = m.gap_rate(t, q, u)
        modes, least = settle(m, t, q, u, [i for i in touching if after[i] <= REST])
        motion.lower("law_margin", least)
        return u, modes

    u, modes = collide(t, q, u, motion.modes)
    while True:
        phase, watched, which, q, u = smooth(m, t, q, u, t1, modes, guard, max_step)
        t, guard = phase[1], np.zeros(n)
        motion.phases.append(phase)
        motion.ends.append((which, None))
        look_between(motion, watched, phase, which)
        if which is None:
            motion.t, motion.q, motion.u, motion.modes = t, q, u, modes
            return motion
        # Phases are counted, not events: a contact that touches without force or approach ends phases, too.
        if len(motion.phases) > most_events:
            raise NoMotionError("too many events")
        kind, i, _ = watched[which]
        u = project(m, t, q, u, modes)
        if kind == "impact":
            u, modes = collide(t, q, u, modes)
            continue
        motion.events.append((t, kind, (i,), 0.0))
        if kind == "take-off":
            modes, guard[i] = (*modes[:i], OPEN, *modes[i + 1 :]), 1e-10
        elif kind in ("slip +", "slip -"):  # the force at the bound of its cone is what the slip will be opposed to
            modes = (*modes[:i], PLUS if kind == "slip +" else MINUS, *modes[i + 1 :])
        else:
            modes, least = settle(m, t, q, u, closed_of(modes))
            motion.lower("law_margin", least)


def along(function, size=0.0):
    """d/ds at s = 0 of a smooth function of s, by differences of fourth order; ``size``: of how fast it moves away."""
    h = 2.0 ** -np.ceil(10 + np.log2(1 + size))
    near, far = ((function(k * h) - function(-k * h)) / (2 * k * h) for k in (1, 2))
    return (4 * near - far) / 3


def variation(family, motion):
    """d(q, u)/ds at the end, at s = 0, of motions of ``family(s) = (Mechanics, q, u)``; ``motion``: that of s = 0.

    Within a phase the variational equation, y' = df(x + s y, s)/ds. A phase ends where a function is zero, so its end moves by ``late``,
    and over it goes the saltation matrix: what impacts do to states that are moved along y and along time, less the motion after it.
    """
    family = functools.cache(family)
    m = family(0.0)[0]
    if motion.events and motion.events[0][0] == motion.phases[0][0]:
        raise NoMotionError("an impact at the start")

    def moved(function, t, x, y, dt=0.0):
        """d/ds of ``function(mechanics of s, t + s dt, q, u)`` where (q, u) is ``x + s y``."""
        return along(lambda s: function(family(s)[0], t + s * dt, *np.split(x + s * y, 2)), np.max(np.abs(y)))

    y = along(lambda s: np.concatenate(family(s)[1:]))
    for k, ((t0, t1, dense, modes), (which, hit)) in enumerate(zip(motion.phases, motion.ends, strict=True)):

        def flow(m, t, q, u, modes=modes):
            return np.concatenate([u, forces(m, t, q, u, modes)[0]])

        run = solve_ivp(lambda t, y, dense=dense, flow=flow: moved(flow, t, dense(t), y), (t0, t1), y, "DOP853", rtol=1e-11, atol=1e-12)
        y, x = run.y[:, -1], dense(t1)
        if which is None:
            return y
        before = flow(m, t1, *np.split(x, 2))

        def guard(m, t, q, u, modes=modes, which=which):
            return watch(m, modes, np.zeros(len(m.mu)))[which][2](t, q, u)

        def jump(m, t, q, u, hit=hit):
            return np.concatenate([q, impact(m, t, q, u, *hit)[0] if hit else u])

        in_time = along(lambda s, t=t1, x=x, v=before, guard=guard: guard(m, t + s, *np.split(x + s * v, 2)), np.max(np.abs(before)))
        late = -moved(guard, t1, x, y) / in_time
        after = flow(m, t1, *np.split(jump(m, t1, *np.split(x, 2)), 2), motion.phases[k + 1][3])
        y = moved(jump, t1, x, y + late * before, late) - late * after
    raise AssertionError


def derivative(run, h=1e-3):
    """``(d(q, u)/ds at s = 0, an estimate of its error)`` of ``run(s)``, a `Motion`: differences with three steps, extrapolated.

    Raises `NoMotionError` where the neighbours have other events.
    """
    signature, rows = run(0.0).signature, []
    for step in (h, h / 2, h / 4):
        ends = [run(s) for s in (step, -step)]
        if any(end.signature != signature for end in ends):
            raise NoMotionError("a neighbour has other events")
        a, b = (np.concatenate([end.q, end.u]) for end in ends)
        rows.append((a - b) / (2 * step))
    first = [(4 * rows[i + 1] - rows[i]) / 3 for i in range(2)]
    best = (16 * first[1] - first[0]) / 15
    return best, np.max(np.abs(best - first[1]))
