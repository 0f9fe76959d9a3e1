"""Replay the web log by its own clock: each line is sent when the clock of the replay reaches the line's time."""

from __future__ import annotations

import gzip
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from headrace import Consumer, Producer
from headrace_core.errors import InvalidArgumentError

from ..access import Access
from ..topics import records_in_topic
from ..workers import Worker
from .parsing import CLOCK_S_MAX
from .schema import LINE_HEADER, LOG

#: Number of first lines whose median time starts the replay's clock: a single line with a wrong time has no effect.
_FIRST = 9
#: Longest pause in seconds between two checks for a stop request.
_LOOK_S = 0.1
#: Milliseconds between the last line of the log and the tick (the record that closes all windows): more than the
#: watermark plus a window.
_TICK_AFTER_MS = 30 * 86_400_000
COPIES_MAX = 200  #: Copy i of an address 10.0.x.y is 10.i.x.y.


class Line(NamedTuple):
    """A line to send. ``time_ms`` is the time on the replay's clock at which the line is sent; ``name`` identifies the
    line when it is sent twice."""

    name: bytes
    key: bytes
    value: bytes
    time_ms: int


def web_log() -> bytes:
    """The web log of this package: 10,000 lines (data/README.md says where it comes from)."""
    packed = files("headrace_pipelines.clickstream").joinpath("data", "web_access.log.gz")
    return gzip.decompress(packed.read_bytes())


def read_log(path: Path | None) -> bytes:
    """The content of a log, plain or gzipped; of the web log of this package if ``path`` is None."""
    if path is None:
        return web_log()
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidArgumentError(f"cannot read the log {path}: {error.strerror}") from error
    return gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content


_TIME = re.compile(rb"\[(\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4})\]")


def lines(content: bytes, copies: int = 1) -> Iterator[Line]:
    """The lines of a log, each ``copies`` times with different addresses.

    A line without a time has the time of the line before it. If a line's time is more than a day away from the time
    before it, the clock that wrote the line may be wrong. A line whose clock may be wrong also gets the time of the
    line before it. If the next time in the log is near the line's own time, the log has a gap, and the line keeps its
    time.
    """
    texts = content.split(b"\n")
    if not texts[-1]:
        texts.pop()
    own = [_time_ms(text) for text in texts]
    known = [time_ms for time_ms in own if time_ms is not None]
    clock_ms = sorted(known[:_FIRST])[len(known[:_FIRST]) // 2] if known else int(time.time() * 1000)
    followers = iter(known[1:])
    for number, (text, own_ms) in enumerate(zip(texts, own, strict=True), 1):
        sent_ms = clock_ms
        if own_ms is not None:
            next_ms = next(followers, None)
            if _is_near(own_ms, clock_ms) or (next_ms is not None and _is_near(own_ms, next_ms)):
                sent_ms = clock_ms = own_ms
        for copy in range(copies):
            moved = re.sub(rb"^10\.0\.", b"10.%d." % copy, text) if copy else text
            yield Line(b"%d/%d" % (copy, number), moved.split(b" ", 1)[0][:64], moved, sent_ms)


def _is_near(one_ms: int, other_ms: int) -> bool:
    return abs(one_ms - other_ms) <= CLOCK_S_MAX * 1000


def _time_ms(text: bytes) -> int | None:
    found = _TIME.search(text)
    if found is None:
        return None
    try:
        return int(datetime.strptime(found[1].decode(), "%d/%b/%Y:%H:%M:%S %z").timestamp() * 1000)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """``lines`` is the number of lines of the log that were sent, each counted once. ``repeats`` is the number of lines
    that were sent a second time."""

    lines: int
    repeats: int


def lines_in_topic(access: Access) -> Counter[bytes]:
    """The names of the lines in the topic, and how often each was sent."""
    found: Counter[bytes] = Counter()
    with Consumer(access.consumer()) as consumer:
        for records in records_in_topic(consumer, LOG):
            found.update(value for each in records for name, value in each.headers if name == LINE_HEADER and value)
    return found


class Replay(Worker):
    """Sends ``content`` in a thread. ``speed``: seconds of the log that pass in one second. ``repeat_every``: every
    N-th line is sent twice, as a log shipper does after a crash (0: no line is sent twice). ``there``: the lines that
    an earlier run has sent (``lines_in_topic``); the replay sends only the other lines."""

    def __init__(
        self,
        access: Access,
        content: Sequence[Line],
        *,
        speed: float,
        repeat_every: int,
        there: Mapping[bytes, int] | None = None,
    ) -> None:
        super().__init__("clickstream replay")
        self._access, self._speed, self._lines = access, speed, len(content)
        copies = [2 if repeat_every and number % repeat_every == 0 else 1 for number in range(1, len(content) + 1)]
        self._repeats = sum(copies) - len(content)
        missing = [count - (there or {}).get(line.name, 0) for line, count in zip(content, copies, strict=True)]
        self._missing = [(line, count) for line, count in zip(content, missing, strict=True) if count > 0]
        self._before = sum(copies) - sum(count for _, count in self._missing)
        self._began_s = 0.0
        self._sent_s: list[float] = []  # times at which the records were sent

    def work(self) -> None:
        futures: list[Future[Any]] = []
        with Producer(self._access.producer() | {"acks": "all", "linger.ms": 10}) as producer:
            self._began_s = time.monotonic()
            start_ms = self._missing[0][0].time_ms if self._missing else 0
            for line, count in self._missing:
                if not self._wait_until(self._began_s + (line.time_ms - start_ms) / 1000 / self._speed):
                    break
                for _ in range(count):
                    futures.append(
                        producer.send(
                            LOG,
                            key=line.key,
                            value=line.value,
                            headers=[(LINE_HEADER, line.name)],
                            timestamp_ms=line.time_ms,
                        )
                    )
                    self._sent_s.append(time.monotonic())
            producer.flush(timeout=120)
        for future in futures:
            future.result(timeout=0)

    def _wait_until(self, due_s: float) -> bool:
        """Returns False if the replay was stopped."""
        while not self.is_stopped.is_set():
            left_s = due_s - time.monotonic()
            if left_s <= 0:
                return True
            self.is_stopped.wait(min(left_s, _LOOK_S))
        return False

    @property
    def sent(self) -> int:
        """Number of records sent so far, including the records of earlier runs and the repeats."""
        return self._before + len(self._sent_s)

    def lag_s(self, processed: int) -> float:
        """The age of the oldest record that is not among the first ``processed`` records; 0 if there is none. A record
        of an earlier run has the age of this run's first record."""
        number = max(0, processed - self._before)
        return time.monotonic() - self._sent_s[number] if number < len(self._sent_s) else 0.0

    def left_s(self) -> float:
        """Seconds until the last line is sent."""
        if not self._missing or not self.is_alive():
            return 0.0
        span_s = (self._missing[-1][0].time_ms - self._missing[0][0].time_ms) / 1000
        return max(0.0, self._began_s + span_s / self._speed - time.monotonic())

    @property
    def total(self) -> Sent:
        """The numbers of lines that this replay and earlier runs have sent when the replay has ended."""
        return Sent(lines=self._lines, repeats=self._repeats)


def send_tick(access: Access, content: Sequence[Line]) -> None:
    """Send the tick that closes the last windows and sessions."""
    last_ms = max((line.time_ms for line in content), default=0)
    with Producer(access.producer() | {"acks": "all"}) as producer:
        producer.send(LOG, value=None, partition=0, timestamp_ms=last_ms + _TICK_AFTER_MS).result(timeout=60)
