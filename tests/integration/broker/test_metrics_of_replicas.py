"""Three real brokers: the numbers stay true with replicas, codecs, Kafka's clients, moves of the leader
and slow followers."""

from __future__ import annotations

import random
import re
import time
import uuid
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from headrace import Admin, ConfigResource, Consumer, LocalCluster, NewTopic, Producer, TopicPartition
from headrace_core.metrics import catalog
from headrace_core.metrics.histogram import DURATION_BOUNDS_S
from headrace_core.metrics.text import OPENMETRICS_TYPE
from tests.worlds.telemetry_world import Scrape, scrape, text_of
from tests.worlds.waiting import until

_BTM = "kafka_server_brokertopicmetrics"
_IN = f"{_BTM}_messagesin_total"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(controllers=1, brokers=3, coordinators=1, kafka=True, registries=1, console=True) as running:
        yield running


@pytest.fixture(scope="module")
def admin(cluster: LocalCluster) -> Iterator[Admin]:
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as client:
        yield client


@pytest.fixture
def topic(admin: Admin) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    admin.create_topics([NewTopic(name, partitions=1, replication_factor=3)])
    return name


def _leader(admin: Admin, topic: str) -> int:
    return int(admin.describe_topics([topic])[0].partitions[0].leader)


def _fresh(nodes: list[dict[str, Any]]) -> Scrape:
    """A scrape that was collected after this call: scrapes that follow each other closely may share a text."""

    def collections(found: Scrape) -> set[tuple[tuple[str, int], float]]:
        return {(each.node, each.value) for each in found.of("headrace_metrics_collect_seconds")}

    shared = collections(scrape(nodes))

    def look() -> Scrape | None:
        found = scrape(nodes)
        return None if collections(found) & shared else found

    found = until(look)
    assert isinstance(found, Scrape)
    return found


def _replicated(cluster: LocalCluster, topic: str) -> Scrape:
    """A scrape in which all three replicas have the whole log."""
    _fresh(cluster.ps())  # an older text could have three equal replicas of a shorter log

    def look() -> Scrape | None:
        found = scrape(cluster.ps())
        ends = [each.value for each in found.of("kafka_log_log_logendoffset", topic=topic, partition="0")]
        high = found.total("kafka_topic_partition_current_offset", topic=topic, partition="0")
        return found if ends == [high] * 3 else None

    found = until(look)
    assert isinstance(found, Scrape)
    return found


def test_counts_are_true_for_each_codec_and_for_kafkas_clients(cluster: LocalCluster, topic: str) -> None:
    sent = 0
    for codec in CODECS:
        with Producer(bootstrap_servers=cluster.bootstrap_servers, acks="all", compression_type=codec) as producer:
            for _ in range(400):
                producer.send(topic, value=b"a" * 100)
            producer.flush(timeout=30)
        for is_idempotent in (True, False):
            kafkas = confluent_kafka.Producer(
                {
                    "bootstrap.servers": cluster.kafka_bootstrap_servers,
                    "compression.type": codec,
                    "enable.idempotence": is_idempotent,
                }
            )
            for _ in range(300):
                kafkas.produce(topic, b"b" * 100)
            assert kafkas.flush(30) == 0
        sent += 400 + 2 * 300
    found = _replicated(cluster, topic)
    assert found.total(_IN, topic=topic) == sent
    assert found.total("kafka_topic_partition_current_offset", topic=topic, partition="0") == sent
    # A log is its batches, and each of the two followers gets each batch once.
    in_bytes = found.total(f"{_BTM}_bytesin_total", topic=topic)
    assert found.total("kafka_log_log_size", topic=topic, partition="0") == 3 * in_bytes
    assert found.total("headrace_topic_log_bytes", topic=topic) == 3 * in_bytes

    def replicated_twice() -> bool:
        seen = scrape(cluster.ps())
        received, pushed = (seen.total(f"{_BTM}_replicationbytes{each}_total") for each in ("in", "out"))
        return received == pushed == 2 * seen.total(f"{_BTM}_bytesin_total")

    until(replicated_twice, "two copies of each byte (the internal topics have three replicas, too)", pause_s=0.1)

    with Consumer(bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        read = 0
        while read < sent:
            read += len(consumer.poll(timeout=10, max_records=500))
    found = _fresh(cluster.ps())
    assert found.total("headrace_broker_records_out_total", topic=topic) == sent
    assert found.total(f"{_BTM}_bytesout_total", topic=topic) == in_bytes


def test_counts_stay_true_while_the_leader_moves(cluster: LocalCluster, admin: Admin, topic: str) -> None:
    """The retries of an idempotent producer count nothing where the log has their records already."""
    part, sent = TopicPartition(topic, 0), 0
    leaders = []
    with Producer(bootstrap_servers=cluster.bootstrap_servers, acks="all", linger_ms=1) as producer:
        for turn in range(6):
            order = [(turn + step) % 3 + 1 for step in range(3)]
            admin.alter_partition_reassignments({part: order})
            futures = [producer.send(topic, value=b"x" * 50) for _ in range(500)]
            admin.elect_leaders("preferred", [part])
            futures += [producer.send(topic, value=b"x" * 50) for _ in range(500)]
            for each in futures:
                each.result(timeout=60)
            sent += len(futures)
            leaders.append(_leader(admin, topic))
    assert len(set(leaders)) > 1, "the leader has moved"
    found = _replicated(cluster, topic)
    assert found.total("kafka_topic_partition_current_offset", topic=topic, partition="0") == sent
    assert found.total(_IN, topic=topic) == sent + _lost_by_leaders(cluster, topic)


def _lost_by_leaders(cluster: LocalCluster, topic: str) -> int:
    """Records that a leader appended and removed again after the next leader had been elected without them. The client
    sends them again, and they count at both leaders, as in Kafka."""
    lost: dict[int, int] = {}  # by the epoch of the new leader; other followers may remove some of the same records
    for log in (cluster.directory / "logs").glob("broker-*"):
        for line in log.read_text().splitlines():
            if "ReplicaTruncated" in line and f"partition={topic}-0 " in line:
                at = {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)\b", line)}
                lost[at["leader_epoch"]] = max(lost.get(at["leader_epoch"], 0), at["from_offset"] - at["to_offset"])
    return sum(lost.values())


def _bucket(seconds: float) -> int:
    return bisect_left(DURATION_BOUNDS_S, seconds)


def test_quantiles_of_the_node_are_the_clients_within_the_bucket(
    cluster: LocalCluster, admin: Admin, topic: str
) -> None:
    """A follower that stands still delays requests by times in the middle of four buckets. On a busy machine, too, a
    request takes at least from the moment when the leader's log has its record to the follower's resumption, and at
    most as long as the client waits."""
    admin.alter_configs({ConfigResource("topic", topic): {"log.flush": "os"}})  # a sync would count as local time
    leader = _leader(admin, topic)
    node = [each for each in cluster.ps() if (each["role"], each["id"]) == ("broker", leader)]
    follower = leader % 3 + 1
    delays_s = [0.03] * 12 + [0.075] * 12 + [0.15] * 12 + [0.35] * 4
    random.Random(7).shuffle(delays_s)
    left_s = list(delays_s)
    labels = {"request": "Produce", "listener": "client"}
    with Producer(bootstrap_servers=cluster.bootstrap_servers, acks="all", linger_ms=0) as producer:
        producer.send(topic, value=b"first").result(timeout=30)
        before = _fresh(node)
        (log,) = Path(node[0]["data_dirs"][0], f"{topic}-0").glob("*.log")
        seen_s, waited_s = [], []
        while left_s:
            size = log.stat().st_size
            cluster.pause("broker", follower)
            started_s = time.perf_counter()
            sent = producer.send(topic, value=b"x")
            until(lambda size=size: log.stat().st_size > size, "the leader to have the record", pause_s=0.001)
            arrived_s = time.perf_counter()
            time.sleep(left_s.pop())
            waited_s.append(time.perf_counter() - arrived_s)
            cluster.resume("broker", follower)
            sent.result(timeout=30)
            seen_s.append(time.perf_counter() - started_s)
        of_client = producer.metrics()
    found = _fresh(node)

    def counted(name: str, **more: str) -> float:
        return found.total(name, **labels, **more) - before.total(name, **labels, **more)

    assert counted("headrace_request_seconds_count") == len(delays_s)
    below = [counted("headrace_request_seconds_bucket", le=str(bound)) for bound in DURATION_BOUNDS_S]
    seen_s.sort()
    waited_s.sort()
    for share in (0.25, 0.5, 0.75, 0.95):
        rank = share * len(seen_s)
        by_node = next(number for number, count in enumerate(below) if count >= rank)
        least_s, most_s = waited_s[int(rank) - 1], seen_s[int(rank) - 1]
        assert _bucket(least_s) <= by_node <= _bucket(most_s), (share, least_s, most_s, by_node, below)
    total_s, count = counted("headrace_request_seconds_sum"), counted("headrace_request_seconds_count")
    assert sum(waited_s) <= total_s <= sum(seen_s)
    assert total_s / count * 1000 <= of_client["request-latency-max"]
    # The leader syncs nothing, and the rest is the wait for the follower. The unit of Kafka's names is ms.
    local_ms, remote_ms, total_ms = (
        counted(f"kafka_network_requestmetrics_{each}timems_sum") for each in ("local", "remote", "total")
    )
    assert abs(local_ms + remote_ms - total_ms) < 1
    assert abs(total_ms - total_s * 1000) < 1
    assert remote_ms > 0.8 * total_ms


def test_rows_of_deleted_topics_and_groups_end_and_a_finished_group_is_no_failure(
    cluster: LocalCluster, admin: Admin, topic: str
) -> None:
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for _ in range(30):
            producer.send(topic, value=b"x")
        producer.flush(timeout=30)
    group = f"g-{topic}"
    kafkas = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.kafka_bootstrap_servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    kafkas.subscribe([topic])
    messages = until(lambda: kafkas.consume(20, 10), within_s=60)
    kafkas.commit(message=messages[-1], asynchronous=False)
    kafkas.close()
    committed = messages[-1].offset() + 1

    def rows(name: str) -> Scrape | None:
        found = scrape(cluster.ps())
        return found if found.of(name, consumergroup=group, topic=topic, partition="0") else None

    until(lambda: rows("kafka_consumergroup_lag"))
    found = _fresh(cluster.ps())  # the rows may be of the time before the consumer left
    assert found.total("kafka_consumergroup_lag", consumergroup=group, topic=topic, partition="0") == 30 - committed
    assert found.total("kafka_consumergroup_members", consumergroup=group) == 0
    assert found.total("headrace_group_status", consumergroup=group, status="OK") == 1
    admin.delete_topics([topic])
    until(lambda: not [each for each in scrape(cluster.ps()).samples if each.labels.get("topic") == topic])
    admin.delete_groups([group])
    until(lambda: not [each for each in scrape(cluster.ps()).samples if each.labels.get("consumergroup") == group])


def test_the_strict_parser_of_openmetrics_accepts_the_text_and_no_row_is_there_twice(cluster: LocalCluster) -> None:
    nodes = cluster.ps()
    assert {each["role"] for each in nodes} == set(catalog.ALL), "a node of each role that the catalog knows"
    for node in nodes:
        families = [each.name for each in text_string_to_metric_families(text_of(node["metrics"], OPENMETRICS_TYPE))]
        assert len(families) == len(set(families)) > 10
        lines = Counter(line.rpartition(" ")[0] for line in text_of(node["metrics"]).splitlines() if line[0] != "#")
        assert not [line for line, count in lines.items() if count > 1], node["role"]
        for family in families:
            assert node["role"] in catalog.METRICS[family].roles, family
