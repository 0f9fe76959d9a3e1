"""Customers: commands for many orders at once; the same seed gives the same commands.

Some customers send a command twice, like a program that got no answer. Some commands are wrong: a payment of a wrong
sum, a shipment before the payment, bytes that are not a command.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

from ..access import Access
from ..sending import Sending
from . import schema

#: Orders that are open at the same time.
ACTIVE = 200
_SKUS = tuple(f"sku-{number:03}" for number in range(200))


class Sent(NamedTuple):
    """A record for the topic of the commands; ``key`` is the id of the order."""

    key: bytes
    value: bytes


def commands(orders: int, repeat_every: int, seed: int) -> Iterator[Sent]:
    """All records of the commands, in the order of sending. About every ``repeat_every``-th command is in the list
    twice (0: no command is)."""
    rng = random.Random(f"orders {seed}")
    waiting = iter(range(orders))
    active: list[Iterator[dict[str, Any]]] = []
    late: list[tuple[int, Sent]] = []  # repeated commands, each with the number of commands after which it is sent
    number = 0
    while True:
        while len(active) < ACTIVE and (order := next(waiting, None)) is not None:
            active.append(_script(f"order-{order:06}", random.Random(f"order {seed} {order}")))
        if not active:
            break
        at = rng.randrange(len(active))
        command = next(active[at], None)
        if command is None:
            active[at] = active[-1]
            active.pop()
            continue
        number += 1
        sent = _record(command)
        yield sent
        if repeat_every and number % repeat_every == 0:
            late.append((number + rng.choice((0, 1, 50)), sent))
        while late and late[0][0] <= number:
            yield late.pop(0)[1]
    for _, sent in late:
        yield sent


def _record(command: dict[str, Any]) -> Sent:
    key = command["order"].encode()
    return Sent(key, command["bytes"] if "bytes" in command else schema.encoded(command))


def _script(order: str, rng: random.Random) -> Iterator[dict[str, Any]]:
    """The commands of one order."""
    count = 0

    def command(do: str, **fields: Any) -> dict[str, Any]:
        nonlocal count
        count += 1
        return {"id": f"{order}/{count}", "order": order, "do": do, **fields}

    def line() -> dict[str, Any]:
        return {"sku": rng.choice(_SKUS), "quantity": rng.randint(1, 5), "cents": rng.randint(100, 20_000)}

    if rng.random() < 0.02:
        yield {"order": order, "bytes": rng.choice((b"{", b"[]", b'{"id":"1"}', b"\xff\xfe", b"null"))}
    if rng.random() < 0.03:
        yield command("pay", cents=100)  # a command before the order exists
    lines = {each["sku"]: each for each in (line() for _ in range(rng.randint(1, 4)))}
    yield command("place", customer=f"customer-{rng.randrange(300):03}", lines=list(lines.values()))
    for _ in range(rng.choice((0, 0, 1, 2))):
        more = line()
        yield command("add", **more)
        lines.setdefault(more["sku"], more)
    if rng.random() < 0.2:
        gone = rng.choice((*lines, "sku-999"))
        yield command("remove", sku=gone)
        if len(lines) > 1:
            lines.pop(gone, None)
    if rng.random() < 0.1:
        yield command("cancel")
        yield from [command("pay", cents=1)] * (rng.random() < 0.3)
        return
    if rng.random() < 0.05:
        yield command("ship")  # a shipment before the payment
    total = sum(each["quantity"] * each["cents"] for each in lines.values())
    if rng.random() < 0.08:
        yield command("pay", cents=total + 1)
    if rng.random() < 0.05:
        yield command("pay", cents=total, expected_version=1_000)
    yield command("pay", cents=total)
    if rng.random() < 0.08:
        yield command("cancel")
        return
    yield command("ship")
    if rng.random() < 0.9:
        yield command("deliver")


class Traffic(Sending):
    """Sends commands in a thread, ``rate`` a second."""

    def __init__(self, access: Access, records: list[Sent], rate: float) -> None:
        super().__init__("orders traffic", access, schema.COMMANDS, records, rate)
