"""Spatial contact: a cube that is tossed, hits the floor, slides and rests on four of its eight corners, and a sphere on floor and wall.

    python examples/benchmarks/spatial.py [--repeat 5] [--batch 1024] [--no-gradient]

Steps per second of CPU time of this process, the best of several runs after compilation, float64: of `jaxnsd.models.Cube`, whose M and
h are closed forms, and of the same cube written with its kinetic energy alone; over a toss (flight, impacts, rest), in flight only, and
in a batch. Compilation in CPU seconds, cold: run it without a compilation cache. Beside the speed: the deepest penetration, and by how
much percussions of friction leave their cones, relative to the largest normal one. MuJoCo is measured on the same toss if it is installed.
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np
from _timing import best, cpu_seconds

import jaxnsd
from jaxnsd.models import Cube, Sphere

DT, STEPS = 1 / 592, 1184


@jaxnsd.system
class CubeByEnergy(jaxnsd.System):
    """The same cube as a user may write it: energies, autodiff derives the rest, Hamel's terms included."""

    mass: float = 0.37
    side: float = 0.1
    gravity: float = 9.81
    e_N: float = 0.2
    mu: float = 0.2

    def kinetic_energy(self, t, q, u):
        """Of the translation and of the rotation."""
        return 0.5 * self.mass * (u[:3] @ u[:3] + self.side**2 / 6 * u[3:] @ u[3:])

    potential_energy = Cube.potential_energy
    q_dot = Cube.q_dot
    gap = Cube.gap
    tangential_velocity = Cube.tangential_velocity
    _arms = Cube._arms
    _directions = Cube._directions
    initial_state = Cube.initial_state


def high(system):
    """A start from which the floor is never reached."""
    q0, u0 = system.initial_state()
    return q0.at[2].add(1e3), u0


def errors(system, sol):
    """Deepest penetration in m, and by how much |P_F| exceeds mu P_N, relative to the largest P_N."""
    gaps = jax.vmap(system.gap)(sol.t, sol.q)
    size = jnp.linalg.norm(sol.P_F, axis=-1) - system.mu * sol.P_N
    return float(-jnp.min(gaps)), float(jnp.max(size) / jnp.max(sol.P_N))


def measure(system, scheme, start, dt, steps, repeat):
    """``(steps per second, seconds of compilation, solution)``."""
    system = jax.tree.map(jnp.asarray, system)
    run = jax.jit(lambda system, q0, u0: jaxnsd.simulate(system, scheme, q0, u0, n_steps=steps, dt=dt))
    first, least = best(lambda: run(system, *start), cpu_seconds, repeat)
    return steps / least, first - least, run(system, *start)


def gradient(system, scheme, start, repeat):
    """``(seconds of compilation, cost in forward runs)`` of the gradient with respect to parameters and initial state, under saltation."""

    def loss(system, q0, u0):
        sol = jaxnsd.simulate(system, scheme, q0, u0, n_steps=STEPS, dt=DT)
        return jnp.sum(sol.q[-1] ** 2) + jnp.sum(sol.u[-1] ** 2)

    system = jax.tree.map(jnp.asarray, system)
    run, derivative = jax.jit(loss), jax.jit(jax.grad(loss, (0, 1, 2)))
    _, forward = best(lambda: run(system, *start), cpu_seconds, repeat)
    first, both = best(lambda: derivative(system, *start), cpu_seconds, repeat)
    return first - both, both / forward


def batch(system, scheme, size, repeat):
    """Steps per second of wall time of a batch of tosses."""
    q0, u0 = system.initial_state()
    velocities = u0 + jnp.asarray(np.random.default_rng(0).normal(scale=0.3, size=(size, 6)))
    run = jax.jit(jax.vmap(lambda u0: jaxnsd.simulate(system, scheme, q0, u0, n_steps=STEPS, dt=DT, save_every=STEPS // 8).q[-1]))
    return size * STEPS / best(lambda: run(velocities), time.perf_counter, repeat)[1]


def by_mujoco(repeat):
    """Steps per second of MuJoCo's C code on the toss, and its deepest penetration in m; None where it is not installed."""
    try:
        import mujoco
    except ImportError:
        return None
    cube = Cube()
    xml = f"""
      <mujoco><option timestep="{DT}" cone="elliptic"/><worldbody>
        <geom type="plane" size="9 9 1" friction="{cube.mu} 0 0"/>
        <body pos="0 0 .25"><freejoint/><geom type="box" size=".05 .05 .05" mass="{cube.mass}" friction="{cube.mu} 0 0"/></body>
      </worldbody></mujoco>"""
    model = mujoco.MjModel.from_xml_string(xml)
    data, least, depth = mujoco.MjData(model), np.inf, 0.0
    for _ in range(repeat):
        mujoco.mj_resetData(model, data)
        data.qvel[:] = np.asarray(cube.initial_state()[1])
        start = cpu_seconds()
        for _ in range(STEPS):
            mujoco.mj_step(model, data)
        least = min(least, cpu_seconds() - start)
    mujoco.mj_resetData(model, data)
    data.qvel[:] = np.asarray(cube.initial_state()[1])
    for _ in range(STEPS):
        mujoco.mj_step(model, data)
        depth = max(depth, -float(np.min(cube.gap(0.0, jnp.asarray(data.qpos)))))
    return STEPS / least, depth


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--no-gradient", action="store_true", help="leave out the gradient, which compiles longest")
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    moreau, cube, sphere = jaxnsd.Moreau(), Cube(), Sphere()
    print(f"{'':<34}{'steps/s':>10}{'compile s':>11}{'penetration m':>15}{'off the cone':>14}{'solved':>8}")
    for name, system, scheme, start, dt in (
        ("cube, toss", cube, moreau, cube.initial_state(), DT),
        ("cube, flight", cube, moreau, high(cube), DT),
        ("cube by its energy, toss", CubeByEnergy(), moreau, cube.initial_state(), DT),
        ("cube by its energy, flight", CubeByEnergy(), moreau, high(cube), DT),
        ("cube, toss, Lobatto(2)", cube, jaxnsd.Lobatto(2), cube.initial_state(), DT),
        ("sphere on floor and wall", sphere, moreau, sphere.initial_state(), 1e-3),
    ):
        speed, compilation, sol = measure(system, scheme, start, dt, STEPS, args.repeat)
        depth, off = errors(system, sol)
        print(f"{name:<34}{speed:>10.3g}{compilation:>11.1f}{depth:>15.2g}{off:>14.1g}{bool(sol.success)!s:>8}", flush=True)
    print(f"{f'cube, {args.batch} tosses, wall time':<34}{batch(cube, moreau, args.batch, args.repeat):>10.3g}", flush=True)
    if not args.no_gradient:
        compilation, ratio = gradient(cube, moreau, cube.initial_state(), args.repeat)
        print(f"gradient of the toss: compiles in {compilation:.1f} CPU s, costs {ratio:.1f} forward runs", flush=True)
    found = by_mujoco(args.repeat)
    if found:
        print(f"{'MuJoCo (C), toss':<34}{found[0]:>10.3g}{'':>11}{found[1]:>15.2g}", flush=True)


if __name__ == "__main__":
    main()
