"""Raft with one guard removed (tests/simulation/mutants/raft_without_guards.py), and the simulator must detect each
mutant."""

from __future__ import annotations

from headrace_controller import quorum_controller
from headrace_controller.raft import RaftNode
from tests.simulation.mutants import raft_without_guards as broken
from tests.simulation.mutants.mutant import Mutant, Patch
from tests.worlds import raft_world

#: The classes that break a promise which schedules check. (Tests in tests/unit/controller detect classes that only
#: waste time, for example by sending a chunk twice.)
CLASSES: tuple[type[RaftNode], ...] = (
    broken.ForgetsItsVote,
    broken.ForgetsItsTerm,
    broken.VotesForAnybody,
    broken.VotesTwice,
    broken.CommitsWhatOthersProposed,
    broken.CountsWhatItHasNotWritten,
    broken.AnswersBeforeItsDisk,
    broken.DoesNotCompareLogs,
    broken.CommitsWhatItHasNotCompared,
    broken.ChangesVotersWhileTheyChange,
    broken.TakesMailOfAnotherDisk,
    broken.ReadsWithoutAsking,
    broken.ReadsBeforeItsTerm,
    broken.CountsOldRounds,
    broken.StandsOnlyWhileItVotes,
    broken.RaisesItsTermWhenItLosesTheLeader,
    broken.KeepsTheShortTimeout,
    broken.NeverTellsAStaleLeader,
    broken.NeverDoubtsItself,
    broken.HearsOldAnswers,
    broken.NeverGoesBackToASnapshot,
    broken.InstallsWhatItHas,
    broken.KeepsVotersThatWereCut,
    broken.RemembersNobody,
    broken.VotesBeforeItIsTold,
)
#: Mutants whose schedules have only a story that is written for them.
FAULTS: dict[type[RaftNode], tuple[str, ...]] = {
    broken.RemembersNobody: ("older_copy",),
    broken.VotesBeforeItIsTold: ("older_copy",),
}

MUTANTS = tuple(
    Mutant(
        each.__name__,
        (each.__doc__ or "").strip(),
        5,
        (Patch(quorum_controller, "RaftNode", each), Patch(raft_world, "NODE_CLASS", each)),
        faults=FAULTS.get(each, ()),
    )
    for each in CLASSES
)
