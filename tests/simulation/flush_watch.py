"""Watches one file of a simulated disk: its flush fails, the next process reads the file, and a power loss follows.

    watch = FlushWatch(fs, "/data/orders-0/", rng)     the flush of a write that crosses a page fails, once
    watch.process_ended()                              now: the bytes that only the page cache has
    watch.fail_power(power_fails)                      ``power_fails`` is called before a flush with unforced bytes

The watch needs a write that crosses a page. Later appends write to the last page, and so repair it by chance: Linux
marks a whole page as dirty. Only the pages before the last page show whether recovery has written them again.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from headrace_core.records import iterate_headers
from headrace_core.testing.crashing_fs import BLOCK_BYTES, CrashingFileSystem, Fault, TraceEntry


class FlushWatch:
    """See the module. Uses ``fs.on_operation``."""

    def __init__(self, fs: CrashingFileSystem, directory: str, rng: random.Random) -> None:
        self.fs = fs
        self.path = ""
        #: The number of records that only the page cache has, and the end offset of the records on the first lost page.
        #: After the records on the first lost page are committed, no write may touch that page again.
        self.records_at_stake = 0
        self.end_offset = -1
        self.has_lost_power = False
        self._directory = directory
        self._some_arrive = random.Random(rng.random()) if rng.random() < 0.3 else None
        self._planned: Fault | None = None
        self._stake_ends = -1
        self._fail_power: Callable[[], None] | None = None
        fs.on_operation = self.look

    @property
    def has_failed(self) -> bool:
        return self._planned is not None and self._planned.seen > 0

    @property
    def is_at_stake(self) -> bool:
        """Whether records were only in the page cache, and the log has not been truncated within the first lost page
        since the flush failed."""
        return self.records_at_stake > 0

    def process_ended(self) -> None:
        """Look at the data that the next process will read."""
        if not self.has_failed:
            return
        data = self.fs.files().get(self.path, b"")
        last_page = max(len(data) - 1, 0) // BLOCK_BYTES
        pages = [page for page in self.fs.lost_pages(self.path) if page < last_page] if data else []
        if not pages:
            return
        lost_from, lost_to = min(pages) * BLOCK_BYTES, (min(pages) + 1) * BLOCK_BYTES
        found = [(at, header) for at, header in iterate_headers(data) if at + header.size > lost_from]
        self.records_at_stake = found[-1][1].next_offset - found[0][1].base_offset
        self.end_offset, self._stake_ends = next(
            (header.next_offset, at + header.size) for at, header in found if at + header.size >= lost_to
        )

    def fail_power(self, power_fails: Callable[[], None]) -> None:
        """``power_fails`` raises SimulatedCrash; it is called before the next flush that has data to force."""
        self._fail_power = power_fails

    def stop(self) -> None:
        self.fs.on_operation = None

    def look(self, entry: TraceEntry) -> None:
        """What ``fs.on_operation`` calls."""
        if not (entry.path.startswith(self._directory) and entry.path.endswith(".log")):
            return
        if entry.operation == "write" and self._planned is None:
            if entry.position // BLOCK_BYTES < (entry.position + entry.size - 1) // BLOCK_BYTES:
                self.path = entry.path
                self._planned = self.fs.fail("sync", path_ends=entry.path, rng=self._some_arrive)
        elif entry.operation in ("truncate", "unlink") and entry.path == self.path:
            if entry.position < self._stake_ends:
                self.records_at_stake = 0
        elif entry.operation == "sync" and self._fail_power is not None and not self.fs.is_durable(entry.path):
            self.has_lost_power = True
            self.stop()
            self._fail_power()
