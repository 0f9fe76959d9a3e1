"""The alerts of the fraud pipeline, calculated from the topics alone, by other formulas and without the pipeline's
code.

DuckDB calculates the bursts. Velocity: the last six payments of 200 cents or more lie within ten minutes. Card testing:
the last four payments below 200 cents lie within twenty minutes. The rules for travel and for amounts skip the payments
that they find, so Python loops compute these rules. Impossible travel: more than 100 km, and faster than 1,000 km/h,
from the last place that was reachable. Unusual amount: the logarithm of the amount is more than four standard
deviations above the mean of the usual amounts' logarithms. The account's usual amount counts as five payments with a
deviation of one half.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from typing import Any, NamedTuple

import duckdb
import pandas as pd

from headrace import Consumer, TopicPartition

YEARS = pd.Timestamp("2020-01-01"), pd.Timestamp("2040-01-01")

BURSTS = """
    SELECT payment, CASE WHEN is_small THEN 'testing' ELSE 'velocity' END
    FROM judged
    WINDOW
        four AS (PARTITION BY customer, account, is_small ORDER BY position ROWS 3 PRECEDING),
        six AS (PARTITION BY customer, account, is_small ORDER BY position ROWS 5 PRECEDING)
    QUALIFY CASE WHEN is_small
        THEN count(*) OVER four = 4 AND max(time_ms) OVER four - min(time_ms) OVER four < 20 * 60000
        ELSE count(*) OVER six = 6 AND max(time_ms) OVER six - min(time_ms) OVER six < 10 * 60000
    END
"""


class Found(NamedTuple):
    """``alerts``: payment and kind. ``letters``: the positions of payment records that are invalid or have no
    account."""

    alerts: Counter[tuple[int, str]]
    letters: Counter[tuple[int, int]]


def records_of(servers: str, topic: str) -> list[Any]:
    """All committed records of a topic, by partition and offset."""
    with Consumer({"bootstrap.servers": servers, "isolation.level": "read_committed"}) as consumer:
        partitions = [TopicPartition(topic, number) for number in consumer.partitions_for(topic)]
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(partitions)
        found: list[Any] = []
        while any(consumer.position(each) < ends[each] for each in partitions):
            found += consumer.poll(1.0)
    return sorted(found, key=lambda record: (record.partition, record.offset))


def calculated(servers: str) -> Found:
    """The alerts and dead letters that the pipeline must write for the records in its input topics."""
    by_customer = defaultdict(list)
    for topic in ("fraud.accounts", "fraud.payments"):
        for record in records_of(servers, topic):
            by_customer[record.key].append(record)
    letters: Counter[tuple[int, int]] = Counter()
    alerts: Counter[tuple[int, str]] = Counter()
    judged: list[dict[str, Any]] = []
    for records in by_customer.values():
        records.sort(key=lambda record: (record.timestamp_ms, record.topic, record.offset))
        usual: float | None = None
        newest: float | None = None  # the usual amount of the newest account
        accounts = 0
        until_ms = 0
        waiting: list[Any] = []
        of_account: list[dict[str, Any]] = []
        for record in records:
            if record.topic == "fraud.accounts":
                if record.value is None:
                    alerts.update(_of_account(usual, of_account))
                    usual, newest, accounts, of_account = None, None, accounts + 1, []
                    continue
                newest = math.log(json.loads(record.value)["usual_cents"])
                if not of_account:  # the usual amount counts when the first payment is judged
                    usual = newest
            else:
                waiting.append(record)
            if usual is not None:
                for each in waiting:
                    payment = _payment(each)
                    if payment is None:
                        letters[each.partition, each.offset] += 1
                    else:
                        if of_account and each.timestamp_ms >= until_ms:  # ten minutes after the previous payment
                            alerts.update(_of_account(usual, of_account))
                            usual, accounts, of_account = newest, accounts + 1, []
                        until_ms = max(until_ms if of_account else 0, each.timestamp_ms + 600_000)
                        of_account.append({**payment, "account": accounts, "position": len(judged)})
                        judged.append({**of_account[-1], "is_small": payment["cents"] < 200})
                waiting = []
        alerts.update(_of_account(usual, of_account))
        letters.update((each.partition, each.offset) for each in waiting)
    if judged:
        with duckdb.connect() as connection:
            connection.register("judged", pd.DataFrame(judged).drop(columns="place"))
            alerts.update(connection.execute(BURSTS).fetchall())
    return Found(alerts, letters)


def _payment(record: Any) -> dict[str, Any] | None:
    try:
        payment = json.loads(record.value)
    except ValueError:
        return None
    first, end = YEARS
    is_right = payment and first <= pd.Timestamp(payment["time_ms"], unit="ms") < end
    return payment if is_right else None


def written(servers: str) -> Found:
    """The alerts and dead letters that the pipeline has written."""
    alerts = [json.loads(record.value) for record in records_of(servers, "fraud.alerts")]
    letters: Counter[tuple[int, int]] = Counter()
    for record in records_of(servers, "fraud.payments.dead-letters"):
        headers = dict(record.headers)
        position = (int(headers[f"headrace.dead-letter.{name}"]) for name in ("partition", "offset"))
        letters[tuple(position)] += 1
    return Found(Counter((alert["payment"], alert["kind"]) for alert in alerts), letters)


def _of_account(usual: float | None, payments: list[dict[str, Any]]) -> list[tuple[int, str]]:
    """Find unusual amounts and impossible travel."""
    alerts = []
    logs: list[float] = []
    last: tuple[tuple[float, float], int] | None = None
    for payment in payments:
        assert usual is not None
        number, now, cents, place = (payment[name] for name in ("payment", "time_ms", "cents", "place"))
        if cents >= 200:
            weight = len(logs) + 5
            mean = (math.fsum(logs) + 5 * usual) / weight
            square = (math.fsum(each**2 for each in logs) + 5 * (0.5**2 + usual**2)) / weight
            if math.log(cents) > mean + 4 * math.sqrt(square - mean**2):
                alerts.append((number, "amount"))
            else:
                logs.append(math.log(cents))
        if place is not None:
            far = 0.0 if last is None else _kilometres(last[0], place)
            if last is not None and now >= last[1] and far > 100 and far > 1_000 * (now - last[1]) / 3_600_000:
                alerts.append((number, "travel"))
            else:
                last = place, now
    return alerts


def _kilometres(one: tuple[float, float], other: tuple[float, float]) -> float:
    """The angle between two vectors from the centre of the earth."""
    vectors = []
    for north, east in (one, other):
        north, east = math.radians(north), math.radians(east)
        vectors.append((math.cos(north) * math.cos(east), math.cos(north) * math.sin(east), math.sin(north)))
    return 6_371 * math.acos(max(-1.0, min(1.0, sum(a * b for a, b in zip(*vectors, strict=True)))))
