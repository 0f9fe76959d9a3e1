"""Positions of shipped files, in a compacted topic: one record for each file of each shipper, and one for each path or
pattern that the shipper follows.

The key of a file is the shipper's name, the device and the inode; the key of a path or pattern is the shipper's name
and a hash. The value is JSON. A shipper writes the positions of a batch in the transaction of its lines.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from headrace import Admin, Consumer, NewTopic, TopicPartition
from headrace.errors import SerializationError, TopicAlreadyExistsError

from .tail import Position

logger = logging.getLogger("headrace.ship")

TOPIC = "headrace-ship-positions"
WARN_S = 3.0  #: Time after which a wait for positions is logged.
_PARTITION = TopicPartition(TOPIC, 0)
_PATTERN = b"pattern:"


@dataclasses.dataclass(frozen=True, slots=True)
class Stored:
    """What a shipper has stored: the position of each file, by device and inode, and the time when the shipper first
    looked for each path or pattern, in ms since 1970."""

    positions: dict[tuple[int, int], Position] = dataclasses.field(default_factory=dict)
    followed_since: dict[str, int] = dataclasses.field(default_factory=dict)

    def apply(self, file: bytes, value: bytes | None) -> None:
        """Apply a record. ``file``: its key without the shipper's name. Raises ValueError, KeyError or TypeError."""
        if file.startswith(_PATTERN):
            if value is not None:
                fields = json.loads(value.decode("utf-8", "surrogateescape"))
                self.followed_since[str(fields["pattern"])] = int(fields["since_ms"])
            else:
                gone = [each for each in self.followed_since if _pattern_id(each) == file]
                for pattern in gone:
                    del self.followed_since[pattern]
            return
        device, inode = (int(part) for part in file.split(b":"))
        if value is None:
            self.positions.pop((device, inode), None)
        else:
            self.positions[device, inode] = position_of((device, inode), value)


def ensure_topic(admin: Admin) -> None:
    """Create the topic of positions unless it exists."""
    if TOPIC in admin.list_topics():
        return
    try:
        admin.create_topics([NewTopic(TOPIC, partitions=1, config={"cleanup.policy": "compact"})])
    except TopicAlreadyExistsError:
        logger.debug("another shipper created %s", TOPIC)


def read_positions(config: Mapping[str, Any], name: str, is_stopped: Callable[[], bool] = lambda: False) -> Stored:
    """Read the positions of the shipper ``name``. Call this function after the shipper's producer has fenced older
    producers, because then no transaction of the shipper is open.

    All shippers share a partition, and a committed position may come after the begin of another shipper's open
    transaction. The function therefore waits until that transaction ends: if the other shipper has died, until its
    transaction times out. It returns early when ``is_stopped`` returns True."""
    found = Stored()
    with Consumer({**config, "isolation.level": "read_uncommitted"}) as every:
        end = every.end_offsets([_PARTITION])[_PARTITION]
    with Consumer({**config, "isolation.level": "read_committed", "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([_PARTITION])
        warn_s = time.monotonic() + WARN_S
        while consumer.position(_PARTITION) < end and not is_stopped():
            if time.monotonic() > warn_s:
                warn_s = float("inf")
                logger.warning(
                    "waiting for another shipper's transaction in %s to end: it hides this shipper's positions", TOPIC
                )
            for record in consumer.poll(timeout=1.0):
                owner, _, file = (record.key or b"").rpartition(b"/")
                if owner != name.encode():
                    continue
                try:
                    found.apply(file, record.value)
                except (ValueError, KeyError, TypeError) as error:
                    raise SerializationError(
                        f"cannot read the position of shipper {name!r} in {TOPIC} at offset {record.offset}: {error}. "
                        f"Only `headrace ship` may write to {TOPIC}. To continue, give the shipper another name; it "
                        "then has no stored positions"
                    ) from error
    return found


def key_of(name: str, identity: tuple[int, int]) -> bytes:
    return f"{name}/{identity[0]}:{identity[1]}".encode()


def pattern_key_of(name: str, pattern: str) -> bytes:
    return f"{name}/".encode() + _pattern_id(pattern)


def _pattern_id(pattern: str) -> bytes:
    return _PATTERN + hashlib.sha256(pattern.encode("utf-8", "surrogateescape")).hexdigest()[:32].encode()


def pattern_value_of(pattern: str, since_ms: int) -> bytes:
    fields = {"pattern": pattern, "since_ms": since_ms}
    return json.dumps(fields, ensure_ascii=False).encode("utf-8", "surrogateescape")


def value_of(position: Position) -> bytes:
    fields = dataclasses.asdict(position)
    del fields["device"], fields["inode"]
    return json.dumps(fields, ensure_ascii=False).encode("utf-8", "surrogateescape")


def position_of(identity: tuple[int, int], value: bytes) -> Position:
    """The reverse of ``value_of``. Raises ValueError or TypeError."""
    fields = {"modified_ns": None} | json.loads(value.decode("utf-8", "surrogateescape"))
    position = Position(device=identity[0], inode=identity[1], **fields)
    if position.modified_ns is None:  # stored by the first release
        return dataclasses.replace(position, modified_ns=position.at_ms * 1_000_000)
    return position
