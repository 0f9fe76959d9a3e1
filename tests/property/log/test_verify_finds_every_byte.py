"""``headrace log verify`` reports every damaged byte with its file, and reports no sound byte."""

from __future__ import annotations

import pytest

from headrace_core.log.dump import Note, Problem, dump
from headrace_core.log.verify import Counts, verify
from headrace_core.records import split_batches
from headrace_core.testing.crashing_fs import CrashingFileSystem
from tests.worlds.damage_world import ORDERS, ROOT, Image, make_image, of_today


@pytest.fixture(scope="module", params=[True, False], ids=["after a clean stop", "after a kill"])
def image(request: pytest.FixtureRequest) -> Image:
    return make_image(clean=request.param)


def problems(fs: CrashingFileSystem, path: str = ROOT) -> list[Problem]:
    return [line for line in verify(path, fs=fs) if isinstance(line, Problem)]


def test_a_sound_directory_is_sound(image: Image) -> None:
    counts = Counts()
    assert [line for line in verify(ROOT, fs=image.fs, counts=counts) if isinstance(line, Problem)] == []
    files = [path for path, data in image.fs.files().items() if not path.endswith(".lock")]
    assert counts.files == len(files), "every file was looked at"
    assert counts.bytes == sum(len(image.fs.files()[path]) for path in files)
    assert [line for line in dump(f"{ROOT}/{ORDERS}", fs=image.fs, deep=True) if isinstance(line, Problem)] == []


def test_every_flipped_byte_is_named(image: Image) -> None:
    for path, data in image.fs.files().items():
        for position in of_today(range(len(data))):
            fs = image.damaged()
            fs.flip(path, position, (0x01, 0x80, 0xFF, 0x10)[position % 4])
            found = problems(fs)
            assert any(path in (problem.path, problem.what) or path in problem.what for problem in found), (
                f"{path}, byte {position} flipped: {found or 'nothing was said'}"
            )
            assert all(problem.cure for problem in found), "each says what to do"


def test_every_cut_of_a_segment_is_named(image: Image) -> None:
    """A log that lacks its last batch looks like a shorter log. Only a recovery point above its end shows the loss."""
    segments = [path for path in image.fs.files() if path.endswith(".log") and str(ORDERS) in path]
    for path in segments[:-1]:
        data = image.fs.files()[path]
        for size in range(0, len(data), 3):
            fs = image.damaged()
            fs.replace(path, data[:size])
            assert any(problem.path.startswith(path.removesuffix(".log")) for problem in problems(fs)), (
                f"{path}[:{size}]"
            )


def test_a_moved_offset_is_damage_and_no_torn_tail(image: Image) -> None:
    """The offsets of the batches do not fit after the damage, but batches after a damaged batch are no torn tail."""
    path = max(path for path in image.fs.files() if path.endswith(".log") and str(ORDERS) in path)
    spans = split_batches(image.fs.files()[path])
    assert len(spans) >= 2
    position = sum(span.size for span in spans[:-2])
    fs = image.damaged()
    fs.flip(path, position + 6, 0x01)
    assert any(type(problem) is Problem for problem in problems(fs))
    assert any(type(line) is Problem for line in dump(path, fs=fs))


def test_a_torn_tail_is_a_note(image: Image) -> None:
    path = max(path for path in image.fs.files() if path.endswith(".log") and str(ORDERS) in path)
    fs = image.damaged()
    fs.replace(path, image.fs.files()[path] + bytes(100))
    counts = Counts()
    (note,) = (line for line in verify(ROOT, fs=fs, counts=counts) if isinstance(line, Problem))
    assert type(note) is Note
    assert (counts.problems, counts.notes) == (0, 1)
    assert (note.path, note.position) == (path, len(image.fs.files()[path]))
    assert "cuts these 100 bytes" in note.cure


@pytest.mark.parametrize("kept", [1, 30, 61, -1])
def test_a_last_batch_without_its_end_is_a_torn_tail(image: Image, kept: int) -> None:
    path = max(path for path in image.fs.files() if path.endswith(".log") and str(ORDERS) in path)
    data = image.fs.files()[path]
    last = split_batches(data)[-1]
    fs = image.damaged()
    fs.replace(path, data + data[last.position : last.position + (kept if kept > 0 else last.size + kept)])
    (note,) = (line for line in dump(path, fs=fs) if isinstance(line, Problem))
    assert type(note) is Note
    assert (note.path, note.position) == (path, len(data))


@pytest.mark.parametrize("at", [8, 11, 16, 17, 60, 61, -1])
def test_a_whole_last_batch_with_another_byte_in_it_is_no_torn_tail(image: Image, at: int) -> None:
    """The batch may have been damaged after its acknowledgement. ``verify`` therefore reports the damaged batch, even
    if the next start would truncate it."""
    path = max(path for path in image.fs.files() if path.endswith(".log") and str(ORDERS) in path)
    data = image.fs.files()[path]
    last = split_batches(data)[-1]
    fs = image.damaged()
    fs.flip(path, last.position + (at if at >= 0 else last.size + at), 0x01)
    for found in (problems(fs), [line for line in dump(path, fs=fs) if isinstance(line, Problem)]):
        assert any(type(line) is Problem and line.path == path and line.position == last.position for line in found)


def test_a_quarantined_log_is_named(image: Image) -> None:
    fs = image.damaged()
    fs.replace(f"{ROOT}/{ORDERS}/headrace-quarantine", b"/data/orders-0/0.log, position 3, offset 7: rotten\n")
    (found,) = problems(fs)
    assert "rotten" in found.what
    assert "remove" in found.cure


def test_what_is_no_log_is_refused_by_name(image: Image) -> None:
    with pytest.raises(FileNotFoundError, match="/nowhere"):
        list(verify("/nowhere", fs=image.fs))
    image.fs.replace("/other", b"x")
    with pytest.raises(ValueError, match="/other"):
        list(verify("/other", fs=image.fs))
