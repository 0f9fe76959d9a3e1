"""One shard claims, replays and serves, and responds only after the commit of the decisions on which a response
depends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from headrace_coordinator.runtime.claims import Claim, decode_claim, encode_claim, is_claim
from headrace_coordinator.runtime.shard import (
    ANY_END,
    APPEND_BYTES_MAX,
    BATCH_BYTES_MAX,
    PAUSE_MS,
    PAUSE_MS_MAX,
    Answer,
    Append,
    Became,
    Pause,
    Replay,
    Shard,
    ShardState,
    Tell,
)
from headrace_coordinator.state_machine import Decision, Push, ShardRecord
from headrace_core.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    CorruptLogError,
    FencedShardEpochError,
    HeadraceError,
    NotCoordinatorError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    RecordTooLargeError,
    RequestTimedOutError,
    ServerBusyError,
    UnexpectedLogEndError,
    UnknownMemberIdError,
    UnknownServerError,
)
from headrace_core.records import encode_batch
from headrace_core.unexpected import request_id_of

CLAIM = Claim(shard_epoch=3, coordinator_id=1, coordinator_epoch=77)


def encoded(batch: Sequence[ShardRecord]) -> bytes:
    return encode_batch(((0, record.key, record.value, None) for record in batch), base_sequence=3)


class Notes:
    """A state machine that records its calls: a dict, and the order of the requests."""

    def __init__(self) -> None:
        self.notes: dict[bytes, bytes] = {}
        self.loads = 0
        self.due: int | None = None

    def replay(self, key: bytes, value: bytes | None, timestamp_ms: int) -> None:
        if key == b"unreadable":
            raise CorruptLogError("unreadable")
        if value is None:
            self.notes.pop(key, None)
        else:
            self.notes[key] = value

    def loaded(self, now_ms: int) -> Decision:
        self.loads += 1
        return Decision()

    def handle(self, request: Any, now_ms: int) -> Decision:
        verb, *arguments = request
        if verb == "read":
            return Decision(reply=self.notes.get(arguments[0]))
        if verb == "refuse":
            raise UnknownMemberIdError("you are not of us")
        if verb == "bug":
            raise ZeroDivisionError("a mistake in the state machine")
        key, value = arguments[:2]
        self.notes[key] = value
        pushes = (Push("g", "m", key),) if verb == "push" else ()
        return Decision((ShardRecord(key, value),), reply=("written", key), pushes=pushes)

    def tick(self, now_ms: int) -> Decision:
        self.due = None
        return self.handle(("write", b"tick", str(now_ms).encode()), now_ms)

    def next_due_ms(self) -> int | None:
        return self.due


class Scene:
    """A shard with its shell. Ready messages are kept by kind, and the test writes the log."""

    def __init__(self, **options: Any) -> None:
        self.state_machines: list[Notes] = []
        self.log: list[tuple[bytes, bytes | None]] = []
        self.appends: list[Append] = []
        self.replays: list[Replay] = []
        self.pauses: list[Pause] = []
        self.answers: dict[object, Any] = {}
        self.pushed: list[Push] = []
        self.states: list[ShardState] = []
        self.failures: list[Exception] = []  # which the runner logs
        self.shard = Shard("shard-7", CLAIM, self._new_state_machine, **options)
        self.turn()

    def _new_state_machine(self) -> Notes:
        self.state_machines.append(Notes())
        return self.state_machines[-1]

    def turn(self) -> None:
        for action in self.shard.ready():
            match action:
                case Append():
                    self.appends.append(action)
                case Replay():
                    self.replays.append(action)
                case Pause():
                    self.pauses.append(action)
                case Answer(ticket, outcome):
                    assert ticket not in self.answers, "a request is answered once"
                    self.answers[ticket] = outcome
                case Tell(pushes):
                    self.pushed += pushes
                case Became(state, error):
                    self.states.append(state)
                    self.failures += [error] if error is not None else []

    def ask(self, ticket: object, *request: Any) -> None:
        self.shard.ask(ticket, request, 1_000)
        self.turn()

    def commit(self) -> None:
        """The oldest append is committed."""
        append = self.appends.pop(0)
        assert append.expected_end in (ANY_END, len(self.log))
        base = len(self.log)
        self.log += [(record.key, record.value) for batch in append.batches for record in batch]
        self.shard.appended(append.attempt, base)
        self.turn()

    def fail(self, error: HeadraceError, *, written: bool = False) -> None:
        append = self.appends.pop(0)
        if written:
            self.log += [(record.key, record.value) for batch in append.batches for record in batch]
        self.shard.append_failed(append.attempt, error)
        self.turn()

    def replay(self) -> None:
        replay = self.replays.pop(0)
        self.shard.replayed(replay.attempt, [(key, value, 5) for key, value in self.log[: replay.end]])
        self.shard.replay_ended(replay.attempt, 900)
        self.turn()

    def resume(self) -> None:
        self.shard.resume(self.pauses.pop(0).attempt)
        self.turn()

    def load(self) -> Scene:
        self.commit()
        self.replay()
        assert self.shard.state is ShardState.SERVING
        return self

    def reload(self) -> None:
        self.resume()
        self.load()


# -- claim and replay -------------------------------------------------------------------------------------------------


def test_a_shard_claims_replays_up_to_its_claim_and_only_then_serves() -> None:
    scene = Scene()
    scene.log = [(b"a", b"1"), (b"b", b"2"), (b"a", None)]
    (append,) = scene.appends
    assert append == (1, ((encode_claim(CLAIM),),), ANY_END)
    scene.ask("early", "read", b"a")
    assert isinstance(scene.answers["early"], CoordinatorLoadInProgressError)
    scene.commit()
    assert [each.end for each in scene.replays] == [4]
    scene.ask("still early", "read", b"a")
    assert isinstance(scene.answers["still early"], CoordinatorLoadInProgressError)
    assert scene.shard.next_due_ms() is None
    scene.replay()
    assert scene.states == [ShardState.REPLAYING, ShardState.SERVING]
    assert scene.state_machines[-1].notes == {b"b": b"2"}
    assert scene.state_machines[-1].loads == 1
    scene.ask("read", "read", b"b")
    assert scene.answers["read"] == b"2"


def test_the_claim_says_who_and_under_which_epoch_and_a_newer_one_may_say_more() -> None:
    record = encode_claim(CLAIM)
    assert record.key == (1000).to_bytes(2, "big")
    assert is_claim(record.key)
    assert not is_claim(b"\x00\x01g")
    assert not is_claim(b"")
    assert decode_claim(record.value or b"") == CLAIM
    more = (record.value or b"")[:2] + b"\x94" + (record.value or b"")[3:] + b"\x07"
    assert decode_claim(more) == CLAIM
    with pytest.raises(CorruptLogError, match="claim"):
        decode_claim(b"\x00\x00\xc1")


def test_a_claim_that_fails_is_tried_again_after_pauses_that_grow() -> None:
    scene = Scene()
    delays = []
    for _ in range(9):
        scene.fail(NotEnoughReplicasError("two of three are away"))
        delays.append(scene.pauses[0].delay_ms)
        scene.resume()
    assert delays[:3] == [PAUSE_MS, 2 * PAUSE_MS, 4 * PAUSE_MS]
    assert delays[-1] == PAUSE_MS_MAX
    scene.load()


def test_a_log_that_cannot_be_replayed_is_replayed_again() -> None:
    scene = Scene()
    scene.log = [(b"unreadable", b"1")]
    scene.commit()
    replay = scene.replays.pop()
    scene.shard.replayed(replay.attempt, [(b"unreadable", b"1", 5)])
    scene.shard.replay_ended(replay.attempt, 900)  # the shell had not learned it
    scene.turn()
    assert scene.shard.state is ShardState.CLAIMING
    scene.resume()
    scene.commit()
    scene.shard.replay_failed(scene.replays.pop().attempt, NotLeaderOrFollowerError("gone"))
    scene.turn()
    assert len(scene.pauses) == 1


# -- serving ----------------------------------------------------------------------------------------------------------


def test_nobody_is_answered_and_nothing_pushed_before_the_commit() -> None:
    scene = Scene().load()
    scene.ask("w", "push", b"a", b"1")
    assert not scene.answers
    assert not scene.pushed
    scene.commit()
    assert scene.answers == {"w": ("written", b"a")}
    assert scene.pushed == [Push("g", "m", b"a")]


def test_what_is_asked_while_an_append_is_under_way_flies_together_in_the_next() -> None:
    scene = Scene().load()
    for number in range(5):
        scene.ask(number, "write", b"%d" % number, b"x")
    assert len(scene.appends) == 1
    scene.commit()
    assert list(scene.answers) == [0]
    (append,) = scene.appends
    assert [record.key for record in append.batches[0]] == [b"1", b"2", b"3", b"4"]
    assert append.expected_end == len(scene.log)
    scene.commit()
    assert list(scene.answers) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("question", [("read", b"a"), ("refuse",)])
def test_an_answer_without_records_waits_for_what_it_rests_on(question: tuple[Any, ...]) -> None:
    scene = Scene().load()
    scene.ask("w1", "write", b"a", b"1")
    scene.ask("q1", *question)  # depends on the append in flight
    scene.ask("w2", "write", b"a", b"2")
    scene.ask("q2", *question)  # depends on decisions that wait for the next append
    assert not scene.answers
    scene.commit()
    assert list(scene.answers) == ["w1", "q1"]
    scene.commit()
    assert list(scene.answers) == ["w1", "q1", "w2", "q2"]
    scene.ask("q3", *question)  # depends only on committed decisions
    assert "q3" in scene.answers
    if question[0] == "refuse":
        assert all(isinstance(scene.answers[each], UnknownMemberIdError) for each in ("q1", "q2", "q3"))


def test_what_time_demands_is_appended_and_answers_nobody() -> None:
    scene = Scene().load()
    scene.state_machines[-1].due = 5_000
    assert scene.shard.next_due_ms() == 5_000
    scene.shard.tick(5_001)
    scene.turn()
    assert scene.shard.next_due_ms() is None
    scene.commit()
    assert scene.log[-1] == (b"tick", b"5001")
    assert not scene.answers


def test_a_decision_is_never_cut_and_one_of_independent_records_is() -> None:
    scene = Scene().load()
    half = b"x" * (BATCH_BYTES_MAX // 2 - 10)
    scene.ask("first", "write", b"a", b"1")
    state_machine = scene.state_machines[-1]
    together = tuple(ShardRecord(b"t%d" % number, half) for number in range(2))
    apart = tuple(ShardRecord(b"s%d" % number, half) for number in range(5))
    state_machine.handle = lambda request, now_ms: request  # type: ignore[assignment, method-assign]
    for ticket, decision in (
        ("half", Decision((ShardRecord(b"h", half),))),
        ("together", Decision(together)),
        ("apart", Decision(apart, is_atomic=False)),
    ):
        scene.shard.ask(ticket, decision, 0)
    appends = []
    while scene.appends:
        appends.append([[record.key for record in batch] for batch in scene.appends[0].batches])
        scene.commit()
    assert appends[1:] == [[[b"h"], [b"t0", b"t1"]], [[b"s0", b"s1"], [b"s2"]], [[b"s3", b"s4"]]]
    assert {"half", "together", "apart"} <= scene.answers.keys()


def test_what_gathers_during_an_append_is_divided_into_appends_that_a_leader_accepts() -> None:
    scene = Scene().load()
    scene.ask("first", "write", b"a", b"1")
    count, value = 40, b"x" * 100_000
    for number in range(count):
        scene.ask(number, "write", b"%d" % number, value)
    sizes = []
    for _ in range(count):
        scene.commit()
        if not scene.appends:
            break
        assert len(scene.answers) < count, "the last requests wait for the last append"
        sizes.append(sum(len(encoded(batch)) for batch in scene.appends[0].batches))
    assert sum(sizes) > count * len(value)
    assert max(sizes) <= APPEND_BYTES_MAX
    assert list(scene.answers) == ["first", *range(count)], "answers keep the order of the requests"


def test_tombstones_that_need_several_appends_are_answered_after_the_last_one() -> None:
    scene = Scene().load()
    keys = [b"%d" % number + b"k" * 60 for number in range(2 * APPEND_BYTES_MAX // 60)]
    scene.state_machines[-1].handle = lambda request, now_ms: request  # type: ignore[assignment, method-assign]
    scene.shard.ask("gone", Decision(tuple(ShardRecord(key, None) for key in keys), "done", is_atomic=False), 0)
    scene.turn()
    while scene.appends:
        assert "gone" not in scene.answers
        assert sum(len(encoded(batch)) for batch in scene.appends[0].batches) <= APPEND_BYTES_MAX
        scene.commit()
    assert scene.answers == {"gone": "done"}
    assert [key for key, _ in scene.log if not is_claim(key)] == keys


def test_a_failed_append_fails_the_requests_of_all_later_appends_too() -> None:
    scene = Scene().load()
    for number in range(30):
        scene.ask(number, "write", b"%d" % number, b"x" * 100_000)
    scene.fail(NotEnoughReplicasError("too few"))
    assert list(scene.answers) == list(range(30))
    assert {type(each) for each in scene.answers.values()} == {CoordinatorNotAvailableError}
    assert not scene.appends


def test_more_than_fits_is_refused_before_it_is_decided() -> None:
    scene = Scene(gathered_bytes_max=100).load()
    scene.ask("flies", "write", b"a", b"x" * 90)
    scene.ask("waits", "write", b"b", b"x" * 120)
    scene.ask("refused", "write", b"c", b"1")
    assert isinstance(scene.answers["refused"], ServerBusyError)
    assert b"c" not in scene.state_machines[-1].notes
    scene.commit()
    scene.commit()
    scene.ask("again", "write", b"c", b"1")
    scene.commit()
    assert scene.answers["again"] == ("written", b"c")


def test_back_pressure_refuses_clients_and_never_the_news_of_the_coordinator_itself() -> None:
    scene = Scene(gathered_bytes_max=100).load()
    scene.ask("flies", "write", b"a", b"x" * 90)
    scene.ask("waits", "write", b"b", b"x" * 120)
    scene.ask("refused", "read", b"a")
    assert isinstance(scene.answers["refused"], ServerBusyError)
    scene.ask(None, "write", b"news", b"1")
    assert scene.state_machines[-1].notes[b"news"] == b"1"
    scene.commit()
    scene.commit()
    assert (b"news", b"1") in scene.log


@pytest.mark.parametrize("verb", ["read", "refuse"])
def test_a_fenced_answer_waits_for_an_append_that_was_sent_after_its_question(verb: str) -> None:
    scene = Scene().load()
    scene.ask("flies", "write", b"a", b"1")
    scene.shard.ask("fenced", (verb, b"a"), 1_000, is_fenced=True)
    scene.shard.ask("also", (verb, b"a"), 1_000, is_fenced=True)
    scene.commit()
    assert "fenced" not in scene.answers, "the append under way was sent before it was asked"
    (append,) = scene.appends
    assert [[record.key for record in batch] for batch in append.batches] == [[encode_claim(CLAIM).key]]
    scene.commit()
    assert {"fenced", "also"} <= scene.answers.keys()


def test_a_fenced_answer_is_refused_once_a_successor_has_claimed() -> None:
    scene = Scene().load()
    scene.shard.ask("fenced", ("read", b"a"), 1_000, is_fenced=True)
    scene.turn()
    scene.fail(FencedShardEpochError("epoch 4 has claimed"))
    assert isinstance(scene.answers["fenced"], NotCoordinatorError)
    assert scene.shard.state is ShardState.FENCED


# -- what fails -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [NotEnoughReplicasError("who knows"), RequestTimedOutError("who knows")])
@pytest.mark.parametrize("written", [False, True])
def test_an_append_whose_outcome_is_unknown_is_looked_up_in_the_log(written: bool, error: HeadraceError) -> None:
    scene = Scene().load()
    scene.ask("kept", "write", b"k", b"1")
    scene.commit()
    scene.ask("w", "push", b"a", b"1")
    scene.ask("r", "read", b"a")
    scene.ask("next", "push", b"b", b"1")
    scene.fail(error, written=written)
    for ticket in ("w", "r", "next"):
        assert isinstance(scene.answers[ticket], CoordinatorNotAvailableError), ticket
    assert not scene.pushed
    assert scene.shard.state is ShardState.CLAIMING
    scene.reload()
    assert scene.state_machines[-1].notes == ({b"k": b"1", b"a": b"1"} if written else {b"k": b"1"})
    assert scene.shard.claim.shard_epoch == 3


def test_what_was_committed_before_a_failure_is_still_reported() -> None:
    scene = Scene().load()
    scene.ask("w", "push", b"a", b"1")
    append = scene.appends.pop()
    scene.log.append((b"a", b"1"))
    scene.shard.appended(append.attempt, len(scene.log) - 1)
    scene.shard.ask("bug", ("bug",), 0)  # before the shell took the ready messages
    scene.turn()
    assert scene.answers["w"] == ("written", b"a")
    assert scene.pushed == [Push("g", "m", b"a")]
    answer = scene.answers["bug"]
    assert isinstance(answer, UnknownServerError)
    assert request_id_of(scene.failures[-1]) in str(answer)


def test_news_of_a_former_attempt_is_passed_over() -> None:
    scene = Scene().load()
    scene.ask("w", "write", b"a", b"1")
    late = scene.appends[0]
    scene.ask("bug", "bug")
    assert isinstance(scene.answers["w"], UnknownServerError)
    scene.appends.clear()
    scene.resume()
    scene.shard.appended(late.attempt, 1)
    scene.shard.append_failed(late.attempt, FencedShardEpochError("of long ago"))
    scene.shard.replayed(late.attempt, [(b"ghost", b"1", 5)])
    scene.shard.replay_ended(late.attempt, 5)
    scene.shard.replay_failed(late.attempt, CorruptLogError("of long ago"))
    scene.shard.resume(late.attempt)
    scene.turn()
    assert scene.shard.state is ShardState.CLAIMING
    assert len(scene.appends) == 1
    scene.load()
    assert scene.state_machines[-1].notes == {}


def test_somebody_elses_record_in_between_means_replay() -> None:
    scene = Scene().load()
    scene.ask("w", "write", b"a", b"1")
    append = scene.appends.pop()
    scene.log += [(b"foreign", b"1"), (b"a", b"1")]
    scene.shard.appended(append.attempt, len(scene.log) - 1)
    scene.turn()
    assert isinstance(scene.answers["w"], CoordinatorNotAvailableError)
    scene.reload()
    assert scene.state_machines[-1].notes == {b"foreign": b"1", b"a": b"1"}


def test_a_wrong_end_means_replay_and_a_smaller_epoch_means_the_end() -> None:
    scene = Scene().load()
    scene.ask("w", "write", b"a", b"1")
    scene.fail(UnexpectedLogEndError("it ends elsewhere"))
    scene.reload()
    scene.ask("w2", "write", b"a", b"1")
    scene.ask("w3", "write", b"a", b"2")
    scene.fail(FencedShardEpochError("another one has claimed it"))
    assert isinstance(scene.answers["w2"], NotCoordinatorError)
    assert isinstance(scene.answers["w3"], NotCoordinatorError)
    assert scene.shard.state is ShardState.FENCED
    scene.ask("late", "read", b"a")
    assert isinstance(scene.answers["late"], NotCoordinatorError)
    assert not scene.appends
    assert not scene.pauses
    scene.shard.resign()
    scene.turn()
    assert scene.states[-1] is ShardState.FENCED


@pytest.mark.parametrize(
    ("error", "meant"),
    [
        (NotLeaderOrFollowerError("moved"), NotCoordinatorError),
        (NotEnoughReplicasError("few"), CoordinatorNotAvailableError),
        (RecordTooLargeError("large"), UnknownServerError),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else value.code,
)
def test_clients_hear_of_a_failed_append_what_kafkas_coordinator_says(error: HeadraceError, meant: type) -> None:
    scene = Scene().load()
    scene.ask("w", "write", b"a", b"1")
    scene.fail(error)
    assert isinstance(scene.answers["w"], meant)


@pytest.mark.parametrize("moment", ["claiming", "pausing", "replaying", "serving", "appending"])
def test_a_shard_resigns_at_any_moment_and_says_so_to_all_who_wait(moment: str) -> None:
    scene = Scene()
    if moment == "pausing":
        scene.fail(NotEnoughReplicasError("few"))
    if moment == "replaying":
        scene.commit()
    if moment in ("serving", "appending"):
        scene.load()
    if moment == "appending":
        scene.ask("flies", "push", b"a", b"1")
        scene.ask("waits", "push", b"b", b"1")
    scene.shard.resign()
    scene.turn()
    assert scene.shard.state is ShardState.RESIGNED
    if moment == "appending":
        assert {type(each) for each in scene.answers.values()} == {NotCoordinatorError}
        assert len(scene.answers) == 2
    scene.ask("late", "read", b"a")
    assert isinstance(scene.answers["late"], NotCoordinatorError)
    later: list[Callable[[], None]] = [
        lambda: scene.commit() if scene.appends else None,
        lambda: scene.replay() if scene.replays else None,
        lambda: scene.resume() if scene.pauses else None,
    ]
    for news in later:
        news()
    assert scene.shard.state is ShardState.RESIGNED
    assert not scene.pushed
    assert scene.shard.state_machine is None
