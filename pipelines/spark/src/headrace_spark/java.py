"""Find the Java that Spark needs (17 or newer)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from .errors import JavaNotFoundError

OLDEST = 17
#: Java versions with which Spark 4 is tested, best version first. A Java version from OLDEST on, with which Spark 4 is
#: not tested, is used only if no tested version is found.
TESTED = (17, 21)
JVM_DIRECTORIES = ("/usr/lib/jvm", "/usr/java", "/opt/java", "/opt/jdk", "/opt")

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


def find_java(environment: dict[str, str] | None = None, directories: Iterable[str] = JVM_DIRECTORIES) -> Path:
    """The home directory of a Java that can run Spark: JAVA_HOME if that Java is new enough, else the Java in PATH,
    else Debian's.

    Raises JavaNotFoundError, which lists the places searched and how to install Java.
    """
    environment = dict(os.environ) if environment is None else environment
    looked: list[str] = []
    for where, home in _preferred(environment):
        version = java_version(home)
        if version is not None and version >= OLDEST:
            return home
        looked.append(f"{where} {home}: {'no Java' if version is None else f'Java {version}'}")
    found = [(version, home) for home in _installed(directories) if (version := java_version(home)) is not None]
    usable = [(_rank(version), home) for version, home in found if version >= OLDEST]
    if usable:
        return min(usable)[1]
    looked += [f"{home}: Java {version}" for version, home in found] or [f"nothing in {', '.join(directories)}"]
    raise JavaNotFoundError(
        f"Spark needs Java {OLDEST} or newer. Looked at: {'; '.join(looked)}. Install one, for instance `apt-get "
        "install openjdk-17-jre-headless`, or set JAVA_HOME to its directory."
    )


def java_version(home: Path) -> int | None:
    """The major version of the Java in ``home``; None if ``home`` has no Java that runs."""
    release = home / "release"
    if release.is_file():
        match = re.search(r'JAVA_VERSION="(?:1\.)?(\d+)', release.read_text(errors="replace"))
        if match and (home / "bin" / "java").is_file():
            return int(match[1])
    try:
        ran = subprocess.run(
            [home / "bin" / "java", "-version"], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = _VERSION.search(ran.stderr + ran.stdout)
    return int(match[1]) if match else None


def _preferred(environment: dict[str, str]) -> Iterator[tuple[str, Path]]:
    if environment.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(environment["JAVA_HOME"])
    on_path = shutil.which("java", path=environment.get("PATH"))
    if on_path:
        yield "PATH", Path(on_path).resolve().parent.parent


def _installed(directories: Iterable[str]) -> Iterator[Path]:
    seen = set()
    for directory in map(Path, directories):
        for java in sorted(directory.glob("*/bin/java")):
            home = java.parent.parent.resolve()
            if home not in seen:
                seen.add(home)
                yield home


def _rank(version: int) -> tuple[int, int]:
    return (TESTED.index(version), 0) if version in TESTED else (len(TESTED), version)
