"""A topic live, as server-sent events: bounded in rate, in length and in the number of watchers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator

from headrace import TopicPartition
from headrace_core.records import Record

from .cluster import Cluster
from .decoding import Decoding, ShownRecord
from .display import Shown, when

#: Watchers of one console; each has a consumer of its own.
WATCHERS_MAX = 24
#: A watcher gets at most so many records a second; the others are counted.
RECORDS_PER_S = 40
#: Seconds after which a live view ends; the page offers to go on.
LIFE_S = 900.0
#: Seconds between two events, at least: a proxy or a browser sees that the stream is alive.
_TURN_S = 1.0
_OFFSETS_S = 5.0


class Tailing:
    """Live views. ``tail`` yields server-sent events as text."""

    def __init__(self, cluster: Cluster, decoding: Decoding) -> None:
        self._cluster = cluster
        self._decoding = decoding
        self.watchers = 0

    async def tail(self, topic: str, partitions: list[int], contains: bytes) -> AsyncGenerator[str, None]:
        """The records that are written from now on, and whose key or value has the bytes ``contains``."""
        self.watchers += 1
        consumer = self._cluster.consumer()
        try:
            wanted = [TopicPartition(topic, partition) for partition in partitions]
            ends = await consumer.end_offsets(wanted, timeout=_OFFSETS_S)
            await consumer.assign(wanted)
            for tp, end in ends.items():
                await consumer.seek(tp, end)
            yield _event("begun", {"partitions": len(wanted)})
            ends_s = time.monotonic() + LIFE_S
            while time.monotonic() < ends_s:
                turn_s = time.monotonic() + _TURN_S
                records: list[Record] = []
                skipped = 0
                while (left_s := turn_s - time.monotonic()) > 0:
                    for record in await consumer.poll(timeout=left_s, max_records=1_000):
                        if contains and contains not in (record.key or b"") and contains not in (record.value or b""):
                            continue
                        if len(records) < RECORDS_PER_S:
                            records.append(record)
                        else:
                            skipped += 1
                    if records and time.monotonic() + 0.8 * _TURN_S > turn_s:
                        break
                rows = [_row(each) for each in await self._decoding.shown(tuple(records))]
                yield _event("records", {"rows": rows, "skipped": skipped})
                await asyncio.sleep(max(0.0, turn_s - time.monotonic()))
            yield _event("ended", {"after_s": LIFE_S})
        finally:
            self.watchers -= 1
            await consumer.close(timeout=2.0)


def _event(name: str, document: object) -> str:
    return f"event: {name}\ndata: {json.dumps(document)}\n\n"


def _row(each: ShownRecord) -> dict[str, object]:
    record = each.record
    return {
        "partition": record.partition,
        "offset": record.offset,
        "time": when(record.timestamp_ms),
        "key": _field(each.key),
        "value": _field(each.value),
    }


def _field(field: Shown) -> dict[str, object]:
    return {"kind": field.kind, "text": field.text, "cut": field.is_cut}
