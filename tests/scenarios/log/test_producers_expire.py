"""When a partition forgets an idempotent producer: by the local time of its last append, not by record timestamps."""

from __future__ import annotations

import pytest

from headrace_core.errors import HeadraceError
from headrace_core.log import Append, AppendInfo, LogConfig, LogDirectory, PartitionLog
from headrace_core.testing.clock import ManualClock
from headrace_core.testing.crashing_fs import CrashingFileSystem
from headrace_core.types import TimestampType
from tests.worlds.log_world import NOW_MS, ORDERS, TOPIC_ID, append, formatted, idempotent, log_of, open_directory

EXPIRATION_MS = 86_400_000
#: producer.id.expiration.check.interval.ms.
CHECK_MS = 600_000
ANY_TIME = LogConfig(timestamp_after_max_ms=2**62)
LONG_AGO_MS, FAR_AHEAD_MS = 1_000, 4_000_000_000_000


class ExpiringProducersWorld:
    """A log, and the clock of its broker."""

    def __init__(self, config: LogConfig | None = None) -> None:
        self.config = config or LogConfig()
        self.clock = ManualClock(NOW_MS)
        self.fs: CrashingFileSystem = formatted()
        self.directory: LogDirectory = open_directory(self.fs, self.config, self.clock)
        self.log: PartitionLog = self.directory.create(ORDERS, TOPIC_ID, self.config)

    def restart(self) -> None:
        self.log.flush()
        self.fs.crash()
        self.directory = open_directory(self.fs, self.config, self.clock)
        self.log = log_of(self.directory)

    def tick(self) -> int:
        """Run the upkeep, and return the number of expired producers."""
        return self.log.expire_producers(EXPIRATION_MS, [entry.producer_id for entry in self.log.producers])


def offset(outcome: AppendInfo | HeadraceError) -> int:
    assert isinstance(outcome, AppendInfo), outcome
    return outcome.base_offset


@pytest.mark.parametrize("timestamp_ms", [LONG_AGO_MS, NOW_MS, FAR_AHEAD_MS])
def test_a_retry_after_the_tick_is_known_whatever_time_its_records_carry(timestamp_ms: int) -> None:
    world = ExpiringProducersWorld(ANY_TIME)
    first = idempotent(7, 0, timestamp_ms=timestamp_ms)
    append(world.log, first)
    world.clock.advance(CHECK_MS)
    assert world.tick() == 0
    retried = append(world.log, first)
    assert (offset(retried), world.log.log_end_offset) == (0, 1)
    assert offset(append(world.log, idempotent(7, 1, timestamp_ms=timestamp_ms))) == 1


@pytest.mark.parametrize("timestamp_ms", [LONG_AGO_MS, FAR_AHEAD_MS])
def test_a_silent_producer_is_forgotten_after_its_time_whatever_time_its_records_carry(timestamp_ms: int) -> None:
    world = ExpiringProducersWorld(ANY_TIME)
    append(world.log, idempotent(7, 0, timestamp_ms=timestamp_ms), idempotent(8, 0, timestamp_ms=timestamp_ms))
    world.clock.advance(EXPIRATION_MS - 1)
    assert world.tick() == 0
    append(world.log, idempotent(8, 1, timestamp_ms=timestamp_ms))
    world.clock.advance(1)
    assert world.tick() == 1
    assert [entry.producer_id for entry in world.log.producers] == [8]


def test_with_log_append_time_the_wall_clock_may_jump() -> None:
    world = ExpiringProducersWorld(LogConfig(timestamp_type=TimestampType.LOG_APPEND_TIME))
    first = idempotent(7, 0)
    append(world.log, first)
    world.clock.jump(10 * EXPIRATION_MS)  # an operator sets the clock
    assert world.tick() == 0
    assert offset(append(world.log, first)) == 0
    world.clock.jump(-20 * EXPIRATION_MS)
    world.clock.advance(EXPIRATION_MS)
    assert world.tick() == 1


def test_after_a_restart_the_time_counts_from_the_load_on() -> None:
    """The file does not contain the time of the last append, because the machine may have been off for a day while its
    clients continued."""
    world = ExpiringProducersWorld()
    first = idempotent(7, 0, timestamp_ms=LONG_AGO_MS)
    append(world.log, first)
    world.clock.advance(EXPIRATION_MS - 1)
    world.restart()
    world.clock.advance(EXPIRATION_MS - 1)
    assert world.tick() == 0
    assert offset(append(world.log, first)) == 0
    world.clock.advance(1)
    assert world.tick() == 1


def test_a_new_leader_counts_from_the_moment_at_which_it_got_the_batch() -> None:
    leader, follower = ExpiringProducersWorld(), ExpiringProducersWorld()
    follower.clock.advance(EXPIRATION_MS)  # another machine's clock
    first = idempotent(7, 0, timestamp_ms=LONG_AGO_MS)
    append(leader.log, first)
    copied = idempotent(7, 0, timestamp_ms=LONG_AGO_MS, leader_epoch=0)
    (outcome,) = follower.log.append_many([Append(data=copied, leader_epoch=0, replicated=True)])
    assert offset(outcome) == 0
    follower.clock.advance(EXPIRATION_MS - 1)
    assert follower.tick() == 0
    assert offset(append(follower.log, first, leader_epoch=1)) == 0
    follower.clock.advance(1)
    assert follower.tick() == 1


def test_a_cut_forgets_nobody_who_is_still_in_the_log() -> None:
    world = ExpiringProducersWorld()
    first = idempotent(7, 0, timestamp_ms=LONG_AGO_MS)
    append(world.log, first)
    append(world.log, idempotent(8, 0, timestamp_ms=LONG_AGO_MS))
    world.clock.advance(CHECK_MS)
    world.directory.truncate(world.log, 1)
    assert world.tick() == 0
    assert offset(append(world.log, first)) == 0
    assert [entry.producer_id for entry in world.log.producers] == [7]
