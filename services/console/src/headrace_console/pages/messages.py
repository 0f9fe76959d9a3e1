"""Messages: find them by key, by time and by offset; show one whole record, or a topic live."""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import Any

from aiohttp import web

from headrace.partitioners import key_partition
from headrace_core.errors import HeadraceError, SaslAuthenticationFailedError
from headrace_tools.cli.times import time_ms

from .. import finding
from ..cluster import REQUEST_S
from ..console import Console, required, text_of, whole_of
from ..display import WHOLE_MAX
from ..gate import HEADERS, Refused, is_refusal
from ..tailing import failed

WAYS = ("latest", "key", "time", "offset")
#: Maximum number of partitions that one search reads.
PARTITIONS_MAX = 1_000
_PARTITION_MAX = (1 << 31) - 1
_CONTAINS_MAX = 200
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_CURSOR = re.compile(r"(\d{1,10}):(\d{1,19})", re.ASCII)
#: Seconds within which a client must read a server-sent event.
_EVENT_S = 10.0


async def messages(console: Console, request: web.Request) -> web.StreamResponse:
    view = await console.view()
    names = [] if view is None else [topic.name for topic in view.sample.topics if not topic.internal]
    topic, way = text_of(request, "topic"), text_of(request, "by", "latest")
    way = way if way in WAYS else "latest"
    given = {name: request.query.get(name, "").strip() for name in ("key", "at", "offset", "partition")}
    values: dict[str, Any] = {
        "topics": names[:2_000],
        "topic": topic,
        "by": way,
        "given": given,
        "is_committed": text_of(request, "committed") == "1",
        "is_hex": text_of(request, "hex") == "1",
        "found": None,
        "rows": [],
        "problem": "",
        "is_denied": False,
        "key_partition": None,
        "older": None,
        "tokens_before": "",
    }
    if topic:
        try:
            values |= await _search(console, request, topic, way, given, is_committed=values["is_committed"])
        except Refused as refused:
            values["problem"] = refused.message
        except HeadraceError as error:
            if not is_refusal(error):
                raise
            values["problem"], values["is_denied"] = error.message, True
    return console.page(request, "messages.html", section="messages", **values)


async def _search(
    console: Console, request: web.Request, topic: str, way: str, given: dict[str, str], *, is_committed: bool
) -> dict[str, Any]:
    partitions = await _partitions(console, topic, given["partition"])
    values: dict[str, Any] = {}
    if way == "key":
        if not given["key"]:
            return {}
        key = _key(given["key"], is_hex=text_of(request, "hex") == "1")
        if given["partition"] == "":  # where the default partitioner sends the key
            values["key_partition"] = key_partition(key, len(partitions))
            partitions = [values["key_partition"]]
        before = _cursor(text_of(request, "before"))
        found = await finding.by_key(console.cluster, topic, partitions, key, is_committed=is_committed, before=before)
        if found.before:
            values["older"] = ",".join(f"{partition}:{offset}" for partition, offset in sorted(found.before.items()))
    elif way == "time":
        if not given["at"]:
            return {}
        try:
            at_ms = time_ms(given["at"])
        except ValueError as error:
            raise Refused(400, str(error)) from None
        found = await finding.from_time(console.cluster, topic, partitions, at_ms, is_committed=is_committed)
        values["at_ms"] = at_ms
    elif way == "offset":
        if not given["offset"]:
            return {}
        offset = whole_of(request, "offset", 0)
        found = await finding.from_offset(console.cluster, topic, partitions, offset, is_committed=is_committed)
    else:
        found = await finding.latest(console.cluster, topic, partitions, is_committed=is_committed)
    return values | {"found": found, "rows": await console.decoding.shown(found.records)}


async def _partitions(console: Console, topic: str, wanted: str) -> list[int]:
    """The partitions to search: the partition ``wanted``, or all partitions. Raises Refused."""
    described = (await console.cluster.admin.describe_topics([topic], timeout=REQUEST_S))[0]
    numbers = [part.partition for part in described.partitions]
    if wanted not in ("", "all"):
        if not (wanted.isascii() and wanted.isdigit() and len(wanted) < 10 and int(wanted) in numbers):
            raise Refused(400, f"topic {topic} has no partition {wanted[:20]!r}; it has 0 to {len(numbers) - 1}")
        return [int(wanted)]
    dead = [part.partition for part in described.partitions if part.leader < 0]
    if dead:
        raise Refused(
            503,
            f"{topic}-{dead[0]} has no leader, so not all partitions can be searched; choose a partition, and look at "
            "the page of the cluster for the cause",
        )
    if len(numbers) > PARTITIONS_MAX:
        raise Refused(400, f"topic {topic} has {len(numbers):,} partitions; choose one")
    return numbers


def _key(text: str, *, is_hex: bool) -> bytes:
    if not is_hex:
        return text.encode()
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise Refused(400, "the key is not hex text; write pairs of digits, such as 00 ff 7a") from None


def _cursor(text: str) -> dict[int, int] | None:
    """Parse the place where an earlier search stopped: "0:123,1:456"."""
    if not text:
        return None
    items = [_CURSOR.fullmatch(item) for item in text.split(",")]
    found = {int(item[1]): int(item[2]) for item in items if item is not None}
    if len(found) < len(items):
        raise Refused(400, "the URL of this search is damaged; begin the search again")
    return found


# -- one record


async def record(console: Console, request: web.Request) -> web.StreamResponse:
    topic, partition, offset = _place(request)
    found = await finding.one(console.cluster, topic, partition, offset)
    if found is None:
        raise Refused(
            404,
            f"{topic}-{partition} has no record at offset {offset:,}: it was deleted or compacted, is a marker of a "
            "transaction, or is not written yet",
        )
    shown = (await console.decoding.shown((found,), limit=WHOLE_MAX, pretty=True))[0]
    return console.page(request, "record.html", section="messages", topic=topic, shown=shown, record=found)


async def raw(console: Console, request: web.Request) -> web.StreamResponse:
    """The bytes of a key or a value as a download: browsers save the file and do not show it."""
    topic, partition, offset = _place(request)
    field = text_of(request, "field", "value")
    found = await finding.one(console.cluster, topic, partition, offset)
    data = None if found is None else found.key if field == "key" else found.value
    if data is None:
        raise Refused(
            404, f"the record at offset {offset:,} of {topic}-{partition} has no such key or value, or does not exist"
        )
    name = f"{topic}-{partition}-{offset}.{'key' if field == 'key' else 'value'}"
    return web.Response(
        body=data,
        content_type="application/octet-stream",
        headers={"Content-Disposition": f'attachment; filename="{name}"', "Content-Security-Policy": "sandbox"},
    )


def _place(request: web.Request) -> tuple[str, int, int]:
    topic = required(request, "topic", "topic")
    if _TOPIC.fullmatch(topic) is None:
        raise Refused(400, "the URL has no legal name of a topic")
    return topic, whole_of(request, "partition", 0, high=_PARTITION_MAX), whole_of(request, "offset", 0)


# -- live


async def live(console: Console, request: web.Request) -> web.StreamResponse:
    topic = required(request, "topic", "topic")
    described = (await console.cluster.admin.describe_topics([topic], timeout=REQUEST_S))[0]
    contains, partition = text_of(request, "contains")[:_CONTAINS_MAX], text_of(request, "partition")
    return console.page(
        request,
        "live.html",
        section="messages",
        topic=topic,
        partitions=len(described.partitions),
        partition=partition,
        contains=contains,
        events=console.url("events", topic=topic, partition=partition, contains=contains),
        record_url=console.url("record"),
    )


async def events(console: Console, request: web.Request) -> web.StreamResponse:
    """The stream of server-sent events of a live view."""
    topic = required(request, "topic", "topic")
    contains = text_of(request, "contains")
    if len(contains) > _CONTAINS_MAX:
        raise Refused(400, f"the text to look for has more than {_CONTAINS_MAX} characters")
    async with asyncio.timeout(2 * REQUEST_S):
        partitions = await _partitions(console, topic, text_of(request, "partition"))
    if console.tailing.is_full:
        raise Refused(503, "too many live views are open; close one, or use the command line: headrace consume")
    answer = web.StreamResponse(
        headers=HEADERS | {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    )
    console.gate.leave(request)
    try:
        await answer.prepare(request)
        stream = console.tailing.tail(topic, partitions, contains.encode())
        async with contextlib.aclosing(stream):
            try:
                async for event in stream:
                    await console.proven()
                    async with asyncio.timeout(_EVENT_S):
                        await answer.write(event.encode())
            except SaslAuthenticationFailedError:
                await answer.write(failed(console.turn_away()).encode())
            except HeadraceError as error:
                await answer.write(failed(f"{error.message} [{error.code}]").encode())
    except (TimeoutError, ConnectionError):
        if request.transport is not None:
            request.transport.abort()
    finally:
        console.gate.come_back()
    return answer
