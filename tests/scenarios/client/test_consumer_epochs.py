"""Consumers and leader epochs: logs truncated below their position (KIP-320), and replicas in their rack (KIP-392)."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import Consumer, TopicPartition
from headrace.consumer.read_epochs import ReadEpochs
from headrace.errors import LogTruncationError
from headrace_core.records import encode_batch
from tests.worlds.waiting import until

T0 = TopicPartition("t", 0)
OUT_OF_RANGE, NOT_LEADER, OFFSET_NOT_AVAILABLE = 1, 6, 78


def consumer(cluster: Any, **settings: Any) -> Consumer:
    given = {"auto_offset_reset": "earliest", "retry_backoff_ms": 5, "fetch_max_wait_ms": 100, **settings}
    found = Consumer(bootstrap_servers=cluster.bootstrap_servers, **given)
    found.assign([T0])
    return found


def fill(cluster: Any, *values: bytes) -> None:
    for value in values:
        cluster.append("t", 0, encode_batch([(0, None, value, None)]))


def read(inp: Consumer, count: int) -> list[bytes]:
    out: list[bytes] = []

    def enough() -> bool:
        out.extend(bytes(record.value) for record in inp.poll(0.2))
        return len(out) >= count

    until(enough)
    return out


def named(cluster: Any) -> list[tuple[int, int, int, int]]:
    """(broker, offset, last fetched epoch, current epoch) of each request that named the partition."""
    with cluster.changed:
        return [
            (broker, item.fetch_offset, item.last_fetched_epoch, item.current_leader_epoch)
            for broker, request in cluster.fetched
            for item in request.partitions
        ]


def test_epoch_of_the_last_batch() -> None:
    one = [encode_batch([(0, None, b"v", None)], leader_epoch=epoch) for epoch in (3, 3, 5)]
    for parts, newest, last in ((one, 5, 5), (one, -1, 5), (one[:2], 9, 3), ([], 9, -1)):
        epochs = ReadEpochs()
        epochs.note_fetched(b"".join(parts), newest, 0)
        assert epochs.last == last


def test_position_carries_the_epoch_of_the_last_record_through_a_leader_change(fake_cluster: Any) -> None:
    cluster = fake_cluster(2)
    cluster.create("t")
    cluster.epochs["t", 0] = 4
    fill(cluster, b"0", b"1")
    with consumer(cluster) as inp:
        assert read(inp, 2) == [b"0", b"1"]
        cluster.move("t", 0, 1)
        fill(cluster, b"2")
        assert read(inp, 1) == [b"2"]
        cluster.move("t", 0, 0)
        fill(cluster, b"3")
        assert read(inp, 1) == [b"3"]
    calls = named(cluster)
    assert calls[0] == (0, 0, -1, 4)
    assert (1, 2, 4, 5) in calls
    assert calls[-1] == (0, 3, 5, 6)
    assert not cluster.epochs_asked, "the fetch itself was enough"


def test_truncated_log_is_read_on_where_it_went_another_way(fake_cluster: Any) -> None:
    cluster = fake_cluster(2)
    cluster.create("t")
    fill(cluster, b"0", b"1", b"2", b"3")
    with consumer(cluster) as inp:
        assert read(inp, 4) == [b"0", b"1", b"2", b"3"]
        cluster.truncate("t", 0, 2)
        fill(cluster, b"two", b"three", b"four")
        cluster.leaders["t", 0] = 1
        assert read(inp, 3) == [b"two", b"three", b"four"]
        assert inp.position(T0) == 5
    assert cluster.epochs_asked


def test_another_log_that_is_longer_is_read_from_where_it_went_another_way(fake_cluster: Any) -> None:
    """After an unclean election, the leader never had the last epoch, but has more records of the epoch before. By
    offsets alone, no record seems to be missing (Kafka's consumer continues at 4)."""
    cluster = fake_cluster(2)
    cluster.create("t")
    fill(cluster, b"0", b"1")
    cluster.move("t", 0, 0)
    fill(cluster, b"2", b"3")
    with consumer(cluster) as inp:
        assert read(inp, 4) == [b"0", b"1", b"2", b"3"]
        with cluster.changed:
            cluster.truncate("t", 0, 2)
            cluster.epochs["t", 0] = 0
            fill(cluster, b"two", b"three", b"four", b"five")
            cluster.epochs["t", 0] = 2
            cluster.leaders["t", 0] = 1
        assert read(inp, 4) == [b"two", b"three", b"four", b"five"]
        assert inp.position(T0) == 6
    assert cluster.epochs_asked


def test_truncated_log_is_an_error_without_a_policy_until_it_is_seeked(fake_cluster: Any) -> None:
    cluster = fake_cluster(2)
    cluster.create("t")
    fill(cluster, b"0", b"1", b"2", b"3")
    with consumer(cluster, auto_offset_reset="none") as inp:
        inp.seek(T0, 0)
        assert read(inp, 4) == [b"0", b"1", b"2", b"3"]
        cluster.truncate("t", 0, 2)
        fill(cluster, b"two", b"three", b"four")
        cluster.leaders["t", 0] = 1
        for _ in range(2):
            with pytest.raises(LogTruncationError, match="differs from offset 2") as caught:
                read(inp, 1)
        error = caught.value
        assert (error.partition, error.position, error.divergent_offset) == (T0, 4, 2)
        inp.seek(T0, error.divergent_offset or 0)
        assert read(inp, 3) == [b"two", b"three", b"four"]


def test_log_that_only_begins_later_is_no_truncation(fake: Any) -> None:
    fill(fake, b"0", b"1", b"2", b"3")
    with consumer(fake) as inp:
        assert len(read(inp, 4)) == 4
        refused = iter([OUT_OF_RANGE, OUT_OF_RANGE])
        fake.on_fetch = lambda broker, key: next(refused, 0)
        assert read(inp, 4) == [b"0", b"1", b"2", b"3"], "earliest, as auto.offset.reset says"


def test_offset_that_is_not_available_yet_is_asked_for_again(fake: Any) -> None:
    fill(fake, b"0")
    refused = iter([OFFSET_NOT_AVAILABLE] * 3)
    fake.on_fetch = lambda broker, key: next(refused, 0)
    with consumer(fake) as inp:
        assert read(inp, 1) == [b"0"]


def test_replica_in_the_rack_is_read_and_left_on_errors(fake_cluster: Any) -> None:
    cluster = fake_cluster(3)
    cluster.create("t")
    fill(cluster, b"0", b"1")
    cluster.nearer = lambda broker, key, rack: 2 if rack == "west" else None
    with consumer(cluster, client_rack="west") as inp:
        assert read(inp, 2) == [b"0", b"1"]
        assert [broker for broker, *_ in named(cluster)] == [0, 2]
        troubles = iter([OUT_OF_RANGE])
        cluster.on_fetch = lambda broker, key: next(troubles, 0) if broker == 2 else 0
        cluster.nearer = lambda broker, key, rack: None
        until(lambda: named(cluster)[-1][0] == 0)
        fill(cluster, b"2")
        assert read(inp, 1) == [b"2"], "a follower's end is not the log's"
    assert named(cluster)[-1][1] == 2


def test_leader_is_asked_again_after_a_while_which_replica_is_nearer(fake_cluster: Any) -> None:
    cluster = fake_cluster(3)
    cluster.create("t")
    fill(cluster, b"0")
    cluster.nearer = lambda broker, key, rack: 1 if rack == "west" else None
    with consumer(cluster, client_rack="west", metadata_max_age_ms=200) as inp:
        assert read(inp, 1) == [b"0"]
        cluster.nearer = lambda broker, key, rack: 2 if rack == "west" else None
        until(lambda: named(cluster)[-1][0] == 2)
        fill(cluster, b"1")
        assert read(inp, 1) == [b"1"]


def test_replica_in_the_rack_that_cannot_be_reached_is_left_for_the_leader_for_a_while(fake_cluster: Any) -> None:
    """A firewall separates the client from the follower. The leader and the metadata consider the follower healthy, and
    name it each time."""
    cluster = fake_cluster(3)
    cluster.create("t")
    fill(cluster, b"0", b"1")
    cluster.nearer = lambda broker, key, rack: 2 if rack == "west" else None
    cluster.servers[2].stop(0)

    def asked_by_rack() -> int:
        with cluster.changed:
            return sum(1 for broker, request in cluster.fetched if broker == 0 and request.rack and request.partitions)

    with consumer(cluster, client_rack="west") as inp:
        assert read(inp, 2) == [b"0", b"1"]
        for value in (b"2", b"3", b"4"):
            fill(cluster, value)
            assert read(inp, 1) == [value]
        assert asked_by_rack() == 1
        assert named(cluster)[-1][:2] == (0, 0)
    with consumer(cluster, client_rack="west", metadata_max_age_ms=300) as inp:
        assert read(inp, 5)
        before = asked_by_rack()
        # the interval is over: the consumer asks the leader again for the nearest replica
        until(lambda: asked_by_rack() > before)
        fill(cluster, b"5")
        assert read(inp, 1) == [b"5"]


def test_replica_in_the_rack_that_dies_is_left_for_the_leader(fake_cluster: Any) -> None:
    cluster = fake_cluster(3)
    cluster.create("t")
    fill(cluster, b"0")
    cluster.nearer = lambda broker, key, rack: 2 if rack == "west" else None
    with consumer(cluster, client_rack="west") as inp:
        assert read(inp, 1) == [b"0"]
        cluster.nearer = lambda broker, key, rack: None
        cluster.servers[2].stop(0)
        until(lambda: named(cluster)[-1][0] == 0)
        fill(cluster, b"1")
        assert read(inp, 1) == [b"1"]
