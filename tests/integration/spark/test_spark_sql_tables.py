"""SQL: Spark keeps no options in a table of a Python source. The test shows the SQL forms that work, and the error of
each form that does not work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

NAMES_THE_FORMS = (
    r"Spark keeps no OPTIONS of CREATE TABLE \.\.\. USING headrace\. Use SELECT \.\.\. FROM t WITH .*INSERT INTO t WITH"
    r".*CREATE TEMPORARY VIEW v USING headrace OPTIONS"
)


def test_a_table_needs_its_options_in_the_query_and_a_view_keeps_them(
    spark: Any, headrace: Any, make_topic: Callable[..., str], send: Callable[..., None]
) -> None:
    topic = make_topic(1)
    send(topic, {0: [b"first"]})
    servers = f"'headrace.bootstrap.servers' = '{headrace.bootstrap_servers}'"

    def values(sql: str) -> list[str]:
        return sorted(bytes(row.value).decode() for row in spark.sql(sql).collect())

    spark.sql(f"CREATE TABLE read_table USING headrace OPTIONS ({servers}, subscribe = '{topic}')")
    spark.sql(f"CREATE TABLE write_table (value STRING) USING headrace OPTIONS ({servers}, topic = '{topic}')")
    spark.sql(f"CREATE TEMPORARY VIEW topic_view USING headrace OPTIONS ({servers}, subscribe = '{topic}')")
    try:
        with pytest.raises(Exception, match=NAMES_THE_FORMS):
            spark.sql("SELECT * FROM read_table").collect()
        with pytest.raises(Exception, match=NAMES_THE_FORMS):
            spark.sql("INSERT INTO write_table VALUES ('refused')")
        spark.sql(f"INSERT INTO write_table WITH ({servers}, topic = '{topic}') VALUES ('second')")
        written = ["first", "second"]
        assert values(f"SELECT * FROM read_table WITH ({servers}, subscribe = '{topic}')") == written
        assert values("SELECT * FROM topic_view") == written
    finally:
        spark.sql("DROP VIEW topic_view")
        for table in ("read_table", "write_table"):
            spark.sql(f"DROP TABLE {table}")
