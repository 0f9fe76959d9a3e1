"""This script made ``replication.tar.xz`` and ``level_1.tar.xz`` once, with Headrace as it was when replication was
finished. The script documents the content of the archives. The archives are never made again, because archives of a
newer Headrace would prove nothing. The script ran in a checkout of commit e198acb, the last commit before the first
commit of the coordinator:

    PYTHONPATH=<every src folder of that checkout> python make_old_clusters.py DIRECTORY

Each archive contains a cluster's directory after `headrace down`. Only the text logs are missing, and ``cluster.json``
has @DIRECTORY@ in place of the directory's name. The .json file beside an archive has the responses to clients of that
time.

``replication``: metadata.version 2, one controller, two brokers. ``level_1``: metadata.version 1, one controller and
one broker. Level 1 has neither producer ids nor reassignments, so no producer of ``level_1`` is idempotent.

The address of a single controller is in its log and cannot change. The ports of the old clusters are therefore below
the range from which tests pick ports at random.
"""

from __future__ import annotations

import json
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace import Admin, Consumer, LocalCluster, NewTopic, Producer, TopicPartition
from headrace.cluster_models import ConfigResource
from headrace.local import ports
from headrace_core.records import split_batches
from headrace_core.records.batches import read_header

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
START_MS = 1_700_000_000_000
FIRST_PORT = {"replication": 14_870, "level_1": 14_880}
#: The settings of every node: old records are kept, and files are small.
CONFIG = {
    "log.retention.ms": "-1",
    "log.index.size.max.bytes": "4096",
    "log.cleaner.backoff.ms": "100",
    "log.initial.task.delay.ms": "0",
    "metadata.log.max.record.bytes.between.snapshots": "2000",
}


def until(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"waited in vain for {what}")
        time.sleep(0.05)


def send(bootstrap: str, topic: str, count: int, *, keys: int = 0, partition: int = 0, **settings: Any) -> None:
    """Send ``count`` records of many kinds, a few in each batch."""
    with Producer(bootstrap_servers=bootstrap, **settings) as producer:
        for number in range(count):
            key = b"key-%d" % (number % keys) if keys else (None if number % 3 == 0 else b"k%d" % number)
            value = None if number % 7 == 6 else b"%s value %d " % (topic.encode(), number) * (1 + number % 3)
            headers = [("n", b"%d" % number), ("empty", None), ("n", b"\x00\xff")][: number % 4]
            sent = producer.send(
                topic, value, key, headers, partition=partition, timestamp_ms=START_MS + 1_000 * number
            )
            if number % 3 == 2:
                sent.result(60)
        producer.flush(30)


def common(bootstrap: str, admin: Admin, replicas: int, settings: dict[str, Any]) -> None:
    """The common content of both clusters: codecs, partitions, headers, a compacted topic, deleted records,
    settings."""
    admin.create_topics([NewTopic(f"codec-{codec}", 2, replicas) for codec in CODECS])
    for codec in CODECS:
        for partition in (0, 1):
            send(bootstrap, f"codec-{codec}", 20, partition=partition, compression_type=codec, **settings)
    # A limit of 600 bytes makes several segments, each with an index.
    small = {"segment.bytes": "600", "index.interval.bytes": "100"}
    compaction = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": "31536000000000",
    }
    admin.create_topics([NewTopic("compacted", 1, replicas, small | compaction)])
    send(bootstrap, "compacted", 120, keys=5, **settings)
    until(lambda: len(records_of(bootstrap, "compacted", 1)) < 60, "the cleaner")
    admin.create_topics([NewTopic("deleted-records", 1, replicas, small)])
    send(bootstrap, "deleted-records", 50, **settings)
    admin.delete_records({TopicPartition("deleted-records", 0): 23})
    admin.create_topics([NewTopic("gone", 1, replicas), NewTopic("grown", 1, replicas, {"max.message.bytes": "12345"})])
    send(bootstrap, "gone", 5, **settings)
    admin.delete_topics(["gone"])
    admin.create_partitions({"grown": 3})
    send(bootstrap, "grown", 5, partition=2, **settings)
    admin.alter_configs({ConfigResource("topic", "grown"): {"retention.ms": "31536000000000"}})


def replication(cluster: LocalCluster, admin: Admin) -> None:
    bootstrap = cluster.bootstrap_servers
    common(bootstrap, admin, 2, {})
    admin.create_topics([NewTopic("moved", assignments={0: [1]}), NewTopic("idempotent", assignments={0: [1, 2]})])
    send(bootstrap, "moved", 30)
    moved = TopicPartition("moved", 0)
    admin.alter_partition_reassignments({moved: [2]})
    until(lambda: not admin.list_partition_reassignments([moved]), "the reassignment")
    send(bootstrap, "moved", 5)
    # Every replicated log gets two leader epochs, and followers that were down.
    cluster.kill("broker", 2)
    send(bootstrap, "idempotent", 12)
    cluster.restart("broker", 2)
    until(lambda: all(len(each.isr) == 2 for each in admin.describe_topics(["idempotent"])[0].partitions), "broker 2")
    send(bootstrap, "idempotent", 12)


def level_1(cluster: LocalCluster, admin: Admin) -> None:
    admin.update_features({"metadata.version": 1}, downgrade=True)
    common(cluster.bootstrap_servers, admin, 1, {"enable_idempotence": False})


def records_of(bootstrap: str, topic: str, partitions: int) -> list[list[Any]]:
    """All records that a consumer reads, as [partition, offset, timestamp, key, value, headers] with bytes in hex."""
    found = []
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        parts = [TopicPartition(topic, number) for number in range(partitions)]
        ends = consumer.end_offsets(parts)
        consumer.assign(parts)
        consumer.seek_to_beginning(*parts)
        while any(consumer.position(part) < ends[part] for part in parts):
            for each in consumer.poll(1.0):
                headers = [[name, hexed(value)] for name, value in each.headers]
                found.append(
                    [each.partition, each.offset, each.timestamp_ms, hexed(each.key), hexed(each.value), headers]
                )
    return sorted(found, key=lambda row: (row[0], row[1]))


def hexed(data: bytes | None) -> str | None:
    return None if data is None else bytes(data).hex()


def described(bootstrap: str, admin: Admin) -> dict[str, Any]:
    topics = {}
    for topic in admin.describe_topics():
        resource = ConfigResource("topic", topic.name)
        values = admin.describe_configs([resource], include_synonyms=True)[resource]
        parts = [TopicPartition(topic.name, each.partition) for each in topic.partitions]
        with Consumer(bootstrap_servers=bootstrap) as consumer:
            begin, end = consumer.beginning_offsets(parts), consumer.end_offsets(parts)
        topics[topic.name] = {
            "topic_id": topic.topic_id.hex(),
            "replicas": [list(each.replicas) for each in topic.partitions],
            "offsets": [[begin[part], end[part]] for part in parts],
            "config": {key: entry.value for key, entry in sorted(values.items()) if entry.source == "dynamic_topic"},
            "records": records_of(bootstrap, topic.name, len(topic.partitions)),
        }
    return topics


def last_batches(directory: Path) -> dict[str, str]:
    """The last batch of each producer id of the topic `idempotent`, in hex."""
    found = {}
    for path in sorted(directory.glob("broker-1/idempotent-0/*.log")):
        data = path.read_bytes()
        for span in split_batches(data):
            header = read_header(data, span.position)
            found[str(header.producer_id)] = data[span.position : span.position + span.size].hex()
    return found


def make(name: str, root: Path, **topology: int) -> None:
    directory = root / name
    first = FIRST_PORT[name]
    ports.pick = lambda count, **_: list(range(first, first + count))  # of the controller and the brokers together
    cluster = LocalCluster(**topology, data=directory, port=first + 8, config=CONFIG)
    with cluster, Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        bootstrap = cluster.bootstrap_servers
        {"replication": replication, "level_1": level_1}[name](cluster, admin)
        about = {
            "metadata.version": admin.describe_features()["metadata.version"].finalized_level,
            "cluster_id": admin.describe_cluster().cluster_id,
            "topics": described(bootstrap, admin),
        }
    if name == "replication":
        about["last_batches"] = last_batches(directory)
    state = directory / "cluster.json"
    state.write_text(state.read_text().replace(str(directory), "@DIRECTORY@"))
    (root / f"{name}.json").write_text(json.dumps(about, indent=None, separators=(",", ":")) + "\n")
    with tarfile.open(root / f"{name}.tar.xz", "w:xz", preset=9) as archive:
        for path in sorted(directory.rglob("*")):
            inside = path.relative_to(directory)
            if inside.parts[0] not in ("logs", "config", ".lock"):
                archive.add(path, str(inside), recursive=False, filter=nobodys)


def nobodys(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    target = Path(sys.argv[1]).absolute()
    target.mkdir()
    make("replication", target, controllers=1, brokers=2)
    make("level_1", target, controllers=1, brokers=1)
