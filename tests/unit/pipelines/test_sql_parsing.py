"""The statements of ``headrace-pipelines sql``: tokens, their positions, and errors that point at a token."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace_pipelines.sql.faults import Source, SqlError, pointed
from headrace_pipelines.sql.parsing import parse
from headrace_pipelines.sql.statements import (
    CreateFunction,
    CreateTable,
    CreateTableAs,
    CreateView,
    Drop,
    InsertSelect,
    InsertValues,
    Select,
    Set,
    Show,
    Statement,
)
from headrace_pipelines.sql.tokens import Kind, Token, Typed, is_complete, pieces, tokens


def one(text: str) -> Statement:
    (statement,) = parse(Source(text))
    return statement


def fault(text: str) -> str:
    with pytest.raises(SqlError) as error:
        list(parse(Source(text, "q.sql")))
    return error.value.message


# -- tokens ------------------------------------------------------------------------------------------------------------


def test_tokens_have_their_positions_and_meanings() -> None:
    text = "SELECT `a``b`, 'it''s', \"x\\ny\" -- a comment\n FROM t /* ; */ WHERE n >= 1.5e3"
    found = list(tokens(Source(text)))
    assert [text[each.at : each.end] for each in found] == [
        "SELECT", "`a``b`", ",", "'it''s'", ",", '"x\\ny"', "FROM", "t", "WHERE", "n", ">", "=", "1.5e3",
    ]  # fmt: skip
    assert [each.value for each in found if each.kind in (Kind.QUOTED, Kind.STRING)] == ["a`b", "it's", "x\ny"]
    assert found[-1].kind is Kind.NUMBER
    assert found[1].word == "", "a quoted name is no keyword"


def test_semicolons_end_statements_but_not_within_strings_and_comments() -> None:
    found = list(pieces(Source("SELECT ';'; -- ;\n;; SHOW TABLES /* ; */; SELECT 1")))
    assert [len(each.tokens) for each in found] == [2, 2, 2]
    assert [each.is_ended for each in found] == [True, True, False]


def test_comments_nest_and_raw_strings_have_no_escapes() -> None:
    found = list(pieces(Source("SELECT /* a /* b */ ; c */ r'\\', R\"a\\n\", bar'x'; SHOW TABLES")))
    assert [len(each.tokens) for each in found] == [7, 2]
    assert [each.value for each in found[0].tokens if each.kind is Kind.STRING] == ["\\", "a\\n", "x"]


def test_a_prompt_reads_each_line_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read = 0

    def counted(source: Source) -> Iterator[Token]:
        nonlocal read
        read += len(source.text)
        return tokens(source)

    monkeypatch.setattr("headrace_pipelines.sql.tokens.tokens", counted)
    values = [f"  ({number}, 'it''s'), -- a ; comment" for number in range(1_000)]
    texts = ["a line of a text"] * 1_000
    lines = ["INSERT INTO t VALUES", *values, "  (0, 'begin", *texts, "end'), /* ;", *texts, "; */ (1, 'x')"]
    typed = Typed()
    assert not any(typed.add(line) for line in lines)
    assert typed.add(";")
    assert typed.text == "\n".join([*lines, ";"])
    assert read <= 3 * len(typed.text), "and not the square of it"


@pytest.mark.parametrize(
    ("lines", "complete"),
    [
        (["SELECT 'a''", "b'", ";"], [False, False, True]),
        (["SELECT 'it''s", "'';'", ";"], [False, False, True]),
        (["SELECT r'a", "\\'", ";"], [False, False, True]),
        (["SELECT 1; /* a", "/* */", "*/"], [False, False, True]),
        (["SELECT `a", ";", "` ;"], [False, False, True]),
    ],
)
def test_an_open_part_of_a_statement_waits_for_its_end(lines: list[str], complete: list[bool]) -> None:
    typed = Typed()
    assert [typed.add(line) for line in lines] == complete
    assert is_complete("\n".join(lines))


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        ("SELECT 1;", True), ("SELECT 1", False), ("", True), ("  -- only a comment", True), ("SELECT 'a;", False),
        ("SELECT 1; SELECT", False), ("SELECT /* ;", False), ("SELECT `a;", False), ("SELECT \x01", True),
    ],
)  # fmt: skip
def test_the_prompt_knows_when_a_statement_is_complete(text: str, complete: bool) -> None:
    assert is_complete(text) is complete


@pytest.mark.parametrize(
    ("text", "what", "at"),
    [
        ("SELECT 'open", "a string begins here and does not end", 7),
        ("SELECT `open", "a name begins here and does not end", 7),
        ("SELECT /* open", "a comment begins here and does not end", 7),
        ("SELECT \x01", "unexpected character '\\x01'", 7),
    ],
)
def test_what_does_not_end_is_named_where_it_begins(text: str, what: str, at: int) -> None:
    with pytest.raises(SqlError) as error:
        list(tokens(Source(text)))
    assert (error.value.what, error.value.at) == (what, at)


# -- statements --------------------------------------------------------------------------------------------------------


def test_a_table_has_columns_with_sparks_types_and_options() -> None:
    table = one(
        "create table Riders (id STRING PRIMARY KEY, at TIMESTAMP NOT NULL, "
        "tags ARRAY<STRUCT<a: INT, b: DECIMAL(3, 1)>>) with (topic = 'riders', partitions = 3)"
    )
    assert isinstance(table, CreateTable)
    assert [(each.name.value, each.type, each.not_null, each.is_key) for each in table.columns] == [
        ("id", "STRING", True, True),
        ("at", "TIMESTAMP", True, False),
        ("tags", "ARRAY<STRUCT<a: INT, b: DECIMAL(3, 1)>>", False, False),
    ]
    assert {name: each.value.value for name, each in table.options.items()} == {"topic": "riders", "partitions": "3"}
    assert not table.is_stream


def test_a_continuous_table_keeps_the_text_of_its_select() -> None:
    table = one("CREATE TABLE IF NOT EXISTS t WITH (key = 'a') AS  SELECT a,\n count(*) n FROM s GROUP BY a ;")
    assert isinstance(table, CreateTableAs)
    assert (table.query.text, table.if_not_exists) == ("SELECT a,\n count(*) n FROM s GROUP BY a", True)


def test_a_common_table_expression_is_a_select() -> None:
    assert isinstance(one("WITH a AS (SELECT 1) SELECT * FROM a"), Select)
    assert isinstance(one("CREATE VIEW v AS WITH a AS (SELECT 1) SELECT * FROM a"), CreateView)


def test_emit_changes_and_its_limit_are_taken_from_the_select() -> None:
    select = one("SELECT * FROM t WHERE a > 1 EMIT CHANGES LIMIT 5")
    assert isinstance(select, Select)
    assert (select.query.text, select.emits, select.limit) == ("SELECT * FROM t WHERE a > 1", True, 5)
    plain = one("SELECT * FROM t LIMIT 5")
    assert isinstance(plain, Select)
    assert (plain.query.text, plain.emits, plain.limit) == ("SELECT * FROM t LIMIT 5", False, None)


def test_inserts_are_values_or_a_continuous_select() -> None:
    values = one("INSERT INTO t (a, b) VALUES (1, 'x'), (2, now())")
    assert isinstance(values, InsertValues)
    assert ([each.value for each in values.columns], values.query.text) == (["a", "b"], "VALUES (1, 'x'), (2, now())")
    inserted = one("INSERT INTO t SELECT * FROM s EMIT CHANGES;")
    assert isinstance(inserted, InsertSelect)
    assert inserted.query.text == "SELECT * FROM s"


def test_a_function_is_text_for_spark() -> None:
    function = one("CREATE OR REPLACE FUNCTION f(a INT) RETURNS INT RETURN a + 1;")
    assert isinstance(function, CreateFunction)
    assert (function.text, function.replaces) == ("f(a INT) RETURNS INT RETURN a + 1", True)


def test_short_statements() -> None:
    assert one("SHOW queries") == Show("QUERIES")
    dropped = one("DROP STREAM IF EXISTS t DELETE TOPIC")
    assert isinstance(dropped, Drop)
    assert (dropped.kind, dropped.name.value, dropped.if_exists, dropped.with_topic) == ("TABLE", "t", True, True)
    assigned = one("SET rows.max = 5")
    assert isinstance(assigned, Set)
    assert assigned.name is not None
    assert (assigned.name.value, assigned.value) == ("rows.max", "5")
    assert one("SET") == Set()


# -- errors ------------------------------------------------------------------------------------------------------------


def test_an_error_points_at_its_token() -> None:
    assert fault("SHOW TABLES;\nCREATE TABLE t (a INT)\n\tWITH (topic 'x')") == (
        "q.sql:3:14: expected =, found 'x'\n"
        "  3 | \tWITH (topic 'x')\n"
        "    | \t            ^^^"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("CREAT TABLE t (a INT)", "q.sql:1:1: expected SELECT, CREATE, INSERT, DROP, SHOW, DESCRIBE, EXPLAIN, "
                                  "TERMINATE or SET (did you mean CREATE?), found CREAT"),
        ("SHOW TOPIKS", "q.sql:1:6: expected TABLES, TOPICS, QUERIES or FUNCTIONS (did you mean TOPICS?), found "
                        "TOPIKS"),
        ("LIST TOPICS", "q.sql:1:1: expected SELECT, CREATE, INSERT, DROP, SHOW, DESCRIBE, EXPLAIN, TERMINATE or SET "
                        "(write SHOW), found LIST"),
        ("SHOW STREAMS", "q.sql:1:6: expected TABLES, TOPICS, QUERIES or FUNCTIONS (write SHOW TABLES), found STREAMS"),
        ("CREATE TABLE", "q.sql:1:13: expected the name of the table, found the end of the statement"),
        ("CREATE TABLE t (a, b INT)", "q.sql:1:18: expected the type of column a, found ,"),
        ("CREATE TABLE t (a INT, A INT)", "q.sql:1:24: two columns have the name A"),
        ("CREATE STREAM t (a INT PRIMARY KEY)", "q.sql:1:18: a stream has no primary key; write CREATE TABLE"),
        ("CREATE TABLE t (a INT) AS SELECT 1", "q.sql:1:17: CREATE TABLE AS SELECT has the columns of its SELECT"),
        ("CREATE TABLE t WITH (key = 'a', key = 'b')", "q.sql:1:33: the option key is given twice"),
        ("CREATE OR REPLACE TABLE t (a INT)", "q.sql:1:19: expected VIEW or FUNCTION"),
        ("SHOW TABLES t", "q.sql:1:13: expected the end of the statement, found t"),
        ("SELECT 1 EMIT CHANGES LIMIT many", "q.sql:1:29: expected a number of rows, found many"),
        ("INSERT INTO t (a) SELECT 1", "q.sql:1:16: INSERT ... SELECT uses the column names of its SELECT"),
        ("EXPLAIN DROP TABLE t", "q.sql:1:9: expected SELECT, found DROP"),
        ("INSERT INTO t (a, b, A) VALUES (1, 2, 3)", "q.sql:1:22: the column A is given twice"),
        ("CREATE TABLE t (a INT, _Offset INT)", "q.sql:1:24: the name _Offset is reserved for a record's position"),
        ("SELECT 1 EMIT CHANGES LIMIT " + "9" * 5_000, "q.sql:1:29: LIMIT must be a whole number from 0 to "
                                                        "9,223,372,036,854,775,807"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_at_its_place(text: str, message: str) -> None:
    assert fault(text).startswith(message)


@pytest.mark.parametrize("name", ["..", ".", "", "/etc", "a/b", "../x", "a b", "a`b", "ä", "a" * 201])
@pytest.mark.parametrize("kind", ["TABLE", "STREAM", "VIEW", "FUNCTION"])
def test_a_new_name_is_no_path(kind: str, name: str) -> None:
    quoted = name.replace("`", "``")
    message = fault(f"CREATE {kind} `{quoted}` AS SELECT 1")
    assert message.startswith(
        f"q.sql:1:{9 + len(kind)}: the name of a {kind.lower()} may have only letters, digits and underscores, "
        "at most 200"
    )
    assert one(f"CREATE {kind} `2nd_Name` AS SELECT 1" if kind != "STREAM" else "CREATE STREAM `2nd_Name` (a INT)")


def test_text_that_is_not_utf8_is_pointed_at() -> None:
    with pytest.raises(SqlError, match=r"sql:2:8: the text is not UTF-8 here"):
        list(parse(Source("SELECT 1;\nSELECT " + b"\xff".decode(errors="surrogateescape"))))


@pytest.mark.parametrize("at", [0, 5, 500, 995, 999])
def test_an_error_shows_a_part_of_a_long_line(at: int) -> None:
    line = "x" * at + "@" + "y" * (999 - at)
    message = pointed("wrong", Source("\n" + line + "\n"), at + 1, at + 2)
    first, shown, carets = message.splitlines()
    assert first == f"sql:2:{at + 1}: wrong"
    assert shown[carets.index("^")] == "@"
    assert carets.count("^") == 1
    assert len(shown) < 260


def test_statements_before_a_fault_are_parsed() -> None:
    found = parse(Source("SHOW TABLES; SHOW NOTHING"))
    assert next(found) == Show("TABLES")
    with pytest.raises(SqlError):
        next(found)
