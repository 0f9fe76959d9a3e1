"""The shell of ``headrace-pipelines sql`` without Spark: its prompt, its completion, its output, its catalog."""

from __future__ import annotations

import argparse
import datetime
import decimal
import io
import json
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row

from headrace_core.errors import InvalidArgumentError
from headrace_pipelines import cli
from headrace_pipelines.errors import QueryFailedError
from headrace_pipelines.sql import shell
from headrace_pipelines.sql.arrivals import Arrivals
from headrace_pipelines.sql.catalog import Catalog, ContinuousQuery, Table
from headrace_pipelines.sql.command import source_of
from headrace_pipelines.sql.faults import Source, SqlError
from headrace_pipelines.sql.frames import Ends, ends_as_of
from headrace_pipelines.sql.output import cell, fail, lines, plain, show
from headrace_pipelines.sql.parsing import parse
from headrace_pipelines.sql.results import Arriving, Message, Rows
from headrace_pipelines.sql.rewriting import AsOf
from headrace_pipelines.sql.statements import Show


def typed(*given: str) -> tuple[str, list[str]]:
    """A statement read from these lines, and the prompts."""
    prompts: list[str] = []
    left = iter(given)

    def read(prompt: str) -> str:
        prompts.append(prompt)
        return next(left)

    return shell.read_statement(read), prompts


def test_a_statement_may_have_several_lines() -> None:
    assert typed("SELECT ';' AS a", "  FROM t", ";", "next") == (
        "SELECT ';' AS a\n  FROM t\n;",
        [shell.PROMPT, shell.MORE, shell.MORE],
    )


@pytest.mark.parametrize("line", ["exit", "EXIT;", " quit "])
def test_the_words_of_other_shells_end_this_one_without_a_semicolon(line: str) -> None:
    with pytest.raises(EOFError):
        typed(line)


def test_exit_within_a_statement_is_a_part_of_it() -> None:
    assert typed("SELECT", "exit", ";")[0] == "SELECT\nexit\n;"


def test_help_shows_statements_that_the_parser_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    left = iter(["help", "exit"])
    both: Any = Interrupted()
    monkeypatch.setattr(shell, "input", lambda prompt: next(left), raising=False)
    monkeypatch.setattr(shell, "_prepare", lambda history, words: None)
    shell.interactive(both, both, tmp_path / "history", "table")
    assert both.statements == []
    shown = capsys.readouterr().out
    first_five = [line.partition(";")[0] for line in shown.splitlines()[:5]]
    assert len(list(parse(Source("; ".join(first_five))))) == 5


class Interrupted:
    """An engine and a session in one: the first statement meets Ctrl-C, and ends when it is cancelled."""

    def __init__(self) -> None:
        self.is_cancelled = threading.Event()
        self.statements: list[Any] = []

    def next_statements(self) -> threading.Event:
        self.is_cancelled = threading.Event()
        return self.is_cancelled

    def begin(self) -> None:
        pass

    def cancel(self) -> None:
        self.is_cancelled.set()

    def run(self, statement: Any, source: Source) -> Message:
        self.statements.append(statement)
        os.kill(os.getpid(), signal.SIGINT)
        assert self.is_cancelled.wait(30)
        return Message("ended")


def test_an_interrupt_cancels_the_statement_and_waits_for_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    both: Any = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        shell.Shell(both, both, "table").run(Source("SHOW TABLES; SHOW TOPICS;"))
    assert both.statements == [Show("TABLES")]
    assert capsys.readouterr().out == "ended\n"


def test_a_failed_statement_is_the_last_one() -> None:
    class Failing(Interrupted):
        def run(self, statement: Any, source: Source) -> Message:
            self.statements.append(statement)
            raise SqlError("wrong", source, 5)

    both: Any = Failing()
    with pytest.raises(SqlError, match="sql:1:6: wrong"):
        shell.Shell(both, both, "table").run(Source("SHOW TABLES; SHOW TOPICS;"))
    assert len(both.statements) == 1


def test_an_interrupt_before_the_statement_begins_is_not_lost() -> None:
    class Early(Interrupted):
        def begin(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            assert self.is_cancelled.wait(30)

    both: Any = Early()
    with pytest.raises(KeyboardInterrupt):
        shell.Shell(both, both, "table").run(Source("SHOW TABLES;"))
    assert both.statements == []


def test_a_job_that_begins_after_a_cancel_is_cancelled_too() -> None:
    class Late(Interrupted):
        calls = 0
        is_over = threading.Event()

        def cancel(self) -> None:
            super().cancel()
            self.calls += 1
            if self.calls == 3:
                self.is_over.set()

        def run(self, statement: Any, source: Source) -> Message:
            os.kill(os.getpid(), signal.SIGINT)
            assert self.is_over.wait(30)
            return Message("ended")

    both: Any = Late()
    with pytest.raises(KeyboardInterrupt):
        shell.Shell(both, both, "table").run(Source("SHOW TABLES;"))
    assert both.is_over.is_set()


def test_an_interrupt_while_the_shell_waits_cancels_the_statement() -> None:
    """Python 3.11 takes a thread for ended after an interrupt of its ``join``: the statement then ran on."""

    class Waiting(Interrupted):
        def run(self, statement: Any, source: Source) -> Message:
            while "start" in [each.name for each in traceback.extract_stack(sys._current_frames()[main])]:
                time.sleep(0)
            return super().run(statement, source)

    both: Any = Waiting()
    main = threading.get_ident()
    with pytest.raises(KeyboardInterrupt):
        shell.Shell(both, both, "table").run(Source("SHOW TABLES;"))
    assert both.is_cancelled.is_set()


def test_no_statement_runs_beside_one_that_does_not_end() -> None:
    class Endless(Interrupted):
        may_end = threading.Event()

        def run(self, statement: Any, source: Source) -> Message:
            self.statements.append(statement)
            if len(self.statements) == 1:
                os.kill(os.getpid(), signal.SIGINT)
                assert self.may_end.wait(30)
            return Message("ended")

    both: Any = Endless()
    running = shell.Shell(both, both, "table", cancel_s=0.0)
    with pytest.raises(KeyboardInterrupt):
        running.run(Source("SHOW TABLES;"))
    with pytest.raises(QueryFailedError, match="the cancelled statement has not ended"):
        running.run(Source("SHOW TOPICS;"))
    assert both.statements == [Show("TABLES")]
    both.may_end.set()
    assert running.last is not None
    running.last.join(30)
    running.run(Source("SHOW TOPICS;"))
    assert both.statements == [Show("TABLES"), Show("TOPICS")]


def test_an_error_that_the_shell_does_not_know_ends_the_statement_and_not_the_prompt() -> None:
    class Broken(Interrupted):
        def run(self, statement: Any, source: Source) -> Message:
            raise ZeroDivisionError("division by zero")

    both: Any = Broken()
    with pytest.raises(QueryFailedError, match="the statement failed: ZeroDivisionError: division by zero"):
        shell.Shell(both, both, "table").run(Source("SHOW TABLES;"))


def test_completion_knows_keywords_and_names() -> None:
    words = ["riders", "rider_id", "Show"]
    assert shell.completions("ri", words) == ["rider_id", "riders"]
    assert shell.completions("TAB", words) == ["TABLE", "TABLES"]
    assert shell.completions("sel", words) == ["select"]
    assert shell.completions("zzz", words) == []


# -- output ------------------------------------------------------------------------------------------------------------

ROW = Row(a=1, b=Row(c=[decimal.Decimal("1.50"), None]))


@pytest.mark.parametrize(
    ("value", "as_json", "in_a_table"),
    [
        (None, None, "NULL"),
        (True, True, "true"),
        (1.5, 1.5, 1.5),
        (bytearray(b"\x00\x01"), "AAE=", "AAE="),
        (datetime.datetime(2026, 1, 2, 3, 4, 5), "2026-01-02T03:04:05", "2026-01-02T03:04:05"),
        (float("nan"), "NaN", float("nan")),
        (float("-inf"), "-Infinity", float("-inf")),
        ([float("inf")], ["Infinity"], '["Infinity"]'),
        (Row(a=1, b=2), {"a": 1, "b": 2}, '{"a": 1, "b": 2}'),
        (2**63 - 1, 2**63 - 1, 2**63 - 1),
        (-0.0, -0.0, -0.0),
        (decimal.Decimal("9.87654321098765432E-7"), "0.000000987654321098765432", "0.000000987654321098765432"),
        (decimal.Decimal("0E-18"), "0.000000000000000000", "0.000000000000000000"),
        (decimal.Decimal("9" * 38), "9" * 38, "9" * 38),
        (ROW, {"a": 1, "b": {"c": ["1.50", None]}}, '{"a": 1, "b": {"c": ["1.50", null]}}'),
    ],
)
def test_values(value: Any, as_json: Any, in_a_table: Any) -> None:
    assert repr((plain(value), cell(value))) == repr((as_json, in_a_table))


def test_json_has_a_line_for_each_row_and_csv_a_heading() -> None:
    rows = [(1, 'a "b", c'), (None, "ü")]
    assert list(lines(("n", "t"), rows, "json", heading=True)) == [
        '{"n": 1, "t": "a \\"b\\", c"}',
        '{"n": null, "t": "ü"}',
    ]
    assert list(lines(("n", "t"), rows, "csv", heading=True)) == ["n,t", '1,"a ""b"", c"', ",ü"]


def test_two_equal_names_are_two_fields_of_json() -> None:
    rows = [(1, 2, 3, float("nan"))]
    assert list(lines(("id", "id", "id_2", "n"), rows, "json", heading=True)) == [
        '{"id": 1, "id_3": 2, "id_2": 3, "n": "NaN"}'
    ]
    struct = Row("a", "a")(1, 2)
    assert plain(struct) == {"a": 1, "a_2": 2}


def test_rows_and_messages_do_not_mix_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    show(Message("table t is there"), "json")
    show(Rows(("n",), [(1,)], has_more=True), "json")
    said = capsys.readouterr()
    assert said.out == '{"n": 1}\n'
    assert said.err == "table t is there\nonly the first 1 rows are shown; SET rows.max = N shows more, LIMIT N fewer\n"
    show(Message("table t is there"), "table")
    show(Rows(("n", "name"), [(10, "a"), (2, None)]), "table")
    assert capsys.readouterr().out.splitlines() == ["table t is there", " n  name", "10  a", " 2  NULL"]


def test_a_record_cannot_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    value = "a\x1b[2J\nb\u202e\x9b"
    show(Rows(("text",), [(value,)]), "table")
    fail(f"t-0@0: {value}\nsecond line")
    said = capsys.readouterr()
    assert r"a\x1b[2J\nb\u202e\x9b" in said.out
    assert said.err == "1 row\nt-0@0: a\\x1b[2J\nb\\u202e\\x9b\nsecond line\n"
    show(Rows(("text",), [(value,)]), "csv")
    assert value in capsys.readouterr().out, "a program gets what the record has"
    for result, output in ((Rows(("text",), [(value,)]), "json"), (Arriving(("text",), iter([(value,)])), "table")):
        show(result, output)
        line = capsys.readouterr().out
        assert json.loads(line) == {"text": value}
        assert line.isascii(), "a terminal shows JSON, too"


def test_rows_that_arrive_are_printed_one_by_one(capsys: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []

    def rows() -> Iterator[tuple[int]]:
        for number in (1, 2):
            said.append(capsys.readouterr().out)
            yield (number,)

    show(Arriving(("n",), rows()), "table")
    assert [*said, capsys.readouterr().out] == ["", '{"n": 1}\n', '{"n": 2}\n']


# -- the catalog -------------------------------------------------------------------------------------------------------


def test_the_catalog_is_there_after_a_restart(tmp_path: Path) -> None:
    catalog = Catalog.open(tmp_path / "new")
    catalog.tables["t"] = Table("t", "topic", columns=("`a` INT",), key=("a",), is_latest=True)
    catalog.views["v"] = "SELECT 1"
    catalog.functions["f"] = "f() RETURNS INT RETURN 1"
    catalog.queries["t"] = ContinuousQuery("t", "t", "SELECT * FROM s", "sql.t.1", ("s",))
    catalog.save()
    again = Catalog.open(tmp_path / "new")
    assert again == catalog
    assert (again.names, again.users_of("table", "s"), again.new_id("t"), again.new_id("u")) == (
        {"t", "v"},
        ["t"],
        "t_2",
        "u",
    )


EMPTY: dict[str, Any] = {"tables": {}, "views": {}, "functions": {}, "queries": {}}
DAMAGED = [
    "{", "", "[]", "{}", "null", "1", '"text"', *(json.dumps(each) for each in (
        {**EMPTY, "tables": []}, {**EMPTY, "views": {"v": 1}}, {**EMPTY, "functions": None},
        {**EMPTY, "tables": {"t": {"name": "t", "topic": "t", "unknown": 1}}},
        {**EMPTY, "tables": {"t": {"name": "t"}}},
        {**EMPTY, "tables": {"t": {"name": "t", "topic": 1}}}, {**EMPTY, "tables": {"t": []}},
        {**EMPTY, "queries": {"q": {"id": "q", "target": "t", "text": "", "application": "a", "reads": [1]}}},
        {**EMPTY, "queries": {"q": {"id": "q", "target": "t", "text": "", "application": "a"}}},
    )),
]  # fmt: skip


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_catalog_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "catalog.json").write_text(text)
    with pytest.raises(InvalidArgumentError, match=r"catalog\.json is damaged: .*; move it away"):
        Catalog.open(tmp_path)


# -- AS OF -------------------------------------------------------------------------------------------------------------


class Times:
    """A consumer that knows the records of partition 0: one at each 10 ms from 1,000 ms on."""

    def offsets_for_times(self, times: Any) -> Any:
        found = {}
        for partition, at in times.items():
            offset = max(0, (at - 1_000 + 9) // 10)
            found[partition] = type("At", (), {"offset": offset})() if offset < 5 else None
        return found


def test_positions_become_offsets_of_each_partition() -> None:
    one, two = Ends({0: 0}, {0: 5}), Ends({0: 2, 1: 0}, {0: 5, 1: 7})
    consumer: Any = Times()
    assert ends_as_of(consumer, "t", one, AsOf({-1: 3})) == {0: 3}
    assert ends_as_of(consumer, "t", two, AsOf({0: 2, 1: 7})) == {0: 2, 1: 7}
    assert ends_as_of(consumer, "t", one, AsOf(timestamp_ms=1_015)) == {0: 2}
    assert ends_as_of(consumer, "t", one, AsOf(timestamp_ms=9_999)) == {0: 5}, "later than all records: all of them"


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ({-1: 3}, r"t has 2 partitions; give the offset of each: AS OF OFFSET \(0 = 5, 1 = 7\)"),
        ({0: 3}, "t has the partitions 0, 1; give the offset of each"),
        ({0: 1, 1: 7}, "partition 0 of t has the offsets 2 to 5, and not 1"),
        ({0: 5, 1: 8}, "partition 1 of t has the offsets 0 to 7, and not 8"),
    ],
)
def test_a_position_that_the_topic_does_not_have_is_refused(offsets: dict[int, int], message: str) -> None:
    consumer: Any = Times()
    with pytest.raises(InvalidArgumentError, match=message):
        ends_as_of(consumer, "t", Ends({0: 2, 1: 0}, {0: 5, 1: 7}), AsOf(offsets))


def test_rows_wait_for_a_slow_reader_until_the_statement_ends() -> None:
    arrivals = Arrivals(2)
    rows = [(number,) for number in range(5)]
    putting = threading.Thread(target=arrivals.put, args=(rows,))
    putting.start()
    assert [arrivals.get() for _ in range(3)] == rows[:3]
    putting.join(0.01)
    arrivals.put([])
    arrivals.close()
    putting.join(30)
    assert not putting.is_alive()
    arrivals.put([(9,)])  # a batch that ends later
    left = [row for _ in range(3) if (row := arrivals.get()) is not None]
    assert left == rows[3 : 3 + len(left)]


# -- the command -------------------------------------------------------------------------------------------------------


def test_without_a_cluster_the_command_says_how_to_start_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--bootstrap-servers", "127.0.0.1:1", "--out", str(tmp_path / "out")]
    assert cli.main(["sql", "-e", "SHOW TABLES", *flags]) == 1
    said = capsys.readouterr().err
    assert "127.0.0.1:1" in said
    assert "Start a cluster with `headrace up --data ./data -d`, or give --bootstrap-servers" in said


def test_a_text_that_is_not_utf8_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "q.sql"
    for name, content in ((str(path), b"SHOW TABLES;\nSELECT '\xff'"), ("stdin", b"\xff")):
        path.write_bytes(content)
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
        file = path if name != "stdin" else None
        line = content.count(b"\n") + 1
        with pytest.raises(InvalidArgumentError, match=f"{re.escape(name)}:{line}: the text is not UTF-8"):
            source_of(argparse.Namespace(execute=None, file=file, serve=False))
    path.write_bytes("\ufeffSELECT 'é'\r\n".encode())  # as an editor of Windows writes it
    found = source_of(argparse.Namespace(execute=None, file=path, serve=False))
    assert found is not None
    assert found.text == "SELECT 'é'\n"


def test_a_line_that_is_not_utf8_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def read(prompt: str) -> str:
        if not asked:
            asked.append(prompt)
            return b"\xff".decode()
        raise EOFError

    asked: list[str] = []
    both: Any = Interrupted()
    monkeypatch.setattr(shell, "input", read, raising=False)
    monkeypatch.setattr(shell, "_prepare", lambda history, words: None)
    shell.interactive(both, both, tmp_path / "history", "table")
    assert asked
    assert "the line is not UTF-8, and is ignored: invalid start byte" in capsys.readouterr().err


def test_ctrl_c_between_the_line_and_its_statement_drops_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such a Ctrl-C ended the shell, and with it its continuous queries."""

    def source(*arguments: Any) -> Source:
        if not pressed:
            pressed.append(True)
            raise KeyboardInterrupt
        return Source(*arguments)

    pressed: list[bool] = []
    left = iter(["SELECT 1;", "help", "exit"])
    both: Any = Interrupted()
    monkeypatch.setattr(shell, "input", lambda prompt: next(left), raising=False)
    monkeypatch.setattr(shell, "_prepare", lambda history, words: None)
    monkeypatch.setattr(shell, "Source", source)
    shell.interactive(both, both, tmp_path / "history", "table")
    assert (pressed, both.statements) == ([True], [])
    assert "SHOW TABLES" in capsys.readouterr().out, "the shell goes on"
