"""Laws of impact and friction as values: what a system says as its ``law``.

A law is an impact law, which says what becomes of the normal velocity, with sets of friction (see `jaxnsd.sets`): of sliding, and, on the
same normal percussion, of rolling and drilling. Its parameters are leaves of a pytree, differentiated and batched as those of a system
are. What a law leaves as None is a field or method of the system: ``e_N``, ``e_F``, ``mu``; so ``NewtonImpact()``, the default of every
system, is the law of those three.

    law = NewtonImpact()                                                a class attribute;
    law: Any = NewtonImpact(friction=Ellipse(mu_1=0.4, mu_2=0.1))        a field, whose parameters are leaves;
    def law(self): return NewtonImpact(friction=Ellipse(self.a, self.b)) or a method.

Every scheme, `LocatedImpacts` and derivatives by "saltation" take every law. One derivative is missing with several sets of friction:
where slip passes through zero without a rest, see `schemes.sensitivity`; that of the steps as computed is returned there.
"""

import dataclasses
import inspect
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from ..numerics import thresholds
from ..programs.given import shown
from ..programs.pytrees import pytree
from ..sets import FrictionSet

#: Names of contact data, which a user writes as a field or as a method.
CONTACT_DATA = ("e_N", "e_F", "mu")


class ContactData(NamedTuple):
    """What the laws of impact and friction take of every contact."""

    e_N: jax.Array  # (n_N,)
    e_F: jax.Array  # (n_N,)
    mu: jax.Array  # (n_N,), or (n_N, number of sets of friction)


class ImpactLaw:
    """What the laws share.

    friction:  a set of `jaxnsd.sets`, or a tuple of sets, each of which has its own columns of `tangential_velocity`, in this order; None:
               one disc (a segment for d = 1) of radius ``mu`` of the system
    """

    #: Whether an impact has two phases, compression and expansion.
    expands: ClassVar[bool] = False

    def __post_init__(self):
        for name in ("e_N", "e_F"):
            value = getattr(self, name)
            if callable(value) and not isinstance(value, jax.tree_util.Partial):
                object.__setattr__(self, name, jax.tree_util.Partial(value))
        if isinstance(self.friction, list):
            object.__setattr__(self, "friction", tuple(self.friction))
        several = isinstance(self.friction, tuple) and len(self.friction) > 0
        for part in self.friction if several else (self.friction,):
            if (several or part is not None) and not isinstance(part, FrictionSet):
                raise TypeError(
                    f"{type(self).__name__}: friction must be a set such as jaxnsd.sets.Disc(0.3), or a tuple of sets, got {shown(part)}"
                )
            if part is not None:
                _says(part)

    @property
    def sets(self) -> tuple[FrictionSet, ...]:
        """The sets of friction, a tuple; empty where it is the system's ``mu``."""
        return self.friction if isinstance(self.friction, tuple) else () if self.friction is None else (self.friction,)


def _says(part):
    """Check that a set of friction says what a set has to."""
    name = type(part).__name__
    if getattr(part, "d", None) not in (1, 2):
        raise TypeError(f"{name}: a set of friction must say d, 1 or 2, the number of its directions, got {getattr(part, 'd', None)!r}")
    for field in part.coefficients:
        if not hasattr(part, field):
            raise TypeError(
                f"{name}: a set of friction must say coefficients, the names of its fields that are not negative; it has no {field}"
            )


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


@pytree
class PoissonImpact(ImpactLaw):
    """Poisson's law of impact with Coulomb friction, after Glocker & Pfeiffer (1995): compression, then expansion.

        compression:  0 <= P_N^C _|_ gamma_N^C >= 0,                        friction by P_N^C and the slip at its end
        expansion:    0 <= P_N^E - e_N P_N^C _|_ gamma_N^plus >= 0,         friction by P_N^E and the slip at its end

    Each is a contact problem, solved one after the other; stored are the sums ``P^C + P^E``. Compression is what the impact takes to bring
    the contacts to a halt, without the forces of the step, so that a body at rest is not pushed up by its weight: contact forces belong to
    the expansion, whose inequality they obey without restitution. Tangential directions have none: ``e_F`` must be zero.

    Without friction, and with one e_N for all contacts, it is Newton's law. With friction it differs where slip ends or turns in the
    impact: there Newton's law may create energy (Newton's paradox). Measured on 20 000 impacts of a rod, drawn at random: Newton's law
    creates energy in 196 of them, at most 28 %, Poisson's in none.

    e_N:  restitution in [0, 1], the part of the percussion of compression that is given back: as in `NewtonImpact`
    """

    e_N: Any = None
    friction: Any = None
    e_F: ClassVar[float] = 0.0
    expands: ClassVar[bool] = True


def said(system):
    """The law as the system says it."""
    law = system.law
    return law() if callable(law) else law


def of(system):
    """The law of a system, with the sets of friction that the system has beside it."""
    law, sets = said(system), system.friction_sets()
    return law if sets is None else dataclasses.replace(law, friction=sets)


def restitutions(system):
    """``e_N`` and ``e_F``, of the law or of the system, by where they stand: numbers, arrays, or functions of the speed of approach."""
    law, found = of(system), {}
    for name in ("e_N", "e_F"):
        by_law = getattr(law, name)
        value = getattr(system, name) if by_law is None else by_law
        found[name if by_law is None else f"law.{name}"] = value() if callable(value) and not of_speed(value) else value
    return found


def twice(system):
    """What the law says and the system has a field or a method for, too: ``{name: (by the law, value of the system)}``. The latter must be
    zero, since nobody asks for it.
    """
    law, found = said(system), {}
    for name, by_law in (("e_N", law.e_N), ("e_F", law.e_F), ("mu", law.friction)):
        if by_law is not None:
            own = getattr(system, name)
            found[name] = by_law, own() if callable(own) and not of_speed(own) else own
    return found


def of_speed(function):
    """Whether a function for a restitution has an argument, the speed of approach; others have none."""
    return bool(inspect.signature(function).parameters)


def discs(system):
    """Directions of every disc of friction of a contact, (d_1, d_2, ...); None: there is one disc, or none."""
    sets = of(system).sets
    return tuple(part.d for part in sets) if len(sets) > 1 else None


def depends_on_speed(system):
    """Whether a restitution depends on the speed of approach."""
    return any(map(callable, restitutions(system).values()))


def data(system, shape, dtype, rate=None):
    """`ContactData`, of numbers that are the same for all contacts as well.

    rate: gap velocities before the impact; None: at rest

    A function for a restitution that leaves [0, 1] at an impact gives NaN, with which no step is solved: its outcome is INVALID_PARAMETER.
    """
    e = []
    for value in restitutions(system).values():
        if callable(value):
            # At rest the speed is the smallest there is: the derivative of a root is infinite at zero.
            at_rest = jnp.full(shape, thresholds.tiny(dtype), dtype)
            value = jnp.asarray(value(at_rest if rate is None else jnp.where(rate < 0, -rate, at_rest)), dtype)
            value = value if rate is None else jnp.where((value >= 0) & (value <= 1), value, jnp.nan)
        e.append(jnp.broadcast_to(jnp.asarray(value, dtype), shape))
    sets = of(system).sets
    if not sets:
        return ContactData(*e, jnp.broadcast_to(jnp.asarray(*coefficients(system).values(), dtype), shape))
    mu = [part.size(*shape, dtype) for part in sets]
    return ContactData(*e, mu[0] if len(mu) == 1 else jnp.stack(mu, axis=1))


def has_dry_friction(system):
    """Whether a system says a bound of dry friction, zero included."""
    return system.dry_friction is not None


def dry_friction(system, t, q, u):
    """Bounds (n_D,) of the generalized forces of dry friction, or None where the system says none; of ``u`` only the shape matters."""
    if not has_dry_friction(system):
        return None
    value = system.dry_friction() if callable(system.dry_friction) else system.dry_friction
    return jnp.broadcast_to(jnp.asarray(value, u.dtype), jax.eval_shape(system.dry_velocity, t, q, u).shape)


def axes(system, n, dtype):
    """Matrices (n, d, d) that make the sets of friction of discs (see `jaxnsd.sets`); None: they are discs."""
    sets = of(system).sets
    parts = [part.axes(n, dtype) for part in sets]
    if all(part is None for part in parts):
        return None
    d, first, S = sum(part.d for part in sets), 0, []
    for part, own in zip(sets, parts, strict=True):
        own = jnp.tile(jnp.eye(part.d, dtype=dtype)[None], (n, 1, 1)) if own is None else own
        S.append(jnp.pad(own, ((0, 0), (0, 0), (first, d - first - part.d))))
        first += part.d
    return jnp.concatenate(S, axis=1)


def coefficients(system):
    """Those parameters that must not be negative, by where they stand: numbers or arrays."""
    law = of(system)
    if not law.sets:
        return {"mu": system.mu() if callable(system.mu) else system.mu}
    several = isinstance(law.friction, tuple)
    where = [f"law.friction{f'[{k}]' if several else ''}" for k in range(len(law.sets))]
    return {f"{place}.{name}": getattr(part, name) for place, part in zip(where, law.sets, strict=True) for name in part.coefficients}
