"""The pipeline orders on a real cluster: handlers that die or are fenced, restores, and rebuilds beside live tables."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace import Admin, Consumer, NewTopic, Producer, TopicPartition
from headrace.errors import GroupIdNotFoundError, ProducerFencedError, TransactionAbortableError
from headrace_core.errors import OffsetOutOfRangeError
from headrace_pipelines.access import Access
from headrace_pipelines.errors import PipelineFailedError
from headrace_pipelines.orders import schema
from headrace_pipelines.orders.database import Database
from headrace_pipelines.orders.handling import Handler, restored
from headrace_pipelines.orders.model import Order
from headrace_pipelines.orders.projecting import Positions, Projector
from headrace_pipelines.orders.traffic import Sent, commands
from headrace_pipelines.orders.truth import differences, truth
from headrace_pipelines.topics import records_in_topic
from tests.worlds.waiting import until

PARTITIONS, BATCH = 3, 20


@pytest.fixture
def access(headrace: Any) -> Iterator[Access]:
    """A cluster with the topics of the pipeline, without records."""
    access = Access(headrace.bootstrap_servers)
    with Admin(access.admin()) as admin:
        admin.create_topics([NewTopic(each.name, PARTITIONS, config=each.config) for each in schema.topics(PARTITIONS)])
        yield access
        admin.delete_topics(list(schema.TOPICS))
        with contextlib.suppress(GroupIdNotFoundError):  # a test without handlers
            admin.delete_groups([schema.GROUP])


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'orders.db'}"


def send(access: Access, records: list[Sent]) -> None:
    with Producer(access.producer()) as producer:
        for record in records:
            producer.send(schema.COMMANDS, record.value, record.key)


@contextmanager
def thread(work: Callable[[Callable[[], bool]], Any]) -> Iterator[Callable[[], None]]:
    """``work(is_stopped)`` in a thread; its error is raised at the end of the block. Yields what stops it."""
    stopped, failures = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            work(stopped.is_set)
        except BaseException as error:  # noqa: BLE001 - raised at the end of the block
            failures.append(error)

    def stop() -> None:
        stopped.set()
        running.join(60)
        assert not running.is_alive(), "it ends when it is asked to"

    running = threading.Thread(target=run)
    running.start()
    try:
        yield stop
    finally:
        stop()
    if failures:
        raise failures[0]


def followed(access: Access, url: str) -> Callable[[Callable[[], bool]], None]:
    """A live projector with a connection of its own."""

    def work(is_stopped: Callable[[], bool]) -> None:
        with Database(url) as database:
            Projector(access, database).follow(is_stopped)

    return work


def handled(access: Access) -> int:
    with Admin(access.admin()) as admin:
        return sum(each.offset for each in admin.list_group_offsets(schema.GROUP).values() if each is not None)


def replies(access: Access) -> Counter[str]:
    found = [record for records in stored(access, schema.REPLIES) for record in records]
    return Counter(json.loads(record.value or b"")["outcome"] for record in found)


def check(access: Access, url: str) -> None:
    """All commands are in the tables, and everything says the same."""
    with Database(url) as database:
        with contextlib.closing(Positions(access, database)) as positions, thread(followed(access, url)):
            until(lambda: (look := positions.look()).generation and not look.behind)
        assert differences(truth(access), access, database) == []


def test_two_handlers_and_a_projector_make_the_tables(access: Access, url: str) -> None:
    records = list(commands(120, 7, 1))
    send(access, records)
    with thread(Handler(access, "one").run), thread(Handler(access, "two").run):
        until(lambda: handled(access) == len(records))
    check(access, url)


def test_the_check_waits_for_replies_whose_transaction_has_no_markers_yet(access: Access, url: str) -> None:
    """A commit is acknowledged before its markers are in all partitions, and a dead leader delays them."""
    records = list(commands(20, 7, 4))
    send(access, records)
    with thread(Handler(access, "one").run):
        until(lambda: handled(access) == len(records))
    check(access, url)
    expected, found = truth(access), list[list[str]]()
    expected.outcomes["invalid"] += 1

    def compare() -> None:
        with Database(url) as database:
            found.append(differences(expected, access, database))

    comparing = threading.Thread(target=compare)
    with Producer(access.producer() | {"transactional.id": "open"}) as producer:
        with producer.transaction():
            producer.send(schema.REPLIES, schema.encoded({"outcome": "invalid"}), b"o", partition=1)
            producer.flush()
            comparing.start()
            comparing.join(1.0)
            assert comparing.is_alive(), "the reply is not visible yet"
        comparing.join(30)
    assert found == [[]]


@pytest.mark.parametrize("snapshot_every", [20, 10_000], ids=["snapshots", "events only"])
def test_the_next_owner_restores_what_the_former_had(access: Access, url: str, snapshot_every: int) -> None:
    """With and without snapshots, a handler goes on with the orders as they are."""
    records = list(commands(80, 7, 2))
    for part in (records[:150], records[150:300], records[300:]):
        want = handled(access) + len(part)
        send(access, part)
        with thread(Handler(access, "one", snapshot_every=snapshot_every).run):
            until(lambda want=want: handled(access) == want)  # type: ignore[misc]
    check(access, url)
    snapshots = sum(len(records) for records in stored(access, schema.SNAPSHOTS))
    assert (snapshots > 0) == (snapshot_every == 20)
    states = [restored(access, number).orders for number in range(PARTITIONS)]
    orders = {order.id: order for state in states for order in state.values()}
    with Database(url) as database, database.reading():
        rows = {name: json.loads(text) for name, text in database.rows("SELECT order_id, document FROM orders")}
    assert {name: order.document() for name, order in orders.items()} == rows


def stored(access: Access, topic: str) -> list[list[Any]]:
    """All committed records. (A commit is acknowledged before its markers are in all partitions.)"""
    committed = Consumer(access.consumer() | {"isolation.level": "read_committed"})
    with committed as consumer, Consumer(access.consumer()) as ends:
        return list(records_in_topic(consumer, topic, ends=ends))


def test_a_restore_reads_few_events_behind_a_snapshot(access: Access, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace_pipelines.orders.handling.BATCH_RECORDS", BATCH)
    records = list(commands(80, 0, 3))
    send(access, records)
    with thread(Handler(access, "one", snapshot_every=1).run):
        until(lambda: handled(access) == len(records))
    with Consumer(access.consumer()) as consumer:
        ends = consumer.end_offsets([TopicPartition(schema.EVENTS, number) for number in range(PARTITIONS)])
    for part, end in ends.items():
        positions = [
            json.loads(record.value or b"")["next_event"]
            for each in stored(access, schema.SNAPSHOTS)
            for record in each
            if record.partition == part.partition and record.key == schema.POSITION_KEY
        ]
        assert positions == sorted(positions)
        assert 0 < end - positions[-1] <= 2 * BATCH + 1, "the events of a batch, and a marker"


def test_a_handler_whose_name_is_taken_ends_and_nothing_is_doubled(access: Access, url: str) -> None:
    records = list(commands(60, 5, 4))
    first = Handler(access, "same")

    def fenced(is_stopped: Callable[[], bool]) -> None:
        with pytest.raises(ProducerFencedError):
            first.run(is_stopped)

    with thread(fenced):
        send(access, records[:100])
        until(lambda: first.handled == 100)
        with thread(Handler(access, "same").run):
            send(access, records[100:])
            until(lambda: handled(access) == len(records))
    check(access, url)


def test_an_aborted_batch_leaves_no_trace_in_the_orders(
    access: Access, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its commands are handled again, from the states before it."""
    records = list(commands(60, 5, 5))
    send(access, records)
    real, aborts = Producer.send_offsets, iter([False, True, False, True])

    def refused(self: Producer, *given: Any) -> None:
        real(self, *given)
        if next(aborts, False):
            raise TransactionAbortableError("refused by the test")

    monkeypatch.setattr(Producer, "send_offsets", refused)
    monkeypatch.setattr("headrace_pipelines.orders.handling.BATCH_RECORDS", 40)
    with thread(Handler(access, "one", snapshot_every=30).run):
        until(lambda: handled(access) == len(records))
    assert next(aborts, None) is None, "both batches were refused"
    check(access, url)


def test_a_command_that_another_partitioner_sent_elsewhere_gets_a_reply_and_no_event(access: Access, url: str) -> None:
    """Events of two handlers would have the same versions, and no table could ever be made of them."""
    records = list(commands(5, 0, 10))
    with Producer(access.producer()) as producer:
        for number, record in enumerate(records):
            producer.send(schema.COMMANDS, record.value, record.key, partition=number % PARTITIONS)
    with thread(Handler(access, "one").run), thread(Handler(access, "two").run):
        until(lambda: handled(access) == len(records))
    assert replies(access)["invalid"] >= len(records) // 3
    with Database(url) as database:
        positions = Positions(access, database)
        with contextlib.closing(positions), thread(followed(access, url)):
            until(lambda: (look := positions.look()).generation and not look.behind)


def test_bytes_that_are_no_command_get_a_reply_and_stop_nothing(access: Access, url: str) -> None:
    records = [Sent(b"o", b"{"), Sent(b"", b"null"), *commands(5, 0, 6), Sent(b"x" * 500, b"\xff" * 20_000)]
    send(access, records)
    with thread(Handler(access, "one").run):
        until(lambda: handled(access) == len(records))
    assert replies(access)["invalid"] >= 3


# -- the tables --------------------------------------------------------------------------------------------------------


def test_readers_see_no_older_state_while_all_tables_are_made_again(access: Access, url: str) -> None:
    records = list(commands(150, 0, 7))
    sums: list[int] = []

    def read(is_stopped: Callable[[], bool]) -> None:
        connection = sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30)
        while not is_stopped():
            ((found,),) = connection.execute("SELECT SUM(version) FROM orders").fetchall()
            sums.append(found or 0)
        connection.close()

    handler = thread(Handler(access, "one").run)
    with Database(url) as new, handler, thread(followed(access, url)):
        until(lambda: generation(url) == 1)
        with thread(read):
            for part, number in ((records[:300], 2), (records[300:], 3)):
                send(access, part)
                assert Projector(access, new).rebuild(lambda: False) == number
            until(lambda: handled(access) == len(records))
            until(lambda: sums[-1] == truth(access).events)
    assert sums == sorted(sums)
    assert generation(url) == 3
    check(access, url)
    with Database(url) as database, database.reading():
        for table in ("orders_rows", "customers_rows", "days_rows", "positions_rows"):
            assert database.rows(f"SELECT DISTINCT generation FROM {table}") == [(3,)], "old rows are gone"


def generation(url: str) -> int | None:
    with Database(url) as database, database.reading():
        return database.generation()


def test_a_rebuild_that_was_stopped_is_begun_again(access: Access, url: str) -> None:
    send(access, list(commands(30, 0, 8)))
    with thread(Handler(access, "one").run):
        until(lambda: handled(access) > 0)
    with Database(url) as database:
        assert Projector(access, database).rebuild(lambda: True) is None
        assert generation(url) == 1
        assert Projector(access, database).rebuild(lambda: False) == 2
    check(access, url)


def test_two_projectors_take_turns_and_lose_nothing(access: Access, url: str) -> None:
    """A projector that was suspended, and replaced, goes on from the positions that it finds."""
    records = list(commands(60, 0, 11))
    with thread(Handler(access, "one").run), thread(followed(access, url)), thread(followed(access, url)):
        for at in range(0, len(records), 60):
            send(access, records[at : at + 60])
            until(lambda want=at: handled(access) >= want)  # type: ignore[misc]
        until(lambda: handled(access) == len(records))
    check(access, url)


def test_positions_that_the_log_does_not_have_are_an_error(access: Access, url: str) -> None:
    with Database(url) as database:
        assert Projector(access, database).rebuild(lambda: False) == 2
        with database.writing():
            database.put("positions", 2, [(0, 1_000), (1, 0), (2, 0)])
        with pytest.raises(OffsetOutOfRangeError):
            Projector(access, database).follow(lambda: False)


def test_old_rows_are_deleted_in_parts(access: Access, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace_pipelines.orders.database.SWEEP_ROWS", 7)
    send(access, list(commands(40, 0, 12)))
    with thread(Handler(access, "one").run):
        until(lambda: handled(access) > 100)
    check(access, url)
    with Database(url) as database:
        assert Projector(access, database).rebuild(lambda: False) == 2
        with database.reading():
            assert database.rows("SELECT DISTINCT generation FROM orders_rows") == [(2,)]
    check(access, url)


def test_of_two_rebuilds_the_later_one_goes_on(access: Access, url: str) -> None:
    with Database(url) as one, Database(url) as other:
        begun = threading.Event()

        def takes_over() -> bool:
            if not begun.is_set():
                begun.set()
                with other.writing():
                    other.name_rebuild("another")
            return False

        with pytest.raises(PipelineFailedError, match="another rebuild has begun"):
            Projector(access, one).rebuild(takes_over)


@pytest.mark.parametrize("version", [1, 3], ids=["an event twice", "a gap"])
def test_a_wrong_sequence_of_events_changes_no_row(access: Access, url: str, version: int) -> None:
    first = {"order": "o", "version": 1, "command": "c", "at_ms": 1, "type": "rejected", "do": "ship", "reason": ""}
    with Producer(access.producer()) as producer:
        for event in (first, first | {"version": version}):
            producer.send(schema.EVENTS, schema.encoded(event), b"o")
    with Database(url) as database:
        with pytest.raises(ValueError, match=f"order o has version 1, but its next event has version {version}"):
            Projector(access, database).follow(lambda: False)
        with database.reading():
            assert database.rows("SELECT * FROM orders") == []


def test_the_row_of_an_order_is_what_a_snapshot_says(access: Access, url: str) -> None:
    """A row can be made an order again, which is how a projector goes on."""
    send(access, list(commands(10, 0, 9)))
    with thread(Handler(access, "one").run):
        until(lambda: handled(access) > 30)
    check(access, url)
    with Database(url) as database, database.reading():
        for order_id, document in database.rows("SELECT order_id, document FROM orders"):
            assert Order.of_document(json.loads(document)).id == order_id
