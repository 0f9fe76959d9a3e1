"""The small files beside the logs, in Kafka's formats.

Checkpoint (recovery-point-offset-checkpoint, replication-offset-checkpoint, log-start-offset-checkpoint,
leader-epoch-checkpoint):

    0               format version
    2               number of entries
    orders 0 4711   topic, partition, offset   (or: epoch, start offset)
    orders 1 815

All are replaced atomically. The format has no checksum; a file that is missing, cut short or otherwise not what it says
reads as None, and who reads it starts from what is safe (offset 0, a rebuild): a torn checkpoint never blocks start-up.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import CorruptLogError, InvalidConfigError
from ..types import TopicPartition
from .files import FileSystem, read_file, write_file_atomically

META_PROPERTIES = "meta.properties"
PARTITION_METADATA = "partition.metadata"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
LOCK = ".lock"

_VERSION = "0"


def encode_id(value: uuid.UUID) -> str:
    """An id as Kafka prints it: 22 characters of URL-safe base64."""
    return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")


def decode_id(text: str) -> uuid.UUID:
    """The inverse; ValueError when it is not one."""
    return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))


# ---------------------------------------------------------------------------------------------- checkpoints


def write_checkpoint(fs: FileSystem, path: str, lines: Sequence[str]) -> None:
    """Replaces a checkpoint; durable when this returns."""
    write_file_atomically(fs, path, "\n".join([_VERSION, str(len(lines)), *lines, ""]).encode())


def read_checkpoint(fs: FileSystem, path: str) -> list[list[str]] | None:
    """The fields of each entry; None when the file is missing or damaged."""
    try:
        lines = read_file(fs, path).decode().split("\n")
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    if len(lines) < 3 or lines[0] != _VERSION or lines[-1] != "" or lines[1] != str(len(lines) - 3):
        return None
    return [line.split() for line in lines[2:-1]]


def write_offsets(fs: FileSystem, path: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Replaces a checkpoint of one offset for each partition."""
    write_checkpoint(fs, path, [f"{tp.topic} {tp.partition} {offset}" for tp, offset in sorted(offsets.items())])


def read_offsets(fs: FileSystem, path: str) -> dict[TopicPartition, int]:
    """One offset for each partition; empty when the file is missing or damaged."""
    offsets = {}
    for row in read_checkpoint(fs, path) or ():
        try:
            topic, partition, offset = row
            offsets[TopicPartition(topic, int(partition))] = int(offset)
        except ValueError:
            return {}
    return offsets


# ---------------------------------------------------------------------------------------------- identities


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryMeta:
    """Whose directory this is (``meta.properties``, version 1)."""

    cluster_id: str
    node_id: int
    directory_id: uuid.UUID


def write_meta(fs: FileSystem, root: str, meta: DirectoryMeta) -> None:
    """Writes ``meta.properties``, durably."""
    text = (
        f"cluster.id={meta.cluster_id}\ndirectory.id={encode_id(meta.directory_id)}\n"
        f"node.id={meta.node_id}\nversion=1\n"
    )
    write_file_atomically(fs, f"{root}/{META_PROPERTIES}", text.encode())


def read_meta(fs: FileSystem, root: str) -> DirectoryMeta | None:
    """None when the directory was not formatted; InvalidConfigError when the file is not one of ours."""
    path = f"{root}/{META_PROPERTIES}"
    try:
        values = _properties(read_file(fs, path), "=")
    except FileNotFoundError:
        return None
    try:
        if values["version"] != "1":
            raise InvalidConfigError(f"{path}: version is {values['version']!r}; only version 1 is understood")
        return DirectoryMeta(
            cluster_id=values["cluster.id"],
            node_id=int(values["node.id"]),
            directory_id=decode_id(values["directory.id"]),
        )
    except (KeyError, ValueError) as error:
        raise InvalidConfigError(f"{path} is not a formatted directory's: {error!r}; format it anew") from error


def write_partition_metadata(fs: FileSystem, directory: str, topic_id: uuid.UUID) -> None:
    """Writes ``partition.metadata``, durably."""
    write_file_atomically(
        fs, f"{directory}/{PARTITION_METADATA}", f"version: 0\ntopic_id: {encode_id(topic_id)}".encode()
    )


def read_partition_metadata(fs: FileSystem, directory: str) -> uuid.UUID | None:
    """The topic's id; None when the file is missing. CorruptLogError when it says something else."""
    path = f"{directory}/{PARTITION_METADATA}"
    try:
        values = _properties(read_file(fs, path), ":")
    except FileNotFoundError:
        return None
    try:
        if values["version"] != "0":
            raise ValueError(f"version {values['version']!r}")
        return decode_id(values["topic_id"])
    except (KeyError, ValueError) as error:
        raise CorruptLogError(f"{path} does not name a topic id: {error!r}") from error


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
    """All was flushed and closed by the incarnation of the broker with this epoch (KIP-966; -1: not told), except for
    the logs that it had quarantined: those it never opened, so they did not become sound by its leaving."""

    broker_epoch: int = -1
    quarantined: frozenset[str] = frozenset()


def write_clean_shutdown(fs: FileSystem, root: str, stop: CleanShutdown) -> None:
    """Says so, durably. Kafka's file with a field of ours, left out where it would be empty."""
    content: dict[str, object] = {"version": 0, "brokerEpoch": stop.broker_epoch}
    if stop.quarantined:
        content["quarantined"] = sorted(stop.quarantined)
    write_file_atomically(fs, f"{root}/{CLEAN_SHUTDOWN}", json.dumps(content).encode())


def read_clean_shutdown(fs: FileSystem, root: str) -> CleanShutdown | None:
    """None when the last stop was not a clean one."""
    try:
        data = read_file(fs, f"{root}/{CLEAN_SHUTDOWN}")
    except FileNotFoundError:
        return None
    try:
        content = json.loads(data)
        return CleanShutdown(int(content.get("brokerEpoch", -1)), frozenset(map(str, content.get("quarantined", ()))))
    except (ValueError, AttributeError, TypeError):
        return CleanShutdown()
