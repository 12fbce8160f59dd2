"""Little systems with features that the models do not have, for the tests that hold schemes to physics."""

import jax
import jax.numpy as jnp
import numpy as np

import jaxnsd
from jaxnsd import System, bodies
from jaxnsd.programs import runs

GRAVITY = 9.81

#: `jax.jit` for what is evaluated a few times: to make it fast takes longer than to run it. The options are for XLA.
quick = runs.natively
UNOPTIMIZED = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def with_slope(function):
    """``(value, Jacobian)`` of a function, which is traced and compiled once for both."""

    def both(x):
        jacobian, value = jax.jacfwd(lambda x: (function(x),) * 2, has_aux=True)(x)
        return value, jacobian

    return both


@jaxnsd.system
class CartesianPendulum(System):
    """A point mass on a rigid rod as a position-level constraint, with a wall below the hinge: q = (x, y)."""

    length: float = 1.0
    e_N: float = 0.8

    def kinetic_energy(self, t, q, u):
        return 0.5 * u @ u

    def potential_energy(self, t, q):
        return GRAVITY * q[1]

    def constraint(self, t, q):
        return jnp.stack([jnp.hypot(q[0], q[1]) - self.length])

    def gap(self, t, q):
        return q[:1]

    def initial_state(self):
        return jnp.array([np.sin(0.8), -np.cos(0.8)]), jnp.zeros(2)


@jaxnsd.system
class Skate(System):
    """A skate on an inclined plane as a velocity-level constraint: q = (x, y, phi), x downhill."""

    inertia: float = 0.3

    def kinetic_energy(self, t, q, u):
        return 0.5 * (u[0] ** 2 + u[1] ** 2 + self.inertia * u[2] ** 2)

    def force(self, t, q, u):
        return jnp.array([2.0, 0.0, 0.0])

    def velocity_constraint(self, t, q, u):
        return jnp.stack([u[0] * jnp.sin(q[2]) - u[1] * jnp.cos(q[2])])

    def initial_state(self):
        return jnp.zeros(3), jnp.array([0.0, 0.0, 1.5])


@jaxnsd.system
class ParticleOverTable(System):
    """A particle of unit mass over a table at ``amplitude sin(frequency t)``: q = (height)."""

    amplitude: float = 0.02
    frequency: float = 9.0
    e_N: float = 0.0

    def kinetic_energy(self, t, q, u):
        return 0.5 * u @ u

    def potential_energy(self, t, q):
        return GRAVITY * q[0]

    def gap(self, t, q):
        return q - self.amplitude * jnp.sin(self.frequency * t)


@jaxnsd.system
class ShakenTable(System):
    """A ball with friction on a table that shakes up and down and moves sideways: rheonomic gap and tangential velocity, q = (x, y)."""

    amplitude: float = 0.01
    frequency: float = 40.0  # rad/s: throws the ball up
    e_N: float = 0.4
    mu: float = 0.2

    def kinetic_energy(self, t, q, u):
        return 0.5 * u @ u

    def potential_energy(self, t, q):
        return GRAVITY * q[1]

    def gap(self, t, q):
        return q[1:] - self.amplitude * jnp.sin(self.frequency * t)

    def tangential_velocity(self, t, q, u):
        return (u[:1] - 0.5 * jnp.cos(3 * t))[:, None]

    def initial_state(self):
        return jnp.zeros(2), jnp.array([0.0, 0.4])


@jaxnsd.system
class TumblingBody(System):
    """A body without symmetry, with a frictional foot: q = (position, unit quaternion), u = (velocity, body-fixed angular velocity)."""

    e_N: float = 0.3
    mu: float = 0.4

    def kinetic_energy(self, t, q, u):
        return 0.5 * (u[:3] @ u[:3] + jnp.array([0.02, 0.03, 0.045]) @ u[3:] ** 2)

    def potential_energy(self, t, q):
        return GRAVITY * q[2]

    def q_dot(self, t, q, u):
        s, v, w = q[3], q[4:], u[3:]
        return jnp.concatenate([u[:3], 0.5 * jnp.stack([-v @ w]), 0.5 * (s * w + jnp.cross(v, w))])

    def rotate(self, q, r):
        s, v = q[3], q[4:]
        s, v = s / jnp.sqrt(q[3:] @ q[3:]), v / jnp.sqrt(q[3:] @ q[3:])
        return r + 2 * jnp.cross(v, jnp.cross(v, r) + s * r)

    foot = (0.05, -0.1, -0.3)

    def gap(self, t, q):
        return (q[:3] + self.rotate(q, jnp.array(self.foot)))[2:]

    def tangential_velocity(self, t, q, u):
        return (u[:3] + self.rotate(q, jnp.cross(u[3:], jnp.array(self.foot))))[None, :2]

    def initial_state(self):
        return jnp.array([0.0, 0.0, 0.35, 1.0, 0.0, 0.0, 0.0]), jnp.array([0.5, 0.0, 0.0, 2.0, -1.0, 3.0])


@jaxnsd.system
class Rider(System):
    """A particle on a floor, tied to the origin by a spring, in a medium that makes its inertia depend on x."""

    mass: float = 1.0
    gravity: float = GRAVITY
    mu: float = 0.2
    e_N: float = 0.4

    def kinetic_energy(self, t, q, u):
        return 0.5 * self.mass * (1 + 0.3 * jnp.sin(q[0])) * (u @ u) + 0.1 * jnp.cos(q[0]) * u[0] * u[1]

    def potential_energy(self, t, q):
        return self.mass * self.gravity * q[1] + 3.0 * q[0] ** 2

    def force(self, t, q, u):
        return -0.05 * u

    def gap(self, t, q):
        return q[1:]

    def tangential_velocity(self, t, q, u):
        return u[:1, None]


def thrown_box():
    """A box from parts, with a quaternion, over a floor with friction."""
    box = bodies.Body("box", 0.5, (0.002, 0.003, 0.004), shapes=bodies.Box((0.1, 0.08, 0.05)), position=(0.0, 0.0, 0.2))
    return bodies.assemble(box, bodies.Plane(), mu=0.2, e_N=0.3)


def telescope():
    """An arm on a ball joint with a sprung slide between stops, whose end scrapes over a floor."""
    inertia = (1e-3, 2e-3, 3e-3)
    slide = bodies.Prismatic((0.6, 0.0, -0.8), stiffness=200.0, damping=1.0, limits=(-0.02, 0.02))
    arm = bodies.Body("arm", 1.0, inertia, (0.1, 0.0, -0.2), bodies.Spherical(), position=(0.0, 0.0, 1.0))
    end = bodies.Sphere(0.05)
    rod = bodies.Body("rod", 0.6, inertia, (0.0, 0.0, -0.15), slide, "arm", (0.2, 0.0, -0.4), shapes=end)
    return bodies.assemble([arm, rod], bodies.Plane(position=(0.0, 0.0, 0.52)), mu=0.3, e_N=0.4, limit_restitution=0.5)


def four_bar():
    """A linkage of three rods in the plane, closed by a constraint, whose follower hits a wall with friction."""
    y, inertia = bodies.Revolute((0.0, 1.0, 0.0)), (0.01, 0.01, 0.01)
    ball = bodies.Sphere(0.02, position=(-0.15, 0.0, 0.4))
    rods = [
        bodies.Body("crank", 1.0, inertia, (0.0, 0.0, 0.1), y),
        bodies.Body("coupler", 1.0, inertia, (0.2, 0.0, 0.1), y, "crank", (0.0, 0.0, 0.2)),
        bodies.Body("follower", 1.0, inertia, (-0.1, 0.0, 0.2), y, position=(0.6, 0.0, 0.0), shapes=ball),
    ]
    wall = bodies.Plane(position=(0.5, 0.0, 0.0), orientation=(np.sqrt(0.5), 0.0, -np.sqrt(0.5), 0.0))
    return bodies.assemble(rods, wall, loops=bodies.Connect("coupler", "follower", (0.45, 0.0, 0.2)), mu=0.3, e_N=0.5, plane="xz")


LITTLE = {cls.__name__: cls for cls in (CartesianPendulum, Skate, ShakenTable, TumblingBody)}
#: Systems that `jaxnsd.bodies` makes of parts.
LITTLE |= {"ThrownBox": thrown_box, "Telescope": telescope, "FourBar": four_bar}
