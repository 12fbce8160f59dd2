"""Robustness and speed of the contact solver on freshly drawn problems.

    python examples/benchmarks/contact_problems.py [--seed 0] [--problems 2000] [--batch 4096]

G = W^T M^-1 W with M symmetric positive definite and W, velocities and friction (0 to 1) random; 1 to 6 contacts, planar and spatial.
Prints the share of problems solved (independent natural map <= 1e-10), the Newton iterations, whether each failure was flagged, and
problems per second in a batch (median of several runs after compilation).
"""

import argparse
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

import jaxnsd


def draw(rng, n, d, count):
    """``(G, c, mu)`` of ``count`` problems with n contacts."""
    m = n * (d + 1)
    n_u = m + int(rng.integers(0, 4))
    A = rng.standard_normal((count, n_u, n_u))
    M = A @ A.transpose(0, 2, 1) + 0.1 * np.eye(n_u)
    W = rng.standard_normal((count, n_u, m))
    G = W.transpose(0, 2, 1) @ np.linalg.solve(M, W)
    c = np.einsum("kij,ki->kj", W, rng.standard_normal((count, n_u)))
    return 0.5 * (G + G.transpose(0, 2, 1)), c, rng.uniform(0, 1, (count, n))


def natural_map(G, c, mu, d, P):
    """Largest entry of the natural map with r = 1 / diag G, in NumPy: independent of the solver."""
    n = len(mu)
    xi, diagonal = (G @ P + c).reshape(n, d + 1), np.diag(G).reshape(n, d + 1)
    P = P.reshape(n, d + 1)
    normal = P[:, 0] - np.maximum(0, P[:, 0] - xi[:, 0] / diagonal[:, 0])
    x = P[:, 1:] - xi[:, 1:] / diagonal[:, 1:].mean(axis=1, keepdims=True)
    radius, norm = mu * P[:, 0], np.linalg.norm(x, axis=1)
    factor = np.where(norm > radius, radius / np.where(norm > 0, norm, 1), 1)
    return max(np.abs(normal).max(), np.abs(P[:, 1:] - factor[:, None] * x).max())


def main():
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--problems", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=4096)
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    rng = np.random.default_rng(args.seed)
    solvers = {d: jax.jit(jax.vmap(lambda G, c, mu, d=d: jaxnsd.solve_contact_problem(G, c, mu, d=d))) for d in (1, 2)}

    residuals, iterations, flagged = [], [], []
    for d in (1, 2):
        for n in range(1, 7):
            problems = draw(rng, n, d, args.problems // 12 + 1)
            solution = jax.device_get(solvers[d](*map(jnp.asarray, problems)))
            residuals += [natural_map(G, c, mu, d, P) for G, c, mu, P in zip(*problems, solution.P, strict=True)]
            iterations += list(solution.iterations)
            flagged += list(solution.outcome != 0)
    residuals, flagged = np.array(residuals), np.array(flagged)
    bad = ~(residuals <= 1e-10)
    print(f"{len(residuals)} problems: {100 * np.mean(~bad):.2f} % solved, {bad.sum()} not, of which {np.sum(flagged & bad)} flagged")
    print(
        f"Newton iterations: median {np.median(iterations):.0f}, mean {np.mean(iterations):.2f}, 99 % {np.quantile(iterations, 0.99):.0f}"
    )

    for d in (1, 2):
        problems = tuple(map(jnp.asarray, draw(rng, 3, d, args.batch)))
        jax.block_until_ready(solvers[d](*problems))
        times = []
        for _ in range(7):
            start = time.perf_counter()
            jax.block_until_ready(solvers[d](*problems))
            times.append(time.perf_counter() - start)
        print(f"3 contacts, d = {d}, batch of {args.batch}: {args.batch / statistics.median(times):.0f} problems/s")


if __name__ == "__main__":
    main()
