"""Topics, and the JSON of commands, events, replies and snapshots.

All topics have the same number of partitions, and the id of the order is the key. So all records about an order are in
the same partition N of each topic, in order. The owner of partition N of the commands is the only writer of partition N
of all other topics.
"""

from __future__ import annotations

import json
from typing import Any

from headrace import NewTopic

COMMANDS, EVENTS = "orders.commands", "orders.events"
#: One answer to each command: accepted, rejected, repeated or invalid.
REPLIES = "orders.replies"
#: A compacted topic with the last state of each order, and a position in the partition of EVENTS. The states contain
#: the effects of all events before this position.
SNAPSHOTS = "orders.snapshots"
TOPICS = (COMMANDS, EVENTS, REPLIES, SNAPSHOTS)
GROUP = "orders.handlers"

#: The key of the record with the position in each partition of SNAPSHOTS. No order has POSITION_KEY as its id, because
#: ids have no control characters.
POSITION_KEY = b"\x00position"

#: Limits for commands, which may come from unknown programs.
COMMAND_BYTES_MAX, ID_CHARS_MAX, LINES_MAX = 16_384, 64, 100
QUANTITY_MAX, CENTS_MAX = 10_000, 100_000_000


def topics(partitions: int) -> list[NewTopic]:
    """The topics of the pipeline. Events are kept for ever, because tables are made from them."""
    kept = {"retention.ms": "-1"}
    # Segments are small, because compaction skips the newest segment and a restore reads the whole topic.
    compacted = {"cleanup.policy": "compact", "segment.bytes": str(4 << 20), "segment.ms": "600000"}
    return [NewTopic(name, partitions=partitions, config=kept) for name in (COMMANDS, EVENTS, REPLIES)] + [
        NewTopic(SNAPSHOTS, partitions=partitions, config=compacted)
    ]


def encoded(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def decoded(value: bytes | None) -> dict[str, Any]:
    """The object in a record that this pipeline has written."""
    found: dict[str, Any] = json.loads(value or b"null")
    return found
