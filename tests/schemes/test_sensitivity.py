"""Derivatives through impacts: against those of the exact motion, in closed form or by its own autodiff, and falling with the step."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from little_systems import ParticleOverTable
from repository import load
from scheme_table import over

import jaxnsd
from jaxnsd import simulate
from jaxnsd.models import BouncingBall, CornerBlock, Cube

example = load("gradient_evidence")
G, Thrown = example.G, example.Particle


def thrown(scheme, t1, dt, sensitivity="saltation"):
    """(x, y, x', y') at t1, and the sums of tangential and normal percussions, as a function of (height, speed, mu, e_N, amplitude)."""

    def run(p):
        zero = jnp.zeros(())
        system = Thrown(e_N=p[3], mu=p[2], amplitude=p[4])
        sol = simulate(
            system, scheme, jnp.stack([zero, p[0]]), jnp.stack([p[1], zero]), t1, dt, save_every=round(t1 / dt), sensitivity=sensitivity
        )
        return jnp.concatenate([sol.q[-1], sol.u[-1], sol.P_F.sum((0, 1)), sol.P_N.sum()[None]])

    return run


def exact(impacts, t1):
    """The same for the exact motion, with so many impacts."""

    def run(p):
        height, speed, mu, e, amplitude = p
        final = example.flights(t1, impacts, height=height, vx=speed, mu=mu, e=e, amplitude=amplitude)
        # A unit mass: percussions are what its momentum has changed by, and its weight.
        return jnp.concatenate([final, final[2:] - jnp.stack([speed, -G * t1])])

    return run


def error(run, reference, p, mode=jax.jacfwd):
    """Largest error of a Jacobian, relative to its largest entry."""
    value, wanted = np.asarray(jax.jit(mode(run))(p)), np.asarray(jax.jacfwd(reference)(p))
    return np.abs(value - wanted).max() / np.abs(wanted).max()


SCHEMES = [jaxnsd.Moreau(), jaxnsd.SymmetricMoreau(), jaxnsd.MoreauJean(), jaxnsd.GeneralizedAlpha(0.8), jaxnsd.Lobatto(2)]


@over(SCHEMES, [], slow=SCHEMES[:1])
def test_oblique_impacts_with_friction(scheme):
    """Two impacts, one that slips, one that slips or sticks: the saltation error falls with dt, the discrete one stays."""
    p, reference = jnp.array([1.0, 1.0, 0.1, 0.6, 0.0]), exact(2, 1.3)
    # First order: a bound in proportion to dt (single errors scatter with where in its step an impact falls).
    for dt in (5.2e-3, 3.25e-4):
        assert error(thrown(scheme, 1.3, dt), reference, p) < 10 * dt
    if scheme == SCHEMES[0]:
        assert error(thrown(scheme, 1.3, 3.25e-4, "discrete"), reference, p) > 0.5


@jaxnsd.system
class OnALift(jaxnsd.System):
    """A block of unit mass that slides on a table which rises as A (1 - cos w t), q = (x, z): it closes at speed, but never opens."""

    amplitude: float = 0.1
    frequency: float = 17.0
    mu: float = 0.3
    e_N: float = 0.5

    def kinetic_energy(self, t, q, u):
        return 0.5 * u @ u

    def potential_energy(self, t, q):
        return G * q[1]

    def gap(self, t, q):
        return q[1:] - self.amplitude * (1 - jnp.cos(self.frequency * t))

    def tangential_velocity(self, t, q, u):
        return u[None, :1]


LIFT = [jaxnsd.Lobatto(2), jaxnsd.LocatedImpacts(jaxnsd.GeneralizedAlpha())]


@pytest.mark.parametrize("scheme", [pytest.param(x, marks=[pytest.mark.slow] * (x is LIFT[1]), id=str(x)) for x in LIFT])
def test_a_contact_that_kinematics_close_has_no_impact(scheme):
    """The speed of sliding is ``v0 - mu (g t + A w sin(w t))``, of a contact that bends, or is lifted, by more than its forces tell."""
    end = 0.1

    def run(p):
        system = OnALift(*p)
        sol = simulate(system, scheme, jnp.zeros(2), jnp.array([5.0, 0.0]), end, end / 200)
        return sol.u[-1, 0], (sol.count(jaxnsd.Event.IMPACT), sol.success)

    def exact(p):
        A, w, mu = p
        return 5 - mu * (G * end + A * w * jnp.sin(w * end))

    p = jnp.array([0.1, 17.0, 0.3])
    J, (impacts, success) = jax.jit(jax.jacfwd(run, has_aux=True))(p)
    assert success
    # What forces keep closed on velocity level chatters by itself.
    assert impacts == 0 or not scheme.position_level
    wanted = jax.jacfwd(exact)(p)
    np.testing.assert_allclose(J, wanted, rtol=0, atol=1e-3 * np.abs(wanted).max())


@pytest.mark.slow
def test_moving_table_in_reverse_mode_and_in_a_batch():
    """Three impacts on a table that moves: derivatives with respect to the motion of the wall as well, of percussions as well."""
    batch = jnp.array([[1.0, 1.0, 0.1, 0.6, 0.05], [1.01, 1.02, 0.11, 0.6, 0.06]])
    reference, run = exact(3, 1.3), thrown(jaxnsd.Moreau(), 1.3, 3.25e-4)
    weights = jnp.array([1.0, -0.7, 0.4, 1.3, 0.9, -1.1])

    def weighted(p):
        value = run(p)
        return weights @ value, value

    gradients, values = jax.jit(jax.vmap(jax.grad(weighted, has_aux=True)))(batch)
    for p, value, gradient in zip(batch, values, gradients, strict=True):
        np.testing.assert_allclose(value, reference(p), atol=5e-3)
        wanted = jax.jacfwd(reference)(p)
        assert np.abs(gradient - weights @ wanted).max() < 5e-3 * np.abs(wanted).max()


@pytest.mark.slow
def test_both_modes_agree_through_impacts():
    p, run = jnp.array([1.0, 1.0, 0.1, 0.6, 0.05]), thrown(jaxnsd.Moreau(), 1.3, 3.25e-4)
    forward, reverse = (jax.jit(mode(run))(p) for mode in (jax.jacfwd, jax.jacrev))
    np.testing.assert_allclose(reverse, forward, atol=1e-9)


def test_the_motion_is_the_same():
    """To the bit where no derivative is taken; compiled with one, to round-off."""
    p, run = jnp.array([1.0, 1.0, 0.1, 0.6, 0.05]), thrown(jaxnsd.Moreau(), 1.3, 5.2e-3)
    value = jax.jit(run)(p)
    np.testing.assert_array_equal(value, jax.jit(thrown(jaxnsd.Moreau(), 1.3, 5.2e-3, "discrete"))(p))
    np.testing.assert_allclose(jax.jit(lambda p: jax.jvp(run, (p,), (p,))[0])(p), value, rtol=1e-12)


@over([*SCHEMES[:3], jaxnsd.LocatedImpacts(jaxnsd.MoreauJean())], SCHEMES[:1], slow=[*SCHEMES, jaxnsd.LocatedImpacts(jaxnsd.MoreauJean())])
def test_at_rest_the_derivative_is_that_of_the_rest(scheme):
    """A ball that has come to rest, after infinitely many impacts, lies where it lies whatever the height of fall was."""

    def final(height):
        sol = simulate(BouncingBall(), scheme, height[None], jnp.zeros(1), 4.0, 1e-2)
        return sol.q[-1, 0], sol.u[-1, 0]

    # Of 40 heights LocatedImpacts once left three with what an arc of the last sequence, begun inside of a step, had made of them.
    for derivative in jax.jit(jax.vmap(jax.jacfwd(final)))(jnp.linspace(0.9, 1.1, 40)):
        np.testing.assert_allclose(derivative, 0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:simulating in float32")
@pytest.mark.parametrize("scheme, above", [(jaxnsd.Lobatto(2), 0.0), (jaxnsd.Moreau(), 1e-6)], ids=str)
def test_a_gradient_in_single_precision_is_off_by_round_off(scheme, above):
    """A block that falls from one corner on the other, by its start: 1e-4 of the largest entry, where no round-off decides when it closes.

    From a gap that is round-off Moreau's scheme closes it in the first step or in the second one, as the last bit says: by 2e-3.
    """
    slopes = []
    for dtype in (jnp.float64, jnp.float32):
        q0, u0 = CornerBlock().initial_state()
        args = (CornerBlock(), q0 + jnp.array([0.0, above, 0.0]), u0)
        args = jax.tree.map(lambda x, dtype=dtype: jnp.asarray(x, jnp.float32).astype(dtype), args)

        def end(q0, u0, system=args[0], dtype=dtype):
            sol = simulate(system, scheme, q0, u0, n_steps=100, dt=jnp.float32(2e-3).astype(dtype))
            return jnp.concatenate([sol.q[-1], sol.u[-1]])

        slopes.append(np.concatenate(jax.jit(jax.jacrev(end, argnums=(0, 1)))(*args[1:]), axis=1))
    np.testing.assert_allclose(slopes[1], slopes[0], rtol=0, atol=1e-4 * np.abs(slopes[0]).max())


def block(tilt, mu):
    """A block in the plane just above the floor that slides at 1 m/s, and the speed gained when it is lifted to its corners."""
    system = dataclasses.replace(CornerBlock(), mu=mu, e_N=0.3)
    q0, _ = system.initial_state(angle=tilt)
    return system, q0 + jnp.array([0.0, 1e-4, 0.0]), jnp.array([1.0, 0.0, 0.0])


def cube(tilt, mu):
    """A cube likewise, tilted about two axes and turned about the vertical."""
    system = dataclasses.replace(Cube(), mu=mu, e_F=0.05)
    p = jnp.stack([jnp.ones(()), 0.5 * tilt, 0.3 * tilt, 0.3 * jnp.ones(())])
    p = p / jnp.linalg.norm(p)
    height = -jnp.min(system.gap(0.0, jnp.concatenate([jnp.zeros(3), p])))
    return system, jnp.concatenate([jnp.stack([0.0, 0.0, height + 1e-4]), p]), jnp.zeros(6).at[0].set(1.0)


@pytest.mark.slow
@pytest.mark.parametrize("start", [block, cube])
def test_a_body_that_falls_and_slides_to_rest(start):
    """It goes v^2/(2 mu g), on two or four corners, of which friction and restitution say more than it has velocities."""

    def way(mu, tilt):
        system, q0, u0 = start(tilt, mu)
        return simulate(system, jaxnsd.Moreau(), q0, u0, 0.8, 1e-3).q[:, 0]

    mu, tilts = 0.3, jnp.array([0.0, 1e-6, 1e-4, 1e-3, 5e-3])
    both = jax.jit(jax.vmap(lambda mu, tilt: jax.jvp(lambda mu: way(mu, tilt), (mu,), (1.0,)), (None, 0)))
    x, slope = both(mu, tilts)
    np.testing.assert_allclose(x[:, -1], 1 / (2 * mu * G), rtol=2e-2)
    np.testing.assert_allclose(slope[:, -1], -1 / (2 * mu**2 * G), rtol=2e-2)
    # From sliding on, nothing grows in it: at rest the derivative is what it was when the body came to rest.
    assert np.abs(slope).max() < 1.02 / (2 * mu**2 * G)
    np.testing.assert_allclose(slope[:, -300:], np.tile(slope[:, -1:], 300), rtol=0, atol=1e-6)
    difference = (both(mu + 1e-4, tilts)[0] - both(mu - 1e-4, tilts)[0])[:, -1] / 2e-4
    np.testing.assert_allclose(slope[:, -1], difference, rtol=1e-2)


@pytest.mark.slow
def test_what_is_stored_of_an_impact_and_has_no_derivative():
    """Stages of a step with an impact belong to no time of the exact motion, residuals are what an iteration left: NaN, not zero."""

    def stored(height):
        sol = simulate(BouncingBall(), jaxnsd.Lobatto(2), height[None], jnp.zeros(1), 0.6, 1e-2)
        return sol.auxiliary["V"][:, 0, 0], sol.residual, sol.q[:, 0], sol.P_N[:, 0]

    stages, residual, q, P = jax.jit(jax.jacfwd(stored))(1.0)
    assert np.sum(np.isnan(stages)) == 1 and np.all(np.isnan(residual))
    assert np.all(np.isfinite(q)) and np.all(np.isfinite(P))
    # The impact takes place at t = sqrt(2 h / g) with P = (1 + e) m g t; for a given impact all else that is stored follows.
    ball = BouncingBall()
    exact = (1 + ball.e_N) * ball.mass * np.sqrt(ball.gravity / 2)
    np.testing.assert_allclose(P.sum(), exact, rtol=0.05)


@over([jaxnsd.Moreau(), jaxnsd.Lobatto(2)], [], slow=[jaxnsd.Moreau()])
def test_slip_that_a_dead_centre_reverses(scheme):
    """A pin on a crank, pressed on the floor: its slip reverses at half a turn by kinematics alone, and its acceleration does not jump."""
    radius, inertia, load, t1 = 0.2, 0.1, 9.81, 0.8

    @jaxnsd.system
    class Crank(jaxnsd.System):
        mu: float = 0.2

        def kinetic_energy(self, t, q, u):
            return 0.5 * inertia * u[0] ** 2 + 0.5 * u[1] ** 2

        def potential_energy(self, t, q):
            return load * q[1]

        def gap(self, t, q):
            return q[1:]

        def tangential_velocity(self, t, q, u):
            return -radius * (jnp.sin(q[0]) * u[:1])[None]

    def speed(angle, p):
        # Friction takes mu N r |sin| a radian.
        mu, first, start = p
        way = jnp.where(angle < np.pi, jnp.cos(start) - jnp.cos(angle), jnp.cos(start) + 2 + jnp.cos(angle))
        return jnp.sqrt(first**2 - 2 * mu * load * radius / inertia * way)

    def duration(angle, p):
        nodes, weights = np.polynomial.legendre.leggauss(30)
        parts = [(b - a) / 2 * jnp.sum(weights / speed((a + b) / 2 + (b - a) / 2 * nodes, p)) for a, b in ((p[2], np.pi), (np.pi, angle))]
        return sum(parts) - t1

    def final(p):
        q0, u0 = jnp.stack([p[2], jnp.zeros(())]), jnp.stack([p[1], jnp.zeros(())])
        sol = simulate(Crank(p[0]), scheme, q0, u0, t1, 4e-4)
        return jnp.stack([sol.q[-1, 0], sol.u[-1, 0]])

    p, angle = jnp.array([0.2, 6.0, 0.5]), 4.4
    for _ in range(8):
        angle -= duration(angle, p) / jax.grad(duration)(angle, p)
    of_angle = -jax.grad(duration, 1)(angle, p) / jax.grad(duration)(angle, p)
    wanted = np.stack([of_angle, jax.grad(speed, 1)(angle, p) + jax.grad(speed)(angle, p) * of_angle])
    found, value = jax.jit(jax.jacfwd(lambda p: 2 * (final(p),), has_aux=True))(p)
    np.testing.assert_allclose(value, [angle, speed(angle, p)], rtol=2e-4)
    assert np.abs(found - wanted).max() < 3e-3 * np.abs(wanted).max()


@pytest.mark.slow
@over([jaxnsd.Moreau(), jaxnsd.Lobatto(2)], [jaxnsd.Moreau()])
def test_sliding_that_reverses_without_a_rest(scheme):
    """A block is pulled back by more than friction: its acceleration jumps where the slip passes through zero."""

    @jaxnsd.system
    class Block(Thrown):
        pull: float = 5.0

        def force(self, t, q, u):
            return jnp.stack([-self.pull, jnp.zeros(())])

    def reference(p):
        speed, mu, pull = p
        t = speed / (pull + mu * G)
        s = 1.0 - t
        return jnp.stack([0.5 * speed * t - 0.5 * (pull - mu * G) * s**2, -(pull - mu * G) * s])

    def run(dt):
        def final(p):
            q0, u0 = jnp.array([0.0, -1e-12]), jnp.stack([p[0], jnp.zeros(())])
            sol = simulate(Block(mu=p[1], pull=p[2]), scheme, q0, u0, 1.0, dt, save_every=round(1 / dt))
            return jnp.stack([sol.q[-1, 0], sol.u[-1, 0]])

        return final

    p = jnp.array([3.0, 0.3, 5.0])
    wanted = jax.jacfwd(reference)(p)
    # Pulled by less than friction holds, it comes to rest: no reversal to account for.
    saltation, at_rest = jax.jit(jax.vmap(jax.jacfwd(run(1e-3))))(jnp.stack([p, p.at[1].set(0.6)]))
    assert np.abs(saltation - wanted).max() < 3e-3 * np.abs(wanted).max()
    np.testing.assert_allclose(at_rest[1], 0, atol=1e-12)
    np.testing.assert_allclose(at_rest[0, 0], 3.0 / (5.0 + 0.6 * G), rtol=3e-3)


@jaxnsd.system
class DrawnBack(jaxnsd.System):
    """A particle of unit mass on a table in space, drawn back along it, in a direction oblique to its tangents."""

    mu: float = 0.3
    pull: float = 5.0
    angle: float = 0.0

    def kinetic_energy(self, t, q, u):
        return 0.5 * u @ u

    def force(self, t, q, u):
        return jnp.stack([-self.pull * jnp.cos(self.angle), -self.pull * jnp.sin(self.angle), -G * jnp.ones_like(t)])

    def gap(self, t, q):
        return q[2:]

    def tangential_velocity(self, t, q, u):
        return u[None, :2]


@jaxnsd.system
class CubeDrawnBack(Cube):
    """A cube likewise, on four corners."""

    pull: float = 5.0
    angle: float = 0.0

    def h(self, t, q, u):
        back = self.mass * self.pull * jnp.stack([jnp.cos(self.angle), jnp.sin(self.angle)])
        return super().h(t, q, u) - jnp.concatenate([back, jnp.zeros(4)])


def drawn_back(system, scheme, q0, n_u, dt):
    """(x, y, x', y') after 1 s, along the pull and across it, by p = (speed, mu, pull) and the angles of the pull and, to it, the start."""

    def run(p, angle, aside):
        cos, sin = jnp.cos(angle), jnp.sin(angle)
        axes = jnp.stack([jnp.stack([cos, sin]), jnp.stack([-sin, cos])])
        start = p[0] * jnp.stack([jnp.cos(aside), jnp.sin(aside)]) @ axes
        u0 = jnp.concatenate([start, jnp.zeros(n_u - 2)])
        thrown = dataclasses.replace(system, mu=p[1], pull=p[2], angle=angle)
        sol = simulate(thrown, scheme, q0, u0, 1.0, dt, save_every=round(1 / dt))
        return jnp.concatenate([axes @ sol.q[-1, :2], axes @ sol.u[-1, :2]])

    return run


def goes_and_comes(p):
    """The same of the exact motion."""
    speed, mu, pull = p
    t = speed / (pull + mu * G)
    back, zero = (pull - mu * G) * (1 - t), jnp.zeros(())
    return jnp.stack([0.5 * speed * t - 0.5 * back * (1 - t), zero, -back, zero])


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [jaxnsd.Moreau(), jaxnsd.Lobatto(2)], ids=repr)
def test_sliding_in_space_that_reverses_along_its_line(scheme):
    """As in the plane, whatever the tangents; slip that turns aside, or ends in a rest, has the derivative of the steps."""
    p, wanted = jnp.array([3.0, 0.3, 5.0]), jax.jacfwd(goes_and_comes)(jnp.array([3.0, 0.3, 5.0]))
    near = jnp.concatenate([p[None] + 1e-4 * jnp.eye(3), p[None] - 1e-4 * jnp.eye(3)])
    starts = jnp.concatenate([jnp.stack([p, p, p.at[1].set(0.6), p]), near])
    angles, aside = jnp.array([0.0, 0.7, 0.7] + 7 * [0.7]), jnp.array([0.0, 0.0, 0.0] + 7 * [0.5])
    for dt, mode in ((1e-2, jax.jacfwd), (1e-3, jax.jacrev)):
        run = drawn_back(DrawnBack(), scheme, jnp.array([0.0, 0.0, -1e-12]), 3, dt)
        both = jax.jit(jax.vmap(mode(lambda *args, run=run: 2 * (run(*args),), has_aux=True)))
        slope, final = both(starts, angles, aside)
        assert np.abs(slope[:2] - wanted[None]).max() < 3 * dt * np.abs(wanted).max()
        np.testing.assert_allclose(slope[2, 2:], 0, atol=1e-12)
        np.testing.assert_allclose(slope[2, 0, 0], 3.0 / (5.0 + 0.6 * G), rtol=3 * dt)
        np.testing.assert_allclose(slope[3].T, (final[4:7] - final[7:]) / 2e-4, atol=1e-5)


@pytest.mark.slow
def test_a_cube_that_slides_back_on_four_corners():
    """All of which turn at once, and say more than it has velocities."""
    p, wanted = jnp.array([3.0, 0.3, 5.0]), jax.jacfwd(goes_and_comes)(jnp.array([3.0, 0.3, 5.0]))
    turned = jnp.array([0.0, 0.0, 0.05, np.cos(0.15), 0.0, 0.0, np.sin(0.15)])
    run = drawn_back(CubeDrawnBack(e_N=0.0), jaxnsd.Moreau(), turned, 6, 1e-3)
    slope = jax.jit(jax.jacrev(lambda p: run(p, 0.7, 0.0)))(p)
    assert np.abs(slope - wanted).max() < 3e-3 * np.abs(wanted).max()


@pytest.mark.slow
@pytest.mark.parametrize(
    "scheme, mode",
    [(jaxnsd.SymmetricMoreau(), jax.jacfwd), (jaxnsd.VariationalMoreau(), jax.jacrev)],
    ids=["SymmetricMoreau", "VariationalMoreau"],
)
def test_what_hits_at_the_start_would_have_hit_later_from_above(scheme, mode):
    """A particle thrown down from height 0 flies ``tau`` from a small one; plastic, it slides after that. Percussions enter with a half."""
    t1, dt = 0.1, 1e-3

    def run(p, e):
        height, v, w, mu = p
        q0, u0 = jnp.stack([0.0, 0.0, height]), jnp.stack([v, 0.0, -w])
        sol = simulate(Pulled(mu=mu, e_N=e), scheme, q0, u0, t1, dt)
        P_N, P_F = (0.5 * first.sum() + later.sum() for first, later in ((sol.initial.P_N, sol.P_N), (sol.initial.P_F, sol.P_F)))
        return jnp.concatenate([sol.q[-1, ::2], sol.u[-1, ::2], jnp.stack([P_F, P_N])])

    def exact(p, e):
        height, v, w, mu = p
        g, end = 10.0, t1 + 0.5 * dt  # velocities are those at mid-interval
        closing = jnp.sqrt(w**2 + 2 * g * height)
        tau, slip = (closing - w) / g, v - mu * (1 + e) * closing
        weight = g * (e == 0)  # it lies
        x, z = (
            v * tau + slip * (t1 - tau) - mu * weight * (t1 - tau) ** 2 / 2,
            e * closing * (t1 - tau) - (g - weight) * (t1 - tau) ** 2 / 2,
        )
        P_N = (1 + e) * closing + weight * (end - tau)
        return jnp.stack([x, z, v - mu * P_N, e * closing - (g - weight) * (end - tau), -mu * P_N, P_N])

    p, e = jnp.array([0.0, 3.0, 1.0, 0.3]), jnp.array([0.6, 0.0])
    value = jax.jit(jax.vmap(mode(run), (None, 0)))(p, e)
    wanted = jax.vmap(jax.jacfwd(exact), (None, 0))(p, e)
    assert np.abs(wanted[0, :, 0]).max() > 10
    np.testing.assert_allclose(value, wanted, rtol=0, atol=2e-3 * np.abs(wanted).max())


@pytest.mark.long
def test_what_hits_at_the_start_has_a_first_derivative_alone():
    t1, speed, e = 0.05, 1.0, 0.6

    def final(height):
        q0, u0 = jnp.stack([0.0, 0.0, height]), jnp.array([3.0, 0.0, -speed])
        return simulate(Pulled(e_N=e), jaxnsd.SymmetricMoreau(), q0, u0, t1, 1e-3).q[-1, 2]

    first, second = jax.jit(lambda height: (jax.grad(final)(height), jax.jacfwd(jax.grad(final))(height)))(0.0)
    # Of e (w + g tau) (t1 - tau) - g (t1 - tau)^2 / 2 with tau = h / w.
    np.testing.assert_allclose(first, e * (10 * t1 / speed - 1) + 10 * t1 / speed, rtol=2e-2)
    assert np.isnan(second)


@pytest.mark.slow
def test_grazing_is_finite():
    """Where the closing speed vanishes the derivative of the exact motion does not exist: what is returned is finite."""
    ball = BouncingBall()

    def final(v):
        return simulate(ball, jaxnsd.Moreau(), jnp.array([0.0]), v[None], 0.2, 1e-3).q[-1, 0]

    speeds = jnp.concatenate([jnp.array([0.0]), -jnp.logspace(-12, 0, 60)])
    assert np.all(np.isfinite(jax.jit(jax.vmap(jax.grad(final)))(speeds)))


@jaxnsd.system
class Pulled(jaxnsd.System):
    """A particle of mass 1 and weight 10 on a table, pulled along it by ``along t`` and off it by ``off t``."""

    mu: float = 0.3
    along: float = 0.0
    off: float = 0.0
    e_N: float = 0.0

    def kinetic_energy(self, t, q, u):
        return 0.5 * u @ u

    def potential_energy(self, t, q):
        return 10.0 * q[2]

    def force(self, t, q, u):
        return jnp.stack([self.along * t, 0.0 * t, self.off * t])

    def gap(self, t, q):
        return q[2:]

    def tangential_velocity(self, t, q, u):
        return u[None, :2]


@pytest.mark.parametrize(
    "scheme", [jaxnsd.Moreau(), pytest.param(jaxnsd.LocatedImpacts(jaxnsd.MoreauJean()), marks=pytest.mark.long)], ids=repr
)
def test_a_change_of_contact_has_a_first_derivative_alone(scheme):
    """Where a contact opens, starts or stops to slide the motion is smooth once: (f_plus - f_minus) d tau is not in the steps, nor is 0."""

    @jax.jit
    @jax.vmap
    def derivatives(p):
        def ends(p):
            q0, u0 = jnp.zeros(3), jnp.zeros(3).at[0].set(p[0])
            return simulate(Pulled(*p[1:]), scheme, q0, u0, n_steps=100, dt=1e-2).q[-1, ::2]

        both = lambda p: 2 * (jax.jacrev(ends)(p),)  # noqa: E731
        second, first = jax.jacfwd(both, has_aux=True)(p)
        return first, second

    # Speed, mu, and the rates of the forces: it slides all along, rests, starts to slide at 0.3 s, stops at 1/3 s, is lifted off at 0.5 s.
    p = jnp.array([[4.0, 0.3, 0.5, 1.0], [0.0, 0.3, 0.1, 1.0], [0.0, 0.3, 10.0, 0.0], [1.0, 0.3, 0.0, 0.0], [0.0, 0.0, 0.0, 20.0]])
    first, second = derivatives(p)
    # x = v t - mu (g t^2 / 2 - off t^3 / 6) + along t^3 / 6
    np.testing.assert_allclose(first[0, 0], [1, -5 + 1 / 6, 1 / 6, 0.05], atol=5e-2)
    expected = np.zeros((4, 4))
    expected[1, 3] = expected[3, 1] = 1 / 6
    np.testing.assert_allclose(second[0, 0], expected, atol=5e-3)
    np.testing.assert_allclose(first[1], 0, atol=1e-2)
    np.testing.assert_array_equal(second[1, :, 1:, 1:], 0)
    # The others: (T - tau)^2 (T + 2 tau) / 6 by the rate, with k tau = mu g or g; v / mu g by the speed.
    np.testing.assert_allclose([first[2, 0, 2], first[3, 0, 0], first[4, 1, 3]], [0.49 * 1.6 / 6, 1 / 3, 0.25 * 2 / 6], rtol=3e-2)
    assert np.isnan(second[2, 0, 2, 2]) and np.isnan(second[3, 0, 0, 0]) and np.isnan(second[4, 1, 3, 3])


@over(SCHEMES, SCHEMES[:1], slow=SCHEMES[1:3])
def test_a_plastic_impact_from_which_a_contact_opens_is_no_landing(scheme):
    """A table falls away faster than g from under a particle that hits it without restitution: a throw with the table's velocity.
    The gap's derivative was taken out as of a contact that stays closed, which left O(1) in the derivative of the throw.
    """
    a, w, end, height = 0.02, 30.0, 0.26, 0.28

    def state(h):
        """The exact one, with the time of impact by Newton's method, whose last step carries the derivative."""
        gap = lambda t: h - G * t**2 / 2 - a * jnp.sin(w * t)  # noqa: E731
        t = 0.233
        for _ in range(8):
            t = t - gap(t) / jax.grad(gap)(t)
        s, v = end - t, a * w * jnp.cos(w * t)
        return jnp.stack([a * jnp.sin(w * t) + v * s - G * s**2 / 2, v - G * s])

    def run(dt):
        def last(h):
            sol = simulate(ParticleOverTable(amplitude=a, frequency=w), scheme, h[None], jnp.zeros(1), end, dt)
            return jnp.concatenate([sol.q[-1], sol.u[-1]])

        return last

    h = jnp.array(height)
    wanted = jax.jacfwd(state)(h)
    for dt in (2.5e-4, 6.25e-5):
        got = jax.jit(jax.jacfwd(run(dt)))(h)
        np.testing.assert_allclose(got, wanted, rtol=0, atol=200 * dt)


@jaxnsd.system
class Sledge(jaxnsd.System):
    """A unit mass on a table that is drawn away with an acceleration of ``jerk t``: q = (way, height)."""

    jerk: float = 8.0
    mu: float = 0.2
    e_F: float = 0.0

    def kinetic_energy(self, t, q, u):
        return 0.5 * u @ u

    def potential_energy(self, t, q):
        return G * q[1]

    def gap(self, t, q):
        return q[1:]

    def tangential_velocity(self, t, q, u):
        return (u[:1] - self.jerk * t**2 / 2)[:, None]


@pytest.mark.parametrize("scheme", [jaxnsd.MoreauJean(), pytest.param(jaxnsd.Moreau(), marks=pytest.mark.slow)], ids=repr)
def test_a_contact_that_stuck_with_tangential_restitution_slips(scheme):
    """It sticks until ``jerk t = mu g``, then ``u = mu g T - (mu g)^2 / (2 jerk)``: derivatives are of first order.

    Restitution of what the table does in a step leaves a slip of O(dt) against that to come, which was taken for one that turns: the error
    of derivatives was O(sqrt(dt)).
    """
    end = 0.4

    def final(p, n):
        jerk, mu = p
        sol = simulate(Sledge(jerk, mu, e_F=0.6), scheme, jnp.zeros(2), jnp.zeros(2), n_steps=n, t1=end)
        return sol.u[-1, 0], sol.u[-1, 0]

    p, errors = jnp.array([8.0, 0.2]), []
    force = 0.2 * G
    exact = np.array([force**2 / (2 * 8.0**2), G * end - G * force / 8.0])
    for n in (400, 1600, 6400):
        slope, value = jax.jit(jax.jacfwd(lambda p, n=n: final(p, n), has_aux=True))(p)
        errors.append(np.abs(slope - exact).max() * n)
        assert abs(value - (force * end - force**2 / 16)) < 10 / n
    # What the derivative of the slip gains in a step is 8 / jerk g dt: a few of them.
    assert np.max(errors) < 4 * G * end


@jaxnsd.system
class BlockOnASlope(jaxnsd.System):
    """A block on a slope of 0.4 rad, q = (way down, height above it)."""

    mu: float = 0.2
    e_F: float = 0.0

    def kinetic_energy(self, t, q, u):
        return 0.5 * u @ u

    def potential_energy(self, t, q):
        return 9.81 * (q[1] * np.cos(0.4) - q[0] * np.sin(0.4))

    def gap(self, t, q):
        return q[1:]

    def tangential_velocity(self, t, q, u):
        return u[None, :1]


@pytest.mark.parametrize("scheme", [jaxnsd.Moreau(), jaxnsd.MoreauJean(), pytest.param(jaxnsd.Lobatto(2), marks=pytest.mark.slow)], ids=str)
def test_slip_that_turns_next_to_a_node_turns(scheme):
    """Pushed up with v it comes back, x = -v^2 / (2 a) + b (T - v / a)^2 / 2: where a node has next to no slip, before or after it turns,
    derivatives are those of that, too. With tangential restitution the step in which it turns gives slip back, and no more.
    """
    dt, n, k, mu = 1e-3, 100, 40, 0.2
    up, down = (9.81 * (np.sin(0.4) + side * mu * np.cos(0.4)) for side in (1, -1))
    parts = np.r_[0.0, 10.0 ** np.arange(-12, 0)]
    v = up * dt * (k + np.r_[parts, -parts[1:], np.linspace(0.05, 0.95, 19)])

    def end(v, e_F):
        sol = jaxnsd.simulate(BlockOnASlope(mu, e_F), scheme, jnp.array([0.0, -1e-9]), jnp.stack([-v, 0.0 * v]), n_steps=n, dt=dt)
        return jnp.stack([sol.q[-1, 0], sol.u[-1, 0]])

    found = np.asarray(jax.vmap(jax.vmap(jax.jacfwd(end), (0, None)), (None, 0))(v, jnp.array([0.0, 0.6])))
    after = n * dt - v / up
    np.testing.assert_allclose(found[..., 1], -down / up, rtol=1e-2)
    np.testing.assert_allclose(found[..., 0], np.tile(-v / up - down * after / up, (2, 1)), atol=5 * dt)
