"""Short-lived clients leave no native memory behind in a long-lived process."""

from __future__ import annotations

import ctypes
import gc
import sys
from typing import Any

import pytest

from headrace import Admin, Consumer, Producer, TopicPartition

MIB = 1024 * 1024
PARTITIONS = 3


class _Mallinfo2(ctypes.Structure):
    """glibc's struct mallinfo2."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def malloc_in_use() -> int:
    """The bytes of this process that malloc has given out; unlike RSS, fragmentation does not blur them."""
    gc.collect()
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _Mallinfo2
    info = mallinfo2()
    return int(info.uordblks + info.hblkhd)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="malloc is asked with glibc's mallinfo2")
@pytest.mark.timeout(300)
def test_short_lived_clients_leave_no_memory_behind(headrace: Any, headrace_topic: str) -> None:
    """Each consumer closes while answers arrive. gRPC leaks every answer whose read was cancelled: that kept 60 to
    200 KiB for each consumer."""
    bootstrap = headrace.bootstrap_servers
    with Admin(bootstrap_servers=bootstrap) as admin, Producer(bootstrap_servers=bootstrap) as producer:
        admin.create_partitions({headrace_topic: PARTITIONS})
        for number in range(300):
            producer.send_many(headrace_topic, [b"x" * 200] * 100, partition=number % PARTITIONS)
        producer.flush(60)

    def live_for_a_moment() -> None:
        with Admin(bootstrap_servers=bootstrap) as admin:
            admin.list_topics()
        with Producer(bootstrap_servers=bootstrap) as producer:
            producer.send(headrace_topic, b"hello").result(timeout=60)
        with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition(headrace_topic, number) for number in range(PARTITIONS)])
            assert consumer.poll(60)

    for _ in range(20):  # pools and caches reach their size
        live_for_a_moment()
    before = malloc_in_use()
    for _ in range(80):
        live_for_a_moment()
    grown = (malloc_in_use() - before) / MIB
    print(f"grew by {grown:.2f} MiB")
    assert grown < 1, f"80 rounds of short-lived clients keep {grown:.2f} MiB"
