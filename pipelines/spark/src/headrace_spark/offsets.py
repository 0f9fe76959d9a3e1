"""Offsets as Spark stores them: ``{"orders": {"0": 123, "1": 456}}``, next offset by topic and partition.

The same JSON as the Kafka source writes into ``offsets/`` of a checkpoint. Pure: text and dictionaries only.

One thing is added, and only where it is needed. Spark's log holds the *end* of each batch. Where a batch began is the
end of the one before, and for the very first batch it is whatever ``initialOffset()`` answers. A query that is killed
in its first batch asks that question a second time; for ``startingOffsets=latest`` the answer is another one by then,
and the records in between are lost. (The Kafka source keeps a file of its own in the checkpoint; a Python source is
never told where the checkpoint is.) So the first batch's end carries its start, under a key that no topic can have:
``{"orders": {"0": 123}, "$start": {"orders": {"0": 100}}}``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from headrace_core.errors import InvalidConfigError
from headrace_core.types import TopicPartition

#: Partition -> next offset: one past the last record that is read (as ``KafkaConsumer.position``).
PartitionOffsets = dict[TopicPartition, int]

#: Where the first batch's end keeps its start. ``$`` is not legal in a topic's name.
START_KEY = "$start"

LATEST = -1
EARLIEST = -2


def to_json(offsets: Mapping[TopicPartition, int]) -> dict[str, Any]:
    """The dictionary that Spark writes as JSON; in order, so that equal offsets are equal text."""
    topics: dict[str, Any] = {}
    for topic, partition in sorted(offsets):
        topics.setdefault(topic, {})[str(partition)] = offsets[TopicPartition(topic, partition)]
    return topics


def from_json(topics: Mapping[str, Any]) -> PartitionOffsets:
    """The inverse of ``to_json``; ``$start`` is left out (see ``start_within``)."""
    return {
        TopicPartition(topic, int(partition)): int(offset)
        for topic, partitions in topics.items()
        if topic != START_KEY
        for partition, offset in partitions.items()
    }


def with_start(end: dict[str, Any], start: Mapping[TopicPartition, int]) -> dict[str, Any]:
    """``end`` carrying the offsets at which its batch began."""
    return {**end, START_KEY: to_json(start)}


def start_within(end: Mapping[str, Any]) -> PartitionOffsets | None:
    """The start that ``end`` carries, or None."""
    start = end.get(START_KEY)
    return None if start is None else from_json(start)


def parse_offsets(option: str, text: str) -> PartitionOffsets:
    """A user's ``{"topicA": {"0": 23, "1": -1}, "topicB": {"0": -2}}``; InvalidConfigError names the option."""
    return _parse_map(option, text, '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}, -2 for earliest, -1 for latest')


def parse_timestamps(option: str, text: str) -> PartitionOffsets:
    """A user's ``{"topicA": {"0": 1357034400000}}``: milliseconds since the epoch by partition."""
    return _parse_map(option, text, '{"topicA":{"0":1357034400000,"1":1357034400000}}, milliseconds')


def parse_partitions(option: str, text: str) -> list[TopicPartition]:
    """A user's ``{"topicA": [0, 1], "topicB": [2, 4]}``."""
    wrong = InvalidConfigError(f'{option}: expected for instance {{"topicA":[0,1],"topicB":[2,4]}}, got {text!r}')
    decoded = _decode(text, wrong)
    found: list[TopicPartition] = []
    for topic, partitions in decoded.items():
        if not isinstance(partitions, list):
            raise wrong
        found += [TopicPartition(topic, _whole(partition, wrong)) for partition in partitions]
    if any(partition < 0 for _, partition in found):
        raise wrong
    return sorted(set(found))


def _parse_map(option: str, text: str, example: str) -> PartitionOffsets:
    wrong = InvalidConfigError(f"{option}: expected for instance {example}; got {text!r}")
    decoded = _decode(text, wrong)
    found: PartitionOffsets = {}
    for topic, partitions in decoded.items():
        if not isinstance(partitions, dict):
            raise wrong
        for partition, value in partitions.items():
            found[TopicPartition(topic, _whole(partition, wrong))] = _whole(value, wrong)
    return found


def _decode(text: str, wrong: InvalidConfigError) -> dict[str, Any]:
    try:
        decoded = json.loads(text)
    except ValueError:
        raise wrong from None
    if not isinstance(decoded, dict):
        raise wrong
    return decoded


def _whole(value: Any, wrong: InvalidConfigError) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise wrong
    try:
        return int(value)
    except ValueError:
        raise wrong from None


def show(partitions: Iterable[TopicPartition]) -> str:
    """Partitions for a message: ``orders-0, orders-1``."""
    return ", ".join(map(str, sorted(partitions))) or "none"
