"""Replicas that cannot lead now, as their brokers report them in every heartbeat, with the reason.

A broker whose logs take no appends (because its disk is full, or no file descriptor is left) still serves reads and
sends heartbeats. The replicas of a broker that takes no appends are neither fenced nor offline, but they are the last
choice in an election:

    the leader cannot lead, another in-sync replica can        that one is elected at once
    no in-sync replica can lead                                the leader stays: it is read, and refuses appends
    one of them can again                                      that one is elected at once, wherever it is needed
    the preferred replica can lead again                       it leads again by the next preferred election
    a new partition                                            such replicas begin out of sync, and follow later

A broker's report that it cannot lead removes no replica from the in-sync set: the leader removes a replica that cannot
append, with AlterPartition.

Like sessions, the reports of brokers that cannot lead are not in the metadata log. A report of a broker that cannot
lead belongs to one broker epoch, and the next active controller receives it with the first heartbeat.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from headrace_core.errors import InvalidRequestError
from headrace_core.metadata import BrokerImage, MetadataImage, PartitionImage

EVERYWHERE = b""  #: The value that stands for all directories of a broker, in place of the id of one directory.
_ID_BYTES, _ITEMS_MAX, _REASON_MAX = 16, 1_001, 100


class CannotLead(NamedTuple):
    """A report that a broker's replicas in ``directory`` (EVERYWHERE for all directories) cannot lead. ``reason`` is a
    code such as DISK_FULL."""

    directory: bytes
    reason: str


#: For each broker id: the broker's last report of what the broker cannot lead. Brokers that can lead everything have no
#: entry.
Hindered = Mapping[int, tuple[CannotLead, ...]]


def check(reported: tuple[CannotLead, ...]) -> None:
    """Raise InvalidRequestError if a broker's report of what it cannot lead is too large or malformed. The sizes are
    limited because the controller keeps the reports in memory."""
    if len(reported) > _ITEMS_MAX:
        raise InvalidRequestError(f"cannot_lead has {len(reported)} entries, at most {_ITEMS_MAX} are allowed")
    for each in reported:
        if len(each.directory) not in (0, _ID_BYTES) or len(each.reason) > _REASON_MAX:
            raise InvalidRequestError(
                f"invalid entry in cannot_lead: a directory id of {len(each.directory)} bytes (0 or {_ID_BYTES} are "
                f"allowed), or a reason of {len(each.reason)} characters (at most {_REASON_MAX} are allowed)"
            )


def with_reported(hindered: Hindered, broker_id: int, reported: tuple[CannotLead, ...]) -> Hindered:
    """Replace the report of ``broker_id`` in ``hindered`` (the reports of brokers that cannot lead), and return the
    result."""
    others = {each: said for each, said in hindered.items() if each != broker_id}
    return {**others, broker_id: reported} if reported else others


def can_lead(image: MetadataImage, hindered: Hindered, partition: PartitionImage, broker_id: int) -> bool:
    """Whether the broker's replica can lead, according to the reports in ``hindered``. (``MetadataImage.is_available``
    says whether the replica works at all.)"""
    reported = hindered.get(broker_id)
    if not reported:
        return True
    directory = partition.directory_of(broker_id)
    broker = image.brokers.get(broker_id)
    # The replica has no assigned directory yet, and may be in any of the broker's online directories.
    if broker is not None and directory not in broker.directory_ids:
        return not takes_nothing(broker, hindered)
    return not any(each.directory in (EVERYWHERE, directory) for each in reported)


def takes_nothing(broker: BrokerImage, hindered: Hindered) -> bool:
    """Whether the broker has reported for each of its online directories that it cannot lead there."""
    reported = {each.directory for each in hindered.get(broker.broker_id, ())}
    return EVERYWHERE in reported or (bool(reported) and reported.issuperset(broker.online_directories))
