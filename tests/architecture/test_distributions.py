"""The results of `make dist` have one version and complete extras, and they contain no path of the building machine."""

from __future__ import annotations

import io
import re
import shutil
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import build_dist
import install
import pytest
import version

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENT = re.compile(r"(headrace(?:-[a-z]+)?)(?:\[([a-z,]+)\])?(.*)")


def projects() -> dict[str, dict[str, Any]]:
    """Distribution -> its [project] table."""
    tables = [tomllib.loads((ROOT / path / "pyproject.toml").read_text())["project"] for path in install.DISTRIBUTIONS]
    return {table["name"]: table for table in tables}


def ours(requirements: list[str]) -> Iterator[tuple[str, list[str], str]]:
    """Name, extras and version of each requirement that is a distribution of ours."""
    for requirement in requirements:
        if (found := REQUIREMENT.fullmatch(requirement)) is not None:
            yield found[1], (found[2] or "").split(",") if found[2] else [], found[3]


def test_all_distributions_have_the_declared_version() -> None:
    assert version.rewritten() == {}
    assert {project["version"] for project in projects().values()} == {version.version()}


def test_distributions_require_each_other_in_exactly_their_version() -> None:
    loose = [
        f"{name}: {found}"
        for name, project in projects().items()
        for wanted in (project["dependencies"], *project.get("optional-dependencies", {}).values())
        for found in ours(wanted)
        if found[2] != f"=={version.version()}"
    ]
    assert loose == []


def test_a_new_version_reaches_every_place(tmp_path: Path) -> None:
    for name in ("pyproject.toml", *version.PLACES):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    root = tmp_path / "pyproject.toml"
    root.write_text(root.read_text().replace(f'version = "{version.version()}"', 'version = "12.3.4rc5"'))
    changed = version.rewritten(tmp_path)
    assert {str(path.relative_to(tmp_path)) for path in changed} == set(version.PLACES)
    for path, text in changed.items():
        assert "12.3.4rc5" in text
        assert f"=={version.version()}" not in text, f"{path.name} keeps a pin of the old version"
        path.write_text(text)
    assert version.rewritten(tmp_path) == {}


def test_a_version_that_is_no_release_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.headrace]\nversion = "1.2"\n')
    with pytest.raises(ValueError, match=r'version "1\.2" is neither X\.Y\.Z nor X\.Y\.ZrcN'):
        version.rewritten(tmp_path)


def test_all_brings_every_distribution_and_every_extra_that_a_user_may_want() -> None:
    known, seen = projects(), set()
    waiting: list[tuple[str, str | None]] = [("headrace", "all")]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in seen:
            continue
        seen |= {(name, extra), (name, None)}
        wanted = list(known[name]["dependencies"])
        if extra is not None:
            wanted += known[name]["optional-dependencies"][extra]
        for required, extras, _ in ours(wanted):
            waiting += [(required, None), *((required, each) for each in extras)]
    assert {name for name, _ in seen} == set(known)
    assert {extra for name, extra in seen if name == "headrace"} >= {None, "arrow", "zstd", "snappy", "cluster", "all"}
    assert ("headrace-pipelines", "demo") in seen


def test_a_path_of_this_machine_is_found_in_wheels_and_sdists(tmp_path: Path) -> None:
    text = f"compiled in {ROOT}/core".encode()
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel:
        wheel.writestr("module.so", text)
        wheel.writestr("other.py", b"")
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as sdist:
        member = tarfile.TarInfo("a/module.pyx")
        member.size = len(text)
        sdist.addfile(member, io.BytesIO(text))
    paths = build_dist.paths_of_this_machine()
    for archive, name in (("a.whl", "module.so"), ("a.tar.gz", "a/module.pyx")):
        assert f"{archive}: {name} contains {ROOT}/" in build_dist.leaks(tmp_path / archive, paths)
    assert build_dist.leaks(tmp_path / "a.whl", [b"/nowhere/at/all/"]) == []


def test_two_builds_give_the_same_wheel_with_licence_protos_and_no_leftovers(tmp_path: Path) -> None:
    wheels = []
    for turn in ("first", "second"):
        sdist, wheel = build_dist.build("protos", tmp_path / turn)  # fails if one names a path of this machine
        wheels.append(wheel.read_bytes())
        names = [name for name, _ in build_dist.files_of(wheel)]
        assert any(name.endswith("licenses/LICENSE") for name in names)
        assert "headrace_protos/v1/produce.proto" in names
        assert not [name for name in names if "__pycache__" in name or name.endswith((".c", ".pyc"))]
        assert any(name.endswith("/pyproject.toml") for name, _ in build_dist.files_of(sdist))
    assert wheels[0] == wheels[1]
