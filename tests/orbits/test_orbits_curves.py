"""Special points in two parameters, and the orbits behind a grazing: closed forms."""

import jax.numpy as jnp
import numpy as np
import pytest
from test_orbits import Stop, Table, ball, doubling, fold, turns

import jaxnsd
from jaxnsd import orbits, plotting
from jaxnsd.orbits import OrbitOutcome

LOBATTO = jaxnsd.LocatedImpacts(jaxnsd.Lobatto(3))


def test_the_balls_period_doubling_in_two_parameters(tmp_path):
    """A = g / omega^2 hypot(pi (1 - e) / (1 + e), 2 (1 + e^2) / (1 + e)^2)."""
    (point,) = orbits.follow(ball(), "amplitude", to=1.8).special
    for to in (0.8, 0.2):
        curve = orbits.curve(point, "e_N", to=to)
        assert curve.kind == "period doubling" and curve.parameters == ("amplitude", "e_N") and curve.values[-1, 1] == to
        exact = [doubling(Table(e_N=e)) for e in curve.values[:, 1]]
        np.testing.assert_allclose(curve.values[:, 0], exact, rtol=0, atol=1e-12)
        np.testing.assert_allclose(curve.multipliers, np.stack([-np.ones(len(curve)), -(curve.values[:, 1] ** 2)], axis=1), atol=1e-10)
    assert curve.end == "ended at e_N = 0.2" and f"Curve(period doubling, {len(curve)} points, (amplitude, e_N)" in repr(curve)
    assert {name: len(column) for name, column in curve.columns().items()} == dict.fromkeys(
        ("amplitude", "e_N", "period", "t0", "q[0]", "u[0]"), len(curve)
    )
    assert orbits.curve(point, "e_N", to=0.8, max_points=3).end == "after max_points = 3"
    curve.save(tmp_path / "curve.npz")
    loaded = orbits.Curve.load(tmp_path / "curve.npz")
    assert repr(loaded) == repr(curve) and loaded.parameters == curve.parameters and not loaded.orbits
    for name, column in loaded.columns().items():
        np.testing.assert_array_equal(column, curve.columns()[name])
    with pytest.raises(ValueError, match=r"curve\.npz was not written by Branch\.save"):
        orbits.Branch.load(tmp_path / "curve.npz")
    line, start = plotting.curve(loaded).lines
    np.testing.assert_array_equal(line.get_xydata(), curve.values[:, ::-1])
    assert start.get_xydata().tolist() == [curve.values[0, ::-1].tolist()]
    for error, text, arguments in (
        (TypeError, "needs a Special", ("fold", "e_N", 0.8)),
        (ValueError, "amplitude is the parameter of the branch already", (point, "amplitude", 2.0)),
        (ValueError, "colour is no parameter of Table", (point, "colour", 2.0)),
        (ValueError, r"to must be a finite value other than that of the point, 0\.5", (point, "e_N", 0.5)),
        (ValueError, "to must be a finite value", (point, "e_N", "far")),
        (ValueError, "was loaded, and has no orbit", (orbits.Special("fold", 1.0, 0.0, 1), "e_N", 0.8)),
        (ValueError, "a branch point does not stay one", (orbits.Special("branch point", 1.0, 0.0, 1), "e_N", 0.8)),
        (ValueError, "only the grazings", None),
    ):
        with pytest.raises(error, match=text) as caught:
            point.across() if arguments is None else orbits.curve(*arguments)
        assert "\n" not in str(caught.value)


def test_the_balls_fold_in_two_parameters():
    """A = g pi (1 - e) / (omega^2 (1 + e)); the impact would be at the start of the period, which has given way."""
    (point,) = orbits.follow(ball(), "amplitude", to=0.9, max_points=40).special
    for name, to in (("e_N", 0.8), ("gravity", 0.5)):
        curve = orbits.curve(point, name, to=to)
        exact = [fold(Table(**{name: x})) for x in curve.values[:, 1]]
        np.testing.assert_allclose(curve.values[:, 0], exact, rtol=0, atol=1e-12)
        assert curve.end.startswith(f"ended at {name}") and len(curve) > 10


@jaxnsd.system
class Swing(jaxnsd.System):
    """A forced oscillator x, and another one y whose damping is c - k x^2: y'' + (c - k x^2) y' + y = 0."""

    damping: float = 0.1
    frequency: float = 1.7
    c: float = 0.5
    k: float = 1.0
    turns: float = 1.0

    def kinetic_energy(self, t, q, u):
        return 0.5 * u @ u

    def force(self, t, q, u):
        x, y = q
        forced = jnp.cos(self.frequency * t) - 2 * self.damping * u[0] - x
        return jnp.stack([forced, -(self.c - self.k * x**2) * u[1] - y])


def test_a_neimark_sacker_point_in_two_parameters():
    """At rest y is damped by c - k x^2, whose mean vanishes at c = k X^2 / 2, X being the amplitude of x (Liouville)."""

    def exact(system):
        X2 = 1 / ((1 - system.frequency**2) ** 2 + (2 * system.damping * system.frequency) ** 2)
        return system.k * X2 / 2

    orbit = orbits.periodic(Swing(), jaxnsd.Lobatto(4), [-0.5, 0.0], [0.1, 0.0], turns, n_steps=32).raise_if_failed()
    assert bool(orbit.stable)
    branch = orbits.follow(orbit, "frequency", to=1.2)
    (point,) = branch.special
    assert point.kind == "Neimark-Sacker" and abs(exact(point.orbit.system) - 0.5) < 1e-7 and not branch.stable[-1]
    curve = orbits.curve(point, "c", to=0.3)
    assert curve.end == "ended at c = 0.3" and len(curve) > 10
    np.testing.assert_allclose(curve.values[:, 1], [exact(Swing(frequency=w)) for w in curve.values[:, 0]], rtol=0, atol=1e-7)
    np.testing.assert_allclose(np.abs(curve.multipliers[:, :2]), 1, atol=1e-10)


@jaxnsd.system
class Fork(jaxnsd.System):
    """A forced oscillator x, and a mass y on a spring that is lam y + y^3: beside y = 0 there are others where lam < 0, in pairs."""

    damping: float = 0.2
    frequency: float = 1.7
    lam: float = 0.5

    def kinetic_energy(self, t, q, u):
        return 0.5 * u @ u

    def force(self, t, q, u):
        x, y = q
        forced = (1 + self.lam) * jnp.cos(self.frequency * t) - 2 * self.damping * u[0] - x
        return jnp.stack([forced, -2 * self.damping * u[1] - self.lam * y - y**3])


def test_where_symmetry_breaks_a_branch_does_not_fold():
    """A pitchfork at lam = 0: the multiplier of y is 1, the parameter does not turn, and the symmetric branch goes on, unstable."""
    orbit = orbits.periodic(Fork(), jaxnsd.Lobatto(4), [-0.5, 0.0], [0.1, 0.0], 2 * np.pi / 1.7, n_steps=32).raise_if_failed()
    branch = orbits.follow(orbit, "lam", to=-0.4)
    (point,) = branch.special
    assert point.kind == "branch point" and abs(point.value) < 1e-10 and branch.end == "ended at lam = -0.4"
    assert branch.stable[branch.values > 0].all() and not branch.stable[branch.values < 0].any()
    exact = np.exp(2 * np.pi / 1.7 * (np.sqrt(0.2**2 + 0.4) - 0.2))
    assert abs(branch.multipliers[-1, 0] - exact) < 1e-6
    np.testing.assert_allclose(branch.q[:, 1], 0, rtol=0, atol=1e-15)


def grazes(system):
    """The frequency above resonance at which the linear oscillator has the amplitude s: (1 - w^2)^2 + (2 z w)^2 = 1 / s^2."""
    z, s = system.damping, system.stop
    return np.sqrt(1 - 2 * z**2 + np.sqrt((1 - 2 * z**2) ** 2 - 1 + 1 / s**2))


def free(n_steps):
    """The oscillator that does not reach its stop."""
    system = Stop(damping=0.02, frequency=2.9, stop=0.3, e_N=0.7)
    return orbits.periodic(system, LOBATTO, [-0.13], [0.0], turns, n_steps=n_steps).raise_if_failed()


@pytest.mark.slow
def test_a_grazing_in_two_parameters():
    """To the order of the scheme; from both of its sides."""
    for n_steps, atol in ((128, 1e-7), (256, 5e-9)):
        branch = orbits.follow(free(n_steps), "frequency", to=1.5)
        (point,) = branch.special
        assert point.kind == "grazing" and point.closes and branch.end.endswith("a gap that was open closes")
        for name, to in (("stop", 0.5), ("damping", 0.1)):
            curve = orbits.curve(point, name, to=to)
            exact = [grazes(Stop(**({"damping": 0.02, "stop": 0.3} | {name: x}))) for x in curve.values[:, 1]]
            np.testing.assert_allclose(curve.values[:, 0], exact, rtol=0, atol=atol)
            assert curve.values[-1, 1] == to and curve.end == f"ended at {name} = {to}"


@pytest.mark.slow
def test_behind_a_grazing_there_is_another_branch():
    """With an impact more, and with one less, which is the orbit of the linear oscillator."""
    start = free(128)
    (point,) = orbits.follow(start, "frequency", to=1.5).special
    other = point.across().raise_if_failed()
    assert start.events == () and other.events == (0,) and abs(other.system.frequency - point.value) < 0.02
    # Its branch comes from the grazing: the slower the impact, the nearer.
    back = orbits.follow(other, "frequency", to=float(point.value) + 0.05)
    assert back.weakest[-1] < back.weakest[0] and abs(back.values[-1] - point.value) < abs(back.values[0] - point.value)
    # The unstable orbit of twice the period loses its impact.
    scheme = jaxnsd.LocatedImpacts(jaxnsd.Lobatto(3), slowest=0.05)
    system = Stop(damping=0.02, frequency=2.9, stop=0.3, e_N=0.7, turns=2.0)
    orbit = orbits.periodic(system, scheme, [-0.301], [-0.245], turns, n_steps=256).raise_if_failed()
    (point,) = orbits.follow(orbit, "frequency", to=2.0).special
    assert point.kind == "grazing" and not point.closes and abs(point.value - grazes(system)) < 1e-3
    other = point.across().raise_if_failed()
    w, z = float(other.system.frequency), system.damping
    assert other.events == () and other.outcome == OrbitOutcome.CONVERGED
    assert abs(other.q[0] - (1 / (1 - w**2 + 2j * z * w)).real) < 1e-7 and abs(w - point.value) < 0.05
    curve = orbits.curve(point, "stop", to=0.35)
    exact = [grazes(Stop(damping=0.02, stop=s)) for s in curve.values[:, 1]]
    np.testing.assert_allclose(curve.values[:, 0], exact, rtol=0, atol=1e-7)
