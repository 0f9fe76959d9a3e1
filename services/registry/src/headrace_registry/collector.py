"""The registry's metrics: the number of stored items, and whether this replica writes."""

from __future__ import annotations

from headrace_core.metrics import catalog
from headrace_core.metrics.model import Row, Rows

from .registry import Registry


def rows_of(registry: Registry | None) -> Rows:
    """The rows of a scrape; none before the registry has started."""
    if registry is None:
        return
    image = registry.image
    yield Row(catalog.REGISTRY_WRITER, (), int(registry.is_writer))
    yield Row(catalog.REGISTRY_SCHEMAS, (), image.schema_count)
    yield Row(catalog.REGISTRY_SUBJECTS, (), sum(1 for _ in image.subjects()))
