"""A real broker whose topics have transactional logs. The logs are put in place while the broker is stopped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from headrace_core.log.producer_state import ProducerTable
from headrace_core.records import read_header
from tests.worlds.broker_world import Cluster, Topic
from tests.worlds.transactional_log import TransactionalLog
from tests.worlds.waiting import until


@contextmanager
def serving(directory: Path, logs: Mapping[str, TransactionalLog], segment_batches: int = 20) -> Iterator[Cluster]:
    """A controller and a broker with a topic of one partition for each log. Each segment has this number of batches."""
    with Cluster(directory) as cluster:
        topics = [cluster.topic(name) for name in logs]
        assert cluster.broker.terminate() == 0
        for name, log in logs.items():
            _put(cluster.broker.data / f"{name}-0", log, segment_batches)
        cluster.restart()
        for topic, log in zip(topics, logs.values(), strict=True):
            until(lambda topic=topic, log=log: _end(topic) == log.end_offset, "the partition to be led")  # type: ignore[misc]
        yield cluster


def _end(topic: Topic) -> int:
    return int(topic.end())


def _put(directory: Path, log: TransactionalLog, segment_batches: int) -> None:
    for path in directory.iterdir():
        if path.name != "partition.metadata":
            path.unlink()
    for first in range(0, len(log.batches), segment_batches):
        part = log.batches[first : first + segment_batches]
        base_offset = int.from_bytes(part[0][:8], "big")
        (directory / f"{base_offset:020d}.log").write_bytes(b"".join(part))
    (directory / f"{log.end_offset:020d}.snapshot").write_bytes(_producers(log).snapshot())


def _producers(log: TransactionalLog) -> ProducerTable:
    """The producers at the log's end. After a clean stop a log without a snapshot has no producers."""
    table = ProducerTable()
    for batch in log.batches:
        header = read_header(batch)
        if header.is_control:
            table.marker_appended(header, coordinator_epoch=0)
        else:
            table.appended(header)
    return table
