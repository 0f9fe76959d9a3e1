"""One Spark session for all tests of this folder, and separate topics for each test."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

_numbers = itertools.count()


#: Records of tests have old timestamps, so the next retention check would delete them.
KEEP = {"retention.ms": "-1"}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A local session with the source registered."""
    import headrace_spark

    warehouse = tmp_path_factory.mktemp("warehouse")
    handler = signal.getsignal(signal.SIGINT)
    session = headrace_spark.session(
        "headrace tests", master="local[2]", spark_sql_session_timeZone="UTC", spark_sql_warehouse_dir=str(warehouse)
    )
    session.sparkContext.setLogLevel("OFF")
    signal.signal(signal.SIGINT, handler)  # a SparkContext takes the signal
    yield session
    block_managers = session.sparkContext._jsc.sc().getExecutorMemoryStatus().size()
    session.stop()
    # Spark's local mode continues to run jobs without its executor, but the JVM ends 10 minutes later
    # (lost_shuffle_driver.py).
    assert block_managers == 1, "a test has made Spark lose its only executor; run this test in its own driver"


@pytest.fixture
def make_topic(headrace: Any) -> Callable[..., str]:
    """``make_topic(partitions)``: a new topic; returns its name."""
    from headrace import Admin, NewTopic

    def make(partitions: int = 2) -> str:
        name = f"spark-{next(_numbers)}"
        with Admin(bootstrap_servers=headrace.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(name, partitions=partitions, replication_factor=1, config=KEEP)])
        return name

    return make


@pytest.fixture
def send(headrace: Any) -> Callable[..., None]:
    """``send(topic, {partition: [values]})``; an item may be a dict of send()'s arguments."""
    from headrace import Producer

    def sending(topic: str, records: Mapping[int, Sequence[Any]]) -> None:
        with Producer(bootstrap_servers=headrace.bootstrap_servers) as producer:
            futures = [
                producer.send(topic, partition=partition, **(item if isinstance(item, dict) else {"value": item}))
                for partition, items in records.items()
                for item in items
            ]
            for future in futures:
                future.result(timeout=60)

    return sending


@pytest.fixture
def source(spark: Any, headrace: Any) -> Callable[..., Any]:
    """``source("read", subscribe=...)``: a reader with its options, up to load()."""

    def reader(kind: str, **options: Any) -> Any:
        made = getattr(spark, kind).format("headrace").option("headrace.bootstrap.servers", headrace.bootstrap_servers)
        return made.options(**options)

    return reader
