"""An observer's own snapshot: used if it is complete and of this cluster, otherwise ignored."""

from __future__ import annotations

import logging

import pytest

from headrace_core.log.checkpoints import META_PROPERTIES
from headrace_core.log.files import read_file, write_file_atomically
from headrace_core.membership.image_store import ImageStore
from headrace_core.metadata import EMPTY_IMAGE, ClusterRecord, MetadataImage, TopicRecord
from headrace_core.metadata.records import METADATA_VERSION
from headrace_core.testing.clock import ManualClock
from headrace_core.testing.crashing_fs import CrashingFileSystem
from tests.worlds.this_process import logged

ROOT = "/data"


def _image(*names: str) -> MetadataImage:
    records = [ClusterRecord("c", METADATA_VERSION), *(TopicRecord(name, name.encode().ljust(16)) for name in names)]
    return EMPTY_IMAGE.apply(records, len(records), 3)


def _disk() -> CrashingFileSystem:
    fs = CrashingFileSystem()
    fs.mkdir(ROOT)
    write_file_atomically(fs, f"{ROOT}/{META_PROPERTIES}", b"")
    fs.sync_directory("/")
    return fs


def _store(fs: CrashingFileSystem, cluster_id: str = "c") -> ImageStore:
    return ImageStore(fs, ROOT, cluster_id, ManualClock())


def test_what_was_saved_is_loaded_and_only_the_newest_is_kept() -> None:
    fs = _disk()
    store = _store(fs)
    assert store.load() is None
    store.save(_image("a"))
    saved = store.save(_image("a", "b"))
    assert saved is not None
    assert saved.path == f"{ROOT}/00000000000000000003-0000000003.checkpoint"
    assert sorted(fs.listdir(ROOT)) == ["00000000000000000003-0000000003.checkpoint", META_PROPERTIES]
    loaded = store.load()
    assert loaded is not None
    assert loaded.image == _image("a", "b")
    assert loaded.size_bytes == saved.size_bytes


def test_it_is_durable_when_save_returns_and_a_crash_before_leaves_the_one_before() -> None:
    fs = _disk()
    _store(fs).save(_image("a"))
    fs.crash()
    loaded = _store(fs).load()
    assert loaded is not None
    assert loaded.image == _image("a")


def test_every_damaged_byte_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    """A damaged snapshot is ignored, and a log line names the file and the reason. An older sound snapshot is used."""
    fs = _disk()
    store = _store(fs)
    saved = store.save(_image("a"))
    assert saved is not None
    data = read_file(fs, saved.path)
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0x40
        write_file_atomically(fs, saved.path, bytes(damaged))
        found = store.load()
        assert found is None or found.image == _image("a"), f"byte {position}"
    caplog.clear()
    caplog.set_level(logging.WARNING)
    for cut in range(len(data)):
        write_file_atomically(fs, saved.path, data[:cut])
        assert store.load() is None, f"cut at {cut}"
    assert len(logged(caplog)) == len(data)
    assert saved.path in logged(caplog)[0].getMessage()
    assert "ignoring this file" in logged(caplog)[0].getMessage()


def test_a_damaged_one_is_left_out_for_an_older_one() -> None:
    fs = _disk()
    store = _store(fs)
    old = store.save(_image("a"))
    assert old is not None
    data = read_file(fs, old.path)
    new = store.save(_image("a", "b"))
    assert new is not None
    write_file_atomically(fs, old.path, data)
    write_file_atomically(fs, new.path, b"rubbish")
    loaded = store.load()
    assert loaded is not None
    assert loaded.image == _image("a")


def test_one_of_another_cluster_or_under_another_name_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    fs = _disk()
    saved = _store(fs).save(_image("a"))
    assert saved is not None
    assert _store(fs, "other").load() is None
    assert "cluster c) does not match" in caplog.text
    fs.rename(saved.path, f"{ROOT}/00000000000000000009-0000000003.checkpoint")
    assert _store(fs).load() is None


def test_nothing_is_written_where_no_formatted_directory_is_mounted() -> None:
    fs = CrashingFileSystem()
    fs.mkdir(ROOT)
    assert _store(fs).save(_image("a")) is None
    assert fs.listdir(ROOT) == []
