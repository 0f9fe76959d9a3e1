"""``format("headrace")``: the data source that Spark registers. It reads (batch.py, stream.py) and writes (sink.py).

Where each part runs: Spark calls ``HeadraceDataSource``, ``partitions()``, ``commit()`` and ``abort()`` in Python
processes beside the driver, and ``read()`` and ``write()`` in worker processes, forked from a daemon. So nothing opens
a channel before one of them runs, and what travels is plain data.
"""

from __future__ import annotations

import sys
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from .batch import HeadraceBatchReader
from .schema import record_schema
from .shipping import ship
from .sink import HeadraceBatchWriter, HeadraceStreamWriter
from .stream import HeadraceStreamReader
from .tasks import checked


class HeadraceDataSource(DataSource):
    """Headrace topics as DataFrames: ``spark.dataSource.register(HeadraceDataSource)``, then ``format("headrace")``."""

    @classmethod
    def name(cls) -> str:
        """The format's name. Spark asks for it on the driver when the source is registered."""
        use_own_interpreter()
        return "headrace"

    def schema(self) -> StructType:
        """Columns of the Kafka source; options are checked here, so that a mistake shows where the frame is made."""
        return record_schema(checked(self.options, streaming=None).include_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        return HeadraceBatchReader(dict(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return HeadraceStreamReader(dict(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return HeadraceBatchWriter(dict(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """``overwrite`` is output mode complete; as in the Kafka sink, each batch appends its whole result."""
        return HeadraceStreamWriter(dict(self.options), schema)

    def __reduce__(self) -> tuple[Any, ...]:
        return ship(self, dict(self.__dict__))


def use_own_interpreter() -> None:
    """Have a local session's workers run the driver's Python.

    Spark starts ``python3`` from the PATH unless PYSPARK_PYTHON says otherwise, and that one seldom has our packages.
    On ``local[*]`` the answer is plain; on a cluster the path may differ, so nothing is touched there.
    """
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is not None and str(context.master).startswith("local") and context.pythonExec == "python3":
        context.pythonExec = sys.executable
