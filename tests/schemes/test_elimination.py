"""Block systems of the stages: solutions against a dense solver, and the structure that the coefficients give."""

import jax
import numpy as np
import pytest

from jaxnsd.numerics import butcher
from jaxnsd.schemes.lobatto.elimination import eliminate, structure


@pytest.mark.parametrize("s, n, quasi", [(2, 3, False), (2, 3, True), (3, 6, False), (4, 2, False)])
def test_solution_is_that_of_the_dense_system(s, n, quasi):
    rng, depends = np.random.default_rng(s), structure(s, quasi)
    blocks = [[rng.standard_normal((n, n)) + 4 * n * (i == k) * np.eye(n) if depends[i, k] else None for k in range(s)] for i in range(s)]
    dense = np.block([[np.zeros((n, n)) if block is None else block for block in row] for row in blocks])
    solve = jax.jit(lambda rhs: eliminate(blocks)(rhs))
    for shape in ((s, n), (s, n, 5)):
        rhs = rng.standard_normal(shape)
        np.testing.assert_allclose(solve(rhs).reshape(s * n, -1), np.linalg.solve(dense, rhs.reshape(s * n, -1)), atol=1e-14)


@pytest.mark.parametrize("s", butcher.STAGES)
def test_structure_is_that_of_the_coefficients(s):
    """Blocks of ``p - a_hat F`` with coordinates that follow from the velocities by ``a``, F of the last stage without effect."""
    _, _, a, a_hat = butcher.lobatto(s)
    forces = np.ones((s, s)) * (np.eye(s) + np.abs(a) > 0)  # F^j depends on V^j and, by Q^j, on those with a_jk
    expected = (np.eye(s) + (np.abs(a) > 0) + (np.abs(a_hat[:, :-1]) > 0) @ forces[:-1]) > 0
    np.testing.assert_array_equal(structure(s, False), expected)
    assert structure(s, True).all()
    assert structure(2, False)[0, 1] == np.False_
