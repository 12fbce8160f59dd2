"""Laws of impact and friction as values: what a system says as its ``law``.

A law is an impact law, which says what becomes of the normal velocity, with sets of friction (see `jaxnsd.sets`). Its parameters are
leaves of a pytree, differentiated and batched as those of a system are. What a law leaves as None is a field or method of the system:
``e_N``, ``e_F``, ``mu``; so ``NewtonImpact()``, the default of every system, is the law of those three.

    law = NewtonImpact()                                                a class attribute;
    law: Any = NewtonImpact(friction=Ellipse(mu_1=0.4, mu_2=0.1))        a field, whose parameters are leaves;
    def law(self): return NewtonImpact(friction=Ellipse(self.a, self.b)) or a method.
"""

import inspect
from typing import Any

import jax
import jax.numpy as jnp

from . import thresholds
from .pytrees import pytree
from .sets import FrictionSet

#: Names of contact data, which a user writes as a field or as a method.
CONTACT_DATA = ("e_N", "e_F", "mu")


class ImpactLaw:
    """What the laws share.

    friction:  a set of `jaxnsd.sets`; None: the disc (a segment for d = 1) of radius ``mu`` of the system
    """

    def __post_init__(self):
        for name in ("e_N", "e_F"):
            value = getattr(self, name)
            if callable(value) and not isinstance(value, jax.tree_util.Partial):
                object.__setattr__(self, name, jax.tree_util.Partial(value))
        if self.friction is not None and not isinstance(self.friction, FrictionSet):
            raise TypeError(f"{type(self).__name__}: friction must be a set such as jaxnsd.sets.Disc(0.3), got {self.friction!r}")


@pytree
class NewtonImpact(ImpactLaw):
    """Newton's law of impact: ``0 <= P_N _|_ xi_N >= 0`` with ``xi = xi_plus + e xi_minus``, C18 (56).

    e_N:  restitution in normal direction in [0, 1], scalar or (n_N,); or a function of the speeds of approach (n_N,) in m/s, to be
          differentiated through what it depends on with `jax.tree_util.Partial(function, parameters)`. None: that of the system
    e_F:  restitution in tangential direction; None: that of the system
    """

    e_N: Any = None
    e_F: Any = None
    friction: Any = None


def of(system):
    """The law of a system."""
    law = system.law
    return law() if callable(law) else law


def restitutions(system):
    """``e_N`` and ``e_F``, of the law or of the system, by where they stand: numbers, arrays, or functions of the speed of approach."""
    law, found = of(system), {}
    for name in ("e_N", "e_F"):
        by_law = getattr(law, name)
        value = getattr(system, name) if by_law is None else by_law
        found[name if by_law is None else f"law.{name}"] = value() if callable(value) and not of_speed(value) else value
    return found


def of_speed(function):
    """Whether a function for a restitution has an argument, the speed of approach; others have none."""
    return bool(inspect.signature(function).parameters)


def depends_on_speed(system):
    """Whether a restitution depends on the speed of approach."""
    return any(map(callable, restitutions(system).values()))


def data(system, shape, dtype, rate=None):
    """``(e_N, e_F, mu)``, each broadcast to (n_N,); ``rate`` are gap velocities before the impact, None: at rest.

    A function for a restitution that leaves [0, 1] at an impact gives NaN, with which no step is solved.
    """
    e = []
    for value in restitutions(system).values():
        if callable(value):
            # At rest the speed is the smallest there is: the derivative of a root is infinite at zero.
            at_rest = jnp.full(shape, thresholds.tiny(dtype), dtype)
            value = value(at_rest if rate is None else jnp.where(rate < 0, -rate, at_rest))
            value = value if rate is None else jnp.where((value >= 0) & (value <= 1), value, jnp.nan)
        e.append(jnp.broadcast_to(jnp.asarray(value, dtype), shape))
    friction = of(system).friction
    if friction is not None:
        return *e, friction.size(*shape, dtype)
    return *e, jnp.broadcast_to(jnp.asarray(*coefficients(system).values(), dtype), shape)


def coefficients(system):
    """Those parameters that must not be negative, by name: numbers or arrays."""
    friction = of(system).friction
    if friction is None:
        return {"mu": system.mu() if callable(system.mu) else system.mu}
    return {f"law.friction.{name}": getattr(friction, name) for name in friction.coefficients}
