"""A group member that writes an output for each input, exactly once; it runs as a process of ``transactional_process``.
The value of an output is the input's partition and offset. An output is written to the partition that has the number of
the input's partition."""

from __future__ import annotations

import threading
from typing import Any

from headrace import Consumer, Producer
from headrace.errors import HeadraceError, TransactionAbortableError
from tests.system.transactional_process import insist, main, report

MAX_RECORDS = 20


def run(asked: dict[str, Any], is_over: threading.Event) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": asked["settings"]["bootstrap.servers"],
            **asked["login"],
            "group.id": asked["group"],
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    with consumer, Producer(asked["settings"]) as producer:
        insist(producer.init_transactions)
        report("ready")
        consumer.subscribe([asked["input"]])
        while not is_over.is_set():
            try:
                records = consumer.poll(0.2, MAX_RECORDS)
            except HeadraceError as error:
                report("error", f"{error.code}: {error.message[:300]}")
                is_over.wait(0.1)
                continue
            if records:
                _transform(producer, consumer, asked["output"], records)


def _transform(producer: Producer, consumer: Consumer, output: str, records: list[Any]) -> None:
    try:
        insist(producer.begin_transaction)
        for record in records:
            producer.send(output, f"{record.partition}:{record.offset}".encode(), partition=record.partition)
        producer.send_offsets(consumer)
        insist(producer.commit_transaction)
    except TransactionAbortableError as error:
        report("error", f"{error.code}: {error.message[:300]}")
        insist(producer.abort_transaction)
        insist(consumer.seek_to_committed)
        return
    report("committed", {record.partition: record.offset + 1 for record in records})


if __name__ == "__main__":
    main(run)
