"""Decode keys and values by the schema registry, if one is configured. If the decoding of a key or value fails, the
page shows the failure and the bytes."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass, replace
from typing import Any

from headrace import TopicPartition
from headrace.schemas import RegistryDeserializer, SchemaRegistry, plain, wire
from headrace_core import exact_json
from headrace_core.errors import HeadraceError
from headrace_core.records import Record

from .cluster import Cluster
from .display import LISTED_BYTES_MAX, LISTED_MAX, Beginning, Shown, json_text, shown, size

#: Seconds within which all records of a page must be decoded.
DECODE_S = 2.0
#: Values with more bytes than this number are not decoded.
_BYTES_MAX = 1 << 20
#: Seconds for which the console remembers whether the cluster lets the user read the schemas.
_ALLOWED_S = 20.0
#: Maximum number of headers that are shown for a record.
HEADERS_MAX = 100


@dataclass(frozen=True, slots=True)
class ShownRecord:
    """A record as a page shows it."""

    record: Record
    key: Shown
    value: Shown
    headers: tuple[tuple[str, Shown], ...]


class Decoding:
    """Shows records. ``registry``: None without a schema registry."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        urls = cluster.settings.registry_urls
        self.registry = SchemaRegistry({"schema.registry.url": urls, **cluster.settings.registry}) if urls else None
        self._refusal = ""
        self._asked_s = -math.inf
        self._readers = (
            None
            if self.registry is None
            else {
                field: RegistryDeserializer(self.registry, is_key=field == "key", number=exact_json.Number)
                for field in ("key", "value")
            }
        )

    async def shown(
        self, records: tuple[Record, ...], *, limit: int = LISTED_MAX, pretty: bool = False
    ) -> list[ShownRecord]:
        """The records as text; a key or value whose bytes begin with a schema id is decoded."""
        plain_ones = [self._plain(record, limit, pretty) for record in records]
        if self._readers is None or not any(_has_schema(r.key) or _has_schema(r.value) for r in records):
            return plain_ones
        if refusal := await self.refusal():
            return [replace(each, value=replace(each.value, note=f"not decoded: {refusal}")) for each in plain_ones]
        try:
            async with asyncio.timeout(DECODE_S):
                return await self._cluster.ask_registry(
                    lambda: [self._decoded(each, limit, pretty) for each in plain_ones]
                )
        except TimeoutError:
            note = f"not decoded: the schema registry did not answer within {DECODE_S:g} s"
            return [replace(each, value=replace(each.value, note=note)) for each in plain_ones]

    async def refusal(self) -> str:
        """The reason why this user is not authorized to see schemas; "" if the user is authorized.

        The registry does not know the cluster's users, and the console authenticates at the registry with its own
        credentials. The cluster's ACLs decide: a user may see the schemas in the console if the user has READ on the
        topic in which the registry stores its schemas.
        """
        settings = self._cluster.settings
        if self.registry is None or not settings.has_sign_in:
            return ""
        if time.monotonic() - self._asked_s >= _ALLOWED_S:
            try:
                where = TopicPartition(settings.schemas_topic, 0)
                await self._cluster.admin.describe_producers([where], timeout=DECODE_S)
                self._refusal = ""
            except HeadraceError as error:
                self._refusal = f"schemas are in topic {settings.schemas_topic}; {error.message}"
            self._asked_s = time.monotonic()
        return self._refusal

    def close(self) -> None:
        if self.registry is not None:
            self.registry.close()

    def _plain(self, record: Record, limit: int, pretty: bool) -> ShownRecord:
        headers = [(name.encode(errors="surrogatepass"), value) for name, value in record.headers[:HEADERS_MAX]]
        return ShownRecord(
            record,
            shown(record.key, limit=limit, pretty=pretty),
            shown(record.value, limit=limit, pretty=pretty),
            tuple((shown(name).text, shown(value, limit=limit)) for name, value in headers),
        )

    def _decoded(self, each: ShownRecord, limit: int, pretty: bool) -> ShownRecord:
        record = each.record
        return replace(
            each,
            key=self._field("key", record.topic, record.key, each.key, limit, pretty),
            value=self._field("value", record.topic, record.value, each.value, limit, pretty),
        )

    def _field(self, field: str, topic: str, data: bytes | None, raw: Shown, limit: int, pretty: bool) -> Shown:
        if not _has_schema(data) or self._readers is None:
            return raw
        assert data is not None
        if isinstance(data, Beginning):
            return replace(
                raw, note=f"not decoded, because it is longer than {size(LISTED_BYTES_MAX)}; open the record"
            )
        number = wire.schema_id(data)
        try:
            value: Any = plain(self._readers[field].deserialize(topic, data))
            text = json_text(value, limit) if pretty else exact_json.dumps(value)
        except HeadraceError as error:
            return replace(raw, note=f"not decoded: {error.message} [{error.code}]")
        except (ValueError, TypeError, RecursionError) as error:
            return replace(raw, note=f"not decoded: {type(error).__name__}")
        found = shown(text.encode(errors="surrogatepass"), limit=limit)
        return replace(found, kind="json", size=len(data), note=f"schema id {number}")


def _has_schema(data: bytes | None) -> bool:
    if data is None or len(data) < wire.HEADER_BYTES or data[0] != wire.MAGIC:
        return False
    return (data.whole_size if isinstance(data, Beginning) else len(data)) <= _BYTES_MAX
