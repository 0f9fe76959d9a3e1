"""Directories are formatted. Unformatted directories and directories of another node or cluster are refused."""

from __future__ import annotations

import pytest

from headrace_core.errors import InconsistentClusterIdError, InvalidConfigError
from headrace_core.node.ids import id_from_text, id_to_text, random_id
from headrace_core.node.meta_properties import FILE_NAME, format_directories, read_all_meta, read_meta
from headrace_core.testing.crashing_fs import CrashingFileSystem, Loss


@pytest.fixture
def fs() -> CrashingFileSystem:
    return CrashingFileSystem()


def test_a_formatted_directory_survives_a_power_loss(fs: CrashingFileSystem) -> None:
    (done,) = format_directories(["/data/one"], cluster_id="c", node_id=3, fs=fs)
    after = fs.crash_clone(loss=Loss.ALL)
    assert read_meta("/data/one", fs=after) == done.meta
    assert done.created
    assert len(done.meta.directory_id) == 16


def test_each_directory_gets_an_id_of_its_own(fs: CrashingFileSystem) -> None:
    done = format_directories(["/a", "/b"], cluster_id="c", fs=fs)
    assert len({each.meta.directory_id for each in done}) == 2
    assert [meta.cluster_id for meta in read_all_meta(["/a", "/b"], fs=fs)] == ["c", "c"]


def test_a_formatted_directory_is_refused_before_anything_is_touched(fs: CrashingFileSystem) -> None:
    (done,) = format_directories(["/a"], cluster_id="c", fs=fs)
    with pytest.raises(InvalidConfigError, match="/a is already formatted"):
        format_directories(["/b", "/a"], cluster_id="c", fs=fs)
    assert not fs.exists(f"/b/{FILE_NAME}")
    assert read_meta("/a", fs=fs) == done.meta


def test_formatted_directories_can_be_left_alone(fs: CrashingFileSystem) -> None:
    (first,) = format_directories(["/a"], cluster_id="c", node_id=1, fs=fs)
    kept, new = format_directories(["/a", "/b"], cluster_id="c", node_id=1, ignore_formatted=True, fs=fs)
    assert (kept.meta, kept.created, new.created) == (first.meta, False, True)
    with pytest.raises(InconsistentClusterIdError):
        format_directories(["/a"], cluster_id="other", ignore_formatted=True, fs=fs)
    with pytest.raises(InvalidConfigError, match=r"node\.id=1"):
        format_directories(["/a"], cluster_id="c", node_id=2, ignore_formatted=True, fs=fs)


def test_an_unformatted_directory_is_refused_with_the_cure(fs: CrashingFileSystem) -> None:
    with pytest.raises(InvalidConfigError, match="`headrace format --cluster-id ID --log-dirs /nowhere`"):
        read_meta("/nowhere", fs=fs)
    with pytest.raises(InvalidConfigError, match="`headrace format --cluster-id ID --node-id 3 --log-dirs '/a disk'`"):
        read_meta("/a disk", node_id=3, fs=fs)


def test_directories_of_different_owners_are_refused(fs: CrashingFileSystem) -> None:
    format_directories(["/a"], cluster_id="c", node_id=1, fs=fs)
    format_directories(["/b"], cluster_id="d", node_id=1, fs=fs)
    with pytest.raises(InconsistentClusterIdError):
        read_all_meta(["/a", "/b"], fs=fs)
    with pytest.raises(InvalidConfigError, match=r"node\.id=2 is configured"):
        read_all_meta(["/a"], node_id=2, fs=fs)


@pytest.mark.parametrize("cluster_id", ["", "with space", "x" * 65, "ünï"])
def test_a_wrong_cluster_id_is_refused(fs: CrashingFileSystem, cluster_id: str) -> None:
    with pytest.raises(InvalidConfigError, match="cluster id"):
        format_directories(["/a"], cluster_id=cluster_id, fs=fs)


def test_an_id_survives_its_text() -> None:
    for _ in range(50):
        raw = random_id()
        assert id_from_text(id_to_text(raw)) == raw
        assert not id_to_text(raw).startswith("-")
    for text in ("", "short", "x" * 23, "ä" * 22):
        with pytest.raises(InvalidConfigError):
            id_from_text(text)
