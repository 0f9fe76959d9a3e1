"""Exactly once: the driver is killed in the middle of a batch and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.xdist_group("spark"), pytest.mark.timeout(180)]

RECORDS = 500  # in each of two partitions; 200 per batch make five batches of 100 + 100


def start_driver(bootstrap: str, topic: str, directory: Path, hold_at: int) -> subprocess.Popen[bytes]:
    script = str(Path(__file__).with_name("parquet_driver.py"))
    log = (directory / f"driver-{hold_at}.log").open("wb")
    with log:
        return subprocess.Popen(
            [sys.executable, script, bootstrap, topic, str(directory), str(hold_at)],
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def kill_driver(driver: subprocess.Popen[bytes]) -> None:
    """kill -9 to everything the driver consists of: its Python, its JVM, its workers."""
    family = [psutil.Process(driver.pid), *psutil.Process(driver.pid).children(recursive=True)]
    os.killpg(driver.pid, signal.SIGKILL)
    for process in family:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    driver.wait(timeout=30)
    psutil.wait_procs(family, timeout=30)


def wait_until_held(driver: subprocess.Popen[bytes], directory: Path, batch: int) -> None:
    """Until the batch's one task waits and the other has written its file, which no commit names yet."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        assert driver.poll() is None, "the driver ended before it was held"
        files = len(list((directory / "out").glob("*.parquet")))
        if (directory / "held").exists() and files > 2 * batch:
            return
        time.sleep(0.05)  # looking again, not waiting for a state by guess
    pytest.fail("the driver was never held")


def test_a_driver_killed_in_mid_batch_skips_no_row_and_repeats_none(
    spark: Any, headrace: Any, make_topic: Any, send: Any, tmp_path: Path
) -> None:
    topic = make_topic(2)
    send(topic, {p: [f"{p}:{n}".encode() for n in range(RECORDS)] for p in (0, 1)})
    for batch, hold_at in ((0, 50), (2, 250)):
        driver = start_driver(headrace.bootstrap_servers, topic, tmp_path, hold_at)
        try:
            wait_until_held(driver, tmp_path, batch)
            assert (tmp_path / "checkpoint" / "offsets" / str(batch)).exists(), "the batch has begun"
            assert not (tmp_path / "checkpoint" / "commits" / str(batch)).exists(), "and is not done"
        finally:
            kill_driver(driver)
        (tmp_path / "held").unlink()
    driver = start_driver(headrace.bootstrap_servers, topic, tmp_path, -1)
    try:
        assert driver.wait(timeout=90) == 0, (tmp_path / "driver--1.log").read_text()[-3000:]
    finally:
        if driver.poll() is None:
            kill_driver(driver)

    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    found = sorted((row.partition, row.offset, bytes(row.value).decode()) for row in rows)
    assert found == [(p, n, f"{p}:{n}") for p in (0, 1) for n in range(RECORDS)]
    files = list((tmp_path / "out").glob("*.parquet"))
    assert len(files) > 10, "the killed batches left files behind, which no commit names"
