"""Whether a file can be written, asked before what is to be in it is computed."""

import contextlib
import os
import tempfile
from pathlib import Path


def path_of(path):
    """A path; TypeError for what is none."""
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"the path must be the name of a file, got {path!r}")
    return Path(path)


def readable(path):
    """The path of a file that is there; raises OSError, with a sentence, where there is none."""
    path = path_of(path)
    if path.is_dir():
        raise IsADirectoryError(f"{str(path)!r} is a directory; give the name of a file in it")
    if not path.is_file():
        raise FileNotFoundError(f"the file {str(path)!r} does not exist")
    return path


@contextlib.contextmanager
def saying(who):
    """Where a path is looked at: errors say who asks for it."""
    try:
        yield
    except (OSError, TypeError) as error:
        raise type(error)(f"{who}: {error}") from None


def writable(path):
    """Raise OSError, with a sentence, where a file cannot be written, new or in place of what is there."""
    path = path_of(path)
    if path.is_dir():
        raise IsADirectoryError(f"{str(path)!r} is a directory; give the name of a file in it")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the directory {str(path.parent)!r} does not exist")
    try:
        # What permissions say is not the whole of it: of read-only file systems, say, they know nothing.
        with open(path, "r+b") if path.exists() else tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise type(error)(f"{str(path)!r} cannot be written: {error.strerror}") from None
