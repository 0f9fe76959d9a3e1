"""Raft with one guard removed (tests/simulation/mutants/raft_without_guards.py), for the simulator to notice."""

from __future__ import annotations

from headrace_controller import quorum_controller
from headrace_controller.raft import RaftNode
from tests.simulation.mutants.mutant import Mutant, Patch
from tests.simulation.mutants.raft_without_guards import (
    AnswersBeforeItsDisk,
    ChangesVotersWhileTheyChange,
    CommitsWhatItHasNotCompared,
    CommitsWhatOthersProposed,
    CountsOldRounds,
    CountsWhatItHasNotWritten,
    DoesNotCompareLogs,
    ForgetsItsTerm,
    ForgetsItsVote,
    HearsOldAnswers,
    InstallsWhatItHas,
    KeepsTheShortTimeout,
    KeepsVotersThatWereCut,
    NeverDoubtsItself,
    NeverGoesBackToASnapshot,
    NeverTellsAStaleLeader,
    RaisesItsTermWhenItLosesTheLeader,
    ReadsBeforeItsTerm,
    ReadsWithoutAsking,
    StandsOnlyWhileItVotes,
    TakesMailOfAnotherDisk,
    VotesForAnybody,
    VotesTwice,
)

#: The classes that break a promise visible to schedules. (Classes that only waste time, such as a chunk sent twice, are
#: caught by stories in tests/unit/controller.)
CLASSES: tuple[type[RaftNode], ...] = (
    ForgetsItsVote,
    ForgetsItsTerm,
    VotesForAnybody,
    VotesTwice,
    CommitsWhatOthersProposed,
    CountsWhatItHasNotWritten,
    AnswersBeforeItsDisk,
    DoesNotCompareLogs,
    CommitsWhatItHasNotCompared,
    ChangesVotersWhileTheyChange,
    TakesMailOfAnotherDisk,
    ReadsWithoutAsking,
    ReadsBeforeItsTerm,
    CountsOldRounds,
    StandsOnlyWhileItVotes,
    RaisesItsTermWhenItLosesTheLeader,
    KeepsTheShortTimeout,
    NeverTellsAStaleLeader,
    NeverDoubtsItself,
    HearsOldAnswers,
    NeverGoesBackToASnapshot,
    InstallsWhatItHas,
    KeepsVotersThatWereCut,
)

MUTANTS = tuple(
    Mutant(
        each.__name__,
        (each.__doc__ or "").strip(),
        5,
        (Patch(quorum_controller, "RaftNode", each),),
    )
    for each in CLASSES
)
