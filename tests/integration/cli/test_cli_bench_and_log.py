"""``bench`` and ``log dump`` on a real cluster: the structure of their JSON documents, and their failures."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace import LocalCluster

Cli = Callable[..., Any]

DOCUMENT = {"workload", "api", "records", "seconds", "records_per_s", "mib_per_s", "latency_ms", "verified"}


def _check(found: dict[str, Any], workload: str, api: str, records: int) -> None:
    assert set(found) == DOCUMENT
    assert (found["workload"], found["api"], found["records"], found["verified"]) == (workload, api, records, True)
    assert found["seconds"] > 0
    assert found["records_per_s"] == pytest.approx(records / found["seconds"], rel=0.01)
    assert found["mib_per_s"] == pytest.approx(records * 100 / found["seconds"] / 2**20, rel=0.01, abs=0.001)
    latency = found["latency_ms"]
    assert list(latency) == ["p50", "p99", "p999", "max"]
    assert 0 <= latency["p50"] <= latency["p99"] <= latency["p999"] <= latency["max"]


@pytest.mark.parametrize("api", ["object", "many", "arrow", "async"])
def test_what_is_produced_is_consumed_and_verified(cli: Cli, api: str) -> None:
    topic = f"bench-{api}"
    made = cli(
        "bench", "produce", "--topic", topic, "--api", api, "--records", "20000", "--acks", "all",
        "--compression", "lz4", "--no-warm", "-o", "json",
    )  # fmt: skip
    assert f"created topic {topic} (6 partitions)" in made.err
    _check(made.json(), "produce", api, 20_000)
    _check(
        cli("bench", "consume", "--topic", topic, "--api", api, "--no-warm", "-o", "json").json(),
        "consume", api, 20_000,
    )  # fmt: skip


@pytest.mark.parametrize(("api", "rate"), [("object", None), ("object", "1000"), ("async", None), ("async", "1000")])
def test_latency_is_measured_alone_and_on_a_schedule(cli: Cli, api: str, rate: str | None) -> None:
    flags = ["--rate", rate] if rate else []
    found = cli(
        "bench", "latency", "--topic", "bench-latency", "--api", api, "--records", "300", "--no-warm", "-o", "json",
        *flags,
    ).json()  # fmt: skip
    _check(found, "latency", api, 300)
    assert found["latency_ms"]["p50"] > 0
    if rate:
        assert found["seconds"] >= 0.29  # 300 records at 1,000 per second


def test_bench_keeps_to_a_rate_and_counts_unanswered_records_by_the_log(cli: Cli) -> None:
    found = cli(
        "bench", "produce", "--topic", "bench-rate", "--rate", "2000", "--records", "1000", "--acks", "0", "-p", "1",
        "--no-warm", "-o", "json",
    ).json()  # fmt: skip
    _check(found, "produce", "object", 1_000)
    assert found["seconds"] >= 0.49
    assert "verified" in cli("bench", "consume", "--topic", "bench-rate", "--no-warm").text


def test_bench_refuses_what_cannot_be_measured(cli: Cli) -> None:
    cli("topics", "create", "bench-empty", "-p", "1")
    assert "is empty" in cli("bench", "consume", "--topic", "bench-empty", "--no-warm", code=1).err
    assert "single records" in cli("bench", "latency", "--topic", "bench-empty", "--api", "many", code=1).err
    cli("produce", "-t", "bench-empty", stdin=b"x\n")
    short = cli("bench", "consume", "--topic", "bench-empty", "--records", "9", "--no-warm", code=1)
    assert "has fewer records (1)" in short.err
    assert cli("bench", "produce", "--topic", "t", "--api", "magic", code=2).err


def _partition(headrace: LocalCluster, topic: str) -> Path:
    (broker,) = [row for row in headrace.ps() if row["role"] == "broker"]
    return Path(broker["data_dirs"][0]) / f"{topic}-0"


def test_log_dump_reads_a_partition_and_finds_planted_corruption(
    cli: Cli, headrace: LocalCluster, tmp_path: Path
) -> None:
    cli("topics", "create", "dumped", "-p", "1", "-c", "index.interval.bytes=1")
    for number in range(3):
        cli("produce", "-t", "dumped", "-K", ":", stdin=b"k%d:v%d\nother\n" % (number, number))
    copy = tmp_path / "dumped-0"
    shutil.copytree(_partition(headrace, "dumped"), copy)

    text = cli("log", "dump", copy, "--deep").text
    assert "00000000000000000000.log" in text
    assert "key=k2" in text
    found = cli("log", "dump", copy, "--deep", "-o", "json").json()
    assert set(found) == {
        "path", "sound", "files", "batches", "records", "offset_entries", "time_entries", "producers",
        "aborted_transactions", "problems", "notes",
    }  # fmt: skip
    assert found["sound"] is True
    assert [row["offset"] for row in found["records"]] == list(range(6))
    assert [row["value"] for row in found["records"]] == ["v0", "other", "v1", "other", "v2", "other"]
    assert sum(row["record_count"] for row in found["batches"]) == 6
    assert cli("log", "dump", copy, "-o", "json").json()["records"] == []
    assert "no damage" in cli("log", "verify", copy).text
    assert cli("log", "verify", copy, "-o", "json").json() | {"path": "", "files": 0, "bytes": 0} == {
        "path": "", "sound": True, "files": 0, "bytes": 0, "batches": len(found["batches"]), "records": 6,
        "problems": [], "notes": [],
    }  # fmt: skip

    segment = copy / "00000000000000000000.log"
    data = bytearray(segment.read_bytes())
    second = found["batches"][1]
    data[second["position"] + 70] ^= 1
    segment.write_bytes(data)
    damaged = cli("log", "dump", segment, code=1)
    assert str(segment) in damaged.err
    assert f"position {second['position']}" in damaged.err
    assert f"offset {second['base_offset']}" in damaged.err
    assert "CORRUPT_LOG" in damaged.err
    document = cli("log", "dump", segment, "-o", "json", code=1).json()
    assert document["sound"] is False
    assert document["problems"][0]["position"] == second["position"]
    verified = cli("log", "verify", copy, code=1)
    assert f"{segment}, position {second['position']}, offset {second['base_offset']}" in verified.err
    assert "restore the partition's files from a copy, or delete its directory: all its records" in verified.err
    (problem,) = cli("log", "verify", copy, "-o", "json", code=1).json()["problems"]
    assert set(problem) == {"path", "position", "offset", "what", "cure"}


def test_a_directory_is_what_lies_in_it_whatever_its_name(
    bare_cli: Cli, headrace: LocalCluster, cli: Cli, tmp_path: Path
) -> None:
    """``up`` names node directories as partition directories are named: broker-1, controller-1."""
    cli("topics", "create", "named", "-p", "1")
    cli("produce", "-t", "named", stdin=b"v\n")
    cluster = tmp_path / "a-1"
    for row in headrace.ps():
        home = Path(row["data_dirs"][0])
        # no assertion about the run's other topics, which other tests create and delete
        kept = shutil.ignore_patterns("[!_n]*-[0-9]*")
        shutil.copytree(home, cluster / f"{row['role']}-{row['id']}", ignore=kept)
    broker = cluster / "broker-1"
    for path in (cluster, broker, cluster / "controller-1", broker / "named-0"):
        verified = bare_cli("log", "verify", path, "-o", "json").json()
        assert (verified["sound"], verified["problems"]) == (True, [])
        assert verified["batches"] >= 1
        dumped = bare_cli("log", "dump", path, "-o", "json").json()
        assert dumped["sound"] is True
        assert len(dumped["batches"]) == verified["batches"]
    (broker / "named-0" / "00000000000000000000.log").unlink()
    (broker / "recovery-point-offset-checkpoint").write_text("0\n1\nnamed 0 1\n")
    assert "flushed up to offset 1" in bare_cli("log", "verify", cluster, code=1).err
    lost = broker / "named-0"
    for name in lost.iterdir():
        name.unlink()
    for path in (cluster, lost):
        found = bare_cli("log", "verify", path, code=1)
        assert f"{lost}, offset 1: there is no segment in this directory" in found.err
        assert "-1, " not in found.err.replace("broker-1", "")
        (problem,) = bare_cli("log", "verify", path, "-o", "json", code=1).json()["problems"]
        assert problem["position"] is None


def test_what_a_kill_leaves_is_a_note_and_no_damage(
    bare_cli: Cli, headrace: LocalCluster, cli: Cli, tmp_path: Path
) -> None:
    cli("topics", "create", "torn", "-p", "1")
    for number in range(3):
        cli("produce", "-t", "torn", stdin=b"v%d\n" % number)
    broker = tmp_path / "broker-1"
    broker.mkdir()
    copy = broker / "torn-0"
    shutil.copytree(_partition(headrace, "torn"), copy)
    segment = copy / "00000000000000000000.log"
    data = segment.read_bytes()
    points = broker / "recovery-point-offset-checkpoint"
    for tail in (data[:40], bytes(5000), data[:-1][len(data) // 3 * 2 :]):
        points.write_text("0\n1\ntorn 0 2\n")
        segment.write_bytes(data + tail)
        for command in ("verify", "dump"):
            for path in (broker, copy, segment):
                found = bare_cli("log", command, path)
                assert f"{segment}, position {len(data)}, offset 3: torn tail" in found.err
                assert f"cuts these {len(tail)} bytes" in found.err
                assert "CORRUPT_LOG" not in found.err
                document = bare_cli("log", command, path, "-o", "json").json()
                assert (document["sound"], document["problems"], len(document["notes"])) == (True, [], 1)
        # Bytes of a torn tail that are below the recovery point count as damage.
        points.write_text("0\n1\ntorn 0 4\n")
        for command in ("verify", "dump"):
            found = bare_cli("log", command, broker, code=1)
            assert "CORRUPT_LOG" in found.err
            assert "torn tail" not in found.err


def test_log_dump_goes_on_behind_damage_and_blames_nothing_else(
    headrace: LocalCluster, cli: Cli, tmp_path: Path
) -> None:
    cli("topics", "create", "rotten", "-p", "1", "-c", "index.interval.bytes=1", "-c", "segment.bytes=1048576")
    for number in range(3):
        cli("produce", "-t", "rotten", stdin=b"v%d\n" % number)
    copy = tmp_path / "rotten-0"
    shutil.copytree(_partition(headrace, "rotten"), copy)
    first = copy / "00000000000000000000.log"
    data = first.read_bytes()
    last = len(data) // 3 * 2
    (copy / "00000000000000000002.log").write_bytes(data[last:])
    for suffix in (".index", ".timeindex"):
        (copy / f"00000000000000000002{suffix}").write_bytes(b"")
    for place in (8, last // 2 + 8):  # the length of a batch, so that the next batch cannot be found
        damaged = bytearray(data[:last])
        damaged[place] ^= 0x40
        first.write_bytes(damaged)
        found = cli("log", "dump", copy, "-o", "json", code=1)
        (problem,) = found.json()["problems"]
        assert (problem["path"], problem["position"]) == (str(first), place - 8)
        assert [row["base_offset"] for row in found.json()["batches"]] == [1 if place == 8 else 0, 2]


def test_log_dump_refuses_what_is_no_log(cli: Cli, tmp_path: Path) -> None:
    assert "no such file" in cli("log", "dump", tmp_path / "none", code=1).err
    (tmp_path / "x.txt").write_text("x")
    assert "not a .log" in cli("log", "dump", tmp_path / "x.txt", code=1).err
    for name in ("none", "x.txt", "."):
        assert str(tmp_path) in cli("log", "verify", tmp_path / name, code=1).err
