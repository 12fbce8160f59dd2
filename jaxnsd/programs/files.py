"""Whether a file can be written, asked before what is to be in it is computed."""

import tempfile
from pathlib import Path


def writable(path):
    """Raise OSError, with a sentence, where a file cannot be written, new or in place of what is there."""
    path = Path(path)
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
