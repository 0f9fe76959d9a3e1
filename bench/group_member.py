"""Child processes of bench/groups.py: members of groups, or a producer that feeds them.

    group_member.py '{"bootstrap", "topic", "partitions", "per_second"}'      a feed: records per second and partition
    group_member.py '{"bootstrap", "topic", "groups", "members", "commit_s", "handling_s", "settings", "instance"}'

Commands are lines on stdin: ``go`` (join), ``report`` (records read since the last report), ``leave`` (close cleanly),
``end``; events are JSON objects, one per line, on stdout. Times are ``time.monotonic()``, common to all processes.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
from typing import Any

from headrace import Consumer, Producer, TopicPartition
from headrace.errors import HeadraceError
from headrace.models import OffsetAndMetadata

FEED_S = 0.02
_telling = threading.Lock()


def tell(event: str, **what: Any) -> None:
    line = json.dumps({"event": event, "at": time.monotonic(), **what})
    with _telling:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


class Member(threading.Thread):
    """One consumer, which joins and leaves on command."""

    def __init__(self, name: str, group: str, asked: dict[str, Any]) -> None:
        super().__init__(name=name, daemon=True)
        self._group, self._topic = group, asked["topic"]
        self._commit_s: float = asked.get("commit_s", 0.0)
        self._handling_s: float = asked.get("handling_s", 0.0)
        self._settings = {
            "bootstrap.servers": asked["bootstrap"],
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": not self._commit_s,
            **asked.get("settings", {}),
        }
        if asked.get("instance"):
            self._settings["group.instance.id"] = asked["instance"]
        self.wanted = threading.Event()
        self.is_out = threading.Event()
        self.is_out.set()
        self._lock = threading.Lock()
        self._last: dict[int, float] = {}  # partition -> time of its last record
        self._longest: dict[int, float] = {}
        self._since = 0.0
        #: [partition, first offset, next offset, time of the first record], in order; one entry per assignment of the
        #: partition.
        self._runs: list[list[float]] = []
        self._run_of: dict[int, list[float]] = {}
        self._next_commit = 0.0
        self._committing: Any = None

    def run(self) -> None:
        while True:
            self.wanted.wait()
            self.is_out.clear()
            try:
                with Consumer(self._settings) as consumer:
                    consumer.subscribe(
                        [self._topic],
                        on_assigned=self._callback("assigned"),
                        on_revoked=self._callback("revoked"),
                        on_lost=self._callback("lost"),
                    )
                    while self.wanted.is_set():
                        self._note(records := consumer.poll(0.1, max_records=200 if self._handling_s else 10_000))
                        if self._handling_s:
                            time.sleep(self._handling_s * len(records))
                        if self._commit_s and time.monotonic() >= self._next_commit:
                            self._commit(consumer)
            except HeadraceError as error:
                tell("failed", member=self.name, error=f"{error.code}: {error.message}"[:300])
            tell("left", member=self.name, group=self._group)
            self.is_out.set()

    def _callback(self, what: str) -> Any:
        def note(_: Consumer, partitions: list[TopicPartition]) -> None:
            numbers = [each.partition for each in partitions]
            with self._lock:
                last = {number: self._last.get(number) for number in numbers}
                for number in numbers:
                    self._last.pop(number, None)
                    self._run_of.pop(number, None)
            tell(what, member=self.name, group=self._group, partitions=numbers, last=last)

        return note

    def _note(self, records: list[Any]) -> None:
        now = time.monotonic()
        for partition, some in itertools.groupby(records, key=lambda record: int(record.partition)):
            listed = list(some)
            first, end = listed[0].offset, listed[-1].offset + 1
            with self._lock:
                before = self._last.get(partition)
                if before is not None:
                    gap = now - max(before, self._since)
                    self._longest[partition] = max(self._longest.get(partition, 0.0), gap)
                self._last[partition] = now
                run = self._run_of.get(partition)
                if run is not None and run[2] == first:
                    run[2] = end
                else:
                    run = self._run_of[partition] = [partition, first, end, now]
                    self._runs.append(run)
            if before is None:
                tell("first", member=self.name, group=self._group, partition=partition, offset=first)

    def _commit(self, consumer: Consumer) -> None:
        with self._lock:
            reached = {number: int(run[2]) for number, run in self._run_of.items()}
        offsets: dict[TopicPartition, int | OffsetAndMetadata] = {
            TopicPartition(self._topic, number): offset for number, offset in reached.items()
        }
        asked = time.monotonic()
        self._next_commit = asked + self._commit_s
        if not offsets or (self._committing is not None and not self._committing.done()):
            return

        def note(committed: Any, error: BaseException | None) -> None:
            numbers = {tp.partition: each.offset for tp, each in committed.items()}
            failed = "" if error is None else str(error)[:300]
            tell("commit", member=self.name, group=self._group, asked=asked, offsets=numbers, failed=failed)

        # (The commit is not awaited, because a program that awaited it would not read during the commit.)
        self._committing = consumer.commit_async(offsets, note)

    def report(self) -> dict[str, Any]:
        """The longest pauses of the partitions since the last report, a current pause included, and all ranges of
        offsets that were read so far."""
        now = time.monotonic()
        with self._lock:
            longest = dict(self._longest)
            for partition, last in self._last.items():
                longest[partition] = max(longest.get(partition, 0.0), now - max(last, self._since))
            self._longest, self._since = {}, now
            return {"group": self._group, "longest": longest, "runs": [list(run) for run in self._runs]}


def be_members(asked: dict[str, Any]) -> None:
    members = [
        Member(f"{group}/{asked.get('name', 'm')}{number}", group, asked)
        for group in asked["groups"]
        for number in range(asked.get("members", 1))
    ]
    for member in members:
        member.start()
    tell("ready")
    for line in sys.stdin:
        command = line.strip()
        if command == "report":
            for member in members:
                tell("report", member=member.name, **member.report())
            tell("reported")
            continue
        for member in members:
            (member.wanted.set if command == "go" else member.wanted.clear)()
        if command == "end":
            for member in members:
                member.is_out.wait(60)
            return


def be_feed(asked: dict[str, Any]) -> None:
    """Send ``per_second`` records to each partition, a few every 20 ms."""
    topic, partitions, per_second = asked["topic"], asked["partitions"], asked["per_second"]
    ended = threading.Event()

    def wait_for_the_end() -> None:
        for line in sys.stdin:
            if line.strip() == "end":
                break
        ended.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    sent = 0
    with Producer({"bootstrap.servers": asked["bootstrap"]}) as producer:
        begun = time.monotonic()
        tell("ready")
        futures: list[Any] = []
        while not ended.wait(FEED_S):
            due = int((time.monotonic() - begun) * per_second)
            values = [b"%0100d" % number for number in range(sent, due)]
            if values:
                futures = [producer.send_many(topic, values, partition=number) for number in range(partitions)]
                sent = due
        for future in futures:
            future.result(timeout=60)
        producer.flush(60)
    tell("fed", ends=dict.fromkeys(range(partitions), sent))


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    (be_feed if "per_second" in given else be_members)(given)
