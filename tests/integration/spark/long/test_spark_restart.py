"""The driver is killed during a batch and started again. Rows are written exactly once into files, and at least once
into topics."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace import Admin, Consumer, NewTopic, Producer, TopicPartition
from headrace.fetch import OffsetRange, RangeReader
from tests.worlds.pipelines_world import SparkDriver

pytestmark = pytest.mark.timeout(540)

RECORDS = 500  # in each of two partitions; 200 per batch make five batches of 100 + 100


@dataclass(frozen=True)
class Killed:
    """The results of two streams whose driver was killed twice during a batch, and then ran to its end."""

    files: Path
    to_topic: str


def start_driver(bootstrap: str, directory: Path, *streams: str) -> SparkDriver:
    """``streams`` are the arguments of stream_driver.py."""
    return SparkDriver(Path(__file__).parents[1] / "stream_driver.py", directory, bootstrap, str(directory), *streams)


@pytest.fixture(scope="module")
def killed(headrace: Any, tmp_path_factory: pytest.TempPathFactory) -> Killed:
    """Two partitions, batches of 100 + 100 rows. The driver is killed in the stream's first batch, when one task has
    written its part and no batch is committed. The driver is killed again in batch 2, while another stream writes into
    a topic at the same time."""
    topic, to_topic = "spark-restart", "spark-restart-copy"
    bootstrap, directory = headrace.bootstrap_servers, tmp_path_factory.mktemp("restart")
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic(name, partitions=2, replication_factor=1) for name in (topic, to_topic)])
    with Producer(bootstrap_servers=bootstrap) as producer:
        for partition in (0, 1):
            for number in range(RECORDS):
                producer.send(topic, f"{partition}:{number}".encode(), partition=partition)
    files, copy = directory / "files", directory / to_topic

    def check_mid_batch(place: Path, batch: int) -> None:
        assert (place / "checkpoint" / "offsets" / str(batch)).exists(), "the batch has begun"
        assert not (place / "checkpoint" / "commits" / str(batch)).exists(), "and is not done"
        (place / "held").unlink()

    def files_written(count: int) -> bool:
        return (files / "held").exists() and len(list((files / "out").glob("*.parquet"))) > count

    driver = start_driver(bootstrap, directory, f"files:{topic}:50")
    try:
        driver.wait_until(lambda: files_written(0), "the first batch is held")
    finally:
        driver.kill()
    check_mid_batch(files, 0)

    driver = start_driver(bootstrap, directory, f"files:{topic}:250", f"{to_topic}:{topic}:250")
    partitions = [TopicPartition(to_topic, number) for number in (0, 1)]
    with Consumer(bootstrap_servers=bootstrap) as consumer:
        try:
            driver.wait_until(lambda: files_written(4), "batch 2 is held")
            # The records of batches 0 and 1, and of one task of batch 2.
            driver.wait_until(
                lambda: (copy / "held").exists() and sum(consumer.end_offsets(partitions).values()) >= 500,
                "batch 2 into the topic is held",
            )
        finally:
            driver.kill()
    check_mid_batch(files, 2)
    check_mid_batch(copy, 2)

    driver = start_driver(bootstrap, directory, f"files:{topic}:-1", f"{to_topic}:{topic}:-1")
    try:
        driver.wait_ended()
    finally:
        driver.kill()
    return Killed(files, to_topic)


def test_a_driver_killed_in_mid_batch_skips_no_row_and_repeats_none(killed: Killed) -> None:
    rows = json.loads((killed.files / "rows.json").read_text())  # as Spark reads what it has written
    assert sorted(rows) == [[p, n, f"{p}:{n}"] for p in (0, 1) for n in range(RECORDS)]
    files = list((killed.files / "out").glob("*.parquet"))
    assert len(files) > 10, "the killed batches left files behind, which no commit names"


def test_a_driver_killed_in_mid_batch_loses_nothing_and_repeats_only_that_batch_in_a_topic(
    killed: Killed, headrace: Any
) -> None:
    partitions = [TopicPartition(killed.to_topic, number) for number in (0, 1)]
    with Consumer(bootstrap_servers=headrace.bootstrap_servers) as consumer:
        ends = consumer.end_offsets(partitions)
    ranges = [OffsetRange(killed.to_topic, number, 0, end) for (_, number), end in ends.items()]
    with RangeReader(ranges, bootstrap_servers=headrace.bootstrap_servers) as reader:
        found = Counter(
            (row["partition"], row["value"].decode()) for batch in reader.arrow_batches() for row in batch.to_pylist()
        )
    assert set(found) == {(p, f"{p}:{n}") for p in (0, 1) for n in range(RECORDS)}, "nothing is lost"
    twice = {value for (_, value), times in found.items() if times > 1}
    assert twice == {f"0:{n}" for n in range(200, 300)}, "what the finished task of the killed batch wrote, no more"
    assert max(found.values()) == 2
