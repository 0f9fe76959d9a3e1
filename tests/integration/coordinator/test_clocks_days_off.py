"""Real nodes whose wall clock is a day off, one role at a time, in both directions (observed_faults.c sets the clock):
topics, transactions and groups go on."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace import Admin, Consumer, NewTopic, Producer, TopicPartition
from headrace.errors import InvalidTimestampError, NetworkError
from headrace.transaction_models import TransactionDescription
from headrace_tools.local import LocalCluster
from tests.worlds.waiting import until

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")

ROOT = Path(__file__).resolve().parents[3]
DAY_S = 86_400
NO_BOUND = {"message.timestamp.after.max.ms": str(2**63 - 1)}
NODES = (("controller", 1), ("broker", 1), ("coordinator", 1), ("coordinator", 2))
_numbers = itertools.count()


class Nodes:
    def __init__(self, cluster: LocalCluster, faults: Path, library: Path) -> None:
        self.cluster, self._faults, self._library = cluster, faults, library
        self.bootstrap = cluster.bootstrap_servers

    def of(self, role: str, number: int) -> Path:
        return self._faults / f"{role}-{number}"

    def restart(self, role: str, number: int) -> None:
        """Start a node with a clock that can be set."""
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("LD_PRELOAD", str(self._library))
            environment.setenv("OBSERVED_FAULTS", str(self.of(role, number)))
            self.cluster.restart(role, number)

    @contextlib.contextmanager
    def clock(self, role: str, number: int, ahead_s: int) -> Iterator[None]:
        """A block in which the clock of a node is ahead."""
        path = self.of(role, number) / "clock"
        path.write_text(str(ahead_s))
        try:
            self._wait(role, number, ahead_s)
            yield
        finally:
            path.unlink()
        self._wait(role, number, 0)

    def _wait(self, role: str, number: int, ahead_s: int) -> None:
        (address,) = [each["address"] for each in self.cluster.ps() if (each["role"], each["id"]) == (role, number)]

        def is_set() -> bool:
            with contextlib.suppress(NetworkError):  # of a connection to a node that was killed
                return abs(admin.describe_node(address).clock_ahead_ms / 1_000 - ahead_s) < 60
            return False

        with Admin(bootstrap_servers=self.bootstrap) as admin:
            until(is_set, f"the clock of {role} {number}")

    def topic(self, configs: dict[str, str] | None = None) -> str:
        name = f"t{next(_numbers)}"
        with Admin(bootstrap_servers=self.bootstrap) as admin:
            admin.create_topics([NewTopic(name, partitions=1, replication_factor=1, config=configs or {})])
        return name


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    directory = tmp_path_factory.mktemp("clocks")
    library, source = directory / "faults.so", ROOT / "tests" / "system" / "observed_faults.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(source), "-ldl"], check=True)
    with LocalCluster(brokers=1, controllers=1, coordinators=2, data=directory / "cluster") as cluster:
        made = Nodes(cluster, directory, library)
        for role, number in NODES:
            made.of(role, number).mkdir()
            made.restart(role, number)
        yield made


def committed_in_a_group(nodes: Nodes, topic: str, values: list[bytes]) -> None:
    """A new group reads the values with read_committed, and its commit is there for the next member."""
    group, first = f"g-{topic}-{next(_numbers)}", TopicPartition(topic, 0)
    settings = {"bootstrap_servers": nodes.bootstrap, "group_id": group, "isolation_level": "read_committed"}
    with Consumer(**settings, auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
        consumer.subscribe([topic])
        found: list[bytes | None] = []
        until(lambda: found.extend(each.value for each in consumer.poll(0.5)) or len(found) >= len(values))
        assert found == values
        consumer.commit()
        (offset,) = consumer.committed([first]).values()
        assert offset is not None


def transact(nodes: Nodes, topic: str, value: bytes) -> None:
    with Producer(bootstrap_servers=nodes.bootstrap, transactional_id=f"id-{next(_numbers)}") as producer:
        with producer.transaction():
            producer.send(topic, value)
        producer.begin_transaction()
        producer.send(topic, b"aborted")
        producer.abort_transaction()


@pytest.mark.parametrize("ahead_s", [DAY_S, -DAY_S], ids=["ahead", "behind"])
@pytest.mark.parametrize("role", ["controller", "broker", "coordinator"])
def test_a_role_that_is_a_day_off_stops_nothing(nodes: Nodes, role: str, ahead_s: int) -> None:
    with contextlib.ExitStack() as wrong:
        for each, number in NODES:
            if each == role:
                wrong.enter_context(nodes.clock(role, number, ahead_s))
        topic = nodes.topic(NO_BOUND)
        transact(nodes, topic, b"a")
        committed_in_a_group(nodes, topic, [b"a"])
    transact(nodes, topic, b"b")
    committed_in_a_group(nodes, topic, [b"a", b"b"])


def test_a_broker_that_is_a_day_behind_refuses_the_timestamps_of_clients_as_kafka_does(nodes: Nodes) -> None:
    topic = nodes.topic()
    with Producer(bootstrap_servers=nodes.bootstrap) as producer:
        with nodes.clock("broker", 1, -DAY_S), pytest.raises(InvalidTimestampError):
            producer.send(topic, b"a").result(30)
        producer.send(topic, b"a").result(30)


@pytest.mark.parametrize("ahead_s", [DAY_S, -DAY_S], ids=["ahead", "behind"])
@pytest.mark.parametrize("is_new_owner", [True, False], ids=["the new owner", "the former owner"])
def test_an_open_transaction_survives_that_a_coordinator_with_another_time_takes_over(
    nodes: Nodes, ahead_s: int, is_new_owner: bool
) -> None:
    topic, name = nodes.topic(NO_BOUND), f"open-{os.getpid()}-{next(_numbers)}"

    def described() -> TransactionDescription:
        (found,) = admin.describe_transactions([name])
        return found

    with (
        Admin(bootstrap_servers=nodes.bootstrap) as admin,
        Producer(bootstrap_servers=nodes.bootstrap, transactional_id=name, transaction_timeout_ms=60_000) as producer,
    ):
        producer.begin_transaction()
        producer.abort_transaction()
        owner = described().coordinator_id
        other = 3 - owner
        with nodes.clock("coordinator", other if is_new_owner else owner, ahead_s):
            producer.begin_transaction()
            producer.send(topic, b"a").result(30)
            nodes.cluster.kill("coordinator", owner)
            try:
                until(lambda: described().coordinator_id == other)
                assert described().state == "ongoing"
                producer.send(topic, b"b").result(30)
                producer.commit_transaction()
            finally:
                nodes.restart("coordinator", owner)
    committed_in_a_group(nodes, topic, [b"a", b"b"])
