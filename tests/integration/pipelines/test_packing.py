"""The archive of packages for Spark's executors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headrace_core.errors import InvalidArgumentError
from headrace_pipelines import cli, packing


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive with a package ``parcels``."""
    place = tmp_path_factory.mktemp("packed")
    package = place / "parcels"
    package.mkdir()
    (package / "__init__.py").write_text('"""A pipeline."""\nNAME = "parcels"\n')
    file = place / "packed.tar.gz"
    packed = packing.pack(file, [package])
    assert packed.size == file.stat().st_size
    assert {"headrace", "headrace-core", "headrace-spark", "headrace-pipelines", "pyarrow"} <= set(packed.distributions)
    assert not {"pyspark", "py4j"} & set(packed.distributions), "every machine of the cluster has Spark's own packages"
    return file


def test_a_python_without_packages_imports_everything_from_the_archive(archive: Path, tmp_path: Path) -> None:
    packing.unpack(archive, tmp_path)
    code = (
        "import headrace, headrace_core.records.arrow, grpc, lz4, pyarrow, pandas, parcels; "
        "print(headrace.__file__, headrace_core.records.arrow.__file__, pyarrow.__file__, parcels.NAME)"
    )
    done = subprocess.run(
        [f"{sys.base_prefix}/bin/python3", "-S", "-c", code], env={"PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *places, name = done.stdout.split()
    assert name == "parcels"
    assert all(Path(place).is_relative_to(tmp_path) for place in places)


def test_an_archive_with_another_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"must end with \.tar\.gz"):
        packing.pack(tmp_path / "packed.zip", [])


def test_a_directory_that_is_no_package_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["pack", str(tmp_path / "packed.tar.gz"), str(tmp_path / "missing")]) == 1
    assert "missing is not a package: it has no __init__.py" in capsys.readouterr().err
    assert not (tmp_path / "packed.tar.gz").exists()


def test_a_file_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "packed.tar.gz").write_text("no archive")
    for name in ("packed.tar.gz", "missing.tar.gz"):
        with pytest.raises(InvalidArgumentError, match=r"cannot read the archive: .*; make it with"):
            packing.unpack(tmp_path / name, tmp_path / "unpacked")


def test_the_settings_name_the_directory_of_the_archive() -> None:
    assert packing.settings("hdfs:///packed.tar.gz") == {
        "spark.archives": "hdfs:///packed.tar.gz#headrace-packages",
        "spark.executorEnv.PYTHONPATH": "headrace-packages",
    }
    on_the_driver = packing.settings("packed.tar.gz", Path("/out/packages"))
    assert on_the_driver["spark.executorEnv.PYTHONPATH"] == "headrace-packages:/out/packages"


@pytest.mark.parametrize(
    ("line", "extras", "wanted"),
    [
        ("headrace-core==0.1.0", (), ("headrace-core", ())),
        ("headrace[arrow,zstd]==0.1.0", (), ("headrace", ("arrow", "zstd"))),
        ("Typing_Extensions>=4; python_version < '3.13'", (), ("typing-extensions", ())),
        ("pyarrow>=18; extra == 'arrow'", (), None),
        ("pyarrow>=18; extra == 'arrow'", ("arrow",), ("pyarrow", ())),
        ('zstandard (>=0.23) ; extra == "zstd"', ("zstd",), ("zstandard", ())),
    ],
)
def test_requirements(line: str, extras: tuple[str, ...], wanted: tuple[str, tuple[str, ...]] | None) -> None:
    found = packing._required(line, frozenset(extras))
    assert found == (None if wanted is None else (wanted[0], frozenset(wanted[1])))
