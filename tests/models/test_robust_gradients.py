"""No derivative of any model is infinite or not a number, and none is far larger than what the motion itself allows.

The states are drawn so that every kink of the contact law is met: resting, open, just closing, slightly inside, sticking, sliding, with
zero slip, e = 0 and 1, mu = 0.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxnsd
from jaxnsd.models import MODELS, SliderCrank, SliderCrankMinimal

STEPS = 4
LARGEST = 1e6  # of the derivatives, which go like 1 / dt where contacts close on position level or slowly
CONTACT_DATA = ("e_N", "e_F", "mu", "e_N_beak", "e_N_sleeve")
BAR = {"length": 1.0, "section": 3.14e-4, "modulus": 210e9, "density": 7800.0, "damping": 1e-7, "e_N": 0.0}


class Draw:
    """Random numbers of n members."""

    def __init__(self, seed, n):
        self.rng, self.n = np.random.default_rng(seed), n

    def normal(self, scale=1.0):
        return scale * self.rng.normal(size=self.n)

    def uniform(self, low, high):
        return self.rng.uniform(low, high, self.n)

    def among(self, *values):
        """One of some values (numbers or arrays (n,)), for each member."""
        table = np.stack([np.broadcast_to(np.asarray(value, float), (self.n,)) for value in values])
        return table[self.rng.integers(len(values), size=self.n), np.arange(self.n)]

    def gap(self, length, speed, dt):
        """Open, on the contact, off it by a round-off, slightly in or out, closing within the next steps."""
        few = np.abs(self.normal())
        return self.among(0.0, 0.0, 1e-16, -1e-16, -1e-3 * length * few, 1e-3 * length * few, speed * dt * few, length * few)

    def speed(self, speed, dt, acceleration=9.81):
        """Zero, what the forces make of it in a step, slow, fast."""
        return self.among(0.0, 0.0, -acceleration * dt, acceleration * dt, 1e-12, self.normal(speed), self.normal(1e-2 * speed))


class Case(NamedTuple):
    """How a model is drawn: ``states(draw, dt, parameters)`` returns q0 (n, n_q) and u0 (n, n_u)."""

    scheme: Any
    dt: float
    states: Any
    make: Any = None


# ---------------------------------------------------------------------------------------------------------------- states
def bouncing_ball(draw, dt, p):
    return draw.gap(1.0, 1.0, dt)[:, None], draw.speed(2.0, dt)[:, None]


def spring_pendulum(draw, dt, p):
    q0 = np.stack([draw.uniform(0.7, 1.3), draw.gap(0.5, 1.0, dt)], axis=1)
    return q0, np.stack([draw.speed(1.0, dt), draw.speed(2.0, dt)], axis=1)


def woodpecker(draw, dt, p):
    beak = (p["length_sleeve"] + p["length_woodpecker"] - p["length_beak"] - p["radius_pole"]) / p["height_beak"]
    sleeve = (p["radius_sleeve"] - p["radius_pole"]) / p["height_sleeve"]
    phi_M = draw.among(-1.0, 1.0) * (sleeve - draw.gap(0.02, 5.0, dt))
    q0 = np.stack([draw.normal(0.01), phi_M, beak - draw.gap(0.1, 5.0, dt)], axis=1)
    return q0, np.stack([draw.speed(0.3, dt), draw.speed(5.0, dt, 100.0), draw.speed(5.0, dt, 100.0)], axis=1)


def elastic_bar(draw, dt, p, n=10):
    shape = draw.normal(1e-5)[:, None] * draw.rng.normal(size=(draw.n, n))
    rate = draw.normal(0.02)[:, None] * draw.rng.normal(size=(draw.n, n))
    still = draw.rng.random(draw.n) < 0.3
    shape[still], rate[still] = 0.0, 0.0
    shape[:, 0] = 0.0
    q0 = draw.gap(1e-4, 0.1, dt)[:, None] + shape
    return q0, draw.among(0.0, -0.1, 0.1, draw.normal(0.1))[:, None] + rate


def bead_column(draw, dt, p, n=10):
    radius = p["radius"]
    gaps = np.stack([draw.gap(0.05, 1.0, dt) for _ in range(n)], axis=1)
    q0 = np.cumsum(gaps, axis=1) + radius[:, None] * (1 + 2 * np.arange(n))[None]
    u0 = np.stack([draw.speed(1.0, dt) for _ in range(n)], axis=1)
    u0[draw.rng.random(draw.n) < 0.3] = 0.0
    return q0, u0


def rotating_ball(draw, dt, p):
    q0 = np.stack([draw.normal(), p["radius"] + draw.gap(1.0, 1.0, dt), draw.normal()], axis=1)
    spin = draw.among(0.0, draw.normal(10.0))
    # Rolling, nearly rolling, or sliding.
    vx = draw.among(0.0, -p["radius"] * spin, -p["radius"] * spin + 1e-9, draw.normal())
    return q0, np.stack([vx, draw.speed(2.0, dt), spin], axis=1)


def corner_block(draw, dt, p):
    angle = draw.among(0.0, 0.0, 1e-9, draw.normal(0.02), draw.normal(0.3))
    lowest = p["half_width"] * np.abs(np.sin(angle)) + p["half_height"] * np.cos(angle)
    q0 = np.stack([draw.normal(), lowest + draw.gap(0.1, 1.0, dt), angle], axis=1)
    return q0, np.stack([draw.speed(1.0, dt), draw.speed(1.0, dt), draw.speed(3.0, dt)], axis=1)


def double_pendulum(draw, dt, p):
    second = draw.uniform(-0.9, 0.9)
    reach = np.clip((p["wall"] - draw.gap(0.5, 2.0, dt) - p["length_2"] * np.sin(second)) / p["length_1"], -0.95, 0.95)
    return np.stack([np.arcsin(reach), second], axis=1), np.stack([draw.speed(2.0, dt), draw.speed(2.0, dt)], axis=1)


def two_discs(draw, dt, p):
    angle, distance = draw.uniform(-np.pi, np.pi), 2 * p["radius"] + draw.gap(0.5, 1.0, dt)
    angle = draw.among(0.0, angle)
    first = np.stack([draw.normal(), draw.normal()])
    q0 = np.stack([*first, first[0] + distance * np.cos(angle), first[1] + distance * np.sin(angle)], axis=1)
    return q0, np.stack([draw.speed(1.0, dt) for _ in range(4)], axis=1)


def sphere(draw, dt, p):
    R = p["radius"]
    to_wall, along, to_floor = draw.gap(0.5, 1.0, dt), draw.normal(), draw.gap(0.5, 1.0, dt)
    # Between floor and wall friction of one jams: with 1 - mu^2 = 0 the percussions are not determined.
    p["mu"] = np.where((p["mu"] == 1.0) & (np.maximum(to_wall, to_floor) < 0.1), 0.9, p["mu"])
    q0 = np.stack([p["wall"] - R - to_wall, along, R + to_floor, *np.zeros((3, draw.n))], axis=1)
    spin = np.stack([draw.among(0.0, draw.normal(10.0)) for _ in range(3)])
    # On the floor: at rest, rolling, sliding; towards the wall or not.
    vx = draw.among(0.0, R * spin[1], draw.normal(), -draw.normal())
    vy = draw.among(0.0, -R * spin[0], draw.normal())
    return q0, np.stack([vx, vy, draw.speed(1.0, dt), *spin], axis=1)


def slider_crank_minimal(draw, dt, p):
    a, b, play = p["half_length"], p["half_height"], 0.5 * p["guide"]
    tilt = draw.among(0.0, draw.uniform(-0.015, 0.015), 1e-9)
    room = play - (a * np.abs(np.sin(tilt)) + b * np.cos(tilt))
    height = draw.among(-1.0, 1.0) * (room - draw.gap(1e-4, 1.0, dt) * draw.among(0.0, 1.0))
    crank = draw.uniform(-np.pi, np.pi)
    rod = np.arcsin((height - p["length_1"] * np.sin(crank)) / p["length_2"])
    u1 = draw.among(0.0, 150.0, draw.normal(50.0))
    vy = draw.among(0.0, 0.0, draw.normal(0.1), draw.normal(1.0))
    u2 = (vy - p["length_1"] * np.cos(crank) * u1) / (p["length_2"] * np.cos(rod))
    return np.stack([crank, rod, tilt], axis=1), np.stack([u1, u2, draw.among(0.0, draw.normal(10.0))], axis=1)


def slider_crank(draw, dt, p):
    q, u = slider_crank_minimal(draw, dt, p)

    @jax.jit
    @jax.vmap
    def bodies(p, q, u):
        q0, u0 = jax.jvp(lambda q: SliderCrankMinimal(**p).bodies(q).reshape(-1), (q,), (u,))
        return q0, jaxnsd.project_velocity(SliderCrank(**p), q0, u0)

    return tuple(np.asarray(x) for x in bodies(p, q, u))


def slope(draw, dt, p):
    x, gap = draw.uniform(-0.5, 2.0), draw.gap(0.5, 1.0, dt)
    slope = -np.exp(-x)
    q0 = np.stack([x, np.exp(-x) + gap * np.sqrt(1 + slope**2)], axis=1)
    along = draw.among(0.0, 0.0, draw.normal(), 1e-9)
    across = draw.among(0.0, 0.0, draw.normal(), -1.0)
    normal = np.stack([-slope, np.ones_like(x)], axis=1) / np.sqrt(1 + slope**2)[:, None]
    tangent = np.stack([np.ones_like(x), slope], axis=1) / np.sqrt(1 + slope**2)[:, None]
    return q0, along[:, None] * tangent + across[:, None] * normal


MOREAU = jaxnsd.Moreau()
CASES = {
    "BouncingBall": Case(MOREAU, 1e-2, bouncing_ball),
    "SpringPendulum": Case(jaxnsd.SymmetricMoreau(), 1e-2, spring_pendulum),
    "Woodpecker": Case(MOREAU, 1e-4, woodpecker),
    "elastic_bar": Case(jaxnsd.GeneralizedAlpha(0.8), 2e-6, elastic_bar, lambda **p: MODELS["elastic_bar"](10, **p)),
    "BeadColumn": Case(MOREAU, 1e-3, bead_column),
    "RotatingBall": Case(MOREAU, 1e-2, rotating_ball),
    "SliderCrank": Case(jaxnsd.Lobatto(2), 1e-4, slider_crank),
    "SliderCrankMinimal": Case(jaxnsd.Lobatto(2), 1e-4, slider_crank_minimal),
    "PointMassOnSlope": Case(jaxnsd.Lobatto(2), 1e-2, slope),
    "CornerBlock": Case(MOREAU, 1e-3, corner_block),
    "DoublePendulum": Case(jaxnsd.SymmetricMoreau(), 1e-2, double_pendulum),
    "TwoDiscs": Case(MOREAU, 1e-2, two_discs),
    "Sphere": Case(MOREAU, 1e-2, sphere),
}


#: A first look: slip and stick of one contact, redundant contacts.
QUICK = ["RotatingBall", "CornerBlock"]


def parameters(name, draw):
    """Parameters of the members, each (n,): within 30 % of the model's own, contact data with their extremes."""
    nominal = (
        BAR if name == "elastic_bar" else {f.name: f.default for f in dataclasses.fields(MODELS[name]) if not f.metadata.get("static")}
    )
    chosen = {}
    for key, value in nominal.items():
        if key in CONTACT_DATA:
            chosen[key] = draw.among(0.0, 0.3, 1.0) if key == "mu" else draw.among(0.0, 1.0, draw.uniform(0.0, 1.0))
        elif key.startswith(("radius_", "half_", "guide")):
            chosen[key] = value * draw.uniform(0.995, 1.005)  # a fit with play: other sizes would jam it
        else:
            chosen[key] = value * draw.uniform(0.7, 1.3)
    return chosen


def derivatives(name, sensitivity):
    """Compiled function of ``(parameters, q0, u0)``: two Jacobians, a weighted sum of their rows, the same in reverse mode, success.

    Rows of the first: final state, percussions summed over the contacts. Of the second: all percussions one by one, which redundant
    contacts share as they like. Columns: relative changes of the parameters (absolute ones of contact data), initial state.
    """
    case = CASES[name]
    make = case.make or MODELS[name]

    def run(x, p, q0, u0):
        dp, dq, du = x
        p = {key: value + dp[key] * (1.0 if key in CONTACT_DATA else value) for key, value in p.items()}
        sol = jaxnsd.simulate(make(**p), case.scheme, q0 + dq, u0 + du, STEPS * case.dt, case.dt, sensitivity=sensitivity)
        unique = jnp.concatenate([sol.q[-1], sol.u[-1], sol.P_N.sum()[None], sol.P_F.sum((0, 1))])
        return (unique, jnp.concatenate([sol.P_N.sum(0), sol.P_F.sum(0).ravel(), sol.P_g.sum(0)])), sol.success

    def columns(tree, axis):
        by_parameter = [tree[0][key][..., None] for key in sorted(tree[0])]
        return jnp.concatenate([*by_parameter, tree[1], tree[2]], axis=axis)

    def weighted(rows):
        return sum(jnp.cos(1.0 + jnp.arange(len(part))) @ part for part in rows)

    def both(p, q0, u0):
        x = jax.tree.map(jnp.zeros_like, (p, q0, u0))
        J, success = jax.jacfwd(lambda x: run(x, p, q0, u0), has_aux=True)(x)
        J = [columns(part, 1) for part in J]
        gradient = jax.grad(lambda x: weighted(run(x, p, q0, u0)[0]))(x)
        return *J, weighted(J), columns(gradient, 0), success

    return jax.jit(jax.vmap(both))


def check(name, sensitivity, n, seed):
    """Derivatives of n random members: finite all of them, of a sensible size, and the same in both modes."""
    draw = Draw(seed, n)
    p = parameters(name, draw)
    q0, u0 = CASES[name].states(draw, CASES[name].dt, p)
    run = derivatives(name, sensitivity)
    unique, single, forward, reverse, success = (np.asarray(x) for x in run(p, q0, u0))
    assert np.mean(success) > 0.9
    assert all(np.all(np.isfinite(x)) for x in (unique, single, forward, reverse))
    # What is flagged as unsolved has no meaningful derivative.
    assert np.abs(unique[success]).max() < LARGEST
    size = 1 + np.maximum(np.abs(unique).max((1, 2)), np.abs(single).max((1, 2), initial=0))

    def differs(a, b):
        return np.abs(a - b).max(1) > 1e-9 * size

    # Derivatives of single percussions that are nearly undetermined are round-off, magnified.
    meant = success & (size < LARGEST)
    apart = differs(forward, reverse) & meant

    # On a kink to the last bit, as of a contact that is closed and has neither load nor velocity, the rounding of each program decides
    # which of the one-sided derivatives it takes: where the modes differ, another last bit of the state and the parameters changes the
    # derivative in one mode just as well, and they differ on no more members than that changes. How many are on a kink is a matter of the
    # draw: of columns of ten beads four fifths.
    def moved(x):
        return x * (1 + draw.rng.choice([-1, 0, 1], x.shape) * 2.2e-16)

    on_kink = np.zeros(n, bool)
    for k in range(20):
        q, u = (moved(x) + draw.rng.choice([-1, 0, 1], x.shape) * 1e-17 for x in (q0, u0))
        *_, moved_forward, moved_reverse, _ = (np.asarray(x) for x in run({key: moved(value) for key, value in p.items()}, q, u))
        changed = differs(moved_forward, forward)
        assert k or np.sum(apart) <= np.sum(changed & meant)
        on_kink |= changed | differs(moved_reverse, reverse)
        if np.all(on_kink[apart]):
            break
    assert np.all(on_kink[apart])


@pytest.mark.long
@pytest.mark.parametrize("name", QUICK)
def test_derivatives_at_every_kink(name):
    check(name, "saltation", 300, seed=1)


@pytest.mark.long
@pytest.mark.parametrize("sensitivity", ["saltation", "discrete"])
@pytest.mark.parametrize("name", CASES)
def test_derivatives_of_ten_thousand_states(name, sensitivity):
    check(name, sensitivity, 10_000, seed=2)
