"""Answers to Fetch: which partitions they name, and the offsets of partitions for whose records they have no room."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

import pytest

from headrace import Admin, LocalCluster, NewTopic
from headrace_core.errors import OffsetOutOfRangeError
from headrace_core.records import encode_batch, iterate_headers
from headrace_kafka.wire.apis import Api
from headrace_kafka.wire.schema import Message
from tests.worlds.kafka_protocol import KafkaWire

PARTITIONS, BATCHES = 3, 4
MANY = 9  #: Partitions of a topic that needs several requests to its broker.


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with LocalCluster(brokers=1, controllers=1, coordinators=0, kafka=True, mode="inprocess") as cluster:
        with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            kept = {"retention.ms": "-1"}
            admin.create_topics([NewTopic("orders", PARTITIONS, config=kept), NewTopic("many", MANY, config=kept)])
        with KafkaWire(cluster.kafka_bootstrap_servers) as wire:
            for _ in range(BATCHES):
                batch = encode_batch([(1_700_000_000_000, b"key", b"x" * 1_000, ())])
                topics = [
                    {"name": name, "partition_data": [{"index": each, "records": batch} for each in range(count)]}
                    for name, count in (("orders", PARTITIONS), ("many", MANY))
                ]
                wire.ask(Api.PRODUCE, 9, acks=-1, timeout=10_000, topic_data=topics)
        yield cluster.kafka_bootstrap_servers


@pytest.mark.parametrize("version", [4, 12, 18])
def test_each_partition_has_its_offsets_although_the_answer_has_room_for_one(address: str, version: int) -> None:
    with KafkaWire(address) as wire:
        partitions = fetch(wire, version, 0)
        assert [each.high_watermark for each in partitions] == [BATCHES] * PARTITIONS
        assert [each.last_stable_offset for each in partitions] == [BATCHES] * PARTITIONS
        assert [len(each.records) > 0 for each in partitions].count(True) == 1
        if version >= 5:
            assert [each.log_start_offset for each in partitions] == [0] * PARTITIONS


def test_a_seek_keeps_the_offsets_of_a_partition(address: str) -> None:
    with KafkaWire(address) as wire:
        for offset in (0, 2, 1, 3, 0):
            assert [each.high_watermark for each in fetch(wire, 12, offset)] == [BATCHES] * PARTITIONS


@pytest.fixture
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request to a broker names two partitions at most, instead of 2,000."""
    monkeypatch.setattr("headrace_kafka.fetch_path.PARTITIONS_MAX", 2)


@pytest.mark.usefixtures("few_at_once")
@pytest.mark.parametrize("version", [4, 12, 18])
@pytest.mark.parametrize("session_epoch", [-1, 0])
def test_a_full_answer_names_all_partitions_of_a_request_that_the_broker_gets_in_parts(
    address: str, version: int, session_epoch: int
) -> None:
    with KafkaWire(address) as wire:
        for max_bytes in (1, 1 << 20):
            reader = Reader(wire, version)
            answer = reader.fetch(dict.fromkeys(range(MANY), 0), session_epoch, max_bytes=max_bytes)
            assert sorted(answer) == list(range(MANY))
            assert {each.high_watermark for each in answer.values()} == {BATCHES}
        assert all(answer[index].records for index in range(MANY))


@pytest.mark.usefixtures("few_at_once")
def test_a_request_in_parts_waits_for_records_only_once(address: str) -> None:
    with KafkaWire(address) as wire:
        reader = Reader(wire, 12)
        at_end = dict.fromkeys(range(MANY), BATCHES)
        assert sorted(reader.fetch(at_end, 0, max_wait=200, min_bytes=1)) == list(range(MANY))
        assert reader.fetch({}, 1, max_wait=1, min_bytes=1) == {}
    for wrong in (BATCHES - 1, BATCHES + 9):  # records, or an error, in the first part: nothing waits for a minute
        with KafkaWire(address) as wire:
            first = {index: BATCHES if index else wrong for index in range(MANY)}
            found = Reader(wire, 12).fetch(first, -1, max_wait=60_000, min_bytes=1)[0]
            assert found.records or found.error_code == OffsetOutOfRangeError.number


@pytest.mark.usefixtures("few_at_once")
@pytest.mark.parametrize("seed", range(12))
def test_a_session_in_parts_reads_each_record_once_whatever_it_seeks_adds_and_forgets(address: str, seed: int) -> None:
    chance = random.Random(seed)
    with KafkaWire(address) as wire:
        reader = Reader(wire, chance.choice((12, 18)))
        positions: dict[int, int] = {}
        read: set[int] = set()  # partitions whose positions moved, which a client names again
        for epoch in range(12):
            changed = {each: positions[each] for each in read}
            changed |= {each: chance.randrange(BATCHES + 1) for each in chance.sample(range(MANY), chance.randrange(6))}
            forgotten = [each for each in positions if each not in changed and chance.random() < 0.4]
            for each in forgotten:
                del positions[each]
            if epoch == 0:
                changed = dict.fromkeys(range(MANY), 0)
            positions |= changed
            answer = reader.fetch(changed, epoch, forgotten, max_bytes=chance.choice((1, 3_000, 1 << 20)))
            assert answer.keys() <= positions.keys(), f"seed {seed}: an answer names a forgotten partition"
            if epoch == 0:
                assert sorted(answer) == list(range(MANY))
            read = {index for index, found in answer.items() if found.records}
            for index, found in answer.items():
                assert found.error_code == 0
                offsets = [header.base_offset for _, header in iterate_headers(found.records)]
                expected = list(range(positions[index], positions[index] + len(offsets)))
                assert offsets == expected, f"seed {seed}, partition {index}"
                positions[index] += len(offsets)


class Reader:
    """A consumer of the topic "many" with one session, which names partitions as the version does."""

    def __init__(self, wire: KafkaWire, version: int) -> None:
        self._wire, self._version, self._session_id = wire, version, 0
        self._name: dict[str, object] = {"topic": "many"}
        if version >= 13:
            (topic,) = wire.ask(Api.METADATA, topics=[{"name": "many"}]).topics
            self._name = {"topic_id": topic.topic_id}

    def fetch(
        self,
        positions: Mapping[int, int],
        session_epoch: int,
        forgotten: list[int] | None = None,
        *,
        max_bytes: int = 1 << 20,
        max_wait: int = 0,
        min_bytes: int = 0,
    ) -> dict[int, Message]:
        partitions = [
            {"partition": index, "current_leader_epoch": -1, "fetch_offset": offset, "partition_max_bytes": 1_000_000}
            for index, offset in positions.items()
        ]
        answer = self._wire.ask(
            Api.FETCH,
            self._version,
            max_wait=max_wait,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            session_id=self._session_id if session_epoch > 0 else 0,
            session_epoch=session_epoch,
            topics=[{**self._name, "partitions": partitions}] if partitions else [],
            forgotten_topics_data=[{**self._name, "partitions": forgotten}] if forgotten else [],
        )
        self._session_id = answer.session_id
        return {each.partition_index: each for topic in answer.responses for each in topic.partitions}


def fetch(wire: KafkaWire, version: int, offset: int) -> list[Message]:
    """The partitions of an answer that has room for one batch, without a fetch session."""
    name: dict[str, object] = {"topic": "orders"}
    if version >= 13:
        (topic,) = wire.ask(Api.METADATA, topics=[{"name": "orders"}]).topics
        name = {"topic_id": topic.topic_id}
    partitions = [
        {"partition": index, "current_leader_epoch": -1, "fetch_offset": offset, "partition_max_bytes": 1_000_000}
        for index in range(PARTITIONS)
    ]
    answer = wire.ask(
        Api.FETCH,
        version,
        max_wait=0,
        min_bytes=0,
        max_bytes=1,
        session_id=0,
        session_epoch=-1,
        topics=[{**name, "partitions": partitions}],
    )
    (topic,) = answer.responses
    return sorted(topic.partitions, key=lambda each: int(each.partition_index))
