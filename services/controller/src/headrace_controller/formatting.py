"""The voters that ``format`` writes into a controller's directory beside ``meta.properties``."""

from __future__ import annotations

from collections.abc import Sequence

from headrace_core.log.files import FileSystem
from headrace_core.node.first_voters import InitialVoter

from .raft import ReplicaKey, VoterSet
from .snapshots import write_first_voters


def write_voters(fs: FileSystem, root: str, voters: Sequence[InitialVoter]) -> None:
    """Write or replace the first voters, durably. A controller that was formatted without voters waits until it is
    added to a quorum. OSError."""
    write_first_voters(
        fs,
        root,
        VoterSet.of(
            (ReplicaKey(voter.node_id, voter.directory_id) for voter in voters),
            {voter.node_id: voter.address for voter in voters},
        ),
    )
