"""Cost follows the closed contacts: a step with k active contacts out of n is solved as a system of few more than k contacts.

The active contacts are chosen, with others up to one of a few sizes (see `contact.Choice`); each size is a branch. What a step computes for
its contacts, force directions, the Delassus operator, Newton's method, it computes for those of its choice alone.
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
