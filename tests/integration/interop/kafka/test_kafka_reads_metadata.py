"""Kafka's DumpLogSegments reads Headrace's metadata log and its snapshots: the control records of both, and the
batches.

Marked `kafka`: needs Java, and Maven for Kafka's jars. If the test is selected and Java or a jar is missing, it fails;
it is not skipped.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from headrace_controller.control_records import encode_control
from headrace_controller.raft import Entry, EntryKind, HardState, Place, ReplicaKey, VoterSet
from headrace_controller.storage import MetadataStorage, write_first_voters
from headrace_core.log.files import RealFileSystem
from headrace_core.metadata import EMPTY_IMAGE, ClusterRecord, TopicRecord
from headrace_core.metadata.codec import encode_decision
from headrace_core.node.ids import id_to_text
from headrace_core.node.meta_properties import format_directories
from headrace_core.testing.clock import ManualClock
from tests.integration.interop.kafka_peer import jars

pytestmark = pytest.mark.timeout(600)

TOOL = "org.apache.kafka.tools.DumpLogSegments"
KEYS = [ReplicaKey(number, bytes([number]) * 16) for number in (1, 2)]
VOTERS = VoterSet.of(KEYS, {1: "one:9093", 2: "[::1]:9094"})


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A controller's directory with two terms, a removed voter, one snapshot and the first voters."""
    root = str(tmp_path_factory.mktemp("controller") / "data")
    fs = RealFileSystem()
    format_directories([root], cluster_id="cluster", node_id=1, fs=fs)
    write_first_voters(fs, root, VOTERS)
    storage = MetadataStorage.open(fs, root, clock=ManualClock(), cluster_id="cluster", node_id=1)
    storage.save_hard_state(HardState(4, KEYS[0]))
    records = (ClusterRecord("cluster", 2), TopicRecord("t", b"t" * 16))
    fewer = VOTERS.minus(KEYS[1])
    decided = encode_decision(records, timestamp_ms=70, base_offset=1, epoch=3)
    entries = [
        Entry(EntryKind.LEADER_CHANGE, 3, 0, 1, encode_control(EntryKind.LEADER_CHANGE, 3, 0, 1, VOTERS, 60)),
        Entry(EntryKind.DATA, 3, 1, 2, decided),
        Entry(EntryKind.VOTERS, 4, 3, 1, encode_control(EntryKind.VOTERS, 4, 3, 1, fewer, 80), fewer),
    ]
    storage.append(entries)
    job = storage.snapshot_job(EMPTY_IMAGE.apply(records, 4, 4), Place(4, 4), fewer)
    job.run()
    storage.finish_snapshot(job)
    storage.close()
    return Path(root) / "__cluster_metadata-0"


def dumped(path: Path) -> tuple[str, dict[str, Any]]:
    """The output of the tool for a file, and the control records in it by name."""
    done = subprocess.run(
        ["java", "-Xmx256m", "-cp", f"{jars()}/*", TOOL, "--files", str(path), "--print-data-log"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert not re.search(r"exception|isvalid: false", done.stdout + done.stderr, re.IGNORECASE), done.stdout
    found = re.findall(r"headerKeys: \[\] (\w+):? ?(\{.*\})$", done.stdout, re.MULTILINE)
    return done.stdout, {name: json.loads(text) for name, text in found}


def test_kafka_reads_the_log(directory: Path) -> None:
    text, records = dumped(directory / f"{0:020}.log")
    assert text.count("isvalid: true") == 3
    assert text.count("isControl: true") == 2
    assert [int(epoch) for epoch in re.findall(r"partitionLeaderEpoch: (\d+)", text)] == [3, 3, 4]
    change = records["LeaderChange"]
    assert change["leaderId"] == 1
    assert [voter["voterId"] for voter in change["voters"]] == [1, 2]
    (voter,) = records["KRaftVoters"]["voters"]
    assert voter["voterDirectoryId"] == id_to_text(KEYS[0].directory_id)


def test_kafka_reads_a_snapshot_and_the_first_voters(directory: Path) -> None:
    text, records = dumped(directory / f"{4:020}-{4:010}.checkpoint")
    assert "Snapshot end offset: 4, epoch: 4" in text
    assert set(records) == {"SnapshotHeader", "KRaftVersion", "KRaftVoters", "SnapshotFooter"}
    assert records["SnapshotHeader"]["lastContainedLogTimestamp"] == 80
    _, first = dumped(directory / f"{0:020}-{0:010}.checkpoint")
    endpoints = [voter["endpoints"][0] for voter in first["KRaftVoters"]["voters"]]
    assert endpoints == [
        {"name": "internal", "host": "one", "port": 9093},
        {"name": "internal", "host": "::1", "port": 9094},
    ]
