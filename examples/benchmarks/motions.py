"""Motions of robots from their files beside MuJoCo's, where both have the same mechanics: no contacts, limits and dry friction.

    python examples/benchmarks/motions.py FOLDER [--velocities 40]

Every model in MJCF in a folder that MuJoCo compiles, of up to so many velocities, starts near its first keyframe, or its reference, with
velocities of 0.5 m/s and rad/s and constant controls, drawn at random, and moves for 0.04 s: with `Moreau()` and steps of 4e-4 and 2e-4 s,
extrapolated to small steps, and by MuJoCo's implicit integrator with 4e-5 and 2e-5 s, extrapolated likewise. Printed are the largest
change of a coordinate, the errors of both steps and of their extrapolation, and what was left out; `differs` marks what is off by more than
1e-3 of the motion. Models with equalities, which MuJoCo has soft, start at rest where they say, and are marked by their number. Models with
the same numbers of parts and the same masses count once.
"""

import argparse
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

import jaxnsd
from jaxnsd import bodies

DURATION, STEP, FINE = 0.04, 4e-4, 4e-5


def models(folder, most):
    """``(number of velocities, path)`` of the models in a folder, small ones first, each once."""
    found, seen = [], set()
    for path in sorted(Path(folder).glob("**/*.xml")):
        try:
            m = mujoco.MjModel.from_xml_path(str(path))
        except ValueError:  # parts of models, files of other programs
            continue
        key = m.nv, m.nbody, m.nu, m.neq, float(m.body_mass.sum()), float(m.dof_damping.sum())
        if 0 < m.nv <= most and key not in seen:
            seen.add(key)
            found.append((m.nv, path))
    return sorted(found)


def smooth(path):
    """The model without limits and dry friction."""
    m = mujoco.MjModel.from_xml_path(str(path))
    m.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONTACT)
    m.jnt_limited[:], m.tendon_limited[:], m.dof_frictionloss[:], m.tendon_frictionloss[:] = 0, 0, 0, 0
    return m


def start(m, draw):
    """Coordinates, velocities and controls."""
    data = mujoco.MjData(m)
    if m.nkey:
        mujoco.mj_resetDataKeyframe(m, data, 0)
    low, high = np.where(m.actuator_ctrllimited[:, None] > 0, m.actuator_ctrlrange, [-0.1, 0.1]).T
    control = low + (high - low) * draw.uniform(0.4, 0.6, size=m.nu)
    q, u = data.qpos.copy(), np.zeros(m.nv)
    if not m.neq:
        u = 0.5 * draw.normal(size=m.nv)
        mujoco.mj_integratePos(m, q, 0.2 * draw.normal(size=m.nv), 1.0)
    return q, u, control


def by_mujoco(m, q, u, control, dt):
    """Coordinates at the end."""
    m.opt.timestep, m.opt.integrator = dt, int(mujoco.mjtIntegrator.mjINT_IMPLICIT)
    data = mujoco.MjData(m)
    data.qpos[:], data.qvel[:], data.ctrl[:], data.act[:] = q, u, control, 0
    for _ in range(round(DURATION / dt)):
        mujoco.mj_step(m, data)
    return data.qpos.copy()


def measure(path):
    """Print the row of a model: whether it agrees."""
    m = smooth(path)
    q, u, control = start(m, np.random.default_rng(1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        system = bodies.from_mujoco(m, contacts="none", control=(lambda t, q, u: jnp.asarray(control)) if m.nu else None)
        q0, u0 = jnp.asarray(q), jnp.asarray(u)
        runs = [jaxnsd.simulate(system, jaxnsd.Moreau(), q0, u0, n_steps=round(DURATION / dt), dt=dt) for dt in (STEP, STEP / 2)]
    coarse, half = (np.asarray(sol.q[-1]) for sol in runs)
    expected = 2 * by_mujoco(m, q, u, control, FINE / 2) - by_mujoco(m, q, u, control, FINE)
    errors = [np.max(np.abs(x - expected)) for x in (coarse, half, 2 * half - coarse)]
    moved = np.max(np.abs(expected - q))
    same = errors[2] < 1e-3 * moved + 1e-7 and all(bool(jnp.all(sol.success)) for sol in runs)
    words = [f"{m.neq} equalities"] if m.neq else [] if same else ["differs"]
    words += [f"left out: {len(system.left_out)}"] * bool(system.left_out)
    print(f"{m.nv:>4}{moved:>10.2g}" + "".join(f"{x:>10.2g}" for x in errors) + f"  {path}  {', '.join(words)}", flush=True)
    return same or m.neq > 0


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder")
    parser.add_argument("--velocities", type=int, default=40)
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    print("".join(f"{head:>{size}}" for head, size in (("nv", 4), ("moved", 10), ("4e-4 s", 10), ("2e-4 s", 10), ("to 0", 10))))
    same = []
    for _, path in models(args.folder, args.velocities):
        try:
            same.append(measure(path))
        except ValueError as error:
            print(f"      {path}  {str(error)[:120]}", flush=True)
        jax.clear_caches()
    print(f"{sum(same)} of {len(same)} agree")


if __name__ == "__main__":
    main()
