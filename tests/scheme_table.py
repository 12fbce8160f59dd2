"""All schemes of the library, for the tests that hold every one of them to the same physics, and a system that they share."""

import jax.numpy as jnp
import pytest

import jaxnsd
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


#: One scheme of every family. The others take longer to compile than they tell: some combinations of them run with the slow tests.
REPRESENTATIVE = [SymmetricMoreau(), MoreauJean(), GeneralizedAlpha(), Lobatto(stages=3)]


def label(scheme):
    """Name of a scheme for the ids of tests."""
    return f"{scheme.name}-{scheme.stages}" if scheme in POSITION_LEVEL else scheme.name


def over(schemes, fast=None):
    """Decorator: the test runs once for each of these schemes, with the slow tests for those that are not in ``fast``."""
    marks = {scheme: [] if fast is None or scheme in fast else [pytest.mark.slow] for scheme in schemes}
    return pytest.mark.parametrize("scheme", [pytest.param(scheme, id=label(scheme), marks=marks[scheme]) for scheme in schemes])


@jaxnsd.system
class Skate(jaxnsd.System):
    """A skate on an inclined plane, x downhill, with a bilateral constraint on velocity level: q = (x, y, phi)."""

    def kinetic_energy(self, t, q, u):
        return 0.5 * (u[0] ** 2 + u[1] ** 2 + 0.3 * u[2] ** 2)

    def potential_energy(self, t, q):
        return -2 * q[0]

    def velocity_constraint(self, t, q, u):
        return jnp.stack([u[0] * jnp.sin(q[2]) - u[1] * jnp.cos(q[2])])
