"""Damage every byte of every file of a small log, one at a time: the log serves the written records, or names the
damage. The log never serves a changed record, a gap, another offset, or a wrong answer to a search by time. Damage of
one partition affects no other partition. The test damages every fifth byte of a log, others with another seed.
With HEADRACE_FULL=1 it damages all bytes, as `make verify` does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain

import pytest

from headrace_core.log import reading
from headrace_core.log.index import IndexEntry, OffsetIndex
from headrace_core.log.opening import _Opening
from headrace_core.log.reading import LogReader
from headrace_core.log.segment import LogSegment
from headrace_core.records import SLICE_EXACT
from headrace_core.testing.crashing_fs import CrashingFileSystem
from tests.worlds.damage_world import (
    ORDERS,
    Image,
    Outcome,
    judge_log,
    judge_start,
    make_image,
    of_today,
    open_directory,
    said,
)

CLEAN, UNCLEAN = "after a clean stop", "after a kill"
MASKS = (0x01, 0x80, 0xFF, 0x10)
SEGMENTS, INDEXES = (".log",), (".index", ".timeindex")
CHECKPOINTS = ("checkpoint", ".kafka_cleanshutdown")


@pytest.fixture(scope="module")
def images() -> dict[str, Image]:
    return {CLEAN: make_image(clean=True), UNCLEAN: make_image(clean=False)}


def files(image: Image, suffixes: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    for path, data in image.fs.files().items():
        if path.endswith(suffixes) and data:
            yield path, data


def flips(
    image: Image, suffixes: tuple[str, ...], chosen: Callable[[range], range] = lambda every: every
) -> Iterator[tuple[str, str, CrashingFileSystem]]:
    for path, data in files(image, suffixes):
        for position in chosen(range(len(data))):
            fs = image.damaged()
            fs.flip(path, position, MASKS[position % 4])
            yield path, f"byte {position} of {path} flipped", fs


def cuts_and_zeros(image: Image, suffixes: tuple[str, ...]) -> Iterator[tuple[str, str, CrashingFileSystem]]:
    for path, data in files(image, suffixes):
        for size in range(0, len(data), max(len(data) // 40, 1)):
            cut, zeros = image.damaged(), image.damaged()
            cut.replace(path, data[:size])
            yield path, f"{path} cut to {size} bytes", cut
            zeros.replace(path, data[:size] + bytes(len(data) - size))
            yield path, f"{path} zeroed from byte {size} on", zeros


def judged(
    image: Image, damage: Iterator[tuple[str, str, CrashingFileSystem]], judge: Callable[..., Outcome] = judge_start
) -> Counter[Outcome]:
    outcomes: Counter[Outcome] = Counter()
    for path, what, fs in damage:
        try:
            outcomes[judge(image, fs, path)] += 1
        except Exception as error:
            raise AssertionError(f"{what}: {error}") from error
    return outcomes


@pytest.mark.parametrize("stop", [CLEAN, UNCLEAN])
def test_undamaged_everything_is_served(images: dict[str, Image], stop: str) -> None:
    assert judge_start(images[stop], images[stop].damaged(), "nothing") is Outcome.IDENTICAL


@pytest.mark.parametrize("stop", [CLEAN, UNCLEAN])
def test_a_flipped_byte_of_a_segment(images: dict[str, Image], stop: str) -> None:
    image = images[stop]
    outcomes = judged(image, flips(image, SEGMENTS, of_today))
    unseen = image.bytes_below_the_start  # not readable, though a search may pass their headers
    assert 0 < outcomes[Outcome.IDENTICAL] <= unseen, "what is served was flipped, so somebody has to say so"
    assert outcomes[Outcome.TORN] == (0 if stop == CLEAN else len(of_today(image.last_batch))), (
        "the last batch above the point, whole"
    )


@pytest.mark.parametrize("stop", [CLEAN, UNCLEAN])
def test_a_segment_cut_short_or_zeroed(images: dict[str, Image], stop: str) -> None:
    outcomes = judged(images[stop], cuts_and_zeros(images[stop], SEGMENTS))
    assert outcomes[Outcome.NAMED] > 100


@pytest.mark.parametrize("stop", [CLEAN, UNCLEAN])
def test_a_damaged_index_changes_no_answer(images: dict[str, Image], stop: str) -> None:
    image = images[stop]
    assert set(judged(image, flips(image, INDEXES, of_today))) == {Outcome.IDENTICAL}, (
        "the log is sound, so it is served"
    )
    assert set(judged(image, cuts_and_zeros(image, INDEXES))) == {Outcome.IDENTICAL}


@pytest.mark.parametrize("stop", [CLEAN, UNCLEAN])
def test_a_damaged_checkpoint_loses_nothing_and_is_named(images: dict[str, Image], stop: str) -> None:
    image = images[stop]
    for path, what, fs in flips(image, CHECKPOINTS):
        with said() as lines:
            assert judge_start(image, fs, path) is Outcome.IDENTICAL, what
        assert any(path in line and "damaged" in line for line in lines), f"{what}: nobody said so"
    assert set(judged(image, cuts_and_zeros(image, CHECKPOINTS))) == {Outcome.IDENTICAL}


@pytest.mark.parametrize("name", ["partition.metadata", "meta.properties"])
def test_a_damaged_identity_is_never_believed(images: dict[str, Image], name: str) -> None:
    """If the file contains the id of another topic, the broker could delete the log as that of a deleted topic."""
    assert set(judged(images[CLEAN], flips(images[CLEAN], (name,)))) == {Outcome.NAMED}


def _while_open(image: Image, fs: CrashingFileSystem, path: str) -> Outcome:
    """Open the sound log and read a part of the log. After the reading, replace the log's files by the bytes of
    ``fs``."""
    changing = image.damaged()
    with said():
        log = open_directory(changing).logs[ORDERS]
        log.read(image.log_start_offset, 200)
        for position, (before, after) in enumerate(zip(changing.files()[path], fs.files()[path], strict=True)):
            if before != after:
                changing.flip(path, position, before ^ after)
        return judge_log(image, log, path)


@pytest.mark.parametrize("stop", [CLEAN, UNCLEAN])
def test_a_flipped_byte_while_the_log_is_open(images: dict[str, Image], stop: str) -> None:
    image = images[stop]
    outcomes = judged(image, (one for one in flips(image, SEGMENTS, of_today) if str(ORDERS) in one[0]), _while_open)
    assert 0 < outcomes[Outcome.IDENTICAL] <= image.bytes_below_the_start
    indexes = (one for one in flips(image, INDEXES, of_today) if str(ORDERS) in one[0])
    assert set(judged(image, indexes, _while_open)) == {Outcome.IDENTICAL}


# ---------------------------------------------------------------------------------------------- can these tests fail?


def _unchecked(data: bytes, offset: int, end_offset: int, epochs: object = None) -> int:
    return SLICE_EXACT


def _believed(self: OffsetIndex, offset: int) -> IndexEntry:
    return IndexEntry(_entry_below(self, offset).position, -1)


_entry_below = OffsetIndex.entry_below


@pytest.mark.parametrize(
    ("owner", "guard", "mutant", "suffixes"),
    [
        (reading, "check_slice", _unchecked, SEGMENTS),
        (LogReader, "_check_gaps", lambda *_: None, SEGMENTS),
        (LogSegment, "_check_times", lambda self: self.load_indexes(), INDEXES),
        (_Opening, "first_epoch", lambda self, segment: -1, ("log-start-offset-checkpoint",)),
        (OffsetIndex, "entry_below", _believed, INDEXES),
    ],
    ids=["slices unchecked", "neighbours unasked", "times believed", "log starts lost", "index entries believed"],
)
def test_without_a_guard_something_wrong_is_served(
    images: dict[str, Image],
    monkeypatch: pytest.MonkeyPatch,
    owner: object,
    guard: str,
    mutant: object,
    suffixes: tuple[str, ...],
) -> None:
    image = images[CLEAN]
    monkeypatch.setattr(owner, guard, mutant)
    with pytest.raises(AssertionError):
        judged(image, chain(flips(image, suffixes), cuts_and_zeros(image, suffixes)))
