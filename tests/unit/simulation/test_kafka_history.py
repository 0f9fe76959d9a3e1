"""The checker of Kafka-like histories finds each planted anomaly, and no anomaly in sound histories."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from headrace_core.testing.kafka_history import History, Kind, Mark, Seen


def sound(history: History | None = None) -> History:
    """Two producers wrote ten records each to partition 0, alternating; a consumer read all records."""
    history = history or History()
    log = []
    for number in range(10):
        for producer in ("p", "q"):
            mark = Mark(producer, number)
            history.sent(mark, 0)
            history.acknowledged(mark, len(log))
            log.append(Seen(len(log), mark))
    history.positioned("c", 0)
    history.polled("c", 0, log[:7])
    history.polled("c", 0, log[7:])
    history.log(0, log)
    return history


def log_of_sound() -> list[Seen]:
    return [Seen(2 * number + which, Mark("pq"[which], number)) for number in range(10) for which in (0, 1)]


def kinds(history: History) -> set[Kind]:
    return {anomaly.kind for anomaly in history.anomalies()}


def test_nothing_is_wrong_with_a_sound_history() -> None:
    history = sound()
    assert history.anomalies() == []
    assert (history.count_acknowledged, history.count_unknown, history.count_polled) == (20, 0, 20)


def lost(history: History) -> None:
    history.log(0, log_of_sound()[:15], end=15)


def lost_though_only_read(history: History) -> None:
    history.sent(Mark("p", 10), 0)
    history.polled("c", 0, [Seen(20, Mark("p", 10))])


def unseen(history: History) -> None:
    history.sent(Mark("p", 10), 1)
    history.acknowledged(Mark("p", 10), 4)
    history.polled("c", 1, [])


def duplicate(history: History) -> None:
    history.log(0, [*log_of_sound(), Seen(20, Mark("q", 9))])


def phantom_of_nobody(history: History) -> None:
    history.log(0, [*log_of_sound(), Seen(20, Mark("nobody", 0))])


def phantom_that_was_refused(history: History) -> None:
    history.sent(Mark("p", 10), 0)
    history.refused(Mark("p", 10))
    history.log(0, [*log_of_sound(), Seen(20, Mark("p", 10))])


def misplaced(history: History) -> None:
    history.sent(Mark("p", 10), 0)
    history.log(1, [Seen(0, Mark("p", 10))])


def two_at_one_offset(history: History) -> None:
    history.sent(Mark("r", 0), 0)
    history.positioned("d", 0)
    history.polled("d", 0, [Seen(5, Mark("r", 0))])


def elsewhere_than_it_was_acknowledged(history: History) -> None:
    history.sent(Mark("p", 10), 0)
    history.acknowledged(Mark("p", 10), 3)
    history.log(0, [*log_of_sound(), Seen(20, Mark("p", 10))])


def skip(history: History) -> None:
    history.positioned("d", 0)
    history.polled("d", 0, log_of_sound()[:4])
    history.polled("d", 0, log_of_sound()[6:])


def back(history: History) -> None:
    history.polled("c", 0, log_of_sound()[18:])


def sends_that_go_back(history: History) -> None:
    for number, offset in ((10, 21), (11, 20)):
        history.sent(Mark("p", number), 0)
        history.acknowledged(Mark("p", number), offset)
    history.log(0, [*log_of_sound(), Seen(20, Mark("p", 11)), Seen(21, Mark("p", 10))])


def reorder(history: History) -> None:
    history.sent(Mark("p", 10), 0)
    history.sent(Mark("p", 11), 0)
    history.log(0, [*log_of_sound(), Seen(20, Mark("p", 11)), Seen(21, Mark("p", 10))])


def gap(history: History) -> None:
    history.sent(Mark("p", 10), 0)
    history.log(0, [*log_of_sound(), Seen(22, Mark("p", 10))])


def gap_at_the_end(history: History) -> None:
    history.log(0, log_of_sound(), end=21)


@pytest.mark.parametrize(
    ("plant", "kind"),
    [
        (lost, Kind.LOST),
        (lost_though_only_read, Kind.LOST),
        (unseen, Kind.UNSEEN),
        (duplicate, Kind.DUPLICATE),
        (phantom_of_nobody, Kind.PHANTOM),
        (phantom_that_was_refused, Kind.PHANTOM),
        (misplaced, Kind.MISPLACED),
        (two_at_one_offset, Kind.INCONSISTENT_OFFSET),
        (elsewhere_than_it_was_acknowledged, Kind.INCONSISTENT_OFFSET),
        (skip, Kind.SKIP),
        (back, Kind.NONMONOTONIC_POLL),
        (sends_that_go_back, Kind.NONMONOTONIC_SEND),
        (reorder, Kind.REORDER),
        (gap, Kind.GAP),
        (gap_at_the_end, Kind.GAP),
    ],
)
def test_each_planted_anomaly_is_found(plant: Callable[[History], None], kind: Kind) -> None:
    history = sound()
    plant(history)
    assert kind in kinds(history)
    assert all(str(anomaly) for anomaly in history.anomalies())


def test_every_kind_has_a_planted_history() -> None:
    planted = test_each_planted_anomaly_is_found.pytestmark[0].args[1]  # type: ignore[attr-defined]
    assert {kind for _, kind in planted} == set(Kind)


def test_what_is_acknowledged_and_was_not_read_is_lost_when_somebody_read_beyond_it() -> None:
    history = History()
    for number in range(3):
        history.sent(Mark("p", number), 0)
        history.acknowledged(Mark("p", number), number)
    history.polled("c", 0, [Seen(0, Mark("p", 0)), Seen(2, Mark("p", 2))])
    assert kinds(history) == {Kind.LOST, Kind.SKIP}


def test_an_unknown_outcome_is_no_refusal() -> None:
    for is_there in (False, True):
        history = sound()
        history.sent(Mark("p", 10), 0)
        if is_there:
            history.log(0, [*log_of_sound(), Seen(20, Mark("p", 10))])
        assert history.anomalies() == []
        assert history.count_unknown == 1


def test_what_retention_has_deleted_is_not_lost() -> None:
    history = sound()
    history.log(0, log_of_sound()[6:], log_start=6)
    assert history.anomalies() == []


def test_without_idempotence_order_and_repetition_are_not_judged_but_loss_is() -> None:
    history = sound(History(idempotent=False))
    history.log(0, [*log_of_sound(), Seen(20, Mark("q", 9)), Seen(21, Mark("q", 8))])
    assert history.anomalies() == []
    history.log(0, log_of_sound()[:-1])
    assert Kind.LOST in kinds(history)


def test_what_may_be_lost_is_not_called_lost_and_the_rest_is() -> None:
    history = sound()
    for number, offset in ((10, 20), (11, 21)):
        history.sent(Mark("p", number), 0)
        history.acknowledged(Mark("p", number), offset)
    history.sent(Mark("q", 10), 0)
    history.log(0, [*log_of_sound(), Seen(20, Mark("q", 10))])  # at the offset of the lost record
    assert history.anomalies(may_lose=lambda mark: mark.sequence > 9) == []
    found = {anomaly.kind for anomaly in history.anomalies(may_lose=lambda mark: mark == Mark("p", 10))}
    assert found == {Kind.LOST}, "p:11 must not be"


def test_what_was_read_must_stay_though_its_acknowledgement_promised_little_but_for_an_unclean_election() -> None:
    history = sound()
    history.sent(Mark("q", 10), 0)
    history.log(0, [*log_of_sound()[:18], Seen(18, Mark("q", 10))])

    def may_lose(mark: Mark) -> bool:
        return mark.sequence == 9

    found = {anomaly.kind for anomaly in history.anomalies(may_lose=may_lose)}
    assert found == {Kind.LOST, Kind.INCONSISTENT_OFFSET}
    assert history.anomalies(may_lose=may_lose, unclean=True) == []


def test_a_seek_may_go_back_and_forth() -> None:
    history = sound()
    history.positioned("c", 0)
    history.polled("c", 0, log_of_sound()[3:5])
    history.positioned("c", 0)
    history.polled("c", 0, log_of_sound()[8:])
    assert history.anomalies() == []


def test_a_mark_is_answered_once() -> None:
    history = sound()
    with pytest.raises(ValueError, match="answered twice"):
        history.refused(Mark("p", 0))
    with pytest.raises(ValueError, match="sent twice"):
        history.sent(Mark("p", 0), 0)


def test_random_sound_histories_are_sound_and_one_record_taken_away_is_found(rng: random.Random) -> None:
    for _ in range(50):
        history, log = History(), []
        counts = {"p": 0, "q": 0, "r": 0}
        for _ in range(rng.randrange(5, 60)):
            producer = rng.choice(sorted(counts))
            mark = Mark(producer, counts[producer])
            counts[producer] += 1
            history.sent(mark, 0)
            fate = rng.random()
            if fate < 0.1:
                history.refused(mark)
            elif fate < 0.2:
                if rng.random() < 0.5:
                    log.append(Seen(len(log), mark))
            else:
                history.acknowledged(mark, len(log))
                log.append(Seen(len(log), mark))
        at = 0
        while at < len(log):
            step = rng.randrange(1, 8)
            history.polled("c", 0, log[at : at + step])
            at += step
        history.log(0, log)
        assert history.anomalies() == []
        if log:
            del log[rng.randrange(len(log))]
            history.log(0, log, end=len(log) + 1)
            assert Kind.LOST in kinds(history)
