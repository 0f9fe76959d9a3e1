"""Forty hosts: each host writes the lines of its clients to its own file, and rotates the file. One host has an outage.

The lines come from the real web log of the pipeline clickstream. The address of a line's client determines the host
that writes the line, as with a load balancer. The files rotate by renaming, as logrotate does: access.log becomes
access.log.1.
"""

from __future__ import annotations

import re
import time
import zlib
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ..clickstream.replay import lines as timed_lines
from ..workers import Worker

HOSTS = 40
#: The planted outage: a host, and the hours of the log in which the host answers 503.
SICK_HOST = "web-07"
SICK_FROM, SICK_TO = "18/May/2015:08", "18/May/2015:20"
#: Number of lines after which a host rotates its file.
ROTATE_LINES = 100
FILE = "access.log"

_HOUR = re.compile(rb"\[(\d\d)/(\w{3})/(\d{4}):(\d\d)")
_STATUS = re.compile(rb'(" )(\d{3})( )')


class HostLine(NamedTuple):
    """A line that a host writes when the replay's clock is at ``time_ms``."""

    host: str
    text: bytes
    time_ms: int


def host_of(address: bytes) -> str:
    return f"web-{zlib.crc32(address) % HOSTS + 1:02}"


def host_lines(content: bytes) -> list[HostLine]:
    """The lines of all hosts in the order of the log, with the outage."""
    found = []
    for line in timed_lines(content):
        host = host_of(line.value.split(b" ", 1)[0])
        text = line.value
        hour = _HOUR.search(text)
        if host == SICK_HOST and hour is not None:
            at = b"%s/%s/%s:%s" % hour.groups()
            if SICK_FROM.encode() <= at < SICK_TO.encode():
                text = _STATUS.sub(rb"\g<1>503\g<3>", text, count=1)
        found.append(HostLine(host, text, line.time_ms))
    return found


class Hosts(Worker):
    """Writes the lines to ``root/HOST/access.log``. ``speed``: seconds of the log that pass in one second.

    ``written``: lines that an earlier run has already written to the files; the thread continues after these lines.
    """

    def __init__(self, root: Path, lines: Sequence[HostLine], *, speed: float) -> None:
        super().__init__("logs hosts")
        self._root, self._lines, self._speed = root, lines, speed
        self.written = 0

    def prepare(self) -> None:
        """Make the hosts' directories and files, so that a shipper finds them."""
        for host in sorted({line.host for line in self._lines}):
            (self._root / host).mkdir(parents=True, exist_ok=True)
            (self._root / host / FILE).touch()

    def work(self) -> None:
        done = {host: lines_in(self._root / host) for host in {line.host for line in self._lines}}
        in_file = {host: count_lines(self._root / host / FILE) for host in done}
        seen: dict[str, int] = defaultdict(int)
        missing = []
        for line in self._lines:
            seen[line.host] += 1
            if seen[line.host] > done[line.host]:
                missing.append(line)
        self.written = len(self._lines) - len(missing)
        began_s, start_ms = time.monotonic(), missing[0].time_ms if missing else 0
        for line in missing:
            due_s = began_s + (line.time_ms - start_ms) / 1000 / self._speed
            while (left_s := due_s - time.monotonic()) > 0:
                if self.is_stopped.wait(min(left_s, 0.1)):
                    return
            path = self._root / line.host / FILE
            if in_file[line.host] >= ROTATE_LINES:
                rotate(path)
                in_file[line.host] = 0
            with path.open("ab") as file:
                file.write(line.text + b"\n")
            in_file[line.host] += 1
            self.written += 1


def rotate(path: Path) -> None:
    """access.log becomes access.log.1, access.log.1 becomes access.log.2, and so on."""
    number = 1
    while path.with_name(f"{path.name}.{number}").exists():
        number += 1
    for each in range(number, 1, -1):
        path.with_name(f"{path.name}.{each - 1}").rename(path.with_name(f"{path.name}.{each}"))
    path.rename(path.with_name(f"{path.name}.1"))
    path.touch()


def count_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def lines_in(directory: Path) -> int:
    """The number of lines in all files of a host."""
    return sum(count_lines(path) for path in directory.glob(f"{FILE}*"))
