"""Read lines of growing files: growth, rotation by renaming, truncation, removal.

A file is known by its device, inode, birth time and first bytes, not by its path, so reading of a renamed file
continues at its position. The birth time distinguishes a new file from an old file whose inode number it reuses. On a
file system without birth times, the first bytes (FINGERPRINT_BYTES) distinguish them.

A truncated file gets a new content. A position is always in one content. The rest of the former content, and contents
that came and went between two checks, are read from their copies, which have the file's name and a rotation's suffix.
Copies are ordered by their times of modification: the copy of a content is not older than the content's last write, and
not younger than the truncation.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import math
import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

from .births import born_ns

FINGERPRINT_BYTES = 1_024
READ_BYTES = 256 * 1024
#: Seconds after which a file that lost its path, and has not grown, is closed.
CLOSED_AFTER_S = 5.0
#: Time after which the position of a file that no longer exists is removed. If the shipper has not seen any file at a
#: path yet, it ships a renamed file of this path only if the file is younger than this time.
FORGOTTEN_AFTER_MS = 24 * 3_600_000
_COMPRESSED = (".gz", ".xz", ".zst", ".bz2", ".lz4", ".zip", ".lzma", ".tgz", ".7z", ".br", ".Z")
#: What a rotation appends to a name: a number or a date, perhaps with more behind it (logrotate, Python, log4j), or
#: "old" (scripts for nginx).
_SUFFIX = re.compile(r"[._-](\d[\w.:+-]*|old)")
#: Suffixes of files that are not rotated logs, or that are compressed.
_OTHER = (*_COMPRESSED, ".bak", ".tmp", ".swp", ".part")
#: Milliseconds that the kernel's clock for modification times may be behind.
MODIFIED_LATE_MS = 10
#: A copy (logrotate's ``copytruncate``) may be this many nanoseconds older than the last write to its file, because a
#: program may write to the file after logrotate has copied it and before logrotate truncates it.
COPIED_EARLY_NS = 10_000_000_000
#: A file may be renamed or removed while its last line has no line break. After this number of seconds without growth,
#: the shipper sends that line.
LAST_LINE_AFTER_S = 2.0
#: The process or the machine currently lacks descriptors or memory. The shipper must not skip a file for this reason,
#: because the file would be lost.
SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
#: Number of file descriptors that are reserved for connections and for rotated files. If the process may open only a
#: few files, at most half of the descriptors are reserved.
DESCRIPTORS_KEPT = 100
#: Maximum number of scans of a directory whose files are being renamed, and of attempts to open a path.
SCANS_MAX = 50
#: Files that the repeated scan for grown files may look at in a second: about 1 % of a processor.
SCANNED_PER_S = 2_000


@dataclass(frozen=True, slots=True)
class Position:
    """The position up to which a file is shipped. ``offset`` is the first byte that is not shipped. ``fingerprint``:
    hash of the first ``fingerprint_bytes`` bytes; they are 0 only if ``offset`` is 0. ``path``: the path under which
    the file is followed. ``at_ms``: when the path was last seen to lead to the file, in ms since 1970; files that were
    rotated from the path since then are newer. ``modified_ns``: when the file was modified, as seen at that time.
    ``born_ns``: the file's birth time; 0: unknown."""

    path: str
    device: int
    inode: int
    offset: int
    fingerprint: str
    fingerprint_bytes: int
    at_ms: int
    modified_ns: int
    born_ns: int = 0

    @property
    def identity(self) -> tuple[int, int]:
        return self.device, self.inode


@dataclass(frozen=True, slots=True)
class Content:
    """What identifies the present content of a file: its first bytes (``head``) and its size. The file's time of
    modification was ``modified_ns`` before ``head`` was read, and ``until_ns`` afterwards. The copy of a later content
    is therefore younger than ``modified_ns``, and the copy of an earlier one is not younger than ``until_ns``."""

    modified_ns: int
    head: bytes
    size: int
    until_ns: int


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
        self.born_ns = born_ns(descriptor)  #: 0: unknown.
        #: The shipper reads the files of one path in the order of this time: the birth of the file, or a later time if
        #: files that were born later contain older lines.
        self.order_ns = self.born_ns
        self.offset = offset
        #: The position up to which the file was shipped, as far as this shipper knows; see ``rewind``.
        self.shipped_to = offset
        #: Whether a position of the file is stored, so that the next run recognizes the file.
        self.has_position = False
        self.has_path = True  #: Whether the path still leads to this file.
        #: Whether the file was already a renamed file or a copy when it was opened. No rotation truncates such a file.
        self.was_rotated = False
        self.seen_ms = 0  #: When the path was last seen to lead to this file.
        #: Values of ``seen_ms`` and of the file's time of modification at the last check that found the content of the
        #: position in the file.
        self.same_ms = self.modified_ns = 0
        #: Whether a later write gives the file another time of modification than ``modified_ns``.
        self._has_own_time = False
        self.quiet_since = math.inf  #: Since when the file has had no path and the size ``quiet_size``.
        self.quiet_size = -1
        self.grown_at = 0.0  #: When lines were last read.
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

    @property
    def fingerprint_bytes(self) -> int:
        """The number of first bytes by which the content is recognized; 0 for a file that was empty when last seen."""
        return self._fingerprint[1]

    def position(self) -> Position:
        return Position(
            self.path, *self.identity, self.offset, *self._fingerprint, self.same_ms, self.modified_ns, self.born_ns
        )

    def resume(self, position: Position) -> None:
        """Continue at a stored position, up to which the file is shipped. If the file was truncated since, the position
        is in a content that the file does not have any more; see ``is_same``."""
        self.go_to(position.offset)
        self._fingerprint = position.fingerprint, position.fingerprint_bytes
        self.same_ms, self.modified_ns = position.at_ms, position.modified_ns
        self._has_own_time = self.modified_ns < (self.same_ms - MODIFIED_LATE_MS) * 1_000_000

    def content(self) -> Content:
        return _content(self._descriptor)

    def is_same(self, content: Content) -> bool:
        """Whether the file still has the content that the position is in. False if the file was truncated or
        overwritten: it is shorter than the position, or begins with other bytes. A file that was empty may have had
        other contents since, so the answer is True only if it was not modified."""
        if content.size < self.offset:
            return False
        if self.fingerprint_bytes:
            return self.begins(content.head)
        return self._has_own_time and content.modified_ns == self.modified_ns and not content.head

    def begins(self, head: bytes) -> bool:
        """Whether ``head`` begins with the bytes by which the content is recognized."""
        digest, length = self._fingerprint
        return len(head) >= length and fingerprint(head[:length]) == digest

    def know(self, content: Content) -> None:
        """Recognize the content from now on by these first bytes."""
        self._fingerprint = fingerprint(content.head), len(content.head)
        # The time may also be in the future: a clock was set back, or belongs to another machine.
        is_seen_again = content.modified_ns == self.modified_ns and abs(self.seen_ms - self.same_ms) >= MODIFIED_LATE_MS
        is_past = content.modified_ns < (self.seen_ms - MODIFIED_LATE_MS) * 1_000_000
        self._has_own_time = is_past or is_seen_again
        self.same_ms, self.modified_ns = self.seen_ms, content.modified_ns

    def go_to(self, offset: int) -> None:
        """Continue at ``offset``, up to which the file is shipped."""
        self.offset = self.shipped_to = offset
        self._buffer, self._at = b"", 0

    def is_file_of(self, position: Position) -> bool:
        """Whether ``position`` is a position in this file. False if the position is in an older file with the same
        inode, or if this file was truncated or overwritten after the position was stored."""
        return _is_file_of(self._descriptor, position)

    def lines(self, bytes_max: int, *, takes_rest: bool) -> Iterator[Line]:
        """Yield complete lines, up to about ``bytes_max`` bytes, and move the position behind each. ``takes_rest``:
        also yield the bytes after the last line break as a line."""
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
    """A file that a scan has found. ``name``: the path under which it was followed. ``offset``: the position to which a
    copy is already shipped."""

    modified_ns: int
    path: str
    name: str
    identity: tuple[int, int]
    offset: int = 0


class _Copy(NamedTuple):
    """A file that may be the copy of a truncated file."""

    modified_ns: int
    path: str
    identity: tuple[int, int]
    size: int  # -1: the file cannot be read now
    head: bytes


_Found = TypeVar("_Found", _Rotated, _Copy)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _descriptor_of(path: str) -> int:
    # Without O_NONBLOCK, a FIFO that took the path since the last check would block the shipper.
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)


def _content(descriptor: int) -> Content:
    before = os.fstat(descriptor)
    head = os.pread(descriptor, FINGERPRINT_BYTES, 0)
    after = os.fstat(descriptor)
    return Content(before.st_mtime_ns, head, after.st_size, after.st_mtime_ns)


def _opened_content(path: str) -> tuple[Content, int] | None:
    """The content and the birth time of the file at ``path``; None if there is none."""
    try:
        descriptor = _descriptor_of(path)
    except FileNotFoundError:
        return None
    try:
        return _content(descriptor), born_ns(descriptor)
    finally:
        os.close(descriptor)


def _is_file_of(descriptor: int, position: Position) -> bool:
    if _has_other_birth(born_ns(descriptor), position):
        return False
    head = os.pread(descriptor, position.fingerprint_bytes, 0)
    return fingerprint(head) == position.fingerprint and os.fstat(descriptor).st_size >= position.offset


def _birth_at(path: str) -> int:
    """The birth time of the file at ``path``; 0 if it is unknown."""
    try:
        descriptor = _descriptor_of(path)
    except OSError:
        return 0
    try:
        return born_ns(descriptor)
    finally:
        os.close(descriptor)


def _has_other_birth(birth_ns: int, position: Position) -> bool:
    """Whether a file only has the inode number of the file of ``position``, which was removed. False if a birth time is
    unknown."""
    return birth_ns != position.born_ns and 0 not in (birth_ns, position.born_ns)


def fingerprint(head: bytes) -> str:
    return hashlib.sha256(head).hexdigest()[:32] if head else ""


class _RenamedError(Exception):
    """A file of a scan was renamed or removed before it could be read, so the scan must be repeated."""


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

    ``known``: positions of an earlier run. ``followed_since``: when the shipper first looked for each path or pattern,
    in ms since 1970; older rotated files of one that is missing are not shipped. ``from_end``: a file without a
    position begins at its end if it exists when the shipper starts. ``files_max``: further files wait until one of the
    open files is closed.
    """

    def __init__(
        self,
        patterns: Iterable[str],
        known: Mapping[tuple[int, int], Position],
        *,
        from_end: bool,
        line_bytes_max: int,
        now_s: float,
        now_ms: int,
        followed_since: Mapping[str, int],
        files_max: int = sys.maxsize,
    ) -> None:
        self._files_max = files_max
        self._waits_for_descriptors = False
        #: The paths and patterns, with the time when the shipper first looked for them. None: this is the first look.
        self._patterns: dict[str, int | None] = {pattern: followed_since.get(pattern) for pattern in patterns}
        #: The last positions of closed files, and those of an earlier run. A file that could not be opened yet has the
        #: position 0 and no fingerprint; an unreadable copy has the position of the truncated file.
        self._known = dict(known)
        self._followed = {position.path for position in known.values()}
        self._from_end = from_end
        self._line_bytes_max = line_bytes_max
        self.tails: dict[tuple[int, int], Tail] = {}
        self._sent: dict[tuple[int, int], Position] = {}  # of the last batch
        #: Removed files that were the last ones of their paths, with the path and the time when it last led to them.
        self._last: dict[tuple[int, int], tuple[str, int]] = {}
        #: Files whose position was lost, as texts for the log: truncated, overwritten.
        self.notes: list[str] = []
        #: Files that have not existed for a day: their stored positions are to be removed.
        self.forgotten: list[tuple[int, int]] = []
        #: Paths that cannot be opened now, with the reason. The shipper tries them again at each check.
        self.unreadable: dict[str, str] = {}
        self._special: set[str] = set()  # paths of FIFOs, sockets and devices, and of compressed files
        #: Maps each path to the file to which it led at the last check (None: to no file), and the time when it last
        #: led to a file.
        self._led_to: dict[str, tuple[tuple[int, int] | None, int]] = {}
        self._since: dict[str, int | None] = {}  # when the shipper first looked for each path of the last check
        self._grown_scan_s = now_s  #: When the next scan for closed files that have grown is due.
        self._adopt_devices()
        self._open_renamed(now_ms)
        self.look(now_s, now_ms)
        #: The times of ``followed_since`` that the next batch must store; None: the pattern is not followed any more.
        self.unstored: dict[str, int | None] = dict.fromkeys(followed_since.keys() - self._patterns.keys())
        self.unstored.update((pattern, now_ms) for pattern, since_ms in self._patterns.items() if since_ms is None)
        self._patterns = {pattern: now_ms if at_ms is None else at_ms for pattern, at_ms in self._patterns.items()}
        self._from_end = False

    def _adopt_devices(self) -> None:
        """Move positions to another device number, which a file system may get when it is mounted again. Such a
        position is of no existing file, and a file in the same directory has its inode number and its first bytes."""
        found: dict[tuple[str, int], tuple[str, tuple[int, int]]] = {}
        for directory in {os.path.dirname(position.path) for position in self._known.values()}:
            for entry in self._entries(directory):
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode):
                        found[directory, status.st_ino] = entry.path, _identity(status)
        for position in list(self._known.values()):
            path, identity = found.get((os.path.dirname(position.path), position.inode), ("", position.identity))
            if identity in self._known or not position.fingerprint_bytes:
                continue
            with contextlib.suppress(OSError):  # ``look`` notes it
                descriptor = _descriptor_of(path)
                try:
                    if _identity(os.fstat(descriptor)) == identity and _is_file_of(descriptor, position):
                        del self._known[position.identity]
                        self._known[identity] = replace(position, device=identity[0])
                finally:
                    os.close(descriptor)

    def _open_renamed(self, now_ms: int) -> None:
        """Open files that were rotated while no shipper ran, and forget files that no longer exist. A file at its path
        is opened later, by ``look``; its copies, by ``grown``."""
        last_ms: dict[str, int] = {}
        for position in self._known.values():
            last_ms[position.path] = max(position.at_ms, last_ms.get(position.path, 0))
        renamed = {}
        for path, at_ms in last_ms.items():
            identity = None
            with contextlib.suppress(OSError):  # ``look`` notes it
                identity = _identity(os.stat(path))
            position_there = self._known.get(identity) if identity is not None else None
            if (
                position_there is None
                or position_there.path != path
                or _has_other_birth(_birth_at(path), position_there)
            ):
                identity = None
                renamed[path] = at_ms
            self._led_to[path] = identity, at_ms
        seen = self._open_rotated(renamed, {os.path.dirname(path) for path in last_ms})
        if seen is None:
            self._note_missed("an earlier run")
            return
        self.forgotten = [
            each.identity
            for each in self._known.values()
            if each.identity not in seen
            and now_ms - each.at_ms > FORGOTTEN_AFTER_MS
            and os.path.isdir(os.path.dirname(each.path))
        ]

    def _open_rotated(
        self, last_ms: Mapping[str, int], directories: Iterable[str], appeared: Iterable[str] = ()
    ) -> set[tuple[int, int]] | None:
        """Open known files in the directories that are not read to their end, and files that were rotated from a path
        of ``last_ms``: their name is the path and a rotation's suffix, and they were written after the time in
        ``last_ms``, when the path last led to a known file. The oldest file is opened first. ``appeared``: paths that
        led to no file before. Copies of their present contents are left to ``grown``.

        Returns the files that exist; None if the files could not be opened, because they were renamed during each scan.
        Raises OSError if a scan failed."""
        directories = sorted(directories)
        seen: set[tuple[int, int]] = set()

        def scan() -> list[_Rotated]:
            nonlocal seen
            seen, wanted = self._scan(last_ms, directories)
            return [each for each in wanted if each.name not in appeared or not self._is_copy_of_present(each)]

        return seen if self._open_found(scan) else None

    def _is_copy_of_present(self, file: _Rotated) -> bool:
        """Whether a file is, or will be, a copy of the present content of its path. A renamed file is older than the
        file that has the path now; a copy is younger, and may still be empty."""
        if file.identity in self._known:
            return False
        with contextlib.suppress(PermissionError):  # noted when the files are opened
            found, at_path = _opened_content(file.path), _opened_content(file.name)
            if found is None:
                raise _RenamedError
            if at_path is None:
                return False
            (content, content_born_ns), (present, present_born_ns) = found, at_path
            has_births = content_born_ns > 0 and present_born_ns > 0
            if has_births and content_born_ns < present_born_ns:
                return False
            if not content.size:
                return has_births and content_born_ns > present_born_ns
            return _is_copy_of(_Copy(0, file.path, file.identity, content.size, content.head), present)
        return False

    def _found_twice(self, scan: Callable[[], list[_Found]]) -> Iterator[list[_Found]]:
        """Yield what ``scan`` finds twice in a row: a scan of a directory may miss a file that is renamed during the
        scan."""
        before: set[tuple[str, tuple[int, int]]] | None = None
        for _ in range(SCANS_MAX):
            try:
                files = scan()
            except _RenamedError:
                continue
            found = {(each.path, each.identity) for each in files}
            if found == before:
                yield files
            before = found

    def _open_found(self, scan: Callable[[], list[_Rotated]]) -> bool:
        """Open what ``scan`` finds, in this order. False if files were renamed during each scan."""
        return any(self._open_all(wanted) for wanted in self._found_twice(scan))

    def _note_missed(self, name: str) -> None:
        self.notes.append(f"files of {name} were renamed in each of {SCANS_MAX} scans: some files may have been missed")

    def _begin_again(self, tail: Tail, content: Content) -> str | None:
        """Start at the beginning of a file that has another ``content`` now, after the unread rest of its copy and
        after the copies of later contents. Returns the path of the copy if it has an unread rest."""
        copy: _Copy | None = None
        before = set(self.tails)

        def scan() -> list[_Rotated]:
            nonlocal copy
            copy, later = self._copies(tail, content)
            found = [(each, 0) for each in later]
            if copy is not None:
                found.insert(0, (copy, min(tail.offset, copy.size)))
            return [_Rotated(each.modified_ns, each.path, tail.path, each.identity, at) for each, at in found]

        if not self._open_found(scan):
            self._note_missed(tail.path)
        opened = [each for identity, each in self.tails.items() if identity not in before]
        for each in opened:
            each.has_path = False  # the file waits for them
            tail.order_ns = max(tail.order_ns, each.order_ns + 1)
        has_rest = copy is not None and copy.size > tail.offset
        if tail.fingerprint_bytes or content.head or opened:
            tail.has_position = False  # the stored one is of another content
        tail.go_to(0)
        tail.know(content)
        return copy.path if copy is not None and has_rest else None

    def _copies(self, tail: Tail, content: Content) -> tuple[_Copy | None, list[_Copy]]:
        """The copy of the content that a file had when it was last seen, and the copies of the contents between that
        one and ``content``, the oldest first. Copies that have been opened are left out, and files that are older than
        the position.

        Truncation modifies a file, so the copy of the last content is not older than its last write, and the copies of
        earlier contents are not younger. If several files have the same beginning, the copy of the last content is the
        oldest one."""
        files = self._possible_copies(tail)
        of_last = [each for each in files if tail.fingerprint_bytes and tail.begins(each.head)]
        copy = min(
            of_last,
            key=lambda each: (each.size < tail.offset, each.modified_ns < tail.modified_ns, each.modified_ns),
            default=None,
        )
        after_ns = (tail.same_ms - MODIFIED_LATE_MS) * 1_000_000
        for each in files:
            if each.size < 0 and (tail.fingerprint_bytes or each.modified_ns > after_ns):
                # This unreadable file may be the copy. ``_open_grown`` ships its rest as soon as the file is readable.
                position = replace(tail.position(), device=each.identity[0], inode=each.identity[1], born_ns=0)
                self._known.setdefault(each.identity, position)
        if copy is not None:
            after_ns = max(after_ns, copy.modified_ns - 1)
        later = []
        for each in sorted(files):
            if each is copy or each.size <= 0 or not after_ns < each.modified_ns <= content.until_ns:
                continue
            if _is_copy_of(each, content):
                break  # the next check finds it, and those that came after it
            later.append(each)
        return copy, later

    def _possible_copies(self, tail: Tail) -> list[_Copy]:
        found = []
        for entry in self._entries(os.path.dirname(tail.path)):
            if not _is_rotated(entry.path, tail.path):
                continue
            try:
                status = entry.stat(follow_symlinks=False)
                identity = _identity(status)
                is_older = status.st_mtime_ns <= tail.modified_ns - COPIED_EARLY_NS
                if not stat.S_ISREG(status.st_mode) or is_older or identity in self.tails:
                    continue
                descriptor = _descriptor_of(entry.path)
            except FileNotFoundError:
                raise _RenamedError from None
            except OSError as error:
                self._pass_over(entry.path, error)
                found.append(_Copy(status.st_mtime_ns, entry.path, identity, -1, b""))
                continue
            try:
                if _identity(os.fstat(descriptor)) != identity:
                    raise _RenamedError
                known = self._known.get(identity)
                if known is not None and known.offset and _is_file_of(descriptor, known):
                    continue
                # Otherwise the old file is gone, and a new file has its inode number.
                content = _content(descriptor)
                found.append(_Copy(status.st_mtime_ns, entry.path, identity, content.size, content.head))
            finally:
                os.close(descriptor)
        return found

    def _scan(
        self, last_ms: Mapping[str, int], directories: Iterable[str]
    ) -> tuple[set[tuple[int, int]], list[_Rotated]]:
        """The files in the directories, and the subset that ``_open_rotated`` must open."""
        wanted: list[tuple[bool, _Rotated]] = []
        seen: set[tuple[int, int]] = set()
        for directory in filter(os.path.isdir, directories):
            for entry in self._entries(directory):
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:  # removed or renamed meanwhile
                    continue
                if not stat.S_ISREG(status.st_mode):
                    continue
                seen.add(identity := _identity(status))
                if identity not in self.tails:
                    name = self._followed_as(entry.path, status, last_ms)
                    if name is not None:
                        # The program has not opened an empty file yet: it still writes to an older file.
                        file = _Rotated(status.st_mtime_ns, entry.path, name, identity)
                        wanted.append((status.st_size == 0, file))
        return seen, [file for _, file in sorted(wanted)]

    def _followed_as(self, path: str, status: os.stat_result, last_ms: Mapping[str, int]) -> str | None:
        """The path under which a file was followed; None if it was not, if it is read to its end, or if it still has
        this path."""
        rotated_from = _rotated_from(path, status.st_mtime_ns // 1_000_000, last_ms)
        known = self._known.get(_identity(status))
        if known is None or path == known.path:
            return rotated_from
        if not known.fingerprint_bytes and not (status.st_size and _is_rotated(path, known.path)):
            return rotated_from
        has_more = status.st_size > known.offset
        if not has_more and rotated_from is None:
            return None
        try:
            descriptor = _descriptor_of(path)
        except FileNotFoundError:
            raise _RenamedError from None
        except OSError as error:
            self._pass_over(path, error)
            return None
        try:
            if _identity(os.fstat(descriptor)) != known.identity:
                raise _RenamedError
            if _is_file_of(descriptor, known):
                return known.path if has_more else None
        finally:
            os.close(descriptor)
        del self._known[known.identity]  # the old file is gone, and a new file has its inode number
        return rotated_from

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
                    self._remember(each.name, each.identity, each.modified_ns // 1_000_000)
            if any(_identity(os.fstat(descriptor)) != each.identity for descriptor, each in opened):
                return False
            while opened:
                descriptor, each = opened.pop(0)
                self._add(descriptor, each.path, each.name, each.modified_ns // 1_000_000, offset=each.offset)
            return True
        finally:
            for descriptor, _ in opened:
                os.close(descriptor)

    def _entries(self, directory: str) -> list[os.DirEntry[str]]:
        """The entries of a directory; none if it was removed, or may not be read. Raises OSError for any other failure,
        such as a failed disk: the files may still be there, so the whole check is repeated later."""
        try:
            with os.scandir(directory) as entries:
                found = list(entries)
        except FileNotFoundError:
            return []
        except PermissionError as error:
            self._note_unreadable(directory, f"{error.strerror}: the shipper does not see files that are renamed")
            return []
        self.unreadable.pop(directory, None)
        return found

    def look(self, now_s: float, now_ms: int) -> None:
        """Open new files, and note which files have lost their paths. A busy shipper may check its paths seldom. If a
        path now leads to another file than at the last check, the files that had the path in between are opened
        first."""
        self._forget_last(now_ms)
        # A pattern does not match a path that leads to no file any more.
        vanished = {path: at for path, at in self._since.items() if self._led_to.get(path, (None, 0))[0] is not None}
        self._since = {}
        for pattern, since_ms in self._patterns.items():
            for path in self._matching(pattern):
                self._since[path] = _earlier(self._since.get(path), since_ms)
        self._since |= {path: since_ms for path, since_ms in vanished.items() if path not in self._since}
        paths = list(self._since)
        scanned = self._open_between(paths, now_ms)
        found = set()
        unsure = set()  # paths that may still lead to their files
        for path in paths:
            try:
                identity = self._look_at(path, now_ms, scanned)
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
                tail.has_path, tail.path, tail.was_rotated = True, path, False
                tail.seen_ms = now_ms
                self.unreadable.pop(path, None)
        self._open_grown(now_s)
        for identity, tail in self.tails.items():
            if tail.has_path and identity not in found and tail.path not in unsure:
                tail.has_path, tail.quiet_since = False, now_s
            if not tail.has_path:
                self._notice_growth(tail, now_s)

    def _matching(self, pattern: str) -> list[str]:
        """The paths that a pattern matches now, except compressed files; the pattern itself if it may be a path."""
        if pattern.endswith(_COMPRESSED):
            if pattern not in self._special:
                self._special.add(pattern)
                self.notes.append(f"{pattern} names compressed files, and is ignored; decompress them to ship them")
            return []
        if pattern in self._led_to or os.path.exists(pattern):
            return [pattern]  # a file's name, such as app[1].log
        found = sorted(glob.glob(pattern)) or [pattern]
        return [path for path in found if not path.endswith(_COMPRESSED)]

    def _notice_growth(self, tail: Tail, now_s: float) -> None:
        try:
            size = tail.size
        except OSError as error:
            self.failed(tail, error)
            return
        if size != tail.quiet_size:
            tail.quiet_size, tail.quiet_since = size, now_s

    def _open_grown(self, now_s: float) -> None:
        """Open renamed files that were read to their end, or could not be opened, and that now have more. A program may
        write to a renamed file until it opens the new one, and this shipper may have started in between. A scan that
        misses a file, because it is renamed meanwhile, is repeated soon; a large directory is scanned less often."""
        if now_s < self._grown_scan_s or self._known.keys() <= self.tails.keys():
            return
        seen = 0
        for directory in sorted({os.path.dirname(path) for path in self._led_to}):
            try:
                files, wanted = self._scan({}, [directory])
                most = self._files_max - len(self.tails) + DESCRIPTORS_KEPT // 2
                self._open_all(wanted[: max(most, 0)])
                seen += len(files)
            except _RenamedError:
                continue
            except OSError as error:
                self._note_unreadable(directory, error.strerror or str(error))
        self._grown_scan_s = now_s + seen / SCANNED_PER_S

    def _open_between(self, paths: Iterable[str], now_ms: int) -> dict[str, tuple[int, int] | None]:
        """Open the files that had one of the paths since the last check, and that have it no more. Returns the paths
        that lead to another file than at the last check, with this file (None: to no file). One scan of a directory
        serves all its paths, because thousands may change at once: logrotate renames all files of a pattern."""
        changed: dict[str, tuple[int, int] | None] = {}
        last_ms: dict[str, int] = {}
        appeared: set[str] = set()
        for path in paths:
            before = self._before(path, now_ms)
            if before is None:
                continue
            identity = None
            try:
                status = os.stat(path)
                if not stat.S_ISREG(status.st_mode):
                    continue
                identity = _identity(status)
            except FileNotFoundError:
                pass
            except OSError:
                continue  # ``_look_at`` notes it
            if identity != before[0]:
                changed[path] = identity
                last_ms[path] = before[1]
                if before[0] is None:
                    appeared.add(path)
        if changed:
            try:
                if self._open_rotated(last_ms, {os.path.dirname(path) for path in changed}, appeared) is None:
                    return {}  # files of one path are renamed all the time; the scans for the other paths may succeed
            except OSError:
                return {}  # ``_look_at`` scans for each path, and notes it
        return changed

    def _before(self, path: str, now_ms: int) -> tuple[tuple[int, int] | None, int] | None:
        """The file to which a path led at the last check (None: no file), and the time since which later files may have
        had the path. None: the shipper looks for this path for the first time, and ships no older rotated files. For a
        path that never led to a file, older files than a day do not count."""
        since_ms = self._since.get(path)
        none = None if since_ms is None else (None, max(since_ms, now_ms - FORGOTTEN_AFTER_MS))
        return self._led_to.get(path, none)

    def _look_at(self, path: str, now_ms: int, scanned: Mapping[str, tuple[int, int] | None]) -> tuple[int, int] | None:
        """Open the file to which a path leads, after the files that had the path since the last check. Returns the
        file; None if the path leads to no regular file. Raises OSError. ``scanned``: what ``_open_between`` returned.

        If the path leads to another file before the first file is open, the path is checked again. ``_led_to`` has only
        files that were opened, so the next scan finds the first file."""
        for _ in range(SCANS_MAX):
            before = self._before(path, now_ms)
            try:
                status = os.stat(path)
            except FileNotFoundError:  # removed or renamed, or not there yet
                self.unreadable.pop(path, None)
                if before is not None and before[0] is not None:
                    if scanned.get(path, before[0]) is not None:
                        self._open_since(path, before)
                    self._led_to[path] = None, before[1]
                return None
            if not stat.S_ISREG(status.st_mode):
                if not stat.S_ISDIR(status.st_mode) and path not in self._special:
                    self._special.add(path)
                    self.notes.append(f"{path} is not a regular file, and is ignored")
                return None
            identity = _identity(status)
            if before is not None and identity not in (before[0], scanned.get(path)):
                self._open_since(path, before)
            if identity not in self.tails and len(self.tails) >= self._files_max:
                self._led_to.setdefault(
                    path, (None, status.st_mtime_ns // 1_000_000)
                )  # it may be rotated before it opens
                raise _FullError(self._files_max)
            new_since_ms = before[1] if before is not None and before[0] is None else None
            if identity in self.tails or self._open(path, identity, now_ms, new_since_ms):
                self._led_to[path] = identity, now_ms
                return identity
            self._led_to.setdefault(path, (None, status.st_mtime_ns // 1_000_000))
            scanned = {}  # a further file had the path after the scan
        return None

    def _open_since(self, path: str, before: tuple[tuple[int, int] | None, int]) -> None:
        """Open the files that had the path since it led to ``before``."""
        appeared = [path] if before[0] is None else []
        if self._open_rotated({path: before[1]}, [os.path.dirname(path)], appeared) is None:
            self._note_missed(path)

    def _pass_over(self, path: str, error: OSError) -> None:
        """Note that a path cannot be read. Raises OSError if descriptors or memory run out; the whole check is then
        repeated later."""
        if error.errno in SHORTAGES:
            raise error
        self._note_unreadable(path, error.strerror or str(error))

    def _remember(self, name: str, identity: tuple[int, int], at_ms: int) -> None:
        """Remember a file that has the path ``name`` and cannot be opened now. If it is renamed before it can be
        opened, later checks find it by its identity."""
        self._known.setdefault(identity, Position(name, *identity, 0, "", 0, at_ms, at_ms * 1_000_000))

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

    def _open(self, path: str, identity: tuple[int, int], now_ms: int, new_since_ms: int | None = None) -> bool:
        """Open the file at ``path``, or note why it cannot be read. ``new_since_ms``: when the path last led to no
        file, if the shipper noticed that. Returns False if the path does not lead to the file ``identity`` any more."""
        try:
            descriptor = _descriptor_of(path)
        except FileNotFoundError:
            return False
        except OSError as error:
            self._pass_over(path, error)
            self._remember(path, identity, now_ms)
            return True
        if _identity(os.fstat(descriptor)) != identity:
            os.close(descriptor)
            return False
        self._add(descriptor, path, path, now_ms, new_since_ms=new_since_ms)
        return True

    def _add(
        self,
        descriptor: int,
        path: str,
        name: str,
        seen_ms: int,
        *,
        offset: int = 0,
        new_since_ms: int | None = None,
    ) -> None:
        """Follow an open file, or note why it cannot be read. ``name``: the path under which the file was followed
        before it was renamed to ``path``; ``seen_ms``: when it had that path; ``new_since_ms``: see ``_open``."""
        tail = None
        try:
            tail = self._tail_of(descriptor, path, name, seen_ms, offset, new_since_ms)
        except OSError as error:
            self._note_unreadable(path, error.strerror or str(error))
        if tail is None:
            os.close(descriptor)
        else:
            self.tails[tail.identity] = tail
            self.unreadable.pop(path, None)

    def _tail_of(
        self, descriptor: int, path: str, name: str, seen_ms: int, offset: int, new_since_ms: int | None
    ) -> Tail | None:
        """The opened file at its position; None if it is not a regular file, or is already open."""
        tail = Tail(name, descriptor, offset, self._line_bytes_max)
        if tail.identity in self.tails or not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        tail.seen_ms, tail.was_rotated = seen_ms, path != name
        position = self._known.get(tail.identity)
        if position is not None and _has_other_birth(tail.born_ns, position):
            position = None
        if position is not None and path != position.path:
            is_known = position.fingerprint_bytes > 0 and not offset and not self._is_other(tail, position)
        else:
            is_known = position is not None  # if the file was truncated, ``grown`` looks for its copy
        if position is not None and is_known:
            tail.resume(position)
            tail.has_position = position.fingerprint_bytes > 0
            return tail
        if self._from_end and position is None and name not in self._followed:
            tail.go_to(_end_of_last_line(descriptor))
        elif position is None and new_since_ms is not None:
            # The file may have been copied and truncated since: ``grown`` looks for the copies.
            tail.same_ms, tail.modified_ns = new_since_ms, new_since_ms * 1_000_000
            return tail
        tail.know(tail.content())
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
        broken = set()
        for tail in list(self.tails.values()):
            try:
                self._check(tail)
            except OSError as error:
                self.failed(tail, error)
                broken.add(tail.identity)
        in_order = sorted(self.tails.values(), key=lambda tail: (tail.has_path, 0 if tail.has_path else tail.order_ns))
        waiting = {tail.path for tail in in_order if tail.identity in broken}
        in_order = [tail for tail in in_order if tail.identity not in broken]
        # Measure the new file of a path before the renamed file: when the new file has lines, the program no longer
        # writes to the renamed file.
        unread = {tail.identity: tail.unread for tail in reversed(in_order)}
        for tail in in_order:
            if unread[tail.identity] and tail.path not in waiting:
                if tail.fingerprint_bytes:  # otherwise it was empty just now, and the next check recognizes it
                    grown.append(tail)
                if not tail.has_path:
                    waiting.add(tail.path)
        return grown

    def _check(self, tail: Tail) -> None:
        """Notice that a file was truncated or overwritten."""
        content = tail.content()
        if tail.is_same(content) and not self._has_other_copy(tail, content):
            tail.know(content)
            return
        at, had_content = tail.offset, tail.fingerprint_bytes > 0
        copy = self._begin_again(tail, content)
        if had_content:
            rest = f"the rest of its copy {copy}, then " if copy is not None else ""
            self.notes.append(
                f"{tail.path} was truncated or overwritten at position {at}: shipping {rest}from its beginning"
            )

    def _has_other_copy(self, tail: Tail, content: Content) -> bool:
        """Whether a file that has grown has a copy of another content with the same beginning, such as a header: then
        it was truncated, and has grown again. Only a short beginning leaves this doubt. A copy that is not complete yet
        may begin as another copy does."""
        if tail.was_rotated or not 0 < tail.fingerprint_bytes < min(FINGERPRINT_BYTES, len(content.head)):
            return False
        return any(
            each.modified_ns >= tail.modified_ns
            and tail.begins(each.head)
            and each.head[: len(content.head)] != content.head[: len(each.head)]
            for each in next(self._found_twice(lambda: self._possible_copies(tail)), [])
        )

    def read(self, tail: Tail, bytes_max: int, now_s: float) -> list[Line]:
        """The next lines of a file of ``grown``, up to about ``bytes_max`` bytes. No line if the file cannot be read
        now, or was truncated meanwhile, because the bytes may then be of two contents."""
        begin = tail.offset
        try:
            lines = list(tail.lines(bytes_max, takes_rest=self.takes_rest(tail, now_s)))
            if not tail.is_same(tail.content()):
                tail.go_to(begin)
                return []
        except OSError as error:
            tail.go_to(begin)
            self.failed(tail, error)
            return []
        tail.failure = ""
        if lines:
            tail.grown_at = now_s
        return lines

    def failed(self, tail: Tail, error: OSError) -> None:
        """Note that a file cannot be read now: a disk failed (EIO), or a network file system is gone."""
        reason = error.strerror or str(error)
        if tail.failure != reason:
            tail.failure = reason
            self.notes.append(f"{tail.path} cannot be read at position {tail.offset}: {reason}; the shipper retries")

    def takes_rest(self, tail: Tail, now_s: float) -> bool:
        """Whether the bytes after the last line break are the file's last line, because the file will not grow any
        more."""
        is_quiet = not tail.has_path and now_s - tail.quiet_since >= LAST_LINE_AFTER_S
        return is_quiet and tail.size == tail.quiet_size

    def has_rest(self) -> bool:
        """Whether a file without a path has unread bytes, which may soon count as its last line (``takes_rest``)."""
        for tail in self.tails.values():
            try:
                if not tail.has_path and not tail.failure and tail.unread:
                    return True
            except OSError as error:
                self.failed(tail, error)
        return False

    def finished(self, now_s: float) -> list[Tail]:
        """The files that are read to their end, and that have had no path and have not grown for CLOSED_AFTER_S."""
        found = []
        for tail in self.tails.values():
            if not tail.has_path and now_s - max(tail.quiet_since, tail.grown_at) >= CLOSED_AFTER_S:
                try:
                    if not tail.unread:
                        found.append(tail)
                except OSError as error:
                    self.failed(tail, error)
        return found

    def gone(self, closed: Iterable[Tail]) -> list[tuple[int, int]]:
        """The files of ``closed``, and of earlier runs, whose positions are of no use any more: they were removed. The
        position of the last file of a path stays, because the next run looks for later files of this path by it."""
        ended = list(closed)
        followed = {tail.path for tail in self.tails.values() if tail not in ended}
        removed = [tail for tail in ended if tail.is_removed]
        self._last.update({tail.identity: (tail.path, tail.seen_ms) for tail in removed if tail.path not in followed})
        return [*(tail.identity for tail in removed if tail.path in followed), *self.forgotten]

    def _forget_last(self, now_ms: int) -> None:
        for identity, (path, at_ms) in list(self._last.items()):
            if identity in self.tails:  # the inode number of another file now
                del self._last[identity]
            elif now_ms - at_ms > FORGOTTEN_AFTER_MS:
                del self._last[identity]
                self._led_to.pop(path, None)
                self.forgotten.append(identity)

    def drop(self, tail: Tail) -> None:
        """Close a file. If the file appears under a path again, reading continues at its position."""
        if tail.is_removed:
            self._known.pop(tail.identity, None)
        elif tail.offset or tail.born_ns:
            self._known[tail.identity] = tail.position()
        tail.close()
        del self.tails[tail.identity]

    def positions(self, tails: Iterable[Tail]) -> dict[tuple[int, int], Position]:
        """The positions to store with the next batch."""
        self._sent = {tail.identity: tail.position() for tail in tails}
        return self._sent

    def shipped(self, tails: Iterable[Tail]) -> None:
        """Mark all bytes read from the files as shipped, and the files' positions as stored."""
        for tail in tails:
            tail.shipped_to = tail.offset
            tail.has_position = True

    def without_position(self) -> list[Tail]:
        """The open files without a stored position. An empty renamed file or copy gets no position if its birth time is
        unknown: a later copy with the same inode number could not be distinguished from the removed file."""
        return [
            tail
            for tail in self.tails.values()
            if not tail.has_position and (tail.fingerprint_bytes or tail.born_ns or not tail.was_rotated)
        ]

    def rewind(self, known: Mapping[tuple[int, int], Position]) -> None:
        """Go back to the stored positions (``known``), after a batch that may not have been shipped. A file has no
        stored position before its first batch, nor after its last batch if the file was removed; then the shipper uses
        the position that it remembers itself."""
        self._known.update(known)
        for identity, tail in self.tails.items():
            position = known.get(identity)
            if position is not None and (tail.has_position or position == self._sent.get(identity)):
                tail.resume(position)
            else:  # a stored position is of an older content, or of a file that had the inode before
                tail.go_to(tail.shipped_to)

    def close(self) -> None:
        for tail in self.tails.values():
            tail.close()
        self.tails.clear()


def _earlier(one_ms: int | None, other_ms: int | None) -> int | None:
    return min((each for each in (one_ms, other_ms) if each is not None), default=None)


def _rotated_from(path: str, modified_ms: int, last_ms: Mapping[str, int]) -> str | None:
    """The followed path from which a file was rotated while no shipper ran. The file's name is the followed path and a
    rotation's suffix. The file was written after the followed path was last seen to lead to a known file."""
    modified_ms += MODIFIED_LATE_MS
    return next((name for name in _unrotated(path) if name in last_ms and modified_ms > last_ms[name]), None)


def _is_rotated(path: str, name: str) -> bool:
    """Whether ``path`` is a name that a rotation gives to the renamed file or copy of ``name``, without compression."""
    return path.startswith(name) and bool(_SUFFIX.fullmatch(path, len(name))) and not path.endswith(_OTHER)


def _unrotated(path: str) -> list[str]:
    """The names from which a rotation may have made the name ``path``, the longest first."""
    directory, name = os.path.split(path)
    ends = [at for at in range(len(name) - 1, 0, -1) if name[at] in "._-"]
    names = [os.path.join(directory, name[:end]) for end in ends]
    return [each for each in names if _is_rotated(path, each)]


def _is_copy_of(copy: _Copy, content: Content) -> bool:
    """Whether a file is the copy of a file's present content, or a part of the copy."""
    common = min(len(copy.head), len(content.head))
    return common > 0 and copy.size <= content.size and copy.head[:common] == content.head[:common]


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
