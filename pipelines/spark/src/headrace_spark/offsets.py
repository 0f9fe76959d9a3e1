"""Offsets as Spark stores them: ``{"orders": {"0": 123, "1": 456}}``, the next offset to read by topic and partition.

The Kafka source has the same JSON in the directory ``offsets/`` of a checkpoint. This module is pure: its functions
only convert texts and dictionaries.

The JSON has one key that the Kafka source's JSON does not have (``$start``). Spark's log stores the *end* of each
batch. A batch starts where the previous batch ended; the first batch starts at ``initialOffset()``. A query that is
killed in its first batch calls ``initialOffset()`` again at its restart. With ``startingOffsets=latest`` a second call
of ``initialOffset()`` returns later offsets, and the query would lose the records between the two offsets. (The Kafka
source keeps a file in the checkpoint; a Python source does not know the checkpoint's path.) To lose no record after a
restart, the source stores the start of the first batch with its end. The start has a key that no topic can have. An
example is ``{"orders": {"0": 123}, "$start": {"orders": {"0": 100}}}``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from headrace_core.errors import InvalidConfigError
from headrace_core.types import TopicPartition

#: Maps each partition to its next offset, which is the offset after the last record read (as in
#: ``KafkaConsumer.position``).
PartitionOffsets = dict[TopicPartition, int]

#: JSON key for the start of the first batch. Topic names cannot contain ``$``.
START_KEY = "$start"

LATEST = -1
EARLIEST = -2


def to_json(offsets: Mapping[TopicPartition, int]) -> dict[str, Any]:
    """The dictionary that Spark writes as JSON; sorted, so that equal offsets give equal text."""
    topics: dict[str, Any] = {}
    for topic, partition in sorted(offsets):
        topics.setdefault(topic, {})[str(partition)] = offsets[TopicPartition(topic, partition)]
    return topics


def from_json(topics: Mapping[str, Any]) -> PartitionOffsets:
    """The inverse of ``to_json``, without the key ``$start`` (see ``start_within``)."""
    return {
        TopicPartition(topic, int(partition)): int(offset)
        for topic, partitions in topics.items()
        if topic != START_KEY
        for partition, offset in partitions.items()
    }


def with_start(end: dict[str, Any], start: Mapping[TopicPartition, int]) -> dict[str, Any]:
    return {**end, START_KEY: to_json(start)}


def start_within(end: Mapping[str, Any]) -> PartitionOffsets | None:
    start = end.get(START_KEY)
    return None if start is None else from_json(start)


def parse_offsets(option: str, text: str) -> PartitionOffsets:
    """Parse an option value such as ``{"topicA": {"0": 23, "1": -1}, "topicB": {"0": -2}}``. Raises InvalidConfigError,
    which names the option."""
    return _parse_map(option, text, '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}, -2 for earliest, -1 for latest')


def parse_timestamps(option: str, text: str) -> PartitionOffsets:
    """Parse an option value such as ``{"topicA": {"0": 1357034400000}}``: milliseconds since 1970 by partition."""
    return _parse_map(option, text, '{"topicA":{"0":1357034400000,"1":1357034400000}}, milliseconds')


def parse_partitions(option: str, text: str) -> list[TopicPartition]:
    """Parse an option value such as ``{"topicA": [0, 1], "topicB": [2, 4]}``."""
    wrong = InvalidConfigError(f'{option}: must be JSON such as {{"topicA":[0,1],"topicB":[2,4]}}, not {text!r}')
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
    wrong = InvalidConfigError(f"{option}: must be JSON such as {example}, not {text!r}")
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
    """The partitions as text for a message, such as ``orders-0, orders-1``."""
    return ", ".join(map(str, sorted(partitions))) or "none"
