"""Schedules in which retention, DeleteRecords and compaction delete records; and tests of their checks."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from headrace_core.records import encode_batch, iterate_headers
from headrace_core.types import TopicPartition
from tests.simulation import run
from tests.simulation.broker_checks import BrokerChecks
from tests.simulation.broker_plan import UPKEEP, make_broker_plan
from tests.simulation.broker_sim_world import BrokerWorld
from tests.simulation.broker_upkeep import Aside
from tests.simulation.broker_upkeep_checks import ANYWHERE
from tests.simulation.sim_checks import Violation

SEEN = {
    "retention": "retention",
    "deletes": "records deleted",
    "both": "retention",
    "compaction": "log compacted",
}


@pytest.mark.parametrize("kind", sorted(SEEN))
def test_records_go_and_no_promise_is_broken(kind: str) -> None:
    assert set(SEEN) == set(UPKEEP) - {"nothing"}
    seen = 0
    for seed in (2, 4):
        world, failure = run.run_one(make_broker_plan(seed, hard_on=(kind,)))
        assert failure is None, f"seed {seed}: {failure!r}"
        seen += world.coverage["state", SEEN[kind]]
    assert seen


@pytest.mark.parametrize("kind", ["both", "compaction"])
def test_a_schedule_with_upkeep_is_one_history(kind: str) -> None:
    first, _ = run.run_one(make_broker_plan(6, hard_on=(kind,)), with_story=True)
    again, _ = run.run_one(make_broker_plan(6, hard_on=(kind,)), with_story=True)
    assert first.digest == again.digest
    assert list(first.story.lines()) == list(again.story.lines())


def checks(kind: str) -> BrokerChecks:
    """A log with ten committed records of the keys 0, 1 and 2, and one record of a unique key at offset 4."""
    found = BrokerChecks(BrokerWorld(make_broker_plan(2, hard_on=(kind,))))
    truth = found.truths[0]
    for offset in range(10):
        key = b"once" if offset == 4 else b"%d" % (offset % 3)
        truth.records[offset] = key, b"v%d" % offset
        truth.of_key[key].append(offset)
    truth.end = 10
    return found


class Log(SimpleNamespace):
    """Compared by identity, like a PartitionLog."""

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


def log(**fields: Any) -> Any:
    """The part of a log that a check uses."""
    return Log(topic_partition=TopicPartition("orders", 0), directory="orders-0", **fields)


def test_a_log_start_that_nobody_asked_for_is_noticed() -> None:
    found = checks("deletes")
    found.asked_to_delete(0, 5)
    found.start_moves(log(log_start_offset=0), 5)
    assert found.truths[0].start_max == 5
    with pytest.raises(Violation, match="no request asked"):
        found.start_moves(log(log_start_offset=0), 7)


def test_a_log_start_above_what_is_committed_is_noticed() -> None:
    found = checks("deletes")
    found.asked_to_delete(0, -1)
    with pytest.raises(Violation, match="up to 10 are committed"):
        found.start_moves(log(log_start_offset=0), 11)


def test_a_start_that_only_the_segments_show_is_as_durable_as_they_are() -> None:
    """Seed 1584: DeleteRecords moved the log start offset to 5 only in memory, because the disk was full. Retention
    then deleted the segments below 3. After a restart the log may begin at 3, and not earlier."""
    found = checks("both")
    found.truths[0].start_max = 5
    host: Any = SimpleNamespace(number=1, disks=1, begun_anew=0, damaged=0, life=1)
    deleted = log(log_start_offset=0)
    found.start_seen(host, deleted)
    deleted.log_start_offset = 5
    found.start_moved(deleted, 3)
    found.start_seen(host, deleted)
    host.life = 2
    found.start_seen(host, log(log_start_offset=3))
    again = checks("both")
    again.truths[0].start_max = 5
    again.start_seen(SimpleNamespace(number=1, disks=1, begun_anew=0, damaged=0, life=1), deleted)  # type: ignore[arg-type]
    again.start_moved(deleted, 3)
    host.life = 3
    with pytest.raises(Violation, match="starts at 2"):
        again.start_seen(host, log(log_start_offset=2))


def test_a_log_start_that_comes_back_after_a_restart_is_noticed() -> None:
    found = checks("deletes")
    found.truths[0].start_max = 5
    host: Any = SimpleNamespace(number=1, disks=1, begun_anew=0, damaged=0, life=1)
    deleted = log(log_start_offset=3)
    found.start_seen(host, deleted)
    deleted.log_start_offset = 5
    found.start_seen(host, deleted)  # a full disk moves it in memory only
    host.life = 2
    found.start_seen(host, log(log_start_offset=3))
    host.life = 3
    with pytest.raises(Violation, match="log start"):
        found.start_seen(host, log(log_start_offset=0))
    host.begun_anew = 1  # a re-created replica may start at any offset
    found.start_seen(host, log(log_start_offset=0))


def test_retention_that_leaves_less_than_its_limit_is_noticed() -> None:
    found = checks("retention")
    limit = found.world.plan.retention_bytes
    assert limit is not None
    left = [SimpleNamespace(base_offset=0, size=999), SimpleNamespace(base_offset=6, size=limit)]
    found.expired(log(log_start_offset=6, segments=left))
    left = [SimpleNamespace(base_offset=8, size=limit - 1)]
    with pytest.raises(Violation, match="retention"):
        found.expired(log(log_start_offset=8, segments=left))


def batch(*offsets: int, changed: int = -1) -> bytes:
    """A batch of compacted records, which covers the offsets from the first to the last."""
    whole = checks("compaction").truths[0].records
    records = [(0, whole[offset][0], b"other" if offset == changed else whole[offset][1], []) for offset in offsets]
    assert list(offsets) == list(range(offsets[0], offsets[-1] + 1))
    return bytes(encode_batch(records, base_offset=offsets[0]))


def test_what_is_superseded_may_be_missing_and_nothing_else() -> None:
    found = checks("compaction")
    truth = found.truths[0]
    found.match_compacted("a log", truth, batch(4) + batch(7, 8, 9), 0, 10)
    with pytest.raises(Violation, match="at 4 of partition 0, is gone"):
        found.match_compacted("a log", truth, batch(7, 8, 9), 0, 10)
    with pytest.raises(Violation, match="at 7 of partition 0, is gone"):
        found.match_compacted("a log", truth, batch(4) + batch(8, 9), 0, 10)
    with pytest.raises(Violation, match="at 8 of partition 0 is"):
        found.match_compacted("a log", truth, batch(4) + batch(7, 8, 9, changed=8), 0, 10)


def test_a_record_is_not_superseded_by_one_behind_what_was_compacted() -> None:
    found = checks("compaction")
    with pytest.raises(Violation, match="at 1 of partition 0, is gone"):
        found.match_compacted("a log", found.truths[0], batch(4) + batch(5), 0, 6)


@pytest.mark.parametrize(("epoch", "is_noticed"), [(-1, True), (3, False)])
def test_a_tail_of_a_former_leader_that_was_not_cut_yet_is_not_compared(epoch: int, is_noticed: bool) -> None:
    """Seed 20261123950: the tail of the log has another leader epoch. A different record in the same leader epoch is a
    violation."""
    found = checks("compaction")
    truth = found.truths[0]
    truth.batches = {0: batch(*range(7)), 7: batch(7, 8, 9)}
    kept = {0: batch(*range(7)), 7: batch(7, 8, 9, changed=8)}

    def read(at: int, max_bytes: int, end: int) -> Any:
        data = b"".join(each for base, each in kept.items() if at <= base < end)
        return SimpleNamespace(records=data, next_offset=end)

    epochs = SimpleNamespace(epoch_of=lambda offset: -1 if offset < 7 else epoch)
    segments = [SimpleNamespace(base_offset=0), SimpleNamespace(base_offset=10)]
    cleaned = log(log_start_offset=0, log_end_offset=10, segments=segments, epochs=epochs, read=read)
    with pytest.raises(Violation, match="at 8") if is_noticed else contextlib.nullcontext():
        found.compacted("a log", cleaned)


def test_a_high_watermark_inside_a_batch_is_the_place_of_a_deletion() -> None:
    found = checks("deletes")
    truth, host = found.truths[0], SimpleNamespace(number=1)
    truth.batches = {0: batch(0, 1, 2), 3: batch(3, 4, 5, 6)}

    def replica(*batches: bytes) -> Any:
        def read(at: int, max_bytes: int, up_to: int = ANYWHERE) -> Any:
            for each in batches:
                ((_, header),) = iterate_headers(each)
                if at < header.next_offset <= up_to:
                    return SimpleNamespace(records=each, next_offset=header.next_offset)
            return SimpleNamespace(records=b"", next_offset=at)

        return log(log_start_offset=0, read=read)

    sound = replica(batch(0, 1, 2), batch(3, 4, 5, 6))
    with pytest.raises(Violation, match="has no batch at 3, below the high watermark 5"):
        found._compare(host, truth, sound, 0, 5)
    found.asked_to_delete(0, 5)
    with pytest.raises(Violation, match="has no batch at 3, below the high watermark 5"):
        found._compare(host, truth, sound, 0, 5)  # the deletion was requested, but no record is deleted yet
    found.start_moves(log(log_start_offset=0), 5)
    assert found._compare(host, truth, sound, 0, 5) == 5
    with pytest.raises(Violation, match="has no batch at 3, below the high watermark 4"):
        found._compare(host, truth, sound, 0, 4)
    with pytest.raises(Violation, match="has no batch at 3, below the high watermark 5"):
        found._compare(host, truth, replica(batch(0, 1, 2)), 0, 5)
    with pytest.raises(Violation, match="prefix"):
        found._compare(host, truth, replica(batch(0, 1, 2), batch(3, 4, 5, 6, changed=5)), 0, 5)


def test_a_thread_aside_works_only_while_it_is_stepped() -> None:
    steps: list[str] = []

    def work() -> None:
        steps.append("begun")
        aside.wait()
        steps.append("over")
        raise OSError("its end")

    aside = Aside(work)
    assert steps == []
    aside.step()
    assert (steps, aside.is_over) == (["begun"], False)
    with pytest.raises(OSError, match="its end"):
        aside.step()
    assert (steps, aside.is_over) == (["begun", "over"], True)
