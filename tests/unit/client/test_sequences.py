"""An idempotent producer's sequence numbers in one partition: which batch may be sent, the effect of a failure, and
when a new epoch is needed."""

from __future__ import annotations

import pytest

from headrace.producer.sequences import SILENCE_S, WINDOW, Identity, PartitionSequences, Stamp, Verdict

OUT_OF_ORDER = "OUT_OF_ORDER_SEQUENCE_NUMBER"


def book(acknowledged: int = 1) -> PartitionSequences[str]:
    """Producer 7 in epoch 0; ``acknowledged`` batches of one record each are in the log, the last batch at time 0."""
    made: PartitionSequences[str] = PartitionSequences()
    made.renew(Identity(7, 0))
    for number in range(acknowledged):
        made.number(f"old {number}", 1)
        made.acknowledged(f"old {number}", 0.0)
    return made


def sent(made: PartitionSequences[str], *batches: str, count: int = 1) -> list[int]:
    """The base sequences of the given batches."""
    return [made.number(batch, count).base_sequence for batch in batches]


def refused(made: PartitionSequences[str], batch: str) -> Verdict:
    return made.failed(batch, OUT_OF_ORDER, retriable=False, unknown=False)


def lost(made: PartitionSequences[str], batch: str) -> Verdict:
    return made.failed(batch, "NETWORK_EXCEPTION", retriable=True, unknown=True)


def test_nothing_is_sent_without_a_producer_id() -> None:
    made: PartitionSequences[str] = PartitionSequences()
    assert not made.may_send("a", 0, 0.0)
    assert made.needs_identity


def test_a_batch_keeps_its_number_for_all_its_tries() -> None:
    made = book(0)
    assert made.number("a", 3) == Stamp(7, 0, 0) == made.number("a", 3)
    assert lost(made, "a") is Verdict.RETRY
    assert made.number("a", 3) == Stamp(7, 0, 0)
    assert made.number("b", 2) == Stamp(7, 0, 3)


def test_numbers_wrap_after_two_to_the_31() -> None:
    made = book(0)
    made.number("many", 2**31 - 2)
    assert sent(made, "a", count=4) == [2**31 - 2]
    assert sent(made, "b") == [2]


def test_one_at_a_time_until_the_broker_has_acknowledged_one() -> None:
    made = book(0)
    sent(made, "a")
    assert not made.may_send("b", 1, 0.0)
    made.acknowledged("a", 0.0)
    assert made.may_send("b", 1, 0.0)
    assert made.may_send("b", 1, SILENCE_S)
    assert not made.may_send("b", 1, SILENCE_S + 1), "by now the broker may have forgotten the producer"


def test_five_on_their_way_at_most_first_tries_and_others() -> None:
    made = book()
    batches = [f"b{number}" for number in range(WINDOW)]
    for number, batch in enumerate(batches):
        assert made.may_send(batch, number, 1.0)
        sent(made, batch)
    assert not made.may_send("sixth", WINDOW, 1.0)
    assert not made.may_send(batches[0], WINDOW, 1.0)
    assert not made.may_send("sixth", 0, 1.0), "five are without an outcome, on their way or not"


def test_batch_without_an_outcome_stays_among_the_five_that_a_broker_remembers() -> None:
    made = book()
    batches = [f"b{number}" for number in range(WINDOW)]
    sent(made, *batches)
    for batch in batches[1:]:
        made.acknowledged(batch, 1.0)
    assert not made.may_send("sixth", 1, 1.0), "the first one's answer is missing still"
    made.acknowledged("b0", 1.0)
    assert made.may_send("sixth", 0, 1.0)


def test_after_a_failure_the_oldest_goes_alone() -> None:
    made = book()
    sent(made, "a", "b")
    assert made.failed("a", "NOT_ENOUGH_REPLICAS", retriable=True, unknown=False) is Verdict.RETRY
    assert refused(made, "b") is Verdict.RETRY, "the one before it failed"
    assert made.regroup() == []
    assert made.may_send("a", 0, 1.0)
    assert not made.may_send("b", 1, 1.0)
    made.acknowledged("a", 1.0)
    assert sent(made, "b") == [2]


def test_an_oldest_batch_out_of_order_was_not_written_and_goes_under_a_new_epoch() -> None:
    made = book()
    sent(made, "a", "b")
    assert refused(made, "a") is Verdict.RENUMBER
    assert refused(made, "b") is Verdict.RENUMBER
    assert made.regroup() == []
    assert made.needs_identity
    assert not made.may_send("a", 0, 1.0)
    made.renew(Identity(7, 1))
    assert [made.number("a", 1), made.number("b", 1)] == [Stamp(7, 1, 0), Stamp(7, 1, 1)]


def test_what_may_have_been_written_never_gets_another_number() -> None:
    """KAFKA-18579."""
    made = book()
    sent(made, "a", "b", "c")
    lost(made, "b")
    assert refused(made, "a") is Verdict.RENUMBER
    assert refused(made, "c") is Verdict.RETRY, "b comes before it"
    assert made.regroup() == ["b"], "told to nobody, and not to be sent again"
    assert made.needs_identity
    made = book()
    sent(made, "a")
    lost(made, "a")
    assert refused(made, "a") is Verdict.UNKNOWN


def test_batch_that_is_given_up_holds_new_numbers_back_until_those_behind_it_have_an_outcome() -> None:
    made = book()
    sent(made, "a", "b")
    lost(made, "a")
    lost(made, "b")
    assert made.give_up("a", in_flight=False)
    made.regroup()
    assert not made.needs_identity
    assert not made.may_send("new", 0, 1.0)
    assert made.may_send("b", 0, 1.0)
    made.acknowledged("b", 1.0)
    made.regroup()
    assert made.may_send("new", 0, 1.0), "b was taken, so a had been: no number is missing"
    assert sent(made, "new") == [3]


def test_batch_that_is_given_up_last_makes_a_new_epoch() -> None:
    made = book()
    sent(made, "a")
    lost(made, "a")
    made.give_up("a", in_flight=False)
    made.regroup()
    assert made.needs_identity


def test_answer_that_comes_after_all_shows_that_nothing_is_missing() -> None:
    made = book()
    sent(made, "a")
    assert made.give_up("a", in_flight=True), "it may have been written"
    made.acknowledged("a", 1.0)
    made.regroup()
    assert not made.needs_identity
    assert sent(made, "b") == [2]


def test_final_refusal_makes_a_new_epoch_and_fails_its_batch_alone() -> None:
    made = book()
    sent(made, "bad", "good")
    assert made.failed("bad", "INVALID_RECORD", retriable=False, unknown=False) is Verdict.FAIL
    assert refused(made, "good") is Verdict.RENUMBER
    made.regroup()
    assert made.needs_identity


def test_stale_epoch_fails_its_batch_and_makes_a_new_one() -> None:
    made = book()
    sent(made, "a", "b")
    assert made.failed("a", "INVALID_PRODUCER_EPOCH", retriable=False, unknown=False) is Verdict.FAIL
    assert made.failed("b", "INVALID_PRODUCER_EPOCH", retriable=False, unknown=False) is Verdict.FAIL
    made.regroup()
    assert made.needs_identity


def test_next_transaction_of_a_known_producer_stays_flowing() -> None:
    made = book()
    made.retire()
    assert made.needs_identity
    assert not made.may_send("a", 0, 1.0), "the old epoch numbers nothing more"
    made.renew(Identity(7, 1))
    assert made.number("a", 1) == Stamp(7, 1, 0)
    assert made.may_send("b", 1, 1.0), "the broker accepts only 0 as the first number of the epoch"
    assert not made.may_send("b", 1, SILENCE_S + 1), "by now the broker may have forgotten the producer"


def test_next_transaction_under_a_new_producer_id_or_after_a_gap_begins_alone() -> None:
    made = book()
    made.retire()
    made.renew(Identity(8, 0))
    sent(made, "a")
    assert not made.may_send("b", 1, 0.0)
    made = book()
    sent(made, "dropped")
    made.give_up("dropped", in_flight=True)
    made.retire()
    made.failed("dropped", "INVALID_PRODUCER_EPOCH", retriable=False, unknown=False)
    assert made.regroup() == []
    made.renew(Identity(7, 1))
    assert sent(made, "a") == [0]
    assert not made.may_send("b", 1, 0.0)


def test_acknowledgement_of_a_retired_epoch_changes_nothing() -> None:
    made = book()
    sent(made, "late")
    made.give_up("late", in_flight=True)
    made.retire()
    made.acknowledged("late", 1.0)
    made.regroup()
    made.renew(Identity(7, 1))
    assert sent(made, "a") == [0]
    assert not made.needs_identity


def test_misuse_is_a_bug() -> None:
    made = book()
    with pytest.raises(AssertionError):
        made.renew(Identity(7, 0))
    sent(made, "a")
    with pytest.raises(AssertionError):
        made.renew(Identity(7, 1))
