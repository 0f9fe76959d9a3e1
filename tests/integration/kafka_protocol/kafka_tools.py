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
        self._path = path = f"{directory}{os.pathsep}{jars()}/*"
        subprocess.run(["javac", "-d", str(directory), "-cp", path, str(_SOURCE)], check=True, timeout=_COMPILE_S)
        command = ["java", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-cp", path, "ToolRunner"]
        #: The command line and the output of each run so far.
        self.transcript: list[tuple[str, Printed]] = []
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=directory
        )

    def __enter__(self) -> KafkaTools:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate()

    def run_alone(self, tool: str, *arguments: str) -> Printed:
        """Run a tool in a JVM of its own, because it prints its results in a shutdown hook."""
        command = ["java", "-XX:TieredStopAtLevel=1", "-cp", self._path, tool, *arguments]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_S, check=False)
        printed = Printed(ended.returncode, ended.stdout)
        self.transcript.append((" ".join([tool, *arguments]), printed))
        return printed

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
                printed = Printed(int(lines[0]), re.sub(r"(?m)^SLF4J: .*\n?", "", text))
                self.transcript.append((" ".join([tool, *arguments]), printed))
                return printed
        raise AssertionError(f"the JVM ended during {tool} {arguments}: {''.join(lines)}")


#: Kafka's scripts by the classes that they run.
SCRIPTS = {
    "BrokerApiVersionsCommand": "kafka-broker-api-versions",
    "ClusterTool": "kafka-cluster",
    "ConfigCommand": "kafka-configs",
    "ConsoleConsumer": "kafka-console-consumer",
    "ConsoleProducer": "kafka-console-producer",
    "ConsumerGroupCommand": "kafka-consumer-groups",
    "ConsumerPerformance": "kafka-consumer-perf-test",
    "DeleteRecordsCommand": "kafka-delete-records",
    "EndToEndLatency": "kafka-e2e-latency",
    "FeatureCommand": "kafka-features",
    "GetOffsetShell": "kafka-get-offsets",
    "LeaderElectionCommand": "kafka-leader-election",
    "LogDirsCommand": "kafka-log-dirs",
    "MetadataQuorumCommand": "kafka-metadata-quorum",
    "ProducerPerformance": "kafka-producer-perf-test",
    "ReassignPartitionsCommand": "kafka-reassign-partitions",
    "TopicCommand": "kafka-topics",
    "TransactionsCommand": "kafka-transactions",
    "VerifiableConsumer": "kafka-verifiable-consumer",
    "VerifiableProducer": "kafka-verifiable-producer",
}
_LINES_MAX, _LETTERS_MAX = 12, 140


def page(transcript: list[tuple[str, Printed]], directory: Path) -> str:
    """A page that shows what each tool printed: the first lines of each run."""
    sections: dict[str, list[str]] = {}
    for command, printed in transcript:
        tool, _, rest = command.partition(" ")
        words = re.sub(r"127\.0\.0\.1:\d+", "localhost:9092", rest).replace(f"{directory}{os.sep}", "")
        text = re.sub(r"(127\.0\.0\.1:)\d+", r"\g<1>9092", printed.text)
        text = re.sub(r"/[^\s\"]*/(broker-\d)", r"/var/lib/\1", text)
        lines = [line[:_LETTERS_MAX].rstrip() for line in text.splitlines() if line.strip()]
        shown = lines[:_LINES_MAX]
        if len(lines) > _LINES_MAX:
            shown.append(f"... {len(lines) - _LINES_MAX} more lines")
        code = f"(exit code {printed.code})" if printed.code else ""
        script = SCRIPTS[tool.rpartition(".")[2]]
        sections.setdefault(script, []).append("\n".join([f"$ {script} {words} {code}".rstrip(), *shown]))
    parts = [f"## {script}\n\n```text\n" + "\n\n".join(runs) + "\n```\n" for script, runs in sorted(sections.items())]
    return "\n".join(parts)
