"""Recovery of a lost or damaged replica from the other replicas (pure).

A damaged log is quarantined: the broker does not serve it and does not truncate it. If the partition has other
replicas, the broker heals its replica automatically::

    damaged here                          step     action
    no other replica may lead             KEEP     nothing: this may be the last copy; an operator decides
    in the ISR or eligible, or leading    REPORT   the controllers record that the replica starts with an empty log:
                                                   from then on it is not eligible, and another one leads (KIP-903)
    no leader                             WAIT     an election comes first
    another replica leads, and this
    replica is not eligible               MAKE     delete the damaged log, create an empty log: the replica follows

Each step of healing follows from the metadata, so no state must survive a restart. After a restart, the broker finds
the mark of a quarantined log on the disk. A deleted log is created again, out of sync, where the metadata places it.

``KEEP`` prefers the damaged copy, because an out-of-sync copy on another broker lacks records that are in the damaged
copy, most of them readable.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

from headrace_core.metadata import PartitionImage
from headrace_core.types import NO_LEADER


class Step(enum.Enum):
    """See the module."""

    KEEP = "keep"
    REPORT = "report"
    WAIT = "wait"
    MAKE = "make"


def has_others(state: PartitionImage, broker_id: int) -> bool:
    """Whether a replica on a broker other than ``broker_id`` leads the partition, or could lead it without losing
    committed records."""
    if state.leader not in (NO_LEADER, broker_id):
        return True
    return any(other != broker_id for other in (*state.isr, *state.elr))


def is_eligible(state: PartitionImage, broker_id: int) -> bool:
    """Whether the controllers consider this broker's replica to have all committed records, certainly or possibly."""
    return state.leader == broker_id or broker_id in (*state.isr, *state.elr, *state.last_known_elr)


def next_step(state: PartitionImage, broker_id: int) -> Step:
    """The next step in healing the damaged replica of ``broker_id``."""
    if broker_id not in state.replicas or not has_others(state, broker_id):
        return Step.KEEP
    if is_eligible(state, broker_id):
        return Step.REPORT
    return Step.WAIT if state.leader == NO_LEADER else Step.MAKE


class HealingReplica:
    """The part of a healing replica's state that the metadata does not contain. A restarted broker does not need the
    state of its healing replicas, because it has a new broker epoch (KIP-903)."""

    __slots__ = ("cancel", "reported_offset", "unconfirmed_leave")

    def __init__(self, unconfirmed_leave: tuple[int, int] | None = None) -> None:
        #: A leader that may not have received this replica's leave yet, as a pair of broker id and leader epoch.
        self.unconfirmed_leave = unconfirmed_leave
        self.cancel: Callable[[], None] = lambda: None
        #: The metadata offset from which the controllers know that the replica starts with an empty log; None until the
        #: controllers have answered.
        self.reported_offset: int | None = None

    def waits_for_leave(self, state: PartitionImage) -> bool:
        """Whether the leader's confirmation of the follower's leave is still missing. The result is False for a new
        leader or leader epoch, which the follower never joined."""
        if self.unconfirmed_leave is not None and self.unconfirmed_leave != (state.leader, state.leader_epoch):
            self.close()
        return self.unconfirmed_leave is not None

    def close(self) -> None:
        self.unconfirmed_leave = None
        self.cancel()
