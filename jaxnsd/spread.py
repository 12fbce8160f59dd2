"""A batch on all cores of a CPU: blocks of its members, each a call of one compiled program, on threads.

XLA runs the loops of one program one after the other, and so `jax.vmap` of a simulation uses one core (see `lanes`). Calls of a program
from several threads run side by side.
"""

import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .jax_internals import flatten_axes, is_traced
from .pytrees import chosen, replaced

#: Blocks for each core: members take unequal time, and a core that is done goes on with another block.
BLOCKS = 4


def spread(function: Callable[..., Any], in_axes: Any = 0) -> Callable[..., Any]:
    """``jax.jit(jax.vmap(function, in_axes))`` on all cores of a CPU.

    Members are shared among the cores in blocks of one size, so that one program is compiled, for each shape of the arguments. What it
    returns is what `jax.vmap` does. Any function that simulates will do, its gradient too: ``spread(jax.grad(loss))(starts)``. Within
    `jit`, `grad` or `vmap`, where JAX computes on something else than a CPU, of arrays that are shared among devices, and while
    ``jax_debug_nans`` is on, it is `jax.vmap`.

    Parameters
    ----------
    function:  of arguments of one member, pytrees of arrays
    in_axes:   as of `jax.vmap`: the axis of the batch in each argument, or None where all members share it; of what is given by name it is
               the first

    The function raises ValueError where arguments have no axis of a batch, or axes of several lengths.
    """
    many = jax.jit(jax.vmap(function, in_axes))
    programs = {}

    @functools.wraps(function)
    def of_all(*args, **kwargs):
        leaves, tree = jax.tree.flatten((args, kwargs))
        traced = any(is_traced(x) for x in leaves)
        # A compiled program does not say where a value that is not a number came from, `jit` does.
        watched = jax.config.jax_disable_jit or jax.config.jax_debug_nans or jax.config.jax_debug_infs
        if traced or watched or jax.default_backend() != "cpu":
            return many(*args, **kwargs)
        leaves = [jnp.asarray(x) for x in leaves]
        if any(len(x.sharding.device_set) > 1 for x in leaves):
            return many(*args, **kwargs)
        axes = flatten_axes("spread in_axes", tree, (tuple(in_axes) if isinstance(in_axes, list) else in_axes, 0))
        n = _members(leaves, axes)
        size = -(-n // min(n, BLOCKS * cores())) if n else 0
        if size in (0, n):
            return many(*args, **kwargs)
        mapped = [axis is not None for axis in axes]
        moving = list(zip(chosen(leaves, mapped), chosen(axes, mapped), strict=True))

        def block(start):
            rows = [lax.slice_in_dim(x, start, start + size, axis=axis) for x, axis in moving]
            return tree.unflatten(replaced(leaves, mapped, rows))

        # The last one has members of the one before as well, so that all are of one size.
        starts = [min(start, n - size) for start in range(0, n, size)]
        # Cut and compiled here: what is set for this thread alone, the precision say, another one does not know.
        given = [block(start) for start in starts]
        parts = jax.tree.leaves(given[0])
        where = jax.config.jax_default_device, *(x.sharding for x in parts)
        kind = tree, jnp.result_type(float), where, *map(jax.typeof, parts)
        if kind not in programs:
            programs[kind] = many.lower(*given[0][0], **given[0][1]).compile()
        blocks = _in_threads(lambda x: jax.block_until_ready(programs[kind](*x[0], **x[1])), given)
        again = size * len(starts) - n
        blocks[-1] = jax.tree.map(lambda x: x[again:], blocks[-1])
        return jax.tree.map(lambda *x: jnp.concatenate(x), *blocks)

    return of_all


def cores():
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _members(leaves, axes):
    """Number of members."""
    sizes = {x.shape[axis] if -x.ndim <= axis < x.ndim else None for x, axis in zip(leaves, axes, strict=True) if axis is not None}
    if len(sizes) != 1 or None in sizes:
        shapes = ", ".join(str(x.shape) for x, axis in zip(leaves, axes, strict=True) if axis is not None) or "none"
        raise ValueError(
            f"spread: the arguments that are mapped need an axis of the batch, of one length, and have the shapes {shapes}; "
            "in_axes says which axis it is, None that all members share an argument"
        )
    return sizes.pop()


def _in_threads(function, values):
    """``[function(x) for x in values]``, on as many threads as there are cores; where one fails, what has not begun does not begin."""
    with ThreadPoolExecutor(cores(), "jaxnsd-spread") as pool:
        return list(pool.map(function, values))
