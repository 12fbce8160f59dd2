"""Speed of the Moreau scheme on the benchmark systems: steps per second alone and in a batch, compile time, cost of a gradient.

    python examples/benchmarks/speed.py [--models RotatingBall Woodpecker BeadColumn] [--repeat 5] [--gradients]

Medians of several runs after compilation, float64, with `block_until_ready`. Run it on an idle machine and compare ratios, not times.
"""

import argparse
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

import jaxnsd
from jaxnsd.models import MODELS

#: model -> (dt, steps alone, batch, steps in the batch, parameter that varies in the batch and its range)
CASES = {
    "RotatingBall": (1e-3, 50_000, 8192, 1000, "mu", (0.05, 0.4)),
    "Woodpecker": (1e-4, 20_000, 4096, 500, "mu", (0.25, 0.35)),
    "BeadColumn": (1e-3, 10_000, 1024, 500, "e_N", (0.5, 0.95)),
}
GRADIENT_BATCH, GRADIENT_STEPS = 1024, 500


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


def measure(name, repeat):
    """One row of the table of speeds."""
    dt, steps, batch, batch_steps, parameter, limits = CASES[name]
    model, scheme = MODELS[name](), jaxnsd.Moreau()
    q0, u0 = model.initial_state()
    values = jnp.asarray(np.random.default_rng(0).uniform(*limits, batch))

    def alone(system):
        return jaxnsd.simulate(system, scheme, q0, u0, steps * dt, dt)

    def sparse(system):
        return jaxnsd.simulate(system, scheme, q0, u0, steps * dt, dt, save_every=100)

    @jax.jit
    @jax.vmap
    def together(value):
        system = type(model)(**{parameter: value})
        return jaxnsd.simulate(system, scheme, q0, u0, batch_steps * dt, dt, save_every=100)

    row = []
    for run, argument, count in ((alone, model, steps), (sparse, model, steps), (together, values, batch * batch_steps)):
        first, median = timed(run, argument, repeat=repeat)
        row.append((count / median, first - median))
    solution = together(values)
    return row, float(jnp.mean(solution.success)), float(jnp.mean(solution.iterations)) / 100


def gradient(name, repeat):
    """Cost of a reverse-mode gradient of a 500-step run in a batch of 1024, beside the run itself."""
    dt, *_, parameter, limits = CASES[name]
    model, scheme = MODELS[name](), jaxnsd.Moreau()
    q0, u0 = model.initial_state()
    values = jnp.asarray(np.random.default_rng(0).uniform(*limits, GRADIENT_BATCH))

    def loss(value):
        system = type(model)(**{parameter: value})
        solution = jaxnsd.simulate(system, scheme, q0, u0, GRADIENT_STEPS * dt, dt, save_every=GRADIENT_STEPS)
        return jnp.sum(solution.u[-1] ** 2) + jnp.sum(solution.q[-1])

    forward_first, forward = timed(jax.jit(jax.vmap(loss)), values, repeat=repeat)
    reverse_first, reverse = timed(jax.jit(jax.vmap(jax.grad(loss))), values, repeat=repeat)
    return forward_first - forward, reverse_first - reverse, reverse / forward


def main():
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--gradients", action="store_true", help="also measure reverse-mode gradients")
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    print(f"{'model':<14}{'alone':>10}{'every 100th':>13}{'batch':>16}{'compile s':>12}{'batch':>8}{'success':>9}{'Newton':>8}")
    for name in args.models:
        (alone, sparse, together), success, newton = measure(name, args.repeat)
        print(
            f"{name:<14}{alone[0]:>10.2e}{sparse[0]:>13.2e}{together[0]:>10.2e}/{CASES[name][2]:<5}"
            f"{alone[1]:>12.1f}{together[1]:>8.1f}{success:>9.3f}{newton:>8.2f}",
            flush=True,
        )
    if args.gradients:
        print(f"\n{'model':<14}{'compile forward s':>19}{'reverse s':>11}{'reverse / forward':>19}")
        for name in args.models:
            forward, reverse, ratio = gradient(name, args.repeat)
            print(f"{name:<14}{forward:>19.1f}{reverse:>11.1f}{ratio:>19.1f}", flush=True)


if __name__ == "__main__":
    main()
