"""A group member in its own process, which can be killed, frozen and cut off separately.

    python -m tests.system.process_reader '{"bootstrap", "group", "topic", "commit_every_s", "settings"}'

The process prints the notes of its ``Reader`` (tests/scenarios/groups), one JSON list per line, and ends when its
standard input is closed. Records that the process had not printed when it was killed count as unread.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tests.worlds.readers import LONG_S, Change, Commit, Read, Reader

ROOT = Path(__file__).resolve().parents[2]
PACE_S = 0.01


class ProcessReader:
    """Has the methods of a ``Reader``."""

    def __init__(self, **asked: Any) -> None:
        self.group = asked["group"]
        self.read: list[Read] = []
        self.changes: list[Change] = []
        self.commits: list[Commit] = []
        self.partitions: frozenset[int] = frozenset()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.system.process_reader", json.dumps(asked)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._was_killed = False
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if not line.endswith("\n"):  # the process ended because of it
                return
            kind, *values = json.loads(line)
            if kind == "read":
                self.read.append(Read(*values))
            elif kind == "commit":
                self.commits.append(Commit(*values))
            else:
                numbers = frozenset(values[0])
                self.partitions = self.partitions | numbers if kind == "assigned" else self.partitions - numbers
                self.changes.append(Change(kind, numbers, values[1]))

    def ask_to_stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def stop(self) -> None:
        self.ask_to_stop()
        try:
            self.process.wait(LONG_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"a reader of {self.group} does not end") from None
        self._thread.join(LONG_S)
        self.check()

    def kill(self) -> None:
        """kill -9. When the method returns, the test has received all output of the process."""
        self._was_killed = True
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self._thread.join(LONG_S)
        self.partitions = frozenset()

    def check(self) -> None:
        code = self.process.poll()
        assert code in (None, 0) or self._was_killed, f"a reader of {self.group} ended with {code}"


def main(asked: dict[str, Any]) -> None:
    lock = threading.Lock()

    def write(lines: list[list[Any]]) -> None:
        if lines:
            with lock:
                sys.stdout.write("".join(json.dumps(line) + "\n" for line in lines))
                sys.stdout.flush()

    def handle(record: Any) -> None:
        # Print before the record can be committed: otherwise a kill between the commit and the print would leave a
        # committed record that no printed line shows as read.
        write([["read", record.partition, record.offset, time.monotonic()]])

    reader = Reader(asked.pop("bootstrap"), asked.pop("group"), asked.pop("topic"), handle=handle, **asked).start()
    ended = threading.Event()

    def until_stopped() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=until_stopped, daemon=True).start()
    reported = [0, 0]

    def tell() -> None:
        commits, changes = list(reader.commits), list(reader.changes)
        lines: list[list[Any]] = [[each.what, sorted(each.partitions), each.at] for each in changes[reported[0] :]]
        lines += [["commit", *each] for each in commits[reported[1] :]]
        reported[:] = len(changes), len(commits)
        write(lines)

    while not ended.wait(PACE_S):
        tell()
        reader.check()
    reader.stop()
    tell()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
