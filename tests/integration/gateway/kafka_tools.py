"""Run Apache Kafka's command-line tools, all in one JVM, and keep what each printed."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from tests.integration.interop.kafka_peer import jars

_SOURCE = Path(__file__).parent / "tools_java" / "ToolRunner.java"
#: Seconds to compile the runner.
_COMPILE_S = 120


class Printed(NamedTuple):
    """What a tool's run answered: its exit code, and the text of its standard output and standard error."""

    code: int
    text: str


class KafkaTools:
    """A JVM that runs tools one after another; a context manager."""

    def __init__(self, directory: Path) -> None:
        path = f"{directory}{os.pathsep}{jars()}/*"
        subprocess.run(["javac", "-d", str(directory), "-cp", path, str(_SOURCE)], check=True, timeout=_COMPILE_S)
        command = ["java", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-cp", path, "ToolRunner"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=directory
        )

    def __enter__(self) -> KafkaTools:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate()

    def run(self, tool: str, *arguments: str, stdin: str = "") -> Printed:
        """Run a tool's main method.

        Args:
            tool: the class, such as ``org.apache.kafka.tools.TopicCommand``.
            arguments: its command line, without line breaks.
            stdin: the text of its standard input.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\x1f".join([tool, stdin.replace("\n", "\x1e"), *arguments]) + "\n")
        self._process.stdin.flush()
        lines: list[str] = []
        for line in self._process.stdout:
            lines.append(line)
            if line.endswith("\x1d\n"):
                text = "".join(lines[1:])[:-2]
                return Printed(int(lines[0]), re.sub(r"(?m)^SLF4J: .*\n?", "", text))
        raise AssertionError(f"the JVM ended during {tool} {arguments}: {''.join(lines)}")
