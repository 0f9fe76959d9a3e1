"""Refuse the retired words of docs/glossary.md in the identifiers of Python files.

tools/glossary.py    (part of `make check`)
"""

from __future__ import annotations

import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "glossary.md"
_ROW = re.compile(r"^\| `(\w+)` \| (.+) \|$", re.MULTILINE)
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def retired() -> dict[str, str]:
    """A dictionary of retired words and their replacements."""
    _, _, section = PAGE.read_text().partition("## Retired words")
    return dict(_ROW.findall(section))


def uses(path: Path, words: dict[str, str]) -> Iterator[str]:
    """Yield a message ``file:line: message`` for each retired word in the identifiers of a file."""
    text = path.read_text().lower()
    if not any(word.lower() in text for word in words):
        return
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.NAME:
                for word in {token.string, *(part.lower() for part in _WORDS.findall(token.string))} & words.keys():
                    yield f"{path}:{token.start[0]}: {token.string!r} has the retired word {word!r}: {words[word]}"


def main() -> int:
    words = retired()
    if not words:
        print(f"{PAGE.relative_to(ROOT)}: no retired words found; has its table changed?")
        return 1
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = [ROOT / name for name in listed.split() if not name.endswith(("_pb2.py", "_pb2_grpc.py"))]
    found = [use for path in paths if path.exists() for use in uses(path, words)]
    print("\n".join(found), end="\n" if found else "")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
