"""Replace a file so that neither a crash nor a power loss leaves an incomplete one."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def replace_file(path: Path, text: str) -> None:
    """Replace a file, or create it; it is durable when the function returns. Only its owner may read the file, because
    it may hold passwords. Readers, and a start after a power loss, find either the old text or the new one."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(scratch, "w", encoding="utf-8", opener=_private) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(scratch)
        raise
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _private(path: str, flags: int) -> int:
    """Open a new file with mode 0600. A leftover of a former process with the same pid is removed first: it may have
    another mode."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    return os.open(path, flags | os.O_EXCL, 0o600)
