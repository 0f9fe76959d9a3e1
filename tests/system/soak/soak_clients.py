"""The client processes of the soak: each works until a line arrives on its standard input, then prints one JSON
document.

    python -m tests.system.soak.soak_clients producers|readers|group|admin BOOTSTRAP SEED

The processes live as long as the run, so that the soak also finds a leak in a client.
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headrace import Admin, Consumer, NewTopic, Producer, TopicPartition
from headrace.errors import HeadraceError
from tests.system.soak.soak_history import Claims, Follower, GroupCover, Mark, mark_of, value_of

#: Partitions of each topic.
TOPICS = {"soak-objects": 3, "soak-many": 4, "soak-arrow": 4, "soak-compacted": 2}
COMPACTED = "soak-compacted"
GROUP, GROUP_TOPICS = "soak-group", ("soak-objects", "soak-many")
VALUE_BYTES, KEYS = 200, 200
#: Records per second of each topic, and records per call.
RATES = {"soak-objects": 150, "soak-many": 600, "soak-arrow": 600, "soak-compacted": 60}
LOTS = {"soak-many": 60, "soak-arrow": 150}
#: Maximum number of calls without an outcome per producer, so that memory does not grow while the cluster is broken.
IN_FLIGHT_MAX = 400
#: Timeout for operations that take a healthy cluster seconds; the machine may be slow and shared.
TIMEOUT_S = 120.0
PRODUCER = {
    "acks": "all",
    "delivery.timeout.ms": int(TIMEOUT_S * 1000),
    "request.timeout.ms": 10_000,
    "max.block.ms": int(TIMEOUT_S * 1000),
}


@dataclass
class Client:
    """The state that the threads of a client process share."""

    bootstrap: str
    rng: random.Random
    stopping: threading.Event = field(default_factory=threading.Event)
    errors: Counter[str] = field(default_factory=Counter)
    #: Unexpected exceptions: a bug of the client or of the soak.
    broken: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def failed(self, what: str, error: BaseException) -> None:
        with self.lock:
            self.errors[f"{what}: {type(error).__name__}: {str(error)[:120]}"] += 1
            # the number of different texts must not grow without limit, because texts contain numbers
            while len(self.errors) > 200:
                self.errors.pop(next(iter(self.errors)))

    def start(self, *works: Callable[[], object]) -> list[threading.Thread]:
        def guarded(work: Callable[[], object]) -> None:
            try:
                work()
            except BaseException:
                self.broken.append(traceback.format_exc())
                raise

        threads = [threading.Thread(target=guarded, args=[work], daemon=True) for work in works]
        for thread in threads:
            thread.start()
        return threads

    def report(self, **more: Any) -> dict[str, Any]:
        return {"errors": dict(self.errors), "broken": self.broken, **more}


# ------------------------------------------------------------------------------------------------------- producers


class Producing:
    """The producer of one topic, which sends at a fixed rate. After a failed send the thread continues as a new
    producer, with a new name."""

    def __init__(self, client: Client, topic: str) -> None:
        self.client, self.topic = client, topic
        self.claims = Claims(topic)
        self.failed = 0
        self.longest_silence_s = 0.0
        self.latest_of_key: dict[str, int] = {}
        self._rng = random.Random(f"{client.rng.random()} {topic}")
        self._lives = 0
        self._received_at = time.monotonic()
        self._lock = threading.Lock()

    def run(self) -> None:
        while not self.client.stopping.is_set():
            self._lives += 1
            name = f"{self.topic.removeprefix('soak-')}.{self._lives}"
            self._useless = threading.Event()
            self._received_at = time.monotonic()
            with Producer(PRODUCER, bootstrap_servers=self.client.bootstrap) as producer:
                self._live(producer, name)

    def _live(self, producer: Producer, name: str) -> None:
        send = {"soak-many": self._send_many, "soak-arrow": self._send_arrow}.get(self.topic, self._send_objects)
        waiting: deque[Any] = deque()
        lot = LOTS.get(self.topic, 10)
        every_s = lot / RATES[self.topic]
        due = time.monotonic()
        while not self.client.stopping.is_set() and not self._useless.is_set():
            while waiting and waiting[0].done():
                waiting.popleft()
            if len(waiting) < IN_FLIGHT_MAX:
                with contextlib.suppress(_NotQueuedError):
                    waiting.extend(send(producer, name, lot))
            due = max(due + every_s, time.monotonic() - 1)  # records that a failure delayed are not sent later
            self.client.stopping.wait(max(0.0, due - time.monotonic()))
        producer.flush(TIMEOUT_S * 2)

    def _send_objects(self, producer: Producer, name: str, count: int) -> list[Any]:
        futures = []
        for _ in range(count):
            partition = self._rng.randrange(TOPICS[self.topic])
            key = None
            if self.topic == COMPACTED:
                number = self._rng.randrange(KEYS)
                partition, key = number % TOPICS[self.topic], b"%d" % number
            mark = Mark(name, partition, self._next(name, partition, 1))
            done = _Done(self, [mark], key)
            futures.append(
                self._queue(
                    [mark],
                    lambda mark=mark, partition=partition, key=key, done=done: producer.send(
                        self.topic, value_of(mark, VALUE_BYTES), key=key, partition=partition, on_delivery=done
                    ),
                )
            )
        return futures

    def _marks(self, name: str, count: int) -> tuple[int, list[Mark]]:
        partition = self._rng.randrange(TOPICS[self.topic])
        first = self._next(name, partition, count)
        return partition, [Mark(name, partition, first + number) for number in range(count)]

    def _send_many(self, producer: Producer, name: str, count: int) -> list[Any]:
        partition, marks = self._marks(name, count)
        values = [value_of(mark, VALUE_BYTES) for mark in marks]
        future = self._queue(marks, lambda: producer.send_many(self.topic, values, partition=partition))
        future.add_done_callback(_Done(self, marks, None).many)
        return [future]

    def _send_arrow(self, producer: Producer, name: str, count: int) -> list[Any]:
        partition, marks = self._marks(name, count)
        columns = {
            "value": pa.array([value_of(mark, VALUE_BYTES) for mark in marks], pa.binary()),
            "partition": pa.array([partition] * count, pa.int32()),
        }
        future = self._queue(marks, lambda: producer.send_arrow(self.topic, pa.table(columns)))
        future.add_done_callback(_Done(self, marks, None).many)
        return [future]

    def _next(self, name: str, partition: int, count: int) -> int:
        with self._lock:
            return self.claims.next(name, partition, count)

    def _queue(self, marks: list[Mark], send: Callable[[], Any]) -> Any:
        try:
            return send()
        except HeadraceError as error:
            self.done(marks, None, error)
            raise _NotQueuedError from error

    def done(self, marks: list[Mark], key: bytes | None, error: BaseException | None) -> None:
        """Record the outcome of these records; called on the client's I/O thread."""
        now = time.monotonic()
        with self._lock:
            if error is not None:
                self.failed += len(marks)
                for mark in marks:
                    self.claims.fail(mark)
                self._useless.set()
            else:
                self.longest_silence_s = max(self.longest_silence_s, now - self._received_at)
                self._received_at = now
                for mark in marks:
                    self.claims.acknowledge(mark)
                if key is not None:
                    # (If a key has records of several processes, those of the latest process count.)
                    self.latest_of_key[key.decode()] = marks[-1].sequence + (self._lives << 40)
        if error is not None:
            self.client.failed(self.topic, error)


class _NotQueuedError(Exception):
    pass


class _Done:
    __slots__ = ("_key", "_marks", "_producing")

    def __init__(self, producing: Producing, marks: list[Mark], key: bytes | None) -> None:
        self._producing, self._marks, self._key = producing, marks, key

    def __call__(self, metadata: Any, error: BaseException | None) -> None:
        self._producing.done(self._marks, self._key, error)

    def many(self, future: Any) -> None:
        self._producing.done(self._marks, self._key, future.exception(0))


def producers(client: Client) -> dict[str, Any]:
    every = [Producing(client, topic) for topic in TOPICS]
    threads = client.start(*(each.run for each in every))
    client.stopping.wait()
    for thread in threads:
        thread.join(TIMEOUT_S * 3)
        assert not thread.is_alive(), "a producer does not end"
    return client.report(
        claims=[each.claims.report() for each in every],
        acknowledged={each.topic: each.claims.count for each in every},
        failed={each.topic: each.failed for each in every},
        longest_silence_s={each.topic: round(each.longest_silence_s, 2) for each in every},
        latest_of_key=next(each.latest_of_key for each in every if each.topic == COMPACTED),
    )


# --------------------------------------------------------------------------------------------------------- readers


def _partitions(topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(TOPICS[topic])]


class Reading:
    """Reads a topic from its first record to its last, with ``poll`` or with ``fetch_arrow``."""

    def __init__(self, client: Client, topic: str, *, arrow: bool) -> None:
        self.client, self.topic, self.arrow = client, topic, arrow
        self.follower = Follower(topic, compacted=topic == COMPACTED)
        self.late = ""

    def run(self) -> None:
        # "none": a reader that falls behind retention must not skip silently.
        settings = {"bootstrap.servers": self.client.bootstrap, "auto.offset.reset": "none"}
        with Consumer(settings) as consumer:
            consumer.assign(_partitions(self.topic))
            for partition in _partitions(self.topic):
                consumer.seek(partition, 0)
            ends: dict[TopicPartition, int] | None = None
            deadline = 0.0
            while ends is None or any(consumer.position(each) < ends[each] for each in ends):
                try:
                    take(consumer, self.follower, arrow=self.arrow)
                    if ends is None and self.client.stopping.is_set():
                        ends = consumer.end_offsets(_partitions(self.topic))
                        deadline = time.monotonic() + TIMEOUT_S
                except HeadraceError as error:
                    self.client.failed(f"reading {self.topic}", error)
                    time.sleep(0.2)
                if ends is not None and time.monotonic() > deadline:
                    self.late = f"{self.topic}: not read up to {sorted(ends.values())} within {TIMEOUT_S:g} s"
                    return


def take(consumer: Consumer, follower: Follower, *, arrow: bool, latest: dict[str, int] | None = None) -> None:
    """Pass the next records to ``follower``; ``latest`` gets the last number of each key."""
    if arrow:
        table = consumer.fetch_arrow(timeout=0.5, columns=["partition", "offset", "value"], include_headers=False)
        columns = (table.column(name).to_pylist() for name in ("partition", "offset", "value"))
        for partition, offset, value in zip(*columns, strict=True):
            follower.read(partition, offset, value)
        return
    for record in consumer.poll(timeout=0.5, max_records=2000):
        follower.read(record.partition, record.offset, record.value)
        if latest is not None:
            mark = mark_of(record.value)
            life = int(mark.producer.rpartition(".")[2])
            latest[record.key.decode()] = mark.sequence + (life << 40)


def what_is_left(client: Client, topic: str, latest: dict[str, int] | None = None) -> Follower:
    """Read a topic again, from the first record that retention or compaction has left to the last one."""
    follower = Follower(topic, whole=False, compacted=topic == COMPACTED)
    settings = {"bootstrap.servers": client.bootstrap, "auto.offset.reset": "earliest"}
    with Consumer(settings) as consumer:
        ends = consumer.end_offsets(_partitions(topic))
        consumer.assign(ends)
        deadline = time.monotonic() + TIMEOUT_S
        while any(consumer.position(each) < ends[each] for each in ends):
            assert time.monotonic() < deadline, f"{topic} is not readable up to {ends}"
            take(consumer, follower, arrow=False, latest=latest)
    return follower


def readers(client: Client) -> dict[str, Any]:
    every = [Reading(client, topic, arrow=topic in ("soak-many", "soak-arrow")) for topic in TOPICS]
    threads = client.start(*(each.run for each in every))
    for thread in threads:
        thread.join()
    latest: dict[str, int] = {}
    again = [what_is_left(client, topic, latest if topic == COMPACTED else None) for topic in TOPICS]
    return client.report(
        followed=[each.follower.report() for each in every],
        late=[each.late for each in every if each.late],
        again=[each.report() for each in again],
        latest_of_key=latest,
        read={each.topic: each.follower.count for each in every},
    )


# ----------------------------------------------------------------------------------------------------------- group

STEADY, COMING_S = 2, 20.0


class Members:
    """The members of one group: some stay, one leaves and joins again. The records that the members read are compared
    with their commits."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.cover = GroupCover()
        self.commits = self.came = 0
        self._lock = threading.Lock()

    def stay(self) -> None:
        self._be_member(self.client.stopping)

    def come_and_go(self) -> None:
        while not self.client.stopping.is_set():
            leaving = threading.Event()
            (member,) = self.client.start(lambda leaving=leaving: self._be_member(leaving))
            self.came += 1
            self.client.stopping.wait(COMING_S * self.client.rng.uniform(0.5, 1.5))
            leaving.set()
            member.join(TIMEOUT_S)
            assert not member.is_alive(), "a member does not leave"
            self.client.stopping.wait(COMING_S / 2)

    def _be_member(self, leaving: threading.Event) -> None:
        settings = {
            "bootstrap.servers": self.client.bootstrap,
            "group.id": GROUP,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
        with Consumer(settings) as consumer:
            consumer.subscribe(GROUP_TOPICS)
            while not leaving.is_set():
                try:
                    if records := consumer.poll(timeout=0.5, max_records=500):
                        with self._lock:
                            for record in records:
                                self.cover.read(record.topic, record.partition, record.offset)
                        consumer.commit()
                        self.commits += 1
                except HeadraceError as error:  # fenced, or the coordinator is dead: the records are read again
                    self.client.failed("group", error)
                    leaving.wait(0.1)

    def catch_up(self) -> list[str]:
        """Let a last member read to the end; return the records that are unread or uncommitted in the end."""
        leaving = threading.Event()
        (last,) = self.client.start(lambda: self._be_member(leaving))
        deadline = time.monotonic() + TIMEOUT_S
        left = ["not looked"]
        with Consumer({"bootstrap.servers": self.client.bootstrap, "group.id": GROUP}) as consumer:
            while left and time.monotonic() < deadline:
                time.sleep(0.5)
                try:
                    ends = consumer.end_offsets([each for topic in GROUP_TOPICS for each in _partitions(topic)])
                    committed = consumer.committed(ends)
                except HeadraceError as error:
                    left = [f"{type(error).__name__}: {error}"]
                    continue
                left = [
                    f"{each}: end {end}, committed {committed[each]}"
                    for each, end in ends.items()
                    if end != (0 if committed[each] is None else committed[each].offset)
                ]
        leaving.set()
        last.join(TIMEOUT_S)
        return left


def group(client: Client) -> dict[str, Any]:
    members = Members(client)
    threads = client.start(*[members.stay] * STEADY, members.come_and_go)
    for thread in threads:
        thread.join()
    return client.report(
        anomalies=members.cover.anomalies.report(), read=members.cover.count, read_again=members.cover.again,
        commits=members.commits, came=members.came, left=members.catch_up(),
    )  # fmt: skip


# ----------------------------------------------------------------------------------------------------------- admin


def admin(client: Client) -> dict[str, Any]:
    """Sends admin calls all the time, creates short-lived topics and clients, and sometimes starts a reader at the
    beginning of a topic."""
    done: Counter[str] = Counter()
    with Admin(bootstrap_servers=client.bootstrap) as asking:
        number = 0
        while not client.stopping.wait(1.0):
            number += 1
            for name, call in _calls(asking, number):
                if client.stopping.is_set():
                    break
                try:
                    call()
                    done[name] += 1
                except HeadraceError as error:
                    client.failed(name, error)
            if number % 10 == 0:
                _try(client, done, "short-lived clients", lambda: _short_lived(client))
    return client.report(done=dict(done))


def _calls(asking: Admin, number: int) -> list[tuple[str, Callable[[], object]]]:
    every: list[tuple[str, Callable[[], object]]] = [
        ("describe topics", lambda: asking.describe_topics(list(TOPICS), timeout=10)),
        ("list topics", lambda: asking.list_topics(timeout=10)),
        ("describe cluster", lambda: asking.describe_cluster(timeout=10)),
        ("describe quorum", lambda: asking.describe_quorum(timeout=10)),
        ("describe lag", lambda: asking.describe_lag([GROUP], timeout=10)),
        ("describe groups", lambda: asking.describe_groups([GROUP], timeout=10)),
        ("list groups", lambda: asking.list_groups(timeout=10)),
        ("describe log dirs", lambda: asking.describe_log_dirs(timeout=10)),
    ]
    if number % 15 == 5:
        passing = NewTopic("soak-passing", partitions=2, replication_factor=3)
        every.append(("create topic", lambda: asking.create_topics([passing], timeout=20)))
    if number % 15 == 12:
        every.append(("delete topic", lambda: asking.delete_topics(["soak-passing"], timeout=20)))
    return every


def _try(client: Client, done: Counter[str], name: str, work: Callable[[], object]) -> None:
    try:
        work()
        done[name] += 1
    except (HeadraceError, TimeoutError) as error:
        client.failed(name, error)


def _short_lived(client: Client) -> None:
    """Run a producer and a consumer for a moment; the consumer reads from the oldest segment."""
    with Producer(bootstrap_servers=client.bootstrap) as producer:
        producer.send("soak-passing-clients", b"hello").result(timeout=30)
    with Consumer(bootstrap_servers=client.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign(_partitions("soak-objects"))
        read, deadline = 0, time.monotonic() + 20
        while read < 5_000 and time.monotonic() < deadline:
            read += (found := len(consumer.poll(timeout=1.0)))
            if not found:
                return


CLIENTS: dict[str, Callable[[Client], dict[str, Any]]] = {
    "producers": producers, "readers": readers, "group": group, "admin": admin
}  # fmt: skip


def main(name: str, bootstrap: str, seed: str) -> int:
    client = Client(bootstrap, random.Random(f"{seed} {name}"))

    def until_stopped() -> None:
        sys.stdin.readline()  # also at the end of the input: the soak is dead
        client.stopping.set()

    threading.Thread(target=until_stopped, daemon=True).start()
    try:
        report = CLIENTS[name](client)
    except BaseException:  # noqa: BLE001 (told to the soak, as a miss)
        client.stopping.set()
        report = client.report(ended=traceback.format_exc())
    print(json.dumps(report), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
