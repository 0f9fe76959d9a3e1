"""Run the statements that a terminal, a file or a pipe contains."""

from __future__ import annotations

import contextlib
import re
import readline
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from headrace_core.errors import HeadraceError
from headrace_spark.causes import cause

from ..errors import QueryFailedError
from ..workers import Worker
from .engine import Engine
from .faults import Source
from .output import fail, show
from .parsing import parse
from .results import Result
from .session import SETTINGS, Session
from .statements import Statement
from .tokens import Typed

#: Seconds between two checks of a statement, and maximum seconds to wait for the end of a cancelled statement.
_LOOK_S, CANCEL_S = 0.05, 30.0
PROMPT, MORE = "sql> ", "...> "
#: Words that end the shell or print HELP when they are alone in a line. These words need no semicolon.
_ENDS, _HELPS = ("exit", "quit"), ("help", "?")
HELP = """\
CREATE STREAM t (id INT, name STRING) WITH (topic = 't', partitions = 1);   declare a topic as a table
INSERT INTO t VALUES (1, 'ann');
SELECT * FROM t;                                        present rows; AS OF OFFSET or TIMESTAMP: up to a position
SELECT * FROM t EMIT CHANGES LIMIT 3;                   what arrives; Ctrl-C ends it
CREATE TABLE n AS SELECT name, count(*) AS n FROM t GROUP BY name;          a continuous query
SHOW TABLES, TOPICS, QUERIES or FUNCTIONS; DESCRIBE t; EXPLAIN SELECT ...; SET; TERMINATE n; DROP TABLE n;
Tab completes, Ctrl-R searches the history, exit or Ctrl-D ends the shell. All statements: docs/pipelines-sql.md"""
_HISTORY_LINES = 10_000
#: Words of statements that the prompt completes; Spark knows many more.
KEYWORDS = (
    "AS", "BY", "CHANGES", "CREATE", "DELETE", "DESCRIBE", "DROP", "EMIT", "EXISTS", "EXPLAIN", "FROM", "FUNCTION",
    "FUNCTIONS", "GROUP", "HAVING", "IF", "INSERT", "INTO", "JOIN", "KEY", "LIMIT", "NOT", "NULL", "OF", "OFFSET", "ON",
    "ORDER", "PRIMARY", "QUERIES", "REPLACE", "RETURN", "RETURNS", "SELECT", "SET", "SHOW", "STREAM", "TABLE", "TABLES",
    "TERMINATE", "TIMESTAMP", "TOPIC", "TOPICS", "VALUES", "VIEW", "WHERE", "WITH",
)  # fmt: skip


class Running(Worker):
    """A thread that runs statements. The main thread handles Ctrl-C: an interrupt during a call of Spark's JVM would
    leave an unfinished answer on the connection to the JVM."""

    def __init__(self, engine: Engine, session: Session, source: Source, output: str) -> None:
        super().__init__("statements")
        self._engine, self._session, self._source, self._output = engine, session, source, output
        self._is_cancelled = session.next_statements()

    def work(self) -> None:
        self._session.begin()
        for statement in parse(self._source):
            if self._is_cancelled.is_set():
                return
            show(self._run(statement), self._output)

    def _run(self, statement: Statement) -> Result:
        try:
            return self._engine.run(statement, self._source)
        except HeadraceError:
            raise
        except Exception as error:  # an unexpected error ends the statement, not the shell
            what = f"the statement failed: {type(error).__name__}: {cause(str(error))}"
            raise QueryFailedError(f"{what}; this error is unexpected: please report it") from error


class Shell:
    """Runs texts on an engine and a session, one at a time."""

    def __init__(self, engine: Engine, session: Session, output: str, *, cancel_s: float = CANCEL_S) -> None:
        self._engine, self._session, self._output = engine, session, output
        self._cancel_s = cancel_s
        self.last: Running | None = None

    def run(self, source: Source) -> None:
        """Run the statements of ``source`` up to the first that fails.

        Raises HeadraceError, and KeyboardInterrupt after Ctrl-C, when the statement has ended, or when it has not ended
        within CANCEL_S seconds. Until that statement has ended, further texts raise QueryFailedError.
        """
        if self.last is not None and not self.last.is_over.is_set():
            raise QueryFailedError(
                "the cancelled statement has not ended yet; repeat this statement later, or press Ctrl-D to end the "
                "shell"
            )
        self.last = running = Running(self._engine, self._session, source, self._output)
        try:
            running.start()
            while not running.is_over.wait(_LOOK_S):
                pass
        except BaseException:
            deadline_s = time.monotonic() + self._cancel_s
            # repeat: a job may begin after a cancel
            while not running.is_over.is_set() and time.monotonic() < deadline_s:
                self._session.cancel()
                running.is_over.wait(_LOOK_S)
            raise
        running.result()


def interactive(engine: Engine, session: Session, history: Path, output: str) -> None:
    """Read statements from the terminal until Ctrl-D. A statement ends with a semicolon, in any line."""
    _prepare(history, lambda: words_of(session))
    shell, number = Shell(engine, session, output), 1
    try:
        while True:
            try:
                try:
                    text = read_statement(input)
                except EOFError:
                    print()
                    return
                except UnicodeDecodeError as error:
                    fail(f"the line is not UTF-8, and is ignored: {error.reason}")
                    continue
                if text.strip().lower() in _HELPS:
                    print(HELP)
                elif text.strip():
                    _run_typed(shell, Source(text, "sql", number))
                number += text.count("\n") + 1
            except KeyboardInterrupt:  # Ctrl-C drops the line
                print()
    finally:
        with contextlib.suppress(OSError):
            readline.write_history_file(history)


def read_statement(read: Callable[[str], str]) -> str:
    """Lines up to a semicolon, or the word ``help``; ``read`` prints a prompt, and returns a line without its end.
    Raises EOFError at the end of the input, and for ``exit`` and ``quit``."""
    first = read(PROMPT)
    word = first.strip().rstrip(";").rstrip().lower()
    if word in _ENDS:
        raise EOFError
    if word in _HELPS:
        return word
    typed = Typed()
    is_complete = typed.add(first)
    while not is_complete:
        is_complete = typed.add(read(MORE))
    return typed.text


def _run_typed(shell: Shell, source: Source) -> None:
    try:
        shell.run(source)
    except KeyboardInterrupt:
        fail("interrupted")
    except HeadraceError as error:
        fail(error.message)


def _prepare(history: Path, words: Callable[[], Iterable[str]]) -> None:
    with contextlib.suppress(OSError):
        readline.read_history_file(history)
    readline.set_history_length(_HISTORY_LINES)
    readline.set_completer_delims(" \t\n,()=<>;+-*/")
    is_libedit = "libedit" in (readline.__doc__ or "")
    readline.parse_and_bind("bind ^I rl_complete" if is_libedit else "tab: complete")
    readline.set_completer(lambda text, state: _nth(completions(text, words()), state))


def _nth(found: Sequence[str], at: int) -> str | None:
    return found[at] if at < len(found) else None


def completions(text: str, words: Iterable[str]) -> list[str]:
    """Keywords and ``words`` that begin with ``text``; the comparison ignores case. Keywords are returned in lower case
    if ``text`` is in lower case, otherwise in upper case."""
    keywords = [each.lower() if text.islower() else each for each in KEYWORDS]
    known = dict.fromkeys([*keywords, *sorted(words)])
    return [each for each in known if each.lower().startswith(text.lower())]


def words_of(session: Session) -> set[str]:
    """The names of tables, views, functions, queries, columns and settings."""
    catalog = session.catalog
    columns = {
        found[1]
        for table in catalog.tables.values()
        for each in table.columns
        if (found := re.match("`([^`]+)`", each))
    }
    return {*catalog.names, *catalog.functions, *catalog.queries, *columns, *SETTINGS}
