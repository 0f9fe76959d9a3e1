"""A run that was killed before its first batch begins again, although Spark refuses the files that it left."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace_pipelines.checkpoints import checkpoints, remove_unbegun
from headrace_pipelines.errors import PipelineFailedError


def checkpoint(root: Path, name: str, *files: str) -> Path:
    for file in ("metadata", *files):
        path = root / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("v1")
    return root / name


def test_a_checkpoint_without_a_batch_is_removed(tmp_path: Path) -> None:
    """A kill during the first write leaves ``offsets/.0.….tmp``."""
    unbegun = checkpoint(tmp_path, "devices", "offsets/.0.5e0c.tmp", "state/0/0/1.delta")
    remove_unbegun(tmp_path)
    assert not unbegun.exists()


def test_a_checkpoint_with_a_batch_stays_as_it_is(tmp_path: Path) -> None:
    begun = checkpoint(tmp_path, "minutes", "offsets/0", "offsets/.1.77ab.tmp")
    committed = checkpoint(tmp_path, "fives", "commits/12", "offsets/12")
    before = sorted(tmp_path.rglob("*"))
    remove_unbegun(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before
    assert begun.is_dir()
    assert committed.is_dir()


def test_other_files_and_a_missing_directory_are_no_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "a-file").write_text("")
    remove_unbegun(tmp_path)
    remove_unbegun(tmp_path / "none")
    assert {path.name for path in tmp_path.iterdir()} == {"notes", "a-file"}


@pytest.mark.parametrize("content", [b"", b"\0" * 40], ids=["empty", "zeros"])
def test_a_file_that_a_power_cut_has_damaged_is_named(tmp_path: Path, content: bytes) -> None:
    path = checkpoint(tmp_path, "minutes", "commits/3", "offsets/3") / "offsets/3"
    path.write_bytes(content)
    with pytest.raises(PipelineFailedError, match="offsets/3: the file is damaged, for example by a power cut"):
        checkpoints(tmp_path)
