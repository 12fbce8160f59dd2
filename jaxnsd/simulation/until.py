"""The condition at which a run stops: a function of the user's, as a pytree of the arrays that it reads.

A function has no value that `jit` could compare, and a lambda that is written in the call is a new one every time. So it is traced in every
call, which takes some milliseconds: what it computes is a part of the program, compared by what it says, and the numbers in it, a threshold
that `vmap` or `jit` is tracing say, are arguments.

A function that returns a number stops the motion where it comes to zero from above. The loop asks for its sign at the nodes alone; where
exactly in the last step that is, `Until.root` finds once, after the loop, on the motion between the nodes.
"""

from collections.abc import Hashable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..mechanics import signatures
from ..native.jax_internals import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun, new_variable
from ..programs import runs
from ..programs.backward import identity
from ..programs.given import shown, takes
from ..programs.pytrees import chosen, pytree, replaced, static


class _Program:
    """A function of ``(*constants, t, q, u)``, equal to another one that computes the same in the same way."""

    def __init__(self, jaxpr):
        # What is known by its identity lives on with it.
        self.closed = ClosedJaxpr(jaxpr, ())
        self.key = _said(self.closed)

    def __eq__(self, other):
        return isinstance(other, _Program) and self.key == other.key

    def __hash__(self):
        return hash(self.key)

    def __call__(self, *args):
        return jaxpr_as_fun(self.closed)(*args)[0]


@pytree
class Until:
    """A condition: what it computes, and the arrays that it closes over; ``exact``: whether that is a number, which comes to zero."""

    constants: Any
    program: Any = static()
    exact: bool = static(default=False)

    def __call__(self, t, q, u):
        """What the function returns; nothing is differentiated by it."""
        return self.program(*lax.stop_gradient((*self.constants, t, q, u)))

    def root(self, motion, data, t, length, impacts):
        """``(s, jumps)``: the time s after t, in a step of this length, at which the number comes to zero, with its derivatives.

        motion:  ``motion(data, s) -> (q, u)`` in this step
        impacts: times after t of the impacts in it, or NaN. Where the number jumps at one of them s is its time
        """

        def number(given, s):
            constants, data, t = given
            # On the devices of a `shard_map` numbers are the same for all of them that the motion is not.
            return jnp.asarray(self.program(*runs.alike([*map(jnp.asarray, constants), t + s, *motion(data, s)])), s.dtype)

        given = self.constants, data, t
        still = lax.stop_gradient(given)

        def half(_, bounds):
            low, high = bounds
            middle = 0.5 * (low + high)
            above = number(still, middle) > 0
            return jnp.where(above, middle, low), jnp.where(above, high, middle)

        # A bit a turn, of all that there are.
        low, high, *_ = runs.alike(jax.tree.leaves((jnp.zeros_like(length), length, given)))
        found = s = lax.fori_loop(0, 60, half, lax.stop_gradient((low, high)))[1]
        # From the root on, each step of Newton's method doubles the order up to which derivatives are right: 1, 3.
        for _ in range(2):
            value, slope = jax.jvp(lambda s: number(given, s), (s,), (jnp.ones_like(s),))
            s = s - value / jnp.where(slope < 0, slope, -jnp.inf)
        if not impacts.size:
            return s, jnp.zeros((), bool)
        apart = jnp.nan_to_num(jnp.abs(lax.stop_gradient(impacts) - found), nan=jnp.inf)
        nearest = jnp.argmin(apart)
        jumps = (apart[nearest] < 1e-9 * length) & (jnp.abs(number(still, found)) > 1e-6 * jnp.abs(number(still, 0 * found)))
        return jnp.where(jumps, jnp.where(jumps, impacts[nearest], 0.0), s), jumps


def traced(function, q, u):
    """`Until` of a function ``until(t, q, u)``, a boolean or a number; raises TypeError or ValueError for what is none."""
    if not callable(function):
        raise TypeError(f"simulate: until must be a function until(t, q, u) that returns one boolean, got {shown(function)}")
    takes("simulate: until", function, "t, q, u")
    t, q, u = (jax.ShapeDtypeStruct(shape, q.dtype) for shape in ((), q.shape, u.shape))
    closed, out = signatures.traced("until(t, q, u)", function, t, q, u)
    leaves = jax.tree.leaves(out)
    if len(leaves) != 1 or out is not leaves[0]:
        raise TypeError(f"simulate: until must return one boolean, got {shown(out)}; make one with & or jnp.any")
    exact = jnp.issubdtype(out.dtype, jnp.floating)
    if out.dtype != bool and not exact:
        raise TypeError(f"simulate: until must return one boolean, or a number that comes to zero, got {out.dtype}")
    if out.shape and exact:
        raise ValueError(f"simulate: until must return one number, got shape {out.shape}; make one of them with jnp.min or jnp.max")
    if out.shape:
        raise ValueError(f"simulate: until must return one boolean, got shape {out.shape}; make one of them with jnp.any or jnp.all")
    return _of(closed, exact)


def _of(closed, exact):
    """`Until` of a closed jaxpr: with another number in the place of a number it is the same program."""
    jaxpr, numbers, equations = closed.jaxpr, {}, []
    for equation in jaxpr.eqns:
        floats = [isinstance(x, Literal) and np.issubdtype(x.aval.dtype, np.floating) for x in equation.invars]
        new = [new_variable(x.aval) for x in chosen(equation.invars, floats)]
        numbers.update(zip(new, chosen(equation.invars, floats), strict=True))
        equations.append(equation.replace(invars=replaced(equation.invars, floats, new)))
    jaxpr = jaxpr.replace(constvars=[], invars=[*numbers, *jaxpr.constvars, *jaxpr.invars], eqns=equations)
    return Until((*(np.asarray(x.val, x.aval.dtype) for x in numbers.values()), *closed.consts), _Program(jaxpr), exact)


def _said(jaxpr):
    """What a jaxpr says, as a value that can be compared: its variables are numbered in the order in which they come."""
    jaxpr, constants = getattr(jaxpr, "jaxpr", jaxpr), getattr(jaxpr, "consts", ())
    number = {}

    def atoms(all):
        return tuple(identity(x) if isinstance(x, Literal) else (number.setdefault(x, len(number)), str(x.aval)) for x in all)

    def parameter(x):
        if isinstance(x, (Jaxpr, ClosedJaxpr)):
            return _said(x)
        if isinstance(x, (tuple, list)):
            return tuple(map(parameter, x))
        # What JAX compares by value; a number not: 0 is -0.
        return x if isinstance(x, Hashable) and not isinstance(x, (int, float, complex, np.generic)) else identity(x)

    begin = atoms((*jaxpr.constvars, *jaxpr.invars))
    equations = tuple(
        (x.primitive, atoms(x.invars), atoms(x.outvars), tuple((name, parameter(x.params[name])) for name in sorted(x.params)))
        for x in jaxpr.eqns
    )
    return begin, tuple(map(identity, constants)), equations, atoms(jaxpr.outvars)
