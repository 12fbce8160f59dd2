"""Cost of one contact problem against the number of its contacts, with Siconos beside it where that is installed.

    python examples/benchmarks/many_contacts.py [--contacts 30 100 300 1000] [--families stack ...] [--problems 3] [--seed 0]
        [--siconos PYTHON] [--limit 40] [--plot many_contacts.png]

The problems are those of `contact_scenes`: stacks, walls and towers of boxes (hyperstatic), spheres and rocks in a box, discs in a chute;
``--problems`` of each size. Prints for each size of a family the median of the CPU seconds of a problem (the least of three measurements),
checks included, after compilation, those of a derivative (forward, with the value), the largest natural map (in NumPy, independent of the
solver), how many problems were left unsolved, and how many of these without a flag; for each family the exponent of the growth of the
cost, and at the end the memory of the process. ``--siconos /usr/bin/python3`` names a Python that imports Siconos (on Debian and Ubuntu:
python3-siconos); of its solvers the fastest one that comes to the same natural map is shown, each stopped after ``--limit`` seconds,
without the time that it takes to read the problem. Set OPENBLAS_NUM_THREADS=1: threads of a library that wait spin, and count as CPU time.
"""

import argparse
import json
import resource
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import contact_scenes
import jax
import jax.numpy as jnp
import numpy as np
from _timing import best
from contact_problems import natural_map

import jaxnsd

#: Natural map, over that of the problem without percussions, below which a problem counts as solved: of our solver and of others.
SOLVED = 1e-8

#: Solvers of Siconos, spatial and planar.
SICONOS = {2: ("NSGS", "ADMM", "PROX"), 1: ("NSGS", "LEMKE")}


def ours(G, c, mu, d):
    """``(seconds, seconds with a derivative, relative natural map, flagged)``."""

    def solve(c):
        return jaxnsd.solve_contact_problem(G, c, mu, d=d)

    _, spent = best(lambda: solve(c), time.process_time, 3)
    _, derivative = best(lambda: jax.jvp(lambda c: solve(c).xi, (jnp.asarray(c),), (jnp.ones(len(c)),)), time.process_time, 3)
    solution = solve(c)
    return spent, derivative, relative(G, c, mu, d, np.asarray(solution.P)), solution.outcome != jaxnsd.Outcome.SUCCESS


def relative(G, c, mu, d, P):
    """Natural map over that of no percussions."""
    return natural_map(G, c, mu, d, P) / natural_map(G, c, mu, d, np.zeros_like(c))


def siconos(python, limit, G, c, mu, d):
    """``(seconds, name)`` of the fastest solver of Siconos; infinity if none solves the problem."""
    fastest = np.inf, "none"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "problem.npz"
        np.savez(path, G=G, c=c, mu=mu)
        for name in SICONOS[d]:
            command = [python, str(Path(__file__).with_name("_siconos_solver.py")), str(path), name]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=True)
            except subprocess.TimeoutExpired:
                continue
            answer = json.loads(done.stdout.splitlines()[-1])
            if relative(G, c, mu, d, np.array(answer["P"])) <= SOLVED:
                fastest = min(fastest, (answer["seconds"], name))
    return fastest


def measured(family, n, args):
    """A row of the table: contacts, medians of the seconds, and what is left of the problems."""
    rows, others = [], []
    for k in range(args.problems):
        G, c, mu, d = contact_scenes.FAMILIES[family](n, np.random.default_rng((args.seed, n, k))).problem()
        rows.append((len(mu), *ours(G, c, mu, d)))
        if args.siconos:
            others.append(siconos(args.siconos, args.limit, G, c, mu, d))
    contacts, spent, derivative, residuals, flagged = map(np.array, zip(*rows, strict=True))
    left = ~(residuals <= SOLVED)
    other = statistics.median_low(others) if others else None
    return statistics.median(contacts), np.median(spent), np.median(derivative), residuals.max(), left.sum(), (left & ~flagged).sum(), other


def plot(path, table):
    """Cost against number of contacts."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 5))
    for color, (family, rows) in enumerate(table.items()):
        contacts = [row[0] for row in rows]
        axes.loglog(contacts, [row[1] for row in rows], "o-", color=f"C{color}", label=family)
        theirs = [(row[0], row[6][0]) for row in rows if row[6] and np.isfinite(row[6][0])]
        if theirs:
            axes.loglog(*zip(*theirs, strict=True), "x--", color=f"C{color}", alpha=0.6)
    axes.set(
        xlabel="contacts",
        ylabel="CPU time of one problem in s",
        title="solid: jaxnsd; dashed: fastest solver of Siconos, where one solves it",
    )
    axes.set_xticks([10, 30, 100, 300, 1000], labels=["10", "30", "100", "300", "1000"])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150, bbox_inches="tight")


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--contacts", type=int, nargs="+", default=[30, 100, 300, 1000])
    parser.add_argument("--families", nargs="+", choices=contact_scenes.FAMILIES, default=list(contact_scenes.FAMILIES))
    parser.add_argument("--problems", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--siconos", metavar="PYTHON")
    parser.add_argument("--limit", type=float, default=40.0)
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)

    print(
        f"{'family':8} {'contacts':>8} {'seconds':>8} {'with derivative':>15} {'natural map':>11} {'unsolved':>8} {'unflagged':>9}  Siconos"
    )
    table = {}
    for family in args.families:
        rows = table[family] = []
        for n in args.contacts:
            rows.append(measured(family, n, args))
            contacts, spent, derivative, residual, left, silent, other = rows[-1]
            beside = f"{other[0]:.3g} ({other[1]})" if other else ""
            numbers = f"{contacts:8.0f} {spent:8.3f} {derivative:15.3f} {residual:11.1e} {left:8d} {silent:9d}"
            print(f"{family:8} {numbers}  {beside}", flush=True)
        if rows[-1][0] > rows[0][0]:
            (n, *_), (last, *_) = rows[0], rows[-1]
            print(f"{family:8} grows as n^{np.log(rows[-1][1] / rows[0][1]) / np.log(last / n):.1f}")
    print(f"memory of the process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")
    if args.plot:
        plot(args.plot, table)


if __name__ == "__main__":
    main()
