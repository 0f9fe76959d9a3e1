"""Kill the driver of a stateful stream at chosen moments, let tasks fail, and start it again. With read_committed, an
exactly-once sink has each row once; an at-least-once sink has duplicates.

HEADRACE_SPARK_KILLS: the number of runs, each with different moments (`make verify` runs 40).
"""

from __future__ import annotations

import os
import random
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from headrace import Admin, Consumer, NewTopic, Producer, TopicPartition
from headrace.fetch import OffsetRange, RangeReader
from tests.worlds.pipelines_world import SparkDriver

pytestmark = pytest.mark.timeout(540)

RUNS = int(os.environ.get("HEADRACE_SPARK_KILLS", "3"))
DRIVER = Path(__file__).parents[1] / "once_driver.py"
VALUES, BATCHES = 200, 4  # each value in both partitions, 25 offsets apart: 400 records, 100 a batch
PLACES = ("task", "prepared", "decided", "fail")


def partitions(topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in (0, 1)]


def make_topics(bootstrap: str, name: str) -> tuple[str, str]:
    """Create a topic that has each value twice, and an empty topic."""
    origin, copy = f"{name}-in", f"{name}-out"
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic(topic, partitions=2, replication_factor=1) for topic in (origin, copy)])
    with Producer(bootstrap_servers=bootstrap) as producer:
        for number in range(VALUES):
            producer.send(origin, b"%d" % number, partition=0)
            producer.send(origin, b"%d" % ((number - 25) % VALUES), partition=1)
    return origin, copy


def ends(bootstrap: str, topic: str, isolation_level: str) -> dict[TopicPartition, int]:
    with Consumer(bootstrap_servers=bootstrap, isolation_level=isolation_level) as consumer:
        return dict(consumer.end_offsets(partitions(topic)))


def written(bootstrap: str, topic: str, isolation_level: str) -> Counter[str]:
    ranges = [OffsetRange(*where, 0, end) for where, end in ends(bootstrap, topic, isolation_level).items()]
    with RangeReader(ranges, bootstrap_servers=bootstrap, isolation_level=isolation_level) as reader:
        return Counter(value.decode() for batch in reader.arrow_batches() for value in batch["value"].to_pylist())


def run_with(bootstrap: str, directory: Path, topics: tuple[str, str], delivery: str, moments: list[Any]) -> None:
    """Run the stream to its end. At each moment (place, batch) the driver is killed, or a task fails."""
    held = directory / "held"
    for place, batch in [*moments, ("none", -1)]:
        held.unlink(missing_ok=True)
        driver = SparkDriver(DRIVER, directory, bootstrap, str(directory), *topics, delivery, place, str(batch))
        try:
            if place in ("fail", "none"):
                driver.wait_ended()
            else:
                driver.wait_until(held.exists, f"{place} of batch {batch}")
        finally:
            driver.kill()
        if place == "fail":
            assert held.exists(), "a task has failed"
            return
        offsets, commits = (directory / "checkpoint" / name / str(batch) for name in ("offsets", "commits"))
        assert place == "none" or (offsets.exists() and not commits.exists()), "killed in mid-batch"


@pytest.mark.parametrize("run", range(RUNS))
def test_each_row_is_there_once_whatever_is_killed(run: int, headrace: Any, tmp_path: Path) -> None:
    seed = zlib.crc32(f"{os.environ['HEADRACE_TEST_SEED']} {run}".encode())
    chance = random.Random(seed)
    batches = sorted(chance.sample(range(BATCHES - 1), 2))
    # The first runs kill the driver at each of the places in PLACES. The failing task comes last, because the run
    # continues to its end after a failed task.
    moments: list[Any] = [(chance.choice(PLACES[:3]), batch) for batch in batches]
    moments[run % 2] = PLACES[run % 3], moments[run % 2][1]
    if run % 3 == 2:
        moments.append(("fail", BATCHES - 1))
    print(f"seed {seed}: {moments}")
    topics = make_topics(headrace.bootstrap_servers, f"once-{run}")
    run_with(headrace.bootstrap_servers, tmp_path, topics, "exactly-once", moments)
    found = written(headrace.bootstrap_servers, topics[1], "read_committed")
    assert found == Counter(map(str, range(VALUES))), f"seed {seed}: {moments}"
    levels = [ends(headrace.bootstrap_servers, topics[1], level) for level in ("read_committed", "read_uncommitted")]
    assert levels[0] == levels[1], "no transaction is open"


def test_the_same_at_least_once_has_duplicates(headrace: Any, tmp_path: Path) -> None:
    topics = make_topics(headrace.bootstrap_servers, "at-least-once")
    run_with(headrace.bootstrap_servers, tmp_path, topics, "at-least-once", [("prepared", 1)])
    found = written(headrace.bootstrap_servers, topics[1], "read_committed")
    assert set(found) == set(map(str, range(VALUES)))
    assert sum(found.values()) > VALUES
