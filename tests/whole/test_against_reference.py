"""Every scheme against the event-driven reference, on systems drawn at random: values, and derivatives by all parameters at once.

The systems have 1 to 3 coordinates and 1 to 3 contacts, with coupled mass matrices that vary, springs, damping, forcing, obstacles that
move, surfaces that curve, friction and restitution of both kinds. One class has them all: an absent contact is far off, an absent
coordinate coupled to nothing, so that every scheme is one program. A derivative is that along a drawn direction in the space of all
parameters and of the initial state.

Excluded is, by `excluded`, what is not smooth or next to it: events next to each other or to the end, impacts that are slow or of contacts
that close at once, small margins; and what the reference refuses. Its derivatives are those of the variational equation with saltation
matrices; that its differences agree with them is tested, too.

An error of order p divided by dt^p is bounded. It need not be smooth: where an impact lies in its step is a matter of chance. So the
largest of some coarse steps is compared with that of fine ones: if an order were missing, this would be larger by the ratio of the steps.
For the same reason they are many, even and odd, since an impact half way has two places alone in even numbers of steps. Even so they need
not see all of the step, and the error can be ten times as large in a part of it: of one system that hits next to half way, Lobatto's with
four stages in a seventh of the places, with 50 to 130 steps and with 600 to 680 alike, none of which the coarse steps met and the fine ones
did. So the fine numbers of steps are, for each system, those with which its events lie in their steps where they lie in coarse ones.
Coarse steps must be fine enough that errors are not as large as the motion: one of 300 systems has errors of 20 to 46 dt from 100 to 25600
steps, and with 25 steps of 4 dt, since its velocities are no larger.
Of located impacts the error of a derivative over dt^2 is one function of the place of the impact in its step, the same with 25, 150 and 600
steps, which jumps at the nodes and varies by factors of 5 to 50: coarse steps are many, so that they see all of it.
"""

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from little_systems import quick
from reference.event_driven import OPEN, Mechanics, NoMotionError, derivative, integrate, variation
from scheme_table import MOREAU_TYPE, POSITION_LEVEL, PREDICTING

import jaxnsd
from jaxnsd import Lobatto, LocatedImpacts, Moreau, MoreauJean, SymmetricMoreau, System

END = 0.5
#: Numbers of steps that errors are compared at, by the order that is looked for: coarse ones, what fine ones are among, how many of these.
COARSE = {1: (50, 51, 53, 55, 56, 58, 61, 63, 64, 67, 69, 72, 73), 2: tuple(range(24, 38)), 4: (15, 18, 20)}
FINE = {1: range(700, 801), 2: range(140, 171), 4: range(60, 71)}
MANY = {1: 2, 2: 3, 4: 3}
#: What fine steps may have more of an error over ``dt^order`` than coarse ones. If an order were missing, it would be 9, 4, 3 and more.
BOUND = {1: 4, 2: 2.5, 4: 2}
#: What the errors of values and derivatives of the reference are below.
FLOOR = 1e-8
#: Errors over ``dt^order`` are compared where they are more than this part of the size of the motion (see `Case.sizes`) over END^order: of
#: smaller ones the terms of this order and the next may cancel at coarse steps. Of one system they do with 55 steps, in the derivative of a
#: velocity, whose error is 0.2 dt beside that of the coordinate of 0.9 dt.
LITTLE = 0.01


@jaxnsd.system
class Drawn(System):
    """Three coordinates and three contacts with drawn parameters ``p``, a dict of arrays, all of them leaves."""

    p: Any = None
    e_N: Any = 0.0
    e_F: Any = 0.0
    mu: Any = 0.0

    def mass_matrix(self, t, q):
        return self.p["M"] + jnp.diag(self.p["m"] * jnp.sin(jnp.roll(q, -1)))

    def potential_energy(self, t, q):
        return self.p["w"] @ q + self.p["k"] @ (q**2 / 2 + q**4)

    def force(self, t, q, u):
        return self.p["f"] * jnp.sin(self.p["rate"] * t) - self.p["c"] * u

    def gap(self, t, q):
        return self.p["A"] @ q + self.p["bend"] * (q @ q) + self.p["g"] + self.p["a"] * jnp.sin(self.p["rate"] * t)

    def tangential_velocity(self, t, q, u):
        slip = (1 + self.p["turn"] * q[0]) * (self.p["B"] @ u) + self.p["b"] * jnp.cos(self.p["rate"] * t)
        return slip[:, None]


def mechanics(p, n):
    """The same mechanics by hand, without the contacts that are absent."""
    A, bend, g, a, turn, B, b, *law = (p[name][:n] for name in ("A", "bend", "g", "a", "turn", "B", "b", "e_N", "e_F", "mu"))
    M, m, w, k, f, c, rate = (p[name] for name in ("M", "m", "w", "k", "f", "c", "rate"))
    index, roll, back = np.arange(3), [1, 2, 0], [2, 0, 1]

    def mass(t, q):
        out = M.astype(np.result_type(q))
        out[index, index] += m * np.sin(q[roll])
        return out

    def h(t, q, u):
        slope = m * np.cos(q[roll])
        return (slope * u**2)[back] / 2 - slope * u[roll] * u - w - k * (q + 4 * q**3) + f * np.sin(rate * t) - c * u

    return Mechanics(
        mass,
        h,
        lambda t, q: A @ q + bend * (q @ q) + g + a * np.sin(rate * t),
        lambda t, q, u: A @ u + 2 * bend * (q @ u) + a * rate * np.cos(rate * t),
        lambda t, q, u: (1 + turn * q[0]) * (B @ u) + b * np.cos(rate * t),
        *law,
    )


def draw(rng):
    """``(p, number of contacts)``: a system with 1 to 3 coordinates and 1 to 3 contacts; the others are there, and far off or at rest."""
    n_q, n = rng.integers(1, 4, 2)
    near, real = np.arange(3) < n, np.arange(3) < n_q
    L = rng.normal(size=(3, 3))
    M = np.where(np.outer(real, real), 0.4 * L @ L.T, 0) + np.eye(3)
    A, B = (x / np.linalg.norm(x * real, axis=1, keepdims=True) * real for x in rng.normal(size=(2, 3, 3)))
    plastic = rng.choice([0, 1, 2])
    p = {
        "M": M,
        "m": rng.uniform(0, 0.4, 3) * (n_q > 1) * real * rng.integers(0, 2),
        "k": rng.uniform(0, 5, 3) * real,
        "w": 8 * (near @ A) * rng.uniform(0.5, 1.5) + real * rng.normal(size=3),
        "c": rng.uniform(0, 0.5, 3) * real,
        "f": 4 * rng.normal(size=3) * real,
        "rate": rng.uniform(3, 12),
        "A": A,
        "bend": 0.3 * rng.normal(size=3),
        "g": np.where(near, rng.uniform(0.02, 0.15, 3), 100),
        "a": 0.02 * rng.normal(size=3) * rng.integers(0, 2),
        "turn": 0.3 * rng.normal(size=3),
        "B": B,
        "b": 0.5 * rng.normal(size=3) * rng.integers(0, 2),
        "e_N": rng.uniform(0.2, 0.9, 3) * [1, 0, rng.integers(0, 2)][plastic],
        "e_F": rng.uniform(0, 0.6, 3) * rng.integers(0, 2, 3),
        "mu": rng.uniform(0.1, 0.6, 3) * rng.integers(0, 2, 3) * (n_q > 1),
        "q0": 0.1 * rng.normal(size=3) * real,
        "u0": rng.normal(size=3) * real,
    }
    return p, int(n)


def excluded(motion):
    """Why a motion is not one to converge to, or None."""
    times = np.r_[0, [event[0] for event in motion.events], motion.t]
    if len(times) == 2:
        return "nothing happens"
    if np.min(np.diff(times)) < 0.02:
        return "events next to each other, to the start or to the end"
    if any(kind == "impact" and (speed < 0.3 or len(contacts) > 1) for _, kind, contacts, speed in motion.events):
        return "an impact that is slow, or of several contacts"
    least = {"gap": 5e-3, "slip": 0.05, "force": 0.5, "cone": 0.5, "impact": 0.05, "law": 0.5}
    return next((f"{name} margin" for name, bound in least.items() if getattr(motion, f"{name}_margin") < bound), None)


@dataclass
class Case:
    """A drawn system, a direction in the space of its parameters, and what the reference says of it."""

    number: int  # how many had been drawn
    p: dict
    n: int  # contacts
    direction: dict
    motion: Any
    end: np.ndarray  # (q, u)
    slope: np.ndarray  # its derivative along the direction

    @property
    def isolated(self):
        """Whether nothing happens but impacts, and no contact persists."""
        return all(mode == OPEN for phase in self.motion.phases for mode in phase[3])

    def fine(self, order):
        """The fine numbers of steps with which all events lie in their steps most nearly as they do with one of the coarse numbers."""
        times = np.array([event[0] for event in self.motion.events]) / END
        steps = np.subtract.outer(FINE[order], COARSE[order])[..., None] * times
        apart = np.min(np.max(np.abs(steps - np.round(steps)), axis=2), axis=1)
        return np.array(FINE[order])[np.argsort(apart, kind="stable")[: MANY[order]]]

    def sizes(self):
        """What q, u and their derivatives are as large as at the end, (4,): of a coordinate and what its velocity makes of it in END, the
        larger one."""
        q, u, dq, du = np.max(np.abs(np.reshape([self.end, self.slope], (4, -1))), axis=1)
        value, slope = max(q, END * u), max(dq, END * du)
        return np.array([value, value / END, slope, slope / END])

    @property
    def story(self):
        """The events, for a message."""
        return f"system {self.number}: " + ", ".join(f"{event[1]} {event[2]} at {event[0]:.4f} s" for event in self.motion.events)


def neighbour(p, direction, n, s):
    """``(Mechanics, q, u)`` of the system that is s along a direction from one with parameters p."""
    at = {name: p[name] + s * direction[name] for name in p}
    return mechanics(at, n), at["q0"], at["u0"]


@functools.cache
def cases(seed, wanted):
    """As many cases as wanted."""
    rng, out, number = np.random.default_rng(seed), [], 0
    while len(out) < wanted:
        number += 1
        p, n = draw(rng)
        direction = {name: x * rng.normal(size=np.shape(x)) for name, x in p.items()}
        direction["M"] = (direction["M"] + direction["M"].T) / 2

        family = functools.partial(neighbour, p, direction, n)
        if np.min(mechanics(p, n).gap(0.0, p["q0"])) < 5e-3:
            continue
        try:
            motion = integrate(*family(0.0), END, most_events=12)
        except NoMotionError:
            continue
        if not excluded(motion):
            out.append(Case(number, p, n, direction, motion, np.concatenate([motion.q, motion.u]), variation(family, motion)))
    # The rule leaves enough.
    assert number < 5 * wanted
    return out


@functools.cache
def program(scheme, n_steps):
    """Compiled ``(state at END, its derivative along a direction, success)`` of a batch of systems, each with several steps of its own.

    The number of steps is that of the smallest; the others run on past END, and what comes there is not looked at.
    """

    def end(p, dt):
        law = {name: p[name] for name in ("e_N", "e_F", "mu")}
        system = Drawn({name: x for name, x in p.items() if name not in (*law, "q0", "u0")}, **law)
        sol = jaxnsd.simulate(system, scheme, p["q0"], p["u0"], n_steps=n_steps, dt=dt)
        k = jnp.round(END / dt).astype(int)
        return jnp.concatenate([sol.q[k], sol.u[k]]), jnp.all((sol.outcome == 0) | (jnp.arange(n_steps) >= k))

    def one(p, direction, dt):
        return jax.jvp(lambda p: end(p, dt), (p,), (direction,), has_aux=True)

    return quick(jax.vmap(jax.vmap(one, (None, None, 0))))


def errors(scheme, found, counts, most):
    """Largest errors of q, u and their derivatives, (4, systems, counts), with numbers of steps (systems, counts) up to ``most``."""
    p, direction = (jax.tree.map(lambda *x: np.stack(x), *batch) for batch in ([c.p for c in found], [c.direction for c in found]))
    value, tangent, success = map(np.asarray, program(scheme, most)(p, direction, END / counts))
    assert np.all(success), [c.story for c, ok in zip(found, success, strict=True) if not np.all(ok)]
    of = np.stack([value - np.stack([c.end for c in found])[:, None], tangent - np.stack([c.slope for c in found])[:, None]])
    return np.max(np.abs(of.reshape(2, *counts.shape, 2, 3)), axis=4).transpose(0, 3, 1, 2).reshape(4, *counts.shape)


def check(scheme, found, order, seed):
    """Errors over ``dt^order`` are not larger with fine steps than with coarse ones; in u, for Moreau-type schemes, over dt."""
    coarse, counts = len(COARSE[order]), np.stack([np.r_[COARSE[order], case.fine(order)] for case in found])
    sizes = np.stack([case.sizes() for case in found], axis=1)
    for name, error, size in zip(("q", "u", "dq", "du"), errors(scheme, found, counts, max(FINE[order])), sizes, strict=True):
        p = 1 if "u" in name and getattr(scheme, "scheme", scheme) in MOREAU_TYPE else order
        scaled = np.maximum(error - FLOOR, 0) * counts**p
        least = LITTLE * size + FLOOR * COARSE[order][0] ** p
        growth = np.max(scaled[:, coarse:], axis=1) / (np.max(scaled[:, :coarse], axis=1) + least)
        worst = np.argmax(growth)
        assert growth[worst] < BOUND[order], (name, seed, found[worst].story, error[worst])


CAPTURING = [*MOREAU_TYPE, MoreauJean(midpoint_mass=True), *PREDICTING, *POSITION_LEVEL[:3]]
SEED = 0


def over(schemes, fast, slow):
    """Decorator: few systems for some schemes in the fast tests, more for more in the slow ones, hundreds for all in the long ones."""
    tiers = [(16, fast, ()), (60, slow, pytest.mark.slow), (300, schemes, pytest.mark.long)]
    params = [pytest.param(scheme, many, id=f"{scheme!r}-{many}", marks=mark) for many, some, mark in tiers for scheme in some]
    return pytest.mark.parametrize("scheme, many", params)


@over(CAPTURING, [Moreau()], [SymmetricMoreau(), MoreauJean(), Lobatto(2)])
def test_schemes_that_capture_impacts_are_of_first_order(scheme, many):
    """Values and derivatives, whatever happens: impacts with and without restitution, sliding that starts and ends."""
    check(scheme, cases(SEED, many), 1, SEED)


@pytest.mark.slow
def test_located_impacts_keep_the_order():
    """Of motions with impacts alone, after which no contact persists."""
    found = [case for case in cases(SEED, 60) if case.isolated]
    assert len(found) > 15
    check(LocatedImpacts(MoreauJean(midpoint_mass=True)), found, 2, SEED)


@pytest.mark.slow
def test_located_impacts_are_of_second_order_where_contacts_slide_stop_and_start():
    """Of all motions, by stages of fourth order, which are of second where a velocity is prescribed, as that of a contact that sticks."""
    found = cases(SEED, 60)
    assert sum(not case.isolated for case in found) > 15
    check(LocatedImpacts(Lobatto(3)), found, 2, SEED)


def check_differences(found):
    """Derivatives by the variational equation are those of differences, where these agree with each other and nothing else happens."""
    compared = 0
    for case in found:
        run = lambda s, case=case: integrate(*neighbour(case.p, case.direction, case.n, s), END, most_events=12)  # noqa: E731
        try:
            slope, error = derivative(run)
        except NoMotionError:
            continue
        if error < FLOOR:
            compared += 1
            np.testing.assert_allclose(case.slope, slope, rtol=0, atol=FLOOR * (1 + np.max(np.abs(slope))), err_msg=case.story)
    return compared


def test_variational_equation_agrees_with_differences():
    """The two ways to a derivative of the reference share no more than the motion."""
    assert check_differences(cases(SEED, 16)) > 10


@pytest.mark.slow
def test_many_kinds_of_events_are_drawn():
    """The tests above see sliding that ends, and contacts that persist; sliding that starts and a take-off are rare."""
    found = cases(SEED, 120)
    kinds = {event[1] for case in found for event in case.motion.events}
    assert {"impact", "stop"} < kinds and kinds & {"slip +", "slip -", "take-off"}
    assert sum(not case.isolated for case in found) > 10
