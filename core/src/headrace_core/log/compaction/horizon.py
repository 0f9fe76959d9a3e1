"""Shared by the compiled code, its plain twin and the planners: the delete horizon's bit, control types, verdicts.

The *delete horizon* (KIP-534) is the time until which a tombstone, or the marker of a transaction without records, must
stay, so that a reader that began at the log's start can see it. The first cleaning that finds such a record or marker
sets bit 6 of its batch's attributes. It also sets the batch's base timestamp to now + delete.retention.ms, and adjusts
the records' timestamp deltas to it.
"""

from __future__ import annotations

import enum

from ...config import LONG_MAX
from ...records import BatchHeader

HORIZON_BIT = 0x40  #: Bit 6 of a batch's attributes: its base timestamp is a delete horizon.

NO_CONTROL_TYPE = -1  #: The type of a batch that is no control batch; ``ABORT`` and ``COMMIT`` are the other types.


class Verdict(enum.IntFlag):
    """Fate of a transactional or control batch."""

    KEEP = 0
    DISCARD = 1  #: Remove its records.
    OF_NOTHING = 2  #: A marker without records: set a delete horizon, if it has none.


def delete_horizon_ms(header: BatchHeader) -> int | None:
    """Time until which the batch's tombstones or marker stay; None before the first cleaning."""
    return header.base_timestamp_ms if header.attributes & HORIZON_BIT else None


def horizon_from(now_ms: int, delete_retention_ms: int) -> int:
    """The horizon that a cleaning at ``now_ms`` sets."""
    return min(now_ms + delete_retention_ms, LONG_MAX)
