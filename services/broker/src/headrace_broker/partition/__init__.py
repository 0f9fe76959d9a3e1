"""The pure part of the broker: leaders and followers of partitions, and fetch sessions. The modules of this package do
no I/O and read no clock."""

from .acceptance import accept, first_header, needs_thread
from .follower import FollowerState, PartitionFollower
from .isr import IsrChange
from .leader import LogWatcher, PartitionLeader, PartitionWatcher, ReplicaProgress
from .matching import match
from .session import FetchSession, SessionPartition

__all__ = [
    "FetchSession",
    "FollowerState",
    "IsrChange",
    "LogWatcher",
    "PartitionFollower",
    "PartitionLeader",
    "PartitionWatcher",
    "ReplicaProgress",
    "SessionPartition",
    "accept",
    "first_header",
    "match",
    "needs_thread",
]
