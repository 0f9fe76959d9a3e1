"""The command side: a member of the group reads commands, and writes events, replies and snapshots exactly once.

A batch is one transaction: the events and replies of its commands, snapshots, and the group's offsets. So if the
handler of a command dies, either all effects of the command are stored, or none. If no effect is stored, the next owner
of the partition reads the command again.

**The state of a partition** is all its orders, in memory. A new owner of the partition restores this state from:

1. the snapshots of the orders, and the position in the events from which on events may be missing in the snapshots;
2. the events from this position on. An order skips the events that its snapshot already contains.

A handler writes snapshots of all changed orders, and the position, after every SNAPSHOT_EVERY events of a partition. So
a restore reads at most SNAPSHOT_EVERY events plus the events of one batch. A restore also reads the last snapshot of
each order, and older snapshots that are not compacted yet (schema.py).

**A restore reads all committed events.** The restore reads up to the high watermarks, not only up to the last stable
offsets. A committed transaction of the former owner may not have its markers yet; the restore waits for these markers.
The group gives a partition to a new owner only when no offsets of the partition are pending in a transaction.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

from headrace import Consumer, Producer, Record, TopicPartition
from headrace.errors import TransactionAbortableError
from headrace.partitioners import key_partition
from headrace_core.errors import RequestTimedOutError

from ..access import Access
from . import schema
from .model import InvalidCommandError, Order, apply, check, decide, is_repeated

SNAPSHOT_EVERY = 500
BATCH_RECORDS = 500
#: Transaction timeout of a handler. A successor with the same name ends the transaction of a dead handler earlier.
TRANSACTION_TIMEOUT_MS = 10_000
#: Maximum time for which a restore waits for the next record, because an open transaction may have to time out first.
STALL_S = 60.0
#: max.poll.interval.ms: long enough to restore all partitions of a member between two polls.
POLL_INTERVAL_MS = 900_000
_POLL_S = 0.5


class Partition:
    """The orders of one partition. ``next_event``: all events below this offset are in ``orders``."""

    def __init__(self) -> None:
        self.orders: dict[str, Order] = {}
        self.next_event = 0
        self.changed: set[str] = set()  #: Orders that have changed since their snapshots.
        self.events = 0  #: The number of events since the last snapshots.

    def order(self, order_id: str) -> Order:
        return self.orders.get(order_id) or Order(order_id)

    def put(self, order: Order) -> None:
        self.orders[order.id] = order
        self.changed.add(order.id)
        self.events += 1


def restored(access: Access, number: int) -> Partition:
    """The state of partition ``number`` from snapshots and events. Raises RequestTimedOutError."""
    found = Partition()
    snapshots, events = TopicPartition(schema.SNAPSHOTS, number), TopicPartition(schema.EVENTS, number)
    with (
        Consumer(access.consumer() | {"isolation.level": "read_uncommitted"}) as ends,
        # A position that is not in the log raises an error; it must never count as the end of the log.
        Consumer(access.consumer() | {"isolation.level": "read_committed", "auto.offset.reset": "none"}) as consumer,
    ):
        until = ends.end_offsets([snapshots, events])
        for record in _records(consumer, snapshots, 0, until[snapshots]):
            document = schema.decoded(record.value)
            if record.key == schema.POSITION_KEY:
                found.next_event = document["next_event"]
            else:
                found.orders[document["order"]] = Order.of_document(document)
        for record in _records(consumer, events, found.next_event, until[events]):
            event = schema.decoded(record.value)
            order = found.order(event["order"])
            if event["version"] > order.version:
                found.put(apply(order, event))
    found.next_event = until[events]
    return found


def _records(consumer: Consumer, partition: TopicPartition, start: int, end: int) -> Iterable[Record]:
    consumer.assign([partition])
    if start == 0:
        (start,) = consumer.beginning_offsets([partition]).values()
    consumer.seek(partition, start)
    before, changed_s = start, time.monotonic()
    while (position := consumer.position(partition)) < end:
        if position != before:
            before, changed_s = position, time.monotonic()
        elif time.monotonic() - changed_s > STALL_S:
            raise RequestTimedOutError(
                f"partition {partition}: no record between {position} and {end} in {STALL_S:g} s; is a transaction "
                "open there? (headrace transactions find-hanging)"
            )
        yield from consumer.poll(_POLL_S)


class Handler:
    """One member of the group. ``name``: its transactional id; a new handler with the same name ends the transaction of
    its predecessor."""

    def __init__(self, access: Access, name: str, *, snapshot_every: int = SNAPSHOT_EVERY) -> None:
        self._access, self._name, self._snapshot_every = access, name, snapshot_every
        self._partitions: dict[int, Partition] = {}
        self._parts: list[int] = []
        self.handled = 0  #: Number of commands in committed transactions.

    def run(self, is_stopped: Callable[[], bool]) -> None:
        """Handle commands until ``is_stopped()``. Raises HeadraceError."""
        consuming = self._access.consumer() | {
            "group.id": schema.GROUP,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "max.poll.interval.ms": POLL_INTERVAL_MS,
        }
        producing = self._access.producer() | {
            "transactional.id": self._name,
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
        }
        with Producer(producing) as producer, Consumer(consuming) as consumer:
            producer.init_transactions()
            self._parts = consumer.partitions_for(schema.COMMANDS)
            consumer.subscribe([schema.COMMANDS], on_revoked=self._forget)
            while not is_stopped():
                if records := consumer.poll(_POLL_S, BATCH_RECORDS):
                    self._transact(producer, consumer, records)

    def _forget(self, consumer: Consumer, partitions: Iterable[TopicPartition]) -> None:
        for each in partitions:
            self._partitions.pop(each.partition, None)

    def _transact(self, producer: Producer, consumer: Consumer, records: list[Record]) -> None:
        numbers = sorted({record.partition for record in records})
        for number in numbers:
            if number not in self._partitions:
                self._partitions[number] = restored(self._access, number)
        last: dict[int, Future[Any]] = {}
        try:
            with producer.transaction():
                for record in records:
                    if (event := self._handle(producer, record)) is not None:
                        last[record.partition] = event
                for number in numbers:
                    if self._partitions[number].events >= self._snapshot_every:
                        self._save(producer, number)
                producer.send_offsets(consumer)
        except TransactionAbortableError:  # the states contain changes of the aborted transaction
            self._partitions.clear()
            consumer.seek_to_committed()
            return
        except BaseException:
            self._partitions.clear()
            raise
        for number, event in last.items():
            self._partitions[number].next_event = event.result(0).offset + 1
        self.handled += len(records)

    def _handle(self, producer: Producer, record: Record) -> Future[Any] | None:
        """Send the events and the reply of one command; returns the future of the last event, None without events."""
        partition, number = self._partitions[record.partition], record.partition
        try:
            command = _command(record, len(self._parts))
        except InvalidCommandError as error:
            reply = {"outcome": "invalid", "reason": str(error), "offset": record.offset}
            producer.send(schema.REPLIES, schema.encoded(reply), record.key, partition=number)
            return None
        order = partition.order(command["order"])
        reply = {"command": command["id"], "order": order.id, "outcome": "repeated", "version": order.version}
        sent = None
        if not is_repeated(order, command):
            # Use the command's own time, so that the command causes the same events again after an aborted transaction.
            events = decide(order, command, record.timestamp_ms)
            for event in events:
                order = apply(order, event)
                sent = producer.send(schema.EVENTS, schema.encoded(event), record.key, partition=number)
                partition.put(order)
            is_rejected = events[0]["type"] == "rejected"
            reply |= {"outcome": "rejected" if is_rejected else "accepted", "version": order.version}
            if is_rejected:
                reply["reason"] = events[0]["reason"]
        producer.send(schema.REPLIES, schema.encoded(reply), record.key, partition=number)
        return sent

    def _save(self, producer: Producer, number: int) -> None:
        """Send the snapshots of the changed orders. The snapshots include events of the open transaction, whose offsets
        are not known yet; a restore reads these events again and skips them."""
        partition = self._partitions[number]
        for order_id in sorted(partition.changed):
            value = schema.encoded(partition.orders[order_id].document())
            producer.send(schema.SNAPSHOTS, value, order_id.encode(), partition=number)
        position = schema.encoded({"next_event": partition.next_event})
        producer.send(schema.SNAPSHOTS, position, schema.POSITION_KEY, partition=number)
        partition.changed.clear()
        partition.events = 0


def _command(record: Record, partitions: int) -> dict[str, Any]:
    """The command in a record. Raises InvalidCommandError, also if the record is not in its order's partition. Another
    handler owns that partition, and both handlers would give events of the order the same version."""
    value = record.value or b""
    if len(value) > schema.COMMAND_BYTES_MAX:
        raise InvalidCommandError(f"the command has more than {schema.COMMAND_BYTES_MAX} bytes")
    try:
        command: dict[str, Any] = json.loads(value)
    except (ValueError, RecursionError):
        raise InvalidCommandError("the value of the command is not JSON") from None
    check(command, record.key)
    if record.partition != (right := key_partition(record.key or b"", partitions)):
        raise InvalidCommandError(
            f"the record is in partition {record.partition}, but its order belongs to partition {right}: "
            "use the default partitioner of Headrace and of Kafka's Java client (murmur2)"
        )
    return command
