"""The plain way: what makes programs faster may fail with a version of JAX that nobody has tried, and then XLA gets them as they are.

Programs are changed before they are lowered, as jaxprs (`kernels`, `fusion`, `products`, `ties`). A failure there leaves the program as it
was, which is slower, and is said once. ``JAXNSD_PLAIN=1`` in the environment leaves programs as they are from the start, but for `ties`,
without which derivatives of maxima are decided by comparisons of rounded numbers.
"""

import functools
import os
import sys
import warnings

import jax

from . import jax_internals


def wanted():
    """Whether all programs are to be left as they are."""
    return os.environ.get("JAXNSD_PLAIN", "0") not in ("", "0")


def tried(function, instead):
    """``function(*args)``, or ``instead(*args)`` where it fails; a failure is said once in a process."""

    @functools.wraps(function)
    def attempt(*args, **options):
        try:
            return function(*args, **options)
        except Exception as error:  # whatever it is, a slower run is better than none
            say(error)
            return instead(*args, **options)

    return attempt


@functools.cache
def _once(text):
    warnings.warn(text, RuntimeWarning, stacklevel=4)


def say(error):
    """Warn, once in a process, that a failure has left a program slower than it could be."""
    kind, words = type(error).__name__, str(error).split("\n")[0][:200]
    python = ".".join(map(str, sys.version_info[:3]))
    _once.cache_info().currsize or _once(
        f"jaxnsd could not make its programs faster with JAX {jax.__version__} on Python {python} ({kind}: {words}). Results are right, "
        "runs are slower. JAXNSD_PLAIN=1 ends this warning; please report it."
    )


#: `jax_internals.marked`: what XLA is not told costs time, nothing else.
marked = tried(jax_internals.marked, lambda out, **_: out)
