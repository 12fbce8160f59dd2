"""Runs of a batch on a GPU: the loop over the steps as one kernel, beside XLA in lockstep.

    python examples/benchmarks/gpu.py [--models RotatingBall Woodpecker ...] [--members 1024 8192 65536] [--steps 1000] [--gradient]

Steps per second of all members together, the best of several runs after compilation, `Moreau()`, the last node stored, in float64, or with
`--single` in float32; seconds of tracing and compilation; kernels that a step of the loop launches, or all of a run if its loop is one
kernel; and the largest difference of both in the coordinates at the end. A GPU is needed: `--interpret` tries the script on a CPU, with
kernels in Pallas' interpreter, whose times tell nothing.
"""

import argparse
import os
import re
import time

import jax
import jax.numpy as jnp
import numpy as np

import jaxnsd
from jaxnsd.models import MODELS

#: Instructions of a compiled program that launch nothing.
FREE = {"parameter", "constant", "get-tuple-element", "tuple", "bitcast", "while", "conditional", "call", "after-all"}

WIDTHS = (20, 13, 9, 11, 11, 10, 10)


def kernels(text):
    """Kernels of a compiled program: all where a loop is one of them, else those of its longest loop; what is in it is counted once."""
    found, name, loops = {}, None, set()
    for line in text.splitlines():
        if line and not line[0].isspace() and line.rstrip().endswith("{"):
            name = line.removeprefix("ENTRY ").split()[0].lstrip("%")
            found[name], entry = [], name
        elif name and (match := re.match(r"^\s+(?:ROOT )?%?\S+ = (?:\(.*?\)|\S+) ([\w\-]+)\((.*)$", re.sub(r"/\*.*?\*/", "", line))):
            found[name].append(match.groups())

    def count(name):
        total = 0
        for operation, rest in found.get(name, []):
            total += operation not in FREE
            if operation in ("while", "call", "conditional"):
                inside = re.findall(r"(?:body|condition|to_apply|true_computation|false_computation)=%?([\w.\-]+)", rest)
                inside += re.findall(r"%([\w.\-]+)", "".join(re.findall(r"branch_computations=\{(.*?)\}", rest)))
                loops.update(re.findall(r"body=%?([\w.\-]+)", rest))
                total += sum(map(count, inside))
        return total

    in_all = count(entry)
    return f"{in_all} a run" if "xla.gpu.triton" in text else f"{max(map(count, list(loops)), default=in_all)} a step"


def measured(run, args, repeat):
    """``(result, seconds of a run, seconds of compilation, kernels)``."""
    start = time.perf_counter()
    compiled = jax.jit(lambda *args: run(*args)).lower(*args).compile()
    made, times = time.perf_counter() - start, []
    for _ in range(repeat + 1):
        start = time.perf_counter()
        out = jax.block_until_ready(compiled(*args))
        times.append(time.perf_counter() - start)
    return out, min(times[1:]), made, kernels(compiled.as_text())


def batch(name, members, dtype):
    """A model, and starts whose velocities differ a little."""
    system = MODELS[name]()
    q, u = (np.asarray(x, dtype) for x in system.initial_state())
    rng = np.random.default_rng(0)
    return system, jnp.tile(q, (members, 1)), jnp.asarray(u + 0.1 * rng.normal(size=(members, u.size)), dtype)


def rows(name, members, options):
    """Both rows of a model and a size of batches."""
    dtype = np.float32 if options.single else np.float64
    system, q, u = batch(name, members, dtype)
    steps = options.steps

    def final(u, q):
        return jaxnsd.simulate(system, jaxnsd.Moreau(), q, u, n_steps=steps, dt=options.dt, save_every=steps).q[-1]

    of_one = jax.grad(lambda u, q: jnp.sum(final(u, q))) if options.gradient else final
    reference = None
    for how, told in (("lockstep", "0"), ("one kernel", "interpret" if options.interpret else "1")):
        os.environ["JAXNSD_KERNELS"] = told
        if options.interpret:
            os.environ["JAXNSD_NATIVE"] = "01"[told != "0"]
        jax.clear_caches()
        out, seconds, made, counted = measured(jax.vmap(of_one), (u, q), options.repeat)
        difference = "" if reference is None else f"{float(jnp.max(jnp.abs(out - reference))):.1e}"
        reference = out if reference is None else reference
        yield name, how, members, f"{steps * members / seconds:.2e}", counted, f"{made:.1f}", difference


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["RotatingBall", "SpringPendulum", "TwoDiscs", "Woodpecker"], choices=sorted(MODELS))
    parser.add_argument("--members", nargs="+", type=int, default=[1024, 8192, 65536])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--dt", type=float, default=1e-3)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--gradient", action="store_true", help="of the sum of the last coordinates, in reverse mode")
    parser.add_argument("--single", action="store_true", help="single precision")
    parser.add_argument("--interpret", action="store_true", help="kernels in Pallas' interpreter, on a CPU")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", not options.single)
    if jax.default_backend() != "gpu" and not options.interpret:
        print("There is no GPU here. `--interpret` tries this script on a CPU.")
        return
    print(jax.devices()[0].device_kind, "float32" if options.single else "float64", "gradient" if options.gradient else "forward")
    titles = "model", "loop", "members", "steps/s", "kernels", "compile/s", "difference"
    for row in (titles, *(row for name in options.models for members in options.members for row in rows(name, members, options))):
        print("".join(str(x).ljust(width) for x, width in zip(row, WIDTHS, strict=True)), flush=True)


if __name__ == "__main__":
    main()
