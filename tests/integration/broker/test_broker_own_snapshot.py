"""A broker starts from its own snapshot of the metadata: the saved work, the changes that the snapshot must not hide,
and failures."""

from __future__ import annotations

from pathlib import Path

from headrace_protos.v1 import admin_pb2
from tests.worlds.broker_world import WAIT_S, Cluster


def snapshot(cluster: Cluster) -> Path:
    (found,) = cluster.broker.data.glob("*.checkpoint")
    return Path(found)


def test_a_clean_stop_leaves_a_snapshot_and_the_next_start_goes_on_from_there(make_cluster):
    cluster = make_cluster()
    orders = cluster.topic("orders")
    orders.produce(b"a")
    cluster.broker.terminate()
    first = snapshot(cluster)
    cluster.restart()
    loaded = [line for line in cluster.broker.log().splitlines() if "MetadataImageLoaded" in line]
    assert len(loaded) == 1
    assert f"source={first} " in loaded[0]
    assert " topics=1 partitions=1 " in loaded[0]
    assert orders.read() == [b"a"]
    assert orders.produce(b"b").base_offset == 1
    cluster.topic("more")
    cluster.broker.terminate()
    assert snapshot(cluster).name > first.name


def test_a_topic_made_anew_after_the_snapshot_keeps_its_records_though_the_snapshot_knows_its_namesake(make_cluster):
    """A killed broker starts from its old snapshot, and takes no action until its metadata is current."""
    cluster = make_cluster()
    cluster.topic("orders").produce(b"of the first")
    cluster.broker.terminate()
    cluster.restart()
    deleted = cluster.admin.DeleteTopics(admin_pb2.DeleteTopicsRequest(topics=["orders"]), timeout=WAIT_S)
    assert not deleted.results[0].error.code
    orders = cluster.topic("orders")
    orders.produce(b"a")
    cluster.broker.kill()
    cluster.restart()
    assert cluster.broker.log().count("MetadataImageLoaded") == 2
    assert orders.read() == [b"a"]
    assert orders.produce(b"b").base_offset == 1


def test_a_damaged_snapshot_is_left_out_with_a_line_and_written_anew(make_cluster):
    cluster = make_cluster()
    orders = cluster.topic("orders")
    orders.produce(b"a")
    cluster.broker.terminate()
    path = snapshot(cluster)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    cluster.restart()
    assert "MetadataImageLoaded" not in cluster.broker.log()
    assert f"cannot read the saved metadata {path}: " in cluster.broker.log()
    assert orders.read() == [b"a"]
    cluster.topic("more")
    cluster.broker.terminate()
    cluster.restart()
    assert "MetadataImageLoaded" in cluster.broker.log()
    assert orders.read() == [b"a"]
