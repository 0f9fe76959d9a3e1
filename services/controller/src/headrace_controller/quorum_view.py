"""What others may see of a controller's part in the quorum; nothing in here changes anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from headrace_core.errors import NotControllerError
from headrace_core.metadata import MetadataImage

from .applying import Applier, Subscriber
from .raft import NOBODY, RaftNode, ReplicaKey, Role, VoterSet
from .raft.progress import Mode
from .settings import QuorumSettings


class QuorumView:
    """The looking half of QuorumController."""

    key: ReplicaKey
    settings: QuorumSettings
    _raft: RaftNode
    _applier: Applier
    #: Whose connection broke, and who was not heard since.
    _gone: set[ReplicaKey]

    def __init__(self) -> None:
        #: Where a node that is connected said that it is, "" when it did not; given by whoever has the connections.
        self.heard_address: Callable[[int], str] = lambda node_id: ""

    @property
    def node_id(self) -> int:
        return self.key.node_id

    @property
    def image(self) -> MetadataImage:
        """The committed state, as far as this node has applied it."""
        return self._applier.image

    @property
    def leader_id(self) -> int:
        """The node that leads the quorum as far as is known here; -1 when none does."""
        return self._raft.leader

    @property
    def term(self) -> int:
        return self._raft.term

    @property
    def role(self) -> Role:
        return self._raft.role

    @property
    def voters(self) -> VoterSet:
        """The latest set in the log, committed or not."""
        return self._raft.voters

    @property
    def addresses(self) -> Mapping[int, str]:
        """Where the voters, and the leader, are: "host:port" of their internal listeners by node id, as far as that is
        known."""
        voters, configured, heard = self._raft.voters, self.settings.voter_addresses, self.heard_address
        node_ids = [key.node_id for key in voters]
        leader = self._raft.leader
        if leader != NOBODY and leader not in node_ids:  # who was formatted without voters does not know them at first
            node_ids.append(leader)
        found = {each: voters.address(each) or configured.get(each, "") or heard(each) for each in node_ids}
        return {node_id: address for node_id, address in found.items() if address}

    @property
    def raft(self) -> RaftNode:
        """To look at (progress of followers, the log's ends); nothing but this class moves it."""
        return self._raft

    @property
    def is_left_alone(self) -> bool:
        """Have so many of the other voters gone that the rest decides nothing?"""
        voters = self._raft.voters
        return len(voters) - sum(key in self._gone for key in voters) < voters.majority

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call ``subscriber`` with each committed image from now on; returns what ends the subscription."""
        return self._applier.subscribe(subscriber)

    def best_successor(self) -> ReplicaKey | None:
        """The voter that has most of a leader's log; None unless this node leads, and others that vote are there: who
        is not connected, or far behind, would not take over in time."""
        raft = self._raft
        if raft.role is not Role.LEADER:
            return None
        following = {key: progress for key in raft.voters if (progress := raft.progress_of(key)) is not None}
        matches = {key: each.match for key, each in following.items() if each.mode is Mode.REPLICATE}
        return max(matches, key=matches.__getitem__, default=None)

    def not_controller(self) -> NotControllerError:
        """What somebody is told who takes this node for the leader."""
        leader = self._raft.leader
        if leader == self.node_id:
            return NotControllerError(f"controller {self.node_id} has been elected and is not ready yet; try again")
        if leader == NOBODY:
            return NotControllerError(f"controller {self.node_id} does not lead, and knows nobody who does; try again")
        address = self.addresses.get(leader, "")
        where = f"controller {leader}{address and f' at {address}'}"
        return NotControllerError(
            f"controller {self.node_id} does not lead; {where} does",
            leader=(leader, self._raft.term, address) if address else None,
        )
