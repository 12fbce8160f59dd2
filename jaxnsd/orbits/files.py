"""Files of branches and curves: arrays and words in one ``.npz`` file."""

import contextlib
import json
import os
import zipfile
from typing import Any

import numpy as np

from ..programs.files import readable, saying


def written(path, words, arrays):
    """Write arrays by name, and what JSON can say."""
    with open(path, "wb") as file:
        np.savez(file, text=json.dumps(words), **arrays)


def read(cls, path, names):
    """``(words, arrays)`` of a file of this class, with arrays of these names; raises ValueError for another file."""
    who = cls.__name__
    with saying(f"{who}.load"):
        readable(path)
    arrays: dict[str, Any] = {}
    with contextlib.suppress(ValueError, EOFError, zipfile.BadZipFile), open(path, "rb") as binary, np.load(binary) as file:
        arrays = {name: file[name] for name in file.files}
    if set(arrays) != {"text", *names}:
        raise ValueError(f"{who}.load: {os.fspath(path)} was not written by {who}.save")
    return json.loads(str(arrays.pop("text"))), arrays
