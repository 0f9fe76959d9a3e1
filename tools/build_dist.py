"""Build wheels and sdists of every distribution in dist/ (`make dist`).

The script copies each distribution, builds the sdist from the copy, and builds the wheel from the unpacked sdist.
Because the wheel is built from the sdist, a file that is missing in the sdist fails the build. No published file may
contain a path of this machine. The script leaves out debug information and run paths, and searches the results for
paths of this machine before it writes them to dist/. Two builds of one commit with the same tools and Python give the
same wheels (SOURCE_DATE_EPOCH is the commit's time).

The build uses the build tools in .venv, in the versions of constraints.txt.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from install import DISTRIBUTIONS, native_sources

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "dist"
#: Names of build results in a checkout, which the copies for a build leave out.
_LEFTOVERS = shutil.ignore_patterns("*.so", "*.c", "*.html", "*.py[cod]", "__pycache__", "*.egg-info", "build", "dist")


class BuildError(Exception):
    """A distribution could not be built, or must not be published. The message of the error has the output of the build
    tools."""


def paths_of_this_machine(*more: Path) -> list[bytes]:
    """Paths that no published file may contain: this checkout, this Python, the home directory, and ``more``."""
    own = {ROOT, Path(sys.prefix), Path(sys.exec_prefix), Path.home(), *more}
    return sorted({f"{path}/".encode() for path in own if len(path.parts) > 1})


def files_of(archive: Path) -> Iterator[tuple[str, bytes]]:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for name in wheel.namelist():
                yield name, wheel.read(name)
    else:
        with tarfile.open(archive) as sdist:
            for member in sdist:
                if (content := sdist.extractfile(member)) is not None:
                    yield member.name, content.read()


def leaks(archive: Path, paths: list[bytes]) -> list[str]:
    """A line for each file of ``archive`` that contains one of ``paths``."""
    return [
        f"{archive.name}: {name} contains {path.decode()}"
        for name, content in files_of(archive)
        for path in paths
        if path in content
    ]


def _environment(headers: Path) -> dict[str, str]:
    """The environment variables to build one distribution. ``headers`` are the core's sources, whose .pxd files the
    modules of the SDK need."""
    chosen = {
        **os.environ,
        "PYTHONPATH": str(headers),
        "PYTHONDONTWRITEBYTECODE": "1",
        # The given compiler flags replace Python's own flags, so add NDEBUG again: without NDEBUG each assert of
        # Python.h would contain the path of its file.
        "CFLAGS": f"{sysconfig.get_config_var('CFLAGS')} -g0",
    }
    if sys.platform.startswith("linux"):  # leave out the run path of a self-built Python
        chosen["LDSHARED"] = f"{sysconfig.get_config_var('CC')} -shared"
    if "SOURCE_DATE_EPOCH" not in chosen and (ROOT / ".git").exists() and shutil.which("git") is not None:
        commit = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True)
        if commit.returncode == 0:
            chosen["SOURCE_DATE_EPOCH"] = commit.stdout.strip()
    return chosen


def _hook(what: str, where: Path, output: Path, environment: dict[str, str]) -> Path:
    """Call ``build_sdist`` or ``build_wheel`` of setuptools for the project at ``where``."""
    output.mkdir(parents=True, exist_ok=True)
    call = f"import sys; from setuptools import build_meta; build_meta.{what}(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", call, str(output)],
        cwd=where,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        raise BuildError(f"{what} of {where.name} failed (exit {done.returncode}):\n{done.stdout}")
    (built,) = output.iterdir()
    return built


def build(directory: str, workspace: Path) -> list[Path]:
    """Build the sdist and the wheel of one distribution below ``workspace``; returns their paths. Raises BuildError."""
    name = directory.replace("/", "-")
    copy = workspace / "copies" / name
    shutil.copytree(ROOT / directory, copy, ignore=_LEFTOVERS)
    shutil.copy2(ROOT / "LICENSE", copy)
    environment = _environment(ROOT / "core" / "src")
    sdist = _hook("build_sdist", copy, workspace / name / "sdist", environment)
    with tarfile.open(sdist) as packed:
        packed.extractall(workspace / "unpacked", filter="data")
    unpacked = workspace / "unpacked" / sdist.name.removesuffix(".tar.gz")
    wheel = _hook("build_wheel", unpacked, workspace / name / "wheel", environment)
    contents = [name for name, _ in files_of(wheel)]
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    for source in native_sources(directory):
        module = str(source.relative_to(ROOT / directory / "src").with_suffix(suffix))
        if module not in contents:
            raise BuildError(f"{wheel.name} lacks the compiled module {module}")
    if found := [leak for archive in (sdist, wheel) for leak in leaks(archive, paths_of_this_machine(workspace))]:
        raise BuildError("paths of this machine in what was built:\n" + "\n".join(found))
    return [sdist, wheel]


def main() -> int:
    started = time.monotonic()
    # Compiled distributions take longest, so build them first.
    directories = sorted(DISTRIBUTIONS, key=lambda directory: -len(native_sources(directory)))
    with tempfile.TemporaryDirectory(prefix="headrace-dist-") as temporary:
        workspace = Path(temporary)
        try:
            with ThreadPoolExecutor(os.cpu_count()) as builders:
                built = [
                    archive
                    for archives in builders.map(lambda directory: build(directory, workspace), directories)
                    for archive in archives
                ]
        except BuildError as error:
            print(f"dist: {error}", file=sys.stderr)
            return 1
        shutil.rmtree(OUTPUT, ignore_errors=True)
        OUTPUT.mkdir()
        for archive in built:
            shutil.move(archive, OUTPUT)
    for archive in sorted(OUTPUT.iterdir()):
        print(f"dist: {archive.name} ({archive.stat().st_size / 1000:.0f} kB)")
    print(f"dist: {len(built)} files in {time.monotonic() - started:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
