"""What people wait for first: CPU seconds from nothing to the result of one run, and of its gradient, of which nearly all is compilation.

    python examples/benchmarks/compile.py [--cases rotating crank ...] [--warm]

Every entry is a process of its own, without a compilation cache: CPU seconds of Python, JAX and XLA together, import included, for ten
steps in float64; the gradient is with respect to the initial state and all parameters, in reverse mode. ``--warm``: also those of a
second process that finds everything in a persistent cache, and of one that finds its program there, by `jaxnsd.keep`.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time

#: name -> (model, scheme, dt)
CASES = {
    "rotating ball, Lobatto(2)": ("RotatingBall", "Lobatto(2)", 1e-3),
    "slider-crank, minimal, MoreauJean": ("SliderCrankMinimal", "MoreauJean()", 1e-5),
    "slider-crank, minimal, Lobatto(2)": ("SliderCrankMinimal", "Lobatto(2)", 1e-5),
    "slider-crank, Lobatto(2)": ("SliderCrank", "Lobatto(2)", 1e-5),
    "box, Moreau": ("Box", "Moreau()", 1e-3),
    "box, Lobatto(3)": ("Box", "Lobatto(3)", 1e-3),
}

STEPS = 10

#: What a process finds, and how it is called: nothing, what XLA compiled, or the whole program.
FINDS = {"": "", "cached": ", cached", "kept": ", kept"}


def box():
    """A box with a quaternion, whose eight corners may touch a floor: ``(system, q0, u0)``."""
    import jax.numpy as jnp
    import numpy as np

    import jaxnsd

    corners = np.stack(np.meshgrid(*[(-0.05, 0.05)] * 3, indexing="ij"), axis=-1).reshape(8, 3)

    def rotation(p):
        w, x, y, z = p
        return jnp.stack(
            [
                jnp.stack([1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)]),
                jnp.stack([2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)]),
                jnp.stack([2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)]),
            ]
        )

    @jaxnsd.system
    class Box(jaxnsd.System):
        mass: float = 0.1
        inertia: float = 1.7e-4
        gravity: float = 9.81
        mu: float = 0.3
        e_N: float = 0.3

        def kinetic_energy(self, t, q, u):
            return 0.5 * self.mass * u[:3] @ u[:3] + 0.5 * self.inertia * u[3:] @ u[3:]

        def potential_energy(self, t, q):
            return self.mass * self.gravity * q[2]

        def q_dot(self, t, q, u):
            w, v = q[3], q[4:]
            return jnp.concatenate([u[:3], -0.5 * (v @ u[3:])[None], 0.5 * (w * u[3:] + jnp.cross(v, u[3:]))])

        def gap(self, t, q):
            return q[2] + jnp.asarray(corners) @ rotation(q[3:])[2]

        def tangential_velocity(self, t, q, u):
            R = rotation(q[3:])
            return (u[None, :3] + jnp.cross(u[None, 3:], jnp.asarray(corners)) @ R.T)[:, :2]

    return Box(), jnp.array([0.0, 0.0, 0.2, 1.0, 0.0, 0.0, 0.0]), jnp.array([0.5, 0.0, 0.0, 3.0, 2.0, 1.0])


def work(name, kind, finds):
    """The run of a case, or its gradient: compiled, or found, and run once."""
    import jax
    import jax.numpy as jnp

    import jaxnsd
    from jaxnsd.models import MODELS

    jax.config.update("jax_enable_x64", True)
    model, scheme, dt = CASES[name]
    scheme = eval(scheme, vars(jaxnsd))
    system, q0, u0 = box() if model == "Box" else ((made := MODELS[model]()), *made.initial_state())

    def loss(system, q0, u0):
        sol = jaxnsd.simulate(system, scheme, q0, u0, STEPS * dt, dt)
        return jnp.sum(sol.q[-1] ** 2) + jnp.sum(sol.u[-1] ** 2)

    system = jax.tree.map(jnp.asarray, system)
    function = jax.grad(loss, (0, 1, 2)) if kind == "gradient" else loss
    jax.block_until_ready((jaxnsd.keep if finds == "kept" else jax.jit)(function)(system, q0, u0))


def seconds(name, kind, finds="", cache=None):
    """CPU seconds of a process that does this work."""
    environment = dict(os.environ, JAX_ENABLE_COMPILATION_CACHE="true" if cache else "false")
    if cache:
        environment |= {"JAX_COMPILATION_CACHE_DIR": cache, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    before = os.times()
    subprocess.run([sys.executable, __file__, "--work", name, kind, finds], env=environment, check=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", nargs="+", metavar="WORD", help="only cases that have one of these words")
    parser.add_argument(
        "--warm", action="store_true", help="also a second process, with a persistent cache, and with programs that are kept"
    )
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work(*args.work)
        return
    names = [name for name in CASES if not args.cases or any(word in name for word in args.cases)]
    if not names:
        parser.error(f"no case has these words; there are: {'; '.join(CASES)}")
    columns = [(kind, finds) for kind in ("run", "gradient") for finds in (FINDS if args.warm else ("",))]
    print(f"CPU s, {time.strftime('%Y-%m-%d')}{'':<24}" + "".join(f"{kind + FINDS[finds]:>18}" for kind, finds in columns))
    for name in names:
        print(f"{name:<42}", end="", flush=True)
        for kind, finds in columns:
            with tempfile.TemporaryDirectory() as folder:
                if finds:
                    seconds(name, kind, finds, folder)
                print(f"{seconds(name, kind, finds, folder if finds else None):>18.1f}", end="", flush=True)
        print()


if __name__ == "__main__":
    main()
