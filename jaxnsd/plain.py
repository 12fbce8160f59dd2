"""The plain way: what makes programs faster may fail with a version of JAX that nobody has tried, and then XLA gets them as they are.

Programs are changed before XLA gets them (`kernels`, `native`, `ties`), by means that JAX does not promise to keep. A failure of `kernels`
leaves the plain `lax.scan`, which is slower. ``JAXNSD_PLAIN=1`` in the environment leaves it from the start, without `native` and `ties`,
too: derivatives of maxima are then decided by comparisons of rounded numbers (see `ties`). A failure of those two is not caught: what they
had begun to write would be left in the program.
"""

import functools
import os
import sys
import warnings

import jax


def wanted():
    """Whether all programs are to be left as they are."""
    return os.environ.get("JAXNSD_PLAIN", "0") not in ("", "0")


def tried(function, instead):
    """``function(*args)``, or ``instead(*args)`` where it fails or the plain way is wanted; a failure is said once in a process."""

    @functools.wraps(function)
    def attempt(*args, **options):
        if wanted():
            return instead(*args)
        try:
            return function(*args, **options)
        except Exception as error:  # whatever it is, a slower run is better than none
            _say(type(error).__name__, str(error).split("\n")[0][:200])
            return instead(*args)

    return attempt


@functools.cache
def _once(text):
    warnings.warn(text, RuntimeWarning, stacklevel=4)


def _say(kind, words):
    python = ".".join(map(str, sys.version_info[:3]))
    _once.cache_info().currsize or _once(
        f"jaxnsd could not make its programs faster with JAX {jax.__version__} on Python {python} ({kind}: {words}). Results are right, "
        "runs are slower. JAXNSD_PLAIN=1 ends this warning; please report it."
    )
