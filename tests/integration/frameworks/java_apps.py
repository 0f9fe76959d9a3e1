"""Kafka's Java frameworks as processes: jars from Maven, programs that a test kills and starts again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from tests.integration.interop.kafka_peer import DIES_WITH_US, jars

KAFKA = "4.3.0"
COMPILE_S, FETCH_S, STOP_S = 120, 500, 60
_SOURCES = Path(__file__).parent / "java"
_DEPENDENCY = "<dependency><groupId>{0}</groupId><artifactId>{1}</artifactId><version>{2}</version></dependency>"
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>headrace</groupId><artifactId>{name}</artifactId><version>1</version><dependencies>
{dependencies}
</dependencies></project>
"""
_LOGGING = ("org.slf4j", "slf4j-simple", "1.7.36")


def maven_jars(name: str, *artifacts: tuple[str, str, str]) -> Path:
    """The folder with the jars of ``artifacts`` (group, name, version) and of what they need; Maven fetches them once.
    ``name``: the folder's name, beside the peer's jars."""
    libs = jars().parent / name
    done = libs / "pom.xml"
    dependencies = "\n".join(_DEPENDENCY.format(*each) for each in (*artifacts, _LOGGING))
    pom = _POM.format(name=name, dependencies=dependencies)
    if not done.exists() or done.read_text() != pom:
        libs.mkdir(parents=True, exist_ok=True)
        asked = libs / "asked.xml"
        asked.write_text(pom)
        command = ["mvn", "-q", "-B", "-f", str(asked), "dependency:copy-dependencies", f"-DoutputDirectory={libs}"]
        subprocess.run(command, check=True, timeout=FETCH_S)
        asked.rename(done)
    return libs


def compiled(classes: Path, libs: Path) -> str:
    """Compile the programs of ``java/`` into ``classes``; return their class path."""
    path = f"{classes}{os.pathsep}{libs}/*"
    sources = [str(source) for source in sorted(_SOURCES.glob("*.java"))]
    subprocess.run(
        ["javac", "--release", "17", "-d", str(classes), "-cp", path, *sources], check=True, timeout=COMPILE_S
    )
    return path


class JavaApp:
    """A Java program that can be killed and started again; its output of all starts is in ``log``."""

    def __init__(self, path: str, arguments: Sequence[str], log: Path) -> None:
        java = [sys.executable, "-c", DIES_WITH_US, "java"]
        self._command = [*java, "-Xmx512m", "-XX:TieredStopAtLevel=1", "-cp", path, *arguments]
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> JavaApp:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()
        if error is not None:
            lines = self.log.read_text(errors="replace").splitlines()
            telling = [line for line in lines if "ERROR" in line or "Exception" in line]
            print(f"---- {self.log.name}", *telling[-20:], *lines[-40:], sep="\n")

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill(self) -> None:
        """kill -9"""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(timeout=STOP_S)

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None
