"""Reading along axes by lists of places that are known, and names that are not."""

import difflib
import re

import jax.numpy as jnp
import numpy as np

from ..native.jax_internals import Primitive, ad, batching, is_traced, known_array, lowered_as

#: Entries, of all terms, up to which a product with zeros and ones is written as a sum, which fuses.
SUMMED = 1 << 11


def pick(x, places):
    """``x[places]`` along the first axis, for places known while tracing. The way back is one operation, not one for each run of places."""
    places = np.asarray(places, int)
    if isinstance(x, np.ndarray):
        return x[places]
    if len(places) == x.shape[0] and np.array_equal(places, np.arange(len(places))):
        return x
    if not is_traced(x):
        return known_array(np.asarray(x)[places])  # no program is compiled for what is known
    if not len(places):
        return x[:0]
    return _pick.bind(x, places=tuple(places.tolist()))


def _picked(x, places):
    """Runs of consecutive places are slices: unlike an indexed read they fuse."""
    places, n = np.asarray(places), len(places)
    breaks = np.flatnonzero(np.diff(places) != 1) + 1
    if len(breaks) > max(48, n // 2):
        return _summed(places[:, None] == np.arange(x.shape[0])[None, :], x)
    parts = []
    for run in np.split(places, breaks):
        if parts and len(run) == 1 and run[0] == parts[-1][0] and parts[-1][2] == 1:
            parts[-1] = (run[0], parts[-1][1] + 1, 1)  # the same place again and again is broadcast
        else:
            parts.append((run[0], 1, len(run)))
    pieces = [x[a : a + k] if times == 1 else jnp.broadcast_to(x[a : a + 1], (times, *x.shape[1:])) for a, times, k in parts]
    return pieces[0] if len(pieces) == 1 else jnp.concatenate(pieces)


def _spread_out(y, places, size):
    """The transpose of `_picked`: the sum of what is read at each of ``size`` places."""
    places, n = np.asarray(places), len(places)
    if len(np.unique(places)) == n:
        back = np.full(size, n)
        back[places] = np.arange(n)
        return _picked(jnp.concatenate([y, jnp.zeros_like(y[:1])]), back)
    return _summed(np.arange(size)[:, None] == places[None, :], y)


def _summed(mask, x):
    return sums(mask, x.reshape(x.shape[0], -1)).reshape(len(mask), *x.shape[1:])


def sums(mask, x):
    """``mask @ x`` for a matrix of zeros and ones and a matrix: one operation."""
    if mask.size * x.shape[1] > SUMMED:
        return jnp.dot(jnp.asarray(mask, x.dtype), x, precision="highest")
    return jnp.sum(jnp.where(mask[:, :, None], x[None], jnp.zeros((), x.dtype)), axis=1)


def _linear(name, function, size):
    """The primitive of ``function(x, **params)``, linear along the first axis of x, which becomes ``size(params)`` long."""
    primitive = Primitive(name)

    def batched(args, axes, **params):
        return primitive.bind(jnp.moveaxis(args[0], axes[0], 1), **params), 1

    primitive.def_impl(function)
    primitive.def_abstract_eval(lambda x, **params: x.update(shape=(size(params), *x.shape[1:]), weak_type=False))
    lowered_as(primitive, function)
    batching.primitive_batchers[primitive] = batched
    return primitive


_pick = _linear("jaxnsd_pick", _picked, lambda params: len(params["places"]))
_spread = _linear("jaxnsd_spread", _spread_out, lambda params: params["size"])
ad.deflinear2(_pick, lambda d, x, places: [_spread.bind(d, places=places, size=x.aval.shape[0])])
ad.deflinear2(_spread, lambda d, y, places, size: [_pick.bind(d, places=places)])


def unknown(kind, name, names):
    """Sentence about a name that is none of ``names``."""
    close = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(map(repr, names)) or 'none'}"
    return f"no {kind} has the name {name!r}; {hint}"


#: Length of a list that a message shows, in characters.
SHOWN = 500


def enumerated(items, what, separator=", "):
    """The first of the items, as many as a message has place for, and how many there are beside them."""
    shown, length = [], 0
    for item in items:
        length += len(item) + len(separator)
        if shown and length > SHOWN:
            break
        shown.append(item if len(item) <= SHOWN else f"{item[: SHOWN - 3]}...")
    rest = f" and {len(items) - len(shown)} more {what}" if len(shown) < len(items) else ""
    return separator.join(shown) + rest


def grouped(sentences):
    """Sentences that differ in the names in them alone, as one of them with their number."""
    groups = {}
    for sentence in sentences:
        groups.setdefault(re.sub(r"'[^']*'", "''", sentence), []).append(sentence)
    return [first if len(same) == 1 else f"{len(same)} times {first}" for same in groups.values() for first in same[:1]]
