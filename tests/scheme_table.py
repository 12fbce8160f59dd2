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


#: One scheme of every family. The others take longer to compile than they tell: some combinations of them run with the long tests.
REPRESENTATIVE = [SymmetricMoreau(), MoreauJean(), GeneralizedAlpha(), Lobatto(stages=3)]


def label(scheme):
    """Name of a scheme for the ids of tests."""
    return f"{scheme.name}-{scheme.stages}" if scheme in POSITION_LEVEL else scheme.name


def over(schemes, fast=None, slow=()):
    """Decorator: the test runs once for each of these schemes, in the tier of the fast, the slow or else the long tests."""

    def marks(scheme):
        return [] if fast is None or scheme in fast else [pytest.mark.slow if scheme in slow else pytest.mark.long]

    return pytest.mark.parametrize("scheme", [pytest.param(scheme, id=label(scheme), marks=marks(scheme)) for scheme in schemes])
