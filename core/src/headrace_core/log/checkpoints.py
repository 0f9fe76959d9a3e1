"""The small files of a log directory, in Kafka's formats, each with a checksum that Kafka's readers ignore.

The following lines show a checkpoint file (recovery-point-offset-checkpoint, replication-offset-checkpoint,
log-start-offset-checkpoint, cleaner-offset-checkpoint, leader-epoch-checkpoint):

    0               format version
    2               number of entries
    orders 0 4711   topic, partition, offset   (or: epoch, start offset)
    orders 1 815    <- and the checksum: 32 spaces and tabs at the end of the last line

The checksum is a CRC-32C of the bytes that Kafka would have written. Contents and checksum are in the same file, so a
crash cannot separate them, and 5,000 partitions need no second file, fsync or read.

* In a checkpoint, the checksum is 32 characters after the last entry, one for each bit (a space is 0, a tab is 1).
  Kafka splits entries at white space and drops trailing space. A file without entries has no checksum, because its
  bytes are always ``0\\n0\\n``.
* In ``meta.properties``, the checksum is a comment in the last line.
* In ``partition.metadata``, the checksum is a third line; Kafka reads only two lines.
* In ``.kafka_cleanshutdown`` and ``.headrace_broker_epoch``, the checksum is the last field of the file's JSON; Kafka
  ignores unknown fields.

A file without a checksum (written by Kafka or an old Headrace) is accepted. A file with a wrong checksum is damaged.
The damage of a checkpoint, or of a file with a broker epoch, is logged, and the caller assumes the safe value (offset
0, an unclean stop, an older copy) or rebuilds the file. A damaged ``meta.properties`` raises InvalidConfigError, a
damaged ``partition.metadata`` raises CorruptLogError. All these files are replaced atomically, so damage comes from a
bad disk, not from a crash (a broker epoch on a full disk aside).
"""

from __future__ import annotations

import base64
import json
import logging
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from crc32c import crc32c

from ..errors import CorruptLogError, InvalidConfigError
from ..types import TopicPartition
from .files import NO_SPACE, FileSystem, read_file, write_file_atomically

META_PROPERTIES = "meta.properties"
PARTITION_METADATA = "partition.metadata"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
BROKER_EPOCH = ".headrace_broker_epoch"
LOCK = ".lock"

#: File in a partition's directory that says why the partition's log is not served. The operator removes the quarantine
#: file after a repair of the log.
QUARANTINE = "headrace-quarantine"

_VERSION = "0"
_BITS = 32
#: In files other than checkpoints: the text before and the text after the eight hexadecimal digits of the file's
#: checksum.
_META_SEAL = (b"#crc32c=", b"\n")
_TOPIC_SEAL = (b"\ncrc32c: ", b"")
_STOP_SEAL = (b', "crc32c": "', b'"}')
_DIGITS = re.compile(rb"[0-9a-f]{8}\Z")

logger = logging.getLogger(__name__)


def encode_id(value: uuid.UUID) -> str:
    """Format an id as Kafka prints it: 22 characters of URL-safe base64."""
    return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")


def decode_id(text: str) -> uuid.UUID:
    """Parse the text of ``encode_id``; ValueError for any other text."""
    return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))


# ---------------------------------------------------------------------------------------------- checkpoints


class Checkpoint(NamedTuple):
    """A decoded checkpoint."""

    rows: list[list[str]] | None  #: The fields of each entry of the checkpoint file; None when the file is damaged.
    problem: str | None = None  #: Description of the checkpoint file's damage; None for a sound file.
    has_checksum: bool = False


def encode_checkpoint(lines: Sequence[str], *, has_checksum: bool) -> bytes:
    text = "\n".join([_VERSION, str(len(lines)), *lines, ""])
    if not lines or not has_checksum:
        return text.encode()
    return (text[:-1] + _seal(text.encode()) + "\n").encode()


def decode_checkpoint(data: bytes) -> Checkpoint:
    """Decode the bytes of a checkpoint file, even of a damaged file; the inverse of ``encode_checkpoint``."""
    try:
        lines = data.decode().split("\n")
    except UnicodeDecodeError as error:
        return Checkpoint(None, f"position {error.start}: not text")
    if len(lines) < 3 or lines[-1] != "":
        return Checkpoint(None, f"its {len(data)} bytes are cut short")
    if lines[0] != _VERSION:
        return Checkpoint(None, f"its version is {lines[0][:20]!r}, only {_VERSION} is understood")
    if lines[1] != str(len(lines) - 3):
        return Checkpoint(None, f"it says that it has {lines[1][:20]!r} entries, {len(lines) - 3} are there")
    rows = [line.split() for line in lines[2:-1]]
    if not rows:
        return Checkpoint(rows, has_checksum=True)
    entry = lines[-2].rstrip(" \t")
    seal = lines[-2][len(entry) :]
    if not seal:
        return Checkpoint(rows)
    expected = _seal("\n".join([*lines[:-2], entry, ""]).encode())
    if seal != expected:
        return Checkpoint(None, f"its entries have the CRC-32C {_unseal(expected)}, its checksum is {_unseal(seal)}")
    return Checkpoint(rows, has_checksum=True)


def _seal(data: bytes) -> str:
    return f"{crc32c(data):0{_BITS}b}".translate({ord("0"): " ", ord("1"): "\t"})


def _unseal(seal: str) -> str:
    if len(seal) != _BITS:
        return f"of {len(seal)} characters instead of {_BITS}"
    return f"{int(''.join('1' if bit == chr(9) else '0' for bit in seal), 2):#010x}"


def write_checkpoint(fs: FileSystem, path: str, lines: Sequence[str], *, has_checksum: bool = True) -> None:
    """Replace a checkpoint file; the new file is durable when the function returns."""
    write_file_atomically(fs, path, encode_checkpoint(lines, has_checksum=has_checksum))


def load_checkpoint(fs: FileSystem, path: str) -> Checkpoint | None:
    """Load a checkpoint; None when the file is missing, or empty (as Kafka creates it). Damage is logged."""
    try:
        data = read_file(fs, path)
    except FileNotFoundError:
        return None
    if not data:
        return None
    found = decode_checkpoint(data)
    if found.problem is not None:
        logger.error("%s is damaged, ignoring it: %s; recovery starts from a safe offset instead", path, found.problem)
    return found


def write_offsets(fs: FileSystem, path: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Replace a checkpoint with one offset for each partition."""
    write_checkpoint(fs, path, [f"{tp.topic} {tp.partition} {offset}" for tp, offset in sorted(offsets.items())])


def load_offsets(fs: FileSystem, path: str) -> dict[TopicPartition, int] | None:
    """Load a checkpoint with one offset for each partition; None when the file is missing, empty or damaged (damage is
    logged)."""
    found = load_checkpoint(fs, path)
    if found is None or found.rows is None:
        return None
    if not found.has_checksum:
        logger.info(
            "%s has no checksum (Kafka or an older Headrace wrote the file), so its content is not verified", path
        )
    try:
        return parse_offsets(found.rows)
    except ValueError as error:
        logger.error("checkpoint %s is damaged and ignored: %s; recovery uses safe offsets instead", path, error)
        return None


def read_offsets(fs: FileSystem, path: str) -> dict[TopicPartition, int]:
    """Load a checkpoint like ``load_offsets``, but return an empty dict in place of None."""
    return load_offsets(fs, path) or {}


def parse_offsets(rows: Sequence[Sequence[str]]) -> dict[TopicPartition, int]:
    """Parse the entries of a checkpoint of offsets; ValueError names the first invalid entry."""
    offsets = {}
    for number, row in enumerate(rows):
        try:
            topic, partition, offset = row
            offsets[TopicPartition(topic, int(partition))] = int(offset)
        except ValueError as error:
            raise ValueError(
                f"entry {number} is {' '.join(row)!r}: must be a topic, a partition and an offset"
            ) from error
    return offsets


# ---------------------------------------------------------------------------------------------- identities


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryMeta:
    """The identity of a log directory (``meta.properties``, version 1)."""

    cluster_id: str
    node_id: int
    directory_id: uuid.UUID


def write_meta(fs: FileSystem, root: str, meta: DirectoryMeta) -> None:
    text = (
        f"cluster.id={meta.cluster_id}\ndirectory.id={encode_id(meta.directory_id)}\n"
        f"node.id={meta.node_id}\nversion=1\n"
    )
    data = text.encode()
    write_file_atomically(fs, f"{root}/{META_PROPERTIES}", _sealed(data, _META_SEAL))


def read_meta(fs: FileSystem, root: str) -> DirectoryMeta | None:
    """Load a log directory's ``meta.properties``; None when the directory is not formatted. Raises InvalidConfigError
    when the file is damaged, has another version, or lacks a value."""
    path = f"{root}/{META_PROPERTIES}"
    try:
        data = read_file(fs, path)
    except FileNotFoundError:
        return None
    problem = _wrong_checksum(data, _META_SEAL)
    if problem is not None:
        raise InvalidConfigError(
            f"{path} is damaged: {problem}. Correct its values (the files of the other log directories have the "
            "same cluster.id and node.id), and remove its last line, the checksum: a file without a checksum is "
            "accepted"
        )
    values = _properties(data, "=")
    try:
        if values["version"] != "1":
            raise InvalidConfigError(f"{path}: version is {values['version']!r}; Headrace reads only version 1")
        return DirectoryMeta(
            cluster_id=values["cluster.id"],
            node_id=int(values["node.id"]),
            directory_id=decode_id(values["directory.id"]),
        )
    except (KeyError, ValueError) as error:
        raise InvalidConfigError(
            f"{path} is not a valid meta.properties: {error!r}; format the directory again (`headrace format`)"
        ) from error


def encode_partition_metadata(topic_id: uuid.UUID) -> bytes:
    data = f"version: 0\ntopic_id: {encode_id(topic_id)}".encode()
    return _sealed(data, _TOPIC_SEAL)


def write_partition_metadata(fs: FileSystem, directory: str, topic_id: uuid.UUID) -> None:
    write_file_atomically(fs, f"{directory}/{PARTITION_METADATA}", encode_partition_metadata(topic_id))


def read_partition_metadata(fs: FileSystem, directory: str) -> uuid.UUID | None:
    """Load the topic's id from ``partition.metadata``; None when the file is missing, CorruptLogError when the file is
    damaged."""
    path = f"{directory}/{PARTITION_METADATA}"
    try:
        data = read_file(fs, path)
    except FileNotFoundError:
        return None
    problem = _wrong_checksum(data, _TOPIC_SEAL)
    if problem is not None:
        raise CorruptLogError(
            f"{path}, position 0: {problem}; restore the file: the log itself may be undamaged (see partition.metadata "
            "in docs/operations/damage.md)"
        )
    values = _properties(data, ":")
    try:
        if values["version"] != "0":
            raise ValueError(f"version {values['version']!r}")
        return decode_id(values["topic_id"])
    except (KeyError, ValueError) as error:
        raise CorruptLogError(f"{path} does not name a topic id: {error!r}") from error


def _sealed(data: bytes, seal: tuple[bytes, bytes]) -> bytes:
    """Append the checksum of ``data`` to ``data``, between the two parts of ``seal``."""
    return data + seal[0] + f"{crc32c(data):08x}".encode() + seal[1]


def _wrong_checksum(data: bytes, seal: tuple[bytes, bytes]) -> str | None:
    """Describe what is wrong with the checksum at the end of ``data``; None when the checksum matches or is missing. A
    checksum with one or two wrong characters is reported as damage, not as a missing checksum."""
    before, after = seal
    at = len(data) - len(before) - 8 - len(after)
    if at < 0:
        return None
    end = len(data) - len(after)
    around = data[at : at + len(before)] + data[end:]
    if sum(a != b for a, b in zip(around, before + after, strict=True)) > 2:
        return None
    digits = data[end - 8 : end]
    if around != before + after or not _DIGITS.match(digits):
        return f"its checksum cannot be read: {data[at:]!r}"
    found = crc32c(data[:at])
    return None if found == int(digits, 16) else f"its CRC-32C is {found:#010x}, its checksum 0x{digits.decode()}"


def _properties(data: bytes, separator: str) -> dict[str, str]:
    values = {}
    for line in data.decode("utf-8", "replace").splitlines():
        name, found, value = line.partition(separator)
        if found and not line.startswith("#"):
            values[name.strip()] = value.strip()
    return values


# ---------------------------------------------------------------------------------------------- clean shutdown


@dataclass(frozen=True, slots=True)
class CleanShutdown:
    """Record of a clean stop of the broker with ``broker_epoch`` (KIP-966; -1: unknown): the broker flushed and closed
    every log. A clean stop says nothing about quarantined logs, because the broker had not opened the quarantined
    logs."""

    broker_epoch: int = -1
    quarantined: frozenset[str] = frozenset()


def write_clean_shutdown(fs: FileSystem, root: str, stop: CleanShutdown) -> None:
    """Write the clean shutdown marker, durably: Kafka's file, and Headrace's list of quarantined logs unless the list
    is empty."""
    content: dict[str, object] = {"version": 0, "brokerEpoch": stop.broker_epoch}
    if stop.quarantined:
        content["quarantined"] = sorted(stop.quarantined)
    data = json.dumps(content).encode()
    write_file_atomically(fs, f"{root}/{CLEAN_SHUTDOWN}", _sealed(data[:-1], _STOP_SEAL))


def read_clean_shutdown(fs: FileSystem, root: str) -> CleanShutdown | None:
    """Load the clean shutdown marker; None when the last stop was not clean, or when the file is damaged (damage is
    logged)."""
    path = f"{root}/{CLEAN_SHUTDOWN}"
    try:
        data = read_file(fs, path)
    except FileNotFoundError:
        return None
    stop, problem = _decode_stop(data)
    if problem is None:
        return stop
    logger.error("the clean shutdown marker %s is damaged: %s; the previous shutdown counts as unclean", path, problem)
    return None


def clean_shutdown_fault(data: bytes) -> str | None:
    """Describe why the bytes of a clean shutdown marker, or of a broker epoch, are invalid; None when they are
    valid."""
    return _decode_stop(data)[1]


def _decode_stop(data: bytes) -> tuple[CleanShutdown | None, str | None]:
    stop, problem = None, _wrong_checksum(data, _STOP_SEAL)
    try:
        content = json.loads(data)
        epoch = int(content.get("brokerEpoch", -1))
        if not -1 <= epoch < 1 << 63:
            raise ValueError(f"{epoch} is no broker epoch")
        stop = CleanShutdown(epoch, frozenset(map(str, content.get("quarantined", ()))))
    except (ValueError, AttributeError, TypeError, OverflowError, RecursionError) as error:
        problem = problem or str(error)
    return stop, problem


# ---------------------------------------------------------------------------------------------- broker epoch


def write_broker_epoch(fs: FileSystem, root: str, broker_epoch: int) -> None:
    """Write, durably, that the broker with ``broker_epoch`` has opened the directory. The bytes have a fixed length, so
    that a full disk can take them in place of the former ones. Raises OSError."""
    path = f"{root}/{BROKER_EPOCH}"
    data = _sealed(f'{{"version": 0, "brokerEpoch": {broker_epoch:20d}'.encode(), _STOP_SEAL)
    try:
        write_file_atomically(fs, path, data)
    except OSError as error:
        if error.errno not in NO_SPACE or not fs.exists(path):
            raise
        file = fs.open(path, write=True)
        try:
            file.pwritev([data], 0)
            file.sync()
        finally:
            file.close()


def read_broker_epoch(fs: FileSystem, root: str) -> int:
    """Epoch of the broker that opened the directory last; -1 if no broker has written it, or if the file is damaged
    (damage is logged)."""
    path = f"{root}/{BROKER_EPOCH}"
    try:
        data = read_file(fs, path)
    except FileNotFoundError:
        return -1
    found, problem = _decode_stop(data)
    if problem is None and found is not None:
        return found.broker_epoch
    logger.error("%s is damaged: %s; the directory cannot prove that it is no older copy", path, problem)
    return -1


# ---------------------------------------------------------------------------------------------- quarantine


def write_quarantine(fs: FileSystem, directory: str, why: str) -> None:
    """Quarantine the log in ``directory``, durably: no later start serves the log until the operator removes the
    file."""
    write_file_atomically(fs, f"{directory}/{QUARANTINE}", f"{why}\n".encode())


def read_quarantine(fs: FileSystem, directory: str) -> str | None:
    """Return why a log is quarantined; None when the log is not quarantined. A damaged quarantine file quarantines the
    log, too."""
    try:
        return (
            read_file(fs, f"{directory}/{QUARANTINE}").decode("utf-8", "replace").strip() or "the file gives no reason"
        )
    except FileNotFoundError:
        return None
