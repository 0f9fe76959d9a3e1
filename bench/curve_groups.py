"""Consumer groups that all read one topic, for ``curves.py``: each group has one member, and all members are threads of
this process.

    curve_groups.py SYSTEM BOOTSTRAP TOPIC GROUPS RECORDS SECONDS

SYSTEM is ``headrace`` (the SDK) or ``kafka`` (confluent-kafka). The topic holds RECORDS records before the start. First
all groups read these records from the beginning, which gives the rate. Then as many new groups read from the end, and a
producer sends 1,000 records a second for SECONDS. A record contains the time at which it was sent, and each group
measures how long the record took to arrive. confluent-kafka has another setting in each part, because no setting is the
best one for both: with a full queue it sleeps for ``fetch.queue.backoff.ms``.

Prints {"records_per_s": of all groups together, "latency_ms": {"p50", "p99", "p999", "max"}}. The rate counts from the
time when each group has a record.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from measure import percentiles

import headrace

RATE = 1_000  # records per second in the second part
VALUE_BYTES = 100
TIMED = b"curve_groups.py:"  #: Begins the value of a record that contains the time at which it was sent.
STALL_S = 60.0
Poll = Callable[[], list[bytes]]  #: The values of the records that have arrived; waits for at most 100 ms.


def timed(now_ns: int) -> bytes:
    """The value of a record that is sent now."""
    return (TIMED + now_ns.to_bytes(8, "big")).ljust(VALUE_BYTES, b"-")


def delay_s(value: bytes, now_ns: int) -> float:
    return (now_ns - int.from_bytes(value[len(TIMED) : len(TIMED) + 8], "big")) / 1e9


class Member:
    """Reads in a thread until the end. ``read``: number of records read so far. ``delays_s``: the delays of the records
    that contain a time."""

    def __init__(self, poll: Poll, close: Callable[[], object]) -> None:
        self._poll, self._close = poll, close
        self.read = 0
        self.delays_s: list[float] = []
        self.failure: Exception | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._is_over.is_set():
                values = self._poll()
                now_ns = time.monotonic_ns()
                self.delays_s += (delay_s(each, now_ns) for each in values if each.startswith(TIMED))
                self.read += len(values)
        except Exception as failure:  # noqa: BLE001  (the main thread reports it)
            self.failure = failure

    def end(self) -> None:
        self._is_over.set()
        self._thread.join(STALL_S)
        self._close()


def headrace_member(bootstrap: str, topic: str, group: str, reset: str) -> Member:
    consumer = headrace.Consumer(
        bootstrap_servers=bootstrap, group_id=group, auto_offset_reset=reset, enable_auto_commit=False
    )
    consumer.subscribe([topic])
    return Member(lambda: [each.value or b"" for each in consumer.poll(0.1)], consumer.close)


def kafka_member(bootstrap: str, topic: str, group: str, reset: str) -> Member:
    import confluent_kafka

    config = {
        "bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": reset, "enable.auto.commit": False,
        "fetch.wait.max.ms": 100, "queued.min.messages": 100_000,
        "fetch.queue.backoff.ms": 10 if reset == "earliest" else 1_000,
    }  # fmt: skip
    consumer = confluent_kafka.Consumer(config)
    consumer.subscribe([topic])

    def poll() -> list[bytes]:
        first = consumer.poll(0.1)  # ``consume`` with a timeout would wait for all 10,000 records
        found = [] if first is None else [first, *consumer.consume(10_000, 0)]
        return [each.value() or b"" for each in found if each.error() is None]

    return Member(poll, consumer.close)


def headrace_sender(bootstrap: str, topic: str) -> tuple[Callable[[bytes], object], Callable[[], object]]:
    producer = headrace.Producer(bootstrap_servers=bootstrap, acks="1", linger_ms=0)
    return lambda value: producer.send(topic, value), producer.close


def kafka_sender(bootstrap: str, topic: str) -> tuple[Callable[[bytes], object], Callable[[], object]]:
    import confluent_kafka

    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "acks": 1, "linger.ms": 0})

    def send(value: bytes) -> None:
        producer.produce(topic, value)
        producer.poll(0)

    return send, lambda: producer.flush(60)


def wait(members: list[Member], records: int) -> None:
    """Wait until each member has read this number of records. Raises RuntimeError when none arrives for a minute."""
    seen, since = -1, time.monotonic()
    while any(each.read < records for each in members):
        for each in members:
            if each.failure is not None:
                raise RuntimeError(f"a member ended: {each.failure!r}")
        read = sum(each.read for each in members)
        if read != seen:
            seen, since = read, time.monotonic()
        elif time.monotonic() > since + STALL_S:
            raise RuntimeError(f"{read:,} of {records * len(members):,} records after {STALL_S:.0f} s without any")
        time.sleep(0.01)


def wait_for_times(members: list[Member], sent: int) -> None:
    """Wait until each member has all ``sent`` records that contain a time."""
    for each in members:
        deadline = time.monotonic() + STALL_S
        while len(each.delays_s) < sent:
            if each.failure is not None or time.monotonic() > deadline:
                raise RuntimeError(f"a member has {len(each.delays_s):,} of {sent:,} records: {each.failure!r}")
            time.sleep(0.01)


def main() -> int:
    system, bootstrap, topic, groups, records, seconds = sys.argv[1:]
    make, sender = {"headrace": (headrace_member, headrace_sender), "kafka": (kafka_member, kafka_sender)}[system]
    members = [make(bootstrap, topic, f"{topic}-{number}", "earliest") for number in range(int(groups))]
    try:
        wait(members, 1)  # Kafka's broker waits some seconds for further members of a new group
        begun, read = time.monotonic(), sum(each.read for each in members)
        wait(members, int(records))
        rate = (int(records) * len(members) - read) / (time.monotonic() - begun)
    finally:
        for each in members:
            each.end()
    members = [make(bootstrap, topic, f"{topic}-{number}-paced", "latest") for number in range(int(groups))]
    try:
        send, close = sender(bootstrap, topic)
        since = time.monotonic()
        while any(not each.read for each in members):  # until each member has its partitions
            if time.monotonic() > since + STALL_S:
                raise RuntimeError("not every group has a record of the second part")
            send(b"before the first timed record")
            time.sleep(0.05)
        time.sleep(2.0)  # for partitions whose end a member still looks up
        sent = int(RATE * float(seconds))
        due = time.monotonic()
        for _ in range(sent):
            due += 1 / RATE
            time.sleep(max(0.0, due - time.monotonic()))
            send(timed(time.monotonic_ns()))
        close()
        wait_for_times(members, sent)
        delays_ms = [1e3 * each for member in members for each in member.delays_s]
    finally:
        for each in members:
            each.end()
    found: dict[str, Any] = {"records_per_s": round(rate, 1), "latency_ms": percentiles(delays_ms)}
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
