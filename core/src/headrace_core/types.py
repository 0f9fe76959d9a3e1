"""Small shared value types, with no behaviour except formatting and checking."""

from __future__ import annotations

import enum
import re
from typing import NamedTuple

from .errors import InvalidTopicError

LATEST_TIMESTAMP = -1  #: Special timestamps in ListOffsets requests (KIP-79, KIP-734).
EARLIEST_TIMESTAMP = -2
MAX_TIMESTAMP = -3

NO_LEADER = -1
NO_EPOCH = -1

OFFSETS_TOPIC = "__consumer_offsets"  #: The internal topic whose partitions are the shards of groups.

_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}\Z")


class TopicPartition(NamedTuple):
    """A partition of a topic; the text form is the name of the partition's directory."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class TimestampType(enum.IntEnum):
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class FlushPolicy(enum.StrEnum):
    """The policy for forcing written bytes to the disk (``log.flush``).

    COMMIT: the bytes are forced before the acknowledgement (group commit), the default. INTERVAL: every
    ``log.flush.interval.ms``. OS: the operating system chooses when it forces the bytes (Kafka's default).
    """

    COMMIT = "commit"
    INTERVAL = "interval"
    OS = "os"


def check_topic_name(name: str) -> str:
    """Return a legal topic name; raises InvalidTopicError otherwise. The name of a topic becomes part of a directory's
    name."""
    if name in (".", "..") or not _TOPIC_NAME.match(name):
        shown = name if len(name) <= 60 else name[:57] + "..."
        raise InvalidTopicError(
            f"topic name {shown!r} is not legal: 1 to 249 characters of [a-zA-Z0-9._-], neither '.' nor '..'"
        )
    return name


def split_address(address: str) -> tuple[str, int]:
    """Split "host:port" into ("host", port); an IPv6 address must be in brackets. Raises ValueError."""
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isdecimal() and int(port) < 1 << 16):
        raise ValueError(f"{address!r} is not an address: write HOST:PORT, such as 127.0.0.1:9095")
    return (host[1:-1] if host.startswith("[") and host.endswith("]") else host), int(port)


def join_address(host: str, port: int) -> str:
    """Join host and port to "host:port"; the inverse of ``split_address``."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
