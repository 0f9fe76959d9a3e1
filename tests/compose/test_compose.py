"""The compose file on a real engine: a client on the host reaches every broker, faults lose nothing, scaling spreads.

One stack for the whole file, the tests in their order. Not part of `make test`: `make compose-test` runs it, and needs
a Docker engine with Compose v2, and the images (tools/compose_test.sh builds them).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from stack import BOOTSTRAP, LIMIT_S, PROJECT, ROOT, Stack, docker, until

from headrace import Admin, Consumer, NewTopic, Producer, TopicPartition
from headrace.errors import HeadraceError, TopicAlreadyExistsError

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600), pytest.mark.xdist_group("compose")]

TOPIC = "orders"
PARTITIONS = 12
FIGURES = ROOT / "build" / "compose" / "figures.json"
SERVICE_IMAGE_BYTES_MAX = 200_000_000


def settings(**more: Any) -> dict[str, Any]:
    return {"bootstrap.servers": BOOTSTRAP, **{key.replace("_", "."): value for key, value in more.items()}}


def note(**figures: float) -> None:
    """Keep what was measured; shown at the end of the run."""
    FIGURES.parent.mkdir(parents=True, exist_ok=True)
    known = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    FIGURES.write_text(json.dumps(known | figures, indent=1, sort_keys=True) + "\n")


def topic_exists() -> bool:
    """Make the first topic, as soon as the cluster lets us."""
    try:
        with Admin(settings()) as admin:
            admin.create_topics([NewTopic("first", partitions=1)])
    except TopicAlreadyExistsError:
        return True
    except HeadraceError:
        return False
    return True


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    made = Stack()
    made.down()
    FIGURES.unlink(missing_ok=True)
    try:
        began = time.monotonic()
        made.compose("up", "-d")
        note(up_returned_s=round(time.monotonic() - began, 1))
        until(topic_exists, "three brokers live, and a topic with three replicas can be made")
        with Producer(settings(acks="all")) as producer:
            producer.send("first", value=b"record").result(timeout=LIMIT_S)
        note(first_acknowledged_record_s=round(time.monotonic() - began, 1))
        made.up()
        note(up_wait_s=round(time.monotonic() - began, 1))
        yield made
    finally:
        made.down()


@pytest.fixture(scope="module")
def admin(stack: Stack) -> Iterator[Admin]:
    with Admin(settings()) as made:
        made.create_topics([NewTopic(TOPIC, partitions=PARTITIONS)])
        yield made


class Load:
    """Numbered records to all partitions, one outcome each, until it is ended; in a thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._ending = threading.Event()
        self._outcomes: list[tuple[bytes, Future[Any], float]] = []
        self.latencies_ms: list[float] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Load:
        self._thread.start()
        until(lambda: len(self.latencies_ms) > 50, "records of the load are acknowledged")
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    @property
    def acknowledged(self) -> int:
        return len(self.latencies_ms)

    def _run(self) -> None:
        with Producer(settings(acks="all", linger_ms=5, delivery_timeout_ms=110_000)) as producer:
            number = 0
            while not self._ending.wait(0.002):
                value = f"{self._name}-{number}".encode()
                sent = time.monotonic()
                future = producer.send(TOPIC, value=value, partition=number % PARTITIONS)
                future.add_done_callback(
                    lambda done, sent=sent: self.latencies_ms.append((time.monotonic() - sent) * 1e3)
                )
                self._outcomes.append((value, future, sent))
                number += 1
            producer.flush(timeout=LIMIT_S)

    def values(self) -> set[bytes]:
        """What was acknowledged; raises what a record failed with: nothing may fail."""
        for _, future, _ in self._outcomes:
            future.result(timeout=LIMIT_S)
        return {value for value, _, _ in self._outcomes}

    def percentiles(self) -> dict[str, float]:
        ordered = sorted(self.latencies_ms)
        return {
            "p50_ms": round(ordered[len(ordered) // 2], 1),
            "p999_ms": round(ordered[int(len(ordered) * 0.999)], 1),
            "max_ms": round(ordered[-1], 1),
            "records": len(ordered),
        }


def stored() -> list[bytes]:
    """Every value of the topic, from the host, read to the end that it has now."""
    partitions = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
    values: list[bytes] = []
    with Consumer(settings(auto_offset_reset="earliest")) as consumer:
        ends = consumer.end_offsets(partitions)
        consumer.assign(partitions)
        deadline = time.monotonic() + LIMIT_S
        while any(consumer.position(partition) < ends[partition] for partition in partitions):
            assert time.monotonic() < deadline, "the topic is read to its end"
            values += [record.value for record in consumer.poll(timeout=1.0) if record.value is not None]
    return values


def check_nothing_lost(load: Load) -> None:
    acknowledged, found = load.values(), stored()
    assert len(acknowledged) > 100
    assert acknowledged - set(found) == set(), "acknowledged, and lost"
    assert len(found) == len(set(found)), "written twice"


def all_in_sync(admin: Admin) -> bool:
    return all(len(each.isr) == 3 for topic in admin.describe_topics([TOPIC]) for each in topic.partitions)


# -- the stack as it comes up ------------------------------------------------------------------------------------------


def test_the_service_image_is_small_and_runs_as_nobody_special(stack: Stack) -> None:
    size, user = docker("image", "inspect", "-f", "{{.Size}} {{.Config.User}}", "headrace/service:0.1.0").split()
    note(service_image_mb=round(int(size) / 1e6, 1))
    assert int(size) <= SERVICE_IMAGE_BYTES_MAX
    assert user == "10001:10001"
    for name in stack.containers():
        assert docker("inspect", "-f", "{{.HostConfig.ReadonlyRootfs}}", name).strip() == "true", name


def test_the_format_job_ended_and_the_others_serve(stack: Stack) -> None:
    states = stack.containers()
    assert states.pop(f"{PROJECT}-format-1") == "exited"
    assert sorted(states) == sorted(
        f"{PROJECT}-{service}-{number}"
        for service, count in (("controller", 3), ("broker", 3), ("coordinator", 2), ("edge", 1))
        for number in range(1, count + 1)
    )
    assert set(states.values()) == {"running"}


def test_a_client_on_the_host_reaches_every_broker_by_the_port_of_its_slot(stack: Stack, admin: Admin) -> None:
    cluster = admin.describe_cluster()
    assert {each.broker_id: (each.host, each.port) for each in cluster.brokers} == {
        number: ("127.0.0.1", 9100 + number) for number in (1, 2, 3)
    }
    assert {each.coordinator_id: (each.host, each.port) for each in cluster.coordinators} == {
        number: ("127.0.0.1", 9200 + number) for number in (1, 2)
    }
    (topic,) = admin.describe_topics([TOPIC])
    assert {each.leader for each in topic.partitions} == {1, 2, 3}
    with Producer(settings(acks="all")) as producer:
        futures = [producer.send(TOPIC, value=b"hello", partition=number) for number in range(PARTITIONS)]
        assert {future.result(timeout=LIMIT_S).partition for future in futures} == set(range(PARTITIONS))
    with Consumer(settings(group_id="greeters", auto_offset_reset="earliest")) as consumer:
        consumer.subscribe([TOPIC])
        seen: set[int] = set()
        until(
            lambda: bool(seen.update(each.partition for each in consumer.poll(timeout=1.0)) or len(seen) == PARTITIONS),
            "the group reads all partitions",
        )
        consumer.commit()
    admin.delete_records({TopicPartition(TOPIC, number): -1 for number in range(PARTITIONS)})


def test_in_a_container_the_command_line_needs_no_flags(stack: Stack, admin: Admin) -> None:
    brokers = stack.headrace("brokers", "list")
    assert TOPIC in json.dumps(stack.headrace("topics", "list"))
    assert f"{PROJECT}-broker-1.{PROJECT}-client" in json.dumps(brokers), "inside, brokers have inner addresses"


def test_a_slot_is_a_containers_number_and_keeps_its_identity(stack: Stack) -> None:
    def meta(number: int) -> str:
        return docker("exec", f"{PROJECT}-broker-{number}", "cat", f"/data/slot-{number}/meta.properties")

    before = [meta(number) for number in (1, 2, 3)]
    assert [f"node.id={number}" in text for number, text in zip((1, 2, 3), before, strict=True)] == [True] * 3
    assert len(set(before)) == 3


# -- faults ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("service", "number"), [("broker", 2), ("controller", 1), ("coordinator", 1)])
def test_a_container_is_killed_and_nothing_acknowledged_is_lost(
    stack: Stack, admin: Admin, service: str, number: int
) -> None:
    with Load(f"kill-{service}") as load:
        stack.kill(service, number)
        before = load.acknowledged
        until(lambda: load.acknowledged > before + 200, "writing goes on without it")
        stack.start(service, number)
        stack.up()
    until(lambda: all_in_sync(admin), "what was missed is copied")
    check_nothing_lost(load)
    note(**{f"kill_{service}_{key}": value for key, value in load.percentiles().items()})


# -- scaling -----------------------------------------------------------------------------------------------------------


def test_more_brokers_get_their_share_while_records_flow(stack: Stack, admin: Admin) -> None:
    def leaders(name: str) -> set[int]:
        return {each.leader for topic in admin.describe_topics([name]) for each in topic.partitions}

    def replicas() -> set[int]:
        return {
            broker for topic in admin.describe_topics([TOPIC]) for each in topic.partitions for broker in each.replicas
        }

    with Load("scale") as load:
        began = time.monotonic()
        stack.up("--scale", "broker=5", "--no-recreate")
        until(lambda: {4, 5} <= replicas(), "new brokers get replicas")
        until(lambda: not admin.list_partition_reassignments() and all_in_sync(admin), "the moves end")
        note(scale_to_5_spread_s=round(time.monotonic() - began, 1))
    check_nothing_lost(load)
    note(**{f"scale_to_5_{key}": value for key, value in load.percentiles().items()})
    assert {each.port for each in admin.describe_cluster().brokers} == {9101, 9102, 9103, 9104, 9105}
    admin.create_topics([NewTopic("wide", partitions=10)])
    until(lambda: leaders("wide") == {1, 2, 3, 4, 5}, "a new topic is led by all five")
    with Producer(settings(acks="all")) as producer:  # through the edge to each of them
        futures = [producer.send("wide", value=b"%d" % number, partition=number) for number in range(10)]
        assert [future.result(timeout=LIMIT_S).partition for future in futures] == list(range(10))


# -- the end -----------------------------------------------------------------------------------------------------------


def test_down_with_volumes_leaves_nothing(stack: Stack) -> None:
    stack.down()
    label = f"label=com.docker.compose.project={PROJECT}"
    assert docker("ps", "-aq", "--filter", label) == ""
    assert docker("volume", "ls", "-q", "--filter", label) == ""
    assert docker("network", "ls", "-q", "--filter", label) == ""
