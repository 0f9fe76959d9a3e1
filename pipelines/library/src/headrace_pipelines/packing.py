"""``headrace-pipelines pack``: one file with the Python packages that Spark's executors need.

The file is an archive for ``spark.archives``: each executor unpacks the archive into its working directory. The Python
workers of the executor find the packages by ``PYTHONPATH``. The machines of the cluster need Python of the driver's
version (3.11 for 3.11), and no package.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from headrace_core.errors import InvalidArgumentError

#: The name of the directory into which an executor unpacks the archive.
DIRECTORY = "headrace-packages"
#: What executors need: the source and the sink, the library, and pandas for Spark's own Arrow functions.
_ROOTS = ("headrace-spark", "headrace-pipelines", "pandas")
#: Distributions that every machine of a Spark cluster has.
_OF_SPARK = frozenset({"pyspark", "py4j"})
_REQUIREMENT = re.compile(
    r"\s*(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[(?P<extras>[^\]]*)\])?[^;]*(?:;(?P<marker>.*))?"
)
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")
_LEFT_OUT = frozenset({".pyx", ".pxd", ".c", ".pyc"})


@dataclass(frozen=True, slots=True)
class Packed:
    """An archive: its distributions (names), and its size in bytes."""

    distributions: tuple[str, ...]
    size: int


def settings(archive: str, driver: Path | None = None) -> dict[str, str]:
    """Spark's settings for a session whose executors use ``archive``: a path, or a URL such as hdfs://...

    ``driver`` is the directory where the driver has unpacked the archive: the Python processes that plan a query run on
    the driver's machine. Without ``driver``, the Python on the driver's machine must have the packages.
    """
    places = DIRECTORY if driver is None else f"{DIRECTORY}:{driver}"
    return {"spark.archives": f"{archive}#{DIRECTORY}", "spark.executorEnv.PYTHONPATH": places}


def unpack(archive: Path, directory: Path) -> None:
    """Unpack an archive of ``pack`` into a directory, in place of what the directory had. Raises InvalidArgumentError
    if the archive cannot be read."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    try:
        with tarfile.open(archive) as packed:
            packed.extractall(directory, filter="data")
    except (OSError, tarfile.TarError) as error:
        why = str(error).partition("\n")[0].rstrip(":")  # tarfile adds a line for each kind of compression
        raise InvalidArgumentError(
            f"--packed {archive}: cannot read the archive: {why}; make it with `headrace-pipelines pack`"
        ) from None


def pack(file: Path, packages: Sequence[Path]) -> Packed:
    """Write the archive ``file`` (.tar.gz) with Headrace, the packages that Headrace needs, and the given packages of
    the user. Raises InvalidArgumentError for a directory that is not a package, and for another ending of the name."""
    if not file.name.endswith(".tar.gz"):
        raise InvalidArgumentError(f"{file}: the name of the archive must end with .tar.gz, by which Spark unpacks it")
    for package in packages:
        if not (package / "__init__.py").is_file():
            raise InvalidArgumentError(f"{package} is not a package: it has no __init__.py")
    found = _distributions(_ROOTS)
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_name(f"{file.name}.tmp")
    with tarfile.open(unfinished, "w:gz", compresslevel=1) as archive:
        for each in found:
            for name, path in _files(each):
                archive.add(path, name, recursive=False)
        for package in packages:
            for name, path in _tree(package.resolve()):
                archive.add(path, name, recursive=False)
    unfinished.replace(file)
    return Packed(tuple(sorted(each.name for each in found)), file.stat().st_size)


def _distributions(roots: Sequence[str]) -> list[Distribution]:
    """The installed distributions that the roots require, directly or through others, without Spark's own."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [(_normal(root), frozenset[str]()) for root in roots]
    while waiting:
        name, extras = waiting.pop()
        if name in _OF_SPARK or (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            found[name] = each = distribution(name)
        except PackageNotFoundError:  # a requirement for another platform or Python
            continue
        waiting += [wanted for line in each.requires or () if (wanted := _required(line, extras)) is not None]
    return list(found.values())


def _required(line: str, extras: frozenset[str]) -> tuple[str, frozenset[str]] | None:
    """Name and extras of a requirement, such as ``headrace[arrow]==0.1.0; extra == "spark"``; None if the requirement
    is for an extra that is not in ``extras``."""
    match = _REQUIREMENT.match(line)
    assert match is not None, line
    of_extra = _EXTRA.search(match["marker"] or "")
    if of_extra is not None and _normal(of_extra[1]) not in extras:
        return None
    return _normal(match["name"]), frozenset(
        _normal(each) for each in (match["extras"] or "").split(",") if each.strip()
    )


def _normal(name: str) -> str:
    """The normalized name of a distribution or extra (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def _files(each: Distribution) -> Iterator[tuple[str, Path]]:
    """Name in the archive and path of each file of a distribution."""
    if json.loads(each.read_text("direct_url.json") or "{}").get("dir_info", {}).get("editable"):
        for top in (each.read_text("top_level.txt") or "").split():
            spec = importlib.util.find_spec(top)
            assert spec is not None, f"{each.name}: {top} cannot be imported"
            for directory in spec.submodule_search_locations or ():
                yield from _tree(Path(directory))
        return
    for file in each.files or ():
        if (
            ".." not in file.parts
            and file.suffix not in _LEFT_OUT
            and (path := Path(str(each.locate_file(file)))).is_file()
        ):
            yield str(file), path


def _tree(package: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(package.rglob("*")):
        if path.is_file() and path.suffix not in _LEFT_OUT:
            yield str(path.relative_to(package.parent)), path
