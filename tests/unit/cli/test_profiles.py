"""Profiles: which setting of the cluster has precedence, and refused profiles."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.errors import BootstrapError
from headrace_tools.cli.app import run
from headrace_tools.local.state import ClusterState, Node, StateFile


class Asked(list[dict[str, Any]]):
    """The configurations of the created clients. No client connects to a node."""

    def make(self, config: dict[str, Any]) -> None:
        self.append(config)
        raise BootstrapError("nobody is there")

    def servers(self, *words: str) -> str:
        """The addresses at which ``headrace words`` looks for the cluster."""
        self.clear()
        assert run(list(words)) == 1
        return self[0]["bootstrap.servers"]


@pytest.fixture
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("HEADRACE_BOOTSTRAP_SERVERS", "HEADRACE_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HEADRACE_PROFILES", str(tmp_path / "profiles"))
    assert run(["profile", "set", "stage", "-b", "stage:9095", "client.rack=b", "acks=1", "group.id=g"]) == 0
    assert run(["profile", "set", "prod", "bootstrap.servers=prod-1:9095,prod-2:9095"]) == 0
    return tmp_path / "profiles"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    made = Asked()
    for name in ("Admin", "Producer", "Consumer"):
        monkeypatch.setattr(headrace, name, made.make)
    return made


def test_what_is_typed_counts_before_the_environment_and_that_before_the_file(
    profiles: Path, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert asked.servers("topics", "list") == "127.0.0.1:9095"
    assert run(["profile", "use", "stage"]) == 0
    assert asked.servers("topics", "list") == "stage:9095"
    monkeypatch.setenv("HEADRACE_PROFILE", "prod")
    assert asked.servers("topics", "list") == "prod-1:9095,prod-2:9095"
    monkeypatch.setenv("HEADRACE_BOOTSTRAP_SERVERS", "env:9095")
    assert asked.servers("topics", "list") == "env:9095"
    assert asked.servers("topics", "list", "--profile", "stage") == "stage:9095"
    assert asked.servers("--profile", "stage", "topics", "list") == "stage:9095"
    assert asked.servers("--profile", "prod", "topics", "list", "--profile", "stage") == "stage:9095"
    assert asked.servers("--profile", "stage", "topics", "list", "-b", "flag:9095") == "flag:9095"


def test_an_empty_name_is_no_profile(profiles: Path, asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(["profile", "use", "stage"]) == 0
    assert asked.servers("topics", "list", "--profile", "") == "127.0.0.1:9095"
    assert asked.servers("--profile", "", "topics", "list") == "127.0.0.1:9095"
    assert run(["profile", "use", "--none"]) == 0
    assert asked.servers("topics", "list") == "127.0.0.1:9095"


def test_a_directory_that_is_typed_names_the_cluster(profiles: Path, asked: Asked, tmp_path: Path) -> None:
    StateFile(tmp_path).write(ClusterState("c", (Node("broker", 1, "127.0.0.1", 7000, 8000, ()),), {}))
    assert run(["profile", "use", "stage"]) == 0
    assert asked.servers("doctor", "--data", str(tmp_path)) == "127.0.0.1:7000"
    assert asked.servers("doctor", "--data", str(tmp_path), "--profile", "prod") == "prod-1:9095,prod-2:9095"


def test_each_client_takes_the_keys_that_concern_it_and_flags_win(profiles: Path, asked: Asked) -> None:
    run(["--profile", "stage", "topics", "list"])
    run(["--profile", "stage", "produce", "-t", "orders", __file__])
    run(["--profile", "stage", "produce", "-t", "orders", __file__, "-X", "acks=all", "-z", "lz4"])
    run(["--profile", "stage", "consume", "-t", "orders", "-e"])
    admin, producer, flagged, consumer = asked
    assert all(each["client.rack"] == "b" for each in asked)
    assert "acks" not in admin | consumer
    assert (producer["acks"], flagged["acks"], flagged["compression.type"]) == ("1", "all", "lz4")
    assert "group.id" not in consumer, "reading must not commit because of a file"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("acsk=1",), "did you mean 'acks'"),
        (("acks=2",), "must be one of all, -1, 1, 0"),
        (("-b", "nowhere"), "'nowhere' is not an address: write HOST:PORT"),
        (("ssl.keystore.type=JKS",), "must be PEM or PKCS12"),
        (("--delete", "linger.ms"), "has no key linger.ms"),
        (("client.id=a\nacks=0",), "one line"),
    ],
)
def test_what_a_client_would_refuse_is_not_kept(
    profiles: Path, words: tuple[str, ...], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (profiles / "stage.properties").read_bytes()
    assert run(["profile", "set", "stage", *words]) == 1
    assert expected in capsys.readouterr().err
    assert (profiles / "stage.properties").read_bytes() == before


def test_a_file_is_read_as_it_was_written_and_is_its_owners(
    profiles: Path, asked: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["profile", "set", "stage", r"client.id=a\b = c\\", "--delete", "client.rack"]) == 0
    run(["--profile", "stage", "topics", "list"])
    assert asked[0]["client.id"] == r"a\b = c\\"
    assert "client.rack" not in asked[0]
    assert stat.S_IMODE((profiles / "stage.properties").stat().st_mode) == 0o600
    assert [path.name for path in profiles.iterdir() if path.name.startswith(".new")] == []


def test_a_key_that_nobody_knows_in_a_file_is_named_with_its_line(
    profiles: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (profiles / "stage.properties").write_text("# ours\nbootstrap.servers=a:1\nclient.rak=b\n")
    assert run(["--profile", "stage", "topics", "list"]) == 1
    assert "stage.properties, line 3: no client has a configuration key 'client.rak'; did you mean 'client.rack'?" in (
        capsys.readouterr().err
    )


def test_a_profile_that_is_gone_is_an_error_and_never_another_cluster(
    profiles: Path, asked: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["profile", "use", "prod"]) == 0
    (profiles / "prod.properties").unlink()
    assert run(["topics", "list"]) == 1
    assert "profile 'prod' does not exist" in capsys.readouterr().err
    assert not asked
    assert run(["profile", "use", "nope"]) == 1
    assert run(["profile", "set", "../x", "-b", "a:1"]) == 1
    assert run(["profile", "delete", "stage"]) == 0
    assert run(["--profile", "stage", "topics", "list"]) == 1


def test_the_list_marks_the_current_one_and_deleting_it_leaves_none(
    profiles: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["profile", "set", "stage", "--use"]) == 0
    capsys.readouterr()
    assert run(["profile", "list"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        "   prod     prod-1:9095,prod-2:9095",
        "*  stage    stage:9095",
    ]
    assert run(["profile", "delete", "stage"]) == 0
    capsys.readouterr()
    assert run(["profile", "show"]) == 1
    assert "no profile is current" in capsys.readouterr().err


def test_no_command_prints_the_passwords_of_a_profile(profiles: Path, capsys: pytest.CaptureFixture[str]) -> None:
    login = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="a" password="pl4nted";'
    keys = [f"sasl.jaas.config={login}", "sasl.mechanism=SCRAM-SHA-512", "security.protocol=SASL_PLAINTEXT"]
    assert run(["profile", "set", "locked", "-b", "locked:9095", *keys]) == 0
    assert run(["profile", "show", "locked", "-o", "json"]) == 0
    assert run(["profile", "show", "locked"]) == 0
    assert run(["profile", "set", "locked", "ssl.key.password=pl4nted\x1b"]) == 1
    printed = "".join(capsys.readouterr())
    assert "pl4nted" not in printed
    assert '"sasl.jaas.config": null' in printed
    assert "  sasl.jaas.config=[hidden]\n" in printed
    assert "  sasl.mechanism=SCRAM-SHA-512\n" in printed
    assert "pl4nted" in (profiles / "locked.properties").read_text()


def test_the_file_of_command_config_names_the_cluster_unless_an_address_is_typed(
    profiles: Path, asked: Asked, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "client.properties"
    path.write_text("bootstrap.servers=file:9095\n")
    words = ("topics", "list", "--command-config", str(path))
    assert asked.servers(*words) == "file:9095"
    assert run(["profile", "use", "stage"]) == 0
    assert asked.servers(*words) == "file:9095"
    monkeypatch.setenv("HEADRACE_BOOTSTRAP_SERVERS", "env:9095")
    assert asked.servers(*words) == "file:9095", "the file is typed, the address is not"
    assert asked.servers(*words, "-b", "typed:9095") == "typed:9095"
    monkeypatch.setenv("HEADRACE_COMMAND_CONFIG", str(path))
    assert asked.servers("topics", "list") == "env:9095"
    monkeypatch.delenv("HEADRACE_BOOTSTRAP_SERVERS")
    assert asked.servers("topics", "list") == "file:9095"
    assert asked.servers("topics", "list", "--profile", "stage") == "stage:9095"
