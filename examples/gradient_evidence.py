"""Derivatives through impacts against those of the exact motion: errors of three kinds of derivative over the step, as a table.

    python examples/gradient_evidence.py [--cases pendulum discs ...] [--quick]

Each case is a motion with a Jacobian that is known without a simulation by jaxnsd: a closed form, differentiated by JAX, or an
integration by SciPy from event to event, differentiated by differences. Compared with it are the Jacobians of `jaxnsd.simulate` with
``sensitivity="discrete"``, with ``sensitivity="saltation"``, and with impacts located by `jaxnsd.LocatedImpacts`. An error is the largest
of the entries over the largest entry, its mean over runs of n, n + 1, ... steps, since single errors scatter with where in its step an
impact falls. The last cases are those in which no derivative exists, or no scheme of this kind can have it.

Needs SciPy for the double pendulum and the woodpecker: pip install scipy.
"""

import dataclasses
import functools
import importlib.util
import itertools
import os
import re
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jaxnsd
from jaxnsd import System
from jaxnsd.command_line import options
from jaxnsd.models import DoublePendulum, RotatingBall, TwoDiscs, Woodpecker

G = 9.81


@jaxnsd.system
class Particle(System):
    """A particle of unit mass over a frictional table that moves up and down, on a horizontal spring: q = (x, y)."""

    e_N: float = 0.6
    mu: float = 0.1
    amplitude: float = 0.0  # of the table, which moves as sin(5 t)
    stiffness: float = 0.0

    def mass_matrix(self, t, q):
        """The identity."""
        return jnp.eye(2, dtype=q.dtype)

    def potential_energy(self, t, q):
        """V of weight and spring."""
        return G * q[1] + 0.5 * self.stiffness * q[0] ** 2

    def gap(self, t, q):
        """Height above the table."""
        return q[1:] - self.amplitude * jnp.sin(5.0 * t)

    def tangential_velocity(self, t, q, u):
        """The horizontal velocity: the table does not move sideways."""
        return u[:1, None]


@jaxnsd.system
class Corner(System):
    """A particle that falls between two walls: q = (x, y). At a right angle x and y are two balls that know nothing of each other."""

    e_N: float = 0.7
    angle: float = np.pi / 2  # between the normals of the walls

    def mass_matrix(self, t, q):
        """The identity."""
        return jnp.eye(2, dtype=q.dtype)

    def potential_energy(self, t, q):
        """V = g (x + y)."""
        return G * (q[0] + q[1])

    def gap(self, t, q):
        """Distances from the walls."""
        return jnp.stack([q[0], jnp.cos(self.angle) * q[0] + jnp.sin(self.angle) * q[1]])


@dataclass(frozen=True)
class Case:
    """A motion, and the Jacobian that its derivatives are held against.

    start(p):    ``(system, q0, u0)`` for parameters p
    p, t1:       parameters, and the end of the motion in s
    jacobian():  d(q, u)/dp at t1, or what ``derive`` makes of it, from outside of jaxnsd
    derive:      what of a Jacobian is compared
    steps:       step sizes in s
    scheme:      of the derivatives "discrete" and "saltation"
    inner:       the scheme whose impacts are located
    """

    name: str
    start: Callable
    p: tuple
    t1: float
    jacobian: Callable
    derive: Callable = lambda J: J
    steps: tuple = (1e-2, 1e-3, 1e-4)
    scheme: object = jaxnsd.Moreau()
    inner: object = jaxnsd.MoreauJean()


KINDS = ("discrete", "saltation", "located")
ROUND_OFF = 1e-11  # errors below it are those of many steps of arithmetic


LENGTH = 25_000  # steps of every run, so that they share one compilation; what comes after t1 is cut off


def simulated(case, kind, p, n, length=LENGTH):
    """The motion of a case for parameters ``p``, the n-th node being that at t1: a `Solution`."""
    (system, q0, u0), dt = case.start(p), case.t1 / n
    scheme = jaxnsd.LocatedImpacts(case.inner) if kind == "located" else case.scheme
    sensitivity = "discrete" if kind == "discrete" else "saltation"
    return jaxnsd.simulate(system, scheme, q0, u0, length * dt, dt, sensitivity=sensitivity)


def errors(case, kind, steps=None, phases=3, length=LENGTH):
    """Relative errors of a case's Jacobian, one for each of the step sizes, means over runs of n, n + 1, ... steps."""
    wanted = np.asarray(case.jacobian())

    def final(p, n):
        sol = simulated(case, kind, p, n, length)
        return jnp.concatenate([sol.q, sol.u], axis=1)[jnp.asarray(n)]

    def error(n):
        J = case.derive(np.asarray(jax.jacfwd(final)(jnp.asarray(case.p), n)))
        return np.abs(J - wanted).max() / np.abs(wanted).max()

    return [np.mean([error(round(case.t1 / dt) + i) for i in range(phases)]) for dt in steps or case.steps]


def closed(name, start, p, t1, exact, rows=None, columns=None, **options):
    """A `Case` with a closed form (q, u) = exact(p); ``rows`` and ``columns``: the entries that it gives."""

    def derive(J):
        J = J if rows is None else J[list(rows)]
        return J if columns is None else J[:, list(columns)]

    @functools.cache
    def jacobian():
        return derive(np.asarray(jax.jit(jax.jacfwd(exact))(jnp.asarray(p))))

    return Case(name, start, p, t1, jacobian, derive, **options)


# --------------------------------------------------------------------------------------------- a particle: closed forms
@dataclass(frozen=True)
class Throw:
    """How a `Particle` starts, and its parameters."""

    height: float = 1.0
    vx: float = 0.0
    vy: float = 0.0
    e: float = 0.6
    mu: float = 0.0
    amplitude: float = 0.0
    stiffness: float = 0.0
    x: float = 0.0


def particle(name, t1, exact, rows=range(4), fixed=None, **values):
    """A `Case` of the motion ``exact(**values)`` of a particle: its Jacobian with respect to all that ``values`` names.

    All cases are differentiated with respect to all fields of `Throw`, so that they share one compilation.
    """
    fields = [field.name for field in dataclasses.fields(Throw)]

    def start(p):
        height, vx, vy, e, mu, amplitude, stiffness, x = p
        return Particle(e, mu, amplitude, stiffness), jnp.stack([x, height]), jnp.stack([vx, vy])

    def motion(p):
        return exact(**{name: p[fields.index(name)] for name in values})

    p = dataclasses.astuple(Throw(**values, **(fixed or {})))
    return closed(name, start, p, t1, motion, rows, [fields.index(name) for name in values])


def flights(t1, impacts, height=1.0, vx=0.0, vy=0.0, e=0.6, mu=0.0, amplitude=0.0):
    """(x, y, x', y') at t1 after as many ``impacts``: parabolas between impacts, each at the root of the gap, Coulomb's law in each."""
    x, y, t = 0.0, height, 0.0
    for _ in range(impacts):

        def gap(s, y=y, vy=vy, t=t):
            return y + vy * (s - t) - 0.5 * G * (s - t) ** 2 - amplitude * jnp.sin(5.0 * s)

        # From the latest time that the table can be met at, Newton's method falls to the impact; its last step carries the derivative.
        s = t + (vy + jnp.sqrt(vy**2 + 2 * G * (y + jnp.abs(amplitude)))) / G
        s = lax.fori_loop(0, 20, lambda _, s, gap=gap: s - gap(s) / jax.grad(gap)(s), s)
        table = 5.0 * amplitude * jnp.cos(5.0 * s)
        arriving = vy - G * (s - t)
        leaving = table - e * (arriving - table)
        bound = mu * (leaving - arriving)
        x, y = x + vx * (s - t), amplitude * jnp.sin(5.0 * s)
        vx, vy, t = vx - jnp.clip(vx, -bound, bound), leaving, s
    s = t1 - t
    return jnp.stack([x + vx * s, y + vy * s - 0.5 * G * s**2, vx, vy - G * s])


def bounces(name, t1, impacts, rows=range(4), **values):
    """A `Case` of `flights`."""
    return particle(name, t1, functools.partial(flights, t1, impacts), rows, **values)


def landing():
    """Plastic impact, then sliding to rest: x = v0 t + (v0 - mu v)^2 / (2 mu g), v = g t, t^2 = 2 h / g."""

    def rest(height, vx, mu):
        t = jnp.sqrt(2 * height / G)
        return jnp.stack([vx * t + (vx - mu * G * t) ** 2 / (2 * mu * G)])

    return particle("plastic landing, sliding to rest", 1.4, rest, [0], {"e": 0.0}, height=0.5, vx=2.0, mu=0.2)


def accumulation():
    """Infinitely many impacts, each with friction, then sliding to rest: the geometric series."""

    def rest(height, vx, mu, e):
        t = jnp.sqrt(2 * height / G)
        v, x = G * t, vx * t
        for k in range(50):
            vx = vx - mu * (1 + e) * v * e**k
            x = x + vx * 2 * v * e ** (k + 1) / G
        return jnp.stack([x + vx**2 / (2 * mu * G)])

    return particle("accumulation point, sliding to rest", 1.4, rest, [0], height=0.5, vx=2.0, mu=0.2, e=0.5)


def reversal():
    """A block that a spring draws back, twice, more strongly than friction holds it: arcs of harmonic motion about +-mu g / k."""
    t1 = 1.0

    def arcs(x, vx, mu, stiffness):
        omega, t = jnp.sqrt(stiffness), 0.0
        for arc, side in enumerate((-1, 1, -1)):
            # To the right, to the left, to the right: about a centre that friction shifts, the first two until the block stops.
            centre = side * mu * G / stiffness
            a, b = x - centre, vx / omega
            s = (jnp.arctan2(b, a) / omega, jnp.pi / omega, t1 - t)[arc]
            cos, sin = jnp.cos(omega * s), jnp.sin(omega * s)
            x, vx, t = centre + a * cos + b * sin, omega * (b * cos - a * sin), t + s
        zero = jnp.zeros_like(x)
        return jnp.stack([x, zero, vx, zero])

    fixed = {"height": 0.0, "e": 0.0}
    return particle("sliding that reverses without rest", t1, arcs, range(4), fixed, x=0.3, vx=2.0, mu=0.3, stiffness=25.0)


# ------------------------------------------------------------------------------------- two balls, two discs, a disc that rolls
def falling(angle):
    """Start of a `Corner`, for p = (x, y, e_N)."""
    return lambda p: (Corner(p[2], jnp.asarray(angle)), p[:2], jnp.zeros(2))


def two_balls():
    """Two balls whose impacts are 2e-6 s apart, in one step."""
    t1 = 0.6

    def exact(p):
        t = jnp.sqrt(2 * p[:2] / G)
        v, s = p[2] * G * t, t1 - t
        return jnp.concatenate([v * s - 0.5 * G * s**2, v - G * s])

    return closed("two balls, impacts in one step", falling(np.pi / 2), (1.0, 1.00001, 0.7), t1, exact)


def discs(name, offset):
    """Two discs: straight relative motion up to the distance of two radii, then the velocity of approach is reversed, times e_N."""
    t1 = 0.8

    def start(p):
        return TwoDiscs(mass_1=p[8], mass_2=p[9], radius=p[10], e_N=p[11]), p[:4], p[4:8]

    def exact(p):
        q, u, (m_1, m_2, radius, e) = p[:4], p[4:8], p[8:]
        r, v = q[2:] - q[:2], u[2:] - u[:2]
        a, b, c = v @ v, r @ v, r @ r - 4 * radius**2
        t = (-b - jnp.sqrt(b**2 - a * c)) / a
        n = (r + t * v) / (2 * radius)
        P = -(1 + e) * (v @ n) / (1 / m_1 + 1 / m_2)
        after = u + P * jnp.concatenate([-n / m_1, n / m_2])
        return jnp.concatenate([q + t * u + (t1 - t) * after, after])

    p = (0.0, 0.0, 1.0, offset, 1.0, 0.2, -0.5, 0.0, 1.0, 2.0, 0.1, 0.8)
    return closed(name, start, p, t1, exact)


def rolling(name, height):
    """A disc that spins, falls and lands without rebound, slides, and rolls in the end: x' + R phi' vanishes after 2 gamma / (7 mu g)."""
    t1 = 1.0

    def start(p):
        vx, spin, mu, radius, h = p
        zero = jnp.zeros(())
        ball = RotatingBall(radius=radius, e_N=0.0, mu=mu)
        return ball, jnp.stack([zero, radius + h, zero]), jnp.stack([vx, zero, spin])

    def exact(p):
        vx, spin, mu, radius, h = p
        fall = jnp.sqrt(2 * h / G) if height else 0.0
        # All friction impulses per mass, the impact's and those of sliding, add up to mu g t: as if it slid from the start.
        gamma = vx + radius * spin
        lost = mu * G * fall
        x, v, slip = vx * fall, vx - lost, gamma - 3.5 * lost
        s = slip / (3.5 * mu * G)
        x, v = x + v * s - 0.5 * mu * G * s**2, v - mu * G * s
        s = t1 - fall - s
        zero = jnp.zeros(())
        return jnp.stack([x + v * s, zero, zero, v, zero, -v / radius])

    return closed(name, start, (1.0, 20.0, 0.1, 0.1, height), t1, exact, [0, 3, 5], range(5 if height else 4))


# --------------------------------------------------------------------------------- from event to event, integrated by SciPy
def differences(function, p, scale):
    """Jacobian of a smooth function by central differences of fourth order, for values that are right to 1e-12."""
    columns = []
    for i, width in enumerate(1e-4 * np.asarray(scale)):
        shift = width * np.eye(len(p))[i]
        near, far = (function(p + k * shift) - function(p - k * shift) for k in (1, 2))
        columns.append((8 * near - far) / (12 * width))
    return np.stack(columns, axis=-1)


def pendulum_motion(p, t1):
    """(q, u) of the double pendulum at t1: equations of motion by hand, its impacts located by SciPy, Newton's impact law in each."""
    from scipy.integrate import solve_ivp

    m_1, m_2, l_1, l_2, g, wall, e = p[4:]

    def mass(q):
        coupling = m_2 * l_1 * l_2 * np.cos(q[0] - q[1])
        return np.array([[(m_1 + m_2) * l_1**2, coupling], [coupling, m_2 * l_2**2]])

    def rates(t, y):
        (a, b), (v, w) = y[:2], y[2:]
        twist = m_2 * l_1 * l_2 * np.sin(a - b)
        force = np.array([-twist * w**2 - (m_1 + m_2) * g * l_1 * np.sin(a), twist * v**2 - m_2 * g * l_2 * np.sin(b)])
        return np.concatenate([y[2:], np.linalg.solve(mass(y), force)])

    def gap(t, y):
        return wall - l_1 * np.sin(y[0]) - l_2 * np.sin(y[1])

    gap.terminal, gap.direction = True, -1
    t, y = 0.0, np.asarray(p[:4])
    while True:
        sol = solve_ivp(rates, (t, t1), y, method="DOP853", rtol=1e-12, atol=1e-13, events=gap)
        if sol.status != 1:
            return sol.y[:, -1]
        t, y = sol.t_events[0][0], sol.y_events[0][0]
        normal = -np.array([l_1 * np.cos(y[0]), l_2 * np.cos(y[1])])
        direction = np.linalg.solve(mass(y), normal)
        y = y - np.concatenate([np.zeros(2), (1 + e) * (normal @ y[2:]) / (normal @ direction) * direction])


def pendulum():
    """Two impacts of the double pendulum, with respect to its initial state and all its parameters."""
    t1, p = 2.8, (-0.6, -0.4, 0.0, 0.0, 1.0, 0.7, 1.0, 0.8, 9.81, 0.3, 0.6)

    def jacobian():
        return differences(lambda p: pendulum_motion(p, t1), np.asarray(p), np.ones(len(p)))

    return Case(
        "double pendulum, 2 impacts",
        lambda p: (DoublePendulum(*p[4:]), p[:2], p[2:4]),
        p,
        t1,
        functools.cache(jacobian),
        steps=(2e-2, 2e-3, 2e-4),
        inner=jaxnsd.GeneralizedAlpha(1.0),
    )


class Toy:
    """The woodpecker toy from event to event: contacts open, stick or slip, in modes that end at impacts, stops and limits of force.

    Written in its matrices, C18 Section 5.3. What follows an event is found by trying all combinations of modes.
    """

    def __init__(self, mu):
        m_M, m_S, J_M, J_S, c = 3e-4, 4.5e-3, 5e-9, 7e-7, 5.6e-3
        r_O, r_M, h_M, l_M, l_G, h_S, l_S = 2.5e-3, 3.1e-3, 5.8e-3, 0.01, 0.015, 0.02, 0.0201
        coupled = m_S * l_M * l_G
        M = [[m_S + m_M, m_S * l_M, m_S * l_G], [m_S * l_M, J_M + m_S * l_M**2, coupled], [m_S * l_G, coupled, J_S + m_S * l_G**2]]
        self.invert = np.linalg.inv(M)
        self.stiffness = c * np.array([[0, 0, 0], [0, 1, -1], [0, -1, 1]])
        self.weight = -G * np.array([m_S + m_M, m_S * l_M, m_S * l_G])
        self.play = np.array([l_M + l_G - l_S - r_O, r_M - r_O, r_M - r_O])
        self.normal = np.array([[0, 0, -h_S], [0, h_M, 0], [0, -h_M, 0]])
        self.tangent = np.array([[1, l_M, l_G - l_S], [1, r_M, 0], [1, r_M, 0]])
        self.e_N, self.mu = np.array([0.5, 0, 0]), mu

    def free(self, q):
        """du/dt without contact."""
        return self.invert @ (self.weight - self.stiffness @ q)

    def directions(self, modes):
        """Rows that vanish and columns of the forces that make them: normal of a closed contact, and tangent of one that sticks."""
        rows, forces = [], []
        for i, mode in modes.items():
            if mode == "stick":
                rows += [self.normal[i], self.tangent[i]]
                forces += rows[-2:]
            elif mode != "open":
                rows.append(self.normal[i])
                forces.append(self.normal[i] - mode * self.mu * self.tangent[i])
        return np.reshape(rows, (-1, 3)), np.reshape(forces, (-1, 3)).T

    def solve(self, choices, xi_N, xi_F, slipping=()):
        """Modes, of those to choose from, in which xi and what the contacts add to it obey the law, and the change of u they make.

        ``slipping``: contacts whose direction of slip is that of their velocity, whatever xi.
        """
        for combination in itertools.product(*choices.values()):
            modes = dict(zip(choices, combination, strict=True))
            rows, forces = self.directions(modes)
            wanted = [-x for i, mode in modes.items() for x in {"open": (), "stick": (xi_N[i], xi_F[i])}.get(mode, (xi_N[i],))]
            z = np.linalg.solve(rows @ self.invert @ forces, wanted)
            change = self.invert @ (forces @ z)
            z, holds = iter(z), True
            for i, mode in modes.items():
                if mode == "open":
                    holds &= xi_N[i] + self.normal[i] @ change >= 0
                    continue
                push = next(z)
                holds &= push >= 0
                if mode == "stick":
                    holds &= abs(next(z)) <= self.mu * push
                else:
                    holds &= i in slipping or mode * (xi_F[i] + self.tangent[i] @ change) >= 0
            if holds:
                return modes, change
        raise RuntimeError("no combination of modes obeys the contact law")

    def modes(self, q, u, closed, forced):
        """Modes of the closed contacts from here on; those ``forced`` are known."""
        slip = self.tangent @ u
        moving = [i for i in closed if abs(slip[i]) > 1e-9]
        choices = {i: ("stick", 1, -1, "open") for i in closed} | {i: (np.sign(slip[i]), "open") for i in moving}
        a = self.free(q)
        modes, _ = self.solve(choices | forced, self.normal @ a, self.tangent @ a, {*moving, *forced})
        return {i: mode for i, mode in modes.items() if mode != "open"}

    def forces(self, q, modes):
        """Normal and tangential contact forces {i: (N, F)}."""
        rows, forces = self.directions(modes)
        z = iter(np.linalg.solve(rows @ self.invert @ forces, -rows @ self.free(q)))
        return {i: (push := next(z), next(z) if mode == "stick" else -mode * self.mu * push) for i, mode in modes.items()}

    def flow(self, modes):
        """The linear flow d(q, u)/dt in these modes."""
        rows, forces = self.directions(modes)
        project = np.eye(3) - self.invert @ forces @ np.linalg.solve(rows @ self.invert @ forces, rows)
        matrix = np.block([[np.zeros((3, 3)), np.eye(3)], [-project @ self.invert @ self.stiffness, np.zeros((3, 3))]])
        constant = np.concatenate([np.zeros(3), project @ self.invert @ self.weight])
        return lambda t, x: matrix @ x + constant

    def events(self, modes):
        """What ends these modes, {(kind, contact): function of (t, (q, u)) that falls through zero}."""
        events = {("hit", i): lambda t, x, i=i: self.play[i] + self.normal[i] @ x[:3] for i in range(3) if i not in modes}
        for i, mode in modes.items():
            events["open", i] = lambda t, x, i=i: self.forces(x[:3], modes)[i][0]
            if mode == "stick":
                events["slip", i] = lambda t, x, i=i: self.mu * self.forces(x[:3], modes)[i][0] - abs(self.forces(x[:3], modes)[i][1])
            else:
                events["stop", i] = lambda t, x, i=i, mode=mode: mode * (self.tangent[i] @ x[3:])
        for event in events.values():
            event.terminal, event.direction = True, -1
        return events

    def motion(self, x, t1):
        """(q, u) at t1 from (q, u) without contact."""
        from scipy.integrate import solve_ivp

        t, x, closed, forced = 0.0, np.asarray(x), [], {}
        while True:
            modes = self.modes(x[:3], x[3:], closed, forced)
            events = self.events(modes)
            sol = solve_ivp(self.flow(modes), (t, t1), x, method="DOP853", rtol=1e-12, atol=1e-15, events=list(events.values()))
            if sol.status != 1:
                return sol.y[:, -1]
            k = next(k for k, times in enumerate(sol.t_events) if len(times))
            t, x, (kind, i) = sol.t_events[k][0], sol.y_events[k][0], list(events)[k]
            closed, forced = list(modes), {}
            if kind == "hit":
                x, closed = self.impact(x, sorted([*modes, i]))
            elif kind == "open":
                closed.remove(i)
            elif kind == "slip":
                forced = {i: (-np.sign(self.forces(x[:3], modes)[i][1]),)}

    def impact(self, x, contacts):
        """State after the impact of these contacts, and those that stay closed."""
        u = x[3:]
        choices = dict.fromkeys(contacts, ("stick", 1, -1, "open"))
        modes, change = self.solve(choices, (1 + self.e_N) * (self.normal @ u), self.tangent @ u)
        return np.concatenate([x[:3], u + change]), [i for i, mode in modes.items() if mode != "open" and self.e_N[i] == 0]


MU, TILT = 0.3, 0.0066  # friction, and the angle phi_S of the section through the limit cycle, in free fall after the beak's strike


def section(z, mu=MU):
    """(phi_M, phi_S, u) on the section and what a return map adds to it, for z = (phi_M, u, time)."""
    x = np.array([z[0], TILT, *z[1:4]])
    return x, Toy(mu).motion(np.concatenate([np.zeros(1), x]), z[4])[1:] - x


@functools.cache
def limit_cycle():
    """z = (phi_M, u, period) of the limit cycle: Newton's method on the return map."""
    z, scale = np.array([0.02, -0.0733, -4.743, -5.797, 0.146]), np.array([0.1, 1.0, 10.0, 10.0, 0.1])
    for _ in range(4):
        z = z - np.linalg.solve(differences(lambda z: section(z)[1], z, 1e-3 * scale), section(z)[1])
    return z


def slope_of_period(J):
    """d(period)/d(mu) from d(phi_M, phi_S, u)/d(phi_M, u, mu) after one period, by the theorem on implicit functions."""
    x, _ = section(limit_cycle())
    rates = np.concatenate([x[3:], Toy(MU).free(np.concatenate([np.zeros(1), x[:2]]))])
    through = J[:, :4] - np.delete(np.eye(5), 1, axis=1)
    return np.linalg.solve(np.column_stack([through, rates]), -J[:, 4])[-1:]


def woodpecker():
    """The period of the woodpecker's limit cycle with respect to mu: twelve impacts, stops and limits of stiction a period."""
    z = limit_cycle()

    @functools.cache
    def jacobian():
        scale = (1e-4, 1e-3, 1e-2, 1e-2, 1e-4)
        return slope_of_period(differences(lambda p: sum(section(np.array([*p[:4], z[4]]), p[4])), np.array([*z[:4], MU]), scale))

    def start(p):
        return Woodpecker(mu=p[4]), jnp.stack([jnp.zeros(()), p[0], jnp.asarray(TILT)]), p[1:4]

    steps = (1e-3, 1e-4, 1e-5)
    return Case("woodpecker, period by friction", start, (*z[:4], MU), z[4], jacobian, lambda J: slope_of_period(J[1:]), steps)


# ------------------------------------------------------------------------------------------------------- where it fails
def corner(first):
    """A particle that falls into the corner of two walls at 60 degrees, and meets both at once: coupled impacts.

    There is no derivative: what it is compared with is one-sided, that of motions that meet wall ``first`` a moment earlier.
    """
    t1, angle = 0.6, np.deg2rad(120.0)
    normals = np.array([[1.0, 0.0], [np.cos(angle), np.sin(angle)]])

    def exact(p):
        q, u, t = p[:2], jnp.zeros(2), None
        # One wall, the other, and the first again; then the particle leaves both.
        for normal in (normals[first], normals[1 - first], normals[first]):
            s = -(normal @ q) / (normal @ u) if t is not None else jnp.sqrt(2 * (normal @ q) / (G * normal.sum()))
            q, u, t = q + s * u - 0.5 * G * s**2, u - G * s, s if t is None else t + s
            u = u - (1 + p[2]) * (normal @ u) * normal
        s = t1 - t
        return jnp.concatenate([q + s * u - 0.5 * G * s**2, u - G * s])

    return closed(f"corner, both walls at once (wall {first + 1} first)", falling(angle), (1.0, 1.0, 0.7), t1, exact)


def grazing(part):
    """Two discs that overlap, without the impact, by this part of their diameter at most: the derivative grows as its root falls."""
    offset = (0.2 * (1 - part) * np.hypot(1.5, 0.2) + 0.2) / 1.5
    return discs(f"two discs, grazing by {part:g} of the diameter", offset)


def cases():
    """All cases, those in which no derivative exists or none is to be had last."""
    ends = {1: 0.8, 2: 1.45, 3: 2.0, 4: 2.4}
    names = {n: f"bouncing ball, {n} impact{'s' * (n > 1)}" for n in ends}
    oblique = {"height": 0.8, "vx": 1.1, "mu": 0.1, "e": 0.6}
    return [
        *(bounces(names[n], t1, n, [1, 3], height=1.0, vy=0.0, e=0.8) for n, t1 in ends.items()),
        bounces("oblique impacts with friction: slip, slip, stick", 1.3, 3, **oblique),
        bounces("oblique impacts with friction, x(T) only", 1.3, 3, [0], height=0.5, vx=2.0, mu=0.1, e=0.8),
        bounces("moving table, 3 impacts with friction", 1.3, 3, **oblique | {"height": 1.0}, amplitude=0.05),
        landing(),
        accumulation(),
        reversal(),
        two_balls(),
        discs("two discs, oblique", 0.1),
        rolling("rolling onset", 0.0),
        rolling("plastic landing, sliding, rolling", 0.5),
        pendulum(),
        woodpecker(),
        grazing(1e-3),
        grazing(1e-6),
        corner(0),
        corner(1),
        bounces("bouncing ball, 8 impacts, 5 ms before the accumulation", 1.35, 8, [1, 3], height=1.0, vy=0.0, e=0.5),
    ]


def report(chosen, quick):
    """Lines of the table in markdown. Cases of one kind of system share compilations, the kinds run in threads of their own."""
    groups = {}
    for case in chosen:
        groups.setdefault(type(case.start(jnp.asarray(case.p))[0]), []).append(case)

    def rows(group):
        found = {}
        for case in group:
            steps = case.steps[:2] if quick else case.steps
            options = {"phases": 2, "length": 3_000} if quick else {}
            columns = [column(errors(case, kind, steps, **options), steps) for kind in KINDS]
            found[case.name] = f"| {case.name} | {', '.join(f'{dt:g}' for dt in steps)} | " + " | ".join(columns) + " |"
            print(found[case.name], file=sys.stderr, flush=True)
        return found

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = dict(row for part in pool.map(rows, groups.values()) for row in part.items())
    head = ["| motion | dt in s | " + " | ".join(f"{kind}: errors; order" for kind in KINDS) + " |", "|---" * (len(KINDS) + 2) + "|"]
    return [*head, *(found[case.name] for case in chosen)]


def column(values, steps):
    """Errors over the step, and the observed order from the largest to the smallest step; none for round-off."""
    text = ", ".join(re.sub(r"e([+-])0", r"e\1", f"{value:.1e}").removesuffix("e+0") for value in values)
    if max(values) < ROUND_OFF:
        return f"{text}; exact"
    return f"{text}; {np.log(values[0] / values[-1]) / np.log(steps[0] / steps[-1]) + 0.0:.1f}".replace("-0.0", "0.0")


def main(argv=None):
    """Print the table."""
    parser = options.Parser(prog="gradient_evidence.py", description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("--cases", nargs="+", metavar="WORDS", help="only the cases whose names have these words in them (default: all)")
    parser.add_argument("--quick", action="store_true", help="two step sizes, in a fraction of the time")
    args = parser.parse_args(argv)
    if importlib.util.find_spec("scipy") is None:
        parser.error("the references of the double pendulum and the woodpecker need SciPy: pip install scipy")
    jax.config.update("jax_enable_x64", True)
    chosen = [case for case in cases() if not args.cases or any(words in case.name for words in args.cases)]
    if not chosen:
        parser.error(f"--cases: no case has these words; there are: {'; '.join(case.name for case in cases())}")

    began = time.perf_counter()
    print("\n".join(report(chosen, args.quick)))
    print(f"{time.perf_counter() - began:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
