"""Headrace as a Spark data source.

spark = headrace_spark.session("orders")                       # or any session of yours:
spark.dataSource.register(headrace_spark.HeadraceDataSource)
spark.readStream.format("headrace").option("headrace.bootstrap.servers", ...).option("subscribe", "orders").load()
"""

from .errors import DataLossError, JavaNotFoundError
from .java import find_java
from .session import low_latency_session, session
from .shipping import VERSION as __version__
from .source import HeadraceDataSource

__all__ = [
    "DataLossError",
    "HeadraceDataSource",
    "JavaNotFoundError",
    "__version__",
    "find_java",
    "low_latency_session",
    "session",
]
