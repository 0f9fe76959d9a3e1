"""Headrace as a Spark data source.

spark = headrace_spark.session("orders")                       # or any session of yours:
spark.dataSource.register(headrace_spark.HeadraceDataSource)
spark.readStream.format("headrace").option("headrace.bootstrap.servers", ...).option("subscribe", "orders").load()
"""

from __future__ import annotations

from .errors import DataLossError, JavaNotFoundError
from .java import find_java
from .session import low_latency_session, session
from .shipping import VERSION as __version__

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

    from .query_metrics import QueryMetrics as QueryMetrics
    from .registry_columns import from_registry as from_registry
    from .registry_columns import to_registry as to_registry
    from .source import HeadraceDataSource as HeadraceDataSource

#: Names that are imported when they are first used: a worker imports only the modules of its task.
_HOMES = {
    "HeadraceDataSource": ".source",
    "QueryMetrics": ".query_metrics",
    "from_registry": ".registry_columns",
    "to_registry": ".registry_columns",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_HOMES[name], __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
