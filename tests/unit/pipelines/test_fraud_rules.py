"""The rules of the fraud pipeline, payment by payment."""

from __future__ import annotations

import math

import pytest

from headrace_pipelines.fraud import rules
from headrace_pipelines.fraud.planting import START_MS
from headrace_pipelines.fraud.rules import History, first_history, judge, kilometres
from headrace_pipelines.fraud.schema import Account, InvalidRecordError, Payment, Place, account_of, payment_of

BERLIN, POTSDAM, NEW_YORK = (52.52, 13.40), (52.39, 13.06), (40.71, -74.01)
MINUTE = 60_000
NEW = first_history(Account("c", 3_000))


def pay(history: History, *payments: tuple[float, int] | tuple[float, int, Place]) -> tuple[History, list[list[str]]]:
    """Judge payments (minute, cents, place); returns the last history, and the kinds of fraud of each payment."""
    found = []
    for minute, cents, *place in payments:
        payment = Payment(0, "c", round(minute * MINUTE), cents, place[0] if place else None)
        history, kinds = judge(history, payment)
        found.append([kind for kind, _ in kinds])
    return history, found


def test_the_sixth_payment_within_ten_minutes_is_velocity() -> None:
    assert pay(NEW, *((minute, 3_000) for minute in range(6)))[1] == [[]] * 5 + [["velocity"]]
    assert pay(NEW, *((minute, 3_000) for minute in (0, 2, 4, 6, 8, 9.99)))[1][-1] == ["velocity"]
    assert pay(NEW, *((minute, 3_000) for minute in (0, 2, 4, 6, 8, 10)))[1] == [[]] * 6


def test_the_fourth_small_payment_within_twenty_minutes_is_card_testing() -> None:
    assert pay(NEW, (0, 199), (5, 50), (10, 1), (19.9, 99))[1] == [[], [], [], ["testing"]]
    assert pay(NEW, (0, 199), (5, 50), (10, 1), (20, 99))[1] == [[]] * 4
    assert pay(NEW, (0, 199), (5, 50), (10, 200), (15, 99))[1] == [[]] * 4


def test_small_payments_are_no_velocity_and_teach_no_amount() -> None:
    history, _ = pay(NEW, *((minute * 30, 150) for minute in range(20)))
    assert history[:3] == NEW[:3]


def test_no_customer_crosses_an_ocean_in_an_hour() -> None:
    history, kinds = pay(NEW, (0, 3_000, BERLIN), (60, 3_000, NEW_YORK))
    assert kinds == [[], ["travel"]]
    assert (history.latitude, history.longitude, history.placed_ms) == (*BERLIN, 0)  # the thief's place is not learnt
    assert pay(history, (70, 3_000, BERLIN))[1] == [[]]
    assert pay(NEW, (0, 3_000, BERLIN), (7 * 60, 3_000, NEW_YORK))[1] == [[], []]


@pytest.mark.parametrize("wrong", [7_000_000, -7_000_000])
def test_payments_with_a_clock_years_off_make_no_alert_and_hide_none(wrong: int) -> None:
    """Some payments, 14 years ahead or late; then the customer pays on one day; then a thief has the card."""
    for number in (1, 5, 9):
        before = [(minute * 60, 3_000, BERLIN) for minute in range(6)]
        ahead = [(wrong + minute * 60, 3_000, BERLIN) for minute in range(number)]
        after = [(minute * 60, 3_000, BERLIN) for minute in range(6, 12)]
        history, kinds = pay(NEW, *before, *ahead, *after)
        assert kinds == [[]] * (12 + number)
        assert pay(history, (670, 3_000, NEW_YORK))[1] == [["travel"]]
        assert pay(history, *((700 + minute, 3_000) for minute in range(6)))[1][-1] == ["velocity"]
        assert pay(history, *((700 + minute, 100) for minute in range(4)))[1][-1] == ["testing"]


def test_a_late_payment_is_no_travel_and_no_velocity() -> None:
    _, kinds = pay(NEW, (600, 3_000, BERLIN), (0, 3_000, NEW_YORK), (601, 3_000, BERLIN))
    assert kinds == [[], [], []]
    late = [(minute, 3_000) for minute in (100, 101, 102, 103, 104, 0)]
    assert pay(NEW, *late)[1] == [[]] * 6


def test_payments_that_change_places_are_velocity_too() -> None:
    assert pay(NEW, *((minute, 3_000) for minute in (100, 101, 102, 103, 105, 104)))[1][-1] == ["velocity"]


def test_payments_in_the_same_region_or_on_the_web_are_no_travel() -> None:
    assert pay(NEW, (0, 3_000, BERLIN), (0, 3_000, POTSDAM))[1] == [[], []]
    assert pay(NEW, (0, 3_000, BERLIN), (1, 3_000), (2, 3_000, BERLIN))[1] == [[], [], []]


def test_an_amount_is_judged_by_the_account_first_and_then_by_the_history() -> None:
    usual = 3_000
    limit = usual * math.exp(rules.AMOUNT_DEVIATIONS * rules.PRIOR_DEVIATION)
    assert pay(NEW, (0, math.floor(limit)))[1] == [[]]
    assert pay(NEW, (0, math.ceil(limit) + 1))[1] == [["amount"]]
    regular, _ = pay(NEW, *((day * 1440, 3_000) for day in range(60)))
    assert pay(regular, (99_999, 9_000))[1] == [["amount"]]


def test_an_unusual_amount_does_not_become_usual() -> None:
    _, kinds = pay(NEW, *((day * 1440, 90_000) for day in range(5)))
    assert kinds == [["amount"]] * 5


def test_the_mean_and_the_deviation_are_those_of_all_amounts_with_the_prior() -> None:
    amounts = [1_000, 2_500, 4_000, 3_300, 800]
    history, _ = pay(NEW, *((day * 1440, cents) for day, cents in enumerate(amounts)))
    logs = [math.log(cents) for cents in amounts]
    prior = [math.log(3_000) + side * rules.PRIOR_DEVIATION for side in (1, -1, 1, -1)] + [math.log(3_000)]
    mean = math.fsum(logs + prior) / 10
    squares = math.fsum((each - mean) ** 2 for each in logs + prior) + rules.PRIOR_DEVIATION**2
    assert (history.amounts, history.mean) == (10, pytest.approx(mean))
    assert history.squares == pytest.approx(squares)


def test_distances_are_those_of_an_atlas() -> None:
    assert kilometres(BERLIN, NEW_YORK) == pytest.approx(6_385, rel=0.005)
    assert kilometres(BERLIN, BERLIN) == 0
    assert kilometres((0, 0), (0, 180)) == pytest.approx(math.pi * rules.EARTH_KM)


def test_a_payment_and_an_account_survive_their_topic() -> None:
    for payment in (Payment(3, "c1", START_MS, 250, BERLIN), Payment(4, "c1", START_MS, 1, None)):
        assert payment_of(payment.encoded()) == payment
    assert account_of(Account("c1", 3_000).encoded()) == Account("c1", 3_000)


GOOD = b'{"payment": 1, "customer": "c", "time_ms": 1767225600005, "cents": 9, "place": [1, 2]}'


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "value: malformed JSON"),
        (b"\xff{", "value: malformed JSON"),
        (GOOD[:-3], "value: malformed JSON"),
        (b"[" * 16_000, "value: malformed JSON"),
        (b"[]", "value: not a JSON object"),
        (b"NaN", "value: not a JSON object"),
        (GOOD.replace(b"payment", b"paymnet"), "payment: missing, or not a whole number from 0 to 2**53 - 1"),
        (GOOD.replace(b'"c"', b'""'), "customer: missing, empty, or not a string"),
        (GOOD.replace(b"5,", b"5.5,"), "time_ms: missing, or not a whole number from 0 to 2**53 - 1"),
        (GOOD.replace(b": 9", b": 0"), "cents: missing, or not a whole number from 1 to 2**53 - 1"),
        (GOOD.replace(b": 9", b": true"), "cents: missing, or not a whole number from 1 to 2**53 - 1"),
        (GOOD.replace(b": 9", b": " + b"9" * 20), "cents: missing, or not a whole number from 1 to 2**53 - 1"),
        (GOOD.replace(b"1767225600005", b"5"), "time_ms: not in the years 2020 to 2039"),
        (GOOD.replace(b"1767225600005", b"3344000000000"), "time_ms: not in the years 2020 to 2039"),
        (GOOD.replace(b"}", b" " * 16_384 + b"}"), "value: 16470 bytes, more than 16384"),
        (GOOD.replace(b"[1, 2]", b"[91, 2]"), "place: not a pair of latitude and longitude"),
        (GOOD.replace(b"[1, 2]", b"[1, NaN]"), "place: not a pair of latitude and longitude"),
        (GOOD.replace(b"[1, 2]", b"[1" + b"0" * 400 + b", 2]"), "place: not a pair of latitude and longitude"),
        (GOOD.replace(b": 9", b": 1" + b"0" * 5_000), "value: malformed JSON"),
        (GOOD.replace(b"[1, 2]", b"[true, 2]"), "place: not a pair of latitude and longitude"),
        (GOOD.replace(b"[1, 2]", b'"home"'), "place: not a pair of latitude and longitude"),
    ],
)
def test_a_record_that_is_no_payment_is_refused_with_the_reason(value: bytes | None, reason: str) -> None:
    with pytest.raises(InvalidRecordError) as refused:
        payment_of(value)
    assert str(refused.value) == reason
