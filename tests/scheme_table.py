"""All schemes of the library, for the tests that hold every one of them to the same physics."""

import pytest

from jaxnsd.schemes import (
    HHT,
    GeneralizedAlpha,
    Lobatto,
    Moreau,
    MoreauJean,
    MoreauJeanVariant,
    Newmark,
    SymmetricMoreau,
    VariationalMoreau,
)

#: Schemes that step ``q_{k+1} = q_k + dt q_dot(t_k, q_k, u_k)``: ``u_k`` is the velocity on the interval after node k.
MOREAU_TYPE = [Moreau(), SymmetricMoreau(), VariationalMoreau()]

#: Schemes that choose their contacts at the start of a step, and evaluate them at the configuration predicted there.
PREDICTING = [MoreauJean(), MoreauJeanVariant(theta=0.6), Newmark(), HHT(), GeneralizedAlpha()]

#: Schemes that enforce gaps and constraints on position level.
POSITION_LEVEL = [Lobatto(stages=s) for s in (2, 3, 4, 5)]

SCHEMES = [*MOREAU_TYPE, *PREDICTING, *POSITION_LEVEL]


def label(scheme):
    """Name of a scheme for the ids of tests."""
    return f"{scheme.name}-{scheme.stages}" if scheme in POSITION_LEVEL else scheme.name


def over(schemes):
    """Decorator: the test runs once for each of these schemes."""
    return pytest.mark.parametrize("scheme", schemes, ids=label)


all_schemes = over(SCHEMES)
