"""The spans of a broker: ``append`` at a partition's leader, ``replicate`` at each follower.

The producer's request contains the trace context of its first traced record, and the span of the append is a child of
that record's span. The leader sends the trace context of the append together with the batch to the followers, whose
spans are children of the append's span. A broker without ``otel.exporter.otlp.endpoint`` has no BrokerTraces.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace_core.errors import CorruptMessageError, HeadraceError
from headrace_core.log import AppendInfo
from headrace_core.records import BatchHeader, iterate_headers
from headrace_core.tracing.node import NodeSpan, NodeTraces
from headrace_core.tracing.recent import RecentTraces, batch_key
from headrace_core.types import TopicPartition
from headrace_protos.v1.replication_pb2 import FollowPush, FollowResponse, FollowTrace

#: Maximum number of traced batches of one push.
PUSH_TRACES_MAX = 64

Outcome = AppendInfo | HeadraceError


class BrokerTraces:
    """Makes the spans of one broker. Call all methods in the event loop."""

    def __init__(self, node: NodeTraces) -> None:
        self.node = node
        self.recent = RecentTraces()

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> BrokerTraces | None:
        """Make a BrokerTraces from the broker's configuration; None if the broker exports no traces. Raises
        InvalidConfigError, MissingDependencyError."""
        node = NodeTraces.of("broker", values)
        return None if node is None else cls(node)

    def append(self, partition: TopicPartition, traceparent: str, size: int) -> AppendTrace | None:
        """Begin the span of a producer's append of ``size`` bytes; None if the record is not sampled."""
        span = self.node.begin(f"append {partition}", traceparent, {**_named(partition), "headrace.batch.bytes": size})
        return None if span is None else AppendTrace(self, partition, span)

    def replicate(
        self, partition: TopicPartition, leader_id: int, traces: Sequence[FollowTrace]
    ) -> Callable[[Outcome], None]:
        """Begin the spans of a follower's append; returns the function that ends them."""
        spans = []
        for each in traces:
            fields = {"messaging.kafka.offset": each.base_offset, "headrace.leader.id": leader_id}
            span = self.node.begin(f"replicate {partition}", each.traceparent, {**_named(partition), **fields})
            if span is not None:
                spans.append(span)

        def end(outcome: Outcome) -> None:
            for span in spans:
                span.end(outcome if isinstance(outcome, HeadraceError) else None)

        return end

    def add_traces(self, response: FollowResponse, partition_of: Callable[[int], TopicPartition | None]) -> None:
        """Add the trace contexts of the traced batches to a message for a follower. ``partition_of`` returns the
        partition of a handle."""
        now_s = time.monotonic()
        for push in response.pushes:
            partition = partition_of(push.handle)
            if partition is not None and self.recent.has(partition, now_s):
                self._add_traces(partition, push)

    def _add_traces(self, partition: TopicPartition, push: FollowPush) -> None:
        try:
            for _, header in iterate_headers(push.records):
                traceparent = self.recent.pushed(partition, batch_key(header))
                if traceparent is not None:
                    push.traces.add(base_offset=header.base_offset, traceparent=traceparent)
                    if len(push.traces) == PUSH_TRACES_MAX:
                        break
        except CorruptMessageError:  # the follower checks the records, and reports the damage
            del push.traces[:]


class AppendTrace:
    """The span of one append at the leader."""

    __slots__ = ("_partition", "_span", "_traces", "_written_ms")

    def __init__(self, traces: BrokerTraces, partition: TopicPartition, span: NodeSpan) -> None:
        self._traces, self._partition, self._span = traces, partition, span
        self._written_ms = 0.0

    def submitted(self, headers: Sequence[BatchHeader] | None, followers: int) -> None:
        """Record that the checked batches are passed to the log's writer, and therefore to the in-sync followers."""
        recent, traceparent, now_s = self._traces.recent, self._span.traceparent, time.monotonic()
        for header in headers or ():
            recent.put(self._partition, batch_key(header), traceparent, now_s, followers)

    def written(self) -> None:
        """Record that the batches are in the log, and are as durable as the topic's log.flush demands."""
        self._written_ms = self._span.passed_ms()

    def ending(self, done: Callable[[Outcome], None]) -> Callable[[Outcome], None]:
        """Wrap the function that gets the append's outcome, so that the span ends after the call. (A fault of the span
        must not prevent the acknowledgement.)"""

        def end(outcome: Outcome) -> None:
            try:
                done(outcome)
            finally:
                self.end(outcome)

        return end

    def end(self, outcome: Outcome) -> None:
        if isinstance(outcome, HeadraceError):
            self._span.end(outcome)
            return
        passed_ms = self._span.passed_ms()
        self._span.set(
            {
                "messaging.kafka.offset": outcome.base_offset,
                "messaging.batch.message_count": outcome.next_offset - outcome.base_offset,
                "headrace.append.flush_ms": round(self._written_ms, 3),
                "headrace.append.replication_wait_ms": round(passed_ms - self._written_ms, 3),
            }
        )
        self._span.end()


def _named(partition: TopicPartition) -> dict[str, str | int]:
    return {
        "messaging.destination.name": partition.topic,
        "messaging.destination.partition.id": str(partition.partition),
    }
