"""Files that appear complete or not at all."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_atomically(path: Path, data: bytes) -> None:
    """Writes to a temporary file in the same folder, then renames it.

    Its name follows the pattern of src/support/temporary_file.cpp, so that the tool removes what a killed process left.
    """
    part = path.with_name(f".cuflash-{secrets.token_hex(8)}.tmp")
    try:
        with open(part, "xb") as file:
            file.write(data)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
