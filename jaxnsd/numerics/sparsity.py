"""Zeros and ones in the arrays of a system, which native code counts on: nothing is multiplied with them.

Axes, frames and moments of inertia of bodies are mostly zeros, and what is known of the kinematics of a robot that is made of them is a
third of what it would be of any numbers. Which entries are zeros and ones is a part of what is compiled, their values are not: a system
with other masses and lengths compiles nothing anew.
"""

import jax
import jax.numpy as jnp
import numpy as np

from .. import native
from ..native.jax_internals import is_traced
from ..programs.derivatives import is_float

#: Entries of the largest array that is looked at.
LARGEST = 4096


def of(system):
    """Which entries are zeros and ones, for each leaf of a system as it is run: bytes, or None where nothing is known or counted on.

    Coefficients, which have one axis or none, are left out: they are what a user changes from run to run.
    """
    return tuple(map(_of_leaf, jax.tree.leaves(system))) if native.available() else None


def _of_leaf(x):
    if is_traced(x) or np.ndim(x) < 2 or np.size(x) > LARGEST or not is_float(x):
        return None
    x = np.asarray(x)
    kinds = np.where((x == 0) & ~np.signbit(x), 0, np.where(x == 1, 1, 2)).astype(np.uint8)
    return None if np.all(kinds == 2) else kinds.tobytes()


def counted_on(system, known):
    """The system with constants where its entries are known to be zeros and ones."""
    if known is None or not any(known):
        return system
    leaves, tree = jax.tree.flatten(system)

    def leaf(x, kinds):
        if kinds is None:
            return x
        kinds = np.frombuffer(kinds, np.uint8).reshape(jnp.shape(x))
        return jnp.where(kinds == 2, x, jnp.asarray(kinds == 1, jnp.result_type(x)))

    return tree.unflatten([leaf(x, kinds) for x, kinds in zip(leaves, known, strict=True)])
