"""The fraud detector with Spark's tester for stateful processors: state, timers, and what a batch cannot change."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql.streaming.tws_tester import TwsTester

from headrace_pipelines.errors import PipelineFailedError
from headrace_pipelines.fraud import detector, job
from headrace_pipelines.fraud.detector import (
    ACCOUNT_WAIT_MS,
    BUCKET_TTL_MS,
    HISTORY_MS,
    Detector,
    Record,
    _bucket_of,
)
from headrace_pipelines.fraud.planting import START_MS, events
from headrace_pipelines.fraud.schema import ACCOUNTS, PAYMENTS, Account, Payment, alert_of

KEY = 0


class Shard:
    """One shard of the detector. Records get their timestamps and offsets from counters."""

    def __init__(self) -> None:
        self.tester = TwsTester(Detector(), timeMode="ProcessingTime")
        self.sent_ms = self._sent = 0

    def record(self, customer: str, content: Payment | Account | bytes | None) -> Record:
        self._sent += 1
        self.sent_ms += 1
        topic = ACCOUNTS if content is None or isinstance(content, Account) else PAYMENTS
        value = content.encoded() if isinstance(content, Payment | Account) else content
        return Record(self.sent_ms, topic, 0, self._sent, customer.encode(), value, None)

    def batch(self, *records: Record) -> list[dict[str, Any]]:
        """The output rows of a batch with these records."""
        return rows(self.tester.testInPandas(KEY, pd.DataFrame(records, columns=Record._fields)))

    def frames(self, *records: Record) -> list[pd.DataFrame]:
        """The output frames of a batch with these records."""
        self.tester.handle.setGroupingKey(KEY)
        frame = pd.DataFrame(records, columns=Record._fields)
        return list(self.tester.processor.handleInputRows((KEY,), iter([frame]), self.tester._getTimerValues()))

    def batch_at(self, now_ms: int, *records: Record) -> list[dict[str, Any]]:
        """The output of a batch at this time, as in Spark: first its records, then its timers."""
        self.tester._currentProcessingTimeMs = now_ms
        return [*self.batch(*records), *rows(self.tester._handleExpiredTimers())]

    def at(self, now_ms: int) -> list[dict[str, Any]]:
        """Set the wall clock; returns the output of the timers that fire."""
        return rows(self.tester.setProcessingTime(now_ms))

    def known(self, state: str) -> set[str]:
        """The customers in a state."""
        found = self.tester.peekMapState(state, KEY)
        if state == "histories":
            return {history[0] for (histories,) in found.values() for history in histories}
        return {customer for (customer,) in found}


def rows(found: Any) -> list[dict[str, Any]]:
    return [] if isinstance(found, list) else list(found.to_dict("records"))  # a list before the first frame


@pytest.fixture
def shard() -> Shard:
    return Shard()


def payment(number: int, minute: int = 0, *, customer: str = "c", cents: int = 3_000) -> Payment:
    return Payment(number, customer, START_MS + minute * 60_000, cents, None)


def shown(found: Iterable[dict[str, Any]]) -> list[tuple[int, str]]:
    return [(alert_of(each["alert"]).payment, each["kind"]) for each in found]


def reasons(found: Iterable[dict[str, Any]]) -> list[tuple[int, str]]:
    return [(each["offset"], each["reason"]) for each in found]


ACCOUNT = Account("c", 3_000)


def test_an_alert_names_its_payment_and_when_its_record_was_sent(shard: Shard) -> None:
    found = shard.batch(shard.record("c", ACCOUNT), shard.record("c", payment(7, cents=90_000)))
    (alert,) = (alert_of(each["alert"]) for each in found)
    assert (alert.payment, alert.customer, alert.kind, alert.sent_ms) == (7, "c", "amount", 2)


@pytest.mark.parametrize("rows_of_a_batch", [1, 7, 500])
def test_alerts_do_not_depend_on_the_batches(rows_of_a_batch: int) -> None:
    """The output also does not depend on the order of rows within a batch, which a shuffle changes."""
    content = list(events(5, 2_000))

    def run(size: int) -> list[tuple[int, str]]:
        shard = Shard()
        records = [shard.record(event.customer, event.content) for event in content]
        found: list[tuple[int, str]] = []
        for start in range(0, len(records), size):
            part = records[start : start + size]
            random.Random(start).shuffle(part)
            found += shown(each for each in shard.batch(*part) if isinstance(each["kind"], str))
        return sorted(found)

    expected = run(len(content))
    assert len(expected) > 10
    assert run(rows_of_a_batch) == expected


def test_payments_wait_for_their_account_and_are_judged_in_their_order(shard: Shard) -> None:
    early = [shard.record("c", payment(number, number)) for number in range(8)]
    assert shard.batch(*early[:3]) == []
    assert shard.batch(*early[3:6]) == []
    assert shard.known("parked") == {"c"}
    found = shard.batch(early[6], shard.record("c", ACCOUNT), early[7])
    assert shown(found) == [(5, "velocity"), (6, "velocity"), (7, "velocity")]
    assert shard.known("parked") == set()
    assert shard.at(10**9) == []


def test_a_payment_without_an_account_becomes_a_dead_letter_when_its_timer_fires(shard: Shard) -> None:
    shard.at(1_000)
    value = b' {"payment": 1, "customer": "x", "time_ms": %d, "cents": 900, "note": "\xc3\xa9\\u0000"}\n' % START_MS
    sent = shard.record("x", value)._replace(headers='[{"key":"trace","value":"AP8="}]')
    assert shard.batch(sent) == []
    assert shard.at(1_000 + ACCOUNT_WAIT_MS - 1) == []
    (letter,) = shard.at(1_000 + ACCOUNT_WAIT_MS)
    assert letter["reason"] == "customer: no account"
    assert [letter[name] for name in Record._fields] == list(sent)
    assert shard.known("parked") == set()


def test_a_customer_without_an_account_has_a_limit_of_waiting_payments(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the query is behind its topics, payments wait without a limit of time."""
    monkeypatch.setattr(detector, "PARKED_MAX", 3)
    reason = "customer: no account, and 3 payments of the customer wait for it"
    assert reasons(shard.batch(*(shard.record("c", payment(number, number)) for number in range(2)))) == []
    found = shard.batch(*(shard.record("c", payment(number, number)) for number in range(2, 5)))
    assert reasons(found) == [(4, reason), (5, reason)]
    assert reasons(shard.batch(shard.record("c", payment(5, 5)))) == [(6, reason)]
    found = shard.batch(shard.record("c", ACCOUNT), *(shard.record("c", payment(n, 6)) for n in range(6, 9)))
    assert [number for number, kind in shown(found) if kind == "velocity"] == [8], "three waiting payments count, too"
    assert shard.known("parked") == set()


def test_each_payment_waits_for_the_same_time(shard: Shard) -> None:
    shard.batch(shard.record("x", payment(1, customer="x")))
    shard.at(ACCOUNT_WAIT_MS - 1)
    shard.batch(shard.record("x", payment(2, customer="x")))
    assert [offset for offset, _ in reasons(shard.at(ACCOUNT_WAIT_MS))] == [1]
    assert shard.known("parked") == {"x"}
    assert [offset for offset, _ in reasons(shard.at(2 * ACCOUNT_WAIT_MS))] == [2]
    assert shard.known("parked") == set()


def test_the_newest_account_counts_and_a_tombstone_removes_the_state(shard: Shard) -> None:
    shard.batch(shard.record("c", Account("c", 1)))
    assert shard.batch(shard.record("c", ACCOUNT), shard.record("c", payment(1))) == []
    assert shard.known("accounts") == shard.known("histories") == {"c"}
    assert shard.batch(shard.record("c", None)) == []
    assert shard.known("accounts") == shard.known("histories") == set()
    shard.batch(shard.record("c", payment(2)))
    assert shard.known("parked") == {"c"}


def test_a_customer_without_payments_for_a_long_time_is_new_again_and_the_others_are_not(shard: Shard) -> None:
    """Both customers are in one bucket. The time is that of the records."""
    other = next(name for name in map(str, range(100)) if _bucket_of(name) == _bucket_of("c"))
    shard.at(2 * BUCKET_TTL_MS)
    shard.batch(shard.record("c", ACCOUNT), *(shard.record("c", payment(number, number)) for number in range(5)))
    last_ms = shard.sent_ms
    shard.sent_ms = HISTORY_MS - 2
    shard.batch(shard.record(other, Account(other, 3_000)), shard.record(other, payment(9, customer=other)))
    shard.sent_ms = last_ms + HISTORY_MS - 1
    assert shown(shard.batch(shard.record("c", payment(5, 5)))) == []
    assert shard.known("histories") == {"c", other}
    shard.sent_ms = 3 * HISTORY_MS + BUCKET_TTL_MS
    shard.batch(shard.record("c", payment(6, 6)))
    assert shard.known("histories") == {"c"}


@pytest.mark.parametrize("pause_ms", [1, HISTORY_MS, 6 * 86_400_000])
def test_a_pause_of_the_query_forgets_no_history(shard: Shard, pause_ms: int) -> None:
    """The customer pays meanwhile."""
    shard.batch(shard.record("c", ACCOUNT), *(shard.record("c", payment(number, number)) for number in range(5)))
    shard.at(pause_ms)
    assert shown(shard.batch(shard.record("c", payment(5, 5)))) == [(5, "velocity")]


@pytest.mark.parametrize("sizes", [[4, 6, 1], [4, 7], [11]])
def test_a_backlog_of_many_minutes_forgets_no_history(shard: Shard, sizes: list[int]) -> None:
    """The newest record of the backlog is another customer's; both customers are in one bucket."""
    other = next(name for name in map(str, range(100)) if _bucket_of(name) == _bucket_of("c"))
    shard.at(10 * HISTORY_MS)
    shard.batch(shard.record("c", ACCOUNT), shard.record(other, Account(other, 3_000)))
    minutes = [*range(10), 30]
    paid = [
        shard.record(customer, payment(minute, minute, customer=customer))._replace(sent_ms=minute * 60_000)
        for minute, customer in zip(minutes, ["c"] * 10 + [other], strict=True)
    ]
    found: list[tuple[int, str]] = []
    for size in sizes:
        found += shown(shard.batch(*paid[:size]))
        del paid[:size]
    assert found == [(number, "velocity") for number in (5, 6, 7, 8, 9)]


def test_a_timestamp_far_ahead_forgets_no_history_of_others(shard: Shard) -> None:
    other = next(name for name in map(str, range(100)) if _bucket_of(name) == _bucket_of("c"))
    shard.at(1_000)
    shard.batch(shard.record("c", ACCOUNT), *(shard.record("c", payment(number, number)) for number in range(5)))
    ahead = shard.record(other, payment(9, customer=other))._replace(sent_ms=10 * HISTORY_MS)
    shard.batch(shard.record(other, Account(other, 3_000)), ahead)
    assert shown(shard.batch(shard.record("c", payment(5, 5)))) == [(5, "velocity")]


def test_no_payment_is_given_up_while_the_query_is_behind_its_topics(shard: Shard) -> None:
    """The payment's account is in the topic, and two batches later."""
    now_ms = 10 * ACCOUNT_WAIT_MS
    assert shard.batch_at(now_ms, shard.record("x", payment(1, customer="x", cents=90_000))) == []
    assert shard.batch_at(now_ms + 2 * ACCOUNT_WAIT_MS, shard.record("c", ACCOUNT)) == []
    (alert,) = shard.batch_at(now_ms + 4 * ACCOUNT_WAIT_MS, shard.record("x", Account("x", 3_000)))
    assert alert["kind"] == "amount"


def test_a_payment_is_given_up_when_the_query_has_caught_up(shard: Shard) -> None:
    now_ms = 10 * ACCOUNT_WAIT_MS
    shard.batch_at(now_ms, shard.record("x", payment(1, customer="x")))
    shard.batch_at(now_ms + 2 * ACCOUNT_WAIT_MS, shard.record("c", ACCOUNT))
    shard.sent_ms = now_ms + 4 * ACCOUNT_WAIT_MS
    (letter,) = shard.batch_at(now_ms + 4 * ACCOUNT_WAIT_MS, shard.record("d", Account("d", 1)))
    assert letter["reason"] == "customer: no account"
    assert shard.known("parked") == set()


def test_large_records_and_large_headers_are_written_in_small_frames(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detector, "FRAME_BYTES", 100_000)
    large = [shard.record("c", b"x" * 40_000) for _ in range(9)]
    heavy = shard.record("c", payment(1))._replace(headers="h" * 20_000)
    frames = list(shard.frames(shard.record("c", ACCOUNT), *large, heavy))
    assert [len(frame) for frame in frames] == [3, 3, 3, 1]
    found = [row for frame in frames for row in frame.to_dict("records")]
    assert {each["reason"] for each in found[:9]} == {"value: 40000 bytes, more than 16384"}
    assert found[9]["reason"] == "headers: 20000 characters of JSON, more than 16384"
    assert found[9]["value"] == heavy.value


def test_an_update_of_the_account_keeps_the_history(shard: Shard) -> None:
    shard.batch(shard.record("c", ACCOUNT), *(shard.record("c", payment(number, number)) for number in range(5)))
    assert shown(shard.batch(shard.record("c", ACCOUNT), shard.record("c", payment(5, 5)))) == [(5, "velocity")]


def test_bad_records_become_dead_letters_and_the_others_count(shard: Shard) -> None:
    other_key = shard.record("c", payment(1, customer="d"))
    rubbish: Sequence[Record] = [other_key, shard.record("c", b"{"), shard.record("c", payment(3, cents=0))]
    bad_account = shard.record("c", ACCOUNT)._replace(value=b"[]")
    found = shard.batch(shard.record("c", ACCOUNT), *(each._replace(sent_ms=9) for each in rubbish), bad_account)
    assert sorted(reasons(found)) == [
        (1, "customer: not the customer in the record's key"),
        (2, "value: malformed JSON"),
        (3, "cents: missing, or not a whole number from 1 to 2**53 - 1"),
        (4, "value: not a JSON object"),
    ]
    assert shard.known("accounts") == {"c"}
    assert [each["value"] for each in found if each["offset"] == 2] == [b"{"]


@pytest.mark.parametrize(("key", "reason"), [(None, "key: null"), (b"\xff", "key: not UTF-8")])
def test_a_key_that_is_no_text_becomes_a_dead_letter_with_the_same_key(
    shard: Shard, key: bytes | None, reason: str
) -> None:
    bad = shard.record("c", payment(1))._replace(key=key)
    found = shard.batch(shard.record("c", ACCOUNT), bad, shard.record("c", payment(2, cents=90_000)))
    assert [(each["offset"], each["key"], each["reason"]) for each in found if each["offset"] == 1] == [
        (1, key, reason)
    ]
    assert shown(each for each in found if isinstance(each["kind"], str)) == [(2, "amount")]


def test_a_wrong_clock_and_a_large_record_become_dead_letters_before_they_wait(shard: Shard) -> None:
    ahead = payment(1)._replace(time_ms=START_MS + 50 * 365 * 86_400_000)
    found = shard.batch(shard.record("c", ahead), shard.record("c", b"x" * 1_000_000))
    assert sorted(reasons(found)) == [
        (1, "time_ms: not in the years 2020 to 2039"),
        (2, "value: 1000000 bytes, more than 16384"),
    ]
    assert shard.known("parked") == set()


def test_a_checkpoint_with_another_grouping_of_customers_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.check_grouping(tmp_path / "alerts")
    job.check_grouping(tmp_path / "alerts")
    monkeypatch.setattr(job, "SHARDS", 32)
    with pytest.raises(PipelineFailedError, match=r"with \{'shards': 16, .* --restart"):
        job.check_grouping(tmp_path / "alerts")
