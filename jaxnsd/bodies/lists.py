"""Reading along axes by lists of places that are known, and names that are not."""

import difflib

import jax.numpy as jnp
import numpy as np


def pick(x, places):
    """``x[places]`` along the first axis, for places known while tracing.

    Runs of consecutive places are slices: unlike an indexed read they fuse, and so do their transposes, which are no scatters.
    """
    places = np.asarray(places, int)
    n = len(places)
    if not n:
        return x[:0]
    if n == x.shape[0] and np.array_equal(places, np.arange(n)):
        return x
    breaks = np.flatnonzero(np.diff(places) != 1) + 1
    if len(breaks) > max(48, n // 2):
        # A product with a matrix: one operation, whatever the order.
        mask = np.asarray(places[:, None] == np.arange(x.shape[0])[None, :], x.dtype)
        return jnp.matmul(mask, x.reshape(x.shape[0], -1), precision="highest").reshape(n, *x.shape[1:])
    runs = np.split(places, breaks)
    parts = []
    for run in runs:
        if parts and len(run) == 1 and run[0] == parts[-1][0] and parts[-1][2] == 1:
            parts[-1] = (run[0], parts[-1][1] + 1, 1)  # the same place again and again is broadcast
        else:
            parts.append((run[0], 1, len(run)))
    pieces = [x[a : a + k] if times == 1 else jnp.broadcast_to(x[a : a + 1], (times, *x.shape[1:])) for a, times, k in parts]
    return pieces[0] if len(pieces) == 1 else jnp.concatenate(pieces)


def unknown(kind, name, names):
    """Sentence about a name that is none of ``names``."""
    close = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(map(repr, names)) or 'none'}"
    return f"no {kind} has the name {name!r}; {hint}"
