"""Apache Kafka's DumpLogSegments reads Headrace's offset commits (``--offsets-decoder``), and skips record types that
only Headrace has.

Marked `kafka`: needs Java, and Maven for Kafka's jars. If the test is selected and Java or a jar is missing, it fails;
it is not skipped. The log contains the decisions of a shard, appended as the runtime appends them, with the shard's
epoch as base sequence.
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Set
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from headrace_coordinator.group.messages import Topic, TopicsChanged
from headrace_coordinator.offsets.codec import decode_key, decode_value
from headrace_coordinator.offsets.logic import OffsetSettings, OffsetsLogic
from headrace_coordinator.offsets.messages import CommitOffsets, DeleteOffsets, OffsetToCommit
from headrace_coordinator.state_machine import RecordKind, ShardRecord, kind_of
from headrace_core.clock import SystemClock
from headrace_core.log import LogConfig, PartitionLog, RealFileSystem
from headrace_core.records import encode_batch
from headrace_core.types import TopicPartition
from headrace_protos.v1 import groups_pb2
from tests.worlds.coordinator_world import GroupsCluster, Member

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[4]
TOOL = "org.apache.kafka.tools.DumpLogSegments"
NOW_MS = 1_700_000_000_000
SHARD_EPOCH = 7
TOPIC_ID = bytes(range(16))


class Line(NamedTuple):
    """A record as the tool prints it. ``key`` and ``value`` are the tool's texts."""

    offset: int
    sequence: int
    key: str
    value: str


LINE = re.compile(
    r"^\| offset: (\d+) .*? sequence: (-?\d+) headerKeys: \[\] key: (.*?)(?: payload: (.*))?$", re.MULTILINE
)


def _command() -> list[str]:
    """The command that starts the tool: the script in HEADRACE_PEERS if that is set (CI), or else the jars of this
    checkout."""
    if peers := os.environ.get("HEADRACE_PEERS"):
        script = Path(peers) / "kafka" / "cluster.py"
        assert script.exists(), f"HEADRACE_PEERS={peers}: {script} is missing"
        fetched = subprocess.run([sys.executable, str(script), "fetch"], capture_output=True, text=True, timeout=500)
        assert fetched.returncode == 0, f"Kafka's jars could not be fetched:\n{fetched.stdout}{fetched.stderr}"
        return [sys.executable, str(script), "tool", TOOL]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "bench"))
        import kafka_node

        return ["java", "-Xmx512m", "-cp", f"{kafka_node.jars()}/*", TOOL]


class _NoGroups:
    """No group has members, because only plain consumers commit."""

    def exists(self, group_id: str) -> bool:
        return False

    def subscribed(self, group_id: str, topics: Set[str]) -> Set[str]:
        return set()

    def committed(self, group_id: str, member_id: str, now_ms: int) -> None:
        pass


def _decided() -> list[ShardRecord]:
    """Commits with and without a topic id, long texts, texts in other scripts, extreme numbers, deletions, and
    Headrace's own records."""
    groups: Any = _NoGroups()
    logic = OffsetsLogic(groups, OffsetSettings(metadata_chars_max=100_000))
    log: list[ShardRecord] = [ShardRecord(int(RecordKind.CLAIM).to_bytes(2, "big"), b"\x00\x00\x92\x07\x01")]

    def commit(group_id: str, *offsets: OffsetToCommit) -> None:
        log.extend(logic.commit(CommitOffsets(group_id, offsets), NOW_MS).records)

    commit(
        "plain", OffsetToCommit("orders", 0, 0), OffsetToCommit("orders", 2**31 - 1, 2**63 - 1, 2**31 - 1, "x" * 4_096)
    )
    commit("grüße 世界", OffsetToCommit("orders", 1, 5, 3, "ünïcode 世界"))
    commit("long", OffsetToCommit("orders", 1, 5, 3, "y" * 32_767))
    log.extend(logic.delete(DeleteOffsets("plain", (TopicPartition("orders", 0),))).records)
    for kind in RecordKind:
        if kind >= RecordKind.GROUP:
            log.append(ShardRecord(int(kind).to_bytes(2, "big") + b"\x91\xa1g", b"\x00\x00\x90"))
            log.append(ShardRecord(int(kind).to_bytes(2, "big") + b"\x91\xa1g", None))
    logic.topics_changed(TopicsChanged({"orders": Topic("orders", TOPIC_ID, 3)}))
    commit("with-id", OffsetToCommit("orders", 0, 77, 4, "note"), OffsetToCommit("orders", 1, 78, 4, "z" * 32_767))
    return log


@pytest.fixture(scope="module")
def records() -> list[ShardRecord]:
    return _decided()


@pytest.fixture(scope="module")
def lines(records: list[ShardRecord], tmp_path_factory: pytest.TempPathFactory) -> list[Line]:
    directory = tmp_path_factory.mktemp("offsets") / "__consumer_offsets-0"
    directory.mkdir()
    partition = TopicPartition("__consumer_offsets", 0)
    log = PartitionLog.open(RealFileSystem(), str(directory), partition, LogConfig(), clock=SystemClock(), clean=True)
    for start in range(0, len(records), 4):
        batch = [(NOW_MS, key, value, []) for key, value in records[start : start + 4]]
        log.append(encode_batch(batch, base_sequence=SHARD_EPOCH), leader_epoch=0)
    log.close()
    return _dump(*directory.glob("*.log"))


def _dump(*segments: Path) -> list[Line]:
    """The output of the tool for these records, in order."""
    files = ",".join(map(str, segments))
    done = subprocess.run([*_command(), "--offsets-decoder", "--files", files], capture_output=True, timeout=120)
    output = done.stdout.decode()
    assert done.returncode == 0, output[-2_000:] + done.stderr.decode()[-2_000:]
    assert "isvalid: false" not in output.lower(), output
    return [Line(int(offset), int(sequence), key, value) for offset, sequence, key, value in LINE.findall(output)]


def test_kafka_sees_every_record(lines: list[Line], records: list[ShardRecord]) -> None:
    assert [line.offset for line in lines] == list(range(len(records)))


def test_kafka_reads_each_commit_as_we_do(lines: list[Line], records: list[ShardRecord]) -> None:
    seen = 0
    for line, (key, value) in zip(lines, records, strict=True):
        if kind_of(key) != RecordKind.OFFSET_COMMIT:
            continue
        seen += 1
        group_id, partition = decode_key(key)
        assert json.loads(line.key) == {
            "type": "1",
            "data": {"group": group_id, "topic": partition.topic, "partition": partition.partition},
        }
        if value is None:
            assert line.value == "<DELETE>"
            continue
        committed = decode_value(value)
        expected: dict[str, object] = {
            "offset": committed.offset,
            "leaderEpoch": committed.leader_epoch,
            "metadata": committed.metadata,
            "commitTimestamp": NOW_MS,
        }
        if committed.topic_id is not None:
            expected["topicId"] = base64.urlsafe_b64encode(committed.topic_id).decode().rstrip("=")
        version = "3" if committed.topic_id is None else "4"
        assert json.loads(line.value) == {"version": version, "data": expected}
    assert seen == 7


def test_kafka_steps_over_what_is_ours(lines: list[Line], records: list[ShardRecord]) -> None:
    ours = [(line, kind_of(key)) for line, (key, _) in zip(lines, records, strict=True) if kind_of(key) >= 1_000]
    assert {kind for _, kind in ours} == {int(kind) for kind in RecordKind if kind >= RecordKind.CLAIM}
    for line, kind in ours:
        assert f"Unknown record type {kind} at offset {line.offset}, skipping" in line.key, line


def test_the_shards_epoch_in_the_batches_disturbs_nobody(lines: list[Line]) -> None:
    assert [line.sequence for line in lines[:5]] == [SHARD_EPOCH + number for number in (0, 1, 2, 3, 0)]


def test_kafka_reads_what_a_cluster_of_ours_has_written(tmp_path: Path) -> None:
    """With real processes, a member joins, commits and leaves, a non-member commits, and offsets are deleted."""
    with GroupsCluster(tmp_path, coordinators=1) as cluster:
        topic = str(cluster.cluster.topic("orders", 4).name)
        group, plain = (cluster.group_of(1) for _ in range(2))
        member = Member(cluster, group, [topic])
        member.wait(lambda member: len(member.assignment) == 4, "the member to have all")
        for offset in range(10):
            cluster.commit(group, topic, offset, member=member.id, epoch=member.epoch)
        member.leave()
        cluster.commit(plain, topic, 77)
        deletion = groups_pb2.DeleteOffsetsRequest(
            group_id=plain, partitions=[groups_pb2.PartitionName(topic=topic, partition=0)]
        )
        (result,) = cluster.ask(plain, lambda stub: stub.DeleteOffsets(deletion, timeout=20)).results
        assert not result.error.code, result.error
    lines = _dump(*sorted(tmp_path.rglob("__consumer_offsets-*/*.log")))
    offsets: dict[str, list[object]] = {}
    for line in lines:
        if not line.key.startswith("{"):
            assert re.fullmatch(r"Unknown record type 100\d at offset \d+, skipping\.?.*", line.key), line
            continue
        key = json.loads(line.key)
        assert key["type"] == "1"
        assert (key["data"]["topic"], key["data"]["partition"]) == (topic, 0)
        decoded = None if line.value == "<DELETE>" else json.loads(line.value)["data"]
        offsets.setdefault(key["data"]["group"], []).append(decoded and decoded["offset"])
        assert decoded is None or len(decoded["topicId"]) == 22, "sixteen bytes in Kafka's base 64"
    assert offsets == {group: list(range(10)), plain: [77, None]}
    assert any(not line.key.startswith("{") for line in lines), "no record of ours was there to be stepped over"
