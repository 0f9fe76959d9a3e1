"""The payments with planted fraud, and the scores against the truth."""

from __future__ import annotations

from collections import Counter
from itertools import islice, pairwise

from headrace_pipelines.fraud.planting import CUSTOMERS, Fraud, events
from headrace_pipelines.fraud.rules import first_history, judge
from headrace_pipelines.fraud.schema import END_MS, FIRST_MS, KINDS, Account, Alert, Payment
from headrace_pipelines.fraud.scoring import latencies, percentile, scores

NUMBER = 30_000


def test_the_same_seed_gives_the_same_payments_and_another_seed_gives_others() -> None:
    one, again, other = (list(events(seed, 2_000)) for seed in (1, 1, 2))
    assert one == again
    assert one != other


def test_the_number_of_payments_is_exact_and_they_are_in_the_order_of_time() -> None:
    for number in (1, 17, NUMBER):
        assert sum(event.is_payment for event in events(3, number)) == number
    times = [event.content.time_ms for event in events(3, NUMBER) if isinstance(event.content, Payment)]
    back = sum(one > other for one, other in pairwise(times))
    assert 0 < back < NUMBER / 500, "some clocks are wrong"


def test_every_payment_has_its_own_number_and_its_customer() -> None:
    payments = [(event.customer, event.content) for event in events(3, NUMBER) if isinstance(event.content, Payment)]
    assert len({payment.payment for _, payment in payments}) == len(payments)
    assert all(customer == payment.customer for customer, payment in payments)


def test_each_kind_of_fraud_is_planted_and_so_is_what_is_no_payment() -> None:
    planted = {event.fraud for event in events(3, NUMBER) if event.fraud is not None}
    kinds = Counter(fraud.kind for fraud in planted)
    assert set(kinds) == set(KINDS)
    assert all(10 <= count <= 60 for count in kinds.values())
    assert any(isinstance(event.content, bytes) for event in events(3, NUMBER))


def test_accounts_come_first_or_late_or_never_and_few_customers_pay_with_a_closed_one() -> None:
    opened: set[str] = set()
    paid_before: set[str] = set()
    closed: set[str] = set()
    strangers: set[str] = set()
    paid_closed: list[str] = []
    for event in events(3, 60_000):
        if isinstance(event.content, Account):
            opened.add(event.customer)
            strangers.discard(event.customer)
        elif event.content is None:
            closed.add(event.customer)
        else:
            if event.customer in closed:
                paid_closed.append(event.customer)
            if event.customer not in opened:
                paid_before.add(event.customer)
                strangers.add(event.customer)
    assert len(opened) > 2_000
    assert 1 <= len(paid_closed) == len(set(paid_closed)) < len(closed) / 4
    assert paid_before - strangers  # their accounts came later
    assert strangers


def test_a_long_run_has_a_bounded_number_of_open_accounts() -> None:
    """The number of open accounts bounds the state of the pipeline."""
    opened: set[str] = set()
    most = 0
    for event in islice(events(3, 10**9), 120_000):
        if isinstance(event.content, Account):
            opened.add(event.customer)
        elif event.content is None:
            opened.discard(event.customer)
        most = max(most, len(opened))
    assert CUSTOMERS <= most < CUSTOMERS * 1.05


def test_the_rules_find_most_of_the_planted_fraud_and_disturb_few_customers() -> None:
    accounts, histories, alerts, truth = {}, {}, [], {}
    for event in events(4, 60_000):
        if isinstance(event.content, Account):
            accounts[event.customer] = event.content
        elif isinstance(event.content, Payment) and event.customer in accounts:
            payment = event.content
            if not FIRST_MS <= payment.time_ms < END_MS:
                continue
            if event.fraud is not None:
                truth[payment.payment] = event.fraud
            history = histories.get(event.customer) or first_history(accounts[event.customer])
            histories[event.customer], kinds = judge(history, payment)
            alerts += [Alert(payment.payment, event.customer, kind, why, payment.time_ms, 0) for kind, why in kinds]
    found = scores(alerts, truth)
    assert all(0.5 < each["precision"] < 1 and 0.5 < each["recall"] < 1 for each in found.values()), found


def test_precision_is_of_incidents_and_of_alerts_and_recall_is_of_frauds() -> None:
    """Velocity: one planted fraud has three alerts of one incident; a wrong alert follows an hour later; another
    customer has two wrong alerts."""
    truth = {number: Fraud("velocity", 7) for number in (1, 2, 3)} | {8: Fraud("velocity", 8), 9: Fraud("travel", 9)}
    minutes = {3: ("c", 20), 1: ("c", 0), 2: ("c", 10), 4: ("c", 81), 5: ("d", 0), 9: ("d", 59)}
    alerts = [Alert(number, who, "velocity", "", at * 60_000, 0) for number, (who, at) in minutes.items()]
    found = scores(alerts, truth)
    assert found["velocity"] == {
        "planted": 2,
        "found": 1,
        "alerts": 6,
        "incidents": 3,
        "precision": 0.3333,
        "precision_of_alerts": 0.5,
        "recall": 0.5,
    }
    nothing = {"found": 0, "alerts": 0, "incidents": 0, "precision": None, "precision_of_alerts": None}
    assert found["travel"] == {"planted": 1, "recall": 0.0, **nothing}
    assert found["amount"] == {"planted": 0, "recall": None, **nothing}


def test_a_percentile_is_a_value_that_was_measured() -> None:
    values = list(range(1, 201))
    assert [percentile(values, percent) for percent in (0, 50, 99, 100)] == [1, 100, 198, 200]
    assert percentile([], 50) is None
    assert latencies([3.4]) == {"p50": 3, "p99": 3, "samples": 1}
    assert latencies([]) == {"p50": None, "p99": None, "samples": 0}
