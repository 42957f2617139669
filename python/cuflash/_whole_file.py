"""Files that appear complete or not at all."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_whole(path: Path, data: bytes) -> None:
    """Writes beside the place, under a random name, and renames.

    The name is that of src/support/temporary_file.cpp, so that the tool removes what a killed process left.
    """
    part = path.with_name(f".cuflash-{secrets.token_hex(8)}.tmp")
    try:
        with open(part, "xb") as file:
            file.write(data)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
