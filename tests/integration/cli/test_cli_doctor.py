"""`headrace doctor` and `headrace top` on one real cluster: one line while the cluster is healthy, then many faults at
once. The tests run in the order of the file, because the last test destroys the cluster.
"""

from __future__ import annotations

import itertools
import json
import os
import pty
import re
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headrace import Admin, Consumer, NewTopic, Producer, TopicPartition
from headrace.errors import HeadraceError
from tests.worlds import waiting

TIMEOUT_S = 120.0
eventually = partial(waiting.until, within_s=TIMEOUT_S, pause_s=0.1)
TOPIC, GROUP = "orders", "billing"
#: A coordinator of another version. The clock of the coordinator's machine is a minute and a half ahead.
STRANGE_COORDINATOR = """
import importlib.metadata, runpy, time
right, own = time.time_ns, importlib.metadata.version
time.time_ns = lambda: right() + 90_000_000_000
importlib.metadata.version = lambda name: "0.0.9" if name == "headrace-core" else own(name)
runpy.run_module("headrace_coordinator", run_name="__main__", alter_sys=True)
"""


class ExaminedCluster:
    """A cluster of four brokers, three controllers and a coordinator, and the processes that tests start in the place
    of a node."""

    def __init__(self, cli: Callable[..., Any], data: Path) -> None:
        self._cli, self.data = cli, data
        self._by_hand: list[subprocess.Popen[bytes]] = []
        started = cli(
            "up",
            "--data",
            data,
            "--port",
            "0",
            "--kafka-port",
            "0",
            "-d",
            "--brokers",
            "4",
            "--timeout",
            "90",
            "-o",
            "json",
        )
        self.bootstrap: str = started.json()["bootstrap_servers"].split(",")[0]

    def __call__(self, *arguments: str, code: int = 0) -> Any:
        return self._cli(*arguments, bootstrap=self.bootstrap, code=code)

    def doctor(self, *arguments: str, code: int | None = None) -> Any:
        return self._cli("doctor", "--data", self.data, *arguments, bootstrap=self.bootstrap, code=code)

    def rules(self) -> set[str]:
        return {each["rule"] for each in self.doctor("-o", "json").json()["findings"]}

    def node(self, role: str, node_id: int) -> dict[str, Any]:
        nodes: list[dict[str, Any]] = self._cli("ps", "--data", self.data, "-o", "json").json()
        return next(node for node in nodes if (node["role"], node["id"]) == (role, node_id))

    def starve(self, role: str, node_id: int) -> None:
        """A broker that uses 87 % of its allowed descriptors."""
        pid = self.node(role, node_id)["pid"]
        _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (round(len(os.listdir(f"/proc/{pid}/fd")) / 0.87), hard))

    def kill(self, role: str, node_id: int) -> None:
        os.kill(self.node(role, node_id)["pid"], signal.SIGKILL)
        eventually(lambda: self.node(role, node_id)["pid"] is None, f"{role} {node_id} is gone")

    def start_by_hand(self, role: str, node_id: int, program: list[str], *overrides: str) -> None:
        config = str(self.data / "config" / f"{role}-{node_id}.properties")
        with open(self.data / f"{role}-{node_id}-by-hand.log", "wb") as log:
            command = [sys.executable, *program, "--config", config, *itertools.chain(*(("-o", o) for o in overrides))]
            self._by_hand.append(subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True))

    def end(self) -> None:
        for process in self._by_hand:
            process.kill()
            process.wait()
        self._cli("down", "--data", self.data, "--delete", code=None)


@pytest.fixture(scope="module")
def examined(tmp_path_factory: pytest.TempPathFactory, bare_cli: Callable[..., Any]) -> Iterator[ExaminedCluster]:
    found = ExaminedCluster(bare_cli, tmp_path_factory.mktemp("patient") / "cluster")
    try:
        with Admin(bootstrap_servers=found.bootstrap) as admin:
            admin.create_topics([NewTopic(TOPIC, partitions=6)])
        yield found
    finally:
        found.end()


@pytest.fixture
def traffic(examined: ExaminedCluster) -> Iterator[None]:
    """A producer, and a consumer in a group that commits, as long as the test lasts."""
    over, first = threading.Event(), threading.Event()

    def produce() -> None:
        with Producer(bootstrap_servers=examined.bootstrap) as producer:
            while not over.is_set():
                producer.send_many(TOPIC, [b"x" * 100] * 50).result(timeout=TIMEOUT_S)
                over.wait(0.05)

    def consume() -> None:
        settings: dict[str, Any] = {"group_id": GROUP, "auto_offset_reset": "earliest", "enable_auto_commit": False}
        with Consumer(bootstrap_servers=examined.bootstrap, **settings) as consumer:
            consumer.subscribe([TOPIC])
            while not over.is_set():
                if consumer.poll(timeout=0.1):
                    consumer.commit()
                    first.set()

    threads = [threading.Thread(target=work) for work in (produce, consume)]
    for thread in threads:
        thread.start()
    try:
        assert first.wait(TIMEOUT_S)
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(TIMEOUT_S)


def test_a_healthy_cluster_gets_one_line_and_no_finding(examined: ExaminedCluster, traffic: None) -> None:
    output = examined.doctor("--timeout", "30", "-o", "json", code=0)
    found = output.json()
    assert found["findings"] == []
    assert (found["healthy"], found["not_asked"], output.err) == (True, [], "")
    output = examined.doctor("--timeout", "30", code=0)
    assert len(output.lines) == 1
    assert output.text.startswith("healthy: 3 controllers, 4 brokers, 1 coordinator, ")
    assert "\x1b" not in output.text


def test_top_shows_what_flows_once_or_a_document_a_line(examined: ExaminedCluster, traffic: None, program: str) -> None:
    def both_show_traffic() -> bool:
        """Whether records flow in both frames: on a busy machine, a second may pass without one."""
        frames = [json.loads(line) for line in examined("top", "-n", "2", "-i", "1", "-o", "json").lines]
        assert len(frames) == 2
        assert frames[0]["timestamp_ms"] < frames[1]["timestamp_ms"]
        for frame in frames:
            assert (frame["under_replicated"], frame["offline"], frame["errors"]) == (0, 0, [])
            assert frame["topics"][0]["topic"] == TOPIC
            assert sum(broker["leaders"] for broker in frame["brokers"]) == frame["partitions"]
            assert [(group["group"], group["members"]) for group in frame["groups"]] == [(GROUP, 1)]
        topics, groups = ([frame[what][0] for frame in frames] for what in ("topics", "groups"))
        return (
            all(topic["records_per_s"] > 0 and topic["bytes_per_s"] > 0 for topic in topics)
            and all(group["status"] == "OK" for group in groups)
            and any(group["records_per_s"] > 0 for group in groups)
        )

    eventually(both_show_traffic, "traffic in two frames")
    shown = examined("top", "--once", "-i", "0.5")
    assert re.search(rf"^{TOPIC} +6 ", shown.text, re.MULTILINE)
    assert re.search(rf"^{GROUP} +stable +1 ", shown.text, re.MULTILINE)
    assert "\x1b" not in shown.text


@pytest.mark.parametrize(("end", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_top_ends_when_it_is_asked_to_and_leaves_the_terminal_as_it_was(
    examined: ExaminedCluster, program: str, end: signal.Signals, code: int
) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "HEADRACE_BOOTSTRAP_SERVERS": examined.bootstrap, "TERM": "xterm", "COLUMNS": "200"}
    process = subprocess.Popen(
        [program, "top", "-i", "0.2"], stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, env=environment
    )
    os.close(theirs)
    shown = b""
    try:
        while b"LEADERS" not in shown:
            shown += os.read(ours, 65_536)
        process.send_signal(end)
        try:
            while part := os.read(ours, 65_536):
                shown += part
        except OSError:  # the terminal's other end is closed
            pass
        _, err = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
        os.close(ours)
    assert (process.returncode, err) == (code, b"")
    assert b"\x1b[?1049h" in shown  # another screen, and back
    assert shown.rindex(b"\x1b[?1049l") > shown.rindex(b"\x1b[?1049h")


def test_a_doctor_whom_nobody_answers_says_why(bare_cli: Callable[..., Any]) -> None:
    output = bare_cli("doctor", "-b", "nowhere.invalid:9095,127.0.0.1:1", "--data", "/nowhere", "-o", "json", code=1)
    found = output.json()
    assert (found["healthy"], found["cluster_id"]) == (False, None)
    assert [each["rule"] for each in found["findings"]] == ["no-cluster", "name-not-resolved"]
    assert found["not_asked"][0]["what"] == "the cluster"


def polled(first: Consumer, *others: Consumer) -> Consumer:
    """Return ``first`` after every member has polled, and so has received changes of the group."""
    for consumer in (*others, first):
        consumer.poll(timeout=0.05)
    return first


def storm(examined: ExaminedCluster) -> None:
    """Members come and go: ten rebalances, as fast as possible."""
    settings = {"bootstrap_servers": examined.bootstrap, "group_id": GROUP}
    with Consumer(**settings) as stays:
        stays.subscribe([TOPIC])
        eventually(lambda: polled(stays).assignment(), "a member that stays")
        for _ in range(5):
            with Consumer(**settings) as comes:
                comes.subscribe([TOPIC])
                eventually(lambda comes=comes: polled(comes, stays).assignment(), "a member that comes")
            eventually(lambda: len(polled(stays).assignment()) == 6, "the first one has all again")


@pytest.mark.long
@pytest.mark.timeout(300)  # on a quiet machine the whole test takes one minute
def test_much_is_wrong_at_once_and_each_of_it_is_found(examined: ExaminedCluster) -> None:
    with Admin(bootstrap_servers=examined.bootstrap) as admin:
        admin.alter_group_offsets(GROUP, {TopicPartition(TOPIC, 0): 0})  # this test may run without the others
        admin.create_topics(
            [
                NewTopic("only-there", assignments={0: [4]}),
                NewTopic("strict", assignments={0: [1, 4]}, config={"min.insync.replicas": "2"}),
                NewTopic("greedy", assignments={0: [1]}, config={"min.insync.replicas": "3"}),
                NewTopic("moving", assignments={0: [1]}),
            ]
        )
        examined.kill("broker", 4)
        eventually(lambda: any(b.fenced for b in admin.describe_cluster(include_fenced_brokers=True).brokers), "fenced")
        admin.alter_partition_reassignments({TopicPartition("moving", 0): [1, 4]})
        led_by = admin.describe_quorum().leader_id
        examined.kill("controller", next(each for each in (1, 2, 3) if each != led_by))

        examined.kill("coordinator", 1)
        examined.start_by_hand("coordinator", 1, ["-P", "-c", STRANGE_COORDINATOR])
        own = examined.node("broker", 3)
        port = own["address"].rpartition(":")[2]
        os.kill(own["pid"], signal.SIGTERM)
        eventually(lambda: examined.node("broker", 3)["pid"] is None, "stopped")
        internal = re.search(r"internal://(\S+)", (examined.data / "config" / "broker-3.properties").read_text())
        assert internal is not None
        examined.start_by_hand(
            "broker",
            3,
            ["-P", "-m", "headrace_broker"],
            f"advertised.listeners=client://broker-3.invalid:{port},internal://{internal[1]}",
        )

        def groups_are_served() -> bool:
            try:
                return bool(admin.list_groups(timeout=5))
            except HeadraceError:
                return False

        eventually(groups_are_served, "the strange coordinator has the groups")
    planted = {
        "broker-down", "process-dead", "voter-away", "partition-offline", "min-isr", "under-replicated",
        "min-isr-impossible", "reassignment-stuck", "name-not-resolved", "descriptors", "clock-skew", "version-mix",
    }  # fmt: skip

    def all_is_found() -> bool:
        examined.starve("broker", 1)
        return planted <= examined.rules()

    eventually(all_is_found, "all that is planted is found")

    def seen_in_a_storm() -> Any:
        """Return None if the rebalances took longer than the minute that the rule judges, because the machine is too
        slow."""
        storm(examined)
        examined.starve("broker", 1)
        output = examined.doctor("-o", "json", code=1).json()
        return output if planted | {"group-storm"} <= {each["rule"] for each in output["findings"]} else None

    output = eventually(seen_in_a_storm, "all of it in one look")
    found = {each["rule"]: each for each in output["findings"]}
    assert not output["healthy"]
    assert set(found) - planted - {"group-storm"} <= {"group-lag"}, "false alarms; though the group may well lag"
    assert all(each["what"] and each["where"] and each["cure"] for each in found.values())
    assert f"headrace restart --data {examined.data} broker 4" in found["broker-down"]["cure"]
    assert found["partition-offline"]["where"] == "only-there-0"
    assert "broker 4" in found["partition-offline"]["cure"]
    assert found["min-isr"]["where"] == "strict-0"
    assert found["reassignment-stuck"]["where"] == "moving-0"
    assert "broker-3.invalid" in found["name-not-resolved"]["what"]
    assert found["descriptors"]["where"] == "broker 1"
    assert (found["clock-skew"]["where"], found["clock-skew"]["severity"]) == ("coordinator 1", "error")
    assert "0.0.9: coordinator 1" in found["version-mix"]["what"]
    assert GROUP in found["group-storm"]["what"]
    shown = examined.doctor(code=1)
    assert shown.lines[0].startswith("error: ")  # errors first, each with its remedy, then the totals
    assert shown.text.count("    cure:  ") >= len(planted)
    assert re.search(r"^\d+ errors, \d+ warnings; 3 controllers, 4 brokers", shown.lines[-1])
