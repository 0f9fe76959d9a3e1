"""``headrace-pipelines sql`` as a user runs it: at a terminal, with a pipe, and with --serve, killed once."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace import Consumer, LocalCluster, Producer
from headrace_core.testing.verdicts import NotInTimeError
from headrace_pipelines.testing import kill_session
from headrace_pipelines.topics import await_markers, records_in_topic
from tests.worlds.waiting import until

pytestmark = pytest.mark.timeout(540)

LONG_S = 120.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1, controllers=1, coordinators=1, mode="inprocess") as running:
        yield running


def command(cluster: LocalCluster, out: Path, *flags: str) -> list[str]:
    words = [sys.executable, "-m", "headrace_pipelines", "sql", "--bootstrap-servers", cluster.bootstrap_servers]
    return [*words, "--out", str(out), *flags]


class Terminal:
    """The command at a terminal of its own."""

    def __init__(self, words: list[str]) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            words, stdin=slave, stdout=slave, stderr=slave, start_new_session=True, env={**os.environ, "TERM": "dumb"}
        )
        os.close(slave)
        os.set_blocking(self._master, False)
        self.said = ""

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def wait_for(self, text: str) -> str:
        """What the command has said up to ``text``, from the last call on."""
        deadline = time.monotonic() + LONG_S
        while text not in self.said:
            if time.monotonic() > deadline:
                raise NotInTimeError(f"no {text!r} in {self.said[-2000:]!r}")
            try:
                self.said += os.read(self._master, 65_536).decode(errors="replace").replace("\r", "")
            except BlockingIOError:
                time.sleep(0.02)
            except OSError as error:  # the end of the process
                pytest.fail(f"{error}: no {text!r} in {self.said[-2000:]!r}")
        found, _, self.said = self.said.partition(text)
        return found

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(60)
        os.close(self._master)


def test_a_prompt_completes_points_at_errors_and_keeps_its_history(cluster: LocalCluster, tmp_path: Path) -> None:
    terminal = Terminal(command(cluster, tmp_path))
    try:
        terminal.wait_for("sql> ")
        terminal.type("CREATE STREAM readings (celsius DOUBLE)\n")
        terminal.wait_for("...> ")
        terminal.type("WITH (partitions = 1);\n")
        terminal.wait_for("stream readings reads the topic readings, which is new")
        terminal.wait_for("sql> ")
        terminal.type("SELECT celsiu FROM readings;\n")
        assert "cannot be resolved" in terminal.wait_for("^^^^^^\n")
        terminal.wait_for("sql> ")
        terminal.type("INSERT INTO rea\t VALUES (20.5);\n")  # Tab: readings
        terminal.wait_for("1 row sent to readings")
        terminal.wait_for("sql> ")
        terminal.type("SELECT * FROM readings EMIT CHANGES;\n")
        terminal.wait_for("\n")
        os.killpg(terminal.process.pid, signal.SIGINT)  # Ctrl-C
        terminal.wait_for("interrupted")
        terminal.wait_for("sql> ")
        terminal.type("\x04")
        assert terminal.process.wait(LONG_S) == 0
    finally:
        terminal.close()
    history = (tmp_path / "history").read_text()
    assert "WITH (partitions = 1);" in history
    assert "INSERT INTO readings VALUES (20.5);" in history
    assert json.loads((tmp_path / "run.json").read_text())["end"] == "done"

    # The next process knows the table. In a pipe, stdout has only rows.
    text = "SELECT celsius, _offset FROM readings; SHOW TABLES;\nSELECT * FROM reading; SHOW TOPICS;"
    done = subprocess.run(
        command(cluster, tmp_path, "-o", "json"),
        input=text,
        capture_output=True,
        text=True,
        timeout=LONG_S,
        check=False,
    )
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"celsius": 20.5, "_offset": 0},
        {"name": "readings", "kind": "stream", "topic": "readings", "format": "json", "key": ""},
    ]
    assert done.returncode == 1
    assert "stdin:2:15: there is no table reading; SHOW TABLES lists the tables\n" in done.stderr
    assert done.stderr.endswith("  2 | SELECT * FROM reading; SHOW TOPICS;\n    |               ^^^^^^^\n")


def words_in(cluster: LocalCluster) -> list[str]:
    """The committed records of the topic ``words``."""
    servers = cluster.bootstrap_servers
    await_markers(servers)
    settings = {"isolation_level": "read_committed", "auto_offset_reset": "earliest"}
    with Consumer(bootstrap_servers=servers, **settings) as consumer:
        return [(record.value or b"").decode() for many in records_in_topic(consumer, "words") for record in many]


def test_a_killed_shell_loses_no_record_and_repeats_none(cluster: LocalCluster, tmp_path: Path) -> None:
    statements = (
        "CREATE STREAM lines (line STRING) WITH (format = 'text', partitions = 2);"
        "CREATE STREAM words (word STRING) WITH (format = 'text', partitions = 2);"
        "INSERT INTO words SELECT explode(split(line, ' ')) AS word FROM lines"
    )

    def serve(*flags: str) -> subprocess.Popen[bytes]:
        log = (tmp_path / "log").open("ab")
        return subprocess.Popen(
            command(cluster, tmp_path / "out", "--serve", *flags), stdout=log, stderr=log, start_new_session=True
        )

    expected: list[str] = []
    running = serve("-e", statements)
    try:
        until(
            lambda: b"running: words" in (tmp_path / "log").read_bytes(), "the query runs", within_s=LONG_S, pause_s=0.2
        )
        with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
            for number in range(1_000):
                producer.send("lines", value=b"a%d b%d" % (number, number))
                expected += [f"a{number}", f"b{number}"]
                if number % 250 == 0:
                    producer.flush()
            producer.flush()
            until(lambda: len(words_in(cluster)) > 0, "words are written", within_s=LONG_S, pause_s=0.2)
            for number in range(1_000, 1_200):
                producer.send("lines", value=b"a%d b%d" % (number, number))
                expected += [f"a{number}", f"b{number}"]
            producer.flush()
        kill_session(running.pid)
        running.wait()
        running = serve()
        until(lambda: len(words_in(cluster)) >= len(expected), "all words are written", within_s=LONG_S, pause_s=0.2)
        running.terminate()
        assert running.wait(LONG_S) == 143
    finally:
        if running.poll() is None:
            kill_session(running.pid)
            running.wait()
    assert sorted(words_in(cluster)) == sorted(expected)
    assert json.loads((tmp_path / "out/run.json").read_text())["end"] == "stopped"
