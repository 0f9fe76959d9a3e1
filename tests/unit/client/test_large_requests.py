"""A producer's request never exceeds what a broker accepts, even with a larger max.request.size."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace

from headrace.producer.sender import BrokerLink
from headrace_core.records import Compression
from headrace_core.rpc.limits import PARTITIONS_MAX, REQUEST_RECORDS_BYTES

MIB = 1024 * 1024


class Queue:
    """A partition with one sealed batch."""

    def __init__(self, size: int) -> None:
        batch = SimpleNamespace(queue=self, size=size, done=False, attempts=0, data=b"", in_flight=False)
        self.sealed = deque([batch])
        self.open = None
        self.sender = SimpleNamespace(failed=False, retry_at=0.0, in_flight=0, sequences=None)


class Owner:
    """Returns the batches of the queues."""

    max_request_bytes, max_in_flight, flushing, linger_s, compression = 32 * MIB, 100, 1, 0.0, Compression.NONE

    def __init__(self) -> None:
        self.accumulator = SimpleNamespace(
            take=lambda queue, partial: queue.sealed.popleft(), leave_if_empty=lambda queue: not queue.sealed
        )


def sizes_of_requests(*batches: int) -> list[list[int]]:
    """The sizes of the batches in each request of a producer with max.request.size=32 MiB."""
    link = BrokerLink.__new__(BrokerLink)
    link.sender = Owner()  # type: ignore[assignment]
    link.in_flight, link._throttled_until = {}, 0.0
    link.pending = dict.fromkeys(map(Queue, batches))

    found = []
    while link.pending:
        taken = link._take(now=1.0)
        assert taken
        found.append([batch.size for batch, _ in taken])
    return found


def test_batches_of_a_request_fit_into_what_a_broker_takes() -> None:
    requests = sizes_of_requests(*[MIB] * 40)
    assert [len(request) for request in requests] == [16, 16, 8]
    assert all(sum(request) <= REQUEST_RECORDS_BYTES for request in requests)


def test_one_larger_batch_goes_alone() -> None:
    assert sizes_of_requests(MIB, 20 * MIB, MIB) == [[MIB, MIB], [20 * MIB]]


def test_a_request_has_no_more_partitions_than_a_broker_takes() -> None:
    requests = sizes_of_requests(*[1] * (PARTITIONS_MAX + 1))
    assert [len(request) for request in requests] == [PARTITIONS_MAX, 1]
