"""`jax.jit` for functions that are there as long as the process, whose programs do not fill its memory.

JAX keeps what it has traced and compiled of a function for as long as the function is there. A process that makes one new system after the
other, in a search for a mechanism say, would grow by 5 MB with each ball, and by 50 MB with each robot.
"""

import functools
import gc
import os
import threading
import weakref
from pathlib import Path

import jax

from .. import native

#: Programs that are made before any is forgotten, and the share of the memory of the machine that the process takes then.
PROGRAMS, SHARE = 64, 0.25

_functions, _lock = weakref.WeakSet(), threading.RLock()
_programs = 0  # since the last ones were forgotten


def jit(function=None, **options):
    """`jax.jit`, whose programs may be forgotten: they are compiled anew when they are asked for. A decorator, too."""
    if function is None:
        return functools.partial(jit, **options)
    jitted = jax.jit(function, **options)
    with _lock:
        _functions.add(jitted)
    return jitted


def made():
    """A program is made."""
    global _programs
    _programs += 1


def make_room():
    """Forget what has been traced and compiled of the functions of `jit`, if it is much and the process is large."""
    global _programs
    if _programs >= PROGRAMS:
        _programs = 0
        # Where the system does not say what the process takes, it need not say what there is.
        if (taken := _taken()) and taken > SHARE * _memory():
            with _lock:  # one that another thread makes meanwhile has nothing to forget
                functions = list(_functions)
            for function in functions:
                function.clear_cache()
            gc.collect()
            native.give_back()


def _taken():
    """Bytes of memory that the process takes; zero where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0


@functools.cache
def _memory():
    """Bytes of memory that the process may take: those of the machine, or of its container."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            return min(machine, int(Path(file).read_text(encoding="ascii")))
        except (OSError, ValueError):
            continue
    return machine
