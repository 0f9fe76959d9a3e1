"""Count private words in comments, docstrings, strings and pages; fail if an area has more than its limit.

    tools/private_words.py             fails above a limit, and prints the table (part of `make check`)
    tools/private_words.py -v          prints the table always
    tools/private_words.py core/src    each use below these paths, as file:line: word: text
    tools/private_words.py --lower     write today's counts into this file as the limits

The aim is at most 40 private words in the whole repository, without the tests.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXCLUDED = {"CHANGELOG.md", "docs/glossary.md", "tools/private_words.py", "tests/architecture/test_private_words.py"}

LIMITS = {
    "core": 0,
    "services": 0,
    "clients": 1,
    "pipelines": 0,
    "protos": 0,
    "docs": 0,
    "tools": 1,
    "tests": 181,
    "other": 4,
}

# A dictionary of names of private words, each with a pattern and a suggested replacement.
WORDS = {
    "nobody": (r"nobody", "name it: no consumer, no thread"),
    "somebody": (r"somebody", "name it: the caller, a client"),
    "anybody": (r"anybody", "name it: any client"),
    "everybody": (r"everybody", "name them: all replicas"),
    "anew": (r"anew", "again"),
    "whoever": (r"who(?:so)?m?ever", "name it: the caller"),
    "whatever": (r"whatever", "say which: any, all, of any kind"),
    "in vain": (r"in vain", "failed"),
    "for good": (r"for good", "permanently"),
    "is told": (r"(?:is|are|was|were|be|been|being) (?:\w+ly )?told(?! apart)", "receives, learns, reports"),
    "lets go of": (r"let(?:s|ting)? (?:\w+ )?go of", "revokes, releases"),
    "hence": (r"hence", "so, from now"),
    "lest": (r"lest", "so that ... not"),
    "makes its way": (r"ma(?:kes|ke|king|de) (?:its|their) way", "name the sender and the receiver"),
    "does without": (r"do(?:es|ne|ing)? without", "does not need"),
    "patience": (r"patience|pursuit|farewell|voucher", "timeout, leader discovery, leave, ReadIndex barrier"),
    # Matches a clause whose subject is "who" without a noun before "who": "who asks", "and who waits", "those who
    # read".
    "who": (
        r"(?:(?:^|[.:;(\"] ?|\b(?:and|as|but|by|for|from|if|of|only|or|so|than|that|then|those|to|when|where|with) ))"
        r"(?:^|(?<=[ (\"]))who(?=\s)(?![^.]*\?)",
        "a noun: the caller, the leader, consumers that wait",
    ),
}
_PATTERN = re.compile("|".join(rf"(?P<w{i}>(?<![\w.])(?:{p})\b)" for i, (p, _) in enumerate(WORDS.values())), re.I)
_MARGIN = re.compile(r"^\s*(?:#+:?|//+|/?\*+/?|--)?\s*")
_TEXTS = re.compile(  # matches a docstring, a string, or comments on lines of their own and after code
    r'"""(?:[^"\\]|\\.|"(?!""))*"""|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'|#[^\n]*(?:\n\s*#[^\n]*)*', re.DOTALL
)
_CODE = {".py", ".pyi", ".pyx", ".pxd"}
_PLAIN = {".md", ".proto", ".sh", ".toml", ".yaml", ".yml", ".java", ".c"}


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Each text of a file with the number of its first line. A text is a page, a string or a block of comments."""
    text = path.read_text()
    if path.suffix in _PLAIN:
        yield 1, text
        return
    yield from ((text.count("\n", 0, match.start()) + 1, match[0]) for match in _TEXTS.finditer(text))


def uses(path: Path) -> Iterator[tuple[int, str, str]]:
    """Line, word and surrounding text of each private word in a file; a phrase may span two lines."""
    for start, text in texts(path):
        lines = text.split("\n")
        margins = [_MARGIN.sub("", line) for line in lines]
        offsets = [0]
        for line in margins:
            offsets.append(offsets[-1] + len(line) + 1)
        joined = " ".join(margins)
        for match in _PATTERN.finditer(joined):
            if match[0].isupper():  # a match in capitals is the name of a constant
                continue
            number = sum(offset <= match.start() for offset in offsets) - 1
            word = list(WORDS)[int(str(match.lastgroup)[1:])]
            yield start + number, word, joined[max(0, match.start() - 40) : match.end() + 40]


def files(below: list[str]) -> list[str]:
    """The repository's files with prose, without generated code and without the files in EXCLUDED."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *below]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [
        name
        for name in sorted(listed)
        if Path(name).suffix in _CODE | _PLAIN
        and name not in EXCLUDED
        and not re.search(r"_pb2(_grpc)?\.pyi?$", name)
        and (ROOT / name).exists()
    ]


def changed_lines() -> dict[str, set[int]]:
    """The lines of each file that are not in origin/main; without such a branch, not in the last commit. All lines of
    a file that git does not know yet."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout

    base = "origin/main" if git("branch", "-r", "--list", "origin/main").strip() else "HEAD"
    found: dict[str, set[int]] = {
        name: set() for name in git("ls-files", "--others", "--exclude-standard").splitlines()
    }
    for name in found:
        with (ROOT / name).open("rb") as file:
            found[name].update(range(1, 1 + sum(1 for _ in file)))
    name = ""
    for line in git("diff", "-U0", "--no-ext-diff", base).splitlines():
        if line.startswith("+++ "):
            name = line.removeprefix("+++ b/")
        elif hunk := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
            first, count = int(hunk[1]), int(hunk[2] or 1)
            found.setdefault(name, set()).update(range(first, first + count))
    return found


def area(name: str) -> str:
    top = name.partition("/")[0]
    return top if top in LIMITS else "other"


def lower(counts: dict[str, Counter[str]]) -> None:
    """Lower the limits in this file to the current counts of private words, where a count is below its limit."""
    here = Path(__file__)
    text = here.read_text()
    for name, limit in LIMITS.items():
        text = text.replace(f'    "{name}": {limit},\n', f'    "{name}": {min(limit, counts[name].total())},\n', 1)
    here.write_text(text)


def show(counts: dict[str, Counter[str]]) -> None:
    """Print the table of words and areas."""
    print("".join(["word".ljust(14), *(name.rjust(len(name) + 2) for name in LIMITS), "   all  write"]))
    for word in [*WORDS, "all"]:
        row = [counts[name].total() if word == "all" else counts[name][word] for name in LIMITS]
        cells = [str(count).rjust(len(name) + 2) for name, count in zip(LIMITS, row, strict=True)]
        write = WORDS[word][1] if word in WORDS else ""
        print("".join([word.ljust(14), *cells, str(sum(row)).rjust(6), "  ", write]).rstrip())


def main(arguments: list[str]) -> int:
    below = [argument for argument in arguments if not argument.startswith("-")]
    counts: dict[str, Counter[str]] = {name: Counter() for name in LIMITS}
    every: list[tuple[str, int, str]] = []
    for name in files(below):
        for line, word, text in uses(ROOT / name):
            counts[area(name)][word] += 1
            every.append((name, line, word))
            if below:
                print(f"{name}:{line}: {word}: ...{text}...")
    if below:
        return 0
    if "--lower" in arguments:
        lower(counts)
        return 0
    above = {name: limit for name, limit in LIMITS.items() if counts[name].total() > limit}
    if above or "-v" in arguments:
        show(counts)
    for name, limit in above.items():
        print(
            f"{name}: {counts[name].total()} private words, at most {limit}; list them: tools/private_words.py {name}"
        )
    changed = changed_lines() if above else {}
    for name, line, word in every:
        if line in changed.get(name, ()) and area(name) in above:
            print(f"new: {name}:{line}: {word}: write {WORDS[word][1]}")
    return bool(above)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
