"""The check of the tables: compute their contents from the commands alone, by code that shares nothing with model.py
and projecting.py.

The check reads one order after the other, each from its first command to its last, and remembers every command id.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from headrace import Consumer

from ..access import Access
from ..topics import records_in_topic
from . import schema
from .database import Database

_VERBS = {"place", "add", "remove", "pay", "ship", "deliver", "cancel"}


@dataclass(slots=True)
class Truth:
    """The expected contents of the tables. ``orders``: id -> (customer, state, pieces, total, paid, rejected, version,
    time)."""

    orders: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    customers: dict[str, tuple[int, int]] = field(default_factory=dict)  #: orders, spent cents
    outcomes: Counter[str] = field(default_factory=Counter)  #: replies by outcome
    events: int = 0
    days: dict[str, list[int]] = field(default_factory=dict)  #: paid orders, paid cents, returned cents

    def _of_day(self, at_ms: int) -> list[int]:
        return self.days.setdefault(time.strftime("%Y-%m-%d", time.gmtime(at_ms // 1_000)), [0, 0, 0])

    def paid(self, at_ms: int, cents: int) -> None:
        day = self._of_day(at_ms)
        day[0] += 1
        day[1] += cents

    def returned(self, at_ms: int, cents: int) -> None:
        self._of_day(at_ms)[2] += cents


def truth(access: Access) -> Truth:
    """Read all commands, and compute the tables that they must produce."""
    by_order: dict[bytes, list[tuple[bytes, int]]] = defaultdict(list)
    with Consumer(access.consumer()) as consumer:
        for records in records_in_topic(consumer, schema.COMMANDS):
            for record in records:
                by_order[record.key or b""].append((record.value or b"", record.timestamp_ms))
    found = Truth()
    customers: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for key, values in by_order.items():
        _judge(key, values, found, customers)
    found.customers = {name: (counts[0], counts[1]) for name, counts in customers.items()}
    return found


def _judge(key: bytes, values: list[tuple[bytes, int]], found: Truth, customers: dict[str, list[int]]) -> None:
    seen: set[str] = set()
    basket: dict[str, int] = {}
    pieces: dict[str, int] = {}
    customer, state, paid, rejected, version, updated_ms = "", "new", 0, 0, 0, 0
    for value, at_ms in values:
        try:
            command = json.loads(value)
        except ValueError:
            command = None
        if not isinstance(command, dict) or command.get("do") not in _VERBS or command["order"].encode() != key:
            found.outcomes["invalid"] += 1
            continue
        if command["id"] in seen:
            found.outcomes["repeated"] += 1
            continue
        seen.add(command["id"])
        verb, happened = command["do"], 1
        is_fresh = command.get("expected_version") in (None, version)
        if verb == "place" and state == "new" and is_fresh:
            customer, state = command["customer"], "placed"
            basket = {each["sku"]: each["quantity"] * each["cents"] for each in command["lines"]}
            pieces = {each["sku"]: each["quantity"] for each in command["lines"]}
            customers[customer][0] += 1
        elif verb == "add" and state == "placed" and command["sku"] not in basket and is_fresh:
            basket[command["sku"]] = command["quantity"] * command["cents"]
            pieces[command["sku"]] = command["quantity"]
        elif verb == "remove" and state == "placed" and command["sku"] in basket and len(basket) > 1 and is_fresh:
            del basket[command["sku"]], pieces[command["sku"]]
        elif verb == "pay" and state == "placed" and command["cents"] == sum(basket.values()) and is_fresh:
            state, paid = "paid", command["cents"]
            customers[customer][1] += paid
            found.paid(at_ms, paid)
        elif (verb, state) in (("ship", "paid"), ("deliver", "shipped")) and is_fresh:
            state = {"ship": "shipped", "deliver": "delivered"}[verb]
        elif verb == "cancel" and state in ("placed", "paid") and is_fresh:
            if state == "paid":
                happened = 2
                customers[customer][1] -= paid
                found.returned(at_ms, paid)
                paid = 0
            state = "cancelled"
        else:
            rejected += 1
            found.outcomes["rejected"] += 1
            found.outcomes["accepted"] -= 1
        found.outcomes["accepted"] += 1
        version, updated_ms = version + happened, at_ms
        found.events += happened
    if version:
        found.orders[key.decode()] = (
            customer, state, sum(pieces.values()), sum(basket.values()), paid, rejected, version, updated_ms
        )  # fmt: skip


def differences(expected: Truth, access: Access, database: Database) -> list[str]:
    """The differences between the expected contents and the tables, replies and events, as texts; empty if there are
    none."""
    wrong = []
    with database.reading():
        orders = {
            row[0]: tuple(row[1:])
            for row in database.rows(
                "SELECT order_id, customer, state, pieces, total_cents, paid_cents, rejected, version, updated_ms "
                "FROM orders"
            )
        }
        customers = {row[0]: (row[1], row[2]) for row in database.rows("SELECT * FROM customers")}
        days = {row[0]: [int(each) for each in row[1:]] for row in database.rows("SELECT * FROM days")}
    wrong += _compared("order", expected.orders, orders)
    wrong += _compared("customer", expected.customers, customers)
    wrong += _compared("day", expected.days, days)
    replies, versions = Counter[str](), dict[str, int]()
    with (
        Consumer(access.consumer() | {"isolation.level": "read_committed"}) as consumer,
        Consumer(access.consumer() | {"isolation.level": "read_uncommitted"}) as ends,
    ):
        for records in records_in_topic(consumer, schema.REPLIES, ends=ends):
            replies.update(json.loads(record.value or b"")["outcome"] for record in records)
        for records in records_in_topic(consumer, schema.EVENTS, ends=ends):
            for record in records:
                event = json.loads(record.value or b"")
                if event["version"] != versions.get(event["order"], 0) + 1:
                    wrong.append(f"event {event['version']} of {event['order']} follows {versions.get(event['order'])}")
                versions[event["order"]] = event["version"]
    if +replies != +expected.outcomes:
        wrong.append(f"the replies are {dict(replies)}, not {dict(+expected.outcomes)}")
    if sum(versions.values()) != expected.events:
        wrong.append(f"there are {sum(versions.values())} events, not {expected.events}")
    return wrong


def _compared(what: str, expected: dict[str, Any], found: dict[str, Any]) -> list[str]:
    wrong = [key for key in sorted({*expected, *found}) if expected.get(key) != found.get(key)]
    return [
        f"{len(wrong)} of {len(expected)} rows differ; {what} {key}: {found.get(key)}, not {expected.get(key)}"
        for key in wrong[:1]
    ]
