"""The first voters: the three ways to format a controller, refusals, and no incomplete format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from headrace_core.errors import InvalidConfigError
from headrace_core.log.files import FileSystem
from headrace_core.node.arguments import FormatCommand, format_of_config, own_address, parse_command
from headrace_core.node.config import NodeConfig
from headrace_core.node.first_voters import FirstVoters, InitialVoter, first_voters, parse_initial_controllers
from headrace_core.node.ids import id_to_text
from headrace_core.node.meta_properties import FILE_NAME, format_directories, read_meta
from headrace_core.testing.crashing_fs import CrashingFileSystem, Loss

ONE, TWO = bytes(15) + b"\xf1", bytes(14) + b"\xf2\xf2"
LIST = f"2@h2:19093:{id_to_text(TWO)}, 1@[::1]:19093:{id_to_text(ONE)}"


def _ask(initial: str | None = None, *, standalone: bool = False, none: bool = False) -> FirstVoters | None:
    return first_voters(node_id=1, address="h1:19093", standalone=standalone, initial=initial, none=none)


class Writer:
    """Records the requested writes, and fails as often as a test sets."""

    def __init__(self, failures: int = 0) -> None:
        self.written: list[tuple[str, tuple[InitialVoter, ...]]] = []
        self._failures = failures

    def __call__(self, fs: FileSystem, root: str, voters: Sequence[InitialVoter]) -> None:
        if self._failures:
            self._failures -= 1
            raise OSError("the disk is on fire")
        assert not fs.exists(f"{root}/{FILE_NAME}"), "a directory that counts as formatted has its voters"
        self.written.append((root, tuple(voters)))


def test_initial_controllers_are_read_in_kafkas_form() -> None:
    assert parse_initial_controllers(LIST) == (
        InitialVoter(node_id=1, address="[::1]:19093", directory_id=ONE),
        InitialVoter(node_id=2, address="h2:19093", directory_id=TWO),
    )
    assert ",".join(map(str, parse_initial_controllers(LIST))) == ",".join(reversed(LIST.split(", ")))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "name at least one"),
        ("1@h:19093", "write ID@HOST:PORT:DIRECTORY_ID"),
        ("x@h:1:JEXY6aqzQY-32P5TStzaFg", "write ID@HOST:PORT:DIRECTORY_ID"),
        ("99999999999@h:1:JEXY6aqzQY-32P5TStzaFg", "write ID@HOST:PORT:DIRECTORY_ID"),
        ("1@h:99999:JEXY6aqzQY-32P5TStzaFg", "above 65535"),
        ("1@h:0:JEXY6aqzQY-32P5TStzaFg", "write host:port"),
        ("1@h:1:short", "random-uuid"),
        (f"1@h:1:{id_to_text(bytes(16))}", "reserved"),
        ("1@h:1:JEXY6aqzQY-32P5TStzaFg,1@h:2:MvDxzVmcRsaTz33bUuRU6A", "the id 1"),
        ("1@h:1:JEXY6aqzQY-32P5TStzaFg,2@h:1:MvDxzVmcRsaTz33bUuRU6A", "the address h:1"),
        ("1@h:1:JEXY6aqzQY-32P5TStzaFg,2@h:2:JEXY6aqzQY-32P5TStzaFg", "the directory JEXY6"),
    ],
)
def test_a_wrong_list_is_refused_by_name(text: str, says: str) -> None:
    with pytest.raises(InvalidConfigError, match=says):
        parse_initial_controllers(text)


def test_options_that_contradict_each_other_or_lack_something_are_refused() -> None:
    assert _ask() is None
    with pytest.raises(InvalidConfigError, match="contradict"):
        _ask(LIST, standalone=True)
    with pytest.raises(InvalidConfigError, match=r"this controller \(1\) is not in the list \(3\)"):
        _ask("3@h:1:JEXY6aqzQY-32P5TStzaFg")
    with pytest.raises(InvalidConfigError, match=r"node\.id"):
        first_voters(node_id=-1, address=None, standalone=False, initial=None, none=True)
    with pytest.raises(InvalidConfigError, match="--address"):
        first_voters(node_id=1, address=None, standalone=True, initial=None, none=False)


def test_the_directory_gets_the_id_that_the_list_says() -> None:
    fs, write = CrashingFileSystem(), Writer()
    first = _ask(LIST)
    assert first is not None
    quorum, other = format_directories(["/q", "/o"], cluster_id="c", node_id=1, first=first, write_voters=write, fs=fs)
    assert quorum.meta.directory_id == ONE
    assert other.meta.directory_id not in (ONE, TWO)
    assert write.written == [("/q", first.voters)]
    assert read_meta("/q", fs=fs.crash_clone(loss=Loss.ALL)).directory_id == ONE


def test_a_standalone_controller_is_the_one_voter_in_its_own_directory() -> None:
    fs, write = CrashingFileSystem(), Writer()
    first = _ask(standalone=True)
    (done,) = format_directories(["/q"], cluster_id="c", node_id=1, first=first, write_voters=write, fs=fs)
    ((_, (voter,)),) = write.written
    assert voter == InitialVoter(node_id=1, address="h1:19093", directory_id=done.meta.directory_id)


def test_a_controller_that_joins_later_has_no_voters() -> None:
    fs, write = CrashingFileSystem(), Writer()
    format_directories(["/q"], cluster_id="c", node_id=1, first=_ask(none=True), write_voters=write, fs=fs)
    assert write.written == [("/q", ())]


def test_a_format_that_failed_leaves_the_directory_unformatted_and_can_be_done_again() -> None:
    fs, write = CrashingFileSystem(), Writer(failures=1)
    first = _ask(LIST)
    with pytest.raises(OSError, match="on fire"):
        format_directories(["/q", "/o"], cluster_id="c", node_id=1, first=first, write_voters=write, fs=fs)
    assert not fs.exists(f"/q/{FILE_NAME}")
    format_directories(["/q", "/o"], cluster_id="c", node_id=1, first=first, write_voters=write, fs=fs)
    assert len(write.written) == 1


def test_what_a_format_cut_short_left_behind_does_not_count() -> None:
    """The controller's directory was never formatted, so the next command may use other options."""
    fs, write = CrashingFileSystem(), Writer()
    for directory in ("/q", "/q/__cluster_metadata-0"):
        fs.mkdir(directory)
    left = "/q/__cluster_metadata-0/00000000000000000000-0000000000.checkpoint"
    fs.open(left, write=True, create=True).close()
    format_directories(["/q"], cluster_id="c", node_id=1, first=_ask(none=True), write_voters=write, fs=fs)
    assert not fs.exists(left)
    assert write.written == [("/q", ())]


def test_formatting_again_touches_nothing_and_checks_the_id() -> None:
    fs, write = CrashingFileSystem(), Writer()
    format_directories(["/q"], cluster_id="c", node_id=1, first=_ask(LIST), write_voters=write, fs=fs)
    for first in (_ask(LIST), _ask(standalone=True), _ask(none=True)):
        (kept,) = format_directories(
            ["/q"], cluster_id="c", node_id=1, first=first, write_voters=write, ignore_formatted=True, fs=fs
        )
        assert (kept.created, kept.meta.directory_id) == (False, ONE)
    assert len(write.written) == 1
    other = _ask(LIST.replace(id_to_text(ONE), "JEXY6aqzQY-32P5TStzaFg"))
    with pytest.raises(InvalidConfigError, match="the id of a directory does not change"):
        format_directories(
            ["/q"], cluster_id="c", node_id=1, first=other, write_voters=write, ignore_formatted=True, fs=fs
        )


@pytest.mark.parametrize(
    "left", ["00000000000000000000.log", "quorum-state", "00000000000000000007-0000000001.checkpoint"]
)
def test_a_metadata_log_without_its_meta_properties_is_not_formatted_over(left: str) -> None:
    fs, write = CrashingFileSystem(), Writer()
    for directory in ("/q", "/q/__cluster_metadata-0"):
        fs.mkdir(directory)
    fs.open(f"/q/__cluster_metadata-0/{left}", write=True, create=True).close()
    with pytest.raises(InvalidConfigError, match=r"restore its meta\.properties"):
        format_directories(["/q"], cluster_id="c", node_id=1, first=_ask(none=True), write_voters=write, fs=fs)
    assert not write.written
    assert not fs.exists(f"/q/{FILE_NAME}")


def _config(**keys: str) -> NodeConfig:
    given = {
        "node.id": "1",
        "listeners": "client://127.0.0.1:9094,internal://127.0.0.1:19094",
        "log.dirs": "/q",
    } | {key.replace("_", "."): value for key, value in keys.items()}
    return NodeConfig.from_properties(given, role=keys.get("process_roles", "controller"))


def test_the_configuration_says_where_a_standalone_controller_is_reached() -> None:
    command = format_of_config(_config(), "c", ignore_formatted=False, standalone=True)
    assert command.first is not None
    assert command.first.voters[0].address == "127.0.0.1:19094"
    away = _config(advertised_listeners="internal://c1.example:19094")
    assert own_address(away) == "c1.example:19094"
    assert own_address(_config(listeners="internal://127.0.0.1:0")) is None


def test_a_configuration_that_names_others_needs_to_know_how_they_begin() -> None:
    several = _config(controller_quorum_voters="1@127.0.0.1:19094,2@127.0.0.1:19095")
    with pytest.raises(InvalidConfigError, match=r"other controllers \(127\.0\.0\.1:19095\)"):
        format_of_config(several, "c", ignore_formatted=False)
    assert format_of_config(several, "c", ignore_formatted=False, none=True).first is not None
    alone = _config(controller_quorum_voters="1@127.0.0.1:19094")
    assert format_of_config(alone, "c", ignore_formatted=False).first is None


def test_a_brokers_directories_have_no_voters() -> None:
    broker = _config(process_roles="broker", controller_quorum_voters="1@127.0.0.1:19094,2@127.0.0.1:19095")
    assert format_of_config(broker, "c", ignore_formatted=False).first is None
    assert format_of_config(broker, "c", ignore_formatted=False, none=True).first is None
    with pytest.raises(InvalidConfigError, match="for controllers"):
        format_of_config(broker, "c", ignore_formatted=False, standalone=True)


def test_the_servers_own_command_line_takes_the_options(tmp_path: Path) -> None:
    file = tmp_path / "c.properties"
    file.write_text(f"node.id=1\nlisteners=internal://127.0.0.1:19094\nlog.dirs={tmp_path}\n")
    line = ["format", "--cluster-id", "c", "--config", str(file), "--initial-controllers", LIST]
    command = parse_command(line, program="p", role="controller")
    assert isinstance(command, FormatCommand)
    assert command.first == _ask(LIST)
    line = ["format", "--cluster-id", "c", "--log-dirs", "/q", "--node-id", "1", "--standalone", "--address", "h:1"]
    command = parse_command(line, program="p", role="controller")
    assert isinstance(command, FormatCommand)
    assert command.first is not None
    assert command.first.voters[0].address == "h:1"
    with pytest.raises(SystemExit):
        parse_command([*line[:-3], "--standalone"], program="p", role="broker")


def test_a_controller_that_was_not_formatted_lists_the_three_ways() -> None:
    fs = CrashingFileSystem()
    with pytest.raises(InvalidConfigError, match=r"--standalone .*--initial-controllers .*--no-initial-controllers"):
        read_meta("/nowhere", node_id=1, fs=fs, is_controller=True)
