"""Programs that are kept: a second process starts with what the first one has traced and compiled.

JAX's persistent compilation cache keeps what XLA makes of a program, but the program itself has to be traced first, and with a gradient
that is most of what is left. `keep` spares the tracing as well: a program is found by the `fingerprint` of the function, and of all that it
consists of, before it is traced.
"""

import functools
import hashlib
import inspect
import io
import os
import pickle
import platform
import re
import sys
import tempfile
import uuid
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path

import jax
import jaxlib
import numpy as np

from .. import native
from ..native.jax_internals import is_traced, serialize_executable, settings, trace_anew
from .fingerprint import fingerprint, nodes, own_version
from .pytrees import chosen, replaced

#: A call back into Python in the text of a program, where the function is no more than a number.
CALLBACK = re.compile(r"custom_call @\w*python\w*callback")

#: Arguments of a program; what else there is, a name or a scheme, is a constant.
_VARIABLE = (jax.Array, np.ndarray, np.generic, bool, int, float, complex)

#: Settings that are changed on the way.
_SETTINGS = ("jax_default_device", "jax_enable_x64", "jax_default_matmul_precision", "jax_debug_nans", "jax_numpy_dtype_promotion")

#: Settings of JAX by words in their names that no program depends on.
_SETTINGS_BESIDE = ("cache", "log", "traceback", "dump", "pprint", "explain")


def keep(function: Callable, folder: str | os.PathLike | None = None) -> Callable:
    """``jax.jit(function)``, whose compiled programs are kept in a folder: the next process neither traces nor compiles them.

        gradient = jaxnsd.keep(jax.grad(loss))
        gradient(parameters)

    function:  a function of pytrees, jitted or not, that returns one. What is no array and no number in its arguments is a constant
    folder:    where programs are kept; by default JAX's persistent compilation cache, ``JAX_COMPILATION_CACHE_DIR``. Without one, and
               inside of other transformations, nothing is kept. It holds programs that are run as they are: trust it as you trust code

    A program is taken from the folder if its function has the same fingerprint: the bytecode of the function and of whatever it calls that
    does not belong to an installed package, all it closes over and all globals it reads, by value; versions of packages, settings of JAX,
    kind of processor; shapes and dtypes of the arguments. What a function reads while it is traced in any other way, a file or an
    environment variable, is not seen, as `jax.jit` does not see it: make it an argument. A function without a fingerprint, or a program
    that calls back into Python, is not kept, and a warning says why.
    """
    if not callable(function):
        raise TypeError(f"keep(function) takes a function, got {function!r}")
    programs = _Programs()

    @functools.wraps(function)
    def kept(*args, **kwargs):
        leaves, tree = jax.tree.flatten((args, kwargs))
        variable = tuple(isinstance(x, _VARIABLE) for x in leaves)
        arrays = chosen(leaves, variable)
        if jax.config.jax_disable_jit or any(is_traced(x) for x in arrays):
            return function(*args, **kwargs)
        constants = tuple(chosen(leaves, [not v for v in variable]))
        set_here = tuple(getattr(jax.config, name) for name in _SETTINGS)
        key = tree, variable, constants, set_here, tuple(map(_kind, arrays))
        try:
            known = key in programs.by_key
        except TypeError as error:
            raise TypeError(f"keep: arguments that are neither arrays nor numbers are constants, and must be hashable: {error}") from error
        if not known:
            # Without the arrays of this call, which would stay in memory.
            form = [None if v else x for x, v in zip(leaves, variable, strict=True)]

            def of_arrays(*arrays):
                args, kwargs = tree.unflatten(replaced(form, variable, arrays))
                return function(*args, **kwargs)

            programs.by_key[key] = _program(of_arrays, function, key, arrays, folder)
        return programs.by_key[key](*arrays)

    return kept


class _Programs:
    """Programs of this process, by structure, constants, shapes and dtypes of the arguments."""

    @functools.cached_property
    def by_key(self):
        # Made when asked for, and so no part of what a function is: a fingerprint leaves it out.
        return {}


def _kind(x):
    """What a program knows of an argument before it runs."""
    aval = jax.typeof(x)
    return aval.shape, str(aval.dtype), aval.weak_type, frozenset(x.devices() if isinstance(x, jax.Array) else ())


def _program(of_arrays, function, key, arrays, folder):
    """The compiled program of a function of these arrays: from the folder, or made and put there."""
    name = of_arrays.__name__ = getattr(function, "__name__", "program")
    jitted = jax.jit(of_arrays)
    folder = folder or (jax.config.jax_enable_compilation_cache and jax.config.jax_compilation_cache_dir)
    # What JAX is told there: a device, the name of a platform, or nothing.
    device = jax.config.jax_default_device
    device = device if isinstance(device, jax.Device) else jax.devices(device)[0]
    if not folder or "://" in str(folder) or any(devices - {device} for *_, devices in key[-1]):
        return jitted
    try:
        digest = fingerprint(function, *key, *_surroundings(device))
    except TypeError as error:
        return _without_a_place(name, error, jitted)
    path, classes = Path(folder, f"{re.sub(r'[^A-Za-z0-9_]', '', name)}-{digest}.jaxnsd"), [kind for kind, _ in nodes(key[0])]
    if (program := _read(path, len(arrays), classes, device.client)) is not None:
        return program
    # What XLA's CPU backend has taken from JAX's cache it writes without its code: under a name that no cache has it is compiled.
    of_arrays.__name__ = f"{name}_{uuid.uuid4().hex}"
    # The fingerprint has what a function reads by its value of now; what was traced, a jitted helper, or a method that reads a dictionary,
    # may have one of before, and would be found by all processes to come.
    with trace_anew(), native.listed() as made:
        lowered = jax.jit(of_arrays).lower(*arrays)
    program = lowered.compile()
    if CALLBACK.search(lowered.as_text()):
        return _without_a_place(name, "it calls back into Python", program)
    try:
        _write(path, program, native.packed(made), classes)
    except Exception as error:  # pickle raises what it likes, and what was compiled is not to be lost
        return _without_a_place(name, error, program)
    return program


def _without_a_place(name, why, program):
    warnings.warn(f"{name} is compiled but not kept: {why}", stacklevel=4)
    return program


def _write(path, program, made, classes):
    """Put a compiled program, and the native functions that it calls, into a file, whole or not at all."""
    payload, _, out_tree = serialize_executable.serialize(program)
    content = io.BytesIO()
    ids = [device.id for device in program.runtime_executable().local_devices()]
    _Pickler(content, classes).dump((payload, made, jax.tree.unflatten(out_tree, range(out_tree.num_leaves)), ids))
    data = zlib.compress(content.getvalue(), 1)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        try:
            file.write(_digest(data) + data)
            file.close()
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def _read(path, size, classes, client):
    """The program of a file, of so many arrays; None where there is none, or not a whole one."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    length = len(_digest(b""))
    if content[:length] != _digest(content[length:]):
        return None  # cut short: made again
    try:
        payload, made, out, ids = _Unpickler(io.BytesIO(zlib.decompress(content[length:])), classes).load()
        functions = native.unpacked(made)
        in_tree = jax.tree.structure(((0,) * size, {}))
        load = serialize_executable.deserialize_and_load
        # Newer versions of JAX take all devices, unless told; older ones those that it was compiled for.
        devices = {device.id: device for device in client.devices()}
        on = {"execution_devices": [devices[i] for i in ids]} if "execution_devices" in inspect.signature(load).parameters else {}
        program = load(payload, in_tree, jax.tree.structure(out), client, **on)
        del functions  # the program has them now
        return program
    except Exception as error:
        warnings.warn(f"{path.name}, a program that was kept, cannot be read and is made again: {error}", stacklevel=5)
        return None


def _digest(data):
    return hashlib.blake2b(data, digest_size=16).digest()


class _Pickler(pickle.Pickler):
    """Classes of the arguments' trees are numbers: those of a function or a notebook cannot be pickled by name."""

    def __init__(self, file, classes):
        super().__init__(file)
        self.classes = classes

    def persistent_id(self, obj):
        return next((i for i, cls in enumerate(self.classes) if cls is obj), None)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file, classes):
        super().__init__(file)
        self.classes = classes

    def persistent_load(self, pid):
        return self.classes[pid]


def _surroundings(device):
    """What a compiled program depends on beside the function."""
    here = {name: value for name, value in settings().items() if not any(word in name for word in _SETTINGS_BESIDE)}
    return (
        [sys.version, jax.__version__, jaxlib.__version__, np.__version__, own_version()],
        [device.platform, device.device_kind, device.client.platform_version, _processor()],
        {name: here[name] for name in sorted(here)},
        {name: value for name, value in sorted(os.environ.items()) if name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "JAXNSD_KERNELS")},
    )


def _processor():
    """Kind of the processor, with what it can do where the system says so: a native program runs on no other."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n", 1)[0].splitlines()
        return [line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))]
    except OSError:
        return [platform.machine(), platform.processor()]
