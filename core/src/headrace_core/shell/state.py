"""Load the cluster's state from the newest undamaged snapshot and the metadata log after that snapshot. See the
package."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field
from typing import Any

from ..errors import HeadraceError
from ..log.dump import Note, Problem
from ..log.files import FileSystem, read_file
from ..metadata import EMPTY_IMAGE, ImageBuilder, MetadataImage
from . import control
from .reading import Found, MetadataFiles, find, read_log, read_snapshot

_QUORUM_STATE = "quorum-state"


@dataclass(slots=True, kw_only=True)
class LoadedState:
    """The state that a directory's files contain. ``voters``: the voters as in KRaftVoters records; None if the log has
    no voters. ``snapshot``: (offset, term) of the snapshot used. ``problems``: damage; ``notes``: other
    irregularities."""

    files: MetadataFiles
    image: MetadataImage = EMPTY_IMAGE
    voters: list[dict[str, Any]] | None = None
    snapshot: tuple[int, int] | None = None
    leader: int | None = None
    vote: dict[str, Any] | None = None
    problems: list[Problem] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)


def load(fs: FileSystem, path: str) -> LoadedState:
    """Read the metadata log in ``path``. Damage in a file ends the reading of that file, and is listed in ``problems``.
    Raises InvalidArgumentError if there is no metadata log."""
    state = LoadedState(files=find(fs, path))
    for snapshot in reversed(state.files.snapshots):
        if _take_snapshot(fs, state, snapshot):
            break
    _take_log(fs, state)
    state.vote = _quorum_state(fs, state)
    return state


def _take_snapshot(fs: FileSystem, state: LoadedState, snapshot: tuple[int, int]) -> bool:
    path = state.files.snapshot_path(snapshot)
    builder, voters, last = ImageBuilder(EMPTY_IMAGE), None, ""
    for found in read_snapshot(fs, path):
        problem = found if isinstance(found, Problem) else None
        if isinstance(found, Found):
            try:
                if found.header.is_control:
                    last, value = _control(found)
                    voters = value["voters"] if last == "KRaftVoters" else voters
                else:
                    last = ""
                    builder.replay(found.decoded())
            except HeadraceError as error:
                problem = Problem(path, found.position, found.record.offset, error.message)
        if problem is not None:
            state.problems.append(problem)
            return False
    if last != "SnapshotFooter":
        what = f"the snapshot has no end: its last record is {last}, not a footer"
        state.problems.append(Problem(path, -1, -1, what))
        return False
    state.image, _ = builder.finish(*snapshot)
    state.voters, state.snapshot = voters, snapshot
    return True


def _take_log(fs: FileSystem, state: LoadedState) -> None:
    start = state.image.next_offset
    if state.files.segments and state.files.segments[0] > start:
        missing = f"offsets {start} to {state.files.segments[0] - 1} are neither in a sound snapshot nor in the log"
        state.problems.append(Problem(state.files.segment_path(state.files.segments[0]), 0, start, missing))
        return
    builder, end, epoch = ImageBuilder(state.image), start, state.image.epoch
    for found in read_log(fs, state.files, start):
        if isinstance(found, Note):
            state.notes.append(found)
        elif isinstance(found, Problem):
            state.problems.append(found)
            break  # records after damage cannot be trusted
        elif found.record.offset >= start:
            try:
                _replay(state, builder, found)
            except HeadraceError as error:
                state.problems.append(Problem(found.path, found.position, found.record.offset, error.message))
                break
            end, epoch = found.record.offset + 1, found.header.leader_epoch
    state.image, _ = builder.finish(end, epoch)


def _replay(state: LoadedState, builder: ImageBuilder, found: Found) -> None:
    if not found.header.is_control:
        builder.replay(found.decoded())
        return
    kind, value = _control(found)
    if kind == "KRaftVoters":
        state.voters = value["voters"]
    elif kind == "LeaderChange":
        state.leader = value["leader"]


def _control(found: Found) -> tuple[str, dict[str, Any]]:
    return control.describe(control.parse(found.record))


def _quorum_state(fs: FileSystem, state: LoadedState) -> dict[str, Any] | None:
    """Read the last written term and vote; None if the node never wrote them (an observer, a new voter)."""
    path = f"{state.files.directory}/{_QUORUM_STATE}"
    try:
        outer = json.loads(read_file(fs, path))
        if zlib.crc32(outer["state"].encode()) != outer["crc32"]:
            raise ValueError("wrong checksum")
        found = json.loads(outer["state"])
        return {"term": int(found["leaderEpoch"]), "voted_for": int(found["votedId"])}
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        state.problems.append(Problem(path, -1, -1, f"damaged: {error!r}"))
        return None


def document(found: Found) -> dict[str, Any]:
    """Describe one record for output: its place, time, term and contents. Raises CorruptLogError,
    UnsupportedVersionError."""
    from .plain import plain

    if found.header.is_control:
        kind, value = _control(found)
    else:
        record = found.decoded()
        kind, value = type(record).__name__, plain(record)
    return {
        "file": found.path.rpartition("/")[2],
        "position": found.position,
        "offset": found.record.offset,
        "term": found.header.leader_epoch,
        "timestamp_ms": found.record.timestamp_ms,
        "control": found.header.is_control,
        "type": kind,
        "data": value,
    }
