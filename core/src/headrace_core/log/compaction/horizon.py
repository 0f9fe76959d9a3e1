"""What the compiled code, its plain twin and the planners share: the delete horizon's bit, control types, verdicts.

The *delete horizon* (KIP-534) says until when a tombstone, or the marker of a transaction that has no records left,
must stay: a reader that began at the log's start has until then to see it. The first cleaning that meets one sets bit 6
of the batch's attributes and writes now + delete.retention.ms as its base timestamp, with the records' deltas from it.
"""

from __future__ import annotations

import enum

from ...config import LONG_MAX
from ...records import BatchHeader

#: Bit 6 of a batch's attributes: its base timestamp is a delete horizon.
HORIZON_BIT = 0x40

#: Of a batch that is no control batch (``ABORT`` and ``COMMIT`` are the others).
NO_CONTROL_TYPE = -1


class Verdict(enum.IntFlag):
    """What is to become of a batch that is transactional, or a control batch."""

    KEEP = 0
    #: Its records go.
    DISCARD = 1
    #: A marker without records: it gets a delete horizon, if it has none yet.
    OF_NOTHING = 2


def delete_horizon_ms(header: BatchHeader) -> int | None:
    """Until when the batch's tombstones or marker stay; None when no cleaning has met them yet."""
    return header.base_timestamp_ms if header.attributes & HORIZON_BIT else None


def horizon_from(now_ms: int, delete_retention_ms: int) -> int:
    """The horizon that a cleaning at ``now_ms`` sets."""
    return min(now_ms + delete_retention_ms, LONG_MAX)
