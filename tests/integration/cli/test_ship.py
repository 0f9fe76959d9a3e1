"""``headrace ship`` as a process: rotation, truncation, kill -9 and a broker's death; every line once, in order."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace import Admin, Consumer, LocalCluster, NewTopic, Producer, TopicPartition
from headrace_tools.ship.positions import TOPIC, ensure_topic
from tests.worlds.waiting import until, work

LIMIT_S = 90.0
FILES = 3
LINES = 9_000
PARTITIONS = 2


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(controllers=1, brokers=3, coordinators=1) as made:
        yield made


class Writer(threading.Thread):
    """Writes numbered lines to files, and rotates each from time to time, as logrotate does: by renaming, or with
    ``copies`` by copytruncate. No line is written between the copy and the truncation, because it would be lost."""

    def __init__(self, directory: Path, *, copies: bool = False) -> None:
        super().__init__(daemon=True)
        self.directory, self.copies = directory, copies
        self.is_followed = threading.Event()  # no file is rotated before the shipper has a position of it
        self.paths = [directory / f"app-{number}.log" for number in range(FILES)]

    def run(self) -> None:
        files = [path.open("ab", buffering=0) for path in self.paths]
        for line in range(LINES):
            if line == 500:
                self.is_followed.wait(LIMIT_S)
            for number, path in enumerate(self.paths):
                files[number].write(f"{number} {line}\n".encode())
                if line % 1_000 == 997 and self.copies:
                    shutil.copyfile(path, f"{path}.{line}")
                    os.truncate(path, 0)
                elif line % 1_000 == 997:
                    path.rename(f"{path}.{line}")
                    files[number].write(f"{number} {line}.5\n".encode())  # before the program opens the new file
                    files[number].close()
                    files[number] = path.open("ab", buffering=0)
            if line % 20 == 0:
                work(0.02)
        for file in files:
            file.close()

    def expected(self) -> list[float]:
        after = [] if self.copies else [line + 0.5 for line in range(LINES) if line % 1_000 == 997]
        return sorted([*range(LINES), *after])


def start(cluster: LocalCluster, topic: str, *more: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "headrace_tools", "ship", *map(str, more)),
            *("-t", topic, "-b", cluster.bootstrap_servers, "--host", "h", "-X", "transaction.timeout.ms=10000"),
        ]
    )


def read(cluster: LocalCluster, topic: str) -> dict[int, list[float]]:
    """The numbers of the lines of each file, in the order of the topic; the files by partition of their key."""
    found: dict[int, list[float]] = defaultdict(list)
    partitions = [TopicPartition(topic, each) for each in range(PARTITIONS)]
    with Consumer(
        bootstrap_servers=cluster.bootstrap_servers, isolation_level="read_committed", auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(each) < ends[each] for each in partitions):
            for record in consumer.poll(timeout=1.0):
                number, _, line = record.value.partition(b" ")
                found[int(number)].append(float(line))
    return found


def read_to_the_end(cluster: LocalCluster, topic: str) -> dict[int, list[float]]:
    """Read when no transaction is open: the end of a commit may come after its answer."""
    partitions = [TopicPartition(topic, each) for each in range(PARTITIONS)]
    at = cluster.bootstrap_servers
    with (
        Consumer(bootstrap_servers=at, isolation_level="read_committed") as stable,
        Consumer(bootstrap_servers=at) as plain,
    ):
        until(lambda: stable.end_offsets(partitions) == plain.end_offsets(partitions), "the last commits", LIMIT_S)
    return read(cluster, topic)


def shipped(cluster: LocalCluster, topic: str, wanted: int, writer: Writer) -> dict[int, list[float]] | None:
    """What has been shipped, if it is at least ``wanted`` lines. Tells the writer when all files are followed."""
    found = read(cluster, topic)
    if len(found) == FILES:
        writer.is_followed.set()
    return found if sum(map(len, found.values())) >= wanted else None


def topic_of(cluster: LocalCluster, name: str) -> str:
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name, PARTITIONS, replication_factor=3)])
    return name


@pytest.mark.parametrize("copies", [False, True], ids=["rename", "copytruncate"])
def test_each_line_once_and_in_order_whatever_dies(copies: bool, cluster: LocalCluster, tmp_path: Path) -> None:
    topic = topic_of(cluster, f"shipped-{copies}")
    writer = Writer(tmp_path, copies=copies)
    pattern = tmp_path / "*.log"
    writer.start()
    expected = len(writer.expected()) * FILES
    for kill, wanted in enumerate((expected // 5, 2 * expected // 5, 3 * expected // 5)):
        shipper = start(cluster, topic, pattern)
        try:
            found = until(lambda: shipped(cluster, topic, wanted, writer), f"{wanted} lines", LIMIT_S)  # noqa: B023
            if kill == 1:  # the shipper lives through the broker's death
                cluster.kill("broker", 2)
                before = sum(map(len, found.values()))
                until(lambda: sum(map(len, read(cluster, topic).values())) > before + 300, within_s=LIMIT_S)  # noqa: B023
                assert shipper.poll() is None
        finally:
            shipper.kill()
            shipper.wait()
        if kill == 1:
            cluster.restart("broker", 2)
    writer.join(LIMIT_S)
    done = start(cluster, topic, pattern, "--once")
    assert done.wait(LIMIT_S) == 0
    found = read_to_the_end(cluster, topic)
    assert sorted(found) == list(range(FILES))
    for number, lines in found.items():
        assert lines == writer.expected(), f"file {number}: lost, repeated, or out of order"


@pytest.mark.parametrize("begin", ["--name=from-begin", "--from-end"])
def test_a_shipper_that_dies_before_its_first_line_has_noted_its_files(
    begin: str, cluster: LocalCluster, tmp_path: Path
) -> None:
    topic = topic_of(cluster, f"noted{begin.partition('=')[0]}")
    log = tmp_path / "a.log"
    log.write_text("0 1\n" if begin == "--from-end" else "")
    stored = noted(cluster)
    shipper = start(cluster, topic, log, begin)
    try:
        until(lambda: noted(cluster) > stored, within_s=LIMIT_S)
    finally:
        shipper.kill()
        shipper.wait()
    with log.open("a") as file:
        file.write("0 2\n")
    log.rename(tmp_path / "a.log.1")
    log.write_text("0 3\n")
    done = start(cluster, topic, log, begin, "--once")
    assert done.wait(LIMIT_S) == 0
    assert read_to_the_end(cluster, topic) == {0: [2.0, 3.0]}


def noted(cluster: LocalCluster) -> int:
    """The number of records in the topic of positions."""
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        ensure_topic(admin)
    place = TopicPartition(TOPIC, 0)
    with Consumer(bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([place])
        end, found = consumer.end_offsets([place])[place], 0
        while consumer.position(place) < end:
            found += len(consumer.poll(timeout=1.0))
    return found


def test_a_second_shipper_of_the_name_fences_the_first(cluster: LocalCluster, tmp_path: Path) -> None:
    topic = topic_of(cluster, "fenced")
    log = tmp_path / "a.log"
    log.write_text("0 1\n")
    first = subprocess.Popen(
        [sys.executable, "-m", "headrace_tools", "ship", log, "-t", topic, "-b", cluster.bootstrap_servers],
        stderr=subprocess.PIPE,
        text=True,
    )
    second = None
    try:
        until(lambda: read(cluster, topic)[0] == [1], within_s=LIMIT_S)
        second = subprocess.Popen(
            [sys.executable, "-m", "headrace_tools", "ship", log, "-t", topic, "-b", cluster.bootstrap_servers]
        )
        number = 1
        while first.poll() is None:
            number += 1
            assert number < 10_000
            with log.open("a") as file:
                file.write(f"0 {number}\n")
            time.sleep(0.05)
        assert first.returncode == 1
        assert first.stderr is not None
        assert "has taken over the name" in first.stderr.read()
        until(lambda: read(cluster, topic)[0] == list(range(1, number + 1)), within_s=LIMIT_S)
    finally:
        for process in (first, second):
            if process is not None:
                process.send_signal(signal.SIGTERM)
                process.wait(LIMIT_S)


@pytest.mark.parametrize("is_stopped", [False, True], ids=["ends", "is stopped"])
def test_positions_behind_another_shippers_open_transaction_are_waited_for(
    is_stopped: bool, cluster: LocalCluster, tmp_path: Path
) -> None:
    """A shipper that read only up to the first open transaction began at old positions, and sent lines twice."""
    topic = topic_of(cluster, f"hanging-{is_stopped}")
    log = tmp_path / "a.log"
    log.write_text("0 1\n")
    command = [sys.executable, "-m", "headrace_tools", "ship", log, "-t", topic, "-b", cluster.bootstrap_servers]
    subprocess.run([*command, "--once"], timeout=LIMIT_S, check=True)
    with Producer(bootstrap_servers=cluster.bootstrap_servers, transactional_id="another shipper") as other:
        other.begin_transaction()
        other.send(TOPIC, value=b"{}", key=b"another shipper/1:1").result(timeout=LIMIT_S)
        with log.open("a") as file:
            file.write("0 2\n")
        waiting = subprocess.Popen([*command, "--once"], stderr=subprocess.PIPE, text=True)
        try:
            assert waiting.stderr is not None
            assert "waiting for another shipper's transaction" in waiting.stderr.readline()
            if is_stopped:
                waiting.send_signal(signal.SIGTERM)
                assert waiting.wait(LIMIT_S) == 128 + signal.SIGTERM
            other.abort_transaction()
            if not is_stopped:
                assert waiting.wait(LIMIT_S) == 0
        finally:
            waiting.kill()
            waiting.wait()
    subprocess.run([*command, "--once"], timeout=LIMIT_S, check=True)
    assert read_to_the_end(cluster, topic)[0] == [1, 2]


def test_what_is_there_is_sent_once_and_counted(cluster: LocalCluster, tmp_path: Path) -> None:
    topic = topic_of(cluster, "once")
    log = tmp_path / "a.log"
    log.write_text("".join(f"0 {number}\n" for number in range(5_000)) + "0 unfinished")
    outcomes = []
    for _ in range(2):
        done = subprocess.run(
            [
                *(sys.executable, "-m", "headrace_tools", "ship", log, "-t", topic, "-b", cluster.bootstrap_servers),
                *("--once", "-o", "json"),
            ],
            capture_output=True,
            timeout=LIMIT_S,
            check=True,
        )
        outcomes.append(json.loads(done.stdout))
    assert [(each["lines"], each["files"]) for each in outcomes] == [(5_000, 1), (0, 0)]
    assert read_to_the_end(cluster, topic)[0] == list(range(5_000))


def test_a_truncated_file_begins_again_and_the_shipper_says_where_it_was(cluster: LocalCluster, tmp_path: Path) -> None:
    topic = topic_of(cluster, "truncated")
    log = tmp_path / "a.log"
    log.write_text("0 1\n0 2\n")
    command = [sys.executable, "-m", "headrace_tools", "ship", log, "-t", topic, "-b", cluster.bootstrap_servers]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as shipper:
        try:
            until(lambda: read(cluster, topic)[0] == [1, 2], within_s=LIMIT_S)
            log.write_text("0 3\n")  # truncates: the same file
            until(lambda: read(cluster, topic)[0] == [1, 2, 3], within_s=LIMIT_S)
        finally:
            shipper.send_signal(signal.SIGTERM)
            assert shipper.stderr is not None
            said = shipper.stderr.read()
    assert f"ship: {log} was truncated or overwritten at position 8: shipping from its beginning" in said
