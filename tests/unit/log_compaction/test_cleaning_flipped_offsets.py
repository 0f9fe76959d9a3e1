"""No CRC covers a batch's base offset. A cleaning must not hide a flipped bit in a base offset."""

from __future__ import annotations

import pytest

from headrace_core.errors import CorruptLogError
from headrace_core.log.files import read_file
from tests.worlds.compaction_world import Ledger


@pytest.mark.parametrize("which", [0, 2, -1])
@pytest.mark.parametrize("bit", [0, 1, 3, 20, 33, 47, 62])
def test_a_batch_whose_offset_flipped_is_not_cleaned(bit: int, which: int) -> None:
    ledger = Ledger()
    ledger.fill(40, keys=40)  # every record is the last one of its key: all of them are kept
    segment = ledger.log.segments[1]
    before = {each.path: read_file(ledger.fs, each.path) for each in ledger.log.segments}
    data = bytearray(before[segment.path])
    place = list(segment.places(0, segment.size))[which]
    data[place.position + 7 - bit // 8] ^= 1 << bit % 8
    file = ledger.fs.open(segment.path, write=True)
    file.pwritev([bytes(data)], 0)
    file.close()
    before[segment.path] = bytes(data)

    with pytest.raises(CorruptLogError):
        ledger.clean()

    assert {path: read_file(ledger.fs, path) for path in before} == before, "the log is left as it is"
    assert not [name for name in ledger.fs.listdir(ledger.directory) if name.endswith(".cleaned")]
