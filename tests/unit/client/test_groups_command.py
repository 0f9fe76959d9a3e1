"""``headrace groups`` against scripted coordinators: output, changes, and exit codes."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.errors import CoordinatorLoadInProgressError, UnknownServerError
from headrace_protos.v1 import groups_pb2
from headrace_tools.cli import client as client_module
from headrace_tools.cli import watching
from headrace_tools.cli.app import run
from tests.worlds.coordinators_standin import StandinGroupsWorld, member, serving
from tests.worlds.waiting import check_in_time

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandinGroupsWorld]:
    """Two groups: apple has no members and lags. berry has two members, and one of its partitions has no offset."""
    with serving() as found:
        found.committed = {
            "apple": {("orders", 0): (40, ""), ("gone", 3): (7, "")},
            "berry": {("orders", 0): (100, "")},
        }
        found.members = {"berry": [member("m1", "c1", ("orders", 0)), member("m2", "c2", ("orders", 1))]}
        lag = groups_pb2.LagOfGroup(group_id="apple", status="ERR", total_lag=60)
        lag.partitions.add(
            topic="gone", partition=3, committed_offset=7, commit_timestamp_ms=-1, status="OK", complete=0.1
        )
        lag.partitions.add(
            topic="orders", partition=0, committed_offset=40, commit_timestamp_ms=9, high_watermark=90, lag=50,
            lag_ms=75_000, lag_ms_is_at_least=True, records_lost=2, status="STOP", complete=0.5,
        )  # fmt: skip
        found.lags["apple"] = lag
        monkeypatch.setenv("HEADRACE_BOOTSTRAP_SERVERS", found.coordinators[0].address)
        yield found


def shown(capsys: Captured) -> Any:
    return json.loads(capsys.readouterr().out)


def warn(group: str) -> groups_pb2.LagOfGroup:
    described = groups_pb2.LagOfGroup(group_id=group, status="WARN", total_lag=1)
    described.partitions.add(topic="orders", partition=0, committed_offset=99, high_watermark=100, lag=1, status="WARN")
    return described


def test_groups_are_listed(world: StandinGroupsWorld, capsys: Captured) -> None:
    assert run(["groups", "list", "-o", "json"]) == 0
    assert shown(capsys) == [
        {"group": "apple", "state": "empty", "members": 0, "type": "classic"},
        {"group": "berry", "state": "stable", "members": 2, "type": "consumer"},
    ]
    assert run(["groups", "list", "--state", "Stable,reconciling", "--state", "dead"]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["GROUP", "STATE", "MEMBERS", "TYPE"],
        ["berry", "stable", "2", "consumer"],
    ]
    assert run(["groups", "list", "--state", "asleep"]) == 2


def test_offsets_of_open_transactions_are_shown(world: StandinGroupsWorld, capsys: Captured) -> None:
    pending = groups_pb2.PendingOffset(
        topic="orders", partition=0, offset=42, transactional_id="payments-7", producer_id=7, producer_epoch=3,
        received_at_ms=int(time.time() * 1_000) - 5_000,
    )  # fmt: skip
    kafkas = groups_pb2.PendingOffset(topic="orders", partition=1, offset=1, producer_id=9)
    world.pending["apple"] = [pending, kafkas]
    assert run(["groups", "describe", "apple", "berry", "-o", "json"]) == 0
    apple, berry = shown(capsys)
    assert apple["pending_offsets"][0] == {
        "topic": "orders", "partition": 0, "offset": 42, "transactional_id": "payments-7", "producer_id": 7,
        "producer_epoch": 3, "received_at_ms": pending.received_at_ms,
    }  # fmt: skip
    assert berry["pending_offsets"] == []
    assert run(["groups", "describe", "apple"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("pending: ")]
    said = re.fullmatch(
        r"pending: orders-0 at 42, sent by the transaction of payments-7 ([\d.]+) s ago", lines[0].removesuffix("\n")
    )
    assert said is not None, lines[0]
    assert 5 <= float(said[1]) < 60
    assert lines[1].startswith("pending: orders-1 at 1, sent by the transaction of producer 9 ")


def test_a_group_is_described_with_the_ends_that_logs_have_now(world: StandinGroupsWorld, capsys: Captured) -> None:
    assert run(["groups", "describe", "apple", "-o", "json"]) == 0
    (group,) = shown(capsys)
    assert (group["group"], group["state"], group["status"], group["members"]) == ("apple", "empty", "ERR", 0)
    assert group["coordinator"] == {"id": 1, "address": world.coordinators[0].address}
    gone, orders = group["partitions"]
    assert (gone["topic"], gone["current_offset"], gone["log_end_offset"], gone["lag"]) == ("gone", 7, None, None)
    assert (orders["current_offset"], orders["log_end_offset"], orders["lag"]) == (40, 100, 60), "not the 90 of before"
    assert (orders["lag_ms"], orders["lag_ms_is_at_least"], orders["records_lost"]) == (75_000, True, 2)
    assert (orders["status"], orders["member_id"], group["total_lag"]) == ("STOP", None, 60)


def test_members_stand_beside_what_they_read_and_what_has_no_offset_yet(
    world: StandinGroupsWorld, capsys: Captured
) -> None:
    assert run(["groups", "describe", "berry"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("group berry  stable  2 members  assignor uniform  epoch 4  coordinator 2 ")
    assert lines[0].endswith("lag 0  OK")
    assert [line.split() for line in lines[2:]] == [
        [
            "GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "LAG-TIME", "CONSUMER-ID",
            "HOST", "CLIENT-ID", "STATUS",
        ],
        ["berry", "orders", "0", "100", "100", "0", "-", "m1", "127.0.0.1", "c1", "OK"],
        ["berry", "orders", "1", "-", "50", "-", "-", "m2", "127.0.0.1", "c2", "-"],
    ]  # fmt: skip
    assert run(["groups", "describe", "apple"]) == 0
    text = capsys.readouterr().out
    assert "no active members" in text
    assert ">= 75.0 s" in text
    assert "2 records deleted unread" in text


@pytest.mark.parametrize(
    ("width", "found", "missing"),
    [("150", "0f6a27c1-0a3e-4f5d", "berry "), ("120", "0f6a27c1..", "-0a3e"), ("80", "c1", "0f6a27c1")],
)
def test_a_terminal_shows_what_it_has_room_for(
    world: StandinGroupsWorld, capsys: Captured, monkeypatch: pytest.MonkeyPatch, width: str, found: str, missing: str
) -> None:
    world.members["berry"] = [member("0f6a27c1-0a3e-4f5d-9a7e-3d6c1a2b4c5d", "c1", ("orders", 0))]
    monkeypatch.setattr(watching.sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", width)
    assert run(["groups", "describe", "berry"]) == 0
    _, _, table = capsys.readouterr().out.partition("\n")
    assert found in table
    assert missing not in table


def test_a_lag_that_is_judged_badly_is_an_exit_code(world: StandinGroupsWorld, capsys: Captured) -> None:
    assert run(["groups", "describe", "berry", "--fail-on", "warn"]) == 0
    assert run(["groups", "describe", "--all-groups", "--fail-on", "err"]) == 3
    assert "group apple: ERR: orders-0 STOP (lag 60, >= 75.0 s)" in capsys.readouterr().err
    world.lags["berry"] = warn("berry")
    assert run(["groups", "describe", "berry", "--fail-on", "err"]) == 0
    assert run(["groups", "describe", "berry", "--fail-on", "warn", "-o", "json"]) == 3
    captured = capsys.readouterr()
    assert json.loads(captured.out.splitlines()[-1])[0]["status"] == "WARN"
    assert "berry: WARN: orders-0 WARN" in captured.err
    assert run(["groups", "describe", "berry", "--fail-on", "ok"]) == 2


@pytest.mark.parametrize("command", ["describe", "members", "explain", "delete", "list"])
def test_without_any_coordinator_that_is_said_soon(
    world: StandinGroupsWorld, capsys: Captured, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    world.have_coordinators, world.owner = False, lambda group: None
    monkeypatch.setattr(client_module, "NOBODY_S", 2.0)
    begun = time.monotonic()
    assert run(["groups", command, *(["berry"] if command != "list" else [])]) == 1
    check_in_time(begun, 12, "the whole 15 s were waited for a successor")
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "no coordinator is alive" in error or "live coordinators: none" in error


def test_a_port_that_nobody_listens_at_is_distinguished_from_one_that_somebody_does(world: StandinGroupsWorld) -> None:
    host, _, port = world.coordinators[0].address.partition(":")
    assert client_module._listens(host, int(port))
    assert not client_module._listens("127.0.0.1", 1)


def test_nor_is_one_waited_for_that_has_just_died_and_is_listed_still(
    world: StandinGroupsWorld, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.owner = lambda group: None
    monkeypatch.setattr(client_module, "_listens", lambda host, port: False)
    monkeypatch.setattr(client_module, "NOBODY_S", 0.4)
    begun = time.monotonic()
    assert run(["groups", "members", "berry"]) == 1
    check_in_time(begun, 12)


def test_a_coordinator_is_waited_for_as_long_as_the_user_says(
    world: StandinGroupsWorld, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command waits even if no coordinator is alive, because the user may know that one is starting."""
    monkeypatch.setattr(client_module, "NOBODY_S", 0.4)
    world.have_coordinators, world.owner = False, lambda group: None
    begun = time.monotonic()
    assert run(["groups", "members", "berry", "--timeout", "4"]) == 1
    assert time.monotonic() - begun >= 2


def test_a_group_that_is_not_there_is_one_line_and_hides_no_other(world: StandinGroupsWorld, capsys: Captured) -> None:
    assert run(["groups", "describe", "nobodys"]) == 1
    captured = capsys.readouterr()
    assert not captured.out
    assert captured.err.count("\n") == 1
    assert "[GROUP_ID_NOT_FOUND]" in captured.err
    assert run(["groups", "describe", "nobodys", "berry", "-o", "json"]) == 1
    captured = capsys.readouterr()
    missing, berry = json.loads(captured.out)
    assert (missing["state"], missing["error"]["code"]) == (None, "GROUP_ID_NOT_FOUND")
    assert berry["error"] is None
    assert "[GROUP_ID_NOT_FOUND]" in captured.err
    assert run(["groups", "describe"]) == 2
    assert run(["groups", "describe", "berry", "--all-groups"]) == 2


def test_no_coordinator_is_said_with_its_cure_and_in_time(world: StandinGroupsWorld, capsys: Captured) -> None:
    world.owner = lambda group: None
    for command in (["describe", "berry"], ["list"], ["explain", "berry"], ["delete", "berry"]):
        assert run(["groups", *command, "--timeout", "1"]) == 1
        described = capsys.readouterr().err
        assert "[REQUEST_TIMED_OUT]" in described
        assert "no coordinator" in described


def test_a_watch_goes_on_over_failures_and_ends_when_lag_is_bad(
    world: StandinGroupsWorld, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []

    def between(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 1:
            world.failures["DescribeGroups"] = [UnknownServerError("it stumbled")]
        elif len(looks) == 2:
            world.lags["berry"] = warn("berry")

    monkeypatch.setattr(watching, "time", SimpleNamespace(sleep=between))
    watch = ["groups", "describe", "berry", "--watch", "--interval", "7", "--fail-on", "warn", "-o", "json"]
    assert run(watch) == 3
    captured = capsys.readouterr()
    documents = [json.loads(line) for line in captured.out.splitlines()]
    assert [document[0]["status"] for document in documents] == ["OK", None, "WARN"]
    assert looks == [7.0, 7.0]
    assert "it stumbled" in captured.err


def test_ctrl_c_ends_a_watch_without_a_word(
    world: StandinGroupsWorld, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(watching, "time", SimpleNamespace(sleep=interrupt))
    for command in (["describe", "berry"], ["describe", "--all-groups"], ["explain", "berry"]):
        assert run(["groups", *command, "--watch"]) == 130
        captured = capsys.readouterr()
        assert captured.out
        assert not captured.err


def test_the_first_look_of_a_watch_may_not_fail(world: StandinGroupsWorld, capsys: Captured) -> None:
    world.failures["ExplainGroup"] = [UnknownServerError("it stumbled")]
    assert run(["groups", "explain", "berry", "--watch"]) == 1
    assert "it stumbled" in capsys.readouterr().err


def test_on_a_terminal_each_look_takes_the_place_of_the_last(
    world: StandinGroupsWorld, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []

    def between(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(watching, "time", SimpleNamespace(sleep=between))
    monkeypatch.setattr(watching.sys.stdout, "isatty", lambda: True)
    assert run(["groups", "explain", "apple", "--watch"]) == 130
    out = capsys.readouterr().out
    assert out == 2 * "\x1b[H\x1b[2Jgroup apple has had no rebalance\n"


def test_members_are_shown(world: StandinGroupsWorld, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    world.members["berry"].append(member("m3", "c3", ("orders", 2), ("orders", 3), instance_id="i3", rack="r"))
    world.members["berry"][2].revoking.topics.add(topic_id=b"c" * 16, topic="clicks", partitions=[0])
    assert run(["groups", "members", "berry"]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()][1:3] == [
        ["m1", "-", "127.0.0.1", "c1", "4", "1"],
        ["m2", "-", "127.0.0.1", "c2", "4", "1"],
    ]
    assert run(["groups", "members", "berry", "--verbose"]) == 0
    last = capsys.readouterr().out.splitlines()[-1].split()
    assigned = ["orders(2,3)", "clicks(0)", "orders(2,3)"]
    assert last == ["m3", "i3", "127.0.0.1", "c3", "4", "2", *assigned, "r", "orders", "true"]
    with monkeypatch.context() as terminal:
        terminal.setattr(watching.sys.stdout, "isatty", lambda: True)
        assert run(["groups", "members", "berry", "--verbose"]) == 0
    last_line = capsys.readouterr().out.splitlines()[-1]
    assert last_line == "m3  assigned orders(2,3), revoking clicks(0); subscribes to orders; rack r"
    world.members["berry"][2].is_classic = True
    assert run(["groups", "members", "berry", "--verbose"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[-1] == "false"
    assert run(["groups", "members", "berry", "-o", "json"]) == 0
    third = shown(capsys)["members"][2]
    assert third["assigned"] == [{"topic": "orders", "partition": 2}, {"topic": "orders", "partition": 3}]
    assert (third["instance_id"], third["topics"], third["topic_regex"]) == ("i3", ["orders"], None)
    assert run(["groups", "members", "apple"]) == 0
    assert "no active members" in capsys.readouterr().err
    assert run(["groups", "members", "nobodys"]) == 1


def test_rebalances_are_explained(world: StandinGroupsWorld, capsys: Captured) -> None:
    world.rebalances["berry"] = [
        groups_pb2.Rebalance(
            at_ms=1_000, group_epoch=3, reason="member m2 (client c2) joined", moved_count=2, ended_at_ms=1_250,
            number=1,
            moved=[
                groups_pb2.MovedPartition(topic="orders", partition=0, from_member="m0", to_member="m1", unread_ms=120),
                groups_pb2.MovedPartition(topic="orders", partition=1, from_member="", to_member="m2", unread_ms=-1),
            ],
        ),
        groups_pb2.Rebalance(at_ms=2_000, group_epoch=4, reason="r2", moved_count=300, ended_at_ms=-1, number=2),
        groups_pb2.Rebalance(at_ms=3_000, group_epoch=5, reason="r3", moved_count=0, ended_at_ms=-1, number=3),
    ]  # fmt: skip
    assert run(["groups", "explain", "berry"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "rebalance 1  1970-01-01T00:00:01.000+00:00  epoch 3  2 partitions moved, done after 250 ms",
        "  why: member m2 (client c2) joined",
        "  orders-0: m0 -> m1 (c1)  unread for 120 ms",
        "  orders-1: no member -> m2 (c2)",
        "",
        "rebalance 2  1970-01-01T00:00:02.000+00:00  epoch 4  300 partitions moved, replaced by the next rebalance",
        "  why: r2",
        "  and 300 more",
        "",
        "rebalance 3  1970-01-01T00:00:03.000+00:00  epoch 5  0 partitions moved, under way",
        "  why: r3",
    ]
    assert run(["groups", "explain", "berry", "-o", "json"]) == 0
    described = shown(capsys)
    assert (described["group"], described["state"], len(described["rebalances"])) == ("berry", "stable", 3)
    assert described["rebalances"][0]["moved"][1] == {
        "topic": "orders", "partition": 1, "from_member": None, "to_member": "m2", "unread_ms": None,
    }  # fmt: skip


def test_groups_offsets_and_members_go(world: StandinGroupsWorld, capsys: Captured) -> None:
    assert run(["groups", "delete", "berry", "apple"]) == 1
    assert "[NON_EMPTY_GROUP]" in capsys.readouterr().err
    assert "apple" not in world.committed
    assert run(["groups", "remove-members", "berry", "m2", "-o", "json"]) == 0
    assert shown(capsys) == {"group": "berry", "removed": ["m2"]}
    assert run(["groups", "remove-members", "berry"]) == 2
    assert run(["groups", "remove-members", "berry", "--all"]) == 0
    world.committed["berry"] |= {("orders", 1): (3, ""), ("clicks", 0): (0, "")}
    assert run(["groups", "delete-offsets", "berry", "-t", "orders:0", "-t", "clicks", "-o", "json"]) == 0
    capsys.readouterr()
    assert set(world.committed["berry"]) == {("orders", 1)}
    assert run(["groups", "delete-offsets", "berry", "-t", "clicks"]) == 1
    assert run(["groups", "delete-offsets", "berry", "-t", "clicks:x"]) == 2
    capsys.readouterr()
    assert run(["groups", "delete", "berry", "-o", "json"]) == 0
    assert shown(capsys) == {"deleted": ["berry"]}


def test_a_lookup_while_the_shard_is_loaded_is_asked_again(world: StandinGroupsWorld, capsys: Captured) -> None:
    world.failures["DescribeGroups"] = [CoordinatorLoadInProgressError("it is being loaded")]
    assert run(["groups", "members", "berry", "-o", "json"]) == 0
    assert len(shown(capsys)["members"]) == 2


# -- reset-offsets ----------------------------------------------------------------------------------------------------


def reset(*arguments: str) -> int:
    return run(["groups", "reset-offsets", "apple", *arguments])


def planned(capsys: Captured) -> dict[str, int]:
    return {f"{row['topic']}-{row['partition']}": row["new_offset"] for row in shown(capsys)["partitions"]}


def test_what_a_reset_would_do_is_shown_and_not_done(world: StandinGroupsWorld, capsys: Captured) -> None:
    assert reset("--topic", "orders", "--to-earliest") == 0
    captured = capsys.readouterr()
    assert [line.split() for line in captured.out.splitlines()] == [
        ["GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "NEW-OFFSET"],
        ["apple", "orders", "0", "40", "5"],
        ["apple", "orders", "1", "-", "0"],
    ]
    assert "nothing was changed (add --execute)" in captured.err
    assert not world.asked_of("CommitOffsets")


@pytest.mark.parametrize(
    ("how", "result"),
    [
        (["--to-latest"], {"orders-0": 100, "orders-1": 50}),
        (["--to-current"], {"orders-0": 40, "orders-1": 50}),
        (["--to-offset", "60"], {"orders-0": 60, "orders-1": 50}),
        (["--to-datetime", "1970-01-01T00:00:00.2"], {"orders-0": 20, "orders-1": 20}),
        (["--to-datetime", "1970-01-01T01:00:00.505+01:00"], {"orders-0": 51, "orders-1": 50}),
        (["--by-duration", "PT1S"], {"orders-0": 100, "orders-1": 50}),
    ],
)
def test_resets_end_where_kafkas_do(
    world: StandinGroupsWorld, capsys: Captured, how: list[str], result: dict[str, int]
) -> None:
    assert reset("--topic", "orders", *how, "-o", "json") == 0
    assert planned(capsys) == result


def test_a_shift_stays_within_the_log(world: StandinGroupsWorld, capsys: Captured) -> None:
    assert reset("--topic", "orders:0", "--shift-by", "-100", "-o", "json", "--execute") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["executed"]
    assert "orders-0: -60 is before the first record; using the start (5)" in captured.err
    assert world.committed["apple"]["orders", 0][0] == 5
    assert reset("--topic", "orders:0", "--shift-by", "10", "-o", "json", "--execute") == 0
    assert planned(capsys) == {"orders-0": 15}
    assert reset("--topic", "orders", "--shift-by", "1") == 1
    assert "orders-1 has no committed offset to shift" in capsys.readouterr().err


def test_offsets_go_through_a_file_and_back(world: StandinGroupsWorld, capsys: Captured, tmp_path: Path) -> None:
    del world.committed["apple"]["gone", 3]
    assert reset("--all-topics", "--to-current", "--export") == 0
    exported = capsys.readouterr().out
    assert exported == "orders,0,40\n"
    file = tmp_path / "offsets.csv"
    file.write_text("orders,0,30\napple,orders,1,99\nother,orders,1,3\n\nclicks,0,0\n")
    assert reset("--from-file", str(file), "--execute", "-o", "json") == 0
    captured = capsys.readouterr()
    assert "orders-1: 99 is beyond the end; using the end (50)" in captured.err
    assert {part: offset for part, (offset, _) in world.committed["apple"].items()} == {
        ("orders", 0): 30, ("orders", 1): 50, ("clicks", 0): 0,
    }  # fmt: skip
    for wrong in ("orders,0", "orders,x,1", "orders,0,-1", "other,orders,0,1", "orders,0,1\norders,0,2"):
        file.write_text(wrong + "\n")
        assert reset("--from-file", str(file)) == 1
        assert str(file) in capsys.readouterr().err
    assert reset("--from-file", str(tmp_path / "none.csv")) == 1


def test_a_group_that_works_is_not_reset(world: StandinGroupsWorld, capsys: Captured) -> None:
    assert run(["groups", "reset-offsets", "berry", "--all-topics", "--to-earliest"]) == 0
    assert "stop its consumers before --execute" in capsys.readouterr().err
    assert run(["groups", "reset-offsets", "berry", "--all-topics", "--to-earliest", "--execute"]) == 1
    assert "[NON_EMPTY_GROUP]" in capsys.readouterr().err
    assert not world.asked_of("CommitOffsets")


def test_a_group_comes_to_be_by_its_offsets(world: StandinGroupsWorld, capsys: Captured) -> None:
    assert run(["groups", "reset-offsets", "new", "--topic", "orders:1", "--to-earliest", "--execute"]) == 0
    assert world.committed["new"] == {("orders", 1): (0, "")}
    capsys.readouterr()
    assert run(["groups", "reset-offsets", "newer", "--all-topics", "--to-earliest"]) == 1
    assert "pass --topic" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (["--topic", "orders"], 2),
        (["--to-earliest"], 2),
        (["--topic", "orders", "--to-earliest", "--to-latest"], 2),
        (["--topic", "orders", "--all-topics", "--to-latest"], 2),
        (["--topic", "orders:", "--to-latest"], 2),
        (["--topic", "orders", "--to-offset", "-1"], 2),
        (["--topic", "orders", "--to-datetime", "yesterday"], 2),
        (["--topic", "orders", "--to-datetime", "21.11.2026"], 2),
        (["--topic", "orders", "--by-duration", "1"], 2),
        (["--topic", "orders", "--by-duration", "P"], 2),
        (["--topic", "orders", "--by-duration", "PT"], 2),
        (["--topic", "orders", "--to-latest", "--execute", "--dry-run"], 2),
        (["--topic", "orders", "--to-latest", "--export", "-o", "json"], 2),
        (["--topic", "orders:7", "--to-latest"], 1),
        (["--topic", "oders", "--to-latest"], 1),
    ],
)
def test_a_wrong_command_line_resets_nothing(world: StandinGroupsWorld, wrong: list[str], code: int) -> None:
    assert reset(*wrong) == code
    assert not world.asked_of("CommitOffsets")
