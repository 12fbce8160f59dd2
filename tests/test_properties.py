"""What holds of every motion, whatever it is: units and the order of contacts do not matter, and percussions obey their laws.

Drawn systems of `test_against_reference`, all variants of them in one batch of one program.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from little_systems import UNOPTIMIZED
from scheme_table import SCHEMES, over
from test_against_reference import Drawn, draw

import jaxnsd
from jaxnsd import Lobatto, Moreau, MoreauJean

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
    }

    def run(p, dt):
        law = {name: p[name] for name in ("e_N", "e_F", "mu")}
        system = Drawn({name: x for name, x in p.items() if name not in (*law, "q0", "u0")}, **law)
        return jaxnsd.simulate(system, scheme, p["q0"], p["u0"], n_steps=STEPS, dt=dt)

    batch = jax.tree.map(lambda *x: jnp.stack([jnp.asarray(a) for a in x]), *[member for some in variants.values() for member in some])
    sols = jax.tree.map(np.asarray, jax.jit(jax.vmap(run), compiler_options=UNOPTIMIZED)(*batch))
    parts = {name: jax.tree.map(lambda x, i=i: x[i * SYSTEMS : (i + 1) * SYSTEMS], sols) for i, name in enumerate(variants)}
    solved = np.all(parts["as drawn"].outcome == 0, axis=1)
    assert np.sum(solved) >= SYSTEMS - 1 and np.sum(parts["as drawn"].P_N > 0) > 100
    return [p for p, ok in zip(systems, solved, strict=True) if ok], {
        name: jax.tree.map(lambda x: x[solved], x) for name, x in parts.items()
    }


FAST, SLOW = [Moreau()], [MoreauJean(), Lobatto(2)]


@over(SCHEMES, FAST, SLOW)
def test_binary_units_change_no_bit(scheme):
    """Nothing in a run has a unit of its own, tolerances and thresholds included."""
    _, of = motions(scheme)
    (mass, length, time), a, b = BINARY, of["as drawn"], of["binary"]
    for name, factor in (("q", length), ("u", length / time), ("P_N", mass * length / time), ("P_F", mass * length / time)):
        np.testing.assert_array_equal(getattr(a, name) * factor, getattr(b, name), err_msg=name)
    np.testing.assert_array_equal(a.iterations, b.iterations)


@over(SCHEMES, FAST, SLOW)
def test_decimal_units_change_round_off(scheme):
    """The same motion, and the same steps have impacts."""
    _, of = motions(scheme)
    (_, length, time), a, b = DECIMAL, of["as drawn"], of["decimal"]
    np.testing.assert_allclose(b.q / length, a.q, rtol=0, atol=1e-9)
    np.testing.assert_allclose(b.u * time / length, a.u, rtol=0, atol=1e-8)
    np.testing.assert_array_equal(a.events, b.events)


@over(SCHEMES, FAST, SLOW)
def test_order_of_contacts_does_not_matter(scheme):
    """The motion is the same to round-off; percussions need not be, where contacts are redundant."""
    _, of = motions(scheme)
    a, b = of["as drawn"], of["reordered"]
    np.testing.assert_allclose(b.q, a.q, rtol=0, atol=1e-9)
    np.testing.assert_allclose(b.u, a.u, rtol=0, atol=1e-8)


@over(SCHEMES, FAST, SLOW)
def test_percussions_push_and_stay_in_their_cones(scheme):
    """Of every stored row."""
    systems, of = motions(scheme)
    sol, mu = of["as drawn"], np.stack([p["mu"] for p in systems])[:, None]
    assert np.all(sol.P_N >= 0)
    excess = np.linalg.norm(sol.P_F, axis=3) - mu * sol.P_N
    assert np.max(excess) < 1e-12
