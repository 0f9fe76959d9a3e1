"""A registry in memory, its client, and Protobuf classes that protoc generates."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.schemas import SchemaRegistry
from tests.worlds.registries import FakeRegistry, fake_registry


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with fake_registry() as running:
        yield running


@pytest.fixture
def registry(fake: FakeRegistry) -> Iterator[SchemaRegistry]:
    with SchemaRegistry(fake.url, retries=0, failure_cache_ms=50) as client:
        yield client
