"""A page answers one question, so pages that people write stay short.

The pages of docs/reference/ are generated, except the pages of the bugs found.
"""

from __future__ import annotations

import re

import pytest
import sentences

from tests.docs import documented_pages as pages

WORDS_MAX = 2_500
WORDS_OF_A_SENTENCE = 25
COLUMNS_MAX = 120
#: Pages without a limit: the changelog only grows, and readers look up single entries.
LISTS = {"CHANGELOG.md"}
WRITTEN = [
    page
    for page in pages.all_pages()
    if (not page.startswith("docs/reference/") or page in pages.BUGS) and page not in LISTS
]


def too_long(texts: dict[str, str]) -> list[str]:
    counted = {page: len(text.split()) for page, text in texts.items()}
    return [f"{page}: {words} words, at most {WORDS_MAX}" for page, words in counted.items() if words > WORDS_MAX]


def test_no_page_that_people_write_is_too_long() -> None:
    assert too_long({page: (pages.ROOT / page).read_text() for page in WRITTEN}) == []


def test_a_page_that_is_too_long_is_named() -> None:
    assert too_long({"docs/long.md": "word " * 2_501, "docs/short.md": "word " * 2_500}) == [
        "docs/long.md: 2501 words, at most 2500"
    ]


def test_no_sentence_that_people_write_is_too_long() -> None:
    """No page has too many long sentences; CONTRIBUTING.md states the limit. tools/sentences.py --over 25 PAGE lists
    the long sentences of a page."""
    written = [each for page in WRITTEN for each in sentences.of_page(page, (pages.ROOT / page).read_text())]
    assert len(written) > 1_000
    assert [str(each) for each in written if each.words > WORDS_OF_A_SENTENCE] == []


def wide_lines(page: str, text: str) -> list[str]:
    """``page:line`` of prose lines that are too wide. Tables, code and the output of benchmarks may be wider."""
    wide, kept = [], False
    for number, line in enumerate(text.splitlines(), 1):
        kept ^= line.lstrip().startswith("```") or re.match(r"<!-- \w+: (begin|end)", line) is not None
        if len(line) > COLUMNS_MAX and not kept and not line.startswith(("|", "    ", "<!--")):
            wide.append(f"{page}:{number}")
    return wide


def test_no_line_of_prose_is_too_wide() -> None:
    assert [line for page in WRITTEN for line in wide_lines(page, (pages.ROOT / page).read_text())] == []
    wide = "x" * 121
    assert wide_lines("a.md", f"{wide}\n```\n{wide}\n```\n| {wide} |\n* {wide}\n") == ["a.md:1", "a.md:6"]


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


def test_a_row_that_is_split_or_lacks_a_cell_is_named() -> None:
    head = "| a | b |\n|---|---|\n"
    assert broken_rows("a.md", f"{head}| 1 | `2 \\| 3` |\n\nText after the table.\n") == []
    assert broken_rows("a.md", f"{head}| 1 | two\nlines |\n") == ["a.md:3", "a.md:4"]
    assert broken_rows("a.md", f"{head}| 1 |\n| 1 | 2 | 3 |\n") == ["a.md:3", "a.md:4"]
    assert broken_rows("a.md", f"```text\n{head}| 1 |\n```\n") == []


def joined_commands(page: str, text: str) -> list[str]:
    """``page:line`` of lines of code blocks that have a second command after a first one, without a separator. A tool
    that wraps prose joins the lines of an indented block into such lines."""
    joined, fenced = [], False
    for number, line in enumerate(text.splitlines(), 1):
        fenced ^= line.lstrip().startswith("```")
        is_code = fenced or line.startswith("    ")
        if is_code and re.match(r"\s*(make|headrace) [a-z-]+.*[^|;&]\s\1 [a-z-]+", line.split(" # ")[0]):
            joined.append(f"{page}:{number}")
    return joined


def test_each_command_of_a_code_block_has_its_own_line() -> None:
    assert [line for page in pages.all_pages() for line in joined_commands(page, (pages.ROOT / page).read_text())] == []
    assert joined_commands("a.md", "    make sim SEED=1 one schedule again make sim\n    SEED=2 another\n") == [
        "a.md:1"
    ]
    assert joined_commands("a.md", "    make setup && make test\nWe run make sim, then make test.\n") == []


def test_every_decision_is_in_their_list() -> None:
    folder = pages.ROOT / "docs" / "decisions"
    listed = re.findall(r"\]\((\d{4}-[a-z0-9-]+\.md)\)", (folder / "README.md").read_text())
    assert listed == sorted(path.name for path in folder.glob("[0-9]*.md"))


@pytest.mark.parametrize("folder", ["cli", "operations", "sdk"])
def test_every_page_of_a_folder_is_followed(folder: str) -> None:
    """documented_pages.py names every page, because tests run only the pages that it names."""
    followed = {*pages.CLI, *pages.OPERATIONS, *pages.SDK, "docs/operations/README.md"}
    assert {page for page in pages.all_pages() if page.startswith(f"docs/{folder}/")} <= followed
