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

    Reverse mode of a single run stores on the way forward what the way back needs. That of a batch computes each member forward again
    and then backward, so that what is stored is that of a few members at a time, not of the whole batch.
    """

    @jax.custom_jvp
    def wrapped(args, value):
        """The value, where it is not known yet."""
        return lanewise(function)(args) if value is None else value

    def jvp(primals, tangents):
        args, value = primals
        leaves, tree = jax.tree.flatten(args)
        directions, _ = jax.tree.flatten(tangents[0], is_leaf=lambda x: isinstance(x, jax.custom_derivatives.SymbolicZero))
        moves = [not isinstance(d, jax.custom_derivatives.SymbolicZero) for d in directions]
        directions = [d for d, m in zip(directions, moves, strict=True) if m]

        def partial(leaves):
            """The function of the leaves that have a tangent."""

            def of(moving):
                return function(jax.tree.unflatten(tree, _replace(leaves, moves, moving)))

            return of, [x for x, m in zip(leaves, moves, strict=True) if m]

        # Jitted, so that the many transformations of these share what they trace.
        @jax.jit
        def push(leaves, directions):
            of, moving = partial(leaves)
            return tuple(jax.tree.leaves(jax.jvp(of, (moving,), (list(directions),))[1]))

        @jax.jit
        def forward(leaves):
            """The value, and what the way back needs."""
            nonlocal back_tree
            of, moving = partial(leaves)
            value, back = jax.vjp(of, moving)
            residuals, back_tree = jax.tree.flatten(back)
            return value, residuals

        @jax.jit
        def back(residuals, cotangents):
            return tuple(jax.tree.unflatten(back_tree, residuals)(jax.tree.unflatten(out_tree, cotangents))[0])

        def pull(leaves, cotangents):
            return back(forward(leaves)[1], cotangents)

        back_tree, residuals = None, []
        if value is None:
            value, residuals = _stored(function, tree, forward)(*lax.stop_gradient(leaves))
        out = wrapped(args, value)
        flat, out_tree = jax.tree.flatten(out)
        shapes = tuple(tuple(core.ShapedArray(x.shape, x.dtype) for x in arrays) for arrays in (flat, directions))
        maps = {"push": push, "pull": pull, "back": back if residuals else None, "shapes": shapes, "transposed": False}
        return out, jax.tree.unflatten(out_tree, _linear.bind(*leaves, *residuals, *directions, n=len(leaves), k=len(residuals), **maps))

    wrapped.defjvp(jvp, symbolic_zeros=True)
    return lambda args: wrapped(args, None)


def _stored(function, tree, forward):
    """``forward(leaves) -> (value, residuals)``, which for a batch gives the value alone, and zeros."""

    @custom_vmap
    def stored(*leaves):
        return forward(list(leaves))

    @stored.def_vmap
    def _rule(axis_size, in_batched, *leaves):
        del axis_size
        value = jax.vmap(lambda *leaves: lanewise(function)(jax.tree.unflatten(tree, leaves)), [0 if m else None for m in in_batched])
        one = [jax.ShapeDtypeStruct(x.shape[m:], x.dtype) for x, m in zip(leaves, in_batched, strict=True)]
        nothing = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(forward, one)[1])
        out = value(*leaves), nothing
        return out, tuple(jax.tree.map(lambda _, m=m: m, x) for x, m in zip(out, (True, False), strict=True))

    return stored


# A linear map of ``directions`` at the point ``leaves`` whose transpose is given, not derived: JAX has such a primitive, `linear_call`,
# but that one does not batch. ``push`` and ``pull`` map (leaves, tuple of arrays) to a tuple of arrays and are each other's transpose;
# ``back``, or None, is `pull` from ``residuals`` in place of the leaves. ``shapes`` are those of the images of `push` and of `pull`.
_linear = Primitive("jaxnsd_linear")
_linear.multiple_results = True


def _apply(*args, push, pull, back, shapes, n, k, transposed):
    del shapes
    leaves, residuals, x = args[:n], args[n : n + k], args[n + k :]
    if transposed and back:
        return list(back(residuals, x))
    return list((pull if transposed else push)(list(leaves), x))


def _transpose(cotangents, *args, n, k, shapes, transposed, **maps):
    cotangents = [jnp.zeros(s.shape, s.dtype) if type(c) is ad.Zero else c for c, s in zip(cotangents, shapes[transposed], strict=True)]
    point = args[: n + k]
    return [None] * (n + k) + _linear.bind(*point, *cotangents, n=n, k=k, shapes=shapes, transposed=not transposed, **maps)


def _jvp(primals, tangents, push, pull, back, shapes, n, k, transposed):
    tangents = [jnp.zeros(jnp.shape(x), jnp.result_type(x)) if type(t) is ad.Zero else t for x, t in zip(primals, tangents, strict=True)]
    point, leaves, x = primals[: n + k], list(primals[:n]), tuple(primals[n + k :])
    d_leaves, dx = list(tangents[:n]), tuple(tangents[n + k :])
    bind = functools.partial(_linear.bind, push=push, pull=pull, back=back, shapes=shapes, n=n, k=k, transposed=transposed)
    # Reverse mode through a loop forgets custom derivative rules, so `pull` must not be differentiated at its point: its derivative
    # is the transpose of that of `push`, which is forward over forward.
    change = lambda x: jax.jvp(lambda leaves: push(leaves, x), (leaves,), (d_leaves,))[1]  # noqa: E731
    if transposed:
        _, turn = jax.vjp(change, tuple(jnp.zeros(s.shape, s.dtype) for s in shapes[1]))
        turned = turn(x)[0]
    else:
        turned = change(x)
    return bind(*point, *x), [a + b for a, b in zip(turned, bind(*point, *dx), strict=True)]


def _batch(args, axes, n, k, back, shapes, transposed, **maps):
    args = [x if axis is None else jnp.moveaxis(x, axis, 0) for x, axis in zip(args, axes, strict=True)]
    mapped = [axis is not None for axis in axes]
    if any(mapped[:n]):
        # `_stored` has stored nothing.
        bind = functools.partial(_linear.bind, n=n, k=0, back=None, shapes=shapes, transposed=transposed, **maps)
        out = _map(bind, args[:n] + args[n + k :], mapped[:n] + mapped[n + k :])
    else:
        # Many directions at one point: lockstep does the work of the point once.
        point, x = args[: n + k], args[n + k :]
        size = next(y.shape[0] for y, m in zip(x, mapped[n + k :], strict=True) if m)
        directions = [y if m else jnp.broadcast_to(y, (size, *y.shape)) for y, m in zip(x, mapped[n + k :], strict=True)]
        many = {name: function and jax.vmap(function, in_axes=(None, 0)) for name, function in {**maps, "back": back}.items()}
        wide = tuple(tuple(core.ShapedArray((size, *s.shape), s.dtype) for s in part) for part in shapes)
        out = _linear.bind(*point, *directions, n=n, k=k, shapes=wide, transposed=transposed, **many)
    return list(out), [0] * len(out)


def _shapes(*args, shapes, transposed, **params):
    del args, params
    return list(shapes[transposed])


_linear.def_impl(_apply)
_linear.def_abstract_eval(_shapes)
mlir.register_lowering(_linear, mlir.lower_fun(_apply, multiple_results=True))
ad.primitive_jvps[_linear] = _jvp
ad.primitive_transposes[_linear] = _transpose
batching.primitive_batchers[_linear] = _batch
