"""``headrace groups`` beside working consumers, on the run's real cluster: its output matches their state."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from headrace import Admin, Consumer, LocalCluster, NewTopic, Producer, TopicPartition
from headrace_tools.cli.app import run
from tests.worlds.waiting import until


class Outcome(NamedTuple):
    """The result of a command that ran in this process. The file runs many commands, and starting Python would take
    most of the time."""

    code: int
    text: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    def json(self) -> Any:
        return json.loads(self.text)


Cli = Callable[..., Outcome]

LIMIT_S = 90.0
TOPIC, GROUP = "shop", "billing"


@pytest.fixture
def cli(headrace: LocalCluster, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """``cli("groups", "list")`` against the run's cluster."""
    monkeypatch.setenv("HEADRACE_BOOTSTRAP_SERVERS", headrace.bootstrap_servers)

    def call(*arguments: Any, code: int | None = 0) -> Outcome:
        capfd.readouterr()
        ended = run(list(map(str, arguments)))
        done = Outcome(ended, *capfd.readouterr())
        assert code in (None, done.code), f"headrace {arguments}: {done}"
        return done

    return call


def produce(headrace: LocalCluster, topic: str, values: list[bytes]) -> None:
    with Producer(bootstrap_servers=headrace.bootstrap_servers) as producer:
        producer.send_many(topic, values).result(LIMIT_S)


@pytest.fixture(scope="module")
def consumers(headrace: LocalCluster) -> Iterator[list[Consumer]]:
    """Two members that share four partitions of 25 records each. The two members have read and committed 40 records."""
    at = headrace.bootstrap_servers
    with Admin(bootstrap_servers=at) as admin:
        admin.create_topics([NewTopic(TOPIC, 4)])
    with Producer(bootstrap_servers=at) as producer:
        for partition in range(4):
            for number in range(25):
                producer.send(TOPIC, b"%d" % number, partition=partition)
    settings: dict[str, Any] = {
        "bootstrap_servers": at, "group_id": GROUP, "auto_offset_reset": "earliest", "enable_auto_commit": False,
    }  # fmt: skip
    made = [Consumer(**settings, client_id=f"till-{number}") for number in (1, 2)]
    try:
        for each in made:
            each.subscribe([TOPIC])

        def shared() -> bool:
            for each in made:
                each.poll(timeout=0.1, max_records=1)
            return [len(each.assignment()) for each in made] == [2, 2]

        until(shared, "two partitions each")
        for each in made:
            each.commit(dict.fromkeys(each.assignment(), 10))
        yield made
    finally:
        for each in made:
            each.close()


def described(cli: Cli, *arguments: str) -> dict[str, Any]:
    (group,) = cli("groups", "describe", GROUP, "-o", "json", *arguments).json()
    return dict(group)


def test_members_their_partitions_and_their_lag_are_shown(cli: Cli, consumers: list[Consumer]) -> None:
    group = until(lambda: (found := described(cli))["state"] == "stable" and found, "a stable group")
    assert (group["members"], group["total_lag"], group["assignor"]) == (2, 60, "uniform")
    assert group["coordinator"]["id"] == 1
    readers = {
        TopicPartition(TOPIC, row["partition"]): (row["client_id"], row["member_id"]) for row in group["partitions"]
    }
    for number, each in enumerate(consumers, start=1):
        for part in each.assignment():
            assert readers[part] == (f"till-{number}", each.group_metadata().member_id)
    assert {(row["current_offset"], row["log_end_offset"], row["lag"]) for row in group["partitions"]} == {(10, 25, 15)}
    until(
        lambda: all(row["lag_ms"] is not None for row in described(cli)["partitions"]),
        "the coordinator to have seen the ends of the logs",
    )
    assert "till-1" in cli("groups", "describe", "--all-groups").text
    listed = {row["group"]: row for row in cli("groups", "list", "--state", "stable", "-o", "json").json()}
    assert listed[GROUP] == {"group": GROUP, "state": "stable", "members": 2, "type": "consumer"}
    assert GROUP not in cli("groups", "list", "--state", "empty,dead").text

    members = cli("groups", "members", GROUP, "-o", "json").json()["members"]
    assert sorted((each["client_id"], len(each["assigned"])) for each in members) == [("till-1", 2), ("till-2", 2)]
    assert {(each["host"], tuple(each["topics"])) for each in members} == {("127.0.0.1", (TOPIC,))}
    assert f"{TOPIC}(" in cli("groups", "members", GROUP, "--verbose").text


def test_each_rebalance_is_explained(cli: Cli, consumers: list[Consumer]) -> None:
    last = until(
        lambda: (
            (rebalances := cli("groups", "explain", GROUP, "-o", "json").json()["rebalances"])
            and rebalances[-1]["ended_at_ms"] is not None
            and rebalances[-1]
        ),
        "the last rebalance to be done",
    )
    assert "joined" in last["reason"]
    moved = {TopicPartition(each["topic"], each["partition"]) for each in last["moved"]}
    assert last["moved_count"] == len(moved)
    assert moved in [each.assignment() for each in consumers], "the first one had all, and gave up two"
    text = cli("groups", "explain", GROUP).text
    assert f"rebalance {last['number']}  " in text
    assert "(till-" in text
    assert "unread for" in text


def test_a_group_that_works_can_neither_be_reset_nor_deleted(cli: Cli, consumers: list[Consumer]) -> None:
    refused = cli("groups", "reset-offsets", GROUP, "--all-topics", "--to-earliest", "--execute", code=1).err
    assert "[NON_EMPTY_GROUP]" in refused
    assert "[NON_EMPTY_GROUP]" in cli("groups", "delete", GROUP, code=1).err
    assert "[GROUP_SUBSCRIBED_TO_TOPIC]" in cli("groups", "delete-offsets", GROUP, "-t", TOPIC, code=1).err
    assert described(cli)["total_lag"] == 60


def test_a_watch_writes_a_document_a_line_and_ends_with_ctrl_c(
    program: str, headrace: LocalCluster, consumers: list[Consumer]
) -> None:
    command = [program, "groups", "describe", GROUP, "--watch", "--interval", "0.1", "-o", "json"]
    environment = {**os.environ, "HEADRACE_BOOTSTRAP_SERVERS": headrace.bootstrap_servers}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            documents = [json.loads(process.stdout.readline()) for _ in range(3)]
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()
    assert [document[0]["total_lag"] for document in documents] == [60, 60, 60]
    assert (process.returncode, err) == (130, "")


def test_a_group_without_members_is_reset_read_again_and_deleted(
    cli: Cli, headrace: LocalCluster, consumers: list[Consumer]
) -> None:
    for each in consumers:
        each.close()
    assert (described(cli)["state"], described(cli)["members"]) == ("empty", 0)
    kept = cli("groups", "reset-offsets", GROUP, "--all-topics", "--to-current", "--export")
    assert kept.lines == [f"{TOPIC},{partition},10" for partition in range(4)]
    shown = cli("groups", "reset-offsets", GROUP, "--topic", f"{TOPIC}:0,1", "--shift-by", "-7", "-o", "json").json()
    assert [(row["partition"], row["new_offset"]) for row in shown["partitions"]] == [(0, 3), (1, 3)]
    assert not shown["executed"]
    assert described(cli)["total_lag"] == 60
    done = cli("groups", "reset-offsets", GROUP, "--topic", f"{TOPIC}:0,1", "--shift-by", "-7", "--execute")
    assert "nothing was changed" not in done.err
    assert described(cli)["total_lag"] == 74
    settings: dict[str, Any] = {"group_id": GROUP, "enable_auto_commit": False}
    with Consumer(bootstrap_servers=headrace.bootstrap_servers, **settings) as consumer:
        consumer.subscribe([TOPIC])
        seen: list[Any] = []
        until(lambda: seen.extend(consumer.poll(timeout=0.5)) or len(seen) >= 74, "all that is to be read again")
    first = {record.partition: record.offset for record in reversed(seen)}
    assert (first, len(seen)) == ({0: 3, 1: 3, 2: 10, 3: 10}, 74)
    # Offsets went back in a group without members: an operator's reset, and not an error of a consumer.
    assert "REWIND" not in cli("groups", "describe", GROUP).text
    forgot = cli("groups", "delete-offsets", GROUP, "-t", f"{TOPIC}:3", "-o", "json").json()
    assert forgot["deleted"] == [{"topic": TOPIC, "partition": 3}]
    assert [row["partition"] for row in described(cli)["partitions"]] == [0, 1, 2]
    assert cli("groups", "delete", GROUP, "-o", "json").json() == {"deleted": [GROUP]}
    assert "[GROUP_ID_NOT_FOUND]" in cli("groups", "describe", GROUP, code=1).err
    assert GROUP not in cli("groups", "list").text


def test_offsets_are_taken_back_from_a_file(cli: Cli, consumers: list[Consumer], tmp_path: Any) -> None:
    file = tmp_path / "offsets.csv"
    file.write_text(f"{TOPIC},0,10\n{TOPIC},1,11\n")
    cli("groups", "reset-offsets", "restored", "--from-file", file, "--execute")
    (group,) = cli("groups", "describe", "restored", "-o", "json").json()
    assert [(row["partition"], row["current_offset"]) for row in group["partitions"]] == [(0, 10), (1, 11)]
    when = ["--to-datetime", "2000-01-01T00:00:00.000", "-o", "json", "--execute"]
    early = cli("groups", "reset-offsets", "restored", "-t", TOPIC, *when).json()
    assert {row["new_offset"] for row in early["partitions"]} == {0}
    for wrong in (f"{TOPIC},²,0\n".encode(), b"\xff\xfe", f"{TOPIC},0,{'9' * 5_000}".encode(), b"a" * 200_000):
        file.write_bytes(wrong)
        refused = cli("groups", "reset-offsets", "restored", "--from-file", file, "--execute", code=1)
        assert "[INVALID_ARGUMENT]" in refused.err
    done = cli("groups", "delete", "never-was", "restored", "-o", "json", code=1)
    (failed,) = done.json()["failed"]
    assert (done.json()["deleted"], failed["group"]) == (["restored"], "never-was")
    assert failed["error"]["code"] == "GROUP_ID_NOT_FOUND"


def test_offsets_of_a_topic_that_is_read_stay_beside_those_that_are_deleted(cli: Cli, headrace: LocalCluster) -> None:
    for topic in ("is-read", "was-read"):
        cli("topics", "create", topic)
        cli("groups", "reset-offsets", "half", "-t", topic, "--to-latest", "--execute")
    with Consumer(bootstrap_servers=headrace.bootstrap_servers, group_id="half") as consumer:
        consumer.subscribe(["is-read"])
        until(lambda: consumer.poll(timeout=0.1) or consumer.assignment(), "the member has its partition")
        flags = ("-t", "is-read", "-t", "was-read", "-o", "json")
        done = cli("groups", "delete-offsets", "half", *flags, code=1)
        (failed,) = done.json()["failed"]
        assert done.json()["deleted"] == [{"topic": "was-read", "partition": 0}]
        assert (failed["topic"], failed["error"]["code"]) == ("is-read", "GROUP_SUBSCRIBED_TO_TOPIC")
        assert "[GROUP_SUBSCRIBED_TO_TOPIC]" in done.err


def test_a_group_reads_at_the_command_line_what_it_has_not_read_yet(cli: Cli, headrace: LocalCluster) -> None:
    cli("topics", "create", "lines", "-p", "3")
    read = ("consume", "-G", "readers", "lines", "-e", "-f", r"%s\n")
    produce(headrace, "lines", [b"%d" % number for number in range(50)])
    first = cli(*read)
    assert sorted(map(int, first.lines)) == list(range(50))
    assert "Group readers: assigned lines [0], lines [1], lines [2]" in first.err
    produce(headrace, "lines", [b"50", b"51"])
    assert sorted(cli(*read).lines) == ["50", "51"]
    assert cli(*read).lines == []
    (group,) = cli("groups", "describe", "readers", "-o", "json").json()
    assert (group["state"], group["total_lag"]) == ("empty", 0)
    cli("groups", "reset-offsets", "readers", "--topic", "lines", "--to-earliest", "--execute")
    again = cli("consume", "-G", "readers", "^lin.*$", "-c", "7", "-q", "-o", "json").json()
    assert len(again) == 7
    assert cli("groups", "describe", "readers", "-o", "json").json()[0]["total_lag"] == 45
    assert "-p" in cli("consume", "-G", "readers", "lines", "-p", "0", code=2).err
    assert "reset-offsets" in cli("consume", "-G", "readers", "lines", "-o", "5", code=2).err


def test_ctrl_c_commits_what_was_printed(program: str, cli: Cli, headrace: LocalCluster) -> None:
    """The offsets are committed long before the five seconds of auto.commit.interval.ms, so a second short read does
    not repeat the records."""
    cli("topics", "create", "typed", "-p", "2")
    produce(headrace, "typed", [b"%d" % number for number in range(20)])
    command = [program, "consume", "-b", headrace.bootstrap_servers, "-G", "typists", "typed", "-q"]
    with subprocess.Popen(
        [*command, "-X", "auto.commit.interval.ms=600000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            printed = [int(process.stdout.readline()) for _ in range(20)]
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()
    assert process.returncode == 130
    assert sorted(printed) == list(range(20))
    (group,) = cli("groups", "describe", "typists", "-o", "json").json()
    assert group["total_lag"] == 0
