"""Which replicas cannot lead for now: their brokers say so in every heartbeat, with the reason.

A broker that takes no appends (the disk of a directory is full, no file descriptor is left) still reads and heartbeats.
So its replicas are neither fenced nor offline; they are the last choice when a leader is elected:

    the leader cannot lead, another in-sync replica can        that one is elected at once
    no in-sync replica can lead                                the leader stays: it is read, and refuses appends
    one of them can again                                      that one is elected at once, wherever it is needed
    the preferred replica can lead again                       it leads again by the next preferred election
    a new partition                                            such replicas begin out of sync, and follow later

A replica that cannot append leaves the in-sync set by its leader's AlterPartition, not by this.

What brokers say is not in the metadata log, as sessions are not: it belongs to one life of a broker, and the next
active controller hears it again with the first heartbeat.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from headrace_core.errors import InvalidRequestError
from headrace_core.metadata import BrokerImage, MetadataImage, PartitionImage

#: In place of a directory's id: the whole broker.
EVERYWHERE = b""
_ID_BYTES, _ITEMS_MAX, _REASON_MAX = 16, 1_001, 100


class CannotLead(NamedTuple):
    """A broker's replicas in ``directory`` (EVERYWHERE: all of them) cannot lead, because of ``reason``, a stable code
    such as DISK_FULL."""

    directory: bytes
    reason: str


#: Broker id -> what it said last; brokers that can lead everything are not in it.
Hindered = Mapping[int, tuple[CannotLead, ...]]


def check(told: tuple[CannotLead, ...]) -> None:
    """InvalidRequestError for what no broker says: it would be kept in memory."""
    if len(told) > _ITEMS_MAX:
        raise InvalidRequestError(f"cannot_lead: {len(told)} entries, at most {_ITEMS_MAX}")
    for each in told:
        if len(each.directory) not in (0, _ID_BYTES) or len(each.reason) > _REASON_MAX:
            raise InvalidRequestError(
                f"cannot_lead: a directory id of {len(each.directory)} bytes (0 or {_ID_BYTES} are allowed), or a "
                f"reason of {len(each.reason)} characters (at most {_REASON_MAX})"
            )


def with_told(hindered: Hindered, broker_id: int, told: tuple[CannotLead, ...]) -> Hindered:
    """``hindered`` once ``broker_id`` has said ``told``."""
    others = {each: said for each, said in hindered.items() if each != broker_id}
    return {**others, broker_id: told} if told else others


def can_lead(image: MetadataImage, hindered: Hindered, partition: PartitionImage, broker_id: int) -> bool:
    """Says nothing against it? (Whether the replica works at all is ``MetadataImage.is_available``.)"""
    told = hindered.get(broker_id)
    if not told:
        return True
    directory = partition.directory_of(broker_id)
    broker = image.brokers.get(broker_id)
    if broker is not None and directory not in broker.directory_ids:  # not placed yet: in any that is left
        return not takes_nothing(broker, hindered)
    return not any(each.directory in (EVERYWHERE, directory) for each in told)


def takes_nothing(broker: BrokerImage, hindered: Hindered) -> bool:
    """Can the broker lead in none of its directories that are online?"""
    told = {each.directory for each in hindered.get(broker.broker_id, ())}
    return EVERYWHERE in told or (bool(told) and told.issuperset(broker.online_directories))
