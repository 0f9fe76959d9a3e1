"""Draw sentences of the project for a reader who is new to the project, or list the long sentences.

    tools/sentences.py --draw 100 --seed 20261122     a quarter each from errors, pages, docstrings and comments
    tools/sentences.py --over 25 docs README.md       every sentence of these paths with more than 25 words

Each line is ``number  file:line  kind  sentence``. Only whole sentences count: they begin with a capital letter or
code, and end with a full stop. An error counts as one sentence: its whole message, with ``{name}`` in place of a value.
The help texts of options count as errors.
"""

from __future__ import annotations

import argparse
import ast
import io
import random
import re
import subprocess
import sys
import textwrap
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KINDS = ("error", "page", "docstring", "comment")
#: The default paths: the product, its tools and its pages. CHANGELOG.md is not included, because it is a history.
PRODUCT = ("core", "clients", "services", "pipelines", "protos", "tools", "docs", "README.md", "CONTRIBUTING.md")
WORDS_MIN = 4

#: Matches the end of a sentence: a full stop and a space, before a capital (also in gRPC), a figure, code, a link or
#: emphasis. A full stop after "e.g." does not match.
_END = re.compile(r"(?<!\be\.g\.)(?<!\bi\.e\.)(?<=[.!?])[\"')*]*\s+(?=[\"'(*\[`]*(?:[A-Z0-9`]|[a-z]+[A-Z]))")
_WHOLE = re.compile(r"[\"'(*\[`]*(?:[A-Z0-9`]|[a-z]+[A-Z]).*[.!?:][\"')*`]*", re.DOTALL)
_ITEM = re.compile(r"\s*(?:[*-]|\d+\.)\s+")
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence of a file, and its place. ``path`` is relative to the repository."""

    path: str
    line: int
    kind: str
    text: str

    @property
    def words(self) -> int:
        """The number of words in the sentence. Code counts as one word; figures and signs do not count."""
        return sum(any(map(str.isalpha, word)) for word in re.sub(r"`[^`]*`", "code", self.text).split())

    def __str__(self) -> str:
        return f"{self.path}:{self.line}  {self.kind}  {self.text}"


def of_text(lines: list[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """(line, sentence) of one paragraph, which is given as (line, text)."""
    starts, joined = [], ""
    for number, text in lines:
        starts.append((len(joined), number))
        joined += f"{text.strip()} "
    at = 0
    for part in _END.split(joined):
        begins = joined.index(part, at)
        at = begins + len(part)
        sentence = " ".join(_LINK.sub(r"[\1]", part).replace("**", "").split())
        if len(sentence.split()) >= WORDS_MIN and _WHOLE.fullmatch(sentence):
            yield max(number for offset, number in starts if offset <= begins), sentence


def paragraphs(lines: list[str], first: int, indent_max: int) -> Iterator[list[tuple[int, str]]]:
    """Split text into paragraphs, list items and table cells, without code blocks. A code block is fenced, or indented
    by more than ``indent_max``."""
    found: list[tuple[int, str]] = []
    fenced = in_item = False
    for number, line in enumerate(lines, first):
        item, indent = _ITEM.match(line), len(line) - len(line.lstrip())
        is_fence = line.lstrip().startswith("```")
        fenced ^= is_fence
        breaks = is_fence or fenced or not line.strip() or line.startswith(("#", "|", "<!--")) or item is not None
        if breaks or (indent > indent_max and not in_item):
            if found:
                yield found
            found, in_item = [], item is not None
            if line.startswith("|") and not fenced:
                yield from ([(number, cell)] for cell in line.split("|"))
            elif item is not None and not fenced:
                found = [(number, line[item.end() :])]
        else:
            found.append((number, line))
    if found:
        yield found


def of_page(path: str, text: str) -> Iterator[Sentence]:
    for paragraph in paragraphs(text.splitlines(), 1, indent_max=3):
        yield from (Sentence(path, line, "page", sentence) for line, sentence in of_text(paragraph))


def of_code(path: str, text: str) -> Iterator[Sentence]:
    """The sentences in docstrings and comments of Python and Cython files."""
    comment: list[tuple[int, str]] = []
    begins = True  # a logical line
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            is_alone = token.line.lstrip().startswith("#")
            if comment and not (is_alone and comment[-1][0] == token.start[0] - 1):
                yield from (Sentence(path, line, "comment", each) for line, each in of_text(comment))
                comment = []
            comment.append((token.start[0], token.string.lstrip("#:!").strip()))
            continue
        if token.type == tokenize.STRING and begins:
            lines = textwrap.dedent(" " * token.start[1] + token.string.strip('r"')).splitlines()
            for paragraph in paragraphs(lines, token.start[0], indent_max=3):
                yield from (Sentence(path, line, "docstring", each) for line, each in of_text(paragraph))
        if token.type not in (tokenize.NL, tokenize.INDENT, tokenize.DEDENT):
            begins = token.type == tokenize.NEWLINE
    yield from (Sentence(path, line, "comment", each) for line, each in of_text(comment))


def of_proto(path: str, text: str) -> Iterator[Sentence]:
    comment: list[tuple[int, str]] = []
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if (found := re.match(r"\s*//(.*)", line)) is not None:
            comment.append((number, found[1]))
        elif comment:
            yield from (Sentence(path, at, "comment", each) for at, each in of_text(comment))
            comment = []


def of_messages(path: str, text: str) -> Iterator[Sentence]:
    """The messages of errors, warnings and log lines, and the help texts of options."""
    raised: set[ast.expr | None] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Raise):
            raised.add(node.exc)
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        if node in raised or re.search(r"(Error|BadParameter|\.(warn|warning|error|exception|info))$", name):
            given = node.args
        else:
            given = [keyword.value for keyword in node.keywords if keyword.arg == "help"]
        for each in given:
            message = " ".join(_message(each).split())
            if len(message.split()) >= WORDS_MIN:
                yield Sentence(path, each.lineno, "error", message)


def _message(node: ast.expr) -> str:
    """The text of a literal, with the expressions of an f-string in braces; empty for any other node."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(
            _message(part) if isinstance(part, ast.Constant) else f"{{{ast.unparse(part.value)}}}"
            for part in node.values
            if isinstance(part, ast.Constant | ast.FormattedValue)
        )
    return ""


def of_file(path: str) -> Iterator[Sentence]:
    if not path.endswith((".md", ".proto", ".py", ".pyx")) or "_pb2" in path:
        return
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.endswith(".md"):
        yield from of_page(path, text)
    elif path.endswith(".proto"):
        yield from of_proto(path, text)
    else:
        yield from of_code(path, text)
        if path.endswith(".py"):
            yield from of_messages(path, text)


def every(paths: list[str]) -> list[Sentence]:
    """All sentences of the files under ``paths``, in their order."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *(paths or PRODUCT)]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return [each for path in listed for each in of_file(path)]


def drawn(sentences: list[Sentence], count: int, seed: int) -> list[Sentence]:
    """Draw ``count`` sentences, equally many of each kind. The same seed draws the same sentences."""
    draw = random.Random(seed)
    found = []
    for index, kind in enumerate(KINDS):
        share = (count + index) // len(KINDS)
        some = sorted({each.text: each for each in sentences if each.kind == kind}.values(), key=str)
        found += draw.sample(some, min(share, len(some)))
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("paths", nargs="*", help="files and folders (default: the product, its tools and its pages)")
    parser.add_argument("--draw", type=int, metavar="COUNT", help="draw this many sentences")
    parser.add_argument("--seed", type=int, default=0, help="the same seed draws the same sentences (a date: 20261122)")
    parser.add_argument("--over", type=int, metavar="WORDS", default=0, help="only sentences with more words than this")
    given = parser.parse_args(arguments)
    found = [each for each in every(given.paths) if each.words > given.over]
    if given.draw is not None:
        found = drawn(found, given.draw, given.seed)
    for number, each in enumerate(found, 1):
        print(f"{number:>4}  {each}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
