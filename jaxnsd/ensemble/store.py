"""Observations of all members in a Zarr store, chunk by chunk: what an interrupted run goes on from.

Each chunk is written by one writer, its marker last. The marker is a digest of the chunk, so that a chunk that was cut short, or lost
behind its marker, is seen and computed again. The store itself appears under its name when it is complete in all but its chunks.
"""

import hashlib
import json
import os
import re
import shutil
import uuid
from pathlib import Path

import jax
import numpy as np

from .. import __version__
from ..mechanics.results import Outcome
from .reductions import leaf_name

#: Of the layout below.
FORMAT = 1
MANIFEST, MARKERS, OUTCOME = "jaxnsd_ensemble", "marker", "outcome"

#: Names of what a store holds beside what is observed.
TAKEN = {MARKERS, OUTCOME, "member", "chunk", "zarr.json"}


class StoreError(OSError):
    """A store cannot be read or written, or is one of another run; the message says why, and what to do.

    ``result`` is the `Result` of the members that are done, or None: they are in the store as well.
    """

    result = None


def manifest(job, chunk, system):
    """What a store is made with, by the words that a refusal uses; the order is that of the refusals.

    Raises ValueError for what cannot be stored.
    """
    _named(job.shapes[1])
    # A function is a part of the program.
    of_scheme = {name: repr(_plain(value)) for name, value in job.options.items() if name != "until"}
    # An argument of the program, so that the program does not tell its value.
    of_gradient = {} if job.theta is None else {"theta": _value(job.theta)}
    return {
        "format": FORMAT,
        "jaxnsd version": __version__,
        "JAX version": jax.__version__,
        "device": jax.default_backend(),
        "system": f"{type(system).__name__} ({_value(system)})",
        "scheme": repr(job.scheme),
        "key": f"{job.key_kind} {job.key.tolist()}",
        "number of members": job.n,
        "points": repr(job.points),
        **of_scheme,
        **of_gradient,
        "chunk": chunk,
        "program (sample, observe, until, or a method of the system)": job.fingerprint(),
    }


def _plain(value):
    """An array as numbers, all of which are told apart."""
    return value.tolist() if hasattr(value, "tolist") else value


def _value(tree):
    """Digest of all numbers of a tree."""
    digest = hashlib.blake2b(digest_size=8)
    for x in map(np.asarray, jax.tree.leaves(tree)):
        digest.update(str((x.dtype, x.shape)).encode() + x.tobytes())
    return digest.hexdigest()


def open_or_create(path, made_with, shapes):
    """`Store` at a path, new if there is none. Raises `StoreError` for one that was made with something else."""
    _zarr()
    path = Path(path)
    if path.exists():
        found = read_manifest(path)
        for name, value in made_with.items():
            # The size of the chunks is that of the store.
            if name != "chunk" and found.get(name) != value:
                raise StoreError(
                    f"{path} was made with another {name}: {found.get(name)}, and this run has {value}; give the store another name, "
                    "or make the call that it was made with"
                )
        return _whole(Store(path), shapes)
    if not path.parent.is_dir():
        raise StoreError(f"{path}: the directory {str(path.parent)!r} does not exist")
    making = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.making")
    try:
        _create(making, made_with, shapes)
        os.rename(making, path)
    except OSError as error:
        raise StoreError(f"{path}: the store cannot be made: {error}") from error
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return Store(path)


def _whole(store, shapes):
    """The store, if it has all arrays. Raises `StoreError`."""
    for name in (*_named(shapes[1]), OUTCOME, MARKERS):
        try:
            store._group[name].shape  # noqa: B018
        except Exception as error:
            raise StoreError(f"{store.path} is damaged, its array {name!r} cannot be opened: give the store another name") from error
    return store


def read_manifest(path):
    """What a store was made with. Raises `StoreError` where there is none."""
    zarr = _zarr()
    try:
        return dict(json.loads(zarr.open_group(str(path), mode="r").attrs[MANIFEST]))
    except (KeyError, TypeError, ValueError, FileNotFoundError, NotADirectoryError) as error:
        raise StoreError(f"{path} exists and is not a store of jaxnsd.ensemble: give the store another name") from error
    except Exception as error:  # too little memory, no permission, no thread: what is there may be whole
        raise StoreError(f"{path} cannot be opened: {type(error).__name__}: {error}") from error


def _create(path, made_with, shapes):
    zarr = _zarr()
    n, chunk = made_with["number of members"], made_with["chunk"]
    group = zarr.open_group(str(path), mode="w-", attributes={MANIFEST: json.dumps(made_with)})
    codes = {"flag_values": [int(code) for code in Outcome], "flag_meanings": " ".join(code.name for code in Outcome)}
    group.create_array(OUTCOME, shape=(n,), chunks=(chunk,), dtype="int8", fill_value=-1, dimension_names=("member",), attributes=codes)
    for name, shape in _named(shapes[1]).items():
        dimensions = ("member", *(f"{name}_{i}" for i in range(len(shape.shape))))
        group.create_array(
            name, shape=(n, *shape.shape), chunks=(chunk, *(max(s, 1) for s in shape.shape)), dtype=shape.dtype, dimension_names=dimensions
        )
    count = -(-n // chunk)
    group.create_array(MARKERS, shape=(count,), chunks=(1,), dtype="uint64", fill_value=0, compressors=None, dimension_names=("chunk",))


class Store:
    """A store that exists."""

    def __init__(self, path):
        self.path = Path(path)
        self.manifest = read_manifest(path)
        self.chunk, self.n = self.manifest["chunk"], self.manifest["number of members"]
        self._group = _zarr().open_group(str(path), mode="r+")

    def write(self, k, outcome, seen):
        """Write chunk k, its marker last. Raises `StoreError`."""
        first = k * self.chunk
        span = slice(first, first + len(outcome))
        outcome = outcome.astype(np.int8)
        try:
            for name, x in _named(seen).items():
                self._group[name][span] = x
            self._group[OUTCOME][span] = outcome
            self._group[MARKERS][k] = _digest(outcome, seen)
        except OSError as error:
            raise StoreError(
                f"{self.path}: chunk {k} cannot be written: {error}; what was finished before is kept, and the same call goes on from there"
            ) from error

    def read(self, k, shapes):
        """``(outcome, observation)`` of chunk k; None where it is not there, or not whole."""
        span = slice(k * self.chunk, min((k + 1) * self.chunk, self.n))
        try:
            marker = int(self._group[MARKERS][k])
            if marker == 0:
                return None
            outcome = np.asarray(self._group[OUTCOME][span])
            leaves = [np.asarray(self._group[name][span]) for name in _named(shapes[1])]
        except Exception:  # whatever a reader says of a file that was cut short
            return None
        seen = jax.tree.unflatten(jax.tree.structure(shapes[1]), leaves)
        return (outcome, seen) if _digest(outcome, seen) == marker else None


def _digest(outcome, seen):
    digest = hashlib.blake2b(np.ascontiguousarray(outcome).tobytes(), digest_size=8)
    for x in jax.tree.leaves(seen):
        digest.update(np.ascontiguousarray(x).tobytes())
    return np.uint64(int.from_bytes(digest.digest(), "little") | 1)  # not 0, which says that there is none


def _named(seen):
    """Arrays of what is observed, by their names in the store."""
    paths, _ = jax.tree_util.tree_flatten_with_path(seen)
    named = {leaf_name(path): x for path, x in paths}
    taken = sorted(TAKEN & set(named))
    if taken or len(named) < len(paths):
        raise ValueError(f"observe: the store needs names of its own for what is observed; {', '.join(taken) or 'two'} are not")
    for name, x in named.items():
        if re.search(r"^\.+$|^__|[/\\]", name):
            raise ValueError(f"observe: {name!r} cannot be the name of an array in a store")
        if np.dtype(x.dtype).kind not in "biuf":
            raise ValueError(f"observe: a store takes no arrays of {x.dtype}, which {name!r} is")
    return named


def dataset(path):
    """The observations as an `xarray.Dataset`, read when they are used; ``outcome`` is -1 for members that are not done. System, scheme and
    version are attributes.
    """
    try:
        import xarray
    except ImportError as error:
        raise ImportError("a store is opened by xarray: pip install xarray zarr") from error
    made_with = read_manifest(path)
    # Markers of chunks are no observations: with them a table would have a row for each member and chunk.
    data = xarray.open_zarr(str(path), consolidated=False, chunks=None, drop_variables=[MARKERS])
    system = made_with["system"].partition(" (")[0]
    return data.assign_attrs(system=system, scheme=made_with["scheme"], jaxnsd_version=made_with["jaxnsd version"])


def _zarr():
    try:
        import zarr
    except ImportError as error:
        raise ImportError("a store needs zarr and xarray: pip install xarray zarr") from error
    return zarr
