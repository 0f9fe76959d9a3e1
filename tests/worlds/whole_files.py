"""The files of a running cluster, for tests that look for a secret in each of them."""

from __future__ import annotations

import contextlib
from pathlib import Path

from tests.worlds.waiting import until


def contents_of(directory: Path) -> dict[Path, bytes]:
    """The content of each file below ``directory``. Nodes replace files meanwhile: they write a new file and rename it.
    So a listing in which a file has vanished is made again."""

    def contents() -> list[dict[Path, bytes]] | None:
        with contextlib.suppress(FileNotFoundError):
            return [{path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}]
        return None

    (found,) = until(contents, "a listing whose files are all there")
    return dict(found)
