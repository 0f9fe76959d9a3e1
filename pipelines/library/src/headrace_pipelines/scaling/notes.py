"""The notes of a member: one line for each handled record, in the member's own file.

The lines of a poll are written before the offsets are committed, so each handled record has a line.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple


class Note(NamedTuple):
    """``at_ns``, ``ended_ns``: when the handling began and ended, by the machine's monotonic clock. For a row of a
    database, the handling includes the INSERT, but not the commit. ``word``: ``hit`` or ``miss`` for a scene with a
    cache, else ``-``. ``member``: the file's name."""

    partition: int
    offset: int
    key: str
    n: int
    at_ns: int
    ended_ns: int
    word: str
    member: str = ""


class Notes:
    """The notes of one member, in DIRECTORY/PID."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._file = os.open(directory / f"{os.getpid()}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, notes: list[Note]) -> None:
        """Append the lines in one write; several threads may call this method at the same time."""
        text = "".join(" ".join(map(str, note[:7])) + "\n" for note in notes)
        os.write(self._file, text.encode())


def read(directory: Path) -> list[Note]:
    """The notes of all members, by ``at_ns``. The last line of a killed member may be incomplete."""
    found = []
    for path in sorted(directory.glob("*")):
        for line in path.read_text().splitlines(keepends=True):
            words = line.split()
            if line.endswith("\n") and len(words) == 7:
                partition, offset, key, n, at_ns, ended_ns, word = words
                note = Note(int(partition), int(offset), key, int(n), int(at_ns), int(ended_ns), word, path.name)
                found.append(note)
    return sorted(found, key=lambda note: note.at_ns)
