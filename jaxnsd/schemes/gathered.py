"""Cost follows the closed contacts: a step with k active contacts out of n is solved as a system of few more than k contacts.

The active contacts are gathered into a view of the system, a `Subsystem`, of one of a few sizes; each size is a branch. What a step
computes for its contacts, force directions, the Delassus operator, Newton's method, it computes for those in the view alone.
"""

import jax
import jax.numpy as jnp
from jax import lax

from ..contact import Choice
from ..native.jax_internals import Primitive, ad, batching, lowered_as
from ..native.marks import when_needed
from ..numerics import linalg

#: Up to so many rows a planar problem is solved whole: branches would cost more than they spare.
PLANAR = 16

#: Larger views are compiled when so many contacts are active for the first time, by native code.
COMMON = 4


def sizes(n, d):
    """Numbers of contacts, all below n, for which a step has a branch of its own; none where the problem is small anyway."""
    if n * (d + 1) <= (linalg.UNROLL if d > 1 else PLANAR):
        return ()
    # A robot stands on five to eight contacts: solved among 16 a step takes nearly twice as long as among 8.
    return tuple(k for k in (0, 4, 8, *(4**k for k in range(2, n.bit_length()))) if k < n)


class Subsystem:
    """A system of which only some contacts are seen."""

    def __init__(self, system, choice):
        self._system, self._choice = system, choice

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._system, name)

    def gap(self, t, q):
        """Gaps of the chosen contacts."""
        return self._choice.take(self._system.gap(t, q))

    def tangential_velocity(self, t, q, u):
        """Tangential velocities of the chosen contacts."""
        return self._of("tangential_velocity", 0, t, q, u)

    def gap_velocity(self, t, q, u):
        """Gap velocities of the chosen contacts."""
        return self._of("gap_velocity", 0, t, q, u)

    def W_N(self, t, q, u=None):
        """Normal force directions of the chosen contacts."""
        return self._of("W_N", 1, t, q, u)

    def W_F(self, t, q, u=None):
        """Tangential force directions of the chosen contacts."""
        return self._of("W_F", 1, t, q, u)

    def _of(self, name, axis, t, q, u):
        """The chosen entries along an axis: taken of all of them, or asked for by a system that gathers what they depend on."""
        function = getattr(self._system, name)
        if self._system.gathers:
            return function(t, q, u, self._choice)
        return self._choice.take(function(t, q, u), axis)

    def contact_data(self, t, q, rate=None):
        """Contact data of the chosen contacts."""
        rate = None if rate is None else self._choice.put(rate)
        return tuple(self._choice.take(x) for x in self._system.contact_data(t, q, rate))


class Evaluated:
    """A system at one place (t, q, u), with its mass matrix and, where they are known, its forces evaluated, once for all who ask."""

    def __init__(self, system, M, h=None, gyroscopic=None):
        self._system, self._M, self._h, self._gyroscopic = system, M, h, gyroscopic

    @classmethod
    def at(cls, system, t, q, u, h=True):
        """That of a system at (t, q, u); without ``h`` the forces are left to be asked for at any velocity."""
        seen = system.seen_at(t, q)
        return cls(seen, seen.M(t, q, u), *((seen.h(t, q, u), seen.gyroscopic(t, q, u)) if h else ()))

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._system, name)

    def M(self, t, q, u=None):
        """Mass matrix (n_u, n_u) at the place."""
        del t, q, u
        return self._M

    def h(self, t, q, u):
        """Forces (n_u,)."""
        return self._system.h(t, q, u) if self._h is None else self._h

    def gyroscopic(self, t, q, u):
        """Derivative (n_u, n_u) of what inertia makes, or None."""
        return self._system.gyroscopic(t, q, u) if self._gyroscopic is None else self._gyroscopic

    def seen_at(self, t, q):
        """That is where it is seen at."""
        del t, q
        return self


jax.tree_util.register_pytree_node(
    Evaluated, lambda s: ((s._system, s._M, s._h, s._gyroscopic), None), lambda _, leaves: Evaluated(*leaves)
)
jax.tree_util.register_pytree_node(Subsystem, lambda s: ((s._system, s._choice), None), lambda _, leaves: Subsystem(*leaves))


def largest(x):
    """The number ``x``; in a batch in lockstep the largest of all members, for all of them: what a branch has to be large enough for."""
    return _largest.bind(x)


_largest = Primitive("jaxnsd_largest")
_largest.def_impl(lambda x: x)
_largest.def_abstract_eval(lambda x: x)
lowered_as(_largest, lambda x: x)
ad.primitive_jvps[_largest] = lambda primals, _: (x := _largest.bind(*primals), ad.Zero(jax.typeof(x).to_tangent_aval()))
batching.primitive_batchers[_largest] = lambda args, axes: (_largest.bind(jnp.max(args[0], axis=axes[0])), None)


def switch(active, sizes, branch, *args):
    """``branch(choice)(*args)`` with as many contacts as it takes for the active ones; ``choice`` None: with all of them."""
    branches = [branch(None if size == active.shape[0] else Choice(active, size)) for size in sizes]
    if len(branches) == 1:
        return branches[0](*args)
    branches = [when_needed(function) if size > COMMON else function for size, function in zip(sizes, branches, strict=True)]
    place = sum((jnp.sum(active) > size).astype(jnp.int32) for size in sizes[:-1])
    return lax.switch(largest(place), branches, *args)
