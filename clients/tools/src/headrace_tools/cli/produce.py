"""The command ``produce``: send lines or files to a topic, with the flags of kcat -P."""

from __future__ import annotations

import collections
import contextlib
import functools
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace_core.errors import BootstrapError, HeadraceError, InvalidArgumentError, UnknownTopicOrPartitionError
from headrace_core.plurals import counted

from . import complete
from .client import DEFAULT_BOOTSTRAP, Bootstrap, Properties, client_config
from .kcat import unescape
from .output import Output, OutputFormat, note, print_json, usage_of
from .progress import HowFar, Progress, progress

_READ_BYTES = 1 << 20
_OUTSTANDING_MAX = 100_000
#: Maximum number of partitions for which a summary on a terminal has one line per partition.
_PARTITIONS_SHOWN_MAX = 12

Headers = list[tuple[str, bytes | None]]


def register(app: typer.Typer) -> None:
    app.command("produce")(produce)


def produce(
    topic: Annotated[str, typer.Option("-t", "--topic", help="The topic.", autocompletion=complete.topics)],
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FILE]...", help="Files to send: each file is one record; with -l each line is one record."
        ),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("-p", "--partition", help="The partition; -1 (default): the partitioner chooses.")
    ] = None,
    key: Annotated[str | None, typer.Option("-k", "--key", help="Use this key for every record.")] = None,
    key_delimiter: Annotated[str | None, typer.Option("-K", help="The delimiter between key and value.")] = None,
    delimiter: Annotated[
        str, typer.Option("-D", help="The delimiter between records on stdin, and with -l in files.")
    ] = r"\n",
    headers: Annotated[list[str] | None, typer.Option("-H", metavar="NAME=VALUE", help="A header; repeatable.")] = None,
    compression: Annotated[
        str | None, typer.Option("-z", help="The compression type: none, gzip, snappy, lz4 or zstd.")
    ] = None,
    count: Annotated[int | None, typer.Option("-c", min=0, help="Stop after this many records.")] = None,
    null: Annotated[bool, typer.Option("-Z", help="Send an empty value or key as null.")] = False,
    lines: Annotated[
        bool, typer.Option("-l", help="Split each file into records at the delimiter, as with stdin.")
    ] = False,
    tee: Annotated[bool, typer.Option("-T", help="Copy the records to stdout.")] = False,
    transactional_id: Annotated[
        str | None,
        typer.Option(
            "--transactional-id",
            metavar="ID",
            help="Send all records in one transaction of this transactional id; an error aborts it.",
        ),
    ] = None,
    properties: Properties = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Send records to a topic. Each line of stdin is a record (-D changes the delimiter); if you name files, each file
    is a record. The command ends when all records are acknowledged.

    \b
    Examples:
      echo hello | headrace produce -t orders
      printf 'k1:a\\nk2:b\\n' | headrace produce -t orders -K :
      headrace produce -t orders -p 0 -z zstd -H source=import picture.png
      headrace produce -t events -l -X acks=1 access.log
      headrace produce -t payments --transactional-id import-7 -X transaction.timeout.ms=10m < payments.txt
    """
    if tee and output is OutputFormat.JSON:
        raise typer.BadParameter("-T and -o json both write to stdout; pass only one")
    if partition is not None and partition < -1:
        raise typer.BadParameter(
            f"{partition}: must be a partition number, or -1 to let the partitioner choose", param_hint="-p"
        )
    with usage_of("-D, -K"):
        ends_with, splits_at = unescape(delimiter), unescape(key_delimiter) if key_delimiter else None
    if not ends_with:
        raise typer.BadParameter("the delimiter must not be empty", param_hint="-D")
    sender = _Sender(
        topic,
        partition=None if partition == -1 else partition,
        key=key.encode("utf-8", "surrogateescape") if key is not None else None,
        key_delimiter=splits_at,
        headers=[_header(text) for text in headers or ()],
        null=null,
    )
    messages = _messages(files or [], ends_with, lines)
    flags = {"compression.type": compression} if compression else {}
    if transactional_id is not None:
        flags["transactional.id"] = transactional_id
    config = client_config(bootstrap, properties, kind="producer", flags=flags)
    size = _size(files or [])
    with progress(lines_s=None, beside_records=tee, quiet=not size) as shown:
        sender.run(config, messages, count, ends_with, size, shown, tee=tee)
    if output is OutputFormat.JSON:
        print_json({"topic": topic, "records": sender.acknowledged, "partitions": sender.ranges()})
    elif sys.stdout.isatty() and not tee:
        print("\n".join(_summary(topic, sender.ranges())))


def _may_create(producer: Any, topic: str) -> bool:
    """Whether the topic is missing, so that the first record would create it. Errors other than a missing topic are
    ignored; the send of the first record raises them."""
    engine = producer._core.engine

    async def is_missing() -> bool:
        deadline = engine.deadline(engine.request_timeout_s)
        errors = await engine.metadata.refresh([topic], unless_known=True, deadline=deadline)
        return isinstance(errors.get(topic), UnknownTopicOrPartitionError)

    try:
        return bool(engine.io.run(is_missing()))
    except BootstrapError:
        raise
    except HeadraceError:
        return False


def _summary(topic: str, ranges: list[dict[str, int]]) -> list[str]:
    """``1 record to orders-2 at offset 0``"""
    if len(ranges) > _PARTITIONS_SHOWN_MAX or not ranges:
        records = counted(sum(each["records"] for each in ranges), "record")
        return [f"{records} to {topic}" + (f" ({counted(len(ranges), 'partition')})" if ranges else "")]
    lines = []
    for each in ranges:
        first, last = each["first_offset"], each["last_offset"]
        where = "" if first < 0 else f" at offset {first}" if first == last else f" at offsets {first} to {last}"
        lines.append(f"{counted(each['records'], 'record')} to {topic}-{each['partition']}{where}")
    return lines


def _header(text: str) -> tuple[str, bytes | None]:
    """Parse a header ``name=value``; ``name`` alone has a null value, as in kcat."""
    name, equals, value = text.partition("=")
    if not name:
        raise typer.BadParameter(f"{text!r}: must be NAME=VALUE", param_hint="-H")
    return name, value.encode("utf-8", "surrogateescape") if equals else None


def _size(files: list[Path]) -> int:
    """The number of bytes to send; 0 if it is unknown (a pipe, a terminal)."""
    try:
        if not files:
            found = os.fstat(sys.stdin.fileno())
            return found.st_size - os.lseek(sys.stdin.fileno(), 0, os.SEEK_CUR) if stat.S_ISREG(found.st_mode) else 0
        found_all = [path.stat() for path in files]
    except (OSError, ValueError):  # an error of a file surfaces when the file is read
        return 0
    return sum(each.st_size for each in found_all) if all(stat.S_ISREG(each.st_mode) for each in found_all) else 0


def _messages(files: list[Path], delimiter: bytes, lines: bool) -> Iterator[list[bytes]]:
    """Iterate over the messages of the files in groups, as soon as they can be read."""
    if not files:
        yield from _split(sys.stdin.fileno(), delimiter)
    for path in files:
        try:
            if lines:
                with path.open("rb", buffering=0) as source:
                    yield from _split(source.fileno(), delimiter)
            else:
                yield [path.read_bytes()]
        except OSError as error:
            raise InvalidArgumentError(f"cannot read {path}: {error.strerror}") from error


def _split(descriptor: int, delimiter: bytes) -> Iterator[list[bytes]]:
    """Iterate over the messages that end with the delimiter, and over the rest of the input, if any."""
    # Pieces of an incomplete message, joined only once, so that a huge message takes linear time.
    rest: list[bytes] = []
    while piece := os.read(descriptor, _READ_BYTES):
        # A delimiter of several bytes may span two pieces, so search the end of the previous piece too.
        overlap = rest.pop() if rest and len(delimiter) > 1 else b""
        parts = (overlap + piece).split(delimiter)
        if len(parts) == 1:
            rest.append(parts[0])
            continue
        parts[0] = b"".join(rest) + parts[0]
        last = parts.pop()
        rest = [last] if last else []
        yield parts
    if rest:
        yield [b"".join(rest)]


class _Sender:
    """Sends messages in order, with a bounded number of unacknowledged records, and counts acknowledgements."""

    def __init__(
        self,
        topic: str,
        *,
        partition: int | None,
        key: bytes | None,
        key_delimiter: bytes | None,
        headers: Headers,
        null: bool,
    ) -> None:
        self._topic, self._partition, self._key = topic, partition, key
        self._key_delimiter, self._headers, self._null = key_delimiter, headers, null
        self._open: collections.deque[Any] = collections.deque()
        self._ranges: dict[int, list[int]] = {}  # partition -> [records, first offset, last offset]
        self.acknowledged = 0

    def run(
        self,
        config: dict[str, Any],
        portions: Iterator[list[bytes]],
        count: int | None,
        delimiter: bytes,
        size: int,
        shown: Progress,
        *,
        tee: bool,
    ) -> None:
        """Send the whole input, or the first ``count`` records; with a ``transactional.id`` in one transaction.
        ``size``: bytes of the input, for the progress bar ``shown``. ``tee``: copy the records to stdout, with
        ``delimiter`` after each record."""
        from headrace import Producer

        is_transactional = config.get("transactional.id") is not None
        try:
            with (
                Producer(config) as producer,
                producer.transaction() if is_transactional else contextlib.nullcontext(),
            ):
                self._send_all(producer, portions, count, delimiter, size, shown, tee=tee)
        finally:
            if sys.exc_info()[0] is not None and self.acknowledged and not is_transactional:
                note(f"headrace: {counted(self.acknowledged, 'record')} acknowledged before this error")

    def _send_all(
        self,
        producer: Any,
        portions: Iterator[list[bytes]],
        count: int | None,
        delimiter: bytes,
        size: int,
        shown: Progress,
        *,
        tee: bool,
    ) -> None:
        left, read = count, 0
        is_new = _may_create(producer, self._topic)
        for portion in portions:
            messages = portion if left is None else portion[:left]
            for message in messages:
                self._send(producer, message)
            if tee:
                sys.stdout.buffer.write(b"".join(message + delimiter for message in messages))
                sys.stdout.buffer.flush()
            if is_new and messages:
                is_new = False
                partitions = counted(len(producer.partitions_for(self._topic)), "partition")
                note(f"created topic {self._topic} ({partitions})")
            read += sum(map(len, portion)) + len(portion) * len(delimiter)
            shown.at(functools.partial(self._how_far, count, read, size))
            if left is not None:
                left -= len(messages)
                if not left:
                    break
        producer.flush()
        while self._open:
            self._settle()

    def _how_far(self, count: int | None, read: int, size: int) -> HowFar:
        words = f"{counted(self.acknowledged, 'record')} acknowledged"
        return HowFar(min(read, size), size, words) if count is None else HowFar(self.acknowledged, count, words)

    def _send(self, producer: Any, message: bytes) -> None:
        key, value = self._key, message
        if self._key_delimiter is not None:
            before, found, after = message.partition(self._key_delimiter)
            if found:
                key, value = before, after
        if self._null:
            key, value = key or None, value or None  # type: ignore[assignment]
        self._open.append(
            producer.send(self._topic, value=value, key=key, headers=self._headers or None, partition=self._partition)
        )
        while len(self._open) > _OUTSTANDING_MAX or (self._open and self._open[0].done()):
            self._settle()

    def _settle(self) -> None:
        # If ``result`` raises the record's error, the record stays first in the queue and is not counted.
        metadata = self._open[0].result()
        self._open.popleft()
        self.acknowledged += 1
        seen = self._ranges.setdefault(metadata.partition, [0, metadata.offset, metadata.offset])
        seen[0] += 1
        seen[1], seen[2] = min(seen[1], metadata.offset), max(seen[2], metadata.offset)

    def ranges(self) -> list[dict[str, int]]:
        """The result of the command for each partition: number of records, first and last offset (-1 with acks=0)."""
        return [
            {"partition": number, "records": records, "first_offset": first, "last_offset": last}
            for number, (records, first, last) in sorted(self._ranges.items())
        ]
