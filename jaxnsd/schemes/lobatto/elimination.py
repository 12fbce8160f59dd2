"""Linear systems of small square blocks, one block row and column for each stage."""

import jax.numpy as jnp
import numpy as np

from ...numerics import butcher, linalg


def structure(stages, quasi):
    """Which blocks ``d balance^i / d V^k`` of the stages' equations can differ from zero, (s, s) booleans.

    Blocks vanish with the coefficients: with two stages the system is block triangular. ``quasi``: the coordinates of a stage depend on the
    velocities of all of them.
    """
    if quasi:
        return np.ones((stages, stages), bool)
    tableau, eye = butcher.lobatto(stages), np.eye(stages)
    through_forces = np.abs(tableau.a_hat) @ (eye * (np.arange(stages) < stages - 1) + np.abs(tableau.a))
    return (eye + np.abs(tableau.a) + through_forces) > 0


def eliminate(blocks):
    """Factor the block matrix: a function that maps right-hand sides (s, n) or columns (s, n, m) to the solution.

    ``blocks`` are rows of blocks (n, n), None for zero; their diagonal must be invertible in turn, without exchanges of rows.
    """
    A, s, inverse = [list(row) for row in blocks], len(blocks), []
    for k in range(s):
        inverse.append(linalg.lu(A[k][k]))
        for j in range(k + 1, s):
            if A[k][j] is None:
                continue
            A[k][j] = inverse[k](A[k][j])
            for i in range(k + 1, s):
                if A[i][k] is not None:
                    change = linalg.matmul(A[i][k], A[k][j])
                    A[i][j] = -change if A[i][j] is None else A[i][j] - change

    def solve(rhs):
        y = list(rhs)
        for k in range(s):
            y[k] = inverse[k](y[k])
            for i in range(k + 1, s):
                if A[i][k] is not None:
                    y[i] = y[i] - linalg.matmul(A[i][k], y[k])
        for k in reversed(range(s)):
            for j in range(k + 1, s):
                if A[k][j] is not None:
                    y[k] = y[k] - linalg.matmul(A[k][j], y[j])
        return jnp.stack(y)

    return solve
