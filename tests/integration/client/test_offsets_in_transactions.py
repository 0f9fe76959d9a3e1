"""Consume, transform, produce on real processes: transactions contain the offsets of a group."""

from __future__ import annotations

import itertools
import os
import threading
from typing import Any

import pytest

from headrace import Admin, Consumer, NewTopic, Producer, TopicPartition
from headrace.errors import TransactionAbortableError
from tests.integration.cli.conftest import run_headrace
from tests.worlds.readers import read_to_end
from tests.worlds.waiting import until

_names = itertools.count()
COUNT = 60


@pytest.fixture
def bootstrap(headrace: Any) -> str:
    return str(headrace.bootstrap_servers)


class Scene:
    """Topics "in" with the records 0 to 59 in two partitions, and "out"; a group."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        name = f"{os.getpid()}-{next(_names)}"
        self.source, self.target, self.group = f"in-{name}", f"out-{name}", f"g-{name}"
        with Admin(bootstrap_servers=bootstrap) as admin, Producer(bootstrap_servers=bootstrap) as producer:
            admin.create_topics([NewTopic(self.source, 2), NewTopic(self.target, 2)])
            for number in range(COUNT):
                producer.send(self.source, b"%d" % number, partition=number % 2)

    def producer(self, name: str = "worker", **settings: Any) -> Producer:
        return Producer(bootstrap_servers=self.bootstrap, transactional_id=f"{name}-{self.group}", **settings)

    @property
    def reads(self) -> dict[str, Any]:
        return {
            "bootstrap_servers": self.bootstrap,
            "group_id": self.group,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            "isolation_level": "read_committed",
        }

    def consumer(self, **settings: Any) -> Consumer:
        made = Consumer(**self.reads, **settings)
        made.subscribe([self.source])
        return made

    def results(self) -> list[bytes]:
        """Return the values of the committed records in the target topic."""
        everywhere = [TopicPartition(self.target, number) for number in range(2)]
        settings = self.reads | {"group_id": f"reader-of-{self.group}"}
        with Consumer(**settings) as reader:
            reader.assign(everywhere)
            return sorted((record.value or b"" for record in read_to_end(reader)), key=int)

    def committed(self) -> dict[int, int]:
        """Waits until no offset is pending."""
        with Admin(bootstrap_servers=self.bootstrap) as admin:
            found = admin.list_group_offsets(self.group, require_stable=True)
        return {tp.partition: each.offset for tp, each in found.items() if each is not None}


@pytest.fixture
def scene(bootstrap: str) -> Scene:
    return Scene(bootstrap)


EVERY = [b"%d" % number for number in range(COUNT)]


def test_each_input_has_its_output_once_although_transactions_abort(scene: Scene) -> None:
    done, tries = 0, itertools.count()
    with scene.producer() as out, scene.consumer() as inp:
        for records in inp.batches(max_records=7):
            try:
                with out.transaction():
                    for record in records:
                        out.send(scene.target, record.value)
                    out.send_offsets(inp)
                    if next(tries) % 3 == 1:
                        out.flush()
                        raise KeyError("an error set by the test")
            except KeyError:
                inp.seek_to_committed()
                continue
            done += len(records)
            if done == COUNT:
                break
    assert scene.committed() == {0: COUNT // 2, 1: COUNT // 2}
    until(lambda: scene.results() == EVERY)


def test_pending_offsets_are_shown_and_awaited(scene: Scene) -> None:
    with scene.producer() as out, Admin(bootstrap_servers=scene.bootstrap) as admin:
        with scene.consumer() as inp:
            records = until(lambda: inp.poll(1.0, max_records=5))
            where = TopicPartition(records[0].topic, records[0].partition)
            out.begin_transaction()
            out.send(scene.target, b"0").result(30)
            out.send_offsets(inp)
            described = admin.describe_groups([scene.group])[0]
            pending = {TopicPartition(each.topic, each.partition): each for each in described.pending_offsets}
            assert pending[where].offset == 5
            assert pending[where].transactional_id == f"worker-{scene.group}"
            (shown,) = run_headrace("groups", "describe", scene.group, "-o", "json", bootstrap=scene.bootstrap).json()
            assert {each["transactional_id"] for each in shown["pending_offsets"]} == {f"worker-{scene.group}"}
            text = run_headrace("groups", "describe", scene.group, bootstrap=scene.bootstrap).text
            assert f"pending: {where} at 5, sent by the transaction of worker-{scene.group}" in text
        assert admin.list_group_offsets(scene.group) == {}
        waited = threading.Event()

        def wait() -> None:
            with scene.consumer() as heir:
                came: list[int] = []  # from the partition whose offset was pending
                until(
                    lambda: (
                        came.extend(each.offset for each in heir.poll(1.0) if each.partition == where.partition) or came
                    )
                )
                assert min(came) == 5
                waited.set()

        thread = threading.Thread(target=wait)
        thread.start()
        assert not waited.wait(3.0), "a new member waits for the end of the transaction"
        out.commit_transaction()
        assert waited.wait(60.0)
        thread.join()
        assert admin.describe_groups([scene.group])[0].pending_offsets == ()
    assert scene.committed()[where.partition] == 5


def test_member_that_has_lost_its_partitions_cannot_commit(scene: Scene) -> None:
    """The member does not poll within max.poll.interval.ms, so another member gets its partitions."""
    with scene.producer("slow") as slow_out, scene.producer() as out:
        with scene.consumer(max_poll_interval_ms=1_000) as slow:
            until(lambda: slow.poll(0.2, max_records=5))
            metadata = slow.group_metadata()
            positions = {tp: slow.position(tp) for tp in slow.assignment()}
            slow_out.begin_transaction()
            slow_out.send(scene.target, b"1000").result(30)
            inp = scene.consumer()
            until(lambda: inp.poll(0.2, max_records=1) is not None and len(inp.assignment()) == 2)
            with pytest.raises(TransactionAbortableError, match="UNKNOWN_MEMBER_ID"):
                slow_out.send_offsets(slow)
            slow_out.abort_transaction()
            slow_out.begin_transaction()
            with pytest.raises(TransactionAbortableError, match=r"UNKNOWN_MEMBER_ID|STALE_MEMBER_EPOCH"):
                slow_out.send_offsets(positions, metadata)  # the coordinator refuses it, too
            slow_out.abort_transaction()
        inp.seek_to_committed()
        seen: set[bytes] = set()
        while len(seen) < COUNT:
            records = inp.poll(1.0)
            with out.transaction():
                for record in records:
                    seen.add(record.value or b"")
                    out.send(scene.target, record.value)
                out.send_offsets(inp)
        inp.close()
    until(lambda: scene.results() == EVERY)


def test_transaction_that_times_out_leaves_no_offsets(scene: Scene) -> None:
    with scene.producer(transaction_timeout_ms=4_000) as out, scene.consumer() as inp:
        records = until(lambda: inp.poll(1.0, max_records=5))
        out.begin_transaction()
        out.send_offsets(inp)
        inp.seek_to_committed()  # waits for the end of the transaction
        with pytest.raises(TransactionAbortableError):
            out.commit_transaction()
        out.abort_transaction()
        again = until(lambda: inp.poll(1.0, max_records=5))
        assert [record.offset for record in again] == [record.offset for record in records]
        with out.transaction():
            out.send_offsets(inp)
    assert sum(scene.committed().values()) == 5
