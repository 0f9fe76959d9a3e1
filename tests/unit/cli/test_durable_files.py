"""The files of the command line survive a power loss, and only their owner can read them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from headrace_tools.cli.profile_files import ProfileFiles
from headrace_tools.durable import replace_file
from headrace_tools.local import security
from headrace_tools.local.nodes import config_path, write_properties
from headrace_tools.local.state import ClusterState, Node, StateFile


class Disk:
    """Records the order of the calls that make a file durable: fsync of a file or a directory, and rename."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, str]] = []
        fsync, replace = os.fsync, os.replace

        def synced(descriptor: int) -> None:
            fsync(descriptor)
            kind = "directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
            self.calls.append(("sync", kind))

        def replaced(source: Path, target: Path) -> None:
            replace(source, target)
            self.calls.append(("replace", Path(target).name))

        monkeypatch.setattr(os, "fsync", synced)
        monkeypatch.setattr(os, "replace", replaced)

    def replaces_durably(self, name: str) -> bool:
        at = self.calls.index(("replace", name))
        return self.calls[at - 1] == ("sync", "file") and self.calls[at + 1] == ("sync", "directory")


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def cluster() -> ClusterState:
    return ClusterState(
        "c", (Node("broker", 1, "127.0.0.1", 7000, 8000, ()),), {"listener.name.client.sasl.jaas.config": "s3cret"}
    )


def test_the_state_of_a_cluster_is_durable_and_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    StateFile(tmp_path).write(cluster())
    assert disk.replaces_durably("cluster.json")
    assert mode_of(tmp_path / "cluster.json") == 0o600
    (node,) = cluster().nodes
    config_path(tmp_path, node).parent.mkdir()
    config_path(tmp_path, node).write_text("as an older release wrote it")
    write_properties(tmp_path, cluster(), node)
    assert "s3cret" in config_path(tmp_path, node).read_text()
    assert mode_of(config_path(tmp_path, node)) == 0o600


def test_the_passwords_of_a_secure_cluster_are_as_durable_as_its_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    security.prepare(tmp_path, cluster().nodes, "127.0.0.1:9095")
    assert "\nbootstrap.servers=127.0.0.1:9095\n" in security.client_properties_path(tmp_path).read_text()
    assert disk.replaces_durably("admin.password")
    assert disk.replaces_durably("token.secret")
    assert mode_of(security.admin_password_path(tmp_path)) == 0o600


def test_a_profile_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_PROFILES", str(tmp_path / "profiles"))
    disk = Disk(monkeypatch)
    ProfileFiles().write("stage", {"bootstrap.servers": "stage:9095"})
    assert disk.replaces_durably("stage.properties")


def test_a_replacement_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    replace_file(path, "old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        replace_file(path, "new")
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
