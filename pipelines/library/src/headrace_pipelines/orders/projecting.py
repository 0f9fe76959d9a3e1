"""The query side: events become rows, exactly once; all tables can be rebuilt while the live tables stay in use.

One transaction of the database stores the rows of a batch of events, and the positions after the batch. A projector
that dies begins at the positions of its last transaction. Each order's row has the version of the order. An event whose
version does not follow the order's version raises an error, so a lost or repeated event is always detected.

A **rebuild** makes the next generation of rows from the first event on, while the live projector continues. When the
new rows contain every event of the present rows, one transaction switches the views; the old rows are deleted
afterwards. So a reader never sees an older state than before, and never waits. The live projector sees the switch at
its next batch. It then continues with the new rows, from the positions that are stored with the new rows.
"""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from headrace import Consumer, Record, TopicPartition

from ..access import Access
from ..errors import PipelineFailedError
from . import schema
from .database import Database, Row
from .model import Event, Order, apply

BATCH_RECORDS = 2_000
_POLL_S = 0.5


class Projector:
    """Reads the events, and applies them to the present generation of tables, or to the next generation
    (``rebuild``)."""

    def __init__(self, access: Access, database: Database) -> None:
        self._access, self._database = access, database

    def follow(self, is_stopped: Callable[[], bool]) -> None:
        """Keep the present tables up to date until ``is_stopped()``; makes the first generation. Raises HeadraceError
        and the driver's errors."""
        self._begin()
        with self._consumer() as consumer:
            before: tuple[int, dict[int, int]] | None = None  # the generation and the positions of the last check
            while not is_stopped():
                records: list[Record] = [] if before is None else consumer.poll(_POLL_S, BATCH_RECORDS)
                with self._database.writing():
                    present = self._database.generation()
                    assert present is not None
                    there = (present, self._database.positions(present))
                    if there != before:  # a switch or another projector has changed the positions
                        self._seek(consumer, there[1])
                        before = there
                    else:
                        self._project(present, consumer, records)
                        before = (present, self._database.positions(present))

    def rebuild(self, is_stopped: Callable[[], bool], said: Callable[[int], None] = lambda _: None) -> int | None:
        """Make the next generation, and switch to it. Returns the new generation's number; None if ``is_stopped``
        returned True before the switch. After each batch, calls ``said`` with the sum of the positions. Raises
        PipelineFailedError if another rebuild begins, because only one rebuild may write."""
        self._begin()
        name = uuid.uuid4().hex
        with self._database.writing():
            present = self._database.name_rebuild(name)
        self._database.sweep(present, later=True)  # delete the rows of an unfinished rebuild
        new = present + 1
        with self._consumer() as consumer:
            self._seek(consumer, {})
            while not is_stopped():
                records = consumer.poll(_POLL_S, BATCH_RECORDS)
                with self._database.writing():
                    if self._database.rebuild() != name:
                        raise PipelineFailedError("this rebuild of the tables ends, because another rebuild has begun")
                    self._project(new, consumer, records)
                    is_ready = self._has_all(new, new - 1)
                    if is_ready:
                        self._database.show(new)
                    position = sum(self._database.positions(new).values())
                said(position)
                if is_ready:
                    self._database.sweep(new)
                    return new
        return None

    def _begin(self) -> None:
        with self._database.writing():
            if self._database.generation() is None:
                self._database.show(1)

    def _has_all(self, new: int, live: int) -> bool:
        has = self._database.positions(new)
        return all(has.get(part, 0) >= offset for part, offset in self._database.positions(live).items())

    def _consumer(self) -> Consumer:
        own = {"isolation.level": "read_committed", "auto.offset.reset": "none"}
        consumer = Consumer(self._access.consumer() | own)
        consumer.assign([TopicPartition(schema.EVENTS, part) for part in consumer.partitions_for(schema.EVENTS)])
        return consumer

    @staticmethod
    def _seek(consumer: Consumer, positions: dict[int, int]) -> None:
        for each in consumer.assignment():
            consumer.seek(each, positions.get(each.partition, 0))

    def _project(self, generation: int, consumer: Consumer, records: list[Record]) -> None:
        # The consumer's positions also count the markers of transactions.
        positions = {each.partition: consumer.position(each) for each in consumer.assignment()}
        project(self._database, generation, [schema.decoded(record.value) for record in records], positions)


def project(database: Database, generation: int, events: Sequence[Event], positions: Mapping[int, int]) -> None:
    """Change the rows of a generation by events, in the open transaction. ``positions``: the offset of the next event
    of each partition. Raises ValueError if an event does not have the next version of its order."""
    orders = _orders(database, generation, {event["order"] for event in events})
    rejected: Counter[str] = Counter()
    placed: Counter[str] = Counter()
    spent: Counter[str] = Counter()
    days: dict[str, list[int]] = {}
    for event in events:
        before = orders.get(event["order"]) or Order(event["order"])
        after = orders[event["order"]] = apply(before, event)
        rejected[after.id] += event["type"] == "rejected"
        placed[after.customer] += event["type"] == "placed"
        if event["type"] in ("paid", "money-returned"):
            is_paid = event["type"] == "paid"
            spent[after.customer] += event["cents"] if is_paid else -event["cents"]
            day = days.setdefault(_day(event["at_ms"]), [0, 0, 0])
            for at, more in enumerate((int(is_paid), event["cents"] * is_paid, event["cents"] * (not is_paid))):
                day[at] += more
    _write(database, generation, orders.values(), rejected)
    customers = [(name, placed[name], spent[name]) for name in sorted({*placed, *spent} - {""})]
    database.put("customers", generation, [each for each in customers if any(each[1:])], adds=("orders", "spent_cents"))
    sums = ("paid_orders", "paid_cents", "returned_cents")
    database.put("days", generation, [(day, *counts) for day, counts in sorted(days.items())], adds=sums)
    database.put("positions", generation, sorted(positions.items()))


def _orders(database: Database, generation: int, ids: set[str]) -> dict[str, Order]:
    """The orders with the given ids, for the ids that have rows."""
    found: dict[str, Order] = {}
    wanted = sorted(ids)
    for at in range(0, len(wanted), 500):
        some = wanted[at : at + 500]
        places = ", ".join("?" * len(some))
        statement = f"SELECT document FROM orders_rows WHERE generation = ? AND order_id IN ({places})"
        for (document,) in database.rows(statement, [generation, *some]):
            order = Order.of_document(json.loads(document))
            found[order.id] = order
    return found


def _write(database: Database, generation: int, orders: Iterable[Order], rejected: Counter[str]) -> None:
    rows: list[Row] = [
        (
            order.id,
            order.customer,
            order.state,
            sum(line.quantity for line in order.lines.values()),
            order.total_cents,
            order.paid_cents,
            rejected[order.id],
            order.version,
            order.at_ms,
            schema.encoded(order.document()).decode(),
        )
        for order in orders
    ]
    database.put("orders", generation, sorted(rows), adds=("rejected",))


def _day(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d}"


class Look(NamedTuple):
    """The number of events in the live tables, markers of transactions included, and the number of missing events.
    ``generation`` is None before the first generation exists."""

    at_s: float  #: Seconds since 1970.
    live: int
    behind: int
    generation: int | None


class Positions:
    """Reads the progress of the tables. The end is the high watermark, so events of a committed transaction count even
    before its markers are written."""

    def __init__(self, access: Access, database: Database) -> None:
        self._database = database
        self._consumer = Consumer(access.consumer() | {"isolation.level": "read_uncommitted"})
        self._parts = [TopicPartition(schema.EVENTS, part) for part in self._consumer.partitions_for(schema.EVENTS)]

    def look(self) -> Look:
        ends = {part.partition: offset for part, offset in self._consumer.end_offsets(self._parts).items()}
        with self._database.reading():
            present = self._database.generation()
            has = {} if present is None else self._database.positions(present)
        # The log's end offsets were read before the tables, so the tables may already contain later events.
        behind = sum(max(0, end - has.get(part, 0)) for part, end in ends.items())
        return Look(time.time(), sum(has.values()), behind, present)

    def close(self) -> None:
        self._consumer.close()
