"""Each topic key that is declared as honoured changes a log's behaviour; the tables must name all of these keys.

Three keys do not change a log; they change rules of leaders and controllers. The test of a key fails if the key has no
effect.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from headrace_broker.handlers.replication import ReplicationService
from headrace_broker.partition.leader import PartitionLeader
from headrace_broker.partition.schemas import KnownSchemas, SchemaCheck, judge
from headrace_controller.cluster.decision import ClusterSettings
from headrace_controller.cluster.elections import Electorate, partition_change
from headrace_core.config import Status
from headrace_core.config.topic_keys import TOPIC, TOPIC_DEFAULT_KEYS
from headrace_core.errors import HeadraceError, InvalidRecordError, NotEnoughReplicasError
from headrace_core.log import DirectoryWriter, LogConfig, PartitionLog
from headrace_core.log.appending import validate
from headrace_core.log.compaction.cleaner import Cleaner
from headrace_core.log.compaction.manager import CleanerManager
from headrace_core.log.compaction.planning import CleanerConfig
from headrace_core.log.files import RealFileSystem
from headrace_core.log.turns import flush_deadline_ms, must_flush_now
from headrace_core.metadata import (
    EMPTY_IMAGE,
    BrokerChangeRecord,
    ConfigRecord,
    ConfigResourceType,
    MetadataImage,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from headrace_core.metadata.configs import min_insync_replicas
from headrace_core.records import Compression, decode_batch, encode_batch, read_header, split_batches
from headrace_core.testing.clock import ManualClock
from headrace_core.types import TimestampType
from tests.worlds.log_world import NOW_MS, ORDERS, ROOT, TOPIC_ID, formatted, open_directory

HOUR_MS = 3_600_000
#: Text that every codec compresses, and that a higher level compresses more.
PROSE = " ".join(
    random.Random(3).choices(["mill", "wheel", "race", "water", "stone", "grain", "flow"], k=4_000)
).encode()


class Kept:
    """A log with the settings of a topic, on a disk in memory, with a stopped clock."""

    def __init__(self, config: LogConfig) -> None:
        self.config = config
        self.fs = formatted()
        self.clock = ManualClock(NOW_MS)
        self.directory = open_directory(self.fs, config, self.clock)
        self.log: PartitionLog = self.directory.create(ORDERS, TOPIC_ID, config)

    def put(self, value: bytes | None = b"v", *, key: bytes | None = b"k", ms: int = 0) -> None:
        """A batch of one record, ``ms`` after the beginning."""
        self.log.append(encode_batch([(NOW_MS + ms, key, value, [])]), 0)
        self.log.flush()

    def filled(self, batches: int = 8, value: bytes = b"v" * 100, apart_ms: int = 0) -> Kept:
        for number in range(batches):
            self.put(value, key=b"%d" % (number % 3), ms=number * apart_ms)
        return self

    def segments(self) -> int:
        return len(self.log.segments)

    def lost_to_retention(self) -> int:
        """Return the records that one retention check deletes."""
        found = self.log.expired(self.log.flushed_end)
        if found is not None:
            self.directory.expire([(self.log, found)])
        return self.log.log_start_offset

    def targets(self) -> int:
        """The number of logs that are dirty enough for a cleaning now."""
        plan = CleanerManager(self.fs, ROOT).plan(
            {ORDERS: self.log}, stable_offset_of=lambda log: log.log_end_offset, now_ms=self.clock.now_ms()
        )
        return len(plan)

    def clean(self) -> None:
        manager = CleanerManager(self.fs, ROOT)
        settings = CleanerConfig(dedupe_buffer_bytes=1 << 14, io_buffer_bytes=512)
        cleaner = Cleaner(self.directory.fs, settings, clock=self.clock, secret=bytes(16))
        for target in manager.plan(
            {ORDERS: self.log}, stable_offset_of=lambda log: log.log_end_offset, now_ms=self.clock.now_ms()
        ):
            manager.clean(cleaner, self.log, target, execute=lambda action: action(), producers={})

    def values(self) -> list[bytes | None]:
        found, offset = [], self.log.log_start_offset
        while offset < self.log.log_end_offset:
            result = self.log.read(offset, 1 << 20)
            assert result is not None
            for span in split_batches(result.records):
                found += [r.value for r in decode_batch(result.records, span.position, start_offset=offset)]
            offset = result.next_offset
        return found


# -- what is looked at -------------------------------------------------------------------------------------------------


def stored_codec(config: LogConfig) -> Compression:
    kept = Kept(config)
    kept.put(PROSE)
    result = kept.log.read(0, 1 << 20)
    assert result is not None
    return read_header(result.records).compression


def stored_bytes(config: LogConfig) -> int:
    kept = Kept(config)
    kept.put(PROSE)
    return kept.log.size_bytes


def accepts(at_ms: int, size: int = 10) -> Callable[[LogConfig], bool]:
    """Whether the log accepts a record of this size, with this time relative to now."""

    def look(config: LogConfig) -> bool:
        kept = Kept(config)
        try:
            data, _ = validate(encode_batch([(NOW_MS + at_ms, b"k", b"v" * size, [])]), config, NOW_MS)
            kept.log.append(data, 0)
        except HeadraceError:
            return False
        return True

    return look


def time_type(config: LogConfig) -> TimestampType:
    kept = Kept(config)
    kept.put(ms=-5)
    result = kept.log.read(0, 1 << 20)
    assert result is not None
    return read_header(result.records).timestamp_type


def tombstones_after(ms: int) -> Callable[[LogConfig], int]:
    """The tombstones that are left after two cleanings with this time between them."""

    def look(config: LogConfig) -> int:
        kept = Kept(config)
        kept.put(b"x" * 100)
        kept.put(None)
        kept.log.roll()
        kept.put(b"active", key=b"other")
        kept.clean()
        kept.clock.advance(ms)
        kept.put(b"y" * 200, key=b"third")
        kept.log.roll()
        kept.put(b"active", key=b"other")
        kept.clean()
        return kept.values().count(None)

    return look


def files_kept_after(ms: int) -> Callable[[LogConfig], bool]:
    """Return whether the files of the deleted segments still exist after the given time."""

    def look(config: LogConfig) -> bool:
        kept = Kept(config).filled()
        assert kept.lost_to_retention() > 0
        kept.clock.advance(ms)
        kept.directory.remove_deleted()
        return any(path.endswith(".deleted") for path in kept.fs.files())

    return look


def durable_when_acknowledged(config: LogConfig) -> bool:
    async def scenario() -> bool:
        kept = Kept(config)
        writer = DirectoryWriter(kept.directory, clock=kept.clock)
        await asyncio.wait_for(writer.append(kept.log, encode_batch([(NOW_MS, None, b"v", [])]), leader_epoch=0), 60)
        durable = kept.log.flushed_end == 1
        await writer.close()
        return durable

    return asyncio.run(scenario())


def jitter(config: LogConfig) -> int:
    """The number of different times at which logs of the same age roll."""
    times = set()
    for seed in range(12):
        fs = formatted()
        fs.mkdir("/log")
        log = PartitionLog.open(fs, "/log", ORDERS, config, clock=ManualClock(NOW_MS), rng=random.Random(seed))
        for ms in range(0, 1_200, 50):
            log.append(encode_batch([(NOW_MS + ms, None, b"v", [])]), 0)
            if len(log.segments) > 1:
                times.add(ms)
                break
    return len(times)


def reserved(config: LogConfig, folder: Path) -> bool:
    """Whether a new log has more blocks on a real disk than it has bytes."""
    log = PartitionLog.open(
        RealFileSystem(), str(folder), ORDERS, config, clock=ManualClock(NOW_MS), rng=random.Random(1)
    )
    (file,) = folder.glob("*.log")
    blocks = file.stat().st_blocks
    log.close()
    return blocks * 512 >= config.segment_bytes


class Row(NamedTuple):
    """``look`` returns ``without`` if only ``others`` are set, and ``then`` if the key also has ``value``."""

    value: str
    look: Callable[[LogConfig], Any]
    without: Any
    then: Any
    others: Mapping[str, str] = {}


SMALL = {"segment.bytes": "400"}
COMPACT = SMALL | {"cleanup.policy": "compact"}
OLD = SMALL | {"retention.ms": "1"}


def smaller(codec: str, low: str, high: str) -> Row:
    """The higher compression level makes fewer bytes than the lower level."""
    others = {"compression.type": codec}
    name = f"compression.{codec}.level"
    bytes_at = {level: stored_bytes(LogConfig.from_topic(others | {name: level})) for level in (low, high)}
    return Row(high, lambda config: stored_bytes(config) < bytes_at[low], False, True, others | {name: low})


def refuses_plain(side: str) -> Callable[[LogConfig], bool]:
    """Whether a log's records need a schema id in their keys or values (``side``)."""

    def look(config: LogConfig) -> bool:
        check = SchemaCheck.of(ORDERS.topic, config)
        if check is None:
            return False
        validate(encode_batch([(NOW_MS, b"key", b"value", None)]), config, NOW_MS, schemas=check.ids)
        try:
            judge(check, KnownSchemas(1, 0), ORDERS, 0)
        except InvalidRecordError as error:
            return f"the {side} does not begin" in str(error)
        return False

    return look


def accepts_subject(side: str, subject: str) -> Callable[[LogConfig], bool]:
    def look(config: LogConfig) -> bool:
        check = SchemaCheck(ORDERS.topic, config)
        subjects = check.keys if side == "key" else check.values
        return subjects is not None and subjects.has(subject)

    return look


def schema_rows(side: str) -> dict[str, Row]:
    on = {f"{side}.schema.validation": "true"}
    strategy = Row("RecordNameStrategy", accepts_subject(side, "com.acme.Order"), False, True, on)
    return {
        f"{name}{side}.{key}": row
        for name in ("", "confluent.")
        for key, row in {
            "schema.validation": Row("true", refuses_plain(side), False, True),
            "subject.name.strategy": strategy,
        }.items()
    }


def table(folder: Path) -> dict[str, Row]:
    def aged(config: LogConfig) -> Kept:
        kept = Kept(config).filled()
        kept.clock.advance(HOUR_MS)
        return kept

    def looked_at_young(config: LogConfig) -> int:
        return Kept(config).filled().targets()

    def mostly_clean(config: LogConfig, idle_ms: int = 0) -> int:
        """A log whose larger part is clean, and whose dirty part has waited for this time."""
        kept = Kept(config)
        for number in range(30):
            kept.put(b"v" * 100, key=b"key %d" % number)
        kept.log.roll()
        kept.put(key=b"active")
        kept.clean()
        for number in range(6):
            kept.put(b"w" * 100, key=b"new %d" % number)
        kept.clock.advance(idle_ms)
        return kept.targets()

    return {
        "cleanup.policy": Row("compact", lambda c: aged(c).lost_to_retention() > 0, True, False, OLD),
        "compression.type": Row("lz4", stored_codec, Compression.NONE, Compression.LZ4),
        "compression.gzip.level": smaller("gzip", "1", "9"),
        "compression.lz4.level": smaller("lz4", "1", "12"),
        "compression.zstd.level": smaller("zstd", "-50", "19"),
        "delete.retention.ms": Row("1", tombstones_after(HOUR_MS), 1, 0, COMPACT | {"min.cleanable.dirty.ratio": "0"}),
        "file.delete.delay.ms": Row("1000", files_kept_after(30_000), True, False, SMALL | {"retention.bytes": "300"}),
        "flush.messages": Row("5", lambda c: must_flush_now(c, 5), False, True, {"log.flush": "os"}),
        "flush.ms": Row("70", lambda c: flush_deadline_ms(c, 0), None, 70, {"log.flush": "os"}),
        "index.interval.bytes": Row("10", lambda c: len(Kept(c).filled().log.active.index) > 3, False, True),
        "log.flush": Row("os", durable_when_acknowledged, True, False),
        "max.compaction.lag.ms": Row(
            "1000", lambda c: mostly_clean(c, HOUR_MS), 0, 1, COMPACT | {"min.cleanable.dirty.ratio": "0.9"}
        ),
        "max.message.bytes": Row("500", accepts(0, size=1_000), True, False),
        "message.timestamp.after.max.ms": Row("10", accepts(1_000), True, False),
        "message.timestamp.before.max.ms": Row("10", accepts(-1_000), True, False),
        "message.timestamp.type": Row(
            "LogAppendTime", time_type, TimestampType.CREATE_TIME, TimestampType.LOG_APPEND_TIME
        ),
        "min.cleanable.dirty.ratio": Row("0.05", mostly_clean, 0, 1, COMPACT),
        "min.compaction.lag.ms": Row("60000", looked_at_young, 1, 0, COMPACT),
        "preallocate": Row("true", lambda c: reserved(c, folder), False, True, {"segment.bytes": "1048576"}),
        "retention.bytes": Row("300", lambda c: Kept(c).filled().lost_to_retention() > 0, False, True, SMALL),
        "retention.ms": Row("60000", lambda c: aged(c).lost_to_retention() > 0, False, True, SMALL),
        "segment.bytes": Row("400", lambda c: Kept(c).filled().segments() > 1, False, True),
        "segment.index.bytes": Row(
            "40", lambda c: Kept(c).filled(12).segments() > 1, False, True, {"index.interval.bytes": "10"}
        ),
        "segment.jitter.ms": Row("900", lambda c: jitter(c) > 2, False, True, {"segment.ms": "1000"}),
        **schema_rows("key"),
        **schema_rows("value"),
        "segment.ms": Row("1000", lambda c: Kept(c).filled(apart_ms=600).segments() > 1, False, True),
    }


# -- what no log does: replication and elections ----------------------------------------------------------------------

#: Broker 1 leads and is the only in-sync replica. Brokers 2 and 3 work, but lag behind.
LEADER, FOLLOWERS = 1, (2, 3)


def image_with(*configs: ConfigRecord) -> MetadataImage:
    brokers = (LEADER, *FOLLOWERS)
    records = [
        *(RegisterBrokerRecord(each, each, bytes([each]) * 16, (bytes([each]) * 16,), ()) for each in brokers),
        *(BrokerChangeRecord(each, each, fenced=False) for each in brokers),
        TopicRecord(ORDERS.topic, TOPIC_ID),
        PartitionRecord(TOPIC_ID, 0, brokers, isr=(LEADER,), leader=LEADER, leader_epoch=0, partition_epoch=0),
        *configs,
    ]
    return EMPTY_IMAGE.apply(records, len(records))


def leader_of(image: MetadataImage) -> PartitionLeader:
    partition = image.topics[TOPIC_ID].partitions[0]
    return PartitionLeader(
        ORDERS,
        topic_id=TOPIC_ID,
        leader_id=LEADER,
        leader_epoch=0,
        log_start=0,
        log_end=0,
        flushed_end=0,
        replicas=partition.replicas,
        isr=partition.isr,
        min_insync=min_insync_replicas(image, ORDERS.topic),
    )


def takes_acks_all(image: MetadataImage) -> bool:
    """Return whether a leader that is the only in-sync replica accepts a write with acks=all."""
    try:
        leader_of(image).check_enough_in_sync()
    except NotEnoughReplicasError:
        return False
    return True


def elected_when_the_leader_dies(image: MetadataImage) -> int | None:
    """The elected leader after the failure of the last in-sync replica."""
    image = image.apply([BrokerChangeRecord(LEADER, LEADER, fenced=True)], image.next_offset + 1)
    change = partition_change(Electorate(image, ClusterSettings()), image.topics[TOPIC_ID], 0)
    assert change is not None
    return change.leader


def throttled(image: MetadataImage) -> list[int]:
    """The followers that are throttled while they catch up."""
    metadata = SimpleNamespace(watch=lambda on_change: None)
    broker: Any = SimpleNamespace(
        broker_id=LEADER,
        clock=ManualClock(NOW_MS),
        metadata=metadata,
        partitions=SimpleNamespace(image=image),
        pushes=None,
        flow=SimpleNamespace(turns=None),
        metrics=None,
        traces=None,
    )
    service = ReplicationService(broker)
    service.set_throttle(1_000)
    return [each for each in FOLLOWERS if service.is_throttled(leader_of(image), each)]


class Elsewhere(NamedTuple):
    """``look`` returns ``without`` in a cluster without settings, and ``then`` if the key has ``value``."""

    value: str
    look: Callable[[MetadataImage], Any]
    without: Any
    then: Any


ELSEWHERE = {
    "leader.replication.throttled.replicas": Elsewhere("0:1", throttled, [], [2, 3]),
    "min.insync.replicas": Elsewhere("2", takes_acks_all, True, False),
    "unclean.leader.election.enable": Elsewhere("true", elected_when_the_leader_dies, -1, 2),
}

HONOURED = sorted(key.name for key in TOPIC.keys.values() if key.status is Status.HONOURED)
IN_THE_LOG = [name for name in HONOURED if name not in ELSEWHERE]


def test_the_tables_have_every_honoured_key_once(tmp_path: Path) -> None:
    rows = [*table(tmp_path), *ELSEWHERE]
    missing = set(HONOURED) - set(rows)
    assert not missing, f"{missing}: add a Row to table(), or an Elsewhere: what the key changes"
    assert sorted(rows) == HONOURED, "a key is in both tables, or it is not honoured: remove its row"


def row_of(name: str, directory: Path) -> Row:
    rows = table(directory)
    assert name in rows, f"{name}: add a Row to table(), or an Elsewhere: what the key changes"
    return rows[name]


@pytest.mark.parametrize("name", IN_THE_LOG)
def test_an_honoured_key_changes_what_a_log_does(name: str, tmp_path: Path) -> None:
    row = row_of(name, tmp_path)
    (tmp_path / "without").mkdir()
    without = row_of(name, tmp_path / "without").look(LogConfig.from_topic(row.others))
    assert without == row.without
    assert row.look(LogConfig.from_topic(dict(row.others) | {name: row.value})) == row.then != row.without


@pytest.mark.parametrize("name", IN_THE_LOG)
def test_a_brokers_default_of_the_key_counts_as_well(name: str, tmp_path: Path) -> None:
    row = row_of(name, tmp_path)
    others = {key: value for key, value in row.others.items() if key != name}
    config = LogConfig.from_topic(others, broker_defaults={name: row.value})
    of_topic = LogConfig.from_topic(dict(row.others) | {name: row.value})
    assert config == of_topic, f"{name}: the broker's default must give the same LogConfig as the topic's own value"


@pytest.mark.parametrize("name", sorted(ELSEWHERE))
def test_an_honoured_key_changes_what_leaders_or_controllers_do(name: str) -> None:
    value, look, without, then = ELSEWHERE[name]
    TOPIC.keys[name].parse(value)
    assert look(image_with()) == without
    assert look(image_with(ConfigRecord(ConfigResourceType.TOPIC, ORDERS.topic, name, value))) == then != without
    assert look(image_with(ConfigRecord(ConfigResourceType.TOPIC, "payments", name, value))) == without


@pytest.mark.parametrize("name", sorted(ELSEWHERE.keys() & TOPIC_DEFAULT_KEYS))
def test_leaders_and_controllers_heed_the_default_of_all_brokers_as_well(name: str) -> None:
    value, look, without, then = ELSEWHERE[name]
    default = ConfigRecord(ConfigResourceType.BROKER, "", TOPIC_DEFAULT_KEYS[name], value)
    assert look(image_with(default)) == then != without
