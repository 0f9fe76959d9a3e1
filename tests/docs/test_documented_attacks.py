"""docs/security-attacks.md names existing tests, and every test of attacks is on it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.docs import documented_pages as pages

PAGE = pages.ROOT / "docs" / "security-attacks.md"
#: Files of which the page must name every test.
WHOLE = (
    "tests/integration/security/test_attacks.py",
    "tests/unit/security/test_made_up_credentials.py",
)
#: Tests of what these files themselves rest on.
OTHERS = {
    "test_the_doors_open_for_the_right_password",
    "test_a_mechanism_that_only_late_names_have_is_found",
    "test_a_user_without_a_mechanism_looks_like_an_unknown_user",
    "test_a_token_shows_the_same_before_and_after_its_end",
}


def functions_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    functions = (node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
    return {node.name for node in functions if node.name.startswith("test_")}


def named() -> set[str]:
    """The names of tests and of files of tests on the page."""
    return set(re.findall(r"\btest_\w+", PAGE.read_text()))


def test_the_page_names_tests_that_exist() -> None:
    files = [*(pages.ROOT / "tests").rglob("test_*.py")]
    known = {path.stem for path in files}.union(*(functions_of(path) for path in files))
    assert len(named()) > 40
    assert named() - known == set()


def test_the_page_names_every_test_of_attacks() -> None:
    for path in WHOLE:
        assert functions_of(pages.ROOT / path) - named() - OTHERS == set(), path
