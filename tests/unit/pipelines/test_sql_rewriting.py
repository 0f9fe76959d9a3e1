"""SELECT for Spark: the tables in it, AS OF, and where Spark's positions are in the user's text."""

from __future__ import annotations

import re

import pytest

from headrace_pipelines.sql.faults import Source, SqlError
from headrace_pipelines.sql.parsing import parse
from headrace_pipelines.sql.rewriting import AsOf, Rewritten, rewrite
from headrace_pipelines.sql.statements import Select


def rewritten(text: str, *names: str) -> Rewritten:
    (statement,) = parse(Source(text, "q.sql"))
    assert isinstance(statement, Select)
    return rewrite(statement.query, names)


def as_of(found: Rewritten) -> list[tuple[str, dict[int, int], int | None]]:
    return [
        (each.view, dict(each.as_of.offsets), each.as_of.timestamp_ms) for each in found.uses if each.as_of is not None
    ]


def test_a_select_without_as_of_is_unchanged() -> None:
    text = "SELECT Orders.a, 'orders' FROM Orders JOIN `other` ON x.orders = 1"
    found = rewritten(text, "orders", "other")
    assert found.text == text
    assert [each.name for each in found.uses] == ["orders", "other"]
    assert [found.source_at(at) for at in (0, 10, len(text) - 1)] == [0, 10, len(text) - 1]


def test_a_table_as_of_an_offset_is_another_view_with_the_name_of_the_table() -> None:
    found = rewritten("SELECT orders.a FROM orders AS OF OFFSET 100 WHERE orders.a > 1", "orders")
    assert found.text == "SELECT orders.a FROM `orders @1` AS `orders` WHERE orders.a > 1"
    assert as_of(found) == [("orders @1", {-1: 100}, None)]


@pytest.mark.parametrize("alias", ["o", "AS o", "`o`"])
def test_an_alias_is_kept(alias: str) -> None:
    found = rewritten(f"SELECT o.a FROM orders AS OF OFFSET (0 = 5, 1 = 7) {alias} WHERE o.a = 1", "orders")
    assert found.text == f"SELECT o.a FROM `orders @1` {alias} WHERE o.a = 1"
    assert as_of(found) == [("orders @1", {0: 5, 1: 7}, None)]


def test_a_statement_may_compare_two_times() -> None:
    found = rewritten(
        "SELECT a.n - b.n FROM orders AS OF TIMESTAMP '2026-11-21T08:00:00' a, orders AS OF TIMESTAMP '1000' b",
        "orders",
    )
    assert found.text == "SELECT a.n - b.n FROM `orders @1` a, `orders @2` b"
    assert [each[2] for each in as_of(found)] == [1_795_248_000_000, 1_000]


def test_positions_behind_as_of_are_those_of_the_users_text() -> None:
    text = "SELECT 1 FROM orders AS OF OFFSET 100 WHERE wrong = 1"
    found = rewritten(text, "orders")
    for word in ("SELECT", "FROM", "WHERE", "wrong"):
        assert text.startswith(word, found.source_at(found.text.index(word)))


def test_a_second_statement_has_positions_of_the_whole_text() -> None:
    source = Source("SHOW TABLES;\nSELECT wrong FROM t")
    *_, statement = parse(source)
    assert isinstance(statement, Select)
    found = rewrite(statement.query, ["t"])
    assert found.text == "SELECT wrong FROM t"
    assert source.text.startswith("wrong", found.source_at(7))


@pytest.mark.parametrize(
    ("text", "tables"),
    [
        ("SELECT sum(n) AS t FROM u", ["u"]),
        ("SELECT t, t.a, t(1) FROM u AS t WHERE t > 1 GROUP BY t, v ORDER BY t, v", ["u"]),
        ("SELECT 1 FROM t, u x JOIN v ON t.a = x.a, (t), (u JOIN v ON true)", ["t", "u", "v"]),
        ("SELECT 1 FROM u JOIN (t CROSS JOIN v) WHERE a IN (SELECT t FROM v)", ["u", "t", "v"]),
        ("SELECT extract(year FROM t), substring(t FROM 2), t IS DISTINCT FROM v FROM u", ["u"]),
        ("WITH t AS (SELECT * FROM u) SELECT * FROM t", ["u"]),
        ("WITH t AS (SELECT * FROM t), v (a, u) AS (SELECT * FROM t) SELECT * FROM t, v", ["t"]),
        ("WITH RECURSIVE t AS (SELECT 1 UNION ALL SELECT * FROM t) SELECT * FROM t JOIN u", ["u"]),
        ("SELECT (WITH t AS (SELECT 1) SELECT * FROM t), a FROM t", ["t"]),
        ("FROM t SELECT u UNION ALL FROM v SELECT a", ["t", "v"]),
        ("SELECT * FROM VALUES (1), (2) AS x, t", ["t"]),
        ("SELECT * FROM u LATERAL VIEW explode(a) x AS t, v", ["u"]),
        ("SELECT * FROM u, LATERAL (SELECT * FROM t WHERE t.a = u.a), LATERAL explode(v)", ["u", "t"]),
        ("SELECT * FROM u |> WHERE t > 1 |> SELECT v, t |> JOIN t ON true", ["u", "t"]),
        ("SELECT * FROM f(TABLE t), g(TABLE(u)), other.v, `v` w", ["t", "u", "v"]),
        ("SELECT window(at, '1 hour'), t FROM u WATERMARK at DELAY OF INTERVAL 1 MINUTE, v GROUP BY 1, t", ["u", "v"]),
        ("(SELECT t FROM u) UNION (SELECT * FROM v)", ["u", "v"]),
    ],
)
def test_tables_are_the_names_where_tables_stand(text: str, tables: list[str]) -> None:
    assert [each.name for each in rewritten(text, "t", "u", "v").uses] == tables


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "SELECT * FROM t AS OF OFFSET " + "9" * 5_000,
            "q.sql:1:30: an offset or partition must be a whole number from 0",
        ),
        ("SELECT * FROM nothing AS OF OFFSET 1", "q.sql:1:15: AS OF needs a table, and there is no table nothing"),
        ("SELECT * FROM t AS OF OFFSET x", "q.sql:1:30: expected a whole number"),
        ("SELECT * FROM t AS OF OFFSET", "q.sql:1:29: expected a whole number, found the end of the statement"),
        ("SELECT * FROM t AS OF OFFSET (0 5)", "q.sql:1:33: expected = as in OFFSET (0 = 100, 1 = 70)"),
        ("SELECT * FROM t AS OF TIMESTAMP 'noon'", "q.sql:1:33: 'noon': must be a time such as"),
    ],
)
def test_a_wrong_as_of_is_pointed_at(text: str, message: str) -> None:
    with pytest.raises(SqlError, match="^" + re.escape(message)):
        rewritten(text, "t")


def test_a_position_keeps_its_place_for_errors_of_the_cluster() -> None:
    text = "SELECT * FROM t AS OF OFFSET 900"
    (use,) = rewritten(text, "t").uses
    assert use.as_of == AsOf({-1: 900}, None, text.index("AS OF"), len(text))
