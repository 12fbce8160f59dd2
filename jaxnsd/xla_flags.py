"""Three settings of XLA's CPU backend, made when jaxnsd is imported.

A time step is a loop of a few hundred operations on a few bytes. XLA's CPU runtime dispatches such operations one by one, unless the
whole loop touches fewer bytes than a threshold, 1 kB by default: then it compiles the loop into one native function, which runs a
single trajectory ten to forty times as fast. The threshold can be set by the environment only, before the first computation.

One native function of a large step, and of its gradient above all, takes LLVM more than in proportion to compile. A large step is
therefore a function of its own, in a loop of the runtime (see `kernels`). The loops of a gradient of the rotating ball touch some 80 kB,
those of a run of the cube, with the globalization of its solver in a branch, between 1 and 4 MB.

LLVM unrolls the many short loops of such a function generously. With a lower bound a step of a cube, whose code did not fit the
first-level cache, is compiled in 20 % less and runs 15 % faster; one of a box with `Lobatto(3)` is compiled in 29 % less, one of a hopper
from `bodies` in 28 %. That setting is one of LLVM's own, for all of its back ends: it is left alone where JAX may run on something else
than a CPU.

What is left around the loops are a hundred short functions, and each is translated by a compiler of its own, MLIR's, set up anew; the
emitters that XLA had before write them at once. That takes a fifth of the compilation of the gradient of a rotating ball, an eighth of that
of a half-cheetah, and changes no loop over steps. Of twelve other operations on a million entries ten run as fast or faster, a
transposition by far, and a loop over comparisons takes half as long again. To name the setting switches it on; its value does not count.

Nothing else changes, and results agree to round-off. ``JAXNSD_XLA_FLAGS=0`` leaves the environment alone; what is already set is kept.
``XLA_FLAGS`` may name a file that holds the flags, as XLA has it for a value that does not start with a dash: its content then takes the
place of the name.
"""

import importlib.util
import os
import re
import warnings
from collections.abc import MutableMapping

from .jax_internals import backend_has_started

#: Bytes that one pass of a loop may touch to be compiled natively: large enough for single trajectories and small batches; loops over
#: large batches stay with the runtime, which spreads them over the cores.
THRESHOLD = 1 << 22

#: Instructions up to which LLVM unrolls a loop as a whole, in LLVM's own measure; 300 by default. From 25 to 100 nothing ran slower than by
#: default beyond the noise of 8 %: cube, rotating ball, woodpecker, slider-crank; from 60 on hopper and cheetah. With 10 all did.
UNROLL = 60

_FLAG = "--xla_backend_extra_options="


def set_flags(environment: MutableMapping[str, str] = os.environ) -> None:
    """Add the settings to ``XLA_FLAGS`` of an environment, beside the options that are already there."""
    flags = environment.get("XLA_FLAGS", "").strip()
    if environment.get("JAXNSD_XLA_FLAGS") == "0":
        return
    if flags and not flags.startswith("-"):
        try:
            with open(flags, encoding="utf-8") as file:
                flags = file.read().strip()
        except OSError:
            return  # XLA says that it cannot read it
    options = {"xla_cpu_small_while_loop_byte_threshold": THRESHOLD, "xla_cpu_disable_new_fusion_emitters": "true"}
    if is_cpu_alone(environment):
        options["-unroll-threshold"] = UNROLL
    settings = ",".join(f"{name}={value}" for name, value in options.items() if name not in flags)
    if settings:
        flags, found = re.subn(rf"({re.escape(_FLAG)}\S*)", rf"\1,{settings}", flags, count=1)
        environment["XLA_FLAGS"] = flags if found else f"{flags} {_FLAG}{settings}".strip()


def is_cpu_alone(environment: MutableMapping[str, str]) -> bool:
    """Whether JAX can run on nothing else: it is told so, or there is no plug-in for another platform."""
    told = environment.get("JAX_PLATFORMS", "")
    return told == "cpu" if told else not any(map(importlib.util.find_spec, ("jax_plugins", "libtpu")))


def warn_if_late() -> None:
    """Say that the settings come too late: XLA has read the environment at JAX's first computation."""
    if backend_has_started() and os.environ.get("JAXNSD_XLA_FLAGS") != "0":
        warnings.warn(
            "jaxnsd was imported after JAX's first computation: simulations on a CPU run up to ten times slower, because XLA reads its "
            "settings only once. Import jaxnsd before anything is computed. JAXNSD_XLA_FLAGS=0 ends this warning",
            RuntimeWarning,
            stacklevel=3,
        )


_before = os.environ.get("XLA_FLAGS")
set_flags()
if os.environ.get("XLA_FLAGS") != _before:
    warn_if_late()
