"""Plant one fault at a time in the product, and run the tests that reach its line: a test must fail.

    tools/mutants.py [--only REGEX] [--jobs N] [--tests PATH ...] [--commit REV]

tests/mutants/NAME.patch is a mutant: the comment `# what a user would lose`, then a unified diff of one product file.
Its line numbers count for nothing; the old lines of each hunk must occur exactly once. Code and tests are those of REV
(HEAD by default), copied to build/mutants, so that work in the checkout can go on. The first run on a commit maps lines
to tests (mutants_map.py), tier by tier. Verdicts are kept: an interrupted run resumes.
The last line is {"mutants", "killed_by_test", "killed_by_deep", "survived": [names]}.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import hashlib
import io
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
MUTANTS = ROOT / "tests" / "mutants"
BUILD = ROOT / "build" / "mutants"
#: The folders of each tier, as tools/test.sh has them.
TIERS = dict(
    re.findall(r"^\s+(test|deep)\).*?folders=\((.*?)\)", (ROOT / "tools" / "test.sh").read_text(), re.M | re.S)
)
#: The shares that must be killed in a run of all mutants: by the first tier, and by both.
TEST_MIN, ALL_MIN = 0.85, 0.97
#: The tests with the nearest names run first, at least so many; the others only if these pass.
NEAR_MIN = 150
_TEST_S_MAX = 120


class DoesNotApplyError(Exception):
    pass


class Mutant(NamedTuple):
    name: str
    what: str
    path: str
    hunks: list[tuple[list[str], list[str]]]  #: Old lines and new lines, both with the context.

    @classmethod
    def read(cls, file: Path) -> Mutant:
        what, *lines = file.read_text().splitlines()
        paths = [line[6:] for line in lines if line.startswith("+++ b/")]
        if not what.startswith("# ") or len(paths) != 1:
            raise DoesNotApplyError(f"{file.name}: must be `# what a user would lose`, then a diff of one file")
        hunks = []
        for text in re.split(r"^@@.*\n", "\n".join(lines), flags=re.MULTILINE)[1:]:
            body = [line or " " for line in text.splitlines()]
            hunks.append(
                ([line[1:] for line in body if line[0] in " -"], [line[1:] for line in body if line[0] in " +"])
            )
        return cls(file.stem, what[2:], paths[0], hunks)

    def applied(self, source: str) -> str:
        """The source with the fault; raises DoesNotApplyError."""
        lines = source.splitlines()
        for old, new in self.hunks:
            found = [at for at in range(len(lines)) if lines[at : at + len(old)] == old]
            if len(found) != 1:
                raise DoesNotApplyError(
                    f"tests/mutants/{self.name}.patch: the old lines of a hunk occur {len(found)} times in "
                    f"{self.path}, must occur once; make the patch anew, or remove it: {old}"
                )
            lines[found[0] : found[0] + len(old)] = new
        return "\n".join(lines) + "\n"


def changed_lines(source: str, mutated: str) -> set[int]:
    """Numbers of the lines of ``source`` that differ, with the whole statements around them, because Python reports
    only some lines of a long statement. Where lines were only added: the two lines around them."""
    a, b = source.splitlines(), mutated.splitlines()
    changes = [each for each in difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes() if each[0] != "equal"]
    numbers = {
        number for _, start, end, *_ in changes for number in range(start + (end > start), max(end, start + 1) + 1)
    }
    spans = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            spans.append(
                range(node.lineno, (max(node.lineno + 1, body[0].lineno) if body else (node.end_lineno or 0) + 1))
            )
    for number in tuple(numbers):
        numbers |= set(min((span for span in spans if number in span), key=len, default=()))
    return numbers


class Tree:
    """A private copy of a commit, with the checkout's compiled modules. Its sources come first on PYTHONPATH, before
    the editable distributions."""

    def __init__(self, folder: Path, commit: str) -> None:
        self.folder, self._commit, self._stamp = folder, commit, folder / ".commit"
        if self._stamp.exists() and self._stamp.read_text() == commit:
            return
        shutil.rmtree(folder, ignore_errors=True)
        packed = subprocess.check_output(["git", "archive", commit], cwd=ROOT)
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(folder, filter="tar")
        for built in (*ROOT.glob("*/src/**/*.so"), *ROOT.glob("*/*/src/**/*.so")):
            shutil.copy2(built, folder / built.relative_to(ROOT))
        (folder / ".venv").symlink_to(ROOT / ".venv")
        self._stamp.write_text(commit)

    @contextlib.contextmanager
    def planted(self, path: str, mutated: str) -> Iterator[None]:
        """Without a stamp, so that a run that is killed leaves no mutant to the next one."""
        file = self.folder / path
        original = file.read_text()
        self._stamp.unlink()
        self._write(file, mutated)
        try:
            yield
        finally:
            self._write(file, original)
            self._stamp.write_text(self._commit)

    @staticmethod
    def _write(file: Path, text: str) -> None:
        file.write_text(text)
        for outdated in (file.parent / "__pycache__").glob(f"{file.stem}.*"):
            outdated.unlink()  # Python compares sizes and seconds, which a mutant may leave the same

    def pytest(self, tests: Iterable[str], *options: str, **variables: str) -> tuple[int, str]:
        """Run the tests in this order; return pytest's exit code and output."""
        (self.folder / ".tests").write_text("\n".join(tests) + "\n")
        sources = [str(each) for each in (*self.folder.glob("*/src"), *self.folder.glob("*/*/src"))]
        variables |= {"PYTHONPATH": os.pathsep.join([*sources, str(ROOT / "tools")]), "PYTHONDONTWRITEBYTECODE": ""}
        command = [sys.executable, "-m", "pytest", "-q", "-rfE", "--tb=line", "-p", "mutants_map", "-m", "not long"]
        command += ["-p", "no:cacheprovider", "-o", f"timeout={_TEST_S_MAX}", *options, "@.tests"]
        process = subprocess.Popen(
            command, cwd=self.folder, env=os.environ | variables,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            output, _ = process.communicate()
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        if process.returncode > 2 and process.returncode != 5:  # (5: no test left)
            raise RuntimeError(f"pytest could not run:\n{output[-3000:]}")
        return process.returncode, output


class Reach:
    """Which tests reach a line, and how long they take."""

    def __init__(self, tree: Tree, folder: Path, tests: tuple[str, ...], jobs: int) -> None:
        import coverage

        self._root = tree.folder
        if not (folder / "tests.json").exists():
            print(f"mutants: running {' '.join(tests)} to see which test reaches which line", file=sys.stderr)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            tree.pytest(tests, "-n", str(jobs), "--dist", "loadfile", HEADRACE_MUTANTS_MAP=str(folder))
            whole = coverage.Coverage(data_file=str(folder / "lines"))
            whole.combine()
            whole.save()
            (folder / "running.json").rename(folder / "tests.json")
        self._data = coverage.CoverageData(str(folder / "lines"))
        self._data.read()
        known = json.loads((folder / "tests.json").read_text())
        self._seconds: dict[str, float] = known["seconds"]
        self._failed = set(known["failed"])
        if self._failed:
            print(f"mutants: these fail without a mutant, so they judge none: {sorted(self._failed)}", file=sys.stderr)

    def tests(self, path: str, numbers: set[int]) -> list[str]:
        """The tests that reach any of these lines: nearest names first, then fastest files and tests. Lines that only
        run at import are reached by all tests of the file's other lines. A test file whose processes reach the lines
        runs whole, after the others."""
        by_line = self._data.contexts_by_lineno(str(self._root / path))
        found = {each for number in numbers for each in by_line.get(number, ()) if each}
        if not found and numbers & by_line.keys():
            found = {each for reached in by_line.values() for each in reached if each}
        whole = {each for each in found if "::" not in each}
        files: dict[str, list[str]] = {file: [file] for file in whole}
        for test in found - whole - self._failed:
            if (file := test.split("::")[0]) not in whole:
                files.setdefault(file, []).append(test)

        def seconds(test: str) -> float:
            return self._seconds.get(test, 1.0)

        def rank(file: str) -> tuple[bool, int, float]:
            return file in whole, -len(_words(path) & _words(file)), sum(map(seconds, files[file]))

        return [test for file in sorted(files, key=rank) for test in sorted(files[file], key=seconds)]


def _words(path: str) -> set[str]:
    return {word.rstrip("s") for word in re.findall("[a-z]+", path)} - {
        "headrace",
        "src",
        "py",
        "test",
        "unit",
        "service",
    }


def killer(mutant: Mutant, tree: Tree, reach: Reach) -> str | None:
    """The first test that fails with the mutant; None if all pass."""
    original = (tree.folder / mutant.path).read_text()
    mutated = mutant.applied(original)
    tests = reach.tests(mutant.path, changed_lines(original, mutated))
    with tree.planted(mutant.path, mutated):
        for some in filter(None, (tests[:NEAR_MIN], tests[NEAR_MIN:])):
            code, output = tree.pytest(some, "-x", "-p", "no:xdist")
            if code not in (0, 5):
                named = re.findall(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
                return named[0] if named else f"pytest ended with {code}"
    return None


def judged(tier: str, mutants: list[Mutant], trees: list[Tree], tests: tuple[str, ...], commit: str) -> list[Mutant]:
    """The mutants that all tests of the tier let pass."""
    folder = BUILD / f"{commit[:12]}-{hashlib.sha1(' '.join(tests).encode()).hexdigest()[:8]}"
    reach = Reach(trees[0], folder, tests, len(trees))
    verdicts = folder / "verdicts.json"
    kept: dict[str, str | None] = json.loads(verdicts.read_text()) if verdicts.exists() else {}
    free: queue.SimpleQueue[Tree] = queue.SimpleQueue()
    for each in trees:
        free.put(each)

    def survives(mutant: Mutant) -> bool:
        key, began = repr(mutant), time.monotonic()
        if key not in kept:
            tree = free.get()
            try:
                kept[key] = killer(mutant, tree, reach)
            finally:
                free.put(tree)
            verdicts.write_text(json.dumps(dict(kept), indent=1))
        took, verdict = time.monotonic() - began, kept[key] or "SURVIVES"
        print(f"mutants: {mutant.name:<42} {tier:<4} {took:>4.0f} s  {verdict}", file=sys.stderr, flush=True)
        return kept[key] is None

    with ThreadPoolExecutor(len(trees)) as pool:
        return [mutant for mutant, lives in zip(mutants, pool.map(survives, mutants), strict=True) if lives]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="mutants whose name this regular expression finds")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--tests", nargs="+", default=[], help="judge by these instead of the tiers: a quick look")
    parser.add_argument("--commit", default="HEAD")
    arguments = parser.parse_args()
    commit = subprocess.check_output(["git", "rev-parse", arguments.commit], cwd=ROOT, text=True).strip()
    trees = [Tree(BUILD / f"tree-{number}", commit) for number in range(arguments.jobs)]
    files = [file for file in sorted(MUTANTS.glob("*.patch")) if re.search(arguments.only, file.stem)]
    mutants = left = [Mutant.read(file) for file in files]
    for mutant in mutants:
        mutant.applied((trees[0].folder / mutant.path).read_text())
    killed = {"test": 0, "deep": 0}
    for tier in ("test",) if arguments.tests else ("test", "deep"):
        if before := len(left):
            os.environ |= {"HEADRACE_EXAMPLES": "all"} if tier == "deep" else {}  # as tools/test.sh does
            tests = tuple(each for each in arguments.tests or TIERS[tier].split() if (trees[0].folder / each).exists())
            left = judged(tier, left, trees, tests, commit)
            killed[tier] = before - len(left)
    result = {"mutants": len(mutants), "killed_by_test": killed["test"], "killed_by_deep": killed["deep"]}
    print(json.dumps(result | {"survived": [mutant.name for mutant in left]}), flush=True)
    too_few = killed["test"] < TEST_MIN * len(mutants) or len(left) > (1 - ALL_MIN) * len(mutants)
    return int(too_few and not arguments.only and not arguments.tests)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except DoesNotApplyError as error:
        sys.exit(f"mutants: {error}")
