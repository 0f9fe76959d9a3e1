"""List every text that a user can see: errors, warnings in logs, help, findings of the doctor, documentation of keys.

    tools/texts.py [PATH...]                    list all texts, one line each: file:line, kind, text
    tools/texts.py --draw 50 --seed 2026-11-22  draw this number of texts at random, for a review
    tools/texts.py --check                      refuse private words and plurals in parentheses (part of `make check`)

A text is a string in the product's code, except for docstrings, messages of asserts, and log lines below WARNING. In a
listed text, an expression whose value is filled in is shown in braces. The docstring of a command is its help, so it is
a text too. The first line of an error class's docstring is the message of an error that is raised without a message.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from private_words import WORDS as PRIVATE

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("clients", "services", "core", "pipelines")
#: Minimum number of words of a text outside of errors, warnings and help texts; a shorter string is a name, a key or a
#: format.
WORDS = 3
_QUIET = {"debug", "info"}
_LOGGED = {"warning", "error", "exception", "critical", "warn"}
_PRINTED = {"print", "note", "say", "echo", "show", "_print"}
_HELP = {"help", "epilog", "short_help", "metavar"}
_ERROR = re.compile(r"(Error|Exception|Violation|BadParameter|UsageError|Conflict|[Rr]efuse)$")
_KEYS = {"honoured", "accepted", "refused", "ConfigKey"}
_CALL = re.compile(r"\b\w*(?:Error|Exception|BadParameter)\(")
#: Patterns that no text may contain: private words, a few unclear words, and plurals such as "1 replica(s)".
_REFUSED = re.compile(
    rf"\b({'|'.join(pattern for word, (pattern, _) in PRIVATE.items() if word != 'who')}"
    r"|former life|go(?:es)? on|try again|time-out)\b|\w\(s\)",
    re.IGNORECASE,
)


class Text(NamedTuple):
    path: str
    line: int
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.kind}: {self.text}"


def shown(node: ast.expr) -> str | None:
    """The text of a string expression, with ``{expression}`` in place of a value; None if the expression is not a
    string."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(shown(part) or "" for part in node.values)
    if isinstance(node, ast.FormattedValue):
        conversion = f"!{chr(node.conversion)}" if node.conversion > 0 else ""
        spec = f":{shown(node.format_spec)}" if node.format_spec else ""
        return f"{{{ast.unparse(node.value)}{conversion}{spec}}}"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = shown(node.left), shown(node.right)
        if left is not None or right is not None:
            return (left or "{" + ast.unparse(node.left) + "}") + (right or "{" + ast.unparse(node.right) + "}")
    return None


class _Collector(ast.NodeVisitor):
    def __init__(self, path: str) -> None:
        self.path = path
        self.kinds = ["text"]
        self.found: list[Text] = []

    def add(self, line: int, kind: str, text: str) -> None:
        text = " ".join(text.split())
        words = re.findall(r"[A-Za-z]{2,}", re.sub(r"\{[^}]*\}", " ", text))
        if len(words) >= (WORDS if kind == "text" else 1) and " " in text:
            self.found.append(Text(self.path, line, kind, text))

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.expr) and (text := shown(node)) is not None:
            self.add(node.lineno, self.kinds[-1], text)
        else:
            super().visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring is not a text
            self.generic_visit(node)

    def visit_Assert(self, node: ast.Assert) -> None:
        pass

    def visit_Raise(self, node: ast.Raise) -> None:
        self._within("error", [node])

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        is_method = isinstance(node.func, ast.Attribute)
        if is_method and name in _QUIET:
            return
        if (is_method and name in _LOGGED) or name == "log":
            self._within("log", [node])
        elif _ERROR.search(name):
            self._within("error", [node])
        elif name == "Finding":
            self._within("doctor", [node])
        elif name in _KEYS and "/config/" in self.path:
            self._within("key", [node])
        elif name in _PRINTED:
            self._within("print", [node])
        else:
            self.visit(node.func)
            for argument in node.args:
                self.visit(argument)
            for keyword in node.keywords:
                self._within("help" if keyword.arg in _HELP else self.kinds[-1], [keyword.value], whole=True)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        if self.path.endswith("core/errors.py") and (said := ast.get_docstring(node)):
            self.add(node.lineno, "error", said.splitlines()[0])
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if "/cli/" in self.path and "typer." in ast.unparse(node.args) and (said := ast.get_docstring(node)):
            self.add(node.lineno, "help", said)
        is_error = node.returns is not None and bool(re.search(r"Error|Exception", ast.unparse(node.returns)))
        self._within("error" if is_error else self.kinds[-1], node.body, whole=True)

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]

    def _within(self, kind: str, nodes: Iterable[ast.AST], *, whole: bool = False) -> None:
        self.kinds.append(kind)
        for node in nodes:
            if whole:
                self.visit(node)
            else:
                self.generic_visit(node)
        self.kinds.pop()


def of_python(path: Path) -> list[Text]:
    collector = _Collector(str(path.relative_to(ROOT)))
    collector.visit(ast.parse(path.read_text()))
    return collector.found


def of_cython(path: Path) -> Iterator[Text]:
    """The errors that Cython code raises; errors are the only texts of Cython code that a user sees."""
    source = path.read_text()
    for start in _CALL.finditer(source):
        for end in range(start.end(), min(len(source), start.end() + 600)):
            if source[end] == ")":
                try:
                    call = ast.parse(source[start.start() : end + 1], mode="eval").body
                except SyntaxError:
                    continue
                collector = _Collector(str(path.relative_to(ROOT)))
                collector.visit(call)
                for text in collector.found:
                    yield text._replace(line=source.count("\n", 0, start.start()) + 1)
                break


def texts(paths: Iterable[str] = ROOMS) -> list[Text]:
    """Every text below ``paths``, without generated code and without test helpers."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *paths],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    found: list[Text] = []
    for name in listed.split():
        path = ROOT / name
        if "/src/" not in name or "/testing/" in name or "_pb2" in name or not path.exists():
            continue
        if name.endswith(".py"):
            found += of_python(path)
        elif name.endswith(".pyx"):
            found += of_cython(path)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("paths", nargs="*", metavar="PATH", help="files and directories; default: the whole product")
    parser.add_argument("--draw", type=int, metavar="INTEGER", help="draw this many texts at random")
    parser.add_argument("--seed", default="", metavar="DATE", help="seed of the draw")
    parser.add_argument("--check", action="store_true", help="refuse texts with private words")
    arguments = parser.parse_args()
    found = texts(arguments.paths or ROOMS)
    if arguments.check:
        refused = [(each, hit[0]) for each in found if (hit := _REFUSED.search(re.sub(r"\{[^{}]*\}", "", each.text)))]
        for each, word in refused:
            print(f"{each}\n    has {word!r}; write the field's word, name who acts, let plurals agree (counted())")
        return bool(refused)
    if arguments.draw:
        found = random.Random(arguments.seed).sample(found, min(arguments.draw, len(found)))
    print(*found, sep="\n")
    print(f"{len(found)} texts", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
