"""``headrace transactions``, ``produce --transactional-id`` and ``consume --isolation`` on the real cluster of the test
run."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import pytest

from headrace import Admin, LocalCluster, NewTopic, Producer
from headrace_core.records import ABORT, COMMIT
from tests.worlds.transactional_log import TransactionalLog, serving
from tests.worlds.waiting import until

_names = itertools.count()


@pytest.fixture
def topic(headrace: LocalCluster) -> str:
    name = f"cli-transactions-{os.getpid()}-{next(_names)}"
    with Admin(bootstrap_servers=headrace.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name, 2)])
    return name


def committed(cli: Any, topic: str) -> list[str]:
    lines: list[str] = cli("consume", "-t", topic, "-e", "-q", "--isolation", "read_committed").lines
    return sorted(lines)


def test_records_of_one_command_are_one_transaction(cli: Any, headrace: LocalCluster, topic: str) -> None:
    done = cli("produce", "-t", topic, "--transactional-id", topic, "-o", "json", stdin=b"a\nb\nc\n").json()
    assert done["records"] == 3
    until(lambda: committed(cli, topic) == ["a", "b", "c"])
    refused = cli(
        "produce", "-t", topic, "--transactional-id", topic, "-X", "max.request.size=1000",
        stdin=b"d\n" + b"x" * 5_000 + b"\n", code=1,
    )  # fmt: skip
    assert "[MESSAGE_TOO_LARGE]" in refused.err
    assert "acknowledged before" not in refused.err
    cli("produce", "-t", topic, "--transactional-id", topic, stdin=b"e\n")
    until(lambda: committed(cli, topic) == ["a", "b", "c", "e"])
    (described,) = cli("transactions", "describe", topic, "-o", "json").json()
    assert (described["state"], described["token"], described["partitions"]) == ("complete-commit", None, [])


def test_open_transaction_is_listed_described_and_aborted(cli: Any, headrace: LocalCluster, topic: str) -> None:
    with Producer(bootstrap_servers=headrace.bootstrap_servers, transactional_id=topic) as producer:
        producer.begin_transaction()
        producer.send(topic, b"open", partition=1).result(30)
        (listed,) = cli("transactions", "list", "--prefix", topic, "--state", "Ongoing,prepared", "-o", "json").json()
        assert (listed["transactional_id"], listed["state"], listed["coordinator_id"]) == (topic, "ongoing", 1)
        assert cli("transactions", "list", "--prefix", topic, "--open-for", "1h", "-o", "json").json() == []
        assert topic in cli("transactions", "list", "--producer-id", listed["producer_id"]).text
        (described,) = cli("transactions", "describe", topic, "-o", "json").json()
        assert described["partitions"] == [{"topic": topic, "partition": 1}]
        assert described["timeout_ms"] == 60_000
        assert f"{topic}-1" in cli("transactions", "describe", topic).text
        (active,) = cli("transactions", "describe-producers", "-t", topic, "-p", "1", "-o", "json").json()
        assert (active["producer_id"], active["transaction_start_offset"]) == (listed["producer_id"], 0)
        assert cli("transactions", "find-hanging", "-t", topic, "-o", "json").json() == [], "its coordinator has it"
        assert committed(cli, topic) == []
        assert "aborted" in cli("transactions", "abort", topic).text
        until(lambda: cli("transactions", "describe", topic, "-o", "json").json()[0]["state"] == "complete-abort")
        assert "[INVALID_TXN_STATE]" in cli("transactions", "abort", topic, code=1).err
        producer.abort_transaction()
        with producer.transaction():
            producer.send(topic, b"next")
    until(lambda: committed(cli, topic) == ["next"])


@pytest.mark.parametrize("decision", ["commit", "abort"])
def test_prepared_transaction_is_completed_by_its_token(
    cli: Any, headrace: LocalCluster, topic: str, decision: str
) -> None:
    with Producer(bootstrap_servers=headrace.bootstrap_servers, transactional_id=topic) as producer:
        producer.begin_transaction()
        producer.send(topic, b"prepared")
        token = str(producer.prepare())
    described = cli("transactions", "describe", topic)
    assert f"headrace transactions complete {token} --commit" in described.err
    (listed,) = cli("transactions", "describe", topic, "-o", "json").json()
    assert (listed["state"], listed["token"]) == ("prepared", token)
    done = cli("transactions", "complete", token, f"--{decision}", "-o", "json").json()
    assert done == {"token": token, "outcome": "committed" if decision == "commit" else "aborted"}
    assert committed(cli, topic) == (["prepared"] if decision == "commit" else [])
    cli("transactions", "complete", token, f"--{decision}")
    other = "abort" if decision == "commit" else "commit"
    assert "[INVALID_TXN_STATE]" in cli("transactions", "complete", token, f"--{other}", code=1).err


def test_hanging_transaction_is_found_and_ended(bare_cli: Any, tmp_path: Path) -> None:
    """The logs come from another cluster and end in an open transaction. The test's cluster does not have the
    coordinator of the open transaction."""
    log, ended = TransactionalLog(), TransactionalLog()
    for each in (log, ended):
        each.write(producer_id=7)
        each.end(7, COMMIT)
        each.write(producer_id=8)
    ended.end(8, ABORT)
    start = log.last_stable_offset
    with serving(tmp_path, {"hangs": log, "ended": ended}) as cluster:

        def cli(*arguments: Any, code: int = 0) -> Any:
            return bare_cli(*map(str, arguments), bootstrap=cluster.broker.address(), code=code)

        (found,) = cli("transactions", "find-hanging", "-o", "json").json()
        assert (found["topic"], found["partition"], found["producer_id"], found["start_offset"]) == (
            "hangs",
            0,
            8,
            start,
        )
        assert cli("transactions", "find-hanging", "-t", "ended").lines[1:] == []
        assert cli("transactions", "find-hanging", "--broker-id", "77", "-o", "json").json() == []
        absent = cli("transactions", "find-hanging", "-t", "ended", "-p", "9", code=1)
        assert "has no partition 9" in absent.err, "an empty list would mean that nothing hangs there"
        findings = cli("doctor", "-o", "json", code=1).json()["findings"]
        (finding,) = [each for each in findings if each["rule"] == "transaction-hanging"]
        assert finding["where"] == "hangs-0"
        wrong = cli("transactions", "abort", "-t", "hangs", "-p", 0, "--start-offset", 12345, code=1).err
        assert f"open transactions begin at: {start} [INVALID_TXN_STATE]" in wrong
        cli("transactions", "abort", "-t", "hangs", "-p", 0, "--start-offset", start)
        assert cli("transactions", "find-hanging", "-o", "json").json() == []
        assert committed(cli, "hangs") == ["value of 0"]


def test_wrong_command_lines_are_usage_errors(cli: Any) -> None:
    for words in (
        ("list", "--state", "asleep"),
        ("describe",),
        ("complete", "1:2:x"),
        ("complete", "no-token", "--commit"),
        ("abort",),
        ("abort", "x", "-t", "t"),
        ("abort", "-t", "t", "-p", "0"),
        ("find-hanging", "-p", "0"),
    ):
        cli("transactions", *words, code=2)
    assert "[TRANSACTIONAL_ID_NOT_FOUND]" in cli("transactions", "describe", "no-such-id", code=1).err
