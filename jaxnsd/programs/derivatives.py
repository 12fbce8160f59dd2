"""The one derivative rule of the house, which loops keep.

Reverse mode takes a loop apart, and every `jax.custom_jvp` in its body with it: what is differentiated a second time is then the code
behind the rule, iterations and all, in which nothing depends on anything. A primitive stays what it is. So `with_rule` is one, and
derivatives of any order, in any mix of the modes, go by the rule. What has no derivative gets `undefined`: not a number, never a zero.

Of the arguments of a step few move: in a gradient with respect to the start all parameters of a system stay. A rule is told so, by `ZERO`
in place of a tangent, and does not multiply with zeros.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..native.jax_internals import Primitive, ShapedArray, ad, batching, jaxpr_as_fun, lowered_as, without_consts
from .pytrees import ZERO, chosen, in_front, replaced


def _flat(tangents):
    """Leaves of tangents, `ZERO` among them."""
    return jax.tree.leaves(tangents, is_leaf=lambda x: x is ZERO)


def pushed(function, primals, tangents, *, passed_on=False):
    """``(out, d_out)`` as of `jax.jvp`, where tangents may be `ZERO`.

    passed_on: whether ``d_out`` is `ZERO`, too, of what is handed on as it is and does not move; else all of it is arrays
    """
    leaves, tree = jax.tree.flatten(primals)
    directions = _flat(tangents)
    moves = [t is not ZERO for t in directions]
    still = {id(x) for x in chosen(leaves, [not m for m in moves])}
    handed_on = []

    def of_moving(*moving):
        out = function(*tree.unflatten(replaced(leaves, moves, moving)))
        handed_on[:] = [id(x) in still for x in jax.tree.leaves(out)]
        return out

    if any(moves):
        out, d_out = jax.jvp(of_moving, tuple(chosen(leaves, moves)), tuple(chosen(directions, moves)))
    else:
        out = of_moving()
        d_out = no_tangents(out)
    if passed_on:
        d_leaves = [ZERO if same else d for same, d in zip(handed_on, jax.tree.leaves(d_out), strict=True)]
        d_out = jax.tree.unflatten(jax.tree.structure(out), d_leaves)
    return out, d_out


def no_tangents(primals):
    """Tangents of what does not move, all of them as arrays."""
    return jax.tree.map(_no_tangent, primals)


def _no_tangent(x):
    """The tangent of what does not move, as an array."""
    return jnp.zeros_like(x) if is_float(x) else np.zeros(jnp.shape(x), jax.dtypes.float0)


def instantiated(primals, tangents):
    """``tangents`` with an array in place of each `ZERO`."""
    leaves, tree = jax.tree.flatten(primals)
    return tree.unflatten([_no_tangent(x) if t is ZERO else t for x, t in zip(leaves, _flat(tangents), strict=True)])


def with_rule(function, rule):
    """``function(*args)``, with ``rule(primals, tangents) -> (out, d_out)`` in place of its derivative, as `jax.custom_jvp` has it.

    Of what does not move the tangent is `ZERO`, of whole numbers always: `pushed` takes it as it is, `instantiated` makes arrays of it; in
    ``d_out`` it may be as well. For second derivatives ``out`` has to depend on the primals as the function does: by a call of what
    `with_rule` returned. Neither function nor rule may close over values that are differentiated.
    """

    @functools.wraps(function)
    def ruled(*args):
        leaves, tree = jax.tree.flatten(args)
        jaxpr, shapes = jax.make_jaxpr(lambda *leaves: function(*tree.unflatten(leaves)), return_shape=True)(*leaves)
        out_tree, consts = jax.tree.structure(shapes), jaxpr.consts

        def flat(*leaves):
            return jaxpr_as_fun(jaxpr.replace(consts=leaves[: len(consts)]))(*leaves[len(consts) :])

        flat.jaxpr = without_consts(jaxpr)  # for those who ask what it consists of; its constants are arguments

        def flat_rule(primals, tangents):
            out, d_out = rule(tree.unflatten(primals[len(consts) :]), tree.unflatten(tangents[len(consts) :]))
            return tuple(jax.tree.leaves(out)), tuple(_flat(d_out))

        shapes = tuple(ShapedArray(s.shape, s.dtype) for s in jax.tree.leaves(shapes))
        return out_tree.unflatten(_ruled.bind(*consts, *leaves, function=flat, rule=flat_rule, shapes=shapes))

    return ruled


def traced_once(function):
    """``function``, traced once for arguments of one kind: what transformations are made of is its jaxpr.

    They then meet its operations alone, not once more the Python code that led to them, which takes longer. It must not close over
    values that are traced.
    """
    known = {}

    @functools.wraps(function)
    def traced(*args):
        leaves, tree = jax.tree.flatten(args)
        kind = tree, tuple((jnp.shape(x), jnp.result_type(x), jax.typeof(x).weak_type) for x in leaves)
        if kind not in known:
            shapes = [jax.ShapeDtypeStruct(*of[:2], weak_type=of[2]) for of in kind[1]]
            jaxpr, out = jax.make_jaxpr(lambda *leaves: function(*tree.unflatten(leaves)), return_shape=True)(*shapes)
            known[kind] = jaxpr_as_fun(jaxpr), jax.tree.structure(out)
        flat, out = known[kind]
        return out.unflatten(flat(*leaves))

    return traced


def moving(x, args):
    """``x``, of which every array of floats counts as a function of ``args``.

    What a loop carries is a function of them from its second pass on. Known before the first, the derivative of its body is traced once.
    """

    def rule(primals, tangents):
        changes, d_args = instantiated(primals[0], tangents[0]), jax.tree.leaves(tangents[1])
        if d_args:
            # Zero, but not known to be.
            nothing = jnp.where(False, sum(map(jnp.sum, d_args)), 0)
            changes = jax.tree.map(lambda x, change: change + nothing if is_float(x) else change, primals[0], changes)
        return moving(*primals), changes

    return with_rule(lambda x, args: x, rule)(x, args)


def is_float(x):
    """Whether an array is one of floats; tangents of whole numbers are not."""
    return jnp.issubdtype(jnp.result_type(x), jnp.floating)


def undefined(x, args):
    """``x``, which has no derivative with respect to ``args``: NaN where they move; in reverse mode where ``x`` matters."""

    def rule(primals, tangents):
        x, args = primals
        return undefined(x, args), instantiated(x, tangents[0]) + not_a_number(tangents[1], jnp.result_type(x))

    return with_rule(lambda x, args: x, rule)(x, args)


@jax.custom_jvp
def undefined_unless(ok, x, args):
    """``x``, a list of arrays, whose derivatives with respect to ``args``, a list too, of floats, are NaN, all of them, where not ``ok``.

    It stands outside of all loops, so that `jax.custom_jvp` serves, which knows of the devices of a `shard_map`.
    """
    del ok, args
    return x


@undefined_unless.defjvp
def _undefined_unless(primals, tangents):
    (ok, x, args), (_, d_x, d_args) = primals, tangents
    # In forward mode what is added makes a NaN of zeros, too; in reverse mode each cotangent becomes one where it does not vanish.
    lost = [lax.select_n(ok, not_a_number(d_args, d.dtype), jnp.zeros((), d.dtype)) for d in d_x]
    d_x = [lax.select_n(ok, _nothing.bind(d), d) + no for d, no in zip(d_x, lost, strict=True)]
    return undefined_unless(ok, x, args), d_x


def not_a_number(tangents, dtype):
    """A scalar for the tangent of what has none: NaN where one of the tangents does not vanish, else zero; likewise transposed."""
    return sum((jnp.sum(_nothing.bind(jnp.asarray(t))) for t in jax.tree.leaves(tangents)), jnp.zeros((), dtype))


# A product with NaN would make a NaN of what is not there as well: of a branch that was not taken, of an output that is not used.
_nothing = Primitive("jaxnsd_undefined")
_nothing.def_abstract_eval(lambda t: t)
_nothing.def_impl(lambda t: jnp.where(t == 0, t, jnp.nan))
lowered_as(_nothing, lambda t: jnp.where(t == 0, t, jnp.nan))
ad.deflinear2(_nothing, lambda cotangent, _: [_nothing.bind(cotangent)])
batching.defvectorized(_nothing)

_ruled = Primitive("jaxnsd_rule")
_ruled.multiple_results = True


def _value(*args, function, rule, shapes):
    del rule, shapes
    return list(function(*args))


def _shapes(*args, function, rule, shapes):
    del args, function, rule
    return list(shapes)


def _jvp(primals, tangents, *, function, rule, shapes):
    del function, shapes
    out, d_out = rule(primals, [ZERO if type(t) is ad.Zero or _is_none(t) else t for t in tangents])
    still = [d is ZERO or _is_none(d) for d in d_out]
    return list(out), [ad.Zero(jax.typeof(o).to_tangent_aval()) if s else d for o, d, s in zip(out, d_out, still, strict=True)]


def _is_none(tangent):
    """Whether it is the tangent of a whole number."""
    return jnp.result_type(tangent) == jax.dtypes.float0


def _batch(args, axes, *, function, rule, shapes):
    args = in_front(args, axes)
    size, axes = next(x.shape[0] for x, axis in zip(args, axes, strict=True) if axis is not None), [None if a is None else 0 for a in axes]
    many, many_rule = jax.vmap(function, tuple(axes), axis_size=size), jax.vmap(rule, (axes, axes), axis_size=size)
    shapes = tuple(ShapedArray((size, *s.shape), s.dtype) for s in shapes)

    # Not `many` itself: `vmap` hands on what the function has said of itself, which is true of one member.
    def function_of_all(*args):
        return many(*args)

    def rule_of_all(primals, tangents):
        return many_rule(list(primals), list(tangents))

    out = _ruled.bind(*args, function=function_of_all, rule=rule_of_all, shapes=shapes)
    return out, [0] * len(out)


_ruled.def_impl(_value)
_ruled.def_abstract_eval(_shapes)
lowered_as(_ruled, _value, multiple_results=True)
ad.primitive_jvps[_ruled] = _jvp
batching.primitive_batchers[_ruled] = _batch
