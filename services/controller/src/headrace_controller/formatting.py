"""Write the first voters (KIP-853) and the first users (KIP-900) into a controller's directory, for ``format``.

The first users are in ``bootstrap.checkpoint``, as in Kafka. The first leader of a new cluster writes the first users
into the metadata log, right after the cluster's id. Later changes of ``bootstrap.checkpoint`` have no effect.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace_core.errors import CorruptLogError, CorruptMessageError, InvalidRecordError
from headrace_core.log.files import FileSystem, make_directories, read_file, write_file_atomically
from headrace_core.metadata.codec import decode_batches, encode_decision
from headrace_core.metadata.records import ScramCredentialRecord
from headrace_core.node.first_voters import InitialVoter
from headrace_core.security.sasl.scram import ScramMechanism, new_credential

from .raft import ReplicaKey, VoterSet
from .snapshots import write_first_voters

FIRST_USERS = "bootstrap.checkpoint"  #: The file with the first users, in the controller's directory.


def write_voters(
    fs: FileSystem, root: str, voters: Sequence[InitialVoter], *, users: Sequence[ScramCredentialRecord] = ()
) -> None:
    """Write or replace the first voters and the first users, durably. A controller that was formatted without voters
    waits until it is added to a quorum. Raises OSError."""
    path = f"{root.rstrip('/')}/{FIRST_USERS}"
    if users:
        make_directories(fs, root)
        write_file_atomically(fs, path, encode_decision(users, timestamp_ms=0, base_offset=0, epoch=0))
    elif fs.exists(path):  # of an interrupted format
        fs.unlink(path)
    write_first_voters(
        fs,
        root,
        VoterSet.of(
            (ReplicaKey(voter.node_id, voter.directory_id) for voter in voters),
            {voter.node_id: voter.address for voter in voters},
        ),
    )


def new_user(user: str, mechanism: ScramMechanism, password: str, iterations: int) -> ScramCredentialRecord:
    """A first user's credential, with a random salt."""
    made = new_credential(mechanism, password, iterations)
    return ScramCredentialRecord(user, mechanism.number, made.salt, made.stored_key, made.server_key, made.iterations)


def read_users(fs: FileSystem, root: str) -> tuple[ScramCredentialRecord, ...]:
    """The first users that ``format`` wrote; empty if ``format`` wrote no users. Raises CorruptLogError for a damaged
    file. Raises OSError."""
    path = f"{root.rstrip('/')}/{FIRST_USERS}"
    if not fs.exists(path):
        return ()
    try:
        records = [record for batch in decode_batches(read_file(fs, path)) for record in batch.records]
    except (CorruptMessageError, InvalidRecordError) as error:
        raise CorruptLogError(f"{path} is damaged: {error.message}; format a new directory") from error
    users = tuple(record for record in records if isinstance(record, ScramCredentialRecord))
    if len(users) != len(records):
        raise CorruptLogError(f"{path} is damaged: it has records that are not users; format a new directory")
    return users
