"""Tables and lists of the pages are whole."""

from __future__ import annotations

import re

import pytest

from tests.docs import documented_pages as pages


def broken_rows(page: str, text: str) -> list[str]:
    """``page:line`` of table rows that do not end with ``|``, or have more or fewer cells than the row above them. The
    lines also include lines that follow a table without an empty line (a row that was split over two lines)."""
    broken, fenced, cells = [], False, 0
    for number, line in enumerate(text.splitlines(), 1):
        fenced ^= line.lstrip().startswith("```")
        row = line.strip()
        if fenced or not row or line.startswith("    ") or row.startswith(("<!--", "```")):
            cells = 0
        elif not row.startswith("|"):
            if cells:
                broken.append(f"{page}:{number}")
            cells = 0
        else:
            borders = len(re.findall(r"(?<!\\)\|", row))
            if not row.endswith("|") or (cells and borders != cells):
                broken.append(f"{page}:{number}")
            cells = cells or borders
    return broken


def test_each_row_of_a_table_is_one_line() -> None:
    pages_with_tables = [*pages.all_pages(), "deploy/README.md"]
    assert [line for page in pages_with_tables for line in broken_rows(page, (pages.ROOT / page).read_text())] == []
    head = "| a | b |\n|---|---|\n"
    assert broken_rows("a.md", f"{head}| 1 | two\nlines |\n| 1 |\n") == ["a.md:3", "a.md:4"]


def test_every_decision_is_in_their_list() -> None:
    folder = pages.ROOT / "docs" / "decisions"
    listed = re.findall(r"\]\((\d{4}-[a-z0-9-]+\.md)\)", (folder / "README.md").read_text())
    assert listed == sorted(path.name for path in folder.glob("[0-9]*.md"))


@pytest.mark.parametrize("folder", ["cli", "operations", "sdk"])
def test_every_page_of_a_folder_is_followed(folder: str) -> None:
    """documented_pages.py names every page, because tests run only the pages that it names."""
    followed = {*pages.CLI, *pages.OPERATIONS, *pages.SDK, "docs/operations/README.md"}
    assert {page for page in pages.all_pages() if page.startswith(f"docs/{folder}/")} <= followed
