"""The directory of a run: what the command says when it cannot be written."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from headrace_pipelines import cli


@pytest.mark.parametrize("below", ["", "x"], ids=["a file", "below a file"])
@pytest.mark.parametrize("words", [["run", "scaling", "--without-spark"], ["sql", "-e", "SHOW TABLES"]], ids=str)
def test_a_directory_that_cannot_be_made_is_named(
    words: list[str], below: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert cli.main([*words, "--out", str(tmp_path / "file" / below), "-b", "127.0.0.1:1"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"cannot write to {tmp_path}/file" in line
    assert "choose another directory with --out" in line


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EDQUOT])
def test_a_full_disk_is_named(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> None:
        raise OSError(number, "the disk says no")

    monkeypatch.setattr(cli, "_run", fails)
    assert cli.main(["run", "scaling", "--out", str(tmp_path)]) == 1
    assert f"scaling: cannot write to {tmp_path}: the disk says no; free space" in capsys.readouterr().err


def test_another_error_of_the_system_is_shown_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise FileNotFoundError(errno.ENOENT, "no such file", "/elsewhere")

    monkeypatch.setattr(cli, "_run", fails)
    with pytest.raises(FileNotFoundError):
        cli.main(["run", "scaling", "--out", str(tmp_path)])
