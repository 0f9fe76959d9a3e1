"""The model of an order. ``decide`` computes the events that a command causes, and ``apply`` computes the order after
an event; both functions are pure.

    place ──> placed ──pay──> paid ──ship──> shipped ──deliver──> delivered
                │ add, remove    │
                └────cancel──────┴──> cancelled (paid money is returned)

Each event has the next version of its order: 1, 2, 3, ... without a gap. A refused command causes an event, too, so
that a repetition of the command is recognized, and tables can count refusals.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .schema import CENTS_MAX, ID_CHARS_MAX, LINES_MAX, QUANTITY_MAX

#: Number of command ids that an order remembers. A repetition counts as a new command if at least REMEMBERED other
#: commands came in between.
REMEMBERED = 64

NEW, PLACED, PAID, SHIPPED, DELIVERED, CANCELLED = "new", "placed", "paid", "shipped", "delivered", "cancelled"

Event = dict[str, Any]


class RejectedError(Exception):
    """The order does not allow the command; the message says why."""


class InvalidCommandError(Exception):
    """The bytes are not a valid command; the message says why."""


@dataclass(frozen=True, slots=True)
class Line:
    quantity: int
    cents: int  #: The price of one piece.


@dataclass(frozen=True, slots=True)
class Order:
    """The state of an order after its event ``version``."""

    id: str
    version: int = 0
    state: str = NEW
    customer: str = ""
    lines: Mapping[str, Line] = field(default_factory=dict)
    paid_cents: int = 0
    at_ms: int = 0  #: The time of the last event.
    recent: tuple[str, ...] = ()  #: The ids of the last commands.

    @property
    def total_cents(self) -> int:
        return sum(line.quantity * line.cents for line in self.lines.values())

    def document(self) -> dict[str, Any]:
        """The snapshot of this order, as an object for JSON."""
        return {
            "order": self.id,
            "version": self.version,
            "state": self.state,
            "customer": self.customer,
            "lines": {sku: [line.quantity, line.cents] for sku, line in self.lines.items()},
            "paid_cents": self.paid_cents,
            "at_ms": self.at_ms,
            "recent": list(self.recent),
        }

    @classmethod
    def of_document(cls, found: Mapping[str, Any]) -> Order:
        return cls(
            id=found["order"],
            version=found["version"],
            state=found["state"],
            customer=found["customer"],
            lines={sku: Line(*each) for sku, each in found["lines"].items()},
            paid_cents=found["paid_cents"],
            at_ms=found["at_ms"],
            recent=tuple(found["recent"]),
        )


# -- commands ----------------------------------------------------------------------------------------------------------


def check(command: Any, key: bytes | None) -> None:
    """Raise InvalidCommandError if ``command`` is not a command for the order that the record's key names."""
    if not isinstance(command, dict):
        raise InvalidCommandError("a command must be a JSON object")
    for name in ("id", "order", "do"):
        _text(command, name)
    if (key or b"") != command["order"].encode():
        raise InvalidCommandError("the record's key is not the id of the order; send the command with this key")
    expected = command.get("expected_version")
    if expected is not None and (not isinstance(expected, int) or isinstance(expected, bool)):
        raise InvalidCommandError("expected_version must be a whole number")
    match command["do"]:
        case "place":
            _text(command, "customer")
            lines = command.get("lines")
            if not isinstance(lines, list) or not 1 <= len(lines) <= LINES_MAX:
                raise InvalidCommandError(f"lines must be a list of 1 to {LINES_MAX} lines")
            for each in lines:
                _line(each)
            if len({each["sku"] for each in lines}) < len(lines):
                raise InvalidCommandError("two lines of the order have the same sku")
        case "add":
            _line(command)
        case "remove":
            _text(command, "sku")
        case "pay":
            _number(command, "cents", CENTS_MAX * QUANTITY_MAX * LINES_MAX)
        case "ship" | "deliver" | "cancel":
            pass
        case other:
            raise InvalidCommandError(
                f"do={other[:20]!r}: must be one of place, add, remove, pay, ship, deliver, cancel"
            )


def _line(found: Any) -> None:
    if not isinstance(found, dict):
        raise InvalidCommandError("each line of an order must be a JSON object")
    _text(found, "sku")
    _number(found, "quantity", QUANTITY_MAX)
    _number(found, "cents", CENTS_MAX)


def _text(found: Mapping[str, Any], name: str) -> None:
    value = found.get(name)
    if not isinstance(value, str) or not 1 <= len(value) <= ID_CHARS_MAX or not value.isprintable():
        raise InvalidCommandError(f"{name} must be a printable text of 1 to {ID_CHARS_MAX} characters")


def _number(found: Mapping[str, Any], name: str, most: int) -> None:
    value = found.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise InvalidCommandError(f"{name} must be a whole number from 1 to {most}")


def is_repeated(order: Order, command: Mapping[str, Any]) -> bool:
    """Whether the order has seen the command before."""
    return command["id"] in order.recent


def decide(order: Order, command: Mapping[str, Any], at_ms: int) -> list[Event]:
    """The events that ``command`` causes, numbered from the next version of the order. A command that the order does
    not allow causes the event ``rejected``. ``at_ms``: the time of the events."""
    try:
        happened = _decided(order, command)
    except RejectedError as error:
        happened = [{"type": "rejected", "do": command["do"], "reason": str(error)}]
    return [
        {"order": order.id, "version": order.version + number, "command": command["id"], "at_ms": at_ms, **each}
        for number, each in enumerate(happened, 1)
    ]


def _decided(order: Order, command: Mapping[str, Any]) -> list[Event]:
    expected = command.get("expected_version")
    if expected is not None and expected != order.version:
        raise RejectedError(f"the order has version {order.version}, but the command expects version {expected}")
    match command["do"]:
        case "place":
            _check_state(order, NEW)
            lines = {each["sku"]: [each["quantity"], each["cents"]] for each in command["lines"]}
            return [{"type": "placed", "customer": command["customer"], "lines": lines}]
        case "add":
            _check_state(order, PLACED)
            if command["sku"] in order.lines:
                raise RejectedError(f"the order already has a line {command['sku']}")
            if len(order.lines) == LINES_MAX:
                raise RejectedError(f"the order already has {LINES_MAX} lines, the maximum")
            return [{"type": "line-added", **{name: command[name] for name in ("sku", "quantity", "cents")}}]
        case "remove":
            _check_state(order, PLACED)
            if command["sku"] not in order.lines:
                raise RejectedError(f"the order has no line {command['sku']}")
            if len(order.lines) == 1:
                raise RejectedError("the last line of an order cannot be removed; cancel the order instead")
            return [{"type": "line-removed", "sku": command["sku"]}]
        case "pay":
            _check_state(order, PLACED)
            if command["cents"] != order.total_cents:
                raise RejectedError(
                    f"the order costs {order.total_cents} cents, but the command pays {command['cents']}"
                )
            return [{"type": "paid", "cents": command["cents"]}]
        case "ship":
            _check_state(order, PAID)
            return [{"type": "shipped"}]
        case "deliver":
            _check_state(order, SHIPPED)
            return [{"type": "delivered"}]
        case _:
            _check_state(order, PLACED, PAID)
            returned = [{"type": "money-returned", "cents": order.paid_cents}] if order.paid_cents else []
            return [{"type": "cancelled"}, *returned]


def _check_state(order: Order, *allowed: str) -> None:
    if order.state not in allowed:
        raise RejectedError(
            f"the order is {order.state}, and the command needs an order that is {' or '.join(allowed)}"
        )


# -- events ------------------------------------------------------------------------------------------------------------


def apply(order: Order, event: Mapping[str, Any]) -> Order:
    """The order after ``event``. Raises ValueError if the event is not the order's next one: an event is missing, or
    arrived twice."""
    if event["version"] != order.version + 1:
        raise ValueError(
            f"order {order.id} has version {order.version}, but its next event has version {event['version']}"
        )
    recent = order.recent
    if event["command"] not in recent:
        recent = (*recent, event["command"])[-REMEMBERED:]
    after = replace(order, version=event["version"], at_ms=event["at_ms"], recent=recent)
    match event["type"]:
        case "placed":
            lines = {sku: Line(*each) for sku, each in event["lines"].items()}
            return replace(after, state=PLACED, customer=event["customer"], lines=lines)
        case "line-added":
            return replace(after, lines={**order.lines, event["sku"]: Line(event["quantity"], event["cents"])})
        case "line-removed":
            return replace(after, lines={sku: line for sku, line in order.lines.items() if sku != event["sku"]})
        case "paid":
            return replace(after, state=PAID, paid_cents=event["cents"])
        case "money-returned":
            return replace(after, paid_cents=order.paid_cents - event["cents"])
        case "shipped" | "delivered" | "cancelled" as state:
            return replace(after, state=state)
        case _:  # "rejected"
            return after
