"""Robots from their files beside MuJoCo: speed, compilation, and how far shapes sink in.

    python examples/benchmarks/robots.py [NAME or FILE ...] [--steps 1000] [--repeat 3] [--folder SITE-PACKAGES]

Robots are those of gymnasium, dm_control, robosuite, mjlab, gymnasium_robotics and MuJoCo Playground that are installed, or lie unpacked
in a folder; files of your own go as well. Every robot starts where its model says, or at its first keyframe, moved out of penetrations
where there are some, has no control, and makes as many steps of 1e-3 s with `Moreau()` as MuJoCo makes with its own solver and elliptic
cones: what stands falls, slides and comes to rest. Steps a second are of CPU time, the best of several runs, ours after compilation.
Printed beside them: the number of velocities and of contacts, of things left out when the file was read, CPU seconds to read it and of
the first run, which compiles, and the deepest penetration in mm of both. The last line is the geometric mean of the ratios.
Run it without a compilation cache:

    JAXNSD_CACHE_DIR=0 python examples/benchmarks/robots.py
"""

import argparse
import importlib.util
import warnings
from pathlib import Path

import _mujoco as beside
import jax
import jax.numpy as jnp
import numpy as np
from _timing import best, cpu_seconds

import jaxnsd
from jaxnsd import bodies

DT = 1e-3

#: Package and file of each robot.
ROBOTS = {
    "hopper": ("gymnasium", "envs/mujoco/assets/hopper.xml"),
    "half_cheetah": ("gymnasium", "envs/mujoco/assets/half_cheetah.xml"),
    "walker2d": ("gymnasium", "envs/mujoco/assets/walker2d_v5.xml"),
    "ant": ("gymnasium", "envs/mujoco/assets/ant.xml"),
    "humanoid": ("gymnasium", "envs/mujoco/assets/humanoid.xml"),
    "double_pendulum": ("gymnasium", "envs/mujoco/assets/inverted_double_pendulum.xml"),
    "reacher": ("gymnasium", "envs/mujoco/assets/reacher.xml"),
    "pusher": ("gymnasium", "envs/mujoco/assets/pusher_v5.xml"),
    "acrobot": ("dm_control", "suite/acrobot.xml"),
    "finger": ("dm_control", "suite/finger.xml"),
    "stacker": ("dm_control", "suite/stacker.xml"),
    "manipulator": ("dm_control", "suite/manipulator.xml"),
    "walker": ("dm_control", "suite/walker.xml"),
    "humanoid_CMU": ("dm_control", "suite/humanoid_CMU.xml"),
    "panda": ("robosuite", "models/assets/robots/panda/robot.xml"),
    "ur5e": ("robosuite", "models/assets/robots/ur5e/robot.xml"),
    "baxter": ("robosuite", "models/assets/robots/baxter/robot.xml"),
    "go1": ("mujoco_playground", "_src/locomotion/go1/xmls/scene_mjx_feetonly_flat_terrain.xml"),
    "spot": ("mujoco_playground", "_src/locomotion/spot/xmls/scene_mjx_feetonly_flat_terrain.xml"),
    "panda_cube": ("mujoco_playground", "_src/manipulation/franka_emika_panda/xmls/mjx_single_cube.xml"),
    "op3": ("mujoco_playground", "_src/locomotion/op3/xmls/scene_mjx_feetonly.xml"),
    "hand": ("gymnasium_robotics", "envs/assets/hand/reach.xml"),
    "yam": ("mjlab", "asset_zoo/robots/i2rt_yam/xmls/yam.xml"),
}
HEADS = ("nv", "contacts", "left out", "read s", "first s", "steps/s", "MuJoCo's", "ratio", "depth mm", "MuJoCo's")


def file_of(package, path, folder):
    """Where the file of a robot is, or None."""
    spec = importlib.util.find_spec(package)
    roots = [Path(spec.origin).parent] if spec else [] if folder is None else sorted(Path(folder).glob(f"**/{package}"))
    return next((root / path for root in roots if (root / path).exists()), None)


def start(system):
    """Where the robot starts: its first keyframe or its reference, moved where something is in something else."""
    key = 0 if system.structure.keyframes else None
    q0, u0 = system.initial_state(key)
    if float(jnp.min(system.gap(0.0, q0), initial=0.0)) < 0:
        q0, u0 = system.initial_state(key, project=True)
    return q0, u0


def depth(system, q):
    """The deepest penetration of shapes in mm of states (N, n_q)."""
    shapes = np.array([contact.kind != "limit" for contact in system.contacts], bool)
    gap = np.asarray(jax.jit(lambda q: jax.lax.map(lambda q: system.gap(0.0, q), q))(jnp.asarray(q)))[:, shapes]
    return -1e3 * float(np.min(gap, initial=0.0))


def measure(name, file, steps, repeat):
    """Print the row of a robot, and return the ratio of speeds; None where it did not run."""
    begin = cpu_seconds()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        system = bodies.from_mjcf(file)
        read = cpu_seconds() - begin
        q0, u0 = start(system)
        run = jax.jit(lambda q0, u0: jaxnsd.simulate(system, jaxnsd.Moreau(), q0, u0, n_steps=steps, dt=DT))
        begin = cpu_seconds()
        jaxnsd.check(system, jaxnsd.Moreau(), q0, u0, DT * steps, DT)
        first = cpu_seconds() - begin
        compiling, least = best(lambda: run(q0, u0).q, cpu_seconds, repeat)
    sol, (seconds, states, _) = run(q0, u0), beside.run(beside.model_of(file, DT), q0, u0, steps, repeat)
    ratio = seconds / least
    numbers = [u0.size, len(system.contacts), len(system.left_out), read, first + compiling, steps / least, steps / seconds, ratio]
    numbers += [depth(system, sol.q), depth(system, states)]
    failed = int(jnp.sum(sol.outcome > 0))
    print(f"{name:<16}" + "".join(f"{x:>10.3g}" for x in numbers) + (f"  {failed} steps failed" if failed else ""), flush=True)
    return ratio


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"files, or some of {', '.join(ROBOTS)} (default: all)")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--folder", help="where packages lie that are not installed")
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    print(f"{'robot':<16}" + "".join(f"{head:>10}" for head in HEADS))
    ratios = []
    for name in args.names or ROBOTS:
        file = file_of(*ROBOTS[name], args.folder) if name in ROBOTS else Path(name)
        if file is None or not file.exists():
            print(f"{name:<16}  is not here: pip install {ROBOTS[name][0] if name in ROBOTS else name}")
            continue
        try:
            ratios.append(measure(name if name in ROBOTS else file.stem, file, args.steps, args.repeat))
        except ValueError as error:
            print(f"{name:<16}  {str(error)[:120]}", flush=True)
    if ratios:
        print(f"geometric mean of {len(ratios)} ratios: {np.exp(np.mean(np.log(ratios))):.3g}, least {min(ratios):.3g}")


if __name__ == "__main__":
    main()
