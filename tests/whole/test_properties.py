"""What holds of every motion, whatever it is.

Units and the order of contacts do not matter, nor does how a run is cut, batched or called; percussions obey their laws; what rests stays
at rest, no energy is made where a theorem says so; derivatives agree with each other and with differences. Drawn systems of
`test_against_reference`, all variants of them in one batch of one program, and a box from parts.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from little_systems import UNOPTIMIZED
from scheme_table import MOREAU_TYPE, SCHEMES, over
from test_against_reference import Drawn, draw

import jaxnsd
from jaxnsd import (
    GeneralizedAlpha,
    Lobatto,
    LocatedImpacts,
    Moreau,
    MoreauJean,
    MoreauJeanVariant,
    Newmark,
    bodies,
)

STEPS, DT, SYSTEMS = 100, 5e-3, 24
ORDER = [2, 0, 1]
#: Units of mass, length and time, as parts of kg, m and s. Contact problems are scaled by square roots of what has 1 / mass in it, so
#: that only powers of four of the mass keep all bits: with 1/8, 2 of the 24 systems differ in the last bit, from Lemke's method on.
BINARY, DECIMAL = (0.25, 4.0, 2.0), (1e3, 1e-2, 1e-1)


def in_units(p, dt, mass, length, time):
    """The parameters of the same system in other units, and its step."""
    speed, force = length / time, mass * length / time**2
    of = {"M": mass, "w": force, "f": force, "c": mass / time, "rate": 1 / time, "bend": 1 / length, "turn": 1 / length}
    of |= {"g": length, "a": length, "q0": length, "b": speed, "u0": speed}
    return {name: x * of.get(name, 1.0) for name, x in p.items()}, dt * time


def reordered(p):
    """The parameters with the contacts in another order."""
    of_contacts = ("A", "B", "bend", "g", "a", "turn", "b", "e_N", "e_F", "mu")
    return {name: x[ORDER] if name in of_contacts else x for name, x in p.items()}


def drawn(rng):
    """A system whose coordinates are lengths: without the springs and the mass matrix that know of other units."""
    while True:
        p, _ = draw(rng)
        if np.min(p["A"] @ p["q0"] + p["bend"] * (p["q0"] @ p["q0"]) + p["g"]) > 0:
            return p | {"k": np.zeros(3), "m": np.zeros(3)}


def resting(rng, scheme):
    """A system in which all forces balance, with contacts that are pressed, and in which nothing moves; it starts at q = 0, u = 0.

    Moreau-type schemes take a contact for closed by the exact test of the paper, so that round-off may open one without a depth.
    """
    depth = 1e-9 * (scheme in MOREAU_TYPE)
    p, n = draw(rng)
    near = np.arange(3) < n
    normal = near * rng.uniform(1, 10, 3)
    tangential = p["mu"] * normal * rng.uniform(-0.5, 0.5, 3)
    still = dict.fromkeys(("k", "m", "f", "a", "b", "bend", "q0", "u0"), np.zeros(3))
    return p | still | {"w": normal @ p["A"] + tangential @ p["B"], "g": np.where(near, -depth, 100.0)}


def unforced(rng):
    """A system with constant forces, damping and flat smooth walls at rest: what A14, Propositions 1 and 4, are about."""
    return drawn(rng) | dict.fromkeys(("f", "a", "b", "bend", "mu"), np.zeros(3))


def run(scheme, p, dt, start=None, *, n_steps=STEPS, sensitivity="saltation"):
    """The `Solution` of a drawn system, or its continuation."""
    law = {name: p[name] for name in ("e_N", "e_F", "mu")}
    system = Drawn({name: x for name, x in p.items() if name not in (*law, "q0", "u0")}, **law)
    state, t0 = ((None, None), n_steps * dt) if start else ((p["q0"], p["u0"]), 0.0)
    return jaxnsd.simulate(system, scheme, *state, t0=t0, n_steps=n_steps, dt=dt, start=start, sensitivity=sensitivity)


def stacked(members):
    """One tree of arrays of many."""
    return jax.tree.map(lambda *x: jnp.stack([jnp.asarray(a) for a in x]), *members)


def compiled(function):
    """The function, compiled without optimization, with NumPy's arrays for what it gives."""
    program = jax.jit(function, compiler_options=UNOPTIMIZED)
    return lambda *args: jax.tree.map(np.asarray, program(*args))


@functools.cache
def motions(scheme):
    """``(systems, {variant: Solution of all systems})``."""
    rng = np.random.default_rng(3)
    systems = [drawn(rng) for _ in range(SYSTEMS)]
    variants = {
        "as drawn": [(p, DT) for p in systems],
        "binary": [in_units(p, DT, *BINARY) for p in systems],
        "decimal": [in_units(p, DT, *DECIMAL) for p in systems],
        "reordered": [(reordered(p), DT) for p in systems],
        "resting": [(resting(rng, scheme), DT) for _ in range(SYSTEMS)],
        "unforced": [(unforced(rng), DT) for _ in range(SYSTEMS)],
    }
    batch = stacked([member for some in variants.values() for member in some])
    sols = compiled(jax.vmap(functools.partial(run, scheme)))(*batch)
    parts = {name: jax.tree.map(lambda x, i=i: x[i * SYSTEMS : (i + 1) * SYSTEMS], sols) for i, name in enumerate(variants)}
    solved = np.all(parts["as drawn"].outcome == 0, axis=1)
    assert np.sum(solved) >= SYSTEMS - 1 and np.sum(parts["as drawn"].P_N > 0) > 100
    other = {name: ([p for p, _ in variants[name]], parts.pop(name)) for name in ("resting", "unforced")}
    parts = {name: jax.tree.map(lambda x: x[solved], x) for name, x in parts.items()}
    return [p for p, ok in zip(systems, solved, strict=True) if ok], parts, other


FAST, SLOW = [Moreau()], [MoreauJean(), Lobatto(2)]


@over(SCHEMES, FAST, SLOW)
def test_binary_units_change_no_bit(scheme):
    """Nothing in a run has a unit of its own, tolerances and thresholds included."""
    _, of, _ = motions(scheme)
    (mass, length, time), a, b = BINARY, of["as drawn"], of["binary"]
    for name, factor in (("q", length), ("u", length / time), ("P_N", mass * length / time), ("P_F", mass * length / time)):
        np.testing.assert_array_equal(getattr(a, name) * factor, getattr(b, name), err_msg=name)
    np.testing.assert_array_equal(a.iterations, b.iterations)


@over(SCHEMES, FAST, SLOW)
def test_decimal_units_change_round_off(scheme):
    """The same motion, and the same steps have impacts."""
    _, of, _ = motions(scheme)
    (_, length, time), a, b = DECIMAL, of["as drawn"], of["decimal"]
    np.testing.assert_allclose(b.q / length, a.q, rtol=0, atol=1e-9)
    np.testing.assert_allclose(b.u * time / length, a.u, rtol=0, atol=1e-8)
    np.testing.assert_array_equal(a.events, b.events)


@over(SCHEMES, FAST, SLOW)
def test_order_of_contacts_does_not_matter(scheme):
    """The motion is the same to round-off; percussions need not be, where contacts are redundant."""
    _, of, _ = motions(scheme)
    a, b = of["as drawn"], of["reordered"]
    np.testing.assert_allclose(b.q, a.q, rtol=0, atol=1e-9)
    np.testing.assert_allclose(b.u, a.u, rtol=0, atol=1e-8)


@over(SCHEMES, FAST, SLOW)
def test_percussions_push_and_stay_in_their_cones(scheme):
    """Of every stored row."""
    systems, of, _ = motions(scheme)
    sol, mu = of["as drawn"], np.stack([p["mu"] for p in systems])[:, None]
    assert np.all(sol.P_N >= 0)
    excess = np.linalg.norm(sol.P_F, axis=3) - mu * sol.P_N
    assert np.max(excess) < 1e-12


@over(SCHEMES, FAST, SLOW)
def test_a_rest_stays_a_rest(scheme):
    """Contacts that are pressed, some of them redundant, with restitution and friction that holds: nothing moves, nothing happens."""
    systems, sol = motions(scheme)[2]["resting"]
    assert np.all(sol.outcome == 0) and not np.any(sol.events)
    np.testing.assert_allclose(sol.u, 0, rtol=0, atol=1e-13)
    np.testing.assert_allclose(sol.q, 0, rtol=0, atol=1e-13)
    pushes = np.stack([p["A"].T @ P.sum(axis=0) for p, P in zip(systems, sol.P_N, strict=True)])
    friction = np.stack([p["B"].T @ P.sum(axis=0) for p, P in zip(systems, sol.P_F[..., 0], strict=True)])
    np.testing.assert_allclose(pushes + friction, DT * STEPS * np.stack([p["w"] for p in systems]), rtol=1e-9, atol=1e-9)


#: Schemes of which a theorem says so, with theta = 1/2, 2 beta = gamma = 1/2, or any e: A14, Propositions 1 and 4, and (92).
DISSIPATIVE = [MoreauJean(), MoreauJeanVariant(theta=0.6), Newmark()]


@over(DISSIPATIVE, [], DISSIPATIVE)
def test_no_energy_is_made(scheme):
    """Of smooth flat walls at rest, with e between 0 and 1, another for each contact; the wall of a moving one may work."""
    systems, sol = motions(scheme)[2]["unforced"]
    M, w = (np.stack([p[name] for p in systems]) for name in ("M", "w"))
    energy = np.einsum("sti,sij,stj->st", sol.u, M, sol.u) / 2 + np.einsum("sti,si->st", sol.q, w)
    assert np.all(sol.outcome == 0) and np.sum(sol.P_N > 0) > 100
    assert np.max(np.diff(energy, axis=1)) < 1e-13 * np.max(np.abs(energy))


def contact_velocities(p, t, q, u):
    """Gaps, gap velocities and slip, (..., 3) each, at times (...) and states (..., 3), by hand."""
    t = t[..., None]
    gap = q @ p["A"].T + p["bend"] * np.sum(q * q, axis=-1, keepdims=True) + p["g"] + p["a"] * np.sin(p["rate"] * t)
    rate = u @ p["A"].T + 2 * p["bend"] * np.sum(q * u, axis=-1, keepdims=True) + p["a"] * p["rate"] * np.cos(p["rate"] * t)
    return gap, rate, (1 + p["turn"] * q[..., :1]) * (u @ p["B"].T) + p["b"] * np.cos(p["rate"] * t)


@over([*MOREAU_TYPE, MoreauJean(), GeneralizedAlpha()], [Moreau()], [MoreauJean()])
def test_contact_laws_hold_at_every_stored_row(scheme):
    """Complementarity of percussions and ``xi_plus + e xi_minus``, the cone, and friction against the slip, where percussions act.

    That is the node at the end of a step with Moreau-type schemes, the predicted one with others. These give back less of a velocity that
    is of kinematics, none of it or all: there the law is checked where restitution is zero, in bounds elsewhere.
    """
    systems, of, _ = motions(scheme)
    count = 0
    for k, p in enumerate(systems):
        sol = jax.tree.map(lambda x, k=k: x[k], of["as drawn"])
        t, before, after = DT * np.arange(1, STEPS + 1), sol.u[:-1], sol.u[1:]
        place = sol.q[1:] if scheme in MOREAU_TYPE else sol.q[:-1] + DT * before
        gap, minus, slip_minus = contact_velocities(p, t, place, before)
        _, plus, slip_plus = contact_velocities(p, t, place, after)
        P_N, P_F = sol.P_N, sol.P_F[..., 0]
        pushed = P_N > 1e-12
        count += np.sum(pushed)
        if scheme in MOREAU_TYPE:
            assert not np.any(pushed & (gap > 1e-12))
            xi_N, xi_F = plus + p["e_N"] * minus, slip_plus + p["e_F"] * slip_minus
            assert np.min(np.where(gap < -1e-12, xi_N, 0)) > -1e-10
            np.testing.assert_allclose(np.where(pushed, xi_N, 0), 0, atol=1e-10)
        else:
            low, high = -np.maximum(minus, 0), np.maximum(-p["e_N"] * minus, 0)
            assert np.all((low - 1e-10 < plus)[pushed]) and np.all((plus < high + 1e-10)[pushed])
            xi_F = np.where(p["e_F"] == 0, slip_plus, np.nan)
        sticks = pushed & (np.abs(P_F) < (1 - 1e-9) * p["mu"] * P_N) & np.isfinite(xi_F)
        slides = pushed & (np.abs(xi_F) > 1e-9) & (p["mu"] > 0)
        np.testing.assert_allclose(np.where(sticks, xi_F, 0), 0, atol=1e-10)
        np.testing.assert_allclose(np.where(slides, P_F + p["mu"] * P_N * np.sign(xi_F), 0), 0, atol=1e-10)
        np.testing.assert_allclose(np.where(P_N == 0, P_F, 0), 0, atol=1e-20)
    assert count > 200


@over([Lobatto(2), Lobatto(3)], [], [Lobatto(2)])
def test_position_level_laws_hold_at_every_stored_row(scheme):
    """No gap is negative at a node; a contact that has an impact is closed, and leaves with e of its velocity at the start of the step."""
    systems, of, _ = motions(scheme)
    for k, p in enumerate(systems):
        sol, t = jax.tree.map(lambda x, k=k: x[k], of["as drawn"]), DT * np.arange(STEPS + 1)
        gap, rate, _ = contact_velocities(p, t, sol.q, sol.u)
        assert gap.min() > -1e-11
        closed = gap[1:] < 1e-11
        assert np.min(np.where(closed, rate[1:] + p["e_N"] * rate[:-1], 0)) > -1e-9
        assert not np.any((sol.P_N > 1e-10) & ~closed & (gap[:-1] > 1e-11))


#: `SCHEMES` and a scheme that locates impacts.
ALL, ALSO_SLOW = [*SCHEMES, LocatedImpacts(MoreauJean())], [*SLOW, LocatedImpacts(MoreauJean())]


@functools.cache
def alone(scheme):
    """``(systems, batch, Solutions)`` of the first systems as drawn, one batch."""
    rng = np.random.default_rng(3)
    systems = [drawn(rng) for _ in range(8)]
    batch = stacked(systems)
    return systems, batch, compiled(jax.vmap(lambda p: run(scheme, p, DT)))(batch)


def same(a, b, tolerance):
    """Whether two solutions have the same motion, outcomes and events."""
    np.testing.assert_array_equal(a.outcome, b.outcome)
    np.testing.assert_array_equal(a.events, b.events)
    for name in ("q", "u", "P_N", "P_F"):
        np.testing.assert_allclose(getattr(a, name), getattr(b, name), rtol=0, atol=tolerance, err_msg=name)


@over(ALL, [], [*FAST, *ALSO_SLOW])
def test_alone_in_a_batch_and_in_a_loop_of_ones_own(scheme):
    """To round-off."""
    systems, batch, together = alone(scheme)
    looped = compiled(lambda batch: jax.lax.scan(lambda carry, p: (carry, run(scheme, p, DT)), 0.0, batch)[1])(batch)
    same(looped, together, 1e-10)
    single = compiled(lambda p: run(scheme, p, DT))
    for k in (0, 5):
        same(single(systems[k]), jax.tree.map(lambda x, k=k: x[k], together), 1e-10)
    # Without `jax.jit` around it.
    same(run(scheme, jax.tree.map(jnp.asarray, systems[5]), DT), jax.tree.map(lambda x: x[5], together), 1e-10)


@over(ALL, [], [*FAST, *ALSO_SLOW])
def test_two_parts_are_the_whole(scheme):
    """To round-off, with all that is stored of a step."""
    _, batch, whole = alone(scheme)

    def halves(p):
        first = run(scheme, p, DT, n_steps=STEPS // 2)
        return first, run(scheme, p, DT, first, n_steps=STEPS // 2)

    first, second = compiled(jax.vmap(halves))(batch)
    for sol, steps in ((first, slice(0, STEPS // 2)), (second, slice(STEPS // 2, STEPS))):
        nodes = slice(steps.start, steps.stop + 1)
        for name in ("outcome", "events"):
            np.testing.assert_array_equal(getattr(sol, name), getattr(whole, name)[:, steps])
        for name in ("q", "u"):
            np.testing.assert_allclose(getattr(sol, name), getattr(whole, name)[:, nodes], rtol=0, atol=1e-10)
        for name in ("P_N", "P_F"):
            np.testing.assert_allclose(getattr(sol, name), getattr(whole, name)[:, steps], rtol=0, atol=1e-10)


@pytest.mark.filterwarnings("ignore:simulating in float32")
@over(ALL, FAST, ALSO_SLOW)
def test_single_precision_is_near_and_raises_no_flag(scheme):
    """Every step is solved that is solved in double precision. An impact may fall into the next step: that is an error of order dt."""
    _, batch, double = alone(scheme)
    single = compiled(jax.vmap(lambda p: run(scheme, p, np.float32(DT))))(jax.tree.map(lambda x: x.astype(jnp.float32), batch))
    assert single.q.dtype == np.float32
    np.testing.assert_array_equal(single.outcome[double.outcome == 0], 0)
    off = np.abs(single.q - double.q).max(axis=(1, 2))
    assert np.median(off) < 2e-5 and off.max() < 5 * DT


@over(ALL, [], [*FAST, *ALSO_SLOW])
def test_derivatives_agree_in_both_modes_and_with_differences(scheme):
    """Forward is reverse, of the exact motion and of the steps as computed; these are what differences tell, extrapolated, off their kinks.

    Of located impacts both are the same but for what is captured.
    """
    _, batch, _ = alone(scheme)
    rng = np.random.default_rng(4)
    direction = jax.tree.map(lambda x: x * rng.normal(size=np.shape(x)), batch)
    direction["M"] = (direction["M"] + direction["M"].transpose(0, 2, 1)) / 2
    weight = jnp.asarray(rng.normal(size=6))

    def final(p, sensitivity):
        sol = run(scheme, p, DT, sensitivity=sensitivity)
        return weight @ jnp.concatenate([sol.q[-1], sol.u[-1]])

    def along(tangent, direction):
        return sum(jnp.sum(a * b) for a, b in zip(jax.tree.leaves(tangent), jax.tree.leaves(direction), strict=True))

    def both(p, d):
        out = []
        for sensitivity in ("saltation", "discrete"):
            f = functools.partial(final, sensitivity=sensitivity)
            out += [jax.jvp(f, (p,), (d,))[1], along(jax.grad(f)(p), d)]
        return jnp.stack(out)

    forward, reverse, own, own_reverse = compiled(jax.vmap(both))(batch, direction).T
    scale = 1 + np.abs(forward)
    assert np.all(np.isfinite(forward))
    np.testing.assert_allclose(reverse / scale, forward / scale, rtol=0, atol=1e-9)
    np.testing.assert_allclose(own_reverse / scale, own / scale, rtol=0, atol=1e-9)
    value = compiled(
        jax.vmap(jax.vmap(lambda p, d, s: final(jax.tree.map(lambda a, b: a + s * b, p, d), "discrete"), (None, None, 0)), (0, 0, None))
    )
    h = np.array([1e-5, 2e-5, 4e-5])
    up, down = value(batch, direction, h), value(batch, direction, -h)
    slopes = (up - down) / (2 * h)
    first = (4 * slopes[:, :-1] - slopes[:, 1:]) / 3
    # Where a neighbour has another sequence of steps the differences are not of one function.
    sure = (np.abs(first[:, 0] - first[:, 1]) < 1e-7 * scale) & (np.abs(slopes[:, 0] - slopes[:, 1]) < 1e-4 * scale)
    assert np.sum(sure) >= len(sure) // 2
    np.testing.assert_allclose((own / scale)[sure], (first[:, 0] / scale)[sure], rtol=0, atol=1e-7)


def fallen_box(scheme, h, speed, n_steps, start=None, dt=1 / 512):
    """A box from parts that falls flat from h, with a speed along the floor, and slides to rest; its centre is 0.025 above its face."""
    box = bodies.Body("box", 0.5, (2e-3, 3e-3, 4e-3), shapes=bodies.Box((0.1, 0.08, 0.05)), position=(0.0, 0.0, 0.0))
    system = bodies.assemble(box, bodies.Plane(), mu=MU, e_N=0.0)
    q0, u0 = system.initial_state()
    if start is None:
        start = jnp.asarray(q0).at[2].set(0.025 + h), jnp.asarray(u0).at[0].set(speed)
        return jaxnsd.simulate(system, scheme, *start, n_steps=n_steps, dt=dt)
    return jaxnsd.simulate(system, scheme, None, None, t0=n_steps * dt, n_steps=n_steps, dt=dt, start=start)


MU, GRAVITY = 0.3, 9.81


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [Moreau(), MoreauJean()], ids=repr)
def test_a_box_falls_slides_and_rests(scheme):
    """Its way by hand, ``v0 t + v1^2 / (2 mu g)`` with ``v1 = v0 - mu g t`` after the impact; rest, balance, parts, batches."""
    h, speed = jnp.array([0.05, 0.1]), jnp.array([1.5, 1.2])
    steps = 256

    def both(h, speed):
        whole, first = (fallen_box(scheme, h, speed, n) for n in (2 * steps, steps))
        return whole, fallen_box(scheme, h, speed, steps, first)

    whole, second = compiled(jax.vmap(both))(h, speed)
    assert np.all(whole.outcome == 0)
    fall = np.sqrt(2 * np.asarray(h) / GRAVITY)
    left = np.asarray(speed) - MU * GRAVITY * fall
    way, end = np.asarray(speed) * fall + left**2 / (2 * MU * GRAVITY), fall + left / (MU * GRAVITY)
    assert np.all(end < 0.95)
    np.testing.assert_allclose(whole.q[:, -1, 0], way, rtol=0, atol=0.01)
    # Nothing tilts, nothing turns, and at rest nothing moves.
    np.testing.assert_allclose(whole.q[:, :, [1, 4, 5, 6]], 0, rtol=0, atol=1e-9)
    rest = whole.t[0] > end.max() + 0.02
    np.testing.assert_allclose(whole.u[:, rest], 0, rtol=0, atol=1e-11)
    np.testing.assert_allclose(whole.P_N[:, rest[1:]].sum(axis=2), 0.5 * GRAVITY / 512, rtol=1e-9)
    # All that falls and slides is lost: momentum is what percussions and weight tell.
    np.testing.assert_allclose(whole.P_N.sum(axis=(1, 2)), 0.5 * GRAVITY, rtol=2e-3 if scheme == Moreau() else 1e-9)
    assert np.all(np.linalg.norm(whole.P_F, axis=3) <= MU * whole.P_N + 1e-12)
    energy = 0.5 * np.sum(whole.u[..., :3] ** 2, axis=2) + GRAVITY * whole.q[..., 2]
    assert np.max(np.diff(energy, axis=1)) < (GRAVITY / 512) ** 2
    np.testing.assert_allclose(second.q, whole.q[:, steps:], rtol=0, atol=1e-11)
    np.testing.assert_allclose(second.u, whole.u[:, steps:], rtol=0, atol=1e-10)
    alone = fallen_box(scheme, h[1], speed[1], 2 * steps)
    np.testing.assert_allclose(alone.q, whole.q[1], rtol=0, atol=1e-11)
