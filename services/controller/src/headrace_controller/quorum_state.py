"""Term and vote on the disk, in the file ``quorum-state`` beside the metadata log: JSON with a checksum, replaced
atomically.

Version 1 of the file (defined by Headrace) names the directory that got the vote. Version 0 is from releases in which
every voter was the sole voter.
"""

from __future__ import annotations

import json
import zlib
from typing import Any

from headrace_core.errors import CorruptLogError, DiskFullError
from headrace_core.log.files import NO_SPACE, FileSystem, read_file, write_file_atomically

from .raft import NO_DIRECTORY, HardState, ReplicaKey

QUORUM_STATE = "quorum-state"
_CURE = "restore the file: without it this voter could vote twice in a term"


def write_quorum_state(fs: FileSystem, directory: str, state: HardState) -> None:
    """Write the term and the vote, durably. Raises DiskFullError; the file then still has the old term and vote."""
    path = f"{directory}/{QUORUM_STATE}"
    content_of_state = {
        "data_version": 1,
        "leaderEpoch": state.term,
        "votedId": -1 if state.vote is None else state.vote.node_id,
        "votedDirectoryId": (NO_DIRECTORY if state.vote is None else state.vote.directory_id).hex(),
    }
    text = json.dumps(content_of_state, sort_keys=True)
    content = json.dumps({"state": text, "crc32": zlib.crc32(text.encode())})
    try:
        write_file_atomically(fs, path, content.encode())
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        raise DiskFullError(
            f"{path}: cannot save the term and the vote: no space left on the disk ({error.strerror})"
        ) from None


def read_quorum_state(fs: FileSystem, directory: str, *, own_directory_id: bytes, is_needed: bool) -> HardState:
    """The last written state, or the initial state if the file is missing. Raises CorruptLogError if the file is
    damaged, or if the file is missing although it ``is_needed`` (beside a log with records)."""
    path = f"{directory}/{QUORUM_STATE}"
    try:
        content = read_file(fs, path)
    except FileNotFoundError:
        if is_needed:
            raise CorruptLogError(f"{path} is missing, but the log has records: {_CURE}") from None
        return HardState()
    try:
        outer = json.loads(content)
        text = outer["state"]
        if zlib.crc32(text.encode()) != outer["crc32"]:
            raise ValueError("wrong checksum")
        state = json.loads(text)
        return HardState(term=int(state["leaderEpoch"]), vote=_vote_in(state, own_directory_id))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise CorruptLogError(f"{path} is damaged ({error}): {_CURE}") from None


def _vote_in(state: dict[str, Any], own_directory_id: bytes) -> ReplicaKey | None:
    voted = int(state["votedId"])
    if voted < 0:
        return None
    if "votedDirectoryId" in state:
        return ReplicaKey(voted, bytes.fromhex(state["votedDirectoryId"]))
    return ReplicaKey(voted, own_directory_id)  # a vote of version 0 names no directory: the voter voted for itself
