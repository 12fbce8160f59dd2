"""Speed of the schemes on the benchmark systems: steps per second alone and in a batch, compile time. Gradients: `gradients.py`.

    python examples/benchmarks/speed.py [--models RotatingBall SliderCrank ...] [--repeat 5]

Medians of several runs after compilation, float64, with `block_until_ready`. Run it on an idle machine and compare ratios, not times.
"""

import argparse
import statistics
import time
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

import jaxnsd
from jaxnsd.models import MODELS


@dataclass(frozen=True)
class Case:
    """How a model is run: ``parameter`` varies in the batch within ``limits``; every 100th node is stored in it."""

    scheme: jaxnsd.schemes.Scheme
    dt: float
    steps: int  # alone
    batch: int
    batch_steps: int
    parameter: str
    limits: tuple[float, float]
    tolerance: float | None = None


MOREAU = jaxnsd.Moreau()
CASES = {
    "RotatingBall": Case(MOREAU, 1e-3, 50_000, 8192, 1000, "mu", (0.05, 0.4)),
    "Woodpecker": Case(MOREAU, 1e-4, 20_000, 4096, 500, "mu", (0.25, 0.35)),
    "BeadColumn": Case(MOREAU, 1e-3, 10_000, 1024, 500, "e_N", (0.5, 0.95)),
    "SliderCrank": Case(jaxnsd.Lobatto(stages=2), 1e-4, 2000, 1024, 200, "mu", (0.005, 0.02), 1e-10),
    "PointMassOnSlope": Case(jaxnsd.Lobatto(stages=3), 1e-3, 2000, 4096, 500, "mu", (0.2, 0.4)),
}


def timed(function, *args, repeat):
    """Seconds of the first call and the median of ``repeat`` further ones."""
    start = time.perf_counter()
    jax.block_until_ready(function(*args))
    first = time.perf_counter() - start
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        jax.block_until_ready(function(*args))
        times.append(time.perf_counter() - start)
    return first, statistics.median(times)


def run(case, system, steps, save_every=1):
    """Simulate so many steps of a case from the model's own start."""
    return jaxnsd.simulate(
        system,
        case.scheme,
        *system.initial_state(),
        steps * case.dt,
        case.dt,
        save_every=save_every,
        solver=jaxnsd.SemismoothNewton(tolerance=case.tolerance),
    )


def measure(name, repeat):
    """One row of the table of speeds."""
    case, model = CASES[name], MODELS[name]()
    values = jnp.asarray(np.random.default_rng(0).uniform(*case.limits, case.batch))

    def alone(system):
        return run(case, system, case.steps)

    def sparse(system):
        return run(case, system, case.steps, save_every=100)

    @jax.jit
    @jax.vmap
    def together(value):
        return run(case, MODELS[name](**{case.parameter: value}), case.batch_steps, save_every=100)

    row = []
    counts = case.steps, case.steps, case.batch * case.batch_steps
    for function, argument, count in zip((alone, sparse, together), (model, model, values), counts, strict=True):
        first, median = timed(function, argument, repeat=repeat)
        row.append((count / median, first - median))
    solution = together(values)
    return row, float(jnp.mean(solution.success)), float(jnp.mean(solution.iterations)) / 100


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    print(
        f"{'model':<18}{'scheme':<10}{'alone':>10}{'every 100th':>13}{'batch':>16}{'compile s':>12}{'batch':>8}{'success':>9}{'Newton':>8}"
    )
    for name in args.models:
        (alone, sparse, together), success, newton = measure(name, args.repeat)
        print(
            f"{name:<18}{CASES[name].scheme.name:<10}{alone[0]:>10.2e}{sparse[0]:>13.2e}{together[0]:>10.2e}/{CASES[name].batch:<5}"
            f"{alone[1]:>12.1f}{together[1]:>8.1f}{success:>9.3f}{newton:>8.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
