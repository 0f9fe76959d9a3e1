"""Headrace as a Spark data source.

spark = headrace_spark.session("orders")                       # or any session of yours:
spark.dataSource.register(headrace_spark.HeadraceDataSource)
spark.readStream.format("headrace").option("headrace.bootstrap.servers", ...).option("subscribe", "orders").load()
"""

from __future__ import annotations

from .errors import DataLossError, JavaNotFoundError
from .java import find_java
from .query_metrics import QueryMetrics
from .session import low_latency_session, session
from .shipping import VERSION as __version__
from .source import HeadraceDataSource

__all__ = [
    "DataLossError",
    "HeadraceDataSource",
    "JavaNotFoundError",
    "QueryMetrics",
    "__version__",
    "find_java",
    "from_registry",
    "low_latency_session",
    "session",
    "to_registry",
]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .registry_columns import from_registry as from_registry
    from .registry_columns import to_registry as to_registry


def __getattr__(name: str) -> Any:
    if name not in ("from_registry", "to_registry"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import registry_columns  # when first used: workers of other queries need no registry client

    return getattr(registry_columns, name)
