"""Every byte of every file of a small log is damaged, one at a time: what was written is served, or the damage is named.

Never a changed record, a missing middle, another offset, a wrong answer to a search by time.
"""

from __future__ import annotations

from collections import Counter

import pytest
from damage_world import ORDERS, ROOT, Image, Outcome, judge_log, judge_start, make_image, open_directory, said

from headrace_core.testing.crashing_fs import CrashingFileSystem

CLEAN, UNCLEAN = "after a clean stop", "after a kill"


@pytest.fixture(scope="module")
def images() -> dict[str, Image]:
    return {CLEAN: make_image(clean=True), UNCLEAN: make_image(clean=False)}


def files(image: Image) -> dict[str, bytes]:
    return {path: data for path, data in image.fs.files().items() if data and not path.endswith(".lock")}


@pytest.mark.parametrize("stop", [CLEAN, UNCLEAN])
def test_undamaged_everything_is_served(images: dict[str, Image], stop: str) -> None:
    assert judge_start(images[stop], images[stop].damaged(), "nothing") is Outcome.IDENTICAL


def _flip_each(image: Image, suffix: str) -> Counter[Outcome]:
    outcomes: Counter[Outcome] = Counter()
    for path, data in files(image).items():
        if not path.endswith(suffix):
            continue
        for position in range(len(data)):
            fs = image.damaged()
            fs.flip(path, position, (0x01, 0x80, 0xFF, 0x10)[position % 4])
            try:
                outcomes[judge_start(image, fs, path)] += 1
            except AssertionError as error:
                raise AssertionError(f"{path}, byte {position} flipped: {error}") from error
    return outcomes


@pytest.mark.parametrize("stop", [CLEAN, UNCLEAN])
def test_a_flipped_byte_of_a_segment(images: dict[str, Image], stop: str) -> None:
    outcomes = _flip_each(images[stop], ".log")
    print(outcomes)


@pytest.mark.parametrize("stop", [CLEAN, UNCLEAN])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_a_flipped_byte_of_an_index(images: dict[str, Image], stop: str, suffix: str) -> None:
    outcomes = _flip_each(images[stop], suffix)
    assert set(outcomes) == {Outcome.IDENTICAL}, "the log is sound, so it is served"


@pytest.mark.parametrize("stop", [CLEAN, UNCLEAN])
def test_a_flipped_byte_of_a_checkpoint(images: dict[str, Image], stop: str) -> None:
    for suffix in ("checkpoint", ".kafka_cleanshutdown"):
        outcomes = _flip_each(images[stop], suffix)
        assert set(outcomes) <= {Outcome.IDENTICAL}, "the logs are sound, so they are served"
    for suffix in ("partition.metadata", "meta.properties"):
        outcomes = _flip_each(images[stop], suffix)
        print(outcomes)
