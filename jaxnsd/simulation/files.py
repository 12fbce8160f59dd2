"""A solution as one file: NumPy's .npz, with the arrays to the bit, and in words what they belong to."""

import dataclasses
import importlib
import json
import warnings
import zipfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from ..programs.files import readable, saying, writable

#: Of the layout: what a file must say that is read.
FORMAT = "jaxnsd.Solution 1"

#: Name of what is no array.
REST = "about"


def save(values, path):
    """Write a solution with values."""
    with saying("Solution.save"):
        writable(path)
    from .. import __version__

    path, arrays = Path(path), {}
    fields = {f.name: _written(getattr(values, f.name), f.name, arrays) for f in dataclasses.fields(values)}
    words = {"format": FORMAT, "jaxnsd_version": __version__, "scheme": repr(values.scheme), "fields": fields}
    # Written beside and moved, so that an interruption leaves what was there before.
    part = path.with_name(f"{path.name}.part")
    with open(part, "wb") as file:
        np.savez(file, **arrays, **{REST: np.frombuffer(json.dumps(words).encode(), np.uint8)})
    part.replace(path)


def load(cls, path):
    """Read what `save` has written."""
    with saying("Solution.load"):
        path = readable(path)
    try:
        # NumPy leaves a file open that it cannot read.
        with open(path, "rb") as binary, np.load(binary, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
            words = json.loads(arrays.pop(REST).tobytes())
            if words["format"] != FORMAT:
                raise KeyError
    except (ValueError, KeyError, EOFError, AttributeError, zipfile.BadZipFile):
        raise ValueError(f"Solution.load: {str(path)!r} is no file that Solution.save has written, or a damaged one") from None
    wide = {x.dtype.name for x in arrays.values() if jax.dtypes.canonicalize_dtype(x.dtype) != x.dtype}
    if wide:
        raise ValueError(
            f"Solution.load: {str(path)!r} holds {', '.join(sorted(wide))}, of which JAX would leave half: "
            'jax.config.update("jax_enable_x64", True) first'
        )
    fields = {}
    for name, of in words["fields"].items():
        try:
            fields[name] = _read(of, arrays)
        except _UnknownError as error:
            fields[name] = None
            cure = "simulate(..., start=) cannot go on from it" if name in ("scheme", "final") else "its values are left out"
            warnings.warn(
                f"Solution.load: {name} of {str(path)!r}, written by jaxnsd {words['jaxnsd_version']} with {words['scheme']}, is of "
                f"{error}, which is not there: it is None, and {cure}",
                stacklevel=3,
            )
    return cls(**fields)


class _UnknownError(Exception):
    """A class that this version does not have."""


def _written(x, name, arrays):
    """What JSON has of a tree; its arrays are put into ``arrays``."""
    if x is None or isinstance(x, (bool, int, float, str)):
        return x
    if isinstance(x, dict):
        return {"dict": {key: _written(value, f"{name}.{key}", arrays) for key, value in x.items()}}
    of = type(x)
    if hasattr(of, "_fields"):
        fields = of._fields
    elif dataclasses.is_dataclass(x):
        fields = [f.name for f in dataclasses.fields(x) if f.init]
    elif isinstance(x, (tuple, list)):
        return {"tuple": [_written(value, f"{name}.{i}", arrays) for i, value in enumerate(x)]}
    else:
        arrays[name] = np.asarray(x)
        if arrays[name].dtype == object:
            raise TypeError(f"Solution.save: {name} is {x!r}, which is no array of numbers")
        return {"array": name}
    return {"class": f"{of.__module__}:{of.__qualname__}", "fields": {f: _written(getattr(x, f), f"{name}.{f}", arrays) for f in fields}}


def _read(of, arrays):
    """The tree of what `_written` gave."""
    if not isinstance(of, dict):
        return of
    if "array" in of:
        return jnp.asarray(arrays[of["array"]])
    if "tuple" in of:
        return tuple(_read(x, arrays) for x in of["tuple"])
    if "dict" in of:
        return {key: _read(x, arrays) for key, x in of["dict"].items()}
    module, _, name = of["class"].partition(":")
    # A file names classes of this library alone: it must not choose what is run.
    try:
        cls = getattr(importlib.import_module(module), name) if module.partition(".")[0] == __name__.partition(".")[0] else None
    except (ImportError, AttributeError):
        cls = None
    if not (isinstance(cls, type) and (hasattr(cls, "_fields") or dataclasses.is_dataclass(cls))):
        raise _UnknownError(of["class"].replace(":", "."))
    fields = {name: _read(x, arrays) for name, x in of["fields"].items()}
    try:
        return cls(**fields)
    except TypeError:
        raise _UnknownError(f"another version of {name}") from None
