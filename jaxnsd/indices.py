"""Constant indices out of bounds, found in what a function traces to: JAX clamps them in silence, and ``q[2]`` of two is ``q[1]``."""

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr
from jax.lax import GatherScatterMode


def _broadcast(x, shape, broadcast_dimensions, **_):
    full = [1] * len(shape)
    for size, axis in zip(x.shape, broadcast_dimensions, strict=True):
        full[axis] = size
    return np.broadcast_to(x.reshape(full), shape)


def _slice(x, start_indices, limit_indices, strides):
    return x[tuple(map(slice, start_indices, limit_indices, strides or (None,) * x.ndim))]


#: Primitives on whole numbers between an index as written and the operation that reads there; in NumPy, which compiles nothing.
ARITHMETIC = {
    "lt": np.less,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "select_n": lambda which, *cases: np.choose(which.astype(int), cases),
}
#: Those that take parameters.
SHAPING = {
    "convert_element_type": lambda x, new_dtype, **_: x.astype(new_dtype),
    "broadcast_in_dim": _broadcast,
    "reshape": lambda x, new_sizes, **_: x.reshape(new_sizes),
    "squeeze": lambda x, dimensions: np.squeeze(x, dimensions),
    "concatenate": lambda *x, dimension: np.concatenate(x, dimension),
    "slice": _slice,
}


def out_of_bounds(closed: ClosedJaxpr) -> str | None:
    """What a function reads out of bounds, or None."""
    return _search(closed.jaxpr, [_value(x) for x in closed.consts], [None] * len(closed.jaxpr.invars))


def _value(x):
    """A known whole number or array of them; None for all else."""
    if isinstance(x, jax.core.Tracer):
        return None
    x = np.asarray(x)
    return x if x.dtype.kind in "iub" else None


def _search(jaxpr, consts, args):
    """The first index out of bounds in a jaxpr of which some inputs are known."""
    values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        known = [_value(v.val) if hasattr(v, "val") else values.get(v) for v in eqn.invars]
        found = _index(eqn, known) or _inside(eqn, known)
        if found:
            return found
        if all(x is not None for x in known) and name in (*ARITHMETIC, *SHAPING):
            values[eqn.outvars[0]] = np.asarray(ARITHMETIC[name](*known) if name in ARITHMETIC else SHAPING[name](*known, **eqn.params))
    return None


def _inside(eqn, known):
    """The first index out of bounds in the jaxprs that an operation holds; what a branch or a loop reads depends on values."""
    if eqn.primitive.name in ("cond", "while"):
        return None
    for param in eqn.params.values():
        jaxpr = getattr(param, "jaxpr", param)
        if not hasattr(jaxpr, "eqns"):
            continue
        consts = [_value(x) for x in getattr(param, "consts", ())] or [None] * len(jaxpr.constvars)
        same = eqn.primitive.name != "scan" and len(jaxpr.invars) == len(eqn.invars)
        found = _search(jaxpr, consts, known if same else [None] * len(jaxpr.invars))
        if found:
            return found
    return None


def _index(eqn, known):
    """What an operation reads or writes out of bounds, in words."""
    name, params = eqn.primitive.name, eqn.params
    if name in ("dynamic_slice", "dynamic_update_slice"):
        shape = eqn.invars[0].aval.shape
        first = 1 if name == "dynamic_slice" else 2
        sizes = params["slice_sizes"] if first == 1 else eqn.invars[1].aval.shape
        starts = {axis: x for axis, x in enumerate(known[first:])}
    elif name == "gather" and params["mode"] != GatherScatterMode.FILL_OR_DROP:
        shape, sizes = eqn.invars[0].aval.shape, params["slice_sizes"]
        axes = params["dimension_numbers"].start_index_map
        starts = {int(axis): None if known[1] is None else known[1][..., i] for i, axis in enumerate(axes)}
    elif name.startswith("scatter"):
        shape, numbers = eqn.invars[0].aval.shape, params["dimension_numbers"]
        starts = {int(axis): None if known[1] is None else known[1][..., i] for i, axis in enumerate(numbers.scatter_dims_to_operand_dims)}
        starts = {axis: x for axis, x in starts.items() if axis in numbers.inserted_window_dims}
        sizes = (1,) * len(shape)
    else:
        return None
    for axis, start in starts.items():
        if start is None or not np.size(start):
            continue
        outside = start[(start < 0) | (start > shape[axis] - sizes[axis])]
        if outside.size:
            entry, of = int(outside.flat[0]), f"an axis of {shape[axis]} {'entry' if shape[axis] == 1 else 'entries'}"
            entry = entry if entry >= 0 else entry - shape[axis]
            return f"entry {entry} of {of} (array of shape {shape})"
    return None
