"""Convert Spark's errors to errors that point at a token of the user's text."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger

from headrace_core.errors import HeadraceError
from headrace_spark.causes import cause

from .faults import SqlError
from .rewriting import Rewritten
from .statements import Query

_PLACE = re.compile(r"\(line (\d+), pos (\d+)\)")
_CODE = re.compile(r"^\[[A-Z0-9_.]+\] *")
_STATE = re.compile(r"\s*SQLSTATE: \w+.*$", re.DOTALL)
_TOO_DEEP = "the statement is nested too deeply for Spark; use fewer parentheses, or split it with CREATE VIEW"
#: Parts of Python's error messages when a result contains a time that Python cannot represent.
_NO_TIME_OF_PYTHON = ("is out of range", "date value out of range", "timestamp out of range", "too large to convert")
_NOT_SHOWN = (
    "a time of the result is before the year 1 or after the year 9999, which the shell cannot show; CAST(column AS "
    "STRING) shows it"
)


def be_quiet() -> None:
    """Silence the loggers of pyspark and py4j, which would show each error a second time, with its stack trace."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True


@contextmanager
def pointing(query: Query, rewritten: Rewritten | None = None) -> Iterator[None]:
    """Raise Spark's errors, and errors without a position, as SqlError: at the token that Spark names, otherwise at the
    start of ``query``."""
    source = query.piece.source
    begin = query.piece.tokens[query.first]
    try:
        yield
    except SqlError:
        raise
    except PySparkException as error:
        place = _place(error, rewritten) if rewritten is not None else None
        at, end = place if place is not None else (begin.at, begin.end)
        raise SqlError(message_of(error), source, at, end) from error
    except HeadraceError as error:
        raise SqlError(error.message, source, begin.at, begin.end) from error
    except Py4JJavaError as error:
        if "java.lang.StackOverflowError" not in str(error):
            raise
        raise SqlError(_TOO_DEEP, source, begin.at, begin.end) from None
    except (ValueError, OverflowError) as error:
        if not any(text in str(error) for text in _NO_TIME_OF_PYTHON):
            raise
        raise SqlError(_NOT_SHOWN, source, begin.at, begin.end) from None


def message_of(error: PySparkException) -> str:
    """The cause of an error in one line, without Spark's error code, plan and stack trace."""
    text = str(error)
    if "Traceback (most recent call last)" in text:  # an error of the source or the sink
        return cause(text)
    if error.getCondition() == "TABLE_OR_VIEW_NOT_FOUND":
        name = (error.getMessageParameters() or {}).get("relationName", "").replace("`", "")
        return f"there is no table {name}; SHOW TABLES lists the tables"
    said = error.getMessage() if error.getCondition() else None
    lines = [line for line in _STATE.sub("", said or text).splitlines() if line.strip()]
    return _CODE.sub("", lines[0] if lines else text).rstrip(". ")


def _place(error: PySparkException, rewritten: Rewritten) -> tuple[int, int] | None:
    """The begin and end position, in the source, of the text that Spark's error names."""
    for context in error.getQueryContext():
        if context.contextType().name != "SQL" or context.objectName() or context.startIndex() < 0:
            continue
        begin, end = context.startIndex(), context.stopIndex() + 1
        if rewritten.text[begin:end].rstrip() != context.fragment().rstrip():
            continue  # the error refers to another text, such as a function's
        trailing = len(context.fragment()) - len(context.fragment().rstrip())
        return rewritten.source_at(begin), rewritten.source_at(end - trailing - 1) + 1
    found = _PLACE.search(str(error))
    if found is None:
        return None
    lines = rewritten.text.split("\n")
    number, column = int(found[1]), int(found[2])
    begin = sum(len(line) + 1 for line in lines[: number - 1]) + column
    at = rewritten.source_at(min(begin, len(rewritten.text)))
    word = re.compile(r"\w+").match(rewritten.source.text, at)
    return at, word.end() if word else at + 1
