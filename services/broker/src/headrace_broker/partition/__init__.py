"""The pure part of the broker: what a partition's leader and a fetch session know and decide. No I/O, no clock."""

from .acceptance import accept, needs_thread
from .leader import PartitionLeader, PartitionWatcher
from .session import FetchSession, SessionPartition

__all__ = ["FetchSession", "PartitionLeader", "PartitionWatcher", "SessionPartition", "accept", "needs_thread"]
