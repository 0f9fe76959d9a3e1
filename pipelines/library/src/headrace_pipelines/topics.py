"""Read a topic to its present end; create the topics of a run."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from headrace import Admin, Consumer, NewTopic, Record, TopicPartition
from headrace_core.errors import RequestTimedOutError

from .access import Access
from .dead_letters import create_dead_letter_topics, dead_letter_topic
from .errors import QueryFailedError
from .lags import group_of

_PAUSE_S = 0.01
#: Settings of topics whose record timestamps are the times of the data. With these settings, brokers keep old records,
#: and accept a tick, whose timestamp is days after the last record. With current data the timestamp of a tick is in the
#: future.
TIMES_OF_DATA = {"retention.ms": "-1", "message.timestamp.after.max.ms": str((1 << 63) - 1)}
#: Longest wait for the markers of committed and aborted transactions, in seconds.
MARKERS_S = 60.0


def replace_topics(
    access: Access, pipeline: str, new: Sequence[NewTopic], *, queries: Iterable[str], sources: Sequence[str] = ()
) -> None:
    """Create the topics of a run, without records, and the dead-letter topics of ``sources``.

    Deletes the topics of an earlier run, and the consumer groups of its queries.
    """
    names = {topic.name for topic in new} | {dead_letter_topic(name) for name in sources}
    groups = {group_of(pipeline, query) for query in queries}
    with Admin(access.admin()) as admin:
        if old := names & set(admin.list_topics()):
            admin.delete_topics(sorted(old))
        if old_groups := groups & {group.group_id for group in admin.list_groups()}:
            admin.delete_groups(sorted(old_groups))
        admin.create_topics(new)
        create_dead_letter_topics(admin, sources)


def records_in_topic(
    consumer: Consumer,
    topic: str,
    *,
    ends: Consumer | None = None,
    since: Mapping[TopicPartition, int] | None = None,
    before: Mapping[TopicPartition, int] | None = None,
) -> Iterator[list[Record]]:
    """The records that are in a topic now, in lists; the records of a partition are in the order of their offsets.

    ``since``: the first offset of partitions that are not read from their start. ``before``: read only records below
    these offsets, and none of other partitions.

    ``ends``: the consumer that determines the end of the topic. If ``ends`` reads uncommitted records and ``consumer``
    reads committed records, the call waits for the end of all transactions in the topic. A commit may be acknowledged
    before the transaction's markers are written."""
    partitions = [TopicPartition(topic, number) for number in consumer.partitions_for(topic)]
    consumer.assign(partitions)
    consumer.seek_to_beginning()
    first = dict(since or {})
    for partition, offset in first.items():
        consumer.seek(partition, offset)
    until = (ends or consumer).end_offsets(partitions)
    if before is not None:
        until = {each: min(end, before.get(each, 0)) for each, end in until.items()}
    while any(consumer.position(each) < until[each] for each in partitions):
        records = [
            record
            for record in consumer.poll(1.0)
            if first.get(at := TopicPartition(record.topic, record.partition), 0) <= record.offset < until[at]
        ]
        if records:
            yield records


def await_markers(servers: str) -> None:
    """Wait until all committed and aborted transactions have their markers.

    A commit is acknowledged when the coordinator's record of it is durable. Consumers with read_committed receive the
    transaction's records once the markers are in their partitions, a few milliseconds later. ``await_markers`` does not
    wait for open transactions. Raises RequestTimedOutError after MARKERS_S seconds."""
    with Admin(bootstrap_servers=servers) as admin:
        markers_written(admin)


def markers_written(admin: Admin, *, timeout_s: float = MARKERS_S, is_cancelled: threading.Event | None = None) -> None:
    """Wait as ``await_markers`` does, with the given Admin.

    Raises RequestTimedOutError after ``timeout_s`` seconds, and QueryFailedError when ``is_cancelled`` is set."""
    cancelled = is_cancelled or threading.Event()
    deadline_s = time.monotonic() + timeout_s
    while open_now := admin.list_transactions(("prepare-commit", "prepare-abort")):
        if time.monotonic() >= deadline_s:
            names = ", ".join(sorted(each.transactional_id for each in open_now))
            raise RequestTimedOutError(
                f"the markers of these transactions were not written within {timeout_s:g} s: {names}; check that the "
                "leaders of their partitions are alive (headrace transactions list)"
            )
        if cancelled.wait(_PAUSE_S):
            raise QueryFailedError("the wait for the markers of transactions was cancelled")
