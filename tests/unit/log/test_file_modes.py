"""What a private directory has in it is private: every way in which nodes and `headrace up` create files."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace_core import file_modes
from headrace_core.errors import ClusterStartError
from headrace_core.file_modes import is_open_to_others, make_private
from headrace_core.log.files import RealFileSystem
from headrace_core.node.ids import id_to_text, random_id
from headrace_core.node.listeners import ListenerAddress
from headrace_core.node.meta_properties import format_directories
from headrace_core.node.slots import claim_any
from headrace_core.node.state_file import RuntimeState, write_state
from headrace_tools.doctor.diagnosis import Severity, diagnose
from headrace_tools.doctor.facts import Facts
from headrace_tools.local import nodes
from headrace_tools.local.directory import ClusterDirectory
from headrace_tools.local.inprocess_logs import NodeLog
from headrace_tools.local.processes import spawn
from headrace_tools.local.state import ClusterState, Node, StateFile

FS = RealFileSystem()


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path | str) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


def modes(root: Path) -> dict[str, int]:
    return {str(path.relative_to(root)): mode(path) for path in sorted(root.rglob("*"))}


def _state_file(root: Path) -> None:
    state = RuntimeState.of("broker", 1, 0, (ListenerAddress("client", "127.0.0.1", 1),))
    write_state(str(root / "node.json"), state)


def _locked(root: Path) -> None:
    with StateFile(root).locked():
        pass


def _node_log(root: Path) -> None:
    NodeLog(root / "broker-1.log", "info").close()


def _process_log(root: Path) -> None:
    spawn([sys.executable, "-I", "-S", "-c", ""], log=root / "broker-1.log", directory=root)


WAYS: dict[str, Callable[[Path], Any]] = {
    "file": lambda root: FS.open(str(root / "0.log"), create=True).close(),
    "lazy file": lambda root: FS.open_lazily(str(root / "0.index"), create=True).close(),
    "lock": lambda root: FS.lock(str(root / ".lock")),
    "state file": _state_file,
    "slot": lambda root: claim_any(root, most=1),
    "log of a node in this process": _node_log,
    "log of a process": _process_log,
    "the cluster's lock": _locked,
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize(("parent", "expected"), [(0o700, 0o600), (0o750, 0o640), (0o755, 0o644), (0o2775, 0o644)])
def test_a_new_file_has_no_permission_that_its_directory_has_not(
    tmp_path: Path, way: Callable[[Path], Any], parent: int, expected: int
) -> None:
    tmp_path.chmod(parent)
    way(tmp_path)
    found = {path: each for path, each in modes(tmp_path).items() if path != "node.json.tmp"}
    assert set(found.values()) == {expected}, found


@pytest.mark.parametrize("make", [lambda path: FS.mkdir(str(path)), nodes.ensure_directory], ids=["log", "up"])
@pytest.mark.parametrize(("parent", "expected"), [(0o700, 0o700), (0o750, 0o750), (0o755, 0o755)])
def test_a_new_directory_has_no_permission_that_its_parent_has_not(
    tmp_path: Path, make: Callable[[Path], None], parent: int, expected: int
) -> None:
    tmp_path.chmod(parent)
    make(tmp_path / "orders-0")
    assert mode(tmp_path / "orders-0") == expected


def test_formatted_directories_are_private_below_a_private_one(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    format_directories([str(tmp_path / "broker-1")], cluster_id=id_to_text(random_id()), node_id=1)
    found = modes(tmp_path)
    assert found.pop("broker-1") == 0o700
    assert set(found.values()) == {0o600}, found


def test_what_an_open_cluster_has_written_becomes_private(tmp_path: Path) -> None:
    root, outside = tmp_path / "cluster", tmp_path / "outside"
    elsewhere = tmp_path / "another-disk"
    for directory in (root / "broker-1" / "orders-0", root / "security", outside, elsewhere):
        directory.mkdir(parents=True)
    for file in (
        root / "broker-1" / "orders-0" / "0.log",
        root / "cluster.json",
        root / "security" / "ca.pem",
        outside / "theirs",
        elsewhere / "own",
    ):
        file.touch()
    (root / "link").symlink_to(outside)
    (root / "broker-2").symlink_to(elsewhere)
    node = Node("broker", 2, "127.0.0.1", 9095, 9096, (str(root / "broker-2"),), None)
    ClusterDirectory(root)._make_private(ClusterState("c", (node,), {}))
    assert {path: each for path, each in modes(root).items() if not (root / path).is_symlink()} == {
        "broker-1": 0o700,
        "broker-1/orders-0": 0o700,
        "broker-1/orders-0/0.log": 0o600,
        "cluster.json": 0o600,
        "security": 0o700,
        "security/ca.pem": 0o644,
    }
    assert [mode(root), mode(elsewhere), mode(elsewhere / "own")] == [0o700, 0o700, 0o600]
    assert [mode(outside), mode(outside / "theirs")] == [0o755, 0o644]


def test_what_a_node_deletes_meanwhile_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        (tmp_path / name).touch()

    def chmod(path: str, wanted: int, real: Any = os.chmod) -> None:
        if path.endswith("a"):
            os.unlink(path)
        real(path, wanted)

    monkeypatch.setattr(file_modes.os, "chmod", chmod)
    make_private(tmp_path)
    assert modes(tmp_path) == {"b": 0o600}


def test_files_of_another_user_stop_the_start_with_a_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o755)

    def chmod(path: str, _: int) -> None:
        raise PermissionError(1, "Operation not permitted", path)

    monkeypatch.setattr(file_modes.os, "chmod", chmod)
    with pytest.raises(ClusterStartError, match=f"{tmp_path}: Operation not permitted; make the user"):
        ClusterDirectory(tmp_path)._make_private(ClusterState("c", (), {}))


@pytest.mark.parametrize(
    ("data", "parent", "expected"),
    [(0o755, 0o755, True), (0o700, 0o755, False), (0o750, 0o755, False), (0o755, 0o700, False), (0o755, 0o711, True)],
)
def test_a_directory_is_open_if_others_may_list_it_and_reach_it(
    data: int, parent: int, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"/": 0o755, "/srv": parent, "/srv/data": data}
    monkeypatch.setattr(file_modes.os.path, "realpath", str)
    monkeypatch.setattr(file_modes.os, "stat", lambda path: SimpleNamespace(st_mode=found[path]))
    is_open = is_open_to_others("/srv/data")
    monkeypatch.undo()
    assert is_open is expected


def test_doctor_names_an_open_directory_as_advice() -> None:
    facts = Facts(now_ms=0, bootstrap=(), data="/srv/my data", is_data_open=True)
    found = {each.rule: each for each in diagnose(facts)}["open-directory"]
    assert (found.severity, found.where) == (Severity.ADVICE, "/srv/my data")
    assert found.cure.endswith("chmod 700 '/srv/my data'")
    assert "open-directory" not in {each.rule for each in diagnose(Facts(now_ms=0, bootstrap=(), data="/srv/my data"))}
