"""The leader and its in-sync set: which replicas count in the high watermark, join and leave (partition/isr.py)."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from headrace_broker.partition import PartitionLeader
from headrace_broker.partition.isr import JOIN_MS, RETRY_BACKOFF_MS, BrokerEpochOf, IsrChange
from headrace_core.errors import (
    HeadraceError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    OffsetNotAvailableError,
    RequestTimedOutError,
)
from headrace_core.types import FlushPolicy, TopicPartition

PARTITION = TopicPartition("orders", 3)
LAG_MS = 30_000
#: Broker epochs: broker 1 has broker epoch 11, and so on.
LIVES = {1: 11, 2: 12, 3: 13}


def broker_epoch_of(lives: Mapping[int, int] = LIVES) -> BrokerEpochOf:
    return lives.get


class Leader:
    """Broker 1 leads in epoch 5, and its log ends at ``end``. Helper methods act as followers."""

    def __init__(
        self,
        *,
        isr: tuple[int, ...] = (1, 2, 3),
        replicas: tuple[int, ...] = (1, 2, 3),
        end: int = 100,
        high_watermark: int = 100,
        min_insync: int = 2,
        recovering: bool = False,
    ) -> None:
        self.stirred = 0
        self.now_ms = 1_000_000
        self.it = PartitionLeader(
            PARTITION,
            topic_id=bytes(16),
            leader_id=1,
            leader_epoch=5,
            log_start=0,
            log_end=end,
            flushed_end=end,
            flush_policy=FlushPolicy.COMMIT,
            replicas=replicas,
            isr=isr,
            partition_epoch=7,
            min_insync=min_insync,
            high_watermark=high_watermark,
            lag_time_max_ms=LAG_MS,
            recovering=recovering,
            on_isr_due=self.stir,
        )

    def stir(self) -> None:
        self.stirred += 1

    def append(self, end: int, *, flushed: bool = True) -> None:
        self.it.advanced(end, end if flushed else self.it.flushed_end, 10)

    def join(self, broker_id: int, end: int = 100, *, life: int = -1) -> bool:
        return self.it.follower_joined(
            broker_id,
            LIVES[broker_id] if life < 0 else life,
            log_end=end,
            durable_end=end,
            log_start=0,
            now_ms=self.now_ms,
        )

    def ack(self, broker_id: int, end: int, *, life: int = -1, log_end: int = -1) -> bool:
        return self.it.follower_acked(
            broker_id,
            LIVES[broker_id] if life < 0 else life,
            durable_end=end,
            log_end=max(end, log_end),
            log_start=0,
            now_ms=self.now_ms,
        )

    def change(self, lives: Mapping[int, int] = LIVES) -> IsrChange | None:
        return self.it.isr_change(self.now_ms, broker_epoch_of(lives))

    def propose(self, lives: Mapping[int, int] = LIVES) -> IsrChange:
        change = self.change(lives)
        assert change is not None
        self.it.proposed(change)
        return change

    def metadata(self, isr: tuple[int, ...], epoch: int, **more: object) -> bool:
        given: dict[str, object] = {"replicas": self.it.replicas, "min_insync": self.it.min_insync, **more}
        return self.it.metadata_changed(isr=isr, partition_epoch=epoch, **given)  # type: ignore[arg-type]


# -- the high watermark ------------------------------------------------------------------------------------------------


def test_the_high_watermark_is_the_smallest_durable_end_of_the_in_sync_set_the_leader_s_own_among_them():
    leader = Leader()
    leader.join(2)
    leader.join(3)
    leader.append(120, flushed=False)
    leader.ack(2, 120)
    leader.ack(3, 115)
    assert leader.it.high_watermark == 100, "the leader's own disk has no more"
    leader.it.advanced(leader.it.log_end, 120)
    assert leader.it.high_watermark == 115
    leader.ack(3, 120)
    assert leader.it.high_watermark == 120


def test_what_a_follower_has_in_its_page_cache_does_not_count():
    leader = Leader(isr=(1, 2))
    leader.join(2)
    leader.append(120)
    leader.ack(2, 100, log_end=120)
    assert leader.it.high_watermark == 100


def test_readers_hear_of_every_step_of_the_high_watermark_also_over_what_was_there_before():
    """A new leader has counted no bytes of its existing log; a reader that waits for it must be woken."""
    notified: list[int] = []

    class Reader:
        def partition_advanced(self, partition: TopicPartition, readable_bytes: int) -> None:
            notified.append(readable_bytes)

        def partition_changed(self, partition: TopicPartition) -> None:
            raise AssertionError(partition)

    leader = Leader(isr=(1, 2), high_watermark=60)
    leader.it.subscribe(Reader())
    leader.join(2, end=80)
    assert (leader.it.high_watermark, notified) == (80, [1])
    leader.ack(2, 100)
    leader.append(110)
    leader.append(120)
    leader.ack(2, 110)
    leader.ack(2, 120)
    assert notified == [1, 1, 10, 10]


def test_a_new_leader_waits_for_every_in_sync_follower_to_speak():
    leader = Leader(high_watermark=60)
    assert leader.it.high_watermark == 60
    leader.join(2)
    assert leader.it.high_watermark == 60
    leader.join(3, 90)
    assert leader.it.high_watermark == 90


def test_what_a_broker_knew_of_the_high_watermark_lies_within_its_log():
    assert Leader(high_watermark=500).it.high_watermark == 100
    assert Leader(high_watermark=0).it.high_watermark == 0


def test_the_high_watermark_never_goes_back_when_a_member_joins_anew_with_less():
    leader = Leader(isr=(1, 2))
    leader.join(2)
    assert leader.it.high_watermark == 100
    leader.join(2, 40, life=99)
    assert leader.it.high_watermark == 100


def test_the_high_watermark_stands_still_below_min_insync_replicas():
    """KIP-966: the last replica that left the in-sync set still has every committed record, and may be elected."""
    leader = Leader(isr=(1, 2))
    leader.join(2)
    assert leader.metadata((1,), 8)
    leader.append(120)
    assert leader.it.high_watermark == 100
    assert leader.metadata((1, 2), 9)
    leader.ack(2, 120)
    assert leader.it.high_watermark == 120


def test_min_insync_replicas_above_the_number_of_replicas_asks_for_all_of_them():
    leader = Leader(isr=(1,), replicas=(1,), min_insync=2)
    leader.append(120)
    assert leader.it.high_watermark == 120
    leader.it.check_enough_in_sync()


def test_a_lower_min_insync_replicas_commits_what_waited_for_it():
    leader = Leader(isr=(1,))
    leader.append(120)
    assert leader.it.high_watermark == 100
    leader.metadata((1,), 7, min_insync=1)
    assert leader.it.high_watermark == 120


def test_a_high_watermark_below_the_beginning_of_the_epoch_tells_nobody_what_the_latest_offset_is():
    """KIP-207."""
    leader = Leader(isr=(1, 2), high_watermark=60)
    with pytest.raises(OffsetNotAvailableError, match="has not reached 100"):
        leader.it.check_latest_known()
    leader.join(2)
    leader.it.check_latest_known()


# -- the maximal in-sync set -------------------------------------------------------------------------------------------


def test_a_shrink_counts_when_it_is_confirmed_and_not_before():
    """KIP-497: the leaving replica may be elected until the controllers have agreed."""
    leader = Leader()
    leader.join(2)
    leader.change()
    leader.append(120)
    leader.ack(2, 120)
    leader.change()
    leader.now_ms += LAG_MS + 1
    leader.ack(2, 120)
    assert leader.propose() == IsrChange(((1, 11), (2, 12)), 7)
    leader.ack(2, 120)
    assert leader.it.high_watermark == 100
    assert leader.it.altered((1, 2), 8, 5)
    assert leader.it.high_watermark == 120


def test_an_expansion_counts_from_the_moment_it_is_asked_for():
    leader = Leader(isr=(1, 2))
    leader.join(2)
    leader.join(3)
    assert leader.propose() == IsrChange(((1, 11), (2, 12), (3, 13)), 7)
    leader.append(120)
    leader.ack(2, 120)
    assert leader.it.isr == (1, 2)
    assert leader.it.high_watermark == 100
    leader.ack(3, 120)
    assert leader.it.high_watermark == 120


def test_an_expansion_whose_answer_was_lost_is_asked_again_unchanged_and_counts_meanwhile():
    leader = Leader(isr=(1, 2))
    leader.join(2)
    leader.join(3)
    change = leader.propose()
    assert leader.change() is None
    leader.it.alter_refused("REQUEST_TIMED_OUT", retriable=True, now_ms=leader.now_ms)
    leader.it.follower_left(3, leader.now_ms)
    leader.append(120)
    leader.ack(2, 120)
    assert leader.it.high_watermark == 100
    assert leader.change() is None, "not at once"
    leader.now_ms += RETRY_BACKOFF_MS
    assert leader.change() == change


@pytest.mark.parametrize(
    "code", ["OPERATION_NOT_ATTEMPTED", "INELIGIBLE_REPLICA", "NOT_CONTROLLER", "SERVER_SHUTTING_DOWN"]
)
def test_a_refusal_after_an_attempt_without_an_answer_leaves_the_question_open(code):
    """The controllers may have executed the first attempt, and then count broker 3 as in sync."""
    leader = Leader(isr=(1, 2))
    leader.join(2)
    leader.join(3)
    change = leader.propose()
    leader.it.alter_refused("REQUEST_TIMED_OUT", retriable=True, now_ms=leader.now_ms)
    leader.now_ms += RETRY_BACKOFF_MS
    leader.it.proposed(change)
    assert leader.it.is_isr_uncertain
    leader.it.alter_refused(code, retriable=False, now_ms=leader.now_ms)
    assert leader.it.maximal_isr == {1, 2, 3}
    leader.append(120)
    leader.ack(2, 120)
    assert leader.it.high_watermark == 100, "broker 3 may be in sync for the controllers, and holds no more"
    leader.now_ms += RETRY_BACKOFF_MS
    assert leader.change() == change
    leader.metadata((1, 2), 8)  # the controllers have ended the partition epoch
    assert not leader.it.is_isr_uncertain
    assert leader.it.maximal_isr == {1, 2}


@pytest.mark.parametrize(
    "code", ["INELIGIBLE_REPLICA", "OPERATION_NOT_ATTEMPTED", "NOT_CONTROLLER", "SERVER_SHUTTING_DOWN"]
)
def test_a_refusal_that_says_that_nothing_was_done_ends_the_question(code):
    leader = Leader(isr=(1, 2))
    leader.join(2)
    leader.join(3)
    leader.propose()
    leader.it.alter_refused(code, retriable=False, now_ms=leader.now_ms)
    assert leader.it.maximal_isr == {1, 2}
    assert leader.change() is None
    leader.now_ms += RETRY_BACKOFF_MS
    assert leader.propose() == IsrChange(((1, 11), (2, 12), (3, 13)), 7)


@pytest.mark.parametrize("code", ["FENCED_LEADER_EPOCH", "INVALID_UPDATE_VERSION", "INVALID_REQUEST"])
def test_a_refusal_for_an_epoch_that_is_over_waits_for_the_metadata(code):
    leader = Leader(isr=(1, 2))
    leader.join(2)
    leader.join(3)
    leader.propose()
    leader.it.alter_refused(code, retriable=False, now_ms=leader.now_ms)
    leader.now_ms += LAG_MS
    assert leader.it.maximal_isr == {1, 2, 3}
    assert leader.change() is None
    leader.metadata((1, 2), 8)
    assert leader.it.maximal_isr == {1, 2}
    assert leader.propose().partition_epoch == 8


def test_newer_metadata_overtakes_a_question():
    leader = Leader(isr=(1, 2))
    leader.join(2)
    leader.join(3)
    leader.propose()
    assert leader.metadata((1,), 8)
    assert leader.it.isr == (1,)
    assert leader.it.maximal_isr == {1}


def test_older_metadata_and_older_answers_change_nothing():
    leader = Leader(isr=(1, 2))
    leader.join(2)
    leader.join(3)
    leader.propose()
    assert not leader.metadata((1,), 6)
    assert not leader.it.altered((1,), 6, 5)
    assert not leader.it.altered((1, 2, 3), 8, 4), "of another leader epoch"
    assert leader.it.isr == (1, 2)
    assert leader.it.maximal_isr == {1, 2, 3}


def test_metadata_of_the_present_epoch_does_not_end_a_question():
    leader = Leader(isr=(1, 2))
    leader.join(2)
    leader.join(3)
    leader.propose()
    assert leader.metadata((1, 2), 7)
    assert leader.it.maximal_isr == {1, 2, 3}


def test_a_late_answer_to_a_former_question_does_not_end_the_present_one():
    leader = Leader(isr=(1,), min_insync=1)
    leader.join(2)
    leader.propose()
    leader.metadata((1, 2), 8)  # the metadata log arrived before the answer
    leader.join(3)
    leader.propose()
    assert not leader.it.altered((1, 2), 8, 5)
    assert leader.it.maximal_isr == {1, 2, 3}


# -- who joins ---------------------------------------------------------------------------------------------------------


def test_a_follower_joins_at_the_high_watermark_and_not_below_the_beginning_of_the_epoch():
    leader = Leader(isr=(1,), high_watermark=60)
    leader.metadata((1,), 7, min_insync=2)  # the high watermark stays at 60
    leader.join(2, 99)
    assert leader.change() is None, "60 is not enough: a former leader may have committed up to 100"
    leader.ack(2, 100)
    assert leader.propose().members == (1, 2)


def test_a_follower_below_the_high_watermark_does_not_join():
    leader = Leader(isr=(1,), min_insync=1)
    leader.append(120)
    leader.join(2, 119)
    leader.now_ms += LAG_MS + 1
    assert leader.change() is None
    leader.ack(2, 120)
    assert leader.propose().members == (1, 2)


def test_a_follower_in_a_life_that_the_controllers_do_not_know_does_not_join():
    """KIP-903: the follower's disk was wiped and it registered again, but its stream is from before the new
    registration. Another reason for a refusal is that the follower is fenced (KIP-841)."""
    leader = Leader(isr=(1, 2))
    leader.join(2)
    leader.join(3, life=13)
    assert leader.change({1: 11, 2: 12, 3: 14}) is None
    assert leader.change({1: 11, 2: 12}) is None
    assert leader.change() is not None


def test_a_follower_whose_stream_broke_does_not_join():
    leader = Leader(isr=(1, 2))
    leader.join(2)
    leader.join(3)
    leader.it.follower_left(3, leader.now_ms)
    assert leader.change() is None


def test_who_is_no_replica_does_not_follow():
    leader = Leader(isr=(1, 2), replicas=(1, 2))
    assert not leader.join(3)
    leader.metadata((1, 2), 8, replicas=(1, 2, 3))
    assert leader.join(3)


def test_under_load_the_high_watermark_waits_for_a_follower_that_keeps_up_until_it_has_joined():
    """If the high watermark did not wait, it would always stay ahead of the follower (Kafka:
    shouldWaitForReplicaToJoinIsr)."""
    leader = Leader(isr=(1,), min_insync=1)
    leader.join(2)
    leader.append(110)
    assert leader.it.high_watermark == 110
    assert leader.change() is None
    leader.append(120)
    assert leader.it.high_watermark == 110
    leader.ack(2, 110)
    assert leader.propose().members == (1, 2)


def test_the_high_watermark_does_not_wait_for_one_that_is_far_behind_nor_for_one_that_has_stopped():
    leader = Leader(isr=(1,), min_insync=1)
    leader.append(1_000)
    leader.join(2, 200)
    assert leader.change() is None
    leader.append(1_010)
    assert leader.it.high_watermark == 1_010
    leader.ack(2, 1_010)
    leader.append(1_020)
    leader.change()
    leader.append(1_030)
    assert leader.it.high_watermark == 1_020
    leader.now_ms += LAG_MS + 1
    leader.change()
    assert leader.it.high_watermark == 1_030


# -- who leaves --------------------------------------------------------------------------------------------------------


def test_a_follower_leaves_when_it_has_not_had_the_log_s_end_for_the_lag_time():
    leader = Leader()
    leader.join(2)
    leader.join(3)
    leader.append(120)
    leader.ack(2, 120)
    assert leader.change() is None
    leader.now_ms += LAG_MS
    assert leader.change() is None
    leader.now_ms += 1
    assert leader.propose().members == (1, 2)


def test_a_follower_that_always_has_what_the_log_held_at_its_last_word_stays():
    leader = Leader(isr=(1, 2))
    leader.join(2)
    for round_number in range(10):
        leader.append(110 + 10 * round_number)
        leader.now_ms += LAG_MS // 2
        leader.ack(2, 100 + 10 * round_number)
        assert leader.change() is None


def test_a_follower_that_acknowledges_and_never_comes_nearer_leaves():
    leader = Leader(isr=(1, 2), min_insync=1)
    leader.join(2)
    leader.append(1_000)
    leader.change()
    for step in range(1, 40):
        leader.now_ms += 1_000
        leader.append(1_000 + 50 * step)
        leader.ack(2, 100 + 20 * step)
    assert leader.propose().members == (1,)


def test_hours_of_idleness_are_no_lag():
    leader = Leader()
    leader.join(2)
    leader.join(3)
    leader.now_ms += 5_000_000
    leader.append(110)
    leader.ack(2, 105)
    assert leader.change() is None
    leader.now_ms += LAG_MS
    assert leader.change() is None
    leader.now_ms += 1
    assert leader.propose().members == (1,)


def test_one_that_never_spoke_since_the_election_has_a_while_to_do_so():
    leader = Leader()
    leader.join(2)
    assert leader.change() is None
    leader.now_ms += JOIN_MS
    leader.ack(2, 100)
    assert leader.change() is None
    leader.now_ms += 1
    assert leader.propose().members == (1, 2)


def test_a_fenced_member_is_left_out_of_what_is_asked_for():
    leader = Leader()
    leader.join(2)
    leader.join(3)
    assert leader.propose({1: 11, 2: 12}).members == (1, 2)


def test_a_fenced_leader_asks_for_nothing():
    leader = Leader(isr=(1, 2))
    leader.join(3)
    assert leader.change({2: 12, 3: 13}) is None


def test_a_leader_that_recovers_says_so_first_and_alone():
    """KIP-704."""
    leader = Leader(isr=(1,), min_insync=1, recovering=True)
    leader.join(2)
    assert leader.propose() == IsrChange(((1, 11),), 7, recovering=False)
    assert leader.it.altered((1,), 8, 5, recovering=False)
    assert leader.propose() == IsrChange(((1, 11), (2, 12)), 8)


# -- lives -------------------------------------------------------------------------------------------------------------


def test_late_acknowledgements_of_a_former_life_count_for_nothing():
    """A follower restarted with an empty disk, so the records that it had acknowledged are lost (KIP-903)."""
    leader = Leader(isr=(1, 2))
    leader.join(2)
    leader.append(120)
    assert leader.join(2, 0, life=99)
    assert not leader.ack(2, 120, life=12)
    assert leader.it.high_watermark == 100
    assert not leader.join(2, 120, life=12)


# -- producers ---------------------------------------------------------------------------------------------------------


def test_an_append_is_refused_before_it_is_made_when_too_few_are_in_sync():
    leader = Leader(isr=(1,))
    with pytest.raises(NotEnoughReplicasError, match=r"orders-3.*min\.insync\.replicas=2"):
        leader.it.check_enough_in_sync()
    leader.metadata((1, 2), 8)
    leader.it.check_enough_in_sync()


def test_an_append_that_lost_its_replicas_fails_when_its_time_is_out_and_no_sooner():
    leader = Leader(isr=(1, 2))
    leader.join(2)
    outcomes: list[HeadraceError | None] = []
    leader.append(120)
    leader.it.when_committed(120, outcomes.append)
    assert isinstance(leader.it.late_error(), RequestTimedOutError)
    leader.metadata((1,), 8)
    assert isinstance(leader.it.late_error(), NotEnoughReplicasAfterAppendError)
    assert outcomes == []
    leader.metadata((1, 2), 9)
    leader.ack(2, 120)
    assert outcomes == [None]


# -- watching ----------------------------------------------------------------------------------------------------------


def test_an_idle_partition_in_sync_has_nothing_due_and_stirs_nobody():
    leader = Leader()
    leader.join(2)
    leader.join(3)
    leader.change()
    leader.stirred = 0
    assert leader.it.next_due_ms(leader.now_ms) is None
    leader.ack(2, 100)
    assert leader.stirred == 0


def test_the_keeper_is_stirred_once_when_a_follower_falls_behind_and_learns_when_to_come():
    leader = Leader()
    leader.join(2)
    leader.join(3)
    leader.change()
    leader.stirred = 0
    leader.append(110)
    leader.append(120)
    assert leader.stirred == 1
    assert leader.it.next_due_ms(leader.now_ms) == leader.now_ms
    assert leader.change() is None
    assert leader.it.next_due_ms(leader.now_ms) == leader.now_ms + LAG_MS + 1


def test_the_keeper_is_stirred_when_a_follower_has_come_up():
    leader = Leader(isr=(1, 2))
    leader.join(2)
    leader.join(3, 50)
    leader.change()
    leader.stirred = 0
    leader.ack(3, 100)
    assert leader.stirred == 1


class Lane:
    def __init__(self) -> None:
        self.outcomes: list[str] = []

    def log_grew(self, partition: TopicPartition) -> None:
        self.outcomes.append("grew")

    def high_watermark_moved(self, partition: TopicPartition) -> None:
        self.outcomes.append("moved")

    def leadership_ended(self, partition: TopicPartition) -> None:
        self.outcomes.append("ended")


def test_a_lane_hears_of_what_is_written_before_it_is_flushed():
    leader, lane = Leader(isr=(1, 2)), Lane()
    leader.join(2)
    leader.it.watch_log(lane)
    leader.append(120, flushed=False)
    assert lane.outcomes == ["grew"]
    leader.it.advanced(leader.it.log_end, 120)
    leader.ack(2, 120)
    assert lane.outcomes == ["grew", "moved"]
    leader.it.resign(NotLeaderOrFollowerError("moved"))
    assert lane.outcomes == ["grew", "moved", "ended"]


def test_who_has_resigned_commits_nothing_and_asks_for_nothing():
    leader = Leader()
    leader.join(2)
    leader.join(3)
    leader.append(120)
    leader.it.resign(NotLeaderOrFollowerError("moved"))
    leader.ack(2, 120)
    leader.ack(3, 120)
    leader.now_ms += LAG_MS + 1
    assert leader.it.high_watermark == 100
    assert leader.change() is None
    assert leader.it.next_due_ms(leader.now_ms) is None


def deletion(leader: Leader, offset: int) -> list[HeadraceError | None]:
    """The result that the waiter for a deletion receives."""
    outcomes: list[HeadraceError | None] = []
    leader.it.when_deleted(offset, outcomes.append)
    return outcomes


def test_a_deletion_waits_for_members_that_have_not_joined():
    leader = Leader()
    leader.it.advance_log_start(50)
    outcomes = deletion(leader, 50)
    for broker_id in (2, 3):
        assert (outcomes, leader.it.low_watermark, broker_id in leader.it.yet_to_delete(50)) == ([], -1, True)
        leader.it.follower_joined(
            broker_id, LIVES[broker_id], durable_end=100, log_end=100, log_start=50, now_ms=leader.now_ms
        )
    assert (outcomes, leader.it.yet_to_delete(50)) == ([None], [])


def test_a_deletion_waits_for_a_member_whose_stream_broke():
    leader = Leader()
    leader.join(2)
    leader.join(3)
    leader.it.advance_log_start(50)
    outcomes = deletion(leader, 50)
    leader.it.follower_left(3, leader.now_ms, broken=True)
    leader.it.follower_acked(2, LIVES[2], durable_end=100, log_end=100, log_start=50, now_ms=leader.now_ms)
    assert (outcomes, leader.it.yet_to_delete(50)) == ([], [3])
    leader.it.metadata_changed(isr=(1, 2), partition_epoch=8, replicas=(1, 2, 3), min_insync=1)
    assert outcomes == [None]


def test_a_deletion_ends_with_the_leadership_and_is_forgotten_when_its_caller_gives_up():
    leader = Leader()
    reason = NotLeaderOrFollowerError("another one leads")
    given_up: list[HeadraceError | None] = []
    leader.it.when_deleted(50, given_up.append)
    leader.it.forget_deletion(given_up.append)
    outcomes = deletion(leader, 50)
    leader.it.resign(reason)
    assert (given_up, outcomes, deletion(leader, 50)) == ([], [reason], [reason])


def test_deletions_wait_for_the_log_starts_of_the_replicas_that_are_there():
    leader = Leader()
    leader.join(2)
    leader.join(3)
    leader.it.advance_log_start(50)
    assert leader.it.low_watermark == 0
    for broker_id in (2, 3):
        leader.it.follower_acked(
            broker_id, LIVES[broker_id], durable_end=100, log_end=100, log_start=40 + broker_id, now_ms=leader.now_ms
        )
    assert leader.it.low_watermark == 42
    leader.it.follower_left(2, leader.now_ms)
    assert leader.it.low_watermark == 42, "it may lead next"
    leader.it.metadata_changed(isr=(1, 3), partition_epoch=8, replicas=(1, 2, 3), min_insync=1)
    assert leader.it.low_watermark == 43


def test_progress_tells_of_each_replica():
    leader = Leader(isr=(1, 2))
    leader.join(2)
    leader.append(120)
    own, second, third = leader.it.progress
    assert (own.broker_id, own.log_end, own.durable_end, own.is_in_sync) == (1, 120, 120, True)
    assert (second.durable_end, second.is_in_sync, second.is_joined) == (100, True, True)
    assert (third.durable_end, third.is_in_sync, third.is_joined) == (-1, False, False)
    assert [leader.it.is_behind(broker_id) for broker_id in (1, 2, 3)] == [False, False, True]


def test_a_duplicate_waits_for_what_was_appended_the_first_time():
    leader = Leader(isr=(1, 2))
    leader.join(2)
    leader.append(120)
    outcomes: list[str] = []
    leader.it.when_committed(120, lambda error: outcomes.append("second"))
    leader.it.when_committed(110, lambda error: outcomes.append("first again"))
    leader.ack(2, 115)
    assert outcomes == ["first again"]
    leader.ack(2, 120)
    assert outcomes == ["first again", "second"]
