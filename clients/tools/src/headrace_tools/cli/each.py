"""Change several things in one command, when each of them may fail alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import typer

from headrace_core.errors import HeadraceError

from ..asking import ask_each
from .output import note

K = TypeVar("K")
T = TypeVar("T")


def change_each(items: Iterable[K], change: Callable[[K], T]) -> tuple[dict[K, T], dict[K, HeadraceError]]:
    """Call ``change`` for each item, for several items at a time. Return the results and the errors by item.

    Raises the first error if no item has changed; its message lists all errors."""
    answers = ask_each(items, change)
    failed = {item: answer.error for item, answer in answers.items() if answer.error is not None}
    if failed and len(failed) == len(answers):
        first, *more = failed.values()
        raise type(first)("; ".join(error.message for error in failed.values())) if more else first
    return {item: answer.value for item, answer in answers.items() if answer.error is None}, failed  # type: ignore[misc]


def end_with_failures(failed: Mapping[Any, HeadraceError]) -> None:
    """After the output about the changed items: print each error on stderr, and end with exit code 1."""
    for error in failed.values():
        note(f"headrace: {error.message} [{error.code}]")
    if failed:
        raise typer.Exit(1)


def error_document(error: HeadraceError | None) -> dict[str, str] | None:
    return None if error is None else {"code": error.code, "message": error.message}
