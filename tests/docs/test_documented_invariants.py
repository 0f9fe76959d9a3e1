"""The pages of invariants name an existing test for each invariant, and the page of bugs for each bug."""

from __future__ import annotations

import ast
import re

from tests.docs import documented_pages as pages

PAGES = ("docs/invariants.md", "docs/invariants-registry.md", "docs/invariants-transactions.md")


def guards(text: str) -> list[str]:
    """The last cell of each table row, without the headings; "" if a row names no test."""
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| invariant |")]
    found = [re.search(r"\| `([^`]+)` \|$", row) for row in rows]
    return [each[1] if each else "" for each in found]


def is_there(guard: str) -> bool:
    """``path`` or ``path::test``."""
    path, _, test = guard.partition("::")
    file = pages.ROOT / path
    if not path.startswith("tests/") or not file.is_file():
        return False
    tree = ast.parse(file.read_text())
    names = {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
    return test in names if test else any(name.startswith("test_") for name in names)


def test_every_invariant_names_a_test_that_exists() -> None:
    named = [guard for page in PAGES for guard in guards((pages.ROOT / page).read_text())]
    assert len(named) >= 60
    assert [guard for guard in named if not is_there(guard)] == []


def test_a_row_without_a_test_or_with_one_that_there_is_not_is_found() -> None:
    text = "| invariant | why | guarded by |\n|---|---|---|\n| a | b | nothing |\n| c | d | `tests/docs/none.py` |\n"
    assert guards(text) == ["", "tests/docs/none.py"]
    this = "tests/docs/test_documented_invariants.py"
    assert [is_there(each) for each in ("", "tests/docs/none.py", f"{this}::test_none", this)] == [False] * 3 + [True]


def named_tests(text: str) -> list[str]:
    """The paths of tests, and the names of test files and tests, in the rows of a page. In a page, ``test_start...``
    stands for all names that begin with ``test_start``."""
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    return [each for row in rows for each in re.findall(r"`(tests/[^`]+\.py|test_[^`\[]+)", row)]


def test_every_bug_names_a_test_that_exists() -> None:
    named = set(named_tests((pages.ROOT / "docs/reference/bugs-found.md").read_text()))
    assert len(named) >= 150
    files = list((pages.ROOT / "tests").rglob("test_*.py"))  # two directories may have files of the same name
    names, every = {path.name for path in files}, "".join(path.read_text() for path in files)

    def exists(name: str) -> bool:
        if name.startswith("tests/"):
            return (pages.ROOT / name).is_file()
        beginning = name.removesuffix("...")
        return name in names or f"def {beginning}{'' if beginning != name else '('}" in every

    assert sorted(name for name in named if not exists(name)) == []
