"""The driver is killed in mid-batch and started again: exactly once into files, at least once into topics."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace import Consumer, TopicPartition
from headrace.fetch import OffsetRange, RangeReader

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(540)]

RECORDS = 500  # in each of two partitions; 200 per batch make five batches of 100 + 100


def start_driver(bootstrap: str, topic: str, directory: Path, hold_at: int, *to_topic: str) -> subprocess.Popen[bytes]:
    script = str(Path(__file__).with_name("stream_driver.py"))
    log = (directory / f"driver-{hold_at}.log").open("wb")
    with log:
        return subprocess.Popen(
            [sys.executable, script, bootstrap, topic, str(directory), str(hold_at), *to_topic],
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def kill_driver(driver: subprocess.Popen[bytes]) -> None:
    """kill -9 to everything the driver consists of: its Python, its JVM, its workers."""
    if driver.poll() is not None:
        return
    family = [psutil.Process(driver.pid), *psutil.Process(driver.pid).children(recursive=True)]
    os.killpg(driver.pid, signal.SIGKILL)
    for process in family:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    driver.wait(timeout=60)
    psutil.wait_procs(family, timeout=60)


def wait_until_held(driver: subprocess.Popen[bytes], directory: Path, written: Callable[[], bool]) -> None:
    """Until the batch's one task waits and the other has ``written`` its part, which nobody has committed yet."""
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        if driver.poll() is not None:
            told = "\n".join(log.read_text()[-2_000:] for log in directory.glob("driver-*.log"))
            pytest.fail(f"the driver ended before it was held: {told}")
        if (directory / "held").exists() and written():
            return
        time.sleep(0.05)  # looking again, not waiting for a state by guess
    pytest.fail("the driver was never held")


def ends_of(headrace: Any, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
    with Consumer(bootstrap_servers=headrace.bootstrap_servers) as consumer:
        return consumer.end_offsets(partitions)


def more_files_than(count: int, directory: Path) -> bool:
    return len(list(directory.glob("*.parquet"))) > count


def test_a_driver_killed_in_mid_batch_skips_no_row_and_repeats_none(
    spark: Any, headrace: Any, make_topic: Any, send: Any, tmp_path: Path
) -> None:
    topic = make_topic(2)
    send(topic, {p: [f"{p}:{n}".encode() for n in range(RECORDS)] for p in (0, 1)})
    for batch, hold_at in ((0, 50), (2, 250)):
        driver = start_driver(headrace.bootstrap_servers, topic, tmp_path, hold_at)
        try:
            wait_until_held(driver, tmp_path, partial(more_files_than, 2 * batch, tmp_path / "out"))
            assert (tmp_path / "checkpoint" / "offsets" / str(batch)).exists(), "the batch has begun"
            assert not (tmp_path / "checkpoint" / "commits" / str(batch)).exists(), "and is not done"
        finally:
            kill_driver(driver)
        (tmp_path / "held").unlink()
    driver = start_driver(headrace.bootstrap_servers, topic, tmp_path, -1)
    try:
        assert driver.wait(timeout=240) == 0, (tmp_path / "driver--1.log").read_text()[-3000:]
    finally:
        if driver.poll() is None:
            kill_driver(driver)

    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    found = sorted((row.partition, row.offset, bytes(row.value).decode()) for row in rows)
    assert found == [(p, n, f"{p}:{n}") for p in (0, 1) for n in range(RECORDS)]
    files = list((tmp_path / "out").glob("*.parquet"))
    assert len(files) > 10, "the killed batches left files behind, which no commit names"


def test_a_driver_killed_in_mid_batch_loses_nothing_and_repeats_only_that_batch_in_a_topic(
    headrace: Any, make_topic: Any, send: Any, tmp_path: Path
) -> None:
    """Two partitions, batches of 100 + 100 rows. The driver is killed in batch 2, when one of its tasks is done."""
    topic, to_topic = make_topic(2), make_topic(2)
    send(topic, {p: [f"{p}:{n}".encode() for n in range(RECORDS)] for p in (0, 1)})

    def written() -> int:
        return sum(consumer.end_offsets(partitions).values())

    partitions = [TopicPartition(to_topic, number) for number in (0, 1)]
    driver = start_driver(headrace.bootstrap_servers, topic, tmp_path, 250, to_topic)
    with Consumer(bootstrap_servers=headrace.bootstrap_servers) as consumer:
        try:
            wait_until_held(driver, tmp_path, lambda: written() >= 500)  # batches 0 and 1, and one task of batch 2
        finally:
            kill_driver(driver)
    (tmp_path / "held").unlink()
    driver = start_driver(headrace.bootstrap_servers, topic, tmp_path, -1, to_topic)
    try:
        assert driver.wait(timeout=240) == 0, (tmp_path / "driver--1.log").read_text()[-3000:]
    finally:
        if driver.poll() is None:
            kill_driver(driver)

    ranges = [OffsetRange(to_topic, number, 0, end) for (_, number), end in ends_of(headrace, partitions).items()]
    with RangeReader(ranges, bootstrap_servers=headrace.bootstrap_servers) as reader:
        found = Counter(
            (row["partition"], row["value"].decode()) for batch in reader.arrow_batches() for row in batch.to_pylist()
        )
    assert set(found) == {(p, f"{p}:{n}") for p in (0, 1) for n in range(RECORDS)}, "nothing is lost"
    twice = {value for (_, value), times in found.items() if times > 1}
    assert twice == {f"0:{n}" for n in range(200, 300)}, "what the finished task of the killed batch wrote, no more"
    assert max(found.values()) == 2
