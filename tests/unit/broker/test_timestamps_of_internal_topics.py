"""The coordinator's clock makes the timestamps of internal topics; the partition's leader may have another time.
(A coordinator whose clock was an hour ahead could write nothing: groups and transactions stopped.)"""

from __future__ import annotations

import pytest

from headrace_broker.partition.acceptance import accept
from headrace_broker.settings import LogSettings
from headrace_core.errors import InvalidTimestampError
from headrace_core.log import LogConfig
from headrace_core.log.appending import prepare
from headrace_core.metadata import EMPTY_IMAGE, ConfigRecord, MetadataImage
from headrace_core.metadata.records import ConfigResourceType
from headrace_core.metadata.shards import INTERNAL_TOPICS
from headrace_core.records import RecordIterator, encode_batch
from headrace_core.types import TopicPartition

NOW_MS = 1_700_000_000_000
HOUR_MS, DAY_MS, YEAR_MS = 3_600_000, 86_400_000, 366 * 86_400_000
#: Topic keys, as an operator may set them for one topic, for the cluster, or in a broker's properties file.
KEYS = [
    {},
    {"message.timestamp.type": "LogAppendTime"},
    {"message.timestamp.after.max.ms": "0", "message.timestamp.before.max.ms": "0"},
]


def stored(config: LogConfig, topic: str, timestamp_ms: int) -> int:
    """The timestamp in the log of a record that arrives with ``timestamp_ms``."""
    batch = encode_batch([(timestamp_ms, b"key", b"value", None)], base_sequence=5)
    data, headers = accept(batch, config, TopicPartition(topic, 0), NOW_MS)
    write = prepare(data, headers, config, base_offset=0, leader_epoch=1, now_ms=NOW_MS)
    (record,) = RecordIterator(b"".join(write.buffers))
    assert record.timestamp_ms == write.info.max_timestamp_ms
    return record.timestamp_ms


def settings(where: str, topic: str, keys: dict[str, str]) -> tuple[LogSettings, MetadataImage]:
    if where == "file":
        return LogSettings(static=keys, flush_interval_ms=1_000), EMPTY_IMAGE
    kind, name, prefix = (ConfigResourceType.TOPIC, topic, "")
    if where == "cluster":
        kind, name, prefix = (ConfigResourceType.BROKER, "", "log.")
    records = [ConfigRecord(int(kind), name, prefix + key, value) for key, value in keys.items()]
    return LogSettings(static={}, flush_interval_ms=1_000), EMPTY_IMAGE.apply(records, len(records), 1)


@pytest.mark.parametrize("topic", sorted(INTERNAL_TOPICS))
@pytest.mark.parametrize("where", ["topic", "cluster", "file"])
@pytest.mark.parametrize("keys", KEYS, ids=["defaults", "LogAppendTime", "no difference"])
@pytest.mark.parametrize("off_ms", [sign * ms for ms in (HOUR_MS + 1, DAY_MS, YEAR_MS) for sign in (1, -1)])
def test_a_coordinator_with_another_time_than_the_leader_appends_and_its_times_stay(
    topic: str, where: str, keys: dict[str, str], off_ms: int
) -> None:
    log_settings, image = settings(where, topic, keys)
    assert stored(log_settings.of(image, 1, topic), topic, NOW_MS + off_ms) == NOW_MS + off_ms


def test_topics_of_clients_with_the_same_keys_keep_the_bounds_whichever_is_looked_up_first() -> None:
    for first, second in (("t", "__consumer_offsets"), ("__consumer_offsets", "t")):
        log_settings = LogSettings(static={}, flush_interval_ms=1_000)
        for topic in (first, second):
            log_settings.of(EMPTY_IMAGE, 1, topic)
        with pytest.raises(InvalidTimestampError):
            stored(log_settings.of(EMPTY_IMAGE, 1, "t"), "t", NOW_MS + HOUR_MS + 1)
        assert stored(log_settings.of(EMPTY_IMAGE, 1, "__consumer_offsets"), "__consumer_offsets", NOW_MS + DAY_MS)


def test_the_time_of_the_leader_stays_for_topics_of_clients() -> None:
    log_settings = LogSettings(static={"message.timestamp.type": "LogAppendTime"}, flush_interval_ms=1_000)
    assert stored(log_settings.of(EMPTY_IMAGE, 1, "t"), "t", 5) == NOW_MS
