"""A segment's two indexes against plain lists, through appends, truncations, writes, drops from memory, crashes and
reads. After a crash, an index file has a prefix of the appended entries, or it is detected as damaged."""

from __future__ import annotations

import random
from bisect import bisect_right

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace_core.errors import CorruptLogError
from headrace_core.log.index import OFFSET_ENTRY, TIME_ENTRY, OffsetIndex, TimeIndex
from headrace_core.testing.crashing_fs import CrashingFileSystem, Loss
from tests.worlds.this_process import examples

BASE = 1_000
SIZE_MAX = 12 * TIME_ENTRY.size


class IndexMachine(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.fs = CrashingFileSystem(keep_trace=False)
        self.fs.mkdir("/d")
        self.fs.sync_directory("/")
        self.open()
        self.offset_index.start_empty()
        self.time_index.start_empty()
        #: (last offset, position) and (timestamp, offset) of each entry.
        self.places: list[tuple[int, int]] = []
        self.times: list[tuple[int, int]] = []
        self.end = BASE
        self.position = 0
        self.time_ms = 0

    def open(self) -> None:
        self.offset_index = OffsetIndex(self.fs, "/d/i.index", BASE, SIZE_MAX)
        self.time_index = TimeIndex(self.fs, "/d/i.timeindex", BASE, SIZE_MAX)

    @rule(records=st.integers(1, 50), size=st.integers(61, 5000), step_ms=st.integers(-5, 20), sealing=st.booleans())
    def append(self, records: int, size: int, step_ms: int, sealing: bool) -> None:
        last_offset = self.end + records - 1
        if len(self.places) < SIZE_MAX // OFFSET_ENTRY.size:
            self.places.append((last_offset, self.position))
        self.offset_index.append(last_offset, self.position)
        time_ms = self.time_ms + step_ms
        room = SIZE_MAX // TIME_ENTRY.size - (0 if sealing else 1)
        if time_ms >= 0 and (not self.times or time_ms > self.times[-1][0]) and len(self.times) < room:
            self.times.append((time_ms, last_offset))
        self.time_index.maybe_append(time_ms, last_offset, sealing=sealing)
        self.time_ms = max(self.time_ms, time_ms)
        self.end, self.position = last_offset + 1, self.position + size

    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        offset = BASE + int((self.end - BASE) * share)
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        self.places = [place for place in self.places if place[0] < offset]
        self.times = [time for time in self.times if time[1] < offset]
        self.end = max(offset, BASE)
        self.position = self.places[-1][1] + 1 if self.places else 0
        self.time_ms = self.times[-1][0] if self.times else 0

    @rule()
    def write(self) -> None:
        self.offset_index.file.write()
        self.time_index.file.write()

    @rule()
    def close_and_reopen(self) -> None:
        """After a clean stop, the index has all entries again."""
        for index in (self.offset_index, self.time_index):
            index.file.sync()
            index.file.close()
        self.fs.sync_directory("/d")
        self.fs.crash(self.rng, Loss.ALL)
        self.open()

    @rule()
    def forget_and_load(self) -> None:
        self.write()
        self.offset_index.unload()
        self.time_index.unload()

    @rule(loss=st.sampled_from(Loss))
    def crash(self, loss: Loss) -> None:
        """An index file is accepted only if it is a prefix of the appended entries. An index file that is no prefix is
        rebuilt, as recovery does."""
        self.fs.crash(self.rng, loss)
        self.open()
        try:
            offsets, positions = self.offset_index.loaded()
            times, time_offsets = self.time_index.loaded()
        except CorruptLogError:
            self.rebuild()
            return
        found = [(BASE + offset, position) for offset, position in zip(offsets, positions, strict=True)]
        found_times = [(time_ms, BASE + offset) for time_ms, offset in zip(times, time_offsets, strict=True)]
        is_prefix = found == self.places[: len(found)] and found_times == self.times[: len(found_times)]
        # the process was killed: all written bytes are in the file, although they are not durable
        if loss is Loss.NONE:
            assert is_prefix, "not what was written"
        if loss is not Loss.ALL or not is_prefix:
            self.rebuild()  # zeros, a truncation that was not durable: nothing depends on an index being durable
            return
        self.places, self.times = found, found_times

    def rebuild(self) -> None:
        self.offset_index.start_empty()
        self.time_index.start_empty()
        places, times, self.places, self.times = self.places, self.times, [], []
        for last_offset, position in places:
            self.offset_index.append(last_offset, position)
            self.places.append((last_offset, position))
        for time_ms, offset in times:
            self.time_index.maybe_append(time_ms, offset, sealing=True)
            self.times.append((time_ms, offset))

    @rule(share=st.floats(-0.1, 1.1), step=st.integers(-1, 1))
    def look_up(self, share: float, step: int) -> None:
        offset = BASE + int((self.end - BASE) * share) + step
        below = [position for last, position in self.places if last <= offset]
        assert self.offset_index.entry_below(offset).position == (below[-1] if below else 0)
        position = int(self.position * share) + step
        floors = [at for _, at in self.places if at <= position]
        assert self.offset_index.entry_before(position).position == (floors[-1] if floors else 0)
        time_ms = int(self.time_ms * share) + step
        at = bisect_right(self.times, time_ms, key=lambda entry: entry[0]) - 1
        assert tuple(self.time_index.entries_around(time_ms)[1]) == (self.times[at] if at >= 0 else (-1, BASE))

    @invariant()
    def the_ends_agree(self) -> None:
        if not hasattr(self, "places"):
            return
        assert len(self.offset_index) == len(self.places)
        assert len(self.time_index) == len(self.times)
        assert self.offset_index.last_position() == (self.places[-1][1] if self.places else 0)
        assert tuple(self.time_index.last_entry()) == (self.times[-1] if self.times else (-1, BASE))
        assert self.offset_index.is_full == (len(self.places) >= SIZE_MAX // OFFSET_ENTRY.size)


IndexMachine.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)
TestIndexesAgainstModel = IndexMachine.TestCase
