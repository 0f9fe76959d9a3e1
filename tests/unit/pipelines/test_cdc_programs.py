"""The programs that the run of cdc needs: what is missing, and how to install it."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace_core.errors import InvalidArgumentError
from headrace_pipelines.cdc import postgres
from headrace_pipelines.cdc.connect import debezium, fetch_jars, project
from headrace_pipelines.cdc.postgres import programs


def test_the_newest_postgresql_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "_PROGRAMS", tmp_path)
    with pytest.raises(InvalidArgumentError, match="apt-get install postgresql"):
        programs()
    for version in ("9.6", "15", "17"):
        (tmp_path / version / "bin").mkdir(parents=True)
        (tmp_path / version / "bin" / "postgres").touch()
    assert programs() == tmp_path / "17" / "bin"


def test_missing_maven_is_an_error_that_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InvalidArgumentError, match="apt-get install maven"):
        fetch_jars(tmp_path / "jars")
    assert not (tmp_path / "jars").exists()


def test_jars_that_are_there_are_not_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "pom.xml").write_text(project())
    assert fetch_jars(tmp_path) == tmp_path
    (tmp_path / "pom.xml").write_text("another version")
    with pytest.raises(InvalidArgumentError, match="Maven"):
        fetch_jars(tmp_path)


def test_debezium_writes_exactly_once_and_reads_only_the_tables() -> None:
    config = debezium(5432, "shop", ["public.a", "public.b"])
    assert config["exactly.once.support"] == "required"
    assert (config["table.include.list"], config["topic.prefix"]) == ("public.a,public.b", "shop")
