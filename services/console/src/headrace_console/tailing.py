"""Show a topic live, as server-sent events. The rate, the duration and the number of watchers are limited."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterator

from headrace import TopicPartition
from headrace_core.records import Record

from .cluster import Cluster
from .decoding import Decoding, ShownRecord
from .display import Shown, when
from .finding import listed

#: Maximum number of live views in one console, and of one signed-in user; each live view has a separate consumer.
WATCHERS_MAX, USER_WATCHERS_MAX = 24, 6
#: Maximum number of records per second in one live view; further records are only counted.
RECORDS_PER_S = 40
#: Seconds after which a live view ends; the page offers to continue.
LIFE_S = 900.0
#: Maximum number of seconds between two events, so that a proxy or a browser sees that the stream is alive.
_TURN_S = 1.0
_OFFSETS_S = 5.0


class Watchers:
    """Counts the live views of a whole console, in all and for each signed-in user."""

    def __init__(self) -> None:
        self._count = 0
        self._by_user: Counter[str] = Counter()

    def is_full(self, user: str | None) -> bool:
        """Whether the limit of live views is reached for ``user``, or for all visitors together. ``user`` None: a
        visitor of a console without a sign-in."""
        return self._count >= WATCHERS_MAX or (user is not None and self._by_user[user] >= USER_WATCHERS_MAX)

    @contextlib.contextmanager
    def counted(self, user: str | None) -> Iterator[None]:
        """Count one live view while the context lasts."""
        self._count += 1
        self._by_user[user or ""] += 1
        try:
            yield
        finally:
            self._count -= 1
            self._by_user -= Counter({user or "": 1})


class Tailing:
    """Live views of one console, or of one session of ``user``. ``tail`` yields server-sent events as text.
    ``watchers`` counts the live views of all sessions together."""

    def __init__(self, cluster: Cluster, decoding: Decoding, watchers: Watchers, user: str | None) -> None:
        self._cluster = cluster
        self._decoding = decoding
        self._watchers, self._user = watchers, user
        self._why = ""

    @property
    def is_full(self) -> bool:
        return self._watchers.is_full(self._user)

    def end(self, why: str) -> None:
        """End all live views: each live view shows the sentence ``why``, and no further record."""
        self._why = why

    async def tail(self, topic: str, partitions: list[int], contains: bytes) -> AsyncGenerator[str, None]:
        """The records that are written from now on, and whose key or value has the bytes ``contains``."""
        with self._watchers.counted(self._user):
            async for event in self._events(topic, partitions, contains):
                yield event

    async def _events(self, topic: str, partitions: list[int], contains: bytes) -> AsyncGenerator[str, None]:
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
                            records.append(listed(record))
                        else:
                            skipped += 1
                    if records and time.monotonic() + 0.8 * _TURN_S > turn_s:
                        break
                rows = [_row(each) for each in await self._decoding.shown(tuple(records))]
                if self._why:
                    yield failed(self._why)
                    return
                yield _event("records", {"rows": rows, "skipped": skipped})
                await asyncio.sleep(max(0.0, turn_s - time.monotonic()))
            yield _event("ended", {"after_s": LIFE_S})
        finally:
            await consumer.close(timeout=2.0)


def failed(why: str) -> str:
    """The event that ends a live view with a sentence."""
    return f"event: failed\ndata: {why.replace(chr(10), ' ').replace(chr(13), ' ')}\n\n"


def _event(name: str, document: object) -> str:
    return f"event: {name}\ndata: {json.dumps(document)}\n\n"


def _row(each: ShownRecord) -> dict[str, object]:
    record = each.record
    return {
        "partition": record.partition,
        "offset": str(record.offset),  # a browser's number has 53 bits
        "time": when(record.timestamp_ms),
        "key": _field(each.key),
        "value": _field(each.value),
    }


def _field(field: Shown) -> dict[str, object]:
    return {"kind": field.kind, "text": field.text, "cut": field.is_cut}
