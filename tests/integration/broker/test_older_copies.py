"""A real broker is the last one to stop, gets an earlier copy of its directory, and is the first one to start."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.worlds.fleet_world import LONG_S, Fleet
from tests.worlds.waiting import until


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(tmp_path / "fleet") as running:
        yield running


def doctor(fleet: Fleet) -> dict[str, Any]:
    """The doctor's findings by rule."""
    address = fleet.brokers[fleet.some_broker()].address()
    command = [sys.executable, "-m", "headrace_tools", "doctor", "-o", "json", "-b", address]
    done = subprocess.run(command, capture_output=True, timeout=LONG_S, check=False)
    return {each["rule"]: each for each in json.loads(done.stdout)["findings"]}


def restore(fleet: Fleet, copy: Path) -> None:
    """Stop all brokers, broker 3 last, and replace its directory by the copy."""
    for broker_id in (1, 2, 3):
        assert fleet.brokers[broker_id].terminate() == 0
    shutil.rmtree(fleet.brokers[3].data)
    shutil.copytree(copy, fleet.brokers[3].data)


def test_an_older_copy_waits_and_a_sole_replica_leads_with_a_warning(fleet: Fleet, tmp_path: Path) -> None:
    topic = fleet.topic(on=[1, 2, 3], min_insync_replicas="2")
    alone = fleet.topic(on=[3])
    topic.wait_isr(1, 2, 3)
    topic.append(b"before")
    alone.append(b"before")
    assert fleet.brokers[3].terminate() == 0
    shutil.copytree(fleet.brokers[3].data, tmp_path / "copy")
    fleet.restart(3)
    topic.wait_isr(1, 2, 3)
    topic.append(b"since")
    alone.append(b"since")
    restore(fleet, tmp_path / "copy")

    fleet.restart(3)
    state = topic.state()
    assert (state.leader_id, list(state.eligible_leader_replicas), list(state.last_known_elr)) == (-1, [2], [])
    assert alone.wait_leader(lambda _: True) == 3
    assert alone.read() == [b"before"]
    finding = doctor(fleet)["log-dir-outdated"]
    assert finding["severity"] == "warning"
    assert str(fleet.brokers[3].data) in finding["where"]
    assert f"lost the records since the copy: {alone.name}-0" in finding["cure"]
    assert "BrokerDirectoriesOutdated broker_id=3" in fleet.controller.log()

    fleet.restart(1)
    fleet.restart(2)
    topic.wait_isr(1, 2, 3)
    assert topic.read() == [b"before", b"since"]
    topic.wait_same_bytes(1, 2, 3)


def test_a_copy_in_the_present_epoch_gives_way_to_who_has_the_records(fleet: Fleet, tmp_path: Path) -> None:
    topic = fleet.topic(on=[1, 2, 3], min_insync_replicas="2")
    topic.wait_isr(1, 2, 3)
    topic.append(b"before")
    process = fleet.brokers[3].process
    assert process is not None
    process.send_signal(signal.SIGSTOP)  # as a snapshot of the machine's disk, all at one moment
    shutil.copytree(fleet.brokers[3].data, tmp_path / "copy")
    process.send_signal(signal.SIGCONT)
    topic.append(b"since")
    topic.wait_isr(1, 2, 3)
    restore(fleet, tmp_path / "copy")

    fleet.restart(3)
    assert topic.wait_leader(lambda _: True) == 3, "its epoch is right"
    fleet.restart(1)
    until(lambda: topic.leader() == -1, "the leader to be taken out of office", LONG_S)
    assert "TruncationRefused" in fleet.brokers[1].log()
    assert list(topic.state().eligible_leader_replicas) == [2]
    fleet.restart(2)
    topic.wait_isr(1, 2, 3)
    assert topic.read() == [b"before", b"since"]
    topic.wait_same_bytes(1, 2, 3)
