"""Values that the schema registry decodes are shown with the numbers of the record."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.schemas import wire
from headrace_console.cluster import Cluster
from headrace_console.decoding import Decoding, ShownRecord
from headrace_console.display import shown
from headrace_console.tailing import _row
from headrace_core.records import Record
from tests.worlds.registries import fake_registry

TEXT = '{"price":0.1234567890123456789,"small":1.0E-30,"zero":-0,"many":[1e400,12345678901234567890]}'


class _Cluster:
    def __init__(self, url: str) -> None:
        self.settings = SimpleNamespace(registry_urls=url, registry={}, has_sign_in=False)

    async def ask_registry(self, work: Callable[[], Any]) -> Any:
        return work()


@pytest.mark.parametrize("pretty", [False, True], ids=["in a list", "on its page"])
def test_a_json_value_has_the_numbers_of_its_record(pretty: bool) -> None:
    with fake_registry() as registry:
        schema_id = registry.add("orders-value", {"schema": "{}", "schemaType": "JSON"})
        decoding = Decoding(cast("Cluster", _Cluster(registry.url)))
        record = Record("orders", 0, 0, 0, None, wire.header(schema_id) + TEXT.encode(), [], 0)
        (found,) = asyncio.run(decoding.shown((record,), pretty=pretty))
        decoding.close()
    assert found.value.note == f"schema id {schema_id}"
    assert "".join(found.value.text.split()) == TEXT


def test_a_live_view_links_to_the_record_itself_beyond_a_browsers_numbers() -> None:
    record = Record("orders", 0, 2**53 + 1, 0, None, b"1", [], 0)
    row = json.dumps(_row(ShownRecord(record, shown(record.key), shown(record.value), ())))
    in_a_browser = json.loads(row, parse_int=float)
    assert f"{in_a_browser['offset']}" == "9007199254740993"
