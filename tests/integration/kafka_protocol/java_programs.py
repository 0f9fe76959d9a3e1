"""Compile and run the Java programs of tests/integration/kafka_protocol/java with a version of kafka-clients."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.integration.interop.kafka_peer import jars

SOURCES = Path(__file__).parent / "java"
#: Seconds that one program may take, its JVM's start included.
PROGRAM_S = 120
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>headrace</groupId><artifactId>java-programs</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-clients</artifactId><version>{version}</version></dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>1.7.36</version></dependency>
</dependencies></project>
"""


def client_jars(version: str) -> Path:
    """The folder with kafka-clients ``version``. Kafka 4.3's jars are those of the peer; Maven fetches other ones."""
    peer = jars()
    if (peer / f"kafka-clients-{version}.jar").exists():
        return peer
    libs = peer.parent / f"clients-{version}"
    if not (libs / f"kafka-clients-{version}.jar").exists():
        libs.mkdir(parents=True, exist_ok=True)
        pom = libs / "pom.xml"
        pom.write_text(_POM.format(version=version))
        command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={libs}"]
        subprocess.run(command, check=True, timeout=500)
    return libs


class JavaPrograms:
    """The programs, compiled into ``classes`` against kafka-clients ``version``.

    Raises:
        subprocess.CalledProcessError: a program does not compile.
    """

    def __init__(self, classes: Path, version: str) -> None:
        self._path = f"{classes}{os.pathsep}{client_jars(version)}/*"
        sources = [str(source) for source in sorted(SOURCES.glob("*.java"))]
        subprocess.run(
            ["javac", "--release", "17", "-d", str(classes), "-cp", self._path, *sources], check=True, timeout=PROGRAM_S
        )

    def command(self, program: str, *arguments: str) -> list[str]:
        """The command that runs a program."""
        return ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", self._path, program, *arguments]

    def run(self, program: str, *arguments: str) -> list[list[str]]:
        """Run a program to its end; return the words of each line that it printed."""
        done = subprocess.run(self.command(program, *arguments), capture_output=True, text=True, timeout=PROGRAM_S)
        assert done.returncode == 0, f"{program} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        return [line.split() for line in done.stdout.splitlines()]
