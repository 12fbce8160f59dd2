"""A run as one native function: LLVM compiles the jaxpr, and XLA calls it."""

import functools
import os
import sys
import warnings
from dataclasses import dataclass

import jax
import numpy as np

from . import build, calls
from .code import UnknownError
from .jax_internals import low, without_dead_code

__all__ = [
    "available",
    "compiled",
    "cores",
    "give_back",
    "in_loops",
    "left_to_xla",
    "listed",
    "packed",
    "run_once",
    "say",
    "unpacked",
    "wanted",
]

cores, in_loops, listed, packed = build.cores, build.in_loops, build.listed, build.packed
give_back, run_once, unpacked = build.native_functions.give_back, build.run_once, build.unpacked


def available():
    """Whether llvmlite is installed; ``JAXNSD_NATIVE=0`` in the environment leaves programs to XLA."""
    return build.binding is not None and wanted()


def wanted():
    """Whether programs may be left to others than XLA."""
    return os.environ.get("JAXNSD_NATIVE", "1") != "0"


#: Programs that are made in here may be taken to other processes, which know nothing of what was compiled in this one.
left_to_xla = build.Switch()


@functools.cache
def _missing():
    warnings.warn(
        "llvmlite is not installed: runs on this CPU are 10 to 40 times slower than they could be. `pip install llvmlite`, or the extra "
        "`native` of jaxnsd, makes them fast; JAXNSD_NATIVE=0 in the environment ends this warning.",
        RuntimeWarning,
        stacklevel=2,
    )


@functools.cache
def _once(text):
    warnings.warn(text, RuntimeWarning, stacklevel=4)


def say(error):
    """Warn, once in a process, that a program is slower than it could be, since what makes it fast has failed."""
    kind, words = type(error).__name__, str(error).split("\n")[0][:200]
    python = ".".join(map(str, sys.version_info[:3]))
    _once.cache_info().currsize or _once(
        f"jaxnsd could not make its programs faster with JAX {jax.__version__} on Python {python} ({kind}: {words}). Results are right, "
        "runs are slower. JAXNSD_NATIVE=0 in the environment ends this warning; please report it."
    )


@dataclass(frozen=True, eq=False)
class Call:
    """A function of arrays that calls a native function; one that comes out of a file calls that of its number."""

    function: calls.Function
    outs: list

    def __call__(self, *args):
        return list(jax.ffi.ffi_call(calls.TARGET, self.outs)(*args, number=np.int64(self.function.number)))


def compiled(function, avals, in_full=False):
    """``function(*args)``, a list, as a `Call` of native code on a CPU; None where there is no rule for a part of it, or it is too long.

    in_full: whether it is too long where it cannot be written out
    """
    if build.binding is None and wanted():
        _missing()
    if not available() or left_to_xla.on:
        return None
    closed = without_dead_code(low(jax.make_jaxpr(function)(*avals)))
    try:
        made = build.function_of(closed, in_full)
    except UnknownError as reason:
        if os.environ.get("JAXNSD_NATIVE") == "debug":
            print("jaxnsd.native:", reason, file=sys.stderr)
        return None
    except Exception as error:  # whatever it is, a slower run is better than none
        say(error)
        return None
    return Call(made, [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in closed.out_avals])
