"""Rules of this project that linters do not check: file names, and content that no tracked file may have."""

from __future__ import annotations

import ast
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GENERATED = re.compile(r"_pb2(_grpc)?\.pyi?$")
TEXT = {
    ".py",
    ".pyi",
    ".pyx",
    ".pxd",
    ".proto",
    ".md",
    ".toml",
    ".txt",
    ".sh",
    ".java",
    ".xml",
    ".yml",
    ".yaml",
    ".json",
    ".cfg",
    "",
}


@cache
def tracked() -> tuple[Path, ...]:
    """Files that git knows, plus new files that git would not ignore."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return tuple(p for name in listed.stdout.split("\0") if name and (p := ROOT / name).is_file())


def texts() -> list[tuple[Path, str]]:
    return [(p.relative_to(ROOT), p.read_text()) for p in tracked() if p.suffix in TEXT]


def test_no_room_without_a_name() -> None:
    nameless = {"utils.py", "util.py", "helpers.py", "misc.py"}
    assert [str(p.relative_to(ROOT)) for p in tracked() if p.name in nameless] == []


def test_no_package_registry_and_no_path_of_somebody_s_machine_is_named() -> None:
    # The words are put together from pieces, so that this file passes its own test.
    registries = [r"pypi\." + "org", r"pythonhosted\." + "org", r"maven\." + "org", r"maven\.apache\.org/" + "maven2"]
    registries += [r"deb\.debian\." + "org", r"npmjs\." + "org", r"proxy\.golang\." + "org", r"crates\." + "io"]
    somebody_s = ["/ho" + r"me/\w", "/ro" + r"ot/\.?\w", "/wo" + r"rk/\w", "/tmp/br" + "ief"]
    forbidden = re.compile("|".join(registries + somebody_s))
    found = [
        f"{path}:{number}: {line.strip()[:100]}"
        for path, text in texts()
        for number, line in enumerate(text.splitlines(), 1)
        if forbidden.search(line)
    ]
    assert found == []


def test_constraints_pin_versions_and_name_no_place() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    odd = [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line)]
    assert odd == []
    names = [re.sub(r"[-_.]+", "-", line.split("==")[0]).lower() for line in lines]
    assert sorted(names) == sorted(set(names)), "a name is pinned twice"


def test_there_is_no_lock_file() -> None:
    locks = {"poetry.lock", "uv.lock", "pdm.lock", "Pipfile.lock", "package-lock.json", "pylock.toml"}
    assert [p.name for p in tracked() if p.name in locks] == []


def _requirement_names(text: str) -> set[str]:
    import tomllib

    data = tomllib.loads(text)
    project = data.get("project", {})
    lists = [project.get("dependencies", []), *project.get("optional-dependencies", {}).values()]
    lists += data.get("dependency-groups", {}).values()
    lists.append(data.get("build-system", {}).get("requires", []))
    names = {re.match(r"[A-Za-z0-9._-]+", item)[0] for items in lists for item in items if isinstance(item, str)}  # type: ignore[index]
    return {re.sub(r"[-_.]+", "-", name).lower() for name in names}


def test_every_dependency_is_pinned() -> None:
    pinned = {
        re.sub(r"[-_.]+", "-", line.split("==")[0]).lower()
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    }
    wanted = set()
    for path, text in texts():
        if path.name == "pyproject.toml":
            wanted |= _requirement_names(text)
    ours = {name for name in wanted if name.startswith("headrace")}
    assert wanted - pinned - ours == set()


def test_every_module_says_what_it_is() -> None:
    silent = [
        str(path)
        for path, text in texts()
        if path.suffix == ".py" and "src" in path.parts and not GENERATED.search(path.name)
        if text.strip() and not text.startswith('"""') and not ast.get_docstring(ast.parse(text))
    ]
    assert silent == [], "a module opens with its story"


def _sleeps(node: ast.AST, *, polling: bool = False) -> list[int]:
    """The lines with a time.sleep outside of a while loop. A sleep inside a loop is allowed, because the loop waits for
    a condition."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "time.sleep" and not polling:
        return [node.lineno]
    inside = polling or isinstance(node, ast.While)
    return [line for child in ast.iter_child_nodes(node) for line in _sleeps(child, polling=inside)]


def test_no_test_sleeps() -> None:
    """Tests wait for conditions, because a sleep without a condition is too short on one machine and too long on
    another."""
    offenders = [
        f"{path}:{line}"
        for path, text in texts()
        if path.parts[0] == "tests" and path.name.startswith("test_") and path.suffix == ".py"
        if "time.sleep" in text  # to parse every file takes ten seconds
        for line in _sleeps(ast.parse(text))
    ]
    assert offenders == []


def test_no_cancellation_is_swallowed() -> None:
    """In Python 3.11, asyncio.wait_for ignores a cancellation that arrives at the moment when the awaited task is done.
    A cancelled heartbeat task therefore ran for ever. ``async with asyncio.timeout(...)`` ignores no cancellation."""
    offenders = [
        str(path)
        for path, text in texts()
        if "src" in path.parts and path.suffix == ".py" and "asyncio.wait_for(" in text
    ]
    assert offenders == []


def test_a_bare_sleep_would_be_found() -> None:
    assert _sleeps(ast.parse("def test():\n    time.sleep(1)")) == [2]
    assert _sleeps(ast.parse("while not done:\n    time.sleep(0.01)")) == []


def test_tests_import_each_other_by_whole_names_and_patch_no_path() -> None:
    """Tests import their helpers by ``from tests.worlds.x import …``: no conftest.py changes sys.path, and a module
    name without a package belongs to a third party."""
    ours = {path.stem for path in (ROOT / "tests").rglob("*.py")}
    offenders = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        text = path.read_text()
        if _may_be_bare(text, ours):  # to parse every file takes ten seconds
            offenders += [f"{path.relative_to(ROOT)}:{line}" for line in _bare_imports(ast.parse(text), ours)]
    assert offenders == []


def test_a_bare_import_would_be_found() -> None:
    found = "from raft_world import World\nimport raft_world\nsys.path.insert(0, x)\nsys.path[:0] = [x]"
    assert _bare_imports(ast.parse(found), {"raft_world"}) == [1, 2, 3, 4]
    assert all(_may_be_bare(line, {"raft_world"}) for line in found.splitlines())
    assert _may_be_bare("if x:\n    import os, raft_world as world", {"raft_world"})
    assert not _may_be_bare("import other\nfrom tests.worlds.raft_world import World", {"raft_world"})
    assert _bare_imports(ast.parse("from tests.unit.raft_world import World"), {"raft_world"}) == []


_IMPORTED = re.compile(r"^ *(?:from|import) +([\w ,]+)", re.MULTILINE)


def _may_be_bare(text: str, ours: set[str]) -> bool:
    """Whether ``_bare_imports`` may find a line in a file."""
    return "sys.path" in text or any(ours.intersection(re.findall(r"\w+", found)) for found in _IMPORTED.findall(text))


def _bare_imports(tree: ast.Module, ours: set[str]) -> list[int]:
    """The lines that change sys.path, or import a module of the tests without its package."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            is_bare = any(alias.name in ours for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            is_bare = node.module in ours
        elif isinstance(node, ast.Call):
            is_bare = ast.unparse(node.func) in ("sys.path.insert", "sys.path.append")
        elif isinstance(node, ast.Assign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            is_bare = any(ast.unparse(target).startswith("sys.path") for target in targets)
        else:
            continue
        if is_bare:
            found.append(node.lineno)
    return sorted(found)
