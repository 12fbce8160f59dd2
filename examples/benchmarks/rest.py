"""Blocks and boxes that are tossed on a floor and come to rest: is every step solved, and do they stay where they are?

    python examples/benchmarks/rest.py [--blocks 1000] [--boxes 1000] [--groups 100] [--time 5] [--seed 0] [--batch 100] [--schemes ...]

Random half sizes (0.05 to 0.2 m), restitution (0 to 0.9), friction (0 to 1.2) and tosses; dt = 1e-3 s. Planar blocks have two corners,
spatial boxes have eight and a quaternion; groups are four boxes of `jaxnsd.bodies` beside each other. Prints for every scheme the steps
that were not solved, the mean and largest number of iterations of a step, how many bodies are at rest in the last second, by how much
the worst of them has moved in it, and CPU seconds.
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np

import jaxnsd
from jaxnsd import GeneralizedAlpha, Lobatto, Moreau, MoreauJean, bodies
from jaxnsd.models import CornerBlock

SCHEMES = {
    "Moreau": Moreau(),
    "MoreauJean": MoreauJean(),
    "MoreauJean, A14 (26)": MoreauJean(require_closing=True),
    "MoreauJean, third rule": MoreauJean(require_closing=False),
    "GeneralizedAlpha(0.8)": GeneralizedAlpha(0.8),
    "Lobatto(2)": Lobatto(2),
}


@jaxnsd.system
class Box(jaxnsd.System):
    """A box with eight frictional corners above a floor: q = (centre of mass, quaternion), u = (velocity, angular velocity of the body)."""

    half: jax.Array  # (3,) half its sides, m
    e_N: float = 0.0
    mu: float = 0.3
    mass: float = 1.0
    gravity: float = 9.81

    def inertia(self):
        """Principal moments of inertia, (3,)."""
        square = self.half**2
        return self.mass / 3 * (jnp.sum(square) - square)

    def mass_matrix(self, t, q):
        return jnp.diag(jnp.concatenate([jnp.full(3, self.mass, q.dtype), self.inertia()]))

    def potential_energy(self, t, q):
        return self.mass * self.gravity * q[2]

    def force(self, t, q, u):
        return jnp.concatenate([jnp.zeros(3, q.dtype), -jnp.cross(u[3:], self.inertia() * u[3:])])

    def q_dot(self, t, q, u):
        scalar, vector, omega = q[3], q[4:], u[3:]
        return jnp.concatenate([u[:3], -0.5 * (vector @ omega)[None], 0.5 * (scalar * omega + jnp.cross(vector, omega))])

    def corners(self, q):
        """Corners in the frame of the body (8, 3), and its rotation (3, 3)."""
        w, x, y, z = q[3:] / jnp.sqrt(q[3:] @ q[3:])
        rows = (
            (1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)),
            (2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)),
            (2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)),
        )
        rotation = jnp.stack([jnp.stack(row) for row in rows])
        signs = jnp.asarray([[i, j, k] for i in (-1, 1) for j in (-1, 1) for k in (-1, 1)], q.dtype)
        return signs * self.half[None, :], rotation

    def gap(self, t, q):
        corners, rotation = self.corners(q)
        return q[2] + corners @ rotation[2]

    def tangential_velocity(self, t, q, u):
        corners, rotation = self.corners(q)
        return u[None, :2] + jnp.cross(u[None, 3:], corners) @ rotation[:2].T


def draw_blocks(rng, count):
    """``(systems, q0, u0)``: planar blocks, with leading axis ``count``."""
    width, height = rng.uniform(0.05, 0.2, (2, count))
    angle = rng.uniform(-np.pi / 3, np.pi / 3, count)
    y = width * np.abs(np.sin(angle)) + height * np.cos(angle) + rng.uniform(0.01, 0.2, count)
    one = np.ones(count)
    e_N, mu = rng.uniform(0, 0.9, count), rng.uniform(0, 1.2, count)
    systems = CornerBlock(one, width, height, 9.81 * one, e_N, 0 * one, mu)
    return systems, np.stack([0 * y, y, angle], 1), rng.normal(size=(count, 3)) * np.array([1, 0.5, 3])


def draw_boxes(rng, count):
    """``(systems, q0, u0)``: spatial boxes, with leading axis ``count``."""
    half = rng.uniform(0.05, 0.2, (count, 3))
    p = rng.normal(size=(count, 4))
    height = np.linalg.norm(half, axis=1) + rng.uniform(0.01, 0.2, count)
    one = np.ones(count)
    systems = Box(half, rng.uniform(0, 0.9, count), rng.uniform(0, 1.2, count), one, 9.81 * one)
    q0 = np.concatenate([np.zeros((count, 2)), height[:, None], p / np.linalg.norm(p, axis=1)[:, None]], axis=1)
    return systems, q0, rng.normal(size=(count, 6)) * np.array([1, 1, 1, 4, 4, 4])


def draw_groups(rng, count):
    """``(systems, q0, u0)``: four boxes each, in one system, which do not touch each other; with leading axis ``count``."""
    systems, starts = [], []
    for _ in range(count):
        half = rng.uniform(0.05, 0.2, (4, 3))
        inertia = (np.sum(half**2, axis=1, keepdims=True) - half**2) / 3
        shapes = [bodies.Box(x) for x in half]
        parts = [bodies.Body(f"box {k}", 1.0, inertia[k], shapes=shapes[k], position=(10.0 * k, 0, 1)) for k in range(4)]
        material = {"e_N": rng.uniform(0, 0.9), "mu": rng.uniform(0, 1.2)}
        system = bodies.assemble(parts, bodies.Plane(name="floor"), contacts="world", **material)
        q, u = (np.array(x).reshape(4, -1) for x in system.initial_state())
        p = rng.normal(size=(4, 4))
        q[:, 2] = np.linalg.norm(half, axis=1) + rng.uniform(0.01, 0.2, 4)
        q[:, 3:] = p / np.linalg.norm(p, axis=1)[:, None]
        u[:] = rng.normal(size=(4, 6)) * np.array([1, 1, 1, 4, 4, 4])
        systems.append(system)
        starts.append((q.ravel(), u.ravel()))
    return jax.tree.map(lambda *x: np.stack(x), *systems), *(np.stack(x) for x in zip(*starts, strict=True))


def tossed(scheme, end, dt=1e-3):
    """Compiled function of a batch of ``(system, q0, u0)``: per member unsolved steps, iterations, final speed, last second's way."""

    def run(system, q0, u0):
        sol = jaxnsd.simulate(system, scheme, q0, u0, end, dt)
        way = jnp.max(jnp.abs(sol.q[-round(1 / dt) :] - sol.q[-1:]))
        speed = jnp.max(jnp.abs(sol.u[-1]))
        return jnp.sum(sol.outcome != 0), jnp.sum(sol.iterations), jnp.max(sol.iterations), speed, way

    return jax.jit(jax.vmap(run))


def campaign(drawn, scheme, end, batch):
    """``(unsolved, iterations, most, speed, way)`` of all members, each (count,)."""
    drawn = jax.tree.map(jnp.asarray, drawn)
    run, count = tossed(scheme, end), len(drawn[1])
    parts = [jax.device_get(run(*jax.tree.map(lambda x: x[i : i + batch], drawn))) for i in range(0, count, batch)]  # noqa: B023
    return [np.concatenate(part) for part in zip(*parts, strict=True)]


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name, default in (("blocks", 1000), ("boxes", 1000), ("groups", 100), ("seed", 0), ("batch", 100)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--time", type=float, default=5.0)
    parser.add_argument("--schemes", nargs="*", default=list(SCHEMES), choices=list(SCHEMES))
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    print(f"{'bodies':16s} {'scheme':24s} {'steps':>9s} {'unsolved':>9s} {'iterations':>14s} {'at rest':>8s} {'moved':>9s} {'CPU s':>7s}")
    for what, draw in (("blocks", draw_blocks), ("boxes", draw_boxes), ("groups", draw_groups)):
        count = getattr(args, what)
        for name in args.schemes if count else ():
            # The accelerations of alpha-schemes add up to coordinates only where q_dot = u: no quaternions.
            if what != "blocks" and name.startswith("GeneralizedAlpha"):
                continue
            start = time.process_time()
            drawn = draw(np.random.default_rng(args.seed), count)
            unsolved, iterations, most, speed, way = campaign(drawn, SCHEMES[name], args.time, args.batch)
            steps, rest = count * round(args.time / 1e-3), speed < 1e-6
            mean = f"{iterations.sum() / steps:.2f} / {most.max()}"
            moved = f"{way[rest].max(initial=0):.1e}"
            cpu = time.process_time() - start
            print(
                f"{count:5d} {what:10s} {name:24s} {steps:9d} {unsolved.sum():9d} {mean:>14s} {rest.sum():8d} {moved:>9s} {cpu:7.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
