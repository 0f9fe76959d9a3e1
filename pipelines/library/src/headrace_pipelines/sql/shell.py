"""The statements of a terminal, of a file, or of a pipe."""

from __future__ import annotations

import contextlib
import re
import readline
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from headrace_core.errors import HeadraceError

from .engine import Engine
from .faults import Source
from .output import fail, show
from .parsing import parse
from .results import Arriving
from .session import SETTINGS, Session
from .tokens import is_complete

PROMPT, MORE = "sql> ", "...> "
_HISTORY_LINES = 10_000
#: Words of statements that the prompt completes; Spark knows many more.
KEYWORDS = (
    "AS", "BY", "CHANGES", "CREATE", "DELETE", "DESCRIBE", "DROP", "EMIT", "EXISTS", "EXPLAIN", "FROM", "FUNCTION",
    "FUNCTIONS", "GROUP", "HAVING", "IF", "INSERT", "INTO", "JOIN", "KEY", "LIMIT", "NOT", "NULL", "OF", "OFFSET", "ON",
    "ORDER", "PRIMARY", "QUERIES", "REPLACE", "RETURN", "RETURNS", "SELECT", "SET", "SHOW", "STREAM", "TABLE", "TABLES",
    "TERMINATE", "TIMESTAMP", "TOPIC", "TOPICS", "VALUES", "VIEW", "WHERE", "WITH",
)  # fmt: skip


def run_text(engine: Engine, source: Source, output: str) -> None:
    """Run the statements of ``source`` up to the first that fails. Raises HeadraceError."""
    for statement in parse(source):
        show(engine.run(statement, source), output)


def interactive(engine: Engine, session: Session, history: Path, output: str) -> None:
    """Read statements from the terminal until Ctrl-D. A statement ends with a semicolon, in any line."""
    _prepare(history, lambda: words_of(session))
    number = 1
    try:
        while True:
            try:
                text = read_statement(input)
            except EOFError:
                print()
                return
            except KeyboardInterrupt:  # Ctrl-C drops the line
                print()
                continue
            if text.strip():
                _run_typed(engine, Source(text, "sql", number), output)
            number += text.count("\n") + 1
    finally:
        with contextlib.suppress(OSError):
            readline.write_history_file(history)


def read_statement(read: Callable[[str], str]) -> str:
    """Lines up to a semicolon; ``read`` prints a prompt, and returns a line without its end."""
    text = read(PROMPT)
    while not is_complete(text):
        text += "\n" + read(MORE)
    return text


def _run_typed(engine: Engine, source: Source, output: str) -> None:
    try:
        for statement in parse(source):
            result = engine.run(statement, source)
            try:
                show(result, output)
            finally:
                if isinstance(result, Arriving) and isinstance(result.rows, Iterator):
                    close = getattr(result.rows, "close", None)
                    if close is not None:
                        close()
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
    """Keywords and ``words`` that begin with ``text`` in any case; keywords in the case of ``text``."""
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
