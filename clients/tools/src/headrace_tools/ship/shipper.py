"""The shipper: reads lines, and sends them with their files' positions in transactions."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import resource
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from headrace import Admin, Producer
from headrace.errors import (
    HeadraceError,
    InvalidArgumentError,
    ProducerFencedError,
    RecordTooLargeError,
    UnknownTopicOrPartitionError,
)
from headrace_core.visible import one_line

from .positions import TOPIC, ensure_topic, key_of, pattern_key_of, pattern_value_of, read_positions, value_of
from .tail import SHORTAGES, Files, Line, Tail, files_max_of

logger = logging.getLogger("headrace.ship")

_PATHS_SHOWN = 5  #: Maximum number of paths that an error names.
LOOK_S = 0.25  #: Seconds between two checks of the files when there is nothing to read.
FILE_BYTES = (
    1 << 20
)  #: Maximum number of bytes that a batch takes from one file, so that a long file does not delay the other files.
RETRY_S, RETRY_S_MAX = 0.5, 15.0
#: Room in bytes for the parts of a record beside its line: its key and its headers, which both contain the path (at
#: most 4,096 bytes), and the fixed parts of the record and of its batch.
BESIDE_LINE_BYTES = 9_000


@dataclasses.dataclass(slots=True)
class Shipped:
    """The numbers of lines and bytes that a shipper has sent."""

    lines: int = 0
    bytes: int = 0
    batches: int = 0
    files: set[tuple[int, int]] = dataclasses.field(default_factory=set)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """``config``: keys of all clients; ``producer``: further keys of the producer. ``name``: the shipper's name, under
    which its positions are stored; a second shipper with the same name fences the first. ``host``: the host name in
    keys and headers. ``once``: end when all files are read to their end."""

    config: Mapping[str, Any]
    producer: Mapping[str, Any]
    topic: str
    paths: list[str]
    name: str
    host: str
    from_end: bool = False
    once: bool = False
    batch_bytes: int = 8 << 20
    line_bytes_max: int = 900_000


class Shipper:
    """Ships until ``stop`` is set. ``on_batch`` is called after each batch. ``on_open`` is called when the existing
    files are open and their positions are stored; from then on, no line is lost if the shipper dies."""

    def __init__(
        self,
        settings: Settings,
        stop: threading.Event,
        on_batch: Callable[[Shipped], object],
        on_open: Callable[[], object] = lambda: None,
    ) -> None:
        self._settings = settings
        self._stop = stop
        self._on_batch, self._on_open = on_batch, on_open
        self._files: Files | None = None
        self._is_open = False
        self.shipped = Shipped()

    def run(self) -> Shipped:
        """Ship until ``stop`` is set. Raises ProducerFencedError when another shipper uses the name, and all errors
        that a retry cannot cure."""
        pause_s = RETRY_S
        try:
            while not self._stop.is_set():
                before = self.shipped.batches
                try:
                    self._ship()
                    break
                except ProducerFencedError:
                    raise
                except (HeadraceError, OSError) as error:
                    if not _may_pass(error):
                        raise
                    pause_s = RETRY_S if self.shipped.batches > before else min(2 * pause_s, RETRY_S_MAX)
                    logger.warning("%s; the positions are read again in %g s", error, pause_s)
                    self._stop.wait(pause_s)
        finally:
            if self._files is not None:
                self._files.close()
        return self.shipped

    def _ship(self) -> None:
        """Fence the last producer with this name, and ship until the end or an error."""
        settings = self._settings
        with Admin(dict(settings.config)) as admin:
            ensure_topic(admin)
            line_bytes_max = self._line_bytes_max(admin)
        own = {"transactional.id": f"headrace-ship-{settings.name}"}
        with Producer({**settings.config, **settings.producer, **own}) as producer:
            with producer.transaction():
                pass  # fences an older shipper, and ends its transaction
            stored = read_positions(settings.config, settings.name, self._stop.is_set)
            if self._stop.is_set():
                return  # the positions may be incomplete
            if self._files is None:
                self._files = Files(
                    settings.paths,
                    stored.positions,
                    followed_since=stored.followed_since,
                    from_end=settings.from_end,
                    line_bytes_max=line_bytes_max,
                    now_s=time.monotonic(),
                    now_ms=_now_ms(),
                    files_max=files_max_of(_descriptors()),
                )
            else:
                self._files.rewind(stored.positions)
            self._follow(producer, self._files)

    def _line_bytes_max(self, admin: Admin) -> int:
        """The length of a line above which it is divided, so that each piece is below the topic's limit."""
        try:
            (topic,) = admin.describe_topics([self._settings.topic])
        except UnknownTopicOrPartitionError:  # the first record creates it
            return self._settings.line_bytes_max
        if not topic.max_message_bytes:
            return self._settings.line_bytes_max
        # If the limit is tiny, a record fits only if the file's path is short.
        most = max(topic.max_message_bytes - BESIDE_LINE_BYTES, topic.max_message_bytes // 2)
        return min(self._settings.line_bytes_max, most)

    def _follow(self, producer: Producer, files: Files) -> None:
        while not self._stop.is_set():
            now_s = time.monotonic()
            files.look(now_s, _now_ms())
            batch = self._batch(files, now_s)
            closed = files.finished(now_s)
            for note in files.notes:
                logger.warning("%s", note)
            files.notes.clear()
            is_idle = not (batch or closed or files.forgotten or files.unstored or files.without_position())
            if not is_idle:
                self._send(producer, files, batch, closed)
            if not self._is_open:
                self._is_open = True
                self._on_open()
            if is_idle and self._settings.once and not files.has_rest():
                _check_all_read(files)
                return
            if is_idle:
                self._stop.wait(LOOK_S)

    def _batch(self, files: Files, now_s: float) -> list[tuple[Tail, list[Line]]]:
        """The next lines of the files that have grown, up to the size of a batch."""
        batch: list[tuple[Tail, list[Line]]] = []
        size = 0
        # The files that have waited longest come first, so that a few busy files cannot fill every batch.
        for tail in sorted(files.grown(), key=lambda each: each.grown_at):
            if size >= self._settings.batch_bytes:
                break
            most = min(FILE_BYTES, self._settings.batch_bytes - size)
            lines = files.read(tail, most, now_s)
            if lines:
                size += sum(line.end - line.begin for line in lines)
                batch.append((tail, lines))
        return batch

    def _send(self, producer: Producer, files: Files, batch: list[tuple[Tail, list[Line]]], closed: list[Tail]) -> None:
        """Send lines and positions in one transaction. A file that was just opened gets a position, too: if this
        shipper dies and the file is then rotated, the next shipper still recognizes the file. The positions of files
        that no longer exist are removed."""
        settings = self._settings
        gone = files.gone(closed)
        noted = [tail for tail in files.without_position() if tail.identity not in gone]
        noted += [tail for tail, _ in batch if tail.has_position]
        positions = files.positions(noted)
        with producer.transaction():
            for tail, lines in batch:
                key = f"{settings.host}:{tail.path}".encode("utf-8", "surrogateescape")
                headers = [("host", settings.host.encode()), ("path", tail.path.encode("utf-8", "surrogateescape"))]
                for line in lines:
                    own = [*headers, ("position", b"%d" % line.begin)]
                    if not line.is_whole:
                        own.append(("continues", b"true"))
                    try:
                        producer.send(settings.topic, value=line.text, key=key, headers=own)
                    except RecordTooLargeError as error:
                        raise RecordTooLargeError(
                            f"cannot send the line at position {line.begin} of {tail.path}: {error.message}. If the "
                            "limit was lowered, start the shipper again: it then divides lines above the new limit"
                        ) from error
            for identity, position in positions.items():
                producer.send(TOPIC, value=value_of(position), key=key_of(settings.name, identity))
            for identity in gone:
                producer.send(TOPIC, value=None, key=key_of(settings.name, identity))
            for pattern, since_ms in files.unstored.items():
                value = None if since_ms is None else pattern_value_of(pattern, since_ms)
                producer.send(TOPIC, value=value, key=pattern_key_of(settings.name, pattern))
        files.shipped(noted)
        files.forgotten.clear()
        files.unstored.clear()
        for tail in closed:
            files.drop(tail)
        counted = self.shipped
        counted.lines += sum(line.is_whole for _, lines in batch for line in lines)
        counted.bytes += sum(line.end - line.begin for _, lines in batch for line in lines)
        counted.batches += 1
        counted.files.update(tail.identity for tail, _ in batch)
        self._on_batch(counted)


def warn_on_stderr() -> None:
    """Write the shipper's warnings to stderr, a line each: truncated files, unreadable files, retries. Control
    characters in the names of files are shown as escapes."""
    handler = logging.StreamHandler()
    handler.setFormatter(_OneLine("ship: %(message)s"))
    logger.addHandler(handler)


class _OneLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return one_line(super().format(record))


def _check_all_read(files: Files) -> None:
    """Raise InvalidArgumentError if a file could not be read, because a run with ``once`` must report it at its end."""
    failed = files.unreadable | {tail.path: tail.failure for tail in files.tails.values() if tail.failure}
    if failed:
        shown = "; ".join(f"{path}: {reason}" for path, reason in list(failed.items())[:_PATHS_SHOWN])
        more = f"; and {len(failed) - _PATHS_SHOWN} more" if len(failed) > _PATHS_SHOWN else ""
        raise InvalidArgumentError(
            f"cannot read {len(failed)} of the paths: {shown}{more}; the lines of the other paths are shipped. Correct "
            "these paths or their permissions and run the command again"
        )


def _descriptors() -> int:
    """Raise this process's limit of file descriptors as far as allowed, and return it; -1: no limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # the hard limit is infinite, and above what the kernel allows
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return soft


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


#: Errors after which the shipper makes a new producer, which aborts the open transaction. The shipper then reads the
#: committed positions.
_PASSING = {
    "DELIVERY_TIMED_OUT",
    "OUTCOME_UNKNOWN",
    "TRANSACTION_ABORTABLE",
    "TRANSACTION_ABORTED",
    "INVALID_PRODUCER_EPOCH",
    "UNKNOWN_PRODUCER_ID",
}


def _may_pass(error: HeadraceError | OSError) -> bool:
    if isinstance(error, HeadraceError):  # some of them are TimeoutErrors, which are OSErrors
        return error.retriable or error.code in _PASSING
    return error.errno in SHORTAGES
