"""Read lines of growing files: growth, rotation by renaming, truncation, removal.

A file is known by its device, inode and first bytes, not by its path, so reading of a renamed file continues at its
position. The first bytes (FINGERPRINT_BYTES) distinguish a new file from an old file whose inode number it reuses.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

FINGERPRINT_BYTES = 1_024
READ_BYTES = 256 * 1024
#: Seconds after which a file that lost its path, and has not grown, is closed.
CLOSED_AFTER_S = 5.0
#: Time after which the position of a file that no longer exists is removed.
FORGOTTEN_AFTER_MS = 24 * 3_600_000
_COMPRESSED = (".gz", ".xz", ".zst", ".bz2", ".lz4", ".zip")
#: Milliseconds that the kernel's clock for modification times may be behind.
MODIFIED_LATE_MS = 10
#: With copytruncate, the shipper may look at a file up to this many milliseconds after the last write to the file's
#: copy, and still before the file's truncation.
COPIED_EARLY_MS = 1_000
#: Seconds after which the unterminated rest of a file that lost its path counts as its last line.
LAST_LINE_AFTER_S = 2.0
#: The process or the machine currently lacks descriptors or memory. The shipper must not skip a file for this reason,
#: because the file would be lost.
SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
#: Number of file descriptors that are reserved for connections and for rotated files. If the process may open only a
#: few files, at most half of the descriptors are reserved.
DESCRIPTORS_KEPT = 100
#: Maximum number of scans of a directory whose files are being renamed, and of attempts to open a path.
SCANS_MAX = 50


@dataclass(frozen=True, slots=True)
class Position:
    """The position up to which a file is shipped. ``offset`` is the first byte that is not shipped. ``fingerprint``:
    hash of the first ``fingerprint_bytes`` bytes. ``path``: the path under which the file is followed. ``at_ms``: when
    the path was last seen to lead to the file, in ms since 1970; files that were rotated from the path since then are
    newer."""

    path: str
    device: int
    inode: int
    offset: int
    fingerprint: str
    fingerprint_bytes: int
    at_ms: int

    @property
    def identity(self) -> tuple[int, int]:
        return self.device, self.inode


@dataclass(frozen=True, slots=True)
class Line:
    """A line without its end. ``begin``: its position in the file, ``end``: the position after its end. A line above
    the size limit is split into pieces; ``is_whole`` is False for each piece except the last."""

    text: bytes
    begin: int
    end: int
    is_whole: bool = True


class Tail:
    """An open file, and the position of the next line."""

    def __init__(self, path: str, descriptor: int, offset: int, line_bytes_max: int) -> None:
        status = os.fstat(descriptor)
        self.path = path
        self.identity = (status.st_dev, status.st_ino)
        self.offset = offset
        #: The position up to which the file was shipped, as far as this shipper knows; see ``rewind``.
        self.shipped_to = offset
        self.has_position = (
            False  #: Whether a position of the file is stored, so that the next run recognizes the file.
        )
        self.has_path = True  #: Whether the path still leads to this file.
        self.seen_ms = 0  #: When the path was last seen to lead to this file.
        self.before_ms = 0  #: The previous value of ``seen_ms``: a truncation that is found now came later.
        self.lost_at = 0.0
        self.grown_at = 0.0
        self.failure = ""  #: Why the last read failed.
        self._descriptor = descriptor
        self._line_bytes_max = line_bytes_max
        self._fingerprint = ("", 0)
        self._buffer = b""  # bytes of the file; those from ``_at`` on are the bytes from ``offset`` on
        self._at = 0

    def close(self) -> None:
        os.close(self._descriptor)

    @property
    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    @property
    def unread(self) -> int:
        """The number of bytes after the position."""
        return max(self.size - self.offset, 0)

    @property
    def is_removed(self) -> bool:
        return os.fstat(self._descriptor).st_nlink == 0

    def position(self) -> Position:
        digest, length = self._fingerprint
        return Position(self.path, *self.identity, self.offset, digest, length, self.seen_ms)

    def is_replaced(self) -> bool:
        """Whether the file was truncated or overwritten: it is shorter than the position, or begins with other bytes.
        If the file has grown, the fingerprint is extended to more of its first bytes."""
        if self.size < self.offset:
            return True
        digest, length = self._fingerprint
        if length < FINGERPRINT_BYTES:
            head = os.pread(self._descriptor, FINGERPRINT_BYTES, 0)
            if length and fingerprint(head[:length]) != digest:
                return True
            self._fingerprint = fingerprint(head), len(head)
            return False
        return fingerprint(os.pread(self._descriptor, length, 0)) != digest

    def begin_again(self) -> None:
        """Go to the beginning of the file, which was truncated or overwritten."""
        self.go_to(0)
        self._fingerprint = "", 0

    def go_to(self, offset: int) -> None:
        """Continue at a stored position, up to which the file is shipped."""
        self.offset = self.shipped_to = offset
        self._buffer, self._at = b"", 0

    def is_file_of(self, position: Position) -> bool:
        """Whether ``position`` is a position in this file. False if the position is in an older file with the same
        inode, or if this file was truncated or overwritten after the position was stored."""
        head = os.pread(self._descriptor, position.fingerprint_bytes, 0)
        return fingerprint(head) == position.fingerprint and self.size >= position.offset

    def lines(self, bytes_max: int, *, takes_rest: bool) -> Iterator[Line]:
        """Yield complete lines, up to about ``bytes_max`` bytes, and move the position behind each. ``takes_rest``: an
        unterminated rest at the file's end counts as a line, too."""
        taken = 0
        while taken < bytes_max:
            end = self._buffer.find(b"\n", self._at)
            have = len(self._buffer) - self._at
            if end < 0 and have <= self._line_bytes_max:
                more = os.pread(self._descriptor, READ_BYTES, self.offset + have)
                if more:
                    # The buffer is copied for each read, not for each line.
                    self._buffer, self._at = self._buffer[self._at :] + more, 0
                    continue
                if not takes_rest or not have:
                    return
                end = len(self._buffer)
            size = end - self._at
            if end < 0 or size > self._line_bytes_max:
                line = self._take(self._line_bytes_max, self._line_bytes_max, is_whole=False)
            else:
                line = self._take(size, min(size + 1, have), is_whole=True)
            taken += line.end - line.begin
            yield line

    def _take(self, text_bytes: int, bytes_: int, *, is_whole: bool) -> Line:
        text = self._buffer[self._at : self._at + text_bytes]
        self._at += bytes_
        begin, self.offset = self.offset, self.offset + bytes_
        return Line(text.removesuffix(b"\r") if is_whole else text, begin, self.offset, is_whole)


class _Rotated(NamedTuple):
    """A file that a scan has found. ``name``: the path under which it was followed."""

    modified_ns: int
    path: str
    name: str
    identity: tuple[int, int]


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _descriptor_of(path: str) -> int:
    # Without O_NONBLOCK, a FIFO that took the path since the last check would block the shipper.
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)


def fingerprint(head: bytes) -> str:
    return hashlib.sha256(head).hexdigest()[:32] if head else ""


class _FullError(OSError):
    """The maximum number of files is already open."""

    def __init__(self, files_max: int) -> None:
        super().__init__(
            errno.EMFILE,
            f"{files_max} files are open, as many as the limit of file descriptors allows; raise it (ulimit -n)",
        )


def files_max_of(descriptors: int) -> int:
    """The maximum number of files for a process with this limit of descriptors; -1: no limit."""
    return sys.maxsize if descriptors < 0 else max(descriptors - DESCRIPTORS_KEPT, descriptors // 2, 1)


class Files:
    """The files of a shipper: files that its paths and patterns name, and older files that are not yet read to their
    end.

    ``known``: positions of an earlier run. ``from_end``: a file without a position begins at its end if it exists when
    the shipper starts. ``files_max``: further files wait until one of the open files is closed.
    """

    def __init__(
        self,
        patterns: Iterable[str],
        known: Mapping[tuple[int, int], Position],
        *,
        from_end: bool,
        line_bytes_max: int,
        now_ms: int,
        files_max: int = sys.maxsize,
    ) -> None:
        self._files_max = files_max
        self._waits_for_descriptors = False
        self._patterns = list(patterns)
        self._known = dict(known)
        self._followed = {position.path for position in known.values()}
        self._from_end = from_end
        self._line_bytes_max = line_bytes_max
        self.tails: dict[tuple[int, int], Tail] = {}
        #: Files whose position was lost, as texts for the log: truncated, overwritten.
        self.notes: list[str] = []
        #: Files of earlier runs that no longer exist.
        self.forgotten: list[tuple[int, int]] = []
        #: Paths that cannot be opened now, with the reason. The shipper tries them again at each check.
        self.unreadable: dict[str, str] = {}
        self._special: set[str] = set()  # paths of FIFOs, sockets and devices
        #: Maps each path to the file to which it led at the last check (None: to no file), and the time when it last
        #: led to a file.
        self._at: dict[str, tuple[tuple[int, int] | None, int]] = {}
        self._open_renamed(now_ms)
        self.look(0.0, now_ms)
        self._from_end = False

    def _open_renamed(self, now_ms: int) -> None:
        """Open files that were rotated while no shipper ran, and forget files that no longer exist."""
        last_ms: dict[str, int] = {}
        for position in self._known.values():
            last_ms[position.path] = max(position.at_ms, last_ms.get(position.path, 0))
        for position in list(self._known.values()):
            try:
                was_truncated = self._was_truncated(position)
            except OSError as error:
                if error.errno in SHORTAGES:
                    raise
                continue  # ``look`` notes it
            if was_truncated:
                self._know_copy(position)
        seen = self._open_rotated(last_ms)
        self.forgotten = [
            each.identity
            for each in self._known.values()
            if each.identity not in seen
            and now_ms - each.at_ms > FORGOTTEN_AFTER_MS
            and os.path.isdir(os.path.dirname(each.path))
        ]

    def _open_rotated(self, last_ms: Mapping[str, int]) -> set[tuple[int, int]]:
        """Open known files that are not read to their end, and files that were rotated from a path of ``last_ms``:
        their name begins with the path, and they were written after the time in ``last_ms``, when the path last led to
        a known file. The oldest file is opened first. Returns the files that exist.

        A scan of a directory may miss a file that is renamed during the scan, so two scans in a row must have the same
        result."""
        before: set[tuple[str, tuple[int, int]]] | None = None
        for _ in range(SCANS_MAX):
            seen, wanted = self._scan(last_ms)
            names = {(each.path, each.identity) for each in wanted}
            if names == before and self._open_all(wanted):
                break
            before = names
        else:
            self.notes.append(
                f"files of {', '.join(last_ms)} were renamed in each of {SCANS_MAX} scans: some files "
                "may have been missed"
            )
        return seen

    def _was_truncated(self, position: Position) -> bool:
        """Whether ``position.path`` still leads to the file of ``position``, and this file was truncated or
        overwritten."""
        descriptor = _descriptor_of(position.path)
        tail = Tail(position.path, descriptor, 0, self._line_bytes_max)
        try:
            return tail.identity == position.identity and not tail.is_file_of(position)
        finally:
            tail.close()

    def _know_copy(self, position: Position) -> tuple[tuple[int, int], str] | None:
        """Find the copy of a file that was truncated (logrotate's ``copytruncate``), and note that it is shipped up to
        ``position``. Returns the copy and its path if the copy has bytes after the position.

        The copy was written after ``position``. If several files have the same beginning, the copy is the oldest one,
        because the others are copies of later truncations."""
        matches = []
        for entry in self._entries(os.path.dirname(position.path)):
            if not _is_rotated(entry.path, position.path) or not position.fingerprint_bytes:
                continue
            try:
                status = entry.stat(follow_symlinks=False)
                is_later = status.st_mtime_ns // 1_000_000 + COPIED_EARLY_MS > position.at_ms
                if not stat.S_ISREG(status.st_mode) or not is_later or _identity(status) in self.tails:
                    continue
                tail = Tail(position.path, _descriptor_of(entry.path), 0, self._line_bytes_max)
            except FileNotFoundError:  # removed or renamed meanwhile
                continue
            except OSError as error:
                self._pass_over(entry.path, error)
                continue
            try:
                known = self._known.get(tail.identity)
                if known is not None and not tail.is_file_of(known):
                    del self._known[tail.identity]  # the old file is gone, and a new file has its inode number
                    known = None
                if known is None and tail.is_file_of(position):
                    matches.append((status.st_mtime_ns, entry.path, tail.identity, tail.size))
            finally:
                tail.close()
        if not matches:
            return None
        _, path, identity, size = min(matches)
        self._known[identity] = replace(position, device=identity[0], inode=identity[1])
        return (identity, path) if size > position.offset else None

    def _begin_again(self, tail: Tail, position: Position) -> str | None:
        """Start again at the beginning of a truncated or overwritten file, after the unread rest of its copy and after
        the copies of later truncations. Returns the path of the copy if it has an unread rest."""
        copy, before = self._know_copy(position), set(self.tails)
        self._open_rotated({tail.path: position.at_ms})
        for identity in self.tails.keys() - before:
            self.tails[identity].has_path = False  # the file waits for them
        self.tails[tail.identity] = self.tails.pop(tail.identity)  # behind its copies
        tail.begin_again()
        return None if copy is None else copy[1]

    def _scan(self, last_ms: Mapping[str, int]) -> tuple[set[tuple[int, int]], list[_Rotated]]:
        """The files in the directories of the paths, and the subset that ``_open_rotated`` must open."""
        wanted: list[_Rotated] = []
        seen: set[tuple[int, int]] = set()
        directories = {os.path.dirname(path) for path in last_ms}
        for directory in filter(os.path.isdir, sorted(directories)):
            for entry in self._entries(directory):
                with contextlib.suppress(OSError):  # removed or renamed meanwhile
                    status = entry.stat(follow_symlinks=False)
                    if not stat.S_ISREG(status.st_mode):
                        continue
                    seen.add(identity := (status.st_dev, status.st_ino))
                    known = self._known.get(identity)
                    if known is not None:
                        name = known.path if status.st_size > known.offset else None
                    else:
                        name = _rotated_from(entry.path, status.st_mtime_ns // 1_000_000, last_ms)
                    if name is not None and identity not in self.tails:
                        wanted.append(_Rotated(status.st_mtime_ns, entry.path, name, identity))
        return seen, sorted(wanted)

    def _open_all(self, wanted: Iterable[_Rotated]) -> bool:
        """Open the files of a scan, in the given order. If one of the files was renamed after the scan, open none and
        return False. Raises OSError if descriptors or memory run out."""
        opened: list[tuple[int, _Rotated]] = []
        try:
            for each in wanted:
                try:
                    opened.append((_descriptor_of(each.path), each))
                except FileNotFoundError:
                    return False
                except OSError as error:
                    self._pass_over(each.path, error)
            if any(_identity(os.fstat(descriptor)) != each.identity for descriptor, each in opened):
                return False
            while opened:
                descriptor, each = opened.pop(0)
                self._add(descriptor, each.path, each.name, seen_ms=each.modified_ns // 1_000_000)
            return True
        finally:
            for descriptor, _ in opened:
                os.close(descriptor)

    def _entries(self, directory: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(directory) as entries:
                return list(entries)
        except OSError as error:
            self._pass_over(directory, error)
            return []

    def look(self, now_s: float, now_ms: int) -> None:
        """Open new files, and note which files have lost their paths. A busy shipper may check its paths seldom. If a
        path now leads to another file than at the last check, the files that had the path in between are opened
        first."""
        paths = [path for pattern in self._patterns for path in sorted(glob.glob(pattern)) or [pattern]]
        found = set()
        unsure = set()  # paths that may still lead to their files
        for path in dict.fromkeys(paths):
            try:
                identity = self._look_at(path, now_ms)
            except _FullError as error:  # the path leads to a file that is not open
                self._note_full(path, error)
                continue
            except OSError as error:
                unsure.add(path)
                self._note_unreadable(path, error.strerror or str(error))
                continue
            if identity is None:
                continue
            found.add(identity)
            tail = self.tails.get(identity)
            if tail is not None:
                tail.has_path, tail.path = True, path
                tail.before_ms, tail.seen_ms = tail.seen_ms, now_ms
                self.unreadable.pop(path, None)
        for identity, tail in self.tails.items():
            if tail.has_path and identity not in found and tail.path not in unsure:
                tail.has_path, tail.lost_at = False, now_s

    def _look_at(self, path: str, now_ms: int) -> tuple[int, int] | None:
        """Open the file to which a path leads, after the files that had the path since the last check. Returns the
        file; None if the path leads to no regular file. Raises OSError.

        If the path leads to another file before the first file is open, the path is checked again. ``_at`` has only
        files that were opened, so the next scan finds the first file."""
        for _ in range(SCANS_MAX):
            before = self._at.get(path)
            try:
                status = os.stat(path)
            except FileNotFoundError:  # removed or renamed, or not there yet
                self.unreadable.pop(path, None)
                if before is not None and before[0] is not None:
                    self._open_rotated({path: before[1]})
                    self._at[path] = None, before[1]
                return None
            if not stat.S_ISREG(status.st_mode):
                if not stat.S_ISDIR(status.st_mode) and path not in self._special:
                    self._special.add(path)
                    self.notes.append(f"{path} is not a regular file, and is ignored")
                return None
            identity = _identity(status)
            if before is not None and before[0] != identity:
                self._open_rotated({path: before[1]})
            if identity not in self.tails and len(self.tails) >= self._files_max:
                self._at.setdefault(path, (None, status.st_mtime_ns // 1_000_000))  # it may be rotated before it opens
                raise _FullError(self._files_max)
            if identity in self.tails or self._open(path, identity):
                self._at[path] = identity, now_ms
                return identity
            self._at.setdefault(path, (None, status.st_mtime_ns // 1_000_000))
        return None

    def _pass_over(self, path: str, error: OSError) -> None:
        """Note that a path cannot be read. Raises OSError if descriptors or memory run out; the whole check is then
        repeated later."""
        if error.errno in SHORTAGES:
            raise error
        self._note_unreadable(path, error.strerror or str(error))

    def _note_full(self, path: str, error: _FullError) -> None:
        """Log only once that files wait, because there may be thousands."""
        self.unreadable[path] = str(error.strerror)
        if not self._waits_for_descriptors:
            self._waits_for_descriptors = True
            self.notes.append(f"{path}, and possibly other files, must wait: {error.strerror}")

    def _note_unreadable(self, path: str, reason: str) -> None:
        if self.unreadable.get(path) != reason:
            self.unreadable[path] = reason
            self.notes.append(f"{path} cannot be read: {reason}; the shipper retries")

    def _open(self, path: str, identity: tuple[int, int]) -> bool:
        """Open the file at ``path``, or note why it cannot be read. Returns False if the path does not lead to the file
        ``identity`` any more."""
        try:
            descriptor = _descriptor_of(path)
        except FileNotFoundError:
            return False
        except OSError as error:
            self._pass_over(path, error)
            return True
        if _identity(os.fstat(descriptor)) != identity:
            os.close(descriptor)
            return False
        self._add(descriptor, path, path)
        return True

    def _add(self, descriptor: int, path: str, name: str, *, seen_ms: int = 0) -> None:
        """Follow an open file, or note why it cannot be read. ``name``: the path under which the file was followed
        before it was renamed to ``path``; ``seen_ms``: when it had that path."""
        try:
            tail = self._tail_of(name, descriptor)
        except OSError as error:
            os.close(descriptor)
            self._note_unreadable(path, error.strerror or str(error))
            return
        if tail is None:
            os.close(descriptor)
        else:
            tail.seen_ms = seen_ms
            self.tails[tail.identity] = tail

    def _tail_of(self, path: str, descriptor: int) -> Tail | None:
        """The opened file at its position; None if it is not a regular file, or is already open."""
        tail = Tail(path, descriptor, 0, self._line_bytes_max)
        if tail.identity in self.tails or not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        position = self._known.get(tail.identity)
        if position is not None and not self._is_other(tail, position):
            tail.go_to(position.offset)
            tail.has_position = True
        elif self._from_end and position is None and path not in self._followed:
            tail.go_to(_end_of_last_line(descriptor))
        tail.is_replaced()  # computes the fingerprint
        return tail

    def _is_other(self, tail: Tail, position: Position) -> bool:
        """Whether the inode of ``position`` now belongs to another file."""
        is_other = not tail.is_file_of(position)
        if is_other:
            self.notes.append(
                f"{position.path} is another file, or was truncated, since the last run: shipping it from its beginning"
            )
        return is_other

    def grown(self) -> list[Tail]:
        """The files with bytes to read; truncated or overwritten files start again at their beginning. A new file under
        a path waits until the file that had the path before is read to its end."""
        grown = []
        waiting = set()
        broken = set()
        for tail in list(self.tails.values()):
            try:
                if tail.is_replaced():
                    at = f"{tail.path} was truncated or overwritten at position {tail.offset}"
                    copy = self._begin_again(tail, replace(tail.position(), at_ms=tail.before_ms))
                    rest = f"the rest of its copy {copy}, then " if copy is not None else ""
                    self.notes.append(f"{at}: shipping {rest}from its beginning")
                    tail.is_replaced()
            except OSError as error:
                self.failed(tail, error)
                broken.add(tail.identity)
        for tail in self.tails.values():
            if tail.identity in broken:
                waiting.add(tail.path)
                continue
            if tail.unread and tail.path not in waiting:
                grown.append(tail)
                if not tail.has_path:
                    waiting.add(tail.path)
        return grown

    def failed(self, tail: Tail, error: OSError) -> None:
        """Note that a file cannot be read now: a disk failed (EIO), or a network file system is gone."""
        reason = error.strerror or str(error)
        if tail.failure != reason:
            tail.failure = reason
            self.notes.append(f"{tail.path} cannot be read at position {tail.offset}: {reason}; the shipper retries")

    def takes_rest(self, tail: Tail, now_s: float) -> bool:
        """Whether the unterminated rest of a file is its last line, because it will not grow any more."""
        return not tail.has_path and now_s - max(tail.lost_at, tail.grown_at) >= LAST_LINE_AFTER_S

    def finished(self, now_s: float) -> list[Tail]:
        """The files that are read to their end, and that have had no path and have not grown for CLOSED_AFTER_S."""
        found = []
        for tail in self.tails.values():
            if not tail.has_path and now_s - max(tail.lost_at, tail.grown_at) >= CLOSED_AFTER_S:
                try:
                    if not tail.unread:
                        found.append(tail)
                except OSError as error:
                    self.failed(tail, error)
        return found

    def drop(self, tail: Tail) -> None:
        """Close a file. If the file appears under a path again, reading continues at its position."""
        if tail.is_removed:
            self._known.pop(tail.identity, None)
        elif tail.offset:
            self._known[tail.identity] = tail.position()
        tail.close()
        del self.tails[tail.identity]

    def shipped(self, tails: Iterable[Tail]) -> None:
        """Mark all bytes read from the files as shipped, and the files' positions as stored."""
        for tail in tails:
            tail.shipped_to = tail.offset
            tail.has_position = True

    def without_position(self) -> list[Tail]:
        """The open files without a stored position."""
        return [tail for tail in self.tails.values() if not tail.has_position]

    def rewind(self, known: Mapping[tuple[int, int], Position]) -> None:
        """Go back to the stored positions (``known``), after a batch that may not have been shipped. A file has no
        stored position before its first batch, nor after its last batch if the file was removed; then the shipper uses
        the position that it remembers itself."""
        self._known.update(known)
        for identity, tail in list(self.tails.items()):
            position = known.get(identity)
            if position is None:
                tail.go_to(tail.shipped_to)
            elif tail.is_file_of(position):
                tail.go_to(position.offset)
            else:  # truncated or overwritten since
                self._begin_again(tail, position)

    def close(self) -> None:
        for tail in self.tails.values():
            tail.close()
        self.tails.clear()


def _rotated_from(path: str, modified_ms: int, last_ms: Mapping[str, int]) -> str | None:
    """The followed path from which a file was rotated while no shipper ran. The file's name begins with the name of the
    followed path, as logrotate names files. The file was written after the followed path was last seen to lead to a
    known file."""
    modified_ms += MODIFIED_LATE_MS
    found = [name for name, at_ms in last_ms.items() if _is_rotated(path, name) and modified_ms > at_ms]
    return max(found, key=len, default=None)


def _is_rotated(path: str, name: str) -> bool:
    """Whether ``path`` is a name that logrotate gives to the rotated file or copy of ``name``, without compression."""
    return path != name and path.startswith(name) and not path.endswith(_COMPRESSED)


def _end_of_last_line(descriptor: int) -> int:
    """The position after the last line end of a file."""
    at = os.fstat(descriptor).st_size
    while at > 0:
        begin = max(at - READ_BYTES, 0)
        found = os.pread(descriptor, at - begin, begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        at = begin
    return 0


def check_paths(paths: Iterable[str]) -> list[str]:
    """Return the paths and patterns as absolute ones. Raises ValueError for a directory."""
    found = []
    for path in paths:
        if Path(path).is_dir():
            raise ValueError(f"{path} is a directory; name its files by a pattern, such as '{path.rstrip('/')}/*.log'")
        found.append(os.path.abspath(path))
    return found
