"""Periodic orbits: closed forms of a ball on a table, orbits of other codes, differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from den_hartog import MULTIPLIER, START, F, Slider, W, between_stops

import jaxnsd
from jaxnsd import orbits, plotting
from jaxnsd.orbits import OrbitOutcome

BALL, STEPS = jaxnsd.LocatedImpacts(jaxnsd.MoreauJean()), 16


@jaxnsd.system
class Table(jaxnsd.System):
    """A ball on a table z = A sin(omega t): q = (height of the ball,)."""

    mass: float = 1.0
    gravity: float = 1.0
    amplitude: float = 1.2
    frequency: float = 1.0
    e_N: float = 0.5
    turns: float = 1.0  # of the table in a period

    def kinetic_energy(self, t, q, u):
        return 0.5 * self.mass * u @ u

    def potential_energy(self, t, q):
        return self.mass * self.gravity * q[0]

    def gap(self, t, q):
        return q - self.amplitude * jnp.sin(self.frequency * t)


def turns(system):
    """The period of the motion: so many of the forcing."""
    return system.turns * 2 * jnp.pi / system.frequency


def ball(system=None, q=2.0, u=-2.6, **options):
    """The orbit with one impact a period."""
    arguments = {"period": turns, "n_steps": STEPS} | options
    return orbits.periodic(system or Table(), BALL, [q], [u], **arguments)


def closed_form(system):
    """State at t = 0, trace and determinant of the monodromy matrix: with phi the phase of the impact and T the period the ball leaves the
    table with g T / 2, and cos(phi) = g pi (1 - e) / (A omega^2 (1 + e)).
    """
    g, A, w, e = system.gravity, system.amplitude, system.frequency, system.e_N
    phi, T = np.arccos(g * np.pi * (1 - e) / (A * w**2 * (1 + e))), 2 * np.pi / w
    t = phi / w
    state = np.array([A * np.sin(phi) + g * t * (T - t) / 2, g * (t - T / 2)])
    return state, 1 + e**2 - (1 + e) ** 2 * A * w**2 / g * np.sin(phi), e**2


@pytest.mark.parametrize("system", [Table(), Table(e_N=0.7, frequency=1.3), Table(gravity=9.81, amplitude=0.013, frequency=31.0)])
def test_a_ball_on_a_table(system):
    state, trace, determinant = closed_form(system)
    orbit = ball(system, *(state * [1.02, 0.97])).raise_if_failed()
    size, T = np.abs(state).max(), 2 * np.pi / system.frequency
    np.testing.assert_allclose(np.concatenate([orbit.q, orbit.u]), state, rtol=0, atol=1e-12 * size)
    assert abs(np.sum(np.asarray(orbit.multipliers)) - trace) < 1e-10
    assert abs(np.prod(np.asarray(orbit.multipliers)) - determinant) < 1e-12
    assert bool(orbit.stable) == (np.abs(np.roots([1, -trace, determinant])).max() < 1)
    assert orbit.events == (0,) and orbit.repeats == 1 and not np.any(orbit.trivial) and np.isnan(orbit.error)
    assert orbit.residual < 1e-13 * size and abs(orbit.period - T) < 1e-14 * T
    (impact,) = orbit.impacts
    cos = system.gravity * np.pi * (1 - system.e_N) / (system.amplitude * system.frequency**2 * (1 + system.e_N))
    assert abs(np.cos(system.frequency * impact.time) - cos) < 1e-12
    assert abs(impact.percussion - system.gravity * T) < 1e-12 * impact.percussion  # it turns -g T / 2 into g T / 2


def test_what_is_no_orbit_is_said():
    twice = ball(Table(turns=2.0))
    assert bool(twice.success) and twice.repeats == 2 and "which is 2 times the true one" in twice.sentence and len(twice.events) == 2
    below = ball(Table(amplitude=1.0))  # of the fold at A = 1.047
    assert below.outcome in (OrbitOutcome.LOCKED, OrbitOutcome.NO_RETURN, OrbitOutcome.EVENT_ORDER_CHANGED, OrbitOutcome.GRAZING)
    with pytest.raises(orbits.OrbitError, match="What to try"):
        below.raise_if_failed()
    rests = ball(Table(amplitude=0.5))
    assert rests.outcome == OrbitOutcome.LOCKED and "stays closed" in rests.sentence
    assert not bool(rests.success) and "LOCKED" in repr(rests)


def fold(system):
    """Amplitude A = g pi (1 - e) / (omega^2 (1 + e)) below which there is no such orbit."""
    g, w, e = system.gravity, system.frequency, system.e_N
    return g * np.pi * (1 - e) / (w**2 * (1 + e))


def doubling(system):
    """Amplitude at which a multiplier is -1: trace + 1 + e^2 = 0."""
    g, w, e = system.gravity, system.frequency, system.e_N
    return g / w**2 * np.hypot(np.pi * (1 - e) / (1 + e), 2 * (1 + e**2) / (1 + e) ** 2)


def test_the_branch_of_the_ball(tmp_path):
    orbit = ball()
    up = orbits.follow(orbit, "amplitude", to=1.8)
    (point,) = up.special
    assert point.kind == "period doubling" and abs(point.value - doubling(Table())) < 1e-10
    assert np.any(np.abs(np.asarray(point.orbit.multipliers) + 1) < 1e-10)
    assert up.stable[up.values < point.value].all() and not up.stable[up.values > point.value].any()
    assert up.values[-1] == 1.8 and up.end.startswith("ended at amplitude = 1.8")
    # Around the fold, past which the impact meets the start of the period, which gives way.
    down = orbits.follow(orbit, lambda system: system.amplitude, to=0.9, max_points=40)
    assert [point.kind for point in down.special] == ["fold"] and down.end.startswith("after max_points")
    assert abs(down.special[0].value - fold(Table())) < 1e-10 and down.values.min() > fold(Table()) - 1e-12
    assert down.stable[: np.argmin(down.values)].all() and not down.stable[np.argmin(down.values) + 1 :].any()
    np.testing.assert_allclose(np.prod(down.multipliers, axis=1), 0.25, rtol=1e-12)
    assert np.unique(down.t0).size > 1 and len(down) == 40 == len(down.orbits)
    # Its points are orbits, found from anywhere.
    again = orbits.periodic(down.orbits[-1].system, BALL, down.q[-1], down.u[-1], turns, n_steps=STEPS, t0=down.t0[-1])
    np.testing.assert_allclose(again.u, down.u[-1], rtol=1e-12)
    down.save(tmp_path / "branch.npz")
    loaded = orbits.Branch.load(tmp_path / "branch.npz")
    assert repr(loaded) == repr(down) and np.array_equal(loaded.multipliers, down.multipliers)
    assert {name: len(column) for name, column in loaded.columns().items()} == {name: 40 for name in down.columns()}


def test_bad_input_is_one_sentence(tmp_path):
    orbit = ball()
    for error, text, arguments in (
        (TypeError, "n_steps must be a whole number", {"n_steps": 1.5}),
        (ValueError, "n_steps must be at least 1", {"n_steps": 0}),
        (ValueError, "settle must be at least 0", {"settle": -1}),
        (ValueError, "give period=, its period in s", {"period": None}),
        (ValueError, "period must be a positive time", {"period": -1.0}),
        (ValueError, "the period is an unknown", {"section": lambda t, q, u: q[0]}),
        (ValueError, "section.* must be a finite number", {"section": lambda t, q, u: q * jnp.ones(2), "period": 1.0}),
        (TypeError, "section must be a function", {"section": 3, "period": 1.0}),
        (ValueError, "reset.* must return", {"reset": lambda t, q, u: q}),
        (ValueError, "as many velocities as coordinates", {"u": [1.0, 2.0]}),
    ):
        with pytest.raises(error, match=text) as caught:
            q, u = 2.0, arguments.pop("u", None)
            orbits.periodic(Table(), BALL, [q], u or [-2.6], **({"period": turns, "n_steps": STEPS} | arguments))
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="at mid-interval"):
        orbits.periodic(Table(), jaxnsd.LocatedImpacts(jaxnsd.SymmetricMoreau()), [2.0], [-2.6], turns, n_steps=STEPS)
    with pytest.raises(ValueError, match="slowest must be a number that is not negative"):
        jaxnsd.LocatedImpacts(jaxnsd.MoreauJean(), slowest=-1.0)
    with pytest.raises(TypeError, match="must be a scheme"):
        orbits.periodic(Table(), "Moreau", [2.0], [-2.6], turns, n_steps=STEPS)
    for error, text, arguments in (
        (ValueError, "colour is no parameter of Table, which has: mass, gravity, amplitude, frequency, e_N, turns", ("colour", 1.0)),
        (ValueError, "mass does not move the orbit", ("mass", 2.0)),
        (ValueError, "must return a leaf", (lambda system: 2 * 3, 1.0)),
        (ValueError, "to must be a finite value other than", ("e_N", 0.5)),
        (ValueError, "to must be a finite value", ("e_N", np.nan)),
    ):
        with pytest.raises(error, match=text):
            orbits.follow(orbit, *arguments)
    with pytest.raises(ValueError, match="has not converged: LOCKED"):
        orbits.follow(ball(Table(amplitude=0.5)), "e_N", 0.6)
    with pytest.raises(TypeError, match="needs an Orbit"):
        orbits.follow(Table(), "e_N", 0.6)
    with pytest.raises(ValueError, match="was not written by"):
        np.savez(tmp_path / "other.npz", x=1)
        orbits.Branch.load(tmp_path / "other.npz")


def test_a_diagram_tells_orbits_from_locked_motions():
    """On both sides of the fold and of the period doubling."""
    values = [0.5, 0.9, 1.2, 1.4, 1.6]
    seen = orbits.diagram(Table(), BALL, [2.0], [-2.6], turns, "amplitude", values, n_steps=STEPS, transient=300, keep=4)
    assert seen.q.shape == (5, 4, 1) and seen.impacts.shape == (5, 4) and bool(np.all(seen.success))
    assert np.asarray(seen.locked).tolist() == [True, True, False, False, False]
    for k in (2, 3):
        state = closed_form(Table(amplitude=values[k]))[0]
        np.testing.assert_allclose(np.concatenate([seen.q[k], seen.u[k]], axis=1), np.tile(state, (4, 1)), rtol=0, atol=1e-10)
    q = np.asarray(seen.q[4, :, 0])
    assert abs(q[0] - q[1]) > 0.1 and np.abs(q[2:] - q[:2]).max() < 1e-9 and np.all(seen.impacts[2:] == 1)
    with pytest.raises(ValueError, match="values must be a vector of finite numbers"):
        orbits.diagram(Table(), BALL, [2.0], [-2.6], turns, "amplitude", [[1.0]], n_steps=STEPS)


@jaxnsd.system
class Wheel(jaxnsd.System):
    """A rimless wheel of six spokes of length 1 and mass 1 at the hub, on a slope, g = 1: q = (angle of the spoke that stands,)."""

    inertia: float = 0.3
    slope: float = 0.25

    def kinetic_energy(self, t, q, u):
        return 0.5 * (1 + self.inertia) * u @ u

    def potential_energy(self, t, q):
        return jnp.cos(q[0] + self.slope)

    def section(self, t, q, u):
        return q[0] + jnp.pi / 6

    def strike(self, t, q, u):
        """The next spoke stands: angular momentum about its foot is kept."""
        return q - jnp.pi / 3, u * (self.inertia + 0.5) / (self.inertia + 1)


def wheel(u, period, **options):
    """The wheel's cycle, a step long."""
    return orbits.periodic(
        Wheel(), jaxnsd.Lobatto(4), [-np.pi / 6], [u], period, n_steps=64, section=Wheel.section, reset=Wheel.strike, **options
    )


@pytest.mark.slow
def test_a_rimless_wheel():
    """Speed and multiplier by the balance of energy over a step; its period by another code (the integral over the swing)."""
    orbit = wheel(0.4, 2.5).raise_if_failed()
    J, gamma = 0.3, 0.25
    ratio = (J + 0.5) / (J + 1)
    gained = 2 * (np.cos(gamma - np.pi / 6) - np.cos(gamma + np.pi / 6)) / (1 + J)  # of the square of the speed
    assert abs(orbit.u[0] - np.sqrt(gained * ratio**2 / (1 - ratio**2))) < 1e-12
    assert abs(orbit.period - 2.0664225165129117) < 1e-12 and abs(orbit.q[0] + np.pi / 6) < 1e-15
    np.testing.assert_allclose(orbit.multipliers, [1, ratio**2], rtol=0, atol=1e-11)
    assert orbit.trivial.tolist() == [True, False] and orbit.error < 1e-11 and bool(orbit.stable) and orbit.autonomous
    # A section that is not crossed, and a wheel that does not come over its spoke.
    with pytest.raises(ValueError, match=r"the section was not crossed within 1\.5 periods of 0\.1 s after 0 returns"):
        wheel(0.4, 0.1, settle=3)
    slow = wheel(0.01, 0.9)
    assert not bool(slow.success) and "does not cross the section" in slow.sentence
    settled = wheel(0.6, 2.5, settle=8)
    assert abs(settled.period - orbit.period) < 1e-13


@jaxnsd.system
class Stop(jaxnsd.System):
    """A mass on a spring, forced, with a stop: q'' + 2 z q' + q = F cos(omega t), q <= s, seen after so many turns of the forcing."""

    damping: float = 0.05
    frequency: float = 2.2
    stop: float = 0.0
    e_N: float = 0.8
    turns: float = 1.0

    def kinetic_energy(self, t, q, u):
        return 0.5 * u @ u

    def force(self, t, q, u):
        return -2 * self.damping * u - q + jnp.cos(self.frequency * t)

    def gap(self, t, q):
        return self.stop - q


FIRST = Stop()
SECOND = Stop(damping=0.02, frequency=2.9, stop=0.3, e_N=0.7, turns=2.0)

#: States at t = 0 and multipliers, from flows in closed form with events found in 30 digits.
STOP_ORBITS = [
    (FIRST, (-1.7755030036081109, 0.48729113228156752), (0.556632661249565 - 0.41371588992275j, 0.556632661249565 + 0.41371588992275j)),
    (SECOND, (-0.30091995698597201, -0.24514335753806857), (0.0604127312696651, 6.82011460462815)),
    (
        SECOND,
        (-0.88842021677282394, -0.0613520803048563),
        (-0.371232298382854 - 0.523649053732652j, -0.371232298382854 + 0.523649053732652j),
    ),
]


def oscillator(case, n_steps, scheme=None):
    """One of the orbits, from a guess beside it."""
    system, (q, u), _ = STOP_ORBITS[case]
    scheme = scheme or jaxnsd.LocatedImpacts(jaxnsd.Lobatto(3))
    return orbits.periodic(system, scheme, [q + 3e-3], [u - 3e-3], turns, n_steps=n_steps).raise_if_failed()


def errors(case, n_steps, scheme=None):
    """Errors of state and multipliers."""
    orbit = oscillator(case, n_steps, scheme)
    _, state, multipliers = STOP_ORBITS[case]
    of_multipliers = np.sort_complex(orbit.multipliers) - np.array(multipliers)
    return np.abs(np.concatenate([orbit.q, orbit.u]) - state).max(), np.abs(of_multipliers).max()


@pytest.mark.slow
def test_an_impact_oscillator_and_its_branches():
    """States, multipliers, folds, period doublings of other codes; the end of a branch where a gap closes."""
    assert max(errors(0, 128)) < 1e-8
    for case in (1, 2):
        assert max(errors(case, 128)) < 2e-7  # multipliers as large as 6.8
    for to, value in ((2.8, 2.6588845466848358), (1.1, 1.2297353465867938)):
        (point,) = orbits.follow(oscillator(0, 128), "frequency", to=to).special
        assert point.kind == "period doubling" and abs(point.value - value) < 1e-8
    branch = orbits.follow(oscillator(1, 128), "frequency", to=3.8)
    assert [point.kind for point in branch.special] == ["fold", "period doubling", "grazing"] and len(branch) > 100
    assert abs(branch.special[0].value - 3.5449080177858888) < 1e-7 and abs(branch.special[1].value - 2.7605452447895802) < 1e-7
    assert branch.end.startswith("grazing at frequency = 2.25688") and "a gap that was open closes" in branch.end
    # Just behind the end there is an impact more: the gap of the last orbit without it has a minimum of zero.
    last = branch.orbits[-1]
    gap = branch.orbits[-1].system.stop - np.asarray(last.solution.q)[:, 0]
    assert 0 < gap.min() < 0.02 and len(last.events) == 1
    # A guess that misses the stop: the orbit of the linear oscillator, and that it does not reach the stop is said.
    far = orbits.periodic(Stop(stop=5.0), jaxnsd.LocatedImpacts(jaxnsd.Lobatto(3)), [0.0], [0.0], turns, n_steps=128)
    amplitude = 1 / (1 - FIRST.frequency**2 + 2j * FIRST.damping * FIRST.frequency)
    np.testing.assert_allclose(far.q[0], amplitude.real, rtol=0, atol=1e-7)
    assert bool(far.success) and "No contact closes in it" in far.sentence
    # Near the other grazing the scheme does not see the impact any more, and says so.
    assert "GRAZING" in orbits.follow(oscillator(1, 128), "frequency", to=2.2).end


@pytest.mark.slow
@pytest.mark.parametrize("case", [1, 2])
def test_one_impact_in_two_turns(case):
    """With 128 steps in each: to 1e-8, multipliers in parts of their size."""
    of_state, of_multipliers = errors(case, 256)
    largest = np.abs(STOP_ORBITS[case][2]).max()
    assert of_state < 5e-9 and of_multipliers < 1e-8 * largest


@pytest.mark.long
def test_an_unstable_branch_to_its_grazing():
    """Where the impact has no speed left the orbit is that of the linear oscillator with the amplitude s:
    (1 - w^2)^2 + (2 z w)^2 = 1 / s^2.
    """
    scheme = jaxnsd.LocatedImpacts(jaxnsd.Lobatto(3), slowest=0.05)
    branch = orbits.follow(oscillator(1, 512, scheme), "frequency", to=2.0)
    z, s = SECOND.damping, SECOND.stop
    # w^4 + (4 z^2 - 2) w^2 + 1 - 1 / s^2 = 0
    exact = np.sqrt(1 - 2 * z**2 + np.sqrt((1 - 2 * z**2) ** 2 - 1 + 1 / s**2))
    (point,) = branch.special
    assert point.kind == "grazing" and abs(point.value - exact) < 1e-6 and point.error < 1e-4
    assert branch.weakest[-1] < 1e-3 * (1 + SECOND.e_N)  # of an impact slower than 1e-3
    assert not branch.stable.any() and np.abs(branch.multipliers[-1]).max() > 600
    with pytest.raises(ValueError, match="a grazing has not"):
        point.derivatives()


@pytest.mark.slow
def test_bifurcations_move_with_other_parameters():
    """Derivatives of the fold and of the period doubling of the ball, against those of their closed forms."""
    orbit = ball()
    for to, exact in ((0.9, fold), (1.7, doubling)):
        (point,) = orbits.follow(orbit, "amplitude", to=to, max_points=40).special
        found = point.derivatives()
        assert set(found) == {"mass", "gravity", "frequency", "e_N", "turns"}
        assert abs(found["mass"]) < 1e-12 and found.pop("turns") != 0
        for name, value in found.items():
            h = 1e-5
            pair = [exact(Table(**{name: getattr(Table, name) + step})) for step in (h, -h)]
            assert abs(value - (pair[0] - pair[1]) / (2 * h)) < 2e-9, (point.kind, name)
    assert abs(found["e_N"] + 2.346546914831209) < 1e-11


@pytest.mark.slow
def test_an_orbit_of_twice_the_period_leaves_the_branch():
    """It attracts where the old one does not: found again by a motion that settles."""
    (point,) = orbits.follow(ball(), "amplitude", to=1.8).special
    two = point.doubled().raise_if_failed()
    assert two.repeats == 1 and len(two.events) == 2 and bool(two.stable) and two.system.amplitude > point.value
    assert abs(np.prod(np.asarray(two.multipliers)) - 0.5**4) < 1e-12 and abs(two.period - 4 * np.pi) < 1e-13
    last = orbits.follow(two, "amplitude", to=1.6)
    seen = orbits.poincare(Table(amplitude=1.6), BALL, [2.0], [-2.6], turns, n_steps=STEPS, n_periods=2, transient=400)
    assert last.stable.all()
    # The start of the period may have moved, by whole steps: at a node it is seen at the phase of the other.
    sol = last.orbits[-1].solution
    node = int(np.argmin(np.abs((np.asarray(sol.t) + np.pi) % (2 * np.pi) - np.pi)))
    there = np.concatenate([sol.q[node], sol.u[node]])
    assert min(np.abs(np.concatenate([q, u]) - there).max() for q, u in zip(seen.q, seen.u, strict=True)) < 1e-10
    with pytest.raises(ValueError, match=r"not Special\(fold"):
        orbits.follow(ball(), "amplitude", to=0.9, max_points=40).special[0].doubled()


@pytest.mark.slow
def test_an_orbit_is_a_function_of_the_parameters():
    """By the implicit function theorem, in both modes, and for many parameters at once."""

    def start(p):
        orbit = ball(Table(e_N=p[0], amplitude=p[1]))
        return jnp.concatenate([orbit.q, orbit.u])

    def exact(p):
        return closed_form(Table(e_N=p[0], amplitude=p[1]))[0]

    p, h = np.array([0.5, 1.2]), 1e-5
    differences = np.stack([(exact(p + h * e) - exact(p - h * e)) / (2 * h) for e in np.eye(2)], axis=1)
    np.testing.assert_allclose(jax.jit(jax.jacfwd(start))(p), differences, rtol=0, atol=1e-7)
    np.testing.assert_allclose(jax.jit(jax.grad(lambda p: start(p)[0]))(p), differences[0], rtol=0, atol=1e-7)
    ps = np.array([[0.5, 1.2], [0.6, 1.1], [0.3, 1.0], [1.5, 1.2]])
    found = jax.jit(jax.vmap(lambda p: ball(Table(e_N=p[0], amplitude=p[1]))))(ps)
    np.testing.assert_allclose(found.q[:2, 0], [exact(p)[0] for p in ps[:2]], rtol=0, atol=1e-12)
    assert np.asarray(found.success).tolist() == [True, True, False, False]  # the third is below its fold, the last gains energy
    assert found.outcome[3] == OrbitOutcome.SIMULATION_FAILED
    with pytest.raises(orbits.OrbitError, match=r"2 of 4 orbits were not found; the first is \(2,\)"):
        found.raise_if_failed()


@pytest.mark.slow
def test_a_scheme_that_captures_impacts_has_no_orbits():
    orbit = orbits.periodic(Table(), jaxnsd.MoreauJean(), [2.06], [-2.63], turns, n_steps=64)
    assert orbit.outcome in (OrbitOutcome.NOT_LOCATED, OrbitOutcome.LOCKED) and not bool(orbit.success)
    assert orbit.outcome == OrbitOutcome.LOCKED or "LocatedImpacts(scheme)" in orbit.sentence


@pytest.mark.slow
def test_lyapunov_exponents():
    """Their sum is that of the logarithms of e^2, in chaos too; of a locked motion nothing is left, and that is said."""
    arguments = {"n_steps": STEPS, "n_periods": 1000, "transient": 200}
    for system in (Table(), Table(amplitude=1.72)):
        found = orbits.lyapunov(system, BALL, [2.0], [-2.6], turns, **arguments)
        assert abs(np.sum(np.asarray(found.per_period)) - 2 * np.log(system.e_N)) < 1e-10 and found.impacts == 1 and not found.captured
        np.testing.assert_allclose(found.per_second * 2 * np.pi, found.per_period, rtol=1e-14)
    assert found.per_period[0] > 10 * found.error[0] > 0
    locked = orbits.lyapunov(Table(amplitude=0.5), BALL, [2.0], [-2.6], turns, **arguments)
    assert bool(locked.locked) and bool(locked.success) and np.all(np.asarray(locked.per_period) == -np.inf)


@jaxnsd.system
class VanDerPol(jaxnsd.System):
    """A self-excited oscillator with a stop."""

    excitation: float = 0.5
    stop: float = 1.2
    e_N: float = 0.6

    def kinetic_energy(self, t, q, u):
        return 0.5 * u @ u

    def force(self, t, q, u):
        return self.excitation * (1 - q**2) * u - q

    def gap(self, t, q):
        return self.stop - q


def middle(t, q, u):
    """Where the oscillator starts."""
    return q[0]


@pytest.mark.long
def test_an_autonomous_oscillator_with_impacts():
    """Against integrations from event to event; the trivial multiplier tells the error of the other."""
    scipy_integrate, scipy_optimize = pytest.importorskip("scipy.integrate"), pytest.importorskip("scipy.optimize")
    system = VanDerPol()

    def until(x, value, f):
        event = lambda t, x: x[0] - value  # noqa: E731
        event.terminal, event.direction = True, 1
        end = scipy_integrate.solve_ivp(f, (0, 20), x, events=event, rtol=1e-13, atol=1e-14, method="DOP853")
        return end.t[-1], end.y[1, -1]

    def back(u):
        f = lambda t, x: [x[1], system.excitation * (1 - x[0] ** 2) * x[1] - x[0]]  # noqa: E731
        t1, v = until([0, u], system.stop, f)
        t2, v = until([system.stop, -system.e_N * v], 0.0, f)
        return v, t1 + t2

    u = scipy_optimize.brentq(lambda u: back(u)[0] - u, 1.0, 3.0, xtol=1e-13)
    orbit = orbits.periodic(system, jaxnsd.LocatedImpacts(jaxnsd.Lobatto(3)), [0.0], [1.5], 4.0, n_steps=64, section=middle)
    multiplier = (back(u + 1e-4)[0] - back(u - 1e-4)[0]) / 2e-4
    assert abs(orbit.u[0] - u) < 1e-6 and abs(orbit.period - back(u)[1]) < 1e-6
    np.testing.assert_allclose(orbit.multipliers, [1, multiplier], rtol=0, atol=5e-6)
    assert abs(orbit.multipliers[1] - multiplier) < orbit.error < 1e-5 and bool(orbit.stable)
    still = orbits.periodic(system, jaxnsd.LocatedImpacts(jaxnsd.Lobatto(3)), [0.0], [1e-3], 4.0, n_steps=64, section=middle)
    assert still.outcome == OrbitOutcome.NO_RETURN and "or none but an equilibrium" in still.sentence


@pytest.mark.long
def test_multipliers_are_functions_of_the_parameters():
    """The derivative of their sum, a second derivative of the motion."""

    def trace(e):
        return jnp.sum(jnp.real(ball(Table(e_N=e)).multipliers))

    h = 1e-5
    exact = (closed_form(Table(e_N=0.5 + h))[1] - closed_form(Table(e_N=0.5 - h))[1]) / (2 * h)
    assert abs(jax.jit(lambda e: jax.jvp(trace, (e,), (1.0,))[1])(0.5) - exact) < 1e-7


@pytest.mark.long
def test_orders_four_and_six_and_the_derivatives_of_an_oscillator():
    """With `Lobatto(3)` and `Lobatto(4)`; and how its fold and period doubling move with restitution and damping."""
    coarse, fine = errors(0, 32), errors(0, 128)
    assert 0.8 * 4**4 < coarse[0] / fine[0] < 1.2 * 4**4 and coarse[1] / fine[1] > 0.8 * 4**4
    scheme = jaxnsd.LocatedImpacts(jaxnsd.Lobatto(4))
    np.testing.assert_allclose(orbits.refined(oscillator(0, 32, scheme)).q, oscillator(0, 64, scheme).q, rtol=1e-13)
    (coarse, _), (fine, _) = errors(0, 32, scheme), errors(0, 64, scheme)
    assert fine < 1e-11 and 0.6 * 2**6 < coarse / fine < 1.6 * 2**6
    branch = orbits.follow(oscillator(1, 64, scheme), "frequency", to=3.8)
    for point, dr, dz in zip(branch.special[:2], (1.133841335627, 0.1967562777591), (-3.458677309998, -1.326492007945), strict=True):
        found = point.derivatives()
        assert abs(found["e_N"] - dr) < 1e-6 and abs(found["damping"] - dz) < 1e-6


@pytest.mark.long
def test_an_arm_of_rigid_bodies():
    """A pendulum that hits a wall, driven by a torque, against another code."""
    from jaxnsd import bodies

    @jaxnsd.system
    class Arm(bodies.Multibody):
        torque: float = 1.5
        frequency: float = 5.5
        turns: float = 1.0

        def force(self, t, q, u):
            return super().force(t, q, u) + self.torque * jnp.cos(self.frequency * t)

    hinge = bodies.Revolute((0, 1, 0), damping=0.05)
    shapes = bodies.Sphere(0.1, position=(0, 0, -1.0))
    arm = bodies.Body("arm", mass=1.0, inertia=(0.1, 0.1, 0.1), center=(0, 0, -0.5), shapes=shapes, joints=hinge)
    wall = bodies.Plane(name="wall", position=(-0.3, 0, 0), orientation=(np.sqrt(0.5), 0, np.sqrt(0.5), 0))
    system = Arm.from_system(bodies.assemble([arm], wall, e_N=0.7))
    orbit = orbits.periodic(system, jaxnsd.LocatedImpacts(jaxnsd.Lobatto(3)), [-0.06], [3.0], turns, n_steps=128).raise_if_failed()
    np.testing.assert_allclose(np.concatenate([orbit.q, orbit.u]), [-0.0655811893333736, 3.0225496983501], rtol=0, atol=1e-8)
    exact = [0.3485469830443 + 0.5428918770476j, 0.3485469830443 - 0.5428918770476j]
    np.testing.assert_allclose(np.sort_complex(orbit.multipliers), np.sort_complex(exact), rtol=0, atol=1e-8)
    assert abs(orbit.impacts[0].time - 0.084253199550724) < 1e-8


def test_pictures_show_what_was_computed():
    orbit = ball()
    branch = orbits.follow(orbit, "amplitude", to=0.9, max_points=40)
    ax = plotting.branch(branch)
    stable, unstable, mark = ax.lines
    turning = int(np.argmin(branch.values))
    assert len(stable.get_xdata()) + len(unstable.get_xdata()) == len(branch) + 1
    np.testing.assert_array_equal(stable.get_ydata()[: turning + 1], branch.highest[: turning + 1, 0])
    assert [line.get_label() for line in ax.lines] == ["stable", "unstable", "fold, 1.0472"] and mark.get_xdata()[0] == branch.special[
        0
    ].value
    assert len(plotting.branch(branch, "q[0]").lines) > 3  # broken where the start moves
    with pytest.raises(ValueError, match="is no column of the branch, which has amplitude, period"):
        plotting.branch(branch, "energy")
    np.testing.assert_array_equal(
        plotting.multipliers(branch).collections[0].get_offsets()[0], [branch.multipliers[0, 0].real, branch.multipliers[0, 0].imag]
    )
    flight, jump, after, _ = plotting.orbit(orbit).lines
    (impact,) = orbit.impacts
    # Free flight is drawn to the impact, without error, and the jump between g T / 2 down and up.
    np.testing.assert_allclose(jump.get_ydata(), [-np.pi, np.pi], rtol=1e-9)
    np.testing.assert_allclose(jump.get_xdata(), 1.2 * np.sin(impact.time), rtol=1e-9)
    assert len(flight.get_xdata()) + len(after.get_xdata()) == STEPS + 3
    seen = orbits.Diagram(
        np.array([1.0, 2.0]), np.ones((2, 3, 1)), np.ones((2, 3, 1)), None, np.array([True, False]), None, np.array([True, True])
    )
    dots, ticks = plotting.diagram(seen).lines
    assert dots.get_xdata().tolist() == [2.0] * 3 and ticks.get_xdata().tolist() == [1.0]


# ------------------------------------------------------------------------------------------------------------------------ sliding
@pytest.mark.slow
def test_den_hartogs_oscillator_slides_to_and_fro():
    """Two reversals of sliding a period, by stages of sixth order: state and multipliers of the closed form."""
    x, v = between_stops()
    system = Slider(mu=F, gravity=1.0, spring=1.0, swing=1.0, rate=W)
    scheme = jaxnsd.LocatedImpacts(jaxnsd.Lobatto(4))
    orbit = orbits.periodic(system, scheme, [x + 0.01, 0.0], [v, 0.0], 2 * np.pi / W, n_steps=64, t0=START).raise_if_failed()
    np.testing.assert_allclose([orbit.q[0], orbit.u[0]], [x, v], atol=1e-10)
    multipliers = np.asarray(orbit.multipliers)
    np.testing.assert_allclose(multipliers[np.argsort(-np.abs(multipliers))], [MULTIPLIER, MULTIPLIER.conjugate(), 0, 0], atol=1e-10)


@pytest.mark.slow
def test_half_a_cycle_and_its_mirror_image():
    """Den Hartog's orbit again, periodic up to a reset after half a turn of the force, with the multipliers of half a period."""
    x, v = between_stops()
    system = Slider(mu=F, gravity=1.0, spring=1.0, swing=1.0, rate=W)
    mirror = lambda t, q, u: (q * np.array([-1, 1]), u * np.array([-1, 1]))  # noqa: E731
    scheme, half = jaxnsd.LocatedImpacts(jaxnsd.Lobatto(4)), np.pi / W
    orbit = orbits.periodic(system, scheme, [x + 0.01, 0.0], [v, 0.0], half, n_steps=32, t0=START, reset=mirror).raise_if_failed()
    np.testing.assert_allclose([orbit.q[0], orbit.u[0]], [x, v], atol=1e-10)
    exact = 0.659506109856032 + 0.572043495875097j
    np.testing.assert_allclose(orbit.multipliers[np.argsort(-orbit.multipliers.imag)], [exact, 0, 0, exact.conjugate()], atol=1e-10)
    assert abs(exact**2 - MULTIPLIER.conjugate()) < 1e-12 or abs(exact**2 - MULTIPLIER) < 1e-12


@pytest.mark.slow
def test_a_block_on_a_belt_sticks_and_slips():
    """Autonomous, its period unknown: period, multipliers 1 and 0, and derivatives of the period by damping, belt and friction."""

    def found(p):
        system = Slider(spring=1.0, gravity=1.0, damping=-p[0], belt=p[1], mu=p[2])
        scheme, section = jaxnsd.LocatedImpacts(jaxnsd.Lobatto(3)), lambda t, q, u: q[0] - 0.6
        return orbits.periodic(system, scheme, [0.6, 0.0], [-0.5, 0.0], 7.0, n_steps=128, section=section)

    p = jnp.array([0.3, 0.4, 0.6])
    orbit = found(p).raise_if_failed()
    np.testing.assert_allclose(orbit.period, 7.1549821692741618, atol=1e-7)
    np.testing.assert_allclose(np.sort(np.abs(orbit.multipliers)), [0, 0, 0, 1], atol=1e-7)
    np.testing.assert_allclose(jax.jacfwd(lambda p: found(p).period)(p), [4.81535713788, 0, 0], atol=1e-6)
