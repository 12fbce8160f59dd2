"""Butcher tableaux of the Lobatto IIIA-IIIB pair.

Invariants, checked when a tableau is made: with nodes c (c_1 = 0, c_s = 1), weights b, coefficients ``a`` of IIIA and ``a_hat`` of IIIB,

    sum_i b_i c_i^(k-1) = 1/k,  k = 1..2s-2                    B(2s-2)
    sum_j a_ij c_j^(k-1) = c_i^k / k,  k = 1..s                C(s)     for a, C(s-2) for a_hat
    sum_i b_i c_i^(k-1) a_ij = b_j (1 - c_j^k) / k, k = 1..s   D(s)     for a_hat, D(s-2) for a
    b_i a_hat_ij + b_j a_ji = b_i b_j                          symplecticity, Capobianco et al. 2024, (46)

and ``a_1j = 0, a_sj = b_j, a_hat_is = 0, a_hat_i1 = b_1``: the percussion of the last stage does not act on the stages.
"""

import functools
from typing import NamedTuple

import numpy as np
from numpy.polynomial import Legendre

#: Numbers of stages that `lobatto` offers; the order is ``2 s - 2``.
STAGES = (2, 3, 4, 5)


class Tableau(NamedTuple):
    """Nodes c (s,), weights b (s,), IIIA coefficients a (s, s), IIIB coefficients a_hat (s, s); read-only."""

    c: np.ndarray
    b: np.ndarray
    a: np.ndarray
    a_hat: np.ndarray


@functools.cache
def lobatto(stages):
    """The Lobatto IIIA-IIIB pair with ``stages`` stages, by construction: nodes from Legendre's polynomial, IIIA by collocation.

    In extended precision, where the platform has it, so that the coefficients are right to the last digit.
    """
    polynomial = Legendre.basis(stages - 1).deriv()
    inner = np.sort(polynomial.roots().real).astype(np.longdouble)
    inner = inner - polynomial(inner) / polynomial.deriv()(inner) if stages > 2 else inner
    c = np.concatenate([[0.0], (1 + (inner - inner[::-1]) / 2) / 2, [1.0]])
    a = np.stack([_integrals(c, end) for end in c])
    b = a[-1] = (a[-1] + a[-1, ::-1]) / 2
    a_hat = b[None, :] - b[None, :] * a.T / b[:, None]  # C24 (46)
    a_hat[:, -1], a_hat[:, 0] = 0.0, b[0]
    c, b, a, a_hat = (np.asarray(x, float) for x in (c, b, a, a_hat))
    tableau = Tableau(c, b, a, a_hat)
    worst = max(defects(tableau).values())
    if worst > 1e-14:
        raise AssertionError(f"the Lobatto tableau with {stages} stages misses its conditions by {worst:.1e}")
    for array in tableau:
        array.setflags(write=False)
    return tableau


def _integrals(nodes, end):
    """Integrals from 0 to ``end`` of the Lagrange polynomials on the nodes."""
    integrals = []
    for node in nodes:
        polynomial = np.ones(1, nodes.dtype)  # coefficients, highest power first
        for other in nodes[nodes != node]:
            polynomial = np.convolve(polynomial, np.array([1, -other]) / (node - other))
        powers = np.arange(len(polynomial), 0, -1)
        integrals.append(np.sum(polynomial / powers * end**powers))
    return np.array(integrals)


def defects(tableau):
    """Largest violation of each condition that a Lobatto IIIA-IIIB pair meets, by name."""
    c, b, a, a_hat = tableau
    s = len(c)
    k, long = np.arange(1, s + 1), np.arange(1, 2 * s - 1)
    conditions = {
        "row sums": a.sum(axis=1) - c,
        "B(2s-2)": (b[:, None] * c[:, None] ** (long - 1)).sum(axis=0) - 1 / long,
        "C(s)": a @ c[:, None] ** (k - 1) - c[:, None] ** k / k,
        "C(s-2)": a_hat @ c[:, None] ** (k[:-2] - 1) - c[:, None] ** k[:-2] / k[:-2],
        "D(s)": (b[:, None] * c[:, None] ** (k - 1)).T @ a_hat - b * (1 - c[:, None] ** k).T / k[:, None],
        "D(s-2)": (b[:, None] * c[:, None] ** (k[:-2] - 1)).T @ a - b * (1 - c[:, None] ** k[:-2]).T / k[:-2, None],
        "symplecticity": b[:, None] * a_hat + (b[:, None] * a).T - np.outer(b, b),
        "first and last stage": np.concatenate([a[0], a[-1] - b, a_hat[:, -1], a_hat[:, 0] - b[0]]),
    }
    return {name: float(np.max(np.abs(defect), initial=0.0)) for name, defect in conditions.items()}
