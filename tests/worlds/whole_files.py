"""The files of a running cluster, for tests that look for a secret in each of them."""

from __future__ import annotations

from pathlib import Path


def contents_of(directory: Path) -> dict[Path, bytes]:
    """The content of each file below ``directory``. Nodes replace files meanwhile: they write a new file and rename it.
    So a listing in which a file has vanished is made again."""
    while True:
        try:
            return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
        except FileNotFoundError:
            continue
