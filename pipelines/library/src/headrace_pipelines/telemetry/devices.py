"""Decide when a device is silent, as a pure function of the times of its readings.

Readings arrive out of order, so a reading counts when the watermark passes its time: from then on, no earlier reading
can arrive. Until the watermark passes its time, a reading waits in ``waiting_ms``. The alarms therefore depend only on
the times, not on the batches.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

from .schema import CLEARED, SILENT, SILENT_MS, Alarm


class Device(NamedTuple):
    """The state that the job stores for a device. ``newest_ms``: the time of the device's latest reading. ``last_ms``:
    the time of the latest reading that the watermark has passed (0: there is no such reading). ``waiting_ms``: the
    times of the readings above the watermark, in order."""

    name: str
    newest_ms: int = 0
    last_ms: int = 0
    is_silent: bool = False
    waiting_ms: tuple[int, ...] = ()


def received(device: Device, time_ms: int) -> Device:
    """The device after a reading. A reading that was sent twice, or that the watermark has passed, changes nothing."""
    waiting = device.waiting_ms
    place = bisect_left(waiting, time_ms)
    if time_ms <= device.last_ms or (place < len(waiting) and waiting[place] == time_ms):
        return device
    return device._replace(
        newest_ms=max(device.newest_ms, time_ms), waiting_ms=(*waiting[:place], time_ms, *waiting[place:])
    )


def advanced(device: Device, watermark_ms: int) -> tuple[Device, list[Alarm]]:
    """The device's state when the watermark reaches ``watermark_ms``, and its new alarms in order."""
    name, newest_ms, last_ms, is_silent, waiting = device
    found: list[Alarm] = []
    passed = 0
    for time_ms in waiting:
        if time_ms > watermark_ms:
            break
        if last_ms and not is_silent and time_ms - last_ms > SILENT_MS:
            found.append(Alarm(name, SILENT, last_ms, last_ms + SILENT_MS))
            is_silent = True
        if is_silent:
            found.append(Alarm(name, CLEARED, last_ms, time_ms))
        is_silent, last_ms = False, time_ms
        passed += 1
    if last_ms and not is_silent and last_ms + SILENT_MS <= watermark_ms:
        found.append(Alarm(name, SILENT, last_ms, last_ms + SILENT_MS))
        is_silent = True
    if not passed and is_silent == device.is_silent:
        return device, found
    return Device(name, newest_ms, last_ms, is_silent, waiting[passed:]), found


def due_ms(device: Device) -> int | None:
    """The watermark at which ``advanced`` returns an alarm if no further reading arrives; None if it never does."""
    if device.is_silent:
        return device.waiting_ms[0] if device.waiting_ms else None
    last_ms = device.last_ms
    for time_ms in device.waiting_ms:
        if last_ms and time_ms - last_ms > SILENT_MS:
            break
        last_ms = time_ms
    return last_ms + SILENT_MS
