"""The output of the metadata shell on a log and snapshots that the test writes, and its reports of damage."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace_core.errors import InvalidArgumentError
from headrace_core.log.dump import Note, Problem
from headrace_core.log.files import RealFileSystem
from headrace_core.metadata import (
    ConfigRecord,
    ConfigResourceType,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    TopicRecord,
)
from headrace_core.metadata.codec import encode_decision, encode_record
from headrace_core.metadata.records import BrokerEndpoint, ClusterRecord, RegisterBrokerRecord, ScramCredentialRecord
from headrace_core.node.ids import id_to_text
from headrace_core.records import encode_batch
from headrace_core.shell.plain import plain
from headrace_core.shell.reading import Found, read
from headrace_core.shell.state import document, load
from headrace_core.shell.tree import Directory, File, resolve, tree

FS = RealFileSystem()
TOPIC, DISK = b"t" * 16, b"d" * 16
SEGMENT, FIRST = "00000000000000000000.log", "00000000000000000000-0000000000.checkpoint"
STARTED: tuple[MetadataRecord, ...] = (
    ClusterRecord("the-cluster", 1),
    RegisterBrokerRecord(1, 1, b"i" * 16, (DISK,), (BrokerEndpoint("client", "h", 9095),)),
    TopicRecord("orders", TOPIC),
    PartitionRecord(TOPIC, 0, (1,), (1,), 1, 0, 0, (DISK,)),
)


def _compact(*parts: bytes) -> bytes:
    return bytes([len(parts) + 1]) + b"".join(parts)


def _text(text: str) -> bytes:
    return bytes([len(text) + 1]) + text.encode()


def _control(kind: int, value: bytes, *, base_offset: int = 0, term: int = 0) -> bytes:
    """A control batch that is built from Kafka's schemas, and not by Headrace's encoder."""
    record = (1_700_000_000_000, struct.pack(">hh", 0, kind), struct.pack(">h", 0) + value, ())
    return encode_batch([record], base_offset=base_offset, leader_epoch=term, control=True)


def _voters(*voters: tuple[int, bytes, str, int]) -> bytes:
    return (
        _compact(
            *(
                struct.pack(">i", node_id)
                + directory
                + _compact(_text("internal") + _text(host) + struct.pack(">H", port) + b"\0")
                + struct.pack(">hh", 0, 1)
                + b"\0\0"
                for node_id, directory, host, port in voters
            )
        )
        + b"\0"
    )


def _snapshot(records: tuple[MetadataRecord, ...], next_offset: int = 0, *, ended: bool = True) -> bytes:
    place = b"\x01\x90\x4e\x08" + struct.pack(">q", next_offset)  # our tagged field 10,000
    head = _control(3, struct.pack(">q", 5) + place) + _control(6, _voters((1, DISK, "h1", 19093)), base_offset=1)
    at = 2
    values = [(0, None, encode_record(record), ()) for record in records]
    body = encode_batch(values, base_offset=at) if values else b""
    return head + body + (_control(4, b"\0", base_offset=at + len(values)) if ended else b"")


Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """``write({file name: bytes})`` -> a controller's directory with this metadata log."""

    def make(files: dict[str, bytes]) -> Path:
        directory = tmp_path / "controller-1" / "__cluster_metadata-0"
        directory.mkdir(parents=True)
        for name, data in files.items():
            (directory / name).write_bytes(data)
        return directory.parent

    return make


def _decision(offset: int, *records: MetadataRecord, term: int = 1) -> bytes:
    return encode_decision(records, timestamp_ms=1_700_000_000_000, base_offset=offset, epoch=term)


def _leader(offset: int, term: int) -> bytes:
    voter = struct.pack(">i", 1) + b"\0"
    value = struct.pack(">i", 1) + _compact(voter) + _compact(voter) + b"\0"
    return _control(2, value, base_offset=offset, term=term)


def _log() -> bytes:
    """Offsets 0 (leader), 1 to 4 (STARTED), 5 (a change)."""
    change = PartitionChangeRecord(TOPIC, 0, 1, leader=-1, leader_epoch=1)
    return _leader(0, 1) + _decision(1, *STARTED) + _decision(5, change)


def _rows(path: Path) -> tuple[list[dict[str, Any]], list[Problem]]:
    found = list(read(FS, str(path)))
    return [document(each) for each in found if isinstance(each, Found)], [e for e in found if isinstance(e, Problem)]


def test_dump_shows_every_record_of_snapshots_and_log_with_offset_and_term(write: Write) -> None:
    rows, problems = _rows(write({SEGMENT: _log(), FIRST: _snapshot(())}))
    assert not problems
    assert [(row["file"], row["offset"], row["type"]) for row in rows] == [
        (FIRST, 0, "SnapshotHeader"),
        (FIRST, 1, "KRaftVoters"),
        (FIRST, 2, "SnapshotFooter"),
        (SEGMENT, 0, "LeaderChange"),
        (SEGMENT, 1, "ClusterRecord"),
        (SEGMENT, 2, "RegisterBrokerRecord"),
        (SEGMENT, 3, "TopicRecord"),
        (SEGMENT, 4, "PartitionRecord"),
        (SEGMENT, 5, "PartitionChangeRecord"),
    ]
    assert rows[1]["data"]["voters"] == [
        {
            "id": 1,
            "directory_id": id_to_text(DISK),
            "address": "h1:19093",
        }
    ]
    assert rows[3]["data"] == {"leader": 1, "voters": [{"id": 1, "directory_id": id_to_text(bytes(16))}]}
    assert [row["term"] for row in rows[3:]] == [1] * 6
    assert rows[6]["data"]["name"] == "orders"
    assert rows[6]["data"]["topic_id"] == id_to_text(TOPIC)
    assert [row["control"] for row in rows] == [True] * 4 + [False] * 5
    json.dumps(rows)


def test_the_tree_has_kafkas_places_and_short_ones(write: Write) -> None:
    config = ConfigRecord(ConfigResourceType.TOPIC, "orders", "retention.ms", "60000")
    root = tree(load(FS, str(write({SEGMENT: _log() + _decision(6, config)}))))

    def names(place: str) -> list[str]:
        node = resolve(root, place)
        assert isinstance(node, Directory)
        return node.names()

    def value(place: str) -> Any:
        node = resolve(root, place)
        assert isinstance(node, File)
        return node.value

    assert names("/") == ["image", "local"]
    assert {"cluster", "configs", "features", "producerIds", "provenance", "topics"} <= set(names("/image"))
    assert names("/topics") == ["byName", "byId"]
    assert names("/topics/orders") == ["name", "id", "0"]
    assert value("/image/topics/byName/orders/0") == value("/topics/orders/0")
    assert value(f"/topics/byId/{id_to_text(TOPIC)}/name") == "orders"
    partition = value("/topics/orders/0")
    assert (partition["leader"], partition["leader_epoch"], partition["replicas"]) == (-1, 1, [1])
    assert partition["directories"] == [id_to_text(DISK)]
    assert value("/brokers/1")["endpoints"] == [{"listener": "client", "host": "h", "port": 9095}]
    assert value("/image/cluster/id") == "the-cluster"
    assert value("/configs/TOPIC:orders/retention.ms") == "60000"
    assert value("/image/provenance") == {"next_offset": 7, "term": 1}
    assert value("/local/quorum")["latest_leader"] == 1
    for place in ("/", "/image", "/image/topics/byId"):  # every listed entry exists
        for name in names(place):
            assert resolve(root, f"{place}/{name}") is not None


def test_keys_of_a_users_credential_are_hidden(write: Write) -> None:
    secrets = (b"salt" * 4, b"stored" * 8, b"server" * 8)
    credential = ScramCredentialRecord("alice", 1, *secrets, 4096)
    path = write({SEGMENT: _leader(0, 1) + _decision(1, *STARTED, credential)})
    rows, _ = _rows(path)
    assert rows[-1]["data"] == {
        "user": "alice",
        "mechanism": 1,
        "salt": "[hidden]",
        "stored_key": "[hidden]",
        "server_key": "[hidden]",
        "iterations": 4096,
    }
    shown = json.dumps(plain(load(FS, str(path)).image.security))
    assert "alice" in shown
    assert not [each for each in secrets if each.hex() in shown or id_to_text(each) in shown]


def test_what_is_not_there_is_answered_with_what_is(write: Write) -> None:
    root = tree(load(FS, str(write({SEGMENT: _log()}))))
    with pytest.raises(InvalidArgumentError, match="no nope in this directory; there is orders"):
        resolve(root, "/topics/nope")
    with pytest.raises(InvalidArgumentError, match=r"/image/topics/byName/orders/0 is not a directory"):
        resolve(root, "/topics/orders/0/leader")
    with pytest.raises(InvalidArgumentError, match="no frogs in this directory"):
        resolve(root, "/frogs")


def test_the_state_begins_with_the_newest_snapshot_and_goes_on_with_the_log(write: Write) -> None:
    newest = "00000000000000000005-0000000001.checkpoint"
    change = PartitionChangeRecord(TOPIC, 0, 1, leader=-1, leader_epoch=1)
    state = load(
        FS,
        str(
            write(
                {
                    FIRST: _snapshot(()),
                    newest: _snapshot(STARTED, 5),
                    "00000000000000000005.log": _decision(5, change),
                }
            )
        ),
    )
    assert not state.problems
    assert state.snapshot == (5, 1)
    assert state.image.next_offset == 6
    partition = state.image.partition(TOPIC, 0)
    assert partition is not None
    assert partition.leader == -1
    assert state.voters is not None
    assert state.voters[0]["id"] == 1


@pytest.mark.parametrize("cut", ["a flipped bit", "no footer", "half"])
def test_a_damaged_snapshot_is_named_and_the_one_before_it_is_taken(write: Write, cut: str) -> None:
    newest = "00000000000000000005-0000000001.checkpoint"
    whole = _snapshot(STARTED, 5)
    damaged = {
        "a flipped bit": whole[:200] + bytes([whole[200] ^ 1]) + whole[201:],
        "no footer": _snapshot(STARTED, 5, ended=False),
        "half": whole[: len(whole) // 2],
    }[cut]
    state = load(FS, str(write({FIRST: _snapshot(()), newest: damaged, SEGMENT: _log()})))
    (problem,) = state.problems
    assert problem.path.endswith(newest)
    assert problem.position >= 0 or cut == "no footer"
    assert state.snapshot == (0, 0)
    assert state.image.next_offset == 6


def test_damage_in_the_log_is_named_with_its_place_and_ends_the_state(write: Write) -> None:
    log = _log()
    at = len(_leader(0, 1) + _decision(1, *STARTED))
    damaged = log[: at + 70] + bytes([log[at + 70] ^ 4]) + log[at + 71 :] + _decision(6, TopicRecord("late", b"l" * 16))
    directory = write({SEGMENT: damaged})
    state = load(FS, str(directory))
    (problem,) = state.problems
    assert (problem.position, problem.offset) == (at, 5)
    assert state.image.next_offset == 5
    assert state.image.topic("late") is None
    rows, problems = _rows(directory)
    assert [row["type"] for row in rows][-1] == "TopicRecord"  # dump continues at the next sound batch
    assert problems == [problem]


def test_an_append_under_way_is_no_damage(write: Write) -> None:
    state = load(FS, str(write({SEGMENT: _log()[:-10]})))
    assert not state.problems
    (note,) = state.notes
    assert isinstance(note, Note)
    assert note.offset == 5
    assert state.image.next_offset == 5


def test_a_missing_segment_is_damage(write: Write) -> None:
    later = _decision(9, TopicRecord("late", b"l" * 16))
    directory = write({SEGMENT: _log(), "00000000000000000009.log": later})
    state = load(FS, str(directory))
    (problem,) = state.problems
    assert "offsets 6 to 8 are missing" in problem.what
    beginning = directory / "__cluster_metadata-0" / SEGMENT
    beginning.unlink()
    (problem,) = load(FS, str(directory)).problems
    assert "offsets 0 to 8 are neither in a sound snapshot nor in the log" in problem.what


def test_a_directory_without_a_metadata_log_is_refused_with_those_that_have_one(write: Write, tmp_path: Path) -> None:
    write({SEGMENT: _log()})
    with pytest.raises(InvalidArgumentError, match="name one of controller-1 in it"):
        load(FS, str(tmp_path))
    with pytest.raises(InvalidArgumentError, match="no such file"):
        load(FS, "/nowhere")
    (tmp_path / "orders-0").mkdir()
    (tmp_path / "orders-0" / SEGMENT).write_bytes(b"")
    with pytest.raises(InvalidArgumentError, match="no metadata log in this directory"):
        load(FS, str(tmp_path / "orders-0"))


def test_term_and_vote_are_shown_and_a_damaged_file_of_them_is_named(write: Write) -> None:
    text = json.dumps({"leaderEpoch": 3, "votedId": 2, "data_version": 1})
    directory = write(
        {SEGMENT: _log(), "quorum-state": json.dumps({"state": text, "crc32": zlib.crc32(text.encode())}).encode()}
    )
    assert load(FS, str(directory)).vote == {"term": 3, "voted_for": 2}
    path = directory / "__cluster_metadata-0" / "quorum-state"
    for damaged in (b"{}", b"", path.read_bytes().replace(b"3", b"4", 1)):
        path.write_bytes(damaged)
        assert [problem.path for problem in load(FS, str(directory)).problems] == [str(path)]


def test_nothing_is_written_or_locked(write: Write) -> None:
    directory = write({SEGMENT: _log()[:-10], FIRST: _snapshot(())})
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    _rows(directory)
    load(FS, str(directory))
    assert before == {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
