"""Topics, configurations and records at the command line: their effects, and the structure of their JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Cli = Callable[..., Any]


def test_a_topics_life(cli: Cli) -> None:
    made = cli("topics", "create", "life", "-p", "3", "-r", "1", "-c", "retention.ms=3600000", "-o", "json").json()
    assert made["name"] == "life"
    assert (made["partitions"], made["replication_factor"]) == (3, 1)
    assert len(made["topic_id"]) == 22

    assert "TOPIC_ALREADY_EXISTS" in cli("topics", "create", "life", code=1).err
    same = cli("topics", "create", "life", "--if-not-exists", "-o", "json").json()
    assert (same["created"], same["topic_id"]) == (False, made["topic_id"])

    (listed,) = [row for row in cli("topics", "list", "-o", "json").json() if row["name"] == "life"]
    assert listed["partitions"] == 3
    assert any(line.split() == ["life", "3", "1"] for line in cli("topics", "list").lines)

    described = cli("topics", "describe", "life", "-o", "json").json()
    assert described["config"] == {"retention.ms": "3600000"}
    assert [part["partition"] for part in described["partitions"]] == [0, 1, 2]
    assert set(described["partitions"][0]) == {
        "partition", "leader", "leader_epoch", "replicas", "isr", "offline_replicas", "elr", "last_known_elr",
        "under_replicated", "under_min_isr", "unavailable",
    }  # fmt: skip
    assert "retention.ms=3600000" in cli("topics", "describe", "life").text

    altered = cli(
        "topics", "alter", "life", "-p", "5", "-c", "segment.bytes=1048576", "--delete-config", "retention.ms",
        "-o", "json",
    )  # fmt: skip
    assert altered.json()["partitions"] == 5
    assert "new records of a key in life may go to another partition" in altered.err
    assert cli("topics", "describe", "life", "-o", "json").json()["config"] == {"segment.bytes": "1048576"}
    assert "INVALID_PARTITIONS" in cli("topics", "alter", "life", "-p", "2", code=1).err
    assert cli("topics", "alter", "life", code=2).err

    assert cli("topics", "delete", "life", "-o", "json").json() == {"deleted": ["life"]}
    assert "UNKNOWN_TOPIC_OR_PARTITION" in cli("topics", "describe", "life", code=1).err
    assert "UNKNOWN_TOPIC_OR_PARTITION" in cli("topics", "delete", "life", code=1).err


def test_names_and_values_that_cannot_be_are_refused_by_name(cli: Cli) -> None:
    assert "INVALID_TOPIC_EXCEPTION" in cli("topics", "create", "no/slash", code=1).err
    unknown = cli("topics", "create", "typo", "-c", "retention.mss=1", code=1).err
    assert "INVALID_CONFIG" in unknown
    assert "retention.ms" in unknown
    assert "INVALID_REPLICATION_FACTOR" in cli("topics", "create", "three", "-r", "3", code=1).err


def test_configs_are_described_and_altered(cli: Cli) -> None:
    cli("topics", "create", "configured", "-p", "1")
    cli("configs", "alter", "--topic", "configured", "--set", "retention.ms=60000")
    found = cli("configs", "describe", "--topic", "configured", "-o", "json").json()
    assert (found["type"], found["name"]) == ("topic", "configured")
    by_name = {row["name"]: row for row in found["configs"]}
    assert set(by_name["retention.ms"]) >= {"name", "value", "source", "read_only", "documentation"}
    assert by_name["retention.ms"]["value"] == "60000"
    assert by_name["retention.ms"]["source"] == "dynamic_topic"
    assert by_name["segment.bytes"]["source"] == "default"
    assert [line.split() for line in cli("configs", "describe", "--topic", "configured").lines] == [
        ["KEY", "VALUE", "SOURCE"],
        ["retention.ms", "60000", "dynamic_topic"],
    ]
    changed = cli("configs", "alter", "--topic", "configured", "--delete", "retention.ms", "-o", "json").json()
    assert changed["changed"] == {"retention.ms": None}
    assert len(cli("configs", "describe", "--topic", "configured").lines) == 1
    brokers = cli("configs", "describe", "--broker", "1", "-o", "json").json()
    assert any(row["name"] == "log.dirs" for row in brokers["configs"])
    assert cli("configs", "describe", code=2).err
    assert cli("configs", "alter", "--topic", "configured", code=2).err


def test_records_are_deleted_from_the_start(cli: Cli) -> None:
    cli("topics", "create", "trimmed", "-p", "2")
    cli("produce", "-t", "trimmed", "-p", "0", stdin=b"a\nb\nc\nd\n")
    cli("produce", "-t", "trimmed", "-p", "1", stdin=b"x\n")
    done = cli("records", "delete", "-t", "trimmed", "-p", "0", "--before", "3", "-o", "json").json()
    assert done == [{"topic": "trimmed", "partition": 0, "low_watermark": 3}]
    assert cli("consume", "-t", "trimmed", "-e", "-q", "-f", r"%p %o %s\n").lines == ["0 3 d", "1 0 x"]
    everything = cli("records", "delete", "-t", "trimmed", "--before", "end", "-o", "json").json()
    assert [row["low_watermark"] for row in everything] == [4, 1]
    assert cli("consume", "-t", "trimmed", "-e", "-q").out == b""
    assert "OFFSET_OUT_OF_RANGE" in cli("records", "delete", "-t", "trimmed", "-p", "0", "--before", "99", code=1).err
    assert cli("records", "delete", "-t", "trimmed", "--before", "soon", code=2).err


def test_records_that_a_partition_refuses_to_delete_are_named_beside_the_deleted_ones(cli: Cli) -> None:
    cli("topics", "create", "uneven", "-p", "2")
    cli("produce", "-t", "uneven", "-p", "1", stdin=b"a\nb\nc\n")
    done = cli("records", "delete", "-t", "uneven", "--before", "2", "-o", "json", code=1)
    deleted, refused = done.json()
    assert deleted == {"topic": "uneven", "partition": 1, "low_watermark": 2}
    assert (refused["partition"], refused["low_watermark"]) == (0, None)
    assert refused["error"]["code"] == "OFFSET_OUT_OF_RANGE"
    assert "uneven-0: cannot delete records before 2" in done.err
    again = cli("records", "delete", "-t", "uneven", "--before", "3", code=1)
    assert [line.split() for line in again.lines] == [["TOPIC", "PARTITION", "STARTS", "AT"], ["uneven", "1", "3"]]
    assert "OFFSET_OUT_OF_RANGE" in again.err
    both = cli("records", "delete", "-t", "uneven", "--before", "99", "-o", "json", code=1)
    assert both.out == b""
    assert "uneven-0: " in both.err
    assert "uneven-1: " in both.err
    assert cli("records", "delete", "-t", "uneven", "--before", "²", code=2).err


def test_a_topic_that_cannot_be_deleted_does_not_hide_those_that_are(cli: Cli) -> None:
    cli("topics", "create", "goes")
    done = cli("topics", "delete", "goes", "never-was", "-o", "json", code=1)
    (failed,) = done.json()["failed"]
    assert (done.json()["deleted"], failed["topic"]) == (["goes"], "never-was")
    assert failed["error"]["code"] == "UNKNOWN_TOPIC_OR_PARTITION"
    assert "'never-was' does not exist [UNKNOWN_TOPIC_OR_PARTITION]" in done.err
    cli("topics", "create", "goes")
    done = cli("topics", "delete", "never-was", "goes", code=1)
    assert done.lines == ["deleted goes"]
    assert "'never-was' does not exist" in done.err
    assert cli("topics", "delete", "never-was", "goes", code=1).out == b""


def test_refused_partitions_leave_a_topics_configuration_unchanged(cli: Cli) -> None:
    cli("topics", "create", "unaltered", "-p", "2")
    refused = cli("topics", "alter", "unaltered", "-p", "1", "-c", "retention.ms=1h", code=1)
    assert "INVALID_PARTITIONS" in refused.err
    assert cli("topics", "describe", "unaltered", "-o", "json").json()["config"] == {}


def test_the_cluster_is_described(cli: Cli) -> None:
    found = cli("cluster", "describe", "-o", "json").json()
    assert found["controller_id"] == 1
    assert len(found["cluster_id"]) == 22
    (broker,) = found["brokers"]
    assert set(broker) == {"id", "address", "rack", "fenced"}
    assert found["cluster_id"] in cli("cluster", "describe").text
