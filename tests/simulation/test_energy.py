"""Energy balances of Acary (2014): identities to round-off, the propositions inside and outside of their bounds."""

import dataclasses
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxnsd
from jaxnsd import energy
from jaxnsd.models import BouncingBall, SpringPendulum, elastic_bar

balance = jax.jit(energy.balance, static_argnums=1)


def random_system(seed, n=5, contacts=3, friction=False):
    """Damped, driven, with several contacts: K stiff enough for hundreds of impacts."""
    rng = np.random.default_rng(seed)

    def spd(scale):
        A = rng.normal(size=(n, n))
        return scale * A @ A.T

    def force(amplitude, t):
        return amplitude * jnp.sin(7 * t) + 30 * jnp.cos(3 * t)

    system = jaxnsd.LinearSystem(
        spd(1.0) + n * np.eye(n),
        spd(50.0) + 20 * np.eye(n),
        spd(0.02),
        jax.tree_util.Partial(force, jnp.array(rng.normal(size=n) * 30)),
        rng.normal(size=(n, contacts)),
        0.02,
        rng.normal(size=(n, contacts, 1)) if friction else None,
        mu=0.3 * friction,
    )
    return system, jnp.zeros(n), jnp.array(rng.normal(size=n) * 0.5)


E_N = np.array([0.0, 0.5, 1.0])


def runs(system, scheme, q0, u0, t1=8.0, dt=1e-2, e=E_N):
    """Energy balances of motions with several restitution coefficients, and how many contacts pushed in each."""

    @jax.jit
    def run(e):
        member = dataclasses.replace(system, e_N=e)
        sol = jaxnsd.simulate(member, scheme, q0, u0, t1, dt)
        return energy.balance(member, scheme, sol), jnp.sum(sol.P_N > 0), sol.success

    b, pushes, success = jax.vmap(run)(jnp.asarray(e))
    assert np.all(success)
    return b, np.asarray(pushes)


IDENTITIES = [
    (jaxnsd.MoreauJean(0.5), "(35)"),
    (lambda: jaxnsd.MoreauJean(0.7), "(35)"),
    (jaxnsd.MoreauJeanVariant(0.8), "(92)"),
    (jaxnsd.Newmark(), "(88)"),
    (lambda: jaxnsd.Newmark(0.4, 0.7), "(88)"),
    (jaxnsd.HHT(0.15), "(80)"),
    (jaxnsd.GeneralizedAlpha(0.6), "(69)"),
    (jaxnsd.GeneralizedAlpha(1.0), "(69)"),
    (jaxnsd.KrenkHogsberg(0.3), "(72)"),
]
#: The fast tests: one scheme. Those of the propositions below are held to their identities there.
FAST = (0,)


def made(scheme):
    """A scheme, those outside of a theorem without their warning."""
    if not callable(scheme):
        return scheme
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return scheme()


@pytest.mark.parametrize("friction", [pytest.param(False, marks=pytest.mark.long), True])
@pytest.mark.parametrize(
    ("scheme", "equation"),
    [case if k in FAST else pytest.param(*case, marks=pytest.mark.slow) for k, case in enumerate(IDENTITIES)],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_balance_is_an_identity(scheme, equation, friction):
    scheme = made(scheme)
    system, q0, u0 = random_system(0, friction=friction)
    b, pushes = runs(system, scheme, q0, u0)
    assert b.theorem.endswith(equation)
    assert pushes.sum() > 150
    # Nothing is zero that should be tested.
    for work in ("external", "damping", "contact") + ("friction",) * friction:
        assert np.abs(getattr(b, work)).max() > 1e-3, work
    assert np.abs(b.residual).max() <= 1e-12 * np.abs(b.algorithmic).max()


@pytest.mark.slow
def test_energies_and_works_are_what_they_are_called():
    system, q0, u0 = random_system(1)
    scheme = jaxnsd.MoreauJean(0.5)
    sol = jaxnsd.simulate(system, scheme, q0, u0, 1.0, 1e-2)
    b = balance(system, scheme, sol)
    q, u, t = (np.asarray(x) for x in (sol.q, sol.u, sol.t))
    np.testing.assert_allclose(b.kinetic, 0.5 * np.einsum("ki,ij,kj->k", u, system.mass, u), rtol=1e-12)
    np.testing.assert_allclose(b.potential, 0.5 * np.einsum("ki,ij,kj->k", q, system.K, q), atol=1e-12)
    F = np.array([system.external_force(tk) for tk in t])
    mean_u, mean_F = 0.5 * (u[1:] + u[:-1]), 0.5 * (F[1:] + F[:-1])
    np.testing.assert_allclose(b.external, 1e-2 * np.sum(mean_u * mean_F, axis=1), atol=1e-12)
    np.testing.assert_allclose(b.damping, -1e-2 * np.einsum("ki,ij,kj->k", mean_u, system.C, mean_u), atol=1e-12)
    np.testing.assert_allclose(b.contact, np.asarray(sol.P_N) * (mean_u @ np.asarray(system.G)), atol=1e-12)
    np.testing.assert_allclose(b.cumulated("external")[jnp.array([0, -1])], [0, np.sum(b.external)], atol=1e-12)
    np.testing.assert_allclose(b.total, np.asarray(b.kinetic) + np.asarray(b.potential), atol=1e-12)


def drawn(seed):
    """Schemes with random parameters inside the bounds of their propositions, the restitution up to which they hold, and their balance."""
    rng = np.random.default_rng(seed)
    gamma = rng.uniform(0.5, 1.0)
    beta = rng.uniform(0.5, 1.5) * gamma
    alpha = rng.uniform(0, gamma - 0.5)
    theta = rng.uniform(0.5, 1.0)
    nu = rng.uniform(gamma - 0.5, 1.0)
    eta = rng.uniform(0, gamma - 0.5)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*first order only")
        return [
            (jaxnsd.MoreauJean(theta), 1 / theta - 1, "(35)"),
            (jaxnsd.MoreauJeanVariant(theta), 1.0, "(92)"),
            (jaxnsd.KrenkHogsberg(alpha_m=0.5 - nu, alpha_f=0.5 - nu + eta, beta=beta, gamma=gamma), 1.0, "(72)"),
            (jaxnsd.HHT(alpha, beta=beta, gamma=gamma), 1.0, "(80)"),
            (jaxnsd.Newmark(beta, gamma), 1.0, "(88)"),
        ]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(k, marks=pytest.mark.long) for k in range(1, 8))])
@pytest.mark.parametrize("which", range(5), ids=["Prop. 1", "Corollary 1", "Prop. 2", "Prop. 3", "Prop. 4"])
def test_propositions_on_dissipation(which, seed):
    scheme, largest_e, equation = drawn(seed)[which]
    system, q0, u0 = random_system(10 + seed)
    b, pushes = runs(system, scheme, q0, u0, e=np.array([0.0, 0.5, 1.0]) * min(largest_e, 1.0))
    assert pushes.sum() > 50
    assert b.created.min() < -1e-3
    assert np.all(np.asarray(b.created) <= 1e-12 * np.abs(b.algorithmic).max())
    assert b.theorem.endswith(equation)
    assert np.abs(b.residual).max() <= 1e-12 * np.abs(b.algorithmic).max()


@pytest.mark.slow
def test_energy_created_outside_of_the_bound_is_seen():
    # theta = 1 with e = 0.5, outside of Proposition 1; the variant has no such bound.
    bar = elastic_bar(20)
    theta_one, _ = runs(bar, jaxnsd.MoreauJean(1.0), *bar.initial_state(), 1.5e-3, 2e-6, e=[0.5])
    variant, _ = runs(bar, jaxnsd.MoreauJeanVariant(1.0), *bar.initial_state(), 1.5e-3, 2e-6, e=[0.5])
    assert theta_one.created.max() > 1e-4 * theta_one.algorithmic.max()
    assert variant.created.max() <= 1e-12 * variant.algorithmic.max()


def test_a_balance_is_printed_in_one_line():
    ball = BouncingBall(e_N=0.5, mass=1.0, gravity=10.0)
    sol = jaxnsd.simulate(ball, jaxnsd.Moreau(), np.ones(1), np.zeros(1), 0.4, 1e-2)
    b, within = balance(ball, jaxnsd.Moreau(), sol), []
    assert repr(b) == f"EnergyBalance(10 J to 10.2 J; {b.verdict()})" and "energy created in 40 of 40 steps" in repr(b)
    jax.jit(lambda b: within.append(repr(b)))(b)
    assert within == ["EnergyBalance(nodes (41,))"]


@pytest.mark.slow
def test_verdict_tells_created_energy():
    system = jaxnsd.LinearSystem(np.eye(1), 100 * np.eye(1), G=np.eye(1), e_N=1.0)
    with pytest.warns(UserWarning, match=r"1/\(1 \+ e\) = 0.5 \(Acary 2014, Proposition 1\)"):
        sol = jaxnsd.simulate(system, jaxnsd.MoreauJean(0.8), np.ones(1), np.zeros(1), 3.0, 1e-2)
    b = balance(system, jaxnsd.MoreauJean(0.8), sol)
    assert not np.all(b.dissipative)
    assert "energy created in" in b.verdict() and "(35) holds to" in b.verdict()
    sol = jaxnsd.simulate(system, jaxnsd.MoreauJeanVariant(0.8), np.ones(1), np.zeros(1), 3.0, 1e-2)
    b = balance(system, jaxnsd.MoreauJeanVariant(0.8), sol)
    assert np.all(b.dissipative) and b.verdict().startswith("dissipative in all 300 steps")


@pytest.mark.slow
def test_nonlinear_systems_are_measured():
    # A ball under gravity: the only losses are those of the impacts, (1 - e^2) of the kinetic energy each, A14 (21).
    ball = BouncingBall(e_N=0.5)
    sol = jaxnsd.simulate(ball, jaxnsd.SymmetricMoreau(), *ball.initial_state(), 0.6, 1e-3)
    b = balance(ball, jaxnsd.SymmetricMoreau(), sol)
    hit = int(np.argmax(np.asarray(sol.P_N[:, 0]) > 0))
    before, after = float(sol.u[hit, 0]), float(sol.u[hit + 1, 0])
    np.testing.assert_allclose(b.contact[hit, 0], 0.5 * ball.mass * (after**2 - before**2), rtol=1e-2)
    assert b.theorem is None and "no theorem" in b.verdict()
    np.testing.assert_allclose(np.sum(b.numerical) + np.sum(b.contact), b.total[-1] - b.total[0], atol=1e-14)

    pendulum = SpringPendulum()
    sol = jaxnsd.simulate(pendulum, jaxnsd.MoreauJean(0.5), *pendulum.initial_state(), 1.0, 1e-3)
    b = balance(pendulum, jaxnsd.MoreauJean(0.5), sol)
    # e_N = 1: the wall does no work on the mean of the velocities before and after.
    assert np.abs(b.contact).max() < 1e-12


@jaxnsd.system
class Carried(jaxnsd.System):
    """A bead on a rod that turns as it is told, in a potential that changes with time: T and V depend on t by themselves."""

    def kinetic_energy(self, t, q, u):
        rate = 1 + 0.5 * jnp.cos(3 * t)
        return 0.5 * u @ u + rate * u[0] + 0.5 * (1 + rate**2) * q[0] ** 2

    def potential_energy(self, t, q):
        return 2 * q @ q * (1 + 0.3 * jnp.sin(5 * t))


@pytest.mark.parametrize("scheme", [jaxnsd.SymmetricMoreau(), jaxnsd.VariationalMoreau(), jaxnsd.Lobatto(3)], ids=str)
def test_what_time_does_is_work(scheme):
    """The scheme's own share falls with the square of the step, of a motion whose energy changes by itself."""
    system, lost = Carried(), []
    for dt in (1e-2, 5e-3):
        b = balance(system, scheme, jaxnsd.simulate(system, scheme, jnp.array([0.3]), jnp.array([0.2]), 1.0, dt))
        lost.append(np.abs(np.cumsum(b.numerical)).max())
    assert np.abs(b.total[-1] - b.total[0]) > 0.1
    assert lost[0] < 2e-3 * float(b.scale) and lost[1] < 0.3 * lost[0]


def test_energies_are_those_of_the_nodes():
    """A fall keeps its energy to round-off with velocities at mid-interval too, which are half a step ahead."""
    ball = BouncingBall()
    for scheme in (jaxnsd.SymmetricMoreau(), jaxnsd.VariationalMoreau()):
        b = balance(ball, scheme, jaxnsd.simulate(ball, scheme, *ball.initial_state(), 0.2, 1e-2))
        np.testing.assert_allclose(b.total, b.total[0], rtol=1e-13)


@jaxnsd.system
class Bowl(jaxnsd.System):
    """A unit mass that slides on a parabola without friction."""

    def kinetic_energy(self, t, q, u):
        return 0.5 * u @ u

    def potential_energy(self, t, q):
        return 9.81 * q[1]

    def gap(self, t, q):
        return q[1:] - q[:1] ** 2


def test_a_contact_that_persists_does_no_work_in_lobatto_schemes():
    """Its force acts at the stages, across the motion there."""
    for scheme in (jaxnsd.Lobatto(2), jaxnsd.Lobatto(3)):
        sol = jaxnsd.simulate(Bowl(), scheme, jnp.array([1.0, 1.0]), jnp.zeros(2), 1.0, 1e-2)
        b = balance(Bowl(), scheme, sol)
        assert np.all(sol.P_N > 0) and np.sum(np.abs(b.contact)) < 2e-3 * float(b.scale)


@pytest.mark.slow
def test_bar_balances_with_tridiagonal_matrices():
    bar = elastic_bar(8, damping=1e-7)
    scheme = jaxnsd.KrenkHogsberg(0.7)
    sol = jaxnsd.simulate(bar, scheme, *bar.initial_state(), 1.5e-3, 2e-6)
    b = balance(bar, scheme, sol)
    assert np.abs(b.residual).max() <= 1e-12 * b.algorithmic.max()
    assert np.all(b.dissipative)


@pytest.mark.slow
def test_a_motion_that_goes_on_has_no_filtered_balance():
    """The filters of Lemma 2 start at zero with the motion: begun in its middle they missed the identity by 4e-5 and created energy."""
    system, q0, u0 = random_system(0)
    scheme, other = jaxnsd.HHT(0.15), jaxnsd.MoreauJean(0.7)
    first, other_first = (jaxnsd.simulate(system, s, q0, u0, 0.4, 1e-2) for s in (scheme, other))
    on, other_on = (jaxnsd.simulate(system, s, None, None, 0.8, 1e-2, start=sol) for s, sol in ((scheme, first), (other, other_first)))
    assert np.abs(energy.balance(system, scheme, first).residual).max() < 1e-13
    with pytest.raises(ValueError, match="goes on from another"):
        energy.balance(system, scheme, on)
    assert np.all(np.isnan(balance(system, scheme, on).numerical))
    assert np.abs(energy.balance(system, other, other_on).residual).max() < 1e-13
    with pytest.raises(ValueError, match=r"one of HHT.*got one of another scheme"):
        energy.balance(system, scheme, other_on)
    with pytest.raises(ValueError, match=r"one of MoreauJean\(theta=0.6\).*got one of another scheme, MoreauJean\(theta=0.7\)"):
        energy.balance(system, jaxnsd.MoreauJean(0.6), other_on)


def test_what_cannot_be_balanced_is_refused():
    ball = BouncingBall()
    sol = jaxnsd.simulate(ball, jaxnsd.Moreau(), *ball.initial_state(), 0.1, 1e-3, save_every=10)
    with pytest.raises(ValueError, match="save_every = 10"):
        energy.balance(ball, jaxnsd.Moreau(), sol)
    batch = jax.vmap(lambda q: jaxnsd.simulate(ball, jaxnsd.Moreau(), q, jnp.zeros(1), 0.1, 1e-3))(jnp.ones((2, 1)))
    with pytest.raises(ValueError, match="takes one motion, got a batch"):
        energy.balance(ball, jaxnsd.Moreau(), batch)
    with pytest.raises(ValueError, match=r"LocatedImpacts turns velocities at impacts between the nodes.*use MoreauJean\(\) alone"):
        energy.balance(ball, jaxnsd.LocatedImpacts(jaxnsd.MoreauJean()), sol.__class__(**{**vars(sol), "save_every": 1}))
