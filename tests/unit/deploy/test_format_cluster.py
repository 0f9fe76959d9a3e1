"""The job that formats a cluster of containers. The job formats once, and never over an existing cluster."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest

from headrace_core.errors import InconsistentClusterIdError
from headrace_core.node.slots import read_cluster_id

PROGRAM = Path(__file__).resolve().parents[3] / "deploy" / "format_cluster.py"
_spec = importlib.util.spec_from_file_location("deploy_format_cluster", PROGRAM)
assert _spec is not None
assert _spec.loader is not None
job = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(job)


@pytest.fixture
def volumes(tmp_path: Path) -> Path:
    for role in job.ROLES:
        (tmp_path / role).mkdir()
    return tmp_path


def made(volumes: Path) -> str:
    return str(job.format_cluster(volumes, controllers=3, address="controller-{slot}.net:19093"))


def files(volumes: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in volumes.rglob("*") if path.is_file()}


def test_the_second_run_changes_nothing(volumes: Path) -> None:
    cluster_id = made(volumes)
    before = files(volumes)
    assert {read_cluster_id(volumes / role) for role in job.ROLES} == {cluster_id}
    assert sorted(path.name for path in (volumes / "controller").iterdir() if path.is_dir()) == [
        "slot-1",
        "slot-2",
        "slot-3",
    ]
    assert made(volumes) == cluster_id
    assert files(volumes) == before


def test_a_job_that_was_cut_short_goes_on_with_what_it_had_drawn(volumes: Path) -> None:
    cluster_id = made(volumes)
    before = files(volumes)
    shutil.rmtree(volumes / "controller" / "slot-2")
    (volumes / "broker" / "cluster.id").unlink()
    assert made(volumes) == cluster_id
    assert files(volumes) == before


def test_brokers_of_a_cluster_are_not_given_to_a_new_one_when_the_controllers_volume_is_lost(volumes: Path) -> None:
    cluster_id = made(volumes)
    shutil.rmtree(volumes / "controller")
    (volumes / "controller").mkdir()
    for _ in range(2):  # the job is started again, and still does not format
        with pytest.raises(InconsistentClusterIdError, match=f"says cluster {cluster_id}"):
            made(volumes)
        assert read_cluster_id(volumes / "broker") == cluster_id
    assert not list((volumes / "controller").glob("slot-*"))
