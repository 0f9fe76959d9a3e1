"""The power fails before any disk operation, with any possible loss of data. The next start finds the old or the new
state, with all acknowledged entries."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from headrace_controller.raft import HardState, VoterSet
from headrace_core.errors import HeadraceError
from headrace_core.testing.crashing_fs import CrashingFileSystem, Loss, TraceEntry
from tests.worlds.storage_world import (
    KEYS,
    Model,
    Voter,
    entries_of,
    history,
    leader_change,
    open_storage,
    setting,
    small_segments,
    some_entries,
    topic,
    voters_change,
)

Story = Callable[[Voter, random.Random], None]


@pytest.fixture(autouse=True)
def _segments_of_a_few_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    small_segments(monkeypatch)


def crashed_everywhere(story: Story, rng: random.Random) -> Counter[str]:
    """Run the operations of ``story``. Before each disk operation, check the state that every kind of power loss would
    leave. Return the number of checks by kind of operation."""
    looked: Counter[str] = Counter()
    voter = Voter.new()

    def look(operation: TraceEntry) -> None:
        if operation.operation in ("open", "read", "listdir", "lock"):
            return
        for loss in Loss:
            check(voter.fs.crash_clone(rng, loss), voter, f"{voter.doing}, before {operation[1:]}, losing {loss.value}")
            looked[voter.doing.split()[0]] += 1

    voter.fs.on_operation = look
    story(voter, rng)
    voter.fs.on_operation = None
    check(voter.fs.crash_clone(rng, Loss.ALL), voter, "the end")
    return looked


def check(fs: CrashingFileSystem, voter: Voter, when: str) -> None:
    try:
        storage = open_storage(fs)
    except HeadraceError as error:
        raise AssertionError(f"{when}: {error.message}") from error
    complaints = [model.wrong(storage, end_min) for model, end_min in voter.allowed]
    assert None in complaints, f"{when}: {complaints}"
    model = voter.allowed[complaints.index(None)][0]
    end = storage.log_end_offset
    more = [leader_change(90, end, model.voters_at(end)), topic(90, end + 1)]  # the storage can continue from there
    storage.append(more)
    storage.close(clean=False)
    fs.crash()
    again = open_storage(fs)
    later = replace(model, entries=(*model.until(end), *more))
    wrong = later.wrong(again, later.end)
    assert wrong is None, f"{when}, and once more: {wrong}"
    again.close()


def test_appending_in_several_terms_and_segments(rng: random.Random) -> None:
    def story(voter: Voter, rng: random.Random) -> None:
        entries = history(rng, 30)
        while entries:
            count = rng.randrange(1, 8)
            voter.vote(HardState(entries[0].term, KEYS[0]))
            voter.append(entries[:count])
            del entries[:count]

    looked = crashed_everywhere(story, rng)
    assert looked["append"] > 100


def test_cutting_what_another_leader_overrules(rng: random.Random) -> None:
    def story(voter: Voter, rng: random.Random) -> None:
        voter.append(history(rng, 12))
        for term in (20, 30, 40):
            keep = rng.choice([entry.base_offset for entry in voter.model.entries[1:]])
            voter.truncate(keep)
            voter.append(some_entries(rng, keep, term, rng.randrange(1, 10)))
        voter.truncate(0)
        voter.append([leader_change(50, 0)])

    looked = crashed_everywhere(story, rng)
    assert looked["truncate"] > 40


def test_making_snapshots_and_trimming_the_log(rng: random.Random) -> None:
    starts = []

    def story(voter: Voter, rng: random.Random) -> None:
        voter.append(history(rng, 6))
        for _ in range(3):
            starts.append(voter.snapshot(voter.model.end))
            voter.append(some_entries(rng, voter.model.end, voter.model.entries[-1].term, 6))

    looked = crashed_everywhere(story, rng)
    assert looked["write"] > 10
    assert looked["finish"] > 30
    assert starts[0] is None
    assert [start is not None for start in starts[1:]] == [True, True]


def test_taking_a_snapshot_in_place_of_a_log_that_is_behind(rng: random.Random) -> None:
    def story(voter: Voter, rng: random.Random) -> None:
        leaders = Model(tuple(history(rng, 14)))
        voter.append(leaders.entries[:3])
        voter.install(leaders, leaders.end, chunk_bytes=400)
        voter.append(some_entries(rng, leaders.end, 60, 3))

    looked = crashed_everywhere(story, rng)
    assert looked["chunk"] > 10
    assert looked["install"] > 30


def test_taking_a_snapshot_in_place_of_a_log_that_has_gone_another_way(rng: random.Random) -> None:
    """The log reaches beyond the received snapshot, with entries that were never committed. The replica also has its
    own snapshot."""

    def story(voter: Voter, rng: random.Random) -> None:
        common = history(rng, 5)
        end = common[-1].next_offset
        leaders = Model((*common, *some_entries(rng, end, 50, 5)))
        voter.append(common)
        voter.snapshot(end)
        voter.append([setting(40, end + number, 30) for number in range(leaders.end - end + 15)])
        voter.install(leaders, leaders.end, chunk_bytes=10_000)
        voter.append([voters_change(51, leaders.end, VoterSet.of(KEYS[:2]))])

    looked = crashed_everywhere(story, rng)
    assert looked["install"] > 50


def test_opening_again_after_a_clean_stop_and_after_none(rng: random.Random) -> None:
    def story(voter: Voter, rng: random.Random) -> None:
        voter.append(history(rng, 6))
        voter.snapshot(voter.model.end)
        voter.reopen(clean=True)
        voter.append(some_entries(rng, voter.model.end, 70, 4))
        voter.snapshot(voter.model.end)
        voter.reopen(clean=False)

    looked = crashed_everywhere(story, rng)
    assert looked["close"] > 10


def test_any_story(rng: random.Random) -> None:
    """All operations in random order: without a check at each step, but sometimes with a real crash."""
    done: Counter[str] = Counter()
    for _ in range(12):
        voter = Voter.new()
        term = 1
        for _ in range(25):
            term += rng.random() < 0.3
            what = rng.choice(["append", "append", "append", "truncate", "snapshot", "install", "crash", "vote"])
            model = voter.model
            if what == "append":
                voter.append(some_entries(rng, model.end, term, rng.randrange(1, 6)))
                term = voter.model.entries[-1].term
            elif what == "truncate":
                borders = [entry.base_offset for entry in model.entries if entry.base_offset >= model.snapshot]
                if not borders:
                    continue
                voter.truncate(rng.choice(borders))
            elif what == "snapshot":
                if model.end == model.snapshot:
                    continue
                voter.snapshot(model.end)
            elif what == "install":
                term += 1
                at = rng.choice(
                    [model.snapshot, *(e.next_offset for e in model.entries if e.next_offset > model.snapshot)]
                )
                leaders = Model((*model.until(at), *some_entries(rng, at, term, rng.randrange(1, 8))))
                term = leaders.entries[-1].term
                if model.has(leaders.place(leaders.end)):
                    continue
                voter.install(leaders, leaders.end, chunk_bytes=rng.randrange(50, 2_000))
            elif what == "vote":
                voter.vote(HardState(term, rng.choice(KEYS)))
            else:
                voter.fs.crash(rng, rng.choice(list(Loss)))
                voter.storage = open_storage(voter.fs)
            done[what] += 1
            wrong = voter.model.wrong(voter.storage, voter.model.end)
            assert wrong is None, f"after {voter.doing}, {what}: {wrong}"
    assert set(done) == {"append", "truncate", "snapshot", "install", "crash", "vote"}


def test_entries_of_many_blocks_any_of_which_may_have_reached_the_disk(
    rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The remainder of a large append after an ordinary power loss is truncated, and never reported as damage."""
    small_segments(monkeypatch, 60_000)
    torn = 0
    for _ in range(12):
        voter = Voter.new()
        voter.append(history(rng, 2))
        at = voter.model.end
        some = [setting(80, at + number, rng.choice((1, 50, 3_000, 9_000))) for number in range(9)]

        def look(operation: TraceEntry, voter: Voter = voter) -> None:
            nonlocal torn
            if operation.operation == "sync" and operation.path.endswith(".log"):
                for loss in (Loss.BLOCKS, Loss.PREFIX) * 15:
                    check(voter.fs.crash_clone(rng, loss), voter, f"{voter.doing}, losing {loss.value}")
                    torn += 1

        voter.fs.on_operation = look
        voter.append(some)
    assert torn >= 12 * 30


def test_two_voters_with_the_same_entries_have_the_same_bytes(rng: random.Random) -> None:
    """The bytes are equal for entries that were appended alone or together, after a truncation of the log, and with
    restarts between the appends."""
    entries = history(rng, 20)
    first, second = Voter.new(), Voter.new()
    first.append(entries)
    second.append(some_entries(rng, 0, 1, 4))
    second.truncate(0)
    rest = list(entries)
    while rest:
        count = rng.randrange(1, 5)
        second.append(rest[:count])
        del rest[:count]
        if rng.random() < 0.3:
            second.reopen(clean=rng.random() < 0.5)
    for voter in (first, second):
        voter.snapshot(entries[-1].next_offset)
        assert list(entries_of(voter.storage, voter.storage.stored(VoterSet.of([])))) == entries
    stored = [
        b"".join(data for path, data in sorted(voter.fs.files().items()) if path.endswith(".log"))
        for voter in (first, second)
    ]
    assert stored[0] == stored[1] == b"".join(entry.data for entry in entries)
    snapshots = [
        {path: data for path, data in voter.fs.files().items() if path.endswith(".checkpoint")}
        for voter in (first, second)
    ]
    assert snapshots[0] == snapshots[1]
    assert len(snapshots[0]) == 2
