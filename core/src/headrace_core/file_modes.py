"""What is created in a private directory is private: a new file or directory has no permission for others that its
directory does not have. In a directory with mode 0700 files get 0600 and directories 0700, without a umask, which
belongs to the whole process."""

from __future__ import annotations

import os

_FILE, _DIRECTORY = 0o644, 0o755


def opener(path: str, flags: int) -> int:
    """``open``'s ``opener``."""
    if not flags & os.O_CREAT:
        return os.open(path, flags)
    return os.open(path, flags, _FILE & (_parents(path) | 0o600))


def make_directory(path: str | os.PathLike[str]) -> None:
    """``os.mkdir``."""
    os.mkdir(path, _DIRECTORY & (_parents(path) | 0o700))


def make_private(directory: str | os.PathLike[str], *, public: str | os.PathLike[str] = "") -> None:
    """Take all permissions of others from ``directory`` and everything below, the file ``public`` aside.

    Symbolic links are not followed; what a running node deletes meanwhile is passed over. Raises OSError, such as for
    files of another user.
    """
    directory, public = os.path.realpath(directory), os.path.realpath(public)
    _close(directory)
    for root, directories, files in os.walk(directory):
        for name in (*directories, *files):
            path = os.path.join(root, name)
            if path != public:
                _close(path)


def is_open_to_others(directory: str | os.PathLike[str]) -> bool:
    """Whether other users of this machine may list ``directory``: they must be able to pass through its parents."""
    path = os.path.realpath(directory)
    try:
        modes = [os.stat(path).st_mode & 0o005 == 0o005]
        while (parent := os.path.dirname(path)) != path:
            path = parent
            modes.append(bool(os.stat(path).st_mode & 0o001))
    except OSError:
        return False
    return all(modes)


def _close(path: str) -> None:
    try:
        mode = os.lstat(path).st_mode
        if mode & 0o077 and not os.path.islink(path):
            os.chmod(path, mode & 0o7700)
    except FileNotFoundError:
        pass


def _parents(path: str | os.PathLike[str]) -> int:
    try:
        return os.stat(os.path.dirname(path) or ".").st_mode
    except OSError:
        return 0  # what is created reports the error with its own name
