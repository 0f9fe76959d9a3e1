"""Quotas on a real cluster: what a limited client gets, and that its neighbour notices nothing."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pyarrow as pa
import pytest

from headrace import (
    Admin,
    Consumer,
    LocalCluster,
    NewTopic,
    Producer,
    QuotaEntity,
    QuotaName,
    TopicPartition,
)
from headrace.errors import InvalidArgumentError, InvalidRequestError, ThrottlingQuotaExceededError
from headrace_protos.v1 import admin_pb2, admin_pb2_grpc
from tests.worlds.readers import Neighbour
from tests.worlds.waiting import check_took

RATE = 5_000_000
VALUE = bytes(10_000)
TABLE_ROWS = 50
SLOW = QuotaEntity(client_id="slow")
#: The longest measurement, in seconds.
LONG_S = 30.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1) as running:  # each broker counts for itself
        yield running


@pytest.fixture(scope="module")
def admin(cluster: LocalCluster) -> Iterator[Admin]:
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as client:
        client.create_topics(["measured", "beside"])
        client.alter_client_quotas({SLOW: {"producer_byte_rate": RATE, "consumer_byte_rate": RATE}})
        yield client


def test_quotas_are_set_listed_and_removed(admin: Admin) -> None:
    alice, both = QuotaEntity(user="alice"), QuotaEntity(user="alice", client_id=QuotaName.DEFAULT)
    admin.alter_client_quotas({alice: {"producer_byte_rate": 1000, "request_percentage": 12.5}, both: {}})
    admin.alter_client_quotas({both: {"consumer_byte_rate": 10}, QuotaEntity(ip="::ffff:10.0.0.1"): {}})
    admin.alter_client_quotas({alice: {"producer_byte_rate": 9}}, validate_only=True)
    values = {"producer_byte_rate": 1000.0, "request_percentage": 12.5}
    assert admin.describe_client_quotas(user="alice", strict=True) == {alice: values}
    assert admin.describe_client_quotas(user=QuotaName.ANY) == {alice: values, both: {"consumer_byte_rate": 10.0}}
    assert admin.describe_client_quotas(client_id=QuotaName.DEFAULT) == {both: {"consumer_byte_rate": 10.0}}
    assert admin.describe_client_quotas(ip=QuotaName.ANY) == {}
    admin.alter_client_quotas({alice: dict.fromkeys(values), both: {"consumer_byte_rate": None}})
    assert admin.describe_client_quotas(user=QuotaName.ANY) == {}
    assert SLOW in admin.describe_client_quotas()


def test_impossible_quotas_are_refused_one_by_one(admin: Admin) -> None:
    with pytest.raises(InvalidRequestError, match="must be above 0"):
        admin.alter_client_quotas(
            {QuotaEntity(user="bob"): {"producer_byte_rate": 0}, QuotaEntity(user="eve"): {"producer_byte_rate": 5}}
        )
    assert list(admin.describe_client_quotas(user=QuotaName.ANY)) == [QuotaEntity(user="eve")]
    admin.alter_client_quotas({QuotaEntity(user="eve"): {"producer_byte_rate": None}})
    with pytest.raises(InvalidRequestError, match="is not an IP address"):
        admin.alter_client_quotas({QuotaEntity(ip="localhost"): {"connection_creation_rate": 5}})
    with pytest.raises(InvalidArgumentError, match="ANY is only for filters"):
        admin.alter_client_quotas({QuotaEntity(user=QuotaName.ANY): {"producer_byte_rate": 5}})
    with pytest.raises(InvalidArgumentError, match="must be a number"):
        admin.alter_client_quotas({QuotaEntity(user="bob"): {"producer_byte_rate": "5"}})  # type: ignore[dict-item]


def test_topics_over_the_quota_of_mutations_are_refused(cluster: LocalCluster, admin: Admin) -> None:
    admin.alter_client_quotas({QuotaEntity(client_id="mutator"): {"controller_mutation_rate": 1}})
    with Admin(bootstrap_servers=cluster.bootstrap_servers.split(",")[0], client_id="mutator") as mutator:
        mutator.create_topics([NewTopic("many", partitions=30)])
        with pytest.raises(
            ThrottlingQuotaExceededError, match="exceeded its controller_mutation_rate of 1 partitions/s"
        ):
            mutator.create_topics(["one-more"])
        admin.create_topics(["one-more"])
        admin.alter_client_quotas({QuotaEntity(client_id="mutator"): {"controller_mutation_rate": None}})
        mutator.delete_topics(["many", "one-more"])


def test_controllers_apply_the_burst_of_their_configuration() -> None:
    """With quota.window.num=2 an idle client may create two partitions at a rate of one a second, and not eleven."""
    config = {"quota.window.num": "2"}
    with LocalCluster(brokers=1, controllers=1, mode="inprocess", config=config) as cluster:
        with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            admin.alter_client_quotas({QuotaEntity(client_id="mutator"): {"controller_mutation_rate": 1}})
        (state,) = cluster.directory.glob("controller-*/node.json")
        controller = json.loads(state.read_text())["listeners"]["client"]
        with grpc.insecure_channel(controller) as channel:

            def create(name: str) -> str:
                request = admin_pb2.CreateTopicsRequest()
                # A debt of seven seconds: the second request is refused, however late it comes.
                request.topics.add(name=name, partitions=9, replication_factor=1)
                metadata = [("headrace-client-id", "mutator")]
                answer = admin_pb2_grpc.AdminStub(channel).CreateTopics(request, metadata=metadata, timeout=30)  # type: ignore[no-untyped-call]
                return str(answer.results[0].error.message)

            assert create("a") == ""
            assert "exceeded its controller_mutation_rate" in create("b")


def send_record(producer: Producer) -> Any:
    return producer.send("measured", VALUE)


def send_table(producer: Producer) -> Any:
    """The rows of a table as one future."""
    return producer.send_arrow("measured", pa.table({"value": [VALUE] * TABLE_ROWS}))


class Measurement:
    """How long a rate is measured. A pause of the machine changes the average of a few seconds. So the measurement goes
    on, for up to LONG_S, until the average is near the quota and stays there for two seconds: a wrong rate after a
    burst only passes by."""

    def __init__(self, began_s: float, seconds: float) -> None:
        self.began_s, self.seconds = began_s, seconds
        self.near_since_s: float | None = None

    def goes_on(self, rate: float) -> bool:
        now_s = time.monotonic()
        if rate != pytest.approx(RATE, rel=0.1):
            self.near_since_s = None
        elif self.near_since_s is None:
            self.near_since_s = now_s
        is_near = self.near_since_s is not None and now_s - self.near_since_s >= 2.0
        measured_s = now_s - self.began_s
        return measured_s < self.seconds or (measured_s < LONG_S and not is_near)


def produced_per_s(
    cluster: LocalCluster, send: Callable[[Producer], Any], size: int, warm_s: float, seconds: float
) -> float:
    """Produce ``size`` bytes again and again, as fast as the client accepts them; return the acknowledged bytes per
    second after ``warm_s``, measured for ``seconds``, or longer (``Measurement``)."""
    acknowledged = 0

    def count(_: object) -> None:
        nonlocal acknowledged
        acknowledged += size

    server = cluster.bootstrap_servers
    with Producer(bootstrap_servers=server, client_id="slow", buffer_memory=16 << 20) as slow:
        began = time.monotonic()
        base, at_start = 0, began
        measurement = Measurement(began + warm_s, seconds)
        while measurement.goes_on(rate := (acknowledged - base) / (time.monotonic() - at_start + 1e-9)):
            if at_start == began and time.monotonic() >= began + warm_s > began:
                at_start, base = time.monotonic(), acknowledged
            send(slow).add_done_callback(count)
        assert slow.metrics()["produce-throttle-time-max"] > 0
    return rate


def consumed_per_s(cluster: LocalCluster, warm_s: float, seconds: float) -> float:
    with Consumer(
        bootstrap_servers=cluster.bootstrap_servers, client_id="slow", auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign([TopicPartition("measured", 0)])
        began = time.monotonic()
        got, base, at_start = 0, 0, began
        measurement = Measurement(began + warm_s, seconds)
        while measurement.goes_on(rate := (got - base) / (time.monotonic() - at_start + 1e-9)):
            if at_start == began and time.monotonic() >= began + warm_s > began:
                at_start, base = time.monotonic(), got
            got += sum(len(record.value or b"") for record in consumer.poll(0.1))
        assert consumer.metrics()["fetch-throttle-time-max"] > 0
    return rate


def test_a_producer_and_a_consumer_get_their_rate_and_a_neighbour_never_waits(
    cluster: LocalCluster, admin: Admin
) -> None:
    with Neighbour(cluster) as neighbour:
        assert produced_per_s(cluster, send_record, len(VALUE), 1.5, 2.5) == pytest.approx(RATE, rel=0.15)
    assert neighbour.throttled_ms == 0
    check_took(neighbour.latency_s(0.5), 0.2, "a throttle of 1 MB is 0.2 s")
    assert consumed_per_s(cluster, 1.5, 2.0) == pytest.approx(RATE, rel=0.15)


@pytest.mark.long
@pytest.mark.timeout(240)
def test_over_thirty_seconds_the_rate_is_exact_within_a_tenth(cluster: LocalCluster, admin: Admin) -> None:
    """With the burst of the first second."""
    records = produced_per_s(cluster, send_record, len(VALUE), 0.0, LONG_S)
    tables = produced_per_s(cluster, send_table, TABLE_ROWS * len(VALUE), 0.0, LONG_S)
    fetched = consumed_per_s(cluster, 0.0, LONG_S)
    print(f"records {records / 1e6:.2f} MB/s, tables {tables / 1e6:.2f} MB/s, fetched {fetched / 1e6:.2f} MB/s")
    assert [records, tables, fetched] == [pytest.approx(RATE, rel=0.1)] * 3
