"""Find orphaned pending offsets, for ``doctor`` and ``groups describe``: a group has offsets of a transaction, but the
transaction's coordinator does not have the transaction.

No marker will ever commit or drop orphaned offsets, so readers that ask for stable offsets wait for them forever. The
order of the requests rules out a false report, as for hanging transactions (hanging.py). The group's coordinator adds
the group's partition of ``__consumer_offsets`` to the transaction before it stores the offsets. If the transaction's
coordinator later does not have this partition in a transaction, the transaction has ended. After that, the tool
describes the group again: offsets that the group still has are orphaned.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from headrace.group_models import GroupDescription, PendingOffset
from headrace.transaction_models import UNFINISHED_STATES
from headrace_core.errors import HeadraceError, TransactionalIdNotFoundError

from .hanging import OFFSETS_TOPIC


@dataclass(frozen=True, slots=True)
class OrphanedOffset:
    """A pending offset of a group that no transaction will commit or drop."""

    group_id: str
    pending: PendingOffset


def orphaned_offsets(client: Any, groups: Iterable[GroupDescription], *, timeout_s: float) -> list[OrphanedOffset]:
    """The orphaned pending offsets of described groups. Groups without pending offsets cost no request. Raises
    HeadraceError."""
    suspects = _pending(groups)
    if not suspects:
        return []
    producers = {pending.producer_id for _, pending in suspects}
    listed = client.list_transactions(UNFINISHED_STATES, producer_ids=producers, timeout=timeout_s)
    ids = [each.transactional_id for each in listed]
    known = set()
    for each in client.describe_transactions(ids, raise_errors=False, timeout=timeout_s) if ids else ():
        if isinstance(each.error, HeadraceError) and not isinstance(each.error, TransactionalIdNotFoundError):
            raise each.error
        if each.error is None and any(partition.topic == OFFSETS_TOPIC for partition in each.partitions):
            known.add(each.producer_id)
    left = {(group_id, pending) for group_id, pending in suspects if pending.producer_id not in known}
    if not left:
        return []
    again = client.describe_groups(sorted({group_id for group_id, _ in left}), raise_errors=False, timeout=timeout_s)
    return [OrphanedOffset(*each) for each in _pending(again) if each in left]


def _pending(groups: Iterable[GroupDescription]) -> list[tuple[str, PendingOffset]]:
    return [(group.group_id, pending) for group in groups if group.error is None for pending in group.pending_offsets]


def how_dropped(group_id: str, pending: PendingOffset) -> str:
    """A text with the commands that drop an orphaned offset. Deleting a pending offset also deletes the group's
    committed offset."""
    partition = f"{pending.topic}:{pending.partition}"
    return (
        f"note the committed offset (`headrace groups describe {group_id}`), stop the group's members, drop the "
        f"pending one with `headrace groups delete-offsets {group_id} --topic {partition}`, and "
        "set the noted offset with `headrace groups reset-offsets`"
    )
