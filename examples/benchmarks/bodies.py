"""Bodies: speed, compilation and quality of jaxnsd on a cube, a hopper, a cheetah and a humanoid, with MuJoCo and MJX beside it.

    python examples/benchmarks/bodies.py [NAME ...] [--repeat 5] [--batch 1024] [--gradient] [--contacts world]

Hopper, cheetah and humanoid are those of gymnasium where it is installed; without it a box and a leg, the scenes of jaxnsd, are measured.
Every simulator has the same scene, start, step and number of steps, without control: what is dropped falls, slides and comes to rest. Steps
per second alone are of CPU time of this process, the best of several runs after compilation, in a batch of wall time, by `jax.vmap` and by
`jaxnsd.spread`, on all cores, float64; compilation is in CPU seconds: run it without a compilation cache. Beside the speed, from the states
and computed alike for all:

penetration    the deepest of a contact between shapes, mm
creep          the largest slip of a contact that is closed in the last fifth of the run, mm/s: hard friction holds what rests
energy         by how much the energy of the system rises above that at the start, relative to what it loses: dissipation never gives

MJX is measured where it is installed and takes the scene. Siconos is beside the contact problems alone, in `many_contacts.py`.
"""

import argparse
import importlib.util
import time
import warnings
from pathlib import Path

import _mujoco as beside
import jax
import jax.numpy as jnp
import numpy as np
from _timing import best, cpu_seconds

import jaxnsd
from jaxnsd import bodies
from jaxnsd.models import SCENES

DT, STEPS = 1e-3, 2000
CUBE = """
<mujoco><option gravity="0 0 -9.81"/><worldbody>
  <geom name="floor" type="plane" size="9 9 1" friction="0.2"/>
  <body name="cube" pos="0 0 0.25" euler="10 20 30"><freejoint/>
    <geom name="cube" type="box" size="0.05 0.05 0.05" mass="0.37" friction="0.2"/>
  </body>
</worldbody></mujoco>"""
FIELD = {"hopper": "hopper", "cheetah": "half_cheetah", "humanoid": "humanoid"}


def scenes():
    """``{name: path or string of MJCF}``."""
    found = {"cube": CUBE}
    if importlib.util.find_spec("gymnasium"):
        folder = Path(importlib.util.find_spec("gymnasium").origin).parent / "envs" / "mujoco" / "assets"
        return found | {name: folder / f"{file}.xml" for name, file in FIELD.items()}
    return found | {name: SCENES[name] for name in ("falling_box", "leg")}


def start(system):
    """Where the model is put, with a velocity of what is free."""
    q0, u0 = system.initial_state()
    if system.joint_names and system.structure.joints[0].kind == "free":
        u0 = u0.at[:6].set(jnp.asarray([0.6, 0.3, 0.0, 1.0, 2.0, 0.5]))
    return q0, u0


def quality(system, q, u):
    """``(penetration mm, creep mm/s, relative rise of the energy)`` of states (N, n_q), (N, n_u)."""
    shapes = np.array([contact.kind != "limit" for contact in system.contacts], bool)

    @jax.jit
    @jax.vmap
    def look(q, u):
        return system.gap(0.0, q), system.tangential_velocity(0.0, q, u), system.total_energy(0.0, q, u)

    gap, slip, energy = (np.asarray(x) for x in look(jnp.asarray(q), jnp.asarray(u)))
    gap, slip = gap[:, shapes], np.linalg.norm(slip, axis=-1)[:, shapes]
    last = slice(-len(q) // 5, None)
    closed = gap[last] < 1e-4
    creep = float(np.max(np.where(closed, slip[last], 0.0), initial=0.0))
    rise = float(np.max(energy - energy[0])) / float(np.ptp(energy))
    return -1e3 * float(np.min(gap, initial=0.0)), 1e3 * creep, rise


def row(name, what, alone, batch, compilation, of):
    """A line of the table."""
    numbers = "".join(f"{'' if x is None else f'{x:.3g}':>12}" for x in (alone, *batch, compilation, *of))
    print(f"{name:<12}{what:<16}{numbers}", flush=True)


def of_jaxnsd(name, system, args):
    """Measure jaxnsd with Moreau's scheme."""
    q0, u0 = start(system)
    scheme = jaxnsd.Moreau()
    jaxnsd.check(system, scheme, q0, u0, DT * STEPS, DT)
    run = jax.jit(lambda q0, u0: jaxnsd.simulate(system, scheme, q0, u0, n_steps=STEPS, dt=DT))
    first, least = best(lambda: run(q0, u0).q, cpu_seconds, args.repeat)
    sol = run(q0, u0)
    rng = np.random.default_rng(0)
    velocities = u0 + jnp.asarray(rng.normal(scale=0.2, size=(args.batch, u0.size)))

    def member(u0):
        return jaxnsd.simulate(system, scheme, q0, u0, n_steps=STEPS, dt=DT, save_every=STEPS // 4).q[-1]

    batches = jax.jit(jax.vmap(member)), jax.jit(jax.vmap(member))
    speeds = [args.batch * STEPS / best(lambda many=many: many(velocities), time.perf_counter, 1)[1] for many in batches]
    row(name, "jaxnsd", STEPS / least, speeds, first - least, quality(system, sol.q, sol.u))
    if not bool(sol.success):
        print(f"{'':<12}failed steps: {int(jnp.sum(sol.outcome > 0))} of {STEPS}")
    if args.gradient:
        loss = jax.jit(jax.grad(lambda u0: jnp.sum(jaxnsd.simulate(system, scheme, q0, u0, n_steps=STEPS, dt=DT).q[-1] ** 2)))
        first, both = best(lambda: loss(u0), cpu_seconds, 1)
        print(f"{'':<12}gradient: compiles in {first - both:.1f} CPU s, costs {both / least:.1f} forward runs", flush=True)


def of_mujoco(name, scene, system, args):
    """Measure MuJoCo's C code."""
    least, q, u = beside.run(beside.model_of(scene, DT), *start(system), STEPS, args.repeat)
    row(name, "MuJoCo (C)", STEPS / least, (None, None), None, quality(system, q, u))


def of_mjx(name, scene, system, args):
    """Measure MJX, on this backend of JAX."""
    from mujoco import mjx

    model = mjx.put_model(beside.model_of(scene, DT))
    q0, u0 = start(system)

    def run(u0):
        data = mjx.make_data(model).replace(qpos=q0, qvel=u0)

        def step(data, _):
            data = mjx.step(model, data)
            return data, (data.qpos, data.qvel)

        return jax.lax.scan(step, data, None, length=STEPS)[1]

    alone = jax.jit(run)
    first, least = best(lambda: alone(u0), cpu_seconds, 1)
    velocities = u0 + jnp.zeros((args.batch, u0.size))
    many = jax.jit(jax.vmap(lambda u0: run(u0)[0][-1]))
    _, in_batch = best(lambda: many(velocities), time.perf_counter, 1)
    row(name, "MJX", STEPS / least, (args.batch * STEPS / in_batch, None), first - least, quality(system, *alone(u0)))


def main():
    """Print the table."""
    available = scenes()
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(available)} (default: all)")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--contacts", choices=("all", "world"), default="all", help="those between bodies as well, or with the world alone")
    parser.add_argument("--gradient", action="store_true", help="compile and time a gradient as well")
    parser.add_argument("--no-mjx", action="store_true", help="leave out MJX, which compiles for minutes")
    args = parser.parse_args()
    unknown = [name for name in args.names if name not in available]
    if unknown:
        parser.error(f"there is no scene {unknown[0]!r}; there are {', '.join(available)}")
    jax.config.update("jax_enable_x64", True)
    heads = ("alone 1/s", "vmap 1/s", "spread 1/s", "compile s", "depth mm", "creep mm/s", "energy")
    print(f"{'scene':<12}{'simulator':<16}" + "".join(f"{head:>12}" for head in heads))
    for name in args.names or available:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            system = bodies.from_mjcf(available[name], contacts=args.contacts)
        of_jaxnsd(name, system, args)
        of_mujoco(name, available[name], system, args)
        if importlib.util.find_spec("mujoco.mjx") and not args.no_mjx:
            try:
                of_mjx(name, available[name], system, args)
            except NotImplementedError as error:
                print(f"{name:<12}{'MJX':<16}  does not take the scene: {error}")


if __name__ == "__main__":
    main()
