"""How a batch of simulations runs on a CPU: member by member, each in one native loop, spread over the cores.

`jax.vmap` of a loop runs the batch in lockstep: every operation of a step sweeps over all members, every loop goes on until the last
member is done. That is what a GPU needs. On a CPU it is 3 to 10 times slower than running the members one after the other, because the
loop of one member stays in registers and first-level cache. `lanewise` makes `vmap` do that; `differentiable` keeps it so under
forward- and reverse-mode differentiation.
"""

import functools
import itertools
import os

import jax
import jax.numpy as jnp
from jax import core, lax
from jax.custom_batching import custom_vmap
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

#: Independent loops that a batch is split into; each runs on a core of its own, and is compiled on its own.
STRANDS = min(os.cpu_count() or 1, 4)


def lanewise(function):
    """``function``, whose `vmap` maps the members of a batch one by one instead of in lockstep."""

    @custom_vmap
    def wrapped(*args):
        return function(*args)

    @wrapped.def_vmap
    def _rule(axis_size, in_batched, *args):
        del axis_size
        leaves, tree = jax.tree.flatten(args)
        out = _map(lambda *leaves: wrapped(*jax.tree.unflatten(tree, leaves)), leaves, jax.tree.leaves(in_batched))
        return out, jax.tree.map(lambda _: True, out)

    return wrapped


def _map(function, args, mapped):
    """`vmap` of a function over the leading axes of those ``args`` that are mapped, member by member in a few independent loops."""
    moving = [x for x, m in zip(args, mapped, strict=True) if m]
    size = moving[0].shape[0]

    def member(moving):
        return function(*_replace(args, mapped, moving))

    strands = STRANDS if size >= 2 * STRANDS else 1
    bounds = [size * i // strands for i in range(strands + 1)]
    parts = [lax.map(member, [x[a:b] for x in moving]) for a, b in itertools.pairwise(bounds)]
    return jax.tree.map(lambda *pieces: jnp.concatenate(pieces) if strands > 1 else pieces[0], *parts)


def _replace(values, chosen, new):
    """``values`` with those that are chosen replaced, in order, by ``new``."""
    new = iter(new)
    return [next(new) if c else x for x, c in zip(values, chosen, strict=True)]


def differentiable(function):
    """``function(args) -> arrays of floats`` that runs `lanewise`, and whose derivatives in both modes do as well.

    Reverse mode of a batch computes each member forward again and then backward, so that what is stored on the way is that of a few
    members at a time, not of the whole batch.
    """

    @jax.custom_jvp
    def wrapped(args):
        return lanewise(function)(args)

    def jvp(primals, tangents):
        (args,), (tangents,) = primals, tangents
        leaves, tree = jax.tree.flatten(args)
        directions, _ = jax.tree.flatten(tangents, is_leaf=lambda x: isinstance(x, jax.custom_derivatives.SymbolicZero))
        moves = [not isinstance(d, jax.custom_derivatives.SymbolicZero) for d in directions]
        directions = [d for d, m in zip(directions, moves, strict=True) if m]

        def partial(leaves):
            """The function of the leaves that have a tangent."""

            def of(moving):
                return function(jax.tree.unflatten(tree, _replace(leaves, moves, moving)))

            return of, [x for x, m in zip(leaves, moves, strict=True) if m]

        # Jitted, so that the many transformations of these two share what they trace.
        @jax.jit
        def push(leaves, directions):
            of, moving = partial(leaves)
            return tuple(jax.tree.leaves(jax.jvp(of, (moving,), (list(directions),))[1]))

        @jax.jit
        def pull(leaves, cotangent):
            of, moving = partial(leaves)
            _, back = jax.vjp(lambda moving: tuple(jax.tree.leaves(of(moving))), moving)
            return tuple(back(tuple(cotangent))[0])

        out = wrapped(args)
        out_tree = jax.tree.structure(out)
        return out, jax.tree.unflatten(out_tree, _linear.bind(*leaves, *directions, push=push, pull=pull, n=len(leaves), transposed=False))

    wrapped.defjvp(jvp, symbolic_zeros=True)
    return wrapped


# A linear map of ``directions`` at the point ``leaves`` whose transpose is given, not derived: JAX has such a primitive, `linear_call`,
# but that one does not batch. ``push`` and ``pull`` map (leaves, tuple of arrays) to a tuple of arrays and are each other's transpose.
_linear = Primitive("jaxnsd_linear")
_linear.multiple_results = True


def _apply(*args, push, pull, n, transposed):
    return list((pull if transposed else push)(args[:n], args[n:]))


def _transpose(cotangents, *args, n, transposed, **maps):
    shapes = jax.eval_shape(maps["pull" if transposed else "push"], args[:n], tuple(x.aval for x in args[n:]))
    cotangents = [jnp.zeros(s.shape, s.dtype) if type(c) is ad.Zero else c for c, s in zip(cotangents, shapes, strict=True)]
    return [None] * n + _linear.bind(*args[:n], *cotangents, n=n, transposed=not transposed, **maps)


def _jvp(primals, tangents, push, pull, n, transposed):
    tangents = [jnp.zeros(jnp.shape(x), jnp.result_type(x)) if type(t) is ad.Zero else t for x, t in zip(primals, tangents, strict=True)]
    leaves, x, d_leaves, dx = tuple(primals[:n]), tuple(primals[n:]), tuple(tangents[:n]), tuple(tangents[n:])
    bind = functools.partial(_linear.bind, push=push, pull=pull, n=n, transposed=transposed)
    # Reverse mode through a loop forgets custom derivative rules, so `pull` must not be differentiated at its point: its derivative
    # is the transpose of that of `push`, which is forward over forward.
    change = lambda x: jax.jvp(lambda leaves: push(leaves, x), (leaves,), (d_leaves,))[1]  # noqa: E731
    if transposed:
        directions = jax.eval_shape(pull, leaves, x)
        _, back = jax.vjp(change, tuple(jnp.zeros(s.shape, s.dtype) for s in directions))
        turned = back(x)[0]
    else:
        turned = change(x)
    return bind(*leaves, *x), [a + b for a, b in zip(turned, bind(*leaves, *dx), strict=True)]


def _batch(args, axes, n, transposed, **maps):
    args = [x if axis is None else jnp.moveaxis(x, axis, 0) for x, axis in zip(args, axes, strict=True)]
    mapped = [axis is not None for axis in axes]
    if any(mapped[:n]):
        out = _map(lambda *args: _linear.bind(*args, n=n, transposed=transposed, **maps), args, mapped)
    else:
        # Many directions at one point: lockstep does the work of the point once.
        size = next(x.shape[0] for x, m in zip(args, mapped, strict=True) if m)
        directions = [x if m else jnp.broadcast_to(x, (size, *x.shape)) for x, m in zip(args[n:], mapped[n:], strict=True)]
        many = {name: jax.vmap(function, in_axes=(None, 0)) for name, function in maps.items()}
        out = _linear.bind(*args[:n], *directions, n=n, transposed=transposed, **many)
    return list(out), [0] * len(out)


def _shapes(*args, **params):
    return [core.ShapedArray(s.shape, s.dtype) for s in jax.eval_shape(functools.partial(_apply, **params), *args)]


_linear.def_impl(_apply)
_linear.def_abstract_eval(_shapes)
mlir.register_lowering(_linear, mlir.lower_fun(_apply, multiple_results=True))
ad.primitive_jvps[_linear] = _jvp
ad.primitive_transposes[_linear] = _transpose
batching.primitive_batchers[_linear] = _batch
