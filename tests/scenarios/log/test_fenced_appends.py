"""A coordinator writes to its shard under an epoch, and a replaced coordinator cannot write (KAFKA-4362): every leader
finds the epoch in its log, also after truncation and crashes."""

from __future__ import annotations

import errno
import random

import pytest

from headrace_core.errors import (
    DiskFullError,
    FencedShardEpochError,
    HeadraceError,
    InvalidRequestError,
    UnexpectedLogEndError,
)
from headrace_core.log import Append, AppendInfo, LogConfig, LogDirectory, PartitionLog
from headrace_core.log.fencing import NO_SHARD_EPOCH, Fence, check_stamps, epoch_of, largest_epoch
from headrace_core.records import encode_batch, read_header, split_batches
from headrace_core.testing.crashing_fs import CrashingFileSystem, Loss
from tests.worlds.log_world import NOW_MS, ORDERS, TOPIC_ID, batch, formatted, open_directory

SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=100)


def stamped(epoch: int, *values: str, pad: int = 0, offset: int = 0, leader_epoch: int = 0) -> bytes:
    """A batch as a coordinator builds it."""
    records = [(NOW_MS, value.encode(), value.encode() + b"." * pad, []) for value in values]
    return encode_batch(records, base_sequence=epoch, base_offset=offset, leader_epoch=leader_epoch)


def fenced(epoch: int, *values: str, end: int | None = None, pad: int = 0) -> Append:
    return Append(data=stamped(epoch, *values, pad=pad), leader_epoch=0, fence=Fence(epoch, end))


def opened(config: LogConfig = SMALL) -> tuple[CrashingFileSystem, LogDirectory, PartitionLog]:
    fs = formatted()
    directory = open_directory(fs, config)
    return fs, directory, directory.create(ORDERS, TOPIC_ID, config)


def write(log: PartitionLog, *appends: Append) -> list[AppendInfo | HeadraceError]:
    return log.append_many(appends)


def one(log: PartitionLog, append: Append) -> AppendInfo | HeadraceError:
    (outcome,) = log.append_many([append])
    return outcome


def offset_of(outcome: AppendInfo | HeadraceError) -> int:
    assert isinstance(outcome, AppendInfo), outcome
    return outcome.base_offset


# -- a leader ---------------------------------------------------------------------------------------------------------


def test_the_coordinator_before_writes_no_more_once_its_successor_has_claimed() -> None:
    _, _, log = opened()
    assert offset_of(one(log, fenced(4, "claim of 4", end=0))) == 0
    assert offset_of(one(log, fenced(4, "commit", "commit", end=1))) == 1
    assert offset_of(one(log, fenced(5, "claim of 5"))) == 3
    late = one(log, fenced(4, "late commit"))
    assert isinstance(late, FencedShardEpochError)
    assert "shard epoch 4 is out of date, because a coordinator with epoch 5 has claimed" in late.message
    assert not late.retriable
    assert log.log_end_offset == 4
    assert offset_of(one(log, fenced(5, "commit", end=4))) == 4


def test_an_append_that_was_decided_on_another_log_is_refused_and_tells_where_it_ends() -> None:
    _, _, log = opened()
    one(log, fenced(1, "claim"))
    refused = one(log, fenced(1, "commit", end=7))
    assert isinstance(refused, UnexpectedLogEndError)
    assert "ends at 7, but the log ends at 1" in refused.message
    assert log.log_end_offset == 1
    again = fenced(1, "commit", end=1)
    assert offset_of(one(log, again)) == 1
    assert isinstance(one(log, again), UnexpectedLogEndError), "its answer was lost, and it is sent again"
    assert log.log_end_offset == 2


def test_a_stale_epoch_is_reported_before_a_wrong_end() -> None:
    """A replay of the log would not help a coordinator with a stale epoch, so it must resign."""
    _, _, log = opened()
    one(log, fenced(9, "claim"))
    assert isinstance(one(log, fenced(8, "commit", end=77)), FencedShardEpochError)


def test_appends_that_become_one_write_are_judged_one_after_the_other() -> None:
    _, _, log = opened()
    outcomes = write(
        log,
        fenced(1, "a", end=0),
        fenced(1, "b", end=1),
        fenced(2, "claim"),
        fenced(1, "c", end=3),
        fenced(2, "d", end=3),
    )
    assert [type(outcome) for outcome in outcomes] == [
        AppendInfo,
        AppendInfo,
        AppendInfo,
        FencedShardEpochError,
        AppendInfo,
    ]
    assert log.log_end_offset == 4


def test_a_claim_that_could_not_be_written_fences_nobody() -> None:
    fs, _, log = opened()
    one(log, fenced(1, "claim"))
    fs.fail("write", errno.ENOSPC, path_ends=".log")
    outcomes = write(log, fenced(2, "claim of 2"))
    assert isinstance(outcomes[0], DiskFullError)
    assert offset_of(one(log, fenced(1, "commit", end=1))) == 1


def test_who_follows_a_claim_that_could_not_be_written_in_one_turn_is_not_written_either() -> None:
    """A batch must not be written at another offset, because its expected end would be wrong."""
    fs, _, log = opened()
    one(log, fenced(1, "claim"))
    fs.fail("write", errno.ENOSPC, path_ends=".log")
    outcomes = write(log, fenced(2, "claim of 2"), fenced(2, "commit", end=2))
    assert [type(outcome) for outcome in outcomes] == [DiskFullError, DiskFullError]
    assert log.log_end_offset == 1


def test_a_roll_whose_group_was_refused_judges_the_expected_end_anew() -> None:
    fs, _, log = opened(LogConfig(segment_bytes=400))
    one(log, fenced(1, "claim", pad=150))
    fs.fail("write", errno.ENOSPC, path_ends=".log")
    first, second = write(log, fenced(1, "in front", end=1), fenced(1, "does not fit", pad=200, end=2))
    assert isinstance(first, DiskFullError)
    assert isinstance(second, UnexpectedLogEndError)
    assert log.log_end_offset == 1


def test_other_batches_carry_no_epoch() -> None:
    plain = read_header(batch("a"))
    assert epoch_of(plain) == NO_SHARD_EPOCH
    of_a_producer = read_header(
        encode_batch([(NOW_MS, None, b"v", [])], producer_id=7, producer_epoch=0, base_sequence=5)
    )
    assert epoch_of(of_a_producer) == NO_SHARD_EPOCH
    assert epoch_of(read_header(stamped(0, "claim"))) == 0
    _, _, log = opened()
    one(log, fenced(3, "claim"))
    for number in range(40):  # so many that the batch with the epoch is in another segment
        log.append(batch(f"v{number}", pad=100), 0)
    assert len(log.segments) > 3
    assert isinstance(one(log, fenced(2, "late")), FencedShardEpochError)
    assert offset_of(one(log, fenced(3, "commit"))) == 41


@pytest.mark.parametrize(
    ("data", "epoch", "why"),
    [
        (batch("a"), 3, "not -1 and -1"),
        (stamped(2, "a"), 3, "not -1 and 2"),
        (stamped(3, "a") + stamped(4, "b"), 3, "not -1 and 4"),
        (encode_batch([(NOW_MS, None, b"v", [])], producer_id=7, producer_epoch=0, base_sequence=3), 3, "not 7 and 3"),
        (stamped(0, "a"), -1, "must not be negative"),
    ],
)
def test_batches_that_do_not_carry_the_epoch_are_refused(data: bytes, epoch: int, why: str) -> None:
    headers = [read_header(data, span.position) for span in split_batches(data)]
    with pytest.raises(InvalidRequestError, match=why):
        check_stamps(headers, Fence(epoch), ORDERS)


# -- the next leader ---------------------------------------------------------------------------------------------------


def replicate(leader: PartitionLog, follower: PartitionLog) -> None:
    """Copy everything that the follower lacks."""
    while follower.log_end_offset < leader.log_end_offset:
        result = leader.read(follower.log_end_offset, 1 << 20)
        assert result is not None
        one(follower, Append(data=result.records, leader_epoch=0, replicated=True))


def test_a_follower_that_becomes_leader_knows_the_epoch_that_it_was_sent() -> None:
    _, _, leader = opened()
    _, _, follower = opened()
    write(leader, fenced(6, "claim"), fenced(7, "claim"), fenced(7, "commit"))
    replicate(leader, follower)
    assert isinstance(one(follower, fenced(6, "late")), FencedShardEpochError)
    assert offset_of(one(follower, fenced(7, "commit", end=3))) == 3


def test_a_claim_that_was_cut_off_fences_nobody() -> None:
    """The claim was never committed: its coordinator never learned that it owns the shard."""
    _, directory, log = opened()
    write(log, fenced(1, "claim"), fenced(1, "commit"), fenced(2, "claim of 2"))
    directory.truncate(log, 2)
    assert offset_of(one(log, fenced(1, "commit", end=2))) == 2
    assert isinstance(one(log, fenced(0, "older yet")), FencedShardEpochError)


def test_a_leader_again_finds_what_its_successor_appended_in_place_of_its_own() -> None:
    """The log has the same end as before, so only the truncation shows that the last batch has changed."""
    _, directory, log = opened()
    write(log, fenced(1, "claim"), fenced(1, "commit"))
    directory.truncate(log, 1)
    one(log, Append(data=stamped(5, "claim of 5", offset=1), leader_epoch=0, replicated=True))
    assert log.log_end_offset == 2
    assert isinstance(one(log, fenced(1, "late")), FencedShardEpochError)


def test_the_epoch_survives_a_clean_stop_and_an_unclean_one() -> None:
    fs, directory, log = opened()
    for number in range(30):
        one(log, fenced(1 + number // 10, f"commit {number}", pad=90))
    log.flush()
    crashed = open_directory(fs.crash_clone(random.Random(1), Loss.ALL), SMALL).logs[ORDERS]
    assert isinstance(one(crashed, fenced(2, "late")), FencedShardEpochError)
    assert offset_of(one(crashed, fenced(3, "commit"))) == 30
    log.roll()  # and the active segment is empty
    directory.close()
    reopened = open_directory(fs, SMALL).logs[ORDERS]
    assert isinstance(one(reopened, fenced(2, "late")), FencedShardEpochError)
    assert offset_of(one(reopened, fenced(3, "commit"))) == 30


def test_a_log_that_was_emptied_still_refuses_who_has_not_seen_its_end() -> None:
    """The log's epochs are deleted with its records. An append of the coordinator that is in progress is refused
    because of the log's end."""
    _, directory, log = opened()
    write(log, fenced(5, "claim"), fenced(5, "commit"))
    log.flush()
    directory.restart(log, 10)
    assert isinstance(one(log, fenced(4, "late", end=1)), UnexpectedLogEndError)
    assert isinstance(one(log, fenced(5, "commit", end=2)), UnexpectedLogEndError)


# -- against a model --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(60))
def test_the_largest_epoch_is_that_of_the_batches_which_are_there(seed: int) -> None:
    """Random appends, truncations, rolls, stops and crashes; the model is a list of (base offset, end, epoch)."""
    rng = random.Random(seed)
    fs, directory, log = opened()
    there: list[tuple[int, int, int]] = []
    epoch = 0
    for step in range(120):
        act = rng.random()
        largest = max((each for _, _, each in there), default=NO_SHARD_EPOCH)
        if act < 0.7:
            epoch = max(0, largest + rng.choice([-2, -1, 0, 0, 0, 1]))
            end = rng.choice([None, log.log_end_offset, log.log_end_offset, log.log_end_offset + rng.choice([-1, 1])])
            values = [f"{step}.{number}" for number in range(rng.choice([1, 1, 3]))]
            outcome = one(log, fenced(epoch, *values, end=end, pad=rng.choice([0, 60, 250])))
            now = there[-1][1] if there else 0
            if epoch < largest:
                assert isinstance(outcome, FencedShardEpochError), (seed, step, outcome)
            elif end not in (None, now):
                assert isinstance(outcome, UnexpectedLogEndError), (seed, step, outcome)
            else:
                assert offset_of(outcome) == now, (seed, step)
                there.append((now, now + len(values), epoch))
        elif act < 0.8:
            cut = rng.randrange(log.log_end_offset + 1)
            directory.truncate(log, cut)
            there = [each for each in there if each[1] <= cut]
        elif act < 0.9:
            log.roll()
        else:
            log.flush()
            if rng.random() < 0.5:
                directory.close()
            else:
                fs = fs.crash_clone(rng, rng.choice(list(Loss)))
            directory = open_directory(fs, SMALL)
            log = directory.logs[ORDERS]
        assert log.log_end_offset == (there[-1][1] if there else 0), (seed, step)
        expected = max((each for _, _, each in there), default=NO_SHARD_EPOCH)
        assert largest_epoch(log.segments) == expected, (seed, step)
        assert not there or there[-1][2] == expected, "epochs never fall along the log"
