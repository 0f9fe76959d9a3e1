"""Every code block of a page has a kind, every command and flag in it exists, and every Python block compiles with
valid imports. test_documented_runs.py *runs* the blocks."""

from __future__ import annotations

import ast
import re

import pytest

import headrace
import headrace.errors
from headrace.errors import HeadraceError
from headrace.settings import CONSUMER, PRODUCER, resolve
from headrace_core.config.server_keys import SERVER
from tests.docs import documented_pages as pages

#: Tests run the shell and Python blocks of these pages, or the page says why not.
RUN = (
    "README.md",
    *pages.CLI,
    *pages.SDK,
    "docs/embedding.md",
    *pages.OPERATIONS,
    "docs/spark.md",
    "docs/spark-exactly-once.md",
    "docs/spark-schemas.md",
    "docs/tutorial.md",
    "docs/spark-running.md",
    "docs/migrating.md",
)
EVERY = pages.all_pages()
LANGUAGES = {"sh", "python", "text", "properties", "ini"}


@pytest.mark.parametrize("page", RUN)
def test_every_block_says_its_language(page: str) -> None:
    assert pages.indented(page) == []
    assert {block.language for block in pages.blocks(page)} <= LANGUAGES


@pytest.mark.parametrize("page", EVERY)
def test_every_command_and_flag_on_a_page_exists(page: str) -> None:
    wrong = [
        f"{page}:{line}: {what}: {command}"
        for block in pages.blocks(page)
        for line, command in pages.commands_of(block)
        for what in pages.wrong_words(command)
    ]
    inline = re.findall(
        r"`(headrace [a-z][^`]*)`", re.sub(r"```.*?```", "", (pages.ROOT / page).read_text(), flags=re.S)
    )
    wrong += [f"{page}: {what}: {command}" for command in inline for what in pages.wrong_words(command)]
    assert wrong == []


def test_a_command_or_flag_that_there_is_not_would_be_found() -> None:
    assert pages.wrong_words("headrace topics create orders -p 6   # a remark --with-flags") == []
    assert pages.wrong_words("headrace --profile a topics list") == []
    assert pages.wrong_words("headrace tpoics list") == ["there is no command 'tpoics'"]
    assert pages.wrong_words("headrace up --data DIR [--broker N]") == ["'up' has no --broker"]
    assert pages.wrong_words("headrace consume -t orders -Y | head") == ["'consume' has no -Y"]


def python_blocks() -> list[pages.Block]:
    return [block for page in EVERY for block in pages.blocks(page) if block.language == "python"]


@pytest.mark.parametrize("block", python_blocks(), ids=str)
def test_every_python_block_compiles_and_imports_what_there_is(block: pages.Block) -> None:
    tree = ast.parse(block.text)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in ("headrace", "headrace.errors"):
            module = headrace if node.module == "headrace" else headrace.errors
            assert [each.name for each in node.names if not hasattr(module, each.name)] == []


def test_what_a_client_of_kafkas_is_advised_to_call_exists() -> None:
    text = (pages.ROOT / "docs" / "migrating.md").read_text()
    ours = [row.split(" | ")[-1] for row in re.findall(r"^\|.*\|$", text, re.MULTILINE)]
    names = [name for cell in ours for name in re.findall(r"`(\w+)\.(\w+)", cell) if name[0][0].isupper()]
    assert len(names) >= 25
    assert [f"{cls}.{name}" for cls, name in names if not hasattr(getattr(headrace, cls), name)] == []


def test_the_keys_that_are_named_there_are_keys() -> None:
    text = (pages.ROOT / "docs" / "migrating.md").read_text()
    known = {*PRODUCER.keys, *CONSUMER.keys, *SERVER.keys}
    rows = re.findall(r"^\| (.*) \| (.*) \|$", text[text.index("## Keys") :], re.MULTILINE)
    named = {key for keys, _ in rows for key in re.findall(r"`([^`]+)`", keys)}
    assert len(named) >= 20
    assert named - known == set()
    refused = next(re.findall(r"`([^`]+)`", keys) for keys, what in rows if what.startswith("refused"))
    for key in refused:
        with pytest.raises(HeadraceError):
            resolve(PRODUCER, {key: "SASL_SSL"}, {})


def test_links_between_pages_lead_somewhere() -> None:
    broken = []
    for page in EVERY:
        text = re.sub(r"```.*?```", "", (pages.ROOT / page).read_text(), flags=re.S)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            path, _, anchor = target.partition("#")
            if "://" in target:
                continue
            to = (pages.ROOT / page).parent / path if path else pages.ROOT / page
            if not to.exists() or (anchor and to.suffix == ".md" and anchor not in anchors(to.read_text())):
                broken.append(f"{page}: {target}")
    assert broken == []


def anchors(text: str) -> set[str]:
    """The anchors of the headings, as programs that show Markdown create them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.S), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()) for heading in headings]
    return {heading.strip().replace(" ", "-") for heading in plain}
