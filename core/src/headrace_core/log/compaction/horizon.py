"""Definitions shared by the compiled and the plain compaction code: the delete horizon's bit, control types, verdicts.

The *delete horizon* (KIP-534) is the time until which a tombstone, or the marker of a transaction without records, must
stay. Until the delete horizon, a reader that began at the log's start can see the tombstone or the marker. The first
cleaning that finds a tombstone, or the marker of a transaction without records, sets bit 6 of the batch's attributes.
The cleaning that sets bit 6 also sets the batch's base timestamp to the delete horizon, now + delete.retention.ms. The
records' timestamp deltas are adjusted to the new base timestamp.
"""

from __future__ import annotations

import enum

from ...config import LONG_MAX
from ...records import BatchHeader

HORIZON_BIT = 0x40  #: Bit 6 of a batch's attributes: the batch's base timestamp is a delete horizon.

#: Control type of a data batch (a batch that is not a control batch); ``ABORT`` and ``COMMIT`` are the types of control
#: batches.
NO_CONTROL_TYPE = -1


class Verdict(enum.IntFlag):
    """What compaction does with a transactional batch or a control batch."""

    KEEP = 0
    DISCARD = 1  #: Remove its records.
    #: The batch ends a transaction that has no records left. The cleaning sets the batch's delete horizon if the batch
    #: has none.
    OF_NOTHING = 2


def delete_horizon_ms(header: BatchHeader) -> int | None:
    """Return the time until which a batch's tombstones or marker stay; None before the first cleaning."""
    return header.base_timestamp_ms if header.attributes & HORIZON_BIT else None


def horizon_from(now_ms: int, delete_retention_ms: int) -> int:
    """Return the delete horizon that a cleaning at ``now_ms`` sets."""
    return min(now_ms + delete_retention_ms, LONG_MAX)
