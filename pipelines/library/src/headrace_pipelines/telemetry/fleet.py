"""A fleet of devices with planted, known faults. The same seed gives the same records.

    fault       share                                  effect
    silent      2 % of the devices in five minutes     no reading for 110 to 125 s, then it speaks again
    dead        0.2 % of the devices in five minutes   no reading from now on
    offline     1 % of the devices in five minutes     readings of 40 to 52 s arrive together, when the device is back
    slow        3 % of the readings                    arrive 5 to 55 s after their time, so out of order
    doubled     1 % of the readings                    sent twice
    lost        1 % of the readings                    never sent, and never two in a row
    too late    0.1 % of the readings                  arrive 65 to 300 s after their time
    bad         0.06 % of the readings                 broken JSON, an impossible temperature, or a clock that is ahead

A device takes a reading each 30 seconds. All times are times of the readings: this module does not read a clock.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterator
from typing import NamedTuple

PERIOD_S = 30
#: The start of every run, in the fleet's time: 1 March 2026, 00:00 UTC.
START_MS = 1_772_323_200_000
#: Seconds of a slot. In a slot, a device has at most one planted outage. A shorter slot at the end has no outages.
SLOT_S = 300
SILENT_SHARE, DEAD_SHARE, OFFLINE_SHARE = 0.02, 0.002, 0.01
SLOW_SHARE, DOUBLED_SHARE, LOST_SHARE, LATE_SHARE, BAD_SHARE = 0.03, 0.01, 0.01, 0.001, 0.0006
FAULTY_SHARE = SLOW_SHARE + DOUBLED_SHARE + LOST_SHARE + LATE_SHARE + BAD_SHARE

#: The kinds of deliveries: a good reading, a repeated reading, or one of four kinds of dead letters.
GOOD, AGAIN, TOO_LATE, BROKEN, HOT, AHEAD = KINDS = ("good", "again", "too late", "broken", "hot", "ahead")
_SLOW, _DOUBLED, _LOST = "slow", "doubled", "lost"


class Delivery(NamedTuple):
    """A record that arrives at ``at_ms``, which is its timestamp. ``time_ms``: when the device took the reading."""

    at_ms: int
    device: str
    time_ms: int
    kind: str
    value: bytes


class Outage(NamedTuple):
    """A device sends nothing from second ``from_s`` to second ``to_s`` of the run. ``is_kept``: the device sends the
    readings of this time afterwards. A dead device has no end (``math.inf``)."""

    from_s: int
    to_s: float
    is_kept: bool = False


#: Maps the number of each device to its outages, in order.
Plan = dict[int, list[Outage]]


def name_of(number: int) -> str:
    return f"device-{number:05}"


def plan(seed: int, devices: int, minutes: int) -> Plan:
    """The planted outages. A silence and a death each cause one alarm; the end of a silence clears its alarm."""
    chance = random.Random(f"outages {seed}")
    found: Plan = {}
    dead: set[int] = set()
    for slot_s in range(0, minutes * 60 - SLOT_S + 1, SLOT_S):
        for device in range(devices):
            draw, from_s = chance.random(), slot_s + chance.randrange(60, 91)
            if device in dead:
                continue
            if draw < DEAD_SHARE:
                dead.add(device)
                outage = Outage(from_s, math.inf)
            elif draw < DEAD_SHARE + SILENT_SHARE:
                outage = Outage(from_s, from_s + chance.randrange(110, 126))
            elif draw < DEAD_SHARE + SILENT_SHARE + OFFLINE_SHARE:
                outage = Outage(from_s, from_s + chance.randrange(40, 53), is_kept=True)
            else:
                continue
            found.setdefault(device, []).append(outage)
    return found


def deliveries(seed: int, devices: int, minutes: int) -> Iterator[Delivery]:
    """The records of the fleet in the order of their arrival."""
    return Fleet(seed, devices, minutes).deliveries()


class Fleet:
    def __init__(self, seed: int, devices: int, minutes: int) -> None:
        self._devices, self._end_s = devices, minutes * 60
        self._plan = plan(seed, devices, minutes)
        self._chance = random.Random(f"readings {seed}")
        self._had_fault = bytearray(devices)  #: whether the last reading of a device was lost, late or bad
        self._count = 0

    def deliveries(self) -> Iterator[Delivery]:
        waiting: list[tuple[int, int, Delivery]] = []  # the number determines the order of equal times
        for second in range(self._end_s):
            now_ms = START_MS + second * 1000
            while waiting and waiting[0][0] < now_ms:
                yield heapq.heappop(waiting)[2]
            for device in range(second % PERIOD_S, self._devices, PERIOD_S):
                for delivery in self._reading(device, second):
                    self._count += 1
                    heapq.heappush(waiting, (delivery.at_ms, self._count, delivery))
        while waiting:
            yield heapq.heappop(waiting)[2]

    def _reading(self, device: int, second: int) -> list[Delivery]:
        """The deliveries of one reading: none, one record, or two records."""
        chance = self._chance
        draw, taken_ms, delay_ms = chance.random(), second * 1000 + chance.randrange(1000), chance.randrange(100, 3_000)
        noise = chance.gauss(0, 30)
        outage = next((each for each in self._plan.get(device, ()) if each.from_s <= second < each.to_s), None)
        if outage is not None:
            if not outage.is_kept:
                return []
            back_ms = int(outage.to_s * 1000) - taken_ms
            return [self._delivery(device, taken_ms, back_ms + delay_ms, noise)]
        kind = self._kind(draw, device, second)
        self._had_fault[device] = kind not in (GOOD, _SLOW, _DOUBLED)
        if kind == _LOST:
            return []
        if kind == _SLOW:
            return [self._delivery(device, taken_ms, chance.randrange(5_000, 55_000), noise)]
        if kind == TOO_LATE:
            return [self._delivery(device, taken_ms, chance.randrange(65_000, 300_000), noise, TOO_LATE)]
        if kind == _DOUBLED:
            first = self._delivery(device, taken_ms, delay_ms, noise)
            return [first, first._replace(kind=AGAIN, at_ms=first.at_ms + chance.randrange(1, 5_000))]
        return [self._delivery(device, taken_ms, delay_ms, noise, kind)]

    def _kind(self, draw: float, device: int, second: int) -> str:
        """The planted fault of a reading, or GOOD."""
        if draw > FAULTY_SHARE:
            return GOOD
        shares = [(_SLOW, SLOW_SHARE), (_DOUBLED, DOUBLED_SHARE)]
        if not self._had_fault[device]:
            shares += [(_LOST, LOST_SHARE), *((each, BAD_SHARE / 3) for each in (BROKEN, HOT, AHEAD))]
            if second < self._end_s - 310:  # so that the last record has the time of the run's end
                shares.append((TOO_LATE, LATE_SHARE))
        for kind, share in shares:
            if draw < share:
                return kind
            draw -= share
        return GOOD

    def _delivery(self, device: int, taken_ms: int, delay_ms: int, noise: float, kind: str = GOOD) -> Delivery:
        name, time_ms = name_of(device), START_MS + taken_ms
        at_ms = time_ms + delay_ms
        wave = math.sin((taken_ms / 1000 / 900 + device / self._devices) * 2 * math.pi)
        celsius = 99_999 if kind == HOT else round(2_000 + device % 7 * 150 + 500 * wave + noise)
        battery = 100 - (device * 37 + taken_ms // 60_000) % 90
        firmware = "2.4.0" if taken_ms // 1000 > device % 1_000 else "2.3.1"
        shown_ms = at_ms + 3_600_000 if kind == AHEAD else time_ms
        text = (
            f'{{"device": "{name}", "time_ms": {shown_ms}, "centi_celsius": {celsius}, "battery": {battery}, '
            f'"firmware": "{firmware}"}}'
        )
        if kind == BROKEN:
            text = text[:-10]
        return Delivery(at_ms, name, time_ms, kind, text.encode())
