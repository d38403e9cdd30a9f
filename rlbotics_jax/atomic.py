"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: str | os.PathLike) -> Iterator[Path]:
    """Gives a temporary path beside `path`, of the same ending, and moves what was written there into its place.

    Folders that are missing are made. After an error, `path` is as it was and nothing is left beside it.

    Raises:
        OSError: the folder cannot be made or written.
    """
    path = Path(path)
    if not path.name:
        raise IsADirectoryError(errno.EISDIR, "A file is to be written, this is a folder", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.tmp{path.suffix}")
    try:
        yield temporary
        with temporary.open("rb+") as file:  # on the disk before it has the name: a power cut leaves no empty file
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        # A name that nobody gave, or, of a disk that turns out to be full, none.
        if error.errno is not None and (error.filename is None or Path(error.filename) == temporary):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    finally:
        temporary.unlink(missing_ok=True)
