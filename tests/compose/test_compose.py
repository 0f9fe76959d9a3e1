"""Tests what docs/compose.md promises, with the compose file on a real engine and a client on the host. The whole file
uses one stack, and its tests run in their order. `make test` does not include this file. `make compose-test` runs this
file, and needs a Docker engine with Compose v2, and the images (tools/compose_test.sh builds them).
"""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import Producer as KafkaProducer
from confluent_kafka.admin import AdminClient as KafkaAdmin

from headrace import Admin, Consumer, NewTopic, Producer, TopicPartition
from headrace.errors import HeadraceError, TopicAlreadyExistsError
from tests.compose.load import PARTITIONS, TOPIC, Load, check_nothing_lost, settings, stored
from tests.compose.stack import FIGURES, KAFKA_BOOTSTRAP, LIMIT_S, PROJECT, ROOT, Stack, docker, logs_of, note, until
from tools import dashboards

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("compose")]

IMAGE = "headrace/service"
SERVICE_IMAGE = f"{IMAGE}:{Stack.version}"
#: The tags of images that tests build; the end of the test run removes these images.
OTHER_TAGS: list[str] = []
ROLLED = ("controller", "broker", "coordinator", "edge")
REGISTRY_IMAGE = "headrace/registry"
SERVICE_IMAGE_BYTES_MAX = 200_000_000
#: What the registry's layer may add to the image of the other nodes.
REGISTRY_BYTES_MAX = 40_000_000
DEMO_RECORDS = 40_000
COUNTS = {"controller": 3, "broker": 3, "coordinator": 2, "registry": 1, "console": 1, "edge": 1}


def topic_exists() -> bool:
    """Create the first topic as soon as the cluster accepts the request."""
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
        for tag in OTHER_TAGS:
            docker("rmi", "-f", f"{IMAGE}:{tag}", f"{REGISTRY_IMAGE}:{tag}")


@pytest.fixture(scope="module")
def admin(stack: Stack) -> Iterator[Admin]:
    with Admin(settings()) as made:
        made.create_topics([NewTopic(TOPIC, partitions=PARTITIONS)])
        yield made


def all_in_sync(admin: Admin) -> bool:
    """The descriptions of all topics, including internal topics."""
    return all(len(each.isr) == 3 for topic in admin.describe_topics() for each in topic.partitions)


def replicas(admin: Admin, names: list[str] | None = None) -> set[int]:
    """The brokers with a replica of the given topics; without topics, of any topic."""
    return {broker for topic in admin.describe_topics(names) for each in topic.partitions for broker in each.replicas}


def leaders(admin: Admin, name: str) -> set[int]:
    return {each.leader for topic in admin.describe_topics([name]) for each in topic.partitions}


# -- the stack as it comes up ------------------------------------------------------------------------------------------


def test_the_service_image_is_small_and_runs_as_nobody_special(stack: Stack) -> None:
    size, user = docker("image", "inspect", "-f", "{{.Size}} {{.Config.User}}", SERVICE_IMAGE).split()
    note(service_image_mb=round(int(size) / 1e6, 1))
    assert int(size) <= SERVICE_IMAGE_BYTES_MAX
    larger = int(docker("image", "inspect", "-f", "{{.Size}}", f"{REGISTRY_IMAGE}:{Stack.version}"))
    note(registry_image_adds_mb=round((larger - int(size)) / 1e6, 1))
    assert larger - int(size) <= REGISTRY_BYTES_MAX
    assert user == "10001:10001"
    for name in stack.containers():
        assert docker("inspect", "-f", "{{.HostConfig.ReadonlyRootfs}}", name).strip() == "true", name


#: A node's spans go to a collector in the same container.
TRACE = """
import http.server, threading
from headrace_core.tracing.node import NodeTraces, TraceSettings

class Collector(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        print(self.path, self.headers["Content-Type"], b"span of the test" in self.rfile.read(
            int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()

server = http.server.HTTPServer(("127.0.0.1", 0), Collector)
threading.Thread(target=server.serve_forever, daemon=True).start()
traces = NodeTraces("broker", TraceSettings(f"http://127.0.0.1:{server.server_port}/v1/traces", {}, 10.0))
traces.start(1)
traces.begin("span of the test", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", {}).end()
traces.close()
"""


def test_the_service_image_exports_spans(stack: Stack) -> None:
    out = docker("run", "--rm", "--network=none", "--read-only", SERVICE_IMAGE, "python", "-c", TRACE)
    assert out.split() == ["/v1/traces", "application/x-protobuf", "True"]


def test_the_format_job_ended_and_the_others_serve(stack: Stack) -> None:
    states = stack.containers()
    assert states.pop(f"{PROJECT}-format-1") == "exited"
    assert sorted(states) == sorted(
        f"{PROJECT}-{service}-{number}" for service, count in COUNTS.items() for number in range(1, count + 1)
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


def test_the_job_of_the_profile_observe_writes_every_dashboard_for_grafana(stack: Stack) -> None:
    stack.compose("run", "--rm", "-T", "dashboards")
    image, volume = f"headrace/service:{stack.version}", f"{PROJECT}_dashboards"
    written = docker("run", "--rm", "-v", f"{volume}:/dashboards:ro", image, "ls", "/dashboards").split()
    assert sorted(written) == sorted(f"{board.name}.json" for board in dashboards.DASHBOARDS)


# -- Spark -------------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(900)
def test_the_demo_on_two_spark_workers_gives_the_numbers_of_what_was_published(stack: Stack, admin: Admin) -> None:
    began = time.monotonic()
    stack.up("--scale=spark-worker=2", profile="spark")
    note(spark_up_s=round(time.monotonic() - began, 1))
    began = time.monotonic()
    with stranger_is_refused(stack):
        output = stack.compose("run", "--rm", "-T", "-e", f"DEMO_RECORDS={DEMO_RECORDS}", "demo", limit_s=540)
    note(demo_s=round(time.monotonic() - began, 1))
    assert f"demo: ok: {DEMO_RECORDS:,} departures" in output, output
    assert "by 2 workers" in output, output
    # Do not rely on the demo's own report: read the demo's two topics on the host, and compute the sums by hour,
    # airport and carrier.
    wanted: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for _, value in stored("departures"):
        event = json.loads(value)
        if "marker" not in event:
            sums = wanted[f"{event['scheduled'][:13]}|{event['origin']}|{event['carrier']}"]
            sums[0] += 1
            sums[1] += event["departed"]
            sums[2] += event["delay_min"] or 0
    assert sum(each[0] for each in wanted.values()) == DEMO_RECORDS
    found = {}
    for key, value in stored("departures_by_hour"):
        row = json.loads(value)
        found[(key or b"").decode()] = [row["departures"], row["departed"], row.get("delay_min", 0)]
    assert found == dict(wanted)
    stack.compose("--profile", "spark", "rm", "--stop", "--force", "spark-worker", "spark-master")


@contextmanager
def stranger_is_refused(stack: Stack) -> Iterator[None]:
    """While Spark runs, a driver that does not know the secret of Spark's master asks for work, as another container
    would."""
    master, stranger = f"{PROJECT}-spark-master-1", f"{PROJECT}-stranger"
    secret = docker("exec", master, "stat", "-c", "%a %U", "/data/conf/spark-defaults.conf").split()
    assert secret == ["600", "headrace"]
    code = "from pyspark import SparkContext; SparkContext('spark://spark-master:7077', 'stranger')"
    stack.compose("run", "-d", "--name", stranger, "-e", "SPARK_CONF_DIR=/tmp", "demo", "python", "-c", code)
    try:
        yield
        until(lambda: "Expected SaslMessage" in logs_of(master), "the master refuses who does not know its secret")
        assert "Registering app stranger" not in logs_of(master)
    finally:
        docker("rm", "-f", stranger)


# -- Kafka Connect -----------------------------------------------------------------------------------------------------


def test_two_connect_workers_copy_the_lines_of_a_file_through_kafkas_protocol(stack: Stack, admin: Admin) -> None:
    began = time.monotonic()
    stack.up("--scale=connect=2", profile="connect")
    note(connect_up_s=round(time.monotonic() - began, 1))
    with urllib.request.urlopen("http://127.0.0.1:8083/health", timeout=30) as answer:  # of any worker
        assert json.load(answer)["status"] == "healthy"
    with urllib.request.urlopen("http://127.0.0.1:8083/connector-plugins", timeout=60) as answer:
        assert "io.debezium.connector.postgresql.PostgresConnector" in {each["class"] for each in json.load(answer)}
    admin.create_topics([NewTopic(f"lines-{number}", partitions=1) for number in (0, 1)])
    workers = [f"{PROJECT}-connect-{number}" for number in (1, 2)]
    for name in workers:  # either may get the task
        docker("exec", name, "sh", "-c", "seq 1000 >/tmp/lines.txt")
    for number, name in enumerate(workers):
        config = ("connector.class=FileStreamSource", f"topic=lines-{number}", "file=/tmp/lines.txt")
        flags = [word for each in config for word in ("-c", each)]
        # A worker that does not lead forwards the request, by the leader's host name.
        docker("exec", name, "headrace", "connectors", "create", f"lines-{number}", *flags, "--wait", "100s")
        until(lambda topic=f"lines-{number}": len(stored(topic)) >= 1_000, "the lines are in the topic")  # type: ignore[misc]
        assert [value for _, value in stored(f"lines-{number}")] == [b"%d" % line for line in range(1, 1_001)]
    listed = stack.headrace("connectors", "list", service="connect")
    assert [each["name"] for each in listed] == ["lines-0", "lines-1"]
    internal = ["connect-configs", "connect-offsets", "connect-status"]
    for topic in admin.describe_topics(internal):
        assert {len(each.replicas) for each in topic.partitions} == {3}, topic.name
    stack.compose("--profile", "connect", "rm", "--stop", "--force", "connect", "connect-edge")
    admin.delete_topics([*internal, "lines-0", "lines-1"])


# -- faults ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("service", "number"), [("broker", 2), ("controller", 1), ("coordinator", 1)])
def test_a_container_is_killed_and_nothing_acknowledged_is_lost(
    stack: Stack, admin: Admin, service: str, number: int
) -> None:
    with Load(f"kill-{service}") as load:
        stack.kill(service, number)
        load.goes_on()
        stack.start(service, number)
        stack.up()
    until(lambda: all_in_sync(admin), "what was missed is copied")
    check_nothing_lost(load)
    note(**load.figures(f"kill_{service}"))


def test_a_copied_volume_is_refused_while_the_first_lives(stack: Stack, admin: Admin) -> None:
    copy, volume = f"{PROJECT}-copy", f"{PROJECT}-copied"
    docker("volume", "create", volume)
    try:
        take = "cp -a /from/. /data/; cmp /from/slot-1/meta.properties /data/slot-1/meta.properties"
        mounts = ("-v", f"{PROJECT}_broker:/from:ro", "-v", f"{volume}:/data")
        docker("run", "--rm", "--network=none", *mounts, SERVICE_IMAGE, "sh", "-c", take)
        # Without slots.host the node takes the lowest free slot of its volume: the first slot, because no process holds
        # the lock of that slot.
        stack.compose("run", "-d", "--no-deps", "--name", copy, "-v", f"{volume}:/data", "-e", "HEADRACE_SLOTS_HOST=",
                      "broker")  # fmt: skip
        until(lambda: "broker id 1 is in use by a live broker" in logs_of(copy), "the copy is refused")
        with Load("copied") as load:
            load.goes_on()
        check_nothing_lost(load)
        assert {each.broker_id for each in admin.describe_cluster().brokers} == {1, 2, 3}
        assert 1 in leaders(admin, TOPIC), "the first one leads on"
    finally:
        docker("rm", "-f", copy)
        docker("volume", "rm", "-f", volume)


def another_image(tag: str, *changes: str) -> str:
    """Build the service's image with ``changes`` (lines of a Dockerfile), and return its id. The registry's image gets
    the tag too, unchanged, because one variable names the version of all images."""
    made = docker("create", SERVICE_IMAGE).strip()
    OTHER_TAGS.append(tag)
    docker("tag", f"{REGISTRY_IMAGE}:{Stack.version}", f"{REGISTRY_IMAGE}:{tag}")
    try:
        return docker("commit", *(word for each in changes for word in ("-c", each)), made, f"{IMAGE}:{tag}").strip()
    finally:
        docker("rm", made)


def images(stack: Stack) -> dict[str, str]:
    """The image's id of each node's container, and of the edge's."""
    names = [name for service in ROLLED for name in stack.containers(service)]
    return {name: docker("inspect", "-f", "{{.Image}}", name).strip() for name in names}


def test_a_new_image_is_rolled_out_one_by_one_with_the_lines_of_the_docs(stack: Stack, admin: Admin) -> None:
    page = (ROOT / "docs" / "compose.md").read_text(encoding="utf-8")
    (line,) = (each for each in page.splitlines() if each.startswith("HEADRACE_VERSION="))
    version = line.split()[0].removeprefix("HEADRACE_VERSION=")
    newer = another_image(version, "LABEL release=next")
    before = images(stack)
    with Load("rolled") as load:
        began = time.monotonic()
        stack.run(["bash", "-c", line])
        note(roll_of_all_s=round(time.monotonic() - began, 1))
    check_nothing_lost(load)
    note(**load.figures("roll_of_all"))
    assert newer not in before.values()
    assert images(stack) == dict.fromkeys(before, newer), "the same names, and none is left of the former"
    assert all_in_sync(admin)
    assert {each.port for each in admin.describe_cluster().brokers} == {9101, 9102, 9103}, "who they were"
    stack.version = version
    ids = {name: docker("inspect", "-f", "{{.Id}}", name) for name in before}
    stack.compose("up", "--wait", "--wait-timeout", "240")
    assert {name: docker("inspect", "-f", "{{.Id}}", name) for name in before} == ids, "compose has nothing to add"


def test_an_image_that_does_not_run_is_taken_back(stack: Stack, admin: Admin) -> None:
    another_image("broken", 'CMD ["false"]', 'ENTRYPOINT ["false"]')
    before = images(stack)
    roll = ["bash", "-c", f"HEADRACE_VERSION=broken {sys.executable} deploy/roll.py coordinator; test $? = 1"]
    stack.run(roll)
    assert images(stack) == before
    until(lambda: len(admin.describe_cluster().coordinators) == 2, "the former one serves again")


# -- scaling -----------------------------------------------------------------------------------------------------------


def test_three_coordinators_share_the_groups(stack: Stack, admin: Admin) -> None:
    groups = [f"group-{number}" for number in range(24)]
    for group in groups:
        admin.alter_group_offsets(group, {TopicPartition(TOPIC, 0): 1})

    def coordinators() -> set[int]:
        return {each.coordinator_id for each in admin.describe_groups(groups)}

    until(lambda: coordinators() == {1, 2}, "two coordinators share the groups")
    stack.scale(coordinator=3)
    until(lambda: coordinators() == {1, 2, 3}, "three coordinators share the groups")
    assert {each.port for each in admin.describe_cluster().coordinators} == {9201, 9202, 9203}
    stack.scale(coordinator=2)
    until(lambda: coordinators() == {1, 2}, "the two that are left take over")
    for group in groups:
        committed = admin.list_group_offsets(group)[TopicPartition(TOPIC, 0)]
        assert committed is not None
        assert committed.offset == 1, f"{group}: what it had committed is there"
    admin.delete_groups(groups)


def test_kafkas_clients_on_the_host_use_every_broker(admin: Admin) -> None:
    kafka = KafkaAdmin({"bootstrap.servers": KAFKA_BOOTSTRAP})

    def ports() -> set[int]:
        """The ports that a new client gets."""
        found = kafka.list_topics(timeout=30).brokers.values()
        assert {each.host for each in found} == {"127.0.0.1"}
        return {each.port for each in found}

    assert ports() == {9301, 9302, 9303}
    admin.create_topics([NewTopic("kafkas", partitions=PARTITIONS, replication_factor=3)])
    producer = KafkaProducer({"bootstrap.servers": KAFKA_BOOTSTRAP, "enable.idempotence": True})
    failed: list[object] = []
    for number in range(PARTITIONS):
        producer.produce("kafkas", b"hello", partition=number, on_delivery=lambda error, _: failed.append(error))
    assert producer.flush(LIMIT_S) == 0
    assert failed == [None] * PARTITIONS
    consumer = KafkaConsumer(
        {"bootstrap.servers": KAFKA_BOOTSTRAP, "group.id": "kafkas", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["kafkas"])
    seen: set[int] = set()

    def has_read_all() -> bool:
        seen.update(each.partition() for each in consumer.consume(100, 1.0) if each.error() is None)
        return len(seen) == PARTITIONS

    until(has_read_all, "a group of Kafka's protocol reads all partitions")
    consumer.close()
    admin.delete_topics(["kafkas"])
    admin.delete_groups(["kafkas"])


def test_one_registry_and_then_three_answer_on_the_host_and_keep_every_schema(stack: Stack) -> None:
    def call(method: str, path: str, body: object = None) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:8081{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/vnd.schemaregistry.v1+json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def register(number: int) -> int:
        schema = {"type": "record", "name": f"R{number}", "fields": [{"name": "f", "type": "int"}]}
        return int(call("POST", f"/subjects/compose-{number}/versions", {"schema": json.dumps(schema)})["id"])

    ids = [register(number) for number in range(5)]
    stack.scale(registry=3)
    ids += [register(number) for number in range(5, 20)]  # the edge connects each request to any replica
    assert len(set(ids)) == 20
    stack.kill("registry", 1)

    def registered() -> bool:
        try:
            ids.append(register(20))
        except OSError:  # the election of another writer takes a moment
            return False
        return True

    until(registered, "another replica writes")
    assert ids[-1] not in ids[:-1]
    stack.scale(registry=3)
    until(lambda: len(call("GET", "/subjects?subjectPrefix=compose-")) == 21, "all schemas are there")
    stack.scale(registry=1)


def test_a_fourth_controller_follows_then_votes_and_goes_again(stack: Stack, admin: Admin) -> None:
    def voters() -> set[int]:
        return {each["id"] for each in stack.headrace("quorum", "status")["voters"]}

    def observers() -> set[int]:
        return {each["id"] for each in stack.headrace("quorum", "status")["observers"]}

    assert voters() == {1, 2, 3}
    stack.scale(controller=4)
    until(lambda: 4 in observers(), "the fourth follows")
    assert voters() == {1, 2, 3}, "it has no vote before somebody gives it one"
    stack.headrace("quorum", "add", "--node-id", "4")
    assert voters() == {1, 2, 3, 4}
    stack.headrace("quorum", "remove", "4")
    stack.scale(controller=3)
    assert voters() == {1, 2, 3}


def scale_to_five(stack: Stack, admin: Admin) -> None:
    stack.scale(broker=5)
    until(lambda: {4, 5} <= replicas(admin, [TOPIC]), "new brokers get replicas")
    until(lambda: not admin.list_partition_reassignments() and all_in_sync(admin), "the moves end")


def write_wide(admin: Admin) -> None:
    """A record in each partition of a new topic that all five brokers lead."""
    admin.create_topics([NewTopic("wide", partitions=10)])
    until(lambda: leaders(admin, "wide") == {1, 2, 3, 4, 5}, "a new topic is led by all five")
    with Producer(settings(acks="all")) as producer:  # through the edge to each of them
        futures = [producer.send("wide", value=b"%d" % number, partition=number) for number in range(10)]
        assert [future.result(timeout=LIMIT_S).partition for future in futures] == list(range(10))


def have_five(stack: Stack, admin: Admin) -> None:
    """The state after the next test. A late CI may not have run it."""
    if len(admin.describe_cluster().brokers) < 5:
        scale_to_five(stack, admin)
    if "wide" not in admin.list_topics():
        write_wide(admin)


def test_more_brokers_get_their_share_while_records_flow(stack: Stack, admin: Admin) -> None:
    with Load("scale") as load:
        began = time.monotonic()
        scale_to_five(stack, admin)
        note(scale_to_5_spread_s=round(time.monotonic() - began, 1))
    check_nothing_lost(load)
    note(**load.figures("scale_to_5"))
    assert {each.port for each in admin.describe_cluster().brokers} == {9101, 9102, 9103, 9104, 9105}
    write_wide(admin)


def test_scaled_in_undrained_and_out_again_the_data_is_back(stack: Stack, admin: Admin) -> None:
    have_five(stack, admin)
    with Load("undrained") as load:
        stack.scale(broker=3)
        assert {4, 5} <= replicas(admin), "nobody has moved what they have"
        until(lambda: leaders(admin, TOPIC) <= {1, 2, 3}, "those that stay lead everything")
        load.goes_on(100)  # partitions with two in-sync replicas left; records of the other partitions wait
        assert len(stored("wide")) == 10, "all can be read"
        stack.scale(broker=5)
        until(lambda: all_in_sync(admin), "they are in sync again")
    check_nothing_lost(load)


def test_drained_brokers_are_scaled_in_and_nothing_is_missing(stack: Stack, admin: Admin) -> None:
    have_five(stack, admin)
    with Load("drained") as load:
        began = time.monotonic()
        stack.headrace("cluster", "drain", "4", "5", "--wait")
        note(drain_2_of_5_s=round(time.monotonic() - began, 1))
        assert replicas(admin) == {1, 2, 3}
        stack.scale(broker=3)
        assert all_in_sync(admin), "not one partition is under-replicated"
        for broker in ("4", "5"):
            stack.headrace("brokers", "unregister", broker, "--wait", "60")
        load.goes_on()
    check_nothing_lost(load)
    note(**load.figures("drained_scale_in"))
    # The rule group-storm names the scaled registries of an earlier test for a minute.
    until(lambda: stack.findings() == [], "the doctor has nothing to say")


# -- the end -----------------------------------------------------------------------------------------------------------


def test_down_with_volumes_leaves_nothing(stack: Stack) -> None:
    stack.down()
    label = f"label=com.docker.compose.project={PROJECT}"
    assert docker("ps", "-aq", "--filter", label) == ""
    assert docker("volume", "ls", "-q", "--filter", label) == ""
    assert docker("network", "ls", "-q", "--filter", label) == ""
