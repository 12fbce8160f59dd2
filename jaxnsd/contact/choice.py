"""Some contacts out of many: what is taken from arrays of all of them, and put back."""

import jax
import jax.numpy as jnp

from .. import native

#: Up to so many contacts a gather is a sum over a mask where XLA compiles: unlike that of an indexed read its transpose stays within one
#: native loop.
MASKS = 32


class Choice:
    """``size`` contacts out of n, the active ones first: what is taken from arrays of all contacts, and put back into them."""

    def __init__(self, active, size):
        n = active.shape[0]
        self.size = size
        before = jnp.cumsum(active, dtype=jnp.int32)
        place = jnp.where(active, before - 1, before[-1] + jnp.arange(n, dtype=jnp.int32) - before)
        #: (size, n) which contact is in which place
        self.mask = place[None, :] == jnp.arange(size, dtype=jnp.int32)[:, None]
        if native.available():
            order = jnp.zeros_like(place).at[place].set(jnp.arange(n, dtype=jnp.int32), mode="promise_in_bounds", unique_indices=True)
            self.index = order[:size]
        else:
            self.index = None if n <= MASKS else jnp.sum(jnp.where(self.mask, jnp.arange(n)[None, :], 0), axis=1)

    def take(self, x, axis=0):
        """Entries of the chosen contacts, ``axis`` of length n."""
        if self.index is not None:
            return jnp.take(x, self.index, axis, mode="clip")
        x = jnp.moveaxis(x, axis, 0)
        mask = self.mask.reshape(*self.mask.shape, *(1,) * (x.ndim - 1))
        return jnp.moveaxis(jnp.sum(jnp.where(mask, x[None], jnp.zeros((), x.dtype)), axis=1), 0, axis)

    def put(self, x):
        """Array of all contacts, zero for those that were not chosen, from the entries (size, ...)."""
        if self.index is not None:
            nothing = jnp.zeros((self.mask.shape[1], *x.shape[1:]), x.dtype)
            return nothing.at[self.index].set(x, mode="promise_in_bounds", unique_indices=True)
        mask = self.mask.reshape(*self.mask.shape, *(1,) * (x.ndim - 1))
        return jnp.sum(jnp.where(mask, x[:, None], jnp.zeros((), x.dtype)), axis=0)

    def rows(self, x, d, axis=0):
        """`take` along an axis of n (d + 1) rows in the contact solver's order."""
        n = self.mask.shape[1]
        x = jnp.moveaxis(x, axis, 0)
        x_F, x_N = self.take(x[: n * d].reshape(n, d, *x.shape[1:])), self.take(x[n * d :])
        return jnp.moveaxis(jnp.concatenate([x_F.reshape(self.size * d, *x.shape[1:]), x_N]), 0, axis)

    def put_rows(self, z, d):
        """`put` of rows in the contact solver's order."""
        z_F, z_N = z[: self.size * d].reshape(self.size, d), z[self.size * d :]
        return jnp.concatenate([self.put(z_F).reshape(-1), self.put(z_N)])

    def number(self, contact):
        """Number in the whole system of a contact in the view; -1 stays."""
        if not self.size:
            return contact
        at = self.mask & (jnp.arange(self.size) == contact)[:, None]
        number = jnp.max(jnp.where(at, jnp.arange(self.mask.shape[1], dtype=contact.dtype)[None, :], 0))
        return jnp.where(contact < 0, contact, number)


def _unflatten(size, leaves):
    made = object.__new__(Choice)
    made.mask, made.index, made.size = *leaves, size
    return made


jax.tree_util.register_pytree_node(Choice, lambda c: ((c.mask, c.index), c.size), _unflatten)
