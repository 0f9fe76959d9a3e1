"""What the definitions of ``headrace-pipelines sql`` need, without Spark: names, keys, what a definition reads, plans,
paths of checkpoints, and functions that need each other."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import IntegerType, StringType, StructType

from headrace_core.errors import InvalidArgumentError, RequestTimedOutError
from headrace_pipelines.errors import QueryFailedError
from headrace_pipelines.sql.catalog import Catalog, ContinuousQuery, Table
from headrace_pipelines.sql.command import Failures
from headrace_pipelines.sql.continuous import Continuous, has_aggregate
from headrace_pipelines.sql.definitions import text_fault
from headrace_pipelines.sql.faults import Source, SqlError
from headrace_pipelines.sql.naming import distinct, spelled, whole_number
from headrace_pipelines.sql.parsing import select_of
from headrace_pipelines.sql.session import in_rounds
from headrace_pipelines.sql.tokens import tokens
from headrace_pipelines.sql.uses import Uses, uses_of, uses_of_function
from headrace_pipelines.topics import markers_written

# -- names, numbers and keys -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("query", ["", ".", "..", "../x", "/x", "a/b", "a b"])
def test_a_checkpoint_is_in_its_directory(tmp_path: Path, query: str) -> None:
    site: Any = type("Site", (), {"directory": tmp_path})()
    continuous = Continuous(site, None)
    kept = tmp_path / "checkpoints" / "orders" / "offsets"
    kept.mkdir(parents=True)
    with pytest.raises(InvalidArgumentError, match="is not the id of a query"):
        continuous.forget(query)
    assert kept.exists()
    continuous.forget("orders_2")
    continuous.forget("orders")
    assert list((tmp_path / "checkpoints").iterdir()) == []


def number(text: str, **limits: int) -> int:
    source = Source(text)
    return whole_number(next(tokens(source)), source, "rows.max", **limits)


def test_whole_numbers_have_limits() -> None:
    assert [number("0"), number("007"), number("2147483647")] == [0, 7, 2**31 - 1]
    for text in ("2147483648", "9" * 5_000):
        with pytest.raises(SqlError, match=r"rows\.max must be a whole number from 0 to 2,147,483,647"):
            number(text)
    with pytest.raises(SqlError, match="from 1 to 5"):
        number("0", least=1, most=5)
    for text in ("1.5", "many", "'x'"):
        with pytest.raises(SqlError, match=r"rows\.max must be a whole number\n"):
            number(text)


def test_names_have_the_spelling_of_the_columns() -> None:
    assert spelled(["profileid", "ID", "other"], ["Id", "profileId"]) == ["profileId", "Id", "other"]
    assert distinct(["a", "a", "a_2", "a", "b"]) == ["a", "a_3", "a_2", "a_4", "b"]


def test_text_has_one_column_of_text() -> None:
    assert text_fault("text", StructType().add("line", StringType())) is None
    assert text_fault("json", StructType().add("a", StringType()).add("b", StringType())) is None
    for wrong in (StructType().add("a", StringType()).add("b", StringType()), StructType().add("n", IntegerType())):
        assert text_fault("text", wrong) == "format text needs one column of type STRING, such as (line STRING)"


# -- what a definition reads -------------------------------------------------------------------------------------------


def catalog(tmp_path: Path, **queries: tuple[str, tuple[str, ...]]) -> Catalog:
    made = Catalog(tmp_path)
    made.tables = {name: Table(name, name) for name in ("orders", "total", "words", "lines", *queries)}
    made.views = {"early": "SELECT f(id) AS words FROM orders", "late": "SELECT * FROM early JOIN lines ON true"}
    made.functions = {"f": "f(a INT) RETURNS INT RETURN g(a)", "g": "g(a INT) RETURNS INT RETURN a"}
    made.queries = {
        name: ContinuousQuery(name, target, "", "", reads=reads) for name, (target, reads) in queries.items()
    }
    return made


def uses(text: str, known: Catalog) -> Uses:
    return uses_of(select_of(text, "q.sql"), known)


def test_a_definition_reads_through_views_and_functions(tmp_path: Path) -> None:
    known = catalog(tmp_path)
    assert uses("SELECT words, max(g) FROM late", known) == Uses({"orders", "lines"}, {"early", "late"}, {"f", "g"})
    assert uses("SELECT sum(n) AS total FROM orders", known) == Uses({"orders"}), "a column is no table"
    assert uses_of_function("h(f INT) RETURNS INT RETURN f + g(f)", known) == {"g"}
    assert uses_of_function(known.functions["f"], known) == {"g"}


def test_a_view_that_reads_itself_is_found(tmp_path: Path) -> None:
    known = catalog(tmp_path)
    known.views["early"] = "SELECT * FROM late"  # as CREATE OR REPLACE VIEW would write it
    assert uses("SELECT * FROM late", known).views == {"early", "late"}


def test_a_wait_follows_each_query_once_also_in_a_circle(tmp_path: Path) -> None:
    known = catalog(
        tmp_path, a=("a", ("b", "orders")), b=("b", ("a",)), own=("own", ("own",)), c=("c", ("words", "b")),
        words_2=("words", ("lines",)), words_3=("words", ("orders",)),
    )  # fmt: skip
    assert [each.id for each in known.writers_of("a")] == ["b", "a"]
    assert [each.id for each in known.writers_of("own")] == ["own"]
    assert [each.id for each in known.writers_of("c")] == ["words_2", "words_3", "a", "b", "c"]
    assert known.writers_of("orders") == []


def test_the_catalog_knows_the_users_of_everything(tmp_path: Path) -> None:
    known = catalog(tmp_path)
    known.tables["copy"] = Table("copy", "orders")
    known.queries["q"] = ContinuousQuery("q", "total", "", "", ("orders",), ("early",), ("f",))
    found = [("table", "total"), ("table", "orders"), ("view", "early"), ("function", "f")]
    assert [known.users_of(*each) for each in found] == [["q"]] * 4
    assert [known.users_of(kind, "lines") for kind in ("table", "view", "function")] == [[], [], []]
    assert known.tables_on("orders") == ["orders", "copy"]


def test_functions_that_need_each_other_are_created_in_any_order() -> None:
    needs = {"a": "b", "b": "c", "c": "", "d": "d"}
    made: list[str] = []

    def create(text: str) -> str | None:
        if needs[text] and needs[text] not in made:
            return f"no function {needs[text]}"
        made.append(text)
        return None

    assert in_rounds({name: name for name in needs}, create) == {"d": "no function d"}
    assert made == ["c", "b", "a"]
    assert in_rounds({}, create) == {}


# -- Spark's plans, and what runs --------------------------------------------------------------------------------------


class Many(list[Any]):
    """A Scala sequence."""

    def size(self) -> int:
        return len(self)

    def apply(self, at: int) -> Any:
        return self[at]


class Node:
    """A node of Spark's plan. The text of a plan has the text of its expressions, too."""

    def __init__(self, name: str, *children: Node) -> None:
        self._name, self._children = name, children

    def nodeName(self) -> str:
        return self._name

    def children(self) -> Many:
        return Many(self._children)

    def toString(self) -> str:
        return "Filter (kind = Aggregate)"


def test_an_aggregate_is_a_node_and_no_word() -> None:
    assert not has_aggregate(Node("Project", Node("Filter", Node("Relation"))))
    assert has_aggregate(Node("Project", Node("Relation"), Node("Join", Node("Aggregate", Node("Relation")))))


def test_serve_reports_each_failure_once_and_ends_with_the_last_query() -> None:
    failed: set[str] = set()

    def check(query: str) -> None:
        if query in failed:
            raise QueryFailedError(f"query {query}: broken")

    failures = Failures(["a", "b"], check)
    assert (failures.new(), failures.are_all) == ([], False)
    failed.add("a")
    assert (failures.new(), failures.are_all) == (["query a: broken"], False)
    assert (failures.new(), failures.are_all) == ([], False)
    failed.add("b")
    assert (failures.new(), failures.are_all) == (["query b: broken"], True)
    none = Failures([], check)
    assert (none.new(), none.are_all) == ([], False), "without a query --serve waits for SIGTERM"


def test_the_wait_for_markers_has_an_end() -> None:
    class Undecided:
        def list_transactions(self, states: Any) -> list[Any]:
            return [type("Listing", (), {"transactional_id": "sql-1"})()]

    admin: Any = Undecided()
    with pytest.raises(RequestTimedOutError, match=r"were not written within 0 s: sql-1; check that the leaders"):
        markers_written(admin, timeout_s=0.0)
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(QueryFailedError, match="was cancelled"):
        markers_written(admin, is_cancelled=cancelled)
