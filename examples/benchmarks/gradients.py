"""Cost of gradients: reverse mode beside the run itself, for both sensitivities, and a long run with checkpoints.

    python examples/benchmarks/gradients.py [--models RotatingBall SliderCrank ...] [--repeat 3] [--steps 500] [--long 1000000]

Gradients are with respect to all parameters and the initial state. Minima of several runs after compilation, float64, with
`block_until_ready`. The long run comes first, so that the memory of this process is its own. Run it on an idle machine and compare ratios,
not times.
"""

import argparse
import resource
import sys
import time
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _timing import best

import jaxnsd
from jaxnsd.models import MODELS


@dataclass(frozen=True)
class Case:
    """How a model is run."""

    scheme: Any
    dt: float
    batch: int = 1024
    system: Any = None


MOREAU = jaxnsd.Moreau()
CASES = {
    "BouncingBall": Case(MOREAU, 1e-3),
    "SpringPendulum": Case(jaxnsd.SymmetricMoreau(), 1e-3),
    "Woodpecker": Case(MOREAU, 1e-4),
    "elastic_bar": Case(jaxnsd.GeneralizedAlpha(0.8), 2e-6, 64, lambda: MODELS["elastic_bar"](10)),
    "BeadColumn": Case(MOREAU, 1e-3),
    "RotatingBall": Case(MOREAU, 1e-3),
    "SliderCrank": Case(jaxnsd.Lobatto(2), 1e-4, 64),
    "SliderCrankMinimal": Case(jaxnsd.Lobatto(2), 1e-4, 64),
    "PointMassOnSlope": Case(jaxnsd.Lobatto(3), 1e-3, 256),
    "CornerBlock": Case(MOREAU, 1e-3),
    "DoublePendulum": Case(jaxnsd.SymmetricMoreau(), 1e-3),
    "TwoDiscs": Case(MOREAU, 1e-3),
    "Sphere": Case(MOREAU, 1e-3),
}


def timed(function, *args, repeat):
    """``(seconds to compile, least seconds to run)``."""
    start = time.perf_counter()
    compiled = function.lower(*args).compile()
    compilation = time.perf_counter() - start
    return compilation, best(lambda: compiled(*args), time.perf_counter, repeat)[1]


def row(name, steps, repeat):
    """Seconds to compile and to run: of the batch itself, of its gradient with either sensitivity."""
    case = CASES[name]
    system = (case.system or MODELS[name])()
    # Floats become arrays of the batch, one system for each member.
    system = jax.tree.map(lambda x: jnp.broadcast_to(jnp.asarray(x, float), (case.batch, *jnp.shape(x))), system)
    q0, u0 = (jax.tree.unflatten(jax.tree.structure(system), [x[0] for x in jax.tree.leaves(system)])).initial_state()
    change = 1 + 0.05 * jnp.asarray(np.random.default_rng(0).uniform(-1, 1, (case.batch, 1)))
    u0 = u0[None, :] * change
    q0 = jnp.broadcast_to(q0[None, :], (case.batch, *q0.shape))

    def loss(sensitivity):
        def run(system, q0, u0):
            sol = jaxnsd.simulate(system, case.scheme, q0, u0, steps * case.dt, case.dt, save_every=steps, sensitivity=sensitivity)
            return jnp.sum(sol.u[-1] ** 2) + jnp.sum(sol.q[-1])

        return run

    args = system, q0, u0
    forward = timed(jax.jit(jax.vmap(loss("discrete"))), *args, repeat=repeat)
    return forward, *(timed(jax.jit(jax.vmap(jax.grad(loss(s), (0, 1, 2)))), *args, repeat=repeat) for s in ("discrete", "saltation"))


def table(names, steps, repeat):
    """Print the table of gradients."""
    print(f"\ngradients of {steps} steps, in batches; ratios to the run itself")
    print(f"{'model':<20}{'batch':>6}{'run s':>9}{'discrete':>10}{'saltation':>11}{'salt./disc.':>13}{'compile s: run, gradients':>29}")
    for name in names:
        (compile_run, run), (compile_d, discrete), (compile_s, saltation) = row(name, steps, repeat)
        print(
            f"{name:<20}{CASES[name].batch:>6}{run:>9.3f}{discrete / run:>10.1f}{saltation / run:>11.1f}{saltation / discrete:>13.2f}"
            f"{compile_run:>15.1f}{compile_d:>7.1f}{compile_s:>7.1f}",
            flush=True,
        )


def resident():
    """High-water mark of the memory of this process, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform == "linux" else 2**20)


def long_run(steps, repeat):
    """Reverse mode through a long run of the spring pendulum with checkpoints, and through a tenth of it without."""
    system = MODELS["SpringPendulum"]()

    def gradient(steps, checkpoint):
        def loss(q0, u0):
            sol = jaxnsd.simulate(system, jaxnsd.SymmetricMoreau(), q0, u0, steps * 1e-3, 1e-3, save_every=steps, checkpoint=checkpoint)
            return jnp.sum(sol.q[-1])

        return jax.jit(jax.grad(loss, (0, 1)))

    print(f"reverse mode through steps of the spring pendulum, SymmetricMoreau, dt = 1e-3; process at the start: {resident():.0f} MiB")
    print(f"{'steps':>9}{'checkpoint':>12}{'compile s':>11}{'run s':>8}{'us a step':>11}{'temporary MiB':>15}{'process MiB':>13}")
    costs = []
    for n, checkpoint in ((steps, round(steps**0.5)), (steps // 10, round((steps // 10) ** 0.5)), (steps // 10, None)):
        function, args = gradient(n, checkpoint), system.initial_state()
        compilation, seconds = timed(function, *args, repeat=repeat)
        temporary = function.lower(*args).compile().memory_analysis().temp_size_in_bytes / 2**20
        finite = all(bool(jnp.all(jnp.isfinite(x))) for x in function(*args))
        costs.append(seconds / n)
        print(
            f"{n:>9}{checkpoint or 'none':>12}{compilation:>11.1f}{seconds:>8.2f}{1e6 * seconds / n:>11.2f}{temporary:>15.1f}"
            f"{resident():>13.0f}{'' if finite else '   not finite'}",
            flush=True,
        )
    print(f"cost of checkpoints: {costs[0] / costs[2]:.2f} times ({steps} steps), {costs[1] / costs[2]:.2f} times ({steps // 10} steps)")


def main():
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--long", type=int, default=1_000_000, help="steps of the long run; 0: none")
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    if args.long:
        long_run(args.long, args.repeat)
    if args.models:
        table(args.models, args.steps, args.repeat)


if __name__ == "__main__":
    main()
