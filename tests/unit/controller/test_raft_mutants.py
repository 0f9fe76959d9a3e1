"""Raft with one guard removed at a time (raft_without_guards.py): the schedules and the tests must detect each mutant;
otherwise they prove nothing."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from headrace_controller.raft import HeartbeatResponse, RaftNode
from headrace_core.errors import OutdatedVoterError
from tests.simulation.mutants import raft_without_guards as broken
from tests.unit.controller import test_older_copies as copies
from tests.unit.controller import test_raft_lost_connections as connections
from tests.unit.controller import test_raft_more_traps as more
from tests.unit.controller import test_raft_traps as stories
from tests.unit.controller.raft_schedule import Schedule
from tests.worlds import raft_world

SCHEDULES_MAX = int(os.environ.get("HEADRACE_RAFT_SCHEDULES", "400"))

#: Mutants that schedules detect, within SCHEDULES_MAX of them.
BY_SCHEDULES: tuple[type[RaftNode], ...] = (
    broken.ForgetsItsTerm,
    broken.VotesForAnybody,
    broken.VotesTwice,
    broken.AnswersBeforeItsDisk,
    broken.DoesNotCompareLogs,
    broken.CommitsWhatItHasNotCompared,
    broken.TakesMailOfAnotherDisk,
    broken.ReadsWithoutAsking,
    broken.ReadsBeforeItsTerm,
    broken.StandsOnlyWhileItVotes,
    broken.NeverDoubtsItself,
    broken.NeverGoesBackToASnapshot,
    broken.InstallsWhatItHas,
)

#: For a mutant that is hard to detect, the schedule that last detected it is tried first. If that schedule no longer
#: detects the mutant, the test searches for another schedule.
KILLED_BY: dict[type[RaftNode], int] = {
    broken.ForgetsItsTerm: 90,
    broken.InstallsWhatItHas: 257,
    broken.ReadsWithoutAsking: 423,
    broken.StandsOnlyWhileItVotes: 273,
}

#: Mutants that a test written for them detects. (The simulator must detect these mutants too; the random schedules of
#: this test are too coarse.)
BY_STORIES: tuple[tuple[type[RaftNode], Callable[[], None]], ...] = (
    (broken.ForgetsItsVote, stories.test_a_voter_says_yes_once_in_a_term_also_after_a_restart),
    (broken.CountsWhatItHasNotWritten, stories.test_a_sole_voter_commits_nothing_that_its_own_disk_may_lose),
    (broken.CommitsWhatOthersProposed, stories.test_an_entry_of_an_earlier_term_is_not_committed_by_counting),
    (broken.ChangesVotersWhileTheyChange, stories.test_voters_change_one_at_a_time_and_not_before_the_leader_knows),
    (broken.CountsOldRounds, stories.test_an_answer_from_before_a_read_proves_nothing),
    (
        broken.RaisesItsTermWhenItLosesTheLeader,
        lambda: connections.test_a_flapping_connection_never_makes_the_term_grow(0),
    ),
    (broken.KeepsTheShortTimeout, connections.test_a_leader_that_is_back_is_given_the_whole_time_out_again),
    (broken.MixesTheSnapshotsOfTwoLeaders, more.test_the_snapshots_of_two_leaders_are_not_mixed),
    (broken.DoublesChunksWithEveryHeartbeat, more.test_a_chunk_with_a_slow_disk_is_not_sent_again_with_every_heartbeat),
    (broken.ForgetsWhoFollows, more.test_the_next_leader_knows_who_follows_without_a_vote),
    (broken.ChangesVotersWhileItHandsOver, more.test_voters_do_not_change_while_the_leader_hands_over),
    (broken.VotesOnlyWhenItKnowsThatItMay, more.test_a_voter_that_does_not_know_yet_that_it_votes_votes),
    (
        broken.HandsOverForEver,
        more.test_a_leader_that_was_deposed_while_it_handed_over_takes_writes_when_it_leads_again,
    ),
    (broken.KeepsTermsToItself, more.test_a_pre_vote_spreads_the_term_of_who_says_no),
    (broken.GoesWithoutAnHeir, more.test_a_leader_that_removes_itself_leaves_no_gap),
    (broken.NeverTellsAStaleLeader, stories.test_a_replica_that_returns_with_a_higher_term_is_taken_back),
    (broken.HearsOldAnswers, lambda: stories.test_old_answers_that_arrive_late_keep_no_leader(HeartbeatResponse)),
    (broken.RemembersNobody, copies.test_a_voter_that_lost_its_vote_is_stopped),
    (
        broken.VotesBeforeItIsTold,
        copies.test_a_started_voter_answers_no_vote_request_before_the_others_have_answered,
    ),
    (broken.CountsACopy, copies.test_a_copy_does_not_count_for_commits),
    (broken.KeepsVotersThatWereCut, stories.test_a_set_of_voters_that_is_cut_off_again_does_not_count),
)


@pytest.mark.parametrize("mutant", BY_SCHEDULES, ids=lambda mutant: mutant.__name__)
def test_a_guard_that_is_removed_is_missed(mutant: type[RaftNode]) -> None:
    for seed in (KILLED_BY.get(mutant, 0), *range(SCHEDULES_MAX)):
        try:
            Schedule(seed, mutant).run()
        except (AssertionError, OutdatedVoterError) as error:  # a check of this test, or an assertion of the product
            print(f"{mutant.__name__}: killed by seed {seed}: {str(error)[:160]}")
            return
    raise AssertionError(f"{mutant.__name__} ({mutant.__doc__}) survived {SCHEDULES_MAX} schedules")


@pytest.mark.parametrize(("mutant", "story"), BY_STORIES, ids=lambda item: item.__name__.strip("<>"))
def test_a_story_misses_its_guard(
    mutant: type[RaftNode], story: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    story()
    monkeypatch.setattr(raft_world, "NODE_CLASS", mutant)
    with pytest.raises((AssertionError, OutdatedVoterError, pytest.fail.Exception)):
        story()
