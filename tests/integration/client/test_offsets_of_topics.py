"""Admin.list_offsets and ``headrace topics offsets`` after records were written and deleted."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace import Admin, AsyncAdmin, LocalCluster, NewTopic, OffsetAndTimestamp, Producer, TopicPartition
from headrace.errors import InvalidArgumentError, OffsetOutOfRangeError, UnknownTopicOrPartitionError

DAY_MS = 1_700_000_000_000


@pytest.fixture
def topic(headrace: LocalCluster, request: pytest.FixtureRequest) -> str:
    """A topic of two partitions. The first partition has five records with timestamps out of order, two of them
    deleted; the second partition is empty."""
    name = f"offsets-{os.getpid()}-{request.node.name}"[:200]
    with (
        Admin(bootstrap_servers=headrace.bootstrap_servers) as admin,
        Producer(bootstrap_servers=headrace.bootstrap_servers) as producer,
    ):
        admin.create_topics([NewTopic(name, partitions=2, config={"retention.ms": "-1"})])
        for late_ms in (0, 10, 50, 30, 40):  # one batch each
            producer.send(name, b"x", partition=0, timestamp_ms=DAY_MS + late_ms).result(timeout=60)
        admin.delete_records({TopicPartition(name, 0): 2})
    return name


def test_starts_ends_and_times_are_found(headrace: LocalCluster, topic: str) -> None:
    full, empty = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with Admin(bootstrap_servers=headrace.bootstrap_servers) as admin:

        def at(spec: Any) -> tuple[int, int]:
            found = admin.list_offsets({full: spec})[full]
            assert isinstance(found, OffsetAndTimestamp)
            assert found.leader_epoch >= 0 or found.offset < 0
            return found.offset, found.timestamp_ms

        assert at("earliest") == (2, -1)
        assert at("latest") == (5, -1)
        assert at("max-timestamp") == (2, DAY_MS + 50)
        assert at(DAY_MS) == (2, DAY_MS + 50)  # the record of that time is deleted
        assert at(DAY_MS + 51) == (-1, -1)
        both = admin.list_offsets({empty: "latest", full: "latest"})
        assert [(partition, found.offset) for partition, found in both.items()] == [(empty, 0), (full, 5)]
        assert admin.list_offsets({empty: "max-timestamp"})[empty].offset == -1
        assert admin.list_offsets({full: "latest"}, isolation_level="read_committed")[full].offset == 5
        assert admin.list_offsets({}) == {}


def test_each_partition_that_refuses_a_deletion_is_named_and_the_others_have_ended(
    headrace: LocalCluster, topic: str
) -> None:
    full, empty = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with Admin(bootstrap_servers=headrace.bootstrap_servers) as admin:
        with pytest.raises(OffsetOutOfRangeError) as both:
            admin.delete_records({empty: 1, full: 99})
        assert f"{empty}: cannot delete records before 1" in both.value.message
        assert f"{full}: cannot delete records before 99" in both.value.message
        with pytest.raises(OffsetOutOfRangeError) as one:
            admin.delete_records({empty: 1, full: 3})
        assert str(full) not in one.value.message
        assert admin.list_offsets({full: "earliest"})[full].offset == 3


def test_the_asyncio_twin_finds_the_same(headrace: LocalCluster, topic: str) -> None:
    partition = TopicPartition(topic, 0)

    async def ask() -> int:
        async with AsyncAdmin(bootstrap_servers=headrace.bootstrap_servers) as admin:
            return (await admin.list_offsets({partition: "earliest"}))[partition].offset

    assert asyncio.run(ask()) == 2


def test_what_cannot_be_is_refused_and_nothing_is_created(headrace: LocalCluster, topic: str) -> None:
    partition = TopicPartition(topic, 0)
    with Admin(bootstrap_servers=headrace.bootstrap_servers) as admin:
        for spec in ("newest", -1, True, 1.5, None):
            with pytest.raises(InvalidArgumentError, match="must be 'earliest', 'latest', 'max-timestamp'"):
                admin.list_offsets({partition: spec})  # type: ignore[dict-item]
        with pytest.raises(InvalidArgumentError, match="read_uncommitted or read_committed"):
            admin.list_offsets({partition: "latest"}, isolation_level="serializable")
        with pytest.raises(InvalidArgumentError, match="has 2 partitions"):
            admin.list_offsets({TopicPartition(topic, 2): "latest"})
        with pytest.raises(UnknownTopicOrPartitionError):
            admin.list_offsets({TopicPartition("not-there", 0): "latest"}, timeout=5)
        with pytest.raises(UnknownTopicOrPartitionError):
            admin.delete_records({TopicPartition("not-there", 0): -1}, timeout=5)
        assert "not-there" not in admin.list_topics()


def test_the_command_line_shows_them(headrace: LocalCluster, topic: str) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        program = str(Path(sys.executable).with_name("headrace"))
        return subprocess.run(
            [program, "topics", "offsets", *arguments, "-b", headrace.bootstrap_servers],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    rows = [line.split() for line in run(topic).stdout.splitlines()]
    assert rows == [["PARTITION", "START", "END", "COUNT"], ["0", "2", "5", "3"], ["1", "0", "0", "0"]]
    assert json.loads(run(topic, "-p", "0", "-o", "json").stdout) == {
        "topic": topic, "partitions": [{"partition": 0, "start": 2, "end": 5, "count": 3}]
    }  # fmt: skip
    refused = run(topic, "-p", "7")
    assert refused.returncode == 1
    assert "has no partition 7" in refused.stderr
    assert "UNKNOWN_TOPIC_OR_PARTITION" in run("not-there").stderr
