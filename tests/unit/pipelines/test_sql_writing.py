"""What a continuous query computes for the records of its rows, without Spark: expressions are texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace_pipelines.sql import writing
from headrace_pipelines.sql.catalog import Table
from headrace_pipelines.sql.plans import KEPT


class Text(str):
    __slots__ = ()

    def cast(self, kind: str) -> Text:
        return self

    def alias(self, name: str) -> Text:
        return self


class Functions:
    """``pyspark.sql.functions``."""

    def __getattr__(self, name: str) -> Callable[..., Text]:
        return lambda *of: Text(f"{name}({', '.join(map(str, of))})")


class Frame:
    def __init__(self, *columns: str) -> None:
        self.columns = list(columns)

    def drop(self, name: str) -> Frame:
        return Frame(*[column for column in self.columns if column != name])

    def select(self, *columns: Text) -> list[str]:
        return list(columns)


@pytest.mark.parametrize(
    ("columns", "value"),
    [
        (("item", "n"), "to_registry(struct(col(`item`), col(`n`)))"),
        (("item", "n", KEPT), f"when(col({KEPT}), to_registry(when(col({KEPT}), struct(col(`item`), col(`n`)))))"),
    ],
)
def test_a_row_that_is_not_kept_is_not_encoded(
    monkeypatch: pytest.MonkeyPatch, columns: tuple[str, ...], value: str
) -> None:
    monkeypatch.setattr(writing, "F", Functions())
    monkeypatch.setattr(writing, "to_registry", lambda column, _, **more: Text(f"to_registry({column})"))
    table = Table("t", "t", "avro", (), (), False, "t-value", "fail")
    made: Any = writing.with_records(Frame(*columns), table, None)  # type: ignore[arg-type]
    assert made[1] == value
