"""What a test of a running cluster found: a broken guarantee, or a wait that did not end in time.

Both are assertions, and neither is ever tried again. A SafetyViolation also keeps the cluster's files (``keep``).
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

KEPT_MAX = 3  #: Maximum number of copies of a data directory that are kept.


class SafetyViolation(AssertionError):
    """The product broke a guarantee: a record was lost, repeated or reordered, or a partition had two owners."""


class NotInTimeError(AssertionError):
    """A condition did not become true in time."""


def is_safety(error: BaseException | None) -> bool:
    """Whether a SafetyViolation is this error, one of its causes or contexts, or a member of its groups."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        if isinstance(each, SafetyViolation):
            return True
        seen.add(id(each))
        waiting += [each.__cause__, each.__context__]
        if isinstance(each, BaseExceptionGroup):
            waiting += each.exceptions
    return False


def keep(directory: Path, root: Path, name: str) -> Path:
    """Copy a data directory to ``root``/``name``, where no later run removes it; only the newest KEPT_MAX copies
    stay."""
    kept = root / name
    shutil.rmtree(kept, ignore_errors=True)
    root.mkdir(parents=True, exist_ok=True)
    shutil.copytree(directory, kept, symlinks=True, ignore=_special_files, ignore_dangling_symlinks=True)
    os.utime(kept)
    for old in sorted(root.iterdir(), key=lambda each: each.stat().st_mtime)[:-KEPT_MAX]:
        shutil.rmtree(old, ignore_errors=True)
    return kept


def _special_files(directory: str, names: list[str]) -> list[str]:
    """Return the names of sockets and pipes, which cannot be copied."""
    paths = ((name, Path(directory, name)) for name in names)
    return [name for name, path in paths if not (path.is_file() or path.is_dir() or path.is_symlink())]
