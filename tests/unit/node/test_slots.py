"""Slots: each of several identical nodes gets a directory and keeps it. The file also tests configuration from the
environment."""

from __future__ import annotations

import json
import os
import shutil
import socket
from pathlib import Path

import pytest

from headrace_core.errors import InconsistentClusterIdError, InvalidConfigError
from headrace_core.node import slots
from headrace_core.node.arguments import StartCommand, parse_command
from headrace_core.node.environment import environment_properties
from headrace_core.node.meta_properties import format_directories, read_all_meta, read_meta
from headrace_core.node.slots import claim, claim_any, own_number

CLUSTER = "MkU3OEVBNTcwNTJENDM2Qk"
LISTENERS = "client://0.0.0.0:9095,internal://0.0.0.0:19095,external://0.0.0.0:9096"


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    (tmp_path / "cluster.id").write_text(CLUSTER + "\n")
    return tmp_path


def environment_of(volume: Path, **more: str) -> dict[str, str]:
    return {
        "HEADRACE_SLOTS_DIR": str(volume),
        "HEADRACE_LISTENERS": LISTENERS,
        "HEADRACE_ADVERTISED_LISTENERS": "client://b-{slot}:9095,external://127.0.0.1:910{slot}",
        "HEADRACE_CONTROLLER_QUORUM_BOOTSTRAP_SERVERS": "controller:19093",
    } | more


def started(volume: Path, role: str = "broker", **more: str) -> StartCommand:
    command = parse_command(
        ["--environment"],
        program="node",
        role=role,
        environment=environment_of(volume, **more),
        write_voters=lambda: (
            lambda fs, root, voters: Path(root, "voters").write_text(json.dumps(list(map(str, voters))))
        ),
    )
    assert isinstance(command, StartCommand)
    assert command.slot is not None
    return command


def end(command: StartCommand) -> None:
    """Release the lock, as the kernel does when the process ends."""
    assert command.slot is not None
    os.close(command.slot.descriptor)


def test_nodes_that_are_alike_get_slots_of_their_own_and_who_comes_back_finds_what_was_left(volume: Path) -> None:
    first, second = started(volume), started(volume)
    assert [first.config.node_id, second.config.node_id] == [1, 2]
    assert second.config.log_dirs == (str(volume / "slot-2"),)
    assert [str(each) for each in second.config.advertised] == ["client://b-2:9095", "external://127.0.0.1:9102"]
    directory = read_meta(str(volume / "slot-1")).directory_id
    end(first)
    again, third = started(volume), started(volume)
    assert [again.config.node_id, third.config.node_id] == [1, 3]
    assert read_meta(again.config.log_dirs[0]).directory_id == directory, "formatted once, and never again"


def test_a_new_slot_is_formatted_for_the_volumes_cluster_and_for_its_number(volume: Path) -> None:
    meta = read_meta(started(volume, "coordinator").config.log_dirs[0])
    assert (meta.cluster_id, meta.node_id) == (CLUSTER, 1)


def test_a_controller_in_a_new_slot_votes_for_nothing_until_it_is_added(volume: Path) -> None:
    slot = Path(started(volume, "controller").config.log_dirs[0])
    assert json.loads((slot / "voters").read_text()) == []


def test_a_volume_that_is_not_mounted_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match=r"cluster\.id.*mounted"):
        started(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_slot_that_was_copied_to_another_number_is_refused_by_the_node_itself(volume: Path) -> None:
    first = started(volume)
    shutil.copytree(volume / "slot-1", volume / "slot-2")
    second = started(volume)
    with pytest.raises(InvalidConfigError, match=r"belongs to node\.id=1, but node\.id=2"):
        read_all_meta(second.config.log_dirs, node_id=second.config.node_id)
    end(first)


def test_a_slot_of_another_cluster_is_refused(volume: Path) -> None:
    end(started(volume))
    (volume / "slot-1" / "meta.properties").unlink()
    (volume / "cluster.id").write_text("another\n")
    assert read_meta(started(volume).config.log_dirs[0]).cluster_id == "another"
    with pytest.raises(InconsistentClusterIdError):
        format_directories([str(volume / "slot-1")], cluster_id=CLUSTER, ignore_formatted=True)


def test_when_all_slots_are_held_it_says_what_to_do(volume: Path) -> None:
    held = [claim_any(volume, most=2), claim_any(volume, most=2)]
    with pytest.raises(InvalidConfigError, match=r"all 2 slots are in use.*slots\.max"):
        claim_any(volume, most=2)
    for slot in held:
        os.close(slot.descriptor)


def test_a_slot_that_is_somebodys_by_name_is_never_another_one(volume: Path) -> None:
    held = claim(volume, number=3, wait_s=0)
    with pytest.raises(InvalidConfigError, match="another process has used slot 3"):
        claim(volume, number=3, wait_s=0)
    os.close(held.descriptor)
    assert claim(volume, number=3, wait_s=0).number == 3


def test_the_number_is_that_of_the_name_which_leads_here() -> None:
    addresses = {"c-1": {"10.0.0.5"}, "c-2": {"10.0.0.7", "10.1.0.7"}, "c-4": {"10.0.0.9"}}

    def number_of(own: str, most: int = 4) -> int:
        return own_number(
            "c-{slot}",
            most=most,
            addresses_of=lambda name: addresses.get(name, set()),
            is_mine=lambda address: address == own,
            wait_s=5,
        )

    assert number_of("10.1.0.7") == 2
    assert number_of("10.0.0.9") == 4, "there need not be a third"


def test_a_name_that_leads_nowhere_is_an_error_that_says_which() -> None:
    with pytest.raises(InvalidConfigError, match=r"none of the names for slots 1 to 2"):
        own_number(
            "c-{slot}", most=2, addresses_of=lambda name: {"10.0.0.1"}, is_mine=lambda address: False, wait_s=0.2
        )
    with pytest.raises(InvalidConfigError, match=r"write \{slot\}"):
        own_number("controller", most=2)


def test_a_machine_knows_its_own_name() -> None:
    assert own_number("127.0.0.{slot}", most=1) == 1
    with pytest.raises(InvalidConfigError, match="none of the names"):
        own_number("192.0.2.{slot}", most=1, wait_s=0.2)  # TEST-NET-1: unused


@pytest.mark.parametrize("strangers", ["0.0.0.{slot}", "224.0.0.{slot}", "203.0.113.{slot}"])
def test_an_address_that_can_be_bound_to_is_not_its_own_for_that(
    strangers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behave as a machine with net.ipv4.ip_nonlocal_bind, on which a process can bind any address."""
    monkeypatch.setattr(socket.socket, "bind", lambda *_: None)
    with pytest.raises(InvalidConfigError, match="none of the names"):
        own_number(strangers, most=2, addresses_of=lambda name: {name.replace("0.0.0.1", "0.0.0.0")}, wait_s=0.2)


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_name_that_is_none_is_looked_up_in_vain() -> None:
    with pytest.raises(InvalidConfigError, match="none of the names"):
        own_number("a..b-{slot}." + "x" * 64, most=2, wait_s=0.2)


@pytest.mark.parametrize("text", ["", " \n", "two words"])
def test_a_volume_whose_cluster_has_no_name_is_refused_by_that(volume: Path, text: str) -> None:
    (volume / slots.CLUSTER_ID).write_text(text)
    with pytest.raises(InvalidConfigError, match=r"cluster.id holds no cluster id"):
        slots.read_cluster_id(volume)


@pytest.mark.parametrize("key", ["node.id", "log.dirs"])
def test_what_the_slot_says_nobody_else_may_say(volume: Path, key: str) -> None:
    with pytest.raises(InvalidConfigError, match=f"{key}.*conflicts with slots.dir"):
        started(volume, **{"HEADRACE_" + key.upper().replace(".", "_"): "1"})


# -- the environment ---------------------------------------------------------------------------------------------------


def test_a_key_is_its_name_in_capitals() -> None:
    found = environment_properties(
        {"HEADRACE_LOG_FLUSH": " os ", "HEADRACE_BROKER_RACK": "", "HEADRACE_BOOTSTRAP_SERVERS": "b:9095", "HOME": "/"}
    )
    assert found == {"log.flush": "os"}
    assert found.set_in == {"log.flush": "HEADRACE_LOG_FLUSH in the environment"}


def test_the_file_the_environment_and_the_command_line_go_before_each_other(tmp_path: Path) -> None:
    file = tmp_path / "b.properties"
    file.write_text(f"node.id=1\nlog.dirs={tmp_path}\nnum.partitions=1\nlog.level=debug\nlog.flush=interval\n")
    command = parse_command(
        ["--config", str(file), "--environment", "-o", "num.partitions=3"],
        program="node",
        role="broker",
        environment={"HEADRACE_NUM_PARTITIONS": "2", "HEADRACE_LOG_FLUSH": "os"},
    )
    assert isinstance(command, StartCommand)
    values = command.config.values
    assert (values["num.partitions"], values["log.flush"], values["log.level"]) == (3, "os", "debug")


def test_the_environment_counts_only_where_it_is_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "b.properties"
    file.write_text(f"node.id=1\nlog.dirs={tmp_path}\n")
    arguments = ["--config", str(file)]
    command = parse_command(arguments, program="n", role="broker", environment={"HEADRACE_NUM_PARTITIONS": "2"})
    assert isinstance(command, StartCommand)
    assert command.config.values["num.partitions"] == 1
    with pytest.raises(SystemExit):
        parse_command([], program="n", role="broker", environment={})


def test_a_variable_that_is_no_key_is_named_with_what_was_meant(volume: Path) -> None:
    with pytest.raises(InvalidConfigError, match=r"log\.flsh.*log\.flush.*HEADRACE_LOG_FLSH in the environment"):
        started(volume, HEADRACE_LOG_FLSH="os")
