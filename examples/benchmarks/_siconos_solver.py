"""One contact problem by a solver of Siconos, for `many_contacts.py`: run by a Python that has it.

    python3 siconos_solver.py PROBLEM.npz NSGS|ADMM|PROX|LEMKE

Prints the seconds that it took and the percussions, as JSON.
"""

import json
import sys
import time

import numpy as np
import siconos.numerics as numerics

TOLERANCE, ITERATIONS = 1e-8, 20_000


def main():
    """Solve the problem."""
    file = np.load(sys.argv[1])
    G, c, mu = file["G"], file["c"], file["mu"]
    d = len(c) // len(mu) - 1
    options = numerics.SolverOptions(getattr(numerics, f"SICONOS_FRICTION_{d + 1}D_{sys.argv[2]}"))
    options.dparam[numerics.SICONOS_DPARAM_TOL] = TOLERANCE
    options.iparam[numerics.SICONOS_IPARAM_MAX_ITER] = ITERATIONS
    problem = numerics.FrictionContactProblem(d + 1, G, c, mu)
    driver = numerics.fc3d_driver if d == 2 else numerics.fc2d_driver
    P, xi = np.zeros(len(c)), np.zeros(len(c))
    start = time.perf_counter()
    driver(problem, P, xi, options)
    print(json.dumps({"seconds": time.perf_counter() - start, "P": P.tolist()}))


if __name__ == "__main__":
    main()
