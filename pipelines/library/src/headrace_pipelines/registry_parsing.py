"""Parse values that a schema registry describes; records that cannot be parsed become dead letters.

    parsed = parse_registry(source, "http://127.0.0.1:8081", subject="orders-value")     # adds data and reason
    routed(parsed, topic="orders-clean", key=F.col("key"), value=to_registry("data", ...))

``parse_json`` does the same for JSON without a registry.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headrace.schemas import Schema, SchemaRegistry
from headrace_spark import from_registry

from .errors import InvalidColumnsError
from .expectations import REASON

_PARSED: Final = "_headrace_parsed"


def parse_registry(
    frame: DataFrame,
    registry: SchemaRegistry | str | Mapping[str, Any] | None = None,
    *,
    subject: str,
    version: int | str = "latest",
    schema: str | Schema | None = None,
    column: str = "value",
) -> DataFrame:
    """Return ``frame`` with the columns ``data``, of the subject's type, and ``reason``, null in a good row.

    The arguments are those of ``from_registry``. ``data`` is null in a row with a reason, and in a row whose value is
    null (a tombstone), which is a good row. Raises the errors of ``from_registry``, and InvalidColumnsError.
    """
    if column not in frame.columns:
        raise InvalidColumnsError(
            f"the frame has no column {column} to parse; its columns are: {', '.join(frame.columns)}"
        )
    taken = [name for name in ("data", REASON) if name in frame.columns]
    if taken:
        raise InvalidColumnsError(f"the frame already has a column {', '.join(taken)}; rename it first")
    value = from_registry(column, registry, subject=subject, version=version, schema=schema, mode="permissive")
    parsed = frame.withColumn(_PARSED, value)
    return parsed.withColumns({"data": F.col(f"{_PARSED}.value"), REASON: F.col(f"{_PARSED}.reason")}).drop(_PARSED)
