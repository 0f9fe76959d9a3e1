"""The code blocks of the pages: their contents, their places, and why some are not run.

A block is fenced and says its language. ``<!-- not run: why -->`` on the line before a block says that no test runs the
block.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from headrace_tools.cli.root import build

ROOT = Path(__file__).resolve().parents[2]
#: The pages, in the order in which a reader and the tests follow them.
CLI = [
    f"docs/cli/{name}.md"
    for name in (
        "README",
        "local-cluster",
        "inspect",
        "nodes",
        "topics",
        "produce-consume",
        "ship",
        "groups",
        "transactions",
        "connectors",
        "logs",
        "bench",
    )
]
OPERATIONS = [
    f"docs/operations/{name}.md"
    for name in (
        "doctor",
        "disks",
        "replicas",
        "upgrades",
        "groups",
        "controllers",
        "quotas",
        "retention",
        "damage",
        "kafka-logs",
        "logs",
    )
]
SDK = [
    f"docs/sdk/{name}.md"
    for name in (
        "README",
        "producing",
        "transactions",
        "delivery",
        "consuming",
        "processing",
        "groups",
        "schemas",
        "admin",
        "internals",
    )
]
_FENCE = re.compile(r"^( *)```(\S*)\s*$")
_NOT_RUN = re.compile(r"^<!-- not run: (.+) -->$")
_REMARK = re.compile(r"(\s+#\s|\s{2,}).*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """``line`` is the line number of the first line of text. ``not_run`` is the reason why no test runs the block; None
    if tests run it."""

    page: str
    line: int
    language: str
    text: str
    heading: str
    not_run: str | None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def all_pages() -> list[str]:
    """Every page of the repository, including generated pages."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return sorted(str(path.relative_to(ROOT)) for path in found)


def blocks(page: str) -> list[Block]:
    """The code blocks of a page, in order."""
    found: list[Block] = []
    heading, not_run = "", None
    opened: tuple[int, str, str, list[str]] | None = None  # line, indent, language, text
    for number, line in enumerate((ROOT / page).read_text().splitlines(), 1):
        fence = _FENCE.match(line)
        if opened is None and fence is None:
            heading = line.lstrip("#").strip() if line.startswith("#") else heading
            marker = _NOT_RUN.match(line.strip())
            not_run = marker[1] if marker else None
        elif opened is None and fence is not None:
            opened = (number + 1, fence[1], fence[2], [])
        elif fence is not None and opened is not None:
            text = "\n".join(opened[3]) + "\n"
            found.append(
                Block(page=page, line=opened[0], language=opened[2], text=text, heading=heading, not_run=not_run)
            )
            opened, not_run = None, None
        elif opened is not None:
            opened[3].append(line.removeprefix(opened[1]))
    assert opened is None, f"{page}: a block is not closed"
    return found


def indented(page: str) -> list[int]:
    """Lines where an indented block begins, because an indented block cannot name its language."""
    lines = (ROOT / page).read_text().splitlines()
    inside, found = False, []
    for number, line in enumerate(lines, 1):
        inside ^= _FENCE.match(line) is not None
        if not inside and line.startswith("    ") and number > 1 and not lines[number - 2].strip():
            found.append(number)
    return found


TREE: Any = typer.main.get_command(build(()))


def commands_of(block: Block) -> list[tuple[int, str]]:
    """The places where a shell block calls ``headrace ...`` or a text block shows it. Continued lines are joined."""
    text = block.text.replace("\\\n", " ") if block.language in ("sh", "text") else ""
    return [
        (block.line + offset, found)
        for offset, line in enumerate(text.splitlines())
        for found in re.findall(r"(?:^|[|;(]\s*|\s)(headrace [a-z-].*)$", line.split(" # ")[0])
    ]


def wrong_words(command: str) -> list[str]:
    """The words and flags that do not exist, in a call or in its syntax (``headrace up [--data DIR] | down``)."""
    text = re.split(r"\s*[|;>&]+\s|\s\(|\)$", _REMARK.sub("", command))[0]
    words = re.findall(r"'[^']*'|\"[^\"]*\"|[^\s\[\]|]+", text)[1:]
    at: Any = TREE
    wrong = []
    while hasattr(at, "commands"):
        while words and words[0].startswith("--"):
            words = words[2:]
        if not words:
            return wrong
        name = words.pop(0)
        if name not in at.commands:
            return [*wrong, f"there is no command {name!r}"]
        at = at.commands[name]
    known = {flag for each in at.params for flag in (*each.opts, *each.secondary_opts)} | {"--help"}
    for word in words:
        flag = word.rstrip(".,").partition("=")[0]
        if re.fullmatch(r"--[a-z][a-z-]*|-[A-Za-z]", flag) and flag not in known:
            wrong.append(f"{at.name!r} has no {flag}")
    return wrong


def shell(text: str, place: str) -> str:
    """``text`` as a bash script, which prints the page and the line before each command of Headrace."""
    return f"echo {shlex.quote(f'@@ {place}')} >&2\n{text}"
