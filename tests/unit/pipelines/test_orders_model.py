"""The rules of orders, and their independent second version, on the same commands."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import Any, NamedTuple

import pytest

from headrace.partitioners import key_partition
from headrace_pipelines.orders.handling import _command
from headrace_pipelines.orders.model import (
    REMEMBERED,
    InvalidCommandError,
    Order,
    apply,
    check,
    decide,
    is_repeated,
)
from headrace_pipelines.orders.schema import COMMAND_BYTES_MAX, ID_CHARS_MAX, LINES_MAX, encoded
from headrace_pipelines.orders.traffic import commands
from headrace_pipelines.orders.truth import Truth, _judge

LINE = {"sku": "pen", "quantity": 2, "cents": 150}


class Bytes(NamedTuple):
    """The part of a record that is a command."""

    key: bytes | None
    value: bytes | None
    partition: int = 0


class Desk:
    """One order, and the commands that it gets."""

    def __init__(self) -> None:
        self.order, self.events, self._ids = Order("o"), [], 0  # type: tuple[Order, list[dict[str, Any]], int]

    def do(self, verb: str, **fields: Any) -> list[str]:
        """The types of the events of a command."""
        self._ids += 1
        command = {"id": f"c{self._ids}", "order": "o", "do": verb} | fields
        check(command, b"o")
        if is_repeated(self.order, command):
            return []
        events = decide(self.order, command, 1_000 + self._ids)
        for event in events:
            self.order = apply(self.order, event)
        self.events += events
        return [event["type"] for event in events]


def placed() -> Desk:
    desk = Desk()
    assert desk.do("place", customer="ann", lines=[LINE]) == ["placed"]
    return desk


@pytest.mark.parametrize("seed", range(6))
def test_the_rules_agree_with_the_truth_on_the_traffic(seed: int) -> None:
    by_order: dict[bytes, list[tuple[bytes, int]]] = defaultdict(list)
    orders: dict[str, Order] = {}
    outcomes: Counter[str] = Counter()
    events = 0
    for sent in commands(400, 7, seed):
        by_order[sent.key].append((sent.value, 1))
        try:
            command = _command(Bytes(sent.key, sent.value), 1)  # type: ignore[arg-type]
        except InvalidCommandError:
            outcomes["invalid"] += 1
            continue
        order = orders.get(command["order"]) or Order(command["order"])
        if is_repeated(order, command):
            outcomes["repeated"] += 1
            continue
        happened = decide(order, command, 1)
        outcomes["rejected" if happened[0]["type"] == "rejected" else "accepted"] += 1
        for event in happened:
            order = apply(order, event)
        events += len(happened)
        orders[order.id] = Order.of_document(json.loads(encoded(order.document())))
        assert orders[order.id] == order
    expected = Truth()
    customers: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for key, values in by_order.items():
        _judge(key, values, expected, customers)
    assert +outcomes == +expected.outcomes
    assert min(outcomes[name] for name in ("accepted", "rejected", "repeated", "invalid")) > 0, "all kinds occur"
    assert events == expected.events
    for order in orders.values():
        pieces = sum(line.quantity for line in order.lines.values())
        customer, state, *counts = expected.orders[order.id]
        rejected, _ = counts.pop(3), counts.pop()
        assert (order.customer, order.state) == (customer, state)
        assert [pieces, order.total_cents, order.paid_cents, order.version] == counts
        assert rejected >= 0


def test_a_delivered_order() -> None:
    desk = placed()
    assert desk.do("add", sku="ink", quantity=1, cents=700) == ["line-added"]
    assert desk.do("pay", cents=1_000) == ["paid"]
    assert desk.do("ship") == ["shipped"]
    assert desk.do("deliver") == ["delivered"]
    assert (desk.order.state, desk.order.version, desk.order.paid_cents) == ("delivered", 5, 1_000)
    assert [event["version"] for event in desk.events] == [1, 2, 3, 4, 5]


def test_paid_money_is_returned_by_a_cancellation() -> None:
    desk = placed()
    desk.do("pay", cents=300)
    assert desk.do("cancel") == ["cancelled", "money-returned"]
    assert (desk.order.state, desk.order.version, desk.order.paid_cents) == ("cancelled", 4, 0)
    assert desk.do("cancel") == ["rejected"]


@pytest.mark.parametrize(
    ("verb", "fields", "why"),
    [
        ("place", {"customer": "ann", "lines": [LINE]}, "the order is placed"),
        ("pay", {"cents": 299}, "the order costs 300 cents, but the command pays 299"),
        ("ship", {}, "the order is placed"),
        ("deliver", {}, "the order is placed"),
        ("add", LINE, "the order already has a line pen"),
        ("remove", {"sku": "ink"}, "the order has no line ink"),
        ("remove", {"sku": "pen"}, "the last line of an order cannot be removed"),
        ("cancel", {"expected_version": 7}, "the order has version 1, but the command expects version 7"),
    ],
)
def test_a_refused_command_is_an_event_that_says_why(verb: str, fields: dict[str, Any], why: str) -> None:
    desk = placed()
    assert desk.do(verb, **fields) == ["rejected"]
    assert why in desk.events[-1]["reason"]
    assert (desk.order.state, desk.order.version) == ("placed", 2)


def test_a_repeated_command_changes_nothing_even_if_it_would_be_accepted_now() -> None:
    desk = placed()
    assert desk.do("ship", id="early") == ["rejected"]
    desk.do("pay", cents=300)
    assert desk.do("ship", id="early") == []
    assert desk.order.state == "paid"


def test_an_order_remembers_a_bounded_number_of_commands() -> None:
    desk = placed()
    for _ in range(REMEMBERED + 5):
        desk.do("deliver")
    assert len(desk.order.recent) == REMEMBERED
    assert len(encoded(desk.order.document())) < 8_192


@pytest.mark.parametrize("version", [1, 3], ids=["again", "behind a gap"])
def test_an_event_that_does_not_follow_is_an_error(version: int) -> None:
    desk = placed()
    event = {"order": "o", "version": version, "command": "c", "at_ms": 1, "type": "shipped"}
    with pytest.raises(ValueError, match=f"order o has version 1, but its next event has version {version}"):
        apply(desk.order, event)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"", "the value of the command is not JSON"),
        (b"{", "the value of the command is not JSON"),
        (b"\xff", "the value of the command is not JSON"),
        (b"[" * 10_000, "the value of the command is not JSON"),
        (b"7", "a command must be a JSON object"),
        ({"do": "ship"}, "id must be a printable text"),
        ({"id": "c", "do": "ship", "order": "other"}, "the record's key is not the id of the order"),
        ({"id": "c" * (ID_CHARS_MAX + 1), "order": "o", "do": "ship"}, "id must be a printable text of 1 to 64"),
        ({"id": "c", "order": "o\u0000", "do": "ship"}, "order must be a printable text"),
        ({"id": "c", "order": "o", "do": "fly"}, "do='fly': must be one of place, add"),
        ({"id": "c", "order": "o", "do": "ship", "expected_version": "1"}, "expected_version must be a whole number"),
        ({"id": "c", "order": "o", "do": "pay", "cents": 0}, "cents must be a whole number from 1"),
        ({"id": "c", "order": "o", "do": "pay", "cents": True}, "cents must be a whole number from 1"),
        ({"id": "c", "order": "o", "do": "pay", "cents": 1.5}, "cents must be a whole number from 1"),
        ({"id": "c", "order": "o", "do": "place", "customer": "ann", "lines": []}, "lines must be a list of 1 to"),
        (
            {"id": "c", "order": "o", "do": "place", "customer": "ann", "lines": [7]},
            "each line of an order must be a JSON object",
        ),
        ({"id": "c", "order": "o", "do": "place", "customer": "ann", "lines": [LINE, LINE]}, "have the same sku"),
        ({"id": "c", "order": "o", "do": "add", "sku": "ink", "quantity": -1, "cents": 5}, "quantity must be"),
        (b" " * (COMMAND_BYTES_MAX + 1), f"more than {COMMAND_BYTES_MAX} bytes"),
    ],
)
def test_bytes_that_are_no_command_are_named(value: bytes | dict[str, Any], why: str) -> None:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    with pytest.raises(InvalidCommandError, match=why):
        _command(Bytes(b"o", data), 1)  # type: ignore[arg-type]


def test_a_command_in_the_partition_of_another_handler_is_refused() -> None:
    """Another client's partitioner may put it there."""
    value = json.dumps({"id": "c", "order": "o", "do": "ship"}).encode()
    right = key_partition(b"o", 6)
    assert _command(Bytes(b"o", value, right), 6)["do"] == "ship"  # type: ignore[arg-type]
    for wrong in {*range(6)} - {right}:
        with pytest.raises(
            InvalidCommandError, match=f"in partition {wrong}, but its order belongs to partition {right}:"
        ):
            _command(Bytes(b"o", value, wrong), 6)  # type: ignore[arg-type]


def test_an_order_has_a_bounded_number_of_lines() -> None:
    desk = Desk()
    lines = [{"sku": f"s{number}", "quantity": 1, "cents": 1} for number in range(LINES_MAX)]
    desk.do("place", customer="ann", lines=lines)
    assert desk.do("add", sku="more", quantity=1, cents=1) == ["rejected"]
    assert "100 lines" in desk.events[-1]["reason"]


def test_the_traffic_of_a_seed_is_always_the_same() -> None:
    assert list(commands(40, 5, 3)) == list(commands(40, 5, 3))
    assert list(commands(40, 5, 3)) != list(commands(40, 5, 4))
