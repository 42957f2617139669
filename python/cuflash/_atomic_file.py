"""Files that appear complete or not at all."""

from __future__ import annotations

import errno
import os
import secrets
from pathlib import Path


def place_of(path: Path) -> Path:
    """The path to write to: a link is followed, so that renaming does not replace it.

    Raises OSError, with a reason as its strerror, if nothing can be written there. A caller wants to know that before it
    computes what to write."""
    try:
        place = path.resolve()
    except RuntimeError:
        raise OSError(errno.ELOOP, "its links form a circle") from None
    if place.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a directory")
    if place.exists() and not place.is_file():
        raise OSError(errno.EINVAL, "it exists and is not a regular file")
    if not place.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "its folder does not exist")
    if not os.access(place.parent, os.W_OK):
        raise OSError(errno.EACCES, "its folder is not writable")
    return place


def write_atomically(path: Path, data: bytes) -> None:
    """Writes to a temporary file in the same folder, then renames it.

    Its name follows the pattern of src/support/temporary_file.cpp, so that the tool removes what a killed process left.
    """
    place = place_of(path)
    part = place.with_name(f".cuflash-{secrets.token_hex(8)}.tmp")
    try:
        with open(part, "xb") as file:
            file.write(data)
        os.replace(part, place)
    finally:
        part.unlink(missing_ok=True)
