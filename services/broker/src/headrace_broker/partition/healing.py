"""How a replica that was lost or damaged comes back from the others (pure).

A log that was found to be damaged is quarantined: it is not served, and nothing is cut off it. If the partition has
other replicas, its broker heals it without anybody's help::

    damaged here                          step     what is done
    no other replica may lead             KEEP     nothing: this may be the last copy; an operator decides
    in the ISR or eligible, or leading    REPORT   the controllers record that it starts over, empty: it is eligible for
                                                   nothing from there on, and another one leads (KIP-903)
    nobody leads                          WAIT     an election comes first
    another one leads, and this one is
    eligible for nothing                  MAKE     the damaged log is deleted, an empty one made: it follows

Each step is taken by looking at the metadata, so nothing has to be remembered across a restart: a quarantined log is
found quarantined, a log that was deleted is made anew where the metadata has it, and is not in sync.

``KEEP`` errs on the side of what is damaged. A copy that is out of sync elsewhere is no reason to give this one up: it
lacks records that are in here, most of them readable.
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
    """May another replica than that of ``broker_id`` lead, because it has all that was committed, or does one lead?"""
    if state.leader not in (NO_LEADER, broker_id):
        return True
    return any(other != broker_id for other in (*state.isr, *state.elr))


def is_eligible(state: PartitionImage, broker_id: int) -> bool:
    """Do the controllers believe that this broker's replica holds all that was committed, or that it may?"""
    return state.leader == broker_id or broker_id in (*state.isr, *state.elr, *state.last_known_elr)


def next_step(state: PartitionImage, broker_id: int) -> Step:
    """What becomes of a damaged replica of ``broker_id``, as the partition is now."""
    if broker_id not in state.replicas or not has_others(state, broker_id):
        return Step.KEEP
    if is_eligible(state, broker_id):
        return Step.REPORT
    return Step.WAIT if state.leader == NO_LEADER else Step.MAKE


class HealingReplica:
    """What the metadata does not tell about a damaged replica that is being healed. Lost with the process, and not
    needed afterwards: the next life of the broker has another broker epoch (KIP-903)."""

    __slots__ = ("cancel", "reported_offset", "unconfirmed_leave")

    def __init__(self, unconfirmed_leave: tuple[int, int] | None = None) -> None:
        #: The leader, and its epoch, that may not have received the leave of this replica yet.
        self.unconfirmed_leave = unconfirmed_leave
        self.cancel: Callable[[], None] = lambda: None
        #: The controllers know that it begins anew, as of this metadata offset; None: not yet.
        self.reported_offset: int | None = None

    def waits_for_leave(self, state: PartitionImage) -> bool:
        """Not if another leader, or epoch, has begun: that one never had this replica as a follower."""
        if self.unconfirmed_leave is not None and self.unconfirmed_leave != (state.leader, state.leader_epoch):
            self.close()
        return self.unconfirmed_leave is not None

    def close(self) -> None:
        self.unconfirmed_leave = None
        self.cancel()
