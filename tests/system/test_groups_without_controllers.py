"""A group reads and commits while every controller is frozen, for longer than the coordinator's session.

With ``HEADRACE_FULL_KILLS=1`` (``make verify``) the controllers are frozen for 25 s, with the default timeouts.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace import Admin, Consumer, LocalCluster, NewTopic, Producer, TopicPartition
from headrace.errors import HeadraceError
from headrace_core.testing.verdicts import NotInTimeError
from tests.worlds.waiting import until

IS_FULL = os.environ.get("HEADRACE_FULL_KILLS", "0") not in ("", "0")
FROZEN_S = 25.0 if IS_FULL else 9.0
CONFIG = {} if IS_FULL else {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}
#: The longest time without a record that a member may see; a busy machine may need more.
GAP_S = 1.0 if IS_FULL else 3.0
TOPIC, GROUP, PARTITIONS = "orders", "readers", 4
TIMEOUT_S = 60.0


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(
        brokers=1, controllers=3, coordinators=1, data=tmp_path / "cluster", config=CONFIG, start_timeout_s=TIMEOUT_S
    ) as local:
        with Admin(bootstrap_servers=local.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(TOPIC, PARTITIONS)])
        yield local


class Writer(threading.Thread):
    """Send a record to each partition every 20 ms."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__()
        self.bootstrap = bootstrap
        self.is_over = threading.Event()
        self.written = 0

    def run(self) -> None:
        with Producer(bootstrap_servers=self.bootstrap) as out:
            while not self.is_over.wait(0.02):
                for partition in range(PARTITIONS):
                    out.send(TOPIC, value=b"%d" % self.written, partition=partition)
                self.written += 1


class Reader(threading.Thread):
    """A member that commits twice a second, and records its longest wait for a record."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__()
        self.bootstrap = bootstrap
        self.is_over = threading.Event()
        self.read: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
        self.last_s = time.monotonic()
        self.longest_gap_s = 0.0
        self.commits = 0
        self.failed: list[HeadraceError] = []
        self.lost: list[TopicPartition] = []

    def run(self) -> None:
        with Consumer(
            bootstrap_servers=self.bootstrap, group_id=GROUP, auto_offset_reset="earliest", enable_auto_commit=False
        ) as consumer:
            consumer.subscribe([TOPIC], on_lost=lambda _, parts: self.lost.extend(parts))
            next_commit = 0.0
            while not self.is_over.is_set():
                records = consumer.poll(0.1)
                now = time.monotonic()
                if records:
                    self.longest_gap_s = max(self.longest_gap_s, now - self.last_s)
                    self.last_s = now
                for record in records:
                    self.read[record.partition].append(int(record.value or b"-1"))
                if records and now > next_commit:
                    next_commit = now + 0.5
                    try:
                        consumer.commit()
                        self.commits += 1
                    except HeadraceError as error:
                        self.failed.append(error)


def test_a_member_reads_on_and_commits_while_every_controller_stands_still(
    local: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "headrace")
    controllers = [node["id"] for node in local.ps() if node["role"] == "controller"]
    writer, reader = Writer(local.bootstrap_servers), Reader(local.bootstrap_servers)
    writer.start()
    reader.start()
    try:
        until(lambda: reader.commits > 1, "the first commits")
        reader.longest_gap_s, before = 0.0, reader.commits
        for controller in controllers:
            local.pause("controller", controller)
        thaw_at = time.monotonic() + FROZEN_S
        until(lambda: time.monotonic() >= thaw_at, "the controllers have stood still long enough")
        gap_s = max(reader.longest_gap_s, time.monotonic() - reader.last_s)
        meanwhile = reader.commits - before
        for controller in controllers:
            local.resume("controller", controller)
        after = reader.commits
        until(lambda: reader.commits > after + 1, "commits after the controllers are back")
    finally:
        for controller in controllers:
            local.resume("controller", controller)
        writer.is_over.set()
        writer.join(TIMEOUT_S)
    until(lambda: all(len(each) >= writer.written for each in reader.read.values()), "all records are read")
    reader.is_over.set()
    reader.join(TIMEOUT_S)
    print(f"frozen for {FROZEN_S:g} s: longest gap {gap_s:.2f} s, {meanwhile} commits meanwhile")
    assert meanwhile > 2
    assert all(each == list(range(writer.written)) for each in reader.read.values()), "lost, doubled or out of order"
    assert not reader.failed
    assert not reader.lost
    # Clients that earlier tests did not close may log, too, so only this group counts.
    assert not [
        each.message
        for each in caplog.records
        if f"group {GROUP!r}" in each.message and "stops reading" in each.message
    ]
    if gap_s >= GAP_S:
        raise NotInTimeError(f"no record for {gap_s:.2f} s, allowed are {GAP_S:g} s")
