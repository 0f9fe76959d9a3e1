"""Which SELECT a table can follow: the rules on Spark's plan, without Spark."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace_pipelines.sql.faults import Source
from headrace_pipelines.sql.keeping import (
    Fault,
    Shape,
    key_fault,
    not_continuous,
    partition_fault,
    shape_of,
    time_of_now,
)
from headrace_pipelines.sql.parsing import select_of
from headrace_pipelines.sql.plans import Node, Value
from headrace_pipelines.sql.tokens import tokens

#: FROM orders, which has the columns item (1) and id (2); the aggregates make n (3) and other columns.
ORDERS = Node(
    "SubqueryAlias",
    (
        Node(
            "Table",
            values=(Value("AttributeReference", "item", id=1), Value("AttributeReference", "Id", id=2)),
            table="Orders",
        ),
    ),
)
ITEM, ID, N = (Value("AttributeReference", "attributereference", id=number) for number in (1, 2, 3))


def literal(text: str) -> Value:
    return Value("Literal", text)


def call(name: str, *of: Value, is_fixed: bool = True) -> Value:
    return Value(name.title(), name, of, is_fixed=is_fixed)


def aggregate(name: str, *of: Value) -> Value:
    return Value("AggregateExpression", name, (call(name, *of),))


def alias(value: Value, number: int, group: int | None = None) -> Value:
    return Value("Alias", "alias", (value,), number, group)


def project(child: Node, *values: Value) -> Node:
    return Node("Project", (child,), values)


def where(child: Node, *of: Value) -> Node:
    return Node("Filter", (child,), (call("lessthan", *of),))


def over(kind: str, *children: Node, **more: object) -> Node:
    return replace(Node(kind, children), **more)  # type: ignore[arg-type]


#: SELECT item, count(*) AS n FROM orders GROUP BY item
COUNTS = Node("Aggregate", (ORDERS,), (replace(ITEM, group=0), alias(aggregate("count", literal("1")), 3), ITEM), 1)
COLUMNS = {1: "item", 3: "n"}
#: Rows of orders, in the order of its partitions.
ROWS = Shape(table="Orders", sources={"item": "item"})


def shape(plan: Node, columns: dict[int, str] = COLUMNS) -> Shape:
    found = shape_of(plan, columns)
    assert isinstance(found, Shape), found
    return found


def fault(plan: Node) -> str:
    found = shape_of(plan, COLUMNS)
    assert isinstance(found, Fault), found
    return found.what


# -- what is accepted --------------------------------------------------------------------------------------------------


def test_rows_without_an_aggregate_stay() -> None:
    exploded = over("Generate", where(ORDERS, ID, literal("3")), values=(call("explode", ITEM),))
    for plan in (ORDERS, project(exploded, ITEM), over("EventTimeWatermark", ORDERS)):
        found = shape(plan)
        assert (found.table, found.is_aggregate, found.is_mixed) == ("Orders", False, False)


@pytest.mark.parametrize("kind", ["Union", "Join", "Repartition", "RepartitionByExpression"])
def test_rows_of_two_streams_have_no_order(kind: str) -> None:
    assert shape(over(kind, ORDERS, ORDERS, join="INNER" if kind == "Join" else "")) == Shape(is_mixed=True)


def test_an_aggregate_knows_the_columns_of_its_groups() -> None:
    assert shape(COUNTS) == Shape(True, ("item",), frozenset(["item"]), drops=False)


def test_a_filter_over_the_aggregate_may_drop_a_group() -> None:
    assert shape(where(COUNTS, N, literal("3"))).drops
    named = over("SubqueryAlias", project(COUNTS, ITEM, alias(N, 4)))
    above = project(where(named, call("f", Value("AttributeReference", id=4))), ITEM)
    assert shape(over("View", above)).drops, "through a view, an alias and a function"


def test_a_filter_by_the_group_alone_drops_only_groups_that_were_never_written() -> None:
    assert not shape(where(COUNTS, ITEM, literal("x"))).drops
    assert shape(where(where(COUNTS, ITEM, literal("x")), ITEM, N)).drops


def test_a_renamed_group_is_still_the_group() -> None:
    renamed = project(project(COUNTS, alias(ITEM, 5), N), alias(Value("AttributeReference", id=5), 6), N)
    assert shape(renamed, {6: "i", 3: "n"}).groups == ("i",)
    assert shape(project(COUNTS, alias(call("upper", ITEM), 5), N), {5: "u", 3: "n"}) == Shape(
        True, (None,), frozenset(["u"])
    ), "upper(item) is of the group, and does not determine it"


def test_a_join_with_given_rows_may_stand_below_an_aggregate() -> None:
    values = Node("LocalRelation", is_stream=False)
    joined = over("Join", ORDERS, values, join="LEFT OUTER")
    assert shape(replace(COUNTS, children=(joined,))).groups == ("item",)


@pytest.mark.parametrize("name", ["sort_array", "size", "array_max"])
def test_a_list_is_accepted_where_its_order_does_not_show(name: str) -> None:
    values = (replace(ITEM, group=0), alias(call(name, aggregate("collect_list", ID)), 3), ITEM)
    assert shape(replace(COUNTS, values=values)).is_aggregate


def test_texts_are_no_functions() -> None:
    words = [literal(text) for text in ("first", "current_user", "rand", "now")]
    assert shape(project(where(COUNTS, ITEM, *words), ITEM, alias(words[0], 3), N)).is_aggregate
    ordered = Value("SortOrder", "sortorder", (ITEM,))
    listed = alias(Value("AggregateExpression", "listagg", (call("listagg", ITEM, literal(","), ordered),)), 3)
    assert shape(replace(COUNTS, values=(replace(ITEM, group=0), listed, ITEM))).is_aggregate


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("Join", "a join over an aggregate"),
        ("LateralJoin", "a join over an aggregate"),
        ("Generate", "explode, or another function that makes rows over an aggregate"),
        ("GlobalLimit", "LIMIT over an aggregate"),
        ("Offset", "OFFSET over"),
        ("Distinct", "DISTINCT over"),
        ("Union", "UNION over"),
        ("Except", "EXCEPT over"),
        ("Intersect", "INTERSECT over"),
        ("Sort", "ORDER BY over"),
        ("Window", "a function with OVER over"),
        ("Sample", "TABLESAMPLE over"),
        ("Unpivot", "Unpivot over"),
    ],
)
def test_only_filters_stand_over_an_aggregate(kind: str, what: str) -> None:
    for plan in (over(kind, COUNTS), project(where(over(kind, COUNTS, ORDERS), ITEM), ITEM)):
        assert fault(plan).startswith(what)
        assert "CREATE VIEW" in fault(plan)


def test_a_second_aggregate_is_refused() -> None:
    assert "a second aggregate below" in fault(replace(COUNTS, children=(project(COUNTS, N),)))


@pytest.mark.parametrize("kind", ["GlobalLimit", "Distinct", "Window", "Sample", "Sort", "Offset", "Except", "Unknown"])
def test_rows_that_depend_on_other_rows_are_refused_also_without_an_aggregate(kind: str) -> None:
    assert "in a continuous query" in fault(over(kind, ORDERS))
    assert "below an aggregate" in fault(replace(COUNTS, children=(over(kind, ORDERS),)))


@pytest.mark.parametrize("join", ["LEFT OUTER", "RIGHT OUTER", "FULL OUTER", "LEFT SEMI", "LEFT ANTI"])
def test_a_row_of_a_stream_without_a_match_is_never_certain(join: str) -> None:
    assert f"a {join} JOIN of two streams" in fault(over("Join", ORDERS, ORDERS, join=join))


ORDERED = ["first", "last", "any_value", "collect_list", "collect_set", "array_agg", "listagg", "mode",
           "approx_percentile", "histogram_numeric"]  # fmt: skip


@pytest.mark.parametrize("name", ORDERED)
def test_functions_of_the_order_are_refused(name: str) -> None:
    values = (replace(ITEM, group=0), alias(aggregate(name, ID), 3), ITEM)
    assert f"{name}() depends on the order" in fault(replace(COUNTS, values=values))
    hidden = (replace(ITEM, group=0), alias(call("upper", call("sort_array", call("f", aggregate(name, ID)))), 3), ITEM)
    assert f"{name}() depends on the order" in fault(replace(COUNTS, values=hidden))


@pytest.mark.parametrize("name", ["current_timestamp", "current_date", "current_user", "now", "localtimestamp"])
def test_functions_of_the_present_are_refused_everywhere(name: str) -> None:
    for plan in (
        project(ORDERS, alias(call(name), 3)),
        where(ORDERS, ID, call(name)),
        where(COUNTS, N, call("f", call(name))),
        replace(COUNTS, children=(where(ORDERS, call(name)),)),
        where(ORDERS, Value("ScalarSubquery", plan=project(Node("OneRowRelation"), call(name)))),
    ):
        assert f"{name}() depends on when" in fault(plan)


def test_functions_of_chance_are_refused_also_inside_a_function() -> None:
    rand = call("rand", literal("5"), is_fixed=False)
    inside = Value("SQLScalarFunction", "sqlscalarfunction", (rand,), is_fixed=False)
    assert "rand() depends on chance" in fault(project(ORDERS, alias(replace(inside), 3)))


def test_texts_for_the_present_are_refused_where_spark_reads_a_time() -> None:
    cast = Value("Cast", "cast", (literal(" Today "),))
    assert "'Today' depends on when" in fault(where(ORDERS, ID, cast))
    found = time_of_now(list(tokens(Source("SELECT id FROM o WHERE at > TIMESTAMP 'now'"))))
    assert found is not None
    assert "TIMESTAMP 'now' depends on when" in found.what
    for text in ("today UTC", "Yesterday Europe/Berlin", "tomorrow+01:00"):
        assert f"'{text}' depends on when" in fault(where(ORDERS, ID, Value("Cast", "cast", (literal(text),))))
    for text in ("todays", "today is a day", "now or never"):
        assert shape(where(ORDERS, ID, Value("Cast", "cast", (literal(text),)))) == ROWS
    sound = "SELECT 'now' AS x, DATE '2026-01-01' FROM o WHERE name = 'today'"
    assert time_of_now(list(tokens(Source(sound)))) is None


def test_a_subquery_stands_only_below_an_aggregate() -> None:
    given = Value("ListQuery", "listquery", plan=Node("LocalRelation", is_stream=False))
    assert "a subquery over an aggregate" in fault(where(COUNTS, N, given))
    assert shape(replace(COUNTS, children=(where(ORDERS, ID, given),))).is_aggregate


def test_a_subquery_over_a_stream_has_no_order_and_no_limit() -> None:
    payments = Value("ListQuery", "listquery", plan=project(ORDERS, ID))
    assert shape(where(ORDERS, ID, payments)) == Shape(is_mixed=True), "a row waits for its match"
    assert shape(where(ORDERS, ID, Value("Exists", plan=where(Node("LocalRelation", is_stream=False), payments))))
    for kind in ("GlobalLimit", "Distinct", "Window"):
        late = Value("ListQuery", "listquery", plan=project(over(kind, ORDERS), ID))
        assert "in a continuous query" in fault(where(ORDERS, ID, late))
        assert "in a continuous query" in fault(replace(COUNTS, children=(where(ORDERS, ID, late),)))
    given = replace(over("Distinct", Node("LocalRelation", is_stream=False)), is_stream=False)
    assert shape(where(ORDERS, ID, Value("ListQuery", plan=given))) == ROWS


def test_an_error_points_at_the_word_or_at_the_start() -> None:
    query = select_of("SELECT item, first(id) FROM orders GROUP BY item", "q.sql")
    error = not_continuous(Fault("wrong", ("FIRST",)), query)
    assert error.code == "NOT_CONTINUOUS"
    assert error.message.startswith("q.sql:1:14: wrong\n")
    assert not_continuous(Fault("wrong", ("LIMIT",)), query).message.startswith("q.sql:1:1: wrong\n")


# -- keys --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "groups", "fault"),
    [
        (["a", "B"], ["A", "b"], None),
        (["a", "b", "u"], ["a"], None),
        (["nope"], ["a"], "there is no column nope; the columns are a, b, u, n"),
        (["a"], ["a", "b"], "the key lacks b, a column of GROUP BY"),
        (["a"], ["a", None], "GROUP BY has an expression that the SELECT lacks"),
        (["a", "n"], ["a"], "the key has n, which changes with its group"),
        (["n"], [], "an aggregate without GROUP BY has one row"),
        ([], [], "an aggregate without GROUP BY has one row"),
    ],
)
def test_a_key_is_the_group(key: list[str], groups: list[str | None], fault: str | None) -> None:
    found = key_fault(key, ["a", "b", "u", "n"], Shape(True, tuple(groups), frozenset(["a", "b", "u"])))
    assert (found or "").startswith(fault or "")
    assert (found is None) is (fault is None)


def test_without_an_aggregate_any_column_is_a_key() -> None:
    assert key_fault(["n"], ["a", "n"], Shape()) is None
    assert key_fault(["x"], ["a", "n"], Shape()) == "there is no column x; the columns are a, n"


def test_each_of_two_equal_columns_is_the_key() -> None:
    count = alias(aggregate("count", literal("1")), 3)
    twice = (replace(ITEM, group=0), alias(ITEM, 7, 0), count)
    columns = {1: "item", 7: "name", 3: "n"}
    for groups in ((ITEM,), (replace(ITEM, group=0), replace(ITEM, group=0))):  # GROUP BY item; GROUP BY ALL
        found = shape(Node("Aggregate", (ORDERS,), twice + groups, len(groups)), columns)
        assert found.groups == ("item",)
        for key in (["item"], ["Name"], ["name", "item"]):
            assert key_fault(key, list(columns.values()), found) is None
        assert "the key lacks item" in (key_fault([], list(columns.values()), found) or "")


def test_a_column_that_a_dropped_row_lacks_is_no_key() -> None:
    upper, renamed = alias(call("upper", ITEM), 5), alias(ITEM, 6)
    columns = {1: "item", 3: "n", 5: "u", 6: "i"}
    above = shape(project(where(COUNTS, N, literal("3")), ITEM, N, upper, renamed), columns)
    assert above.of_group == {"item", "i"}, "u is null in the row that deletes the group, so its key would be another"
    assert key_fault(["item", "u"], list(columns.values()), above) is not None
    below = shape(where(project(COUNTS, ITEM, N, upper, renamed), N, literal("3")), columns)
    assert below.of_group == {"item", "i", "u"}
    of_item = shape(project(where(COUNTS, ITEM, literal("x")), ITEM, N, upper, renamed), columns)
    assert of_item.of_group == {"item", "i", "u"}


# -- rows of one key in several partitions


def test_a_key_that_has_the_key_of_the_stream_keeps_the_order_of_its_rows() -> None:
    renamed = project(where(project(ORDERS, alias(ITEM, 4), ID), ID), alias(Value("AttributeReference", id=4), 5), ID)
    found = shape(renamed, {5: "Name", 2: "id"})
    assert found == Shape(table="Orders", sources={"name": "item", "id": "Id"})
    for key, source in ((["name"], ["ITEM"]), (["id", "name"], ["item"]), (["ID"], ["id"])):
        assert partition_fault(key, found, source) is None, (key, source)
    for key, source, what in (
        (["id"], ["item"], "rows with the same id can come from several partitions of Orders, whose records have the"),
        (["name"], ["item", "id"], "key item, id, so the newest is not determined; use GROUP BY name with max_by(col"),
        (["id"], [], "Orders, which has no key, so the newest is not determined; use GROUP BY id with max_by(column, "
         "_timestamp), or declare the key of Orders: CREATE STREAM ... WITH (key = '...')"),
    ):  # fmt: skip
        assert what in str(partition_fault(key, found, source)), key


def test_a_computed_column_is_not_the_key_of_the_stream() -> None:
    found = shape(project(ORDERS, alias(call("lower", ITEM), 5), alias(ID, 6)), {5: "item", 6: "n"})
    assert found.sources == {"n": "Id"}
    assert partition_fault(["item"], found, ["item"]) is not None
