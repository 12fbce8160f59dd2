"""The problem of the closed contacts alone gives what that of all contacts gives: values, derivatives, one by one and in lockstep."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from little_systems import quick

import jaxnsd
from jaxnsd import bodies, sets
from jaxnsd.contact import Choice, sharing
from jaxnsd.mechanics.local import Contacts, kinematics, local
from jaxnsd.models import Cube, Sphere
from jaxnsd.schemes import gathered, sensitivity
from jaxnsd.schemes.base import Percussions, State

DT = 1 / 592
#: Without the globalization, which compiles long.
SOLVER = jaxnsd.SemismoothNewton(max_rescues=0, max_iterations=40)


def cubes():
    """States of a cube with no to eight corners in the floor, which push, slide and stick; the coordinates are those of a node."""
    rng = np.random.default_rng(0)
    q, u = [], []
    for depth, tilt in [(-0.1, 1), (1e-4, 1), (2e-3, 1e-2), (2e-3, 0), (0.02, 0.3), (0.05, 1), (0.09, 1), (0.2, 1), (0.2, 0.1)]:
        p = np.concatenate([[1.0], tilt * rng.normal(size=3)])
        at = np.concatenate([[0.1, 0.2, 0.0], p / np.linalg.norm(p)])
        at[2] = -depth - float(jnp.min(Cube().gap(0.0, jnp.asarray(at))))
        q.append(at)
        u.append(np.concatenate([rng.normal(size=3) - [0, 0, 1], 5 * rng.normal(size=3)]))
    return Cube(e_N=0.3, mu=0.3), jnp.asarray(q), jnp.asarray(u)


def spheres():
    """States of a sphere in the air, on the floor, at the wall, in the corner between them."""
    q = np.zeros((4, 6))
    q[:, 2], q[:, 0] = [0.5, 0.09, 0.5, 0.09], [0.0, 0.0, 1.91, 1.91]
    u = np.random.default_rng(1).normal(size=(4, 6)) + np.array([1, 0, -1, 0, 0, 0])
    return Sphere(e_N=0.3), jnp.asarray(q), jnp.asarray(u)


def advanced(scheme):
    """(coordinates, velocity, impulse of all percussions, solved) after a step from a state, as a function of system, q and u."""

    def run(system, q, u):
        prepared = scheme.prepare(system, DT)
        state, _ = scheme.init(prepared, jnp.zeros(()), jnp.asarray(DT), q, u, SOLVER)
        end, info = scheme.step(prepared, jnp.zeros(()), jnp.asarray(DT), state, SOLVER)
        # Of redundant contacts the sums alone are unique.
        place = jax.lax.stop_gradient((jnp.zeros(()), end.q, end.u))
        impulse = system.W_N(*place) @ end.P.P_N + jnp.einsum("und,nd->u", system.W_F(*place), end.P.P_F)
        return end.q, end.u, impulse, info.converged

    return run


@jaxnsd.system
class OnRails(Cube):
    """A cube that slides across its rails twice as hard as along them, on a floor that rises."""

    mu: float = 0.0
    law = jaxnsd.NewtonImpact(e_N=lambda speed: 0.5 / (1 + speed), friction=sets.Ellipse(0.2, 0.4, 0.3))

    def gap_velocity(self, t, q, u):
        return super().gap_velocity(t, q, u) - 0.1

    W_N = jaxnsd.System.W_N


def test_contacts_that_are_chosen_are_those_of_all():
    """Asked for alone, or taken of what is known of all; of a system that gathers them, and of one that does not."""

    @quick
    def both(system, q, u):
        rate, known = system.gap_velocity(0.0, q, u), local(system, 0.0, q, u)
        choice = Choice(jnp.arange(rate.size) % 3 == 1, 3)
        contacts, chosen = Contacts(system, choice), known.take(choice)
        slip = contacts.tangential_velocity(0.0, q, u).reshape(-1)
        asked = contacts.gap(0.0, q), kinematics(system, 0.0, q, u, choice), jnp.concatenate([slip, contacts.gap_velocity(0.0, q, u)])
        data = contacts.data(0.0, q, choice.take(rate)), contacts.take(jnp.arange(rate.size))
        taken = chosen.gap, chosen.kin, chosen.kin.at_contacts(u)
        data_of_all = jax.tree.map(choice.take, system.contact_data(0.0, q, rate)), jnp.array([1, 4, 7])
        return (*asked, *data), (*taken, *data_of_all)

    box = bodies.Body("box", 0.5, (1e-3,) * 3, shapes=bodies.Box((0.1, 0.1, 0.1)), position=(0.0, 0.0, 0.1))
    for system in (OnRails(e_N=0.0), bodies.assemble([box], bodies.Plane(), e_N=0.3, mu=0.4)):
        q, u = system.initial_state()
        for one, other in zip(*map(jax.tree.leaves, both(system, q, u + jnp.sin(jnp.arange(6.0)))), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-14)


@pytest.mark.parametrize(
    ("drawn", "scheme"),
    [
        pytest.param(spheres, jaxnsd.Moreau(), marks=pytest.mark.slow),
        pytest.param(cubes, jaxnsd.Moreau(), marks=pytest.mark.slow),
        pytest.param(cubes, jaxnsd.MoreauJean(), marks=pytest.mark.slow),
        pytest.param(spheres, jaxnsd.SymmetricMoreau(), marks=pytest.mark.slow),
        pytest.param(spheres, jaxnsd.GeneralizedAlpha(), marks=pytest.mark.slow),
    ],
    ids=["sphere-Moreau", "cube-Moreau", "cube-MoreauJean", "sphere-SymmetricMoreau", "sphere-GeneralizedAlpha"],
)
def test_closed_contacts_alone_are_all_contacts(drawn, scheme, monkeypatch):
    system, q, u = drawn()
    system = jax.tree.map(jnp.asarray, system)
    run = advanced(scheme)

    def forward(state):
        return jax.jvp(run, (system, *state), jax.tree.map(jnp.cos, (system, *state)))

    def backward(state):
        return jax.grad(lambda *args: sum(jnp.sum(jnp.sin(x)) for x in run(*args)[:2]), (0, 1, 2))(system, *state)

    active = np.asarray(jnp.sum(jax.vmap(lambda q: system.gap(0.0, q) <= 0)(q), axis=1))
    assert set(active) >= ({0, 1, 4, 8} if drawn is cubes else {0, 1, 2})
    # Side by side is in lockstep; one by one each takes its own branch.
    one_by_one, lockstep = jax.jit(lambda x: (jax.lax.map(forward, x), jax.vmap(backward)(x)))((q, u))
    monkeypatch.setattr(gathered, "sizes", lambda n, d: ())
    whole = jax.jit(lambda x: (jax.vmap(forward)(x), jax.lax.map(backward, x)))((q, u))
    assert np.all(whole[0][0][-1])
    # Where contacts are redundant, derivatives are those of contacts that yield a little (`contact.sharing`), by the compliance 1.5e-8, and
    # known to round-off over it.
    redundant, known = 3 * active > 6, 64 * np.finfo(float).eps ** (1 - sharing.COMPLIANCE)
    for got, wanted in zip(jax.tree.leaves((one_by_one, lockstep)), jax.tree.leaves(whole), strict=True):
        if got.dtype != jax.dtypes.float0:
            size = max(1, np.abs(wanted).max())
            np.testing.assert_allclose(got[~redundant], wanted[~redundant], rtol=0, atol=1e-9 * size)
            np.testing.assert_allclose(got[redundant], wanted[redundant], rtol=0, atol=known * size)


@pytest.mark.slow
def test_lobatto_with_the_near_contacts_is_that_with_all(monkeypatch):
    """Tosses of a cube up to its third impact: values, forward and reverse mode, one by one and in lockstep."""
    cube = jax.tree.map(jnp.asarray, Cube())
    q0, u0 = cube.initial_state()
    tosses = u0[None] + jnp.array([[0.0] * 6, [0.1, -0.2, 0.1, 1.0, -1.0, 0.5], [0.0, 0.3, -0.4, -2.0, 1.0, 0.0]])

    def end(cube, u):
        sol = jaxnsd.simulate(cube, jaxnsd.Lobatto(2), q0, u, n_steps=160, dt=DT)
        return jnp.concatenate([sol.q[-1], sol.u[-1]]), (sol.count(jaxnsd.Event.IMPACT), jnp.max(sol.outcome))

    def forward(u):
        return jax.jvp(end, (cube, u), jax.tree.map(jnp.cos, (cube, u)), has_aux=True)

    def backward(u):
        return jax.grad(lambda *args: jnp.sum(jnp.sin(end(*args)[0])), (0, 1))(cube, u)

    alone, lockstep = jax.jit(lambda u: (jax.lax.map(backward, u), jax.vmap(forward)(u)))(tosses)
    monkeypatch.setattr(gathered, "sizes", lambda n, d: ())
    values, tangents, (impacts, outcome) = jax.jit(lambda u: jax.lax.map(forward, u))(tosses)
    assert np.all(outcome == 0) and np.all(impacts >= 1), (outcome, impacts)
    np.testing.assert_allclose(lockstep[0], values, rtol=0, atol=1e-10)
    np.testing.assert_allclose(lockstep[1], tangents, rtol=0, atol=1e-9 * np.abs(tangents).max())
    # What reverse mode gives along the same tangent.
    along = sum(
        np.sum(np.reshape(g * np.cos(x), (3, -1)), axis=1)
        for g, x in zip(jax.tree.leaves(alone), [*(jnp.broadcast_to(x, (3, *x.shape)) for x in jax.tree.leaves(cube)), tosses], strict=True)
    )
    np.testing.assert_allclose(along, np.sum(np.cos(values) * tangents, axis=1), rtol=1e-8)


@pytest.mark.slow
def test_events_of_those_that_push_are_those_of_all(monkeypatch):
    """Boxes and a ball that land one after the other, on so many corners that those that push are a view; one by one and in lockstep."""
    monkeypatch.setattr(sensitivity, "FEW", 32)
    box, ball = bodies.Box((0.1, 0.1, 0.1)), bodies.Sphere(0.1)
    at = [(k, 0.0, 0.101 + 0.05 * k) for k in range(6)]
    parts = [bodies.Body(f"part {k}", 0.5, (1e-3,) * 3, shapes=ball if k == 3 else box, position=x) for k, x in enumerate(at)]
    system = bodies.assemble(parts, bodies.Plane(name="floor"), contacts="world", mu=0.4, e_N=0.4)
    scheme, dt = jaxnsd.Moreau(), 1e-3
    q0, u0 = system.initial_state()
    sol = jaxnsd.simulate(system, scheme, q0, u0 + 0.3 * jnp.sin(jnp.arange(u0.size)), n_steps=800, dt=dt)
    assert len(system.contacts) > 32 and bool(sol.success)
    pushing = np.count_nonzero(sol.P_N, axis=1)
    assert np.any(pushing == 0) and np.any((pushing > 0) & (pushing <= 16)) and np.any(pushing > 16)
    prepared, P = scheme.prepare(system, dt), Percussions(sol.P_N, sol.P_F, sol.P_g, sol.P_gamma)

    def found(k):
        before, after = (State(sol.q[i], sol.u[i], jax.tree.map(lambda x, i=i: x[i], P)) for i in (k, k + 1))
        return sensitivity.events(scheme, prepared, sol.t[k], jnp.asarray(dt), before, after)

    steps = jnp.arange(800)
    one_by_one, lockstep = jax.jit(lambda k: (jax.lax.map(found, k), jax.vmap(found)(k)))(steps)
    monkeypatch.setattr(sensitivity, "FEW", 1000)
    of_all = jax.jit(lambda k: jax.lax.map(found, k))(steps)
    for event in (jaxnsd.Event.IMPACT, jaxnsd.Event.SIMULTANEOUS, jaxnsd.Event.ACCUMULATION):
        assert np.any(of_all & event) and not np.all(of_all & event)
    np.testing.assert_array_equal(one_by_one, of_all)
    np.testing.assert_array_equal(lockstep, of_all)


@pytest.mark.slow
def test_places_of_the_closed_contacts():
    """Active contacts come first, in order; what is put back is where it was taken from."""
    rng = np.random.default_rng(0)
    for n, size in ((5, 2), (8, 4), (40, 16), (3, 0)):
        active = np.zeros(n, bool)
        active[rng.permutation(n)[: max(size - 1, 0)]] = True
        choice = gathered.Choice(jnp.asarray(active), size)
        x, W = rng.normal(size=n), rng.normal(size=(6, n, 2))
        np.testing.assert_array_equal(choice.take(x)[: active.sum()], x[active])
        np.testing.assert_array_equal(choice.take(W, axis=1)[:, : active.sum()], W[:, active])
        taken = choice.put(choice.take(jnp.asarray(x)))
        np.testing.assert_array_equal(np.asarray(taken)[active], x[active])
        assert np.count_nonzero(taken) == size
        z = np.arange(3.0 * n)
        rows = np.asarray(choice.rows(jnp.asarray(z), 2))
        np.testing.assert_array_equal(choice.rows(choice.put_rows(jnp.asarray(rows), 2), 2), rows)
        for place in range(size):
            number = int(choice.number(jnp.asarray(place)))
            assert (rows[2 * size + place] == 2 * n + number and number in np.flatnonzero(active)) or place >= active.sum()
        assert int(choice.number(jnp.asarray(-1))) == -1


@pytest.mark.slow
def test_quaternion_of_a_cube_keeps_its_length():
    """Tumbling in the air and at rest on the floor, over 1e5 steps each."""
    for height, spin in ((1e7, 8.0), (0.2, 8.0)):
        q0, u0 = jnp.array([0.0, 0, height, 1, 0, 0, 0]), spin * jnp.array([0.1, 0, 0, 1, 0.7, 0.4])
        sol = jaxnsd.simulate(Cube(), jaxnsd.Moreau(), q0, u0, n_steps=100_000, dt=DT, save_every=1000)
        assert bool(sol.success)
        np.testing.assert_allclose(np.linalg.norm(sol.q[:, 3:], axis=1), 1, rtol=0, atol=1e-10)
