"""Constant indices out of bounds, found in what a function traces to: JAX clamps them in silence, and ``q[2]`` of two is ``q[1]``."""

import linecache
import re

import jax
import numpy as np
from jax.lax import GatherScatterMode

from ..native.jax_internals import ClosedJaxpr, frames, is_traced, scan_sizes


def _broadcast(x, shape, broadcast_dimensions, **_):
    full = [1] * len(shape)
    for size, axis in zip(x.shape, broadcast_dimensions, strict=True):
        full[axis] = size
    return np.broadcast_to(x.reshape(full), shape)


def _slice(x, start_indices, limit_indices, strides):
    return x[tuple(map(slice, start_indices, limit_indices, strides or (None,) * x.ndim))]


def _choice(which, *cases):
    out = cases[0]
    for k, case in enumerate(cases[1:], 1):
        out = np.where(which == k, case, out)
    return out


def _iota(*sizes, dtype, shape, dimension, **_):
    if sizes:  # that are not known while tracing
        return None
    along = [-1 if axis == dimension else 1 for axis in range(len(shape))]
    return np.broadcast_to(np.arange(shape[dimension], dtype=dtype).reshape(along), shape).view(_Counted)


#: Primitives on whole numbers between an index as written and the operation that reads there; in NumPy, which compiles nothing.
ARITHMETIC = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "not": np.invert,
    "neg": np.negative,
    "sign": np.sign,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "rem": np.fmod,
    "max": np.maximum,
    "min": np.minimum,
    "clamp": lambda least, x, most: np.clip(x, least, most),
    "select_n": _choice,
}
#: Those that take parameters.
SHAPING = {
    "convert_element_type": lambda x, new_dtype, **_: x.astype(new_dtype),
    "broadcast_in_dim": _broadcast,
    "iota": _iota,
    "reshape": lambda x, new_sizes, **_: x.reshape(new_sizes),
    "squeeze": lambda x, dimensions: np.squeeze(x, dimensions),
    "transpose": lambda x, permutation: np.transpose(x, permutation),
    "concatenate": lambda *x, dimension: np.concatenate(x, dimension),
    "slice": _slice,
}

#: Turns of loops that are followed, of all loops together, with the indices that they count; in those after them it is anywhere.
TURNS = 1000

#: How a line of code says itself what becomes of an index outside. Its equation does not: it is that of ``.at[i].set(x)`` for
#: ``mode="drop"``, and that of ``q[i]`` under `vmap` for ``mode="clip"``.
SAYS = re.compile(r"""\bmode=["'](clip|drop|fill)|\b(segment_(sum|prod|max|min)|bincount)\(""")


class _OutsideError(Exception):
    """An index out of bounds, in words."""


class _Counted(np.ndarray):
    """Indices that an operation has counted up: what is read there may be left out later on."""


def out_of_bounds(closed: ClosedJaxpr) -> tuple[str, bool] | None:
    """What a function reads out of bounds, and whether it does in any case, or None.

    What is read in a branch, in a loop, or at many places at once may be left out later on, by `jax.numpy.where` say. Nothing is what the
    line says itself, by ``mode="drop"`` say, see `SAYS`.
    """
    walk = _Walk()
    try:
        walk.follow(closed, [None] * len(closed.jaxpr.invars))
    except _OutsideError as found:
        return str(found), True
    return walk.doubt and (walk.doubt, False)


def _value(x):
    """A known whole number or array of them; None for all else."""
    if is_traced(x) or jax.dtypes.issubdtype(getattr(x, "dtype", float), jax.dtypes.extended):
        return None
    x = np.asarray(x)
    return x if x.dtype.kind in "iub" else None


class _Walk:
    """One way through a function."""

    def __init__(self):
        self.turns, self.depth, self.doubt = TURNS, 0, None
        #: Operations that are being gone through, each inside of the one before.
        self.within = []

    def follow(self, jaxpr, args):
        """Outputs of a jaxpr, closed or not, of which some inputs are known, as far as they are."""
        inner = getattr(jaxpr, "jaxpr", jaxpr)
        consts = [_value(x) for x in getattr(jaxpr, "consts", ())] or [None] * len(inner.constvars)
        values = dict(zip((*inner.constvars, *inner.invars), (*consts, *args), strict=True))

        def known(variables):
            return [_value(v.val) if hasattr(v, "val") else values.get(v) for v in variables]

        for eqn in inner.eqns:
            self.within.append(eqn)
            values.update(zip(eqn.outvars, self.outputs(eqn, known(eqn.invars)), strict=True))
            self.within.pop()
        return known(inner.outvars)

    def outputs(self, eqn, known):
        """Outputs of an operation, as far as they are known."""
        name, params = eqn.primitive.name, eqn.params
        try:
            _check(eqn, known)
        except _OutsideError as found:
            if not any(map(_says, self.within)):
                if not self.depth and not any(isinstance(x, _Counted) for x in known):
                    raise
                self.doubt = self.doubt or str(found)
        if name in ARITHMETIC or name in SHAPING:
            if all(x is not None for x in known):
                out = np.asanyarray(ARITHMETIC[name](*known) if name in ARITHMETIC else SHAPING[name](*known, **params))
                return [out.view(_Counted) if any(isinstance(x, _Counted) for x in known) else out]
        elif name in ("cond", "scan", "while"):
            self.depth += 1
            out = {"cond": self.branch, "scan": self.scan, "while": self.loop}[name](known, **params)
            self.depth -= 1
            return out
        else:
            inside = [param for param in params.values() if hasattr(getattr(param, "jaxpr", param), "eqns")]
            outputs = [self.follow(jaxpr, known if _takes(jaxpr, eqn.invars) else [None] * _size(jaxpr)) for jaxpr in inside]
            if len(inside) == 1 and _takes(inside[0], eqn.invars) and len(outputs[0]) == len(eqn.outvars):
                return outputs[0]
        return [None] * len(eqn.outvars)

    def branch(self, known, branches, **_):
        """Of the branch that is taken, where that is known; else each of them may be."""
        which, *args = known
        if which is not None:
            branches = [branches[int(np.clip(which, 0, len(branches) - 1))]]
        return _equal([self.follow(branch, args) for branch in branches])

    def scan(self, known, jaxpr, length, reverse, **params):
        """Turn by turn, as long as something that is known changes."""
        num_consts, num_carry = scan_sizes(params)
        consts, carry, xs = known[:num_consts], known[num_consts : num_consts + num_carry], known[num_consts + num_carry :]
        outputs = len(getattr(jaxpr, "jaxpr", jaxpr).outvars)
        for turn in range(length):
            self.turns -= 1
            if self.turns < 0:
                carry = [None] * num_carry
                break
            at = length - 1 - turn if reverse else turn
            before, carry = carry, self.follow(jaxpr, consts + carry + [None if x is None else x[at] for x in xs])[:num_carry]
            if all(x is None for x in xs) and all(x is y or np.array_equal(x, y) for x, y in zip(before, carry, strict=True)):
                break  # the others are as this one
        return carry + [None] * (outputs - num_carry)

    def loop(self, known, cond_jaxpr, body_jaxpr, cond_nconsts, body_nconsts, **_):
        """As long as it is known to go on."""
        of_condition, of_body, carry = known[:cond_nconsts], known[cond_nconsts:][:body_nconsts], known[cond_nconsts + body_nconsts :]
        while self.turns > 0:
            self.turns -= 1
            goes_on = self.follow(cond_jaxpr, of_condition + carry)[0]
            if goes_on is not None and not goes_on:
                return carry
            if goes_on is None:
                # What is known before a turn is known of the first alone, but for what a turn leaves as it is.
                carry = _equal([carry, self.follow(body_jaxpr, of_body + carry)])
                self.follow(body_jaxpr, of_body + carry)
                break
            carry = self.follow(body_jaxpr, of_body + carry)
        return [None] * len(carry)


def _size(jaxpr):
    return len(getattr(jaxpr, "jaxpr", jaxpr).invars)


def _takes(jaxpr, inputs):
    return _size(jaxpr) == len(inputs)


def _equal(those):
    """What is known to be the same in all of these lists."""
    return [same[0] if all(x is not None and np.array_equal(x, same[0]) for x in same) else None for same in zip(*those, strict=True)]


def _check(eqn, known):
    """Raise `_OutsideError` with what an operation reads or writes out of bounds."""
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
        return
    for axis, start in starts.items():
        if start is None or not np.size(start):
            continue
        outside = start[(start < 0) | (start > shape[axis] - sizes[axis])]
        if outside.size:
            entry, of = int(outside.flat[0]), f"an axis of {shape[axis]} {'entry' if shape[axis] == 1 else 'entries'}"
            entry = entry if entry >= 0 else entry - shape[axis]
            raise _OutsideError(f"entry {entry} of {of} (array of shape {shape})")


def _says(eqn):
    """Whether one of the lines that wrote an operation says what becomes of an index outside."""
    return any(SAYS.search(f"{x.function_name}( {linecache.getline(x.file_name, x.line_num)}") for x in frames(eqn))
