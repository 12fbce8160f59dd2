"""Periodic orbits of motions with more coordinates than velocities: an arm on a ball joint, described by a quaternion."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_orbits import Table, closed_form, turns

import jaxnsd
from jaxnsd import bodies, orbits

#: The arm on a hinge, by another code: angle and rate at t = 0, and its two multipliers.
ANGLE, RATE, PAIR = -0.0655811893333736, 3.0225496983501, 0.3485469830443 + 0.5428918770476j


@jaxnsd.system
class Arm(jaxnsd.System):
    """An arm on a ball joint, driven by a torque about y, that hits a wall: q = unit quaternion, u = angular velocity in its frame."""

    inertia: float = 0.35  # about the joint, the same for all axes
    weight: float = 0.5 * 9.81  # times the distance of the centre of mass
    damping: float = 0.05
    torque: float = 1.5
    frequency: float = 5.5
    e_N: float = 0.7
    turns: float = 1.0

    def mass_matrix(self, t, q):
        return self.inertia * jnp.eye(3)

    def q_dot(self, t, q, u):
        w, x, y, z = q
        return 0.5 * jnp.array([[-x, -y, -z], [w, -z, y], [z, w, -x], [-y, x, w]]) @ u

    def normalized(self, q):
        return q / jnp.sqrt(q @ q)

    def rotation(self, q):
        w, x, y, z = q / jnp.sqrt(q @ q)
        return jnp.array(
            [
                [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
                [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
                [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
            ]
        )

    def force(self, t, q, u):
        R = self.rotation(q)
        # The weight acts at -e_z of the arm; the torque is about the arm's own y.
        gravity = jnp.cross(jnp.array([0.0, 0.0, -1.0]), R.T @ jnp.array([0.0, 0.0, -self.weight]))
        return gravity - self.damping * u + jnp.array([0.0, self.torque, 0.0]) * jnp.cos(self.frequency * t)

    def gap(self, t, q):
        return jnp.stack([0.2 - self.rotation(q)[0, 2]])


@jaxnsd.system
class Hinge(Arm):
    """The same arm on a hinge about y: q = (angle,)."""

    def mass_matrix(self, t, q):
        return self.inertia * jnp.eye(1)

    def q_dot(self, t, q, u):
        return u

    def normalized(self, q):
        return q

    def force(self, t, q, u):
        return -self.weight * jnp.sin(q) - self.damping * u + self.torque * jnp.cos(self.frequency * t)

    def gap(self, t, q):
        return 0.2 - jnp.sin(q)


SCHEME = jaxnsd.LocatedImpacts(jaxnsd.Lobatto(3))


def found(n_steps):
    """The orbit in the plane, from a guess."""
    q = [np.cos(-0.03), 0.0, np.sin(-0.03), 0.0]
    return orbits.periodic(Arm(), SCHEME, q, [0.0, 3.0, 0.0], turns, n_steps=n_steps).raise_if_failed()


def turned(q, by):
    """A quaternion after a turn by a small rotation vector in its own frame."""
    angle = np.linalg.norm(by)
    s, v = np.cos(0.5 * angle), 0.5 * np.sinc(0.5 * angle / np.pi) * by
    return np.concatenate([[q[0] * s - q[1:] @ v], q[0] * v + s * q[1:] + np.cross(q[1:], v)])


@pytest.mark.slow
def test_an_arm_on_a_ball_joint():
    """In its plane it moves as on a hinge; its other multipliers by differences of the map."""
    orbit = found(128)
    assert orbit.q.shape == (4,) and orbit.multipliers.shape == (6,) and orbit.jacobian.shape == (7, 8) and not bool(orbit.stable)
    assert abs(np.linalg.norm(orbit.q) - 1) < 1e-15
    np.testing.assert_allclose([2 * np.arctan2(orbit.q[2], orbit.q[0]), orbit.u[1]], [ANGLE, RATE], rtol=0, atol=1e-8)
    np.testing.assert_allclose(orbit.u[np.array([0, 2])], 0, atol=1e-12)
    multipliers = np.asarray(orbit.multipliers)
    for exact in (PAIR, PAIR.conjugate()):
        assert np.abs(multipliers - exact).min() < 1e-8
    # By Liouville, and by the impact, which turns the velocity by -e_N in one direction: the determinant.
    T, J, c, e = float(orbit.period), Arm.inertia, Arm.damping, Arm.e_N
    assert abs(np.prod(multipliers) - np.exp(-3 * c * T / J) * e**2) < 1e-8
    q, u, columns, h = np.asarray(orbit.q), np.asarray(orbit.u), [], 1e-5

    def end(y):
        sol = jaxnsd.simulate(Arm(), SCHEME, turned(q, y[:3]), u + y[3:], t1=T, n_steps=128)
        w, v = sol.q[-1][0], sol.q[-1][1:]
        # The turn from q to the end: the vector part of q^-1 p, twice.
        return np.concatenate([2 * (q[0] * v - w * q[1:] - np.cross(q[1:], v)), sol.u[-1] - u])

    for y in np.eye(6):
        columns.append((8 * (end(h * y) - end(-h * y)) - end(2 * h * y) + end(-2 * h * y)) / (12 * h))
    np.testing.assert_allclose(orbit.monodromy, np.stack(columns, axis=1), rtol=0, atol=1e-7)
    seen = orbits.lyapunov(Arm(), SCHEME, orbit.q, orbit.u, turns, n_steps=128, n_periods=20)
    assert seen.per_period.shape == (6,) and abs(np.sum(seen.per_period) - np.sum(np.log(np.abs(multipliers)))) < 1e-9


@pytest.mark.slow
def test_the_fold_of_an_arm_on_a_ball_joint():
    """In one parameter and in two, and how it moves with the others: that of the arm on a hinge."""
    hinge = orbits.periodic(Hinge(), SCHEME, [-0.06], [3.0], turns, n_steps=64)
    folds = [orbits.follow(orbit, "torque", to=0.3, max_points=35).special[0] for orbit in (found(64), hinge)]
    assert [point.kind for point in folds] == ["fold", "fold"] and abs(folds[0].value - folds[1].value) < 1e-8
    by_parameter = [point.derivatives() for point in folds]
    assert set(by_parameter[0]) == set(by_parameter[1]) and abs(by_parameter[0]["e_N"]) > 0.1
    for name, value in by_parameter[1].items():
        assert abs(by_parameter[0][name] - value) < 1e-6 * max(1, abs(value)), name
    ends = [orbits.curve(point, "e_N", to=0.75).values[-1] for point in folds]
    np.testing.assert_allclose(ends[0], ends[1], rtol=0, atol=1e-8)


@pytest.mark.slow
def test_how_the_orbit_of_an_arm_on_a_ball_joint_moves():
    """With its damping: the rate at the start as that of the arm on a hinge."""

    def rate(kind, q, u, k):
        def of(damping):
            return orbits.periodic(kind(damping=damping), SCHEME, q, u, turns, n_steps=64).u[k]

        return jax.jit(jax.jacfwd(of))(Arm.damping)

    ball, hinge = rate(Arm, [np.cos(-0.03), 0.0, np.sin(-0.03), 0.0], [0.0, 3.0, 0.0], 1), rate(Hinge, [-0.06], [3.0], 0)
    assert abs(ball - hinge) < 1e-5 * abs(hinge)


@pytest.mark.slow
def test_a_free_body_bounces_on_a_shaken_table():
    """Up and down as the ball without a rotation; beside that and turning, only its damping acts."""

    @jaxnsd.system
    class Shaken(bodies.Multibody):
        amplitude: float = 1.2
        frequency: float = 1.0
        turns: float = 1.0

        def gap(self, t, q):
            return super().gap(t, q) - self.amplitude * jnp.sin(self.frequency * t)

    shape = bodies.Sphere(0.1)
    ball = bodies.Body("ball", mass=1.0, inertia=(0.3, 0.2, 0.1), shapes=shape, joints=bodies.Free(damping=0.05))
    system = Shaken.from_system(bodies.assemble([ball], bodies.Plane(), gravity=(0, 0, -1.0), e_N=0.5))
    # Damping of the vertical motion is not that of the ball.
    system = dataclasses.replace(system, damping=np.array([0.05, 0.05, 0.0, 0.05, 0.05, 0.05]))
    (z, v), trace, determinant = closed_form(Table())
    q, u = np.array([0.0, 0.0, z + 0.1, 1.0, 0, 0, 0]), np.array([0.0, 0, v, 0, 0, 0])
    orbit = orbits.periodic(system, jaxnsd.LocatedImpacts(jaxnsd.MoreauJean()), q + 0.01, u * 1.01, turns, n_steps=16).raise_if_failed()
    np.testing.assert_allclose([orbit.q[2] - 0.1, orbit.u[2]], [z, v], rtol=0, atol=1e-11)
    assert abs(np.linalg.norm(orbit.q[3:]) - 1) < 1e-14
    A = np.asarray(orbit.monodromy)
    assert A.shape == (12, 12)
    vertical = A[np.ix_([2, 8], [2, 8])]
    assert abs(np.trace(vertical) - trace) < 1e-9 and abs(np.linalg.det(vertical) - determinant) < 1e-9
    others = np.delete(np.delete(A, [2, 8], 0), [2, 8], 1)
    # Of the midpoint rule in 15 steps, and in both parts of that with the impact.
    dt = 2 * np.pi / 16
    part = orbit.impacts[0].time / dt % 1
    lengths = 0.05 * np.array([*[dt] * 15, part * dt, (1 - part) * dt]) / np.array([1, 1, 0.3, 0.2, 0.1])[:, None]
    exact = np.append(np.prod((1 - lengths / 2) / (1 + lengths / 2), axis=1), np.ones(5))
    np.testing.assert_allclose(np.sort(np.linalg.eigvals(others).real), np.sort(exact), rtol=0, atol=1e-7)
