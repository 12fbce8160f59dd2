"""A function with a `vmap` of its own."""

import jax
from jax.custom_batching import custom_vmap

from ..native.jax_internals import jaxpr_as_fun


def batched_by(function, rule):
    """``function``, whose `vmap` is ``rule(size, in_batched, *args) -> outs``, every one of them with the axis of the batch.

    Constants of the function, tables of Lemke's method say, are arguments of what JAX is given: it takes them for batched where they come
    from outside of a `lax.cond` whose condition is, and refuses that of constants. They are the same for all members.
    """

    def called(*args):
        leaves, tree = jax.tree.flatten(args)
        closed, shapes = jax.make_jaxpr(lambda *leaves: function(*tree.unflatten(leaves)), return_shape=True)(*leaves)

        @custom_vmap
        def one(consts, leaves):
            return jaxpr_as_fun(closed.replace(consts=consts))(*leaves)

        @one.def_vmap
        def _batched(size, in_batched, consts, leaves):
            del consts
            out = jax.tree.leaves(rule(size, tree.unflatten(in_batched[1]), *tree.unflatten(leaves)))
            return out, [True] * len(out)

        return jax.tree.unflatten(jax.tree.structure(shapes), one(list(closed.consts), leaves))

    return called
