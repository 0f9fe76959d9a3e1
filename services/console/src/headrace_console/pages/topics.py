"""Topics: the list with search, order and pages; one topic with its partitions, configuration and readers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from headrace import TopicPartition
from headrace.cluster_models import ConfigEntry, ConfigResource, PartitionDescription, TopicDescription
from headrace.models import OffsetAndTimestamp
from headrace_core.errors import HeadraceError

from ..cluster import REQUEST_S
from ..console import Console, Paged, required, text_of
from ..watching import View

#: Maps each order of the list to the sort key of a row. Numbers sort from large to small.
_ORDERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "name": lambda row: row["name"],
    "partitions": lambda row: (-row["partitions"], row["name"]),
    "rate": lambda row: (-(row["records_per_s"] or 0), row["name"]),
    "size": lambda row: (-row["size"], row["name"]),
    "trouble": lambda row: (-row["offline"], -row["under_replicated"], row["name"]),
}
#: Values that the form for retention proposes.
RETENTIONS = (("1 hour", "1h"), ("1 day", "1d"), ("7 days", "7d"), ("30 days", "30d"), ("no limit", "-1"))


async def topics(console: Console, request: web.Request) -> web.StreamResponse:
    view = await console.view()
    wanted, order = text_of(request, "q")[:249], text_of(request, "sort", "name")
    order = order if order in _ORDERS else "name"
    with_internal = text_of(request, "internal") == "1"
    rows = [] if view is None else _rows(view, wanted.lower(), with_internal)
    rows.sort(key=_ORDERS[order])
    return console.page(
        request,
        "topics.html",
        section="topics",
        view=view,
        q=wanted,
        sort=order,
        internal=with_internal,
        orders=list(_ORDERS),
        paged=Paged(request, rows),
    )


def _rows(view: View, wanted: str, with_internal: bool) -> list[dict[str, Any]]:
    found = []
    for topic in view.sample.topics:
        if (topic.internal and not with_internal) or wanted not in topic.name.lower():
            continue
        row = view.topic_rows[topic.name]
        found.append(
            {
                "name": topic.name,
                "internal": topic.internal,
                "partitions": len(topic.partitions),
                "replicas": max((len(part.replicas) for part in topic.partitions), default=0),
                "records_per_s": None if view.is_first else row.records_per_s,
                "size": view.sizes.get(topic.name, 0),
                "under_replicated": row.under_replicated,
                "offline": row.offline,
                "groups": len(view.readers.get(topic.name, ())),
            }
        )
    return found


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """A row of the page for one partition; the offsets are None if the partition's leader does not answer."""

    part: PartitionDescription
    start: int | None
    end: int | None
    size: int

    @property
    def missing(self) -> list[int]:
        return sorted(set(self.part.replicas) - set(self.part.isr))

    @property
    def is_led_by_another(self) -> bool:
        """Whether another replica leads although the first replica (the preferred leader) is in sync."""
        first = self.part.replicas[0] if self.part.replicas else -1
        return self.part.leader >= 0 and self.part.leader != first and first in self.part.isr


async def topic(console: Console, request: web.Request) -> web.StreamResponse:
    name = required(request, "name", "topic")
    view = await console.view()
    found, configs = await asyncio.gather(
        console.cluster.admin.describe_topics([name], timeout=REQUEST_S), _configs(console, name)
    )
    described = found[0]
    starts, ends = await asyncio.gather(
        _offsets(console, described, "earliest"), _offsets(console, described, "latest")
    )
    sizes = {} if view is None else view.sample.sizes
    rows = [
        PartitionRow(
            part,
            starts.get(part.partition),
            ends.get(part.partition),
            sizes.get((TopicPartition(name, part.partition), part.leader), 0),
        )
        for part in described.partitions
    ]
    entries = {} if isinstance(configs, HeadraceError) else configs
    return console.page(
        request,
        "topic.html",
        section="topics",
        topic=described,
        view=view,
        row=None if view is None else view.topic_rows.get(name),
        is_first=view is None or view.is_first,
        paged=Paged(request, rows),
        records=_records(rows),
        moved=[row.part.partition for row in rows if row.is_led_by_another],
        readers=[]
        if view is None
        else [view.groups[group] for group in view.readers.get(name, ()) if group in view.groups],
        configs=sorted(entries.values(), key=lambda entry: (entry.source == "default", entry.name)),
        config_error=configs if isinstance(configs, HeadraceError) else None,
        retention=entries.get("retention.ms"),
        retentions=RETENTIONS,
    )


def _records(rows: list[PartitionRow]) -> int | None:
    """The approximate number of records in the topic; None if no leader reported its offsets."""
    known = [max(0, row.end - row.start) for row in rows if row.start is not None and row.end is not None]
    return sum(known) if known else None


async def _configs(console: Console, name: str) -> dict[str, ConfigEntry] | HeadraceError:
    resource = ConfigResource("topic", name)
    try:
        return (await console.cluster.admin.describe_configs([resource], timeout=REQUEST_S))[resource]
    except HeadraceError as error:
        return error


async def _offsets(console: Console, topic: TopicDescription, spec: str) -> dict[int, int]:
    """The offsets of the partitions with a leader; empty when a leader does not answer."""
    wanted = {TopicPartition(topic.name, part.partition): spec for part in topic.partitions if part.leader >= 0}
    if not wanted:
        return {}
    try:
        found: dict[TopicPartition, OffsetAndTimestamp] = await console.cluster.admin.list_offsets(
            wanted,  # type: ignore[arg-type]
            timeout=2.0,
        )
    except HeadraceError:
        return {}
    return {tp.partition: each.offset for tp, each in found.items()}
