"""Immutable values that producers and consumers take and return."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, NamedTuple

from headrace_core.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class RecordRange:
    """A range of ``count`` records in one partition, from ``offset`` on (-1 with acks=0)."""

    topic: str
    partition: int
    offset: int
    count: int


@dataclass(frozen=True, slots=True)
class ManyMetadata:
    """Partitions and offsets of the records of one send_many or send_arrow call: ranges in the order of sending."""

    topic: str
    record_count: int
    ranges: tuple[RecordRange, ...]

    def __repr__(self) -> str:
        """The first three ranges: records with keys may have a range each."""
        shown = [repr(each) for each in self.ranges[:3]]
        if more := len(self.ranges) - len(shown):
            shown.append(f"... {more} more")
        return f"ManyMetadata(topic={self.topic!r}, record_count={self.record_count}, ranges=({', '.join(shown)}))"


class OffsetAndTimestamp(NamedTuple):
    """An offset that was looked up, with the timestamp of its record.

    ``offset`` is -1 if the log has no record for the lookup. ``timestamp_ms`` is -1 for the log start and the log end.
    ``leader_epoch`` -1: unknown.
    """

    offset: int
    timestamp_ms: int
    leader_epoch: int = -1


class OffsetAndMetadata(NamedTuple):
    """A committed offset, which is the offset of the next record to read. ``leader_epoch``: leader epoch of the record
    before ``offset``; -1: unknown."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


class TransactionToken(NamedTuple):
    """The token of a prepared transaction (KIP-939). Any client that has the token can commit or abort the transaction,
    also after the producer has ended. ``str(token)`` is the token's text; ``TransactionToken.parse`` reads the text."""

    transactional_id: str
    producer_id: int
    producer_epoch: int

    def __str__(self) -> str:
        return f"{self.producer_id}:{self.producer_epoch}:{self.transactional_id}"

    @classmethod
    def parse(cls, text: str) -> TransactionToken:
        """Parse the text of a token. Raises InvalidArgumentError."""
        parts = text.split(":", 2) if isinstance(text, str) else []
        if len(parts) == 3 and parts[2] and all(part.isascii() and part.isdigit() for part in parts[:2]):
            return cls(parts[2], int(parts[0]), int(parts[1]))
        raise InvalidArgumentError(
            f"{text!r:.100} is not a transaction token: a token has the form PRODUCER_ID:EPOCH:TRANSACTIONAL_ID"
        )


class SinkState(NamedTuple):
    """The state of an exactly-once sink. ``batch``: the last committed batch; -1: no batch is committed.
    ``generation``: a number that each abort of a batch increases; only transactions of this generation can be
    committed."""

    batch: int
    generation: int


class GroupMetadata(NamedTuple):
    """A consumer's identity in its group. ``generation_id`` is the member epoch; a program that is not a member has -1
    and no member id."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """A broker and its client address. ``fenced``: the broker is registered but not live; ``draining``: its replicas
    are moving to other brokers, and it gets no new replicas. ``outdated_directory_ids`` (16 bytes each): log
    directories that were older copies (a snapshot or a backup) when the broker started."""

    broker_id: int
    host: str
    port: int
    rack: str = ""
    fenced: bool = False
    draining: bool = False
    outdated_directory_ids: tuple[bytes, ...] = ()

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


#: The offset to look up with list_offsets: log start, log end, the record with the largest timestamp, or the first
#: record at or after a time (ms since 1970).
OffsetSpec = Literal["earliest", "latest", "max-timestamp"] | int


def __getattr__(name: str) -> Any:
    """The values of the administration, which this module had before: pickles of an earlier release name it. They are
    imported at first use."""
    if not name.startswith("_"):
        with contextlib.suppress(AttributeError):
            return getattr(import_module("headrace.cluster_models"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
