"""Speed of the theta- and alpha-schemes on the elastic bar: steps per second over the number of nodes, compile time, memory.

    python examples/benchmarks/elastic_bar.py [--nodes 10 100 1000] [--repeat 5]

Medians of several runs after compilation, float64, with `block_until_ready`, every node stored. The cost per step of the tridiagonal
bar must not grow faster than n log n; a dense bar, whose factored matrix is applied in every step, is shown up to 100 nodes.
"""

import argparse
import statistics
import time

import jax

import jaxnsd
from jaxnsd.models import elastic_bar

SCHEMES = (
    jaxnsd.MoreauJean(),
    jaxnsd.MoreauJeanVariant(),
    jaxnsd.Newmark(),
    jaxnsd.HHT(),
    jaxnsd.GeneralizedAlpha(),
    jaxnsd.KrenkHogsberg(),
)
DT = 2e-6
DENSE_UP_TO = 100


def measure(bar, initial, scheme, steps, repeat):
    """``(steps per second, seconds of compilation)``."""
    run = jax.jit(lambda bar: jaxnsd.simulate(bar, scheme, *initial, steps * DT, DT))
    start = time.perf_counter()
    jax.block_until_ready(run(bar))
    first = time.perf_counter() - start
    seconds = []
    for _ in range(repeat):
        start = time.perf_counter()
        solution = jax.block_until_ready(run(bar))
        seconds.append(time.perf_counter() - start)
    solution.raise_if_failed()
    return steps / statistics.median(seconds), first - statistics.median(seconds)


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    print(f"{'scheme':<20}{'nodes':>6}  {'matrices':<12}{'steps/s':>10}{'compile s':>11}{'stored B/step/node':>20}")
    for scheme in SCHEMES:
        for n in args.nodes:
            bar = elastic_bar(n)
            dense = jaxnsd.LinearSystem(bar.mass.dense(), bar.K.dense(), G=bar.G)
            steps = max(750, min(20_000, 2_000_000 // n))
            for kind, system in (("tridiagonal", bar), ("dense", dense)):
                if kind == "dense" and n > DENSE_UP_TO:
                    continue
                speed, compilation = measure(system, bar.initial_state(), scheme, steps, args.repeat)
                # q, u and, for the alpha-schemes, a; the rest does not grow with n.
                stored = 8 * (2 + len(scheme.auxiliary))
                print(f"{scheme.name:<20}{n:>6}  {kind:<12}{speed:>10.2g}{compilation:>11.1f}{stored:>20}", flush=True)


if __name__ == "__main__":
    main()
