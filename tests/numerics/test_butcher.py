"""Lobatto IIIA-IIIB tableaux against their published coefficients and by what they integrate exactly."""

import numpy as np
import pytest
from scipy.special import roots_jacobi

from jaxnsd.numerics import butcher

all_stages = pytest.mark.parametrize("s", butcher.STAGES)
ROOT5 = np.sqrt(5)

#: Published tableaux (Hairer, Lubich & Wanner, Geometric Numerical Integration, Tables II.1.7, II.1.8): a, a_hat, b, c.
PUBLISHED = {
    2: ([[0, 0], [1 / 2, 1 / 2]], [[1 / 2, 0], [1 / 2, 0]], [1 / 2, 1 / 2], [0, 1]),
    3: (
        [[0, 0, 0], [5 / 24, 1 / 3, -1 / 24], [1 / 6, 2 / 3, 1 / 6]],
        [[1 / 6, -1 / 6, 0], [1 / 6, 1 / 3, 0], [1 / 6, 5 / 6, 0]],
        [1 / 6, 2 / 3, 1 / 6],
        [0, 1 / 2, 1],
    ),
    4: (
        [
            [0, 0, 0, 0],
            [(11 + ROOT5) / 120, (25 - ROOT5) / 120, (25 - 13 * ROOT5) / 120, (-1 + ROOT5) / 120],
            [(11 - ROOT5) / 120, (25 + 13 * ROOT5) / 120, (25 + ROOT5) / 120, (-1 - ROOT5) / 120],
            [1 / 12, 5 / 12, 5 / 12, 1 / 12],
        ],
        [
            [1 / 12, (-1 - ROOT5) / 24, (-1 + ROOT5) / 24, 0],
            [1 / 12, (25 + ROOT5) / 120, (25 - 13 * ROOT5) / 120, 0],
            [1 / 12, (25 + 13 * ROOT5) / 120, (25 - ROOT5) / 120, 0],
            [1 / 12, (11 - ROOT5) / 24, (11 + ROOT5) / 24, 0],
        ],
        [1 / 12, 5 / 12, 5 / 12, 1 / 12],
        [0, (5 - ROOT5) / 10, (5 + ROOT5) / 10, 1],
    ),
}


@pytest.mark.parametrize("s", PUBLISHED)
def test_published_coefficients(s):
    tableau = butcher.lobatto(s)
    for got, wanted in zip((tableau.a, tableau.a_hat, tableau.b, tableau.c), PUBLISHED[s], strict=True):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=4e-16)


@all_stages
def test_nodes_and_weights(s):
    """Nodes and weights of Lobatto's quadrature, from SciPy's Jacobi polynomials: the derivative of P_n is a multiple of P^(1,1)_{n-1}."""
    c, b, _, _ = butcher.lobatto(s)
    np.testing.assert_allclose(c, np.concatenate([[0], (1 + roots_jacobi(s - 2, 1, 1)[0]) / 2 if s > 2 else [], [1]]), atol=1e-15)
    legendre = np.polynomial.Legendre.basis(s - 1)(2 * c - 1)
    np.testing.assert_allclose(b, 1 / (s * (s - 1) * legendre**2), atol=1e-15)


@all_stages
def test_conditions(s):
    """Row sums, symplecticity, B(2s-2), C(s), D(s) and the zero column, recomputed here term by term."""
    c, b, a, a_hat = butcher.lobatto(s)
    np.testing.assert_allclose(a.sum(axis=1), c, atol=1e-15)
    for i in range(s):
        for j in range(s):
            assert abs(b[i] * a_hat[i, j] + b[j] * a[j, i] - b[i] * b[j]) < 1e-16
    for k in range(1, 2 * s - 1):
        assert abs(sum(b[i] * c[i] ** (k - 1) for i in range(s)) - 1 / k) < 1e-15
    assert abs(sum(b * c ** (2 * s - 2)) - 1 / (2 * s - 1)) > 1e-6, "no more than order 2 s - 2"
    for k in range(1, s + 1):
        for i in range(s):
            assert abs(sum(a[i, j] * c[j] ** (k - 1) for j in range(s)) - c[i] ** k / k) < 1e-15
            assert abs(sum(b[j] * c[j] ** (k - 1) * a_hat[j, i] for j in range(s)) - b[i] * (1 - c[i] ** k) / k) < 1e-15
    assert not a[0].any() and not a_hat[:, -1].any()
    np.testing.assert_array_equal(a[-1], b)
    np.testing.assert_array_equal(a_hat[:, 0], np.full(s, b[0]))
    assert max(butcher.defects(butcher.lobatto(s)).values()) < 1e-14


@all_stages
def test_conditions_can_fail(s):
    """A coefficient that is off by 1e-9 is seen."""
    for name in ("b", "a", "a_hat"):
        tableau = butcher.lobatto(s)
        changed = np.array(getattr(tableau, name))
        changed[..., 0] += 1e-9
        assert max(butcher.defects(tableau._replace(**{name: changed})).values()) > 1e-10


@all_stages
def test_stage_constraints_are_solvable(s):
    """The blocks that make R^1..R^{s-1} from g^2..g^s and gamma^2..gamma^s are P-matrices: one contact has one solution (C24 (52))."""
    _, _, a, a_hat = butcher.lobatto(s)
    for matrix in ((a @ a_hat)[1:, :-1], a_hat[1:, :-1]):
        for subset in range(1, 2 ** (s - 1)):
            index = [i for i in range(s - 1) if subset >> i & 1]
            assert np.linalg.det(matrix[np.ix_(index, index)]) > 0


def test_read_only():
    with pytest.raises(ValueError, match="read-only"):
        butcher.lobatto(3).b[0] = 1.0
