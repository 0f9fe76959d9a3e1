"""``produce`` and ``consume`` compared with kcat's behaviour for the same flags."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace import LocalCluster

Cli = Callable[..., Any]


@pytest.fixture
def topic(cli: Cli, request: pytest.FixtureRequest) -> str:
    """A topic of one partition, named after the test. Retention does not delete the topic's records with old
    timestamps."""
    name: str = request.node.name.replace("[", "-").replace("]", "")[:200]
    cli("topics", "create", name, "-p", "1", "-c", "retention.ms=-1")
    return name


def test_lines_in_lines_out(cli: Cli, topic: str) -> None:
    cli("produce", "-t", topic, stdin=b"one\n\nthree\nlast without end")
    read = cli("consume", "-t", topic, "-e")
    assert read.out == b"one\n\nthree\nlast without end\n"
    assert f"% Reached end of topic {topic} [0] at offset 4" in read.err


def test_keys_headers_and_nulls_go_through(cli: Cli, topic: str) -> None:
    cli("produce", "-t", topic, "-K", ":", "-Z", "-H", "a=1", "-H", "b", stdin=b"k:v\n:only value\nonly key:\nplain\n")
    assert cli("consume", "-t", topic, "-e", "-q", "-Z", "-f", r"%k(%K)=%s(%S) %h\n").lines == [
        "k(1)=v(1) a=1,b=NULL",
        "NULL(-1)=only value(10) a=1,b=NULL",
        "only key(8)=NULL(-1) a=1,b=NULL",
        "NULL(-1)=plain(5) a=1,b=NULL",
    ]
    assert cli("consume", "-t", topic, "-e", "-q", "-K", "|", "-D", ";").text == "k|v;|only value;only key|;|plain;"


def test_any_bytes_go_through_with_other_delimiters(cli: Cli, topic: str) -> None:
    payload = bytes(range(256))
    cli("produce", "-t", topic, "-D", r"\x00\xff--", stdin=payload + b"\x00\xff--" + b"second")
    assert cli("consume", "-t", topic, "-e", "-q", "-D", "").out == payload + b"second"
    assert cli("consume", "-t", topic, "-e", "-q", "-f", "%R%s").out == (
        b"\x00\x00\x01\x00" + payload + b"\x00\x00\x00\x06second"
    )


def test_what_is_too_large_is_refused_with_its_partition_once_and_the_cure(
    cli: Cli, topic: str, tmp_path: Path
) -> None:
    """The SDK measures a batch after compression, by the limits that the topic's metadata name."""
    noise = tmp_path / "noise"  # no codec makes it smaller
    noise.write_bytes(random.Random(7).randbytes(20_000))
    for key in ("segment.bytes", "max.message.bytes"):
        cli("topics", "create", f"{topic}-{key}", "-p", "1", "-c", f"{key}=5000")
        refused = cli("produce", "-t", f"{topic}-{key}", "-z", "gzip", noise, code=1)
        assert "[MESSAGE_TOO_LARGE]" in refused.err
        assert refused.err.count(f"{topic}-{key}-0") == 1
        assert "send smaller records" in refused.err
        assert key in refused.err


def test_files_are_messages_and_with_l_their_lines_are(cli: Cli, topic: str, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_bytes(b"a\nb\n")
    second.write_bytes(b"c")
    cli("produce", "-t", topic, first, second)
    cli("produce", "-t", topic, "-l", first, second)
    cli("produce", "-t", topic, "-k", "same", "-z", "zstd", second)
    assert cli("consume", "-t", topic, "-e", "-q", "-f", "%k=%s;").text == "=a\nb\n;=c;=a;=b;=c;same=c;"
    missing = cli("produce", "-t", topic, tmp_path / "none", code=1)
    assert "cannot read" in missing.err


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_every_codec_can_be_asked_for(cli: Cli, topic: str, codec: str) -> None:
    cli("produce", "-t", topic, "-z", codec, stdin=b"repeat " * 1000)
    assert cli("consume", "-t", topic, "-e", "-q").out == b"repeat " * 1000 + b"\n"


def test_produce_reports_what_was_acknowledged(cli: Cli, topic: str) -> None:
    cli("produce", "-t", topic, stdin=b"0\n")
    done = cli("produce", "-t", topic, "-p", "0", "-c", "2", "-o", "json", stdin=b"1\n2\n3\n").json()
    assert done == {
        "topic": topic,
        "records": 2,
        "partitions": [{"partition": 0, "records": 2, "first_offset": 1, "last_offset": 2}],
    }
    assert cli("produce", "-t", topic, "-T", stdin=b"tee\n").out == b"tee\n"


def test_offsets_choose_where_to_start_and_stop(cli: Cli, topic: str, headrace: LocalCluster) -> None:
    from headrace import Producer

    with Producer(bootstrap_servers=headrace.bootstrap_servers) as producer:
        for number in range(10):
            producer.send(topic, value=b"%d" % number, timestamp_ms=1_000_000 + 1_000 * number)

    def read(*flags: str) -> str:
        return str(cli("consume", "-t", topic, "-e", "-q", "-D", "", *flags).text)

    assert read() == read("-o", "beginning") == read("-o", "earliest") == "0123456789"
    assert read("-o", "end") == ""
    assert read("-o", "7") == "789"
    assert read("-o", "-4") == "6789"
    assert read("-o", "-100") == "0123456789"
    assert read("-o", "s@1003000") == "3456789"
    assert read("-o", "s@1003001") == "456789"
    assert read("-o", "s@1003000", "-o", "e@1006000") == "345"
    assert read("-o", "s@9999999999999") == ""
    assert read("-o", "2", "-c", "3") == "234"
    assert read("-c", "0") == ""
    assert "use -G GROUP TOPIC" in cli("consume", "-t", topic, "-o", "stored", code=2).err
    assert "must be beginning, end" in cli("consume", "-t", topic, "-o", "middle", code=2).err


def test_an_offset_that_is_gone_or_to_come_is_where_auto_offset_reset_says(cli: Cli, topic: str) -> None:
    cli("produce", "-t", topic, stdin=b"0\n1\n2\n3\n4\n")
    cli("records", "delete", "-t", topic, "--before", "3")

    def read(offset: str, reset: str | None, *flags: str, code: int = 0) -> Any:
        given = () if reset is None else ("-X", f"auto.offset.reset={reset}")
        return cli("consume", "-t", topic, "-e", "-D", "", "-o", offset, *given, *flags, code=code)

    for offset in ("1", "99999"):
        refused = read(offset, "none", code=1)
        assert f"{topic}-0 has no offset {offset}: its log holds 3 to 5 (the end)" in refused.err
        assert "[OFFSET_OUT_OF_RANGE]" in refused.err
        assert refused.out == b""
        assert read(offset, "none", "-o", "json", code=1).out == b""
        first, last = read(offset, "earliest"), read(offset, "latest")
        assert (first.text, last.text) == ("34", "")
        assert f"has no offset {offset}" in first.err
        assert "reading from 3, the start" in first.err
        assert "reading from 5, the end" in last.err
        assert not read(offset, "earliest", "-q").err
    assert "reading from 3, the start" in read("1", None).err
    assert "reading from 5, the end" in read("99999", None).err
    for offset in ("3", "-2", "-100", "beginning"):  # these offsets exist, so no reset and no message is needed
        found = read(offset, "none")
        assert found.text == "34"
        assert "not there" not in found.err
    assert read("5", "none").text == ""


def test_partitions_can_be_chosen(cli: Cli, topic: str) -> None:
    cli("topics", "alter", topic, "-p", "3")
    for number in range(3):
        cli("produce", "-t", topic, "-p", str(number), stdin=b"in %d\n" % number)
    assert cli("consume", "-t", topic, "-e", "-q", "-p", "1").lines == ["in 1"]
    assert sorted(cli("consume", "-t", topic, "-e", "-q", "-p", "0", "-p", "2").lines) == ["in 0", "in 2"]
    assert sorted(cli("consume", "-t", topic, "-e", "-q").lines) == ["in 0", "in 1", "in 2"]
    assert "no partition 7" in cli("consume", "-t", topic, "-e", "-p", "7", code=1).err
    assert cli("produce", "-t", topic, "-p", "7", stdin=b"x\n", code=1).err


def test_json_is_an_envelope_per_line_or_one_document(cli: Cli, topic: str) -> None:
    cli("produce", "-t", topic, "-K", ":", "-H", "h=1", stdin=b"k:v\n\xff\xfe\n")
    lines = [json.loads(line) for line in cli("consume", "-t", topic, "-e", "-q", "-J").lines]
    assert lines[0].pop("ts") > 1_600_000_000_000
    assert lines[0] == {
        "topic": topic, "partition": 0, "offset": 0, "tstype": "create", "broker": -1, "headers": ["h", "1"],
        "key": "k", "payload": "v",
    }  # fmt: skip
    assert lines[1]["payload_base64"] == "//4="

    found = cli("consume", "-t", topic, "-e", "-o", "json").json()
    assert [(row["offset"], row["key"], row["value"]) for row in found[:1]] == [(0, "k", "v")]
    assert set(found[0]) == {"topic", "partition", "offset", "timestamp_ms", "key", "value", "headers"}
    assert len(cli("consume", "-t", topic, "-e", "-o", "-1", "-o", "json").json()) == 1
    assert cli("consume", "-t", topic, "-e", "--output", "json", "-o", "end").json() == []


def test_consume_waits_for_what_comes_and_ctrl_c_ends_it_with_130(
    cli: Cli, topic: str, program: str, headrace: LocalCluster
) -> None:
    process = subprocess.Popen(
        [program, "consume", "-t", topic, "-u", "-o", "json", "-b", headrace.bootstrap_servers],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,  # this read must not take bytes that communicate() reads later
    )
    try:
        assert process.stdout is not None
        cli("produce", "-t", topic, stdin=b"hello\n")
        first = process.stdout.read(1)  # blocks until the record has come through
        process.send_signal(signal.SIGINT)
        rest, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert b"Traceback" not in err
    assert [row["value"] for row in json.loads(first + rest)] == ["hello"]  # one whole document even so


def test_a_reader_that_goes_away_ends_consume_quietly(
    cli: Cli, topic: str, program: str, headrace: LocalCluster
) -> None:
    cli("produce", "-t", topic, stdin=b"one\ntwo\n")
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [program, "consume", "-t", topic, "-b", headrace.bootstrap_servers], stdout=writer, stderr=subprocess.PIPE
    )
    try:
        os.close(writer)
        assert os.read(reader, 3) == b"one"
        os.close(reader)  # no further record is produced, so the command must notice the closed pipe without one
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 141
    assert err == b""


def test_produce_sends_what_it_has_while_the_input_stays_open(
    cli: Cli, topic: str, program: str, headrace: LocalCluster
) -> None:
    process = subprocess.Popen(
        [program, "produce", "-t", topic, "-b", headrace.bootstrap_servers], stdin=subprocess.PIPE
    )
    try:
        assert process.stdin is not None
        process.stdin.write(b"now\n")
        process.stdin.flush()
        assert cli("consume", "-t", topic, "-c", "1").lines == ["now"]
        process.stdin.close()
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.wait()


def test_an_unknown_topic_is_named_and_consume_creates_none(cli: Cli) -> None:
    missing = cli("consume", "-t", "never-made", "-e", code=1)
    assert "never-made" in missing.err
    assert "UNKNOWN_TOPIC_OR_PARTITION" in missing.err
    assert "never-made" not in [row["name"] for row in cli("topics", "list", "-o", "json").json()]


def test_wrong_flags_are_usage_errors(cli: Cli) -> None:
    assert cli("consume", "-t", "t", "-J", "-o", "json", code=2).err
    assert cli("produce", "-t", "t", "-H", "=x", stdin=b"", code=2).err
    assert cli("produce", "-t", "t", "-D", "", stdin=b"", code=2).err
    assert "did you mean" in cli("produce", "-t", "t", "-X", "lingre.ms=5", stdin=b"x\n", code=2).err
    assert "none, gzip, snappy" in cli("produce", "-t", "t", "-z", "rar", stdin=b"x\n", code=2).err


def test_a_topic_that_produce_creates_is_reported_once(cli: Cli, topic: str) -> None:
    """A name with a typing mistake must not go unnoticed."""
    assert "created topic" not in cli("produce", "-t", topic, stdin=b"x\n").err
    made = cli("produce", "-t", f"{topic}-new", "-p", "0", "-o", "json", stdin=b"x\n")
    partitions = len(cli("topics", "describe", f"{topic}-new", "-o", "json").json()["partitions"])
    assert made.err == f"created topic {topic}-new ({partitions} partition{'s' * (partitions != 1)})\n"
    assert made.json()["records"] == 1
    assert cli("produce", "-t", f"{topic}-new", stdin=b"x\n").err == ""
    cli("topics", "delete", f"{topic}-new")


def test_consume_takes_times_and_topics_take_durations(cli: Cli, topic: str) -> None:
    cli("produce", "-t", topic, stdin=b"new\n")
    assert cli("consume", "-t", topic, "-e", "-q", "-o", "-2h").lines == ["new"]
    assert cli("consume", "-t", topic, "-e", "-q", "-o", "e@-2h").lines == []
    assert cli("consume", "-t", topic, "-e", "-q", "-o", "s@2013-01-01", "-o", "e@2013-01-02T12:00:00").lines == []
    cli("topics", "alter", topic, "-c", "retention.ms=7d")
    assert cli("topics", "describe", topic, "-o", "json").json()["config"]["retention.ms"] == "604800000"


def test_a_large_input_arrives_whole_and_in_order(cli: Cli, topic: str) -> None:
    lines = [f"line {number} " + "x" * (number % 300) for number in range(50_000)]
    cli("produce", "-t", topic, stdin="\n".join(lines).encode())
    assert cli("consume", "-t", topic, "-e", "-q").lines == lines


def test_two_producers_at_once_lose_nothing(cli: Cli, topic: str) -> None:
    threads = [
        threading.Thread(
            target=lambda name=name: cli(
                "produce", "-t", topic, stdin=b"".join(b"%s %d\n" % (name, number) for number in range(2_000))
            )
        )
        for name in (b"a", b"b")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    read = cli("consume", "-t", topic, "-e", "-q").lines
    for name in "ab":
        assert [line for line in read if line.startswith(name)] == [f"{name} {number}" for number in range(2_000)]
