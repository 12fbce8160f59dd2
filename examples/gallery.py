"""Twelve motions as films and pages: what mechanicians, roboticists and statisticians like to see. `docs/gallery.md` shows them.

    python examples/gallery.py --out out/gallery
    python examples/gallery.py --only cradle rattleback

writes for each of them a page (.html) and a film, .mp4 with imageio-ffmpeg, else .gif. The hopper is read from
a file, with the package mujoco.
"""

import argparse
import importlib.util
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import jaxnsd
from jaxnsd import bodies, drawing, models
from jaxnsd.bodies import Body
from jaxnsd.models.pictures import ORIGIN, UP, at, line, rectangle, touching, turned

SIZE = (480, 360)


# ----------------------------------------------------------------------------------------------- systems of one's own
@jaxnsd.system
class Cradle(jaxnsd.System):
    """Five balls on strings, a small distance from each other: q are the angles of the strings in rad."""

    mass: float = 0.1
    length: float = 0.2
    radius: float = 0.02
    apart: float = 1e-3  # m, between balls at rest: impacts come one after the other
    e_N: float = 1.0
    mu: float = 0.0
    contact_names = tuple(f"balls {i} and {i + 1}" for i in range(1, 5))

    def centres(self, q):
        hang = (2 * self.radius + self.apart) * jnp.arange(-2.0, 3.0)
        return jnp.stack([hang, 0 * hang], axis=1), jnp.stack([hang + self.length * jnp.sin(q), -self.length * jnp.cos(q)], axis=1)

    def kinetic_energy(self, t, q, u):
        return 0.5 * self.mass * self.length**2 * u @ u

    def potential_energy(self, t, q):
        return -9.81 * self.mass * self.length * jnp.sum(jnp.cos(q))

    def gap(self, t, q):
        between = jnp.diff(self.centres(q)[1], axis=0)
        return jnp.sqrt(jnp.sum(between**2, axis=1)) - 2 * self.radius

    def draw(self, t, q):
        hang, centre = self.centres(q)
        out = {f"ball {i + 1}": (centre[i], self.radius) for i in range(5)}
        between = jnp.diff(centre, axis=0)
        normals = between / jnp.sqrt(jnp.sum(between**2, axis=1, keepdims=True))
        strings = jnp.stack([hang, centre], axis=1)
        beam = line(hang[0] - at(0.03, 0), hang[-1] + at(0.03, 0))
        return out | {"strings": strings, "beam": beam, "contacts": (centre[:-1] + self.radius * normals, normals)}


@jaxnsd.system
class Conveyor(jaxnsd.System):
    """Three blocks on a plate that goes slowly forward and quickly back: q = (x, y) of each, in m."""

    there: float = 2.0  # m/s^2, acceleration of the plate forward
    back: float = 8.0  # m/s^2, and back
    top: float = 0.4  # m/s, largest speed of the plate
    e_N: float = 0.0
    e_F: float = 0.0
    contact_names = ("friction 0.9", "friction 0.4", "friction 0.1")

    def mu(self):
        return jnp.array([0.9, 0.4, 0.1])

    def plate(self, t):
        """``(place, velocity)``: the velocity goes straight from -top to top and back to -top, the mean place is kept."""
        first, second = 2 * self.top / self.there, 2 * self.top / self.back
        s = jnp.mod(t, first + second)
        r = s - first
        place = jnp.where(r < 0, -self.top * s + 0.5 * self.there * s**2, self.top * r - 0.5 * self.back * r**2)
        return place, jnp.where(r < 0, -self.top + self.there * s, self.top - self.back * r)

    def kinetic_energy(self, t, q, u):
        return 0.5 * u @ u

    def potential_energy(self, t, q):
        return 9.81 * jnp.sum(q[1::2])

    def gap(self, t, q):
        return q[1::2]

    def tangential_velocity(self, t, q, u):
        return (u[::2] - self.plate(t)[1])[:, None]

    def draw(self, t, q):
        place = self.plate(t)[0]
        feet = q.reshape(3, 2)
        blocks = {name: feet[i] + at(0, 0.04) + rectangle(0.05, 0.04) for i, name in enumerate(self.contact_names)}
        plate = at(0.45 + place, -0.02) + rectangle(0.75, 0.02)
        return blocks | {"plate": plate, "contacts": touching(feet, UP)}


@jaxnsd.system
class RimlessWheel(jaxnsd.System):
    """Eight spokes without a rim, on a slope: q = (x, y, phi), centre in m and angle in rad."""

    mass: float = 1.0
    inertia: float = 0.02
    length: float = 0.3
    slope: float = 0.12  # rad
    e_N: float = 0.0
    e_F: float = 0.0
    mu: float = 1.0

    def frame(self):
        """``(along, up)``: directions down the slope and away from it."""
        s, c = jnp.sin(self.slope), jnp.cos(self.slope)
        return jnp.stack([c, -s]), jnp.stack([s, c])

    def feet(self, q):
        angle = q[2] + jnp.pi / 4 * jnp.arange(8)
        return q[:2] + self.length * jnp.stack([jnp.sin(angle), -jnp.cos(angle)], axis=1)

    def kinetic_energy(self, t, q, u):
        return 0.5 * self.mass * u[:2] @ u[:2] + 0.5 * self.inertia * u[2] ** 2

    def potential_energy(self, t, q):
        return 9.81 * self.mass * q[1]

    def gap(self, t, q):
        return self.feet(q) @ self.frame()[1]

    def tangential_velocity(self, t, q, u):
        return jax.jvp(self.feet, (q,), (u,))[1] @ self.frame()[0][:, None]

    def draw(self, t, q):
        feet, (along, up) = self.feet(q), self.frame()
        spokes = jnp.stack([jnp.broadcast_to(q[:2], feet.shape), feet], axis=1)
        arrows = jnp.broadcast_to(up, feet.shape), jnp.broadcast_to(along, feet.shape)
        return {"wheel": spokes, "hub": (q[:2], 0.05), "slope": (ORIGIN, up), "contacts": (feet, *arrows)}


@jaxnsd.system
class GaltonBoard(jaxnsd.System):
    """A ball that falls through six rows of pegs into one of seven bins: q = (x, y) in m."""

    radius: float = 0.008
    e_N: float = 0.4

    def obstacles(self):
        """Ends (n, 2, 2) of lines with round ends: pegs, which have no length, then the walls between the bins and the outer walls."""
        rows = [(0.1 + 0.045 * (6 - row), np.arange(-3.0, 4.0) if row % 2 else np.arange(-3.5, 4.0)) for row in range(6)]
        pegs = [(0.05 * x, y) for y, places in rows for x in places if abs(x) < 3.5]
        walls = [((0.05 * x, 0.0), (0.05 * x, 0.09)) for x in np.arange(-2.5, 3.0)]
        sides = [((x, 0.0), (x, 0.45)) for x in (-0.175, 0.175)]
        return np.array([(peg, peg) for peg in pegs] + walls + sides)

    def kinetic_energy(self, t, q, u):
        return 0.5 * 0.01 * u @ u

    def potential_energy(self, t, q):
        return 0.01 * 9.81 * q[1]

    def nearest(self, q):
        start, end = np.moveaxis(self.obstacles(), 1, 0)
        along = end - start
        square = np.maximum(np.sum(along**2, axis=1), 1e-12)
        part = jnp.clip(jnp.sum((q - start) * along, axis=1) / square, 0.0, 1.0)
        return start + part[:, None] * along

    def gap(self, t, q):
        apart = q - self.nearest(q)
        return jnp.append(jnp.sqrt(jnp.sum(apart**2, axis=1)) - 0.004, q[1]) - self.radius

    def draw(self, t, q):
        pegs, walls = np.split(self.obstacles(), [-8])
        return {"ball": (q, self.radius), "pegs": (pegs[:, 0], np.full(len(pegs), 0.004)), "walls": walls, "floor": (ORIGIN, UP)}


@jaxnsd.system
class Dominoes(jaxnsd.System):
    """Eight dominoes in the plane: q = (x, y, phi) of the centre of each, in m and rad."""

    mass: float = 0.1
    width: float = 0.02
    height: float = 0.2
    e_N: float = 0.1
    e_F: float = 0.0
    mu: float = 0.3

    def corners(self, q):
        """(8, 4, 2): left and right below, right and left above."""
        outline = rectangle(0.5 * self.width, 0.5 * self.height)[:4]
        return jnp.stack([turned(outline, angle, (x, y)) for x, y, angle in q.reshape(8, 3)])

    def kinetic_energy(self, t, q, u):
        x, y, turn = u.reshape(8, 3).T
        return 0.5 * self.mass * jnp.sum(x**2 + y**2 + (self.width**2 + self.height**2) / 12 * turn**2)

    def potential_energy(self, t, q):
        return 9.81 * self.mass * jnp.sum(q[1::3])

    def between(self, q):
        """Places of a corner against a side, rows (across, along): of right upper corners beside the left sides of the next ones, and of
        the left lower corners of the next ones beside the right sides."""
        corners, angle = self.corners(q), q[2::3]
        across, along = jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1), jnp.stack([-jnp.sin(angle), jnp.cos(angle)], axis=1)
        first = corners[:-1, 2] - corners[1:, 0], -across[1:], along[1:]
        second = corners[1:, 0] - corners[:-1, 1], across[:-1], along[:-1]
        return jnp.concatenate([jnp.stack([jnp.sum(r * n, axis=1), jnp.sum(r * a, axis=1)], axis=1) for r, n, a in (first, second)])

    def gap(self, t, q):
        return jnp.concatenate([self.corners(q)[:, :3, 1].ravel(), self.between(q)[:, 0]])

    def tangential_velocity(self, t, q, u):
        floor = jax.jvp(self.corners, (q,), (u,))[1][:, :3, 0].ravel()
        return jnp.concatenate([floor, jax.jvp(self.between, (q,), (u,))[1][:, 1]])[:, None]

    def draw(self, t, q):
        return {"dominoes": self.corners(q)[:, jnp.array([0, 1, 2, 3, 0])], "floor": (ORIGIN, UP)}


# ---------------------------------------------------------------------------------------------------------- the motions
def simulate(system, q0, u0, t1, dt, scheme=None):
    """A motion, every step of which succeeded."""
    return jaxnsd.simulate(system, scheme or jaxnsd.Moreau(), q0, u0, t1, dt).raise_if_failed()


def cradle():
    """Newton's cradle."""
    system = Cradle()
    q0 = jnp.zeros(5).at[0].set(-0.8)
    return system, simulate(system, q0, jnp.zeros(5), 1.8, 1e-4), {"speed": 0.5}


def conveyor():
    """Stick and slip on a plate that shakes."""
    q0 = jnp.zeros(6).at[::2].set(jnp.array([0.0, 0.25, 0.65]))
    u0 = jnp.zeros(6).at[::2].set(-0.4)
    return Conveyor(), simulate(Conveyor(), q0, u0, 3.0, 1e-3), {}


def wheel():
    """A rimless wheel walks down a slope."""
    system = RimlessWheel()
    _, up = system.frame()
    angle = jnp.pi / 8
    q0 = jnp.append(system.length * jnp.cos(angle) * up, -angle - system.slope)
    omega = -2.0
    # It turns about its front foot.
    arm = q0[:2] - system.feet(q0)[1]
    u0 = jnp.stack([-omega * arm[1], omega * arm[0], jnp.asarray(omega)])
    return system, simulate(system, q0, u0, 3.0, 2e-4), {"follow": "hub"}


def galton():
    """A Galton board with forty balls."""
    system = GaltonBoard()
    x = jnp.linspace(1e-4, 2e-3, 20)
    starts = jnp.stack([jnp.concatenate([x, -x]), jnp.full(40, 0.41)], axis=1)
    run = jax.jit(jax.vmap(lambda q: jaxnsd.simulate(system, jaxnsd.Moreau(), q, jnp.zeros(2), 1.6, 5e-4)))
    return system, run(starts), {"speed": 0.5, "members": list(range(40)), "arrows": False}


def slider_crank():
    """A slider with clearance."""
    system = models.SliderCrankMinimal()
    return system, simulate(system, *system.initial_state(), 0.09, 1e-5), {"speed": 0.02}


def woodpecker():
    """The woodpecker walks down its pole."""
    system = models.Woodpecker()
    return system, simulate(system, *system.initial_state(), 0.45, 1e-4), {"speed": 0.1, "follow": "woodpecker"}


def dominoes():
    """Dominoes topple."""
    system = Dominoes()
    first = 0.2
    q0 = jnp.stack([0.06 * jnp.arange(8.0), jnp.full(8, 0.1), jnp.zeros(8)], axis=1)
    # The first one leans, on its right lower corner.
    arm = jnp.array([-0.01, 0.1])
    lean = jnp.stack([jnp.cos(first) * arm[0] + jnp.sin(first) * arm[1], jnp.cos(first) * arm[1] - jnp.sin(first) * arm[0]])
    q0 = q0.at[0].set(jnp.append(jnp.array([0.01, 0.0]) + lean, -first))
    return system, simulate(system, q0.ravel(), jnp.zeros(24), 1.4, 2e-4), {"speed": 0.4}


def hopper():
    """A leg of a file hops."""

    def servos(t, q, u):
        """Angles in rad that hip and knee are driven to."""
        beat = jnp.sin(2 * jnp.pi * 2.0 * t)
        return jnp.stack([-0.3 * beat, 0.4 * beat])

    system = bodies.from_mjcf(models.SCENES["leg"], control=servos, contacts="world")
    return (
        system,
        simulate(system, *system.initial_state(), 3.0, 1e-3),
        {"follow": "trunk", "view": (-80, 8), "geometry": models.SCENES["leg"]},
    )


def cubes():
    """A tossed cube, and three more with other velocities and spins."""
    system = models.Cube()
    q0, u0 = system.initial_state()
    starts = u0 + jnp.asarray([0.0, 0.25, 0.5, 0.75])[:, None] * (jnp.eye(6)[1] + 4 * jnp.eye(6)[4])
    sol = jax.jit(jax.vmap(lambda u: jaxnsd.simulate(system, jaxnsd.Moreau(), q0, u, 0.8, 1e-3)))(starts)
    return system, sol, {"speed": 0.5, "members": [0, 1, 2, 3]}


def rattleback():
    """A rattleback turns round."""
    a, b, c = 0.1, 0.03, 0.02
    shape = bodies.Ellipsoid((a, b, c))
    moments = 0.2 * np.array([b * b + c * c, a * a + c * c, a * a + b * b])
    angle = 0.05  # rad, between the axes of the shape and those of inertia
    turn = np.array([[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]])
    body = Body("rattleback", 0.2, 0.2 * turn @ np.diag(moments) @ turn.T, (0, 0, -0.006), shapes=shape, position=(0, 0, c))
    system = bodies.assemble([body], bodies.Plane(name="floor"), mu=2.0)
    q0, u0 = system.initial_state()
    return system, simulate(system, q0, u0.at[3:].set(jnp.array([0.05, 0.05, -4.0])), 6.0, 2.5e-5), {"fps": 15.0}


def disc():
    """Euler's disc comes to rest."""
    radius, tilt = 0.0375, 0.5
    body = Body("disc", 0.44, shapes=bodies.Cylinder(radius, 0.012))
    system = bodies.assemble([body], bodies.Plane(name="floor"), contacts=bodies.Pair("disc", "floor", mu=0.5, rolling=8e-4))
    q0, u0 = system.initial_state()
    height = radius * np.sin(tilt) + 0.006 * np.cos(tilt)
    q0 = jnp.array([0, 0, height, np.cos(tilt / 2), np.sin(tilt / 2), 0, 0])
    rate = np.sqrt(4 * 9.81 / (radius * np.sin(tilt)))
    u0 = u0.at[3:].set(jnp.array([0.0, rate * np.sin(tilt), 0.0]))
    return system, simulate(system, q0, u0, 2.7, 2.5e-5), {"speed": 0.5, "fps": 20.0}


def fall():
    """A box, a ball and a capsule fall on a floor, and on each other."""
    parts = [
        Body("box", 1.0, shapes=bodies.Box((0.3, 0.2, 0.15)), position=(0, 0, 0.5), orientation=(0.9, 0.3, 0.2, 0.1)),
        Body("ball", 0.5, shapes=bodies.Sphere(0.1), position=(0.2, 0.5, 0.7)),
        Body("capsule", 0.5, shapes=bodies.Capsule(0.05, 0.3), position=(-0.3, 0.2, 0.6), orientation=(0.7, 0.7, 0, 0)),
    ]
    system = bodies.assemble(parts, bodies.Plane(name="floor"), mu=0.3, e_N=0.3)
    q0, u0 = system.initial_state()
    return system, simulate(system, q0, u0.at[0].set(0.6).at[4].set(3.0), 1.5, 1e-3), {}


MOTIONS = {
    make.__name__: make
    for make in (cradle, conveyor, wheel, galton, slider_crank, woodpecker, dominoes, hopper, cubes, rattleback, disc, fall)
}


def main(argv=None):
    """Make them all; returns the exit status."""
    parser = argparse.ArgumentParser(prog="gallery.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/gallery"), metavar="DIR", help="where to (default: %(default)s)")
    parser.add_argument("--only", nargs="+", choices=MOTIONS, metavar="NAME", help=f"some of {', '.join(MOTIONS)} (default: all)")
    args = parser.parse_args(argv)
    jax.config.update("jax_enable_x64", True)
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"cannot make the directory {str(args.out)!r}: {error.strerror}")
    ending = "mp4" if importlib.util.find_spec("imageio_ffmpeg") else "gif"
    for name in args.only or MOTIONS:
        times = [time.perf_counter()]
        system, sol, options = MOTIONS[name]()
        times.append(time.perf_counter())
        film = drawing.film(system, sol, args.out / f"{name}.{ending}", size=SIZE, **options)
        times.append(time.perf_counter())
        page = drawing.page(system, sol, args.out / f"{name}.html", **{k: v for k, v in options.items() if k != "fps"})
        times.append(time.perf_counter())
        run, filmed, paged = np.diff(times)
        print(f"{film}, {page}; run {run:.1f} s, film {filmed:.1f} s, page {paged:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
